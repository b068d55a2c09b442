"""What waits for a person: later commands see it below their own layers, and what they build on it waits too.

A run that is recorded as held has what waits in a tree of its own beside its layer, `held`, so that the slots of the
layer are free for originals. Whoever moves things between the two has the project's lock, and has recorded first
that the run is being applied or settled: a move that was cut short is then done again.
"""

from __future__ import annotations

import marshal
import os

from fumehood.core import changes as c
from fumehood.core.judge import HeldChanges
from fumehood.core.value import Value
from fumehood.errors import FumehoodError
from fumehood.linux import held_layers
from fumehood.linux.held_layers import fold
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.nofollow import open_top, remove_tree
from fumehood.linux.steps import restore_modes
from fumehood.service import layers as layering
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core.report import Run
    from fumehood.linux.namespaces import Layer
    from fumehood.service.store import Store


def trees(store: Store, names: Sequence[str], roots: Sequence[str]) -> list[tuple[str, ...]]:
    """Return for each root the trees of held runs that a command sees below its own layer, the topmost first."""
    trees_of_root: list[list[str]] = [[] for _ in roots]
    for name in names:
        for number, root in enumerate(store.history.roots(name)):
            tree = store.places.layer(name, number, "held")
            if root in roots and os.path.isdir(tree):
                trees_of_root[roots.index(root)].append(tree)
    return [tuple(each) for each in trees_of_root]


def trees_below(store: Store, project: int, run: Run) -> list[tuple[str, ...]]:
    """Return for each root the trees that a command which was recorded sees, folded where they are too many."""
    if len(run.below) <= most(store.places.state):
        return trees(store, run.below, run.roots)
    with store.lock_held_trees(project, settling=True):
        held = set(store.history.held_runs(project, run.draft))
        try:
            items = folded(store, project, [name for name in run.below if name in held])
        except OSError as error:
            raise FumehoodError(
                f"cannot bring together what {len(held)} runs hold: {error.strerror}",
                hint="fumehood clean frees space; fumehood log lists what waits",
            ) from error
    return [tuple(tree for item in items if (tree := item.tree(root))) for root in run.roots]


def clear_away(store: Store, project: int, run: Run) -> None:
    """Remove what runs needed no longer when they were settled, and what a command kept that has ended since."""
    held = set(store.history.held_runs(project, run.draft))
    settled = [name for name in run.below if name not in held and os.path.isdir(store.places.run(name))]
    if not settled and not unused(store, project):
        return
    with store.lock_project(project), store.lock_held_trees(project, settling=True):
        if store.has_running_command(project):
            return
        for name in settled:
            drop_if_unneeded(store, store.history.find(name))
        tidy(store, project)


def drop_if_unneeded(store: Store, run: Run) -> None:
    """Remove the layer of a run that has nothing in it, unless an undo of some of its paths uses it."""
    if run.layer and store.history.runs_using_layer(run.layer) == [run.run]:
        layering.drop_if_empty(store.places, run.layer, run.changed)


def waiting(store: Store, run: Run) -> HeldChanges:
    """Return what held runs that a command saw still hold, or have thrown away while it ran."""

    def changes() -> Iterator[tuple[str, int, c.Change]]:
        # The latest word on a path counts.
        for name, state, was_decided_meanwhile, roots in store.history.decisions(run.below[::-1], run):
            verdicts: tuple[str, ...] = c.WAITING if state == "held" else ()
            if was_decided_meanwhile:
                verdicts = (*c.WAITING, c.DISCARDED)
            for change in store.history.changes(name) if verdicts else ():
                root = roots[change.root]
                if change.verdict in verdicts and root in run.roots:
                    yield name, run.roots.index(root), change

    return HeldChanges(changes(), run.roots, store.history.name_of)


