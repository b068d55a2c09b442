"""Take a run back: the same swaps the other way, as a run of its own, and only where nothing else would be lost."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.changes import detach_from_missing, directories_to_keep, inverse, swaps_no_directory
from fumehood.core.judge import git_directories, repository_of
from fumehood.core.policy import Rules
from fumehood.core.report import IN_PART, REDO, UNDONE_BY, Run, first_names, path_in_list, printable, shell_path
from fumehood.core.request import NO_PROJECT
from fumehood.errors import ApplyFailed, BadRequest, UndoRefused
from fumehood.linux.gitobjects import changed_repositories, heads_moved_since, is_object_or_note, without_objects_in_use
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.nofollow import is_state_after, split, stamp_of, walk
from fumehood.linux.staging import find_files_in_use
from fumehood.linux.steps import PathChanged
from fumehood.service import layers as layering
from fumehood.service.apply import apply_changes, open_in_words
from fumehood.service.conflicts import paths_changed_since, split_by_tree, stat_changes
from fumehood.service.decide import current_run, discard_held
from fumehood.service.files import drop_shared_backups, record_run
from fumehood.service.restore import ONCE, find_backups
from fumehood.service.settle import FAILED, TAKEN_BACK, change_outcomes, changes_at, state_of, with_dependent_changes
from fumehood.service.verdicts import find_concerns
from fumehood.store.history import APPLYING, CHECKPOINT, HELD, LAST, UNFINISHED, RunFilter
from fumehood.store.places import new_id
from fumehood.store.search import changes_by_commands, later_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NoReturn

    from fumehood.linux.gitobjects import Refs
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

UNDONE = "undone"
_LATEST = 50  # runs of an agent among which the one in a draft is that it takes back
_NAMED = 5  # paths named in a refusal


def undo(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", force: bool = False,
    by: str = "", as_it_was: bool = False,
) -> Run:  # fmt: skip
    """Bring back exactly what was there before a run; returns the undo, which can itself be undone.

    With paths, only what lies there. With `force`, also what was changed since, or is open in another program: that
    is saved in the layer first.
    `by` is the session that asks, and that the undo belongs to: an agent can't take back what a person took back, nor
    bring back what its commands could not write unseen, unless it was there just now (`as_it_was`).
    """
    if run.draft is not None and run.state == HELD:
        return discard_held(store, project, run, paths, here=here)  # nothing of it is in the project
    with store.lock_project(project.id), InterruptsHeld() as interrupts:
        interrupts.release()  # nothing is done yet, and to look at everything may take long
        run = current_run(store, project, run)
        back = _planned(store, as_it_stands(store, run), paths, here, by)
        layering.require_roots_exist(run.roots, back.changed)
        first = run if back.layer == run.run else store.history.find(back.layer)
        if force:
            back.changed = _counted_as_they_are(run, back.changed)
        else:
            # A plain swap finds out by itself; whole trees must be looked at first. So must all that was undone and
            # redone: versions may be where they would be if this had been done already.
            again = len(store.history.runs_using_layer(back.layer)) > ONCE
            if heads := heads_moved_since(run.roots, back.changed, _noted(store, back)):
                _refuse(store, run, [path for _, path in heads])
            _check(store, run, back, [change for change in back.changed if again or not swaps_no_directory(change)])
            if busy := find_files_in_use(back.changed, run.roots):
                raise UndoRefused(
                    open_in_words(busy),
                    hint="close it there, then undo again; with --force, what that program goes on writing stays in"
                    " the backup",
                )
        find_backups(store, project, back, first)
        if by and not as_it_was:
            _refuse_unseen(store, run, back)
        interrupts.hold()
        began = time.monotonic()
        store.history.begin(project.id, back, os.getpid())
        store.history.write_journal(back)
        expected = change_outcomes(back.changed)
        drop_shared_backups(store, back)
        _perform(store, project, run, back, first)
        back.state, back.duration_s = "applied", time.monotonic() - began
        outcome_changed = change_outcomes(back.changed) != expected
        store.history.settle(back, rewrite=outcome_changed, others=consequences(store, run, back))
        record_run(store, project.id, back)
        layering.drop_if_empty(store.places, back.layer, _in_layer(store, back, first))
    return back


def as_it_stands(store: Store, run: Run) -> Run:
    """Return a run with the versions that its undo would move now: for each path, what moved it last says which.

    A redo by force has put others into the project, and saved others, than the run itself. What was taken back at last
    does not stand.
    """
    users = store.history.runs_using_layer(run.layer or run.run)
    if not users[1:]:
        return run
    last: dict[tuple[int, str], tuple[Run, c.Change, bool]] = {}
    way = store.history.undo_depth(run) % 2
    for user in map(store.history.find, users):
        if user.state != FAILED:
            stands = store.history.undo_depth(user) % 2 == way
            last |= {(each.root, each.path): (user, each, stands) for each in user.changed if each.verdict == c.APPLIED}
    changes: list[c.Change] = []
    mine: set[tuple[int, str]] = set()
    for change in run.changed:
        user, moved, stands = last.get((change.root, change.path), (run, change, True))
        if change.verdict != c.APPLIED or (_is_the_same(run, change, moved) if stands else run.act != "undo"):
            moved = change  # a run itself is always told when it is taken back; its redo is not
        elif not stands:
            moved = c.Change(change.root, change.path, change.change, change.kind, verdict=c.DISCARDED,
                             reason=f"{TAKEN_BACK}{user.name}")  # fmt: skip
        changes.append(moved)
        if moved.verdict == c.APPLIED:
            mine.add((change.root, change.path))
    # By force goes also what somebody had put into a directory meanwhile, unless that is taken back since.
    changes += [
        moved for place, (_, moved, stands) in last.items()
        if stands and moved.within is not None and place not in mine and (moved.root, moved.within) in mine
        and (moved.after is None or os.path.lexists(f"{run.roots[moved.root]}/{moved.path}"))
    ]  # fmt: skip
    from copy import copy

    standing = copy(run)
    standing.changed = c.by_path(changes)
    return standing


def _is_the_same(run: Run, change: c.Change, moved: c.Change) -> bool:
    """Return True if what was moved last is what a run itself moved, or that has come back since.

    By force, an undo and its redo take what a later run left out of the project and back: then that can be undone.
    """
    if c.are_same_replacement(change, moved):
        return True
    one, other = change.before, moved.before
    if one is not other and not (one and other and one.is_same_or_copy(other)):
        return False
    try:
        status = os.lstat(f"{run.roots[change.root]}/{change.path}")
    except (FileNotFoundError, NotADirectoryError):
        status = None
    return is_state_after(change, status)


def _refuse_unseen(store: Store, run: Run, back: Run) -> None:
    """Refuse to an agent an undo of a run that brings back what a command of its could not write unseen.

    What was harmless when a command wrote it may be what the host acts on by now. What no command made is the person's
    own, and comes back.
    """
    coming = [change for change in back.changed if change.after is not None]
    if not coming:
        return  # the project need not be looked at
    concerns = find_concerns(
        coming, back.roots, store.uppers(back), Rules(), writable_elsewhere=store.writable_directories
    )
    for number, concern in concerns.items():
        change, version = coming[number], coming[number].after
        if version is None or not concern.held:
            continue
        earlier = (each.after for each in changes_by_commands(store.database, run.run, change.path))
        if any(each is not None and each.is_same_or_copy(version) for each in earlier):
            raise UndoRefused(
                f"only a person may bring that back: {printable(change.path)}: {concern.reason}",
                hint=f"ask the person to type it outside the hood: fumehood undo {run.name}",
            )


def _in_layer(store: Store, back: Run, first: Run) -> Iterator[c.Change]:
    """Yield what an undo and other runs have in its layer, for some of its paths may have been undone before."""
    yield from back.changed
    yield from (change for change in first.changed if change.verdict in c.WAITING)
    for name in store.history.runs_using_layer(back.layer):
        if name != back.run:
            other = store.history.find(name)
            yield from other.changed if other.state != UNDONE else ()


def in_turn(store: Store, runs: Iterable[Run]) -> list[Run]:
    """Return runs in an order in which they can be taken back: as they are, save where one went in after a later one.

    Refuses where something is in the way that none of them moves itself.
    """
    waiting, ordered = list(runs), list[Run]()
    # What the undos so far would move, and so is in the way of none that comes after them.
    roots: dict[str, int] = {}
    moving: set[tuple[int, str]] = set()
    above: set[tuple[int, str]] = set()  # the directories that these are in

    def take(run: Run) -> None:
        run = as_it_stands(store, run)
        if run.draft is not None and run.state == HELD:
            return
        numbers = [roots.setdefault(root, len(roots)) for root in run.roots]
        back = _planned(store, run, (), "", "")
        changes, inside = back.changed, c.DirectorySet(moving)
        ends = [
            change for change in changes
            if (place := (numbers[change.root], change.path)) not in moving
            and place not in above and inside.topmost(*place) is None
        ]  # fmt: skip
        heads = heads_moved_since(run.roots, ends, _noted(store, back))
        moved = _moved(run, ends) + [path for root, path in heads if (numbers[root], path) not in moving]
        if moved:
            _refuse(store, run, moved)
        moving.update((numbers[change.root], change.path) for change in changes)
        above.update((numbers[root], path) for root, path in c.all_directories_above(changes))

    while waiting:
        refusals = []
        for run in waiting:
            try:
                take(run)
            except UndoRefused as refusal:
                refusals.append(refusal)
            else:
                break
        else:
            raise refusals[0]
        waiting.remove(run)
        ordered.append(run)
    return ordered


def last_to_undo(store: Store, *filters: RunFilter) -> Run:
    """Return the last run that changed something and is not taken back yet; an agent's may be in a draft."""
    run = next(store.history.not_taken_back(*filters), None)
    if any(run_filter.sessions for run_filter in filters):
        latest = store.history.runs(*filters, limit=_LATEST)
        drafted_run = next((each for each in latest if each.draft is not None and each.state == HELD), None)
        run = drafted_run if run is None or (drafted_run is not None and drafted_run.number > run.number) else run
    if run is None:
        unrecorded = len(layering.unrecorded_directories(store))
        undo_run = next(store.history.undos_in_force(*filters), None)
        hint = "fumehood log shows what ran"
        if undo_run is not None and has_backups(undo_run):
            hint += "; fumehood redo brings back what was undone last"
        if unrecorded:
            hint = f"directories of runs without a record: {unrecorded}; {layering.MEND}"
        raise BadRequest("nothing is left to undo", hint=hint)
    return run


