"""What the agents' door costs: the hook, the start of the MCP server, and one call through it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measures import REPOSITORY, Figure, median_ms, project_in, quiet

# What the SDK alone needs to answer: a server with one tool that does nothing.
_BARE = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("bare")
@server.tool()
def nothing() -> str:
    return ""
server.run()
"""
_INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}  # fmt: skip
_CALL = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "session_id": "s", "tool_use_id": "t"}


def hook(room: Path) -> Iterator[Figure]:
    """The hook, cold: it comes before every command of an agent."""
    project = project_in(room)
    given = room / "call.json"
    given.write_text(json.dumps({**_CALL, "tool_input": {"command": "make test"}}))
    line = ["sh", "-c", f"'{REPOSITORY}/fumehood' hook <'{given}'"]
    quiet(line, cwd=project)()
    ours, bare = median_ms(quiet(line, cwd=project), quiet([sys.executable, "-c", "pass"]))
    yield Figure("fumehood hook, one call", ours, "ms", "python3 -c pass", bare, 4.0)


def mcp(room: Path) -> Iterator[Figure]:
    """The MCP server: from its start to the answer to `initialize`, and one call."""
    project = project_in(room)
    ours = [str(REPOSITORY / "fumehood"), "mcp", "--project", str(project)]
    bare = [sys.executable, "-c", _BARE]
    _until_initialized(ours)
    started, alone = median_ms(lambda: _until_initialized(ours), lambda: _until_initialized(bare), times=10)
    yield Figure("MCP server: spawn to initialize", started, "ms", "the bare SDK", alone, 1.2)
    called, direct = asyncio.run(_round_trips(ours, project))
    yield Figure('MCP run_command("true") over the library call', called - direct, "ms", limit=6.0)


def _until_initialized(line: list[str]) -> None:
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(_INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        process.kill()
    assert answer["result"]["serverInfo"]["name"], answer


async def _round_trips(line: list[str], project: Path, times: int = 100) -> tuple[float, float]:
    """Time a call through the client and the same run by the library, in turn."""
    from mcp import Client, StdioServerParameters

    from fumehood import Sandbox

    parameters = StdioServerParameters(command=line[0], args=line[1:], env=dict(os.environ))
    called: list[float] = []
    direct: list[float] = []
    with Sandbox(project) as opened:
        sandbox = opened.session()
        async with Client(parameters, mode="legacy") as client:
            for _ in range(times + 5):
                called.append(await _timed(client.call_tool("run_command", {"command": "true"})))
                direct.append(await _timed(sandbox.arun("true", cwd=project)))
    return _middle(called), _middle(direct)


async def _timed(act: Any) -> float:
    began = time.perf_counter()
    await act
    return (time.perf_counter() - began) * 1000


def _middle(taken: list[float]) -> float:
    return sorted(taken[5:])[len(taken[5:]) // 2]  # the first ones warm up
