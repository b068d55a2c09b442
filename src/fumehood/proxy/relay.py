"""Carry bytes both ways between two connections without touching them: the kernel moves pages through a pipe.

Only what a client says first is looked at, for the host that it asks for by TLS: a tunnel to one host whose client then
asks for another there is how a granted host on a shared server is used to reach one that was not granted. The message
is read by OpenSSL rather than by a parser of ours. Every connection of a run is recorded, in a record that is kept
small whatever the command does.
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

from fumehood.core.hosts import printed
from fumehood.core.network import Connection

MOST = 1000  # lines a run gets; what goes beyond is counted with others of its kind
OTHERS = "(others)"
_OTHER_REASONS = "for one of the reasons above, or another one"


class Entry:
    """One connection while it lasts; filled in by the thread that serves it."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.host, self.port = "", 0
        self.allowed = False
        self.reason = ""
        self.address = ""
        self.sent = self.received = 0
        self.started_at = time.time()
        self._began = self.moved_at = time.monotonic()

    def count_sent(self, size: int) -> None:
        """Count what the command sent."""
        self.sent += size
        self.moved_at = time.monotonic()

    def count_received(self, size: int) -> None:
        """Count what came back."""
        self.received += size
        self.moved_at = time.monotonic()

    def connection(self) -> Connection:
        """Return what is known of it now; a reason may have words of the other side in it, such as a name."""
        return Connection(
            host=self.host, port=self.port, protocol=self.protocol, allowed=self.allowed, reason=printed(self.reason),
            address=self.address, started_at=self.started_at, duration_s=time.monotonic() - self._began,
            sent=self.sent, received=self.received,
        )  # fmt: skip


class ConnectionAudit:
    """All connections of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Entry] = set()
        self._kept: dict[object, Connection] = {}

    def begin(self, protocol: str, host: str = "", port: int = 0) -> Entry:
        """Open an entry."""
        entry = Entry(protocol)
        entry.host, entry.port = printed(host), port
        with self._lock:
            self._open.add(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """Close an entry; a second time means nothing."""
        with self._lock:
            if entry not in self._open:
                return
            self._open.discard(entry)
            one = entry.connection()
            # Refusals repeat: tools try again and again. Connections that were made get a line each, while there is
            # room.
            key: object = (one.host, one.port, one.protocol, one.reason)
            if one.allowed and len(self._kept) < MOST:
                key = object()
            elif key not in self._kept and len(self._kept) >= MOST:
                # Reasons too: there may be a different one for each host.
                one = one.replace(host=OTHERS, port=0, address="", reason=_OTHER_REASONS if one.reason else "")
                key = (OTHERS, one.protocol, one.allowed, one.reason)
            before = self._kept.get(key)
            if before is not None:
                one = before.replace(
                    count=before.count + 1, sent=before.sent + one.sent, received=before.received + one.received,
                    duration_s=before.duration_s + one.duration_s,
                )  # fmt: skip
            self._kept[key] = one

    def connections(self) -> tuple[Connection, ...]:
        """Return all there was, the connections that are still open included, in the order they began."""
        with self._lock:
            connections = [*self._kept.values(), *(entry.connection() for entry in self._open)]
        return tuple(sorted(connections, key=lambda connection: connection.started_at))


SMALL, LARGE = 64 << 10, 1 << 20  # what every pipe has, and what one may have without privilege
_BUSY = 256 << 10  # bytes after which a pipe is worth more room
_F_SETPIPE_SZ = 1031
PIECE = 1 << 16
_LAST_WORD_S = 2.0
HANDSHAKE = 0x16
LONGEST = 1 << 16  # bytes; with a hybrid key exchange and many extensions, a real one has 2 KiB
_RECORD = 5  # bytes in front of what a record of TLS holds
# What a host's answer has in place of 32 bytes of chance where it wants the first message again (RFC 8446, 4.1.3).
_AGAIN = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_TELLING = _RECORD + 6 + len(_AGAIN)
IDLE_S = 900.0
_AT_ONCE = 16  # times a pipe is filled before the other direction has its turn
_ENDED = select.POLLHUP | select.POLLERR  # told of whether asked for or not
_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
# All pipes of a user together may have 64 MiB, and those made beyond that are tiny, other programs' too.
_roomy = threading.BoundedSemaphore(32)


class Pipe:
    """A pipe between two connections that don't block; `held` is what was taken from one and not given to the other."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._size = SMALL
        self._moved = 0
        self.held = 0

    def fill(self, source: int, most: int = LARGE) -> int | None:
        """Take in what is there, when all was given away before; 0 at its end, None if nothing is there yet."""
        if self._moved > _BUSY and self._size == SMALL:
            self._moved = 0
            if _roomy.acquire(blocking=False):
                self._size = LARGE
                # Refused where this user has many pipes already; a small one works too.
                with contextlib.suppress(PermissionError):
                    fcntl.fcntl(self._writing, _F_SETPIPE_SZ, LARGE)
        try:
            self.held = os.splice(source, self._writing, min(most, self._size), flags=_FLAGS)
        except BlockingIOError:
            return None
        return self.held

    def empty(self, target: int) -> int:
        """Give away what the target takes now; returns how much that was."""
        try:
            size = os.splice(self._reading, target, self.held, flags=_FLAGS)
        except BlockingIOError:
            return 0
        self.held -= size
        self._moved += size
        return size

    def close(self) -> None:
        """Close it, with what may still be in it."""
        os.close(self._reading)
        os.close(self._writing)
        if self._size == LARGE:
            _roomy.release()


