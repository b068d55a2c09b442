"""Tell a person what a run changed, in one short block."""

from __future__ import annotations

import sys

from fumehood.core import changes as c
from fumehood.core.report import named, printable
from fumehood.core.report import short as brief
from fumehood.core.summary import summary
from fumehood.faces.cli.style import Paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from fumehood.core.report import Run
    from fumehood.core.summary import Line

_MOST = 12  # lines about changes; what is alike is then told by directory
_LARGE = 4  # entries of a tree that comes or goes whole that get lines of their own
_SIGNS = {
    c.ADDED: ("+", "green"), c.MODIFIED: ("~", "yellow"), c.DELETED: ("-", "red"), c.MODE: ("m", "cyan"),
    c.TYPE: ("t", "cyan"),
}  # fmt: skip
_VERDICTS = (c.APPLIED, c.HELD, c.CONFLICT, c.UNSUPPORTED, c.DISCARDED)
_NEXT = {
    "applied": "undo: fumehood undo {run}",
    "held": "look: fumehood diff {run}   then: {apply}  or  fumehood discard {run}   or: fumehood review",
}
_FORCE = "conflict: fumehood apply {run} {path} --force  takes the run's version, and saves what is there now"


def short(run: str) -> str:
    """A prefix of an id that is hardly ever ambiguous."""
    return run[:16]


def tell_run(run: Run, out: TextIO | None = None, most: int = _MOST) -> None:
    """Write what a run changed, what was blocked, and the next step."""
    stream = sys.stderr if out is None else out
    paint = Paint(stream.fileno())
    if run.timed_out:
        stream.write(f"{paint('fumehood:', 'bold')} the time limit was reached; the command was ended\n")
    if not run.sandboxed:
        stream.write(f"{paint('fumehood:', 'bold')} {paint('UNSANDBOXED', 'red')}: {printable(run.reason)}\n")
    if run.found:
        stream.write(f"{paint('fumehood:', 'bold')} {headline(run)}\n")
        for line in lines(run, paint, most):
            stream.write(f"  {line}\n")
    for blocked in run.blocked:
        rest = blocked.line.removeprefix(blocked.headline)
        stream.write(f"  {paint(blocked.headline, 'red')}{rest}\n")
    if run.found and run.state in _NEXT and run.act == "run":
        stream.write(f"  {paint(_NEXT[run.state].format(run=short(run.run), apply=apply_line(run)), 'dim')}\n")
        conflict = next((change for change in run.found if change.verdict == c.CONFLICT), None)
        if conflict is not None:
            stream.write(f"  {paint(_FORCE.format(run=short(run.run), path=printable(conflict.path)), 'dim')}\n")
    stream.flush()


def apply_line(run: Run) -> str:
    """Return the line that applies what waits: where all of it is conflicts, by force."""
    force = "" if any(change.verdict == c.HELD for change in run.found) else " --force"
    return f"fumehood apply {short(run.run)}{force}"


def agent_lines(run: Run) -> list[str]:
    """Return only what an agent can't know from the command itself: what did not happen, and how to take it back."""
    said = []
    if run.timed_out:
        said.append("the time limit was reached; the command was ended")
    if not run.sandboxed:
        said.append(f"UNSANDBOXED: {brief(run.reason)}")
    kept_back = [change for change in run.found if change.verdict not in (c.APPLIED, c.DISCARDED)]
    listed, left_out = summary(kept_back, _MOST)
    for each in listed:
        change = each.change
        path = named(each.path if change.root == 0 else f"{run.roots[change.root]}/{each.path}")
        what = f"{change.change} {each.count} entries in" if each.count > 1 else change.change
        said.append(f"{change.verdict}, not applied: {what} {path}: {brief(change.reason)}")
    said += [f"and {count} more: {kind}; fumehood show {short(run.run)}" for kind, count in left_out.items()]
    said += [each.line for each in run.blocked]
    if kept_back:
        said.append(f"a person decides: {apply_line(run)}  or  fumehood discard {short(run.run)}")
    if any(change.verdict == c.APPLIED for change in run.found):
        said.append(f"undo: fumehood undo {short(run.run)}")
    return said


