"""`fumehood hook`: an agent's shell command is rewritten, before it runs, to run in the hood.

Starts before every command of an agent, so it loads nothing but `json`. Whatever goes wrong here must forbid the
command: clients take any exit status but 2 for "go on".
"""

from __future__ import annotations

import os
import re
import sys

from fumehood.core.report import told_ahead
from fumehood.core.request import quoted
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.faces.cli.output import here, tell_error
from fumehood.store.places import session_mark, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

HELP = """usage: fumehood hook [--client claude|codex|gemini] [--ask] [OPTIONS]

The pre-tool hook of Claude Code, Codex and Gemini CLI. It reads a tool call from standard input and answers with the
same call, with its command rewritten to run in the hood. A tool that runs something in a way that is not understood is
denied; a tool that runs nothing is left alone. `fumehood setup CLIENT` writes the hook into the client's settings.

options:
  --client NAME      claude, codex or gemini (default: recognised by the input)
  --ask              let the client ask for approval as it did before; without it, commands need none
  --session NAME     the session that the commands belong to (default: the client's own)
  --allow-tool NAME  let this tool run outside of the hood instead of denying it; NAME* stands for all that begin so
  --hold, --discard, --network, --own-tmp, --project DIR, --allow-host HOST, --root ROOT, --timeout SECONDS
                     as for fumehood run

exit code: 0, or 2 where the command must not run

examples, as the command of a hook in a client's settings:
  fumehood hook --client claude || exit 2
  fumehood hook --client claude --ask --allow-host pypi.org || exit 2
and to see what it answers:
  echo '{"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}' | fumehood hook
"""

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
_LONGEST_SHOWN = 80

_EVENTS = {"PreToolUse": (CLAUDE, CODEX), "BeforeTool": (GEMINI,)}
_FLAGS = frozenset({"--hold", "--discard", "--network", "--own-tmp"})
_VALUES = frozenset({"--project", "--allow-host", "--root", "--timeout"})
_ASKED = frozenset({"--client", "--session", "--allow-tool"})
_BLOCK = 2
_LONGEST = 120 * 1024  # what one argument may be, less what the client puts around it
_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@-")
_STATUS = "fumehood_status"
_RUN_BY_SHELLS = frozenset("\n\"\\;|&$`<>()#")
_IN_PLAIN_NAMES = _IN_NAMES - {":"}
_LONGEST_NAME = 100
# What an agent may do about its own runs, on the host: look, and take back. Never to apply what is held.
_LOOKING = frozenset({"undo", "redo", "diff", "show", "output", "log", "ps", "stop"})
_NARROWING = ("--only-session", "--only-project")


class HookOptions:
    """What the person set up."""

    def __init__(self) -> None:
        self.client = ""
        self.session = ""
        self.allowed_tools: list[str] = []
        self.leaves_asking = False
        self.passed_on: list[str] = []


def main(arguments: Sequence[str]) -> int:
    """Answer one tool call; 2 forbids it."""
    if set(arguments) & {"-h", "--help"}:
        sys.stdout.write(HELP)
        return 0
    try:
        answer = answered(sys.stdin.buffer.read(), parse(arguments))
    except FumehoodError as error:
        tell_error(error)
        return _BLOCK
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - what nobody foresaw must not let the command through
        tell_error(FumehoodError(f"the hook failed: {type(error).__name__}: {error}", hint="the command was not run"))
        return _BLOCK
    sys.stdout.write(answer)
    return 0


def parse(arguments: Sequence[str]) -> HookOptions:
    """Read the command line."""
    options = HookOptions()
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            options.passed_on.append(word)
        elif word == "--ask":
            options.leaves_asking = True
        elif name in _VALUES | _ASKED:
            if not equals and not waiting:
                raise BadRequest(f"{name} needs a value", hint="fumehood hook --help")
            value = value if equals else waiting.pop(0)
            if name == "--client":
                options.client = value
            elif name == "--session":
                options.session = value
            elif name == "--allow-tool":
                options.allowed_tools.append(value)
            else:
                options.passed_on += (name, value)
        else:
            raise BadRequest(f"there is no option {word}", hint="fumehood hook --help")
    if options.client not in ("", CLAUDE, CODEX, GEMINI):
        raise BadRequest(f"there is no client {options.client}", hint="--client claude, codex or gemini")
    return options


