"""Tell the client what a command prints while it runs."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fumehood.faces.mcp.results import foreign

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mcp.server.mcpserver import Context

_PROGRESS_S = 0.1


class Progress:
    """Tells the client what is being printed, if it wants to know: the latest line, a few times a second."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        meta = ctx.request_context.meta
        self._wanted = bool(meta and meta.get("progress_token") is not None)
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._rest = ""
        self._count = 0
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def take(self) -> Callable[[str, str], None] | None:
        """What the run calls with its output, from another thread."""
        return self._take if self._wanted else None

    def _take(self, _stream: str, text: str) -> None:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            self._lines += [line for line in lines if line.strip()]
            del self._lines[:-20]
            self._count += len(lines)

    async def __aenter__(self) -> Self:
        if self._wanted:
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
            await self._send()

    async def _send(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            count = self._count
        if lines:
            await self._ctx.report_progress(count, None, foreign("\n".join(lines)))
