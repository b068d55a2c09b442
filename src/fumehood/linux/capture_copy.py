"""Capture writes in a copy of the root: what differs from the copy after the run becomes the layer.

It costs the time and space of a copy (none of the space where blocks can be shared), and works where no
overlay does. An overlay parts hard links at the first write, so the copy has none between its files. What we
may not read is stood in for by something empty of the same kind, and taken to be unchanged while it is empty.
"""

from __future__ import annotations

import marshal
import os
import stat
import time
from struct import Struct
from weakref import WeakKeyDictionary

from fumehood.errors import FumehoodError, OverlayUnavailable
from fumehood.linux.copying import copy_belongings, copy_entry, copy_file
from fumehood.linux.layer import BOOKKEEPING, attributes, is_opaque, set_opaque, unmark, whiteout
from fumehood.linux.nofollow import LISTING, Loosened, Parents, is_whiteout, look, open_below, open_top, set_mode, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.linux.namespaces import Layer

    # For each directory of the copy, by its path: each name in it, with the record of what was copied there.
    Manifest = dict[str, dict[str, bytes]]


# ---- Capture writes in a copy of the root: what differs from the copy after the run becomes the layer.
#
# It costs the time and space of a copy (none of the space where blocks can be shared), and works where no
# overlay does. An overlay parts hard links at the first write, so the copy has none between its files. What we
# may not read is stood in for by something empty of the same kind, and taken to be unchanged while it is empty.

_TICK_S = 0.1
_COARSE_CLOCK = 5  # the one that file times are taken from; Python has no name for it

# The process that prepares also distils; a run that is given up takes its manifest along.
_manifests: WeakKeyDictionary[Layer, Manifest] = WeakKeyDictionary()


def prepare(layer: Layer) -> None:
    """Copy a root, with the held layers over it, to `layer.merged`; raises OverlayUnavailable."""
    try:
        copying = _Copying(layer)
        try:
            _manifests[layer] = copying.copy()
            _write(layer, _manifests[layer])
        finally:
            copying.close()
    except OSError as error:
        raise OverlayUnavailable(
            f"cannot copy {layer.root}: {error.strerror}: {_shown(error)}",
            hint="a copy needs as much space as the directory itself; fumehood doctor lists other ways",
        ) from error


def _manifest_file(layer: Layer) -> str:
    """Where the manifest is kept for whoever distils, should this process die."""
    return f"{os.path.dirname(layer.merged)}/manifest"


def has_manifest(layer: Layer) -> bool:
    """Tell whether what the command changed can still be told."""
    return os.path.exists(_manifest_file(layer))


def _write(layer: Layer, manifest: Manifest) -> None:
    whole = _manifest_file(layer)
    with open(f"{whole}.new", "wb") as file:
        marshal.dump(manifest, file)
    os.rename(f"{whole}.new", whole)


def _take(layer: Layer) -> Manifest:
    """Return the manifest, once: comparing moves things, so it can't be done again."""
    manifest = _manifests.pop(layer, None)
    if manifest is None:
        with open(_manifest_file(layer), "rb") as file:
            manifest = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
    os.unlink(_manifest_file(layer))
    return manifest


def _shown(error: OSError) -> str:
    return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "the copy"


