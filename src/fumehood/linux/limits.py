"""The limits of a run: what a command uses of the machine is looked at while it runs, and it is ended at its limits.

Ten times a second: the processes, their processor time, and whether the machine keeps its reserve of memory and disk.
Twice a second, where no control group does it (`linux/cgroup.py`): a sum of the memory. What was written is measured
when so much of a disk is gone that the limit may be reached. A short run never meets any of this: its first check comes
when a command has run for a moment.
"""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.report import CPU, MEMORY, PROCESSES, WRITTEN, disk_full, format_size, limit_reached, machine_full
from fumehood.linux.cgroup import Cgroup
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.nofollow import DirectoryCache, open_top
from fumehood.linux.processes import Processes, mounts_seen_by, open_descriptors, sizes_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.core.policy import Limits
    from fumehood.core.report import Blocked

    Sizes = Iterator[tuple[str, int]]

# A pause: so many seconds, or so many times what it took, if that is longer.
_BETWEEN_CHECKS, _BETWEEN_SUMS, _BETWEEN_WALKS = (0.1, 2), (0.5, 3), (2.0, 50)
_BUDGET_S = 0.05  # for one tally at one check: output waits meanwhile
_LARGEST_RESERVE = 1 << 30
_RESERVED_MEMORY, _RESERVED_DISK = 20, 50  # the last twentieth of memory and the last fiftieth of a disk are reserved
_INODE_BYTES = 1024  # what an inode with its name takes, about, in memory as on a disk
_BLOCK = 512
_PIPE_BYTES = 2 * os.sysconf("SC_PAGE_SIZE")  # to a user who has 64 MiB of pipes, the kernel gives no larger ones
# What is counted: memory that is a process's own, mapped memory that is shared, files in memory; and on disks.
_OWN, _MAPPED, _IN_MEMORY = "own", "mapped", "in memory"
_FRESH, _KEPT, _UNNAMED = "fresh", "kept", "unnamed"


def memory_limit(limits: Limits) -> int:
    """Return the bytes that all processes may use together; the default is three quarters of the machine's memory."""
    return limits.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 * 3


class Warden:
    """Watches one sandbox, and tells its caller, who then ends it, which limit it has reached.

    `init` is the first process inside; everything about processes and files in memory is read from /proc. `fresh` are
    the directories that capture what is written, empty at first; `kept` are others that may be written, where only what
    is added counts. Raises SandboxNotReady.
    """

    def __init__(self, limits: Limits, init: int, fresh: Sequence[str], kept: Sequence[str] = ()) -> None:
        self.next_check = 0.0
        self.cpu_s = 0.0
        self._limits = limits
        self._memory_limit = memory_limit(limits)
        self._memory_reserve = memory_reserve(*machine_memory())
        # The device on which the kernel has files in memory that were never given a name.
        with Closing(os.memfd_create("fumehood", os.MFD_CLOEXEC)) as memory_file:
            self._memory_device = os.fstat(memory_file).st_dev
        self._memory = Tally(self._memory_sizes, *_BETWEEN_SUMS)
        self._processes = Processes(init)
        try:
            self._tmpfs = own_tmpfs(init)
            self._written = WrittenBytes(fresh, kept, self._unnamed_sizes)
        except BaseException:
            self._processes.close()
            raise
        self._cgroup = Cgroup.around(init, self._memory_limit, limits.processes)

    def check(self) -> Blocked | None:
        """Check the run once; return the limit that it has reached, or None. The next check is due at `next_check`."""
        began = time.monotonic()
        reached = self._check_processes() or self._check_memory() or self._check_disks()
        self.next_check = _end_of_pause(time.monotonic() - began, *_BETWEEN_CHECKS)
        return reached

    def close(self) -> Blocked | None:
        """Stop watching when everything inside has ended; return the limit by which the kernel ended it, if it did."""
        self._memory.stop()
        self._written.close()
        self._processes.close()
        if self._cgroup is None:
            return None
        reached = self._cgroup.enforced_limit()
        self._cgroup.remove()
        return None if reached is None else self._limit_reached(reached)

    def _limit_reached(self, name: str) -> Blocked:
        amounts = {MEMORY: self._memory_limit, PROCESSES: self._limits.processes}
        return limit_reached(name, amounts[name])

    def _check_processes(self) -> Blocked | None:
        threads, self.cpu_s = self._processes.totals()
        if self._cgroup is not None and (reached := self._cgroup.enforced_limit()) is not None:
            return self._limit_reached(reached)
        if self._limits.processes and threads >= self._limits.processes:
            return self._limit_reached(PROCESSES)
        return limit_reached(CPU, self._limits.cpu) if 0 < self._limits.cpu <= self.cpu_s else None

    def _check_memory(self) -> Blocked | None:
        total, available = machine_memory()
        if available < self._memory_reserve:
            return machine_full(available)
        # What the whole machine uses is the most that the run can have.
        if self._cgroup is not None or total - available < self._memory_limit or not self._memory.is_due:
            return None
        self._memory.advance()
        # What is mapped is mostly files in memory, which are counted already.
        used = self._memory[_OWN] + max(self._memory[_MAPPED], self._memory[_IN_MEMORY])
        return self._limit_reached(MEMORY) if used >= self._memory_limit else None

    def _memory_sizes(self) -> Sizes:
        """Count the run's memory: a page that processes share counts once, and so does a file in memory."""
        for device, path in self._tmpfs.items():
            yield _IN_MEMORY, _used_bytes(device, path)
        for directory in self._processes.directories():
            anonymous, swapped, mapped = sizes_in(f"{directory}/smaps_rollup", b"Pss_Anon", b"SwapPss", b"Pss_Shmem")
            (tables,) = sizes_in(f"{directory}/status", b"VmPTE")  # may be large even if the pages are not
            yield _OWN, anonymous + swapped + tables
            yield _MAPPED, mapped
        yield from self._unnamed_sizes()

    def _unnamed_sizes(self) -> Sizes:
        """Count what open descriptors lead to and no name does: pipes, and files in memory and on disks."""
        seen: set[str | tuple[int, int]] = set()
        for directory in self._processes.directories():
            for path, target in open_descriptors(directory):
                file: str | tuple[int, int] = target
                name, size = _IN_MEMORY, _PIPE_BYTES
                if target.endswith(" (deleted)"):  # no `stat` of others: the server of a file may be slow to answer
                    try:
                        status = os.stat(path)
                    except OSError:
                        continue  # just closed
                    if status.st_nlink or status.st_dev in self._tmpfs:
                        continue  # counted elsewhere
                    file, size = (status.st_dev, status.st_ino), status.st_blocks * _BLOCK + _INODE_BYTES
                    name = _IN_MEMORY if status.st_dev == self._memory_device else _UNNAMED
                elif not target.startswith("pipe:["):
                    continue
                if file not in seen:
                    seen.add(file)
                    yield name, size

    def _check_disks(self) -> Blocked | None:
        if self._written.reaches(self._limits.written):
            return limit_reached(WRITTEN, self._limits.written)
        return self._written.why_full()


