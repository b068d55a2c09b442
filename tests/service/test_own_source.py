"""What the running Fumehood finds out about itself."""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import fumehood
from fumehood.service import own_source as module
from fumehood.service.own_source import own_source as found_in

PACKAGE = Path(fumehood.__file__).resolve().parent


@pytest.fixture(autouse=True)
def _found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_loaded", None)


def test_a_project_elsewhere_has_nothing_of_ours(project: Path) -> None:
    assert found_in([str(project)]) is None


def test_source_environment_and_interpreter_are_ours() -> None:
    for path in (PACKAGE, os.path.realpath(sys.executable), Path(os.__file__).resolve().parent):
        top, name = os.path.split(path)
        own = found_in([top])
        assert own is not None
        assert (0, name) in own.places
    site = f"{sys.prefix}/bin"
    assert found_in([sys.prefix]) is not None
    inside = found_in([f"{os.path.realpath(site)}/somewhere"])
    assert inside is not None
    assert (0, "") in inside.places


def test_a_link_on_the_way_to_the_interpreter_is_ours(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "tool").symlink_to(Path(sys.executable).parent)
    monkeypatch.setattr(sys, "executable", f"{project}/tool/{Path(sys.executable).name}")
    own = found_in([str(project)])
    assert own is not None
    assert own.places == {(0, "tool")}


def test_links_in_a_circle_come_to_an_end(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a").symlink_to("b")
    (project / "b").symlink_to("a")
    monkeypatch.setattr(sys, "executable", f"{project}/a/python")
    monkeypatch.setattr(sys, "argv", [f"{project}/b"])
    assert found_in([str(project)]) is not None


def test_a_project_on_the_way_to_modules_may_be_changed_but_for_ours(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fumehood.core.danger import is_own_source
    from judging import added

    monkeypatch.setattr(sys, "path", [str(project), *sys.path, f"{project}/late"])
    own = found_in([str(project)])
    assert own is not None
    assert is_own_source(added("json.py"), own)
    assert is_own_source(added("yaml/__init__.py"), own)
    assert is_own_source(added("late/h11/__init__.py"), own)
    assert is_own_source(added("pluggy.py"), own)
    for path in ("app.py", "test/json.py", "src/app/json.py", "late/json.py", "late/pluggy.py"):
        assert not is_own_source(added(path), own)


def test_every_package_that_fumehood_needs_is_known() -> None:
    lock = (Path(__file__).parents[2] / "requirements/run.txt").read_text().splitlines()
    needed = [line.partition("==")[0] for line in lock if line[:1].isalpha()]
    tops = {
        file.parts[0].partition(".")[0]
        for name in needed
        for file in distribution(name).files or []
        if not file.parts[0].endswith((".dist-info", ".libs")) and file.parts[0] not in ("..", "__pycache__")
    }
    assert tops
    assert tops <= module._IMPORTED_NAMES


def test_it_loads_nothing_slow() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import fumehood.service.verdicts; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code, str(PACKAGE.parent)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"re", "typing", "enum", "dataclasses", "json", "pathlib", "subprocess"} & set(loaded)
