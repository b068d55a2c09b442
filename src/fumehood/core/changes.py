"""The changes of a run: one for each path, the inverse changes for undo, and the steps that apply them."""

from __future__ import annotations

from sys import intern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

FILE, DIRECTORY, SYMLINK = "file", "directory", "symlink"
FIFO, SOCKET, DEVICE = "fifo", "socket", "device"
ABSENT = "absent"
WHITEOUT, OPAQUE = "whiteout", "opaque directory"

ADDED, MODIFIED, DELETED, MODE, TYPE = "added", "modified", "deleted", "mode", "type"

APPLIED, HELD, CONFLICT, DISCARDED, UNSUPPORTED = "applied", "held", "conflict", "discarded", "unsupported"
WAITING = (HELD, CONFLICT)  # verdicts of changes that wait for a person to decide

# Flags of a change; those with a number are written as `flag:number`.
NEW_OWNER, NEW_GROUP = "new-owner", "new-group"  # the new version has another owner or group than the old one
OTHER_NAMES = "other-names"  # this many hard links of the file keep the old content
ATTRIBUTES = "attributes"  # a directory got extended attributes or access rules, which are not applied
OPENING = "opening"  # access rules of the new directory let others write what is made in it
COPIED_LINKS = "copied-links"  # this many hard links of the file became copies

ORIGIN_MARK, OTHER_MARKS = 1, 2  # values of `Change.marked`
# Extended attributes with these prefixes are an overlay's bookkeeping.
OVERLAY_PREFIXES = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.")

LIVE_KINDS = (ABSENT, FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, DEVICE)
LAYER_KINDS = (WHITEOUT, FILE, DIRECTORY, OPAQUE, SYMLINK, FIFO, SOCKET, DEVICE)
TAKEN_OVER = (FILE, DIRECTORY, SYMLINK)

# The change that an entry of the layer makes to the project's entry: a row for each of LAYER_KINDS, in the order of
# LIVE_KINDS. None: no change by itself. For two entries of one kind, MODIFIED means "compare the contents".
_CHANGE_ROWS = {
    WHITEOUT: (None, DELETED, DELETED, DELETED, DELETED, DELETED, DELETED),
    FILE: (ADDED, MODIFIED, TYPE, TYPE, TYPE, TYPE, TYPE),
    DIRECTORY: (ADDED, TYPE, None, TYPE, TYPE, TYPE, TYPE),
    OPAQUE: (ADDED, TYPE, None, TYPE, TYPE, TYPE, TYPE),
    SYMLINK: (ADDED, TYPE, TYPE, MODIFIED, TYPE, TYPE, TYPE),
    FIFO: (ADDED, TYPE, TYPE, TYPE, MODIFIED, TYPE, TYPE),
    SOCKET: (ADDED, TYPE, TYPE, TYPE, TYPE, MODIFIED, TYPE),
    DEVICE: (ADDED, TYPE, TYPE, TYPE, TYPE, TYPE, MODIFIED),
}
CHANGES_BY_KINDS: dict[tuple[str, str], str | None] = {
    (layer, live): change for layer, row in _CHANGE_ROWS.items() for live, change in zip(LIVE_KINDS, row, strict=True)
}


SECOND = 1_000_000_000


def may_be_later(changed_ns: int, began_ns: int) -> bool:
    """Return True if a file may have changed after a moment: some file systems have times of whole seconds."""
    return changed_ns > began_ns or (changed_ns % SECOND == 0 and changed_ns + SECOND > began_ns)


def classify(layer: str, live: str) -> str | None:
    """Name the change an entry of the layer makes to the project, or None if it makes none.

    Two directories are no change by themselves: a new mode is found by comparing metadata.
    """
    return CHANGES_BY_KINDS[layer, live]


