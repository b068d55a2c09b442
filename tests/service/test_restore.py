"""Bringing an earlier version back: any version, wherever its place is taken, and undoable."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import ApplyFailed, BadRequest, Run, Sandbox
from fumehood.service.clean import clean, clean_daily
from fumehood.service.restore import known_file, known_files, restore, versions
from fumehood.service.store import Store
from fumehood.store.database import Days, day_of
from fumehood.store.projects import Project
from passing_days import pass_days

DAY = 86_400
pytestmark = [pytest.mark.namespaces, pytest.mark.once]


def clean_after(store: Store, days: int) -> tuple[int, int]:
    """Clean the daily backups when so many days have passed."""
    now = pass_days(store, days)
    return clean_daily(store, 7, Days(store.database), now)


def sources(store: Store, project: Project, path: str) -> list[str]:
    return [version.source for version in versions(store, project, project.path, path)]


def states(store: Store) -> list[tuple[str, str]]:
    return [(run.act, run.state) for run in store.history.runs()]


def test_a_deleted_file_comes_back(run: Callable[..., Run], store: Store, known: Project, project: Path) -> None:
    (project / "a").write_text("dear")
    os.chmod(project / "a", 0o640)
    os.utime(project / "a", ns=(1, 2_000_000_000))
    run("rm a")
    back = restore(store, known, "a")
    assert (back.act, back.state, back.of) == ("restore", "applied", None)
    assert [(change.change, change.path, change.verdict) for change in back.changes] == [("added", "a", "applied")]
    found = (project / "a").stat()
    assert ((project / "a").read_text(), found.st_mode & 0o777, found.st_mtime_ns) == ("dear", 0o640, 2_000_000_000)


def test_the_version_before_the_last_change_comes_back(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    run("echo two > a")
    run("echo three > a")
    restore(store, known, "a")
    assert (project / "a").read_text() == "two\n"


def test_a_version_comes_back_from_any_run(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    first = run("echo two > a")
    second = run("echo three > a")
    restore(store, known, "a", first.run)
    assert (project / "a").read_text() == "one"
    restore(store, known, "a", second.run.lower()[:20])
    assert (project / "a").read_text() == "two\n"


@pytest.mark.parametrize("form", ["%y-%m-%d", "%Y-%m-%d"])
def test_a_version_comes_back_from_a_day(
    run: Callable[..., Run], store: Store, known: Project, project: Path, form: str
) -> None:
    (project / "a").write_text("morning")
    run("echo noon > a")
    run("echo evening > a")
    restore(store, known, "a", time.strftime(form))
    assert (project / "a").read_text() == "morning"


def test_what_comes_back_shares_no_inode_with_any_backup(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    first = run("echo two > a")
    restore(store, known, "a", first.run)
    assert (project / "a").stat().st_nlink == 1
    (project / "a").write_text("changed in place")
    restore(store, known, "a", first.run)
    assert (project / "a").read_text() == "one"


def test_a_restore_can_be_undone(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    first = run("echo two > a")
    (project / "a").write_text("a person's own work")
    back = restore(store, known, "a", first.run)
    assert (project / "a").read_text() == "one"
    undo(back)
    assert (project / "a").read_text() == "a person's own work"
    assert (project / "a").stat().st_nlink == 1


def test_what_a_restore_replaced_is_backed_up_and_can_be_restored(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    first = run("echo two > a")
    (project / "a").write_text("mine")
    back = restore(store, known, "a", first.run)
    restore(store, known, "a", back.run)
    assert (project / "a").read_text() == "mine"


def test_missing_parents_are_made_in_the_same_run(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path
) -> None:
    (project / "src/deep").mkdir(parents=True)
    os.chmod(project / "src", 0o750)
    (project / "src/deep/a").write_text("dear")
    (project / "src/deep/b").write_text("other")
    run("rm -r src/deep")
    back = restore(store, known, "src/deep/a")
    assert (project / "src/deep/a").read_text() == "dear"
    assert not (project / "src/deep/b").exists()
    assert (project / "src/deep").stat().st_mode & 0o777 == 0o750
    undo(back)
    assert not (project / "src/deep").exists()
    assert (project / "src").stat().st_mode & 0o777 == 0o750


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works on what belongs to others")
def test_what_root_restores_belongs_to_its_owner(
    store: Store, known: Project, project: Path, test_directory: Path
) -> None:
    (project / "d").mkdir()
    (project / "d/a").write_text("dear")
    for path in (project, project / "d", project / "d/a"):
        os.chown(path, 65_534, 65_534)
    test_directory.chmod(0o755)
    with Sandbox(project) as sandbox:
        sandbox.run("rm -r d")
    restore(store, known, "d/a")
    assert (project / "d/a").read_text() == "dear"
    assert [((project / path).stat().st_uid, (project / path).stat().st_gid) for path in ("d", "d/a")] == [
        (65_534, 65_534), (65_534, 65_534),
    ]  # fmt: skip


def test_a_directory_that_stands_there_now_is_not_lost(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("a file once")
    run("rm a; mkdir a; echo in it > a/inner")
    back = restore(store, known, "a")
    assert (project / "a").read_text() == "a file once"
    undo(back)
    assert (project / "a/inner").read_text() == "in it\n"


def test_a_symlink_that_stands_there_now_is_replaced_and_not_followed(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path,
    test_directory: Path,
) -> None:  # fmt: skip
    target = test_directory / "target"
    target.write_text("untouched")
    (project / "a").write_text("one")
    run("rm a")
    (project / "a").symlink_to(target)
    back = restore(store, known, "a")
    assert not (project / "a").is_symlink()
    assert (project / "a").read_text() == "one"
    assert target.read_text() == "untouched"
    undo(back)
    assert (project / "a").readlink() == target


@pytest.mark.parametrize("now", ["symlink", "file"])
def test_nothing_is_restored_through_a_parent_that_is_no_directory_any_more(
    run: Callable[..., Run], store: Store, known: Project, project: Path, test_directory: Path, now: str
) -> None:
    outside = test_directory / "outside"
    outside.mkdir()
    (project / "d").mkdir()
    (project / "d/a").write_text("dear")
    run("rm -r d")
    if now == "symlink":
        (project / "d").symlink_to(outside)
    else:
        (project / "d").write_text("x")
    with pytest.raises(BadRequest, match=f"below d: it is a {now} now"):
        restore(store, known, "d/a")
    assert list(outside.iterdir()) == []
    assert states(store)[0] == ("restore", "failed")
    assert not os.path.exists(store.places.run(store.history.runs()[0].run))


def test_a_symlink_comes_back_as_a_symlink(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "link").symlink_to("somewhere")
    run("rm link")
    restore(store, known, "link")
    assert (project / "link").readlink() == Path("somewhere")


def test_a_directory_comes_back_and_what_is_there_now_stays(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path
) -> None:
    (project / "d/e").mkdir(parents=True)
    (project / "d/a").write_text("a")
    (project / "d/e/b").write_text("b")
    run("rm -r d")
    (project / "d").mkdir()
    (project / "d/a").write_text("newer")
    (project / "d/new").write_text("new")
    back = restore(store, known, "d")
    assert (project / "d/a").read_text() == "a"
    assert (project / "d/e/b").read_text() == "b"
    assert (project / "d/new").read_text() == "new"
    undo(back)
    assert sorted(path.name for path in (project / "d").iterdir()) == ["a", "new"]
    assert (project / "d/a").read_text() == "newer"


def test_a_version_that_is_there_already_makes_an_empty_run(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    first = run("echo two > a")
    restore(store, known, "a", first.run)
    again = restore(store, known, "a", first.run)
    assert (again.state, again.changes) == ("empty", ())
    assert store.history.find(again.run).state == "empty"
    assert not os.path.exists(store.places.run(again.run))


def test_what_a_run_replaced_is_found_where_undos_left_it(
    run: Callable[..., Run], undo: Callable[[Run], Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    done = run("echo two > a")
    back = undo(done)
    # The undo took the run's version out; what the run had replaced is in the project.
    assert sources(store, known, "a") == [back.run]
    with pytest.raises(BadRequest, match="was undone"):
        restore(store, known, "a", done.run)
    restore(store, known, "a", back.run)
    assert (project / "a").read_text() == "two\n"


def test_a_version_is_found_on_another_file_system(
    store: Store, home: Path, other_filesystem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other_filesystem / "a").write_text("one")
    known = store.projects.open(str(other_filesystem))
    with Sandbox(other_filesystem) as sandbox:
        sandbox.run("echo two > a")
    assert len(sources(store, known, "a")) == 2
    restore(store, known, "a")
    assert (other_filesystem / "a").read_text() == "one"
    assert [path.name for path in other_filesystem.iterdir()] == ["a"]


def test_a_daily_backup_outlives_the_layer_of_its_run(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    done = run("echo two > a")
    clean(store, now=pass_days(store, 2), budget=1)
    assert sources(store, known, "a") == [day_of(time.time())]
    with pytest.raises(BadRequest, match="no longer kept"):
        restore(store, known, "a", done.run)
    restore(store, known, "a")
    assert (project / "a").read_text() == "one"


def test_a_backup_that_is_gone_is_said_to_be_gone_and_nothing_changes(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    done = run("echo two > a")
    Path(store.uppers(done)[0], "a").unlink()
    clean_after(store, 8)
    before = states(store)
    with pytest.raises(BadRequest, match=r"there is no backup of a$"):
        restore(store, known, "a")
    with pytest.raises(BadRequest, match="no longer kept") as failed:
        restore(store, known, "a", done.run)
    assert "fumehood files a" in failed.value.hint
    with pytest.raises(BadRequest, match="no backup of a from"):
        restore(store, known, "a", "2020-02-02")
    assert (project / "a").read_text() == "two\n"
    assert states(store) == before


def test_what_makes_no_sense_is_refused_in_one_line(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    (project / "a").write_text("one")
    done = run("echo x > new")
    for path, source, words in (
        ("new", done.run, "there was nothing at new before run"),
        ("a", done.run, f"run {done.run} did not change a"),
        ("a", "01ZZZZ", "there is no run 01ZZZZ"),
        ("nowhere", "", "there is no backup of nowhere"),
        ("", "", "an empty path is not a path in"),
        ("/etc/passwd", "", "/etc/passwd is not a path in"),
        ("../outside", "", "../outside is not a path in"),
        (".", "", ". is not a path in"),
    ):
        with pytest.raises(BadRequest) as failed:
            restore(store, known, path, source)
        assert words in failed.value.message
        assert failed.value.hint
        assert "\n" not in failed.value.message


def test_a_path_is_meant_as_a_person_means_it(
    run: Callable[..., Run], store: Store, known: Project, project: Path, test_directory: Path
) -> None:
    (project / "d").mkdir()
    (project / "d/a").write_text("one")
    (test_directory / "way").symlink_to(project)
    run("rm d/a")
    below, way = str(project / "d"), str(test_directory / "way")
    for path, here in (
        ("d/a", ""), ("a", below), ("d/a", below), ("../d/a", below), (f"{below}/a", "/"), (f"{way}/d/a", "/"),
    ):  # fmt: skip
        restore(store, known, path, here=here)
        assert (project / "d/a").read_text() == "one"
        (project / "d/a").unlink()


def test_a_full_disk_changes_nothing(
    run: Callable[..., Run], store: Store, known: Project, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a").write_text("one")
    run("echo two > a")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fumehood.service.restore.copy_entry", full)
    with pytest.raises(ApplyFailed, match="a was not restored: No space left"):
        restore(store, known, "a")
    assert (project / "a").read_text() == "two\n"
    assert states(store)[0] == ("restore", "failed")
    assert not os.path.exists(store.places.run(store.history.runs()[0].run))


def test_files_are_listed_with_all_they_can_be_restored_from(
    run: Callable[..., Run], store: Store, known: Project, project: Path
) -> None:
    for name in ("a", "b", "c"):
        (project / name).write_text("one")
    first, second = run("echo 2 > a; rm b"), run("echo 3 > a; echo new > d")
    found = {each.record.path: each for each in known_files(store, known)}
    today = (day_of(time.time()),)
    assert (found["a"].days, found["a"].runs) == (today, (second.run, first.run))
    assert (found["b"].days, found["b"].runs, found["b"].record.is_deleted) == (today, (first.run,), True)
    assert (found["d"].days, found["d"].runs, found["d"].was_touched) == ((), (), True), "a run made it"
    assert "c" not in found
    one = known_file(store, known, known.path, "a")
    assert one is not None
    assert (one.days, one.runs) == (found["a"].days, found["a"].runs)


def test_the_python_face_lists_and_restores(sandbox: Sandbox, project: Path) -> None:
    (project / "d").mkdir()
    (project / "d/a").write_text("one")
    first = sandbox.run("echo two > d/a; echo x > b")
    second = sandbox.run("rm d/a")
    assert {each["path"]: each["is_deleted"] for each in sandbox.files()} == {"b": False, "d/a": True}
    (found,) = sandbox.files("d")
    assert (found["path"], found["runs"]) == ("d/a", [second.run, first.run])
    assert sandbox.files(project / "d/a")[0] == found
    back = sandbox.restore("d/a", first.run)
    assert (back.state, (project / "d/a").read_text()) == ("applied", "one")
    sandbox.undo(back)
    assert not (project / "d/a").exists()
    with pytest.raises(BadRequest):
        sandbox.restore("nothing")
