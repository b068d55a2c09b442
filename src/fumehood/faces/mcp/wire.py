"""Standard input and output as the two streams that the SDK serves.

Its own ones hand each line to other threads, three times for one call: a third of what the server spent on it. Here
the event loop itself waits for the descriptors. They stay blocking, because others may share them: nothing is read or
written before the kernel says that it can be.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from fumehood.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

_PIECE = 1 << 16
_ROOM = select.PIPE_BUF  # what surely fits where the kernel says that there is room


@contextmanager
def standard_streams() -> Iterator[tuple[Incoming, Outgoing]]:
    """Take both streams for the messages: what else is read here finds the end, what is printed goes to the errors."""
    with _taken(0, os.O_RDONLY) as given, _taken(1, os.O_WRONLY) as answered:
        yield Incoming(given), Outgoing(answered)


@contextmanager
def _taken(stream: int, flags: int) -> Iterator[int]:
    try:
        ours = fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        raise Unavailable("standard input or output is closed", hint="an MCP client starts this with both") from error
    try:
        instead = os.dup(2) if flags == os.O_WRONLY else os.open(os.devnull, flags)
    except OSError:
        instead = os.open(os.devnull, flags)
    os.dup2(instead, stream)
    os.close(instead)
    try:
        yield ours
    finally:
        os.dup2(ours, stream)
        os.close(ours)


class _Stream:
    """What both have in common."""

    def __init__(self, descriptor: int, event: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, event)

    def _is_ready(self) -> bool:
        return bool(self._poll.poll(0))

    async def aclose(self) -> None:
        """Nothing is to be done: whoever took the descriptor gives it back."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class Incoming(_Stream):
    """The client's messages, one a line."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, select.POLLIN)
        self._rest = bytearray()
        self._searched = 0  # where no line ends
        self._has_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message, or what is wrong with it."""
        line = self._line()
        while line is None:
            if self._has_ended:
                raise anyio.EndOfStream
            if not self._is_ready():
                await anyio.wait_readable(self._descriptor)
            piece = os.read(self._descriptor, _PIECE)
            self._has_ended = not piece
            self._rest += piece
            line = self._line()
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line.decode(errors="replace"), by_name=False))
        except ValidationError as error:
            return error

    def _line(self) -> bytes | None:
        """Take one line off what was read; the last one may lack its end."""
        end = self._rest.find(b"\n", self._searched)
        if end < 0 and not (self._has_ended and self._rest):
            self._searched = len(self._rest)
            return None
        end = len(self._rest) if end < 0 else end + 1
        line = bytes(self._rest[:end])
        del self._rest[:end]
        self._searched = 0
        return line


class Outgoing(_Stream):
    """Our messages, one a line. What was begun is finished even if its sender is cancelled: half a line breaks all."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, select.POLLOUT)
        self._waiting = bytearray()
        self._emptied: asyncio.Event | None = None  # where the client is behind
        self._is_broken = False

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message; returns once the client, or the pipe to it, has it all."""
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._waiting += line.encode() + b"\n"
        if self._emptied is None:
            self._write()
        await self._until_emptied()

    async def aclose(self) -> None:
        """Wait until everything is sent."""
        if self._waiting and not self._is_broken:
            await self._until_emptied()

    async def _until_emptied(self) -> None:
        if self._emptied is not None:
            await self._emptied.wait()
        if self._is_broken:
            raise anyio.BrokenResourceError

    def _write(self) -> None:
        """Write what there is room for; the event loop calls again when there is more."""
        try:
            while self._waiting and self._is_ready():
                del self._waiting[: os.write(self._descriptor, self._waiting[:_ROOM])]
        except OSError:  # the client has gone; that its messages end too tells the server
            self._is_broken = True
            self._waiting.clear()
        if self._waiting and self._emptied is None:
            self._emptied = asyncio.Event()
            asyncio.get_running_loop().add_writer(self._descriptor, self._write)
        elif not self._waiting and self._emptied is not None:
            asyncio.get_running_loop().remove_writer(self._descriptor)
            self._emptied.set()
            self._emptied = None
