"""A draft and a project that has changed since: which version each change was made on, what merges, what conflicts."""

from __future__ import annotations

import marshal
import os

from fumehood.core import changes as c
from fumehood.core.judge import git_directories
from fumehood.core.paths import is_below
from fumehood.core.patterns import lies_in_cache
from fumehood.core.report import Run, first_names, how_many, printable
from fumehood.core.text_diff import CONFLICT_MARKS, merge_texts
from fumehood.core.value import Value
from fumehood.errors import BadRequest, DraftConflict
from fumehood.linux.cache import plain_file
from fumehood.linux.copying import copy_entry, copy_with_content
from fumehood.linux.gitindex import equivalent_stamp
from fumehood.linux.gitobjects import freshen_object, is_object_or_note
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import (
    make_parents,
    open_below,
    open_top,
    remove_tree,
    split,
    stamp_of,
    stat_each,
    stat_entry,
)
from fumehood.service import layers as layering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fumehood.linux.namespaces import Layer
    from fumehood.service.store import Store
    from fumehood.store.named import DraftRecord

    Place = tuple[str, str]  # a root, and a path in it

BASE = "base"  # the directory beside a run's layer with the project's versions of the files that the run changed
_MAX_MERGED_BYTES = 1 << 20  # longer files are not merged
_REBASED = "rebased"  # the file beside a run's first layer that names the project's versions it was merged with
_IN_PROJECT = "in the project"  # the name of the project's version, in the marks around a conflict
_FIRST_MARK = f"{CONFLICT_MARKS[0]}{_IN_PROJECT}\n".encode()
_DRAFT_COUNTS, _PROJECT_HAS_IT = "the draft's version counts", "the project has it already"


class FoldedDraft(Value):
    """What a draft would change, folded into the layer of a run of its own."""

    run: Run
    layers: tuple[Layer, ...]
    members: tuple[str, ...]  # the held runs, the latest first


class Conflict(Value):
    """A path that both a draft and the project have changed; a text has both versions, with marks."""

    root: str
    path: str
    reason: str
    text: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the fields for programs."""
        return self.fields()


class Merge(Value):
    """A text that both a draft and the project have changed, with both changes in it."""

    change: c.Change
    root: str
    text: str
    places: int  # where both changed the same lines, so that a person must choose
    live: bytes  # the project's version

    @property
    def conflict(self) -> Conflict:
        """The conflict that a person is shown if they must choose."""
        reason = f"both changed it, at {how_many(self.places, 'place')}"
        return Conflict(root=self.root, path=self.change.path, reason=reason, text=self.text)


def is_git_internal(root: str, path: str, gits: Collection[str]) -> bool:
    """Return True if a path is in a repository's own directory; `gits` are those that the changes reveal."""
    return ".git" in path.split("/") or any(is_below(f"{root}/{path}", git) for git in gits)


# ---- The versions of the project on which a draft's changes were made.

class _Bases:
    """The versions of the project on which a draft's changes were made."""

    def __init__(self, store: Store, draft: DraftRecord, members: Sequence[str]) -> None:
        self._store = store
        self._draft = draft
        self._first_changes: dict[Place, tuple[str, c.Change]] = {}  # with the run
        self._rebased: dict[Place, tuple[str, c.Stamp | None]] = {}
        for name in reversed(members):
            run = store.history.find(name)
            for change in run.changed:
                if change.verdict in (*c.WAITING, c.UNSUPPORTED):
                    self._first_changes.setdefault((run.roots[change.root], change.path), (name, change))
            for place, stamp in _recorded_rebase(store, run):
                self._rebased[place] = name, stamp

    def is_unchanged(self, change: c.Change, root: str, live: int) -> bool:
        """Return True if the project still has the version on which a change was made."""
        place = root, change.path
        if place in self._rebased:
            before = self._rebased[place][1]
        elif place in self._first_changes:
            first_change = self._first_changes[place][1]
            if first_change.verdict == c.CONFLICT:
                return False  # a person's edit came while the command ran, and the version that it began with is gone
            before = first_change.before
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
        """Return the version on which a change was made, or None if it is not kept."""
        place = root, change.path
        run = self._rebased.get(place, self._first_changes.get(place, ("", None)))[0]
        if not run:
            return None
        if self._draft.base is not None and place not in self._rebased:
            top = layering.frozen_copy(self._store.places.frozen(self._draft.base), roots.index(root), root)
        else:
            top = self._store.places.layer(run, self._store.history.roots(run).index(root), BASE)
        return _short_content(top, change.path)


