"""A person's word on held changes: apply them after all, or throw them away."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.judge import keep_replacements_whole
from fumehood.core.plan import is_plain
from fumehood.errors import ApplyFailed, BadRequest
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.nofollow import looks, open_top
from fumehood.service import layers as layering
from fumehood.service.apply import take_over
from fumehood.service.sandbox import DISCARDED, HELD, hold_all, outcomes, record_files, state_of
from fumehood.store.audit import named
from fumehood.store.history import APPLYING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

DONE = "done"


def apply_held(store: Store, project: Project, run: Run) -> Run:
    """Take over what a run had to hold."""
    with InterruptsHeld(), store.alone(project.id):
        run = recorded(store, project, run)
        _must_be_held(run)
        # Those applied before are done; only what was held moves now.
        waiting = [change for change in run.found if change.verdict in (c.HELD, c.CONFLICT)]
        earlier = [change for change in run.found if change.verdict == c.APPLIED]
        for change in earlier:
            change.verdict = DONE
        for change in waiting:
            change.verdict, change.reason = c.APPLIED, ""
        keep_replacements_whole(run.found)
        _count_links(run)
        # What is in flight is `applied` in the journal, what was applied before is `done`.
        store.history.note_verdicts(run, APPLYING, decided=f"apply {named(waiting)}")
        expected = outcomes(run.found)
        failure = None
        try:
            take_over(
                run.found, run.roots, store.uppers(run), run.run, journal=lambda state: store.history.note(run, state)
            )
        except ApplyFailed as error:
            failure = error
            hold_all(run, error)
        is_otherwise = bool(earlier) or outcomes(run.found) != expected
        for change in earlier:
            change.verdict = c.APPLIED
        if failure is None:
            run.state, run.reason = state_of(run.found), ""
        store.history.settle(run, rewrite=is_otherwise)
        record_files(store, project.id, run)
        if failure is not None:
            raise ApplyFailed(failure.message, hint=f"the changes are still held: fumehood show {run.run}") from failure
        layering.drop_if_empty(store.places, run.layer, run.found)
    return run


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


def discard_held(store: Store, project: Project, run: Run) -> Run:
    """Throw away what a run had to hold; what it had applied stays, with its backups."""
    with InterruptsHeld(), store.alone(project.id):
        run = recorded(store, project, run)
        _must_be_held(run)
        waiting = [change for change in run.found if change.verdict in (c.HELD, c.CONFLICT)]
        for change in waiting:
            change.verdict, change.reason = c.DISCARDED, "a person threw it away"
        kept = any(change.verdict == c.APPLIED for change in run.found)
        run.state, run.reason = "applied" if kept else DISCARDED, ""
        store.history.settle(run, rewrite=True, decided=f"discard {named(waiting)}")
        record_files(store, project.id, run)
        layering.drop_if_empty(store.places, run.layer, run.found)
    return run


def recorded(store: Store, project: Project, run: Run) -> Run:
    """Return a run of this project as it is now that nobody else can apply or undo."""
    if run.project != project.path:
        raise BadRequest(f"run {run.run} is of another project: {run.project}", hint="fumehood log lists this one's")
    return store.history.find(run.run)


def _must_be_held(run: Run) -> None:
    if run.state != HELD:
        raise BadRequest(f"run {run.run} holds nothing: it is {run.state}", hint=f"fumehood show {run.run}")
