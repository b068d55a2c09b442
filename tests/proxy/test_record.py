"""The record of a run's connections: small, true, and without what anybody else put into it."""

import pytest

from fumehood.core.report import Run
from fumehood.proxy.relay import ConnectionAudit
from fumehood.service.network import _blocked
from proxy.test_proxy import connect_request, hello, socks_request
from servers import Tcp, echo, serving

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
    monkeypatch.setattr("fumehood.proxy.relay.MOST", 5)
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
    return " ".join(f"{each.detail}. {each.hint}" for each in _blocked(run))


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
