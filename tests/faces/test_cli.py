"""The real command line, as other programs and people at a terminal meet it."""

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from at_terminal import Terminal as Person
from conftest import command_line, need
from fumehood import BadRequest, Run, Sandbox
from patience import LONG_S, with_enough_time
from processes import LONG, left_over

pytestmark = pytest.mark.once

Cli = Callable[..., subprocess.CompletedProcess[str]]
in_the_hood = pytest.mark.namespaces

FIELDS = {
    "run": str, "project": str, "command": str, "cwd": str, "state": str, "exit_code": int, "timed_out": bool,
    "sandboxed": bool, "network": str, "duration_s": float, "output": str, "output_truncated": bool,
    "changes": list, "blocked": list,
}  # fmt: skip
CHANGE_FIELDS = {"path", "root", "change", "kind", "verdict", "reason", "flags"}
COMMANDS = (
    "run", "shell", "agent", "acp", "hook", "log", "show", "diff", "output", "ps", "stop", "checkpoint", "forward",
    "status", "ask", "apply", "discard", "undo",
    "redo", "review", "files", "restore", "scan", "doctor", "clean", "mcp", "roots", "grants", "playground", "projects",
    "rootfs", "workspace", "setup", "config", "tool",
)  # fmt: skip
ESCAPE = "\x1b"


@pytest.fixture
def told(cli: Cli) -> Callable[..., Any]:
    """Run the command line with --json and return what it told: one value, on one line."""

    def ask(*arguments: str, code: int = 0, **options: Any) -> Any:
        name, *rest = arguments
        done = cli(name, "--json", *rest, **options)
        assert done.returncode == code, done.stderr or done.stdout
        assert done.stdout.count("\n") == 1
        assert done.stderr == ""
        return json.loads(done.stdout)

    return ask


@pytest.fixture
def started(home: Path, project: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command line without waiting for it; its output comes as bytes."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str | bytes, **options: Any) -> subprocess.Popen[bytes]:
        settings = {"cwd": project, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*command_line(), *arguments], **(settings | options))
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def left_in_state(home: Path) -> list[str]:
    """What runs left behind, their records apart."""
    state = home / ".local/state/fumehood"
    return [str(path) for part in ("runs", "outputs") for path in (state / part).glob("*")]