def answered(data: bytes, options: HookOptions) -> str:
    """Return the answer to a tool call: nothing where no command is run."""
    import json

    try:
        call = json.loads(data)
    except ValueError as error:
        raise BadRequest(f"the hook's input is not JSON: {error}", hint="the command was not run") from error
    if not isinstance(call, dict) or not isinstance(call.get("tool_name"), str):
        raise BadRequest("the hook's input names no tool", hint="the command was not run")
    client = _client(call, options)
    try:
        command = command_of(call, client, options.allowed_tools)
        if command is None:
            return ""
        tool_input = _rewritten(command, call, client, options)
    except BadRequest as error:
        reason = f"{error.message}. {error.hint}"
        denial: dict[str, Any] = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        denial = {"hookSpecificOutput": {"hookEventName": "PreToolUse", **denial}}
        return json.dumps({"decision": "deny", "reason": reason} if client == GEMINI else denial) + "\n"
    answer: dict[str, Any] = {"hookEventName": "BeforeTool", "tool_input": tool_input}
    if client != GEMINI:
        answer = {"hookEventName": "PreToolUse", "permissionDecision": "ask" if options.leaves_asking else "allow"}
        if client == CLAUDE:
            answer["permissionDecisionReason"] = "runs in Fumehood: isolated, captured, undoable"
        answer["updatedInput"] = tool_input
        # What sets our words apart from a command's, for its model; Gemini CLI passes nothing on before a tool.
        answer["additionalContext"] = told_ahead(session_mark(state_directory(), _session(client, call, options)))
    return json.dumps({"hookSpecificOutput": answer}) + "\n"


def _client(call: dict[str, Any], options: HookOptions) -> str:
    event = call.get("hook_event_name")
    possible = _EVENTS.get(event) if isinstance(event, str) else None
    if possible is None:
        raise BadRequest(f"the hook does not know the event {event!r}", hint="it is for PreToolUse and BeforeTool")
    if options.client:
        if options.client not in possible:
            raise BadRequest(f"{options.client} has no such event: {event}", hint="fumehood setup writes the right one")
        return options.client
    return CODEX if possible == (CLAUDE, CODEX) and "turn_id" in call else possible[0]


def _rewritten(command: Command, call: dict[str, Any], client: str, options: HookOptions) -> dict[str, Any]:
    """Return the tool's input with its command rewritten."""
    text = command.text
    if command.script.startswith(("fumehood ", f"{_ours()} ")):
        text = command.script  # what we understand ourselves, in a shell that the client put around it
    if "\0" in text:
        raise BadRequest("the command has a NUL in it", hint="no program can be given one; write it as \\0")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("the command is not valid text", hint="it holds half of a surrogate pair") from error
    line = rewrite(text, client, call, options)
    if len(line.encode()) > _LONGEST:
        raise BadRequest("the command is too long to be rewritten", hint="write it to a script and run that")
    # The shell too: the list may have named a file of the project.
    return {**call["tool_input"], command.field: ["/bin/sh", "-c", line] if command.is_list else line}


def rewrite(command: str, client: str, call: dict[str, Any], options: HookOptions) -> str:
    """Return the line that runs a command in the hood; one that does already stays as it is."""
    ours = _ours()
    if command.startswith(f"{ours} "):
        inner, around = _unwrapped(command, ours)
        if inner is not None and (around or command == _wrapped(inner, ours, client, call, options)):
            command = inner
    # What keeps an agent to its own runs: its session's, else its project's.
    session = _session(client, call, options)
    words = ["--only-session", session] if session else ["--only-project"]
    if "--project" in options.passed_on:
        at = len(options.passed_on) - options.passed_on[::-1].index("--project")
        words += ["--project", options.passed_on[at]]
    looking = _looking(command.strip(), ours, " ".join(map(quoted, words)))
    return looking or _wrapped(command, ours, client, call, options)


def _ours() -> str:
    return " ".join(quoted(word) for word in own_command())


def _session(client: str, call: dict[str, Any], options: HookOptions) -> str:
    return options.session or _name(client, call.get("session_id"))


def _wrapped(command: str, ours: str, client: str, call: dict[str, Any], options: HookOptions) -> str:
    session = _session(client, call, options)
    is_background = call["tool_name"] == "Monitor" or bool(call["tool_input"].get("run_in_background"))
    # The shell that the client itself would use, as far as that is known.
    shells = (os.environ.get("SHELL", ""), "/bin/bash", "/usr/bin/bash")
    usable = (each for each in shells if each.rpartition("/")[2] in ("bash", "zsh") and os.access(each, os.X_OK))
    shell = next(usable, "/bin/sh")
    words = ["--brief", *options.passed_on, "--cwd", ".", "--shell", shell]
    words += ["--session", session, "--begun-in", _client_directory(client)] if session else []
    if client == CLAUDE and shell != "/bin/sh":
        # Claude Code keeps the functions and aliases of the person's shell there. The newest is looked for when the
        # command starts: for a session's first one there is none yet.
        folder = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude")
        words += ["--source", f"{folder}/shell-snapshots/snapshot-{shell.rpartition('/')[2]}-*"]
    after = ""
    if client == CLAUDE and session and not is_background:
        # Claude Code's shell stays where a command left it; a link says where that is, whatever its name.
        link = f"{state_directory()}/sessions/{session}/{_name('at', call.get('tool_use_id'))}"
        words += ["--keep-cwd", link]
        after = f'; {_STATUS}=$?; cd -P -- {quoted(link)} 2>/dev/null; (exit "${_STATUS}")'
    return " ".join([ours, "run", *map(quoted, words), "--", quoted(command, always=True)]) + after