def keep_base_versions(store: Store, run: Run) -> None:
    """Copy the project's files that a run has changed in its draft: once a person edits one, nobody else has it."""
    gits = git_directories(run.roots, run.changed)
    for number, root in enumerate(run.roots):
        changes = [
            change for change in run.changed
            if change.root == number and change.change == c.MODIFIED and change.kind == c.FILE
            and change.verdict == c.HELD and change.before is not None and change.before.size <= _MAX_MERGED_BYTES
            and not is_git_internal(root, change.path, gits)
        ]  # fmt: skip
        if changes:
            _copy_base_versions(store.places.layer(run.run, number, BASE), root, changes)


def _copy_base_versions(target: str, root: str, changes: Sequence[c.Change]) -> None:
    with Closing(open_top(root)) as live:
        for change, entry, _ in stat_each(live, changes):
            if entry is None or change.before is None or not change.before.same(stamp_of(entry)):
                continue  # an earlier run of the draft has the copy, or a person has just changed the file
            parent, name = split(change.path)
            os.makedirs(target, 0o700, exist_ok=True)
            with Closing(open_top(target)) as top:
                make_parents(top, parent)
                with Closing(open_below(top, parent)) as copies, Closing(open_below(live, parent)) as source:
                    is_whole = False
                    try:
                        copy_entry(source, name, copies, name)
                        now = stat_entry(source, name)
                        is_whole = now is not None and change.before.same(stamp_of(now))
                    finally:
                        if not is_whole:
                            remove_tree(copies, name)  # it may be half of one version, or of two


def record_rebase(store: Store, run: Run, merges: Sequence[Merge]) -> None:
    """Record which versions of the project a run has merged into its draft, with their contents."""
    base = store.places.layer(run.run, 0, BASE)
    os.makedirs(base, 0o700, exist_ok=True)
    stamps: list[tuple[str, str]] = []
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
                stamps.append((merge.change.path, merge.change.before.text()))
    with open(f"{store.places.run(run.run)}/0/{_REBASED}", "wb") as file:
        marshal.dump(stamps, file)


def _recorded_rebase(store: Store, run: Run) -> Iterator[tuple[Place, c.Stamp | None]]:
    """Yield the paths that a run has merged into its draft, with the stamps of the project's versions."""
    try:
        with open(f"{store.places.run(run.run)}/0/{_REBASED}", "rb") as file:
            stamps = marshal.load(file)  # noqa: S302 - ours
    except FileNotFoundError:
        return
    for path, text in stamps:
        yield (run.roots[0], path), c.Stamp.read(text) if text else None


# ---- Comparing, and merging.

def compare_with_project(
    store: Store, draft: DraftRecord, folded: FoldedDraft
) -> tuple[list[Merge], list[Conflict]]:
    """Return the texts that both the draft and the project have changed, merged, and all conflicts.

    Changes that the project has too are taken out of the run.
    """
    run, bases = folded.run, _Bases(store, draft, folded.members)
    gits = git_directories(run.roots, run.changed)
    merges: list[Merge] = []
    conflicts: list[Conflict] = []
    needed: list[c.Change] = []
    for number, root in enumerate(run.roots):
        with Closing(open_top(root)) as live:
            for change in run.changed:
                if change.root != number:
                    continue
                if not lies_in_cache(change.path) and not bases.is_unchanged(change, root, live):
                    outcome = _merge(draft, folded, bases, change, gits)
                    if isinstance(outcome, Merge):
                        merges.append(outcome)
                    elif isinstance(outcome, Conflict):
                        conflicts.append(outcome)
                    elif outcome == _PROJECT_HAS_IT:
                        continue
                needed.append(change)
    run.changed = c.by_path(needed)
    conflicts += (merge.conflict for merge in merges if merge.places)
    return merges, conflicts


