"""A network namespace with nothing in it but a way out that we hold the other end of.

A listening socket belongs to the namespace it was made in, wherever its descriptor goes: it is made inside and
served outside, so no process of ours is inside.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 0x1
_BACKLOG = 256


def send_listeners(channel: int, places: Sequence[tuple[str, int]]) -> None:
    """Bring up this namespace's loopback, listen at each address and port, and hand the listeners out."""
    import socket

    _bring_up_loopback()
    made = [_listening(address, port) for address, port in places]
    outside = socket.socket(fileno=os.dup(channel))
    socket.send_fds(outside, [b"!"], [each.fileno() for each in made])
    outside.close()
    for each in made:
        each.close()


def _bring_up_loopback() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket() as any_socket:
        name = b"lo".ljust(16, b"\0")
        flags = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, name + bytes(24)), 16)[0]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, name + struct.pack("H", flags | _UP) + bytes(22))


def _listening(address: str, port: int) -> socket.socket:
    import socket

    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if ":" in address:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind((address, port))
    listener.listen(_BACKLOG)
    return listener
