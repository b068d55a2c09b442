"""Locks between processes, each on an open file or directory: who has one lives, and is not done."""

from __future__ import annotations

import _weakref
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_locks: set[Any] = set()


class Lock:
    """A lock on what a descriptor is open on, given back by `close`, by the end of a `with` block, or of this object.

    It is of the process that made it, and of no other: a child that is forked meanwhile would keep it when its parent
    is dead, or give it back for both.
    """

    def __init__(self, file: int) -> None:
        """Take over a descriptor; nothing is locked yet."""
        self.file = file
        _locks.add(_weakref.ref(self, _locks.discard))

    def take(self, *, shared: bool = False, wait: bool = True) -> Self:
        """Lock it; raises BlockingIOError where somebody has it and we do not wait."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(self.file, how if wait else how | fcntl.LOCK_NB)
        return self

    def close(self) -> None:
        """Give it back, and close the descriptor."""
        file, self.file = self.file, -1
        if file >= 0:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process of somebody else's making may have a copy of the descriptor
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # Ctrl-C can come before the end of a `with` block is done


def _leave_to_parent() -> None:
    for each in tuple(_locks):
        lock = each()
        if lock is not None and lock.file >= 0:
            os.close(lock.file)
            lock.file = -1


os.register_at_fork(after_in_child=_leave_to_parent)
