"""HTTP/1 requests to a proxy: each one judged by its own target, whatever came before it on the connection.

h11 reads and writes the messages; bodies of a known length are moved without it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import h11

from fumehood.core.hosts import parse_authority, with_port
from fumehood.core.report import HTTP, UNREADABLE
from fumehood.core.value import Value
from fumehood.proxy.reach import Denied, Outbound, Unreachable, Upstream
from fumehood.proxy.relay import ConnectionAudit, EndedEarly, Entry, Gone, Wire, readable

Headers = list[tuple[bytes, bytes]]
Track = Callable[[socket.socket, Entry], None]

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
HEAD_S, IDLE_S, ANSWER_S = 30.0, 75.0, 900.0
_LARGEST_HEAD = 1 << 16
_SPOILT = "the request ended early, or can't be read"
# What is between two neighbours only (RFC 9110, 7.6.1), and what we say ourselves.
_OWN = frozenset(
    {
        b"connection", b"proxy-connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"content-length",
        b"max-forwards",  # by which a client asks the proxy after us instead of the host
    }
)  # fmt: skip


class BadMessage(Exception):
    """A request that is answered with 400, because it could be read in two ways or not at all.

    The text says why in words of ours alone: it is recorded, and a request may hold secrets.
    """


class _Host(Value):
    """The connection to the host that was asked last, kept for the next request to it."""

    name: tuple[str, int]
    wire: Wire
    entry: Entry
    upstream: Upstream | None


class ProxyConnection:
    """One client's connection, for as many requests as it makes; `track` learns of every connection to a host."""

    def __init__(self, client: Wire, reach: Outbound, audit: ConnectionAudit, track: Track) -> None:
        self._client = client
        self._reach = reach
        self._audit = audit
        self._track = track
        self._host: _Host | None = None
        self._tunnel: tuple[str, int] | None = None

    def serve(self) -> tuple[str, int] | None:
        """Answer requests until one can't be, or the client has no more.

        Returns where a client wants a tunnel to by CONNECT: what it says next is not HTTP to us.
        """
        patience = HEAD_S
        try:
            while self._one(patience):
                patience = IDLE_S
        finally:
            self._drop_host()
        return self._tunnel

    def _one(self, patience: float) -> bool:
        """Answer one request; returns True if another may follow."""
        server = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_HEAD)
        try:
            request = self._request(server, patience)
            if request is None:
                return False
            if request.method == b"CONNECT":
                self._tunnel = _place(request.target)
                self._client.put_back(server.trailing_data[0])
                return False
            host, port, path = _target(request.target)
        except BadMessage as error:
            return self._refuse(400, f"{UNREADABLE}: {error}")
        except h11.RemoteProtocolError:  # whose text has the line that it stumbled over
            return self._refuse(400, f"{UNREADABLE}: it is not HTTP/1, or its head is too long")
        # These are answered with the request itself, which may have a login of the person's in it by then. Some proxies
        # read methods in any case.
        if request.method.upper() in (b"TRACE", b"TRACK"):
            return self._refuse(405, "TRACE shows what a proxy was sent, and is not passed on", host, port)
        return self._pass_on(server, request, host, port, path)

    def _refuse(self, status: int, reason: str, host: str = "", port: int = 0) -> bool:
        entry = self._audit.begin(HTTP, host, port)
        entry.reason = reason
        self._audit.end(entry)
        self._client.part_with(answer(status, f"fumehood: {reason}"))
        return False

    def _request(self, server: h11.Connection, patience: float) -> h11.Request | None:
        deadline = time.monotonic() + patience
        while True:
            event = server.next_event()
            if isinstance(event, h11.Request):
                names = [name for name, _ in event.headers]
                if b"transfer-encoding" in names and (b"content-length" in names or event.http_version != b"1.1"):
                    raise BadMessage("the length of the request is told in two ways")
                return event
            if event is not h11.NEED_DATA:
                return None
            try:
                data = self._client.read(max(0.01, deadline - time.monotonic()))
            except Gone:
                return None
            server.receive_data(data)
            if not data and server.their_state is not h11.IDLE:
                return None

    def _pass_on(self, server: h11.Connection, request: h11.Request, host: str, port: int, path: str) -> bool:
        try:
            there = self._connected(host, port)
        except (Denied, Unreachable) as error:
            self._client.part_with(failure(host, port, error))
            return False
        exchange = _Exchange(self._client, server, request, there)
        try:
            exchange.send_request(path)
        except EndedEarly:
            there.entry.reason = there.entry.reason or _SPOILT
            self._drop_host()
            self._client.part_with(answer(400, f"fumehood: {_SPOILT}"))
            return False
        except (Gone, OSError, h11.ProtocolError):
            # A host may answer before it has read everything, and close, or read no more.
            exchange.keeps = exchange.host_keeps = False
        try:
            exchange.answer()
        except (h11.ProtocolError, Gone, OSError) as error:
            if not exchange.has_answered:
                if not self._client.is_closed:
                    there.entry.reason = there.entry.reason or "it gave no answer that can be read"
                self._client.part_with(answer(502, f"fumehood: {with_port(host, port)} gave no answer: {error}"))
            return False
        if not exchange.host_keeps:
            self._drop_host()
        if not exchange.has_sent:
            self._client.part_with(b"")  # who may still be sending
        return exchange.keeps

    def _connected(self, host: str, port: int) -> _Host:
        """Return a connection to the host: the one that is there, or a new one."""
        there = self._host
        # One that is readable was closed by the host, or it said something unasked.
        if there is not None and there.name == (host, port) and not readable([there.wire.socket.fileno()], 0):
            return there
        self._drop_host()
        entry = self._audit.begin(HTTP)
        try:
            self._reach.judge(entry, host, port, self._client)
            connection, upstream = self._reach.connect(entry, host, port, tls=False)
            self._track(connection, entry)
            self._host = _Host(name=(host, port), wire=Wire(connection, entry), entry=entry, upstream=upstream)
        except (Denied, Unreachable, Gone) as error:
            entry.reason = str(error)
            raise
        finally:
            if self._host is None:
                self._audit.end(entry)
        return self._host

    def _drop_host(self) -> None:
        if self._host is not None:
            self._host.wire.socket.close()
            self._audit.end(self._host.entry)
            self._host = None


