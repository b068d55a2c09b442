"""Conflicts: what others changed while a command ran, or since; and which run then gives way and is run again."""

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
from fumehood.core.paths import is_below
from fumehood.core.report import printable
from fumehood.linux.gitindex import INDEX_NAME as INDEX
from fumehood.linux.gitindex import equivalent_stamp
from fumehood.linux.gitobjects import (
    builds_on_project_ref,
    drop_harmless_conflicts,
    drop_lost_work_trees,
    keep_objects_in_use,
    keep_unseen_work_trees,
    merges_staged_entries,
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
    """Make conflicts of the changes to paths that a person changed after the run had begun: their version stays.

    This must come before anything is recorded: the scan came after the person's edit, so from the record it would look
    as if the run had changed the person's version. Both times are the file system's own, so they can be compared. A
    directory's ctime changes with its content too: only one that is later than its mtime tells of a changed mode.
    A change on top of a held version is compared with that version instead. `indexes` are the git indexes as they were
    when the command began.
    """
    if not run.changed:
        return
    began = os.stat(os.path.dirname(os.path.dirname(layers[0].upper))).st_mtime_ns
    if any(change.change == c.DELETED and "objects/" in change.path for change in run.changed):
        keep_objects_in_use(run.roots, run.changed, began)
    if any(change.path.endswith("/gitdir") for change in run.changed):
        keep_unseen_work_trees(run.roots, run.changed)
        drop_lost_work_trees(run.roots, run.changed, [layer.upper for layer in layers], home())
    if run.act != CHECKPOINT:
        _discard_stale_locks(run)
    changed_meanwhile = [change for change in run.changed if _was_changed_since(change, began)]
    undone = _changes_over_undone(store, run)
    changed_meanwhile += undone.difference(changed_meanwhile)
    if locks := _locks_of_others(run, changed_meanwhile):
        run.changed = [change for change in run.changed if change not in locks]
        changed_meanwhile = [change for change in changed_meanwhile if change not in locks]
    if changed_meanwhile and run.below:
        from fumehood.service.held import held_changes_below

        below = held_changes_below(store, run)
        changed_meanwhile = [change for change in changed_meanwhile if below.base_run_of(change) is None]
    if changed_meanwhile:
        _mark_conflicts(run, changed_meanwhile, undone, layers, began, indexes)


def _was_changed_since(change: c.Change, began: int) -> bool:
    before = change.before
    if before is None or change.verdict not in (c.APPLIED, c.HELD) or not c.may_be_later(before.changed_ns, began):
        return False
    return before.kind != c.DIRECTORY or (change.change == c.MODE and before.changed_ns > before.modified_ns)


def _mark_conflicts(
    run: Run, changed_meanwhile: Sequence[c.Change], undone: Collection[c.Change], layers: Sequence[Layer], began: int,
    indexes: SeenIndexes | None,
) -> None:  # fmt: skip
    """Make conflicts of these changes, unless the command has seen the person's version, or both can be merged."""
    gits = git_directories(run.roots, run.changed)
    # Indexes come last: an index waits if anything else of its repository does.
    for change in sorted(changed_meanwhile, key=lambda each: each.path.endswith(INDEX)):
        upper = layers[change.root].upper
        if change not in undone and builds_on_project_ref(run.roots, gits, change, upper):
            continue
        if indexes and not undone and merges_staged_entries(run.roots, run.changed, change, upper, indexes, began):
            continue
        change.reason = f"{CHANGED_SINCE}; {change.reason}" if change.flags and change.reason else CHANGED_SINCE
        change.verdict = c.CONFLICT
    drop_harmless_conflicts(run.roots, run.changed)
    keep_replacements_whole(run.changed)


def _discard_stale_locks(run: Run) -> None:
    """Discard git lock files that the command left behind: the process that held them has ended with it."""
    locks = [each for each in run.changed if each.change == c.ADDED and each.path.endswith(".lock")]
    if not locks:
        return
    gits = git_directories(run.roots, run.changed)
    for lock in locks:
        locked = f"{run.roots[lock.root]}/{lock.path}".removesuffix(".lock")
        if lock.verdict in (c.APPLIED, c.HELD) and repository_of(locked, gits):
            lock.verdict, lock.reason = c.DISCARDED, "the git that held this lock has ended"


def _locks_of_others(run: Run, changed_meanwhile: Sequence[c.Change]) -> list[c.Change]:
    """Return deletions of git lock files that are somebody else's.

    The command removed its own lock; another git has created one at the same path since.
    """
    locks = [change for change in changed_meanwhile if change.change == c.DELETED and change.path.endswith(".lock")]
    if not locks:
        return []
    gits = git_directories(run.roots, run.changed)
    return [
        each for each in locks
        if ".git/" in each.path or any(is_below(f"{run.roots[each.root]}/{each.path}", git) for git in gits)
    ]  # fmt: skip


# ---- Repositories: a commit on top of something that was taken away meanwhile lacks its objects, so it can't stay.


def _changes_over_undone(store: Store, run: Run) -> set[c.Change]:
    """Return changes to paths of repositories that an undo has also changed since the run began.

    The command may have read what the undo took back. A draft is compared with the project when it is applied.
    """
    if run.draft is not None or not _is_in_repository(run):
        return set()
    rows = store.database.rows(
        "SELECT undo.id FROM runs AS undo JOIN runs AS mine ON mine.id = ? AND undo.project = mine.project"
        " AND undo.number > mine.number WHERE undo.act = 'undo' AND undo.state = 'applied'", (run.run,),
    )  # fmt: skip
    undos, gits = [store.history.find(name) for (name,) in rows], git_directories(run.roots, run.changed)
    changed_paths = {f"{undo.roots[each.root]}/{each.path}" for undo in undos for each in undo.changed}
    applied_changes = [each for each in run.changed if each.before is not None and each.verdict in (c.APPLIED, c.HELD)]
    places = {f"{run.roots[each.root]}/{each.path}": each for each in applied_changes}
    return {each for place, each in places.items() if place in changed_paths and repository_of(place, gits)}


def drop_changes_without_base(store: Store, run: Run) -> c.Change | None:
    """Discard changes to repositories that build on a held run which was discarded meanwhile; return the first one.

    A commit on top of that run lacks its objects.
    """
    discarded = _discarded_repositories(store, run) if _is_in_repository(run) else {}
    gits = git_directories(run.roots, run.changed) if discarded else ()
    first_dropped = None
    for change in run.changed if discarded else ():
        place = f"{run.roots[change.root]}/{change.path}"
        note_of = place.rpartition("/")[0] if is_git_note(place, gits) else ""
        name = discarded.get(object_store_of(place, gits) or repository_of(place, gits) or note_of)
        if name is not None and change.verdict in (c.APPLIED, *c.WAITING):
            change.verdict = c.DISCARDED
            change.reason = f"run {store.history.name_of(name)}, which it builds on, was discarded meanwhile"
            first_dropped = first_dropped or change
    return first_dropped


def _is_in_repository(run: Run) -> bool:
    """Return True if a run may have changed a branch or an index."""
    return any(change.path.endswith("index") or "refs/" in change.path for change in run.changed)


def _discarded_repositories(store: Store, run: Run) -> dict[str, str]:
    """Return git directories that the run saw as a held run had left them, if that was discarded since: with its id."""
    discarded: dict[str, str] = {}
    for name, _, was_decided_meanwhile, roots in store.history.decisions(run.below, run):
        changes = store.history.changes(name) if was_decided_meanwhile else []
        gits = git_directories(roots, changes)
        for change in changes:
            git = repository_of(f"{roots[change.root]}/{change.path}", gits) if change.verdict == c.DISCARDED else ""
            if git:
                discarded.setdefault(git, name)
    return discarded


# ---- A run that conflicts only with other runs is run again, from the state that they left. Nothing that it did has
# left the hood: it reached no network, and nothing that it wrote was applied.


def yield_to_other_runs(store: Store, run: Run) -> None:
    """If every conflict of a run is with other runs, forget it and raise RunAgain; the project's lock is taken.

    If a person changed a path after such a run, that is a conflict with the person.
    """
    reason = place = ""
    authors = ChangeAuthors(store, run)
    for number, root in enumerate(run.roots):
        conflicts = [change for change in run.changed if change.root == number and change.verdict == c.CONFLICT]
        if not conflicts:
            continue
        with Closing(open_top(root)) as top:
            for change, status, is_reached in _conflicting_entries(number, top, conflicts):
                if is_reached:
                    author = authors.run_that_left(change, status)
                else:
                    author = authors.run_that_removed_parent(change, top)
                if not author:
                    return
                if not reason:
                    reason = f"run {store.history.name_of(author)} changed {printable(change.path)} meanwhile"
                    place = f"{root}/{change.within or change.path}"
    if reason:
        forget_and_run_again(store, run, reason, place)


def check_conflicts_in_draft(store: Store, project: int, run: Run, *, may_run_again: bool) -> None:
    """If other runs of its draft changed the same paths meanwhile, forget the run and raise RunAgain.

    Both versions would lie in the draft, and one would hide the other. If it can't be run again, the reasons of its
    changes say so. The project's lock is taken.
    """
    from fumehood.core.patterns import lies_in_cache
    from fumehood.service.held import unseen_held_changes

    others = unseen_held_changes(store, project, run)
    for change in run.changed if others else ():
        author = others.base_run_of(change) if change.verdict in c.WAITING and not lies_in_cache(change.path) else None
        if author is not None and may_run_again:
            reason = f"run {others.name(author)} changed {printable(change.path)} meanwhile"
            forget_and_run_again(store, run, reason, f"{run.roots[change.root]}/{change.path}")
        if author is not None:
            change.reason += f"; run {others.name(author)} changed it meanwhile, and one of both versions is hidden"


def yield_to_waiting_runs(store: Store, run: Run, place: str) -> None:
    """If another command is being run again because of a place that this run changes, forget this one: raise RunAgain.

    Else the other command would conflict each time, and in the end be held, with all that builds on it.
    """
    for change in run.changed if place else ():
        if f"{run.roots[change.root]}/{change.path}/".startswith(f"{place}/"):
            forget_and_run_again(store, run, f"a command that is run again changes {printable(change.path)}", place)


def forget_and_run_again(store: Store, run: Run, reason: str, place: str) -> NoReturn:
    """Remove the run from the records and the disk, and raise RunAgain with the reason and the conflict's place."""
    store.history.withdraw(run, reason)
    layering.drop(store.places, run.run)
    raise layering.RunAgain(reason, place)


def _conflicting_entries(
    number: int, top: int, conflicts: Sequence[c.Change]
) -> Iterator[tuple[c.Change, os.stat_result | None, bool]]:
    """Yield the entries at which changes of one root conflicted, with their status and whether they could be reached.

    Of a directory tree that was to be deleted or replaced, yield the entries in it that differ from what was judged.
    """
    new = c.DirectorySet({(number, each.path) for each in conflicts if each.after and each.after.kind == c.DIRECTORY})
    trees = {
        (number, each.path) for each in conflicts
        if each.change != c.MODE and each.before is not None and each.before.kind == c.DIRECTORY
    }  # fmt: skip
    in_trees, paths = c.DirectorySet(trees), {change.path for change in conflicts}
    for change, status, is_reached in stat_each(top, conflicts):
        if status is None:
            # An entry that would have come with a new directory: nothing is there, as before.
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
    """Finds which run left a path as it is now. Records are read once for all paths of a directory."""

    def __init__(self, store: Store, run: Run) -> None:
        self._database, self._run = store.database, run
        self._applied: dict[tuple[int, str], dict[str, list[tuple[str, c.Change]]]] = {}

    def run_that_left(self, conflict: c.Change, status: os.stat_result | None) -> str:
        """Return the id of the run that left a path as it is now, or ""."""
        return next((name for name, change in self._latest(conflict) if is_state_after(change, status)), "")

    def run_that_removed_parent(self, conflict: c.Change, top: int) -> str:
        """Return the id of the run that removed a directory above a path, or ""."""
        above = [c.Change(conflict.root, each, c.DELETED, c.DIRECTORY) for each in c.directories_above(conflict.path)]
        for directory, status, _ in stat_each(top, reversed(above)):
            if status is None or not stat.S_ISDIR(status.st_mode):
                return self.run_that_left(directory, status)
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


# ---- What of a project is no longer as a run left it, or as a held run has seen it.

def paths_changed_since(roots: Sequence[str], changes: Sequence[c.Change]) -> list[tuple[int, str]]:
    """Return the places whose entries differ from what the changes expect; `before` of the others is renewed."""
    changed_paths = []
    tops, inside = split_by_tree(changes)
    for live, change, entry, is_reached in stat_changes(roots, tops):
        before = change.before
        if before is None or entry is None:
            if not is_reached or before is not None or entry is not None:
                changed_paths.append((change.root, change.path))
        elif (now := _stamp_if_unchanged(live, change.path, before, entry)) is None:
            changed_paths.append((change.root, change.path))
        else:
            change.before = now
            if before.kind == c.DIRECTORY and change.change != c.MODE:
                expected = inside.get((change.root, change.path), ())
                changed_paths += [(change.root, path) for path in _paths_changed_in_tree(live, change.path, expected)]
    return changed_paths


def split_by_tree(changes: Sequence[c.Change]) -> tuple[list[c.Change], dict[tuple[int, str], list[c.Change]]]:
    """Return the changes that stand by themselves, and those that lie inside a tree, by the place of that tree."""
    inside: dict[tuple[int, str], list[c.Change]] = {}
    for change in changes:
        if change.within is not None:
            inside.setdefault((change.root, change.within), []).append(change)
    return [change for change in changes if change.within is None], inside


def stat_changes(
    roots: Sequence[str], changes: Sequence[c.Change]
) -> Iterator[tuple[int, c.Change, os.stat_result | None, bool]]:
    """Yield each change with its open root, the status of what lies there now, and whether it could be reached."""
    for number, root in enumerate(roots):
        mine = [change for change in changes if change.root == number]
        if mine:
            with Closing(open_top(root)) as live:
                for change, entry, is_reached in stat_each(live, mine):
                    yield live, change, entry, is_reached


def _stamp_if_unchanged(live: int, path: str, before: c.Stamp, entry: os.stat_result) -> c.Stamp | None:
    """Return the current stamp of a path if it is as a run left it, else None; git may have refreshed an index."""
    if matches_stamp(before, entry):
        return stamp_of(entry, before.meaning)
    return equivalent_stamp(before, live, path, entry)


def _paths_changed_in_tree(live: int, top: str, inside: Sequence[c.Change]) -> list[str]:
    """Return the paths that were added, removed or changed in a directory that a run had made."""
    expected = {change.path: change for change in inside if change.before is not None}
    changed_paths = []
    try:
        for path, entry in walk(live, top):
            change = expected.pop(path, None)
            before = None if change is None else change.before
            now = None if before is None else _stamp_if_unchanged(live, path, before, entry)
            if change is None or now is None:
                changed_paths.append(path)
            else:
                change.before = now
    except PermissionError:
        return [*changed_paths, top]  # it contains a directory that we may not read
    return changed_paths + list(expected)
