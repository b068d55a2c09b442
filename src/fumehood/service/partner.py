"""The program that a command runs for, while another thread attends the command: what it is told, and may ask for."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from fumehood.linux.process import CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
        """Tell whether so much waits to be told that no more is to be read."""
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
        except Exception as error:  # noqa: BLE001 - raised where the command is attended
            if name != CHANGES:  # who can't be told of a change does not end the command
                self._error = error
                return False
        was_full = self.is_full(name)
        with self._changed:
            self._calls.popleft()
            self._sizes[name] -= size
            self._changed.notify_all()
        if was_full:
            self.ring()
        await asyncio.sleep(0)  # others have their turn between two calls
        return True
