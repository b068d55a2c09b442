"""What becomes of each message between an editor and an agent: passed on as it is, changed, answered, or dropped.

An agent in the hood must not have the editor do what the hood forbids. The editor acts outside: it writes files and
runs commands when it is asked to (`fs/…`, `terminal/…`), and a login that an agent offers may be a command to run. So
these are not offered to such an agent, and refused if it asks. Whatever else it says is passed on byte for byte, unless
the editor could read the bytes as something else than we do; then it is written anew.

An agent outside, with our hooks, keeps all of that. Its terminals are rewritten to run in the hood, in the editor's
own terminal.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fumehood.core.masks import is_in
from fumehood.core.questions import INTRODUCTION
from fumehood.core.request import checked_name
from fumehood.core.value import Value
from fumehood.errors import BadRequest

Json = dict[str, Any]

EDITOR, AGENT, ANSWER = "editor", "agent", "answer"
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


class NotAMessage(Exception):
    """A line is not one message."""


class Sent(Value):
    """Bytes that go to the editor, to the agent, or, as the answer to a question of ours, to who asked it."""

    to: str
    data: bytes


class _Open(Value):
    """A question of ours that the editor shows: its number, and the answers it was given to choose from."""

    number: int
    options: tuple[str, ...]


class Conversation:
    """One agent's conversation with one editor, from its first message to its last."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[Any, str, str]] = {}  # the editor's, by id: the id, its method, its directory
        self._prompted: dict[str, str] = {}  # the sessions whose prompts are being worked on, by the request's id
        self._questions: dict[str, _Open] = {}
        self._last_session = ""

    # The two directions.

    def from_editor(self, line: bytes) -> list[Sent]:
        """Take a line of the editor's."""
        message = read(line)[0]
        method, number = message.get("method"), json.dumps(message.get("id"))
        if method is None:
            question = self._questions.pop(number, None)
            return [Sent(to=AGENT, data=line)] if question is None else [_answer(question, message)]
        if "id" in message:
            params = message.get("params")
            params = params if isinstance(params, dict) else {}
            refusal = self.refusal(str(method), params)
            if refusal:
                return [Sent(to=EDITOR, data=_error(message["id"], _BAD_PARAMS, refusal))]
            self._requests[number] = message["id"], str(method), str(params.get("cwd", ""))
            if method == "session/prompt":
                self._prompted[number] = str(params.get("sessionId", ""))
        return [Sent(to=AGENT, data=self.editors(message, line))]

    def from_agent(self, line: bytes) -> list[Sent]:
        """Take a line of the agent's."""
        try:
            message, is_plain = read(line)
        except NotAMessage:
            return self.unreadable(line)
        if "method" not in message:
            number = json.dumps(message.get("id"))
            _, method, directory = self._requests.pop(number, (None, "", ""))
            self._prompted.pop(number, None)
            result = message.get("result")
            if method in _BEGINNING and isinstance(result, dict) and isinstance(result.get("sessionId"), str):
                self._last_session = result["sessionId"]
                self.began(self._last_session, directory)
        try:
            return self.agents(message, line if is_plain else written(message))
        except RecursionError:
            return []  # nested deeper than we can look

    @property
    def is_busy(self) -> bool:
        """True while the agent works on a prompt."""
        return bool(self._prompted)

    def ended(self, why: str) -> list[Sent]:
        """Return what the editor is told when the agent is gone: each of its requests has failed."""
        waiting, self._requests = self._requests, {}
        return [Sent(to=EDITOR, data=_error(number, _INTERNAL, why)) for number, _, _ in waiting.values()]

    # Questions of ours, which the editor puts to the person.

    def ask(self, number: int, lines: Sequence[str], options: Mapping[str, str]) -> list[Sent]:
        """Put a question, whose options have titles; without a session to ask in, nobody is there."""
        session = next(reversed(self._prompted.values()), self._last_session)
        if not session:
            return [Sent(to=ANSWER, data=written({"question": number, "answer": None}))]
        # Nobody can guess it: else an agent could give a question of its own the same, and have ours answered by that.
        token = f"fumehood-{secrets.token_hex(16)}"
        self._questions[json.dumps(token)] = _Open(number=number, options=tuple(options))
        text = "\n".join([INTRODUCTION, "", *(f"    {line}" for line in lines)])
        call = {
            "toolCallId": token, "title": lines[0] if lines else "Fumehood asks you", "kind": "other",
            "status": "pending", "content": [{"type": "content", "content": {"type": "text", "text": text}}],
        }  # fmt: skip
        choices = [{"optionId": each, "name": title, "kind": _KINDS[each]} for each, title in options.items()]
        params = {"sessionId": session, "toolCall": call, "options": choices}
        asked = {"jsonrpc": "2.0", "id": token, "method": "session/request_permission", "params": params}
        return [Sent(to=EDITOR, data=written(asked))]

    def settle(self, number: int) -> None:
        """Forget a question that was settled otherwise; an answer that comes yet counts for nothing."""
        self._questions = {token: each for token, each in self._questions.items() if each.number != number}

    # What differs between an agent in the hood and one outside.

    def refusal(self, _method: str, _params: Json, /) -> str:
        """Return why a request of the editor's can't be served, if so."""
        return ""

    def editors(self, _message: Json, line: bytes, /) -> bytes:
        """Return what the agent gets of a message of the editor's."""
        return line

    def unreadable(self, line: bytes, /) -> list[Sent]:
        """Return what becomes of a line of the agent's that is no message."""
        return [Sent(to=EDITOR, data=line)]

    def agents(self, _message: Json, line: bytes, /) -> list[Sent]:
        """Return what becomes of a message of the agent's."""
        return [Sent(to=EDITOR, data=line)]

    def began(self, session: str, directory: str) -> None:
        """Take note of a session."""