class Tally:
    """Sums by name that are taken a little at a time: however much there is to count, a check ends soon.

    What is counted is there, so a limit may be found to be reached before everything is counted.
    """

    def __init__(self, sizes: Callable[[], Sizes], pause_s: float, pause_factor: float) -> None:
        self._pause = pause_s, pause_factor  # between two sums
        self._next_at = self._took_s = 0.0
        self._sizes = sizes
        self._remaining: Sizes | None = None
        self._sums: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self._sums.get(name, 0)

    @property
    def is_due(self) -> bool:
        """Return True if there is something left to count, or the pause is over."""
        return self._remaining is not None or time.monotonic() >= self._next_at

    def advance(self) -> bool:
        """Count for a moment; after the end, begin anew. Return True if everything is counted."""
        if self._remaining is None:
            self._remaining, self._sums, self._took_s = self._sizes(), {}, 0.0
        began = time.monotonic()
        is_complete = True
        for name, size in self._remaining:
            self._sums[name] = self[name] + size
            if time.monotonic() - began > _BUDGET_S:
                is_complete = False
                break
        self._took_s += time.monotonic() - began
        if is_complete:
            self._remaining, self._next_at = None, _end_of_pause(self._took_s, *self._pause)
        return is_complete

    def stop(self) -> None:
        """Count no more: what counting has open is closed."""
        self._remaining = None


def _end_of_pause(took_s: float, pause_s: float, factor: float) -> float:
    return time.monotonic() + max(pause_s, factor * took_s)


