"""Swap what two directories have at a name, or move it without replacing anything.

Both are one call on most file systems. Those of networks, and folders that virtual machines share, often know plain
renames and links alone: there it takes several, in an order from which `settle` tells what is left to do after a death.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux import libc
from fumehood.linux.nofollow import look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ASIDE = ".fumehood-swap"  # in the first directory, while it is done in pieces
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def exchange(one: int, other: int, name: str) -> None:
    """Swap the entries of two directories, whatever their kinds."""
    if not _is_renamed(one, other, name, libc.RENAME_EXCHANGE):
        _exchange_in_pieces(one, other, name)


def move(source: int, target: int, name: str) -> None:
    """Rename an entry from one directory to another; FileExistsError where something is there."""
    if not _is_renamed(source, target, name, libc.RENAME_NOREPLACE):
        _move_in_pieces(source, target, name)


def _is_renamed(source: int, target: int, name: str, how: int) -> bool:
    """Do it by one call; return False if the file system has no such call."""
    raw = os.fsencode(name)
    try:
        libc.renameat2(source, raw, target, raw, how)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def settle(one: int, other: int, name: str, is_ours: Callable[[os.stat_result], bool]) -> None:
    """Bring what a death left between two pieces to one side or the other; `is_ours` tells what was on its way."""
    slot, live = look(one, name), look(other, name)
    if slot is not None and live is not None and _is_same(slot, live) and not stat.S_ISDIR(slot.st_mode):
        os.unlink(name, dir_fd=one)
        slot = None
    aside = look(one, ASIDE)
    if aside is None or not is_ours(aside):
        return
    if slot is None:
        os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=one)
    elif live is None:
        os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=other)
    elif not stat.S_ISDIR(aside.st_mode):
        os.unlink(ASIDE, dir_fd=one)  # a second name of what is there, or of what somebody has replaced since


def _exchange_in_pieces(one: int, other: int, name: str) -> None:
    kinds = [os.stat(name, dir_fd=each, follow_symlinks=False).st_mode for each in (one, other)]
    if not any(map(stat.S_ISDIR, kinds)) and _is_linked_aside(one, other, name):
        # The name is never absent, and what is replaced has another one.
        try:
            os.rename(name, name, src_dir_fd=one, dst_dir_fd=other)
        except OSError:
            os.unlink(ASIDE, dir_fd=one)
            raise
    else:
        os.rename(name, ASIDE, src_dir_fd=other, dst_dir_fd=one)
        try:
            move(one, other, name)
        except OSError:
            if look(other, name) is None:
                os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=other)
            raise
    os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=one)


def _is_linked_aside(one: int, other: int, name: str) -> bool:
    """Give an entry of the second directory another name in the first; False where it can't have one."""
    while _is_linked(other, name, one, ASIDE):
        now, aside = look(other, name), look(one, ASIDE)
        if now is not None and aside is not None and _is_same(now, aside):
            return True
        os.unlink(ASIDE, dir_fd=one)  # somebody has just saved it
    return False


def _move_in_pieces(source: int, target: int, name: str) -> None:
    is_directory = stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode)
    # A link refuses to replace anything, which a rename does not.
    if not is_directory and _is_linked(source, name, target, name):
        try:
            os.unlink(name, dir_fd=source)
        except OSError:
            os.unlink(name, dir_fd=target)
            raise
        return
    if look(target, name) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _is_linked(source: int, name: str, target: int, other: str) -> bool:
    """Give an entry another name in another directory; False where the file system, or its owner, allows none."""
    try:
        os.link(name, other, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
