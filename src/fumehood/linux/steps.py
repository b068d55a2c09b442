"""Do the steps of an apply, and take them back, by renames and swaps that are atomic for each path."""

from __future__ import annotations

import errno
import os
import stat

from fumehood.core import changes as c
from fumehood.core.changes import CHMOD, MKDIR, PUT, RMDIR, SWAP, TAKE, Step
from fumehood.linux import libc, staging
from fumehood.linux.copying import copy_directory_metadata
from fumehood.linux.layer import ORIGIN, make_whiteout, remove_attributes, remove_overlay_marks
from fumehood.linux.libc import Closing
from fumehood.linux.lock import Lock
from fumehood.linux.nofollow import (
    AccessibleTree,
    DirectoryCache,
    accessible_entry,
    is_whiteout,
    list_mode_notes,
    open_below,
    open_top,
    remove_directories,
    set_mode,
    split,
    stamp_of,
    stat_entry,
    walk,
)
from fumehood.linux.staging import HardLinkBreaker, stat_unless_written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import TypeVar

    T = TypeVar("T")


class PathChanged(Exception):
    """A live path is not, or no longer, the version that the step was judged for; the step left no trace."""


class LockedByGit(PathChanged):
    """Git is about to replace a live file: its lock is beside it."""


class Sides:
    """The layer and the project of one root, between which steps move entries.

    `ignored_locks` are locks of git that this apply removes.
    """

    def __init__(self, layer: int, live: int, ignored_locks: Collection[str] = ()) -> None:
        self.layer = DirectoryCache(layer)
        self.live = DirectoryCache(live)
        self._ignored_locks = ignored_locks
        self._layer_tree, self._live_tree = AccessibleTree(layer), AccessibleTree(live)

    def is_locked_by_git(self, live: int, step: Step) -> bool:
        """Return True if git is working on a file of its own: it has read the file, and is about to replace it.

        This is checked before a swap and after it: git makes the lock, and then checks that the file is what it read.
        """
        lock = f"{step.change.path}.lock"
        return ".git/" in lock and lock not in self._ignored_locks and stat_entry(live, f"{step.name}.lock") is not None

    def prepare(self, steps: Sequence[Step], linked_changes: Sequence[c.Change]) -> None:
        """Remove overlay marks in the layer before anything leaves it, and copy files that have links elsewhere."""
        # Closed here, because some of these directories are about to move.
        with AccessibleTree(self.layer.top) as tree:
            for step in steps:
                for change in step.marked_entries:
                    self._do_in_layer(tree, change, _remove_marks)
            if linked_changes:
                with HardLinkBreaker(self.layer.top, tree, "after") as breaker:
                    breaker.copy(linked_changes)
                    breaker.place(linked_changes)

    def copy_backups(self, linked_changes: Sequence[c.Change]) -> None:
        """Copy backups that have a link in the project: writes there must not change them."""
        with HardLinkBreaker(self.layer.top, self._layer_tree, "before") as breaker:
            breaker.copy(linked_changes)

    def place_backup_copies(self, linked_changes: Sequence[c.Change]) -> None:
        """Replace the backups by these copies; may be repeated."""
        with HardLinkBreaker(self.layer.top, self._layer_tree, "before") as breaker:
            breaker.place(linked_changes)

    def _do_in_layer(self, tree: AccessibleTree, change: c.Change, act: Callable[[int, c.Change], None]) -> None:
        """Do something in the layer's directory of a change; if needed, the directory is made accessible."""
        parent = change.path.rpartition("/")[0]
        try:
            act(self.layer.get(parent), change)
        except PermissionError:
            if not tree.make_accessible(parent):
                raise
            act(self.layer.get(parent), change)

    def do(self, step: Step) -> None:
        """Do a step; directories whose mode forbids it are made accessible for a while."""
        self._with_access(step, _DO[step.act])

    def swap_files(
        self, steps: Sequence[Step], start: int, done: list[tuple[Sides, Step]], *, even_open: bool = True
    ) -> int:
        """Swap the files of a directory as fast as Python can; return the index of the first step that is not done.

        Pass that step to `do`, which also reports why it can't be done. With `even_open`, files that a program has open
        for writing are swapped, too. This is checked when the file is out of the project, and can't be opened any more.
        """
        first = steps[start]
        root, parent = first.change.root, first.parent
        try:
            layer, live = self.layer.get(parent), self.live.get(parent)
        except OSError:
            return start
        try_exchange, encode, is_in_git = libc.try_exchange, os.fsencode, ".git/" in first.change.path
        for index in range(start, len(steps)):
            step = steps[index]
            change = step.change
            before = change.before
            if step.parent != parent or not step.is_plain or change.verdict != c.APPLIED or change.root != root:
                return index
            if before is None:
                raise ValueError(f"a swap needs both versions: {step!r}")
            # This is checked before the swap, too: otherwise a program that writes the file again and again would find
            # our version there for a moment.
            if not _is_in_place(before, live, step.name) or (is_in_git and self.is_locked_by_git(live, step)):
                return index
            raw_name = encode(step.name)
            if not try_exchange(layer, live, raw_name):
                return index
            checks_writers = not even_open and before.kind == c.FILE
            status = stat_unless_written(layer, raw_name) if checks_writers else stat_entry(layer, step.name)
            is_locked = is_in_git and self.is_locked_by_git(live, step)
            if status is None or not is_same_version(before, status) or is_locked:
                _exchange_back(self, step)
                return index
            before.links = status.st_nlink
            done.append((self, step))
        return len(steps)

    def undo(self, step: Step) -> None:
        """Take back a step that was done."""
        self._with_access(step, _UNDO[step.act])

    def was_done(self, step: Step) -> bool:
        """Return True if a step of an interrupted apply was done."""
        return self._with_access(step, was_done)

    def _with_access(self, step: Step, act: Callable[[Sides, Step], T]) -> T:
        """Do something; if it is not permitted, make the step's directories accessible and try again."""
        try:
            return act(self, step)
        except PermissionError:
            trees = (self._layer_tree, self._live_tree)
            # Both, even if access to the first would be enough.
            has_changed_modes = [tree.make_accessible(step.parent) for tree in trees]
            if not any(has_changed_modes):
                raise
            return act(self, step)
        finally:
            if not step.is_plain:
                for directories in (self.layer, self.live, self._layer_tree, self._live_tree):
                    directories.forget(step.change.path)

    def directory_mode(self, path: str, status: os.stat_result) -> int:
        """Return the mode of a live directory, or the one that it had before it was made accessible."""
        return self._live_tree.modes.get("" if path == "." else path, stat.S_IMODE(status.st_mode))

    def set_directory_mode(self, path: str, mode: int) -> None:
        """Set the mode of a live directory; if it was made accessible, it gets the mode when modes are restored."""
        path = "" if path == "." else path
        if path in self._live_tree.modes:
            self._live_tree.modes[path] = mode
            return
        with Closing(self.live.open(path)) as directory:
            set_mode(directory, mode)

    def close(self) -> None:
        """Close the directories, and restore the modes of those that were made accessible."""
        self.layer.close()
        self.live.close()
        self._layer_tree.restore()
        self._live_tree.restore()


