"""What connects each client: the hook or the server in its own settings, which are changed as text.

What a person wrote there, and how, stays. Each change can be made again without changing anything, and taken out again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fumehood.core import settings_text
from fumehood.core.request import quoted
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.cli.hook_clients import CLIENTS as HOOKED
from fumehood.faces.cli.hook_clients import SERVER
from fumehood.faces.cli.output import text_of
from fumehood.store.places import home

# The hook itself decides which tools run something: a list of names here would leave out whatever a client calls its
# next one. After a tool, only edits matter.
_EVERY_TOOL = "*"
# Copilot CLI runs a command whose hook takes longer than this, in seconds: better that it waits.
_LONGEST_HOOK = 3600

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

# Clients go on where a hook is missing or fails in any way but this one.
_OR_FORBID = " || exit 2"
_OURS = re.compile(r" hook --client \w+(?P<options>.*) \|\| exit 2$", re.DOTALL)


class SettingsEdit(Value):
    """One thing that is added to a text, and taken out of it."""

    add: Callable[[str], str]
    remove: Callable[[str], str]


class ClientSettings(NamedTuple):
    """What connects one client: edits of files, the first of them the one that matters, and what a person must know."""

    files: Mapping[str, list[SettingsEdit]]
    notes: Sequence[str]
    # Where the client's own settings name more directories that it may write: files, and the keys in them.
    naming: Sequence[str] = ()
    keys: Sequence[str] = ()


# ---- What a client's settings say, and how they are changed.

def meaning(path: str, text: str) -> Any:
    """Return what a file of settings says, however it is written."""
    if path.endswith(".toml"):
        return _toml(text).unwrap()
    if path.endswith(".js"):
        return text
    return settings_text.parse(text).plain() if text.strip() else {}


def at(value: Any, keys: Sequence[str]) -> Any:
    """Return what lies at these keys, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def read_settings(path: str) -> str:
    """Return what a file of settings holds; nothing where there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadRequest(f"{path} can't be read: {why}", hint="--print shows what to add by hand") from error


def _hook_line(command: list[str], client: str) -> str:
    """Return the line that a client runs before a tool."""
    return f"{' '.join(map(quoted, command))} hook --client {client}{_OR_FORBID}"


def _options(line: object) -> str | None:
    """Return what a person added to the line of our hook, such as `--ask`; None where it is not ours."""
    ours = _OURS.search(line) if isinstance(line, str) else None
    return None if ours is None else ours["options"]


def _with_options(line: str, options: str) -> str:
    return f"{line.removesuffix(_OR_FORBID)}{options}{_OR_FORBID}"


def _hook_places(settings: Any) -> list[tuple[list[str | int], str]]:
    """Find our hooks of every event: what is to be taken out, and the options that a person added."""
    places: list[tuple[list[str | int], str]] = []
    events = at(settings, ["hooks"])
    for event, items in (events if isinstance(events, dict) else {}).items():
        for number, item in enumerate(items if isinstance(items, list) else ()):
            inner = at(item, ["hooks"])
            inner = inner if isinstance(inner, list) else []
            for index, hook in enumerate(inner):
                if (options := _options(at(hook, ["command"]))) is not None:
                    place: list[str | int] = ["hooks", event, number]
                    places.append((place if len(inner) == 1 else [*place, "hooks", index], options))
            own = (_options(at(item, [key])) for key in ("command", "bash"))
            places += [(["hooks", event, number], options) for options in own if options is not None]
    return places


def _json_hooks(
    command: list[str], client: str, entry: Callable[[str, str], dict[str, Any]], version: int | None = None
) -> SettingsEdit:
    """Hooks in JSON: for each event, the tools that it is for; `entry` makes a hook of those and of the line to run.

    Some clients want a version beside them.
    A file with a version that holds nothing else any more is not needed.
    """
    line, matchers = _hook_line(command, client), _matchers(client)

    def remove(text: str) -> str:
        before = text
        while text.strip() and (places := _hook_places(settings_text.parse(text).plain())):
            text = settings_text.without(text, places[0][0])
        if text == before:
            return text  # what is empty is a person's own
        text = _without_empty(text, *(["hooks", event] for event in matchers), ["hooks"])
        return "" if version and text.strip() and settings_text.parse(text).plain() == {"version": version} else text

    def add(text: str) -> str:
        places = _hook_places(settings_text.parse(text).plain()) if text.strip() else []
        whole = _with_options(line, places[0][1] if places else "")
        text = remove(text) or "{}\n"
        if version and settings_text.parse(text).member("version") is None:
            text = settings_text.with_member(text, ["version"], version)
        for event, tools in matchers.items():
            text = settings_text.with_item(text, ["hooks", event], entry(tools, whole))
        return text

    return SettingsEdit(add=add, remove=remove)


def _without_empty(text: str, *places: list[str]) -> str:
    """Take out what holds nothing any more, one place after the other."""
    for keys in places:
        if text.strip() and at(settings_text.parse(text).plain(), keys) in ([], {}):
            text = settings_text.without(text, [*keys])
    return text


def _json_member(keys: list[str], value: Any) -> SettingsEdit:
    """One member of an object in JSON, such as a server's."""

    def remove(text: str) -> str:
        if not text.strip():
            return text
        if not isinstance(value, dict) and at(settings_text.parse(text).plain(), keys) != value:
            return text  # a person's own
        return _without_empty(settings_text.without(text, [*keys]), *([keys[:-1]] if len(keys) > 1 else []))

    return SettingsEdit(add=lambda text: settings_text.with_member(text or "{}\n", keys, value), remove=remove)


