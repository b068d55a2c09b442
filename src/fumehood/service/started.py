"""The handle of a command that a program has started, to write to its input and read its output while it runs.

Also a list of the commands that threads run, so that whoever closes their records can end them first.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Self

from fumehood.core.report import Run
from fumehood.core.request import encode_text
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux.libc import InterruptSafeLock, InterruptsHeld
from fumehood.linux.process import KILL, STOP
from fumehood.linux.terminal import ProgramTerminal
from fumehood.service.dialogue import PIECE, Dialogue, UnreadOutput
from fumehood.service.listener import LoopListener

if TYPE_CHECKING:
    from fumehood.service.hood import Caller
    from fumehood.service.store import Store

_COLUMNS, _ROWS = 80, 24
_MAX_SIZE = 0xFFFF  # columns or rows: the kernel's limit
_MAX_TIMEOUT_S = 1e9


def program_terminal(terminal: bool | tuple[int, int]) -> ProgramTerminal | None:
    """Return a terminal for a command, or None for False; the argument is True or its columns and rows."""
    if terminal is False:
        return None
    size: Any = (_COLUMNS, _ROWS) if terminal is True else terminal
    is_pair = isinstance(size, tuple) and len(size) == 2
    if not is_pair or not all(isinstance(each, int) and 0 < each <= _MAX_SIZE for each in size):
        raise BadRequest(f"a terminal can't be {terminal!r}", hint="True, or its columns and rows: (80, 24)")
    return ProgramTerminal(*size)


def _current_task_or_thread() -> object:
    """Return the task or the thread that calls this."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


class Output:
    """One output of a started command, read as it comes; iterating gives lines, in an event loop too.

    The command waits for a slow reader: at most a megabyte is kept unread.
    """

    def __init__(self, started: Started, unread: UnreadOutput) -> None:
        self._started = started
        self._unread = unread

    def _wait(self, poll: Callable[[], Any]) -> Any:
        self._unread.readers.add(_current_task_or_thread())
        return self._started._dialogue.wait(poll, self._unread)

    async def _wait_in_loop(self, poll: Callable[[], Any]) -> Any:
        self._unread.readers.add(_current_task_or_thread())
        return await self._started._dialogue.wait_in_loop(poll, self._unread)

    def read(self, size: int = PIECE) -> Any:
        """Wait for output and return it, at most so many bytes; returns an empty text at the end."""
        return self._wait(lambda: self._unread.read(size))

    def readline(self) -> Any:
        """Return the next line with its newline, or an empty text at the end; a line over a megabyte comes in parts."""
        return self._wait(self._unread.read_line)

    async def aread(self, size: int = PIECE) -> Any:
        """Do the same as `read` in an event loop."""
        return await self._wait_in_loop(lambda: self._unread.read(size))

    async def areadline(self) -> Any:
        """Do the same as `readline` in an event loop."""
        return await self._wait_in_loop(self._unread.read_line)

    def __iter__(self) -> Iterator[Any]:
        while line := self.readline():
            yield line

    async def __aiter__(self) -> AsyncIterator[Any]:
        while line := await self.areadline():
            yield line


class Input:
    """The input of a started command."""

    def __init__(self, started: Started) -> None:
        self._started = started

    def write(self, data: str | bytes) -> int:
        """Write a text or bytes; returns when all of it is in the command's pipe.

        Raises BrokenPipeError if the command has closed its input. Let another thread or task read the output of a
        command that prints a lot while it reads: else both sides wait for each other for ever.
        """
        dialogue = self._started._dialogue
        dialogue.wait(dialogue.write(_encode(data)), is_idle=False)
        return len(data)

    async def awrite(self, data: str | bytes) -> int:
        """Do the same as `write` in an event loop."""
        dialogue = self._started._dialogue
        await dialogue.wait_in_loop(dialogue.write(_encode(data)), is_idle=False)
        return len(data)

    def close(self) -> None:
        """End the input after everything that was written; on a terminal, as Ctrl-D does."""
        self._started._dialogue.close_input()


def _encode(data: str | bytes) -> bytes:
    if not isinstance(data, (str, bytes)):
        raise BadRequest(f"a command can't be written {data!r:.100}", hint="a text or bytes")
    return encode_text(data) if isinstance(data, str) else data


