"""Call an asynchronous program's `on_output` and `on_change` in its event loop, while a thread attends its command."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from fumehood.linux.libc import InterruptSafeLock
from fumehood.linux.process import CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_UNREAD = 1 << 20  # bytes or characters of one output that wait; then the command waits too
_MAX_CHANGES = 4096  # calls of `on_change` that wait


class Bell:
    """Wakes the thread that attends a command; `request` is what that thread shall do: STOP, KILL or nothing."""

    def __init__(self) -> None:
        self.request = ""
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Reentrant: a garbage collection may ring the bell in a thread that is ringing it.
        self._eventfd_lock = InterruptSafeLock()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._eventfd

    def ring(self) -> None:
        """Wake the attending thread, so that it looks at what has changed."""
        with self._eventfd_lock:
            if self._eventfd >= 0:
                os.eventfd_write(self._eventfd, 1)

    def drain(self) -> None:
        """Reset the bell after it rang."""
        os.eventfd_read(self._eventfd)

    def silence(self) -> None:
        """Close the bell, because nobody listens any more; ringing does nothing then."""
        with self._eventfd_lock:
            if self._eventfd >= 0:
                os.close(self._eventfd)
            self._eventfd = -1


class LoopListener(Bell):
    """Calls an asynchronous program's functions in its event loop, one at a time, in the order of the events.

    They may be coroutine functions. The command waits for functions that are slower than it. All calls are made before
    anything of the command is applied. An error in a function ends the command, as in a program with threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._queue: deque[tuple[str, int, Callable[..., object], tuple[str, ...]]] = deque()
        self._queued_sizes: dict[str, int] = {}  # by name: characters of an output, or the number of changes
        self._lock = InterruptSafeLock()
        self._changed = threading.Condition(self._lock)
        self._has_work = asyncio.Event()
        self._is_ending = self._is_closed = False
        self._error: BaseException | None = None
        self._task = loop.create_task(self._work())

    def queued(self, name: str, function: Callable[..., object]) -> Callable[..., None]:
        """Return what the attending thread calls instead of a function; `name` is an output's, or CHANGES."""

        def enqueue(*arguments: str) -> None:
            with self._lock:
                if self._is_closed:
                    return
                size = 1 if name == CHANGES else len(arguments[-1])
                self._queue.append((name, size, function, arguments))
                self._queued_sizes[name] = self._queued_sizes.get(name, 0) + size
                self._loop.call_soon_threadsafe(self._has_work.set)

        return enqueue

    def is_full(self, name: str) -> bool:
        """Return True if so many calls are queued that no more is to be read from the command."""
        return self._queued_sizes.get(name, 0) >= (_MAX_CHANGES if name == CHANGES else MAX_UNREAD)

    def drain(self) -> None:
        """Reset the bell, and raise what a function raised."""
        super().drain()
        if self._error is not None:
            raise self._error

    def note_run(self, run: str) -> None:
        """Do nothing: only a handle needs the run's id."""

    def note_start(self) -> None:
        """Do nothing: nobody waits for the start."""

    def finish(self) -> None:
        """Wait until all calls are made, and raise what a function raised."""
        with self._lock:
            self._changed.wait_for(lambda: self._is_closed or not self._queue)
        if self._error is not None:
            raise self._error

    async def end(self, *, at_once: bool) -> None:
        """Stop calling: at once, or when the last queued function has returned."""
        self._is_ending = True
        self._has_work.set()
        if at_once:
            self._task.cancel()
        await asyncio.wait([self._task])

    def drop(self) -> None:
        """Make no more calls: the event loop has ended, or waits for the command itself."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            self._queued_sizes.clear()
            self._changed.notify_all()
        self.ring()

    async def _work(self) -> None:
        try:
            while not self._is_ending or self._queue:
                await self._has_work.wait()
                self._has_work.clear()
                while self._queue:
                    if not await self._call_next():
                        return
        finally:
            self.drop()

    async def _call_next(self) -> bool:
        """Make one call; return False if no more are to be made: it failed, or this was closed meanwhile."""
        name, size, function, arguments = self._queue[0]
        try:
            result: Any = function(*arguments)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            if self._task.cancelling():  # by `end` or by the end of the loop, and not by the function
                raise
            self._error = error
            return False
        except Exception as error:  # noqa: BLE001 - raised in the attending thread
            self._error = error
            return False
        was_full = self.is_full(name)
        with self._lock:
            if self._is_closed:
                return False
            self._queue.popleft()
            self._queued_sizes[name] -= size
            self._changed.notify_all()
        if was_full:
            self.ring()
        await asyncio.sleep(0)  # lets other tasks run between two calls
        return True
