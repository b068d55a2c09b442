"""What a person or an agent is told about a run: what it changed, what was blocked, and the next step."""

from __future__ import annotations

import sys
import time

from fumehood.core import changes as c
from fumehood.core.report import (
    IN_PART,
    UNDONE_BY,
    how_many,
    path_in_list,
    printable,
    quote_name,
    shell_path,
    summary_lines,
)
from fumehood.core.report import shorten as brief
from fumehood.faces.cli.output import Paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from fumehood.core.report import Blocked, Run
    from fumehood.store.audit import Event

_MOST = 12  # lines about changes; what is alike is then told by directory
_SAME = ("root", "verdict", "change", "reason", "flags")  # what changes in one line have in common
_LARGE = 4  # entries of a tree that comes or goes whole that get lines of their own
STATES = {"applied": "green", "held": "yellow", "failed": "red", "refused": "red", "undone": "cyan"}
SIGNS = {
    c.ADDED: ("+", "green"), c.MODIFIED: ("~", "yellow"), c.DELETED: ("-", "red"), c.MODE: ("m", "cyan"),
    c.TYPE: ("t", "cyan"),
}  # fmt: skip
_VERDICTS = (c.APPLIED, c.HELD, c.CONFLICT, c.UNSUPPORTED, c.DISCARDED)
_NEXT = {
    "applied": "undo: fumehood undo {run}",
    "held": "look: fumehood diff {run}   then: {apply}  or  fumehood discard {run}   or: fumehood review",
}
_IN_DRAFT = "look: fumehood draft diff {draft}   then: fumehood draft apply {draft}   or: fumehood undo {run}"
_FORCE = "conflict: fumehood apply {run} {path} --force  takes the run's version, and saves what is there now"


def run_label(run: Run) -> str:
    """Write a run's number as people know numbers of this kind; the id of one that has none here."""
    return run.name if run.name == run.run else f"#{run.name}"


def absolute_path(run: Run, change: c.Change) -> str:
    """Name a path as an act on it does."""
    root = run.roots[change.root]
    return root if change.path == "." else f"{root}/{change.path}"


def draft_or_session(run: Run, shown: Callable[[str], str]) -> str:
    """Write to which line of runs one belongs: a draft, or else a session, or none."""
    if run.draft_name is not None:
        return f"draft {shown(run.draft_name)}"
    return "" if run.session is None else f"session {shown(run.session)}"


def print_run(run: Run, out: TextIO | None = None) -> None:
    """Write what a run changed, what was blocked, and the next step."""
    stream = sys.stderr if out is None else out
    paint = Paint(stream.fileno())
    ours = paint("fumehood:", "bold")
    text = []
    if run.timed_out:
        text.append(f"{ours} the time limit was reached; the command was ended")
    if not run.sandboxed:
        text.append(f"{ours} {paint('UNSANDBOXED', 'red')}: {printable(run.reason)}")
    if run.changed:
        text.append(f"{ours} {headline(run)}")
        text += [f"  {line}" for line in _lines(run, paint)]
    for blocked in run.blocked:
        text.append(f"  {paint(blocked.headline, 'red')}{blocked.line.removeprefix(blocked.headline)}")
    if run.changed and run.draft is not None:
        if run.state == "held":
            text.append(f"  {paint(_IN_DRAFT.format(run=run.name, draft=run.draft_name), 'dim')}")
    elif run.changed and run.state in _NEXT and run.act == "run":
        text.append(f"  {paint(_NEXT[run.state].format(run=run.name, apply=apply_command(run)), 'dim')}")
        conflict = next((change for change in run.changed if change.verdict == c.CONFLICT), None)
        if conflict is not None:
            text.append(f"  {paint(_FORCE.format(run=run.name, path=shell_path(conflict.path)), 'dim')}")
    stream.write("".join(f"{line}\n" for line in text))
    stream.flush()


def apply_command(run: Run) -> str:
    """Return the line that applies what waits: where all of it is conflicts, by force."""
    force = "" if any(change.verdict == c.HELD for change in run.changed) else " --force"
    return f"fumehood apply {run.name}{force}"


