"""Drafts: named lines of held runs beside a project, seen by their own runs only, and applied as one transaction.

A run in a draft is a held run as any other, save that only later runs of its draft see it. Applying folds all that the
draft holds into the layer of a new run by hard links, compares that with the project as it is now, and takes it over:
all of it or nothing. Should we die on the way, the new run is taken back and forgotten, and the draft is as it was.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.judge import judge
from fumehood.core.masks import is_in
from fumehood.core.report import Run, first_of, printable
from fumehood.core.request import APPLY, DISCARD, HOLD, loopback_of
from fumehood.errors import ApplyFailed, BadRequest, ChangedMeanwhile, DraftConflict
from fumehood.linux.copying import copy_entry, copy_whole
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.namespaces import mounts_below
from fumehood.linux.nofollow import look, looks, make_parents, open_below, open_top, remove_tree, split, stamp_of
from fumehood.linux.steps import Changed
from fumehood.service import held as held_runs
from fumehood.service import layers as layering
from fumehood.service.draft_merge import (
    BASE,
    LONGEST,
    WholeDraft,
    compared,
    frozen_at,
    is_gits,
    refuse_marks,
    write_merge,
)
from fumehood.store.audit import named
from fumehood.store.drafts import DISCARDED, MAKING, DraftRecord
from fumehood.store.history import APPLYING, DRAFT, HELD, RUNNING, SETTLING
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.request import Request
    from fumehood.service.draft_merge import Conflict
    from fumehood.service.store import Store
    from fumehood.store.projects import Project


# ---- A run in a draft.

def in_draft(store: Store, project: Project, request: Request) -> Request:
    """Return a request as one of its draft: what it writes is held, and it has the draft's loopback.

    Without a name, it is the draft of its session, which begins with its first command.
    """
    if request.thrown:
        raise BadRequest("a command without a project can't be in a draft", hint="leave out --draft")
    name = request.draft or request.session
    draft = store.drafts.at(project.id, name)
    if draft is None and (request.begins_draft or not request.draft):
        draft = store.drafts.begin(project.id, name)
    if draft is None:
        draft = store.drafts.find(project.id, name)
    return request.replace(
        draft=draft.name, draft_number=draft.id, mode=DISCARD if request.mode == DISCARD else HOLD,
        session=request.session or loopback_of(draft.id),
        cwd=request.cwd or ("" if request.session else project.path),
        frozen="" if draft.base is None else frozen_at(store, draft.base),
    )  # fmt: skip


def after_run(store: Store, project: Project, run: Run) -> None:
    """Keep what a run in a draft changed as it was in the project, and fold layers for the next run."""
    for number, root in enumerate(run.roots):
        mine = [change for change in run.changed if change.root == number and _may_be_merged(change)]
        if mine:
            _keep_base(store.places.layer(run.run, number, BASE), root, mine)
    held_runs.fold_ahead(store, project.id, run)


def _may_be_merged(change: c.Change) -> bool:
    before = change.before
    return (
        change.change == c.MODIFIED and change.kind == c.FILE and change.verdict == c.HELD
        and before is not None and before.size <= LONGEST and not is_gits(change.path)
    )  # fmt: skip


def _keep_base(target: str, root: str, changes: Sequence[c.Change]) -> None:
    """Copy files of the project that a run has changed in its draft: once a person edits one, nobody else has it."""
    with Closing(open_top(root)) as live:
        for change, entry, _ in looks(live, changes):
            if entry is None or change.before is None or not change.before.same(stamp_of(entry)):
                continue  # an earlier run of the draft has it, or a person was faster
            parent, name = split(change.path)
            os.makedirs(target, 0o700, exist_ok=True)
            with Closing(open_top(target)) as top:
                make_parents(top, parent)
                with Closing(open_below(top, parent)) as to, Closing(open_below(live, parent)) as source:
                    copy_entry(source, name, to, name)
                    now = look(source, name)
                    if now is None or not change.before.same(stamp_of(now)):
                        os.unlink(name, dir_fd=to)  # it may be half of two versions


# ---- All that a draft holds, as one run that is not recorded.

def folded_draft(store: Store, project: Project, draft: DraftRecord, claim: layering.Claim) -> WholeDraft:
    """Fold all that a draft holds into a layer over the project as it is now; the stack is ours."""
    members = store.history.held(project.id, draft.id)
    roots = tuple(dict.fromkeys(root for name in reversed(members) for root in store.history.roots(name)))
    roots = roots or project.roots
    run = Run(
        run=claim.run, project=project.path, command=f"draft apply {draft.name}", cwd=project.path, state=HELD,
        started_at=time.time(), mode=DRAFT, roots=roots, name=f"draft {draft.name}",
    )  # fmt: skip
    claim.take()
    layers = layering.layers_of(store.places, run.run, roots)
    try:
        for number, trees in enumerate(held_runs.trees(store, members, roots)):
            upper = layers[number].upper
            os.mkdir(os.path.dirname(upper), 0o700)
            if trees:
                held_runs.fold_root(upper, trees, goes=True)
            else:
                os.mkdir(upper, 0o700)
                layering.resemble(upper, roots[number])
        run.changed = layering.scanned(layers, whole=False)
    except BaseException:
        layering.drop(store.places, run.run)
        raise
    return WholeDraft(run=run, layers=layers, members=tuple(members))


class Preview:
    """What a draft would change, for a `with` block: a run that lies nowhere but in a directory of its own."""

    def __init__(self, store: Store, project: Project, draft: DraftRecord) -> None:
        self._store = store
        self._project = project
        self._draft = draft
        self._claim = layering.Claim(store.places, new_id())

    def __enter__(self) -> WholeDraft:
        with self._store.stack(self._project.id, settling=True):
            whole = folded_draft(self._store, self._project, self._draft, self._claim)
            try:
                _judge(self._store, self._project, whole)  # for its flags: until it is applied, all of it waits
            except BaseException:
                layering.drop(self._store.places, self._claim.run)
                raise
        for change in whole.run.changed:
            change.verdict, change.reason = c.HELD, f"in draft {self._draft.name}"
        return whole

    def __exit__(self, *_error: object) -> None:
        layering.drop(self._store.places, self._claim.run)
        self._claim.__exit__()


# ---- A person's word on a draft.

def new_draft(store: Store, project: Project, name: str, *, frozen: bool = False) -> DraftRecord:
    """Begin a draft of a project."""
    if not frozen:
        return store.drafts.new(project.id, name)
    with store.alone(project.id):  # so that nothing is applied while it is copied
        store.drafts.forget_unmade(project.id)
        _sweep(store)
        draft = store.drafts.new(project.id, name, state=MAKING)
        try:
            _freeze(frozen_at(store, draft.id), project.roots)
            return store.drafts.made(draft)
        except BaseException:
            _remove(store.places.draft(draft.id))
            raise


def _sweep(store: Store) -> None:
    """Remove the frozen copies that a death has left, and no draft lies on."""
    top = os.path.dirname(store.places.draft(0))
    needed = store.drafts.bases()
    for name in os.listdir(top) if os.path.isdir(top) else ():
        if int(name) not in needed:
            _remove(f"{top}/{name}")


def _freeze(target: str, roots: Sequence[str]) -> None:
    os.makedirs(target, 0o700)
    try:
        for number, root in enumerate(roots):
            copy = layering.name_of_frozen(target, number, root)
            os.mkdir(copy, 0o700)
            with Closing(open_top(root)) as source, Closing(open_top(copy)) as to:
                copy_whole(source, to, is_never_written=_is_never_written)
    except OSError as error:
        raise BadRequest(
            f"the project can't be frozen: {error.strerror}: {printable(str(error.filename or target))}",
            hint="that takes a copy of all of it; without --frozen, a draft shows the project as it is now",
        ) from error


def _is_never_written(path: str, status: os.stat_result) -> bool:
    """Tell whether a file is only ever made and removed, so that a link to it does as well as a copy."""
    return not status.st_mode & 0o222 and f"/{path}".rpartition("/.git/")[2].startswith("objects/")


def apply_draft(
    store: Store, project: Project, draft: DraftRecord, *, force: bool = False, only: Sequence[str] = (),
    seen: str = "", besides: str = "",
) -> Run:  # fmt: skip
    """Take over all that a draft holds as one run, merged with what the project has changed meanwhile.

    Where both have changed the same, DraftConflict is raised and nothing done; with `force`, the draft's version counts
    there, and what the project has is saved first. What the host would act on by itself is held, as of any run.
    `only` are paths: nothing else of it is taken over then, and the rest is thrown away. `seen` names the state that
    the person was shown (`Drafts.shown_at`), a run `besides` left out; any other raises ChangedMeanwhile.
    """
    claim = layering.Claim(store.places, new_id())
    with store.alone(project.id), store.stack(project.id, settling=True), InterruptsHeld(), claim:
        _refuse_running(store, draft)
        refuse_another(store, draft, seen, besides)
        whole = folded_draft(store, project, draft, claim)
        try:
            refuse_marks(store, draft, whole)
            run = whole.run
            if only:
                run.changed = [each for each in run.changed if is_in(each.path, only)]
            merges, conflicts = compared(store, draft, whole)
            _refuse_conflicts(draft, () if force else conflicts)
            for merge in merges:
                if not merge.places:
                    write_merge(whole, merge)
            _judge(store, project, whole)
        except BaseException:
            layering.drop(store.places, claim.run)
            raise
        if not run.changed:
            run.state = "empty"
            store.drafts.close(draft, "applied", "the project had it all already")
            layering.drop(store.places, run.run)
        else:
            _take_over(store, project, draft, whole)
        drop_layers(store, draft, whole.members)
    return run


def _refuse_conflicts(draft: DraftRecord, conflicts: Sequence[Conflict]) -> None:
    if not conflicts:
        return
    paths = first_of([printable(each.path) for each in conflicts], 3)
    error = DraftConflict(
        f"draft {draft.name} and the project have both changed {paths}: nothing was applied",
        hint=f"fumehood draft rebase {draft.name} brings both together in the draft; --force takes the draft's version,"
        " and saves what is there now",
    )
    error.conflicts = tuple(conflicts)
    raise error


def _refuse_running(store: Store, draft: DraftRecord) -> None:
    """Refuse where a command runs in a draft, or somebody was faster to settle it; no other begins meanwhile."""
    if not store.drafts.is_open(draft.id):
        raise BadRequest(f"draft {draft.name} is no longer there", hint="fumehood log tells what became of it")
    if store.drafts.runs_now(draft):
        raise BadRequest(f"a command is running in draft {draft.name}", hint="wait for it, or end it: fumehood ps")


def refuse_another(store: Store, draft: DraftRecord, seen: str, besides: str = "") -> None:
    """Refuse a word on a draft in which something ran since it was shown."""
    if seen and store.drafts.shown_at(draft, besides) != seen:
        raise ChangedMeanwhile(
            f"draft {draft.name} has changed since it was shown: nothing was done", hint="look at it again, then decide"
        )


def _judge(store: Store, project: Project, whole: WholeDraft) -> None:
    from fumehood.service.danger_facts import concerns
    from fumehood.service.owners import hold_what_is_not_ours

    run = whole.run
    uppers = [layer.upper for layer in whole.layers]
    for change in run.changed:
        change.flags = ()
    acted_on = concerns(run.changed, run.roots, uppers, store.policy_of(project).rules)
    judge(run.changed, APPLY, acted_on, mounts_below(run.roots), None, run.roots)
    hold_what_is_not_ours(run.changed, whole.layers)


def _take_over(store: Store, project: Project, draft: DraftRecord, whole: WholeDraft) -> None:
    from fumehood.service.apply import take_over
    from fumehood.service.settle import record_files, state_of

    run = whole.run
    store.drafts.note_run(draft, run.run)
    run.state = RUNNING
    store.history.begin(project.id, run, os.getpid())
    run.state = APPLYING
    store.history.journal(run, ((b"", 0), (b"", 0)))
    try:
        take_over(
            run.changed, run.roots, [layer.upper for layer in whole.layers], run.run, or_nothing=True,
            journal=lambda state: store.history.note(run, state),
        )  # fmt: skip
    except (ApplyFailed, Changed) as error:
        store.history.withdraw(run, str(error))
        layering.drop(store.places, run.run)
        raise ApplyFailed(
            f"nothing was applied: {printable(str(error))}", hint=f"it is all in draft {draft.name} still"
        ) from error
    run.state, run.duration_s = state_of(run.changed), time.time() - run.started_at
    if run.state == HELD:
        store.history.note(run, SETTLING)
        held_runs.set_apart(store, run)
    store.history.settle(run, rewrite=True, decided=f"apply draft {draft.name}: {named(run.changed)}")
    record_files(store, project.id, run)


# In the hood and over the draft: no hook, no index of the person's, and the branch must be new. Prints where the
# repository is, below the project, and then which of the paths on its standard input git ignores.
COMMIT = r"""
set -e
directory=$(git rev-parse --absolute-git-dir)
case $directory in "$PWD"/*) ;; *) echo "the repository is not in the project: $directory" >&2; exit 1;; esac
git check-ref-format --branch "$FUMEHOOD_BRANCH" >/dev/null
cat >/tmp/paths
git check-ignore -z --stdin --no-index </tmp/paths >/tmp/ignored || [ $? = 1 ]
export GIT_INDEX_FILE=/tmp/index
parent=$(git rev-parse --quiet --verify HEAD || true)
if [ -n "$parent" ]; then git read-tree HEAD; fi
git add --all .
commit=$(git commit-tree "$(git write-tree)" ${parent:+-p "$parent"} -m "$FUMEHOOD_MESSAGE")
git -c core.hooksPath=/dev/null update-ref "refs/heads/$FUMEHOOD_BRANCH" "$commit" ""
printf '%s\n' "${directory#"$PWD"/}"
cat /tmp/ignored
"""


def commit_variables(branch: str, message: str, author: str) -> dict[str, str]:
    """Return what tells the script above which commit to make."""
    variables = {"FUMEHOOD_BRANCH": branch, "FUMEHOOD_MESSAGE": message}
    if author:
        name, opening, mail = author.partition("<")
        if not opening or not mail.endswith(">") or not name.strip():
            raise BadRequest(f"{author!r} is not an author", hint='"Name <mail@example.org>"')
        for role in ("AUTHOR", "COMMITTER"):
            variables |= {f"GIT_{role}_NAME": name.strip(), f"GIT_{role}_EMAIL": mail[:-1]}
    return variables


def drop_layers(store: Store, draft: DraftRecord, members: Sequence[str]) -> None:
    """Remove the layers of a draft that is settled, and the frozen copy that it lay on, if nobody else does."""
    for name in members:
        held_runs.let_go(store, draft.project, name, others=True)
    if not store.runs_now(draft.project):
        held_runs.tidy(store, draft.project)
    for name in members:
        layering.drop(store.places, name)
    if draft.base is not None and not store.drafts.is_lain_on(draft):
        _remove(store.places.draft(draft.base))


def _remove(directory: str) -> None:
    above, name = os.path.split(directory)
    try:
        top = open_top(above)
    except FileNotFoundError:
        return
    with Closing(top):
        remove_tree(top, name)


def discard_draft(store: Store, project: Project, draft: DraftRecord, *, seen: str = "") -> int:
    """Throw away a draft with all that it holds; returns how many runs held something. `seen` as in `apply_draft`."""
    with store.alone(project.id), store.stack(project.id, settling=True), InterruptsHeld():
        _refuse_running(store, draft)
        refuse_another(store, draft, seen)
        members = store.drafts.close(draft, DISCARDED, f"draft {draft.name} was thrown away")
        drop_layers(store, draft, members)
    return len(members)
