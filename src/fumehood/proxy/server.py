"""Serve one run's connections: a thread that accepts, and one for each connection while it lasts.

Threads, because each spends its time in the kernel, where Python's lock is not held, and because resolving
names blocks. They end with the run. Clients speak HTTP or SOCKS5 (RFC 1928), or know no proxy: these ask us for names,
and each gets an address that leads to us, so that nobody outside is asked. What such a program then connects to is
judged like any other request, by its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from fumehood.core.hosts import LOOPBACK_NAMES, Hosts, as_address, canonical_host, port_number, printable_host
from fumehood.core.report import CONNECT, FORWARD, NOT_GRANTED, SOCKS5, Connection
from fumehood.proxy import http
from fumehood.proxy.neighbours import Neighbours
from fumehood.proxy.reach import Denied, Outbound, Unreachable
from fumehood.proxy.relay import ConnectionAudit, Entry, Gone, Wire, WrongHost, readable, relay, send_at_once

Target = tuple[str, int] | None  # what a listener leads to; none is the proxy's own

MOST_CONNECTIONS = 64  # each has six descriptors, of the 1,024 that a program may often have
_GREETING_S = 30.0
_STALLED_S, _AFTERWARDS_S = 10.0, 60.0  # how long a host may take nothing, and all of them go on, after the command
_CUT_OFF = "the host took no more of what was sent, and the rest was cut off"
_GIVEN_UP_S = 2.0  # without a byte: then a client that has ended its side does not listen any more, it seems
_LISTENERS = 250  # descriptors that one message can carry
_LARGEST_QUERY = 512
_ANY = "0.0.0.0"  # noqa: S104 - of a namespace that only commands are in
_BY_ADDRESS = ("", 0)  # the host is told by the address that was connected to


# Of what the kernel tells of a connection: segments that were not confirmed, bytes that were, and bytes not sent yet.
_PROGRESS = struct.Struct("=24xI92xQ16xI")


class _Served:
    """One client's connection, and the one to a host that it has now."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.host: socket.socket | None = None
        self.entry: Entry | None = None
        self.is_given_up = False

    @property
    def given_up_s(self) -> float:
        """For how long nothing has moved for a client that will say nothing more; 0 is not at all."""
        if self.host is None or self.entry is None or self.is_given_up or not Wire(self.client).is_closed:
            return 0.0
        return time.monotonic() - self.entry.moved_at

    def arrived_and_not(self) -> tuple[int, int]:
        """Return how much the host has confirmed so far, and whether it has not confirmed everything."""
        if self.host is None:
            return 0, 0
        try:
            info = self.host.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 148)
        except OSError:
            return 0, 0  # it was closed
        unconfirmed, confirmed, unsent = _PROGRESS.unpack(info)
        return confirmed, unconfirmed + unsent

    def expect_nothing(self) -> None:
        """Wait no longer for what the host says; what it is to be sent still is."""
        if self.host is not None:
            _shut(self.host, socket.SHUT_RD)

    def cut_off(self) -> None:
        """End it, so that the host does not take what it has for everything."""
        if self.host is not None:
            if self.entry is not None and self.arrived_and_not()[1]:
                self.entry.reason = _CUT_OFF
            _reset_at_close(self.host)
            _shut(self.host, socket.SHUT_RDWR)
        _shut(self.client, socket.SHUT_RDWR)