def _json_items(keys: list[str], values: tuple[str, ...]) -> SettingsEdit:
    """Words in a list in JSON."""

    def listed(text: str) -> list[Any]:
        items = at(settings_text.parse(text).plain(), keys) if text.strip() else None
        return items if isinstance(items, list) else []

    def add(text: str) -> str:
        for value in values:
            text = text if value in listed(text) else settings_text.with_item(text or "{}\n", keys, value)
        return text

    def remove(text: str) -> str:
        before = text
        for value in values:
            while value in listed(text):
                text = settings_text.without(text, [*keys, listed(text).index(value)])
        return text if text == before else _without_empty(text, *(keys[:depth] for depth in range(len(keys), 0, -1)))

    return SettingsEdit(add=add, remove=remove)


_PLUGIN_LINE = re.compile(r"^const HOOK = (?P<line>\".*\")$", re.MULTILINE)


def _plugin(line: str, edits: list[str]) -> SettingsEdit:
    """OpenCode's plugin, which is a file of our own; `edits` are the tools that it is also asked about afterwards."""

    def add(text: str) -> str:
        there = _PLUGIN_LINE.search(text)
        options = _options(json.loads(there["line"])) if there else None
        whole = json.dumps(_with_options(line, options or ""))
        return text_of("opencode.js").replace("TOOLS", json.dumps(edits), 1).replace("LINE", whole, 1)

    return SettingsEdit(add=add, remove=lambda _text: "")


# Codex's settings. What can be is written at the end, as a person would; inline tables and lists are added to where
# they stand, by tomlkit, which keeps everything else.


def _toml(text: str) -> Any:
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        return tomlkit.parse(text)
    except ParseError as error:
        raise BadRequest(str(error), hint="correct the file first; nothing was changed") from error


def _toml_value(value: Any) -> Any:
    """Return a value that is written on one line."""
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        for key, inner in value.items():
            table.append(key, _toml_value(inner))
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        for inner in value:
            array.append(_toml_value(inner))
        return array
    return tomlkit.item(value)


def _at_end(text: str, block: str) -> str:
    gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + block


def _toml_table(keys: list[str], values: dict[str, Any]) -> SettingsEdit:
    """Values of a table in TOML, two keys deep at most, such as a server's."""
    return SettingsEdit(
        add=lambda text: _with_table(text, keys, values), remove=lambda text: _without_values(text, keys, list(values))
    )


def _with_table(text: str, keys: list[str], values: dict[str, Any]) -> str:
    table = at(_toml(text).unwrap(), keys)
    if isinstance(table, dict) and all(table.get(key) == value for key, value in values.items()):
        return text
    text = _without_values(text, keys, list(values))
    settings = _toml(text)
    outer = at(settings, keys[:1])
    if outer is None or (len(keys) > 1 and _is_headed(outer)):
        lines = (f"{key} = {_toml_value(value).as_string()}\n" for key, value in values.items())
        return _at_end(text, f"[{'.'.join(keys)}]\n{''.join(lines)}")
    for key, value in ({keys[1]: values} if len(keys) > 1 else values).items():
        outer[key] = _toml_value(value)
    return str(settings.as_string())


def _without_values(text: str, keys: list[str], names: list[str]) -> str:
    settings = _toml(text)
    table = at(settings, keys)
    if table is None or not any(name in table for name in names):
        return text
    for name in names:
        table.pop(name, None)
    for depth in range(len(keys), 0, -1):
        if not at(settings, keys[:depth]):
            del at(settings, keys[: depth - 1])[keys[depth - 1]]
    return str(settings.as_string())


