"""Confine a command, besides its mounts: by a filter of system calls, Landlock, and the kernel's limits."""

from __future__ import annotations

import os
from binascii import a2b_base64, crc32

from fumehood.linux import cache, libc
from fumehood.linux.bwrap import open_memory_file
from fumehood.linux.guards import GUARDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.policy import Limits

# Numbers of resource limits; the same on every architecture but MIPS, SPARC and Alpha.
_CPU, _FSIZE, _CORE, _NPROC, _NOFILE, _SIGPENDING = 0, 1, 4, 6, 7, 11
_SIGPENDING_DIVISOR = 4  # a command gets a quarter of what its user has
_NPROC_FACTOR = 2  # a run is ended at its limit of processes; at twice that, the kernel refuses more
_OOM_SCORE = b"800"
CACHE_PREFIX = "filter-"  # of the names of cached filters
_TABLES = f"{os.path.dirname(os.path.dirname(__file__))}/core/syscalls.py"


def architecture() -> str:
    """Return the name of this machine's architecture, as the tables have it."""
    return os.uname().machine


def has_syscall_table() -> bool:
    """Return True if there is a table of this machine's system calls."""
    from fumehood.core.syscalls import ARCHITECTURES

    return architecture() in ARCHITECTURES


def load_syscall_filter(cache_directory: str, *, unix_sockets: bool, pretends_owners: bool = False) -> bytes:
    """Return the filter for commands here; b"" if there is no table of this machine's system calls.

    `pretends_owners` is for a command that is root inside: giving a file to another user does nothing and succeeds.
    """
    tables = libc.read(_TABLES)  # this is quicker than to make the filter
    variant = ("" if unix_sockets else "-no-unix") + ("-owners" if pretends_owners else "")
    # Named by content, so that installations that share a cache do not overwrite each other's filters.
    path = f"{cache_directory}/{CACHE_PREFIX}{architecture()}{variant}-{crc32(tables):08x}"
    cached: bytes | None = cache.load(path) if tables else None
    if cached is not None:
        return cached
    from fumehood.core.syscalls import NO_UNIX_SOCKETS, PRETENDED_OWNERS, filter_program

    rules = (() if unix_sockets else NO_UNIX_SOCKETS) + (PRETENDED_OWNERS if pretends_owners else ())
    new_filter = filter_program(architecture(), rules) if has_syscall_table() else b""
    if tables:
        cache.save(path, new_filter)
    return new_filter


# Landlock: the kernel confines writing a second time, and keeps commands from abstract sockets of a shared network.
# A command gets one ruleset, never two: a second one that does not grant it denies moving files to another directory.

# Versions of the interface: Linux 5.19, 6.2 and 6.12.
MOVING_SINCE, TRUNCATING_SINCE, _SCOPES_SINCE = 2, 3, 6
GUARD, SCOPE, NONE = "guard", "scope", "none"

_guard: bytes | None = None


def choose_ruleset(version: int, *, has_program: bool, network_shared: bool) -> str:
    """Return the one ruleset of a command: that of the guard, the launcher's scope, or none.

    The guard's includes the scope. In the first version of Landlock, no rule can allow moving files to another
    directory, so there is no guard. The launcher's scope is for machines for which the guard is not compiled.
    """
    if has_program and version >= MOVING_SINCE:
        return GUARD
    return SCOPE if network_shared and version >= _SCOPES_SINCE else NONE


def guard_program() -> bytes:
    """Return the program that confines writing and then becomes the command; b"" if that is not possible here."""
    global _guard
    if _guard is None:
        encoded = GUARDS.get(architecture(), "")
        try:
            os.close(open_memory_file(executable=True))
            has_program = bool(encoded)
        except OSError:  # vm.memfd_noexec = 2
            has_program = False
        is_used = choose_ruleset(libc.landlock_version(), has_program=has_program, network_shared=False) == GUARD
        _guard = a2b_base64(encoded) if is_used else b""
    return _guard


def must_scope_sockets(*, network_shared: bool) -> bool:
    """Return True if the launcher itself must keep a command from the host's abstract sockets."""
    has_program = bool(guard_program())
    return choose_ruleset(libc.landlock_version(), has_program=has_program, network_shared=network_shared) == SCOPE


def can_scope() -> bool:
    """Return True if this kernel can keep a process from abstract sockets."""
    return libc.landlock_version() >= _SCOPES_SINCE


def resource_limits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """Return the limits that the kernel enforces for each process, as numbers and values."""
    values = (
        (_CORE, 1),  # not 0: that would still start the host's crash handler, which runs outside the sandbox
        (_CPU, max(1, int(limits.cpu)) if limits.cpu else 0),
        (_FSIZE, limits.file_size),
        (_NPROC, limits.processes * _NPROC_FACTOR),
        (_NOFILE, limits.files),
    )
    return tuple((number, value) for number, value in values if value)


def set_limits(limits: tuple[tuple[int, int], ...], *, count_processes: bool) -> None:
    """Lower the limits of this process; that of processes only if `count_processes`.

    The kernel counts processes for each user in each user namespace (since Linux 5.14). In a namespace that we share
    with the person's other programs, those would count as well.
    """
    for number, value in limits:
        if number != _NPROC or count_processes:
            libc.lower_limit(number, value, sets_soft=number == _CORE)
    # Pending signals and timers are counted for each user, across namespaces: the person's programs need some too.
    libc.divide_limit(_SIGPENDING, _SIGPENDING_DIVISOR)


def volunteer_for_oom_kill() -> None:
    """Let the kernel kill this process first if the whole machine runs out of memory."""
    with libc.Closing(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)) as file:
        os.write(file, _OOM_SCORE)
