"""The database is gone or damaged: that is said, nothing is removed, and what the runs' directories tell comes back."""

import json
import marshal
import os
import resource
import time
from binascii import crc32
from pathlib import Path

import pytest

from fumehood import FumehoodError, Sandbox
from fumehood.service.clean import clean
from fumehood.service.layers import unrecorded_directories
from fumehood.service.opened import OpenedStore
from fumehood.service.recover import rebuild
from fumehood.service.store import Store
from fumehood.store.records import read_records

pytestmark = pytest.mark.once


def database() -> Path:
    return Path(os.environ["XDG_STATE_HOME"], "fumehood/fumehood.db")


def lose() -> None:
    for end in ("", "-wal", "-shm"):
        database().with_name(f"fumehood.db{end}").unlink(missing_ok=True)


def cut_short() -> None:
    """Cut the database in the middle, as a disk that lost a part of it."""
    store = OpenedStore()
    store.database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    os.truncate(database(), database().stat().st_size // 2)


def overwrite() -> None:
    lose()
    database().write_bytes(b"these are not the records you are looking for " * 100)


def worked(project: Path) -> dict[str, str]:
    """Run commands of every kind that keeps a layer; returns their ids."""
    for name in ("applied", "held", "undone", "redone", "deleted"):
        (project / name).write_text("old")
    with Sandbox(project, session="work") as sandbox:
        runs = {
            "applied": sandbox.run("echo new > applied; rm deleted"),
            "held": sandbox.run("echo new > held; mkdir made; echo in > made/in", apply="hold"),
            "undone": sandbox.run("echo new > undone"),
            "redone": sandbox.run("echo new > redone"),
            "added": sandbox.run("echo new > added"),
        }
        sandbox.undo(runs["undone"])
        sandbox.undo(sandbox.undo(runs["redone"]))
        sandbox.undo(runs["added"])
    return {name: run.run for name, run in runs.items()}


@pytest.mark.namespaces
@pytest.mark.parametrize("damage", [lose, cut_short, overwrite])
def test_what_the_runs_directories_tell_comes_back(home, project, damage):
    ids = worked(project)
    before = OpenedStore()
    told = {run.run: (run.as_dict(), [change.fields() for change in run.changes]) for run in before.history.runs()}
    before.close()
    damage()
    damaged = database().read_bytes() if database().exists() else b""
    store, mended = rebuild(OpenedStore)
    try:
        assert mended.left == ()
        assert mended.runs == len(told)
        if damage is not lose:
            assert Path(mended.set_aside).read_bytes() == damaged
        for run in store.history.runs():
            was, changes = told[run.run]
            assert [change.fields() for change in run.changes] == changes
            kept = ("project", "command", "cwd", "state", "exit_code", "session", "started_at", "act", "of", "capture")
            assert {name: run.as_dict()[name] for name in kept} == {name: was[name] for name in kept}
    finally:
        store.close()
    with Sandbox(project) as sandbox:
        assert sandbox.run("cat held made/in applied").stdout == "new\nin\nnew\n"
        sandbox.apply(ids["held"])
        assert (project / "made/in").read_text() == "in\n"
        sandbox.undo(ids["held"])
        sandbox.undo(ids["applied"])
        sandbox.undo(ids["redone"])
        assert {name: (project / name).read_text() for name in os.listdir(project)} == dict.fromkeys(
            ["applied", "held", "undone", "redone", "deleted"], "old"
        )
    again, nothing = rebuild(OpenedStore)
    again.close()
    assert nothing.runs == 0
    assert not nothing.set_aside


@pytest.mark.namespaces
def test_a_lost_database_is_told_once_and_how_to_have_it_back(cli, project):
    (project / "a").write_text("old")
    cli("run", "--", "echo new > a")
    lose()
    first = cli("log")
    assert "is gone" in first.stderr
    assert "1 run lies" in first.stderr
    assert "fumehood doctor --mend" in first.stderr
    again = cli("log")
    assert (again.stderr, "fumehood doctor --mend" in again.stdout) == ("", True)
    assert "fumehood doctor --mend" in cli("doctor").stdout
    assert "fumehood doctor --mend" in cli("undo").stderr
    mended = json.loads(cli("doctor", "--mend", "--json").stdout)
    assert (mended["runs"], mended["set_aside"], mended["left"]) == (1, "", [])
    assert cli("undo").returncode == 0
    assert (project / "a").read_text() == "old"


@pytest.mark.namespaces
@pytest.mark.parametrize("loss", ["whole", "back to an older copy"])
def test_what_ran_before_the_loss_comes_before_what_ran_since(cli, project, loss, monkeypatch):
    def ran(*names):
        with Sandbox(project) as sandbox:
            for name in names:
                sandbox.run(f"echo {name} >> a")
                sandbox.run("true")

    (project / "a").write_text("")
    with monkeypatch.context() as patch:
        if loss == "whole":  # the clock, which was wrong then, has no say in it
            ahead = time.time() + 40 * 86_400
            patch.setattr(time, "time", lambda: ahead)
        ran("one")
        copy = database().read_bytes()
        ran("two", "three")
    lose()
    if loss != "whole":
        database().write_bytes(copy)
    ran("four", "five")
    numbers = {run["run"]: run["number"] for run in json.loads(cli("log", "--json").stdout)["runs"]}
    assert cli("doctor", "--mend").returncode == 0
    runs = [run for run in json.loads(cli("log", "--json").stdout)["runs"] if run["changes"]]
    assert [run["command"].split()[1] for run in runs] == ["five", "four", "three", "two", "one"]
    assert {run["run"]: run["number"] for run in runs if run["run"] in numbers}.items() <= numbers.items()
    if loss == "whole":  # so what was noted before means the same
        assert [run["number"] for run in runs] == [8, 6, 5, 3, 1]
    assert len(json.loads(cli("files", "a", "--json").stdout)["versions"]) >= 5
    for left in ("four", "three", "two", "one", ""):
        assert cli("undo").returncode == 0
        assert (project / "a").read_text().split()[-1:] == left.split()


def replace_by_a_directory() -> None:
    lose()
    database().mkdir()


@pytest.mark.namespaces
@pytest.mark.parametrize("damage", [overwrite, replace_by_a_directory])
def test_a_damaged_database_is_refused_with_the_line_that_mends_it(cli, project, damage):
    (project / "a").write_text("old")
    cli("run", "--", "echo new > a")
    damage()
    for words in (("log",), ("run", "--", "true"), ("undo",), ("doctor",)):
        told = cli(*words)
        assert told.returncode == 125, words
        assert "fumehood doctor --mend" in told.stderr.partition("hint: ")[2], told.stderr
    mended = cli("doctor", "--mend")
    assert mended.returncode == 0, mended.stderr
    assert "fumehood.db.damaged-" in mended.stdout
    assert cli("undo").returncode == 0
    assert (project / "a").read_text() == "old"


@pytest.mark.namespaces
def test_a_new_database_without_anything_beside_it_says_nothing(cli):
    assert cli("log").stderr == ""
    assert json.loads(cli("doctor", "--mend", "--json").stdout)["runs"] == 0


@pytest.mark.namespaces
def test_what_a_draft_holds_comes_back_in_a_draft_of_that_name(home, project):
    with Sandbox(project) as sandbox:
        sandbox.draft("try").run("echo new > made")
    lose()
    store, mended = rebuild(OpenedStore)
    store.close()
    assert (mended.runs, mended.left) == (1, ())
    with Sandbox(project) as sandbox:
        (draft,) = sandbox.drafts()
        assert draft.name == "try"
        draft.apply()
    assert (project / "made").read_text() == "new\n"


@pytest.mark.namespaces
def test_what_has_no_record_of_its_own_is_named_and_left(sandbox, project, store):
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    (record,) = Path(store.places.run(run.run), "0").glob("*.record")
    record.write_bytes(b"\xff damaged")
    lose()
    found, mended = rebuild(OpenedStore)
    found.close()
    assert mended.left == (store.places.run(run.run),)
    assert mended.runs == 0
    assert Path(store.places.layer(run.run, 0, "upper"), "a").read_text() == "old"


@pytest.mark.namespaces
def test_a_damaged_record_beside_a_good_one_is_named(sandbox, project, store):
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    sandbox.undo(run)
    record = Path(store.places.run(run.run), f"0/{run.run}.record")
    record.write_bytes(b"\xff damaged")
    lose()
    rebuilt, mended = rebuild(OpenedStore)
    rebuilt.close()
    assert (mended.runs, mended.left) == (1, (str(record),))


@pytest.mark.namespaces
def test_a_record_that_was_damaged_anywhere_is_not_read(sandbox, project, store):
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    (record,) = Path(store.places.run(run.run), "0").glob("*.record")
    data = record.read_bytes()
    assert [each.run for each in read_records(store.places, run.layer)] == [run.run]
    for at in range(0, len(data), 7):
        record.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert list(read_records(store.places, run.layer)) == []
        record.write_bytes(data[:at])
        assert list(read_records(store.places, run.layer)) == []


@pytest.mark.namespaces
@pytest.mark.parametrize("form", ["first", "second"])
def test_a_record_in_an_earlier_form_is_read(form, sandbox, project, store):
    (project / "a").write_text("old")
    run = sandbox.run("echo new > a")
    (record,) = Path(store.places.run(run.run), "0").glob("*.record")
    _, fields, rows = marshal.loads(record.read_bytes().partition(b"\n")[2])
    texts = [
        (root, os.fsdecode(directory), within, os.fsdecode(entries).split("\0"))
        for root, directory, within, _, entries in rows
    ]
    body = marshal.dumps((1, fields, texts), 4)
    second = b"fumehood record %08x\n%b" % (crc32(body), body)
    record.write_bytes(second if form == "second" else os.fsencode(first_form((1, fields, texts))))
    (read,) = read_records(store.places, run.layer)
    assert read.as_dict() | {"output": ""} == run.as_dict() | {"output": ""}


def first_form(value):
    """Write a value as records were written before."""
    if isinstance(value, dict):
        return f"d{len(value)}\0" + "".join(first_form(name) + first_form(each) for name, each in value.items())
    if isinstance(value, (tuple, list)):
        return f"t{len(value)}\0" + "".join(map(first_form, value))
    if value is None or isinstance(value, bool):
        return {None: "n\0", True: "y\0", False: "x\0"}[value]
    return f"s{value}\0" if isinstance(value, str) else f"{'i' if isinstance(value, int) else 'f'}{value!r}\0"


@pytest.mark.namespaces
def test_a_held_run_that_no_record_names_is_not_cleaned_away(sandbox, project, store):
    run = sandbox.run("echo new > a", apply="hold")
    lose()
    fresh = OpenedStore()
    clean(fresh, now=run.started_at + 400 * 86_400)
    fresh.close()
    assert Path(store.places.layer(run.run, 0, "held"), "a").read_text() == "new\n"


@pytest.mark.namespaces
def test_a_file_known_anew_does_not_get_another_files_daily_backup(home, project):
    (project / "a").write_text("old a")
    (project / "b").write_text("old b")
    with Sandbox(project) as sandbox:
        sandbox.run("echo new > a")
    kept = {path.name: path.read_text() for path in Path(database().parent, "edited").iterdir()}
    assert list(kept.values()) == ["old a"]
    lose()
    with Sandbox(project) as sandbox:
        sandbox.run("echo new > b")
    now = {path.name: path.read_text() for path in Path(database().parent, "edited").iterdir()}
    assert sorted(now.values()) == ["old a", "old b"]
    assert kept.items() <= now.items()


@pytest.mark.namespaces
def test_a_run_that_keeps_no_layer_keeps_no_record(sandbox, store):
    sandbox.run("true")
    sandbox.run("echo new > added")
    assert os.listdir(f"{store.places.state}/runs") == []


@pytest.mark.namespaces
def test_a_run_that_fails_before_it_is_recorded_leaves_no_directory(sandbox: Sandbox, store: Store) -> None:
    sandbox.run("true")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(FumehoodError, match="can't be used"):
            sandbox.run("echo x > a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(f"{store.places.state}/runs") == []
    assert sandbox.run("echo x > a").state == "applied"


def test_what_a_run_leaves_that_is_killed_before_it_is_recorded_is_not_counted(store: Store) -> None:
    for name in ("empty", "with layers", "written", "noted"):
        Path(store.places.run(name)).mkdir()
    for name in ("with layers", "written"):
        Path(store.places.run(name), "0/upper").mkdir(parents=True)
    Path(store.places.run("written"), "0/upper/folder").mkdir()
    Path(store.places.run("noted"), "note").touch()
    assert unrecorded_directories(store) == [store.places.run(name) for name in ("noted", "written")]
