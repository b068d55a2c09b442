"""A proxy that listens on loopback, without a sandbox around it."""

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from fumehood.proxy import relay
from fumehood.proxy.server import Proxy
from patience import LONG_S


class Running:
    """A proxy, where it is, and a way to speak to it."""

    def __init__(self, hosts, environment=None) -> None:
        self.proxy = Proxy(hosts, environment=environment or {})
        ours, theirs = socket.socketpair()
        with theirs, socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(200)
            self.port = listener.getsockname()[1]
            self.proxy.start(ours)
            socket.send_fds(theirs, [b"!"], [listener.fileno()])
        self._stopped = None

    def connect(self) -> socket.socket:
        # Not by create_connection: tests let names resolve to something else.
        client = socket.socket()
        client.settimeout(LONG_S)
        client.connect(("127.0.0.1", self.port))
        return client

    def say(self, data: bytes) -> bytes:
        """Send something, and return all that comes back until the proxy closes."""
        with self.connect() as client:
            client.sendall(data)
            with contextlib.suppress(OSError):  # it was closed already
                client.shutdown(socket.SHUT_WR)
            return read_all(client)

    def stop(self):
        if self._stopped is None:
            self._stopped = self.proxy.stop()
        return self._stopped


def read_all(client: socket.socket) -> bytes:
    found = b""
    try:
        while piece := client.recv(1 << 16):
            found += piece
    except ConnectionResetError:
        pass  # what we had sent was not read; what came is all there is
    return found


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Running]]:
    # Whoever is refused is listened to until they have said everything, however slowly they are let speak here.
    monkeypatch.setattr(relay, "_LINGER_S", LONG_S)
    made: list[Running] = []

    def make(*hosts, environment=None) -> Running:
        made.append(Running(hosts, environment))
        return made[-1]

    yield make
    for each in made:
        each.stop()
