"""Serving connections: who waits for an answer or for room, what arrives at the end, and which names there are."""

import contextlib
import socket
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.environment import resolvers
from fumehood.core.hosts import direct_ports
from fumehood.core.report import UNANSWERED
from fumehood.proxy import names as names_module
from fumehood.proxy import server as serving_module
from fumehood.proxy.names import Names
from fumehood.proxy.server import Proxy
from patience import LONG_S, eventually
from proxy.conftest import read_all
from proxy.test_proxy import connect_request
from servers import Tcp, Web, echo, serving


def question(name: bytes, kind: int = 1, flags: int = 0x0100) -> bytes:
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b".") if label)
    return struct.pack(">HHHHHH", 7, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def address(answer: bytes) -> str:
    return ".".join(str(byte) for byte in answer[-4:])


def code(answer: bytes) -> int:
    return answer[3] & 15


def test_each_name_has_one_address_that_leads_back_to_it():
    names = Names()
    one, two, again = (names.answer(question(name)) for name in (b"a.example", b"b.example", b"A.Example"))
    assert address(one) == address(again) == "198.18.0.2"
    assert address(two) == "198.18.0.3"
    assert (names.host("198.18.0.2"), names.host("198.18.0.3")) == ("a.example", "b.example")
    assert names.host("198.18.0.4") is None
    assert names.host("127.0.0.1") is None


@pytest.mark.parametrize("kind", [28, 65, 15, 16])
def test_a_name_has_nothing_but_that_address(kind):
    answer = Names().answer(question(b"a.example", kind))
    assert (code(answer), answer[6:8]) == (0, b"\0\0")


@pytest.mark.parametrize("name", [b"localhost", b"x.localhost", b"1.0.0.127.in-addr.arpa", b"127.1", b"a b.example"])
def test_some_names_there_are_not(name):
    assert code(Names().answer(question(name))) == 3


@pytest.mark.parametrize("query", [b"", b"\0" * 11, question(b"a.b", flags=0x8000), question(b"a")[:14], b"\xff" * 512])
def test_what_is_no_question_gets_no_answer(query):
    assert Names().answer(query) is None


@given(st.binary(max_size=512))
def test_nothing_that_is_sent_breaks_it(query):
    answer = Names().answer(query)
    assert answer is None or answer[:2] == query[:2]


def test_there_is_an_end_to_names(monkeypatch):
    monkeypatch.setattr(names_module, "_MOST_NAMES", 2)
    names = Names()
    assert [code(names.answer(question(name))) for name in (b"a.b", b"c.d", b"e.f", b"a.b")] == [0, 0, 2, 0]


def test_where_names_are_asked_for():
    text = "# nameserver 1.1.1.1\nnameserver 10.0.0.1\nsearch x\nnameserver fd00::1\nnameserver 127.0.0.53\n"
    assert resolvers(text) == ("10.0.0.1", "127.0.0.53", "127.0.0.1")
    assert resolvers("") == ("127.0.0.1",)


def test_names_are_reached_at_the_usual_ports_and_at_those_that_were_named_for_other_machines():
    assert direct_ports(("localhost:443", "127.0.0.1:99", "db.example:5432", "example.org")) == (22, 80, 443, 5432)


# Connections that wait for a person's answer: what their programs have given up is not sent.

class Person:
    """Says yes once they are let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.says_yes = threading.Event()

    def __call__(self, place: str) -> str:
        self.asked.append(place)
        assert self.says_yes.wait(LONG_S)
        return ""


@pytest.fixture
def asking(proxy, monkeypatch):
    monkeypatch.setattr(serving_module, "MOST_CONNECTIONS", 2)
    running, person = proxy("127.0.0.9"), Person()
    monkeypatch.setattr(running.proxy._outbound, "_refusal", person)
    return running, person


def post(web: Web, number: int) -> bytes:
    return f"POST http://127.0.0.1:{web.port}/{number} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi".encode()


def test_what_waits_for_a_place_and_is_given_up_is_not_sent_either(asking):
    running, person = asking
    with serving(Web()) as web:
        for number in range(8):
            with running.connect() as client:
                client.sendall(post(web, number))
        assert eventually(lambda: len(person.asked) == 2)
        with running.connect() as client:
            client.sendall(post(web, 99))
            person.says_yes.set()
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert [asked[1] for asked in web.asked] == ["/99"]
    given_up = [seen for seen in running.stop() if seen.reason]
    assert sum(seen.count for seen in given_up) == 8
    assert {seen.reason for seen in given_up} == {
        "the program had closed the connection before the person answered"
    }


def test_what_is_sent_after_the_answer_goes_out_though_the_client_has_ended_its_half(asking):
    running, person = asking
    person.says_yes.set()
    with serving(Web()) as web, serving(Tcp(echo)) as there:
        tunnel = connect_request(f"127.0.0.1:{there.port}")
        for request in (post(web, 0), tunnel):
            with running.connect() as client:
                client.sendall(request)
                assert client.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.1)  # by then it is clear what came after the answer
        for number in range(3):
            assert running.say(post(web, number)).startswith(b"HTTP/1.1 200")
            assert running.say(tunnel + b"x").endswith(b"x")


# More connections than there is room for: whoever has gone makes room, and names need none.

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


# The end of a run: what its programs sent last arrives, or is seen to be cut off.

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
