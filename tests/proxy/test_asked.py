"""Connections that wait for a person's answer: what their programs have given up is not sent."""

import threading
import time

import pytest

from fumehood.proxy import server as serving_module
from patience import LONG_S, eventually
from proxy.test_proxy import connect_request
from servers import Tcp, Web, echo, serving


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
    monkeypatch.setattr(running.proxy._reach, "_refusal", person)
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
