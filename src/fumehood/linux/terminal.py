"""A person's terminal: one like it for a command, turns to ask a question on it, and the signals that come from it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` is made of, without the enums around it
import fcntl
import os
import select
import sys
import time

from fumehood.linux.libc import Closing, InterruptSafeLock
from fumehood.linux.lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any, Self

_PERSONS_TERMINAL = 0  # the descriptor of standard input


class Terminal:
    """A terminal for one command, always as large as the person's; every key that the person types goes there.

    The command never gets the person's terminal: it could type into it, change its settings, and read from it after the
    run. Use it as a context: the person's terminal is raw for that time, and gets its settings back in any case.
    """

    def __init__(self) -> None:
        import termios

        self._settings = termios.tcgetattr(_PERSONS_TERMINAL)
        self._old_handler: Any = None
        self.master = self.slave = -1

    def __enter__(self) -> Terminal:
        import termios
        import tty

        self.master, self.slave = os.openpty()
        termios.tcsetattr(self.slave, termios.TCSANOW, self._settings)
        self._resize()
        self._old_handler = _signal.signal(_signal.SIGWINCH, self._resize)
        tty.setraw(_PERSONS_TERMINAL, termios.TCSADRAIN)
        return self

    def __exit__(self, *_error: object) -> None:
        _signal.signal(_signal.SIGWINCH, self._old_handler)
        self._restore_settings()
        os.close(self.master)

    def _restore_settings(self) -> None:
        """Give the person's terminal the settings that it had before."""
        import termios

        # This signal would stop us if we are in the background, where the terminal is another program's at the moment.
        old_handler = _signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)
        try:
            termios.tcsetattr(_PERSONS_TERMINAL, termios.TCSADRAIN, self._settings)
        except termios.error:
            return  # the terminal is gone
        finally:
            _signal.signal(_signal.SIGTTOU, old_handler)

    def _resize(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Make the command's terminal as large as the person's; the kernel tells the command."""
        import termios

        try:
            size = fcntl.ioctl(_PERSONS_TERMINAL, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        except OSError:
            return  # one of the two terminals is gone


class ProgramTerminal:
    """A terminal for one command that a program drives; the program may set its size, even before it is open.

    Use it as a context, in any thread; another thread may change the size.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._size = columns, rows
        self._lock = InterruptSafeLock()
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
        """Set the size; the kernel tells the command."""
        with self._lock:
            self._size = columns, rows
            if self.master >= 0:
                import termios
                from struct import pack

                fcntl.ioctl(self.master, termios.TIOCSWINSZ, pack("HHHH", rows, columns, 0, 0))


# One question at a time on a terminal, whichever process asks it.
#
# Two processes that ask at once would share the keys, and a yes to one question could reach the other process. So a
# process locks the terminal's device while it asks; if the process dies, the lock is free. `/dev/tty` is one file for
# all terminals, so the device behind it is locked. If that can't be opened (a person became another user by `su`), a
# file of our own is locked, named after the device: then root and that user do not wait for each other.

_TIOCGDEV = 0x80045432  # <asm-generic/ioctls.h>: the real device, also behind /dev/tty
_RETRY_MS = 50


class TerminalTurn:
    """The right to ask on a terminal, for a `with` block; `lock_directory` is our own."""

    def __init__(self, tty: int, lock_directory: str) -> None:
        self._lock = Lock(_open_lock_file(tty, lock_directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.close()

    def wait(self, closed: int | None = None, seconds: float | None = None) -> bool:
        """Wait for the turn; return False if `closed` hangs up, or the time is over, before that."""
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
            if poll.poll(_RETRY_MS):
                return False


def _open_lock_file(tty: int, lock_directory: str) -> int:
    """Open the file whose lock stands for a terminal."""
    number = int.from_bytes(fcntl.ioctl(tty, _TIOCGDEV, bytes(4)), sys.byteorder)
    major, minor = (number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)
    try:
        path = "/dev/" + os.path.basename(os.readlink(f"/sys/dev/char/{major}:{minor}"))
    except OSError:
        path = f"/dev/pts/{minor}"  # a terminal of a window, which is not in /sys
    try:
        file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        if os.fstat(file).st_rdev == os.makedev(major, minor):
            return file
        os.close(file)
    except OSError:
        pass  # not ours to open
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(f"{lock_directory}/terminal-{major}-{minor}", flags, 0o600)


# Signals that ask `fumehood run` to end its command.
#
# Before the command starts, they end Fumehood. From then on, until the run is reported, they are only noted, and read
# by the loop that attends the command: if they were raised anywhere else, the command's changes or its report would be
# lost.

NAMES = {_signal.SIGINT: "SIGINT", _signal.SIGTERM: "SIGTERM", _signal.SIGHUP: "SIGHUP", _signal.SIGQUIT: "SIGQUIT"}

_resume_listeners: list[Callable[[], object]] = []


def watch_for_resume() -> None:
    """Call the listeners when the process goes on after Ctrl-Z; only the main thread can set this up."""
    _signal.signal(_signal.SIGCONT, lambda *_: [listener() for listener in tuple(_resume_listeners)])


def add_resume_listener(listener: Callable[[], object]) -> Callable[[], None]:
    """Have the main thread call a function when the process goes on; return a function that ends this."""
    _resume_listeners.append(listener)
    return lambda: _resume_listeners.remove(listener)


def block_resume_signal() -> None:
    """Keep the signal from this thread: Python would note it here, and the main thread would sleep on."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGCONT,))


class Signals:
    """The signals of the main thread, from the start of a command line to the end of the process.

    `may_be_typed`: Ctrl-C may come from a person at the terminal. `is_interrupt_an_end`: Ctrl-C is a normal end of the
    command, because the sender knows that the work is done.
    """

    def __init__(self, *, may_be_typed: bool, is_interrupt_an_end: bool = False) -> None:
        self._may_be_typed = may_be_typed
        self._is_interrupt_an_end = is_interrupt_an_end
        self._raises = True  # KeyboardInterrupt
        self._raises_from_s = 0.0  # on the clock of our own processor time
        self._read_end = self._write_end = -1
        self.is_stop_asked = False  # by Ctrl-Z, while that is noted
        watch_for_resume()  # a question may be asked by another thread
        # What `nohup` made us ignore stays ignored.
        for number in NAMES:
            if _signal.getsignal(number) != _signal.SIG_IGN:
                _signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: object) -> None:
        try:
            is_raised = self._raises and time.process_time() >= self._raises_from_s
        except RecursionError:
            return  # signals come faster than this handles them, each while the one before is handled
        if is_raised:
            self._raises = False  # only once: what follows from it must not be cut short
            raise KeyboardInterrupt

    def note(self) -> None:
        """From now on, only note signals; `drain` returns them."""
        if self._read_end < 0:
            self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            _signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._raises = False

    def raise_again(self, *, after_s: float = 0.0) -> None:
        """Let signals end Fumehood again, because no command runs; for so much processor time, still only note them."""
        self._raises_from_s = time.process_time() + after_s
        self._raises = True

    def note_stops(self) -> None:
        """From now on, only note Ctrl-Z too: the command must be stopped before us, or it would go on unattended."""
        if _signal.getsignal(_signal.SIGTSTP) == _signal.SIG_DFL:
            _signal.signal(_signal.SIGTSTP, self._note_stop)

    def _note_stop(self, _number: int, _frame: object) -> None:
        self.is_stop_asked = True

    def stop(self) -> None:
        """Stop this process as Ctrl-Z does; return when it goes on, and at once if nobody could make it go on."""
        self.is_stop_asked = False
        old_handler = _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
        _signal.raise_signal(_signal.SIGTSTP)
        _signal.signal(_signal.SIGTSTP, old_handler)

    def obey_stops(self) -> None:
        """Let Ctrl-Z stop this process at once again, as it stops any; do now what was noted."""
        if _signal.getsignal(_signal.SIGTSTP) == self._note_stop:
            _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
            if self.is_stop_asked:
                self.stop()

    def fileno(self) -> int:
        """The descriptor to poll; -1 before the first `note`."""
        return self._read_end

    def drain(self) -> list[int]:
        """Return the signals that were noted since the last call."""
        try:
            return [number for number in os.read(self._read_end, 64) if number in NAMES]
        except BlockingIOError:
            return []

    def sent_names(self, numbers: Sequence[int]) -> list[str]:
        """Return the names of these signals, without a Ctrl-C that is a person's own, or a normal end."""
        is_own_interrupt = self._is_interrupt_an_end
        if self._may_be_typed and not is_own_interrupt:
            try:
                with Closing(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)) as terminal:
                    is_own_interrupt = os.tcgetpgrp(terminal) == os.getpgrp()
            except OSError:
                is_own_interrupt = False  # there is no terminal
        return [NAMES[number] for number in numbers if not (is_own_interrupt and number == _signal.SIGINT)]
