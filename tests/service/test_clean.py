"""Cleaning: what is old and unneeded goes, and nothing that somebody may still want."""

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from fumehood import BadRequest, Run, Sandbox
from fumehood.service import layers
from fumehood.service.clean import Freed, clean
from fumehood.service.differences import differences
from fumehood.service.store import Store

DAY = 86_400
on_real_layers = pytest.mark.namespaces


def later(days: float) -> float:
    return time.time() + days * DAY


def kept(store: Store) -> set[str]:
    """What lies in the two directories that cleaning empties."""
    return {*os.listdir(f"{store.places.state}/runs"), *os.listdir(f"{store.places.state}/outputs")}


def rejudge(store: Store, run: Run, state: str, verdicts: dict[str, str]) -> None:
    """Let the record say that other things became of a run and its paths."""
    found = store.history.find(run.run)
    found.state = state
    for change in found.found:
        change.verdict = verdicts.get(change.path, change.verdict)
    store.history.settle(found, rewrite=True)


def layer_of(store: Store, run: Run) -> str:
    return store.history.find(run.run).layer


@on_real_layers
def test_old_backups_go_and_young_ones_stay(sandbox: Sandbox, project: Path, store: Store) -> None:
    (project / "a").write_text("x" * 100_000)
    run = sandbox.run("echo new > a")
    assert clean(store, now=later(29)) == Freed()
    assert kept(store) == {run.run}
    freed = clean(store, now=later(31))
    assert freed.runs == 1
    assert freed.bytes >= 100_000
    assert kept(store) == set()
    assert (project / "a").read_text() == "new\n"