def to_redo(store: Store, name: str, *filters: RunFilter, paths: Sequence[str] = (), here: str = "") -> Run:
    """Return the undo that a redo takes back: the last one, or of a run, or of an undo, that is named.

    Of a run with several undos, it is the last one that took back these paths.
    """
    if name == LAST:
        last_undo = next(store.history.undos_in_force(*filters), None)
        if last_undo is None:
            raise BadRequest("nothing is left to redo", hint="fumehood log shows what was taken back")
        return last_undo
    run = store.history.find(name, *filters)
    undos = store.history.undos_in_force(*filters, of_layer=run.layer)
    if not run.layer:  # it is cleaned away, and what needs nothing of it can still be brought back
        undos = (each for each in undos if run.run in (each.run, each.of))
    matching_undos = [each for each in undos if run.act != "undo" or each.run == run.run]
    if paths and len(matching_undos) > 1:
        matching_undos = [each for each in matching_undos if _has_all(each, paths, here)] or matching_undos
    if not matching_undos:
        raise BadRequest(f"run {run.name} is not taken back", hint=f"fumehood show {run.name}")
    return matching_undos[0]


def _has_all(run: Run, paths: Sequence[str], here: str) -> bool:
    try:
        changes_at(run, paths, here=here)
    except BadRequest:
        return False
    return True


