"""Reading a connection with patience that has an end."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from fumehood.proxy.pipe import Pipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PIECE = 1 << 16
_LAST_WORD_S = 2.0


def readable(descriptors: Sequence[int], patience_s: float | None) -> set[int]:
    """Wait until one of these can be read, or has ended; not by select, which fails from descriptor 1024 on."""
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if patience_s is None else patience_s * 1000)}


def send_at_once(connection: socket.socket) -> None:
    """Let what goes over loopback wait for no timer, as it does where the host prefers BBR; of a listener, for all."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class Gone(Exception):
    """The other side closed the connection, or took too long."""


class Wire:
    """A connection whose next bytes may have been read already."""

    def __init__(self, connection: socket.socket, early: bytes = b"") -> None:
        self.socket = connection
        self._early = early

    @property
    def is_closed(self) -> bool:
        """Whether the other side will say nothing more than what has come already."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def read(self, patience_s: float) -> bytes:
        """Return the next bytes, none at the end; raises Gone where nothing comes in time."""
        if self._early:
            data, self._early = self._early, b""
            return data
        self.socket.settimeout(patience_s)
        try:
            return self.socket.recv(PIECE)
        except TimeoutError as error:
            raise Gone(f"nothing came for {patience_s:g} s") from error

    def exactly(self, size: int, deadline: float) -> bytes:
        """Return so many bytes, by a point in time."""
        data = b""
        while len(data) < size:
            piece = self.read(max(0.01, deadline - time.monotonic()))
            if not piece:
                raise Gone("the connection was closed early")
            data += piece
        self.put_back(data[size:])
        return data[:size]

    def put_back(self, data: bytes) -> None:
        """Let the next read begin with this."""
        self._early = data + self._early

    def taken(self) -> bytes:
        """Return what was read and not used."""
        data, self._early = self._early, b""
        return data

    def send(self, data: bytes, patience_s: float) -> None:
        """Send all of it."""
        self.socket.settimeout(patience_s)
        try:
            self.socket.sendall(data)
        except TimeoutError as error:
            raise Gone("the other side takes nothing") from error

    def part_with(self, data: bytes) -> None:
        """Say the last word, and listen a little: closed at once, what is still coming in would make it be lost."""
        self.send(data, _LAST_WORD_S)
        deadline = time.monotonic() + _LAST_WORD_S
        with contextlib.suppress(OSError, Gone):
            self.socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and self.read(_LAST_WORD_S):
                pass

    def move(self, target: Wire, size: int, patience_s: float, count: Callable[[int], None]) -> None:
        """Pass on exactly so many bytes, those not read yet without touching them."""
        early = self.taken()
        self.put_back(early[size:])
        if early[:size]:
            target.send(early[:size], patience_s)
            count(len(early[:size]))
        left = size - len(early[:size])
        if left:
            with contextlib.closing(Pipe()) as pipe:
                _move(self.socket, target.socket, pipe, left, patience_s, count)


def _move(
    source: socket.socket, target: socket.socket, pipe: Pipe, left: int, patience_s: float, count: Callable[[int], None]
) -> None:
    source.setblocking(False)
    target.setblocking(False)
    while left:
        filled = pipe.fill(source.fileno(), left)
        if filled is None:
            _await(source, select.POLLIN, patience_s)
            continue
        if not filled:
            raise Gone("the connection was closed early")
        left -= filled
        count(filled)
        while pipe.held:
            if not pipe.empty(target.fileno()):
                _await(target, select.POLLOUT, patience_s)


def _await(connection: socket.socket, event: int, patience_s: float) -> None:
    poll = select.poll()
    poll.register(connection, event)
    if not poll.poll(patience_s * 1000):
        raise Gone(f"nothing moved for {patience_s:g} s")
