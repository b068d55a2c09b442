"""Carry the lines of an editor and an agent to each other, until both are done."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from fumehood.faces.acp.conversation import AGENT, ANSWER, EDITOR, NotAMessage

if TYPE_CHECKING:
    from collections.abc import Iterable
    from socket import socket

    from fumehood.faces.acp.conversation import Conversation, Sent

_LONGEST = 64 << 20  # bytes in a line: what is longer can't be looked at, and so not passed on
PATIENCE_S = 5  # for an agent to end by itself once its editor is gone


class Exchange:
    """An editor and an agent, each as two descriptors; `questions` is where the agent's hood asks a person."""

    def __init__(
        self, conversation: Conversation, editor: tuple[int, int], agent: tuple[int, int], process: int,
        questions: socket,
    ) -> None:  # fmt: skip
        self._conversation = conversation
        self._editor = editor
        self._agent = agent
        self._process = process
        self._questions = questions
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._why_ended = ""

    async def carry(self) -> int:
        """Carry everything; returns the agent's exit status."""
        loop = asyncio.get_running_loop()
        from_editor, from_agent = await _reader(self._editor[0]), await _reader(self._agent[0])
        self._writers[EDITOR], self._writers[AGENT] = await _writer(self._editor[1]), await _writer(self._agent[1])
        from_hood, self._writers[ANSWER] = await asyncio.open_connection(sock=self._questions)
        asking = asyncio.ensure_future(self._ask(from_hood))
        editor = asyncio.ensure_future(self._listen_to_editor(from_editor))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, editor.cancel)
        agent = asyncio.ensure_future(self._listen_to_agent(from_agent))
        await asyncio.wait([editor, agent], return_when=asyncio.FIRST_COMPLETED)
        if not agent.done():
            # The editor has gone. The agent has its time to end, and what it wrote is then judged as ever.
            self._writers[AGENT].close()
            await asyncio.wait([agent], timeout=PATIENCE_S)
        status = await self._end_agent(agent.done())
        for task in (editor, asking):
            task.cancel()
        for error in await asyncio.gather(editor, asking, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        return status

    async def _listen_to_editor(self, reader: asyncio.StreamReader) -> None:
        while line := await _line(reader, "the editor"):
            try:
                sent = self._conversation.from_editor(line)
            except NotAMessage as error:
                _say(f"the editor sent something that is no message: {error}")
                continue
            await self._send(sent)

    async def _listen_to_agent(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await _line(reader, "the agent"):
                await self._send(self._conversation.from_agent(line))
        except ValueError as error:
            self._why_ended = str(error)

    async def _ask(self, reader: asyncio.StreamReader) -> None:
        """Put the questions of the agent's hood, which is a process of ours: its lines are as they should be."""
        while line := await reader.readline():
            message = json.loads(line)
            if message.get("settled"):
                self._conversation.settle(message["question"])
            else:
                await self._send(self._conversation.ask(message["question"], message["lines"], message["options"]))

    async def _send(self, sent: Iterable[Sent]) -> None:
        for each in sent:
            writer = self._writers.get(each.to)
            if writer is None or writer.is_closing():
                continue
            writer.write(each.data)
            try:
                await writer.drain()
            except ConnectionError:
                continue  # it is gone, which its other end tells

    async def _end_agent(self, is_done: bool) -> int:
        """Wait for the agent's end, and ask for it where it does not come; tell the editor what that leaves open.

        One that waits for its next prompt has done its work: some do not end with their input. One in the middle of it
        is cut short, and what it wrote is held.
        """
        if self._why_ended or (not is_done and self._conversation.is_busy):
            os.kill(self._process, signal.SIGTERM)
        elif not is_done:
            os.kill(self._process, signal.SIGINT)
        self._writers[AGENT].close()
        _, status = await asyncio.to_thread(os.waitpid, self._process, 0)
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
        why = self._why_ended or f"the agent has ended, with exit status {code}"
        await self._send(self._conversation.ended(why))
        return code


async def _line(reader: asyncio.StreamReader, whose: str) -> bytes:
    """Return the next line with its end; nothing where there is none, or not all of it."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial + b"\n" if error.partial else b""
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"a line of {whose} is longer than {_LONGEST >> 20} MiB") from error


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_LONGEST)
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


def _say(words: str) -> None:
    sys.stderr.write(f"fumehood: {words}\n")
    sys.stderr.flush()
