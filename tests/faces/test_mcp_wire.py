"""The MCP server's standard streams, on real pipes, files and processes."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification

from fumehood.faces.mcp.wire import Incoming, Outgoing
from patience import LONG_S

Pipe = tuple[FileIO, FileIO]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as given, os.fdopen(writing, "wb", buffering=0) as taken:
        yield given, taken


def line(number: int, text: str = "") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "m", "params": {"n": number, "t": text}}).encode() + b"\n"


def message(number: int, text: str = "") -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="m", params={"n": number, "t": text}))


async def numbers(stream: Incoming) -> list[Any]:
    return [type(item) if isinstance(item, Exception) else item.message.params["n"] async for item in stream]


def test_messages_come_in_pieces_and_several_at_once(pipe: Pipe) -> None:
    async def test() -> None:
        reading = asyncio.create_task(numbers(Incoming(pipe[0].fileno())))
        long = line(2, "é" * 100_000)
        for piece in (line(1)[:7], line(1)[7:] + long[:50_001], long[50_001:90_000], long[90_000:] + line(3) + line(4)):
            while piece:
                await asyncio.sleep(0)
                piece = piece[pipe[1].write(piece[:4096]) :]  # noqa: PLW2901
        pipe[1].write(line(5).rstrip())  # its end is missing
        pipe[1].close()
        assert await reading == [1, 2, 3, 4, 5]

    asyncio.run(asyncio.wait_for(test(), LONG_S))


def test_what_is_no_message_is_told_and_the_next_one_still_comes(pipe: Pipe) -> None:
    pipe[1].write(b"no json\n\n" + line(1).replace(b'"t": ""', b'"t": "\xff"') + b'{"jsonrpc": 1}\n' + line(2))
    pipe[1].close()
    found = asyncio.run(numbers(Incoming(pipe[0].fileno())))
    assert [each if isinstance(each, int) else each.__name__ for each in found] == [
        "ValidationError", "ValidationError", 1, "ValidationError", 2,
    ]  # fmt: skip


def test_messages_come_from_a_file_too(test_directory: Path) -> None:
    (test_directory / "given").write_bytes(line(1) + line(2))
    with (test_directory / "given").open("rb") as given:
        assert asyncio.run(numbers(Incoming(given.fileno()))) == [1, 2]


def test_a_long_answer_to_a_slow_client_arrives_whole_though_its_sender_was_cancelled(pipe: Pipe) -> None:
    async def test() -> bytes:
        stream = Outgoing(pipe[1].fileno())
        sending = asyncio.create_task(stream.send(message(1, "x" * 300_000)))
        await asyncio.sleep(0)
        assert not sending.done()  # more than a pipe holds
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        second = asyncio.create_task(stream.send(message(2)))
        got = b""
        while got.count(b"\n") < 2:
            await asyncio.sleep(0)
            got += pipe[0].read(5000)
        await second
        await stream.aclose()
        return got

    first, second = (json.loads(each) for each in asyncio.run(asyncio.wait_for(test(), LONG_S)).splitlines())
    assert (first["params"]["n"], len(first["params"]["t"]), second["params"]["n"]) == (1, 300_000, 2)


def test_a_client_that_has_gone_is_told_as_the_sdk_wants_it(pipe: Pipe) -> None:
    async def test() -> None:
        stream = Outgoing(pipe[1].fileno())
        sending = asyncio.create_task(stream.send(message(1, "x" * 300_000)))
        await asyncio.sleep(0)
        pipe[0].close()
        with pytest.raises(anyio.BrokenResourceError):
            await sending
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(message(2))
        await stream.aclose()

    asyncio.run(asyncio.wait_for(test(), LONG_S))


def test_only_messages_are_on_the_streams_while_they_are_taken() -> None:
    code = (
        "import os\n"
        "from fumehood.faces.mcp.wire import standard_streams\n"
        "with standard_streams():\n"
        "    os.system('echo stray; cat')\n"
        "    print('stray', flush=True)\n"
        "print(input())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input="given\n", capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("given\n", "stray\nstray\n")


def test_a_closed_stream_is_said_in_words() -> None:
    code = "from fumehood.faces.mcp.wire import standard_streams as s; import os; os.close(0); s().__enter__()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Unavailable: standard input or output is closed" in done.stderr
