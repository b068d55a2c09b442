"""Queries about runs: their changes page by page, the changes of one path, and runs that contain some words."""

from __future__ import annotations

import os

from fumehood.core.changes import APPLIED, WAITING, Change
from fumehood.core.value import Value
from fumehood.store.database import OF_CHANGES
from fumehood.store.history import CHECKPOINT
from fumehood.store.records import changes_of_row, changes_of_rows, output_pieces, roots_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fumehood.core.report import Run
    from fumehood.store.database import Database
    from fumehood.store.places import Places

    Place = tuple[int, int]  # a row, and an entry in it

# May also match a file name: the rows that are found are parsed and checked.
_HAS_WAITING = "verdict IS NULL AND (instr(entries, x'0968656c6409') OR instr(entries, x'09636f6e666c69637409'))"
_NUMBER = "(SELECT number FROM runs WHERE id = ?)"
_OF_RUN = f"FROM changes WHERE run = {_NUMBER}"
_RUNS_ASKED = 50  # the latest runs that changed a directory
_ROWS_AT_ONCE = 50  # directories
_RUNS_AT_ONCE = 200
_MAX_OUTPUT_FILES = 200  # of outputs that are read for one page


def page_of_changes(
    database: Database, run: str, start: Place = (0, 0), *, limit: int, waiting: bool = False
) -> tuple[list[Change], Place | None]:
    """Return a page of a run's changes, directory by directory, and where the next page begins, or None.

    Only the rows of these directories are read. With `waiting`, only changes that are held or in conflict.
    """
    changes: list[Change] = []
    for number, row in _rows(database, run, start[0], waiting=waiting):
        for place, change in enumerate(changes_of_row(*row)):
            if (number, place) < start or (waiting and change.verdict not in WAITING):
                continue
            if len(changes) == limit:
                return changes, (number, place)
            changes.append(change)
    return changes, None


def _rows(database: Database, run: str, first: int, *, waiting: bool) -> Iterator[tuple[int, list[Any]]]:
    only = f" AND {_HAS_WAITING}" if waiting else ""
    query = f"SELECT n, {OF_CHANGES} {_OF_RUN} AND n >= ?{only} ORDER BY n LIMIT {_ROWS_AT_ONCE}"
    while rows := database.rows(query, (run, first)):
        for number, *row in rows:
            yield number, row
        first = rows[-1][0] + 1


def count_waiting(database: Database, run: str) -> int:
    """Return how many changes of a run wait for a person."""
    rows = database.rows(f"SELECT entries {_OF_RUN} AND {_HAS_WAITING}", (run,))
    entries = (entry for (joined,) in rows for entry in joined.split(b"\0")[:-1])
    return sum(entry.split(b"\t", 3)[2].decode() in WAITING for entry in entries)


def waiting_flagged(database: Database, run: str) -> list[Change]:
    """Return the flagged changes of a run that wait: a person must see these, however many others there are."""
    flagged: list[Change] = []
    for _, (root, directory, within, row_verdict, entries) in _rows(database, run, 0, waiting=True):
        flagged_entries = b"".join(entry + b"\0" for entry in entries.split(b"\0")[:-1] if entry.split(b"\t", 7)[6])
        changes = changes_of_row(root, directory, within, row_verdict, flagged_entries)
        flagged += (change for change in changes if change.verdict in WAITING)
    return flagged


def change_at(database: Database, run: str, root: int, path: str) -> Change | None:
    """Return the change of a run at one path, or None, without reading the others."""
    directory, _, name = path.rpartition("/")
    rows = database.rows(
        f"SELECT {OF_CHANGES} {_OF_RUN} AND directory = ? AND root = ? AND instr(entries, ?)",
        (run, os.fsencode(directory), root, os.fsencode(f"/{name}\0")),
    )
    changes = (change for row in rows for change in changes_of_row(*row))
    return next((change for change in changes if change.path == path), None)


def later_runs(database: Database, run: str, directory: str) -> list[str]:
    """Return the later runs of a run's project that changed something in a directory, the earliest first."""
    rows = database.rows(
        "SELECT DISTINCT later.id FROM runs AS this JOIN changes ON directory = ? AND run > this.number"
        " JOIN runs AS later ON later.number = run AND later.project = this.project WHERE this.id = ? ORDER BY run",
        (os.fsencode(directory), run),
    )
    return [name for (name,) in rows]


def first_changes(database: Database, run: str, limit: int) -> list[Change]:
    """Return the first changes of a run, without reading the others."""
    rows_of_first = [
        (*others, b"".join(entry + b"\0" for entry in entries.split(b"\0", limit)[:limit] if entry))
        for *others, entries in database.rows(f"SELECT {OF_CHANGES} {_OF_RUN} ORDER BY n LIMIT ?", (run, limit))
    ]
    return changes_of_rows(rows_of_first)[:limit]


def later_versions(database: Database, run: str, path: str, *, by_earlier: bool = False) -> list[tuple[str, Change]]:
    """Return the later changes of a path, the earliest first, with the runs that made them.

    With `by_earlier`, instead the changes of runs that began before this one and were settled after it had begun.
    """
    if by_earlier:
        return _changes_of_path(
            database, run, path, f"changes.run < {_NUMBER} AND settled_after >= {_NUMBER}", run, run
        )
    return _changes_of_path(database, run, path, f"changes.run > {_NUMBER}", run)