def lines_for_agent(run: Run, blocked: Sequence[Blocked]) -> list[str]:
    """Return only what an agent can't know from the command itself: what did not happen, and how to take it back.

    `blocked` is what of the run's it must be told.
    """
    said = []
    if run.timed_out:
        said.append("the time limit was reached; the command was ended")
    if not run.sandboxed:
        said.append(f"UNSANDBOXED: {brief(run.reason)}")
    settled = (c.APPLIED, c.DISCARDED) if run.draft is None else (c.APPLIED, c.DISCARDED, *c.WAITING)
    kept_back = [change for change in run.changed if change.verdict not in settled]
    listed, left_out = summary_lines(kept_back, _MOST)
    for each in listed:
        change = each.change
        path = quote_name(each.path if change.root == 0 else f"{run.roots[change.root]}/{each.path}")
        what = f"{change.change} {each.count} entries in" if each.count > 1 else change.change
        said.append(f"{change.verdict}, not applied: {what} {path}: {brief(change.reason)}")
    said += [f"and {count} more: {kind}; fumehood show {run.name}" for kind, count in left_out.items()]
    said += [each.line for each in blocked]
    if kept_back:
        said.append(f"a person decides: {apply_command(run)}  or  fumehood discard {run.name}")
    if any(change.verdict == c.APPLIED for change in run.changed):
        said.append(f"undo: fumehood undo {run.name}")
    return said


_AS_SAID = {c.CONFLICT: "in conflict", c.UNSUPPORTED: "not supported"}


def headline(run: Run) -> str:
    """Sum up a run's changes in a few words."""
    verdicts = ["undone" if change.reason.startswith(UNDONE_BY) else change.verdict for change in run.changed]
    counts = {verdict: verdicts.count(verdict) for verdict in (*_VERDICTS, "undone") if verdict in verdicts}
    if run.state in ("undone", "failed"):
        counts = {run.state: len(verdicts)}
    if run.draft is not None and run.state == "applied":
        counts = {"taken over": len(verdicts)}
    if run.act == "undo" and c.APPLIED in counts:
        counts = {run.outcome if verdict == c.APPLIED else verdict: count for verdict, count in counts.items()}
    (first, count), *others = ((_AS_SAID.get(verdict, verdict), count) for verdict, count in counts.items())
    text = f"{how_many(count, 'change')} {first}"
    text += "".join(f", {count} {verdict}" for verdict, count in others) + deletions(run)
    reason = run.reason or _said_once(run)
    return f"{text}: {printable(reason)}" if reason not in ("", IN_PART) else text


def _said_once(run: Run) -> str:
    """Return the reason that all changes of a run have, where none is applied: the headline says it for all."""
    fates = {(change.verdict, change.reason) for change in run.changed}
    verdict, reason = fates.pop() if fates else ("", "")
    return reason if not fates and len(run.changed) > 1 and verdict != c.APPLIED and not run.reason else ""


def deletions(run: Run) -> str:
    """Count what a run deletes, for the end of a headline."""
    count = sum(change.change == c.DELETED for change in run.changed)
    return f" ({how_many(count, 'deletion')})" if count else ""


