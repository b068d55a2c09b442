"""Owners are not changed: for root, giving a file to somebody else does nothing and succeeds; archives unpack."""

import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import trees
from fumehood import Policy, Sandbox
from fumehood.core.policy import Rootfs

pytestmark = pytest.mark.namespaces
IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only for root are changes of owner pretended")
OTHER_USER, OTHER_GROUP = 1001, 1002
STRANGER = 54321  # has no name
Need = Callable[[bool, str], None]
Cli = Callable[..., subprocess.CompletedProcess[str]]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def owners(top: Path) -> set[tuple[int, int]]:
    found = [path.lstat() for path in (top, *top.rglob("*"))]
    return {(each.st_uid, each.st_gid) for each in found}


def archive(at: Path) -> Path:
    """An archive of things that belong to others, of every kind and with modes that differ."""
    with tarfile.open(at, "w") as tar:
        for name, bits, kind in (
            ("d", 0o750, tarfile.DIRTYPE), ("d/f", 0o640, tarfile.REGTYPE), ("d/x", 0o755, tarfile.REGTYPE),
            ("d/l", 0o777, tarfile.SYMTYPE), ("group", 0o664, tarfile.REGTYPE), ("ours", 0o604, tarfile.REGTYPE),
        ):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.linkname = kind, bits, "f" if kind == tarfile.SYMTYPE else ""
            entry.uid = 0 if name in ("group", "ours") else OTHER_USER
            entry.gid = 0 if name == "ours" else OTHER_GROUP
            entry.size = 2 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"x\n"))
    return at


@as_root
@pytest.mark.parametrize("way", ["kernel", "fuse", "copy"], indirect=True)
def test_an_archive_of_other_peoples_files_unpacks_with_its_modes(way: str, home: Path, project: Path) -> None:
    archive(project / "a.tar")
    with Sandbox(project, policy=Policy(capture=way)) as sandbox:
        run = sandbox.run("umask 077; mkdir x && tar xpf a.tar -C x")
        assert (run.exit_code, run.stderr) == (0, "")
        top = project / "x"
        modes = {name: mode(top / name) for name in ("d", "d/f", "d/x", "group", "ours")}
        assert modes == {"d": 0o750, "d/f": 0o640, "d/x": 0o755, "group": 0o664, "ours": 0o604}
        assert os.readlink(top / "d/l") == "f"
        assert owners(project) == {(0, 0)}
        sandbox.undo(run.run)
        assert not top.exists()


@as_root
def test_a_copy_of_another_owners_file_keeps_its_mode(sandbox: Sandbox, project: Path) -> None:
    other = project / "other"
    other.write_text("theirs\n")
    other.chmod(0o644)
    os.chown(other, OTHER_USER, OTHER_GROUP)
    run = sandbox.run("cp -a other kept; cp -p other kept2; cp -p other moving; mv moving /tmp/m && mv /tmp/m moved")
    assert (run.exit_code, run.stderr) == (0, "")
    for name in ("kept", "kept2", "moved"):
        assert (mode(project / name), (project / name).stat().st_uid) == (0o644, 0)
    assert (other.stat().st_uid, other.stat().st_gid) == (OTHER_USER, OTHER_GROUP)


# What packages and installers do; each must succeed and say nothing.
PROGRAMS = {
    "install": "echo x > f; install -o daemon -g daemon -m 600 f i; test $(stat -c %a i) = 600",
    "chown": "mkdir -p t/u; echo x > t/u/f; chown -R nobody t; chown -h daemon:daemon t/u/f; chown -R 1000:1000 t",
    "chgrp": "echo x > f; chgrp users f; chgrp 4242 f",
    "python3": 'mkdir t; echo x > t/f; python3 -c \'import shutil, os; shutil.chown("t/f", "daemon", "daemon");'
    ' os.fchown(os.open("t/f", 0), 5, -1); os.lchown("t", -1, 5); os.chown("f", 1, 1, dir_fd=os.open("t", 0))\'',
    "busybox": "echo x > f; busybox chown -R 1000:1000 f; busybox tar cf a f; busybox tar xf a",
}


