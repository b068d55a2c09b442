"""The desk under races and kills: one answer wins everywhere, and no question outlives who asks it."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from at_terminal import Terminal
from fumehood.core import questions
from fumehood.core.questions import ALLOW_ALWAYS, ALLOW_ONCE, ALLOW_SESSION, DENY_ALWAYS, DENY_ONCE, NOBODY, Question
from fumehood.service import ask as desk_module
from fumehood.service.ask import Asked, Desk, Reply, ask_all
from fumehood.service.opened import OpenedStore
from patience import LONG_S, eventually

ROUNDS = 50
ANSWERS = (ALLOW_SESSION, DENY_ALWAYS)
ASKED = Question(what="w", text="t", command="c", directory="/", project="/", target="x")

# Answers every question that it sees, a moment later, and tells for each whether that counted, until it is over.
ANSWERER = """
import json, os, random, sys, time
from fumehood.service.ask import Desk
from fumehood.store.places import places
desk = Desk(places())
with desk.attend():
    print("here", flush=True)
    seen = set()
    while not os.path.exists(sys.argv[2]):
        for each in desk.waiting():
            if each.id not in seen:
                seen.add(each.id)
                time.sleep(random.uniform(0, 0.03))
                print(json.dumps([each.question.target, desk.answer(each.id, sys.argv[1])]), flush=True)
        time.sleep(0.001)
"""

# Asks at a terminal and at the desk, and says what came of it.
ASKER = f"""
from fumehood.core.questions import Question
from fumehood.faces.cli import screen
from fumehood.faces.cli.screen import terminal_asker
from fumehood.service.ask import ask_all
from fumehood.service.ask import Desk
from fumehood.store.places import places
screen._QUIET_S = 0  # or a program always wins
for number in range({ROUNDS}):
    question = Question(what="w", text=f"t{{number}}", command="c", directory="/", project="/", target=str(number))
    reply = ask_all((*terminal_asker(), Desk(places())), question, {LONG_S})
    print(f"{{number}} came to {{reply.answer}}.", flush=True)
