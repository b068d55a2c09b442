"""Checkpoints: what a running command has finished writing is settled while it goes on."""

import mmap
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fumehood import BadRequest, Policy, Run, Sandbox, UndoRefused
from fumehood.linux.copying import copy_versions
from fumehood.service import checkpoint
from fumehood.service.checkpoint import Checkpoints
from fumehood.service.overview import ChosenAct, perform, state_id
from patience import LONG_S, eventually
from snapshots import snapshot

pytestmark = pytest.mark.namespaces




class Going:
    """A command in several parts, which begins each when it is told to; others use the project meanwhile."""

    def __init__(
        self, project: Path, parts: tuple[str, ...], policy: Policy | None, session: str | None, background: bool
    ) -> None:
        self._playground = Path(os.environ["XDG_DATA_HOME"], "fumehood/playground")
        self.sandbox = Sandbox(project, policy=policy, session=session)
        self._done = [threading.Event() for _ in parts]
        self._said = ""
        self._told = 0
        waits = [f"until [ -e ~/playground/go{n} ]; do sleep 0.01; done; {part}" for n, part in enumerate(parts, 1)]
        command = "\n".join([*(f"{part}\necho part-is-done" for part in waits), "rm ~/playground/go*"])
        self._threads = ThreadPoolExecutor(1)
        self._report: Future[Run] = self._threads.submit(
            self.sandbox.run, command, on_output=self._hear, background=background
        )

    def _hear(self, _stream: str, text: str) -> None:
        self._said += text
        for n in range(self._said.count("part-is-done")):
            self._done[n].set()

    def tell(self) -> None:
        """Let it do its next part."""
        self._told += 1
        assert eventually(self._playground.is_dir)
        (self._playground / f"go{self._told}").touch()

    def part(self) -> None:
        """Let it do its next part, and wait until that is done."""
        self.tell()
        assert self._done[self._told - 1].wait(LONG_S)

    @property
    def run(self) -> Run:
        assert eventually(self.sandbox.running)
        return self.sandbox.running()[0]

    def checkpoint(self) -> Run:
        return self.sandbox.checkpoint(self.run)

    def ended(self) -> Run:
        """Let it do what is left, and wait for its end."""
        while self._told < len(self._done):
            self.part()
        return self._report.result(LONG_S)

    def close(self) -> None:
        if self._told < len(self._done) and not self._report.done():
            self.sandbox.stop(self.run)
        self._report.exception(LONG_S)
        self._threads.shutdown()
        self.sandbox.close()


@pytest.fixture
def going(home: Path, project: Path) -> Iterator[Callable[..., Going]]:
    """Start a command in parts."""
    begun = []

    def start(
        *parts: str, policy: Policy | None = None, session: str | None = None, background: bool = False,
        project: Path = project,
    ) -> Going:  # fmt: skip
        begun.append(Going(project, parts, policy, session, background))
        return begun[-1]

    yield start
    for each in begun:
        each.close()


def paths(run: Run) -> dict[str, str]:
    return {change.path: change.change for change in run.changes}


def test_what_a_running_command_has_written_is_in_the_project_after_a_checkpoint(going, project):
    (project / "kept").write_text("old\n")
    (project / "gone").write_text("old\n")
    command = going("echo one >> kept; rm gone; mkdir new; echo x > new/f; ln -s kept link; chmod 755 kept", "true")
    command.part()
    assert sorted(os.listdir(project)) == ["gone", "kept"]
    run = command.checkpoint()
    assert (run.state, run.act, run.of) == ("applied", "checkpoint", command.run.run)
    assert paths(run) == {"gone": "deleted", "kept": "modified", "link": "added", "new": "added", "new/f": "added"}
    assert run.command.startswith("checkpoint of ")
    assert (project / "kept").read_text() == "old\none\n"
    assert (project / "new/f").read_text() == "x\n"
    assert not (project / "gone").exists()
    settled = snapshot(project)
    assert command.ended().state == "empty"
    assert snapshot(project) == settled


