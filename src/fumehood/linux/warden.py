"""Watch what a running sandbox uses, where the kernel does not count it for us, and say when it is too much.

A short run never meets the warden: it first looks when a command has run for a moment.
"""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.report import (
    CPU,
    END_BYTES,
    END_ENTRIES,
    MEMORY,
    PROCESSES,
    WRITTEN,
    disk_full,
    format_size,
    limit_reached,
    machine_full,
    stopped_by_request,
)
from fumehood.linux.confine import memory_limit
from fumehood.linux.libc import Closing, Descriptors, read
from fumehood.linux.namespaces import mount_table, refresh_overlays
from fumehood.linux.nofollow import DirectoryCache, open_top
from fumehood.linux.usage import ENTRY, KernelMemory, Machine, NotYet, OpenFiles, Processes, TmpfsUse, descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fumehood.core.policy import Limits
    from fumehood.core.report import Blocked

# A control group of a run's own, where this user may make one: there the kernel itself counts.
#
# Processes are moved into it while they run, not started in it: a move waits for some ten milliseconds, which a short
# command would have to wait for as well.

_ROUNDS = 8  # moves, until nothing new was forked meanwhile
_NEEDED = frozenset({b"memory", b"pids"})
_PREFIX = "fumehood-run-"


class Cgroup:
    """One run's control group, of version 2."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def around(cls, init: int, processes: Callable[[int], Sequence[int]], memory: int, tasks: int) -> Cgroup | None:
        """Put a sandbox under limits, by its first process and what tells all others; None where we may not."""
        parent = delegated()
        if parent is None:
            return None
        made = cls(f"{parent}/{_PREFIX}{init}")
        try:
            os.mkdir(made._path)
            made._write("memory.oom.group", b"1")  # what reaches the limit is ended as a whole
            made._write("memory.max", b"%d" % memory)
            if os.path.exists(f"{made._path}/memory.swap.max"):
                made._write("memory.swap.max", b"0")
            made._write("pids.max", b"%d" % tasks if tasks else b"max")
            made.take(lambda: processes(init))
        except OSError:
            # Who may write here is hard to tell beforehand. What is watched is watched in any case.
            made.remove()
            return None
        return made

    def take(self, processes: Callable[[], Sequence[int]]) -> None:
        """Move processes here, and those that they forked meanwhile."""
        taken: set[int] = set()
        for _ in range(_ROUNDS):
            others = [pid for pid in processes() if pid not in taken]
            if not others:
                return
            for pid in others:
                taken.add(pid)
                try:
                    self._write("cgroup.procs", b"%d" % pid)
                except ProcessLookupError:
                    continue  # it has ended

    def reached(self) -> str | None:
        """Return the limit that the kernel had to enforce."""
        if self._count("memory.events", b"oom_kill"):
            return MEMORY
        return PROCESSES if self._count("pids.events", b"max") else None

    def remove(self) -> None:
        """Remove it when all that was in it is gone."""
        try:
            os.rmdir(self._path)
        except OSError:
            return  # the kernel is still busy with the last process: the next run removes it

    def _write(self, name: str, text: bytes) -> None:
        with open(f"{self._path}/{name}", "wb", buffering=0) as file:
            file.write(text)

    def _count(self, name: str, key: bytes) -> int:
        words = read(f"{self._path}/{name}").split()
        return int(words[words.index(key) + 1]) if key in words else 0


def delegated() -> str | None:
    """Return the nearest group above this process in which we may make one that counts memory and processes."""
    mount = _mount()
    own = next((line[3:] for line in read("/proc/self/cgroup").splitlines() if line.startswith(b"0::")), b"")
    path = os.fsdecode(own) if mount and own.startswith(b"/") and b"/.." not in own else "/"
    while path != "/":
        # A group that has processes of its own can't have others below it that count, but for the topmost.
        path = os.path.dirname(path)
        group = f"{mount}{path}".rstrip("/")
        counted = set(read(f"{group}/cgroup.subtree_control").split())
        if counted >= _NEEDED and os.access(group, os.W_OK) and os.access(f"{group}/cgroup.procs", os.W_OK):
            for name in os.listdir(group):
                if name.startswith(_PREFIX):
                    Cgroup(f"{group}/{name}").remove()  # was left behind; one that is in use can't be removed
            return group
    return None


def has_controllers() -> bool:
    """Return True if version 2 counts memory and processes at all; where version 1 does, it can't."""
    mount = _mount()
    return bool(mount) and set(read(f"{mount}/cgroup.controllers").split()) >= _NEEDED


