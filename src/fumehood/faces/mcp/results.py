"""What the tools return: structured content that holds everything, because clients may drop the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, Field, WithJsonSchema

from fumehood.core.changes import APPLIED, DELETED
from fumehood.core.report import MODEL_OUTPUT, cut_in_the_middle, printable

if TYPE_CHECKING:
    from fumehood.core.report import ReportedChange, Run
    from fumehood.errors import FumehoodError

MOST_CHANGES = 200
_SAME = (
    "run", "project", "command", "cwd", "state", "reason", "exit_code", "timed_out", "sandboxed", "network",
    "session",
)  # fmt: skip
_TOLD_IF_ANY = ("reason", "timed_out", "output_truncated", "changes_left_out", "blocked", "session")


class Change(BaseModel):
    """One path's difference."""

    path: str
    root: str = Field(description="The directory that the path is relative to.")
    change: str = Field(description="added, modified, deleted, mode or type")
    kind: str
    verdict: str = Field(description="applied, held, conflict, discarded or unsupported")
    reason: str = ""
    flags: list[str] = []


class Blocked(BaseModel):
    """Something the command was refused, and how a person can allow it."""

    what: str
    detail: str
    hint: str = ""


class Report(BaseModel):
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
    changes: list[Change] = []
    changes_left_out: int = Field(0, description="Additions and modifications not listed.")
    blocked: list[Blocked] = []
    session: str = ""


class Text(BaseModel):
    """A piece of text."""

    run: str
    text: str
    truncated: bool = False


class Piece(BaseModel):
    """A piece of what a run printed, by byte offsets."""

    run: str
    stream: str
    offset: int
    next_offset: int | None = Field(description="Where the next piece begins; none at the end.")
    total: int
    text: str


class Undone(BaseModel):
    """What was taken back."""

    runs: list[Report] = Field(description="The undos, runs of their own; undoing one brings its changes back.")


class Job(BaseModel):
    """A command that runs in the background."""

    job: str
    running: bool
    offset: int = 0
    next_offset: int = 0
    output: str = Field("", description="What it printed since `offset`.")
    report: Report | None = Field(None, description="Once it has ended.")
    error: str = ""


def report_of(run: Run) -> dict[str, Any]:
    """Put a run into the shape of a Report; what has nothing to tell is left out, for a model reads every word."""
    listed, left_out = _listed(run.changes)
    output = cut_in_the_middle(run.output, MODEL_OUTPUT)
    told = {
        **{name: getattr(run, name) for name in _SAME}, "duration_s": round(run.duration_s, 6),
        "output": output, "output_truncated": run.output_truncated or output != run.output, "changes": listed,
        "changes_left_out": left_out, "blocked": [each.fields() for each in run.blocked],
    }  # fmt: skip
    return {name: value for name, value in told.items() if value or name not in _TOLD_IF_ANY}


def _listed(changes: tuple[ReportedChange, ...]) -> tuple[list[dict[str, Any]], int]:
    """List changes: every deletion and all that was not applied, the rest up to a number."""
    listed: list[dict[str, Any]] = []
    left_out = 0
    for each in changes:
        if each.change != DELETED and each.verdict == APPLIED and len(listed) >= MOST_CHANGES:
            left_out += 1
            continue
        listed.append(
            {**each.fields(), "path": _text(each.path), "root": _text(each.root), "flags": list(each.flags)}
        )
    return listed, left_out


def _text(path: str) -> str:
    """Write a path so that it can be sent as JSON: bytes that are no UTF-8 are escapes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return printable(path)
    return path


def returned(text: str, /, **told: Any) -> CallToolResult:
    """Return both: the text for people and older clients, the object for the model.

    The SDK holds the object against the class that the tool names, so no instance of that is made here.
    """
    return CallToolResult(
        content=[TextContent(type="text", text=sendable(text) or "(no output)")], structured_content=told
    )


def sendable(text: str) -> str:
    """Make a text one that can be sent."""
    return text.encode(errors="replace").decode()


def failed(error: FumehoodError) -> CallToolResult:
    """Tell an error as the model's contract has it."""
    text = f"ERROR: {error.message}" + (f"\n{error.hint}" if error.hint else "")
    return CallToolResult(content=[TextContent(type="text", text=sendable(text))], is_error=True)


