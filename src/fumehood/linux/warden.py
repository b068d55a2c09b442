"""Watch what a running sandbox uses, and report when it reaches a limit.

A short run never meets the warden: its first check comes when a command has run for a moment.
"""

from __future__ import annotations

import os
import time

from fumehood.core.report import (
    CPU,
    MEMORY,
    PROCESSES,
    limit_reached,
    machine_full,
    stopped_by_request,
)
from fumehood.linux.cgroup import Cgroup
from fumehood.linux.confine import memory_limit
from fumehood.linux.disk_use import MAX_RESERVE, RESERVED_PART, DiskUse
from fumehood.linux.namespaces import refresh_overlays
from fumehood.linux.usage import MachineMemory, OpenFiles, Processes, TmpfsUse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.policy import Limits
    from fumehood.core.report import Blocked
    from fumehood.linux.kernel_memory import KernelMemory

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0  # between two checks
_PAUSE_FACTOR = 10  # the pause is so many times what the check took: at most a tenth of the time is spent on checks
_REFRESH_EVERY_S = 2.0  # a command sees after so long what people replace in the project
_IDLE_PART = 10  # a command is idle if it uses less than a tenth of a processor
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Warden:
    """Watches one sandbox, whose first process is `init`.

    `layers` are the directories that capture its writes, `other_directories` are others that it may write, with what
    was there before. `overlays` are paths at which it may see an overlay. `checkpoint` is called at each check, and
    makes a checkpoint if it is time for one. Raises SandboxNotReady.
    """

    def __init__(
        self, limits: Limits, init: int, layers: Sequence[str], *, layers_empty: bool = True,
        other_directories: Sequence[str] = (), stop_mark: str = "", checkpoint: Callable[[int], None] | None = None,
        overlays: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.next_check = 0.0
        self._init = init
        self._limits = limits
        self._stop_mark = stop_mark
        self._checkpoint = checkpoint
        self._overlays = overlays
        self._refresh_at = time.monotonic() + _REFRESH_EVERY_S
        self._ticks = self._ticks_at_refresh = 0  # of processor time
        self._processes = Processes(init)
        self._tmpfs = TmpfsUse(init)
        self._open_files = OpenFiles(self._processes, self._tmpfs)
        self._has_read_open_files = False  # in this check
        self._kernel_memory: KernelMemory | None = None  # read only if the run may have reached its limit
        self._memory_limit = memory_limit(limits)
        self._memory_reserve = memory_reserve(MachineMemory())
        self._disk_use = DiskUse(layers, limits.written, layers_empty=layers_empty, other_directories=other_directories)
        self._cgroup = Cgroup.around(init, self._memory_limit, limits.processes)

    def check(self) -> Blocked | None:
        """Check the run once; return the limit that it reached, or None."""
        began = time.monotonic()
        self._has_read_open_files = False
        if self._stop_mark and os.path.exists(self._stop_mark):
            return stopped_by_request()
        reached = self._check_processes() or self._disk_use.check(self._unlinked_bytes)
        if self._checkpoint is not None and reached is None:
            self._checkpoint(self._init)
        if self._overlays and began >= self._refresh_at:
            self._refresh_overlays(began)
        if self._open_files.is_round_unfinished:
            self._read_open_files()
        ended = time.monotonic()
        self.next_check = ended + min(max(_MIN_PAUSE_S, _PAUSE_FACTOR * (ended - began)), _MAX_PAUSE_S)
        return reached

    def close(self) -> Blocked | None:
        """Stop watching when everything inside has ended; return the limit by which the kernel ended it, if it did."""
        self._processes.close()
        self._disk_use.close()
        if self._kernel_memory is not None:
            self._kernel_memory.close()
        if self._cgroup is None:
            return None
        reached = self._cgroup.enforced_limit()
        self._cgroup.remove()
        return None if reached is None else self._limit_reached(reached)

    def _refresh_overlays(self, now: float) -> None:
        """Let an idle server see what people replaced: an overlay goes on showing what it has looked up once.

        A busy command would have to look everything up again.
        """
        self._refresh_at = now + _REFRESH_EVERY_S
        used_ticks, self._ticks_at_refresh = self._ticks - self._ticks_at_refresh, self._ticks
        if used_ticks > _REFRESH_EVERY_S * _TICKS_PER_S / _IDLE_PART:
            return
        try:
            refresh_overlays(self._init, self._overlays)
        except OSError:
            return  # it has just ended, or an old kernel can't do it

    def _limit_reached(self, name: str) -> Blocked:
        limits = {MEMORY: self._memory_limit, PROCESSES: self._limits.processes, CPU: self._limits.cpu}
        return limit_reached(name, limits[name])

    def _check_processes(self) -> Blocked | None:
        threads, pages, self._ticks = self._processes.totals()
        if self._cgroup is not None and (reached := self._cgroup.enforced_limit()) is not None:
            return self._limit_reached(reached)
        if self._limits.processes and threads >= self._limits.processes:
            return self._limit_reached(PROCESSES)
        if self._limits.cpu and self._ticks / _TICKS_PER_S >= self._limits.cpu:
            return self._limit_reached(CPU)
        return self._check_memory(pages * _PAGE)

    def _check_memory(self, resident: int) -> Blocked | None:
        """Find out in three steps whether the run has too much memory; for most runs the first is enough.

        `resident` is what the processes have in memory, also shared pages and pages of files on disk: it is the most
        that can be their own.
        """
        tmpfs = self._tmpfs.used_bytes()
        unattributed = 0
        if self._cgroup is None:
            machine = MachineMemory()
            if machine.available < self._memory_reserve:
                return machine_full(machine.available)
            unattributed = machine.unattributed
        # What this run uses in no process's name is part of what the whole machine does.
        if resident + tmpfs + unattributed < self._memory_limit:
            return None
        open_files = self._read_open_files()
        segments, kernel = self._kernel_bytes(open_files.sockets)
        # Page tables may be large even if the pages are not.
        tables, swapped = self._processes.sum_sizes("status", b"VmPTE", b"VmSwap")
        files, rest = tmpfs + open_files.memory_bytes() + segments, tables + kernel
        if resident + swapped + files + rest < self._memory_limit:
            return None
        # Here a page that processes share counts once, and files in memory that they map are separate.
        in_memory, swapped, mapped = self._processes.sum_sizes("smaps_rollup", b"Pss_Anon", b"SwapPss", b"Pss_Shmem")
        own = in_memory + swapped
        if own + rest + max(files, mapped) < self._memory_limit <= own + rest + files + mapped:
            files += self._processes.only_mapped_bytes(open_files.device, open_files.memory_files)
        # Most mapped files are among the files that were counted.
        return self._limit_reached(MEMORY) if own + rest + max(files, mapped) >= self._memory_limit else None

    def _kernel_bytes(self, sockets: set[int]) -> tuple[int, int]:
        """Count what the kernel uses in no process's name: System V's segments, and everything else."""
        if self._cgroup is not None:
            return 0, 0  # the group counts these itself
        if self._kernel_memory is None:
            from fumehood.linux.kernel_memory import KernelMemory

            self._kernel_memory = KernelMemory(self._init)
        self._kernel_memory.read_more(sockets)
        return self._kernel_memory.segment_bytes(), self._kernel_memory.other_bytes()

    def _unlinked_bytes(self) -> int | None:
        """Count what open files without a name take on disks; return None if that needs further checks."""
        open_files = self._read_open_files()
        return None if open_files.is_round_unfinished else open_files.disk_bytes()

    def _read_open_files(self) -> OpenFiles:
        """Return what is open inside; each check reads on once."""
        if not self._has_read_open_files:
            self._open_files.read_more()
            self._has_read_open_files = True
        return self._open_files


def memory_reserve(machine: MachineMemory) -> int:
    """Return how much memory a run must leave to the machine: 0 if the machine was nearly full before."""
    reserve = min(MAX_RESERVE, machine.total // RESERVED_PART)
    return reserve if machine.available > reserve else 0
