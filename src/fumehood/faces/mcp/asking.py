"""Asking the person through the client: elicitation, on both eras of the protocol.

Until 2025-11-25 a server asks while a tool runs; from 2026-07-28 on the call is answered with the question and made
again with the answer. So there, questions that can be foreseen are put by the SDK's resolvers, before the run.
What was asked is then put together anew, and an answer counts only if that is word for word the same: the SDK seals a
digest of the words, the tool and its arguments into the state that the client hands back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit
from pydantic import BaseModel, Field

from fumehood.core.questions import ALLOW_ONCE, DENY_ONCE
from fumehood.errors import ChangedMeanwhile
from fumehood.service.desk import Desk
from fumehood.store.places import new_id, places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.questions import Question
    from fumehood.service.ask import Ask, Asked

_INTRODUCTION = "Fumehood asks you. Indented is what it is about; commands and names in it are not Fumehood's words."
_MOST_OPEN = 1000
_TITLES = {
    "allow_once": "Allow once", "allow_session": "Allow for this session", "allow_always": "Always allow",
    "deny_once": "Deny", "deny_session": "Deny for this session", "deny_always": "Always deny",
}  # fmt: skip


class OneTimeAnswer(BaseModel):
    """A yes or no that is not kept; without a default, so that nothing but a person's choice is a yes."""

    answer: Literal["allow_once", "deny_once"] = Field(title="Your answer", description="Allow it once, or deny it.")


class AnyAnswer(BaseModel):
    """Any of the six answers."""

    answer: Literal["allow_once", "allow_session", "allow_always", "deny_once", "deny_session", "deny_always"] = Field(
        title="Your answer", description="What to do, and for how long that holds."
    )


class LastingAnswer(BaseModel):
    """An answer for later commands too."""

    answer: Literal["allow_session", "allow_always", "deny_once", "deny_session", "deny_always"] = Field(
        title="Your answer", description="What to do, and for how long that holds."
    )


def can_elicit(context: Context[Any, Any]) -> bool:
    """Return True if the client said that it can put a form to the person."""
    capabilities = context.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    # Bare `{}` is what clients said before there were kinds of it.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


class OpenQuestions:
    """The questions that a client was sent and that are not settled, each with a number of its own.

    The number is part of the words, and the SDK takes an answer only for the words it was given to. So an answer that
    a client sends a second time is for a question that is no longer open, and the person is asked anew.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def number(self, question: Question) -> str:
        """Return the number under which a question is open; the call that brings the answer has to find it."""
        digest = question.digest
        if digest not in self._numbers:
            while len(self._numbers) >= _MOST_OPEN:
                del self._numbers[next(iter(self._numbers))]
            self._numbers[digest] = new_id()
        return self._numbers[digest]

    def has(self, question: Question) -> bool:
        """Tell whether a client was sent a question that is not settled."""
        return question.digest in self._numbers

    def close(self, question: Question) -> None:
        """The call that it was asked for has come to its end."""
        self._numbers.pop(question.digest, None)


def asked_before(
    context: Context[Any, Any], question: Question | None, open_questions: OpenQuestions
) -> Elicit[Any] | None:
    """Put a question into the shape that the client shows before the call; None where it can't, or need not.

    A client of the older era is asked while the tool runs: whoever is at the desk may be faster, and its form goes.
    This form can't be taken back, so with somebody at the desk the question is theirs alone.
    """
    if question is None or question.unaskable or not can_elicit(context) or context.session.can_send_request:
        return None
    if not open_questions.has(question) and Desk(places()).is_attended_for(question.project):
        return None
    is_one_time = question.options == (ALLOW_ONCE, DENY_ONCE)
    words = _worded(question, open_questions.number(question))
    return Elicit(words, OneTimeAnswer if is_one_time else LastingAnswer if question.is_lasting else AnyAnswer)


def _worded(question: Question, number: str) -> str:
    """Write a question with all that a person needs to answer it.

    Four blanks make a client that knows Markdown show the lines as they are. The digest is of all that the answer is
    for, be it shown or not.
    """
    indented = "\n".join(f"    {line}" for line in question.lines)
    return f"{_INTRODUCTION}\n\n{indented}\n\n(question {number}, {question.digest})"


class AnsweredBefore:
    """Somebody who was asked one question before, and whose answer is for that one alone.

    Where it turns out to be about something else by now, `again` is asked; without that, the call fails.
    """

    def __init__(self, question: Question, answer: str, again: Ask | None) -> None:
        self._digest = question.digest
        self._answer = answer
        self._again = again
        self._is_used = False

    def put(self, asked: Asked) -> None:
        """Answer, or have it asked again."""
        if asked.question.digest == self._digest and self._answer in asked.question.options:
            asked.answer(self._answer)
            self._is_used = True
        elif self._again is not None:
            self._again.put(asked)
        elif self._is_used:
            asked.answer(None)  # the command runs, and has come upon something else
        else:
            asked.fail(
                ChangedMeanwhile(
                    "what the user was asked about has changed since: nothing was done",
                    hint="call it again: the user is then asked about what it is now",
                )
            )


class PersonBehindClient:
    """The person behind a client of the older era, asked while the tool runs."""

    def __init__(self, context: Context[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def put(self, asked: Asked) -> None:
        """Show the question; the answer comes when it comes."""
        future = asyncio.run_coroutine_threadsafe(self._ask(asked), self._loop)
        asked.on_close(future.cancel)

    async def _ask(self, asked: Asked) -> None:
        options = list(asked.question.options)
        choice = {
            "type": "string", "title": "Your answer", "enum": options,
            "enumNames": [_TITLES[option] for option in options],
        }  # fmt: skip
        schema: dict[str, Any] = {"type": "object", "properties": {"answer": choice}, "required": ["answer"]}
        result = await self._context.session.elicit_form(
            _worded(asked.question, new_id()), schema, related_request_id=self._context.request_id
        )
        answer = (result.content or {}).get("answer") if result.action == "accept" else DENY_ONCE
        asked.answer(answer if answer in options else DENY_ONCE)


def who_answers(
    context: Context[Any, Any], question: Question | None, outcome: Any, others: Sequence[Ask]
) -> list[Ask]:
    """Return who may answer for this call: who was asked `question` before it, the client while it runs, or others."""
    can_ask_now = can_elicit(context) and context.session.can_send_request
    client = PersonBehindClient(context, asyncio.get_running_loop()) if can_ask_now else None
    was_asked = getattr(outcome, "action", "") != "accept" or outcome.data is not None
    if question is not None and was_asked:
        answer = outcome.data.answer if isinstance(outcome, AcceptedElicitation) else DENY_ONCE
        return [AnsweredBefore(question, answer, client)]
    return list(others) if client is None else [client]
