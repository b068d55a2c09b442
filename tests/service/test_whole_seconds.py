"""File systems whose files have times of whole seconds: an edit in the second of a run is seen all the same."""

import os
import shutil
import subprocess
import threading
import time

import pytest

from conftest import need
from fumehood import Sandbox, UndoRefused

pytestmark = [
    pytest.mark.namespaces, pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount such a file system")
]  # fmt: skip


@pytest.fixture
def coarse(test_directory):
    """A project on an ext4 with small inodes, which have no room for parts of a second."""
    need(shutil.which("mkfs.ext4") is not None, "there is no mkfs.ext4")
    image, place = test_directory / "image", test_directory / "coarse"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-I", "128", image], check=True, stderr=subprocess.DEVNULL)
    mounted = subprocess.run(["mount", "-o", "loop", image, place], check=False, capture_output=True, text=True)
    need(mounted.returncode == 0, f"no file system can be mounted here: {mounted.stderr}")
    project = place / "project"
    project.mkdir()
    (project / "f").write_text("base")
    yield project
    subprocess.run(["umount", place], check=True)


def begin_of_a_second():
    time.sleep(1.1 - time.time() % 1)


@pytest.mark.long
def test_an_edit_in_the_second_in_which_a_run_began_is_a_conflict(home, coarse):
    with Sandbox(coarse) as sandbox:
        sandbox.run("true")
        time.sleep(1.1)
        begin_of_a_second()
        begun = threading.Event()
        box = []

        def run():
            box.append(sandbox.run("echo agent > f; echo written; sleep 0.5", on_output=lambda *_: begun.set()))

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(100)
        (coarse / "f").write_text("person")
        thread.join()
    assert [(change.path, change.verdict) for change in box[0].changes] == [("f", "conflict")]
    assert (coarse / "f").read_text() == "person"


@pytest.mark.long
def test_an_edit_right_after_a_run_is_not_taken_back_with_it(home, coarse):
    with Sandbox(coarse) as sandbox:
        for number in range(3):
            run = sandbox.run(f"echo agent{number} > f")
            assert run.state == "applied", run.reason
            (coarse / "f").write_text("person!")
            with pytest.raises(UndoRefused):
                sandbox.undo(run)
            assert (coarse / "f").read_text() == "person!"
            time.sleep(1.1)


@pytest.mark.long
def test_runs_that_follow_each_other_are_no_conflict(home, coarse):
    with Sandbox(coarse) as sandbox:
        assert {sandbox.run(f"echo {number} >> f").state for number in range(3)} == {"applied"}
        for _ in range(3):
            sandbox.undo()
    assert (coarse / "f").read_text() == "base"
