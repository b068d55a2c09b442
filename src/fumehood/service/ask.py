"""Put a question to whoever may answer it: a terminal, a program's callback, an MCP client, a web page, or nobody.

To be asked, something needs one method, `put(asked)`, which returns soon:

    class Page:
        def put(self, asked):                  # from the thread that waits for the answer
            self.show(asked.question.lines)    # escaped and bounded; the answers are its .options
            asked.on_close(self.hide)          # called once, when the question is settled, whoever settled it

        def clicked(self, asked, button):      # later, from any thread
            asked.answer(button)               # one of asked.question.options; None: nobody is here

Put to several at once, the first answer wins. Nobody there, or no answer in time, is a no.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol, TypeVar, cast

from fumehood.core import questions
from fumehood.core.inside import HOST, SHOW, WRITE, Widening
from fumehood.core.masks import is_below, is_in
from fumehood.core.questions import CANCELLED, DENY_ONCE, NOBODY, TOO_LATE, Decision, Key, Question, understood
from fumehood.core.request import quoted
from fumehood.core.value import Value
from fumehood.errors import RAISED_BY, BadRequest, Refused
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.terminal import leave_resuming_to_main
from fumehood.store.audit import DECIDED, IN_SESSION
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable, Sequence

    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Answering = Callable[[Question], object | Awaitable[object]]
    Result = TypeVar("Result")

_TURN_S = 0.05  # how often a caller that may lose interest is asked whether it has


class Ask(Protocol):
    """Somebody who can be asked."""

    def put(self, asked: Asked) -> None:
        """Show a question, without waiting for its answer."""
        ...


class Reply(Value):
    """What came of a question: the answer, and why it is a no where nobody gave one."""

    answer: str
    reason: str = ""


class Asked:
    """One question as it was put to one of those who may answer it."""

    def __init__(self, question: Question, race: _Race, seconds: float) -> None:
        self.question = question
        self.seconds = seconds  # how long an answer is waited for
        self._race = race
        self._closings: list[Callable[[], object]] | None = []
        self._replied = False
        self.is_away = False  # nobody is there, now or for good

    def answer(self, answer: object) -> bool:
        """Answer with one of the question's options, True or False; returns True if this is the one that counts.

        None says that nobody is there, and leaves the question to the others.
        """
        option = None if answer is None else understood(self.question, answer)
        with self._race.changed:
            if self._replied or self._race.is_over:
                return False
            self._replied = True
            if option is not None:
                return self._race.settle(Reply(answer=option))
            self.is_away = True
            self._race.look_around()
        return False

    def attended(self, *, is_here: bool) -> None:
        """Say whether somebody is there now: as long as all are away, there is nobody to wait for."""
        with self._race.changed:
            self.is_away = not is_here
            self._race.look_around()

    def fail(self, error: BaseException) -> None:
        """Say that asking went wrong: whoever waits for the answer gets the error."""
        with self._race.changed:
            if not self._replied and not self._race.is_over:
                self._replied = True
                self._race.error = error
                self._race.changed.notify_all()

    def share(self, show: Callable[[], Result], earlier: Callable[[], str | None]) -> Result | None:
        """Show the question to other processes too, unless it is settled; returns what `show` does.

        From then on, before an answer counts here, `earlier` closes it there, and returns the answer that came first.
        """
        with self._race.changed:
            if self._race.is_over:
                return None
            shown = show()
            self._race.earlier = earlier
            return shown

    def on_close(self, closing: Callable[[], object]) -> None:
        """Have something called once the question is settled: by the thread that waited, or at once if it is."""
        with self._race.changed:
            if self._closings is not None:
                self._closings.append(closing)
                return
        closing()

    def wait_in_thread(
        self, name: str, work: Callable[[], None], end: Callable[[], object], after: Callable[[], object]
    ) -> None:
        """Have a thread wait for the answer. Once the question is settled, `end` lets it go, and then comes `after`."""

        def run() -> None:
            leave_resuming_to_main()
            work()

        thread = threading.Thread(target=run, name=name, daemon=True)

        def close() -> None:
            end()
            # A sandbox is forked next, and only a process of one thread may do that.
            if thread.ident is not None:
                thread.join()
            after()

        # An interrupt between the two closes what has not begun; another thread's can't be held here.
        with InterruptsHeld():
            self.on_close(close)
            thread.start()

    @property
    def is_settled(self) -> bool:
        """True if an answer would come too late."""
        return self._race.is_over

    @property
    def reply(self) -> Reply | None:
        """What came of it, once it is settled; None too where asking went wrong."""
        return self._race.reply

    def close(self) -> None:
        """The question is settled: tell who shows it."""
        with self._race.changed:
            closings, self._closings = self._closings or [], None
        for closing in closings:
            closing()


class _Race:
    """Several who may answer, of whom the first counts."""

    def __init__(self, question: Question, size: int, seconds: float) -> None:
        self.changed = threading.Condition()
        self.asked = [Asked(question, self, seconds) for _ in range(size)]
        self.earlier: Callable[[], str | None] = lambda: None
        self.error: BaseException | None = None
        self.reply: Reply | None = None

    @property
    def is_over(self) -> bool:
        return self.reply is not None or self.error is not None

    def settle(self, reply: Reply) -> bool:
        """End it by a reply, unless another came first where other processes answer (the lock is held)."""
        earlier = self.earlier()
        self.reply = reply if earlier is None else Reply(answer=earlier)
        self.changed.notify_all()
        return earlier is None

    def look_around(self) -> None:
        """End it where everybody is away (the lock is held)."""
        if not self.is_over and all(each.is_away for each in self.asked):
            self.settle(Reply(answer=DENY_ONCE, reason=NOBODY))

    def wait(self, seconds: float, cancelled: Callable[[], bool] | None) -> Reply:
        """Return the first answer, or a no once it is too late for one."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not self.is_over:
                left = deadline - time.monotonic()
                if left <= 0 or (cancelled is not None and cancelled()):
                    self.settle(Reply(answer=DENY_ONCE, reason=TOO_LATE if left <= 0 else CANCELLED))
                    break
                self.changed.wait(left if cancelled is None else min(left, _TURN_S))
            if self.error is not None:
                raise self.error
            assert self.reply is not None
            return self.reply


