"""What a project must be, by plain dictionaries: no file system, no database, no overlay.

A tree is a dictionary from paths to nodes. A run is what it saw, what it left, and what became of each path.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Node(NamedTuple):
    """What lies at a path. A git directory is one node, whose text is its history and what is staged."""

    kind: str
    text: str  # content or target
    mode: int
    group: int


Tree = dict[str, Node]
Diff = dict[str, Node | None]

APPLIED, HELD, CONFLICT, DISCARDED = "applied", "held", "conflict", "discarded"
HEAD = ".git/HEAD"  # stands for where a repository stands
JOURNAL = "-wal"  # a database and its journal are one state
DONE = "done"  # applied before, while more of the run is being applied
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
    return node is not None and node.kind == "directory"


def is_file(node: Node | None) -> bool:
    """Tell whether a node is a regular file."""
    return node is not None and node.kind == "file"


def is_version(one: Node | None, other: Node | None) -> bool:
    """Tell whether both are one version: whose it is goes with it, and does not tell it from another."""
    if one is None or other is None:
        return one is other
    return one[:-1] == other[:-1]


def state_of(path: str) -> str:
    """The state that a path is a part of: it is one itself, but for a journal."""
    return path.removesuffix(JOURNAL)


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
    around: Tree = field(default_factory=dict)  # the directories that its paths lie in, as it saw them

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
    def stands(self) -> bool:
        """Whether the project has something of it."""
        return not self.undone and bool(self.of_verdict(APPLIED))

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
        return now is None or was.kind != now.kind


class Model:
    """A project, and every run of it."""

    def __init__(self, project: Tree) -> None:
        self.project = dict(project)
        self.runs: list[Done] = []  # in the order of the record, whatever a clock says
        self.open: set[str] = set()  # files of the project that another program writes

    def waiting(self) -> list[Done]:
        """Runs that hold something, the earliest first."""
        return [run for run in self.runs if run.waits and run.of is None]

    def view(self) -> Tree:
        """What a command sees."""
        tree = dict(self.project)
        for run in self.waiting():
            held = run.held()
            # What is held is seen even where its directory has gone meanwhile.
            gone = {each for path in held for each in above(path) if not is_directory(tree.get(each))}
            tree = laid_over(tree, {each: run.around[each] for each in gone & run.around.keys()} | held)
        return tree

    # --- what a command does ---

    def ran(self, name: str, after: Tree, mode: str, edited: dict[str, Node], touched: set[str]) -> Done:
        """A command left a tree, while a person edited some paths of the project.

        `touched` are files that it had for writing and that may be as they were: what came to lie in its layer is then
        another version than the person's.
        """
        before = self.view()
        left = difference(before, after)
        for path, node in edited.items():
            if is_directory(node) and left.get(path) == node:
                del left[path]  # the project has it by now
        run = Done(name, {}, left, {}, self.waiting())
        for path in touched & edited.keys() - left.keys():
            if not self.builds_on(run, path, run.sees):
                left[path] = after[path]
        run.base = {path: before.get(path) for path in left}
        run.around = {each: after[each] for path in left for each in above(path) if is_directory(after.get(each))}
        for path in left:
            run.verdicts[path] = {"apply": APPLIED, "hold": HELD, "discard": DISCARDED}[mode]
            if run.verdicts[path] == APPLIED and self.builds_on(run, path, run.sees):
                run.verdicts[path] = HELD
        self._share(run, HELD)
        self._keep_whole(run)
        for path, node in edited.items():
            put(self.project, path, node)
            if run.verdicts.get(path) in (APPLIED, HELD) and not self.builds_on(run, path, run.sees):
                run.verdicts[path] = CONFLICT
        self._share(run, CONFLICT)
        self.open -= edited.keys()  # another file is there now
        self._hold_open(run)
        self._take_over(run, run.of_verdict(APPLIED))
        self.runs.append(run)
        return run

    def _take_over(self, run: Done, paths: list[str]) -> None:
        for path in paths:
            run.base[path] = self.project.get(path)  # which has the group that a person gave it since
        for path in sorted(paths, key=lambda path: path.count("/")):
            put(self.project, path, run.left[path])

    @staticmethod
    def _share(run: Done, verdict: str) -> None:
        """All of a state has the verdict that a part of it has."""
        states = {state_of(path) for path in run.of_verdict(verdict)}
        for path in run.of_verdict(APPLIED):
            if state_of(path) in states:
                run.verdicts[path] = verdict

    def _hold_open(self, run: Done) -> None:
        states = self._open_states(run.base, run.of_verdict(APPLIED))
        for path in run.of_verdict(APPLIED):
            if state_of(path) in states:
                run.verdicts[path] = HELD
        self._keep_whole(run)

    def _open_states(self, there: Diff, paths: list[str]) -> set[str]:
        """What another program writes of the files that would go, or of the databases whose journals would."""
        asked = [path for path in paths if is_file(there[path])]
        asked += [state_of(path) for path in paths if path.endswith(JOURNAL)]
        return {state_of(path) for path in asked if path in self.open}

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

    def edited_by_client(self, name: str, path: str, node: Node | None) -> None:
        """The agent's client changes the project by a tool of its own: that is a run like any other."""
        self.runs.append(Done(name, {path: self.project.get(path)}, {path: node}, {path: APPLIED}))
        put(self.project, path, node)

    def apply(self, run: Done) -> str:
        """A person applies what a run holds, save for conflicts; returns what a refusal says, or nothing."""
        waiting = self._free_of_conflicts(run)
        if not waiting:
            return FORCE
        if self._comes_after_others(run, waiting):
            return BUILDS_ON
        done = run.of_verdict(APPLIED)
        run.verdicts |= dict.fromkeys(done, DONE) | dict.fromkeys(waiting, APPLIED)
        self._hold_open(run)
        self._find_conflicts(run)
        self._share(run, CONFLICT)
        self._take_over(run, run.of_verdict(APPLIED))
        run.verdicts |= dict.fromkeys(done, APPLIED)
        return ""

    def _find_conflicts(self, run: Done) -> None:
        going = run.of_verdict(APPLIED)
        made = {path for path in going if is_directory(run.left[path])}
        for path in going:
            parent = path.rpartition("/")[0]
            is_cut_off = parent and parent not in made and not is_directory(self.project.get(parent))
            if is_cut_off or not is_version(self.project.get(path), run.base[path]):
                # What was to lie in it can't be put there either.
                for each in (path, *below(run.left, path)):
                    if run.verdicts[each] == APPLIED:
                        run.verdicts[each] = CONFLICT

    @staticmethod
    def _free_of_conflicts(run: Done) -> list[str]:
        conflicts = run.of_verdict(CONFLICT)
        stuck = {each for path in conflicts for each in below(run.left, path)}
        for top in [path for path in run.left if run.goes_whole(path)]:
            group = [top, *below(run.left, top)]
            if not set(group).isdisjoint(conflicts):
                stuck |= set(group)
        states = {state_of(path) for path in conflicts}
        return [path for path in run.of_verdict(HELD) if path not in stuck and state_of(path) not in states]

    def _comes_after_others(self, run: Done, paths: list[str]) -> bool:
        return any(self.builds_on(run, path, [each for each in run.sees if each.waits]) for path in paths)

    @staticmethod
    def of_one_state(run: Done, path: str) -> list[str]:
        """What waits together with a path."""
        return [each for each in run.of_verdict(*WAITING) if state_of(each) == state_of(path)]

    def force(self, run: Done, path: str) -> str:
        """A person applies one file, and what belongs to it, whatever the project has there."""
        paths = self.of_one_state(run, path)
        if self._comes_after_others(run, paths):
            return BUILDS_ON
        for each in paths:
            if is_version(self.project.get(each), run.left[each]):
                run.verdicts[each] = DISCARDED
            else:
                run.base[each] = self.project.get(each)
                run.verdicts[each] = APPLIED
                put(self.project, each, run.left[each])
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

    def to_undo(self) -> Done | None:
        """The run that is meant where none is named: the last that changed something and was not taken back."""
        return next((run for run in reversed(self.runs) if run.of is None and run.stands), None)

    def to_redo(self) -> Done | None:
        """The last undo that was not taken back itself."""
        return next((run for run in reversed(self.runs) if run.turns % 2 and run.stands), None)

    def undo(self, run: Done, name: str, stayed: Collection[str] = ()) -> Done | None:
        """A person takes a run back; None where that is refused. Some objects of git have `stayed`."""
        paths = run.of_verdict(APPLIED)
        last = [each for each in self.runs if each.first is run.first and not each.left.keys().isdisjoint(paths)][-1]
        if last.turns % 2 != run.turns % 2:
            return None  # it was taken back already
        if not all(self._is_as_left(run, path, paths) for path in paths):
            return None
        if self._open_states(run.left, paths):
            return None
        later = [each for each in self.runs[self.runs.index(run) + 1 :] if each.waits and each.of is None]
        if HEAD not in paths or any(path.startswith(".git/") for each in later for path in each.held()):
            # What waits in the repository, or came since, may be built on its objects: those may stay.
            paths = [path for path in paths if path not in stayed or run.base[path] is not None]
        back = Done(name, {path: self.project.get(path) for path in paths}, {path: run.base[path] for path in paths},
                    dict.fromkeys(paths, APPLIED), of=run)  # fmt: skip
        for path in sorted(paths, key=lambda path: -path.count("/")):
            if run.base[path] is None:
                put(self.project, path, None)
        self._take_over(back, [path for path in paths if run.base[path] is not None])
        for each in (each for each in self.runs if each.first is run.first):
            # What came out is what a later undo or redo of it brings back, with the group that a person gave it.
            (each.base if each.turns % 2 != run.turns % 2 else each.left).update(
                {path: node for path, node in back.base.items() if path in each.left}
            )
        stands, each = False, run
        while True:
            each.undone = not stands
            if each.of is None:
                break
            each, stands = each.of, not stands
        self.runs.append(back)
        return back

    def _is_as_left(self, run: Done, path: str, paths: list[str]) -> bool:
        if not is_version(self.project.get(path), run.left[path]):
            return False
        if is_directory(run.left[path]) and not run.is_mode_alone(path):
            return set(below(self.project, path)) <= set(paths)
        parent = path.rpartition("/")[0]
        comes_back = run.base[path] is not None
        return not (comes_back and parent) or is_directory(self.project.get(parent)) or parent in paths
