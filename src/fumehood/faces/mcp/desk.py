"""What the tools share: the projects, the commands in the background, whom to ask; and how a call gets at them."""

# No `from __future__ import annotations`: the SDK reads these, resolvers among them.

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import AcceptedElicitation, Context, ElicitationResult, ListRoots, Resolve
from mcp.types import CallToolResult

from fumehood.core.changes import HELD
from fumehood.core.held import apply_question
from fumehood.core.permission import Question
from fumehood.errors import BadRequest, FumehoodError, plain_error
from fumehood.faces.mcp.asking import OpenQuestions, can_elicit, elicitation, who_answers
from fumehood.faces.mcp.jobs import Job, Jobs
from fumehood.faces.mcp.places import Workplaces
from fumehood.faces.mcp.results import failed

if TYPE_CHECKING:
    from fumehood import Sandbox
    from fumehood.service.ask import Ask

# What a resolver's own None becomes: the client was not asked.
NOT_ASKED: ElicitationResult[Any] = AcceptedElicitation[Any].model_construct(data=None)


class Desk:
    """One server's; `others` are asked where the client can't."""

    def __init__(self, workplaces: Workplaces, others: "Sequence[Ask]" = ()) -> None:
        self.workplaces = workplaces
        self.others = tuple(others)
        self.jobs = Jobs()
        self.open_questions = OpenQuestions()


def desk_of(ctx: Context[Any, Any]) -> Desk:
    """Return what a call works with."""
    desk = ctx.request_context.lifespan_context
    assert isinstance(desk, Desk)
    return desk


def told(tool: Callable[..., Awaitable[CallToolResult]]) -> Callable[..., Awaitable[CallToolResult]]:
    """Turn our own errors into results that a model reads."""

    @wraps(tool)
    async def telling(*arguments: Any, **named: Any) -> CallToolResult:
        try:
            return await tool(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - a model reads whatever went wrong as one line
            return failed(plain_error(error))

    return telling


async def roots(ctx: Context[Any, Any]) -> Any:
    """Ask the client for its roots, where they are wanted and not known."""
    return None if desk_of(ctx).workplaces.knows_roots(ctx) else ListRoots()


class Place:
    """Where a call works: its client, and the directories of that."""

    def __init__(self, desk: Desk, client: str, directories: list[str]) -> None:
        self.desk = desk
        self.client = client
        self._directories = directories

    def sandbox(self, working_dir: str | None = None) -> "Sandbox":
        """Return the sandbox for the call."""
        return self.desk.workplaces.sandbox(self.client, self._directories, working_dir)

    def holding(self, run: str, *, to_undo: bool = False) -> "Sandbox":
        """Return the sandbox that a run of this client belongs to."""
        return self.desk.workplaces.holding(self.client, self._directories, run, to_undo=to_undo)

    def job(self, name: str) -> Job:
        """Return a command that this client started."""
        return self.desk.jobs.find(self.client, name)


def here(ctx: Context[Any, Any], found: Any = None) -> Place:
    """Return where the client works, by what it tells or has told."""
    desk = desk_of(ctx)
    return Place(desk, desk.workplaces.client(ctx), desk.workplaces.remember(ctx, found))


async def place(ctx: Context[Any, Any], found: Annotated[Any, Resolve(roots)]) -> Place:
    """Find out where the client works."""
    return here(ctx, found)


Where = Annotated[Place, Resolve(place)]


async def foreseen_question(
    where: Where, command: str, working_dir: str | None, network: bool
) -> Question | None:
    """Find out what this command needs a person's word for; the tool gets the very question that is asked."""
    questions = foreseen(where, command, working_dir, network=network)
    return questions[0] if questions else None


async def permission(ctx: Context[Any, Any], question: Annotated[Any, Resolve(foreseen_question)]) -> Any:
    """Ask the person, through the client, for what this command needs their word for."""
    return _asked(ctx, question)


def foreseen(where: Place, command: str, working_dir: str | None, *, network: bool) -> tuple[Question, ...] | None:
    """Return what a person would be asked before a command, or None where the tool itself says what is wrong."""
    try:
        sandbox = where.sandbox(working_dir)
        return sandbox.questions(command, cwd=working_dir or sandbox.project, network=network)
    except FumehoodError:
        return None


async def held_question(where: Where, run: str) -> Question | None:
    """Find out which run is meant and what it holds, once: `last` may be another by the time of the answer."""
    try:
        return question_to_apply(where.holding(run), run)
    except FumehoodError:
        return None  # the tool itself says what is wrong


async def consent(ctx: Context[Any, Any], question: Annotated[Any, Resolve(held_question)]) -> Any:
    """Ask the person, through the client, whether to apply what a run had to hold."""
    return _asked(ctx, question)


def _asked(ctx: Context[Any, Any], question: Question | None) -> Any:
    if question is None or question.unaskable or not can_elicit(ctx):
        return None
    return elicitation(question, desk_of(ctx).open_questions.number(question))


def needs_nobody(ctx: Context[Any, Any], arguments: dict[str, Any]) -> bool:
    """Tell whether neither the client nor the person need be asked anything before a command, as for most.

    The SDK's resolvers would find that out too, in a tenth of a millisecond more.
    """
    command, working_dir = arguments.get("command"), arguments.get("working_dir")
    if not isinstance(command, str) or not isinstance(working_dir, str | None):
        return False
    if arguments.get("network") not in (None, False) or not desk_of(ctx).workplaces.knows_roots(ctx):
        return False
    return foreseen(here(ctx), command, working_dir, network=False) == ()


Foreseen = Annotated[Any, Resolve(foreseen_question)]
HeldQuestion = Annotated[Any, Resolve(held_question)]
Permission = Annotated[ElicitationResult[Any], Resolve(permission)]
Consent = Annotated[ElicitationResult[Any], Resolve(consent)]


def question_to_apply(sandbox: "Sandbox", name: str) -> Question:
    """Put into words what applying a run's held changes means."""
    run = sandbox.find(name)
    if run.state != HELD:
        raise BadRequest(f"run {run.run} holds nothing: it is {run.state}")
    return apply_question(run)


def answering(ctx: Context[Any, Any], where: Place, outcome: Any, question: Question | None) -> "list[Ask]":
    """Return who may answer for this call; `question` is what was asked before it, if anything was."""
    was_asked = getattr(outcome, "action", "") != "accept" or outcome.data is not None
    if question is not None:
        where.desk.open_questions.close(question)
    return list(who_answers(ctx, question if was_asked else None, outcome, where.desk.others))
