"""What others changed while a command ran: conflicts with it, and what it built on that is gone."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.judge import (
    CHANGED_SINCE,
    git_directories,
    is_note,
    keep_replacements_whole,
    objects_of,
    repository,
)
from fumehood.core.masks import is_below
from fumehood.linux.gitindex import NAME as INDEX
from fumehood.linux.gitobjects import (
    has_read_theirs,
    keep_needed,
    keep_work_trees,
    leave_lost_work_trees,
    leave_theirs,
    takes_in_staged,
)
from fumehood.store.history import CHECKPOINT
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fumehood.core.report import Run
    from fumehood.linux.gitindex import SeenIndexes
    from fumehood.linux.namespaces import Layer
    from fumehood.service.store import Store


def find_conflicts(store: Store, run: Run, layers: Sequence[Layer], indexes: SeenIndexes | None = None) -> None:
    """Mark what a person changed after the run had begun: their version stays, the run's waits.

    Before anything is recorded, because the scan came after the edit: later, the person's version would look like the
    one that the run had changed. Both times are the file system's own, so they can be compared. That of a directory
    says only that something in it changed, unless it is later than when that was: then its mode did. What lies on a
    held version is told by that. `indexes` are git's, as the command began with them.
    """
    if not run.changed:
        return
    began = os.stat(os.path.dirname(os.path.dirname(layers[0].upper))).st_mtime_ns
    if any(change.change == c.DELETED and "objects/" in change.path for change in run.changed):
        keep_needed(run.roots, run.changed, began)
    if any(change.path.endswith("/gitdir") for change in run.changed):
        keep_work_trees(run.roots, run.changed)
        leave_lost_work_trees(run.roots, run.changed, [layer.upper for layer in layers], home())
    if run.act != CHECKPOINT:
        _leave_locks(run)
    late = [
        change
        for change in run.changed
        if change.before is not None
        and c.is_later(change.before.changed_ns, began)
        and (change.before.kind != c.DIRECTORY or _is_another_mode(change))
        and change.verdict in (c.APPLIED, c.HELD)
    ]
    undone = _taken_back(store, run)
    late += undone.difference(late)
    if locks := _hidden_locks(run, late):
        run.changed = [change for change in run.changed if change not in locks]
        late = [change for change in late if change not in locks]
    if late and run.below:
        from fumehood.service.held import waiting

        below = waiting(store, run)
        late = [change for change in late if below.under(change) is None]
    if late:
        _mark(run, late, undone, layers, began, indexes)


def _mark(
    run: Run, late: Sequence[c.Change], undone: Collection[c.Change], layers: Sequence[Layer], began: int,
    indexes: SeenIndexes | None,
) -> None:  # fmt: skip
    """Let what was changed meanwhile be a conflict, unless the command has read it, or it has room beside the run's."""
    gits = git_directories(run.roots, run.changed)
    for change in sorted(late, key=lambda each: each.path.endswith(INDEX)):  # these wait with anything else of it
        upper = layers[change.root].upper
        if change not in undone and has_read_theirs(run.roots, gits, change, upper):
            continue
        if indexes and not undone and takes_in_staged(run.roots, run.changed, change, upper, indexes, began):
            continue
        change.reason = f"{CHANGED_SINCE}; {change.reason}" if change.flags and change.reason else CHANGED_SINCE
        change.verdict = c.CONFLICT
    leave_theirs(run.roots, run.changed)
    keep_replacements_whole(run.changed)


def _leave_locks(run: Run) -> None:
    """Leave out git's locks that a command left behind: whoever held them has ended with it."""
    locks = [each for each in run.changed if each.change == c.ADDED and each.path.endswith(".lock")]
    if not locks:
        return
    gits = git_directories(run.roots, run.changed)
    for lock in locks:
        locked = f"{run.roots[lock.root]}/{lock.path}".removesuffix(".lock")
        if lock.verdict in (c.APPLIED, c.HELD) and repository(locked, gits):
            lock.verdict, lock.reason = c.DISCARDED, "the git that held this lock has ended"


def _hidden_locks(run: Run, late: Sequence[c.Change]) -> list[c.Change]:
    """Return git's locks: a command that removes its own hides one that another git has taken at that place since."""
    locks = [change for change in late if change.change == c.DELETED and change.path.endswith(".lock")]
    if not locks:
        return []
    gits = git_directories(run.roots, run.changed)
    return [
        each for each in locks
        if ".git/" in each.path or any(is_below(f"{run.roots[each.root]}/{each.path}", git) for git in gits)
    ]  # fmt: skip


def _is_another_mode(change: c.Change) -> bool:
    before = change.before
    return change.change == c.MODE and before is not None and before.changed_ns > before.modified_ns


# ---- What it built on, and was taken away meanwhile. Of a repository, nothing on top of that can stay.


def _taken_back(store: Store, run: Run) -> set[c.Change]:
    """Return what a run would change of repositories where undos have too since: it may have read what they took back.

    A draft is compared with the project when it is applied.
    """
    if run.draft is not None or not _is_in_repository(run):
        return set()
    rows = store.database.rows(
        "SELECT undo.id FROM runs AS undo JOIN runs AS mine ON mine.id = ? AND undo.project = mine.project"
        " AND undo.number > mine.number WHERE undo.act = 'undo' AND undo.state = 'applied'", (run.run,),
    )  # fmt: skip
    undos, gits = [store.history.find(name) for (name,) in rows], git_directories(run.roots, run.changed)
    moved = {f"{undo.roots[each.root]}/{each.path}" for undo in undos for each in undo.changed}
    going = [each for each in run.changed if each.before is not None and each.verdict in (c.APPLIED, c.HELD)]
    places = {f"{run.roots[each.root]}/{each.path}": each for each in going}
    return {each for place, each in places.items() if place in moved and repository(place, gits)}


def leave_groundless(store: Store, run: Run) -> c.Change | None:
    """Leave out what a run did to repositories on top of what was held, and thrown away while it ran; return one of it.

    A commit on top of that lacks its objects.
    """
    gone = _thrown_away(store, run) if _is_in_repository(run) else {}
    gits = git_directories(run.roots, run.changed) if gone else ()
    first = None
    for change in run.changed if gone else ():
        place = f"{run.roots[change.root]}/{change.path}"
        note_of = place.rpartition("/")[0] if is_note(place, gits) else ""
        name = gone.get(objects_of(place, gits) or repository(place, gits) or note_of)
        if name is not None and change.verdict in (c.APPLIED, *c.WAITING):
            change.verdict = c.DISCARDED
            change.reason = f"run {store.history.name(name)}, which it builds on, was discarded meanwhile"
            first = first or change
    return first


def _is_in_repository(run: Run) -> bool:
    """Return True if a run may have changed what branches or an index say."""
    return any(change.path.endswith("index") or "refs/" in change.path for change in run.changed)


def _thrown_away(store: Store, run: Run) -> dict[str, str]:
    """Return the git directories of which a run saw a held state that was thrown away since, with whose it was."""
    gone: dict[str, str] = {}
    for name, _, was_decided_meanwhile, roots in store.history.decisions(run.below, run):
        changes = store.history.changes(name) if was_decided_meanwhile else []
        gits = git_directories(roots, changes)
        for change in changes:
            git = repository(f"{roots[change.root]}/{change.path}", gits) if change.verdict == c.DISCARDED else ""
            if git:
                gone.setdefault(git, name)
    return gone
