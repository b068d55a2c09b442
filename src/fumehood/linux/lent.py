"""Lend a command our own standard input, without giving it the descriptor.

Whoever holds a pipe's reading end can open it again for writing, and so could tell a shell that reads its script from
the same pipe what to do next, outside. So the command gets a pipe of its own. It holds one piece at a time, which is
only copied; what the command has read of it is then taken from the original, and no more: the next program there finds
the rest, as it would without us.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import stat

from fumehood.errors import BadRequest
from fumehood.linux import landlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.linux.stdio import Carrier

_F_SETPIPE_SZ = 1031
_FIONREAD = 0x541B
_PIECE = 4096
_AT_ONCE, _MOMENT_MS = 64, 1
_WITHOUT_WAITING = 2  # of splice and tee
_MSG_PEEK, _MSG_DONTWAIT = 2, 0x40

_libc = ctypes.CDLL(None, use_errno=True)
_libc.tee.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]
_libc.recv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.tee.restype = _libc.recv.restype = ctypes.c_ssize_t


def lent(source: int) -> tuple[int, Carrier | None]:
    """Return what the command gets as its input in place of a descriptor of ours, and what feeds it, if anything."""
    found = os.fstat(source)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFCHR:
        from fumehood.linux.stdio import Feed

        reading, writing = os.pipe()
        return reading, Feed(writing, source=source)
    if kind == stat.S_IFDIR:
        raise BadRequest("standard input is a directory", hint="a command could leave the sandbox by it")
    # Where nothing but its mode keeps a file from being opened for writing, it is not given either.
    if kind == stat.S_IFREG and landlock.guard():
        try:
            opened = Opened(source)
        except OSError:
            pass  # not ours to open: we were given it by somebody who may read it
        else:
            return opened.given, opened
    lending = Lent(source, kind)
    return os.dup(lending.reading), lending


class Opened:
    """A file that was opened anew, so that the command moves a position of its own; ours follows in the end."""

    waits_for = (-1, 0)

    def __init__(self, source: int) -> None:
        self._source = source
        self.given = os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_CLOEXEC)
        self._from = os.lseek(source, 0, os.SEEK_CUR)
        os.lseek(self.given, self._from, os.SEEK_SET)
        self._kept = os.dup(self.given)

    def advance(self) -> bool:
        """There is nothing to carry."""
        return True

    def close(self) -> None:
        """Go on where the command stopped reading; never back, or a script would be read again."""
        reached = os.lseek(self._kept, 0, os.SEEK_CUR)
        if reached > self._from:
            os.lseek(self._source, reached, os.SEEK_SET)
        os.close(self._kept)


class Lent:
    """Carries a pipe, a socket or a file to the command, piece by piece."""

    def __init__(self, source: int, kind: int) -> None:
        self._source = source
        self._kind = kind
        self.reading, self._sink = os.pipe()
        # Of one piece: there is room exactly when the command has read it to its end.
        fcntl.fcntl(self._sink, _F_SETPIPE_SZ, _PIECE)
        self._shown = 0  # bytes in the pipe that are still in the source, too

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next, and for what."""
        return (self._sink, select.POLLOUT) if self._shown else (self._source, select.POLLIN)

    def advance(self) -> bool:
        """Take away what was read and show the next piece; tell whether there may be more."""
        for _ in range(_AT_ONCE):
            if self._shown:
                self._take(self._shown)
                self._shown = 0
            if not _is_ready(self._source, select.POLLIN, 0):
                return True
            try:
                self._shown = self._show()
            except BlockingIOError:
                return True  # somebody else has read it
            except OSError:
                return False
            if not self._shown:
                return False
            # One who reads much is waited for here for a moment: a turn of all that is attended to takes longer.
            if not _is_ready(self._sink, select.POLLOUT, _MOMENT_MS):
                return True
        return True

    def close(self) -> None:
        """Take what the command has read of the last piece, and let it know that this was all."""
        left = _waiting(self.reading)
        if self._shown > left:
            self._take(self._shown - left)
        os.close(self._sink)
        os.close(self.reading)

    def _show(self) -> int:
        """Copy a piece into the command's pipe; returns its size."""
        if self._kind == stat.S_IFIFO:
            return _checked(_libc.tee(self._source, self._sink, _PIECE, _WITHOUT_WAITING))
        if self._kind == stat.S_IFSOCK:
            buffer = ctypes.create_string_buffer(_PIECE)
            size = _checked(_libc.recv(self._source, buffer, _PIECE, _MSG_PEEK | _MSG_DONTWAIT))
            return os.write(self._sink, buffer.raw[:size]) if size else 0
        data = os.pread(self._source, _PIECE, os.lseek(self._source, 0, os.SEEK_CUR))
        return os.write(self._sink, data) if data else 0

    def _take(self, size: int) -> None:
        """Take away what was read; not more than is there, should somebody else have read it as well."""
        if self._kind not in (stat.S_IFIFO, stat.S_IFSOCK):
            os.lseek(self._source, size, os.SEEK_CUR)
            return
        size = min(size, _waiting(self._source))
        while size > 0 and (data := os.read(self._source, size)):
            size -= len(data)


def _is_ready(fd: int, event: int, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(milliseconds))


def _waiting(fd: int) -> int:
    """Return how many bytes can be read at once."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), "little")


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
