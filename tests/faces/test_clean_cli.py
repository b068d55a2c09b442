"""`fumehood clean`: it cleans what it names, says what can't be undone then, and asks a person."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from at_terminal import Terminal
from conftest import command_line
from fumehood import Sandbox
from fumehood.service.store import Store
from passing_days import pass_days

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def other(test_directory: Path) -> Path:
    path = test_directory / "other"
    path.mkdir()
    return path


@pytest.fixture
def runs(project: Path, other: Path, store: Store) -> dict[Path, str]:
    """One run with backups in each of two projects, long ago."""
    found = {}
    for each in (project, other):
        (each / "a").write_bytes(os.urandom(10_000))
        with Sandbox(each) as sandbox:
            found[each] = sandbox.run("echo new > a; yes | head -c 100000").run
    pass_days(store, 31)
    return found


def kept(store: Store) -> set[str]:
    return set(os.listdir(f"{store.places.state}/runs"))


def test_only_the_project_that_is_named_is_cleaned(
    runs: dict[Path, str], cli: Cli, project: Path, other: Path, store: Store, edited: Path
) -> None:
    done = cli("clean", "--project", other, cwd=project)
    assert "1 run's backups, 1 daily backup, 1 output" in done.stdout
    assert f"can no longer be undone: {runs[other][:16]}\n  #1  echo new > a; yes | head -c 100000\n" in done.stdout
    assert kept(store) == {runs[project]}
    assert len(os.listdir(edited)) == 1
    assert os.listdir(f"{store.places.state}/outputs") == [f"{runs[project]}.stdout"]
    assert cli("undo", runs[project]).returncode == 0


def test_without_a_name_it_is_the_project_around_here_and_all_is_all(
    runs: dict[Path, str], cli: Cli, project: Path, other: Path, store: Store
) -> None:
    cli("clean", cwd=project)
    assert kept(store) == {runs[other]}
    done = cli("clean", "--all", "--yes", cwd=project)
    assert f"\n  #1  echo new > a; yes | head -c 100000  in {other}\n" in done.stdout
    assert kept(store) == set()
    assert "can't be used together" in cli("clean", "--all", "--project", other).stderr


def test_a_dry_run_tells_and_removes_nothing(
    runs: dict[Path, str], cli: Cli, project: Path, store: Store, edited: Path
) -> None:
    shown = cli("clean", "--dry-run").stdout
    assert shown.startswith("would remove 1 run's backups, 1 daily backup, 1 output")
    assert f"could no longer be undone: {runs[project][:16]}" in shown
    found = json.loads(cli("clean", "--dry-run", "--json").stdout)
    assert (found["runs"], found["not_undoable"], found["is_done"]) == (1, [runs[project]], False)
    assert found["bytes"] >= 110_000
    assert kept(store) == set(runs.values())
    assert len(os.listdir(edited)) == 2
    assert json.loads(cli("clean", "--json").stdout)["bytes"] == found["bytes"]


@pytest.mark.parametrize(("answer", "stays"), [("n", True), ("", True), ("y", False)])
def test_a_person_at_a_terminal_is_asked(
    answer: str, stays: bool, runs: dict[Path, str], project: Path, store: Store
) -> None:
    with Terminal([*command_line(), "clean"], project) as screen:
        screen.wait_for("go on? [y/N]")
        assert "could no longer be undone" in screen.seen
        screen.type(f"{answer}\n")
        assert screen.end() == int(stays)
    assert (runs[project] in kept(store)) is stays


def test_what_was_typed_before_the_question_or_is_another_word_removes_nothing(
    runs: dict[Path, str], project: Path, store: Store
) -> None:
    with Terminal([*command_line(), "clean"], project) as screen:
        screen.type("y\ny\n")
        screen.wait_for("go on? [y/N]")
        screen.type("clear\ny\n")
        screen.wait_for("one of: y, yes, n, no")
        screen.type("\n")
        assert screen.end() == 1
    assert runs[project] in kept(store)


def test_the_log_says_what_was_cleaned_and_which_runs_that_concerns(
    runs: dict[Path, str], cli: Cli, project: Path, other: Path
) -> None:
    cli("run", "--", "true")
    cli("clean", "--all")
    cli("run", "--", "echo later > b")
    lines = cli("log").stdout.splitlines()
    assert [("later" in line, "removed 2 runs' backups" in line, "cleaned away" in line) for line in lines] == [
        (True, False, False), (False, True, False), (False, False, False), (False, False, True)
    ]  # fmt: skip
    assert "removed" not in cli("log", "--session", "nobody").stdout


def test_a_run_after_which_backups_were_cleaned_says_so(
    runs: dict[Path, str], cli: Cli, project: Path, store: Store
) -> None:
    cli("run", "--", "true")
    lock = store.places.lock("clean")
    os.utime(lock, (1, 1))
    done = cli("run", "--", "echo out")
    assert done.stdout == "out\n"
    assert "fumehood: removed 2 runs' backups" in done.stderr
    assert kept(store) == set()
