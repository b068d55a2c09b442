"""HTTP/1 requests to a proxy. Each is judged by its own target, whatever came before it on the connection.

h11 reads and writes the messages. Bodies of a known length are moved without it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import h11

from fumehood.core.hosts import parse_authority, with_port
from fumehood.core.report import HTTP, UNREADABLE
from fumehood.core.value import Value
from fumehood.proxy.connections import ConnectionAudit, Entry
from fumehood.proxy.reach import Denied, Outbound, Unreachable, Upstream
from fumehood.proxy.relay import BufferedSocket, Disconnected, EndedEarly, wait_until_readable

Message = h11.Request | h11.Response
Headers = list[tuple[bytes, bytes]]
Track = Callable[[socket.socket, Entry], None]

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_FIRST_REQUEST_S, _NEXT_REQUEST_S = 30.0, 75.0  # how long we wait for a request
_STALLED_S = 900.0  # how long a message may make no progress
_LARGEST_HEAD = 1 << 16
_BROKEN_REQUEST = "the request ended early, or can't be read"
# Headers that are for the next neighbour only (RFC 9110, 7.6.1), and those that we write ourselves.
_NOT_PASSED_ON = frozenset(
    {
        b"connection", b"proxy-connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"content-length",
        b"max-forwards",  # with it, a client asks the proxy about the proxy instead of the host
        b"host",
    }
)  # fmt: skip


class BadMessage(Exception):
    """A request that gets status 400, because it can't be read, or can be read in two ways.

    The text has only words of ours: it is recorded, and a request may contain secrets.
    """


class _HostConnection(Value):
    """The connection to the host of the last request, kept for the next request to the same host."""

    name: tuple[str, int]
    connection: BufferedSocket
    entry: Entry
    upstream: Upstream | None


class ProxyConnection:
    """One client's connection, for all its requests. `track` gets every connection that is made to a host."""

    def __init__(self, client: BufferedSocket, outbound: Outbound, audit: ConnectionAudit, track: Track) -> None:
        self._client = client
        self._outbound = outbound
        self._audit = audit
        self._track = track
        self._host: _HostConnection | None = None
        self._tunnel: tuple[str, int] | None = None

    def serve(self) -> tuple[str, int] | None:
        """Answer requests until one can't be answered, or the client sends no more.

        If the client asks for a tunnel by CONNECT, return where to. What it sends then is not HTTP to us.
        """
        timeout_s = _FIRST_REQUEST_S
        try:
            while self._serve_request(timeout_s):
                timeout_s = _NEXT_REQUEST_S
        finally:
            self._drop_host()
        return self._tunnel

    def _serve_request(self, timeout_s: float) -> bool:
        """Answer one request; return True if another may follow."""
        server = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_HEAD)
        try:
            request = self._read_request(server, timeout_s)
            if request is None:
                return False
            if request.method == b"CONNECT":
                self._tunnel = _host_and_port(request.target)
                self._client.put_back(server.trailing_data[0])
                return False
            host, port, path = _split_target(request.target)
        except BadMessage as error:
            return self._refuse(400, f"{UNREADABLE}: {error}")
        except h11.RemoteProtocolError:  # its text quotes the line that could not be read
            return self._refuse(400, f"{UNREADABLE}: it is not HTTP/1, or its head is too long")
        # The answer to these is the request itself, which may have got a login of the person's by then. Some proxies
        # accept methods in lower case too.
        if request.method.upper() in (b"TRACE", b"TRACK"):
            return self._refuse(405, "TRACE shows what a proxy was sent, and is not passed on", host, port)
        return self._pass_on(server, request, host, port, path)

    def _refuse(self, status: int, reason: str, host: str = "", port: int = 0) -> bool:
        """Record a request as refused, answer it, and return False, because no other request follows."""
        entry = self._audit.begin(HTTP, host, port)
        entry.reason = reason
        self._audit.end(entry)
        self._client.send_last(answer(status, f"fumehood: {reason}"))
        return False

    def _read_request(self, server: h11.Connection, timeout_s: float) -> h11.Request | None:
        deadline = time.monotonic() + timeout_s
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
            except Disconnected:
                return None
            server.receive_data(data)
            if not data and server.their_state is not h11.IDLE:
                return None

    def _pass_on(self, server: h11.Connection, request: h11.Request, host: str, port: int, path: str) -> bool:
        """Pass a request on and bring the answer back; return True if another request may follow."""
        try:
            host_connection = self._connect(host, port)
        except (Denied, Unreachable) as error:
            self._client.send_last(failure(host, port, error))
            return False
        entry = host_connection.entry
        exchange = _Exchange(self._client, server, request, host_connection)
        try:
            exchange.send_request(path)
        except EndedEarly:
            entry.reason = entry.reason or _BROKEN_REQUEST
            self._drop_host()
            self._client.send_last(answer(400, f"fumehood: {_BROKEN_REQUEST}"))
            return False
        except (Disconnected, OSError, h11.ProtocolError):
            # A host may answer before it has read everything, and then close, or read no more.
            exchange.keeps_client = exchange.keeps_host = False
        try:
            exchange.pass_answer_back()
        except (h11.ProtocolError, Disconnected, OSError) as error:
            if not exchange.has_answered:
                if not self._client.is_closed:
                    entry.reason = entry.reason or "it gave no answer that can be read"
                self._client.send_last(answer(502, f"fumehood: {with_port(host, port)} gave no answer: {error}"))
            return False
        if not exchange.keeps_host:
            self._drop_host()
        if not exchange.has_sent:
            self._client.send_last(b"")  # the client may still be sending
        return exchange.keeps_client

    def _connect(self, host: str, port: int) -> _HostConnection:
        """Return a connection to the host: the present one, or a new one."""
        present = self._host
        # If it can be read, the host has closed it, or sent something that was not asked for.
        if (
            present is not None and present.name == (host, port)
            and not wait_until_readable([present.connection.socket.fileno()], 0)
        ):  # fmt: skip
            return present
        self._drop_host()
        entry = self._audit.begin(HTTP)
        try:
            self._outbound.judge(entry, host, port, self._client)
            connection, upstream = self._outbound.connect(entry, host, port, tls=False)
            self._track(connection, entry)
            self._host = _HostConnection(
                name=(host, port), connection=BufferedSocket(connection, entry), entry=entry, upstream=upstream
            )
        except (Denied, Unreachable, Disconnected) as error:
            entry.reason = str(error)
            raise
        finally:
            if self._host is None:
                self._audit.end(entry)
        return self._host

    def _drop_host(self) -> None:
        if self._host is not None:
            self._host.connection.socket.close()
            self._audit.end(self._host.entry)
            self._host = None


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, client: BufferedSocket, server: h11.Connection, request: h11.Request, host: _HostConnection
    ) -> None:
        self._client, self._client_http = client, server
        self._request = request
        self._name, self._host, self._upstream = with_port(*host.name), host.connection, host.upstream
        self._host_http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._early_answer: object = None  # what the host sent before it had read the whole request
        self.has_sent = self.has_answered = False
        self.keeps_client = request.http_version == b"1.1" and b"close" not in _connection_options(request)
        self.keeps_host = True

    def _send_to_host(self, event: h11.Event) -> None:
        data = self._host_http.send(event) or b""
        if data:
            self._host.send(data, _STALLED_S)

    def _send_to_client(self, event: h11.Event) -> None:
        data = self._client_http.send(event) or b""
        if data:
            self._client.send(data, _STALLED_S)

    def send_request(self, path: str) -> None:
        """Pass the request on: a host gets the path, and another proxy gets the whole target.

        Raises EndedEarly if the client does not send it all.
        """
        request, upstream = self._request, self._upstream
        name = self._name.removesuffix(":80")
        target = path if upstream is None else f"http://{name}{path}"
        headers: Headers = [(b"Host", name.encode()), *_passed_on(request)]
        if upstream is not None and upstream.authorization:
            headers.append((b"Proxy-Authorization", upstream.authorization.encode()))
        length = _header(request, b"content-length")
        is_chunked = _header(request, b"transfer-encoding") is not None
        if length is not None:
            headers.append((b"Content-Length", length))
        elif is_chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        if (is_chunked or length) and self._client_http.they_are_waiting_for_100_continue:
            try:
                self._send_to_client(h11.InformationalResponse(status_code=100, headers=[]))
            except (Disconnected, OSError) as error:
                raise EndedEarly("the client did not wait") from error
        self._send_to_host(h11.Request(method=request.method, target=target, headers=headers))
        self._host.on_input = self._read_early_answer
        try:
            if is_chunked:
                self._send_chunks()
            else:
                self._client.put_back(self._client_http.trailing_data[0])
                self._client.move_to(self._host, int(length or 0), _STALLED_S)
        finally:
            self._host.on_input = None
        self.has_sent = True

    def _read_early_answer(self) -> None:
        """Read what the host sends while it reads nothing; raise Disconnected if it is an answer, to stop sending."""
        data = self._host.read(_STALLED_S)
        if not data:
            self._host.on_input = None  # it will send nothing, but may still read everything
            return
        self._host_http.receive_data(data)
        while (event := self._host_http.next_event()) is not h11.NEED_DATA:
            if not isinstance(event, h11.InformationalResponse):
                self._early_answer = event
                raise Disconnected("it has answered")

    def _send_chunks(self) -> None:
        """Pass a chunked body on as it comes; raises EndedEarly."""
        while True:
            try:
                while (event := self._client_http.next_event()) is h11.NEED_DATA:
                    self._client_http.receive_data(self._client.read(_STALLED_S))
            except (h11.RemoteProtocolError, Disconnected, OSError) as error:
                raise EndedEarly("the request ended early") from error
            if not isinstance(event, h11.Data):
                break
            self._send_to_host(h11.Data(data=event.data))
        self._send_to_host(h11.EndOfMessage())
        self._client.put_back(self._client_http.trailing_data[0])

    def pass_answer_back(self) -> None:
        """Bring the host's answer to the client."""
        while not isinstance(response := self._early_answer or self._next_host_event(), h11.Response):
            if not isinstance(response, h11.InformationalResponse):
                raise Disconnected("it closed the connection")
        has_body = not (
            self._request.method == b"HEAD" or response.status_code in (204, 304) or response.status_code < 200
        )
        has_login = self._upstream is not None and bool(self._upstream.authorization)
        if has_body and has_login and response.status_code >= 400:
            self._send_without_body(response)
        else:
            self._send_whole(response, has_body=has_body)

    def _send_whole(self, response: h11.Response, *, has_body: bool) -> None:
        length = _header(response, b"content-length")
        is_chunked = _header(response, b"transfer-encoding") is not None
        self.keeps_host = (
            self.keeps_host and response.http_version == b"1.1"
            and b"close" not in _connection_options(response)
            and (not has_body or length is not None or is_chunked)
        )  # fmt: skip
        headers = _passed_on(response)
        if length is not None and not is_chunked:
            headers.append((b"Content-Length", length))
        elif is_chunked or has_body:
            headers.append((b"Transfer-Encoding", b"chunked"))
        self._begin_answer(response.status_code, response.reason, headers)
        if has_body and length is not None and not is_chunked:
            self._host.put_back(self._host_http.trailing_data[0])
            self._host.move_to(self._client, int(length), _STALLED_S)
        elif has_body:
            while isinstance(event := self._next_host_event(), h11.Data):
                self._send_to_client(h11.Data(data=event.data))
            if not isinstance(event, h11.EndOfMessage):
                raise Disconnected("the answer ended early")
            self._send_to_client(h11.EndOfMessage())

    def _send_without_body(self, response: h11.Response) -> None:
        """Answer with a text of ours: that of an error may come from the other proxy, and show our login to it.

        The whole text is left out. If only the login were masked, a client could guess it by what is masked.
        """
        text = (
            f"fumehood: {self._name} was asked by way of the person's own proxy. The answer was"
            f" {response.status_code}; its text is left out, because it may hold the login to that proxy.\n"
        ).encode()
        self.keeps_host = False  # the body was not read
        headers = [(name, value) for name, value in _passed_on(response) if not name.lower().startswith(b"content-")]
        headers.append((b"Content-Length", b"%d" % len(text)))
        if response.status_code == 407:  # it asks for a login, which the client does not have
            self._begin_answer(502, b"Bad Gateway", headers)
        else:
            self._begin_answer(response.status_code, response.reason, headers)
        self._send_to_client(h11.Data(data=text))
        self._send_to_client(h11.EndOfMessage())

    def _begin_answer(self, status: int, reason: bytes, headers: Headers) -> None:
        if not self.keeps_client:
            headers.append((b"Connection", b"close"))
        # A new h11 connection, which has seen a whole request: the old one did not see the body that was moved past it.
        self._client_http = h11.Connection(h11.SERVER)
        method = b"HEAD" if self._request.method == b"HEAD" else b"GET"
        self._client_http.receive_data(method + b" / HTTP/" + self._request.http_version + b"\r\nHost: x\r\n\r\n")
        self._client_http.next_event()
        self.has_answered = True
        self._send_to_client(h11.Response(status_code=status, reason=reason, headers=headers))

    def _next_host_event(self) -> object:
        while True:
            event = self._host_http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._host_http.receive_data(self._host.read(_STALLED_S))


