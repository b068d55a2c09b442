"""Commands whose `/` is a root tree: what they see, what they can write, and where that lands."""

import json
import os
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trees
from conftest import fresh_directory, remove_tree, scratch
from fumehood import Policy, Sandbox
from fumehood.errors import BadRequest
from fumehood.linux.confine import can_scope
from fumehood.service.opened import OpenedStore

pytestmark = pytest.mark.namespaces

MOUNT_POINTS = ("workspace", "roots", "skills", "playground")
Cli = Callable[..., Any]


@pytest.fixture(params=["whole", "bare"])
def tree(request: pytest.FixtureRequest, test_directory: Path) -> Path:
    """A root tree: one with the mount points that ours have, and one that lacks them."""
    made = trees.make_tree(test_directory / "tree")
    if request.param == "whole":
        for name in MOUNT_POINTS:
            (made / name).mkdir()
    return made


@pytest.fixture(scope="module")
def python_tree() -> Iterator[Path]:
    """A tree with Python and pip, which is never written."""
    top = fresh_directory(scratch())
    made = trees.make_tree(top / "tree")
    trees.add_python(made)
    yield made
    remove_tree(top)


@pytest.fixture
def run(cli: Cli, tree: Path) -> Callable[..., dict[str, Any]]:
    def run(command: str, *options: str, **more: Any) -> dict[str, Any]:
        done = cli("run", "--json", "--root", tree, *options, "--", command, **more)
        return json.loads(done.stdout)

    return run


def test_the_tree_is_what_the_command_sees(run: Callable[..., dict[str, Any]], tree: Path) -> None:
    told = run("cat /etc/alpine-release; ls /; pwd")
    lines = told["output"].split()
    assert lines[0] == trees.VERSION
    assert lines[-1] == "/workspace"
    assert "usr" in lines
    assert "work" not in lines
    assert told["exit_code"] == 0


def test_a_write_to_the_workspace_reaches_the_project(run: Callable[..., dict[str, Any]], project: Path) -> None:
    told = run("mkdir -p /workspace/src && echo hello > /workspace/src/a.txt")
    assert (project / "src/a.txt").read_text() == "hello\n"
    assert [(change["path"], change["root"]) for change in told["changes"]] == [
        ("src", str(project)), ("src/a.txt", str(project)),
    ]  # fmt: skip
    assert told["cwd"] == str(project)


def test_a_write_in_the_tree_is_refused(run: Callable[..., dict[str, Any]], tree: Path) -> None:
    before = sorted(tree.rglob("*"))
    told = run("touch /root/evil; touch /evil; rm -rf /bin/busybox /etc/apk; mkdir /etc/x; true")
    assert "Read-only file system" in told["output"]
    assert [each["detail"] for each in told["blocked"]] == ["/root/evil", "/evil", "/bin/busybox"]
    assert "a command may write /workspace, /playground and /tmp" in told["blocked"][0]["hint"]
    assert sorted(tree.rglob("*")) == before
    assert told["state"] == "empty"


def test_tmp_is_fresh_for_every_command(run: Callable[..., dict[str, Any]]) -> None:
    assert run("echo x > /tmp/kept && cat /tmp/kept")["output"] == "x\n"
    assert run("ls -A /tmp")["output"] == ""


def test_nothing_of_the_caller_is_in_the_environment(run: Callable[..., dict[str, Any]]) -> None:
    told = run("env", env={"MY_SETTING": "x", "API_KEY": "secret", "PATH": os.environ["PATH"]})
    given = dict(line.split("=", 1) for line in told["output"].splitlines())
    assert "MY_SETTING" not in given
    assert "API_KEY" not in given
    assert given["HOME"] == "/workspace"
    assert given["PIP_TARGET"] == given["PYTHONPATH"] == "/workspace/.packages"
    assert given["PATH"].endswith(":/workspace/.packages/bin")
    assert given["PYTHONDONTWRITEBYTECODE"] == "1"
    assert (given["TMPDIR"], given["LANG"]) == ("/tmp", "C.UTF-8")


def test_there_is_no_way_to_the_host(run: Callable[..., dict[str, Any]], home: Path, project: Path) -> None:
    (home / "secret").write_text("key")
    told = run(f"cat {home}/secret; ls {project}; cat /etc/resolv.conf; ls -A /sys")
    assert "key" not in told["output"]
    assert told["output"].count("No such file") == 3 or "can't open" in told["output"]


