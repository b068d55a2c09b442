"""A person decides about held changes: apply or discard them, all of a run or some of its paths."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.changes import swaps_no_directory
from fumehood.core.judge import CHANGED_SINCE, HeldChanges, is_mounted_on, keep_replacements_whole, without_conflicts
from fumehood.core.paths import is_in
from fumehood.core.questions import digest_of, held_digest
from fumehood.core.report import Run, printable, shell_path
from fumehood.core.text_diff import text_with_hunks
from fumehood.errors import ApplyFailed, BadRequest, ChangedMeanwhile
from fumehood.linux.copying import copy_with_content
from fumehood.linux.gitindex import equivalent_stamp
from fumehood.linux.gitobjects import keep_objects_in_use
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.namespaces import mounts_inside
from fumehood.linux.nofollow import matches_stamp, open_below, open_top, split, stamp_of
from fumehood.service import held as held_runs
from fumehood.service import layers as layering
from fumehood.service.apply import apply_changes, mark_conflict
from fumehood.service.conflicts import paths_changed_since, stat_changes
from fumehood.service.differences import difference_of
from fumehood.service.restore import put_in_place
from fumehood.service.settle import (
    DISCARDED,
    FAILED,
    HELD,
    change_outcomes,
    changes_at,
    hold_all_changes,
    record_files,
    record_outcome,
    state_of,
    with_dependent_changes,
)
from fumehood.service.versions import contents
from fumehood.store.audit import first_paths
from fumehood.store.history import APPLYING, RUNNING, SETTLING, UNFINISHED
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from fumehood.service.store import Store
    from fumehood.store.projects import Project


APPLIED_EARLIER = "done"  # the verdict in the journal of changes that the same run had applied before
STOPPED_RUNNING = "Fumehood was stopped while the command ran"
BY_FORCE = "a person takes it by force"  # the reason in the journal: if it is taken back, it is a conflict again


def apply_held(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", force: bool = False,
    expected: str = "",
) -> Run:  # fmt: skip
    """Apply what a run holds. With `force`, also conflicts, and files that other programs have open.

    A conflict's version in the project is then saved in the run's layer first, like any original.
    `expected` is the digest of what the person was shown (`shown_digest`); anything else raises ChangedMeanwhile.
    """
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld():
        unmounted = _hold_unmounted(store, current_run(store, project, run), paths, here)
        run, waiting = _require_held(store, project, run, paths, here, expected, into_project=True)
        layering.require_roots_exist(run.roots, waiting)
        if not force:
            waiting = _leave_conflicts(run, waiting)
        _refuse_if_base_is_held(store, run, waiting)
        others_run = store.has_running_command(project.id)
        held_runs.retire_folds_of(store, project.id, run.run, others_run=others_run)
        if force:
            run.changed, waiting = _rejudge(store, run, waiting)
        elif unmounted:
            waiting = _recompare_unmounted(store, run, waiting, unmounted)
        has_new_stamps = force or bool(unmounted) or _update_stamps(run, waiting) or bool(run.below)
        failure = _apply(
            store, project, run, waiting, has_new_stamps=has_new_stamps, even_open=force, others_run=others_run
        )
        if failure is not None:
            hint = f"the changes are still held: fumehood show {run.name}"
            raise ApplyFailed(failure.message, hint=hint) from failure
        if run.state != HELD and not others_run:
            held_runs.drop_layer_if_unneeded(store, run)
    return run


def apply_edited(
    store: Store, project: Project, run: Run, path: str, edit: Callable[[bytes, bytes], bytes], *, here: str = "",
    expected: str = "",
) -> Run:  # fmt: skip
    """Apply one held file as a person edits it: `edit` gets the project's and the run's content, and returns the new.

    That is a run of its own, which can be undone. Then the run's version is discarded; if the process dies between the
    two, that is still held. `expected` is the digest of the two versions that were shown (`versions_digest`).
    """
    trees_lock = store.lock_held_trees(project.id, settling=True)
    with store.lock_project(project.id), trees_lock, InterruptsHeld() as interrupts:
        run, waiting = _require_held(store, project, run, [path], here, into_project=True)
        change = waiting[0]
        if len(waiting) != 1 or change.kind != c.FILE or change.change == c.DELETED:
            raise BadRequest(
                "only one file at a time can be taken over in part, or as you edit it",
                hint=f"fumehood show {run.name}",
            )
        if not difference_of(store, run, change).shown:
            raise BadRequest(
                f"{printable(change.path)} can't be taken over in part: it is too long, or not a text",
                hint=f"fumehood apply {run.name} {shell_path(change.path)} takes all of it",
            )
        old, new = contents(store, run, change)
        if expected and versions_digest(run, change, old, new) != expected:
            raise changed_since_shown(run)
        _refuse_if_base_is_held(store, run, waiting)
        _refuse_if_built_upon(store, project, run, waiting)
        content = edit(old, new)
        edited = Run(
            run=new_id(), project=project.path, command=f"merge {change.path} of run {run.number}", cwd=project.path,
            state=APPLYING, act="merge", of=run.run, started_at=time.time(), roots=run.roots,
        )  # fmt: skip

        def write(target: int, name: str) -> None:
            parent, held_name = split(change.path)
            with (
                Closing(open_top(store.places.layer(run.run, change.root, "held"))) as top,
                Closing(open_below(top, parent)) as directory,
            ):
                copy_with_content(directory, held_name, target, name, content)

        put_in_place(store, project, edited, change.root, change.path, write, interrupts)
        _discard(store, project, run, waiting, f"a person took it over as edited, by run {edited.number}")
    return edited


def apply_hunks(
    store: Store, project: Project, run: Run, path: str, wanted: Collection[int], *, here: str = "", expected: str = ""
) -> Run:
    """Apply some hunks of a held file, counted from 0 as its difference shows them; the other hunks are discarded."""

    def edit(old: bytes, new: bytes) -> bytes:
        before, after = (each.decode(errors="surrogateescape") for each in (old, new))
        return text_with_hunks(before, after, wanted).encode(errors="surrogateescape")

    return apply_edited(store, project, run, path, edit, here=here, expected=expected)


def versions_digest(run: Run, change: c.Change, old: bytes, new: bytes) -> str:
    """Return the digest of the two versions of one held file that a person is shown."""
    return digest_of(held_digest(run, [change]), *(each.decode("latin-1") for each in (old, new)))


def shown_digest(run: Run, paths: Sequence[str] = (), *, here: str = "", into_project: bool = True) -> str:
    """Return the digest of what a run holds at some paths, for `expected`, from the run as it is shown."""
    return held_digest(run, held_changes_at(run, paths, here=here, into_project=into_project))


def changed_since_shown(run: Run) -> ChangedMeanwhile:
    """Return the error for a decision about a run that holds something else than the person was shown."""
    return ChangedMeanwhile(
        f"what run {run.name} holds has changed since it was shown: nothing was done",
        hint=f"fumehood show {run.name}, then decide again",
    )


def _require_held(
    store: Store, project: Project, run: Run, paths: Sequence[str], here: str, expected: str = "", *, into_project: bool
) -> tuple[Run, list[c.Change]]:
    """Return a run as it is now, and its held changes at some paths, to be applied (`into_project`) or discarded."""
    run = current_run(store, project, run)
    if run.state in UNFINISHED:
        # Its command is still running, or has ended but can't be settled.
        why = store.unsettled.get(run.run)
        if why is None:
            raise BadRequest(f"run {run.name} has not ended yet", hint=f"wait for it: fumehood show {run.name}")
        raise BadRequest(
            f"run {run.name} was cut short, and what it wrote can't be looked at yet: {why}",
            hint=f"once that is fixed, the next command holds it; fumehood discard {run.name} throws all of it away",
        )
    if run.state != HELD:
        # When a run is undone, its held changes go with it, and redo brings them back.
        is_gone = run.state == "undone" and any(change.verdict in c.WAITING for change in run.changed)
        hint = f"fumehood {'redo' if is_gone else 'show'} {run.name}"
        raise BadRequest(f"run {run.name} holds nothing: it is {run.state}", hint=hint)
    if into_project and not os.path.isdir(store.places.run(run.run)):
        raise BadRequest(f"what run {run.name} wrote is no longer kept", hint=f"fumehood discard {run.name}")
    waiting = held_changes_at(run, paths, here=here, into_project=into_project)
    if into_project and run.draft is not None:
        raise BadRequest(
            f"run {run.name} is in draft {run.draft_name}, which is applied as a whole",
            hint=f"fumehood draft apply {run.draft_name}",
        )
    if expected and held_digest(run, waiting) != expected:
        raise changed_since_shown(run)
    return run, waiting


def _hold_unmounted(store: Store, run: Run, paths: Sequence[str], here: str) -> set[tuple[int, str]]:
    """Hold changes that could not be applied because of a mount that is gone now; return their places."""
    if run.state in (*UNFINISHED, "undone"):
        return set()
    changes = changes_at(run, paths, here=here)
    stuck = [change for change in changes if is_mounted_on(change)]
    mounts = [mount for root in run.roots for mount in mounts_inside(root)] if stuck else []
    free = [change for change in stuck if not is_in(f"{run.roots[change.root]}/{change.path}", mounts)]
    if stuck and not os.path.isdir(store.places.run(run.run)):
        raise BadRequest(f"what run {run.name} wrote is no longer kept", hint="run the command again")
    if stuck and not free and all(change.verdict not in c.WAITING for change in changes):
        raise BadRequest(printable(stuck[0].reason), hint=f"unmount it, then: fumehood apply {run.name}")
    if free:
        for change in free:
            change.verdict, change.reason = c.HELD, "something was mounted there"
        run.state = HELD
        record_outcome(store, run, outcome_changed=True)
    return {(change.root, change.path) for change in free}


def _recompare_unmounted(
    store: Store, run: Run, waiting: Sequence[c.Change], unmounted: set[tuple[int, str]]
) -> list[c.Change]:
    """Compare changes of a mount with the files that lay below it; refuse if these changed since the run began."""
    mine = [change for change in waiting if (change.root, change.path) in unmounted]
    run.changed, compared = _rejudge(store, run, mine)
    began = int(run.started_at * 1e9)
    for change in compared:
        if change.before is not None and change.before.kind != c.DIRECTORY and change.before.changed_ns > began:
            raise BadRequest(
                f"{printable(change.path)} changed in the project after run {run.name} began",
                hint=f"fumehood apply {run.name} --force takes the run's version, and saves what is there now",
            )
    return [*(change for change in waiting if (change.root, change.path) not in unmounted), *compared]


def held_changes_at(run: Run, paths: Sequence[str], *, here: str = "", into_project: bool = True) -> list[c.Change]:
    """Return the held changes at some paths, with those that must go with them."""
    matching = changes_at(run, paths, here=here)
    waiting = [change for change in matching if change.verdict in c.WAITING]
    if not waiting:
        first = matching[0]
        raise BadRequest(
            f"run {run.name} does not hold {printable(first.path)}: it is {first.verdict}",
            hint=f"fumehood show {run.name}",
        )
    return with_dependent_changes(run, waiting, into_project=into_project) if paths else waiting


def _leave_conflicts(run: Run, waiting: Sequence[c.Change]) -> list[c.Change]:
    """Leave out the conflicts, which are only applied by force; refuse if nothing is left."""
    applicable = without_conflicts(run.changed, waiting, run.roots)
    if applicable:
        return applicable
    conflicts = [change for change in waiting if change.verdict == c.CONFLICT]
    conflicts = conflicts or [change for change in run.changed if change.verdict == c.CONFLICT]
    path = shell_path(conflicts[0].path)
    raise BadRequest(
        f"{printable(first_paths(conflicts))} changed in the project after run {run.name} began",
        hint=f"fumehood diff {run.name} shows both; fumehood apply {run.name} {path} --force takes the run's version,"
        " and saves what is there now",
    )


def _refuse_if_base_is_held(store: Store, run: Run, waiting: Sequence[c.Change]) -> None:
    """Refuse to apply what builds on changes that still wait; the hint names the run that must be applied first."""
    base = _held_base(store, run, waiting)
    if base is None:
        return
    change, first = base
    message = f"{printable(change.path)} builds on run {first.name}, which is held"
    while base := _held_base(store, first, [change for change in first.changed if change.verdict in c.WAITING]):
        first = base[1]
    raise BadRequest(message, hint=f"first: fumehood apply {first.name}")


def _held_base(store: Store, run: Run, changes: Sequence[c.Change]) -> tuple[c.Change, Run] | None:
    """Return a change that builds on another held run, and that run; or None."""
    below = held_runs.held_changes_below(store, run)
    for change in changes if below else ():
        name = below.base_run_of(change)
        if name is not None and (earlier := store.history.find(name)).state == HELD:
            return change, earlier
    return None


def _apply(
    store: Store, project: Project, run: Run, waiting: Sequence[c.Change], *, has_new_stamps: bool, even_open: bool,
    others_run: bool,
) -> ApplyFailed | None:
    """Apply the waiting changes; all other changes of the run stay as they are.

    If changes have new stamps, the journal needs them whole. If `others_run`, those commands may see the held trees.
    """
    applied_now = {id(change) for change in waiting}
    earlier = [change for change in run.changed if change.verdict == c.APPLIED and id(change) not in applied_now]
    reasons = [(change, change.verdict, change.reason) for change in waiting]
    for change in earlier:
        change.verdict = APPLIED_EARLIER
    for change in waiting:
        change.reason = BY_FORCE if change.verdict == c.CONFLICT else ""
        change.verdict = c.APPLIED
    # Files that others need or have edited stay where they are.
    verdicts = [change.verdict for change in run.changed]
    keep_objects_in_use(run.roots, run.changed, int(run.started_at * 1e9))
    if not even_open:
        _mark_edited_trees(run)
    has_new_stamps |= verdicts != [change.verdict for change in run.changed]
    keep_replacements_whole(run.changed)
    _count_links(store, run, others_run=others_run)
    # In the journal, `applied` is what is being applied, and `done` what was applied before.
    decided = f"apply {first_paths(waiting)}"
    store.history.record_progress(run, APPLYING, decided=decided, only_verdicts=not has_new_stamps)
    expected, failure = change_outcomes(run.changed), None
    try:
        _move_to_layer(store, run, others_run=others_run)
        apply_changes(
            run.changed, run.roots, store.uppers(run), run.run, even_open=even_open,
            journal=lambda state: store.history.record_progress(run, state),
        )  # fmt: skip
    except ApplyFailed as error:
        failure = error
        hold_all_changes(run, error)
        for change, verdict, reason in reasons:
            change.verdict, change.reason = verdict, reason or error.message
    outcome_changed = bool(earlier) or change_outcomes(run.changed) != expected
    for change in earlier:
        change.verdict = c.APPLIED
    for change in run.changed:
        if change.reason == BY_FORCE:
            change.reason, outcome_changed = "", True
    run.state = state_of(run.changed)
    if failure is None:
        run.reason = ""
    record_outcome(store, run, outcome_changed=outcome_changed, decided_at=time.time())
    record_files(store, project.id, run)
    return failure


def _mark_edited_trees(run: Run) -> None:
    """Mark conflicts in directories that would be removed as a whole: their own stamps don't show edits inside them."""
    trees = {
        (change.root, change.path): change
        for change in run.changed
        if change.verdict == c.APPLIED and change.within is None and change.change in (c.DELETED, c.TYPE)
        and change.before is not None and change.before.kind == c.DIRECTORY
    }  # fmt: skip
    inside = c.DirectorySet(trees)
    mine = [each for each in run.changed if (each.root, each.within or each.path) in trees]
    edited = {(number, inside.topmost(number, path) or path) for number, path in paths_changed_since(run.roots, mine)}
    for place in edited:
        mark_conflict(trees[place], run.changed)


