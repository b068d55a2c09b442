"""The hook formats of the clients: how a tool call is read and answered, and which tools are shells or edits.

Also what a tool call does: it runs the command of a shell, it edits files, it runs something in another way (which is
refused), or it runs nothing.
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

    from fumehood.core.edits import MakeContent, PlannedEdit

    Answer = dict[str, Any]


SERVER = "fumehood"
ALLOW, ASK, DENY = "allow", "ask", "deny"
_MAX_ANCESTORS = 4  # processes above the hook that are searched for the client: there are shells and npm in between
_NONE: frozenset[str] = frozenset()


class Client(Value):
    """The hook format of one client."""

    name: str
    # The names of the events before and after a tool call. If a call names no event, one of `result_fields` in it means
    # that the tool has ended.
    before: str
    after: tuple[str, ...]
    result_fields: tuple[str, ...] = ()
    # A field that only this client's calls have, to tell it from another client with the same event names.
    own_field: str = ""
    # The names of the fields of a call; "" if the client does not send one.
    event_field: str = "hook_event_name"
    tool_field: str = "tool_name"
    input_field: str = "tool_input"
    session_field: str = "session_id"
    parent_field: str = ""  # the session that a subagent belongs to
    id_field: str = "tool_use_id"
    directory_field: str = "cwd"

    # The shell that we advise a model to use, all tools that are shells, and the shells that take a list of words.
    preferred_shell: str
    shells: frozenset[str]
    list_shells: frozenset[str] = _NONE
    # Tools that write files, with the field that names the file, or with the field that holds a patch.
    edits: Mapping[str, str] = {}
    patches: Mapping[str, str] = {}
    # Shells whose command the client turns into an edit if it passes a patch to `apply_patch`.
    patching_shells: frozenset[str] = _NONE
    # Tools whose input looks like a command but is none.
    harmless: frozenset[str] = _NONE
    # How the names of our own MCP server's tools begin in this client.
    own_tool_starts: tuple[str, ...] = (f"mcp__{SERVER}__",)

    # Makes the answer that replaces the input, from the new input, ALLOW or ASK, and a text for the model ("" if
    # `can_add_context` is False).
    rewrite_answer: Callable[[Answer, str, str], Answer]
    # Makes the answer that forbids the call (DENY), or has the person asked first (ASK, if the client honours it), with
    # the reason.
    refuse_answer: Callable[[str, str], Answer]
    no_answer: Answer | None = None  # leaves the call as it is
    # The values of the call's `permission_mode` in which the client puts ASK to a person; None if it sends no mode.
    asking_modes: frozenset[str | None] = frozenset()
    can_add_context: bool = False

    # The environment variable with the directory that the client itself works in; the command's own may be another one.
    project_variable: str = ""
    # The client's option for more directories, and the field of a call that lists all directories.
    directory_option: str = ""
    directories_field: str = ""
    # Seconds after which the client stops waiting for a command and looks at it again later; None if it always waits.
    waits_s: float | None = None
    # True if the next command starts in the directory where the last one ended.
    keeps_directory: bool = False
    # Returns the file in which the client keeps the functions and aliases of the person's shell.
    shell_settings: Callable[[str], str] | None = None


class ToolCall(Value):
    """One tool call in a form that is the same for every client; `raw` is the client's own form."""

    client: Client
    is_after: bool
    tool: str
    input: object
    session: object
    call_id: object
    directory: object
    raw: dict[str, Any]


