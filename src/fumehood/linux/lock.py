"""Locks between processes, each on an open file or directory: a process that holds one is alive and not done."""

from __future__ import annotations

import _weakref
import fcntl
import os
import select

from fumehood.linux.libc import Closable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_locks: set[Any] = set()  # weak references


class Lock(Closable):
    """A lock on the file of a descriptor; released by `close`, at the end of a `with` block, or with this object.

    Only the process that made it has it. A child that is forked meanwhile closes its copy: otherwise it would keep the
    lock when its parent is dead, or release it for both.
    """

    def __init__(self, file: int) -> None:
        """Take over a descriptor, which this object closes; nothing is locked yet."""
        self.file = file
        # It closes the descriptor with this object, in C: a Ctrl-C during a `__del__` of ours would be lost.
        self._owner = select.epoll.fromfd(file)
        _locks.add(_weakref.ref(self, _locks.discard))

    def take(self, *, shared: bool = False, wait: bool = True) -> Self:
        """Lock the file; raise BlockingIOError if another process has the lock and `wait` is false."""
        operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(self.file, operation if wait else operation | fcntl.LOCK_NB)
        return self

    def close(self) -> None:
        """Release the lock, and close the descriptor."""
        if self.file >= 0:
            fcntl.flock(self.file, fcntl.LOCK_UN)  # a child that was forked without Python may have a copy
            self._close_file()

    def _close_file(self) -> None:
        self.file = -1
        self._owner.close()


def lock_directory(directory: str) -> Lock:
    """Wait for the lock on a directory, and take it."""
    return Lock(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)).take()


def _close_copies() -> None:
    for reference in tuple(_locks):
        lock = reference()
        if lock is not None:
            lock._close_file()


os.register_at_fork(after_in_child=_close_copies)
