"""Killed, or refused by the disk, at a system call: the next start finds the project before or after, nothing lost.

A share of all points, spread evenly; `sh tools/python tests/faults/sweep.py` tries every one.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import need
from faults.calls import EFFECTS
from faulty import ACTS, ERRORS, Scene, points, tried
from fumehood import Sandbox
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

SHARE = 2 if os.geteuid() == 0 else 1  # points of each act that are tried here
JOURNAL = {"create", "write", "flush", "remove"}
STEPS = {"rename", "make a directory", "link"}
COPYING = {"copy", "set a size", "set a mode", "set times", "symlink"}
STAGED = ("apply", "undo", "recover", "draft")  # tried on two file systems too; the sweep does so with all
# What an act can't be done without, whatever the calls are named here; on two file systems, COPYING besides.
NEEDED = {
    "run": JOURNAL | STEPS | {"set a mode"}, "apply": JOURNAL | STEPS | {"set a mode", "make a node"},
    "part": JOURNAL | STEPS, "force": JOURNAL | STEPS | {"set a mode"}, "undo": JOURNAL | STEPS | {"set a mode"},
    "redo": JOURNAL | STEPS | {"set a mode"}, "discard": JOURNAL, "recover": JOURNAL | {"rename", "set a mode"},
    "begin": JOURNAL - {"flush", "remove"} | {"make a directory"}, "edit": JOURNAL | {"rename"},
    "merge": JOURNAL | STEPS | {"set a mode"}, "draft": JOURNAL | STEPS | {"set a mode", "copy"},
}  # fmt: skip


@pytest.fixture
def cache(probed):
    """One for all scenes: to look at the host is no part of an act."""
    return probed


@pytest.fixture(autouse=True)
def tracer(monkeypatch):
    need(shutil.which("strace") is not None, "there is no strace")
    # A scene sets these for itself.
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def spread(found, share):
    """Some of the points, evenly chosen."""
    step = max(1, len(found) // share)
    return found[step // 2 :: step]


def test_every_effect_has_a_call_on_each_machine():
    """The C library takes the one that a machine has, so each effect needs one that both have."""
    assert all(calls.everywhere for calls in EFFECTS.values())
    both = [call for calls in EFFECTS.values() for call in calls.everywhere]
    more = [call for calls in EFFECTS.values() for call in calls.on_x86_64]
    assert len({*both, *more}) == len(both) + len(more)


@pytest.mark.parametrize("effect", EFFECTS)
def test_this_machine_has_the_calls_that_are_said_to_be_its_own(effect):
    everywhere, on_x86_64 = EFFECTS[effect]
    assert any(is_known_here(call) for call in everywhere)
    for call in on_x86_64:
        assert is_known_here(call) == (os.uname().machine == "x86_64"), call


def is_known_here(call):
    """Whether the kernel has a call of that name for programs of this machine, not only for its 32-bit ones."""
    return subprocess.run(["strace", f"--trace={call}@64", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("act", "staged"),
    [*((act, False) for act in ACTS), *((act, True) for act in STAGED)],
    ids=[*ACTS, *(f"{act}, two file systems" for act in STAGED)],
)
def test_killed_at_any_call_the_project_is_before_or_after(act, staged, cache):
    need(not staged or os.path.isdir("/dev/shm"), "there is no second file system")
    found, after = points(act, staged=staged, cache=cache)
    needed = NEEDED[act] | (COPYING if staged and NEEDED[act] >= STEPS else set())
    needed -= {"symlink"} if act == "merge" else set()  # it is about a text alone
    assert needed <= {point.effect for point in found}
    outcomes = [tried(point, after, cache) for point in spread(found, SHARE)]
    assert {outcome.became for outcome in outcomes} <= {"before", "after"}
    assert any(outcome.is_reached for outcome in outcomes)


@pytest.mark.long
@pytest.mark.parametrize("error", ERRORS)
def test_where_the_disk_refuses_a_step_nothing_is_applied(error, cache):
    found, after = points("apply", staged=False, cache=cache)
    steps = [point for point in found if point.effect in ("rename", "make a directory", "set a mode")]
    for point in spread(steps, SHARE):
        tried(replace(point, answer=f"error={error}"), after, cache)


def test_a_step_that_failed_leaves_the_run_held_with_the_reason(cache):
    scene = Scene("apply", staged=False, cache=cache)
    try:
        found, _ = points("apply", staged=False, cache=cache)
        renames = [point for point in found if point.effect == "rename"]
        os.environ.update(scene.environment)
        status = scene.play("apply", scene.run, replace(renames[2], answer="error=ENOSPC"))
        assert status != 0
        assert "nothing was applied: No space left on device" in scene.said
        with Sandbox(scene.project) as sandbox:
            held = sandbox.history()[0]
            assert (held.state, snapshot(scene.project)) == ("held", scene.before)
            assert "No space left on device" in held.reason
    finally:
        scene.close()


@pytest.mark.parametrize("now", ["edited", "gone", "directory gone"])
@pytest.mark.parametrize("staged", [False, True], ids=["one file system", "two file systems"])
def test_what_a_person_did_after_the_death_stays_and_the_original_is_kept(staged, now, cache):
    scene = Scene("apply", staged=staged, cache=cache)
    try:
        found, _ = points("apply", staged=staged, cache=cache)
        os.environ.update(scene.environment)
        # After the swaps, what came out is copied home: all of it, or only what shares its inode with a live file.
        last = [point for point in found if point.effect == "copy"][-1]
        original = (scene.project / "plain/one").read_bytes()
        scene.play("apply", scene.run, last)
        assert (scene.project / "plain/one").read_text() == "ONE\n", "killed too early for this test"
        if now == "edited":
            (scene.project / "plain/one").write_text("the person's")
        elif now == "gone":
            (scene.project / "plain/one").unlink()
        else:
            shutil.rmtree(scene.project / "plain")
        with Sandbox(scene.project) as sandbox:
            (run,) = sandbox.history()
            found = snapshot(scene.project)
            if now == "edited":
                assert (scene.project / "plain/one").read_text() == "the person's"
            different = {path for path in {*found, *scene.before} if found.get(path) != scene.before.get(path)}
            assert "plain/one" in different
            assert all(path.startswith("plain") if now == "directory gone" else path == "plain/one"
                       for path in different)  # fmt: skip
            assert run.state == "held"
            assert "plain/one" in run.reason
            kept = scene.top / "STATE/fumehood/runs" / run.run / "0/upper/plain/one"
            assert kept.read_bytes() == original
    finally:
        scene.close()


@pytest.mark.long
@pytest.mark.alone  # beside others, a process of it was gone before it began, twice: lines.py tells more the next time
def test_ctrl_c_at_any_line_leaves_a_program_that_can_go_on():
    tool = Path(__file__).parent / "lines.py"
    done = subprocess.run([sys.executable, "-P", tool, "1/300"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d{2,} lines, 0 wrong$", done.stdout, re.MULTILINE), done.stdout