def unseen(store: Store, project: int, run: Run) -> HeldChanges:
    """Return what other runs hold that a command did not see: they were settled while it ran."""
    others = [store.history.find(name) for name in store.history.held_runs(project, run.draft) if name not in run.below]
    changes = (
        (other.run, run.roots.index(root), change)
        for other in others
        for change in other.changed
        if change.verdict in c.WAITING and (root := other.roots[change.root]) in run.roots
    )
    return HeldChanges(changes, run.roots, store.history.name_of)


def layers(store: Store, run: Run) -> tuple[Layer, ...]:
    """Return what a run holds as layers over the project alone."""
    return tuple(
        layer.replace(upper=store.places.layer(run.run, number, "held"))
        for number, layer in enumerate(layering.layers_of(store.places, run.run, run.roots))
    )


def set_apart(store: Store, run: Run) -> None:
    """Move what waits out of the layer into the tree that later commands see; may be repeated."""
    restore_modes(store.places.modes)
    for number, mine, waits, upper, held in _by_root(store, run):
        if not waits or not os.path.isdir(store.places.run(run.run)):
            continue  # nothing waits, or somebody has removed it
        if len(waits) == len(mine) and not os.path.isdir(held):
            os.rename(upper, held)
        for part in (upper, held):
            if not os.path.isdir(part):
                os.mkdir(part, 0o700)
                layering.copy_metadata(part, run.roots[number])
        # Among directories that stay in the layer, some may be full of what waits.
        with Closing(open_top(upper)) as source, Closing(open_top(held)) as target:
            held_layers.move_changes(source, target, waits, ())


def bring_back(store: Store, run: Run, *, others: bool = True) -> None:
    """Move what is about to be applied back into the layer; may be repeated.

    Where `others` may run on top of it, it is moved piece by piece: what leaves the tree that they see is in the
    project a moment later, whereas originals must not come to lie there.
    """
    for _, mine, staying, upper, held in _by_root(store, run):
        going = [change for change in mine if change.verdict == c.APPLIED]
        if not going or not os.path.isdir(held):
            continue
        if not others and len(going) == len(mine) and _is_gone_or_empty(upper):
            os.rename(held, upper)
        else:
            os.makedirs(upper, 0o700, exist_ok=True)
            with Closing(open_top(held)) as source, Closing(open_top(upper)) as target:
                held_layers.move_changes(source, target, going, staying)
                held_layers.remove_empty_directories(source, staying)


