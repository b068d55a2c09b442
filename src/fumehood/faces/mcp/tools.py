"""The tools: running commands, at once or in the background, what is done about runs that were, and what each returns.

What a tool says it wants in its signature, the SDK finds out before it calls the tool: where the client works, and who
may answer for it, when the person has said something to what can be foreseen. What it returns is structured and holds
everything, because clients may drop the text.
"""

# No `from __future__ import annotations`: the SDK reads these, resolvers among them.

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context, Resolve
from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, Field, WithJsonSchema

from fumehood.core import tool as described
from fumehood.core.changes import HELD
from fumehood.core.questions import Question, apply_question
from fumehood.core.report import (
    MODEL_OUTPUT,
    NO_OUTPUT,
    append_report,
    mark_line,
    most_important,
    output_for_model,
    printable,
    refusal_text,
    runs_for_model,
    shorten,
)
from fumehood.core.wording import NOT_OURS, visible
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError
from fumehood.faces.mcp.clients import MARK, Job, Place, Where, answering, clients_of
from fumehood.store.history import LAST

if TYPE_CHECKING:
    from fumehood import Run, Sandbox
    from fumehood.service.ask import Ask

Done = TypeVar("Done")

_MOST_TEXT = 100_000
_MOST_WAIT_S = 30.0
_FIRST_LOOK_S = 0.2  # most that fails fails at once
_PROGRESS_S = 0.1
_MOST_LINES = 20  # told at once
_LONGEST_LINE = 2000  # characters of each
_MOST_ASKED = 3  # times that a person is asked about what changes while they think

_MOST_CHANGES = 200
_MOST_BLOCKED = 30
_SAME = (
    "run", "project", "command", "cwd", "state", "reason", "exit_code", "timed_out", "sandboxed", "network",
    "session",
)  # fmt: skip
_LEFT_OUT_IF_EMPTY = ("reason", "timed_out", "output_truncated", "changes_left_out", "left_out", "blocked", "session")

_PROPERTIES = described.RUN_COMMAND.schema["properties"]
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


# ---- What the tools return.

class Answer(BaseModel):
    """What every tool may return besides its own."""

    notices: list[str] = Field([], description="What the user should know: tell them. Each comes once.")


class ListedChange(BaseModel, title="ReportedChange"):  # the title is what clients see
    """One path's difference."""

    path: str
    root: str = Field(description="The directory that the path is relative to.")
    change: str = Field(description="added, modified, deleted, mode or type")
    kind: str
    verdict: str = Field(description="applied, held, conflict, discarded or unsupported")
    reason: str = ""
    flags: list[str] = []


class ReportedBlock(BaseModel):
    """Something the command was refused, and how a person can allow it."""

    what: str
    detail: str
    hint: str = ""


class Report(Answer):
    """One run: what it printed, how it ended, what it changed."""

    run: str = Field(description="The run's id: undo, diff, changes and read_output take it.")
    project: str
    command: str
    cwd: str
    state: str = Field(description="applied, held (waits for the user), discarded, empty, undone, failed or refused")
    reason: str = ""
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    timed_out: bool = False
    sandboxed: bool = True
    network: str = "none"
    duration_s: float = 0.0
    output: str = Field(description="Standard output, then standard error, the middle left out if long.")
    output_truncated: bool = Field(
        False, description="Whether some of it is left out: read_output has all that is kept."
    )
    changes: list[ListedChange] = []
    changes_left_out: int = Field(0, description="How many more there are that are not listed.")
    left_out: dict[str, int] = Field({}, description="These, counted by kind.")
    blocked: list[ReportedBlock] = []
    session: str = ""


class DiffText(Answer, title="Difference"):
    """What a run changed, line by line."""

    run: str
    text: str
    truncated: bool = False


class OutputPiece(Answer):
    """A piece of what a run printed, by byte offsets."""

    run: str
    stream: str
    offset: int
    next_offset: int | None = Field(description="Where the next piece begins; none at the end.")
    total: int
    text: str


class TakenBack(Answer):
    """What was taken back, or brought back."""

    runs: list[Report] = Field(description="The undos or redos: each is a run of its own, and can be undone.")


class AccessSaid(Answer):
    """What the user said to what was asked for."""

    said: list[str]


class JobStatus(Answer):
    """A command that runs in the background."""

    job: str
    running: bool
    offset: int = 0
    next_offset: int = 0
    output: str = Field("", description="What it printed since `offset`.")
    report: Report | None = Field(None, description="Once it has ended.")
    error: str = ""


class RunningCommand(Answer, title="Running command"):
    """A command that runs now."""

    run: str
    command: str
    cwd: str
    seconds: int = Field(description="For how long it has run.")


