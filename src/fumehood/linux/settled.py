"""What checkpoints of a running command have put into the project, so that its end does not do it once more.

The command's layer keeps its own copy of all that. What is still the very version that was copied is no change any
more, whatever became of the copy in the project since: a person may have gone on with it.
"""

from __future__ import annotations

import marshal
import os
import stat

from fumehood.core import changes as c
from fumehood.linux.nofollow import is_version, stamp_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    # Root, path, what identifies the layer's version (None: a deletion), the stamp of what is in the project then, as
    # text, and whether it is a directory that the project did not have.
    Entry = tuple[int, str, tuple[int, ...] | None, str | None, bool]
    Original = tuple[int, str, str]  # root, path, the stamp as text

_LENGTH = 8  # bytes that tell how long each part of a note is


def identity(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells one version of a layer's entry from the next; of a directory, only its mode counts."""
    mode = status.st_mode & 0o7777
    if stat.S_ISDIR(status.st_mode):
        return (mode,)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, mode


def identity_of(stamp: c.Stamp) -> tuple[int, ...]:
    """Return the same for what a scan saw of it."""
    if stamp.kind == c.DIRECTORY:
        return (stamp.mode,)
    return stamp.inode, stamp.size, stamp.modified_ns, stamp.changed_ns, stamp.mode


class Settled:
    """What was settled of one running command, the last word on each path."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], tuple[tuple[int, ...] | None, str | None]] = {}
        self._made: set[tuple[int, str]] = set()
        self._originals: dict[tuple[int, str], str] = {}

    def add(self, entries: Iterable[Entry], originals: Iterable[Original]) -> None:
        """Take note of what a checkpoint has settled, or of the originals that it is about to move."""
        for root, path, layer, left, is_made in entries:
            self._entries[root, path] = layer, left
            if is_made:
                self._made.add((root, path))
        self._originals.update(((root, path), stamp) for root, path, stamp in originals)

    def is_unchanged(self, root: int, path: str, status: os.stat_result) -> bool:
        """Tell whether an entry of the layer is the version that a checkpoint put into the project."""
        entry = self._entries.get((root, path))
        return entry is not None and entry[0] == identity(status)

    def is_made(self, root: int, path: str) -> bool:
        """Tell whether a directory came into the project by a checkpoint."""
        return (root, path) in self._made

    def is_left(self, root: int, path: str, live: os.stat_result) -> bool:
        """Tell whether what the project has at a path was put there by a checkpoint, and is still that.

        Or put back: a file that was moved out and in again bears a new time, and is the one that the command saw.
        """
        _, left = self._entries.get((root, path), (None, None))
        if left is not None and is_version(c.Stamp.read(left), live):
            return True
        original = self._originals.get((root, path))
        return original is not None and c.Stamp.read(original).same(stamp_of(live))

    def is_anothers(self, root: int, path: str) -> bool:
        """Tell whether what the layer seems to delete from the project is none of its command's.

        Either a checkpoint has deleted what was there, or it lies in a directory that a checkpoint made and marked: the
        mark hides all of it, and only what came by checkpoints was ever the command's.
        """
        entry = self._entries.get((root, path))
        if entry is not None:
            return entry[0] is None
        return any((root, above) in self._made for above in c.above(path))


def note(path: str, entries: list[Entry], originals: list[Original]) -> None:
    """Add to the note of a run, for its end, and for whoever goes on should this process die."""
    data = marshal.dumps((entries, originals))
    with open(path, "ab", buffering=0) as file:
        file.write(len(data).to_bytes(_LENGTH, "big") + data)


def noted(path: str) -> Settled | None:
    """Read the note of a run; None where it had no checkpoint."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    settled, at = Settled(), 0
    while at < len(data):
        begin = at + _LENGTH
        at = begin + int.from_bytes(data[at:begin], "big")
        if at <= len(data):  # else a death cut it off
            settled.add(*marshal.loads(data[begin:at]))  # noqa: S302  (nobody else can write in our state)
    return settled
