"""Locks between processes, each on an open file or directory: who has one lives, and is not done."""

from __future__ import annotations

import _weakref
import fcntl
import os
import select

from fumehood.linux.libc import Closable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_locks: set[Any] = set()


class Lock(Closable):
    """A lock on what a descriptor is open on, given back by `close`, by the end of a `with` block, or of this object.

    It is of the process that made it, and of no other: a child that is forked meanwhile would keep it when its parent
    is dead, or give it back for both.
    """

    def __init__(self, file: int) -> None:
        """Take over a descriptor; nothing is locked yet."""
        self.file = file
        # Closes it with this object, in C: a Ctrl-C that came in a `__del__` of ours would be lost.
        self._owner = select.epoll.fromfd(file)
        _locks.add(_weakref.ref(self, _locks.discard))

    def take(self, *, shared: bool = False, wait: bool = True) -> Self:
        """Lock it; raises BlockingIOError where somebody has it and we do not wait."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(self.file, how if wait else how | fcntl.LOCK_NB)
        return self

    def close(self) -> None:
        """Give it back, and close the descriptor."""
        if self.file >= 0:
            fcntl.flock(self.file, fcntl.LOCK_UN)  # a fork that Python knows nothing of has a copy
            self._leave()

    def _leave(self) -> None:
        self.file = -1
        self._owner.close()


def lock_directory(directory: str) -> Lock:
    """Wait for the lock on a directory, and take it."""
    return Lock(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)).take()


def _leave_to_parent() -> None:
    for each in tuple(_locks):
        lock = each()
        if lock is not None:
            lock._leave()


os.register_at_fork(after_in_child=_leave_to_parent)
