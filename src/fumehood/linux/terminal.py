"""A person's terminal: lending it to a command, taking turns to ask on it, and the signals that come from it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` is made of, without the enums around it
import _thread
import fcntl
import os
import select
import sys
import time

from fumehood.linux.libc import Closing
from fumehood.linux.lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any, Self


class Terminal:
    """A terminal for one command, as large as the person's and kept so; what is typed goes there as it is.

    The command never holds the person's: it could type into it, change its settings, and read on after the run.
    Use it as a context: the person's terminal is raw for that time, and afterwards as it was, whatever happened.
    """

    def __init__(self, person: int = 0) -> None:
        import termios

        self._person = person
        self._before = termios.tcgetattr(person)
        self._resized: Any = None
        self.master = self.slave = -1

    def __enter__(self) -> Terminal:
        import termios
        import tty

        self.master, self.slave = os.openpty()
        termios.tcsetattr(self.slave, termios.TCSANOW, self._before)
        self._resize()
        self._resized = _signal.signal(_signal.SIGWINCH, self._resize)
        tty.setraw(self._person, termios.TCSADRAIN)
        return self

    def __exit__(self, *_error: object) -> None:
        _signal.signal(_signal.SIGWINCH, self._resized)
        self.restore()
        os.close(self.master)

    def restore(self) -> None:
        """Return the person their terminal back."""
        import termios

        # In the background, where this would stop us, it is somebody else's at the moment.
        before = _signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)
        try:
            termios.tcsetattr(self._person, termios.TCSADRAIN, self._before)
        except termios.error:
            return  # it is gone
        finally:
            _signal.signal(_signal.SIGTTOU, before)

    def _resize(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Make it as large as the person's; the kernel tells the command."""
        import termios

        try:
            size = fcntl.ioctl(self._person, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        except OSError:
            return  # one of the two is gone


class ProgramTerminal:
    """A terminal for one command that a program drives; it has the size that the program says, also before it is there.

    Use it as a context, in whichever thread; the size may be changed from another.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._size = columns, rows
        self._lock = _thread.allocate_lock()
        self.master = self.slave = -1

    def __enter__(self) -> ProgramTerminal:
        with self._lock:
            self.master, self.slave = os.openpty()
        self.resize(*self._size)
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            os.close(self.master)
            self.master = -1

    def resize(self, columns: int, rows: int) -> None:
        """Make it another size; the kernel tells the command."""
        with self._lock:
            self._size = columns, rows
            if self.master >= 0:
                import termios
                from struct import pack

                fcntl.ioctl(self.master, termios.TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))


# One question at a time on a terminal, whichever process asks it.
#
# Two that ask at once would share the keys, and a yes to one could reach the other. So whoever asks holds a lock on the
# terminal's own device; one that dies lets go of it. `/dev/tty` is one file for all terminals, so the device behind it
# is locked. Where that can't be opened (a person who became another by `su`), it is a file of our own, named by the
# device: then root and that person do not wait for each other.

_TIOCGDEV = 0x80045432  # <asm-generic/ioctls.h>: the real device, also behind /dev/tty
_LOOK_MS = 50


class TerminalTurn:
    """The right to ask on a terminal, for a `with` block; `locks` is our own directory of lock files."""

    def __init__(self, tty: int, locks: str) -> None:
        self._lock = Lock(_lock_file(tty, locks))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.close()

    def wait(self, closed: int | None = None, seconds: float | None = None) -> bool:
        """Wait until it is ours; False if `closed` hangs up, or the time is over, before that."""
        deadline = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        if closed is not None:
            poll.register(closed, select.POLLIN | select.POLLHUP)
        while True:
            try:
                self._lock.take(wait=False)
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
            else:
                return True
            if poll.poll(_LOOK_MS):
                return False


def _lock_file(tty: int, locks: str) -> int:
    """Open what is locked for a terminal."""
    number = int.from_bytes(fcntl.ioctl(tty, _TIOCGDEV, bytes(4)), sys.byteorder)
    major, minor = (number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)
    try:
        path = "/dev/" + os.path.basename(os.readlink(f"/sys/dev/char/{major}:{minor}"))
    except OSError:
        path = f"/dev/pts/{minor}"  # those of windows are not in /sys
    try:
        file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        if os.fstat(file).st_rdev == os.makedev(major, minor):
            return file
        os.close(file)
    except OSError:
        pass  # not ours to open
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(f"{locks}/terminal-{major}-{minor}", flags, 0o600)


# Requests to end a command that come to `fumehood run` as signals.
#
# Before the command starts they end Fumehood. From then on until its report is told they are only noted, and seen by
# whoever attends the command: raised anywhere else, they would lose what it wrote, or its report.

NAMES = {_signal.SIGINT: "SIGINT", _signal.SIGTERM: "SIGTERM", _signal.SIGHUP: "SIGHUP", _signal.SIGQUIT: "SIGQUIT"}
INTERRUPT: int = _signal.SIGINT

_when_resumed: list[Callable[[], object]] = []


def hear_resuming() -> None:
    """Have whoever asked for it told when the process goes on after Ctrl-Z; only the main thread can ask for that."""
    _signal.signal(_signal.SIGCONT, lambda *_: [tell() for tell in tuple(_when_resumed)])


def tell_when_resumed(tell: Callable[[], object]) -> Callable[[], None]:
    """Have a function called then, by the main thread; returns what ends it."""
    _when_resumed.append(tell)
    return lambda: _when_resumed.remove(tell)


def leave_resuming_to_main() -> None:
    """Let no such signal come to this thread: Python would note it, and the main thread would sleep on."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGCONT,))


class Signals:
    """Signals of the main thread, from the start of a command line to the end of the process."""

    def __init__(self, *, may_be_typed: bool, is_interrupt_an_end: bool = False) -> None:
        self._may_be_typed = may_be_typed
        self._is_interrupt_an_end = is_interrupt_an_end  # it comes from who knows that the work is done
        self._raises = True
        self._from_s = 0.0  # by the processor's time that we took
        self._reading = self._writing = -1
        self.is_stop_asked = False  # by Ctrl-Z, while somebody hears it
        hear_resuming()  # a question may be asked by another thread
        # What `nohup` had ignored stays so.
        for number in NAMES:
            if _signal.getsignal(number) != _signal.SIG_IGN:
                _signal.signal(number, self._heard)

    def _heard(self, _number: int, _frame: object) -> None:
        try:
            is_end = self._raises and time.process_time() >= self._from_s
        except RecursionError:
            return  # they come quicker than they are heard, each while the one before is
        if is_end:
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

    def hear_stops(self) -> None:
        """Only note Ctrl-Z too, from now on: whoever attends a command stops that first, or it goes on unattended."""
        if _signal.getsignal(_signal.SIGTSTP) == _signal.SIG_DFL:
            _signal.signal(_signal.SIGTSTP, self._note_stop)

    def _note_stop(self, _number: int, _frame: object) -> None:
        self.is_stop_asked = True

    def stop(self) -> None:
        """Stop this process as Ctrl-Z does; returns when it goes on, and at once where nobody could have it go on."""
        self.is_stop_asked = False
        before = _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
        _signal.raise_signal(_signal.SIGTSTP)
        _signal.signal(_signal.SIGTSTP, before)

    def leave_stops(self) -> None:
        """Let Ctrl-Z stop this process as it does any."""
        if _signal.getsignal(_signal.SIGTSTP) == self._note_stop:
            _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
            if self.is_stop_asked:
                self.stop()

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
        """Return the names of those signals that are no Ctrl-C of a person at their terminal, nor like one."""
        is_typed = self._is_interrupt_an_end
        if self._may_be_typed and not is_typed:
            try:
                with Closing(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)) as terminal:
                    is_typed = os.tcgetpgrp(terminal) == os.getpgrp()
            except OSError:
                is_typed = False  # there is none
        return [NAMES[number] for number in numbers if not (is_typed and number == INTERRUPT)]
