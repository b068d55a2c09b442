"""How runs are recorded: their changes as database rows, long outputs as files, and a run's own record.

A run's own record is a file beside its layer, written when the run is settled. If the database is lost, it can be
rebuilt from these files. Only runs that keep a layer have one.
"""

from __future__ import annotations

import marshal
import os
from binascii import crc32
from sys import intern

from fumehood.core.changes import Change, Stamp, by_path
from fumehood.core.report import Run
from fumehood.linux.cache import replace_file
from fumehood.linux.libc import Closing, remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from fumehood.store.database import Database
    from fumehood.store.places import Places

    Place = tuple[int, int]  # a row, and an entry in it


# ---- Changes as rows: one row for each directory, with all that changed in it.
#
# One row for each path would cost more time than the swap that it records. Twenty thousand paths make a few hundred
# rows this way.

def rows_of_changes(changes: Sequence[Change]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that record changes, one for each directory."""
    grouped: dict[tuple[int, str, str | None], list[str]] = {}
    for change in changes:
        directory, _, name = change.path.rpartition("/")
        before, after = change.before, change.after
        # The NUL that ends an entry, and the slash before the name, can't be in a name.
        entry = (
            f"{change.change}\t{change.kind}\t{change.verdict}\t{change.marked}"
            f"\t{'' if before is None else before.text()}\t{'' if after is None else after.text()}"
            f"\t{' '.join(change.flags)}\t{change.reason}/{name}\0"
        )
        grouped.setdefault((change.root, directory, change.within), []).append(entry)
    for (root, directory, within), entries in grouped.items():
        carrier = None if within is None else os.fsencode(within)
        yield root, os.fsencode(directory), carrier, None, os.fsencode("".join(entries))


class RecordedChange(Change):
    """A change from the database: its stamps are parsed when they are first read, which is rare."""

    __slots__ = ("_after", "_before")
    _before: Any
    _after: Any

    @property
    def before(self) -> Stamp | None:
        """The version that was there, if any."""
        if isinstance(self._before, str):
            self._before = Stamp.read(self._before)
        stamp: Stamp | None = self._before
        return stamp

    @before.setter
    def before(self, stamp: Any) -> None:
        self._before = stamp

    @property
    def after(self) -> Stamp | None:
        """The version that the run left, if any."""
        if isinstance(self._after, str):
            self._after = Stamp.read(self._after)
        stamp: Stamp | None = self._after
        return stamp

    @after.setter
    def after(self, stamp: Any) -> None:
        self._after = stamp


def changes_of_rows(rows: Iterable[Sequence[Any]]) -> list[Change]:
    """Return the changes that rows record, in the order they are reported."""
    return by_path(change for row in rows for change in changes_of_row(*row))


def changes_of_row(
    root: int, raw: bytes, within: bytes | None, row_verdict: str | None, entries: bytes
) -> Iterator[Change]:
    """Yield the changes of one row; `row_verdict`, if set, replaces the verdicts of the single entries."""
    directory = os.fsdecode(raw)
    carrier = None if within is None else os.fsdecode(within)
    prefix = f"{directory}/" if directory else ""
    for entry in os.fsdecode(entries).split("\0")[:-1]:
        fields, _, name = entry.rpartition("/")
        change, kind, verdict, marked, before, after, flags, reason = fields.split("\t", 7)
        # Hundreds of thousands of changes share a few words: `intern` keeps each word once.
        yield RecordedChange(
            root, prefix + name, intern(change), intern(kind),
            before=before or None, after=after or None,  # type: ignore[arg-type]
            within=carrier, marked=int(marked), verdict=row_verdict or intern(verdict),
            reason="" if row_verdict else intern(reason), flags=tuple(flags.split()) if flags else (),
        )  # fmt: skip


def roots_of(project: str, joined: bytes) -> tuple[str, ...]:
    """Return a run's roots; the first is the project at its present path."""
    return (project, *(os.fsdecode(root) for root in joined.split(b"\0")[1:]))


def count_text(changes: Sequence[Change]) -> str:
    """Write how many changes of each kind there are, as the database keeps it."""
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.change] = counts.get(change.change, 0) + 1
    return " ".join(f"{kind}={count}" for kind, count in counts.items())


# ---- The record file of a run.

_FORMAT = 2  # the rows as they are in the database; in format 1, they were texts
_RECORD_HEADER = b"fumehood record "  # then a checksum and a newline, then the record itself
_RECORD_SUFFIX = ".record"
_FIELDS = (
    "run", "project", "command", "cwd", "state", "reason", "exit_code", "timed_out", "sandboxed", "network", "hosts",
    "duration_s", "started_at", "act", "of", "layer", "capture", "mode", "dropped", "roots", "session", "below",
    "number", "draft", "draft_name",
)  # fmt: skip


