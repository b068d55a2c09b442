"""Records that have a name which somebody chose: workspaces, sessions of agents, and drafts."""

from __future__ import annotations

import os
import time

from fumehood.core.request import ALPINE, HOST, Session, checked_name
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.store.audit import storable
from fumehood.store.database import record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from fumehood.core.report import Run
    from fumehood.store.database import Database
    from fumehood.store.places import Places


# ---- Workspaces: projects in our own data directory, with settings that commands can't change.

DEFAULT = "default"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST = 64
_NETWORKS = ("none", "ask", "full")


class Workspace(Value):
    """One workspace; for empty settings the configuration counts."""

    name: str
    path: str
    root: str = "alpine"
    network: str = ""
    writable: bool | None = None
    environment: tuple[tuple[str, str], ...] = ()

    def settings(self) -> dict[str, Any]:
        """Return the settings that replace those of the person's policy, by name."""
        settings: dict[str, Any] = {
            "root": self.root, "network": self.network or None, "rootfs.writable": self.writable,
            "environment.set": self.environment or None,
        }  # fmt: skip
        return {name: value for name, value in settings.items() if value is not None}


class Workspaces:
    """Workspaces in the database."""

    def __init__(self, database: Database, places: Places) -> None:
        self._database = database
        self._places = places

    def path(self, name: str) -> str:
        """Return the path of a workspace; raises BadRequest if the name is not allowed."""
        if not name or len(name) > _LONGEST or not _LETTERS.issuperset(name) or not name[0].isalnum():
            raise BadRequest(
                f"a workspace can't be called {name!r}",
                hint=f"letters, digits, dots, dashes; a letter or digit first; at most {_LONGEST}",
            )
        return f"{self._places.workspaces}/{name}"

    def find(self, name: str) -> Workspace:
        """Return the workspace of this name; the one named "default" is made when it is first needed."""
        path = self.path(name)
        rows = self._database.rows(
            "SELECT root, network, writable, environment FROM workspaces WHERE name = ?", (name,)
        )
        if not rows:
            if name == DEFAULT:
                return self.create(name)
            raise BadRequest(f"there is no workspace {name}", hint="fumehood workspace list shows them")
        os.makedirs(path, mode=0o700, exist_ok=True)
        root, network, writable, environment = rows[0]
        return Workspace(
            name=name, path=path, root=root, network=network, writable=None if writable is None else bool(writable),
            environment=_unpacked_variables(environment),
        )  # fmt: skip

    def create(self, name: str, **settings: Any) -> Workspace:
        """Make a workspace."""
        workspace = Workspace(name=name, path=self.path(name), **settings)
        if not self._is_new(workspace, settings) and name != DEFAULT:
            raise BadRequest(f"there is a workspace {name} already", hint=f"fumehood workspace set {name} …")
        os.makedirs(workspace.path, mode=0o700, exist_ok=True)
        return workspace

    def _is_new(self, workspace: Workspace, settings: Mapping[str, Any]) -> bool:
        """Record a workspace after checking it; return False if there is one of this name already."""
        self._check(workspace, settings)
        statement = "INSERT OR IGNORE INTO workspaces VALUES (?, ?, ?, ?, ?, ?)"
        return bool(self._database.write(statement, (*_row(workspace), time.time())))

    def ensure(self, name: str, settings: Mapping[str, Any]) -> Workspace:
        """Return the workspace of this name, made or changed so that it has these settings. Safe in parallel."""
        self._is_new(Workspace(name=name, path=self.path(name), **settings), settings)
        workspace = self.find(name)
        return workspace if workspace.replace(**settings) == workspace else self.change(name, settings)

    def change(self, name: str, settings: Mapping[str, Any]) -> Workspace:
        """Give a workspace other settings."""
        workspace = self.find(name).replace(**settings)
        self._check(workspace, settings)
        self._database.write(
            "UPDATE workspaces SET name = ?, root = ?, network = ?, writable = ?, environment = ? WHERE name = ?",
            (*_row(workspace), name),
        )
        return workspace

    def _check(self, workspace: Workspace, settings: Mapping[str, Any]) -> None:
        """Refuse impossible settings, such as a root that does not exist. Alpine may be installed later."""
        from fumehood.rootfs import tree

        root = settings.get("root", "")
        if "/" in root:
            tree.tree_at(os.path.realpath(root))
        elif root not in ("", HOST, ALPINE):
            tree.find(tree.trees_directory(self._places.data), root)
        if workspace.network and workspace.network not in _NETWORKS:
            raise BadRequest(f"there is no network rule {workspace.network!r}", hint=f"one of: {', '.join(_NETWORKS)}")
        pairs: tuple[tuple[Any, Any], ...] = workspace.environment  # programs may pass values of any type
        for name, value in pairs:
            is_text = isinstance(name, str) and isinstance(value, str)
            if not is_text or not name or "=" in name or "\0" in name + value or name[0].isdigit():
                raise BadRequest(f"{name!r} is not a variable", hint="--env NAME=VALUE")

    def all(self) -> list[Workspace]:
        """List the workspaces by name."""
        return [self.find(name) for (name,) in self._database.rows("SELECT name FROM workspaces ORDER BY name")]

    def at(self, project: str) -> Workspace | None:
        """Return the workspace at this project's path, or None if it is another kind of project."""
        above, _, name = project.rpartition("/")
        if above != os.path.realpath(self._places.workspaces):
            return None
        rows = self._database.rows("SELECT 1 FROM workspaces WHERE name = ?", (name,))
        return self.find(name) if rows else None

    def forget(self, name: str) -> None:
        """Drop the record of a workspace; its runs stay in the history."""
        self._database.write("DELETE FROM workspaces WHERE name = ?", (name,))


