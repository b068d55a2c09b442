"""What connects each client: the hook or the server in its own settings, which are changed as text.

What a person wrote there, and how, stays. Each change can be made again without changing anything, and taken out again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fumehood.core import settings_text
from fumehood.core.request import shell_quote
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.cli.hook_clients import CLIENTS as HOOKED
from fumehood.faces.cli.hook_clients import SERVER
from fumehood.faces.cli.output import load_text
from fumehood.store.places import home

CLIENTS = ("claude", "codex", "gemini", "copilot", "opencode", "cursor", "vscode")
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
_COPILOT_SHELL = f"{_OPEN}: start it with --excluded-tools bash, or connect it by the hook: fumehood setup copilot"

_OURS = re.compile(r" hook --client \w+(?P<options>.*) \|\| exit 2$", re.DOTALL)


class SettingsEdit(Value):
    """One thing that is added to a text, and taken out of it."""

    add: Callable[[str], str]
    remove: Callable[[str], str]


class ClientSettings(Value):
    """What connects one client: edits of its files by their paths, and what a person must know then."""

    # By the hook, if it has one, or by the server. Where the hook is not there, its own shell is closed besides.
    hook: Mapping[str, SettingsEdit] = {}
    hook_notes: Sequence[str] = (_RESTART,)
    server: Mapping[str, SettingsEdit]
    server_notes: Sequence[str] = (_RESTART,)
    closing: Mapping[str, SettingsEdit] = {}
    shell_notes: Sequence[str] = (_CLOSED,)
    # Where the client's own settings name more directories that it may write: files, and the keys in them.
    naming: Sequence[str] = ()
    keys: Sequence[str] = ()

    def chosen(self, *, mcp: bool) -> tuple[Mapping[str, Sequence[SettingsEdit]], Sequence[str]]:
        """Return the edits of each file, the one that matters first, and what to say."""
        if self.hook and not mcp:
            return {path: [edit] for path, edit in self.hook.items()}, self.hook_notes
        # Where our hook is in the client's settings, its own shell runs in the hood as well.
        texts = {path: read_settings(path) for path in self.hook}
        if any(text if path.endswith(".js") else _hook_places(meaning(path, text)) for path, text in texts.items()):
            return {path: [edit] for path, edit in self.server.items()}, self.server_notes
        files: dict[str, list[SettingsEdit]] = {}
        for path, edit in (*self.server.items(), *self.closing.items()):
            files.setdefault(path, []).append(edit)
        return files, (*self.server_notes, *self.shell_notes)


def meaning(path: str, text: str) -> Any:
    """Return what a file of settings says, however it is written."""
    if path.endswith(".toml"):
        return _toml(text).unwrap()
    return text if path.endswith(".js") else _plain(text)


def _plain(text: str) -> Any:
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


def _hook_line(command: list[str], client: str, options: str = "") -> str:
    """Return the line that a client runs before a tool: it goes on where a hook fails in any other way than by a 2."""
    return f"{' '.join(map(shell_quote, command))} hook --client {client}{options} || exit 2"


def _options(line: object) -> str | None:
    """Return what a person added to the line of our hook, such as `--ask`; None where it is not ours."""
    ours = _OURS.search(line) if isinstance(line, str) else None
    return ours and ours["options"]


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
    matchers = _matchers(client)

    def remove(text: str) -> str:
        before = text
        while places := _hook_places(_plain(text)):
            text = settings_text.without(text, places[0][0])
        if text == before:
            return text  # what is empty is a person's own
        text = _without_empty(text, *(["hooks", event] for event in matchers), ["hooks"])
        return "" if version and _plain(text) == {"version": version} else text

    def add(text: str) -> str:
        places = _hook_places(_plain(text))
        line = _hook_line(command, client, places[0][1] if places else "")
        text = remove(text) or "{}\n"
        if version and "version" not in _plain(text):
            text = settings_text.with_member(text, ["version"], version)
        for event, tools in matchers.items():
            text = settings_text.with_item(text, ["hooks", event], entry(tools, line))
        return text

    return SettingsEdit(add=add, remove=remove)


def _without_empty(text: str, *places: list[str]) -> str:
    """Take out what holds nothing any more, one place after the other."""
    for keys in places:
        if at(_plain(text), keys) in ([], {}):
            text = settings_text.without(text, [*keys])
    return text


def _json_member(keys: list[str], value: Any) -> SettingsEdit:
    """One member of an object in JSON, such as a server's."""

    def remove(text: str) -> str:
        if not text.strip() or (not isinstance(value, dict) and at(_plain(text), keys) != value):
            return text  # a person's own
        return _without_empty(settings_text.without(text, [*keys]), *([keys[:-1]] if len(keys) > 1 else []))

    return SettingsEdit(add=lambda text: settings_text.with_member(text or "{}\n", keys, value), remove=remove)


