"""Landlock: writing confined by the kernel a second time, and abstract sockets of a network that is shared kept out.

A command gets one ruleset, never two: any further one that does not grant it denies moving files to another directory.
"""

from __future__ import annotations

import ctypes
import os

from fumehood.linux import libc
from fumehood.linux.memory import memory

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # the same numbers on every architecture
_VERSION = 1
_SCOPE_ABSTRACT_SOCKETS = 1
# Versions of the interface: Linux 5.19 and 6.12.
MOVING_SINCE, _SCOPES_SINCE = 2, 6
GUARD, SCOPE, NONE = "guard", "scope", "none"
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Ruleset(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64), ("handled_access_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64),
    ]  # fmt: skip


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
        from binascii import a2b_base64

        from fumehood.linux.guards import GUARDS

        text = GUARDS.get(os.uname().machine, "")
        has_program = bool(text) and _can_execute_memory()
        is_used = ruleset(version(), has_program=has_program, network_shared=False) == GUARD
        _guard = a2b_base64(text) if is_used else b""
    return _guard


def is_scoped_by_launcher(*, network_shared: bool) -> bool:
    """Tell whether the launcher itself must keep a command from the host's abstract sockets."""
    return ruleset(version(), has_program=bool(guard()), network_shared=network_shared) == SCOPE


def version() -> int:
    """Return the version of the interface that this kernel has; less than one is none."""
    return int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION))


def _can_execute_memory() -> bool:
    try:
        os.close(memory(executable=True))
    except OSError:  # vm.memfd_noexec = 2
        return False
    return True


def can_scope() -> bool:
    """Tell whether this kernel can keep a process from abstract sockets."""
    return version() >= _SCOPES_SINCE


def forbid_outer_sockets() -> None:
    """Keep this process, and all it starts, from abstract sockets that it, or they, did not make.

    Only where the guard does not: on top of this ruleset, its own would deny every move to another directory.
    """
    wanted = _Ruleset(scoped=_SCOPE_ABSTRACT_SOCKETS)
    ruleset = _libc.syscall(_CREATE_RULESET, ctypes.byref(wanted), ctypes.sizeof(wanted), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if _libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(ruleset)
