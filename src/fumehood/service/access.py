"""What an agent asks a person to allow its later commands: a host, a path of the home, a directory to write.

A yes is kept for the session, or for the project where the person says so; a directory to write is a root of the
project. It counts from the next command on.
"""

from __future__ import annotations

import os

from fumehood.core import questions
from fumehood.core.inside import WRITE
from fumehood.core.masks import is_below, is_in
from fumehood.core.questions import HOST, SHOW
from fumehood.core.request import quoted
from fumehood.errors import BadRequest, Refused
from fumehood.store.audit import DECIDED, IN_SESSION
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.inside import Widening
    from fumehood.core.policy import Policy
    from fumehood.core.questions import Key, Question
    from fumehood.service.permission import Decision
    from fumehood.service.store import Store
    from fumehood.store.projects import Project


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
        said.append(_told(widening, session, allowed=allowed, why=why))
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


def _told(widening: Widening, session: str, *, allowed: bool, why: str) -> str:
    words = {HOST: "reach", SHOW: "see", WRITE: "write"}
    if allowed:
        return f"allowed: commands may {words[widening.what]} {widening.target} from the next one on"
    if why != questions.NOBODY:
        return f"not allowed: to {words[widening.what]} {widening.target}" + (f" ({why})" if why else "")
    option = "" if widening.what == HOST else f"--{widening.what} "
    whose = f" --session {session}" if session else ""
    return f"{why}; the person can type: fumehood ask{whose} {option}{quoted(widening.target)}"
