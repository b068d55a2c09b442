"""Ways out that were found by looking for them, each closed: one command plants something, and somebody acts on it."""

import ctypes
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import command_line, fresh_directory, remove_tree, scratch
from fumehood import Policy, Sandbox
from fumehood.errors import BadRequest
from patience import LONG_S

pytestmark = pytest.mark.namespaces

# Each line of the output begins with the name of a try and tells what it reached.
TRIES = r"""
import os
def is_open(n):
    try: os.fstat(n)
    except OSError: return False
    return True
inherited = [n for n in range(3, 1024) if is_open(n)]  # first of all: a library may keep a descriptor
import ctypes, glob, signal, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
def say(name, what): print(name, what)
def tried(name, what, act):
    try:
        if act() is not False: say(name, what)
    except (OSError, ValueError): pass
for each in ("root/etc", "cwd/.", "exe", "fd/0", "fd/1", "mem", "environ", "maps", "map_files", "auxv", "stack"):
    path = "/proc/1/" + each
    tried("first", path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
tried("first", "exe for writing", lambda: os.open("/proc/1/exe", os.O_WRONLY))
for pid in [int(n) for n in os.listdir("/proc") if n.isdigit()]:
    if open(f"/proc/{pid}/comm").read().strip() not in ("bwrap", "sh", "python3", "dash", "bash"): say("processes", pid)
for pid in range(100, 4200): tried("signals", pid, lambda: os.kill(pid, 0))
tried("signals", "group of the first", lambda: os.killpg(1, 0))
# What these set holds for the command's own namespaces only.
own = tuple("/proc/sys/" + n for n in "fs/mqueue/ kernel/msg kernel/shm kernel/sem kernel/auto_msgmni user/ net/"
            " kernel/ns_last_pid kernel/pid_max".split())
for top, folders, names in os.walk("/proc"):
    if top == "/proc":
        folders[:] = [n for n in folders if not n.isdigit() and n not in ("self", "thread-self", "pressure")]
    for path in (f"{top}/{n}" for n in names if not f"{top}/{n}".startswith(own)):
        tried("kernel", path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
tried("kernel", "timer_list", lambda: bool(open("/proc/timer_list").read()))
tried("kernel", "kcore", lambda: open("/proc/kcore", "rb").read(1))
tried("kernel", "kmsg", lambda: os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK))
known = set("core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero scratch".split())
for n in set(os.listdir("/dev")) - known: say("devices", n)
for n in os.listdir("/dev/shm") + os.listdir("/dev/pts"):
    if n != "ptmx": say("devices", n)
tried("devices", "terminal", lambda: os.open("/dev/tty", os.O_RDWR))
for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 8, 0), (stat.S_IFCHR, 5, 1)):
    for place in (".", "/tmp", "/dev", "/dev/shm"):
        tried("devices", f"made in {place}", lambda: os.mknod(f"{place}/node", kind | 0o600, os.makedev(major, minor)))
places = "/tmp/.X11-unix /run/user /run/dbus /var/run/docker.sock /run/systemd /dev/mqueue /dev/fuse /dev/kvm"
for path in places.split() + "/sys/fs /sys/class /sys/firmware /sys/kernel/debug".split():
    if os.path.lexists(path): say("services", path)
for call, name in ((libc.msgget, "queues"), (libc.semget, "semaphores")):
    for key in KEYS:
        if (call(key, 0) if name == "queues" else call(key, 0, 0)) >= 0: say("ipc", name)
for n in inherited: say("descriptors", n)
for ns in ("mnt", "user", "net", "pid", "ipc", "uts", "cgroup"):
    for p in glob.glob("/proc/[0-9]*/ns/" + ns):
        tried("namespaces", p, lambda: libc.setns(os.open(p, os.O_RDONLY), 0) == 0)
tried("memory", "swap", lambda: libc.swapoff(b"/swapfile") == 0)
tried("clock", "set", lambda: libc.clock_settime(0, ctypes.create_string_buffer(16)) == 0)
tried("name", "set", lambda: socket.sethostname("evil") if not os.uname().nodename else False)
"""


