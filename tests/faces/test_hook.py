"""The pre-tool hook: what it answers, and that a rewritten command is the command."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import command_line, need
from fumehood.core.request import quoted
from fumehood.faces.cli import hook
from patience import LONG_S
from processes import LONG, left_over

Cli = Callable[..., subprocess.CompletedProcess[str]]
Rewrite = Callable[..., str]

ODD = [
    "echo 'single' \"double\" `echo tick` $((1+1))",
    "cat <<'EOF'\n$HOME 'x' \"y\" \\n\nEOF",
    "cat <<EOF | tr a-z A-Z\none\n\ntwo\nEOF\n",
    "printf '%s\\n' 'it'\"'\"'s' é 漢字 😀 '\\'",
    "echo a # comment",
    "f() {\n  echo \"$1\"\n}\nf 'b  c'",
    "echo a; echo b >&2; exit 7",
    "if true; then echo yes; else echo no; fi && (exit 4)",
    "echo \"$#\" \"$@\"",
    "echo trailing\\\n line",
    " \n echo leading",
    "echo ' -- '; echo \"'\"",
    "! true",
]  # fmt: skip


def call(command: object, **more: Any) -> dict[str, Any]:
    told = {"session_id": "s-1", "tool_use_id": "toolu_1", "hook_event_name": "PreToolUse", "tool_name": "Bash"}
    return {**told, "tool_input": {"command": command, "description": "d", "timeout": 5000}, **more}


@pytest.fixture
def answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What the hook answers, asked in this process: a test of a hundred commands can't start Python for each."""
    monkeypatch.setattr(hook, "own_command", command_line)

    def ask(told: object, *arguments: str) -> dict[str, Any]:
        given = json.loads(hook.answered(json.dumps(told).encode(), hook.parse(arguments)))
        return given.get("hookSpecificOutput", given)

    return ask


