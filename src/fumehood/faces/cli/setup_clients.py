"""`fumehood setup CLIENT`: write the hook or the server into a client's own settings."""

from __future__ import annotations

import difflib
import glob
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fumehood.core.request import quoted
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Refused
from fumehood.faces.cli.commands import Context
from fumehood.faces.cli.hook_clients import ALLOW, SERVER
from fumehood.faces.cli.hook_clients import CLIENTS as HOOKED
from fumehood.faces.cli.output import here
from fumehood.faces.cli.prompt import terminal
from fumehood.faces.cli.setup_files import (
    SettingsEdit,
    at,
    has_hook,
    hook_line,
    json_hooks,
    json_items,
    json_member,
    meaning,
    plugin,
    toml_hooks,
    toml_table,
)  # fmt: skip
from fumehood.service.permission import Permissions
from fumehood.service.projects import add_root
from fumehood.store.config import replace
from fumehood.store.places import home

# The hook itself decides which tools run something: a list of names here would leave out whatever a client calls its
# next one. After a tool, only edits matter.
_EVERY_TOOL = "*"
# Copilot CLI runs a command whose hook takes longer than this, in seconds: better that it waits.
_LONGEST_HOOK = 3600
_LONGEST_SETTINGS = 1 << 20
_START_S = 120  # how long a server may take to start, with what it needs installed

_RESTART = "restart the client, so that it reads its settings"
_CODEX_HOOK = (
    "Codex skips a hook until you trust it, and says little: start codex, type /hooks, review and trust it",
    'Codex\'s own sandbox must let Fumehood work: once the hook is trusted, set sandbox_mode = "danger-full-access"',
)
_CODEX_SERVER = "`required = true` makes Codex refuse to start without the server, instead of going on without it"
_CLAUDE_HOOK = "commands need no approval any more: add --ask to the hook's command to be asked as before"
_NO_HOOK = "it gets the server, not a hook: tell it to use run_command instead of its own terminal"
_CURSOR_HOOK = "written from Cursor's documentation, not tried with Cursor: see that `fumehood log` lists its commands"
_CLOSED = "the client's own shell is closed, so that every command goes through the server"
_OPEN = "WARNING: the client's own shell stays open, and what it runs there is not in the hood"


class ChangedFile(Value):
    """One file of a client's, and what is changed in it."""

    path: str
    edits: tuple[SettingsEdit, ...]

    def changed(self, text: str, *, is_removal: bool) -> str:
        """Return the text with everything added, or without it."""
        for edit in self.edits:
            text = (edit.remove if is_removal else edit.add)(text)
        return text


class ClientSettings(Value):
    """What connects one client: files, the first of them the one that matters, and what a person must know besides."""

    files: tuple[ChangedFile, ...]
    notes: tuple[str, ...] = ()
    # Where the client's own settings name more directories that it may write: a file, and the keys in it.
    directories: tuple[tuple[str, list[str]], ...] = ()


def connect(context: Context, client: str) -> int:
    """Show what would change, then change it: a backup is kept, and doing it again changes nothing."""
    options = context.options
    if client not in CLIENTS:
        raise BadRequest(f"there is no client {client}", hint=f"one of: {', '.join(CLIENTS)}")
    is_server = options.mcp or client in _SERVER_ONLY
    settings = CLIENTS[client](installed_command(), options.mcp)
    if is_server and not options.remove and not options.print:
        _check_server()
    files = [_compared(file, is_removal=options.remove) for file in settings.files]
    answer: dict[str, Any] = {
        "client": client, **files[0], "notes": [] if options.remove else list(settings.notes), "files": files,
    }  # fmt: skip
    if options.print:
        return context.say(answer, lambda: _print(files))
    changes = {file["path"]: file.pop("change") for file in files}
    del answer["change"]
    changing = [file for file in files if file["diff"]]
    if not context.as_json:
        sys.stdout.write("".join(file["diff"] for file in files) or f"{files[0]['path']}: nothing to change\n")
    if changing and _is_agreed(context):
        for file in changing:
            file["backup"] = _write(file["path"], changes[file["path"]])
            file["changed"] = True
        answer |= files[0] | {"changed": True}
    answer["directories"] = [] if options.remove else _offered(context, settings.directories)
    answer["notes"] += [f"the client was given {path}; for commands: fumehood roots add {quoted(path)}"
                        for path in answer["directories"]]  # fmt: skip
    return context.say(answer, lambda: _tell(answer))