def has_backups(run: Run) -> bool:
    """Return True if all that an undo of a run would bring back is still kept."""
    return bool(run.layer) or not any(map(c.needs_layer, _applied(run.changed)))


def _planned(store: Store, run: Run, paths: Sequence[str], here: str, by: str) -> Run:
    """Return the run that takes another back."""
    if run.act == CHECKPOINT and run.of is not None and store.history.find(run.of).state in UNFINISHED:
        raise UndoRefused(
            f"the command that run {run.name} is a checkpoint of still runs",
            hint=f"wait for its end, or end it: fumehood stop {run.of}",
        )
    changes = _to_take_back(store, run, paths, here)
    which = "".join(f" {shell_path(path)}" for path in paths)
    verb = REDO if store.history.undo_depth(run) % 2 else "undo"
    back = Run(
        run=new_id(), project=run.project, command=f"{verb} {run.number or run.run}{which}", cwd=run.project,
        state=APPLYING, act="undo", of=run.run, layer=run.layer or run.run, started_at=time.time(), roots=run.roots,
        changed=changes, capture=run.capture,
        session=by or None,
    )  # fmt: skip
    back.changed = without_objects_in_use(
        run.roots, changes, _noted(store, back), lambda own: _moved(run, own), lambda: _waiting_repositories(store, run)
    )  # fmt: skip
    return back


