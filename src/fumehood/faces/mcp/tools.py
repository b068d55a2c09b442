"""The MCP tools: run commands, at once or in the background, act on past runs; and the results that they return.

By a tool's annotations, the SDK resolves some parameters before it calls the tool: the target (the client and its
sandboxes), and who answers the call's questions. Results are structured and complete, because clients may drop the
text.
"""

# No `from __future__ import annotations`: the SDK reads the annotations, also those of resolvers.

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
from fumehood.core.wording import NOT_OURS, make_visible
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError
from fumehood.faces.mcp.clients import MARK, BackgroundCommand, CallTarget, Target, clients_of, find_askers
from fumehood.store.history import LAST

if TYPE_CHECKING:
    from fumehood import Run, Sandbox
    from fumehood.service.ask import Ask

Result = TypeVar("Result")

_MAX_TEXT = 100_000
_MAX_WAIT_S = 30.0
_FIRST_WAIT_S = 0.2  # for a command that fails at once
_PROGRESS_INTERVAL_S = 0.1
_MAX_PROGRESS_LINES = 20  # in one message
_MAX_PROGRESS_LINE = 2000  # characters of each line
_MAX_QUESTIONS = 3  # times that the person is asked if the held changes change meanwhile

_MAX_CHANGES = 200
_MAX_BLOCKED = 30
_RUN_FIELDS = (
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
    """The fields that every tool's result may have."""

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


def _report_fields(run: "Run") -> dict[str, Any]:
    """Return the fields of a Report on a run; empty ones are left out, because a model reads every word."""
    listed, left_out = most_important(run.changed, _MAX_CHANGES)
    fields = {
        **{name: _clean(getattr(run, name)) for name in _RUN_FIELDS}, "duration_s": round(run.duration_s, 6),
        "output": output_for_model(run.output, MARK),
        "output_truncated": run.output_truncated or len(run.output) > MODEL_OUTPUT,
        "changes": [
            {
                "path": _clean(each.path), "root": _clean(run.roots[each.root]), "change": each.change,
                "kind": each.kind, "verdict": each.verdict, "reason": _clean(each.reason), "flags": list(each.flags),
            }
            for each in listed
        ],
        "changes_left_out": sum(left_out.values()), "left_out": left_out,
        "blocked": [
            {name: _clean(value) for name, value in each.fields().items()} for each in run.blocked[:_MAX_BLOCKED]
        ],
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value or name not in _LEFT_OUT_IF_EMPTY}


def _clean(value: Any) -> Any:
    """Return a text without invisible characters and without our mark, and not too long."""
    return shorten(value).replace(MARK, NOT_OURS) if isinstance(value, str) else value


def _run_result(run: "Run") -> CallToolResult:
    return _tool_result(run.for_model(), **_report_fields(run))


def _tool_result(text: str, /, **fields: Any) -> CallToolResult:
    """Return a tool's result: a text for people and older clients, and an object for the model.

    The SDK checks the object against the class in the tool's annotation, so no instance of it is needed.
    """
    if text in ("", NO_OUTPUT):
        text = f"{mark_line(MARK)}\n{NO_OUTPUT}"  # mark it as our own text
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=fields)


def add_notices(result: CallToolResult, notices: Sequence[str]) -> CallToolResult:
    """Add notices for the user to a result, to its text and to its object."""
    if not notices:
        return result
    lines = [printable(notice).replace(MARK, NOT_OURS) for notice in notices]
    (block,) = result.content
    assert isinstance(block, TextContent)
    # A command's output never contains the mark, so such a line begins our own part.
    head = [] if mark_line(MARK) in block.text.split("\n") else [mark_line(MARK)]
    text = "\n".join([block.text, *head, *(f"Note for the user: {line}" for line in lines)])
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content={**(result.structured_content or {}), "notices": lines},
    )


