"""What each client's hooks look like: how a tool call is read, which tools are shells and edits, how it is answered.

What a tool call would run: the command of a shell, nothing, or something that must not run outside of the hood. And
what an edit would do to which files.
"""

from __future__ import annotations

import os
import re

from fumehood.core.request import OWN_TOOLS, shell_quote
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from fumehood.core.edits import Becomes, Planned

    Answer = dict[str, Any]


SERVER = "fumehood"
ALLOW, ASK, DENY = "allow", "ask", "deny"
_CLOSEST = 4  # processes above the hook: shells, the client, and what npm puts around it
_NONE: frozenset[str] = frozenset()


class Client(Value):
    """One client's format."""

    name: str
    # The events before and after a tool, a failed one too. Where a call names none, these fields tell that it ended.
    before: str
    after: tuple[str, ...]
    result_fields: tuple[str, ...] = ()
    # What only this client's calls have, where another one's events have the same names.
    told_by: str = ""
    # What the call calls its parts; "" is what it does not tell.
    event_field: str = "hook_event_name"
    tool_field: str = "tool_name"
    input_field: str = "tool_input"
    session_field: str = "session_id"
    parent_field: str = ""  # the session that a subagent belongs to
    id_field: str = "tool_use_id"
    directory_field: str = "cwd"

    # The shell that a model is told to use, all tools whose command a shell runs, and those that take it as a list.
    preferred_shell: str
    shells: frozenset[str]
    take_words: frozenset[str] = _NONE
    # Tools that write files, with the field that names the file, or that holds a patch which names several.
    edits: Mapping[str, str] = {}
    patches: Mapping[str, str] = {}
    # Shells of which it makes an edit where their line gives a patch to `apply_patch`.
    patching_shells: frozenset[str] = _NONE
    # Tools with something that looks like a command and is none; what the names of our own server's tools begin with.
    harmless: frozenset[str] = _NONE
    own_tool_starts: tuple[str, ...] = (f"mcp__{SERVER}__",)

    # The call with another input: gets that, ALLOW or ASK, and words for the model ("" where `tells_before` is False).
    rewritten: Callable[[Answer, str, str], Answer]
    # No call at all, or none before a person agrees: gets DENY or ASK (where that is honoured), and the reason.
    refused: Callable[[str, str], Answer]
    nothing: Answer | None = None
    honours_ask: bool = False
    tells_before: bool = False

    # The variable with the directory that the client itself works in, whatever directory a command is for.
    project_variable: str = ""
    # The option by which a person gives it more directories, and the field of a call that lists all there are.
    directory_option: str = ""
    directories_field: str = ""
    # Seconds after which it goes on without a command, and looks at it again later; None where it waits for its end.
    waits_s: float | None = None
    # Whether its shell stays where a command left it, unless that runs in the background.
    keeps_directory: bool = False
    # Where it keeps the functions and aliases of the person's shell, if it does.
    shell_settings: Callable[[str], str] | None = None


class ToolCall(Value):
    """One tool call, the same for every client; `raw` is what the client wrote."""

    client: Client
    is_after: bool
    tool: str
    input: object
    session: object
    call_id: object
    directory: object
    raw: dict[str, Any]