def _is_headed(table: Any) -> bool:
    """Return True for a table with a line of its own, to which another such line can add."""
    from tomlkit.items import InlineTable

    return not isinstance(table, InlineTable)


def _toml_hooks(command: list[str], client: str) -> SettingsEdit:
    """Hooks in TOML: for each event, the tools that it is for."""
    line, matchers = _hook_line(command, client), _matchers(client)

    def add(text: str) -> str:
        places = _hook_places(_toml(text).unwrap())
        text = _without_hooks(text)
        for event, matcher in matchers.items():
            text = _with_hook(text, event, matcher, _with_options(line, places[0][1] if places else ""))
        _toml(text)
        return text

    return SettingsEdit(add=add, remove=_without_hooks)


def _with_hook(text: str, event: str, matcher: str, line: str) -> str:
    settings = _toml(text)
    hooks = at(settings, ["hooks"])
    items = at(hooks, [event])
    if (hooks is None or _is_headed(hooks)) and (items is None or _is_headed_list(items)):
        return _at_end(
            text,
            f'[[hooks.{event}]]\nmatcher = "{matcher}"\n\n'
            f'[[hooks.{event}.hooks]]\ntype = "command"\ncommand = {_toml_value(line).as_string()}\n',
        )
    hook = {"matcher": matcher, "hooks": [{"type": "command", "command": line}]}
    if items is None:
        hooks[event] = _toml_value([hook])
    else:
        items.append(_toml_value(hook))
    return str(settings.as_string())


def _without_hooks(text: str) -> str:
    for start, end in _own_blocks(text):
        text = (text[:start].rstrip("\n") + "\n" if text[:start].strip() else "") + text[end:]
    settings = _toml(text)
    places = _hook_places(settings.unwrap())
    for (_, event, *within), _ in reversed(places):
        if _is_headed_list(settings["hooks"][event]):
            # The tables of such a list may lie far apart, where no parser takes one out.
            raise BadRequest("our hook was changed by hand", hint=f"remove the {event} hook that names fumehood")
        items = settings["hooks"][event]
        for step in within[:-1]:
            items = items[step]
        del items[within[-1]]
        for keys in (["hooks", str(event)], ["hooks"]):
            if not at(settings, keys):
                del at(settings, keys[:-1])[keys[-1]]
    return str(settings.as_string()) if places else text


def _is_headed_list(items: Any) -> bool:
    from tomlkit.items import AoT

    return isinstance(items, AoT)


# As it was written by any version of us, for whichever tools.
_ANY_BLOCK = re.compile(
    r'^\[\[hooks\.(?P<event>\w+)\]\]\nmatcher = "[^"\n]*"\n\n'
    r'\[\[hooks\.(?P=event)\.hooks\]\]\ntype = "command"\ncommand = .*(?:\n|\Z)',
    re.MULTILINE,
)


