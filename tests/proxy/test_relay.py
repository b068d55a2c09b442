"""What a tunnel carries once it stands: everything, both ways, however slow or sudden the two ends are."""

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import socket
import threading
import time

import pytest

from fumehood.core.report import Run
from fumehood.proxy import relay
from fumehood.proxy.connections import ConnectionAudit
from fumehood.proxy.http import ESTABLISHED
from fumehood.proxy.relay import Pipe
from fumehood.service.network import _refused_connections
from patience import LONG_S, eventually
from proxy.test_proxy import connect_request, hello, socks_request
from servers import Tcp, Web, echo, serving

PAYLOAD = random.Random(4).randbytes(24 << 20)


@pytest.fixture
def tunnel(proxy):
    """Open a tunnel to a server of this machine; return the client's end."""
    made: list[socket.socket] = []

    def make(there: Tcp) -> socket.socket:
        made.append(proxy(f"127.0.0.1:{there.port}").connect())
        made[-1].sendall(connect_request(f"127.0.0.1:{there.port}"))
        # Not a byte more: what follows is the server's, which may speak first.
        assert made[-1].recv(len(ESTABLISHED), socket.MSG_WAITALL) == ESTABLISHED
        return made[-1]

    yield make
    for each in made:
        each.close()


def drain(connection: socket.socket) -> tuple[int, str]:
    """Read to the end; return the size and a checksum."""
    size, digest = 0, hashlib.sha256()
    while piece := connection.recv(1 << 18):
        size += len(piece)
        digest.update(piece)
    return size, digest.hexdigest()


WHOLE = (len(PAYLOAD), hashlib.sha256(PAYLOAD).hexdigest())


@pytest.mark.parametrize("room", [True, False])
def test_much_goes_both_ways_at_once_and_arrives_whole(tunnel, monkeypatch, room):
    if not room:
        monkeypatch.setattr(relay, "_large_pipes", threading.BoundedSemaphore(1))
        relay._large_pipes.acquire()
    arrived = []

    def both(connection):
        sender = threading.Thread(target=connection.sendall, args=(PAYLOAD,))
        sender.start()
        arrived.append(drain(connection))
        sender.join()

    with serving(Tcp(both)) as there:
        client = tunnel(there)
        sender = threading.Thread(target=lambda: (client.sendall(PAYLOAD), client.shutdown(socket.SHUT_WR)))
        sender.start()
        assert drain(client) == WHOLE
        sender.join()
    assert arrived == [WHOLE]


@pytest.mark.long
def test_much_by_plain_http_arrives_whole(proxy):
    with serving(Web(PAYLOAD)) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        head = f"POST http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {len(PAYLOAD)}\r\n"
        answer = running.say(f"{head}Connection: close\r\n\r\n".encode() + PAYLOAD)
        assert answer.endswith(b"\r\n\r\n" + PAYLOAD)
        assert web.asked[0][3] == PAYLOAD


def test_the_client_may_end_before_the_host(tunnel):
    with serving(Tcp(lambda connection: connection.sendall(drain(connection)[1].encode()))) as there:
        client = tunnel(there)
        client.sendall(PAYLOAD)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(64, socket.MSG_WAITALL).decode() == WHOLE[1]
        assert client.recv(1) == b""


@pytest.mark.parametrize("first", [b"", b"good day"])
def test_the_host_may_end_before_the_client(tunnel, first):
    arrived = []

    def say_and_listen(connection):
        connection.sendall(first)
        connection.shutdown(socket.SHUT_WR)
        arrived.append(drain(connection))

    with serving(Tcp(say_and_listen)) as there:
        client = tunnel(there)
        assert client.recv(64) == first
        if first:
            assert client.recv(1) == b""
        client.sendall(PAYLOAD)
        client.shutdown(socket.SHUT_WR)
        eventually(lambda: arrived)
    assert arrived == [WHOLE]


def test_a_host_that_ends_first_does_not_let_another_be_asked_for(tunnel):
    arrived = []

    def listen(connection):
        connection.shutdown(socket.SHUT_WR)
        arrived.append(drain(connection)[0])

    with serving(Tcp(listen)) as there:
        client = tunnel(there)
        assert client.recv(1) == b""
        client.sendall(hello("evil.example"))
        with contextlib.suppress(OSError):  # it is cut off already
            client.shutdown(socket.SHUT_WR)
        eventually(lambda: arrived)
    assert arrived == [0]


def test_a_slow_reader_holds_the_sender_back(tunnel):
    taken, enough, poured = [], threading.Event(), threading.Event()

    def pour(connection):
        connection.setblocking(False)
        while not enough.is_set():
            try:
                taken.append(connection.send(PAYLOAD[: 1 << 18]))
            except BlockingIOError:
                time.sleep(0.01)
        poured.set()

    with serving(Tcp(pour)) as there:
        client = tunnel(there)
        resident = _resident()
        assert eventually(lambda: taken)
        before = -1
        while sum(taken) != before < 64 << 20:
            before = sum(taken)
            time.sleep(0.3)
        enough.set()
        assert poured.wait(LONG_S)
        assert 0 < sum(taken) < 64 << 20
        assert _resident() - resident < 16 << 20
        assert drain(client)[0] == sum(taken)


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_client_that_vanishes_lets_go_of_the_host(tunnel):
    ends = []

    def pour(connection):
        try:
            while True:
                connection.sendall(PAYLOAD[: 1 << 18])
        except OSError as error:
            ends.append(error.errno)

    with serving(Tcp(pour)) as there:
        client = tunnel(there)
        client.recv(1 << 16)
        client.close()
        assert eventually(lambda: ends)
    assert ends[0] in (errno.ECONNRESET, errno.EPIPE)