def read_call(raw: object, name: str) -> ToolCall:
    """Read the tool call that a client sent; `name` is the client, or "" to find it out by the call."""
    if not isinstance(raw, dict):
        raise BadRequest("the hook's input names no tool", hint="the command was not run")

    def is_of(client: Client) -> bool:
        if not client.event_field:
            return client.tool_field in raw
        event = raw.get(client.event_field)
        return event in (client.before, *client.after) and (not client.own_field or client.own_field in raw)

    client = CLIENTS[name] if name else next(filter(is_of, CLIENTS.values()), None)
    event = raw.get(client.event_field if client else "hook_event_name")
    if client is None:
        text = "the hook's input names no event" if event is None else f"the hook does not know the event {event!r}"
        raise BadRequest(text, hint="name the client: --client")
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
    """Return True for a tool of our own MCP server, also one that the person configured (`[[tool]]`)."""
    context = call.raw.get("mcp_context")
    if isinstance(context, dict):
        names = [context.get("tool_name")] if context.get("server_name") == SERVER else []
    else:
        names = [call.tool[len(start) :] for start in call.client.own_tool_starts if call.tool.startswith(start)]
    if any(name in OWN_TOOLS for name in names):
        return True
    if not names:
        return False
    from fumehood.store.config import load_settings
    from fumehood.store.places import places

    templates = {each["name"] for scope in load_settings(places()).values() for each in scope.get("tools", ())}
    return not templates.isdisjoint(names)


def is_background(call: ToolCall) -> bool:
    """Return True if the client does not wait for the command of this call."""
    fields = call.input if isinstance(call.input, dict) else {}
    is_asked = fields.get("run_in_background") or fields.get("is_background") or fields.get("mode") == "async"
    return call.tool == "Monitor" or bool(is_asked)


def added_directories(call: ToolCall, begun_in: str) -> list[str]:
    """Return the directories that a person gave the client besides the one it works in, as far as we can know."""
    client = call.client
    listed = call.raw.get(client.directories_field)
    directories = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    if client.directory_option:
        directories += _options_of_client(client.directory_option)
    paths = (os.path.normpath(os.path.join(begun_in, each)) for each in directories if each)
    return [path for path in dict.fromkeys(paths) if path != begun_in and os.path.isdir(path)]


def _options_of_client(option: str) -> list[str]:
    """Return the values of an option in the command line of the client, which started this hook through some shells."""
    process = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = [os.fsdecode(word) for word in file.read().split(b"\0")]
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            return []  # the process is gone, or another user's
        values: list[str] = []
        is_value = False
        for word in words:
            name, _, value = word.partition("=") if word.startswith("-") else ("", "", word)
            is_value = name == option if name else is_value
            # Gemini CLI accepts several directories with commas between them.
            values += [value, *value.split(",")] if is_value else []
        if values:
            return values
    return []


def _hook_output(event: str, **fields: Any) -> Answer:
    return {"hookSpecificOutput": {"hookEventName": event, **fields}}


_CLAUDE = Client(
    name="claude", before="PreToolUse", after=("PostToolUse", "PostToolUseFailure"),
    preferred_shell="Bash", shells=frozenset({"Bash", "Monitor"}),
    edits={"Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path"},
    harmless=frozenset({"StructuredOutput"}),  # its fields are chosen by the person's own program
    rewrite_answer=lambda tool_input, decision, words: _hook_output(
        "PreToolUse", permissionDecision=decision, updatedInput=tool_input, additionalContext=words,
        permissionDecisionReason="runs in Fumehood: isolated, captured, undoable",
    ),
    refuse_answer=lambda decision, reason: _hook_output(
        "PreToolUse", permissionDecision=decision, permissionDecisionReason=reason
    ),
    # For the files that it thinks dangerous itself, its own rule counts instead of our ASK: bypassPermissions writes
    # them, auto and plan have a model decide, dontAsk denies without our reason.
    asking_modes=frozenset({"default", "acceptEdits"}), can_add_context=True,
    project_variable="CLAUDE_PROJECT_DIR", directory_option="--add-dir",
    keeps_directory=True,
    # The newest file is looked for when the command starts: when a session begins, it is not written yet.
    shell_settings=lambda shell: (
        f"{os.environ.get('CLAUDE_CONFIG_DIR') or os.path.expanduser('~/.claude')}/shell-snapshots/snapshot-{shell}-*"
    ),
)  # fmt: skip

