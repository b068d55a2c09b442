"""Addresses that stand for names of hosts, for programs that know no proxy.

Such a program asks a resolver for a name, and connects to the address. Only a query for one name is understood, as
resolvers send it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import struct
import threading

from fumehood.core.hosts import LOOPBACK_NAMES, as_address, canonical_host

FIRST = ipaddress.IPv4Address("198.18.0.2")  # the range for tests between networks, of which there are none inside
_MOST_NAMES = 65_000
_DNS_HEAD = struct.Struct(">HHHHHH")
_A_RECORD = 1
_FAILED, _NO_SUCH_NAME, _REFUSED = 2, 3, 5
_TTL_S = 30


class Names:
    """The names that a run or a session has asked for, and the address that stands for each.

    The proxies of a session share the names in a file, with one on each line. The number of a name is that of its line.
    """

    def __init__(self, file: int = -1) -> None:
        self._lock = threading.Lock()
        self._file = file
        self._read_up_to = 0  # bytes of the file
        self._unfinished_line = b""  # the bytes after the last newline that was read
        self._hosts: list[str] = []
        self._numbers: dict[str, int] = {}

    def host(self, address: str) -> str | None:
        """Return the name that an address stands for, or None."""
        parsed = as_address(address)
        number = -1 if parsed is None else int(parsed) - int(FIRST)
        if self._file >= 0 and number >= len(self._hosts):
            with self._lock:
                self._read_new_lines()
        return self._hosts[number] if 0 <= number < len(self._hosts) else None

    def answer(self, query: bytes, *, is_refused: bool = False) -> bytes | None:
        """Return the answer to a resolver's query, or None if it can't be understood."""
        try:
            number, flags, questions, *_ = _DNS_HEAD.unpack_from(query)
            name, end = _read_name(query, _DNS_HEAD.size)
            kind, _ = struct.unpack_from(">HH", query, end)
        except (struct.error, IndexError, UnicodeDecodeError):
            return None
        if flags & 0x8000 or questions != 1:
            return None
        code, address = (_REFUSED, None) if is_refused else self._look_up(name, kind)
        record = b"" if address is None else b"\xc0\x0c" + struct.pack(">HHIH", _A_RECORD, 1, _TTL_S, 4) + address
        head = _DNS_HEAD.pack(number, 0x8180 | (flags & 0x0100) | code, 1, 1 if record else 0, 0, 0)
        return head + query[_DNS_HEAD.size : end + 4] + record

    def _look_up(self, name: str, kind: int) -> tuple[int, bytes | None]:
        """Return the code of the answer, and the address that stands for the name, if there is one of this kind."""
        try:
            host = canonical_host(name)
        except ValueError:
            return _NO_SUCH_NAME, None
        last_label = host.rpartition(".")[2]
        if as_address(host) is not None or host in LOOPBACK_NAMES or last_label in ("localhost", "arpa"):
            return _NO_SUCH_NAME, None
        if kind != _A_RECORD:
            return 0, None  # the name exists, without records of this kind
        with self._lock:
            if host not in self._numbers:
                self._add(host)
            number = self._numbers.get(host)
            return (_FAILED, None) if number is None else (0, (FIRST + number).packed)

    def _add(self, host: str) -> None:
        """Give a name a number, unless another proxy has done so, or there are too many names."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._read_new_lines()
            if host in self._numbers or len(self._hosts) >= _MOST_NAMES:
                return
            if self._file >= 0:
                # A proxy that was killed may have left a part of its line.
                newline = b"\n" if self._unfinished_line else b""
                os.pwrite(self._file, newline + f"{host}\n".encode(), self._read_up_to)
                self._read_new_lines()
            else:
                self._numbers[host] = len(self._hosts)
                self._hosts.append(host)
        finally:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read_new_lines(self) -> None:
        while self._file >= 0 and (piece := os.pread(self._file, 1 << 16, self._read_up_to)):
            self._read_up_to += len(piece)
            *lines, self._unfinished_line = (self._unfinished_line + piece).split(b"\n")
            for line in lines:
                self._numbers.setdefault(line.decode(), len(self._hosts))
                self._hosts.append(line.decode())


def _read_name(query: bytes, at: int) -> tuple[str, int]:
    """Return the name that begins at this byte of a query, and where it ends; raises IndexError if it is damaged."""
    labels = []
    while size := query[at]:
        label = query[at + 1 : at + 1 + size]
        # No pointers: a question is the first thing in its message.
        if size > 63 or len(label) < size or b"." in label:
            raise IndexError(at)
        labels.append(label.decode("ascii"))
        at += 1 + size
    return ".".join(labels), at + 1
