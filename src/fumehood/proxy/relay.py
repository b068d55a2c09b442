"""Carry bytes both ways between a client and a host.

The kernel moves the pages through a pipe: nothing is copied into this process. Only the client's first TLS message is
read, for the name of the host that it asks for. On a server that several hosts share, a client could otherwise open a
tunnel to a granted host, and then ask for another one there. OpenSSL reads the message, so there is no parser of ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence

from fumehood.proxy.connections import Entry

# ---- Pipes and sockets.

SMALL_PIPE, LARGE_PIPE = 64 << 10, 1 << 20  # bytes: of every new pipe, and of one that may grow, without privilege
_GROWS_AFTER = 256 << 10  # bytes that a pipe must have passed on before it becomes a large one
# All pipes of a user together may have 64 MiB. Beyond that, every new pipe is tiny, other programs' too.
_large_pipes = threading.BoundedSemaphore(32)
_F_SETPIPE_SZ = 1031
_SPLICE_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_READ_SIZE = 1 << 16
_LINGER_S = 2.0
_ACCURACY_S = 0.02  # more than the error of the kernel's clock in the next value
_LAST_RECEIVED = struct.Struct("=52xI")  # in the kernel's TCP_INFO: milliseconds since data last came


class Disconnected(Exception):
    """The other side closed the connection, or took too long."""


class EndedEarly(Disconnected):
    """The side that should send more closed the connection, took too long, or sent something that can't be read."""


class Pipe:
    """A pipe between two non-blocking connections; `size` bytes of one are in it that the other did not get yet."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._capacity = SMALL_PIPE
        self._passed_on = 0
        self.size = 0

    def fill_from(self, source: int, most: int = LARGE_PIPE) -> int | None:
        """Fill an empty pipe with what the source has: the bytes, 0 at the source's end, None if nothing is there."""
        if self._passed_on > _GROWS_AFTER and self._capacity == SMALL_PIPE:
            self._passed_on = 0
            if _large_pipes.acquire(blocking=False):
                self._capacity = LARGE_PIPE
                # The kernel refuses if this user has many pipes already; a small one works too.
                with contextlib.suppress(PermissionError):
                    fcntl.fcntl(self._writing, _F_SETPIPE_SZ, LARGE_PIPE)
        try:
            self.size = os.splice(source, self._writing, min(most, self._capacity), flags=_SPLICE_FLAGS)
        except BlockingIOError:
            return None
        return self.size

    def drain_to(self, target: int) -> int:
        """Give the target as much as it takes now, and return how many bytes that was."""
        try:
            size = os.splice(self._reading, target, self.size, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            return 0
        self.size -= size
        self._passed_on += size
        return size

    def close(self) -> None:
        """Close the pipe, and drop what is still in it."""
        os.close(self._reading)
        os.close(self._writing)
        if self._capacity == LARGE_PIPE:
            _large_pipes.release()


def wait_until_readable(descriptors: Sequence[int], timeout_s: float | None) -> set[int]:
    """Return those descriptors that can be read or have ended, as soon as there is one.

    Not by `select`, which fails from descriptor 1024 on.
    """
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}


