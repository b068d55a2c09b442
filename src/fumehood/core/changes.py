"""What a run did to one path: the kinds of entries, and the change each pair of kinds makes."""

from __future__ import annotations

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

ORIGIN, OTHERS = 1, 2
_NUMBERS = 5  # in every stamp's text

LIVE_KINDS = (ABSENT, FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, DEVICE)
LAYER_KINDS = (WHITEOUT, FILE, DIRECTORY, OPAQUE, SYMLINK, FIFO, SOCKET, DEVICE)
TAKEN_OVER = (FILE, DIRECTORY, SYMLINK)

# The change that an entry of the layer (first) makes to what the project has there (second).
# None: no change by itself. Where both are alike, MODIFIED means "look at the content".
PAIRS: dict[tuple[str, str], str | None] = {
    (WHITEOUT, ABSENT): None,
    (WHITEOUT, FILE): DELETED,
    (WHITEOUT, DIRECTORY): DELETED,
    (WHITEOUT, SYMLINK): DELETED,
    (WHITEOUT, FIFO): DELETED,
    (WHITEOUT, SOCKET): DELETED,
    (WHITEOUT, DEVICE): DELETED,
    (FILE, ABSENT): ADDED,
    (FILE, FILE): MODIFIED,
    (FILE, DIRECTORY): TYPE,
    (FILE, SYMLINK): TYPE,
    (FILE, FIFO): TYPE,
    (FILE, SOCKET): TYPE,
    (FILE, DEVICE): TYPE,
    (DIRECTORY, ABSENT): ADDED,
    (DIRECTORY, FILE): TYPE,
    (DIRECTORY, DIRECTORY): None,
    (DIRECTORY, SYMLINK): TYPE,
    (DIRECTORY, FIFO): TYPE,
    (DIRECTORY, SOCKET): TYPE,
    (DIRECTORY, DEVICE): TYPE,
    (OPAQUE, ABSENT): ADDED,
    (OPAQUE, FILE): TYPE,
    (OPAQUE, DIRECTORY): None,
    (OPAQUE, SYMLINK): TYPE,
    (OPAQUE, FIFO): TYPE,
    (OPAQUE, SOCKET): TYPE,
    (OPAQUE, DEVICE): TYPE,
    (SYMLINK, ABSENT): ADDED,
    (SYMLINK, FILE): TYPE,
    (SYMLINK, DIRECTORY): TYPE,
    (SYMLINK, SYMLINK): MODIFIED,
    (SYMLINK, FIFO): TYPE,
    (SYMLINK, SOCKET): TYPE,
    (SYMLINK, DEVICE): TYPE,
    (FIFO, ABSENT): ADDED,
    (FIFO, FILE): TYPE,
    (FIFO, DIRECTORY): TYPE,
    (FIFO, SYMLINK): TYPE,
    (FIFO, FIFO): MODIFIED,
    (FIFO, SOCKET): TYPE,
    (FIFO, DEVICE): TYPE,
    (SOCKET, ABSENT): ADDED,
    (SOCKET, FILE): TYPE,
    (SOCKET, DIRECTORY): TYPE,
    (SOCKET, SYMLINK): TYPE,
    (SOCKET, FIFO): TYPE,
    (SOCKET, SOCKET): MODIFIED,
    (SOCKET, DEVICE): TYPE,
    (DEVICE, ABSENT): ADDED,
    (DEVICE, FILE): TYPE,
    (DEVICE, DIRECTORY): TYPE,
    (DEVICE, SYMLINK): TYPE,
    (DEVICE, FIFO): TYPE,
    (DEVICE, SOCKET): TYPE,
    (DEVICE, DEVICE): MODIFIED,
}


def classify(layer: str, live: str) -> str | None:
    """Name the change an entry of the layer makes to the project, or None if it makes none.

    Two directories are no change by themselves: a new mode is found by comparing metadata.
    """
    return PAIRS[layer, live]


class Stamp:
    """What identifies one version of one path, so that a later look tells whether it is still that one.

    `meaning` is a digest of what a git index says (`core/gitindex.py`): one that was only refreshed is the same by it.
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
        """Tell whether both are one version; a directory's size and time change with its entries."""
        return other is not None and self.inode == other.inode and self.alike(other)

    def alike(self, other: Stamp) -> bool:
        """Tell whether both are one version, or one is a copy of the other: between file systems, inodes change."""
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
        kind, *numbers = text.split(" ")
        meaning = numbers.pop() if len(numbers) > _NUMBERS else ""
        inode, size, modified_ns, mode, links = map(int, numbers)
        return cls(kind, inode, size, modified_ns, 0, mode, links, meaning)

    def __repr__(self) -> str:
        return f"Stamp({self.text()})"


class Change:
    """One path's difference, and what became of it.

    `within` names the changed directory above that carries this path along when it moves whole.
    `marked` tells that the layer's entry carries overlay bookkeeping: ORIGIN is what a copied-up file has, and
    OTHERS means that there may be more.
    """

    __slots__ = (
        "after", "before", "change", "flags", "kind", "marked", "path", "reason", "root", "verdict", "within",
    )  # fmt: skip

    def __init__(
        self,
        root: int,
        path: str,
        change: str,
        kind: str,
        *,
        before: Stamp | None = None,
        after: Stamp | None = None,
        within: str | None = None,
        marked: int = 0,
        verdict: str = "",
        reason: str = "",
        flags: tuple[str, ...] = (),
    ) -> None:
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


def flags_in_words(flags: Sequence[str]) -> str:
    """Write flags for people: most are plain words already."""
    return ", ".join(map(_in_words, flags))


def _in_words(flag: str) -> str:
    name, _, number = flag.partition(":")
    if name != OTHER_NAMES:
        return flag
    who = "1 other name of this file keeps" if number == "1" else f"{number} other names of this file keep"
    return f"{who} the old content"


def is_mode_alone(change: Change) -> bool:
    """Tell whether only the mode of a directory changes."""
    return change.change == MODE and change.kind == DIRECTORY


def above(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def all_above(changes: Iterable[Change]) -> set[tuple[int, str]]:
    """Return every directory above some changes, each with its root: it takes no longer for being deep."""
    found: set[tuple[int, str]] = set()
    for change in changes:
        for each in above(change.path):
            if (change.root, each) in found:
                break  # so are those above it
            found.add((change.root, each))
    return found


class Inside:
    """Which of some directories, each with its root, a path lies in: every directory is asked for once."""

    def __init__(self, directories: Collection[tuple[int, str]]) -> None:
        self._directories = directories
        self._topmost: dict[tuple[int, str], str | None] = {}

    def topmost(self, root: int, path: str) -> str | None:
        """Return the topmost of them above a path, or None."""
        if not self._directories:
            return None
        asked = []
        for each in above(path):
            if (root, each) in self._topmost:
                break
            asked.append(each)
        for each in reversed(asked):
            higher = self._topmost.get((root, each.rpartition("/")[0]))
            self._topmost[root, each] = higher or (each if (root, each) in self._directories else None)
        return self._topmost.get((root, path.rpartition("/")[0]))


def by_path(changes: Iterable[Change]) -> list[Change]:
    """Order changes as a person reads them: root by root, parents before what lies in them."""
    # With the least character for a slash, texts compare like lists of names.
    return sorted(changes, key=lambda change: (change.root, change.path.replace("/", "\0")))
