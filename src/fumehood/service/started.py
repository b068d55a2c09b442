"""A command that a program started and takes part in: it writes to its input and reads its output as it comes."""

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
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.process import KILL, STOP
from fumehood.linux.terminal import ProgramTerminal
from fumehood.service.dialogue import PIECE, Dialogue, LoopListener, Unread

if TYPE_CHECKING:
    from fumehood.service.hood import Caller
    from fumehood.service.store import Store

_COLUMNS, _ROWS = 80, 24
_MOST = 0xFFFF  # columns or rows that a kernel can be told
_LONGEST_S = 1e9


def terminal_of(wish: bool | tuple[int, int]) -> ProgramTerminal | None:
    """Return the terminal that a command is to have: True, or its columns and rows."""
    if wish is False:
        return None
    size: Any = (_COLUMNS, _ROWS) if wish is True else wish
    is_pair = isinstance(size, tuple) and len(size) == 2
    if not is_pair or not all(isinstance(each, int) and 0 < each <= _MOST for each in size):
        raise BadRequest(f"a terminal can't be {wish!r}", hint="True, or its columns and rows: (80, 24)")
    return ProgramTerminal(*size)


def _reader() -> object:
    """Return who reads: a task, or a thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


class Output:
    """One output of a started command, read as it comes; iterating gives lines, in an event loop too.

    While somebody reads it, slowly, the command waits: a megabyte waits to be read, and no more is taken.
    """

    def __init__(self, started: Started, unread: Unread) -> None:
        self._started = started
        self._unread = unread

    def _wait(self, take: Callable[[], Any]) -> Any:
        self._unread.readers.add(_reader())
        return self._started._dialogue.wait(take, self._unread)

    async def _await(self, take: Callable[[], Any]) -> Any:
        self._unread.readers.add(_reader())
        return await self._started._dialogue.await_(take, self._unread)

    def read(self, size: int = PIECE) -> Any:
        """Return what has come, at most so many bytes of it; waits for something, and returns nothing at the end."""
        return self._wait(lambda: self._unread.piece(size))

    def readline(self) -> Any:
        """Return the next line with its end, nothing at the end; a line of more than a megabyte comes in parts."""
        return self._wait(self._unread.line)

    async def aread(self, size: int = PIECE) -> Any:
        """Do as `read` does, in an event loop."""
        return await self._await(lambda: self._unread.piece(size))

    async def areadline(self) -> Any:
        """Do as `readline` does, in an event loop."""
        return await self._await(self._unread.line)

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
        """Write a text or bytes; returns when the command's pipe has taken all of it.

        Raises BrokenPipeError where the command reads no more. One that prints much for what it reads must be read
        by another thread, or task, meanwhile: else both wait for ever.
        """
        dialogue = self._started._dialogue
        dialogue.wait(dialogue.write(_encoded(data)), is_idle=False)
        return len(data)

    async def awrite(self, data: str | bytes) -> int:
        """Do as `write` does, in an event loop."""
        dialogue = self._started._dialogue
        await dialogue.await_(dialogue.write(_encoded(data)), is_idle=False)
        return len(data)

    def close(self) -> None:
        """Let the input end, after what was written; on a terminal, by what Ctrl-D types."""
        self._started._dialogue.close_input()


def _encoded(data: str | bytes) -> bytes:
    if not isinstance(data, (str, bytes)):
        raise BadRequest(f"a command can't be written {data!r:.100}", hint="a text or bytes")
    return encode_text(data) if isinstance(data, str) else data


class Started:
    """A command that runs until it ends, is stopped, or this handle is left or forgotten.

    It is a run like any other: judged, applied or held when it ends, and listed by `Sandbox.running` meanwhile. Leaving
    a `with` block stops it; what a stopped command wrote is held. To have it end by itself, close its input and `wait`.

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
        """What the command reads."""
        return Input(self)

    @property
    def stdout(self) -> Output:
        """What it prints; on a terminal, all of it."""
        return Output(self, self._dialogue.outputs["stdout"])

    @property
    def stderr(self) -> Output:
        """What it prints as errors."""
        return Output(self, self._dialogue.outputs["stderr"])

    @property
    def is_running(self) -> bool:
        """True until the report is there."""
        return self._dialogue.report is None and self._dialogue.error is None

    def wait(self, timeout: float | None = None) -> Run:
        """Wait for the end and return the report; raises TimeoutError, or what kept the command from running.

        What is printed meanwhile and read by nobody keeps nothing waiting: a megabyte stays to be read, the rest is in
        the report.
        """
        limit: Any = timeout
        if limit is not None and not (isinstance(limit, (int, float)) and 0 <= limit < _LONGEST_S):
            raise BadRequest(f"timeout can't be {timeout!r:.100}", hint="seconds, 0 or more and less than 1e9")
        return self._dialogue.wait(self._ended, timeout=timeout)

    def __await__(self) -> Generator[Any, None, Run]:
        return self._dialogue.await_(self._ended).__await__()

    def _ended(self) -> Run | None:
        if self._dialogue.error is not None:
            raise self._dialogue.error
        return self._dialogue.report

    def stop(self) -> Run:
        """End the command as `fumehood stop` does, and return its report: what it wrote is held.

        It gets what Ctrl-C sends, and two seconds; on a terminal it is ended at once.
        """
        self._dialogue.end(STOP)
        return self.wait()

    def kill(self) -> Run:
        """End the command at once, and return its report: what it wrote is held."""
        self._dialogue.end(KILL)
        return self.wait()

    async def astop(self) -> Run:
        """Do as `stop` does, in an event loop."""
        self._dialogue.end(STOP)
        return await self

    async def akill(self) -> Run:
        """Do as `kill` does, in an event loop."""
        self._dialogue.end(KILL)
        return await self

    def resize(self, columns: int, rows: int) -> None:
        """Give its terminal another size."""
        if self._dialogue.terminal is None:
            raise BadRequest("the command has no terminal", hint="start(…, terminal=True)")
        terminal_of((columns, rows))
        self._dialogue.terminal.resize(columns, rows)

    def _piece(self) -> tuple[str, Any] | None:
        """Return what was printed first of what nobody has read; two empty words at the end."""
        outputs = self._dialogue.outputs.values()
        for each in outputs:
            each.readers.add(_reader())
        for each in sorted((each for each in outputs if each.first is not None), key=lambda each: each.first or 0):
            if text := each.piece(PIECE):
                return each.name, text
        if not all(each.is_ended for each in outputs):
            return None
        return next(((each.name, rest) for each in outputs if (rest := each.piece(1))), ("", ""))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while (piece := self._dialogue.wait(self._piece, *self._dialogue.outputs.values()))[0]:
            yield piece

    async def __aiter__(self) -> AsyncIterator[tuple[str, Any]]:
        while (piece := await self._dialogue.await_(self._piece, *self._dialogue.outputs.values()))[0]:
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