@on_real_layers
def test_a_run_without_its_backups_stays_in_the_history_and_says_so(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    clean(store, now=later(31))
    found = store.history.find(run.run)
    assert (found.state, found.layer) == ("applied", "")
    assert "no longer kept" in differences(store, found)[0].text
    with pytest.raises(BadRequest, match=f"backups of run {run.run} were cleaned away"):
        sandbox.undo(run)
    assert kept(store) == set()
    assert (project / "a").read_text() == "new\n"


@on_real_layers
def test_a_run_that_only_added_can_be_undone_however_old(sandbox: Sandbox, project: Path, store: Store) -> None:
    run = sandbox.run("echo new > a")
    assert clean(store, now=later(365)).runs == 0
    sandbox.undo(run)
    assert not (project / "a").exists()


@on_real_layers
def test_what_is_held_is_never_removed(sandbox: Sandbox, project: Path, store: Store) -> None:
    run = sandbox.run("echo held > a; yes | head -c 100000", apply="hold")
    assert clean(store, now=later(1000)) == Freed()
    assert kept(store) == {run.run, f"{run.run}.stdout"}
    sandbox.apply(run)
    assert (project / "a").read_text() == "held\n"


@on_real_layers
def test_what_stays_held_when_the_rest_was_undone_is_not_removed(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    run = sandbox.run("echo a > a; echo b > b", apply="hold")
    rejudge(store, run, "undone", {"a": "applied"})
    assert clean(store, now=later(1000)) == Freed()
    assert kept(store) == {run.run}


@on_real_layers
@pytest.mark.parametrize("state", ["running", "applying"])
def test_a_run_under_way_is_left_alone(state: str, sandbox: Sandbox, project: Path, store: Store) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a; yes | head -c 100000")
    store.history.state(run.run, state)
    assert clean(store, now=later(1000)) == Freed()
    assert kept(store) == {run.run, f"{run.run}.stdout"}


@on_real_layers
def test_a_young_undo_keeps_the_layer_of_an_old_run(sandbox: Sandbox, project: Path, store: Store) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    back = sandbox.undo(run)
    store.database.rows("UPDATE runs SET started_at = started_at - ? WHERE id = ?", (40 * DAY, run.run))
    assert clean(store) == Freed()
    sandbox.undo(back)
    assert (project / "a").read_text() == "new\n"
    assert clean(store, now=later(31)).runs == 1
    assert layer_of(store, run) == layer_of(store, back) == ""


@on_real_layers
def test_an_old_run_that_was_applied_only_now_keeps_its_backups(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a", apply="hold")
    store.database.rows("UPDATE runs SET started_at = started_at - ? WHERE id = ?", (40 * DAY, run.run))
    sandbox.apply(run)
    assert clean(store) == Freed()
    sandbox.undo(run)
    assert (project / "a").read_text() == "old"


@on_real_layers
def test_old_outputs_go_and_are_said_to_be_gone(sandbox: Sandbox, store: Store) -> None:
    run = sandbox.run("yes | head -c 100000; echo short >&2")
    assert clean(store, now=later(29)).outputs == 0
    freed = clean(store, now=later(31))
    assert (freed.runs, freed.outputs) == (0, 1)
    assert freed.bytes >= 100_000
    assert "100000 bytes, no longer kept" in store.history.find(run.run).stdout


@on_real_layers
@pytest.mark.parametrize("state", ["failed", "discarded", "empty"])
def test_what_came_to_nothing_goes_after_a_day(state: str, sandbox: Sandbox, store: Store) -> None:
    run = sandbox.run("echo a > a", apply="hold")
    rejudge(store, run, state, {"a": "discarded"})
    assert clean(store, days=0) == Freed(days=0)
    freed = clean(store, now=later(1.1))
    assert (freed.runs, freed.leftovers) == (0, 1)
    assert kept(store) == set()


def test_directories_without_a_record_stay_as_long_as_any_backup(store: Store) -> None:
    stray = Path(store.places.run("01STRAY"))
    (stray / "0/upper").mkdir(parents=True)
    (stray / "0/upper/only copy").write_text("dear")
    output = Path(store.places.output("01STRAY", "stdout"))
    output.write_text("dear")
    assert clean(store, days=0) == Freed(days=0), "another process may just have made it"
    assert clean(store, now=later(29)) == Freed(), "the database may have been lost"
    freed = clean(store, now=later(31))
    assert (freed.leftovers, freed.outputs) == (1, 1)
    assert kept(store) == set()


def test_what_a_crash_left_is_removed(store: Store) -> None:
    Path(store.places.run("01CRASHED.gone"), "0/upper").mkdir(parents=True)
    clean(store)
    assert kept(store) == set()


@on_real_layers
def test_a_crash_before_the_layer_was_set_aside_is_made_up_for(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    store.database.rows("UPDATE runs SET layer = '' WHERE id = ?", (run.run,))
    assert clean(store) == Freed()
    assert clean(store, now=later(31)).runs == 1
    assert kept(store) == set()


@on_real_layers
def test_no_symlink_is_followed_and_closed_directories_go_too(
    sandbox: Sandbox, project: Path, test_directory: Path, store: Store
) -> None:
    outside = test_directory / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(b"x" * 1_000_000)
    (project / "tree/closed").mkdir(parents=True)
    (project / "tree/link").symlink_to(outside)
    (project / "tree/closed/file").write_text("x")
    os.link(project / "tree/closed/file", project / "tree/again")
    (project / "tree/closed").chmod(0o500)
    sandbox.run("chmod 700 tree/closed; rm -r tree")
    freed = clean(store, now=later(31))
    assert freed.runs == 1
    assert freed.bytes < 1_000_000
    assert kept(store) == set()
    assert (outside / "big").exists()


@on_real_layers
def test_nothing_is_removed_while_a_project_is_being_changed(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    ended = threading.Event()
    with store.alone(store.projects.open(str(project)).id):
        thread = threading.Thread(target=lambda: (clean(store, now=later(31)), ended.set()))
        thread.start()
        assert not ended.wait(0.5)
        assert kept(store) == {run.run}
        # What the other process does meanwhile counts: here, it undid the run.
        sandbox._store.database.rows("UPDATE runs SET state = 'undone' WHERE id = ?", (run.run,))
    thread.join(10)
    assert ended.is_set()
    assert kept(store) == {run.run}


def test_two_cleanings_wait_for_each_other(store: Store) -> None:
    with open(store.places.lock("clean"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: clean(store))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()


def test_what_cannot_be_removed_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(store.places.run("01X.gone")).mkdir()

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(layers, "drop", refuse)
    freed = clean(store)
    assert freed.failed == (f"{store.places.run('01X.gone')}: Operation not permitted",)
    assert freed.told().endswith(f"could not remove {freed.failed[0]}")


def test_it_tells_what_it_did() -> None:
    assert Freed().told() == "nothing to remove: no backup and no output is older than 30 days"
    assert Freed(days=1).told().endswith("older than 1 day")
    told = Freed(runs=2, outputs=1, leftovers=1, bytes=3 << 20).told()
    assert told == "removed 2 runs' backups, 1 output, 1 leftover: 3.0 MiB freed"
    assert Freed(runs=1, bytes=512).told() == "removed 1 run's backups: 512 bytes freed"


def test_a_negative_age_is_refused(store: Store) -> None:
    with pytest.raises(BadRequest, match="no age of -1 days"):
        clean(store, days=-1)