class _Exchange:
    """One request and its answer."""

    def __init__(self, client: Wire, server: h11.Connection, request: h11.Request, there: _Host) -> None:
        self._client, self._server, self._request = client, server, request
        self._there = there
        self._asking = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._early: object = None  # what the host said before it had taken everything
        self.has_sent = self.has_answered = False
        self.keeps = request.http_version == b"1.1" and b"close" not in _connection(request)
        self.host_keeps = True

    def _to_host(self, event: h11.Event) -> None:
        data = self._asking.send(event) or b""
        if data:
            self._there.wire.send(data, ANSWER_S)

    def _to_client(self, event: h11.Event) -> None:
        data = self._server.send(event) or b""
        if data:
            self._client.send(data, ANSWER_S)

    def send_request(self, path: str) -> None:
        """Send the request on: to the host its own path, to another proxy the whole target."""
        request, upstream = self._request, self._there.upstream
        name = with_port(*self._there.name).removesuffix(":80")
        target = path if upstream is None else f"http://{name}{path}"
        headers: Headers = [(b"Host", name.encode()), *_kept(request)]
        if upstream is not None and upstream.authorization:
            headers.append((b"Proxy-Authorization", upstream.authorization.encode()))
        length = _value(request, b"content-length")
        is_chunked = _value(request, b"transfer-encoding") is not None
        if length is not None:
            headers.append((b"Content-Length", length))
        elif is_chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        if (is_chunked or length) and self._server.they_are_waiting_for_100_continue:
            try:
                self._to_client(h11.InformationalResponse(status_code=100, headers=[]))
            except (Gone, OSError) as error:
                raise EndedEarly("the client did not wait") from error
        self._to_host(h11.Request(method=request.method, target=target, headers=headers))
        self._there.wire.hear = self._hear
        try:
            if is_chunked:
                self._send_chunks()
            else:
                self._client.put_back(self._server.trailing_data[0])
                self._client.move(self._there.wire, int(length or 0), ANSWER_S)
        finally:
            self._there.wire.hear = None
        self.has_sent = True

    def _hear(self) -> None:
        """Take in what the host says while it takes nothing: an answer ends the sending."""
        data = self._there.wire.read(ANSWER_S)
        if not data:
            self._there.wire.hear = None  # it has nothing to say, and may still take everything
            return
        self._asking.receive_data(data)
        while (event := self._asking.next_event()) is not h11.NEED_DATA:
            if not isinstance(event, h11.InformationalResponse):
                self._early = event
                raise Gone("it has answered")

    def _send_chunks(self) -> None:
        """Send a body on as it comes; raises EndedEarly."""
        while True:
            try:
                while (event := self._server.next_event()) is h11.NEED_DATA:
                    self._server.receive_data(self._client.read(ANSWER_S))
            except (h11.RemoteProtocolError, Gone, OSError) as error:
                raise EndedEarly("the request ended early") from error
            if not isinstance(event, h11.Data):
                break
            self._to_host(h11.Data(data=event.data))
        self._to_host(h11.EndOfMessage())
        self._client.put_back(self._server.trailing_data[0])

    def answer(self) -> None:
        """Bring the host's answer to the client."""
        while not isinstance(response := self._early or self._next(), h11.Response):
            if not isinstance(response, h11.InformationalResponse):
                raise Gone("it closed the connection")
        has_body = not (
            self._request.method == b"HEAD" or response.status_code in (204, 304) or response.status_code < 200
        )
        upstream = self._there.upstream
        if has_body and upstream is not None and upstream.authorization and response.status_code >= 400:
            self._withhold(response)
        else:
            self._bring(response, has_body=has_body)

    def _bring(self, response: h11.Response, *, has_body: bool) -> None:
        length = _value(response, b"content-length")
        chunked = _value(response, b"transfer-encoding") is not None
        self.host_keeps = (
            self.host_keeps and response.http_version == b"1.1"
            and b"close" not in _connection(response)
            and (not has_body or length is not None or chunked)
        )  # fmt: skip
        headers = _kept(response)
        if length is not None and not chunked:
            headers.append((b"Content-Length", length))
        elif chunked or has_body:
            headers.append((b"Transfer-Encoding", b"chunked"))
        self._begin_answer(response.status_code, response.reason, headers)
        if has_body and length is not None and not chunked:
            self._there.wire.put_back(self._asking.trailing_data[0])
            self._there.wire.move(self._client, int(length), ANSWER_S)
        elif has_body:
            while isinstance(event := self._next(), h11.Data):
                self._to_client(h11.Data(data=event.data))
            if not isinstance(event, h11.EndOfMessage):
                raise Gone("the answer ended early")
            self._to_client(h11.EndOfMessage())

    def _withhold(self, response: h11.Response) -> None:
        """Leave out the text of an error that may be another proxy's own, and show our login to it.

        All of it: whoever had only the login masked could guess at it by what is masked.
        """
        text = (
            f"fumehood: {with_port(*self._there.name)} was asked by way of the person's own proxy. The answer was"
            f" {response.status_code}; its text is left out, because it may hold the login to that proxy.\n"
        ).encode()
        self.host_keeps = False  # the rest of it is still to come
        headers = [(name, value) for name, value in _kept(response) if not name.lower().startswith(b"content-")]
        headers.append((b"Content-Length", b"%d" % len(text)))
        if response.status_code == 407:  # not for the client, who has no login
            self._begin_answer(502, b"Bad Gateway", headers)
        else:
            self._begin_answer(response.status_code, response.reason, headers)
        self._to_client(h11.Data(data=text))
        self._to_client(h11.EndOfMessage())

    def _begin_answer(self, status: int, reason: bytes, headers: Headers) -> None:
        if not self.keeps:
            headers.append((b"Connection", b"close"))
        # A fresh one, whose request has come in whole: what was moved past the other is not known to it.
        self._server = h11.Connection(h11.SERVER)
        method = b"HEAD" if self._request.method == b"HEAD" else b"GET"
        self._server.receive_data(method + b" / HTTP/" + self._request.http_version + b"\r\nHost: x\r\n\r\n")
        self._server.next_event()
        self.has_answered = True
        self._to_client(h11.Response(status_code=status, reason=reason, headers=headers))

    def _next(self) -> object:
        while True:
            event = self._asking.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._asking.receive_data(self._there.wire.read(ANSWER_S))