def is_same_version(stamp: c.Stamp, status: os.stat_result | None) -> bool:
    """Return True if an entry is the version of a stamp; a rename makes no difference."""
    if status is None or status.st_ino != stamp.inode or status.st_mode & 0o7777 != stamp.mode:
        return False
    return stamp.kind == c.DIRECTORY or (status.st_size == stamp.size and status.st_mtime_ns == stamp.modified_ns)


def _is_in_place(before: c.Stamp, live: int, name: str) -> bool:
    try:
        return is_same_version(before, stat_entry(live, name))
    except PermissionError:
        return False  # its directory must be made accessible first


def _is_as_judged(sides: Sides, step: Step, version: str) -> bool:
    """Return True if an entry that came out of the project is the version that was judged, with everything in it.

    This is checked when it is in the layer, where nobody can reach it by its path any more. `version` is the attribute
    of a change that has the stamp: "before" or "after".
    """
    stamp: c.Stamp = getattr(step.change, version)
    if not is_same_version(stamp, stat_entry(sides.layer.get(step.parent), step.name)):
        return False
    if stamp.kind != c.DIRECTORY:
        return True
    expected: dict[str, c.Stamp] = {
        change.path: inner for change in step.inside if (inner := getattr(change, version)) is not None
    }
    try:
        for path, status in walk(sides.layer.top, step.change.path):
            inner = expected.pop(path, None)
            if inner is None or not _is_same_inside(inner, status):
                return False
    except PermissionError:
        return False  # a directory in it belongs to another user and is closed to us
    return not expected


