"""A person's word on held changes: apply them after all, or throw them away; all of a run, or some of its paths."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.changes import swaps_no_directory
from fumehood.core.edits import text_with_hunks
from fumehood.core.judge import CHANGED_SINCE, HeldChanges, is_mounted_on, keep_replacements_whole, without_conflicts
from fumehood.core.masks import is_in
from fumehood.core.questions import digest_of, held_digest
from fumehood.core.report import Run, printable, shell_path
from fumehood.errors import ApplyFailed, BadRequest, ChangedMeanwhile
from fumehood.linux.copying import copy_with_content
from fumehood.linux.gitindex import equivalent_stamp
from fumehood.linux.gitobjects import keep_objects_in_use
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.namespaces import mounts_inside
from fumehood.linux.nofollow import matches_stamp, open_below, open_top, split, stamp_of
from fumehood.service import held as held_runs
from fumehood.service import layers as layering
from fumehood.service.apply import mark_conflict, take_over
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


DONE = "done"
STOPPED_RUNNING = "Fumehood was stopped while the command ran"
BY_FORCE = "a person takes it by force"  # while it is in flight: should that be taken back, it is a conflict again


def apply_held(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", force: bool = False,
    expected: str = "",
) -> Run:  # fmt: skip
    """Take over what a run had to hold; with `force`, also what was changed there after the run began, or is open.

    What a person has there is then saved in the run's layer first, like any original. Without, conflicts stay.
    `expected` is the digest of what the person was shown (`shown_digest`); anything else raises ChangedMeanwhile.
    """
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld():
        unmounted = _unmounted(store, recorded(store, project, run), paths, here)
        run, waiting = _waiting(store, project, run, paths, here, expected, forth=True)
        layering.require_roots_exist(run.roots, waiting)
        if not force:
            waiting = _without_conflicts(run, waiting)
        _refuse_before_others(store, run, waiting)
        others = store.has_running_command(project.id)
        held_runs.let_go(store, project.id, run.run, others=others)
        if force:
            run.changed, waiting = _judged_anew(store, run, waiting)
        elif unmounted:
            waiting = _compared_anew(store, run, waiting, unmounted)
        is_anew = force or bool(unmounted) or _stamp_anew(run, waiting) or bool(run.below)
        failure = _apply(store, project, run, waiting, is_anew=is_anew, even_open=force, others=others)
        if failure is not None:
            hint = f"the changes are still held: fumehood show {run.name}"
            raise ApplyFailed(failure.message, hint=hint) from failure
        if run.state != HELD and not others:
            held_runs.drop_if_unneeded(store, run)
    return run


def apply_edited(
    store: Store, project: Project, run: Run, path: str, edit: Callable[[bytes, bytes], bytes], *, here: str = "",
    expected: str = "",
) -> Run:  # fmt: skip
    """Take over one file that a run holds as a person makes it of what the project has and what the run wrote.

    That is a run of its own, which can be undone; what the run itself wrote is then thrown away. Should we die between
    the two, it is still held. `expected` is the digest of the two versions that were shown (`versions_digest`).
    """
    trees_lock = store.lock_held_trees(project.id, settling=True)
    with store.lock_project(project.id), trees_lock, InterruptsHeld() as interrupts:
        run, waiting = _waiting(store, project, run, [path], here, forth=True)
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
        _refuse_before_others(store, run, waiting)
        _refuse_built_upon(store, project, run, waiting)
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
    """Take over some hunks of a file that a run holds, counted from 0 as its difference shows them; the others go."""

    def edit(old: bytes, new: bytes) -> bytes:
        before, after = (each.decode(errors="surrogateescape") for each in (old, new))
        return text_with_hunks(before, after, wanted).encode(errors="surrogateescape")

    return apply_edited(store, project, run, path, edit, here=here, expected=expected)


def versions_digest(run: Run, change: c.Change, old: bytes, new: bytes) -> str:
    """Identify the two versions of one held file that a person was shown."""
    return digest_of(held_digest(run, [change]), *(each.decode("latin-1") for each in (old, new)))


def shown_digest(run: Run, paths: Sequence[str] = (), *, here: str = "", forth: bool = True) -> str:
    """Identify what a word on these paths of a run is for, as the run is known to whoever shows it."""
    return held_digest(run, meant(run, paths, here=here, forth=forth))


def changed_since_shown(run: Run) -> ChangedMeanwhile:
    """Return what refuses a word on a run that holds something else than the person was shown."""
    return ChangedMeanwhile(
        f"what run {run.name} holds has changed since it was shown: nothing was done",
        hint=f"fumehood show {run.name}, then decide again",
    )


def _waiting(
    store: Store, project: Project, run: Run, paths: Sequence[str], here: str, expected: str = "", *, forth: bool
) -> tuple[Run, list[c.Change]]:
    """Return a run as it is now, and those of its held changes that are meant, to go `forth` or to be thrown away."""
    run = recorded(store, project, run)
    if run.state in UNFINISHED:
        # It waits for its command to end, or something is in the way of mending it.
        why = store.unsettled.get(run.run)
        if why is None:
            raise BadRequest(f"run {run.name} has not ended yet", hint=f"wait for it: fumehood show {run.name}")
        raise BadRequest(
            f"run {run.name} was cut short, and what it wrote can't be looked at yet: {why}",
            hint=f"once that is fixed, the next command holds it; fumehood discard {run.name} throws all of it away",
        )
    if run.state != HELD:
        # What a run held goes with it when it is undone, and comes back with it.
        is_gone = run.state == "undone" and any(change.verdict in c.WAITING for change in run.changed)
        hint = f"fumehood {'redo' if is_gone else 'show'} {run.name}"
        raise BadRequest(f"run {run.name} holds nothing: it is {run.state}", hint=hint)
    if forth and not os.path.isdir(store.places.run(run.run)):
        raise BadRequest(f"what run {run.name} wrote is no longer kept", hint=f"fumehood discard {run.name}")
    waiting = meant(run, paths, here=here, forth=forth)
    if forth and run.draft is not None:
        raise BadRequest(
            f"run {run.name} is in draft {run.draft_name}, which is applied as a whole",
            hint=f"fumehood draft apply {run.draft_name}",
        )
    if expected and held_digest(run, waiting) != expected:
        raise changed_since_shown(run)
    return run, waiting


def _unmounted(store: Store, run: Run, paths: Sequence[str], here: str) -> set[tuple[int, str]]:
    """Have those changes wait for a person that only a mount was in the way of, which is gone; return their places."""
    if run.state in (*UNFINISHED, "undone"):
        return set()
    meant = changes_at(run, paths, here=here)
    stuck = [change for change in meant if is_mounted_on(change)]
    mounts = [mount for root in run.roots for mount in mounts_inside(root)] if stuck else []
    free = [change for change in stuck if not is_in(f"{run.roots[change.root]}/{change.path}", mounts)]
    if stuck and not os.path.isdir(store.places.run(run.run)):
        raise BadRequest(f"what run {run.name} wrote is no longer kept", hint="run the command again")
    if stuck and not free and all(change.verdict not in c.WAITING for change in meant):
        raise BadRequest(printable(stuck[0].reason), hint=f"unmount it, then: fumehood apply {run.name}")
    if free:
        for change in free:
            change.verdict, change.reason = c.HELD, "something was mounted there"
        run.state = HELD
        record_outcome(store, run, outcome_changed=True)
    return {(change.root, change.path) for change in free}


def _compared_anew(
    store: Store, run: Run, waiting: Sequence[c.Change], unmounted: set[tuple[int, str]]
) -> list[c.Change]:
    """Compare what went to a mount with what lies below it; refuse where somebody changed that since the run began."""
    mine = [change for change in waiting if (change.root, change.path) in unmounted]
    run.changed, going = _judged_anew(store, run, mine)
    began = int(run.started_at * 1e9)
    for change in going:
        if change.before is not None and change.before.kind != c.DIRECTORY and change.before.changed_ns > began:
            raise BadRequest(
                f"{printable(change.path)} changed in the project after run {run.name} began",
                hint=f"fumehood apply {run.name} --force takes the run's version, and saves what is there now",
            )
    return [*(change for change in waiting if (change.root, change.path) not in unmounted), *going]


def meant(run: Run, paths: Sequence[str], *, here: str = "", forth: bool = True) -> list[c.Change]:
    """Return the held changes that paths mean, with those that can't stay behind."""
    named_changes = changes_at(run, paths, here=here)
    waiting = [change for change in named_changes if change.verdict in c.WAITING]
    if not waiting:
        first = named_changes[0]
        raise BadRequest(
            f"run {run.name} does not hold {printable(first.path)}: it is {first.verdict}",
            hint=f"fumehood show {run.name}",
        )
    return with_dependent_changes(run, waiting, forth=forth) if paths else waiting


