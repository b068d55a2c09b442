"""Do one step of an apply to the project, and take it back: by swaps that are atomic for each path."""

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


class Changed(Exception):
    """A live path is not, or no longer, what the step was judged against; the step left no trace."""


class Locked(Changed):
    """Git is about to replace a live file: its lock lies beside it."""


class Sides:
    """The layer and the project of one root, between which steps move entries.

    `unlocked` are locks of git's that don't count, because they are among what goes.
    """

    def __init__(self, layer: int, live: int, unlocked: Collection[str] = ()) -> None:
        self.layer = DirectoryCache(layer)
        self.live = DirectoryCache(live)
        self._unlocked = unlocked
        self._loosened = AccessibleTree(layer), AccessibleTree(live)

    def is_locked(self, live: int, step: Step) -> bool:
        """Return True if git is at work on a file of its own: what it read before is about to take the file's place.

        Asked before a swap and after it. Git locks first, and then makes sure that the file is still what it read.
        """
        path = f"{step.change.path}.lock"
        return ".git/" in path and path not in self._unlocked and stat_entry(live, f"{step.name}.lock") is not None

    def prepare(self, steps: Sequence[Step], sharing: Sequence[c.Change]) -> None:
        """Mend the layer before anything leaves it: no overlay bookkeeping, no inode shared with what stays."""
        # Closed up again here, for some of these directories are about to move.
        with AccessibleTree(self.layer.top) as loosened:
            for step in steps:
                for change in step.marked_entries:
                    self._in_layer(loosened, change, _unmark)
            if sharing:
                with HardLinkBreaker(self.layer.top, loosened, "after") as parting:
                    parting.copy(sharing)
                    parting.place(sharing)

    def copy_backups(self, sharing: Sequence[c.Change]) -> None:
        """Copy backups that have a link in the project, for a write there must not reach them."""
        with HardLinkBreaker(self.layer.top, self._loosened[0], "before") as parting:
            parting.copy(sharing)

    def part_backups(self, sharing: Sequence[c.Change]) -> None:
        """Let those copies take the backups' places; may be repeated."""
        with HardLinkBreaker(self.layer.top, self._loosened[0], "before") as parting:
            parting.place(sharing)

    def _in_layer(self, loosened: AccessibleTree, change: c.Change, act: Callable[[int, c.Change], None]) -> None:
        """Do something in the directory that holds a change, opened up if it forbids that to its owner."""
        parent = change.path.rpartition("/")[0]
        try:
            act(self.layer.get(parent), change)
        except PermissionError:
            if not loosened.make_accessible(parent):
                raise
            act(self.layer.get(parent), change)

    def do(self, step: Step) -> None:
        """Perform a step; directories that forbid it to their own owner are opened up for a while."""
        self._patiently(step, _DO[step.act])

    def swap_plainly(
        self, steps: Sequence[Step], start: int, done: list[tuple[Sides, Step]], *, even_open: bool = True
    ) -> int:
        """Do a series of swaps of files in one directory as fast as Python can; return the first step not done.

        That one is for `do`, which also says why it can't be done; unless it goes `even_open`, a program may write it.
        That is asked once the file is out of the project, where nobody can open it any more.
        """
        first = steps[start]
        root, parent = first.change.root, first.parent
        try:
            layer, live = self.layer.get(parent), self.live.get(parent)
        except OSError:
            return start
        try_exchange, encoded, in_git = libc.try_exchange, os.fsencode, ".git/" in first.change.path
        for at in range(start, len(steps)):
            step = steps[at]
            change = step.change
            before = change.before
            if step.parent != parent or not step.is_plain or change.verdict != c.APPLIED or change.root != root:
                return at
            if before is None:
                raise ValueError(f"a swap needs both versions: {step!r}")
            # Before it is touched, too: who writes it again and again would find ours there for a moment.
            if not _is_in_place(before, live, step.name) or (in_git and self.is_locked(live, step)):
                return at
            raw = encoded(step.name)
            if not try_exchange(layer, live, raw):
                return at
            asks = not even_open and before.kind == c.FILE
            status = stat_unless_written(layer, raw) if asks else stat_entry(layer, step.name)
            if status is None or not is_same_version(before, status) or (in_git and self.is_locked(live, step)):
                _exchange_back(self, step)
                return at
            before.links = status.st_nlink
            done.append((self, step))
        return len(steps)

    def undo(self, step: Step) -> None:
        """Take a performed step back."""
        self._patiently(step, _UNDO[step.act])

    def was_done(self, step: Step) -> bool:
        """Tell by what lies where whether a step of an interrupted apply was done."""
        return self._patiently(step, was_done)

    def _patiently(self, step: Step, act: Callable[[Sides, Step], T]) -> T:
        try:
            return act(self, step)
        except PermissionError:
            # Both, even where opening up the first would do.
            loosened = [each.make_accessible(step.parent) for each in self._loosened]
            if not any(loosened):
                raise
            return act(self, step)
        finally:
            if not step.is_plain:
                for each in (self.layer, self.live, *self._loosened):
                    each.forget(step.change.path)

    def directory_mode(self, path: str, status: os.stat_result) -> int:
        """Return the mode of a live directory, or the one that it had before it was opened up."""
        return self._loosened[1].modes.get("" if path == "." else path, stat.S_IMODE(status.st_mode))

    def set_directory_mode(self, path: str, mode: int) -> None:
        """Give a live directory its mode, now or when it is closed again."""
        here = "" if path == "." else path
        if here in self._loosened[1].modes:
            self._loosened[1].modes[here] = mode
            return
        with Closing(self.live.open(here)) as directory:
            set_mode(directory, mode)

    def close(self) -> None:
        """Close up what was opened, and let go of the directories."""
        self.layer.close()
        self.live.close()
        for each in self._loosened:
            each.restore()