def error_result(error: FumehoodError) -> CallToolResult:
    """Return an error as a tool's result, which the model reads."""
    return CallToolResult(content=[TextContent(type="text", text=refusal_text(error, MARK))], is_error=True)


# ---- Resolvers for the question that is asked before a tool is called; None if there is none.

async def question_before_run(target: Target, command: str, working_dir: str | None, network: bool) -> Question | None:
    """Return the question that this command needs answered before it runs."""
    with suppress(FumehoodError):  # the run itself reports the error
        sandbox = target.sandbox(working_dir)
        questions = sandbox.questions(command, cwd=working_dir or sandbox.project, network=network)
        return questions[0] if questions else None
    return None


async def question_before_apply(target: Target, run: str) -> Question:
    """Return the question whether to apply a held run; it names the run, because `last` may be another one later."""
    return _question_to_apply(target.sandbox_of_run(run), run)


async def question_about_access(target: Target, host: str, show: str, write: str, reason: str) -> Question | None:
    """Return the question about the access that an agent requests."""
    return target.sandbox().access_question(host=host, show=show, write=write, reason=reason)


def _question_to_apply(sandbox: "Sandbox", name: str) -> Question:
    """Return the question whether to apply a run's held changes."""
    run = sandbox.find(name)
    if run.state != HELD:
        raise BadRequest(f"run {run.name} holds nothing: it is {run.state}")
    return apply_question(run)


HeldQuestion = Annotated[Any, Resolve(question_before_apply)]
RunAskers = Annotated[Any, Resolve(find_askers(question_before_run))]
ApplyAskers = Annotated[Any, Resolve(find_askers(question_before_apply))]
AccessAskers = Annotated[Any, Resolve(find_askers(question_about_access))]


# ---- Running commands.

@asynccontextmanager
async def _progress_reporter(context: Context[Any, Any]) -> AsyncIterator[Callable[[str, str], None] | None]:
    """Send the client the latest lines of output a few times a second, if it asked for progress.

    Yields the function to be called with the output, from another thread; None if the client did not ask.
    """
    meta = context.request_context.meta
    if not meta or meta.get("progress_token") is None:
        yield None
        return
    lock, ended = threading.Lock(), asyncio.Event()
    lines: list[str] = []
    unfinished, count = "", 0

    def add_output(_stream: str, text: str) -> None:
        nonlocal unfinished, count
        with lock:
            *more, unfinished = (unfinished + text).split("\n")
            unfinished = unfinished[:_MAX_PROGRESS_LINE]
            lines.extend(line[:_MAX_PROGRESS_LINE] for line in more if line.strip())
            del lines[:-_MAX_PROGRESS_LINES]
            count += len(more)

    async def report() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _PROGRESS_INTERVAL_S)
            with lock:
                latest, number = "\n".join(lines), count
                lines.clear()
            if latest:
                await context.report_progress(number, None, make_visible(latest, MARK))

    task = asyncio.create_task(report())
    try:
        yield add_output
    except BaseException:
        task.cancel()
        raise
    ended.set()  # let the task end by itself, because it may be sending just now
    await task


async def run_command(  # noqa: D103 - described by core/tool.py
    ctx: Context[Any, Any], target: Target, asks: RunAskers, command: Command, working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, Report]:  # fmt: skip
    sandbox = target.sandbox(working_dir)
    cwd = working_dir or sandbox.project
    async with _progress_reporter(ctx) as on_output:
        run = await sandbox.arun(command, cwd=cwd, network=network, timeout=timeout, ask=asks, on_output=on_output)
    # The hint names our tool, because this agent does not use the command line.
    hint = "a command has no network; request_access asks the user for a host, `network` for all of it"
    run.blocked = tuple(each.replace(hint=hint) if each.what == "network" else each for each in run.blocked)
    sandbox.only_news(run)
    return _run_result(run)


