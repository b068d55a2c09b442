"""The tools: running commands, at once or in the background, and what is done about runs that were.

What a tool says it wants in its signature, the SDK finds out before it calls the tool: where the client works, and
what the person says to what can be foreseen.
"""

# No `from __future__ import annotations`: the SDK reads these, resolvers among them.

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Self

import anyio.to_thread
from mcp.server.mcpserver import Context, ElicitationResult, Resolve
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from fumehood.core import tool as described
from fumehood.core.changes import HELD
from fumehood.core.questions import Question, apply_question
from fumehood.core.report import model_texts, refusal, set_apart, short, visible
from fumehood.core.tool import templates
from fumehood.errors import BadConfiguration, BadRequest, ChangedMeanwhile, FumehoodError, plain_error
from fumehood.faces.mcp import results as r
from fumehood.faces.mcp.clients import Job, Place, Where, WhereBefore, asked_before, clients_of, who_answers
from fumehood.store.history import LAST

if TYPE_CHECKING:
    from fumehood import Run, Sandbox
    from fumehood.service.ask import Ask

_MOST_TEXT = 100_000
_MOST_WAIT_S = 30.0
_FIRST_LOOK_S = 0.2  # most that fails fails at once
_PROGRESS_S = 0.1
_MOST_LINES = 20  # told at once
_MOST_ASKED = 3  # times that a person is asked about what changes while they think

_PROPERTIES = described.schema()["properties"]
Command = Annotated[str, Field(description=_PROPERTIES["command"]["description"])]
Directory = Annotated[str | None, Field(description=_PROPERTIES["working_dir"]["description"])]
Network = Annotated[bool, Field(description=_PROPERTIES["network"]["description"])]
Timeout = Annotated[float | None, Field(gt=0, description=_PROPERTIES["timeout"]["description"])]
JobName = Annotated[str, Field(description="What start_command returned.")]
Offset = Annotated[int, Field(ge=0, description="The last next_offset; 0 at first.")]
_NAME: Any = {"coerce_numbers_to_str": True}  # a report says "run 3", and a model sends 3
RunName = Annotated[str, Field(description="A run's number, id or a beginning of it, `last`, or `last~1`.", **_NAME)]
RunningName = Annotated[str, Field(description="A run that runs now; `last`: the latest of them.", **_NAME)]
ToUndo = Annotated[str, Field(description="As elsewhere; `last`: the last that changed something and stands.", **_NAME)]
ToRedo = Annotated[str, Field(description="As elsewhere; `last`: the last that was taken back.", **_NAME)]
WholeSession = Annotated[bool, Field(description="Every run of this session instead.")]
Paths = Annotated[list[str] | None, Field(description="Only these paths, relative to the project.")]


def answering_in_words(tool: Callable[..., Awaitable[CallToolResult]]) -> Callable[..., Awaitable[CallToolResult]]:
    """Turn errors into results that a model reads, and add what the person should know, once."""

    @wraps(tool)
    async def answering(where: Place, **arguments: Any) -> CallToolResult:
        try:
            result = await tool(where=where, **arguments)
        except Exception as error:  # noqa: BLE001 - a model reads whatever went wrong as one line
            text = refusal(plain_error(error), r.MARK)
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        return r.with_notices(result, where.take_notices())

    return answering


# ---- What is asked before a tool is called.

async def foreseen_question(where: Where, command: str, working_dir: str | None, network: bool) -> Question | None:
    """Find out what this command needs a person's word for; the tool gets the very question that is asked."""
    try:
        sandbox = where.sandbox(working_dir)
        questions = sandbox.questions(command, cwd=working_dir or sandbox.project, network=network)
    except FumehoodError:
        return None  # the tool itself says what is wrong
    return questions[0] if questions else None


async def permission_asked(ctx: Context[Any, Any], question: Annotated[Any, Resolve(foreseen_question)]) -> Any:
    """Ask the person, through the client, for what this command needs their word for."""
    return asked_before(ctx, question, clients_of(ctx).open_questions)


async def held_question(where: Where, run: str) -> Question | None:
    """Find out which run is meant and what it holds, once: `last` may be another by the time of the answer."""
    try:
        return _question_to_apply(where.holding(run), run)
    except FumehoodError:
        return None  # the tool itself says what is wrong


async def consent_asked(ctx: Context[Any, Any], question: Annotated[Any, Resolve(held_question)]) -> Any:
    """Ask the person, through the client, whether to apply what a run had to hold."""
    return asked_before(ctx, question, clients_of(ctx).open_questions)


async def access_question(where: Where, host: str, show: str, write: str, reason: str) -> Question | None:
    """Put what an agent asks to be allowed into words."""
    try:
        return where.sandbox().access_question(host=host, show=show, write=write, reason=reason)
    except FumehoodError:
        return None  # the tool itself says what is wrong


