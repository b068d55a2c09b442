"""The pre-tool hook: what it answers, and that a rewritten command is the command."""

import asyncio
import io
import itertools
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
from fumehood.core.request import OWN_TOOLS, checked_name, shell_quote
from fumehood.faces.cli import hook, hook_clients
from patience import LONG_S
from processes import LONG, left_over

pytestmark = pytest.mark.once

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


def written_by(client: str, told: dict[str, Any]) -> dict[str, Any]:
    """A call before a tool, as the client writes it."""
    format_ = hook_clients.CLIENTS[client]
    fields = {"hook_event_name": "event_field", "tool_name": "tool_field", "tool_input": "input_field",
              "session_id": "session_field", "tool_use_id": "id_field"}  # fmt: skip
    told = {"hook_event_name": "", **told} | {"hook_event_name": format_.before}
    return {name: value for key, value in told.items() if (name := getattr(format_, fields.get(key, ""), key))}


def rewrite(command: str, client: str, told: dict[str, Any], options: hook.HookOptions) -> str:
    return hook.rewrite_command(command, hook_clients.read_call(written_by(client, told), client), options)


@pytest.fixture
def answer(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What the hook answers, asked in this process: a test of a hundred commands can't start Python for each."""
    monkeypatch.setattr(hook, "own_command", command_line)
    monkeypatch.chdir(project)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)

    def ask(told: object, *arguments: str) -> dict[str, Any]:
        given = json.loads(hook.answer_call(json.dumps(told).encode(), hook.parse_options(arguments)))
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


def test_every_client_gets_the_rewritten_command_in_its_own_place(answer: Any) -> None:
    places = {"claude": "updatedInput", "codex": "updatedInput", "gemini": "tool_input", "copilot": "modifiedArgs",
              "opencode": "tool_input", "cursor": "updated_input"}  # fmt: skip
    assert places.keys() == hook_clients.CLIENTS.keys()
    for client, place in places.items():
        shell = hook_clients.CLIENTS[client].preferred_shell
        told = of(client, shell, {"command": "ls", "workdir": "/w"}, **({"turn_id": "t"} if client == "codex" else {}))
        for arguments in ((), ("--client", client)):
            rewritten = answer(told, *arguments)[place]
            assert rewritten["workdir"] == "/w"
            assert f"--session {client}-s-1 " in rewritten["command"]
            assert rewritten["command"].endswith("-- 'ls'") or client == "claude"


def test_only_clients_that_ask_are_told_to(answer: Any) -> None:
    # In Codex a hook that asks counts as failed, and its command runs as it was.
    for client, format_ in hook_clients.CLIENTS.items():
        told = answer(of(client, format_.preferred_shell, {"command": "ls"}), "--client", client, "--ask")
        assert ("ask" in told.values()) == (client in ("claude", "copilot")), client


@pytest.mark.parametrize("client", hook_clients.CLIENTS)
def test_a_call_that_has_ended_is_let_alone(client: str) -> None:
    format_ = hook_clients.CLIENTS[client]
    told = of(client, format_.preferred_shell, {"command": "ls"})
    told |= dict.fromkeys(format_.result_fields, "x") or {"hook_event_name": format_.after[-1]}
    assert hook.answer_call(json.dumps(told).encode(), hook.parse_options(["--client", client])) in ("", "{}\n")


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
        '{"tool_name": "Bash", "hook_event_name": "Notification", "tool_input": {}}',
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


