"""What is told of many changes: by directory, deletions counted, and the numbers agree."""

import json
import os
import re
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

import reader
from at_terminal import Terminal
from conftest import command_line
from fumehood import Sandbox

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

Cli = Callable[..., subprocess.CompletedProcess[str]]
NEW_AND_GONE = "rm -r t; rm u/[0-9]*; mkdir -p n/m; for i in 1 2 3 4 5 6 7 8; do echo > n/m/$i; done; echo x > one"


@pytest.fixture
def many(project: Path) -> Path:
    for directory in ("t/q", "u"):
        (project / directory).mkdir(parents=True)
        for number in range(300):
            (project / directory / str(number)).write_text("x")
    (project / "u/stays").write_text("x")
    return project


def listed(text: str) -> list[str]:
    return [line[2:] for line in text.splitlines() if line[:4] in ("  + ", "  - ", "  ~ ")]


def count_told(line: str) -> int:
    counts = re.search(r"  (?:and )?(\d+) (of them|in it)$", line)
    return 1 if counts is None else int(counts[1]) + (counts[2] == "in it")


@pytest.mark.parametrize("how", ["--hold", "--discard", ""])
def test_thousands_of_changes_are_told_by_directory_and_add_up(how: str, cli: Cli, many: Path) -> None:
    cli("run", "--quiet", "--", "true")
    told = cli("run", *filter(None, [how]), "--", NEW_AND_GONE).stderr
    lines = listed(told)
    assert {line.split()[1] for line in lines} == {"t/", "u/…", "n/", "one"}, told
    total = int(told.split()[1])
    assert total == len(json.loads(cli("show", "--json").stdout)["changes"])
    assert sum(map(count_told, lines)) == total
    assert "(602 deletions)" in told.splitlines()[0]
    exact = re.findall(r"^ {2,4}[+~-] ", cli("show").stdout, re.MULTILINE)
    assert len(exact) == total, "the exact list is a command away"


@pytest.mark.parametrize("sentence", reader.SENTENCES.values(), ids=reader.SENTENCES)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_of_any_language_reach_models_and_people_as_they_are(
    sandbox: Sandbox, cli: Cli, project: Path, sentence: str, form: str
) -> None:
    text = unicodedata.normalize(form, sentence)
    command = f"echo '{text}' | tee '{text}'"
    told = sandbox.run(command).for_model()
    assert told.startswith(f"{text}\n")
    assert told.count(text) == 2, "what was printed, and the name"
    (project / text).unlink()
    assert cli("run", "--brief", "--", command).stdout == f"{text}\n"
    assert [change["path"] for change in json.loads(cli("show", "--json").stdout)["changes"]] == [text]
    with Terminal([*command_line(), "show"], project) as terminal:
        terminal.end()
        assert terminal.seen.count(text) >= 3, "twice in the command, and the name"


def test_directories_are_listed_as_they_are_counted(cli: Cli, project: Path) -> None:
    cli("run", "--quiet", "--", "true")
    told = cli("run", "--", "mkdir -p a/b; echo x > a/b/c").stderr
    assert told.startswith("fumehood: 3 changes applied\n")
    assert listed(told) == ["+ a/", "+ a/b/", "+ a/b/c"]
    assert "+3" in cli("log").stdout


def test_what_needs_a_look_in_a_new_tree_has_its_own_line(cli: Cli, project: Path) -> None:
    line = "mkdir n; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo > n/$i; done; echo 'x:' > n/Makefile"
    cli("run", "--quiet", "--", "true")
    told = cli("run", "--", line).stderr
    assert [each.split()[1] for each in listed(told)] == ["n/Makefile", "n/"]
    assert sum(map(count_told, listed(told))) == int(told.split()[1])


def test_files_that_a_run_made_are_among_those_that_runs_changed(cli: Cli, project: Path) -> None:
    (project / "other").write_text("x")
    cli("run", "--", "mkdir d; echo x > d/made")
    cli("scan")
    shown = cli("files").stdout
    assert "d/made" in shown
    assert "1 more that no run changed" in shown
    run = json.loads(cli("show", "--json").stdout)["number"]
    assert f"run {run} changed it last" in cli("files", "d/made").stdout
    assert "no run changed it" in cli("files", "other").stdout