def _is_same_inside(stamp: c.Stamp, status: os.stat_result) -> bool:
    """Return True if an entry inside a tree is the version of a stamp; for a directory, only the mode counts."""
    if stamp.kind == c.DIRECTORY:
        return stat.S_ISDIR(status.st_mode) and status.st_mode & 0o7777 == stamp.mode
    return is_same_version(stamp, status)


def _swap(sides: Sides, step: Step) -> None:
    change = step.change
    before, after, name = change.before, change.after, step.name
    if before is None or after is None:
        raise ValueError(f"a swap needs both versions: {step!r}")
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    if not is_same_version(before, stat_entry(live, name)):
        raise PathChanged(change.path)
    if sides.is_locked_by_git(live, step):
        raise LockedByGit(change.path)
    _exchange(layer, live, name, after, before)
    is_locked = sides.is_locked_by_git(live, step)
    if is_locked or not _is_as_judged(sides, step, "before"):
        _exchange_back(sides, step)
        raise LockedByGit(change.path) if is_locked else PathChanged(change.path)


def _swap_back(sides: Sides, step: Step) -> None:
    if stat_entry(sides.live.get(step.parent), step.name) is None or not _exchange_back(sides, step):
        raise PathChanged(step.change.path)


def _exchange_back(sides: Sides, step: Step) -> bool:
    """Take back a swap; if a person has saved another version since, leave that in the project and return False."""
    before, after = step.change.before, step.change.after
    if before is None or after is None:
        raise ValueError(f"a swap needs both versions: {step!r}")
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    _exchange(layer, live, step.name, before, after)
    if _is_as_judged(sides, step, "after"):
        return True
    _exchange(layer, live, step.name, after, before)
    return False


def _exchange(layer: int, live: int, name: str, in_layer: c.Stamp, in_project: c.Stamp) -> None:
    """Swap an entry of the layer with the live one, whatever their kinds."""
    if c.DIRECTORY not in (in_layer.kind, in_project.kind):
        staging.exchange(layer, live, name)
        return
    with accessible_entry(layer, name, live), accessible_entry(live, name, layer):
        staging.exchange(layer, live, name)


def _put(sides: Sides, step: Step) -> None:
    if step.change.after is None:
        raise ValueError(f"nothing to put: {step!r}")
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    try:
        move(layer, live, step.name, step.change.after)
    except FileExistsError:
        raise PathChanged(step.change.path) from None


def _put_back(sides: Sides, step: Step) -> None:
    after, name = step.change.after, step.name
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    if after is None or not is_same_version(after, stat_entry(live, name)):
        raise PathChanged(step.change.path)
    move(live, layer, name, after)
    if not _is_as_judged(sides, step, "after"):
        move(layer, live, name, after)
        raise PathChanged(step.change.path)


def _take(sides: Sides, step: Step) -> None:
    before = step.change.before
    if before is None:
        raise ValueError(f"nothing to take: {step!r}")
    name = step.name
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    if stat_entry(live, name) is None:
        raise PathChanged(step.change.path)
    restore_slot = _clear_slot(layer, name)
    try:
        move(live, layer, name, before)
        if _is_as_judged(sides, step, "before"):
            return
        move(layer, live, name, before)
    except OSError:
        restore_slot()
        raise
    restore_slot()
    raise PathChanged(step.change.path)


def _clear_slot(layer: int, name: str) -> Callable[[], None]:
    """Make room for a backup in the layer; return a function that puts back the whiteout that was there."""
    slot = stat_entry(layer, name)
    if slot is not None and is_whiteout(slot):
        os.unlink(name, dir_fd=layer)
        return lambda: make_whiteout(layer, name)
    if slot is not None and stat.S_ISDIR(slot.st_mode):
        # Its entries have gone into the project one by one.
        remove_directories(layer, name)
    return lambda: None


