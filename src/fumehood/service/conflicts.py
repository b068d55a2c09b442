"""What others changed while a command ran: conflicts with it, what it built on that is gone, and who is run again.

And what they changed since, so that it is no longer as a run left it.
"""

from __future__ import annotations

import os
import stat

from fumehood.core import changes as c
from fumehood.core.judge import (
    CHANGED_SINCE,
    git_directories,
    is_git_note,
    keep_replacements_whole,
    object_store_of,
    repository_of,
)
from fumehood.core.masks import is_below
from fumehood.core.report import printable
from fumehood.linux.gitindex import NAME as INDEX
from fumehood.linux.gitindex import refreshed
from fumehood.linux.gitobjects import (
    has_read_theirs,
    keep_needed,
    keep_work_trees,
    leave_lost_work_trees,
    leave_theirs,
    takes_in_staged,
)
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import is_state_after, kind_of, matches_stamp, open_top, stamp_of, stat_each, walk
from fumehood.service import layers as layering
from fumehood.store.history import CHECKPOINT
from fumehood.store.places import home
from fumehood.store.search import applied_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import NoReturn

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
        and c.may_be_later(change.before.changed_ns, began)
        and (
            change.before.kind != c.DIRECTORY
            or (change.change == c.MODE and change.before.changed_ns > change.before.modified_ns)
        )
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
        if lock.verdict in (c.APPLIED, c.HELD) and repository_of(locked, gits):
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
    return {each for place, each in places.items() if place in moved and repository_of(place, gits)}


def drop_changes_without_base(store: Store, run: Run) -> c.Change | None:
    """Leave out what a run did to repositories on top of what was held, and thrown away while it ran; return one of it.

    A commit on top of that lacks its objects.
    """
    gone = _thrown_away(store, run) if _is_in_repository(run) else {}
    gits = git_directories(run.roots, run.changed) if gone else ()
    first = None
    for change in run.changed if gone else ():
        place = f"{run.roots[change.root]}/{change.path}"
        note_of = place.rpartition("/")[0] if is_git_note(place, gits) else ""
        name = gone.get(object_store_of(place, gits) or repository_of(place, gits) or note_of)
        if name is not None and change.verdict in (c.APPLIED, *c.WAITING):
            change.verdict = c.DISCARDED
            change.reason = f"run {store.history.name_of(name)}, which it builds on, was discarded meanwhile"
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
            git = repository_of(f"{roots[change.root]}/{change.path}", gits) if change.verdict == c.DISCARDED else ""
            if git:
                gone.setdefault(git, name)
    return gone


# ---- A run that conflicts with nothing but other runs is run once more, from the state that they left. Nothing that it
# did has left the hood: it reached no network, and what it wrote was not applied.


def yield_to_other_runs(store: Store, run: Run) -> None:
    """Forget a run that has conflicts if all that it conflicts with was made by other runs; raises RunAgain then.

    The project's lock is held. What a person changed after such a run is a conflict with the person.
    """
    first = place = ""
    makers = ChangeAuthors(store, run)
    for number, root in enumerate(run.roots):
        conflicts = [change for change in run.changed if change.root == number and change.verdict == c.CONFLICT]
        if not conflicts:
            continue
        with Closing(open_top(root)) as top:
            for change, status, is_reached in _in_the_way(number, top, conflicts):
                by = makers.of(change, status) if is_reached else makers.of_what_is_gone(change, top)
                if not by:
                    return
                if not first:
                    first = f"run {store.history.name_of(by)} changed {printable(change.path)} meanwhile"
                    place = f"{root}/{change.within or change.path}"
    if first:
        forget(store, run, first, place)


def check_conflicts_in_draft(store: Store, project: int, run: Run, *, may_run_again: bool) -> None:
    """Forget a run that changed what others of its draft changed meanwhile: one version would hide the other.

    Raises RunAgain then; where it can't be run again, it says so. The project's lock is held.
    """
    from fumehood.core.patterns import lies_in_cache
    from fumehood.service.held import unseen

    others = unseen(store, project, run)
    for change in run.changed if others else ():
        by = others.under(change) if change.verdict in c.WAITING and not lies_in_cache(change.path) else None
        if by is not None and may_run_again:
            reason = f"run {others.name(by)} changed {printable(change.path)} meanwhile"
            forget(store, run, reason, f"{run.roots[change.root]}/{change.path}")
        if by is not None:
            change.reason += f"; run {others.name(by)} changed it meanwhile, and one of both versions is hidden"


def yield_to_waiting_runs(store: Store, run: Run, place: str) -> None:
    """Forget a run that changes the place, or something in it, for which another is run again; raises RunAgain then.

    Else that one would be overtaken each time, and in the end be held, with all that builds on it.
    """
    for change in run.changed if place else ():
        if f"{run.roots[change.root]}/{change.path}/".startswith(f"{place}/"):
            forget(store, run, f"a command that is run again changes {printable(change.path)}", place)


def forget(store: Store, run: Run, reason: str, place: str) -> NoReturn:
    """Leave nothing of a run that is to be run again: what it met, and where, is told by RunAgain."""
    store.history.withdraw(run, reason)
    layering.drop(store.places, run.run)
    raise layering.RunAgain(reason, place)


