"""The commands files, restore and scan, as people and programs meet them."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import Run, Sandbox
from fumehood.service.files import record_run
from fumehood.service.opened import OpenedStore

Cli = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = [pytest.mark.namespaces, pytest.mark.once]


@pytest.fixture
def run(home: Path, project: Path) -> Callable[..., Run]:
    """Run a command and record what it did."""

    def run(command: str, **options: object) -> Run:
        with Sandbox(project) as sandbox:
            done = sandbox.run(command, **options)  # type: ignore[arg-type]
        store = OpenedStore()
        record_run(store, store.projects.open(str(project)).id, done)
        store.close()
        return done

    return run


def told(done: subprocess.CompletedProcess[str], code: int = 0) -> object:
    assert done.returncode == code, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_a_deleted_file_is_listed_and_restored_and_the_restore_undone(
    run: Callable[..., Run], cli: Cli, project: Path
) -> None:
    (project / "notes.txt").write_text("keep me")
    run("rm notes.txt")
    listed = cli("files")
    assert listed.returncode == 0
    assert listed.stdout.startswith("deleted ")
    assert f"notes.txt  from {time.strftime('%y-%m-%d')}" in listed.stdout
    back = cli("restore", "notes.txt")
    assert (back.returncode, back.stderr) == (0, "")
    assert "+ notes.txt" in back.stdout
    assert (project / "notes.txt").read_text() == "keep me"
    assert "captured by " in cli("show", "1").stdout
    shown = cli("show", "last").stdout
    assert "sandbox      nothing ran\n" in shown
    assert "exit code" not in shown
    undone = cli("undo")
    assert undone.returncode == 0, undone.stderr
    assert not (project / "notes.txt").exists()


def test_a_file_is_deleted_as_long_as_it_is_not_there_whoever_deleted_it(
    run: Callable[..., Run], cli: Cli, project: Path
) -> None:
    (project / "d/e").mkdir(parents=True)
    for name in ("d/1", "d/e/2", "kept", "mine"):
        (project / name).write_text("old")
    assert cli("scan").returncode == 0

    def deleted(*words: str) -> tuple[set[str], set[str]]:
        files = told(cli("files", "--json", *words))["files"]  # type: ignore[index]
        here = [file["path"] for file in files if file["is_deleted"]]
        lines = [line.split() for line in cli("files", *words).stdout.splitlines()]
        assert [line[3] for line in lines if line[0] == "deleted"] == here
        return set(here), {file["path"] for file in files} - set(here)

    run("rm -r d; echo new > kept; mkdir n; echo new > n/x")
    assert deleted() == ({"d/1", "d/e/2"}, {"kept", "n/x"})
    assert cli("undo").returncode == 0
    assert deleted() == ({"n/x"}, {"d/1", "d/e/2", "kept"})
    assert cli("redo").returncode == 0
    assert deleted("d") == ({"d/1", "d/e/2"}, set())
    (project / "d").mkdir()
    (project / "d/1").write_text("made again")
    (project / "kept").unlink()
    (project / "mine").unlink()
    assert deleted() == ({"d/e/2", "kept"}, {"d/1", "n/x"})
    assert deleted("--all") == ({"d/e/2", "kept", "mine"}, {"d/1", "n/x"})
    assert cli("files", "kept").stdout.startswith("deleted ")


def test_the_counts_of_a_run_are_those_of_its_list(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    (project / "d/e").mkdir(parents=True)
    (project / "d/e/f").write_text("old")
    (project / "empty").mkdir()
    done = run("rm -r d empty; mkdir -p n/m; echo x > n/m/x; mkdir d; ln -s n d/l; chmod 700 .")
    for words in ((), ("undo",), ("redo",)):
        assert cli(*words).returncode == 0 if words else True
        last = told(cli("log", "--json"))["runs"][0]  # type: ignore[index]
        listed = told(cli("show", "--json", last["run"]))["changes"]  # type: ignore[index]
        counts: dict[str, int] = {}
        for change in listed:
            counts[change["change"]] = counts.get(change["change"], 0) + 1
        assert (last["changes"], last["path_count"]) == (counts, len(listed))
        assert f"{len(listed)} changes" in cli("show", last["run"]).stdout
    assert len(done.changes) == len(listed)


def test_programs_are_told_everything_about_a_file(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    (project / "a").write_text("one")
    done = run("echo two > a; echo x > b")
    found = told(cli("files", "--json"))["files"]
    assert isinstance(found, list)
    known, made = found
    assert (made["path"], made["days"], made["runs"]) == ("b", [], [])
    day = time.strftime("%y-%m-%d")
    assert (known["path"], known["root"], known["kind"], known["size"]) == ("a", str(project), "file", 4)
    assert (known["is_deleted"], known["needs_approval"], known["last_run"]) == (False, False, done.run)
    assert (known["days"], known["runs"]) == ([day], [done.run])
    assert Path(known["last_approved_copy_path"]).read_text() == "one"
    one = told(cli("files", "--json", "a"))
    assert isinstance(one, dict)
    assert {name: value for name, value in one.items() if name != "versions"} == known
    assert [version["from"] for version in one["versions"]] == [done.run, day]
    everything = told(cli("files", "--json", "--all"))["files"]
    assert isinstance(everything, list)
    assert [each["path"] for each in everything] == ["a", "b"]


def test_the_versions_of_a_file_are_shown_with_what_brings_them_back(
    run: Callable[..., Run], cli: Cli, project: Path
) -> None:
    (project / "d").mkdir()
    (project / "d/a").write_text("one")
    first, second = run("echo two > d/a"), run("echo three > d/a")
    shown = cli("files", "a", cwd=project / "d").stdout
    assert [line.split()[0] for line in shown.splitlines()[2:-1]] == [
        second.name, first.name, time.strftime("%y-%m-%d"),
    ]  # fmt: skip
    assert "before: echo two > d/a" in shown
    assert "fumehood restore d/a" in shown
    assert cli("restore", "a", "--from", first.name, cwd=project / "d").returncode == 0
    assert (project / "d/a").read_text() == "one"


def test_a_directory_lists_what_lies_in_it(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    run("mkdir d e; echo x > d/a; echo x > e/b")
    for path, expected in (("d", ["d/a"]), (".", ["d/a", "e/b"]), (str(project), ["d/a", "e/b"])):
        found = told(cli("files", "--json", "--all", path))["files"]
        assert [each["path"] for each in found] == expected


def test_a_file_that_waits_says_so(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    (project / "a").write_text("one")
    run("echo two > a", apply="hold")
    assert cli("files").stdout.startswith("waiting ")


def test_a_restore_tells_programs_the_run(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    (project / "a").write_text("one")
    run("echo two > a")
    done = told(cli("restore", "--json", "a", "--from", time.strftime("%Y-%m-%d")))
    assert isinstance(done, dict)
    assert (done["act"], done["state"], done["command"]) == (
        "restore", "applied", f"restore a from {time.strftime('%y-%m-%d')}",
    )  # fmt: skip
    assert [change["path"] for change in done["changes"]] == ["a"]
    again = told(cli("restore", "--json", "a", "--from", time.strftime("%Y-%m-%d")))
    assert isinstance(again, dict)
    assert again["state"] == "empty"
    assert "already" in cli("restore", "a", "--from", time.strftime("%Y-%m-%d")).stdout


def test_a_restore_names_the_run_by_its_number(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    (project / "a").write_text("one")
    first = run("echo two > a")
    run("echo three > a")
    done = told(cli("restore", "--json", "a", "--from", first.run))
    assert isinstance(done, dict)
    assert done["command"] == f"restore a from {first.number}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("restore", "nothing"), "there is no backup of nothing"),
        (("restore", "a", "--from", "2020-01-01"), "there is no backup of a from 2020-01-01"),
        (("restore", "a", "--from", "nonsense"), "there is no run nonsense"),
        (("restore", "/etc/passwd"), "/etc/passwd is not a path in"),
        (("files", "nothing"), "nothing is known about nothing"),
        (("files", "../.."), "is not a path in"),
        (("restore",), "restore needs PATH"),
    ],
)
def test_bad_input_gets_one_line_and_a_hint(
    run: Callable[..., Run], cli: Cli, project: Path, arguments: tuple[str, ...], words: str
) -> None:
    (project / "a").write_text("one")
    run("echo two > a")
    done = cli(*arguments)
    assert done.returncode == 125
    first, second = done.stderr.splitlines()
    assert first.startswith("ERROR: ")
    assert words in first
    assert second.startswith("hint: ")
    assert (project / "a").read_text() == "two\n"


def test_a_scan_says_what_it_found(cli: Cli, project: Path) -> None:
    (project / "a").write_text("x")
    (project / "b").write_text("x")
    assert cli("files").stdout == "no files are known yet; fumehood scan reads the project\n"
    assert cli("scan").stdout == "2 files: 2 new, 0 changed, 0 gone\n"
    (project / "a").unlink()
    found = told(cli("scan", "--json"))
    assert found == {"files": 1, "added": 0, "updated": 0, "dropped": 1, "kept": 0, "unread": 0}
    assert cli("files").stdout == "1 more that no run changed; fumehood files --all lists them\n"
    assert cli("files", "--all").stdout.split() == ["1", "bytes", "b"]


def test_packages_and_caches_are_counted_not_listed(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    packages = project / "web app/node_modules"
    packages.mkdir(parents=True)
    for name in ("a.js", "b.js"):
        (packages / name).write_text("x")
    (project / "main.py").write_text("x")
    run("rm main.py 'web app/node_modules/'*")
    first, second = cli("files").stdout.splitlines()
    assert "main.py" in first
    assert second == "2 more files in web app/node_modules; fumehood files 'web app/node_modules' lists them"
    assert len(cli("files", "web app/node_modules").stdout.splitlines()) == 2
    assert len(cli("files", "--all").stdout.splitlines()) == 3
    assert len(json.loads(cli("files", "--json").stdout)["files"]) == 3


def test_no_control_character_reaches_the_terminal(run: Callable[..., Run], cli: Cli, project: Path) -> None:
    (project / "a\x1b[31m\n").write_text("one")
    run("rm a*")
    for arguments in (("files",), ("files", "a\x1b[31m\n"), ("restore", "a\x1b[31m\n")):
        done = cli(*arguments)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert (project / "a\x1b[31m\n").exists()
