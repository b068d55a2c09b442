"""The report on a run as text, for a person or an agent: what it changed, what was blocked, and the next step."""

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
    shorten,
    summary_lines,
)
from fumehood.faces.cli.output import Paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from fumehood.core.report import Blocked, Run
    from fumehood.store.audit import Event

_MAX_LINES = 12  # about changes; more changes than that are grouped by directory
_GROUPED_BY = ("root", "verdict", "change", "reason", "flags")  # the fields in which the changes of a group are equal
_MIN_TREE_ENTRIES = 4  # in an added or deleted directory; with more, its entries are only counted
STATES = {"applied": "green", "held": "yellow", "failed": "red", "refused": "red", "undone": "cyan"}
SIGNS = {
    c.ADDED: ("+", "green"), c.MODIFIED: ("~", "yellow"), c.DELETED: ("-", "red"), c.MODE: ("m", "cyan"),
    c.TYPE: ("t", "cyan"),
}  # fmt: skip
_VERDICTS_IN_ORDER = (c.APPLIED, c.HELD, c.CONFLICT, c.UNSUPPORTED, c.DISCARDED)
_NEXT_STEPS = {
    "applied": "undo: fumehood undo {run}",
    "held": "look: fumehood diff {run}   then: {apply}  or  fumehood discard {run}   or: fumehood review",
}
_NEXT_STEPS_IN_DRAFT = (
    "look: fumehood draft diff {draft}   then: fumehood draft apply {draft}   or: fumehood undo {run}"
)
_HOW_TO_FORCE = "conflict: fumehood apply {run} {path} --force  takes the run's version, and saves what is there now"


def run_label(run: Run) -> str:
    """Return "#" and the run's number; its id if it has no number here, because it belongs to another project."""
    return run.name if run.name == run.run else f"#{run.name}"


def absolute_path(run: Run, change: c.Change) -> str:
    """Return the absolute path of a change."""
    root = run.roots[change.root]
    return root if change.path == "." else f"{root}/{change.path}"


def draft_or_session(run: Run, shown: Callable[[str], str]) -> str:
    """Return the draft that a run belongs to, else its session, else ""; `shown` formats the name."""
    if run.draft_name is not None:
        return f"draft {shown(run.draft_name)}"
    return "" if run.session is None else f"session {shown(run.session)}"


def print_run(run: Run, out: TextIO | None = None, *, is_first: bool = False) -> None:
    """Print what a run changed, what was blocked, and the next step; if it is a project's first, also where that is."""
    stream = sys.stderr if out is None else out
    paint = Paint(stream.fileno())
    prefix = paint("fumehood:", "bold")
    lines = [f"{prefix} project {printable(run.project)} (new)"] if is_first else []
    if run.timed_out:
        lines.append(f"{prefix} the time limit was reached; the command was ended")
    if not run.sandboxed:
        lines.append(f"{prefix} {paint('UNSANDBOXED', 'red')}: {printable(run.reason)}")
    if run.changed:
        lines.append(f"{prefix} {headline(run)}")
        lines += [f"  {line}" for line in _change_lines(run, paint)]
    for blocked in run.blocked:
        lines.append(f"  {paint(blocked.headline, 'red')}{blocked.line.removeprefix(blocked.headline)}")
    if run.changed and run.draft is not None:
        if run.state == "held":
            lines.append(f"  {paint(_NEXT_STEPS_IN_DRAFT.format(run=run.name, draft=run.draft_name), 'dim')}")
    elif run.changed and run.state in _NEXT_STEPS and run.act == "run":
        lines.append(f"  {paint(_NEXT_STEPS[run.state].format(run=run.name, apply=apply_command(run)), 'dim')}")
        conflict = next((change for change in run.changed if change.verdict == c.CONFLICT), None)
        if conflict is not None:
            lines.append(f"  {paint(_HOW_TO_FORCE.format(run=run.name, path=shell_path(conflict.path)), 'dim')}")
    stream.write("".join(f"{line}\n" for line in lines))
    stream.flush()


def apply_command(run: Run) -> str:
    """Return the command that applies what a run holds: with --force if everything that waits is a conflict."""
    force = "" if any(change.verdict == c.HELD for change in run.changed) else " --force"
    return f"fumehood apply {run.name}{force}"