class Stamp:
    """What identifies one version of one path, so that a later version can be told from it.

    `meaning` is a digest of the contents of a git index (`linux/gitindex.py`), which stays when git only refreshes it.
    """

    __slots__ = ("changed_ns", "inode", "kind", "links", "meaning", "mode", "modified_ns", "size")

    def __init__(
        self, kind: str, inode: int, size: int, modified_ns: int, changed_ns: int, mode: int, links: int = 1,
        meaning: str = "",
    ) -> None:  # fmt: skip
        self.kind = kind
        self.inode = inode
        self.size = size
        self.modified_ns = modified_ns
        self.changed_ns = changed_ns
        self.mode = mode
        self.links = links
        self.meaning = meaning

    def same(self, other: Stamp | None) -> bool:
        """Return True if both are one version of the path."""
        return other is not None and self.inode == other.inode and self.is_same_or_copy(other)

    def is_same_or_copy(self, other: Stamp) -> bool:
        """Return True if both are one version, or one is a copy of the other, which has another inode."""
        if self.mode != other.mode or self.kind != other.kind:
            return False
        # A directory's size and time change with its entries.
        return self.kind == DIRECTORY or (self.size == other.size and self.modified_ns == other.modified_ns)

    def text(self) -> str:
        """Write the stamp for the record."""
        text = f"{self.kind} {self.inode} {self.size} {self.modified_ns} {self.mode} {self.links}"
        return f"{text} {self.meaning}" if self.meaning else text

    @classmethod
    def read(cls, text: str) -> Stamp:
        """Read a stamp from the record."""
        kind, inode, size, modified_ns, mode, links, *meaning = text.split(" ")
        return cls(intern(kind), int(inode), int(size), int(modified_ns), 0, int(mode), int(links), "".join(meaning))

    def __repr__(self) -> str:
        return f"Stamp({self.text()})"


