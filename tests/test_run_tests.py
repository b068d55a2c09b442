"""What `make test` does before the tests: as root, it installs what they need; else it says what is missing and why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
INSTALLS = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in *install*) for tool in busybox strace; do /bin/cp {folder}/git {folder}/$tool; done;; esac
"""
FAILS = """#!/bin/sh
case "$*" in *install*) echo "Reading package lists..."; echo "E: no room" >&2; echo "E: give up" >&2; exit 100;; esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with every program the tests need, but busybox and strace."""
    known = "import run_tests; print(*run_tests.SYSTEM_TOOLS)"
    for tool in {*python(known, os.environ["PATH"]).split()} - {"busybox", "strace"}:
        add(tmp_path / tool, "#!/bin/sh\n")
    return tmp_path


def add(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)


def python(code: str, path: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(TOOLS), "PATH": path}
    command = [sys.executable, "-B", "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def provided(folder: Path, *, is_root: bool) -> list[str]:
    """What is said where only these programs are there."""
    return python(f"import run_tests; run_tests.install_missing_tools(is_root={is_root})", str(folder)).splitlines()


def test_root_has_what_is_missing_installed(folder: Path) -> None:
    add(folder / "apt-get", INSTALLS.format(folder=folder))
    assert provided(folder, is_root=True) == ["installing busybox-static strace"]
    update, install = (folder / "asked").read_text().splitlines()
    assert update.endswith("update -qq")
    assert install.endswith("install -y -qq --no-install-recommends busybox-static strace")


def test_where_nothing_is_missing_nothing_is_installed(folder: Path) -> None:
    add(folder / "apt-get", INSTALLS.format(folder=folder))
    for tool in ("busybox", "strace"):
        add(folder / tool, "#!/bin/sh\n")
    assert provided(folder, is_root=True) == []
    assert not (folder / "asked").exists()


def test_an_install_that_fails_is_said_in_the_package_managers_last_words(folder: Path) -> None:
    add(folder / "apt-get", FAILS)
    installing, failed, *missing = provided(folder, is_root=True)
    assert (installing, failed) == ("installing busybox-static strace", "this failed: E: give up")
    assert len(missing) == 2


def test_who_is_not_root_is_told_what_is_missing_and_what_for(folder: Path) -> None:
    add(folder / "apt-get", INSTALLS.format(folder=folder))
    busybox, strace, line = provided(folder, is_root=False)
    assert busybox.startswith("not here: busybox (package busybox-static); not tried without it: attacks")
    assert strace == "not here: strace (package strace); not tried without it: being killed at any system call"
    assert line == "to run every test, type: sudo apt install busybox-static strace"
    assert not (folder / "asked").exists()


@pytest.mark.parametrize("is_root", [True, False])
def test_without_a_package_manager_it_is_said_too(folder: Path, is_root: bool) -> None:
    busybox, strace = provided(folder, is_root=is_root)
    assert "busybox-static" in busybox
    assert "killed at any system call" in strace


LATE = """
from pathlib import Path

def test_late():
    seen = Path(__file__).with_name("seen")
    was_seen = seen.exists()
    seen.touch()
    assert was_seen
"""
WRONG = """
def test_wrong():
    assert False
"""
TWO_TRIES = """
import sys, run_tests
from pathlib import Path
tester = run_tests.Tester("somebody", [sys.executable], Path(sys.argv[1]), None)
times = iter([[0] * 8, [50] * 7 + [int(sys.argv[2])]])
run_tests.MachineTime._times = staticmethod(lambda: next(times))
machine = run_tests.MachineTime()
with run_tests.PytestRun(tester, run_tests.RETRY, run_tests.Selection("", ["test_some.py"])) as run:
    result = machine.retry_if_stolen(tester, run.wait())
print("ended", result.status, *result.failure_lines)
"""


@pytest.mark.parametrize(
    ("text", "taken", "ended"),
    [
        (LATE, 10, "ended 1 FAILED test_some.py::test_late - assert False"),
        (LATE + WRONG, 200, "ended 1 FAILED test_some.py::test_wrong - assert False"),
    ],
)
def test_what_failed_is_tried_again_only_where_the_machine_was_taken_away(
    tmp_path: Path, text: str, taken: int, ended: str
) -> None:
    (tmp_path / "test_some.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FUMEHOOD_"))}
    environment |= {"PYTHONPATH": f"{TOOLS}:{TOOLS.parent / 'tests'}", "PYTEST_ADDOPTS": "-p conftest --rootdir=."}
    done = subprocess.run(
        [sys.executable, "-B", "-c", TWO_TRIES, str(tmp_path), str(taken)],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == ended
    assert ("tried again, alone" in done.stdout) == (taken > 100)