def _without_conflicts(run: Run, waiting: Sequence[c.Change]) -> list[c.Change]:
    """Leave out what only goes by force; refuse where that is all."""
    going = without_conflicts(run.changed, waiting, run.roots)
    if going:
        return going
    among = [change for change in waiting if change.verdict == c.CONFLICT]
    among = among or [change for change in run.changed if change.verdict == c.CONFLICT]
    path = shell_path(among[0].path)
    raise BadRequest(
        f"{printable(first_paths(among))} changed in the project after run {run.name} began",
        hint=f"fumehood diff {run.name} shows both; fumehood apply {run.name} {path} --force takes the run's version,"
        " and saves what is there now",
    )


def _refuse_before_others(store: Store, run: Run, waiting: Sequence[c.Change]) -> None:
    """What was built on something that still waits can't go before it; the hint begins with the first of them all."""
    below = _built_on(store, run, waiting)
    if below is None:
        return
    change, first = below
    message = f"{printable(change.path)} builds on run {first.name}, which is held"
    while below := _built_on(store, first, [change for change in first.changed if change.verdict in c.WAITING]):
        first = below[1]
    raise BadRequest(message, hint=f"first: fumehood apply {first.name}")


def _built_on(store: Store, run: Run, changes: Sequence[c.Change]) -> tuple[c.Change, Run] | None:
    """Return a change that was built on another held run, and that run."""
    below = held_runs.waiting(store, run)
    for change in changes if below else ():
        name = below.base_run_of(change)
        if name is not None and (earlier := store.history.find(name)).state == HELD:
            return change, earlier
    return None


