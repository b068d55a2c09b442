"""The tools that run commands: at once, or in the background."""

# No `from __future__ import annotations`: the SDK reads these, resolvers among them.

from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from fumehood.core import tool as described
from fumehood.core.for_model import set_apart
from fumehood.core.report import short
from fumehood.faces.mcp import results as r
from fumehood.faces.mcp.desk import NOT_ASKED, Foreseen, Permission, Where, answering, here, told
from fumehood.faces.mcp.jobs import Job
from fumehood.faces.mcp.progress import Progress

if TYPE_CHECKING:
    from fumehood.core.report import Blocked, Run

_MOST_TEXT = 100_000
_MOST_WAIT_S = 30.0
_FIRST_LOOK_S = 0.2  # most that fails fails at once
_TOLD = described.schema()["properties"]

Command = Annotated[str, Field(description=_TOLD["command"]["description"])]
Directory = Annotated[str | None, Field(description=_TOLD["working_dir"]["description"])]
Network = Annotated[bool, Field(description=_TOLD["network"]["description"])]
Timeout = Annotated[float | None, Field(gt=0, description=_TOLD["timeout"]["description"])]
JobName = Annotated[str, Field(description="What start_command returned.")]


@told
async def run_command(  # noqa: D103 - described by core/tool.py
    ctx: Context[Any, Any], where: Where, question: Foreseen, permission: Permission, command: Command,
    working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, r.Report]:  # fmt: skip
    sandbox = where.sandbox(working_dir)
    cwd = working_dir or sandbox.project
    asks = answering(ctx, where, permission, question)
    async with Progress(ctx) as progress:
        run = await sandbox.arun(
            command, cwd=cwd, network=network, timeout=timeout, ask=asks, on_output=progress.take
        )
    run.blocked = tuple(map(_with_our_hint, run.blocked))
    return r.returned(run.for_model(), **r.report_of(run))


async def run_unasked(
    ctx: Context[Any, Any], command: Command, working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> CallToolResult:  # fmt: skip
    """Run a command where `needs_nobody`; the SDK has nothing to find out for it."""
    return await run_command(ctx, here(ctx), None, NOT_ASKED, command, working_dir, network, timeout)


@told
async def start_command(
    ctx: Context[Any, Any], where: Where, question: Foreseen, permission: Permission, command: Command,
    working_dir: Directory = None,
    network: Network = False, timeout: Timeout = None,  # noqa: ASYNC109 - the command's, not ours
) -> Annotated[CallToolResult, r.Job]:  # fmt: skip
    """Start a command that takes long, a server for instance; poll_command tells what it prints."""
    sandbox = where.sandbox(working_dir)
    cwd = working_dir or sandbox.project
    asks = answering(ctx, where, permission, question)

    def work(**more: Any) -> "Run":
        return sandbox.run(command, cwd=cwd, network=network, timeout=timeout, ask=asks, **more)

    job = where.desk.jobs.start(where.client, work)
    await anyio.to_thread.run_sync(job.wait, 0, _FIRST_LOOK_S)
    return _job_told(job, 0)


@told
async def poll_command(
    ctx: Context[Any, Any],
    job: JobName,
    offset: Annotated[int, Field(ge=0, description="The last next_offset; 0 at first.")] = 0,
    wait: Annotated[float, Field(ge=0, le=_MOST_WAIT_S, description="Seconds to wait for something new.")] = 0,
) -> Annotated[CallToolResult, r.Job]:
    """Return what a started command printed since an offset, and its report once it has ended."""
    found = here(ctx).job(job)
    if wait:
        await anyio.to_thread.run_sync(found.wait, offset, wait)
    return _job_told(found, offset)


@told
async def stop_command(ctx: Context[Any, Any], job: JobName) -> Annotated[CallToolResult, r.Job]:
    """End a started command; what it wrote so far is held for the user."""
    found = here(ctx).job(job)
    await anyio.to_thread.run_sync(found.stop)
    return _job_told(found, 0)


def _with_our_hint(blocked: "Blocked") -> "Blocked":
    """Say how an agent gets what it was refused, where it can: not by our command line."""
    if blocked.what != "network":
        return blocked
    return blocked.replace(hint="a command has no network unless it is called with `network`: the user is asked")


def _job_told(job: Job, offset: int) -> CallToolResult:
    job.join()
    begin, printed = job.output(offset)
    output = r.foreign(printed[:_MOST_TEXT])
    error = f"ERROR: {short(job.error.message)}" if job.error is not None else ""
    state = "is running" if job.is_running else "has ended"
    ours = [part for part in (error, f"[{job.name} {state}]") if part]
    return r.returned(
        set_apart(output, ours, r.MARK), job=job.name, running=job.is_running, offset=begin,
        next_offset=begin + len(printed[:_MOST_TEXT]), output=output,
        report=r.report_of(job.run) if job.run is not None else None, error=error,
    )  # fmt: skip
