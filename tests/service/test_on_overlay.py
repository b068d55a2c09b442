"""Projects and records on an overlay, as everything in a container is that lies on no volume.

No device can be made there that means "deleted".
"""

import os
import subprocess
import sys

import pytest

from conftest import need
from fumehood import Sandbox
from snapshots import snapshot

pytestmark = [
    pytest.mark.namespaces, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what the host sees")
]  # fmt: skip


@pytest.fixture
def container(test_directory):
    """A directory that is an overlay's; what was in the image can't be renamed there, if it is a directory."""
    place = test_directory / "container"
    parts = [test_directory / name for name in ("image", "written", "work")]
    for each in (place, *parts, parts[0] / "project/of/image", parts[0] / "project/empty"):
        each.mkdir(parents=True)
    for name in ("x", "of/y", "of/image/z"):
        (parts[0] / "project" / name).write_text(f"{name}\n")
    options = "lowerdir={},upperdir={},workdir={}".format(*parts)
    mounted = subprocess.run(["mount", "-t", "overlay", "-o", options, "none", place], check=False)
    need(mounted.returncode == 0, "no overlay can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture(params=["records on it", "records elsewhere"])
def inside(request, home, container, monkeypatch):
    """A project there."""
    if request.param == "records on it":
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, str(container / name))
    project = container / "project"
    (project / "src/deep").mkdir(parents=True)
    for name in ("a", "src/b", "src/deep/c"):
        (project / name).write_text(f"{name}\n")
    os.link(project / "src/b", project / "src/b2")
    return project


def files(top):
    return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


def test_deletions_are_applied_and_taken_back(inside):
    before = files(inside)
    with Sandbox(inside) as sandbox:
        first = sandbox.run("rm src/deep/c; echo new > n; echo more >> a; chmod 600 src/b; mkdir d; echo x > d/x")
        after = files(inside)
        assert {change.verdict for change in first.changes} == {"applied"}
        assert "src/deep/c" not in after
        second = sandbox.run("rm -rf src; echo file > src")
        assert set(files(inside)) == {"a", "n", "d/x", "src", "x", "of/y", "of/image/z"}
        sandbox.undo(second)
        assert files(inside) == after
        sandbox.undo(first)
        assert files(inside) == before
    assert not [name for name in os.listdir(inside) if name.startswith(".fumehood")]


def test_a_deletion_that_waits_is_seen_by_later_commands_and_applied(inside):
    with Sandbox(inside) as sandbox:
        waiting = sandbox.run("rm a; rm -r src/deep", apply="hold")
        assert (inside / "a").exists()
        assert sandbox.run("ls -d src a; ls src").stdout == "src\nb\nb2\n"
        assert sandbox.run("echo again > a; rm src/b2", apply="hold").state == "held"
        assert sandbox.run("cat a; ls src").stdout == "again\nb\n"
        sandbox.apply(waiting)
    assert set(files(inside)) == {"src/b", "src/b2", "x", "of/y", "of/image/z"}


def test_directories_of_the_image_are_deleted_moved_and_brought_back(inside):
    before = snapshot(inside)
    with Sandbox(inside) as sandbox:
        gone = sandbox.run("rm -r of empty; echo new > x")
        assert {change.verdict for change in gone.changes} == {"applied"}
        assert set(os.listdir(inside)) == {"a", "src", "x"}
        sandbox.undo(gone)
        assert snapshot(inside) == before
        moved = sandbox.run("mv of to; rmdir empty", apply="hold")
        assert sandbox.run("cat to/image/z; ls").stdout == "of/image/z\na\nsrc\nto\nx\n"
        sandbox.apply(moved)
        assert set(os.listdir(inside)) == {"a", "src", "x", "to"}
        sandbox.undo(moved)
        assert snapshot(inside) == before


@pytest.mark.long
@pytest.mark.parametrize("call", ["renameat2:when=1", "renameat2:when=3", "unlinkat:when=4", "unlinkat:when=8"])
def test_killed_while_it_deletes_them_the_project_is_before_or_after(inside, call):
    before = snapshot(inside)
    with Sandbox(inside) as sandbox:
        held = sandbox.run("rm -r of empty; echo new > x", apply="hold")
    code = f"from fumehood import Sandbox; Sandbox({str(inside)!r}).apply('last')"
    fault = ["strace", "-o", "/dev/null", f"--inject={call.replace(':', ':signal=KILL:')}"]
    subprocess.run([*fault, sys.executable, "-P", "-c", code], check=False)
    with Sandbox(inside) as again:
        if again.find(held.run).state == "held":
            assert snapshot(inside) == before
            again.apply(held)
        assert set(os.listdir(inside)) == {"a", "src", "x"}
        again.undo(held)
    assert snapshot(inside) == before


def test_what_can_not_be_done_there_is_told_in_words_and_nothing_is_done(inside):
    before = snapshot(inside)
    with Sandbox(inside) as sandbox:
        run = sandbox.run("rm -r of; echo now a file > of; echo new > x")
        assert (run.state, run.reason) == ("held", "nothing was applied: the file system can't move it: of")
        assert snapshot(inside) == before
        assert sandbox.run("cat of").stdout == "now a file\n"


def test_where_fuse_overlayfs_is_the_containers_overlay_a_directory_of_the_image_goes_and_comes_back(
    home, test_directory
):
    place, *parts = (test_directory / name for name in ("container", "image", "written", "work"))
    for each in (place, *parts[1:], parts[0] / "project/of/image"):
        each.mkdir(parents=True)
    (parts[0] / "project/of/image/z").write_text("z\n")
    options = "lowerdir={},upperdir={},workdir={}".format(*parts)
    line = ["mount", "-t", "fuse.fuse-overlayfs", "-o", options, "none", place]
    # What serves it would keep our output open.
    mounted = subprocess.run(line, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    need(mounted.returncode == 0, "fuse-overlayfs can't be mounted here")
    try:
        with Sandbox(place / "project") as sandbox:
            run = sandbox.run("rm -r of; echo new > new")
            assert (run.state, os.listdir(place / "project")) == ("applied", ["new"]), run.reason
            sandbox.undo(run)
        assert files(place / "project") == {"of/image/z": "z\n"}
    finally:
        subprocess.run(["umount", place], check=True)
