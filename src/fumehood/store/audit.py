"""The audit trail: who asked for what, who decided what, and the outcome; kept permissions and connections, too.

Events are only ever added: the database refuses to change or remove one. An event is added in the same transaction as
the change of state that it reports, so neither exists without the other.
"""

from __future__ import annotations

import os
import pwd
import time

from fumehood.core.report import Connection, first_names
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.store.database import record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from fumehood.core.changes import Change
    from fumehood.core.questions import Key, Question
    from fumehood.store.database import Database

ASKED, DECIDED, RECOVERED, CLEANED = "asked", "decided", "recovered", "cleaned"
REFUSED = "refused"
PYTHON, CLI, HOOK, MCP, WEB = "python", "cli", "hook", "mcp", "web"

_COLUMNS = ("at", "run", "project", "act", "uid", "user", "face", "agent", "detail")
_INSERT = f"INSERT INTO events ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_NAMED = 20  # paths named in one event
# The variables by which agents identify themselves to the programs that they start.
_AGENTS = (
    ("CLAUDECODE", "claude-code"), ("CODEX_THREAD_ID", "codex"), ("CODEX_SANDBOX", "codex"),
    ("GEMINI_CLI", "gemini-cli"), ("CURSOR_AGENT", "cursor"),
)  # fmt: skip


class Event(Value):
    """One event, and who caused it: a user, through one of Fumehood's faces, perhaps for an agent."""

    at: float
    run: str  # empty if it concerns no run
    act: str
    uid: int
    user: str
    face: str
    agent: str
    detail: str


_EVENTS = f"SELECT {', '.join(Event._fields)} FROM events"


class Audit:
    """The audit trail, and the user, face and agent for whom this process adds events."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.face = PYTHON
        self.agent = agent_of(os.environ)
        self._user: tuple[int, str] | None = None

    def add(
        self, connection: sqlite3.Connection, run: str, act: str, detail: str = "", *, project: int | None = None
    ) -> None:
        """Add an event in an open transaction."""
        uid, user = self._current_user()
        values = (time.time(), run, project, act, uid, user, self.face, self.agent, storable(detail))
        connection.execute(_INSERT, values)

    def add_event(self, run: str, act: str, detail: str = "", *, project: int | None = None) -> None:
        """Add an event in its own transaction."""
        with self.database.transaction() as connection:
            self.add(connection, run, act, detail, project=project)

    def events_of(self, runs: Sequence[str]) -> dict[str, list[Event]]:
        """Return the events of some runs, the earliest first."""
        events: dict[str, list[Event]] = {run: [] for run in runs}
        for row in self.database.rows_for(f"{_EVENTS} WHERE run IN (?) ORDER BY n", runs):
            event = record_of(Event, row)
            events[event.run].append(event)
        return events

    def cleanings(self, runs: Sequence[str], project: int | None = None) -> dict[str, list[Event]]:
        """Return the cleanings since the earliest of some runs; each is listed under the last of them before it."""
        of_project = "" if project is None else f" AND (project IS NULL OR project = {int(project)})"
        cleaned = f"{_EVENTS} WHERE run = '' AND act = '{CLEANED}'{of_project}"
        began = sorted(
            self.database.rows_for("SELECT run, min(n) FROM events WHERE run IN (?) GROUP BY run", runs),
            key=lambda row: row[1],
        )
        events: dict[str, list[Event]] = {}
        for following, (run, first) in enumerate(began, start=1):
            until = f" AND n < {began[following][1]}" if following < len(began) else ""
            events[run] = self.database.records(Event, f"{cleaned} AND n > {first}{until} ORDER BY n")
        return events

    def _current_user(self) -> tuple[int, str]:
        """Return the id and the name of the user; kept, because the look-up takes longer than writing the event."""
        uid = os.getuid()
        if self._user is not None and self._user[0] == uid:
            return self._user
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = ""
        sudo_user = os.environ.get("SUDO_USER", "") if uid == 0 else ""
        self._user = uid, f"{name} (sudo by {sudo_user})" if sudo_user else name
        return self._user


def storable(text: str) -> str:
    """Make a text storable in the database: bytes that are not UTF-8 become escape sequences."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def agent_of(environment: Mapping[str, str]) -> str:
    """Return the name of the agent that started this process, if its environment names one."""
    agent = environment.get("FUMEHOOD_AGENT") or environment.get("AI_AGENT")
    return agent or next((agent for variable, agent in _AGENTS if environment.get(variable)), "")


