"""The hosts that a command may reach: how a person names them, what a name means, which addresses are not public."""

from __future__ import annotations

import ipaddress

from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address
    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ALL_PORTS = (1, 65535)
_LABEL_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_LONGEST_NAME, _LONGEST_LABEL = 253, 63
LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
# `is_private` of Python also has the ranges for documentation. These lead nowhere, except where networks use them.
_NETWORKS_BY_KIND = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "192.0.0.0/24",
                "fc00::/7", "fec0::/10", "64:ff9b:1::/48"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4", "100::/64"),
}  # fmt: skip
_SPECIAL_NETWORKS = [
    (ipaddress.ip_network(text), kind) for kind, networks in _NETWORKS_BY_KIND.items() for text in networks
]
# The last bits of these addresses are an IPv4 address: NAT64's, an old form, SIIT's. In 64:ff9b:1::/48, the range of
# NAT64 for local use, only that network itself knows where the IPv4 address is.
_IPV4_IN_IPV6 = [ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")]


class HostRule(Value):
    """One entry of a list of hosts, with ports: a name, all names below a name, an address or a network."""

    text: str
    name: str = ""  # "*" is every name, "*.example.org" every name below example.org
    network: Network | None = None
    ports: tuple[int, int] = ALL_PORTS

    def matches(self, host: str, port: int) -> bool:
        """Return True if this entry grants a host, in its canonical form, at a port."""
        if not self.ports[0] <= port <= self.ports[1]:
            return False
        address = as_address(host)
        if self.network is not None:
            return address is not None and address in self.network
        if self.name == "*":
            # Addresses match too. Those that are not public are refused after the name is resolved. "*" does not grant
            # this machine.
            return host not in LOOPBACK_NAMES
        if self.name.startswith("*."):
            return address is None and host.endswith(self.name[1:])
        return host == self.name

    def names_address(self, address: Address, port: int) -> bool:
        """Return True if this entry names exactly this address, so that it may be reached even if it is not public."""
        if not self.ports[0] <= port <= self.ports[1]:
            return False
        if self.network is not None:
            return address in self.network
        return self.name in LOOPBACK_NAMES and address.is_loopback

    def covers(self, rule: HostRule) -> bool:
        """Return True if this entry grants everything that another one grants."""
        if not (self.ports[0] <= rule.ports[0] and rule.ports[1] <= self.ports[1]):
            return False
        if self.network is not None or rule.network is not None:
            network, inner = self.network, rule.network
            if network is None or inner is None or network.version != inner.version:
                return False
            return inner.subnet_of(network)  # type: ignore[arg-type]  # both are of one version
        if rule.name in LOOPBACK_NAMES:
            # "*" does not grant this machine.
            return self.name == rule.name
        if self.name in ("*", rule.name):
            return True
        return self.name.startswith("*.") and rule.name.endswith(self.name[1:])


def parse_host(text: str) -> HostRule:
    """Read one entry: `host`, `host:port`, `host:from-to`, `*.example.org`, `10.0.0.0/8`, `[::1]:80`."""
    if "://" in text:
        raise _host_error(text, "it is a web address; name its host alone")
    host, port = _split_port(text.strip())
    ports = _parse_ports(port, text)
    if not host:
        raise _host_error(text, "it names no host")
    if host == "*":
        return HostRule(text=text.strip(), name="*", ports=ports)
    if "/" in host:
        try:
            return HostRule(text=text.strip(), network=ipaddress.ip_network(host), ports=ports)
        except ValueError as error:
            raise _host_error(text, str(error)) from error
    has_wildcard = host.startswith("*.")
    try:
        name = canonical_host(host[2:] if has_wildcard else host)
    except ValueError as error:
        raise _host_error(text, str(error)) from error
    address = as_address(name)
    if address is not None:
        if has_wildcard:
            raise _host_error(text, "an address has no names below it")
        return HostRule(text=text.strip(), network=ipaddress.ip_network(address), ports=ports)
    return HostRule(text=text.strip(), name=f"*.{name}" if has_wildcard else name, ports=ports)


def _host_error(text: str, why: str) -> BadRequest:
    return BadRequest(
        f"{printable_host(text)!r} is not a host: {why}",
        hint="for example pypi.org, pypi.org:443, *.example.org, 10.0.0.0/8, [::1]:8080",
    )


def printable_host(text: str) -> str:
    """Return a host, which anybody may have sent, in a form for one line of a report."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:300])


def _split_port(text: str) -> tuple[str, str]:
    """Return a host and its port, or "" if there is none; an IPv6 address has a port only with brackets."""
    if text.startswith("["):
        address, bracket, rest = text[1:].partition("]")
        if bracket and (not rest or rest.startswith(":")):
            return address, rest[1:] if rest else ""
        return "", ""
    if text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _parse_ports(text: str, entry: str) -> tuple[int, int]:
    """Return the first and last port of an entry; `text` is the part of it that has the ports."""
    if text in ("", "*"):
        if entry.rstrip().endswith(":"):
            raise _host_error(entry, "the port is missing")
        return ALL_PORTS
    first, dash, last = text.partition("-")
    try:
        ports = port_number(first), port_number(last if dash else first)
    except ValueError as error:
        raise _host_error(entry, str(error)) from error
    if ports[0] > ports[1]:
        raise _host_error(entry, "the range of ports is empty")
    return ports


class PortError(ValueError):
    """A text is not a port."""


def port_number(text: str) -> int:
    """Return the port that a text is; raises PortError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and ALL_PORTS[0] <= int(text) <= ALL_PORTS[1]):
        raise PortError(f"{printable_host(text)!r} is not a port")
    return int(text)


