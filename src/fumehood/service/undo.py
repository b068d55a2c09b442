"""Take a run back: the same swaps the other way, as a run of its own, and only where nothing else would be lost."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.inverse import inverse, staying
from fumehood.core.plan import is_plain
from fumehood.core.report import Run, printable
from fumehood.errors import ApplyFailed, BadRequest, UndoRefused
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.nofollow import is_version, looks, open_top, stamp_of, walk
from fumehood.linux.steps import Changed
from fumehood.service import layers as layering
from fumehood.service.apply import take_over
from fumehood.service.decide import recorded
from fumehood.service.files import record, release
from fumehood.service.settle import state_of
from fumehood.store.history import APPLYING
from fumehood.store.ids import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.service.store import Store
    from fumehood.store.projects import Project

UNDONE = "undone"
_NAMED = 5  # paths named in a refusal


def undo(store: Store, project: Project, run: Run) -> Run:
    """Bring back exactly what was there before a run; returns the undo, which can itself be undone."""
    with InterruptsHeld(), store.alone(project.id):
        run = recorded(store, project, run)
        back = _planned(run)
        first = run if back.layer == run.run else store.history.find(back.layer)
        # A plain swap finds out by itself; whole trees must be looked at first.
        _check(store, run, back, [change for change in back.found if not is_plain(change)])
        began = time.monotonic()
        store.history.begin(project.id, back, os.getpid())
        store.history.journal(back, ((b"", 0), (b"", 0)))
        stamps = [(change.before, change.after) for change in back.found]
        release(store, back)
        _perform(store, run, back, staying(first.found))
        back.state, back.duration_s = "applied", time.monotonic() - began
        store.history.settle(
            back, rewrite=stamps != [(change.before, change.after) for change in back.found],
            others=undone(store, run),
        )  # fmt: skip
        record(store, project.id, back)
        held = [change for change in first.found if change.verdict in (c.HELD, c.CONFLICT)]
        layering.drop_if_empty(store.places, back.layer, [*back.found, *held])
    return back


def _planned(run: Run) -> Run:
    """Return the run that takes another back."""
    return Run(
        run=new_id(), project=run.project, command=f"undo {run.run}", cwd=run.project, state=APPLYING,
        act="undo", of=run.run, layer=run.layer or run.run, started_at=time.time(), roots=run.roots,
        found=_to_take_back(run), capture=run.capture,
    )  # fmt: skip


def _check(store: Store, run: Run, back: Run, changes: Sequence[c.Change]) -> None:
    """Refuse where a live path is no longer what the run left, or where a backup is gone."""
    _refuse_where_moved_on(run, changes)
    _find_backups(store, back, changes)


def _perform(store: Store, run: Run, back: Run, stays: frozenset[tuple[int, str]]) -> None:
    """Do it. Where something is not as the record says, everything is looked at, and it is tried once more."""
    for last in (False, True):
        try:
            take_over(
                back.found, run.roots, store.uppers(back), back.run, staying=stays, or_nothing=True,
                journal=lambda state: store.history.note(back, state),
            )  # fmt: skip
        except (ApplyFailed, Changed) as error:
            store.history.state(back.run, "failed", str(error))
            _check(store, run, back, back.found)
            if last:
                raise UndoRefused(
                    f"nothing was undone: {error}", hint="the project is as it was before the undo"
                ) from error
            store.history.note(back, APPLYING)
        else:
            return


def _to_take_back(run: Run) -> list[c.Change]:
    """Return the changes that undo a run, or say why there are none."""
    if run.state == UNDONE:
        raise BadRequest(f"run {run.run} is undone already", hint="undo the undo to have its changes back")
    changes = inverse(run.found)
    if not changes:
        raise BadRequest(f"run {run.run} changed nothing in the project", hint=f"fumehood show {run.run}")
    if not run.layer and any(change.after is not None for change in changes):
        raise BadRequest(f"the backups of run {run.run} were cleaned away", hint="fumehood log shows later runs")
    return changes


def undone(store: Store, run: Run) -> list[tuple[str, str]]:
    """Return the states that follow: the run is undone; where it was an undo, what that took back stands again."""
    states = [(run.run, UNDONE)]
    stands = True
    while run.of is not None:
        run = store.history.find(run.of)
        states.append((run.run, state_of(run.found) if stands else UNDONE))
        stands = not stands
    return states


def _find_backups(store: Store, back: Run, changes: Sequence[c.Change]) -> None:
    """Let changes name what lies in the layers now: a backup may have got another inode since it was judged.

    Layers are made again where they were dropped because they held nothing.
    """
    for number, upper in enumerate(store.uppers(back)):
        os.makedirs(upper, 0o700, exist_ok=True)
        layer = open_top(upper)
        try:
            wanted = [change for change in changes if change.root == number and _is_kept(change)]
            for change, found, _ in looks(layer, wanted):
                if found is None:
                    raise UndoRefused(
                        f"the backup of {printable(change.path)} is gone",
                        hint=f"it should lie in {store.places.run(back.layer)}",
                    )
                change.after = stamp_of(found)
        finally:
            os.close(layer)


def _is_kept(change: c.Change) -> bool:
    is_mode_alone = change.change == c.MODE and change.kind == c.DIRECTORY
    return change.after is not None and not is_mode_alone


def _refuse_where_moved_on(run: Run, changes: Sequence[c.Change]) -> None:
    """Name the live paths that are no longer what the run left: taking them back would lose something."""
    moved: list[str] = []
    for number, root in enumerate(run.roots):
        mine = [change for change in changes if change.root == number]
        if mine:
            moved += _moved_on(root, mine)
    if moved:
        more = f" and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
        raise UndoRefused(
            f"changed since run {run.run}: {', '.join(printable(path) for path in moved[:_NAMED])}{more}",
            hint=f"see fumehood diff {run.run}; undo later runs first",
        )


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
            elif not is_version(before, found):
                moved.append(change.path)
            else:
                change.before = stamp_of(found)
                if before.kind == c.DIRECTORY and change.change != c.MODE:
                    moved += _moved_inside(live, change.path, inside.get(change.path, ()))
    finally:
        os.close(live)
    return moved


def _moved_inside(live: int, top: str, inside: Sequence[c.Change]) -> list[str]:
    """Return what was added to, taken from or changed in a directory that a run had put there."""
    expected = {change.path: change for change in inside if change.before is not None}
    moved = []
    for path, found in walk(live, top):
        change = expected.pop(path, None)
        if change is None or change.before is None or not is_version(change.before, found):
            moved.append(path)
        else:
            change.before = stamp_of(found)
    return moved + list(expected)