def _mount() -> str:
    try:
        mounts = mount_table()
    except FileNotFoundError:  # nothing is mounted at /proc, which doctor tells
        return ""
    return next((os.fsdecode(point) for point, kind in mounts if kind == "cgroup2"), "")


# Measure what a running command has written to its layers, without slowing it down.

_BLOCK = 512
_BUDGET_S = 0.01  # spent on a layer at one look; a large one takes several
_REST_S, _REST_SHARE = 2.0, 50  # between two measurements: so long, or so many times what the last one took
_LARGEST_RESERVE = 1 << 30
_RESERVED = 50  # of all that a disk has, the last fiftieth is not for commands


class Disk:
    """What is left on the disk that a directory lies on, and how much of it is not for commands."""

    def __init__(self, top: int) -> None:
        self._top = top
        disk = os.fstatvfs(top)
        free, free_entries = self.left()
        reserve = min(_LARGEST_RESERVE, disk.f_blocks * disk.f_frsize // _RESERVED)
        # A disk that was nearly full before is the person's affair, save for what the end of a run needs.
        self._reserve = reserve if free > reserve else min(END_BYTES, free) // 2
        entries = disk.f_files // _RESERVED
        least = min(END_ENTRIES, free_entries) // 2  # some have no fixed number of entries: they say 0
        self._reserved_entries = entries if free_entries > entries else least

    def left(self) -> tuple[int, int]:
        """Return the bytes and the entries that are free."""
        disk = os.fstatvfs(self._top)
        return disk.f_bavail * disk.f_frsize, disk.f_favail

    def full(self, free: int, entries: int) -> Blocked | None:
        """Tell that what is left is not for commands."""
        if free < self._reserve:
            return disk_full(f"only {format_size(free)} left")
        return disk_full(f"room for only {entries} more files") if entries < self._reserved_entries else None


class DiskUse:
    """What the layers of one run take on disks, and what it writes besides; `empty`: the layers were so at first.

    What is free on a disk is asked each time, and costs nothing. Only where so much of it went that the run may
    have reached its limit, and now and then, are the directories themselves measured: the blocks of each entry, and the
    entry itself, of which a disk has only so many.
    """

    def __init__(self, places: Sequence[str], limit: int, *, empty: bool, besides: Sequence[str] = ()) -> None:
        self._tops = Descriptors(map(open_top, (*places, *besides)))
        self._layers = len(places)
        self._limit = limit
        # Of the layers, and of what was there besides; None until that is measured for the first time.
        self._before: list[int | None] = [0 if empty else None, None if besides else 0]
        self._measured = 0
        self._disks = [Disk(top) for top in {os.fstat(top).st_dev: top for top in self._tops}.values()]
        left = [disk.left() for disk in self._disks]
        self._free, self._free_entries = sum(free for free, _ in left), sum(entries for _, entries in left)
        self._walk: Iterator[int] | None = None
        self._sums = [0, 0]
        self._part = 0  # which of them is being measured
        self._spent = 0.0
        self._next = 0.0

    def look(self, unlinked: Callable[[], int | None]) -> Blocked | None:
        """Go on measuring where there is need; return the limit that was reached.

        `unlinked` counts files without a name; where that needs several looks, it returns None meanwhile.
        """
        free = entries = 0
        for disk in self._disks:
            left = disk.left()
            full = disk.full(*left)
            if full is not None:
                return full
            free, entries = free + left[0], entries + left[1]
        if self._limit and self._is_reached(free, entries, unlinked):
            return limit_reached(WRITTEN, self._limit)
        return None

    def _is_reached(self, free: int, entries: int, unlinked: Callable[[], int | None]) -> bool:
        gone = max(0, self._free - free) + max(0, self._free_entries - entries) * ENTRY
        if self._walk is None and (self._measured + gone >= self._limit or time.monotonic() >= self._next):
            self._walk, self._sums, self._spent = self._sizes(), [0, 0], 0.0
        if self._walk is None:
            return False
        if not self._step(self._walk):
            # So much it is at least, whatever the rest may be.
            return self._written() >= self._limit
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
        self._tops.close()

    def _written(self) -> int:
        """Return what is measured by now, less what was there before."""
        both = zip(self._sums, self._before, strict=True)
        return sum(max(0, now - before) for now, before in both if before is not None)

    def _step(self, walk: Iterator[int]) -> bool:
        """Measure for a moment; tell whether all is measured."""
        began = time.monotonic()
        for size in walk:
            self._sums[self._part] += size
            if time.monotonic() - began > _BUDGET_S:
                self._spent += time.monotonic() - began
                return False
        now = time.monotonic()
        self._spent += now - began
        self._next = now + max(_REST_S, _REST_SHARE * self._spent)
        self._walk = None
        self._before = [now if before is None else before for now, before in zip(self._sums, self._before, strict=True)]
        self._measured = self._written()
        return True

    def _sizes(self) -> Iterator[int]:
        """Yield what each entry takes: a file with several names once, a hole nothing."""
        linked: set[tuple[int, int]] = set()
        for number, top in enumerate(self._tops):
            self._part = int(number >= self._layers)
            waiting = [""]
            with DirectoryCache(top, bounded=False) as parents:
                while waiting:
                    here = waiting.pop()
                    directory = parents.open_listing(here)
                    if directory is None:
                        continue  # gone, or closed to its owner for now
                    with Closing(directory):
                        yield from _entries(directory, here, waiting, linked)


def _entries(directory: int, here: str, waiting: list[str], linked: set[tuple[int, int]]) -> Iterator[int]:
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone, or in a directory that its owner may list and not pass through
            if stat.S_ISDIR(status.st_mode):
                waiting.append(f"{here}/{entry.name}" if here else entry.name)
            elif status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in linked:
                    continue
                linked.add((status.st_dev, status.st_ino))
            yield status.st_blocks * _BLOCK + ENTRY


__all__ = ["NotYet", "Warden"]

_PACE_S, _SLOWEST_S = 0.1, 1.0
_ANEW_S = 2.0  # what people replace in the project is seen after so long
_STILL = 10  # a command is, if it uses less than a tenth of a processor
_SHARE = 10  # of the time that passes, at most a tenth is spent looking
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Warden:
    """Looks after one sandbox; `init` is its first process, `places` are the directories that take its writes.

    `besides` are others that it may write, with what was there before. `overlays` are paths at which it may see one.
    """

    def __init__(
        self, limits: Limits, init: int, places: Sequence[str], *, empty: bool = True, stop_mark: str = "",
        checkpoint: Callable[[int], None] | None = None, overlays: Sequence[str] = (), besides: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._stop_mark = stop_mark
        self._overlays = overlays
        self._look_anew_at = time.monotonic() + _ANEW_S
        self._ticks = self._ticks_then = 0  # of processor time, now and when it was last made to look anew
        self._checkpoint = checkpoint  # looks whether one is due
        self._processes = Processes(init)
        self._limits = limits
        self._memory = memory_limit(limits)
        self._init = init
        self._tmpfs = TmpfsUse(init)
        self._open = OpenFiles(self._processes, self._tmpfs)
        self._is_open_known = False  # what is open was looked at in this turn
        self._kernel: KernelMemory | None = None
        self._disk_use = DiskUse(places, limits.written, empty=empty, besides=besides)
        self._cgroup = Cgroup.around(init, descendants, self._memory, limits.processes)
        self._reserve = _reserve_of(Machine())
        self.due = 0.0

    def look(self) -> Blocked | None:
        """Look once, and return the limit that was reached."""
        began = time.monotonic()
        self._is_open_known = False
        if self._stop_mark and os.path.exists(self._stop_mark):
            return stopped_by_request()
        reached = self._use() or self._disk_use.look(self._unlinked)
        if self._checkpoint is not None and reached is None:
            self._checkpoint(self._init)
        if self._overlays and began >= self._look_anew_at:
            self._look_anew(began)
        if self._open.is_busy:
            self._opened()
        ended = time.monotonic()
        self.due = ended + min(max(_PACE_S, _SHARE * (ended - began)), _SLOWEST_S)
        return reached

    def _look_anew(self, now: float) -> None:
        """Have a server see what people replaced: an overlay goes on showing what it has looked up once.

        One that is busy would have to look everything up again.
        """
        self._look_anew_at = now + _ANEW_S
        used, self._ticks_then = self._ticks - self._ticks_then, self._ticks
        if used > _ANEW_S * _TICKS / _STILL:
            return
        try:
            refresh_overlays(self._init, self._overlays)
        except OSError:
            return  # it has just ended, or an old kernel can't do it

    def close(self) -> Blocked | None:
        """Stop watching when all inside is gone; return the limit by which the kernel ended it, if it did."""
        self._processes.close()
        self._disk_use.close()
        if self._kernel is not None:
            self._kernel.close()
        if self._cgroup is None:
            return None
        reached = self._cgroup.reached()
        self._cgroup.remove()
        return None if reached is None else self._hit(reached)

    def _hit(self, name: str) -> Blocked:
        amount = {MEMORY: self._memory, PROCESSES: self._limits.processes, CPU: self._limits.cpu}
        return limit_reached(name, amount[name])

    def _use(self) -> Blocked | None:
        tasks, pages, self._ticks = self._processes.tally()
        if self._cgroup is not None and (reached := self._cgroup.reached()) is not None:
            return self._hit(reached)
        if self._limits.processes and tasks >= self._limits.processes:
            return self._hit(PROCESSES)
        if self._limits.cpu and self._ticks / _TICKS >= self._limits.cpu:
            return self._hit(CPU)
        return self._memory_reached(pages * _PAGE)

    def _memory_reached(self, resident: int) -> Blocked | None:
        """Find out step by step whether all has too much memory; most runs need the first step alone.

        `resident` is what the processes have in memory, shared or a file's on disk: the most that can be their own.
        """
        tmpfs = self._tmpfs.used()
        hidden = 0
        if self._cgroup is None:
            machine = Machine()
            if machine.left < self._reserve:
                return machine_full(machine.left)
            hidden = machine.hidden
        # What this run hides is among what the whole machine does.
        if resident + tmpfs + hidden < self._memory:
            return None
        opened = self._opened()
        segments, kernels = self._kernels(opened.sockets)
        # The tables of pages may be large where the pages are not.
        tables, swapped = self._processes.sums("status", b"VmPTE", b"VmSwap")
        files, besides = tmpfs + opened.in_memory() + segments, tables + kernels
        if resident + swapped + files + besides < self._memory:
            return None
        # What processes share counts once; files in memory that they map are told apart.
        in_memory, swapped, mapped = self._processes.sums("smaps_rollup", b"Pss_Anon", b"SwapPss", b"Pss_Shmem")
        own = in_memory + swapped
        if own + besides + max(files, mapped) < self._memory <= own + besides + files + mapped:
            files += self._processes.only_mapped(opened.device, opened.memory)
        # Most files that are mapped are among those that were counted.
        return self._hit(MEMORY) if own + besides + max(files, mapped) >= self._memory else None

    def _kernels(self, sockets: set[int]) -> tuple[int, int]:
        """Count what the kernel keeps in no process's name: System V's segments, and all else."""
        if self._cgroup is not None:
            return 0, 0  # it counts these itself
        if self._kernel is None:
            from fumehood.linux.process import interpreter_command

            command = interpreter_command(KernelMemory.__module__, "enter", str(self._init))
            self._kernel = KernelMemory(self._init, command)
        self._kernel.look(sockets)
        return self._kernel.segments(), self._kernel.others()

    def _unlinked(self) -> int | None:
        """Count what files take on the disk that have no name any more, but are open; None where that takes longer."""
        return None if self._opened().is_busy else self._open.on_disk()

    def _opened(self) -> OpenFiles:
        """Return what is open inside, once looked at in each turn."""
        if not self._is_open_known:
            self._open.look()
            self._is_open_known = True
        return self._open


def _reserve_of(machine: Machine) -> int:
    """Return how much memory a run must leave to the machine; one that was nearly full before is not its fault."""
    reserve = min(_LARGEST_RESERVE, machine.total // 50)
    return reserve if machine.left > reserve else 0