def read_call(raw: object, name: str) -> ToolCall:
    """Return the tool call that a client wrote; `name` is the client, "" where its call must tell that."""
    if not isinstance(raw, dict):
        raise BadRequest("the hook's input names no tool", hint="the command was not run")

    def is_of(client: Client) -> bool:
        if not client.event_field:
            return client.tool_field in raw
        event = raw.get(client.event_field)
        return event in (client.before, *client.after) and (not client.told_by or client.told_by in raw)

    client = CLIENTS[name] if name else next(filter(is_of, CLIENTS.values()), None)
    event = raw.get(client.event_field if client else "hook_event_name")
    if client is None:
        said = "the hook's input names no event" if event is None else f"the hook does not know the event {event!r}"
        raise BadRequest(said, hint="--client says whose call it is")
    if client.event_field and event not in (client.before, *client.after):
        raise BadRequest(f"{client.name} has no such event: {event}", hint="fumehood setup writes the right one")
    tool = raw.get(client.tool_field)
    if not isinstance(tool, str):
        raise BadRequest("the hook's input names no tool", hint="the command was not run")
    is_after = event in client.after if client.event_field else not raw.keys().isdisjoint(client.result_fields)
    return ToolCall(
        client=client, is_after=is_after, tool=tool, input=raw.get(client.input_field),
        session=raw.get(client.parent_field) or raw.get(client.session_field), call_id=raw.get(client.id_field),
        directory=raw.get(client.directory_field), raw=raw,
    )  # fmt: skip


def is_own_tool(call: ToolCall) -> bool:
    """Return True for a tool of our own server, in the client's spelling; a `[[tool]]` of the person's is one too."""
    context = call.raw.get("mcp_context")
    if isinstance(context, dict):
        names = [context.get("tool_name")] if context.get("server_name") == SERVER else []
    else:
        names = [call.tool[len(start) :] for start in call.client.own_tool_starts if call.tool.startswith(start)]
    if any(name in OWN_TOOLS for name in names):
        return True
    if not names:
        return False
    from fumehood.store.config import load
    from fumehood.store.places import places

    templates = {each["name"] for scope in load(places()).values() for each in scope.get("tools", ())}
    return not templates.isdisjoint(names)


def is_background(call: ToolCall) -> bool:
    """Return True for a command that the client does not wait for."""
    fields = call.input if isinstance(call.input, dict) else {}
    is_asked = fields.get("run_in_background") or fields.get("is_background") or fields.get("mode") == "async"
    return call.tool == "Monitor" or bool(is_asked)


def added_directories(call: ToolCall, begun_in: str) -> list[str]:
    """Return the directories that a person gave the client besides the one it works in, as far as it tells them."""
    client = call.client
    listed = call.raw.get(client.directories_field)
    directories = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    if client.directory_option:
        directories += _from_command_line(client.directory_option)
    paths = (os.path.normpath(os.path.join(begun_in, each)) for each in directories if each)
    return [path for path in dict.fromkeys(paths) if path != begun_in and os.path.isdir(path)]


def _from_command_line(option: str) -> list[str]:
    """Return the values of an option of the program that started this hook, by way of a shell or two."""
    process = os.getppid()
    for _ in range(_CLOSEST):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = [os.fsdecode(word) for word in file.read().split(b"\0")]
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            return []  # gone, or not ours to look at
        values: list[str] = []
        is_value = False
        for word in words:
            name, _, value = word.partition("=") if word.startswith("-") else ("", "", word)
            is_value = name == option if name else is_value
            # Gemini CLI takes several with commas between them; what is not a directory does not count.
            values += [value, *value.split(",")] if is_value else []
        if values:
            return values
    return []


def _specific(event: str, **fields: Any) -> Answer:
    return {"hookSpecificOutput": {"hookEventName": event, **fields}}


_CLAUDE = Client(
    name="claude", before="PreToolUse", after=("PostToolUse", "PostToolUseFailure"),
    preferred_shell="Bash", shells=frozenset({"Bash", "Monitor"}),
    edits={"Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path"},
    harmless=frozenset({"StructuredOutput"}),  # whatever a person's program asked for
    rewritten=lambda tool_input, decision, words: _specific(
        "PreToolUse", permissionDecision=decision, updatedInput=tool_input, additionalContext=words,
        permissionDecisionReason="runs in Fumehood: isolated, captured, undoable",
    ),
    refused=lambda decision, reason: _specific(
        "PreToolUse", permissionDecision=decision, permissionDecisionReason=reason
    ),
    honours_ask=True, tells_before=True,
    project_variable="CLAUDE_PROJECT_DIR", directory_option="--add-dir",
    keeps_directory=True,
    # The newest is looked for when the command starts: for a session's first one there is none yet.
    shell_settings=lambda shell: (
        f"{os.environ.get('CLAUDE_CONFIG_DIR') or os.path.expanduser('~/.claude')}/shell-snapshots/snapshot-{shell}-*"
    ),
)  # fmt: skip