# Clients' own tools as they call them; none runs anything.
HARMLESS = [
    ("claude", "Read", {"file_path": "/p/run.sh"}),
    ("claude", "Grep", {"pattern": "command", "glob": "*.sh", "output_mode": "content", "-A": 3}),
    ("claude", "Glob", {"pattern": "**/*.py"}),
    ("claude", "Agent", {"description": "d", "prompt": "run the shell", "run_in_background": True}),
    ("claude", "TodoWrite", {"todos": [{"content": "run it", "status": "pending", "activeForm": "Running"}]}),
    ("claude", "BashOutput", {"bash_id": "b1", "filter": "x"}),
    ("claude", "KillShell", {"shell_id": "b1"}),
    ("claude", "TaskStop", {"task_id": "b1"}),
    ("claude", "Skill", {"skill": "review", "args": "x"}),
    ("claude", "WebFetch", {"url": "https://example.org", "prompt": "p"}),
    ("claude", "ToolSearch", {"query": "shell"}),
    ("claude", "StructuredOutput", {"command": "make", "code": "x"}),
    ("claude", "AskUserQuestion", {"questions": [{"question": "q", "options": [{"label": "run"}]}]}),
    ("claude", "mcp__github__get_workflow_run", {"run_id": "7"}),
    ("claude", "mcp__shop__price", {"country_code": "US", "script": " ", "commands": []}),
    ("claude", "mcp__fumehood__run_command", {"command": "ls"}),
    ("codex", "mcp__fumehood__start_command", {"command": "ls"}),
    ("codex", "write_stdin", {"session_id": 1, "chars": "y\n"}),
    ("codex", "update_plan", {"plan": [{"step": "run", "status": "pending"}]}),
    ("gemini", "mcp_fumehood_run_command", {"command": "ls"}),
    ("gemini", "fumehood__run_command", {"command": "ls"}),
    ("gemini", "read_background_output", {"pid": 7}),
    ("gemini", "google_web_search", {"query": "shell"}),
    ("copilot", "rg", {"pattern": "exec", "path": "/p"}),
    ("copilot", "read_bash", {"shellId": "0", "delay": 5}),
    ("copilot", "stop_bash", {"shellId": "0"}),
    ("copilot", "list_bash", {}),
    ("copilot", "session_store_sql", {"query": "select 1", "description": "d"}),
    ("copilot", "task", {"agent_type": "explore", "prompt": "run the shell", "description": "d"}),
    ("copilot", "fumehood-run_command", {"command": "ls"}),
    ("opencode", "task", {"description": "d", "prompt": "run it", "subagent_type": "general"}),
    ("opencode", "fumehood_run_command", {"command": "ls"}),
    ("cursor", "Grep", {"pattern": "command", "path": "/p"}),
]
# What would run something in a way that can't be put into the hood.
RUNNING = [
    ("claude", "PowerShell", {"command": "ls"}),
    ("claude", "PowerShell", {}),
    ("claude", "REPL", {"code": "print(1)"}),
    ("claude", "mcp__ide__executeCode", {"code": "1"}),
    ("claude", "mcp__other__run_command", {"command": "ls"}),
    ("claude", "mcp__fumehood__x__run", {"command": "ls"}),
    ("claude", "mcp__fumehood_run", {"command": "ls"}),
    ("claude", "mcp__x__do", {"steps": [{"shellCommand": "ls"}]}),
    ("claude", "mcp__x__do", {"cmd": {"parts": [["ls"]]}}),
    ("claude", "mcp__x__do", {"COMMAND-LINE": "ls"}),
    ("claude", "mcp__x__do", {"python_code": "1", "x": 1}),
    ("claude", "mcp__x__do", {"argv": ["ls"]}),
    ("claude", "Workflow", {"script": "agent()"}),
    ("claude", "apply_patch", {"command": "ls"}),
    ("claude", "fumehood__run_command", {"command": "ls"}),
    ("codex", "js_repl", "1 + 1"),
    ("codex", "something", "free text"),
    ("codex", "exec", {"source": "x"}),
    ("codex", "container.exec", {"cmd": ["ls"]}),
    ("codex", "local_shell", {"action": {"command": ["ls"]}}),
    ("codex", "unified_exec", {"input": ["ls"]}),
    ("codex", "exec_command", {"cmd": "ls", "shell": "/p/bash"}),
    ("codex", "exec_command", {"cmd": "ls", "command": "id"}),
    ("codex", "shell", {"command": ["ls"], "env": {"BASH_ENV": "/p/x"}}),
    ("codex", "shell", {"command": ["ls", 1]}),
    ("codex", "shell", {"command": [" "]}),
    ("codex", "exec_command", {"cmd": ["ls"]}),
    ("gemini", "mcp_other_shell", {"text": "ls"}),
    ("gemini", "run_in_terminal", {}),
    ("gemini", "mcp_fumehood_evil", {"command": "ls"}),
    ("gemini", "mcp_fumehood_x_run_command", {"command": "ls"}),
    ("copilot", "other-run_command", {"command": "ls"}),
    ("copilot", "powershell", {"command": "ls"}),
    ("copilot", "write_bash", {"shellId": "0", "input": "ls\n"}),
    ("opencode", "other_run_command", {"command": "ls"}),
    ("cursor", "MCP:run_command", {"command": "ls"}),
]


