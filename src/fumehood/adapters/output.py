"""What a command printed, whole, and what a model must be told besides."""

from __future__ import annotations

from fumehood import FumehoodError, Run, Sandbox
from fumehood.core.changes import APPLIED
from fumehood.core.for_model import line_of, one_line, told_ahead
from fumehood.core.limits import OUTPUT, is_of
from fumehood.core.report import joined
from fumehood.core.summary import summary
from fumehood.core.visible import visible

_SHOWN = 20


def printed(sandbox: Sandbox, run: Run) -> tuple[str, str]:
    """Return both outputs in full: a run itself holds only the head and the tail of a long one."""
    if not run.output_truncated:
        return run.stdout, run.stderr
    return sandbox.output(run).decode("utf-8", "replace"), sandbox.output(run, "stderr").decode("utf-8", "replace")


def is_cut(run: Run) -> bool:
    """Tell whether the command printed more than the limit lets anyone keep."""
    return any(is_of(each, OUTPUT) for each in run.blocked)


def notes(run: Run) -> str:
    """Write what was blocked and what did not reach the project, or nothing if all went through.

    Each line has the mark, because frameworks put streams together as they like.
    """
    waiting = [change for change in run.found if change.verdict != APPLIED]
    lines, left_out = summary(waiting, _SHOWN)
    told = [each.line for each in run.blocked[:_SHOWN]]
    told += [one_line(line) for line in lines]
    told += [f"and {count} more: {kind}" for kind, count in left_out.items()]
    if run.timed_out:
        told.append("the time limit was reached and the command was ended")
    return "\n".join(f"{line_of(run.mark)} {line}" for line in told)


def shown(run: Run, text: str) -> str:
    """Make what a command printed fit for a model: nothing invisible in it, and not the mark."""
    return visible(text, run.mark)


def for_agent(sandbox: Sandbox, run: Run) -> str:
    """Return all that the command printed, and the notes after it."""
    return joined(shown(run, joined(*printed(sandbox, run))), notes(run))


def instructions(sandbox: Sandbox) -> str:
    """Say to a model how our words are told from a command's; for its prompt."""
    return told_ahead(sandbox.mark)


def refusal(sandbox: Sandbox, error: FumehoodError) -> str:
    """Write an error of ours for a model."""
    return sandbox.refusal(error)
