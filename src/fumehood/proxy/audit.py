"""The record of a run's connections, kept small whatever the command does."""

from __future__ import annotations

import threading
import time

from fumehood.core.connection import Connection
from fumehood.core.hosts import printed

MOST = 1000  # lines a run gets; what goes beyond is counted with others of its kind
OTHERS = "(others)"


class Entry:
    """One connection while it lasts; filled in by the thread that serves it."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.host, self.port = "", 0
        self.allowed = False
        self.reason = ""
        self.address = ""
        self.sent = self.received = 0
        self.started_at = time.time()
        self._began = time.monotonic()

    def connection(self) -> Connection:
        """Return what is known of it now."""
        return Connection(
            host=self.host, port=self.port, protocol=self.protocol, allowed=self.allowed, reason=self.reason,
            address=self.address, started_at=self.started_at, duration_s=time.monotonic() - self._began,
            sent=self.sent, received=self.received,
        )  # fmt: skip


class Audit:
    """All connections of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Entry] = set()
        self._kept: dict[object, Connection] = {}

    def begin(self, protocol: str, host: str = "", port: int = 0) -> Entry:
        """Open an entry."""
        entry = Entry(protocol)
        entry.host, entry.port = printed(host), port
        with self._lock:
            self._open.add(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """Close an entry; a second time means nothing."""
        with self._lock:
            if entry not in self._open:
                return
            self._open.discard(entry)
            self._keep(entry.connection())

    def _keep(self, connection: Connection) -> None:
        # Refusals repeat: tools try again and again. Connections that were made get a line each, while there is room.
        key: object = (connection.host, connection.port, connection.protocol, connection.reason)
        if connection.allowed and len(self._kept) < MOST:
            key = object()
        elif key not in self._kept and len(self._kept) >= MOST:
            connection = connection.replace(host=OTHERS, port=0, address="")
            key = (OTHERS, connection.protocol, connection.allowed, connection.reason)
        before = self._kept.get(key)
        self._kept[key] = connection if before is None else _together(before, connection)

    def connections(self) -> tuple[Connection, ...]:
        """Return all there was, the connections that are still open included, in the order they began."""
        with self._lock:
            found = [*self._kept.values(), *(entry.connection() for entry in self._open)]
        return tuple(sorted(found, key=lambda connection: connection.started_at))


def _together(one: Connection, other: Connection) -> Connection:
    return one.replace(
        count=one.count + 1, sent=one.sent + other.sent, received=one.received + other.received,
        duration_s=one.duration_s + other.duration_s,
    )  # fmt: skip
