"""What a started command's thread and its program share: input on its way, output that waits to be read, the end.

The program that a command runs for, while another thread attends the command: what it is told, and may ask for.
"""

from __future__ import annotations

import asyncio
import atexit
import codecs
import inspect
import os
import select
import threading
import weakref
from collections import deque
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from fumehood.errors import BadRequest
from fumehood.linux.process import CHANGES, KILL, STOP
from fumehood.linux.terminal import ProgramTerminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fumehood.core.report import Run
    from fumehood.linux.streams import Sink
    from fumehood.service.store import Store


MOST_WAITING = 1 << 20  # bytes of an output that wait to be read; then the command waits
_MOST_CHANGES = 4096


class Bell:
    """Wakes the thread that attends a command; `asked` is what the program wants it to do."""

    def __init__(self) -> None:
        self.asked = ""
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ringing = threading.RLock()  # a collection may ring it in a thread that is just ringing

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._bell

    def ring(self) -> None:
        """Have the thread look at what has changed."""
        with self._ringing:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def drain(self) -> None:
        """Take note that it rang."""
        os.eventfd_read(self._bell)

    def silence(self) -> None:
        """Let go of it: nobody listens any more."""
        with self._ringing:
            if self._bell >= 0:
                os.close(self._bell)
            self._bell = -1


class LoopListener(Bell):
    """Calls the functions of an asynchronous program in its own loop, one at a time, in the order of what happened.

    They may be coroutine functions. Where they are slower than the command, it waits. All have been called before
    anything of the command is applied; what one raises ends the command, as it does in a program with threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._calls: deque[tuple[str, int, Callable[..., object], tuple[str, ...]]] = deque()
        self._sizes: dict[str, int] = {}
        self._changed = threading.Condition()
        self._news = asyncio.Event()
        self._is_over = self._is_closed = False
        self._error: BaseException | None = None
        self._task = loop.create_task(self._call_all())

    def telling(self, name: str, call: Callable[..., object]) -> Callable[..., None]:
        """Return what the attending thread calls in place of a function about `name`: an output, or CHANGES."""

        def tell(*words: str) -> None:
            with self._changed:
                if self._is_closed:
                    return
                size = 1 if name == CHANGES else len(words[-1])
                self._calls.append((name, size, call, words))
                self._sizes[name] = self._sizes.get(name, 0) + size
                self._loop.call_soon_threadsafe(self._news.set)

        return tell

    def is_full(self, name: str) -> bool:
        """Return True if so much waits to be told that no more is to be read."""
        return self._sizes.get(name, 0) >= (_MOST_CHANGES if name == CHANGES else MOST_WAITING)

    def drain(self) -> None:
        """Take note that it rang; raises what a function raised."""
        super().drain()
        if self._error is not None:
            raise self._error

    def named(self, run: str) -> None:
        """The run is on its way."""

    def launched(self) -> None:
        """The command was started."""

    def finish(self) -> None:
        """Wait until everything was told; raises what a function raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not self._calls)
        if self._error is not None:
            raise self._error

    async def end(self, *, at_once: bool) -> None:
        """Stop calling: at once, or when the last function has returned."""
        self._is_over = True
        self._news.set()
        if at_once:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _call_all(self) -> None:
        try:
            while not self._is_over or self._calls:
                await self._news.wait()
                self._news.clear()
                while self._calls:
                    if not await self._call_next():
                        return
        finally:
            self.drop()

    def drop(self) -> None:
        """Call nothing any more: there is nobody to call, or the loop itself waits for the command."""
        with self._changed:
            self._is_closed = True
            self._calls.clear()
            self._sizes.clear()
            self._changed.notify_all()
        self.ring()

    async def _call_next(self) -> bool:
        """Make one call; return False if it failed, and the command with it."""
        name, size, call, words = self._calls[0]
        try:
            result: Any = call(*words)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if self._task.cancelling():  # by us, or by the end of the loop, and not by the function
                raise
            self._error = error
            return False
        except Exception as error:  # noqa: BLE001 - raised where the command is attended
            self._error = error
            return False
        was_full = self.is_full(name)
        with self._changed:
            if self._is_closed:
                return False
            self._calls.popleft()
            self._sizes[name] -= size
            self._changed.notify_all()
        if was_full:
            self.ring()
        await asyncio.sleep(0)  # others have their turn between two calls
        return True


