"""The end of a run: verdicts take effect, what waits is set apart, and all of it is recorded."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.masks import is_in
from fumehood.core.report import Run, printable, run_label, show_command
from fumehood.errors import ApplyFailed, BadRequest, FumehoodError, TooDeep, Unfinished
from fumehood.linux.libc import InterruptsHeld
from fumehood.service import layers as layering
from fumehood.store.history import APPLYING, SETTLING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.linux.gitindex import SeenIndexes
    from fumehood.linux.namespaces import Layer
    from fumehood.linux.terminal import Signals
    from fumehood.service.store import Store
    from fumehood.store.history import Printed

APPLIED, HELD, DISCARDED, EMPTY = "applied", "held", "discarded", "empty"
FAILED, REFUSED = "failed", "refused"
AGAIN = "run again: "  # begins the reason of a command that is
TAKEN_BACK = "taken back by run "  # begins the reason of what an undo took back at last


def settle(
    store: Store, project: int, run: Run, printed: Sequence[Printed], layers: Sequence[Layer], on_conflict: str,
    *, may_run_again: bool = False, indexes: SeenIndexes | None = None,
) -> None:  # fmt: skip
    """Let the verdicts take effect, and record it; raises RunAgain where it gives way to other runs instead."""
    if run.changed:
        from fumehood.service.conflicts import find_conflicts

        find_conflicts(store, run, layers, indexes)
    if state_of(run.changed) in (APPLIED, HELD):
        from fumehood.service.conflicts import drop_changes_without_base, forget, yield_to_waiting_runs

        with store.alone(project):
            if run.below:  # not before: a person may just be about to discard what it saw
                gone = drop_changes_without_base(store, run)
                if gone is not None and may_run_again:
                    forget(store, run, gone.reason, f"{run.roots[gone.root]}/{gone.path}")
            if any(change.verdict == c.APPLIED for change in run.changed):
                if may_run_again and not run.reason.startswith(AGAIN):
                    yield_to_waiting_runs(store, run, store.whose_turn(project))
                _apply(store, run, printed, layers, on_conflict, may_run_again=may_run_again)
                record_files(store, project, run)
                # Not after: an undo that waits for the lock puts what was added there.
                layering.drop_if_empty(store.places, run.run, run.changed)
                return
            if state_of(run.changed) == HELD:
                _hold(store, project, run, printed, layers, may_run_again=may_run_again)
                record_files(store, project, run)
                return
    run.state = state_of(run.changed)
    store.history.write_journal(run, printed)
    # Not before: the kernel is still busy with it when the command has just ended.
    layering.remove_work_directories(layers)
    if run.changed:
        from fumehood.core.judge import is_mounted_on

        if any(map(is_mounted_on, run.changed)):
            return
    layering.drop(store.places, run.run)


def _apply(
    store: Store, run: Run, printed: Sequence[Printed], layers: Sequence[Layer], on_conflict: str,
    *, may_run_again: bool,
) -> None:  # fmt: skip
    """Apply what is to be applied, and hold what waits; the project's lock is held."""
    from fumehood.core.judge import HOLD_ALL
    from fumehood.service.apply import take_over
    from fumehood.service.conflicts import yield_to_other_runs

    run.state = APPLYING
    store.history.write_journal(run, printed)
    layering.remove_work_directories(layers)
    expected = outcomes(run.changed)

    def apply(on_conflict: str) -> None:
        take_over(
            run.changed, run.roots, [layer.upper for layer in layers], run.run,
            journal=lambda state: store.history.record_progress(run, state), on_conflict=on_conflict,
        )  # fmt: skip

    try:
        if may_run_again:
            # Nothing may be applied of what is then done again.
            going = [change for change in run.changed if change.verdict == c.APPLIED]
            apply(HOLD_ALL)
            yield_to_other_runs(store, run)
            held = [change for change in going if change.verdict == c.HELD]
            for change in held:
                change.verdict, change.reason = c.APPLIED, ""
            if held:
                apply(on_conflict)
        else:
            apply(on_conflict)
        run.state = state_of(run.changed)
    except ApplyFailed as error:
        hold_all(run, error)
    record_outcome(store, run, outcome_changed=outcomes(run.changed) != expected)


