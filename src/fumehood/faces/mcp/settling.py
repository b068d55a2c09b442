"""The tools about runs that were: what they changed and printed, taking back, applying, throwing away."""

# No `from __future__ import annotations`: the SDK reads these, resolvers among them.

from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from fumehood.core.for_model import model_texts
from fumehood.errors import ChangedMeanwhile
from fumehood.faces.mcp import results as r
from fumehood.faces.mcp.desk import Consent, HeldQuestion, Where, answering, question_to_apply, told

if TYPE_CHECKING:
    from fumehood import Question, Run, Sandbox
    from fumehood.service.ask import Ask

_MOST_TEXT = 100_000
_MOST_ASKED = 3  # times that a person is asked about what changes while they think

RunName = Annotated[str, Field(description="A run's id, a unique beginning of one, `last`, or `last~1`.")]
ToUndo = Annotated[str, Field(description="As elsewhere; `last`: the last that changed something and stands.")]
Paths = Annotated[list[str] | None, Field(description="Only these paths, relative to the project.")]


@told
async def changes(where: Where, run: RunName = "last") -> Annotated[CallToolResult, r.Report]:
    """Tell what a run changed, what became of that, and what was blocked."""
    found = where.holding(run).find(run)
    return r.returned(found.for_model(), **r.report_of(found))


@told
async def diff(where: Where, run: RunName = "last", paths: Paths = None) -> Annotated[CallToolResult, r.Text]:
    """Show what a run changed, line by line."""
    sandbox = where.holding(run)
    found = sandbox.find(run)
    text = r.foreign(await anyio.to_thread.run_sync(sandbox.diff, found, paths or []))
    shown = text[:_MOST_TEXT]
    return r.returned(shown, run=found.run, text=shown, truncated=len(text) > len(shown))


@told
async def read_output(
    where: Where,
    run: RunName = "last",
    stream: Annotated[str, Field(pattern="^(stdout|stderr)$")] = "stdout",
    offset: Annotated[int, Field(ge=0, description="The last next_offset; 0 at first.")] = 0,
    limit: Annotated[int, Field(gt=0, le=_MOST_TEXT, description="Bytes.")] = 20_000,
) -> Annotated[CallToolResult, r.Piece]:
    """Read all that a run printed, piece by piece."""
    sandbox = where.holding(run)
    found = sandbox.find(run)
    data = await anyio.to_thread.run_sync(sandbox.output, found, stream)
    piece = data[offset : offset + limit]
    end, text = offset + len(piece), r.foreign(piece.decode(errors="replace"))
    following = end if end < len(data) else None
    return r.returned(
        text, run=found.run, stream=stream, offset=offset, next_offset=following, total=len(data), text=text
    )


@told
async def undo(
    where: Where,
    run: ToUndo = "last",
    session: Annotated[bool, Field(description="Take back every run of this session instead.")] = False,
) -> Annotated[CallToolResult, r.Undone]:
    """Bring back exactly what was there before a run; an undo is a run, and can be undone."""
    sandbox = where.sandbox() if session else where.holding(run, to_undo=True)
    done = await anyio.to_thread.run_sync(sandbox.undo_session if session else lambda: [sandbox.undo(run)])
    return r.returned(model_texts(done, r.MARK), runs=[r.report_of(each) for each in done])


@told
async def apply(
    ctx: Context[Any, Any], where: Where, question: HeldQuestion, consent: Consent, run: RunName
) -> Annotated[CallToolResult, r.Report]:
    """Apply what a run had to hold; the user is asked."""
    sandbox = where.holding(run if question is None else question.run)
    asks = answering(ctx, where, consent, question)
    asked_about = question or question_to_apply(sandbox, run)
    done = await anyio.to_thread.run_sync(_applied_as_shown, sandbox, asked_about, asks)
    return r.returned(done.for_model(), **r.report_of(done))


def _applied_as_shown(sandbox: "Sandbox", question: "Question", asks: "list[Ask]") -> "Run":
    """Apply exactly what the person says yes to; if the run holds something else by then, ask again, a few times."""
    for left in reversed(range(_MOST_ASKED)):
        sandbox.require(question, asks)
        try:
            return sandbox.apply(question.run, expected=question.about)
        except ChangedMeanwhile:
            if not left:
                raise
            question = question_to_apply(sandbox, question.run)
    raise AssertionError("the last time ends it")


@told
async def discard(where: Where, run: RunName) -> Annotated[CallToolResult, r.Report]:
    """Throw away what a run of this session had to hold."""
    done = await anyio.to_thread.run_sync(where.holding(run).discard, run)
    return r.returned(done.for_model(), **r.report_of(done))