def _waiting_repositories(store: Store, run: Run) -> set[str]:
    """Return the git directories that later runs have changed and wait with, in drafts too.

    While a command runs, it may build on anything that it sees: so then they are those that the run has changed.
    """
    project = store.history.project_of(run.run)
    if store.has_running_command(project):
        return {git for _, git in changed_repositories(run.roots, run.changed)}
    drafts = (None, *(draft.id for draft in store.drafts.open_drafts(project)))
    later = [store.history.find(name) for draft in drafts for name in store.history.held_runs(project, draft)]
    return {
        repository_of(f"{each.roots[change.root]}/{change.path}", gits)
        for each in later
        if each.number > run.number
        for gits in (git_directories(each.roots, each.changed),)
        for change in each.changed
        if change.verdict in c.WAITING
    }


def _noted(store: Store, back: Run) -> Refs:
    """Return what refs and HEADs said before the run that an undo takes back."""
    return layering.recorded_refs(store.uppers(back)[0]) or {}


def _check(store: Store, run: Run, back: Run, changes: Sequence[c.Change]) -> None:
    """Refuse where a live path is no longer what the run left."""
    if _moved(run, changes):
        _refuse(store, run, _moved(run, back.changed))


def _perform(store: Store, project: Project, run: Run, back: Run, first: Run) -> None:
    """Do it. Where something is not as the record says, everything is looked at, and it is tried once more."""
    stays = directories_to_keep(first.changed)
    for last in (False, True):
        try:
            apply_changes(
                back.changed, run.roots, store.uppers(back), back.run, staying=stays, all_or_nothing=True,
                even_open=True, journal=lambda state: store.history.record_progress(back, state),
            )  # fmt: skip
        except (ApplyFailed, PathChanged) as error:
            store.history.set_state(back.run, "failed", str(error))
            try:
                _check(store, run, back, back.changed)
                find_backups(store, project, back, first)
                if last:
                    why = str(error).removeprefix("nothing was applied: ")
                    hint = "the project is as it was before the undo"
                    raise UndoRefused(f"nothing was undone: {why}", hint=hint)  # noqa: TRY301
            except UndoRefused as refusal:
                store.history.withdraw(back, refusal.message)
                raise refusal from error
            store.history.record_progress(back, APPLYING)
        else:
            return


def _to_take_back(store: Store, run: Run, paths: Sequence[str], here: str) -> list[c.Change]:
    """Return the changes that undo a run, or some of its paths, or say why there are none."""
    if run.state == UNDONE:
        hint = f"to have its changes back: fumehood redo {run.name}" if run.layer else f"fumehood show {run.name}"
        raise BadRequest(f"run {run.name} is undone already", hint=hint)
    meant = changes_at(run, paths, here=here)
    changes = inverse(with_dependent_changes(run, _applied(meant), into_project=False) if paths else meant)
    if not changes:
        what = "changed nothing in the project"
        if run.state == "refused":
            what = "was refused: nothing ran"
        elif not run.sandboxed:
            what = "was not captured: it ran without a sandbox"
        elif NO_PROJECT in run.reason:
            what = "had no project: there is nothing to take back"
        if taken_back := next((each.reason for each in meant if each.reason.startswith(TAKEN_BACK)), ""):
            last = taken_back.removeprefix(TAKEN_BACK)
            raise UndoRefused(f"run {run.name} was {taken_back}", hint=f"to redo it: fumehood redo {last}")
        if paths and meant and meant[0].reason.startswith(UNDONE_BY):
            last = store.history.name_of(meant[0].reason.removeprefix(UNDONE_BY))
            shown, hint = printable(meant[0].path), f"to redo it: fumehood redo {last}"
            raise BadRequest(f"what run {run.name} did to {shown} is undone already, by run {last}", hint=hint)
        if paths and meant:
            what = f"has not changed {printable(meant[0].path)} in the project: {meant[0].reason or meant[0].verdict}"
        raise BadRequest(f"run {run.name} {what}", hint=f"fumehood show {run.name}")
    if not run.layer and any(change.after is not None and not c.is_directory_mode(change) for change in changes):
        raise BadRequest(f"the backups of run {run.name} were cleaned away", hint="fumehood log shows later runs")
    return detach_from_missing(changes)