# Codex treats an answer ASK as a failed hook, and runs the command.
_CODEX = Client(
    name="codex", before="PreToolUse", after=("PostToolUse",), own_field="turn_id",
    preferred_shell="exec_command",
    shells=frozenset({"Bash", "shell", "shell_command", "local_shell", "exec_command", "unified_exec"}),
    list_shells=frozenset({"shell", "local_shell"}),
    patches={"apply_patch": "command"}, patching_shells=frozenset({"Bash"}),
    rewrite_answer=lambda tool_input, decision, words: _hook_output(
        "PreToolUse", permissionDecision=decision, updatedInput=tool_input, additionalContext=words
    ),
    refuse_answer=_CLAUDE.refuse_answer, can_add_context=True, waits_s=10.0, directory_option="--add-dir",
)  # fmt: skip

# Gemini CLI waits for ever for an answer if nobody is there, and passes no text to the model before a tool call.
_GEMINI = Client(
    name="gemini", before="BeforeTool", after=("AfterTool",), id_field="",
    preferred_shell="run_shell_command", shells=frozenset({"run_shell_command"}),
    edits={"write_file": "file_path", "replace": "file_path"},
    own_tool_starts=(f"mcp_{SERVER}_", f"{SERVER}__"),
    rewrite_answer=lambda tool_input, _decision, _words: _hook_output("BeforeTool", tool_input=tool_input),
    refuse_answer=lambda decision, reason: {"decision": decision, "reason": reason},
    directory_option="--include-directories",
)  # fmt: skip

_COPILOT = Client(
    name="copilot", before="preToolUse", after=("postToolUse", "postToolUseFailure"),
    event_field="", result_fields=("toolResult", "error"),
    tool_field="toolName", input_field="toolArgs", session_field="sessionId", parent_field="parentAgentId", id_field="",
    preferred_shell="bash", shells=frozenset({"bash"}),
    edits={"create": "path", "edit": "path"}, patches={"apply_patch": "input"},
    own_tool_starts=(f"{SERVER}-",),
    rewrite_answer=lambda tool_input, decision, words: {
        "permissionDecision": decision, "modifiedArgs": tool_input, "additionalContext": words,
    },
    refuse_answer=lambda decision, reason: {"permissionDecision": decision, "permissionDecisionReason": reason},
    asking_modes=frozenset({None}), can_add_context=True, project_variable="COPILOT_PROJECT_DIR",
    directory_option="--add-dir", waits_s=30.0,
)  # fmt: skip

# OpenCode calls the plugin that `fumehood setup opencode` writes, so this format is our own.
_OPENCODE = Client(
    name="opencode", before="tool.execute.before", after=("tool.execute.after",),
    preferred_shell="bash", shells=frozenset({"bash"}),
    edits={"write": "filePath", "edit": "filePath", "multiedit": "filePath"}, patches={"apply_patch": "patchText"},
    own_tool_starts=(f"{SERVER}_",), no_answer={},
    rewrite_answer=lambda tool_input, _decision, _words: {"tool_input": tool_input},
    refuse_answer=lambda _decision, reason: {"deny": reason},
)  # fmt: skip

# Written from Cursor's documentation, and not tried with Cursor. The name of an MCP tool does not tell its server.
_CURSOR = Client(
    name="cursor", before="preToolUse", after=("postToolUse", "postToolUseFailure"), session_field="conversation_id",
    preferred_shell="Shell", shells=frozenset({"Shell"}),
    edits={"Write": "path", "StrReplace": "path", "Edit": "path", "Delete": "path"},
    own_tool_starts=(), no_answer={}, project_variable="CURSOR_PROJECT_DIR", directories_field="workspace_roots",
    rewrite_answer=lambda tool_input, decision, _words: {"permission": decision, "updated_input": tool_input},
    refuse_answer=lambda decision, reason: {"permission": decision, "user_message": reason, "agent_message": reason},
)  # fmt: skip

# If the client is not named, the first one here whose format fits is taken.
CLIENTS = {each.name: each for each in (_CODEX, _CLAUDE, _GEMINI, _COPILOT, _OPENCODE, _CURSOR)}


