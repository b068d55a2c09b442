"""What a command may reach, decided from what was asked for and what the person's policy says; what it reached."""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:

    from fumehood.core.policy import Policy

NONE, HOSTS, FULL, ASK = "none", "hosts", "full", "ask"
MODES = (NONE, HOSTS, FULL)
PORT = 61080  # above those that the kernel gives out by itself
_SHARED_PORT = 1023  # which no other command of a session can take
_MOST_FORWARDS, _MOST_NOTICED, _FEW = 64, 96, 16
_USUAL = (22, 80, 443)
DNS = 53
EVERY_HOST = "the whole network of this machine, every host"


class Network(Value):
    """One command's network: `hosts` are those it may reach, `to_ask` what a person must allow before."""

    mode: str = NONE
    hosts: tuple[str, ...] = ()
    to_ask: tuple[str, ...] = ()
    asks: bool = False  # a connection to any other host waits while a person is asked

    @property
    def is_proxied(self) -> bool:
        """Return True if the proxy is its way out, be it that everything is refused and noted."""
        return self.mode == HOSTS or self.asks


OFFLINE = Network()


def decided(mode: str, hosts: tuple[str, ...], policy: Policy) -> Network:
    """Return the network of a command that asks for a mode and for hosts; most ask for none."""
    if mode == NONE and not hosts and policy.network == NONE and not policy.hosts:
        return OFFLINE
    if policy.network == FULL:
        return Network(mode=FULL)
    if mode == FULL:
        return Network(mode=FULL, to_ask=(EVERY_HOST,))
    from fumehood.core.hosts import Hosts, parse

    granted, asked = Hosts(policy.hosts), [parse(host) for host in hosts]
    every = tuple(dict.fromkeys([*policy.hosts, *(rule.text for rule in asked)]))
    return Network(
        mode=HOSTS if every else NONE, hosts=every, asks=policy.network == ASK,
        to_ask=tuple(rule.text for rule in asked if not granted.cover(rule)),
    )  # fmt: skip


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


def by_proxy(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of this machine that lead to the proxy: too many of its ports were named to forward each."""
    wide = [addresses for _, addresses, (first, last) in _own(hosts) if last - first >= _FEW]
    named = [address for addresses in wide for address in addresses]
    return (*named, "localhost") if len(named) > 1 else tuple(named)


def _own(hosts: tuple[str, ...]) -> list[tuple[str, tuple[str, ...], tuple[int, int]]]:
    """Return this machine's names and addresses that were named, with their ports."""
    from fumehood.core.hosts import LOOPBACK_NAMES, parse

    own: list[tuple[str, tuple[str, ...], tuple[int, int]]] = []
    for rule in map(parse, hosts):
        if rule.name in LOOPBACK_NAMES:
            own.append((rule.name, ("127.0.0.1", "::1"), rule.ports))
        elif rule.network is not None and rule.network.is_loopback:
            own.append(("", (str(rule.network[rule.network.num_addresses > 1]),), rule.ports))
    return own


def direct_ports(hosts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ports at which hosts are reached by programs that know no proxy: the usual ones, and those named.

    A command can't have the usual ones for itself.
    """
    from fumehood.core.hosts import parse

    named = [rule.ports[0] for rule in map(parse, hosts) if rule.ports[0] == rule.ports[1] and not _own((rule.text,))]
    return tuple(dict.fromkeys([*_USUAL, *named]))[:_MOST_FORWARDS]


def proxy_port(taken: tuple[Forward, ...], *, in_session: bool = False) -> int:
    """Return the port inside that is the proxy's: the same always, unless a forwarded one is in its place."""
    ports = {each.port for each in taken}
    first, step = (_SHARED_PORT, -1) if in_session else (PORT, 1)
    return next(port for port in range(first, first + step * (len(ports) + 1), step) if port not in ports)


def resolvers(configuration: str) -> tuple[str, ...]:
    """Return where programs ask for names, by the text of resolv.conf: IPv4 addresses, three at most.

    Where they find no such text, they ask at 127.0.0.1.
    """
    lines = [line.split() for line in configuration.splitlines()]
    servers = [line[1] for line in lines if len(line) > 1 and line[0] == "nameserver" and line[1].count(".") == 3]
    return tuple(dict.fromkeys([*servers[:3], "127.0.0.1"]))


# Every connection that a command made or was refused: the audit trail of its network.

CONNECT, HTTP, SOCKS5, FORWARD = "connect", "http", "socks5", "forward"
NOT_GRANTED, SAID_NO = "this host was not granted", "a person was asked and said no"
UNREADABLE = "it can't be read"
UNANSWERED = "it had not answered when the command ended"


class Connection(Value):
    """One connection, or several of one kind: with whom, how much went both ways, and whether it was allowed."""

    host: str
    port: int
    protocol: str
    allowed: bool
    reason: str = ""
    address: str = ""  # where it really went
    started_at: float = 0.0
    duration_s: float = 0.0
    sent: int = 0  # by the command
    received: int = 0
    count: int = 1
