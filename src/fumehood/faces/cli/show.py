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

_MOST = 12  # additions and modifications listed; deletions and what was not applied always are
_LARGE = 4  # entries of a new tree that get lines of their own
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
    return f"{text}: {printable(run.reason)}" if run.reason else text


def lines(run: Run, paint: Paint, most: int) -> list[str]:
    """Write one line a change, leaving out only additions and modifications beyond a number."""
    listed: list[str] = []
    left_out = 0
    room = most
    for change, inside in _shown(run.found, whole=most < len(run.found)):
        must = change.change == c.DELETED or change.verdict != c.APPLIED
        if not must and room <= 0:
            left_out += 1
            continue
        room -= not must
        listed.append(line(run, change, paint) + (f"  {paint(f'{inside} entries', 'dim')}" if inside else ""))
    if left_out:
        listed.append(paint(f"… and {left_out} more; fumehood show {short(run.run)}", "dim"))
    return listed


def _shown(changes: Sequence[c.Change], *, whole: bool) -> list[tuple[c.Change, int]]:
    """Choose what is worth a line, with how many entries it stands for.

    A directory that only came with what lies in it is left out; where there is little room, a large new tree is
    one line, and so is each entry in it that a person should look at.
    """
    parents = {(change.root, change.path.rpartition("/")[0]) for change in changes}
    large = _large_trees(changes) if whole else {}
    chosen = []
    for change in changes:
        own, above = (change.root, change.path), (change.root, change.within)
        is_shell = change.change == c.ADDED and change.kind == c.DIRECTORY and own in parents
        if change.within is not None and above in large:
            if _is_telling(change) and not is_shell:
                chosen.append((change, 0))
        elif own in large:
            chosen.append((change, large[own]))
        elif not is_shell:
            chosen.append((change, 0))
    return chosen


def _is_telling(change: c.Change) -> bool:
    return change.verdict != c.APPLIED or bool(change.flags)


def _large_trees(changes: Sequence[c.Change]) -> dict[tuple[int, str], int]:
    """Return the new directories that hold many entries, with how many of them need no look."""
    counts: dict[tuple[int, str], int] = {}
    for change in changes:
        if change.within is not None and change.change == c.ADDED and not _is_telling(change):
            top = change.root, change.within
            counts[top] = counts.get(top, 0) + 1
    return {top: count for top, count in counts.items() if count > _LARGE}


def line(run: Run, change: c.Change, paint: Paint) -> str:
    """Write one change."""
    sign, colour = _SIGNS[change.change]
    where = "" if change.root == 0 else f"{run.roots[change.root]}/"
    path = printable(where + change.path) + ("/" if change.kind == c.DIRECTORY else "")
    modes = ""
    if change.change == c.MODE and change.before is not None and change.after is not None:
        modes = f" {change.before.mode:04o} → {change.after.mode:04o}"
    told = "" if change.verdict == c.APPLIED else f"  [{change.verdict}: {printable(change.reason)}]"
    flags = f"  ({', '.join(change.flags)})" if change.flags else ""
    return f"{paint(sign, colour)} {path}{modes}{flags}{told}"

