"""Plain HTTP whose bodies end early, are spoilt, or are answered before they are read; and how they are counted."""

import socket
import threading

import pytest

from patience import LONG_S, eventually
from proxy.conftest import read_all
from servers import Tcp, Web, serving

CHUNKED = "POST http://127.0.0.1:{}/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.fixture(autouse=True)
def failed(monkeypatch):
    """No thread may end by an exception."""
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    yield
    assert failures == []


def read_head(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    return head


@pytest.mark.parametrize("rest", [b"ZZ\r\n", b"5\r\nhell", b"-1\r\n", b"", b"5\r\nhelloXX"])
def test_a_chunked_body_that_is_spoilt_or_ends_early_is_answered_and_the_host_sees_no_end(proxy, rest):
    said = []

    def listen(connection):
        while piece := connection.recv(1 << 16):
            said.append(piece)

    with serving(Tcp(listen)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        answer = running.say(CHUNKED.format(there.port).encode() + rest)
        assert answer.startswith(b"HTTP/1.1 400 ")
        (seen,) = running.stop()
        assert eventually(lambda: b"hello" in b"".join(said))
    assert not b"".join(said).endswith(b"0\r\n\r\n")
    assert (seen.allowed, seen.reason) == (True, "the request ended early, or can't be read")


def test_a_body_of_known_length_that_ends_early_is_answered(proxy):
    with serving(Tcp(read_all)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        head = f"POST http://127.0.0.1:{there.port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhello"
        assert running.say(head.encode()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("body", [b"", b"x" * 1000, b"x" * 3_000_000])
def test_every_byte_is_counted_once(proxy, body):
    said = []

    def answer(connection):
        data = read_head(connection)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        data += connection.recv(len(body), socket.MSG_WAITALL) if body else b""
        said.append(len(data))
        said.append(len(head + body))
        connection.sendall(head + body)  # in one piece, as far as it fits
        connection.recv(1)

    with serving(Tcp(answer)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        head = f"POST http://127.0.0.1:{there.port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        assert running.say(head.encode() + body).endswith(body)
        (seen,) = running.stop()
    assert [seen.sent, seen.received] == said


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 102 Processing\r\n\r\n"])
def test_a_host_that_answers_early_and_reads_no_more_is_heard(proxy, is_chunked, first):
    over = threading.Event()
    size = 30_000_000

    def too_large(connection):
        connection.recv(100)
        connection.sendall(first + b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno\n")
        over.wait(LONG_S)

    with serving(Tcp(too_large)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        head = f"POST http://127.0.0.1:{there.port}/ HTTP/1.1\r\nHost: x\r\n"
        body = b"x" * size
        if is_chunked:
            said = f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        else:
            said = f"{head}Content-Length: {size}\r\n\r\n".encode() + body
        answer = running.say(said)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"no\n")
        over.set()


def test_a_slow_host_that_says_that_it_is_at_work_gets_everything(proxy):
    size, sizes = 12_000_000, []

    def work(connection):
        read_head(connection)
        connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
        threading.Event().wait(1)
        left = size
        while left:
            left -= len(connection.recv(min(left, 1 << 16)))
        sizes.append(size - left)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        connection.recv(1)

    with serving(Tcp(work)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        head = f"POST http://127.0.0.1:{there.port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        assert running.say(head.encode() + b"x" * size).startswith(b"HTTP/1.1 200 ")
    assert sizes == [size]


@pytest.mark.parametrize(
    "url",
    ["http://u:Hidden/w@127.0.0.1:3128", "http://u:123/w@127.0.0.1:3128", "http://u:Hidden?w@127.0.0.1:3128",
     "http://127.0.0.1:99999", "http://[::1", "http://u:p@:x"],
)  # fmt: skip
def test_what_is_no_url_of_a_proxy_is_told_without_a_word_of_it(proxy, url):
    running = proxy("*", environment={"http_proxy": url, "HTTPS_PROXY": url})
    for asked in (b"GET http://198.51.100.7/", b"CONNECT 198.51.100.7:443"):
        answer = running.say(asked + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"Hidden" not in answer
    http, connect = running.stop()
    assert http.reason == "http_proxy is not a URL of a proxy"
    assert connect.reason == "https_proxy is not a URL of a proxy"


def test_many_bytes_by_plain_http_while_the_host_answers_early_and_closes(proxy):
    def answer_and_close(connection):
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)

    with serving(Tcp(answer_and_close)) as there, serving(Web()):
        running = proxy(f"127.0.0.1:{there.port}")
        head = f"POST http://127.0.0.1:{there.port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n"
        assert running.say(head.encode() + b"x" * 9_000_000).startswith(b"HTTP/1.1 401 ")
