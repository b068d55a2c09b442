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
from fumehood.linux.bwrap import INIT_AND_GATE

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
            """Handle what made the descriptor readable; return how the sandbox ended, once it has."""
        def init(self) -> int | None:
            """The first process inside, or None until it is known."""
        def kill(self) -> None:
            """Kill everything inside."""
        def interrupt(self) -> None:
            """Send the command the signal of Ctrl-C."""

    class EventSource(Protocol):
        """Something to poll and read while the command runs."""

        def fileno(self) -> int:
            """The descriptor to poll."""
        def drain(self) -> None:
            """Read and handle what has come."""

    class StoppableSource(EventSource, Protocol):
        """An event source that is stopped when the command has ended."""

        def stop(self) -> None:
            """Read the rest and stop."""

    class UsageWatch(Protocol):
        """Looks now and then whether the command uses too much."""

        next_check: float
        def check(self) -> Blocked | None:
            """Check once; return the limit that was reached."""
        def close(self) -> Blocked | None:
            """Stop; return the limit that the kernel had to enforce."""

    class PendingQuestions(EventSource, Protocol):
        """Questions to a person that the command waits for; while one is open, no input or output is carried."""

        is_open: bool
        @property
        def waited_s(self) -> float:
            """How long the command has waited for answers, which does not count as its time."""
        def close(self) -> None:
            """Ask nothing any more."""

    class Partner(EventSource, Protocol):
        """The program that a command runs for, which reads its output and makes requests from another thread."""

        request: str  # STOP or KILL, or nothing
        def is_full(self, name: str) -> bool:
            """Return True if no more of an output, or of CHANGES, can be taken for now."""

STOP, KILL = "stop", "kill"  # a partner's requests
CHANGES = "changes"
_PIECE = 1 << 16
_GRACE_S = 2.0  # between Ctrl-C and the kill
_FIRST_LOOK_S = 0.05  # most commands have ended by then, even on a busy machine, and need no usage watch
_RETRY_S = 0.01
_FOLLOWABLE_AFTER_S = 1.0  # other processes can follow the output of a command that runs for longer
_LONGEST_WAIT_S = 3600.0  # the milliseconds for poll must fit in an int
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


def interpreter_command(module: str, function: str, *words: str) -> list[str]:
    """Return a command line that calls a function of ours with these words, in a new interpreter.

    It reads bytecode only where this process does: next to the sources, a command may have prepared some.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # then the command line would start the program again
        raise LaunchFailed(
            "this program is not run by a Python interpreter, which starts the sandboxes",
            hint="run it with python instead of as a packed or embedded program",
        )
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    call = f"from {module} import {function}; {function}(*sys.argv[2:])"
    cache_option = ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    code = f"import sys; sys.path.insert(0, sys.argv[1]); {call}"
    return [sys.executable, "-I", "-S", "-B", *cache_option, "-c", code, source, *words]


class Outcome(Value):
    """How a command ended, and why if we ended it."""

    exit: Exit
    timed_out: bool = False
    interrupted: bool = False
    signals: tuple[int, ...] = ()  # that were sent to us to end the command
    raised: bool = False  # Ctrl-C came as an exception, which must still reach the program
    limit: Blocked | None = None

    @property
    def was_ended(self) -> bool:
        """True if we ended it, maybe before the command began: then its sandbox has no exit status."""
        return self.timed_out or self.interrupted or self.limit is not None

    def raise_interrupt(self) -> None:
        """Raise the program's KeyboardInterrupt again, once the end of the command is recorded."""
        if self.raised:
            raise KeyboardInterrupt


