"""What a project must be, by plain dictionaries: no file system, no database, no overlay.

A tree is a dictionary from paths to nodes. A run is what it saw, what it left, and what became of each path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Node = tuple[str, str, int]  # kind, content or target, mode
Tree = dict[str, Node]
Diff = dict[str, Node | None]

APPLIED, HELD, CONFLICT, DISCARDED = "applied", "held", "conflict", "discarded"
WAITING = (HELD, CONFLICT)
BUILDS_ON, FORCE = "builds on", "--force"  # words of a refusal


def above(path: str) -> list[str]:
    """The directories above a path."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def below(tree: Tree | Diff, path: str) -> list[str]:
    """What lies below a path."""
    return [each for each in tree if each.startswith(f"{path}/")]


def is_directory(node: Node | None) -> bool:
    """Tell whether a node is a directory."""
    return node is not None and node[0] == "directory"


def put(tree: Tree, path: str, node: Node | None) -> None:
    """Let a path be something else, or nothing."""
    if not is_directory(node):
        for each in below(tree, path):
            del tree[each]
    if node is None:
        tree.pop(path, None)
    else:
        tree[path] = node


def laid_over(tree: Tree, diff: Diff) -> Tree:
    """A tree with changes laid over it."""
    result = dict(tree)
    for path in sorted(diff, key=lambda path: path.count("/")):
        put(result, path, diff[path])
    return result


def difference(before: Tree, after: Tree) -> Diff:
    """Every path that is not the same."""
    return {path: after.get(path) for path in {*before, *after} if before.get(path) != after.get(path)}


@dataclass
class Done:
    """One run, or one undo."""

    name: str
    base: Diff  # what each changed path was
    left: Diff  # and what the run made of it
    verdicts: dict[str, str]
    sees: list[Done] = field(default_factory=list)  # held runs below it
    of: Done | None = None
    undone: bool = False

    @property
    def first(self) -> Done:
        """The run at the beginning of its undos."""
        return self if self.of is None else self.of.first

    @property
    def turns(self) -> int:
        """How many undos it is away from that."""
        return 0 if self.of is None else self.of.turns + 1

    def of_verdict(self, *verdicts: str) -> list[str]:
        """The paths that became something."""
        return [path for path, verdict in self.verdicts.items() if verdict in verdicts]

    @property
    def waits(self) -> bool:
        """Whether something of it waits for a person, as later runs see it."""
        return not self.undone and bool(self.of_verdict(*WAITING))

    def held(self) -> Diff:
        """What later commands see of it."""
        return {path: self.left[path] for path in self.of_verdict(*WAITING)}

    def is_mode_alone(self, path: str) -> bool:
        """Whether only the mode of a directory changed."""
        return is_directory(self.base[path]) and is_directory(self.left[path])

    def goes_whole(self, path: str) -> bool:
        """Whether a directory is deleted or replaced, or something becomes one."""
        was, now = self.base.get(path), self.left.get(path)
        if was is None:
            return False
        return now is None or was[0] != now[0]


