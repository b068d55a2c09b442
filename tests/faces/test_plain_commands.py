"""Plain commands read well: help by name, quiet where asked, lists that fit, progress only where somebody looks."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "fumehood"]
PATHS = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}


@pytest.fixture(autouse=True)
def _known_host(known_host: None) -> None:
    """What this host can do is found out once."""


def test_help_names_a_command_and_quiet_says_nothing(cli: Cli, project: Path) -> None:
    for name in ("undo", "run", "shell", "agent", "mcp"):
        assert f"fumehood {name}" in cli("help", name).stdout.splitlines()[0]
    assert "commands:" in cli("help").stdout
    assert cli("-V").stdout.startswith("fumehood ")
    assert cli("run", "-q", "--", "echo x >> a").stderr == ""
    quiet = cli("undo", "-q")
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == ("", "", 0)
    assert not (project / "a").exists()
    assert json.loads(cli("redo", "-q", "--json").stdout)["state"] == "applied"
    assert "ERROR" in cli("undo", "99", "-q").stderr
