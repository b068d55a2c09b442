"""An undo puts nothing into the project that is not what was saved."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from fumehood import UndoRefused
from fumehood.service.restore import restore
from snapshots import snapshot

pytestmark = pytest.mark.namespaces

DAMAGES = {
    "emptied": ("a", ": > a", "the backup of a is damaged: it has 0 bytes now, and 4 were saved"),
    "written in place": ("a", "printf XXX | dd of=a conv=notrunc", "the backup of a is damaged: it was written after"),
    "replaced": ("a", "rm a; mkdir a", "the backup of a is damaged: it is a directory now, and a file was saved"),
    "given another mode": ("a", "chmod 4755 a", "the backup of a is damaged: its mode is 4755 now, and was 0644"),
    "removed": ("a", "rm a", "the backup of a is gone"),
    "a link turned elsewhere": ("link", "ln -sfn /etc link", "the backup of link is damaged"),
    "a file of a deleted tree": ("d", ": > d/e/f", "the backup of d/e/f is damaged: it has 0 bytes now"),
    "added to a deleted tree": ("d", "echo x > d/e/planted", "the backup of d/e/planted was put among the backups"),
    "taken from a deleted tree": ("d", "rm d/e/f", "the backup of d/e/f is gone"),
}


@pytest.fixture
def project(project_on_either):
    project = project_on_either
    (project / "d/e").mkdir(parents=True)
    for name in ("a", "d/e/f", "other"):
        (project / name).write_text("old\n")
        (project / name).chmod(0o644)
    (project / "link").symlink_to("a")
    return project


def layer_of(store, run):
    return Path(store.places.layer(run.layer or run.run, 0, "upper"))


@pytest.mark.parametrize("force", [False, True], ids=["", "by force"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_named_and_nothing_is_touched(sandbox, store, project, damage, force):
    path, script, message = DAMAGES[damage]
    run = sandbox.run("echo new > a; ln -sfn other link; rm -r d; echo new > other")
    assert run.state == "applied"
    left = snapshot(project)
    subprocess.run(["sh", "-ec", script], cwd=layer_of(store, run), check=True, stderr=subprocess.DEVNULL)
    with pytest.raises(UndoRefused) as refusal:
        sandbox.undo(run, force=force)
    assert message in refusal.value.message
    assert snapshot(project) == left
    assert store.history.find("last").run == run.run
    others = [each for each in ("a", "link", "d", "other") if each != path]
    sandbox.undo(run, *others)
    assert (project / "other").read_text() == "old\n"


def test_what_a_redo_would_put_back_is_looked_at_too(sandbox, store, project):
    back = sandbox.undo(sandbox.run("echo new > a"))
    os.truncate(layer_of(store, back) / "a", 0)
    with pytest.raises(UndoRefused, match="the backup of a is damaged"):
        sandbox.undo(back)
    assert (project / "a").read_text() == "old\n"


def test_the_daily_backup_is_offered_where_it_is_another_file(sandbox, store, known, project):
    sandbox.run("echo first > a")
    run = sandbox.run("echo second > a")
    os.truncate(layer_of(store, run) / "a", 0)
    with pytest.raises(UndoRefused) as refusal:
        sandbox.undo(run)
    day = time.strftime("%y-%m-%d")
    assert f"fumehood restore a {day}" in refusal.value.hint
    restore(store, known, "a", day)
    assert (project / "a").read_text() == "old\n"


def test_a_daily_backup_that_is_the_damaged_file_itself_is_not_offered(sandbox, store, project):
    run = sandbox.run("echo first > a")
    os.truncate(layer_of(store, run) / "a", 0)
    with pytest.raises(UndoRefused) as refusal:
        sandbox.undo(run)
    assert "restore" not in refusal.value.hint
    assert "there is no other backup" in refusal.value.hint