@pytest.fixture(scope="module")
def reached():
    """What one command reached that tried everything and came to its end: a line each."""
    top = fresh_directory(scratch())
    project = top / "project"
    project.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    keys = [0x46480000 + os.getpid() % 0xFFFF, 0x46490000 + os.getpid() % 0xFFFF]
    queue, semaphores = libc.msgget(keys[0], 0o1600), libc.semget(keys[1], 1, 0o1600)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("STATE", "DATA", "CONFIG"):
                patch.setenv(f"XDG_{name}_HOME", str(top / name))
            with Sandbox(project) as sandbox:
                run = sandbox.run(["python3", "-c", TRIES.replace("KEYS", repr(keys)) + "\nprint('end')"])
    finally:
        libc.msgctl(queue, 0, None)
        libc.semctl(semaphores, 0, 0, None)
        remove_tree(top)
    lines = run.stdout.splitlines()
    assert lines[-1:] == ["end"], run.stderr
    return lines[:-1]


def of(reached: list[str], *names: str) -> list[str]:
    """The lines of some tries."""
    return [line for line in reached if line.partition(" ")[0] in names]


def test_nothing_of_the_sandboxs_first_process_is_open(reached):
    assert not of(reached, "first")


def test_no_process_outside_is_seen_or_signalled(reached):
    assert not of(reached, "processes", "signals")


def test_no_interface_of_the_kernel_can_be_written_nor_told_of_others(reached):
    assert not of(reached, "kernel", "memory", "clock")


def test_there_is_no_device_but_the_harmless_ones_and_none_can_be_made(reached):
    assert not of(reached, "devices")


def test_no_place_of_services_is_there(reached):
    assert not of(reached, "services")


def test_no_queue_or_semaphore_of_others_is_found(reached):
    assert not of(reached, "ipc")


def test_nothing_is_inherited_and_no_other_namespace_entered(reached):
    assert not of(reached, "descriptors", "namespaces")


@pytest.fixture(autouse=True)
def _known(known_host):
    """What this host can do is found out once."""


def shell(script: str, given: object, cwd: Path) -> str:
    """Run the host's own shell on a script that it reads, like its commands, from standard input."""
    how = {"input": script} if given is None else {"stdin": given}
    line = " ".join(map(shlex.quote, command_line()))
    told = os.environ | {"HOOD": f"{line} run --quiet --"}
    done = subprocess.run(
        ["bash"], cwd=cwd, env=told, text=True, capture_output=True, check=False, timeout=LONG_S, **how
    )  # type: ignore[call-overload]
    return str(done.stdout)


SCRIPT = """$HOOD 'read line; echo "got $line"; timeout 0.2 sh -c "echo touch marker > /proc/self/fd/0"'
for the command
echo between
$HOOD true
$HOOD 'head -c 6'
first
echo end
"""
TOLD = "got for the command\nbetween\nfirst\nend\n"


@pytest.mark.parametrize("kind", ["pipe", "file", "socket"])
def test_the_script_of_a_shell_outside_is_not_written_by_a_command_that_shares_its_input(kind, project, home, need):
    need(shutil.which("bash") is not None, "there is no bash, which reads a script no further than it runs it")
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile("w+", dir=home) as file:
        given = {"pipe": None, "file": file, "socket": theirs}[kind]
        file.write(SCRIPT)
        file.seek(0)
        ours.sendall(SCRIPT.encode())
        ours.shutdown(socket.SHUT_WR)
        # Nor does it lose a byte that the command did not read.
        assert shell(SCRIPT, given, project) == TOLD
        file.seek(0)
        assert file.read() == SCRIPT
    assert not (project / "marker").exists()


