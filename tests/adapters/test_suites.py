"""Other people's suites on the adapters, each in the environment that has the real framework."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SUITES = CHECKOUT / "tools/suites.py"
MUST_RUN = os.environ.get("FUMEHOOD_TESTS_MUST_RUN") == "1"


def provided(question: str) -> bool:
    """Ask tools/suites.py, which knows what is installed."""
    code = f"import sys, suites; sys.exit(not suites.{question}())"
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "tools")}
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def run_suites(*names: str) -> None:
    done = subprocess.run([sys.executable, SUITES, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-9000:]}\n{done.stderr[-2000:]}"


@pytest.mark.installs
@pytest.mark.timeout(1200)  # the first time, a hundred packages are installed
def test_the_suites_of_the_frameworks_pass_and_the_examples_run() -> None:
    need(MUST_RUN or provided("has_frameworks"), "the frameworks are not installed; `make suites` installs them")
    run_suites("inspect", "deepagents", "deepagents-0.7", "examples")


@pytest.mark.installs
@pytest.mark.timeout(1200)
def test_harbor_runs_its_oracle() -> None:
    need(MUST_RUN or provided("has_frameworks"), "the frameworks are not installed; `make suites` installs them")
    if not provided("newer_python"):
        pytest.skip("Harbor needs Python 3.12 or newer")
    run_suites("harbor")


def test_the_loop_in_the_manual_is_the_example() -> None:
    manual = (CHECKOUT / "docs/adapters.md").read_text()
    assert manual.split("```python\n")[1].split("```")[0] == (CHECKOUT / "examples/tool_loop.py").read_text()