def _row(workspace: Workspace) -> tuple[Any, ...]:
    return (
        workspace.name,
        workspace.root,
        workspace.network,
        workspace.writable,
        _packed_variables(workspace.environment),
    )


# ---- Sessions: each has the directory where its last command ended, and its environment variables.

_SESSION_COLUMNS = ", ".join(Session._fields)


class Sessions:
    """Sessions in the database; a name belongs to one session, in whatever project it is used."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def find(self, name: str) -> Session | None:
        """Return the session of this name, or None."""
        rows = self.database.rows(f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE name = ?", (checked_name(name),))
        return _session(rows[0]) if rows else None

    def open(self, project: int, name: str) -> Session:
        """Return the session of this name; if there is none, it begins in this project."""
        session = self.find(name)
        if session is None:
            statement = "INSERT OR IGNORE INTO sessions (name, project, started_at) VALUES (?, ?, ?)"
            self.database.write(statement, (name, project, time.time()))
            session = self.find(name)
            assert session is not None
        return session

    def update(self, name: str, change: Callable[[Session], Session]) -> Session:
        """Change a session in one transaction: runs that end at the same time keep each other's changes."""
        with self.database.transaction() as connection:
            (row,) = connection.execute(f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE name = ?", (name,)).fetchall()
            session = change(_session(row))
            connection.execute(
                "UPDATE sessions SET cwd = ?, environment = ? WHERE name = ?",
                (os.fsencode(session.cwd), _packed_variables(session.environment), name),
            )
        return session

    def counts(self) -> list[tuple[Session, int]]:
        """Return every session with how many runs it has, the latest first."""
        columns = ", ".join(f"sessions.{column}" for column in Session._fields)
        rows = self.database.rows(
            f"SELECT {columns}, count(runs.id) FROM sessions LEFT JOIN runs ON runs.session = name"
            " GROUP BY name ORDER BY max(runs.number) DESC, sessions.started_at DESC"
        )
        return [(_session(row[:-1]), row[-1]) for row in rows]


def _session(row: tuple[Any, ...]) -> Session:
    *others, environment = row
    return record_of(Session, (*others, _unpacked_variables(environment)))


def _packed_variables(variables: Iterable[tuple[str, str]]) -> bytes:
    """Write variables as they are stored: NAME=value, joined by NUL."""
    return b"\0".join(os.fsencode(f"{name}={value}") for name, value in variables)


def _unpacked_variables(stored: bytes) -> tuple[tuple[str, str], ...]:
    """Read variables as they are stored."""
    parts = [os.fsdecode(each).partition("=") for each in stored.split(b"\0") if each]
    return tuple((name, value) for name, _, value in parts)


# ---- Drafts: named lines of held runs beside a project.

OPEN, APPLIED, DISCARDED = "open", "applied", "discarded"
MAKING = "making"  # the frozen copy of the project is not complete yet


class DraftRecord(Value):
    """One draft, as it is recorded."""

    id: int
    project: int
    name: str
    created_at: float
    state: str = OPEN
    base: int | None = None  # the draft whose frozen copy of the project it is based on
    run: str | None = None  # the run that applies it


_COLUMNS = ", ".join(DraftRecord._fields)


class Drafts:
    """Drafts in the database; the open drafts of a project have different names."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def find_open(self, project: int, name: str) -> DraftRecord | None:
        """Return the open draft of this name, or None."""
        return self._first("project = ? AND name = ? AND state = 'open'", project, name)

    def find(self, project: int, name: str) -> DraftRecord:
        """Return the open draft of this name; raises BadRequest if there is none."""
        draft = self.find_open(project, name)
        if draft is None:
            checked_name(name, "draft")  # otherwise the hint would offer a name that is not allowed
            raise BadRequest(f"there is no draft {name}", hint=f"fumehood draft new {name}, or fumehood draft list")
        return draft

    def new(self, project: int, name: str, *, base: int | None = None, state: str = OPEN) -> DraftRecord:
        """Begin a draft."""
        checked_name(name, "draft")
        if self.find_open(project, name) is not None:
            raise _name_is_taken(name)
        statement = "INSERT OR IGNORE INTO drafts (project, name, created_at, base, state) VALUES (?, ?, ?, ?, ?)"
        if not self.database.write(statement, (project, name, time.time(), base, state)):
            raise _name_is_taken(name)
        draft = self._first("project = ? AND name = ? AND state = ? ORDER BY id DESC LIMIT 1", project, name, state)
        assert draft is not None, "it was just written"
        return draft

    def begin(self, project: int, name: str) -> DraftRecord:
        """Return the open draft of this name; it is begun if there is none. Safe to call in parallel."""
        checked_name(name, "draft")
        statement = "INSERT OR IGNORE INTO drafts (project, name, created_at) VALUES (?, ?, ?)"
        self.database.write(statement, (project, name, time.time()))
        return self.find(project, name)

    def finish_making(self, draft: DraftRecord) -> DraftRecord:
        """Open a draft whose own frozen copy of the project is complete now."""
        statement = "UPDATE OR IGNORE drafts SET base = id, state = 'open' WHERE id = ?"
        if not self.database.write(statement, (draft.id,)):
            raise _name_is_taken(draft.name)
        return draft.replace(base=draft.id, state=OPEN)

    def forget_unmade(self, project: int) -> None:
        """Forget a project's drafts whose frozen copies were never finished; the project's lock is held."""
        self.database.write("DELETE FROM drafts WHERE project = ? AND state = 'making'", (project,))

    def bases_in_use(self) -> set[int]:
        """Return the numbers of the drafts whose frozen copies are needed or being made."""
        query = "SELECT coalesce(base, id) FROM drafts WHERE state = 'making' OR state = 'open' AND base IS NOT NULL"
        return {number for (number,) in self.database.rows(query)}

    def record_again(self, project: int, number: int, name: str) -> None:
        """Record a draft again that is known only from the records of its runs."""
        statement = "INSERT OR IGNORE INTO drafts (id, project, name, created_at) VALUES (?, ?, ?, ?)"
        self.database.write(statement, (number, project, name, time.time()))

    def open_drafts(self, project: int) -> list[DraftRecord]:
        """Return the open drafts of a project, the earliest first."""
        query = f"SELECT {_COLUMNS} FROM drafts WHERE project = ? AND state = 'open' ORDER BY id"
        return self.database.records(DraftRecord, query, (project,))

    def state_id(self, draft: DraftRecord, besides: str = "") -> str:
        """Return an id of a draft's state: it changes with each event of one of its runs, except `besides`."""
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
            raise _name_is_taken(name)
        return draft.replace(name=name)

    def being_applied_by(self, run: str) -> DraftRecord | None:
        """Return the open draft that a run is applying, or None."""
        return self._first("run = ? AND state = 'open'", run)

    def note_run(self, draft: DraftRecord, run: str) -> None:
        """Record which run is about to apply a draft."""
        self.database.write("UPDATE drafts SET run = ? WHERE id = ?", (run, draft.id), durable=True)

    def close(self, draft: DraftRecord, state: str, why: str) -> list[str]:
        """Settle a draft and all its held runs in one transaction; return those runs: their layers can be removed."""
        with self.database.transaction(durable=True) as connection:
            return _close(connection, draft.id, state, "", why)

    def is_open(self, number: int | None) -> bool:
        """Return True if a draft is neither applied nor discarded."""
        return bool(self.database.rows("SELECT 1 FROM drafts WHERE id = ? AND state = 'open'", (number,)))

    def has_running_command(self, draft: DraftRecord) -> bool:
        """Return True if a command is running in a draft."""
        query = "SELECT 1 FROM runs WHERE draft = ? AND state IN ('running', 'applying', 'settling') LIMIT 1"
        return bool(self.database.rows(query, (draft.id,)))

    def is_base_shared(self, draft: DraftRecord) -> bool:
        """Return True if another open draft is based on the same frozen copy."""
        query = "SELECT 1 FROM drafts WHERE base = ? AND id != ? AND state = 'open' LIMIT 1"
        return bool(self.database.rows(query, (draft.base, draft.id)))

    def _first(self, condition: str, *values: object) -> DraftRecord | None:
        query = f"SELECT {_COLUMNS} FROM drafts WHERE {condition}"
        return next(iter(self.database.records(DraftRecord, query, values)), None)


def _name_is_taken(name: str) -> BadRequest:
    return BadRequest(f"there is a draft {name} already", hint=f"fumehood draft show {name}")


def close_applied(connection: sqlite3.Connection, run: Run) -> None:
    """Settle the draft that a run has applied, in the transaction that records the run."""
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