def test_what_is_written_to_mapped_memory_after_it_was_judged_is_not_settled(going, project, monkeypatch):
    (project / ".git").mkdir()
    (project / ".git/HEAD").write_text("ref: refs/heads/main\n")
    config = "[core]\n\tbare = false\n"
    (project / ".git/config").write_text(config)
    evil = b'[core]\n\tfsmonitor = "touch /planted #"\n'
    command = going("exec 9>>.git/config; printf '[user]\\n\\tname = somebody-with-a-name\\n\\n' >&9", "true")
    command.part()
    (layer,) = Path(os.environ["XDG_STATE_HOME"]).glob("fumehood/runs/*/0/upper/.git/config")
    with layer.open("r+b") as file:  # as another command that was handed it
        memory = mmap.mmap(file.fileno(), 0)
    memory[-1:] = b"\n"  # from now on, its times stay as they are

    def rewritten(*arguments: Any) -> None:
        memory[-len(evil) :] = evil
        copy_versions(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "copy_versions", rewritten)
        run = command.checkpoint()
    assert (run.state, paths(run)) == ("failed", {})
    assert "written meanwhile" in run.reason
    assert (project / ".git/config").read_text() == config
    memory.close()
    assert command.ended().state == "held"
    assert (project / ".git/config").read_text() == config


def test_a_checkpoint_leaves_a_directory_alone_that_took_the_projects_place(going, project):
    command = going("echo x > new", "true")
    command.part()
    project.rename(project.with_name("elsewhere"))
    project.mkdir()
    run = command.checkpoint()
    assert (run.state, os.listdir(project)) == ("failed", [])
    assert "another directory is at" in run.reason
    with pytest.raises(BadRequest, match="has ended, and what it wrote can't be looked at yet: another directory"):
        command.sandbox.stop(command.run)


def test_what_a_command_deletes_in_a_directory_that_a_checkpoint_settled_is_deleted(going, project):
    command = going("mkdir new; echo x > new/f; echo y > new/g", "rm new/f")
    command.part()
    command.checkpoint()
    assert sorted(os.listdir(project / "new")) == ["f", "g"]
    end = command.ended()
    assert sorted(os.listdir(project / "new")) == ["g"]
    assert (end.state, paths(end)) == ("applied", {"new/f": "deleted"})


def test_what_others_put_into_a_directory_that_a_checkpoint_settled_stays(going, project):
    command = going("mkdir new; echo x > new/f", "rm new/f; echo g > new/g")
    command.part()
    command.checkpoint()
    (project / "new/person").write_text("hers")
    end = command.ended()
    assert (end.state, paths(end)) == ("applied", {"new/f": "deleted", "new/g": "added"})
    assert sorted(os.listdir(project / "new")) == ["g", "person"]


def test_the_command_goes_on_from_what_was_settled(going, project):
    (project / "kept").write_text("old\n")
    command = going(
        "echo one >> kept; echo a > a; mkdir d; echo x > d/x", "echo two >> kept; mv a b; mv d e", "echo three >> kept"
    )
    command.part()
    command.checkpoint()
    command.part()
    second = command.checkpoint()
    assert paths(second) == {
        "a": "deleted", "b": "added", "d": "deleted", "d/x": "deleted", "e": "added", "e/x": "added",
        "kept": "modified",
    }  # fmt: skip
    end = command.ended()
    assert (end.state, paths(end)) == ("applied", {"kept": "modified"})
    assert (project / "kept").read_text() == "old\none\ntwo\nthree\n"
    assert sorted(os.listdir(project)) == ["b", "e", "kept"]


def test_a_second_checkpoint_has_nothing_to_settle(going, project):
    command = going("echo one > one", "true")
    command.part()
    command.checkpoint()
    again = command.checkpoint()
    assert (again.state, again.changes, again.reason) == ("empty", (), "")


def test_the_command_and_its_checkpoints_can_be_taken_back(going, project):
    (project / "kept").write_text("old\n")
    (project / "gone").write_text("old\n")
    (project / "dir").mkdir()
    before = snapshot(project)
    command = going(
        "echo one >> kept; rm gone; mkdir new; echo x > new/f", "echo two >> kept; rm new/f; chmod 700 dir",
        "echo 3 >> kept",
    )  # fmt: skip
    command.part()
    first = command.checkpoint()
    with pytest.raises(UndoRefused, match="still runs"):
        command.sandbox.undo(first)
    with pytest.raises(BadRequest, match="nothing is left to undo"):
        command.sandbox.undo()
    command.part()
    second = command.checkpoint()
    after = [snapshot(project)]
    end = command.ended()
    backs = [command.sandbox.undo() for _ in range(3)]
    assert [back.of for back in backs] == [end.run, second.run, first.run]
    assert snapshot(project) == before
    for _ in range(2):
        command.sandbox.redo()
    assert snapshot(project) == after[0]


