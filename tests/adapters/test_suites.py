"""Other people's suites on the adapters, each in the environment that has the real framework."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SUITES = CHECKOUT / "tools/suites.py"
READY = "import sys, provide; sys.exit(provide.frameworks(install=False) is None)"
NEWER = "import sys, provide; sys.exit(provide.newer_python() is None)"


@pytest.mark.timeout(1200)  # the first time, a hundred packages are installed
@pytest.mark.parametrize("name", ["deepagents", "inspect", "examples", "harbor"])
def test_the_suite_of_a_framework_passes(name: str) -> None:
    must_run = os.environ.get("FUMEHOOD_TESTS_MUST_RUN") == "1"
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "tools")}
    ready = subprocess.run([sys.executable, "-c", READY], env=environment, check=False).returncode == 0
    if name == "harbor" and subprocess.run([sys.executable, "-c", NEWER], env=environment, check=False).returncode:
        pytest.skip("Harbor needs Python 3.12 or newer")
    need(ready or must_run, "the frameworks are not installed; `make suites` installs them")
    done = subprocess.run([sys.executable, SUITES, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


def test_the_loop_in_the_manual_is_the_example() -> None:
    manual = (CHECKOUT / "docs/adapters.md").read_text()
    assert manual.split("```python\n")[1].split("```")[0] == (CHECKOUT / "examples/tool_loop.py").read_text()