def canonical_host(host: str) -> str:
    """Return the canonical form of a host; raises ValueError if it is not a host, or could mean two hosts."""
    if any(not letter.isprintable() or letter.isspace() for letter in host):
        raise ValueError("there is a control character or a space in it")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        return str(_without_ipv6_mapping(_parse_address(host)))
    name = host.removesuffix(".")
    if not name.isascii():
        # Before all other checks: some letters become digits and dots.
        name = _to_ascii(name)
    name = name.lower()
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError("it is empty or too long")
    labels = name.split(".")
    for label in labels:
        if not label or len(label) > _LONGEST_LABEL or not _LABEL_LETTERS.issuperset(label):
            raise ValueError("it is not a host name")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        # The C library takes 127.1, 0x7f000001 and 017700000001 for 127.0.0.1.
        return str(_parse_address(name))
    return name


def _to_ascii(name: str) -> str:
    """Return an international name as it is looked up; raises ValueError.

    Python has the rules of 2003. By those of 2008, some names are other hosts: faß.de is no longer fass.de. The two
    differ in names in which the older rules change more than the case and the forms of letters.
    """
    import unicodedata

    try:
        ascii_name = name.encode("idna")
        changed_name = ascii_name.decode("idna")
    except UnicodeError as error:
        raise ValueError("it is not an international name") from error
    if changed_name != unicodedata.normalize("NFKC", name.lower()).replace("\N{IDEOGRAPHIC FULL STOP}", "."):
        raise ValueError("it is one host by the older rules for international names, and another by the newer ones")
    return ascii_name.decode("ascii")


def _parse_address(text: str) -> Address:
    if "%" in text:
        raise ValueError("an address with a zone is known to this machine only")
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError("it is not an address") from error


def _without_ipv6_mapping(address: Address) -> Address:
    """Return the IPv4 address if this is one in IPv6 form (`::ffff:127.0.0.1`), else the address itself."""
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def as_address(host: str) -> Address | None:
    """Return a host in its canonical form as an address, or None if it is a name."""
    if ":" not in host and not host[-1:].isdigit():
        return None
    try:
        return _without_ipv6_mapping(ipaddress.ip_address(host))
    except ValueError:
        return None