def test_by_a_page_a_command_is_taken_back_and_brought_back_with_its_checkpoints(going, project, store):
    before = snapshot(project)
    command = going("echo one > one", "echo two >> one; echo 2 > two")
    command.part()
    command.checkpoint()
    end = command.ended()
    after = snapshot(project)
    back = perform(store, store.history.find(end.run), ChosenAct(act="undo", seen=state_id(store, end)))
    assert (back.of, snapshot(project)) == (end.run, before)
    perform(store, store.history.find(end.run), ChosenAct(act="redo"))
    assert snapshot(project) == after
    perform(store, store.history.find(end.run), ChosenAct(act="undo", paths=("two",)))
    assert sorted(os.listdir(project)) == ["one"]


def test_all_of_a_session_is_taken_back_with_its_checkpoints(going, project):
    before = snapshot(project)
    command = going("echo one > one", "echo two >> one", session="agent")
    command.part()
    command.checkpoint()
    with pytest.raises(UndoRefused, match="still runs, and some of what it wrote is settled"):
        command.sandbox.undo_session()
    command.ended()
    assert len(command.sandbox.undo_session()) == 2
    assert snapshot(project) == before


@pytest.mark.once
def test_a_checkpoint_of_a_project_on_another_file_system(going, other_filesystem):
    project = other_filesystem / "elsewhere"
    project.mkdir()
    (project / "kept").write_text("old\n")
    (project / "gone").write_text("old\n")
    before = snapshot(project)
    command = going("echo one >> kept; rm gone; mkdir new; echo x > new/f", "rm new/f; echo 2 >> kept", project=project)
    command.part()
    assert command.checkpoint().state == "applied"
    assert (project / "kept").read_text() == "old\none\n"
    end = command.ended()
    assert (end.state, paths(end)) == ("applied", {"kept": "modified", "new/f": "deleted"})
    for _ in range(2):
        command.sandbox.undo()
    assert snapshot(project) == before


def test_what_builds_on_something_held_waits_with_it(going, sandbox, project):
    held = sandbox.run("echo h > h", apply="hold")
    command = going("cat h; echo more >> h; echo n > n", "true")
    command.part()
    run = command.checkpoint()
    assert paths(run) == {"n": "added"}
    assert f"h: it builds on run {held.name}, which was held" in run.reason
    assert [(change.path, change.verdict) for change in command.ended().changes] == [("h", "held")]


def test_a_file_that_a_person_has_open_is_left_and_can_be_applied_later(going, sandbox, project):
    (project / "open").write_text("old\n")
    (project / "other").write_text("old\n")
    command = going("echo new > open; echo new > other", "true")
    command.part()
    with (project / "open").open("a"):
        run = command.checkpoint()
        assert paths(run) == {"other": "modified"}
        assert "open: " in run.reason
    end = command.ended()
    assert (end.state, paths(end)) == ("applied", {"open": "modified"})
    assert (project / "open").read_text() == "new\n"


def test_what_a_person_does_with_what_was_settled_stays(going, project):
    (project / "kept").write_text("old\n")
    (project / "gone").write_text("old\n")
    command = going("echo one >> kept; rm gone; echo a > a; mkdir d; echo x > d/x; chmod 700 .", "true")
    command.part()
    command.checkpoint()
    (project / "kept").write_text("hers\n")
    (project / "gone").write_text("back\n")
    (project / "a").unlink()
    (project / "d/x").unlink()
    (project / "d").rmdir()
    project.chmod(0o755)
    hers = snapshot(project)
    assert command.ended().state == "empty"
    assert snapshot(project) == hers


def test_a_directory_that_another_removes_after_a_checkpoint_does_not_come_back(going, sandbox, project):
    (project / "d").mkdir()
    (project / "d/old").touch()
    before = snapshot(project)
    command = going("echo f > d/f; mkdir d/e; echo g > d/e/g", "true")
    command.part()
    command.checkpoint()
    sandbox.run("rm -r d")
    assert command.ended().state == "empty"
    assert not list(project.iterdir())
    for _ in range(2):
        sandbox.undo()
    assert snapshot(project) == before