def readable(descriptors: Sequence[int], patience_s: float | None) -> set[int]:
    """Wait until one of these can be read, or has ended; not by select, which fails from descriptor 1024 on."""
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if patience_s is None else patience_s * 1000)}


def send_at_once(connection: socket.socket) -> None:
    """Let what goes over loopback wait for no timer, as it does where the host prefers BBR; of a listener, for all."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


_TICK_S = 0.02  # more than the kernel's clock for this may be off
_LAST_HEARD = struct.Struct("=52xI")  # in what the kernel tells of a connection: milliseconds since data came


class Gone(Exception):
    """The other side closed the connection, or took too long."""


class EndedEarly(Gone):
    """Whoever was to send more has closed the connection, took too long, or sent what can't be read."""


class Wire:
    """A connection whose next bytes may have been read already; with an entry, what goes over it is counted there."""

    def __init__(self, connection: socket.socket, entry: Entry | None = None) -> None:
        self.socket = connection
        self._entry = entry
        self._early = b""
        self.hear: Callable[[], None] | None = None  # called where the other side says something and takes nothing

    @property
    def is_closed(self) -> bool:
        """Whether the other side will say nothing more than what has come already."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def was_left_before(self, moment: float) -> bool:
        """Whether the other side has closed it, and said all it said before a point of the monotonic clock."""
        if not self.is_closed:
            return False
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_HEARD.size)
        milliseconds: int = _LAST_HEARD.unpack(info)[0]
        return time.monotonic() - milliseconds / 1000 < moment + _TICK_S

    def read(self, patience_s: float) -> bytes:
        """Return the next bytes, none at the end; raises Gone where nothing comes in time."""
        if self._early:
            data, self._early = self._early, b""
            return data
        self.socket.settimeout(patience_s)
        try:
            data = self.socket.recv(PIECE)
        except TimeoutError as error:
            raise Gone(f"nothing came for {patience_s:g} s") from error
        self._count_received(len(data))
        return data

    def _count_sent(self, size: int) -> None:
        if self._entry is not None:
            self._entry.count_sent(size)

    def _count_received(self, size: int) -> None:
        if self._entry is not None:
            self._entry.count_received(size)

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
        """Send all of it; raises Gone where nothing of it is taken for long."""
        self.socket.setblocking(False)
        rest = memoryview(data)
        while rest:
            try:
                sent = self.socket.send(rest)
            except BlockingIOError:
                self.await_room(patience_s)
                self.socket.setblocking(False)  # it may have been heard
                continue
            self._count_sent(sent)
            rest = rest[sent:]

    def await_room(self, patience_s: float) -> None:
        """Wait until the other side takes something, or says something."""
        event = _await(self.socket, select.POLLOUT | (select.POLLIN if self.hear else 0), patience_s)
        if self.hear is not None and event & select.POLLIN and not event & select.POLLOUT:
            self.hear()

    def part_with(self, data: bytes) -> None:
        """Say the last word, and listen a little: closed at once, what is still coming in would make it be lost."""
        self.send(data, _LAST_WORD_S)
        deadline = time.monotonic() + _LAST_WORD_S
        with contextlib.suppress(OSError, Gone):
            self.socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and self.read(_LAST_WORD_S):
                pass

    def move(self, target: Wire, size: int, patience_s: float) -> None:
        """Pass on exactly so many bytes, those not read yet without touching them; raises EndedEarly."""
        taken = self.taken()
        self.put_back(taken[size:])
        early = taken[:size]
        if early:
            target.send(early, patience_s)
        left = size - len(early)
        if not left:
            return
        self.socket.setblocking(False)
        target.socket.setblocking(False)
        with contextlib.closing(Pipe()) as pipe:
            while left:
                filled = self._fill(pipe, left, patience_s)
                left -= filled
                self._count_received(filled)
                while pipe.held:
                    emptied = pipe.empty(target.socket.fileno())
                    target._count_sent(emptied)
                    if not emptied:
                        target.await_room(patience_s)
                        target.socket.setblocking(False)  # it may have been heard

    def _fill(self, pipe: Pipe, most: int, patience_s: float) -> int:
        try:
            while (filled := pipe.fill(self.socket.fileno(), most)) is None:
                _await(self.socket, select.POLLIN, patience_s)
        except (Gone, OSError) as error:
            raise EndedEarly("the connection was closed early") from error
        if not filled:
            raise EndedEarly("the connection was closed early")
        return filled


def _await(connection: socket.socket, event: int, patience_s: float) -> int:
    poll = select.poll()
    poll.register(connection, event)
    ready = poll.poll(patience_s * 1000)
    if not ready:
        raise Gone(f"nothing moved for {patience_s:g} s")
    return ready[0][1]


class NotUnderstood(Exception):
    """It begins like TLS but is none that OpenSSL can read."""


class Hello:
    """A client's first message while it comes in."""

    def __init__(self) -> None:
        self._incoming = ssl.MemoryBIO()
        self.is_complete = False
        self.server_name: str | None = None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._named
        self._server = context.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)
        self._size = 0

    def _named(self, _server: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        self.is_complete, self.server_name = True, name
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # we are not the server, so it ends here

    def feed(self, data: bytes) -> bool:
        """Take in a piece; returns True once the message is complete. Raises NotUnderstood."""
        self._size += len(data)
        self._incoming.write(data)
        try:
            self._server.do_handshake()
        except ssl.SSLWantReadError:
            if self._size > LONGEST:
                raise NotUnderstood("the first message is too long") from None
        except ssl.SSLError as error:
            if not self.is_complete:
                raise NotUnderstood(f"no TLS that can be read: {error.reason or error}") from error
        return self.is_complete


class WrongHost(Exception):
    """A TLS client asked the server for another host than the one it was granted."""


class _Way:
    """One direction: from a socket, through a pipe, into another."""

    def __init__(
        self, source: socket.socket, target: socket.socket, count: Callable[[int], None] = lambda _size: None
    ) -> None:
        self.source, self.target = source, target
        for each in (source, target):
            each.setblocking(False)
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

    def _send_first(self) -> None:
        if self._first:
            with contextlib.suppress(BlockingIOError):
                sent = self.target.send(self._first)
                self._first = self._first[sent:]
                self._count(sent)

    def advance(self) -> None:
        """Move what can be moved now."""
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
            size = pipe.empty(target)
            if not size:
                return
            self._count(size)

    def finish(self) -> None:
        """The source has no more: tell the target, which may still answer."""
        self.is_over = True
        with contextlib.suppress(OSError):  # it is gone already
            self.target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


class _Judged(_Way):
    """The client's direction: nothing goes before it is known that the right host is asked for.

    A host may have the first TLS message said again, and a client could then ask for another host. So what follows that
    message waits for the answer to it.
    """

    def __init__(
        self, client: socket.socket, host: socket.socket, count: Callable[[int], None], is_right: Callable[[str], bool]
    ) -> None:
        super().__init__(client, host, count)
        self._is_right = is_right
        self._is_judged = self._is_again = False
        self._said = b""
        self._hello: Hello | None = None
        self._records: list[bytes] = []  # of the first message, as far as they have come
        self.awaits_answer = self.expects_none = False

    @property
    def wants(self) -> tuple[int, int]:
        """The descriptor to poll, and for what."""
        fd, event = super().wants
        return fd, 0 if self.awaits_answer and not self._first else event

    def advance(self) -> None:
        """Move what can be moved now; raises WrongHost."""
        if self._is_judged:
            super().advance()
        elif self._first:
            self._send_first()
        elif self.awaits_answer:
            self.finish()  # the client is gone
        else:
            self._listen()

    def _listen(self) -> None:
        try:
            data = self.source.recv(PIECE)
        except BlockingIOError:
            return
        if data:
            self.take(data)
        elif self._said or self._records:
            raise WrongHost("the first TLS message did not come")
        else:
            self.finish()

    def take(self, data: bytes) -> None:
        """Look at a piece of what is said first."""
        self._said += data
        if not self._is_again and self._said[0] != HANDSHAKE:
            self._pass_on()
        while not self._is_judged and not self.awaits_answer and len(self._said) >= _RECORD:
            size = _RECORD + int.from_bytes(self._said[_RECORD - 2 : _RECORD], "big")
            if len(self._said) < size:
                return
            record, self._said = self._said[:size], self._said[size:]
            if self._is_again and record[0] != HANDSHAKE:
                self._first += record  # said too early, and not read by the host
            else:
                self._look_at(record)

    def _look_at(self, record: bytes) -> None:
        self._hello = self._hello or Hello()
        self._records.append(record)
        try:
            if not self._hello.feed(record):
                return
        except NotUnderstood as error:
            raise WrongHost(str(error)) from error
        name = self._hello.server_name
        if name is not None and not self._is_right(name):
            raise WrongHost(f"the TLS client asked for {name} there")
        self._first += b"".join(self._records)
        self._hello, self._records = None, []
        if self._is_again or self.expects_none:
            self._pass_on()
        else:
            self.awaits_answer = True

    def _pass_on(self) -> None:
        self._is_judged, self._first, self._said = True, self._first + self._said, b""

    def hear(self, *, is_again: bool) -> None:
        """Take in that the host has answered, maybe that it wants the first message again; raises WrongHost."""
        self.awaits_answer, self._is_again = False, is_again
        if not is_again:
            self._pass_on()
        elif self._said:
            self.take(b"")


class _Answer(_Way):
    """The host's direction, which is listened to for one thing: that it wants the first TLS message again."""

    def __init__(self, host: socket.socket, asked: _Judged, count: Callable[[int], None]) -> None:
        super().__init__(host, asked.source, count)
        self._asked = asked
        self._heard = b""

    def advance(self) -> None:
        """Move what can be moved now; raises WrongHost."""
        if not self._asked.awaits_answer or self._first or self._pipe.held:
            super().advance()
            return
        try:
            data = self.source.recv(PIECE)
        except BlockingIOError:
            return
        self._heard += data
        begins, is_tls = self._heard[:_TELLING], self._heard[:1] == bytes((HANDSHAKE,))
        if not data or not is_tls or len(begins) == _TELLING:
            self._first, self._heard = self._heard, b""
            self._asked.hear(is_again=is_tls and begins.endswith(_AGAIN))

    def finish(self) -> None:
        """The host says nothing more."""
        super().finish()
        self._asked.expects_none = True


def relay(
    client: socket.socket, host: socket.socket, early: bytes, entry: Entry, is_right: Callable[[str], bool]
) -> None:
    """Carry everything both ways until both have ended, or nothing has moved for long.

    `early` is what the client said already. Raises WrongHost where `is_right` says so of the name it asks for.
    """
    upwards = _Judged(client, host, entry.count_sent, is_right)
    with contextlib.closing(upwards), contextlib.closing(_Answer(host, upwards, entry.count_received)) as back:
        if early:
            upwards.take(early)
        _carry(upwards, back)


def carry(one: socket.socket, other: socket.socket) -> None:
    """Carry everything both ways, whatever it is, until both have ended or nothing has moved for long."""
    with contextlib.closing(_Way(one, other)) as there, contextlib.closing(_Way(other, one)) as back:
        _carry(there, back)


def _carry(*ways: _Way) -> None:
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
