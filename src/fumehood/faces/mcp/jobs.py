"""Commands while they run: those in the background, and what a client is told of one that it waits for."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fumehood.core.report import visible
from fumehood.errors import BadRequest, FumehoodError, plain_error
from fumehood.faces.mcp.results import MARK

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mcp.server.mcpserver import Context

    from fumehood.core.report import Run

_MOST_JOBS = 64  # remembered
_MOST_OUTPUT = 1 << 20  # characters kept of each
_PROGRESS_S = 0.1
_MOST_LINES = 20  # told at once


class Job:
    """One command in the background."""

    def __init__(self, name: str, work: Callable[..., Run]) -> None:
        self.name = name
        self.run: Run | None = None
        self.error: FumehoodError | None = None
        self._work = work
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._pieces: list[str] = []
        self._dropped = 0
        self._size = 0
        self._thread = threading.Thread(target=self._go, name=f"fumehood-{name}", daemon=True)
        self._thread.start()

    def _go(self) -> None:
        try:
            self.run = self._work(cancelled=self._stopped.is_set, on_output=self._take)
        except Exception as error:  # noqa: BLE001 - told when somebody looks at it
            self.error = plain_error(error)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _take(self, _stream: str, text: str) -> None:
        with self._changed:
            self._pieces.append(text)
            self._size += len(text)
            while self._size - self._dropped > _MOST_OUTPUT and len(self._pieces) > 1:
                self._dropped += len(self._pieces.pop(0))
            self._changed.notify_all()

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        return self._thread.is_alive()

    def output(self, offset: int) -> tuple[int, str]:
        """Return what was printed from an offset on, and where that begins: the oldest may be gone."""
        with self._changed:
            begin = min(max(offset, self._dropped), self._size)
            return begin, "".join(self._pieces)[begin - self._dropped :]

    def wait(self, offset: int, seconds: float) -> None:
        """Wait until there is something new, or it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._size > offset or not self.is_running or self._has_ended, seconds)

    @property
    def _has_ended(self) -> bool:
        return self.run is not None or self.error is not None

    def stop(self) -> None:
        """End the command; what it wrote is held."""
        self._stopped.set()
        self._thread.join()

    def join(self) -> None:
        """Wait for the thread of a command that has ended."""
        if self._has_ended:
            self._thread.join()


class Jobs:
    """Every command that the clients of this server started; each client knows only its own, by its own count."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], Job] = {}
        self._counts: dict[str, int] = {}

    def start(self, client: str, work: Callable[..., Any]) -> Job:
        """Start a command in the background."""
        for key in [key for key, job in self._jobs.items() if not job.is_running][: len(self._jobs) - _MOST_JOBS + 1]:
            del self._jobs[key]
        if len(self._jobs) >= _MOST_JOBS:
            raise BadRequest(f"{_MOST_JOBS} commands are running already", hint="stop_command ends one")
        self._counts[client] = self._counts.get(client, 0) + 1
        name = f"job-{self._counts[client]}"
        self._jobs[client, name] = Job(name, work)
        return self._jobs[client, name]

    def find(self, client: str, name: str) -> Job:
        """Return a job of a client by its name."""
        if (client, name) not in self._jobs:
            raise BadRequest(f"there is no job {name}", hint="start_command returns its name")
        return self._jobs[client, name]

    def stop_all(self) -> None:
        """End everything that still runs."""
        for job in self._jobs.values():
            if job.is_running:
                job.stop()


class ProgressLines:
    """Tells the client what is being printed, if it wants to know: the latest line, a few times a second."""

    def __init__(self, context: Context[Any, Any]) -> None:
        self._context = context
        meta = context.request_context.meta
        self._is_wanted = bool(meta and meta.get("progress_token") is not None)
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._unfinished = ""
        self._count = 0
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def take(self) -> Callable[[str, str], None] | None:
        """What the run calls with its output, from another thread."""
        return self._take if self._is_wanted else None

    def _take(self, _stream: str, text: str) -> None:
        with self._lock:
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            self._lines += [line for line in lines if line.strip()]
            del self._lines[:-_MOST_LINES]
            self._count += len(lines)

    async def __aenter__(self) -> Self:
        if self._is_wanted:
            self._task = asyncio.create_task(self._report())
        return self

    async def __aexit__(self, kind: object, *_error: object) -> None:
        if self._task is None:
            return
        if kind is not None:
            self._task.cancel()
            return
        # Not cancelled: it may be sending just now.
        self._ended.set()
        await self._task

    async def _report(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _PROGRESS_S)
            with self._lock:
                lines, self._lines = self._lines, []
                count = self._count
            if lines:
                await self._context.report_progress(count, None, visible("\n".join(lines), MARK))