def test_what_was_settled_and_removed_since_does_not_come_with_what_is_new_beside_it(going, sandbox, project):
    command = going("mkdir -p d/e; echo g > d/e/g; echo f > d/f", "echo n > d/n")
    command.part()
    command.checkpoint()
    shutil.rmtree(project / "d")
    end = command.ended()
    assert {change.path: change.verdict for change in end.changes} == {"d": "applied", "d/n": "applied"}
    assert sorted(str(path.relative_to(project)) for path in project.rglob("*")) == ["d", "d/n"]
    sandbox.undo()
    assert not list(project.iterdir())


@pytest.mark.parametrize("rest", ["echo n > d/n", "echo n > d/e/n"])
def test_a_command_that_wrote_again_where_another_removed_its_checkpoint_can_be_taken_back(
    going, sandbox, project, rest
):
    (project / "d").mkdir()
    (project / "d/old").touch()
    before = snapshot(project)
    command = going("mkdir d/e; echo g > d/e/g; echo f > d/f", rest)
    command.part()
    checkpoint = command.checkpoint()
    other = sandbox.run("rm -r d")
    end = command.ended()
    with pytest.raises(UndoRefused) as refused:
        sandbox.undo(other)
    assert refused.value.hint.startswith(f"first: fumehood undo {end.number}")
    for run in (end, other, checkpoint):
        sandbox.undo(run)
    assert snapshot(project) == before


def test_what_both_change_after_a_checkpoint_is_a_conflict(going, project):
    command = going("echo one > one", "echo two >> one; echo n > n")
    command.part()
    command.checkpoint()
    (project / "one").write_text("hers\n")
    end = command.ended()
    assert {change.path: change.verdict for change in end.changes} == {"n": "applied", "one": "conflict"}
    assert (project / "one").read_text() == "hers\n"


def test_a_conflict_is_left_to_the_end(going, project):
    (project / "one").write_text("old\n")
    command = going("echo two >> one; echo n > n", "true")
    command.part()
    (project / "one").write_text("hers\n")
    run = command.checkpoint()
    assert paths(run) == {"n": "added"}
    assert "one: it changed in the project after the run began" in run.reason
    end = command.ended()
    assert [(change.path, change.verdict) for change in end.changes] == [("one", "conflict")]


def test_an_environment_is_not_held_because_a_checkpoint_was_in_the_middle_of_it(going, project):
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    code = """
import os, time, venv
room = os.path.expanduser("~/playground")
class Slow(venv.EnvBuilder):
    def setup_scripts(self, context):  # the last thing that `venv` does
        open(f"{room}/waits", "w").close()
        while not os.path.exists(f"{room}/goes-on"): time.sleep(0.01)
        super().setup_scripts(context)
Slow(symlinks=True).create(".venv")
"""
    made = f"{python} -c '{code}' & until [ -e ~/playground/waits ]; do sleep 0.01; done"
    story = going(made, "touch ~/playground/goes-on; wait")
    story.part()
    assert story.checkpoint().state == "applied"
    assert (project / ".venv/pyvenv.cfg").exists()
    assert not (project / ".venv/bin/activate").exists()
    run = story.ended()
    assert run.state == "applied", {change.path: change.reason for change in run.changes if change.reason}
    subprocess.run(["sh", "-c", ". .venv/bin/activate && python3 -c pass"], cwd=project, check=True)


def test_what_is_held_waits_for_the_end(going, project):
    command = going("mkdir .vscode; echo '{}' > .vscode/tasks.json; echo n > n", "true")
    command.part()
    run = command.checkpoint()
    assert (run.state, paths(run)) == ("applied", {"n": "added"})
    assert ".vscode/tasks.json: " in run.reason
    assert not (project / ".vscode").exists()
    end = command.ended()
    assert end.state == "held"
    assert {change.path for change in end.changes} == {".vscode", ".vscode/tasks.json"}


def test_what_is_being_written_is_left_and_a_log_is_taken_as_it_is(going, project):
    writes = "import sys; f = open('data', 'r+b'); f.write(b'x' * 4096); f.flush(); sys.stdout.flush(); input()"
    command = going(
        f"mkfifo /tmp/wait; touch data; python3 -c \"{writes}\" < /tmp/wait & exec 3> /tmp/wait\n"
        "exec 4> log; echo begin >&4; until [ -s data ]; do sleep 0.01; done",
        "echo end >&4; echo >&3; wait",
    )  # fmt: skip
    command.part()
    run = command.checkpoint()
    assert paths(run) == {"log": "added"}
    assert "data: it is still being written" in run.reason
    assert (project / "log").read_text() == "begin\n"
    assert command.ended().state == "applied"
    assert (project / "log").read_text() == "begin\nend\n"
    assert (project / "data").stat().st_size == 4096


