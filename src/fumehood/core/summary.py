"""Many changes in few lines: what waits for a person first, the rare before the many, what is alike by directory."""

from __future__ import annotations

from fumehood.core.changes import APPLIED, DELETED, DISCARDED, Change
from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Line(Value):
    """What one line tells of: a change, or several that are alike in a directory, whose path then ends with `/`."""

    change: Change
    path: str
    count: int = 1


def summary(changes: Sequence[Change], most: int) -> tuple[list[Line], dict[str, int]]:
    """Return at most so many lines, and what they leave out, counted by kind.

    Nothing is left out but where more kinds of changes (with their reasons) than lines are there.
    """
    alike = _alike(changes)
    if len(changes) <= most:
        return [_whole(change) for group in alike for change in group], {}
    lines: list[Line] = []
    for number, group in enumerate(alike):
        if len(lines) >= most:
            return lines, counted(change for rest in alike[number:] for change in rest)
        room = max(1, (most - len(lines)) // (len(alike) - number))
        lines += _by_directory(group, room)
    return lines, {}


def foremost(changes: Sequence[Change], most: int) -> tuple[list[Change], dict[str, int]]:
    """Return at most so many changes, those first that a reader must see, and the others counted by kind."""
    if len(changes) <= most:
        return list(changes), {}
    ordered = [change for group in _alike(changes) for change in group]
    return ordered[:most], counted(ordered[most:])


def counted(changes: Iterable[Change]) -> dict[str, int]:
    """Count changes by what was done, and by what became of it where that is not that it was applied."""
    counts: dict[str, int] = {}
    for change in changes:
        kind = change.change if change.verdict == APPLIED else f"{change.change}, {change.verdict}"
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _alike(changes: Sequence[Change]) -> list[list[Change]]:
    """Put together what differs by its path alone; groups that a reader must see first, of these the smallest."""
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        key = (_rank(change), change.root, change.verdict, change.change, change.reason, change.flags)
        groups.setdefault(key, []).append(change)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], len(groups[key])))]


def _rank(change: Change) -> int:
    if change.verdict not in (APPLIED, DISCARDED):
        return 0
    if change.flags:
        return 1
    return 2 if change.change == DELETED else 3


def _by_directory(group: Sequence[Change], most: int) -> list[Line]:
    """Tell changes that are alike by the deepest directories that are few enough."""
    if len(group) <= most:
        return [_whole(change) for change in group]
    deepest = max(change.path.count("/") for change in group)
    lines: dict[str, Line] = {}
    for depth in range(deepest, -1, -1):
        lines = {}
        for change in group:
            place = _place(change.path, depth)
            line = lines.get(place)
            lines[place] = Line(change=change, path=place) if line is None else line.replace(count=line.count + 1)
        if len(lines) <= most:
            break
    return [_whole(line.change) if line.count == 1 else line for line in lines.values()]


def _place(path: str, depth: int) -> str:
    parts = path.split("/")
    if depth and len(parts) <= depth:
        return path
    return "/".join(parts[:depth]) + "/" if depth else "./"


def _whole(change: Change) -> Line:
    return Line(change=change, path=change.path)
