"""Hosts a command may reach: how a person names them, which host a name means, which addresses it may not lead to."""

from __future__ import annotations

import ipaddress

from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address
    Net = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = (1, 65535)
_LABEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_LONGEST_NAME, _LONGEST_LABEL = 253, 63
LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
# What Python calls private also has the ranges for documentation, which lead nowhere; some networks use them.
_REFUSED = {
    "unspecified": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "192.0.0.0/24",
                "fc00::/7", "fec0::/10", "64:ff9b:1::/48"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4", "100::/64"),
}  # fmt: skip
_TABLE = [(ipaddress.ip_network(net), kind) for kind, nets in _REFUSED.items() for net in nets]
# In whose last bits there is an IPv4 address: NAT64's, an old form, and SIIT's. How a network uses NAT64's own range,
# 64:ff9b:1::/48, nobody else can tell.
_WRAPPING = [ipaddress.IPv6Network(net) for net in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")]


class HostRule(Value):
    """One entry of a list of hosts: a name, every name below one, an address or a network; and ports."""

    text: str
    name: str = ""  # "*" is every name, "*.example.org" every name below example.org
    network: Net | None = None
    ports: tuple[int, int] = PORTS

    def matches(self, host: str, port: int) -> bool:
        """Return True if a host in its one form is meant."""
        if not self.ports[0] <= port <= self.ports[1]:
            return False
        address = as_address(host)
        if self.network is not None:
            return address is not None and address in self.network
        if self.name == "*":
            # Every public address too; others are found out after resolution. This machine is none of them.
            return host not in LOOPBACK_NAMES
        if self.name.startswith("*."):
            return address is None and host.endswith(self.name[1:])
        return host == self.name

    def names_address(self, address: Address, port: int) -> bool:
        """Return True if a person named this very address, so that it may be reached though it is not public."""
        if not self.ports[0] <= port <= self.ports[1]:
            return False
        if self.network is not None:
            return address in self.network
        return self.name in LOOPBACK_NAMES and address.is_loopback

    def covers(self, other: HostRule) -> bool:
        """Return True if another entry grants nothing that this one does not."""
        if not (self.ports[0] <= other.ports[0] and other.ports[1] <= self.ports[1]):
            return False
        if self.network is not None or other.network is not None:
            net, inner = self.network, other.network
            if net is None or inner is None or net.version != inner.version:
                return False
            return inner.subnet_of(net)  # type: ignore[arg-type]  # both are of one version
        if other.name in LOOPBACK_NAMES:
            # "*" does not name this machine.
            return self.name == other.name
        if self.name in ("*", other.name):
            return True
        return self.name.startswith("*.") and other.name.endswith(self.name[1:])


def parse_host(text: str) -> HostRule:
    """Read one entry: `host`, `host:port`, `host:from-to`, `*.example.org`, `10.0.0.0/8`, `[::1]:80`."""
    if "://" in text:
        raise _bad(text, "it is a web address; name its host alone")
    host, port = _split(text.strip())
    ports = _ports(port, text)
    if not host:
        raise _bad(text, "it names no host")
    if host == "*":
        return HostRule(text=text.strip(), name="*", ports=ports)
    if "/" in host:
        try:
            return HostRule(text=text.strip(), network=ipaddress.ip_network(host), ports=ports)
        except ValueError as error:
            raise _bad(text, str(error)) from error
    below = host.startswith("*.")
    try:
        name = canonical_host(host[2:] if below else host)
    except ValueError as error:
        raise _bad(text, str(error)) from error
    address = as_address(name)
    if address is not None:
        if below:
            raise _bad(text, "an address has no names below it")
        return HostRule(text=text.strip(), network=ipaddress.ip_network(address), ports=ports)
    return HostRule(text=text.strip(), name=f"*.{name}" if below else name, ports=ports)


def _bad(text: str, why: str) -> BadRequest:
    return BadRequest(
        f"{printable_host(text)!r} is not a host: {why}",
        hint="for example pypi.org, pypi.org:443, *.example.org, 10.0.0.0/8, [::1]:8080",
    )


def printable_host(text: str) -> str:
    """Make a host that anybody may have sent fit for one line of a report."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:300])


def _split(text: str) -> tuple[str, str]:
    """Part a host from its port; a bare IPv6 address has none."""
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        if closed and (not rest or rest.startswith(":")):
            return inside, rest[1:] if rest else ""
        return "", ""
    if text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _ports(text: str, whole: str) -> tuple[int, int]:
    if text in ("", "*"):
        if whole.rstrip().endswith(":"):
            raise _bad(whole, "the port is missing")
        return PORTS
    first, dash, last = text.partition("-")
    try:
        ports = port_number(first), port_number(last if dash else first)
    except ValueError as error:
        raise _bad(whole, str(error)) from error
    if ports[0] > ports[1]:
        raise _bad(whole, "the range of ports is empty")
    return ports


class PortError(ValueError):
    """What is not a port."""


def port_number(text: str) -> int:
    """Read a port; raises PortError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and PORTS[0] <= int(text) <= PORTS[1]):
        raise PortError(f"{printable_host(text)!r} is not a port")
    return int(text)