def changes_by_commands(database: Database, run: str, path: str) -> list[Change]:
    """Return the changes that commands and clients' edits made to a path in a run's project; undos are left out."""
    return [change for _, change in _changes_of_path(database, run, path, "act IN ('run', ?)", CHECKPOINT)]


def _changes_of_path(database: Database, run: str, path: str, condition: str, *values: str) -> list[tuple[str, Change]]:
    rows = database.rows(
        f"SELECT runs.id, {OF_CHANGES} FROM changes JOIN runs ON runs.number = run"
        " WHERE changes.directory = ? AND +project = (SELECT project FROM runs WHERE id = ?)"
        f" AND {condition} ORDER BY changes.run",
        (os.fsencode(path.rpartition("/")[0]), run, *values),
    )
    return [(name, change) for name, *row in rows for change in changes_of_rows([row]) if change.path == path]


def applied_in(database: Database, run: Run, root: str, directory: str) -> Iterator[tuple[str, Change]]:
    """Yield the latest applied changes in a directory of a root, the last one first, with the runs that made them."""
    rows = database.rows(
        f"SELECT runs.id, runs.roots, {OF_CHANGES} FROM changes JOIN runs ON runs.number = run WHERE"
        " changes.directory = ? AND +project = (SELECT project FROM runs WHERE id = ?)"
        f" ORDER BY changes.run DESC LIMIT {_RUNS_ASKED}",
        (os.fsencode(directory), run.run),
    )
    for name, joined, *row in rows:
        roots = roots_of(run.project, joined)
        for change in changes_of_rows([row]):
            if (roots[change.root], change.verdict) == (root, APPLIED):
                yield name, change


def running_with_checkpoints(database: Database, session: str) -> str:
    """Return the id of a session's command that still runs and has applied checkpoints; "" if there is none."""
    rows = database.rows(
        "SELECT of FROM runs WHERE session = ? AND act = ? AND state = 'applied' AND of IN"
        " (SELECT id FROM runs WHERE state IN ('running', 'applying', 'settling')) LIMIT 1",
        (session, CHECKPOINT),
    )
    return str(rows[0][0]) if rows else ""


# ---- Runs.

class Search(Value):
    """What to look for in the history; empty fields do not count."""

    words: str = ""  # in the command, or its number: #214
    path: str = ""  # a path that was changed, or a directory above it
    text: str = ""  # in what was printed
    session: str = ""
    state: str = ""
    project: int | None = None

    @property
    def conditions(self) -> tuple[str, list[str | int | bytes]]:
        """The conditions of a query for such runs, and the values for it."""
        conditions = ["TRUE"]
        values: list[str | int | bytes] = []
        for column, value in (("session", self.session), ("state", self.state), ("project", self.project)):
            if value:
                conditions.append(f"runs.{column} = ?")
                values.append(value)
        for word in self.words.split():
            number = word[1:] if word.startswith("#") and word[1:].isdecimal() else "-1"
            conditions.append("(runs.command LIKE ? ESCAPE '\\' OR runs.project_number = ?)")
            values += [f"%{_literal(word)}%", number]
        if self.path:
            directory, _, name = self.path.strip("/").rpartition("/")
            whole = f"{directory}/{name}".strip("/")
            conditions.append(
                "EXISTS (SELECT 1 FROM changes WHERE changes.run = runs.number AND (changes.directory = ? OR"
                " changes.directory >= ? AND changes.directory < ? OR changes.directory = ? AND instr(entries, ?)))"
            )
            values += [os.fsencode(whole), os.fsencode(f"{whole}/"), os.fsencode(f"{whole}0")]
            values += [os.fsencode(directory), os.fsencode(f"/{name}\0")]
        if self.text:
            # A NULL output lies in a file, which is searched later.
            parts = [f"runs.{each} IS NULL AND runs.{each}_size OR instr(runs.{each}, ?)" for each in _STREAMS]
            conditions.append(f"({' OR '.join(parts)})")
            values += [self.text.encode(errors="surrogateescape")] * len(_STREAMS)
        return " AND ".join(conditions), values


_STREAMS = ("stdout", "stderr")


def _literal(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def search(database: Database, places: Places, wanted: Search, *, limit: int, before: int = 0) -> tuple[list[str], int]:
    """Return the ids of matching runs, the latest first, and the `before` for the next page; 0 if there is none.

    A page may hold fewer than `limit`, if very long outputs had to be searched.
    """
    conditions, values = wanted.conditions
    kept_apart = " OR ".join(f"{each} IS NULL AND {each}_size" for each in _STREAMS)
    query = (
        f"SELECT id, number, {kept_apart} FROM runs WHERE {conditions} AND number < ?"
        f" ORDER BY number DESC LIMIT {min(limit + 1, _RUNS_AT_ONCE)}"
    )
    names: list[str] = []
    before = before or 1 << 62
    files = 0
    while rows := database.rows(query, (*values, before)):
        for name, number, is_apart in rows:
            if len(names) == limit or files == _MAX_OUTPUT_FILES:
                return names, before
            before = number
            is_in_file = bool(wanted.text and is_apart)
            files += is_in_file
            if not is_in_file or _has_printed(database, places, name, wanted.text.encode(errors="surrogateescape")):
                names.append(name)
    return names, 0


def _has_printed(database: Database, places: Places, run: str, text: bytes) -> bool:
    for stream in _STREAMS:
        rest = b""
        for piece in output_pieces(database, places, run, stream):
            joined = rest + piece
            if text in joined:
                return True
            rest = joined[-len(text) :]
    return False
