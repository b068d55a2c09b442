"""A client's own edits: runs of its session, with what was there before, which can be taken back."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fumehood import Policy, Sandbox
from fumehood.core.edits import PlannedEdit, content_writer
from fumehood.core.report import Run
from fumehood.errors import UndoRefused
from fumehood.faces.cli.hook import end_edit
from fumehood.faces.cli.hook_clients import CLIENTS, ToolCall
from fumehood.service import edits
from fumehood.service.differences import differences
from fumehood.service.opened import OpenedStore
from fumehood.service.store import Store
from fumehood.service.undo import undo
from fumehood.service.undo_groups import redo_session, undo_session
from fumehood.store.edits import EditedProject
from fumehood.store.history import RunFilter
from fumehood.store.places import FileLock
from fumehood.store.projects import Project

SESSION = "claude-1"


class Client:
    """A client that edits files by its own tools, and tells us before and after."""

    def __init__(self, store: Store, project: Project) -> None:
        self.store = store
        self.project = project
        self._calls = 0

    def begin(self, *paths: str, removed: bool = False) -> str:
        """Say that files are to be written; returns the name of the call."""
        self._calls += 1
        planned = [PlannedEdit(path=path, is_removed=removed) for path in paths]
        seat = EditedProject(project=self.project.id, roots=self.project.roots)
        wanted = edits.resolve_targets(seat, self.project.path, planned)
        call = f"call-{self._calls}"
        title = f"Edit {', '.join(paths)}"
        with FileLock(self.store.places.lock(f"project-{self.project.id}")):
            edits.begin_edit(self.store.places, seat, SESSION, call, title, self.project.path, wanted, {})
        return call

    def write(self, path: str, text: str | None) -> None:
        """Write a file as a client does, or remove it."""
        file = Path(self.project.path, path)
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def note_end(self, call: str) -> None:
        """Say that it is done, as the hook does."""
        tool_call = ToolCall(
            client=CLIENTS["claude"], is_after=True, tool="Edit", input={}, session="", call_id=call, directory="",
            raw={},
        )  # fmt: skip
        end_edit(tool_call, SESSION)

    def end(self, call: str) -> Run | None:
        """Say that it is done, and look for what became of it."""
        self.note_end(call)
        before = {run.run for run in self.store.history.runs()}
        OpenedStore().close()
        return next((run for run in self.store.history.runs() if run.run not in before), None)

    def edit(self, path: str, text: str | None) -> Run:
        """Edit one file, from the question to the end."""
        call = self.begin(path, removed=text is None)
        self.write(path, text)
        run = self.end(call)
        assert run is not None
        return run


@pytest.fixture
def client(store: Store, known: Project) -> Client:
    return Client(store, known)


def runs(store: Store) -> list[str]:
    return [f"{run.command}: {run.state}" for run in store.history.runs()]


def leftovers(store: Store) -> list[str]:
    """What is kept for edits that are begun, and layers."""
    notes = os.listdir(store.places.edits) if os.path.isdir(store.places.edits) else []
    return notes + os.listdir(f"{store.places.state}/runs")


def tree(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text() if path.is_file() else "/" for path in project.rglob("*")
    }


def test_edits_are_recorded_in_their_order_though_the_clock_was_set_back(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns
    for days, path in ((40, "a"), (0, "b"), (20, "c")):
        monkeypatch.setattr(time, "time_ns", lambda days=days: now() + days * 86400 * 1_000_000_000)
        call = client.begin(path)
        client.write(path, "new\n")
        client.note_end(call)
    OpenedStore().close()
    assert runs(store) == ["Edit c: applied", "Edit b: applied", "Edit a: applied"]


def test_an_edit_is_a_run_that_is_shown_and_taken_back(client: Client, store: Store, project: Path) -> None:
    (project / "a.py").write_text("one\n")
    run = client.edit("a.py", "two\n")
    assert (run.state, run.session, run.command) == ("applied", SESSION, "Edit a.py")
    (difference,) = differences(store, store.history.find(run.run))
    assert "-one\n+two\n" in difference.text
    undo(store, client.project, run)
    assert tree(project) == {"a.py": "one\n"}
    assert runs(store) == ["undo 1: applied", "Edit a.py: undone"]


def test_an_edit_is_taken_back_though_somebody_touched_the_file(client: Client, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    run = client.edit("a.txt", "new\n")
    os.utime(project / "a.txt", (1e9, 1e9))
    undo(client.store, client.project, run)
    assert (project / "a.txt").read_text() == "old\n"


@pytest.mark.parametrize("named", ["new.py", "src/new/deep.py"])
def test_a_new_file_goes_with_the_directories_that_were_made_for_it(
    client: Client, store: Store, project: Path, named: str
) -> None:
    run = client.edit(named, "x\n")
    assert leftovers(store) == []
    undo(store, client.project, run)
    assert tree(project) == {}
    redo_session(store, client.project, SESSION)
    assert (project / named).read_text() == "x\n"


def test_a_directory_of_a_new_file_stays_with_what_others_put_there(client: Client, project: Path) -> None:
    run = client.edit("src/new.py", "x\n")
    (project / "src/mine").write_text("")
    with pytest.raises(UndoRefused, match="src/mine"):
        undo(client.store, client.project, run)
    assert (project / "src/new.py").exists()


def test_a_file_that_an_edit_deletes_comes_back_with_its_mode(client: Client, project: Path) -> None:
    (project / "a.sh").write_text("#!/bin/sh\n")
    (project / "a.sh").chmod(0o750)
    run = client.edit("a.sh", None)
    undo(client.store, client.project, run)
    assert (project / "a.sh").stat().st_mode & 0o777 == 0o750
    undo(client.store, client.project, client.store.history.find("last"))
    assert tree(project) == {}


def test_an_edit_that_moves_a_file_is_one_run(client: Client, store: Store, project: Path) -> None:
    (project / "old").write_text("x\n")
    call = client.begin("old", "sub/new")
    client.write("sub/new", "y\n")
    client.write("old", None)
    run = client.end(call)
    assert run is not None
    assert sorted((change.change, change.path) for change in run.changed) == [
        ("added", "sub"), ("added", "sub/new"), ("deleted", "old"),
    ]  # fmt: skip
    undo(store, client.project, run)
    assert tree(project) == {"old": "x\n"}


def test_an_edit_that_changes_nothing_leaves_nothing(client: Client, store: Store, project: Path) -> None:
    (project / "a").write_text("x")
    assert client.end(client.begin("a", "b")) is None
    assert (runs(store), leftovers(store)) == ([], [])


def test_an_edit_at_the_same_moment_and_of_the_same_length_is_noticed(client: Client, project: Path) -> None:
    file = project / "a"
    file.write_text("one")
    call = client.begin("a")
    status = file.stat()
    file.write_text("two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert client.end(call) is not None


def test_a_backup_and_the_file_share_no_inode(client: Client, store: Store, project: Path) -> None:
    (project / "a").write_text("one")
    run = client.edit("a", "two")
    assert os.stat(f"{store.uppers(run)[0]}/a").st_ino != (project / "a").stat().st_ino
    undo(store, client.project, run)
    (project / "a").write_text("three")
    assert all(Path(path, name).read_text() != "three" for path, _, names in os.walk(store.places.state)
               for name in names if name == "a")  # fmt: skip


def test_edits_of_one_file_at_once_are_runs_one_after_the_other(client: Client, store: Store, project: Path) -> None:
    (project / "a").write_text("0\n")
    first, second = client.begin("a"), client.begin("a")
    client.write("a", "0\n1\n")
    client.end(second)
    client.write("a", "0\n1\n2\n")
    client.end(first)
    shown = [difference.text for run in store.history.runs() for difference in differences(store, run)]
    assert ["+2\n" in text and "+1\n" not in text for text in shown] == [True, False]
    undo_session(store, client.project, SESSION)
    assert tree(project) == {"a": "0\n"}


def test_an_edit_that_nobody_ends_is_closed_by_whoever_looks_next(client: Client, store: Store, project: Path) -> None:
    (project / "a").write_text("one")
    client.begin("a", "b")
    client.write("a", "two")
    OpenedStore().close()
    assert runs(store) == ["Edit a, b: applied"]
    OpenedStore().close()
    assert len(runs(store)) == 1
    undo(store, client.project, store.history.find("last"))
    assert tree(project) == {"a": "one"}


def test_an_edit_that_is_looked_at_half_way_is_ended_by_a_second_run(
    client: Client, store: Store, project: Path
) -> None:
    (project / "a").write_text("one")
    call = client.begin("a", "b")
    client.write("a", "two")
    OpenedStore().close()
    client.write("b", "new")
    client.end(call)
    assert len(runs(store)) == 2
    undo_session(store, client.project, SESSION)
    assert tree(project) == {"a": "one"}


def test_what_a_person_does_long_after_an_edit_that_failed_is_not_the_clients(
    client: Client, store: Store, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a").write_text("one")
    client.begin("a")
    (name,) = os.listdir(store.places.edits)
    os.utime(store.places.run(name), (time.time() - 120, time.time() - 120))
    (project / "a").write_text("mine")
    OpenedStore().close()
    assert runs(store) == []
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: time.time_ns() / 1e9 + 2 * 86_400)
        OpenedStore().close()
    assert (runs(store), leftovers(store)) == ([], [])


def test_a_program_that_has_the_store_open_finds_an_edit_that_ended_since(
    client: Client, project: Path, sandbox: Sandbox
) -> None:
    for text in ("one", "two", "three"):
        call = client.begin("a")
        client.write("a", text)
        client.note_end(call)
    sandbox.undo()
    assert (project / "a").read_text() == "two"
    assert [run.state for run in sandbox.history()] == ["applied", "undone", "applied", "applied"]


def test_edits_of_a_project_that_is_forgotten_go_with_it(client: Client, store: Store, project: Path) -> None:
    client.begin("a")
    store.projects.remove(client.project.id)
    OpenedStore().close()
    assert leftovers(store) == []


def test_a_note_that_was_cut_short_stops_nobody(client: Client, store: Store, project: Path) -> None:
    client.begin("a")
    (name,) = os.listdir(store.places.edits)
    os.truncate(f"{store.places.edits}/{name}", 10)
    OpenedStore().close()
    assert os.listdir(store.places.edits) == []


def test_what_a_person_does_after_an_edit_was_recorded_by_a_look_is_not_the_clients(
    client: Client, store: Store, project: Path
) -> None:
    (project / "a").write_text("one")
    client.begin("a")
    client.write("a", "two")
    OpenedStore().close()
    (project / "a").write_text("mine")
    OpenedStore().close()
    assert len(runs(store)) == 1


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_edit_is_recorded_where_the_project_is_by_then(
    client: Client, store: Store, project: Path, is_ended: bool
) -> None:
    (project / "a").write_text("one")
    call = client.begin("a", "new/b")
    client.write("a", "two")
    client.write("new/b", "x")
    if is_ended:
        client.note_end(call)
    moved = project.rename(project.parent / "moved")
    found = store.projects.open(str(moved))
    OpenedStore().close()
    assert runs(store) == ["Edit a, new/b: applied"]
    undo(store, found, store.history.find("last"))
    assert tree(moved) == {"a": "one"}


@pytest.mark.namespaces
def test_a_command_between_an_edits_two_ends_is_a_run_of_its_own(
    client: Client, store: Store, project: Path, sandbox: Sandbox
) -> None:
    (project / "a").write_text("0\n")
    call = client.begin("a", "new/b")
    sandbox.run("echo 1 >>a; mkdir new")
    client.write("a", "0\n1\n2\n")
    client.write("new/b", "x\n")
    run = client.end(call)
    assert run is not None
    assert [(change.change, change.path) for change in run.changed] == [("modified", "a"), ("added", "new/b")]
    undo(store, client.project, run)
    assert tree(project) == {"a": "0\n1\n", "new": "/"}
    sandbox.undo(store.history.runs(RunFilter(project=client.project.id))[-1].run)
    assert tree(project) == {"a": "0\n"}


@pytest.mark.namespaces
def test_a_session_of_commands_and_edits_is_taken_back_and_brought_back(
    client: Client, store: Store, project: Path
) -> None:
    from fumehood.core.request import Request
    from fumehood.linux.launch import start
    from fumehood.linux.streams import CLOSED
    from fumehood.service.hood import Caller, Hood
    from fumehood.service.sandbox import run_in

    (project / "a").write_text("0\n")
    (project / "gone").write_text("x\n")
    before = tree(project)
    hood = Hood(store, client.project, Policy(), start)

    def command(line: str) -> None:
        assert run_in(hood, Request(command=line, session=SESSION), Caller(stdin=CLOSED)).state == "applied"

    client.edit("a", "0\n1\n")
    command("echo 2 >>a; mkdir -p src; echo x >src/x")
    client.edit("src/x", "y\n")
    client.edit("a", "0\n1\n2\n3\n")
    client.edit("gone", None)
    command("mv src/x src/z; echo back >gone")
    client.edit("gone", "back again\n")
    after = tree(project)
    undo_session(store, client.project, SESSION)
    assert tree(project) == before
    redo_session(store, client.project, SESSION)
    assert tree(project) == after
    undo_session(store, client.project, SESSION)
    assert tree(project) == before


def test_a_session_is_taken_back_whole_or_not_at_all_unless_forced(
    client: Client, store: Store, project: Path
) -> None:
    (project / "a").write_text("0")
    client.edit("a", "1")
    client.edit("b", "1")
    (project / "a").write_text("mine")
    with pytest.raises(UndoRefused, match="was not undone: changed since"):
        undo_session(store, client.project, SESSION)
    assert tree(project) == {"a": "mine", "b": "1"}
    undo_session(store, client.project, SESSION, force=True)
    assert tree(project) == {"a": "0"}


# ---- What is put to the person before.


@pytest.fixture
def reasons(store: Store, known: Project) -> Callable[..., str]:
    def judge(path: str, content: str | None = None, **more: Any) -> str:
        make_content = None if content is None else content_writer(content)
        seat = EditedProject(project=known.id, roots=known.roots)
        wanted = edits.resolve_targets(seat, known.path, [PlannedEdit(path=path, make_content=make_content, **more)])
        judged = edits.judge_edit(seat, Policy(), "apply", wanted)
        assert leftovers(store) == []
        return "; ".join(judged.reasons)

    return judge


@pytest.mark.parametrize(
    "path", [".git/hooks/pre-commit", ".claude/settings.json", ".vscode/tasks.json", "../outside", "/etc/passwd"]
)
def test_what_would_be_held_is_put_to_the_person(reasons: Callable[..., str], path: str) -> None:
    assert reasons(path, "x")


def test_what_most_edits_do_is_put_to_nobody(reasons: Callable[..., str], project: Path) -> None:
    (project / "a.py").write_text("one")
    assert reasons("a.py", "two") == ""
    assert reasons("src/new.py", "x") == ""
    assert reasons("a.py", is_removed=True) == ""
    assert reasons("a.py") == ""


def test_a_link_out_of_the_project_is_an_edit_outside(reasons: Callable[..., str], project: Path, home: Path) -> None:
    (project / "out").symlink_to(home / "target")
    (project / "dir").symlink_to(home)
    assert "outside" in reasons("out", "x")
    assert "outside" in reasons("dir/x", "x")


def test_a_link_within_the_project_is_an_edit_of_what_it_leads_to(client: Client, project: Path) -> None:
    (project / "real").write_text("one")
    (project / "link").symlink_to("real")
    run = client.edit("link", "two")
    assert [change.path for change in run.changed] == ["real"]


def test_what_git_would_run_is_told_by_what_the_file_will_hold(reasons: Callable[..., str], project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (project / ".git/config").write_text("[core]\n\tbare = false\n")
    assert reasons(".git/config", "[core]\n\tbare = false\n\tfsmonitor = ./x\n")
    assert reasons(".git/config", "[core]\n\tbare = false\n[user]\n\tname = me\n") == ""
    assert reasons(".git/config")


def test_what_could_not_be_kept_is_put_to_the_person(reasons: Callable[..., str], project: Path) -> None:
    (project / "sub").mkdir()
    os.mkfifo(project / "pipe")
    (project / "huge").write_text("")
    os.truncate(project / "huge", edits.MAX_KEPT_BYTES + 1)
    assert "is larger than 64 MiB" in reasons("huge", "x")
    assert "is a fifo" in reasons("pipe", "x")
    assert "is a directory" in reasons("sub", "x")
