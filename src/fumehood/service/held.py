"""Held changes: where they lie until a person decides, and how later commands see them.

A held run has two trees for each root: the layer `upper`, and beside it `held` with the changes that wait. So the slots
of the layer are free for originals. Whoever moves changes between the two has the project's lock, and has recorded
first that the run is being applied or settled: if the move is interrupted, it is done again.
"""

from __future__ import annotations

import marshal
import os

from fumehood.core import changes as c
from fumehood.core.judge import HeldChanges
from fumehood.core.value import Value
from fumehood.errors import FumehoodError
from fumehood.linux import held_layers
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


def held_trees(store: Store, runs: Sequence[str], roots: Sequence[str]) -> list[tuple[str, ...]]:
    """Return for each root the trees of held runs, in the order of the runs. A command sees the first one topmost."""
    trees_by_root: list[list[str]] = [[] for _ in roots]
    for run in runs:
        for number, root in enumerate(store.history.roots(run)):
            tree = store.places.layer(run, number, "held")
            if root in roots and os.path.isdir(tree):
                trees_by_root[roots.index(root)].append(tree)
    return [tuple(trees) for trees in trees_by_root]


def trees_below(store: Store, project: int, run: Run) -> list[tuple[str, ...]]:
    """Return for each root the trees that a recorded command sees below its own layer, folded if there are many."""
    if len(run.below) <= max_trees(store.places.state):
        return held_trees(store, run.below, run.roots)
    with store.lock_held_trees(project, settling=True):
        held_runs = set(store.history.held_runs(project, run.draft))
        try:
            stack = few_trees(store, project, [name for name in run.below if name in held_runs])
        except OSError as error:
            raise FumehoodError(
                f"cannot bring together what {len(held_runs)} runs hold: {error.strerror}",
                hint="fumehood clean frees space; fumehood log lists what waits",
            ) from error
    return [tuple(path for tree in stack if (path := tree.path_for(root))) for root in run.roots]


def remove_unneeded_trees(store: Store, project: int, run: Run) -> None:
    """Remove empty layers of runs that were settled while this command ran, and folds that nobody uses any more."""
    held_runs = set(store.history.held_runs(project, run.draft))
    settled = [name for name in run.below if name not in held_runs and os.path.isdir(store.places.run(name))]
    if not settled and not _unused_folds(store, project):
        return
    with store.lock_project(project), store.lock_held_trees(project, settling=True):
        if store.has_running_command(project):
            return
        for name in settled:
            drop_layer_if_unneeded(store, store.history.find(name))
        remove_unused_folds(store, project)


def drop_layer_if_unneeded(store: Store, run: Run) -> None:
    """Remove the layer of a run if nothing is in it, unless an undo of some of its paths uses it."""
    if run.layer and store.history.runs_using_layer(run.layer) == [run.run]:
        layering.drop_if_empty(store.places, run.layer, run.changed)


def held_changes_below(store: Store, run: Run) -> HeldChanges:
    """Return the changes in the held trees that a command saw: those that still wait or were discarded meanwhile."""

    def changes() -> Iterator[tuple[str, int, c.Change]]:
        # The earliest run comes first, because HeldChanges keeps the last one for a path.
        for name, state, was_decided_meanwhile, roots in store.history.decisions(run.below[::-1], run):
            verdicts: tuple[str, ...] = c.WAITING if state == "held" else ()
            if was_decided_meanwhile:
                verdicts = (*c.WAITING, c.DISCARDED)
            for change in store.history.changes(name) if verdicts else ():
                root = roots[change.root]
                if change.verdict in verdicts and root in run.roots:
                    yield name, run.roots.index(root), change

    return HeldChanges(changes(), run.roots, store.history.name_of)


def unseen_held_changes(store: Store, project: int, run: Run) -> HeldChanges:
    """Return held changes that a command did not see, because their runs were settled while it ran."""
    unseen = [store.history.find(name) for name in store.history.held_runs(project, run.draft) if name not in run.below]
    changes = (
        (held_run.run, run.roots.index(root), change)
        for held_run in unseen
        for change in held_run.changed
        if change.verdict in c.WAITING and (root := held_run.roots[change.root]) in run.roots
    )
    return HeldChanges(changes, run.roots, store.history.name_of)


def layers_of_held_trees(store: Store, run: Run) -> tuple[Layer, ...]:
    """Return a run's held trees as layers that lie on the project alone."""
    return tuple(
        layer.replace(upper=store.places.layer(run.run, number, "held"))
        for number, layer in enumerate(layering.layers_of(store.places, run.run, run.roots))
    )


