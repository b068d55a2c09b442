"""An undo puts nothing into the project that is not what was saved."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fumehood import BadRequest, FumehoodError, UndoRefused
from fumehood.service.files import catch_up
from fumehood.service.restore import restore
from fumehood.store.history import SETTLING
from snapshots import snapshot

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

# Does something to an entry, and gives it its time again.
ALIKE = "alike() { cp -a $1 ../as-it-was; sh -ec \"$2\"; touch -hr ../as-it-was $1; }; alike"
SOMETHING_ELSE = "is damaged: it holds something else than what was saved"
DAMAGES = {
    "emptied": ("a", ": > a", "the backup of a is damaged: it has 0 bytes now, and 4 were saved"),
    "written in place": ("a", "printf XXX | dd of=a conv=notrunc", "the backup of a is damaged: it was written after"),
    "replaced": ("a", "rm a; mkdir a", "the backup of a is damaged: it is a directory now, and a file was saved"),
    "given another mode": ("a", "chmod 4755 a", "the backup of a is damaged: its mode is 4755 now, and was 0644"),
    "removed": ("a", "rm a", "the backup of a is gone"),
    "altered with its size and time": ("a", f"{ALIKE} a 'printf NEW | dd of=a conv=notrunc'", SOMETHING_ELSE),
    "replaced with its size and time": ("a", f"{ALIKE} a 'rm a; printf NEW! > a; chmod 644 a'", SOMETHING_ELSE),
    "a link turned with its time": ("link", f"{ALIKE} link 'ln -sfn b link'", SOMETHING_ELSE),
    "altered in a deleted tree": ("d", f"{ALIKE} d/e/f 'printf NEW! > d/e/f'", SOMETHING_ELSE),
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


@pytest.mark.long
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
    assert f"fumehood restore a --from {day}" in refusal.value.hint
    restore(store, known, "a", day)
    assert (project / "a").read_text() == "old\n"


def test_a_daily_backup_that_is_the_damaged_file_itself_is_not_offered(sandbox, store, project):
    run = sandbox.run("echo first > a")
    os.truncate(layer_of(store, run) / "a", 0)
    with pytest.raises(UndoRefused) as refusal:
        sandbox.undo(run)
    assert "restore" not in refusal.value.hint
    assert "there is no other backup" in refusal.value.hint


def copied(state):
    """The state as after it was copied to another disk: every inode and every time of a change is a new one."""
    subprocess.run(["cp", "-a", f"{state}/runs", f"{state}/copied"], check=True)
    shutil.rmtree(f"{state}/runs")
    os.rename(f"{state}/copied", f"{state}/runs")


@pytest.mark.parametrize("script", [DAMAGES[which][1] for which in ("emptied", "altered with its size and time")])
def test_a_damaged_backup_is_not_restored_either(sandbox, store, known, project, script):
    run = sandbox.run("echo new > a")
    catch_up(store, known.id)
    subprocess.run(["sh", "-ec", script], cwd=layer_of(store, run), check=True, stderr=subprocess.DEVNULL)
    for source in ("", run.run, time.strftime("%y-%m-%d")):  # the daily backup is another name of the same file
        with pytest.raises(FumehoodError):
            restore(store, known, "a", source)
    assert (project / "a").read_text() == "new\n"


def test_backups_that_were_copied_with_all_else_are_still_good(sandbox, store, project):
    before = snapshot(project)
    run = sandbox.run("echo new > a; ln -sfn other link; rm -r d")
    copied(store.places.state)
    sandbox.undo(run)
    assert snapshot(project) == before


def test_a_copied_backup_that_was_altered_is_named(sandbox, store, project):
    run = sandbox.run("echo new > a")
    copied(store.places.state)
    backup = layer_of(store, run) / "a"
    times = backup.stat()
    backup.write_text("NEW\n")
    os.utime(backup, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(UndoRefused, match="the backup of a is damaged: it holds something else"):
        sandbox.undo(run)
    assert (project / "a").read_text() == "new\n"


def test_a_backup_stays_good_when_its_daily_backup_goes(sandbox, store, project):
    run = sandbox.run("echo new > a")
    (daily,) = Path(store.places.state, "edited").iterdir()
    daily.unlink()
    back = sandbox.undo(run)
    assert (project / "a").read_text() == "old\n"
    sandbox.undo(sandbox.undo(back))
    assert (project / "a").read_text() == "old\n"


def test_an_altered_backup_stays_so_when_its_records_are_made_once_more(sandbox, store, known, project):
    run = sandbox.run("echo new > a; echo new > other")
    backup = layer_of(store, run) / "a"
    times = backup.stat()
    backup.write_text("NEW\n")
    os.utime(backup, ns=(times.st_atime_ns, times.st_mtime_ns))
    with store.database.transaction() as connection:
        connection.execute("INSERT INTO files_due (project, run) VALUES (?, ?)", (known.id, run.run))
    catch_up(store, known.id)
    with pytest.raises(UndoRefused, match="the backup of a is damaged: it holds something else"):
        sandbox.undo(run)


def test_what_was_held_and_removed_by_somebody_is_refused_and_stands_in_nobodys_way(sandbox, project, store):
    (project / "a").write_text("old\n")
    applied = sandbox.run("echo new > a")
    held = sandbox.run("echo held > a; echo held > b", apply="hold")
    shutil.rmtree(store.places.run(held.run))
    with pytest.raises(BadRequest, match="what run 2 wrote is no longer kept") as refusal:
        sandbox.apply(held)
    assert refusal.value.hint == "fumehood discard 2"
    assert (project / "a").read_text() == "new\n"
    sandbox.undo(applied)
    assert (project / "a").read_text() == "old\n"
    assert sandbox.discard(held).state == "discarded"


def test_a_run_that_was_being_held_when_its_directory_went_does_not_stop_the_others(sandbox, project, store):
    (project / "a").write_text("old\n")
    applied = sandbox.run("echo new > a")
    held = sandbox.run("echo held > b", apply="hold")
    store.history.set_state(held.run, SETTLING, "")
    shutil.rmtree(store.places.run(held.run))
    sandbox.undo(applied)
    assert (project / "a").read_text() == "old\n"
    assert sandbox.discard(held).state == "discarded"
