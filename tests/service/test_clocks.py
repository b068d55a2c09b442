"""A clock that is wrong: the record gives the order, and no single reading removes anything."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import Sandbox
from fumehood.service.clean import clean
from fumehood.service.opened import upkeep
from fumehood.service.store import Store
from passing_days import DAY, pass_days

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

HOUR = 3_600


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock that we read ahead, or back; that of the host is not ours to set."""
    real, real_ns = time.time, time.time_ns

    def ahead_by(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(seconds * 1e9))

    return ahead_by


def layers(store: Store) -> set[str]:
    return set(os.listdir(f"{store.places.state}/runs"))


def test_one_reading_of_a_clock_that_is_weeks_ahead_removes_no_backup(
    sandbox: Sandbox, project: Path, store: Store, edited: Path, set_clock: Callable[[float], None]
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    backups = os.listdir(edited)
    set_clock(40 * DAY)
    assert clean(store, budget=1).in_words().startswith("nothing to remove")
    sandbox.run("echo b > b")
    clean(store, budget=1)
    set_clock(0)
    clean(store, budget=1)
    assert run.run in layers(store)
    assert os.listdir(edited) == backups
    sandbox.undo(run)
    assert (project / "a").read_text() == "old"


def test_what_was_cleaned_by_itself_is_said(
    sandbox: Sandbox, project: Path, store: Store, set_clock: Callable[[float], None]
) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    owner = store.projects.open(str(project)).id
    cleaning = sandbox._hood.policy.clean
    assert upkeep(store, owner, cleaning) == ""
    pass_days(store, 32)
    set_clock(32 * DAY)
    told = upkeep(store, owner, cleaning)
    assert "1 run's backups" in told
    assert f"can no longer be undone: {run.run[:16]}" in told
    assert [event.act for event in store.audit.events_of([""])[""]] == ["cleaned"]


def test_the_last_run_is_the_one_that_was_recorded_last(
    sandbox: Sandbox, store: Store, set_clock: Callable[[float], None]
) -> None:
    first = sandbox.run("echo 1 > a")
    set_clock(-HOUR)
    second = sandbox.run("echo 2 > b")
    assert second.run < first.run, "the names of runs are those of the clock"
    assert sandbox.find("last").run == second.run
    assert sandbox.find("last~1").run == first.run
    assert [run.run for run in sandbox.history()] == [second.run, first.run]


def test_a_held_layer_stays_on_top_of_an_earlier_one_when_the_clock_is_set_back(
    sandbox: Sandbox, project: Path, set_clock: Callable[[float], None]
) -> None:
    first = sandbox.run("echo first > a", apply="hold")
    set_clock(-HOUR)
    second = sandbox.run("cat a; echo second > a", apply="hold")
    assert second.output == "first\n"
    assert sandbox.run("cat a").output == "second\n"
    sandbox.apply(first)
    sandbox.apply(second)
    assert (project / "a").read_text() == "second\n"


def test_what_was_thrown_away_before_the_clock_was_set_back_holds_nothing_up(
    sandbox: Sandbox, project: Path, set_clock: Callable[[float], None]
) -> None:
    held = sandbox.run("echo first > a; echo first > b", apply="hold")
    sandbox.discard(held, "a")
    set_clock(-HOUR)
    assert sandbox.run("echo second > a").state == "applied"
    assert (project / "a").read_text() == "second\n"


def test_a_session_is_taken_back_in_the_order_of_the_record(
    sandbox: Sandbox, project: Path, set_clock: Callable[[float], None]
) -> None:
    (project / "a").write_text("old")
    agent = sandbox.session("agent")
    agent.run("echo 1 > a")
    set_clock(-HOUR)
    agent.run("echo 2 > a")
    agent.undo_session()
    assert (project / "a").read_text() == "old"


def test_a_file_comes_back_from_the_run_that_changed_it_last(
    sandbox: Sandbox, project: Path, set_clock: Callable[[float], None]
) -> None:
    (project / "a").write_text("old")
    set_clock(3 * DAY)
    sandbox.run("echo 1 > a")
    set_clock(0)
    sandbox.run("echo 2 > a")
    sandbox.restore("a")
    assert (project / "a").read_text() == "1\n"


def test_what_the_budget_takes_first_was_recorded_first(
    sandbox: Sandbox, project: Path, store: Store, set_clock: Callable[[float], None]
) -> None:
    for name in ("a", "b"):
        (project / name).write_bytes(os.urandom(100_000))
    set_clock(2 * HOUR)
    first = sandbox.run("echo new > a")
    set_clock(0)
    second = sandbox.run("echo new > b")
    pass_days(store, 3)
    assert clean(store, budget=150_000).not_undoable == (first.run,)
    assert layers(store) == {second.run}