def _own_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield where our own blocks lie, the last first: what is taken out then moves none of the others."""
    for block in reversed(list(_ANY_BLOCK.finditer(text))):
        if _hook_places(_toml(block[0]).unwrap()):
            yield block.span()


# ---- Each client.

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
    return bool(_hook_places(meaning(path, read_settings(path))))


def _claude(command: list[str], mcp: bool) -> ClientSettings:
    moved = os.environ.get("CLAUDE_CONFIG_DIR")
    settings = f"{moved or f'{home()}/.claude'}/settings.json"
    naming = (settings, ".claude/settings.json", ".claude/settings.local.json")
    named = naming, ("permissions", "additionalDirectories")
    if not mcp:
        hooks = _json_hooks(
            command, "claude", lambda tools, line: {"matcher": tools, "hooks": [{"type": "command", "command": line}]}
        )
        return ClientSettings({settings: [hooks]}, [_RESTART, _CLAUDE_HOOK], *named)
    # Where Claude Code itself keeps servers that hold for every project.
    server = _json_member(["mcpServers", SERVER], _server(command, type="stdio"))
    files = {f"{moved or home()}/.claude.json": [server]}
    if _is_hooked(settings):
        return ClientSettings(files, [_RESTART], *named)
    closing = _json_items(["permissions", "deny"], ("Bash", "Monitor"))
    return ClientSettings({**files, settings: [closing]}, [_RESTART, _CLOSED], *named)


def _codex(command: list[str], mcp: bool) -> ClientSettings:
    path = f"{os.environ.get('CODEX_HOME') or f'{home()}/.codex'}/config.toml"
    named = (path,), ("sandbox_workspace_write", "writable_roots")
    if not mcp:
        hooks = _toml_hooks(command, "codex")
        return ClientSettings({path: [hooks]}, _CODEX_HOOK, *named)
    edits = [_toml_table(["mcp_servers", SERVER], {**_server(command), "required": True})]
    notes = [_CODEX_SERVER]
    if not _is_hooked(path):
        edits.append(_toml_table(["features"], {"shell_tool": False}))
        notes.append(_CLOSED)
    return ClientSettings({path: edits}, notes, *named)


def _gemini(command: list[str], mcp: bool) -> ClientSettings:
    path = f"{os.environ.get('GEMINI_CLI_HOME') or home()}/.gemini/settings.json"
    named = (path, ".gemini/settings.json"), ("context", "includeDirectories")
    if not mcp:
        kind = {"name": SERVER, "type": "command"}
        hooks = _json_hooks(
            command, "gemini", lambda tools, line: {"matcher": tools, "hooks": [{**kind, "command": line}]}
        )
        return ClientSettings({path: [hooks]}, [_RESTART], *named)
    edits, notes = [_json_member(["mcpServers", SERVER], _server(command))], [_RESTART]
    if not _is_hooked(path):
        edits.append(_json_items(["tools", "exclude"], ("run_shell_command",)))
        notes.append(_CLOSED)
    return ClientSettings({path: edits}, notes, *named)


def _copilot(command: list[str], mcp: bool) -> ClientSettings:
    folder = os.environ.get("COPILOT_HOME") or f"{home()}/.copilot"
    # A project's own .github/hooks could be changed by the commands that it is about.
    path = f"{folder}/hooks/{SERVER}.json"
    if not mcp:
        hooks = _json_hooks(
            command, "copilot",
            lambda tools, line: _chosen(tools, {"type": "command", "bash": line, "timeoutSec": _LONGEST_HOOK}),
            version=1,
        )  # fmt: skip
        return ClientSettings({path: [hooks]}, [_RESTART])
    server = _json_member(["mcpServers", SERVER], _server(command, type="local") | {"tools": ["*"]})
    warning = f"{_OPEN}: start it with --excluded-tools bash, or connect it by the hook: fumehood setup copilot"
    notes = [_RESTART] if _is_hooked(path) else [_RESTART, warning]
    return ClientSettings({f"{folder}/mcp-config.json": [server]}, notes)


def _opencode(command: list[str], mcp: bool) -> ClientSettings:
    folder = f"{os.environ.get('XDG_CONFIG_HOME') or f'{home()}/.config'}/opencode"
    script = _plugin(_hook_line(command, "opencode"), _edit_tools("opencode"))
    plugin = f"{folder}/plugin/{SERVER}.js"
    path = f"{folder}/opencode.json{'c' if os.path.exists(f'{folder}/opencode.jsonc') else ''}"
    named = (path, "opencode.json"), ("permission", "external_directory")
    if not mcp:
        return ClientSettings({plugin: [script]}, [_RESTART], *named)
    server = {"type": "local", "command": [*command, "mcp"], "enabled": True}
    server |= {"environment": _own_places()} if _own_places() else {}
    edits, notes = [_json_member(["mcp", SERVER], server)], [_RESTART]
    if not os.path.exists(plugin):
        edits.append(_json_member(["permission", "bash"], "deny"))
        notes.append(_CLOSED)
    return ClientSettings({path: edits}, notes, *named)


def _cursor(command: list[str], mcp: bool) -> ClientSettings:
    path = f"{home()}/.cursor/hooks.json"
    if not mcp:
        hooks = _json_hooks(
            command, "cursor", lambda tools, line: _chosen(tools, {"command": line, "failClosed": True}), version=1
        )
        return ClientSettings({path: [hooks]}, [_RESTART, _CURSOR_HOOK])
    server = _json_member(["mcpServers", SERVER], _server(command))
    return ClientSettings({f"{home()}/.cursor/mcp.json": [server]}, [] if _is_hooked(path) else [_OPEN, _NO_HOOK])


def _vscode(command: list[str], _mcp: bool) -> ClientSettings:
    folder = os.environ.get("XDG_CONFIG_HOME") or f"{home()}/.config"
    notes = ("VS Code asks whether to trust the server when it starts first", _OPEN, _NO_HOOK)
    server = _json_member(["servers", SERVER], _server(command, type="stdio"))
    return ClientSettings({f"{folder}/Code/User/mcp.json": [server]}, notes)


CLIENTS: dict[str, Callable[[list[str], bool], ClientSettings]] = {
    "claude": _claude, "codex": _codex, "gemini": _gemini, "copilot": _copilot, "opencode": _opencode,
    "cursor": _cursor, "vscode": _vscode,
}  # fmt: skip