def _is_gone_or_empty(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def throw_away(store: Store, run: Run) -> None:
    """Remove what a person does not want from the tree that later commands see; may be repeated."""
    for _, mine, staying, _, held in _by_root(store, run):
        gone = [change for change in mine if change.verdict == c.DISCARDED]
        if gone and os.path.isdir(held):
            with Closing(open_top(held)) as top:
                held_layers.remove_changes(top, gone, staying)
                held_layers.remove_empty_directories(top, staying)


def _by_root(store: Store, run: Run) -> Iterator[tuple[int, list[c.Change], list[c.Change], str, str]]:
    """Yield each root's changes, those of them that wait, its layer, and its tree of what waits."""
    for number in range(len(run.roots)):
        mine = [change for change in run.changed if change.root == number]
        waits = [change for change in mine if change.verdict in c.WAITING]
        upper, held = (store.places.layer(run.run, number, part) for part in ("upper", "held"))
        yield number, mine, waits, upper, held


# ---- Many held runs as few trees: an overlay takes only so many layers, and gets slower with each.
#
# Neighbours among the held runs are folded into one tree by hard links, those that stand for the fewest runs first. A
# fold never changes. Once something of one of its runs is settled it is no longer used, and is removed as soon as no
# command runs that may see it. What each run holds stays as it is. Whoever calls has the project's stack to itself.

_MOST = 16  # trees that a command sees below its own layer
_MOST_BYTES = 3000  # of all their paths: bubblewrap names them to the kernel in one page
_REST_OF_PATH = 64
_MEMBERS = "members"
_BEGUN = "."  # begins the name of a fold that is not whole yet


class StackedTree(Value):
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


def fold_ahead(store: Store, project: int, run: Run) -> None:
    """Make the folds that the next command of a run's draft will need, so that it does not wait for them."""
    limit = most(store.places.state)
    if len(run.below) + 1 >= limit:
        with store.lock_held_trees(project, settling=True):
            folded(store, project, store.history.held_runs(project, run.draft), limit - 1)


def folded(store: Store, project: int, runs: Sequence[str], limit: int = 0) -> list[StackedTree]:
    """Return trees that show together what runs hold, the topmost first; makes folds where they are too many."""
    items = _standing_for(store, project, runs)
    limit = limit or most(store.places.state)
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
    with Closing(open_top(store.places.folded(project))) as top:
        for name in names:
            remove_tree(top, name)


def _retire(item: StackedTree) -> None:
    """Let no new run see a fold."""
    if item.name:
        os.unlink(f"{os.path.dirname(item.trees[0])}/{_MEMBERS}")


def _standing_for(store: Store, project: int, runs: Sequence[str]) -> list[StackedTree]:
    """Return what stands for runs, the latest first: folds of neighbours as they are now, and single runs."""
    places = {run: at for at, run in enumerate(runs)}
    items: dict[int, StackedTree] = {}
    taken: set[int] = set()
    for item in sorted(_folds(store, project), key=lambda item: -len(item.runs)):
        start = places.get(item.runs[0], len(runs))
        span = range(start, start + len(item.runs))
        if tuple(runs[start : span.stop]) == item.runs and taken.isdisjoint(span):
            items[start] = item
            taken.update(span)
        elif not places.keys().isdisjoint(item.runs):
            _retire(item)  # another run came between; those of another draft are none of ours
    for at, run in enumerate(runs):
        if at not in taken:
            roots = store.history.roots(run)
            trees = tuple(store.places.layer(run, number, "held") for number in range(len(roots)))
            items[at] = StackedTree(runs=(run,), roots=roots, trees=trees)
    return [items[at] for at in sorted(items)]


def _folds(store: Store, project: int) -> list[StackedTree]:
    """Return the folds that were made since the machine started: a crash may have left others half written."""
    where = store.places.folded(project)
    folds = []
    names = [name for name in os.listdir(where) if not name.startswith(_BEGUN)] if os.path.isdir(where) else []
    now = _boot() if names else ""
    for name in names:
        path = f"{where}/{name}"
        try:
            with open(f"{path}/{_MEMBERS}", "rb") as file:
                boot, runs, roots = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
        except (FileNotFoundError, EOFError, ValueError, TypeError):
            continue
        if boot == now:
            trees = tuple(f"{path}/{number}" for number in range(len(roots)))
            folds.append(StackedTree(runs=runs, roots=roots, trees=trees, name=name))
    return folds


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read()


def _folded(store: Store, project: int, items: Sequence[StackedTree]) -> StackedTree:
    where, name = store.places.folded(project), new_id()
    begun = f"{where}/{_BEGUN}{name}"
    os.makedirs(begun, 0o700)
    runs = tuple(run for item in items for run in item.runs)
    roots = tuple(dict.fromkeys(root for item in items for root in item.roots))
    for number, root in enumerate(roots):
        fold_root(f"{begun}/{number}", [tree for item in items if (tree := item.tree(root))])
    with open(f"{begun}/{_MEMBERS}", "wb") as file:
        marshal.dump((_boot(), runs, roots), file)
    os.rename(begun, f"{where}/{name}")
    for item in items:
        _retire(item)
    trees = tuple(f"{where}/{name}/{number}" for number in range(len(roots)))
    return StackedTree(runs=runs, roots=roots, trees=trees, name=name)


def fold_root(target: str, trees: Sequence[str], *, goes: bool = False) -> None:
    """Fold trees of one root into a new one, which `goes` into the project or is seen by commands."""
    if not trees:
        return
    os.mkdir(target, 0o700)
    with Descriptors(map(open_top, (target, *trees))) as tops:
        fold(tops[0], tops[1:], for_project=goes)