def headline(run: Run) -> str:
    """Sum up a run's changes in a few words."""
    verdicts = [change.verdict for change in run.found]
    counts = {verdict: verdicts.count(verdict) for verdict in _VERDICTS if verdict in verdicts}
    if run.state == "undone":
        counts = {run.state: len(verdicts)}
    if run.act == "undo" and c.APPLIED in counts:
        counts = {run.outcome if verdict == c.APPLIED else verdict: count for verdict, count in counts.items()}
    (first, count), *others = counts.items()
    text = f"{count} {'change' if count == 1 else 'changes'} {first}"
    text += "".join(f", {count} {verdict}" for verdict, count in others)
    deletions = sum(change.change == c.DELETED for change in run.found)
    text += f" ({deletions} {'deletion' if deletions == 1 else 'deletions'})" if deletions else ""
    return f"{text}: {printable(run.reason)}" if run.reason else text


def lines(run: Run, paint: Paint, most: int) -> list[str]:
    """Write one line a change; where they are too many, a tree that comes or goes whole, and what is alike, in one.

    The numbers in the lines, and one for each line without, are those of the headline.
    """
    if len(run.found) <= most:
        return [line(run, change, paint) for change in run.found]
    inside = _whole_trees(run.found)
    shown = [change for change in run.found if not _is_inside(change, inside)]
    listed, left_out = summary(shown, most)
    written = [_told(run, each, inside, shown, paint) for each in listed]
    if left_out or inside or any(each.count > 1 for each in listed):
        more = "".join(f"{count} more {kind}; " for kind, count in left_out.items())
        written.append(paint(f"{more}all of them: fumehood show {short(run.run)}", "dim"))
    return written


def _told(
    run: Run, told: Line, inside: dict[tuple[int, str], int], shown: Sequence[c.Change], paint: Paint
) -> str:
    """Write a line for a change, with what is in the tree that it moves, or for several in a directory."""
    change = told.change
    if told.count == 1:
        count = inside.get((change.root, change.path), 0)
        return line(run, change, paint) + (f"  {paint(f'and {count} in it', 'dim')}" if count else "")
    top = "" if told.path == "./" else told.path
    alike = [each for each in shown if _key(each) == _key(change) and each.path.startswith(top)]
    count = sum(1 + inside.get((each.root, each.path), 0) for each in alike)
    return line(run, change, paint, path=f"{told.path}…") + f"  {paint(f'{count} of them', 'dim')}"


def _key(change: c.Change) -> tuple[object, ...]:
    return change.root, change.verdict, change.change, change.reason, change.flags


def _is_inside(change: c.Change, trees: dict[tuple[int, str], int]) -> bool:
    return change.within is not None and (change.root, change.within) in trees and not change.flags


def _whole_trees(changes: Sequence[c.Change]) -> dict[tuple[int, str], int]:
    """Return the directories that come or go whole and hold many entries, with how many need no look.

    Not where something in it became of otherwise: that is told one by one.
    """
    tops = {
        (change.root, change.path): change
        for change in changes
        if change.kind == c.DIRECTORY and change.change in (c.ADDED, c.DELETED) and change.within is None
    }
    counts: dict[tuple[int, str], int] = {}
    mixed: set[tuple[int, str]] = set()
    for change in changes:
        top = None if change.within is None else tops.get((change.root, change.within))
        if top is None:
            continue
        if (change.change, change.verdict, change.reason) != (top.change, top.verdict, top.reason) and not change.flags:
            mixed.add((top.root, top.path))
        elif not change.flags:
            counts[top.root, top.path] = counts.get((top.root, top.path), 0) + 1
    return {top: count for top, count in counts.items() if count > _LARGE and top not in mixed}


def line(run: Run, change: c.Change, paint: Paint, path: str = "") -> str:
    """Write one change, or several that are alike in the directory at a path."""
    sign, colour = _SIGNS[change.change]
    where = "" if change.root == 0 else f"{run.roots[change.root]}/"
    place = printable(where + (path or change.path)) + ("/" if change.kind == c.DIRECTORY and not path else "")
    modes = ""
    if not path and change.change == c.MODE and change.before is not None and change.after is not None:
        modes = f" {change.before.mode:04o} → {change.after.mode:04o}"
    told = "" if change.verdict == c.APPLIED else f"  [{change.verdict}: {printable(change.reason)}]"
    flags = f"  ({c.flags_in_words(change.flags)})" if change.flags else ""
    return f"{paint(sign, colour)} {place}{modes}{flags}{told}"

