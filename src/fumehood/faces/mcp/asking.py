"""Asking the person through the client: elicitation, on both eras of the protocol.

Until 2025-11-25 a server asks while a tool runs; from 2026-07-28 on the call is answered with the question and made
again with the answer. The SDK's resolvers do both, so questions that can be foreseen are put there, before the run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit
from pydantic import BaseModel, Field

from fumehood.core.permission import ALLOW_ONCE, DENY_ONCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.permission import Question
    from fumehood.service.ask import Ask, Asked

_TITLES = {
    "allow_once": "Allow once", "allow_session": "Allow for this session", "allow_always": "Always allow",
    "deny_once": "Deny", "deny_session": "Deny for this session", "deny_always": "Always deny",
}  # fmt: skip


class OneTime(BaseModel):
    """A yes or no that is not kept; without a default, so that nothing but a person's choice is a yes."""

    answer: Literal["allow_once", "deny_once"] = Field(title="Your answer", description="Allow it once, or deny it.")


class Kept(BaseModel):
    """Any of the six answers."""

    answer: Literal["allow_once", "allow_session", "allow_always", "deny_once", "deny_session", "deny_always"] = Field(
        title="Your answer", description="What to do, and for how long that holds."
    )


def can_elicit(context: Context[Any, Any]) -> bool:
    """Tell whether the client said that it can put a form to the person."""
    capabilities = context.client_capabilities
    found = capabilities.elicitation if capabilities is not None else None
    # Bare `{}` is what clients said before there were kinds of it.
    return found is not None and (found.form is not None or found.url is None)


def elicitation(question: Question) -> Elicit[Any]:
    """Put a question into the shape that the client shows."""
    is_one_time = question.options == (ALLOW_ONCE, DENY_ONCE)
    return Elicit(worded(question), OneTime if is_one_time else Kept)


def worded(question: Question) -> str:
    """Write a question with all that a person needs to answer it."""
    return "\n".join([question.text, f"Directory: {question.directory}", *question.details])


class Given:
    """Somebody who has answered one question already, word for word, and answers no other."""

    def __init__(self, question: Question, answer: str) -> None:
        self._words = worded(question)
        self._answer = answer

    def put(self, asked: Asked) -> None:
        """Answer, or leave it to others."""
        matches = self._words == worded(asked.question) and self._answer in asked.question.options
        asked.answer(self._answer if matches else None)


class Client:
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
            worded(asked.question), schema, related_request_id=self._context.request_id
        )
        given = (result.content or {}).get("answer") if result.action == "accept" else DENY_ONCE
        asked.answer(given if given in options else DENY_ONCE)


def who_answers(
    context: Context[Any, Any], questions: Sequence[Question], outcome: Any, others: Sequence[Ask]
) -> tuple[Ask, ...]:
    """Return who may answer for this call: what was answered before it, the client while it runs, or others."""
    if questions:
        answer = outcome.data.answer if isinstance(outcome, AcceptedElicitation) else DENY_ONCE
        return (Given(questions[0], answer),)
    if can_elicit(context) and context.session.can_send_request:
        return (Client(context, asyncio.get_running_loop()),)
    return tuple(others)
