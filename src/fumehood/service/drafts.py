"""Drafts: named lines of held runs beside a project, seen by their own runs only, and applied as one transaction.

A run in a draft is a held run as any other, save that only later runs of its draft see it. Applying folds all that the
draft holds into the layer of a new run by hard links, compares that with the project as it is now, and takes it over:
all of it or nothing. Should we die on the way, the new run is taken back and forgotten, and the draft is as it was.
"""

from __future__ import annotations

import marshal
import os
import time

from fumehood.core import changes as c
from fumehood.core.edits import CONFLICT_MARKS, merge_texts
from fumehood.core.judge import git_directories
from fumehood.core.masks import is_below, is_in
from fumehood.core.patterns import lies_in_cache
from fumehood.core.report import Run, first_names, how_many, printable
from fumehood.core.request import APPLY, DISCARD, HOLD, Request, draft_session_name
from fumehood.core.value import Value
from fumehood.errors import ApplyFailed, BadRequest, ChangedMeanwhile, DraftConflict
from fumehood.linux.cache import plain_file
from fumehood.linux.copying import copy_all, copy_entry, copy_with_content
from fumehood.linux.gitindex import equivalent_stamp
from fumehood.linux.gitobjects import freshen_object, is_object_or_note
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.nofollow import (
    make_parents,
    open_below,
    open_top,
    remove_directory,
    remove_tree,
    split,
    stamp_of,
    stat_each,
    stat_entry,
)
from fumehood.linux.steps import PathChanged
from fumehood.service import held as held_runs
from fumehood.service import layers as layering
from fumehood.store.audit import first_paths
from fumehood.store.history import APPLYING, DRAFT, HELD, RUNNING, SETTLING
from fumehood.store.named import DISCARDED, MAKING, DraftRecord
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fumehood.linux.namespaces import Layer
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Place = tuple[str, str]  # a root, and a path in it

LONGEST = 1 << 20  # bytes of a file that is still merged line by line
BASE = "base"  # beside a run's layer: files of the project as they were before the run changed them
REBASED = "rebased"  # beside a run's first layer: which versions of the project its changes are made on
_FROZEN = "frozen"
_SAME = "same"
IN_PROJECT = "in the project"


# ---- What has changed in the project below a draft: which version each path was made on, and both brought together.

class WholeDraft(Value):
    """What a draft would change, folded into the layer of a run of its own."""

    run: Run
    layers: tuple[Layer, ...]
    members: tuple[str, ...]  # the held runs, the latest first


class Conflict(Value):
    """A path that both a draft and the project have changed; `text` has both with marks, where it is a text."""

    root: str
    path: str
    reason: str
    text: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return what programs are told."""
        return self.fields()


def frozen_at(store: Store, number: int) -> str:
    """Return where the frozen copies of a project's roots lie that a draft made."""
    return f"{store.places.draft(number)}/{_FROZEN}"


def is_gits(root: str, path: str, gits: Collection[str]) -> bool:
    """Return True if a path is in a repository's own directory; `gits` are those that what changed in them shows."""
    return ".git" in path.split("/") or any(is_below(f"{root}/{path}", git) for git in gits)


class _Bases:
    """Which versions of the project the changes of a draft were made on."""

    def __init__(self, store: Store, draft: DraftRecord, members: Sequence[str]) -> None:
        self._store = store
        self._draft = draft
        self._made_on: dict[Place, tuple[str, c.Change]] = {}
        self._rebased: dict[Place, tuple[str, c.Stamp | None]] = {}
        for name in reversed(members):
            run = store.history.find(name)
            for change in run.changed:
                if change.verdict in (*c.WAITING, c.UNSUPPORTED):
                    self._made_on.setdefault((run.roots[change.root], change.path), (name, change))
            for place, stamp in rebased_by(store, run):
                self._rebased[place] = name, stamp

    def is_as_it_was(self, change: c.Change, root: str, live: int) -> bool:
        """Return True if the project still has the version that a change was made on."""
        place = root, change.path
        if place in self._rebased:
            before = self._rebased[place][1]
        elif place in self._made_on:
            first = self._made_on[place][1]
            if first.verdict == c.CONFLICT:
                return False  # a person's edit came while the command ran, and what it began with is gone
            before = first.before
        else:
            return False  # it is new in the project, in a directory that the draft removes or replaces
        if before is None or change.before is None:
            return before is change.before
        if before.is_same_or_copy(change.before):
            return True
        parent, name = split(change.path)
        with Closing(open_below(live, parent)) as directory:
            status = stat_entry(directory, name)
        return status is not None and equivalent_stamp(before, live, change.path, status) is not None

    def content(self, change: c.Change, root: str, roots: Sequence[str]) -> bytes | None:
        """Return the version that a change was made on; None where it is not kept."""
        name = self._rebased.get((root, change.path), self._made_on.get((root, change.path), ("", None)))[0]
        if not name:
            return None
        if self._draft.base is not None and (root, change.path) not in self._rebased:
            top = layering.frozen_copy(frozen_at(self._store, self._draft.base), roots.index(root), root)
        else:
            number = self._store.history.roots(name).index(root)
            top = self._store.places.layer(name, number, BASE)
        return _content(top, change.path)


