"""A foreign MCP server in the hood, called by the SDK's own client: mcp_server.py PROJECT TOOL JSON -- COMMAND [ARG…].

For example: mcp_server.py . notes '{"text": "milk"}' -- python3 server.py
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import ClientSession
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from fumehood import Sandbox, Started


@asynccontextmanager
async def transport(server: Started) -> AsyncIterator[tuple[Any, Any]]:
    """Carry the SDK's messages to and from a started server, one JSON object a line."""
    from_server, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, sent = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        line = ""
        async with from_server:
            async for part in server.stdout:
                line += part
                if line.endswith("\n"):  # else it was a part of a very long one
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                    line = ""
                    await from_server.send(message)

    async def write() -> None:
        async with sent:
            async for each in sent:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                await server.stdin.awrite(f"{text}\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield received, to_server
        tasks.cancel_scope.cancel()


async def call(project: str, command: list[str], tool: str, arguments: dict[str, Any]) -> str:
    """Start a server, call one of its tools, let it end, and say what it answered and changed."""
    with Sandbox(project) as sandbox:
        async with await sandbox.astart(command) as server:
            async with transport(server) as (received, to_server), ClientSession(received, to_server) as session:
                await session.initialize()
                answer = await session.call_tool(tool, arguments)
            server.stdin.close()  # that ends a server by itself, and what it wrote is applied
            run = await server
    changed = "".join(f"\n{change.verdict}: {change.change} {change.path}" for change in run.changes)
    return "".join(each.text for each in answer.content) + changed


if __name__ == "__main__":
    at = sys.argv.index("--")
    print(asyncio.run(call(sys.argv[1], sys.argv[at + 1 :], sys.argv[2], json.loads(sys.argv[3]))))