@pytest.mark.parametrize("size", [6, 20 << 20])
def test_a_file_that_is_a_commands_input_is_changed_by_it_in_no_way(size, sandbox, project, test_directory):
    """Whoever has a file open can change its mode, times and attributes, though it is open for reading only."""
    file = test_directory / "given"
    file.write_bytes(b"before")
    file.chmod(0o600)
    os.truncate(file, 6 + size)
    tries = """
import fcntl, os
for act in (
    lambda: os.fchmod(0, 0o4777), lambda: os.utime(0, (1, 1)), lambda: os.setxattr(0, "user.planted", b"1"),
    lambda: fcntl.ioctl(0, 0x40086602, b"\\x80" + bytes(7)), lambda: os.close(os.open("/proc/self/fd/0", os.O_RDWR)),
    lambda: os.truncate("/proc/self/fd/0", 0),
):
    try: act()
    except OSError: pass
print(os.path.realpath("/proc/self/fd/0").startswith(TOP), sum(map(len, iter(lambda: os.read(0, 1 << 16), b""))))
"""
    with file.open("rb", buffering=0) as opened:
        opened.read(6)
        before = os.fstat(opened.fileno())
        run = sandbox.run(["python3", "-c", tries.replace("TOP", repr(str(test_directory)))], stdin=opened)
        after = os.fstat(opened.fileno())
        assert opened.tell() == 6 + size  # what the command has read, nobody reads again
    assert run.output == f"False {size}\n"
    assert (after.st_mode, after.st_ctime_ns, after.st_size) == (before.st_mode, before.st_ctime_ns, before.st_size)
    assert "user.planted" not in os.listxattr(file)


def test_a_kept_tmp_does_not_lead_the_next_mount_point_outside(home, test_directory):
    outside = test_directory / "outside"
    outside.mkdir()
    top = Path(tempfile.mkdtemp(prefix="fumehood-tests-", dir="/tmp"))
    project = top / "a/b/project"
    project.mkdir(parents=True)
    try:
        with Sandbox(project, policy=Policy(tmp="project")) as sandbox:
            for _ in range(2):
                # It has to be written for /oldroot, where bubblewrap has the host while it makes mount points.
                with pytest.raises(BadRequest, match="lies in it"):
                    sandbox.run(f"mv {top}/a {top}/x; ln -s /oldroot{outside} {top}/a")
    finally:
        remove_tree(top)
    assert list(outside.iterdir()) == []


def test_a_time_that_no_clock_has_does_not_stop_our_records(sandbox, cli, project):
    sandbox.run("touch -d @-99999999999 past; touch -d @15000000000 future; touch -d @9223372036854775807 never; true")
    assert cli("files", "--all").returncode == 0
    assert cli("scan").returncode == 0
    assert cli("undo").returncode == 0
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("way", ["kernel", "copy"], indirect=True)
def test_a_session_that_is_told_of_another_home_uncovers_nothing(way, home, project, test_directory):
    (home / ".ssh").mkdir()
    (home / ".ssh/id_rsa").write_text("hunter2")
    tell = f"echo HOME={test_directory} > $FUMEHOOD_ENV; echo npm_config_cache={home}/.ssh > $FUMEHOOD_ENV"
    with Sandbox(project, policy=Policy(capture=way), session="told") as sandbox:
        sandbox.run(tell)
        run = sandbox.run(f"echo $HOME; npm --version >/dev/null 2>&1; cat {home}/.ssh/id_rsa")
    assert run.stdout == f"{test_directory}\n"


def test_variables_that_a_command_had_kept_are_nothing_to_the_loader_outside(home, project, test_directory):
    outside = test_directory / "outside"
    outside.mkdir()
    names = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{outside}/loaded", "LD_PRELOAD": f"{project}/planted.so"}
    tell = "".join(f"echo {name}={value} > $FUMEHOOD_ENV; " for name, value in names.items())
    with Sandbox(project, session="loading") as sandbox:
        sandbox.run(f"echo no library > planted.so; {tell}")
        run = sandbox.run("echo $LD_DEBUG $LD_PRELOAD")
    # The command has them, and the loader of its programs complains; bubblewrap's, outside, did not see them.
    assert run.stdout.splitlines()[-1] == f"libs {project}/planted.so"
    assert run.exit_code == 0
    assert list(outside.iterdir()) == []
