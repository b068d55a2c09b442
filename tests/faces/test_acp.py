"""`fumehood acp` between a small editor and a small agent: what passes, what is refused, what is asked, how it ends."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from acp_editor import Editor
from conftest import command_line
from patience import LONG_S
from servers import Web

pytestmark = [pytest.mark.namespaces, pytest.mark.once]

AGENT = Path(__file__).resolve().parent.parent / "acp_agent.py"


@pytest.fixture
def configured(home):
    def write(text):
        path = home / ".config/fumehood/config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    return write


@pytest.fixture
def editor(home, project):
    """Start an agent for an editor; its script lies in the project, where it is seen."""
    (project / "agent.py").write_bytes(AGENT.read_bytes())
    opened = []

    def start(*options, command=("python3", "agent.py"), cwd=project, env=None, by=()):
        line = [*by, *command_line(), "acp", *options, "--", *command]
        opened.append(Editor(line, cwd, os.environ | (env or {})))
        return opened[-1]

    yield start
    for each in opened:
        each.__exit__()


# --- in the hood ---


def until_there(path):
    """Wait for a file."""
    deadline = time.monotonic() + LONG_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_what_it_does_is_applied_as_it_goes_and_can_be_taken_back(editor, cli, project):
    one = editor()
    one.start(project)
    assert one.prompt(["sh", "echo made >made; cat made"])["result"] == {"stopReason": "end_turn"}
    assert one.updates == ["made\n"]
    until_there(project / "made")
    one.prompt(["sh", "rm -f agent.py; echo x >last"])
    assert one.close() == 0
    assert sorted(os.listdir(project)) == ["last", "made"]
    run = json.loads(cli("log", "--json").stdout)["runs"][-1]
    assert run["command"] == "python3 agent.py"
    assert f"fumehood undo --session {run['session']}" in one.errors.decode()
    assert cli("undo", "--session", run["session"]).returncode == 0
    assert os.listdir(project) == ["agent.py"]


def test_messages_pass_byte_for_byte(editor, project):
    one = editor()
    one.start(project)
    odd = b'{"params": {"_meta" :{"x": 1.50, "\\u00e9": "\xc3\xa9"}},  "method":"_ours/x","jsonrpc":"2.0","id":"q"}\n'
    one.send(odd)
    assert one.next()["result"]["echo"].encode() == odd
    said = '{ "method":"_theirs/news", "params":{"a":1e2, "a\\/b": "\\u0041"},"jsonrpc":"2.0"}\n'
    one.prompt(["raw", said])
    assert said.encode() in one.lines


def test_it_is_not_offered_the_editors_files_and_terminals(editor, project):
    one = editor()
    said = one.start(project, _meta={"terminal-auth": True, "terminal_output": True})
    seen = said["agentCapabilities"]["_meta"]["seen"]["clientCapabilities"]
    assert seen == {
        "fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False, "_meta": {"terminal_output": True},
    }  # fmt: skip
    assert [each["id"] for each in said["authMethods"]] == ["key"], "a login that is a command would run outside"


@pytest.mark.parametrize("method", ["fs/write_text_file", "fs/read_text_file", "terminal/create", "terminal/output"])
def test_what_would_have_the_editor_act_does_not_reach_it(editor, home, project, method):
    one = editor()
    one.start(project)
    one.prompt(["request", method, {"path": str(home / "x"), "content": "x", "command": "touch x"}])
    assert one.asked == []
    assert "is not offered" in one.updates[0]


ACTING = '{"jsonrpc":"2.0","id":7,"method":"terminal/create","params":{"sessionId":"s1","command":"evil"}}'


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        f"[{ACTING}]\n",
        f'{{"jsonrpc":"2.0","method":"_x","params":\r{ACTING}\r}}\n',
        '{"method":"terminal/create","id":7,"params":{"command":"evil"},"method":"_x"}\n',
        '{"jsonrpc":"2.0","method":"_x","params":["' + "\u2028".encode().decode("latin-1") + '"]}\n',
        '\ufeff'.encode().decode("latin-1") + ACTING + "\n",
        ACTING.replace("7", "NaN") + "\n",
        ACTING.replace("evil", "\xff") + "\n",
        "not a message\n",
        '{"method":["terminal/create"],"id":7}\n',
        ACTING.replace("terminal", "\\u0074erminal") + "\n",
    ],
)  # fmt: skip
def test_no_way_of_writing_it_has_the_editor_act(editor, project, text):
    one = editor()
    one.start(project)
    one.prompt(["raw", text], ["say", "done"])
    assert one.updates[-1] == "done"
    for line in b"".join(one.lines).decode().splitlines():  # at more places than at line feeds
        message = json.loads(line)
        assert isinstance(message, dict)
        assert message.get("method") != "terminal/create"
    assert b"evil" not in b"".join(line for line in one.lines if b'"_x"' not in line)


@pytest.mark.parametrize(
    "text",
    [
        ACTING.replace("method", "METHOD"),
        ACTING.replace('"method"', '"_":"_x","Method"'),
        '{"jsonrpc":"2.0","id":99,"result":{"AuthMethods":[{"type":"terminal","id":"evil"}]}}',
        '{"jsonrpc":"2.0","id":99,"Result":{"authMethods":[{"type":"terminal","id":"evil"}]}}',
        '{"jsonrpc":"2.0","id":99,"result":{"authMethod\\u017f":[{"type":"terminal","id":"evil"}]}}',
    ],
)
def test_a_key_in_another_case_does_not_reach_readers_that_take_it_for_the_same(editor, project, text):
    """Go's reader of JSON does: to it, the editor was asked to run a command."""
    one = editor()
    one.start(project)
    one.prompt(["raw", f"{text}\n"], ["say", "done"])
    assert one.updates[-1] == "done"
    assert b"evil" not in b"".join(one.lines)


