"""Killed in the middle of a checkpoint: the project is as before it or as after it, and nothing is lost."""

import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from conftest import fresh_directory, remove_tree, scratch
from faulty import BEFORE, CHANGE
from fumehood import Sandbox
from patience import LONG_S, eventually
from processes import LONG, left_over
from snapshots import Snapshot, snapshot

pytestmark = pytest.mark.namespaces

# Attends a command, which is checkpointed by itself, and dies where a function is called for the nth time after its
# processes were stopped.
ATTEND = """
import glob, importlib, os, signal, sys, time
from fumehood import Policy, Sandbox
from fumehood.linux.checkpoints import StoppedProcesses
from fumehood.store.places import places

project, command, place, count = sys.argv[1:]
module, _, name = place.rpartition(":")
holder, left, is_stopped = importlib.import_module(module), int(count), False
*above, name = name.split(".")
for each in above:
    holder = getattr(holder, each)
original, stop = getattr(holder, name), StoppedProcesses._stop

def dying(*arguments, **options):
    global left
    left -= is_stopped
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)

def stopping(self):
    global is_stopped
    while not glob.glob(f"{places().state}/runs/*/0/upper/finished"):
        time.sleep(0.01)  # on a busy machine, the command may not have done all yet
    stop(self)
    is_stopped = True

setattr(holder, name, dying)
StoppedProcesses._stop = stopping
Sandbox(project, policy=Policy(checkpoint=0.1)).run(command, background=True)
"""
STEP = "fumehood.linux.libc:renameat2"
HERE = "fumehood.service.checkpoint:"
POINTS = [
    ("fumehood.linux.layer:is_opaque", 1), (f"{HERE}add_note", 1), (f"{HERE}copy_versions", 1),
    ("fumehood.linux.copying:copy_file", 5), (f"{HERE}apply_changes", 1), *((STEP, number) for number in (1, 4, 9, 14)),
    ("fumehood.store.history:History.settle", 1), (f"{HERE}add_note", 2), (f"{HERE}wait_for_next_file_time", 1),
]  # fmt: skip


def made(directory: Path) -> Path:
    project = directory / "project"
    project.mkdir(exist_ok=True)
    subprocess.run(["sh", "-ec", BEFORE], cwd=project, check=True)
    return project


@pytest.fixture
def states(home: Path) -> tuple[Snapshot, Snapshot]:
    """What the project is after a checkpoint, and after all of the command: the same for every test."""
    return left_without_a_kill()


@cache
def left_without_a_kill() -> tuple[Snapshot, Snapshot]:
    elsewhere = fresh_directory(scratch())
    try:
        project = made(elsewhere)
        with Sandbox(project) as sandbox:
            sandbox.run(CHANGE)
            after = plain(project)
            sandbox.undo()
            command = subprocess.Popen(
                [sys.executable, "-P", "-c", ATTEND, str(project), f"{CHANGE}\nsleep 1000", STEP, "-1"]
            )
            assert eventually((project / "finished").exists)
            (run,) = sandbox.running()
            sandbox.checkpoint(run)  # so that the other one is through
            settled = plain(project)
            sandbox.stop(run)
            assert command.wait(LONG_S) == 0
        return settled, after
    finally:
        remove_tree(elsewhere)


def plain(project: Path) -> Snapshot:
    """Without which paths share an inode."""
    return {path: entry[:-1] for path, entry in snapshot(project).items()}


@pytest.mark.long
@pytest.mark.parametrize(("place", "count"), POINTS, ids=[f"{place}-{count}" for place, count in POINTS])
def test_a_kill_in_a_checkpoint_leaves_old_or_new(home, test_directory, states, place, count):
    settled, after = states
    project = made(test_directory)
    before = plain(project)
    mark = f"{LONG}.15"
    arguments = [sys.executable, "-P", "-c", ATTEND, str(project), f"{CHANGE}\nsleep {mark}", place, str(count)]
    assert subprocess.run(arguments, check=False, timeout=LONG_S).returncode == -signal.SIGKILL
    with Sandbox(project) as sandbox:
        assert not left_over(mark), "what was stopped dies with us"
        now = plain(project)
        assert now in (before, settled)
        runs = {run.act: run for run in sandbox.history()}
        assert runs["run"].state == "held"
        if "checkpoint" in runs:
            assert runs["checkpoint"].state == ("applied" if now == settled else "failed")
            layer = home / ".local/state/fumehood/runs" / runs["checkpoint"].run
            assert layer.exists() == (now == settled), "a copy that nobody needs is not kept"
        sandbox.apply(runs["run"])
        assert plain(project) == after
        while any(run.state in ("applied", "held") and run.act != "undo" for run in sandbox.history()):
            sandbox.undo()
        assert plain(project) == before
