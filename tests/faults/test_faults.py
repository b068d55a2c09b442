"""Killed, or refused by the disk, at a system call: the next start finds the project before or after, nothing lost.

A share of all points, spread evenly; `sh tools/python tests/faults/sweep.py` tries every one.
"""

import os
import shutil
from dataclasses import replace

import pytest

from conftest import need
from faulty import ACTS, ERRORS, Scene, points, tried
from fumehood import Sandbox
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

SHARE = 3  # points of each act that are tried here


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


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


@pytest.mark.parametrize("staged", [False, True], ids=["one file system", "two file systems"])
@pytest.mark.parametrize("act", ACTS)
def test_killed_at_any_call_the_project_is_before_or_after(act, staged, cache):
    need(not staged or os.path.isdir("/dev/shm"), "there is no second file system")
    found, after = points(act, staged=staged, cache=cache)
    for point in spread(found, SHARE):
        assert tried(point, after, cache) in ("before", "after"), point


@pytest.mark.parametrize("error", ERRORS)
def test_where_the_disk_refuses_a_step_nothing_is_applied(error, cache):
    found, after = points("apply", staged=False, cache=cache)
    swaps = [point for point in found if point.call in ("renameat2", "mkdirat", "fchmodat")]
    for point in spread(swaps, SHARE):
        tried(replace(point, answer=f"error={error}"), after, cache)


def test_a_step_that_failed_leaves_the_run_held_with_the_reason(cache):
    scene = Scene("apply", staged=False, cache=cache)
    try:
        found, _ = points("apply", staged=False, cache=cache)
        swaps = [point for point in found if point.call == "renameat2"]
        os.environ.update(scene.environment)
        status = scene.play("apply", scene.run, replace(swaps[2], answer="error=ENOSPC"))
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
    if os.geteuid() != 0 and not staged:
        pytest.skip("the last mode an ordinary user sets is that of a directory opened up, when all is recorded")
    scene = Scene("apply", staged=staged, cache=cache)
    try:
        found, _ = points("apply", staged=staged, cache=cache)
        os.environ.update(scene.environment)
        # After the swaps: the mode of a directory is set, or what came out is copied home.
        last = [point for point in found if point.call == ("copy_file_range" if staged else "fchmodat")][-1]
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
