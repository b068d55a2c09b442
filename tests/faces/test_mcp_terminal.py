"""The MCP server in a person's terminal, for a client that can't ask: the question is put there."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from at_terminal import Terminal
from conftest import command_line
from mcp_sdk import IGNORED_WARNINGS
from patience import LONG_S

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

pytestmark = [pytest.mark.namespaces, pytest.mark.once, *IGNORED_WARNINGS]
TOKEN = "a token that was set"


async def called(url: str, terminal: Terminal, key: str) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=LONG_S) as http,
        Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
    ):
        call = asyncio.create_task(client.call_tool("run_command", {"command": "echo ran >f", "network": True}))
        await asyncio.to_thread(terminal.wait_for, "[y] allow once")
        terminal.type(key)
        return await call


@pytest.mark.long
@pytest.mark.parametrize("key", ["y", "n"])
def test_the_person_at_the_terminal_answers(home: Path, project: Path, key: str) -> None:
    line = [*command_line(), "mcp", "--project", str(project), "--http", "0"]
    with Terminal(line, project, env={"FUMEHOOD_MCP_TOKEN": TOKEN}) as terminal:
        url = re.search(r"http://\S+/mcp", terminal.wait_for("/mcp"))
        assert url
        result = asyncio.run(asyncio.wait_for(called(url[0], terminal, key), 2 * LONG_S))
    assert result.is_error == (key == "n")
    assert (project / "f").exists() == (key == "y")
