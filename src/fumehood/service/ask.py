"""Ask a person: at a terminal, by a program's callback, an MCP client, a web page, from any process, or nobody.

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

import json
import os
import threading
import time
import weakref
from typing import Protocol, TypeVar, cast

from fumehood.core.questions import ALLOW, CANCELLED, DENY, DENY_ONCE, NOBODY, TOO_LATE, Question, parse_answer
from fumehood.core.value import Value
from fumehood.core.wording import Item
from fumehood.errors import RAISED_BY, BadRequest
from fumehood.linux.libc import InterruptSafeLock, InterruptsHeld, read_all, remove_file
from fumehood.linux.lock import Lock
from fumehood.linux.terminal import block_resume_signal
from fumehood.store.places import ID_LENGTH, Places, make_private, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from typing import Any, Self

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
        option = None if answer is None else parse_answer(self.question, answer)
        with self._race.lock:
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
        with self._race.lock:
            self.is_away = not is_here
            self._race.look_around()

    def fail(self, error: BaseException) -> None:
        """Say that asking went wrong: whoever waits for the answer gets the error."""
        with self._race.lock:
            if not self._replied and not self._race.is_over:
                self._replied = True
                self._race.error = error
                self._race.changed.notify_all()

    def share(self, show: Callable[[], Result], earlier: Callable[[], str | None]) -> Result | None:
        """Show the question to other processes too, unless it is settled; returns what `show` does.

        From then on, before an answer counts here, `earlier` closes it there, and returns the answer that came first.
        """
        with self._race.lock:
            if self._race.is_over:
                return None
            shown = show()
            self._race.earlier = earlier
            return shown

    def on_close(self, closing: Callable[[], object]) -> None:
        """Have something called once the question is settled: by the thread that waited, or at once if it is."""
        with self._race.lock:
            if self._closings is not None:
                self._closings.append(closing)
                return
        closing()

    def wait_in_thread(
        self, name: str, work: Callable[[], None], end: Callable[[], object], after: Callable[[], object]
    ) -> None:
        """Have a thread wait for the answer. Once the question is settled, `end` lets it go, and then comes `after`."""

        def run() -> None:
            block_resume_signal()
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
        with self._race.lock:
            closings, self._closings = self._closings or [], None
        for closing in closings:
            closing()


class _Race:
    """Several who may answer, of whom the first counts."""

    def __init__(self, question: Question, size: int, seconds: float) -> None:
        self.lock = InterruptSafeLock()
        self.changed = threading.Condition(self.lock)
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
        deadline = time.monotonic() + seconds
        with race.lock:
            while not race.is_over:
                left = deadline - time.monotonic()
                if left <= 0 or (cancelled is not None and cancelled()):
                    race.settle(Reply(answer=DENY_ONCE, reason=TOO_LATE if left <= 0 else CANCELLED))
                else:
                    race.changed.wait(left if cancelled is None else min(left, _TURN_S))
        if race.error is not None:
            raise race.error
        assert race.reply is not None
        return race.reply
    finally:
        with race.lock:
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


# ---- The desk: where a question is put for whoever is present, in whatever process, and answered once.
#
# It is a directory of our own state, closed to other users, which no command sees. A question is a file there, locked
# by the process that waits for its answer. To answer it is to rename it, which only the first can; to close it is to
# remove it. Whoever watches the desk holds a lock on a file of their own: so it is known whether anybody is present,
# and nothing is left to be asked where nobody is. There is no server: a page or program that starts anew reads the same
# directory, and what a process left that was killed is known by its lock, which is gone.

_QUESTION, _ANSWER, _PRESENT, _NEW = ".question", ".answer", ".present", ".new"
_LOOKS_EVERY_S = 0.1
_AWAY_S = 10.0  # how long somebody may be away, to load a page anew, before they count as gone
_MOMENT_S = 3600.0  # what somebody is about to put down, and what somebody left who was killed just then


class OpenQuestion:
    """A question that waits for an answer: `question` is what is asked, `id` tells it from all others.

    It was asked at `asked_at` and waits until `until`, in seconds since 1970, as far as the clock is not set meanwhile.
    """

    def __init__(self, desk: Desk, key: str, question: Question, asked_at: float, until: float) -> None:
        self._desk = desk
        self.id = key
        self.question = question
        self.asked_at = asked_at
        self.until = until

    def answer(self, answer: object) -> bool:
        """Answer with one of the question's `options`, True or False; returns True if this is the one that counts.

        False: somebody was faster, it is too late, or nobody waits for it any more.
        """
        return self._desk.answer(self.id, answer)

    @property
    def is_open(self) -> bool:
        """True if an answer would still count."""
        return self._desk.opened(self.id) is not None

    def as_dict(self) -> dict[str, Any]:
        """Return it as programs get it: ready to be shown, with the answers that it allows."""
        question = self.question
        return {
            "id": self.id, "what": question.what, "lines": list(question.lines), "options": list(question.options),
            "command": question.command, "directory": question.directory, "project": question.project,
            "run": question.run, "asked_at": self.asked_at, "until": self.until,
        }  # fmt: skip


class Desk:
    """Puts questions, and answers them, for all processes of one person."""

    def __init__(self, places: Places) -> None:
        self._directory = places.desk

    def is_attended_for(self, project: str) -> bool:
        """Return True if somebody is present who would see a question of a project."""
        wanted = (b"", os.fsencode(project))
        return any(_read_locked(f"{self._directory}/{name}") in wanted for name in self._names(_PRESENT))

    def attend(self, project: str = "") -> Presence:
        """Be present, for a `with` block: questions, or those of one project, wait for an answer from now on."""
        return Presence(self._made(), project)

    def waiting(self, project: str = "") -> list[OpenQuestion]:
        """Return the questions, or those of one project, that wait for an answer, the oldest first."""
        for name in self._names(_ANSWER):
            path = f"{self._directory}/{name}"
            if _read_locked(path) is None:  # whoever asked died before they heard
                remove_file(path)
        opened = (self.opened(name.removesuffix(_QUESTION)) for name in sorted(self._names(_QUESTION)))
        return [each for each in opened if each is not None and project in ("", each.question.project)]

    def answer(self, key: str, answer: object) -> bool:
        """Answer a question, as `OpenQuestion.answer` does."""
        opened = self.opened(key)
        if opened is None:
            return False
        options = opened.question.options
        if isinstance(answer, str) and answer not in (ALLOW, DENY, *options):
            raise BadRequest(f"{answer!r} does not answer this question", hint=f"one of: {', '.join(options)}")
        option = parse_answer(opened.question, answer)
        try:
            os.rename(self._path(key, _QUESTION), self._path(key, f".{option}{_ANSWER}"))  # only the first can
        except FileNotFoundError:
            return False
        return True

    def put(self, asked: Asked) -> None:
        """Lay a question on the desk, and wait for its answer in a thread."""
        key, options = new_id().lower(), asked.question.options

        def lay() -> Lock:
            fields = {**asked.question.fields(), "items": [item.fields() for item in asked.question.items]}
            contents = {"question": fields, "asked_at": time.time(), "deadline": time.monotonic() + asked.seconds}
            path = f"{self._made()}/{key}"
            return _put_down(path + _NEW, path + _QUESTION, json.dumps(contents).encode("ascii"))

        def take_off() -> str | None:
            """Return the answer that was given here before, if one was."""
            return None if remove_file(self._path(key, _QUESTION)) else self._answer_to(key, options)

        try:
            lock = asked.share(lay, take_off)
        except OSError:
            asked.answer(None)  # there is no room: the others are asked
            return
        if lock is None:
            return
        settled = threading.Event()

        def clear_away() -> None:
            for ending in (_QUESTION, *(f".{option}{_ANSWER}" for option in options)):
                remove_file(self._path(key, ending))
            lock.close()

        asked.wait_in_thread("fumehood-desk", lambda: self._await(key, asked, settled), settled.set, clear_away)

    def _await(self, key: str, asked: Asked, settled: threading.Event) -> None:
        """Wait for an answer, and know whether anybody is there; who comes later may give it too."""
        project, options = asked.question.project, asked.question.options
        seen = time.monotonic()
        while not settled.wait(_LOOKS_EVERY_S):
            answer = self._answer_to(key, options)
            if answer is not None:
                asked.answer(answer)
                return
            if self.is_attended_for(project):
                seen = time.monotonic()
            asked.attended(is_here=time.monotonic() - seen <= _AWAY_S)

    def _answer_to(self, key: str, options: tuple[str, ...]) -> str | None:
        return next((each for each in options if os.path.lexists(self._path(key, f".{each}{_ANSWER}"))), None)

    def opened(self, key: str) -> OpenQuestion | None:
        """Read a question that waits; what a dead process left goes."""
        path = self._path(key, _QUESTION)
        data = _read_locked(path)
        if data is None:
            remove_file(path)
            return None
        contents = json.loads(data)
        fields = contents["question"]
        fields["items"] = tuple(Item(**{**item, "kind": tuple(item["kind"])}) for item in fields["items"])
        fields["details"] = tuple(fields["details"])
        until = round(time.time() + contents["deadline"] - time.monotonic())
        return OpenQuestion(self, key, Question(**fields), contents["asked_at"], until)

    def _names(self, ending: str) -> Iterator[str]:
        names = os.listdir(self._directory) if os.path.isdir(self._directory) else ()
        return (name for name in names if name.endswith(ending))

    def _path(self, key: str, ending: str) -> str:
        if not (key.isascii() and key.isalnum() and len(key) <= ID_LENGTH):
            raise BadRequest(f"{key!r} does not name a question", hint="fumehood status lists those that wait")
        return f"{self._directory}/{key}{ending}"

    def _made(self) -> str:
        make_private(self._directory)
        return self._directory


class Presence:
    """Somebody is at the desk for a `with` block."""

    def __init__(self, directory: str, project: str = "") -> None:
        self._directory = directory
        self._project = project

    def __enter__(self) -> Self:
        for name in os.listdir(self._directory):  # what those left who died here
            path = f"{self._directory}/{name}"
            try:
                is_left = name.endswith(_NEW) and time.time() - os.lstat(path).st_mtime > _MOMENT_S
            except FileNotFoundError:
                continue
            if is_left or (name.endswith(_PRESENT) and _read_locked(path) is None):
                remove_file(path)
        path = f"{self._directory}/{new_id().lower()}"
        lock = _put_down(path + _NEW, path + _PRESENT, os.fsencode(self._project))
        # Where nobody leaves, the end of this object is the end of the presence.
        self._leave = weakref.finalize(self, _let_go, path + _PRESENT, lock)
        return self

    def __exit__(self, *_error: object) -> None:
        self._leave()


class Questions:
    """Questions as they come, each once, for `for` or `async for`; whoever has this is present, until it is closed.

    Use it in a `with` block, or call `close`, from any thread or task: the loop over it then ends.
    """

    def __init__(self, desk: Desk, project: str = "") -> None:
        self._desk = desk
        self._project = project
        self._closed = threading.Event()
        self._seen: set[str] = set()
        self._presence = desk.attend(project).__enter__()

    def close(self) -> None:
        """Be present no longer."""
        self._closed.set()
        self._presence.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[OpenQuestion]:
        while not self._closed.is_set():
            yield from self._new()
            self._closed.wait(_LOOKS_EVERY_S)

    async def __aiter__(self) -> AsyncIterator[OpenQuestion]:
        import asyncio

        while not self._closed.is_set():
            for question in self._new():
                yield question
            await asyncio.sleep(_LOOKS_EVERY_S)

    def _new(self) -> Iterator[OpenQuestion]:
        """Return those that were not seen before, if they are still open when their turn comes."""
        waiting = self._desk.waiting(self._project)
        news = [each for each in waiting if each.id not in self._seen]
        self._seen = {each.id for each in waiting}
        return (each for each in news if not self._closed.is_set() and each.is_open)


def _put_down(spare: str, path: str, contents: bytes) -> Lock:
    """Make a file that is whole and locked once it has its name."""
    lock = Lock(os.open(spare, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        lock.take()
        view = memoryview(contents)
        while view:
            view = view[os.write(lock.file, view) :]
        os.rename(spare, path)
    except BaseException:
        _let_go(spare, lock)
        raise
    return lock


def _let_go(path: str, lock: Lock) -> None:
    if lock.file >= 0:  # a child that the program forked ends nobody's
        remove_file(path)
    lock.close()


def _read_locked(path: str) -> bytes | None:
    """Return what is in a file that somebody has locked, else None."""
    try:
        lock = Lock(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    with lock:
        try:
            lock.take(shared=True, wait=False)
        except BlockingIOError:
            return read_all(lock.file)
    return None
