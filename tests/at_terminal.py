"""A person's terminal: a program started on a pty of its own, with somebody reading and typing."""

import os
import pty
import select
import signal
import termios
import time
from collections.abc import Sequence

LONG_S = 60


class Terminal:
    """One program at a terminal; used in a `with` block, after which it is gone."""

    def __init__(self, command: Sequence[str], cwd: os.PathLike[str] | str) -> None:
        self._seen = ""
        self.process, self._screen = pty.fork()
        if self.process == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored, where the tests run in the background
                os.chdir(cwd)
                os.execvp(command[0], command)
            finally:
                os._exit(127)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process:
            os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self._screen)

    @property
    def seen(self) -> str:
        """All that was shown so far."""
        return self._seen

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> str:
        """Read until something is shown; returns all that was shown."""
        deadline = time.monotonic() + LONG_S
        while text not in self._seen:
            assert time.monotonic() < deadline, f"{text!r} was never shown, but: {self._seen!r}"
            if not self._read():
                break
        assert text in self._seen, f"{text!r} was never shown, but: {self._seen!r}"
        return self._seen

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while self._read():
            pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        self.process = 0
        return status

    def _read(self) -> bool:
        ready, _, _ = select.select([self._screen], [], [], LONG_S)
        assert ready, f"nothing happens any more; shown so far: {self._seen!r}"
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # everybody who had it open is gone
            data = b""
        self._seen += data.decode(errors="replace")
        return bool(data)

    def modes(self) -> list[object]:
        """How the terminal is set."""
        return termios.tcgetattr(self._screen)