"""
SAID = {ALLOW_SESSION: "allow for this session", ALLOW_ALWAYS: "allow always", DENY_ALWAYS: "deny always"}


@pytest.fixture
def desk(home: Path) -> Desk:
    return Desk(OpenedStore().places)


def python(code: str, *words: str) -> list[str]:
    path = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
    return [sys.executable, "-I", "-c", path + code, *words]


@pytest.fixture
def answering(home: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Programs that answer every question, each in its own way."""
    started = [
        subprocess.Popen(python(ANSWERER, each, str(home / "over")), stdout=subprocess.PIPE, text=True)
        for each in ANSWERS
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "here\n"
    yield started
    for each in started:
        each.kill()
        each.communicate()


def test_of_two_programs_and_a_terminal_exactly_one_wins_and_all_say_the_same(
    answering: list[subprocess.Popen[str]], home: Path, project: Path
) -> None:
    with Terminal(python(ASKER), project) as terminal:
        prompts = 0
        while terminal.more():
            if terminal.seen.count("\r\n>") > prompts:
                prompts = terminal.seen.count("\r\n>")
                time.sleep(random.uniform(0, 0.03))
                terminal.type("always\n")
        without_typing = re.sub(r"(?<!allow )(?<!deny )always\r\n", "", terminal.seen)
        shown = re.findall(r"> ([^\r]*)\r\n(?:\x1b\[<1u)?(\d+) came to (\w+)\.\r\n", without_typing)
    (home / "over").touch()
    counted: dict[str, list[str]] = {}
    for process, answer in zip(answering, ANSWERS, strict=True):
        assert process.stdout is not None
        for line in process.stdout:
            target, counts = json.loads(line)
            counted.setdefault(target, []).extend([answer] if counts else [])
    assert [int(number) for _, number, _ in shown] == list(range(ROUNDS))
    for said, number, winner in shown:
        assert counted.get(number, []) == ([winner] if winner in ANSWERS else [])
        assert said == (SAID[winner] if winner == ALLOW_ALWAYS else f"answered elsewhere: {SAID[winner]}")


# ---- Killed before every system call.


def killed_at(call: int, act: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Have a forked process do something that is killed at a system call; tell whether it came to its end before."""
    child = os.fork()
    if not child:
        left = call

        def count(_frame: FrameType, event: str, function: object) -> None:
            nonlocal left
            if event == "c_call" and getattr(function, "__module__", "") in ("posix", "fcntl"):
                left -= 1
                if not left:
                    os.kill(os.getpid(), 9)

        threading.setprofile(count)
        sys.setprofile(count)
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        meanwhile()
        time.sleep(0.005)
    assert status in (0, 9)
    return status == 0


def every_call(act: Callable[[int], bool]) -> int:
    """Kill at the first call, at the second, and so on until it comes to its end; returns how many were killed."""
    call = 1
    while not act(call):
        call += 1
    return call - 1


def left_on(desk: Desk) -> list[str]:
    return os.listdir(desk._directory)


class Asking:
    """Asks in a thread, with somebody at the desk."""

    def __init__(self, desk: Desk) -> None:
        self.replies: list[Reply] = []
        self._thread = threading.Thread(target=lambda: self.replies.append(ask_all([desk], ASKED, LONG_S)))
        self._thread.start()

    def end(self) -> str:
        self._thread.join(LONG_S)
        (reply,) = self.replies
        return reply.answer


def test_whoever_answers_may_die_at_any_moment_and_another_answers_if_they_did_not(desk: Desk) -> None:
    outcomes = set()

    def answered(call: int) -> bool:
        asking = Asking(desk)
        assert eventually(desk.waiting)
        (waiting,) = desk.waiting()
        is_done = killed_at(call, lambda: desk.answer(waiting.id, ALLOW_ONCE))
        is_open = waiting.is_open
        assert desk.answer(waiting.id, DENY_ONCE) is is_open
        assert asking.end() == (DENY_ONCE if is_open else ALLOW_ONCE)
        outcomes.add(is_open)
        return is_done

    with desk.attend():
        assert every_call(answered) >= 3
    assert outcomes == {True, False}
    assert left_on(desk) == []


@pytest.mark.long
def test_whoever_asks_may_die_at_any_moment_and_leaves_no_question(desk: Desk) -> None:
    outcomes = set()

    def asked(call: int) -> bool:
        counted: list[bool] = []
        is_done = killed_at(
            call, lambda: ask_all([desk], ASKED, LONG_S),
            lambda: counted.extend(each.answer(True) for each in desk.waiting()),
        )  # fmt: skip
        outcomes.add(tuple(counted))
        assert desk.waiting() == []
        left = [name for name in left_on(desk) if not name.endswith(".present")]
        assert [name for name in left if not name.endswith(".new")] == []
        for name in left:
            os.unlink(f"{OpenedStore().places.desk}/{name}")
        return is_done

    with desk.attend():
        assert every_call(asked) > 8
    assert outcomes == {(), (True,)}


def test_whoever_is_present_may_die_at_any_moment_and_is_then_gone(desk: Desk) -> None:
    def attended(call: int) -> bool:
        def attend() -> None:
            with desk.attend():
                assert desk.is_attended_for("/work")

        is_done = killed_at(call, attend)
        assert not desk.is_attended_for("/work")
        endings.update(name.rpartition(".")[2] for name in left_on(desk))
        for name in left_on(desk):
            os.utime(f"{OpenedStore().places.desk}/{name}", (1, 1))  # a while ago
        with desk.attend():
            (name,) = left_on(desk)
            assert name.endswith(".present")
        return is_done

    endings: set[str] = set()
    with desk.attend():
        pass
    assert every_call(attended) > 5
    assert endings == {"new", "present"}


# ---- Who is there, and who no longer.


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "_AWAY_S", 0.3)


PRESENT = """
import time
from fumehood.service.ask import Desk
from fumehood.store.places import places
with Desk(places()).attend():
    print("here", flush=True)
    time.sleep(1000)
"""


def test_a_page_that_is_killed_leaves_nobody_waiting_for_an_answer(desk: Desk, soon: None) -> None:
    page = subprocess.Popen(python(PRESENT), stdout=subprocess.PIPE, text=True)
    assert page.stdout is not None
    assert page.stdout.readline() == "here\n"
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(ask_all([desk], ASKED, LONG_S)))
    asking.start()
    assert eventually(desk.waiting)
    page.kill()
    page.communicate()
    asking.join()
    assert [(reply.answer, reply.reason) for reply in replies] == [(DENY_ONCE, NOBODY)]


def test_a_page_that_is_loaded_anew_finds_the_question_again(desk: Desk) -> None:
    with desk.attend():
        asking = Asking(desk)
        assert eventually(desk.waiting)
        (before,) = desk.waiting()
    assert not desk.is_attended_for("/work")
    with Desk(OpenedStore().places).attend():
        (after,) = Desk(OpenedStore().places).waiting()
        assert (after.id, after.question, after.asked_at) == (before.id, before.question, before.asked_at)
        assert after.answer(ALLOW_ALWAYS)
    assert asking.end() == ALLOW_ALWAYS


class Elsewhere:
    """Somebody who is asked too, and answers when they are told to."""

    def put(self, asked: Asked) -> None:
        self.asked = asked


def test_who_comes_while_another_is_asked_may_answer_and_counts_as_present(desk: Desk, soon: None) -> None:
    other = Elsewhere()
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(ask_all([other, desk], ASKED, LONG_S)))
    asking.start()
    assert eventually(lambda: desk.waiting() and [each for each in other.asked._race.asked if each.is_away])
    with desk.attend():
        assert eventually(lambda: not any(each.is_away for each in other.asked._race.asked))
        assert not other.asked.answer(None)
        assert asking.is_alive()
        (waiting,) = desk.waiting()
        assert waiting.answer(ALLOW_SESSION)
        asking.join()
    assert [reply.answer for reply in replies] == [ALLOW_SESSION]
    assert not waiting.is_open


def test_an_answer_that_came_just_before_time_was_up_is_the_one_that_counts(desk: Desk) -> None:
    """The question is answered at the desk, and nobody has looked there yet when the asking ends."""
    other = Elsewhere()
    replies: list[Reply] = []
    cancelled = threading.Event()
    asking = threading.Thread(
        target=lambda: replies.append(ask_all([other, desk], ASKED, LONG_S, cancelled.is_set))
    )
    with desk.attend():
        asking.start()
        assert eventually(desk.waiting)
        (waiting,) = desk.waiting()
        with other.asked._race.changed:  # nothing is settled meanwhile
            assert waiting.answer(ALLOW_ONCE)
            cancelled.set()
        asking.join()
    assert [(reply.answer, reply.reason) for reply in replies] == [(ALLOW_ONCE, "")]


def test_an_answer_elsewhere_closes_the_question_at_the_desk_at_once(desk: Desk) -> None:
    other = Elsewhere()
    asking = threading.Thread(target=lambda: ask_all([other, desk], ASKED, LONG_S))
    with desk.attend():
        asking.start()
        assert eventually(desk.waiting)
        (waiting,) = desk.waiting()
        assert other.asked.answer(questions.DENY_SESSION)
        assert (waiting.is_open, waiting.answer(True), desk.waiting()) == (False, False, [])
        asking.join()


def test_a_clock_that_is_set_changes_nothing_for_who_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time
    with desk.attend():
        asking = Asking(desk)
        assert eventually(desk.waiting)
        (before,) = desk.waiting()
        monkeypatch.setattr(time, "time", lambda: clock() + 86400)
        (after,) = desk.waiting()
        assert 86400 - 60 < after.until - before.until < 86400 + 60
        assert after.answer(True)
    assert asking.end() == ALLOW_ONCE


def test_where_there_is_no_room_for_a_question_the_others_are_asked(home: Path) -> None:
    places = OpenedStore().places
    Path(places.desk).parent.mkdir(parents=True, exist_ok=True)
    Path(places.desk).symlink_to("/proc/self/fdinfo")  # nothing can be made there, by root neither
    reply = ask_all([Desk(places)], ASKED, LONG_S)
    assert (reply.answer, reply.reason) == (DENY_ONCE, NOBODY)