def of(client: str, tool: str, tool_input: object, **more: Any) -> dict[str, Any]:
    return written_by(client, {"session_id": "s-1", "tool_name": tool, "tool_input": tool_input, "cwd": "/", **more})


@pytest.mark.parametrize(("client", "tool", "tool_input"), HARMLESS)
def test_tools_that_run_nothing_are_let_alone(client: str, tool: str, tool_input: object) -> None:
    told = json.dumps(of(client, tool, tool_input)).encode()
    assert hook.answer_call(told, hook.parse_options(["--client", client])) in ("", "{}\n")


@pytest.mark.parametrize(("client", "tool", "tool_input"), RUNNING)
def test_a_tool_that_would_run_something_and_is_not_understood_is_denied_with_the_reason(
    answer: Any, client: str, tool: str, tool_input: object
) -> None:
    told = answer(of(client, tool, tool_input), "--client", client)
    assert not {"tool_input", "updatedInput", "modifiedArgs", "updated_input"} & set(told)
    match told:
        case (
            {"permissionDecision": "deny", "permissionDecisionReason": reason}
            | {"decision": "deny", "reason": reason}
            | {"permission": "deny", "agent_message": reason}
            | {"deny": reason}
        ):
            pass
        case _:
            pytest.fail(f"not denied: {told}")
    if tool not in ("local_shell", "unified_exec", "exec_command", "shell"):
        instead = {"claude": "Bash", "codex": "exec_command", "gemini": "run_shell_command", "cursor": "Shell"}
        assert f"use {instead.get(client, 'bash')} instead" in reason
        assert f"--allow-tool {tool} " in reason


def test_what_a_server_calls_itself_counts_in_gemini() -> None:
    def answered(server: str) -> str:
        context = {"server_name": server, "tool_name": "run_command"}
        told = of("gemini", "mcp_fumehood_run_command", {"command": "ls"}, mcp_context=context)
        return hook.answer_call(json.dumps(told).encode(), hook.parse_options([]))

    assert answered("fumehood") == ""
    assert "deny" in answered("other")


def test_a_person_can_let_a_tool_run_outside(answer: Any) -> None:
    def answered(tool: str) -> str:
        words = ["--allow-tool", "mcp__x__do", "--allow-tool=mcp__mine__*", "--allow-tool", "Bash"]
        options = hook.parse_options(words)
        return hook.answer_call(json.dumps(of("claude", tool, {"command": "ls"})).encode(), options)

    assert answered("mcp__x__do") == answered("mcp__mine__any") == ""
    assert "deny" in answered("mcp__x__do_more")
    assert " run --brief " in answered("Bash"), "what is understood runs in the hood"


def test_our_own_servers_tools_are_known() -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    from fumehood.faces.mcp.clients import Clients
    from fumehood.faces.mcp.server import build

    tools = asyncio.run(build(Clients(None, None)).list_tools())
    assert {tool.name for tool in tools} == OWN_TOOLS


