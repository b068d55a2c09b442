"""Whoever dies, the next start keeps what a command wrote, and never disturbs those who live."""

import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from conftest import command_line
from fumehood import FumehoodError, Sandbox
from fumehood.linux import nofollow, steps
from fumehood.linux.nofollow import AccessibleTree, open_top
from fumehood.linux.process import wait_until_gone
from fumehood.service import recover
from fumehood.service.clean import clean
from fumehood.service.opened import OpenedStore
from fumehood.service.recover import STOPPED_RUNNING
from patience import LONG_S
from snapshots import snapshot

START = (
    "import sys; from fumehood import Policy, Sandbox;"
    "sandbox = Sandbox(sys.argv[1], policy=Policy(capture=sys.argv[3]));"
    "(sandbox.draft(sys.argv[4]) if sys.argv[4] else sandbox).run(sys.argv[2])"
)


def began(project: Path, command: str, capture: str = "", draft: str = "") -> "subprocess.Popen[bytes]":
    """Start a run in a process of its own, and wait until its command says that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", START, str(project), f"{command}; touch ready; sleep 1000", capture, draft]
    )
    runs = Path(os.environ["XDG_STATE_HOME"], "fumehood/runs")
    until = time.monotonic() + LONG_S
    while not [*runs.glob("*/0/upper/ready"), *runs.glob("*/0/merged/ready")]:
        assert time.monotonic() < until, "the command did not start"
        assert process.poll() is None, "the command ended"
        time.sleep(0.02)
    return process


def killed(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


# A program that dies when its layer is there and does not look like the project yet.
MAKES = """
import os, signal, sys
from fumehood import Sandbox
from fumehood.service import layers
layers.copy_metadata = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Sandbox(sys.argv[1]).run("true")
"""


def test_a_layer_that_was_not_ready_is_no_change(home, project):
    project.chmod(0o775)
    assert subprocess.run([sys.executable, "-P", "-c", MAKES, project], check=False).returncode == -signal.SIGKILL
    with Sandbox(project) as sandbox:
        (run,) = sandbox.history()
        assert (run.state, run.changes) == ("failed", ())
        assert run.reason == "Fumehood was stopped before the command began"
        assert sandbox.run("echo new > f").state == "applied"


# A program with a helper that it forked while its command was running, and that outlives it.
FORKS = """
import glob, os, sys, time
from threading import Thread
from fumehood import Sandbox
sandbox = Sandbox(sys.argv[1])
Thread(target=sandbox.run, args=(sys.argv[2],), daemon=True).start()
while not glob.glob(os.environ["XDG_STATE_HOME"] + "/fumehood/runs/*/0/upper/made"):
    time.sleep(0.01)
if os.fork() == 0:
    os.write(1, b"ready\\n")
    os.close(1)
    os.read(0, 1)
    os._exit(0)
