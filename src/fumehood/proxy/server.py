"""Serve the connections of one run: one thread accepts them, and each connection has a thread while it lasts.

A thread spends its time in the kernel, where it does not hold Python's lock; and to resolve a name blocks. The threads
end with the run.

Clients speak HTTP or SOCKS5 (RFC 1928), or know no proxy. Programs that know no proxy ask us for names, so that nobody
outside is asked. Each name gets an address that leads to us. When such a program connects to one, the connection is
judged by the name, like any other request.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from fumehood.core.hosts import Hosts, canonical_host, port_number, printable_host
from fumehood.core.report import CONNECT, FORWARD, NOT_GRANTED, SOCKS5, Connection
from fumehood.proxy import http
from fumehood.proxy.connections import ConnectionAudit, Entry
from fumehood.proxy.names import Names
from fumehood.proxy.neighbours import Endpoint, Neighbours
from fumehood.proxy.reach import Denied, Outbound, Unreachable
from fumehood.proxy.relay import (
    BufferedSocket,
    Disconnected,
    WrongHost,
    disable_pacing,
    relay,
    wait_until_readable,
)

Target = Endpoint | None  # the host and port that a listener leads to; None for the listener of the proxy itself

MOST_CONNECTIONS = 64  # each has six descriptors, and a program may often have 1,024
_GREETING_S = 30.0
_STALLED_S = 10.0  # after the command's end, a host may take nothing for so long
_AFTER_COMMAND_S = 60.0  # after the command's end, all connections together may go on for so long
_CUT_OFF = "the host took no more of what was sent, and the rest was cut off"
_GIVEN_UP_S = 2.0  # if nothing moves for so long, a client that closed its sending side has probably gone
_MOST_DESCRIPTORS = 250  # that one message can carry
_LARGEST_QUERY = 512
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - of a namespace that only commands are in
_BY_ADDRESS = ("", 0)  # a target: the host is the one for whose name the client's destination address stands

# In the kernel's TCP_INFO: segments that were not confirmed, bytes that were, and bytes not sent yet.
_PROGRESS = struct.Struct("=24xI92xQ16xI")


class _ServedClient:
    """One client's connection, and its present connection to a host."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.host: socket.socket | None = None
        self.entry: Entry | None = None
        self.is_given_up = False

    @property
    def idle_s(self) -> float:
        """For how long nothing has moved, if the client will send nothing more and was not given up yet; else 0."""
        if self.host is None or self.entry is None or self.is_given_up or not BufferedSocket(self.client).is_closed:
            return 0.0
        return time.monotonic() - self.entry.moved_at

    def progress(self) -> tuple[int, int]:
        """Return how many bytes the host has confirmed, and a number that is 0 if it has confirmed everything."""
        if self.host is None:
            return 0, 0
        try:
            info = self.host.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 148)
        except OSError:
            return 0, 0  # it was closed
        unconfirmed, confirmed, unsent = _PROGRESS.unpack(info)
        return confirmed, unconfirmed + unsent

    def stop_listening_to_host(self) -> None:
        """Wait for no more of the host's answer; the host still gets what the client sent."""
        if self.host is not None:
            _shut(self.host, socket.SHUT_RD)

    def cut_off(self) -> None:
        """End it by a reset, so that the host does not take what it has for the whole."""
        if self.host is not None:
            if self.entry is not None and self.progress()[1]:
                self.entry.reason = _CUT_OFF
            _reset_at_close(self.host)
            _shut(self.host, socket.SHUT_RDWR)
        _shut(self.client, socket.SHUT_RDWR)