def test_the_current_directory_is_the_one_in_the_workspace(
    run: Callable[..., dict[str, Any]], project: Path
) -> None:
    (project / "src/deep").mkdir(parents=True)
    assert run("pwd", "--project", str(project), cwd=project / "src")["output"] == "/workspace/src\n"
    assert run("pwd", "--cwd", f"{project}/src")["output"] == "/workspace/src\n"
    told = run("pwd", "--cwd", "/workspace/src/deep")
    assert (told["output"], told["cwd"]) == ("/workspace/src/deep\n", f"{project}/src/deep")
    assert "does not exist" in run("pwd", "--cwd", "/workspace/none")["error"]


def test_undo_takes_back_what_a_command_in_a_tree_did(tree: Path, home: Path, project: Path, cli: Cli) -> None:
    (project / "a").write_text("old")
    assert cli("run", "--root", tree, "--", "echo new > a; echo b > b").returncode == 0
    assert (project / "a").read_text() == "new\n"
    assert cli("undo").returncode == 0
    assert (project / "a").read_text() == "old"
    assert not (project / "b").exists()


def test_other_roots_appear_by_name(
    run: Callable[..., dict[str, Any]], home: Path, project: Path, test_directory: Path
) -> None:
    store = OpenedStore()
    for name in ("one/shared", "two/shared"):
        (test_directory / name).mkdir(parents=True)
        store.projects.add_root(store.projects.open(str(project)), str(test_directory / name))
    store.close()
    told = run("ls /roots; echo x > /roots/shared/x; echo y > /roots/shared-2/y; touch /roots/z")
    assert told["output"].split()[:2] == ["shared", "shared-2"]
    assert (test_directory / "one/shared/x").read_text() == "x\n"
    assert (test_directory / "two/shared/y").read_text() == "y\n"
    assert "Read-only" in told["output"]


def test_every_way_of_capturing_works_with_a_tree(way: str, tree: Path, home: Path, project: Path) -> None:
    (project / "old").write_text("x")
    with Sandbox(project, policy=Policy(capture=way)) as sandbox:
        run = sandbox.run("rm old; echo new > /workspace/new; touch /etc/x", root=str(tree))
    assert sorted(entry.name for entry in project.iterdir()) == ["new"]
    assert run.capture == way
    assert "Read-only" in run.output


def test_what_is_no_tree_is_said_in_one_line(cli: Cli, test_directory: Path) -> None:
    empty = test_directory / "empty"
    empty.mkdir()
    for given, expected in (
        (str(empty), "it has no /bin/sh"), (f"{empty}/none", "No such file"), ("/", "the host's own root"),
        ("nowhere", "there is no root nowhere"), ("alpine", "no Alpine root is installed"),
    ):  # fmt: skip
        done = cli("run", "--root", given, "--", "true")
        assert done.returncode == 125
        assert expected in done.stderr
        assert "hint: " in done.stderr


def test_a_shell_that_is_a_link_out_of_the_tree_is_no_shell(home: Path, project: Path, test_directory: Path) -> None:
    tree = test_directory / "lying"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/sh").symlink_to("../../../../../../bin/sh")
    with Sandbox(project) as sandbox, pytest.raises(BadRequest, match="no /bin/sh"):
        sandbox.run("true", root=str(tree))