def test_a_message_that_is_nested_too_deep_is_dropped_and_the_next_one_passes(editor, project):
    """It ended the conversation with a traceback, and the editor waited for ever."""
    one = editor()
    one.start(project)
    for depth in (600, 5000):
        deep = '{"jsonrpc":"2.0","method":"_x","params":' + '{"a":' * depth + "1" + "}" * depth + "}\n"
        one.prompt(["raw", deep], ["say", "done"])
        assert one.updates[-1] == "done"


def test_a_session_elsewhere_is_refused(editor, project, test_directory):
    one = editor()
    one.start(project)
    refused = one.call("session/new", {"cwd": str(test_directory), "mcpServers": []})
    assert "--project" in refused["error"]["message"]
    assert "result" in one.call("session/new", {"cwd": str(project / "."), "mcpServers": []})


def asked_for_host(one, server, answer):
    """Have the agent reach for a host that it was not granted, while the editor gives an answer."""
    one.answer = answer
    line = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{server.port} && printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3 && cat <&3'"
    one.prompt(["sh", line])
    (asked,) = one.asked
    return asked, one.updates[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("outcome", "is_reached"),
    [
        ({"result": {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}, True),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "deny_once"}}}, False),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "something else"}}}, False),
        ({"result": {"outcome": {"outcome": "cancelled"}}}, False),
        ({"error": {"code": -32601, "message": "this editor can't ask"}}, False),
        ({"result": None}, False),
    ],
)
def test_a_host_that_was_not_granted_is_asked_for_by_the_editor(editor, project, configured, outcome, is_reached):
    configured('network = "ask"')
    server = Web(body=b"served\n")
    try:
        one = editor()
        one.start(project)
        asked, told = asked_for_host(one, server, lambda _request: outcome)
    finally:
        server.close()
    assert asked["method"] == "session/request_permission"
    assert asked["params"]["sessionId"] == one.session
    assert f"localhost:{server.port}" in asked["params"]["toolCall"]["content"][0]["content"]["text"]
    assert [each["kind"] for each in asked["params"]["options"]] == ["allow_once", "reject_once"]
    assert ("served" in told) == is_reached
    assert bool(server.asked) == is_reached


def test_a_question_of_the_agents_own_is_passed_on_and_answers_none_of_ours(editor, project):
    one = editor()
    one.start(project)
    one.answer = lambda _request: {"result": {"outcome": {"outcome": "selected", "optionId": "yes"}}}
    one.prompt(["ask", "Shall I?"])
    assert [each["params"]["toolCall"]["title"] for each in one.asked] == ["Shall I?"]
    assert '"optionId": "yes"' in one.updates[0]


def test_a_cancellation_reaches_the_agent(editor, project):
    one = editor()
    one.start(project)

    def cancel(message):
        if message.get("method") == "session/request_permission":
            one.send({"method": "session/cancel", "params": {"sessionId": one.session}})

    one.answer = lambda _request: {"error": {"code": 1, "message": "later"}}
    one.prompt(["ask", "Shall I?"], meanwhile=cancel)
    assert one.updates == ['{"cancelled": true}']


