"""Carry bytes both ways between two connections without touching them: the kernel moves pages through a pipe.

Only what a client says first is looked at, for the host that it asks for by TLS.
"""

from __future__ import annotations

import select
import socket

from fumehood.proxy.hello import HANDSHAKE, Hello, NotUnderstood
from fumehood.proxy.pipe import Pipe
from fumehood.proxy.wire import PIECE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.proxy.audit import Entry

IDLE_S = 900.0
_AT_ONCE = 16  # times a pipe is filled before the other direction has its turn
_ENDED = select.POLLHUP | select.POLLERR  # told of whether asked for or not


class WrongHost(Exception):
    """A TLS client asked the server for another host than the one it was granted."""


class _Way:
    """One direction: from a socket, through a pipe, into another."""

    def __init__(self, source: socket.socket, target: socket.socket, count: Callable[[int], None]) -> None:
        self.source, self.target = source, target
        self._count = count
        self._first = b""  # what goes before anything of the pipe
        self._pipe = Pipe()
        self.is_over = False

    @property
    def wants(self) -> tuple[int, int]:
        """The descriptor to poll, and for what."""
        if self._first or self._pipe.held:
            return self.target.fileno(), select.POLLOUT
        return self.source.fileno(), select.POLLIN

    def advance(self) -> None:
        """Move what can be moved now."""
        if self._first:
            self._send_first()
        source, target, pipe = self.source.fileno(), self.target.fileno(), self._pipe
        for _ in range(_AT_ONCE):
            if self._first:
                return
            if not pipe.held:
                filled = pipe.fill(source)
                if filled == 0:
                    self.finish()
                if not filled:
                    return
            given = pipe.empty(target)
            if not given:
                return
            self._count(given)

    def _send_first(self) -> None:
        try:
            sent = self.target.send(self._first)
        except BlockingIOError:
            return
        self._first = self._first[sent:]
        self._count(sent)

    def finish(self) -> None:
        """The source has no more: tell the target, which may still answer."""
        self.is_over = True
        try:
            self.target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it is gone already

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


class _Judged(_Way):
    """The client's direction: nothing goes before it is known that the right host is asked for."""

    def __init__(
        self, client: socket.socket, host: socket.socket, count: Callable[[int], None], is_right: Callable[[str], bool]
    ) -> None:
        super().__init__(client, host, count)
        self._is_right = is_right
        self._is_known = False
        self._said = b""
        self._hello: Hello | None = None

    def advance(self) -> None:
        """Move what can be moved now; raises WrongHost."""
        if self._is_known:
            super().advance()
            return
        try:
            data = self.source.recv(PIECE)
        except BlockingIOError:
            return
        if data:
            self.take(data)
        elif self._said:
            raise WrongHost("the first TLS message did not come")
        else:
            self.finish()

    def take(self, data: bytes) -> None:
        """Look at a piece of what is said first."""
        self._said += data
        if self._said[0] == HANDSHAKE:
            self._hello = self._hello or Hello()
            try:
                if not self._hello.feed(data):
                    return
            except NotUnderstood as error:
                raise WrongHost(str(error)) from error
            name = self._hello.server_name
            if name is not None and not self._is_right(name):
                raise WrongHost(f"the TLS client asked for {name} there")
        self._is_known, self._first = True, self._said


def relay(
    client: socket.socket, host: socket.socket, early: bytes, entry: Entry, is_right: Callable[[str], bool]
) -> None:
    """Carry everything both ways until both have ended, or nothing has moved for long.

    `early` is what the client said already. Raises WrongHost where `is_right` says so of the name it asks for.
    """

    def sent(size: int) -> None:
        entry.sent += size

    def received(size: int) -> None:
        entry.received += size

    for each in (client, host):
        each.setblocking(False)
    ways: list[_Way] = []
    try:
        upwards = _Judged(client, host, sent, is_right)
        ways.append(upwards)
        ways.append(_Way(host, client, received))
        if early:
            upwards.take(early)
        _carry(ways)
    finally:
        for way in ways:
            way.close()


def _carry(ways: list[_Way]) -> None:
    while going := [way for way in ways if not way.is_over]:
        poll = select.poll()
        events: dict[int, int] = {}
        for way in going:
            fd, event = way.wants
            events[fd] = events.get(fd, 0) | event
        for fd, event in events.items():
            poll.register(fd, event)
        ready = dict(poll.poll(IDLE_S * 1000))
        if not ready:
            return
        for way in going:
            fd, event = way.wants
            if ready.get(fd, 0) & (event | _ENDED):
                way.advance()