class RunningCommands(Answer, title="Running commands"):
    """What runs now."""

    commands: list[RunningCommand]


def _report_of(run: "Run") -> dict[str, Any]:
    """Put a run into the shape of a Report; what has nothing to tell is left out, for a model reads every word."""
    listed, left_out = most_important(run.changed, _MOST_CHANGES)
    fields = {
        **{name: _text(getattr(run, name)) for name in _SAME}, "duration_s": round(run.duration_s, 6),
        "output": output_for_model(run.output, MARK),
        "output_truncated": run.output_truncated or len(run.output) > MODEL_OUTPUT,
        "changes": [
            {
                "path": _text(each.path), "root": _text(run.roots[each.root]), "change": each.change,
                "kind": each.kind, "verdict": each.verdict, "reason": _text(each.reason), "flags": list(each.flags),
            }
            for each in listed
        ],
        "changes_left_out": sum(left_out.values()), "left_out": left_out,
        "blocked": [
            {name: _text(value) for name, value in each.fields().items()} for each in run.blocked[:_MOST_BLOCKED]
        ],
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value or name not in _LEFT_OUT_IF_EMPTY}


def _text(value: Any) -> Any:
    """Write a name or a sentence so that nothing in it is invisible, and not too long."""
    return shorten(value).replace(MARK, NOT_OURS) if isinstance(value, str) else value


def _reported(run: "Run") -> CallToolResult:
    return _returned(run.for_model(), **_report_of(run))


def _returned(text: str, /, **fields: Any) -> CallToolResult:
    """Return both: the text for people and older clients, the object for the model.

    The SDK holds the object against the class that the tool names, so no instance of that is made here.
    """
    if text in ("", NO_OUTPUT):
        text = f"{mark_line(MARK)}\n{NO_OUTPUT}"  # these words are ours
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=fields)


def with_notices(result: CallToolResult, notices: Sequence[str]) -> CallToolResult:
    """Add what the user should know to a result, in both of its forms, as words of ours."""
    if not notices:
        return result
    lines = [printable(notice).replace(MARK, NOT_OURS) for notice in notices]
    (block,) = result.content
    assert isinstance(block, TextContent)
    # No command's output holds the mark, so where there is such a line our part has begun.
    head = [] if mark_line(MARK) in block.text.split("\n") else [mark_line(MARK)]
    text = "\n".join([block.text, *head, *(f"Note for the user: {line}" for line in lines)])
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content={**(result.structured_content or {}), "notices": lines},
    )


def refused(error: FumehoodError) -> CallToolResult:
    """Say what is wrong, so that a model reads it."""
    return CallToolResult(content=[TextContent(type="text", text=refusal_text(error, MARK))], is_error=True)


# ---- What is asked before a tool is called; None where nothing is.

async def foreseen_question(where: Where, command: str, working_dir: str | None, network: bool) -> Question | None:
    """Find out what this command needs a person's word for; the tool gets the very question that is asked."""
    with suppress(FumehoodError):  # the run itself says what is wrong
        sandbox = where.sandbox(working_dir)
        questions = sandbox.questions(command, cwd=working_dir or sandbox.project, network=network)
        return questions[0] if questions else None
    return None


async def held_question(where: Where, run: str) -> Question:
    """Find out which run is meant and what it holds, once: `last` may be another by the time of the answer."""
    return _question_to_apply(where.holding(run), run)


async def access_question(where: Where, host: str, show: str, write: str, reason: str) -> Question | None:
    """Put what an agent asks to be allowed into words."""
    return where.sandbox().access_question(host=host, show=show, write=write, reason=reason)


def _question_to_apply(sandbox: "Sandbox", name: str) -> Question:
    """Put into words what applying a run's held changes means."""
    run = sandbox.find(name)
    if run.state != HELD:
        raise BadRequest(f"run {run.name} holds nothing: it is {run.state}")
    return apply_question(run)


HeldQuestion = Annotated[Any, Resolve(held_question)]
WhoPermits = Annotated[Any, Resolve(answering(foreseen_question))]
WhoConsents = Annotated[Any, Resolve(answering(held_question))]
WhoGivesAccess = Annotated[Any, Resolve(answering(access_question))]


# ---- Running commands.