def parse_authority(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Read the `host:port` of a request; user names are refused. The message of a ValueError has none of its text."""
    if "@" in text:
        raise ValueError("there is a user name in it")
    host, port = _split_port(text)
    if not host:
        raise ValueError("it names no host")
    if not port:
        if default_port is None or text.endswith(":"):
            raise ValueError("it names no port")
        return canonical_host(host), default_port
    try:
        return canonical_host(host), port_number(port)
    except PortError as error:
        raise ValueError("its port is not a number from 1 to 65535") from error


def with_port(host: str, port: int) -> str:
    """Return a host and a port as one text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Hosts:
    """A list of hosts that a command may reach."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.rules = [parse_host(text) for text in texts]

    def add(self, text: str) -> None:
        """Add an entry; a thread may do so while others use the list."""
        self.rules.append(parse_host(text))

    def allows(self, host: str, port: int) -> bool:
        """Return True if an entry grants a host, in its canonical form, at a port."""
        return any(rule.matches(host, port) for rule in self.rules)

    def names_address(self, address: Address, port: int) -> bool:
        """Return True if an entry names exactly this address, so that it may be reached even if it is not public."""
        return any(rule.names_address(address, port) for rule in self.rules)

    def covers(self, rule: HostRule) -> bool:
        """Return True if one of the entries grants everything that a rule grants."""
        return any(own_rule.covers(rule) for own_rule in self.rules)


def special_kind(address: Address) -> str:
    """Return the kind of an address that is not public, for example "private"; "" for a public one."""
    addresses: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return special_kind(address.ipv4_mapped)
        # Translators on the way can turn it into these IPv4 addresses.
        addresses += [] if address.sixtofour is None else [address.sixtofour]
        addresses += address.teredo or ()
        if any(address in network for network in _IPV4_IN_IPV6):
            addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return next(
        (
            kind for candidate in addresses for network, kind in _SPECIAL_NETWORKS
            if candidate.version == network.version and candidate in network
        ),
        "",
    )  # fmt: skip


# How hosts are reached from inside: the ports inside that lead to this machine, and the proxy's port.

DNS_PORT = 53
_PROXY_PORT = 61080  # above the ports that the kernel gives to programs by itself
_SESSION_PROXY_PORT = 1023  # no other command of the session can take it
_MOST_FORWARDS, _MOST_LISTENERS = 64, 96
_MOST_PORTS_OF_RANGE = 16  # a longer range is reached through the proxy only
_USUAL_PORTS = (22, 80, 443)


class Forward(Value):
    """A port inside, and the port of this machine that it leads to."""

    address: str
    host: str  # a name may be at either of its addresses
    port: int


def forwards(hosts: tuple[str, ...], listeners: tuple[tuple[str, int], ...] = ()) -> tuple[Forward, ...]:
    """Return a forward for each granted port of this machine: inside, it is at the same address.

    So programs that know no proxy reach these ports too, for example a database. `listeners` are addresses and ports
    that were not granted, and that a person is asked for.
    """
    granted: dict[tuple[str, int], Forward] = {}
    for name, addresses, (first, last) in _own_addresses(hosts):
        if last - first < _MOST_PORTS_OF_RANGE:
            for port in range(first, last + 1):
                for address in addresses:
                    granted.setdefault((address, port), Forward(address=address, host=name or address, port=port))
    all_forwards = dict(list(granted.items())[:_MOST_FORWARDS])
    for address, port in listeners[:_MOST_LISTENERS]:
        all_forwards.setdefault((address, port), Forward(address=address, host="localhost", port=port))
    return tuple(all_forwards.values())


def names_for_proxy(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of this machine that lead to the proxy, because a range of its ports is too long to forward."""
    names = [
        address for _, addresses, (first, last) in _own_addresses(hosts)
        if last - first >= _MOST_PORTS_OF_RANGE for address in addresses
    ]  # fmt: skip
    return (*names, "localhost") if len(names) > 1 else tuple(names)


def _own_addresses(hosts: tuple[str, ...]) -> list[tuple[str, tuple[str, ...], tuple[int, int]]]:
    """Return the granted names of this machine ("" for an address), each with its addresses and ports."""
    own_addresses: list[tuple[str, tuple[str, ...], tuple[int, int]]] = []
    for rule in map(parse_host, hosts):
        if rule.name in LOOPBACK_NAMES:
            own_addresses.append((rule.name, ("127.0.0.1", "::1"), rule.ports))
        elif rule.network is not None and rule.network.is_loopback:
            own_addresses.append(("", (str(rule.network[rule.network.num_addresses > 1]),), rule.ports))
    return own_addresses


def direct_ports(hosts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ports at which programs that know no proxy reach other hosts: the usual ports and single granted ones.

    A command can't use the usual ones itself.
    """
    single_ports = [rule for rule in map(parse_host, hosts) if rule.ports[0] == rule.ports[1]]
    granted = [rule.ports[0] for rule in single_ports if not _own_addresses((rule.text,))]
    return tuple(dict.fromkeys([*_USUAL_PORTS, *granted]))[:_MOST_FORWARDS]


def proxy_port(all_forwards: tuple[Forward, ...], *, in_session: bool = False) -> int:
    """Return the proxy's port inside: always the same, unless a forward has that port."""
    taken_ports = {forward.port for forward in all_forwards}
    first, step = (_SESSION_PROXY_PORT, -1) if in_session else (_PROXY_PORT, 1)
    candidates = range(first, first + step * (len(taken_ports) + 1), step)
    return next(port for port in candidates if port not in taken_ports)