def _passed_on(message: Message) -> Headers:
    """Return the headers that go on to the other side, spelt as they came."""
    dropped = _NOT_PASSED_ON | _connection_options(message)
    return [(name, value) for name, value in message.headers.raw_items() if name.lower() not in dropped]


def _connection_options(message: Message) -> set[bytes]:
    values = [value for key, value in message.headers if key == b"connection"]
    return {token.strip().lower() for value in values for token in value.split(b",")}


def _header(message: Message, name: bytes) -> bytes | None:
    return next((value for key, value in message.headers if key == name), None)


def _host_and_port(text: bytes, default_port: int | None = None) -> tuple[str, int]:
    try:
        return parse_authority(text.decode("ascii"), default_port)
    except ValueError as error:
        raise BadMessage(f"the target names no host: {error}") from error


def _split_target(target: bytes) -> tuple[str, int, str]:
    """Split an absolute target into host, port and path. It alone decides where a request goes, not the Host header."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() != b"http":
        raise BadMessage("a proxy is asked with http://… or CONNECT")
    end = next((at for at, letter in enumerate(rest) if letter in b"/?#\\"), len(rest))
    host, port = _host_and_port(rest[:end], 80)
    path = rest[end:].partition(b"#")[0].decode("ascii")  # h11 accepts nothing else
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
    """Return the answer that says why a host was refused or can't be reached."""
    if isinstance(error, Denied):
        return answer(403, f"fumehood: network blocked: {with_port(host, port)}: {error}")
    return answer(502, f"fumehood: {with_port(host, port)} can't be reached: {error}")
