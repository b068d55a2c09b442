"""Turn judged changes into the fewest steps that make the project so."""

from __future__ import annotations

from fumehood.core import changes as c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SWAP, PUT, TAKE, MKDIR, RMDIR, CHMOD = "swap", "put", "take", "mkdir", "rmdir", "chmod"


class Step:
    """One atomic act on one path: swap the two sides, put in, take out, make or remove a directory, set a mode.

    `unmark` are the entries that carry overlay bookkeeping: it is removed in the layer before the step.
    """

    __slots__ = ("act", "change", "is_plain", "name", "parent", "unmark")

    def __init__(self, act: str, change: c.Change, unmark: list[c.Change] | None = None) -> None:
        self.act = act
        self.change = change
        self.parent, _, self.name = change.path.rpartition("/")
        self.unmark = [] if unmark is None else unmark
        self.is_plain = act == SWAP and is_plain(change)

    def __repr__(self) -> str:
        return f"Step({self.act} {self.change.path!r})"


def is_plain(change: c.Change) -> bool:
    """Tell whether a change swaps two entries that are no directories: most do."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.kind != c.DIRECTORY != after.kind


def plan(changes: Sequence[c.Change], staying: frozenset[tuple[int, str]] = frozenset()) -> list[Step]:
    """Return the steps that take over every change whose verdict is `applied`.

    Parents come before what lies in them. Directories are removed, and get their modes, last and the
    deepest first, because one may become read-only. `staying` names directories that the layer still needs.
    """
    inside: dict[tuple[int, str], list[c.Change]] = {}
    for change in changes:
        if change.within is not None:
            inside.setdefault((change.root, change.within), []).append(change)
    steps: list[Step] = []
    last: list[Step] = []
    for change in changes:
        if change.within is not None:
            continue
        below = inside.get((change.root, change.path), ())
        if change.verdict != c.APPLIED:
            # What lies in it may still move, where the directory itself is in the project already.
            steps += _trees(below, staying)
        elif c.is_mode_alone(change):
            last.append(Step(CHMOD, change))
        elif change.change in (c.ADDED, c.DELETED):
            for step in _trees((change, *below), staying):
                (last if step.act == RMDIR else steps).append(step)
        else:
            steps.append(_step(SWAP, change, below))
    steps.sort(key=lambda step: (step.change.root, step.parent))
    return steps + last[::-1]


def _step(act: str, change: c.Change, below: Sequence[c.Change]) -> Step:
    if not below:
        return Step(act, change, [change] if change.marked else None)
    return Step(act, change, [each for each in (change, *below) if each.marked])


def _trees(tree: Sequence[c.Change], staying: frozenset[tuple[int, str]]) -> list[Step]:
    """Move a new or deleted tree whole where all of it goes, else directory by directory."""
    if not tree:
        return []
    whole, piece = (PUT, MKDIR) if tree[0].change == c.ADDED else (TAKE, RMDIR)
    broken = {path for _, path in c.all_above(each for each in tree if each.verdict != c.APPLIED)}
    steps: list[Step] = []
    covered = "\0"
    for change in tree:
        if change.path.startswith(covered):
            if change.marked:
                steps[-1].unmark.append(change)
        elif change.verdict != c.APPLIED:
            continue
        elif change.kind == c.DIRECTORY and (change.path in broken or (change.root, change.path) in staying):
            steps.append(Step(piece, change))
        else:
            steps.append(_step(whole, change, ()))
            covered = f"{change.path}/" if change.kind == c.DIRECTORY else "\0"
    return steps


def sharing(changes: Sequence[c.Change], version: str) -> list[c.Change]:
    """Return the applied files whose inode has another link that does not move with them.

    `version` says which is meant: "after" goes into the project, "before" comes out of it.
    """
    linked: dict[tuple[int, int], list[c.Change]] = {}
    for change in changes:
        stamp: c.Stamp | None = getattr(change, version)
        if stamp is not None and stamp.links > 1 and stamp.kind == c.FILE and change.verdict == c.APPLIED:
            linked.setdefault((change.root, stamp.inode), []).append(change)
    return [each for group in linked.values() if len(group) < getattr(group[0], version).links for each in group]
