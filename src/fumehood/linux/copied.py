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
from weakref import WeakKeyDictionary

from fumehood.errors import FumehoodError, OverlayUnavailable
from fumehood.linux.copying import copy_belongings, copy_entry, copy_file
from fumehood.linux.distil import COPIED, LEFT_OUT, STAND_IN, Distilling, generation, record
from fumehood.linux.nofollow import LISTING, Parents, is_whiteout, look, open_below, open_top, set_mode
from fumehood.linux.stack import is_opaque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.linux.distil import Manifest
    from fumehood.linux.overlay import Layer

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