def test_a_repository_in_which_git_is_at_work_is_left_as_it_is(going, project):
    (project / ".git").mkdir()
    (project / ".git/HEAD").write_text("ref: refs/heads/main\n")
    command = going(
        "echo 'ref: refs/heads/x' > .git/HEAD; touch .git/index.lock; echo n > n", "rm .git/index.lock", "true"
    )
    command.part()
    run = command.checkpoint()
    assert paths(run) == {"n": "added"}
    assert "git is at work" in run.reason
    command.part()
    assert paths(command.checkpoint()) == {".git/HEAD": "modified"}


@pytest.mark.long
def test_processes_that_were_stopped_go_on(going, project):
    script = "set -m\n(while [ ! -e /tmp/enough ]; do sleep 0.01; done; exit 7) &\nexec 3>&1\n"
    shell = f"bash -c '{script}wait; echo $? > status; jobs > jobs' 2> errors & echo n > n"
    command = going(shell, "touch /tmp/enough; wait")
    command.part()
    for _ in range(10):
        command.checkpoint()
    command.ended()
    assert (project / "status").read_text() in ("0\n", "7\n")
    assert "Stopped" not in (project / "errors").read_text() + (project / "jobs").read_text()


@pytest.mark.parametrize("mode", ["hold", "discard"])
def test_a_command_whose_changes_are_not_applied_has_no_checkpoint(going, project, mode):
    command = going("echo n > n", "true", policy=Policy(apply=mode))
    command.part()
    with pytest.raises(BadRequest, match=f"is to {mode} its changes"):
        command.checkpoint()


def test_a_copied_tree_has_no_checkpoints(going, project):
    command = going("echo n > n", "true", policy=Policy(capture="copy"))
    command.part()
    with pytest.raises(BadRequest, match="captured by a copy, which has no checkpoints"):
        command.checkpoint()


def test_what_has_ended_has_no_checkpoint(sandbox):
    run = sandbox.run("true")
    with pytest.raises(BadRequest, match="is not running"):
        sandbox.checkpoint(run)


def test_a_command_that_was_checkpointed_is_not_run_again(going, project):
    (project / "n").write_text("old\n")
    command = going("echo a > a", "echo mine > n")
    command.part()
    command.checkpoint()
    with Sandbox(project) as other:
        other.run("echo other > n")
    end = command.ended()
    assert [(change.path, change.verdict) for change in end.changes] == [("n", "conflict")]
    assert (project / "n").read_text() == "other\n"


QUICK = Policy(checkpoint=0.1)


@pytest.mark.long
def test_a_log_of_a_command_in_the_background_is_read_by_others(going, project):
    command = going(
        "exec > server.log; echo begins", "echo goes on", "echo ends", "exec >&2", policy=QUICK, background=True
    )
    command.tell()
    read = command.sandbox.run
    assert eventually(lambda: read("cat server.log").stdout == "begins\npart-is-done\n")
    command.tell()
    assert eventually(lambda: "goes on\n" in read("cat server.log").stdout)
    command.tell()
    assert eventually(lambda: "ends\n" in read("cat server.log").stdout)
    checkpoints = [run for run in command.sandbox.history() if run.act == "checkpoint"]
    assert [paths(run) for run in checkpoints] == [{"server.log": "added"}], "one tells of all versions"
    command.tell()
    assert command.ended().exit_code == 0
    text = (project / "server.log").read_text()
    assert [line for line in text.splitlines() if line != "part-is-done"] == ["begins", "goes on", "ends"]
    command.sandbox.undo()
    assert not (project / "server.log").exists()


def test_what_was_there_before_a_command_in_the_background_comes_back(going, project):
    (project / "log").write_text("old\n")
    (project / "other").write_text("old\n")
    before = snapshot(project)
    command = going("exec 3>> log", "echo 1 >&3", "echo 2 >&3; echo 2 > other", policy=QUICK, background=True)
    for number in (0, 1, 2):
        command.part()
        assert eventually(lambda number=number: str(number or "old") in (project / "log").read_text())
    assert eventually(lambda: (project / "other").read_text() == "2\n")
    command.ended()
    while any(run.state == "applied" and run.act != "undo" for run in command.sandbox.history()):
        command.sandbox.undo()
    assert snapshot(project) == before