def _json_items(keys: list[str], values: tuple[str, ...]) -> SettingsEdit:
    """Words in a list in JSON."""

    def listed(text: str) -> list[Any]:
        items = at(_plain(text), keys)
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


def _plugin(command: list[str]) -> SettingsEdit:
    """OpenCode's plugin, which is a file of our own, with the tools that it is also asked about afterwards."""
    tools = json.dumps([*HOOKED["opencode"].edits, *HOOKED["opencode"].patches])

    def add(text: str) -> str:
        there = _PLUGIN_LINE.search(text)
        options = _options(json.loads(there["line"])) if there else None
        line = json.dumps(_hook_line(command, "opencode", options or ""))
        return load_text("opencode.js").replace("TOOLS", tools, 1).replace("LINE", line, 1)

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

    def remove(text: str) -> str:
        settings = _toml(text)
        table = at(settings, keys)
        if table is None or not any(name in table for name in values):
            return text
        for name in values:
            table.pop(name, None)
        for depth in range(len(keys), 0, -1):
            if not at(settings, keys[:depth]):
                del at(settings, keys[: depth - 1])[keys[depth - 1]]
        return str(settings.as_string())

    def add(text: str) -> str:
        from tomlkit.items import InlineTable

        table = at(_toml(text).unwrap(), keys)
        if isinstance(table, dict) and all(table.get(key) == value for key, value in values.items()):
            return text
        text = remove(text)
        settings = _toml(text)
        outer = at(settings, keys[:1])
        # A table with a line of its own is one to which another such line can add.
        if outer is None or (len(keys) > 1 and not isinstance(outer, InlineTable)):
            lines = (f"{key} = {_toml_value(value).as_string()}\n" for key, value in values.items())
            return _at_end(text, f"[{'.'.join(keys)}]\n{''.join(lines)}")
        for key, value in ({keys[1]: values} if len(keys) > 1 else values).items():
            outer[key] = _toml_value(value)
        return str(settings.as_string())

    return SettingsEdit(add=add, remove=remove)


# Our own block in TOML, as it was written by any version of us, for whichever tools.
_ANY_BLOCK = re.compile(
    r'^\[\[hooks\.(?P<event>\w+)\]\]\nmatcher = "[^"\n]*"\n\n'
    r'\[\[hooks\.(?P=event)\.hooks\]\]\ntype = "command"\ncommand = .*(?:\n|\Z)',
    re.MULTILINE,
)


def _toml_hooks(command: list[str], client: str) -> SettingsEdit:
    """Hooks in TOML: for each event, the tools that it is for."""

    def remove(text: str) -> str:
        from tomlkit.items import AoT

        for block in reversed(list(_ANY_BLOCK.finditer(text))):  # the last first: what is taken out moves no other
            if _hook_places(_toml(block[0]).unwrap()):
                before = text[: block.start()].rstrip("\n")
                text = (f"{before}\n" if before.strip() else "") + text[block.end() :]
        settings = _toml(text)
        places = _hook_places(settings.unwrap())
        for (_, event, *within), _ in reversed(places):
            items = settings["hooks"][event]
            if isinstance(items, AoT):
                # The tables of such a list may lie far apart, where no parser takes one out.
                raise BadRequest("our hook was changed by hand", hint=f"remove the {event} hook that names fumehood")
            for step in within[:-1]:
                items = items[step]
            del items[within[-1]]
            for keys in (["hooks", str(event)], ["hooks"]):
                if not at(settings, keys):
                    del at(settings, keys[:-1])[keys[-1]]
        return str(settings.as_string()) if places else text

    def add(text: str) -> str:
        from tomlkit.items import AoT, InlineTable

        places = _hook_places(_toml(text).unwrap())
        line = _hook_line(command, client, places[0][1] if places else "")
        text = remove(text)
        for event, matcher in _matchers(client).items():
            settings = _toml(text)
            hooks = at(settings, ["hooks"])
            items = at(hooks, [event])
            if not isinstance(hooks, InlineTable) and (items is None or isinstance(items, AoT)):
                text = _at_end(
                    text,
                    f'[[hooks.{event}]]\nmatcher = "{matcher}"\n\n'
                    f'[[hooks.{event}.hooks]]\ntype = "command"\ncommand = {_toml_value(line).as_string()}\n',
                )
                continue
            hook = {"matcher": matcher, "hooks": [{"type": "command", "command": line}]}
            if items is None:
                hooks[event] = _toml_value([hook])
            else:
                items.append(_toml_value(hook))
            text = str(settings.as_string())
        _toml(text)
        return text

    return SettingsEdit(add=add, remove=remove)


def _matchers(client: str) -> dict[str, str]:
    """Return the tools that the hook is for, before and after them."""
    hooked = HOOKED[client]
    return {hooked.before: _EVERY_TOOL, **dict.fromkeys(hooked.after, "|".join([*hooked.edits, *hooked.patches]))}