def _hold(
    store: Store, project: int, run: Run, printed: Sequence[Printed], layers: Sequence[Layer], *, may_run_again: bool
) -> None:
    """Set apart what waits; the project's lock is held."""
    from fumehood.service.conflicts import check_conflicts_in_draft, yield_to_other_runs

    if run.draft is not None:
        check_conflicts_in_draft(store, project, run, may_run_again=may_run_again)
    elif may_run_again:
        yield_to_other_runs(store, run)
    run.state = SETTLING
    store.history.write_journal(run, printed)
    layering.remove_work_directories(layers)
    _set_apart(store, run)
    run.state = HELD
    store.history.settle(run, rewrite=False)


def record_outcome(store: Store, run: Run, *, outcome_changed: bool, decided_at: float | None = None) -> None:
    """Record what became of a run, once that is so: what waits is set apart first."""
    if run.state == HELD:
        store.history.record_progress(run, SETTLING)
        outcome_changed = False
        _set_apart(store, run)
    store.history.settle(run, rewrite=outcome_changed, decided_at=decided_at)


def _set_apart(store: Store, run: Run) -> None:
    from fumehood.service.held import set_apart

    try:
        set_apart(store, run)
    except OSError as error:
        raise Unfinished(
            f"what waits for a person could not be set apart: {error.strerror}",
            hint="the next fumehood command finishes it",
        ) from error


def record_files(store: Store, project: int, run: Run) -> None:
    """Bring the records of files up to date with what was just settled; the project's lock is held."""
    if run.draft is not None:
        return  # nobody waits for what is in a draft
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
    for change in run.changed:
        if change.verdict == c.APPLIED:
            change.verdict, change.reason = c.HELD, error.message


# ---- Which of a run's changes a person means by paths, and which others must go with them.


def chosen(run: Run, paths: Sequence[str], *, here: str = "") -> list[c.Change]:
    """Return the changes that paths name, each by itself or by a directory above it; no path names all.

    A path may be absolute, relative to `here` (where the person is), or relative to a root, as reports
    show it; the first of these that names a change counts. A run that failed changed nothing.
    """
    if run.state == "failed":
        return []
    if not paths:
        return list(run.changed)
    wanted: set[int] = set()
    for path in paths:
        places = (_named(run, place) for place in meanings(run.roots, path, here))
        numbers = next((each for each in places if each), None)
        if numbers is None:
            said = f"{run_label(run)} did not change {printable(path) or 'an empty path'}"
            raise BadRequest(said, hint=show_command(run))
        wanted |= numbers
    return [change for n, change in enumerate(run.changed) if n in wanted]


def meanings(roots: Sequence[str], path: str, here: str) -> Iterator[str]:
    """Yield the absolute paths that a path may mean, the likeliest first."""
    if not path or "\0" in path:
        return
    if not path.startswith("/"):
        for place in (here, *roots) if here else roots:
            yield os.path.normpath(f"{place}/{path}")
        return
    plain = os.path.normpath(path)
    yield plain
    # By way of a symlink; the last name is left alone, because it may be a symlink that was changed itself.
    yield os.path.join(os.path.realpath(os.path.dirname(plain)), os.path.basename(plain))


def _named(run: Run, place: str) -> set[int]:
    """Return the numbers of the changes at or below an absolute path."""
    numbers: set[int] = set()
    for number, root in enumerate(run.roots):
        if place == root or (root.startswith(f"{place}/") and is_in(place, run.roots)):
            numbers |= {n for n, change in enumerate(run.changed) if change.root == number}
        elif place.startswith(f"{root}/"):
            path = place[len(root) + 1 :]
            numbers |= {
                n
                for n, change in enumerate(run.changed)
                if change.root == number and (change.path == path or change.path.startswith(f"{path}/"))
            }
    return numbers


