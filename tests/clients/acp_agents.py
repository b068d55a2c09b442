"""Real agents that speak ACP, behind `fumehood acp` and a small editor, with a model that follows a script."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acp_editor import Editor, Message
from clients.conftest import FUMEHOOD, log, provided
from clients.endpoint import Anthropic, Chat, Endpoint, Gemini, OpenAI, Step

pytestmark = pytest.mark.namespaces

LINE = "echo written >made; cat made; rm notes.txt; echo x >~/.bashrc; echo x >../beside"


class Agent:
    """How one agent is started, and how its model has it run a command."""

    def __init__(
        self, model: type[Endpoint], shell: Callable[[str], Step], words: Callable[[str], list[str]],
        variables: Callable[[str], dict[str, str]], login: str = "",
    ) -> None:  # fmt: skip
        self.model = model
        self.shell = shell
        self.words = words
        self.variables = variables
        self.login = login


def _described(tool: str) -> Callable[[str], Step]:
    return lambda line: {"tool": tool, "input": {"command": line, "description": "test"}}


def _codex(url: str) -> list[str]:
    provider = f'{{name="scripted", base_url="{url}/v1", wire_api="responses"}}'
    settings = ['model="scripted"', 'model_provider="scripted"', 'approval_policy="never"']
    return [word for text in [*settings, f"model_providers.scripted={provider}"] for word in ("-c", text)]


def _opencode(url: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible", "name": "scripted", "models": {"m": {"name": "m"}},
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
    }  # fmt: skip
    settings = {"provider": {"scripted": provider}, "model": "scripted/m", "permission": {"*": "allow"}}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}


AGENTS = {
    "claude-agent-acp": Agent(
        Anthropic, _described("Bash"), lambda _url: [],
        lambda url: {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"},
    ),
    "codex-acp": Agent(
        OpenAI, lambda line: {"tool": "exec_command", "input": {"cmd": line}}, _codex,
        lambda _url: {"OPENAI_API_KEY": "none"},
    ),
    "gemini": Agent(
        Gemini, _described("run_shell_command"), lambda _url: ["--acp", "--model", "gemini-2.5-pro"],
        lambda url: {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "none", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        "gemini-api-key",
    ),
    "copilot": Agent(
        Chat, _described("bash"), lambda _url: ["--acp", "--allow-all-tools"],
        lambda url: {
            "COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_MODEL": "m",
            "COPILOT_PROVIDER_API_KEY": "none",
        },
    ),
    "opencode": Agent(Chat, _described("bash"), lambda _url: ["acp"], _opencode),
}  # fmt: skip


@pytest.fixture
def programs() -> Path:
    return Path(provided("FUMEHOOD_TESTS_PROGRAMS", "agents for editors"))


def yes(request: Message) -> Message:
    """Answer as a person who allows everything once."""
    assert request["method"] == "session/request_permission", "nothing that acts outside is asked of the editor"
    option = next(each for each in request["params"]["options"] if each["kind"] == "allow_once")
    return {"result": {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}}


@pytest.mark.parametrize("name", AGENTS)
def test_a_prompt_is_worked_on_in_the_hood_and_can_be_taken_back(
    programs: Path, environment: dict[str, str], fumehood: Any, home: Path, project: Path, name: str
) -> None:
    (project / "notes.txt").write_text("keep me")
    agent = AGENTS[name]
    if not (programs / name).exists():
        pytest.skip(f"{name} is not to be had for this machine")
    with agent.model([agent.shell(LINE), {"text": "done"}]) as model:
        host = model.url.removeprefix("http://")
        command = [FUMEHOOD, "acp", "--allow-host", host, "--", programs / name, *agent.words(model.url)]
        with Editor(command, project, environment | agent.variables(model.url)) as editor:
            editor.answer = yes
            offered = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
            editor.call("initialize", {"protocolVersion": 1, "clientCapabilities": offered})
            if agent.login:
                assert "result" in editor.call("authenticate", {"methodId": agent.login})
            begun = editor.call("session/new", {"cwd": str(project), "mcpServers": []})
            assert "result" in begun, (begun, editor.process.poll())
            prompt = [{"type": "text", "text": "go"}]
            ended = editor.call("session/prompt", {"sessionId": begun["result"]["sessionId"], "prompt": prompt})
            assert ended.get("result", {}).get("stopReason") == "end_turn", ended
            editor.close()
            assert any("written" in told for told in model.results()), model.results()
    assert os.listdir(project) == ["made"], editor.errors
    assert not (home / ".bashrc").exists()
    assert not (project.parent / "beside").exists()
    (session,) = {run["session"] for run in log(fumehood)}
    fumehood("undo", "--session", session)
    assert os.listdir(project) == ["notes.txt"]
