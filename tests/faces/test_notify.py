"""`fumehood notify`, on a bus of its own with a program that shows notifications."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import notifications
from conftest import command_line, need
from fumehood.core.questions import ALLOW_ALWAYS, ALLOW_ONCE, DENY_ONCE, Question
from fumehood.linux.confine import can_scope
from fumehood.service.ask import Desk, Reply, ask_all
from fumehood.service.opened import OpenedStore
from patience import LONG_S, eventually

SIX = Question(what="w", text="Do it?", command="c", directory="/", project="/", target="x")
HOSTILE = SIX.replace(
    text="Run command with network access: <a href='file:///x'>click</a> & \x1b[2J?", command="<img src='/x'>",
    one_time_only=True,
)  # fmt: skip


class Program:
    """A process that tells one object a line."""

    def __init__(self, *words: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | variables
        )

    def heard(self, key: str) -> dict[str, Any]:
        """Read on until it tells something of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            facts: dict[str, Any] = json.loads(line)
            if key in facts:
                return facts
        raise AssertionError(f"it ended, and never told {key}")

    def send(self, member: str, signature: str, *body: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([member, signature, body]) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def bus(test_directory: Path) -> Iterator[str]:
    """The address of a bus that nobody else is on."""
    need(shutil.which("dbus-daemon") is not None, "there is no dbus-daemon: apt install dbus-daemon")
    address = f"unix:path={test_directory}/bus"
    daemon = subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address={address}", "--print-address"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert daemon.stdout is not None
    assert daemon.stdout.readline().startswith(address)
    yield address
    daemon.kill()
    daemon.communicate()


Showing = Callable[..., Program]


@pytest.fixture
def showing(bus: str) -> Iterator[Showing]:
    """Start a program that shows notifications."""
    started: list[Program] = []

    def start(*capabilities: str) -> Program:
        words = (sys.executable, notifications.__file__, *(capabilities or ("actions", "body", "body-markup")))
        started.append(Program(*words, DBUS_SESSION_BUS_ADDRESS=bus, PYTHONPATH=""))
        started[-1].heard("ready")
        return started[-1]

    yield start
    for each in started:
        each.kill()


def notify(address: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command_line(), "notify", *words], env=os.environ | {"DBUS_SESSION_BUS_ADDRESS": address},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def desktop(home: Path, bus: str, showing: Showing) -> Iterator[Program]:
    """What shows notifications, while `fumehood notify` runs."""
    shows = showing()
    notifier = notify(bus)
    assert notifier.stdout is not None
    assert "notifications" in notifier.stdout.readline()
    shows.notifier = notifier  # type: ignore[attr-defined]
    yield shows
    notifier.kill()
    notifier.communicate()


@pytest.fixture
def desk(home: Path) -> Desk:
    return Desk(OpenedStore().places)


class Asking:
    def __init__(self, desk: Desk, question: Question) -> None:
        self._replies: list[Reply] = []
        self._thread = threading.Thread(
            target=lambda: self._replies.append(ask_all([desk], question, LONG_S)), daemon=True
        )
        self._thread.start()

    @property
    def answer(self) -> str:
        self._thread.join(LONG_S)
        (reply,) = self._replies
        return reply.answer


@pytest.mark.parametrize(("answer", "code"), [(ALLOW_ONCE, 0), (DENY_ONCE, 126)])
def test_a_button_answers_a_command_that_has_no_terminal(
    desktop: Program, project: Path, answer: str, code: int
) -> None:
    need(can_scope() or code != 0, "the host's network can't be shared here")
    command = [*command_line(), "run", "--network", "--", "true"]
    running = subprocess.Popen(command, cwd=project, stdin=subprocess.DEVNULL, start_new_session=True)
    shown = desktop.heard("shown")
    assert shown["actions"] == [ALLOW_ONCE, "Allow once", DENY_ONCE, "Deny"]
    assert (shown["summary"], shown["expires"]) == ("Fumehood asks", 0)
    assert str(project) in shown["body"]
    desktop.send("ActionInvoked", "us", shown["shown"], answer)
    assert running.wait(LONG_S) == code
    assert desktop.heard("closed")["closed"] == shown["shown"]


def test_every_answer_that_the_question_allows_has_a_button_the_least_first(desktop: Program, desk: Desk) -> None:
    asking = Asking(desk, SIX)
    shown = desktop.heard("shown")
    assert shown["actions"][::2][:2] == [ALLOW_ONCE, DENY_ONCE]
    assert sorted(shown["actions"][::2]) == sorted(SIX.options)
    desktop.send("ActionInvoked", "us", shown["shown"], "allow_everything")  # nothing that was offered
    desktop.send("ActionInvoked", "us", shown["shown"], ALLOW_ALWAYS)
    assert asking.answer == ALLOW_ALWAYS


def test_what_is_answered_elsewhere_is_closed_here(desktop: Program, desk: Desk) -> None:
    asking = Asking(desk, SIX)
    shown = desktop.heard("shown")
    (waiting,) = desk.waiting()
    assert waiting.answer(DENY_ONCE)
    assert desktop.heard("closed")["closed"] == shown["shown"]
    assert asking.answer == DENY_ONCE


def test_who_closes_a_notification_has_not_answered(desktop: Program, desk: Desk) -> None:
    asking = Asking(desk, SIX)
    shown = desktop.heard("shown")
    desktop.send("NotificationClosed", "uu", shown["shown"], 2)
    second = Asking(desk, SIX.replace(text="And this?"))
    # The first is not shown again.
    again = desktop.heard("shown")
    assert "And this?" in again["body"]
    assert len(desk.waiting()) == 2
    assert desk.waiting()[0].answer(True)
    assert asking.answer == ALLOW_ONCE
    desktop.send("ActionInvoked", "us", again["shown"], DENY_ONCE)
    assert second.answer == DENY_ONCE


def test_words_of_a_command_are_no_markup_of_the_desktop(desktop: Program, desk: Desk) -> None:
    asking = Asking(desk, HOSTILE)
    shown = desktop.heard("shown")
    assert "<" not in shown["body"]
    assert "\x1b" not in shown["body"]
    assert "&lt;a href=&#x27;file:///x&#x27;&gt;click&lt;/a&gt; &amp; " in shown["body"]
    desktop.send("ActionInvoked", "us", shown["shown"], DENY_ONCE)
    assert asking.answer == DENY_ONCE


def test_where_the_desktop_knows_no_markup_words_are_as_they_are(
    home: Path, bus: str, showing: Showing, desk: Desk
) -> None:
    shows = showing("actions")
    notifier = notify(bus)
    assert eventually(lambda: desk.is_attended_for("/work"))
    asking = Asking(desk, HOSTILE)
    assert "<a href='file:///x'>click</a> & " in shows.heard("shown")["body"]
    assert desk.waiting()[0].answer(False)
    assert asking.answer == DENY_ONCE
    notifier.kill()
    notifier.communicate()


def test_a_button_that_somebody_else_claims_was_pressed_answers_nothing(
    desktop: Program, desk: Desk, bus: str
) -> None:
    async def claim(to: str, number: int) -> None:
        other = await notifications.MessageBus(bus_address=bus).connect()
        message = notifications.Message(
            message_type=notifications.MessageType.SIGNAL, destination=to, path=notifications.PATH,
            interface=notifications.NAME, member="ActionInvoked", signature="us", body=[number, ALLOW_ALWAYS],
        )  # fmt: skip
        await other.send(message)
        # Once the bus has answered, it has passed on what came before.
        await other.introspect("org.freedesktop.DBus", "/org/freedesktop/DBus")
        other.disconnect()

    asking = Asking(desk, SIX)
    shown = desktop.heard("shown")
    asyncio.run(claim(shown["to"], shown["shown"]))
    desktop.send("ActionInvoked", "us", shown["shown"], DENY_ONCE)
    assert asking.answer == DENY_ONCE


@pytest.mark.long
def test_without_notifications_nobody_is_present_until_they_are_back(
    desktop: Program, desk: Desk, showing: Showing
) -> None:
    assert desk.is_attended_for("/work")
    desktop.kill()
    assert eventually(lambda: not desk.is_attended_for("/work"))
    back = showing()
    assert eventually(lambda: desk.is_attended_for("/work"))
    asking = Asking(desk, SIX)
    back.send("ActionInvoked", "us", back.heard("shown")["shown"], DENY_ONCE)
    assert asking.answer == DENY_ONCE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_at_its_end_it_closes_what_it_shows_and_nobody_is_present(
    desktop: Program, desk: Desk, number: signal.Signals
) -> None:
    asking = Asking(desk, SIX)
    shown = desktop.heard("shown")
    notifier: subprocess.Popen[str] = desktop.notifier  # type: ignore[attr-defined]
    notifier.send_signal(number)
    assert notifier.wait(LONG_S) == 0
    assert desktop.heard("closed")["closed"] == shown["shown"]
    assert not desk.is_attended_for("/work")
    assert desk.waiting()[0].answer(DENY_ONCE)
    assert asking.answer == DENY_ONCE


def test_only_what_is_asked_about_one_project_is_shown_where_that_is_wanted(
    home: Path, project: Path, bus: str, showing: Showing, desk: Desk
) -> None:
    shows = showing()
    notifier = notify(bus, "--project", str(project))
    assert eventually(lambda: desk.is_attended_for(str(project)))
    assert not desk.is_attended_for("/another")
    asking = Asking(desk, SIX.replace(project=str(project)))
    shows.send("ActionInvoked", "us", shows.heard("shown")["shown"], DENY_ONCE)
    assert asking.answer == DENY_ONCE
    notifier.kill()
    notifier.communicate()


def test_where_nothing_shows_notifications_it_says_so(home: Path, bus: str, showing: Showing, desk: Desk) -> None:
    for address, said in (
        (bus, "this desktop has nothing that shows notifications with buttons"),
        ("unix:path=/nowhere/bus", "there is no desktop session here"),
        ("nonsense", "there is no desktop session here"),
    ):
        notifier = notify(address)
        _, errors = notifier.communicate(timeout=LONG_S)
        assert (notifier.returncode, said in errors, "fumehood web" in errors) == (125, True, True), errors
        assert "Traceback" not in errors
    showing("body")
    notifier = notify(bus)
    assert "nothing that shows notifications with buttons" in notifier.communicate(timeout=LONG_S)[1]
    assert not desk.is_attended_for("/work")