class _Copying:
    """One copying of all that lies under a layer."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._manifest: Manifest = {}
        self._latest_ns = 0
        self._target = Parents(open_top(layer.merged))
        self._lowers = [Parents(open_top(path)) for path in layer.lowers]

    def close(self) -> None:
        """Let go of the directories."""
        for each in (self._target, *self._lowers):
            each.close()
            os.close(each.top)

    def copy(self) -> Manifest:
        """Copy all; directories get their modes and times when they are full."""
        waiting: list[tuple[str, Sequence[int], bool]] = [("", range(len(self._lowers)), False)]
        while waiting:
            path, numbers, full = waiting.pop()
            if full:
                self._finish(path, self._lowers[numbers[0]])
                continue
            try:
                inside = self._level(path, numbers)
            except FileNotFoundError:
                if path:
                    continue  # it has just gone
                raise
            waiting.append((path, numbers if path else [-1], True))
            waiting += [(below, lowers, False) for below, lowers in inside]
        # The layer's own top directory is what an overlay would show.
        set_mode(self._target.top, stat.S_IMODE(os.stat(self._layer.upper).st_mode))
        self._wait_a_tick()
        return self._manifest

    def _wait_a_tick(self) -> None:
        """See to it that whatever changes from now on has a later time than what was copied."""
        until = time.monotonic() + _TICK_S
        while time.clock_gettime_ns(_COARSE_CLOCK) <= self._latest_ns and time.monotonic() < until:
            time.sleep(0.001)

    def _level(self, path: str, numbers: Sequence[int]) -> list[tuple[str, Sequence[int]]]:
        """Copy the entries of one directory; return the directories in it, made but still empty."""
        inside: list[tuple[str, Sequence[int]]] = []
        records = self._manifest[path] = {}
        sources: dict[int, int] = {}
        writing = self._target.of(path)
        try:
            for name, (found, lowers) in self._visible(path, numbers, sources).items():
                source = sources[lowers[0]]
                if stat.S_ISDIR(found.st_mode):
                    records[name], readable = _make_directory(source, writing, name, found)
                    if readable:
                        inside.append((f"{path}/{name}" if path else name, lowers))
                elif (copied := self._leaf(source, writing, name, found, lowers[0])) is not None:
                    records[name] = copied
        finally:
            for fd in sources.values():
                os.close(fd)
        return inside

    def _visible(
        self, path: str, numbers: Sequence[int], sources: dict[int, int]
    ) -> dict[str, tuple[os.stat_result, list[int]]]:
        """Return what an overlay shows in a directory: each name, and the lower layers that have part in it."""
        shown: dict[str, tuple[os.stat_result, list[int]]] = {}
        settled: set[str] = set()
        for number in numbers:
            source = sources[number] = self._lowers[number].open(path, LISTING)
            for name in os.listdir(source):
                found = None if name in settled else look(source, name)
                if found is None:
                    continue
                if is_whiteout(found) or not stat.S_ISDIR(found.st_mode):
                    settled.add(name)
                if not is_whiteout(found) and name not in shown:
                    shown[name] = found, [number]
                elif stat.S_ISDIR(found.st_mode):
                    shown[name][1].append(number)
            # Asked of layers only: in the project itself, such a mark means nothing.
            if number < len(self._lowers) - 1 and is_opaque(source):
                break
        return shown

    def _leaf(self, source: int, writing: int, name: str, found: os.stat_result, lower: int) -> bytes | None:
        """Copy what is not a directory; return its record, or None where it has just gone."""
        how = COPIED
        try:
            if not stat.S_ISREG(found.st_mode):
                copy_entry(source, name, writing, name)
            elif _readable(source, name, found, os.R_OK):
                copy_file(source, name, writing, name)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0, dir_fd=writing))
                how = STAND_IN
        except FileNotFoundError:
            return None
        except PermissionError:
            if not stat.S_ISCHR(found.st_mode) and not stat.S_ISBLK(found.st_mode):
                raise
            return record(0, 0, 0, 0, found.st_mode, lower, LEFT_OUT)  # devices are made by root only
        copy = os.stat(name, dir_fd=writing, follow_symlinks=False)
        self._latest_ns = max(self._latest_ns, copy.st_ctime_ns)
        return record(copy.st_ino, copy.st_size, copy.st_mtime_ns, copy.st_ctime_ns, copy.st_mode, lower, how)

    def _finish(self, path: str, lower: Parents) -> None:
        reading, writing = lower.open(path, LISTING), self._target.open(path, LISTING)
        try:
            copy_belongings(reading, writing, os.fstat(reading))
        finally:
            os.close(reading)
            os.close(writing)


def _make_directory(source: int, writing: int, name: str, found: os.stat_result) -> tuple[bytes, bool]:
    """Make a directory of the copy; tell whether the one it stands for can be read."""
    readable = _readable(source, name, found, os.R_OK | os.X_OK)
    os.mkdir(name, 0o700, dir_fd=writing)
    made = open_below(writing, name, LISTING)
    try:
        if not readable:
            os.fchmod(made, 0)
        how = COPIED if readable else STAND_IN
        return record(os.fstat(made).st_ino, generation(made), 0, 0, found.st_mode, 0, how), readable
    finally:
        os.close(made)


def _readable(directory: int, name: str, found: os.stat_result, ability: int) -> bool:
    if found.st_uid == os.geteuid() and found.st_mode & 0o700 & ability << 6 == ability << 6:
        return True  # without asking the kernel, since it is nearly always so
    return os.access(name, ability, dir_fd=directory, effective_ids=True, follow_symlinks=False)


def distil(layer: Layer) -> None:
    """Move what the command changed from the copy to `layer.upper`; raises FumehoodError."""
    try:
        manifest = _take(layer)
        distilling = Distilling(layer, manifest)
        try:
            distilling.distil()
        finally:
            distilling.close()
    except OSError as error:
        raise FumehoodError(
            f"cannot collect what the command wrote to {layer.root}: {error.strerror}: {_shown(error)}",
            hint="nothing was taken over; fumehood clean frees what is no longer needed",
        ) from error


# ---- Tell a copy after the run from what was copied: whatever differs is moved into the layer.

COPIED, STAND_IN, LEFT_OUT = 0, 1, 2
_RECORD = Struct("<QqqqIHB")  # packed, because there may be a hundred thousand
_PIECE = 1 << 20
_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

record = _RECORD.pack


class Was:
    """What lay at a path of the copy before the run."""

    __slots__ = ("changed_ns", "how", "inode", "lower", "mode", "modified_ns", "size")

    def __init__(self, packed: bytes) -> None:
        values = _RECORD.unpack(packed)
        self.inode: int = values[0]
        self.size: int = values[1]  # of a directory: its generation
        self.modified_ns, self.changed_ns = int(values[2]), int(values[3])
        self.mode: int = values[4]
        self.lower, self.how = int(values[5]), int(values[6])


def generation(directory: int) -> int:
    """Return what tells one directory from a later one with the same inode number, where the system keeps it."""
    import fcntl

    try:
        return int.from_bytes(fcntl.ioctl(directory, _GET_GENERATION, bytes(8))[:4], "little")
    except OSError:
        return 0


class Distilling:
    """One comparing of a copy with its manifest."""

    def __init__(self, layer: Layer, manifest: Manifest) -> None:
        self._manifest = manifest
        self._merged = Loosened(open_top(layer.merged))
        self._upper = Loosened(open_top(layer.upper))
        self._lowers = [Parents(open_top(path)) for path in layer.lowers]
        self._made: dict[str, int] = {"": stat.S_IMODE(os.fstat(self._merged.top).st_mode)}
        self._open: tuple[str, int] | None = None

    def close(self) -> None:
        """Let go of the directories."""
        if self._open is not None:
            os.close(self._open[1])
        for each in (self._merged, self._upper):
            each.let_go()
            os.close(each.top)
        for lower in self._lowers:
            lower.close()
            os.close(lower.top)

    def distil(self) -> None:
        """Compare directory by directory, then close up the layer's directories, the deepest first."""
        os.close(self._upper.open(""))
        waiting = [""]
        while waiting:
            waiting += self._directory(waiting.pop())
        self._upper.restore()
        for path, mode in reversed(self._made.items()):
            self._finish(path, mode)

    def _directory(self, path: str) -> list[str]:
        """Take over what differs in a directory that is still the same one; return those like it inside."""
        before = self._manifest.pop(path, {})
        inside: list[str] = []
        here = self._merged.open(path)
        try:
            for name in os.listdir(here):
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                if is_whiteout(found):
                    continue  # an overlay would not have let the command make one; the name is as good as gone
                below = f"{path}/{name}" if path else name
                packed = before.pop(name, None)
                was = None if packed is None else Was(packed)
                if was is not None and self._is_same_directory(below, found, was):
                    inside.append(below)
                elif was is None or not self._is_unchanged(here, name, path, found, was):
                    self._take(here, name, path, found, replacing=was is not None)
            for name, packed in before.items():
                if Was(packed).how != LEFT_OUT:
                    whiteout(self._layer_directory(path), name)
        finally:
            os.close(here)
        return inside

    def _is_same_directory(self, path: str, found: os.stat_result, was: Was) -> bool:
        if not (stat.S_ISDIR(found.st_mode) and stat.S_ISDIR(was.mode)) or found.st_ino != was.inode:
            return False
        directory = self._merged.open(path)
        try:
            if generation(directory) != was.size:
                return False
        finally:
            os.close(directory)
        if was.how == STAND_IN:
            self._merged.modes[path] = stat.S_IMODE(was.mode)  # that of what it stands for
        elif found.st_mode != was.mode:
            self._layer_directory(path)
        return True

    def _is_unchanged(self, here: int, name: str, parent: str, found: os.stat_result, was: Was) -> bool:
        if found.st_ino != was.inode or stat.S_IFMT(found.st_mode) != stat.S_IFMT(was.mode):
            return False
        if was.how == STAND_IN:
            return found.st_size == 0
        if found.st_ctime_ns == was.changed_ns:
            return True
        if (found.st_size, found.st_mtime_ns, found.st_mode) != (was.size, was.modified_ns, was.mode):
            return False
        return self._is_like_original(here, name, parent, was.lower)

    def _is_like_original(self, here: int, name: str, parent: str, lower: int) -> bool:
        """Compare with what was copied: a link made to it, or a mode set back, leaves a file as it was."""
        try:
            return _same(here, self._lowers[lower].of(parent), name)
        except OSError:
            return False  # gone or replaced meanwhile: the apply will see that it is a conflict

    def _layer_directory(self, path: str) -> int:
        """Return a descriptor of a directory in the layer, made with those above it; valid until the next call."""
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        missing = []
        here = path
        while here not in self._made:
            missing.append(here)
            here = split(here)[0]
        for each in reversed(missing):
            above, name = split(each)
            directory = self._upper.as_is(above)
            try:
                os.mkdir(name, 0o700, dir_fd=directory)
            finally:
                os.close(directory)
            self._made[each] = self._mode_of(each)
        if self._open is not None:
            os.close(self._open[1])
            self._open = None
        self._open = path, self._upper.as_is(path)
        return self._open[1]

    def _mode_of(self, path: str) -> int:
        """Return the mode that the command left a directory of the copy at."""
        if path in self._merged.modes:
            return self._merged.modes[path]
        directory = self._merged.as_is(path)
        try:
            return stat.S_IMODE(os.fstat(directory).st_mode)
        finally:
            os.close(directory)

    def _take(self, here: int, name: str, parent: str, found: os.stat_result, *, replacing: bool) -> None:
        """Move an entry into the layer, with all below it."""
        path = f"{parent}/{name}" if parent else name
        target = self._layer_directory(parent)
        if not stat.S_ISDIR(found.st_mode):
            os.rename(name, name, src_dir_fd=here, dst_dir_fd=target)
            unmark(target, name)
            return
        os.close(self._merged.open(path))  # a directory must be writable to change parents
        os.rename(name, name, src_dir_fd=here, dst_dir_fd=target)
        self._merged.forget(path)
        if path in self._merged.modes:
            self._upper.modes[path] = self._merged.modes.pop(path)
        self._clean_tree(path)
        if replacing:
            directory = open_below(target, name, LISTING)
            set_opaque(directory)
            os.close(directory)

    def _clean_tree(self, top: str) -> None:
        """Remove from a new tree what only an overlay may put there: a command could have forged it."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            here = self._upper.open(path)
            try:
                unmark(here, ".")
                for name in os.listdir(here):
                    found = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(f"{path}/{name}")
                    elif is_whiteout(found):
                        os.unlink(name, dir_fd=here)
                    else:
                        unmark(here, name)
            finally:
                os.close(here)

    def _finish(self, path: str, mode: int) -> None:
        """Give a directory of the layer what belongs to the one it stands for."""
        reading, writing = self._merged.as_is(path, LISTING), self._upper.as_is(path, LISTING)
        try:
            copy_belongings(reading, writing, os.fstat(reading))
            set_mode(writing, mode)
        finally:
            os.close(reading)
            os.close(writing)


def _same(one: int, other: int, name: str) -> bool:
    """Tell whether two entries of one name are alike: kind, target, content, attributes."""
    kind, other_kind = (stat.S_IFMT(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode) for fd in (one, other))
    if kind != other_kind or kind not in (stat.S_IFREG, stat.S_IFLNK):
        return kind == other_kind
    if kind == stat.S_IFLNK:
        return os.readlink(name, dir_fd=one) == os.readlink(name, dir_fd=other)
    return _attributes(one, name) == _attributes(other, name) and _same_content(one, other, name)


def _attributes(directory: int, name: str) -> dict[str, bytes]:
    path = f"/proc/self/fd/{directory}/{name}"
    own = [each for each in attributes(directory, name) if not each.startswith(BOOKKEEPING)]
    return {each: os.getxattr(path, each, follow_symlinks=False) for each in own}


def _same_content(one: int, other: int, name: str) -> bool:
    with (
        open(os.open(name, _READING, dir_fd=one), "rb", 0) as mine,
        open(os.open(name, _READING, dir_fd=other), "rb", 0) as theirs,
    ):
        while piece := mine.read(_PIECE):
            if piece != theirs.read(_PIECE):
                return False
        return not theirs.read(1)