def disable_pacing(connection: socket.socket) -> None:
    """Let nothing on loopback wait for a timer, as it does if the host prefers BBR.

    Connections that a listener accepts inherit this from it.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _wait_for(connection: socket.socket, event: int, timeout_s: float) -> int:
    """Return which of the events, or which end, came first; raises Disconnected if none comes in time."""
    poll = select.poll()
    poll.register(connection, event)
    ready = poll.poll(timeout_s * 1000)
    if not ready:
        raise Disconnected(f"nothing moved for {timeout_s:g} s")
    return ready[0][1]


class BufferedSocket:
    """A connection, and bytes that were read from it too early. With an entry, what it carries is counted there."""

    def __init__(self, connection: socket.socket, entry: Entry | None = None) -> None:
        self.socket = connection
        self._entry = Entry("") if entry is None else entry
        self._buffer = b""
        # Called if we wait to send, and the other side sends something instead of reading. It may read from here.
        self.on_input: Callable[[], None] | None = None

    @property
    def is_closed(self) -> bool:
        """True if the other side will send nothing more than what has arrived already."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def was_closed_before(self, moment: float) -> bool:
        """Return True if the other side closed it, and sent its last byte, before a point of the monotonic clock."""
        if not self.is_closed:
            return False
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
        milliseconds: int = _LAST_RECEIVED.unpack(info)[0]
        return time.monotonic() - milliseconds / 1000 < moment + _ACCURACY_S

    def read(self, timeout_s: float) -> bytes:
        """Return the next bytes, none at the end; raises Disconnected if nothing comes in time."""
        if self._buffer:
            return self.take_buffer()
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(_READ_SIZE)
        except TimeoutError as error:
            raise Disconnected(f"nothing came for {timeout_s:g} s") from error
        self._entry.count_received(len(data))
        return data

    def read_exactly(self, size: int, deadline: float) -> bytes:
        """Return that many bytes; raises Disconnected if they have not come by a point of the monotonic clock."""
        data = b""
        while len(data) < size:
            piece = self.read(max(0.01, deadline - time.monotonic()))
            if not piece:
                raise Disconnected("the connection was closed early")
            data += piece
        self.put_back(data[size:])
        return data[:size]

    def put_back(self, data: bytes) -> None:
        """Let the next read begin with these bytes."""
        self._buffer = data + self._buffer

    @property
    def has_buffer(self) -> bool:
        """True if bytes were read and not used."""
        return bool(self._buffer)

    def take_buffer(self) -> bytes:
        """Return the bytes that were read and not used, which are then used."""
        data, self._buffer = self._buffer, b""
        return data

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of it; raises Disconnected if the other side takes nothing for that long."""
        self.socket.setblocking(False)
        rest = memoryview(data)
        while rest:
            try:
                sent = self.socket.send(rest)
            except BlockingIOError:
                self.wait_to_send(timeout_s)
                continue
            self._entry.count_sent(sent)
            rest = rest[sent:]

    def wait_to_send(self, timeout_s: float) -> None:
        """Wait until the other side takes something, or has sent something that `on_input` then reads."""
        event = _wait_for(self.socket, select.POLLOUT | (select.POLLIN if self.on_input else 0), timeout_s)
        if self.on_input is not None and event & select.POLLIN and not event & select.POLLOUT:
            self.on_input()
            self.socket.setblocking(False)  # reading gave it a timeout

    def send_last(self, data: bytes) -> None:
        """Send the last bytes, and read a little longer.

        If we closed at once, bytes that are still coming in would make the other side lose our last ones.
        """
        self.send(data, _LINGER_S)
        deadline = time.monotonic() + _LINGER_S
        with contextlib.suppress(OSError, Disconnected):
            self.socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and self.read(_LINGER_S):
                pass

    def move_to(self, target: BufferedSocket, size: int, timeout_s: float) -> None:
        """Pass exactly that many bytes on to another connection, by a pipe; raises EndedEarly if they don't come."""
        buffered, self._buffer = self._buffer[:size], self._buffer[size:]
        if buffered:
            target.send(buffered, timeout_s)
        left = size - len(buffered)
        if not left:
            return
        self.socket.setblocking(False)
        target.socket.setblocking(False)
        with contextlib.closing(Pipe()) as pipe:
            while left:
                filled = self._fill(pipe, left, timeout_s)
                left -= filled
                self._entry.count_received(filled)
                while pipe.size:
                    drained = pipe.drain_to(target.socket.fileno())
                    target._entry.count_sent(drained)
                    if not drained:
                        target.wait_to_send(timeout_s)

    def _fill(self, pipe: Pipe, most: int, timeout_s: float) -> int:
        try:
            while (filled := pipe.fill_from(self.socket.fileno(), most)) is None:
                _wait_for(self.socket, select.POLLIN, timeout_s)
        except (Disconnected, OSError) as error:
            raise EndedEarly("the connection was closed early") from error
        if not filled:
            raise EndedEarly("the connection was closed early")
        return filled


