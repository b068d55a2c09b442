"""More connections than there is room for: whoever has gone makes room, and names need none."""

import socket
import threading
import time

import pytest

from fumehood.proxy import server as serving_module
from fumehood.proxy.server import Proxy
from patience import LONG_S, eventually
from proxy.conftest import read_all
from proxy.test_names import address, question
from proxy.test_proxy import connect_request
from servers import Tcp, Web, serving


@pytest.fixture
def silent():
    """A host that takes everything and answers nothing."""
    over = threading.Event()
    with serving(Tcp(lambda _connection: over.wait(LONG_S))) as there:
        yield there
        over.set()


def get(port: int) -> bytes:
    return f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.long
@pytest.mark.parametrize("asked", [get, lambda port: connect_request(f"127.0.0.1:{port}") + b"hello"])
def test_programs_that_gave_up_make_room_for_others(proxy, monkeypatch, silent, asked):
    monkeypatch.setattr(serving_module, "MOST_CONNECTIONS", 4)
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}", f"127.0.0.1:{silent.port}")
        for number in range(4):
            with running.connect() as client:
                client.sendall(asked(silent.port))
                assert eventually(lambda number=number: silent.met == number + 1)
        with running.connect() as client:
            client.settimeout(60)
            client.sendall(get(web.port))
            assert read_all(client).endswith(b"hello\n")


@pytest.mark.long
def test_a_client_that_has_said_everything_and_listens_is_left_alone_while_something_comes(proxy, monkeypatch):
    monkeypatch.setattr(serving_module, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(serving_module, "_GIVEN_UP_S", 5.0)

    def speak_slowly(connection):
        for _ in range(30):
            connection.sendall(b"x")
            time.sleep(0.25)

    with serving(Tcp(speak_slowly)) as there, serving(Web()) as web:
        running = proxy(f"127.0.0.1:{there.port}", f"127.0.0.1:{web.port}")
        with running.connect() as slow, running.connect() as other:
            slow.sendall(connect_request(f"127.0.0.1:{there.port}"))
            slow.shutdown(socket.SHUT_WR)
            assert slow.recv(1)
            other.sendall(get(web.port))
            assert read_all(slow).endswith(b"x" * 30)
            assert read_all(other).endswith(b"hello\n")


def test_names_are_answered_while_every_place_is_taken(monkeypatch, silent):
    monkeypatch.setattr(serving_module, "MOST_CONNECTIONS", 1)
    proxy = Proxy([f"127.0.0.1:{silent.port}"], environment={}, resolvers=1)
    ours, theirs = socket.socketpair()
    resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with theirs, socket.create_server(("127.0.0.1", 0)) as listener, resolver:
        resolver.bind(("127.0.0.1", 0))
        places = listener.getsockname(), resolver.getsockname()
        proxy.start(ours)
        socket.send_fds(theirs, [b"!"], [listener.fileno(), resolver.fileno()])
    try:
        with socket.create_connection(places[0]) as one, socket.create_connection(places[0]) as two:
            one.sendall(get(silent.port))
            assert eventually(lambda: silent.met)
            two.sendall(get(silent.port))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                asking.settimeout(60)
                for name in (b"a.example", b"b.example"):
                    asking.sendto(question(name), places[1])
                    assert address(asking.recv(512)).startswith("198.18.")
    finally:
        proxy.stop()
