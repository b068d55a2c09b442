"""The record of a project's files: what is known of each, and what it can be restored from."""

from __future__ import annotations

import os
import time

from fumehood.core.changes import ABSENT, APPLIED, Change
from fumehood.core.value import Value
from fumehood.store import records
from fumehood.store.database import CHANGES, OF_CHANGES, record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from fumehood.store.database import Database

    Noted = tuple[int, bytes, str, int, int, bytes]
    Seen = tuple[bytes, str, int, int]
    Place = tuple[bytes, bytes]
    Due = tuple[int, str, float, int]

# Rows in one statement: each costs half of what it would in a statement of its own, and SQLite's oldest
# limit on values in a statement, 999, is kept.
_ROWS = 100
_LARGEST = (1 << 63) - 1  # what the database has room for
_LISTED_AT_ONCE = 500  # runs
SOURCES = 20  # runs named as the sources of one file in a list of many
_NOTED = ("id", "path", "kind", "size", "modified_ns", "last_approved_copy_path")
_SEEN = ("path", "kind", "size", "modified_ns")
_SET = (
    "kind = excluded.kind, size = excluded.size, modified_ns = excluded.modified_ns,"
    " is_deleted = excluded.is_deleted, recorded_at = excluded.recorded_at,"
    " last_run = max(coalesce(excluded.last_run, last_run), coalesce(last_run, excluded.last_run))"
)
_PAST = (
    "SELECT runs.id, runs.number, runs.act, runs.command, runs.layer, runs.started_at, projects.path, runs.roots,"
    f" {OF_CHANGES} FROM changes JOIN runs ON runs.number = changes.run JOIN projects ON projects.id = runs.project"
)
_COLUMNS = 8  # of the run, before those of the change
_ENTRIES = _COLUMNS + CHANGES.index("entries")
_RECORD = (
    "SELECT files.id, root, path, kind, size, modified_ns, files.last_approved_copy_path, is_deleted, needs_approval,"
    " runs.id, coalesce(runs.day, 0) FROM files LEFT JOIN runs ON number = last_run"
)


class Record(Value):
    """One file of a project, as it was last seen; `is_deleted` tells that a run deleted it."""

    id: int
    root: str
    path: str
    kind: str
    size: int
    modified_ns: int
    last_approved_copy_path: str  # below the state directory
    is_deleted: bool
    needs_approval: bool
    last_run: str | None
    last_day: int  # the number of the recorded day of that run


class Past(Value):
    """One run's change of a path, and the layer that may hold what was there before."""

    run: str
    number: int
    act: str
    command: str
    layer: str
    started_at: float
    root: str
    change: Change