class Started:
    """A command that runs until it ends, is stopped, or nobody has this handle any more.

    It is a run like any other: `Sandbox.running` lists it, and when it ends, its changes are judged, and applied or
    held. Leaving a `with` block stops it, and what a stopped command wrote is held. To let it end by itself, close its
    input and `wait`.

    `stdin` has `write` and `close`; `stdout` and `stderr` have `read`, `readline` and iteration by lines. Iterating
    over the handle itself gives ("stdout" or "stderr", text) as it comes. For event loops there are `awrite`, `aread`,
    `areadline`, `astop`, `akill`, `async for`, `async with`, and `await started` in place of `wait`.
    """

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        weakref.finalize(self, dialogue.end, KILL).atexit = False

    @property
    def run(self) -> str:
        """The run's id."""
        return self._dialogue.run

    @property
    def stdin(self) -> Input:
        """The command's input."""
        return Input(self)

    @property
    def stdout(self) -> Output:
        """The command's standard output; on a terminal, errors too."""
        return Output(self, self._dialogue.outputs["stdout"])

    @property
    def stderr(self) -> Output:
        """The command's standard error."""
        return Output(self, self._dialogue.outputs["stderr"])

    @property
    def is_running(self) -> bool:
        """True until the report is there."""
        return self._dialogue.report is None and self._dialogue.error is None

    def wait(self, timeout: float | None = None) -> Run:
        """Wait for the end and return the report; raises TimeoutError, or what kept the command from running.

        Output that nobody reads does not make the command wait then: a megabyte is kept to be read, and the report has
        the rest.
        """
        limit: Any = timeout
        if limit is not None and not (isinstance(limit, (int, float)) and 0 <= limit < _MAX_TIMEOUT_S):
            raise BadRequest(f"timeout can't be {timeout!r:.100}", hint="seconds, 0 or more and less than 1e9")
        return self._dialogue.wait(self._poll_report, timeout=timeout)

    def __await__(self) -> Generator[Any, None, Run]:
        return self._dialogue.wait_in_loop(self._poll_report).__await__()

    def _poll_report(self) -> Run | None:
        if self._dialogue.error is not None:
            raise self._dialogue.error
        return self._dialogue.report

    def stop(self) -> Run:
        """End the command as `fumehood stop` does, and return its report: what it wrote is held.

        The command gets the signal of Ctrl-C and two seconds to end; on a terminal it is killed at once.
        """
        self._dialogue.end(STOP)
        return self.wait()

    def kill(self) -> Run:
        """Kill the command at once, and return its report: what it wrote is held."""
        self._dialogue.end(KILL)
        return self.wait()

    async def astop(self) -> Run:
        """Do the same as `stop` in an event loop."""
        self._dialogue.end(STOP)
        return await self

    async def akill(self) -> Run:
        """Do the same as `kill` in an event loop."""
        self._dialogue.end(KILL)
        return await self

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the command's terminal."""
        if self._dialogue.terminal is None:
            raise BadRequest("the command has no terminal", hint="start(…, terminal=True)")
        program_terminal((columns, rows))  # checks the size
        self._dialogue.terminal.resize(columns, rows)

    def _poll_piece(self) -> tuple[str, Any] | None:
        """Return the oldest unread piece with the name of its output; two empty texts at the end."""
        outputs = self._dialogue.outputs.values()
        for each in outputs:
            each.readers.add(_current_task_or_thread())
        unread = [each for each in outputs if each.first_number is not None]
        for each in sorted(unread, key=lambda each: each.first_number or 0):
            if text := each.read(PIECE):
                return each.name, text
        if not all(each.is_ended for each in outputs):
            return None
        return next(((each.name, rest) for each in outputs if (rest := each.read(1))), ("", ""))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while (piece := self._dialogue.wait(self._poll_piece, *self._dialogue.outputs.values()))[0]:
            yield piece

    async def __aiter__(self) -> AsyncIterator[tuple[str, Any]]:
        while (piece := await self._dialogue.wait_in_loop(self._poll_piece, *self._dialogue.outputs.values()))[0]:
            yield piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        try:
            self.stop()
        except FumehoodError:
            if kind is None:
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_error: object) -> None:
        try:
            await self.astop()
        except FumehoodError:
            if kind is None:
                raise

    def __repr__(self) -> str:
        return f"Started({self.run} {'running' if self.is_running else 'ended'})"


# ---- Commands that threads run to their end. Closing their store ends them first, and waits.

_lock = InterruptSafeLock()
_underway: weakref.WeakKeyDictionary[Store, set[Underway]] = weakref.WeakKeyDictionary()
_closed: weakref.WeakSet[Store] = weakref.WeakSet()


class Underway:
    """A command that a thread runs, for a `with` block, which gives the caller with a way to cancel from here."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store
        self._caller = caller
        self._is_cancelled = False
        self.thread = threading.get_ident()
        self.ended = threading.Event()

    def __enter__(self) -> Caller:
        with _lock:
            if self._store in _closed:
                raise BadRequest("this sandbox is closed", hint="open another: nothing that was recorded is lost")
            _underway.setdefault(self._store, set()).add(self)
        cancelled = self._caller.cancelled
        return self._caller.replace(cancelled=lambda: self._is_cancelled or (cancelled is not None and cancelled()))

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Record that the command has ended; may be called twice, because Ctrl-C can come just before the first."""
        with InterruptsHeld():
            with _lock:
                _underway.get(self._store, set()).discard(self)
            self.ended.set()

    def end(self) -> None:
        """Have the command ended as `fumehood stop` does."""
        self._is_cancelled = True
        if isinstance(self._caller.partner, LoopListener):
            self._caller.partner.drop()  # the event loop may be waiting for us


def end_underway(store: Store) -> None:
    """End the commands that threads run with this store, wait for their reports, and let no other begin."""
    with _lock:
        underway = tuple(_underway.get(store, ()))
        if any(each.thread == threading.get_ident() for each in underway):
            raise BadRequest("a sandbox can't be closed in a function that its command calls", hint="close it later")
        _closed.add(store)
    for each in underway:
        each.end()
    for each in underway:
        each.ended.wait()


def _forget_underway() -> None:
    """Forget the threads, which do not exist in a forked child; one of them may have held the lock."""
    global _lock
    _lock = InterruptSafeLock()
    _underway.clear()


os.register_at_fork(after_in_child=_forget_underway)
