"""A project on a file system that knows no extended attributes, as those of sshfs and many other FUSE servers."""

import os
import shutil
import subprocess

import pytest

from conftest import need
from fumehood import Policy, Sandbox

pytestmark = pytest.mark.namespaces


@pytest.fixture
def bare(home, test_directory):
    """A project there."""
    need(shutil.which("fuse-overlayfs") is not None, "there is no fuse-overlayfs")
    project = test_directory / "bare"
    parts = [test_directory / name for name in ("lower", "upper", "work")]
    for each in (project, *parts, parts[0] / "d"):
        each.mkdir()
    for name in ("a", "d/b", "gone"):
        (parts[0] / name).write_text("old\n")
    options = "lowerdir={},upperdir={},workdir={},noxattrs=1".format(*parts)
    served = subprocess.run(["fuse-overlayfs", "-o", options, project], check=False, capture_output=True)
    need(served.returncode == 0, "nothing can be mounted by FUSE here")
    yield project
    subprocess.run([*(["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]), project], check=True)


def files(top):
    return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("capture", ["", "copy"])
def test_changes_are_applied_and_taken_back(bare, capture):
    with pytest.raises(OSError, match="not supported"):
        os.listxattr(bare)
    before = files(bare)
    with Sandbox(bare, Policy(capture=capture)) as sandbox:
        run = sandbox.run("echo new > a; echo new >> d/b; chmod 700 d; mkdir e; echo new > e/c; rm gone")
        assert {change.verdict for change in run.changes} == {"applied"}
        assert files(bare) == {"a": "new\n", "d/b": "old\nnew\n", "e/c": "new\n"}
        sandbox.undo(run.run)
    assert files(bare) == before
