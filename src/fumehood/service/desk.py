"""The desk: where a question is put for whoever is present, in whatever process, and answered once.

It is a directory of our own state, which no command sees. A question is a file there, locked by the process that waits
for its answer; an answer is a file beside it, which can be made only once. Whoever watches the desk holds a lock on a
file of their own: so it is known whether anybody is present, and nothing is left to be asked where nobody is. There is
no server: a page or program that starts anew reads the same directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time

from fumehood.core.questions import Question, understood
from fumehood.core.value import Value
from fumehood.core.wording import Item
from fumehood.errors import BadRequest
from fumehood.store.places import make_private, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self

    from fumehood.service.ask import Asked
    from fumehood.store.places import Places

_QUESTION, _ANSWER, _PRESENT, _NEW = ".question", ".answer", ".present", ".new"
_LOOKS_EVERY_S = 0.1
_AWAY_S = 10.0  # how long somebody may be away, to load a page anew, before they count as gone


class OpenQuestion(Value):
    """A question that lies on the desk; it waits until a moment of the clock."""

    id: str
    question: Question
    asked_at: float
    until: float

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

    @property
    def is_attended(self) -> bool:
        """True if somebody is present who would see a question."""
        return any(self._is_locked(name) for name in self._names(_PRESENT))

    def attend(self) -> Presence:
        """Be present, for a `with` block: questions are put here from now on, and wait for an answer."""
        return Presence(self._made())

    def waiting(self) -> list[OpenQuestion]:
        """Return the questions that wait for an answer, the oldest first; what a dead process left goes."""
        questions = []
        for name in sorted(self._names(_QUESTION)):
            key = name.removesuffix(_QUESTION)
            if not self._is_locked(name):
                self._clear(key)
            elif not os.path.lexists(self._path(key, _ANSWER)):
                question = self._read(key)
                questions += [] if question is None else [question]
        return questions

    def answer(self, key: str, answer: object) -> bool:
        """Answer a question with one of its options, True or False; returns True if this is the one that counts.

        False: somebody was faster, it is too late, or nobody waits for it any more.
        """
        question = next((each for each in self.waiting() if each.id == key), None)
        if question is None:
            return False
        option = understood(question.question, answer)
        spare = self._path(f"{key}-{new_id()}", _NEW)
        _write(spare, {"answer": option, "digest": question.question.digest})
        try:
            os.link(spare, self._path(key, _ANSWER))  # only the first can
        except FileExistsError:
            return False
        finally:
            os.unlink(spare)
        return True

    def put(self, asked: Asked) -> None:
        """Lay a question on the desk, and wait for its answer in a thread."""
        self._made()
        key = new_id().lower()
        now = time.time()
        spare = self._path(key, _NEW)
        fields = {**asked.question.fields(), "items": [item.fields() for item in asked.question.items]}
        _write(spare, {"question": fields, "asked_at": now, "until": now + asked.seconds})
        file = os.open(spare, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(spare, self._path(key, _QUESTION))
        settled = threading.Event()
        thread = threading.Thread(target=self._await, args=(key, asked, settled), name="fumehood-desk", daemon=True)

        def close() -> None:
            settled.set()
            # A sandbox is forked next, and only a process of one thread may do that.
            thread.join()
            self._clear(key)
            os.close(file)

        asked.on_close(close)
        thread.start()

    def _await(self, key: str, asked: Asked, settled: threading.Event) -> None:
        seen = time.monotonic()
        while not settled.wait(_LOOKS_EVERY_S):
            answer = self._answer_to(key)
            if answer is not None and answer["digest"] == asked.question.digest:
                asked.answer(answer["answer"])
                return
            if self.is_attended:
                seen = time.monotonic()
            elif time.monotonic() - seen > _AWAY_S:
                asked.answer(None)
                return

    def _answer_to(self, key: str) -> dict[str, str] | None:
        try:
            with open(self._path(key, _ANSWER), "rb") as file:
                answer: dict[str, str] = json.load(file)
        except FileNotFoundError:
            return None
        return answer

    def _read(self, key: str) -> OpenQuestion | None:
        try:
            with open(self._path(key, _QUESTION), "rb") as file:
                contents = json.load(file)
        except FileNotFoundError:
            return None  # settled this moment
        fields = contents.pop("question")
        fields["items"] = tuple(Item(**{**item, "kind": tuple(item["kind"])}) for item in fields["items"])
        fields["details"] = tuple(fields["details"])
        return OpenQuestion(id=key, question=Question(**fields), **contents)

    def _clear(self, key: str) -> None:
        for ending in (_QUESTION, _ANSWER):
            try:
                os.unlink(self._path(key, ending))
            except FileNotFoundError:
                continue

    def _names(self, ending: str) -> Iterator[str]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            names = []
        return (name for name in names if name.endswith(ending))

    def _path(self, key: str, ending: str) -> str:
        if not key.replace("-", "").isalnum():
            raise BadRequest(f"{key!r} does not name a question", hint="fumehood status lists those that wait")
        return f"{self._directory}/{key}{ending}"

    def _is_locked(self, name: str) -> bool:
        """Tell whether the process that made a file lives; what nobody holds any more is of no use."""
        try:
            file = os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def _made(self) -> str:
        if not os.path.isdir(self._directory):
            make_private(self._directory)
        return self._directory


class Presence:
    """Somebody is at the desk for a `with` block."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{os.getpid()}-{new_id().lower()}{_PRESENT}"

    def __enter__(self) -> Self:
        for name in os.listdir(os.path.dirname(self._path)):
            self._forget_dead(f"{os.path.dirname(self._path)}/{name}")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_error: object) -> None:
        os.unlink(self._path)
        os.close(self._file)

    def _forget_dead(self, path: str) -> None:
        """Remove what those left who died here."""
        pid = os.path.basename(path).partition("-")[0]
        if path.endswith(_PRESENT) and not os.path.exists(f"/proc/{pid}"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return  # another one who came was faster


def _write(path: str, contents: object) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="ascii") as file:
        json.dump(contents, file)