@pytest.mark.long
def test_very_long_lines_pass_both_ways(editor, project):
    one = editor()
    one.start(project)
    size = 5 << 20
    one.prompt(["long", size])
    assert len(one.updates[0]) == size
    answer = one.call("_ours/long", {"text": "y" * size})
    assert len(answer["result"]["echo"]) > size


def test_a_line_that_is_too_long_to_be_looked_at_ends_the_agent(editor, project):
    one = editor()
    one.start(project)
    assert "longer than 64 MiB" in one.prompt(["long", 65 << 20])["error"]["message"]


def test_an_agent_that_dies_fails_what_the_editor_waits_for_and_gives_its_status(editor, project):
    one = editor()
    one.start(project)
    ended = one.prompt(["sh", "echo x >made"], ["exit", 3])
    assert "exit status 3" in ended["error"]["message"]
    assert one.process.wait(timeout=LONG_S) == 3
    assert (project / "made").exists()


def test_an_agent_that_is_not_there_says_so(editor):
    one = editor(command=("no-such-agent",))
    assert one.process.wait(timeout=LONG_S) == 127
    one.close()
    assert b"no-such-agent" in one.errors


def test_what_the_agent_did_is_judged_even_where_an_editor_kills_us(editor, project):
    one = editor()
    one.start(project)
    one.prompt(["sh", "echo x >made"])
    one.process.kill()
    one.close()  # waits for the end of standard error, which the one that runs the agent has too
    assert (project / "made").exists()


def test_a_signal_ends_the_agent_as_the_editors_going_does(editor, project):
    one = editor()
    one.start(project)
    one.prompt(["sh", "echo x >made"])
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(timeout=LONG_S) == 0
    assert (project / "made").exists()


NEVER_ENDING = "echo x >made; echo '{\"method\": \"_ready\"}'; sleep 1000"


@pytest.mark.long
@pytest.mark.parametrize("by", [(), ("sh", "-c", "trap '' INT; \"$@\"", "sh")], ids=["a person", "a script"])
def test_an_agent_that_does_not_end_with_its_input_is_ended_and_has_done_its_work(editor, cli, project, by):
    one = editor(command=("sh", "-c", NEVER_ENDING), by=by)
    assert one.next() == {"method": "_ready"}
    one.close()
    assert (project / "made").exists()
    assert json.loads(cli("log", "--json").stdout)["runs"][-1]["reason"] == ""


@pytest.mark.long
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_an_agent_wrote_is_held_where_it_was_in_the_middle_of_its_work(editor, cli, project, is_killed):
    one = editor(command=("sh", "-c", f"read line; {NEVER_ENDING}"))
    one.send({"id": 1, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}})
    assert one.next() == {"method": "_ready"}
    if is_killed:
        one.process.kill()
    one.close()
    assert "ended by a signal" in json.loads(cli("log", "--json").stdout)["runs"][-1]["reason"]


# --- with hooks ---