def lines_for_agent(run: Run, blocked: Sequence[Blocked]) -> list[str]:
    """Return only what an agent can't know from the command's output: what did not happen, and how to undo the rest.

    `blocked` is the part of `run.blocked` that the agent was not told before.
    """
    lines = []
    if run.timed_out:
        lines.append("the time limit was reached; the command was ended")
    if not run.sandboxed:
        lines.append(f"UNSANDBOXED: {shorten(run.reason)}")
    expected = (c.APPLIED, c.DISCARDED) if run.draft is None else (c.APPLIED, c.DISCARDED, *c.WAITING)
    kept_back = [change for change in run.changed if change.verdict not in expected]
    groups, left_out = summary_lines(kept_back, _MAX_LINES)
    for group in groups:
        change = group.change
        path = quote_name(group.path if change.root == 0 else f"{run.roots[change.root]}/{group.path}")
        what = f"{change.change} {group.count} entries in" if group.count > 1 else change.change
        lines.append(f"{change.verdict}, not applied: {what} {path}: {shorten(change.reason)}")
    lines += [f"and {count} more: {kind}; fumehood show {run.name}" for kind, count in left_out.items()]
    lines += [each.line for each in blocked]
    if kept_back:
        lines.append(f"a person decides: {apply_command(run)}  or  fumehood discard {run.name}")
    if any(change.verdict == c.APPLIED for change in run.changed):
        lines.append(f"undo: fumehood undo {run.name}")
    return lines


_VERDICT_WORDS = {c.CONFLICT: "in conflict", c.UNSUPPORTED: "not supported"}


def headline(run: Run) -> str:
    """Sum up a run's changes in a few words, such as "3 changes applied, 1 held"."""
    verdicts = ["undone" if change.reason.startswith(UNDONE_BY) else change.verdict for change in run.changed]
    counts = {verdict: verdicts.count(verdict) for verdict in (*_VERDICTS_IN_ORDER, "undone") if verdict in verdicts}
    if run.state in ("undone", "failed"):
        counts = {run.state: len(verdicts)}
    if run.draft is not None and run.state == "applied":
        counts = {"taken over": len(verdicts)}  # its draft was applied
    if run.act == "undo" and c.APPLIED in counts:
        counts = {run.outcome if verdict == c.APPLIED else verdict: count for verdict, count in counts.items()}
    (first, count), *others = ((_VERDICT_WORDS.get(verdict, verdict), count) for verdict, count in counts.items())
    text = f"{how_many(count, 'change')} {first}"
    text += "".join(f", {count} {verdict}" for verdict, count in others) + deletions_note(run)
    reason = run.reason or _common_reason(run)
    return f"{text}: {printable(reason)}" if reason not in ("", IN_PART) else text


def _common_reason(run: Run) -> str:
    """Return the reason that all changes of a run share if none is applied: then only the headline says it."""
    outcomes = {(change.verdict, change.reason) for change in run.changed}
    verdict, reason = outcomes.pop() if outcomes else ("", "")
    return reason if not outcomes and len(run.changed) > 1 and verdict != c.APPLIED and not run.reason else ""


def deletions_note(run: Run) -> str:
    """Return the number of deletions in brackets, for the end of a headline, or ""."""
    count = sum(change.change == c.DELETED for change in run.changed)
    return f" ({how_many(count, 'deletion')})" if count else ""


