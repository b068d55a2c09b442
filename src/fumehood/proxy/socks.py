"""SOCKS5 (RFC 1928), the server's side: CONNECT by name or address, without a login."""

from __future__ import annotations

import ipaddress

from fumehood.core.hosts import canonical, port_number, printed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 5
_NO_LOGIN, _NONE_ACCEPTABLE = 0, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
GRANTED, FAILED, NOT_ALLOWED, UNREACHABLE, BAD_COMMAND, BAD_ADDRESS = 0, 1, 2, 4, 7, 8


class BadSocks(Exception):
    """The client said something that can't be answered with a connection; `reply` tells it, where one is due."""

    def __init__(self, message: str, reply: bytes, host: str = "", port: int = 0) -> None:
        super().__init__(message)
        self.reply = reply
        self.host, self.port = host, port


def answer(code: int) -> bytes:
    """Return the answer to a request."""
    return bytes((VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


def request(exactly: Callable[[int], bytes], send: Callable[[bytes], object]) -> tuple[str, int]:
    """Read a greeting, whose first byte was read already, and a request; return the host and port it asks for.

    `exactly` reads so many bytes. Raises BadSocks.
    """
    methods = exactly(exactly(1)[0])
    if _NO_LOGIN not in methods:
        raise BadSocks("the client insists on a login", bytes((VERSION, _NONE_ACCEPTABLE)))
    send(bytes((VERSION, _NO_LOGIN)))
    version, command, _, kind = exactly(4)
    if version != VERSION:
        raise BadSocks("this is not SOCKS5", answer(FAILED))
    if kind == _NAME:
        raw = exactly(exactly(1)[0]).decode("utf-8", "surrogateescape")
    elif kind == _IPV4:
        raw = str(ipaddress.IPv4Address(exactly(4)))
    elif kind == _IPV6:
        raw = str(ipaddress.IPv6Address(exactly(16)))
    else:
        raise BadSocks("the kind of address is unknown", answer(BAD_ADDRESS))
    port = int.from_bytes(exactly(2), "big")
    if command != _CONNECT:
        raise BadSocks("only CONNECT is served, not BIND or UDP", answer(BAD_COMMAND), printed(raw), port)
    try:
        return canonical(raw), port_number(str(port))
    except ValueError as error:
        raise BadSocks(f"{printed(raw)!r} is no host: {error}", answer(NOT_ALLOWED), printed(raw), port) from error
