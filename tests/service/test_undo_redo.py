"""Undo and redo as people mean them: the last run that stands, again the one before, and back."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import BadRequest, Sandbox, UndoRefused
from fumehood.service.overview import ChosenAct, perform
from fumehood.service.store import Store
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("act", ["undo", "discard"])
def test_a_run_that_is_forgotten_meanwhile_and_run_again_is_said_to_be_none(
    sandbox: Sandbox, store: Store, act: str
) -> None:
    run = store.history.find(sandbox.run("true").run)
    store.history.withdraw(run, "another changed what it changed")
    with pytest.raises(BadRequest, match=f"no run {run.run}"):
        perform(store, run, ChosenAct(act=act))


def test_undo_goes_back_run_by_run_and_redo_forth_again(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("0\n")
    runs = [sandbox.run(f"echo {number} > a") for number in (1, 2, 3)]
    for number, run in ((2, runs[2]), (1, runs[1]), (0, runs[0])):
        assert sandbox.undo().of == run.run
        assert (project / "a").read_text() == f"{number}\n"
    with pytest.raises(BadRequest, match="nothing is left to undo"):
        sandbox.undo()
    for number in (1, 2, 3):
        sandbox.redo()
        assert (project / "a").read_text() == f"{number}\n"
    with pytest.raises(BadRequest, match="nothing is left to redo"):
        sandbox.redo()
    assert {sandbox.find(run.run).state for run in runs} == {"applied"}
    sandbox.undo()
    assert (project / "a").read_text() == "2\n"
    sandbox.redo()
    assert (project / "a").read_text() == "3\n"


def test_what_changed_nothing_is_passed_over(sandbox: Sandbox, project: Path) -> None:
    (project / "b").write_text("old")
    sandbox.run("echo 1 > a")
    sandbox.run("echo new > b; echo held > c", apply="hold")
    sandbox.run("true")
    sandbox.run("echo no > d", apply="discard")
    with pytest.raises(BadRequest):
        sandbox.run("true", cwd="/nowhere/at/all")
    sandbox.undo()
    assert not (project / "a").exists()


def test_what_was_only_partly_taken_back_is_next(sandbox: Sandbox, project: Path) -> None:
    run = sandbox.run("echo 1 > a; echo 1 > b")
    sandbox.undo(run, "a")
    sandbox.undo()
    assert list(project.iterdir()) == []
    assert sandbox.find(run.run).state == "undone"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1,), (0, 2)])
def test_what_was_taken_back_in_pieces_stands_again_piece_by_piece(
    sandbox: Sandbox, project: Path, order: tuple[int, ...]
) -> None:
    run = sandbox.run("for each in a b c; do echo 1 > $each; done")
    backs = [sandbox.undo(run, name) for name in "abc"]
    assert sandbox.find(run.run).state == "undone"
    for count, number in enumerate(order, 1):
        sandbox.redo(backs[number])
        assert sorted(path.name for path in project.iterdir()) == sorted("abc"[each] for each in order[:count])
        again = sandbox.find(run.run)
        standing = {change.path for change in again.changes if change.verdict == "applied"}
        assert (again.state, standing) == ("applied", {"abc"[each] for each in order[:count]})
        assert (again.reason == "") == (count == 3)
    # All that stands goes with one undo, whichever way it came back.
    sandbox.undo(run)
    assert list(project.iterdir()) == []
    assert sandbox.find(run.run).state == "undone"
    sandbox.redo()
    assert sorted(path.name for path in project.iterdir()) == sorted("abc"[each] for each in order)
    sandbox.undo()
    assert list(project.iterdir()) == []
    with pytest.raises(BadRequest, match="nothing is left to undo"):
        sandbox.undo()


def test_a_run_that_is_named_is_meant_and_runs_are_counted_back(sandbox: Sandbox, project: Path) -> None:
    for name in "abc":
        sandbox.run(f"echo 1 > {name}")
    sandbox.undo("last~2")
    assert {path.name for path in project.iterdir()} == {"b", "c"}
    assert sandbox.find("last~1").command == "echo 1 > c"
    for name in ("last~9", "last~", "last~x", "last~99999999999999999999"):
        with pytest.raises(BadRequest, match="there is no run"):
            sandbox.find(name)


def test_a_run_is_redone_by_its_own_name_or_that_of_its_undo(sandbox: Sandbox, project: Path) -> None:
    first, second = sandbox.run("echo 1 > a"), sandbox.run("echo 2 > b")
    sandbox.undo(second)
    back = sandbox.undo(first)
    sandbox.redo(second)
    assert (project / "b").exists()
    assert not (project / "a").exists()
    sandbox.redo(back)
    assert (project / "a").exists()
    with pytest.raises(BadRequest, match="is not taken back"):
        sandbox.redo(first)


def test_a_refused_undo_leaves_no_run_and_names_who_is_in_the_way(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("old")
    first = sandbox.run("echo 1 > a")
    second = sandbox.run("echo 2 > a")
    before = [run.run for run in sandbox.history()]
    for _ in range(2):
        with pytest.raises(UndoRefused, match=f"by run {second.name}$") as refused:
            sandbox.undo(first)
        assert refused.value.hint.startswith(f"first: fumehood undo {second.name};")
    assert [run.run for run in sandbox.history()] == before
    assert sandbox.find("last").run == second.run
    assert (project / "a").read_text() == "2\n"


def test_a_refusal_names_neither_what_was_taken_back_nor_the_undo(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("old")
    first = sandbox.run("echo 1 > a")
    sandbox.run("echo 2 > a")
    sandbox.undo()
    (project / "a").write_text("mine")
    with pytest.raises(UndoRefused) as refused:
        sandbox.undo()
    assert refused.value.message == f"changed since run {first.name}: a"
    (project / "a").write_text("1\n")


def test_a_refusal_is_in_the_audit_trail(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo 1 > a")
    (project / "a").write_text("mine")
    with pytest.raises(UndoRefused):
        sandbox.undo()
    rows = sandbox._store.database.rows("SELECT detail FROM events WHERE act = 'refused'")
    assert len(rows) == 1
    assert rows[0][0].startswith(f"undo {run.name}: changed since")


def test_the_command_line_says_taken_back_and_how_to_have_it_again(cli: Cli, project: Path) -> None:
    cli("run", "--", "echo 1 > a; echo 1 > b")
    cli("run", "--", "true")
    back = cli("undo")
    assert back.stdout.startswith("fumehood: 2 changes taken back (2 deletions)\n")
    assert "to redo it: fumehood redo" in back.stdout
    assert "taken back" in cli("log").stdout
    forth = cli("redo")
    assert forth.stdout.startswith("fumehood: 2 changes brought back\n")
    assert "fumehood undo" in forth.stdout
    assert (project / "a").exists()
    assert cli("undo", "last").returncode == 0
    assert not (project / "a").exists()
    assert "nothing is left to undo" in cli("undo").stderr


def test_a_session_is_brought_back_as_it_was_taken_back(sandbox: Sandbox, cli: Cli, project: Path) -> None:
    agent = sandbox.session("agent")
    agent.run("echo 1 > a")
    sandbox.run("echo mine > b")
    agent.run("echo 2 > a")
    assert cli("undo", "--session", "agent").returncode == 0
    assert not (project / "a").exists()
    done = cli("redo", "--session", "agent")
    assert done.stdout.count("brought back") == 2, done.stderr
    assert (project / "a").read_text() == "2\n"
    assert "nothing of the session agent is left to redo" in cli("redo", "--session", "agent").stderr


def test_an_agent_redoes_its_own_undos_only(sandbox: Sandbox, project: Path) -> None:
    agent = sandbox.session("agent")
    run = agent.run("echo 1 > a")
    sandbox.undo(run)
    for name in ("last", run.run):
        with pytest.raises(BadRequest):
            agent.redo(name)
    assert not (project / "a").exists()
    sandbox.redo()
    agent.undo()
    agent.redo()
    assert (project / "a").exists()


def test_what_a_redo_by_force_replaced_comes_back_with_the_next_undo(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("old")
    (project / "d").mkdir()
    (project / "d/x").write_text("old")
    run = sandbox.run("echo new > a; rm -r d")
    sandbox.undo(run)
    (project / "a").write_text("the person's")
    (project / "d/theirs").write_text("the person's")
    kept = snapshot(project)
    sandbox.redo(force=True)
    assert (project / "a").read_text() == "new\n"
    for name in (run, "last"):
        sandbox.undo(name)
        assert snapshot(project) == kept
        sandbox.redo()
        assert os.listdir(project) == ["a"]


def test_what_an_undo_by_force_replaced_stands_until_the_next_undo(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("old")
    before = snapshot(project)
    run = sandbox.run("echo new > a")
    (project / "a").write_text("the person's")
    sandbox.undo(run, force=True)
    assert snapshot(project) == before
    sandbox.redo()
    assert (project / "a").read_text() == "the person's"
    sandbox.undo(run)
    assert snapshot(project) == before
    sandbox.redo(run)
    assert (project / "a").read_text() == "the person's"


@pytest.mark.parametrize("later", ["echo later > a", "rm a"])
def test_a_run_below_one_that_was_taken_out_by_force_and_brought_back_can_be_undone(
    sandbox: Sandbox, project: Path, later: str
) -> None:
    (project / "a").write_text("old\n")
    before = snapshot(project)
    run, on_top = sandbox.run("echo new > a"), sandbox.run(later)
    sandbox.undo(run, force=True)
    assert (project / "a").read_text() == "old\n"
    sandbox.redo(run)
    sandbox.undo(on_top)
    assert (project / "a").read_text() == "new\n"
    sandbox.undo(run)
    assert snapshot(project) == before


def test_a_directory_below_one_that_was_taken_out_by_force_and_brought_back_can_be_undone(
    sandbox: Sandbox, project: Path
) -> None:
    run, on_top = sandbox.run("mkdir d; echo a > d/a"), sandbox.run("mkdir d/e; echo b > d/e/b")
    sandbox.undo(run, force=True)
    sandbox.redo(run)
    assert (project / "d/e/b").read_text() == "b\n"
    sandbox.undo(on_top)
    sandbox.undo(run)
    assert not list(project.iterdir())


def test_what_pieces_of_a_redo_by_force_saved_is_what_an_undo_of_the_whole_brings_back(
    sandbox: Sandbox, project: Path
) -> None:
    (project / "d").mkdir()
    for name in ("a", "b", "d/x", "d/y"):
        (project / name).write_text("old")
    run = sandbox.run("echo new > a; echo new > b; rm -r d")
    back = sandbox.undo(run)
    (project / "a").write_text("mine")
    (project / "d/x").write_text("mine too")
    (project / "d/z").write_text("also mine")
    sandbox.undo(back, "a", "d/x", force=True)
    sandbox.redo(force=True)
    assert {path.name: path.read_text() for path in project.iterdir()} == {"a": "new\n", "b": "new\n"}
    before = snapshot(project)
    for again in range(2):
        assert len(sandbox.undo(run).changed) == 6, again
        texts = {path.name: path.read_text() for path in project.rglob("*") if path.is_file()}
        assert texts == {"a": "mine", "b": "old", "x": "mine too", "y": "old", "z": "also mine"}
        sandbox.redo()
        assert snapshot(project) == before


def test_what_was_taken_back_by_another_name_is_not_taken_back_again_by_force(sandbox: Sandbox, project: Path) -> None:
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a; echo new > b")
    sandbox.undo(run)
    redo = sandbox.redo()
    back = sandbox.undo(run, "a")
    for force in (False, True):
        with pytest.raises(UndoRefused, match=f"run {redo.name} was taken back by run {back.name}") as refused:
            sandbox.undo(redo, "a", force=force)
        assert refused.value.hint.endswith(f"fumehood redo {back.name}")
    assert [change.path for change in sandbox.undo(redo).changed] == ["b"]
    assert {path.name: path.read_text() for path in project.iterdir()} == {"a": "old"}


def test_what_a_redo_offers_takes_back_just_what_it_brought(cli: Cli, project: Path) -> None:
    cli("run", "--", "echo 1 > a; echo 1 > b")
    cli("run", "--", "echo 2 > c")
    cli("undo", "1")
    assert "that was run 1; to undo it again: fumehood undo 4\n" in cli("undo", "3", "a").stdout
    assert cli("undo", "4").returncode == 0
    assert [path.name for path in project.iterdir()] == ["c"]
    for names in (["a", "c"], ["a", "b", "c"]):  # what was taken back last comes first
        cli("redo", "1")
        assert sorted(path.name for path in project.iterdir()) == names


def test_runs_are_called_by_their_numbers_in_what_is_said_of_an_undo(cli: Cli, project: Path) -> None:
    cli("run", "--", "echo 1 > a; echo 1 > b")
    cli("undo", "1", "a")
    again = cli("undo", "1", "a").stderr
    assert "what run 1 did to a is undone already, by run 2\n" in again
    assert "to redo it: fumehood redo 2\n" in again
    shown = cli("show", "1").stdout
    assert "[undone by run 2]\n" in shown
    assert "by run 2  (" in shown


def test_force_is_not_offered_where_the_directory_is_gone(sandbox: Sandbox, project: Path) -> None:
    (project / "d").mkdir()
    (project / "d/a").write_text("old")
    run = sandbox.run("echo new > d/a; echo new > d/b; echo new > c")
    (project / "d").rename(project / "elsewhere")
    for force in (False, True):
        with pytest.raises(UndoRefused) as refused:
            sandbox.undo(run, force=force)
        assert refused.value.hint == "move the directory back, or make it; then undo again"
    assert (project / "c").exists()
    (project / "elsewhere").rename(project / "d")
    later = sandbox.run("rm -r d")
    with pytest.raises(UndoRefused) as refused:
        sandbox.undo(run)
    assert refused.value.hint == f"first: fumehood undo {later.name}"
    sandbox.undo(later)
    removed = sandbox.run("rm d/b")
    later = sandbox.run("rm -r d")
    with pytest.raises(UndoRefused) as refused:
        sandbox.undo(removed)
    assert refused.value.hint == f"first: fumehood undo {later.name}"
    sandbox.undo(later)
    sandbox.undo(removed)
    sandbox.undo(run)
    assert {path.name: path.read_text() for path in project.rglob("*") if path.is_file()} == {"a": "old"}


def rewritten(path: Path, *, seconds: int = 1) -> None:
    """Somebody saves a file as it is: by another inode, at a later time."""
    saved = path.with_suffix(".saved")
    saved.write_bytes(path.read_bytes())
    saved.chmod(path.stat().st_mode)
    later = path.stat().st_mtime + seconds
    os.utime(saved, (later, later))
    saved.rename(path)


@pytest.mark.parametrize("touch", [lambda path: os.utime(path, (1e9, 1e9)), rewritten])
def test_what_was_only_touched_is_still_what_the_run_left(
    sandbox: Sandbox, project: Path, touch: Callable[[Path], None]
) -> None:
    (project / "a").write_text("0\n")
    (project / "gone").write_text("gone\n")
    run = sandbox.run("echo 1 > a; mkdir d; echo 2 > d/new; rm gone")
    touch(project / "a")
    touch(project / "d/new")
    sandbox.undo(run)
    assert {path.name: path.read_text() for path in project.iterdir()} == {"a": "0\n", "gone": "gone\n"}
    touch(project / "a")
    touch(project / "gone")
    sandbox.redo()
    assert {path.name for path in project.iterdir()} == {"a", "d"}
    touch(project / "a")
    sandbox.undo()
    assert (project / "a").read_text() == "0\n"


def test_touched_and_changed_with_its_size_and_time_is_changed(sandbox: Sandbox, project: Path) -> None:
    run = sandbox.run("echo 1 > a; echo 1 > b; echo 1 > c")
    (project / "a").write_text("2\n")
    with pytest.raises(UndoRefused, match=r"changed since run 1: a$"):
        sandbox.undo(run)
    (project / "a").write_text("1\n")
    (project / "b").chmod(0o600)
    with pytest.raises(UndoRefused, match=r"changed since run 1: b$"):
        sandbox.undo(run)
    (project / "b").chmod(0o644)
    rewritten(project / "c")
    os.setxattr(project / "c", "user.a-persons", b"own")
    with pytest.raises(UndoRefused, match=r"changed since run 1: c$"):
        sandbox.undo(run)
    os.removexattr(project / "c", "user.a-persons")
    sandbox.undo(run)
    assert list(project.iterdir()) == []


def test_what_waits_for_a_touched_file_is_applied_without_force(sandbox: Sandbox, project: Path) -> None:
    for name in "abc":
        (project / name).write_text("0\n")
    held = sandbox.run("echo 1 > a; rm b", apply="hold")
    draft = sandbox.draft("one")
    draft.run("echo 1 > c")
    for name in "abc":
        rewritten(project / name)
    assert sandbox.apply(held).state == "applied"
    assert draft.apply().state == "applied"
    assert {path.name: path.read_text() for path in project.iterdir()} == {"a": "1\n", "c": "1\n"}


def test_some_paths_are_redone_of_whichever_undo_took_them_back(sandbox: Sandbox, project: Path) -> None:
    run = sandbox.run("echo 1 > a; echo 1 > b; echo 1 > c; echo 1 > d")
    sandbox.undo(run, "a", "b")
    sandbox.undo(run, "c")
    sandbox.redo(run, "a")
    assert {path.name for path in project.iterdir()} == {"a", "d"}
    with pytest.raises(BadRequest, match="did not change d"):
        sandbox.redo(run, "d")
    sandbox.redo(run)
    sandbox.redo(run)
    assert {path.name for path in project.iterdir()} == {"a", "b", "c", "d"}
    assert (sandbox.find(run.run).state, sandbox.find(run.run).reason) == ("applied", "")


def test_people_see_that_an_undo_was_partial(cli: Cli, project: Path) -> None:
    cli("run", "--", "echo 1 > a; echo 1 > b")
    cli("undo", "1", "a")
    assert "#1  in part:  echo 1 > a; echo 1 > b" in cli("status").stdout
    assert json.loads(cli("status", "--json").stdout)["taken_back"]["in_part"] is True
    (line,) = (each for each in cli("log").stdout.splitlines() if each.startswith("#1 "))
    assert "  undone in part  " in line
    shown = cli("show", "1").stdout
    for text in ("applied: undone in part\n", "\n1 change applied, 1 undone\n", "  undone in part by run 2  "):
        assert text in shown
    assert cli("redo", "1", "b").returncode == 125
    assert "+ a\n" in cli("redo", "1", "a").stdout
    assert "in part" not in cli("status").stdout + cli("log").stdout


@pytest.mark.parametrize("command", ["rm -r tree file", "rm -r tree file; echo x > tree; mkdir file"])
def test_what_is_large_comes_back_itself_and_not_as_a_copy(sandbox: Sandbox, project: Path, command: str) -> None:
    (project / "tree").mkdir()
    for name in ("tree/one", "file"):
        (project / name).write_bytes(bytes(2 << 20))
    os.link(project / "tree/one", project / "tree/two")
    inodes = {path.name: path.stat().st_ino for path in project.rglob("*") if path.is_file()}
    run = sandbox.run(command)
    assert len(sandbox.files("file")[0]["days"]) == 1  # by a second name of the backup
    for _ in range(2):
        sandbox.undo(run)
        files = [path for path in project.rglob("*") if path.is_file()]
        assert {path.name: path.stat().st_ino for path in files} == inodes
        assert {path.name: path.stat().st_nlink for path in files} == {"one": 2, "two": 2, "file": 1}
        sandbox.redo()


def test_a_name_that_comes_back_alone_shares_nothing_with_the_backup_of_the_other(
    sandbox: Sandbox, project: Path
) -> None:
    (project / "one").write_text("old")
    os.link(project / "one", project / "two")
    run = sandbox.run("rm one two")
    sandbox.undo(run, "one")
    (project / "one").write_text("the person's")
    sandbox.undo(run, "two")
    assert [(project / name).read_text() for name in ("one", "two")] == ["the person's", "old"]


def test_a_refusal_names_few_of_the_many_runs_that_came_later(sandbox: Sandbox, project: Path) -> None:
    first = sandbox.run("echo 1 > a")
    for number in range(8):
        sandbox.run(f"echo {number} > a")
    with pytest.raises(UndoRefused, match=r"changed since run 1: a, by runs 9, 8, 7, 6, 5 and 3 more$") as refused:
        sandbox.undo(first)
    assert refused.value.hint.startswith("first: fumehood undo 9")
