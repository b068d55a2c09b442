"""The connections of one run, as its report lists them: a list that stays small, whatever the command does."""

from __future__ import annotations

import time

from fumehood.core.hosts import printable_host
from fumehood.core.report import Connection
from fumehood.linux.libc import InterruptSafeLock

MOST_LINES = 1000  # of one run; connections beyond that are counted together with others of their kind
OTHERS = "(others)"
_OTHER_REASONS = "for one of the reasons above, or another one"


class Entry:
    """One connection while it lasts; the thread that serves it fills the entry in."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.host, self.port = "", 0
        self.allowed = False
        self.reason = ""
        self.address = ""
        self.sent = self.received = 0
        self.started_at = time.time()
        self._began = self.moved_at = time.monotonic()

    def count_sent(self, size: int) -> None:
        """Count bytes that the command sent."""
        self.sent += size
        self.moved_at = time.monotonic()

    def count_received(self, size: int) -> None:
        """Count bytes that came back."""
        self.received += size
        self.moved_at = time.monotonic()

    def connection(self) -> Connection:
        """Return the connection as it is recorded, as of now."""
        return Connection(
            host=self.host, port=self.port, protocol=self.protocol, allowed=self.allowed,
            reason=printable_host(self.reason),  # it may quote the other side, for example a name
            address=self.address, started_at=self.started_at, duration_s=time.monotonic() - self._began,
            sent=self.sent, received=self.received,
        )  # fmt: skip


class ConnectionAudit:
    """All connections of one run."""

    def __init__(self) -> None:
        self._lock = InterruptSafeLock()
        self._open: set[Entry] = set()
        self._lines: dict[object, Connection] = {}

    def begin(self, protocol: str, host: str = "", port: int = 0) -> Entry:
        """Open an entry."""
        entry = Entry(protocol)
        entry.host, entry.port = printable_host(host), port
        with self._lock:
            self._open.add(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """Close an entry; for a closed one, do nothing."""
        with self._lock:
            if entry not in self._open:
                return
            self._open.discard(entry)
            connection = entry.connection()
            # Refusals repeat, because tools try again and again. Connections that were made get a line each, as long as
            # there is room.
            key: object = (connection.host, connection.port, connection.protocol, connection.reason)
            if connection.allowed and len(self._lines) < MOST_LINES:
                key = object()
            elif key not in self._lines and len(self._lines) >= MOST_LINES:
                # Each host may have a reason of its own, so these would be too many too.
                reason = _OTHER_REASONS if connection.reason else ""
                connection = connection.replace(host=OTHERS, port=0, address="", reason=reason)
                key = (OTHERS, connection.protocol, connection.allowed, reason)
            line = self._lines.get(key)
            if line is not None:
                connection = line.replace(
                    count=line.count + 1, sent=line.sent + connection.sent,
                    received=line.received + connection.received, duration_s=line.duration_s + connection.duration_s,
                )  # fmt: skip
            self._lines[key] = connection

    def connections(self) -> tuple[Connection, ...]:
        """Return all connections, also those that are still open, in the order in which they began."""
        with self._lock:
            connections = [*self._lines.values(), *(entry.connection() for entry in self._open)]
        return tuple(sorted(connections, key=lambda connection: connection.started_at))
