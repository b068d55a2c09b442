"""Carry bytes both ways between two connections without touching them: the kernel moves pages through a pipe."""

from __future__ import annotations

import os
import select
import socket
import time

from fumehood.proxy.hello import HANDSHAKE, Hello, NotUnderstood
from fumehood.proxy.wire import PIECE, PIPE, pipe, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.proxy.audit import Entry

IDLE_S = 900.0
_FIRST_MESSAGE_S = 30.0
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class WrongHost(Exception):
    """A TLS client asked the server for another host than the one it was granted."""


class _Way:
    """One direction: from a socket, through a pipe, into another."""

    def __init__(self, source: socket.socket, target: socket.socket, count: Callable[[int], None]) -> None:
        self.source, self.target = source, target
        self._count = count
        self._in_pipe = 0
        self.is_over = False
        self._reading, self._writing = pipe()

    @property
    def wants(self) -> tuple[int, int]:
        """The descriptor to poll, and for what."""
        if self._in_pipe:
            return self.target.fileno(), select.POLLOUT
        return self.source.fileno(), _READABLE

    def advance(self) -> None:
        """Move what can be moved now."""
        if not self._in_pipe:
            try:
                self._in_pipe = os.splice(
                    self.source.fileno(), self._writing, PIPE, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
                )
            except BlockingIOError:
                return
            if not self._in_pipe:
                self._finish()
                return
        try:
            moved = os.splice(
                self._reading, self.target.fileno(), self._in_pipe, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
            )
        except BlockingIOError:
            return
        self._in_pipe -= moved
        self._count(moved)

    def _finish(self) -> None:
        """The source has no more: tell the target, which may still answer."""
        self.is_over = True
        try:
            self.target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it is gone already

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reading)
        os.close(self._writing)


def relay(client: socket.socket, host: socket.socket, entry: Entry) -> None:
    """Carry everything both ways until both have ended, or nothing has moved for long."""

    def sent(size: int) -> None:
        entry.sent += size

    def received(size: int) -> None:
        entry.received += size

    for each in (client, host):
        each.setblocking(False)
    ways: list[_Way] = []
    try:
        ways.append(_Way(client, host, sent))
        ways.append(_Way(host, client, received))
        _carry(ways)
    finally:
        for way in ways:
            way.close()


def _carry(ways: list[_Way]) -> None:
    while True:
        going = [way for way in ways if not way.is_over]
        if not going:
            return
        poll = select.poll()
        events: dict[int, int] = {}
        for way in going:
            fd, event = way.wants
            events[fd] = events.get(fd, 0) | event
        for fd, event in events.items():
            poll.register(fd, event)
        ready = {fd for fd, _ in poll.poll(IDLE_S * 1000)}
        if not ready:
            return
        for way in going:
            if way.wants[0] in ready:
                way.advance()


def first_message(
    client: socket.socket, host: socket.socket, early: bytes, entry: Entry, is_right: Callable[[str], bool]
) -> None:
    """Pass on what the client says first, once it is known to ask for the right host; the other may speak before.

    `early` is what came with the request. Raises WrongHost.
    """
    data = early
    while not data:
        ready = readable([client.fileno(), host.fileno()], IDLE_S)
        if not ready:
            return
        if host.fileno() in ready:
            said = host.recv(PIECE)
            if not said:
                return
            client.sendall(said)
            entry.received += len(said)
        if client.fileno() in ready:
            data = client.recv(PIECE)
            if not data:
                return
    if data[0] == HANDSHAKE:
        data = _whole_hello(client, data, is_right)
    host.sendall(data)
    entry.sent += len(data)


def _whole_hello(client: socket.socket, data: bytes, is_right: Callable[[str], bool]) -> bytes:
    hello, deadline = Hello(), time.monotonic() + _FIRST_MESSAGE_S
    new = data
    try:
        while not hello.feed(new):
            client.settimeout(max(0.1, deadline - time.monotonic()))
            new = client.recv(PIECE)
            if not new or time.monotonic() > deadline:
                raise WrongHost("the first TLS message did not come")
            data += new
    except NotUnderstood as error:
        raise WrongHost(str(error)) from error
    if hello.server_name is not None and not is_right(hello.server_name):
        raise WrongHost(f"the TLS client asked for {hello.server_name} there")
    return data
