"""Names for programs that know no proxy: each gets an address that leads to us, and nobody outside is asked.

What such a program then connects to is judged like any other request, by its name. Parsed here is only a question of
one name, as resolvers send it; anything else gets no answer.
"""

from __future__ import annotations

import ipaddress
import struct
import threading

from fumehood.core.hosts import LOOPBACK_NAMES, as_address, canonical

FIRST = ipaddress.IPv4Address("198.18.0.2")  # the range for tests between networks, of which there are none inside
_MOST = 65_000
_HEAD = struct.Struct(">HHHHHH")
_IPV4 = 1
_FAILED, _NO_SUCH_NAME = 2, 3
_TTL_S = 30


class Names:
    """The names one run has asked for, with the address that stands for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._hosts: list[str] = []

    def host(self, address: str) -> str | None:
        """Return the name that an address was given for."""
        found = as_address(address)
        number = -1 if found is None else int(found) - int(FIRST)
        return self._hosts[number] if 0 <= number < len(self._hosts) else None

    def _address(self, host: str) -> bytes | None:
        with self._lock:
            if host not in self._numbers:
                if len(self._hosts) >= _MOST:
                    return None
                self._numbers[host] = len(self._hosts)
                self._hosts.append(host)
            return (FIRST + self._numbers[host]).packed

    def answer(self, query: bytes) -> bytes | None:
        """Return the answer to a resolver's question, or None to what is none."""
        try:
            number, flags, questions, *_ = _HEAD.unpack_from(query)
            name, end = _name(query, _HEAD.size)
            kind, _ = struct.unpack_from(">HH", query, end)
        except (struct.error, IndexError, UnicodeDecodeError):
            return None
        if flags & 0x8000 or questions != 1:
            return None
        code, address = self._found(name, kind)
        record = b"" if address is None else b"\xc0\x0c" + struct.pack(">HHIH", _IPV4, 1, _TTL_S, 4) + address
        head = _HEAD.pack(number, 0x8180 | (flags & 0x0100) | code, 1, 1 if record else 0, 0, 0)
        return head + query[_HEAD.size : end + 4] + record

    def _found(self, name: str, kind: int) -> tuple[int, bytes | None]:
        try:
            host = canonical(name)
        except ValueError:
            return _NO_SUCH_NAME, None
        last = host.rpartition(".")[2]
        if as_address(host) is not None or host in LOOPBACK_NAMES or last in ("localhost", "arpa"):
            return _NO_SUCH_NAME, None
        if kind != _IPV4:
            return 0, None  # it exists, and has none of these
        address = self._address(host)
        return (_FAILED, None) if address is None else (0, address)


def _name(query: bytes, at: int) -> tuple[str, int]:
    labels = []
    while size := query[at]:
        label = query[at + 1 : at + 1 + size]
        # No pointers: a question is the first thing in its message.
        if size > 63 or len(label) < size or b"." in label:
            raise IndexError(at)
        labels.append(label.decode("ascii"))
        at += 1 + size
    return ".".join(labels), at + 1
