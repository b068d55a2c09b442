"""Held changes: move them out of a run's layer, fold held layers into one tree, and update other names of files."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from itertools import islice

from fumehood.core import changes as c
from fumehood.core.judge import object_store_of
from fumehood.linux import staging
from fumehood.linux.copying import copy_directory_metadata, copy_entry, copy_metadata, fill_directory, try_link
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


# ---- Move held changes between a run's layer and a separate tree, which later commands see.
#
# After an apply, the slots of a layer hold originals, so the changes that are still held must not stay among them.
# At any time each version is in one of the two trees; an interrupted move is repeated.

def move_changes(source: int, target: int, moving: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Move the new versions of some changes of one root to another tree; those of `staying` stay in place."""
    with _Mover(source, target, staying) as mover:
        for change in _topmost_changes(moving, mover.shared_directories):
            mover.move(change)


def remove_changes(top: int, changes: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Remove the new versions of some changes; directories that contain `staying` changes stay."""
    shared_directories = _directories_above(staying)
    with AccessibleTree(top) as tree:
        for change in _topmost_changes(changes, shared_directories):
            if not c.is_directory_mode(change) and change.path not in shared_directories:
                _call_in_parent(tree, change.path, remove_tree)


def remove_empty_directories(top: int, staying: Sequence[c.Change]) -> None:
    """Remove the directories without a staying change.

    An empty one would make later commands see a directory that the project no longer has.
    """
    needed = _directories_above(staying) | {change.path for change in staying}
    new_trees = {(0, each.path) for each in staying if each.kind == c.DIRECTORY and each.change != c.MODE}
    inside_new_trees = c.DirectorySet(new_trees)
    directories = [path for path, status in walk(top, "") if stat.S_ISDIR(status.st_mode)]
    with AccessibleTree(top) as tree:
        for path in reversed(directories):
            if path not in needed and inside_new_trees.topmost(0, path) is None:
                parent, name = split(path)
                with Closing(tree.open_to_change(parent)) as directory:
                    try:
                        os.rmdir(name, dir_fd=directory)
                    except OSError as error:
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                            raise


def _directories_above(changes: Sequence[c.Change]) -> set[str]:
    return {path for _, path in c.all_directories_above(changes)}


def _topmost_changes(changes: Sequence[c.Change], shared: set[str]) -> list[c.Change]:
    """Leave out the changes that move together with a directory above them."""
    tops: list[c.Change] = []
    covered = "\0"
    for change in changes:
        if change.path.startswith(covered):
            continue
        tops.append(change)
        is_whole = change.kind == c.DIRECTORY and not c.is_directory_mode(change) and change.path not in shared
        if is_whole or change.change in (c.DELETED, c.TYPE):
            covered = f"{change.path}/"
    return tops


def _call_in_parent(tree: AccessibleTree, path: str, act: Callable[[int, str], None]) -> None:
    """Call a function with the directory of a path and its name; do nothing if there is no such directory."""
    parent, name = split(path)
    try:
        # Make it accessible first: not every failure in a closed directory is a PermissionError.
        directory = tree.open_to_change(parent)
    except FileNotFoundError:
        return
    with Closing(directory):
        act(directory, name)


def _mark_deleted(directory: int, name: str) -> None:
    if stat_entry(directory, name) is None:
        make_whiteout(directory, name)


def _remove_mark(directory: int, name: str) -> None:
    status = stat_entry(directory, name)
    if status is not None and is_whiteout(status):
        os.unlink(name, dir_fd=directory)


def _merge(source: int, target: int, name: str) -> None:
    """Move the entries of a directory into another one, which has some of the run's originals; may be repeated."""
    with Closing(open_below(source, name)) as source_dir, Closing(open_below(target, name)) as target_dir:
        for child in entries(source_dir):
            try:
                staging.move(source_dir, target_dir, child)
            except FileExistsError:
                _merge(source_dir, target_dir, child)
    os.rmdir(name, dir_fd=source)


class _Mover(Closable):
    """Moves changes from one tree to another, and remembers the directories that it made accessible or created."""

    def __init__(self, source: int, target: int, staying: Sequence[c.Change]) -> None:
        self.shared_directories = _directories_above(staying)
        self._source, self._target = AccessibleTree(source), AccessibleTree(target)
        self._made: list[tuple[str, int]] = []

    def move(self, change: c.Change) -> None:
        if change.path == ".":
            set_mode(self._target.top, stat.S_IMODE(os.stat(self._source.top).st_mode))
        elif c.is_directory_mode(change) or (change.kind == c.DIRECTORY and change.path in self.shared_directories):
            self._make_directory(change.path)
        elif change.change == c.DELETED:
            # Create a whiteout in the target and remove the source's. An opaque directory needs none.
            self._make_directory(split(change.path)[0])
            if not self._is_in_opaque_directory(change.path):
                _call_in_parent(self._target, change.path, _mark_deleted)
                _call_in_parent(self._source, change.path, _remove_mark)
        else:
            self._move_entry(change)

    def _is_in_opaque_directory(self, path: str) -> bool:
        while path := split(path)[0]:
            with Closing(self._target.open_to_read(path)) as directory:
                if is_opaque(directory):
                    return True
        return False

    def _move_entry(self, change: c.Change) -> None:
        parent, after = split(change.path)[0], change.after
        if after is None:
            raise ValueError(f"nothing to move: {change!r}")
        self._make_directory(parent)
        with Closing(self._target.open_to_change(parent)) as target_dir:

            def move_to_target(directory: int, name: str) -> None:
                if stat_entry(directory, name) is None:
                    return  # an earlier call has moved it
                try:
                    move(directory, target_dir, name, after)
                except FileExistsError:
                    if after.kind == c.DIRECTORY and _holds_files(target_dir, name):
                        _merge(directory, target_dir, name)
                        return
                    remove_directories(target_dir, name)  # empty ones: their entries were moved one by one
                    move(directory, target_dir, name, after)

            _call_in_parent(self._source, change.path, move_to_target)

    def _make_directory(self, path: str) -> None:
        """Create a directory of the target and missing ones above it, with the metadata of the source's."""
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
            with (
                Closing(self._target.open_to_change(path)) as target_dir,
                Closing(self._source.open_to_read(path)) as source_dir,
            ):
                os.mkdir(name, 0o700, dir_fd=target_dir)
                status = stat_entry(source_dir, name)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    copy_directory_metadata(source_dir, target_dir, name)
                    self._made.append((join(path, name), stat.S_IMODE(status.st_mode)))
            path = join(path, name)

    def close(self) -> None:
        self._source.restore()
        self._target.restore()
        for path, mode in reversed(self._made):
            with Closing(open_below(self._target.top, path)) as directory:
                set_mode(directory, mode)


def _holds_files(directory: int, name: str) -> bool:
    """Return True if a tree contains anything else than directories."""
    status = stat_entry(directory, name)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return False
    return any(not stat.S_ISDIR(each.st_mode) for _, each in walk(directory, name))


# ---- Fold layers into one tree that shows the same over a project. It consists of hard links: nothing is copied, and
# the layers stay as they are.
#
# Each entry is taken from the topmost layer that has it. Directories are created, with the metadata of the topmost, and
# contain the entries of all layers. A directory over something else, or over an opaque directory, is opaque.


def fold(target: int, layers: Sequence[int], *, for_project: bool = False) -> None:
    """Fill an empty directory with what layers show together; `layers` are descriptors, the topmost first.

    `for_project` says that the result will be applied. Then only regular files are linked; they get inodes of their own
    before the apply. Otherwise every entry is linked: held changes are identified by inodes.
    """
    with LayerStack(layers, over_project=False) as stack:

        def make(layer: int, folded: int, name: str, path: str, status: os.stat_result | None) -> None:
            if status is None:
                make_whiteout(folded, name)
            elif stat.S_ISDIR(status.st_mode):
                if stack.hides_below(path):
                    with Closing(open_below(folded, name, LISTING)) as directory:
                        set_opaque(directory)
            elif (for_project and not stat.S_ISREG(status.st_mode)) or not try_link(layer, name, folded, name):
                copy_entry(layer, name, folded, name)

        fill_directory(target, stack, make)


# ---- The other names of a file that a command wrote. In an overlay, only the name that it wrote has the new content.
#
# Without an overlay, a write in place changes the file under all its names. A replacement (by `sed -i` and most
# editors) changes one name only. To tell these apart, some captures mark files written in place. The kernel's overlay
# does not, but then the directory's time tells: a copy-up does not change it, and creating, renaming or removing an
# entry does.

_MOST_ENTRIES = 20_000  # entries of a project that are searched for other names


def changes_of_linked_files(changes: Sequence[c.Change]) -> list[c.Change]:
    """Return the changes to content or mode of files that have several names."""
    return [
        change
        for change in changes
        if change.before is not None and change.before.links > 1
        and change.change in (c.MODIFIED, c.MODE) and change.kind == c.FILE
    ]  # fmt: skip


def update_other_names(changes: list[c.Change], upper: int, *below: int) -> list[c.Change]:
    """Give the new content of files that were written in place to their other names too.

    `changes` are those of the layer `upper` over `below`, as for a scan. A name outside the root, or one that the
    command changed in another way, stays as it is: the change is flagged with the number of such names.
    """
    # The link count of a file in a held layer includes its names in folds: count its names in that layer instead.
    for held in below[:-1]:
        linked_stamps = []
        for change in changes:
            before = change.before
            if before is None or before.links < 2:
                continue
            parent, name = split(change.path)
            try:
                with Closing(open_below(held, parent)) as directory:
                    status = stat_entry(directory, name)
            except OSError:
                continue  # not in this held layer
            if status is not None and status.st_ino == before.inode:
                linked_stamps.append(before)
        if linked_stamps:
            inodes = {before.inode for before in linked_stamps}
            names = Counter(status.st_ino for _, status in walk(held, "") if status.st_ino in inodes)
            for before in linked_stamps:
                before.links = names[before.inode] or before.links
    with LayerStack(below) as stack, AccessibleTree(upper) as layer:
        return c.by_path((*changes, *_OtherNames(changes, layer, stack).changes()))


class _OtherNames:
    """Finds and updates the other names of files that one layer changes."""

    def __init__(self, changes: list[c.Change], layer: AccessibleTree, below: LayerStack) -> None:
        self._changes = changes
        self._layer = layer
        self._below = below

    def changes(self) -> Iterator[c.Change]:
        """Link the other names of written files in the layer too, and yield each as a change."""
        linked_changes = changes_of_linked_files(self._changes)
        linked = [(change, change.before) for change in linked_changes if change.before is not None]
        changed, written = Counter(self._inodes(self._changes)), Counter(self._inodes(linked_changes))
        written_in_place = {
            change.path for change, before in linked if written[before.inode] == 1 and self._is_in_place(change.path)
        }
        names_by_path, changed_paths = self._names(written_in_place), {change.path for change in self._changes}
        for change, before in linked:
            others = [path for path in names_by_path.get(change.path, ()) if path not in changed_paths]
            missed = before.links - changed[before.inode] - len(others)
            if missed > 0 and not object_store_of(f"/{change.path}"):  # git never changes the content of an object
                change.flags = (*change.flags, f"{c.OTHER_NAMES}:{missed}")
            if others:
                yield from self._also_at(change, others)

    @staticmethod
    def _inodes(changes: Iterable[c.Change]) -> list[int]:
        """Return the inodes that changed files with several names had before."""
        return [each.before.inode for each in changes if each.before is not None and each.before.links > 1]

    def _is_in_place(self, path: str) -> bool:
        """Return True if a file was not replaced: it has the mark, or its directory's time is unchanged."""
        parent, name = split(path)
        with Closing(self._layer.open_to_read(parent)) as layer, self._below.open_merged(parent) as live:
            if IN_PLACE in list_attributes(layer, name):
                return True
            status, _ = live.look(".")
            return status is not None and status.st_mtime_ns == os.fstat(layer).st_mtime_ns

    def _names(self, changed: Iterable[str]) -> dict[str, list[str]]:
        """Return all names of each changed file, by its changed path."""
        paths_by_file: dict[tuple[int, int], list[str]] = {}
        names_by_path: dict[str, list[str]] = {}
        for path in changed:
            parent, name = split(path)
            with self._below.open_merged(parent) as live:
                status, _ = live.look(name)
            if status is not None:
                names_by_path[path] = paths_by_file.setdefault((status.st_dev, status.st_ino), [])
        for path, status in islice(self._below.walk(""), _MOST_ENTRIES) if paths_by_file else ():
            if status.st_nlink > 1 and (status.st_dev, status.st_ino) in paths_by_file:
                paths_by_file[status.st_dev, status.st_ino].append(path)
        return names_by_path

    def _also_at(self, change: c.Change, other_names: Sequence[str]) -> Iterator[c.Change]:
        parent, name = split(change.path)
        with Closing(self._layer.open_to_read(parent)) as source:
            for path in other_names:
                self._link(source, name, path)
            stamp = stamp_of(os.stat(name, dir_fd=source, follow_symlinks=False))
        change.after = stamp
        for path in other_names:
            yield c.Change(
                change.root, path, change.change, change.kind,
                before=change.before, after=stamp, marked=change.marked, flags=change.flags,
            )  # fmt: skip

    def _link(self, source: int, name: str, path: str) -> None:
        """Give a file of the layer another name; the directory's time stays the same, as with a copy-up."""
        parent, target = split(path)
        self._make_directories(parent)
        with Closing(self._layer.open_to_change(parent)) as directory:
            before = os.fstat(directory)
            if stat_entry(directory, target) is None:
                os.link(name, target, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _make_directories(self, parent: str) -> None:
        """Create a directory of the layer and those above it, with the metadata of the directories below the layer."""
        above = ""
        for name in parent.split("/") if parent else ():
            path = join(above, name)
            with Closing(self._layer.open_to_change(above)) as layer:
                if stat_entry(layer, name) is None:
                    os.mkdir(name, 0o700, dir_fd=layer)
                    source, mode = self._below.open_topmost(path)
                    with Closing(source) as like, Closing(open_below(layer, name, LISTING)) as made:
                        copy_metadata(like, made, os.fstat(like))
                        set_mode(made, mode)
            above = path
