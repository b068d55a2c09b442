"""Decide what becomes of each change: taken over, held for a person, or not taken over at all."""

from __future__ import annotations

from fumehood.core.changes import (
    ADDED,
    APPLIED,
    DELETED,
    DIRECTORY,
    DISCARDED,
    HELD,
    TAKEN_OVER,
    TYPE,
    UNSUPPORTED,
    Change,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fumehood.core.concern import Concern
    from fumehood.core.dependence import Waiting

APPLY, HOLD, DISCARD = "apply", "hold", "discard"


def cut_short(
    *, limit: str = "", signals: Sequence[str] = (), is_cancelled: bool = False, is_timed_out: bool = False
) -> str:
    """Say what ended a command before its own end, so that its changes are held; nothing where they are taken as asked.

    Half of what a command does can be worse than none of it, and whoever asked for it has not seen what came of it. A
    person who ends one with Ctrl-C at their terminal has: that is none of these `signals`.
    """
    if limit:
        return f"ended by a limit: {limit}"
    if signals:
        return f"ended by a signal: {signals[0]}"
    if is_cancelled:
        return "ended by the program that asked for it"
    return "ended by the time limit" if is_timed_out else ""


def judge(
    changes: Sequence[Change],
    mode: str,
    concerns: Mapping[int, Concern] | None = None,
    apart: Collection[tuple[int, str]] = (),
    waiting: Waiting | None = None,
) -> None:
    """Give every change its verdict and, where it is not `applied`, the reason in words.

    `concerns` tell, by place in the list, which changes the host would act on by itself, and which run when a
    person builds: those are held, these are applied and flagged. `apart` are other file systems mounted inside
    a root, by its number and their path: nothing can be swapped into those. `waiting` is what earlier runs held:
    what was built on that waits with it.
    """
    known = {} if concerns is None else concerns
    for place, change in enumerate(changes):
        found = known.get(place)
        change.verdict, change.reason = _verdict(change, mode, found)
        for root, path in apart:
            if change.root == root and f"{change.path}/".startswith(f"{path}/"):
                change.verdict, change.reason = UNSUPPORTED, f"another file system is mounted at {path}"
        if found is not None:
            change.flags = (*change.flags, found.flag)
    if waiting is not None:
        from fumehood.core.dependence import hold_what_builds_on

        hold_what_builds_on(changes, waiting)
    keep_replacements_whole(changes)
    if known or waiting:
        _hold_shells(changes)


def _hold_shells(changes: Sequence[Change]) -> None:
    """Hold a new directory in which everything is held: without that it would be an empty shell."""
    full: set[tuple[int, str]] = set()
    needed: set[tuple[int, str]] = set()
    for change in reversed(changes):  # what lies in a directory comes after it
        own, above = (change.root, change.path), (change.root, change.path.rpartition("/")[0])
        is_directory = change.kind == DIRECTORY
        if not is_directory or own in full:
            full.add(above)
        if own in needed if is_directory else change.verdict == APPLIED:
            needed.add(above)
    shells: set[tuple[int, str]] = set()
    for change in changes:
        if change.change != ADDED or change.kind != DIRECTORY or change.verdict != APPLIED:
            continue
        own, above = (change.root, change.path), (change.root, change.path.rpartition("/")[0])
        if own in full and own not in needed:
            change.verdict, change.reason = HELD, "all that is in it is held"
        elif above in shells:
            change.verdict, change.reason = HELD, "all else in the directory above is held"
        else:
            continue
        shells.add(own)


def _verdict(change: Change, mode: str, found: Concern | None) -> tuple[str, str]:
    if mode == DISCARD:
        return DISCARDED, "the run was asked to throw its changes away"
    if change.change != DELETED and change.kind not in TAKEN_OVER:
        return UNSUPPORTED, f"a {change.kind} is not taken over into a project"
    if mode == HOLD:
        return HELD, "the run was asked to hold its changes"
    if found is not None and found.held:
        return HELD, found.reason
    return APPLIED, ""


def keep_replacements_whole(changes: Sequence[Change]) -> None:
    """Hold a replaced or deleted directory together with what lies in it.

    A file can't become half a directory, nor can a directory go while something in it stays.
    """
    tops = {(c.root, c.path): c for c in changes if c.within is None and c.change in (TYPE, DELETED)}
    for change in changes:
        if change.within is None or change.verdict == APPLIED:
            continue
        top = tops.get((change.root, change.within))
        if top is not None and top.verdict == APPLIED:
            top.verdict, top.reason = HELD, f"{change.path} in it is {change.verdict}"
    for change in changes:
        top = tops.get((change.root, change.within)) if change.within is not None else None
        if top is not None and top.verdict != APPLIED and change.verdict == APPLIED:
            change.verdict, change.reason = top.verdict, f"{top.path} is {top.verdict}"