def _offered(context: Context, places: tuple[tuple[str, list[str]], ...]) -> list[str]:
    """Offer directories that a client's settings name as roots of this project; returns what still is none.

    A command can write the settings of a project: only a person's answer counts, and never `--yes`.
    """
    store = context.store
    try:
        project = store.projects.open(store.projects.holding(here()), register=False)
    except BadRequest:
        return []  # nothing here can be a project
    asks = () if context.options.yes else terminal()
    left = []
    for name in dict.fromkeys(name for file, keys in places for name in _named(os.path.join(project.path, file), keys)):
        path = os.path.normpath(os.path.join(project.path, os.path.expanduser(name)))
        try:
            store.projects.new_root(project, path)
        except BadRequest:
            continue  # it is one already, or can't be one
        try:
            project = store.projects.open(project.path, register=bool(asks))
            project = add_root(store, project, path, Permissions(store, asks))
        except Refused:
            left.append(path)
    return left


def _named(path: str, keys: list[str]) -> list[str]:
    """Return the directories that settings name; none where they can't be read. OpenCode's are patterns."""
    try:
        # Waits for nothing, whatever a command left there.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            listed = at(meaning(path, file.read(_LONGEST_SETTINGS)), keys)
    except (OSError, UnicodeDecodeError, BadRequest):
        return []
    if isinstance(listed, dict):
        listed = [pattern.removesuffix("*").removesuffix("*") for pattern, word in listed.items() if word == ALLOW]
    return [each for each in listed if isinstance(each, str) and each] if isinstance(listed, list) else []


class Rewriting(Value):
    """What becomes of one file."""

    before: str
    after: str
    is_gone: bool = False
    needs_backup: bool = True
    # What was kept beside it before, and is in it again.
    stale: tuple[str, ...] = ()


def _compared(file: ChangedFile, *, is_removal: bool) -> dict[str, Any]:
    path = os.path.realpath(file.path)
    before = _read(path)
    try:
        after = file.changed(before, is_removal=is_removal)
        if meaning(path, before) == meaning(path, after) and bool(before) == bool(after):
            change = Rewriting(before=before, after=before)  # what is there already stays as it is written
        elif is_removal:
            change = _taken_out(file, path, before, after)
        else:
            change = Rewriting(before=before, after=after)
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}", hint=error.hint) from error
    lines = difflib.unified_diff(
        before.splitlines(True), change.after.splitlines(True), f"{path} (now)", f"{path} (then)"
    )
    return {"path": path, "changed": False, "diff": "".join(lines), "backup": None, "change": change}


def _taken_out(file: ChangedFile, path: str, before: str, after: str) -> Rewriting:
    """Return to what was there before the setup: where the file is as that left it, to the letter."""
    backups = {each: _read(each) for each in sorted(glob.glob(f"{glob.escape(path)}.before-fumehood-*"))}
    without = {each: file.changed(text, is_removal=True) for each, text in backups.items()}
    # A backup that holds something of ours is of a second setup.
    earlier = [text for each, text in backups.items() if meaning(path, without[each]) == meaning(path, text)]
    after = next((text for text in earlier if file.changed(text, is_removal=False) == before), after)
    is_gone = after not in earlier and "".join(after.split()) in ("", "{}")
    after = "" if is_gone else after
    stale = [each for each in backups if meaning(path, without[each]) == meaning(path, after)]
    # What adding it again would bring back needs no copy.
    again = (file.changed(text, is_removal=False) for text in (before, after))
    needs_backup = meaning(path, next(again)) != meaning(path, next(again))
    return Rewriting(before=before, after=after, is_gone=is_gone, needs_backup=needs_backup, stale=tuple(stale))


def _print(files: list[dict[str, Any]]) -> None:
    for file in files:
        if len(files) > 1:
            sys.stdout.write(f"# {file['path']}\n")
        sys.stdout.write(file["change"].after)


def _write(path: str, change: Rewriting) -> str | None:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        backup = replace(path, change.before, change.after, needs_backup=change.needs_backup)
        for each in (*change.stale, *([path] if change.is_gone else [])):
            os.unlink(each)
    except OSError as error:
        hint = "--print shows what to add"
        raise FumehoodError(f"{path} can't be written: {error.strerror}", hint=hint) from error
    return backup


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} can't be read: {error}", hint="--print shows what to add by hand") from error


