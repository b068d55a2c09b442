"""The drafts that are remembered: named lines of held runs beside a project."""

from __future__ import annotations

import time

from fumehood.core.request import checked_name
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.store.audit import storable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    from fumehood.core.report import Run
    from fumehood.store.database import Database

OPEN, APPLIED, DISCARDED = "open", "applied", "discarded"
MAKING = "making"  # its copy of the project is not whole yet


class DraftRecord(Value):
    """One draft, as it is recorded."""

    id: int
    project: int
    name: str
    created_at: float
    state: str = OPEN
    base: int | None = None  # the draft whose frozen copy of the project it lies on
    run: str | None = None  # the run that applies it


_COLUMNS = ", ".join(DraftRecord._fields)


class Drafts:
    """Drafts in the database; of the open ones of a project, each has a name of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def at(self, project: int, name: str) -> DraftRecord | None:
        """Return the open draft of a name, if there is one."""
        return self._one("project = ? AND name = ? AND state = 'open'", project, name)

    def find(self, project: int, name: str) -> DraftRecord:
        """Return the open draft of a name."""
        draft = self.at(project, name)
        if draft is None:
            checked_name(name, "draft")  # else a name would be offered that none can have
            raise BadRequest(f"there is no draft {name}", hint=f"fumehood draft new {name}, or fumehood draft list")
        return draft

    def new(self, project: int, name: str, *, base: int | None = None, state: str = OPEN) -> DraftRecord:
        """Begin a draft."""
        checked_name(name, "draft")
        if self.at(project, name) is not None:
            raise _is_taken(name)
        statement = "INSERT OR IGNORE INTO drafts (project, name, created_at, base, state) VALUES (?, ?, ?, ?, ?)"
        if not self.database.write(statement, (project, name, time.time(), base, state)):
            raise _is_taken(name)
        draft = self._one("project = ? AND name = ? AND state = ? ORDER BY id DESC LIMIT 1", project, name, state)
        assert draft is not None, "it was just written"
        return draft

    def begin(self, project: int, name: str) -> DraftRecord:
        """Return the open draft of a name, which begins if there is none, whoever else does the same."""
        checked_name(name, "draft")
        statement = "INSERT OR IGNORE INTO drafts (project, name, created_at) VALUES (?, ?, ?)"
        self.database.write(statement, (project, name, time.time()))
        return self.find(project, name)

    def made(self, draft: DraftRecord) -> DraftRecord:
        """Let a draft begin that lies on its own copy of the project, which is whole now."""
        statement = "UPDATE OR IGNORE drafts SET base = id, state = 'open' WHERE id = ?"
        if not self.database.write(statement, (draft.id,)):
            raise _is_taken(draft.name)
        return draft.replace(base=draft.id, state=OPEN)

    def forget_unmade(self, project: int) -> None:
        """Forget the drafts of a project, whose lock is held, for which a copy was begun and not finished."""
        self.database.write("DELETE FROM drafts WHERE project = ? AND state = 'making'", (project,))

    def bases(self) -> set[int]:
        """Return the drafts whose frozen copies are needed, or are being made."""
        query = "SELECT coalesce(base, id) FROM drafts WHERE state = 'making' OR state = 'open' AND base IS NOT NULL"
        return {number for (number,) in self.database.rows(query)}

    def remember(self, project: int, number: int, name: str) -> None:
        """Record a draft again that only its runs' own records tell of."""
        statement = "INSERT OR IGNORE INTO drafts (id, project, name, created_at) VALUES (?, ?, ?, ?)"
        self.database.write(statement, (number, project, name, time.time()))

    def open_ones(self, project: int) -> list[DraftRecord]:
        """Return the open drafts of a project, the earliest first."""
        query = f"SELECT {_COLUMNS} FROM drafts WHERE project = ? AND state = 'open' ORDER BY id"
        return self.database.records(DraftRecord, query, (project,))

    def shown_at(self, draft: DraftRecord, besides: str = "") -> str:
        """Name the state of a draft: another one as soon as something is recorded of a run in it, save `besides`."""
        query = (
            "SELECT coalesce(max(events.n), 0) FROM events JOIN runs ON runs.id = events.run"
            " WHERE runs.draft = ? AND runs.id <> ?"
        )
        ((last,),) = self.database.rows(query, (draft.id, besides))
        return str(last)

    def rename(self, draft: DraftRecord, name: str) -> DraftRecord:
        """Give a draft another name."""
        checked_name(name, "draft")
        if self.database.write("UPDATE OR IGNORE drafts SET name = ? WHERE id = ?", (name, draft.id)) != 1:
            raise _is_taken(name)
        return draft.replace(name=name)

    def applied_by(self, run: str) -> DraftRecord | None:
        """Return the draft that a run is applying, if that is not done yet."""
        return self._one("run = ? AND state = 'open'", run)

    def note_run(self, draft: DraftRecord, run: str) -> None:
        """Remember which run applies a draft, before it does."""
        self.database.write("UPDATE drafts SET run = ? WHERE id = ?", (run, draft.id), durable=True)

    def close(self, draft: DraftRecord, state: str, why: str) -> list[str]:
        """Settle all that a draft holds, and the draft itself, at once; return its runs whose layers can go."""
        with self.database.transaction(durable=True) as connection:
            return _close(connection, draft.id, state, "", why)

    def is_open(self, number: int | None) -> bool:
        """Return True if a draft is neither applied nor thrown away."""
        return bool(self.database.rows("SELECT 1 FROM drafts WHERE id = ? AND state = 'open'", (number,)))

    def runs_now(self, draft: DraftRecord) -> bool:
        """Return True if a command is running in a draft."""
        query = "SELECT 1 FROM runs WHERE draft = ? AND state IN ('running', 'applying', 'settling') LIMIT 1"
        return bool(self.database.rows(query, (draft.id,)))

    def is_lain_on(self, draft: DraftRecord) -> bool:
        """Return True if another open draft lies on the frozen copy that a draft lies on."""
        query = "SELECT 1 FROM drafts WHERE base = ? AND id != ? AND state = 'open' LIMIT 1"
        return bool(self.database.rows(query, (draft.base, draft.id)))

    def _one(self, condition: str, *values: object) -> DraftRecord | None:
        query = f"SELECT {_COLUMNS} FROM drafts WHERE {condition}"
        return next(iter(self.database.records(DraftRecord, query, values)), None)


