"""Stay with a running sandbox: carry its output, watch the clock, and end it when asked."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # without the enums around it
import errno
import os
import select
import sys
import time

from fumehood.core.value import Value
from fumehood.errors import LaunchFailed
from fumehood.linux import libc
from fumehood.linux.bwrap import NOTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn, Protocol

    from fumehood.core.report import Blocked
    from fumehood.linux.streams import Carrier, Stream
    from fumehood.linux.terminal import Signals

    class Running(Protocol):
        """A sandbox that can be polled, however it was started."""

        def fileno(self) -> int:
            """The descriptor to poll."""
        def advance(self) -> Exit | None:
            """Take note; return how it ended."""
        def init(self) -> int | None:
            """The first process inside, once it is known."""
        def kill(self) -> None:
            """End everything inside."""
        def interrupt(self) -> None:
            """Send what Ctrl-C would."""

    class Polled(Protocol):
        """Something else to be read while the command runs."""

        def fileno(self) -> int:
            """The descriptor to poll."""
        def drain(self) -> None:
            """Read what there is."""

    class Watched(Polled, Protocol):
        """What is being written."""

        def stop(self) -> None:
            """Read the rest and stop."""

    class Guard(Protocol):
        """What looks now and then whether the command uses too much."""

        due: float
        def look(self) -> Blocked | None:
            """Look once; return the limit that was reached."""
        def close(self) -> Blocked | None:
            """Stop; return the limit that the kernel had to enforce."""

    class QuestionsOpen(Polled, Protocol):
        """Questions to a person that the command waits for; while one is open, nothing is carried to and fro."""

        is_open: bool
        @property
        def waited_s(self) -> float:
            """How long it has waited so far, which is not its own time."""
        def close(self) -> None:
            """Ask nothing any more."""

    class Partner(Polled, Protocol):
        """The program that a command runs for, where it takes part from another thread and may want something."""

        asked: str
        def is_full(self, name: str) -> bool:
            """Whether nothing more of an output, or of CHANGES, is to be read for now."""

STOP, KILL = "stop", "kill"  # what a partner asks for
CHANGES = "changes"
_PIECE = 1 << 16
_GRACE_S = 2.0
_FIRST_LOOK_S = 0.05  # most commands have ended by then, on a busy machine too, and cost no look
_AGAIN_S = 0.01
_LASTS_S = 1.0  # what runs for longer can be followed by others
_LONGEST_WAIT_S = 3600.0  # poll takes no number of milliseconds that is larger than an int
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


def interpreter(module: str, function: str, *words: str) -> list[str]:
    """Return a command line that calls a function of ours with these words, in an interpreter of its own.

    Bytecode lies where ours does: next to the sources, a command may have prepared some.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # it would be the program itself, begun once more
        raise LaunchFailed(
            "this program is not run by a Python interpreter, which starts the sandboxes",
            hint="run it with python instead of as a packed or embedded program",
        )
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    call = f"from {module} import {function}; {function}(*sys.argv[2:])"
    kept = ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    code = f"import sys; sys.path.insert(0, sys.argv[1]); {call}"
    return [sys.executable, "-I", "-S", "-B", *kept, "-c", code, source, *words]


class Outcome(Value):
    """How a command ended, and why if it was not by itself."""

    exit: Exit
    timed_out: bool = False
    interrupted: bool = False
    signals: tuple[int, ...] = ()  # that asked for its end, as far as they were noted
    raised: bool = False  # Ctrl-C came as an exception, and is the program's to hear
    limit: Blocked | None = None

    @property
    def was_ended(self) -> bool:
        """True if we ended it, maybe before the command began: then its sandbox has no status."""
        return self.timed_out or self.interrupted or self.limit is not None

    def raise_interrupt(self) -> None:
        """Let the program have its Ctrl-C too, once it is recorded how the command ended."""
        if self.raised:
            raise KeyboardInterrupt