def _applied(changes: Sequence[c.Change]) -> list[c.Change]:
    return [change for change in changes if change.verdict == c.APPLIED]


def consequences(store: Store, run: Run, back: Run) -> list[tuple[Run, bool]]:
    """Return the runs whose states follow from an undo, and whether their changes were judged anew.

    The run is undone, all of it or some paths; where it was an undo itself, what that took back stands again.
    """
    places = {(change.root, change.path) for change in back.changed}
    names_paths = back.command.count(" ") > 1
    touched = [(run, _undone(run, places, back.run, names_paths=names_paths))]
    stands = True
    while run.act == "undo" and run.of is not None:
        by, run = run.run, store.history.find(run.of)
        if stands:
            touched.append((run, _stands_again(run, places, by)))
        else:
            touched.append((run, _undone(run, places, by, names_paths=names_paths)))
        stands = not stands
    return touched


def _undone(run: Run, places: set[tuple[int, str]], by: str, *, names_paths: bool) -> bool:
    """Mark what is undone; where that is all a run had applied, its state says so.

    What a run holds goes with it, unless other paths were named: then it waits on.
    """
    applied = _applied(run.changed)
    gits = git_directories(run.roots, run.changed)
    going = [change for change in applied if (change.root, change.path) in places]
    others = [change for change in applied if (change.root, change.path) not in places]
    # Git's objects may have stayed, for somebody else's sake.
    waits_on = names_paths and any(change.verdict in c.WAITING for change in run.changed)
    is_all = not waits_on and all(
        is_object_or_note(f"{run.roots[change.root]}/{change.path}", gits) for change in others
    )
    if is_all and not any(change.reason.startswith(UNDONE_BY) for change in run.changed):
        run.state, run.reason = UNDONE, ""
        return False
    # In pieces: each path says which undo took it, so that each can be brought back.
    for change in going:
        change.verdict, change.reason = c.DISCARDED, f"{UNDONE_BY}{by}"
    run.state, run.reason = (UNDONE, "") if is_all else (state_of(run.changed), IN_PART)
    return True


def _stands_again(run: Run, places: set[tuple[int, str]], by: str) -> bool:
    """Let what an undo had taken back stand again; the other paths that it took back stay so."""
    mark = f"{UNDONE_BY}{by}"
    was_whole = run.state == UNDONE
    gits = git_directories(run.roots, run.changed)
    changed = False
    for change in run.changed:
        is_meant = (change.root, change.path) in places
        if was_whole and change.verdict == c.APPLIED and not is_meant:
            if is_object_or_note(f"{run.roots[change.root]}/{change.path}", gits):
                continue  # they never went
            change.verdict, change.reason, changed = c.DISCARDED, mark, True
        elif is_meant and change.reason == mark:
            change.verdict, change.reason, changed = c.APPLIED, "", True
    is_part = any(change.reason.startswith(UNDONE_BY) for change in run.changed)
    run.state, run.reason = state_of(run.changed), IN_PART if is_part else ""
    return changed


def _moved(run: Run, changes: Sequence[c.Change]) -> list[str]:
    """Return the live paths that are no longer what the run left: taking them back would lose something."""
    return [path for _, path in paths_changed_since(run.roots, changes)]


def _refuse(store: Store, run: Run, moved: Sequence[str]) -> NoReturn:
    """Say which paths have moved on, and by which runs."""
    lost = [each for each in moved if not any(os.path.isdir(os.path.dirname(f"{root}/{each}")) for root in run.roots)]
    later = [each.name for each in _built_upon(store, run, moved, lost)]
    by = f", by run{'s' if len(later) > 1 else ''} {first_names(later, _NAMED)}" if later else ""
    hint = f"see fumehood diff {run.name}; --force takes it back and saves what is there now"
    if lost:
        hint = _NO_DIRECTORY  # by force neither
        if later:
            hint = f"first: fumehood undo {later[0]}"
    elif later:
        hint = f"first: fumehood undo {later[0]}; or --force, which saves what is there now"
    raise UndoRefused(
        f"changed since run {run.name}: {first_names([*map(path_in_list, moved)], _NAMED)}{by}", hint=hint
    )


