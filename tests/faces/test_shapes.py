"""What `--json` prints: one object, with one list in it where things are listed, and an object for every error."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fumehood import Sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.once]
Cli = Callable[..., subprocess.CompletedProcess[str]]
# Each command that lists things, and what its list is called.
LISTS = {
    ("log",): "runs", ("ps",): "runs", ("review",): "runs", ("grants",): "grants", ("files",): "files",
    ("diff",): "differences", ("projects",): "projects", ("rootfs",): "roots", ("workspace",): "workspaces",
    ("roots",): "roots", ("config", "check"): "problems", ("tool", "--all", "--format", "mcp"): "tools",
    ("agent",): "agents", ("undo", "--session", "s"): "runs", ("redo", "--session", "s"): "runs",
}  # fmt: skip
# What makes no sense, in every way that there is.
WRONG = (
    ("nonsense",), ("log", "--nonsense"), ("log", "-n", "x"), ("show", "nowhere"), ("grants", "nonsense"), ("stop",),
    ("workspace", "create"), ("rootfs", "install", "--tier", "9"), ("tool",), ("tool", "--format", "x"),
    ("files", "--project", "/nowhere"), ("run", "--nonsense"), ("run",), ("agent", "--nonsense"),
    ("undo", "--nonsense"), ("capabilities", "--root", "/nowhere"), ("clean", "--days", "-1"),
    ("config", "nonsense"), ("mcp", "--http", "x"),
)  # fmt: skip


def test_every_list_is_an_object_with_one_list_in_it(cli: Cli, sandbox: Sandbox) -> None:
    sandbox.session("s").run("echo x > a")
    for words, name in LISTS.items():
        answer: Any = json.loads(cli(*words, "--json").stdout)
        assert isinstance(answer, dict), words
        assert isinstance(answer[name], list), words


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_every_error_is_an_object_where_objects_were_asked_for(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli(*words, "--json")
    answer = json.loads(done.stdout)
    assert answer["error"]
    assert answer["hint"]
    assert answer["exit_code"] == done.returncode == 125
    assert done.stderr == ""
    assert cli(*words).stderr.startswith("ERROR: ")