class Change:
    """One path's difference, and what became of it.

    `within` is the new, deleted or replaced directory above that this path moves with. `marked` says which overlay
    bookkeeping the layer's entry carries: ORIGIN_MARK is that of a copied-up file, OTHER_MARKS means any.
    """

    __slots__ = ("after", "before", "change", "flags", "kind", "marked", "path", "reason", "root", "verdict", "within")

    def __init__(
        self, root: int, path: str, change: str, kind: str, *, before: Stamp | None = None, after: Stamp | None = None,
        within: str | None = None, marked: int = 0, verdict: str = "", reason: str = "", flags: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.root = root
        self.path = path
        self.change = change
        self.kind = kind
        self.before = before
        self.after = after
        self.within = within
        self.marked = marked
        self.verdict = verdict
        self.reason = reason
        self.flags = flags

    def __repr__(self) -> str:
        return f"Change({self.change} {self.kind} {self.path!r} {self.verdict} {self.reason})"


def outermost_roots(roots: Sequence[str]) -> list[tuple[int, str]]:
    """Return for each root the number of the outermost root around it, and its path in that one.

    The numbers count only roots that lie in no other. A root inside another always comes after it.
    """
    outermost = [root for root in roots if not any(root.startswith(f"{other}/") for other in roots)]
    places = []
    for root in roots:
        number = next(n for n, outer in enumerate(outermost) if root == outer or root.startswith(f"{outer}/"))
        places.append((number, root[len(outermost[number]) + 1 :]))
    return places


def path_in_parent(parent: str, path: str) -> str:
    """Return a path of an inner root as a path of the root around it; `parent` is where the inner root lies in that.

    The path of the inner root itself is a dot.
    """
    return parent if parent and path == "." else f"{parent}/{path}" if parent else path


def as_seen_from(change: Change, root: int, parent: str) -> Change:
    """Return a change of an inner root as a change of the root around it; without one around, the change itself."""
    if not parent and root == change.root:
        return change
    within = None if change.within is None else path_in_parent(parent, change.within)
    return Change(
        root, path_in_parent(parent, change.path), change.change, change.kind, before=change.before, after=change.after,
        within=within, marked=change.marked, verdict=change.verdict, reason=change.reason, flags=change.flags,
    )  # fmt: skip


def flags_in_words(flags: Sequence[str]) -> str:
    """Return flags in words for people; most flags are plain words already."""
    return ", ".join(map(_flag_in_words, flags))


def _flag_in_words(flag: str) -> str:
    name, _, number = flag.partition(":")
    if name == OTHER_NAMES:
        who = "1 other name of this file keeps" if number == "1" else f"{number} other names of this file keep"
        return f"{who} the old content"
    if name == COPIED_LINKS:
        return "a hard link became a copy" if number == "1" else f"{number} hard links became copies"
    if name == OPENING:
        return "others may write what is made in it"
    return "its attributes are left as they were" if name == ATTRIBUTES else flag


def is_directory_mode(change: Change) -> bool:
    """Return True if only the mode of a directory changes."""
    return change.change == MODE and change.kind == DIRECTORY


def has_new_mode(change: Change) -> bool:
    """Return True if this is a change of mode that changes the mode: a directory may have only new attributes."""
    before, after = change.before, change.after
    return change.change == MODE and before is not None and after is not None and before.mode != after.mode


def are_same_replacement(one: Change, other: Change) -> bool:
    """Return True if two changes replace the same version of a path with the same version."""
    pairs = ((one.before, other.before), (one.after, other.after))
    return all(first is second or (first and second and first.is_same_or_copy(second)) for first, second in pairs)


def directories_above(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def all_directories_above(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return every directory above some changes, each with the number of its root."""
    directories: set[tuple[int, str]] = set()
    for change in changes:
        for directory in directories_above(change.path):
            if (change.root, directory) in directories:
                break  # so are those above it
            directories.add((change.root, directory))
    return directories


class DirectorySet:
    """Finds the directories of a set that a path lies in; remembers the answer for each directory above a path."""

    def __init__(self, directories: Collection[tuple[int, str]]) -> None:
        self._directories = directories
        self._around: dict[tuple[int, str], tuple[str | None, str | None]] = {}

    def topmost(self, root: int, path: str) -> str | None:
        """Return the topmost directory of the set above a path, or None."""
        return self._topmost_and_nearest(root, path)[0]

    def nearest(self, root: int, path: str) -> str | None:
        """Return the nearest directory of the set above a path, or None."""
        return self._topmost_and_nearest(root, path)[1]

    def _topmost_and_nearest(self, root: int, path: str) -> tuple[str | None, str | None]:
        unknown = []
        answer: tuple[str | None, str | None] = (None, None)
        for directory in directories_above(path) if self._directories else ():
            if (root, directory) in self._around:
                answer = self._around[root, directory]
                break
            unknown.append(directory)
        for directory in reversed(unknown):
            if (root, directory) in self._directories:
                answer = (answer[0] or directory, directory)
            self._around[root, directory] = answer
        return answer


def by_path(changes: Iterable[Change]) -> list[Change]:
    """Return changes in the order in which a person reads them: root by root, a directory before its entries."""
    # With NUL in place of the slash, paths compare like lists of names.
    return sorted(changes, key=lambda change: (change.root, change.path.replace("/", "\0")))


# Undo: the inverse of a run's changes.

_OPPOSITE = {ADDED: DELETED, DELETED: ADDED, MODIFIED: MODIFIED, MODE: MODE, TYPE: TYPE}


def inverse(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that undo those that were applied."""
    return [
        Change(
            change.root, change.path, _OPPOSITE[change.change],
            change.kind if change.before is None else change.before.kind,
            before=change.after, after=change.before, within=change.within, verdict=APPLIED,
        )
        for change in changes
        if change.verdict == APPLIED
    ]  # fmt: skip


def detach_from_missing(changes: Sequence[Change]) -> list[Change]:
    """Set `within` anew, for changes whose directory above may no longer be among them; they are sorted by path."""
    top: tuple[int, str] | None = None
    for change in changes:
        inside = top is not None and change.root == top[0] and change.path.startswith(f"{top[1]}/")
        change.within = top[1] if inside and top is not None else None
        if not inside:
            whole = change.kind == DIRECTORY or change.change == TYPE
            top = (change.root, change.path) if whole and change.change != MODE else None
    return list(changes)


def directories_to_keep(changes: Sequence[Change]) -> frozenset[tuple[int, str]]:
    """Return the directories of the layer that hold a change which was not applied."""
    return frozenset(all_directories_above(change for change in changes if change.verdict != APPLIED))


def needs_layer(change: Change) -> bool:
    """Return True if a change has its backup in the layer, or is still in the layer itself.

    That includes unsupported changes: the directories around them are needed by an undo.
    """
    if change.verdict in (*WAITING, UNSUPPORTED):
        return True
    return change.verdict == APPLIED and change.before is not None and not is_directory_mode(change)


# Steps: the fewest atomic acts that apply judged changes.

SWAP, PUT, TAKE, MKDIR, RMDIR, CHMOD = "swap", "put", "take", "mkdir", "rmdir", "chmod"


class Step:
    """One atomic act on one path: swap layer and project, put in, take out, make or remove a directory, set a mode.

    `inside` are the changes in a directory, which move with it.
    """

    __slots__ = ("act", "change", "inside", "is_plain", "name", "parent")

    def __init__(self, act: str, change: Change, inside: Sequence[Change] = ()) -> None:
        self.act = act
        self.change = change
        self.parent, _, self.name = change.path.rpartition("/")
        self.inside = list(inside)
        self.is_plain = act == SWAP and swaps_no_directory(change)

    @property
    def marked_entries(self) -> list[Change]:
        """The changes whose entries carry overlay bookkeeping, to be removed in the layer before the step."""
        moving = (self.change, *self.inside) if self.act in (SWAP, PUT, TAKE) else ()
        return [each for each in moving if each.marked]

    def __repr__(self) -> str:
        return f"Step({self.act} {self.change.path!r})"


def swaps_no_directory(change: Change) -> bool:
    """Return True if a change swaps two entries that are not directories, as most changes do."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.kind != DIRECTORY != after.kind


def plan_steps(changes: Sequence[Change], staying: frozenset[tuple[int, str]] = frozenset()) -> list[Step]:
    """Return the steps that apply every change whose verdict is `applied`.

    A directory comes before its entries. Directories are removed, and get their modes, last and the deepest first,
    because one may become read-only. `staying` are directories that the layer still needs. Git's objects are added
    before whatever refers to them, and removed after it, so that a git outside finds them at every moment.
    """
    inside: dict[tuple[int, str], list[Change]] = {}
    for change in changes:
        if change.within is not None:
            inside.setdefault((change.root, change.within), []).append(change)
    steps: list[Step] = []
    last: list[Step] = []
    for change in changes:
        if change.within is not None:
            continue
        below = inside.get((change.root, change.path), ())
        if change.verdict != APPLIED:
            # Its entries may still be applied, if the directory itself is already in the project.
            steps += _steps_for_tree(below, staying)
        elif is_directory_mode(change):
            last.append(Step(CHMOD, change))
        elif change.change in (ADDED, DELETED):
            for step in _steps_for_tree((change, *below), staying):
                (last if step.act == RMDIR else steps).append(step)
        else:
            steps.append(Step(SWAP, change, below))
    has_new = any(step.act == MKDIR and not _is_git_object(step) for step in steps)
    steps.sort(key=lambda step: (step.change.root, _order_of(step, has_new=has_new), step.parent))
    return steps + last[::-1]


def _is_git_object(step: Step) -> bool:
    return "/objects/" in f"/{step.parent}/"


def _order_of(step: Step, *, has_new: bool) -> int:
    """Return 0 for steps that come first, 2 for those that come last, else 1.

    With new directories no step comes first, because objects may lie in them.
    """
    if step.act == TAKE and (_is_git_object(step) or step.name == "packed-refs"):
        return 2
    return 0 if not has_new and step.act in (PUT, MKDIR) and _is_git_object(step) else 1


def _steps_for_tree(tree: Sequence[Change], staying: frozenset[tuple[int, str]]) -> list[Step]:
    """Return one step for a new or deleted tree if all of it is applied, else steps for its parts."""
    if not tree:
        return []
    whole, piece = (PUT, MKDIR) if tree[0].change == ADDED else (TAKE, RMDIR)
    broken = {path for _, path in all_directories_above(each for each in tree if each.verdict != APPLIED)}
    steps: list[Step] = []
    covered = "\0"
    for change in tree:
        if change.path.startswith(covered):
            steps[-1].inside.append(change)
        elif change.verdict != APPLIED:
            continue
        elif change.kind == DIRECTORY and (change.path in broken or (change.root, change.path) in staying):
            steps.append(Step(piece, change))
        else:
            steps.append(Step(whole, change))
            covered = f"{change.path}/" if change.kind == DIRECTORY else "\0"
    return steps


def files_with_other_links(changes: Sequence[Change], version: str) -> list[Change]:
    """Return the applied files with hard links that are not among the changes.

    `version` says which files to look at: "after" for those that go into the project, "before" for those that leave it.
    """
    linked: dict[tuple[int, int], list[Change]] = {}
    for change in changes:
        stamp: Stamp | None = getattr(change, version)
        if stamp is not None and stamp.links > 1 and stamp.kind == FILE and change.verdict == APPLIED:
            linked.setdefault((change.root, stamp.inode), []).append(change)
    return [each for group in linked.values() if len(group) < getattr(group[0], version).links for each in group]
