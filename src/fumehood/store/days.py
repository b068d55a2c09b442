"""The days on which Fumehood ran, in the order in which they were recorded.

What is removed by itself is old by these: a clock that is wrong once adds one day, however far it jumped.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    from fumehood.store.database import Database

_DAY_S = 86_400


def day_of(moment: float) -> str:
    """Name the local day of a moment, YY-MM-DD."""
    return time.strftime("%y-%m-%d", time.localtime(moment))


def note_day(connection: sqlite3.Connection, moment: float | None = None) -> None:
    """Record that something was done on this day, in a transaction that is under way."""
    connection.execute(
        "INSERT OR IGNORE INTO days (day, first_run) SELECT ?, coalesce(max(number), 0) + 1 FROM runs",
        (day_of(time.time() if moment is None else moment),),
    )


class Days:
    """The days that are recorded at one moment, and how old things are by them."""

    def __init__(self, database: Database) -> None:
        rows = database.rows("SELECT n, day, first_run FROM days ORDER BY n")
        self._numbers = [number for number, _, _ in rows]
        self._days = [day for _, day, _ in rows]
        self._first_runs: dict[str, int] = {day: first for _, day, first in rows}

    def first_run(self, day: str) -> int:
        """Return the number of the first run of a day; 0 where that was not recorded."""
        return self._first_runs.get(day, 0)

    def since(self, number: int) -> int:
        """Return how many days were recorded after the one of this number."""
        return sum(each > number for each in self._numbers)

    def since_day(self, day: str) -> int:
        """Return how many days were recorded after one; where that one was not, those that are later by name."""
        if day in self._days:
            return len(self._days) - 1 - self._days.index(day)
        return sum(each > day for each in self._days)

    def moment(self, days: int, now: float) -> float:
        """Return the moment before which a file that no record names is older than some days.

        0.0, so that nothing is, while too few days were recorded.
        """
        if days == 0:
            return now
        if len(self._days) <= days:
            return 0.0
        return min(now - days * _DAY_S, time.mktime(time.strptime(self._days[-1 - days], "%y-%m-%d")))
