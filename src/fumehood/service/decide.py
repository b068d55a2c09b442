"""A person's word on held changes: apply them after all, or throw them away; all of a run, or some of its paths."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.judge import keep_replacements_whole
from fumehood.core.plan import is_plain
from fumehood.core.report import printable
from fumehood.errors import ApplyFailed, BadRequest
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.nofollow import is_version, looks, open_top
from fumehood.service import holds
from fumehood.service import layers as layering
from fumehood.service.apply import take_over
from fumehood.service.choose import chosen, with_companions
from fumehood.service.settle import HELD, conclude, hold_all, outcomes, record_files, state_of
from fumehood.store.audit import named
from fumehood.store.history import APPLYING, SETTLING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

DONE = "done"


def apply_held(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", force: bool = False
) -> Run:
    """Take over what a run had to hold; with `force`, also what was changed in the project since.

    What a person has there is then saved in the run's layer first, like any original.
    """
    with InterruptsHeld(), store.alone(project.id):
        run, waiting = _waiting(store, project, run, paths, here, forth=True)
        _refuse_before_others(store, run, waiting)
        if force:
            run.found, waiting = _judged_anew(store, run, waiting)
        elif run.below:
            _stamp_anew(run, waiting)
        failure = _apply(store, project, run, waiting)
        if failure is not None:
            raise ApplyFailed(failure.message, hint=f"the changes are still held: fumehood show {run.run}") from failure
        if run.state != HELD:
            _drop_if_unneeded(store, run)
    return run


def _waiting(
    store: Store, project: Project, run: Run, paths: Sequence[str], here: str, *, forth: bool
) -> tuple[Run, list[c.Change]]:
    """Return a run as it is now, and those of its held changes that are meant."""
    run = recorded(store, project, run)
    if run.state != HELD:
        raise BadRequest(f"run {run.run} holds nothing: it is {run.state}", hint=f"fumehood show {run.run}")
    meant = chosen(run, paths, here=here)
    waiting = [change for change in meant if change.verdict in c.WAITING]
    if not waiting:
        raise BadRequest(
            f"run {run.run} does not hold {printable(meant[0].path)}: it is {meant[0].verdict}",
            hint=f"fumehood show {run.run}",
        )
    return run, with_companions(run, waiting, forth=forth) if paths else waiting


def _refuse_before_others(store: Store, run: Run, waiting: Sequence[c.Change]) -> None:
    """What was built on something that still waits can't go before it."""
    below = holds.waiting(store, run)
    for change in waiting if below else ():
        earlier = below.under(change)
        if earlier is not None and store.history.find(earlier).state == HELD:
            raise BadRequest(
                f"{printable(change.path)} builds on run {earlier}, which is held",
                hint=f"first: fumehood apply {earlier}",
            )


def _apply(store: Store, project: Project, run: Run, waiting: Sequence[c.Change]) -> ApplyFailed | None:
    """Move what was held; those applied before are done, and what is not meant stays."""
    going = {id(change) for change in waiting}
    earlier = [change for change in run.found if change.verdict == c.APPLIED and id(change) not in going]
    reasons = [(change, change.verdict, change.reason) for change in waiting]
    for change in earlier:
        change.verdict = DONE
    for change in waiting:
        change.verdict, change.reason = c.APPLIED, ""
    keep_replacements_whole(run.found)
    _count_links(run)
    # What is in flight is `applied` in the journal, what was applied before is `done`.
    store.history.note_verdicts(run, APPLYING, decided=f"apply {named(waiting)}")
    expected, failure = outcomes(run.found), None
    others = any(state == "running" for _, state, _, _ in store.history.unfinished(project.id))
    try:
        _bring_back(store, run, others=others)
        take_over(
            run.found, run.roots, store.uppers(run), run.run, journal=lambda state: store.history.note(run, state)
        )
    except ApplyFailed as error:
        failure = error
        hold_all(run, error)
        for change, verdict, reason in reasons:
            change.verdict, change.reason = verdict, reason or error.message
    is_otherwise = bool(earlier) or outcomes(run.found) != expected
    for change in earlier:
        change.verdict = c.APPLIED
    run.state = state_of(run.found)
    if failure is None:
        run.reason = ""
    conclude(store, run, is_otherwise=is_otherwise, decided_at=time.time())
    record_files(store, project.id, run)
    return failure