def is_one_clear_line(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether an error is told as agreed: what is wrong, then what to do, and no trace of our own code."""
    lines = done.stderr.splitlines()
    return len(lines) == 2 and lines[0].startswith("ERROR: ") and lines[1].startswith("hint: ")


# The object


@in_the_hood
def test_json_is_one_object_with_every_field_of_the_contract(told: Any, project: Path) -> None:
    (project / "old").write_text("old")
    found = told("run", "--", "echo out; echo err >&2; echo new > old; touch added; exit 3", code=3)
    assert {name: type(found[name]) for name in FIELDS} == FIELDS
    assert found["project"] == found["cwd"] == str(project)
    assert found["command"] == "echo out; echo err >&2; echo new > old; touch added; exit 3"
    assert (found["state"], found["exit_code"], found["network"]) == ("applied", 3, "none")
    assert found["output"] == "out\nerr\n"
    assert [set(change) for change in found["changes"]] == [CHANGE_FIELDS] * 2
    assert {change["path"]: change["change"] for change in found["changes"]} == {"old": "modified", "added": "added"}
    assert all(change["root"] == str(project) and change["verdict"] == "applied" for change in found["changes"])


@in_the_hood
@pytest.mark.parametrize(
    ("options", "command", "state", "verdicts"),
    [
        ((), "touch a", "applied", ["applied"]),
        (("--hold",), "touch a", "held", ["held"]),
        (("--discard",), "touch a", "discarded", ["discarded"]),
        ((), "true", "empty", []),
        ((), "mkfifo a; touch b", "applied", ["unsupported", "applied"]),
    ],
)
def test_states_and_verdicts(
    options: tuple[str, ...], command: str, state: str, verdicts: list[str], told: Any, home: Path
) -> None:
    found = told("run", *options, "--", command)
    assert found["state"] == state
    assert [change["verdict"] for change in found["changes"]] == verdicts
    assert all(change["reason"] for change in found["changes"] if change["verdict"] != "applied")


@in_the_hood
def test_names_that_are_not_utf8_are_escaped_in_json(cli: Cli) -> None:
    done = cli("run", "--json", "--", "touch", os.fsdecode(b"\xff\xfe"))
    assert done.stdout.isascii()
    assert [change["path"] for change in json.loads(done.stdout)["changes"]] == ["\udcff\udcfe"]


@pytest.mark.parametrize(
    ("arguments", "code", "state"),
    [
        (("--network", "--", "true"), 126, "refused"),
        (("--allow-host", "example.org", "--", "true"), 126, "refused"),
        (("--project", "/nowhere", "--", "true"), 125, "failed"),
        (("--",), 125, "failed"),
        (("--nonsense", "--", "true"), 125, "failed"),
        (("--timeout", "soon", "--", "true"), 125, "failed"),
    ],
)
def test_a_run_that_never_was_is_told_with_every_field_too(
    arguments: tuple[str, ...], code: int, state: str, told: Any
) -> None:
    found = told("run", *arguments, code=code)
    assert {*FIELDS, *Run(run="", project="", command="", cwd="", state="").as_dict()} <= set(found)
    assert (found["state"], found["exit_code"]) == (state, code)
    # What a person forbade is recorded; what makes no sense is not.
    assert (found["run"] is not None) == (state == "refused")
    assert found["error"]
    assert found["hint"]


def test_a_shell_is_for_a_person_and_says_so_before_it_begins(cli: Cli, home: Path) -> None:
    done = cli("shell", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"], done.stderr) == (125, "shell does not take --json", "")


# Exit codes


@in_the_hood
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--", "true"), 0),
        (("--", "exit 42"), 42),
        (("--", "kill -9 $$"), 137),
        (("--", "no-such-program-anywhere"), 127),
        (("--", "no-such-program-anywhere", "argument"), 127),
        (("--", "./data", "argument"), 126),
        (("--timeout", "0.2", "--", "sleep 60"), 124),
        (("sh", "-c", "exit 5"), 5),
    ],
)
def test_the_exit_code_is_the_commands_own(arguments: tuple[str, ...], code: int, cli: Cli, project: Path) -> None:
    (project / "data").write_text("no program")
    # A directory on the path that can't be entered would make a shell say 126.
    assert cli("run", *arguments, env={"PATH": "/usr/bin:/bin"}).returncode == code


@in_the_hood
def test_a_time_limit_ends_everything_and_keeps_what_was_done(told: Any, project: Path) -> None:
    mark = f"{LONG}.5"
    command = f"(trap '' HUP INT TERM; sleep {mark}) & setsid sleep {mark} & touch done; echo begun; sleep {mark}"
    found = with_enough_time(
        lambda limit: told("run", "--timeout", str(limit), "--", command, code=124), lambda found: found["output"]
    )
    assert found["timed_out"]
    assert found["output"] == "begun\n"
    assert (found["state"], found["reason"]) == ("held", "ended by the time limit")
    assert not (project / "done").exists()
    told("apply", found["run"])
    assert (project / "done").exists()
    assert not left_over(f"sleep {mark}")


# Output


@in_the_hood
def test_output_comes_byte_for_byte_and_apart(started: Any, project: Path) -> None:
    noise = bytes(range(256)) * 4096 + b"\xff\r\n\xc3"
    (project / "noise").write_bytes(noise)
    out, err = started("run", "--quiet", "--", "cat noise; tac noise >&2; exit 0").communicate(timeout=LONG_S)
    assert out == noise
    assert err == subprocess.run(["tac", project / "noise"], capture_output=True, check=True).stdout


@in_the_hood
def test_output_comes_as_it_is_printed(started: Any, project: Path) -> None:
    process = started("run", "--", "echo first; read line; echo $line", stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"first\n"
    assert process.poll() is None
    assert process.communicate(b"second\n", timeout=LONG_S)[0] == b"second\n"


@in_the_hood
def test_what_changed_is_told_on_standard_error(cli: Cli, project: Path) -> None:
    (project / "gone").touch()
    done = cli("run", "--", "echo out; echo err >&2; touch new; rm gone")
    assert done.stdout == "out\n"
    first, second, *block = done.stderr.splitlines()
    assert (first, second) == ("err", f"fumehood: project {project} (new)")
    assert block[0] == "fumehood: 2 changes applied (1 deletion)"
    assert [line.strip() for line in block[1:3]] == ["- gone", "+ new"]
    assert block[3].strip().startswith("undo: fumehood undo 1")
    assert cli("run", "--", "true").stderr == ""
    assert cli("run", "--quiet", "--", "touch more").stderr == ""


@in_the_hood
def test_deletions_are_always_counted(cli: Cli, project: Path) -> None:
    for n in range(200):
        (project / f"gone{n}").touch()
    done = cli("run", "--", "rm gone*; for n in $(seq 200); do touch new$n; done")
    assert "\nfumehood: 400 changes applied (200 deletions)\n" in done.stderr
    assert "- ./…  200 of them\n" in done.stderr
    assert "all of them: fumehood show" in done.stderr
    shown = cli("show").stdout
    assert all(f"- gone{n}\n" in shown for n in range(200))


@in_the_hood
def test_standard_input_reaches_the_command(cli: Cli) -> None:
    assert cli("run", "--", "tr a-z A-Z", input="hello").stdout == "HELLO"
    assert json.loads(cli("run", "--json", "--", "cat", input="hello").stdout)["output"] == "hello"
    assert cli("run", "--", "cat").stdout == ""


@in_the_hood
def test_a_reader_that_has_had_enough_ends_the_command(started: Any, cli: Cli, told: Any) -> None:
    process = started("run", "--", "yes")
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    process.wait(LONG_S)
    assert b"Traceback" not in process.stderr.read()
    assert told("log")["runs"][0]["state"] == "empty"


@in_the_hood
@pytest.mark.parametrize("line", ["log", "log --json", "diff", "output", "run --json -- true"])
def test_a_reader_that_never_reads_is_no_error(line: str, started: Any, cli: Cli) -> None:
    cli("run", "--", "seq 100000 | tee a")
    reading, writing = os.pipe()
    os.close(reading)
    process = started(*line.split(), stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=LONG_S)
    assert (process.returncode, err) == (0, b"")


@in_the_hood
def test_the_output_command_prints_what_was_printed(cli: Cli, started: Any, told: Any) -> None:
    for size in (3, 1_000_000):
        cli("run", "--", f"head -c {size} /dev/urandom | tee a; printf 'e\\377' >&2")
        wanted = (Path(told("show")["project"]) / "a").read_bytes() + b"e\xff"
        assert started("output", "last").communicate(timeout=LONG_S)[0] == wanted, size
    found = told("output", "last")
    assert set(found) == {"run", "stdout", "stderr", "output_truncated"}
    assert found["output_truncated"]


# Interrupting


@in_the_hood
def test_interrupting_ends_the_command_not_the_bookkeeping(started: Any, told: Any, project: Path) -> None:
    process = started("run", "--", "echo changed > file; echo ready; sleep 100")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    process.wait(LONG_S)
    assert process.returncode in (130, 137)
    assert b"Traceback" not in process.stderr.read()
    (run,) = told("log")["runs"]
    assert (run["state"], run["exit_code"]) == ("held", process.returncode)
    told("apply", "last")
    assert (project / "file").read_text() == "changed\n"
    told("undo")
    assert not (project / "file").exists()


@pytest.mark.long
@in_the_hood
def test_a_command_that_ignores_the_first_interrupt_is_ended_soon(started: Any, told: Any) -> None:
    process = started("run", "--", "trap '' INT; echo ready; sleep 100")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    process.wait(LONG_S)
    assert process.returncode in (130, 137)
    assert told("log")["runs"][0]["state"] == "empty"


# Projects


@in_the_hood
def test_from_a_subdirectory_the_command_starts_there(told: Any, project: Path) -> None:
    (project / ".git").mkdir()
    (project / "src/deep").mkdir(parents=True)
    found = told("run", "--", "pwd; touch here", cwd=project / "src/deep")
    assert found["project"] == str(project)
    assert found["cwd"] == found["output"].strip() == str(project / "src/deep")
    assert [change["path"] for change in found["changes"]] == ["src/deep/here"]


@in_the_hood
def test_the_project_is_the_nearest_registered_one_or_work_tree_else_the_directory(
    told: Any, project: Path
) -> None:
    inner, plain = project / "tree/inner", project / "plain"
    for directory in (inner / "deep", plain, project / "tree/.git"):
        directory.mkdir(parents=True)
    assert told("run", "--", "true", cwd=plain)["project"] == str(plain)
    assert told("run", "--", "true", cwd=inner / "deep")["project"] == str(project / "tree")
    assert told("run", "--project", str(inner), "--", "true", cwd="/usr")["project"] == str(inner)
    assert told("run", "--", "true", cwd=inner / "deep")["project"] == str(inner)


@in_the_hood
@pytest.mark.parametrize("inner_is", ["repository", "work tree", "submodule"])
def test_a_repository_s_own_top_wins_over_a_project_around_it(inner_is: str, told: Any, project: Path) -> None:
    other = "git init -q one && git -C one commit -q --allow-empty -m x && "
    made_by = {
        "repository": "git init -q inner",
        "work tree": f"{other} git -C one worktree add -q ../inner",
        "submodule": f"{other} git init -q && git -c protocol.file.allow=always submodule --quiet add ./one inner",
    }[inner_is]
    who = {f"GIT_{role}_{what}": "ada@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(made_by, shell=True, cwd=project, env=os.environ | who, check=True)
    (project / "inner/deep").mkdir()
    (project / "neighbour").mkdir()
    told("scan")
    assert told("run", "--", "true")["project"] == str(project)
    found = told("run", "--", "touch made ../../neighbour/made", cwd=project / "inner/deep", code=1)
    assert (found["project"], os.listdir(project / "neighbour")) == (str(project / "inner"), [])
    assert [each["path"] for each in found["changes"]] == ["deep/made"]
    assert told("run", "--", "true", cwd=project / "neighbour")["project"] == str(project)
    told("run", "--session", "s", "--", "true")
    begun_outside = told("run", "--session", "s", "--cwd", ".", "--", "pwd", cwd=project / "inner")
    assert (begun_outside["project"], begun_outside["output"]) == (str(project), f"{project}/inner\n")


@in_the_hood
def test_explaining_a_run_registers_nothing(told: Any, cli: Cli, project: Path) -> None:
    for words in (["run", "--explain"], ["run", "--explain", "--no-project"], ["run", "--explain", "--session", "s"]):
        assert cli(*words, "--", "true").returncode == 0
    assert cli("capabilities").returncode == 0
    assert cli("agent").returncode == 0
    assert told("projects", "list")["projects"] == []


@in_the_hood
def test_the_first_run_of_a_project_names_it_once(cli: Cli, project: Path, home: Path) -> None:
    line = f"fumehood: project {project} (new)\n"
    assert cli("run", "--", "true").stderr == line
    assert cli("run", "--", "true").stderr == ""
    for number, words in enumerate((["--quiet"], ["--json"], ["--brief", "--session", "s"], ["--no-project"])):
        another = project.with_name(f"another-{number}")
        another.mkdir()
        assert cli("run", *words, "--", "true", cwd=another).stderr == ""


@in_the_hood
def test_a_named_project_starts_at_its_top_or_where_one_says(told: Any, project: Path) -> None:
    (project / "sub").mkdir()
    named = ("run", "--project", str(project))
    assert told(*named, "--", "pwd", cwd="/usr")["output"] == f"{project}\n"
    assert told(*named, "--cwd", str(project / "sub"), "--", "pwd", cwd="/usr")["output"] == f"{project}/sub\n"
    assert told("run", "--cwd", "sub", "--", "pwd")["output"] == f"{project}/sub\n"
    assert told("run", "--cwd=/usr", "--", "pwd")["output"] == "/usr\n"
    assert told(*named, "--cwd", "sub", "--", "pwd", cwd="/usr")["output"] == f"{project}/sub\n"
    assert told(*named, "--session", "s", "--cwd", ".", "--", "pwd", cwd="/usr")["output"] == "/usr\n"


@in_the_hood
def test_looking_around_registers_nothing(told: Any, cli: Cli, project: Path) -> None:
    (project / "sub").mkdir()
    cli("log", cwd=project / "sub")
    cli("roots", cwd=project / "sub")
    assert told("run", "--", "true")["project"] == str(project)
    assert told("run", "--", "true", cwd=project / "sub")["project"] == str(project)


ODD_NAMES = [
    b"a,b", b"a:b", b"a\\b", b"two\nlines", b"\xff\xfe", b"sp ace", b"-dash", b"quo'te\"", b"\x1b[31mred", "ü".encode(),
    b"%s", b"$HOME", b"upperdir=x,lowerdir=y",
]  # fmt: skip


@pytest.mark.long
@in_the_hood
@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_will_do_for_a_project(name: bytes, told: Any, cli: Cli, project: Path, home: Path) -> None:
    odd = project / os.fsdecode(name)
    (odd / "sub").mkdir(parents=True)
    (odd / "file").write_text("old")
    found = told("run", "--", "echo new > file; touch sub/added; pwd | wc -c", cwd=odd)
    assert found["project"] == str(odd)
    assert found["output"].strip() == str(len(os.fsencode(odd)) + 1)
    assert [change["path"] for change in found["changes"]] == ["file", "sub/added"]
    for command in ("log", "show", "diff", "roots"):
        done = cli(command, cwd=odd)
        assert done.returncode == 0
        assert ESCAPE not in done.stdout
    assert told("undo", cwd=odd)["state"] == "applied"
    assert (odd / "file").read_text() == "old"
    assert left_in_state(home)


@in_the_hood
def test_names_with_escape_sequences_are_printed_escaped(cli: Cli) -> None:
    done = cli("run", "--", "touch", "\x1b]0;owned\x07\x1b[31m", "two\nlines")
    assert ESCAPE not in done.stderr
    assert "+ \\x1b]0;owned\\x07\\x1b[31m\n" in done.stderr
    assert "+ two\\nlines\n" in done.stderr
    for command in ("show", "diff", "log"):
        assert ESCAPE not in cli(command).stdout


# Bad input


def bad_inputs() -> dict[str, tuple[tuple[str, ...], str]]:
    """Arguments, in which {} stands for the test's own directory, and what the error names."""
    return {
        "no project": (("run", "--project", "{}/none", "--", "true"), "does not exist"),
        "a file": (("run", "--project", "{}/file", "--", "true"), "is not a directory"),
        "the root": (("run", "--project", "/", "--", "true"), "/ can't be a project"),
        "the home": (("run", "--project", "{}/home", "--", "true"), "home"),
        "above the home": (("run", "--project", "{}", "--", "true"), "home"),
        "the system": (("run", "--project", "/usr", "--", "true"), "system"),
        "our state": (("run", "--project", "{}/home/.local/state/fumehood", "--", "true"), "records"),
        "around our state": (("run", "--project", "{}/home/.local", "--", "true"), "records"),
        "a layer": (("run", "--project", "{}/home/.local/state/fumehood/runs", "--", "true"), "records"),
        "an empty name": (("run", "--project", "", "--", "true"), "--project needs a value"),
        "no command": (("run",), "command is empty"),
        "an empty command": (("run", "--", ""), "command is empty"),
        "a blank command": (("run", "--", " \t"), "command is empty"),
        "no such option": (("run", "--frobnicate", "--", "true"), "--frobnicate"),
        "an option without its value": (("run", "--timeout"), "--timeout"),
        "no time": (("run", "--timeout", "0", "--", "true"), "'0' is not a time limit"),
        "no number": (("run", "--timeout", "nan", "--", "true"), "nan"),
        "hold and discard": (("run", "--hold", "--discard", "--", "true"), "can't be used together"),
        "no such root": (("run", "--root", "moon", "--", "true"), "moon"),
        "no such command": (("frobnicate",), "there is no command frobnicate"),
        "nearly a command": (("lgo",), "hint: did you mean log?"),
        "a program": (("make", "test"), "hint: to run it in the hood: fumehood run -- make …"),
        "another's word for a command": (("accept",), "hint: did you mean apply?"),
        "nearly an option": (("run", "--quite", "--", "true"), "hint: did you mean --quiet?"),
        "nearly an option of a command": (("undo", "--forec"), "hint: did you mean --force?"),
        "nearly an act": (("grants", "revok", "3"), "there is no grants revok\nhint: did you mean revoke?"),
        "nothing like an option": (("discard", "1", "--force"), "--force\nhint: fumehood discard --help"),
        "a command without a name": (("",), "the command has no name"),
        "a value that is none of few": (("tool", "--format", "x"), "'x' is not one of: openai, ollama, anthropic, mcp"),
        "no tier": (("rootfs", "install", "--tier", "x"), "--tier: 'x' is not a whole number"),
        "a web address": (("ask", "https://pypi.org/simple"), "it is a web address; name its host alone"),
        "the project as a root": (("roots", "remove", "{}/project"), "but the project itself"),
        "a word too many": (("log", "x"), "fumehood log does not take x\nhint: fumehood log --help"),
        "no run named": (("apply",), "ERROR: apply needs RUN\n"),
        "no such workspace": (("workspace", "remove", "nosuch"), "hint: fumehood workspace list"),
        "no such grant": (("grants", "revoke", "x"), "NUMBER: 'x' is not a whole number"),
        "a shared /tmp of no session": (("run", "--own-tmp", "--", "true"), "--own-tmp needs a session"),
        "no such file to read": (("run", "--source", "{}/none", "--", "true"), "none does not exist"),
        "no such run": (("show", "0000"), "no run 0000"),
        "no run yet": (("show",), "no run last"),
        "nothing to undo": (("undo",), "nothing is left to undo"),
        "no number of runs": (("log", "-n", "many"), "'many' is not a whole number"),
        "fewer runs than none": (("log", "-n", "-4"), "it must be 0 or more, not -4"),
        "no age": (("clean", "--days", "-1"), "-1"),
        "a root that is not there": (("roots", "add", "{}/none"), "does not exist"),
        "a root above the project": (("roots", "add", "/var"), "/var can't be a root"),
        "no root": (("roots", "remove", "{}/project"), "not a root of"),
        "a root without a name": (("roots", "add"), "needs a directory"),
    }  # fmt: skip


@pytest.mark.parametrize("case", bad_inputs())
def test_bad_input_gets_one_clear_line_and_leaves_nothing(
    case: str, cli: Cli, told: Any, home: Path, test_directory: Path
) -> None:
    (test_directory / "file").touch()
    cli("clean")  # so that our directories are there
    arguments, named = bad_inputs()[case]
    done = cli(*(argument.replace("{}", str(test_directory)) for argument in arguments))
    assert done.returncode == 125
    assert done.stdout == ""
    assert is_one_clear_line(done), done.stderr
    assert named in done.stderr
    assert left_in_state(home) == []
    assert told("log", "--all")["runs"] == []


@in_the_hood
def test_a_working_directory_that_is_not_there(cli: Cli, home: Path) -> None:
    done = cli("run", "--cwd", "nowhere", "--", "true")
    assert done.returncode == 125
    assert is_one_clear_line(done), done.stderr
    assert "nowhere" in done.stderr
    assert left_in_state(home) == []


@pytest.mark.ordinary
@in_the_hood
def test_a_directory_that_cannot_be_entered(cli: Cli, home: Path, project: Path) -> None:
    closed = project / "closed"
    closed.mkdir(mode=0o000)
    try:
        for option in ("--project", "--cwd"):
            done = cli("run", option, str(closed), "--", "true")
            assert done.returncode == 125
            assert is_one_clear_line(done), done.stderr
            assert "closed" in done.stderr
        assert left_in_state(home) == []
    finally:
        closed.chmod(0o700)


@in_the_hood
def test_a_current_directory_that_is_gone(started: Any, cli: Cli, project: Path) -> None:
    gone = project / "gone"
    gone.mkdir()
    line = 'rmdir "$PWD"; exec "$@"'
    for arguments in (["run", "--", "true"], ["log"]):
        done = cli("-c", line, "sh", *command_line(), *arguments, command=["sh"], cwd=gone)
        gone.mkdir()
        assert done.returncode == 125
        assert is_one_clear_line(done), done.stderr


def test_a_command_that_no_kernel_takes_is_refused(home: Path, project: Path) -> None:
    with Sandbox(project) as sandbox:
        for command in ("echo \0", ["echo", "\0"]):
            with pytest.raises(BadRequest, match="NUL"):
                sandbox.run(command)
        with pytest.raises(BadRequest, match="too long"):
            sandbox.run("x" * 131_072)
        assert sandbox.history() == []
    with pytest.raises(BadRequest):
        Sandbox(f"{project}\0")


@in_the_hood
def test_a_project_in_the_layer_of_a_run_is_refused(cli: Cli, told: Any, home: Path) -> None:
    run = told("run", "--hold", "--", "mkdir inside")["run"]
    layer = home / f".local/state/fumehood/runs/{run}/0/held/inside"
    done = cli("run", "--", "true", cwd=layer)
    assert done.returncode == 125
    assert is_one_clear_line(done), done.stderr


def test_closed_standard_descriptors_are_no_trouble(started: Any, project: Path) -> None:
    line = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command_line()]
    done = subprocess.run([*line, "clean"], cwd=project, check=False)
    assert done.returncode == 0