def _move_to_layer(store: Store, run: Run, *, others_run: bool) -> None:
    try:
        held_runs.move_to_layer(store, run, others_run=others_run)
        held_runs.remove_discarded(store, run)  # the project has it already
    except OSError as error:
        raise ApplyFailed(f"nothing was applied: {error.strerror}") from error


def _count_links(store: Store, run: Run, *, others_run: bool) -> None:
    """Count the names of files that will be moved, because files with other names are copied.

    In the project, these are the files of trees that are removed: a person may have made links since. Files of a plain
    swap are counted when they come out, and nobody can link to a file in a layer. If `others_run`, the held files are
    counted too, because a running command may see them in a fold.
    """
    applied = [change for change in run.changed if change.verdict == c.APPLIED]
    leaving = [change for change in applied if change.before is not None and not swaps_no_directory(change)]
    for _, change, entry, _ in stat_changes(run.roots, leaving):
        if change.before is not None and entry is not None:
            change.before.links = entry.st_nlink
    if others_run:
        trees = [store.places.layer(run.run, number, "held") for number in range(len(run.roots))]
        coming = [change for change in applied if os.path.isdir(trees[change.root])]
        for _, change, entry, _ in stat_changes(trees, coming):
            if change.after is not None and entry is not None:
                change.after.links = entry.st_nlink


