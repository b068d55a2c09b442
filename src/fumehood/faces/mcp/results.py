"""What the tools return: structured content that holds everything, because clients may drop the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, Field, WithJsonSchema

from fumehood.core.report import (
    MODEL_OUTPUT,
    NO_OUTPUT,
    NOT_OURS,
    Run,
    foremost,
    line_of,
    printable,
    short,
    shown_output,
)
from fumehood.store.places import new_mark

MARK = new_mark()  # this server's, for as long as it runs: its instructions and its tool's description tell it
MOST_CHANGES = 200
_MOST_BLOCKED = 30
_SAME = (
    "run", "project", "command", "cwd", "state", "reason", "exit_code", "timed_out", "sandboxed", "network",
    "session",
)  # fmt: skip
_LEFT_OUT_IF_EMPTY = ("reason", "timed_out", "output_truncated", "changes_left_out", "left_out", "blocked", "session")


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


def report_of(run: Run) -> dict[str, Any]:
    """Put a run into the shape of a Report; what has nothing to tell is left out, for a model reads every word."""
    listed, left_out = foremost(run.changed, MOST_CHANGES)
    fields = {
        **{name: _text(getattr(run, name)) for name in _SAME}, "duration_s": round(run.duration_s, 6),
        "output": shown_output(run.output, MARK),
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
    return short(value).replace(MARK, NOT_OURS) if isinstance(value, str) else value


def returned(text: str, /, **fields: Any) -> CallToolResult:
    """Return both: the text for people and older clients, the object for the model.

    The SDK holds the object against the class that the tool names, so no instance of that is made here.
    """
    if text in ("", NO_OUTPUT):
        text = f"{line_of(MARK)}\n{NO_OUTPUT}"  # these words are ours
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=fields)


def with_notices(result: CallToolResult, notices: Sequence[str]) -> CallToolResult:
    """Add what the user should know to a result, in both of its forms, as words of ours."""
    if not notices:
        return result
    lines = [printable(notice).replace(MARK, NOT_OURS) for notice in notices]
    (block,) = result.content
    assert isinstance(block, TextContent)
    # No command's output holds the mark, so where there is such a line our part has begun.
    head = [] if line_of(MARK) in block.text.split("\n") else [line_of(MARK)]
    text = "\n".join([block.text, *head, *(f"Note for the user: {line}" for line in lines)])
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content={**(result.structured_content or {}), "notices": lines},
    )
