"""A file system that can neither swap two names nor refuse to replace one, as those of networks often can't."""

import os
import subprocess
import sys

import pytest

from fumehood import Sandbox

pytestmark = pytest.mark.namespaces

# Modes are not kept there either.
REFUSED = [
    "strace", "-f", "-o", "/dev/null", "--trace=/renameat2|chmod", "--inject=renameat2:error=EINVAL",
    "--inject=/chmod:retval=0",
]  # fmt: skip
APPLY = "import sys; from fumehood import Sandbox; Sandbox(sys.argv[1]).apply('last')"


def test_nothing_is_applied_and_nothing_is_left_in_the_project(home, other_filesystem):
    project = other_filesystem / "project"
    project.mkdir()
    (project / "a").write_text("old\n")
    with Sandbox(project) as sandbox:
        run = sandbox.run("mkdir -p d/e/f; echo new > d/e/f/g; echo new > a", apply="hold")
    tried = subprocess.run(
        [*REFUSED, sys.executable, "-P", "-c", APPLY, project], check=False, capture_output=True, text=True
    )
    assert "nothing was applied: the file system can't swap two files: a" in tried.stderr
    assert os.listdir(project) == ["a"]
    with Sandbox(project) as sandbox:
        assert "+new" in sandbox.diff(run)
        assert [each.state for each in sandbox.history()] == ["held"]
        assert sandbox.apply(run).state == "applied"
    assert (project / "d/e/f/g").read_text() == "new\n"
