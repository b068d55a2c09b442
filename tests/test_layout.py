"""The shape of the source: which way imports point, how long files are, and what a start loads."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from conftest import need

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCES = CHECKOUT / "src"
PACKAGE = SOURCES / "fumehood"
MODULES = sorted(PACKAGE.rglob("*.py"))

# How many lines each folder may have, and all together: what is added is paid for. It only goes down, until it reads as
# the plan of the second edition does: 34,000 in 140 files.
BUDGET = {
    "adapters": 761,
    "core": 11_137,
    "faces": 1,
    "faces/cli": 7_550,
    "faces/mcp": 1_357,
    "faces/terminal": 1_237,
    "faces/web": 1_693,
    "linux": 14_865,
    "proxy": 2_004,
    "rootfs": 1_835,
    "service": 17_966,
    "service/fleet": 1_613,
    "store": 4_130,
    "top": 501,
}
MAX_LINES, MAX_FILES = 66_650, 208

# docs/design.md, section 4: each may import itself and what stands before it. The public names ("") are the
# service's, shown to the faces and to users; so are those of the package `rootfs` itself.
ORDER = ["errors", "module_cache", "core", "linux", "proxy", "rootfs", "store", "service", "workspaces", ""]
ORDER += ["faces", "adapters", "__main__"]

SLOW = {"argparse", "asyncio", "contextlib", "dataclasses", "enum", "inspect", "json", "logging", "pathlib"}
SLOW |= {"collections", "ctypes", "functools", "re", "signal", "socket", "sqlite3", "subprocess", "threading"}
SLOW |= {"tomllib", "typing"}


def layer(dotted: str) -> str:
    """The entry of ORDER that a module of ours belongs to."""
    return dotted.split(".")[1] if "." in dotted and dotted != "fumehood.rootfs" else ""


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_ours(dotted: str) -> bool:
    return dotted == "fumehood" or dotted.startswith("fumehood.")


def exists(dotted: str) -> bool:
    place = SOURCES.joinpath(*dotted.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All that a file is made of; kept, since several tests look at each."""
    return list(ast.walk(ast.parse(path.read_bytes())))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every module of ours that a file imports: in functions and type-only blocks too."""
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            # `from fumehood import errors` names a module, `from fumehood import Sandbox` the package.
            inner = [f"{source}.{alias.name}" for alias in node.names]
            found = [one if exists(one) else source for one in inner] if is_ours(source) else []
        else:
            continue
        yield from ((node.lineno, one) for one in found if is_ours(one))


def test_every_module_has_its_place_in_the_order() -> None:
    strangers = {name_of(path) for path in MODULES if layer(name_of(path)) not in ORDER}
    assert not strangers, "say in docs/design.md and here where they stand"


def test_imports_only_point_upward() -> None:
    wrong = []
    for path in MODULES:
        importer = layer(name_of(path))
        for line, imported in imports_of(path):
            if ORDER.index(layer(imported)) > ORDER.index(importer):
                wrong.append(f"{path.relative_to(CHECKOUT)}:{line}: imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_imports_form_a_circle() -> None:
    # Late and type-only ones count. What `_MODULES` in faces/cli/commands.py loads by name is not seen here: the table
    # knows the commands, and the commands know what is in that module.
    imports = {name_of(path): {imported for _, imported in imports_of(path)} for path in MODULES}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_no_two_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(CHECKOUT)}:{node.lineno}")
    # Called as Harbor and mini-swe-agent call theirs: a user of one never meets the other.
    places.pop("FumehoodEnvironment")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_names_say_what_they_hold() -> None:
    empty = {"found", "told", "given", "known"}
    for path in MODULES:
        for node in nodes_of(path):
            names = {getattr(node, field, None) for field in ("id", "arg", "name", "attr")}
            bare = {name.strip("_") for name in names if isinstance(name, str)}
            assert not bare & empty, f"{path.relative_to(CHECKOUT)}:{getattr(node, 'lineno', '')}"


def folder_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts) or "top"


def test_every_folder_keeps_its_budget_of_lines() -> None:
    lines: dict[str, int] = defaultdict(int)
    for path in MODULES:
        lines[folder_of(path)] += len(path.read_bytes().splitlines())
    assert not {folder: count for folder, count in lines.items() if count > BUDGET.get(folder, 0)}
    assert (sum(lines.values()) <= MAX_LINES, len(MODULES) <= MAX_FILES) == (True, True)


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes any error at all and keeps it: to clean up and raise again is fine."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
    raises_again = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return (handler.type is None or bool(names & {"Exception", "BaseException"})) and not raises_again


def test_no_handler_swallows_errors_it_does_not_know() -> None:
    broad = []
    for path in MODULES:
        lines = path.read_text().splitlines()
        for node in nodes_of(path):
            # A listener may raise anything: where that is meant, the line says so to ruff, and why.
            meant = isinstance(node, ast.ExceptHandler) and "noqa: BLE001" in lines[node.lineno - 1]
            if isinstance(node, ast.ExceptHandler) and is_broad(node) and not meant:
                broad += [f"{path.relative_to(CHECKOUT)}:{node.lineno}"]
    assert not broad, "\n".join(broad)


def test_the_locked_packages_are_those_the_distribution_asks_for() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    asked = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    lines = (CHECKOUT / "requirements/run.in").read_text().splitlines()
    assert asked == {re.split(r"[^\w-]", line)[0] for line in lines if line and not line.startswith("#")}


def test_no_committed_requirement_names_an_index() -> None:
    for path in (CHECKOUT / "requirements").iterdir():
        assert "://" not in path.read_text(), path.name


def imported_by(project: Path, line: str) -> set[str]:
    """Every module that running a shell line imports."""
    # Without site, as the wrapper starts it: what site loads is not ours.
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    path = f"import sys; sys.path += {[str(SOURCES), *packages]}; "
    start = path + "from fumehood.faces.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-I", "-S", "-X", "importtime", "-c", start, "run", "--", line]
    # The first run of a boot also probes the host, and so does one after somebody was given an account.
    for _ in range(4):
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        imported = re.findall(r"^import time:.*\| +(\S+)$", done.stderr, flags=re.MULTILINE)
        if "fumehood.linux.probe" not in imported:
            break
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    need(done.returncode == 0, f"a plain run fails here: {' '.join(said)[-300:]}")
    assert "fumehood.faces.cli.main" in imported
    return set(imported)


@pytest.mark.namespaces
@pytest.mark.parametrize("line", ["true", "sleep 0.5"], ids=["at once", "after a while"])
def test_a_plain_run_loads_nothing_slow(home: Path, project: Path, line: str) -> None:
    # While it goes on, nothing is loaded but what asks whether there is something to do.
    assert not sorted((SLOW | {"fumehood.service.apply", "fumehood.service.verdicts"}) & imported_by(project, line))


@pytest.mark.namespaces
def test_a_run_that_changes_something_loads_neither_what_mends_nor_other_commands(home: Path, project: Path) -> None:
    imported = imported_by(project, "date +%N > a")
    assert "fumehood.faces.cli.run_text" in imported
    others = {"fumehood.service.recover", "fumehood.service.decide", "fumehood.faces.cli.commands", "argparse"}
    assert not sorted(others & imported)
