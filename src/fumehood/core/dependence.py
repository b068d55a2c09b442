"""Which changes build on what an earlier run has held back, so that they can't go before it."""

from __future__ import annotations

from fumehood.core import changes as c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Waiting:
    """What waits in earlier runs: `found` are their runs' names, the number of the root here, and the changes."""

    def __init__(self, found: Iterable[tuple[str, int, c.Change]]) -> None:
        self._at: dict[tuple[int, str], str] = {}
        self._trees: dict[tuple[int, str], str] = {}
        self._above: dict[tuple[int, str], str] = {}
        for run, root, change in found:
            self._at[root, change.path] = run
            if not c.is_mode_alone(change):
                self._trees[root, change.path] = run
            for each in c.above(change.path):
                if self._above.get((root, each)) == run:
                    break  # so it is for those above it
                self._above[root, each] = run
        self._inside = c.Inside(self._trees)

    def __bool__(self) -> bool:
        return bool(self._at)

    def under(self, change: c.Change) -> str | None:
        """Return the run that a change builds on, or None.

        That is one that changed the path or something above it, or, where a whole directory goes, something in it.
        """
        root, path = change.root, change.path
        if (root, path) in self._at:
            return self._at[root, path]
        if change.change in (c.DELETED, c.TYPE) and (root, path) in self._above:
            return self._above[root, path]
        tree = self._inside.topmost(root, path)
        return None if tree is None else self._trees[root, tree]


def hold_what_builds_on(changes: Sequence[c.Change], waiting: Waiting) -> None:
    """Hold the changes that can't go before what they were built on."""
    if not waiting:
        return
    for change in changes:
        if change.verdict == c.APPLIED and (run := waiting.under(change)) is not None:
            change.verdict, change.reason = c.HELD, f"it builds on run {run}, which was held"
