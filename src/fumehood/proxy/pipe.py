"""Pages on their way from one connection to another: the kernel moves them, nothing is copied."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading

SMALL, LARGE = 64 << 10, 1 << 20  # what every pipe has, and what one may have without privilege
_BUSY = 256 << 10  # bytes after which a pipe is worth more room
_F_SETPIPE_SZ = 1031
_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
# All pipes of a user together may have 64 MiB, and those made beyond that are tiny, other programs' too.
_roomy = threading.BoundedSemaphore(32)


class Pipe:
    """A pipe between two connections that don't block; `held` is what was taken from one and not given to the other."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._size = SMALL
        self._moved = 0
        self.held = 0

    def fill(self, source: int, most: int = LARGE) -> int | None:
        """Take in what is there, when all was given away before; 0 at its end, None if nothing is there yet."""
        if self._moved > _BUSY and self._size == SMALL:
            self._grow()
        try:
            self.held = os.splice(source, self._writing, min(most, self._size), flags=_FLAGS)
        except BlockingIOError:
            return None
        return self.held

    def empty(self, target: int) -> int:
        """Give away what the target takes now, and tell how much that was."""
        try:
            given = os.splice(self._reading, target, self.held, flags=_FLAGS)
        except BlockingIOError:
            return 0
        self.held -= given
        self._moved += given
        return given

    def _grow(self) -> None:
        self._moved = 0
        if _roomy.acquire(blocking=False):
            self._size = LARGE
            # Refused where this user has many pipes already; a small one works too.
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(self._writing, _F_SETPIPE_SZ, LARGE)

    def close(self) -> None:
        """Close it, with what may still be in it."""
        os.close(self._reading)
        os.close(self._writing)
        if self._size == LARGE:
            _roomy.release()