def move_to_held_trees(store: Store, run: Run) -> None:
    """Move the changes that wait from the layer to the held trees, which later commands see; may be repeated."""
    restore_modes(store.places.modes)
    for number, changes, waiting, upper, held in _by_root(store, run):
        if not waiting or not os.path.isdir(store.places.run(run.run)):
            continue  # nothing waits, or somebody has removed it
        if len(waiting) == len(changes) and not os.path.isdir(held):
            os.rename(upper, held)
        for tree in (upper, held):
            if not os.path.isdir(tree):
                os.mkdir(tree, 0o700)
                layering.copy_metadata(tree, run.roots[number])
        # A directory that stays in the layer may be full of changes that wait.
        with Closing(open_top(upper)) as source, Closing(open_top(held)) as target:
            held_layers.move_changes(source, target, waiting, ())


def move_to_layer(store: Store, run: Run, *, others_run: bool = True) -> None:
    """Move the changes that are about to be applied from the held trees back to the layer; may be repeated.

    If `others_run`, they may see the held trees, so each change is moved by itself: what leaves the held tree is in the
    project a moment later. A whole tree must not be renamed then, because originals would come to lie in what they see.
    """
    for _, changes, waiting, upper, held in _by_root(store, run):
        moving = [change for change in changes if change.verdict == c.APPLIED]
        if not moving or not os.path.isdir(held):
            continue
        if not others_run and len(moving) == len(changes) and _is_gone_or_empty(upper):
            os.rename(held, upper)
        else:
            os.makedirs(upper, 0o700, exist_ok=True)
            with Closing(open_top(held)) as source, Closing(open_top(upper)) as target:
                held_layers.move_changes(source, target, moving, waiting)
                held_layers.remove_empty_directories(source, waiting)


def _is_gone_or_empty(directory: str) -> bool:
    """Return True if there is no directory, or if it was empty and is now removed."""
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_discarded(store: Store, run: Run) -> None:
    """Remove discarded changes from the held trees; may be repeated."""
    for _, changes, waiting, _, held in _by_root(store, run):
        discarded = [change for change in changes if change.verdict == c.DISCARDED]
        if discarded and os.path.isdir(held):
            with Closing(open_top(held)) as top:
                held_layers.remove_changes(top, discarded, waiting)
                held_layers.remove_empty_directories(top, waiting)


def _by_root(store: Store, run: Run) -> Iterator[tuple[int, list[c.Change], list[c.Change], str, str]]:
    """Yield for each root its number, its changes, those that wait, its layer, and its held tree."""
    for number in range(len(run.roots)):
        changes = [change for change in run.changed if change.root == number]
        waiting = [change for change in changes if change.verdict in c.WAITING]
        upper, held = (store.places.layer(run.run, number, tree) for tree in ("upper", "held"))
        yield number, changes, waiting, upper, held


# ---- Many held runs as few trees: an overlay takes only so many layers, and gets slower with each.
#
# Held runs that follow each other are folded into one tree by hard links, those with the fewest runs first. A fold
# never changes. Once a change of one of its runs is settled, no new command uses the fold; it is removed as soon as no
# command runs that may see it. The runs' own held trees stay as they are. Callers hold the lock on the held trees.

_MAX_TREES = 16  # that a command sees below its own layer
_MAX_PATH_BYTES = 3000  # of all their paths: bubblewrap names them to the kernel in one page
_REST_OF_PATH_BYTES = 64
_MEMBERS = "members"  # the file in a fold that lists its runs; without it, no new command uses the fold
_INCOMPLETE = "."  # begins the name of a fold that is not complete yet


class StackedTree(Value):
    """The held changes of one run or, as a fold, of several, the latest run first: one tree for each of their roots."""

    runs: tuple[str, ...]
    roots: tuple[str, ...]
    trees: tuple[str, ...]  # one for each root; some may not exist
    name: str = ""  # of a fold

    def path_for(self, root: str) -> str:
        """Return the path of the tree for a root, or "" if there is none."""
        tree = self.trees[self.roots.index(root)] if root in self.roots else ""
        return tree if tree and os.path.isdir(tree) else ""


