"""Files of another group or owner in a project: they can be written, keep what they are, and come back with undo."""

import grp
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import command_line, need
from fumehood import Policy, Run, Sandbox
from fumehood.linux import doctor, probe
from fumehood.linux.capture import ForeignFile, choose, group_name
from fumehood.linux.probe import Host, host
from fumehood.store.places import places

pytestmark = pytest.mark.namespaces

IS_ROOT = os.geteuid() == 0
as_user = pytest.mark.skipif(IS_ROOT, reason="to root no group is out of reach")
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root makes files of others")
MIXED = os.environ.get("FUMEHOOD_TESTS_MIXED", "")  # tools/run_tests.py leaves directories with files of root's there
OVERFLOW = "Value too large for defined data type"
Owners = dict[str, tuple[int, int, int]]


def owners(top: Path) -> Owners:
    """Path to user, group and mode of all that lies in a directory, itself included."""
    found = {str(path.relative_to(top)): path.lstat() for path in (top, *top.rglob("*"))}
    return {path: (each.st_uid, each.st_gid, stat.S_IMODE(each.st_mode)) for path, each in found.items()}


def is_granted(group: int) -> bool:
    """Whether the system lets this user map a group into a namespace."""
    names = {str(os.getuid()), *(entry.pw_name for entry in pwd.getpwall() if entry.pw_uid == os.getuid())}
    try:
        lines = [line.split(":") for line in Path("/etc/subgid").read_text().splitlines()]
    except FileNotFoundError:
        return False
    return any(name in names and int(first) <= group < int(first) + int(count) for name, first, count in lines)


def a_group(*, granted: bool) -> int:
    """A group that this user is in besides their own, with or without the system's leave to map it."""
    others = [group for group in os.getgroups() if group != os.getgid()]
    found = [group for group in others if is_granted(group) == granted]
    which = "that /etc/subgid grants" if granted else "that /etc/subgid does not grant"
    need(bool(found), f"this user is in no second group {which}")
    return found[0]


@pytest.fixture
def open_with() -> Iterator[Callable[..., Sandbox]]:
    """Opens sandboxes that are closed at the end; a way of capturing is skipped where it does not work."""
    opened: list[Sandbox] = []

    def opening(project: Path, way: str = "") -> Sandbox:
        need(not way or way in works(), f"writes can't be captured by {way} here")
        opened.append(Sandbox(project, policy=Policy(capture=way)))
        return opened[-1]

    yield opening
    for each in opened:
        each.close()


def works() -> tuple[str, ...]:
    known = places()
    return host(known.cache, known.state).captures


