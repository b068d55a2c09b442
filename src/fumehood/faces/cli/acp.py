"""`fumehood acp`: start an agent for an editor, in the hood or with our hooks, and stand between the two.

What becomes of each message is decided by itself, before anything is sent: it is passed on as it is, changed, answered,
or dropped. An agent in the hood must not have the editor do what the hood forbids. The editor acts outside: it writes
files and runs commands when it is asked to (`fs/…`, `terminal/…`), and a login that an agent offers may be a command to
run. So these are not offered to such an agent, and refused if it asks. Whatever else it says is passed on byte for
byte, unless the editor could read the bytes as something else than we do; then it is written anew.

An agent outside, with our hooks, keeps all of that. Its terminals are rewritten to run in the hood, in the editor's
own terminal.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import queue
import secrets
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from fumehood.core.masks import is_in
from fumehood.core.questions import INTRODUCTION, TITLES
from fumehood.core.request import checked_name
from fumehood.errors import BadRequest, plain_error
from fumehood.faces.cli import agent, run
from fumehood.faces.cli.output import load_text, print_error
from fumehood.faces.cli.setup import installed_command
from fumehood.linux.libc import PR_SET_PDEATHSIG, prctl
from fumehood.service.ask import Asked
from fumehood.service.opened import OpenedStore
from fumehood.store.audit import CLI

Json = dict[str, Any]

_HOOKS = "--hooks"
_LONGEST = 64 << 20  # bytes in a line: what is longer can't be looked at, and so not passed on
_MOST_READ = 1 << 16
_PATIENCE_S = 5  # for an agent to end by itself once its editor has closed its input
_ALONE_S = 60  # the same, where its editor has killed us: nobody waits
# What ends an agent that does not end with its input, as some do not. One that waits for its next prompt has done its
# work; one that is busy is cut short, and what it wrote is held.
_END_IDLE, _END_BUSY = signal.SIGINT, signal.SIGTERM

# To whom bytes go: the editor, the agent, or, as the answer to a question of ours, who asked it.
EDITOR, AGENT, ANSWER = "editor", "agent", "answer"
Sent = list[tuple[str, bytes]]
_BEGINNING = ("session/new", "session/load", "session/resume", "session/fork")
_ACTING = ("fs/", "terminal/")  # what has the editor act for the agent
# What ends a line for some readers, where for us only a line feed does; all may stand in a JSON text.
_BREAKS = (b"\r", b"\x0b", b"\x0c", "\u0085".encode(), "\u2028".encode(), "\u2029".encode())
# The keys that decide what becomes of a message. Some readers, Go's among them, take them in any case.
_DECIDING = ("id", "method", "params", "result", "error")
_LOGINS = "authMethods"
_NO_METHOD, _BAD_PARAMS, _INTERNAL = -32601, -32602, -32603  # JSON-RPC
_KINDS = {
    "allow_once": "allow_once", "allow_session": "allow_always", "allow_always": "allow_always",
    "deny_once": "reject_once", "deny_session": "reject_always", "deny_always": "reject_always",
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Serve one editor; returns the agent's exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [word for word in arguments[:end] if word != _HOOKS]
    options = run.parse_options([*ours, *arguments[end:]], agent.EXTRA_OPTIONS, agent.EXTRA_FLAGS).raise_on_error()
    if options.wants_help:
        sys.stdout.write(load_text("acp.txt"))
        return 0
    if end == len(arguments) or not options.command_words:
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
            os.execvp(options.command_words[0], options.command_words)

        return _stand_between(WithHooks(installed_command()), editor, execute, mmap.mmap(-1, 1))
    store = OpenedStore(face=CLI)
    roots = store.projects.open(run.find_project(store, options, "")).roots
    store.close()

    editors = os.getpid()
    is_busy = mmap.mmap(-1, 1)  # seen by both processes

    def employ(channel: int) -> int:
        # Editors kill what they started. Most agents end with their input, and what they did is then judged as ever;
        # one that does not is ended some time after the process that talks to the editor is dead.
        signal.signal(signal.SIGUSR1, lambda *_: signal.alarm(_ALONE_S))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), _END_BUSY if is_busy[0] else _END_IDLE))
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
            print_error(plain)
            code = plain.exit_code
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    # Standard output is the editor's alone.
    os.dup2(2, 1)
    for descriptor in (agent_reads, agent_writes, theirs.detach()):
        os.close(descriptor)
    return Exchange(conversation, editor, (from_agent, to_agent), process, ours, is_busy).carry()


class NotAMessage(Exception):
    """A line is not one message."""


class Conversation:
    """One agent's conversation with one editor, from its first message to its last."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[Any, str, str]] = {}  # the editor's, by id: the id, its method, its directory
        self._prompted: dict[str, str] = {}  # the sessions whose prompts are being worked on, by the request's id
        self._directories: dict[str, str] = {}  # that sessions work in; the latest session comes last
        # Ours that the editor shows, by a token: the number, and the answers that it was given to choose from.
        self._questions: dict[str, tuple[int, Sequence[str]]] = {}

    def from_editor(self, line: bytes) -> Sent:
        """Take a line of the editor's."""
        message = read(line)[0]
        method, number = message.get("method"), json.dumps(message.get("id"))
        if method is None:
            question = self._questions.pop(number, None)
            return [(AGENT, line)] if question is None else [(ANSWER, _answer(*question, message.get("result")))]
        sent = self.to_agent(message, line)
        if "id" in message and sent[0][0] == AGENT:
            params = message["params"] if isinstance(message.get("params"), dict) else {}
            self._requests[number] = message["id"], str(method), str(params.get("cwd", ""))
            if method == "session/prompt":
                self._prompted[number] = str(params.get("sessionId", ""))
        return sent

    def from_agent(self, line: bytes) -> Sent:
        """Take a line of the agent's."""
        try:
            message, is_plain = read(line)
        except NotAMessage:
            return self.to_editor(None, line)
        if "method" not in message:
            number = json.dumps(message.get("id"))
            _, method, directory = self._requests.pop(number, (None, "", ""))
            self._prompted.pop(number, None)
            result = message.get("result")
            if method in _BEGINNING and isinstance(result, dict) and isinstance(result.get("sessionId"), str):
                self._directories.pop(result["sessionId"], None)
                self._directories[result["sessionId"]] = directory
        try:
            return self.to_editor(message, line if is_plain else written(message))
        except RecursionError:
            return []  # nested deeper than we can look

    @property
    def is_busy(self) -> bool:
        """True while the agent works on a prompt."""
        return bool(self._prompted)

    def ended(self, why: str) -> Sent:
        """Return what the editor is told when the agent is gone: each of its requests has failed."""
        waiting, self._requests = self._requests, {}
        return [(EDITOR, _error(number, _INTERNAL, why)) for number, _, _ in waiting.values()]

    def ask(self, number: int, lines: Sequence[str], options: Mapping[str, str]) -> Sent:
        """Have the editor put a question of ours to the person; without a session to ask in, nobody is there.

        `options` are the answers with their titles.
        """
        session = next(reversed(self._prompted.values()), next(reversed(self._directories), ""))
        if not session:
            return [(ANSWER, written({"question": number, "answer": None}))]
        # Nobody can guess it: else an agent could give a question of its own the same, and have ours answered by that.
        token = f"fumehood-{secrets.token_hex(16)}"
        self._questions[json.dumps(token)] = number, tuple(options)
        text = "\n".join([INTRODUCTION, "", *(f"    {line}" for line in lines)])
        call = {
            "toolCallId": token, "title": lines[0] if lines else "Fumehood asks you", "kind": "other",
            "status": "pending", "content": [{"type": "content", "content": {"type": "text", "text": text}}],
        }  # fmt: skip
        choices = [{"optionId": each, "name": title, "kind": _KINDS[each]} for each, title in options.items()]
        params = {"sessionId": session, "toolCall": call, "options": choices}
        asked = {"jsonrpc": "2.0", "id": token, "method": "session/request_permission", "params": params}
        return [(EDITOR, written(asked))]

    def settle(self, number: int) -> None:
        """Forget a question that was settled otherwise; an answer that comes yet counts for nothing."""
        self._questions = {token: each for token, each in self._questions.items() if each[0] != number}

    # What differs between an agent in the hood and one outside.

    def to_agent(self, _message: Json, line: bytes, /) -> Sent:
        """Return what becomes of a request or a notification of the editor's."""
        return [(AGENT, line)]

    def to_editor(self, _message: Json | None, line: bytes, /) -> Sent:
        """Return what becomes of a line of the agent's, which may be no message."""
        return [(EDITOR, line)]