# Runs by name


@in_the_hood
def test_a_run_is_named_by_its_id_a_prefix_or_last(told: Any, cli: Cli, project: Path) -> None:
    first, second = (told("run", "--", f"echo {n} > file")["run"] for n in (1, 2))
    assert told("show", "last")["run"] == told("show")["run"] == second
    assert told("show", first)["run"] == first
    assert told("show", first[:-1])["run"] == first
    assert told("show", first.lower())["run"] == first
    for unclear in (first[:2], ""):
        done = cli("show", unclear)
        assert done.returncode == 125
        assert is_one_clear_line(done)
    assert f"several runs begin with {first[:2]}" in cli("show", first[:2]).stderr
    other = project / "other"
    other.mkdir()
    done = cli("show", "last", "--project", other)
    assert "no run" in done.stderr


@in_the_hood
def test_errors_of_other_commands_are_objects_too(told: Any) -> None:
    found = told("show", "0000", code=125)
    assert found == {"error": "there is no run 0000", "hint": "fumehood log lists them", "exit_code": 125}


# Looking


@in_the_hood
def test_log_lists_the_latest_first(told: Any, cli: Cli, project: Path) -> None:
    assert "nothing has run here yet" in cli("log").stdout
    for command in ("touch a", "exit 4", "rm a"):
        cli("run", "--", command)
    found = told("log")["runs"]
    assert [run["command"] for run in found] == ["rm a", "exit 4", "touch a"]
    assert [run["changes"] for run in found] == [{"deleted": 1}, {}, {"added": 1}]
    assert [run["exit_code"] for run in found] == [0, 4, 0]
    assert len(told("log", "-n", "1")["runs"]) == 1
    lines = cli("log").stdout.splitlines()
    assert len(lines) == 3
    assert "-1" in lines[0]
    assert "exit 4" in lines[1]
    other = project / "other"
    other.mkdir()
    cli("run", "--project", other, "--", "true")
    assert len(told("log")["runs"]) == 3
    assert len(told("log", "--all")["runs"]) == 4