class Model:
    """A project, and every run of it."""

    def __init__(self, project: Tree) -> None:
        self.project = dict(project)
        self.runs: list[Done] = []

    def waiting(self) -> list[Done]:
        """Runs that hold something, the earliest first."""
        return [run for run in self.runs if run.waits and run.of is None]

    def view(self) -> Tree:
        """What a command sees."""
        tree = dict(self.project)
        for run in self.waiting():
            tree = laid_over(tree, run.held())
        return tree

    # --- what a command does ---

    def ran(self, name: str, after: Tree, mode: str, edited: dict[str, Node], touched: set[str]) -> Done:
        """A command left a tree, while a person edited some paths of the project.

        `touched` are files that it had for writing and that may be as they were: what came to lie in its layer is then
        another version than the person's.
        """
        before = self.view()
        left = difference(before, after)
        run = Done(name, {}, left, {}, self.waiting())
        for path in touched & edited.keys() - left.keys():
            if not self.builds_on(run, path, run.sees):
                left[path] = after[path]
        run.base = {path: before.get(path) for path in left}
        for path in left:
            run.verdicts[path] = {"apply": APPLIED, "hold": HELD, "discard": DISCARDED}[mode]
            if run.verdicts[path] == APPLIED and self.builds_on(run, path, run.sees):
                run.verdicts[path] = HELD
        self._keep_whole(run)
        for path, node in edited.items():
            put(self.project, path, node)
            if run.verdicts.get(path) in (APPLIED, HELD) and not self.builds_on(run, path, run.sees):
                run.verdicts[path] = CONFLICT
        self._take_over(run, run.of_verdict(APPLIED))
        self.runs.append(run)
        return run

    def _take_over(self, run: Done, paths: list[str]) -> None:
        for path in sorted(paths, key=lambda path: path.count("/")):
            put(self.project, path, run.left[path])

    @staticmethod
    def builds_on(run: Done, path: str, earlier: list[Done]) -> Done | None:
        """A held run that a change can't go before."""
        for other in reversed(earlier):
            held = other.held()
            if path in held:
                return other
            if any(each in held and not other.is_mode_alone(each) for each in above(path)):
                return other
            if run.goes_whole(path) and below(held, path):
                return other
        return None

    @staticmethod
    def _keep_whole(run: Done) -> None:
        for top in [path for path in run.left if run.goes_whole(path)]:
            group = [top, *below(run.left, top)]
            if any(run.verdicts[path] != APPLIED for path in group):
                for path in group:
                    if run.verdicts[path] == APPLIED:
                        run.verdicts[path] = HELD

    # --- what a person does ---

    def edit(self, path: str, node: Node | None) -> None:
        """A person changes the project."""
        put(self.project, path, node)

    def apply(self, run: Done) -> str:
        """A person applies what a run holds, save for conflicts; returns what a refusal says, or nothing."""
        waiting = self._free_of_conflicts(run)
        if not waiting:
            return FORCE
        if self._comes_after_others(run, waiting):
            return BUILDS_ON
        for path in waiting:
            run.verdicts[path] = APPLIED if self.project.get(path) == run.base[path] else CONFLICT
        for path in waiting:
            if run.verdicts[path] == CONFLICT:
                # What was to lie in it can't be put there either.
                for each in below(run.left, path):
                    if run.verdicts[each] == APPLIED:
                        run.verdicts[each] = CONFLICT
        self._take_over(run, [path for path in waiting if run.verdicts[path] == APPLIED])
        return ""

    @staticmethod
    def _free_of_conflicts(run: Done) -> list[str]:
        conflicts = run.of_verdict(CONFLICT)
        stuck = {each for path in conflicts for each in below(run.left, path)}
        for top in [path for path in run.left if run.goes_whole(path)]:
            group = [top, *below(run.left, top)]
            if not set(group).isdisjoint(conflicts):
                stuck |= set(group)
        return [path for path in run.of_verdict(HELD) if path not in stuck]

    def _comes_after_others(self, run: Done, paths: list[str]) -> bool:
        return any(self.builds_on(run, path, [each for each in run.sees if each.waits]) for path in paths)

    def force(self, run: Done, path: str) -> str:
        """A person applies one file, whatever the project has there."""
        if self._comes_after_others(run, [path]):
            return BUILDS_ON
        if self.project.get(path) == run.left[path]:
            run.verdicts[path] = DISCARDED
        else:
            run.base[path] = self.project.get(path)
            run.verdicts[path] = APPLIED
            put(self.project, path, run.left[path])
        return ""

    def discard(self, run: Done, paths: list[str]) -> str:
        """A person throws away what a run holds, if no others build on it."""
        kept = run.verdicts.copy()
        run.verdicts = {path: run.verdicts[path] if path in paths else "" for path in run.verdicts}
        blocked = any(
            self.builds_on(later, path, [run])
            for later in self.waiting()
            if run in later.sees
            for path in later.of_verdict(*WAITING)
        )
        run.verdicts = kept
        if blocked:
            return BUILDS_ON
        for path in paths:
            run.verdicts[path] = DISCARDED
        return ""

    def undo(self, run: Done, name: str) -> Done | None:
        """A person takes a run back; None where that is refused."""
        paths = run.of_verdict(APPLIED)
        last = [each for each in self.runs if each.first is run.first and not each.left.keys().isdisjoint(paths)][-1]
        if last.turns % 2 != run.turns % 2:
            return None  # it was taken back already
        if not all(self._is_as_left(run, path, paths) for path in paths):
            return None
        back = Done(name, {path: run.left[path] for path in paths}, {path: run.base[path] for path in paths},
                    dict.fromkeys(paths, APPLIED), of=run)  # fmt: skip
        for path in sorted(paths, key=lambda path: -path.count("/")):
            if run.base[path] is None:
                put(self.project, path, None)
        self._take_over(back, [path for path in paths if run.base[path] is not None])
        stands, each = False, run
        while True:
            each.undone = not stands
            if each.of is None:
                break
            each, stands = each.of, not stands
        self.runs.append(back)
        return back

    def _is_as_left(self, run: Done, path: str, paths: list[str]) -> bool:
        if self.project.get(path) != run.left[path]:
            return False
        if is_directory(run.left[path]) and not run.is_mode_alone(path):
            return set(below(self.project, path)) <= set(paths)
        parent = path.rpartition("/")[0]
        comes_back = run.base[path] is not None
        return not (comes_back and parent) or is_directory(self.project.get(parent)) or parent in paths
