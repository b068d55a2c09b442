"""Behind the person's own proxy: what it is told, and that a command never sees the login to it."""

import base64
import threading

import h11
import pytest

from servers import Tcp, serving

LOGIN = base64.b64encode(b"ada:S3cretPw")


class Upstream:
    """A proxy that shows in its answers what it was sent, as TRACE does, and as error pages of some proxies do."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[h11.Request] = []
        self._lock = threading.Lock()

    def __call__(self, connection) -> None:
        while True:
            reading = h11.Connection(h11.SERVER)
            text = b""
            while (event := reading.next_event()) is h11.NEED_DATA:
                piece = connection.recv(1 << 16)
                reading.receive_data(piece)
                text += piece
            if not isinstance(event, h11.Request):
                return
            with self._lock:
                self.asked.append(event)
            connection.sendall(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (self.status, len(text)) + text)


def asking(proxy, status: int, said: str, login: str = "ada:S3cretPw@") -> tuple[bytes, Upstream]:
    upstream = Upstream(status)
    with serving(Tcp(upstream)) as there:
        running = proxy("*:80", environment={"http_proxy": f"http://{login}127.0.0.1:{there.port}"})
        return running.say(said.encode()), upstream


@pytest.mark.parametrize("method", ["TRACE", "trace", "TRACK"])
def test_what_makes_a_proxy_show_its_request_is_not_passed_on(proxy, method):
    answer, upstream = asking(
        proxy, 200, f"{method} http://198.51.100.7/ HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"TRACE" in answer
    assert upstream.asked == []


def test_no_request_is_meant_for_the_proxy_itself(proxy):
    _, upstream = asking(proxy, 200, "OPTIONS http://198.51.100.7/ HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n\r\n")
    (asked,) = upstream.asked
    assert (b"proxy-authorization", b"Basic " + LOGIN) in list(asked.headers)
    assert b"max-forwards" not in dict(asked.headers)


@pytest.mark.parametrize("status", [400, 404, 407, 502])
def test_the_text_of_an_error_may_hold_the_login_and_is_left_out(proxy, status):
    request = "GET http://198.51.100.7/{} HTTP/1.1\r\nHost: x\r\n{}\r\n"
    said = request.format("1", "") + request.format("2", "Connection: close\r\n")
    answer, upstream = asking(proxy, status, said)
    assert (b"proxy-authorization", b"Basic " + LOGIN) in list(upstream.asked[0].headers)
    assert LOGIN not in answer
    # One that asks for a login is not the command's to answer.
    assert answer.startswith(b"HTTP/1.1 %d " % (502 if status == 407 else status))
    assert b"its text is left out" in answer


def test_the_text_of_an_error_is_passed_on_where_there_is_no_login(proxy):
    answer, _ = asking(proxy, 404, "GET http://198.51.100.7/1 HTTP/1.1\r\nHost: x\r\n\r\n", login="")
    assert answer.endswith(b"Host: 198.51.100.7\r\n\r\n")


def test_an_answer_is_passed_on_where_there_is_a_login(proxy):
    answer, _ = asking(proxy, 200, "GET http://198.51.100.7/1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 Said")
