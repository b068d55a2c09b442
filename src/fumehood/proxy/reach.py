"""Connect to a host for the command: judge its name, resolve it, judge its address, connect to that address.

Nothing is resolved twice, so the connection goes to the address that was judged. If this machine reaches the network by
a proxy of the person's own (HTTPS_PROXY and similar variables), so does the command.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
import time
import urllib.parse
import urllib.request

from fumehood.core.hosts import LOOPBACK_NAMES, Hosts, as_address, special_kind, with_port
from fumehood.core.report import NOT_GRANTED, UNANSWERED
from fumehood.core.value import Value
from fumehood.proxy.connections import Entry
from fumehood.proxy.relay import BufferedSocket, Disconnected, disable_pacing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fumehood.core.hosts import Address

_CONNECT_S = 20.0
_LONGEST_ANSWER = 1 << 16


class Denied(Exception):
    """The host is not granted; the text says why."""


class Unreachable(Exception):
    """The host is granted, but can't be reached."""


class Outbound:
    """Connects one run to the hosts that it may reach.

    `refusal` asks a person about a `host:port` that is not granted. It returns why it is refused, or "".
    """

    def __init__(
        self, hosts: Hosts, environment: Mapping[str, str] | None = None, refusal: Callable[[str], str] | None = None
    ) -> None:
        self.hosts = hosts
        self._refusal = refusal
        self._environment = os.environ if environment is None else environment
        self._granted_at: dict[str, float] = {}  # when a person allowed a `host:port`

    def judge(self, entry: Entry, host: str, port: int, client: BufferedSocket) -> None:
        """Raise Denied unless the host is granted, or a person allows it now. No name server is asked.

        Raises Disconnected if the client did not wait for the person's answer: it may have sent the same request over
        another connection. The client may also have left before its connection was served, because there was no room.
        """
        entry.host, entry.port = host, port
        name = with_port(host, port)
        if not self.hosts.allows(host, port):
            refusal = NOT_GRANTED if self._refusal is None else self._refusal(name)
            if refusal:
                raise Denied(refusal)
            self._granted_at.setdefault(name, time.monotonic())
            self.hosts.add(name)
        # The reason until it is connected: the command may end before that.
        entry.allowed, entry.reason = True, UNANSWERED
        granted_at = self._granted_at.get(name)
        if granted_at is not None and client.was_closed_before(granted_at):
            raise Disconnected("the program had closed the connection before the person answered")

    def connect(self, entry: Entry, host: str, port: int, *, tls: bool) -> tuple[socket.socket, Upstream | None]:
        """Return a connection to a host that was judged, and the person's own proxy if it goes by that.

        By such a proxy, it is a tunnel for `tls`. For plain HTTP it leads to the proxy, which takes the requests.
        """
        address = as_address(host)
        upstream = None
        try:
            if host not in LOOPBACK_NAMES and (address is None or not special_kind(address)):
                upstream = Upstream.from_environment(self._environment, host, port, tls=tls)
        except OSError as error:
            raise Unreachable(_reason(error)) from error
        addresses = self._allowed_addresses(entry, host, port, may_fail=upstream is not None)
        try:
            if upstream is None:
                connection = self._connect_to_first(entry, addresses, port)
            else:
                entry.address = f"by way of {upstream.host}:{upstream.port}"
                connection = socket.create_connection((upstream.host, upstream.port), _CONNECT_S)
                try:
                    if tls:
                        _request_tunnel(connection, upstream, with_port(host, port))
                except BaseException:
                    connection.close()
                    raise
        except OSError as error:
            by_way_of = "" if upstream is None else f"the proxy {upstream.host}:{upstream.port}: "
            raise Unreachable(by_way_of + _reason(error)) from error
        entry.reason = ""
        return connection, upstream

    def _allowed_addresses(self, entry: Entry, host: str, port: int, *, may_fail: bool) -> list[Address]:
        """Return the host's addresses that may be reached.

        With `may_fail`, return none if the name can't be resolved here: another proxy will resolve it.
        """
        try:
            addresses = resolve(host, port)
        except OSError as error:
            if may_fail:
                return []
            raise Unreachable(f"{host} can't be resolved: {_reason(error)}") from error
        allowed = [address for address in addresses if not self._objection(address, port)]
        if not allowed:
            entry.allowed, entry.address = False, str(addresses[0])
            why = self._objection(addresses[0], port)
            raise Denied(f"{host} is at {addresses[0]}, {why}, which was not named itself")
        return allowed

    def _objection(self, address: Address, port: int) -> str:
        """Return which kind of address this is, if it must be granted itself and was not; else ""."""
        if self.hosts.names_address(address, port):
            return ""
        kind = special_kind(address)
        if kind:
            return f"a{'n' if kind[0] in 'aeiou' else ''} {kind} address"
        return "an address of this machine" if is_own(address) else ""

    @staticmethod
    def _connect_to_first(entry: Entry, addresses: list[Address], port: int) -> socket.socket:
        """Return a connection to the first of the addresses that accepts one."""
        failure = ""
        for address in addresses:
            entry.address = str(address)
            connection = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
            if address.is_loopback:
                disable_pacing(connection)
            try:
                connection.settimeout(_CONNECT_S)
                connection.connect((str(address), port))
            except OSError as error:
                connection.close()
                failure = _reason(error)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        raise Unreachable(failure)