def canonical_host(host: str) -> str:
    """Return a host in its one form; raises ValueError where it is none, or could mean two things."""
    if any(not letter.isprintable() or letter.isspace() for letter in host):
        raise ValueError("there is a control character or a space in it")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if ":" in host:
        return str(_unwrapped(_address(host)))
    name = host.removesuffix(".")
    if not name.isascii():
        # First of all: letters that map to digits and dots are then judged as what they become.
        name = _in_ascii(name)
    name = name.lower()
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError("it is empty or too long")
    labels = name.split(".")
    for label in labels:
        if not label or len(label) > _LONGEST_LABEL or not _LABEL.issuperset(label):
            raise ValueError("it is not a host name")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        # 127.1, 0x7f000001 and 017700000001 are all 127.0.0.1 to the C library.
        return str(_address(name))
    return name


def _in_ascii(name: str) -> str:
    """Return an international name as it is looked up; raises ValueError.

    Python knows the rules of 2003. By those of 2008, some names are other hosts: faß.de is no longer fass.de. What they
    change in a name, beyond its case and its letters' forms, is what the two differ in.
    """
    import unicodedata

    try:
        plain = name.encode("idna")
        meant = plain.decode("idna")
    except UnicodeError as error:
        raise ValueError("it is not an international name") from error
    if meant != unicodedata.normalize("NFKC", name.lower()).replace("\N{IDEOGRAPHIC FULL STOP}", "."):
        raise ValueError("it is one host by the older rules for international names, and another by the newer ones")
    return plain.decode("ascii")


def _address(text: str) -> Address:
    if "%" in text:
        raise ValueError("an address with a zone is known to this machine only")
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError("it is not an address") from error


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one only wraps."""
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def as_address(host: str) -> Address | None:
    """Return the address that a host in its one form is, or None for a name."""
    if ":" not in host and not host[-1:].isdigit():
        return None
    try:
        return _unwrapped(ipaddress.ip_address(host))
    except ValueError:
        return None


def parse_authority(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Read `host:port` as a request has it; raises ValueError, without a word of it. User names in it are refused."""
    if "@" in text:
        raise ValueError("there is a user name in it")
    host, port = _split(text)
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
    """Write a host and a port as one."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Hosts:
    """A list of hosts a command may reach."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.rules = [parse_host(text) for text in texts]

    def add(self, text: str) -> None:
        """Allow one more; any thread may, while others look."""
        self.rules.append(parse_host(text))

    def allow(self, host: str, port: int) -> bool:
        """Return True if a host in its one form may be reached at a port."""
        return any(rule.matches(host, port) for rule in self.rules)

    def name_address(self, address: Address, port: int) -> bool:
        """Return True if an address that is not public was named as such."""
        return any(rule.names_address(address, port) for rule in self.rules)

    def cover(self, rule: HostRule) -> bool:
        """Return True if another entry grants nothing that these don't; in doubt, no."""
        return any(mine.covers(rule) for mine in self.rules)