# ---- Commands that a thread runs to their end: whoever closes the records ends them first, and waits.

_lock = threading.Lock()
_underway: weakref.WeakKeyDictionary[Store, set[Underway]] = weakref.WeakKeyDictionary()  # what runs, by its records
_closed: weakref.WeakSet[Store] = weakref.WeakSet()  # records


class Underway:
    """One such command, for a `with` block; it gives the caller's part, which can now be cancelled from here."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store
        self._caller = caller
        self._is_unwanted = False
        self.thread = threading.get_ident()
        self.ended = threading.Event()

    def __enter__(self) -> Caller:
        with _lock:
            if self._store in _closed:
                raise BadRequest("this sandbox is closed", hint="open another: nothing that was recorded is lost")
            _underway.setdefault(self._store, set()).add(self)
        cancelled = self._caller.cancelled
        return self._caller.replace(cancelled=lambda: self._is_unwanted or (cancelled is not None and cancelled()))

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Count it no more; may be repeated, for Ctrl-C can come just before."""
        with InterruptsHeld():
            with _lock:
                _underway.get(self._store, set()).discard(self)
            self.ended.set()

    def end(self) -> None:
        """Have it ended as `fumehood stop` does; what waits to be told in a loop is not, for that may wait for us."""
        self._is_unwanted = True
        if isinstance(self._caller.partner, LoopListener):
            self._caller.partner.drop()


def end_underway(store: Store) -> None:
    """End what threads run with these records, wait for its report, and let nothing more begin."""
    with _lock:
        ours = tuple(_underway.get(store, ()))
        if any(each.thread == threading.get_ident() for each in ours):
            raise BadRequest("a sandbox can't be closed in a function that its command calls", hint="close it later")
        _closed.add(store)
    for each in ours:
        each.end()
    for each in ours:
        each.ended.wait()


def _forget_underway() -> None:
    """Threads stay behind in a fork, and one of them may have had the lock."""
    global _lock
    _lock = threading.Lock()
    _underway.clear()


os.register_at_fork(after_in_child=_forget_underway)
