"""Many held runs as few trees: an overlay takes only so many layers, and gets slower with each.

Neighbours among the held runs are folded into one tree by hard links, those that stand for the fewest runs first. A
fold never changes. Once something of one of its runs is settled it is no longer used, and is removed as soon as no
command runs that may see it. What each run holds stays as it is. Whoever calls has the project's stack to itself.
"""

from __future__ import annotations

import marshal
import os

from fumehood.core.value import Value
from fumehood.linux.fold import fold
from fumehood.linux.nofollow import open_top, remove_tree
from fumehood.store.ids import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.service.store import Store

_MOST = 16  # trees that a command sees below its own layer
_MOST_BYTES = 3000  # of all their paths: bubblewrap names them to the kernel in one page
_REST_OF_PATH = 64
_MEMBERS = "members"
_BEGUN = "."  # begins the name of a fold that is not whole yet


class Item(Value):
    """A tree for each of some roots that stands for some runs, the latest first; a fold has a name."""

    runs: tuple[str, ...]
    roots: tuple[str, ...]
    trees: tuple[str, ...]  # one for each root, not all of which exist
    name: str = ""

    def tree(self, root: str) -> str:
        """Return the tree for a root; nothing where there is none."""
        tree = self.trees[self.roots.index(root)] if root in self.roots else ""
        return tree if tree and os.path.isdir(tree) else ""


def most(state: str) -> int:
    """Return how many trees a command can see: fewer where our own directory has a long name."""
    return max(2, min(_MOST, _MOST_BYTES // (len(os.fsencode(state)) + _REST_OF_PATH)))


def folded(store: Store, project: int, runs: Sequence[str]) -> list[Item]:
    """Return trees that show together what runs hold, the topmost first; makes folds where they are too many."""
    items = _standing_for(store, project, runs)
    limit = most(store.places.state)
    while len(items) > limit:
        size = max(2, limit // 2)
        # Of several that are as small, the oldest: its runs have waited for longest, and wait on.
        starts = range(len(items) - size, -1, -1)
        at = min(starts, key=lambda start: sum(len(item.runs) for item in items[start : start + size]))
        items[at : at + size] = [_folded(store, project, items[at : at + size])]
    return items


def let_go(store: Store, project: int, run: str, *, others: bool) -> None:
    """Stop using the folds that a run is in, for something of it is settled; where no `others` run, remove them."""
    for item in _folds(store, project):
        if run in item.runs:
            _retire(item)
    if not others:
        tidy(store, project)


def unused(store: Store, project: int) -> list[str]:
    """Return the names of folds that no new run will see."""
    where = store.places.folded(project)
    used = {item.name for item in _folds(store, project)}
    return [name for name in os.listdir(where) if name not in used] if os.path.isdir(where) else []


def tidy(store: Store, project: int) -> None:
    """Remove folds that are not used any more; no command of the project may be running."""
    names = unused(store, project)
    if not names:
        return
    top = open_top(store.places.folded(project))
    try:
        for name in names:
            remove_tree(top, name)
    finally:
        os.close(top)


def _retire(item: Item) -> None:
    """Let no new run see a fold."""
    if item.name:
        os.unlink(f"{os.path.dirname(item.trees[0])}/{_MEMBERS}")


def _standing_for(store: Store, project: int, runs: Sequence[str]) -> list[Item]:
    """Return what stands for runs, the latest first: folds of neighbours as they are now, and single runs."""
    places = {run: at for at, run in enumerate(runs)}
    items: dict[int, Item] = {}
    taken: set[int] = set()
    for item in sorted(_folds(store, project), key=lambda item: -len(item.runs)):
        start = places.get(item.runs[0], len(runs))
        span = range(start, start + len(item.runs))
        if tuple(runs[start : span.stop]) == item.runs and taken.isdisjoint(span):
            items[start] = item
            taken.update(span)
        else:
            _retire(item)  # another run came between
    for at, run in enumerate(runs):
        if at not in taken:
            items[at] = _single(store, run)
    return [items[at] for at in sorted(items)]


def _single(store: Store, run: str) -> Item:
    roots = store.history.roots(run)
    trees = tuple(store.places.layer(run, number, "held") for number in range(len(roots)))
    return Item(runs=(run,), roots=roots, trees=trees)


def _folds(store: Store, project: int) -> list[Item]:
    """Return the folds that were made since the machine started: a crash may have left others half written."""
    where = store.places.folded(project)
    found = []
    for name in os.listdir(where) if os.path.isdir(where) else ():
        path = f"{where}/{name}"
        try:
            with open(f"{path}/{_MEMBERS}", "rb") as file:
                boot, runs, roots = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
        except FileNotFoundError:
            continue
        if boot == _boot() and not name.startswith(_BEGUN):
            trees = tuple(f"{path}/{number}" for number in range(len(roots)))
            found.append(Item(runs=runs, roots=roots, trees=trees, name=name))
    return found


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read()


def _folded(store: Store, project: int, items: Sequence[Item]) -> Item:
    """Fold items into one."""
    where, name = store.places.folded(project), new_id()
    begun = f"{where}/{_BEGUN}{name}"
    os.makedirs(begun, 0o700)
    runs = tuple(run for item in items for run in item.runs)
    roots = tuple(dict.fromkeys(root for item in items for root in item.roots))
    for number, root in enumerate(roots):
        _fold_root(f"{begun}/{number}", [tree for item in items if (tree := item.tree(root))])
    with open(f"{begun}/{_MEMBERS}", "wb") as file:
        marshal.dump((_boot(), runs, roots), file)
    os.rename(begun, f"{where}/{name}")
    for item in items:
        _retire(item)
    trees = tuple(f"{where}/{name}/{number}" for number in range(len(roots)))
    return Item(runs=runs, roots=roots, trees=trees, name=name)


def _fold_root(target: str, trees: Sequence[str]) -> None:
    if not trees:
        return
    os.mkdir(target, 0o700)
    tops = [open_top(path) for path in (target, *trees)]
    try:
        fold(tops[0], tops[1:])
    finally:
        for top in tops:
            os.close(top)
