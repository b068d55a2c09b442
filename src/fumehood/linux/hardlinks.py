"""The other names of a file that a command wrote: an overlay gives the new content to the one name it was written by.

A write in place reaches every name of a file, a replacement (as by `sed -i`, and most editors) one name only, and a
layer looks the same after both. What tells them apart is the directory: a copy-up leaves its time as it was, and
whatever makes, renames or removes an entry does not.
"""

from __future__ import annotations

import os
from itertools import islice

from fumehood.core import changes as c
from fumehood.linux.copying import copy_belongings
from fumehood.linux.nofollow import LISTING, Loosened, look, open_below, split, stamp_of
from fumehood.linux.stack import Stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST = 20_000  # entries of a project that are looked at for names


def linked(changes: Sequence[c.Change]) -> list[c.Change]:
    """Return the changes that give new content or another mode to one of several names of a file."""
    return [
        change
        for change in changes
        if change.before is not None and change.before.links > 1
        and change.change in (c.MODIFIED, c.MODE) and change.kind == c.FILE
    ]  # fmt: skip


def keep_links(changes: list[c.Change], upper: int, *below: int) -> list[c.Change]:
    """Let the other names of files that were written in place have what was written; flag the rest with their number.

    `changes` are those of the layer `upper` over `below`, as for a scan. All names of a file must lie there, and no
    other may have changed.
    """
    links = _Links(changes, upper, Stack(below))
    try:
        return c.by_path((*changes, *links.kept()))
    finally:
        links.close()


class _Links:
    """The names of the files that one layer changes by one of them."""

    def __init__(self, changes: list[c.Change], upper: int, below: Stack) -> None:
        self._changes = changes
        self._upper = Loosened(upper)
        self._below = below

    def close(self) -> None:
        self._upper.restore()
        self._below.restore()

    def kept(self) -> Iterator[c.Change]:
        """Make the names that belong to a file links in the layer too, and yield these as changes."""
        changed_names: dict[int, int] = {}
        for change in self._changes:
            if change.before is not None and change.before.links > 1:
                changed_names[change.before.inode] = changed_names.get(change.before.inode, 0) + 1
        alone = [
            each for each in linked(self._changes)
            if each.before is not None and changed_names[each.before.inode] == 1 and self._is_in_place(each.path)
        ]  # fmt: skip
        names = self._names(alone) if alone else {}
        for change in linked(self._changes):
            before = change.before
            if before is None:
                continue
            others = [path for path in names.get(change.path, ()) if path != change.path]
            if len(others) == before.links - 1:
                yield from self._also_at(change, others)
            elif before.links > changed_names[before.inode]:
                change.flags = (*change.flags, f"{c.OTHER_NAMES}:{before.links - changed_names[before.inode]}")

    def _is_in_place(self, path: str) -> bool:
        """Tell whether nothing was made, renamed or removed where a file lies, so that it is no replacement."""
        parent = split(path)[0]
        layer, live = self._upper.reach(parent), self._below.reach(parent)
        try:
            found, _ = live.look(".")
            return found is not None and found.st_mtime_ns == os.fstat(layer).st_mtime_ns
        finally:
            live.close()
            os.close(layer)

    def _names(self, changes: Sequence[c.Change]) -> dict[str, list[str]]:
        """Return all names of files, by the path that was changed."""
        wanted: dict[tuple[int, int], list[str]] = {}
        names: dict[str, list[str]] = {}
        for change in changes:
            parent, name = split(change.path)
            live = self._below.reach(parent)
            try:
                found, _ = live.look(name)
            finally:
                live.close()
            if found is not None:
                wanted[found.st_dev, found.st_ino] = names[change.path] = []
        for path, found in islice(self._below.walk(""), _MOST):
            if found.st_nlink > 1 and (found.st_dev, found.st_ino) in wanted:
                wanted[found.st_dev, found.st_ino].append(path)
        return names

    def _also_at(self, change: c.Change, others: Sequence[str]) -> Iterator[c.Change]:
        parent, name = split(change.path)
        source = self._upper.reach(parent)
        try:
            for path in others:
                self._link(source, name, path)
            stamp = stamp_of(os.stat(name, dir_fd=source, follow_symlinks=False))
        finally:
            os.close(source)
        change.after = stamp
        for path in others:
            yield c.Change(
                change.root, path, change.change, change.kind,
                before=change.before, after=stamp, marked=change.marked, flags=change.flags,
            )  # fmt: skip

    def _link(self, source: int, name: str, path: str) -> None:
        """Give a file of the layer another name there; the directory's time stays, as with a copy-up."""
        parent, target = split(path)
        self._make_way(parent)
        directory = self._upper.open(parent)
        try:
            before = os.fstat(directory)
            if look(directory, target) is None:
                os.link(name, target, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(directory)

    def _make_way(self, parent: str) -> None:
        """Make the directories of the layer that a path lies in, like those that they stand for."""
        here = ""
        for name in parent.split("/") if parent else ():
            layer, live = self._upper.open(here), self._below.reach(here)
            try:
                if look(layer, name) is None:
                    os.mkdir(name, 0o700, dir_fd=layer)
                    self._resemble(layer, live.look(name)[1], name)
            finally:
                live.close()
                os.close(layer)
            here = f"{here}/{name}" if here else name

    def _resemble(self, layer: int, part: int, name: str) -> None:
        like = Loosened(part)
        reading, writing = like.reach(name), open_below(layer, name, LISTING)
        try:
            copy_belongings(reading, writing, os.fstat(reading))
        finally:
            os.close(reading)
            os.close(writing)
            like.restore()