def _client_directory(client: str) -> str:
    """Return where the client itself works, whatever directory this command is for."""
    return (os.environ.get("CLAUDE_PROJECT_DIR", "") if client == CLAUDE else "") or here()


def _unwrapped(command: str, ours: str) -> tuple[str | None, bool]:
    """Return the command that a line like ours runs, and whether all around it is as in one for another call.

    An agent may have copied one, or write a line that merely begins so: that is a command like any other.
    """
    head, separator, rest = command.partition(" -- '")
    if not separator or not head.startswith(f"{ours} run --brief "):
        return None, False
    inner, _, after = f"{rest} ".replace("'\"'\"'", "\0").partition("'")
    inner, after = inner.replace("\0", "'"), after[:-1]
    begin, end = f"; {_STATUS}=$?; cd -P -- ", f' 2>/dev/null; (exit "${_STATUS}")'
    link = after.removeprefix(begin).removesuffix(end)
    is_plain = _RUN_BY_SHELLS.isdisjoint(head[len(ours) :]) and _RUN_BY_SHELLS.isdisjoint(link)
    return inner, is_plain and after in ("", begin + link + end)


def _looking(command: str, ours: str, reach: str) -> str:
    """Return the line for what an agent may do about its own runs, on the host; "" where it asks for anything else.

    The reach is always its own: what an agent, or a line that it copied, says of that is left out.
    """
    start = next((start for start in ("fumehood ", f"{ours} ") if command.startswith(start)), "")
    verb, _, rest = command[len(start) :].partition(" ")
    if not start or verb not in _LOOKING:
        return ""
    rest = f"{rest} ".removeprefix(f"{reach} ")
    words = rest.split(" ")[:-1] if rest.strip() else []
    for word in words:
        name = word.replace("last~", "last", 1)
        if not name or not _IN_NAMES.issuperset(name) or (word[0] == "-" and word not in ("--json", *_NARROWING)):
            return ""
    before = ["", *words]
    kept = [word for last, word in zip(before, words, strict=False) if word not in _NARROWING and last != _NARROWING[0]]
    return " ".join([ours, verb, reach, *kept])


def own_command() -> list[str]:
    """Return how this program was started, so that it is found again from any directory and with any PATH."""
    started = os.path.abspath(sys.argv[0])
    if os.path.basename(started) == "__main__.py":
        return [sys.executable, "-P", "-m", "fumehood"]
    if os.access(started, os.X_OK):
        return [started]
    words = sys.orig_argv
    options = words[1 : words.index(sys.argv[0])] if sys.argv[0] in words else []
    return [sys.executable, *options, started]


def _name(kind: str, identity: object) -> str:
    """Return a name made of what a client calls something; "" where it says nothing.

    Two things never get one name: what can't be a name as it is gets its hash, after a letter that no other name has.
    """
    if identity is None or identity == "":
        return "at-" if kind == "at" else ""
    if not isinstance(identity, str):
        raise BadRequest("the call's session has no usable name", hint="session_id and tool_use_id must be strings")
    if len(identity) <= _LONGEST_NAME and _IN_PLAIN_NAMES.issuperset(identity):
        return f"{kind}-{identity}"
    from hashlib import sha256

    kept = "".join(letter for letter in identity[:_LONGEST_NAME] if letter in _IN_PLAIN_NAMES)
    return f"{kind}-{kept[:40]}:{sha256(identity.encode(errors='surrogatepass')).hexdigest()[:40]}"


# What a tool call would run is told by the shape of its input and by its name. A tool that is understood has its
# command rewritten, one that would run something in a way that is not understood is refused, the rest is left alone.


class Command(Value):
    """The command in a tool's input: its field, its text, and what a shell in it reads, where it is a list."""

    field: str
    text: str
    is_list: bool = False
    script: str = ""


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
        shown = ascii(name)[1:-1][:_LONGEST_SHOWN]
        raise BadRequest(
            f"the tool {shown} would run something outside of the hood: {why}",
            hint=f"use {_INSTEAD[client]} instead; a person can let this tool run by adding --allow-tool {shown}"
            " to the hook's command in the client's settings",
        )
    return None


def _understood(name: str, tool_input: object) -> Command:
    """Return the command of a tool that we know, or say why it can't be rewritten."""
    fields = tool_input if isinstance(tool_input, dict) else {}
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
    if name not in _TAKE_WORDS or not is_list or not command[0].strip():
        raise BadRequest("there is no command to run", hint="tool_input.command must be a string")
    is_script = len(command) == 3 and command[0] in _SHELL_NAMES and command[1] in ("-c", "-lc")
    text = " ".join(map(quoted, command))
    return Command(field=field, text=text, is_list=True, script=command[2] if is_script else "")


def _is_ours(call: dict[str, Any], client: str) -> bool:
    """Return True for a tool of our own server, in the spelling of each client."""
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
