"""Another file system mounted inside a project."""

import os
import subprocess

import pytest

from fumehood import Sandbox

pytestmark = pytest.mark.namespaces


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
def test_what_is_written_into_a_mount_is_told_and_the_rest_is_applied(project, home):
    (project / "mounted").mkdir()
    (project / "file").write_text("old\n")
    subprocess.run(["mount", "-t", "tmpfs", "none", project / "mounted"], check=True)
    try:
        (project / "mounted/there").write_text("seen\n")
        with Sandbox(project) as sandbox:
            run = sandbox.run("cat mounted/there; echo x > mounted/new; echo new > file")
            found = {change.path: change.verdict for change in run.changes}
            assert run.stdout == "seen\n"
            assert run.capture in ("fuse", "copy")
            assert f"{project / 'mounted'} is mounted inside" in run.reason
            assert found == {"file": "applied", "mounted/new": "unsupported"}
            assert (project / "file").read_text() == "new\n"
            assert os.listdir(project / "mounted") == ["there"]
            sandbox.undo(run)
            assert (project / "file").read_text() == "old\n"
    finally:
        subprocess.run(["umount", project / "mounted"], check=True)
