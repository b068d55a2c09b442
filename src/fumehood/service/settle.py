"""The end of a run: its changes are applied, held or discarded as their verdicts say, and the result is recorded."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.paths import is_in
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
AGAIN = "run again: "  # how the reason begins of a run that was run again
TAKEN_BACK = "taken back by run "  # how the reason begins of a run of which an undo took back the last change


def settle(
    store: Store, project: int, run: Run, output: Sequence[Printed], layers: Sequence[Layer], on_conflict: str,
    *, may_run_again: bool = False, indexes: SeenIndexes | None = None,
) -> None:  # fmt: skip
    """Apply, hold or discard the changes, and record it; raises RunAgain if the run gives way to other runs."""
    if run.changed:
        from fumehood.service.conflicts import find_conflicts

        find_conflicts(store, run, layers, indexes)
    if state_of(run.changed) in (APPLIED, HELD):
        from fumehood.service.conflicts import drop_changes_without_base, forget_and_run_again, yield_to_waiting_runs

        with store.lock_project(project):
            if run.below:  # only under the lock: until then a person may discard a held run that this command saw
                dropped = drop_changes_without_base(store, run)
                if dropped is not None and may_run_again:
                    forget_and_run_again(store, run, dropped.reason, f"{run.roots[dropped.root]}/{dropped.path}")
            if any(change.verdict == c.APPLIED for change in run.changed):
                if may_run_again and not run.reason.startswith(AGAIN):
                    yield_to_waiting_runs(store, run, store.place_being_retried(project))
                _apply(store, run, output, layers, on_conflict, may_run_again=may_run_again)
                record_files(store, project, run)
                # Only under the lock: an undo that waits for it puts the files that this run added into these layers.
                layering.drop_if_empty(store.places, run.run, run.changed)
                return
            if state_of(run.changed) == HELD:
                _hold(store, project, run, output, layers, may_run_again=may_run_again)
                record_files(store, project, run)
                return
    run.state = state_of(run.changed)
    store.history.write_journal(run, output)
    # As late as possible: when the command has just ended, the kernel is still busy with these directories.
    layering.remove_work_directories(layers)
    if run.changed:
        from fumehood.core.judge import is_mounted_on

        if any(map(is_mounted_on, run.changed)):
            return
    layering.drop(store.places, run.run)


def _apply(
    store: Store, run: Run, output: Sequence[Printed], layers: Sequence[Layer], on_conflict: str,
    *, may_run_again: bool,
) -> None:  # fmt: skip
    """Apply the changes that may be applied, and hold the rest; the project's lock is taken."""
    from fumehood.core.judge import HOLD_ALL
    from fumehood.service.apply import apply_changes
    from fumehood.service.conflicts import yield_to_other_runs

    run.state = APPLYING
    store.history.write_journal(run, output)
    layering.remove_work_directories(layers)
    expected = change_outcomes(run.changed)

    def apply(on_conflict: str) -> None:
        apply_changes(
            run.changed, run.roots, [layer.upper for layer in layers], run.run,
            journal=lambda state: store.history.record_progress(run, state), on_conflict=on_conflict,
        )  # fmt: skip

    try:
        if may_run_again:
            # Of a run that is then run again, nothing may be applied: so first, any conflict holds everything.
            applied_changes = [change for change in run.changed if change.verdict == c.APPLIED]
            apply(HOLD_ALL)
            yield_to_other_runs(store, run)
            held = [change for change in applied_changes if change.verdict == c.HELD]
            for change in held:
                change.verdict, change.reason = c.APPLIED, ""
            if held:
                apply(on_conflict)
        else:
            apply(on_conflict)
        run.state = state_of(run.changed)
    except ApplyFailed as error:
        hold_all_changes(run, error)
    record_outcome(store, run, outcome_changed=change_outcomes(run.changed) != expected)


def _hold(
    store: Store, project: int, run: Run, output: Sequence[Printed], layers: Sequence[Layer], *, may_run_again: bool
) -> None:
    """Hold the run; the project's lock is taken."""
    from fumehood.service.conflicts import check_conflicts_in_draft, yield_to_other_runs

    if run.draft is not None:
        check_conflicts_in_draft(store, project, run, may_run_again=may_run_again)
    elif may_run_again:
        yield_to_other_runs(store, run)
    run.state = SETTLING
    store.history.write_journal(run, output)
    layering.remove_work_directories(layers)
    _set_apart_held(store, run)
    run.state = HELD
    store.history.settle(run, rewrite=False)


def record_outcome(store: Store, run: Run, *, outcome_changed: bool, decided_at: float | None = None) -> None:
    """Record what became of a run. If it is held, its layer is set apart first.

    `outcome_changed`: verdicts, reasons or stamps differ from those in the journal.
    """
    if run.state == HELD:
        store.history.record_progress(run, SETTLING)
        outcome_changed = False
        _set_apart_held(store, run)
    store.history.settle(run, rewrite=outcome_changed, decided_at=decided_at)


def _set_apart_held(store: Store, run: Run) -> None:
    from fumehood.service.held import move_to_held_trees

    try:
        move_to_held_trees(store, run)
    except OSError as error:
        raise Unfinished(
            f"what waits for a person could not be set apart: {error.strerror}",
            hint="the next fumehood command finishes it",
        ) from error