def rebased_by(store: Store, run: Run) -> Iterator[tuple[Place, c.Stamp | None]]:
    """Yield what a run that brought a draft up to date has merged, with the versions that the project had."""
    try:
        with open(f"{store.places.run(run.run)}/0/{REBASED}", "rb") as file:
            noted = marshal.load(file)  # noqa: S302 - ours
    except FileNotFoundError:
        return
    for path, text in noted:
        yield (run.roots[0], path), c.Stamp.read(text) if text else None


def note_rebased(store: Store, run: Run, merges: Sequence[Merge]) -> None:
    """Write down which versions of the project a run of a draft has merged, with their contents."""
    base = store.places.layer(run.run, 0, BASE)
    os.makedirs(base, 0o700, exist_ok=True)
    noted: list[tuple[str, str]] = []
    with Closing(open_top(base)) as top:
        for merge in merges:
            parent, name = split(merge.change.path)
            make_parents(top, parent)
            with Closing(open_below(top, parent)) as directory:
                remove_tree(directory, name)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with open(os.open(name, flags, 0o600, dir_fd=directory), "wb") as target:
                    target.write(merge.live)
            if merge.change.before is not None:
                noted.append((merge.change.path, merge.change.before.text()))
    with open(f"{store.places.run(run.run)}/0/{REBASED}", "wb") as file:
        marshal.dump(noted, file)


def _content(top: str, path: str) -> bytes | None:
    """Return what a file holds, unless it is too long; None where there is none."""
    try:
        with Closing(open_top(top)) as directory:
            content = plain_file(path, directory, LONGEST + 1)
    except OSError:
        return None
    return None if content is None or len(content) > LONGEST else content


class Merge(Value):
    """A text that both a draft and the project have changed, brought together; `places` are where a person chooses."""

    change: c.Change
    root: str
    text: str
    places: int
    live: bytes  # what the project has

    @property
    def conflict(self) -> Conflict:
        """What a person is shown of one in which they must choose."""
        reason = f"both changed it, at {how_many(self.places, 'place')}"
        return Conflict(root=self.root, path=self.change.path, reason=reason, text=self.text)


def compared(store: Store, draft: DraftRecord, whole: WholeDraft) -> tuple[list[Merge], list[Conflict]]:
    """Find what the project has changed below a draft: texts that can be merged, and what else is a conflict.

    What the project has in the same way is left out of the run.
    """
    run, bases = whole.run, _Bases(store, draft, whole.members)
    gits = git_directories(run.roots, run.changed)
    merges: list[Merge] = []
    conflicts: list[Conflict] = []
    staying: list[c.Change] = []
    for number, root in enumerate(run.roots):
        with Closing(open_top(root)) as live:
            for change in run.changed:
                if change.root != number:
                    continue
                if not lies_in_cache(change.path) and not bases.is_as_it_was(change, root, live):
                    outcome = _brought_together(draft, whole, bases, change, gits)
                    if isinstance(outcome, Merge):
                        merges.append(outcome)
                    elif isinstance(outcome, Conflict):
                        conflicts.append(outcome)
                    elif outcome == _SAME:
                        continue
                staying.append(change)
    run.changed = c.by_path(staying)
    conflicts += (merge.conflict for merge in merges if merge.places)
    return merges, conflicts


