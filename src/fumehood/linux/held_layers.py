"""Move what is held between a run's layer and the tree of its own that later commands see.

A layer's slots fill with the originals of what was applied, so what still waits is set apart from them. Every version
is in one of the two places, and a move that was cut short is done again.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice

from fumehood.core import changes as c
from fumehood.linux import libc
from fumehood.linux.copying import copy_belongings, copy_directory, copy_entry
from fumehood.linux.layer import Stack, hides, is_opaque, set_opaque, whiteout
from fumehood.linux.nofollow import (
    LISTING,
    Loosened,
    Parents,
    entries,
    is_whiteout,
    look,
    open_below,
    remove_directories,
    remove_tree,
    set_mode,
    split,
    stamp_of,
    walk,
)
from fumehood.linux.steps import move

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# ---- Move what is held between a run's layer and the tree of its own that later commands see.
#
# A layer's slots fill with the originals of what was applied, so what still waits is set apart from them. Every version
# is in one of the two places, and a move that was cut short is done again.

def carry(source: int, target: int, moving: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Move the layer's side of some changes of one root to another tree; those that `stay` are left in place."""
    carrying = _Carrying(source, target, staying)
    try:
        for change in _tops(moving, carrying.kept):
            carrying.take(change)
    finally:
        carrying.close()


