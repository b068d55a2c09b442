"""Watch what a running sandbox uses, where the kernel does not count it for us, and say when it is too much.

A short run never meets the warden: it first looks when a command has run for a moment.
"""

from __future__ import annotations

import os
import time

from fumehood.core import limits as told
from fumehood.linux.cgroup import Cgroup
from fumehood.linux.limits import memory_limit
from fumehood.linux.room import Room
from fumehood.linux.usage import Machine, NotYet, OpenFiles, Processes, Tmpfs, descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.policy import Limits
    from fumehood.core.report import Blocked
    from fumehood.linux.kernel_memory import KernelMemory

__all__ = ["NotYet", "Warden"]

_PACE_S, _SLOWEST_S = 0.1, 1.0
_SHARE = 10  # of the time that passes, at most a tenth is spent looking
_LARGEST_RESERVE = 1 << 30
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Warden:
    """Looks after one sandbox; `init` is its first process, `places` are the directories that take its writes."""

    def __init__(self, limits: Limits, init: int, places: Sequence[str], *, empty: bool = True) -> None:
        self._processes = Processes(init)
        self._limits = limits
        self._memory = memory_limit(limits)
        self._init = init
        self._tmpfs = Tmpfs(init)
        self._open = OpenFiles(self._processes, self._tmpfs)
        self._is_open_known = False  # what is open was looked at in this turn
        self._kernel: KernelMemory | None = None
        self._room = Room(places, limits.written, empty=empty)
        self._cgroup = Cgroup.around(init, descendants, self._memory, limits.processes)
        self._reserve = _reserve_of(Machine())
        self.due = 0.0

    def look(self) -> Blocked | None:
        """Look once, and return the limit that was reached."""
        began = time.monotonic()
        self._is_open_known = False
        found = self._use() or self._room.look(self._unlinked)
        if self._open.is_busy:
            self._opened()
        ended = time.monotonic()
        self.due = ended + min(max(_PACE_S, _SHARE * (ended - began)), _SLOWEST_S)
        return found

    def close(self) -> Blocked | None:
        """Stop watching when all inside is gone; return the limit by which the kernel ended it, if it did."""
        self._processes.close()
        self._room.close()
        if self._kernel is not None:
            self._kernel.close()
        if self._cgroup is None:
            return None
        found = self._cgroup.reached()
        self._cgroup.remove()
        return None if found is None else self._told(found)

    def _told(self, name: str) -> Blocked:
        amount = {told.MEMORY: self._memory, told.PROCESSES: self._limits.processes, told.CPU: self._limits.cpu}
        return told.hit(name, amount[name])

    def _use(self) -> Blocked | None:
        used = self._processes.tally()
        if self._cgroup is not None and (reached := self._cgroup.reached()) is not None:
            return self._told(reached)
        if self._limits.processes and used.tasks >= self._limits.processes:
            return self._told(told.PROCESSES)
        if self._limits.cpu and used.ticks / _TICKS >= self._limits.cpu:
            return self._told(told.CPU)
        return self._memory_reached(used.pages * _PAGE)

    def _memory_reached(self, resident: int) -> Blocked | None:
        """Find out step by step whether all has too much memory; most runs need the first step alone.

        `resident` is what the processes have in memory, shared or a file's on disk: the most that can be their own.
        """
        tmpfs = self._tmpfs.used()
        hidden = 0
        if self._cgroup is None:
            machine = Machine()
            if machine.left < self._reserve:
                return told.machine_full(machine.left)
            hidden = machine.hidden
        # What this run hides is among what the whole machine does.
        if resident + tmpfs + hidden < self._memory:
            return None
        opened = self._opened()
        segments, kernels = self._kernels(opened.sockets)
        tables, swapped = self._processes.tables_and_swapped()
        files, besides = tmpfs + opened.in_memory() + segments, tables + kernels
        if resident + swapped + files + besides < self._memory:
            return None
        own, mapped = self._processes.own_and_mapped()
        if own + besides + max(files, mapped) < self._memory <= own + besides + files + mapped:
            files += self._processes.only_mapped(opened.device, opened.memory)
        # Most files that are mapped are among those that were counted.
        return self._told(told.MEMORY) if own + besides + max(files, mapped) >= self._memory else None

    def _kernels(self, sockets: set[int]) -> tuple[int, int]:
        """Count what the kernel keeps in no process's name: System V's segments, and all else."""
        if self._cgroup is not None:
            return 0, 0  # it counts these itself
        if self._kernel is None:
            from fumehood.linux.kernel_memory import KernelMemory

            self._kernel = KernelMemory(self._init)
        self._kernel.look(sockets)
        return self._kernel.segments(), self._kernel.others()

    def _unlinked(self) -> int | None:
        """Count what files take on the disk that have no name any more, but are open; None where that takes longer."""
        opened = self._opened()
        return None if opened.is_busy else opened.on_disk()

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