def _merge(
    draft: DraftRecord, folded: FoldedDraft, bases: _Bases, change: c.Change, gits: Collection[str]
) -> Merge | Conflict | str:
    """Merge a change of a draft with what the project has at its path, or say which version counts."""
    root = folded.run.roots[change.root]
    if change.within is None and is_object_or_note(f"{root}/{change.path}", gits):
        if change.before is None:
            return _DRAFT_COUNTS
        if change.kind == c.FILE and change.change != c.DELETED:  # the project keeps its own git objects and notes
            with Closing(open_top(root)) as top:
                freshen_object(top, change.path)
        return _PROJECT_HAS_IT
    drafted, live = _short_content(folded.layers[change.root].upper, change.path), _short_content(root, change.path)
    is_changed_file = change.change in (c.MODIFIED, c.MODE) and change.kind == c.FILE
    if drafted is None or live is None or not is_changed_file or is_git_internal(root, change.path, gits):
        reason = "both have changed it"
        if change.change == c.ADDED or change.before is None:
            reason = "the project has removed it, which the draft has changed"
        elif change.change == c.DELETED:
            reason = "the project has changed it, which the draft has removed"
        return Conflict(root=root, path=change.path, reason=reason)
    base = bases.content(change, root, folded.run.roots)
    if base == live:
        return _DRAFT_COUNTS
    if drafted == live:
        return _PROJECT_HAS_IT if change.change == c.MODIFIED else _DRAFT_COUNTS
    if b"\0" in drafted + live:
        return Conflict(root=root, path=change.path, reason="both have changed it, and it is no text")
    names = (_IN_PROJECT, f"draft {draft.name}")
    text, places = merge_texts(None if base is None else _text(base), _text(live), _text(drafted), names)
    return Merge(change=change, root=root, text=text, places=places, live=live)


def _text(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def write_merge(folded: FoldedDraft, merge: Merge) -> None:
    """Put a merged text into the layer of a draft that is about to be applied, as a new file."""
    change = merge.change
    parent, name = split(change.path)
    with Closing(open_top(folded.layers[change.root].upper)) as top, Closing(open_below(top, parent)) as directory:
        new_name = f".{folded.run.run}"
        copy_with_content(directory, name, directory, new_name, merge.text.encode(errors="surrogateescape"))
        os.rename(new_name, name, src_dir_fd=directory, dst_dir_fd=directory)
        change.after = stamp_of(os.stat(name, dir_fd=directory, follow_symlinks=False))


def refuse_marked_texts(store: Store, draft: DraftRecord, folded: FoldedDraft) -> None:
    """Refuse to apply a draft in which somebody must still choose between two versions of some lines."""
    roots = folded.run.roots
    for name in folded.members:
        for (root, path), _ in _recorded_rebase(store, store.history.find(name)):
            content = _short_content(folded.layers[roots.index(root)].upper, path) if root in roots else None
            if content is not None and _FIRST_MARK in content:
                raise BadRequest(
                    f"{printable(path)} has lines in draft {draft.name} that are still marked with "
                    f"{CONFLICT_MARKS[0]}",
                    hint=f"choose there: fumehood run --draft {draft.name} -- …, then apply it",
                )


def refuse_conflicts(draft: DraftRecord, conflicts: Sequence[Conflict], gits: Collection[str]) -> None:
    """Raise DraftConflict with the conflicts of a draft, and say how they can be resolved."""
    paths = first_names([printable(conflict.path) for conflict in conflicts], 3)
    hint = f"fumehood draft rebase {draft.name} brings both together in the draft"
    if all(is_git_internal(conflict.root, conflict.path, gits) for conflict in conflicts):  # both have committed
        hint = f"fumehood draft apply {draft.name} --as-commit leaves its commits on a branch of their own"
    error = DraftConflict(
        f"draft {draft.name} and the project have both changed {paths}: nothing was applied",
        hint=f"{hint}; --force takes the draft's version, and saves what is there now",
    )
    error.conflicts = tuple(conflicts)
    raise error


def _short_content(top: str, path: str) -> bytes | None:
    """Return the content of a file, or None if there is none or it is too long to be merged."""
    try:
        with Closing(open_top(top)) as directory:
            content = plain_file(path, directory, _MAX_MERGED_BYTES + 1)
    except OSError:
        return None
    return None if content is None or len(content) > _MAX_MERGED_BYTES else content
