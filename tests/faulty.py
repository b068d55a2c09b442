"""A project with every kind of step, and acts on it that are interrupted at a chosen system call."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from conftest import fresh_directory, remove_tree, scratch
from faults.calls import EFFECT_OF, call_in, effect_in
from fumehood import Sandbox
from patience import LONG_S
from snapshots import Snapshot, snapshot

DRIVER = Path(__file__).parent / "faults/driver.py"
ACTS = ("run", "apply", "part", "force", "discard", "undo", "redo", "recover", "begin", "edit", "merge", "draft")
EDITS = ("begin", "edit")  # before a client's own edit, and after it: neither touches the project
PART = ("plain", "tree", "gone", "locked", "shutnew", "shutgone")  # the rest is still held after that
ERRORS = ("ENOSPC", "EACCES", "EIO")

BEFORE = """
mkdir plain dir2file dir2link gone gone/sub modes locked shutgone shutgone/sub shut2file shut2open open2shut
echo one > plain/one; echo two > plain/two; echo same > plain/same
echo old > file2dir; echo deep > dir2file/deep; echo deep > dir2link/deep
echo a > gone/a; echo b > gone/sub/b; ln -s a gone/link
echo keep > modes/keep
echo linked > link1; ln link1 link2; ln link1 link3
echo closed > plain/closed; echo open > plain/open; chmod 444 plain/closed
echo locked > locked/file; mkdir locked/sub; echo x > locked/sub/x
echo g > shutgone/sub/g; echo f > shut2file/f; echo old > file2shut; echo o > shut2open/o; echo s > open2shut/s
echo secret > plain/secret
find . ! -type d -exec touch -h -d @1000000000 {} +
chmod 640 plain/two; chmod 000 plain/secret; chmod 555 locked shutgone/sub shutgone shut2file shut2open
"""
CHANGE = """
set -e
echo ONE > plain/one; echo more >> plain/two; rm plain/same; echo new > plain/new
chmod 644 plain/closed; echo more >> plain/closed; chmod 444 plain/closed; echo more >> plain/open; chmod 400 plain/open
rm file2dir; mkdir file2dir; echo in > file2dir/in
rm -r dir2file; echo file > dir2file
rm -r dir2link; ln -s plain dir2link
mkdir -p tree/a/b tree/empty; echo t > tree/a/b/t; echo h > tree/hard; ln tree/hard tree/a/hard; chmod 555 tree/a/b
rm -r gone
mkdir pipes; mkfifo pipes/fifo; echo beside > pipes/beside; ln pipes/beside pipes/other
echo changed > link1.new; mv link1.new link1; rm link3
chmod 700 locked; echo changed > locked/file; rm -r locked/sub; echo new > locked/new; chmod 555 locked
chmod 750 modes; chmod 755 shut2open; echo O > shut2open/o; echo S > open2shut/s; chmod 555 open2shut
chmod -R u+w shutgone shut2file; rm -r shutgone shut2file file2shut; echo file > shut2file
chmod 600 plain/secret; echo more >> plain/secret; chmod 000 plain/secret
mkdir file2shut shutnew; echo in > file2shut/in; echo in > shutnew/in; chmod 555 file2shut shutnew
find . -newermt 2010-01-01 ! -type d -exec touch -h -d @1500000000 {} +
mkdir finished
"""
PATCH = """*** Begin Patch
*** Update File: plain/one
@@
-one
+ONE
*** Delete File: plain/same
*** Add File: made/deep/new
+new
*** End Patch"""
CLIENTS_EDIT = "echo ONE >plain/one; rm plain/same; mkdir -p made/deep; echo new >made/deep/new"
EDITED = {
    ("modified", "plain/one"), ("deleted", "plain/same"), ("added", "made"), ("added", "made/deep"),
    ("added", "made/deep/new"),
}  # fmt: skip
EDIT = """
echo mine > plain/one; rm plain/two; echo mine > plain/new; echo mine > tree; rm -r file2dir dir2link
echo mine > modes/mine
find . -newermt 2010-01-01 ! -type d -exec touch -h -d @1600000000 {} +
"""


@dataclass(frozen=True)
class Point:
    """One system call of one act, to be answered by a signal or an error."""

    act: str
    staged: bool
    call: str
    number: int
    answer: str = "signal=KILL"

    @property
    def effect(self) -> str:
        """What the call does, whatever it is called on this machine."""
        return EFFECT_OF[self.call]

    def __str__(self) -> str:
        where = "two file systems" if self.staged else "one file system"
        return f"{self.act}, {where}, {self.call} {self.number}, {self.answer}"


class Outcome(NamedTuple):
    """What a project became: "before" or "after"; and whether the fault was reached.

    An act may make a call fewer than when its points were counted, and then nothing happens to it.
    """

    became: str
    is_reached: bool


class Scene:
    """A project before a change that is held, in directories of its own."""

    def __init__(self, act: str, *, staged: bool, cache: Path) -> None:
        self.act = act
        self.top = fresh_directory(scratch())
        self.other = fresh_directory("/dev/shm") if staged else self.top
        self.project = self.other / "project"
        self.project.mkdir()
        self.environment = {
            **os.environ,
            **{f"XDG_{name}_HOME": str(self.top / name) for name in ("STATE", "DATA", "CONFIG")},
            "XDG_CACHE_HOME": str(cache), "HOME": str(self.top),
        }  # fmt: skip
        os.environ.update(self.environment)
        subprocess.run(["sh", "-ec", BEFORE], cwd=self.project, check=True)
        self.before = snapshot(self.project)
        self.original = self.before
        if act in EDITS:
            Sandbox(self.project).close()  # to make the database is no part of it
        if act == "edit":
            assert self.play("begin", PATCH) == 0, self.said
            self.edit()
        self.run = "" if act in ("run", *EDITS) else self._hold()

    def look(self) -> Snapshot:
        """What the project is now; when a person wrote an edited file does not matter."""
        now = snapshot(self.project)
        if self.act == "merge" and now["plain/two"] != self.original["plain/two"]:
            now["plain/two"][3] = None
        return now

    def edit(self) -> None:
        """Do what the patch says that the client asks about."""
        subprocess.run(["sh", "-ec", CLIENTS_EDIT], cwd=self.project, check=True)
        self.before = snapshot(self.project)

    def _hold(self) -> str:
        with Sandbox(self.project) as sandbox:
            if self.act == "draft":
                draft = sandbox.draft("one")
                for part in ("echo 1 > plain/one; mkdir tree; echo t > tree/t; rm gone/a", f"rm -r tree\n{CHANGE}"):
                    run = draft.run(part)
                    assert (run.state, run.exit_code) == ("held", 0), (run.reason, run.output)
                return draft.name
            run = sandbox.run(CHANGE, apply="hold")
            assert (run.state, run.exit_code) == ("held", 0), (run.reason, run.output)
            if self.act in ("undo", "redo"):
                sandbox.apply(run)
                self.before = snapshot(self.project)
            if self.act == "redo":
                run = sandbox.undo(run)
                self.before = snapshot(self.project)
        if self.act == "force":
            subprocess.run(["sh", "-ec", EDIT], cwd=self.project, check=True)
            self.before = snapshot(self.project)
        if self.act == "recover":
            # Something to recover from: killed in the middle of the swaps, which come after nineteen moves.
            self.play("apply", run.run, Point("apply", False, "renameat2", 32))
        return run.run

    def play(self, act: str, told: str, point: Point | None = None, log: str = "/dev/null") -> int:
        """Do the act in a process of its own, with a fault at the point; returns its exit status."""
        name = {"redo": "undo", "part": "apply"}.get(act, act)
        fault = [f"--inject={point.call}:{point.answer}:when={point.number}"] if point else []
        trace = ["strace", "-o", log, f"--trace={','.join(f'?{call}' for call in EFFECT_OF)}", *fault]
        paths = PART if act == "part" else ()
        command = [*trace, sys.executable, "-P", str(DRIVER), name, str(self.project), told, *paths]
        done = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S,
            check=False,
        )  # fmt: skip
        self.said = done.stderr
        return done.returncode

    def told(self) -> str:
        return CHANGE if self.act == "run" else PATCH if self.act in EDITS else self.run

    def close(self) -> None:
        for directory in {self.top, self.other}:
            remove_tree(directory)


@cache
def points(act: str, *, staged: bool, cache: Path) -> tuple[list[Point], Snapshot]:
    """Every point of an act where it touches a file, and what the project is after it."""
    scene = Scene(act, staged=staged, cache=cache)
    try:
        log = scene.top / "log"
        status = scene.play(act, scene.told(), log=str(log))
        assert status == 0, scene.said
        found = []
        counts: Counter[str] = Counter()
        for line in log.read_text().splitlines():
            call = call_in(line)
            counts[call] += 1
            if effect_in(line):
                found.append(Point(act, staged, call, counts[call]))
        return found, scene.look()
    finally:
        scene.close()


def tried(point: Point, after: Snapshot, cache: Path) -> Outcome:
    """Interrupt an act at a point, start anew, and check that nothing is lost."""
    scene = Scene(point.act, staged=point.staged, cache=cache)
    try:
        log = scene.top / "log"
        scene.play(point.act, scene.told(), point, log=str(log))
        is_reached = any(sign in log.read_text() for sign in ("+++ killed by SIGKILL", "--- SIGINT", "(INJECTED)"))
        with Sandbox(scene.project) as sandbox:
            became = _checked(scene, after)
            _goes_on(scene, sandbox, became, after)
        return Outcome(became, is_reached)
    finally:
        scene.close()


def _checked(scene: Scene, after: Snapshot) -> str:
    now = scene.look()
    assert now in (scene.before, after), _difference(now, scene.before, after)
    left = [name for name in os.listdir(scene.project) if name.startswith(".fumehood")]
    assert not left, left
    _shares_nothing(scene.project)
    return "before" if now == scene.before else "after"


def _shares_nothing(project: Path) -> None:
    """No live file has another name outside the project: a write to it would reach a backup."""
    names: Counter[int] = Counter()
    found: dict[int, int] = {}
    for directory, _, files in os.walk(project):
        for name in files:
            status = os.lstat(os.path.join(directory, name))
            names[status.st_ino] += 1
            found[status.st_ino] = status.st_nlink
    assert found == dict(names)


def _goes_on(scene: Scene, sandbox: Sandbox, became: str, after: Snapshot) -> None:
    """What was interrupted can be done, and what was done can be undone; live files and backups stay apart."""
    states = {run.state for run in sandbox.history()}
    assert not states & {"running", "applying", "settling"}, states
    if scene.act in EDITS:
        _edit_goes_on(scene, sandbox)
        return
    if scene.act == "merge":
        _merge_goes_on(scene, sandbox, became, after)
        return
    if scene.act == "draft":
        _draft_goes_on(scene, sandbox, became, after)
        return
    if scene.act in ("part", "force", "discard"):
        _decision_goes_on(scene, sandbox, became, after)
        return
    if became == "after" and scene.act != "recover":
        if after != scene.before:
            sandbox.undo(sandbox.history()[0])
            _must_be(scene, scene.before)
        return
    if scene.act in ("undo", "redo"):
        sandbox.undo(scene.run)
        _must_be(scene, after)
        return
    held = [run for run in sandbox.history() if run.state == "held"]
    if held:
        paths = {change.path for change in held[0].changes}
        assert "." not in paths, "the command does not touch the project's own directory"
        whole = paths >= {"plain/one", "gone", "modes", "finished"}
        sandbox.apply(held[0])
        if whole and scene.act != "recover":
            _must_be(scene, after)
        sandbox.undo(held[0].run)
        _must_be(scene, scene.before)


def _edit_goes_on(scene: Scene, sandbox: Sandbox) -> None:
    """An edit that was made is one run, all of it; where the question about it was cut off, it is asked again."""
    if scene.act == "begin":
        assert sandbox.history() == []
        assert scene.play("begin", PATCH) == 0, scene.said
        scene.edit()
        assert scene.play("edit", PATCH) == 0, scene.said
    (run,) = sandbox.history()
    assert {(change.change, change.path) for change in run.changes} == EDITED
    sandbox.undo(run.run)
    _must_be(scene, scene.original)


def _merge_goes_on(scene: Scene, sandbox: Sandbox, became: str, after: Snapshot) -> None:
    """What a person made of a file is a run of its own; until what the command wrote is thrown away, it is held."""
    held = sandbox.history()[-1]
    assert held.state == "held"
    verdict = next(change.verdict for change in held.changes if change.path == "plain/two")
    if became == "before":
        assert verdict == "held"
        assert scene.play("merge", scene.told()) == 0, scene.said
        _must_be(scene, after)
    assert verdict in ("held", "discarded")
    merge = next(run for run in sandbox.history() if run.command.startswith("merge") and run.state == "applied")
    sandbox.undo(merge)
    _must_be(scene, scene.before)
    # Between file systems an undo brings a copy back, which is the person's as far as the held run can know.
    rest = sandbox.apply(held, force=True)
    assert {change.verdict for change in rest.changes} <= {"applied", "unsupported", "discarded"}


def _draft_goes_on(scene: Scene, sandbox: Sandbox, became: str, after: Snapshot) -> None:
    """A draft is applied, all of it, or it is as it was; both of its runs are told of, and nothing is there twice."""
    if became == "before":
        (draft,) = sandbox.drafts()
        assert [run.state for run in sandbox.history()] == ["held", "held"]
        assert draft.run("cat plain/one tree/hard").stdout == "ONE\nh\n"
        draft.apply()
        _must_be(scene, after)
    assert sandbox.drafts() == []
    sandbox.undo()
    _must_be(scene, scene.before)


def _decision_goes_on(scene: Scene, sandbox: Sandbox, became: str, after: Snapshot) -> None:
    """What a person decided can be decided once more, or the rest of it; all that waits is still there."""
    (run,) = sandbox.history()
    verdicts = Counter(change.verdict for change in run.changes if change.verdict != "unsupported")
    if scene.act == "discard":
        assert set(verdicts) in ({"held"}, {"discarded"}), verdicts
        if "discarded" in verdicts:
            assert sandbox.run("cat plain/one tree/hard").stdout == "one\n"
            return
        assert {change.verdict for change in sandbox.apply(run).changes} == {"applied", "unsupported"}
    elif scene.act == "force":
        if became == "before":
            sandbox.apply(run, force=True)
        _must_be(scene, after)
    else:
        assert ("applied" in verdicts) == (became == "after"), verdicts
        if became == "before":
            sandbox.apply(run, *PART)
            _must_be(scene, after)
        assert sandbox.run("cat plain/one file2dir/in dir2file").stdout == "ONE\nin\nfile\n"
        assert {change.verdict for change in sandbox.apply(run).changes} == {"applied", "unsupported"}
    sandbox.undo(run)
    _must_be(scene, scene.before)


def _must_be(scene: Scene, wanted: Snapshot) -> None:
    _shares_nothing(scene.project)
    _is(scene, wanted)


def _is(scene: Scene, wanted: Snapshot) -> None:
    """A backup shares no inode with the project, so an undo does not bring back a link to what was not changed."""
    now, wanted = ({path: told[:-1] for path, told in each.items()} for each in (scene.look(), wanted))
    assert now == wanted, _difference(now, wanted)


def _difference(now: Snapshot, *wanted: Snapshot) -> str:
    """Name what differs, for whoever reads a failure."""
    found = [
        [(path, now.get(path), each.get(path)) for path in sorted({*now, *each}) if now.get(path) != each.get(path)]
        for each in wanted
    ]
    return "\n".join(map(str, found))
