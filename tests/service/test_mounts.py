"""Another file system mounted inside a project."""

import os
import subprocess

import pytest

from fumehood import BadRequest, Sandbox

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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_change_of_a_file_that_something_is_mounted_on_can_be_applied_once_it_is_unmounted(
    project, home, test_directory, when
):
    (test_directory / "other").write_text("other\n")
    (project / "file").write_text("old\n")
    mounted = []

    def mount(*_: object) -> None:
        if not mounted:
            subprocess.run(["mount", "--bind", test_directory / "other", project / "file"], check=True)
            mounted.append(project / "file")

    with Sandbox(project) as sandbox:
        try:
            if when == "before":
                mount()
            run = sandbox.run("cat file; echo new > file; sleep 0.1", on_output=mount, timeout=60)
            assert [(each.path, each.verdict) for each in run.changes] == [("file", "unsupported")]
            with pytest.raises(BadRequest, match="mounted at file"):
                sandbox.apply(run)
            assert (project / "file").read_text() == "other\n"
        finally:
            subprocess.run(["umount", *mounted], check=True)
        assert (project / "file").read_text() == "old\n"
        run = sandbox.apply(run)
        assert [(each.path, each.verdict) for each in run.changes] == [("file", "applied")]
        assert (project / "file").read_text() == "new\n"
        sandbox.undo(run)
        assert (project / "file").read_text() == "old\n"
    assert (test_directory / "other").read_text() == "other\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
def test_what_lies_below_a_mount_and_was_changed_since_goes_only_by_force(project, home, test_directory):
    (test_directory / "other").write_text("other\n")
    (project / "file").write_text("old\n")
    with Sandbox(project) as sandbox:
        subprocess.run(["mount", "--bind", test_directory / "other", project / "file"], check=True)
        try:
            run = sandbox.run("echo new > file; echo x > beside")
        finally:
            subprocess.run(["umount", project / "file"], check=True)
        (project / "file").write_text("mine\n")
        with pytest.raises(BadRequest, match="changed in the project after"):
            sandbox.apply(run)
        assert (project / "file").read_text() == "mine\n"
        sandbox.apply(run, force=True)
        assert (project / "file").read_text() == "new\n"
        sandbox.undo(run)
    assert (project / "file").read_text() == "mine\n"
    assert not (project / "beside").exists()