def test_a_template_of_the_person_s_is_a_tool_of_our_own_server(home: Path) -> None:
    def answered(tool: str) -> str:
        return hook.answer_call(json.dumps(of("claude", tool, {"command": "x"})).encode(), hook.parse_options([]))

    assert "deny" in answered("mcp__fumehood__run_tests")
    configuration = home / ".config/fumehood/config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text('[[tool]]\nname = "run_tests"\ndescription = "Test."\ncommand = "make {command}"\n')
    assert answered("mcp__fumehood__run_tests") == ""
    assert "deny" in answered("mcp__other__run_tests")


@pytest.mark.namespaces
def test_a_command_given_as_a_list_of_words_is_run_in_the_hood(answer: Any, project: Path, cli: Cli) -> None:
    def run(words: list[str], tool: str = "local_shell") -> subprocess.CompletedProcess[str]:
        rewritten = answer(of("codex", tool, {"command": words, "workdir": "x"}), "--client", "codex")["updatedInput"]
        assert rewritten["workdir"] == "x"
        again = answer(of("codex", tool, rewritten), "--client", "codex")["updatedInput"]
        assert again == rewritten, "it is rewritten twice"
        return subprocess.run(rewritten["command"], cwd=project, capture_output=True, text=True, check=False)

    assert run(["printf", "%s|", "it's", "a  b", "$HOME", ""]).stdout == "it's|a  b|$HOME||"
    assert run(["sh", "-c", "echo $0 $1; echo x >f", "a", "b"], "shell").stdout == "a b\n"
    assert run(["bash", "-lc", "echo $((1+1)); exit 3"]).returncode == 3
    (project / "bash").write_text("#!/bin/sh\n: >/proc/self/fd/1; touch escaped\n")
    (project / "bash").chmod(0o755)
    run(["./bash", "-c", "true"])
    recorded = json.loads(cli("log", "--json").stdout)["runs"]
    assert recorded[0]["command"] == "./bash -c true", "the project's own bash was run on the host"
    undone = run(["bash", "-c", "fumehood undo"])
    assert undone.returncode == 0, undone.stdout
    assert not (project / "escaped").exists()
    assert run(["sh", "-c", "fumehood log --json"]).stdout.count("codex-s-1") >= 4


def test_names_of_sessions_never_meet() -> None:
    ids = ["s-1", "s1", "s/1", "s 1", "s:1", "é", "e", "x" * 100, "x" * 101, "x" * 102, "\ud800", "-", ".", "..", "S-1"]
    names = [hook._safe_name(client, each) for each in ids for client in ("claude", "codex", "gemini")]
    names += [hook._safe_name("claude", hook._safe_name("claude", each).removeprefix("claude-")) for each in ids[2:5]]
    assert len(set(names)) == len(names)
    assert all(checked_name(name) for name in names)
    assert hook._safe_name("claude", None) == hook._safe_name("claude", "") == ""
    told = json.dumps(call("ls", session_id=[1])).encode()
    assert "permissionDecision" in hook.answer_call(told, hook.parse_options([]))


@pytest.mark.long
@pytest.mark.namespaces
def test_a_rewritten_command_prints_and_ends_as_the_command_does(answer: Any, shell: Any) -> None:
    for command in ODD:
        plain = shell(f"{{ {command}\n}} 2>&1")
        done = shell(answer(call(command))["updatedInput"]["command"])
        assert (done.stdout.replace("bash: ", ""), done.returncode, done.stderr) == (
            plain.stdout.replace("bash: ", ""), plain.returncode, "",
        ), command  # fmt: skip


@pytest.mark.namespaces
def test_everything_about_another_place_is_kept_too(answer: Any, shell: Any, project: Path) -> None:
    (project / "a b's").mkdir()
    line = answer(call("cd \"a b's\" && pwd"))["updatedInput"]["command"]
    # As Claude Code does it: what follows runs where the command left the shell.
    typed = f"eval {shell_quote(line, always=True)} </dev/null && pwd -P"
    done = shell(typed, env=os.environ | {"PATH": "/usr/bin:/bin"})
    assert done.stdout == f"{project}/a b's\n" * 2
    elsewhere = answer(call("pwd"))["updatedInput"]["command"]
    assert shell(f"cd '{project}/a b'\\''s'; {elsewhere}").stdout == f"{project}/a b's\n"


