"""Another file system mounted inside a project."""

import os
import shutil
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
            abilities = {each["name"]: each["detail"] for each in sandbox.doctor()["abilities"]}
            assert abilities["this project"] == run.reason
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
def test_what_a_mount_was_in_the_way_of_is_not_applied_of_an_undone_run(project, home, test_directory):
    (test_directory / "other").write_text("other\n")
    (project / "file").write_text("old\n")
    with Sandbox(project) as sandbox:
        subprocess.run(["mount", "--bind", test_directory / "other", project / "file"], check=True)
        try:
            run = sandbox.run("echo new > file; echo x > beside")
            sandbox.undo(run)
        finally:
            subprocess.run(["umount", project / "file"], check=True)
        with pytest.raises(BadRequest, match=f"run {run.number} holds nothing: it is undone"):
            sandbox.apply(run)
        assert os.listdir(project) == ["file"]
        sandbox.redo(run)
        assert sandbox.apply(run).state == "applied"
        assert [(project / name).read_text() for name in ("file", "beside")] == ["new\n", "x\n"]


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
def test_where_the_project_is_read_only_the_reason_names_it_and_no_name_of_ours(project, home):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", project], check=True)
    try:
        with Sandbox(project) as sandbox:
            assert sandbox.run("echo x > new").reason == "nothing was applied: Read-only file system: the project"
    finally:
        subprocess.run(["umount", project], check=True)


@pytest.fixture
def on_btrfs(test_directory):
    """A project on a btrfs, with a subvolume in it."""
    image, place = test_directory / "image", test_directory / "btrfs"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, place], check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this kernel mounts no btrfs: {mounted.stderr}")
    project = place / "project"
    project.mkdir()
    subprocess.run(["btrfs", "-q", "subvolume", "create", project / "sub"], check=True)
    yield project
    subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="there is no mkfs.btrfs")
@pytest.mark.parametrize("records", ["on it too", "elsewhere"])
def test_what_is_written_into_a_subvolume_is_told_and_the_rest_is_applied(home, on_btrfs, records, monkeypatch):
    if records == "on it too":
        monkeypatch.setenv("XDG_STATE_HOME", str(on_btrfs.parent / "state"))
    (on_btrfs / "sub/there").write_text("old\n")
    (on_btrfs / "file").write_text("old\n")
    with Sandbox(on_btrfs) as sandbox:
        run = sandbox.run("cat sub/there; mkdir -p sub/a/b; echo x > sub/a/b/c; echo new > sub/there; echo new > file")
        verdicts = {change.path: change.verdict for change in run.changes}
        reasons = {change.reason for change in run.changes if change.verdict == "unsupported"}
        assert run.stdout == "old\n"
        assert verdicts == {
            "file": "applied", "sub/a": "unsupported", "sub/a/b": "unsupported", "sub/a/b/c": "unsupported",
            "sub/there": "unsupported",
        }  # fmt: skip
        assert reasons == {"nothing can be moved into the subvolume sub"}
        assert run.reason == f"to let commands write in sub: fumehood roots add {on_btrfs}/sub"
        assert (on_btrfs / "file").read_text() == "new\n"
        gone = sandbox.run("rm -r sub; echo more >> file")
        assert {change.path: change.verdict for change in gone.changes}["file"] == "applied"
        sandbox.undo(gone)
        sandbox.undo(run)
    assert [(on_btrfs / name).read_text() for name in ("file", "sub/there")] == ["old\n", "old\n"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="there is no mkfs.btrfs")
def test_a_subvolume_can_be_a_root_of_its_own(home, on_btrfs):
    (on_btrfs / "sub/there").write_text("old\n")
    (on_btrfs / "plain").mkdir()
    with Sandbox(on_btrfs, ask=bool) as sandbox:
        with pytest.raises(BadRequest, match="is writable already"):
            sandbox.add_root(on_btrfs / "plain")
        sandbox.add_root(on_btrfs / "sub")
    with Sandbox(on_btrfs) as sandbox:
        run = sandbox.run("cat sub/there; echo new > sub/there; mkdir sub/made; echo x > file")
        assert (run.stdout, run.state, run.reason, len(run.changes)) == ("old\n", "applied", "", 3)
        assert (on_btrfs / "sub/there").read_text() == "new\n"
        sandbox.undo(run)
    assert ((on_btrfs / "sub/there").read_text(), os.listdir(on_btrfs / "sub")) == ("old\n", ["there"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that the host sees")
@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="there is no mkfs.btrfs")
def test_on_btrfs_a_link_to_another_file_system_is_no_subvolume(home, on_btrfs, test_directory):
    (test_directory / "elsewhere/sub").mkdir(parents=True)
    (on_btrfs / "link").symlink_to(test_directory / "elsewhere")
    with Sandbox(on_btrfs) as sandbox:
        run = sandbox.run("rm link; mkdir -p link/sub; echo new > link/sub/file")
        assert {change.verdict for change in run.changes} == {"applied"}
    assert (on_btrfs / "link/sub/file").read_text() == "new\n"