@pytest.mark.parametrize("hours", [0, -2], ids=["", "the clock set back"])
def test_files_that_exist_after_undo_and_redo_are_not_called_deleted(
    hours: int, sandbox: Sandbox, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a").write_text("old")
    sandbox.run("rm a; echo x > b; ln -s b c")
    real = time.time
    for step, act in enumerate((sandbox.undo, sandbox.redo, sandbox.undo, sandbox.redo), 1):
        monkeypatch.setattr(time, "time", lambda step=step: real() + hours * step * 3600)
        act()
        assert {each["path"] for each in sandbox.files() if not each["is_deleted"]} == set(os.listdir(project))


def test_a_file_that_somebody_made_again_is_not_called_deleted(cli: Cli, project: Path) -> None:
    cli("run", "--", "echo x > a")
    cli("undo")
    assert cli("files").stdout.startswith("deleted")
    (project / "a").write_text("made again")
    assert not cli("files").stdout.startswith("deleted")
    assert "10 bytes  a" in cli("files", "a").stdout


def told_to_agent(cli: Cli, command: str, session: str = "agent") -> list[str]:
    """What an agent reads besides its command's own output, without the mark."""
    lines = cli("run", "--brief", "--session", session, "--", command).stderr.splitlines()
    return [line.partition("] ")[2] for line in lines]


def test_what_does_not_change_is_told_once_in_a_session(cli: Cli, project: Path) -> None:
    refused = "python3 -c 'open(\"/usr/{}\", \"w\")' 2>&1 | tail -1 >&2"
    (first,) = told_to_agent(cli, refused.format("x"))
    assert first.startswith("blocked write: /usr/x. outside the project everything is read-only")
    assert told_to_agent(cli, refused.format("x")) == []
    assert told_to_agent(cli, refused.format("y")) == ["blocked write: /usr/y"]
    assert told_to_agent(cli, refused.format("x"), "another") == [first]
    assert json.loads(cli("show", "--json").stdout)["blocked"][0]["hint"], "the record has it all"


def test_a_denied_network_is_told_each_time_and_its_advice_once(cli: Cli) -> None:
    (first,) = told_to_agent(cli, "getent hosts example.org; true")
    assert first.startswith('blocked network: "a host outside". there is no network; to ask the person')
    assert told_to_agent(cli, "getent hosts example.org; true") == ['blocked network: "a host outside"']


def test_a_command_that_changed_nothing_says_nothing(cli: Cli, project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / "f").write_text("x\n")
    subprocess.run(["git", "add", "f"], cwd=project, check=True)
    os.utime(project / "f")  # the index knows another time now, and git status writes it anew
    for command in ("git status", "ls", "cat f", "git status --short", "git diff", "true"):
        assert told_to_agent(cli, command) == [], command
    assert {run["state"] for run in json.loads(cli("log", "--json").stdout)["runs"]} == {"empty"}
    (undo,) = told_to_agent(cli, "echo y > f")
    assert undo.startswith("undo: fumehood undo ")


def test_a_reason_that_all_changes_have_is_said_once(cli: Cli, project: Path) -> None:
    held = cli("run", "--hold", "--", "echo 1 > a; echo 1 > b; mkdir -p x.git/objects/ab; echo 1 > x.git/objects/ab/cd")
    assert held.stderr.count("the run was asked to hold its changes") == 1
    assert "\n  + a\n  + b\n" in held.stderr
    assert cli("show", "last").stdout.count("the run was asked to hold its changes") == 1
    cli("apply", "1", "a")
    shown = cli("show", "1").stdout
    assert "\n  + a\n" in shown
    assert "\n  + b  [held: the run was asked to hold its changes]\n" in shown


def test_what_was_taken_back_after_a_death_is_not_told_as_done(cli: Cli, project: Path) -> None:
    (project / "f").write_text("old")
    with Sandbox(project) as sandbox:
        sandbox.run("echo new > f")
    dying = (
        "import os, sys; from fumehood import Sandbox; from fumehood.service import apply\n"
        "apply.Transfer.save = lambda *_: os.kill(os.getpid(), 9)\n"
        "Sandbox(sys.argv[1]).restore('f')"
    )
    assert subprocess.run([sys.executable, "-P", "-c", dying, str(project)], check=False).returncode == -9
    told = cli("show", "last").stdout
    assert "1 change failed: Fumehood was stopped before it was done; the project is as it was" in told
    assert (project / "f").read_text() == "new\n"
