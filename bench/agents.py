"""The cost of the ways in for agents: the hook, the start of the MCP server, and one call through it."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measures import REPOSITORY, Figure, median_ms, project_in, quiet

# A server of the SDK alone, with one tool that does nothing.
_BARE_SERVER = """
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
    """Measure the hook as a new process: it runs before every command of an agent."""
    project = project_in(room)
    call = room / "call.json"
    call.write_text(json.dumps({**_CALL, "tool_input": {"command": "make test"}}))
    line = ["sh", "-c", f"'{REPOSITORY}/fumehood' hook <'{call}'"]
    quiet(line, cwd=project)()
    hook_ms, python_ms = median_ms(quiet(line, cwd=project), quiet([sys.executable, "-c", "pass"]))
    yield Figure("fumehood hook, one call", hook_ms, "ms", "python3 -c pass", python_ms, 4.0)


def mcp(room: Path) -> Iterator[Figure]:
    """Measure the MCP server: from its start to the answer to `initialize`, and one call."""
    project = project_in(room)
    server = [str(REPOSITORY / "fumehood"), "mcp", "--project", str(project)]
    bare_server = [sys.executable, "-c", _BARE_SERVER]
    _initialize(server)
    server_ms, bare_ms = median_ms(lambda: _initialize(server), lambda: _initialize(bare_server), times=10)
    yield Figure("MCP server: spawn to initialize", server_ms, "ms", "the bare SDK", bare_ms, 1.2)
    call_ms, direct_ms = asyncio.run(_median_calls(server, project))
    yield Figure('MCP run_command("true") over the library call', call_ms - direct_ms, "ms", limit=6.0)


def _initialize(line: list[str]) -> None:
    """Start a server, wait for its answer to `initialize`, and end it."""
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


async def _median_calls(line: list[str], project: Path, times: int = 100) -> tuple[float, float]:
    """Return the median times of a call through a client and of the same run by the library, made in turn."""
    from mcp import Client, StdioServerParameters

    from fumehood import Sandbox

    parameters = StdioServerParameters(command=line[0], args=line[1:], env=dict(os.environ))
    calls: list[float] = []
    direct: list[float] = []
    with Sandbox(project) as project_sandbox:
        sandbox = project_sandbox.session()
        async with Client(parameters, mode="legacy") as client:
            for _ in range(times + 5):
                calls.append(await _milliseconds(client.call_tool("run_command", {"command": "true"})))
                direct.append(await _milliseconds(sandbox.arun("true", cwd=project)))
    # The first calls warm up.
    return statistics.median(calls[5:]), statistics.median(direct[5:])


async def _milliseconds(awaitable: Any) -> float:
    began = time.perf_counter()
    await awaitable
    return (time.perf_counter() - began) * 1000