def wheel(at: Path) -> Path:
    """A package with a module and a program, as pip takes it."""
    made = at / "greeting-1.0-py3-none-any.whl"
    info = "greeting-1.0.dist-info"
    files = {
        "greeting.py": "def main():\n    print('hello from a package')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    }
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return made


@pytest.mark.long
def test_python_works_and_pip_installs_into_the_project(home: Path, project: Path, python_tree: Path) -> None:
    tree = python_tree
    wheel(project)
    with Sandbox(project) as sandbox:
        assert sandbox.run("python3 --version", root=str(tree)).output.startswith("Python 3.")
        line = "pip install --no-index --quiet ./greeting-1.0-py3-none-any.whl"
        installed = sandbox.run(line, root=str(tree))
        assert installed.exit_code == 0, installed.output
        assert (project / ".packages/greeting.py").is_file()
        run = sandbox.run("greet && python3 -c 'import greeting; greeting.main()'", root=str(tree))
    assert run.output == "hello from a package\n" * 2


def test_the_configuration_chooses_the_root_and_shows_skills(
    cli: Cli, home: Path, project: Path, test_directory: Path, tree: Path
) -> None:
    skill = test_directory / "my-skill"
    skill.mkdir()
    (skill / "SKILL.md").write_text("how to")
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text(
        f'root = "{tree}"\nenvironment.set = {{COLOUR = "blue"}}\n'
        f'[[skill]]\npath = "{skill}"\n[[skill]]\npath = "{skill}"\nname = "same"\n'
    )
    line = "ls /skills; cat /skills/my-skill/SKILL.md; echo $COLOUR; touch /skills/x /skills/same/x"
    for root in ("", "host"):  # under one name in both
        done = cli("run", *(("--root", root) if root else ()), "--", line)
        assert done.stdout.split() == ["my-skill", "same", "how", "toblue"]
        assert done.stderr.count("Read-only file system\n") == 2
    assert sorted(entry.name for entry in skill.iterdir()) == ["SKILL.md"]


def test_hosts_can_be_found_by_name_only_with_the_hosts_network(
    cli: Cli, home: Path, tree: Path, need: Callable[[bool, str], None]
) -> None:
    need(can_scope(), "the host's network can't be shared here: that needs Landlock of Linux 6.12")
    need(os.path.isfile("/etc/resolv.conf"), "this host has no /etc/resolv.conf")
    (tree / "etc/resolv.conf").write_text("")
    offline = cli("run", "--root", tree, "--", "cat /etc/resolv.conf").stdout
    assert offline.startswith("nameserver 192.0.2.53\n")  # no route leads there
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text('network = "full"\n')
    expected = Path("/etc/resolv.conf").read_text()
    assert cli("run", "--root", tree, "--", "cat /etc/resolv.conf").stdout == expected
    (tree / "etc/resolv.conf").unlink()
    (tree / "etc/resolv.conf").symlink_to("/etc/passwd")
    assert "root:" in cli("run", "--root", tree, "--", "cat /etc/resolv.conf").stdout


ATTACKS = """
grep -E '^(CapEff|CapPrm|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status
mount -t tmpfs none /mnt && echo ESCAPED mount
mount -o remount,rw / && echo ESCAPED remount
umount /workspace && echo ESCAPED umount
unshare -U true && echo ESCAPED unshare
mknod /tmp/disk b 8 0 && echo ESCAPED mknod
chroot /workspace / && echo ESCAPED chroot
ls /proc/1/root/var/tmp && ls /proc/1/root/workspace | grep -q . && echo "pid 1 sees what we see"
echo x > /proc/sysrq-trigger && echo ESCAPED sysrq
cat /proc/1/environ | tr '\\0' '\\n' | grep -c HOST_SECRET
kill -9 1; sleep 0.1; echo "still here"
"""


@pytest.mark.parametrize("writable", [False, True])
def test_there_is_no_way_out_of_a_tree(writable: bool, cli: Cli, home: Path, project: Path) -> None:
    at = home / ".local/share/fumehood/rootfs"
    made = trees.make_tree(at / "alpine-1")
    for name in MOUNT_POINTS:
        (made / name).mkdir()
    (made / ".alpine-version").write_text("1\n")
    (at / "current").symlink_to("alpine-1")
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text(f'root = "alpine"\nrootfs.writable = {str(writable).lower()}\n')
    done = cli("run", "--", ATTACKS, env={"HOST_SECRET": "x"})
    facts = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    assert facts == {"CapPrm": "0" * 16, "CapEff": "0" * 16, "CapBnd": "0" * 16, "CapAmb": "0" * 16, "NoNewPrivs": "1"}
    assert "ESCAPED" not in done.stdout
    assert "0" in done.stdout.splitlines()
    assert "still here" in done.stdout


def test_sockets_in_the_project_and_outside_can_not_be_reached(
    cli: Cli, project: Path, python_tree: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as abstract:
        by_path.bind(str(project / "socket"))
        by_path.listen()
        abstract.bind(f"\0fumehood-test-{os.getpid()}")
        abstract.listen()
        code = (
            "import socket\nfor name in ('/workspace/socket', '\\0fumehood-test-PID'):\n"
            "    try:\n        socket.socket(socket.AF_UNIX).connect(name); print('CONNECTED')\n"
            "    except OSError as error:\n        print(error.strerror)\n"
        ).replace("PID", str(os.getpid()))
        (project / "attack.py").write_text(code)
        done = cli("run", "--root", python_tree, "--", "python3 attack.py")
    assert len(done.stdout.splitlines()) == 2, done.stderr
    assert "CONNECTED" not in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works on somebody else's project")
def test_root_runs_as_the_owner_of_a_project_in_a_tree_of_its_own(
    run: Callable[..., dict[str, Any]], project: Path, test_directory: Path, tree: Path
) -> None:
    # Closed to the owner, as a tree in root's home is.
    for place in (test_directory, project):
        os.chmod(place, 0o755)
    closed = test_directory / "closed"
    closed.mkdir(mode=0o700)
    tree.rename(closed / "tree")
    os.chown(project, 61234, 61234)
    told = run("id -u; echo x > x", "--root", str(closed / "tree"))
    assert told["output"] == "61234\n"
    assert (project / "x").stat().st_uid == 61234