def _change_lines(run: Run, paint: Paint) -> Iterator[str]:
    """Yield one line for each change; if they are too many, one for each whole tree and each group of similar changes.

    The counts in the lines, with 1 for each line that has none, add up to the number in the headline.
    """
    common_reason = _common_reason(run)
    if len(run.changed) <= _MAX_LINES and not any(".git/objects/" in change.path for change in run.changed):
        yield from (
            _change_text(run, change, paint) + _verdict_text(run, change, common_reason) for change in run.changed
        )
        return
    inside = _count_in_whole_trees(run.changed)
    shown = [
        change for change in run.changed
        if change.flags or change.within is None or (change.root, change.within) not in inside
    ]  # fmt: skip
    groups, left_out = summary_lines(shown, _MAX_LINES)
    for group in groups:
        change = group.change
        if group.count == 1:
            count = inside.get((change.root, change.path), 0)
            note = f"  {paint(f'and {count} in it', 'dim')}" if count else ""
            yield _change_text(run, change, paint) + _verdict_text(run, change, common_reason) + note
        else:
            top = "" if group.path == "./" else group.path
            count = sum(
                1 + inside.get((other.root, other.path), 0) for other in shown
                if other.path.startswith(top)
                and all(getattr(other, field) == getattr(change, field) for field in _GROUPED_BY)
            )  # fmt: skip
            path_text = _change_text(run, change, paint, path=f"{group.path}…")
            yield f"{path_text}{_verdict_text(run, change, common_reason)}  {paint(f'{count} of them', 'dim')}"
    if left_out or inside or any(group.count > 1 for group in groups):
        note = "".join(f"{count} more {kind}; " for kind, count in left_out.items())
        yield paint(f"{note}all of them: fumehood show {run.name}", "dim")


def _count_in_whole_trees(changes: Sequence[c.Change]) -> dict[tuple[int, str], int]:
    """Return the directories that are added or deleted whole, each with the number of entries that need no own line.

    A directory in which one entry has another change, verdict or reason is left out: its entries are listed.
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
    return {top: count for top, count in counts.items() if count > _MIN_TREE_ENTRIES and top not in mixed}


def _change_text(run: Run, change: c.Change, paint: Paint, path: str = "", inside: str | None = None) -> str:
    """Return a change as text: sign, path, new mode, flags.

    `path` replaces the path, for a group of changes. `inside` is a directory that is left out of the path.
    """
    sign, colour = SIGNS[change.change]
    where = "" if change.root == 0 else f"{run.roots[change.root]}/"
    name = where + (path or change.path) if inside is None else change.path.removeprefix(f"{inside}/")
    path_text = path_in_list(name) + ("/" if change.kind == c.DIRECTORY and not path else "")
    modes = ""
    if not path and c.has_new_mode(change) and change.before is not None and change.after is not None:
        modes = f" {change.before.mode:04o} → {change.after.mode:04o}"
    flags = f"  ({c.flags_in_words(change.flags)})" if change.flags else ""
    return f"{paint(sign, colour)} {path_text}{modes}{flags}"


def _verdict_text(run: Run, change: c.Change, common_reason: str) -> str:
    """Return the verdict and reason of a change in brackets; "" if it was applied or the headline said it for all."""
    text = printable(change.reason)
    if not text.startswith(UNDONE_BY):
        text = f"{change.verdict}: {text}" if text else change.verdict
    is_said = change.verdict == c.APPLIED or (run.draft is not None and run.state == "applied") or bool(common_reason)
    return "" if is_said else f"  [{text}]"


def lines_by_directory(run: Run, paint: Paint, note: Callable[[c.Change], str] | None = None) -> Iterator[str]:
    """Yield one line for each change; if they are many, indented below a line for their directory.

    `note` returns the end of a change's line, in place of its verdict.
    """
    common_reason = _common_reason(run)
    note = note or (lambda change: _verdict_text(run, change, common_reason))
    groups: dict[tuple[int, str], list[c.Change]] = {}
    for change in run.changed:
        groups.setdefault((change.root, change.path.rpartition("/")[0]), []).append(change)
    is_long = len(run.changed) > _MAX_LINES and len(groups) < len(run.changed)
    for (root, directory), group in groups.items():
        where = "" if root == 0 else f"{run.roots[root]}/"
        if not is_long or len(group) == 1:
            yield from (_change_text(run, change, paint) + note(change) for change in group)
            continue
        yield f"{printable(where + (directory or '.'))}/  {paint(f'{len(group)} of them', 'dim')}"
        yield from (f"  {_change_text(run, change, paint, inside=directory)}{note(change)}" for change in group)


def event_line(event: Event, paint: Callable[[str, str], str]) -> str:
    """Return one event as a line: when, what, by whom."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    by = f"{event.user or event.uid}, {event.face}" + (f", {event.agent}" if event.agent else "")
    detail = f"  {printable(event.detail)}" if event.detail else ""
    return f"{paint(when, 'dim')}  {event.act:9}{detail}  {paint(f'({printable(by)})', 'dim')}"