class ToRecord:
    """What is to be recorded of one root after a run: files with new backups, and others, there or deleted."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.noted: list[Noted] = []
        self.noted_deleted: list[Noted] = []
        self.seen: list[Seen] = []
        self.seen_deleted: list[Seen] = []


class Files:
    """The records of files in the database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def numbers(self, project: int, root: bytes, seen: Sequence[Seen]) -> dict[bytes, int]:
        """Return the numbers of the records of these files; one that has no record gets one now.

        It is kept before anything is named after it: should we die, its number is its own.
        """
        paths = [each[0] for each in seen]
        query = "SELECT path, id FROM files WHERE project = ? AND root = ? AND path IN (?)"
        numbers = dict(self.database.rows_for(query, paths, project, root))
        fresh = [each for each in seen if each[0] not in numbers]
        if fresh:
            with self.database.transaction() as connection:
                ((last,),) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'files'")
                _learn(connection, project, root, fresh, 0.0, "", are_deleted=False)
            # They are given in order, and never twice.
            numbers.update(zip((each[0] for each in fresh), range(last + 1, last + 1 + len(fresh)), strict=True))
        return numbers

    def learn(self, project: int, root: bytes, seen: Sequence[Seen], since: float) -> int:
        """Record files of one root as they were seen: path, kind, size, time; returns how many rows that took.

        A record written after the look at the files began (`since`) knows better and stays.
        """
        if not seen:
            return 0
        with self.database.transaction() as connection:
            return _learn(connection, project, root, seen, since, "", are_deleted=False)

    def record(self, project: int, run: str, roots: Iterable[ToRecord]) -> None:
        """Record all that is to be recorded after a run, in one transaction.

        That is the latest word on those files, whatever the clock says: the project's lock is held.
        """
        now = time.time()
        with self.database.transaction() as connection:
            for each in roots:
                for noted, are_deleted in ((each.noted, False), (each.noted_deleted, True)):
                    conflict = (
                        f"(id) DO UPDATE SET {_SET}, last_approved_copy_path = CASE excluded.last_approved_copy_path"
                        " WHEN x'' THEN last_approved_copy_path ELSE excluded.last_approved_copy_path END"
                    )
                    _insert(connection, _NOTED, noted, (project, each.root, run, now, are_deleted), conflict)
                for seen, are_deleted in ((each.seen, False), (each.seen_deleted, True)):
                    _learn(connection, project, each.root, seen, now, run, are_deleted=are_deleted, is_latest=True)

    def due(self, project: int) -> list[Due]:
        """Return what is due, in order: number, run, when that was settled, whether its backups may be begun."""
        query = "SELECT n, run, at, begun FROM files_due WHERE project = ? ORDER BY n"
        return [(number, run, at, begun) for number, run, at, begun in self.database.rows(query, (project,))]

    def is_due(self, project: int) -> bool:
        """Return True if anything is due."""
        return bool(self.database.rows("SELECT 1 FROM files_due WHERE project = ? LIMIT 1", (project,)))

    def begin_due(self, numbers: Iterable[int]) -> None:
        """Remember that backups of what is due may be there from now on."""
        self.database.write_many("UPDATE files_due SET begun = 1 WHERE n = ?", [(number,) for number in numbers])

    def drop_due(self, numbers: Iterable[int]) -> None:
        """Forget what was due."""
        self.database.write_many("DELETE FROM files_due WHERE n = ?", [(number,) for number in numbers])

    def wait(self, project: int, places: Iterable[Place]) -> None:
        """Record that held changes wait on files, or on what would come to be."""
        self.database.write_many(
            "INSERT INTO files (root, path, kind, size, modified_ns, project, recorded_at, needs_approval)"
            f" VALUES (?, ?, '{ABSENT}', 0, 0, {int(project)}, {time.time()!r}, 1)"
            " ON CONFLICT (project, root, path) DO UPDATE SET needs_approval = 1",
            sorted(places),  # as the index is: in any other order, many of them write each of its pages many times
        )

    def wait_no_more(self, project: int, places: Iterable[Place]) -> None:
        """Record that nothing waits on these files; one that would only have come to be is forgotten."""
        mine = "project = ? AND root = ? AND path = ?"
        with self.database.transaction() as connection:
            values = [(project, *place) for place in sorted(places)]
            connection.executemany(f"UPDATE files SET needs_approval = 0 WHERE {mine}", values)
            connection.executemany(f"DELETE FROM files WHERE {mine} AND kind = '{ABSENT}'", values)

    def is_waiting(self, project: int) -> bool:
        """Return True if held changes wait on any file."""
        return bool(self.database.rows("SELECT 1 FROM files WHERE project = ? AND needs_approval LIMIT 1", (project,)))

    def waiting(self, project: int) -> set[Place]:
        """Return the places of all files that held changes wait on."""
        query = "SELECT root, path FROM files WHERE project = ? AND needs_approval"
        return {(root, path) for root, path in self.database.rows(query, (project,))}

    def last_number(self) -> int:
        """Return the highest number given to a record so far."""
        ((last,),) = self.database.rows("SELECT seq FROM sqlite_sequence WHERE name = 'files'")
        return int(last)

    def count(self, project: int, after: int = 0) -> int:
        """Return how many records a project has, or only those with numbers above one."""
        query = "SELECT count(*) FROM files WHERE id > ? AND project = ?"
        return int(self.database.rows(query, (after, project))[0][0])

    def present(self, project: int, root: bytes, size: int) -> Iterator[list[tuple[int, bytes]]]:
        """Yield numbers and paths of the files that should be there, in order, some at a time."""
        last = b""
        while True:
            query = (
                "SELECT id, path FROM files WHERE project = ? AND root = ? AND path > ?"
                " AND NOT is_deleted AND NOT needs_approval ORDER BY path LIMIT ?"
            )
            rows = self.database.rows(query, (project, root, last, size))
            if not rows:
                return
            yield [(number, path) for number, path in rows]
            last = rows[-1][1]

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove records; never one that is marked deleted, or that a held change waits on."""
        statement = "DELETE FROM files WHERE id = ? AND NOT is_deleted AND NOT needs_approval"
        self.database.write_many(statement, [(number,) for number in numbers])

    def set_copies(self, copies: Iterable[tuple[int, bytes]]) -> None:
        """Record the latest daily backup of files, by number; empty where there is none."""
        statement = "UPDATE files SET last_approved_copy_path = ? WHERE id = ?"
        self.database.write_many(statement, [(copy, n) for n, copy in copies])

    def by_numbers(self, numbers: Sequence[int]) -> list[tuple[int, Record]]:
        """Return records by number, each with its project's."""
        query = _RECORD.replace("SELECT", "SELECT files.project,", 1) + " WHERE files.id IN (?)"
        return [(row[0], record_of(Record, row[1:])) for row in self.database.rows_for(query, numbers)]

    def at(self, project: int, root: str, path: str) -> Record | None:
        """Return the record of one path."""
        query = f"{_RECORD} WHERE files.project = ? AND root = ? AND path = ?"
        values = project, os.fsencode(root), os.fsencode(path)
        return next(iter(self.database.records(Record, query, values)), None)

    def below(self, project: int, root: str, path: str = "") -> list[Record]:
        """Return the records of everything below a directory of a root, in order."""
        where, values = "files.project = ? AND root = ?", [project, os.fsencode(root)]
        if path:
            # Whatever begins with the path and a slash; the letter after the slash is a 0.
            where += " AND path > ? AND path < ?"
            values += [os.fsencode(f"{path}/"), os.fsencode(f"{path}0")]
        return self.database.records(Record, f"{_RECORD} WHERE {where} ORDER BY path", values)

    def page(self, project: int, words: str, after: str, *, most: int) -> tuple[list[Record], bool]:
        """Return files of a project that runs changed or want to change, by path, and whether there are more."""
        shown = self.database.records(
            Record, f"{_RECORD} WHERE files.project = ? AND (last_run IS NOT NULL OR is_deleted OR needs_approval)"
            " AND instr(path, ?) AND path > ? ORDER BY path LIMIT ?",
            (project, os.fsencode(words), os.fsencode(after), most + 1),
        )  # fmt: skip
        return shown[:most], len(shown) > most

    def past(self, project: int, root: str, path: str) -> list[Past]:
        """Return the changes of one path that were applied, the latest first."""
        directory, _, name = path.rpartition("/")
        rows = self.database.rows(
            # By the directory: the plus keeps SQLite from going through all runs of the project.
            f"{_PAST} WHERE +runs.project = ? AND changes.directory = ? ORDER BY changes.run DESC",
            (project, os.fsencode(directory)),
        )
        ending = os.fsencode(f"/{name}\0")
        pasts: list[Past] = []
        for row in rows:
            if ending not in row[_ENTRIES]:
                continue  # very much may have changed in one directory: it is read only where this path is there
            *run, home, joined = row[:_COLUMNS]
            roots = records.roots_of(os.fsdecode(home), joined)
            pasts += (
                record_of(Past, (*run, root, change))
                for change in records.changes_of_rows([row[_COLUMNS:]])
                if (change.verdict, change.path, roots[change.root]) == (APPLIED, path, root)
            )
        return pasts

    def sources(self, project: int, home: str) -> dict[tuple[str, str], tuple[list[str], int]]:
        """Return for each root and path the runs whose layers should hold what was there before.

        The latest of them, and how many there are in all; `home` is where the project is now.
        """
        while self._list_versions(project):
            pass
        runs: dict[Place, list[str]] = {}
        rows = self.database.rows(
            "SELECT root, path, id FROM runs JOIN versions ON run = number"
            " WHERE project = ? AND layer != '' AND state IN ('applied', 'held') ORDER BY number DESC",
            (project,),
        )
        for root, path, run in rows:
            runs.setdefault((root, path), []).append(run)
        return {
            (os.fsdecode(root) or home, os.fsdecode(path)): (names[:SOURCES], len(names))
            for (root, path), names in runs.items()
        }

    def _list_versions(self, project: int) -> bool:
        """List what some runs replaced that were settled since the last time; tell whether there were any.

        A row a path would cost a run more than its swaps, so that is done when somebody asks for it.
        """
        query = (
            "SELECT number, roots FROM runs WHERE project = ? AND NOT is_listed AND counts != ''"
            f" AND state NOT IN ('running', 'applying', 'settling') LIMIT {_LISTED_AT_ONCE}"
        )
        if not self.database.rows(query, (project,)):
            return False
        with self.database.transaction() as connection:
            for number, joined in connection.execute(query, (project,)).fetchall():
                roots = [b"", *joined.split(b"\0")[1:]]
                rows = connection.execute(f"SELECT {OF_CHANGES} FROM changes WHERE run = ?", (number,)).fetchall()
                connection.execute("DELETE FROM versions WHERE run = ?", (number,))
                connection.executemany(
                    "INSERT INTO versions VALUES (?, ?, ?)",
                    (
                        (number, roots[change.root], os.fsencode(change.path))
                        for row in rows
                        for change in records.changes_of_row(*row)
                        if change.verdict == APPLIED and change.before is not None
                    ),
                )
                connection.execute("UPDATE runs SET is_listed = 1 WHERE number = ?", (number,))
        return True


