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

from fumehood.core.hosts import printable_host
from fumehood.core.report import Connection

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
            host=self.host, port=self.port, protocol=self.protocol, allowed=self.allowed,
            reason=printable_host(self.reason),
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
        entry.host, entry.port = printable_host(host), port
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
        self._entry = Entry("") if entry is None else entry
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
            return self.taken()
        self.socket.settimeout(patience_s)
        try:
            data = self.socket.recv(PIECE)
        except TimeoutError as error:
            raise Gone(f"nothing came for {patience_s:g} s") from error
        self._entry.count_received(len(data))
        return data

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

    @property
    def has_read(self) -> bool:
        """Whether something was read and not used."""
        return bool(self._early)

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
            self._entry.count_sent(sent)
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
        early, self._early = self._early[:size], self._early[size:]
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
                self._entry.count_received(filled)
                while pipe.held:
                    emptied = pipe.empty(target.socket.fileno())
                    target._entry.count_sent(emptied)
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


class WrongHost(Exception):
    """A TLS client asked the server for another host than the one it was granted."""


def _pass_first_message(client: Wire, host: Wire, is_right: Callable[[str], bool], *, is_again: bool = False) -> bool:
    """Pass a client's first TLS message on, once it has come whole; False where it speaks no TLS.

    Raises WrongHost where it asks for another host, or can't be read. The one that is said again may come after
    records that were sent too early, which the host does not read.
    """
    data = client.read(IDLE_S)
    client.put_back(data)
    if not data or (data[0] != HANDSHAKE and not is_again):
        return False
    names: list[str | None] = []  # that of the host, once the message is complete; None where it has none

    def named(_server: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # we are not the server, so it ends here

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = named
    incoming = ssl.MemoryBIO()
    server = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    early = message = b""
    while not names:
        try:
            head = client.exactly(_RECORD, time.monotonic() + IDLE_S)
            record = head + client.exactly(int.from_bytes(head[-2:], "big"), time.monotonic() + IDLE_S)
        except Gone as error:
            raise WrongHost("the first TLS message did not come") from error
        if is_again and record[0] != HANDSHAKE:
            early += record
            if len(early) > LONGEST:  # there may be any amount of it
                host.send(early, IDLE_S)
                early = b""
            continue
        incoming.write(record)
        message += record
        try:
            server.do_handshake()
        except ssl.SSLWantReadError:
            if len(message) > LONGEST:
                raise WrongHost("the first message is too long") from None
        except ssl.SSLError as error:
            if not names:
                raise WrongHost(f"no TLS that can be read: {error.reason or error}") from error
    if names[0] is not None and not is_right(names[0]):
        raise WrongHost(f"the TLS client asked for {names[0]} there")
    host.send(early + message, IDLE_S)
    return True


def _answer(host: socket.socket, client: socket.socket) -> bytes:
    """Return what a host says to the first TLS message, at least so much that it tells whether it wants that again."""
    said = b""
    while not said or (said[0] == HANDSHAKE and len(said) < _TELLING):
        poll = select.poll()
        poll.register(host, select.POLLIN)
        poll.register(client, 0)  # whether it is gone
        if not dict(poll.poll(IDLE_S * 1000)).get(host.fileno(), 0) & select.POLLIN:
            break
        data = host.recv(PIECE)
        if not data:
            break
        said += data
    return said


class _Way:
    """One direction: from a socket, through a pipe, into another."""

    def __init__(
        self, source: socket.socket, target: socket.socket, count: Callable[[int], None] = lambda _size: None
    ) -> None:
        self.source, self.target = source, target
        for each in (source, target):
            each.setblocking(False)
        self._count = count
        self._pipe = Pipe()
        self.taken = b""  # from the source by other means: it goes after what the pipe holds
        self.is_over = False

    @property
    def holds(self) -> bool:
        """Whether something was taken from the source and not given to the target."""
        return bool(self._pipe.held or self.taken)

    @property
    def wants(self) -> tuple[int, int]:
        return (self.target.fileno(), select.POLLOUT) if self.holds else (self.source.fileno(), select.POLLIN)

    def advance(self) -> None:
        """Move what can be moved now."""
        for _ in range(_AT_ONCE):
            if not self.holds:
                filled = self._pipe.fill(self.source.fileno())
                if filled == 0:
                    # The source has no more: tell the target, which may still answer.
                    self.is_over = True
                    with contextlib.suppress(OSError):  # it is gone already
                        self.target.shutdown(socket.SHUT_WR)
                if not filled:
                    return
            if self._pipe.held:
                size = self._pipe.empty(self.target.fileno())
            else:
                try:
                    size = self.target.send(self.taken)
                except BlockingIOError:
                    size = 0
                self.taken = self.taken[size:]
            if not size:
                return
            self._count(size)

    def close(self) -> None:
        self._pipe.close()


def relay(client: Wire, host: socket.socket, entry: Entry, is_right: Callable[[str], bool]) -> None:
    """Carry everything both ways until both have ended, or nothing has moved for long.

    Raises WrongHost where `is_right` says so of the name that the client asks for. A host may have the first TLS
    message said again, and a client could then ask for another host. So what follows that message waits for the answer
    to it.
    """
    with contextlib.closing(_Way(host, client.socket, entry.count_received)) as back:
        if not client.has_read and not _carry(back, until=client.socket):  # a host may speak first
            return
        to_host = Wire(host, entry)
        if _pass_first_message(client, to_host, is_right) and not back.is_over:
            back.taken = _answer(host, client.socket)
            if back.taken[:1] == bytes((HANDSHAKE,)) and back.taken[:_TELLING].endswith(_AGAIN):
                while back.holds:
                    _await(client.socket, select.POLLOUT, IDLE_S)
                    back.advance()
                _pass_first_message(client, to_host, is_right, is_again=True)
        with contextlib.closing(_Way(client.socket, host, entry.count_sent)) as there:
            there.taken = client.taken()
            _carry(there, back)


def carry(one: socket.socket, other: socket.socket) -> None:
    """Carry everything both ways, whatever it is, until both have ended or nothing has moved for long."""
    with contextlib.closing(_Way(one, other)) as there, contextlib.closing(_Way(other, one)) as back:
        _carry(there, back)


def _carry(*ways: _Way, until: socket.socket | None = None) -> bool:
    """Carry, at most until a socket has something to say; returns whether it has."""
    while (going := [way for way in ways if not way.is_over]) or until is not None:
        events = {} if until is None else {until.fileno(): select.POLLIN}
        for fd, event in (way.wants for way in going):
            events[fd] = events.get(fd, 0) | event
        poll = select.poll()
        for fd, event in events.items():
            poll.register(fd, event)
        ready = dict(poll.poll(IDLE_S * 1000))
        if not ready:
            break
        if until is not None and ready.get(until.fileno(), 0) & (select.POLLIN | _ENDED):
            return True
        for way in going:
            fd, event = way.wants
            if ready.get(fd, 0) & (event | _ENDED):
                way.advance()
    return False