def _is_agreed(context: Context) -> bool:
    if context.options.yes:
        return True
    if not (os.isatty(0) and os.isatty(1)):
        raise BadRequest("there is nobody to ask", hint="--yes writes it without asking, --print only shows it")
    sys.stdout.write("write this? [Y/n] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _tell(answer: dict[str, Any]) -> None:
    for file in answer["files"]:
        if file["changed"]:
            backup = f"; what was there: {file['backup']}" if file["backup"] else ""
            done = "written" if os.path.exists(file["path"]) else "removed"
            sys.stdout.write(f"{done}: {file['path']}{backup}\n")
    for note in answer["notes"]:
        sys.stdout.write(f"note: {note}\n")


def installed_command() -> list[str]:
    """Return how this program is started by somebody else, from anywhere."""
    started = os.path.abspath(sys.argv[0])
    if os.path.basename(started) in ("launch.py", "launch.pyc"):
        # The wrapper of a checkout, which finds the environment again when that is made anew.
        wrapper = os.path.abspath(f"{os.path.dirname(__file__)}/../../../../fumehood")
        if os.access(wrapper, os.X_OK):
            return [wrapper]
    if os.access(started, os.X_OK) and not started.endswith(".py"):
        return [started]
    return [sys.executable, "-P", "-m", "fumehood"]


def _check_server() -> None:
    """Refuse a server that can't start: it is started once, and ends at once, since its input does.

    A checkout installs what the server needs when it is first started: a client would not wait for that.
    """
    from importlib.util import find_spec

    if find_spec("mcp") is not None:
        return
    line = [*installed_command(), "mcp"]
    try:
        started = subprocess.run(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
            timeout=_START_S,
        )  # fmt: skip
        why = started.stderr.strip() if started.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        message = "the MCP server can't be started here, so nothing was written"
        raise FumehoodError(message, hint=f"{why.removeprefix('ERROR: ')}; try: {' '.join(map(quoted, line))}")


def _line(command: list[str], client: str) -> str:
    return hook_line(" ".join(map(quoted, command)), client)


def _edit_tools(client: str) -> list[str]:
    return [*HOOKED[client].edits, *HOOKED[client].patches]


def _matchers(client: str) -> dict[str, str]:
    """Return the tools that the hook is for, before and after them."""
    return {HOOKED[client].before: _EVERY_TOOL, **dict.fromkeys(HOOKED[client].after, "|".join(_edit_tools(client)))}


def _chosen(tools: str, hook: dict[str, Any]) -> dict[str, Any]:
    """Return a hook that is for these tools, in clients where a hook that names none is for all."""
    return hook if tools == _EVERY_TOOL else {"matcher": tools, **hook}


def _server(command: list[str], **more: Any) -> dict[str, Any]:
    server = {**more, "command": command[0], "args": [*command[1:], "mcp"]}
    return server | ({"env": _own_places()} if _own_places() else {})


def _own_places() -> dict[str, str]:
    """Return where the person keeps things, if not in the usual place: clients pass few variables on to servers."""
    names = (f"XDG_{name}_HOME" for name in ("STATE", "DATA", "CACHE", "CONFIG"))
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _is_hooked(path: str) -> bool:
    """Return True where our hook is in the client's settings: then its own shell runs in the hood as well."""
    return has_hook(meaning(path, _read(path)))


def _in_one_file(
    path: str, edits: Sequence[SettingsEdit], notes: Sequence[str],
    directories: tuple[tuple[str, list[str]], ...] = (),
) -> ClientSettings:  # fmt: skip
    file = ChangedFile(path=path, edits=tuple(edits))
    return ClientSettings(files=(file,), notes=tuple(notes), directories=directories)


def _claude(command: list[str], mcp: bool) -> ClientSettings:
    settings = f"{os.environ.get('CLAUDE_CONFIG_DIR') or f'{home()}/.claude'}/settings.json"
    named = tuple(
        (file, ["permissions", "additionalDirectories"])
        for file in (settings, ".claude/settings.json", ".claude/settings.local.json")
    )
    if not mcp:
        hooks = json_hooks(
            _line(command, "claude"), _matchers("claude"),
            lambda tools, line: {"matcher": tools, "hooks": [{"type": "command", "command": line}]},
        )  # fmt: skip
        return _in_one_file(settings, [hooks], [_RESTART, _CLAUDE_HOOK], named)
    # Where Claude Code itself keeps servers that hold for every project.
    server = json_member(["mcpServers", SERVER], _server(command, type="stdio"))
    file = ChangedFile(path=f"{home()}/.claude.json", edits=(server,))
    if _is_hooked(settings):
        return ClientSettings(files=(file,), notes=(_RESTART,), directories=named)
    closing = json_items(["permissions", "deny"], ("Bash", "Monitor"))
    files = file, ChangedFile(path=settings, edits=(closing,))
    return ClientSettings(files=files, notes=(_RESTART, _CLOSED), directories=named)


def _codex(command: list[str], mcp: bool) -> ClientSettings:
    path = f"{os.environ.get('CODEX_HOME') or f'{home()}/.codex'}/config.toml"
    named = ((path, ["sandbox_workspace_write", "writable_roots"]),)
    if not mcp:
        hooks = toml_hooks(_line(command, "codex"), _matchers("codex"))
        return _in_one_file(path, [hooks], _CODEX_HOOK, named)
    edits = [toml_table(["mcp_servers", SERVER], {**_server(command), "required": True})]
    notes = [_CODEX_SERVER]
    if not _is_hooked(path):
        edits.append(toml_table(["features"], {"shell_tool": False}))
        notes.append(_CLOSED)
    return _in_one_file(path, edits, notes, named)


def _gemini(command: list[str], mcp: bool) -> ClientSettings:
    path = f"{home()}/.gemini/settings.json"
    named = tuple((file, ["context", "includeDirectories"]) for file in (path, ".gemini/settings.json"))
    if not mcp:
        kind = {"name": SERVER, "type": "command"}
        hooks = json_hooks(
            _line(command, "gemini"), _matchers("gemini"),
            lambda tools, line: {"matcher": tools, "hooks": [{**kind, "command": line}]},
        )  # fmt: skip
        return _in_one_file(path, [hooks], [_RESTART], named)
    edits, notes = [json_member(["mcpServers", SERVER], _server(command))], [_RESTART]
    if not _is_hooked(path):
        edits.append(json_items(["tools", "exclude"], ("run_shell_command",)))
        notes.append(_CLOSED)
    return _in_one_file(path, edits, notes, named)


def _copilot(command: list[str], mcp: bool) -> ClientSettings:
    folder = os.environ.get("COPILOT_HOME") or f"{home()}/.copilot"
    # A project's own .github/hooks could be changed by the commands that it is about.
    path = f"{folder}/hooks/{SERVER}.json"
    if not mcp:
        hooks = json_hooks(
            _line(command, "copilot"), _matchers("copilot"),
            lambda tools, line: _chosen(tools, {"type": "command", "bash": line, "timeoutSec": _LONGEST_HOOK}),
            version=1,
        )  # fmt: skip
        return _in_one_file(path, [hooks], [_RESTART])
    server = json_member(["mcpServers", SERVER], _server(command, type="local") | {"tools": ["*"]})
    warning = f"{_OPEN}: start it with --excluded-tools bash, or connect it by the hook: fumehood setup copilot"
    notes = [_RESTART] if _is_hooked(path) else [_RESTART, warning]
    return _in_one_file(f"{folder}/mcp-config.json", [server], notes)


def _opencode(command: list[str], mcp: bool) -> ClientSettings:
    folder = f"{os.environ.get('XDG_CONFIG_HOME') or f'{home()}/.config'}/opencode"
    script = plugin(_line(command, "opencode"), _edit_tools("opencode"))
    file = ChangedFile(path=f"{folder}/plugin/{SERVER}.js", edits=(script,))
    path = f"{folder}/opencode.json{'c' if os.path.exists(f'{folder}/opencode.jsonc') else ''}"
    named = tuple((each, ["permission", "external_directory"]) for each in (path, "opencode.json"))
    if not mcp:
        return ClientSettings(files=(file,), notes=(_RESTART,), directories=named)
    server = {"type": "local", "command": [*command, "mcp"], "enabled": True}
    server |= {"environment": _own_places()} if _own_places() else {}
    edits, notes = [json_member(["mcp", SERVER], server)], [_RESTART]
    if not os.path.exists(file.path):
        edits.append(json_member(["permission", "bash"], "deny"))
        notes.append(_CLOSED)
    return _in_one_file(path, edits, notes, named)


def _cursor(command: list[str], mcp: bool) -> ClientSettings:
    path = f"{home()}/.cursor/hooks.json"
    if not mcp:
        hooks = json_hooks(
            _line(command, "cursor"), _matchers("cursor"),
            lambda tools, line: _chosen(tools, {"command": line, "failClosed": True}), version=1,
        )  # fmt: skip
        return _in_one_file(path, [hooks], [_RESTART, _CURSOR_HOOK])
    server = json_member(["mcpServers", SERVER], _server(command))
    return _in_one_file(f"{home()}/.cursor/mcp.json", [server], [] if _is_hooked(path) else [_OPEN, _NO_HOOK])


def _vscode(command: list[str], _mcp: bool) -> ClientSettings:
    folder = os.environ.get("XDG_CONFIG_HOME") or f"{home()}/.config"
    notes = ("VS Code asks whether to trust the server when it starts first", _OPEN, _NO_HOOK)
    server = json_member(["servers", SERVER], _server(command, type="stdio"))
    return _in_one_file(f"{folder}/Code/User/mcp.json", [server], notes)


CLIENTS: dict[str, Callable[[list[str], bool], ClientSettings]] = {
    "claude": _claude, "codex": _codex, "gemini": _gemini, "copilot": _copilot, "opencode": _opencode,
    "cursor": _cursor, "vscode": _vscode,
}  # fmt: skip
_SERVER_ONLY = ("vscode",)