def on_top(store: Store, run: Run) -> list[Run]:
    """Return the runs that an undo of one is refused for, the latest first."""
    moved = _moved(run, _planned(store, as_it_stands(store, run), (), "", "").changed)
    return _built_upon(store, run, moved, moved)


def _built_upon(store: Store, run: Run, moved: Sequence[str], lost: Sequence[str]) -> list[Run]:
    """Return the later runs that changed some paths too, or the directories of those that are lost, the latest first.

    Neither those that came to nothing, nor what was taken back meanwhile, nor the undo that did so.
    """
    paths = [*moved[:_NAMED], *dict.fromkeys(split(each)[0] for each in lost[:_NAMED])]
    names_of_later = [
        name
        for path in paths
        for name, change in later_versions(store.database, run.run, path)
        if change.verdict == c.APPLIED
    ]
    # Those that began before this one, went in after it had begun, and made what the paths are now.
    places = [c.Change(number, path, c.MODIFIED, c.FILE) for number in range(len(run.roots)) for path in paths]
    for _, now, status, _ in stat_changes(run.roots, places):
        earlier = later_versions(store.database, run.run, now.path, by_earlier=True)
        names_of_later += (name for name, each in earlier if each.verdict == c.APPLIED and is_state_after(each, status))
    if run.act == CHECKPOINT and run.of is not None:
        names_of_later.append(run.of)  # it began before and ended after it
    later = [store.history.find(name) for name in dict.fromkeys(reversed(names_of_later))]
    names = {each.run for each in later}
    return [each for each in later if each.state in ("applied", "held") and each.of not in names]


# ---- By force: what is in the project now counts as what is to be taken out, and is so saved in the layer.

_NO_DIRECTORY = "move the directory back, or make it; then undo again"


def _counted_as_they_are(run: Run, changes: Sequence[c.Change]) -> list[c.Change]:
    """Return the changes of an undo, judged against the project as it is; what is so already is left out."""
    anew: list[c.Change] = []
    tops, inside = split_by_tree(changes)
    for live, change, entry, is_reached in stat_changes(run.roots, tops):
        if not is_reached and change.after is not None:
            raise UndoRefused(f"the directory of {printable(change.path)} is gone", hint=_NO_DIRECTORY)
        now = None if entry is None else stamp_of(entry)
        anew += _anew(live, change, now, inside.get((change.root, change.path), ()))
    if not anew:
        raise UndoRefused(f"there is nothing to undo: the project is as before run {run.name}", hint="fumehood log")
    return c.by_path(anew)


def _anew(live: int, change: c.Change, now: c.Stamp | None, inside: Sequence[c.Change]) -> Iterator[c.Change]:
    """Yield one change, with what lies in it, between what is there now and what was there before the run."""
    after = change.after
    stamp = after or now
    if stamp is None:
        return
    if c.is_directory_mode(change) and now is not None and now.kind == c.DIRECTORY:
        kind = c.MODE
        # It stays the directory that it is.
        after = c.Stamp(now.kind, now.inode, now.size, now.modified_ns, now.changed_ns, stamp.mode, now.links)
    elif now is not None and after is not None and now.kind == after.kind == c.DIRECTORY:
        raise UndoRefused(
            f"a directory stands at {printable(change.path)} where another was", hint="move it away, then undo again"
        )
    elif now is None or after is None:
        kind = c.ADDED if now is None else c.DELETED
    else:
        kind = c.MODIFIED if now.kind == after.kind else c.TYPE
    yield c.Change(change.root, change.path, kind, stamp.kind, before=now, after=after, verdict=c.APPLIED)
    if kind == c.MODE:
        return
    for each in inside:
        if each.after is not None:
            yield c.Change(each.root, each.path, c.ADDED, each.after.kind, after=each.after, within=change.path,
                           verdict=c.APPLIED)  # fmt: skip
    if now is not None and now.kind == c.DIRECTORY:
        for path, entry in walk(live, change.path):
            before = stamp_of(entry)
            yield c.Change(change.root, path, c.DELETED, before.kind, before=before, within=change.path,
                           verdict=c.APPLIED)  # fmt: skip
