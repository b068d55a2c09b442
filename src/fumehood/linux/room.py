"""Measure what a running command has written to its layers, without slowing it down."""

from __future__ import annotations

import os
import stat
import time

from fumehood.core import limits as told
from fumehood.linux.nofollow import Parents, open_top
from fumehood.linux.usage import ENTRY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.core.report import Blocked

_BLOCK = 512
_BUDGET_S = 0.01  # spent on a layer at one look; a large one takes several
_REST_S, _SHARE = 2.0, 50  # between two measurements: so long, or so many times what the last one took
_LARGEST_RESERVE = 1 << 30
_RESERVED = 50  # of all that a disk has, the last fiftieth is not for commands


class Room:
    """What the layers of one run take on their disk; `empty` tells that they were so at the beginning.

    What is free on the disk is asked each time, and costs nothing. Only where so much of it went that the run may
    have reached its limit, and now and then, are the layers themselves measured: the blocks of each entry, and the
    entry itself, of which a disk has only so many.
    """

    def __init__(self, places: Sequence[str], limit: int, *, empty: bool) -> None:
        self._tops = [open_top(place) for place in places]
        self._limit = limit
        self._before: int | None = 0 if empty else None
        self._measured = 0
        disk = os.fstatvfs(self._tops[0])
        self._free, self._free_entries = self._left(disk)
        reserve = min(_LARGEST_RESERVE, disk.f_blocks * disk.f_frsize // _RESERVED)
        # A disk that was nearly full before is the person's affair, save for what the end of a run needs.
        self._reserve = reserve if self._free > reserve else min(told.END_BYTES, self._free) // 2
        entries = disk.f_files // _RESERVED
        least = min(told.END_ENTRIES, self._free_entries) // 2  # some have no fixed number of entries: they say 0
        self._reserved_entries = entries if self._free_entries > entries else least
        self._walk: Iterator[int] | None = None
        self._sum = 0
        self._spent = 0.0
        self._next = 0.0

    def look(self, unlinked: Callable[[], int | None]) -> Blocked | None:
        """Go on measuring where there is need; return the limit that was reached.

        `unlinked` counts files without a name; where that needs several looks, it returns None meanwhile.
        """
        free, entries = self._left(os.fstatvfs(self._tops[0]))
        if free < self._reserve:
            return told.disk_full(free)
        if entries < self._reserved_entries:
            return told.disk_crowded(entries)
        if self._limit and self._is_reached(free, entries, unlinked):
            return told.hit(told.WRITTEN, self._limit)
        return None

    def _is_reached(self, free: int, entries: int, unlinked: Callable[[], int | None]) -> bool:
        gone = max(0, self._free - free) + max(0, self._free_entries - entries) * ENTRY
        if self._walk is None and (self._measured + gone >= self._limit or time.monotonic() >= self._next):
            self._walk, self._sum, self._spent = self._sizes(), 0, 0.0
        if self._walk is None:
            return False
        if not self._step(self._walk):
            # So much it is at least, whatever the rest may be.
            return self._before is not None and self._sum - self._before >= self._limit
        if self._measured + gone >= self._limit:
            nameless = unlinked()
            if nameless is None:
                return False
            self._measured += nameless
        self._free, self._free_entries = free, entries
        return self._measured >= self._limit

    def close(self) -> None:
        """Let go of the layers."""
        self._walk = None
        for top in self._tops:
            os.close(top)

    @staticmethod
    def _left(disk: os.statvfs_result) -> tuple[int, int]:
        return disk.f_bavail * disk.f_frsize, disk.f_favail

    def _step(self, walk: Iterator[int]) -> bool:
        """Measure for a moment; tell whether all is measured."""
        began = time.monotonic()
        for size in walk:
            self._sum += size
            if time.monotonic() - began > _BUDGET_S:
                self._spent += time.monotonic() - began
                return False
        now = time.monotonic()
        self._spent += now - began
        self._next = now + max(_REST_S, _SHARE * self._spent)
        self._walk = None
        if self._before is None:
            self._before = self._sum
        self._measured = self._sum - self._before
        return True

    def _sizes(self) -> Iterator[int]:
        """Yield what each entry takes: a file with several names once, a hole nothing."""
        linked: set[tuple[int, int]] = set()
        for top in self._tops:
            waiting, parents = [""], Parents(top, bounded=False)
            try:
                while waiting:
                    here = waiting.pop()
                    directory = parents.listing(here)
                    if directory is None:
                        continue  # gone, or closed to its owner for now
                    try:
                        yield from _entries(directory, here, waiting, linked)
                    finally:
                        os.close(directory)
            finally:
                parents.close()


def _entries(
    directory: int, here: str, waiting: list[str], linked: set[tuple[int, int]]
) -> Iterator[int]:
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(found.st_mode):
                waiting.append(f"{here}/{entry.name}" if here else entry.name)
            elif found.st_nlink > 1 and (found.st_dev, found.st_ino) in linked:
                continue
            elif found.st_nlink > 1:
                linked.add((found.st_dev, found.st_ino))
            yield found.st_blocks * _BLOCK + ENTRY
