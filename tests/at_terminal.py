"""A person's terminal: a program started on a pty of its own, with somebody reading and typing."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

from patience import LONG_S


class Terminal:
    """One program at a terminal; used in a `with` block, after which it is gone."""

    def __init__(
        self, command: Sequence[str], cwd: os.PathLike[str] | str, *, env: Mapping[str, str] | None = None,
        rows: int = 24, columns: int = 80,
    ) -> None:  # fmt: skip
        self.shown = b""
        self._screen, self._slave = pty.openpty()
        self.resize(rows, columns)
        self.before = self.modes()
        # The window tells its size, and no variable: pytest loads readline, and with that whatever it starts, its own
        # workers too, has COLUMNS and LINES.
        variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command, cwd=cwd, env=variables | {"TERM": "xterm-256color", "PAGER": "cat"} | dict(env or {}),
            stdin=self._slave, stdout=self._slave, stderr=self._slave, preexec_fn=_take_terminal,  # noqa: PLW1509
        )  # fmt: skip

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and let go of the terminal."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._screen)
        os.close(self._slave)

    @property
    def seen(self) -> str:
        """All that was shown so far, as text."""
        return self.shown.decode(errors="replace")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._screen, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        """How the terminal is set."""
        return termios.tcgetattr(self._slave)

    def keep_output(self) -> None:
        """Have Ctrl-C not throw away what was written and not read yet, as the kernel does."""
        modes = termios.tcgetattr(self._slave)
        modes[3] |= termios.NOFLSH
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)

    def read(self, seconds: float = 0.1) -> bool:
        """Take in what is shown within a time; tell whether there was any."""
        if not select.select([self._screen], [], [], seconds)[0]:
            return False
        data = os.read(self._screen, 65536)
        self.shown += data
        return bool(data)

    def more(self) -> bool:
        """Wait for something to be shown; tell whether anything was before the program ended."""
        deadline = time.monotonic() + LONG_S
        while not self.read():
            assert time.monotonic() < deadline, f"nothing happens any more; shown so far: {self.seen!r}"
            if self.process.poll() is not None:
                return self.read(0)
        return True

    def wait_for(self, text: str) -> str:
        """Read until something is shown; returns all that was shown."""
        while text not in self.seen:
            assert self.more(), f"{text!r} was never shown, but: {self.seen!r}"
        return self.seen

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while self.more():
            pass
        return self.process.returncode


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for ignored in (signal.SIGINT, signal.SIGHUP):  # they may be, where the tests run in the background
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a program begins with what its parent has blocked