class Proxy:
    """The way out for one run. It reaches `hosts`; every other connection is refused and recorded.

    With `refusal`, a connection to another host waits for that call, which returns why the host is refused. `forwards`
    are hosts and ports for which the command has a listener of its own inside, in addition to the proxy's. For programs
    that know no proxy there are `direct` more listeners, at addresses that stand for names. After these come
    `resolvers` sockets that answer which address a name has.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        forwards: Sequence[Endpoint] = (),
        refusal: Callable[[str], str] | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        direct: int = 0,
        resolvers: int = 0,
    ) -> None:
        self._outbound = Outbound(Hosts(hosts), environment, refusal)
        self._targets: list[Target] = [None, *forwards, *([_BY_ADDRESS] * direct)]
        self._resolver_count = resolvers
        self._neighbours: Neighbours | None = None
        self._target_at: dict[Endpoint, Target] = {}  # in a session: by the endpoint that a client connected to
        self._names = Names()
        self.audit = ConnectionAudit()
        self._stop_reader, self._stop_writer = os.pipe()
        self._is_stopping, self._is_over = threading.Event(), threading.Event()
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._served: dict[threading.Thread, _ServedClient] = {}
        self._thread: threading.Thread | None = None

    def start(self, channel: socket.socket) -> None:
        """Begin to serve the listeners that the launcher will send on a channel."""
        self._thread = threading.Thread(
            target=self._receive_listeners, args=(channel,), name="fumehood-proxy", daemon=True
        )
        self._thread.start()

    def start_in_session(
        self, sockets: Sequence[socket.socket], endpoints: Sequence[Endpoint], neighbours: Neighbours
    ) -> None:
        """Begin to serve listeners that the proxies of a session share; ours listen at these `endpoints`."""
        self._neighbours = neighbours
        self._target_at = dict(zip(endpoints, self._targets, strict=True))
        self._names = Names(neighbours.names)
        targets = {
            each: self._target_at[endpoint] for each in sockets
            if each.type == socket.SOCK_STREAM and (endpoint := each.getsockname()[:2]) in self._target_at
        }  # fmt: skip
        self._thread = threading.Thread(
            target=self._serve_listeners, args=(sockets, targets), name="fumehood-proxy", daemon=True
        )
        self._thread.start()

    def stop(self, patience_s: float = 2.0) -> tuple[Connection, ...]:
        """Stop once nothing is left to send, and return all connections of the run.

        The command has ended, so nobody waits for answers. A connection that neither moves nor ends is cut off after
        `patience_s`.
        """
        self._is_stopping.set()
        os.write(self._stop_writer, b"x")
        if self._thread is not None:
            self._thread.join()
        for served in self._served.copy().values():
            served.stop_listening_to_host()
        self._wait_for_connections(patience_s)
        self._is_over.set()
        remaining = self._served.copy()
        for served in remaining.values():
            served.cut_off()
        deadline = time.monotonic() + 0.5
        for thread in remaining:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._neighbours is not None:
            self._neighbours.close()
        connections = self.audit.connections()
        os.close(self._stop_reader)
        os.close(self._stop_writer)
        return connections

    def _wait_for_connections(self, patience_s: float) -> None:
        """Wait until all connections have ended, or no host confirms any more bytes."""
        began = last_change = time.monotonic()
        progress_before: list[tuple[int, int]] = []
        while (served := self._served.copy()) and time.monotonic() - began < _AFTER_COMMAND_S:
            progress = [each.progress() for each in served.values()]
            if progress != progress_before:
                progress_before, last_change = progress, time.monotonic()
            is_sending = any(unconfirmed for _, unconfirmed in progress)
            if time.monotonic() - last_change > (max(patience_s, _STALLED_S) if is_sending else patience_s):
                return
            next(iter(served)).join(0.05)

    def _receive_listeners(self, channel: socket.socket) -> None:
        with channel:
            has_message = self._wait([channel.fileno()])
            descriptors = socket.recv_fds(channel, 1, _MOST_DESCRIPTORS)[1] if has_message else []
        if descriptors:
            sockets = [socket.socket(fileno=fd) for fd in descriptors]
            listeners = sockets[: len(sockets) - self._resolver_count]
            self._serve_listeners(sockets, dict(zip(listeners, self._targets, strict=True)))

    def _wait(self, descriptors: Sequence[int]) -> set[int]:
        """Return those that can be read, as soon as there is one; none if the proxy is to stop."""
        ready = wait_until_readable([self._stop_reader, *descriptors], None)
        return set() if self._is_stopping.is_set() else ready

    def _serve_listeners(self, sockets: Sequence[socket.socket], targets: Mapping[socket.socket, Target]) -> None:
        """Serve all sockets until the proxy stops, and close them.

        Those without a target are resolvers. They have a thread of their own, because queries need no room.
        """
        for each in sockets:
            each.setblocking(False)
        resolvers = [each for each in sockets if each not in targets]
        names_thread = threading.Thread(
            target=self._answer_queries, args=(resolvers,), name="fumehood-proxy-names", daemon=True
        )
        if resolvers:
            names_thread.start()
        try:
            for each in targets:
                disable_pacing(each)
            self._accept_connections(sockets, targets)
        finally:
            if resolvers:
                names_thread.join()
            if self._neighbours is not None:
                self._neighbours.withdraw()
            for each in sockets:
                each.close()

    def _accept_connections(self, sockets: Sequence[socket.socket], targets: Mapping[socket.socket, Target]) -> None:
        descriptors = [each.fileno() for each in targets]
        if self._neighbours is not None:
            descriptors.append(self._neighbours.fileno())
        while ready := self._wait(descriptors):
            self._hear_neighbours(sockets)
            for listener, target in targets.items():
                if listener.fileno() in ready:
                    while not self._reserve_room():
                        if self._is_stopping.is_set():
                            return
                        self._hear_neighbours(sockets)
                    self._accept(listener, target)

    def _reserve_room(self) -> bool:
        """Reserve room for a connection and return True; return False if no room became free soon.

        To make room, a client that seems to have gone is given up: nobody waits for its answer any more, but the host
        still gets what it sent. A client that closed the connection looks like one that has sent everything and
        listens. So clients are given up only if another one needs the room.
        """
        if self._room.acquire(blocking=False):
            return True
        with self._lock:
            longest_idle = max(self._served.values(), key=lambda served: served.idle_s, default=None)
            if longest_idle is not None and longest_idle.idle_s > _GIVEN_UP_S:
                longest_idle.is_given_up = True
                longest_idle.stop_listening_to_host()
        return self._room.acquire(timeout=0.2)

    def _accept(self, listener: socket.socket, target: Target) -> None:
        """Accept a connection, for which room was reserved."""
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            self._room.release()  # another proxy of the session accepted it
        except OSError:
            # It was withdrawn, or we have no more descriptors. The next one may be accepted.
            self._room.release()
            time.sleep(0.01)
        else:
            self._serve_in_thread(client, target)

    def _serve_in_thread(self, client: socket.socket, target: Target, *, is_ours: bool = False) -> None:
        thread = threading.Thread(
            target=self._serve, args=(client, target, is_ours), name="fumehood-proxied", daemon=True
        )
        with self._lock:
            self._served[thread] = _ServedClient(client)
        thread.start()

    def _answer_queries(self, resolvers: Sequence[socket.socket]) -> None:
        """Answer which addresses names have, until the proxy stops."""
        by_descriptor = {each.fileno(): each for each in resolvers}
        while ready := self._wait(list(by_descriptor)):
            for resolver in map(by_descriptor.__getitem__, ready):
                with contextlib.suppress(OSError):
                    query, client_address = resolver.recvfrom(_LARGEST_QUERY)
                    is_refused = self._neighbours is not None and not self._neighbours.run_asking_from(
                        client_address[1]
                    )
                    reply = self._names.answer(query, is_refused=is_refused)
                    if reply is not None:
                        resolver.sendto(reply, client_address)

    def _hear_neighbours(self, sockets: Sequence[socket.socket]) -> None:
        """Serve what another proxy of the session asks for or hands over to us."""
        client = None if self._neighbours is None else self._neighbours.receive(sockets)
        if client is None:
            return
        endpoint = client.getsockname()[:2]
        endpoint = endpoint if endpoint in self._target_at else (_ANY_ADDRESS, endpoint[1])
        if endpoint not in self._target_at:
            self._refuse(client)
            client.close()
        elif self._reserve_room():
            self._serve_in_thread(client, self._target_at[endpoint], is_ours=True)
        else:
            client.close()

    def _serve(self, client: socket.socket, target: Target, is_ours: bool) -> None:
        """Serve one connection to its end, unless it belongs to another proxy.

        `is_ours` if another proxy has found out that it is ours.
        """
        try:
            if self._neighbours is not None and not is_ours:
                run = self._neighbours.run_that_connected(client)
                if run != self._neighbours.run:
                    if run:
                        self._neighbours.hand_over(client, run)
                    return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target is None:
                self._serve_proxy_client(BufferedSocket(client))
                return
            host, port = target
            if target == _BY_ADDRESS:
                address, port = client.getsockname()[:2]
                host = self._names.host(address) or ""
            if host:
                self._tunnel(BufferedSocket(client), FORWARD, host, port, reply=lambda _error: b"")
            else:
                self._refuse(client)  # we listen at every address, and this one stands for no name
        except (OSError, Disconnected):
            pass  # one side has closed it; the record says how much was carried
        finally:
            with self._lock:
                served = self._served.pop(threading.current_thread())
            served.client.close()
            if served.host is not None:
                served.host.close()
            self._room.release()

    def _refuse(self, client: socket.socket) -> None:
        """Record a connection as refused, and reset it: the nearest to a refusal once it was accepted."""
        entry = self.audit.begin(FORWARD, *client.getsockname()[:2])
        entry.reason = NOT_GRANTED
        self.audit.end(entry)
        _reset_at_close(client)

    def _track(self, connection: socket.socket, entry: Entry) -> None:
        """Remember the host's connection with the client's; raises Disconnected if the proxy has stopped."""
        with self._lock:
            served = self._served[threading.current_thread()]
            served.host, served.entry = connection, entry
        if self._is_stopping.is_set():
            served.stop_listening_to_host()
        if self._is_over.is_set():
            raise Disconnected("the command had ended")

    def _serve_proxy_client(self, client: BufferedSocket) -> None:
        """Serve a client that speaks HTTP or SOCKS5; the first byte shows which."""
        deadline = time.monotonic() + _GREETING_S
        first = client.read_exactly(1, deadline)
        if first[0] != _VERSION:
            client.put_back(first)
            destination = http.ProxyConnection(client, self._outbound, self.audit, self._track).serve()
            if destination is not None:
                self._tunnel(
                    client, CONNECT, *destination,
                    reply=lambda error: http.ESTABLISHED if error is None else http.failure(*destination, error),
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
        self._tunnel(client, SOCKS5, host, port, reply=lambda error: _socks_reply(codes[type(error)]))

    def _tunnel(
        self, client: BufferedSocket, protocol: str, host: str, port: int,
        reply: Callable[[Denied | Unreachable | None], bytes],
    ) -> None:  # fmt: skip
        """Connect a client with a host, if that is granted. The client gets the `reply` to success or to the error."""
        entry = self.audit.begin(protocol)
        try:
            self._outbound.judge(entry, host, port, client)
            connection, _ = self._outbound.connect(entry, host, port, tls=True)
            self._track(connection, entry)
            client.send(reply(None), _GREETING_S)
            relay(client, connection, entry, lambda name: self._may_ask_for(name, host, port))
        except WrongHost as error:
            entry.allowed, entry.reason = False, str(error)
        except Disconnected as error:
            entry.reason = str(error)
        except (Denied, Unreachable) as error:
            entry.reason = str(error)
            client.send_last(reply(error))
        finally:
            self.audit.end(entry)

    def _may_ask_for(self, name: str, host: str, port: int) -> bool:
        """Return True if a TLS client that was granted a host may ask for this name there."""
        try:
            asked_host = canonical_host(name)
        except ValueError:
            return False
        # At a granted address, a client may ask for any host that is granted too.
        is_address = host[-1].isdigit() or ":" in host
        return asked_host == host or (is_address and self._outbound.hosts.allows(asked_host, port))


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
    """A request by SOCKS that can't be served; `reply` are the bytes that tell the client."""

    def __init__(self, message: str, reply: bytes, host: str = "", port: int = 0) -> None:
        super().__init__(message)
        self.reply = reply
        self.host, self.port = host, port