def _take_back(sides: Sides, step: Step) -> None:
    before = step.change.before
    if before is None:
        raise ValueError(f"nothing was taken: {step!r}")
    name = step.name
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    try:
        move(layer, live, name, before)
    except FileExistsError:
        raise PathChanged(step.change.path) from None
    # So that the layer is again what the run left, and can be applied once more.
    make_whiteout(layer, name)


def _mkdir(sides: Sides, step: Step) -> None:
    step.change.after = _make_directory(sides, step, step.change.after)


def _mkdir_back(sides: Sides, step: Step) -> None:
    os.rmdir(step.name, dir_fd=sides.live.get(step.parent))


def _rmdir(sides: Sides, step: Step) -> None:
    live, layer = sides.live.get(step.parent), sides.layer.get(step.parent)
    status = stat_entry(live, step.name)
    if status is None or not stat.S_ISDIR(status.st_mode):
        raise PathChanged(step.change.path)
    # The layer's directory is the backup from now on.
    copy_directory_metadata(live, layer, step.name)
    if step.change.before is not None:
        _set_entry_mode(layer, step.name, step.change.before.mode)
    try:
        os.rmdir(step.name, dir_fd=live)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise PathChanged(step.change.path) from None


def _rmdir_back(sides: Sides, step: Step) -> None:
    step.change.before = _make_directory(sides, step, step.change.before)


def _make_directory(sides: Sides, step: Step, like: c.Stamp | None) -> c.Stamp:
    """Make a live directory with the metadata of the layer's; return its stamp: it has another inode."""
    live = sides.live.get(step.parent)
    try:
        os.mkdir(step.name, 0o700, dir_fd=live)
    except FileExistsError:
        raise PathChanged(step.change.path) from None
    layer = sides.layer.get(step.parent)
    if stat_entry(layer, step.name) is not None:
        copy_directory_metadata(layer, live, step.name)
    stamp = stamp_of(os.stat(step.name, dir_fd=live, follow_symlinks=False))
    stamp.mode = 0o755 if like is None else like.mode
    sides.set_directory_mode(step.change.path, stamp.mode)
    return stamp


def _chmod(sides: Sides, step: Step) -> None:
    before, after = step.change.before, step.change.after
    if before is None or after is None:
        raise ValueError(f"a mode needs both versions: {step!r}")
    _change_mode(sides, step, before, after)


def _chmod_back(sides: Sides, step: Step) -> None:
    before, after = step.change.before, step.change.after
    if before is None or after is None:
        raise ValueError(f"a mode needs both versions: {step!r}")
    _change_mode(sides, step, after, before)


def _change_mode(sides: Sides, step: Step, old: c.Stamp, new: c.Stamp) -> None:
    status = stat_entry(sides.live.get(step.parent), step.name)
    if status is None or status.st_ino != old.inode or not stat.S_ISDIR(status.st_mode):
        raise PathChanged(step.change.path)
    if sides.directory_mode(step.change.path, status) != old.mode:
        raise PathChanged(step.change.path)
    sides.set_directory_mode(step.change.path, new.mode)


_DO = {SWAP: _swap, PUT: _put, TAKE: _take, MKDIR: _mkdir, RMDIR: _rmdir, CHMOD: _chmod}
_UNDO = {SWAP: _swap_back, PUT: _put_back, TAKE: _take_back, MKDIR: _mkdir_back, RMDIR: _rmdir_back, CHMOD: _chmod_back}


def move(source: int, target: int, name: str, stamp: c.Stamp) -> None:
    """Rename an entry from one side to the other; raises FileExistsError if the name is taken there."""
    if stamp.kind != c.DIRECTORY:
        staging.move(source, target, name)
        return
    with accessible_entry(source, name, target):
        staging.move(source, target, name)


def _set_entry_mode(directory: int, name: str, mode: int) -> None:
    with Closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as entry:
        set_mode(entry, mode)


def _remove_marks(directory: int, change: c.Change) -> None:
    name = split(change.path)[1]
    if change.marked == c.ORIGIN_MARK:
        remove_attributes(directory, name, [ORIGIN])
    else:
        remove_overlay_marks(directory, name)


# ---- Find out whether a step of an interrupted apply was done, from what is on each side.

