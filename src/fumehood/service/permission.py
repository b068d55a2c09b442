"""Decide what needs a person's permission: by earlier answers, or by asking them."""

from __future__ import annotations

import os

from fumehood.errors import BadRequest, Refused
from fumehood.store.audit import DECIDED, IN_SESSION
from fumehood.store.places import has_entries, home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.inside import AccessRequest
    from fumehood.core.policy import Policy
    from fumehood.core.questions import Decision, Question
    from fumehood.service.ask import Ask
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    SessionAnswers = dict[tuple[str, str, str], str]

PATIENCE_S = 120.0


class Permissions:
    """What a person has allowed, and how to ask for more.

    `session` holds the answers that are valid while this program runs. It is None if the program ends with this run:
    then answers for a session mean nothing and are not offered. `asks` may be a function that returns who is asked.
    Whoever is at the desk is asked too.
    """

    def __init__(
        self, store: Store, asks: Sequence[Ask] | Callable[[], Sequence[Ask]] = (),
        session: SessionAnswers | None = None, patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self._store = store
        self._asks = asks
        self._session = session
        self._patience_s = patience_s

    @property
    def _current_asks(self) -> tuple[Ask, ...]:
        """Who can be asked, besides those at the desk; a function for them is called on first use."""
        if callable(self._asks):
            self._asks = self._asks()
        return tuple(self._asks)

    def somebody_can_answer(self, project: str) -> bool:
        """Return True if there is somebody to ask about a project."""
        if self._current_asks:
            return True
        if not has_entries(self._store.places.desk):
            return False
        from fumehood.service.ask import Desk

        return Desk(self._store.places).is_attended_for(project)

    def with_asks(self, asks: Sequence[Ask]) -> Permissions:
        """Return permissions with the same grants and session, but others to ask."""
        return Permissions(self._store, asks, self._session, self._patience_s)

    def decide(self, question: Question, cancelled: Callable[[], bool] | None = None) -> Decision:
        """Return the decision: from the session, from the kept grants, or from a person."""
        from fumehood.core import questions

        if self._session is None and not question.is_lasting:
            question = question.replace(in_session=False)
        earlier = self._earlier_verdict(question)
        if earlier != questions.ASK:
            return questions.Decision(allowed=earlier == questions.ALLOW, reason=f"answered before: {earlier}")
        if question.unaskable:
            return questions.Decision(allowed=False, answer=questions.DENY_ONCE, reason=question.unaskable)
        if not self.somebody_can_answer(question.project):
            self._store.grants.note_missed(question)
            return questions.Decision(allowed=False, answer=questions.DENY_ONCE, reason=questions.NOBODY)
        from fumehood.service.ask import Desk, ask_all

        # The desk too, even if nobody is there: somebody who comes while the others are asked may answer.
        reply = ask_all((*self._current_asks, Desk(self._store.places)), question, self._patience_s, cancelled)
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

    def is_answered(self, question: Question) -> bool:
        """Return True if an earlier answer settles the question, so that nobody needs to be asked."""
        from fumehood.core.questions import ASK

        return self._earlier_verdict(question) != ASK

    def require(self, question: Question, cancelled: Callable[[], bool] | None = None) -> Decision:
        """Decide, and raise Refused on a no."""
        decision = self.decide(question, cancelled)
        if not decision.allowed:
            from fumehood.core.questions import NOBODY

            why = decision.reason or "a person said no"
            is_unasked = why in (NOBODY, question.unaskable)
            how_to_allow = question.remedy or (question.ahead if is_unasked else "")
            raise Refused(question.denial, hint=f"{why}; {how_to_allow}" if how_to_allow else why)
        return decision

    def _earlier_verdict(self, question: Question) -> str:
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
# A yes is kept for the session, or for the project if the person says so; a directory to write becomes a root of the
# project. It is valid from the next command on.

def question_about_access(store: Store, project: Project, widening: AccessRequest) -> Question:
    """Return the question for what an agent requests; raises BadRequest if it can't be allowed at all."""
    from fumehood.core import questions
    from fumehood.core.inside import SHOW, WRITE
    from fumehood.core.paths import is_below, is_in

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


def earlier_answer(store: Store, session: str, question: Question) -> str | None:
    """Return a person's earlier answer for this session, allow or deny, or None."""
    if not session or question.one_time_only:
        return None
    return store.grants.find((question.what, IN_SESSION + session, question.target))


def decide_access(
    store: Store, project: Project, session: str, widenings: Sequence[AccessRequest],
    decide: Callable[[Question], Decision],
) -> list[str]:
    """Have each request decided, and keep the answers; returns them as text. Raises Refused if nothing was allowed."""
    from fumehood.core import questions

    answers: list[str] = []
    is_allowed = False
    for widening in widenings:
        question = question_about_access(store, project, widening).replace(in_session=bool(session))
        earlier = earlier_answer(store, session, question)
        if earlier is not None:
            allowed, why = earlier == questions.ALLOW, f"answered before: {earlier}"
        else:
            decision = decide(question)
            allowed, why = decision.allowed, decision.reason
            store.audit.add_event("", DECIDED, f"{decision.text}: {question.text}", project=project.id)
            if question.what in (questions.ROOT, questions.LINKED_ROOT):
                if allowed:
                    store.projects.record_root(project, question.target)
            # Answers for always were kept by Permissions.decide.
            elif session and decision.answer in (questions.ALLOW_SESSION, questions.DENY_SESSION):
                key = question.what, IN_SESSION + session, question.target
                store.grants.keep(key, questions.answer_verdict(decision.answer))
        is_allowed = is_allowed or allowed
        answers.append(_answer_text(widening, session, allowed=allowed, why=why))
    if not is_allowed:
        raise Refused("; ".join(answers), hint="nothing was changed")
    return answers


def _answer_text(widening: AccessRequest, session: str, *, allowed: bool, why: str) -> str:
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