def _brought_together(
    draft: DraftRecord, whole: WholeDraft, bases: _Bases, change: c.Change, gits: Collection[str]
) -> Merge | Conflict | str:
    """Bring together what a draft and the project have made of a path; nothing where the draft's version counts."""
    root = whole.run.roots[change.root]
    if change.within is None and is_object_or_note(f"{root}/{change.path}", gits):
        if change.before is None:
            return ""
        if change.kind == c.FILE and change.change != c.DELETED:  # the project keeps what it has of git's own
            with Closing(open_top(root)) as top:
                freshen_object(top, change.path)
        return _SAME
    ours, theirs = _content(whole.layers[change.root].upper, change.path), _content(root, change.path)
    is_file = change.change in (c.MODIFIED, c.MODE) and change.kind == c.FILE
    if ours is None or theirs is None or not is_file or is_gits(root, change.path, gits):
        reason = "both have changed it"
        if change.change == c.ADDED or change.before is None:
            reason = "the project has removed it, which the draft has changed"
        elif change.change == c.DELETED:
            reason = "the project has changed it, which the draft has removed"
        return Conflict(root=root, path=change.path, reason=reason)
    base = bases.content(change, root, whole.run.roots)
    if base == theirs:
        return ""
    if ours == theirs:
        return _SAME if change.change == c.MODIFIED else ""
    if b"\0" in ours + theirs:
        return Conflict(root=root, path=change.path, reason="both have changed it, and it is no text")
    texts = [None if each is None else each.decode(errors="surrogateescape") for each in (base, theirs, ours)]
    text, places = merge_texts(texts[0], texts[1] or "", texts[2] or "", (IN_PROJECT, f"draft {draft.name}"))
    return Merge(change=change, root=root, text=text, places=places, live=theirs)


def write_merge(whole: WholeDraft, merge: Merge) -> None:
    """Let the layer of a draft that is about to be applied have a merged text: a file of its own."""
    change = merge.change
    parent, name = split(change.path)
    with Closing(open_top(whole.layers[change.root].upper)) as top, Closing(open_below(top, parent)) as directory:
        spare = f".{whole.run.run}"
        copy_with_content(directory, name, directory, spare, merge.text.encode(errors="surrogateescape"))
        os.rename(spare, name, src_dir_fd=directory, dst_dir_fd=directory)
        change.after = stamp_of(os.stat(name, dir_fd=directory, follow_symlinks=False))


def refuse_marks(store: Store, draft: DraftRecord, whole: WholeDraft) -> None:
    """Refuse a draft in which somebody must still choose between two versions of some lines."""
    first = f"{CONFLICT_MARKS[0]}{IN_PROJECT}\n".encode()
    for name in whole.members:
        for (root, path), _ in rebased_by(store, store.history.find(name)):
            if root in whole.run.roots:
                content = _content(whole.layers[whole.run.roots.index(root)].upper, path)
                if content is not None and first in content:
                    raise BadRequest(
                        f"{printable(path)} has lines in draft {draft.name} that are still marked with "
                        f"{CONFLICT_MARKS[0]}",
                        hint=f"choose there: fumehood run --draft {draft.name} -- …, then apply it",
                    )


def in_draft(store: Store, project: Project, request: Request) -> Request:
    """Return a request as one of its draft: what it writes is held, and it has the draft's loopback.

    Without a name, it is the draft of its session, which begins with its first command.
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
        snapshot="" if draft.base is None else frozen_at(store, draft.base),
    )  # fmt: skip


def after_run(store: Store, project: Project, run: Run) -> None:
    """Keep what a run in a draft changed as it was in the project, and fold layers for the next run."""
    gits = git_directories(run.roots, run.changed)
    try:
        for number, root in enumerate(run.roots):
            mine = [
                change for change in run.changed
                if change.root == number and change.change == c.MODIFIED and change.kind == c.FILE
                and change.verdict == c.HELD and change.before is not None and change.before.size <= LONGEST
                and not is_gits(root, change.path, gits)
            ]  # fmt: skip
            if mine:
                _keep_base(store.places.layer(run.run, number, BASE), root, mine)
        held_runs.fold_ahead(store, project.id, run)
    except OSError:
        return  # there is no room: what was not kept can't be merged, and the next run folds what it sees


def _keep_base(target: str, root: str, changes: Sequence[c.Change]) -> None:
    """Copy files of the project that a run has changed in its draft: once a person edits one, nobody else has it."""
    with Closing(open_top(root)) as live:
        for change, entry, _ in stat_each(live, changes):
            if entry is None or change.before is None or not change.before.same(stamp_of(entry)):
                continue  # an earlier run of the draft has it, or a person was faster
            parent, name = split(change.path)
            os.makedirs(target, 0o700, exist_ok=True)
            with Closing(open_top(target)) as top:
                make_parents(top, parent)
                with Closing(open_below(top, parent)) as to, Closing(open_below(live, parent)) as source:
                    is_whole = False
                    try:
                        copy_entry(source, name, to, name)
                        now = stat_entry(source, name)
                        is_whole = now is not None and change.before.same(stamp_of(now))
                    finally:
                        if not is_whole:
                            remove_tree(to, name)  # it may be half of one version, or of two


def folded_draft(store: Store, project: Project, draft: DraftRecord, directory: layering.RunDirectory) -> WholeDraft:
    """Fold all that a draft holds into a layer over the project as it is now; the stack is ours.

    Whoever called drops the layer, also where this fails.
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
    for number, trees in enumerate(held_runs.trees(store, members, roots)):
        upper = layers[number].upper
        os.mkdir(os.path.dirname(upper), 0o700)
        if trees:
            held_runs.fold_root(upper, trees, goes=True)
        else:
            os.mkdir(upper, 0o700)
            layering.copy_metadata(upper, roots[number])
    run.changed = layering.scan_layers(layers, whole=False)
    return WholeDraft(run=run, layers=layers, members=tuple(members))


