"""How a program talks with its running command: input, output and the end, between its handle and another thread.

The handle is `started.Started`; the other thread attends the command from the request to the report.
"""

from __future__ import annotations

import asyncio
import atexit
import codecs
import os
import select
import threading
import weakref
from collections import deque
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from fumehood.errors import BadRequest
from fumehood.linux.libc import InterruptSafeLock
from fumehood.linux.process import KILL, STOP
from fumehood.linux.terminal import ProgramTerminal
from fumehood.service.listener import MAX_UNREAD, Bell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fumehood.core.report import Run
    from fumehood.linux.streams import Sink
    from fumehood.service.store import Store

    Result = TypeVar("Result")
    Waiter = tuple[object, tuple["UnreadOutput", ...]]  # a thread or task, and the outputs that it waits to read


PIECE = 1 << 16  # bytes
_READER_WAIT_S = 1.0  # for a thread that is about to read
_END_OF_INPUT = b"\x04"  # what Ctrl-D types


class Dialogue(Bell):
    """What the attending thread and the program's handle share, behind one lock; threads and tasks can wait for news.

    To wait is to call a `poll_…` function after each change, until it returns something else than None.
    The handle refers to this object and not the other way, so that the command ends when nobody has the handle.
    """

    def __init__(self, store: Store, terminal: ProgramTerminal | None, *, as_text: bool) -> None:
        super().__init__()
        self.store = store
        self.terminal = terminal
        self.process = os.getpid()
        self.run = ""
        self.report: Run | None = None
        self.error: BaseException | None = None
        self.has_started = False
        self._lock = InterruptSafeLock()
        self._changed = threading.Condition(self._lock)
        numbers = count()
        self.outputs = {name: UnreadOutput(name, numbers, self.ring, as_text=as_text) for name in ("stdout", "stderr")}
        # On a terminal, both outputs come as the standard output.
        self.outputs["stderr"].is_ended = terminal is not None
        self._waiting_tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._idle_waiters: list[Waiter] = []
        self._input = -1
        self._unwritten: deque[bytearray] = deque()
        self._is_input_complete = False  # the program will write no more
        self._is_input_closed = False  # nothing more can be written
        self._function_error: BaseException | None = None
        self._attending_thread = 0

    # ---- What the attending thread calls.

    def attend(self, perform: Callable[[], Run]) -> None:
        """Start the attending thread, which calls `perform`: that runs the command and returns its report."""

        def attend() -> None:
            self._attending_thread = threading.get_ident()
            report, error = None, None
            try:
                report = perform()
            except BaseException as problem:  # noqa: BLE001 - raised to whoever waits
                error = problem
            with self._lock:
                self.report, self.error, self.has_started = report, error or self._function_error, True
                for output in self.outputs.values():
                    output.is_ended = True
                self._notify()
            self.close()
            self.silence()
            _running.discard(self)

        _running.add(self)
        threading.Thread(target=attend, name="fumehood-start", daemon=True).start()

    def note_run(self, run: str) -> None:
        """Keep the id of the run."""
        self.run = run

    def note_start(self) -> None:
        """Let those go on who wait for the command to start."""
        # Functions registered last are called first: commands must end before their launcher is closed.
        atexit.unregister(end_all)
        atexit.register(end_all)
        with self._lock:
            self.has_started = True
            self._notify()

    def finish(self) -> None:
        """Raise what a function of the program raised; what was printed needs no waiting, for it stays to be read."""
        if self._function_error is not None:
            raise self._function_error

    def drain(self) -> None:
        """Reset the bell, and raise what a function of the program raised."""
        super().drain()
        self.finish()

    def sink(self, name: str) -> Sink:
        """Return a function that takes what the command prints on one output."""
        output = self.outputs[name]

        def add(data: bytes) -> None:
            with self._lock:
                output.add(data, is_dropped=output.is_full and not self.is_full(name))
                self._notify()

        return add

    def is_full(self, name: str) -> bool:
        """Return True if the command has to wait until its output is read.

        The command must not wait where all possible readers wait for its end, or for the other output: neither would
        ever go on. A thread that is about to read has a moment to do so.
        """
        output = self.outputs.get(name)
        if output is None or not output.is_full:
            return False
        with self._lock:
            # Those who wait for this output can go on, for there is something to read.
            busy = [who for who, outputs in self._idle_waiters if output not in outputs]
            readers = [
                each for each in output.readers
                if (each.is_alive() if isinstance(each, threading.Thread) else not each.done())
            ]  # fmt: skip
            if not self._idle_waiters or any(each not in busy for each in readers):
                output.without_reader_since = None
                return True
            if output.without_reader_since is None:
                output.without_reader_since = monotonic()
                timer = threading.Timer(_READER_WAIT_S, self.ring)
                timer.daemon = True
                timer.start()
            return monotonic() < output.without_reader_since + _READER_WAIT_S

    def write_to(self, sink: int) -> None:
        """Take the descriptor that leads to the command's input."""
        os.set_blocking(sink, False)
        self._input = sink

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor of the input and the events to poll next; (-1, 0) while there is nothing to do."""
        is_due = self._unwritten or self._is_input_complete
        return (self._input, select.POLLOUT | select.POLLERR) if is_due else (-1, 0)

    def advance(self) -> bool:
        """Carry one piece of what the program wrote; return False if there will be no more."""
        with self._lock:
            if not self._unwritten:
                return not self._is_input_complete
            data = self._unwritten[0]
            try:
                del data[: os.write(self._input, data[:PIECE])]
            except BlockingIOError:
                return True
            except OSError:
                return False  # the command has closed its input, or its terminal is gone
            if not data:
                self._unwritten.popleft()
                self._notify()
            return bool(self._unwritten) or not self._is_input_complete

    def close(self) -> None:
        """Close the command's input, so that the command finds its end."""
        with self._lock:
            if self._input >= 0:
                os.close(self._input)
            self._input, self._is_input_closed = -1, True
            self._notify()

    def _notify(self) -> None:
        """Wake everybody who waits for a change; called with the lock held."""
        self._changed.notify_all()
        tasks, self._waiting_tasks = self._waiting_tasks, []
        for loop, has_changed in tasks:
            try:
                loop.call_soon_threadsafe(has_changed.set)
            except RuntimeError:
                continue  # that loop is closed

    # ---- What the program calls.

    def wait(
        self, poll: Callable[[], Result | None], *outputs: UnreadOutput, timeout: float | None = None,
        is_idle: bool = True,
    ) -> Result:  # fmt: skip
        """Call `poll`, with the lock held, until it returns a result; it reads these outputs.

        Someone idle waits for these outputs or the command's end. Someone who is not will go on before that end.
        """
        self._check_process()
        until = None if timeout is None else monotonic() + timeout
        with self._lock:
            result = poll()
            if result is not None:
                return result
            self.refuse_to_wait_for_itself()
            waiter = self._add_waiter(threading.current_thread(), outputs) if is_idle else None
            try:
                while (result := poll()) is None:
                    if not self._changed.wait(None if until is None else max(0.0, until - monotonic())):
                        raise TimeoutError("the command has not ended yet")
                return result
            finally:
                if waiter is not None:
                    self._idle_waiters.remove(waiter)

    async def wait_in_loop(
        self, poll: Callable[[], Result | None], *outputs: UnreadOutput, is_idle: bool = True
    ) -> Result:
        """Do the same as `wait` without blocking the event loop."""
        self._check_process()
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                result = poll()
                if result is not None:
                    return result
                has_changed = asyncio.Event()
                self._waiting_tasks.append((loop, has_changed))
                waiter = self._add_waiter(asyncio.current_task(), outputs) if is_idle else None
            try:
                await has_changed.wait()
            finally:
                with self._lock:
                    if waiter is not None:
                        self._idle_waiters.remove(waiter)
                    self._waiting_tasks = [each for each in self._waiting_tasks if each[1] is not has_changed]

    def _add_waiter(self, who: object, outputs: tuple[UnreadOutput, ...]) -> Waiter:
        """Record an idle waiter; the command may not have to wait for a reader any more."""
        if any(output.is_full for output in self.outputs.values()):
            self.ring()
        self._idle_waiters.append((who, outputs))
        return self._idle_waiters[-1]

    def refuse_to_wait_for_itself(self) -> None:
        """Raise BadRequest in a function that the attending thread calls: it would wait for itself for ever."""
        if threading.get_ident() == self._attending_thread:
            raise BadRequest(
                f"run {self.run} can't be waited for in a function that it calls", hint="wait in another thread"
            )

    def poll_start(self) -> bool | None:
        """Return True once the command has started, else None; raises what kept it from starting."""
        if self.error is not None:
            raise self.error
        return self.has_started or None

    def poll_end(self) -> Run | BaseException | None:
        """Return the report, or the error in its place; None while the command runs."""
        return self.report or self.error

    def write(self, data: bytes) -> Callable[[], bool | None]:
        """Queue data for the command's input; return a function for `wait` that is True once all of it is written.

        That function raises BrokenPipeError if the command's input was closed before.
        """
        self._check_process()
        unwritten = bytearray(data)
        with self._lock:
            if self._is_input_complete:
                raise ValueError("the command's input is closed")
            if data:
                self._unwritten.append(unwritten)
        self.ring()

        def poll_written() -> bool | None:
            if unwritten and self._is_input_closed:
                raise BrokenPipeError("the command takes no more input")
            return None if unwritten else True

        return poll_written

    def close_input(self) -> None:
        """Let the command's input end after everything that was written."""
        self._check_process()
        if self.terminal is not None:
            self.write(_END_OF_INPUT)
            return
        with self._lock:
            self._is_input_complete = True
        self.ring()

    def end(self, request: str) -> None:
        """Have the command ended: STOP gives it a moment, KILL does not."""
        if self.process == os.getpid():
            # On a terminal, the command has a terminal session of its own, which no signal of ours reaches.
            self.request = KILL if self.terminal is not None else request
            self.ring()

    def fail(self, error: BaseException) -> None:
        """Have the command ended, and this error raised to whoever waits for it."""
        with self._lock:
            self._function_error = error
        self.ring()

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child: the command's input could not end while the child has it open."""
        for descriptor in (self._input, self._eventfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._input = self._eventfd = -1

    def _check_process(self) -> None:
        if self.process != os.getpid():
            hint = "start one after the fork"
            raise BadRequest("a started command belongs to the process that started it", hint=hint)


class _Piece:
    """Data that was printed at one time; the number orders the pieces of both outputs."""

    def __init__(self, number: int, data: bytearray) -> None:
        self.number = number
        self.data = data


class UnreadOutput:
    """What the command printed on one output and nobody has read yet; the dialogue's lock is held for every call."""

    def __init__(self, name: str, numbers: Iterator[int], ring: Callable[[], None], *, as_text: bool) -> None:
        self.name = name
        self.is_ended = False
        self.without_reader_since: float | None = None  # when the last possible reader began to wait for other things
        self.readers: weakref.WeakSet[Any] = weakref.WeakSet()  # threads and tasks
        self._numbers = numbers
        self._ring = ring
        self._pieces: deque[_Piece] = deque()
        self._size = 0
        self._dropped_size = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if as_text else None

    @property
    def is_full(self) -> bool:
        """True if there is so much to read that the command has to wait."""
        return self._size >= MAX_UNREAD

    @property
    def first_number(self) -> int | None:
        """The number of the oldest piece."""
        return self._pieces[0].number if self._pieces else None

    def add(self, data: bytes, *, is_dropped: bool) -> None:
        """Keep a piece to be read, or only count it if it is dropped; an empty one is the end."""
        if not data:
            self.is_ended = True
        elif is_dropped:
            self._dropped_size += len(data)
        else:
            number = next(self._numbers)
            last = self._pieces[-1] if self._pieces else None
            if last is not None and last.number == number - 1 and len(last.data) < PIECE:
                last.data += data
                last.number = number
            else:
                self._pieces.append(_Piece(number, bytearray(data)))
            self._size += len(data)

    def read(self, size: Any) -> str | bytes | None:
        """Return at most so many bytes; an empty text at the end, and None while there is nothing."""
        if not isinstance(size, int) or size < 1:
            hint = "read() returns what has come; to the end: iterate"
            raise BadRequest(f"{size!r:.100} bytes can't be read", hint=hint)
        if self._pieces:
            return self._decode(self._take(min(size, len(self._pieces[0].data)))) or None
        return self._read_end()

    def read_line(self) -> str | bytes | None:
        """Return the next line, or a part of a long one; an empty text at the end, and None while there is none."""
        before = 0
        for piece in self._pieces:
            at = piece.data.find(b"\n")
            if at >= 0:
                return self._decode(self._take(before + at + 1))
            before += len(piece.data)
        if before and (self.is_ended or self.is_full):
            return self._decode(self._take(before), is_end=self.is_ended)
        return self._read_end()

    def _read_end(self) -> str | bytes | None:
        """Return what is left after the last piece: nothing, or the beginning of a character that is not complete."""
        if not self.is_ended:
            return None
        size, self._dropped_size = self._dropped_size, 0
        if size:
            raise BadRequest(
                f"{size} bytes of {self.name} were printed while nobody read them", hint="Sandbox.output(run) has all"
            )
        return self._decode(b"", is_end=True)

    def _take(self, size: int) -> bytes:
        was_full = self.is_full
        self._size -= size
        self.without_reader_since = None
        if was_full and not self.is_full:
            self._ring()  # the command may go on
        data = bytearray()
        while len(data) < size:
            piece = self._pieces[0].data
            missing = size - len(data)
            data += piece[:missing]
            del piece[:missing]
            if not piece:
                self._pieces.popleft()
        return bytes(data)

    def _decode(self, data: bytes, *, is_end: bool = False) -> str | bytes:
        return data if self._decoder is None else self._decoder.decode(data, final=is_end)


# ---- All commands that run: each ends with the sandbox that started it, and with this process.

_running: set[Dialogue] = set()


def end_all(store: Store | None = None) -> None:
    """End the commands that this process started, or those of one store, and wait until they are recorded."""
    dialogues = [each for each in tuple(_running) if each.process == os.getpid() and store in (None, each.store)]
    for each in dialogues:
        each.refuse_to_wait_for_itself()
    for each in dialogues:
        each.end(STOP)
    for each in dialogues:
        each.wait(each.poll_end)


def _close_all_in_child() -> None:
    for each in _running:
        each.close_in_child()
    _running.clear()


os.register_at_fork(after_in_child=_close_all_in_child)