class WrittenBytes:
    """What one run writes to disks, and the reserve that it may not touch.

    The free space of a disk is read at each check, which costs nothing. The directories are walked only now and then,
    and when so much free space is gone that the run may have reached its limit. Each entry then counts with its blocks
    and with its inode, because a disk has only so many inodes. `unnamed` counts open files without a name.
    """

    def __init__(self, fresh: Sequence[str], kept: Sequence[str], unnamed: Callable[[], Sizes]) -> None:
        self._tops = Descriptors(map(open_top, (*fresh, *kept)))
        self._fresh_count = len(fresh)
        self._unnamed = unnamed
        self._tally = Tally(self.sizes, *_BETWEEN_WALKS)
        self._kept_before: int | None = None if kept else 0  # until the first walk has ended
        self._disks = [Disk(top) for top in {os.fstat(top).st_dev: top for top in self._tops}.values()]
        self._free_at_walk = self._free()

    def close(self) -> None:
        """Close the directories."""
        self._tally.stop()
        self._tops.close()

    def why_full(self) -> Blocked | None:
        """Return what to report if only the reserve of a disk is left, else None."""
        return next(filter(None, (disk.why_full() for disk in self._disks)), None)

    def reaches(self, limit: int) -> bool:
        """Go on measuring if that is needed; return True if so much was written, unless the limit is 0."""
        if not limit:
            return False
        gone = self._free_at_walk - self._free()
        if not self._tally.is_due and self._total() + gone < limit:
            return False
        if self._tally.advance() and self._kept_before is None:
            self._kept_before = self._tally[_KEPT]
        return self._total() >= limit

    def _total(self) -> int:
        added = 0 if self._kept_before is None else max(0, self._tally[_KEPT] - self._kept_before)
        return self._tally[_FRESH] + self._tally[_UNNAMED] + added

    def _free(self) -> int:
        return sum(size + entries * _INODE_BYTES for size, entries in (disk.free() for disk in self._disks))

    def sizes(self) -> Sizes:
        """Count what each entry takes: a file with several names counts once, a hole counts nothing."""
        self._free_at_walk = self._free()
        seen: set[tuple[int, int]] = set()  # device and inode of files with several names
        for number, top in enumerate(self._tops):
            name = _FRESH if number < self._fresh_count else _KEPT
            waiting = [""]
            with DirectoryCache(top, bounded=False) as parents:
                while waiting:
                    path = waiting.pop()
                    directory = parents.open_listing(path)
                    if directory is None:
                        continue  # gone, or closed to its owner for now
                    with Closing(directory):
                        for size in _entry_sizes(directory, path, waiting, seen):
                            yield name, size
        yield from self._unnamed()


class Disk:
    """The disk that an open directory lies on, and the reserve of it that commands may not use."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        disk = os.fstatvfs(directory)
        size, entries = disk.f_blocks * disk.f_frsize, disk.f_files  # no entries where their number is not fixed
        free, free_entries = self.free()
        self._reserve = min(_LARGEST_RESERVE, size // _RESERVED_DISK, free // 2)
        self._reserved_entries = min(entries // _RESERVED_DISK, free_entries // 2)

    def free(self) -> tuple[int, int]:
        """Return the free bytes and the free entries."""
        disk = os.fstatvfs(self._directory)
        return disk.f_bavail * disk.f_frsize, disk.f_favail

    def why_full(self) -> Blocked | None:
        """Return what to report if only the reserve is left, else None."""
        free, entries = self.free()
        if free < self._reserve:
            return disk_full(f"only {format_size(free)} left")
        return disk_full(f"room for only {entries} more files") if entries < self._reserved_entries else None


def machine_memory() -> tuple[int, int]:
    """Return the machine's memory with its swap space, and how much of both programs can still get."""
    memory, available, swap, free_swap = sizes_in(
        "/proc/meminfo", b"MemTotal", b"MemAvailable", b"SwapTotal", b"SwapFree"
    )
    return memory + swap, available + free_swap


def memory_reserve(total: int, available: int) -> int:
    """Return how much memory a run must leave to the machine; half of what there was at first, if that was little."""
    return min(_LARGEST_RESERVE, total // _RESERVED_MEMORY, available // 2)


def own_tmpfs(init: int) -> dict[int, str]:
    """Return the writable file systems in memory that a sandbox has for itself: where we see them, by device."""
    # What the host has mounted too is not the sandbox's alone. What is written there is measured as a layer.
    host = {device for device, _, _ in mounts_seen_by("self", "tmpfs")}
    places = mounts_seen_by(init, "tmpfs")
    return {device: f"/proc/{init}/root{path}" for device, path, writable in places if writable and device not in host}


def _used_bytes(device: int, path: str) -> int:
    """Return what is in a file system: blocks, and an inode for each file, also for a file without blocks."""
    try:
        disk = os.statvfs(path)
        is_hidden = os.stat(path).st_dev != device  # another lies over it
    except OSError:
        return 0  # gone with the sandbox
    used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize + (disk.f_files - disk.f_ffree) * _INODE_BYTES
    return 0 if is_hidden else used


def _entry_sizes(directory: int, path: str, waiting: list[str], seen: set[tuple[int, int]]) -> Iterator[int]:
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
            yield status.st_blocks * _BLOCK + _INODE_BYTES