class Attendant:
    """Attends one sandbox until nothing of it is left: its input and output, its time, its use of the machine.

    `outputs` maps the reading ends of its pipes, which this object closes, to the streams that keep the data.
    """

    def __init__(
        self, running: Running, outputs: dict[int, Stream], *, deadline: float | None = None,
        monitor: StoppableSource | None = None, feed: Carrier | None = None,
        cancelled: Callable[[], bool] | None = None, signals: Signals | None = None,
        make_warden: Callable[[int], UsageWatch | None] | None = None,
        questions: PendingQuestions | None = None, requests: StoppableSource | None = None,
        partner: Partner | None = None, interrupts: libc.InterruptsHeld | None = None,
    ) -> None:  # fmt: skip
        self._interrupts = interrupts  # held back until `attend` can handle them
        self._partner = partner
        self._running = running
        self._outputs = dict(outputs)
        self._deadline = deadline
        self._monitor = monitor  # tells live what the command changes
        self._feed = feed
        self._cancelled = cancelled
        self._make_warden = make_warden
        self._signals = signals
        self._questions = questions
        self._requests = requests  # that the command makes to Fumehood
        self._signals_seen: list[int] = []
        self._usage_watch: UsageWatch | None = None
        self._next_look = time.monotonic() + _FIRST_LOOK_S
        self._followable_at: float | None = time.monotonic() + _FOLLOWABLE_AFTER_S
        self._limit: Blocked | None = None
        self._exit: Exit | None = None
        self._timed_out = False
        self._was_interrupted = self._was_raised = False

    def attend(self) -> Outcome:
        """Wait for the end. The first Ctrl-C asks the command to end, the second ends it; Ctrl-Z stops all of it."""
        if self._signals is not None:
            self._signals.note_stops()
        try:
            while self._exit is None:
                try:
                    if self._interrupts is not None:
                        interrupts, self._interrupts = self._interrupts, None
                        interrupts.__exit__()
                    self._poll_once()
                except KeyboardInterrupt:
                    self._was_raised = True
                    self._ask_to_end()
            self._drain_outputs()
        except BaseException:
            self._abort()
            raise
        finally:
            if self._signals is not None:
                self._signals.obey_stops()
            if self._usage_watch is not None:
                self._limit = self._usage_watch.close() or self._limit
        self._take_over_layers(self._exit)
        return Outcome(
            exit=self._exit, timed_out=self._timed_out and not self._was_interrupted, interrupted=self._was_interrupted,
            signals=tuple(self._signals_seen), raised=self._was_raised, limit=self._limit,
        )  # fmt: skip

    def _take_over_layers(self, end: Exit) -> None:
        """Make sure that no process can write to the layers: the command may have passed an open file to another."""
        try:
            still_mounted = len(end.layers)
            if end.unmount_watch >= 0:
                still_mounted -= libc.count_unmounted(end.unmount_watch)
            if still_mounted > 0:
                from fumehood.linux.copying import replace_unless_unmounted

                with libc.InterruptsHeld():
                    replace_unless_unmounted(end.layers, end.unmount_watch, still_mounted)
        finally:
            if end.unmount_watch >= 0:
                os.close(end.unmount_watch)

    def _ask_to_end(self) -> None:
        """Interrupt the command, which then has a moment to end; kill it if it was interrupted before."""
        if self._questions is not None:
            self._questions.close()
        if self._was_interrupted:
            self._running.kill()
        else:
            self._running.interrupt()
            self._deadline = time.monotonic() + _GRACE_S
        self._was_interrupted = True

    def _pause(self, signals: Signals) -> None:
        """Stop everything inside, then this process; when it is continued, continue the rest.

        The pause does not count as the command's time. If something inside can't be stopped now, the next turn of the
        loop tries again.
        """
        from fumehood.linux.checkpoints import NotStopped, StoppedProcesses

        init = self._running.init()
        if init is None:
            return  # nothing runs yet
        paused_at = time.monotonic()
        try:
            with StoppedProcesses(init):
                signals.stop()
        except NotStopped:
            return
        except PermissionError:  # without a sandbox, it may have become another user
            signals.stop()
        if self._deadline is not None:
            self._deadline += time.monotonic() - paused_at

    def _abort(self) -> None:
        """Kill the command and call no listener any more, because one of them raised an error."""
        for stream in self._outputs.values():
            stream.mute()
        if self._questions is not None:
            self._questions.close()
        self._monitor = self._questions = self._requests = self._partner = None
        self._cancelled = self._deadline = self._make_warden = None
        if self._exit is None:
            self._running.kill()
        while self._exit is None:
            self._poll_once()
        self._drain_outputs()
        for fd in self._exit.descriptors:
            os.close(fd)

    def _poll_once(self) -> None:
        """Wait for the next events and handle them."""
        poll = select.poll()
        for source in (self._running, self._signals, self._questions, self._requests, self._partner):
            if source is not None:
                poll.register(source.fileno(), _READABLE)
        is_asking = self._questions is not None and self._questions.is_open
        feed_fd = -1 if is_asking else self._register_streams(poll)
        ready = {fd for fd, _ in poll.poll(self._poll_timeout_ms())}
        for fd in ready & self._outputs.keys():
            self._read_output(fd)
        if feed_fd in ready and self._feed is not None:
            with libc.InterruptsHeld():  # so that no piece is carried twice
                if not self._feed.advance():
                    self._end_feed()
        if self._signals is not None:
            for number in self._signals.drain() if self._signals.fileno() in ready else ():
                self._signals_seen.append(number)
                self._ask_to_end()
            if self._signals.is_stop_asked:
                self._pause(self._signals)
        for source in (self._monitor, self._questions, self._requests, self._partner):
            if source is not None and source.fileno() in ready:
                source.drain()
        if self._running.fileno() in ready:
            with libc.InterruptsHeld():  # its messages can be read only once
                self._exit = self._running.advance()
        self._check_time()

    def _register_streams(self, poll: select.poll) -> int:
        """Register the outputs, the monitor and the input; return the descriptor that the input waits for, or -1.

        Not called while a person is asked: what they type is the answer, and output would push the question away.
        """
        partner = self._partner
        for fd, stream in self._outputs.items():
            if partner is None or not partner.is_full(stream.name):
                poll.register(fd, _READABLE)
        if self._monitor is not None and (partner is None or not partner.is_full(CHANGES)):
            poll.register(self._monitor.fileno(), _READABLE)
        if self._feed is None:
            return -1
        feed_fd, event = self._feed.waits_for
        if feed_fd >= 0:
            poll.register(feed_fd, event)
        return feed_fd

    @property
    def _ends_at(self) -> float | None:
        """When its time is over; the time that it waits for a person does not count."""
        if self._deadline is None or self._questions is None or self._was_interrupted:
            return self._deadline
        return None if self._questions.is_open else self._deadline + self._questions.waited_s

    def _poll_timeout_ms(self) -> float | None:
        until = self._ends_at
        if self._make_warden is not None and (until is None or self._next_look < until):
            until = self._next_look
        if until is None:
            return 100.0 if self._cancelled is not None else None
        left = min(max(0.0, until - time.monotonic()), _LONGEST_WAIT_S) * 1000 + 1
        return min(left, 100.0) if self._cancelled is not None else left

    def _check_usage(self, now: float) -> None:
        """Kill the command if it uses too much."""
        if self._usage_watch is None:
            assert self._make_warden is not None
            init = self._running.init()
            self._usage_watch = self._make_warden(init) if init is not None else None
            if self._usage_watch is None:
                self._next_look = now + _RETRY_S
                return
        reached = self._usage_watch.check()
        self._next_look = self._usage_watch.next_check
        if reached is not None:
            self._limit = self._limit or reached  # a partner may have asked for its end before
            self._make_warden = None
            self._running.kill()

    def _check_time(self) -> None:
        if self._exit is not None:
            return
        now = time.monotonic()
        if self._make_warden is not None and now >= self._next_look:
            self._check_usage(now)
        if self._followable_at is not None and now >= self._followable_at:
            with libc.InterruptsHeld():
                self._followable_at = None
                for stream in self._outputs.values():
                    stream.start_file()
        if self._partner is not None and self._partner.request:
            self._obey_partner(self._partner.request)
        ends_at = self._ends_at
        if ends_at is not None and now >= ends_at:
            self._timed_out = True
            self._deadline = None
            self._running.kill()
        if self._cancelled is not None and self._cancelled():
            self._was_interrupted = True
            self._cancelled = None
            self._running.kill()

    def _obey_partner(self, request: str) -> None:
        """End the command as its program asks; on STOP, it has a moment to end by itself."""
        from fumehood.core.report import stopped_by_request

        self._limit = self._limit or stopped_by_request()
        if request == KILL:
            self._running.kill()
            self._partner = None
        elif not self._was_interrupted:
            self._ask_to_end()

    def _read_output(self, fd: int) -> bool:
        """Read one piece of an output; return False if there is no more."""
        stream, data = self._outputs[fd], b""
        try:
            with libc.InterruptsHeld():  # so that nothing that was read is lost
                try:
                    data = os.read(fd, _PIECE)
                except OSError as error:
                    if error.errno != errno.EIO:  # no process has the terminal open any more
                        raise
                stream.feed(data)
        finally:
            is_wanted = stream.pass_on(data)
        # If the reader of our own output is gone, we close the pipe, and the command gets SIGPIPE as usual.
        has_more = bool(data) and is_wanted
        if not has_more:
            self._end_output(fd)
        return has_more

    def _end_output(self, fd: int) -> None:
        """Finish and close an output."""
        stream = self._outputs[fd]
        stream.pass_on_end()
        with libc.InterruptsHeld():
            stream.close()
            del self._outputs[fd]
            os.close(fd)

    def _drain_outputs(self) -> None:
        """Read what is left in the pipes; no process that could write to them lives any more."""
        self._end_feed()
        for fd in list(self._outputs):
            os.set_blocking(fd, False)
            try:
                while self._read_output(fd):
                    pass
            except BlockingIOError:
                self._end_output(fd)

    def _end_feed(self) -> None:
        if self._feed is not None:
            with libc.InterruptsHeld():
                self._feed.close()
                self._feed = None