def is_same_version(stamp: c.Stamp, status: os.stat_result | None) -> bool:
    """Return True if an entry is the version a stamp names; renaming alone does not change that."""
    if status is None or status.st_ino != stamp.inode or status.st_mode & 0o7777 != stamp.mode:
        return False
    return stamp.kind == c.DIRECTORY or (status.st_size == stamp.size and status.st_mtime_ns == stamp.modified_ns)


def _is_in_place(before: c.Stamp, live: int, name: str) -> bool:
    try:
        return is_same_version(before, stat_entry(live, name))
    except PermissionError:
        return False  # in a directory that has to be opened up first


def _is_as_judged(sides: Sides, step: Step, version: str) -> bool:
    """Return True if what came out of the project is the version that was judged; of a directory, all that is in it.

    Asked when it lies in the layer, where nobody can reach it by its path any more.
    """
    stamp: c.Stamp = getattr(step.change, version)
    if not is_same_version(stamp, stat_entry(sides.layer.get(step.parent), step.name)):
        return False
    if stamp.kind != c.DIRECTORY:
        return True
    left: dict[str, c.Stamp] = {
        change.path: inner for change in step.inside if (inner := getattr(change, version)) is not None
    }
    try:
        for path, status in walk(sides.layer.top, step.change.path):
            inner = left.pop(path, None)
            if inner is None or not _is_inner(inner, status):
                return False
    except PermissionError:
        return False  # somebody else keeps us out of a directory in it
    return not left


def _is_inner(stamp: c.Stamp, status: os.stat_result) -> bool:
    """Return True if an entry of a tree is the version a stamp names; one directory is as good as another there."""
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
        raise Changed(change.path)
    if sides.is_locked(live, step):
        raise Locked(change.path)
    _exchange(layer, live, name, after, before)
    is_locked = sides.is_locked(live, step)
    if is_locked or not _is_as_judged(sides, step, "before"):
        _exchange_back(sides, step)
        raise Locked(change.path) if is_locked else Changed(change.path)


def _swap_back(sides: Sides, step: Step) -> None:
    if stat_entry(sides.live.get(step.parent), step.name) is None or not _exchange_back(sides, step):
        raise Changed(step.change.path)


def _exchange_back(sides: Sides, step: Step) -> bool:
    """Take a swap back; False where a person has saved something there since, which then stays in the project."""
    before, after = step.change.before, step.change.after
    if before is None or after is None:
        raise ValueError(f"a swap needs both versions: {step!r}")
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    _exchange(layer, live, step.name, before, after)
    if _is_as_judged(sides, step, "after"):
        return True
    _exchange(layer, live, step.name, after, before)
    return False


def _exchange(layer: int, live: int, name: str, one: c.Stamp, other: c.Stamp) -> None:
    """Swap an entry of the layer (`one`) with the live one (`other`), whatever their kinds."""
    if c.DIRECTORY not in (one.kind, other.kind):
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
        raise Changed(step.change.path) from None


def _put_back(sides: Sides, step: Step) -> None:
    after, name = step.change.after, step.name
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    if after is None or not is_same_version(after, stat_entry(live, name)):
        raise Changed(step.change.path)
    move(live, layer, name, after)
    if not _is_as_judged(sides, step, "after"):
        move(layer, live, name, after)
        raise Changed(step.change.path)


