"""Reach a host on the command's behalf: judged by its name, resolved here, judged again by its address, connected.

The connection goes to the very address that was judged; nothing is resolved twice. Where this machine reaches the
network by a proxy of the person's own (HTTPS_PROXY and its friends), so does the command.
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
from fumehood.proxy.relay import Entry, Gone, Wire, send_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fumehood.core.hosts import Address

_CONNECT_S = 20.0
_LONGEST_ANSWER = 1 << 16


class Denied(Exception):
    """The host may not be reached; the text says why."""


class Unreachable(Exception):
    """The host may be reached, but can't be."""


class Outbound:
    """What one run may reach, and how the outside is reached from here.

    `refusal` waits for a person's answer about a `host:port` that was not granted, and says why not.
    """

    def __init__(
        self, hosts: Hosts, environment: Mapping[str, str] | None = None, refusal: Callable[[str], str] | None = None
    ) -> None:
        self.hosts = hosts
        self._refusal = refusal
        self._environment = os.environ if environment is None else environment
        self._answered_at: dict[str, float] = {}  # when a person had said yes to a `host:port`

    def judge(self, entry: Entry, host: str, port: int, client: Wire) -> None:
        """Raise Denied unless the host was granted or is now; nothing is resolved, so nothing is told to anyone.

        Raises Gone where the client did not wait for the answer: it may have sent the same over another connection.
        That one may have come here only afterwards, because there was no place for it before.
        """
        entry.host, entry.port = host, port
        place = with_port(host, port)
        if not self.hosts.allow(host, port):
            refusal = NOT_GRANTED if self._refusal is None else self._refusal(place)
            if refusal:
                raise Denied(refusal)
            self._answered_at.setdefault(place, time.monotonic())
            self.hosts.add(place)
        # Until it is connected: the command may end before.
        entry.allowed, entry.reason = True, UNANSWERED
        answered_at = self._answered_at.get(place)
        if answered_at is not None and client.was_left_before(answered_at):
            raise Gone("the program had closed the connection before the person answered")

    def connect(self, entry: Entry, host: str, port: int, *, tls: bool) -> tuple[socket.socket, Upstream | None]:
        """Return a connection to a host that was judged, and the person's own proxy where that is in between.

        By way of that one, it is a tunnel for `tls`; plain HTTP is asked of the proxy itself.
        """
        address = as_address(host)
        upstream = None
        try:
            if host not in LOOPBACK_NAMES and (address is None or not special_kind(address)):
                upstream = Upstream.chosen(self._environment, host, port, tls=tls)
        except OSError as error:
            raise Unreachable(_reason(error)) from error
        addresses = self._addresses(entry, host, port, must=upstream is None)
        try:
            if upstream is None:
                connection = self._first(entry, addresses, port)
            else:
                entry.address = f"by way of {upstream.host}:{upstream.port}"
                connection = socket.create_connection((upstream.host, upstream.port), _CONNECT_S)
                try:
                    if tls:
                        _tunnel(connection, upstream, with_port(host, port))
                except BaseException:
                    connection.close()
                    raise
        except OSError as error:
            by_way_of = "" if upstream is None else f"the proxy {upstream.host}:{upstream.port}: "
            raise Unreachable(by_way_of + _reason(error)) from error
        entry.reason = ""
        return connection, upstream

    def _addresses(self, entry: Entry, host: str, port: int, *, must: bool) -> list[Address]:
        """Return the host's addresses that may be reached; where another proxy resolves, there may be none."""
        try:
            addresses = resolve(host, port)
        except OSError as error:
            if not must:
                return []
            raise Unreachable(f"{host} can't be resolved: {_reason(error)}") from error
        usable = [address for address in addresses if not self._objection(address, port)]
        if not usable:
            entry.allowed, entry.address = False, str(addresses[0])
            why = self._objection(addresses[0], port)
            raise Denied(f"{host} is at {addresses[0]}, {why}, which was not named itself")
        return usable

    def _objection(self, address: Address, port: int) -> str:
        if self.hosts.name_address(address, port):
            return ""
        kind = special_kind(address)
        if kind:
            return f"a{'n' if kind[0] in 'aeiou' else ''} {kind} address"
        return "an address of this machine" if is_own(address) else ""

    @staticmethod
    def _first(entry: Entry, addresses: list[Address], port: int) -> socket.socket:
        failure = ""
        for address in addresses:
            entry.address = str(address)
            connection = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
            if address.is_loopback:
                send_at_once(connection)
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
    own = as_address(host)
    if own is not None:
        return [own]
    if host in LOOPBACK_NAMES or host.endswith(".localhost"):
        return [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = (as_address(str(each[4][0]).partition("%")[0]) for each in answers)
    return list(dict.fromkeys(address for address in addresses if address is not None))


def is_own(address: Address) -> bool:
    """Return True if an address is one of this machine's: the kernel would use it for itself. Nothing is sent."""
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
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str = ""

    @staticmethod
    def chosen(environment: Mapping[str, str], host: str, port: int, *, tls: bool) -> Upstream | None:
        """Return the proxy that the environment names for a host, or None where it is reached directly."""
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
            return Upstream._read(url if "://" in url else f"http://{url}")
        except ValueError:
            # Not a word of it, nor of the error: there may be a password in it.
            raise OSError(f"{name} is not a URL of a proxy") from None

    @staticmethod
    def _read(url: str) -> Upstream:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http":
            raise OSError(f"only http:// proxies can be used, not {parts.scheme}://")
        if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError  # for example a password with a slash that was not written as %2F
        login = ""
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            login = "Basic " + base64.b64encode(pair.encode()).decode()
        return Upstream(host=parts.hostname, port=parts.port or 80, authorization=login)


def _tunnel(connection: socket.socket, upstream: Upstream, target: str) -> None:
    """Have a proxy connect us with a host; raises OSError with its answer where it refuses."""
    login = f"Proxy-Authorization: {upstream.authorization}\r\n" if upstream.authorization else ""
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode("ascii"))
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        # One byte at a time: what follows is the host's.
        piece = connection.recv(1)
        if not piece or len(answer) > _LONGEST_ANSWER:
            raise OSError("it closed the connection without an answer")
        answer += piece
    status = answer.split(b"\r\n")[0].decode("ascii", "replace")
    if not status.startswith("HTTP/1.") or status.split()[1:2] != ["200"]:
        raise OSError(f"it answered {status}")
