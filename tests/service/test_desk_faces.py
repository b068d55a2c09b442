"""Whoever asks, those at the desk are asked: hooks, MCP clients of both eras, commands in the hood."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fumehood
from conftest import command_line, need
from forked import SERVER, loaded
from fumehood.core.questions import ALLOW_SESSION
from fumehood.linux.confine import can_scope
from fumehood.service.ask import Desk, Questions
from fumehood.service.opened import OpenedStore
from mcp_sdk import ERAS, IGNORED_WARNINGS
from patience import LONG_S

mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from mcp import Client, StdioServerParameters  # noqa: E402

pytestmark = [pytest.mark.namespaces, pytest.mark.once, *IGNORED_WARNINGS]


@pytest.fixture
def answered(home: Path) -> Iterator[list[fumehood.Question]]:
    """Somebody at the desk says yes to all that is asked; what that was."""
    asked: list[fumehood.Question] = []
    questions = Questions(Desk(OpenedStore().places))

    def answer() -> None:
        for each in questions:
            asked.append(each.question)
            each.answer(True)

    thread = threading.Thread(target=answer)
    thread.start()
    yield asked
    questions.close()
    thread.join()


def test_a_command_that_a_hook_rewrote_is_answered_at_the_desk(answered: list[Any], project: Path) -> None:
    need(can_scope(), "the host's network can't be shared here")
    call = {
        "session_id": "s", "cwd": str(project), "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_use_id": "1", "tool_input": {"command": "echo ran"},
    }  # fmt: skip
    hook = [*command_line(), "hook", "--client", "claude", "--network"]
    said = subprocess.run(hook, input=json.dumps(call), capture_output=True, text=True, cwd=project, check=True).stdout
    line = json.loads(said)["hookSpecificOutput"]["updatedInput"]["command"]
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=project, check=False)
    assert "ran\n" in done.stdout, (done, line)
    assert [each.command for each in answered] == ["echo ran"]


@pytest.mark.long
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("era", ERAS)
def test_a_call_of_an_mcp_client_is_answered_at_the_desk(
    answered: list[Any], project: Path, era: str, asks: bool
) -> None:
    async def never(_context: Any, _params: Any) -> Any:
        await asyncio.Event().wait()

    async def test() -> None:
        python, *rest = loaded(SERVER).client()
        server = StdioServerParameters(
            command=python, args=[*rest, "mcp", "--project", str(project)], env=dict(os.environ)
        )
        async with Client(server, mode=era, elicitation_callback=never if asks else None) as client:
            done = await client.call_tool("run_command", {"command": "echo ran", "network": True})
            assert done.structured_content["output"] == "ran\n", done

    asyncio.run(asyncio.wait_for(test(), LONG_S))
    assert [each.command for each in answered] == ["echo ran"]


def test_who_comes_while_a_command_runs_is_asked_for_what_it_asks(home: Path, project: Path) -> None:
    """Nobody is there when the command begins."""
    (project / "wait.sh").write_text("echo began; read go; fumehood ask example.org --reason 'to look'")
    command = [*command_line(), "run", "--session", "agent", "--", "sh wait.sh"]
    running = subprocess.Popen(
        command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    assert running.stdin is not None
    assert running.stdout.readline() == "began\n"
    with Questions(Desk(OpenedStore().places), str(project)) as questions:
        running.stdin.write("go\n")
        running.stdin.flush()
        each = next(iter(questions))
        assert "the agent says: to look" in each.question.details
        assert each.answer(ALLOW_SESSION)
        said, _ = running.communicate(timeout=LONG_S)
    assert said.startswith("allowed: commands may reach example.org")
    assert OpenedStore().grants.missed() == []
