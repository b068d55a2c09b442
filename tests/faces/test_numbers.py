"""Runs have a number in their project, for people: shown and taken wherever a run is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood import Sandbox, UndoRefused
from fumehood.service.opened import OpenedStore
from fumehood.service.recover import rebuild


def cli(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fumehood", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_runs_are_counted_in_each_project_and_named_by_number(project: Path, test_directory: Path) -> None:
    other = test_directory / "other"
    other.mkdir()
    for place in (project, other, project):
        done = cli(place, "run", "--", "echo x >> a")
        assert done.returncode == 0, done.stderr
    assert "#2" in cli(project, "log").stdout.splitlines()[0]
    assert [json.loads(cli(project, "show", name, "--json").stdout)["number"] for name in ("1", "#2")] == [1, 2]
    assert "fumehood undo 3" in cli(project, "run", "--", "echo y >> a").stderr
    assert cli(project, "undo", "3").returncode == 0
    assert (project / "a").read_text() == "x\nx\n"
    assert "there is no run 9" in cli(project, "undo", "9").stderr
    # From elsewhere, a number would mean another run: there the id is named.
    told = cli(other, "run", "--project", str(project), "--", "echo z >> a").stderr
    run = json.loads(cli(project, "show", "--json").stdout)
    assert f"fumehood undo {run['run']}" in told
    assert cli(other, "undo", "1").returncode == 0
    assert not (other / "a").exists()


def test_a_project_that_was_moved_shows_numbers_at_once(project: Path) -> None:
    cli(project, "run", "--hold", "--", "echo x > a")
    moved = project.rename(project.with_name("moved"))
    assert "waiting   #1  echo x > a" in cli(moved, "status").stdout


def test_a_refused_undo_takes_no_number(project: Path) -> None:
    with Sandbox(project) as sandbox:
        sandbox.run("echo a > a")
        (project / "a").write_text("mine")
        with pytest.raises(UndoRefused):
            sandbox.undo("1")
        assert [sandbox.run("echo b > b").number, sandbox.find("2").command] == [2, "echo b > b"]


def test_a_run_whose_record_was_lost_keeps_its_number(project: Path) -> None:
    (project / "a").write_text("before")
    with Sandbox(project) as sandbox:
        runs = [sandbox.run("true"), sandbox.run("echo new > a"), sandbox.run("echo newer > a")]
    state = OpenedStore().places.state
    for name in ("", "-wal", "-shm"):
        shutil.move(f"{state}/fumehood.db{name}", f"{state}/lost{name}")
    store, _ = rebuild(OpenedStore)
    store.close()
    with Sandbox(project) as sandbox:
        assert [sandbox.find(name).run for name in ("2", "3")] == [runs[1].run, runs[2].run]
        assert sandbox.run("true").number == 4