class InHood(Conversation):
    """The agent runs in the hood, in a project with these roots."""

    def __init__(self, roots: Sequence[str]) -> None:
        super().__init__()
        self._roots = tuple(roots)

    def refusal(self, method: str, params: Json, /) -> str:
        """Refuse a session elsewhere: what the agent did there would not be what the person sees."""
        directory = params.get("cwd")
        if method not in _BEGINNING or not isinstance(directory, str):
            return ""
        if is_in(os.path.realpath(directory), self._roots):
            return ""
        return f"{directory} is not in {self._roots[0]}, where this agent works: fumehood acp --project DIR -- AGENT"

    def editors(self, message: Json, line: bytes, /) -> bytes:
        """Offer nothing of what the editor would do for the agent outside."""
        if message["method"] != "initialize" or not isinstance(message.get("params"), dict):
            return line
        offered = message["params"].get("clientCapabilities")
        kept = {key: value for key, value in offered.items() if key != "auth"} if isinstance(offered, dict) else {}
        kept |= {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        if isinstance(kept.get("_meta"), dict):
            kept["_meta"] = {key: value for key, value in kept["_meta"].items() if not _is_login(key)}
        return written({**message, "params": {**message["params"], "clientCapabilities": kept}})

    def unreadable(self, _line: bytes, /) -> list[Sent]:
        """Drop it: the editor might read it nevertheless."""
        return []

    def agents(self, message: Json, line: bytes, /) -> list[Sent]:
        """Refuse what would have the editor act, and take out of a list of logins those that are commands."""
        method = message.get("method")
        if "method" in message and (not isinstance(method, str) or method.startswith(_ACTING)):
            if "id" not in message:
                return []
            why = f"{method} is not offered: this agent runs in the hood, and does that itself"
            return [Sent(to=AGENT, data=_error(message["id"], _NO_METHOD, why))]
        changed = _without_commands(message)
        return [Sent(to=EDITOR, data=line if changed == message else written(changed))]


class WithHooks(Conversation):
    """The agent runs outside, with our hooks; `command` is how Fumehood is started."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self._command = tuple(command)
        self._directories: dict[str, str] = {}

    def began(self, session: str, directory: str) -> None:
        """Keep the directory that a session works in."""
        self._directories[session] = directory

    def agents(self, message: Json, line: bytes, /) -> list[Sent]:
        """Have what is to run in a terminal run in the hood, as a run of its session; the editor shows it as ever."""
        params = message.get("params")
        if message.get("method") != "terminal/create" or not isinstance(params, dict):
            return [Sent(to=EDITOR, data=line)]
        session, words = str(params.get("sessionId", "")), params.get("args") or []
        directory = self._directories.get(session, "")
        where = params.get("cwd") or directory
        arguments = [*self._command[1:], "run", "--brief", "--session", session_name(session)]
        arguments += ["--begun-in", directory] if directory else []
        arguments += ["--cwd", where] if isinstance(where, str) and where else []
        changed = {**params, "command": self._command[0], "args": [*arguments, "--", params.get("command"), *words]}
        return [Sent(to=EDITOR, data=written({**message, "params": changed}))]


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


def _answer(question: _Open, message: Json) -> Sent:
    """Take the editor's answer: one of the options, a no where it was cancelled, nobody where it can't ask."""
    result = message.get("result")
    outcome = result.get("outcome") if isinstance(result, dict) else None
    answer: str | None = None
    if isinstance(outcome, dict):
        chosen = outcome.get("optionId") if outcome.get("outcome") == "selected" else ""
        answer = chosen if chosen in question.options else "deny_once"
    return Sent(to=ANSWER, data=written({"question": question.number, "answer": answer}))


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