@pytest.mark.namespaces
def test_a_directory_that_the_clients_shell_cant_follow_into_is_told_each_time(
    answer: Any, shell: Any, project: Path
) -> None:
    line = answer(call("mkdir -p /tmp/in-the-hood && cd /tmp/in-the-hood"))["updatedInput"]["command"]
    for _ in range(2):
        done = shell(f"{line}; pwd -P")
        assert done.stdout == f"{project}\n"
        assert "] the next command does not start in: /tmp/in-the-hood" in done.stderr


@pytest.mark.namespaces
def test_only_what_an_agent_must_know_is_said(answer: Any, shell: Any, cli: Cli, project: Path) -> None:
    line = answer(call("echo x >a; mkdir -p .git/hooks; echo y >.git/hooks/pre-push; echo z >/etc/z; echo out"))
    done = shell(line["updatedInput"]["command"])
    assert done.stdout.splitlines()[1:] == ["out"]
    assert "Read-only file system" in done.stdout.splitlines()[0]
    assert done.returncode == 0
    said = [each for each in done.stderr.splitlines() if re.match(r"\[fumehood [a-z]{12}\] ", each)]
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
    assert "--background-after" in line, "what it writes is settled by itself"
    assert "--background-after" not in answer(call("true"))["updatedInput"]["command"]
    need(shutil.which("bash") is not None, "there is no bash")
    with subprocess.Popen(["bash", "-c", line], cwd=project, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=LONG_S) != 0
    assert not left_over(f"sleep {LONG}.1"), "the command goes on"
    assert not (project / "late").exists()


@pytest.mark.parametrize("client", hook_clients.CLIENTS)
@pytest.mark.parametrize("command", ODD)
def test_a_command_is_never_rewritten_twice(client: str, command: str) -> None:
    options, told = hook.HookOptions(), call(command)
    once = rewrite(command, client, told, options)
    assert rewrite(once, client, told, options) == once
    later = call(once, tool_use_id="toolu_2")
    assert rewrite(once, client, later, options) == rewrite(command, client, later, options)


@settings(max_examples=40)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_read_back_by_the_shell_and_stays_one_layer(text: str) -> None:
    options, told = hook.HookOptions(), call(text)
    once = rewrite(text, "claude", told, options)
    assert rewrite(once, "claude", told, options) == once
    read = subprocess.run(["sh", "-c", f"printf %s {shell_quote(text, always=True)}"], capture_output=True, check=True)
    assert read.stdout == text.encode()


@pytest.mark.parametrize(
    "after", ["; rm -rf ~", " && id", "\nid", " | sh", "$(id)", "' 'x", "; fumehood_status=$?; id"]
)
def test_a_line_that_only_begins_like_ours_runs_in_the_hood_whole(after: str) -> None:
    options, told = hook.HookOptions(), call("x")
    ours = rewrite("x", "codex", told, options)
    line = rewrite(ours + after, "codex", told, options)
    assert line.endswith(f"-- {shell_quote(ours + after, always=True)}")


@pytest.mark.parametrize("command", [
    "fumehood log", "fumehood undo 01X", "fumehood apply last", "fumehood undo last; id", "fumehood log --all",
    "fumehood undo $(id)", "fumehood undo\nid",
    "fumehood run -- id", "fumehood clean", "fumehood", "fumehood undo 'a'", "fumehood undo ../x", "fumehood undo a&",
    "fumehood undo ~root", "fumehood show a~1", "fumehood undo last~1~2",
])  # fmt: skip
def test_what_an_agent_asks_fumehood_runs_in_the_hood_as_any_command(command: str) -> None:
    line = rewrite(command, "codex", call("x"), hook.HookOptions())
    assert line.endswith(f"-- {shell_quote(command, always=True)}")


