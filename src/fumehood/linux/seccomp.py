"""Give bubblewrap the filter of system calls that the command starts under."""

from __future__ import annotations

import os

from fumehood.core.bpf import program
from fumehood.core.syscalls import ARCHITECTURES, NO_UNIX_SOCKETS

_programs: dict[bool, bytes] = {}  # compiled once in a process


def machine() -> str:
    """Name this machine as the tables do."""
    return os.uname().machine


def is_known() -> bool:
    """Tell whether there is a table of this machine's system calls."""
    return machine() in ARCHITECTURES


def filter_for(*, unix_sockets: bool) -> bytes:
    """Return the filter for commands here, or nothing where the machine's calls are not known."""
    if not is_known():
        return b""
    known = _programs.get(unix_sockets)
    if known is None:
        known = _programs[unix_sockets] = program(machine(), () if unix_sockets else NO_UNIX_SOCKETS)
    return known
