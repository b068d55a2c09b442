"""What is written down of runs: their changes as rows, long outputs, and a run's own record.

That lies beside its layer, and the database can be made again from it, should it be lost. Only runs that keep a layer
have one: a file for each run that has versions there, written when the run is settled.
"""

from __future__ import annotations

import marshal
import os
from binascii import crc32
from sys import intern

from fumehood.core.changes import Change, Stamp, by_path
from fumehood.core.report import Run
from fumehood.linux.cache import replace
from fumehood.linux.libc import Closing, remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from fumehood.store.database import Database
    from fumehood.store.places import Places

    Place = tuple[int, int]  # a row, and an entry in it


# ---- Changes as rows: one for each directory, holding what changed in it.
#
# A row a path would cost more than the swap it records; twenty thousand paths are a few hundred rows this way.

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
        above = None if within is None else os.fsencode(within)
        yield root, os.fsencode(directory), above, None, os.fsencode("".join(entries))


class RecordedChange(Change):
    """A change from the record: its stamps are texts until somebody asks for them, which most never do."""

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


def changes_of_row(root: int, raw: bytes, within: bytes | None, later: str | None, entries: bytes) -> Iterator[Change]:
    """Yield what one row tells; a later verdict on all of it goes before those in the entries."""
    directory = os.fsdecode(raw)
    above = None if within is None else os.fsdecode(within)
    prefix = f"{directory}/" if directory else ""
    for entry in os.fsdecode(entries).split("\0")[:-1]:
        fields, _, name = entry.rpartition("/")
        change, kind, verdict, marked, before, after, flags, reason = fields.split("\t", 7)
        # Hundreds of thousands have the same few words: these are kept once.
        yield RecordedChange(
            root, prefix + name, intern(change), intern(kind), before=before or None, after=after or None,  # type: ignore[arg-type]
            within=above, marked=int(marked), verdict=later or intern(verdict), reason="" if later else intern(reason),
            flags=tuple(flags.split()) if flags else (),
        )  # fmt: skip


def roots_of(project: str, joined: bytes) -> tuple[str, ...]:
    """Return a run's roots; the first is the project, wherever that is by now."""
    return (project, *(os.fsdecode(root) for root in joined.split(b"\0")[1:]))


def counted(changes: Sequence[Change]) -> str:
    """Sum up changes for the list of runs: how many of each."""
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.change] = counts.get(change.change, 0) + 1
    return " ".join(f"{kind}={count}" for kind, count in counts.items())


# ---- The record itself.

_FORMAT = 2  # the rows as they are in the database; in the first form, they were texts
_HEAD = b"fumehood record "  # a checksum and the line's end follow, then the record itself
_END = ".record"
_FIELDS = (
    "run", "project", "command", "cwd", "state", "reason", "exit_code", "timed_out", "sandboxed", "network", "hosts",
    "duration_s", "started_at", "act", "of", "layer", "capture", "mode", "dropped", "roots", "session", "below",
    "number", "draft", "draft_name",
)  # fmt: skip


def write_record(places: Places, run: Run, rows: list[Any]) -> None:
    """Write down what a run is now, beside the layer that it uses, with the rows of its changes."""
    path = _path(places, run.layer, run.run)
    body = marshal.dumps((_FORMAT, {name: getattr(run, name) for name in _FIELDS}, rows), 4)
    try:
        replace(path, b"%b%08x\n%b" % (_HEAD, crc32(body), body))
    except OSError:
        # The database has it all; but a record of what was so before would mislead.
        for each in (path, f"{path}.new"):
            remove_file(each)


def is_kept(places: Places, run: Run) -> bool:
    """Return True if a run has a record of its own."""
    return os.path.exists(_path(places, run.layer, run.run))


def read_records(places: Places, layer: str) -> Iterator[Run]:
    """Yield the runs that have versions in a layer, by their own records; what can't be read is left out."""
    for path in _records_in(places, layer):
        run = _read(path)
        if run is not None and run.layer == layer:
            yield run


def unreadable(places: Places) -> Iterator[str]:
    """Yield where the records lie that can't be read."""
    for layer in os.listdir(f"{places.state}/runs"):
        yield from (path for path in _records_in(places, layer) if _read(path) is None)


def _records_in(places: Places, layer: str) -> list[str]:
    directory = f"{places.run(layer)}/0"
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{directory}/{name}" for name in names if name.endswith(_END)]


def _path(places: Places, layer: str, run: str) -> str:
    return f"{places.run(layer)}/0/{run}{_END}"


def _read(path: str) -> Run | None:
    with open(path, "rb") as file:
        data = file.read()
    head, _, body = data.partition(b"\n")
    try:
        if not data.startswith(_HEAD):
            format_, fields, rows = _first_form(os.fsdecode(data))
        elif head == b"%b%08x" % (_HEAD, crc32(body)):
            format_, fields, rows = marshal.loads(body)  # noqa: S302 - ours
        else:
            return None
        for name, value in (("number", 0), ("draft", None), ("draft_name", None)):
            fields.setdefault(name, value)  # what an older version wrote has none
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
            _ = change.before, change.after  # a record with a stamp that can't be read is none
        return Run(**fields, changed=changes)
    except (ValueError, TypeError, KeyError, EOFError):
        return None


def _first_form(text: str) -> Any:
    """Read what an older version wrote: tokens that end in NUL, each with a letter for its kind."""
    if not text.endswith("\0"):
        raise ValueError("cut off")
    tokens = iter(text.split("\0"))

    def value() -> Any:
        token = next(tokens, "")
        kind, rest = token[:1], token[1:]
        if kind == "s":
            return rest
        if kind == "t":
            return tuple([value() for _ in range(int(rest))])
        if kind == "d":
            return {value(): value() for _ in range(int(rest))}
        if kind in ("i", "f"):
            return int(rest) if kind == "i" else float(rest)
        return {"n": None, "y": True, "x": False}[token]

    return value()


# ---- Outputs too long for the record: kept in files of their own, read back in part or whole.

def read_kept(path: str, size: int) -> tuple[str, bool]:
    """Return an output as its report shows it, and whether something is left out."""
    from fumehood.linux.streams import KEPT

    try:
        with Closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            saved = os.fstat(file).st_size
            if size <= 2 * KEPT and saved >= size:
                return os.pread(file, size, 0).decode("utf-8", "replace"), False
            head = os.pread(file, KEPT, 0)
            tail = os.pread(file, KEPT, max(KEPT, saved - KEPT))
    except FileNotFoundError:
        return _gone(size), True
    left_out = size - len(head) - len(tail)
    middle = f"\n[… {left_out} bytes left out …]\n" if left_out else ""
    return f"{head.decode('utf-8', 'replace')}{middle}{tail.decode('utf-8', 'replace')}", bool(left_out)


def printed(database: Database, places: Places, run: str, stream: str) -> Iterator[bytes]:
    """Yield all that is kept of what a run printed, byte for byte; of what was cleaned away, that it was there."""
    ((data, size),) = database.rows(f"SELECT {stream}, {stream}_size FROM runs WHERE id = ?", (run,))
    try:
        yield from pieces(places.output(run, stream)) if data is None else [data]
    except FileNotFoundError:  # it has printed nothing there, or that lies nowhere any more
        yield from [_gone(size).encode()] if size else []


def _gone(size: int) -> str:
    return f"[… {size} bytes, no longer kept …]\n"


def pieces(path: str, start: int = 0) -> Iterator[bytes]:
    """Yield all that is kept of an output, or what comes after its first bytes."""
    with open(path, "rb") as file:
        file.seek(start)
        while piece := file.read(1 << 20):
            yield piece
