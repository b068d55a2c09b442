"""The audit trail of a run's network: a row a connection, or a refusal."""

from __future__ import annotations

from fumehood.core.connection import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from fumehood.store.database import Database

_COLUMNS = (
    "host", "port", "protocol", "allowed", "reason", "address", "started_at", "duration_s", "sent", "received", "count",
)  # fmt: skip
_NAMES = ", ".join(f"connections.{column}" for column in _COLUMNS)
_INSERT = (
    f"INSERT OR REPLACE INTO connections (run, n, {', '.join(_COLUMNS)})"
    f" SELECT number, ?{', ?' * len(_COLUMNS)} FROM runs WHERE id = ?"
)


def write(connection: sqlite3.Connection, run: str, found: Sequence[Connection]) -> None:
    """Record what a run connected to."""
    connection.executemany(_INSERT, [(n, *each.fields().values(), run) for n, each in enumerate(found)])


def read(database: Database, run: str) -> tuple[Connection, ...]:
    """Return what a run connected to, in the order it did."""
    rows = database.rows(
        f"SELECT {_NAMES} FROM connections JOIN runs ON runs.number = run WHERE id = ? ORDER BY n", (run,)
    )
    named = (dict(zip(_COLUMNS, row, strict=True)) for row in rows)
    return tuple(Connection(**{**each, "allowed": bool(each["allowed"])}) for each in named)
