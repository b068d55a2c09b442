"""Drafts: named lines of held runs beside a project. Only their own runs see them; they are applied as one transaction.

A run in a draft is an ordinary held run, except that only later runs of its draft see it. To apply a draft, all that it
holds is folded by hard links into the layer of a new run, compared with the project as it is now, and applied, all or
nothing. If the process dies meanwhile, the new run is taken back and forgotten, and the draft is as before.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.judge import git_directories
from fumehood.core.paths import is_in
from fumehood.core.report import Run, printable
from fumehood.core.request import APPLY, DISCARD, HOLD, Request, draft_session_name
from fumehood.errors import ApplyFailed, BadRequest, ChangedMeanwhile
from fumehood.linux.copying import copy_all
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.nofollow import open_top, remove_directory
from fumehood.linux.steps import PathChanged
from fumehood.service import held as held_runs
from fumehood.service import layers as layering
from fumehood.service.draft_merge import (
    FoldedDraft,
    compare_with_project,
    keep_base_versions,
    refuse_conflicts,
    refuse_marked_texts,
    write_merge,
)
from fumehood.store.audit import first_paths
from fumehood.store.history import APPLYING, DRAFT, HELD, RUNNING, SETTLING
from fumehood.store.named import DISCARDED, MAKING, DraftRecord
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.service.store import Store
    from fumehood.store.projects import Project


# ---- Runs in a draft.

def in_draft(store: Store, project: Project, request: Request) -> Request:
    """Return a request as one of its draft: what it writes is held, and it has the draft's loopback.

    If the request names no draft, it belongs to its session's draft, which begins with the session's first command.
    """
    if request.throwaway:
        raise BadRequest("a command without a project can't be in a draft", hint="leave out --draft")
    name = request.draft or request.session
    draft = store.drafts.find_open(project.id, name)
    if draft is None and (request.creates_draft or not request.draft):
        draft = store.drafts.begin(project.id, name)
    if draft is None:
        draft = store.drafts.find(project.id, name)
    return request.replace(
        draft=draft.name, draft_number=draft.id, mode=DISCARD if request.mode == DISCARD else HOLD,
        session=request.session or draft_session_name(draft.id),
        cwd=request.cwd or ("" if request.session else project.path),
        snapshot="" if draft.base is None else store.places.frozen(draft.base),
    )  # fmt: skip


def prepare_next_run(store: Store, project: Project, run: Run) -> None:
    """Keep the project's versions of the files that a run in a draft changed, and fold held trees for the next run."""
    try:
        keep_base_versions(store, run)
        held_runs.fold_ahead(store, project.id, run)
    except OSError:
        return  # the disk is full: versions that were not kept can't be merged, and the next run folds what it sees


# ---- A new draft, with the project frozen if that is wanted.

def new_draft(store: Store, project: Project, name: str, *, frozen: bool = False) -> DraftRecord:
    """Begin a draft of a project."""
    if not frozen:
        return store.drafts.new(project.id, name)
    with store.lock_project(project.id):  # so that nothing is applied while it is copied
        store.drafts.forget_unmade(project.id)
        _remove_unneeded_frozen_copies(store)
        draft = store.drafts.new(project.id, name, state=MAKING)
        try:
            _freeze(store.places.frozen(draft.id), project.roots)
            return store.drafts.finish_making(draft)
        except BaseException:
            remove_directory(store.places.draft(draft.id))
            raise


def _remove_unneeded_frozen_copies(store: Store) -> None:
    """Remove frozen copies that a process left when it died."""
    top, needed = os.path.dirname(store.places.draft(0)), store.drafts.bases_in_use()
    for number in os.listdir(top) if os.path.isdir(top) else ():
        if int(number) not in needed:
            remove_directory(f"{top}/{number}")


def _freeze(target: str, roots: Sequence[str]) -> None:
    os.makedirs(target, 0o700)
    try:
        for number, root in enumerate(roots):
            copy = layering.frozen_copy_path(target, number, root)
            os.mkdir(copy, 0o700)
            with Closing(open_top(root)) as source, Closing(open_top(copy)) as copy_directory:
                copy_all(source, copy_directory, is_never_written=_is_never_written)
    except OSError as error:
        raise BadRequest(
            f"the project can't be frozen: {error.strerror}: {printable(str(error.filename or target))}",
            hint="that takes a copy of all of it; without --frozen, a draft shows the project as it is now",
        ) from error