@in_the_hood
def test_show_tells_everything_about_a_run(told: Any, cli: Cli) -> None:
    ran = told("run", "--", "touch a", env={"MY_TOKEN": "x"})
    found = told("show")
    assert {name: found[name] for name in FIELDS} == {name: ran[name] for name in FIELDS}
    assert "MY_TOKEN" in found["dropped"]
    text = cli("show").stdout
    for word in (ran["run"], "touch a", "applied", "+ a", "MY_TOKEN", "network none"):
        assert word in text


@in_the_hood
def test_diff_shows_a_patch_for_all_or_for_some_paths(told: Any, cli: Cli, project: Path) -> None:
    (project / "src").mkdir()
    cli("run", "--", "printf 'a\\tb\\n' > src/a; echo b > src/b; echo c > c; printf '\\0' > z")
    assert cli("diff", "last", "src/a").stdout == (
        "diff --git a/src/a b/src/a\nnew file mode 100644\n--- /dev/null\n+++ b/src/a\n@@ -0,0 +1 @@\n+a\tb\n"
    )
    assert cli("diff", "last", "b", cwd=project / "src").stdout.endswith("+++ b/src/b\n@@ -0,0 +1 @@\n+b\n")
    assert "not shown: binary" in cli("diff").stdout
    found = told("diff", "last", "c", "z")["differences"]
    fields = {"path", "root", "change", "kind", "text", "binary", "shown"}
    assert [(set(each), each["path"], each["binary"]) for each in found] == [(fields, "c", False), (fields, "z", True)]
    done = cli("diff", "last", "nowhere")
    assert done.returncode == 125
    assert is_one_clear_line(done)
    assert "did not change nowhere" in done.stderr


