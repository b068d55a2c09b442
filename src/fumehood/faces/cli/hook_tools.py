"""What a tool call would run: the command of a shell, nothing, or something that must not run outside of the hood."""

from __future__ import annotations

import re

from fumehood.core.request import quoted
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.cli.hook_clients import is_own_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.faces.cli.hook_clients import ToolCall

_COMMANDS = ("command", "cmd")
_SHELL_NAMES = tuple(f"{folder}{name}" for folder in ("", "/bin/", "/usr/bin/") for name in ("sh", "bash", "zsh"))

# What a field is called that holds what is run, and what such a field's name ends in where it is only about that.
_RUN_FIELDS = frozenset({
    "command", "commands", "cmd", "cmds", "cmdline", "commandline", "argv", "script", "scripts", "shell", "bash",
    "powershell", "exec", "executable", "program", "eval",
})  # fmt: skip
_ABOUT = frozenset({"id", "ids", "description", "timeout", "type", "status", "output", "result", "count"})
_SURROUNDINGS = frozenset({"env", "environment", "interpreter"})
_LANGUAGES = frozenset({"python", "py", "javascript", "js", "node", "typescript", "ruby", "r", "source", "shell"})
_OF_CODE = frozenset({"block", "blocks", "snippet", "text", "string", "to", "content"})
# What a tool is called that runs something, unless its name begins or ends with what says that it only looks.
_RUN_NAMES = frozenset({"shell", "bash", "zsh", "powershell", "pwsh", "cmd", "terminal", "repl", "exec", "subprocess"})
_RUN_VERBS = frozenset({"run", "execute", "eval", "evaluate", "spawn", "launch"})
_LOOK_VERBS = frozenset({"get", "read", "list", "show", "view", "kill", "stop", "close", "wait", "poll"})
_LOOK_ENDS = frozenset({"output", "status", "history", "log", "logs"})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LONGEST_SHOWN = 80


class Command(Value):
    """The command in a tool's input: its field, its text, and what a shell in it reads, where it is a list."""

    field: str
    text: str
    is_list: bool = False
    script: str = ""


def refuse_what_runs(call: ToolCall, allowed: Sequence[str]) -> None:
    """Refuse a tool that would run something in a way that is not understood, by its name and its input's shape.

    `allowed` are tools that a person lets run outside of the hood: names, or their beginnings with a `*`.
    """
    name, client = call.tool, call.client
    if name in client.harmless or is_own_tool(call):
        return
    if any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in allowed):
        return
    why = _why_it_runs(name, call.input)
    if why:
        shown = ascii(name)[1:-1][:_LONGEST_SHOWN]
        raise BadRequest(
            f"the tool {shown} would run something outside of the hood: {why}",
            hint=f"use {client.preferred_shell} instead; a person can let this tool run by adding --allow-tool {shown}"
            " to the hook's command in the client's settings",
        )


def command_of(call: ToolCall) -> Command:
    """Return the command that a shell of the client's would run, or say why it can't be rewritten."""
    fields = call.input if isinstance(call.input, dict) else {}
    field = next((field for field in _COMMANDS if fields.get(field)), None)
    if field is None:
        raise BadRequest("there is no command to run", hint="tool_input.command must be a string")
    # Another shell, or variables that a shell acts on, would count before our line does.
    for key, value in fields.items():
        is_around = not _SURROUNDINGS.isdisjoint(_words(key)) and _has_text(value)
        if key != field and (is_around or any(_run_fields({key: value}))):
            shown = ascii(key)[:_LONGEST_SHOWN]
            raise BadRequest(f"{shown} can't be rewritten to run in the hood", hint="leave it out")
    command = fields[field]
    if isinstance(command, str) and command.strip():
        return Command(field=field, text=command)
    is_list = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if call.tool not in call.client.take_words or not is_list or not command[0].strip():
        raise BadRequest("there is no command to run", hint="tool_input.command must be a string")
    is_script = len(command) == 3 and command[0] in _SHELL_NAMES and command[1] in ("-c", "-lc")
    text = " ".join(map(quoted, command))
    return Command(field=field, text=text, is_list=True, script=command[2] if is_script else "")


def _why_it_runs(name: str, tool_input: object) -> str:
    """Say what tells that a tool would run something; empty where nothing does."""
    if isinstance(tool_input, str) and tool_input.strip():
        return "its input is plain text"
    field = next(_run_fields(tool_input), None)
    if field is not None:
        return f"its input has {ascii(field)[:_LONGEST_SHOWN]}"
    words = _words(name.rpartition("__")[2])
    only_looks = bool(words) and (words[0] in _LOOK_VERBS or words[-1] in _LOOK_ENDS)
    if words and not only_looks and (words[0] in _RUN_VERBS or not _RUN_NAMES.isdisjoint(words)):
        return "its name says so"
    return ""


def _run_fields(value: object) -> Iterator[str]:
    """Yield the fields, at any depth, that hold what is run."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _is_run_field(key) and _has_text(inner):
                yield key
            yield from _run_fields(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _run_fields(inner)


def _is_run_field(key: str) -> bool:
    words = _words(key)
    if not words or words[-1] in _ABOUT:
        return False
    if not _RUN_FIELDS.isdisjoint(words):
        return True
    if words[0] == "code":
        return len(words) == 1 or words[1] in _OF_CODE
    return words[-1] == "code" and words[-2] in _LANGUAGES


def _has_text(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_text, value.values()))
    if isinstance(value, list):
        return any(map(_has_text, value))
    return isinstance(value, str) and bool(value.strip())


def _words(name: str) -> list[str]:
    """Return the words of a name, however it is written: shellCommand, shell_command, SHELL-COMMAND."""
    return [word.lower() for word in _WORD.findall(name)]
