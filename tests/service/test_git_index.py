"""A git index is a cache of times: what only refreshes it is no change, no conflict, and in no undo's way."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import need
from fumehood import Run, Sandbox, UndoRefused
from fumehood.service import apply as applying

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

TIMES = itertools.count(1_000_000_000)
NAMED = "-c user.name=a -c user.email=a@b"
COMMIT = "echo more >> a && git add a && git commit -qm agent"


class Repository:
    """A person's project, and what they do in it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        top.mkdir(exist_ok=True)
        self.git("init", "-q")
        self.git("config", "user.name", "a")
        self.git("config", "user.email", "a@b")
        self.git("config", "gc.auto", "0")
        for name in ("a", "b", "c"):
            (top / name).write_text(f"{name}\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.top, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refresh(self) -> None:
        """Have `git status` write the index anew: a file has another time, and nothing else is new."""
        index = Path(self.top, self.git("rev-parse", "--git-dir").strip(), "index")
        before = index.read_bytes()
        os.utime(self.top / "c", (1e9, next(TIMES)))
        self.git("status")
        assert index.read_bytes() != before, "it was not refreshed"

    def is_sound(self) -> bool:
        self.git("fsck", "--strict")
        return self.git("status", "--porcelain") == ""


@pytest.fixture(params=["one file system", "two file systems"])
def repository(request: pytest.FixtureRequest, home: Path, project: Path) -> Repository:
    """A repository beside our state, and one that is on another file system."""
    need(shutil.which("git") is not None, "git is not here")
    if request.param == "one file system":
        return Repository(project)
    other: Path = request.getfixturevalue("other_filesystem")
    return Repository(other / "project")


@pytest.fixture
def sandbox(repository: Repository) -> Iterator[Sandbox]:
    """A sandbox on the repository."""
    with Sandbox(repository.top) as sandbox:
        yield sandbox


def paths(run: Run) -> set[str]:
    return {change.path for change in run.changes}


def in_the_meantime(sandbox: Sandbox, command: str, act: Callable[[], object]) -> Run:
    """Run a command, and do something in the project while it runs.

    It prints more than a pipe holds before it goes on, and nobody reads that until the other thing is done.
    """
    begun: list[str] = []

    def notice(_stream: str, text: str) -> None:
        begun.append(text)
        if len(begun) == 1:
            act()

    return sandbox.run(f"head -c 300000 /dev/zero | tr '\\0' x; {command}", on_output=notice)


def test_a_command_that_only_refreshes_the_index_changes_nothing(sandbox: Sandbox, repository: Repository) -> None:
    os.utime(repository.top / "c", (1e9, 1e9))
    before = (repository.top / ".git/index").read_bytes()
    run = sandbox.run("git status")
    assert (run.state, run.changes) == ("empty", ())
    assert (repository.top / ".git/index").read_bytes() == before


def test_what_was_only_refreshed_is_not_held_either(sandbox: Sandbox, repository: Repository) -> None:
    os.utime(repository.top / "c", (1e9, 1e9))
    run = sandbox.run("git status; touch new", apply="hold")
    assert paths(run) == {"new"}
    repository.git("add", "c")
    (repository.top / "c").write_text("staged\n")
    repository.git("add", "c")
    assert sandbox.run("git diff --cached --name-only").stdout == "c\n", "the person's own index is seen"


@pytest.mark.parametrize("way", ["", "fuse", "copy"], indirect=True)
def test_every_way_of_capturing_drops_a_refresh(way: str, repository: Repository) -> None:
    from fumehood.core.policy import Policy

    os.utime(repository.top / "c", (1e9, 1e9))
    with Sandbox(repository.top, policy=Policy(capture=way)) as sandbox:
        assert sandbox.run("git status").state == "empty"


def test_undo_takes_a_commit_back_after_a_persons_git_status(sandbox: Sandbox, repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    run = sandbox.run(COMMIT)
    assert run.state == "applied"
    repository.refresh()
    back = sandbox.undo(run)
    assert repository.git("rev-parse", "HEAD") == first
    assert repository.is_sound()
    repository.refresh()
    sandbox.undo(back)
    assert repository.git("log", "--format=%s").split() == ["agent", "first"]
    assert repository.is_sound()
    repository.refresh()
    sandbox.undo(sandbox.history(1)[0])
    assert repository.git("rev-parse", "HEAD") == first
    assert repository.is_sound()


def test_undo_takes_a_new_repository_back_after_its_index_was_written_anew(
    sandbox: Sandbox, repository: Repository
) -> None:
    run = sandbox.run(f"git init -q sub && cp a sub/c && cd sub && git add c && git {NAMED} commit -qm x")
    index = repository.top / "sub/.git/index"
    before = index.read_bytes()
    at(repository.top / "sub").git("read-tree", "HEAD")  # forgets the times: no file of the run's is touched
    assert index.read_bytes() != before
    sandbox.undo(run)
    assert not (repository.top / "sub").exists()


def test_undo_is_refused_where_a_person_staged_something(sandbox: Sandbox, repository: Repository) -> None:
    run = sandbox.run(COMMIT)
    (repository.top / "b").write_text("staged\n")
    repository.git("add", "b")
    with pytest.raises(UndoRefused, match=r"\.git/index"):
        sandbox.undo(run)
    assert repository.git("diff", "--cached", "--name-only") == "b\n"


def test_a_persons_git_status_while_a_commit_runs_is_no_conflict(sandbox: Sandbox, repository: Repository) -> None:
    run = in_the_meantime(sandbox, COMMIT, repository.refresh)
    assert run.state == "applied", run.for_model()
    assert repository.is_sound()
    repository.refresh()
    sandbox.undo(run)
    assert repository.git("log", "--format=%s") == "first\n"
    assert repository.is_sound()


def test_a_persons_git_status_right_before_the_swap_is_no_conflict(
    sandbox: Sandbox, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = applying.find_files_in_use

    def ask_and_refresh(*arguments: Any, **options: Any) -> Any:
        busy = ask(*arguments, **options)
        repository.refresh()
        return busy

    monkeypatch.setattr(applying, "find_files_in_use", ask_and_refresh)
    run = sandbox.run(COMMIT)
    assert run.state == "applied"
    assert repository.is_sound()
    monkeypatch.undo()
    assert sandbox.undo(run).state == "applied"
    assert repository.is_sound()


def test_an_index_is_not_swapped_while_git_is_about_to_replace_it(
    sandbox: Sandbox, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = repository.top / ".git/index.lock"
    waits: list[float] = []

    def wait(seconds: float) -> None:
        """Let git finish, the second time."""
        waits.append(seconds)
        if len(waits) == 2:
            lock.unlink()

    monkeypatch.setattr(applying.time, "sleep", wait)
    monkeypatch.setattr(applying, "_MAX_WAITS", 3)
    run = sandbox.run(COMMIT)
    assert (run.state, waits) == ("applied", [])
    lock.write_bytes(b"")
    assert sandbox.undo(run).state == "applied"
    assert len(waits) == 2
    lock.write_bytes(b"")
    with pytest.raises(UndoRefused, match=r"index.lock"):
        sandbox.redo()
    lock.unlink()
    assert repository.is_sound()
    assert sandbox.redo().state == "applied"
    assert repository.is_sound()


def test_what_a_person_stages_while_a_commit_runs_is_a_conflict(sandbox: Sandbox, repository: Repository) -> None:
    def stage() -> None:
        (repository.top / "b").write_text("staged\n")
        repository.git("add", "b")

    run = in_the_meantime(sandbox, COMMIT, stage)
    assert {change.path for change in run.changes if change.verdict == "conflict"} >= {".git/index"}
    assert repository.git("diff", "--cached", "--name-only") == "b\n"
    assert repository.git("log", "--format=%s") == "first\n", "refs and index share their fate"


def test_a_git_status_beside_what_a_person_stages_changes_nothing(sandbox: Sandbox, repository: Repository) -> None:
    def stage() -> None:
        (repository.top / "b").write_text("staged\n")
        repository.git("add", "b")

    os.utime(repository.top / "c", (1e9, 1e9))
    run = in_the_meantime(sandbox, "git status", stage)
    assert (run.state, run.changes) == ("empty", ())
    assert repository.git("diff", "--cached", "--name-only") == "b\n"


def test_runs_at_once_of_which_one_asks_for_the_status_do_not_conflict(
    sandbox: Sandbox, repository: Repository
) -> None:
    os.utime(repository.top / "c", (1e9, 1e9))
    applied: list[Run] = []
    asking = in_the_meantime(sandbox, "git status", lambda: applied.append(sandbox.run(COMMIT)))
    assert asking.state == "empty"
    assert applied[0].state == "applied"
    os.utime(repository.top / "b", (1e9, 1e9))
    run = in_the_meantime(sandbox, f"{COMMIT} --amend", lambda: sandbox.run("git status"))
    assert run.state == "applied", run.for_model()
    assert repository.is_sound()


def test_a_held_commit_is_applied_after_a_persons_git_status(sandbox: Sandbox, repository: Repository) -> None:
    run = sandbox.run(COMMIT, apply="hold")
    repository.refresh()
    assert sandbox.apply(run).state == "applied"
    assert repository.is_sound()
    repository.refresh()
    sandbox.undo(run)
    assert repository.git("log", "--format=%s") == "first\n"


def test_a_held_commit_meets_what_a_person_staged(sandbox: Sandbox, repository: Repository) -> None:
    run = sandbox.run(COMMIT, apply="hold")
    (repository.top / "b").write_text("staged\n")
    repository.git("add", "b")
    sandbox.apply(run)
    assert sandbox.find(run.id).state == "held"
    assert repository.git("diff", "--cached", "--name-only") == "b\n"


def test_the_index_of_a_work_tree_beside_is_known_by_its_meaning_too(
    sandbox: Sandbox, repository: Repository
) -> None:
    """A linked work tree inside the project: its index lies in the main one's git directory."""
    repository.git("worktree", "add", "-q", "beside")
    there = at(repository.top / "beside")
    run = in_the_meantime(sandbox, f"cd beside && {COMMIT}", there.refresh)
    assert run.state == "applied", run.for_model()
    there.refresh()
    sandbox.undo(run)
    assert there.git("log", "--format=%s") == "first\n"


def test_a_file_called_index_that_is_none_is_a_file_like_others(sandbox: Sandbox, repository: Repository) -> None:
    (repository.top / "index").write_text("one\n")
    run = sandbox.run("echo two > index")
    assert paths(run) == {"index"}
    (repository.top / "index").write_text("six\n")
    with pytest.raises(UndoRefused):
        sandbox.undo(run)


def at(top: Path) -> Repository:
    """A repository that is there already."""
    made = Repository.__new__(Repository)
    made.top = top
    return made


@pytest.mark.long
def test_a_lock_of_a_git_that_was_ended_with_its_command_locks_nobody_out(
    sandbox: Sandbox, repository: Repository
) -> None:
    stuck = """echo x >> b; GIT_EDITOR='sh -c "kill -KILL $PPID"' git commit -qa; echo x > Cargo.lock"""
    run = sandbox.run(f"{stuck}; mkdir lib.git; echo x > lib.git/Cargo.lock; sleep 60", timeout=2)
    verdicts = {change.path: change.verdict for change in run.changes}
    assert verdicts[".git/index.lock"] == "discarded"
    assert verdicts["b"] == verdicts["Cargo.lock"] == verdicts["lib.git/Cargo.lock"] == "held"
    assert sandbox.run("git add b && git commit -qm later").exit_code == 0
    sandbox.discard(sandbox.history()[0])
    sandbox.discard(run)
    assert sandbox.run(stuck).state == "applied"
    assert sorted(repository.top.glob("**/*.lock")) == [repository.top / "Cargo.lock"]
    repository.git("commit", "-qam", "by a person")