def _is_never_written(path: str, status: os.stat_result) -> bool:
    """Return True if a file is only ever made and removed, as git's objects are: a link to it is as good as a copy."""
    return not status.st_mode & 0o222 and f"/{path}".rpartition("/.git/")[2].startswith("objects/")


# ---- All that a draft would change, as one run.

class Preview:
    """What a draft would change, for a `with` block: a run that exists only in a directory of its own."""

    def __init__(self, store: Store, project: Project, draft: DraftRecord) -> None:
        self._store = store
        self._project = project
        self._draft = draft
        self._run_directory = layering.RunDirectory(store.places, new_id())

    def __enter__(self) -> FoldedDraft:
        try:
            with self._store.lock_held_trees(self._project.id, settling=True):
                folded = _fold_draft(self._store, self._project, self._draft, self._run_directory)
                _judge(self._store, self._project, folded)  # only for the flags
        except BaseException:
            self.__exit__()
            raise
        for change in folded.run.changed:
            change.verdict, change.reason = c.HELD, f"in draft {self._draft.name}"
        return folded

    def __exit__(self, *_error: object) -> None:
        layering.drop(self._store.places, self._run_directory.run)
        self._run_directory.__exit__()


def _fold_draft(
    store: Store, project: Project, draft: DraftRecord, directory: layering.RunDirectory
) -> FoldedDraft:
    """Fold all that a draft holds into a layer over the project as it is now.

    The caller has the lock on the held trees, and drops the layer, even if this fails.
    """
    members = store.history.held_runs(project.id, draft.id)
    roots = tuple(dict.fromkeys(root for name in reversed(members) for root in store.history.roots(name)))
    roots = roots or project.roots
    layering.require_roots_exist(roots)
    run = Run(
        run=directory.run, project=project.path, command=f"draft apply {draft.name}", cwd=project.path, state=HELD,
        started_at=time.time(), mode=DRAFT, roots=roots, name=f"draft {draft.name}",
    )  # fmt: skip
    directory.create()
    layers = layering.layers_of(store.places, run.run, roots)
    for number, trees in enumerate(held_runs.held_trees(store, members, roots)):
        upper = layers[number].upper
        os.mkdir(os.path.dirname(upper), 0o700)
        if trees:
            held_runs.fold_root(upper, trees, for_project=True)
        else:
            os.mkdir(upper, 0o700)
            layering.copy_metadata(upper, roots[number])
    run.changed = layering.scan_layers(layers, whole=False)
    return FoldedDraft(run=run, layers=layers, members=tuple(members))


def _judge(store: Store, project: Project, folded: FoldedDraft) -> None:
    """Judge the changes of a draft like those of a command whose changes are applied."""
    from fumehood.service.verdicts import hold_what_owners_forbid, judge_all

    changes, layers = folded.run.changed, folded.layers
    for change in changes:
        change.flags = ()
    judge_all(folded.run, layers, APPLY, store.policy_of(project).rules, writable_elsewhere=store.writable_directories)
    hold_what_owners_forbid(changes, layers)


# ---- The end of a draft: apply or discard.

def apply_draft(
    store: Store, project: Project, draft: DraftRecord, *, force: bool = False, only: Sequence[str] = (),
    expected: str = "", besides: str = "",
) -> Run:  # fmt: skip
    """Apply all that a draft holds as one run, merged with what the project has changed meanwhile.

    If both have changed the same lines, DraftConflict is raised and nothing is done. With `force`, the draft's version
    is applied there, and the project's version is saved first. What the host would execute by itself is held, as for
    any run. With `only`, nothing but these paths is applied, and the rest is discarded. `expected` and `besides` as in
    `refuse_if_changed`.
    """
    directory = layering.RunDirectory(store.places, new_id())
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld(), directory:
        _refuse_if_settled_or_running(store, draft)
        refuse_if_changed(store, draft, expected, besides)
        try:
            folded = _fold_draft(store, project, draft, directory)
            refuse_marked_texts(store, draft, folded)
            run = folded.run
            gits = git_directories(run.roots, run.changed)
            if only:
                run.changed = [change for change in run.changed if is_in(change.path, only)]
            merges, conflicts = compare_with_project(store, draft, folded)
            if conflicts and not force:
                refuse_conflicts(draft, conflicts, gits)
            for merge in merges:
                if not merge.places:
                    write_merge(folded, merge)
            _judge(store, project, folded)
        except BaseException:
            layering.drop(store.places, directory.run)
            raise
        if not run.changed:
            run.state = "empty"
            store.drafts.close(draft, "applied", "the project had it all already")
            layering.drop(store.places, run.run)
        else:
            _apply_folded(store, project, draft, folded)
        remove_draft_layers(store, draft, folded.members)
    return run


