"""The proxy's protocols, with real servers behind it and clients that mean no good before it."""

import contextlib
import socket
import ssl
import struct
import subprocess
import threading

import pytest

from conftest import need
from fumehood.core.report import NOT_GRANTED
from fumehood.proxy import server as serving_module
from fumehood.proxy.reach import resolve
from patience import LONG_S, eventually
from proxy.conftest import read_all
from servers import Tcp, Web, echo, greet_first, serving


def exchange(client: socket.socket, data: bytes, end: bytes = b"\r\n\r\n") -> bytes:
    client.sendall(data)
    found = b""
    while not found.endswith(end):
        piece = client.recv(1 << 16)
        if not piece:
            break
        found += piece
    return found


def connect_request(place: str) -> bytes:
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()


def socks_request(host: bytes, port: int, kind: int = 3) -> bytes:
    address = bytes([len(host)]) + host if kind == 3 else host
    return b"\x05\x01\x00" + b"\x05\x01\x00" + bytes([kind]) + address + struct.pack(">H", port)


def hello(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def test_a_request_reaches_a_granted_host(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        answer = running.say(f"GET http://127.0.0.1:{web.port}/x?y HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.endswith(b"\r\n\r\nhello\n")
        method, path, headers, _ = web.asked[0]
        assert (method, path, headers["Host"]) == ("GET", "/x?y", f"127.0.0.1:{web.port}")
    (seen,) = running.stop()
    assert (seen.allowed, seen.host, seen.port, seen.protocol) == (True, "127.0.0.1", web.port, "http")
    assert seen.sent > 20
    assert seen.received > 20


def test_a_host_that_was_not_granted_is_refused_and_recorded(proxy):
    with serving(Web()) as web:
        running = proxy("example.org")
        answer = running.say(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: example.org\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"network blocked: 127.0.0.1" in answer
        assert web.asked == []
    (seen,) = running.stop()
    assert (seen.allowed, seen.reason) == (False, NOT_GRANTED)


def test_the_target_decides_and_host_is_rewritten(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        running.say(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode())
        assert web.asked[0][2]["Host"] == f"127.0.0.1:{web.port}"


def test_each_request_of_a_connection_is_judged(proxy):
    with serving(Web()) as one, serving(Web(b"two\n")) as two, serving(Web()) as other:
        running = proxy(f"127.0.0.1:{one.port}", f"127.0.0.1:{two.port}")
        with running.connect() as client:
            for web, body in ((one, b"hello\n"), (one, b"hello\n"), (two, b"two\n")):
                request = f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                assert exchange(client, request, end=body).startswith(b"HTTP/1.1 200")
            request = f"GET http://127.0.0.1:{other.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            refused = exchange(client, request, end=b"granted\n")
            assert refused.startswith(b"HTTP/1.1 403")
            assert client.recv(1) == b""
        assert len(one.clients) == 1, "the connection to the host is used again"
        assert other.asked == []


def test_pipelined_requests_are_answered_in_turn(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        one = f"GET http://127.0.0.1:{web.port}/1 HTTP/1.1\r\nHost: x\r\n\r\n"
        post = f"POST http://127.0.0.1:{web.port}/2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        answer = running.say((one + post + one).encode())
        assert answer.count(b"HTTP/1.1 200") == 3
        assert [(asked[1], asked[3]) for asked in web.asked] == [("/1", b""), ("/2", b"abc"), ("/1", b"")]


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_pass_both_ways(proxy, chunked):
    body = bytes(range(256)) * 8192
    with serving(Web(body, chunked=chunked)) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        head = f"POST http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        if chunked:
            sent = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (body[:5], body[5:]))
            answer = running.say(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + sent + b"0\r\n\r\n")
            assert len(answer) > len(body)
        else:
            answer = running.say(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert answer.endswith(body)
        assert web.asked[0][3] == body


def test_head_has_no_body_and_the_connection_goes_on(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        request = f"HEAD http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
        assert running.say((request * 2).encode()).count(b"Content-Length: 6\r\n") == 2


def test_a_client_that_waits_before_its_body_is_told_to_go_on(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        head = f"POST http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n"
        with running.connect() as client:
            assert exchange(client, f"{head}\r\n".encode()).startswith(b"HTTP/1.1 100")
            assert exchange(client, b"abc", end=b"hello\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: +3",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding : chunked",
        "Host: a\r\nHost: b",
        "X: a\r\n folded\r\nContent-Length: x",
        "X: a\0b",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_goes_nowhere(proxy, head):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        host = "" if "Host" in head else "Host: x\r\n"
        smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n"
        answer = running.say(
            f"POST http://127.0.0.1:{web.port}/ HTTP/1.1\r\n{host}{head}\r\n\r\n{smuggled}".encode()
        )
        assert answer.startswith(b"HTTP/1.1 400")
        assert web.asked == []
    (seen,) = running.stop()
    assert not seen.allowed


@pytest.mark.parametrize(
    "target",
    [
        "/", "*", "https://127.0.0.1:{port}/", "http://", "http:///x", "http://u:p@127.0.0.1:{port}/",
        "http://127.0.0.1:{port}\\@example.org/", "http://127.0.0.1:{port}x/", "ftp://127.0.0.1:{port}/",
        "http://127.1:{port}/", "http://[::1/", "http://a b/",
    ],
)  # fmt: skip
def test_a_target_that_names_no_host_is_refused(proxy, target):
    with serving(Web()) as web:
        running = proxy("*", f"127.0.0.1:{web.port}")
        answer = running.say(f"GET {target.format(port=web.port)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400")
        assert web.asked == []


def test_headers_between_neighbours_are_not_passed_on(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        mine = "Proxy-Authorization: x\r\nProxy-Connection: close\r\nConnection: X-Mine\r\nX-Mine: 1\r\nX-Kept: 1"
        running.say(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n{mine}\r\n\r\n".encode())
        names = {name.lower() for name in web.asked[0][2]}
        assert names == {"host", "x-kept"}


def test_a_head_without_end_is_given_up(proxy):
    running = proxy("*")
    answer = running.say(b"GET http://example.org/ HTTP/1.1\r\nX: " + b"x" * (1 << 18))
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_refusal_is_read_by_a_client_that_is_still_sending(proxy):
    running = proxy()
    head = b"POST http://example.org/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n"
    assert running.say(head + b"x" * 3_000_000).startswith(b"HTTP/1.1 403")


def test_a_tunnel_by_connect(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        with running.connect() as client:
            assert exchange(client, connect_request(f"127.0.0.1:{there.port}")).startswith(b"HTTP/1.1 200")
            assert exchange(client, b"ping", end=b"ping") == b"ping"
    (seen,) = running.stop()
    assert (seen.protocol, seen.sent, seen.received) == ("connect", 4, 4)


def test_a_tunnel_by_socks(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"127.0.0.1:{there.port}", f"localhost:{there.port}")
        for host, kind in ((b"localhost", 3), (b"LOCALHOST.", 3), (socket.inet_aton("127.0.0.1"), 1)):
            with running.connect() as client:
                client.sendall(socks_request(host, there.port, kind))
                assert client.recv(2, socket.MSG_WAITALL) == b"\x05\x00"
                assert client.recv(10, socket.MSG_WAITALL)[1] == 0
                assert exchange(client, b"ping", end=b"ping") == b"ping"
    assert {seen.protocol for seen in running.stop()} == {"socks5"}


def test_a_server_may_speak_first(proxy):
    with serving(Tcp(greet_first)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        with running.connect() as client:
            answer = exchange(client, connect_request(f"127.0.0.1:{there.port}"), end=b"hello\r\n")
            assert answer.endswith(b"\r\n\r\n220 hello\r\n")
            assert exchange(client, b"x", end=b"x") == b"x"


def test_what_a_client_sends_with_its_request_is_not_lost(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        answer = running.say(connect_request(f"127.0.0.1:{there.port}") + b"at once")
        assert answer.endswith(b"\r\n\r\nat once")


@pytest.mark.parametrize(
    "host",
    [b"127.0.0.1\0.example.org", b"localhost\0", b"local\nhost", b"a b", b"", b"\xff\xfe", b"127.1", b"0x7f000001",
     b"user@localhost", b"localhost:80", b"::1%lo"],
)  # fmt: skip
def test_a_socks_host_with_something_odd_in_it_is_refused(proxy, host):
    with serving(Tcp(echo)) as there:
        running = proxy("*", "localhost", "127.0.0.1", "::1")
        answer = running.say(socks_request(host, there.port))
        assert answer[:2] == b"\x05\x00"
        assert answer[3] != 0
        assert there.met == 0
    assert not any(seen.allowed for seen in running.stop())


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"\x05\x01\x02", 0xFF),  # only with a login
        (b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", 7),  # BIND
        (b"\x05\x01\x00\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50", 7),  # UDP
        (b"\x05\x01\x00\x05\x01\x00\x09\x7f\x00\x00\x01\x00\x50", 8),  # no such kind of address
        (b"\x05\x01\x00\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50", 1),  # another version
        (b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00", 2),  # port 0
    ],
)
def test_socks_that_is_not_served_gets_its_answer(proxy, said, code):
    answer = proxy("127.0.0.1").say(said)
    assert code in (answer[1], answer[3] if len(answer) > 3 else None)


def test_garbage_and_silence_hurt_nobody(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        for data in (b"", b"\x04\x01\x00\x50\x7f\0\0\1\0", b"\x16\x03\x01\x02\x00", b"\0" * 5000, b"\x05", b"\x05\xff"):
            running.say(data)
        answer = running.say(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.endswith(b"hello\n")


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example"])
def test_a_tls_client_that_asks_for_another_host_is_cut_off(proxy, name):
    with serving(Tcp(echo)) as there:
        running = proxy(f"localhost:{there.port}")
        answer = running.say(connect_request(f"localhost:{there.port}") + hello(name))
        assert answer.endswith(b"\r\n\r\n"), "nothing of it came back, so nothing reached the server"
    (seen,) = running.stop()
    assert not seen.allowed
    assert name in seen.reason


def test_a_tls_client_that_hides_its_host_in_small_pieces_is_cut_off_too(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"localhost:{there.port}")
        body = hello("evil.example")[5:]
        pieces = b"".join(
            b"\x16\x03\x01" + struct.pack(">H", len(part)) + part
            for part in (body[at : at + 7] for at in range(0, len(body), 7))
        )
        with running.connect() as client:
            exchange(client, connect_request(f"localhost:{there.port}"))
            with contextlib.suppress(OSError):  # it is cut off before the end
                for at in range(0, len(pieces), 100):
                    client.sendall(pieces[at : at + 100])
            assert read_all(client) == b""


@pytest.mark.parametrize("name", [None, "localhost"])
def test_a_tls_client_that_asks_for_its_host_or_for_none_goes_on(proxy, name):
    with serving(Tcp(echo)) as there:
        running = proxy(f"localhost:{there.port}")
        said = hello(name)
        assert running.say(connect_request(f"localhost:{there.port}") + said).endswith(said)


# A server's answer by which it wants the first message again (RFC 8446, 4.1.3).
AGAIN = bytes.fromhex(
    "1603030026020000220303cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"
)  # fmt: skip


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("name", ["localhost", "evil.example"])
def test_a_tls_client_that_is_asked_again_can_not_ask_for_another_host(proxy, name, waits):
    """OpenSSL's servers take the host of the second message; a client that knows of it need not wait to be asked."""
    first, second = hello("localhost"), b"\x14\x03\x03\x00\x01\x01" + hello(name)
    arrived = []

    def want_it_again(connection):
        arrived.append(connection.recv(len(first), socket.MSG_WAITALL))
        connection.sendall(AGAIN[:20])
        connection.sendall(AGAIN[20:])
        arrived.append(read_all(connection))

    with serving(Tcp(want_it_again)) as there:
        running = proxy(f"localhost:{there.port}")
        with running.connect() as client:
            exchange(client, connect_request(f"localhost:{there.port}"))
            client.sendall(first if waits else first + second)
            if waits:
                assert client.recv(len(AGAIN), socket.MSG_WAITALL) == AGAIN
                client.sendall(second)
            with contextlib.suppress(OSError):  # it may be cut off
                client.shutdown(socket.SHUT_WR)
            eventually(lambda: len(arrived) == 2)
    assert arrived[0] == first
    assert arrived[1] == (second if name == "localhost" else b"")
    (seen,) = running.stop()
    assert seen.allowed == (name == "localhost")


def test_what_a_tls_client_sends_before_it_is_asked_again_is_not_kept_here(proxy):
    first, record = hello("localhost"), b"\x17\x03\x03\x40\x00" + bytes(1 << 14)
    came = threading.Event()

    def want_it_again(connection):
        connection.recv(len(first), socket.MSG_WAITALL)
        connection.sendall(AGAIN)
        connection.recv(1 << 20, socket.MSG_WAITALL)
        came.set()

    with serving(Tcp(want_it_again)) as there:
        running = proxy(f"localhost:{there.port}")
        with running.connect() as client:
            exchange(client, connect_request(f"localhost:{there.port}"))
            client.sendall(first + record * 70)
            assert came.wait(LONG_S)


def test_what_begins_like_tls_and_is_none_is_cut_off(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"localhost:{there.port}")
        answer = running.say(connect_request(f"localhost:{there.port}") + b"\x16\x03\x01\x00\x05hello")
        assert answer.endswith(b"\r\n\r\n")


def test_whoever_has_an_address_may_ask_there_only_for_hosts_that_were_granted(proxy):
    with serving(Tcp(echo)) as there:
        running = proxy(f"127.0.0.1:{there.port}", f"granted.example:{there.port}")
        place = connect_request(f"127.0.0.1:{there.port}")
        said = hello("granted.example")
        assert running.say(place + said).endswith(said)
        assert running.say(place + hello("other.example")).endswith(b"\r\n\r\n")


def answering(monkeypatch, *addresses):
    """Let every name resolve to these, as a hostile name server would."""
    found = [
        (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_more: found)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.0.1", "0.0.0.0", "::",
     "fe80::1", "fd00::1", "64:ff9b::7f00:1", "224.0.0.1"],
)  # fmt: skip
def test_a_name_that_leads_to_this_machine_or_its_neighbours_is_refused(proxy, monkeypatch, address):
    running = proxy("rebound.example", "*")
    answering(monkeypatch, address)
    answer = running.say(connect_request("rebound.example:80"))
    assert answer.startswith(b"HTTP/1.1 403")
    (seen,) = running.stop()
    assert not seen.allowed
    assert "which was not named itself" in seen.reason


def test_the_address_that_was_judged_is_the_one_that_is_reached(proxy, monkeypatch):
    asked = []

    def once(*_given, **_more):
        asked.append(1)
        address = "127.0.0.9" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    with serving(Tcp(echo)) as there:
        # Named, so that it may be reached; nothing listens there.
        running = proxy("rebound.example", f"127.0.0.9:{there.port}")
        monkeypatch.setattr(socket, "getaddrinfo", once)
        answer = running.say(connect_request(f"rebound.example:{there.port}"))
        assert answer.startswith(b"HTTP/1.1 502")
        assert there.met == 0
    assert len(asked) == 1


def test_a_name_at_a_named_address_is_reached(proxy, monkeypatch):
    with serving(Tcp(echo)) as there:
        running = proxy("inside.example", f"127.0.0.1:{there.port}")
        answering(monkeypatch, "10.0.0.1", "127.0.0.1")
        assert running.say(connect_request(f"inside.example:{there.port}") + b"x").endswith(b"\r\n\r\nx")


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def test_a_public_address_of_this_machine_is_this_machine(proxy, monkeypatch):
    mine = own_address()
    need(bool(mine), "this machine has no address")
    # As if it were public: only that it is our own is left to tell.
    monkeypatch.setattr("fumehood.proxy.reach.special_kind", lambda _address: "")
    running = proxy("rebound.example")
    answering(monkeypatch, mine)
    assert running.say(connect_request("rebound.example:80")).startswith(b"HTTP/1.1 403")


def test_localhost_is_never_asked_of_a_name_server(monkeypatch):
    answering(monkeypatch, "8.8.8.8")
    for name in ("localhost", "x.localhost"):
        assert {str(address) for address in resolve(name, 80)} == {"127.0.0.1", "::1"}


def test_a_refused_host_is_not_resolved(proxy, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_more: asked.append(given) or [])
    proxy("example.org").say(connect_request("secret.attacker.example:443"))
    assert asked == []


def test_the_persons_own_proxy_is_used_where_they_have_one(proxy):
    with serving(Web()) as web, serving(Tcp(echo)) as there:
        outer = proxy("127.0.0.1", "one.example:80", "two.example:443")
        environment = {"HTTPS_PROXY": f"http://u:p@127.0.0.1:{outer.port}", "http_proxy": f"127.0.0.1:{outer.port}",
                       "no_proxy": "direct.example"}  # fmt: skip
        inner = proxy("127.0.0.1", "*", environment=environment)
        # Not granted there: its refusal is told as what it is, and shows which way was gone.
        answer = inner.say(connect_request("three.example:443"))
        assert answer.startswith(b"HTTP/1.1 502")
        assert b"it answered HTTP/1.1 403" in answer
        assert b"network blocked" in inner.say(b"GET http://four.example/x HTTP/1.1\r\nHost: x\r\n\r\n")
        # This machine is never asked of another one.
        assert inner.say(connect_request(f"127.0.0.1:{there.port}") + b"x").endswith(b"x")
        assert inner.say(f"GET http://127.0.0.1:{web.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()).endswith(b"hello\n")
        refused = {(seen.host, seen.protocol) for seen in outer.stop()}
    assert refused == {("three.example", "connect"), ("four.example", "http")}


def test_more_clients_than_there_is_room_for_wait_their_turn(proxy, monkeypatch):
    monkeypatch.setattr(serving_module, "MOST_CONNECTIONS", 4)
    with serving(Tcp(echo)) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        answers = []

        def ask():
            answers.append(running.say(connect_request(f"127.0.0.1:{there.port}") + b"x"))

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(answer.endswith(b"x") for answer in answers)
    assert len(answers) == 40


def test_the_record_stays_small_whatever_is_asked_for(proxy, monkeypatch):
    monkeypatch.setattr("fumehood.proxy.connections.MOST_LINES", 5)
    running = proxy()
    for number in range(12):
        running.say(connect_request(f"host{number}.example:443"))
    seen = running.stop()
    assert len(seen) <= 7
    assert sum(each.count for each in seen) == 12


def test_the_end_does_not_wait_for_those_who_say_nothing(proxy):
    with serving(Tcp(lambda connection: connection.recv(1))) as there:
        running = proxy(f"127.0.0.1:{there.port}")
        with running.connect(), running.connect() as tunnel:
            exchange(tunnel, connect_request(f"127.0.0.1:{there.port}"))
            running.proxy.stop(patience_s=0.1)
            running._stopped = ()
            # While both clients are still there.
            assert eventually(lambda: not any(each.name.startswith("fumehood-prox") for each in threading.enumerate()))


def test_a_slow_client_is_given_up(proxy, monkeypatch):
    monkeypatch.setattr(serving_module, "_GREETING_S", 0.2)
    with proxy("*").connect() as client:
        with contextlib.suppress(OSError):  # it may have been given up already
            client.sendall(b"\x05\x01")
        assert read_all(client) == b""


def test_curl_by_socks_and_by_http(proxy):
    with serving(Web()) as web:
        running = proxy(f"127.0.0.1:{web.port}")
        for scheme, more in (("socks5h", []), ("socks5", []), ("http", []), ("http", ["-p"])):
            line = ["curl", "-sS", "-m", "100", "--noproxy", "", "-x", f"{scheme}://127.0.0.1:{running.port}", *more]
            done = subprocess.run([*line, f"http://127.0.0.1:{web.port}/"], capture_output=True, check=False)
            assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
