"""Resource limits that a sandbox's first process sets on itself, so that everything inside inherits them."""

from __future__ import annotations

import os

from fumehood.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.policy import Limits

_CPU, _FSIZE, _CORE, _NPROC, _NOFILE = 0, 1, 4, 6, 7  # the same on every architecture but MIPS, SPARC, Alpha
_BEYOND = 2  # times the number of processes at which the warden ends a run, the kernel refuses a further one
_LIKELY_VICTIM = b"800"


def memory_limit(limits: Limits) -> int:
    """Return the bytes that all processes may have together: three quarters of the machine's, if not said."""
    return limits.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 * 3


def resource_limits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """Return what the kernel is told, each as the limit's number and its value."""
    # One byte, not none: none still starts the host's crash handler, which runs outside the sandbox.
    wanted = [(_CORE, 1)]
    if limits.cpu:
        wanted.append((_CPU, int(limits.cpu) or 1))
    if limits.file_size:
        wanted.append((_FSIZE, limits.file_size))
    if limits.processes:
        wanted.append((_NPROC, limits.processes * _BEYOND))
    if limits.files:
        wanted.append((_NOFILE, limits.files))
    return tuple(wanted)


def set_limits(wanted: tuple[tuple[int, int], ...], *, count_processes: bool) -> None:
    """Lower this process's limits to these.

    Processes are counted for each user in each user namespace (from Linux 5.14 on): in one that we share with
    the person's other programs, those would count as well.
    """
    for number, value in wanted:
        if number != _NPROC or count_processes:
            libc.lower_limit(number, value, at_once=number == _CORE)
    # Where the whole machine runs out of memory, the kernel is to look here first.
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(score, _LIKELY_VICTIM)
    os.close(score)