def max_trees(state: str) -> int:
    """Return how many trees a command can see; they are fewer if the path of the state directory is long."""
    return max(2, min(_MAX_TREES, _MAX_PATH_BYTES // (len(os.fsencode(state)) + _REST_OF_PATH_BYTES)))


def fold_ahead(store: Store, project: int, run: Run) -> None:
    """Make the folds that the next command of a run's draft will need, so that it does not wait for them."""
    limit = max_trees(store.places.state)
    if len(run.below) + 1 >= limit:
        with store.lock_held_trees(project, settling=True):
            few_trees(store, project, store.history.held_runs(project, run.draft), limit - 1)


def few_trees(store: Store, project: int, runs: Sequence[str], limit: int = 0) -> list[StackedTree]:
    """Return trees that together show what runs hold, the topmost first; fold some if there are too many."""
    stack = _stack_of(store, project, runs)
    limit = limit or max_trees(store.places.state)
    while len(stack) > limit:
        size = max(2, limit // 2)
        # Among equally small ones, the oldest: their runs have waited longest, and will probably wait on.
        starts = range(len(stack) - size, -1, -1)
        at = min(starts, key=lambda start: sum(len(tree.runs) for tree in stack[start : start + size]))
        stack[at : at + size] = [_fold(store, project, stack[at : at + size])]
    return stack


def retire_folds_of(store: Store, project: int, run: str, *, others_run: bool) -> None:
    """Let no new command use the folds that a run is in, because a change of it is settled.

    Remove them too, unless `others_run`: those may see them.
    """
    for fold in _folds(store, project):
        if run in fold.runs:
            _retire(fold)
    if not others_run:
        remove_unused_folds(store, project)


def _unused_folds(store: Store, project: int) -> list[str]:
    """Return the names of folds that no new command will use."""
    directory = store.places.folded(project)
    used = {fold.name for fold in _folds(store, project)}
    return [name for name in os.listdir(directory) if name not in used] if os.path.isdir(directory) else []


def remove_unused_folds(store: Store, project: int) -> None:
    """Remove folds that no new command will use; no command of the project may be running."""
    names = _unused_folds(store, project)
    if not names:
        return
    with Closing(open_top(store.places.folded(project))) as top:
        for name in names:
            remove_tree(top, name)


def _retire(tree: StackedTree) -> None:
    """Let no new command use a fold; does nothing to the tree of a single run."""
    if tree.name:
        os.unlink(f"{os.path.dirname(tree.trees[0])}/{_MEMBERS}")


def _stack_of(store: Store, project: int, runs: Sequence[str]) -> list[StackedTree]:
    """Return the trees of runs, the latest first: folds whose runs still follow each other, and single runs."""
    places = {run: at for at, run in enumerate(runs)}
    stack: dict[int, StackedTree] = {}
    covered: set[int] = set()
    for fold in sorted(_folds(store, project), key=lambda fold: -len(fold.runs)):
        start = places.get(fold.runs[0], len(runs))
        span = range(start, start + len(fold.runs))
        if tuple(runs[start : span.stop]) == fold.runs and covered.isdisjoint(span):
            stack[start] = fold
            covered.update(span)
        elif not places.keys().isdisjoint(fold.runs):
            _retire(fold)  # another run came between; folds of other drafts stay
    for at, run in enumerate(runs):
        if at not in covered:
            roots = store.history.roots(run)
            trees = tuple(store.places.layer(run, number, "held") for number in range(len(roots)))
            stack[at] = StackedTree(runs=(run,), roots=roots, trees=trees)
    return [stack[at] for at in sorted(stack)]


def _folds(store: Store, project: int) -> list[StackedTree]:
    """Return the folds that were made since the machine started: a crash may have left earlier ones incomplete."""
    directory = store.places.folded(project)
    folds: list[StackedTree] = []
    if not os.path.isdir(directory):
        return folds
    boot_id = _boot_id()
    for name in os.listdir(directory):
        if name.startswith(_INCOMPLETE):
            continue
        try:
            with open(f"{directory}/{name}/{_MEMBERS}", "rb") as file:
                made_in_boot, runs, roots = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
        except (FileNotFoundError, EOFError, ValueError, TypeError):
            continue
        if made_in_boot == boot_id:
            folds.append(_fold_named(directory, name, runs, roots))
    return folds


def _fold_named(directory: str, name: str, runs: tuple[str, ...], roots: tuple[str, ...]) -> StackedTree:
    trees = tuple(f"{directory}/{name}/{number}" for number in range(len(roots)))
    return StackedTree(runs=runs, roots=roots, trees=trees, name=name)


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read()


def _fold(store: Store, project: int, stack: Sequence[StackedTree]) -> StackedTree:
    """Fold trees into a new one, which takes their place."""
    directory, name = store.places.folded(project), new_id()
    incomplete = f"{directory}/{_INCOMPLETE}{name}"
    os.makedirs(incomplete, 0o700)
    runs = tuple(run for tree in stack for run in tree.runs)
    roots = tuple(dict.fromkeys(root for tree in stack for root in tree.roots))
    for number, root in enumerate(roots):
        fold_root(f"{incomplete}/{number}", [path for tree in stack if (path := tree.path_for(root))])
    with open(f"{incomplete}/{_MEMBERS}", "wb") as file:
        marshal.dump((_boot_id(), runs, roots), file)
    os.rename(incomplete, f"{directory}/{name}")
    for tree in stack:
        _retire(tree)
    return _fold_named(directory, name, runs, roots)


def fold_root(target: str, trees: Sequence[str], *, for_project: bool = False) -> None:
    """Fold trees of one root into a new tree, which commands see, or which is applied to the project."""
    if not trees:
        return
    os.mkdir(target, 0o700)
    with Descriptors(map(open_top, (target, *trees))) as tops:
        held_layers.fold(tops[0], tops[1:], for_project=for_project)
