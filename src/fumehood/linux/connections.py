"""Whose connection this is: the process of a sandbox that has the other end of it open."""

from __future__ import annotations

import socket

from fumehood.linux.namespaces import as_listed
from fumehood.linux.usage import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Of a client that is connected, or has sent all it will: not of one that is about to connect.
_CONNECTED = frozenset({b"01", b"04", b"05", b"08"})
_CLOSED = 7
_MAPPED = (bytes(4), bytes(4), b"\0\0\xff\xff")


def other_end(process: int, connection: socket.socket) -> int:
    """Return the inode of the socket at the other end of a connection, in the network of a process; 0 is none.

    As long as this end is connected, nothing else can have that address and port: asked for afterwards, so that a
    client that has gone is not taken for one that came after it.
    """
    local, remote = (_names(*address[:2]) for address in (connection.getpeername(), connection.getsockname()))
    rows = _rows(process, "tcp")
    inode = next((row[3] for row in rows if row[0] in local and row[1] in remote and row[2] in _CONNECTED), 0)
    is_closed = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED
    return 0 if is_closed else inode


def asking_end(process: int, port: int) -> int:
    """Return the inode of a socket from which datagrams are sent by this port, in the network of a process."""
    ending = b":%04X" % port
    return next((number for here, _, _, number in _rows(process, "udp") if here.endswith(ending)), 0)


def _rows(process: int, protocol: str) -> Iterator[tuple[bytes, bytes, bytes, int]]:
    for table in (protocol, f"{protocol}6"):
        for row in read(None, f"/proc/{process}/net/{table}").splitlines()[1:]:
            fields = row.split(None, 10)
            yield fields[1], fields[2], fields[3], int(fields[9])


def _names(address: str, port: int) -> tuple[bytes, ...]:
    """Write an address and a port as the kernel lists them; an IPv6 socket may have an IPv4 address too."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address)
        forms = [[packed[at : at + 4] for at in range(0, 16, 4)]]
    else:
        packed = socket.inet_aton(address)
        forms = [[packed], [*_MAPPED, packed]]
    return tuple(b"%s:%04X" % (as_listed(*form).encode(), port) for form in forms)