UNREACHABLE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def was_done(sides: Sides, step: Step) -> bool:
    """Return True if a step was done: a rename keeps the inode, which says on which side a version is."""
    was_act_done = _WAS_DONE[step.act]
    if step.change.path == ".":
        return was_act_done(step.change, None, stat_entry(sides.live.top, "."))
    if step.act in (SWAP, PUT, TAKE):
        _finish_swap(sides, step)
    slot, live = _stat_side(sides.layer, step), _stat_side(sides.live, step)
    return was_act_done(step.change, slot, live)


def _finish_swap(sides: Sides, step: Step) -> None:
    """Bring each version to one side, if a swap that takes several calls was interrupted."""
    change = step.change
    try:
        layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return

    def is_ours(status: os.stat_result) -> bool:
        return _has_inode(change.before, status) or _has_inode(change.after, status)

    staging.finish_swap(layer, live, step.name, is_ours)


def _stat_side(directories: DirectoryCache, step: Step) -> os.stat_result | None:
    try:
        return stat_entry(directories.get(step.parent), step.name)
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return None


def _has_inode(stamp: c.Stamp | None, status: os.stat_result | None) -> bool:
    return stamp is not None and status is not None and status.st_ino == stamp.inode


def _was_swapped(change: c.Change, slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    if slot is None or is_whiteout(slot) or _has_inode(change.before, live):
        return False
    return _has_inode(change.before, slot) or _has_inode(change.after, live)


def _was_put(change: c.Change, slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return (slot is None or is_whiteout(slot)) and _has_inode(change.after, live)


def _was_taken(change: c.Change, slot: os.stat_result | None, _live: os.stat_result | None) -> bool:
    return _has_inode(change.before, slot) and slot is not None and not is_whiteout(slot)


def _was_made(_change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return live is not None and stat.S_ISDIR(live.st_mode)


def _was_removed(_change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return live is None


def _was_mode_set(change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or live is None or live.st_ino != before.inode:
        return False
    return stat.S_IMODE(live.st_mode) == after.mode


_WAS_DONE = {
    SWAP: _was_swapped, PUT: _was_put, TAKE: _was_taken, MKDIR: _was_made, RMDIR: _was_removed, CHMOD: _was_mode_set,
}  # fmt: skip


# ---- Restore modes that were changed for a while.


def restore_modes(directory: str) -> None:
    """Restore the modes that dead processes had changed, and those that could not be restored before.

    `directory` has the notes of such modes. If this fails for a mode, its note is kept. It must be done before entries
    are moved, because the notes have their paths.
    """
    locks: dict[str, Lock] = {}
    kept: set[str] = set()
    entries: list[tuple[str, bytes]] = []
    try:
        for note in [f"{directory}/{name}" for name in list_mode_notes(directory)]:
            try:
                locks[note] = lock = Lock(os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
                lock.take(wait=False)
                if not os.path.samestat(os.fstat(lock.file), os.lstat(note)):
                    kept.add(note)  # another process has removed it, and a new note has its name
                    continue
                with open(lock.file, "rb", closefd=False) as file:
                    entries += [(note, entry) for entry in file.read().split(b"\0")[:-1]]
            except OSError:
                kept.add(note)  # locked by a living process, removed by another process, or unreadable
        # The deepest first, from all notes together: a directory above it may be closed otherwise.
        for note, entry in sorted(entries, key=lambda each: -len(each[1].split(b" ", 3)[3])):
            device, inode, mode, path = entry.split(b" ", 3)
            try:
                _restore_mode(path, (int(device), int(inode)), int(mode, 8))
            except OSError:
                kept.add(note)
        for note in locks.keys() - kept:
            try:
                os.unlink(note)
            except OSError:
                continue  # the next process removes it
    finally:
        for lock in locks.values():
            lock.close()


def _restore_mode(path: bytes, identity: tuple[int, int], mode: int) -> None:
    """Restore the mode of an entry, if it is still there and has the mode that we gave it."""
    try:
        with Closing(open_top("/")) as root:
            fd = open_below(root, os.fsdecode(path.lstrip(b"/")), os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return
    with Closing(fd):
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == identity and stat.S_IMODE(status.st_mode) == mode | 0o700:
            set_mode(fd, mode)
