"""What has changed in the project below a draft: which version each path was made on, and both brought together."""

from __future__ import annotations

import os
import stat
import time

from fumehood.core import changes as c
from fumehood.core.hunks import MARKS, merged
from fumehood.core.patterns import lies_in_cache
from fumehood.core.report import Run, how_many, printable
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.copying import copy_entry
from fumehood.linux.gitindex import refreshed
from fumehood.linux.gitobjects import freshen, may_stay
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import look, make_parents, open_below, open_top, remove_tree, split, stamp_of
from fumehood.service import layers as layering

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Sequence

    from fumehood.linux.namespaces import Layer
    from fumehood.service.store import Store
    from fumehood.store.drafts import DraftRecord

    Place = tuple[str, str]  # a root, and a path in it

LONGEST = 1 << 20  # bytes of a file that is still merged line by line
BASE = "base"  # beside a run's layer: files of the project as they were before the run changed them
_REBASED = "rebased"  # beside a run's first layer: which versions of the project its changes are made on
_FROZEN = "frozen"
_SAME = "same"
IN_PROJECT = "in the project"


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
        return {"root": self.root, "path": self.path, "reason": self.reason, "text": self.text}


def frozen_at(store: Store, number: int) -> str:
    """Return where the frozen copies of a project's roots lie that a draft made."""
    return f"{store.places.draft(number)}/{_FROZEN}"


def is_gits(path: str) -> bool:
    """Tell whether a path is in a repository's own directory."""
    return ".git" in path.split("/")


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
        """Tell whether the project still has the version that a change was made on."""
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
        if before.alike(change.before):
            return True
        parent, name = split(change.path)
        with Closing(open_below(live, parent)) as directory:
            status = look(directory, name)
        return status is not None and refreshed(before, live, change.path, status) is not None

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
    import marshal

    try:
        with open(f"{store.places.run(run.run)}/0/{_REBASED}", "rb") as file:
            noted = marshal.load(file)  # noqa: S302 - ours
    except FileNotFoundError:
        return
    for path, text in noted:
        yield (run.roots[0], path), c.Stamp.read(text) if text else None


def note_rebased(store: Store, run: Run, versions: Sequence[tuple[str, c.Stamp, bytes]]) -> None:
    """Write down which versions of the project a run of a draft has merged, with their contents."""
    import marshal

    base = store.places.layer(run.run, 0, BASE)
    os.makedirs(base, 0o700, exist_ok=True)
    with Closing(open_top(base)) as top:
        for path, _, content in versions:
            parent, name = split(path)
            make_parents(top, parent)
            with Closing(open_below(top, parent)) as directory:
                remove_tree(directory, name)
                made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
                with open(made, "wb") as target:
                    target.write(content)
    with open(f"{store.places.run(run.run)}/0/{_REBASED}", "wb") as file:
        marshal.dump([(path, stamp.text()) for path, stamp, _ in versions], file)


def _content(top: str, path: str) -> bytes | None:
    """Return what a file holds, unless it is too long; None where there is none."""
    try:
        with Closing(open_top(top)) as directory:
            entry = open_below(directory, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return None
    with Closing(entry):
        status = os.fstat(entry)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST:
            return None
        with open(f"/proc/self/fd/{entry}", "rb") as file:
            return file.read()


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
    merges: list[Merge] = []
    conflicts: list[Conflict] = []
    staying: list[c.Change] = []
    for number, root in enumerate(run.roots):
        with Closing(open_top(root)) as live:
            for change in run.changed:
                if change.root != number:
                    continue
                if not lies_in_cache(change.path) and not bases.is_as_it_was(change, root, live):
                    outcome = _both(draft, whole, bases, change)
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


def _both(draft: DraftRecord, whole: WholeDraft, bases: _Bases, change: c.Change) -> Merge | Conflict | str:
    """Bring together what a draft and the project have made of a path; nothing where the draft's version counts."""
    root = whole.run.roots[change.root]
    if change.within is None and may_stay(f"{root}/{change.path}"):
        return _theirs(root, change)
    ours, theirs = _content(whole.layers[change.root].upper, change.path), _content(root, change.path)
    is_file = change.change in (c.MODIFIED, c.MODE) and change.kind == c.FILE and not is_gits(change.path)
    if ours is None or theirs is None or not is_file:
        return Conflict(root=root, path=change.path, reason=_why(change))
    base = bases.content(change, root, whole.run.roots)
    if base == theirs:
        return ""
    if ours == theirs:
        return _SAME if change.change == c.MODIFIED else ""
    if b"\0" in ours + theirs:
        return Conflict(root=root, path=change.path, reason="both have changed it, and it is no text")
    texts = [None if each is None else each.decode(errors="surrogateescape") for each in (base, theirs, ours)]
    text, places = merged(texts[0], texts[1] or "", texts[2] or "", (IN_PROJECT, f"draft {draft.name}"))
    return Merge(change=change, root=root, text=text, places=places, live=theirs)


def _theirs(root: str, change: c.Change) -> str:
    """Let the project keep what it has of git's own, where it has it."""
    if change.before is None:
        return ""
    if change.kind == c.FILE and change.change != c.DELETED:
        with Closing(open_top(root)) as top:
            freshen(top, change.path)
    return _SAME


def _why(change: c.Change) -> str:
    if change.change == c.ADDED or change.before is None:
        return "the project has removed it, which the draft has changed"
    if change.change == c.DELETED:
        return "the project has changed it, which the draft has removed"
    return "both have changed it"


def pack(layer: tarfile.TarFile, merge: Merge) -> None:
    """Add a merged text to an archive."""
    import io
    import tarfile

    data = merge.text.encode(errors="surrogateescape")
    entry = tarfile.TarInfo(merge.change.path)
    assert merge.change.after is not None, "a text is there"
    entry.size, entry.mode, entry.mtime = len(data), merge.change.after.mode, int(time.time())
    layer.addfile(entry, io.BytesIO(data))


def write_merge(whole: WholeDraft, merge: Merge) -> None:
    """Let the layer of a draft that is about to be applied have a merged text: a file of its own."""
    change = merge.change
    parent, name = split(change.path)
    with (
        Closing(open_top(whole.layers[change.root].upper)) as top,
        Closing(open_below(top, parent)) as directory,
    ):
        spare = f".{whole.run.run}"
        copy_entry(directory, name, directory, spare)
        os.chmod(spare, 0o600, dir_fd=directory)  # in a directory of ours, where nobody can have put a link
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(spare, flags, dir_fd=directory), "wb") as file:
            file.write(merge.text.encode(errors="surrogateescape"))
            assert change.after is not None, "a text is there"
            os.fchmod(file.fileno(), change.after.mode)
        os.rename(spare, name, src_dir_fd=directory, dst_dir_fd=directory)
        change.after = stamp_of(os.stat(name, dir_fd=directory, follow_symlinks=False))


def refuse_marks(store: Store, draft: DraftRecord, whole: WholeDraft) -> None:
    """Refuse a draft in which somebody must still choose between two versions of some lines."""
    first = f"{MARKS[0]}{IN_PROJECT}\n".encode()
    for name in whole.members:
        for (root, path), _ in rebased_by(store, store.history.find(name)):
            if root in whole.run.roots:
                content = _content(whole.layers[whole.run.roots.index(root)].upper, path)
                if content is not None and first in content:
                    raise BadRequest(
                        f"{printable(path)} has lines in draft {draft.name} that are still marked with {MARKS[0]}",
                        hint=f"choose there: fumehood run --draft {draft.name} -- …, then apply it",
                    )