LAUNCHER_GONE = "the launcher is gone"  # the command may have run


class Exit(Value):
    """How a sandbox ended."""

    status: int | None  # of the command; None if it never ran
    failure: str = ""  # why the sandbox did not start
    home: int = -1  # a descriptor of the command's temporary home, which lasts until it is closed; -1 for none
    unrouted: int = 0  # packets that this command, or others in its network, sent to where no route leads
    killed_by: int = 0  # a signal that somebody else sent to the sandbox
    layers: tuple[str, ...] = ()  # upper directories that were mounted in overlays
    unmount_watch: int = -1  # a descriptor that counts which of these overlays are gone

    @property
    def descriptors(self) -> list[int]:
        """The open descriptors in it, to be closed by their receiver."""
        return [fd for fd in (self.home, self.unmount_watch) if fd >= 0]


def read_number(text: bytes, key: str) -> int | None:
    """Return the number after a key in bubblewrap's status text, or None if it has not fully arrived."""
    _, separator, rest = text.partition(f'"{key}": '.encode())
    digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    # While nothing follows the digits, more of them may come.
    return int(digits) if separator and digits and len(rest) > len(digits) else None


def wait_until_gone(init_file: str, patience_s: float, *, by_force: bool = False) -> bool:
    """Wait until nothing is left of a sandbox whose attending process died; return False if it does not end.

    It is killed with that process, but not at the same moment. Its first process inside ends after all the others.
    `by_force` kills that one: if bubblewrap was killed while it made the sandbox, the first process waits for it for
    ever. If bubblewrap died before it wrote that process down, all sandboxes that lost their bubblewrap are killed.
    """
    try:
        with open(init_file, "rb") as file:
            notes = file.read()
    except FileNotFoundError:
        return True  # it never began
    number = read_number(notes, "child-pid")
    if number is None:
        if by_force:
            kill_abandoned_sandboxes()
        return True
    try:
        process = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    with libc.Closing(process):
        if not is_init_process(number):
            return True  # another process has the number now
        if by_force and _is_in_noted_namespaces(number, notes):
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            except ProcessLookupError:
                return True
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))