@asynccontextmanager
async def _telling_progress(context: Context[Any, Any]) -> AsyncIterator[Callable[[str, str], None] | None]:
    """Tell the client what is being printed, if it wants to know: the latest lines, a few times a second.

    Yields what the run calls with its output, from another thread.
    """
    meta = context.request_context.meta
    if not meta or meta.get("progress_token") is None:
        yield None
        return
    lock, ended = threading.Lock(), asyncio.Event()
    lines: list[str] = []
    unfinished, count = "", 0

    def take(_stream: str, text: str) -> None:
        nonlocal unfinished, count
        with lock:
            *more, unfinished = (unfinished + text).split("\n")
            unfinished = unfinished[:_LONGEST_LINE]
            lines.extend(line[:_LONGEST_LINE] for line in more if line.strip())
            del lines[:-_MOST_LINES]
            count += len(more)

    async def report() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _PROGRESS_S)
            with lock:
                latest, number = "\n".join(lines), count
                lines.clear()
            if latest:
                await context.report_progress(number, None, visible(latest, MARK))

    task = asyncio.create_task(report())
    try:
        yield take
    except BaseException:
        task.cancel()
        raise
    ended.set()  # not cancelled: it may be sending just now
    await task


async def run_command(  # noqa: D103 - described by core/tool.py
    ctx: Context[Any, Any], where: Where, asks: WhoPermits, command: Command, working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, Report]:  # fmt: skip
    sandbox = where.sandbox(working_dir)
    cwd = working_dir or sandbox.project
    async with _telling_progress(ctx) as take:
        run = await sandbox.arun(command, cwd=cwd, network=network, timeout=timeout, ask=asks, on_output=take)
    # How an agent gets what it was refused, where it can: not by our command line.
    hint = "a command has no network; request_access asks the user for a host, `network` for all of it"
    run.blocked = tuple(each.replace(hint=hint) if each.what == "network" else each for each in run.blocked)
    sandbox.only_news(run)
    return _reported(run)


async def start_command(
    where: Where, asks: WhoPermits, command: Command, working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, JobStatus]:  # fmt: skip
    """Start a command that takes long, a server for instance; poll_command tells what it prints."""
    sandbox = where.sandbox(working_dir)
    cwd = working_dir or sandbox.project

    def work(**more: Any) -> "Run":
        return sandbox.run(command, cwd=cwd, network=network, timeout=timeout, ask=asks, background=True, **more)

    job = where.clients.jobs.start(where.client, work)
    await job.wait(0, _FIRST_LOOK_S)
    return _job_status(job, 0)


async def poll_command(
    ctx: Context[Any, Any],
    job: JobName,
    offset: Offset = 0,
    wait: Annotated[float, Field(ge=0, le=_MOST_WAIT_S, description="Seconds to wait for something new.")] = 0,
) -> Annotated[CallToolResult, JobStatus]:
    """Return what a started command printed since an offset, and its report once it has ended."""
    started = clients_of(ctx).job(ctx, job)
    if wait:
        await started.wait(offset, wait)
    return _job_status(started, offset)


async def stop_command(ctx: Context[Any, Any], job: JobName) -> Annotated[CallToolResult, JobStatus]:
    """End a started command; what it wrote so far is held for the user."""
    started = clients_of(ctx).job(ctx, job)
    await anyio.to_thread.run_sync(started.stop)
    return _job_status(started, 0)


async def running(where: Where) -> Annotated[CallToolResult, RunningCommands]:
    """List this session's commands that run now."""
    runs = [run for _, run in await anyio.to_thread.run_sync(where.running)]
    commands = [
        {
            "run": run.run, "command": shorten(run.command), "cwd": shorten(run.cwd),
            "seconds": max(0, int(time.time() - run.started_at)),
        }
        for run in runs
    ]  # fmt: skip
    lines = [f"{each['run']}: {each['command']} ({each['seconds']} s)" for each in commands] or ["nothing runs"]
    return _returned(append_report("", lines, MARK), commands=commands)


async def checkpoint(where: Where, run: RunningName = "last") -> Annotated[CallToolResult, Report]:
    """Settle what a command that runs has finished writing, so that others see it; the command goes on."""
    sandbox, chosen = await anyio.to_thread.run_sync(_running, where, run)
    return _reported(await anyio.to_thread.run_sync(sandbox.checkpoint, chosen))


def _running(where: Place, name: str) -> "tuple[Sandbox, Run]":
    runs = where.running()
    wanted = None if name == LAST else where.holding(name).find(name).run  # as every other tool finds it
    for sandbox, run in runs:
        if wanted in (None, run.run):
            return sandbox, run
    raise BadRequest(f"no run {shorten(name)} runs now", hint="running lists those that do")


def _job_status(job: Job, offset: int) -> CallToolResult:
    begin, printed = job.output(offset)
    output = visible(printed[:_MOST_TEXT], MARK)
    error = f"ERROR: {shorten(job.error.message)}" if job.error is not None else ""
    state = "is running" if job.is_running else "has ended"
    ours = [part for part in (error, f"[{job.name} {state}]") if part]
    return _returned(
        append_report(output, ours, MARK), job=job.name, running=job.is_running, offset=begin,
        next_offset=begin + len(printed[:_MOST_TEXT]), output=output,
        report=_report_of(job.run) if job.run is not None else None, error=error,
    )  # fmt: skip