class Attendance:
    """One sandbox being attended until nothing of it is left.

    `outputs` are the reading ends of its pipes, which are closed here, and what takes in their data.
    """

    def __init__(
        self, running: Running, outputs: dict[int, Stream], *, deadline: float | None = None,
        watched: Watched | None = None, feeding: Carrier | None = None, cancelled: Callable[[], bool] | None = None,
        guarding: Callable[[int], Guard | None] | None = None, signals: Signals | None = None,
        asking: QuestionsOpen | None = None, door: Watched | None = None, partner: Partner | None = None,
        interrupts: libc.InterruptsHeld | None = None,
    ) -> None:  # fmt: skip
        self._interrupts = interrupts  # held so far: from now on somebody hears them
        self._partner = partner
        self._running = running
        self._outputs = dict(outputs)
        self._deadline = deadline
        self._watched = watched
        self._feeding = feeding
        self._cancelled = cancelled
        self._guarding = guarding
        self._signals = signals
        self._asking = asking
        self._door = door  # where the command asks us for something
        self._heard: list[int] = []
        self._guard: Guard | None = None
        self._next_look = time.monotonic() + _FIRST_LOOK_S
        self._lasts_at: float | None = time.monotonic() + _LASTS_S
        self._limit: Blocked | None = None
        self._exit: Exit | None = None
        self._timed_out = False
        self._interrupted = self._raised = False

    def attend(self) -> Outcome:
        """Wait for the end. The first Ctrl-C asks the command to end, the second ends it; Ctrl-Z stops all of it."""
        if self._signals is not None:
            self._signals.hear_stops()
        try:
            while self._exit is None:
                try:
                    if self._interrupts is not None:
                        held, self._interrupts = self._interrupts, None
                        held.__exit__()
                    self._turn()
                except KeyboardInterrupt:
                    self._raised = True
                    self._give_way()
            self._drain_outputs()
        except BaseException:
            self._end_it_all()
            raise
        finally:
            if self._signals is not None:
                self._signals.leave_stops()
            if self._guard is not None:
                self._limit = self._guard.close() or self._limit
        self._take_layers(self._exit)
        return Outcome(
            exit=self._exit, timed_out=self._timed_out and not self._interrupted, interrupted=self._interrupted,
            signals=tuple(self._heard), raised=self._raised, limit=self._limit,
        )  # fmt: skip

    def _take_layers(self, ended: Exit) -> None:
        """See to it that the layers are nobody else's: the command may have handed another one what it had open."""
        try:
            left = len(ended.layers) - (libc.unmounted(ended.unmount_watch) if ended.unmount_watch >= 0 else 0)
            if left > 0:
                from fumehood.linux.copying import replace_unless_unmounted

                with libc.InterruptsHeld():
                    replace_unless_unmounted(ended.layers, ended.unmount_watch, left)
        finally:
            if ended.unmount_watch >= 0:
                os.close(ended.unmount_watch)

    def _give_way(self) -> None:
        if self._asking is not None:
            self._asking.close()
        if self._interrupted:
            self._running.kill()
        else:
            self._running.interrupt()
            self._deadline = time.monotonic() + _GRACE_S
        self._interrupted = True

    def _stand_still(self, signals: Signals) -> None:
        """Stop everything inside, then this process; when that goes on, so does the rest, and no time has passed.

        What can't be stopped just now has it tried again with the next turn: the command is attended meanwhile.
        """
        from fumehood.linux.checkpoints import NotStopped, Stopped

        init = self._running.init()
        if init is None:
            return  # nothing runs yet
        began = time.monotonic()
        try:
            with Stopped(init):
                signals.stop()
        except NotStopped:
            return
        except PermissionError:  # without a sandbox, it may have become another user
            signals.stop()
        stood_s = time.monotonic() - began
        self._deadline = None if self._deadline is None else self._deadline + stood_s

    def _end_it_all(self) -> None:
        """Somebody who was told of the command's output failed: end the command, and tell nobody any more."""
        for stream in self._outputs.values():
            stream.mute()
        if self._asking is not None:
            self._asking.close()
        self._watched = self._cancelled = self._deadline = self._guarding = self._asking = self._door = None
        self._partner = None
        if self._exit is None:
            self._running.kill()
        while self._exit is None:
            self._turn()
        self._drain_outputs()
        for each in self._exit.descriptors:
            os.close(each)  # nobody looks at what was left there

    def _turn(self) -> None:
        """Wait for something to happen and see to it."""
        poll = select.poll()
        for polled in (self._running, self._signals, self._asking, self._door, self._partner):
            if polled is not None:
                poll.register(polled.fileno(), _READABLE)
        is_asking = self._asking is not None and self._asking.is_open
        fed = -1 if is_asking else self._register_carried(poll)
        ready = {fd for fd, _ in poll.poll(self._patience_ms())}
        for fd in ready & self._outputs.keys():
            self._read(fd)
        if fed in ready and self._feeding is not None:
            with libc.InterruptsHeld():  # what was carried is not carried twice
                if not self._feeding.advance():
                    self._end_feeding()
        if self._signals is not None:
            for number in self._signals.drain() if self._signals.fileno() in ready else ():
                self._heard.append(number)
                self._give_way()
            if self._signals.is_stop_asked:
                self._stand_still(self._signals)
        for each in (self._watched, self._asking, self._door, self._partner):
            if each is not None and each.fileno() in ready:
                each.drain()
        if self._running.fileno() in ready:
            with libc.InterruptsHeld():  # what it says is said once
                self._exit = self._running.advance()
        self._look_at_the_clock()

    def _register_carried(self, poll: select.poll) -> int:
        """Poll what is carried to and fro; returns the descriptor that input waits for.

        While a person is asked, nothing is: what they type is the answer, and output would push the question away.
        """
        partner = self._partner
        for fd, stream in self._outputs.items():
            if partner is None or not partner.is_full(stream.name):
                poll.register(fd, _READABLE)
        if self._watched is not None and (partner is None or not partner.is_full(CHANGES)):
            poll.register(self._watched.fileno(), _READABLE)
        if self._feeding is None:
            return -1
        fed, event = self._feeding.waits_for
        if fed >= 0:
            poll.register(fed, event)
        return fed

    @property
    def _ends_at(self) -> float | None:
        """When its time is over; what it waited for a person is not counted."""
        if self._deadline is None or self._asking is None or self._interrupted:
            return self._deadline
        return None if self._asking.is_open else self._deadline + self._asking.waited_s

    def _patience_ms(self) -> float | None:
        until = self._ends_at
        if self._guarding is not None and (until is None or self._next_look < until):
            until = self._next_look
        if until is None:
            return 100.0 if self._cancelled is not None else None
        left = min(max(0.0, until - time.monotonic()), _LONGEST_WAIT_S) * 1000 + 1
        return min(left, 100.0) if self._cancelled is not None else left

    def _look_after_it(self, now: float) -> None:
        """See whether it uses too much, and end it if so."""
        if self._guard is None:
            assert self._guarding is not None
            init = self._running.init()
            self._guard = self._guarding(init) if init is not None else None
            if self._guard is None:
                self._next_look = now + _AGAIN_S
                return
        reached = self._guard.look()
        self._next_look = self._guard.due
        if reached is not None:
            self._limit = self._limit or reached  # whoever asked for its end did so before
            self._guarding = None
            self._running.kill()

    def _look_at_the_clock(self) -> None:
        if self._exit is not None:
            return
        now = time.monotonic()
        if self._guarding is not None and now >= self._next_look:
            self._look_after_it(now)
        if self._lasts_at is not None and now >= self._lasts_at:
            with libc.InterruptsHeld():
                self._lasts_at = None
                for stream in self._outputs.values():
                    stream.spill()
        if self._partner is not None and self._partner.asked:
            self._obey(self._partner.asked)
        ends_at = self._ends_at
        if ends_at is not None and now >= ends_at:
            self._timed_out = True
            self._deadline = None
            self._running.kill()
        if self._cancelled is not None and self._cancelled():
            self._interrupted = True
            self._cancelled = None
            self._running.kill()

    def _obey(self, asked: str) -> None:
        """End the command as its program asks; one that is stopped has a moment to end by itself."""
        from fumehood.core.report import stopped_by_request

        self._limit = self._limit or stopped_by_request()
        if asked == KILL:
            self._running.kill()
            self._partner = None
        elif not self._interrupted:
            self._give_way()

    def _read(self, fd: int) -> bool:
        """Read one piece of an output; return False if there is no more."""
        stream, data = self._outputs[fd], b""
        try:
            with libc.InterruptsHeld():  # what was read is kept
                try:
                    data = os.read(fd, _PIECE)
                except OSError as error:
                    if error.errno != errno.EIO:  # the end of a terminal that nobody holds any more
                        raise
                stream.feed(data)
        finally:
            is_wanted = stream.tell(data)
        # Where whoever read this output is gone, the pipe is closed, and the command learns it as usual.
        goes_on = bool(data) and is_wanted
        if not goes_on:
            self._end(fd)
        return goes_on

    def _end(self, fd: int) -> None:
        """Be done with an output."""
        stream = self._outputs[fd]
        stream.tell_end()
        with libc.InterruptsHeld():
            stream.close()
            del self._outputs[fd]
            os.close(fd)

    def _drain_outputs(self) -> None:
        """Read what is left in the pipes; nothing that could write to them lives any more."""
        self._end_feeding()
        for fd in list(self._outputs):
            os.set_blocking(fd, False)
            try:
                while self._read(fd):
                    pass
            except BlockingIOError:
                self._end(fd)

    def _end_feeding(self) -> None:
        if self._feeding is not None:
            with libc.InterruptsHeld():
                self._feeding.close()
                self._feeding = None