def resolve(host: str, port: int) -> list[Address]:
    """Return a host's addresses, IPv4 ones in their plain form; raises OSError."""
    literal = as_address(host)
    if literal is not None:
        return [literal]
    if host in LOOPBACK_NAMES or host.endswith(".localhost"):
        return [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = (as_address(str(each[4][0]).partition("%")[0]) for each in answers)
    return list(dict.fromkeys(address for address in addresses if address is not None))


def is_own(address: Address) -> bool:
    """Return True if an address is this machine's: the kernel would send from the same address. Nothing is sent."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return as_address(probe.getsockname()[0]) == address
        except OSError:
            return False


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


class Upstream(Value):
    """A person's own HTTP proxy."""

    host: str
    port: int
    authorization: str = ""

    @staticmethod
    def from_environment(environment: Mapping[str, str], host: str, port: int, *, tls: bool) -> Upstream | None:
        """Return the proxy that the environment names for a host, or None if the host is reached directly."""
        lower = {name.lower(): value for name, value in environment.items() if value and name.islower()}
        upper = {name.lower(): value for name, value in environment.items() if value and name.isupper()}
        settings = upper | lower
        names = ("https_proxy", "all_proxy") if tls else ("http_proxy", "all_proxy")
        name = next((name for name in names if name in settings), "")
        url = settings.get(name, "")
        no_proxy = {"no": settings.get("no_proxy", "")}
        bypass = getattr(urllib.request, "proxy_bypass_environment")  # noqa: B009 - not in the types, yet documented
        if not url or (no_proxy["no"] and (bypass(with_port(host, port), no_proxy) or bypass(host, no_proxy))):
            return None
        try:
            return Upstream._from_url(url if "://" in url else f"http://{url}")
        except ValueError:
            # Neither the URL nor the error is quoted: there may be a password in them.
            raise OSError(f"{name} is not a URL of a proxy") from None

    @staticmethod
    def _from_url(url: str) -> Upstream:
        """Raises OSError for another scheme, and ValueError if this is not the URL of a proxy."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http":
            raise OSError(f"only http:// proxies can be used, not {parts.scheme}://")
        if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError  # for example if a password has a slash that was not written as %2F
        login = ""
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            login = "Basic " + base64.b64encode(pair.encode()).decode()
        return Upstream(host=parts.hostname, port=parts.port or 80, authorization=login)


def _request_tunnel(connection: socket.socket, upstream: Upstream, target: str) -> None:
    """Ask a proxy to connect us with a host; raises OSError with its answer if it refuses."""
    login = f"Proxy-Authorization: {upstream.authorization}\r\n" if upstream.authorization else ""
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode("ascii"))
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        # One byte at a time: the bytes after the answer come from the host.
        piece = connection.recv(1)
        if not piece or len(answer) > _LONGEST_ANSWER:
            raise OSError("it closed the connection without an answer")
        answer += piece
    status = answer.split(b"\r\n")[0].decode("ascii", "replace")
    if not status.startswith("HTTP/1.") or status.split()[1:2] != ["200"]:
        raise OSError(f"it answered {status}")
