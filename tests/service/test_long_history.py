"""What a long history costs: nothing that is asked for every day may take longer for each run that ever was."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import Run, Sandbox
from fumehood.core.changes import Change
from fumehood.service import layers
from fumehood.service.clean import clean
from fumehood.service.restore import known_files, versions
from fumehood.service.store import Store
from fumehood.service.undo import last_to_undo, to_redo, undo
from fumehood.store import records
from fumehood.store.history import RunFilter
from fumehood.store.projects import Project

pytestmark = pytest.mark.namespaces
MANY = 2_000


@pytest.fixture
def runs(run: Callable[..., Run], project: Path) -> list[Run]:
    """Two runs that changed one file in turn."""
    (project / "a").write_text("zero\n")
    return [run("echo one >> a"), run("echo two >> a")]


def steps(store: Store, act: Callable[[], object]) -> int:
    """Count the steps, in tens, that the database takes for something."""
    count = 0

    def another() -> int:
        nonlocal count
        count += 1
        return 0

    connection = store.database._connection
    connection.set_progress_handler(another, 10)
    try:
        act()
    finally:
        connection.set_progress_handler(None, 10)
    return count


def make_long(store: Store, template: Run) -> None:
    """Let many more runs have done what one did, before it and in other directories."""
    columns = [row[1] for row in store.database.rows("PRAGMA table_info(runs)")]
    own = {"number": "-:n", "project_number": "1000 + :n", "id": "'00' || :n", "layer": "'00' || :n"}
    numbers = ", ".join(own.get(name, name) for name in columns)
    with store.database.transaction() as connection:
        for n in range(1, MANY + 1):
            values = {"n": n, "run": template.run}
            connection.execute(f"INSERT INTO runs SELECT {numbers} FROM runs WHERE id = :run", values)
            connection.execute(
                "INSERT INTO changes SELECT -:n, n, root, cast('elsewhere' || :n AS BLOB), within, entries, verdict"
                " FROM changes WHERE run = (SELECT number FROM runs WHERE id = :run)",
                values,
            )


ASKED: dict[str, Callable[[Store, Project], object]] = {
    "undo": lambda store, project: last_to_undo(store, RunFilter(project=project.id)),
    "redo": lambda store, project: to_redo(store, "last", RunFilter(project=project.id)),
    "log": lambda store, project: store.history.runs(RunFilter(project=project.id), limit=2),
    "the versions of a file": lambda store, project: versions(store, project, project.path, "a"),
    "the users of a layer": lambda store, _: store.history.runs_using_layer("01"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_the_database_does_for_an_answer_does_not_grow_with_the_runs(
    asked: str, runs: list[Run], sandbox: Sandbox, project: Path, store: Store
) -> None:
    sandbox.undo(runs[1])
    here = store.projects.open(str(project))
    short = steps(store, lambda: ASKED[asked](store, here))
    make_long(store, runs[0])
    assert steps(store, lambda: ASKED[asked](store, here)) < 2 * short + 20


def test_a_cleaning_measures_only_what_was_settled_since_the_last_one(
    runs: list[Run], run: Callable[..., Run], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def disk_usage(directory: int, name: str, *, freed: bool = False) -> int:
        measured.append(name)
        return layers.disk_usage(directory, name, freed=freed)

    monkeypatch.setattr("fumehood.service.clean.disk_usage", disk_usage)
    clean(store, budget=1 << 40)
    assert sorted(measured) == [each.run for each in runs]
    another = run("echo three >> a")
    for expected in ([another.run], []):
        measured.clear()
        clean(store, budget=1 << 40)
        assert measured == expected


def sources(store: Store, project: Project) -> dict[str, list[str]]:
    """Return the runs that each file can be restored from, by a look at each file alone."""
    return {
        path: [each.source for each in versions(store, project, project.path, path) if "-" not in each.source]
        for path in ("a", "b")
    }


def test_the_list_of_files_names_the_runs_that_each_can_be_had_from_whatever_became_of_them(
    sandbox: Sandbox, project: Path, store: Store
) -> None:
    for name in ("a", "b"):
        (project / name).write_text("zero\n")
    here = store.projects.open(str(project))
    both = sandbox.run("echo one >> a; echo one >> b")
    held = sandbox.run("echo two >> a; echo two >> b", apply=False)
    for act in (
        lambda: None,
        lambda: sandbox.apply(held, "a"),
        lambda: sandbox.apply(held),
        lambda: sandbox.undo(held, "b"),
        lambda: sandbox.undo(held),
        lambda: sandbox.undo(both, "a"),
        lambda: sandbox.undo(both),
        lambda: clean(store, days=0),
    ):
        act()
        listed = {each.record.path: list(each.runs) for each in known_files(store, here)}
        assert listed == sources(store, here)


def test_a_list_names_the_latest_runs_of_a_file_and_counts_them_all(
    run: Callable[..., Run], cli: Any, project: Path
) -> None:
    (project / "a").write_text("zero\n")
    runs = [run("echo more >> a").run for _ in range(23)]
    (listed,) = json.loads(cli("files", "--json").stdout)["files"]
    assert (listed["runs"], listed["run_count"]) == (runs[:2:-1], 23)
    assert "and 21 more" in cli("files").stdout
    assert len(json.loads(cli("files", "--json", "a").stdout)["runs"]) == 23


def test_a_file_of_a_project_that_moved_is_still_had_from_its_runs(
    runs: list[Run], project: Path, store: Store
) -> None:
    moved = project.rename(project.with_name("moved"))
    here = store.projects.open(str(moved))
    (listed,) = known_files(store, here)
    assert list(listed.runs) == [each.run for each in reversed(runs)] == sources(store, here)["a"]


def test_an_undo_reads_what_a_run_changed_once(
    run: Callable[..., Run], sandbox: Sandbox, project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run("for n in 0 1 2 3 4 5 6 7 8 9; do mkdir $n; echo x > $n/a; done")
    read: list[bytes] = []
    changes_of_row = records.changes_of_row

    def counted(root: int, directory: bytes, *rest: Any) -> Iterator[Change]:
        read.append(directory)
        return changes_of_row(root, directory, *rest)

    monkeypatch.setattr(records, "changes_of_row", counted)
    here = store.projects.open(str(project))
    undo(store, here, last_to_undo(store, RunFilter(project=here.id)))
    assert not list(project.iterdir())
    assert len(made.changed) == 20
    # One row a directory: the first one is also looked at to see that there is something to undo.
    assert len(read) == 12