@pytest.fixture
def shell(project: Path, home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A client's shell, which runs what the hook made of a command."""

    def run(line: str, **more: Any) -> subprocess.CompletedProcess[str]:
        need(shutil.which("bash") is not None, "there is no bash")
        return subprocess.run(
            ["bash", "-c", line], cwd=project, capture_output=True, encoding="utf-8", check=False, timeout=LONG_S,
            **more,
        )  # fmt: skip

    return run


def test_the_answer_carries_every_other_field_over(answer: Any, cli: Cli) -> None:
    done = cli("hook", input=json.dumps(call("make", extra=1)))
    told = json.loads(done.stdout)["hookSpecificOutput"]
    assert (done.returncode, done.stderr) == (0, "")
    assert told["hookEventName"] == "PreToolUse"
    assert told["permissionDecision"] == "allow"
    assert told["updatedInput"] | {"command": "make"} == {"command": "make", "description": "d", "timeout": 5000}
    assert "make" in told["updatedInput"]["command"]
    assert answer(call("make"), "--ask")["permissionDecision"] == "ask"


def test_gemini_gets_its_own_kind_of_answer(answer: Any) -> None:
    event = {"hook_event_name": "BeforeTool", "tool_name": "run_shell_command"}
    told = answer(call("ls", **event))
    assert told["hookEventName"] == "BeforeTool"
    assert told["tool_input"]["description"] == "d"
    assert told["tool_input"]["command"].endswith("-- 'ls'")
    assert answer(call("", **event))["decision"] == "deny"


def test_codex_is_told_by_its_input(answer: Any) -> None:
    line = answer(call("ls", turn_id="t"))["updatedInput"]["command"]
    assert "--session codex-s-1" in line
    assert "--keep-cwd" not in line


@pytest.mark.parametrize("event", ["PreToolUse", "BeforeTool"])
@pytest.mark.parametrize(
    "tool_input",
    [
        *(None, [], "x", {}),
        *({"command": command} for command in (None, ["ls"], " ", "a\0b", "\ud800", "x" * 130_000)),
    ],
)
def test_a_call_that_makes_no_sense_is_denied_with_a_reason(answer: Any, event: str, tool_input: object) -> None:
    told = answer(call("", hook_event_name=event) | {"tool_input": tool_input})
    if event == "BeforeTool":
        assert told["decision"] == "deny"
        assert told["reason"]
    else:
        assert told["permissionDecision"] == "deny"
        assert told["permissionDecisionReason"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[]", "{}", "null", '{"tool_name": 1}', '{"tool_name": "Bash"', "[" * 100_000),
        '{"tool_name": "Bash", "tool_input": {"command": "ls"}}',
        '{"tool_name": "Bash", "hook_event_name": "PostToolUse", "tool_input": {}}',
    ],
)
def test_input_that_is_no_call_forbids_the_command(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert hook.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("ERROR: ")


def test_a_hook_that_is_set_up_wrongly_forbids_the_command(cli: Cli) -> None:
    for arguments in (["--nonsense"], ["--client", "vi"], ["--session"], ["--client", "gemini"]):
        done = cli("hook", *arguments, input=json.dumps(call("ls")))
        assert done.returncode == 2
        assert done.stderr.startswith("ERROR: ")


def test_tools_that_run_no_command_are_let_alone(cli: Cli) -> None:
    done = cli("hook", input=json.dumps(call("x", tool_name="Read")))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.namespaces
def test_a_rewritten_command_prints_and_ends_as_the_command_does(answer: Any, shell: Any) -> None:
    for command in ODD:
        plain = shell(command)
        done = shell(answer(call(command))["updatedInput"]["command"])
        assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode), command
        assert done.stderr.replace("bash: ", "") == plain.stderr.replace("bash: ", "")


@pytest.mark.namespaces
def test_everything_about_another_place_is_kept_too(answer: Any, shell: Any, project: Path) -> None:
    (project / "a b's").mkdir()
    line = answer(call("cd \"a b's\" && pwd"))["updatedInput"]["command"]
    # As Claude Code does it: what follows runs where the command left the shell.
    done = shell(f"eval {quoted(line, always=True)} </dev/null && pwd -P", env=os.environ | {"PATH": "/usr/bin:/bin"})
    assert done.stdout == f"{project}/a b's\n" * 2
    elsewhere = answer(call("pwd"))["updatedInput"]["command"]
    assert shell(f"cd '{project}/a b'\\''s'; {elsewhere}").stdout == f"{project}/a b's\n"


@pytest.mark.namespaces
def test_only_what_an_agent_must_know_is_said(answer: Any, shell: Any, cli: Cli, project: Path) -> None:
    line = answer(call("echo x >a; mkdir -p .git/hooks; echo y >.git/hooks/pre-push; echo z >/etc/z; echo out"))
    done = shell(line["updatedInput"]["command"])
    assert done.stdout == "out\n"
    assert done.returncode == 0
    said = [each for each in done.stderr.splitlines() if each.startswith("[fumehood]")]
    assert any("held" in each and "pre-push" in each for each in said)
    assert any("blocked write: /etc/z" in each for each in said)
    assert re.search(r"undo: fumehood undo (\w+)", done.stderr)
    quiet = shell(answer(call("cat a"))["updatedInput"]["command"])
    assert (quiet.stdout, quiet.stderr) == ("x\n", "")
    back = shell(answer(call("fumehood undo " + said[-1].split()[-1]))["updatedInput"]["command"])
    assert back.returncode == 0, back.stderr
    assert not (project / "a").exists()


@pytest.mark.namespaces
def test_the_runs_of_one_client_are_one_session(answer: Any, shell: Any, cli: Cli, project: Path) -> None:
    for number in range(2):
        shell(answer(call(f"echo {number} >f{number}"))["updatedInput"]["command"])
    shell(answer(call("echo x >other", session_id="s-2"))["updatedInput"]["command"])
    assert cli("undo", "--session", "claude-s-1").returncode == 0
    assert os.listdir(project) == ["other"]


@pytest.mark.namespaces
def test_background_commands_and_their_end(answer: Any, project: Path) -> None:
    told = call(f"echo begun; sleep {LONG}.1; echo late >late")
    told["tool_input"]["run_in_background"] = True
    line = answer(told)["updatedInput"]["command"]
    assert "--keep-cwd" not in line
    need(shutil.which("bash") is not None, "there is no bash")
    with subprocess.Popen(["bash", "-c", line], cwd=project, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=LONG_S) != 0
    assert not left_over(f"sleep {LONG}.1"), "the command goes on"
    assert not (project / "late").exists()


@pytest.mark.parametrize("client", ["claude", "codex", "gemini"])
@pytest.mark.parametrize("command", ODD)
def test_a_command_is_never_rewritten_twice(client: str, command: str) -> None:
    options, told = hook.Options(), call(command)
    once = hook.rewrite(command, client, told, options)
    assert hook.rewrite(once, client, told, options) == once
    later = call(once, tool_use_id="toolu_2")
    assert hook.rewrite(once, client, later, options) == hook.rewrite(command, client, later, options)


@settings(max_examples=40)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_read_back_by_the_shell_and_stays_one_layer(text: str) -> None:
    options, told = hook.Options(), call(text)
    once = hook.rewrite(text, "claude", told, options)
    assert hook.rewrite(once, "claude", told, options) == once
    read = subprocess.run(["sh", "-c", f"printf %s {quoted(text, always=True)}"], capture_output=True, check=True)
    assert read.stdout == text.encode()


@pytest.mark.parametrize(
    "after", ["; rm -rf ~", " && id", "\nid", " | sh", "$(id)", "' 'x", "; fumehood_status=$?; id"]
)
def test_a_line_that_only_begins_like_ours_runs_in_the_hood_whole(after: str) -> None:
    options, told = hook.Options(), call("x")
    ours = hook.rewrite("x", "codex", told, options)
    line = hook.rewrite(ours + after, "codex", told, options)
    assert line.endswith(f"-- {quoted(ours + after, always=True)}")


@pytest.mark.parametrize("command", [
    "fumehood apply last", "fumehood undo last; id", "fumehood log --all", "fumehood undo $(id)", "fumehood undo\nid",
    "fumehood run -- id", "fumehood clean", "fumehood", "fumehood undo 'a'", "fumehood undo ../x", "fumehood undo a&",
])  # fmt: skip
def test_an_agent_can_only_look_and_undo_on_the_host(command: str) -> None:
    line = hook.rewrite(command, "codex", call("x"), hook.Options())
    assert line.endswith(f"-- {quoted(command, always=True)}")


def test_what_the_person_set_up_is_passed_on(answer: Any) -> None:
    told = answer(call("ls"), "--hold", "--timeout=5", "--root", "alpine", "--session", "mine")
    line = told["updatedInput"]["command"]
    assert " --hold --timeout 5 --root alpine " in line
    assert " --session mine " in line


def test_a_hook_loads_nothing_slow_but_json(home: Path) -> None:
    python, *rest = command_line()
    told = json.dumps(call("ls"))
    done = subprocess.run(
        [python, "-X", "importtime", *rest, "hook"], input=told, capture_output=True, text=True, check=False
    )
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, flags=re.MULTILINE))
    assert "fumehood.faces.cli.hook" in imported
    assert not {"sqlite3", "ctypes", "argparse", "subprocess", "pathlib", "fumehood.service.store"} & imported