def _chosen(tools: str, hook: dict[str, Any]) -> dict[str, Any]:
    """Return a hook that is for these tools, in clients where a hook that names none is for all."""
    return hook if tools == _EVERY_TOOL else {"matcher": tools, **hook}


def connections(command: list[str]) -> dict[str, ClientSettings]:
    """Return what connects each client to the Fumehood that a command starts."""
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home()}/.config"
    moved = os.environ.get("CLAUDE_CONFIG_DIR")
    claude = f"{moved or f'{home()}/.claude'}/settings.json"
    codex = f"{os.environ.get('CODEX_HOME') or f'{home()}/.codex'}/config.toml"
    gemini = f"{os.environ.get('GEMINI_CLI_HOME') or home()}/.gemini/settings.json"
    copilot = os.environ.get("COPILOT_HOME") or f"{home()}/.copilot"
    opencode = f"{config}/opencode/opencode.json{'c' if os.path.exists(f'{config}/opencode/opencode.jsonc') else ''}"
    # Where the person keeps things, if not in the usual place: clients pass few variables on to servers.
    names = (f"XDG_{name}_HOME" for name in ("STATE", "DATA", "CACHE", "CONFIG"))
    places = {name: os.environ[name] for name in names if os.environ.get(name)}
    server = {"command": command[0], "args": [*command[1:], "mcp"], **({"env": places} if places else {})}
    opencodes = {"type": "local", "command": [*command, "mcp"], "enabled": True}
    opencodes |= {"environment": places} if places else {}
    return {
        "claude": ClientSettings(
            hook={claude: _json_hooks(command, "claude", lambda tools, line: {
                "matcher": tools, "hooks": [{"type": "command", "command": line}],
            })},
            hook_notes=(_RESTART, _CLAUDE_HOOK),
            # Where Claude Code itself keeps servers that hold for every project.
            server={f"{moved or home()}/.claude.json": _json_member(
                ["mcpServers", SERVER], {"type": "stdio", **server}
            )},
            closing={claude: _json_items(["permissions", "deny"], ("Bash", "Monitor"))},
            naming=(claude, ".claude/settings.json", ".claude/settings.local.json"),
            keys=("permissions", "additionalDirectories"),
        ),
        "codex": ClientSettings(
            hook={codex: _toml_hooks(command, "codex")}, hook_notes=_CODEX_HOOK,
            server={codex: _toml_table(["mcp_servers", SERVER], {**server, "required": True})},
            server_notes=(_CODEX_SERVER,), closing={codex: _toml_table(["features"], {"shell_tool": False})},
            naming=(codex,), keys=("sandbox_workspace_write", "writable_roots"),
        ),
        "gemini": ClientSettings(
            hook={gemini: _json_hooks(command, "gemini", lambda tools, line: {
                "matcher": tools, "hooks": [{"name": SERVER, "type": "command", "command": line}],
            })},
            server={gemini: _json_member(["mcpServers", SERVER], server)},
            closing={gemini: _json_items(["tools", "exclude"], ("run_shell_command",))},
            naming=(gemini, ".gemini/settings.json"), keys=("context", "includeDirectories"),
        ),
        "copilot": ClientSettings(
            # A project's own .github/hooks could be changed by the commands that it is about.
            hook={f"{copilot}/hooks/{SERVER}.json": _json_hooks(command, "copilot", lambda tools, line: _chosen(
                tools, {"type": "command", "bash": line, "timeoutSec": _LONGEST_HOOK}
            ), version=1)},
            server={f"{copilot}/mcp-config.json": _json_member(
                ["mcpServers", SERVER], {"type": "local", **server, "tools": ["*"]}
            )},
            shell_notes=(_COPILOT_SHELL,),
        ),
        "opencode": ClientSettings(
            hook={f"{config}/opencode/plugin/{SERVER}.js": _plugin(command)},
            server={opencode: _json_member(["mcp", SERVER], opencodes)},
            closing={opencode: _json_member(["permission", "bash"], "deny")},
            naming=(opencode, "opencode.json"), keys=("permission", "external_directory"),
        ),
        "cursor": ClientSettings(
            hook={f"{home()}/.cursor/hooks.json": _json_hooks(command, "cursor", lambda tools, line: _chosen(
                tools, {"command": line, "failClosed": True}
            ), version=1)},
            hook_notes=(_RESTART, _CURSOR_HOOK),
            server={f"{home()}/.cursor/mcp.json": _json_member(["mcpServers", SERVER], server)},
            server_notes=(), shell_notes=(_OPEN, _NO_HOOK),
        ),
        "vscode": ClientSettings(
            server={f"{config}/Code/User/mcp.json": _json_member(["servers", SERVER], {"type": "stdio", **server})},
            server_notes=("VS Code asks whether to trust the server when it starts first",),
            shell_notes=(_OPEN, _NO_HOOK),
        ),
    }  # fmt: skip