# Settling


@in_the_hood
def test_held_changes_wait_until_they_are_applied(told: Any, cli: Cli, project: Path) -> None:
    done = cli("run", "--hold", "--", "echo new > file")
    assert not (project / "file").exists()
    assert "fumehood apply" in done.stderr
    assert "fumehood discard" in done.stderr
    assert told("apply", "last")["state"] == "applied"
    assert (project / "file").read_text() == "new\n"
    told("undo", told("log")["runs"][0]["run"])
    assert not (project / "file").exists()
    done = cli("apply", "last")
    assert done.returncode == 125
    assert is_one_clear_line(done)


@in_the_hood
def test_held_changes_may_be_thrown_away(told: Any, cli: Cli, project: Path, home: Path) -> None:
    told("run", "--hold", "--", "echo new > file")
    assert told("discard", "last")["state"] == "discarded"
    assert not (project / "file").exists()
    assert left_in_state(home) == []
    assert cli("apply", "last").returncode == 125


@in_the_hood
def test_discarded_changes_leave_nothing(told: Any, project: Path, home: Path) -> None:
    found = told("run", "--discard", "--", "echo new > file; cat file")
    assert (found["state"], found["output"]) == ("discarded", "new\n")
    assert list(project.iterdir()) == []
    assert left_in_state(home) == []


