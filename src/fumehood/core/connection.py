"""Every connection that a command made or was refused: the audit trail of its network."""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CONNECT, HTTP, SOCKS5, FORWARD = "connect", "http", "socks5", "forward"


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


def wanted(connections: Iterable[Connection]) -> tuple[str, ...]:
    """Return each `host:port` that a command tried to reach and was not granted, in the order of the first try."""
    from fumehood.core.hosts import shown

    return tuple(dict.fromkeys(shown(each.host, each.port) for each in connections if each.reason == NOT_GRANTED))


NOT_GRANTED = "this host was not granted"