@as_root
@pytest.mark.parametrize(("name", "line"), list(PROGRAMS.items()))
def test_a_program_that_gives_files_away_succeeds(
    name: str, line: str, sandbox: Sandbox, project: Path, need: Need
) -> None:
    need(shutil.which(name) is not None, f"there is no {name}")
    run = sandbox.run(f"set -e; {line}")
    assert (run.exit_code, run.stderr) == (0, "")
    assert owners(project) == {(0, 0)}


@as_root
def test_a_package_with_another_owners_files_is_unpacked(sandbox: Sandbox, project: Path, need: Need) -> None:
    need(shutil.which("dpkg-deb") is not None, "there is no dpkg")
    control = "Package: proof\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
    top = project / "package"
    (top / "DEBIAN").mkdir(parents=True)
    (top / "DEBIAN/control").write_text(control)
    (top / "opt").mkdir()
    (top / "opt/f").write_text("x\n")
    (top / "opt/f").chmod(0o640)
    os.chown(top / "opt/f", 33, 33)
    subprocess.run(["dpkg-deb", "-b", top, project / "p.deb"], check=True, stdout=subprocess.DEVNULL)
    run = sandbox.run("dpkg -x p.deb out")
    assert (run.exit_code, run.stderr) == (0, "")
    assert (mode(project / "out/opt/f"), owners(project / "out")) == (0o640, {(0, 0)})


