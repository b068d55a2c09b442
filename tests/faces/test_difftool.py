"""A run's changes in the person's own difftool."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.namespaces, pytest.mark.once,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not here"),
]  # fmt: skip


@pytest.fixture
def tool(home: Path) -> Path:
    """Have git use a tool that notes what it is shown; returns where."""
    notes = home / "notes"
    line = f'(cat "$LOCAL"; echo "->"; cat "$REMOTE"; basename "$REMOTE") >> {notes}'
    for key, value in (("difftool.notes.cmd", line), ("diff.tool", "notes")):
        subprocess.run(["git", "config", "--global", key, value], check=True, env=os.environ | {"HOME": str(home)})
    return notes


def test_each_file_is_shown_in_the_tool_that_git_is_set_to_use(cli: Any, project: Path, tool: Path) -> None:
    (project / "a").write_text("old\n")
    cli("run", "--", "echo new > a; mkdir d; echo x > d/b")
    done = cli("diff", "last", "--difftool")
    assert done.returncode == 0, done.stderr
    assert tool.read_text() == "old\n->\nnew\na\n->\nx\nb\n"
    assert done.stdout == "not shown: added directory d\n"


def test_a_tool_can_be_named_and_nothing_that_the_run_wrote_is_read_by_git(cli: Any, project: Path, tool: Path) -> None:
    cli("run", "--hold", "--", "echo '* diff=evil' > .gitattributes; echo x > b")
    assert cli("diff", "last", "--tool", "notes").returncode == 0
    assert tool.read_text().split("\n")[-2] == "b"
    assert "_.gitattributes" in tool.read_text()


def test_a_tool_that_is_not_there_is_told(cli: Any, project: Path, tool: Path) -> None:
    cli("run", "--", "echo x > b")
    refused = cli("diff", "last", "--tool", "no-such-tool")
    assert refused.returncode == 125
    assert "git difftool failed" in refused.stderr
    assert not tool.exists()
