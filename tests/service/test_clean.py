"""Cleaning: what is old and unneeded goes, and nothing that somebody may still want."""

import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood import BadRequest, Run, Sandbox
from fumehood.linux.cache import remove_older
from fumehood.service import files, layers
from fumehood.service.clean import Freed, clean
from fumehood.service.differences import differences
from fumehood.service.store import Store
from passing_days import DAY, pass_days
from patience import LONG_S

pytestmark = pytest.mark.once

on_real_layers = pytest.mark.namespaces


@pytest.fixture(autouse=True)
def _known_host(home: Path) -> None:
    """A cache of its own: in the one for all tests lie other tests' caches, which would be removed, and counted."""


def cleaned(store: Store, after: float = 0, **options: Any) -> Freed:
    """Clean when so many days have passed, on each of which Fumehood ran."""
    return clean(store, now=pass_days(store, after), **options)


def kept(store: Store) -> set[str]:
    """What lies in the two directories that cleaning empties."""
    return {*os.listdir(f"{store.places.state}/runs"), *os.listdir(f"{store.places.state}/outputs")}


def rejudge(store: Store, run: Run, state: str, verdicts: dict[str, str]) -> None:
    """Let the record say that other things became of a run and its paths."""
    found = store.history.find(run.run)
    found.state = state
    for change in found.changed:
        change.verdict = verdicts.get(change.path, change.verdict)
    store.history.settle(found, rewrite=True)


def layer_of(store: Store, run: Run) -> str:
    return store.history.find(run.run).layer


@on_real_layers
def test_old_backups_go_and_young_ones_stay(sandbox: Sandbox, project: Path, store: Store) -> None:
    (project / "a").write_text("x" * 100_000)
    run = sandbox.run("echo new > a")
    assert cleaned(store, 29) == Freed(backups=1)
    assert kept(store) == {run.run}
    freed = cleaned(store, 31)
    assert (freed.runs, freed.backups) == (1, 0)
    assert freed.bytes >= 100_000
    assert kept(store) == set()
    assert (project / "a").read_text() == "new\n"