class Preview:
    """What a draft would change, for a `with` block: a run that lies nowhere but in a directory of its own."""

    def __init__(self, store: Store, project: Project, draft: DraftRecord) -> None:
        self._store = store
        self._project = project
        self._draft = draft
        self._run_directory = layering.RunDirectory(store.places, new_id())

    def __enter__(self) -> WholeDraft:
        try:
            with self._store.lock_held_trees(self._project.id, settling=True):
                whole = folded_draft(self._store, self._project, self._draft, self._run_directory)
                _judge(self._store, self._project, whole)  # for its flags: until it is applied, all of it waits
        except BaseException:
            self.__exit__()
            raise
        for change in whole.run.changed:
            change.verdict, change.reason = c.HELD, f"in draft {self._draft.name}"
        return whole

    def __exit__(self, *_error: object) -> None:
        layering.drop(self._store.places, self._run_directory.run)
        self._run_directory.__exit__()


def new_draft(store: Store, project: Project, name: str, *, frozen: bool = False) -> DraftRecord:
    """Begin a draft of a project."""
    if not frozen:
        return store.drafts.new(project.id, name)
    with store.lock_project(project.id):  # so that nothing is applied while it is copied
        store.drafts.forget_unmade(project.id)
        top, needed = os.path.dirname(store.places.draft(0)), store.drafts.bases_in_use()
        for left in os.listdir(top) if os.path.isdir(top) else ():
            if int(left) not in needed:  # a death has left it, and no draft lies on it
                remove_directory(f"{top}/{left}")
        draft = store.drafts.new(project.id, name, state=MAKING)
        try:
            _freeze(frozen_at(store, draft.id), project.roots)
            return store.drafts.finish_making(draft)
        except BaseException:
            remove_directory(store.places.draft(draft.id))
            raise


def _freeze(target: str, roots: Sequence[str]) -> None:
    os.makedirs(target, 0o700)
    try:
        for number, root in enumerate(roots):
            copy = layering.frozen_copy_path(target, number, root)
            os.mkdir(copy, 0o700)
            with Closing(open_top(root)) as source, Closing(open_top(copy)) as to:
                copy_all(source, to, is_never_written=_is_never_written)
    except OSError as error:
        raise BadRequest(
            f"the project can't be frozen: {error.strerror}: {printable(str(error.filename or target))}",
            hint="that takes a copy of all of it; without --frozen, a draft shows the project as it is now",
        ) from error


def _is_never_written(path: str, status: os.stat_result) -> bool:
    """Return True if a file is only ever made and removed, so that a link to it does as well as a copy."""
    return not status.st_mode & 0o222 and f"/{path}".rpartition("/.git/")[2].startswith("objects/")


def apply_draft(
    store: Store, project: Project, draft: DraftRecord, *, force: bool = False, only: Sequence[str] = (),
    seen: str = "", besides: str = "",
) -> Run:  # fmt: skip
    """Take over all that a draft holds as one run, merged with what the project has changed meanwhile.

    Where both have changed the same, DraftConflict is raised and nothing done; with `force`, the draft's version counts
    there, and what the project has is saved first. What the host would act on by itself is held, as of any run.
    `only` are paths: nothing else of it is taken over then, and the rest is thrown away. `seen` names the state that
    the person was shown (`Drafts.state_id`), a run `besides` left out; any other raises ChangedMeanwhile.
    """
    directory = layering.RunDirectory(store.places, new_id())
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld(), directory:
        _refuse_running(store, draft)
        refuse_another(store, draft, seen, besides)
        try:
            whole = folded_draft(store, project, draft, directory)
            refuse_marks(store, draft, whole)
            run = whole.run
            gits = git_directories(run.roots, run.changed)
            if only:
                run.changed = [each for each in run.changed if is_in(each.path, only)]
            merges, conflicts = compared(store, draft, whole)
            if conflicts and not force:
                _refuse_conflicts(draft, conflicts, gits)
            for merge in merges:
                if not merge.places:
                    write_merge(whole, merge)
            _judge(store, project, whole)
        except BaseException:
            layering.drop(store.places, directory.run)
            raise
        if not run.changed:
            run.state = "empty"
            store.drafts.close(draft, "applied", "the project had it all already")
            layering.drop(store.places, run.run)
        else:
            _take_over(store, project, draft, whole)
        drop_layers(store, draft, whole.members)
    return run