# A hook that asks counts as failed there, and the command runs.
_CODEX = Client(
    name="codex", before="PreToolUse", after=("PostToolUse",), told_by="turn_id",
    preferred_shell="exec_command",
    shells=frozenset({"Bash", "shell", "shell_command", "local_shell", "exec_command", "unified_exec"}),
    take_words=frozenset({"shell", "local_shell"}),
    patches={"apply_patch": "command"}, patching_shells=frozenset({"Bash"}),
    rewritten=lambda tool_input, decision, words: _specific(
        "PreToolUse", permissionDecision=decision, updatedInput=tool_input, additionalContext=words
    ),
    refused=_CLAUDE.refused, tells_before=True, waits_s=10.0, directory_option="--add-dir",
)  # fmt: skip

# It never comes back from a question when nobody is there, and passes nothing on before a tool.
_GEMINI = Client(
    name="gemini", before="BeforeTool", after=("AfterTool",), id_field="",
    preferred_shell="run_shell_command", shells=frozenset({"run_shell_command"}),
    edits={"write_file": "file_path", "replace": "file_path"},
    own_tool_starts=(f"mcp_{SERVER}_", f"{SERVER}__"),
    rewritten=lambda tool_input, _decision, _words: _specific("BeforeTool", tool_input=tool_input),
    refused=lambda decision, reason: {"decision": decision, "reason": reason},
    directory_option="--include-directories",
)  # fmt: skip

_COPILOT = Client(
    name="copilot", before="preToolUse", after=("postToolUse", "postToolUseFailure"),
    event_field="", result_fields=("toolResult", "error"),
    tool_field="toolName", input_field="toolArgs", session_field="sessionId", parent_field="parentAgentId", id_field="",
    preferred_shell="bash", shells=frozenset({"bash"}),
    edits={"create": "path", "edit": "path"}, patches={"apply_patch": "input"},
    own_tool_starts=(f"{SERVER}-",),
    rewritten=lambda tool_input, decision, words: {
        "permissionDecision": decision, "modifiedArgs": tool_input, "additionalContext": words,
    },
    refused=lambda decision, reason: {"permissionDecision": decision, "permissionDecisionReason": reason},
    honours_ask=True, tells_before=True, project_variable="COPILOT_PROJECT_DIR", directory_option="--add-dir",
    waits_s=30.0,
)  # fmt: skip

# Through the plugin that `fumehood setup opencode` writes: both sides of this format are ours.
_OPENCODE = Client(
    name="opencode", before="tool.execute.before", after=("tool.execute.after",),
    preferred_shell="bash", shells=frozenset({"bash"}),
    edits={"write": "filePath", "edit": "filePath", "multiedit": "filePath"}, patches={"apply_patch": "patchText"},
    own_tool_starts=(f"{SERVER}_",), nothing={},
    rewritten=lambda tool_input, _decision, _words: {"tool_input": tool_input},
    refused=lambda _decision, reason: {"deny": reason},
)  # fmt: skip

# By its documentation; not tried with the client itself. The names of other servers' tools do not tell the server.
_CURSOR = Client(
    name="cursor", before="preToolUse", after=("postToolUse", "postToolUseFailure"), session_field="conversation_id",
    preferred_shell="Shell", shells=frozenset({"Shell"}),
    edits={"Write": "path", "StrReplace": "path", "Edit": "path", "Delete": "path"},
    own_tool_starts=(), nothing={}, project_variable="CURSOR_PROJECT_DIR", directories_field="workspace_roots",
    rewritten=lambda tool_input, decision, _words: {"permission": decision, "updated_input": tool_input},
    refused=lambda decision, reason: {"permission": decision, "user_message": reason, "agent_message": reason},
)  # fmt: skip