def _is_in_noted_namespaces(process: int, notes: bytes) -> bool:
    """Return True if a process is in the namespaces that bubblewrap wrote down: only processes of its sandbox are."""
    try:
        return all(
            os.stat(f"/proc/{process}/ns/{name}").st_ino == read_number(notes, f"{name}-namespace")
            for name in ("mnt", "pid")
        )
    except OSError:
        return False


def kill_abandoned_sandboxes() -> None:
    """Kill first processes of sandboxes whose bubblewrap died while making them: they would wait for ever."""
    options = "\0".join(("", *INIT_AND_GATE, "")).encode()
    for number in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        line = libc.read(f"/proc/{number}/cmdline")
        if options in line and is_init_process(number):
            try:
                with libc.Closing(os.pidfd_open(number)) as process:
                    parent = libc.process_stat(f"/proc/{number}")[1:2]
                    if parent and libc.read(f"/proc/{parent[0].decode()}/cmdline") != line:
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        os.waitpid(number, 0)
            except (ProcessLookupError, PermissionError, ChildProcessError):
                continue  # it has ended, or belongs to another user


def find_init(init_file: str) -> int | None:
    """Return the first process of a running sandbox, which bubblewrap wrote to this file; None if it has ended."""
    init = read_number(libc.read(init_file), "child-pid")
    return init if init is not None and is_init_process(init) else None