class InHood(Conversation):
    """The agent runs in the hood, in a project with these roots."""

    def __init__(self, roots: Sequence[str]) -> None:
        super().__init__()
        self._roots = tuple(roots)

    def to_agent(self, message: Json, line: bytes, /) -> Sent:
        """Refuse a session elsewhere, and offer nothing of what the editor would do for the agent outside.

        What an agent did elsewhere would not be what the person sees.
        """
        params = message.get("params")
        if not isinstance(params, dict):
            return [(AGENT, line)]
        directory = params.get("cwd")
        if message["method"] in _BEGINNING and "id" in message and isinstance(directory, str):
            if not is_in(os.path.realpath(directory), self._roots):
                where = f"{directory} is not in {self._roots[0]}, where this agent works"
                why = f"{where}: fumehood acp --project DIR -- AGENT"
                return [(EDITOR, _error(message["id"], _BAD_PARAMS, why))]
        elif message["method"] == "initialize":
            offered = params.get("clientCapabilities")
            kept = {key: value for key, value in offered.items() if key != "auth"} if isinstance(offered, dict) else {}
            kept |= {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
            if isinstance(kept.get("_meta"), dict):
                kept["_meta"] = {key: value for key, value in kept["_meta"].items() if not _is_login(key)}
            line = written({**message, "params": {**params, "clientCapabilities": kept}})
        return [(AGENT, line)]

    def to_editor(self, message: Json | None, line: bytes, /) -> Sent:
        """Refuse what would have the editor act, and take out of a list of logins those that are commands."""
        if message is None:
            return []  # the editor might read it nevertheless
        method = message.get("method")
        if "method" in message and (not isinstance(method, str) or method.startswith(_ACTING)):
            if "id" not in message:
                return []
            why = f"{method} is not offered: this agent runs in the hood, and does that itself"
            return [(AGENT, _error(message["id"], _NO_METHOD, why))]
        changed = _without_commands(message)
        return [(EDITOR, line if changed == message else written(changed))]


class WithHooks(Conversation):
    """The agent runs outside, with our hooks; `command` is how Fumehood is started."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self._command = tuple(command)

    def to_editor(self, message: Json | None, line: bytes, /) -> Sent:
        """Have what is to run in a terminal run in the hood, as a run of its session; the editor shows it as ever."""
        params = message and message.get("params")
        if not message or message.get("method") != "terminal/create" or not isinstance(params, dict):
            return [(EDITOR, line)]
        session, words = str(params.get("sessionId", "")), params.get("args") or []
        directory = self._directories.get(session, "")
        where = params.get("cwd") or directory
        arguments = [*self._command[1:], "run", "--brief", "--session", session_name(session)]
        arguments += ["--begun-in", directory] if directory else []
        arguments += ["--cwd", where] if isinstance(where, str) and where else []
        changed = {**params, "command": self._command[0], "args": [*arguments, "--", params.get("command"), *words]}
        return [(EDITOR, written({**message, "params": changed}))]


def session_name(session: str) -> str:
    """Return our name for a session of the protocol's."""
    try:
        return checked_name(f"acp-{session}")
    except BadRequest:
        return f"acp-{hashlib.sha256(session.encode(errors='surrogatepass')).hexdigest()[:32]}"


def read(line: bytes) -> tuple[Json, bool]:
    """Read one message; tells whether every reader takes these bytes for the same.

    One that ends lines elsewhere, or takes the first of two equal keys, would not. A key that only some would take for
    one that decides makes it no message.
    """
    is_plain = not any(each in line.rstrip(b"\r\n") for each in _BREAKS)

    def of(pairs: list[tuple[str, Any]]) -> Json:
        nonlocal is_plain
        table = dict(pairs)
        is_plain = is_plain and len(table) == len(pairs)
        _refuse_other_cases(table, (_LOGINS,))
        return table

    try:
        message = json.loads(line.decode(), object_pairs_hook=of, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NotAMessage(str(error)) from error
    if not isinstance(message, dict):
        raise NotAMessage("it is not a JSON object")
    _refuse_other_cases(message, _DECIDING)
    return message, is_plain


def _refuse_other_cases(table: Json, names: Sequence[str]) -> None:
    folded = {name.casefold() for name in names}
    if any(key not in names and key.casefold() in folded for key in table):
        raise NotAMessage("a key of it means something in another case only")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def written(message: Json) -> bytes:
    """Write a message so that every reader takes it for the same."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _error(number: Any, code: int, why: str) -> bytes:
    return written({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": why}})


def _answer(number: int, options: Sequence[str], result: object) -> bytes:
    """Write the answer to a question of ours: an option, a no where it was cancelled, None where it can't ask."""
    outcome = result.get("outcome") if isinstance(result, dict) else None
    answer: str | None = None
    if isinstance(outcome, dict):
        chosen = outcome.get("optionId") if outcome.get("outcome") == "selected" else ""
        answer = chosen if chosen in options else "deny_once"
    return written({"question": number, "answer": answer})


def _is_login(key: str) -> bool:
    return "auth" in key.lower()


def _without_commands(value: Any) -> Any:
    """Return a message without the ways to log in that are commands, wherever in it they are listed."""

    def is_harmless(method: Any) -> bool:
        """Neither a command that the editor would run, nor something that we don't understand."""
        extra = method.get("_meta") or {} if isinstance(method, dict) else None
        return isinstance(extra, dict) and method.get("type") != "terminal" and not any(map(_is_login, extra))

    if isinstance(value, list):
        return list(map(_without_commands, value))
    if not isinstance(value, dict):
        return value
    inner = {key: _without_commands(each) for key, each in value.items()}
    methods = inner.get(_LOGINS)
    if methods is not None:
        is_list = isinstance(methods, list)
        inner[_LOGINS] = [each for each in methods if is_harmless(each)] if is_list else []
    return inner


class Exchange:
    """An editor and an agent, each as two descriptors; `questions` is where the agent's hood asks a person.

    A thread listens to each: while one waits for somebody who does not read, the others go on.
    """

    def __init__(
        self, conversation: Conversation, editor: tuple[int, int], agent: tuple[int, int], process: int,
        questions: socket.socket, is_busy: mmap.mmap,
    ) -> None:  # fmt: skip
        self._conversation = conversation
        self._deciding = threading.Lock()  # about a message
        self._process = process
        self._is_busy = is_busy
        self._readers: dict[str, IO[bytes]] = {
            EDITOR: os.fdopen(editor[0], "rb"), AGENT: os.fdopen(agent[0], "rb"), ANSWER: questions.makefile("rb"),
        }  # fmt: skip
        self._writers: dict[str, io.RawIOBase] = {
            EDITOR: io.FileIO(editor[1], "wb"), AGENT: io.FileIO(agent[1], "wb"),
            ANSWER: questions.makefile("wb", buffering=0),
        }  # fmt: skip
        self._writing = {to: threading.Lock() for to in self._writers}
        self._failures: dict[str, Exception] = {}
        self._gone = queue.SimpleQueue[str]()

    def carry(self) -> int:
        """Carry everything; returns the agent's exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._gone.put(EDITOR))
        for whose in self._readers:
            threading.Thread(target=self._listen, args=[whose], name=f"fumehood-{whose}", daemon=True).start()
        is_agent_gone = self._gone.get() == AGENT
        # If the editor has gone, the agent has its time to end, and what it wrote is then judged as ever.
        self._writers[AGENT].close()
        until = time.monotonic() + _PATIENCE_S
        while not is_agent_gone and (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                is_agent_gone = self._gone.get(timeout=left) == AGENT
        why = str(self._failures.get(AGENT, ""))
        if why or not is_agent_gone:
            os.kill(self._process, _END_BUSY if why or self._conversation.is_busy else _END_IDLE)
        _, status = os.waitpid(self._process, 0)
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
        with self._deciding:
            sent = self._conversation.ended(why or f"the agent has ended, with exit status {code}")
        self._send(sent)
        for whose in self._failures.keys() - {AGENT}:
            raise self._failures[whose]
        return code

    def _listen(self, whose: str) -> None:
        try:
            while line := self._line(whose):
                self._send(self._decided(whose, line))
        except Exception as error:  # noqa: BLE001 - of this thread; it is told where the exchange ends
            self._failures[whose] = error
        if whose != ANSWER:
            self._gone.put(whose)
        with suppress(OSError):
            while self._readers[whose].read(_MOST_READ):
                pass  # or it would wait for us, and not end

    def _line(self, whose: str) -> bytes:
        line = self._readers[whose].readline(_LONGEST + 1)
        if len(line) > _LONGEST:
            raise ValueError(f"a line of the {whose} is longer than {_LONGEST >> 20} MiB")
        return line if line.endswith(b"\n") or not line else line + b"\n"

    def _decided(self, whose: str, line: bytes) -> Sent:
        """Return what becomes of a line; those with the hood's questions are from a process of ours, and in order."""
        talk = self._conversation
        with self._deciding:
            try:
                if whose == EDITOR:
                    return talk.from_editor(line)
                if whose == AGENT:
                    return talk.from_agent(line)
            except NotAMessage as error:
                sys.stderr.write(f"fumehood: the editor sent something that is no message: {error}\n")
                return []
            finally:
                self._is_busy[0] = talk.is_busy
            message = json.loads(line)
            if not message.get("settled"):
                return talk.ask(message["question"], message["lines"], message["options"])
            talk.settle(message["question"])
            return []

    def _send(self, sent: Sent) -> None:
        for to, data in sent:
            with self._writing[to]:
                try:
                    while data:
                        data = data[self._writers[to].write(data) :]  # noqa: PLW2901
                except (OSError, ValueError):
                    continue  # it is gone, which its other end tells; or it is closed


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