@in_the_hood
def test_undo_brings_back_what_was_there(told: Any, cli: Cli, project: Path) -> None:
    (project / "file").write_text("old")
    run = told("run", "--", "echo new > file")["run"]
    done = cli("undo")
    assert (project / "file").read_text() == "old"
    assert "to redo it: fumehood redo" in done.stdout
    assert told("show", run)["state"] == "undone"
    back = told("log")["runs"][0]
    assert (back["act"], back["of"]) == ("undo", run)
    cli("redo")
    assert (project / "file").read_text() == "new\n"


@in_the_hood
def test_undo_refuses_to_lose_what_came_after(told: Any, cli: Cli, project: Path) -> None:
    told("run", "--", "echo agent > file")
    (project / "file").write_text("person")
    done = cli("undo")
    assert done.returncode == 125
    assert is_one_clear_line(done)
    assert "file" in done.stderr
    assert (project / "file").read_text() == "person"


# Keeping house


@in_the_hood
def test_roots_are_listed_added_and_removed(told: Any, cli: Cli, project: Path, test_directory: Path) -> None:
    extra = test_directory / "extra"
    extra.mkdir()
    refused = cli("run", "--", f"touch {extra}/file")
    assert refused.returncode != 0
    assert told("roots") == {"roots": [str(project)], "offered": []}
    assert told("roots", "add", "../extra", code=126)["error"].startswith("Permission denied: Let commands write")
    with Person([*command_line(), "roots", "add", "../extra"], project) as terminal:
        assert terminal.end() == 0
    assert told("roots")["roots"] == [str(project), str(extra)]
    found = told("run", "--", f"touch {extra}/file")
    assert [(change["root"], change["path"]) for change in found["changes"]] == [(str(extra), "file")]
    assert (extra / "file").exists()
    assert f"+ {extra}/file" in cli("show").stdout
    assert cli("roots").stdout == f"{project}\n{extra}\n"
    assert told("roots", "remove", str(extra))["roots"] == [str(project)]
    assert cli("run", "--", f"touch {extra}/more").returncode != 0


