"""Records of files and their daily backups, kept in step with real runs."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fumehood
from fumehood import Run, Sandbox, UndoRefused
from fumehood.service import files as module
from fumehood.service.clean import clean_daily
from fumehood.service.files import ScanResult, catch_up, scan_project
from fumehood.service.store import Store
from fumehood.store.database import Days, day_of
from fumehood.store.files import FileRecord, Files
from fumehood.store.projects import Project
from passing_days import pass_days

DAY = 86_400
pytestmark = [pytest.mark.namespaces, pytest.mark.once]


def clean_after(store: Store, days: int) -> tuple[int, int]:
    """Clean the daily backups when so many days have passed."""
    now = pass_days(store, days)
    return clean_daily(store, 7, Days(store.database), now)


def at(store: Store, project: Project, path: str, root: str = "") -> FileRecord | None:
    catch_up(store, project.id)
    return Files(store.database).find(project.id, root or project.path, path)


def must(found: FileRecord | None) -> FileRecord:
    assert found is not None
    return found


def names(edited: Path) -> list[str]:
    return sorted(os.listdir(edited)) if edited.exists() else []


def make_due(store: Store, project: Project, run: Run) -> None:
    """As if what a run did had not been recorded yet."""
    with store.database.transaction() as connection:
        connection.execute("INSERT INTO files_due (project, run) VALUES (?, ?)", (project.id, run.run))


def due(store: Store, project: Project) -> list[str]:
    return [run for _, run, _, _ in Files(store.database).due_runs(project.id)]


def today() -> str:
    return day_of(time.time())


def test_a_modified_file_gets_a_record_and_the_backup_of_the_day(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "notes.txt").write_text("old")
    done = run("echo new > notes.txt")
    found = must(at(store, known, "notes.txt"))
    assert names(edited) == [f"{found.id}-{today()}-notes.txt"]
    assert found.last_approved_copy_path == f"edited/{names(edited)[0]}"
    assert (edited / names(edited)[0]).read_text() == "old"
    assert (found.kind, found.size, found.is_deleted, found.needs_approval) == ("file", 4, False, False)
    assert found.modified_ns == (project / "notes.txt").stat().st_mtime_ns
    assert found.last_run == done.run
    assert edited.stat().st_mode & 0o777 == 0o700


def test_a_backup_costs_no_copy_and_never_shares_with_the_live_file(
    run: Callable[..., Run], store: Store, project: Path, edited: Path
) -> None:
    (project / "a").write_text("old")
    done = run("echo new > a")
    slot = Path(store.uppers(done)[0], "a")
    assert (edited / names(edited)[0]).samefile(slot)
    assert (project / "a").stat().st_nlink == 1


def test_the_first_version_of_the_day_is_the_one_that_is_kept(
    run: Callable[..., Run], project: Path, edited: Path
) -> None:
    (project / "a").write_text("morning")
    run("echo noon > a")
    run("echo evening > a")
    assert len(names(edited)) == 1
    assert (edited / names(edited)[0]).read_text() == "morning"


def test_the_next_day_has_a_backup_of_its_own(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "a").write_text("one")
    run("echo two > a")
    first = must(at(store, known, "a"))
    os.rename(edited / names(edited)[0], edited / f"{first.id}-20-01-01-a")
    run("echo three > a")
    assert [(edited / name).read_text() for name in names(edited)] == ["one", "two\n"]
    assert must(at(store, known, "a")).last_approved_copy_path == f"edited/{first.id}-{today()}-a"


def test_a_deleted_file_keeps_its_record_and_has_a_backup(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "a").write_text("dear")
    run("rm a")
    found = must(at(store, known, "a"))
    assert found.is_deleted
    assert (edited / names(edited)[0]).read_text() == "dear"


def test_every_file_of_a_deleted_tree_has_a_record_and_a_backup(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    for path in ("tree/a", "tree/deep/b", "tree/deep/er/c"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(path)
    run("rm -r tree")
    assert {(edited / name).read_text() for name in names(edited)} == {"tree/a", "tree/deep/b", "tree/deep/er/c"}
    assert all(must(at(store, known, path)).is_deleted for path in ("tree/a", "tree/deep/b", "tree/deep/er/c"))
    assert at(store, known, "tree/deep") is None


def test_a_new_file_has_a_record_and_no_backup(
    run: Callable[..., Run], store: Store, known: Project, edited: Path
) -> None:
    done = run("mkdir d; echo x > d/a; ln -s a d/link")
    found = must(at(store, known, "d/a"))
    assert (found.last_approved_copy_path, found.is_deleted, found.size, found.last_run) == ("", False, 2, done.run)
    assert must(at(store, known, "d/link")).kind == "symlink"
    assert names(edited) == []


def test_what_is_new_in_a_directory_of_packages_has_no_record_until_it_changes(
    run: Callable[..., Run], store: Store, known: Project, edited: Path
) -> None:
    run("mkdir -p node_modules/x; echo 1 > node_modules/x/a")
    assert at(store, known, "node_modules/x/a") is None
    run("echo 2 > node_modules/x/a")
    assert must(at(store, known, "node_modules/x/a")).last_approved_copy_path
    assert (edited / names(edited)[0]).read_text() == "1\n"


def test_a_symlink_has_a_record_and_no_daily_backup(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "link").symlink_to("old")
    run("ln -sf new link")
    assert must(at(store, known, "link")).kind == "symlink"
    assert names(edited) == []


@pytest.mark.parametrize(
    ("command", "kind", "is_deleted"),
    [("rm a; mkdir a", "file", True), ("rm a; ln -s b a", "symlink", False), ("chmod +x a", "file", False)],
)
def test_a_file_that_becomes_something_else_is_backed_up(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path,
    command: str, kind: str, is_deleted: bool,
) -> None:  # fmt: skip
    (project / "a").write_text("file")
    run(command)
    found = must(at(store, known, "a"))
    assert (found.kind, found.is_deleted) == (kind, is_deleted)
    assert (edited / names(edited)[0]).read_text() == "file"


def test_a_directory_that_becomes_a_file_takes_its_files_with_it(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "d").mkdir()
    (project / "d/inner").write_text("inner")
    run("rm -r d; echo now > d")
    assert must(at(store, known, "d/inner")).is_deleted
    assert not must(at(store, known, "d")).is_deleted
    assert (edited / names(edited)[0]).read_text() == "inner"


@pytest.mark.parametrize("name", ["-rf", "a\nb", "x" * 255, os.fsdecode(b"\xff\xfe"), "a'b\"c", "26-03-01-x"])
def test_any_name_can_be_backed_up(run: Callable[..., Run], project: Path, edited: Path, name: str) -> None:
    (project / name).write_text("old")
    run("find . -type f -exec sh -c 'echo new > \"$1\"' _ {} ';'")
    assert (project / name).read_text() == "new\n"
    (found,) = names(edited)
    assert (edited / found).read_text() == "old"
    assert os.fsencode(found).endswith(os.fsencode(name)[: 255 - len(f"1-{today()}-")])


def test_an_undo_leaves_no_backup_that_shares_with_the_live_file(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "a").write_text("old")
    (project / "b").write_text("dear")
    done = run("echo new > a; rm b")
    assert len(names(edited)) == 2
    undo(done)
    assert names(edited) == []
    assert [(project / name).stat().st_nlink for name in ("a", "b")] == [1, 1]
    assert must(at(store, known, "a")).last_approved_copy_path == ""
    assert not must(at(store, known, "b")).is_deleted


def test_what_was_deleted_comes_back_itself_and_not_as_a_copy(
    run: Callable[..., Run], undo: Callable[[Run], Run], project: Path, edited: Path
) -> None:
    (project / "d").mkdir()
    paths = [project / name for name in ("a", "d/b", "c", "d/c")]
    for path in paths[:3]:
        path.write_text(path.name)
    os.link(paths[2], paths[3])
    for number in range(60):  # a few are copied
        (project / f"d/{number}").write_text("x")
    inodes = [path.stat().st_ino for path in paths]
    done = run("rm -r *")
    assert names(edited)
    undo(done)
    assert [path.stat().st_ino for path in paths] == inodes
    assert [path.stat().st_nlink for path in paths] == [1, 1, 2, 2]


def test_the_next_change_after_an_undo_makes_the_backup_anew(
    run: Callable[..., Run], undo: Callable[[Run], Run], project: Path, edited: Path
) -> None:
    (project / "a").write_text("morning")
    undo(run("echo new > a"))
    run("echo newer > a")
    assert [(edited / name).read_text() for name in names(edited)] == ["morning"]


def test_an_undo_of_an_undo_makes_the_backup_anew_and_can_be_undone(
    run: Callable[..., Run], undo: Callable[[Run], Run], project: Path, edited: Path
) -> None:
    (project / "a").write_text("morning")
    again = undo(undo(run("echo new > a")))
    assert (project / "a").read_text() == "new\n"
    assert [(edited / name).read_text() for name in names(edited)] == ["morning"]
    undo(again)
    assert (project / "a").read_text() == "morning"
    assert names(edited) == []
    assert (project / "a").stat().st_nlink == 1


def test_an_undo_drops_the_backup_that_shares_and_keeps_older_days(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "a").write_text("one")
    run("echo two > a")
    number = must(at(store, known, "a")).id
    os.rename(edited / names(edited)[0], edited / f"{number}-20-01-01-a")
    undo(run("echo three > a"))
    assert names(edited) == [f"{number}-20-01-01-a"]
    assert must(at(store, known, "a")).last_approved_copy_path == f"edited/{number}-20-01-01-a"


def test_an_undone_deletion_of_a_tree_leaves_no_backup_that_shares(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "d/e").mkdir(parents=True)
    (project / "d/a").write_text("a")
    (project / "d/e/b").write_text("b")
    done = run("rm -r d")
    assert len(names(edited)) == 2
    undo(done)
    assert names(edited) == []
    assert [(project / path).stat().st_nlink for path in ("d/a", "d/e/b")] == [1, 1]
    assert not must(at(store, known, "d/e/b")).is_deleted


def test_nothing_is_released_that_does_not_go_back(
    run: Callable[..., Run], undo: Callable[[Run], Run], project: Path, edited: Path
) -> None:
    (project / "a").write_text("a")
    (project / "b").write_text("b")
    run("echo new > a")
    undo(run("echo new > b"))
    assert [(edited / name).read_text() for name in names(edited)] == ["a"]


def test_files_that_are_one_file_are_one_again_after_an_undo(
    run: Callable[..., Run], undo: Callable[[Run], Run], project: Path, edited: Path
) -> None:
    (project / "a").write_text("both")
    os.link(project / "a", project / "b")
    done = run("echo x > a; echo y > b")
    assert len(names(edited)) == 2
    undo(done)
    assert names(edited) == []
    assert (project / "a").stat().st_nlink == (project / "b").stat().st_nlink
    assert (project / "a").stat().st_nlink <= 2


def test_an_undone_addition_is_a_deleted_file(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, edited: Path
) -> None:
    undo(run("echo x > a"))
    assert must(at(store, known, "a")).is_deleted
    assert names(edited) == []


def test_a_held_change_waits_until_it_is_decided(
    run: Callable[..., Run], sandbox: Sandbox, store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("old")
    done = run("echo new > a; echo x > b", apply="hold")
    assert [must(at(store, known, path)).needs_approval for path in ("a", "b")] == [True, True]
    assert must(at(store, known, "b")).kind == "absent"
    sandbox.apply(done)
    assert [must(at(store, known, path)).needs_approval for path in ("a", "b")] == [False, False]
    assert must(at(store, known, "b")).kind == "file"


def test_a_discarded_change_waits_no_more_and_leaves_no_record_of_what_never_was(
    run: Callable[..., Run], sandbox: Sandbox, store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("old")
    scan_project(store, known)
    done = run("echo new > a; echo x > b", apply="hold")
    assert must(at(store, known, "b")).needs_approval
    sandbox.discard(done)
    assert not must(at(store, known, "a")).needs_approval
    assert at(store, known, "b") is None


def test_a_file_that_two_runs_hold_waits_for_both(
    run: Callable[..., Run], sandbox: Sandbox, store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("old")
    first, second = run("echo 1 > a", apply="hold"), run("echo 2 > a", apply="hold")
    sandbox.discard(second)
    assert must(at(store, known, "a")).needs_approval
    sandbox.discard(first)
    assert not must(at(store, known, "a")).needs_approval
    assert must(at(store, known, "a")).size == 3


def test_what_could_not_be_backed_up_is_told_and_the_apply_stands(
    sandbox: Sandbox, store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "a").write_text("old")
    edited.write_text("a file where the directory should be")
    done = sandbox.run("echo new > a")
    assert (done.state, (project / "a").read_text()) == ("applied", "new\n")
    assert must(at(store, known, "a")).last_approved_copy_path == ""
    told = {event.act: event.detail for event in store.audit.events_of([done.run])[done.run]}
    assert told["missed"].startswith("no backup for today of a: ")
    edited.unlink()
    sandbox.undo(done)
    assert (project / "a").read_text() == "old"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EMLINK, errno.EXDEV])
def test_an_original_that_can_not_be_linked_is_copied(
    sandbox: Sandbox, store: Store, known: Project, project: Path, edited: Path, monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:  # fmt: skip
    (project / "a").write_text("old")

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    done = sandbox.run("echo new > a")
    (name,) = names(edited)
    assert (edited / name).read_text() == "old"
    assert (edited / name).stat().st_nlink == 1
    make_due(store, known, done)
    catch_up(store, known.id)
    assert names(edited) == [name]
    sandbox.undo(done)
    assert names(edited) == [name]
    assert (project / "a").read_text() == "old"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two changes be more than what is recorded at once."""
    monkeypatch.setattr(module, "MAX_AT_ONCE", 1)


