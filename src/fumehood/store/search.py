"""What a person looks for in a long history, a page at a time: runs by what they did, and what one run changed."""

from __future__ import annotations

import os

from fumehood.core.changes import WAITING
from fumehood.core.value import Value
from fumehood.store import records
from fumehood.store.database import CHANGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fumehood.core.changes import Change
    from fumehood.store.database import Database
    from fumehood.store.history import History

    Place = tuple[int, int]  # a row, and an entry in it

_CHANGES = ", ".join(CHANGES)
_OF_RUN = "FROM changes WHERE run = (SELECT number FROM runs WHERE id = ?)"
# A name may look so too: whoever reads the rows looks closer.
_HAS_WAITING = "verdict IS NULL AND (instr(entries, x'0968656c6409') OR instr(entries, x'09636f6e666c69637409'))"
_ROWS_AT_ONCE = 50  # directories
_RUNS_AT_ONCE = 200
_MOST_FILES = 200  # of outputs that are read for one page


# ---- What one run changed.

def page_of_changes(
    database: Database, run: str, after: Place = (0, 0), *, most: int, waiting: bool = False
) -> tuple[list[Change], Place | None]:
    """Return some of what a run changed, directory by directory, and where the rest begins, if there is more.

    However much it is, only the rows of those directories are read. With `waiting`, what is held or in conflict.
    """
    changes: list[Change] = []
    for number, row in _rows(database, run, after[0], waiting=waiting):
        for place, change in enumerate(records.changes_of_row(*row)):
            if (number, place) < after or (waiting and change.verdict not in WAITING):
                continue
            if len(changes) == most:
                return changes, (number, place)
            changes.append(change)
    return changes, None


def _rows(database: Database, run: str, first: int, *, waiting: bool) -> Iterator[tuple[int, list[Any]]]:
    only = f" AND {_HAS_WAITING}" if waiting else ""
    query = f"SELECT n, {_CHANGES} {_OF_RUN} AND n >= ?{only} ORDER BY n LIMIT {_ROWS_AT_ONCE}"
    while rows := database.rows(query, (run, first)):
        for number, *row in rows:
            yield number, row
        first = rows[-1][0] + 1


def count_waiting(database: Database, run: str) -> int:
    """Return how many changes of a run wait for a person."""
    rows = database.rows(f"SELECT entries {_OF_RUN} AND {_HAS_WAITING}", (run,))
    entries = (entry for (joined,) in rows for entry in joined.split(b"\0")[:-1])
    return sum(entry.split(b"\t", 3)[2].decode() in WAITING for entry in entries)


def change_at(database: Database, run: str, root: int, path: str) -> Change | None:
    """Return what a run did to one path, without reading the rest."""
    directory, _, name = path.rpartition("/")
    rows = database.rows(
        f"SELECT {_CHANGES} {_OF_RUN} AND directory = ? AND root = ? AND instr(entries, ?)",
        (run, os.fsencode(directory), root, os.fsencode(f"/{name}\0")),
    )
    changes = (change for row in rows for change in records.changes_of_row(*row))
    return next((change for change in changes if change.path == path), None)


# ---- Runs.

class Search(Value):
    """What somebody looks for in the history; what is empty does not count."""

    words: str = ""  # in the command, or its number: #214
    path: str = ""  # a path that was changed, or a directory above it
    text: str = ""  # in what was printed
    session: str = ""
    state: str = ""
    project: int | None = None

    @property
    def conditions(self) -> tuple[str, list[str | int | bytes]]:
        """What a query for such runs says, and its values."""
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
            # What is NULL lies in a file, which is looked at by itself.
            parts = [f"runs.{each} IS NULL AND runs.{each}_size OR instr(runs.{each}, ?)" for each in _STREAMS]
            conditions.append(f"({' OR '.join(parts)})")
            values += [self.text.encode(errors="surrogateescape")] * len(_STREAMS)
        return " AND ".join(conditions), values


_STREAMS = ("stdout", "stderr")


def _literal(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def search(history: History, what: Search, *, most: int, before: int = 0) -> tuple[list[str], int]:
    """Return the ids of runs that were looked for, the latest first, and what to say as `before` for the next ones.

    That is 0 where there are no more. Where very much was printed, a page may hold fewer than there are.
    """
    conditions, values = what.conditions
    kept_apart = " OR ".join(f"{each} IS NULL AND {each}_size" for each in _STREAMS)
    query = (
        f"SELECT id, number, {kept_apart} FROM runs WHERE {conditions} AND number < ?"
        f" ORDER BY number DESC LIMIT {min(most + 1, _RUNS_AT_ONCE)}"
    )
    names: list[str] = []
    before = before or 1 << 62
    files = 0
    while rows := history.database.rows(query, (*values, before)):
        for name, number, is_apart in rows:
            if len(names) == most or files == _MOST_FILES:
                return names, before
            before = number
            is_in_file = bool(what.text and is_apart)
            files += is_in_file
            if not is_in_file or _has_printed(history, name, what.text.encode(errors="surrogateescape")):
                names.append(name)
    return names, 0


def _has_printed(history: History, run: str, text: bytes) -> bool:
    for stream in _STREAMS:
        rest = b""
        try:
            for piece in history.printed(run, stream):
                joined = rest + (piece or b"")
                if text in joined:
                    return True
                rest = joined[-len(text) :]
        except FileNotFoundError:
            continue  # no longer kept
    return False