async def access_asked(ctx: Context[Any, Any], question: Annotated[Any, Resolve(access_question)]) -> Any:
    """Ask the person, through the client, for what the agent asks to be allowed."""
    return asked_before(ctx, question, clients_of(ctx).open_questions)


def _question_to_apply(sandbox: "Sandbox", name: str) -> Question:
    """Put into words what applying a run's held changes means."""
    run = sandbox.find(name)
    if run.state != HELD:
        raise BadRequest(f"run {run.name} holds nothing: it is {run.state}")
    return apply_question(run)


def _who_answers(ctx: Context[Any, Any], where: Place, outcome: Any, question: Question | None) -> "list[Ask]":
    """Return who may answer for this call; a question that was asked before it is settled with that."""
    if question is not None:
        where.clients.open_questions.close(question)
    return who_answers(ctx, question, outcome, where.clients.others)


Foreseen = Annotated[Any, Resolve(foreseen_question)]
Permission = Annotated[ElicitationResult[Any], Resolve(permission_asked)]
HeldQuestion = Annotated[Any, Resolve(held_question)]
Consent = Annotated[ElicitationResult[Any], Resolve(consent_asked)]
AccessQuestion = Annotated[Any, Resolve(access_question)]
AccessAnswer = Annotated[ElicitationResult[Any], Resolve(access_asked)]


# ---- Running commands.

class ProgressLines:
    """Tells the client what is being printed, if it wants to know: the latest line, a few times a second."""

    def __init__(self, context: Context[Any, Any]) -> None:
        self._context = context
        meta = context.request_context.meta
        self._is_wanted = bool(meta and meta.get("progress_token") is not None)
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._unfinished = ""
        self._count = 0
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def take(self) -> Callable[[str, str], None] | None:
        """What the run calls with its output, from another thread."""
        return self._take if self._is_wanted else None

    def _take(self, _stream: str, text: str) -> None:
        with self._lock:
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            self._lines += [line for line in lines if line.strip()]
            del self._lines[:-_MOST_LINES]
            self._count += len(lines)

    async def __aenter__(self) -> Self:
        if self._is_wanted:
            self._task = asyncio.create_task(self._report())
        return self

    async def __aexit__(self, kind: object, *_error: object) -> None:
        if self._task is None:
            return
        if kind is not None:
            self._task.cancel()
            return
        # Not cancelled: it may be sending just now.
        self._ended.set()
        await self._task

    async def _report(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _PROGRESS_S)
            with self._lock:
                lines, self._lines = self._lines, []
                count = self._count
            if lines:
                await self._context.report_progress(count, None, visible("\n".join(lines), r.MARK))


@answering_in_words
async def run_command(  # noqa: D103 - described by core/tool.py
    ctx: Context[Any, Any], where: Where, question: Foreseen, permission: Permission, command: Command,
    working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, r.Report]:  # fmt: skip
    sandbox = where.sandbox(working_dir)
    cwd = working_dir or sandbox.project
    asks = _who_answers(ctx, where, permission, question)
    async with ProgressLines(ctx) as progress:
        run = await sandbox.arun(command, cwd=cwd, network=network, timeout=timeout, ask=asks, on_output=progress.take)
    # How an agent gets what it was refused, where it can: not by our command line.
    hint = "a command has no network; request_access asks the user for a host, `network` for all of it"
    run.blocked = tuple(each.replace(hint=hint) if each.what == "network" else each for each in run.blocked)
    sandbox.only_news(run)
    return r.returned(run.for_model(), **r.report_of(run))


@answering_in_words
async def start_command(
    ctx: Context[Any, Any], where: Where, question: Foreseen, permission: Permission, command: Command,
    working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, r.JobStatus]:  # fmt: skip
    """Start a command that takes long, a server for instance; poll_command tells what it prints."""
    sandbox = where.sandbox(working_dir)
    cwd = working_dir or sandbox.project
    asks = _who_answers(ctx, where, permission, question)

    def work(**more: Any) -> "Run":
        return sandbox.run(command, cwd=cwd, network=network, timeout=timeout, ask=asks, background=True, **more)

    job = where.clients.jobs.start(where.client, work)
    await anyio.to_thread.run_sync(job.wait, 0, _FIRST_LOOK_S)
    return _job_status(job, 0)


@answering_in_words
async def poll_command(
    where: WhereBefore,
    job: JobName,
    offset: Offset = 0,
    wait: Annotated[float, Field(ge=0, le=_MOST_WAIT_S, description="Seconds to wait for something new.")] = 0,
) -> Annotated[CallToolResult, r.JobStatus]:
    """Return what a started command printed since an offset, and its report once it has ended."""
    started = where.job(job)
    if wait:
        await anyio.to_thread.run_sync(started.wait, offset, wait)
    return _job_status(started, offset)


