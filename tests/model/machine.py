"""Random stories of commands and people, played to the real thing and to the plain model."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plain import WAITING, Done, Model, Node, Tree, above, below, is_directory, put

from conftest import PREFIX, scratch
from fumehood import BadRequest, Policy, Run, Sandbox, UndoRefused

# People edit the files of `s`, whose directory stays; in `t`, commands do what they like.
SHARED = ("s/1", "s/2", "s/3")
FREE = ("t/a", "t/b", "t/a/x", "t/a/y", "t/b/x", "t/a/x/deep")
MODES = (0o644, 0o600, 0o755)

paths = st.sampled_from((*SHARED, *FREE))
acts = st.lists(
    st.tuples(st.sampled_from(("write", "write", "remove", "mkdir", "link", "chmod", "rename")), paths, paths,
              st.sampled_from(MODES)),
    min_size=1, max_size=5,
)  # fmt: skip


# How often everything was done.
COUNTS: Counter[str] = Counter()


def counted(act: Callable[..., None]) -> Callable[..., None]:
    """Count what is done."""

    @wraps(act)
    def counting(*arguments: object, **named: object) -> None:
        COUNTS[act.__name__] += 1
        act(*arguments, **named)

    return counting


def tree_of(top: Path) -> Tree:
    """A project as the model tells it."""
    found: Tree = {}
    for here, folders, files in os.walk(top):
        for name in (*folders, *files):
            place = os.path.join(here, name)
            status = os.lstat(place)
            path = os.path.relpath(place, top)
            if stat.S_ISLNK(status.st_mode):
                found[path] = ("symlink", os.readlink(place), 0)
            elif stat.S_ISDIR(status.st_mode):
                found[path] = ("directory", "", stat.S_IMODE(status.st_mode))
            else:
                found[path] = ("file", Path(place).read_text(), stat.S_IMODE(status.st_mode))
    return found


class Command:
    """A shell line, made up of acts that make sense, and what it makes of a tree."""

    def __init__(self, tree: Tree, contents: Contents) -> None:
        self.tree = dict(tree)
        self.lines: list[str] = []
        self.touched: set[str] = set()
        self._contents = contents

    def act(self, what: str, path: str, other: str, mode: int) -> None:
        """Add one act, if it can be done."""
        node = self.tree.get(path)
        if not all(is_directory(self.tree.get(each)) for each in above(path)):
            return
        if what == "write" and not is_directory(node):
            text = self._contents.new()
            kept = node[2] if node is not None and node[0] == "file" else 0o644
            # Not through a symlink.
            self._do(f"rm -f {path}; echo {text} > {path}; chmod {kept:o} {path}", path, ("file", f"{text}\n", kept))
        elif what == "remove" and node is not None:
            self._do(f"rm -r {path}", path, None)
        elif what == "mkdir" and node is None and path in FREE:
            self._do(f"mkdir {path}; chmod 755 {path}", path, ("directory", "", 0o755))
        elif what == "link" and node is None and path in FREE:
            self._do(f"ln -s /usr/bin/env-{self._contents.new()} {path}", path, None)
            target = self.lines[-1].split()[2]
            put(self.tree, path, ("symlink", target, 0))
        elif what == "chmod" and node is not None and node[0] == "file":
            self._do(f"chmod {mode:o} {path}", path, (*node[:2], mode))
            self.touched.add(path)
        elif what == "rename" and node is not None and path in FREE and other in FREE:
            self._rename(path, other, node)

    def _rename(self, path: str, other: str, node: Node) -> None:
        free = other not in self.tree and all(is_directory(self.tree.get(each)) for each in above(other))
        if not free or other.startswith(f"{path}/"):
            return
        moved = {f"{other}{each[len(path):]}": self.tree[each] for each in below(self.tree, path)}
        self._do(f"mv {path} {other}", path, None)
        self.tree.update({other: node, **moved})

    def _do(self, line: str, path: str, node: Node | None) -> None:
        self.lines.append(line)
        put(self.tree, path, node)


class Contents:
    """Texts of which no two are the same."""

    def __init__(self) -> None:
        self._count = 0

    def new(self) -> str:
        """A text that is nowhere yet."""
        self._count += 1
        return f"text-{self._count}"


class Machine(RuleBasedStateMachine):
    """One project, its agent and its person."""

    capture = ""

    @initialize()
    def begin(self) -> None:
        """Make a project of an own home."""
        self.home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch()))
        self._before = {name: os.environ.get(name) for name in ("HOME", "XDG_STATE_HOME")}
        os.environ["HOME"] = str(self.home)
        os.environ["XDG_STATE_HOME"] = str(self.home / "state")
        self.project = self.home / "project"
        (self.project / "s").mkdir(parents=True)
        (self.project / "t").mkdir()
        self.contents = Contents()
        for path in SHARED[:2]:
            (self.project / path).write_text(f"{self.contents.new()}\n")
        for place in (self.project, *self.project.rglob("*")):
            place.chmod(0o755 if place.is_dir() else 0o644)
        self.sandbox = Sandbox(self.project, policy=Policy(capture=self.capture))
        self.model = Model(tree_of(self.project))

    def teardown(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "sandbox"):
            self.sandbox.close()
            for name, value in self._before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
            shutil.rmtree(self.home)

    # --- the agent ---

    @rule(acts=acts, mode=st.sampled_from(("apply", "apply", "apply", "hold", "discard")))
    @counted
    def run(self, acts: list[tuple[str, str, str, int]], mode: str) -> None:
        """A command runs."""
        self._run(acts, mode, {})

    @rule(acts=acts, path=st.sampled_from(SHARED), mode=st.sampled_from(("apply", "apply", "hold")))
    @counted
    def run_while_a_person_edits(self, acts: list[tuple[str, str, str, int]], path: str, mode: str) -> None:
        """A command runs, and a person writes a file meanwhile."""
        self._run(acts, mode, {path: ("file", f"{self.contents.new()}\n", 0o644)})

    def _run(self, acts: list[tuple[str, str, str, int]], mode: str, edits: dict[str, Node]) -> None:
        command = Command(self.model.view(), self.contents)
        for act in acts:
            command.act(*act)
        line = "; ".join([*command.lines, "echo done"])

        def edit(*_: object) -> None:
            for path, (_kind, text, bits) in edits.items():
                self._write(path, text, bits)

        run = self.sandbox.run(line, apply=mode, on_output=edit if edits else None)
        assert run.exit_code == 0, run.output
        done = self.model.ran(run.id, command.tree, mode, edits, command.touched)
        assert self._verdicts(run) == done.verdicts, (self._verdicts(run), done.verdicts)

    @rule()
    @counted
    def look(self) -> None:
        """A command sees the project with what is held."""
        line = "find . -mindepth 1 -printf '%P\\0%y\\0%m\\0%l\\0'"
        found = self.sandbox.run(line, apply="discard").stdout.split("\0")[:-1]
        kinds = {"f": "file", "d": "directory", "l": "symlink"}
        seen = {
            path: (kinds[kind], target, 0 if kind == "l" else int(mode, 8))
            for path, kind, mode, target in zip(*[iter(found)] * 4, strict=True)
        }
        view = self.model.view()
        assert {p: n[::2] for p, n in seen.items()} == {p: n[::2] for p, n in view.items()}
        files = [path for path, node in view.items() if node[0] == "file"]
        if files:
            assert self.sandbox.run(["cat", *files], apply="discard").stdout == "".join(view[each][1] for each in files)

    # --- the person ---

    def _write(self, path: str, text: str, mode: int) -> None:
        place = self.project / path
        place.unlink(missing_ok=True)
        place.write_text(text)
        place.chmod(mode)

    @rule(path=st.sampled_from(SHARED))
    @counted
    def edit(self, path: str) -> None:
        """A person writes a file."""
        text = f"{self.contents.new()}\n"
        self._write(path, text, 0o644)
        self.model.edit(path, ("file", text, 0o644))

    @rule(path=st.sampled_from(SHARED))
    @counted
    def delete(self, path: str) -> None:
        """A person deletes a file."""
        (self.project / path).unlink(missing_ok=True)
        self.model.edit(path, None)

    @precondition(lambda self: self.model.waiting())
    @rule(data=st.data())
    @counted
    def apply(self, data: st.DataObject) -> None:
        """A person applies what is held."""
        done = data.draw(st.sampled_from(self.model.waiting()))
        self._decide(done, self.model.apply(done), lambda: self.sandbox.apply(done.name))

    @precondition(lambda self: self.model.waiting())
    @rule(data=st.data())
    @counted
    def discard(self, data: st.DataObject) -> None:
        """A person throws away what is held."""
        done = data.draw(st.sampled_from(self.model.waiting()))
        self._decide(done, self.model.discard(done, done.of_verdict(*WAITING)), lambda: self.sandbox.discard(done.name))

    @precondition(lambda self: any(self._of_people(run) for run in self.model.waiting()))
    @rule(data=st.data(), force=st.booleans())
    @counted
    def decide_one(self, data: st.DataObject, force: bool) -> None:
        """A person takes one file by force, or throws it away."""
        done = data.draw(st.sampled_from([run for run in self.model.waiting() if self._of_people(run)]))
        path = data.draw(st.sampled_from(self._of_people(done)))
        if force:
            self._decide(done, self.model.force(done, path), lambda: self.sandbox.apply(done.name, path, force=True))
        else:
            self._decide(done, self.model.discard(done, [path]), lambda: self.sandbox.discard(done.name, path))

    @staticmethod
    def _of_people(run: Done) -> list[str]:
        return [path for path in run.of_verdict(*WAITING) if path in SHARED]

    def _decide(self, done: Done, refusal: str, act: object) -> None:
        if refusal:
            try:
                act()  # type: ignore[operator]
            except BadRequest as refused:
                assert refusal in f"{refused.message} {refused.hint}"  # noqa: PT017
                return
            raise AssertionError("it should have been refused")
        found = self._verdicts(act())  # type: ignore[operator]
        assert found == done.verdicts, (found, done.verdicts)

    @precondition(lambda self: any(self._can_be_undone(run) for run in self.model.runs))
    @rule(data=st.data())
    @counted
    def undo(self, data: st.DataObject) -> None:
        """A person takes a run back, or an undo."""
        done = data.draw(st.sampled_from([run for run in self.model.runs if self._can_be_undone(run)]))
        try:
            back = self.sandbox.undo(done.name)
        except UndoRefused:
            assert self.model.undo(done, "") is None
            return
        assert self.model.undo(done, back.id) is not None

    @staticmethod
    def _can_be_undone(run: Done) -> bool:
        return not run.undone and bool(run.of_verdict("applied"))

    @staticmethod
    def _verdicts(run: Run) -> dict[str, str]:
        return {change.path: change.verdict for change in run.changes}

    @invariant()
    def the_project_is_what_the_model_says(self) -> None:
        """Nothing is lost, and nothing is there that nobody put there."""
        if hasattr(self, "model"):
            assert tree_of(self.project) == self.model.project