# ---- The first TLS message.

_IDLE_S = 900.0
_HANDSHAKE = 0x16  # the first byte of a TLS record that belongs to a handshake
_RECORD_HEAD = 5  # bytes before the content of a TLS record
_LONGEST_HELLO = 1 << 16  # bytes; a real one, with a hybrid key exchange and many extensions, has 2 KiB
# The 32 random bytes of a server's hello have this value if the server wants another client hello (RFC 8446, 4.1.3).
_RETRY_REQUEST = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_UP_TO_RANDOM = _RECORD_HEAD + 6 + len(_RETRY_REQUEST)  # bytes of a server's answer, up to the end of the random ones


class WrongHost(Exception):
    """A TLS client asked the server for a host other than the granted one."""


def _pass_client_hello(
    client: BufferedSocket, host: BufferedSocket, may_ask_for: Callable[[str], bool], *, is_retry: bool = False
) -> bool:
    """Pass on the client's first TLS message, once it is complete; return False if the client does not speak TLS.

    Raises WrongHost if the message asks for another host, or can't be read. A second hello (`is_retry`) may come after
    records that the client sent too early; the host ignores them.
    """
    data = client.read(_IDLE_S)
    client.put_back(data)
    if not data or (data[0] != _HANDSHAKE and not is_retry):
        return False
    names: list[str | None] = []  # the name that the complete message asks for; None if it names no host

    def read_name(_server: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # we are not the server, so our handshake ends here

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = read_name
    incoming = ssl.MemoryBIO()
    server = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    ignored = hello = b""
    while not names:
        try:
            head = client.read_exactly(_RECORD_HEAD, time.monotonic() + _IDLE_S)
            record = head + client.read_exactly(int.from_bytes(head[-2:], "big"), time.monotonic() + _IDLE_S)
        except Disconnected as error:
            raise WrongHost("the first TLS message did not come") from error
        if is_retry and record[0] != _HANDSHAKE:
            ignored += record
            if len(ignored) > _LONGEST_HELLO:  # there may be any number of these records
                host.send(ignored, _IDLE_S)
                ignored = b""
            continue
        incoming.write(record)
        hello += record
        try:
            server.do_handshake()
        except ssl.SSLWantReadError:
            if len(hello) > _LONGEST_HELLO:
                raise WrongHost("the first message is too long") from None
        except ssl.SSLError as error:
            if not names:
                raise WrongHost(f"no TLS that can be read: {error.reason or error}") from error
    if names[0] is not None and not may_ask_for(names[0]):
        raise WrongHost(f"the TLS client asked for {names[0]} there")
    host.send(ignored + hello, _IDLE_S)
    return True


def _read_first_answer(host: socket.socket, client: socket.socket) -> bytes:
    """Return the beginning of the host's answer to a client hello: enough to see whether it wants another hello."""
    answer = b""
    while not answer or (answer[0] == _HANDSHAKE and len(answer) < _UP_TO_RANDOM):
        poll = select.poll()
        poll.register(host, select.POLLIN)
        poll.register(client, 0)  # reports if the client has ended the connection
        if not dict(poll.poll(_IDLE_S * 1000)).get(host.fileno(), 0) & select.POLLIN:
            break
        data = host.recv(_READ_SIZE)
        if not data:
            break
        answer += data
    return answer


# ---- Both directions at once.

_FILLS_IN_A_ROW = 16  # of one direction's pipe, before the other direction has its turn
_ENDED = select.POLLHUP | select.POLLERR  # `poll` always reports these


class _Direction:
    """One direction of a connection: from a socket, through a pipe, into another socket."""

    def __init__(
        self, source: socket.socket, target: socket.socket, count: Callable[[int], None] = lambda _size: None
    ) -> None:
        self.source, self.target = source, target
        source.setblocking(False)
        target.setblocking(False)
        self._count = count
        self._pipe = Pipe()
        self.extra = b""  # read from the source without the pipe; it is sent after what the pipe holds
        self.has_ended = False

    @property
    def has_unsent(self) -> bool:
        """True if bytes were read from the source that the target did not get yet."""
        return bool(self._pipe.size or self.extra)

    @property
    def awaited(self) -> tuple[int, int]:
        """The descriptor and the event to wait for before bytes can move again."""
        return (self.target.fileno(), select.POLLOUT) if self.has_unsent else (self.source.fileno(), select.POLLIN)

    def advance(self) -> None:
        """Move the bytes that can be moved now."""
        for _ in range(_FILLS_IN_A_ROW):
            if not self.has_unsent:
                filled = self._pipe.fill_from(self.source.fileno())
                if filled == 0:
                    # The source has ended. The target learns it, and may still answer.
                    self.has_ended = True
                    with contextlib.suppress(OSError):  # it is closed already
                        self.target.shutdown(socket.SHUT_WR)
                if not filled:
                    return
            if self._pipe.size:
                size = self._pipe.drain_to(self.target.fileno())
            else:
                try:
                    size = self.target.send(self.extra)
                except BlockingIOError:
                    size = 0
                self.extra = self.extra[size:]
            if not size:
                return
            self._count(size)

    def close(self) -> None:
        self._pipe.close()


def relay(client: BufferedSocket, host: socket.socket, entry: Entry, may_ask_for: Callable[[str], bool]) -> None:
    """Carry everything both ways until both sides have ended, or nothing has moved for long.

    Raises WrongHost unless `may_ask_for` allows the name that a TLS client asks for. A host may want a second client
    hello, in which the client could ask for another host. So what follows the first hello waits for the host's answer.
    """
    with contextlib.closing(_Direction(host, client.socket, entry.count_received)) as to_client:
        if not client.has_buffer and not _carry_directions(to_client, until=client.socket):  # a host may speak first
            return
        buffered_host = BufferedSocket(host, entry)
        if _pass_client_hello(client, buffered_host, may_ask_for) and not to_client.has_ended:
            to_client.extra = answer = _read_first_answer(host, client.socket)
            if answer[:1] == bytes((_HANDSHAKE,)) and answer[:_UP_TO_RANDOM].endswith(_RETRY_REQUEST):
                while to_client.has_unsent:
                    _wait_for(client.socket, select.POLLOUT, _IDLE_S)
                    to_client.advance()
                _pass_client_hello(client, buffered_host, may_ask_for, is_retry=True)
        with contextlib.closing(_Direction(client.socket, host, entry.count_sent)) as to_host:
            to_host.extra = client.take_buffer()
            _carry_directions(to_host, to_client)


def carry(first: socket.socket, second: socket.socket) -> None:
    """Carry any bytes both ways between two sockets until both have ended, or nothing has moved for long."""
    with (
        contextlib.closing(_Direction(first, second)) as to_second,
        contextlib.closing(_Direction(second, first)) as to_first,
    ):
        _carry_directions(to_second, to_first)


def _carry_directions(*directions: _Direction, until: socket.socket | None = None) -> bool:
    """Carry until all directions have ended, or nothing has moved for long, and return False.

    With `until`, carry until that socket can be read or has ended, and return True.
    """
    while (open_directions := [each for each in directions if not each.has_ended]) or until is not None:
        events = {} if until is None else {until.fileno(): select.POLLIN}
        for fd, event in (direction.awaited for direction in open_directions):
            events[fd] = events.get(fd, 0) | event
        poll = select.poll()
        for fd, event in events.items():
            poll.register(fd, event)
        ready = dict(poll.poll(_IDLE_S * 1000))
        if not ready:
            break
        if until is not None and ready.get(until.fileno(), 0) & (select.POLLIN | _ENDED):
            return True
        for direction in open_directions:
            fd, event = direction.awaited
            if ready.get(fd, 0) & (event | _ENDED):
                direction.advance()
    return False
