"""What a run did to the project: the change of each path, the changes that take it back, the steps that apply it."""

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
WAITING = (HELD, CONFLICT)  # for a person's word

NEW_OWNER, NEW_GROUP = "new-owner", "new-group"  # flags: the new version is not whose the old one was
OTHER_NAMES = "other-names"  # with a number: as many names of the file keep the old content
ATTRIBUTES = "attributes"  # a directory got some, or access rules, and they are not taken over
OPENING = "opening"  # by access rules of the new directory, others may write what is made in it
COPIED_LINKS = "copied-links"  # with a number: as many names share no content with the file's other names any more

ORIGIN_MARK, OTHER_MARKS = 1, 2
# Extended attributes with these prefixes are an overlay's bookkeeping.
OVERLAY_PREFIXES = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.")

LIVE_KINDS = (ABSENT, FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, DEVICE)
LAYER_KINDS = (WHITEOUT, FILE, DIRECTORY, OPAQUE, SYMLINK, FIFO, SOCKET, DEVICE)
TAKEN_OVER = (FILE, DIRECTORY, SYMLINK)

# The change that an entry of the layer makes to what the project has there: a row for each of LAYER_KINDS, in the order
# of LIVE_KINDS. None: no change by itself. Where both are alike, MODIFIED means "look at the content".
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
    """Return True if something may have changed after a moment: some file systems have times of whole seconds."""
    return changed_ns > began_ns or (changed_ns % SECOND == 0 and changed_ns + SECOND > began_ns)


def classify(layer: str, live: str) -> str | None:
    """Name the change an entry of the layer makes to the project, or None if it makes none.

    Two directories are no change by themselves: a new mode is found by comparing metadata.
    """
    return CHANGES_BY_KINDS[layer, live]


class Stamp:
    """What identifies one version of one path, so that a later look tells whether it is still that one.

    `meaning` is a digest of what a git index says (`linux/gitindex.py`): one that was only refreshed is the same by it.
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
        """Return True if both are one version; a directory's size and time change with its entries."""
        return other is not None and self.inode == other.inode and self.alike(other)

    def alike(self, other: Stamp) -> bool:
        """Return True if both are one version, or one is a copy of the other: between file systems, inodes change."""
        if self.mode != other.mode or self.kind != other.kind:
            return False
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

    `within` names the changed directory above that carries this path along when it moves whole.
    `marked` tells that the layer's entry carries overlay bookkeeping: ORIGIN is what a copied-up file has, and
    OTHERS means that there may be more.
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
    """Return where each root is seen from outside: the number of the outermost one around it, and the path in that.

    Only those are counted that lie in no other; a root in another one always comes after it.
    """
    outer = [root for root in roots if not any(root.startswith(f"{each}/") for each in roots)]
    places = []
    for root in roots:
        number = next(n for n, each in enumerate(outer) if root == each or root.startswith(f"{each}/"))
        places.append((number, root[len(outer[number]) + 1 :]))
    return places


def path_in_parent(parent: str, path: str) -> str:
    """Return a path of a root, in the one that holds it at another path; the root's own is a dot."""
    return parent if parent and path == "." else f"{parent}/{path}" if parent else path


def as_seen_from(change: Change, root: int, parent: str) -> Change:
    """Return a change as it is in the root around its own, or itself where there is none."""
    if not parent and root == change.root:
        return change
    within = None if change.within is None else path_in_parent(parent, change.within)
    return Change(
        root, path_in_parent(parent, change.path), change.change, change.kind, before=change.before, after=change.after,
        within=within, marked=change.marked, verdict=change.verdict, reason=change.reason, flags=change.flags,
    )  # fmt: skip


def flags_in_words(flags: Sequence[str]) -> str:
    """Write flags for people: most are plain words already."""
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
    """Return True if the mode differs, where that is all that can: a directory may have new attributes alone."""
    before, after = change.before, change.after
    return change.change == MODE and before is not None and after is not None and before.mode != after.mode


def are_same_replacement(one: Change, other: Change) -> bool:
    """Return True if two changes put one version in the place of another, and those are the same."""
    pairs = ((one.before, other.before), (one.after, other.after))
    return all(mine is theirs or (mine and theirs and mine.alike(theirs)) for mine, theirs in pairs)