class Proxy:
    """The way out for one run: what it may reach is `hosts`; everything else is refused and recorded.

    With `refusal`, a connection to another host waits while that is called; what it returns is why it is refused.
    `forwards` are hosts and ports of which the command has a listener of its own inside, besides the proxy's. For
    programs that know no proxy there are `direct` more, at addresses that stand for names, and then, for `resolvers`
    times, a socket where those names are asked for.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        forwards: Sequence[tuple[str, int]] = (),
        refusal: Callable[[str], str] | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        direct: int = 0,
        resolvers: int = 0,
    ) -> None:
        self._reach = Outbound(Hosts(hosts), environment, refusal)
        self._targets: list[Target] = [None, *forwards, *([_BY_ADDRESS] * direct)]
        self._resolvers = resolvers
        self._neighbours: Neighbours | None = None
        self._places: dict[tuple[str, int], Target] = {}  # by where we are connected to, in a session
        self._names = Names()
        self.audit = ConnectionAudit()
        self._wake, self._waking = os.pipe()
        self._stopping, self._is_over = threading.Event(), threading.Event()
        self._slots = threading.Semaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._live: dict[threading.Thread, _Served] = {}
        self._thread: threading.Thread | None = None

    def start(self, channel: socket.socket) -> None:
        """Begin, with the listeners that the launcher will send on a channel."""
        self._thread = threading.Thread(target=self._serve, args=(channel,), name="fumehood-proxy", daemon=True)
        self._thread.start()

    def share(
        self, sockets: Sequence[socket.socket], places: Sequence[tuple[str, int]], neighbours: Neighbours
    ) -> None:
        """Begin, with listeners that the proxies of a session share; `places` are those that are meant for us."""
        self._neighbours = neighbours
        self._places = dict(zip(places, self._targets, strict=True))
        self._names = Names(neighbours.names)
        targets = {
            each: self._places[place] for each in sockets
            if each.type == socket.SOCK_STREAM and (place := each.getsockname()[:2]) in self._places
        }  # fmt: skip
        self._thread = threading.Thread(
            target=self._accept, args=(sockets, targets), name="fumehood-proxy", daemon=True
        )
        self._thread.start()

    def stop(self, patience_s: float = 2.0) -> tuple[Connection, ...]:
        """End it once nothing is left to be sent, and return every connection there was.

        The command is gone, so no answer is waited for. Who does neither send nor end is given `patience_s`.
        """
        self._stopping.set()
        os.write(self._waking, b"x")
        if self._thread is not None:
            self._thread.join()
        for served in self._live.copy().values():
            served.expect_nothing()
        self._await_the_rest(patience_s)
        self._is_over.set()
        left = self._live.copy()
        for served in left.values():
            served.cut_off()
        deadline = time.monotonic() + 0.5
        for thread in left:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._neighbours is not None:
            self._neighbours.close()
        connections = self.audit.connections()
        os.close(self._wake)
        os.close(self._waking)
        return connections

    def _await_the_rest(self, patience_s: float) -> None:
        """Wait for all connections to end, as long as something of what was sent still arrives."""
        began = since = time.monotonic()
        before: list[tuple[int, int]] = []
        while (live := self._live.copy()) and time.monotonic() - began < _AFTERWARDS_S:
            amounts = [served.arrived_and_not() for served in live.values()]
            if amounts != before:
                before, since = amounts, time.monotonic()
            is_sending = any(waiting for _, waiting in amounts)
            if time.monotonic() - since > (max(patience_s, _STALLED_S) if is_sending else patience_s):
                return
            next(iter(live)).join(0.05)

    def _serve(self, channel: socket.socket) -> None:
        with channel:
            descriptors = socket.recv_fds(channel, 1, _LISTENERS)[1] if self._ready([channel.fileno()]) else []
        if descriptors:
            listeners = [socket.socket(fileno=fd) for fd in descriptors]
            accepting = listeners[: len(listeners) - self._resolvers]
            self._accept(listeners, dict(zip(accepting, self._targets, strict=True)))

    def _ready(self, descriptors: Sequence[int]) -> set[int]:
        """Wait until one of these is readable; none is, once the end has come."""
        ready = readable([self._wake, *descriptors], None)
        return set() if self._stopping.is_set() else ready

    def _accept(self, sockets: Sequence[socket.socket], targets: Mapping[socket.socket, Target]) -> None:
        """Take in what comes, and close them all in the end.

        Those that have no target are asked for names, which waits for no slot.
        """
        for each in sockets:
            each.setblocking(False)
        resolvers = [each for each in sockets if each not in targets]
        naming = threading.Thread(target=self._answer, args=(resolvers,), name="fumehood-proxy-names", daemon=True)
        if resolvers:
            naming.start()
        try:
            for each in targets:
                send_at_once(each)
            self._take_in_all(sockets, targets)
        finally:
            if resolvers:
                naming.join()
            if self._neighbours is not None:
                self._neighbours.withdraw()
            for each in sockets:
                each.close()

    def _take_in_all(self, sockets: Sequence[socket.socket], targets: Mapping[socket.socket, Target]) -> None:
        descriptors = [each.fileno() for each in targets]
        if self._neighbours is not None:
            descriptors.append(self._neighbours.fileno())
        while ready := self._ready(descriptors):
            self._hear(sockets)
            for each in targets:
                if each.fileno() in ready:
                    while not self._has_slot():
                        if self._stopping.is_set():
                            return
                        self._hear(sockets)
                    self._take_in(each, targets[each])

    def _has_slot(self) -> bool:
        """Take a slot, if there is one soon; one who seems to have gone makes room: no answer is waited for any more.

        What they sent still goes to the host. Whoever closed a connection looks like one who has only said everything
        and listens, so it is done only where another one waits.
        """
        if self._slots.acquire(blocking=False):
            return True
        with self._lock:
            served = max(self._live.values(), key=lambda each: each.given_up_s, default=None)
            if served is not None and served.given_up_s > _GIVEN_UP_S:
                served.is_given_up = True
                served.expect_nothing()
        return self._slots.acquire(timeout=0.2)

    def _take_in(self, listener: socket.socket, target: Target) -> None:
        """Accept a connection, for which there is a slot."""
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            self._slots.release()  # another proxy of the session has it
        except OSError:
            # It was withdrawn, or we are out of descriptors: the next one may fare better.
            self._slots.release()
            time.sleep(0.01)
        else:
            self._begin(client, target)

    def _begin(self, client: socket.socket, target: Target, *, is_ours: bool = False) -> None:
        thread = threading.Thread(
            target=self._attend, args=(client, target, is_ours), name="fumehood-proxied", daemon=True
        )
        with self._lock:
            self._live[thread] = _Served(client)
        thread.start()

    def _answer(self, resolvers: Sequence[socket.socket]) -> None:
        """Answer those who ask for names."""
        by_descriptor = {each.fileno(): each for each in resolvers}
        while ready := self._ready(list(by_descriptor)):
            for resolver in map(by_descriptor.__getitem__, ready):
                with contextlib.suppress(OSError):
                    query, client_address = resolver.recvfrom(_LARGEST_QUERY)
                    is_refused = self._neighbours is not None and not self._neighbours.asker(client_address[1])
                    reply = self._names.answer(query, is_refused=is_refused)
                    if reply is not None:
                        resolver.sendto(reply, client_address)

    def _hear(self, sockets: Sequence[socket.socket]) -> None:
        """Take in what another proxy of the session has for us."""
        client = None if self._neighbours is None else self._neighbours.hear(sockets)
        if client is None:
            return
        place = client.getsockname()[:2]
        place = place if place in self._places else (_ANY, place[1])
        if place not in self._places:
            self._refuse(client)
            client.close()
        elif self._has_slot():
            self._begin(client, self._places[place], is_ours=True)
        else:
            client.close()

    def _attend(self, client: socket.socket, target: Target, is_ours: bool) -> None:
        """Serve one connection, whatever comes over it."""
        try:
            if self._neighbours is not None and not is_ours:
                run = self._neighbours.maker(client)
                if run != self._neighbours.run:
                    if run:
                        self._neighbours.hand_over(client, run)
                    return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target is None:
                self._greet(Wire(client))
                return
            host, port = target
            if target == _BY_ADDRESS:
                address, port = client.getsockname()[:2]
                host = self._names.host(address) or ""
            if host:
                self._tunnel(Wire(client), FORWARD, host, port, say=lambda _error: b"")
            else:
                self._refuse(client)  # we listen at every address, and this one stands for no name
        except (OSError, Gone):
            pass  # one side is gone; how far it came is in the record
        finally:
            with self._lock:
                served = self._live.pop(threading.current_thread())
            served.client.close()
            if served.host is not None:
                served.host.close()
            self._slots.release()

    def _refuse(self, client: socket.socket) -> None:
        """Have a connection reset, as near to a refusal as can be once it was accepted, and record it."""
        entry = self.audit.begin(FORWARD, *client.getsockname()[:2])
        entry.reason = NOT_GRANTED
        self.audit.end(entry)
        _reset_at_close(client)

    def _track(self, connection: socket.socket, entry: Entry) -> None:
        with self._lock:
            served = self._live[threading.current_thread()]
            served.host, served.entry = connection, entry
        if self._stopping.is_set():
            served.expect_nothing()
        if self._is_over.is_set():
            raise Gone("the command had ended")

    def _greet(self, client: Wire) -> None:
        """Serve what the client speaks, HTTP or SOCKS5, by the first byte."""
        deadline = time.monotonic() + _GREETING_S
        first = client.exactly(1, deadline)
        if first[0] != _VERSION:
            client.put_back(first)
            asked = http.ProxyConnection(client, self._reach, self.audit, self._track).serve()
            if asked is not None:
                self._tunnel(
                    client, CONNECT, *asked,
                    say=lambda error: http.ESTABLISHED if error is None else http.failure(*asked, error),
                )  # fmt: skip
            return
        try:
            host, port = _socks_request(client, deadline)
        except BadSocks as error:
            entry = self.audit.begin(SOCKS5, error.host, error.port)
            entry.reason = str(error)
            self.audit.end(entry)
            client.send(error.reply, _GREETING_S)
            return
        codes = {type(None): _GRANTED, Denied: _NOT_ALLOWED, Unreachable: _UNREACHABLE}
        self._tunnel(client, SOCKS5, host, port, say=lambda error: _socks_answer(codes[type(error)]))

    def _tunnel(
        self, client: Wire, protocol: str, host: str, port: int, say: Callable[[Denied | Unreachable | None], bytes]
    ) -> None:
        """Connect a client with a host, if it may be; `say` gives the words for what became of it."""
        entry = self.audit.begin(protocol)
        try:
            self._reach.judge(entry, host, port, client)
            connection, _ = self._reach.connect(entry, host, port, tls=True)
            self._track(connection, entry)
            client.send(say(None), _GREETING_S)
            relay(client, connection, entry, lambda name: self._is_asked(name, host, port))
        except WrongHost as error:
            entry.allowed, entry.reason = False, str(error)
        except Gone as error:
            entry.reason = str(error)
        except (Denied, Unreachable) as error:
            entry.reason = str(error)
            client.part_with(say(error))
        finally:
            self.audit.end(entry)

    def _is_asked(self, name: str, host: str, port: int) -> bool:
        """Return True if the host that a TLS client asks for is the one it was granted."""
        try:
            wanted = canonical_host(name)
        except ValueError:
            return False
        # Whoever was granted an address may ask there for hosts that were granted too.
        is_address = host[-1].isdigit() or ":" in host
        return wanted == host or (is_address and self._reach.hosts.allow(wanted, port))


def _shut(connection: socket.socket, side: int) -> None:
    with contextlib.suppress(OSError):  # it is closed, or was never connected
        connection.shutdown(side)


def _reset_at_close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# SOCKS5, the server's side: CONNECT by name or address, without a login.
_VERSION = 5
_NO_LOGIN, _NONE_ACCEPTABLE = 0, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GRANTED, _SOCKS_FAILED, _NOT_ALLOWED, _UNREACHABLE, _BAD_COMMAND, _BAD_ADDRESS = 0, 1, 2, 4, 7, 8


class BadSocks(Exception):
    """The client said something that can't be answered with a connection; `reply` tells it, where one is due."""

    def __init__(self, message: str, reply: bytes, host: str = "", port: int = 0) -> None:
        super().__init__(message)
        self.reply = reply
        self.host, self.port = host, port


