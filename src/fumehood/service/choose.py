"""Which of a run's changes a person means by paths, and which others must go with them."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.report import printable
from fumehood.core.together import one_state
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core.report import Run


def chosen(run: Run, paths: Sequence[str], *, here: str = "") -> list[c.Change]:
    """Return the changes that paths name, each by itself or by a directory above it; no path names all.

    A path may be absolute, relative to `here` (where the person is), or relative to a root, as reports
    show it; the first of these that names a change counts. A run that failed changed nothing.
    """
    if run.state == "failed":
        return []
    if not paths:
        return list(run.found)
    wanted: set[int] = set()
    for path in paths:
        places = (_named(run, place) for place in meanings(run.roots, path, here))
        found = next((each for each in places if each), None)
        if found is None:
            raise BadRequest(
                f"run {run.run} did not change {printable(path) or 'an empty path'}", hint=f"fumehood show {run.run}"
            )
        wanted |= found
    return [change for n, change in enumerate(run.found) if n in wanted]


def meanings(roots: Sequence[str], path: str, here: str) -> Iterator[str]:
    """Yield the absolute paths that a path may mean, the likeliest first."""
    if not path or "\0" in path:
        return
    if not path.startswith("/"):
        for place in (here, *roots) if here else roots:
            yield os.path.normpath(f"{place}/{path}")
        return
    plain = os.path.normpath(path)
    yield plain
    # By way of a symlink; the last name is left alone, because it may be a symlink that was changed itself.
    yield os.path.join(os.path.realpath(os.path.dirname(plain)), os.path.basename(plain))


def _named(run: Run, place: str) -> set[int]:
    """Return the numbers of the changes at or below an absolute path."""
    found: set[int] = set()
    for number, root in enumerate(run.roots):
        if place == root:
            found |= {n for n, change in enumerate(run.found) if change.root == number}
        elif place.startswith(f"{root}/"):
            path = place[len(root) + 1 :]
            found |= {
                n
                for n, change in enumerate(run.found)
                if change.root == number and (change.path == path or change.path.startswith(f"{path}/"))
            }
    return found


def with_companions(run: Run, changes: Sequence[c.Change], *, forth: bool) -> list[c.Change]:
    """Add the changes of the same fate that can't stay behind.

    On the way `forth` into the project, what lies in a new directory needs that. A replaced or deleted directory goes
    whole, and the state of a repository or database is never half of two histories.
    """
    verdicts = {change.verdict for change in changes}
    if not verdicts.isdisjoint(c.WAITING):
        verdicts |= set(c.WAITING)  # a tree is held for a conflict in it
    alike = [change for change in run.found if change.verdict in verdicts]
    by_place = {(change.root, change.path): change for change in alike}
    trees = {(change.root, change.within) for change in alike if change.within is not None}
    wanted = {(change.root, change.path) for change in changes}
    states = {_state(run, change) for change in changes}
    for change in alike:
        if _state(run, change) in states:
            wanted.add((change.root, change.path))
    kinds = (c.ADDED, c.DELETED, c.TYPE) if forth else (c.DELETED, c.TYPE)
    around = c.all_above(by_place[place] for place in wanted) & by_place.keys()
    wanted |= {place for place in around if by_place[place].change in kinds}
    whole = {place for place in wanted & trees if by_place[place].change in (c.DELETED, c.TYPE)}
    return [
        change
        for change in alike
        if (change.root, change.path) in wanted or (change.within and (change.root, change.within) in whole)
    ]


def _state(run: Run, change: c.Change) -> str:
    return one_state(f"{run.roots[change.root]}/{change.path}")