def record_files(store: Store, project: int, run: Run) -> None:
    """Bring the records of the project's files up to date with a settled run; the project's lock is taken."""
    if run.draft is not None:
        return  # changes in a draft are not in the project
    # Imported here: most runs have nothing to record.
    from fumehood.service.files import record_run

    record_run(store, project, run)


def state_of(changes: Sequence[c.Change]) -> str:
    """Return the state of a run, from the verdicts on its changes."""
    verdicts = {change.verdict for change in changes}
    if not verdicts.isdisjoint(c.WAITING):
        return HELD
    if c.APPLIED in verdicts:
        return APPLIED
    return DISCARDED if verdicts else EMPTY


def change_outcomes(changes: Sequence[c.Change]) -> list[tuple[str, c.Stamp | None, c.Stamp | None]]:
    """Return what an apply may modify in each change, to compare it afterwards."""
    return [(change.verdict, change.before, change.after) for change in changes]


def hold_all_changes(run: Run, error: FumehoodError) -> None:
    """Hold every change of a run whose apply was taken back, with the reason."""
    run.state, run.reason = HELD, error.message
    for change in run.changed:
        if change.verdict == c.APPLIED:
            change.verdict, change.reason = c.HELD, error.message


# ---- Which of a run's changes a person means by some paths, and which others must go with them.


def changes_at(run: Run, paths: Sequence[str], *, here: str = "") -> list[c.Change]:
    """Return the changes at or below the paths; without a path, all changes.

    A path may be absolute, relative to `here` (where the person is), or relative to a root, as reports
    show it; the first meaning that names a change counts. A run that failed changed nothing.
    """
    if run.state == "failed":
        return []
    if not paths:
        return list(run.changed)
    wanted: set[int] = set()
    for path in paths:
        places = (_changes_below(run, place) for place in possible_paths(run.roots, path, here))
        numbers = next((each for each in places if each), None)
        if numbers is None:
            said = f"{run_label(run)} did not change {printable(path) or 'an empty path'}"
            raise BadRequest(said, hint=show_command(run))
        wanted |= numbers
    return [change for n, change in enumerate(run.changed) if n in wanted]


def possible_paths(roots: Sequence[str], path: str, here: str) -> Iterator[str]:
    """Yield the absolute paths that a path may mean, the likeliest first."""
    if not path or "\0" in path:
        return
    if not path.startswith("/"):
        for place in (here, *roots) if here else roots:
            yield os.path.normpath(f"{place}/{path}")
        return
    plain = os.path.normpath(path)
    yield plain
    # With symlinks resolved, except for the last name: it may be a symlink that was itself changed.
    yield os.path.join(os.path.realpath(os.path.dirname(plain)), os.path.basename(plain))


def _changes_below(run: Run, place: str) -> set[int]:
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


def with_dependent_changes(run: Run, changes: Sequence[c.Change], *, into_project: bool) -> list[c.Change]:
    """Return the changes, and those with the same verdict that must go with them.

    If they go `into_project`, an entry in a new directory needs that directory. A replaced or deleted
    directory goes as a whole, and a repository or database is never left half in one state and half in another.
    """
    verdicts = {change.verdict for change in changes}
    if not verdicts.isdisjoint(c.WAITING):
        verdicts |= set(c.WAITING)  # a held tree may contain a conflict
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
    kinds = (c.ADDED, c.DELETED, c.TYPE) if into_project else (c.DELETED, c.TYPE)
    around = c.all_directories_above(by_place[place] for place in wanted) & by_place.keys()
    wanted |= {place for place in around if by_place[place].change in kinds}
    whole = {place for place in wanted & trees if by_place[place].change in (c.DELETED, c.TYPE)}
    return [
        change
        for change in alike
        if (change.root, change.path) in wanted or (change.within and (change.root, change.within) in whole)
    ]


# ---- The scan of what a command changed, and what becomes of the run if the scan does not finish: its layers are kept.

INTERRUPTED = "interrupted while its changes were looked at"
_LONG_S = 1.0  # of work: who types Ctrl-C twice at once means the command both times, not the scan after it


class InterruptibleScan:
    """Lets Ctrl-C end a long scan, in a `with` block: nothing is applied yet.

    An interrupted run is left as if its process had died, so the next start scans it again and holds it. A run with
    files nested too deeply could never be applied: it has failed, and a person can look into its directory or discard
    it.
    """

    def __init__(
        self, store: Store, run: Run, output: Sequence[Printed], signals: Signals | None, interrupts: InterruptsHeld
    ) -> None:
        self._store = store
        self._run = run
        self._output = output
        self._signals = signals
        self._interrupts = interrupts

    def __enter__(self) -> None:
        if self._signals is not None:
            self._signals.raise_again(after_s=_LONG_S)
        self._interrupts.release()

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
                return  # a program that uses the library gets the KeyboardInterrupt itself
            run.state = HELD  # it will be, once the next command has started
            unfinished = Unfinished(
                f"run {run.name} was {INTERRUPTED}: nothing was applied",
                hint=f"what it wrote is kept, and the next fumehood command holds it; {discard}",
            )
            unfinished.exit_code = 130
            raise self._with_report(unfinished) from error

    def _record(self, state: str, reason: str) -> None:
        self._run.state, self._run.reason = state, reason
        self._store.history.end(self._run, self._output)

    def _with_report(self, error: FumehoodError) -> FumehoodError:
        error.run, error.report = self._run.run, self._run.as_dict()
        return error
