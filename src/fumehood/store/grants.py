"""Permissions that a person chose to keep."""

from __future__ import annotations

import os
import time

from fumehood.core.permission import Key
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.store.database import Database


class Grant(Value):
    """One kept answer: what it is about, the project it holds in, to what, and whether it allows or denies."""

    id: int
    what: str
    project: str
    target: str
    answer: str
    kept_at: float


class Grants:
    """The kept answers in the database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def find(self, key: Key) -> str | None:
        """Return the kept answer, allow or deny, or None."""
        rows = self.database.rows("SELECT answer FROM grants WHERE what = ? AND project = ? AND target = ?", _row(key))
        return rows[0][0] if rows else None

    def keep(self, key: Key, answer: str) -> None:
        """Keep an answer; a later one takes the place of an earlier."""
        with self.database.transaction(durable=True) as connection:
            connection.execute(
                "INSERT INTO grants (what, project, target, answer, kept_at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (what, project, target)"
                " DO UPDATE SET answer = excluded.answer, kept_at = excluded.kept_at",
                (*_row(key), answer, time.time()),
            )

    def all(self) -> list[Grant]:
        """Return every kept answer, the oldest first."""
        rows = self.database.rows("SELECT id, what, project, target, answer, kept_at FROM grants ORDER BY id")
        return [
            Grant(
                id=number, what=what, project=os.fsdecode(project), target=os.fsdecode(target), answer=answer,
                kept_at=kept_at,
            )
            for number, what, project, target, answer, kept_at in rows
        ]  # fmt: skip

    def revoke(self, number: int) -> Grant:
        """Forget a kept answer, so that it is asked again."""
        found = [grant for grant in self.all() if grant.id == number]
        if not found:
            raise BadRequest(f"there is no grant {number}", hint="fumehood grants list shows them")
        with self.database.transaction(durable=True) as connection:
            connection.execute("DELETE FROM grants WHERE id = ?", (number,))
        return found[0]


def _row(key: Key) -> tuple[str, bytes, bytes]:
    what, project, target = key
    return what, os.fsencode(project), os.fsencode(target)
