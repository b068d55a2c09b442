"""Decide what needs a person's word: by what was answered before, else by asking."""

from __future__ import annotations

import os

from fumehood.errors import BadRequest, Refused
from fumehood.store.audit import DECIDED, IN_SESSION
from fumehood.store.places import has_entries, home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.inside import Widening
    from fumehood.core.policy import Policy
    from fumehood.core.questions import Decision, Question
    from fumehood.service.ask import Ask
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Session = dict[tuple[str, str, str], str]

PATIENCE_S = 120.0


class Permissions:
    """What a person allowed, and how to ask for more.

    `session` holds what was answered for as long as this program runs; None where the program ends with this run, so
    that answers for a session would mean nothing and are not offered. `asks` may be a function that finds them. Whoever
    is at the desk is asked too.
    """

    def __init__(
        self, store: Store, asks: Sequence[Ask] | Callable[[], Sequence[Ask]] = (),
        session: Session | None = None, patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self._store = store
        self._askable = asks
        self._session = session
        self._patience_s = patience_s

    @property
    def _others(self) -> tuple[Ask, ...]:
        """Who can be asked beside those at the desk: looked for only when it matters."""
        if callable(self._askable):
            self._askable = self._askable()
        return tuple(self._askable)

    def somebody_can_answer(self, project: str) -> bool:
        """Return True if there is somebody to ask about a project."""
        if self._others:
            return True
        if not has_entries(self._store.places.desk):
            return False
        from fumehood.service.ask import Desk

        return Desk(self._store.places).is_attended_for(project)

    def among(self, asks: Sequence[Ask]) -> Permissions:
        """Return the same grants and session with others to ask."""
        return Permissions(self._store, asks, self._session, self._patience_s)

    def decide(self, question: Question, cancelled: Callable[[], bool] | None = None) -> Decision:
        """Return what the session, the kept grants, or a person says."""
        from fumehood.core import questions

        if self._session is None and not question.is_lasting:
            question = question.replace(in_session=False)
        before = self._settled(question)
        if before != questions.ASK:
            return questions.Decision(allowed=before == questions.ALLOW, reason=f"answered before: {before}")
        if question.unaskable:
            return questions.Decision(allowed=False, answer=questions.DENY_ONCE, reason=question.unaskable)
        if not self.somebody_can_answer(question.project):
            self._store.grants.note_missed(question)
            return questions.Decision(allowed=False, answer=questions.DENY_ONCE, reason=questions.NOBODY)
        from fumehood.service.ask import Desk, ask_all

        # At the desk too where nobody is there yet: who comes while the others are asked may answer.
        reply = ask_all((*self._others, Desk(self._store.places)), question, self._patience_s, cancelled)
        if reply.reason in (questions.NOBODY, questions.TOO_LATE, questions.CANCELLED):
            self._store.grants.note_missed(question)
        else:
            self._store.grants.forget_asked(question)
        verdict, scope = questions.answer_verdict(reply.answer), questions.answer_scope(reply.answer)
        if scope == questions.SESSION and self._session is not None and not question.is_lasting:
            self._session[question.key] = verdict
        elif scope == questions.ALWAYS:
            self._store.grants.keep(question.key, verdict)
        return questions.Decision(allowed=verdict == questions.ALLOW, answer=reply.answer, reason=reply.reason)

    def is_settled(self, question: Question) -> bool:
        """Return True if nobody needs to be asked, because of what was answered before."""
        from fumehood.core.questions import ASK

        return self._settled(question) != ASK

    def require(self, question: Question, cancelled: Callable[[], bool] | None = None) -> Decision:
        """Decide, and raise Refused on a no."""
        decision = self.decide(question, cancelled)
        if not decision.allowed:
            from fumehood.core.questions import NOBODY

            why = decision.reason or "a person said no"
            is_unasked = why in (NOBODY, question.unaskable)
            help_ = question.remedy or (question.ahead if is_unasked else "")
            raise Refused(question.denial, hint=f"{why}; {help_}" if help_ else why)
        return decision

    def _settled(self, question: Question) -> str:
        from fumehood.core import questions

        if question.one_time_only:
            return questions.ASK
        kept = self._store.grants.find(question.key)
        return questions.earlier_answer(question, self._session or {}, {} if kept is None else {question.key: kept})


def add_granted_access(policy: Policy, granted: Sequence[tuple[str, str]]) -> Policy:
    """Return the policy with the hosts and paths that a person granted."""
    from fumehood.core.inside import HOST, SHOW

    hosts = [target for what, target in granted if what == HOST and target not in policy.hosts]
    shown = [target for what, target in granted if what == SHOW and target not in policy.show]
    return policy.replace(hosts=(*policy.hosts, *hosts), show=(*policy.show, *shown))


# ---- What an agent asks a person to allow its later commands: a host, a path of the home, a directory to write.
#
# A yes is kept for the session, or for the project where the person says so; a directory to write is a root of the
# project. It counts from the next command on.

def question_for(store: Store, project: Project, widening: Widening) -> Question:
    """Put what an agent asks for into a question, or say why it can't be had."""
    from fumehood.core import questions
    from fumehood.core.inside import SHOW, WRITE
    from fumehood.core.masks import is_below, is_in

    if widening.what == WRITE:
        real = store.projects.check_new_root(project, widening.target)
        question = questions.root_question(real, project.path, None if widening.target == real else widening.target)
        return question.replace(details=(*question.details, *questions.reason_lines(widening.reason)))
    if widening.what == SHOW:
        real, own = os.path.realpath(widening.target), store.places.own_directories()
        if not is_below(real, os.path.realpath(home())):
            hint = "other places are in sight, or out of every command's reach"
            raise BadRequest(f"{real} is not a path of the home", hint=hint)
        if is_in(real, own) or any(is_in(place, (real,)) for place in own):
            raise BadRequest(f"{real} can't be shown: it is Fumehood's own", hint="no command sees it")
        return questions.show_question(real, project.path, widening.reason)
    return questions.host_question(widening.target, project.path, widening.reason)


def settled_before(store: Store, session: str, question: Question) -> str | None:
    """Return what a person answered for this session, allow or deny."""
    if not session or question.one_time_only:
        return None
    return store.grants.find((question.what, IN_SESSION + session, question.target))


def decide_access(
    store: Store, project: Project, session: str, asked: Sequence[Widening], decide: Callable[[Question], Decision]
) -> list[str]:
    """Have each thing decided, and keep what was; returns what was said. Raises Refused where nothing was allowed."""
    from fumehood.core import questions

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
            store.audit.add_event("", DECIDED, f"{decision.text}: {question.text}", project=project.id)
            if question.what in (questions.ROOT, questions.LINKED_ROOT):
                if allowed:
                    store.projects.record_root(project, question.target)
            # What is for always, the permissions have kept.
            elif session and decision.answer in (questions.ALLOW_SESSION, questions.DENY_SESSION):
                key = question.what, IN_SESSION + session, question.target
                store.grants.keep(key, questions.answer_verdict(decision.answer))
        is_allowed = is_allowed or allowed
        said.append(_in_words(widening, session, allowed=allowed, why=why))
    if not is_allowed:
        raise Refused("; ".join(said), hint="nothing was changed")
    return said


def _in_words(widening: Widening, session: str, *, allowed: bool, why: str) -> str:
    from fumehood.core.inside import HOST, SHOW, WRITE
    from fumehood.core.questions import NOBODY
    from fumehood.core.request import shell_quote

    words = {HOST: "reach", SHOW: "see", WRITE: "write"}
    if allowed:
        return f"allowed: commands may {words[widening.what]} {widening.target} from the next one on"
    if why != NOBODY:
        return f"not allowed: to {words[widening.what]} {widening.target}" + (f" ({why})" if why else "")
    option = "" if widening.what == HOST else f"--{widening.what} "
    whose = f" --session {session}" if session else ""
    return f"{why}; the person can type: fumehood ask{whose} {option}{shell_quote(widening.target)}"