def with_dependent_changes(run: Run, changes: Sequence[c.Change], *, forth: bool) -> list[c.Change]:
    """Add the changes of the same fate that can't stay behind.

    On the way `forth` into the project, what lies in a new directory needs that. A replaced or deleted directory goes
    whole, and the state of a repository or database is never half of two histories.
    """
    verdicts = {change.verdict for change in changes}
    if not verdicts.isdisjoint(c.WAITING):
        verdicts |= set(c.WAITING)  # a tree is held for a conflict in it
    alike = [change for change in run.changed if change.verdict in verdicts]
    by_place = {(change.root, change.path): change for change in alike}
    trees = {(change.root, change.within) for change in alike if change.within is not None}
    wanted = {(change.root, change.path) for change in changes}
    from fumehood.core.judge import git_directories, state_of_path

    gits = git_directories(run.roots, run.changed)
    states = {state_of_path(f"{run.roots[each.root]}/{each.path}", gits) for each in changes}
    for change in alike:
        if state_of_path(f"{run.roots[change.root]}/{change.path}", gits) in states:
            wanted.add((change.root, change.path))
    kinds = (c.ADDED, c.DELETED, c.TYPE) if forth else (c.DELETED, c.TYPE)
    around = c.all_directories_above(by_place[place] for place in wanted) & by_place.keys()
    wanted |= {place for place in around if by_place[place].change in kinds}
    whole = {place for place in wanted & trees if by_place[place].change in (c.DELETED, c.TYPE)}
    return [
        change
        for change in alike
        if (change.root, change.path) in wanted or (change.within and (change.root, change.within) in whole)
    ]


# ---- The look at what a command changed, and what becomes of the run where it comes to no end: what it wrote is kept.

INTERRUPTED = "interrupted while its changes were looked at"
_LONG_S = 1.0  # of work: whoever types Ctrl-C twice means the command, not what comes after it


class InterruptibleScan:
    """Lets Ctrl-C end a look that takes long, in a `with`: nothing is applied yet.

    An interrupted run is left as one whose process died, so the next start looks again and holds it. What is nested too
    deeply would never be taken over: that run has failed, and a person can look into its directory, or discard it.
    """

    def __init__(
        self, store: Store, run: Run, printed: Sequence[Printed], signals: Signals | None, interrupts: InterruptsHeld
    ) -> None:
        self._store = store
        self._run = run
        self._printed = printed
        self._signals = signals
        self._interrupts = interrupts

    def __enter__(self) -> None:
        if self._signals is not None:
            self._signals.interrupt_again(after_s=_LONG_S)
        self._interrupts.let_in()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._interrupts.hold()
        if self._signals is not None:
            self._signals.note()
        run = self._run
        discard = f"fumehood discard {run.name} throws it away"
        if isinstance(error, TooDeep):
            self._record(FAILED, error.message)
            directory = self._store.places.run(run.run)
            hint = f"what it wrote is kept in {directory}; {discard}"
            raise self._with_report(TooDeep(error.message, hint=hint)) from error
        if isinstance(error, Unfinished):
            self._record(run.state, error.message)
            raise self._with_report(error)
        gone = [root for root in run.roots if not os.path.isdir(root)]
        if isinstance(error, OSError) and gone:
            self._record(run.state, f"{printable(gone[0])} was moved or removed while it ran")
            hint = f"what it wrote is kept, and held by the next fumehood command in the project; {discard}"
            raise self._with_report(Unfinished(f"{run.reason}: nothing was applied", hint=hint)) from error
        if isinstance(error, KeyboardInterrupt):
            self._record(run.state, INTERRUPTED)
            if self._signals is None:
                return  # whoever calls the library is told in Python's own way
            run.state = HELD  # as soon as anybody asks
            unfinished = Unfinished(
                f"run {run.name} was {INTERRUPTED}: nothing was applied",
                hint=f"what it wrote is kept, and the next fumehood command holds it; {discard}",
            )
            unfinished.exit_code = 130
            raise self._with_report(unfinished) from error

    def _record(self, state: str, reason: str) -> None:
        self._run.state, self._run.reason = state, reason
        self._store.history.end(self._run, self._printed)

    def _with_report(self, error: FumehoodError) -> FumehoodError:
        error.run, error.report = self._run.run, self._run.as_dict()
        return error
