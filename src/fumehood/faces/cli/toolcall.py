"""What an agent's tool call would run, told by the shape of its input and by its name.

A tool that is understood has its command rewritten. One that would run something in a way that is not understood is
refused. What can't run anything is let alone.
"""

from __future__ import annotations

import re

from fumehood.core.request import quoted
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

CLAUDE, CODEX, GEMINI = "claude", "codex", "gemini"
SERVER = "fumehood"
# The tools of our own MCP server: what they run, they run in the hood.
OWN_TOOLS = frozenset({
    "run_command", "start_command", "poll_command", "stop_command", "changes", "diff", "read_output", "undo", "redo",
    "apply", "discard",
})  # fmt: skip

# Tools whose command a shell runs, and those of them that take it as a list of words.
_SHELLS = frozenset({
    "Bash", "Monitor", "run_shell_command", "shell", "shell_command", "local_shell", "exec_command", "unified_exec",
    "Shell",
})  # fmt: skip
_TAKE_WORDS = frozenset({"shell", "local_shell"})
_COMMANDS = ("command", "cmd")
_SHELL_NAMES = tuple(f"{folder}{name}" for folder in ("", "/bin/", "/usr/bin/") for name in ("sh", "bash", "zsh"))

# What clients' own tools carry that looks like a command and is none: a patch; whatever a person's program asked for.
_HARMLESS = {CLAUDE: frozenset({"StructuredOutput"}), CODEX: frozenset({"apply_patch"})}
_INSTEAD = {CLAUDE: "Bash", CODEX: "exec_command", GEMINI: "run_shell_command"}

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
_LONGEST_NAME = 80


class Command(Value):
    """The command in a tool's input: its field, its text, and what a shell in it reads, where it is a list."""

    field: str
    text: str
    is_list: bool = False
    script: str = ""

    def replaced(self, tool_input: dict[str, Any], line: str) -> dict[str, Any]:
        """Return the tool's input with another line in the command's place, every other field as it was."""
        # The shell too: the list may have named a file of the project.
        return {**tool_input, self.field: ["/bin/sh", "-c", line] if self.is_list else line}


def command_of(call: dict[str, Any], client: str, allowed: Sequence[str] = ()) -> Command | None:
    """Return the command that a tool call would run, None where it runs nothing, or refuse what is not understood.

    `allowed` are tools that a person lets run outside of the hood: names, or their beginnings with a `*`.
    """
    name, tool_input = call["tool_name"], call.get("tool_input")
    if name in _SHELLS:
        return _understood(name, tool_input)
    if name in _HARMLESS.get(client, ()) or _is_ours(call, client):
        return None
    if any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in allowed):
        return None
    why = _why_it_runs(name, tool_input)
    if why:
        shown = ascii(name)[1:-1][:_LONGEST_NAME]
        raise BadRequest(
            f"the tool {shown} would run something outside of the hood: {why}",
            hint=f"use {_INSTEAD[client]} instead; a person can let this tool run by adding --allow-tool {shown}"
            " to the hook's command in the client's settings",
        )
    return None


def _understood(name: str, tool_input: object) -> Command:
    """Return the command of a tool that we know, or say why it can't be rewritten."""
    given = tool_input if isinstance(tool_input, dict) else {}
    fields = [field for field in _COMMANDS if given.get(field)]
    if not fields:
        raise BadRequest("there is no command to run", hint="tool_input.command must be a string")
    field = fields[0]
    # Another shell, or variables that a shell acts on, would count before our line does.
    for key, value in given.items():
        is_around = not _SURROUNDINGS.isdisjoint(_words(key)) and _has_text(value)
        if key != field and (is_around or any(_run_fields({key: value}))):
            raise BadRequest(f"{ascii(key)[:_LONGEST_NAME]} can't be rewritten to run in the hood", hint="leave it out")
    command = given[field]
    if isinstance(command, str) and command.strip():
        return Command(field=field, text=command)
    is_list = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if name not in _TAKE_WORDS or not is_list or not command[0].strip():
        raise BadRequest("there is no command to run", hint="tool_input.command must be a string")
    is_script = len(command) == 3 and command[0] in _SHELL_NAMES and command[1] in ("-c", "-lc")
    text = " ".join(map(quoted, command))
    return Command(field=field, text=text, is_list=True, script=command[2] if is_script else "")


def _is_ours(call: dict[str, Any], client: str) -> bool:
    """Tell whether this is a tool of our own server, in the spelling of each client."""
    name, context = call["tool_name"], call.get("mcp_context")
    if client == GEMINI and isinstance(context, dict):
        return context.get("server_name") == SERVER and context.get("tool_name") in OWN_TOOLS
    starts = (f"mcp_{SERVER}_", f"{SERVER}__") if client == GEMINI else (f"mcp__{SERVER}__",)
    return any(name.startswith(start) and name[len(start) :] in OWN_TOOLS for start in starts)


def _why_it_runs(name: str, tool_input: object) -> str:
    """Say what tells that a tool would run something; empty where nothing does."""
    if isinstance(tool_input, str) and tool_input.strip():
        return "its input is plain text"
    field = next(_run_fields(tool_input), None)
    if field is not None:
        return f"its input has {ascii(field)[:_LONGEST_NAME]}"
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