def _take(sides: Sides, step: Step) -> None:
    before = step.change.before
    if before is None:
        raise ValueError(f"nothing to take: {step!r}")
    name = step.name
    layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    if stat_entry(live, name) is None:
        raise Changed(step.change.path)
    slot = _clear_slot(layer, name)
    try:
        move(live, layer, name, before)
        if _is_as_judged(sides, step, "before"):
            return
        move(layer, live, name, before)
    except OSError:
        slot()
        raise
    slot()
    raise Changed(step.change.path)


def _clear_slot(layer: int, name: str) -> Callable[[], None]:
    """Make room for a backup in the layer; returns what puts back the whiteout that was there."""
    slot = stat_entry(layer, name)
    if slot is not None and is_whiteout(slot):
        os.unlink(name, dir_fd=layer)
        return lambda: make_whiteout(layer, name)
    if slot is not None and stat.S_ISDIR(slot.st_mode):
        # What was in it went into the project piece by piece.
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
        raise Changed(step.change.path) from None
    # The layer is again what the run left, so that it can be applied once more.
    make_whiteout(layer, name)


def _mkdir(sides: Sides, step: Step) -> None:
    step.change.after = _make_directory(sides, step, step.change.after)


def _mkdir_back(sides: Sides, step: Step) -> None:
    os.rmdir(step.name, dir_fd=sides.live.get(step.parent))


def _rmdir(sides: Sides, step: Step) -> None:
    live, layer = sides.live.get(step.parent), sides.layer.get(step.parent)
    status = stat_entry(live, step.name)
    if status is None or not stat.S_ISDIR(status.st_mode):
        raise Changed(step.change.path)
    # The layer's own stands for it from now on.
    copy_directory_metadata(live, layer, step.name)
    if step.change.before is not None:
        _chmod(layer, step.name, step.change.before.mode)
    try:
        os.rmdir(step.name, dir_fd=live)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise Changed(step.change.path) from None


def _rmdir_back(sides: Sides, step: Step) -> None:
    step.change.before = _make_directory(sides, step, step.change.before)


def _make_directory(sides: Sides, step: Step, like: c.Stamp | None) -> c.Stamp:
    """Make a live directory like the layer's; return its stamp, for it has an inode of its own."""
    live = sides.live.get(step.parent)
    try:
        os.mkdir(step.name, 0o700, dir_fd=live)
    except FileExistsError:
        raise Changed(step.change.path) from None
    with_belongings = sides.layer.get(step.parent)
    if stat_entry(with_belongings, step.name) is not None:
        copy_directory_metadata(with_belongings, live, step.name)
    made = stamp_of(os.stat(step.name, dir_fd=live, follow_symlinks=False))
    made.mode = 0o755 if like is None else like.mode
    sides.set_directory_mode(step.change.path, made.mode)
    return made


def _chmod_to(sides: Sides, step: Step) -> None:
    before, after = step.change.before, step.change.after
    if before is None or after is None:
        raise ValueError(f"a mode needs both versions: {step!r}")
    _mode_between(sides, step, before, after)


def _chmod_back(sides: Sides, step: Step) -> None:
    before, after = step.change.before, step.change.after
    if before is None or after is None:
        raise ValueError(f"a mode needs both versions: {step!r}")
    _mode_between(sides, step, after, before)


def _mode_between(sides: Sides, step: Step, old: c.Stamp, new: c.Stamp) -> None:
    status = stat_entry(sides.live.get(step.parent), step.name)
    if status is None or status.st_ino != old.inode or not stat.S_ISDIR(status.st_mode):
        raise Changed(step.change.path)
    if sides.directory_mode(step.change.path, status) != old.mode:
        raise Changed(step.change.path)
    sides.set_directory_mode(step.change.path, new.mode)


_DO = {SWAP: _swap, PUT: _put, TAKE: _take, MKDIR: _mkdir, RMDIR: _rmdir, CHMOD: _chmod_to}
_UNDO = {SWAP: _swap_back, PUT: _put_back, TAKE: _take_back, MKDIR: _mkdir_back, RMDIR: _rmdir_back, CHMOD: _chmod_back}


def move(source: int, target: int, name: str, stamp: c.Stamp) -> None:
    """Rename an entry from one side to the other, refusing to replace anything."""
    if stamp.kind != c.DIRECTORY:
        staging.move(source, target, name)
        return
    with accessible_entry(source, name, target):
        staging.move(source, target, name)