def _socks_answer(code: int) -> bytes:
    return bytes((_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


def _socks_request(client: Wire, deadline: float) -> tuple[str, int]:
    """Read a greeting, whose first byte was read already, and a request; return the host and port it asks for.

    Raises BadSocks.
    """

    def exactly(size: int) -> bytes:
        return client.exactly(size, deadline)

    methods = exactly(exactly(1)[0])
    if _NO_LOGIN not in methods:
        raise BadSocks("the client insists on a login", bytes((_VERSION, _NONE_ACCEPTABLE)))
    client.send(bytes((_VERSION, _NO_LOGIN)), _GREETING_S)
    version, command, _, kind = exactly(4)
    if version != _VERSION:
        raise BadSocks("this is not SOCKS5", _socks_answer(_SOCKS_FAILED))
    if kind == _NAME:
        raw = exactly(exactly(1)[0]).decode("utf-8", "surrogateescape")
    elif kind == _IPV4:
        raw = str(ipaddress.IPv4Address(exactly(4)))
    elif kind == _IPV6:
        raw = str(ipaddress.IPv6Address(exactly(16)))
    else:
        raise BadSocks("the kind of address is unknown", _socks_answer(_BAD_ADDRESS))
    port = int.from_bytes(exactly(2), "big")
    if command != _CONNECT:
        answer = _socks_answer(_BAD_COMMAND)
        raise BadSocks("only CONNECT is served, not BIND or UDP", answer, printable_host(raw), port)
    try:
        return canonical_host(raw), port_number(str(port))
    except ValueError as error:
        what = printable_host(raw)
        raise BadSocks(f"{what!r} is no host: {error}", _socks_answer(_NOT_ALLOWED), what, port) from error


# Names for programs that know no proxy. Parsed is only a question of one name, as resolvers send it.
FIRST = ipaddress.IPv4Address("198.18.0.2")  # the range for tests between networks, of which there are none inside
_MOST = 65_000
_HEAD = struct.Struct(">HHHHHH")
_A_RECORD = 1
_FAILED, _NO_SUCH_NAME, _REFUSED = 2, 3, 5
_TTL_S = 30


class Names:
    """The names one run, or one session, has asked for, with the address that stands for each.

    Those of a session are in a file that its proxies share: the number of each is that of its line.
    """

    def __init__(self, file: int = -1) -> None:
        self._lock = threading.Lock()
        self._file = file
        self._rest, self._read_to = b"", 0  # what stands there after the last whole line, and up to where it was read
        self._hosts: list[str] = []
        self._numbers: dict[str, int] = {}

    def host(self, address: str) -> str | None:
        """Return the name that an address was given for."""
        parsed = as_address(address)
        number = -1 if parsed is None else int(parsed) - int(FIRST)
        if self._file >= 0 and number >= len(self._hosts):
            with self._lock:
                self._catch_up()
        return self._hosts[number] if 0 <= number < len(self._hosts) else None

    def answer(self, query: bytes, *, is_refused: bool = False) -> bytes | None:
        """Return the answer to a resolver's question, or None to what is none."""
        try:
            number, flags, questions, *_ = _HEAD.unpack_from(query)
            name, end = _name(query, _HEAD.size)
            kind, _ = struct.unpack_from(">HH", query, end)
        except (struct.error, IndexError, UnicodeDecodeError):
            return None
        if flags & 0x8000 or questions != 1:
            return None
        code, address = (_REFUSED, None) if is_refused else self._looked_up(name, kind)
        record = b"" if address is None else b"\xc0\x0c" + struct.pack(">HHIH", _A_RECORD, 1, _TTL_S, 4) + address
        head = _HEAD.pack(number, 0x8180 | (flags & 0x0100) | code, 1, 1 if record else 0, 0, 0)
        return head + query[_HEAD.size : end + 4] + record

    def _looked_up(self, name: str, kind: int) -> tuple[int, bytes | None]:
        try:
            host = canonical_host(name)
        except ValueError:
            return _NO_SUCH_NAME, None
        last = host.rpartition(".")[2]
        if as_address(host) is not None or host in LOOPBACK_NAMES or last in ("localhost", "arpa"):
            return _NO_SUCH_NAME, None
        if kind != _A_RECORD:
            return 0, None  # it exists, and has none of these
        with self._lock:
            if host not in self._numbers:
                self._add(host)
            place = self._numbers.get(host)
            return (_FAILED, None) if place is None else (0, (FIRST + place).packed)

    def _add(self, host: str) -> None:
        """Give a name a number, unless another proxy did so meanwhile, or there are too many."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._catch_up()
            if host in self._numbers or len(self._hosts) >= _MOST:
                return
            if self._file >= 0:
                # After what one that died may have left of its line.
                os.pwrite(self._file, (b"\n" if self._rest else b"") + f"{host}\n".encode(), self._read_to)
                self._catch_up()
            else:
                self._numbers[host] = len(self._hosts)
                self._hosts.append(host)
        finally:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        while self._file >= 0 and (piece := os.pread(self._file, 1 << 16, self._read_to)):
            self._read_to += len(piece)
            *whole, self._rest = (self._rest + piece).split(b"\n")
            for line in whole:
                self._numbers.setdefault(line.decode(), len(self._hosts))
                self._hosts.append(line.decode())


def _name(query: bytes, at: int) -> tuple[str, int]:
    labels = []
    while size := query[at]:
        label = query[at + 1 : at + 1 + size]
        # No pointers: a question is the first thing in its message.
        if size > 63 or len(label) < size or b"." in label:
            raise IndexError(at)
        labels.append(label.decode("ascii"))
        at += 1 + size
    return ".".join(labels), at + 1
