"""Random stories of commands and people, played to the real thing and to the plain model."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

import repository
from commands import ACTS, FREE, PASSES_GROUP_ON, SHARED, Act, Command, Contents, made_in
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain import WAITING, Done, Model, Node, Tree, is_file, put
from repository import COMMITTED, GIT, KEPT, MESSAGE, OBJECTS, STAGED, STATE

from conftest import PREFIX, scratch
from fumehood import BadRequest, Policy, Run, Sandbox, UndoRefused
from fumehood.core.edits import PlannedEdit
from fumehood.linux.capture import COPY
from fumehood.linux.probe import mappable_groups
from fumehood.service import edits
from fumehood.service.clean import clean
from fumehood.store.database import Days, day_of
from fumehood.store.edits import EditedProject, note_end, open_edits
from fumehood.store.places import FileLock
from fumehood.store.projects import identity_of

MODES = (0o644, 0o600, 0o755)
PLACES = ("project", "moved", "elsewhere/by another name")
DAY, HOUR = 86_400, 3_600
UNKNOWN_GROUP = 65_534  # as a namespace shows one that is not mapped into it
ONE_READING = 2  # days that are recorded: the real one, and that of a clock that was wrong once
NEXT = "-- next --"
AS_ROOT = 61_236  # a group for root to give files to: any will do

paths = st.sampled_from((*SHARED, *FREE))
acts = st.lists(
    st.tuples(st.sampled_from(ACTS), paths, paths, st.sampled_from(MODES)), min_size=1, max_size=5
)  # fmt: skip


P, T = ParamSpec("P"), TypeVar("T")

# How often everything was done.
COUNTS: Counter[str] = Counter()


def counted(act: Callable[P, T]) -> Callable[P, T]:
    """Count what is done."""

    @wraps(act)
    def counting(*arguments: P.args, **named: P.kwargs) -> T:
        COUNTS[act.__name__.strip("_")] += 1
        return act(*arguments, **named)

    return counting


def tree_of(top: Path) -> Tree:
    """A project as the model tells it."""
    tree: Tree = {}
    for here, folders, files in os.walk(top):
        if here == str(top) and GIT in folders:
            folders.remove(GIT)
            tree |= repository.tree_of(top)
        for name in (*folders, *files):
            place = os.path.join(here, name)
            status = os.lstat(place)
            path = os.path.relpath(place, top)
            mode, group = stat.S_IMODE(status.st_mode), status.st_gid
            if stat.S_ISLNK(status.st_mode):
                tree[path] = Node("symlink", os.readlink(place), 0, group)
            elif stat.S_ISDIR(status.st_mode):
                tree[path] = Node("directory", "", mode, group)
            else:
                tree[path] = Node("file", Path(place).read_text(), mode, group)
    return tree


def another_group(capture: str) -> int | None:
    """A group besides our own that files can be given to, and that a way of capturing carries."""
    if os.geteuid() == 0:
        return AS_ROOT
    groups = os.getgroups() if capture == COPY else mappable_groups()
    return next((group for group in groups if group != os.getgid()), None)


@dataclass
class Beside:
    """A project that nobody works in now: where it lies, and the path that its record has."""

    place: Path
    known_at: Path
    model: Model


class Machine(RuleBasedStateMachine):
    """One project, its agent and its person."""

    capture = ""

    @initialize(passes_on=st.tuples(st.booleans(), st.booleans()))
    def begin(self, passes_on: tuple[bool, bool]) -> None:
        """Make a project of an own home."""
        self.home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch()))
        self._before = {name: os.environ.get(name) for name in ("HOME", "XDG_STATE_HOME")}
        self._clocks = time.time, time.time_ns
        os.environ["HOME"] = str(self.home)
        os.environ["XDG_STATE_HOME"] = str(self.home / "state")
        self._ahead: Iterator[int] = itertools.repeat(0)
        self.contents = Contents()
        self.group = another_group(self.capture)
        self._passes_on = dict(zip("st", passes_on, strict=True))
        self.written: dict[str, IO[str]] = {}  # files that another program has open for writing
        self.beside: list[Beside] = []
        self.project = self.home / PLACES[0]
        self._make()
        self._enter(self.project)

    def _make(self) -> None:
        """Make the directory of a project, with a little in it."""
        for name in "st":
            (self.project / name).mkdir(parents=True)
        for path in SHARED[:2]:
            (self.project / path).write_text(f"{self.contents.new()}\n")
        if repository.IS_HERE:
            repository.make(self.project)
        for place in (self.project, *(each for each in self.project.rglob("*") if GIT not in each.parts)):
            place.chmod(0o755 if place.is_dir() else 0o644)
        if self.group is not None:
            for name, passes_on in self._passes_on.items():
                os.chown(self.project / name, -1, self.group)
                (self.project / name).chmod(0o755 | (PASSES_GROUP_ON if passes_on else 0))
        self.model = Model(tree_of(self.project))

    def _enter(self, known_at: Path) -> None:
        """Open a sandbox where the project is now; `known_at` is the path that its record has."""
        self.sandbox = Sandbox(self.project, policy=Policy(capture=self.capture))
        self.known_at = self.project
        if known_at != self.project:
            assert any(f"this project was at {known_at}" in each for each in self.sandbox.notices), self.sandbox.notices
        self._look_back()

    def teardown(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "home"):
            self._leave()
            time.time, time.time_ns = self._clocks
            for name, value in self._before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
            shutil.rmtree(self.home)

    def _leave(self) -> None:
        for path in list(self.written):
            self.written.pop(path).close()
        if hasattr(self, "sandbox"):
            self.sandbox.close()

    # --- the agent ---

    @rule(acts=acts, mode=st.sampled_from(("apply", "apply", "apply", "hold", "discard")))
    @counted
    def run(self, acts: list[Act], mode: str) -> None:
        """A command runs."""
        self._run(acts, mode)

    run_next = run  # as often again as the rest

    @rule(acts=acts, path=st.sampled_from(SHARED), mode=st.sampled_from(("apply", "apply", "hold")))
    @counted
    def run_while_a_person_edits(self, acts: list[Act], path: str, mode: str) -> None:
        """A command runs, and a person writes a file meanwhile."""
        self._run(acts, mode, lambda: self._write(path))

    @precondition(lambda self: not self.written and not self.model.waiting())
    @rule(acts=acts, path=st.sampled_from(SHARED))
    @counted
    def run_beside_another(self, acts: list[Act], path: str) -> None:
        """Two commands run at the same time: one that changed the same is run once more, from what the other left."""
        node = self.model.project.get(path)
        if node is None or not is_file(node):
            return
        first = self.contents.copy()
        before = self.model.view()
        command = Command(before, self.contents)
        for act in acts:
            command.act(*act)
        other = Command(before, self.contents)
        other.act("append", path, path, 0)
        others: list[Run] = []

        def on_output(*_: object) -> None:
            if not others:
                with Sandbox(self.project, policy=Policy(capture=self.capture)) as beside:
                    others.append(beside.run("; ".join(other.lines)))

        self._tick()
        run = self.sandbox.run("; ".join([*command.lines, "echo done"]), on_output=on_output)
        assert run.exit_code == 0, run.output
        self.model.ran(others[0].id, other.tree, "apply", {}, set())
        is_met = path in command.touched or command.tree.get(path) != node
        assert run.reason.startswith("run again") == is_met, (run.reason, is_met)
        if is_met:
            command = Command(self.model.view(), first)
            for act in acts:
                command.act(*act)
        else:
            put(command.tree, path, other.tree[path])
        done = self.model.ran(run.id, command.tree, "apply", {}, command.touched)
        assert self._verdicts(run) == done.verdicts, (self._verdicts(run), done.verdicts)
        if not is_met:  # it began before the other
            self.model.runs[-2:] = self.model.runs[:-3:-1]

    @precondition(lambda self: repository.IS_HERE and self._history_is_whole())
    @rule(
        mode=st.sampled_from(("apply", "apply", "apply", "hold", "discard")),
        meanwhile=st.sampled_from(("nothing", "refresh", "stage")),
    )
    @counted
    def commit(self, mode: str, meanwhile: str) -> None:
        """A command commits something; a person may look at the repository, or stage something, meanwhile."""
        does = {"refresh": self._refresh, "stage": self._stage}
        self._run((), mode, does.get(meanwhile), commits=True)

    def _can_be_joined(self) -> bool:
        """Whether nothing is staged in the project, nor held of its repository."""
        return repository.has_tree(self.project) and all(STATE not in run.held() for run in self.model.waiting())

    def _history_is_whole(self) -> bool:
        """Whether what is held was committed on top of what the project has, so that git finds all of it."""
        last: Node | None = self.model.project[STATE]
        for run in self.model.waiting():
            if STATE in run.held():
                if run.base[STATE] != last:
                    return False
                last = run.left[STATE]
        return True

    def _run(
        self, acts: list[Act] | tuple[()], mode: str, meanwhile: Callable[[], Tree] | None = None,
        *, commits: bool = False,
    ) -> None:  # fmt: skip
        command = Command(self.model.view(), self.contents)
        for act in acts:
            command.act(*act)
        if commits:
            command.commit(COMMITTED, MESSAGE)
        edits: list[Tree] = []

        def on_output(*_: object) -> None:
            if meanwhile is not None and not edits:
                edits.append(meanwhile())

        line = "; ".join([*command.lines, repository.TELL if commits else "echo done"])
        self.model.open = self._open_ones()
        self._tick()
        is_joined = commits and mode == "apply" and self._can_be_joined()
        run = self.sandbox.run(line, apply=mode, on_output=on_output)
        assert run.exit_code == 0, run.output
        if commits:
            command.tree |= repository.told_of(run.stdout)
        if is_joined and edits and STATE in edits[0]:
            # What the person has staged came first, and stays staged over the commit.
            self.model.project[STATE] = edits[0].pop(STATE)
            command.tree[STATE] = repository.joined(self.project, run.stdout)
        done = self.model.ran(run.id, command.tree, mode, edits[0] if edits else {}, command.touched)
        assert self._verdicts(run) == done.verdicts, (self._verdicts(run), done.verdicts)

    @rule()
    @counted
    def look(self) -> None:
        """A command sees the project with what is held."""
        view = self.model.view()
        files = [path for path, node in view.items() if is_file(node) and not path.startswith(OBJECTS)]
        hidden = f"-path '{GIT}/*' ! -path {MESSAGE} ! -path {OBJECTS} ! -path '{OBJECTS}/*'"
        listing = f"find * {GIT if repository.IS_HERE else ''} {hidden} -prune -o -printf '%p\\0%y\\0%m\\0%G\\0%l\\0'"
        asked = (listing, f"cat {' '.join(files)} </dev/null", repository.TELL if repository.IS_HERE else "true")
        run = self.sandbox.run(f"; echo {NEXT}; ".join(asked), apply="discard")
        self.model.ran(run.id, view, "discard", {}, set())
        assert (run.exit_code, run.changes) == (0, ()), run.output
        listed, contents, told = run.stdout.split(f"{NEXT}\n")
        tree = self._listed(listed.split("\0")[:-1])
        expected = {path: node._replace(text="") if is_file(node) else node for path, node in view.items()}
        if repository.IS_HERE:
            tree[STATE] = repository.told_of(told)[STATE]
        assert tree == expected, (tree, expected)
        assert contents == "".join(view[each].text for each in files)

    def _listed(self, fields: list[str]) -> Tree:
        kinds = {"f": "file", "d": "directory", "l": "symlink"}
        tree = {}
        for path, kind, mode, group, target in zip(*[iter(fields)] * 5, strict=True):
            number = self.group if int(group) == UNKNOWN_GROUP and self.group is not None else int(group)
            tree[path] = Node(kinds[kind], target, 0 if kind == "l" else int(mode, 8), number)
        return tree

    @rule(path=st.sampled_from(SHARED), removes=st.booleans(), is_told=st.booleans(), looks_back=st.booleans())
    @counted
    def edit_by_the_client(self, path: str, removes: bool, is_told: bool, looks_back: bool) -> None:
        """The agent's client writes or removes a file by a tool of its own; some never tell that they have."""
        before = self.model.project.get(path)
        if removes and before is None:
            return
        store, project = self.sandbox._store, self.sandbox._project
        places, call = store.places, self.contents.new()
        seat = EditedProject(project=project.id, roots=project.roots)
        wanted = edits.resolve_targets(seat, project.path, [PlannedEdit(path=path, is_removed=removes)])
        self._tick()
        with FileLock(places.lock(f"project-{project.id}")):
            edits.begin_edit(places, seat, "", call, f"Edit {path}", project.path, wanted, {})
        (edit,) = (each for each in open_edits(places) if each.call == call)
        if removes:
            (self.project / path).unlink()
        node = None if removes else self._write(path)[path]
        self.model.edited_by_client(edit.id, path, node)
        if is_told:
            with FileLock(places.lock(f"project-{project.id}")):
                note_end(places, edit, is_told=True)
        if looks_back or not is_told:
            self._tick()
            self._look_back()

    # --- the person ---

    def _write(self, path: str) -> Tree:
        """Write a file anew, as an editor does."""
        text = f"{self.contents.new()}\n"
        place = self.project / path
        place.unlink(missing_ok=True)
        place.write_text(text)
        place.chmod(0o644)
        return {path: made_in(self.model.project, path, "file", text, 0o644)}

    @rule(
        what=st.sampled_from(("edit", "edit", "delete", "give_to_a_group", "give_back")), path=st.sampled_from(SHARED)
    )
    def change_a_file(self, what: str, path: str) -> None:
        """A person changes a file by themselves."""
        getattr(self, f"_{what}")(path)

    @counted
    def _edit(self, path: str) -> None:
        self.model.edit(path, self._write(path)[path])

    @counted
    def _delete(self, path: str) -> None:
        (self.project / path).unlink(missing_ok=True)
        self.model.edit(path, None)

    @counted
    def _give_to_a_group(self, path: str) -> None:
        self._give(path, self.group)

    @counted
    def _give_back(self, path: str) -> None:
        self._give(path, os.getgid())

    def _give(self, path: str, group: int | None) -> None:
        node = self.model.project.get(path)
        if node is not None and group is not None:
            os.chown(self.project / path, -1, group)
            self.model.edit(path, node._replace(group=group))

    @rule(data=st.data(), what=st.sampled_from(("open", "open", "write", "close")))
    def another_program(self, data: st.DataObject, what: str) -> None:
        """Another program opens a file for writing, goes on writing it, or closes it."""
        files = [path for path, node in sorted(self.model.project.items()) if is_file(node)]
        choices = {
            "open": [path for path in files if path != KEPT and not path.startswith(f"{GIT}/")],
            "write": sorted(self._open_ones()),
            "close": sorted(self.written),
        }[what]
        if choices:
            getattr(self, f"_{what}_by_a_program")(data.draw(st.sampled_from(choices)))

    @counted
    def _open_by_a_program(self, path: str) -> None:
        if path in self.written:
            self.written[path].close()
        self.written[path] = (self.project / path).open("a")

    @counted
    def _close_by_a_program(self, path: str) -> None:
        self.written.pop(path).close()

    @counted
    def _write_by_a_program(self, path: str) -> None:
        text = f"{self.contents.new()}\n"
        self.written[path].write(text)
        self.written[path].flush()
        node = self.model.project[path]
        self.model.edit(path, node._replace(text=node.text + text))

    def _open_ones(self) -> set[str]:
        """The files of the project that another program writes: what was replaced there is another file."""
        return {path for path, file in self.written.items() if self._is_there(path, file)}

    def _is_there(self, path: str, file: IO[str]) -> bool:
        try:
            return os.path.samestat(os.lstat(self.project / path), os.fstat(file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return False

    @precondition(lambda _: repository.IS_HERE)
    @rule(what=st.sampled_from(("refresh", "refresh", "stage")))
    @counted
    def use_the_repository(self, what: str) -> None:
        """A person asks for the status of the repository, which writes its index anew, or stages something."""
        for path, node in (self._stage() if what == "stage" else self._refresh()).items():
            self.model.edit(path, node)
        repository.check(self.project)

    @counted
    def _refresh(self) -> Tree:
        repository.refresh(self.project)
        return {}

    @counted
    def _stage(self) -> Tree:
        text = f"{self.contents.new()}\n"
        repository.stage(self.project, text)
        tree = repository.tree_of(self.project)
        tree[STAGED] = made_in(self.model.project, STAGED, "file", text, 0o644)
        return {path: node for path, node in tree.items() if self.model.project.get(path) != node}

    @precondition(lambda self: self.model.waiting())
    @rule(data=st.data())
    @counted
    def apply(self, data: st.DataObject) -> None:
        """A person applies what is held."""
        done = self._one_of(self.model.waiting(), data)
        self.model.open = self._open_ones()
        self._decide(done, self.model.apply(done), lambda: self.sandbox.apply(done.name))

    @precondition(lambda self: self.model.waiting())
    @rule(data=st.data())
    @counted
    def discard(self, data: st.DataObject) -> None:
        """A person throws away what is held."""
        done = self._one_of(self.model.waiting(), data)
        self._decide(done, self.model.discard(done, done.of_verdict(*WAITING)), lambda: self.sandbox.discard(done.name))

    @precondition(lambda self: any(self._of_people(run) for run in self.model.waiting()))
    @rule(data=st.data(), force=st.booleans())
    @counted
    def decide_one(self, data: st.DataObject, force: bool) -> None:
        """A person takes one file by force, or throws it away."""
        done = self._one_of([run for run in self.model.waiting() if self._of_people(run)], data)
        path = data.draw(st.sampled_from(self._of_people(done)))
        if force:
            self._decide(done, self.model.force(done, path), lambda: self.sandbox.apply(done.name, path, force=True))
        else:
            paths = self.model.of_one_state(done, path)
            self._decide(done, self.model.discard(done, paths), lambda: self.sandbox.discard(done.name, path))

    def _one_of(self, runs: list[Done], data: st.DataObject) -> Done:
        """Choose a run, and tell it by its place in the record."""
        return self.model.runs[data.draw(st.sampled_from([self.model.runs.index(run) for run in runs]))]

    @staticmethod
    def _of_people(run: Done) -> list[str]:
        return [path for path in run.of_verdict(*WAITING) if path in SHARED]

    def _decide(self, done: Done, refusal: str, act: Callable[[], Run]) -> None:
        self._tick()
        if refusal:
            try:
                act()
            except BadRequest as refused:
                assert refusal in f"{refused.message} {refused.hint}"  # noqa: PT017
                return
            raise AssertionError("it should have been refused")
        verdicts = self._verdicts(act())
        assert verdicts == done.verdicts, (verdicts, done.verdicts)

    @rule(data=st.data(), which=st.sampled_from(("one", "one", "undo_last", "redo_last")))
    def undo(self, data: st.DataObject, which: str) -> None:
        """A person takes a run back, or an undo; or, without naming it, what changed something last."""
        standing = [run for run in self.model.runs if run.stands]
        if which != "one":
            getattr(self, f"_{which}")()
        elif standing:
            self._undo_one(self._one_of(standing, data))

    @counted
    def _undo_one(self, done: Done) -> None:
        self._undo(done, lambda: self.sandbox.undo(done.name))

    @counted
    def _undo_last(self) -> None:
        self._undo(self.model.to_undo(), self.sandbox.undo)

    @counted
    def _redo_last(self) -> None:
        self._undo(self.model.to_redo(), self.sandbox.redo)

    def _undo(self, done: Done | None, act: Callable[[], Run]) -> None:
        self.model.open = self._open_ones()
        self._tick()
        try:
            back = act()
        except UndoRefused as refused:
            assert done is not None, refused  # noqa: PT017
            assert self.model.undo(done, "") is None, refused  # noqa: PT017
        except BadRequest as refused:
            assert done is None, refused  # noqa: PT017
        else:
            assert done is not None
            assert back.of == done.name
            stayed = {path for path in tree_of(self.project) if path.startswith(f"{OBJECTS}/")}
            assert self.model.undo(done, back.id, stayed) is not None

    def _look_back(self) -> None:
        """See that what ran is told in the order of the record."""
        names = [run.name for run in reversed(self.model.runs)]
        assert [run.run for run in self.sandbox.history()] == names
        for back, name in enumerate(names[:2]):
            assert self.sandbox.find(f"last~{back}").run == name

    # --- the world ---

    @rule(ahead=st.lists(st.sampled_from((40 * DAY, DAY, 0, -HOUR)), min_size=1, max_size=3))
    @counted
    def step_the_clock(self, ahead: list[int]) -> None:
        """The clock that we read goes ahead, or back, or to and fro; that of the host is not ours to set.

        Then Fumehood cleans: all is young by the days on which it ran, even where the clock says otherwise.
        """
        self._ahead = itertools.cycle(ahead)
        self._tick()
        self._look_back()
        store = self.sandbox._store
        days = {*Days(store.database)._days, day_of(time.time())}
        freed = clean(store, budget=1 if len(days) <= ONE_READING else 0)
        assert (freed.runs, freed.backups, freed.not_undoable, freed.failed) == (0, 0, (), ())

    def _tick(self) -> None:
        """Let the clock be what it is next."""
        now, now_ns = self._clocks
        ahead = next(self._ahead)
        time.time = lambda: now() + ahead
        time.time_ns = lambda: now_ns() + ahead * 1_000_000_000

    @rule(data=st.data(), what=st.sampled_from(("move", "move", "move", "make_again", "go_to_another")))
    def go_elsewhere(self, data: st.DataObject, what: str) -> None:
        """A person moves the project, makes it anew, or goes on with another."""
        if what == "move":
            places = [self.home / place for place in (*PLACES, self.contents.new())]
            self._move(data.draw(st.sampled_from([place for place in places if not place.exists()])))
        elif what == "make_again" or not self.beside:
            self._make_again(is_kept=what != "make_again" or data.draw(st.booleans()))
        else:
            self._go_to_another(data.draw(st.integers(0, len(self.beside) - 1)), is_moved_back=data.draw(st.booleans()))

    @counted
    def _move(self, target: Path) -> None:
        """Move the project, or back: all goes on there."""
        old, self.project = self.project, target
        self.sandbox.close()
        target.parent.mkdir(exist_ok=True)
        os.rename(old, target)
        self._enter(old)

    @counted
    def _make_again(self, *, is_kept: bool) -> None:
        """Make the project anew, the old one being elsewhere or deleted: it starts fresh."""
        self._leave()
        old, was = self.model, identity_of(str(self.project))
        if is_kept:
            self._put_aside()
        else:
            shutil.rmtree(self.project)
        self._make()
        while was is not None and not was.was_replaced_by(identity_of(str(self.project)) or was):
            shutil.rmtree(self.project)  # file times may be too coarse to tell the two apart at once
            self._make()
        self._enter(self.project)
        assert any("another directory was at" in each for each in self.sandbox.notices), self.sandbox.notices
        if old.runs:
            try:
                self.sandbox.find(old.runs[-1].name)
            except BadRequest:
                return
            raise AssertionError("a run of another directory")

    def _put_aside(self) -> None:
        place = self.home / f"aside-{self.contents.new()}"
        os.rename(self.project, place)
        self.beside.append(Beside(place, self.known_at, self.model))

    @counted
    def _go_to_another(self, number: int, *, is_moved_back: bool) -> None:
        """Go on with a project that was put aside, where it is or where it was."""
        other = self.beside.pop(number)
        self._leave()
        if is_moved_back:
            here = self.project
            self._put_aside()
            os.rename(other.place, here)
            other.place = here
        else:
            self.beside.append(Beside(self.project, self.known_at, self.model))
        self.project, self.model = other.place, other.model
        self._enter(other.known_at)

    @staticmethod
    def _verdicts(run: Run) -> dict[str, str]:
        return repository.as_one({change.path: change.verdict for change in run.changes})

    @invariant()
    def the_project_is_what_the_model_says(self) -> None:
        """Nothing is lost, and nothing is there that nobody put there."""
        if hasattr(self, "model"):
            tree = tree_of(self.project)
            assert tree == self.model.project, {
                path: (tree.get(path), self.model.project.get(path))
                for path in {*tree, *self.model.project} if tree.get(path) != self.model.project.get(path)
            }  # fmt: skip