def shared_by(group: int, project: Path) -> None:
    """Give a project things of another group: a file, directories, a link; one directory passes its group on."""
    for name in ("f", "mine", "d/in", "s/old"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(f"{name}\n")
    (project / "l").symlink_to("f")
    for name in ("f", "d", "d/in", "s", "s/old", "l"):
        os.chown(project / name, -1, group, follow_symlinks=False)
    (project / "f").chmod(0o664)
    (project / "s").chmod(0o2775)


CHANGE = (
    "set -e; echo more >> f; echo new > d/new; mv d/in d/moved; mkdir s/sub; echo deep > s/sub/deep; echo n > s/n;"
    " ln -s n s/link; echo again >> s/old; chmod 600 mine; rm l; ln -s mine l"
)


def expected(group: int) -> Owners:
    me, own = os.getuid(), os.getgid()
    return {
        ".": (me, own, 0o755), "f": (me, group, 0o664), "mine": (me, own, 0o600), "l": (me, own, 0o777),
        "d": (me, group, 0o755), "d/new": (me, own, 0o644), "d/moved": (me, group, 0o644),
        "s": (me, group, 0o2775), "s/old": (me, group, 0o644), "s/n": (me, group, 0o644),
        "s/link": (me, group, 0o777), "s/sub": (me, group, 0o2755), "s/sub/deep": (me, group, 0o644),
    }  # fmt: skip


def changed_and_taken_back(sandbox: Sandbox, project: Path, after: Owners) -> Run:
    before = owners(project)
    run = sandbox.run(CHANGE)
    assert (run.exit_code, run.state) == (0, "applied"), run.output + run.reason
    assert (project / "f").read_text() == "f\nmore\n"
    assert owners(project) == after
    back = sandbox.undo(run)
    assert owners(project) == before
    sandbox.undo(back)
    assert owners(project) == after
    return run


# --- a user's second group ---


@as_user
def test_a_group_that_the_system_grants_is_captured_by_the_overlay(project, open_with):
    group = a_group(granted=True)
    need("kernel" in works(), "the kernel's overlay does not work here")
    shared_by(group, project)
    sandbox = open_with(project)
    run = changed_and_taken_back(sandbox, project, expected(group))
    assert (run.capture, run.reason) == ("kernel", "")
    # A process that was made ready ahead knows the group too, and one made for another project does not matter.
    plain = project.parent / "plain"
    plain.mkdir()
    for top in (project, plain, project):
        with Sandbox(top) as each:
            each.run("echo more >> f; true")
        assert sandbox.run("echo more >> f").exit_code == 0


@as_user
def test_a_group_that_nobody_grants_is_captured_another_way_and_the_report_says_why(project, open_with):
    group = a_group(granted=False)
    shared_by(group, project)
    run = changed_and_taken_back(open_with(project), project, expected(group))
    assert run.capture == ("fuse" if "fuse" in works() else "copy")
    assert f"belongs to group {group}" in run.reason
    assert run.as_dict()["reason"] == run.reason


@as_user
def test_what_would_capture_it_is_explained_once(cli, project):
    shared_by(a_group(granted=False), project)
    explained = cli("run", "--explain", "--", "true").stdout
    assert explained.count("captured by") == 1, explained


@as_user
@pytest.mark.parametrize("way", ["fuse", "copy"], indirect=True)
@pytest.mark.parametrize("apart", [False, True], ids=["one file system", "two file systems"])
def test_every_way_keeps_groups_and_passes_them_on(request, project, open_with, way, apart):
    group = a_group(granted=False)
    top = request.getfixturevalue("other_filesystem") / "project" if apart else project
    top.mkdir(exist_ok=True)
    shared_by(group, top)
    changed_and_taken_back(open_with(top, way), top, expected(group))


@as_user
@pytest.mark.parametrize("way", ["", "fuse", "copy"], indirect=True)
def test_a_project_that_passes_its_own_group_on_does_so_in_the_hood(project, open_with, way):
    group = a_group(granted=False)
    os.chown(project, -1, group)
    project.chmod(0o2775)
    run = open_with(project, way).run("echo x > new; mkdir d; echo y > d/y")
    assert run.state == "applied", run.output
    me = os.getuid()
    assert owners(project) == {
        ".": (me, group, 0o2775), "new": (me, group, 0o644), "d": (me, group, 0o2755), "d/y": (me, group, 0o644),
    }  # fmt: skip


@as_user
def test_a_group_deep_in_the_project_is_found_by_the_error_and_the_next_run_works(project, open_with):
    group = a_group(granted=False)
    need("kernel" in works(), "the kernel's overlay does not work here")
    deep = project / "one/two/three"
    deep.mkdir(parents=True)
    (deep / "f").write_text("f\n")
    os.chown(deep / "f", -1, group)
    sandbox = open_with(project)
    run = sandbox.run("echo more >> one/two/three/f")
    assert OVERFLOW in run.stderr
    (told,) = run.blocked
    assert told.what == "write"
    assert told.detail == f"one/two/three/f belongs to group {group}"
    assert "run it again" in told.hint
    again = sandbox.run("echo more >> one/two/three/f")
    assert (again.exit_code, again.state, again.blocked) == (0, "applied", ())
    assert (deep / "f").read_text() == "f\nmore\n"
    assert (deep / "f").stat().st_gid == group
    assert again.capture != "kernel"
    os.chown(deep / "f", -1, os.getgid())
    assert sandbox.run("echo more >> one/two/three/f").capture == "kernel"


@as_user
def test_a_granted_group_deep_in_the_project_is_found_by_the_error_and_then_known(project, open_with):
    group = a_group(granted=True)
    need("kernel" in works(), "the kernel's overlay does not work here")
    (project / "one/two").mkdir(parents=True)
    (project / "one/two/f").write_text("f\n")
    os.chown(project / "one/two/f", -1, group)
    sandbox = open_with(project)
    (told,) = sandbox.run("echo more >> one/two/f").blocked
    assert told.detail == f"one/two/f belongs to group {group}"
    assert "run it again: the next run knows the group" in told.hint
    for _ in range(2):
        run = sandbox.run("echo more >> one/two/f")
        assert (run.exit_code, run.state, run.capture, run.blocked) == (0, "applied", "kernel", ())
    assert (project / "one/two/f").stat().st_gid == group


NETWORK = "readlink /proc/self/ns/net"


@as_user
def test_commands_of_a_session_that_know_a_group_share_a_loopback_and_others_are_told(project, open_with):
    group = a_group(granted=True)
    need("kernel" in works(), "the kernel's overlay does not work here")
    agent = open_with(project).session("agent")
    waits = f"{NETWORK}; touch /tmp/$1-began; until test -e /tmp/$1; do sleep 0.1; done"
    with ThreadPoolExecutor(2) as threads:
        plain = threads.submit(agent.run, ["sh", "-c", waits, "sh", "plain"])
        agent.run("until test -e /tmp/plain-began; do sleep 0.1; done")
        (project / "f").write_text("f\n")
        os.chown(project / "f", -1, group)
        told = agent.run("true").blocked
        assert [each.what for each in told] == ["loopback"]
        agent.run("touch /tmp/plain")
        plain.result()
        knowing = threads.submit(agent.run, ["sh", "-c", waits, "sh", "knowing"])
        agent.run("until test -e /tmp/knowing-began; do sleep 0.1; done")
        run = agent.run(f"{NETWORK}; echo more >> f; touch /tmp/knowing")
        assert (run.state, run.capture, run.stdout) == ("applied", "kernel", knowing.result().stdout)
    assert ((project / "f").read_text(), (project / "f").stat().st_gid) == ("f\nmore\n", group)


@as_user
def test_the_error_of_a_command_that_meets_no_strange_file_is_its_own(project, open_with):
    run = open_with(project).run(f"echo {OVERFLOW} >&2; exit 1")
    assert run.blocked == ()


# --- files of root's among a user's own ---


@pytest.fixture
def mixed(test_directory: Path) -> Iterator[Path]:
    """A project of this user's with things of root's in it."""
    need(bool(MIXED), "only root can leave files of root's for this user: run the tests as root")
    project = test_directory / "mixed"
    for name in os.listdir(MIXED):
        try:
            os.rename(f"{MIXED}/{name}", project)
        except FileNotFoundError:
            continue  # another test has just taken it
        break
    yield project
    # What is root's can't be removed by the user; root does it.
    os.makedirs(f"{MIXED}-used", exist_ok=True)
    os.rename(project, f"{MIXED}-used/{name}")


@as_user
@pytest.mark.parametrize("way", ["", "kernel", "copy"], indirect=True)
def test_files_of_roots_can_be_removed_and_come_back_as_roots(mixed, open_with, way):
    before = owners(mixed)
    sandbox = open_with(mixed, way)
    run = sandbox.run("rm -f readable secret")
    assert (run.exit_code, run.state) == (0, "applied"), run.output
    assert not (mixed / "readable").exists()
    assert not (mixed / "secret").exists()
    sandbox.undo(run)
    assert owners(mixed) == before


@as_user
def test_a_file_of_roots_is_renamed_by_the_second_try_and_what_became_of_it_is_said(mixed, open_with):
    need("kernel" in works(), "the kernel's overlay does not work here")
    shutil.rmtree(mixed / "shared")
    before = owners(mixed)
    sandbox = open_with(mixed)
    first = sandbox.run("mv readable renamed")
    assert (first.capture, first.reason, first.state) == ("kernel", "", "empty")
    assert OVERFLOW in first.stderr
    assert [each.detail for each in first.blocked] == ["readable belongs to root"]
    run = sandbox.run("mv readable renamed")
    assert (run.exit_code, run.state, run.capture) == (0, "applied", "copy"), run.output
    assert "belongs to root" in run.reason
    (added,) = [change for change in run.changes if change.change == "added"]
    assert (added.path, added.flags) == ("renamed", ("new-owner",))
    assert (mixed / "renamed").read_text() == "readable of root's\n"
    assert owners(mixed)["renamed"] == (os.getuid(), os.getgid(), 0o644)
    sandbox.undo(run)
    assert owners(mixed) == before
    assert sandbox.run("echo x > x").capture == "kernel"


@as_user
def test_a_directory_that_root_shares_with_a_group_can_be_written(mixed, open_with):
    before = owners(mixed)
    (group,) = {os.stat(mixed / "shared").st_gid}
    sandbox = open_with(mixed)
    run = sandbox.run("set -e; echo more >> shared/file; echo new > shared/new; mkdir shared/sub")
    assert (run.exit_code, run.state, run.capture) == (0, "applied", "copy"), run.output
    assert {change.path: change.flags for change in run.changes} == {
        "shared/file": ("new-owner",), "shared/new": (), "shared/sub": (),
    }  # fmt: skip
    me = os.getuid()
    assert {path: each for path, each in owners(mixed).items() if path.startswith("shared")} == {
        "shared": (0, group, 0o2775), "shared/file": (me, group, 0o664), "shared/new": (me, group, 0o644),
        "shared/sub": (me, group, 0o2755),
    }  # fmt: skip
    sandbox.undo(run)
    assert owners(mixed) == before


@as_user
@pytest.mark.parametrize("way", ["kernel", "copy"], indirect=True)
def test_what_only_root_can_move_waits_and_nothing_else_does(mixed, open_with, way):
    run = open_with(mixed, way).run("rmdir empty; rm readable; echo x > x")
    assert run.exit_code == 0, run.output
    assert {change.path: change.verdict for change in run.changes} == {
        "empty": "held", "readable": "applied", "x": "applied",
    }  # fmt: skip
    (waiting,) = [change for change in run.changes if change.verdict == "held"]
    assert waiting.reason == "it belongs to root, who alone can move it"
    assert (mixed / "empty").is_dir()


@as_user
def test_what_a_copy_let_a_command_do_in_a_directory_closed_to_it_waits(mixed, open_with):
    run = open_with(mixed, "copy").run("echo x > closed/new; echo y > y; rm -r closed/file")
    assert {change.path: change.verdict for change in run.changes} == {
        "closed/new": "held", "closed/file": "held", "y": "applied",
    }  # fmt: skip
    assert {change.reason for change in run.changes if change.verdict == "held"} == {
        "closed belongs to root, and is closed to you"
    }


@as_user
def test_what_is_somebody_elses_in_a_sticky_directory_waits_and_nothing_else_does(open_with):
    need(bool(MIXED), "only root can leave files of root's for this user: run the tests as root")
    project = Path(f"{MIXED}-sticky")
    sandbox = open_with(project, "copy")
    run = sandbox.run("echo more >> file; echo x > x")
    assert {change.path: change.verdict for change in run.changes} == {"file": "held", "x": "applied"}
    assert [change.reason for change in run.changes if change.verdict == "held"] == [
        "it belongs to root, who alone can move it"
    ]
    sandbox.discard(run)
    run = sandbox.run("rm -f file x")
    assert {change.path: change.verdict for change in run.changes} == {"file": "held", "x": "applied"}
    assert (project / "file").read_text() == "of root's\n"


@as_user
def test_what_a_colleague_shares_with_a_group_is_captured_without_a_copy_of_all(open_with):
    need(bool(MIXED), "only root can leave files of others for this user: run the tests as root")
    need("fuse" in works(), "fuse-overlayfs does not work here")
    project = Path(f"{MIXED}-shared")
    before = owners(project)
    me, (them, group, _) = os.getuid(), before["file"]
    sandbox = open_with(project)
    run = sandbox.run(
        "set -e; echo more >> file; rm d/gone; mv d/in d/moved; mkdir d/sub; echo new > d/sub/new; mv file d; ls closed"
    )
    assert (run.exit_code, run.state, run.capture, run.stdout) == (0, "applied", "fuse", "in\n"), run.output
    assert owners(project) == {
        **{path: each for path, each in before.items() if path not in ("file", "d/gone", "d/in")},
        "d/moved": (me, group, 0o664), "d/file": (me, group, 0o664), "d/sub": (me, group, 0o2755),
        "d/sub/new": (me, group, 0o644),
    }  # fmt: skip
    sandbox.undo(run)
    assert owners(project) == before
    assert before["file"] == (them, group, 0o664)
    run = sandbox.run("echo x > closed/new; echo more >> file")
    assert {change.path: change.verdict for change in run.changes} == {"closed/new": "held", "file": "applied"}
    assert {change.path: change.flags for change in run.changes}["file"] == ("new-owner",)
    sandbox.undo(run)
    assert owners(project) == before


@as_user
def test_a_directory_in_which_somebody_else_has_a_closed_one_waits_and_nothing_else_does(mixed, open_with):
    sandbox = open_with(mixed, "copy")
    run = sandbox.run("rm -rf own; echo x > x")
    assert {change.path: change.verdict for change in run.changes} == {
        "own": "held", "own/private": "held", "x": "applied",
    }  # fmt: skip
    (private,) = [change for change in run.changes if change.path == "own/private"]
    assert private.reason == "it belongs to root, who alone can move it"
    # A person's word does not show what is in it.
    for force in (False, True):
        waiting = sandbox.apply(run, force=force)
        assert {change.path: change.verdict for change in waiting.changes if change.verdict != "applied"} == {
            "own": "conflict", "own/private": "conflict",
        }  # fmt: skip
    assert (mixed / "own/private").is_dir()


@as_user
def test_a_file_whose_backup_would_no_longer_be_roots_waits(mixed, other_filesystem, monkeypatch, open_with):
    monkeypatch.setenv("XDG_STATE_HOME", str(other_filesystem))
    run = open_with(mixed, "copy").run("rm -f readable secret; echo x > x")
    assert {change.path: change.verdict for change in run.changes} == {
        "readable": "held", "secret": "held", "x": "applied",
    }  # fmt: skip
    (reason,) = {change.reason for change in run.changes if change.verdict == "held"}
    assert reason == "it belongs to root, and a backup on another file system would not"


@as_user
def test_the_mode_of_a_directory_of_roots_is_not_taken_over_and_stops_nothing(mixed, open_with):
    run = open_with(mixed / "shared", "copy").run("chmod 777 .; echo x > x")
    assert {change.path: change.verdict for change in run.changes} == {".": "unsupported", "x": "applied"}
    assert (mixed / "shared/x").read_text() == "x\n"


# --- what doctor says of it ---


@as_user
def test_doctor_names_the_strange_group_and_the_line_to_type(cli, project):
    group = a_group(granted=False)
    shared_by(group, project)
    told = json.loads(cli("doctor", "--json").stdout)
    (found,) = [each for each in told["abilities"] if each["name"] == "this project"]
    assert not found["works"]
    assert f"belongs to group {group}" in found["detail"]
    name = pwd.getpwuid(os.getuid()).pw_name
    assert f"echo {name}:{group}:1 |" in found["fix"]
    assert found["fix"].endswith("tee -a /etc/subgid")
    assert found["detail"] in cli("doctor").stdout


@as_user
def test_doctor_names_what_belongs_to_root_and_the_line_that_makes_it_ones_own(cli, mixed):
    told = json.loads(cli("doctor", "--json", "--project", mixed).stdout)
    (found,) = [each for each in told["abilities"] if each["name"] == "this project"]
    assert found["detail"].startswith("shared belongs to root, which ")
    assert found["detail"].endswith("commands are captured by a copy")
    assert f"chown -R {pwd.getpwuid(os.getuid()).pw_name}:{os.getgid()} {mixed / 'shared'}" in found["fix"]


@as_user
def test_doctor_takes_nothing_from_others_who_share_it_with_a_group():
    shared = ForeignFile(root="/srv/tree", path="theirs", user=os.getuid() + 1, group=os.getgid(), is_writable=True)
    assert not doctor.ownership_fix([shared])
    assert "chown" in doctor.ownership_fix([shared.replace(user=0)])
    assert "chown" in doctor.ownership_fix([shared.replace(group=max([*os.getgroups(), os.getgid()]) + 1)])


@as_user
def test_doctor_names_what_helps_with_files_of_a_colleague_and_not_what_helps_with_ones_own():
    need(bool(MIXED), "only root can leave files of others for this user: run the tests as root")
    project = f"{MIXED}-shared"
    told = doctor.examine_roots(Host(captures=("kernel", "copy")), "", [project])
    assert told.detail.endswith("commands are captured by a copy")
    assert "fuse-overlayfs" in told.fix
    told = doctor.examine_roots(Host(captures=("kernel", "fuse", "copy")), "", [project])
    assert (told.detail.endswith("commands are captured by fuse-overlayfs"), told.fix) == (True, "")
    group = a_group(granted=False)
    mine = ForeignFile(root="/srv/tree", path="mine", user=os.getuid(), group=group, is_writable=True)
    assert "/etc/subgid" in doctor.ownership_fix([mine])
    assert not doctor.ownership_fix([mine, mine.replace(user=os.getuid() + 1)])


def test_doctor_has_nothing_to_say_of_a_project_that_is_all_ones_own(cli, project):
    (project / "f").write_text("f")
    told = json.loads(cli("doctor", "--json").stdout)
    (found,) = [each for each in told["abilities"] if each["name"] == "this project"]
    assert found["works"]


def test_doctor_can_be_asked_where_no_project_can_be(cli):
    assert cli("doctor", "--json", cwd="/").returncode == 0


# --- root ---

THEM, THEIR_GROUP, A_GROUP = 61_234, 61_235, 61_236


@pytest.fixture
def of_others(project: Path) -> Path:
    """A project of root's with things of other owners and groups."""
    for name in ("theirs", "grouped", "d/in", "s/old"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(f"{name}\n")
    os.chown(project / "theirs", THEM, THEIR_GROUP)
    for name in ("grouped", "d", "d/in", "s", "s/old"):
        os.chown(project / name, 0, A_GROUP)
    (project / "s").chmod(0o2775)
    return project


ROOTS_CHANGE = (
    "set -e; echo more >> grouped; mv theirs moved; mv d/in d/out; echo n > s/n; mkdir s/sub; echo more >> s/old;"
    " chmod 600 grouped"
)
ROOTS_RESULT: Owners = {
    ".": (0, 0, 0o755), "moved": (THEM, THEIR_GROUP, 0o644), "grouped": (0, A_GROUP, 0o600), "d": (0, A_GROUP, 0o755),
    "d/out": (0, A_GROUP, 0o644), "s": (0, A_GROUP, 0o2775), "s/old": (0, A_GROUP, 0o644), "s/n": (0, A_GROUP, 0o644),
    "s/sub": (0, A_GROUP, 0o2755),
}  # fmt: skip


def without(capability: str) -> list[str]:
    """The command line, started by a root that lacks a capability, as in many a container."""
    return ["setpriv", "--bounding-set", f"-{capability}", "--inh-caps", f"-{capability}", *command_line()]


@as_root
@pytest.mark.parametrize("lacking", ["", "sys_admin"], ids=["with privilege", "without CAP_SYS_ADMIN"])
def test_root_keeps_owners_and_groups_whether_it_may_mount_or_not(cli, of_others, lacking):
    before = owners(of_others)
    command = without(lacking) if lacking else None
    done = cli("run", "--json", "--", ROOTS_CHANGE, command=command)
    run = json.loads(done.stdout)
    assert (run["exit_code"], run["state"], run["capture"]) == (0, "applied", "kernel"), run
    assert owners(of_others) == ROOTS_RESULT
    assert cli("undo", command=command).returncode == 0
    assert owners(of_others) == before


@as_root
def test_a_file_that_was_anothers_and_is_now_roots_is_flagged(sandbox, of_others):
    run = sandbox.run("cp theirs new; mv new theirs; cp grouped new; mv new grouped")
    assert {change.path: change.flags for change in run.changes} == {
        "theirs": ("new-owner",), "grouped": ("new-group",),
    }  # fmt: skip


@as_root
def test_root_without_capabilities_writes_only_what_roots_own_rights_let_it(cli, of_others):
    done = cli("run", "--json", "--", "echo x >> theirs")
    assert "Permission denied" in json.loads(done.stdout)["output"]


# --- the namespace itself ---

ENTER = """
import sys; sys.path.insert(0, sys.argv[1])
from fumehood.linux.namespaces import enter_namespaces
enter_namespaces(privileged=False, groups=tuple(map(int, sys.argv[2:])))
print(*(" ".join(open(f"/proc/self/{name}_map").read().split()) for name in ("uid", "gid")), sep="\\n")
"""


def maps(*groups: int, command: list[str]) -> list[str]:
    source = str(Path(__file__).resolve().parents[2] / "src")
    line = [*command, sys.executable, "-I", "-c", ENTER, source, *map(str, groups)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@as_user
def test_a_users_namespace_has_their_own_ids_and_the_groups_that_are_granted():
    group = a_group(granted=True)
    need(any(os.access(f"{place}/newgidmap", os.X_OK) for place in ("/usr/bin", "/bin")), "there is no newgidmap")
    me, own = os.getuid(), os.getgid()
    assert maps(command=[]) == [f"{me} {me} 1", f"{own} {own} 1"]
    assert maps(group, command=[]) == [f"{me} {me} 1", f"{own} {own} 1 {group} {group} 1"]


@as_root
def test_roots_namespace_has_every_id_that_there_is():
    every = [" ".join(Path(f"/proc/self/{name}_map").read_text().split()) for name in ("uid", "gid")]
    need(all(line.split()[0] == line.split()[1] for line in every), "ids are not themselves in this container")
    assert maps(command=["setpriv", "--bounding-set", "-sys_admin"]) == every


@as_root
def test_a_root_that_may_not_map_others_still_has_itself():
    assert maps(command=["setpriv", "--bounding-set", "-setuid,-setgid"]) == ["0 0 1", "0 0 1"]


@as_user
def test_a_table_of_groups_is_read_for_what_is_meant_for_us_and_no_more(tmp_path, monkeypatch):
    ours = sorted({*os.getgroups()} - {os.getgid()})
    need(len(ours) > 1, "this user is in no two groups besides their own")
    first, last = ours[0], ours[-1]
    table = tmp_path / "subgid"
    monkeypatch.setattr(probe, "_SUBGID", str(table))
    assert probe.mappable_groups() == ()
    table.write_text(f"somebody-else:{first}:1\n{os.getuid()}:{last}:1\nnonsense\n{os.getuid()}:x:y\n")
    assert probe.mappable_groups() == (last,)
    table.write_text(f"{pwd.getpwuid(os.getuid()).pw_name}:{first}:{last - first}\n")
    assert first in probe.mappable_groups()
    assert last not in probe.mappable_groups()


# --- which way is chosen ---


def foreign_file(group: int, user: int | None = None, *, is_writable: bool = True) -> ForeignFile:
    return ForeignFile(
        root="/p", path="f", user=os.getuid() if user is None else user, group=group, is_writable=is_writable
    )


# What a machine can do, whose file it is, and the way that is chosen then.
CHOICES = [
    (("kernel", "bwrap", "fuse", "copy"), True, None, "kernel"),
    (("bwrap", "fuse", "copy"), True, None, "fuse"),
    (("kernel", "bwrap", "fuse", "copy"), False, None, "fuse"),
    (("kernel", "copy"), False, None, "copy"),
    (("kernel", "bwrap", "fuse", "copy"), True, 0, "copy"),
]


@as_user
@pytest.mark.parametrize(("captures", "granted", "user", "way"), CHOICES)
def test_the_first_way_that_can_carry_a_file_is_chosen(project, captures, granted, user, way):
    group = a_group(granted=False)
    machine = Host(captures=captures, groups=(group,) if granted else ())
    chosen = choose(machine, "", [str(project)], [foreign_file(group, user)])
    assert (chosen.way, chosen.groups) == (way, (group,) if way == "kernel" else ())
    assert bool(chosen.why) == (way != captures[0])
    assert chosen.why.endswith("fumehood doctor says what is quicker") == (way == "copy")


@as_user
def test_what_can_only_be_renamed_is_in_nobodys_way_before_somebody_tries(mixed):
    shutil.rmtree(mixed / "shared")
    machine = Host(captures=("kernel", "fuse", "copy"))
    assert choose(machine, "", [str(mixed)]).way == "kernel"
    met = foreign_file(0, 0, is_writable=False)
    assert choose(machine, "", [str(mixed)], [met]).way == "copy"


def test_group_names_are_told_where_the_system_has_them():
    named = grp.getgrall()[0]
    assert group_name(named.gr_gid) == f"{named.gr_name} ({named.gr_gid})"
    assert group_name(4_000_000_000) == "4000000000"