def ask_all(
    asks: Sequence[Ask], question: Question, seconds: float, cancelled: Callable[[], bool] | None = None
) -> Reply:
    """Put a question to all of them at once and return the first answer; without one, a no."""
    if not asks:
        return Reply(answer=DENY_ONCE, reason=NOBODY)
    race = _Race(question, len(asks), seconds)
    try:
        for ask, asked in zip(asks, race.asked, strict=True):
            if race.is_over:
                break
            ask.put(asked)
        return race.wait(seconds, cancelled)
    finally:
        with race.changed:
            if not race.is_over:  # an error: what comes now is too late
                race.settle(Reply(answer=DENY_ONCE, reason=CANCELLED))
        for asked in race.asked:
            asked.close()


def channels(ask: object, loop: AbstractEventLoop | None = None) -> tuple[Ask, ...]:
    """Turn what a program names into those who are asked: a function, something with `put`, or several of these."""
    if ask is None:
        return ()
    if isinstance(ask, (list, tuple)):
        return tuple(channel for each in ask for channel in channels(each, loop))
    if hasattr(ask, "put"):
        return (cast("Ask", ask),)
    if not callable(ask):
        raise BadRequest(f"{ask!r} can't be asked", hint="a function that takes a question and returns an answer")
    return (Callback(ask, loop),)


