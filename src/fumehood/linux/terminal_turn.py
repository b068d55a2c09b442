"""One question at a time on a terminal, whichever process asks it.

Two that ask at once would share the keys, and a yes to one could reach the other. So whoever asks holds a lock on the
terminal's own device; one that dies lets go of it. `/dev/tty` is one file for all terminals, so the device behind it
is locked. Where that can't be opened (a person who became another by `su`), it is a file of our own, named by the
device: then root and that person do not wait for each other.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_TIOCGDEV = 0x80045432  # <asm-generic/ioctls.h>: the real device, also behind /dev/tty
_LOOK_MS = 50
_OPEN = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC


class TerminalTurn:
    """The right to ask on a terminal, for a `with` block; `locks` is our own directory of lock files."""

    def __init__(self, tty: int, locks: str) -> None:
        self._file = _lock_file(tty, locks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._file)

    def wait(self, closed: int | None = None, seconds: float | None = None) -> bool:
        """Wait until it is ours; False if `closed` hangs up, or the time is over, before that."""
        deadline = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        if closed is not None:
            poll.register(closed, select.POLLIN | select.POLLHUP)
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
            else:
                return True
            if poll.poll(_LOOK_MS):
                return False


def _lock_file(tty: int, locks: str) -> int:
    """Open what is locked for a terminal."""
    (number,) = struct.unpack("I", fcntl.ioctl(tty, _TIOCGDEV, bytes(4)))
    major, minor = (number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)
    device = os.makedev(major, minor)
    for path in _names(major, minor):
        found = _opened(path, device)
        if found is not None:
            return found
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(f"{locks}/terminal-{major}-{minor}", flags, 0o600)


def _names(major: int, minor: int) -> list[str]:
    """Return where a terminal's device may lie; those of windows are not in /sys."""
    try:
        named = os.path.basename(os.readlink(f"/sys/dev/char/{major}:{minor}"))
    except OSError:
        return [f"/dev/pts/{minor}"]
    return [f"/dev/{named}"]


def _opened(path: str, device: int) -> int | None:
    """Open a terminal by its name, if that is the right device."""
    try:
        file = os.open(path, _OPEN)
    except OSError:
        return None
    if os.fstat(file).st_rdev == device:
        return file
    os.close(file)
    return None