def throw_away(top: int, changes: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Remove the layer's side of some changes."""
    loosened, kept = Loosened(top), _ancestors(staying)
    try:
        for change in _tops(changes, kept):
            if not c.is_mode_alone(change) and change.path not in kept:
                _in(loosened, change, remove_tree)
    finally:
        loosened.restore()


def prune(top: int, waiting: Sequence[c.Change]) -> None:
    """Remove the directories that nothing waits in: one left behind would hide that the project's own is gone."""
    needed = _ancestors(waiting) | {change.path for change in waiting}
    trees = {(0, change.path) for change in waiting if change.kind == c.DIRECTORY and change.change != c.MODE}
    whole = c.Inside(trees)
    found = [path for path, entry in walk(top, "") if stat.S_ISDIR(entry.st_mode)]
    loosened = Loosened(top)
    try:
        for path in reversed(found):
            if path not in needed and whole.topmost(0, path) is None:
                _in(loosened, c.Change(0, path, c.DELETED, c.DIRECTORY), _remove_empty)
    finally:
        loosened.restore()


def _remove_empty(directory: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _ancestors(changes: Sequence[c.Change]) -> set[str]:
    """Return the directories above the paths of changes."""
    return {path for _, path in c.all_above(changes)}


def _tops(changes: Sequence[c.Change], kept: set[str]) -> list[c.Change]:
    """Leave out what moves along with a directory above it."""
    tops: list[c.Change] = []
    covered = "\0"
    for change in changes:
        if change.path.startswith(covered):
            continue
        tops.append(change)
        is_whole = change.kind == c.DIRECTORY and not c.is_mode_alone(change) and change.path not in kept
        if is_whole or change.change in (c.DELETED, c.TYPE):
            covered = f"{change.path}/"
    return tops


def _in(loosened: Loosened, change: c.Change, act: Callable[[int, str], None]) -> None:
    """Do something in the directory of a change, opened up where its owner may not change it; none is fine."""
    parent, name = split(change.path)
    try:
        directory = loosened.reach(parent)
    except FileNotFoundError:
        return
    try:
        # Ahead, because not everything that fails in a closed directory says so.
        if os.fstat(directory).st_mode & 0o300 != 0o300:
            loosened.loosen(parent)
        act(directory, name)
    finally:
        os.close(directory)


def _is_used(directory: int, name: str) -> bool:
    """Tell whether there is anything but directories in a directory."""
    found = look(directory, name)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return False
    return any(not stat.S_ISDIR(entry.st_mode) for _, entry in walk(directory, name))


def _merge(source: int, target: int, name: str) -> None:
    """Move what lies in a directory into another that has some of the run's originals; may be repeated."""
    one, other = open_below(source, name), open_below(target, name)
    try:
        for child in entries(one):
            raw = os.fsencode(child)
            try:
                libc.renameat2(one, raw, other, raw, libc.RENAME_NOREPLACE)
            except FileExistsError:
                _merge(one, other, child)
    finally:
        os.close(one)
        os.close(other)
    os.rmdir(name, dir_fd=source)


class _Carrying:
    """One move between two trees, with the directories that it opened up or made on the way."""

    def __init__(self, source: int, target: int, staying: Sequence[c.Change]) -> None:
        self.kept = _ancestors(staying)
        self._source, self._target = Loosened(source), Loosened(target)
        self._made: list[tuple[str, int]] = []

    def take(self, change: c.Change) -> None:
        """Move one entry, a whole tree included."""
        if change.path == ".":
            set_mode(self._target.top, stat.S_IMODE(os.stat(self._source.top).st_mode))
        elif c.is_mode_alone(change) or (change.kind == c.DIRECTORY and change.path in self.kept):
            self._directory(change.path)
        elif change.change == c.DELETED:
            self._mark(change)
        else:
            self._move(change)

    def _mark(self, change: c.Change) -> None:
        """A deletion is a mark: it is made there, and removed here; in an opaque directory there is none."""
        parent = split(change.path)[0]
        self._directory(parent)
        if self._is_opaque(parent):
            return

        def mark(directory: int, name: str) -> None:
            if look(directory, name) is None:
                whiteout(directory, name)

        def unmark(directory: int, name: str) -> None:
            found = look(directory, name)
            if found is not None and is_whiteout(found):
                os.unlink(name, dir_fd=directory)

        _in(self._target, change, mark)
        _in(self._source, change, unmark)

    def _is_opaque(self, path: str) -> bool:
        """Tell whether a directory of the target hides all that lies below it, itself or by one above."""
        while path:
            directory = self._target.reach(path)
            try:
                if is_opaque(directory):
                    return True
            finally:
                os.close(directory)
            path = split(path)[0]
        return False

    def _move(self, change: c.Change) -> None:
        parent, after = split(change.path)[0], change.after
        if after is None:
            raise ValueError(f"nothing to move: {change!r}")
        self._directory(parent)
        to = self._target.reach(parent)

        def act(directory: int, name: str) -> None:
            if look(directory, name) is None:
                return  # moved before
            try:
                move(directory, to, name, after)
            except FileExistsError:
                if after.kind == c.DIRECTORY and _is_used(to, name):
                    _merge(directory, to, name)
                    return
                remove_directories(to, name)  # what is left of one whose entries have gone their way
                move(directory, to, name, after)

        try:
            if os.fstat(to).st_mode & 0o700 != 0o700:
                self._target.loosen(parent)
            _in(self._source, change, act)
        finally:
            os.close(to)

    def _directory(self, path: str) -> None:
        """Make a directory of the target, with those above it, where they are missing: each like the source's."""
        missing = []
        while path and not self._has(path):
            path, name = split(path)
            missing.append(name)
        for name in reversed(missing):
            here = self._target.reach(path)
            try:
                self._make(here, path, name)
            finally:
                os.close(here)
            path = f"{path}/{name}" if path else name

    def _has(self, path: str) -> bool:
        try:
            os.close(self._target.reach(path))
        except FileNotFoundError:
            return False
        return True

    def _make(self, here: int, parent: str, name: str) -> None:
        if os.fstat(here).st_mode & 0o700 != 0o700:
            self._target.loosen(parent)
        os.mkdir(name, 0o700, dir_fd=here)
        like = self._source.reach(parent)
        try:
            found = look(like, name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                copy_directory(like, here, name)
                self._made.append((f"{parent}/{name}" if parent else name, stat.S_IMODE(found.st_mode)))
        finally:
            os.close(like)

    def close(self) -> None:
        """Give every directory the mode that it should have."""
        self._source.restore()
        self._target.restore()
        for path, mode in reversed(self._made):
            directory = open_below(self._target.top, path)
            try:
                set_mode(directory, mode)
            finally:
                os.close(directory)


# ---- Fold layers into one tree that shows the same over a project, by hard links: nothing is copied, and each stays
# whole.
#
# A name is taken from the topmost layer that has it. Directories are made anew, with what belongs to the topmost, and
# what several layers have in them comes together. One that lies over something else, or over an opaque one, is opaque.

_NO_MORE_LINKS = (errno.EMLINK, errno.EPERM, errno.EXDEV)


def fold(target: int, layers: Sequence[int]) -> None:
    """Fill an empty directory with what layers show together; all are named by descriptors, the topmost first."""
    folding = _Folding(target, layers)
    try:
        folding.fold()
    finally:
        folding.close()


class _Directory:
    """One directory of several layers: the numbers of those that have part in it, and whether all below is hidden."""

    __slots__ = ("is_closed", "is_opaque", "numbers", "path")

    def __init__(self, path: str, numbers: Sequence[int]) -> None:
        self.path = path
        self.numbers = list(numbers)
        self.is_opaque = False
        self.is_closed = False  # to parts in layers further down


class _Folding:
    """One folding."""

    def __init__(self, target: int, layers: Sequence[int]) -> None:
        self._target = Parents(target)
        self._layers = [Loosened(layer) for layer in layers]

    def fold(self) -> None:
        """Go down level by level; directories get what belongs to them when they are full, the deepest first."""
        made: list[_Directory] = []
        waiting = [_Directory("", range(len(self._layers)))]
        while waiting:
            directory = waiting.pop()
            made.append(directory)
            waiting += self._level(directory)
        for directory in reversed(made):
            self._finish(directory)

    def _level(self, directory: _Directory) -> list[_Directory]:
        """Fill one directory; return those in it, made but still empty."""
        target = self._target.of(directory.path)
        leaves: set[str] = set()
        inside: dict[str, _Directory] = {}
        for number in directory.numbers:
            layer = self._layers[number].reach(directory.path)
            try:
                for name in os.listdir(layer):
                    found = None if name in leaves else look(layer, name)
                    if found is None:
                        continue
                    below = inside.get(name)
                    if stat.S_ISDIR(found.st_mode):
                        if below is None:
                            path = f"{directory.path}/{name}" if directory.path else name
                            below = inside[name] = _Directory(path, ())
                            os.mkdir(name, 0o700, dir_fd=target)
                        self._add(below, number)
                    elif below is None:
                        leaves.add(name)
                        _link(layer, name, target, found)
                    else:
                        below.is_opaque = below.is_opaque or not below.is_closed
                        below.is_closed = True
            finally:
                os.close(layer)
        return list(inside.values())

    def _add(self, directory: _Directory, number: int) -> None:
        """Let one more layer have part in a directory, if nothing above hides it."""
        if directory.is_closed:
            return
        directory.numbers.append(number)
        part = self._layers[number].reach(directory.path)
        try:
            directory.is_opaque = directory.is_closed = is_opaque(part)
        finally:
            os.close(part)

    def _finish(self, directory: _Directory) -> None:
        source = self._layers[directory.numbers[0]]
        reading, writing = source.reach(directory.path), self._target.open(directory.path, LISTING)
        try:
            if directory.is_opaque:
                set_opaque(writing)
            found = os.fstat(reading)
            copy_belongings(reading, writing, found)
            set_mode(writing, source.modes.get(directory.path, stat.S_IMODE(found.st_mode)))
        finally:
            os.close(reading)
            os.close(writing)

    def close(self) -> None:
        """Close up what was opened to be read, and let go of the directories."""
        self._target.close()
        for layer in self._layers:
            layer.restore()


def _link(layer: int, name: str, target: int, found: os.stat_result) -> None:
    """Give an entry a second name, or copy it where it can have no more."""
    if hides(layer, name, found):
        whiteout(target, name)
        return
    try:
        os.link(name, name, src_dir_fd=layer, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_MORE_LINKS:
            raise
        copy_entry(layer, name, target, name)


# ---- The other names of a file that a command wrote: an overlay gives the new content to the one name it was
# written by.
#
# A write in place reaches every name of a file, a replacement (as by `sed -i`, and most editors) one name only, and a
# layer looks the same after both. What tells them apart is the directory: a copy-up leaves its time as it was, and
# whatever makes, renames or removes an entry does not.

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
