"""What confines a command besides its mounts: a filter of system calls, Landlock, and the kernel's limits."""

from __future__ import annotations

import os
from binascii import a2b_base64, crc32

from fumehood.linux import cache, libc
from fumehood.linux.bwrap import open_memory_file
from fumehood.linux.guards import GUARDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.policy import Limits

# The same on every architecture but MIPS, SPARC, Alpha.
_CPU, _FSIZE, _CORE, _NPROC, _NOFILE, _SIGPENDING = 0, 1, 4, 6, 7, 11
_PARTS = 4  # of what a user has, one is for a command
_BEYOND = 2  # times the number of processes at which the warden ends a run, the kernel refuses a further one
_LIKELY_VICTIM = b"800"
CACHE_PREFIX = "filter-"  # how the names begin of what is kept in the cache
_TABLES = f"{os.path.dirname(os.path.dirname(__file__))}/core/syscalls.py"


def machine() -> str:
    """Name this machine as the tables do."""
    return os.uname().machine


def is_known() -> bool:
    """Return True if there is a table of this machine's system calls."""
    from fumehood.core.syscalls import ARCHITECTURES

    return machine() in ARCHITECTURES


def filter_for(directory: str, *, unix_sockets: bool, pretends_owners: bool = False) -> bytes:
    """Return the filter for commands here, or nothing where the machine's calls are not known.

    `pretends_owners` is for a command that is root inside: giving a file to anybody else does nothing and succeeds.
    """
    tables = libc.read(_TABLES)  # which is quicker read than compiled
    variant = ("" if unix_sockets else "-no-unix") + ("-owners" if pretends_owners else "")
    # Named by content: installations that share a cache keep out of each other's way.
    path = f"{directory}/{CACHE_PREFIX}{machine()}{variant}-{crc32(tables):08x}"
    kept: bytes | None = cache.load(path) if tables else None
    if kept is not None:
        return kept
    from fumehood.core.syscalls import NO_UNIX_SOCKETS, PRETENDED_OWNERS, program

    more = (() if unix_sockets else NO_UNIX_SOCKETS) + (PRETENDED_OWNERS if pretends_owners else ())
    made = program(machine(), more) if is_known() else b""
    if tables:
        cache.save(path, made)
    return made


# Landlock: writing confined by the kernel a second time, and abstract sockets of a network that is shared kept out.
# A command gets one ruleset, never two: any further one that does not grant it denies moving files to another
# directory.

# Versions of the interface: Linux 5.19, 6.2 and 6.12.
MOVING_SINCE, TRUNCATING_SINCE, _SCOPES_SINCE = 2, 3, 6
GUARD, SCOPE, NONE = "guard", "scope", "none"

_guard: bytes | None = None


def ruleset(version: int, *, has_program: bool, network_shared: bool) -> str:
    """Name the one ruleset of a command: the guard's, the launcher's scope, or none.

    The guard's has the scope as well. The first version can't be told to allow moving files to another directory, so
    that there is no guard by it. The launcher's is for machines that the guard is not compiled for.
    """
    if has_program and version >= MOVING_SINCE:
        return GUARD
    return SCOPE if network_shared and version >= _SCOPES_SINCE else NONE


def guard() -> bytes:
    """Return the program that confines writing and then becomes the command, or nothing where that can't be done."""
    global _guard
    if _guard is None:
        text = GUARDS.get(machine(), "")
        try:
            os.close(open_memory_file(executable=True))
            has_program = bool(text)
        except OSError:  # vm.memfd_noexec = 2
            has_program = False
        is_used = ruleset(libc.landlock_version(), has_program=has_program, network_shared=False) == GUARD
        _guard = a2b_base64(text) if is_used else b""
    return _guard


def must_scope_sockets(*, network_shared: bool) -> bool:
    """Return True if the launcher itself must keep a command from the host's abstract sockets."""
    return ruleset(libc.landlock_version(), has_program=bool(guard()), network_shared=network_shared) == SCOPE


def can_scope() -> bool:
    """Return True if this kernel can keep a process from abstract sockets."""
    return libc.landlock_version() >= _SCOPES_SINCE


def memory_limit(limits: Limits) -> int:
    """Return the bytes that all processes may have together: three quarters of the machine's, if not said."""
    return limits.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 * 3


def resource_limits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """Return what the kernel is told, each as the limit's number and its value."""
    wanted = (
        (_CORE, 1),  # not none: none still starts the host's crash handler, which runs outside the sandbox
        (_CPU, max(1, int(limits.cpu)) if limits.cpu else 0),
        (_FSIZE, limits.file_size),
        (_NPROC, limits.processes * _BEYOND),
        (_NOFILE, limits.files),
    )
    return tuple((number, value) for number, value in wanted if value)


def set_limits(wanted: tuple[tuple[int, int], ...], *, count_processes: bool) -> None:
    """Lower this process's limits to these.

    Processes are counted for each user in each user namespace (from Linux 5.14 on): in one that we share with
    the person's other programs, those would count as well.
    """
    for number, value in wanted:
        if number != _NPROC or count_processes:
            libc.lower_limit(number, value, sets_soft=number == _CORE)
    # Signals that wait, and timers, are counted for each user whatever the namespace: the person's programs need some.
    libc.divide_limit(_SIGPENDING, _PARTS)


def end_first() -> None:
    """Where the whole machine runs out of memory, have the kernel look here first."""
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(score, _LIKELY_VICTIM)
    os.close(score)
