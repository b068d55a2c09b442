"""The real OpenCode, with a model that follows a script: its commands go through the hood."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import FUMEHOOD, ended, log, only_read_there, provided, said_by_us, started
from clients.endpoint import Chat, Step

pytestmark = pytest.mark.namespaces

Agent = Callable[..., list[str]]


@pytest.fixture
def opencode() -> str:
    return provided("FUMEHOOD_TESTS_OPENCODE", "OpenCode")


@pytest.fixture
def agent(opencode: str, environment: dict[str, str], project: Path) -> Agent:
    """OpenCode from its start to its end; returns what it told the model of each tool call."""

    def run(script: Sequence[Step], subagent: Sequence[Step] = (), **settings: Any) -> list[str]:
        with Chat(script, subagent) as model:
            ended(start(opencode, model, environment, project, **settings))
            return model.results()

    return run


def start(opencode: str, model: Chat, environment: dict[str, str], project: Path, **settings: Any) -> Any:
    provider = {
        "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{model.url}/v1", "apiKey": "none"},
        "models": {"scripted": {"name": "scripted"}},
    }  # fmt: skip
    settings |= {"model": "here/scripted", "provider": {"here": provider}}
    told = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    told["OPENCODE_DISABLE_AUTOUPDATE"] = "1"
    return started([opencode, "run", "go"], project, environment | told)


def shell(command: str, **more: Any) -> Step:
    return {"tool": "bash", "input": {"command": command, "description": "test", **more}}


def test_a_command_is_captured_and_undone(agent: Agent, fumehood: Any, home: Path, project: Path) -> None:
    (project / "notes.txt").write_text("keep me")
    (project / "sub").mkdir()
    fumehood("setup", "opencode", "--yes")
    script = [
        shell("rm notes.txt; mkdir src; echo 'é \"q\"' >src/f; [[ a == a ]] && cat src/f"),
        shell("for i in 1 2 3; do echo out$i; echo err$i >&2; done; exit 9"),
        shell("echo x >/usr/x; echo x >~/.bashrc; test -e /usr/x"),
        shell("pwd", workdir=str(project / "sub")),
        {"tool": "read", "input": {"filePath": str(project / "src/f")}},
        {"text": "done"},
    ]
    captured, printed, blocked, elsewhere, read = agent(script)
    assert 'é "q"\n[fumehood ' in captured
    assert said_by_us("undo: fumehood undo", captured)
    assert sorted(os.listdir(project)) == ["src", "sub"]
    assert "out1\nerr1\nout2\nerr2\nout3\nerr3" in printed
    assert "Read-only file system" in blocked
    assert said_by_us("blocked write", blocked)
    assert said_by_us("not kept: ~/.bashrc", blocked)
    assert not (home / ".bashrc").exists()
    assert f"{project}/sub\n" in elsewhere
    assert 'é "q"' in read
    runs = log(fumehood)
    assert [run["exit_code"] for run in runs] == [0, 9, 1, 0]
    assert all(run["session"].startswith("opencode-ses_") for run in runs)
    fumehood("undo", runs[0]["run"])
    assert sorted(os.listdir(project)) == ["notes.txt", "sub"]


def test_a_command_elsewhere_stays_there_and_only_reads(
    agent: Agent, fumehood: Any, project: Path, beside: Path
) -> None:
    fumehood("setup", "opencode", "--yes")
    script = [shell("pwd; rm -rf build", workdir=str(beside)), {"text": "done"}]
    (told,) = agent(script, permission={"external_directory": "allow"})
    only_read_there(told, project, beside, is_offered=False)


def test_commands_at_once_are_captured_and_other_ways_to_run_are_denied(
    agent: Agent, fumehood: Any, project: Path
) -> None:
    fumehood("setup", "opencode", "--yes")
    both = {"parallel": [shell("echo one >>log"), shell("echo two >>log")]}
    nul = shell("touch nul\0")
    told = agent([both, both, nul, {"text": "done"}])
    assert sorted((project / "log").read_text().split()) == ["one", "two"]
    assert "has a NUL in it" in told[2]
    assert os.listdir(project) == ["log"]
    assert len({run["session"] for run in log(fumehood)}) == 1


def test_what_a_subagent_runs_belongs_to_the_same_session(agent: Agent, fumehood: Any, project: Path) -> None:
    fumehood("setup", "opencode", "--yes")
    task = {"subagent_type": "general", "description": "test", "prompt": "subagent: do it"}
    script = [{"tool": "task", "input": task}, shell("cat f; echo y >>f"), {"text": "done"}]
    told = agent(script, subagent=[shell("echo x >f"), {"text": "done"}])
    assert "x\n" in told[1]
    runs = log(fumehood)
    assert [run["command"] for run in runs] == ["echo x >f", "cat f; echo y >>f"]
    fumehood("undo", "--session", runs[1]["session"])
    assert os.listdir(project) == []


def test_its_own_edits_are_runs_that_can_be_taken_back(agent: Agent, fumehood: Any, project: Path) -> None:
    fumehood("setup", "opencode", "--yes")
    (project / "old").write_text("one\n")
    new, old = str(project / "new"), str(project / "old")
    script = [
        {"tool": "write", "input": {"filePath": new, "content": "x\n"}},
        {"tool": "read", "input": {"filePath": old}},
        {"tool": "edit", "input": {"filePath": old, "oldString": "one", "newString": "two"}},
        {"tool": "edit", "input": {"filePath": old, "oldString": "nowhere", "newString": "x"}},
        shell("cat old new"),
        {"text": "done"},
    ]
    assert "two\nx\n" in agent(script)[4]
    assert [run["command"] for run in log(fumehood)] == ["write new", "edit old", "cat old new"]
    fumehood("undo", "--session", log(fumehood)[0]["session"])
    assert (os.listdir(project), (project / "old").read_text()) == (["old"], "one\n")


@pytest.mark.parametrize("broken", ["/gone/fumehood", "exit 1; fumehood", "echo nonsense; exit 0; fumehood"])
def test_a_hook_that_fails_in_any_way_lets_nothing_through(
    agent: Agent, fumehood: Any, home: Path, project: Path, broken: str
) -> None:
    fumehood("setup", "opencode", "--yes")
    path = home / ".config/opencode/plugin/fumehood.js"
    path.write_text(path.read_text().replace(str(FUMEHOOD), broken))
    (told,) = agent([shell("touch f"), {"text": "done"}])
    assert "nothing was run" in told
    assert os.listdir(project) == []


def test_with_the_server_its_own_shell_is_closed(agent: Agent, fumehood: Any, project: Path) -> None:
    assert "own shell is closed" in fumehood("setup", "opencode", "--mcp", "--yes").stdout
    server = {"tool": "fumehood_run_command", "input": {"command": "echo ran >g; cat g"}}
    told = agent([server, shell("touch f"), {"text": "done"}])
    assert "ran" in told[0]
    assert os.listdir(project) == ["g"]
