"""Reach a host on the command's behalf: judged by its name, resolved here, judged again by its address, connected.

The connection goes to the very address that was judged; nothing is resolved twice.
"""

from __future__ import annotations

import ipaddress
import os
import socket

from fumehood.core.addresses import special
from fumehood.core.connection import NOT_GRANTED
from fumehood.core.hosts import LOOPBACK_NAMES, Hosts, as_address, shown
from fumehood.proxy.upstream import Upstream, connect, tunnel
from fumehood.proxy.wire import Gone, Wire, send_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fumehood.core.hosts import Address
    from fumehood.proxy.audit import Entry

_CONNECT_S = 20.0


class Denied(Exception):
    """The host may not be reached; the text says why."""


class Unreachable(Exception):
    """The host may be reached, but can't be."""


class Reach:
    """What one run may reach, and how the outside is reached from here.

    `refusal` waits for a person's answer about a `host:port` that was not granted, and says why not.
    """

    def __init__(
        self, hosts: Hosts, environment: Mapping[str, str] | None = None, refusal: Callable[[str], str] | None = None
    ) -> None:
        self.hosts = hosts
        self._refusal = refusal
        self._environment = os.environ if environment is None else environment

    def judge(self, entry: Entry, host: str, port: int, client: Wire) -> None:
        """Raise Denied unless the host was granted or is now; nothing is resolved, so nothing is told to anyone.

        Raises Gone where the client did not wait for the answer: it may have sent the same over another connection.
        """
        entry.host, entry.port = host, port
        if self.hosts.allow(host, port):
            return
        refusal = NOT_GRANTED if self._refusal is None else self._refusal(shown(host, port))
        if refusal:
            raise Denied(refusal)
        self.hosts.add(shown(host, port))
        if client.is_closed:
            entry.allowed = True
            raise Gone("the program had closed the connection before the person answered")

    def upstream(self, host: str, port: int, *, tls: bool) -> Upstream | None:
        """Return the person's own proxy, where their environment says to use one for this host."""
        address = as_address(host)
        if host in LOOPBACK_NAMES or (address is not None and special(address)):
            return None
        return Upstream.chosen(self._environment, host, port, tls=tls)

    def connect(self, entry: Entry, host: str, port: int) -> socket.socket:
        """Return a connection to a host that was judged, by way of the person's own proxy where they use one."""
        upstream, addresses = self._way(entry, host, port, tls=True)
        if upstream is None:
            return self._first(entry, addresses, port)
        try:
            return tunnel(upstream, host, port, _CONNECT_S)
        except OSError as error:
            raise Unreachable(f"the proxy {upstream.host}:{upstream.port}: {_told(error)}") from error

    def connect_http(self, entry: Entry, host: str, port: int) -> tuple[socket.socket, Upstream | None]:
        """Return a connection for plain HTTP, and the person's own proxy where it leads there."""
        upstream, addresses = self._way(entry, host, port, tls=False)
        if upstream is None:
            return self._first(entry, addresses, port), None
        try:
            return connect(upstream, _CONNECT_S), upstream
        except OSError as error:
            raise Unreachable(f"the proxy {upstream.host}:{upstream.port}: {_told(error)}") from error

    def _way(self, entry: Entry, host: str, port: int, *, tls: bool) -> tuple[Upstream | None, list[Address]]:
        try:
            upstream = self.upstream(host, port, tls=tls)
        except OSError as error:
            raise Unreachable(_told(error)) from error
        addresses = self._addresses(entry, host, port, must=upstream is None)
        entry.allowed = True
        if upstream is not None:
            entry.address = f"by way of {upstream.host}:{upstream.port}"
        return upstream, addresses

    def _addresses(self, entry: Entry, host: str, port: int, *, must: bool) -> list[Address]:
        """Return the host's addresses that may be reached; where another proxy resolves, there may be none."""
        try:
            found = resolve(host, port)
        except OSError as error:
            if not must:
                return []
            entry.allowed = True
            raise Unreachable(f"{host} can't be resolved: {_told(error)}") from error
        usable = [address for address in found if not self._objection(address, port)]
        if not usable:
            address = found[0]
            entry.address = str(address)
            raise Denied(f"{host} is at {address}, {self._objection(address, port)}, which was not named itself")
        return usable

    def _objection(self, address: Address, port: int) -> str:
        if self.hosts.name_address(address, port):
            return ""
        kind = special(address)
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
                failure = _told(error)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        raise Unreachable(failure)


def resolve(host: str, port: int) -> list[Address]:
    """Return a host's addresses, IPv4 ones in their plain form; raises OSError."""
    known = as_address(host)
    if known is not None:
        return [known]
    if host in LOOPBACK_NAMES or host.endswith(".localhost"):
        return [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = (as_address(str(each[4][0]).partition("%")[0]) for each in found)
    return list(dict.fromkeys(address for address in addresses if address is not None))


def is_own(address: Address) -> bool:
    """Tell whether an address is one of this machine's: the kernel would use it for itself. Nothing is sent."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return as_address(probe.getsockname()[0]) == address
        except OSError:
            return False


def _told(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