def count_verdicts(changes: Sequence[Change]) -> str:
    """Say how many changes have each verdict."""
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.verdict] = counts.get(change.verdict, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def first_paths(changes: Sequence[Change]) -> str:
    """Return the paths of the first changes, in words."""
    return first_names([change.path for change in changes], _NAMED)


# ---- A run's network connections: one row for each, the refused ones too.

_NAMES = ", ".join(f"connections.{column}" for column in Connection._fields)
_INSERT_CONNECTION = (
    f"INSERT OR REPLACE INTO connections (run, n, {', '.join(Connection._fields)})"
    f" SELECT number, ?{', ?' * len(Connection._fields)} FROM runs WHERE id = ?"
)


def write_connections(connection: sqlite3.Connection, run: str, connections: Sequence[Connection]) -> None:
    """Record the connections of a run."""
    rows = [(n, *each.fields().values(), run) for n, each in enumerate(connections)]
    connection.executemany(_INSERT_CONNECTION, rows)


def read_connections(database: Database, run: str) -> tuple[Connection, ...]:
    """Return the connections of a run in their order."""
    query = f"SELECT {_NAMES} FROM connections JOIN runs ON runs.number = run WHERE id = ? ORDER BY n"
    return tuple(database.records(Connection, query, (run,)))


# ---- Permissions that a person chose to keep.

class Grant(Value):
    """One kept answer: the kind of question, the project, what was asked for, and "allow" or "deny"."""

    id: int
    what: str
    project: str
    target: str
    answer: str
    kept_at: float


class Missed(Value):
    """A question that nobody was there to answer, and how the person can allow it for the next time."""

    id: int
    at: float
    what: str
    project: str
    target: str  # what would have to be allowed: hosts, a path, a run
    text: str
    command: str
    directory: str
    ahead: str


_MOST_MISSED = 100
IN_SESSION = "session "  # in place of a project's path, before a session's name: the grant is for that session


class Grants:
    """The kept answers, and the missed questions, in the database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def find(self, key: Key) -> str | None:
        """Return the kept answer, allow or deny, or None."""
        rows = self.database.rows("SELECT answer FROM grants WHERE what = ? AND project = ? AND target = ?", _row(key))
        return rows[0][0] if rows else None

    def allowed(self, project: str, session: str) -> list[tuple[str, str]]:
        """Return what the commands of a project and session are allowed, as pairs of a kind and a target."""
        rows = self.database.rows(
            # The value of questions.ALLOW, written here to save the import.
            "SELECT what, target FROM grants WHERE answer = 'allow' AND project IN (?, ?) ORDER BY id",
            (os.fsencode(project), os.fsencode(IN_SESSION + session)),
        )
        return [(what, os.fsdecode(target)) for what, target in rows]

    def keep(self, key: Key, answer: str) -> None:
        """Keep an answer; it replaces an earlier one to the same question."""
        self.database.write(
            "INSERT INTO grants (what, project, target, answer, kept_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (what, project, target) DO UPDATE SET answer = excluded.answer, kept_at = excluded.kept_at",
            (*_row(key), answer, time.time()), durable=True,
        )  # fmt: skip

    def note_missed(self, question: Question) -> None:
        """Note a question that nobody answered; it replaces an earlier note of the same question."""
        key = (question.what, question.project, question.wanted)
        values = (storable(question.text), storable(question.command), os.fsencode(question.directory))
        with self.database.transaction() as connection:
            connection.execute(*_deletion_of(question))
            connection.execute("DELETE FROM missed WHERE id <= (SELECT max(id) FROM missed) - ?", (_MOST_MISSED,))
            connection.execute(
                "INSERT INTO missed (at, what, project, target, text, command, directory, ahead)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (time.time(), *_row(key), *values, _way_to_allow(question)),
            )

    def forget_asked(self, question: Question) -> None:
        """Forget that a question was missed, because somebody has answered it now."""
        self.database.write(*_deletion_of(question))

    def missed(self, project: str = "") -> list[Missed]:
        """Return the missed questions, the latest first; of one project, or of all."""
        query = f"SELECT {', '.join(Missed._fields)} FROM missed WHERE ? IN (x'', project) ORDER BY id DESC"
        return self.database.records(Missed, query, (os.fsencode(project),))

    def forget_missed(self, number: int) -> bool:
        """Forget a missed question; return False if there is none of this number."""
        return bool(self.database.write("DELETE FROM missed WHERE id = ?", (number,)))

    def all(self) -> list[Grant]:
        """Return every kept answer, the oldest first."""
        return self.database.records(Grant, f"SELECT {', '.join(Grant._fields)} FROM grants ORDER BY id")

    def revoke(self, number: int) -> Grant:
        """Forget a kept answer, so that the question is asked again."""
        grant = next((each for each in self.all() if each.id == number), None)
        if grant is None:
            raise BadRequest(f"there is no grant {number}", hint="fumehood grants list shows them")
        self.database.write("DELETE FROM grants WHERE id = ?", (number,), durable=True)
        return grant


def _deletion_of(question: Question) -> tuple[str, tuple[str | bytes, ...]]:
    values = question.what, os.fsencode(question.project), storable(question.text), _way_to_allow(question)
    return "DELETE FROM missed WHERE what = ? AND project = ? AND text = ? AND ahead = ?", values


def _way_to_allow(question: Question) -> str:
    return storable(question.remedy or question.ahead)


def _row(key: Key) -> tuple[str, bytes, bytes]:
    what, project, target = key
    return what, os.fsencode(project), os.fsencode(target)