LAUNCHER_GONE = "the launcher is gone"  # the command may have run


class Exit(Value):
    """How a sandbox ended: the command's status, or, where it never ran, what stopped the sandbox.

    `home` is a descriptor of the command's own home, thrown away with the last one of it; -1 is none. `layers` are
    directories with what it wrote in its roots; by `unmounting` is told when nobody has anything open there any more.
    `unrouted` counts what was sent to where no route leads, by the command or by another in the same network.
    `killed_by` is the signal by which somebody else ended the sandbox.
    """

    status: int | None
    failure: str = ""
    home: int = -1
    unrouted: int = 0
    killed_by: int = 0
    layers: tuple[str, ...] = ()
    unmount_watch: int = -1

    @property
    def descriptors(self) -> list[int]:
        """Those that are open, for whoever has it."""
        return [each for each in (self.home, self.unmount_watch) if each >= 0]


def read_number(text: bytes, key: str) -> int | None:
    """Return the number that stands after a key in what bubblewrap tells; None if it is not all there yet."""
    _, is_there, rest = text.partition(f'"{key}": '.encode())
    digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    # Without what follows the digits, the number may still be coming in.
    return int(digits) if is_there and digits and len(rest) > len(digits) else None


def is_gone(init_file: str, patience_s: float, *, by_force: bool = False) -> bool:
    """Wait until nothing of a sandbox is left whose own process died; False if it does not end.

    It is killed with that process, but not at the same moment. Its first process inside ends after all the others.
    By force, that one is ended: where bubblewrap was killed while it made the sandbox, it waits for it for ever. Where
    bubblewrap did not come to note it either, every one is ended that lost its bubblewrap.
    """
    try:
        with open(init_file, "rb") as file:
            noted = file.read()
    except FileNotFoundError:
        return True  # it never began
    number = read_number(noted, "child-pid")
    if number is None:
        if by_force:
            kill_abandoned_sandboxes()
        return True
    try:
        process = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    with libc.Closing(process):
        if not is_first_inside(number):
            return True  # another one that has the number now
        if by_force and _is_there_still(number, noted):
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            except ProcessLookupError:
                return True
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))