@pytest.mark.namespaces
def test_a_command_runs_where_the_client_says_or_not_at_all(
    answer: Any, home: Path, project: Path, test_directory: Path
) -> None:
    need(shutil.which("bash") is not None, "there is no bash")
    beside = test_directory / "beside"
    for place in (project, beside, home / "hidden"):
        (place / "build").mkdir(parents=True)

    def agent(where: Path, command: str) -> subprocess.CompletedProcess[str]:
        line = answer(call(command, session_id="s", cwd=str(project)))["updatedInput"]["command"]
        return subprocess.run(
            ["bash", "-c", line], cwd=where, capture_output=True, encoding="utf-8", check=False, timeout=LONG_S
        )

    refused = agent(beside, "pwd; rm -rf build")  # the session's first: its project is where the client works
    assert refused.stdout.startswith(f"{beside}\n")
    assert "Read-only file system" in refused.stdout + refused.stderr
    unseen = agent(home / "hidden", "rm -rf build")
    assert unseen.returncode == 125
    assert f"Working directory is not in sight: {home}/hidden" in unseen.stdout + unseen.stderr
    assert all((place / "build").is_dir() for place in (project, beside, home / "hidden"))
    assert agent(project, "pwd; rmdir build").stdout.startswith(f"{project}\n")
    assert not (project / "build").exists()


