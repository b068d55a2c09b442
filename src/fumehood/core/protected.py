"""Places in the roots that something of the person's leads the host to: see `linux/ways_in`."""

from __future__ import annotations

from fumehood.core.links import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.danger_tables import Because


class Protected:
    """Single paths and whole directories, by the number of their root, each with the reason."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(roots)
        self._paths: dict[tuple[int, str], Because] = {}
        self._directories: dict[tuple[int, str], Because] = {}
        self._known: dict[tuple[int, str], Because | None] = {}

    def add(self, path: str, because: Because, *, whole: bool = False) -> None:
        """Protect an absolute path, if it lies in a root; `whole`, with all that is or will be in it."""
        spot = within(path, self._roots)
        if spot is not None and spot[1]:
            self._paths.setdefault(spot, because)
            if whole:
                self._directories.setdefault(spot, because)

    def why(self, root: int, path: str, *, is_link: bool) -> Because | None:
        """Return why a path is protected, or None.

        A link put in the place of a directory brings another one's files to all names below it.
        """
        because = self._paths.get((root, path)) or self._above(root, path.rpartition("/")[0])
        if because is not None or not is_link:
            return because
        below = f"{path}/"
        return next((why for (at, each), why in self._paths.items() if at == root and each.startswith(below)), None)

    def _above(self, root: int, directory: str) -> Because | None:
        """Return why all in a directory is protected; thousands of changes share a few directories."""
        if not directory or not self._directories:
            return None
        asked = []
        while directory and (root, directory) not in self._known:
            asked.append(directory)
            directory = directory.rpartition("/")[0]
        because = self._known.get((root, directory))
        for each in reversed(asked):
            because = self._known[root, each] = self._directories.get((root, each)) or because
        return because
