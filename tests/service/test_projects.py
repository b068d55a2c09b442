"""A project is a directory and not a path: made again, moved, copied, restored."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from fumehood import BadRequest, FumehoodError, Sandbox
from fumehood.linux import libc
from fumehood.service.recover import recover
from fumehood.store import database
from fumehood.store.database import MIGRATIONS, Database
from fumehood.store.places import places
from fumehood.store.projects import Identity, Projects, identity_of

pytestmark = pytest.mark.once


@pytest.fixture
def worked(home, project):
    """A project with a run that was applied and one that is held."""
    (project / "a").write_text("old")
    with Sandbox(project) as sandbox:
        applied = sandbox.run("echo new > a")
        held = sandbox.run("echo held > b", apply="hold")
    return applied.run, held.run


def make_again(project: Path) -> None:
    """Remove a directory and make another at its path; file times may be too coarse to tell the two apart at once."""
    before = identity_of(str(project))
    shutil.rmtree(project)
    project.mkdir()
    while before is not None and before.born and identity_of(str(project)).born == before.born:
        project.rmdir()
        project.mkdir()


# --- which directory it is ---


def test_a_directory_is_another_by_its_birth_or_by_its_inode_on_the_same_device():
    born = Identity(device=1, inode=2, born=3)
    assert born.was_replaced_by(Identity(device=1, inode=2, born=4))
    assert born.was_replaced_by(Identity(device=1, inode=5, born=3))  # made at the same tick of the clock
    assert not born.was_replaced_by(Identity(device=9, inode=8, born=3))
    unborn = Identity(device=1, inode=2, born=0)
    assert unborn.was_replaced_by(Identity(device=1, inode=3, born=0))
    # Inodes and devices are new at each mount of some file systems.
    assert not unborn.was_replaced_by(Identity(device=5, inode=3, born=0))
    assert unborn.is_same_as(Identity(device=1, inode=2, born=0))
    assert not unborn.is_same_as(Identity(device=5, inode=2, born=0))
    assert born.is_same_as(Identity(device=5, inode=2, born=3))
    assert not born.is_same_as(Identity(device=1, inode=7, born=3))


def test_the_birth_of_a_directory_is_what_stat_says(project):
    told = subprocess.run(["stat", "-c", "%W", project], check=True, capture_output=True, text=True).stdout
    found = identity_of(str(project))
    assert found is not None
    assert found.born // 1_000_000_000 == (0 if libc.is_overlay(os.fsencode(project)) else int(told))
    os.rename(project, f"{project}-moved")
    assert identity_of(f"{project}-moved") == found
    assert identity_of(str(project)) is None


# --- made again ---


@pytest.mark.namespaces
def test_a_project_that_was_made_again_starts_fresh_and_is_told_once(cli, project, worked):
    applied, held = worked
    make_again(project)
    first = cli("run", "--", "ls; echo x > x")
    assert first.stdout == ""
    assert f"another directory was at {project} before: its 2 runs, 1 of them held" in first.stderr
    assert "fumehood projects" in first.stderr
    second = cli("log", "--json")
    assert second.stderr == ""
    assert applied not in second.stdout
    listed = json.loads(cli("projects", "list", "--json").stdout)["projects"]
    assert [(each["id"], each["path"], each["runs"], each["held"]) for each in listed] == [
        (1, str(project), 2, 1), (2, str(project), 1, 0),
    ]  # fmt: skip
    assert cli("show", held).returncode == 0
    assert "+held" in cli("diff", held).stdout
    for words in (("undo", applied), ("apply", held), ("discard", held)):
        refused = cli(*words)
        assert refused.returncode == 125
        assert f"belongs to the directory that was at {project} before" in refused.stderr
    assert os.listdir(project) == ["x"]


def test_one_without_a_run_that_was_made_again_has_none_to_keep(cli, project, store):
    store.projects.open(str(project))
    make_again(project)
    assert f"another directory was at {project} before: its records are kept as project 1" in cli("log").stderr


@pytest.mark.namespaces
def test_the_line_that_takes_one_for_the_same_can_be_typed(cli, test_directory):
    spaced = test_directory / "with space"
    spaced.mkdir()
    cli("run", "--", "echo 1 > a", cwd=spaced)
    make_again(spaced)
    notice = cli("run", "--", "true", cwd=spaced).stderr
    line = shlex.split(notice.splitlines()[0].rpartition("fumehood projects ")[2])
    assert cli("projects", *line, cwd=test_directory).returncode == 0
    assert "echo 1 > a" in cli("log", cwd=spaced).stdout


@pytest.mark.namespaces
def test_kept_answers_and_sessions_end_with_the_directory(home, project, store):
    with Sandbox(project, session="work") as sandbox:
        sandbox.run("true")
    key = ("unsandboxed", str(project), "make")
    store.grants.keep(key, "allow")
    make_again(project)
    with Sandbox(project, session="work") as sandbox:
        assert len(sandbox.notices) == 1
        assert sandbox.run("echo x > x").state == "applied"
    assert store.grants.find(key) is None


@pytest.mark.namespaces
def test_one_restored_from_a_backup_can_be_taken_for_the_same(cli, project, worked):
    applied, held = worked
    shutil.copytree(project, f"{project}-backup", symlinks=True)
    shutil.rmtree(project)
    os.rename(f"{project}-backup", project)
    assert "projects move 1" in cli("log").stderr
    moved = cli("projects", "move", "1", project)
    assert moved.returncode == 0, moved.stderr
    assert cli("run", "--", "cat b").stdout == "held\n"
    assert cli("apply", held).returncode == 0
    assert (project / "b").read_text() == "held\n"
    undone = cli("undo", applied)
    assert undone.returncode == 0, undone.stderr
    assert (project / "a").read_text() == "old"


# --- moved ---


@pytest.mark.namespaces
@pytest.mark.parametrize("path", ["moved", "elsewhere/by another name"])
def test_a_project_that_was_moved_keeps_its_history_its_holds_and_undo(cli, project, test_directory, worked, path):
    applied, held = worked
    new = test_directory / path
    new.parent.mkdir(exist_ok=True)
    os.rename(project, new)
    first = cli("run", "--", "cat a b", cwd=new)
    assert first.stdout == "new\nheld\n"
    assert f"this project was at {project} before" in first.stderr
    assert cli("log", cwd=new).stderr == ""
    told = json.loads(cli("show", applied, "--json", cwd=new).stdout)
    assert told["project"] == str(new)
    assert {change["root"] for change in told["changes"]} == {str(new)}
    assert cli("apply", held, cwd=new).returncode == 0
    assert (new / "b").read_text() == "held\n"
    assert cli("undo", held, cwd=new).returncode == 0
    assert cli("undo", applied, cwd=new).returncode == 0
    assert {entry.name: entry.read_text() for entry in new.iterdir()} == {"a": "old"}
    assert str(project) not in cli("files", "--json", cwd=new).stdout
    assert not project.exists()


@pytest.mark.namespaces
def test_a_project_that_is_moved_while_a_command_runs_keeps_what_it_wrote(cli, project, test_directory):
    elsewhere = test_directory / "elsewhere"
    with Sandbox(project) as sandbox, pytest.raises(FumehoodError, match="was moved or removed while it ran"):
        sandbox.run("echo new > a; echo moved?; sleep 0.1", on_output=lambda *_: os.rename(project, elsewhere))
    (run,) = json.loads(cli("log", "--json", cwd=elsewhere).stdout)["runs"]
    assert run["state"] == "held"  # at once, by the command that recognises it
    with Sandbox(elsewhere) as sandbox:
        (run,) = sandbox.history()
        sandbox.apply(run)
    assert (elsewhere / "a").read_text() == "new\n"


@pytest.mark.namespaces
def test_what_runs_in_a_project_that_is_made_again_meanwhile_leaves_the_new_one_alone(cli, project, test_directory):
    def made_again(*_):
        os.rename(project, test_directory / "elsewhere")
        project.mkdir()

    with Sandbox(project) as sandbox, pytest.raises(FumehoodError, match="another directory is at"):
        sandbox.run("echo new > a; echo moved?; sleep 0.1", on_output=made_again)
    assert list(project.iterdir()) == []
    assert cli("ps", "--all").stdout == "nothing runs\n"
    (run,) = json.loads(cli("log", "--json", cwd=test_directory / "elsewhere").stdout)["runs"]
    assert run["state"] == "held"


def test_a_moved_project_is_recognised_from_inside_and_before_anything_runs(cli, project, worked):
    new = project.with_name("moved")
    os.rename(project, new)
    (new / "inside").mkdir()
    listed = cli("log", cwd=new / "inside")
    assert listed.stdout.startswith("#2")
    assert "before" in listed.stderr


@pytest.mark.namespaces
def test_its_extra_roots_and_kept_answers_go_with_a_moved_project(cli, project, test_directory, store):
    extra = test_directory / "extra"
    extra.mkdir()
    store.projects.add_root(store.projects.open(str(project)), str(extra))
    store.grants.keep(("network", str(project), "pypi.org"), "allow")
    config = Path(os.environ["XDG_CONFIG_HOME"], "fumehood/config.toml")
    config.parent.mkdir(exist_ok=True)
    config.write_text(f"# {project}\n")
    new = project.with_name("moved")
    os.rename(project, new)
    ran = cli("run", "--", f"echo x > {extra}/x", cwd=new)
    assert f"{config} names it by its former path" in ran.stderr
    assert (extra / "x").read_text() == "x\n"
    assert cli("undo", cwd=new).returncode == 0
    assert not (extra / "x").exists()
    assert store.grants.find(("network", str(new), "pypi.org")) == "allow"


@pytest.mark.namespaces
def test_a_project_whose_path_was_taken_at_once_is_found_again(cli, project, worked):
    new = project.with_name("moved")
    os.rename(project, new)
    project.mkdir()
    assert "another directory was at" in cli("run", "--", "true").stderr
    assert "this project was at" in cli("log", cwd=new).stderr
    assert cli("undo", worked[0], cwd=new).returncode == 0
    assert (new / "a").read_text() == "old"


@pytest.mark.namespaces
def test_a_copy_is_a_project_of_its_own(cli, project, worked):
    copy = project.with_name("copy")
    subprocess.run(["cp", "-a", project, copy], check=True)
    ran = cli("run", "--", "ls", cwd=copy)
    assert (ran.stdout, ran.stderr) == ("a\n", f"fumehood: project {copy} (new)\n")
    assert cli("run", "--", "ls").stdout == "a\nb\n"


@pytest.mark.namespaces
def test_a_directory_that_is_seen_at_two_paths_is_not_taken_for_moved(project, test_directory, worked, store, need):
    other = test_directory / "other"
    other.mkdir()
    mounted = subprocess.run(["mount", "--bind", project, other], check=False, capture_output=True)
    need(mounted.returncode == 0 or os.geteuid() != 0, "nothing can be mounted here")
    if mounted.returncode:
        pytest.skip("an ordinary user can't bind directories here")
    try:
        assert store.projects.open(str(other)).id != store.projects.open(str(project)).id
        assert store.notices == []
    finally:
        subprocess.run(["umount", other], check=True)


@pytest.mark.namespaces
@pytest.mark.parametrize("session", [None, "s"])
def test_a_program_that_has_a_project_open_which_is_forgotten_goes_on_and_leaves_a_history(cli, project, session):
    with Sandbox(project, session=session) as sandbox:
        sandbox.run("echo old > a")
        assert cli("projects", "forget", project, "--yes").returncode == 0
        changed, held = sandbox.run("echo new > a"), sandbox.run("echo held > b", apply="hold")
        assert [run.run for run in sandbox.history()] == [held.run, changed.run]
        assert [run["run"] for run in json.loads(cli("log", "--json").stdout)["runs"]] == [held.run, changed.run]
        sandbox.undo(changed)
        assert (project / "a").read_text() == "old\n"
        assert sandbox.run("cat b").output == "held\n"


@pytest.mark.namespaces
def test_a_program_whose_project_was_forgotten_and_begun_anew_runs_nothing_there(cli, project):
    with Sandbox(project) as sandbox:
        sandbox.run("echo old > a")
        cli("projects", "forget", project, "--yes")
        cli("run", "--", "echo other > b")
        with pytest.raises(BadRequest, match="was forgotten, and has begun anew since"):
            sandbox.run("echo new > a")
    assert (project / "a").read_text() == "old\n"


# --- the list ---


@pytest.mark.namespaces
def test_a_project_is_forgotten_only_with_a_word(cli, project, worked, store):
    asked = cli("projects", "forget", project)
    assert asked.returncode == 125
    assert "1 run that could be undone, 1 held run" in asked.stderr
    assert cli("log").stdout.count("\n") == 2
    done = json.loads(cli("projects", "forget", project, "--yes", "--json").stdout)
    assert (done["undoable"], done["held"]) == (1, 1)
    assert json.loads(cli("projects", "--json").stdout) == {"projects": []}
    assert os.listdir(f"{store.places.state}/runs") == []
    assert (project / "a").read_text() == "new\n"
    assert cli("run", "--", "echo again > a").returncode == 0
    assert [each.id for each in store.projects.list_all()] == [2]


@pytest.mark.namespaces
def test_of_a_forgotten_project_nothing_is_left_that_stood_for_its_held_runs_and_drafts(home, project, cli):
    (project / "a").write_text("old")
    with Sandbox(project) as sandbox:
        for number in range(17):
            sandbox.run(f"echo held > {number}", apply="hold")
        sandbox.run("true")  # sees them as few trees
        sandbox.draft("line", frozen=True).run("echo new > a")
    state = Path(places().state)
    assert all(list((state / name).iterdir()) for name in ("folded", "drafts"))
    assert cli("projects", "forget", project, "--yes").returncode == 0
    assert [*(state / "folded").iterdir(), *(state / "drafts").iterdir(), *(state / "runs").iterdir()] == []


@pytest.mark.namespaces
def test_a_project_that_was_removed_while_something_was_applied_can_be_cleaned_and_forgotten(
    cli, project, worked, store
):
    store.history.set_state(worked[0], "applying")  # as where the machine has stopped then
    shutil.rmtree(project)
    beside = project.parent
    assert cli("clean", "--all", "--days", "0", "--yes", cwd=beside).returncode == 0
    assert worked[0] in os.listdir(f"{store.places.state}/runs")
    assert cli("projects", "forget", project, "--yes", cwd=beside).returncode == 0
    assert os.listdir(f"{store.places.state}/runs") == []
    project.mkdir()


@pytest.mark.namespaces
def test_what_died_in_a_project_that_is_forgotten_meanwhile_is_in_nobodys_way(cli, project, worked, store):
    store.history.set_state(worked[0], "applying")  # as where the machine has stopped then
    shutil.rmtree(project)
    unfinished = store.history.unfinished_runs()
    assert cli("projects", "forget", project, "--yes", cwd=project.parent).returncode == 0
    recover(store, unfinished)
    assert store.unsettled == {}
    project.mkdir()


def test_bad_words_are_refused(cli, project, store):
    for words in (("move",), ("move", "1"), ("forget",), ("forget", "77"), ("forget", "/nowhere"), ("paint", "x")):
        told = cli("projects", *words)
        assert told.returncode == 125, words
        assert "hint: " in told.stderr
    store.projects.open(str(project))
    assert cli("projects", "move", project, "/nowhere").returncode == 125
    with pytest.raises(BadRequest):
        store.projects.find("/nowhere")


# --- from before ---


def test_projects_of_an_older_database_are_known_by_their_paths_until_they_are_met(home, project, monkeypatch):
    path = places().database
    monkeypatch.setattr(database, "MIGRATIONS", MIGRATIONS[: MIGRATIONS.index(database._IDENTITIES)])
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO projects (id, path, added_at) VALUES (7, ?, 0)", (os.fsencode(project),))
    connection.close()
    monkeypatch.undo()
    notices: list[str] = []
    opened = Database(path)
    assert Projects(opened, places(), notices).open(str(project)).id == 7
    make_again(project)
    assert notices == []
    assert Projects(opened, places(), notices).open(str(project)).id == 8
    assert len(notices) == 1
    opened.close()
