"""What a running command has done so far, path by path: the rules by which the live monitor tells it.

A path's state follows from what lies there *now*, in the layer and in the project, never from the
order of events: the kernel merges events, drops them under load, and gives none for a whiteout that
a rename leaves behind. So the rules hold however much happened between two looks.
"""

from __future__ import annotations

from fumehood.core.changes import ABSENT, DIRECTORY, WHITEOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ADDED, UPDATED, REMOVED, CANCELLED = "added", "updated", "removed", "cancelled"


def state_of(layer: str, project: str, *, hidden: bool = False, altered: bool = False) -> str | None:
    """Name what became of a path, given the kinds of entry in the layer and in the project; None: nothing.

    `hidden`: something above in the layer covers the project, so what is only there is gone.
    `altered`: of two directories, the layer's was made anew or has another mode; by itself, a
    directory in the layer only means that something below it was touched.
    """
    if layer in (ABSENT, WHITEOUT):
        covered = hidden or layer == WHITEOUT
        return REMOVED if covered and project != ABSENT else None
    if project == ABSENT:
        return ADDED
    if layer == project == DIRECTORY and not altered:
        return None
    return UPDATED


def news(before: str | None, now: str | None) -> str | None:
    """Say what a listener hears when a path's state changes; None: nothing it does not know.

    A path that was told and is untouched again (created, then deleted) is cancelled. Writing on in a
    file changes no state, so it is told once however long the writing goes on.
    """
    if before == now:
        return None
    return now or CANCELLED


class Directory:
    """What was told about the entries of one directory, and the directories below that matter."""

    __slots__ = ("below", "gone", "hidden", "path", "told")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.hidden = False  # the layer covers what the project has in here
        self.gone = False  # no longer part of the tree: what is heard of it is of no interest
        self.told: dict[str, str] = {}
        self.below: dict[str, Directory] = {}

    def path_of(self, name: str) -> str:
        """Return the path of an entry, relative to the root."""
        return f"{self.path}/{name}" if self.path else name

    def known(self) -> set[str]:
        """Return the names about which something was told, here or further down."""
        return {*self.told, *self.below}

    def record(self, name: str, now: str | None) -> str | None:
        """Remember an entry's state; return what is news about it."""
        before = self.told.get(name)
        if now is None:
            self.told.pop(name, None)
        else:
            self.told[name] = now
        return news(before, now)

    def enter(self, name: str) -> Directory:
        """Return the directory of this name, a new one if it was not known."""
        directory = self.below.get(name)
        if directory is None:
            directory = self.below[name] = Directory(self.path_of(name))
        return directory

    def drop(self, name: str) -> list[Directory]:
        """Forget the directory of this name with all below it; return what was forgotten, parents first."""
        top = self.below.pop(name, None)
        if top is None:
            return []
        dropped = list(top.tree())
        for directory in dropped:
            directory.gone = True
        return dropped

    def tree(self) -> Iterator[Directory]:
        """Yield this directory and all below it, parents first."""
        waiting = [self]
        while waiting:
            directory = waiting.pop()
            yield directory
            waiting.extend(reversed(directory.below.values()))

    def paths(self, state: str) -> Iterator[str]:
        """Yield every path below that is in a state."""
        for directory in self.tree():
            for name, told in directory.told.items():
                if told == state:
                    yield directory.path_of(name)