async def start_command(
    target: Target, asks: RunAskers, command: Command, working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, JobStatus]:  # fmt: skip
    """Start a command that takes long, a server for instance; poll_command tells what it prints."""
    sandbox = target.sandbox(working_dir)
    cwd = working_dir or sandbox.project

    def work(**more: Any) -> "Run":
        return sandbox.run(command, cwd=cwd, network=network, timeout=timeout, ask=asks, background=True, **more)

    job = target.clients.jobs.start(target.client, work)
    await job.wait(0, _FIRST_WAIT_S)
    return _job_status(job, 0)


async def poll_command(
    ctx: Context[Any, Any],
    job: JobName,
    offset: Offset = 0,
    wait: Annotated[float, Field(ge=0, le=_MAX_WAIT_S, description="Seconds to wait for something new.")] = 0,
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


async def running(target: Target) -> Annotated[CallToolResult, RunningCommands]:
    """List this session's commands that run now."""
    runs = [run for _, run in await anyio.to_thread.run_sync(target.running)]
    commands = [
        {
            "run": run.run, "command": shorten(run.command), "cwd": shorten(run.cwd),
            "seconds": max(0, int(time.time() - run.started_at)),
        }
        for run in runs
    ]  # fmt: skip
    lines = [f"{each['run']}: {each['command']} ({each['seconds']} s)" for each in commands] or ["nothing runs"]
    return _tool_result(append_report("", lines, MARK), commands=commands)


async def checkpoint(target: Target, run: RunningName = "last") -> Annotated[CallToolResult, Report]:
    """Settle what a command that runs has finished writing, so that others see it; the command goes on."""
    sandbox, chosen = await anyio.to_thread.run_sync(_find_running, target, run)
    return _run_result(await anyio.to_thread.run_sync(sandbox.checkpoint, chosen))


def _find_running(target: CallTarget, name: str) -> "tuple[Sandbox, Run]":
    runs = target.running()
    run_id = None if name == LAST else target.sandbox_of_run(name).find(name).run  # as every other tool finds it
    for sandbox, run in runs:
        if run_id in (None, run.run):
            return sandbox, run
    raise BadRequest(f"no run {shorten(name)} runs now", hint="running lists those that do")


def _job_status(job: BackgroundCommand, offset: int) -> CallToolResult:
    begin, printed = job.output(offset)
    output = make_visible(printed[:_MAX_TEXT], MARK)
    error = f"ERROR: {shorten(job.error.message)}" if job.error is not None else ""
    state = "is running" if job.is_running else "has ended"
    own_lines = [line for line in (error, f"[{job.name} {state}]") if line]
    return _tool_result(
        append_report(output, own_lines, MARK), job=job.name, running=job.is_running, offset=begin,
        next_offset=begin + len(printed[:_MAX_TEXT]), output=output,
        report=_report_fields(job.run) if job.run is not None else None, error=error,
    )  # fmt: skip


# ---- Past runs.

async def changes(target: Target, run: RunName = "last") -> Annotated[CallToolResult, Report]:
    """Tell what a run changed, what became of that, and what was blocked."""
    return _run_result(target.sandbox_of_run(run).find(run))


async def diff(target: Target, run: RunName = "last", paths: Paths = None) -> Annotated[CallToolResult, DiffText]:
    """Show what a run changed, line by line."""
    sandbox = target.sandbox_of_run(run)
    past = sandbox.find(run)
    whole = make_visible(await anyio.to_thread.run_sync(sandbox.diff, past, paths or []), MARK)
    text = whole[:_MAX_TEXT]
    return _tool_result(text, run=past.run, text=text, truncated=len(whole) > len(text))


async def read_output(
    target: Target,
    run: RunName = "last",
    stream: Annotated[str, Field(pattern="^(stdout|stderr)$")] = "stdout",
    offset: Offset = 0,
    limit: Annotated[int, Field(gt=0, le=_MAX_TEXT, description="Bytes.")] = 20_000,
) -> Annotated[CallToolResult, OutputPiece]:
    """Read all that a run printed, piece by piece."""
    sandbox = target.sandbox_of_run(run)
    past = sandbox.find(run)
    data = await anyio.to_thread.run_sync(sandbox.output, past, stream)
    end = min(offset + limit, len(data))
    while end < len(data) and end < offset + limit + 3 and data[end] & 0xC0 == 0x80:  # don't cut a UTF-8 character
        end += 1
    text = make_visible(data[offset:end].decode(errors="replace"), MARK)
    next_offset = end if end < len(data) else None
    return _tool_result(
        text, run=past.run, stream=stream, offset=offset, next_offset=next_offset, total=len(data), text=text
    )


async def undo(
    target: Target, run: ToUndo = "last", session: WholeSession = False
) -> Annotated[CallToolResult, TakenBack]:
    """Bring back exactly what was there before a run; `redo` has it again."""
    sandbox = target.sandbox() if session else target.sandbox_of_run(run, to_undo=True)
    return await _undo_or_redo(sandbox.undo_session if session else lambda: [sandbox.undo(run)])


async def redo(
    target: Target, run: ToRedo = "last", session: WholeSession = False
) -> Annotated[CallToolResult, TakenBack]:
    """Bring back what `undo` took back: the last one, or that of a run."""
    sandbox = target.sandbox() if session else target.sandbox_of_run(run, to_redo=True)
    return await _undo_or_redo(sandbox.redo_session if session else lambda: [sandbox.redo(run)])


async def _undo_or_redo(act: "Callable[[], list[Run]]") -> CallToolResult:
    runs = await anyio.to_thread.run_sync(act)
    return _tool_result(runs_for_model(runs, MARK), runs=[_report_fields(each) for each in runs])


async def apply(
    target: Target, question: HeldQuestion, asks: ApplyAskers, run: RunName  # noqa: ARG001 - the question knows it
) -> Annotated[CallToolResult, Report]:
    """Apply what a run had to hold; the user is asked."""
    sandbox = target.sandbox_of_run(question.run)
    return _run_result(await _run_in_own_thread(lambda: _apply_as_shown(sandbox, question, asks)))


async def _run_in_own_thread(act: "Callable[[], Result]") -> "Result":
    """Call a function that waits for a person in an extra thread: all calls, and reading messages, share only a few."""
    return await anyio.to_thread.run_sync(act, limiter=anyio.CapacityLimiter(1))


def _apply_as_shown(sandbox: "Sandbox", question: "Question", asks: "list[Ask]") -> "Run":
    """Apply exactly what the person agrees to; if the run holds something else by then, ask again, a few times."""
    for questions_left in reversed(range(_MAX_QUESTIONS)):
        sandbox.require(question, asks)
        try:
            return sandbox.apply(question.run, expected=question.about)
        except ChangedMeanwhile:
            if not questions_left:
                raise
            question = _question_to_apply(sandbox, question.run)
    raise AssertionError("the last round returns or raises")


async def discard(target: Target, run: RunName) -> Annotated[CallToolResult, Report]:
    """Throw away what a run of this session had to hold."""
    return _run_result(await anyio.to_thread.run_sync(target.sandbox_of_run(run).discard, run))


async def request_access(
    target: Target, asks: AccessAskers,
    host: Annotated[str, Field(description="A host to reach: `pypi.org`, `pypi.org:443`.")] = "",
    show: Annotated[str, Field(description="A path of the user's home to read.")] = "",
    write: Annotated[str, Field(description="A directory outside the project to write.")] = "",
    reason: Annotated[str, Field(description="Why: the user reads it.")] = "",
) -> Annotated[CallToolResult, AccessSaid]:  # fmt: skip
    """Ask the user to let later commands reach a host, read a path or write a directory: one of these."""
    sandbox = target.sandbox()
    said = await _run_in_own_thread(
        lambda: sandbox.request_access(host=host, show=show, write=write, reason=reason, ask=asks)
    )
    return _tool_result(append_report("", said, MARK), said=said)