def _refuse_conflicts(draft: DraftRecord, conflicts: Sequence[Conflict], gits: Collection[str]) -> None:
    paths = first_names([printable(each.path) for each in conflicts], 3)
    way = f"fumehood draft rebase {draft.name} brings both together in the draft"
    if all(is_gits(each.root, each.path, gits) for each in conflicts):  # both have committed
        way = f"fumehood draft apply {draft.name} --as-commit leaves its commits on a branch of their own"
    error = DraftConflict(
        f"draft {draft.name} and the project have both changed {paths}: nothing was applied",
        hint=f"{way}; --force takes the draft's version, and saves what is there now",
    )
    error.conflicts = tuple(conflicts)
    raise error


def _refuse_running(store: Store, draft: DraftRecord) -> None:
    """Refuse where a command runs in a draft, or somebody was faster to settle it; no other begins meanwhile."""
    if not store.drafts.is_open(draft.id):
        raise BadRequest(f"draft {draft.name} is no longer there", hint="fumehood log tells what became of it")
    if store.drafts.has_running_command(draft):
        raise BadRequest(f"a command is running in draft {draft.name}", hint="wait for it, or end it: fumehood ps")


def refuse_another(store: Store, draft: DraftRecord, seen: str, besides: str = "") -> None:
    """Refuse a word on a draft in which something ran since it was shown."""
    if seen and store.drafts.state_id(draft, besides) != seen:
        raise ChangedMeanwhile(
            f"draft {draft.name} has changed since it was shown: nothing was done", hint="look at it again, then decide"
        )


def _judge(store: Store, project: Project, whole: WholeDraft) -> None:
    from fumehood.service.verdicts import hold_what_is_not_ours, judge_all

    for change in whole.run.changed:
        change.flags = ()
    judge_all(whole.run, whole.layers, APPLY, store.policy_of(project).rules, elsewhere=store.writable_directories)
    hold_what_is_not_ours(whole.run.changed, whole.layers)


def _take_over(store: Store, project: Project, draft: DraftRecord, whole: WholeDraft) -> None:
    from fumehood.service.apply import take_over
    from fumehood.service.settle import record_files, state_of

    run = whole.run
    store.drafts.note_run(draft, run.run)
    run.state = RUNNING
    store.history.begin(project.id, run, os.getpid())
    run.state = APPLYING
    store.history.write_journal(run)
    try:
        take_over(
            run.changed, run.roots, [layer.upper for layer in whole.layers], run.run, or_nothing=True,
            journal=lambda state: store.history.record_progress(run, state),
        )  # fmt: skip
    except (ApplyFailed, PathChanged) as error:
        store.history.withdraw(run, str(error))
        layering.drop(store.places, run.run)
        why = printable(str(error)).removeprefix("nothing was applied: ")
        why += " changed meanwhile" if isinstance(error, PathChanged) else ""
        hint = f"it is all in draft {draft.name} still"
        raise ApplyFailed(f"nothing was applied: {why}", hint=hint) from error
    run.state, run.duration_s = state_of(run.changed), time.time() - run.started_at
    if run.state == HELD:
        store.history.record_progress(run, SETTLING)
        held_runs.set_apart(store, run)
    store.history.settle(run, rewrite=True, decided=f"apply draft {draft.name}: {first_paths(run.changed)}")
    record_files(store, project.id, run)


def drop_layers(store: Store, draft: DraftRecord, members: Sequence[str]) -> None:
    """Remove the layers of a draft that is settled, and the frozen copy that it lay on, if nobody else does."""
    for name in members:
        held_runs.let_go(store, draft.project, name, others=True)
    if not store.has_running_command(draft.project):
        held_runs.tidy(store, draft.project)
    for name in members:
        layering.drop(store.places, name)
    if draft.base is not None and not store.drafts.is_base_shared(draft):
        remove_directory(store.places.draft(draft.base))


def discard_draft(store: Store, project: Project, draft: DraftRecord, *, seen: str = "") -> int:
    """Throw away a draft with all that it holds; returns how many runs held something. `seen` as in `apply_draft`."""
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True), InterruptsHeld():
        _refuse_running(store, draft)
        refuse_another(store, draft, seen)
        members = store.drafts.close(draft, DISCARDED, f"draft {draft.name} was thrown away")
        drop_layers(store, draft, members)
    return len(members)