def _chmod(directory: int, name: str, mode: int) -> None:
    with Closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as entry:
        set_mode(entry, mode)


def _unmark(directory: int, change: c.Change) -> None:
    name = split(change.path)[1]
    if change.marked == c.ORIGIN_MARK:
        remove_attributes(directory, name, [ORIGIN])
    else:
        remove_overlay_marks(directory, name)


# ---- Tell by what lies where whether a step of an interrupted apply was done.

UNREACHABLE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def was_done(sides: Sides, step: Step) -> bool:
    """Return True if a step was done: a rename keeps the inode, so that tells on which side a version is."""
    if step.change.path == ".":
        return _ACTS[step.act](step.change, None, stat_entry(sides.live.top, "."))
    if step.act in (SWAP, PUT, TAKE):
        _settle(sides, step)
    slot, live = _at(sides.layer, step), _at(sides.live, step)
    return _ACTS[step.act](step.change, slot, live)


def _settle(sides: Sides, step: Step) -> None:
    """Bring a version that was on its way, where that takes several steps, to one side."""
    change = step.change
    try:
        layer, live = sides.layer.get(step.parent), sides.live.get(step.parent)
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return
    staging.finish_swap(layer, live, step.name, lambda status: _is(change.before, status) or _is(change.after, status))


def _at(parents: DirectoryCache, step: Step) -> os.stat_result | None:
    try:
        return stat_entry(parents.get(step.parent), step.name)
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise
        return None


def _is(stamp: c.Stamp | None, status: os.stat_result | None) -> bool:
    return stamp is not None and status is not None and status.st_ino == stamp.inode


def _swapped(change: c.Change, slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    if slot is None or is_whiteout(slot) or _is(change.before, live):
        return False
    return _is(change.before, slot) or _is(change.after, live)


def _was_put(change: c.Change, slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return (slot is None or is_whiteout(slot)) and _is(change.after, live)


def _taken(change: c.Change, slot: os.stat_result | None, _live: os.stat_result | None) -> bool:
    return _is(change.before, slot) and slot is not None and not is_whiteout(slot)


def _made(_change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return live is not None and stat.S_ISDIR(live.st_mode)


def _removed(_change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return live is None


def _mode_set(change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or live is None or live.st_ino != before.inode:
        return False
    return stat.S_IMODE(live.st_mode) == after.mode


_ACTS = {SWAP: _swapped, PUT: _was_put, TAKE: _taken, MKDIR: _made, RMDIR: _removed, CHMOD: _mode_set}


# ---- Modes that were changed for a while, and that nobody has given back.

def restore_modes(where: str) -> None:
    """Give back the modes that dead processes had changed, and those that could not be given back at first.

    A note of which that fails again is kept. Whoever moves something has this done before, for a note names places.
    """
    left: dict[str, Lock] = {}
    kept: set[str] = set()
    entries: list[tuple[str, bytes]] = []
    try:
        for path in [f"{where}/{name}" for name in list_mode_notes(where)]:
            try:
                left[path] = lock = Lock(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
                lock.take(wait=False)
                if not os.path.samestat(os.fstat(lock.file), os.lstat(path)):
                    kept.add(path)  # settled by another process, and a new one has its name
                    continue
                with open(lock.file, "rb", closefd=False) as reading:
                    entries += [(path, entry) for entry in reading.read().split(b"\0")[:-1]]
            except OSError:
                kept.add(path)  # locked by a living process, settled by another one, or can't be read
        # The deepest first, of all notes together: a directory above may close the way.
        for path, entry in sorted(entries, key=lambda each: -len(each[1].split(b" ", 3)[3])):
            device, inode, mode, place = entry.split(b" ", 3)
            try:
                _set(place, (int(device), int(inode)), int(mode, 8))
            except OSError:
                kept.add(path)
        for path in left.keys() - kept:
            try:
                os.unlink(path)
            except OSError:
                continue  # the next one removes it
    finally:
        for lock in left.values():
            lock.close()


def _set(place: bytes, identity: tuple[int, int], mode: int) -> None:
    """Set a mode, if it is still there, and still as it was opened up."""
    try:
        with Closing(open_top("/")) as root:
            fd = open_below(root, os.fsdecode(place.lstrip(b"/")), os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return
    with Closing(fd):
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == identity and stat.S_IMODE(status.st_mode) == mode | 0o700:
            set_mode(fd, mode)
