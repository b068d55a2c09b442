"""A network namespace with nothing in it but a way out that we hold the other end of.

A listening socket belongs to the namespace it was made in, wherever its descriptor goes: it is made inside and
served outside, so no process of ours is inside.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 0x1
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_BACKLOG = 256
_ANY, _LOOPBACK = "0.0.0.0", "127.0.0.1"  # noqa: S104 - of a namespace that nobody else is in
_RANGE, _DNS = ("198.18.0.1", "255.254.0.0"), 53


def send_listeners(channel: int, places: Sequence[tuple[str, int]], resolvers: Sequence[str] = ()) -> None:
    """Bring up this namespace's loopback, listen at each address and port, and hand the listeners out.

    `resolvers` are addresses where names are asked for; what they are told there lies in a range of this namespace.
    """
    import socket

    _bring_up_loopback()
    _send_at_once()
    everywhere = {port for address, port in places if address == _ANY}
    made = [_listening(address, port, is_shared=port in everywhere) for address, port in places]
    if resolvers:
        _add_address(0, *_RANGE)
        for number, address in enumerate(resolvers, 1):
            if not address.startswith("127."):
                _add_address(number, address, "255.255.255.255")
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            made[-1].bind((address, _DNS))
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


def _send_at_once() -> None:
    """Let what commands send over this namespace's loopback wait for no timer, as with BBR it would."""
    try:
        setting = os.open("/proc/sys/net/ipv4/tcp_congestion_control", os.O_WRONLY)
    except OSError:
        return  # read-only, as in a container: what is sent is then as slow as the host's own over loopback
    os.write(setting, b"reno")
    os.close(setting)


def _add_address(number: int, address: str, mask: str) -> None:
    """Give loopback one more address; of a range, every one is then its own."""
    import fcntl
    import socket
    import struct

    name = f"lo:{number}".encode().ljust(16, b"\0")
    with socket.socket() as any_socket:
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
            place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(any_socket, request, name + place + bytes(8))


def _listening(address: str, port: int, *, is_shared: bool) -> socket.socket:
    import socket

    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if is_shared:  # one for every address, and perhaps one for loopback, which the kernel then prefers
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if ":" in address:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind((address, port))
    listener.listen(_BACKLOG)
    return listener


def loopback_listeners() -> tuple[tuple[str, int], ...]:
    """Return the loopback addresses and ports at which programs of this machine listen now."""
    found: dict[tuple[str, int], None] = {}
    for table, meant in _TABLES:
        try:
            with open(table) as file:
                next(file)
                for row in file:
                    _, local, _, state, _ = row.split(None, 4)
                    if state != _LISTENING:
                        break  # listeners come first, and there may be very many connections
                    address, _, port = local.partition(":")
                    found |= dict.fromkeys((each, int(port, 16)) for each in meant.get(address, ()))
        except FileNotFoundError:
            continue  # a kernel without IPv6
    return tuple(found)


def _as_listed(*words: bytes) -> str:
    """Write an address as the kernel lists it: four bytes at a time, each four as one number of this machine's."""
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_LISTENING = "0A"
_NONE, _OWN = bytes(4), b"\x7f\0\0\1"
# A program that listens at no particular IPv6 address mostly listens at every IPv4 address too.
_TABLES = (
    ("/proc/net/tcp", {_as_listed(_OWN): (_LOOPBACK,), _as_listed(_NONE): (_LOOPBACK,)}),
    (
        "/proc/net/tcp6",
        {
            _as_listed(_NONE, _NONE, _NONE, b"\0\0\0\1"): ("::1",),
            _as_listed(_NONE, _NONE, _NONE, _NONE): (_LOOPBACK, "::1"),
            _as_listed(_NONE, _NONE, b"\0\0\xff\xff", _OWN): (_LOOPBACK,),
        },
    ),
)

# Where only bubblewrap may make user namespaces, the listeners are made by a program of the host's inside the
# sandbox, before the command takes its place.
_INSIDE = """
import os, signal, socket, sys
channel, count = int(sys.argv[1]), int(sys.argv[2])
places, command = sys.argv[3 : 3 + count], sys.argv[3 + count :]
made = []
for place in places:
    address, _, port = place.rpartition(":")
    made.append(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
    try:
        made[-1].bind((address, int(port)))
    except PermissionError:  # below 1024, which nobody inside may have; those outside count on one for each
        made[-1].bind((address, 0))
    made[-1].listen(256)
with socket.socket(fileno=channel) as outside:
    socket.send_fds(outside, [b"!"], [each.fileno() for each in made])
for each in made:
    each.close()
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.execv(command[0], command)
"""
CHANNEL_FD = 7


def from_inside(places: Sequence[tuple[str, int]], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that hands out listeners by CHANNEL_FD and then becomes the given one."""
    # The interpreter itself: a virtual environment's may lie where commands see nothing.
    python = os.path.realpath(sys.executable)
    listed = [f"{address}:{port}" for address, port in places]
    return (python, "-I", "-S", "-c", _INSIDE, str(CHANNEL_FD), str(len(listed)), *listed, *command)
