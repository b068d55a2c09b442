"""The sessions that are remembered: where each one's last command ended, and the variables it keeps."""

from __future__ import annotations

import os
import time

from fumehood.core.request import Session, checked_name
from fumehood.store.database import packed, unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fumehood.store.database import Database

_SESSION_COLUMNS = "name, project, started_at, cwd, environment"


class Sessions:
    """Sessions in the database; a name is one session's, wherever it is used."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def find(self, name: str) -> Session | None:
        """Return the session of a name, if there is one."""
        rows = self.database.rows(f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE name = ?", (checked_name(name),))
        return _session(rows[0]) if rows else None

    def open(self, project: int, name: str) -> Session:
        """Return the session of a name, which begins in this project if there is none yet."""
        session = self.find(name)
        if session is None:
            statement = "INSERT OR IGNORE INTO sessions (name, project, started_at) VALUES (?, ?, ?)"
            self.database.write(statement, (name, project, time.time()))
            session = self.find(name)
            assert session is not None
        return session

    def update(self, name: str, change: Callable[[Session], Session]) -> Session:
        """Change what is remembered; runs of one session that end at once don't lose each other's word."""
        with self.database.transaction() as connection:
            (row,) = connection.execute(f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE name = ?", (name,)).fetchall()
            session = change(_session(row))
            connection.execute(
                "UPDATE sessions SET cwd = ?, environment = ? WHERE name = ?",
                (os.fsencode(session.cwd), packed(session.environment), name),
            )
        return session

    def counts(self, project: int | None = None) -> list[tuple[Session, int]]:
        """Return every session with how many runs it has, the latest first."""
        mine = "" if project is None else f"WHERE sessions.project = {int(project)}"
        columns = ", ".join(f"sessions.{column}" for column in _SESSION_COLUMNS.split(", "))
        rows = self.database.rows(
            f"SELECT {columns}, count(runs.id) FROM sessions LEFT JOIN runs ON runs.session = name {mine}"
            " GROUP BY name ORDER BY max(runs.number) DESC, sessions.started_at DESC"
        )
        return [(_session(row[:-1]), row[-1]) for row in rows]


def _session(row: tuple[Any, ...]) -> Session:
    name, project, started_at, cwd, environment = row
    return Session(
        name=name, project=project, started_at=started_at, cwd=os.fsdecode(cwd), environment=unpacked(environment)
    )
