"""Every connection that a command made or was refused: the audit trail of its network."""

from __future__ import annotations

from fumehood.core.value import Value

CONNECT, HTTP, SOCKS5, FORWARD = "connect", "http", "socks5", "forward"
NOT_GRANTED, SAID_NO = "this host was not granted", "a person was asked and said no"


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
