"""The end of a run: verdicts take effect, what waits is set apart, and all of it is recorded."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.errors import ApplyFailed, Unfinished
from fumehood.service import layers as layering
from fumehood.store.history import APPLYING, SETTLING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.errors import FumehoodError
    from fumehood.linux.overlay import Layer
    from fumehood.service.store import Store
    from fumehood.store.history import Printed

APPLIED, HELD, DISCARDED, EMPTY = "applied", "held", "discarded", "empty"
FAILED, REFUSED = "failed", "refused"


def settle(
    store: Store, project: int, run: Run, printed: Sequence[Printed], layers: Sequence[Layer], on_conflict: str
) -> None:
    """Let the verdicts take effect, and record it."""
    find_conflicts(store, run, layers)
    state = state_of(run.found)
    if any(change.verdict == c.APPLIED for change in run.found):
        with store.alone(project):
            _apply(store, run, printed, layers, on_conflict)
            record_files(store, project, run)
        layering.drop_if_empty(store.places, run.run, run.found)
    elif state == HELD:
        with store.alone(project):
            _hold(store, run, printed, layers)
            record_files(store, project, run)
    else:
        run.state = state
        store.history.journal(run, printed)
        # Not before: the kernel is still busy with it when the command has just ended.
        layering.drop_scratch(layers)
        layering.drop(store.places, run.run)


def find_conflicts(store: Store, run: Run, layers: Sequence[Layer]) -> None:
    """Mark what a person changed after the run had begun: their version stays, the run's waits.

    Before anything is recorded, because the scan came after the edit: later, the person's version would look like the
    one that the run had changed. Both times are the file system's own, so they can be compared; that of a directory
    says only that something in it changed. What lies on a held version is told by that.
    """
    if not run.found:
        return
    began = os.stat(os.path.dirname(os.path.dirname(layers[0].upper))).st_mtime_ns
    late = [
        change
        for change in run.found
        if change.before is not None
        and change.before.changed_ns > began
        and change.before.kind != c.DIRECTORY
        and change.verdict in (c.APPLIED, c.HELD)
    ]
    if late and run.below:
        from fumehood.service.holds import waiting

        below = waiting(store, run)
        late = [change for change in late if below.under(change) is None]
    if late:
        from fumehood.core.judge import keep_replacements_whole
        from fumehood.core.together import CHANGED_SINCE

        for change in late:
            change.reason = f"{CHANGED_SINCE}; {change.reason}" if change.flags and change.reason else CHANGED_SINCE
            change.verdict = c.CONFLICT
        keep_replacements_whole(run.found)


def _apply(
    store: Store, run: Run, printed: Sequence[Printed], layers: Sequence[Layer], on_conflict: str
) -> None:
    from fumehood.service.apply import take_over

    run.state = APPLYING
    store.history.journal(run, printed)
    layering.drop_scratch(layers)
    expected = outcomes(run.found)
    try:
        take_over(
            run.found, run.roots, [layer.upper for layer in layers], run.run,
            journal=lambda state: store.history.note(run, state), on_conflict=on_conflict,
        )  # fmt: skip
        run.state = state_of(run.found)
    except ApplyFailed as error:
        hold_all(run, error)
    conclude(store, run, is_otherwise=outcomes(run.found) != expected)


def conclude(store: Store, run: Run, *, is_otherwise: bool, decided_at: float | None = None) -> None:
    """Record what became of a run, once that is so: what waits is set apart first."""
    if run.state == HELD:
        store.history.note(run, SETTLING)
        is_otherwise = False
        _set_apart(store, run)
    store.history.settle(run, rewrite=is_otherwise, decided_at=decided_at)


def _hold(store: Store, run: Run, printed: Sequence[Printed], layers: Sequence[Layer]) -> None:
    run.state = SETTLING
    store.history.journal(run, printed)
    layering.drop_scratch(layers)
    _set_apart(store, run)
    run.state = HELD
    store.history.settle(run, rewrite=False)


def _set_apart(store: Store, run: Run) -> None:
    from fumehood.service.holds import set_apart

    try:
        set_apart(store, run)
    except OSError as error:
        raise Unfinished(
            f"what waits for a person could not be set apart: {error.strerror}",
            hint="the next fumehood command finishes it",
        ) from error


def record_files(store: Store, project: int, run: Run) -> None:
    """Bring the records of files up to date with what was just settled; the project's lock is held."""
    # Here, so that it costs nothing where nothing was applied.
    from fumehood.service.files import record

    record(store, project, run)


def state_of(changes: Sequence[c.Change]) -> str:
    """Name the state of a run by what became of its changes."""
    verdicts = {change.verdict for change in changes}
    if not verdicts.isdisjoint(c.WAITING):
        return HELD
    if c.APPLIED in verdicts:
        return APPLIED
    return DISCARDED if verdicts else EMPTY


def outcomes(changes: Sequence[c.Change]) -> list[tuple[str, c.Stamp | None, c.Stamp | None]]:
    """Return what an apply may have changed in the changes themselves, to be compared later."""
    return [(change.verdict, change.before, change.after) for change in changes]


def hold_all(run: Run, error: FumehoodError) -> None:
    """An apply was taken back: everything waits for a person, with the reason."""
    run.state, run.reason = HELD, error.message
    for change in run.found:
        if change.verdict == c.APPLIED:
            change.verdict, change.reason = c.HELD, error.message
