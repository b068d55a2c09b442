"""Who answers: callbacks, several at once, nobody; the first answer wins and the others are closed."""

import asyncio
import threading

import pytest

from fumehood.core import questions
from fumehood.errors import BadRequest
from fumehood.service.ask import Callback, ask_all, channels
from patience import LONG_S

LONG = LONG_S


def question(**changed):
    fields = {"what": questions.UNSANDBOXED, "text": "Run it?", "command": "git status", "directory": "/project"}
    return questions.Question(**{**fields, "project": "/project", "target": "/usr/bin/git", **changed})


class Page:
    """Shows questions, and answers when it is told to."""

    def __init__(self, answer_at_once=...):
        self.shown = threading.Event()
        self.closed = threading.Event()
        self._at_once = answer_at_once

    def put(self, asked):
        self.asked = asked
        asked.on_close(self.closed.set)
        self.shown.set()
        if self._at_once is not ...:
            asked.answer(self._at_once)


def asking(*asks, seconds=LONG, cancelled=None):
    """Ask from another thread; returns how to wait for what came of it."""
    came = []

    def work():
        try:
            came.append(ask_all(asks, question(), seconds, cancelled))
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            came.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result():
        thread.join(LONG)
        assert came, "it is still waiting"
        return came[0]

    return result


def test_nobody_is_a_no():
    reply = ask_all((), question(), LONG)
    assert (reply.answer, reply.reason) == (questions.DENY_ONCE, "nobody was there to ask")


def test_when_all_say_that_nobody_is_there_it_is_a_no():
    reply = ask_all((Page(None), Page(None)), question(), LONG)
    assert (reply.answer, reply.reason) == (questions.DENY_ONCE, "nobody was there to ask")


def test_one_where_nobody_is_leaves_the_question_to_the_others():
    page = Page()
    result = asking(Page(None), page)
    assert page.shown.wait(LONG)
    assert not page.closed.is_set()
    page.asked.answer(questions.ALLOW_SESSION)
    assert result().answer == questions.ALLOW_SESSION


def test_the_first_answer_wins_and_every_one_is_closed():
    pages = [Page() for _ in range(3)]
    result = asking(*pages)
    for page in pages:
        assert page.shown.wait(LONG)
    assert pages[1].asked.answer(questions.DENY_ALWAYS)
    assert result().answer == questions.DENY_ALWAYS
    for page in pages:
        assert page.closed.wait(LONG)
        assert page.asked.is_settled
    assert not pages[0].asked.answer(True)
    assert result().answer == questions.DENY_ALWAYS


def test_of_many_answers_at_the_same_time_exactly_one_counts():
    for _ in range(50):
        pages = [Page() for _ in range(4)]
        result = asking(*pages)
        for page in pages:
            assert page.shown.wait(LONG)
        counted = []
        start = threading.Barrier(len(pages))

        def answer(page, word, start=start, counted=counted):
            start.wait()
            if page.asked.answer(word):
                counted.append(word)

        words = [questions.ALLOW_ONCE, questions.DENY_ONCE, questions.ALLOW_ALWAYS, questions.DENY_SESSION]
        threads = [threading.Thread(target=answer, args=pair) for pair in zip(pages, words, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted == [result().answer]


def test_one_answer_counts_once_even_from_the_same_place():
    page = Page()
    result = asking(page, Page())
    page.shown.wait(LONG)
    assert page.asked.answer(None) is False
    assert page.asked.answer(True) is False
    assert not page.asked.is_settled
    del result


def test_those_who_come_after_an_answer_are_not_asked():
    late = Page()
    assert ask_all((Page(True), late), question(), LONG).answer == questions.ALLOW_ONCE
    assert not late.shown.is_set()


def test_no_answer_in_time_is_a_no_and_closes_the_question():
    page = Page()
    reply = ask_all((page,), question(), 0.01)
    assert (reply.answer, reply.reason) == (questions.DENY_ONCE, "nobody answered in time")
    assert page.closed.is_set()
    assert not page.asked.answer(True)


def test_a_caller_that_gives_up_closes_the_question():
    page, given_up = Page(), threading.Event()
    result = asking(page, cancelled=given_up.is_set)
    assert page.shown.wait(LONG)
    given_up.set()
    assert result().answer == questions.DENY_ONCE
    assert page.closed.is_set()


def test_something_to_be_closed_after_the_end_is_closed_at_once():
    page = Page(True)
    ask_all((page,), question(), LONG)
    done = []
    page.asked.on_close(lambda: done.append(True))
    assert done == [True]


# --- callbacks ---


@pytest.mark.parametrize(
    ("given", "meant"), [
        (True, questions.ALLOW_ONCE), (False, questions.DENY_ONCE), (None, questions.DENY_ONCE), ("allow_always",) * 2
    ]
)
def test_a_function_answers_by_what_it_returns(given, meant):
    seen = []

    def answer(asked):
        seen.append(asked)
        return given

    async def answer_later(asked):
        await asyncio.sleep(0)
        return answer(asked)

    for function in (answer, answer_later):
        assert ask_all(channels(function), question(), LONG).answer == meant
    assert seen == [question(), question()]


def test_an_async_function_is_called_in_the_loop_that_waits_for_the_run():
    async def program():
        own = []

        async def answer(_question):
            own.append(asyncio.get_running_loop())
            return True

        loop = asyncio.get_running_loop()
        reply = await asyncio.to_thread(ask_all, channels(answer, loop), question(), LONG)
        assert reply.answer == questions.ALLOW_ONCE
        assert own == [loop]

    asyncio.run(program())


def test_an_async_function_is_cancelled_when_somebody_else_is_faster():
    async def program():
        began, ended = asyncio.Event(), asyncio.Event()

        async def answer(_question):
            try:
                began.set()
                await asyncio.sleep(LONG)
            finally:
                ended.set()

        page = Page()
        loop = asyncio.get_running_loop()
        asked = asyncio.create_task(asyncio.to_thread(ask_all, channels([answer, page], loop), question(), LONG))
        await began.wait()
        await asyncio.to_thread(page.shown.wait, LONG)
        page.asked.answer(False)
        assert (await asked).answer == questions.DENY_ONCE
        await asyncio.wait_for(ended.wait(), LONG)

    asyncio.run(program())


def test_what_a_function_raises_reaches_whoever_asked():
    def broken(_question):
        raise ZeroDivisionError("in the callback")

    page = Page()
    with pytest.raises(ZeroDivisionError, match="in the callback"):
        ask_all((page, Callback(broken)), question(), LONG)
    assert page.closed.is_set()


def test_nonsense_from_a_function_is_an_error_and_no_answer():
    with pytest.raises(BadRequest, match="'yes please' is not an answer"):
        ask_all(channels(lambda _question: "yes please"), question(), LONG)


def test_what_can_not_be_asked_is_refused_at_once():
    with pytest.raises(BadRequest, match="can't be asked"):
        channels("somebody")
    assert channels(None) == ()