_SHELL_NAMES = tuple(f"{folder}{name}" for folder in ("", "/bin/", "/usr/bin/") for name in ("sh", "bash", "zsh"))

# Words in the name of a field that holds something to run; and last words of names that only describe a command.
_RUN_FIELDS = frozenset({
    "command", "commands", "cmd", "cmds", "cmdline", "commandline", "argv", "script", "scripts", "shell", "bash",
    "powershell", "exec", "executable", "program", "eval",
})  # fmt: skip
_DESCRIPTIVE_ENDS = frozenset({"id", "ids", "description", "timeout", "type", "status", "output", "result", "count"})
_ENVIRONMENT_FIELDS = frozenset({"env", "environment", "interpreter"})
_LANGUAGES = frozenset({"python", "py", "javascript", "js", "node", "typescript", "ruby", "r", "source", "shell"})
_CODE_ENDS = frozenset({"block", "blocks", "snippet", "text", "string", "to", "content"})
# Words in the name of a tool that runs something, and first and last words of names of tools that only look.
_RUN_NAMES = frozenset({"shell", "bash", "zsh", "powershell", "pwsh", "cmd", "terminal", "repl", "exec", "subprocess"})
_RUN_VERBS = frozenset({"run", "execute", "eval", "evaluate", "spawn", "launch"})
_LOOK_VERBS = frozenset({"get", "read", "list", "show", "view", "kill", "stop", "close", "wait", "poll"})
_LOOK_ENDS = frozenset({"output", "status", "history", "log", "logs"})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MAX_SHOWN = 80


class Command(Value):
    """The command in a tool's input."""

    field: str  # of the input
    text: str
    is_list: bool = False
    script: str = ""  # the shell line in a list such as ["sh", "-c", line]


def refuse_if_it_runs_something(call: ToolCall, allowed: Sequence[str]) -> None:
    """Refuse a tool whose name or input shows that it runs something, because such a call can't be rewritten.

    `allowed` are the tools that a person lets run outside of the hood: names, or beginnings of names with a `*`.
    """
    name, client = call.tool, call.client
    if name in client.harmless or is_own_tool(call):
        return
    if any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in allowed):
        return
    words = _words(name.rpartition("__")[2])
    only_looks = bool(words) and (words[0] in _LOOK_VERBS or words[-1] in _LOOK_ENDS)
    run_field, reason = next(_run_fields(call.input), None), ""
    if isinstance(call.input, str) and call.input.strip():
        reason = "its input is plain text"
    elif run_field is not None:
        reason = f"its input has {ascii(run_field)[:_MAX_SHOWN]}"
    elif words and not only_looks and (words[0] in _RUN_VERBS or not _RUN_NAMES.isdisjoint(words)):
        reason = "its name says so"
    if reason:
        shown = ascii(name)[1:-1][:_MAX_SHOWN]
        raise BadRequest(
            f"the tool {shown} would run something outside of the hood: {reason}",
            hint=f"use {client.preferred_shell} instead; a person can let this tool run by adding --allow-tool {shown}"
            " to the hook's command in the client's settings",
        )


def command_of(call: ToolCall) -> Command:
    """Return the command of a shell tool; raises BadRequest if it can't be rewritten."""
    fields = call.input if isinstance(call.input, dict) else {}
    field = next((field for field in ("command", "cmd") if fields.get(field)), None)
    if field is None:
        raise BadRequest("there is no command to run", hint="tool_input.command must be a string")
    # A field that chooses another shell, or sets variables, would take effect before our line.
    for key, value in fields.items():
        is_around = not _ENVIRONMENT_FIELDS.isdisjoint(_words(key)) and _has_text(value)
        if key != field and (is_around or any(_run_fields({key: value}))):
            shown = ascii(key)[:_MAX_SHOWN]
            raise BadRequest(f"{shown} can't be rewritten to run in the hood", hint="leave it out")
    command = fields[field]
    if isinstance(command, str) and command.strip():
        return Command(field=field, text=command)
    is_list = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if call.tool not in call.client.list_shells or not is_list or not command[0].strip():
        raise BadRequest("there is no command to run", hint="tool_input.command must be a string")
    is_script = len(command) == 3 and command[0] in _SHELL_NAMES and command[1] in ("-c", "-lc")
    text = " ".join(map(shell_quote, command))
    return Command(field=field, text=text, is_list=True, script=command[2] if is_script else "")


