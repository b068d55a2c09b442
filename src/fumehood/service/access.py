"""What an agent asks a person to allow its later commands: a host, a path of the home, a directory to write.

A yes is kept for the session, or for the project where the person says so; a directory to write is a root of the
project. It counts from the next command on.

Directories that a person gave the client beside the project: offered as roots, once, when a session first uses one.

That they gave it to the client is not enough: only their answer here makes it a root.

What one run may write, where its caller limits it: nothing, some directories of the roots, another one for once.
"""

from __future__ import annotations

import os
from copy import copy

from fumehood.core import questions
from fumehood.core.inside import WRITE
from fumehood.core.masks import is_below, is_in
from fumehood.core.questions import HOST, SHOW, root_question
from fumehood.core.report import READ_ONLY, Blocked
from fumehood.core.request import quoted
from fumehood.errors import BadRequest, Refused
from fumehood.store.audit import DECIDED, IN_SESSION
from fumehood.store.places import home, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from fumehood.core.inside import Widening
    from fumehood.core.policy import Policy
    from fumehood.core.questions import Key, Question
    from fumehood.core.request import Request
    from fumehood.service.permission import Decision
    from fumehood.service.running import Wishes, Workplace
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Place = TypeVar("Place", bound=Workplace)


def widened(policy: Policy, granted: Sequence[tuple[str, str]]) -> Policy:
    """Return a policy with what a person granted."""
    hosts = [target for what, target in granted if what == HOST and target not in policy.hosts]
    shown = [target for what, target in granted if what == SHOW and target not in policy.show]
    return policy.replace(hosts=(*policy.hosts, *hosts), show=(*policy.show, *shown))


def question_for(store: Store, project: Project, widening: Widening) -> Question:
    """Put what an agent asks for into a question, or say why it can't be had."""
    if widening.what == WRITE:
        real = store.projects.new_root(project, widening.target)
        question = questions.root_question(real, project.path, None if widening.target == real else widening.target)
        said = (*question.details, *questions.reason_told(widening.reason))
        return question.replace(details=said)
    if widening.what == SHOW:
        return questions.show_question(_showable(store, widening.target), project.path, widening.reason)
    return questions.host_question(widening.target, project.path, widening.reason)


def _showable(store: Store, path: str) -> str:
    real, own = os.path.realpath(path), os.path.realpath(home())
    if not is_below(real, own):
        hint = "other places are in sight, or out of every command's reach"
        raise BadRequest(f"{real} is not a path of the home", hint=hint)
    if is_in(real, store.places.own()) or any(is_in(place, (real,)) for place in store.places.own()):
        raise BadRequest(f"{real} can't be shown: it is Fumehood's own", hint="no command sees it")
    return real


def settled_before(store: Store, session: str, question: Question) -> str | None:
    """Return what a person answered for this session, allow or deny."""
    return None if not session or question.one_time_only else store.grants.find(_in_session(question, session))


def _in_session(question: Question, session: str) -> Key:
    return question.what, IN_SESSION + session, question.target


def settle(
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
            _keep(store, project, session, question, decision)
        is_allowed = is_allowed or allowed
        said.append(_in_words(widening, session, allowed=allowed, why=why))
    if not is_allowed:
        raise Refused("; ".join(said), hint="nothing was changed")
    return said


def _keep(store: Store, project: Project, session: str, question: Question, decision: Decision) -> None:
    if question.what in (questions.ROOT, questions.LINKED_ROOT):
        if decision.allowed:
            store.projects.keep_root(project, question.target)
        return
    # What is for always, the permissions have kept.
    if session and decision.answer in (questions.ALLOW_SESSION, questions.DENY_SESSION):
        store.grants.keep(_in_session(question, session), questions.verdict(decision.answer))


def _in_words(widening: Widening, session: str, *, allowed: bool, why: str) -> str:
    words = {HOST: "reach", SHOW: "see", WRITE: "write"}
    if allowed:
        return f"allowed: commands may {words[widening.what]} {widening.target} from the next one on"
    if why != questions.NOBODY:
        return f"not allowed: to {words[widening.what]} {widening.target}" + (f" ({why})" if why else "")
    option = "" if widening.what == HOST else f"--{widening.what} "
    whose = f" --session {session}" if session else ""
    return f"{why}; the person can type: fumehood ask{whose} {option}{quoted(widening.target)}"


_MARK = "offered-"


def offer(hood: Workplace, request: Request, wishes: Wishes) -> Request:
    """Ask whether commands may write what this one uses of such directories; the request then has what stays read-only.

    Where nobody is there to ask, the command is told, as once as the person would be.
    """
    store, read_only = hood.store, []
    for path in request.beside:
        try:
            real = store.projects.new_root(hood.project, path)
        except BadRequest:
            continue  # it is one already, or can't be one
        if not _is_used(request, path, real) or not _is_first(store.places.session(request.session), real):
            continue
        question = root_question(real, hood.project.path, None if real == path else path)
        decision = hood.asking(wishes).decide(question, wishes.cancelled)
        store.audit.tell("", DECIDED, f"{decision.text}: {question.text}", project=hood.project.id)
        if decision.allowed:
            hood.project = store.projects.keep_root(hood.project, real)
        else:
            read_only.append(real)
    return request.replace(beside=tuple(read_only))


def read_only_beside(directories: tuple[str, ...]) -> tuple[Blocked, ...]:
    """Say to a command what it can only read, and how it asks for more."""
    return tuple(
        Blocked(what=READ_ONLY, detail=each, hint=f"to ask the person for it: fumehood ask --write {quoted(each)}")
        for each in directories
    )


def _is_used(request: Request, path: str, real: str) -> bool:
    """Return True if the command starts there, or names it."""
    line = request.command if isinstance(request.command, str) else " ".join(request.command)
    return is_in(os.path.realpath(request.cwd or "/"), (real,)) or path in line or real in line


def _is_first(room: str, real: str) -> bool:
    """Return True once for each session and directory."""
    from hashlib import sha256

    make_private(room)
    try:
        name = sha256(os.fsencode(real)).hexdigest()[:32]
        os.close(os.open(f"{room}/{_MARK}{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def limited(hood: Place, request: Request) -> tuple[Place, Request]:
    """Return a hood whose project has what a request may write besides as roots, and the request with real paths.

    Nobody is asked yet.
    """
    assert request.write is not None
    project = hood.project
    directories = []
    for path in request.write:
        whole = os.path.normpath(os.path.join(project.path, path))
        real = os.path.realpath(whole)
        if not is_in(real, project.roots):
            real = hood.store.projects.new_root(project, whole)
            project = project.replace(extra=(*project.extra, real))
        elif not os.path.isdir(real):
            there = "is not a directory" if os.path.lexists(real) else "does not exist"
            raise BadRequest(
                f"{path} can't be what a run may write: it {there}", hint="name a directory that is there"
            )
        directories.append(real)
    own = copy(hood)
    own.project = project
    besides = project.extra[len(hood.project.extra) :]
    return own, request.replace(write=tuple(dict.fromkeys(directories)), besides=besides)
