"""Decide what becomes of each change: taken over, held for a person, or not taken over at all."""

from __future__ import annotations

from fumehood.core.changes import (
    APPLIED,
    DELETED,
    DISCARDED,
    HELD,
    TAKEN_OVER,
    TYPE,
    UNSUPPORTED,
    Change,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

APPLY, HOLD, DISCARD = "apply", "hold", "discard"


def judge(changes: Sequence[Change], mode: str) -> None:
    """Give every change its verdict and, where it is not `applied`, the reason in words."""
    for change in changes:
        change.verdict, change.reason = _verdict(change, mode)
    keep_replacements_whole(changes)


def _verdict(change: Change, mode: str) -> tuple[str, str]:
    if mode == DISCARD:
        return DISCARDED, "the run was asked to throw its changes away"
    if change.change != DELETED and change.kind not in TAKEN_OVER:
        return UNSUPPORTED, f"a {change.kind} is not taken over into a project"
    if mode == HOLD:
        return HELD, "the run was asked to hold its changes"
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
