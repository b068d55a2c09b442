"""Devices that a person names: commands may use them as the person may, and change nothing about them."""

import json
import os
import shlex
import stat
import subprocess

import pytest

import trees
from forked import command_line
from fumehood import BadRequest, Policy, Sandbox

pytestmark = pytest.mark.namespaces

# One that everybody may open on most machines; what it says does not matter, only that the driver is asked.
DEVICE = "/dev/fuse"
USE_IT = """
import errno, os
fd = os.open("/dev/fuse", os.O_RDWR)
try:
    os.read(fd, 1 << 20)
except OSError as error:
    print(errno.errorcode[error.errno])
"""
CLOSE_IT = """
try:
    os.chmod("/dev/fuse", 0o600)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.fixture
def fuse(need):
    usable = os.access(DEVICE, os.R_OK | os.W_OK)
    need(usable, f"{DEVICE} is not there, or closed")
    return DEVICE


def test_a_device_that_is_named_can_be_used_and_its_mode_stays(way, fuse, home, project):
    before = os.stat(fuse)
    with Sandbox(project, Policy(capture=way)) as sandbox:
        assert sandbox.run(["python3", "-c", USE_IT]).exit_code == 1
    with Sandbox(project, Policy(capture=way, devices=(fuse, "/dev/none"))) as sandbox:
        # The first is the driver's own word: nothing is mounted by this descriptor.
        if way == "bwrap":  # whose own binds can't be read-only and have devices
            assert sandbox.run(["python3", "-c", USE_IT]).stdout.split() == ["EPERM"]
        else:
            assert sandbox.run(["python3", "-c", USE_IT + CLOSE_IT]).stdout.split() == ["EPERM", "EROFS"]
    assert stat.filemode(os.stat(fuse).st_mode) == stat.filemode(before.st_mode)


def test_it_is_there_in_a_root_tree_and_explained(cli, fuse, home, project, test_directory):
    tree = trees.make_tree(test_directory / "tree")
    (home / ".config/fumehood").mkdir()
    (home / ".config/fumehood/config.toml").write_text(f'devices = ["{fuse}", "/dev/none"]\n')
    (tree / "sys").mkdir()
    number = os.stat(fuse).st_rdev
    described = f"/sys/dev/char/{os.major(number)}:{os.minor(number)}"  # as programs look a device up
    for root in ("host", str(tree)):
        assert cli("run", "--root", root, "--", f"test -c {fuse} && ls -d /dev/none").stderr.startswith("ls: ")
        line = f"cat {described}/uevent; touch {described}/x"
        assert "DEVNAME=fuse\n" in cli("run", "--root", root, "--", line).stdout
    explained = json.loads(cli("run", "--explain", "--json", "--", "true").stdout)
    told = {mount["path"]: mount["what"] for mount in explained["mounts"]}
    assert (told[fuse], told["/dev/none"]) == ("the host's own device", "not shown: it is not there")
    told = {each["name"]: each for each in json.loads(cli("doctor", "--json").stdout)["abilities"]}
    assert told[f"device {fuse}"]["works"]
    assert (told["device /dev/none"]["works"], told["device /dev/none"]["detail"]) == (False, "it is not there")


def test_a_command_that_misses_one_is_told_how_to_get_it(fuse, home, project):
    with Sandbox(project, Policy(devices=("/dev/none",))) as sandbox:
        run = sandbox.run(f"cat {fuse}; cat /dev/none")
    told = {each.detail: each.hint for each in run.blocked}
    assert told[fuse].startswith(f'to let commands use it: devices = ["{fuse}"]')
    assert told["/dev/none"] == "it is named in the configuration, but it is not there"


def test_no_disk_is_shown_nor_a_screen_nor_anything_outside_of_dev(home, project):
    for outside in ("/dev/../etc/passwd", "/etc/passwd"):
        with pytest.raises(BadRequest, match="devices of a policy can't be"):
            Sandbox(project, Policy(devices=(outside,)))
    named = ("/dev/loop0", "/dev/tty0", "/dev/vcs", "/dev/shm", "/dev/ptmx")
    with Sandbox(project, Policy(devices=named)) as sandbox:
        run = sandbox.run("ls /dev/loop0 /dev/tty0 /dev/vcs; test -d /dev/shm && test -c /dev/ptmx && echo on")
    assert run.stderr.count("cannot access") == 3
    assert run.stdout.endswith("on\n")


# What the standard streams are, and which can't be changed. To try a change would be one, for the whole machine.
STREAMS = """
import os, stat
print(*(stat.filemode(os.fstat(fd).st_mode)[0] + "r" * (os.fstatvfs(fd).f_flag & os.ST_RDONLY) for fd in range(3)))
print(len(os.read(0, 3)))
"""
OWN_NULL, PIPE = "cr p p\n0\n", "p p p\n3\n"
GIVEN = {"null": OWN_NULL, "zero": PIPE, "urandom": PIPE}


def test_no_node_of_the_host_is_a_commands_input(sandbox):
    line = ["python3", "-c", STREAMS]
    assert sandbox.run(line).stdout == OWN_NULL
    assert sandbox.session("s").run(line).stdout == OWN_NULL
    for name, streams in GIVEN.items():
        with open(f"/dev/{name}", "rb", buffering=0) as device:
            assert sandbox.run(line, stdin=device).stdout == streams


@pytest.mark.parametrize("name", GIVEN)
def test_nor_on_the_command_line(name, home, project):
    with open(f"/dev/{name}", "rb") as device, open(os.devnull, "wb") as null:
        line = [*command_line(), "run", "--", f"python3 -c {shlex.quote(STREAMS)} | tee streams"]
        subprocess.run(line, stdin=device, stdout=null, stderr=null, cwd=project, check=True)
    assert (project / "streams").read_text() == GIVEN[name]


def test_a_commands_terminal_is_one_whose_mode_it_can_t_change(sandbox):
    program = STREAMS.replace("len(os.read(0, 3))", "os.ttyname(0)")
    run = sandbox.start(["python3", "-c", program], terminal=True).wait()
    assert run.stdout.replace("\r", "") == "cr cr cr\n/dev/console\n"
