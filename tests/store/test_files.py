"""The records of files, and the names of their backups."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from fumehood.core.changes import Change, Stamp
from fumehood.core.report import Run
from fumehood.linux.nofollow import stamp_of
from fumehood.service.store import Store
from fumehood.store.database import Days, day_of, note_day
from fumehood.store.files import (
    NO_LONGER_IN_LAYER,
    DailyBackups,
    Files,
    LayerSlots,
    RootUpdates,
    backup_name,
    backup_parts,
)

ROOT = b"/project"


@pytest.fixture
def files(store: Store, project: Path) -> Files:
    number = store.projects.open(str(project)).id
    assert number == 1
    for name in ("RUN1", "RUN2"):
        store.history.begin(
            1, Run(run=name, project=str(project), command="x", cwd="/", state="running", roots=("/project",)), 1
        )
    return Files(store.database)


def numbers(files: Files, root: bytes, paths: Sequence[bytes]) -> dict[bytes, int]:
    return files.numbers_of(1, root, [(path, "file", 1, 2) for path in paths])


def note(files: Files, run: str, *noted: tuple[int, bytes, str, int, int, bytes], are_deleted: bool = False) -> None:
    """Record files that a run changed or deleted: number, path, kind, size, time, new copy."""
    root = RootUpdates(ROOT)
    (root.deleted_rows if are_deleted else root.rows).extend(noted)
    files.record_after_run(1, run, [root])


def delete(files: Files, run: str, path: bytes) -> None:
    """Record that a run deleted a file."""
    root = RootUpdates(ROOT)
    root.seen_deleted.append((path, "file", 1, 2))
    files.record_after_run(1, run, [root])


def all_of(files: Files) -> dict[str, dict[str, object]]:
    return {record.path: record.fields() for record in files.find_below(1, os.fsdecode(ROOT))}


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("7-26-03-01-notes.txt", (7, "26-03-01")),
        ("12-26-03-01-a-b-c", (12, "26-03-01")),
        ("12-26-03-01-", (12, "26-03-01")),
        ("12-26-03-01", None),
        ("x-26-03-01-a", None),
        ("7-2026-03-01-a", None),
        ("7-26-3-01-a", None),
        ("\N{ARABIC-INDIC DIGIT SEVEN}-26-03-01-a", None),
        (".copying-12-ab", None),
        ("", None),
    ],
)
def test_the_name_of_a_backup_tells_the_file_and_the_day(name: str, meaning: tuple[int, str] | None) -> None:
    assert backup_parts(name) == meaning


def test_a_long_name_loses_its_end_and_keeps_its_bytes() -> None:
    name = backup_name(7, b"26-03-01", b"\xff" + b"x" * 254)
    assert len(name) == 255
    assert name.startswith(b"7-26-03-01-\xff")
    assert backup_parts(os.fsdecode(name)) == (7, "26-03-01")


def test_backups_expire_by_the_days_that_were_recorded_since(files: Files) -> None:
    now = 1_772_366_400.0  # 2026-03-01, noon UTC
    with files.database.transaction() as connection:
        for days in (8, 7, 400, 5, 4, 3, 2, 1, 0):
            note_day(connection, now - days * 86_400)
    oldest, wrong, today = (day_of(now - days * 86_400) for days in (8, 400, 0))
    names = [f"1-{today}-a", f"2-{wrong}-b", f"3-{oldest}-c", "4-20-01-01-d", "5-99-01-01-e", "no-backup-at-all"]
    recorded = Days(files.database)

    def expired(days: int) -> list[str]:
        dated = [(name, backup_parts(name)) for name in names]
        return [name for name, parts in dated if parts is not None and recorded.days_after(parts[1]) > days]

    assert expired(7) == [f"3-{oldest}-c", "4-20-01-01-d"]
    assert expired(5) == [f"2-{wrong}-b", f"3-{oldest}-c", "4-20-01-01-d"]


def test_a_number_is_never_given_twice(files: Files) -> None:
    first = numbers(files, ROOT, [b"a", b"b"])
    assert numbers(files, ROOT, [b"a", b"b"]) == first
    second = numbers(files, ROOT, [b"c"])
    assert set(first.values()).isdisjoint(second.values())
    note(files, "RUN1", (second[b"c"], b"c", "file", 1, 2, b""))
    files.drop(second.values())
    assert numbers(files, ROOT, [b"d"])[b"d"] > second[b"c"]


def test_a_known_path_keeps_its_number(files: Files) -> None:
    number = numbers(files, ROOT, [b"a"])[b"a"]
    note(files, "RUN1", (number, b"a", "file", 1, 2, b"edited/1"))
    assert numbers(files, ROOT, [b"a", b"b"])[b"a"] == number
    assert numbers(files, b"/other", [b"a"])[b"a"] != number


def test_a_record_keeps_its_copy_until_there_is_a_newer_one(files: Files) -> None:
    number = numbers(files, ROOT, [b"a"])[b"a"]
    note(files, "RUN1", (number, b"a", "file", 1, 2, b"edited/old"))
    note(files, "RUN2", (number, b"a", "file", 5, 6, b""), are_deleted=True)
    known = files.find(1, "/project", "a")
    assert known is not None
    assert (known.last_approved_copy_path, known.is_deleted, known.size) == ("edited/old", True, 5)
    assert known.last_run == "RUN2"
    note(files, "RUN2", (number, b"a", "file", 5, 6, b"edited/new"))
    known = files.find(1, "/project", "a")
    assert known is not None
    assert (known.last_approved_copy_path, known.is_deleted) == ("edited/new", False)


def test_many_records_are_written_and_read(files: Files) -> None:
    paths = [b"d/%d" % n for n in range(1234)]
    given = numbers(files, ROOT, paths)
    assert len(set(given.values())) == 1234
    note(files, "RUN1", *[(given[path], path, "file", 1, 2, b"") for path in paths])
    assert numbers(files, ROOT, paths) == given
    assert sum(len(some) for some in files.present_files(1, ROOT, 100)) == 1234
    assert len(files.find_below(1, "/project", "d")) == 1234


def test_a_name_of_any_bytes_is_kept(files: Files) -> None:
    raw = b"a\xff\n'\""
    number = numbers(files, ROOT, [raw])[raw]
    note(files, "RUN1", (number, raw, "file", 1, 2, b""))
    assert files.find(1, "/project", os.fsdecode(raw)) is not None
    assert list(all_of(files)) == [os.fsdecode(raw)]


def test_what_was_recorded_after_the_look_knows_better(files: Files) -> None:
    files.record_seen(1, ROOT, [(b"a", "file", 1, 2)], 100.0)
    assert files.record_seen(1, ROOT, [(b"a", "file", 1, 2)], 200.0) == 0
    assert files.record_seen(1, ROOT, [(b"a", "file", 9, 9)], 200.0) == 1
    assert files.record_seen(1, ROOT, [(b"a", "file", 5, 5)], 150.0) == 0
    assert all_of(files)["a"]["size"] == 9


def test_a_file_that_is_there_again_is_not_deleted(files: Files) -> None:
    delete(files, "RUN1", b"a")
    assert all_of(files)["a"]["is_deleted"]
    files.record_seen(1, ROOT, [(b"a", "file", 1, 2)], time.time() + 100)
    assert not all_of(files)["a"]["is_deleted"]
    assert all_of(files)["a"]["last_run"] == "RUN1"


def test_only_what_lies_below_a_directory_is_listed(files: Files) -> None:
    places = [b"src/a", b"src/b/c", b"src.txt", b"src", b"src0", b"other"]
    files.record_seen(1, ROOT, [(place, "file", 1, 2) for place in places], 1.0)
    assert [record.path for record in files.find_below(1, "/project", "src")] == ["src/a", "src/b/c"]


def test_records_that_are_deleted_or_wait_are_never_dropped(files: Files) -> None:
    delete(files, "RUN1", b"gone")
    files.record_seen(1, ROOT, [(b"there", "file", 1, 2), (b"waits", "file", 1, 2)], 1.0)
    files.mark_waiting(1, [(ROOT, b"waits")])
    files.drop(int(str(fields["id"])) for fields in all_of(files).values())
    assert set(all_of(files)) == {"gone", "waits"}


def test_what_would_only_have_come_to_be_is_forgotten_when_nothing_waits_any_more(files: Files) -> None:
    files.record_seen(1, ROOT, [(b"there", "file", 1, 2)], 1.0)
    files.mark_waiting(1, [(ROOT, b"there"), (ROOT, b"new")])
    assert files.waiting_places(1) == {(ROOT, b"there"), (ROOT, b"new")}
    files.clear_waiting(1, files.waiting_places(1))
    assert set(all_of(files)) == {"there"}
    assert files.waiting_places(1) == set()


def test_many_that_wait_are_written_once_each(files: Files) -> None:
    paths = [b"directory/of/%05d" % number for number in range(40_000)]
    files.record_seen(1, ROOT, [(path, "file", 1, 2) for path in paths], 1.0)
    places = {(ROOT, path) for path in paths}  # they come as sets, in no order

    def written_by(act: Callable[[int, Iterable[tuple[bytes, bytes]]], None]) -> int:
        before = _bytes_written()
        act(1, places)
        return _bytes_written() - before

    size = os.path.getsize(files.database.path)
    assert written_by(files.mark_waiting) < 3 * size
    assert written_by(files.clear_waiting) < 3 * size


def _bytes_written() -> int:
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])


def test_what_is_due_is_done_in_order(files: Files) -> None:
    assert files.due_runs(1) == []
    with files.database.transaction() as connection:
        for run in ("RUN1", "RUN2", "RUN1"):
            connection.execute("INSERT INTO files_due (project, run, begun) VALUES (1, ?, 0)", (run,))
    assert [each[1:] for each in files.due_runs(1)] == [("RUN1", 0.0, 0), ("RUN2", 0.0, 0), ("RUN1", 0.0, 0)]
    files.begin_due([files.due_runs(1)[2][0]])
    files.drop_due(each[0] for each in files.due_runs(1)[:2])
    assert [each[1:] for each in files.due_runs(1)] == [("RUN1", 0.0, 1)]
    assert files.due_runs(2) == []


def taken(path: Path) -> Change:
    """The change that took this file out of the project."""
    found = stamp_of(path.stat()) if path.exists() else Stamp("file", 1, 2, 3, 4, 5)
    return Change(0, path.name, "modified", "file", before=found, verdict="applied")


@pytest.fixture
def slots(test_directory: Path) -> Iterator[LayerSlots]:
    upper = test_directory / "upper"
    (upper / "d").mkdir(parents=True)
    (upper / "d/a").write_text("one")
    with LayerSlots(str(upper)) as slots:
        yield slots


def test_a_backup_shares_its_inode_with_the_original_and_stays_when_there_is_one(
    store: Store, slots: LayerSlots, test_directory: Path
) -> None:
    edited = Path(store.places.state, "edited")
    with DailyBackups(store.places.state) as daily:
        original = test_directory / "upper/d/a"
        assert daily.add_all(slots, [(b"d", b"a", b"1-26-03-01-a", taken(original))]) == {}
        assert edited.stat().st_mode & 0o777 == 0o700
        assert (edited / "1-26-03-01-a").samefile(test_directory / "upper/d/a")
        original.unlink()
        original.write_text("two")
        assert daily.add_all(slots, [(b"d", b"a", b"1-26-03-01-a", taken(original))]) == {}
        assert (edited / "1-26-03-01-a").read_text() == "one"
        assert daily.names_by_file() == {1: ["1-26-03-01-a"]}


def test_what_can_not_be_saved_is_told_and_the_rest_is_saved(
    store: Store, slots: LayerSlots, test_directory: Path
) -> None:
    there = taken(test_directory / "upper/d/a")
    missing = taken(test_directory / "missing")
    with DailyBackups(store.places.state) as daily:
        failed = daily.add_all(
            slots, [(b"d", b"missing", b"1-26-03-01-x", missing), (b"d", b"a", b"2-26-03-01-a", there)]
        )
        assert set(failed) == {0}
        assert isinstance(failed[0], FileNotFoundError)
        assert daily.names_by_file() == {2: ["2-26-03-01-a"]}


@pytest.mark.parametrize("other", ["size", "time", "the run's own version"])
def test_what_is_not_the_original_any_more_is_not_saved(
    store: Store, slots: LayerSlots, test_directory: Path, other: str
) -> None:
    change = taken(test_directory / "upper/d/a")
    assert change.before is not None
    if other == "size":
        change.before.size += 1
    elif other == "time":
        change.before.modified_ns += 1
    else:
        change.after = stamp_of((test_directory / "upper/d/a").stat())
    with DailyBackups(store.places.state) as daily:
        (failed,) = daily.add_all(slots, [(b"d", b"a", b"1-26-03-01-a", change)]).values()
        assert failed.strerror == NO_LONGER_IN_LAYER
        assert daily.names_by_file() == {}


def test_across_file_systems_a_backup_is_a_whole_copy(
    other_filesystem: Path, slots: LayerSlots, test_directory: Path
) -> None:
    os.chmod(test_directory / "upper/d/a", 0o640)
    os.utime(test_directory / "upper/d/a", ns=(1, 2_000_000_000))
    wanted = [(b"d", b"a", b"1-26-03-01-a", taken(test_directory / "upper/d/a"))]
    with DailyBackups(str(other_filesystem)) as daily:
        assert daily.add_all(slots, wanted) == {}
        assert daily.add_all(slots, wanted) == {}
        assert [name for name, _ in daily.entries()] == ["1-26-03-01-a"]
    copy = other_filesystem / "edited/1-26-03-01-a"
    assert copy.read_text() == "one"
    assert (copy.stat().st_mode & 0o777, copy.stat().st_mtime_ns) == (0o640, 2_000_000_000)


def test_an_original_in_a_closed_directory_is_saved_and_the_directory_closed_again(
    store: Store, test_directory: Path
) -> None:
    upper = test_directory / "upper"
    (upper / "d/e").mkdir(parents=True)
    (upper / "d/e/a").write_text("one")
    change = taken(upper / "d/e/a")
    (upper / "d/e").chmod(0)
    (upper / "d").chmod(0)
    try:
        with LayerSlots(str(upper)) as slots, DailyBackups(store.places.state) as daily:
            assert daily.add_all(slots, [(b"d/e", b"a", b"1-26-03-01-a", change)]) == {}
            found = slots.look("d/e", "a")
            assert found is not None
            assert found.st_nlink == 2
        assert (upper / "d").stat().st_mode & 0o777 == 0
    finally:
        (upper / "d").chmod(0o700)
    assert (upper / "d/e").stat().st_mode & 0o777 == 0
    (upper / "d/e").chmod(0o700)