def _bring_back(store: Store, run: Run, *, others: bool) -> None:
    try:
        holds.bring_back(store, run, others=others)
    except OSError as error:
        raise ApplyFailed(f"nothing was applied: {error.strerror}") from error


def _count_links(run: Run) -> None:
    """Find out which files of trees that go have other names: a person may have made some since.

    Those of a plain swap are counted when they come out, and nobody can link to what is in a layer.
    """
    for number, root in enumerate(run.roots):
        leaving = [
            change
            for change in run.found
            if change.root == number
            and change.verdict == c.APPLIED
            and change.before is not None
            and not is_plain(change)
        ]
        directory = open_top(root)
        try:
            for change, found, _ in looks(directory, leaving):
                if change.before is not None and found is not None:
                    change.before.links = found.st_nlink
        finally:
            os.close(directory)


def _stamp_anew(run: Run, waiting: Sequence[c.Change]) -> None:
    """Know what an earlier run has left in the project by its inode there: between file systems it is a copy."""
    for number, root in enumerate(run.roots):
        directory = open_top(root)
        try:
            for change, found, _ in looks(directory, [change for change in waiting if change.root == number]):
                if change.before is not None and found is not None and is_version(change.before, found):
                    change.before.inode = found.st_ino
        finally:
            os.close(directory)


def _judged_anew(store: Store, run: Run, waiting: Sequence[c.Change]) -> tuple[list[c.Change], list[c.Change]]:
    """Compare what is held with the project as it is now; what the project has already is not needed any more."""
    fresh = {(change.root, change.path): change for change in layering.scanned(holds.layers(store, run))}
    flags = {(change.root, change.path): change.flags for change in waiting}
    found, going = [change for change in run.found if (change.root, change.path) not in flags], []
    for change in waiting:
        if (change.root, change.path) not in fresh:
            change.verdict, change.reason = c.DISCARDED, "the project has it already"
            found.append(change)
    for (root, path), change in fresh.items():
        if any((root, each) in flags for each in (path, *c.above(path))):
            change.flags = flags.get((root, path), ())
            if change.before is not None:
                change.before.changed_ns = 0  # a person has seen it: later than the run is not too late now
            going.append(change)
    return c.by_path([*found, *going]), going


def discard_held(store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "") -> Run:
    """Throw away what a run had to hold; what it had applied stays, with its backups."""
    with InterruptsHeld(), store.alone(project.id):
        run, waiting = _waiting(store, project, run, paths, here, forth=False)
        later = holds.built_upon(store, project.id, run, waiting)
        if later is not None:
            raise BadRequest(
                f"run {later[0]} builds on it: {printable(later[1])}",
                hint=f"first: fumehood discard {later[0]}, or apply both",
            )
        for change in waiting:
            change.verdict, change.reason = c.DISCARDED, "a person threw it away"
        store.history.note(run, SETTLING)
        holds.throw_away(store, run)
        run.state, run.reason = state_of(run.found), ""
        store.history.settle(run, rewrite=False, decided=f"discard {named(waiting)}", decided_at=time.time())
        record_files(store, project.id, run)
        if run.state != HELD:
            _drop_if_unneeded(store, run)
    return run


def _drop_if_unneeded(store: Store, run: Run) -> None:
    """Remove the layer of a run that has nothing in it, unless an undo of some of its paths uses it."""
    if store.history.users_of(run.layer) == [run.run]:
        layering.drop_if_empty(store.places, run.layer, run.found)


def recorded(store: Store, project: Project, run: Run) -> Run:
    """Return a run of this project as it is now that nobody else can apply or undo."""
    if run.project != project.path:
        raise BadRequest(f"run {run.run} is of another project: {run.project}", hint="fumehood log lists this one's")
    return store.history.find(run.run)