def _apply(
    store: Store, project: Project, run: Run, waiting: Sequence[c.Change], *, is_anew: bool, even_open: bool,
    others: bool,
) -> ApplyFailed | None:
    """Move what was held; those applied before are done, and what is not meant stays.

    `is_anew` tells that changes were stamped anew, so that the journal needs all of them; `others`, that commands run
    which may see it.
    """
    going = {id(change) for change in waiting}
    earlier = [change for change in run.changed if change.verdict == c.APPLIED and id(change) not in going]
    reasons = [(change, change.verdict, change.reason) for change in waiting]
    for change in earlier:
        change.verdict = DONE
    for change in waiting:
        change.reason = BY_FORCE if change.verdict == c.CONFLICT else ""
        change.verdict = c.APPLIED
    # What others need or have edited stays where it is.
    verdicts = [change.verdict for change in run.changed]
    keep_objects_in_use(run.roots, run.changed, int(run.started_at * 1e9))
    if not even_open:
        _keep_edited_trees(run)
    is_anew |= verdicts != [change.verdict for change in run.changed]
    keep_replacements_whole(run.changed)
    _count_links(store, run, others=others)
    # What is in flight is `applied` in the journal, what was applied before is `done`.
    store.history.record_progress(run, APPLYING, decided=f"apply {first_paths(waiting)}", only_verdicts=not is_anew)
    expected, failure = change_outcomes(run.changed), None
    try:
        _bring_back(store, run, others=others)
        take_over(
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


def _keep_edited_trees(run: Run) -> None:
    """Find conflicts in directories that would go whole: by their own stamps, they are as the run has seen them."""
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


def _bring_back(store: Store, run: Run, *, others: bool) -> None:
    try:
        held_runs.bring_back(store, run, others=others)
        held_runs.throw_away(store, run)  # what turned out to be in the project already
    except OSError as error:
        raise ApplyFailed(f"nothing was applied: {error.strerror}") from error


def _count_links(store: Store, run: Run, *, others: bool) -> None:
    """Find out which files have other names: they are copied then.

    In the project, those of trees that go: a person may have made some since. Those of a plain swap are counted when
    they come out, and nobody can link to what is in a layer. And where `others` run, those that come: a running command
    may see them in a fold.
    """
    going = [change for change in run.changed if change.verdict == c.APPLIED]
    leaving = [change for change in going if change.before is not None and not swaps_no_directory(change)]
    for _, change, entry, _ in stat_changes(run.roots, leaving):
        if change.before is not None and entry is not None:
            change.before.links = entry.st_nlink
    if others:
        trees = [store.places.layer(run.run, number, "held") for number in range(len(run.roots))]
        coming = [change for change in going if os.path.isdir(trees[change.root])]
        for _, change, entry, _ in stat_changes(trees, coming):
            if change.after is not None and entry is not None:
                change.after.links = entry.st_nlink


def _stamp_anew(run: Run, waiting: Sequence[c.Change]) -> bool:
    """Know by its inode what an earlier run has left in the project, and a git index that was refreshed since.

    Between file systems, the first is a copy. Tells whether anything has another stamp now.
    """
    is_anew = False
    mine = [change for change in waiting if change.before is not None and (run.below or change.before.meaning)]
    for live, change, entry, _ in stat_changes(run.roots, mine):
        if change.before is None or entry is None or change.before.same(stamp_of(entry)):
            continue
        if matches_stamp(change.before, entry):
            change.before.inode, is_anew = entry.st_ino, True
        elif (now := equivalent_stamp(change.before, live, change.path, entry)) is not None:
            change.before, is_anew = now, True
    return is_anew


def _judged_anew(store: Store, run: Run, waiting: Sequence[c.Change]) -> tuple[list[c.Change], list[c.Change]]:
    """Compare what is held with the project as it is now; what the project has already is not needed any more."""
    scanned = layering.scan_layers(held_runs.layers(store, run), whole=False)
    fresh = {(change.root, change.path): change for change in scanned}
    was_held = {(change.root, change.path): change for change in run.changed if change.verdict in c.WAITING}
    meant = {(change.root, change.path) for change in waiting}
    # Directories that are gone from the project are made again; what takes another's place goes whole.
    around = c.all_directories_above(fresh[place] for place in meant if place in fresh) & fresh.keys()
    meant |= {place for place in around if fresh[place].change == c.TYPE}
    in_meant = c.DirectorySet(meant)
    going = []
    for (root, path), change in fresh.items():
        is_gone = (root, path) in around and change.change == c.ADDED
        if is_gone or (root, path) in meant or in_meant.topmost(root, path) is not None:
            held = was_held.get((root, path))
            change.flags = () if held is None else held.flags
            # What becomes of it should it fail.
            change.verdict, change.reason = c.CONFLICT, CHANGED_SINCE
            before = change.before
            if held is not None and (held.before is None if before is None else before.same(held.before)):
                change.verdict, change.reason = held.verdict, held.reason
            going.append(change)
    places = {(change.root, change.path) for change in going}
    for change in waiting:
        if (change.root, change.path) not in fresh:
            change.verdict, change.reason = c.DISCARDED, "the project has it already"
            if change.change == c.DELETED and change.within is not None:
                places.add((change.root, change.path))  # the rest of its directory goes without it
    return c.by_path([*(each for each in run.changed if (each.root, each.path) not in places), *going]), going


def discard_held(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", expected: str = "",
    by: str = "",
) -> Run:  # fmt: skip
    """Throw away what a run had to hold; what it had applied stays, with its backups. `expected` as in `apply_held`.

    `by` is the session that does so; a person, if it is empty.
    """
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld():
        now = recorded(store, project, run)
        is_unseen = now.state == FAILED and os.path.isdir(store.places.run(now.run))  # it is nested too deeply
        if now.state == RUNNING:
            is_unseen = now.run in store.unsettled  # it was cut short
        if is_unseen and not paths:
            return _discard_unseen(store, run)
        run, waiting = _waiting(store, project, run, paths, here, expected, forth=False)
        _refuse_built_upon(store, project, run, waiting)
        _discard(store, project, run, waiting, f"session {by} threw it away" if by else "a person threw it away")
    return run


def _refuse_built_upon(store: Store, project: Project, run: Run, waiting: Sequence[c.Change]) -> None:
    """Refuse where another held run builds on what would go."""
    going = HeldChanges(((run.run, change.root, change) for change in waiting), run.roots)
    for later in map(store.history.find, store.history.held_runs(project.id, run.draft)):
        for change in later.changed if run.run in later.below else ():
            root = later.roots[change.root]
            if change.verdict not in c.WAITING or root not in run.roots:
                continue
            if going.base_run_of(c.Change(run.roots.index(root), change.path, change.change, change.kind)) is not None:
                raise BadRequest(
                    f"run {later.name} builds on it: {printable(change.path)}",
                    hint=f"first: fumehood discard {later.name}, or apply both",
                )


def _discard(store: Store, project: Project, run: Run, waiting: Sequence[c.Change], why: str) -> None:
    others = store.has_running_command(project.id)
    held_runs.let_go(store, project.id, run.run, others=others)
    for change in waiting:
        change.verdict, change.reason = c.DISCARDED, why
    store.history.record_progress(run, SETTLING)
    held_runs.throw_away(store, run)
    run.state, run.reason = state_of(run.changed), ""
    store.history.settle(run, rewrite=False, decided=f"discard {first_paths(waiting)}", decided_at=time.time())
    record_files(store, project.id, run)
    if run.state != HELD and not others:
        held_runs.drop_if_unneeded(store, run)


def _discard_unseen(store: Store, run: Run) -> Run:
    """Throw away what a run wrote whose end could not be recorded, without a look: for that, there may be no room."""
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


def recorded(store: Store, project: Project, run: Run) -> Run:
    """Return a run of this project as it is now that nobody else can apply or undo."""
    if run.project != project.path:
        raise BadRequest(f"run {run.name} belongs to another project: {run.project}", hint="see fumehood log")
    now = store.history.find(run.run)  # it may be forgotten since, and run again
    if store.history.project_of(run.run) != project.id:
        raise BadRequest(
            f"run {run.name} belongs to the directory that was at {run.project} before: it stays as it is",
            hint="fumehood diff shows it; fumehood projects list shows both directories",
        )
    return now