class Callback:
    """A program's own function, sync or async: it gets the question and returns the answer.

    A sync one is called in a thread of its own, and so is an async one, unless `loop` is where the program awaits
    the run.
    """

    def __init__(self, answering: Answering, loop: AbstractEventLoop | None = None) -> None:
        self._answering = answering
        self._loop = loop

    def put(self, asked: Asked) -> None:
        """Call the function."""
        threading.Thread(target=self._work, args=(asked,), name="fumehood-ask", daemon=True).start()

    def _work(self, asked: Asked) -> None:
        try:
            answer = self._answering(asked.question)
            if hasattr(answer, "__await__"):
                answer = self._awaited(asked, answer)
            # A function is somebody: when it says nothing, that is a no.
            asked.answer(False if answer is None else answer)
        except BaseException as error:  # noqa: BLE001 - handed on to whoever waits for the answer
            error.add_note(f"{RAISED_BY}ask")
            asked.fail(error)

    def _awaited(self, asked: Asked, answer: Awaitable[object]) -> object:
        import asyncio
        from concurrent.futures import CancelledError

        async def waiting() -> object:
            return await answer

        if self._loop is None:
            return asyncio.run(waiting())  # when somebody else is faster, its answer comes too late
        future = asyncio.run_coroutine_threadsafe(waiting(), self._loop)
        asked.on_close(future.cancel)
        try:
            return future.result()
        except CancelledError as error:  # by its own name, whoever awaits would not know it
            raise asyncio.CancelledError(*error.args) from error


# ---- What an agent asks a person to allow its later commands: a host, a path of the home, a directory to write.
#
# A yes is kept for the session, or for the project where the person says so; a directory to write is a root of the
# project. It counts from the next command on.

def question_for(store: Store, project: Project, widening: Widening) -> Question:
    """Put what an agent asks for into a question, or say why it can't be had."""
    if widening.what == WRITE:
        real = store.projects.new_root(project, widening.target)
        question = questions.root_question(real, project.path, None if widening.target == real else widening.target)
        said = (*question.details, *questions.reason_told(widening.reason))
        return question.replace(details=said)
    if widening.what == SHOW:
        real, own = os.path.realpath(widening.target), store.places.own()
        if not is_below(real, os.path.realpath(home())):
            hint = "other places are in sight, or out of every command's reach"
            raise BadRequest(f"{real} is not a path of the home", hint=hint)
        if is_in(real, own) or any(is_in(place, (real,)) for place in own):
            raise BadRequest(f"{real} can't be shown: it is Fumehood's own", hint="no command sees it")
        return questions.show_question(real, project.path, widening.reason)
    return questions.host_question(widening.target, project.path, widening.reason)


def settled_before(store: Store, session: str, question: Question) -> str | None:
    """Return what a person answered for this session, allow or deny."""
    return None if not session or question.one_time_only else store.grants.find(_in_session(question, session))


def _in_session(question: Question, session: str) -> Key:
    return question.what, IN_SESSION + session, question.target


def settle_access(
    store: Store, project: Project, session: str, asked: Sequence[Widening], decide: Callable[[Question], Decision]
) -> list[str]:
    """Have each thing decided, and keep what was; returns what was said. Raises Refused where nothing was allowed."""
    said: list[str] = []
    is_allowed = False
    for widening in asked:
        question = question_for(store, project, widening).replace(in_session=bool(session))
        before = settled_before(store, session, question)
        if before is not None:
            allowed, why = before == questions.ALLOW, f"answered before: {before}"
        else:
            decision = decide(question)
            allowed, why = decision.allowed, decision.reason
            store.audit.tell("", DECIDED, f"{decision.text}: {question.text}", project=project.id)
            if question.what in (questions.ROOT, questions.LINKED_ROOT):
                if allowed:
                    store.projects.keep_root(project, question.target)
            # What is for always, the permissions have kept.
            elif session and decision.answer in (questions.ALLOW_SESSION, questions.DENY_SESSION):
                store.grants.keep(_in_session(question, session), questions.verdict(decision.answer))
        is_allowed = is_allowed or allowed
        said.append(_in_words(widening, session, allowed=allowed, why=why))
    if not is_allowed:
        raise Refused("; ".join(said), hint="nothing was changed")
    return said


def _in_words(widening: Widening, session: str, *, allowed: bool, why: str) -> str:
    words = {HOST: "reach", SHOW: "see", WRITE: "write"}
    if allowed:
        return f"allowed: commands may {words[widening.what]} {widening.target} from the next one on"
    if why != questions.NOBODY:
        return f"not allowed: to {words[widening.what]} {widening.target}" + (f" ({why})" if why else "")
    option = "" if widening.what == HOST else f"--{widening.what} "
    whose = f" --session {session}" if session else ""
    return f"{why}; the person can type: fumehood ask{whose} {option}{quoted(widening.target)}"
