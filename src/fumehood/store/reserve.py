"""Room on the state's disk for the end of a run: a file that takes it, and is given back when the disk is full.

A run begins only where that file is there and some room is left besides. So what a command did can be recorded,
held or thrown away, even where others fill the disk meanwhile.
"""

from __future__ import annotations

import errno
import os

from fumehood.core.limits import END_BYTES, END_ENTRIES, size_told
from fumehood.errors import NoRoom

_SIZE = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def keep(state: str) -> None:
    """Take the room that the end of a run needs, or refuse to begin one."""
    try:
        taken = os.stat(_path(state)).st_size
    except FileNotFoundError:
        taken = 0
    if taken < _SIZE:
        _take(state)
    lacking = shortage(state)
    if lacking:
        raise NoRoom(f"no command can begin: {lacking}", hint=hint(state))


def shortage(state: str) -> str:
    """Say what the disk lacks for another run to begin; "" where it has room."""
    while not os.path.exists(state):
        state = os.path.dirname(state)
    disk = os.statvfs(state)
    free = disk.f_bavail * disk.f_frsize
    if free < END_BYTES:
        return f"the disk of {state} has only {size_told(free)} left"
    # Some file systems have no fixed number of entries: they say 0.
    if disk.f_files and disk.f_favail < END_ENTRIES:
        return f"the disk of {state} has room for only {disk.f_favail} more files"
    return ""


def hint(state: str) -> str:
    """Say how to get room again."""
    needed = size_told(END_BYTES + _SIZE)
    return f"free some of it ({needed} are needed in {state}): fumehood clean, or discard what is held"


def give_back_if_full(state: str) -> bool:
    """Give the room back where the disk has little left, for what is to be recorded now; tell if there was some."""
    if not shortage(state):
        return False
    try:
        os.unlink(_path(state))
    except FileNotFoundError:
        return False
    return True


def _path(state: str) -> str:
    return f"{state}/reserve"


def _take(state: str) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(_path(state), flags, 0o600)
        try:
            os.posix_fallocate(file, 0, _SIZE)
        except OSError:
            os.unlink(_path(state))
            raise
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        lacking = shortage(state) or f"the disk of {state} is full"
        raise NoRoom(f"no command can begin: {lacking}", hint=hint(state)) from error