def test_a_large_run_is_recorded_when_there_is_time(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path, large: None
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old")
    done = run("echo new > a; rm b")
    assert (names(edited), due(store, known)) == ([], [done.run])
    run("true")
    assert due(store, known) == []
    assert [(edited / name).read_text() for name in names(edited)] == ["old", "old"]
    assert must(at(store, known, "b")).is_deleted


def test_closing_the_sandbox_records_what_is_due(
    store: Store, known: Project, project: Path, edited: Path, large: None
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old")
    with Sandbox(project) as sandbox:
        sandbox.run("echo new > a; rm b")
        assert names(edited) == []
    assert len(names(edited)) == 2


def test_the_first_version_of_the_day_is_kept_though_a_later_run_is_settled_before_it_is_recorded(
    sandbox: Sandbox, store: Store, known: Project, project: Path, edited: Path, large: None
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("morning")
    first = sandbox.run("echo noon > a; echo noon > b", apply="hold")
    sandbox.apply(first)
    second = sandbox.run("echo evening > a", apply="hold")
    make_due(store, known, first)
    sandbox.apply(second)
    assert second.run in due(store, known)
    catch_up(store, known.id)
    assert {(edited / name).read_text() for name in names(edited)} == {"morning"}
    assert must(at(store, known, "a")).size == len("evening\n")


def test_an_undo_of_what_is_due_leaves_no_backup_and_the_records_right(
    sandbox: Sandbox, store: Store, known: Project, project: Path, edited: Path, large: None
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old")
    done = sandbox.run("echo new > a; rm b; echo x > c")
    back = sandbox.undo(done)
    assert due(store, known) == [done.run, back.run]
    catch_up(store, known.id)
    assert names(edited) == []
    assert [must(at(store, known, name)).is_deleted for name in ("a", "b", "c")] == [False, False, True]
    assert [(project / name).stat().st_nlink for name in ("a", "b")] == [1, 1]
    sandbox.undo(back)
    catch_up(store, known.id)
    assert [(edited / name).read_text() for name in names(edited)] == ["old", "old"]


def test_backups_that_an_interrupted_recording_left_are_released_by_an_undo(
    sandbox: Sandbox, store: Store, known: Project, project: Path, edited: Path, large: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("a", "b"):
        (project / name).write_text("old")
    done = sandbox.run("echo new > a; echo new > b")

    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Files, "record_after_run", die)
    with pytest.raises(KeyboardInterrupt):
        catch_up(store, known.id)
    monkeypatch.undo()
    assert len(names(edited)) == 2
    sandbox.undo(done)
    assert names(edited) == []
    assert [(project / name).stat().st_nlink for name in ("a", "b")] == [1, 1]


def test_a_backup_bears_the_day_of_the_change_and_not_of_the_recording(
    sandbox: Sandbox, store: Store, known: Project, project: Path, edited: Path, large: None
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old")
    sandbox.run("echo new > a; echo new > b")
    with store.database.transaction() as connection:
        connection.execute("UPDATE files_due SET at = at - ?", (3 * DAY,))
    catch_up(store, known.id)
    assert {name[2:10] for name in names(edited)} == {day_of(time.time() - 3 * DAY)}


def test_an_undo_that_comes_to_nothing_leaves_the_backups_of_the_day(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old")
    done = run("echo new > a; echo new > b")
    before = names(edited)
    (project / "b").write_text("a person's")
    with pytest.raises(UndoRefused):
        undo(done)
    catch_up(store, known.id)
    assert names(edited) == before
    assert must(at(store, known, "a")).last_approved_copy_path == f"edited/{before[0]}"


KILLED = """
import os, sys
from fumehood.service import files
from fumehood.service.opened import OpenedStore
from fumehood.service.store import Store
from fumehood.store.files import Files
store = OpenedStore()
moments = iter(range(int(sys.argv[1])))
def dying(real):
    def act(*given, **named):
        if next(moments, None) is None:
            os.kill(os.getpid(), 9)
        return real(*given, **named)
    return act
os.link = dying(os.link)
for name in ("begin_due", "numbers_of", "record_after_run", "drop_due"):
    setattr(Files, name, dying(getattr(Files, name)))
files.catch_up(store, 1)
"""


@pytest.mark.parametrize("moment", range(6))
def test_a_recording_that_is_killed_is_done_again(
    sandbox: Sandbox, store: Store, known: Project, project: Path, edited: Path, large: None, moment: int
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("old")
    sandbox.run("echo new > a; rm b; echo x > c")
    killed = subprocess.run([sys.executable, "-P", "-c", KILLED, str(moment)], check=False)
    assert killed.returncode == -9
    catch_up(store, known.id)
    assert due(store, known) == []
    assert [(edited / name).read_text() for name in names(edited)] == ["old", "old"]
    found = [must(at(store, known, name)) for name in ("a", "b", "c")]
    assert [each.is_deleted for each in found] == [False, True, False]
    assert [bool(each.last_approved_copy_path) for each in found] == [True, True, False]


def test_a_copy_that_was_never_finished_is_cleaned_a_day_later(store: Store, edited: Path) -> None:
    edited.mkdir()
    (edited / ".copying-1-abcd").write_text("half")
    assert clean_after(store, 0)[0] == 0
    assert clean_after(store, 2)[0] == 1
    assert names(edited) == []


def test_recording_loads_nothing_slow() -> None:
    slow = {"contextlib", "dataclasses", "enum", "json", "logging", "pathlib", "re", "socket", "subprocess", "typing"}
    source = str(Path(fumehood.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {source!r}); import fumehood.service.files; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not slow & set(done.stdout.split())


def test_recording_twice_changes_nothing(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "a").write_text("old")
    done = run("echo new > a; echo x > b")
    before = must(at(store, known, "a")), must(at(store, known, "b")), names(edited)
    make_due(store, known, done)
    assert (must(at(store, known, "a")), must(at(store, known, "b")), names(edited)) == before


def test_files_of_another_root_are_recorded_there(
    store: Store, known: Project, test_directory: Path, home: Path, edited: Path
) -> None:
    other = test_directory / "other"
    other.mkdir()
    (other / "a").write_text("old")
    known = store.projects.add_root(known, str(other))
    with Sandbox(known.path) as sandbox:
        sandbox.run(f"echo new > {other}/a; echo x > b")
    assert must(at(store, known, "a", str(other))).last_approved_copy_path
    assert at(store, known, "a") is None
    assert must(at(store, known, "b")).root == known.path


def test_old_daily_backups_are_cleaned_and_records_forget_them(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    (project / "a").write_text("x" * 10_000)
    (project / "b").write_text("x")
    done = run("echo new > a; rm b")
    assert clean_after(store, 7) == (0, 0)
    # The run's own original is the same file: nothing is freed yet.
    assert clean_after(store, 8) == (2, 0)
    assert names(edited) == []
    assert must(at(store, known, "a")).last_approved_copy_path == ""
    assert must(at(store, known, "b")).is_deleted
    assert Path(store.uppers(done)[0], "a").read_text() == "x" * 10_000


def test_cleaning_counts_what_nothing_else_holds(
    run: Callable[..., Run], store: Store, project: Path, edited: Path
) -> None:
    (project / "a").write_text("x" * 10_000)
    done = run("echo new > a")
    Path(store.uppers(done)[0], "a").unlink()
    count, freed = clean_after(store, 8)
    assert count == 1
    assert freed >= 10_000


def test_a_record_goes_with_its_last_backup_only_if_the_file_is_gone_and_no_run_deleted_it(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    for name in ("there", "lost", "deleted"):
        (project / name).write_text("old")
    run("echo 1 > there; echo 1 > lost; rm deleted")
    (project / "lost").unlink()
    (edited / "99-20-01-01-stray").write_text("of no record")
    (edited / "not-a-backup").write_text("kept")
    clean_after(store, 8)
    assert must(at(store, known, "there"))
    assert must(at(store, known, "deleted")).is_deleted
    assert at(store, known, "lost") is None
    assert names(edited) == ["not-a-backup"]


def test_a_scan_adds_updates_and_drops(store: Store, known: Project, project: Path) -> None:
    (project / "d").mkdir()
    for name in ("a", "d/b", "d/c"):
        (project / name).write_text("x")
    (project / "link").symlink_to("/etc")
    assert scan_project(store, known) == ScanResult(files=4, added=4)
    assert scan_project(store, known) == ScanResult(files=4)
    (project / "a").write_text("longer")
    (project / "d/b").unlink()
    (project / "new").write_text("x")
    assert scan_project(store, known) == ScanResult(files=4, added=1, updated=1, dropped=1)
    assert must(at(store, known, "a")).size == 6
    assert at(store, known, "d/b") is None
    assert must(at(store, known, "link")).kind == "symlink"


def test_a_scan_follows_no_symlink(store: Store, known: Project, project: Path, test_directory: Path) -> None:
    outside = test_directory / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    (project / "link").symlink_to(outside)
    assert scan_project(store, known).files == 1
    assert at(store, known, "link/secret") is None


def test_a_scan_leaves_out_what_is_ignored(store: Store, known: Project, project: Path) -> None:
    for path in (
        ".git/config", "node_modules/x/index.js", "venv/pyvenv.cfg", "py/pyvenv.cfg", "py/lib/a.py", "out/CACHEDIR.TAG",
        "out/b", "build/c", "src/build/d", "src/e.o", "src/keep.o", "src/f.py", "sub/only.tmp", "only.tmp",
    ):  # fmt: skip
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("x")
    (project / ".gitignore").write_text("/build\n*.o\n!keep.o\n")
    (project / "sub/.gitignore").write_text("*.tmp\n")
    scan_project(store, known)
    found = {record.path for record in Files(store.database).find_below(known.id, known.path)}
    assert found == {".gitignore", "sub/.gitignore", "src/build/d", "src/keep.o", "src/f.py", "only.tmp"}


def test_a_gitignore_that_is_no_file_is_left_alone(store: Store, known: Project, project: Path) -> None:
    (project / "a").mkdir()
    (project / "b").mkdir()
    os.mkfifo(project / "a/.gitignore")
    (project / "b/.gitignore").symlink_to("/dev/zero")
    assert scan_project(store, known).files == 1


def test_a_scan_keeps_the_record_of_a_missing_file_while_it_is_deleted_or_backed_up(
    run: Callable[..., Run], store: Store, known: Project, project: Path, edited: Path
) -> None:
    for name in ("deleted", "changed", "plain", "bare"):
        (project / name).write_text("old")
    scan_project(store, known)
    run("rm deleted; echo new > changed; echo new > bare")
    for name in ("changed", "plain", "bare"):
        (project / name).unlink()
    (edited / os.path.basename(must(at(store, known, "bare")).last_approved_copy_path)).unlink()
    found = scan_project(store, known)
    assert (found.dropped, found.kept) == (2, 1)
    assert must(at(store, known, "deleted")).is_deleted
    assert must(at(store, known, "changed"))
    assert at(store, known, "plain") is None
    assert at(store, known, "bare") is None


def test_a_scan_keeps_what_is_there_though_ignored_and_what_waits(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "node_modules").mkdir()
    (project / "node_modules/a").write_text("1")
    run("echo 2 > node_modules/a")
    run("echo x > held", apply="hold")
    scan_project(store, known)
    assert must(at(store, known, "node_modules/a"))
    assert must(at(store, known, "held")).needs_approval


def test_a_scan_finds_a_deleted_file_that_is_there_again(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("old")
    run("rm a")
    (project / "a").write_text("written anew by a person")
    assert scan_project(store, known).updated == 1
    assert not must(at(store, known, "a")).is_deleted


def test_a_scan_says_how_far_it_is(
    store: Store, known: Project, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fumehood.service.files._BATCH_FILES", 10)
    for number in range(25):
        (project / str(number)).write_text("x")
    told: list[int] = []
    assert scan_project(store, known, told.append).files == 25
    assert told == [10, 20, 25]
    for number in range(20):
        (project / str(number)).unlink()
    assert scan_project(store, known).dropped == 20


@pytest.mark.ordinary
@pytest.mark.parametrize("mode", [0, 0o444], ids=["closed", "only listed"])
def test_a_directory_that_can_not_be_read_loses_no_record(
    store: Store, known: Project, project: Path, mode: int
) -> None:
    (project / "d").mkdir()
    (project / "d/a").write_text("x")
    scan_project(store, known)
    (project / "d").chmod(mode)
    try:
        found = scan_project(store, known)
    finally:
        (project / "d").chmod(0o700)
    assert (found.unread, found.dropped) == (1, 0)
    assert must(at(store, known, "d/a"))
