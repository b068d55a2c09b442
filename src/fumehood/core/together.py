"""Changes that must share one fate: the state of a repository or database, or all of a run if a person wants it so."""

from __future__ import annotations

from fumehood.core import changes as c
from fumehood.core.judge import keep_replacements_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOLD_PATH, HOLD_ALL = "hold-path", "hold-all"
ON_CONFLICT = (HOLD_PATH, HOLD_ALL)
CHANGED_SINCE = "it changed in the project after the run began"

_FILES = ("HEAD", "index", "packed-refs")
_TREES = ("refs", "logs")
_OF_ANOTHER = ("worktrees", "modules")  # whose own state lies below, by name
JOURNALS = ("-wal", "-shm", "-journal")  # of SQLite, beside its database


def one_state(place: str) -> str:
    """Name the state that a path is a part of: a git directory, a database, else the path itself."""
    return repository(place) or database(place)


def database(place: str) -> str:
    """Return the database that a path is a journal of, else the path itself: what might be one is its own."""
    for journal in JOURNALS:
        if place.endswith(journal):
            return place[: -len(journal)]
    return place


def repository(place: str) -> str:
    """Return the git directory of whose state a path is a part, or nothing.

    HEAD, the index, refs and their logs tell one story together. Objects are only ever added, so they are apart.
    """
    if ".git/" not in place:
        return ""
    parts = place.split("/")
    at = next((n for n in range(len(parts) - 1, -1, -1) if parts[n].endswith(".git")), None)
    if at is None or at + 1 == len(parts):
        return ""
    git, rest = "/".join(parts[: at + 1]), parts[at + 1 :]
    if rest[0] == "modules":
        return _of_module(git, rest)
    if rest[0] == "worktrees":
        rest = rest[2:]
    return git if rest and _is_state(rest) else ""


def _of_module(git: str, rest: list[str]) -> str:
    """A submodule's name may have slashes, so its state is known by what its paths end with."""
    for end in range(2, len(rest)):
        if _is_state(rest[end:]):
            return "/".join((git, *rest[:end]))
    return ""


def _is_state(rest: list[str]) -> bool:
    first = rest[0]
    return first in _TREES or (len(rest) == 1 and (first in _FILES or first.endswith("_HEAD")))


def hold_together(changes: Sequence[c.Change], roots: Sequence[str], on_conflict: str = HOLD_PATH) -> bool:
    """Let what belongs together share a conflict; tell whether any more changes are held for it."""
    conflicts = [change for change in changes if change.verdict == c.CONFLICT]
    if not conflicts:
        return False
    if on_conflict == HOLD_ALL:
        return _hold_all(changes, conflicts[0])
    torn = {one_state(f"{roots[change.root]}/{change.path}"): change.path for change in reversed(conflicts)}
    more = False
    for change in changes:
        first = torn.get(one_state(f"{roots[change.root]}/{change.path}"))
        if first is not None and change.verdict == c.APPLIED:
            more = True
            change.verdict = c.CONFLICT
            change.reason = f"{first} changed in the project after the run began, and they are one state"
    return more


def hold_open(
    changes: Sequence[c.Change], roots: Sequence[str], busy: Mapping[tuple[int, str], str], on_conflict: str = HOLD_PATH
) -> None:
    """Hold what other programs have open, with what belongs to it; `busy` are these files, with the reason for each."""
    states = {one_state(f"{roots[root]}/{path}"): path for root, path in busy}
    first = next(iter(busy))[1]
    for change in changes:
        if change.verdict != c.APPLIED:
            continue
        reason = busy.get((change.root, change.path), "")
        partner = states.get(one_state(f"{roots[change.root]}/{change.path}"))
        if not reason and partner is not None:
            reason = f"{partner} is open in another program, and they are one state"
        elif not reason and on_conflict == HOLD_ALL:
            reason = f"{first} is open in another program, and then everything is held"
        if reason:
            change.verdict, change.reason = c.HELD, reason
    keep_replacements_whole(changes)


def free_of_conflicts(
    changes: Sequence[c.Change], meant: Sequence[c.Change], roots: Sequence[str]
) -> list[c.Change]:
    """Return those of a run's changes that can go while its conflicts stay.

    What would lie in one stays with it, so does a replaced tree that has one in it, and the rest of one state.
    """
    conflicts = [change for change in changes if change.verdict == c.CONFLICT]
    if not conflicts:
        return list(meant)
    places = c.Inside({(change.root, change.path) for change in conflicts if not c.is_mode_alone(change)})
    replaced = {(change.root, change.path) for change in changes if change.change in (c.TYPE, c.DELETED)}
    trees = replaced & {(change.root, change.within or "") for change in conflicts}
    torn = {one_state(f"{roots[change.root]}/{change.path}") for change in conflicts}
    return [
        change
        for change in meant
        if change.verdict != c.CONFLICT
        and places.topmost(change.root, change.path) is None
        and trees.isdisjoint(((change.root, change.path), (change.root, change.within or "")))
        and one_state(f"{roots[change.root]}/{change.path}") not in torn
    ]


def _hold_all(changes: Sequence[c.Change], first: c.Change) -> bool:
    going = [change for change in changes if change.verdict == c.APPLIED]
    for change in going:
        change.verdict, change.reason = c.HELD, f"{first.path} is a conflict, and then everything is held"
    return bool(going)
