"""The desktop chat's tool, as its author would write it: public names only, in an event loop."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conftest import need
from fumehood.linux.confine import can_scope

CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.namespaces


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Window:
    """Notes what it is shown, and gives the answers of a person."""

    def __init__(self, answer: str = "deny_once", *, accepts: bool = False) -> None:
        self.answer, self.accepts = answer, accepts
        self.printed: list[tuple[str, str]] = []
        self.changes: list[tuple[str, str]] = []
        self.asked: list[tuple[str, ...]] = []
        self.reviewed: list[tuple[str, str, str]] = []
        self.begun = asyncio.Event()

    def print(self, stream: str, text: str) -> None:
        self.printed.append((stream, text))
        self.begun.set()

    def changed(self, what: str, path: str) -> None:
        self.changes.append((what, path))

    async def permit(self, lines: tuple[str, ...], options: tuple[str, ...]) -> str:
        self.asked.append(lines)
        assert self.answer in options
        return self.answer

    async def accept(self, path: str, why: str, difference: str) -> bool:
        self.reviewed.append((path, why, difference))
        return self.accepts


def chat(project: Path, window: Window) -> Any:
    return example("desktop_chat").RunCommand(str(project), window)


def test_the_window_is_asked_for_the_network_and_a_no_is_told_to_the_model(project: Path) -> None:
    need(can_scope(), "the host's network can't be shared here")
    async def story() -> None:
        window = Window("deny_once")
        tool = chat(project, window)
        assert "read_page" in tool.definition["function"]["description"]
        assert "Permission denied" in await tool("curl example.org", network=True)
        assert "curl example.org" in "".join(window.asked[0])
        window.answer = "allow_once"
        assert await tool("echo granted", network=True)
        assert window.printed == [("stdout", "granted\n")]
        tool.close()

    asyncio.run(story())


def test_output_and_files_come_while_the_command_runs_and_stop_ends_it(project: Path) -> None:
    async def story() -> None:
        window = Window()
        tool = chat(project, window)
        running = asyncio.create_task(tool("echo one > made; echo begun; sleep 1000; echo never"))
        await window.begun.wait()
        tool.stop()
        text = await running
        assert [printed for _, printed in window.printed] == ["begun\n"]
        assert ("added", "made") in window.changes
        assert "made" in text
        assert not (project / "made").exists()  # what a stopped command wrote waits; here it was refused
        assert [path for path, _, _ in window.reviewed] == ["made"]
        tool.close()

    asyncio.run(story())


@pytest.mark.parametrize("accepts", [False, True])
def test_a_held_hook_is_shown_with_its_difference_and_decided_in_the_window(project: Path, accepts: bool) -> None:
    async def story() -> None:
        window = Window(accepts=accepts)
        tool = chat(project, window)
        text = await tool("echo ok > fine; echo 'echo hi' > .git/hooks/post-commit")
        ((path, why, difference),) = window.reviewed
        assert (path, "+echo hi" in difference, "hook" in why) == (".git/hooks/post-commit", True, True)
        assert (project / "fine").read_text() == "ok\n"
        assert (project / ".git/hooks/post-commit").exists() is accepts
        assert "post-commit" in text
        tool.close()

    subprocess.run(["git", "init", "-q", str(project)], check=True)
    asyncio.run(story())


def test_the_playground_is_the_agents_own(project: Path) -> None:
    async def story() -> None:
        tool = chat(project, Window())
        await tool("echo kept > note", playground=True)
        assert "kept" in await tool("cat ~/playground/note; pwd")
        assert os.listdir(project) == []
        tool.close()

    asyncio.run(story())
