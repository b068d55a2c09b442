"""Take a run back: the same swaps the other way, as a run of its own, and only where nothing else would be lost."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.inverse import inverse, on_their_own, staying
from fumehood.core.plan import is_plain
from fumehood.core.report import REDO, Run, printable
from fumehood.errors import ApplyFailed, BadRequest, UndoRefused
from fumehood.linux.indexes import refreshed
from fumehood.linux.inuse import open_elsewhere
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.nofollow import is_version, looks, open_top, stamp_of, walk
from fumehood.linux.steps import Changed
from fumehood.service import layers as layering
from fumehood.service.apply import open_in_words, take_over
from fumehood.service.choose import chosen, with_companions
from fumehood.service.decide import recorded
from fumehood.service.files import record, release
from fumehood.service.force import counted_as_they_are
from fumehood.service.intact import find_backups
from fumehood.service.settle import state_of
from fumehood.store.history import APPLYING, LAST
from fumehood.store.ids import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import NoReturn

    from fumehood.service.store import Store
    from fumehood.store.history import Reach
    from fumehood.store.projects import Project

UNDONE = "undone"
_STANDING = ("applied", "held")
_UNDONE_BY = "undone by run {}"
_NAMED = 5  # paths named in a refusal
_ONCE = 2  # a layer is that of a run, and perhaps of an undo of it


def undo(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", force: bool = False,
    by: str = "",
) -> Run:  # fmt: skip
    """Bring back exactly what was there before a run; returns the undo, which can itself be undone.

    With paths, only what lies there. With `force`, also what was changed since, or is open in another program: that
    is saved in the layer first.
    `by` is the session that asks, and that the undo belongs to: an agent can't take back what a person took back.
    """
    with store.alone(project.id), InterruptsHeld() as interrupts:
        interrupts.let_in()  # nothing is done yet, and to look at everything may take long
        run = recorded(store, project, run)
        back = _planned(store, run, paths, here, by)
        first = run if back.layer == run.run else store.history.find(back.layer)
        if force:
            back.found = counted_as_they_are(run, back.found)
        else:
            # A plain swap finds out by itself; whole trees must be looked at first. So must all that was undone and
            # redone: versions may be where they would be if this had been done already.
            again = len(store.history.users_of(back.layer)) > _ONCE
            if again:
                _refuse_what_was_taken_back(store, run, back)
            _check(store, run, back, [change for change in back.found if again or not is_plain(change)])
            _refuse_open(run, back)
        find_backups(store, project, back, first)
        interrupts.hold()
        began = time.monotonic()
        store.history.begin(project.id, back, os.getpid())
        store.history.journal(back, ((b"", 0), (b"", 0)))
        stamps = [(change.before, change.after) for change in back.found]
        release(store, back)
        _perform(store, project, run, back, first)
        back.state, back.duration_s = "applied", time.monotonic() - began
        store.history.settle(
            back, rewrite=stamps != [(change.before, change.after) for change in back.found],
            others=consequences(store, run, back),
        )  # fmt: skip
        record(store, project.id, back)
        held = [change for change in first.found if change.verdict in c.WAITING]
        layering.drop_if_empty(store.places, back.layer, [*back.found, *held, *_others(store, back)])
    return back


def _others(store: Store, back: Run) -> Iterator[c.Change]:
    """Yield what other runs have in the layer of an undo, for some of its paths may have been undone before."""
    for name in store.history.users_of(back.layer):
        if name != back.run:
            other = store.history.find(name)
            yield from other.found if other.state != UNDONE else ()


def last_to_undo(store: Store, *reaches: Reach) -> Run:
    """Return the last run that changed something and is not taken back yet."""
    run = next(store.history.standing(*reaches), None)
    if run is None:
        raise BadRequest("nothing is left to undo", hint="fumehood log shows what ran; see fumehood redo too")
    return run


def to_redo(store: Store, name: str, *reaches: Reach) -> Run:
    """Return the undo that a redo takes back: the last one, or of a run, or of an undo, that is named."""
    if name == LAST:
        back = next(store.history.undos(*reaches), None)
        if back is None:
            raise BadRequest("nothing is left to redo", hint="fumehood log shows what was taken back")
        return back
    run = store.history.find(name, *reaches)
    undos = store.history.undos(*reaches, of_layer=run.layer or run.run)
    back = next((each for each in undos if run.act != "undo" or each.run == run.run), None)
    if back is None:
        raise BadRequest(f"run {run.run} is not taken back", hint=f"fumehood show {run.run}")
    return back


def _planned(store: Store, run: Run, paths: Sequence[str], here: str, by: str) -> Run:
    """Return the run that takes another back."""
    found = _to_take_back(run, paths, here)
    which = "".join(f" {path}" for path in paths)
    verb = REDO if store.history.turns(run) % 2 else "undo"
    return Run(
        run=new_id(), project=run.project, command=f"{verb} {run.run}{which}", cwd=run.project, state=APPLYING,
        act="undo", of=run.run, layer=run.layer or run.run, started_at=time.time(), roots=run.roots,
        found=found, capture=run.capture,
        session=by or None,
    )  # fmt: skip


def _refuse_what_was_taken_back(store: Store, run: Run, back: Run) -> None:
    """Refuse where a later undo of the same changes has taken this one back: it has then nothing to bring back."""
    places = {(change.root, change.path) for change in back.found}
    for name in reversed(store.history.users_of(back.layer)):
        later = store.history.find(name)
        if later.state != "failed" and any((change.root, change.path) in places for change in later.found):
            break
    else:
        return
    if store.history.turns(later) % 2 != store.history.turns(run) % 2:
        raise UndoRefused(
            f"run {run.run} was taken back by run {later.run}", hint=f"to have it back: fumehood redo {later.run}"
        )


def _check(store: Store, run: Run, back: Run, changes: Sequence[c.Change]) -> None:
    """Refuse where a live path is no longer what the run left."""
    if _moved(run, changes):
        _refuse(store, run, _moved(run, back.found))


def _why_not(store: Store, project: Project, run: Run, back: Run, first: Run) -> UndoRefused | None:
    """Look at everything that an undo would do, and return what stands in its way."""
    try:
        _check(store, run, back, back.found)
        find_backups(store, project, back, first)
    except UndoRefused as refusal:
        return refusal
    return None


def _refuse_open(run: Run, back: Run) -> None:
    busy = open_elsewhere(back.found, run.roots)
    if busy:
        raise UndoRefused(
            open_in_words(busy),
            hint="close it there, then undo again; with --force, what that program goes on writing stays in the backup",
        )


def _perform(store: Store, project: Project, run: Run, back: Run, first: Run) -> None:
    """Do it. Where something is not as the record says, everything is looked at, and it is tried once more."""
    stays = staying(first.found)
    for last in (False, True):
        try:
            take_over(
                back.found, run.roots, store.uppers(back), back.run, staying=stays, or_nothing=True,
                even_open=True, journal=lambda state: store.history.note(back, state),
            )  # fmt: skip
        except (ApplyFailed, Changed) as error:
            store.history.state(back.run, "failed", str(error))
            refusal = _why_not(store, project, run, back, first)
            if refusal is None and last:
                refusal = UndoRefused(f"nothing was undone: {error}", hint="the project is as it was before the undo")
            if refusal is not None:
                store.history.withdraw(back, refusal.message)
                raise refusal from error
            store.history.note(back, APPLYING)
        else:
            return


def _to_take_back(run: Run, paths: Sequence[str], here: str) -> list[c.Change]:
    """Return the changes that undo a run, or some of its paths, or say why there are none."""
    if run.state == UNDONE:
        raise BadRequest(f"run {run.run} is undone already", hint=f"to have its changes back: fumehood redo {run.run}")
    meant = chosen(run, paths, here=here)
    changes = inverse(with_companions(run, _applied(meant), forth=False) if paths else meant)
    if not changes:
        what = "changed nothing in the project"
        if run.state == "refused":
            what = "was refused: nothing ran"
        elif not run.sandboxed:
            what = "was not captured: it ran without a sandbox"
        if paths and meant:
            what = f"has not changed {printable(meant[0].path)} in the project: {meant[0].reason or meant[0].verdict}"
        raise BadRequest(f"run {run.run} {what}", hint=f"fumehood show {run.run}")
    if not run.layer and any(change.after is not None for change in changes):
        raise BadRequest(f"the backups of run {run.run} were cleaned away", hint="fumehood log shows later runs")
    return on_their_own(changes) if paths else changes


def _applied(changes: Sequence[c.Change]) -> list[c.Change]:
    return [change for change in changes if change.verdict == c.APPLIED]


def consequences(store: Store, run: Run, back: Run) -> list[tuple[Run, bool]]:
    """Return the runs whose states follow from an undo, and whether their changes were judged anew.

    The run is undone, all of it or some paths; where it was an undo itself, what that took back stands again.
    """
    places = {(change.root, change.path) for change in back.found}
    touched = [(run, _undone(run, places, back.run))]
    stands = True
    while run.of is not None:
        by, run = run.run, store.history.find(run.of)
        touched.append((run, (_stands_again if stands else _undone)(run, places, by)))
        stands = not stands
    return touched


def _undone(run: Run, places: set[tuple[int, str]], by: str) -> bool:
    """Mark what is undone; where that is all a run had applied, its state says so."""
    applied = _applied(run.found)
    going = [change for change in applied if (change.root, change.path) in places]
    if len(going) == len(applied):
        run.state, run.reason = UNDONE, ""
        return False
    for change in going:
        change.verdict, change.reason = c.DISCARDED, _UNDONE_BY.format(by)
    run.state = state_of(run.found)
    return True


def _stands_again(run: Run, places: set[tuple[int, str]], by: str) -> bool:
    """Let what an undo had taken back stand again; the other paths that it took back stay so."""
    mark = _UNDONE_BY.format(by)
    was_whole = run.state == UNDONE
    changed = False
    for change in run.found:
        is_meant = (change.root, change.path) in places
        if was_whole and change.verdict == c.APPLIED and not is_meant:
            change.verdict, change.reason, changed = c.DISCARDED, mark, True
        elif not was_whole and is_meant and change.reason == mark:
            change.verdict, change.reason, changed = c.APPLIED, "", True
    run.state, run.reason = state_of(run.found), ""
    return changed


def _moved(run: Run, changes: Sequence[c.Change]) -> list[str]:
    """Return the live paths that are no longer what the run left: taking them back would lose something."""
    moved: list[str] = []
    for number, root in enumerate(run.roots):
        mine = [change for change in changes if change.root == number]
        if mine:
            moved += _moved_on(root, mine)
    return moved


def _refuse(store: Store, run: Run, moved: Sequence[str]) -> NoReturn:
    """Say which paths have moved on, and by which runs."""
    later = _built_upon(store, run, moved[:_NAMED])
    more = f" and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
    by = f", by run{'s' if len(later) > 1 else ''} {', '.join(later)}" if later else ""
    raise UndoRefused(
        f"changed since run {run.run}: {', '.join(printable(path) for path in moved[:_NAMED])}{more}{by}",
        hint=f"first: fumehood undo {later[0]}; or --force, which saves what is there now"
        if later
        else f"see fumehood diff {run.run}; --force takes it back and saves what is there now",
    )


def _built_upon(store: Store, run: Run, paths: Sequence[str]) -> list[str]:
    """Return the later runs that changed some paths too, the latest first.

    Neither those that came to nothing, nor what was taken back meanwhile, nor the undo that did so.
    """
    found = [
        name
        for path in paths
        for name, change in store.history.later_versions(run.run, path)
        if change.verdict == c.APPLIED
    ]
    later = [store.history.find(name) for name in dict.fromkeys(reversed(found))]
    names = {each.run for each in later}
    return [each.run for each in later if each.state in _STANDING and each.of not in names]


def _moved_on(root: str, changes: Sequence[c.Change]) -> list[str]:
    """Return the paths of one root that are not as the changes expect to find them; the others are stamped anew."""
    inside: dict[str, list[c.Change]] = {}
    for change in changes:
        if change.within is not None:
            inside.setdefault(change.within, []).append(change)
    live = open_top(root)
    moved = []
    try:
        for change, found, is_reached in looks(live, [change for change in changes if change.within is None]):
            before = change.before
            if before is None or found is None:
                if not is_reached or before is not None or found is not None:
                    moved.append(change.path)
            elif (now := _as_left(live, change.path, before, found)) is None:
                moved.append(change.path)
            else:
                change.before = now
                if before.kind == c.DIRECTORY and change.change != c.MODE:
                    moved += _moved_inside(live, change.path, inside.get(change.path, ()))
    finally:
        os.close(live)
    return moved


def _as_left(live: int, path: str, before: c.Stamp, found: os.stat_result) -> c.Stamp | None:
    """Return the stamp of what lies at a path now, if that is what a run left; a git index may be refreshed since."""
    return stamp_of(found, before.meaning) if is_version(before, found) else refreshed(before, live, path, found)


def _moved_inside(live: int, top: str, inside: Sequence[c.Change]) -> list[str]:
    """Return what was added to, taken from or changed in a directory that a run had put there."""
    expected = {change.path: change for change in inside if change.before is not None}
    moved = []
    for path, found in walk(live, top):
        change = expected.pop(path, None)
        now = None if change is None or change.before is None else _as_left(live, path, change.before, found)
        if change is None or now is None:
            moved.append(path)
        else:
            change.before = now
    return moved + list(expected)