@answering_in_words
async def stop_command(where: WhereBefore, job: JobName) -> Annotated[CallToolResult, r.JobStatus]:
    """End a started command; what it wrote so far is held for the user."""
    started = where.job(job)
    await anyio.to_thread.run_sync(started.stop)
    return _job_status(started, 0)


@answering_in_words
async def running(where: Where) -> Annotated[CallToolResult, r.RunningCommands]:
    """List this session's commands that run now."""
    runs = [run for _, run in await anyio.to_thread.run_sync(where.running)]
    commands = [
        {
            "run": run.run, "command": short(run.command), "cwd": short(run.cwd),
            "seconds": max(0, int(time.time() - run.started_at)),
        }
        for run in runs
    ]  # fmt: skip
    lines = [f"{each['run']}: {each['command']} ({each['seconds']} s)" for each in commands] or ["nothing runs"]
    return r.returned(set_apart("", lines, r.MARK), commands=commands)


@answering_in_words
async def checkpoint(where: Where, run: RunningName = "last") -> Annotated[CallToolResult, r.Report]:
    """Settle what a command that runs has finished writing, so that others see it; the command goes on."""
    sandbox, chosen = await anyio.to_thread.run_sync(_running, where, run)
    made = await anyio.to_thread.run_sync(sandbox.checkpoint, chosen)
    return r.returned(made.for_model(), **r.report_of(made))


def _running(where: Place, name: str) -> "tuple[Sandbox, Run]":
    for sandbox, run in where.running():
        if name == LAST or run.run.startswith(name.upper()):
            return sandbox, run
    raise BadRequest(f"no run {short(name)} runs now", hint="running lists those that do")


def _job_status(job: Job, offset: int) -> CallToolResult:
    job.join()
    begin, printed = job.output(offset)
    output = visible(printed[:_MOST_TEXT], r.MARK)
    error = f"ERROR: {short(job.error.message)}" if job.error is not None else ""
    state = "is running" if job.is_running else "has ended"
    ours = [part for part in (error, f"[{job.name} {state}]") if part]
    return r.returned(
        set_apart(output, ours, r.MARK), job=job.name, running=job.is_running, offset=begin,
        next_offset=begin + len(printed[:_MOST_TEXT]), output=output,
        report=r.report_of(job.run) if job.run is not None else None, error=error,
    )  # fmt: skip


# ---- Runs that were.

@answering_in_words
async def changes(where: Where, run: RunName = "last") -> Annotated[CallToolResult, r.Report]:
    """Tell what a run changed, what became of that, and what was blocked."""
    past = where.holding(run).find(run)
    return r.returned(past.for_model(), **r.report_of(past))


@answering_in_words
async def diff(where: Where, run: RunName = "last", paths: Paths = None) -> Annotated[CallToolResult, r.DiffText]:
    """Show what a run changed, line by line."""
    sandbox = where.holding(run)
    past = sandbox.find(run)
    whole = visible(await anyio.to_thread.run_sync(sandbox.diff, past, paths or []), r.MARK)
    text = whole[:_MOST_TEXT]
    return r.returned(text, run=past.run, text=text, truncated=len(whole) > len(text))


@answering_in_words
async def read_output(
    where: Where,
    run: RunName = "last",
    stream: Annotated[str, Field(pattern="^(stdout|stderr)$")] = "stdout",
    offset: Offset = 0,
    limit: Annotated[int, Field(gt=0, le=_MOST_TEXT, description="Bytes.")] = 20_000,
) -> Annotated[CallToolResult, r.OutputPiece]:
    """Read all that a run printed, piece by piece."""
    sandbox = where.holding(run)
    past = sandbox.find(run)
    data = await anyio.to_thread.run_sync(sandbox.output, past, stream)
    piece = data[offset : offset + limit]
    end, text = offset + len(piece), visible(piece.decode(errors="replace"), r.MARK)
    following = end if end < len(data) else None
    return r.returned(
        text, run=past.run, stream=stream, offset=offset, next_offset=following, total=len(data), text=text
    )


@answering_in_words
async def undo(
    where: Where, run: ToUndo = "last", session: WholeSession = False
) -> Annotated[CallToolResult, r.TakenBack]:
    """Bring back exactly what was there before a run; `redo` has it again."""
    sandbox = where.sandbox() if session else where.holding(run, to_undo=True)
    return await _taken_back(sandbox.undo_session if session else lambda: [sandbox.undo(run)])


@answering_in_words
async def redo(
    where: Where, run: ToRedo = "last", session: WholeSession = False
) -> Annotated[CallToolResult, r.TakenBack]:
    """Bring back what `undo` took back: the last one, or that of a run."""
    sandbox = where.sandbox() if session else where.holding(run, to_redo=True)
    return await _taken_back(sandbox.redo_session if session else lambda: [sandbox.redo(run)])


