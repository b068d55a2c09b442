"""The audit trail: every new state is an event with who had it done, and no event ever changes."""

import os
import pwd
from pathlib import Path

import pytest

from fumehood import FumehoodError, Sandbox
from fumehood.core.report import Run
from fumehood.service.opened import OpenedStore
from fumehood.service.store import Store
from fumehood.store.audit import Audit, agent_of

pytestmark = pytest.mark.once


def begun(store: Store, project: Path, name: str = "RUN1") -> Run:
    number = store.projects.open(str(project)).id
    run = Run(run=name, project=str(project), command="x", cwd="/", state="running", roots=(str(project),))
    store.history.begin(number, run, 1)
    return run


def acts(audit: Audit, run: str) -> list[str]:
    return [event.act for event in audit.events_of([run])[run]]


def test_a_run_begins_with_who_asked(store: Store, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    begun(store, project)
    (event,) = store.audit.events_of(["RUN1"])["RUN1"]
    assert (event.act, event.detail, event.face) == ("asked", "to apply", "python")
    assert (event.uid, event.user) == (os.getuid(), pwd.getpwuid(os.getuid()).pw_name)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET act = 'nothing'",
        "UPDATE events SET n = n + 1",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events SELECT * FROM events",
        "REPLACE INTO events SELECT n, 0, 'forged', NULL, '', 0, '', '', '', '' FROM events",
    ],
)
def test_no_event_can_be_changed_or_removed(store: Store, project: Path, statement: str) -> None:
    begun(store, project)
    before = store.database.rows("SELECT * FROM events")
    with pytest.raises(FumehoodError, match="only ever added"), store.database.transaction() as connection:
        connection.execute(statement)
    assert store.database.rows("SELECT * FROM events") == before


def test_an_event_and_its_state_are_written_together_or_not_at_all(store: Store, project: Path) -> None:
    begun(store, project)
    with store.database.transaction() as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    with pytest.raises(FumehoodError):
        store.history.set_state("RUN1", "failed", "why")
    assert store.history.find("RUN1").state == "running"
    assert acts(store.audit, "RUN1") == ["asked"]


def test_what_is_about_no_run_is_told_apart(store: Store, project: Path) -> None:
    begun(store, project)
    number = store.projects.open(str(project)).id
    store.audit.add_event("", "granted", "example.org", project=number)
    store.audit.add_event("", "cleaned", "here", project=number)
    store.audit.add_event("", "cleaned", "everywhere")
    store.audit.add_event("", "cleaned", "elsewhere", project=number + 1)
    details = [event.detail for event in store.audit.events_of([""])[""]]
    assert details == ["example.org", "here", "everywhere", "elsewhere"]
    assert [event.detail for event in store.audit.cleanings(["RUN1"], number)["RUN1"]] == ["here", "everywhere"]
    assert len(store.audit.cleanings(["RUN1"])["RUN1"]) == 3


def test_any_path_can_be_named(store: Store) -> None:
    store.audit.add_event("R", "decided", "apply caf\udce9")
    assert store.audit.events_of(["R"])["R"][0].detail == "apply caf\\xe9"


@pytest.mark.parametrize(
    ("environment", "agent"),
    [
        ({}, ""),
        ({"CLAUDECODE": "1"}, "claude-code"),
        ({"CLAUDECODE": "1", "AI_AGENT": "mine@2"}, "mine@2"),
        ({"AI_AGENT": "mine", "FUMEHOOD_AGENT": "yours"}, "yours"),
        ({"GEMINI_CLI": ""}, ""),
    ],
)
def test_an_agent_is_known_by_what_it_tells(environment: dict[str, str], agent: str) -> None:
    assert agent_of(environment) == agent


@pytest.mark.namespaces
def test_every_decision_leaves_its_mark(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a", apply="hold")
    sandbox.apply(run)
    back = sandbox.undo(run)
    thrown = sandbox.run("echo new > b", apply="hold")
    sandbox.discard(thrown)
    with_store = OpenedStore()
    told = with_store.audit.events_of([run.run, back.run, thrown.run])
    with_store.close()
    assert [(event.act, event.detail) for event in told[run.run]] == [
        ("asked", "to hold"), ("decided", "exit 0; by the policy: 1 held"), ("held", "exit 0; 1 held"),
        ("decided", "apply a"),
        ("applied", "exit 0; 1 applied"), ("undone", f"by run {back.run}"),
    ]  # fmt: skip
    assert [event.act for event in told[back.run]] == ["asked", "decided", "applied"]
    assert [event.act for event in told[thrown.run]] == ["asked", "decided", "held", "decided", "discarded"]
    assert {event.face for events in told.values() for event in events} == {"python"}