TRY = """
import errno, os
def told(path, user, group):
    try:
        os.chown(path, user, group)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


def tried(sandbox: Sandbox, *changes: tuple[str, int, int]) -> list[str]:
    """What os.chown says to each change."""
    lines = "\n".join(f"print(told{change})" for change in changes)
    run = sandbox.run(["python3", "-c", f"{TRY}{lines}"])
    assert run.exit_code == 0, run.stderr
    return run.stdout.split()


@as_root
def test_what_asks_for_root_is_real_and_so_are_its_errors(sandbox: Sandbox, project: Path) -> None:
    (project / "own").write_text("x")
    (project / "other").write_text("x")
    os.chown(project / "other", OTHER_USER, OTHER_USER)
    assert tried(sandbox, ("own", 0, 0), ("own", -1, 0), ("own", -1, -1)) == ["done"] * 3
    assert tried(sandbox, ("missing", 0, 0), ("missing", -1, -1)) == ["ENOENT"] * 2
    assert tried(sandbox, ("/etc/passwd", 0, 0)) == ["EROFS"]
    assert tried(sandbox, ("other", 0, -1)) == ["EPERM"]


@as_root
def test_a_pretended_change_looks_at_nothing(sandbox: Sandbox, project: Path) -> None:
    # The lie that the manual tells of: it succeeds where a real one would fail.
    assert tried(sandbox, ("missing", 5, 5), ("/etc/passwd", 0, 5), (".", 5, -1)) == ["done"] * 3
    looks = sandbox.run("chown 1000 missing")
    assert looks.exit_code == 1
    assert "No such file" in looks.stderr
    assert not (project / "missing").exists()


@as_root
def test_set_user_id_bits_that_a_pretended_change_leaves_are_held(sandbox: Sandbox, project: Path) -> None:
    with tarfile.open(project / "a.tar", "w") as tar:
        for name, bits in (("user", 0o4755), ("group", 0o2755), ("plain", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.uid = entry.gid = OTHER_USER
            entry.mode, entry.size = bits, 2
            tar.addfile(entry, io.BytesIO(b"x\n"))
    run = sandbox.run("tar xpf a.tar; cp plain late; chmod 6755 late; chown daemon:daemon late; stat -c %a late")
    assert (run.exit_code, run.stdout) == (0, "6755\n")
    held = {change.path for change in run.changes if change.verdict == "held"}
    assert held == {"user", "group", "late"}
    assert sorted(os.listdir(project)) == ["a.tar", "plain"]


@as_root
def test_a_person_can_have_it_refused(home: Path, project: Path, cli: Cli) -> None:
    (home / ".config/fumehood").mkdir(exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text('ownership = "refuse"\n')
    archive(project / "a.tar")
    (project / "other").write_text("x")
    os.chown(project / "other", OTHER_USER, OTHER_USER)
    assert cli("run", "--", "tar xf a.tar").returncode == 2
    assert cli("run", "--", "cp -a other copy").returncode == 1
    assert cli("run", "--", "touch f; chown daemon f").returncode == 1


@pytest.mark.parametrize("ownership", ["pretend", "refuse"])
def test_an_ordinary_user_is_refused_as_ever(ownership: str, home: Path, project: Path, test_directory: Path) -> None:
    if IS_ROOT:  # works as the project's owner then
        for place in (test_directory, project):
            os.chown(place, OTHER_USER, OTHER_USER)
    with Sandbox(project, policy=Policy(ownership=ownership)) as sandbox:
        sandbox.run("touch f")
        me = (project / "f").stat().st_uid
        assert me != 0
        assert tried(sandbox, ("f", me + 1, -1), ("f", -1, 4242), ("missing", me + 1, 5), ("f", me, -1)) == [
            "EINVAL", "EINVAL", "ENOENT", "done",
        ]  # fmt: skip


@pytest.fixture
def alpine(home: Path) -> None:
    """An installed root tree."""
    at = home / ".local/share/fumehood/rootfs"
    at.mkdir(parents=True)
    made = trees.make_tree(at / f"alpine-{trees.VERSION}")
    for name in ("workspace", "roots", "skills", "playground"):
        (made / name).mkdir()
    (made / ".alpine-version").write_text(f"{trees.VERSION}\n")
    (at / "current").symlink_to(made.name)


# As packages of servers do it when they are installed.
SCRIPT = """set -e
echo keepers:x:101: >> /etc/group; echo keeper:x:100:101::/var/lib/kept:/sbin/nologin >> /etc/passwd
mkdir -p /var/lib/kept; chown -R keeper:keepers /var/lib/kept; chgrp keepers /etc/passwd; chmod 750 /var/lib/kept
stat -c '%a %u' /var/lib/kept
"""


@pytest.mark.usefixtures("alpine")
@pytest.mark.parametrize(("ownership", "status"), [("pretend", 0), ("refuse", 1)])
def test_who_may_write_a_root_tree_is_root_there_and_is_pretended_to(
    ownership: str, status: int, home: Path, project: Path
) -> None:
    policy = Policy(root="alpine", ownership=ownership, rootfs=Rootfs(writable=True))
    with Sandbox(project, policy=policy) as sandbox:
        run = sandbox.run(SCRIPT)
        assert run.exit_code == status, run.stderr
        assert run.stdout == ("750 0\n" if status == 0 else "")


@pytest.mark.long
@pytest.mark.parametrize("ownership", ["pretend", "refuse"])
def test_the_capabilities_say_that_owners_are_not_changed(ownership: str, cli: Cli, home: Path, project: Path) -> None:
    (home / ".config/fumehood").mkdir(exist_ok=True)
    (home / ".config/fumehood/config.toml").write_text(f'ownership = "{ownership}"\n')
    text = cli("capabilities").stdout
    end = {"pretend": "does nothing, and reports success.", "refuse": "fails."}[ownership]
    wanted = f"Owners are not changed: giving a file to another user or group {end}\n"
    assert (wanted in text) == IS_ROOT
    assert '"ownership": "' + (ownership if IS_ROOT else "refuse") + '"' in cli("capabilities", "--json").stdout


@pytest.mark.skipif(not IS_ROOT, reason="only root is refused here what it may do outside")
@pytest.mark.parametrize("whose", [0, STRANGER])
def test_root_is_told_whose_a_path_of_the_project_is_that_commands_may_not_write(
    whose: int, home: Path, project: Path
) -> None:
    project.parent.chmod(0o755)
    packages, mine = project / "packages", project / "mine"
    for directory in (packages / "one", mine):
        directory.mkdir(parents=True)
        (directory / "f").write_text("1\n")
    for path in (project, mine, mine / "f"):
        os.chown(path, whose, whose)
    theirs = STRANGER - whose
    for path in (packages, packages / "one", packages / "one/f"):
        os.chown(path, theirs, theirs)
    (mine / "f").chmod(0o400)
    with Sandbox(project) as sandbox:
        for command in ("echo 2 >> packages/one/f", "rm -r packages", "python3 -c 'open(\"packages/new\", \"w\")'"):
            (blocked,) = sandbox.run(command).blocked
            assert (blocked.what, blocked.detail) == ("write", str(packages))
            assert blocked.hint.endswith(f"chown -R {whose} {packages}")
        assert sandbox.run("echo 2 >> mine/f").blocked == ()
        assert sandbox.run("ls packages; cat /root/secret").blocked == ()