def _learn(
    connection: sqlite3.Connection, project: int, root: bytes, seen: Sequence[Seen], since: float, run: str, *,
    are_deleted: bool, is_latest: bool = False,
) -> int:  # fmt: skip
    conflict = (
        f"(project, root, path) DO UPDATE SET {_SET} WHERE ({int(is_latest)} OR recorded_at < {since!r})"
        " AND (is_deleted != excluded.is_deleted"
        " OR size != excluded.size OR modified_ns != excluded.modified_ns OR kind != excluded.kind"
        " OR excluded.last_run > coalesce(last_run, 0))"
    )
    return _insert(connection, _SEEN, seen, (project, root, run, since, are_deleted), conflict)


def _insert(
    connection: sqlite3.Connection, columns: Sequence[str], rows: Sequence[Noted] | Sequence[Seen],
    common: tuple[int, bytes, str, float, bool], conflict: str,
) -> int:  # fmt: skip
    """Write rows, and return how many that took; `common` are project, root, run, time, and whether they are deleted.

    A command may give a file a time that the database has no room for; the nearest that fits is recorded.
    """
    if not rows:
        return 0
    project, root, run, at, are_deleted = common
    numbers = connection.execute("SELECT number FROM runs WHERE id = ?", (run,)).fetchall()
    # What is the same for all is in the text: values to be bound are what this costs.
    same = f"{int(project)}, x'{root.hex()}', {int(are_deleted)}, {at!r}, {int(numbers[0][0]) if numbers else 'NULL'}"
    one = f"({', '.join('?' * len(columns))}, {same})"
    written = 0
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        statement = (
            f"INSERT INTO files ({', '.join(columns)}, project, root, is_deleted, recorded_at, last_run)"
            f" VALUES {', '.join([one] * len(some))} ON CONFLICT {conflict}"
        )
        values = [value for row in some for value in row]
        try:
            written += connection.execute(statement, values).rowcount
        except OverflowError:
            fitting = [min(max(value, -_LARGEST), _LARGEST) if isinstance(value, int) else value for value in values]
            written += connection.execute(statement, fitting).rowcount
    return written