def directories_above(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def all_directories_above(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return every directory above some changes, each with its root: it takes no longer for being deep."""
    directories: set[tuple[int, str]] = set()
    for change in changes:
        for each in directories_above(change.path):
            if (change.root, each) in directories:
                break  # so are those above it
            directories.add((change.root, each))
    return directories


class DirectorySet:
    """Which of some directories, each with its root, a path lies in: every directory is asked for once."""

    def __init__(self, directories: Collection[tuple[int, str]]) -> None:
        self._directories = directories
        self._around: dict[tuple[int, str], tuple[str | None, str | None]] = {}

    def topmost(self, root: int, path: str) -> str | None:
        """Return the topmost of them above a path, or None."""
        return self._ends(root, path)[0]

    def nearest(self, root: int, path: str) -> str | None:
        """Return the nearest of them above a path, or None."""
        return self._ends(root, path)[1]

    def _ends(self, root: int, path: str) -> tuple[str | None, str | None]:
        asked = []
        ends: tuple[str | None, str | None] = (None, None)
        for each in directories_above(path) if self._directories else ():
            if (root, each) in self._around:
                ends = self._around[root, each]
                break
            asked.append(each)
        for each in reversed(asked):
            if (root, each) in self._directories:
                ends = (ends[0] or each, each)
            self._around[root, each] = ends
        return ends


def by_path(changes: Iterable[Change]) -> list[Change]:
    """Order changes as a person reads them: root by root, parents before what lies in them."""
    # With the least character for a slash, texts compare like lists of names.
    return sorted(changes, key=lambda change: (change.root, change.path.replace("/", "\0")))


# A run's changes turned round: what must be done to the project to have it as it was before.

_OPPOSITE = {ADDED: DELETED, DELETED: ADDED, MODIFIED: MODIFIED, MODE: MODE, TYPE: TYPE}


def inverse(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that take back those that were applied."""
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
    """Let changes move by themselves where the directory that carried them is not among them; they are in order."""
    top: tuple[int, str] | None = None
    for change in changes:
        inside = top is not None and change.root == top[0] and change.path.startswith(f"{top[1]}/")
        change.within = top[1] if inside and top is not None else None
        if not inside:
            whole = change.kind == DIRECTORY or change.change == TYPE
            top = (change.root, change.path) if whole and change.change != MODE else None
    return list(changes)


def directories_to_keep(changes: Sequence[Change]) -> frozenset[tuple[int, str]]:
    """Return the directories of the layer that hold something which was not taken over."""
    return frozenset(all_directories_above(change for change in changes if change.verdict != APPLIED))


def needs_layer(change: Change) -> bool:
    """Return True if a change has a backup in the layer, waits there for a person, or could not leave it.

    What could not leave keeps the directories around it, which an undo puts back into.
    """
    if change.verdict in (*WAITING, UNSUPPORTED):
        return True
    return change.verdict == APPLIED and change.before is not None and not is_directory_mode(change)


# The fewest steps that make the project as judged changes say.

SWAP, PUT, TAKE, MKDIR, RMDIR, CHMOD = "swap", "put", "take", "mkdir", "rmdir", "chmod"


class Step:
    """One atomic act on one path: swap the two sides, put in, take out, make or remove a directory, set a mode.

    `inside` are the changes that a directory carries along.
    """

    __slots__ = ("act", "change", "inside", "is_plain", "name", "parent")

    def __init__(self, act: str, change: Change, inside: Sequence[Change] = ()) -> None:
        self.act = act
        self.change = change
        self.parent, _, self.name = change.path.rpartition("/")
        self.inside = list(inside)
        self.is_plain = act == SWAP and swaps_no_directory(change)

    @property
    def unmark(self) -> list[Change]:
        """The entries that carry overlay bookkeeping, which is removed in the layer before the step."""
        moving = (self.change, *self.inside) if self.act in (SWAP, PUT, TAKE) else ()
        return [each for each in moving if each.marked]

    def __repr__(self) -> str:
        return f"Step({self.act} {self.change.path!r})"


def swaps_no_directory(change: Change) -> bool:
    """Return True if a change swaps two entries that are no directories: most do."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.kind != DIRECTORY != after.kind


def plan_steps(changes: Sequence[Change], staying: frozenset[tuple[int, str]] = frozenset()) -> list[Step]:
    """Return the steps that take over every change whose verdict is `applied`.

    Parents come before what lies in them. Directories are removed, and get their modes, last and the
    deepest first, because one may become read-only. `staying` names directories that the layer still needs.
    Git's objects come before all that names them, and go after it: a git outside finds them at every moment.
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
            # What lies in it may still move, where the directory itself is in the project already.
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
    """Tell what comes first and what goes last; with new directories, some of which may lie around objects, nothing."""
    if step.act == TAKE and (_is_git_object(step) or step.name == "packed-refs"):
        return 2
    return 0 if not has_new and step.act in (PUT, MKDIR) and _is_git_object(step) else 1


def _steps_for_tree(tree: Sequence[Change], staying: frozenset[tuple[int, str]]) -> list[Step]:
    """Move a new or deleted tree whole where all of it goes, else directory by directory."""
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
    """Return the applied files whose inode has another link that does not move with them.

    `version` says which is meant: "after" goes into the project, "before" comes out of it.
    """
    linked: dict[tuple[int, int], list[Change]] = {}
    for change in changes:
        stamp: Stamp | None = getattr(change, version)
        if stamp is not None and stamp.links > 1 and stamp.kind == FILE and change.verdict == APPLIED:
            linked.setdefault((change.root, stamp.inode), []).append(change)
    return [each for group in linked.values() if len(group) < getattr(group[0], version).links for each in group]