@in_the_hood
def test_the_git_directory_of_a_work_tree_is_offered_and_makes_commits_work(
    told: Any, cli: Cli, test_directory: Path, home: Path
) -> None:
    need(shutil.which("git") is not None, "git is not here")
    main, tree = test_directory / "main", test_directory / "tree"
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    main.mkdir()
    begin = (["init", "-q"], [*identity, "commit", "-qm", "first", "--allow-empty"], ["worktree", "add", str(tree)])
    for line in begin:
        subprocess.run(["git", *line], cwd=main, check=True, capture_output=True)
    assert told("roots", cwd=tree) == {"roots": [str(tree)], "offered": [f"{main}/.git"]}
    assert f"fumehood roots add {main}/.git" in cli("roots", cwd=tree).stdout
    with Person([*command_line(), "roots", "add", f"{main}/.git"], tree) as terminal:
        assert terminal.end() == 0
    commit = f"echo new > file && git add file && git {' '.join(identity)} commit -qm second"
    found = told("run", "--", commit, cwd=tree)
    assert found["exit_code"] == 0, found["output"]
    log = subprocess.run(["git", "log", "--format=%s"], cwd=tree, capture_output=True, text=True, check=True)
    assert log.stdout == "second\nfirst\n"


@in_the_hood
def test_doctor_says_what_works_here(told: Any, cli: Cli) -> None:
    done = cli("doctor", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["sandbox"]) == (0, True)
    assert found["capture"] in ("kernel", "bwrap", "fuse", "copy")
    assert all({"name", "works", "detail", "fix"} <= set(ability) for ability in found["abilities"])
    text = cli("doctor").stdout
    assert "Commands can be sandboxed on this machine." in text
    assert ESCAPE not in text


@in_the_hood
def test_clean_says_what_it_freed(told: Any, cli: Cli, project: Path, home: Path) -> None:
    (project / "file").write_text("x" * 10_000)
    told("run", "--", "echo new > file")
    assert "nothing to remove" in cli("clean").stdout
    assert left_in_state(home)
    found = told("clean", "--days", "0")
    assert found["runs"] == 1
    assert found["bytes"] >= 10_000
    assert left_in_state(home) == []
    done = cli("undo")
    assert done.returncode == 125
    assert is_one_clear_line(done)
    assert left_in_state(home) == []
    assert (project / "file").read_text() == "new\n"


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, cli: Cli, home: Path) -> None:
    done = cli(command, "--help")
    assert done.returncode == 0
    assert f"usage: fumehood {command}" in done.stdout
    examples = done.stdout.partition("examples")[2].splitlines()
    assert any(f"fumehood {command}" in line for line in examples)
    assert "--json" in done.stdout or command in ("hook", "agent", "acp")
    assert not (home / ".local/state/fumehood").exists(), "help needs no records"


def test_the_program_tells_its_commands_and_its_version(cli: Cli) -> None:
    for arguments in ((), ("--help",), ("-h",)):
        done = cli(*arguments)
        assert done.returncode == 0
        assert all(f"\n    {command} " in done.stdout for command in COMMANDS)
        assert "examples:" in done.stdout
    assert cli("--version").stdout.startswith("fumehood ")


@in_the_hood
def test_a_locale_without_unicode_is_no_error(cli: Cli) -> None:
    python, *rest = command_line()
    command = f"echo {'long ' * 50}; touch gr\xfcn"
    for arguments in (["run", "--help"], ["run", "--", command], ["log"], ["show"], ["diff"]):
        done = cli(*arguments, command=[python, "-X", "utf8=0", *rest], env={"LC_ALL": "C"})
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "\\u2026" in cli("log", command=[python, "-X", "utf8=0", *rest], env={"LC_ALL": "C"}).stdout


# On a terminal


ATTACH = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A person's terminal with the command line on it."""

    def __init__(self, *arguments: str, cwd: Path, env: dict[str, str] | None = None, columns: int = 100) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "PAGER": "cat"} | (env or {})
        environment.pop("NO_COLOR", None) if env is None or "NO_COLOR" not in env else None
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", ATTACH, *command_line(), *arguments],
            stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=environment,
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def read(self, until: bytes | None = None, seconds: float = LONG_S) -> bytes:
        """Read until something appears, or to the end."""
        deadline = time.monotonic() + seconds
        while until is None or until not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"waited for {until!r}, saw {self.seen!r}"
            try:
                data = os.read(self.master, 65536)
            except OSError:  # how the kernel says that nobody is left on the other side
                break
            if not data:
                break
            self.seen += data
        return self.seen

    def close(self) -> int:
        os.close(self.master)
        return self.process.wait(LONG_S)


