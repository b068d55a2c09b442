"""Changes as rows: one for each directory, holding what changed in it.

A row a path would cost more than the swap it records; twenty thousand paths are a few hundred rows this way.
"""

from __future__ import annotations

import os

from fumehood.core.changes import Change, Stamp, by_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

COLUMNS = ("root", "directory", "within", "verdict", "entries")


def rows(changes: Sequence[Change]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that record changes, one for each directory."""
    grouped: dict[tuple[int, str, str | None], list[str]] = {}
    for change in changes:
        directory, _, name = change.path.rpartition("/")
        key = change.root, directory, change.within
        entry = _entry(change, name)
        if key in grouped:
            grouped[key].append(entry)
        else:
            grouped[key] = [entry]
    for (root, directory, within), entries in grouped.items():
        above = None if within is None else os.fsencode(within)
        yield root, os.fsencode(directory), above, None, os.fsencode("".join(entries))


def _entry(change: Change, name: str) -> str:
    """Write what changed at one name; the NUL that ends it, and the slash before the name, can't be in a name."""
    before, after = change.before, change.after
    return (
        f"{change.change}\t{change.kind}\t{change.verdict}\t{change.marked}\t{'' if before is None else before.text()}"
        f"\t{'' if after is None else after.text()}\t{' '.join(change.flags)}\t{change.reason}/{name}\0"
    )


def read(found: Iterable[Sequence[Any]]) -> list[Change]:
    """Return the changes that rows record, in the order they are reported."""
    return by_path(change for row in found for change in _changes(*row))


def _changes(
    root: int, raw: bytes, within: bytes | None, later: str | None, entries: bytes
) -> Iterator[Change]:
    """Yield what one row tells; a later verdict on all of it goes before those in the entries."""
    directory = os.fsdecode(raw)
    above = None if within is None else os.fsdecode(within)
    prefix = f"{directory}/" if directory else ""
    for entry in os.fsdecode(entries).split("\0")[:-1]:
        told, _, name = entry.rpartition("/")
        change, kind, verdict, marked, before, after, flags, reason = told.split("\t", 7)
        yield Change(
            root, prefix + name, change, kind,
            before=Stamp.read(before) if before else None, after=Stamp.read(after) if after else None,
            within=above, marked=int(marked), verdict=later or verdict, reason="" if later else reason,
            flags=tuple(flags.split()) if flags else (),
        )  # fmt: skip


def counted(changes: Sequence[Change]) -> str:
    """Sum up changes for the list of runs: how many of each."""
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.change] = counts.get(change.change, 0) + 1
    return " ".join(f"{kind}={count}" for kind, count in counts.items())