Result = TypeVar("Result")
PIECE = 1 << 16
_MOMENT_S = 1.0  # for a thread that is about to read
_END_OF_INPUT = b"\x04"  # what Ctrl-D types


class Dialogue(Bell):
    """What a command's thread and its program share, behind one lock; threads and tasks can wait for a change of it.

    The program's handle refers to this and not the other way, so a handle that nobody has any more ends the command.
    """

    def __init__(self, store: Store, terminal: ProgramTerminal | None, *, as_text: bool) -> None:
        super().__init__()
        self.store = store
        self.terminal = terminal
        self.owner = os.getpid()
        self.run = ""
        self.report: Run | None = None
        self.error: BaseException | None = None
        self.has_begun = False
        self.lock = threading.Condition()
        numbers = count()
        self.outputs = {name: Unread(name, numbers, self.ring, as_text=as_text) for name in ("stdout", "stderr")}
        # On a terminal, both are one.
        self.outputs["stderr"].is_ended = terminal is not None
        self._tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._who_wait: list[tuple[object, tuple[Unread, ...]]] = []  # and for which outputs, or for something else
        self._sink = -1
        self._typed: deque[bytearray] = deque()  # what is to be written yet
        self._is_input_closed = False
        self._is_input_gone = False
        self._failure: BaseException | None = None
        self._attending = 0  # the thread that attends the command

    def named(self, run: str) -> None:
        """The run of this name is on its way."""
        self.run = run

    def write_to(self, sink: int) -> None:
        """Take the descriptor that leads to the command's input."""
        os.set_blocking(sink, False)
        self._sink = sink

    def launched(self) -> None:
        """The command was started."""
        # At the program's end what was registered last comes first: commands end before their launcher is closed.
        atexit.unregister(end_all)
        atexit.register(end_all)
        with self.lock:
            self.has_begun = True
            self.tell()

    def finish(self) -> None:
        """Raise what a function of the program's raised; else nothing is waited for: what was printed can be read."""
        if self._failure is not None:
            raise self._failure

    def drain(self) -> None:
        """Take note that it rang; raises what a function of the program's raised."""
        super().drain()
        self.finish()

    def sink(self, name: str) -> Sink:
        """Return what takes in an output."""
        output = self.outputs[name]

        def take_in(data: bytes) -> None:
            with self.lock:
                is_passed_over = output.is_much and not self.is_full(name)
                output.take_in(data, is_passed_over=is_passed_over)
                self.tell()

        return take_in

    def is_full(self, name: str) -> bool:
        """Return True if the command has to wait for its output to be read.

        It must not where all who could read it wait for its end, or for the other output: that would be for ever. One
        who is about to begin reading has a moment to do so.
        """
        output = self.outputs.get(name)
        if output is None or not output.is_much:
            return False
        with self.lock:
            # Who waits for this output goes on with what is there by now.
            elsewhere = [who for who, outputs in self._who_wait if output not in outputs]
            readers = [
                each for each in output.readers
                if (each.is_alive() if isinstance(each, threading.Thread) else not each.done())
            ]  # fmt: skip
            if not self._who_wait or any(each not in elsewhere for each in readers):
                output.stuck_since = None
                return True
            if output.stuck_since is None:
                output.stuck_since = monotonic()
                timer = threading.Timer(_MOMENT_S, self.ring)
                timer.daemon = True
                timer.start()
            return monotonic() < output.stuck_since + _MOMENT_S

    @property
    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll next for the input, and for what."""
        is_due = self._typed or self._is_input_closed
        return (self._sink, select.POLLOUT | select.POLLERR) if is_due else (-1, 0)

    def advance(self) -> bool:
        """Carry one piece of what was written; return False if there is no more."""
        with self.lock:
            if not self._typed:
                return not self._is_input_closed
            typed = self._typed[0]
            try:
                del typed[: os.write(self._sink, typed[:PIECE])]
            except BlockingIOError:
                return True
            except OSError:
                return False  # the command does not want it, or its terminal is gone
            if not typed:
                self._typed.popleft()
                self.tell()
            return bool(self._typed) or not self._is_input_closed

    def close(self) -> None:
        """Let the command know that this was all of its input."""
        with self.lock:
            if self._sink >= 0:
                os.close(self._sink)
            self._sink, self._is_input_gone = -1, True
            self.tell()

    def attend(self, perform: Callable[[], Run]) -> None:
        """Have the command attended by a thread of its own, from the request to the report."""

        def attend() -> None:
            self._attending = threading.get_ident()
            report, error = None, None
            try:
                report = perform()
            except BaseException as problem:  # noqa: BLE001 - raised to whoever waits
                error = problem
            with self.lock:
                self.report, self.error, self.has_begun = report, error or self._failure, True
                for output in self.outputs.values():
                    output.is_ended = True
                self.tell()
            self.close()
            self.silence()
            _alive.discard(self)

        _alive.add(self)
        threading.Thread(target=attend, name="fumehood-start", daemon=True).start()

    def fail(self, error: BaseException) -> None:
        """Have the command ended, and this raised to whoever waits for it."""
        with self.lock:
            self._failure = error
        self.ring()

    def tell(self) -> None:
        """Wake everybody who waits for a change; the lock is held."""
        self.lock.notify_all()
        tasks, self._tasks = self._tasks, []
        for loop, has_changed in tasks:
            try:
                loop.call_soon_threadsafe(has_changed.set)
            except RuntimeError:
                continue  # that loop is closed

    def wait(
        self, take: Callable[[], Result | None], *outputs: Unread, timeout: float | None = None, is_idle: bool = True
    ) -> Result:
        """Return what `take` returns, which reads these outputs, once that is not None; the lock is held for it."""
        self._check_owner()
        until = None if timeout is None else monotonic() + timeout
        with self.lock:
            result = take()
            if result is not None:
                return result
            self.refuse_to_wait_for_itself()
            waits = self._wait_idly(threading.current_thread(), outputs) if is_idle else None
            try:
                while (result := take()) is None:
                    if not self.lock.wait(None if until is None else max(0.0, until - monotonic())):
                        raise TimeoutError("the command has not ended yet")
                return result
            finally:
                if waits is not None:
                    self._who_wait.remove(waits)

    def refuse_to_wait_for_itself(self) -> None:
        """Refuse what a function would wait for that the command calls, and waits for: neither would ever go on."""
        if threading.get_ident() == self._attending:
            raise BadRequest(
                f"run {self.run} can't be waited for in a function that it calls", hint="wait in another thread"
            )

    async def await_(self, take: Callable[[], Result | None], *outputs: Unread, is_idle: bool = True) -> Result:
        """Do the same in an event loop, which goes on meanwhile."""
        self._check_owner()
        loop = asyncio.get_running_loop()
        while True:
            with self.lock:
                result = take()
                if result is not None:
                    return result
                has_changed = asyncio.Event()
                self._tasks.append((loop, has_changed))
                waits = self._wait_idly(asyncio.current_task(), outputs) if is_idle else None
            try:
                await has_changed.wait()
            finally:
                with self.lock:
                    if waits is not None:
                        self._who_wait.remove(waits)
                    self._tasks = [each for each in self._tasks if each[1] is not has_changed]

    def _wait_idly(self, who: object, outputs: tuple[Unread, ...]) -> tuple[object, tuple[Unread, ...]]:
        """Note that somebody waits; who is not idle goes on before the command has ended, and may then read."""
        if any(output.is_much for output in self.outputs.values()):
            self.ring()
        self._who_wait.append((who, outputs))
        return self._who_wait[-1]

    def write(self, data: bytes) -> Callable[[], bool | None]:
        """Have something written; returns what tells that it is, and raises where it can't be."""
        self._check_owner()
        typed = bytearray(data)
        with self.lock:
            if self._is_input_closed:
                raise ValueError("the command's input is closed")
            if data:
                self._typed.append(typed)
        self.ring()

        def taken() -> bool | None:
            if typed and self._is_input_gone:
                raise BrokenPipeError("the command takes no more input")
            return None if typed else True

        return taken

    def begun(self) -> bool | None:
        """Tell that the command was started, None while it was not; raises what kept it from it."""
        if self.error is not None:
            raise self.error
        return self.has_begun or None

    def outcome(self) -> Run | BaseException | None:
        """Return the report, or what kept the command from having one; None while it runs."""
        return self.report or self.error

    def close_input(self) -> None:
        """Let the command's input end once everything that was written is there."""
        self._check_owner()
        if self.terminal is not None:
            self.write(_END_OF_INPUT)
            return
        with self.lock:
            self._is_input_closed = True
        self.ring()

    def end(self, how: str) -> None:
        """Have the command ended."""
        if self.owner == os.getpid():
            # On a terminal, what runs has a session of its own, which no signal of ours reaches.
            self.asked = KILL if self.terminal is not None else how
            self.ring()

    def forget(self) -> None:
        """Let go of what a forked child has no use for: the input would not end while the child lives."""
        for descriptor in (self._sink, self._bell):
            if descriptor >= 0:
                os.close(descriptor)
        self._sink = self._bell = -1

    def _check_owner(self) -> None:
        if self.owner != os.getpid():
            hint = "start one after the fork"
            raise BadRequest("a started command belongs to the process that started it", hint=hint)


