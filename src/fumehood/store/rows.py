"""Changes as rows: a directory that moves whole takes what lies in it along in one row."""

from __future__ import annotations

import os

from fumehood.core.changes import ADDED, DELETED, DIRECTORY, Change, Stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

COLUMNS = (
    "root", "path", "change", "kind", "verdict", "reason", "flags", "marked", "within", "before", "after",
    "inside", "inside_count",
)  # fmt: skip


def rows(changes: Sequence[Change]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that record changes.

    Twenty thousand paths of one new tree are one row: written, and read, ten times faster.
    """
    inside = _inside(changes)
    for change in changes:
        if change.within is None:
            carried = inside.get((change.root, change.path))
            if carried is None:
                yield (*_row(change), None, 0)
            else:
                yield (*_row(change), _packed(carried), len(carried))
        elif (change.root, change.within) not in inside:
            yield (*_row(change), None, 0)


def _inside(changes: Sequence[Change]) -> dict[tuple[int, str], list[Change]]:
    """Return what each changed directory carries, where all of it has the same verdict and nothing more to say."""
    fates = {(c.root, c.path): (c.verdict, c.reason) for c in changes if c.within is None}
    carried: dict[tuple[int, str], list[Change]] = {}
    apart: set[tuple[int, str]] = set()
    for change in changes:
        if change.within is None:
            continue
        top = change.root, change.within
        carried.setdefault(top, []).append(change)
        if fates.get(top) != (change.verdict, change.reason) or change.flags:
            apart.add(top)
    return {top: found for top, found in carried.items() if top not in apart}


def _row(change: Change) -> tuple[Any, ...]:
    return (
        change.root, os.fsencode(change.path), change.change, change.kind, change.verdict, change.reason or None,
        " ".join(change.flags) or None, change.marked,
        None if change.within is None else os.fsencode(change.within),
        None if change.before is None else change.before.text(),
        None if change.after is None else change.after.text(),
    )  # fmt: skip


def _packed(carried: Sequence[Change]) -> bytes:
    """Write what a directory carries: stamp, mark and path of each, ended by NUL, which no path can hold."""
    return os.fsencode(
        "".join([f"{(each.after or each.before).text()} {each.marked} {each.path}\0" for each in carried])  # type: ignore[union-attr]
    )


def read(row: Sequence[Any]) -> Iterator[Change]:
    """Yield the changes that a row records."""
    root, path, change, kind, verdict, reason, flags, marked, within, before, after, inside, _count = row
    top = Change(
        root, os.fsdecode(path), change, kind,
        before=None if before is None else Stamp.read(before),
        after=None if after is None else Stamp.read(after),
        within=None if within is None else os.fsdecode(within),
        marked=marked, verdict=verdict, reason=reason or "", flags=tuple((flags or "").split()),
    )  # fmt: skip
    yield top
    if inside is not None:
        yield from _unpacked(inside, top)


def _unpacked(inside: bytes, top: Change) -> Iterator[Change]:
    added = top.after is not None and top.after.kind == DIRECTORY
    for text in os.fsdecode(inside).split("\0")[:-1]:
        *stamp, marked, path = text.split(" ", 6)
        found = Stamp.read(" ".join(stamp))
        yield Change(
            top.root, path, ADDED if added else DELETED, found.kind,
            before=None if added else found, after=found if added else None, within=top.path,
            marked=int(marked), verdict=top.verdict, reason=top.reason,
        )  # fmt: skip
