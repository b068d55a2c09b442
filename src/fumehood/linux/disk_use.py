"""Measure what a running command has written to disk, without slowing it down."""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.report import END_BYTES, END_ENTRIES, WRITTEN, disk_full, format_size, limit_reached
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.nofollow import DirectoryCache, open_top
from fumehood.linux.usage import INODE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.core.report import Blocked

_BLOCK = 512
_WALK_BUDGET_S = 0.01  # spent on measuring at one check; a large layer takes several
_MIN_PAUSE_S, _PAUSE_FACTOR = 2.0, 50  # between two walks: so long, or so many times what the last one took
MAX_RESERVE = 1 << 30
RESERVED_PART = 50  # the last fiftieth of a disk, or of the machine's memory, is not for commands


class Disk:
    """The free space of the disk that an open directory lies on, and the reserve that commands may not use."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        disk = os.fstatvfs(directory)
        free_bytes, free_inodes = self.free()
        reserve = min(MAX_RESERVE, disk.f_blocks * disk.f_frsize // RESERVED_PART)
        # If the disk was nearly full before, only what the end of a run needs is reserved; the rest is the person's
        # affair.
        self._reserved_bytes = reserve if free_bytes > reserve else min(END_BYTES, free_bytes) // 2
        reserve = disk.f_files // RESERVED_PART  # 0 on file systems without a fixed number of inodes
        self._reserved_inodes = reserve if free_inodes > reserve else min(END_ENTRIES, free_inodes) // 2

    def free(self) -> tuple[int, int]:
        """Return the free bytes and the free inodes."""
        disk = os.fstatvfs(self._directory)
        return disk.f_bavail * disk.f_frsize, disk.f_favail

    def why_full(self, free_bytes: int, free_inodes: int) -> Blocked | None:
        """Return what to report if only the reserve is left, else None."""
        if free_bytes < self._reserved_bytes:
            return disk_full(f"only {format_size(free_bytes)} left")
        return disk_full(f"room for only {free_inodes} more files") if free_inodes < self._reserved_inodes else None


class DiskUse:
    """What one run writes to disks: to its layers, and to the other directories that it may write.

    The free space of a disk is read at each check, which costs nothing. The directories are walked only now and then,
    and when so much free space is gone that the run may have reached its limit. Each entry then counts with its blocks
    and with its inode, because a disk has only so many inodes. `layers_empty` says that the layers were empty at first.
    """

    def __init__(
        self, layers: Sequence[str], limit: int, *, layers_empty: bool, other_directories: Sequence[str] = ()
    ) -> None:
        self._tops = Descriptors(map(open_top, (*layers, *other_directories)))
        self._layer_count = len(layers)
        self._limit = limit
        # Two sizes each: of the layers, and of the other directories. A size before is None until the first walk.
        self._sizes_before: list[int | None] = [0 if layers_empty else None, None if other_directories else 0]
        self._sizes = [0, 0]
        self._walked_part = 0  # the index of the size that the walk adds to
        self._walk: Iterator[int] | None = None
        self._walk_took_s = 0.0
        self._next_walk_at = 0.0
        self._written = 0  # by the last complete walk
        self._disks = [Disk(top) for top in {os.fstat(top).st_dev: top for top in self._tops}.values()]
        free = [disk.free() for disk in self._disks]  # at the last complete walk
        self._free_bytes, self._free_inodes = sum(size for size, _ in free), sum(inodes for _, inodes in free)

    def check(self, unlinked_bytes: Callable[[], int | None]) -> Blocked | None:
        """Go on measuring if that is needed; return the limit that was reached, or None.

        `unlinked_bytes` counts files without a name. It returns None as long as it needs further checks for that.
        """
        free_bytes = free_inodes = 0
        for disk in self._disks:
            free = disk.free()
            full = disk.why_full(*free)
            if full is not None:
                return full
            free_bytes, free_inodes = free_bytes + free[0], free_inodes + free[1]
        if self._limit and self._is_limit_reached(free_bytes, free_inodes, unlinked_bytes):
            return limit_reached(WRITTEN, self._limit)
        return None

    def _is_limit_reached(self, free_bytes: int, free_inodes: int, unlinked_bytes: Callable[[], int | None]) -> bool:
        gone = max(0, self._free_bytes - free_bytes) + max(0, self._free_inodes - free_inodes) * INODE_BYTES
        if self._walk is None:
            if self._written + gone < self._limit and time.monotonic() < self._next_walk_at:
                return False
            self._walk, self._sizes, self._walk_took_s = self.entry_sizes(), [0, 0], 0.0
        if not self._continue_walk(self._walk):
            # It is at least this much, whatever the rest may be.
            return self._growth() >= self._limit
        if self._written + gone >= self._limit:
            unlinked = unlinked_bytes()
            if unlinked is None:
                return False
            self._written += unlinked
        self._free_bytes, self._free_inodes = free_bytes, free_inodes
        return self._written >= self._limit

    def close(self) -> None:
        """Close the directories."""
        self._walk = None
        self._tops.close()

    def _growth(self) -> int:
        """Return what the walk has counted so far, less what was there before."""
        pairs = zip(self._sizes, self._sizes_before, strict=True)
        return sum(max(0, size - before) for size, before in pairs if before is not None)

    def _continue_walk(self, walk: Iterator[int]) -> bool:
        """Measure for a moment; return True if everything is measured."""
        began = time.monotonic()
        for size in walk:
            self._sizes[self._walked_part] += size
            if time.monotonic() - began > _WALK_BUDGET_S:
                self._walk_took_s += time.monotonic() - began
                return False
        ended = time.monotonic()
        self._walk_took_s += ended - began
        self._next_walk_at = ended + max(_MIN_PAUSE_S, _PAUSE_FACTOR * self._walk_took_s)
        self._walk = None
        pairs = zip(self._sizes, self._sizes_before, strict=True)
        self._sizes_before = [size if before is None else before for size, before in pairs]
        self._written = self._growth()
        return True

    def entry_sizes(self) -> Iterator[int]:
        """Yield what each entry takes: a file with several names counts once, a hole counts nothing."""
        seen: set[tuple[int, int]] = set()  # device and inode of files with several names
        for number, top in enumerate(self._tops):
            self._walked_part = int(number >= self._layer_count)
            waiting = [""]
            with DirectoryCache(top, bounded=False) as parents:
                while waiting:
                    path = waiting.pop()
                    directory = parents.open_listing(path)
                    if directory is None:
                        continue  # gone, or closed to its owner for now
                    with Closing(directory):
                        yield from _sizes_in(directory, path, waiting, seen)


def _sizes_in(directory: int, path: str, waiting: list[str], seen: set[tuple[int, int]]) -> Iterator[int]:
    """Yield what each entry of one directory takes; add its subdirectories to `waiting`."""
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone, or in a directory that its owner may list and not pass through
            if stat.S_ISDIR(status.st_mode):
                waiting.append(f"{path}/{entry.name}" if path else entry.name)
            elif status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            yield status.st_blocks * _BLOCK + INODE_BYTES
