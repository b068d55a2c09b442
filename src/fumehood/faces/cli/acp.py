"""`fumehood acp`: start an agent for an editor, in the hood or with our hooks, and stand between the two."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from fumehood.core.questions import TITLES
from fumehood.errors import BadRequest, plain_error
from fumehood.faces.cli import agent, run
from fumehood.faces.cli.acp_messages import AGENT, ANSWER, EDITOR, Conversation, InHood, NotAMessage, Sent, WithHooks
from fumehood.faces.cli.output import tell_error, text_of
from fumehood.faces.cli.setup import installed_command
from fumehood.linux.libc import PR_SET_PDEATHSIG, prctl
from fumehood.service.ask import Asked
from fumehood.service.opened import OpenedStore
from fumehood.store.audit import CLI

_HOOKS = "--hooks"
_LONGEST = 64 << 20  # bytes in a line: what is longer can't be looked at, and so not passed on
_MOST_READ = 1 << 16
_PATIENCE_S = 5  # for an agent to end by itself once its editor has closed its input
_ALONE_S = 60  # the same, where its editor has killed us: nobody waits


def main(arguments: Sequence[str]) -> int:
    """Serve one editor; returns the agent's exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [word for word in arguments[:end] if word != _HOOKS]
    options = run.parse([*ours, *arguments[end:]], agent.MORE, agent.FLAGS).checked()
    if options.wants_help:
        sys.stdout.write(text_of("acp.txt"))
        return 0
    if end == len(arguments) or not options.command:
        raise BadRequest("acp needs an agent", hint="fumehood acp -- AGENT …")
    wrong = options.flags & {"--json", "--tty", "--explain"}
    if wrong:
        raise BadRequest(f"acp does not take {wrong.pop()}", hint="standard output is the editor's")
    for number, name in enumerate(("input", "output")):
        mode = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)):
            raise BadRequest(f"standard {name} leads to no editor", hint="an editor starts this command, by pipes")
    editor = os.dup(0), os.dup(1)
    if _HOOKS in arguments[:end]:

        def execute(_channel: int) -> int:
            os.execvp(options.command[0], options.command)

        return _stand_between(WithHooks(installed_command()), editor, execute, mmap.mmap(-1, 1))
    store = OpenedStore(face=CLI)
    roots = store.projects.open(run.chosen_project(store, options, "")).roots
    store.close()

    editors = os.getpid()
    is_busy = mmap.mmap(-1, 1)  # seen by both processes

    def employ(channel: int) -> int:
        # Editors kill what they started. Most agents end with their input, and what they did is then judged as ever;
        # one that does not is ended some time after the process that talks to the editor is dead.
        signal.signal(signal.SIGUSR1, lambda *_: signal.alarm(_ALONE_S))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), _ending(is_busy=is_busy[0] != 0)))
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        if os.getppid() != editors:
            os.kill(os.getpid(), signal.SIGUSR1)
        return agent.main([*ours, *arguments[end:]], lambda: (BehindEditor(channel),))

    return _stand_between(InHood(roots), editor, employ, is_busy)


def _stand_between(
    conversation: Conversation, editor: tuple[int, int], be_agent: Callable[[int], int], is_busy: mmap.mmap
) -> int:
    """Fork what is or runs the agent, which gets the socket to ask through, and carry what the two say."""
    agent_reads, to_agent = os.pipe()
    from_agent, agent_writes = os.pipe()
    ours, theirs = socket.socketpair()
    process = os.fork()
    if not process:
        os.dup2(agent_reads, 0)
        os.dup2(agent_writes, 1)
        for descriptor in (agent_reads, to_agent, from_agent, agent_writes, *editor, ours.detach()):
            os.close(descriptor)
        # We may end it by this one, which is ignored where a script started the editor in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = 125
        try:
            code = be_agent(theirs.fileno())
        except KeyboardInterrupt:
            code = 130
        except Exception as error:  # noqa: BLE001 - whatever nobody foresaw is one line and our own exit code
            plain = plain_error(error)
            tell_error(plain)
            code = plain.exit_code
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    # Standard output is the editor's alone.
    os.dup2(2, 1)
    for descriptor in (agent_reads, agent_writes, theirs.detach()):
        os.close(descriptor)
    exchange = Exchange(conversation, editor, (from_agent, to_agent), process, ours, is_busy)
    return asyncio.run(exchange.carry())


def _ending(*, is_busy: bool) -> signal.Signals:
    """Return the signal that ends an agent which does not end with its input: some do not.

    One that waits for its next prompt has done its work. One in the middle of it is cut short, and what it wrote is
    held.
    """
    return signal.SIGTERM if is_busy else signal.SIGINT


# ---- Their lines, carried to each other until both are done.

class Exchange:
    """An editor and an agent, each as two descriptors; `questions` is where the agent's hood asks a person."""

    def __init__(
        self, conversation: Conversation, editor: tuple[int, int], agent: tuple[int, int], process: int,
        questions: socket.socket, is_busy: mmap.mmap,
    ) -> None:  # fmt: skip
        self._conversation = conversation
        self._editor = editor
        self._agent = agent
        self._process = process
        self._questions = questions
        self._is_busy = is_busy
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
            await asyncio.wait([agent], timeout=_PATIENCE_S)
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
                sys.stderr.write(f"fumehood: the editor sent something that is no message: {error}\n")
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
        self._is_busy[0] = self._conversation.is_busy
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
        """Wait for the agent's end, and ask for it where it does not come; tell the editor what that leaves open."""
        if self._why_ended or not is_done:
            os.kill(self._process, _ending(is_busy=bool(self._why_ended) or self._conversation.is_busy))
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


# ---- What the hood must ask, from the process that runs the agent to the one that talks to the editor.

class BehindEditor:
    """Asks through a socket; one question at a time."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._turn = threading.Lock()
        self._count = 0
        self._unread = b""

    def put(self, asked: Asked) -> None:
        """Have the question shown, and wait for the answer in a thread."""
        closed, closing = os.pipe()
        asked.wait_in_thread(
            "fumehood-editor", lambda: self._wait(asked, closed), lambda: os.close(closing), lambda: os.close(closed)
        )

    def _wait(self, asked: Asked, closed: int) -> None:
        with self._turn:
            self._count += 1
            question = asked.question
            try:
                options = {option: question.worded(TITLES[option]) for option in question.options}
                self._tell({"lines": list(question.lines), "options": options})
                while (answer := self._answer(closed)) is not None:
                    if answer.get("question") == self._count:  # an earlier one may be answered yet
                        asked.answer(answer["answer"])
                        return
                self._tell({"settled": True})
            except OSError:
                asked.answer(None)  # nobody is behind it any more

    def _answer(self, closed: int) -> dict[str, object] | None:
        """Return the next answer; None once the question is settled otherwise."""
        poll = select.poll()
        for descriptor in (closed, self._channel):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            if closed in {descriptor for descriptor, _ in poll.poll()}:
                return None
            data = os.read(self._channel, _MOST_READ)
            if not data:
                raise BrokenPipeError
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _tell(self, message: dict[str, object]) -> None:
        os.write(self._channel, json.dumps({"question": self._count, **message}).encode() + b"\n")
