"""Names for programs that know no proxy: an address for each, and an answer only to what is a question."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.core.environment import resolvers
from fumehood.core.hosts import direct_ports
from fumehood.proxy import server
from fumehood.proxy.server import Names


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
    monkeypatch.setattr(server, "_MOST", 2)
    names = Names()
    assert [code(names.answer(question(name))) for name in (b"a.b", b"c.d", b"e.f", b"a.b")] == [0, 0, 2, 0]


def test_where_names_are_asked_for():
    text = "# nameserver 1.1.1.1\nnameserver 10.0.0.1\nsearch x\nnameserver fd00::1\nnameserver 127.0.0.53\n"
    assert resolvers(text) == ("10.0.0.1", "127.0.0.53", "127.0.0.1")
    assert resolvers("") == ("127.0.0.1",)


def test_names_are_reached_at_the_usual_ports_and_at_those_that_were_named_for_other_machines():
    assert direct_ports(("localhost:443", "127.0.0.1:99", "db.example:5432", "example.org")) == (22, 80, 443, 5432)