@pytest.mark.long
def test_what_nobody_has_changed_since_leaves_no_checkpoint(going, project):
    command = going("echo one > one", "sleep 1", policy=QUICK, background=True)
    command.part()
    assert eventually((project / "one").exists)
    command.part()
    assert len(command.sandbox.history()) == 2


@pytest.mark.long
def test_checkpoints_are_not_made_by_themselves_where_that_is_turned_off(going, project):
    command = going("echo one > one; sleep 2", "true", policy=Policy(checkpoint=0), background=True)
    command.part()
    assert not (project / "one").exists()
    assert command.checkpoint().state == "applied"


def story(chance: random.Random, length: int) -> str:
    """Write a random piece of shell over a few names."""

    def name() -> str:
        return "/".join(chance.choice("abcd") for _ in range(chance.randint(1, 3)))

    def anew() -> str:
        it = name()
        return f"rm -rf {it}; mkdir -p {it}; echo n > {it}/e"

    kinds = [
        lambda: f"rm -rf {name()}", lambda: f"mkdir -p {name()}", lambda: f"echo {chance.random()} > {name()}",
        lambda: f"echo more >> {name()}", anew, lambda: f"mv {name()} {name()}",
        lambda: f"ln -sfn {name()} {name()}", lambda: f"chmod {chance.choice(('700', '750', '755'))} {name()}",
        lambda: f"rm -f {name()}/e", lambda: "ls -R > /dev/null",
    ]  # fmt: skip
    return "{ " + "\n".join(f"{chance.choice(kinds)()}" for _ in range(length)) + "\n} 2> /dev/null"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(int(os.environ.get("FUMEHOOD_STORIES", "6"))))
def test_a_story_with_checkpoints_ends_as_it_does_without(going, project, test_directory, seed):
    chance = random.Random(seed)
    first, *parts = [story(chance, 15), *(story(chance, 8) for _ in range(3))]
    plain = test_directory / "plain"
    plain.mkdir()
    for each in (first, *parts):
        subprocess.run(["sh", "-c", each], cwd=plain, check=False)
    subprocess.run(["sh", "-c", first], cwd=project, check=False)
    before = snapshot(project)
    command = going(*parts, "true")
    for _ in parts:
        command.part()
        if chance.random() < 0.8:
            assert command.checkpoint().state in ("applied", "empty")
    end = command.ended()
    assert end.state in ("applied", "empty")
    assert without_times(project) == without_times(plain)
    while any(run.state == "applied" and run.act != "undo" for run in command.sandbox.history()):
        command.sandbox.undo()
    assert snapshot(project) == before


def without_times(top: Path) -> dict[str, tuple[object, ...]]:
    entries: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        entries[str(path.relative_to(top))] = (0 if path.is_symlink() else status.st_mode, content)
    return entries


def test_who_asked_for_a_checkpoint_may_be_gone_when_it_is_made(
    going: Callable[..., Going], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = going("echo one > one", "echo two > two")
    command.part()
    mark = Path(command.sandbox._store.places.checkpoint_mark(command.run.run))
    make = Checkpoints.make

    def make_meanwhile(checkpoints: Checkpoints, init: int, name: str = "") -> bool:
        is_made = make(checkpoints, init, name)
        mark.unlink()  # by Ctrl-C
        return is_made

    monkeypatch.setattr(Checkpoints, "make", make_meanwhile)
    command.checkpoint()
    assert command.ended().state == "applied"
    assert ((project / "one").read_text(), (project / "two").read_text()) == ("one\n", "two\n")


def test_several_may_stop_one_command(going: Callable[..., Going]) -> None:
    command = going("trap '' INT", "echo never")
    command.part()
    run = command.run.run
    with ThreadPoolExecutor(2) as threads:
        reports = [threads.submit(command.sandbox.stop, run) for _ in range(2)]
        assert [report.result(LONG_S).run for report in reports] == [run, run]
    assert command._report.result(LONG_S).run == run


def test_a_command_whose_checkpoints_are_undone_says_why_there_is_nothing_more_to_undo(
    going: Callable[..., Going], project: Path
) -> None:
    command = going("echo one > one", "echo two > two", "true")
    command.part()
    checkpoint = command.checkpoint()
    command.part()
    run = command.sandbox.stop(command.run)
    command.sandbox.undo(checkpoint)
    with pytest.raises(BadRequest, match=f"run {run.number} changed nothing in the project"):
        command.sandbox.undo(run)
    assert not list(project.iterdir())