def special_kind(address: Address) -> str:
    """Say what is special about an address, or nothing where it is a public one."""
    addresses: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return special_kind(address.ipv4_mapped)
        # And the IPv4 addresses that a translator on the way would send this one to.
        addresses += [] if address.sixtofour is None else [address.sixtofour]
        addresses += address.teredo or ()
        if any(address in net for net in _WRAPPING):
            addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    kinds = (kind for each in addresses for net, kind in _TABLE if each.version == net.version and each in net)
    return next(kinds, "")


# How hosts are reached from inside: the ports of this machine that lead out, and the proxy's own.

DNS = 53
PORT = 61080  # the proxy's: above those that the kernel gives out by itself
_SHARED_PORT = 1023  # which no other command of a session can take
_MOST_FORWARDS, _MOST_NOTICED, _FEW = 64, 96, 16
_USUAL = (22, 80, 443)


class Forward(Value):
    """A port inside, and the port of this machine that it leads to."""

    address: str
    host: str  # a name may be at either of its addresses
    port: int


def forwards(hosts: tuple[str, ...], noticed: tuple[tuple[str, int], ...] = ()) -> tuple[Forward, ...]:
    """Return the ports of this machine that were named one by one: inside, they are at the same address.

    So programs that know no proxy reach them too: a database, for instance. `noticed` are addresses and ports that
    nobody named and that a person is asked for.
    """
    every: dict[tuple[str, int], Forward] = {}
    for name, addresses, (first, last) in _own(hosts):
        if last - first < _FEW:
            for port in range(first, last + 1):
                for address in addresses:
                    every.setdefault((address, port), Forward(address=address, host=name or address, port=port))
    named = dict(list(every.items())[:_MOST_FORWARDS])
    for address, port in noticed[:_MOST_NOTICED]:
        named.setdefault((address, port), Forward(address=address, host="localhost", port=port))
    return tuple(named.values())


def names_for_proxy(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of this machine that lead to the proxy: too many of its ports were named to forward each."""
    wide = [addresses for _, addresses, (first, last) in _own(hosts) if last - first >= _FEW]
    named = [address for addresses in wide for address in addresses]
    return (*named, "localhost") if len(named) > 1 else tuple(named)


def _own(hosts: tuple[str, ...]) -> list[tuple[str, tuple[str, ...], tuple[int, int]]]:
    """Return this machine's names and addresses that were named, with their ports."""
    own: list[tuple[str, tuple[str, ...], tuple[int, int]]] = []
    for rule in map(parse_host, hosts):
        if rule.name in LOOPBACK_NAMES:
            own.append((rule.name, ("127.0.0.1", "::1"), rule.ports))
        elif rule.network is not None and rule.network.is_loopback:
            own.append(("", (str(rule.network[rule.network.num_addresses > 1]),), rule.ports))
    return own


def direct_ports(hosts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ports at which hosts are reached by programs that know no proxy: the usual ones, and those named.

    A command can't have the usual ones for itself.
    """
    one_port = (rule for rule in map(parse_host, hosts) if rule.ports[0] == rule.ports[1])
    named = [rule.ports[0] for rule in one_port if not _own((rule.text,))]
    return tuple(dict.fromkeys([*_USUAL, *named]))[:_MOST_FORWARDS]


def proxy_port(taken: tuple[Forward, ...], *, in_session: bool = False) -> int:
    """Return the port inside that is the proxy's: the same always, unless a forwarded one is in its place."""
    ports = {each.port for each in taken}
    first, step = (_SHARED_PORT, -1) if in_session else (PORT, 1)
    return next(port for port in range(first, first + step * (len(ports) + 1), step) if port not in ports)
