"""Requests to end a command that come to `fumehood run` as signals.

Before the command starts they end Fumehood. From then on until its report is told they are only noted, and seen by
whoever attends the command: raised anywhere else, they would lose what it wrote, or its report.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` is made of, without the enums around it
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = {_signal.SIGINT: "SIGINT", _signal.SIGTERM: "SIGTERM", _signal.SIGHUP: "SIGHUP"}
INTERRUPT: int = _signal.SIGINT


_when_resumed: list[Callable[[], object]] = []


def hear_resuming() -> None:
    """Have whoever asked for it told when the process goes on after Ctrl-Z; only the main thread can ask for that."""
    _signal.signal(_signal.SIGCONT, lambda *_: [tell() for tell in tuple(_when_resumed)])


def tell_when_resumed(tell: Callable[[], object]) -> Callable[[], None]:
    """Have a function called then, by the main thread; returns what ends it."""
    _when_resumed.append(tell)
    return lambda: _when_resumed.remove(tell)


class Signals:
    """Signals of the main thread, from the start of a command line to the end of the process."""

    def __init__(self, *, may_be_typed: bool) -> None:
        self._may_be_typed = may_be_typed
        self._raises = True
        self._from_s = 0.0  # by the processor's time that we took
        self._reading = self._writing = -1
        hear_resuming()  # a question may be asked by another thread
        # What `nohup` had ignored stays so.
        for number in NAMES:
            if _signal.getsignal(number) != _signal.SIG_IGN:
                _signal.signal(number, self._heard)

    def _heard(self, _number: int, _frame: object) -> None:
        if self._raises and time.process_time() >= self._from_s:
            self._raises = False  # once: nothing is to be cut short that follows from it
            raise KeyboardInterrupt

    def note(self) -> None:
        """From now on, only take note; what waits is read by `drain`."""
        if self._reading < 0:
            self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            _signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._raises = False

    def interrupt_again(self, *, after_s: float = 0.0) -> None:
        """Let them end Fumehood as before, for nothing is running; those before so much work are only noted."""
        self._from_s = time.process_time() + after_s
        self._raises = True

    def fileno(self) -> int:
        """The descriptor to poll; there is one once they are noted."""
        return self._reading

    def drain(self) -> list[int]:
        """Return the signals that were noted since."""
        try:
            return [number for number in os.read(self._reading, 64) if number in NAMES]
        except BlockingIOError:
            return []

    def sent(self, numbers: Sequence[int]) -> list[str]:
        """Return the names of those signals that are no Ctrl-C of a person at their terminal."""
        typed = INTERRUPT if self._may_be_typed and is_at_terminal() else 0
        return [NAMES[number] for number in numbers if number != typed]


def is_at_terminal() -> bool:
    """Tell whether what a person types at a terminal reaches this process, Ctrl-C too."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
