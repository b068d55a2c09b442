"""`fumehood acp`: start an agent for an editor, in the hood or with our hooks, and relay the messages between the two.

Each message is passed on unchanged, changed, answered, or dropped. This is decided for one message at a time, before
anything of it is sent.

An agent in the hood must not make the editor do what the hood forbids: the editor runs outside, writes files and runs
commands on request (`fs/…`, `terminal/…`), and a login that an agent offers may be a command that the editor runs. So
these are not offered to such an agent, and are refused if it asks. Every other message is passed on byte for byte,
unless the editor could read the bytes in another way than we do; then the message is encoded anew.

An agent outside of the hood, with our hooks, may use all of that. Its terminals are rewritten to run in the hood, in
the editor's own terminal.
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

from fumehood.core.paths import is_in
from fumehood.core.questions import INTRODUCTION, TITLES
from fumehood.core.request import checked_name
from fumehood.errors import BadRequest, as_fumehood_error
from fumehood.faces.cli import agent, run
from fumehood.faces.cli.hook_clients import CLIENTS as HOOKED
from fumehood.faces.cli.output import load_text, print_error
from fumehood.faces.cli.setup import installed_command
from fumehood.faces.cli.setup_clients import codex_trusts_hook, connections
from fumehood.linux.libc import PR_SET_PDEATHSIG, prctl
from fumehood.service.ask import Asked
from fumehood.service.opened import OpenedStore
from fumehood.store.audit import CLI

Json = dict[str, Any]

_HOOKS = "--hooks"
_MAX_LINE = 64 << 20  # bytes; a longer line can't be checked, so it is not passed on
_READ_SIZE = 1 << 16
_AGENT_END_S = 5  # for an agent to end by itself after its editor has closed its input
_ORPHAN_END_S = 60  # the same after the editor has killed us: then nobody waits for it
# The signals for an agent that does not end with its input. An idle agent has done its work; a busy one is cut short,
# and what it wrote is held.
_IDLE_AGENT_SIGNAL, _BUSY_AGENT_SIGNAL = signal.SIGINT, signal.SIGTERM

# Who gets a message: the editor, the agent, or the process that asks a question of ours and waits for its answer.
EDITOR, AGENT, ANSWER = "editor", "agent", "answer"
Messages = list[tuple[str, bytes]]
_SESSION_METHODS = ("session/new", "session/load", "session/resume", "session/fork")
_EDITOR_METHOD_STARTS = ("fs/", "terminal/")  # methods by which the editor acts for the agent
# Characters that end a line for some readers, but not for us; all of them may occur in JSON.
_LINE_BREAKS = (b"\r", b"\x0b", b"\x0c", "\u0085".encode(), "\u2028".encode(), "\u2029".encode())
# The keys by which we decide about a message. Some readers (Go's, for example) ignore the case of keys.
_DECISIVE_KEYS = ("id", "method", "params", "result", "error")
_LOGIN_KEY = "authMethods"
_METHOD_NOT_FOUND, _INVALID_PARAMS, _INTERNAL_ERROR = -32601, -32602, -32603  # JSON-RPC
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
    not_allowed = options.flags & {"--json", "--tty", "--explain"}
    if not_allowed:
        raise BadRequest(f"acp does not take {not_allowed.pop()}", hint="standard output is the editor's")
    for number, name in enumerate(("input", "output")):
        mode = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)):
            raise BadRequest(f"standard {name} leads to no editor", hint="an editor starts this command, by pipes")
    editor = os.dup(0), os.dup(1)
    if _HOOKS in arguments[:end]:
        _check_hook(options.command_words)

        def exec_agent(_channel: int) -> int:
            os.execvp(options.command_words[0], options.command_words)

        return _connect(WithHooks(installed_command()), editor, exec_agent, mmap.mmap(-1, 1))
    store = OpenedStore(face=CLI)
    roots = store.projects.open(run.find_project(store, options, "")).roots
    store.close()

    own_pid = os.getpid()
    is_busy = mmap.mmap(-1, 1)  # seen by both processes

    def run_agent_in_hood(channel: int) -> int:
        # If the editor kills our other process, most agents end with their input, and their changes are judged as
        # usual. An agent that does not is ended some time after that process has died.
        signal.signal(signal.SIGUSR1, lambda *_: signal.alarm(_ORPHAN_END_S))
        signal.signal(
            signal.SIGALRM, lambda *_: os.kill(os.getpid(), _BUSY_AGENT_SIGNAL if is_busy[0] else _IDLE_AGENT_SIGNAL)
        )
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        if os.getppid() != own_pid:
            os.kill(os.getpid(), signal.SIGUSR1)
        return agent.main([*ours, *arguments[end:]], lambda: (EditorAsker(channel),))

    return _connect(InHood(roots), editor, run_agent_in_hood, is_busy)


def _check_hook(words: Sequence[str]) -> None:
    """Refuse an agent that would not call our hook, because then its commands would run outside, and nobody would know.

    The client is known by the name of its program. A program of another name is taken as it is.
    """
    names = (os.path.basename(word).lower() for word in words)
    client = next((client for name in names for client in HOOKED if client in name), "")
    if not client:
        return
    settings, in_hood = connections(installed_command())[client], "without --hooks, the agent itself runs in the hood"
    if client == "gemini":
        raise BadRequest("Gemini CLI calls no hook under an editor: its commands would run outside", hint=in_hood)
    if not settings.has_hook:
        raise BadRequest(f"our hook is not in the settings of {client}", hint=f"fumehood setup {client}; or {in_hood}")
    if client == "codex" and not any(map(codex_trusts_hook, settings.hook)):
        hint = f"start codex, type /hooks, review and trust it; or {in_hood}"
        raise BadRequest("Codex skips our hook, because you have not trusted it: commands would run outside", hint=hint)


def _connect(
    conversation: Conversation, editor: tuple[int, int], run_agent: Callable[[int], int], is_busy: mmap.mmap
) -> int:
    """Fork a process that calls `run_agent` with a socket for questions, and relay the messages; returns its status."""
    agent_reads, agent_input = os.pipe()
    agent_output, agent_writes = os.pipe()
    own_socket, agent_socket = socket.socketpair()
    process = os.fork()
    if not process:
        os.dup2(agent_reads, 0)
        os.dup2(agent_writes, 1)
        for descriptor in (agent_reads, agent_input, agent_output, agent_writes, *editor, own_socket.detach()):
            os.close(descriptor)
        # We may end the agent with SIGINT, which is ignored if a script started the editor in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = 125
        try:
            code = run_agent(agent_socket.fileno())
        except KeyboardInterrupt:
            code = 130
        except Exception as error:  # noqa: BLE001 - an unforeseen error is one line and our own exit code
            plain = as_fumehood_error(error)
            print_error(plain)
            code = plain.exit_code
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    # Only messages may go to the editor: our own prints go to standard error.
    os.dup2(2, 1)
    for descriptor in (agent_reads, agent_writes, agent_socket.detach()):
        os.close(descriptor)
    return Relay(conversation, editor, (agent_output, agent_input), process, own_socket, is_busy).relay()


class NotAMessage(Exception):
    """A line is not a valid message."""


class Conversation:
    """One agent's conversation with one editor: what becomes of each message."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[Any, str, str]] = {}  # open ones of the editor, by id: id, method, directory
        self._busy_sessions: dict[str, str] = {}  # sessions that work on a prompt, by the id of its request
        self._directories: dict[str, str] = {}  # of the sessions, the latest session last
        # Our questions that the editor shows, by their token: the number, and the possible answers.
        self._questions: dict[str, tuple[int, Sequence[str]]] = {}

    def receive_from_editor(self, line: bytes) -> Messages:
        """Return what to send for a line from the editor."""
        message = parse_message(line)[0]
        method, number = message.get("method"), json.dumps(message.get("id"))
        if method is None:
            question = self._questions.pop(number, None)
            return [(AGENT, line)] if question is None else [(ANSWER, _encode_answer(*question, message.get("result")))]
        sent = self.handle_editor_message(message, line)
        if "id" in message and sent[0][0] == AGENT:
            params = message["params"] if isinstance(message.get("params"), dict) else {}
            self._requests[number] = message["id"], str(method), str(params.get("cwd", ""))
            if method == "session/prompt":
                self._busy_sessions[number] = str(params.get("sessionId", ""))
        return sent

    def receive_from_agent(self, line: bytes) -> Messages:
        """Return what to send for a line from the agent."""
        try:
            message, is_plain = parse_message(line)
        except NotAMessage:
            return self.handle_agent_message(None, line)
        if "method" not in message:
            number = json.dumps(message.get("id"))
            _, method, directory = self._requests.pop(number, (None, "", ""))
            self._busy_sessions.pop(number, None)
            result = message.get("result")
            if method in _SESSION_METHODS and isinstance(result, dict) and isinstance(result.get("sessionId"), str):
                self._directories.pop(result["sessionId"], None)
                self._directories[result["sessionId"]] = directory
        try:
            return self.handle_agent_message(message, line if is_plain else encode(message))
        except RecursionError:
            return []  # nested too deep to be checked

    @property
    def is_busy(self) -> bool:
        """True while the agent works on a prompt."""
        return bool(self._busy_sessions)

    def end_requests(self, why: str) -> Messages:
        """Return an error for each open request of the editor, because the agent has ended."""
        waiting, self._requests = self._requests, {}
        return [(EDITOR, _error_response(number, _INTERNAL_ERROR, why)) for number, _, _ in waiting.values()]

    def ask(self, number: int, lines: Sequence[str], options: Mapping[str, str]) -> Messages:
        """Return the request by which the editor asks the person our question; without a session, nobody can be asked.

        `options` are the possible answers, each with its title.
        """
        session = next(reversed(self._busy_sessions.values()), next(reversed(self._directories), ""))
        if not session:
            return [(ANSWER, encode({"question": number, "answer": None}))]
        # The token can't be guessed: else an agent could use it for its own question, and get ours answered by it.
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
        return [(EDITOR, encode(asked))]

    def settle(self, number: int) -> None:
        """Forget a question that was answered elsewhere; a later answer of the editor is ignored."""
        self._questions = {token: each for token, each in self._questions.items() if each[0] != number}

    # The two methods in which an agent in the hood and one outside differ.

    def handle_editor_message(self, _message: Json, line: bytes, /) -> Messages:
        """Return what to send for a request or notification from the editor."""
        return [(AGENT, line)]

    def handle_agent_message(self, _message: Json | None, line: bytes, /) -> Messages:
        """Return what to send for a line from the agent; the message is None if the line is not one."""
        return [(EDITOR, line)]


