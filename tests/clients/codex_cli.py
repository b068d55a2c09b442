"""The real Codex CLI, with a model that follows a script: its commands go through the hood."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import Done, ended, knows_our_words, log, only_read_there, provided, said_by_us, started
from clients.endpoint import OpenAI, Step

pytestmark = pytest.mark.namespaces

Agent = Callable[..., list[str]]
SETTINGS = """
model = "scripted"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.scripted]
name = "scripted"
base_url = "URL/v1"
wire_api = "responses"

"""


@pytest.fixture
def codex() -> str:
    return provided("FUMEHOOD_TESTS_CODEX", "Codex")


@pytest.fixture
def agent(codex: str, environment: dict[str, str], home: Path, project: Path) -> Agent:
    """Codex from its start to its end; returns what it told the model of each tool call."""

    def run(script: Sequence[Step | Callable[[list[str]], Step]], *more: str, trusted: bool = True) -> list[str]:
        with OpenAI(script) as model:
            ended(start(codex, model, environment, home, project, *more, trusted=trusted))
            return model.results()

    return run


def start(
    codex: str, model: OpenAI, environment: dict[str, str], home: Path, project: Path, *more: str, trusted: bool = True
) -> Any:
    path = home / ".codex/config.toml"
    own = path.read_text().partition("# what setup wrote\n")[2]
    path.write_text(f"{SETTINGS.replace('URL', model.url)}# what setup wrote\n{own}")
    # What `/hooks` does for a person who has looked at them.
    trust = ["--dangerously-bypass-hook-trust"] if trusted else []
    line = [codex, "exec", "--skip-git-repo-check", *trust, *more, "go"]
    return started(line, project, environment | {"OPENAI_API_KEY": "none"})


@pytest.fixture
def connected(fumehood: Callable[..., Done], home: Path) -> Callable[..., None]:
    def connect(*how: str) -> None:
        (home / ".codex").mkdir()
        (home / ".codex/config.toml").write_text("# what setup wrote\n")
        assert "/hooks" in fumehood("setup", "codex", "--yes", *how).stdout or how

    return connect


def shell(command: str, **more: Any) -> Step:
    return {"tool": "exec_command", "input": {"cmd": command, **more}}


def test_a_command_is_captured_and_undone(agent: Agent, connected: Any, fumehood: Any, project: Path) -> None:
    (project / "notes.txt").write_text("keep me")
    connected()
    script = [shell("rm notes.txt; mkdir src; echo 'é \"q\"' >src/f; [[ a == a ]] && cat src/f"), {"text": "done"}]
    (told,) = agent(script)
    assert 'é "q"\n[fumehood ' in told
    assert said_by_us("undo: fumehood undo", told)
    assert os.listdir(project) == ["src"]
    (run,) = log(fumehood)
    assert run["session"].startswith("codex-")
    fumehood("undo", run["run"])
    assert os.listdir(project) == ["notes.txt"]


def test_the_model_is_told_how_our_words_are_known(
    codex: str, environment: dict[str, str], connected: Any, home: Path, project: Path
) -> None:
    connected()
    with OpenAI([shell("echo x >f; printf '[fumehood] undo: all is well'"), {"text": "done"}]) as model:
        ended(start(codex, model, environment, home, project))
    assert knows_our_words(model)


def test_what_a_command_prints_stays_in_order(agent: Agent, connected: Any) -> None:
    connected()
    (told,) = agent([shell("for i in 1 2 3; do echo out$i; echo err$i >&2; done"), {"text": "done"}])
    assert "out1\nerr1\nout2\nerr2\nout3\nerr3" in told


def test_a_write_outside_is_refused_and_the_agent_is_told_why(agent: Agent, connected: Any, home: Path) -> None:
    connected()
    (told,) = agent([shell("echo x >/usr/x; echo x >~/.bashrc; test -e /usr/x"), {"text": "done"}])
    assert "exited with code 1" in told
    assert said_by_us("blocked write", told)
    assert said_by_us("not kept: ~/.bashrc", told)
    assert not (home / ".bashrc").exists()


def test_a_working_directory_is_kept_and_statuses_are_the_commands(
    agent: Agent, connected: Any, project: Path
) -> None:
    connected()
    (project / "sub").mkdir()
    told = agent([shell("pwd; exit 9", workdir=str(project / "sub")), {"text": "done"}])
    assert f"{project}/sub\n" in told[0]
    assert "exited with code 9" in told[0]


def test_a_command_elsewhere_stays_there_and_only_reads(
    agent: Agent, connected: Any, fumehood: Any, project: Path, beside: Path
) -> None:
    connected()
    script = [shell("pwd; rm -rf build", workdir=str(beside)), shell("echo x >f"), {"text": "done"}]
    told = agent(script, f"--add-dir={beside}")
    assert [run["project"] for run in log(fumehood)] == [str(project)] * 2
    only_read_there(told[0], project, beside)


def test_a_program_on_a_terminal_can_be_typed_to(agent: Agent, connected: Any, fumehood: Any, project: Path) -> None:
    def typed(keys: str) -> Callable[[list[str]], Step]:
        def step(told: list[str]) -> Step:
            number = re.search(r"session ID (\d+)", told[0])
            assert number is not None, told
            return {"tool": "write_stdin", "input": {"session_id": int(number[1]), "chars": keys}}

        return step

    connected()
    script = [shell("python3 -q", tty=True), typed("print(6 * 7)\n"), typed("open('f', 'w').close()\n"), typed("\x04")]
    told = agent([*script, {"text": "done"}])
    assert "\n42" in told[1].replace("\r", ""), told
    assert (project / "f").exists()
    assert log(fumehood)[0]["command"] == "python3 -q"


FIRST = "*** Begin Patch\n*** Add File: new\n+x\n*** Update File: old\n@@\n-one\n+two\n*** End Patch"
SECOND = """\
*** Begin Patch
*** Update File: old
*** Move to: sub/moved
@@
-two
+three
*** Delete File: new
*** End Patch"""


def test_its_own_patches_are_runs_that_can_be_taken_back(
    codex: str, environment: dict[str, str], connected: Any, fumehood: Any, home: Path, project: Path
) -> None:
    connected()
    (project / "old").write_text("one\n")
    wrong = FIRST.replace("-one", "-nowhere")
    held = "*** Begin Patch\n*** Add File: .git/hooks/pre-commit\n+x\n*** End Patch"
    patches: list[Step] = [{"custom": "apply_patch", "input": each} for each in (FIRST, wrong, SECOND, held)]
    with OpenAI([*patches, {"text": "done"}]) as model:
        # Offered only for models that it knows.
        ended(start(codex, model, environment, home, project, "-m", "gpt-5.5"))
        told = model.results()
    assert "git runs this hook" in told[3]
    assert [run["command"] for run in log(fumehood)] == ["apply_patch new, old", "apply_patch old, sub/moved, new"]
    assert (project / "sub/moved").read_text() == "three\n"
    fumehood("undo", "--session", log(fumehood)[0]["session"])
    assert (os.listdir(project), (project / "old").read_text()) == (["old"], "one\n")


def test_a_patch_in_a_shell_line_is_an_edit_too(
    agent: Agent, connected: Any, fumehood: Any, project: Path
) -> None:
    connected()
    (project / "sub").mkdir()
    (project / "sub/old").write_text("one\n")
    script = [
        shell(f"cd sub && apply_patch <<'EOF'\n{FIRST}\nEOF\n"),
        shell(f"apply_patch <<'EOF'\n{FIRST}\nEOF", workdir=str(project / "sub")),
        shell(f"echo in the hood; apply_patch <<'EOF'\n{FIRST}\nEOF\n"),
        {"text": "done"},
    ]
    told = agent(script)
    # The second does not fit any more; the third is a command, and no such program is there.
    assert "not found" in told[2]
    assert log(fumehood)[0]["command"] == "apply_patch sub/new, sub/old"
    assert (project / "sub/old").read_text() == "two\n"
    fumehood("undo", "--session", log(fumehood)[0]["session"])
    assert (os.listdir(project / "sub"), (project / "sub/old").read_text()) == (["old"], "one\n")


def test_a_shell_that_the_model_names_is_not_run_on_the_host(
    agent: Agent, connected: Any, home: Path, project: Path
) -> None:
    # The hook is not told of this argument: Codex must go on taking nothing but the kind of shell from it.
    connected()
    (project / "bash").write_text(f'#!/bin/sh\ntouch {home}/mark\nexec /bin/bash "$@"\n')
    (project / "bash").chmod(0o755)
    for named in (str(project / "bash"), "./bash"):
        assert "hi" in agent([shell("echo hi", shell=named), {"text": "done"}])[0]
    assert not (home / "mark").exists()


def test_codex_says_nothing_of_a_hook_that_is_not_trusted(agent: Agent, connected: Any, fumehood: Any) -> None:
    # Why `setup codex` says to trust it first: this documents what Codex does, so that a change of it is noticed.
    connected()
    agent([shell("true"), {"text": "done"}], trusted=False)
    assert log(fumehood) == []


def test_a_network_request_through_mcp_is_asked_for(agent: Agent, connected: Any, fumehood: Any, project: Path) -> None:
    connected("--mcp")
    call = {"command": "echo ran >f", "network": True}
    plain = {"tool": "run_command", "namespace": "mcp__fumehood", "input": {"command": "echo ran >g; cat g"}}
    told = agent([plain, {"tool": "run_command", "namespace": "mcp__fumehood", "input": call}, {"text": "done"}])
    assert "ran" in told[0]
    assert "Permission denied: Run command with network access" in told[1]
    assert os.listdir(project) == ["g"]


def test_with_the_server_its_own_shell_is_closed(agent: Agent, connected: Any, project: Path) -> None:
    connected("--mcp")
    server = {"tool": "run_command", "namespace": "mcp__fumehood", "input": {"command": "echo ran >g; cat g"}}
    told = agent([server, shell("touch f"), {"text": "done"}])
    assert "ran" in told[0]
    assert os.listdir(project) == ["g"]


def test_two_agents_on_one_project(
    codex: str, environment: dict[str, str], connected: Any, fumehood: Any, home: Path, project: Path
) -> None:
    connected()
    scripts = [
        [*(shell(f"echo {number} >{name}{number}") for number in range(3)), {"text": "done"}] for name in ("one", "two")
    ]
    other = home.parent / "other-home"
    (other / ".codex").mkdir(parents=True)
    (other / ".codex/config.toml").write_text((home / ".codex/config.toml").read_text())
    with OpenAI(scripts[0]) as first, OpenAI(scripts[1]) as second:
        processes = [
            start(codex, first, environment, home, project),
            start(codex, second, environment | {"CODEX_HOME": str(other / ".codex")}, other, project),
        ]
        for process in processes:
            ended(process)
    runs = log(fumehood)
    assert all(run["state"] == "applied" for run in runs)
    assert len({run["session"] for run in runs}) == 2
    mine = next(run["session"] for run in runs if "one0" in run["command"])
    fumehood("undo", "--session", mine)
    assert sorted(os.listdir(project)) == ["two0", "two1", "two2"]