def is_init_process(process: int) -> bool:
    """Return True if a process is number one of a pid namespace inside ours."""
    lines = libc.read(f"/proc/{process}/status").splitlines()
    words = next((line.split() for line in lines if line.startswith(b"NSpid:")), [])
    return len(words) > 2 and words[-1] == b"1"


# Run a command without a sandbox: a small process supervises it, and kills all that it started when it ends.
#
# It reports its status as bubblewrap does, so a command without a sandbox is attended like one with a sandbox.

_STATUS_FD = 3
_SUPERVISED_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
KILLED: int = 128 + signal.SIGKILL


def supervise(arguments: tuple[str, ...], environment: Mapping[str, str], cwd: str) -> NoReturn:
    """Be the supervising process: newly forked, with the standard streams and the status descriptor open."""
    os.set_inheritable(_STATUS_FD, False)
    # Processes that lose their parent become our children, so that we can kill them.
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SUPERVISED_SIGNALS)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)
    os.chdir(cwd)
    os.write(_STATUS_FD, b'{ "bare": true }\n')
    supervisor = os.getpid()
    command = os.fork()
    if command == 0:
        try:
            # A new session: it has no terminal to type into, and is one group to interrupt.
            os.setsid()
            libc.end_with_parent(supervisor, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SUPERVISED_SIGNALS)
            os.execve(arguments[0], arguments, environment)
        except OSError as error:
            os.write(2, f"{arguments[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        finally:
            os._exit(127)
    os.write(_STATUS_FD, f'{{ "child-pid": {command} }}\n'.encode())
    status: int | None = None
    while status is None:
        if signal.sigwait(_SUPERVISED_SIGNALS) == signal.SIGTERM:  # we are asked to end the command
            status = KILLED
        while status is None and (reaped := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            process, wait_status = reaped
            if process == command:
                code = os.waitstatus_to_exitcode(wait_status)
                status = code if code >= 0 else 128 - code
    _kill_descendants()
    os.write(_STATUS_FD, f'{{ "exit-code": {status} }}\n'.encode())
    os._exit(0)


def _kill_descendants() -> None:
    """Kill every process that is left: the children of each one that dies become ours, until there are none.

    We can't kill processes that have become another user, and leave those alone.
    """
    of_others: set[int] = set()
    while children := [child for child in _list_children() if child not in of_others]:
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except PermissionError:
                of_others.add(child)
            except ProcessLookupError:
                continue
        for child in children:
            if child not in of_others:
                os.waitpid(child, 0)


def _list_children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", encoding="ascii") as listing:
            return [int(number) for number in listing.read().split()]
    except FileNotFoundError:  # a kernel without this list
        parents = {name: libc.process_stat(f"/proc/{name}")[1:2] for name in os.listdir("/proc") if name.isdigit()}
        return [int(name) for name, parent in parents.items() if parent == [b"%d" % own]]