def _lines(run: Run, paint: Paint) -> Iterator[str]:
    """Write one line a change; where they are too many, a tree that comes or goes whole, and what is alike, in one.

    The numbers in the lines, and one for each line without, are those of the headline.
    """
    said = _said_once(run)
    if len(run.changed) <= _MOST and not any(".git/objects/" in change.path for change in run.changed):
        yield from (_place(run, change, paint) + _fate(run, change, said) for change in run.changed)
        return
    inside = _whole_trees(run.changed)
    shown = [
        change for change in run.changed
        if change.flags or change.within is None or (change.root, change.within) not in inside
    ]  # fmt: skip
    listed, left_out = summary_lines(shown, _MOST)
    for each in listed:
        change = each.change
        if each.count == 1:
            count = inside.get((change.root, change.path), 0)
            more = f"  {paint(f'and {count} in it', 'dim')}" if count else ""
            yield _place(run, change, paint) + _fate(run, change, said) + more
        else:
            top = "" if each.path == "./" else each.path
            count = sum(
                1 + inside.get((other.root, other.path), 0) for other in shown
                if other.path.startswith(top) and all(getattr(other, part) == getattr(change, part) for part in _SAME)
            )  # fmt: skip
            place = _place(run, change, paint, path=f"{each.path}…")
            yield f"{place}{_fate(run, change, said)}  {paint(f'{count} of them', 'dim')}"
    if left_out or inside or any(each.count > 1 for each in listed):
        more = "".join(f"{count} more {kind}; " for kind, count in left_out.items())
        yield paint(f"{more}all of them: fumehood show {run.name}", "dim")


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
        if top is None or change.flags:
            continue
        if (change.change, change.verdict, change.reason) != (top.change, top.verdict, top.reason):
            mixed.add((top.root, top.path))
        else:
            counts[top.root, top.path] = counts.get((top.root, top.path), 0) + 1
    return {top: count for top, count in counts.items() if count > _LARGE and top not in mixed}


def _place(run: Run, change: c.Change, paint: Paint, path: str = "", below: str | None = None) -> str:
    """Write what was changed and how; or several that are alike, in the directory at a path.

    `below` a directory, it is written without that.
    """
    sign, colour = SIGNS[change.change]
    where = "" if change.root == 0 else f"{run.roots[change.root]}/"
    name = where + (path or change.path) if below is None else change.path.removeprefix(f"{below}/")
    place = path_in_list(name) + ("/" if change.kind == c.DIRECTORY and not path else "")
    modes = ""
    if not path and c.has_new_mode(change) and change.before is not None and change.after is not None:
        modes = f" {change.before.mode:04o} → {change.after.mode:04o}"
    flags = f"  ({c.flags_in_words(change.flags)})" if change.flags else ""
    return f"{paint(sign, colour)} {place}{modes}{flags}"


def _fate(run: Run, change: c.Change, said: str) -> str:
    """Write what became of a change, where that needs a word; not for a reason that is `said` already."""
    why = printable(change.reason)
    if not why.startswith(UNDONE_BY):
        why = f"{change.verdict}: {why}" if why else change.verdict
    is_over = change.verdict == c.APPLIED or (run.draft is not None and run.state == "applied") or bool(said)
    return "" if is_over else f"  [{why}]"


def lines_by_directory(run: Run, paint: Paint, note: Callable[[c.Change], str] | None = None) -> Iterator[str]:
    """Write every change in a line; where they are many, below the directory that they are in.

    `note` says something of each, instead of what became of it.
    """
    said = _said_once(run)
    note = note or (lambda change: _fate(run, change, said))
    groups: dict[tuple[int, str], list[c.Change]] = {}
    for change in run.changed:
        groups.setdefault((change.root, change.path.rpartition("/")[0]), []).append(change)
    is_long = len(run.changed) > _MOST and len(groups) < len(run.changed)
    for (root, directory), group in groups.items():
        where = "" if root == 0 else f"{run.roots[root]}/"
        if not is_long or len(group) == 1:
            yield from (_place(run, change, paint) + note(change) for change in group)
            continue
        yield f"{printable(where + (directory or '.'))}/  {paint(f'{len(group)} of them', 'dim')}"
        yield from (f"  {_place(run, change, paint, below=directory)}{note(change)}" for change in group)


def event_line(event: Event, colour: Callable[[str, str], str]) -> str:
    """Write one event in a line: when, what, by whom."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    by = f"{event.user or event.uid}, {event.face}" + (f", {event.agent}" if event.agent else "")
    detail = f"  {printable(event.detail)}" if event.detail else ""
    return f"{colour(when, 'dim')}  {event.act:9}{detail}  {colour(f'({printable(by)})', 'dim')}"