def _update_stamps(run: Run, waiting: Sequence[c.Change]) -> bool:
    """Give changes the present stamps of files that are the same as before; return True if any stamp is new.

    These are files that an earlier run has left in the project, by copying if that is another file system, and git
    indexes that were refreshed since.
    """
    has_new_stamps = False
    candidates = [change for change in waiting if change.before is not None and (run.below or change.before.meaning)]
    for live, change, entry, _ in stat_changes(run.roots, candidates):
        if change.before is None or entry is None or change.before.same(stamp_of(entry)):
            continue
        if matches_stamp(change.before, entry):
            change.before.inode, has_new_stamps = entry.st_ino, True
        elif (now := equivalent_stamp(change.before, live, change.path, entry)) is not None:
            change.before, has_new_stamps = now, True
    return has_new_stamps


def _rejudge(store: Store, run: Run, waiting: Sequence[c.Change]) -> tuple[list[c.Change], list[c.Change]]:
    """Compare waiting changes with the project as it is now; return all changes of the run, and those that are left.

    Changes that the project has already are discarded.
    """
    scanned = layering.scan_layers(held_runs.layers_of_held_trees(store, run), whole=False)
    fresh = {(change.root, change.path): change for change in scanned}
    was_held = {(change.root, change.path): change for change in run.changed if change.verdict in c.WAITING}
    wanted = {(change.root, change.path) for change in waiting}
    # Directories that are gone from the project are made again. A directory that replaces something goes as a whole.
    above = c.all_directories_above(fresh[place] for place in wanted if place in fresh) & fresh.keys()
    wanted |= {place for place in above if fresh[place].change == c.TYPE}
    wanted_trees = c.DirectorySet(wanted)
    left = []
    for (root, path), change in fresh.items():
        is_gone = (root, path) in above and change.change == c.ADDED
        if is_gone or (root, path) in wanted or wanted_trees.topmost(root, path) is not None:
            held = was_held.get((root, path))
            change.flags = () if held is None else held.flags
            # These are its verdict and reason if it can't be applied.
            change.verdict, change.reason = c.CONFLICT, CHANGED_SINCE
            before = change.before
            if held is not None and (held.before is None if before is None else before.same(held.before)):
                change.verdict, change.reason = held.verdict, held.reason
            left.append(change)
    places = {(change.root, change.path) for change in left}
    for change in waiting:
        if (change.root, change.path) not in fresh:
            change.verdict, change.reason = c.DISCARDED, "the project has it already"
            if change.change == c.DELETED and change.within is not None:
                places.add((change.root, change.path))  # the rest of its directory goes without it
    return c.by_path([*(each for each in run.changed if (each.root, each.path) not in places), *left]), left