@pytest.mark.long
def test_a_thousand_short_connections_leave_nothing_open(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        before = len(os.listdir("/proc/self/fd"))
        request = connect_request(f"127.0.0.1:{there.port}") + b"short"
        for _ in range(1000):
            assert running.say(request).endswith(b"short")
        assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert sum(seen.count for seen in running.stop()) == 1000


def test_a_pipe_grows_when_much_goes_through_it_and_only_so_many_do(monkeypatch):
    monkeypatch.setattr(relay, "_large_pipes", threading.BoundedSemaphore(1))
    sizes = []
    pipes = [Pipe(), Pipe()]
    for each in pipes:
        one, other = socket.socketpair()
        with one, other:
            for _ in range(8):
                one.sendall(b"x" * (60 << 10))
                assert each.fill_from(other.fileno()) == 60 << 10
                with open("/dev/null", "wb") as nowhere:
                    assert each.drain_to(nowhere.fileno()) == 60 << 10
        sizes.append(fcntl.fcntl(each._reading, 1032))
    assert sizes == [relay.LARGE_PIPE, relay.SMALL_PIPE]
    for each in pipes:
        each.close()
    assert relay._large_pipes.acquire(blocking=False), "the room of a closed pipe is free again"


# The record of a run's connections: small, true, and without what anybody else put into it.

SECRET = "s3cret"
UNREADABLE = [
    b"GARBAGE %d s3cret" + b"\xff" * 60_000 + b"\r\n\r\n",
    b"GET http://example.org/%d?key=s3cret HTTP/1.1\r\nHost: x\r\nBad header s3cret\r\n\r\n",
    b"GET http://example.org/%d HTTP/1.1\r\nHost: x\r\nAuthorization: s3\0cret s3cret\r\n\r\n",
    b"GET http://example%d.org:s3cret/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://ada:s3cret@example%d.org/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://s3cret\xff%d/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /s3cret%d HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT example%d.org:s3cret HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT ada:s3cret@example%d.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://example.org/%d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: s3cret\r\n\r\n",
]


@pytest.mark.parametrize("request_form", UNREADABLE)
def test_what_can_not_be_read_is_one_line_without_a_word_of_it(proxy, request_form):
    running = proxy("example.org")
    for number in range(20):
        answer = running.say(request_form % number)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert SECRET.encode() not in answer
    (seen,) = running.stop()
    assert (seen.allowed, seen.count) == (False, 20)
    assert SECRET not in seen.reason
    assert len(seen.reason) < 200


def test_no_line_is_long_whoever_wrote_into_it():
    audit = ConnectionAudit()
    entry = audit.begin("http", "x" * 100_000)
    entry.reason = "it answered " + "\x1b" * 100_000
    audit.end(entry)
    (seen,) = audit.connections()
    assert len(seen.host) + len(seen.reason) <= 600
    assert seen.reason.isprintable()


@pytest.mark.parametrize("is_allowed", [False, True])
def test_what_is_counted_together_is_so_whatever_its_reason(monkeypatch, is_allowed):
    monkeypatch.setattr("fumehood.proxy.connections.MOST_LINES", 5)
    audit = ConnectionAudit()
    for number in range(100):
        entry = audit.begin("connect", f"host{number}.example", 443)
        entry.allowed, entry.reason = is_allowed, f"host{number}.example can't be resolved"
        audit.end(entry)
    seen = audit.connections()
    assert len(seen) == 6
    assert sum(each.count for each in seen) == 100
    assert seen[-1].reason, "that something was the matter is still told"


def test_a_name_that_a_client_asks_for_by_tls_is_fit_to_be_shown(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"localhost:{there.port}")
        name = ".".join(["a" * 60] * 4)
        running.say(connect_request(f"localhost:{there.port}") + hello(name).replace(b"aaaaa.", b"\x1b[2Ja."))
    (seen,) = running.stop()
    assert not seen.allowed
    assert seen.reason.isprintable()


def told(running) -> str:
    run = Run(run="1", project="/p", command="x", cwd="/p", state="")
    run.connections = running.stop()
    return " ".join(f"{each.detail}. {each.hint}" for each in _refused_connections(run))


def test_a_request_that_names_no_host_is_told_as_that(proxy):
    running = proxy("example.org")
    running.say(b"GARBAGE\r\n\r\n")
    running.say(b"TRACE http://example.org/ HTTP/1.1\r\nHost: x\r\n\r\n")
    running.say(socks_request(b"a b", 80))
    assert "reached as itself" not in told(running)
    assert told(running).startswith("a request to the proxy. ")


def test_a_tls_client_that_asks_for_another_host_is_still_told_so(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"localhost:{there.port}")
        running.say(connect_request(f"localhost:{there.port}") + hello("evil.example"))
        assert "a granted host is only reached as itself" in told(running)
