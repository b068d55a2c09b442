"""Which runs a name reaches."""

from pathlib import Path

import pytest

from fumehood.core.report import Run
from fumehood.errors import BadRequest
from fumehood.service.store import Store
from fumehood.store.history import RunFilter

RUNS = {"01A1": ("one", "s"), "01A2": ("one", "t"), "01B1": ("one", None), "01C1": ("two", "u"), "01C2": ("two", None)}


@pytest.fixture
def numbers(store: Store, test_directory: Path) -> dict[str, int]:
    """Two projects with runs of sessions and of the person; returns their numbers."""
    numbers = {}
    for name in ("one", "two"):
        (test_directory / name).mkdir()
        numbers[name] = store.projects.open(str(test_directory / name)).id
    for name, (project, session) in RUNS.items():
        path = str(test_directory / project)
        run = Run(run=name, project=path, command="x", cwd="/", state="running", roots=(path,), session=session)
        store.history.begin(numbers[project], run, 1)
    return numbers


def reached(store: Store, *reaches: RunFilter) -> list[str]:
    return [run.run for run in store.history.runs(*reaches)][::-1]


def test_a_reach_leaves_a_projects_or_sessions_runs(store: Store, numbers: dict[str, int]) -> None:
    one, session = RunFilter(project=numbers["one"]), RunFilter(sessions=("s",))
    assert reached(store) == reached(store, RunFilter()) == list(RUNS)
    assert reached(store, one) == ["01A1", "01A2", "01B1"]
    assert reached(store, session) == ["01A1"]
    assert reached(store, RunFilter(sessions=("s", "u"))) == ["01A1", "01C1"]
    assert reached(store, RunFilter(project=numbers["two"], sessions=("s",))) == []
    assert reached(store, RunFilter(sessions=("nobody",))) == []
    assert reached(store, RunFilter(project=0)) == []


def test_several_reaches_only_narrow(store: Store, numbers: dict[str, int]) -> None:
    mine = RunFilter(sessions=("s",))
    for other in (RunFilter(), RunFilter(project=numbers["one"]), RunFilter(sessions=("s", "t"))):
        assert reached(store, mine, other) == ["01A1"]
    assert reached(store, mine, RunFilter(sessions=("t",))) == []


def test_what_is_out_of_reach_is_not_told_from_what_never_was(store: Store, numbers: dict[str, int]) -> None:
    mine = RunFilter(project=numbers["one"], sessions=("s",))
    assert store.history.find("last", mine).run == "01A1"
    # The beginning of others' names makes nothing ambiguous.
    assert store.history.find("0", mine).run == store.history.find("01a", mine).run == "01A1"
    for name in ("01A2", "01B1", "01C1", "01B", "01C", "01ZZ"):
        with pytest.raises(BadRequest) as error:
            store.history.find(name, mine)
        assert (error.value.message, error.value.hint) == (f"there is no run {name}", "fumehood log lists them")
    with pytest.raises(BadRequest, match="there is no run last"):
        store.history.find("last", RunFilter(sessions=("nobody",)))
    with pytest.raises(BadRequest, match="several runs begin with 0: 01A1, 01A2"):
        store.history.find("0", RunFilter(project=numbers["one"]))
    # An empty name, as of a variable that is not set, is not the beginning of the only one.
    with pytest.raises(BadRequest, match="there is no run without a name"):
        store.history.find("", mine)
