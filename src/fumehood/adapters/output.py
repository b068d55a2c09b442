"""What a command printed, whole, and what a model must be told besides."""

from __future__ import annotations

from fumehood import FumehoodError, Run, Sandbox
from fumehood.core.changes import APPLIED
from fumehood.core.limits import OUTPUT, is_of
from fumehood.core.report import joined, one_line

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
    """Write what was blocked and what did not reach the project, or nothing if all went through."""
    waiting = [change for change in run.found if change.verdict != APPLIED]
    told = [each.line for each in run.blocked]
    told += [one_line(change) for change in waiting[:_SHOWN]]
    if len(waiting) > _SHOWN:
        told.append(f"and {len(waiting) - _SHOWN} more changes that were not applied")
    if run.timed_out:
        told.append("the time limit was reached and the command was ended")
    return "\n".join(f"[fumehood] {line}" for line in told)


def for_agent(sandbox: Sandbox, run: Run) -> str:
    """Return all that the command printed, and the notes after it."""
    return joined(joined(*printed(sandbox, run)), notes(run))


def refusal(error: FumehoodError) -> str:
    """Write an error of ours for a model."""
    return f"ERROR: {error}" + (f" ({error.hint})" if error.hint else "")