def _refuse_if_settled_or_running(store: Store, draft: DraftRecord) -> None:
    """Refuse if somebody else has settled the draft, or a command runs in it. No other can begin under our locks."""
    if not store.drafts.is_open(draft.id):
        raise BadRequest(f"draft {draft.name} is no longer there", hint="fumehood log tells what became of it")
    if store.drafts.has_running_command(draft):
        raise BadRequest(f"a command is running in draft {draft.name}", hint="wait for it, or end it: fumehood ps")


def refuse_if_changed(store: Store, draft: DraftRecord, expected: str, besides: str = "") -> None:
    """Raise ChangedMeanwhile unless a draft is in the state that the person was shown.

    `expected` is that state (`Drafts.state_id`); "" is any. Events of the run `besides` do not count.
    """
    if expected and store.drafts.state_id(draft, besides) != expected:
        raise ChangedMeanwhile(
            f"draft {draft.name} has changed since it was shown: nothing was done", hint="look at it again, then decide"
        )


def _apply_folded(store: Store, project: Project, draft: DraftRecord, folded: FoldedDraft) -> None:
    from fumehood.service.apply import apply_changes
    from fumehood.service.settle import record_files, state_of

    run = folded.run
    store.drafts.note_run(draft, run.run)
    run.state = RUNNING
    store.history.begin(project.id, run, os.getpid())
    run.state = APPLYING
    store.history.write_journal(run)
    try:
        apply_changes(
            run.changed, run.roots, [layer.upper for layer in folded.layers], run.run, all_or_nothing=True,
            journal=lambda state: store.history.record_progress(run, state),
        )  # fmt: skip
    except (ApplyFailed, PathChanged) as error:
        store.history.withdraw(run, str(error))
        layering.drop(store.places, run.run)
        reason = printable(str(error)).removeprefix("nothing was applied: ")
        reason += " changed meanwhile" if isinstance(error, PathChanged) else ""
        hint = f"it is all in draft {draft.name} still"
        raise ApplyFailed(f"nothing was applied: {reason}", hint=hint) from error
    run.state, run.duration_s = state_of(run.changed), time.time() - run.started_at
    if run.state == HELD:
        store.history.record_progress(run, SETTLING)
        held_runs.move_to_held_trees(store, run)
    store.history.settle(run, rewrite=True, decided=f"apply draft {draft.name}: {first_paths(run.changed)}")
    record_files(store, project.id, run)


def remove_draft_layers(store: Store, draft: DraftRecord, members: Sequence[str]) -> None:
    """Remove the layers of a settled draft, and its frozen copy unless another draft shares it."""
    for name in members:
        held_runs.retire_folds_of(store, draft.project, name, others_run=True)
    if not store.has_running_command(draft.project):
        held_runs.remove_unused_folds(store, draft.project)
    for name in members:
        layering.drop(store.places, name)
    if draft.base is not None and not store.drafts.is_base_shared(draft):
        remove_directory(store.places.draft(draft.base))


def discard_draft(store: Store, project: Project, draft: DraftRecord, *, expected: str = "") -> int:
    """Throw away a draft with all that it holds; return how many runs held something.

    `expected` as in `refuse_if_changed`.
    """
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld():
        _refuse_if_settled_or_running(store, draft)
        refuse_if_changed(store, draft, expected)
        members = store.drafts.close(draft, DISCARDED, f"draft {draft.name} was thrown away")
        remove_draft_layers(store, draft, members)
    return len(members)