os.close(0)
time.sleep(1000)
"""


@pytest.mark.namespaces
def test_a_killed_run_is_dead_though_a_child_of_its_program_lives(home, project):
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", FORKS, str(project), "echo new > made; sleep 1000"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        process.wait()
        with Sandbox(project) as sandbox:
            (run,) = sandbox.history()
            assert (run.state, run.reason) != ("running", "")
            assert run.reason == STOPPED_RUNNING
    finally:
        process.kill()
        process.communicate()


@pytest.mark.namespaces
@pytest.mark.parametrize("capture", ["", "copy"])
def test_what_a_killed_run_had_written_is_held_and_can_be_applied(home, project, capture):
    (project / "kept").write_text("old")
    (project / "gone").write_text("old")
    before = snapshot(project)
    killed(began(project, "echo new > kept; rm gone; mkdir made; echo in > made/in", capture))
    with Sandbox(project) as sandbox:
        (run,) = sandbox.history()
        assert (run.state, run.reason) == ("held", STOPPED_RUNNING)
        assert {change.path: change.verdict for change in run.changes} == dict.fromkeys(
            ["gone", "kept", "made", "made/in", "ready"], "held"
        )
        assert snapshot(project) == before
        assert sandbox.apply(run).state == "applied"
        assert (project / "made/in").read_text() == "in\n"
        assert not (project / "gone").exists()
        sandbox.undo(run)
        assert snapshot(project) == before
    left = Path(os.environ["XDG_STATE_HOME"], "fumehood/runs").glob("*/0/*")
    assert [path.name for path in left if path.suffix not in (".record", ".seals")] in ([], ["upper"])


@pytest.mark.namespaces
def test_a_killed_command_of_a_draft_says_whose_version_it_hides(home, project):
    process = began(project, "echo its > both; echo its > its", draft="line")
    with Sandbox(project) as sandbox:
        other = sandbox.draft("line").run("echo other > both")
        killed(process)
        _, run = sandbox.history()
        assert run.state == "held"
        hides = f"run {other.number} changed it meanwhile, and one of both versions is hidden"
        assert {change.path: hides in change.reason for change in run.changes} == {
            "both": True, "its": False, "ready": False,
        }  # fmt: skip


@pytest.mark.namespaces
def test_a_killed_command_s_commit_on_top_of_what_was_discarded_meanwhile_is_not_held(home, project, need):
    need(shutil.which("git") is not None, "there is no git")
    set_up = "git init -q; git config user.name a; git config user.email a@b; git commit -q --allow-empty -m first"
    subprocess.run(["sh", "-c", set_up], cwd=project, check=True)
    with Sandbox(project) as sandbox:
        below = sandbox.run("git commit -q --allow-empty -m below", apply="hold")
        process = began(project, "echo its > its; git commit -q --allow-empty -m on-top")
        sandbox.discard(below)
        killed(process)
        run = sandbox.apply(sandbox.history()[0])
        left_out = {change.reason for change in run.changes if change.path.startswith(".git/refs")}
        assert left_out == {"run 1, which it builds on, was discarded meanwhile"}
        assert (project / "its").read_text() == "its\n"
        assert sandbox.run("git log --format=%s").stdout == "first\n"
    checked = subprocess.run(["git", "fsck", "--no-dangling"], cwd=project, capture_output=True, check=True)
    assert checked.stdout == b""


@pytest.mark.namespaces
def test_what_a_checkpoint_of_a_killed_command_settled_does_not_wait_while_others_run(home, project):
    process = began(project, "echo one > settled; echo two > new")
    with Sandbox(project) as sandbox:
        (running,) = sandbox.running()
        sandbox.checkpoint(running)
        with sandbox.start("read word") as other:
            (project / "settled").unlink()
            killed(process)
            assert [run.state for run in sandbox.history() if run.run == running.run] == ["empty"]
            other.kill()
    assert sorted(os.listdir(project)) == ["new", "ready"]


@pytest.mark.namespaces
def test_what_can_not_be_looked_at_stops_no_other_command_and_can_be_discarded(home, project, monkeypatch):
    """Nested work trees once met Python's own limit there, and then no command of any project worked any more."""
    killed(began(project, "echo its > its"))

    def judge(*_arguments: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(recover, "find_conflicts", judge)
    with Sandbox(project) as sandbox:
        assert sandbox.run("echo other > other").state == "applied"
        *_, dead = sandbox.history()
        assert dead.state == "running"
        sandbox.discard(dead)
        assert [run.state for run in sandbox.history()] == ["applied", "discarded"]
    assert sorted(path.name for path in project.iterdir()) == ["other"]


@pytest.mark.namespaces
@pytest.mark.parametrize("capture", ["", "copy"])
def test_what_a_person_edited_meanwhile_is_a_conflict_of_a_killed_run_too(home, project, capture):
    (project / "both").write_text("old")
    process = began(project, "echo new > both; echo its > its", capture)
    (project / "both").write_text("the person's")
    killed(process)
    with Sandbox(project) as sandbox:
        (run,) = sandbox.history()
        assert {change.path: change.verdict for change in run.changes} == {
            "both": "conflict", "its": "held", "ready": "held",
        }  # fmt: skip
        sandbox.apply(run)
        assert (project / "both").read_text() == "the person's"
        sandbox.apply(run, force=True)
        assert (project / "both").read_text() == "new\n"


@pytest.mark.namespaces
def test_what_was_to_be_taken_by_force_when_all_died_is_a_conflict_again(home, project, monkeypatch):
    (project / "a").write_text("old")
    with Sandbox(project) as sandbox:
        run = sandbox.run("echo A > a; echo b > b", apply="hold")
    (project / "a").write_text("the person's")
    before = snapshot(project)
    child = os.fork()
    if not child:
        monkeypatch.setattr("fumehood.service.apply._perform", lambda *_, **__: os._exit(9))
        with Sandbox(project) as sandbox:
            sandbox.apply(run.id, force=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with Sandbox(project) as sandbox:
        assert snapshot(project) == before
        (run,) = sandbox.history()
        assert {change.path: change.verdict for change in run.changes} == {"a": "conflict", "b": "held"}
        sandbox.apply(run)
        assert (project / "a").read_text() == "the person's"
        assert (project / "b").read_text() == "b\n"


@pytest.mark.namespaces
def test_a_deletion_at_whose_moment_all_died_is_still_one(home, project, monkeypatch):
    (project / "gone").write_text("old")
    with Sandbox(project) as sandbox:
        run = sandbox.run("rm gone; echo new > new", apply="hold")
    child = os.fork()
    if not child:
        # What marks it in the layer has made room for the file, which is not there yet.
        real = steps.move
        monkeypatch.setattr(steps, "move", lambda *entry: os._exit(9) if "gone" in entry else real(*entry))
        with Sandbox(project) as sandbox:
            sandbox.apply(run.id)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with Sandbox(project) as sandbox:
        assert sandbox.history()[0].state == "held"
        assert os.listdir(project) == ["gone"]
        assert "gone" not in sandbox.run("ls", apply="discard").output
        assert sandbox.apply(run.id).state == "applied"
        assert os.listdir(project) == ["new"]
        sandbox.undo(run.id)
    assert (project / "gone").read_text() == "old"


@pytest.mark.namespaces
def test_what_a_killed_run_had_written_can_be_thrown_away(home, project):
    killed(began(project, "echo new > new"))
    with Sandbox(project) as sandbox:
        assert sandbox.discard("last").state == "discarded"
    assert os.listdir(project) == []


@pytest.mark.namespaces
def test_a_living_run_is_left_alone(home, project):
    process = began(project, "echo new > new")
    try:
        with Sandbox(project) as sandbox:
            assert sandbox.history()[0].state == "running"
            sandbox.run("echo mine > mine")
            assert {run.state for run in sandbox.history()} == {"running", "applied"}
    finally:
        killed(process)
    with Sandbox(project) as sandbox:
        assert {run.state for run in sandbox.history()} == {"held", "applied"}


@pytest.mark.namespaces
def test_a_long_lived_process_takes_up_what_another_left(sandbox, project):
    killed(began(project, "echo new > new"))
    sandbox.run("true")
    assert [run.state for run in sandbox.history()] == ["empty", "held"]


@pytest.mark.namespaces
def test_recovering_does_not_wait_for_whoever_applies(sandbox, project):
    run = sandbox.run("echo new > new", apply="hold")
    store = OpenedStore()
    with store.lock_project(sandbox._project.id):
        store.history.record_progress(run, "applying")
        # Another one that starts now can't get the lock, and leaves it to whoever has it.
        other = OpenedStore()
        assert other.history.find(run.run).state == "applying"
        other.close()
    with store.lock_project(sandbox._project.id):
        assert store.history.find(run.run).state == "held"
    store.close()


@pytest.mark.namespaces
@pytest.mark.parametrize("by", ["the next start", "whoever has the lock"])
def test_what_is_held_moves_only_while_nobody_begins(sandbox, project, by):
    run = sandbox.run("echo new > new", apply="hold")
    number = sandbox._project.id
    store, other = OpenedStore(), OpenedStore()
    store.history.record_progress(run, "applying")

    def recover():
        if by == "the next start":
            OpenedStore().close()
        else:
            with other.lock_project(number):
                pass

    with store.lock_held_trees(number, settling=False):  # as who records a run has it
        recovering = Thread(target=recover)
        recovering.start()
        recovering.join(0.3)
        assert store.history.find(run.run).state == "applying"
    recovering.join()
    assert store.history.find(run.run).state == "held"
    store.close()
    other.close()


@pytest.mark.namespaces
@pytest.mark.ordinary
def test_a_directory_that_was_opened_up_is_closed_again_at_the_next_start(home, project):
    closed = project / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    store = OpenedStore()
    process = os.fork()
    if not process:
        AccessibleTree(open_top(str(project))).make_accessible("closed")
        os._exit(0)
    os.waitpid(process, 0)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    store.recover()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o500
    assert not nofollow.list_mode_notes(store.places.modes)
    store.close()


@pytest.mark.namespaces
@pytest.mark.ordinary
def test_what_several_dead_processes_had_opened_up_is_closed_again_from_the_inside(home, project):
    nested = [project / "a", project / "a/b", project / "a/b/c", project / "a/b/c/d"]
    nested[-1].mkdir(parents=True)
    for directory in reversed(nested):
        directory.chmod(0)
    store = OpenedStore()
    for directory in nested:
        process = os.fork()
        if not process:
            AccessibleTree(open_top(str(project))).make_accessible(str(directory.relative_to(project)))
            os._exit(0)
        os.waitpid(process, 0)
    store.recover()
    for directory in nested:
        assert stat.S_IMODE(directory.stat().st_mode) == 0
        directory.chmod(0o700)
    store.close()


# Dies before or after one name moves between layer and project.
DYING = """
import os, sys
from fumehood import Sandbox
from fumehood.linux import libc
act, project, run, name, moment = sys.argv[1:]
rename = libc.renameat2
def dying(source, source_name, *given):
    is_meant = source_name.decode() == name and "/held" not in os.readlink(f"/proc/self/fd/{source}")
    if not is_meant or moment == "after":
        rename(source, source_name, *given)
    if is_meant:
        os.kill(os.getpid(), 9)
libc.renameat2 = dying
getattr(Sandbox(project), act)(run)
"""

READ_ONLY = """
set -e
chmod 755 gone other stays stays/inside; rm -r gone other stays/inside; chmod 555 stays
echo x > other; mkdir new; echo x > new/file; chmod 555 new
"""


@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.parametrize("name", ["new", "gone", "other", "inside"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("act", ["apply", "undo"])
def test_a_read_only_directory_that_was_moved_when_all_died_keeps_its_mode(home, project, act, moment, name):
    for each in ("gone", "other", "stays", "stays/inside"):
        (project / each).mkdir()
        (project / each / "file").write_text("old")
    for each in ("gone", "other", "stays/inside", "stays"):
        (project / each).chmod(0o555)
    states = [snapshot(project)]
    with Sandbox(project) as sandbox:
        run = sandbox.run(READ_ONLY, apply="apply" if act == "undo" else "hold")
        states.append(snapshot(project))
    line = [sys.executable, "-P", "-c", DYING, act, str(project), run.run, name, moment]
    assert subprocess.run(line, check=False).returncode == -9
    with Sandbox(project) as sandbox:
        assert snapshot(project) == states[1]
        if act == "apply":
            assert sandbox.run("ls -F . stays").stdout.split() == [".:", "new/", "other", "stays/", "stays:", "file"]
            sandbox.apply(run)
            assert stat.S_IMODE((project / "new").stat().st_mode) == 0o555
        sandbox.undo(run)
        assert snapshot(project) == states[0]


@pytest.mark.namespaces
def test_a_new_tree_that_a_person_worked_in_after_a_death_stays_with_their_work(home, project):
    with Sandbox(project) as sandbox:
        run = sandbox.run("mkdir -p new/sub; echo x > new/sub/file; echo x > other", apply="hold")
    line = [sys.executable, "-P", "-c", DYING, "apply", str(project), run.run, "other", "before"]
    assert subprocess.run(line, check=False).returncode == -9
    (project / "new/sub/mine").write_text("the person's")
    with Sandbox(project) as sandbox:
        run = sandbox.history()[0]
        assert run.reason.endswith("save for what was changed there since: new")
        assert {change.path for change in run.changes if change.verdict == "held"} == {"other"}
        sandbox.discard(run)
    assert (project / "new/sub/mine").read_text() == "the person's"
    assert (project / "new/sub/file").read_text() == "x\n"
    assert not (project / "other").exists()


@pytest.mark.namespaces
@pytest.mark.parametrize("number", range(1, 9))
def test_a_mode_that_can_not_be_given_back_at_once_is_right_in_the_next_apply(home, project, monkeypatch, number):
    (project / "changed").write_text("old")
    (project / "changed").chmod(0o444)
    before, left, chmod = snapshot(project), [number], os.chmod

    def failing(path, mode, **named):
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        chmod(path, mode, **named)

    with Sandbox(project) as sandbox:
        run = sandbox.run(
            "chmod 644 changed; echo x >> changed; chmod 444 changed; mkdir new; echo x > new/file; chmod 555 new",
            apply="hold",
        )
        with monkeypatch.context() as patch:
            patch.setattr(os, "chmod", failing)
            try:
                sandbox.apply(run)
            except FumehoodError:
                assert snapshot(project) == before
    with Sandbox(project) as sandbox:
        if sandbox.history()[0].state == "held":
            sandbox.apply(run)
        assert stat.S_IMODE((project / "changed").stat().st_mode) == 0o444
        assert stat.S_IMODE((project / "new").stat().st_mode) == 0o555
        sandbox.undo(run)
        assert snapshot(project) == before


# Dies when it is about to remove its so-manieth note of modes.
FORGETTING = """
import os, sys
from fumehood import Sandbox
project, run, left = sys.argv[1], sys.argv[2], [int(sys.argv[3])]
unlink = os.unlink
def dying(path, **named):
    if "/fumehood/modes/" in str(path):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), 9)
    unlink(path, **named)
os.unlink = dying
Sandbox(project).apply(run)
"""


@pytest.mark.namespaces
@pytest.mark.ordinary
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_directory_that_is_no_longer_read_only_stays_so_once_the_project_has_it_all(home, project, number):
    """Its backup has another name in the project, so it is copied at the end."""
    (project / "shut").mkdir()
    (project / "shut/file").write_text("old")
    os.link(project / "shut/file", project / "other")
    (project / "shut").chmod(0o555)
    states = [snapshot(project)]
    with Sandbox(project) as sandbox:
        run = sandbox.run("chmod 755 shut; echo x > n; mv n shut/file", apply="hold")
    died = subprocess.run([sys.executable, "-P", "-c", FORGETTING, str(project), run.run, str(number)], check=False)
    with Sandbox(project) as sandbox:
        (now,) = sandbox.history()
        if now.state == "held":
            assert snapshot(project) == states[0]
            sandbox.apply(run)
        assert stat.S_IMODE((project / "shut").stat().st_mode) == 0o755
        assert (project / "shut/file").read_text() == "x\n"
    assert died.returncode in (-9, 0)


@pytest.mark.namespaces
def test_what_a_killed_run_would_have_the_host_execute_says_so(home, project):
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    planted = "echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; echo all: > Makefile; echo x > a"
    killed(began(project, planted))
    with Sandbox(project) as sandbox:
        found = {change.path: change for change in sandbox.history()[0].changes}
    assert {path: bool(change.flags) for path, change in found.items() if not path.endswith("hooks")} == {
        ".git/hooks/pre-commit": True, "Makefile": True, "a": False, "ready": False,
    }  # fmt: skip
    assert {change.verdict for change in found.values()} == {"held"}
    assert found[".git/hooks/pre-commit"].reason.startswith(f"{STOPPED_RUNNING}; ")
    assert found["a"].reason == STOPPED_RUNNING


DISTIL = """
import os, sys
from fumehood import Policy, Sandbox
from fumehood.linux import capture_copy
left = [-1]
rename, finish = os.rename, capture_copy.finish
def dying(*given, **named):
    if not left[0]:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    return rename(*given, **named)
def begin(layer):
    left[0] = int(sys.argv[2])
    finish(layer)
os.rename, capture_copy.finish = dying, begin
Sandbox(sys.argv[1], policy=Policy(capture="copy")).run("echo new > kept; rm gone; echo b > b; mkdir d; echo c > d/c")
"""


@pytest.mark.namespaces
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_kill_while_a_copy_is_compared_loses_nothing(home, project, after):
    (project / "kept").write_text("old")
    (project / "gone").write_text("old")
    before = snapshot(project)
    died = subprocess.run([sys.executable, "-P", "-c", DISTIL, str(project), str(after)], check=False)
    assert died.returncode == -9
    with Sandbox(project) as sandbox:
        (run,) = sandbox.history()
        assert snapshot(project) == before
        assert run.state in ("failed", "held")
        if run.state == "failed":
            where = Path(run.reason.rpartition(" is in ")[2])
            left = {path.read_bytes() for path in where.parent.rglob("*") if path.is_file()}
            assert {b"new\n", b"b\n", b"c\n"} <= left
        store = OpenedStore()
        clean(store, days=2, now=time.time() + 86_400)
        store.close()
        assert Path(os.environ["XDG_STATE_HOME"], "fumehood/runs", run.run).is_dir()


def daemons(project: Path) -> list[int]:
    """The fuse-overlayfs processes that serve runs of this home."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "cmdline").read_bytes()
            mounted = os.environ["XDG_STATE_HOME"].encode() in told or str(project).encode() in told
        except OSError:
            continue
        if told.startswith((b"fuse-overlayfs", b"/usr/bin/fuse-overlayfs")) and mounted:
            found.append(int(entry.name))
    return found


@pytest.mark.namespaces
@pytest.mark.parametrize("is_dead", [False, True], ids=["the mount is served", "the mount is dead"])
def test_a_fuse_mount_that_a_killed_run_left_is_cleared_away_and_its_layer_held(home, project, need, is_dead):
    need(os.access("/dev/fuse", os.W_OK) and bool(shutil.which("fuse-overlayfs")), "there is no fuse-overlayfs")
    (project / "kept").write_text("old")
    before = snapshot(project)
    process = began(project, "echo new > kept; echo b > b", "fuse")
    serving = daemons(project)
    killed(process)
    if is_dead:
        assert serving
        for daemon in serving:
            os.kill(daemon, signal.SIGKILL)
    with Sandbox(project) as sandbox:
        (run,) = sandbox.history()
        assert (run.state, run.reason) == ("held", STOPPED_RUNNING)
        assert {change.path for change in run.changes} == {"kept", "b", "ready"}
        assert snapshot(project) == before
        sandbox.apply(run)
        assert (project / "kept").read_text() == "new\n"


def test_what_a_dead_process_ran_is_waited_for_to_its_last_process(home: Path, project: Path) -> None:
    with subprocess.Popen(
        [*command_line(), "run", "--", "echo ready; (sleep 1000 & sleep 1000 & wait)"], cwd=project, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (noted,) = Path(os.environ["XDG_STATE_HOME"], "fumehood/runs").glob("*/0/init")
        assert not wait_until_gone(str(noted), 0.1)
        inside = int(re.search(r'"child-pid": (\d+)', noted.read_text())[1])  # type: ignore[index]
        namespace = os.readlink(f"/proc/{inside}/ns/pid")
        assert len(in_namespace(namespace)) >= 3
        process.kill()
        assert wait_until_gone(str(noted), LONG_S)
        assert set(in_namespace(namespace)) <= {str(inside)}, "but for the first, which waits for its parent"
    with Sandbox(project) as sandbox:
        assert sandbox.history()[0].reason == "Fumehood was stopped while the command ran"
    assert not noted.exists()


def in_namespace(namespace: str) -> list[str]:
    inside = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "ns/pid") == namespace:
                inside.append(process.name)
    return inside


@pytest.mark.parametrize("content", [None, b"", b'{ "child-pid": ', b'{ "child-pid": 1 }', b'{ "child-pid": 4194303 }'])
def test_a_command_that_never_began_or_whose_number_is_anothers_is_gone(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "init").write_bytes(content)
    assert wait_until_gone(str(tmp_path / "init"), 0)


def test_of_a_killed_run_with_hosts_it_is_said_that_its_connections_are_not_known(
    home: Path, project: Path, begun: Any
) -> None:
    (home / ".config/fumehood").mkdir()
    (home / ".config/fumehood/config.toml").write_text('hosts = ["example.org"]\n')
    killed(begun("touch made; echo ready; sleep 1000"))
    with Sandbox(project) as sandbox:
        (run,) = sandbox.history()
    assert (run.state, run.reason) == ("held", f"{STOPPED_RUNNING}; which hosts it reached is not known")


def test_what_a_killed_run_left_in_its_session_is_removed(home: Path, project: Path, begun: Any) -> None:
    (home / ".config/fumehood").mkdir()
    (home / ".config/fumehood/config.toml").write_text('hosts = ["example.org"]\n')
    with Sandbox(project, session="s") as sandbox:
        sandbox.run("true")
        room = Path(os.environ["XDG_STATE_HOME"], "fumehood/sessions/s")
        before = {path.name for path in room.iterdir()}
        process = begun("echo ready; sleep 1000", "--session", "s")
        assert len({path.name.partition(".")[0] for path in room.iterdir()} - before) >= 1
        killed(process)
    with Sandbox(project, session="s") as sandbox:
        assert sandbox.history()[0].state == "empty"
        assert {path.name for path in room.iterdir() if not path.name.endswith(".names")} == before