@in_the_hood
def test_a_terminal_gets_colour_and_a_live_line_around_the_commands_own_output(home: Path, project: Path) -> None:
    command = "echo begin; touch seen; read line; printf 'a\\tb\\n'; echo end"
    terminal = Terminal("run", "--", command, cwd=project)
    terminal.read(until=b"seen")
    os.write(terminal.master, b"\n")
    seen = terminal.read().replace(b"\r\n", b"\n")
    assert terminal.close() == 0
    assert b"\r\x1b[K" in seen, "the live line is cleared"
    live = seen[: seen.index(b"a\tb\n")]
    assert b"1 + " in live
    assert b"seen" in live
    for line in (b"begin\n", b"a\tb\n", b"end\n"):
        assert line in seen
    assert b"\x1b[1mfumehood:\x1b[0m 1 change applied" in seen
    assert b"\x1b[32m+\x1b[0m seen" in seen


@in_the_hood
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colour_gets_none(env: dict[str, str], home: Path, project: Path) -> None:
    terminal = Terminal("run", "--quiet", "--", "touch file", cwd=project, env=env)
    terminal.read()
    assert terminal.close() == 0
    for command in ("log", "show", "diff", "doctor"):
        terminal = Terminal(command, cwd=project, env=env)
        assert b"\x1b" not in terminal.read(), command
        assert terminal.close() == 0


@in_the_hood
def test_a_terminal_that_draws_nothing_gets_no_live_line(home: Path, project: Path) -> None:
    command = "echo begin; touch 1 2 3 4; read line; echo end"
    terminal = Terminal("run", "--", command, cwd=project, env={"TERM": "dumb"})
    terminal.read(until=b"begin")
    os.write(terminal.master, b"\n")
    seen = terminal.read()
    assert terminal.close() == 0
    assert b"\x1b" not in seen
    assert f"end\r\nfumehood: project {project} (new)\r\nfumehood: 4 changes applied\r\n".encode() in seen


@in_the_hood
def test_a_diff_on_a_terminal_is_coloured_and_harmless(home: Path, project: Path) -> None:
    (project / "file").write_text("old\n")
    terminal = Terminal("run", "--quiet", "--", "printf 'n\\033[2Jw\\tx\\r\\n' > file", cwd=project)
    terminal.read()
    assert terminal.close() == 0
    terminal = Terminal("diff", cwd=project)
    seen = terminal.read()
    assert terminal.close() == 0
    assert b"\x1b[31m-old\x1b[0m" in seen
    assert b"\x1b[32m+n\\x1b[2Jw\tx\\r\x1b[0m" in seen


@in_the_hood
def test_ctrl_c_on_a_terminal_ends_the_command_and_keeps_its_changes(home: Path, project: Path, told: Any) -> None:
    terminal = Terminal("run", "--", "echo changed > file; echo ready; sleep 100", cwd=project)
    terminal.read(until=b"ready")
    os.write(terminal.master, b"\x03")
    seen = terminal.read()
    assert terminal.close() in (130, 137)
    assert b"Traceback" not in seen
    assert b"1 change applied" in seen
    assert told("log")["runs"][0]["state"] == "applied"


@in_the_hood
@pytest.mark.parametrize("end", ["Ctrl-\\", "the window is closed"])
def test_what_ends_a_command_at_a_terminal_otherwise_holds_its_changes(
    end: str, home: Path, project: Path, told: Any
) -> None:
    terminal = Terminal("run", "--", "echo changed > file; sleep 100", cwd=project)
    terminal.read(until=b"file")  # the live line
    if end == "Ctrl-\\":
        os.write(terminal.master, b"\x1c")
        assert b"1 change held" in terminal.read()
    terminal.close()
    (run,) = told("log")["runs"]
    assert run["state"] == "held"
    assert run["reason"].startswith("ended by a signal: ")


@in_the_hood
def test_a_terminal_of_no_size_is_no_error(home: Path, project: Path) -> None:
    terminal = Terminal("run", "--", "touch seen; sleep 0.5", cwd=project, columns=0)
    seen = terminal.read()
    assert terminal.close() == 0
    assert b"Traceback" not in seen


@in_the_hood
def test_json_on_a_terminal_is_only_the_object(home: Path, project: Path) -> None:
    terminal = Terminal("run", "--json", "--", "touch seen; sleep 0.3; cat", cwd=project)
    seen = terminal.read()
    assert terminal.close() == 0
    assert json.loads(seen)["state"] == "applied"


@in_the_hood
def test_the_log_for_programs_has_the_first_paths_and_their_number(told: Callable[..., Any]) -> None:
    run = told("run", "--", "mkdir many; cd many; seq 300 | xargs touch")
    (logged,) = told("log")["runs"]
    assert (logged["run"], logged["path_count"], logged["changes"]) == (run["run"], 301, {"added": 301})
    assert logged["paths"] == run["changes"][:20]
    assert len(told("show")["changes"]) == 301