# ---- Runs that were.

async def changes(where: Where, run: RunName = "last") -> Annotated[CallToolResult, Report]:
    """Tell what a run changed, what became of that, and what was blocked."""
    return _reported(where.holding(run).find(run))


async def diff(where: Where, run: RunName = "last", paths: Paths = None) -> Annotated[CallToolResult, DiffText]:
    """Show what a run changed, line by line."""
    sandbox = where.holding(run)
    past = sandbox.find(run)
    whole = visible(await anyio.to_thread.run_sync(sandbox.diff, past, paths or []), MARK)
    text = whole[:_MOST_TEXT]
    return _returned(text, run=past.run, text=text, truncated=len(whole) > len(text))


async def read_output(
    where: Where,
    run: RunName = "last",
    stream: Annotated[str, Field(pattern="^(stdout|stderr)$")] = "stdout",
    offset: Offset = 0,
    limit: Annotated[int, Field(gt=0, le=_MOST_TEXT, description="Bytes.")] = 20_000,
) -> Annotated[CallToolResult, OutputPiece]:
    """Read all that a run printed, piece by piece."""
    sandbox = where.holding(run)
    past = sandbox.find(run)
    data = await anyio.to_thread.run_sync(sandbox.output, past, stream)
    end = min(offset + limit, len(data))
    while end < len(data) and end < offset + limit + 3 and data[end] & 0xC0 == 0x80:  # the rest of a letter
        end += 1
    text = visible(data[offset:end].decode(errors="replace"), MARK)
    following = end if end < len(data) else None
    return _returned(
        text, run=past.run, stream=stream, offset=offset, next_offset=following, total=len(data), text=text
    )


async def undo(
    where: Where, run: ToUndo = "last", session: WholeSession = False
) -> Annotated[CallToolResult, TakenBack]:
    """Bring back exactly what was there before a run; `redo` has it again."""
    sandbox = where.sandbox() if session else where.holding(run, to_undo=True)
    return await _taken_back(sandbox.undo_session if session else lambda: [sandbox.undo(run)])


async def redo(
    where: Where, run: ToRedo = "last", session: WholeSession = False
) -> Annotated[CallToolResult, TakenBack]:
    """Bring back what `undo` took back: the last one, or that of a run."""
    sandbox = where.sandbox() if session else where.holding(run, to_redo=True)
    return await _taken_back(sandbox.redo_session if session else lambda: [sandbox.redo(run)])


async def _taken_back(act: "Callable[[], list[Run]]") -> CallToolResult:
    backs = await anyio.to_thread.run_sync(act)
    return _returned(runs_for_model(backs, MARK), runs=[_report_of(back) for back in backs])


async def apply(
    where: Where, question: HeldQuestion, asks: WhoConsents, run: RunName  # noqa: ARG001 - the question knows it
) -> Annotated[CallToolResult, Report]:
    """Apply what a run had to hold; the user is asked."""
    sandbox = where.holding(question.run)
    return _reported(await _in_own_thread(lambda: _applied_as_shown(sandbox, question, asks)))


async def _in_own_thread(act: "Callable[[], Done]") -> "Done":
    """Do what waits for a person beside the few threads that all calls share, and by which messages are read."""
    return await anyio.to_thread.run_sync(act, limiter=anyio.CapacityLimiter(1))


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


async def discard(where: Where, run: RunName) -> Annotated[CallToolResult, Report]:
    """Throw away what a run of this session had to hold."""
    return _reported(await anyio.to_thread.run_sync(where.holding(run).discard, run))


async def request_access(
    where: Where, asks: WhoGivesAccess,
    host: Annotated[str, Field(description="A host to reach: `pypi.org`, `pypi.org:443`.")] = "",
    show: Annotated[str, Field(description="A path of the user's home to read.")] = "",
    write: Annotated[str, Field(description="A directory outside the project to write.")] = "",
    reason: Annotated[str, Field(description="Why: the user reads it.")] = "",
) -> Annotated[CallToolResult, AccessSaid]:  # fmt: skip
    """Ask the user to let later commands reach a host, read a path or write a directory: one of these."""
    sandbox = where.sandbox()
    said = await _in_own_thread(
        lambda: sandbox.request_access(host=host, show=show, write=write, reason=reason, ask=asks)
    )
    return _returned(append_report("", said, MARK), said=said)
