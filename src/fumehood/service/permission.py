"""Decide what needs a person's word: by what was answered before, else by asking."""

from __future__ import annotations

from fumehood.errors import Refused
from fumehood.store.places import has_entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.policy import Policy
    from fumehood.core.questions import Decision, Question
    from fumehood.service.ask import Ask
    from fumehood.service.store import Store

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

    def are_answered(self, project: str) -> bool:
        """Return True if there is somebody to ask about a project."""
        if self._others:
            return True
        if not has_entries(self._store.places.desk):
            return False
        from fumehood.service.desk import Desk

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
        if not self.are_answered(question.project):
            self._store.grants.note_missed(question)
            return questions.Decision(allowed=False, answer=questions.DENY_ONCE, reason=questions.NOBODY)
        from fumehood.service.ask import ask_all
        from fumehood.service.desk import Desk

        # At the desk too where nobody is there yet: who comes while the others are asked may answer.
        reply = ask_all((*self._others, Desk(self._store.places)), question, self._patience_s, cancelled)
        if reply.reason in (questions.NOBODY, questions.TOO_LATE, questions.CANCELLED):
            self._store.grants.note_missed(question)
        else:
            self._store.grants.forget_asked(question)
        verdict, scope = questions.verdict(reply.answer), questions.scope(reply.answer)
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
        return questions.settled(question, self._session or {}, {} if kept is None else {question.key: kept})


def widened(policy: Policy, granted: Sequence[tuple[str, str]]) -> Policy:
    """Return a policy with what a person granted."""
    from fumehood.core.inside import HOST, SHOW

    hosts = [target for what, target in granted if what == HOST and target not in policy.hosts]
    shown = [target for what, target in granted if what == SHOW and target not in policy.show]
    return policy.replace(hosts=(*policy.hosts, *hosts), show=(*policy.show, *shown))
