"""Turn a run's changes round: what must be done to the project to have it as it was before."""

from __future__ import annotations

from fumehood.core import changes as c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OPPOSITE = {c.ADDED: c.DELETED, c.DELETED: c.ADDED, c.MODIFIED: c.MODIFIED, c.MODE: c.MODE, c.TYPE: c.TYPE}


def inverse(changes: Sequence[c.Change]) -> list[c.Change]:
    """Return the changes that take back those that were applied."""
    return [_opposite(change) for change in changes if change.verdict == c.APPLIED]


def on_their_own(changes: Sequence[c.Change]) -> list[c.Change]:
    """Let changes move by themselves where the directory that carried them is not among them; they are in order."""
    top: tuple[int, str] | None = None
    for change in changes:
        inside = top is not None and change.root == top[0] and change.path.startswith(f"{top[1]}/")
        change.within = top[1] if inside and top is not None else None
        if not inside:
            whole = change.kind == c.DIRECTORY or change.change == c.TYPE
            top = (change.root, change.path) if whole and change.change != c.MODE else None
    return list(changes)


def _opposite(change: c.Change) -> c.Change:
    kind = change.kind if change.before is None else change.before.kind
    return c.Change(
        change.root,
        change.path,
        _OPPOSITE[change.change],
        kind,
        before=change.after,
        after=change.before,
        within=change.within,
        verdict=c.APPLIED,
    )


def staying(changes: Sequence[c.Change]) -> frozenset[tuple[int, str]]:
    """Return the directories of the layer that hold something which was not taken over."""
    return frozenset(c.all_above(change for change in changes if change.verdict != c.APPLIED))


def needs_layer(change: c.Change) -> bool:
    """Tell whether a change has a backup in the layer, waits there for a person, or could not leave it.

    What could not leave keeps the directories around it, which an undo puts back into.
    """
    if change.verdict in (*c.WAITING, c.UNSUPPORTED):
        return True
    return change.verdict == c.APPLIED and change.before is not None and not c.is_mode_alone(change)