@pytest.mark.long
@pytest.mark.namespaces
def test_two_agents_in_two_projects_know_nothing_of_each_other(
    answer: Any, cli: Cli, project: Path, test_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(shutil.which("bash") is not None, "there is no bash")
    other = test_directory / "other"
    other.mkdir()

    def agent(session: str, where: Path, command: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(where)
        line = answer(call(command, session_id=session, cwd=str(where)))["updatedInput"]["command"]
        return subprocess.run(
            ["bash", "-c", line], cwd=where, capture_output=True, encoding="utf-8", check=False, timeout=LONG_S
        )

    def last_of(where: Path) -> str:
        return json.loads(cli("log", "--project", str(where), "--json", "-n1").stdout)["runs"][0]["run"]

    own: dict[str, tuple[Path, str]] = {}
    for session, where in (("a", project), ("b", project), ("c", other)):
        agent(session, where, f"echo {session} >{session}; echo printed by {session}")
        own[session] = where, last_of(where)
    for where in (project, other):
        cli("run", "--project", str(where), "--", "echo mine >mine; echo secret")
    persons = [last_of(project), last_of(other)]

    verbs = ("output", "show", "diff", "undo")
    never = {verb: agent("a", project, f"fumehood {verb} 01NEVER") for verb in verbs}
    assert {each.returncode for each in never.values()} == {125}
    spelling = itertools.cycle([str, str.lower, lambda run: run[:22]])
    for number, (session, (where, mine)) in enumerate(own.items()):
        strange = [run for name, (_, run) in own.items() if name != session] + persons
        # Each verb meets another run of others', for each session another.
        for verb, run in zip(verbs, strange[number:] + strange[:number], strict=True):
            name = next(spelling)(run)
            asked = agent(session, where, f"fumehood {verb} {name}")
            assert (asked.returncode, asked.stdout) == (125, never[verb].stdout.replace("01NEVER", name))
        assert json.loads(agent(session, where, "fumehood show --json").stdout)["run"] == mine
        # Nor by going elsewhere: a session stays with its project.
        logged = json.loads(agent(session, test_directory, "fumehood log --json").stdout)["runs"]
        assert [run["run"] for run in logged] == [mine]
        assert agent(session, other, f"fumehood output {mine[:24]}").stdout == f"printed by {session}\n"
    assert sorted(os.listdir(project)) == ["a", "b", "mine"]

    assert agent("a", project, "fumehood undo").returncode == 0
    assert not (project / "a").exists()
    assert agent("a", project, "fumehood redo").returncode == 0, "an agent's undo is its own"
    assert (project / "a").exists()
    assert cli("undo", own["b"][1]).returncode == 0
    assert "nothing is left to redo" in agent("b", project, "fumehood redo").stdout, "a person's undo is the person's"
    assert "is not taken back" in agent("b", project, f"fumehood redo {own['b'][1]}").stdout
    assert "undone already" in agent("b", project, "fumehood undo last~0").stdout
    assert sorted(os.listdir(project)) == ["a", "mine"]
    assert agent("new", project, "fumehood log --json").stdout == '{"runs": []}\n'
    assert "nothing is left to undo" in agent("new", project, "fumehood undo").stdout
    assert "there is no run last" in agent("new", project, "fumehood show").stdout


@pytest.mark.parametrize(
    ("client", "options"),
    [
        ("claude", ["--add-dir", "../beside", "../a b", "--model", "opus"]),
        ("codex", ["exec", "--add-dir=../beside", "--add-dir", "../a b", "go"]),
        ("gemini", ["--include-directories", "../beside,../a b", "-p", "go"]),
        ("copilot", ["-p", "go", "--add-dir", "../beside", "--add-dir", "../a b"]),
    ],
)
def test_directories_that_the_person_gave_the_client_are_told_to_the_command(
    project: Path, home: Path, test_directory: Path, client: str, options: list[str]
) -> None:
    for name in ("beside", "a b"):
        (test_directory / name).mkdir()
    line = " ".join(map(shell_quote, [*command_line(), "hook", "--client", client]))
    code = f"import subprocess; subprocess.run(['sh', '-c', {f'{line} || exit 2'!r}], check=True)"
    told = of(client, hook_clients.CLIENTS[client].preferred_shell, {"command": "ls"})
    done = subprocess.run(
        ["python3", "-c", code, *options], cwd=project, input=json.dumps(told), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert f" --beside {test_directory}/beside --beside {shell_quote(f'{test_directory}/a b')} " in done.stdout


def test_cursors_directories_are_in_its_call(answer: Any, project: Path, test_directory: Path) -> None:
    (test_directory / "beside").mkdir()
    roots = [str(project), str(test_directory / "beside"), str(test_directory / "gone"), 7]
    told = answer(of("cursor", "Shell", {"command": "ls"}, workspace_roots=roots), "--client", "cursor")
    assert told["updated_input"]["command"].count("--beside") == 1
    assert f" --beside {test_directory}/beside " in told["updated_input"]["command"]


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


@pytest.mark.parametrize("told", [call("id"), call({"not": "a line"}), {"hook_event_name": 3}])
@pytest.mark.parametrize("end", [">&-", "2>&- >&-", "> /dev/null", "> /dev/full", "", "2>&1"])
def test_an_answer_that_reaches_nobody_forbids_the_command(home: Path, project: Path, told: Any, end: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # whatever is not sent elsewhere breaks the pipe
    line = ["sh", "-c", f'"$@" {end}', "sh", *command_line(), "hook", "--client", "claude"]
    done = subprocess.run(
        line, input=json.dumps(told), text=True, stdout=writing, stderr=subprocess.PIPE, cwd=project, check=False
    )
    os.close(writing)
    assert done.returncode == 2
    assert "2>" in end or done.stderr.startswith("ERROR: ")


def test_an_answer_that_says_nothing_may_get_lost(home: Path, project: Path) -> None:
    told = {**call("id"), "hook_event_name": "PostToolUse"}
    line = ["sh", "-c", '"$@" >&-', "sh", *command_line(), "hook", "--client", "claude"]
    done = subprocess.run(line, input=json.dumps(told), text=True, cwd=project, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("text", ["{", '{"a":', '{"a" 1}', "[1", "none", ""])
def test_input_that_is_cut_is_said_to_be_no_json(home: Path, text: str) -> None:
    """In a process of its own: where nobody has loaded `json`, its reader failed in a way of its own."""
    done = subprocess.run([*command_line(), "hook"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ERROR: the hook's input is not JSON: ")