@on_real_layers
def test_a_run_without_its_backups_stays_in_the_history_and_says_so(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    cleaned(store, 31)
    found = store.history.find(run.run)
    assert (found.state, found.layer) == ("applied", "")
    assert "no longer kept" in differences(store, found)[0].text
    with pytest.raises(BadRequest, match=f"backups of run {run.name} were cleaned away"):
        sandbox.undo(run)
    assert kept(store) == set()
    assert (project / "a").read_text() == "new\n"


@on_real_layers
def test_nothing_offers_to_redo_what_was_cleaned_away(
    sandbox: Sandbox, project: Path, store: Store, cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    back = sandbox.undo()
    assert "fumehood redo" in cli("status").stdout
    assert "fumehood redo" in cli("undo").stderr
    cleaned(store, 31)
    status = cli("status").stdout
    assert "fumehood redo" not in status
    assert "its backups were cleaned away" in status
    assert "fumehood redo" not in cli("undo").stderr
    assert "fumehood redo" not in cli("undo", run.name).stderr
    for name in ((), (run.run,), (back.run,)):
        assert "the backups of run 2 were cleaned away" in cli("redo", *name).stderr
    assert (project / "a").read_text() == "old"


@on_real_layers
def test_some_paths_that_need_no_backups_are_taken_back_and_brought_back_however_old(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "a").write_text("old")
    (project / "b").write_text("old")
    (project / "d").mkdir(0o755)
    run = sandbox.run("rm a; echo new > b; chmod 700 d")
    back = sandbox.undo()
    cleaned(store, 31)
    assert store.history.find(run.run).layer == ""
    again = sandbox.undo(back, "a", "d")
    assert (project / "d").stat().st_mode & 0o777 == 0o700
    assert not (project / "a").exists()
    sandbox.undo(again)
    assert (project / "d").stat().st_mode & 0o777 == 0o755
    assert {path.read_text() for path in project.iterdir() if path.is_file()} == {"old"}


@on_real_layers
def test_a_run_that_only_added_can_be_undone_however_old(sandbox: Sandbox, project: Path, store: Store) -> None:
    run = sandbox.run("echo new > a")
    assert cleaned(store, 365).runs == 0
    sandbox.undo(run)
    assert not (project / "a").exists()


@on_real_layers
def test_what_is_held_is_never_removed(sandbox: Sandbox, project: Path, store: Store) -> None:
    run = sandbox.run("echo held > a; yes | head -c 100000", apply="hold")
    assert cleaned(store, 1000) == Freed()
    assert kept(store) == {run.run, f"{run.run}.stdout"}
    sandbox.apply(run)
    assert (project / "a").read_text() == "held\n"


@on_real_layers
def test_what_stays_held_when_the_rest_was_undone_is_not_removed(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    run = sandbox.run("echo a > a; echo b > b", apply="hold")
    rejudge(store, run, "undone", {"a": "applied"})
    assert cleaned(store, 1000) == Freed()
    assert kept(store) == {run.run}


@on_real_layers
@pytest.mark.parametrize("state", ["running", "applying"])
def test_a_run_under_way_is_left_alone(state: str, sandbox: Sandbox, project: Path, store: Store) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a; yes | head -c 100000")
    store.history.set_state(run.run, state)
    assert cleaned(store, 1000) == Freed(backups=1)
    assert kept(store) == {run.run, f"{run.run}.stdout"}


@on_real_layers
def test_a_young_undo_keeps_the_layer_of_an_old_run(sandbox: Sandbox, project: Path, store: Store) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    pass_days(store, 40)
    back = sandbox.undo(run)
    assert clean(store) == Freed()
    sandbox.undo(back)
    assert (project / "a").read_text() == "new\n"
    assert cleaned(store, 72).runs == 1
    assert layer_of(store, run) == layer_of(store, back) == ""


@on_real_layers
def test_an_old_run_that_was_applied_only_now_keeps_its_backups(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a", apply="hold")
    pass_days(store, 40)
    sandbox.apply(run)
    assert clean(store) == Freed()
    sandbox.undo(run)
    assert (project / "a").read_text() == "old"


@on_real_layers
def test_old_outputs_go_and_are_said_to_be_gone(sandbox: Sandbox, store: Store) -> None:
    run = sandbox.run("yes | head -c 100000; echo short >&2")
    assert cleaned(store, 29).outputs == 0
    freed = cleaned(store, 31)
    assert (freed.runs, freed.outputs) == (0, 1)
    assert freed.bytes >= 100_000
    assert "100000 bytes, no longer kept" in store.history.find(run.run).stdout
    assert b"".join(store.history.output_pieces(run.run, "stdout")).decode() == store.history.find(run.run).stdout
    assert b"".join(store.history.output_pieces(run.run, "stderr")) == b"short\n"


@on_real_layers
@pytest.mark.parametrize("state", ["discarded", "empty"])
def test_what_came_to_nothing_goes_after_a_day(state: str, sandbox: Sandbox, store: Store) -> None:
    run = sandbox.run("echo a > a", apply="hold")
    rejudge(store, run, state, {"a": "discarded"})
    assert clean(store, days=0) == Freed(days=0)
    assert cleaned(store, 1).leftovers == 0
    freed = cleaned(store, 2)
    assert (freed.runs, freed.leftovers) == (0, 1)
    assert kept(store) == set()


def test_directories_without_a_record_stay_as_long_as_any_backup(store: Store) -> None:
    stray = Path(store.places.run("01STRAY"))
    (stray / "0/upper").mkdir(parents=True)
    (stray / "0/upper/only copy").write_text("dear")
    output = Path(store.places.output("01STRAY", "stdout"))
    output.write_text("dear")
    assert clean(store, days=0) == Freed(days=0), "another process may just have made it"
    assert cleaned(store, 29) == Freed(), "the database may have been lost"
    freed = cleaned(store, 31)
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
    assert cleaned(store, 31).runs == 1
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
    freed = cleaned(store, 31)
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
    cleaned(store, 8)  # the daily backup, for which it would wait first
    ended = threading.Event()
    with store.lock_project(store.projects.open(str(project)).id):
        thread = threading.Thread(target=lambda: (cleaned(store, 31), ended.set()))
        thread.start()
        assert not ended.wait(0.5)
        assert kept(store) == {run.run}
        # What the other process does meanwhile counts: here, it undid the run.
        sandbox._store.database.rows("UPDATE runs SET state = 'undone' WHERE id = ?", (run.run,))
    thread.join(LONG_S)
    assert ended.is_set()
    assert kept(store) == {run.run}


def test_two_cleanings_wait_for_each_other(store: Store) -> None:
    with open(store.places.lock("clean"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: clean(store))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_what_cannot_be_removed_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(store.places.run("01X.gone")).mkdir()

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(layers, "drop", refuse)
    freed = clean(store)
    assert freed.failed == (f"{store.places.run('01X.gone')}: Operation not permitted",)
    assert freed.in_words().endswith(f"could not remove {freed.failed[0]}")


def test_it_tells_what_it_did() -> None:
    assert Freed().in_words() == (
        "nothing to remove: no backup and no output is older than 30 days on which Fumehood ran"
    )
    assert "older than 1 day on which" in Freed(days=1).in_words()
    told = Freed(runs=2, outputs=1, leftovers=1, bytes=3 << 20).in_words()
    assert told == "removed 2 runs' backups, 1 output, 1 leftover: 3 MiB freed"
    assert Freed(runs=1, bytes=512).in_words() == "removed 1 run's backups: 512 bytes freed"
    told = Freed(runs=1, bytes=512, not_undoable=("01A",), is_done=False).in_words()
    assert told == "would remove 1 run's backups: 512 bytes to be freed\ncould no longer be undone: 01A"


def test_a_negative_age_is_refused(store: Store) -> None:
    with pytest.raises(BadRequest, match="-1 days is not an age"):
        clean(store, days=-1)


@on_real_layers
def test_daily_backups_go_after_a_week_and_a_held_change_keeps_those_of_its_file(
    sandbox: Sandbox, project: Path, store: Store, edited: Path
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old")
    sandbox.run("echo new > a; echo new > b")
    sandbox.run("echo newer > b", apply="hold")
    assert cleaned(store, 6.9) == Freed()
    assert cleaned(store, 8) == Freed(backups=1)
    assert [name.rpartition("-")[2] for name in os.listdir(edited)] == ["b"]
    assert cleaned(store, 8, backup_days=9) == Freed()


@on_real_layers
def test_beyond_the_budget_the_oldest_go_but_none_of_the_last_day_and_none_that_is_held(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    runs = []
    for name in ("a", "b", "c"):
        (project / name).write_bytes(os.urandom(100_000))
        runs.append(sandbox.run(f"echo new > {name}", apply="hold" if name == "b" else "apply"))
    for age, run in zip((20, 15, 10), reversed(runs), strict=True):
        store.database.rows("UPDATE runs SET started_at = started_at - ? WHERE id = ?", (age * DAY, run.run))
    assert clean(store, budget=1) == Freed(), "all was recorded today"
    assert cleaned(store, 2, budget=10_000_000) == Freed()
    assert cleaned(store, 2, budget=150_000, backup_days=1).runs == 1
    assert kept(store) == {runs[1].run, runs[2].run}
    assert cleaned(store, 2, budget=1).runs == 1
    assert kept(store) == {runs[1].run}
    assert sandbox.apply(runs[1]).state == "applied"


@on_real_layers
def test_what_takes_much_does_not_cost_a_person_their_small_originals(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    (project / "mine").write_text("mine")
    small = sandbox.run("rm mine")
    runs = []
    for _ in range(3):
        (project / "large").write_bytes(os.urandom(3_000_000))
        runs.append(sandbox.run("echo x > large"))
    pass_days(store, 2)
    store.database.rows("UPDATE runs SET day = day + 2 WHERE id = ?", (runs[2].run,))
    assert cleaned(store, 2, budget=7_000_000) == Freed(), "what is of the last day costs nothing that is older"
    assert cleaned(store, 2, budget=4_000_000).not_undoable == (runs[0].run,)
    assert cleaned(store, 2, budget=100_000).not_undoable == (runs[1].run,)
    sandbox.undo(small)
    assert (project / "mine").read_text() == "mine"


@on_real_layers
def test_what_was_cleaned_is_in_the_audit_trail(sandbox: Sandbox, project: Path, store: Store) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    freed = cleaned(store, 31)
    assert store.audit.events_of([run.run])[run.run][-1].act == "cleaned"
    assert [(event.act, event.detail) for event in store.audit.events_of([""])[""]] == [
        ("cleaned", freed.in_words().replace("\n", "; "))
    ]
    cleaned(store, 31)
    assert len(store.audit.events_of([""])[""]) == 1


@on_real_layers
def test_what_is_due_is_recorded_before_its_original_goes(
    sandbox: Sandbox, project: Path, store: Store, edited: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_AT_ONCE", 0)
    (project / "a").write_bytes(b"x" * 100_000)
    sandbox.run("echo new > a")
    assert not edited.exists()
    assert cleaned(store, 6, budget=1).runs == 1
    assert [(edited / name).stat().st_size for name in os.listdir(edited)] == [100_000]


def test_a_run_that_its_process_still_claims_is_not_set_aside(store: Store) -> None:
    with layers.RunDirectory(store.places, "01CLAIMED") as directory:
        directory.create()
        assert cleaned(store, 31).leftovers == 1
        assert kept(store) == {"01CLAIMED"}
    cleaned(store, 31)
    assert kept(store) == set()


def aged(store: Store, days: float) -> None:
    """Let the last cleaning be so long ago."""
    then = time.time() - days * DAY
    os.utime(store.places.lock("clean"), (then, then))


@on_real_layers
def test_it_is_done_by_itself_once_a_day_when_a_program_ends(project: Path, store: Store) -> None:
    gone = Path(store.places.run("01CRASHED.gone"))
    for days, is_done in ((None, False), (0.9, False), (1.1, True), (None, False), (-1.0, True)):
        gone.mkdir(exist_ok=True)
        if days is not None:
            aged(store, days)
        with Sandbox(project):
            pass
        assert gone.exists() is not is_done


@on_real_layers
def test_a_program_that_does_not_end_cleans_beside_its_runs(sandbox: Sandbox, project: Path, store: Store) -> None:
    sandbox.run("true")
    gone = Path(store.places.run("01CRASHED.gone"))
    gone.mkdir()
    aged(store, 2)
    sandbox.run("true")
    until = time.monotonic() + LONG_S
    while gone.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@on_real_layers
def test_nobody_waits_for_a_cleaning_that_another_process_is_at(project: Path, store: Store) -> None:
    with Sandbox(project) as sandbox, open(store.places.lock("clean"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        aged(store, 2)
        assert sandbox.run("echo x > a").state == "applied"


def test_what_is_just_being_written_to_the_cache_is_in_no_cleanings_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hostview-1.new-2-3", "hostview-4"):
        (tmp_path / name).touch()
    listed = os.listdir

    def listed_and_then_renamed(path: str) -> list[str]:
        """The other process is done with writing right after this one has looked."""
        names = listed(path)
        os.rename(tmp_path / "hostview-1.new-2-3", tmp_path / "hostview-1")
        return names

    monkeypatch.setattr(os, "listdir", listed_and_then_renamed)
    remove_older(str(tmp_path), ("hostview-",), time.time() + DAY)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["hostview-1"]


def test_what_is_remembered_of_a_projects_directories_goes_when_it_is_old(project: Path, store: Store) -> None:
    for number in range(120):
        (project / f"directory{number}").mkdir()
    with Sandbox(project) as sandbox:
        assert sandbox.run("echo x > a").state == "applied"
    memory = Path(store.places.cache) / f"tree-{project.stat().st_ino}"
    cleaned(store, 29)
    assert memory.exists()
    cleaned(store, 31)
    assert not memory.exists()


def test_notes_of_a_fleets_jobs_go_when_they_are_old_and_no_result_can_come(store: Store) -> None:
    notes = Path(store.places.state) / "fleet"
    notes.mkdir()
    (notes / "01kabc.json").write_text("{}")
    (notes / "01kabc.json.77").write_text("{")  # of a sender that was killed while it wrote
    cleaned(store, 6, days=0)
    assert len(os.listdir(notes)) == 2
    cleaned(store, 29)
    assert len(os.listdir(notes)) == 2
    cleaned(store, 31)
    assert os.listdir(notes) == []


@on_real_layers
def test_the_directory_of_a_session_stays_while_one_of_its_commands_runs(project: Path, store: Store) -> None:
    with Sandbox(project, session="agent", draft="line", own_tmp=True) as sandbox:
        command = sandbox.start("echo kept > /tmp/file; echo ready; read line; cat /tmp/file; echo $line > said")
        assert command.stdout.readline() == "ready\n"
        cleaned(store, days=0)
        command.stdin.write("word\n")
        run = command.wait()
        assert (run.state, run.stdout) == ("held", "ready\nkept\n")
        sandbox.draft("line").discard()
    assert cleaned(store, days=0).leftovers
    assert not os.listdir(f"{store.places.state}/sessions")


@on_real_layers
def test_a_project_that_is_gone_is_in_the_way_of_no_cleaning(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_AT_ONCE", 0)  # as where much was changed: it is recorded later
    with Sandbox(project) as sandbox:
        sandbox.undo(sandbox.run("echo new > new"))
        sandbox.run("echo held > held", apply="hold")
        assert store.database.rows("SELECT 1 FROM files_due")
        project.rename(project.parent / "elsewhere")
        cleaned(store)
    assert not store.database.rows("SELECT 1 FROM files_due")
    (project.parent / "elsewhere").rename(project)
