"""The end of a run: what its programs sent last arrives, or is seen to be cut off."""

import contextlib
import socket
import threading
import time

import pytest

from fumehood.core.report import UNANSWERED
from fumehood.proxy import server as serving_module
from patience import LONG_S, eventually
from proxy.conftest import read_all
from proxy.test_proxy import connect_request
from servers import Tcp, serving

SIZE = 8_000_000


class Slow:
    """A host that reads slowly, and remembers how much it got and how it ended; paused, it reads nothing."""

    def __init__(self, *, is_paused: bool = False) -> None:
        self.size, self.end = 0, ""
        self.go_on = threading.Event()
        if not is_paused:
            self.go_on.set()

    def __call__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        self.go_on.wait(LONG_S)
        try:
            while piece := connection.recv(1 << 16):
                self.size += len(piece)
                time.sleep(0.04)
            self.end = "closed"
        except ConnectionResetError:
            self.end = "reset"


def head(protocol: str, port: int) -> bytes:
    if protocol == "connect":
        return connect_request(f"127.0.0.1:{port}")
    return f"PUT http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {SIZE}\r\n\r\n".encode()


def send(running, protocol: str, port: int) -> None:
    with running.connect() as client:
        client.sendall(head(protocol, port))
        if protocol == "connect":
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(OSError):  # it may be cut off
            client.sendall(b"x" * SIZE)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["connect", "http"])
def test_what_was_sent_last_arrives_however_slowly(proxy, protocol):
    slow = Slow()
    with serving(Tcp(slow)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        send(running, protocol, there.port)
        (seen,) = running.stop()
        assert eventually(lambda: slow.end)
    assert (slow.end, seen.reason) == ("closed", "")
    assert slow.size >= SIZE
    assert seen.sent == slow.size


def is_stuck(running) -> bool:
    """Whether much was sent, and no more is."""
    before = [each.sent for each in running.proxy.audit.connections()]
    time.sleep(0.3)
    return before == [each.sent for each in running.proxy.audit.connections()] and sum(before) > 1 << 18


@pytest.mark.parametrize("protocol", ["connect", "http"])
def test_what_is_cut_off_is_seen_to_be(proxy, monkeypatch, protocol):
    monkeypatch.setattr(serving_module, "_STALLED_S", 0.5)
    paused = Slow(is_paused=True)
    with serving(Tcp(paused)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        sending = threading.Thread(target=send, args=(running, protocol, there.port))
        sending.start()
        assert eventually(lambda: there.met)
        # It can't send everything: it is killed, as it were, when the run ends.
        assert eventually(lambda: is_stuck(running))
        (seen,) = running.proxy.stop(patience_s=0.5)
        running._stopped = ()
        paused.go_on.set()
        assert eventually(lambda: paused.end)
    assert paused.end == "reset"
    assert "cut off" in seen.reason


def test_nobody_waits_for_an_answer_once_all_is_sent(proxy):
    over = threading.Event()
    with serving(Tcp(lambda _connection: over.wait(LONG_S))) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        with running.connect() as client:
            client.sendall(connect_request(f"127.0.0.1:{there.port}") + b"hello")
            client.shutdown(socket.SHUT_WR)
            assert eventually(lambda: there.met)
            began = time.monotonic()
            (seen,) = running.proxy.stop(patience_s=LONG_S)
            running._stopped = ()
            assert time.monotonic() - began < 60
            read_all(client)
        over.set()
    assert (seen.sent, seen.reason) == (5, "")


def test_a_host_that_had_not_answered_is_told_as_that(proxy):
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for each in (one, two):  # what comes after these is not even refused
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        place = f"127.0.0.1:{full.getsockname()[1]}"
        running = proxy(place)
        with running.connect() as client:
            client.sendall(connect_request(place))
            assert eventually(running.proxy.audit.connections)
            assert eventually(lambda: running.proxy.audit.connections()[0].address)
            (seen,) = running.proxy.stop(patience_s=0.1)
            running._stopped = ()
    assert (seen.allowed, seen.sent, seen.reason) == (True, 0, UNANSWERED)