def _in_the_way(
    number: int, top: int, conflicts: Sequence[c.Change]
) -> Iterator[tuple[c.Change, os.stat_result | None, bool]]:
    """Yield what lies where changes of a root met something else; of a tree that was to go, what is not as judged."""
    new = c.DirectorySet({(number, each.path) for each in conflicts if each.after and each.after.kind == c.DIRECTORY})
    trees = {
        (number, each.path) for each in conflicts
        if each.change != c.MODE and each.before is not None and each.before.kind == c.DIRECTORY
    }  # fmt: skip
    in_trees, paths = c.DirectorySet(trees), {change.path for change in conflicts}
    for change, status, is_reached in stat_each(top, conflicts):
        if status is None:
            # What would have come with a new directory is as it was before.
            if new.topmost(number, change.path) is None:
                yield change, status, is_reached
            continue
        is_top, tree = (number, change.path) in trees, in_trees.topmost(number, change.path)
        if not (is_top or tree) or change.before is None or not matches_stamp(change.before, status):
            yield change, status, is_reached
        elif is_top and tree is None:
            for path, entry in walk(top, change.path):
                if path not in paths:
                    yield c.Change(number, path, c.ADDED, kind_of(entry.st_mode), within=change.path), entry, True


class ChangeAuthors:
    """Which runs left paths as they are now; what was applied in a directory is read once for all paths in it."""

    def __init__(self, store: Store, run: Run) -> None:
        self._database, self._run = store.database, run
        self._applied: dict[tuple[int, str], dict[str, list[tuple[str, c.Change]]]] = {}

    def of(self, conflict: c.Change, status: os.stat_result | None) -> str:
        """Return the run that left a path as it is, or nothing where none did."""
        return next((name for name, change in self._latest(conflict) if is_state_after(change, status)), "")

    def of_what_is_gone(self, conflict: c.Change, top: int) -> str:
        """Return the run that took away a directory above a path, or nothing where none did."""
        above = [c.Change(conflict.root, each, c.DELETED, c.DIRECTORY) for each in c.directories_above(conflict.path)]
        for directory, status, _ in stat_each(top, reversed(above)):
            if status is None or not stat.S_ISDIR(status.st_mode):
                return self.of(directory, status)
        return ""

    def _latest(self, conflict: c.Change) -> Sequence[tuple[str, c.Change]]:
        directory = conflict.path.rpartition("/")[0]
        by_path = self._applied.get((conflict.root, directory))
        if by_path is None:
            by_path = self._applied[conflict.root, directory] = {}
            root = self._run.roots[conflict.root]
            for name, change in applied_in(self._database, self._run, root, directory):
                by_path.setdefault(change.path, []).append((name, change))
        return by_path.get(conflict.path, ())


# ---- What of a project is no longer as a run left it, or as a held one has seen it.

def paths_changed_since(roots: Sequence[str], changes: Sequence[c.Change]) -> list[tuple[int, str]]:
    """Return the places that are not as the changes expect to find them; the others are stamped anew."""
    moved = []
    tops, inside = apart(changes)
    for live, change, entry, is_reached in stat_changes(roots, tops):
        before = change.before
        if before is None or entry is None:
            if not is_reached or before is not None or entry is not None:
                moved.append((change.root, change.path))
        elif (now := _as_left(live, change.path, before, entry)) is None:
            moved.append((change.root, change.path))
        else:
            change.before = now
            if before.kind == c.DIRECTORY and change.change != c.MODE:
                expected = inside.get((change.root, change.path), ())
                moved += [(change.root, path) for path in _moved_inside(live, change.path, expected)]
    return moved


def apart(changes: Sequence[c.Change]) -> tuple[list[c.Change], dict[tuple[int, str], list[c.Change]]]:
    """Return the changes that stand by themselves, and, by the places of these, those that lie in them."""
    inside: dict[tuple[int, str], list[c.Change]] = {}
    for change in changes:
        if change.within is not None:
            inside.setdefault((change.root, change.within), []).append(change)
    return [change for change in changes if change.within is None], inside


def stat_changes(
    roots: Sequence[str], changes: Sequence[c.Change]
) -> Iterator[tuple[int, c.Change, os.stat_result | None, bool]]:
    """Yield the open root of each change, the change, what lies there now, and if its directory could be reached."""
    for number, root in enumerate(roots):
        mine = [change for change in changes if change.root == number]
        if mine:
            with Closing(open_top(root)) as live:
                for change, entry, is_reached in stat_each(live, mine):
                    yield live, change, entry, is_reached


def _as_left(live: int, path: str, before: c.Stamp, entry: os.stat_result) -> c.Stamp | None:
    """Return the stamp of what lies at a path now, if that is what a run left; a git index may be refreshed since."""
    return stamp_of(entry, before.meaning) if matches_stamp(before, entry) else refreshed(before, live, path, entry)


def _moved_inside(live: int, top: str, inside: Sequence[c.Change]) -> list[str]:
    """Return what was added to, taken from or changed in a directory that a run had put there."""
    expected = {change.path: change for change in inside if change.before is not None}
    moved = []
    try:
        for path, entry in walk(live, top):
            change = expected.pop(path, None)
            now = None if change is None or change.before is None else _as_left(live, path, change.before, entry)
            if change is None or now is None:
                moved.append(path)
            else:
                change.before = now
    except PermissionError:
        return [*moved, top]  # somebody has a directory in it that is closed to us
    return moved + list(expected)