def _run_fields(value: object) -> Iterator[str]:
    """Yield the names of the fields, at any depth, that hold something to run."""
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
    if not words or words[-1] in _DESCRIPTIVE_ENDS:
        return False
    if not _RUN_FIELDS.isdisjoint(words):
        return True
    if words[0] == "code":
        return len(words) == 1 or words[1] in _CODE_ENDS
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


# Names of fields in the clients' edit tools: for a whole new content, for an old piece and its new text, and for the
# option to replace every occurrence.
_WHOLE_FILE_FIELDS = ("content", "file_text", "contents")
_PIECE_FIELDS = (("old_string", "new_string"), ("old_str", "new_str"), ("oldString", "newString"))
_EVERYWHERE_FIELDS = ("replace_all", "replaceAll", "allow_multiple")


def shell_patch(call: ToolCall) -> tuple[list[PlannedEdit], str] | None:
    """Return the edits that the patch in a shell line makes, and their directory; None if it is not a clear patch."""
    from fumehood.core.edits import edits_of_patch, patch_in_shell_line

    command = command_of(call)
    patch, directory = (None if command.is_list else patch_in_shell_line(command.text)) or ("", "")
    planned = edits_of_patch(patch)
    return None if planned is None else (planned, directory)


def planned_edits(call: ToolCall) -> list[PlannedEdit]:
    """Return the files that an edit tool changes, and how; raises BadRequest if that can't be found out."""
    from fumehood.core.edits import PlannedEdit, edits_of_patch

    fields = call.input if isinstance(call.input, dict) else {}
    if call.tool in call.client.patches:
        text = call.input if isinstance(call.input, str) else fields.get(call.client.patches[call.tool])
        planned = edits_of_patch(text) if isinstance(text, str) else None
        if planned is None:
            raise BadRequest("the patch is not understood", hint="write it as *** Begin Patch … *** End Patch")
        return planned
    path = fields.get(call.client.edits[call.tool])
    # A client may strip blanks around the name, and then edit another file.
    if not isinstance(path, str) or not path or path != path.strip() or "\0" in path:
        raise BadRequest("the edit names no file", hint="give the whole path of one")
    return [PlannedEdit(path=path, make_content=_edit_effect(fields), is_removed=call.tool == "Delete")]


def _edit_effect(fields: dict[str, object]) -> MakeContent | None:
    """Return the function that makes the new content of a file; None if the fields of the edit do not define one."""
    from fumehood.core.edits import content_writer, piece_replacer

    def pieces(table: dict[str, object]) -> list[MakeContent]:
        pairs = ((table.get(old), table.get(new)) for old, new in _PIECE_FIELDS)
        all_of_them = any(table.get(name) for name in _EVERYWHERE_FIELDS)
        return [
            piece_replacer(old, new, everywhere=all_of_them)
            for old, new in pairs if isinstance(old, str) and isinstance(new, str)
        ]  # fmt: skip

    ways: list[MakeContent] = [
        content_writer(text) for name in _WHOLE_FILE_FIELDS if isinstance(text := fields.get(name), str)
    ]
    ways += pieces(fields)
    if isinstance(edit_list := fields.get("edits"), list):
        edits = [pieces(each) if isinstance(each, dict) else [] for each in edit_list]

        def make_all_edits(content: bytes | None) -> bytes | None:
            """Make each edit in the result of the one before."""
            for number, changes in enumerate(edits):
                content = None if len(changes) != 1 or (number and content is None) else changes[0](content)
            return content

        ways.append(make_all_edits)
    return ways[0] if len(ways) == 1 else None
