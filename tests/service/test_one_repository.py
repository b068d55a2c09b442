"""A repository moves as one: HEAD, its refs and the index are applied together, or wait together."""

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import need
from fumehood import Run, Sandbox
from fumehood.service.store import Store

pytestmark = pytest.mark.namespaces

STATE = (".git/HEAD", ".git/index", ".git/refs", ".git/logs", ".git/packed-refs")


@pytest.fixture
def repository(home: Path, project: Path) -> Path:
    need(shutil.which("git") is not None, "there is no git")
    for words in (
        ["init", "-q", "-b", "main"], ["config", "user.name", "Ada"], ["config", "user.email", "ada@example.org"],
        ["commit", "-q", "--allow-empty", "-m", "first"],
    ):  # fmt: skip
        git(project, *words)
    return project


def git(project: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=project, check=True, capture_output=True, text=True).stdout


def verdicts(run: Run) -> set[str]:
    """What became of the repository's state."""
    return {change.verdict for change in run.changes if change.path.startswith(STATE) and change.kind != "directory"}


def is_sound(project: Path) -> bool:
    """Whether nothing is staged that no agent was let stage, and every object is there."""
    staged = git(project, "diff", "--cached", "--name-status").split()
    return git(project, "fsck", "--no-dangling") == "" and "D" not in staged


def test_a_commit_over_a_held_index_waits_with_it(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        first = sandbox.run("echo a > a; git add a", apply="hold")
        second = sandbox.run("echo b > b; git add b; git commit -qm b")
        assert verdicts(second) == {"held"}
        assert git(repository, "log", "--format=%s").split() == ["first"]
        assert is_sound(repository)
        sandbox.apply(first)
        sandbox.apply(second)
    assert git(repository, "log", "--format=%s").split() == ["b", "first"]
    assert git(repository, "ls-files").split() == ["a", "b"]
    assert git(repository, "status", "--porcelain") == ""
    assert is_sound(repository)


def test_undo_leaves_objects_that_a_person_has_built_on(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        added = sandbox.run("echo a > a; git add a")
        git(repository, "commit", "-qm", "a person's, of what an agent has staged")
        committed = sandbox.run("echo b > b; git add b; git commit -qm b")
        git(repository, "branch", "keep")
        sandbox.undo(committed)
        assert is_sound(repository)
        assert git(repository, "show", "keep:b") == "b\n"
        assert not (repository / "b").exists()
        sandbox.redo(committed)
        assert is_sound(repository)
        assert git(repository, "rev-parse", "HEAD") == git(repository, "rev-parse", "keep")
        sandbox.undo(committed)
        sandbox.undo(added, force=True)
        assert git(repository, "show", "HEAD:a") == "a\n"
        assert git(repository, "fsck", "--no-dangling") == ""
        assert {run.state for run in sandbox.history() if run.run in (added.run, committed.run)} == {"undone"}


def test_undo_takes_objects_out_that_nobody_needs(repository: Path) -> None:
    before = sorted(path for path in (repository / ".git/objects").rglob("*"))
    with Sandbox(repository) as sandbox:
        for number in range(3):
            sandbox.run(f"git checkout -q -b b{number}; echo {number} > f; git add f; git commit -qm {number}")
        sandbox.run("git worktree add -q beside; cd beside; echo w > w; git add w; git commit -qm w")
        git(repository, "status")
        for run in sandbox.history()[:4]:
            sandbox.undo(run)
    assert sorted(path for path in (repository / ".git/objects").rglob("*")) == before


LONG_AGO, LONG_AFTER = 1_000_000_000, 4_000_000_000


def test_no_clock_says_which_objects_are_needed(repository: Path) -> None:
    os.utime(repository / ".git/refs/heads/main", (LONG_AFTER, LONG_AFTER))
    git(repository, "branch", "other")
    os.utime(repository / ".git/refs/heads/other", (LONG_AFTER, LONG_AFTER))
    before = sorted((repository / ".git/objects").rglob("*"))
    with Sandbox(repository) as sandbox:
        run = sandbox.run("git switch -qc topic; echo b > b; git add b; git commit -qm b")
        sandbox.undo(run)
        assert sorted((repository / ".git/objects").rglob("*")) == before
        sandbox.redo(run)
        git(repository, "branch", "keep")
        os.utime(repository / ".git/refs/heads/keep", (LONG_AGO, LONG_AGO))
        sandbox.undo(run)
        assert git(repository, "show", "keep:b") == "b\n"
        assert is_sound(repository)


def test_what_a_person_built_on_is_needed_also_when_more_of_the_run_is_applied_later(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        run = sandbox.run("git switch -qc topic; echo b > b; git add b; git commit -qm b; echo x > .envrc")
        assert {change.verdict for change in run.changes if change.path == ".envrc"} == {"held"}
        git(repository, "branch", "keep")
        sandbox.apply(run)
        sandbox.undo(run)
        assert git(repository, "show", "keep:b") == "b\n"
        assert is_sound(repository)


def test_a_branch_that_is_made_over_a_held_index_waits_too(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        sandbox.run("echo a > a; git add a", apply="hold")
        assert verdicts(sandbox.run("git branch topic")) == {"held"}
        assert verdicts(sandbox.run("echo x > beside")) == set()
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]


def test_a_repository_whose_directory_is_a_root_of_its_own_waits_as_one(
    store: Store, repository: Path, test_directory: Path
) -> None:
    tree = test_directory / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    store.projects.add_root(store.projects.open(str(tree)), str(repository / ".git"))
    with Sandbox(tree) as sandbox:
        first = sandbox.run("echo a > a; git add a", apply="hold")
        second = sandbox.run("echo b > b; git add b; git commit -qm b")
        of_state = [change for change in second.changes if re.search(r"(^|/)(HEAD|index|refs/.*)$", change.path)]
        assert len(of_state) >= 3
        assert {change.verdict for change in of_state} == {"held"}, of_state
        assert git(tree, "log", "--format=%s").split() == ["first"]
        sandbox.apply(first)
        sandbox.apply(second)
    assert git(tree, "log", "--format=%s").split() == ["b", "first"]
    assert git(tree, "status", "--porcelain") == ""


COMMANDS = {
    "add": "echo a > a; git add a",
    "commit": "echo b > b; git add b; git commit -qm b",
    "branch": "git switch -qc topic",
    "remove": "git rm -q kept; git commit -qm gone",
}


@pytest.mark.parametrize("held", COMMANDS)
def test_in_every_order_of_runs_the_repository_stays_whole(repository: Path, held: str) -> None:
    (repository / "kept").write_text("kept\n")
    git(repository, "add", "kept")
    git(repository, "commit", "-qm", "kept")
    others = [name for name in COMMANDS if name != held]
    order = next(itertools.permutations(others))
    with Sandbox(repository) as sandbox:
        sandbox.run(COMMANDS[held], apply="hold")
        for name in order:
            run = sandbox.run(COMMANDS[name])
            assert len(verdicts(run)) <= 1, (name, run.changes)
            assert is_sound(repository)
        for run in reversed(sandbox.history()):
            if run.state == "held":
                sandbox.apply(run)
            assert is_sound(repository)
    assert git(repository, "status", "--porcelain") == ""
