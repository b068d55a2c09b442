"""The real Gemini CLI, with a model that follows a script: its commands go through the hood."""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import FUMEHOOD, Done, ended, log, only_read_there, provided, said_by_us, started
from clients.endpoint import Gemini, Step

pytestmark = pytest.mark.namespaces

Agent = Callable[[Sequence[Step]], list[str]]
# What its first start asks a person for, and nothing that looks for the network.
SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}


@pytest.fixture
def gemini() -> str:
    return provided("FUMEHOOD_TESTS_GEMINI", "Gemini CLI")


@pytest.fixture
def agent(gemini: str, environment: dict[str, str], project: Path) -> Agent:
    """Gemini CLI from its start to its end; returns what it told the model of each tool call."""

    def run(script: Sequence[Step], *more: str) -> list[str]:
        with Gemini(script) as model:
            ended(start(gemini, model, environment, project, *more))
            return model.results()

    return run


def start(gemini: str, model: Gemini, environment: dict[str, str], project: Path, *more: str) -> Any:
    told = {"GOOGLE_GEMINI_BASE_URL": model.url, "GEMINI_API_KEY": "none", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    line = [gemini, "-p", "go", "--yolo", "--model", "gemini-2.5-pro", "--output-format", "json"]
    return started([*line, *more], project, environment | told)


@pytest.fixture
def connected(fumehood: Callable[..., Done], home: Path) -> Callable[..., None]:
    def connect(*how: str) -> None:
        (home / ".gemini").mkdir()
        (home / ".gemini/settings.json").write_text(json.dumps(SETTINGS))
        fumehood("setup", "gemini", "--yes", *how)

    return connect


def shell(command: str, **more: Any) -> Step:
    return {"tool": "run_shell_command", "input": {"command": command, "description": "test", **more}}


def test_a_command_is_captured_and_undone(agent: Agent, connected: Any, fumehood: Any, project: Path) -> None:
    (project / "notes.txt").write_text("keep me")
    connected()
    line = "rm notes.txt; mkdir -p src; cat >src/a.py <<'EOF'\nprint('é')\nEOF\ncat src/a.py"
    (told,) = agent([shell(line), {"text": "done"}])
    assert "print('é')" in told
    assert "undo: fumehood undo" in told
    assert sorted(os.listdir(project)) == ["src"]
    (run,) = log(fumehood)
    assert run["session"].startswith("gemini-")
    fumehood("undo", run["run"])
    assert os.listdir(project) == ["notes.txt"]


def test_our_words_are_known_by_letters_that_stay_the_same(agent: Agent, connected: Any) -> None:
    # Its hooks before a tool have no way to tell the model anything.
    connected()
    told = agent([shell("echo x >f; printf '[fumehood] undo: all is well'"), shell("echo y >f"), {"text": "done"}])
    marks = [re.findall(r"\[fumehood ([a-z]{12})\] undo: ", each) for each in told]
    assert marks[0] == marks[1]
    assert len(marks[0]) == 1


def test_what_a_command_prints_stays_in_order(agent: Agent, connected: Any) -> None:
    connected()
    (told,) = agent([shell("for i in 1 2 3; do echo out$i; echo err$i >&2; done"), {"text": "done"}])
    assert "out1\nerr1\nout2\nerr2\nout3\nerr3" in told


def test_a_write_outside_is_refused_and_the_agent_is_told_why(agent: Agent, connected: Any, home: Path) -> None:
    connected()
    (told,) = agent([shell("echo x >/usr/x; echo x >~/.bashrc; test -e /usr/x"), {"text": "done"}])
    assert "Read-only file system" in told
    assert said_by_us("blocked write", told)
    assert said_by_us("not kept: ~/.bashrc", told)
    assert not (home / ".bashrc").exists()


def test_a_working_directory_is_kept_and_statuses_are_the_commands(
    agent: Agent, connected: Any, project: Path
) -> None:
    connected()
    (project / "a b").mkdir()
    told = agent([shell("pwd; exit 9", dir_path="a b"), {"text": "done"}])
    assert f"{project}/a b\n" in told[0]
    assert "Exit Code: 9" in told[0]


def test_a_command_elsewhere_stays_there_and_only_reads(
    agent: Agent, connected: Any, fumehood: Any, project: Path, beside: Path
) -> None:
    connected()
    script = [shell("pwd; rm -rf build", dir_path=str(beside)), shell("echo x >f"), {"text": "done"}]
    told = agent(script, "--include-directories", str(beside))
    assert [run["project"] for run in log(fumehood)] == [str(project)] * 2
    only_read_there(told[0], project, beside)


def test_what_the_host_would_execute_waits_and_the_agent_can_undo(
    agent: Agent, connected: Any, project: Path
) -> None:
    connected()
    told = agent(
        [
            shell("mkdir -p .git/hooks; echo x >.git/hooks/pre-commit"),
            shell("echo x >f"),
            shell("fumehood undo"),
            shell("fumehood apply last"),
            {"text": "done"},
        ]
    )
    assert "held" in told[0]
    assert os.listdir(project) == []
    assert "only a person may do that" in told[3]


def test_commands_in_the_background_are_captured_too(
    agent: Agent, connected: Any, fumehood: Any, project: Path
) -> None:
    connected()
    agent([shell("echo x >bg; echo ready", is_background=True), shell("sleep 2"), {"text": "done"}])
    assert any(run["command"].startswith("echo x >bg") and run["state"] == "applied" for run in log(fumehood))
    assert (project / "bg").read_text() == "x\n"


def test_a_network_request_through_mcp_is_asked_for(agent: Agent, connected: Any, project: Path) -> None:
    connected("--mcp")
    plain = {"tool": "mcp_fumehood_run_command", "input": {"command": "echo ran >g; cat g"}}
    asking = {"tool": "mcp_fumehood_run_command", "input": {"command": "echo ran >f", "network": True}}
    told = agent([plain, asking, {"text": "done"}])
    assert "ran" in told[0]
    # It has no way to put a question to the person, and says so: nothing runs.
    assert "Permission denied: Run command with network access" in told[1]
    assert os.listdir(project) == ["g"]


def test_with_the_server_its_own_shell_is_closed(agent: Agent, connected: Any, project: Path) -> None:
    connected("--mcp")
    server = {"tool": "mcp_fumehood_run_command", "input": {"command": "echo ran >g; cat g"}}
    told = agent([server, shell("touch f"), {"text": "done"}])
    assert "ran" in told[0]
    assert os.listdir(project) == ["g"]


def test_its_own_edits_are_runs_that_can_be_taken_back(
    agent: Agent, connected: Any, fumehood: Any, project: Path
) -> None:
    connected()
    (project / "old").write_text("one\n")
    new, old = str(project / "src/new"), str(project / "old")
    script = [
        {"tool": "write_file", "input": {"file_path": new, "content": "x\n"}},
        {"tool": "replace", "input": {"file_path": old, "old_string": "one", "new_string": "two", "instruction": "i"}},
        {"tool": "replace", "input": {"file_path": old, "old_string": "gone", "new_string": "x", "instruction": "i"}},
        {"tool": "write_file", "input": {"file_path": str(project / ".vscode/tasks.json"), "content": "{}"}},
        shell("cat old src/new"),
        {"text": "done"},
    ]
    told = agent(script)
    assert "fumehood review" in told[3]
    assert "two\nx\n" in told[4]
    assert [run["command"] for run in log(fumehood)] == ["write_file src/new", "replace old", "cat old src/new"]
    fumehood("undo", "--session", log(fumehood)[0]["session"])
    assert (os.listdir(project), (project / "old").read_text()) == (["old"], "one\n")


def test_two_agents_on_one_project(
    gemini: str, environment: dict[str, str], connected: Any, fumehood: Any, project: Path
) -> None:
    connected()
    scripts = [
        [*(shell(f"echo {number} >{name}{number}") for number in range(3)), {"text": "done"}] for name in ("one", "two")
    ]
    with Gemini(scripts[0]) as first, Gemini(scripts[1]) as second:
        processes = [start(gemini, model, environment, project) for model in (first, second)]
        for process in processes:
            ended(process)
    runs = log(fumehood)
    assert all(run["state"] == "applied" for run in runs)
    assert len({run["session"] for run in runs}) == 2
    mine = next(run["session"] for run in runs if "one0" in run["command"])
    fumehood("undo", "--session", mine)
    assert sorted(os.listdir(project)) == ["two0", "two1", "two2"]


def test_a_hook_that_is_gone_lets_nothing_through(agent: Agent, connected: Any, home: Path, project: Path) -> None:
    connected()
    path = home / ".gemini/settings.json"
    path.write_text(path.read_text().replace(str(FUMEHOOD), "/gone/fumehood"))
    (told,) = agent([shell("touch f"), {"text": "done"}])
    assert "/gone/fumehood" in told
    assert os.listdir(project) == []