async def _taken_back(act: "Callable[[], list[Run]]") -> CallToolResult:
    backs = await anyio.to_thread.run_sync(act)
    return r.returned(model_texts(backs, r.MARK), runs=[r.report_of(back) for back in backs])


@answering_in_words
async def apply(
    ctx: Context[Any, Any], where: Where, question: HeldQuestion, consent: Consent, run: RunName
) -> Annotated[CallToolResult, r.Report]:
    """Apply what a run had to hold; the user is asked."""
    sandbox = where.holding(run if question is None else question.run)
    asks = _who_answers(ctx, where, consent, question)
    asked_about = question or _question_to_apply(sandbox, run)
    applied = await anyio.to_thread.run_sync(_applied_as_shown, sandbox, asked_about, asks)
    return r.returned(applied.for_model(), **r.report_of(applied))


def _applied_as_shown(sandbox: "Sandbox", question: "Question", asks: "list[Ask]") -> "Run":
    """Apply exactly what the person says yes to; if the run holds something else by then, ask again, a few times."""
    for left in reversed(range(_MOST_ASKED)):
        sandbox.require(question, asks)
        try:
            return sandbox.apply(question.run, expected=question.about)
        except ChangedMeanwhile:
            if not left:
                raise
            question = _question_to_apply(sandbox, question.run)
    raise AssertionError("the last time ends it")


@answering_in_words
async def discard(where: Where, run: RunName) -> Annotated[CallToolResult, r.Report]:
    """Throw away what a run of this session had to hold."""
    discarded = await anyio.to_thread.run_sync(where.holding(run).discard, run)
    return r.returned(discarded.for_model(), **r.report_of(discarded))


@answering_in_words
async def request_access(
    ctx: Context[Any, Any], where: Where, question: AccessQuestion, permission: AccessAnswer,
    host: Annotated[str, Field(description="A host to reach: `pypi.org`, `pypi.org:443`.")] = "",
    show: Annotated[str, Field(description="A path of the user's home to read.")] = "",
    write: Annotated[str, Field(description="A directory outside the project to write.")] = "",
    reason: Annotated[str, Field(description="Why: the user reads it.")] = "",
) -> Annotated[CallToolResult, r.AccessSaid]:  # fmt: skip
    """Ask the user to let later commands reach a host, read a path or write a directory: one of these."""
    asks = _who_answers(ctx, where, permission, question)
    sandbox = where.sandbox()
    said = await anyio.to_thread.run_sync(
        lambda: sandbox.request_access(host=host, show=show, write=write, reason=reason, ask=asks)
    )
    return r.returned(set_apart("", said, r.MARK), said=said)


class CheckedTool(Tool):
    """A tool that tells the model in our own words what is wrong with a call, and that nothing ran."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Call it, if these arguments make sense."""
        try:
            checked = self.checked(arguments)
        except FumehoodError as error:
            said = TextContent(type="text", text=refusal(error, r.MARK))
            result = CallToolResult(content=[said], is_error=True)
            return self.fn_metadata.convert_result(result) if convert_result else result
        return await super().run(checked, context, convert_result)

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what is to be passed on; raises BadRequest where that is not what the schema says.

        What the schema does not name would be ignored: a command that is sent with a `cwd` would run elsewhere.
        """
        names = self.parameters["properties"]
        for name in arguments:
            if name not in names:
                raise BadRequest(f"{self.name} takes no {name!r:.100}", hint=f"it takes: {', '.join(names)}")
        sent = {name: value for name, value in arguments.items() if value is not None}  # null: left out
        try:
            self.fn_metadata.validate_arguments(sent)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, wrong["loc"]))
            raise BadRequest(f"{self.name} can't be called like this: {where}: {wrong['msg']}") from error
        return sent


# ---- Tools of the person's own (`[[tool]]`): a call becomes a command, and goes the way of `run_command` from there.

class TemplateTool(CheckedTool):
    """A tool whose arguments are words of a command."""

    template: Any = Field(exclude=True)

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the command that these arguments make."""
        return {"command": self.template.line(arguments)}


def own_tools(project: str | None, hints: ToolAnnotations) -> list[Tool]:
    """Return the tools that the configuration has, for every project or also for the one that is served."""
    from fumehood.store.config import policy_for
    from fumehood.store.places import places

    try:
        policy = policy_for(places(), () if project is None else (project,))
    except BadConfiguration:
        return []  # each command says what is wrong with it
    tools: list[Tool] = []
    for each in templates(policy.tools).values():
        plain = Tool.from_function(run_command, name=each.name, description=each.description, annotations=hints)
        fields = {name: getattr(plain, name) for name in Tool.model_fields}
        tools.append(TemplateTool(**(fields | {"parameters": each.schema}), template=each))
    return tools