class InHood(Conversation):
    """The agent runs in the hood, in a project with these roots."""

    def __init__(self, roots: Sequence[str]) -> None:
        super().__init__()
        self._roots = tuple(roots)

    def handle_editor_message(self, message: Json, line: bytes, /) -> Messages:
        """Refuse a session in another directory, and don't offer the agent what the editor would do outside.

        In another directory, the person would not see the files that the agent changes.
        """
        params = message.get("params")
        if not isinstance(params, dict):
            return [(AGENT, line)]
        directory = params.get("cwd")
        if message["method"] in _SESSION_METHODS and "id" in message and isinstance(directory, str):
            if not is_in(os.path.realpath(directory), self._roots):
                where = f"{directory} is not in {self._roots[0]}, where this agent works"
                why = f"{where}: fumehood acp --project DIR -- AGENT"
                return [(EDITOR, _error_response(message["id"], _INVALID_PARAMS, why))]
        elif message["method"] == "initialize":
            offered = params.get("clientCapabilities")
            capabilities = (
                {key: value for key, value in offered.items() if key != "auth"} if isinstance(offered, dict) else {}
            )
            capabilities |= {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
            if isinstance(capabilities.get("_meta"), dict):
                capabilities["_meta"] = {
                    key: value for key, value in capabilities["_meta"].items() if not _is_about_login(key)
                }
            line = encode({**message, "params": {**params, "clientCapabilities": capabilities}})
        return [(AGENT, line)]

    def handle_agent_message(self, message: Json | None, line: bytes, /) -> Messages:
        """Refuse methods by which the editor would act, and remove logins that are commands."""
        if message is None:
            return []  # the editor might still understand it
        method = message.get("method")
        if "method" in message and (not isinstance(method, str) or method.startswith(_EDITOR_METHOD_STARTS)):
            if "id" not in message:
                return []
            why = f"{method} is not offered: this agent runs in the hood, and does that itself"
            return [(AGENT, _error_response(message["id"], _METHOD_NOT_FOUND, why))]
        changed = _without_login_commands(message)
        return [(EDITOR, line if changed == message else encode(changed))]


class WithHooks(Conversation):
    """The agent runs outside, with our hooks; `command` is how Fumehood is started."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self._command = tuple(command)

    def handle_agent_message(self, message: Json | None, line: bytes, /) -> Messages:
        """Rewrite a new terminal's command to run in the hood, as a run of its session; the editor shows it."""
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
        return [(EDITOR, encode({**message, "params": changed}))]


def session_name(session: str) -> str:
    """Return our own session name for a session of the protocol."""
    try:
        return checked_name(f"acp-{session}")
    except BadRequest:
        return f"acp-{hashlib.sha256(session.encode(errors='surrogatepass')).hexdigest()[:32]}"


def parse_message(line: bytes) -> tuple[Json, bool]:
    """Parse one message; also returns whether every reader reads these bytes in the same way.

    Readers differ if there are other line breaks in it, or two equal keys. A message is invalid if it has a decisive
    key in another case, because only some readers would recognise it.
    """
    is_plain = not any(each in line.rstrip(b"\r\n") for each in _LINE_BREAKS)

    def of(pairs: list[tuple[str, Any]]) -> Json:
        nonlocal is_plain
        table = dict(pairs)
        is_plain = is_plain and len(table) == len(pairs)
        _refuse_other_spellings(table, (_LOGIN_KEY,))
        return table

    try:
        message = json.loads(line.decode(), object_pairs_hook=of, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise NotAMessage(str(error)) from error
    if not isinstance(message, dict):
        raise NotAMessage("it is not a JSON object")
    _refuse_other_spellings(message, _DECISIVE_KEYS)
    return message, is_plain


def _refuse_other_spellings(table: Json, names: Sequence[str]) -> None:
    folded = {name.casefold() for name in names}
    if any(key not in names and key.casefold() in folded for key in table):
        raise NotAMessage("one of its keys differs from a known key only by upper and lower case")


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def encode(message: Json) -> bytes:
    """Encode a message in such a way that all readers read the same."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _error_response(number: Any, code: int, why: str) -> bytes:
    return encode({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": why}})


def _encode_answer(number: int, options: Sequence[str], result: object) -> bytes:
    """Encode the answer to our question: an option, a no if it was cancelled, None if the editor can't ask."""
    outcome = result.get("outcome") if isinstance(result, dict) else None
    answer: str | None = None
    if isinstance(outcome, dict):
        chosen = outcome.get("optionId") if outcome.get("outcome") == "selected" else ""
        answer = chosen if chosen in options else "deny_once"
    return encode({"question": number, "answer": answer})


def _is_about_login(key: str) -> bool:
    return "auth" in key.lower()


def _without_login_commands(value: Any) -> Any:
    """Return a message without the logins that are commands, at whatever depth they are listed."""

    def is_harmless(method: Any) -> bool:
        """Return True unless the login is a command that the editor would run, or something unknown."""
        extra = method.get("_meta") or {} if isinstance(method, dict) else None
        return isinstance(extra, dict) and method.get("type") != "terminal" and not any(map(_is_about_login, extra))

    if isinstance(value, list):
        return list(map(_without_login_commands, value))
    if not isinstance(value, dict):
        return value
    inner = {key: _without_login_commands(each) for key, each in value.items()}
    methods = inner.get(_LOGIN_KEY)
    if methods is not None:
        is_list = isinstance(methods, list)
        inner[_LOGIN_KEY] = [each for each in methods if is_harmless(each)] if is_list else []
    return inner


class Relay:
    """Relays messages between an editor and an agent; `questions` is the socket on which the agent's process asks.

    A thread listens to each of the three, so that one that waits for a slow reader does not hold up the others.
    """

    def __init__(
        self, conversation: Conversation, editor: tuple[int, int], agent: tuple[int, int], process: int,
        questions: socket.socket, is_busy: mmap.mmap,
    ) -> None:  # fmt: skip
        self._conversation = conversation
        self._conversation_lock = threading.Lock()  # about a message
        self._process = process
        self._is_busy = is_busy
        self._readers: dict[str, IO[bytes]] = {
            EDITOR: os.fdopen(editor[0], "rb"), AGENT: os.fdopen(agent[0], "rb"), ANSWER: questions.makefile("rb"),
        }  # fmt: skip
        self._writers: dict[str, io.RawIOBase] = {
            EDITOR: io.FileIO(editor[1], "wb"), AGENT: io.FileIO(agent[1], "wb"),
            ANSWER: questions.makefile("wb", buffering=0),
        }  # fmt: skip
        self._write_locks = {side: threading.Lock() for side in self._writers}
        self._failures: dict[str, Exception] = {}
        self._closed_sides = queue.SimpleQueue[str]()

    def relay(self) -> int:
        """Relay until the agent has ended; returns its exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._closed_sides.put(EDITOR))
        for side in self._readers:
            threading.Thread(target=self._listen, args=[side], name=f"fumehood-{side}", daemon=True).start()
        has_agent_ended = self._closed_sides.get() == AGENT
        # If the editor has gone, the agent gets some time to end by itself; its changes are then judged as usual.
        self._writers[AGENT].close()
        deadline = time.monotonic() + _AGENT_END_S
        while not has_agent_ended and (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                has_agent_ended = self._closed_sides.get(timeout=left) == AGENT
        why = str(self._failures.get(AGENT, ""))
        if why or not has_agent_ended:
            os.kill(self._process, _BUSY_AGENT_SIGNAL if why or self._conversation.is_busy else _IDLE_AGENT_SIGNAL)
        _, status = os.waitpid(self._process, 0)
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
        with self._conversation_lock:
            sent = self._conversation.end_requests(why or f"the agent has ended, with exit status {code}")
        self._send(sent)
        for side in self._failures.keys() - {AGENT}:
            raise self._failures[side]
        return code

    def _listen(self, side: str) -> None:
        try:
            while line := self._read_line(side):
                self._send(self._handle_line(side, line))
        except Exception as error:  # noqa: BLE001 - kept, and raised at the end by the main thread
            self._failures[side] = error
        if side != ANSWER:
            self._closed_sides.put(side)
        with suppress(OSError):
            while self._readers[side].read(_READ_SIZE):
                pass  # read on, or the writer would wait for us and never end

    def _read_line(self, side: str) -> bytes:
        line = self._readers[side].readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line of the {side} is longer than {_MAX_LINE >> 20} MiB")
        return line if line.endswith(b"\n") or not line else line + b"\n"

    def _handle_line(self, side: str, line: bytes) -> Messages:
        """Return what to send for a line; a line with a question comes from our own process, so it is valid."""
        conversation = self._conversation
        with self._conversation_lock:
            try:
                if side == EDITOR:
                    return conversation.receive_from_editor(line)
                if side == AGENT:
                    return conversation.receive_from_agent(line)
            except NotAMessage as error:
                sys.stderr.write(f"fumehood: the editor sent something that is not a message: {error}\n")
                return []
            finally:
                self._is_busy[0] = conversation.is_busy
            message = json.loads(line)
            if not message.get("settled"):
                return conversation.ask(message["question"], message["lines"], message["options"])
            conversation.settle(message["question"])
            return []

    def _send(self, sent: Messages) -> None:
        for side, data in sent:
            with self._write_locks[side]:
                try:
                    while data:
                        data = data[self._writers[side].write(data) :]  # noqa: PLW2901
                except (OSError, ValueError):
                    continue  # the reader is gone; the thread that listens to it finds that out


class EditorAsker:
    """Asks the person through the editor: sends one question at a time over a socket to the relaying process."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._turn = threading.Lock()
        self._count = 0
        self._unread = b""

    def put(self, asked: Asked) -> None:
        """Send the question, and wait for the answer in a thread."""
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
                self._send_question({"lines": list(question.lines), "options": options})
                while (answer := self._read_answer(closed)) is not None:
                    if answer.get("question") == self._count:  # it may be a late answer to an earlier question
                        asked.answer(answer["answer"])
                        return
                self._send_question({"settled": True})
            except OSError:
                asked.answer(None)  # the editor is gone

    def _read_answer(self, closed: int) -> dict[str, object] | None:
        """Return the next answer; None if the question is answered elsewhere."""
        poll = select.poll()
        for descriptor in (closed, self._channel):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            if closed in {descriptor for descriptor, _ in poll.poll()}:
                return None
            data = os.read(self._channel, _READ_SIZE)
            if not data:
                raise BrokenPipeError
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _send_question(self, message: dict[str, object]) -> None:
        os.write(self._channel, json.dumps({"question": self._count, **message}).encode() + b"\n")