class Terminals:
    """An editor's terminals, by real processes."""

    def __init__(self):
        self.commands = []
        self._processes = {}

    def __call__(self, request):
        params = request["params"]
        if request["method"] == "terminal/create":
            self.commands.append([params["command"], *params["args"]])
            env = os.environ | {each["name"]: each["value"] for each in params.get("env", [])}
            process = subprocess.Popen(
                self.commands[-1], cwd=params.get("cwd"), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._processes["t1"] = process
            return {"result": {"terminalId": "t1"}}
        process = self._processes[params["terminalId"]]
        if request["method"] == "terminal/wait_for_exit":
            self.output = process.communicate(timeout=LONG_S)[0].decode()
            return {"result": {"exitCode": process.returncode}}
        if request["method"] == "terminal/output":
            return {"result": {"output": self.output, "truncated": False}}
        if request["method"] == "terminal/kill":
            process.terminate()
        return {"result": {}}


OUR_HOOK = {"hooks": {"PreToolUse": [{"hooks": [{"command": "fumehood hook --client claude || exit 2"}]}]}}
CODEX_HOOK = """
[[hooks.PreToolUse]]
matcher = "mine"
hooks = [{ command = "mine" }]

[[hooks.PreToolUse]]
hooks = [{ command = "fumehood hook --client codex || exit 2" }]
"""
TRUST = '[hooks.state."HOME/.codex/config.toml:pre_tool_use:1:0"]\ntrusted_hash = "sha256:1"\n'
OTHERS_TRUST = TRUST.replace("1:0", "0:0")


@pytest.mark.parametrize(
    ("words", "settings", "why"),
    [
        (["gemini", "--acp"], "", "Gemini CLI calls no hook under an editor"),
        (["env", "A=b", "@google/gemini-cli", "--acp"], "", "Gemini CLI calls no hook under an editor"),
        (["claude-agent-acp"], "", "fumehood setup claude"),
        (["claude-agent-acp"], json.dumps(OUR_HOOK), ""),
        (["codex-acp"], "", "fumehood setup codex"),
        (["codex-acp"], CODEX_HOOK, "type /hooks"),
        (["codex-acp"], CODEX_HOOK + OTHERS_TRUST, "type /hooks"),
        (["codex-acp"], f"{CODEX_HOOK}{TRUST}enabled = false\n", "type /hooks"),
        (["codex-acp", "-c", "model=gemini"], CODEX_HOOK + TRUST, ""),
        (["my-own-agent"], "", ""),
    ],
)
def test_an_agent_that_would_not_call_the_hook_is_refused_before_it_starts(
    home: Path, project: Path, words: list[str], settings: str, why: str
) -> None:
    name = ".codex/config.toml" if "codex" in words[0] else ".claude/settings.json"
    (home / name).parent.mkdir()
    (home / name).write_text(settings.replace("HOME", str(home)))
    program = home / "bin" / next(word for word in words if word != "env" and "=" not in word)
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch '{home}/started'\n")
    program.chmod(0o755)
    command = [str(program) if str(program).endswith(word) else word for word in words]
    line = [*command_line(), "acp", "--hooks", "--", *command]
    done = subprocess.run(line, cwd=project, input="", capture_output=True, text=True, check=False, timeout=LONG_S)
    assert (home / "started").exists() == (not why), done.stderr
    assert why in done.stderr
    assert bool(done.returncode) == bool(why)


@pytest.mark.long
def test_a_terminal_of_the_editors_runs_in_the_hood(editor, cli, project, known_host):
    one = editor("--hooks")
    one.answer = Terminals()
    one.start(project)
    terminal = {"terminalId": "t1"}
    one.prompt(
        ["request", "terminal/create", {"command": "echo $GREETING >made; touch /usr/x; exit 3", "cwd": str(project),
                                        "env": [{"name": "GREETING", "value": "hello"}]}],
        ["request", "terminal/wait_for_exit", terminal], ["request", "terminal/output", terminal],
        ["request", "terminal/release", terminal],
    )  # fmt: skip
    assert '"exitCode": 3' in one.updates[1]
    assert "Read-only file system" in one.updates[2]
    assert (project / "made").read_text() == "hello\n"
    (run,) = json.loads(cli("log", "--json").stdout)["runs"]
    assert (run["session"], run["command"]) == ("acp-s1", "echo $GREETING >made; touch /usr/x; exit 3")
    assert one.close() == 0


@pytest.mark.long
def test_a_terminal_that_is_killed_is_a_run_whose_changes_are_held(editor, cli, project, known_host):
    one = editor("--hooks")
    one.answer = Terminals()
    one.start(project)
    one.prompt(["request", "terminal/create", {"command": "touch", "args": ["a b"]}],
               ["request", "terminal/wait_for_exit", {"terminalId": "t1"}])  # fmt: skip
    assert (project / "a b").exists()
    one.prompt(["request", "terminal/create", {"command": "echo x >made; echo x >/tmp/begun; sleep 1000"}])
    shared = Path(os.environ["XDG_STATE_HOME"], "fumehood/sessions/acp-s1/tmp/begun")
    one.prompt(["sleep until", str(shared)], ["request", "terminal/kill", {"terminalId": "t1"}],
               ["request", "terminal/wait_for_exit", {"terminalId": "t1"}])  # fmt: skip
    assert not (project / "made").exists()
    assert json.loads(cli("log", "--json").stdout)["runs"][0]["state"] == "held"


def test_all_else_passes_to_an_agent_outside(editor, home, project):
    one = editor("--hooks")
    said = one.start(project)
    assert said["agentCapabilities"]["_meta"]["seen"]["clientCapabilities"]["terminal"] is True
    assert [each["id"] for each in said["authMethods"]] == ["key", "run"]
    one.answer = lambda _request: {"result": {"content": "of the editor"}}
    one.prompt(["request", "fs/read_text_file", {"path": "/x"}], ["raw", "not a message\n"], ["say", "done"])
    assert "of the editor" in one.updates[0]
    assert b"not a message\n" in one.lines
