"""Projects and records on an overlay, as everything in a container is that lies on no volume.

No device can be made there that means "deleted".
"""

import os
import subprocess

import pytest

from conftest import need
from fumehood import Sandbox

pytestmark = [
    pytest.mark.namespaces, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what the host sees")
]  # fmt: skip


@pytest.fixture
def container(test_directory):
    """A directory that is an overlay's."""
    place = test_directory / "container"
    parts = [test_directory / name for name in ("image", "written", "work")]
    for each in (place, *parts):
        each.mkdir()
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
        assert set(files(inside)) == {"a", "n", "d/x", "src"}
        sandbox.undo(second)
        assert files(inside) == after
        sandbox.undo(first)
        assert files(inside) == before
    assert not [name for name in os.listdir(inside) if name.startswith(".fumehood")]


def test_a_deletion_that_waits_is_seen_by_later_commands_and_applied(inside):
    with Sandbox(inside) as sandbox:
        waiting = sandbox.run("rm a; rm -r src/deep", apply="hold")
        assert (inside / "a").exists()
        assert sandbox.run("ls; ls src").stdout == "src\nb\nb2\n"
        assert sandbox.run("echo again > a; rm src/b2", apply="hold").state == "held"
        assert sandbox.run("cat a; ls src").stdout == "again\nb\n"
        sandbox.apply(waiting)
    assert set(files(inside)) == {"src/b", "src/b2"}