def write_record(places: Places, run: Run, rows: list[Any]) -> None:
    """Write the record file of a run, with the rows of its changes, beside the layer that it uses."""
    path = _record_path(places, run.layer, run.run)
    body = marshal.dumps((_FORMAT, {name: getattr(run, name) for name in _FIELDS}, rows), 4)
    try:
        replace_file(path, b"%b%08x\n%b" % (_RECORD_HEADER, crc32(body), body))
    except OSError:
        # The database has everything. But an outdated record file would mislead, so it is removed.
        for leftover in (path, f"{path}.new"):
            remove_file(leftover)


def has_record(places: Places, run: Run) -> bool:
    """Return True if a run has a record file."""
    return os.path.exists(_record_path(places, run.layer, run.run))


def read_records(places: Places, layer: str) -> Iterator[Run]:
    """Yield the runs that use a layer, read from their record files; unreadable files are left out."""
    for path in _records_in(places, layer):
        run = _read_record(path)
        if run is not None and run.layer == layer:
            yield run


def unreadable_records(places: Places) -> Iterator[str]:
    """Yield the paths of the record files that can't be read."""
    for layer in os.listdir(f"{places.state}/runs"):
        yield from (path for path in _records_in(places, layer) if _read_record(path) is None)


def _records_in(places: Places, layer: str) -> list[str]:
    directory = f"{places.run(layer)}/0"
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{directory}/{name}" for name in names if name.endswith(_RECORD_SUFFIX)]


def _record_path(places: Places, layer: str, run: str) -> str:
    return f"{places.run(layer)}/0/{run}{_RECORD_SUFFIX}"


def _read_record(path: str) -> Run | None:
    with open(path, "rb") as file:
        data = file.read()
    header, _, body = data.partition(b"\n")
    try:
        if not data.startswith(_RECORD_HEADER):
            format_, fields, rows = _read_first_format(os.fsdecode(data))
        elif header == b"%b%08x" % (_RECORD_HEADER, crc32(body)):
            format_, fields, rows = marshal.loads(body)  # noqa: S302 - ours
        else:
            return None
        for name, value in (("number", 0), ("draft", None), ("draft_name", None)):
            fields.setdefault(name, value)  # older versions did not write these
        if format_ not in (1, _FORMAT) or set(fields) != set(_FIELDS):
            return None
        if format_ == 1:
            rows = [
                (root, os.fsencode(directory), None if within is None else os.fsencode(within), None,
                 os.fsencode("\0".join(entries)))
                for root, directory, within, entries in rows
            ]  # fmt: skip
        changes = changes_of_rows(rows)
        for change in changes:
            _ = change.before, change.after  # parses the stamps: a bad one makes the whole record unreadable
        return Run(**fields, changed=changes)
    except (ValueError, TypeError, KeyError, EOFError):
        return None


def _read_first_format(text: str) -> Any:
    """Read a record in format 1: tokens that end in NUL, each beginning with a letter for its type."""
    if not text.endswith("\0"):
        raise ValueError("cut off")
    tokens = iter(text.split("\0"))

    def value() -> Any:
        token = next(tokens, "")
        kind, text = token[:1], token[1:]
        if kind == "s":
            return text
        if kind == "t":
            return tuple([value() for _ in range(int(text))])
        if kind == "d":
            return {value(): value() for _ in range(int(text))}
        if kind in ("i", "f"):
            return int(text) if kind == "i" else float(text)
        return {"n": None, "y": True, "x": False}[token]

    return value()


# ---- Outputs that are too long for the database: each is a file, read back in part or whole.

def read_output(path: str, size: int) -> tuple[str, bool]:
    """Return an output as the report shows it, and whether a part of it is left out."""
    from fumehood.linux.streams import PART_SIZE

    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            saved = os.fstat(file).st_size
            if size <= 2 * PART_SIZE and saved >= size:
                return os.pread(file, size, 0).decode("utf-8", "replace"), False
            head = os.pread(file, PART_SIZE, 0)
            tail = os.pread(file, PART_SIZE, max(PART_SIZE, saved - PART_SIZE))
    except FileNotFoundError:
        return _no_longer_kept(size), True
    left_out = size - len(head) - len(tail)
    middle = f"\n[… {left_out} bytes left out …]\n" if left_out else ""
    return f"{head.decode('utf-8', 'replace')}{middle}{tail.decode('utf-8', 'replace')}", bool(left_out)


def output_pieces(database: Database, places: Places, run: str, stream: str) -> Iterator[bytes]:
    """Yield the bytes that a run printed; for an output that was cleaned away, a line that says so."""
    ((data, size),) = database.rows(f"SELECT {stream}, {stream}_size FROM runs WHERE id = ?", (run,))
    try:
        yield from file_pieces(places.output(run, stream)) if data is None else [data]
    except FileNotFoundError:  # it printed nothing there, or the file was cleaned away
        yield from [_no_longer_kept(size).encode()] if size else []


def _no_longer_kept(size: int) -> str:
    return f"[… {size} bytes, no longer kept …]\n"


def file_pieces(path: str, start: int = 0) -> Iterator[bytes]:
    """Yield the content of an output's file from byte `start` on."""
    with open(path, "rb") as file:
        file.seek(start)
        while piece := file.read(1 << 20):
            yield piece