# Where nobody says which client it is, the first whose call it can be.
CLIENTS = {each.name: each for each in (_CODEX, _CLAUDE, _GEMINI, _COPILOT, _OPENCODE, _CURSOR)}


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
    words = _words(name.rpartition("__")[2])
    only_looks = bool(words) and (words[0] in _LOOK_VERBS or words[-1] in _LOOK_ENDS)
    field, why = next(_run_fields(call.input), None), ""
    if isinstance(call.input, str) and call.input.strip():
        why = "its input is plain text"
    elif field is not None:
        why = f"its input has {ascii(field)[:_LONGEST_SHOWN]}"
    elif words and not only_looks and (words[0] in _RUN_VERBS or not _RUN_NAMES.isdisjoint(words)):
        why = "its name says so"
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
    field = next((field for field in ("command", "cmd") if fields.get(field)), None)
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
    text = " ".join(map(shell_quote, command))
    return Command(field=field, text=text, is_list=True, script=command[2] if is_script else "")


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


# What the fields of the clients' tools are called that hold a whole file, or a piece, what it becomes, and where.
_WHOLE = ("content", "file_text", "contents")
_PIECES = (("old_string", "new_string"), ("old_str", "new_str"), ("oldString", "newString"))
_EVERYWHERE = ("replace_all", "replaceAll", "allow_multiple")


def shell_patch(call: ToolCall) -> tuple[list[Planned], str] | None:
    """Return what a shell line does that the client takes for a patch, and the directory it is for; None: a command."""
    from fumehood.core.edits import patch_in, patched

    command = command_of(call)
    patch, directory = (None if command.is_list else patch_in(command.text)) or ("", "")
    planned = patched(patch)
    return None if planned is None else (planned, directory)


def planned_by(call: ToolCall) -> list[Planned]:
    """Return what an edit would do to which files; raises BadRequest where that can't be told."""
    from fumehood.core.edits import Planned, patched

    fields = call.input if isinstance(call.input, dict) else {}
    if call.tool in call.client.patches:
        text = call.input if isinstance(call.input, str) else fields.get(call.client.patches[call.tool])
        planned = patched(text) if isinstance(text, str) else None
        if planned is None:
            raise BadRequest("the patch is not understood", hint="write it as *** Begin Patch … *** End Patch")
        return planned
    path = fields.get(call.client.edits[call.tool])
    # A client may take the blanks away, and mean another file.
    if not isinstance(path, str) or not path or path != path.strip() or "\0" in path:
        raise BadRequest("the edit names no file", hint="give the whole path of one")
    return [Planned(path=path, becomes=_becomes(fields), is_removed=call.tool == "Delete")]


def _becomes(fields: dict[str, object]) -> Becomes | None:
    """Tell what a file will hold by the fields of an edit; None where they say it in no way, or in two."""
    from fumehood.core.edits import replaced, written

    def pieces(table: dict[str, object]) -> list[Becomes]:
        pairs = ((table.get(old), table.get(new)) for old, new in _PIECES)
        all_of_them = any(table.get(name) for name in _EVERYWHERE)
        return [
            replaced(old, new, everywhere=all_of_them)
            for old, new in pairs if isinstance(old, str) and isinstance(new, str)
        ]  # fmt: skip

    ways: list[Becomes] = [written(text) for name in _WHOLE if isinstance(text := fields.get(name), str)]
    ways += pieces(fields)
    if isinstance(edit_list := fields.get("edits"), list):
        edits = [pieces(each) if isinstance(each, dict) else [] for each in edit_list]

        def in_turn(content: bytes | None) -> bytes | None:
            """Make each edit in what the one before left."""
            for number, changes in enumerate(edits):
                content = None if len(changes) != 1 or (number and content is None) else changes[0](content)
            return content

        ways.append(in_turn)
    return ways[0] if len(ways) == 1 else None