def discard_held(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", expected: str = "",
    by: str = "",
) -> Run:  # fmt: skip
    """Throw away what a run holds; what it has applied stays, with its backups. `expected` as in `apply_held`.

    `by` is the session that does so, or "" for a person.
    """
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld():
        now = current_run(store, project, run)
        is_unscanned = now.state == FAILED and os.path.isdir(store.places.run(now.run))  # it is nested too deeply
        if now.state == RUNNING:
            is_unscanned = now.run in store.unsettled  # it was cut short
        if is_unscanned and not paths:
            return _discard_without_scan(store, run)
        run, waiting = _require_held(store, project, run, paths, here, expected, into_project=False)
        _refuse_if_built_upon(store, project, run, waiting)
        _discard(store, project, run, waiting, f"thrown away by session {by}" if by else "thrown away by a person")
    return run


def _refuse_if_built_upon(store: Store, project: Project, run: Run, waiting: Sequence[c.Change]) -> None:
    """Refuse to remove changes on which another held run builds."""
    removed = HeldChanges(((run.run, change.root, change) for change in waiting), run.roots)
    for later in map(store.history.find, store.history.held_runs(project.id, run.draft)):
        for change in later.changed if run.run in later.below else ():
            root = later.roots[change.root]
            if change.verdict not in c.WAITING or root not in run.roots:
                continue
            in_run = c.Change(run.roots.index(root), change.path, change.change, change.kind)
            if removed.base_run_of(in_run) is not None:
                raise BadRequest(
                    f"run {later.name} builds on it: {printable(change.path)}",
                    hint=f"first: fumehood discard {later.name}, or apply both",
                )