class _Piece:
    """What was printed at once; the number tells when, among the pieces of both outputs."""

    def __init__(self, number: int, data: bytearray) -> None:
        self.number = number
        self.data = data


class Unread:
    """What one output printed and nobody has read yet; all of it is done with the dialogue's lock held."""

    def __init__(self, name: str, numbers: Iterator[int], ring: Callable[[], None], *, as_text: bool) -> None:
        self.name = name
        self.is_ended = False
        self.stuck_since: float | None = None  # when nobody was left who would read it
        self.readers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers = numbers
        self._ring = ring
        self._pieces: deque[_Piece] = deque()
        self._size = 0
        self._passed_over = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if as_text else None

    @property
    def is_much(self) -> bool:
        """So much that the command has to wait."""
        return self._size >= MOST_WAITING

    @property
    def first(self) -> int | None:
        """The number of the oldest piece."""
        return self._pieces[0].number if self._pieces else None

    def take_in(self, data: bytes, *, is_passed_over: bool) -> None:
        """Take in a piece, or the end."""
        if not data:
            self.is_ended = True
        elif is_passed_over:
            self._passed_over += len(data)
        else:
            number = next(self._numbers)
            last = self._pieces[-1] if self._pieces else None
            if last is not None and last.number == number - 1 and len(last.data) < PIECE:
                last.data += data
                last.number = number
            else:
                self._pieces.append(_Piece(number, bytearray(data)))
            self._size += len(data)

    def piece(self, size: Any) -> str | bytes | None:
        """Return at most so many bytes, nothing at the end, None while there are none."""
        if not isinstance(size, int) or size < 1:
            hint = "read() returns what has come; to the end: iterate"
            raise BadRequest(f"{size!r:.100} bytes can't be read", hint=hint)
        if self._pieces:
            return self._decoded(self._removed(min(size, len(self._pieces[0].data)))) or None
        return self._rest()

    def line(self) -> str | bytes | None:
        """Return the next line, nothing at the end, None while there is none; of one that is too long, a part."""
        before = 0
        for piece in self._pieces:
            at = piece.data.find(b"\n")
            if at >= 0:
                return self._decoded(self._removed(before + at + 1))
            before += len(piece.data)
        if before and (self.is_ended or self.is_much):
            return self._decoded(self._removed(before), is_end=self.is_ended)
        return self._rest()

    def _rest(self) -> str | bytes | None:
        """Return what is left when all has been read: nothing, or the beginning of a character that never ended."""
        if not self.is_ended:
            return None
        size, self._passed_over = self._passed_over, 0
        if size:
            raise BadRequest(
                f"{size} bytes of {self.name} were printed while nobody read them", hint="Sandbox.output(run) has all"
            )
        return self._decoded(b"", is_end=True)

    def _removed(self, size: int) -> bytes:
        was_much = self.is_much
        self._size -= size
        self.stuck_since = None
        if was_much and not self.is_much:
            self._ring()  # the command may go on
        taken = bytearray()
        while len(taken) < size:
            data = self._pieces[0].data
            wanted = size - len(taken)
            taken += data[:wanted]
            del data[:wanted]
            if not data:
                self._pieces.popleft()
        return bytes(taken)

    def _decoded(self, data: bytes, *, is_end: bool = False) -> str | bytes:
        return data if self._decoder is None else self._decoder.decode(data, final=is_end)


# ---- Every command that runs: they end with the sandbox they were started by, and with this process.

_alive: set[Dialogue] = set()


def end_all(store: Store | None = None) -> None:
    """End the commands that were started here, or those of one store, and wait for their records."""
    ours = [each for each in tuple(_alive) if each.owner == os.getpid() and store in (None, each.store)]
    for each in ours:
        each.refuse_to_wait_for_itself()
    for each in ours:
        each.end(STOP)
    for each in ours:
        each.wait(each.outcome)


def _forget_all() -> None:
    for each in _alive:
        each.forget()
    _alive.clear()


os.register_at_fork(after_in_child=_forget_all)