def _kept(message: h11.Request | h11.Response) -> Headers:
    """Return the headers that go on to the other side, spelt as they came."""
    dropped = _OWN | _connection(message) | {b"host"}
    return [(name, value) for name, value in message.headers.raw_items() if name.lower() not in dropped]


def _connection(message: h11.Request | h11.Response) -> set[bytes]:
    values = [value for key, value in message.headers if key == b"connection"]
    return {token.strip().lower() for value in values for token in value.split(b",")}


def _value(message: h11.Request | h11.Response, name: bytes) -> bytes | None:
    return next((value for key, value in message.headers if key == name), None)


def _place(text: bytes, default_port: int | None = None) -> tuple[str, int]:
    try:
        return parse_authority(text.decode("ascii"), default_port)
    except ValueError as error:
        raise BadMessage(f"the target names no host: {error}") from error


def _target(target: bytes) -> tuple[str, int, str]:
    """Split an absolute target into host, port and path: it alone says where a request goes, whatever Host says."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() != b"http":
        raise BadMessage("a proxy is asked with http://… or CONNECT")
    end = next((place for place, letter in enumerate(rest) if letter in b"/?#\\"), len(rest))
    host, port = _place(rest[:end], 80)
    path = rest[end:].partition(b"#")[0].decode("ascii")  # which h11 has seen to
    if path.startswith("\\"):
        raise BadMessage("there is a backslash after the host")
    return host, port, path if path.startswith("/") else f"/{path}"


def answer(status: int, text: str) -> bytes:
    """Return an answer of our own, after which the connection is closed."""
    reasons = {400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 502: "Bad Gateway"}
    body = text.encode("utf-8", "replace") + b"\n"
    head = (
        f"HTTP/1.1 {status} {reasons[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nProxy-Agent: fumehood\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def failure(host: str, port: int, error: Denied | Unreachable) -> bytes:
    """Return the answer where a host was refused, or is granted and can't be reached."""
    if isinstance(error, Denied):
        return answer(403, f"fumehood: network blocked: {with_port(host, port)}: {error}")
    return answer(502, f"fumehood: {with_port(host, port)} can't be reached: {error}")