def _socks_reply(code: int) -> bytes:
    return bytes((_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


def _socks_request(client: BufferedSocket, deadline: float) -> Endpoint:
    """Read a greeting, of which the first byte was read already, and a request; return the host and port it names.

    Raises BadSocks.
    """

    def read(size: int) -> bytes:
        return client.read_exactly(size, deadline)

    methods = read(read(1)[0])
    if _NO_LOGIN not in methods:
        raise BadSocks("the client insists on a login", bytes((_VERSION, _NONE_ACCEPTABLE)))
    client.send(bytes((_VERSION, _NO_LOGIN)), _GREETING_S)
    version, command, _, kind = read(4)
    if version != _VERSION:
        raise BadSocks("this is not SOCKS5", _socks_reply(_SOCKS_FAILED))
    if kind == _NAME:
        raw_host = read(read(1)[0]).decode("utf-8", "surrogateescape")
    elif kind == _IPV4:
        raw_host = str(ipaddress.IPv4Address(read(4)))
    elif kind == _IPV6:
        raw_host = str(ipaddress.IPv6Address(read(16)))
    else:
        raise BadSocks("the kind of address is unknown", _socks_reply(_BAD_ADDRESS))
    port = int.from_bytes(read(2), "big")
    shown_host = printable_host(raw_host)
    if command != _CONNECT:
        raise BadSocks("only CONNECT is served, not BIND or UDP", _socks_reply(_BAD_COMMAND), shown_host, port)
    try:
        return canonical_host(raw_host), port_number(str(port))
    except ValueError as error:
        message = f"{shown_host!r} is no host: {error}"
        raise BadSocks(message, _socks_reply(_NOT_ALLOWED), shown_host, port) from error
