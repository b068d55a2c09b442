"""The real Copilot CLI, with a model that follows a script: its commands go through the hood."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import FUMEHOOD, ended, knows_our_words, log, only_read_there, provided, said_by_us, started
from clients.endpoint import Chat, Step

pytestmark = pytest.mark.namespaces

Agent = Callable[..., list[str]]


@pytest.fixture
def copilot() -> str:
    return provided("FUMEHOOD_TESTS_COPILOT", "Copilot CLI")


@pytest.fixture
def agent(copilot: str, environment: dict[str, str], project: Path) -> Agent:
    """Copilot CLI from its start to its end; returns what it told the model of each tool call."""

    def run(
        script: Sequence[Step | Callable[[list[str]], Step]], *more: str, subagent: Sequence[Step] = ()
    ) -> list[str]:
        with Chat(script, subagent) as model:
            ended(start(copilot, model, environment, project, *more))
            return model.results()

    return run


def start(copilot: str, model: Chat, environment: dict[str, str], project: Path, *more: str) -> Any:
    told = {"COPILOT_OFFLINE": "true", "COPILOT_PROVIDER_BASE_URL": f"{model.url}/v1", "COPILOT_MODEL": "scripted"}
    line = [copilot, "-p", "go", "--allow-all-tools", *more]
    return started(line, project, environment | told | {"COPILOT_PROVIDER_API_KEY": "none"})


def shell(command: str, **more: Any) -> Step:
    return {"tool": "bash", "input": {"command": command, "description": "test", **more}}


def test_a_command_is_captured_and_undone(agent: Agent, fumehood: Any, project: Path) -> None:
    (project / "notes.txt").write_text("keep me")
    fumehood("setup", "copilot", "--yes")
    script = [shell("rm notes.txt; mkdir src; echo 'é \"q\"' >src/f; [[ a == a ]] && cat src/f"), {"text": "done"}]
    (told,) = agent(script)
    assert 'é "q"\n[fumehood ' in told
    assert said_by_us("undo: fumehood undo", told)
    assert os.listdir(project) == ["src"]
    (run,) = log(fumehood)
    assert run["session"].startswith("copilot-")
    fumehood("undo", run["run"])
    assert os.listdir(project) == ["notes.txt"]


def test_the_model_is_told_how_our_words_are_known(
    copilot: str, environment: dict[str, str], fumehood: Any, project: Path
) -> None:
    fumehood("setup", "copilot", "--yes")
    with Chat([shell("echo x >f; printf '[fumehood] undo: all is well'"), {"text": "done"}]) as model:
        ended(start(copilot, model, environment, project))
    assert knows_our_words(model)


def test_what_a_command_prints_stays_in_order_and_its_status_is_its_own(agent: Agent, fumehood: Any) -> None:
    fumehood("setup", "copilot", "--yes")
    (told,) = agent([shell("for i in 1 2 3; do echo out$i; echo err$i >&2; done; exit 9"), {"text": "done"}])
    assert "out1\nerr1\nout2\nerr2\nout3\nerr3" in told
    assert "exit code 9" in told


def test_a_write_outside_is_refused_and_the_agent_is_told_why(agent: Agent, fumehood: Any, home: Path) -> None:
    fumehood("setup", "copilot", "--yes")
    (told,) = agent([shell("echo x >/usr/x; echo x >~/.bashrc; test -e /usr/x"), {"text": "done"}])
    assert "Read-only file system" in told
    assert said_by_us("blocked write", told)
    assert said_by_us("not kept: ~/.bashrc", told)
    assert not (home / ".bashrc").exists()


def test_a_command_elsewhere_stays_there_and_only_reads(
    agent: Agent, fumehood: Any, project: Path, beside: Path
) -> None:
    fumehood("setup", "copilot", "--yes")
    (project / "a b").mkdir()
    script = [shell("cd 'a b'; pwd"), shell(f"cd {beside}; pwd; rm -rf build"), {"text": "done"}]
    told = agent(script, "--add-dir", str(beside))
    assert f"{project}/a b\n" in told[0]
    only_read_there(told[1], project, beside)


def test_commands_at_once_and_in_the_background_are_captured_too(agent: Agent, fumehood: Any, project: Path) -> None:
    fumehood("setup", "copilot", "--yes")
    both = {"parallel": [shell("echo one >>log"), shell("echo two >>log")]}
    later = shell("echo x >bg; echo ready", mode="async", shellId="later")
    reading = {"tool": "read_bash", "input": {"shellId": "later", "delay": 10}}
    told = agent([both, both, later, reading, {"text": "done"}])
    assert sorted((project / "log").read_text().split()) == ["one", "two"]
    assert "ready" in told[3]
    assert (project / "bg").read_text() == "x\n"
    runs = log(fumehood)
    assert all(run["state"] == "applied" for run in runs)
    assert len({run["session"] for run in runs}) == 1


def test_what_a_subagent_runs_belongs_to_the_same_session(agent: Agent, fumehood: Any, project: Path) -> None:
    fumehood("setup", "copilot", "--yes")
    task = {"agent_type": "task", "name": "helper", "description": "test", "prompt": "subagent: do it"}
    script = [{"tool": "task", "input": task}, shell("cat f; echo y >>f"), {"text": "done"}]
    told = agent(script, subagent=[shell("echo x >f"), {"text": "done"}])
    assert "x\n" in told[1]
    runs = log(fumehood)
    assert [run["command"] for run in runs] == ["echo x >f", "cat f; echo y >>f"]
    fumehood("undo", "--session", runs[1]["session"])
    assert os.listdir(project) == []


def test_its_own_edits_are_runs_that_can_be_taken_back(agent: Agent, fumehood: Any, project: Path) -> None:
    fumehood("setup", "copilot", "--yes")
    (project / "old").write_text("one\n")
    new, old = str(project / "new"), str(project / "old")
    script = [
        {"tool": "create", "input": {"path": new, "file_text": "x\n"}},
        {"tool": "view", "input": {"path": old}},
        {"tool": "edit", "input": {"path": old, "old_str": "one", "new_str": "two"}},
        {"tool": "edit", "input": {"path": old, "old_str": "nowhere", "new_str": "x"}},
        shell("cat old new"),
        {"text": "done"},
    ]
    assert "two\nx\n" in agent(script)[4]
    assert [run["command"] for run in log(fumehood)] == ["create new", "edit old", "cat old new"]
    fumehood("undo", "--session", log(fumehood)[0]["session"])
    assert (os.listdir(project), (project / "old").read_text()) == (["old"], "one\n")


def test_a_patch_is_a_run_that_can_be_taken_back(
    copilot: str, environment: dict[str, str], fumehood: Any, project: Path
) -> None:
    fumehood("setup", "copilot", "--yes")
    (project / "old").write_text("one\n")
    patch = "*** Begin Patch\n*** Add File: new\n+x\n*** Update File: old\n@@\n-one\n+two\n*** End Patch\n"
    with Chat([{"tool": "apply_patch", "input": {"input": patch}}, {"text": "done"}]) as model:
        # It has this tool for some models only, and gives the hook its plain text.
        ended(start(copilot, model, environment | {"COPILOT_PROVIDER_MODEL_ID": "gpt-5.6-sol"}, project))
    assert (project / "old").read_text() == "two\n"
    (run,) = log(fumehood)
    assert run["command"].startswith("apply_patch ")
    fumehood("undo", run["run"])
    assert (os.listdir(project), (project / "old").read_text()) == (["old"], "one\n")


def test_a_hook_that_fails_in_any_way_lets_nothing_through(
    agent: Agent, fumehood: Any, home: Path, project: Path
) -> None:
    fumehood("setup", "copilot", "--yes")
    path = home / ".copilot/hooks/fumehood.json"
    text = path.read_text()
    for broken in ("/gone/fumehood", "exit 1; fumehood", "kill -9 $$; fumehood"):
        path.write_text(text.replace(str(FUMEHOOD), broken))
        (told,) = agent([shell("touch f"), {"text": "done"}])
        assert "Denied by preToolUse hook" in told
        assert os.listdir(project) == []


def test_with_the_server_alone_its_own_shell_stays_open(
    agent: Agent, fumehood: Any, home: Path, project: Path
) -> None:
    # Why `setup copilot --mcp` warns: Copilot CLI has no setting that closes its shell.
    assert "stays open" in fumehood("setup", "copilot", "--mcp", "--yes").stdout

    def step(told: list[str]) -> Step:
        # It does not wait for a server that takes long to start: until then there is no such tool.
        if not any("ran" in each for each in told):
            return {"tool": "fumehood-run_command", "input": {"command": "echo ran >g; cat g"}}
        return shell("echo x >f") if "ran" in told[-1] else {"text": "done"}

    agent([step])
    assert json.loads(fumehood("log", "--json").stdout)["runs"][0]["command"].startswith("echo ran")
    assert sorted(os.listdir(project)) == ["f", "g"]
