"""Layers that wait: moved apart from a run's own layer, and folded into one tree; and files that have more names."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from itertools import islice

from fumehood.core import changes as c
from fumehood.core.judge import object_store_of
from fumehood.linux import staging
from fumehood.linux.copying import copy_belongings, copy_directory, copy_entry, fill, is_linked
from fumehood.linux.layer import IN_PLACE, LayerStack, is_opaque, list_attributes, make_whiteout, set_opaque
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.nofollow import (
    LISTING,
    AccessibleTree,
    entries,
    is_whiteout,
    join,
    open_below,
    remove_directories,
    remove_tree,
    set_mode,
    split,
    stamp_of,
    stat_entry,
    walk,
)
from fumehood.linux.steps import move

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


# ---- Move what is held between a run's layer and the tree of its own that later commands see.
#
# A layer's slots fill with the originals of what was applied, so what still waits is set apart from them. Every version
# is in one of the two places, and a move that was cut short is done again.

def carry(source: int, target: int, moving: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Move the layer's side of some changes of one root to another tree; those that `stay` are left in place."""
    with _Carrying(source, target, staying) as carrying:
        for change in _tops(moving, carrying.kept):
            carrying.take(change)


def throw_away(top: int, changes: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Remove the layer's side of some changes."""
    kept = _ancestors(staying)
    with AccessibleTree(top) as tree:
        for change in _tops(changes, kept):
            if not c.is_directory_mode(change) and change.path not in kept:
                _act_at(tree, change.path, remove_tree)


def prune(top: int, waiting: Sequence[c.Change]) -> None:
    """Remove the directories that nothing waits in: one left behind would hide that the project's own is gone."""
    needed = _ancestors(waiting) | {change.path for change in waiting}
    whole = c.DirectorySet({(0, each.path) for each in waiting if each.kind == c.DIRECTORY and each.change != c.MODE})
    directories = [path for path, status in walk(top, "") if stat.S_ISDIR(status.st_mode)]
    with AccessibleTree(top) as tree:
        for path in reversed(directories):
            if path not in needed and whole.topmost(0, path) is None:
                parent, name = split(path)
                with Closing(tree.open_to_change(parent)) as directory:
                    try:
                        os.rmdir(name, dir_fd=directory)
                    except OSError as error:
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                            raise


def _ancestors(changes: Sequence[c.Change]) -> set[str]:
    """Return the directories above the paths of changes."""
    return {path for _, path in c.all_directories_above(changes)}


def _tops(changes: Sequence[c.Change], kept: set[str]) -> list[c.Change]:
    """Leave out what moves along with a directory above it."""
    tops: list[c.Change] = []
    covered = "\0"
    for change in changes:
        if change.path.startswith(covered):
            continue
        tops.append(change)
        is_whole = change.kind == c.DIRECTORY and not c.is_directory_mode(change) and change.path not in kept
        if is_whole or change.change in (c.DELETED, c.TYPE):
            covered = f"{change.path}/"
    return tops


def _act_at(tree: AccessibleTree, path: str, act: Callable[[int, str], None]) -> None:
    """Do something in the directory of a path, opened up where its owner may not change it; none is fine."""
    parent, name = split(path)
    try:
        # Opened up ahead, because not everything that fails in a closed directory says so.
        directory = tree.open_to_change(parent)
    except FileNotFoundError:
        return
    with Closing(directory):
        act(directory, name)


def _mark(directory: int, name: str) -> None:
    if stat_entry(directory, name) is None:
        make_whiteout(directory, name)


def _unmark(directory: int, name: str) -> None:
    status = stat_entry(directory, name)
    if status is not None and is_whiteout(status):
        os.unlink(name, dir_fd=directory)


def _merge(source: int, target: int, name: str) -> None:
    """Move what lies in a directory into another that has some of the run's originals; may be repeated."""
    with Closing(open_below(source, name)) as one, Closing(open_below(target, name)) as other:
        for child in entries(one):
            try:
                staging.move(one, other, child)
            except FileExistsError:
                _merge(one, other, child)
    os.rmdir(name, dir_fd=source)


class _Carrying(Closable):
    """One move between two trees, with the directories that it opened up or made on the way."""

    def __init__(self, source: int, target: int, staying: Sequence[c.Change]) -> None:
        self.kept = _ancestors(staying)
        self._source, self._target = AccessibleTree(source), AccessibleTree(target)
        self._made: list[tuple[str, int]] = []

    def take(self, change: c.Change) -> None:
        if change.path == ".":
            set_mode(self._target.top, stat.S_IMODE(os.stat(self._source.top).st_mode))
        elif c.is_directory_mode(change) or (change.kind == c.DIRECTORY and change.path in self.kept):
            self._directory(change.path)
        elif change.change == c.DELETED:
            # A mark: it is made there, and removed here; in an opaque directory there is none.
            self._directory(split(change.path)[0])
            if not self._is_hidden(change.path):
                _act_at(self._target, change.path, _mark)
                _act_at(self._source, change.path, _unmark)
        else:
            self._move(change)

    def _is_hidden(self, path: str) -> bool:
        """Return True if a directory of the target above a path hides all that lies below it."""
        while path := split(path)[0]:
            with Closing(self._target.open_to_read(path)) as directory:
                if is_opaque(directory):
                    return True
        return False

    def _move(self, change: c.Change) -> None:
        parent, after = split(change.path)[0], change.after
        if after is None:
            raise ValueError(f"nothing to move: {change!r}")
        self._directory(parent)
        with Closing(self._target.open_to_change(parent)) as to:

            def act(directory: int, name: str) -> None:
                if stat_entry(directory, name) is None:
                    return  # moved before
                try:
                    move(directory, to, name, after)
                except FileExistsError:
                    if after.kind == c.DIRECTORY and _is_used(to, name):
                        _merge(directory, to, name)
                        return
                    remove_directories(to, name)  # what is left of one whose entries have gone their way
                    move(directory, to, name, after)

            _act_at(self._source, change.path, act)

    def _directory(self, path: str) -> None:
        """Make a directory of the target, with those above it, where they are missing: each like the source's."""
        missing = []
        while path:
            try:
                os.close(self._target.open_to_read(path))
            except FileNotFoundError:
                path, name = split(path)
                missing.append(name)
            else:
                break
        for name in reversed(missing):
            with Closing(self._target.open_to_change(path)) as here, Closing(self._source.open_to_read(path)) as like:
                os.mkdir(name, 0o700, dir_fd=here)
                status = stat_entry(like, name)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    copy_directory(like, here, name)
                    self._made.append((join(path, name), stat.S_IMODE(status.st_mode)))
            path = join(path, name)

    def close(self) -> None:
        self._source.restore()
        self._target.restore()
        for path, mode in reversed(self._made):
            with Closing(open_below(self._target.top, path)) as directory:
                set_mode(directory, mode)


def _is_used(directory: int, name: str) -> bool:
    """Return True if there is anything but directories in a directory."""
    status = stat_entry(directory, name)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return False
    return any(not stat.S_ISDIR(each.st_mode) for _, each in walk(directory, name))


# ---- Fold layers into one tree that shows the same over a project, by hard links: nothing is copied, and each stays
# whole.
#
# A name is taken from the topmost layer that has it. Directories are made anew, with what belongs to the topmost, and
# what several layers have in them comes together. One that lies over something else, or over an opaque one, is opaque.


def fold(target: int, layers: Sequence[int], *, goes: bool = False) -> None:
    """Fill an empty directory with what layers show together; all are named by descriptors, the topmost first.

    Where that `goes` into the project, links are made of regular files only, which are parted from their other names
    before. Otherwise all must have the inodes by which held changes are known.
    """
    with LayerStack(layers, over_project=False) as stack:

        def make(layer: int, folded: int, name: str, path: str, status: os.stat_result | None) -> None:
            if status is None:
                make_whiteout(folded, name)
            elif stat.S_ISDIR(status.st_mode):
                if stack.hides_below(path):
                    with Closing(open_below(folded, name, LISTING)) as directory:
                        set_opaque(directory)
            elif (goes and not stat.S_ISREG(status.st_mode)) or not is_linked(layer, name, folded, name):
                copy_entry(layer, name, folded, name)

        fill(target, stack, make)


# ---- The other names of a file that a command wrote: an overlay gives the new content to the one name it was
# written by.
#
# A write in place reaches every name of a file, a replacement (as by `sed -i`, and most editors) one name only. Where
# that is known, the layer's file has a mark. The kernel's overlay leaves none, and then the directory tells: a copy-up
# leaves its time as it was, and whatever makes, renames or removes an entry does not.

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

    `changes` are those of the layer `upper` over `below`, as for a scan. A name that lies elsewhere, or changed
    otherwise, is left alone.
    """
    # Files that lie in held layers have as many links as they have names there: a fold gives each one more.
    for held in below[:-1]:
        mine = []
        for change in changes:
            before = change.before
            if before is None or before.links < 2:
                continue
            parent, name = split(change.path)
            try:
                with Closing(open_below(held, parent)) as directory:
                    status = stat_entry(directory, name)
            except OSError:
                continue  # not in this one
            if status is not None and status.st_ino == before.inode:
                mine.append(before)
        if mine:
            inodes = {before.inode for before in mine}
            names = Counter(status.st_ino for _, status in walk(held, "") if status.st_ino in inodes)
            for before in mine:
                before.links = names[before.inode] or before.links
    with LayerStack(below) as stack, AccessibleTree(upper) as layer:
        return c.by_path((*changes, *_Links(changes, layer, stack).kept()))


class _Links:
    """The names of the files that one layer changes by one of them."""

    def __init__(self, changes: list[c.Change], layer: AccessibleTree, below: LayerStack) -> None:
        self._changes = changes
        self._layer = layer
        self._below = below

    def kept(self) -> Iterator[c.Change]:
        """Make the names that belong to a file links in the layer too, and yield these as changes."""
        several = [(change, change.before) for change in linked(self._changes) if change.before is not None]
        changed, written = Counter(self._inodes(self._changes)), Counter(self._inodes(linked(self._changes)))
        alone = {
            change.path for change, before in several if written[before.inode] == 1 and self._is_in_place(change.path)
        }
        names, paths = self._names(alone), {change.path for change in self._changes}
        for change, before in several:
            others = [path for path in names.get(change.path, ()) if path not in paths]
            left = before.links - changed[before.inode] - len(others)
            # Git only touches an object, never writes another one.
            if left > 0 and not object_store_of(f"/{change.path}"):
                change.flags = (*change.flags, f"{c.OTHER_NAMES}:{left}")
            if others:
                yield from self._also_at(change, others)

    @staticmethod
    def _inodes(changes: Iterable[c.Change]) -> list[int]:
        """Return the inodes of files with several names that were there before."""
        return [each.before.inode for each in changes if each.before is not None and each.before.links > 1]

    def _is_in_place(self, path: str) -> bool:
        """Return True if a file has the mark, or nothing was made, renamed or removed where it lies: no replacement."""
        parent, name = split(path)
        with Closing(self._layer.open_to_read(parent)) as layer, self._below.open_merged(parent) as live:
            if IN_PLACE in list_attributes(layer, name):
                return True
            status, _ = live.look(".")
            return status is not None and status.st_mtime_ns == os.fstat(layer).st_mtime_ns

    def _names(self, changed: Iterable[str]) -> dict[str, list[str]]:
        """Return all names of files, by the path that was changed."""
        wanted: dict[tuple[int, int], list[str]] = {}
        names: dict[str, list[str]] = {}
        for path in changed:
            parent, name = split(path)
            with self._below.open_merged(parent) as live:
                status, _ = live.look(name)
            if status is not None:
                names[path] = wanted.setdefault((status.st_dev, status.st_ino), [])
        for path, status in islice(self._below.walk(""), _MOST) if wanted else ():
            if status.st_nlink > 1 and (status.st_dev, status.st_ino) in wanted:
                wanted[status.st_dev, status.st_ino].append(path)
        return names

    def _also_at(self, change: c.Change, others: Sequence[str]) -> Iterator[c.Change]:
        parent, name = split(change.path)
        with Closing(self._layer.open_to_read(parent)) as source:
            for path in others:
                self._link(source, name, path)
            stamp = stamp_of(os.stat(name, dir_fd=source, follow_symlinks=False))
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
        with Closing(self._layer.open_to_change(parent)) as directory:
            before = os.fstat(directory)
            if stat_entry(directory, target) is None:
                os.link(name, target, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _make_way(self, parent: str) -> None:
        """Make the directories of the layer that a path lies in, like those that they stand for."""
        above = ""
        for name in parent.split("/") if parent else ():
            path = join(above, name)
            with Closing(self._layer.open_to_change(above)) as layer:
                if stat_entry(layer, name) is None:
                    os.mkdir(name, 0o700, dir_fd=layer)
                    source, mode = self._below.open_topmost(path)
                    with Closing(source) as like, Closing(open_below(layer, name, LISTING)) as made:
                        copy_belongings(like, made, os.fstat(like))
                        set_mode(made, mode)
            above = path