def _is_there_still(process: int, noted: bytes) -> bool:
    """Return True if a process is in the namespaces that bubblewrap noted of it: no other one is."""
    try:
        return all(
            os.stat(f"/proc/{process}/ns/{name}").st_ino == read_number(noted, f"{name}-namespace")
            for name in ("mnt", "pid")
        )
    except OSError:
        return False


def kill_abandoned_sandboxes() -> None:
    """End what bubblewrap started and died before it let go: it waits for ever, and nobody may have its number."""
    notes = "\0".join(("", *NOTES, "")).encode()
    for number in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        line = libc.read(f"/proc/{number}/cmdline")
        if notes in line and is_first_inside(number):
            try:
                with libc.Closing(os.pidfd_open(number)) as process:
                    parent = libc.stat_of(f"/proc/{number}")[1:2]
                    if parent and libc.read(f"/proc/{parent[0].decode()}/cmdline") != line:
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        os.waitpid(number, 0)
            except (ProcessLookupError, PermissionError, ChildProcessError):
                continue  # it ended meanwhile, or is somebody else's


def first_inside(init_file: str) -> int | None:
    """Return the first process of a sandbox that runs, by the file in which bubblewrap has noted it."""
    init = read_number(libc.read(init_file), "child-pid")
    return init if init is not None and is_first_inside(init) else None