def _discard(store: Store, project: Project, run: Run, waiting: Sequence[c.Change], why: str) -> None:
    others_run = store.has_running_command(project.id)
    held_runs.retire_folds_of(store, project.id, run.run, others_run=others_run)
    for change in waiting:
        change.verdict, change.reason = c.DISCARDED, why
    store.history.record_progress(run, SETTLING)
    held_runs.remove_discarded(store, run)
    run.state, run.reason = state_of(run.changed), ""
    store.history.settle(run, rewrite=False, decided=f"discard {first_paths(waiting)}", decided_at=time.time())
    record_files(store, project.id, run)
    if run.state != HELD and not others_run:
        held_runs.drop_layer_if_unneeded(store, run)


def _discard_without_scan(store: Store, run: Run) -> Run:
    """Throw away what a run wrote whose end could not be recorded. A scan might fail, as when the disk is full."""
    try:
        claim = layering.lock_dead_run(store.places, run.run)
    except FileNotFoundError:
        claim = None
    except BlockingIOError as error:
        raise BadRequest(f"run {run.name} has not ended yet", hint=f"wait for it: fumehood show {run.name}") from error
    try:
        now = store.history.find(run.run)
        if now.state in (RUNNING, FAILED):
            reason = f"{now.reason or STOPPED_RUNNING}; what it wrote was thrown away without a look"
            store.history.set_state(run.run, DISCARDED, reason)
            layering.drop(store.places, run.run)
    finally:
        if claim is not None:
            claim.close()
    store.unsettled.pop(run.run, None)
    return store.history.find(run.run)


def current_run(store: Store, project: Project, run: Run) -> Run:
    """Return a run of this project as it is now, under the lock; its record may have changed since it was read."""
    if run.project != project.path:
        raise BadRequest(f"run {run.name} belongs to another project: {run.project}", hint="see fumehood log")
    now = store.history.find(run.run)  # it may be forgotten since, and run again
    if store.history.project_of(run.run) != project.id:
        raise BadRequest(
            f"run {run.name} belongs to the directory that was at {run.project} before: it stays as it is",
            hint="fumehood diff shows it; fumehood projects list shows both directories",
        )
    return now