def _is_taken(name: str) -> BadRequest:
    return BadRequest(f"there is a draft {name} already", hint=f"fumehood draft show {name}")


def close_applied(connection: sqlite3.Connection, run: Run) -> None:
    """Settle all that the draft holds which a run has applied, in the transaction that records it."""
    rows = connection.execute("SELECT id, name FROM drafts WHERE run = ? AND state = 'open'", (run.run,)).fetchall()
    for number, name in rows:
        _close(connection, number, APPLIED, run.run, f"it went with draft {name}, by run {run.name}")


def _close(connection: sqlite3.Connection, number: int, state: str, run: str, why: str) -> list[str]:
    held = "runs.draft = ? AND runs.state = 'held'"
    names = [name for (name,) in connection.execute(f"SELECT id FROM runs WHERE {held}", (number,))]
    connection.execute(
        f"UPDATE changes SET verdict = 'discarded' WHERE run IN (SELECT number FROM runs WHERE {held})", (number,)
    )
    connection.execute(
        "UPDATE runs SET state = ?, reason = ?, decided_at = ?, settled_after = (SELECT max(number) FROM runs),"
        f" space = NULL WHERE {held}",
        (state, storable(why), time.time(), number),
    )
    connection.execute("UPDATE drafts SET state = ?, run = ? WHERE id = ?", (state, run or None, number))
    return names
