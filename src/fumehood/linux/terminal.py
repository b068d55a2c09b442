"""Lend a person's terminal to a command, through a terminal of the command's own.

The command never holds the person's: it could type into it, change its settings, and read on after the run.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import tty
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any


class Terminal:
    """A terminal for one command, as large as the person's and kept so; what is typed goes there as it is.

    Use it as a context: the person's terminal is raw for that time, and afterwards as it was, whatever happened.
    """

    def __init__(self, person: int = 0) -> None:
        self._person = person
        self._before = termios.tcgetattr(person)
        self._resized: Any = None
        self.master = self.slave = -1

    def __enter__(self) -> Terminal:
        self.master, self.slave = os.openpty()
        termios.tcsetattr(self.slave, termios.TCSANOW, self._before)
        self._resize()
        self._resized = signal.signal(signal.SIGWINCH, self._resize)
        tty.setraw(self._person, termios.TCSADRAIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGWINCH, self._resized)
        self.restore()
        os.close(self.master)

    def restore(self) -> None:
        """Give the person their terminal back."""
        # In the background, where this would stop us, it is somebody else's at the moment.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            termios.tcsetattr(self._person, termios.TCSADRAIN, self._before)
        except termios.error:
            return  # it is gone
        finally:
            signal.signal(signal.SIGTTOU, before)

    def _resize(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Make it as large as the person's; the kernel tells the command."""
        try:
            size = fcntl.ioctl(self._person, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        except OSError:
            return  # one of the two is gone