def is_first_inside(process: int) -> bool:
    """Return True if a process is the first one of a sandbox."""
    lines = libc.read(f"/proc/{process}/status").splitlines()
    numbers = next((line.split() for line in lines if line.startswith(b"NSpid:")), [])
    return len(numbers) > 2 and numbers[-1] == b"1"


# Run a command without a sandbox: watched by a small process that ends all it started when it ends.
#
# It tells of itself as bubblewrap does, so whoever attends a sandbox can attend this.

_STATUS_FD = 3
_HEARD = (signal.SIGCHLD, signal.SIGTERM)
KILLED: int = 128 + signal.SIGKILL


def supervise(arguments: tuple[str, ...], environment: Mapping[str, str], cwd: str) -> NoReturn:
    """Be the watching process, freshly forked, with the standard three and the status descriptor open."""
    os.set_inheritable(_STATUS_FD, False)
    # Whatever its processes leave behind falls to us, so that we can end it.
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)
    os.chdir(cwd)
    os.write(_STATUS_FD, b'{ "bare": true }\n')
    this = os.getpid()
    command = os.fork()
    if command == 0:
        try:
            # A session of its own: no terminal to type into, and one group to interrupt.
            os.setsid()
            libc.end_with(this, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            os.execve(arguments[0], arguments, environment)
        except OSError as error:
            os.write(2, f"{arguments[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        finally:
            os._exit(127)
    os.write(_STATUS_FD, f'{{ "child-pid": {command} }}\n'.encode())
    status: int | None = None
    while status is None:
        if signal.sigwait(_HEARD) == signal.SIGTERM:  # we are asked to end it
            status = KILLED
        while status is None and (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == command:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    _end_all()
    os.write(_STATUS_FD, f'{{ "exit-code": {status} }}\n'.encode())
    os._exit(0)


def _end_all() -> None:
    """End every process that is left: each that dies leaves its own children to us, until there are none.

    What became another user can't be ended by us, and is left alone.
    """
    beyond_us: set[int] = set()
    while left := [child for child in _children() if child not in beyond_us]:
        for child in left:
            try:
                os.kill(child, signal.SIGKILL)
            except PermissionError:
                beyond_us.add(child)
            except ProcessLookupError:
                continue
        for child in left:
            if child not in beyond_us:
                os.waitpid(child, 0)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as listing:
            return [int(number) for number in listing.read().split()]
    except FileNotFoundError:  # a kernel without this list
        parents = {name: libc.stat_of(f"/proc/{name}")[1:2] for name in os.listdir("/proc") if name.isdigit()}
        return [int(name) for name, parent in parents.items() if parent == [b"%d" % me]]
