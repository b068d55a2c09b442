"""How each client is connected: by the hook or the MCP server in its own settings, which are edited as text.

What the person wrote there stays as it is, with its formatting. Making an edit twice changes nothing, and each edit can
be taken out again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fumehood.core import json_text
from fumehood.core.request import shell_quote
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.cli.hook_clients import CLIENTS as HOOKED
from fumehood.faces.cli.hook_clients import SERVER
from fumehood.faces.cli.output import load_text
from fumehood.store.places import home

CLIENTS = ("claude", "codex", "gemini", "copilot", "opencode", "cursor", "vscode")
# Before a tool call, the hook is called for every tool and decides itself: a list of names would miss a client's new
# tools. After a tool call, it is called for edits only.
_EVERY_TOOL = "*"
# If a hook takes longer than this, Copilot CLI runs the command without it: so the limit is long.
_HOOK_TIMEOUT_S = 3600

_RESTART_NOTE = "restart the client, so that it reads its settings"
_CODEX_HOOK_NOTES = (
    "Codex skips a hook until you trust it, and says little: start codex, type /hooks, review and trust it",
    'Codex\'s own sandbox must let Fumehood work: once the hook is trusted, set sandbox_mode = "danger-full-access"',
)
_CODEX_SERVER_NOTE = "`required = true` makes Codex refuse to start without the server, instead of going on without it"
_CLAUDE_SKILLS_NOTE = "`!` lines in skills and slash commands would run outside of the hood: they are switched off"
_CLAUDE_HOOK_NOTE = "commands need no approval any more: add --ask to the hook's command to be asked as before"
_NO_HOOK_NOTE = "it gets the server, not a hook: tell it to use run_command instead of its own terminal"
_CURSOR_HOOK_NOTE = (
    "written from Cursor's documentation, not tried with Cursor: see that `fumehood log` lists its commands"
)
_SHELL_CLOSED_NOTE = "the client's own shell is closed, so that every command goes through the server"
_SHELL_OPEN_NOTE = "WARNING: the client's own shell stays open, and what it runs there is not in the hood"
_COPILOT_SHELL_NOTE = (
    f"{_SHELL_OPEN_NOTE}: start it with --excluded-tools bash, or connect it by the hook: fumehood setup copilot"
)

_OUR_HOOK = re.compile(r" hook --client \w+(?P<options>.*) \|\| exit 2$", re.DOTALL)


class SettingsEdit(Value):
    """One edit of a settings file: `add` makes it in the file's text, `remove` takes it out again."""

    add: Callable[[str], str]
    remove: Callable[[str], str]


class ClientSettings(Value):
    """How one client is connected: edits by the path of the file, and notes for the person."""

    # The client gets the hook, or the server. With the server alone, its own shell is closed too (`closing_shell`).
    hook: Mapping[str, SettingsEdit] = {}
    hook_notes: Sequence[str] = (_RESTART_NOTE,)
    server: Mapping[str, SettingsEdit]
    server_notes: Sequence[str] = (_RESTART_NOTE,)
    closing_shell: Mapping[str, SettingsEdit] = {}
    shell_notes: Sequence[str] = (_SHELL_CLOSED_NOTE,)
    # The client's settings may name more directories that it can write: in these files, at these keys.
    settings_files: Sequence[str] = ()
    directory_keys: Sequence[str] = ()

    @property
    def has_hook(self) -> bool:
        """True if our hook is in the client's settings."""
        texts = {path: read_settings(path) for path in self.hook}
        return any(
            text if path.endswith(".js") else _hook_places(parse_settings(path, text)) for path, text in texts.items()
        )

    def edits_and_notes(self, *, mcp: bool) -> tuple[Mapping[str, Sequence[SettingsEdit]], Sequence[str]]:
        """Return the edits of each file, the most important file first, and the notes."""
        if self.hook and not mcp:
            return {path: [edit] for path, edit in self.hook.items()}, self.hook_notes
        if self.has_hook:  # then its own shell need not be closed
            return {path: [edit] for path, edit in self.server.items()}, self.server_notes
        files: dict[str, list[SettingsEdit]] = {}
        for path, edit in (*self.server.items(), *self.closing_shell.items()):
            files.setdefault(path, []).append(edit)
        return files, (*self.server_notes, *self.shell_notes)


def parse_settings(path: str, text: str) -> Any:
    """Return the content of a settings file as values, whatever its formatting; a script stays text."""
    if path.endswith(".toml"):
        return _parse_toml(text).unwrap()
    return text if path.endswith(".js") else _parse_json(text)


def _parse_json(text: str) -> Any:
    return json_text.parse_json(text).as_python() if text.strip() else {}


def value_at(value: Any, keys: Sequence[str]) -> Any:
    """Return the value at these keys, one inside the other, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def read_settings(path: str) -> str:
    """Return the text of a settings file, "" if there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadRequest(f"{path} can't be read: {why}", hint="--print shows what to add by hand") from error


def _hook_line(command: list[str], client: str, options: str = "") -> str:
    """Return the hook's command line. `|| exit 2`: clients treat any other failure of a hook as permission."""
    return f"{' '.join(map(shell_quote, command))} hook --client {client}{options} || exit 2"


def _options_of_hook(line: object) -> str | None:
    """Return the options that a person added to the line of our hook, such as `--ask`; None if it is not our line."""
    ours = _OUR_HOOK.search(line) if isinstance(line, str) else None
    return ours and ours["options"]


def _hook_places(settings: Any) -> list[tuple[list[str | int], str]]:
    """Find our hooks in all events: their places (keys and indexes), and the options that a person added to each."""
    places: list[tuple[list[str | int], str]] = []
    events = value_at(settings, ["hooks"])
    for event, items in (events if isinstance(events, dict) else {}).items():
        for number, item in enumerate(items if isinstance(items, list) else ()):
            inner = value_at(item, ["hooks"])
            inner = inner if isinstance(inner, list) else []
            for index, hook in enumerate(inner):
                if (options := _options_of_hook(value_at(hook, ["command"]))) is not None:
                    place: list[str | int] = ["hooks", event, number]
                    places.append((place if len(inner) == 1 else [*place, "hooks", index], options))
            own = (_options_of_hook(value_at(item, [key])) for key in ("command", "bash"))
            places += [(["hooks", event, number], options) for options in own if options is not None]
    return places


def codex_trusts_hook(path: str) -> bool:
    """Return True if Codex's settings say that the person has looked at our hook and trusts it."""
    settings = parse_settings(path, read_settings(path))
    for keys, _ in _hook_places(settings):
        if keys[1] == HOOKED["codex"].before:
            place = f":pre_tool_use:{keys[2]}:{keys[4] if len(keys) > 3 else 0}"
            states = value_at(settings, ["hooks", "state"])
            trusted = [state for key, state in (states or {}).items() if key.endswith(place)]
            return any(value_at(each, ["trusted_hash"]) and each.get("enabled", True) for each in trusted)
    return False


def _json_hooks(
    command: list[str], client: str, entry: Callable[[str, str], dict[str, Any]], version: int | None = None
) -> SettingsEdit:
    """Return the edit that adds our hooks to JSON settings; `entry` makes one from the tools and the command line.

    Some clients want a `version` in the file. A file with nothing but the version is removed.
    """
    matchers = _tools_by_event(client)

    def remove(text: str) -> str:
        before = text
        while places := _hook_places(_parse_json(text)):
            text = json_text.without_entry(text, places[0][0])
        if text == before:
            return text  # without our hooks, empty lists are the person's own
        text = _without_empty(text, *(["hooks", event] for event in matchers), ["hooks"])
        return "" if version and _parse_json(text) == {"version": version} else text

    def add(text: str) -> str:
        places = _hook_places(_parse_json(text))
        line = _hook_line(command, client, places[0][1] if places else "")
        text = remove(text) or "{}\n"
        if version and "version" not in _parse_json(text):
            text = json_text.with_member(text, ["version"], version)
        for event, tools in matchers.items():
            text = json_text.with_item(text, ["hooks", event], entry(tools, line))
        return text

    return SettingsEdit(add=add, remove=remove)


def _without_empty(text: str, *places: list[str]) -> str:
    """Remove the lists and objects at these places, in this order, if they are empty."""
    for keys in places:
        if value_at(_parse_json(text), keys) in ([], {}):
            text = json_text.without_entry(text, [*keys])
    return text


def _json_member(keys: list[str], value: Any) -> SettingsEdit:
    """Return the edit that sets one member in JSON settings, such as a server."""

    def remove(text: str) -> str:
        if not text.strip() or (not isinstance(value, dict) and value_at(_parse_json(text), keys) != value):
            return text  # another value is the person's own
        return _without_empty(json_text.without_entry(text, [*keys]), *([keys[:-1]] if len(keys) > 1 else []))

    return SettingsEdit(add=lambda text: json_text.with_member(text or "{}\n", keys, value), remove=remove)


def _no_skill_commands(hooks: SettingsEdit) -> SettingsEdit:
    """Also have Claude Code not run the `!` lines of skills and slash commands, which call no hook."""
    key = "disableSkillShellExecution"
    switch = _json_member([key], True)
    return SettingsEdit(
        # A person's own decision stays.
        add=lambda text: hooks.add(text) if key in _parse_json(text) else switch.add(hooks.add(text)),
        remove=lambda text: hooks.remove(switch.remove(text)),
    )


def _json_items(keys: list[str], values: tuple[str, ...]) -> SettingsEdit:
    """Return the edit that adds words to a list in JSON settings."""

    def listed(text: str) -> list[Any]:
        items = value_at(_parse_json(text), keys)
        return items if isinstance(items, list) else []

    def add(text: str) -> str:
        for value in values:
            text = text if value in listed(text) else json_text.with_item(text or "{}\n", keys, value)
        return text

    def remove(text: str) -> str:
        before = text
        for value in values:
            while value in listed(text):
                text = json_text.without_entry(text, [*keys, listed(text).index(value)])
        return text if text == before else _without_empty(text, *(keys[:depth] for depth in range(len(keys), 0, -1)))

    return SettingsEdit(add=add, remove=remove)


_PLUGIN_LINE = re.compile(r"^const HOOK = (?P<line>\".*\")$", re.MULTILINE)


def _plugin(command: list[str]) -> SettingsEdit:
    """Return the edit that writes OpenCode's plugin, a file of our own; it names the tools that are edits."""
    tools = json.dumps([*HOOKED["opencode"].edits, *HOOKED["opencode"].patches])

    def add(text: str) -> str:
        there = _PLUGIN_LINE.search(text)
        options = _options_of_hook(json.loads(there["line"])) if there else None
        line = json.dumps(_hook_line(command, "opencode", options or ""))
        return load_text("opencode.js").replace("TOOLS", tools, 1).replace("LINE", line, 1)

    return SettingsEdit(add=add, remove=lambda _text: "")


# Codex's settings are TOML. New tables are added at the end, as a person would write them. Existing inline tables and
# lists are changed in place by tomlkit, which keeps everything else.


def _parse_toml(text: str) -> Any:
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        return tomlkit.parse(text)
    except ParseError as error:
        raise BadRequest(str(error), hint="correct the file first; nothing was changed") from error


def _toml_value(value: Any) -> Any:
    """Return a tomlkit value that is written on one line."""
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
    """Return the edit that sets values of a table in TOML settings; the table is at most two keys deep."""

    def remove(text: str) -> str:
        settings = _parse_toml(text)
        table = value_at(settings, keys)
        if table is None or not any(name in table for name in values):
            return text
        for name in values:
            table.pop(name, None)
        for depth in range(len(keys), 0, -1):
            if not value_at(settings, keys[:depth]):
                del value_at(settings, keys[: depth - 1])[keys[depth - 1]]
        return str(settings.as_string())

    def add(text: str) -> str:
        from tomlkit.items import InlineTable

        table = value_at(_parse_toml(text).unwrap(), keys)
        if isinstance(table, dict) and all(table.get(key) == value for key, value in values.items()):
            return text
        text = remove(text)
        settings = _parse_toml(text)
        outer = value_at(settings, keys[:1])
        # If the outer table is not inline, our table can follow at the end with a header line of its own.
        if outer is None or (len(keys) > 1 and not isinstance(outer, InlineTable)):
            lines = (f"{key} = {_toml_value(value).as_string()}\n" for key, value in values.items())
            return _at_end(text, f"[{'.'.join(keys)}]\n{''.join(lines)}")
        for key, value in ({keys[1]: values} if len(keys) > 1 else values).items():
            outer[key] = _toml_value(value)
        return str(settings.as_string())

    return SettingsEdit(add=add, remove=remove)


# A hook in TOML as any version of this program has written it, for any tools.
_HOOK_BLOCK = re.compile(
    r'^\[\[hooks\.(?P<event>\w+)\]\]\nmatcher = "[^"\n]*"\n\n'
    r'\[\[hooks\.(?P=event)\.hooks\]\]\ntype = "command"\ncommand = .*(?:\n|\Z)',
    re.MULTILINE,
)


def _toml_hooks(command: list[str], client: str) -> SettingsEdit:
    """Return the edit that adds our hooks to TOML settings."""

    def remove(text: str) -> str:
        from tomlkit.items import AoT

        for block in reversed(list(_HOOK_BLOCK.finditer(text))):  # the last first, so that positions stay valid
            if _hook_places(_parse_toml(block[0]).unwrap()):
                before = text[: block.start()].rstrip("\n")
                text = (f"{before}\n" if before.strip() else "") + text[block.end() :]
        settings = _parse_toml(text)
        places = _hook_places(settings.unwrap())
        for (_, event, *within), _ in reversed(places):
            items = settings["hooks"][event]
            if isinstance(items, AoT):
                # The tables of such a list may be far apart in the file, and tomlkit can't remove one of them.
                raise BadRequest("our hook was changed by hand", hint=f"remove the {event} hook that names fumehood")
            for step in within[:-1]:
                items = items[step]
            del items[within[-1]]
            for keys in (["hooks", str(event)], ["hooks"]):
                if not value_at(settings, keys):
                    del value_at(settings, keys[:-1])[keys[-1]]
        return str(settings.as_string()) if places else text

    def add(text: str) -> str:
        from tomlkit.items import AoT, InlineTable

        places = _hook_places(_parse_toml(text).unwrap())
        line = _hook_line(command, client, places[0][1] if places else "")
        text = remove(text)
        for event, matcher in _tools_by_event(client).items():
            settings = _parse_toml(text)
            hooks = value_at(settings, ["hooks"])
            items = value_at(hooks, [event])
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
        _parse_toml(text)
        return text

    return SettingsEdit(add=add, remove=remove)


def _tools_by_event(client: str) -> dict[str, str]:
    """Return the events that call the hook, each with the pattern of its tools."""
    hooked = HOOKED[client]
    return {hooked.before: _EVERY_TOOL, **dict.fromkeys(hooked.after, "|".join([*hooked.edits, *hooked.patches]))}


def _with_matcher(tools: str, hook: dict[str, Any]) -> dict[str, Any]:
    """Add the tools to a hook, for clients in which a hook without a matcher is for all tools."""
    return hook if tools == _EVERY_TOOL else {"matcher": tools, **hook}


def connections(command: list[str]) -> dict[str, ClientSettings]:
    """Return how each client is connected, by the command that starts Fumehood."""
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home()}/.config"
    moved = os.environ.get("CLAUDE_CONFIG_DIR")
    claude = f"{moved or f'{home()}/.claude'}/settings.json"
    codex = f"{os.environ.get('CODEX_HOME') or f'{home()}/.codex'}/config.toml"
    gemini = f"{os.environ.get('GEMINI_CLI_HOME') or home()}/.gemini/settings.json"
    copilot = os.environ.get("COPILOT_HOME") or f"{home()}/.copilot"
    opencode = f"{config}/opencode/opencode.json{'c' if os.path.exists(f'{config}/opencode/opencode.jsonc') else ''}"
    # Directories that the person has moved are passed on explicitly, because clients pass few variables to servers.
    names = (f"XDG_{name}_HOME" for name in ("STATE", "DATA", "CACHE", "CONFIG"))
    places = {name: os.environ[name] for name in names if os.environ.get(name)}
    server = {"command": command[0], "args": [*command[1:], "mcp"], **({"env": places} if places else {})}
    opencodes = {"type": "local", "command": [*command, "mcp"], "enabled": True}
    opencodes |= {"environment": places} if places else {}
    return {
        "claude": ClientSettings(
            hook={claude: _no_skill_commands(_json_hooks(command, "claude", lambda tools, line: {
                "matcher": tools, "hooks": [{"type": "command", "command": line}],
            }))},
            hook_notes=(_RESTART_NOTE, _CLAUDE_HOOK_NOTE, _CLAUDE_SKILLS_NOTE),
            # Where Claude Code itself keeps servers that hold for every project.
            server={f"{moved or home()}/.claude.json": _json_member(
                ["mcpServers", SERVER], {"type": "stdio", **server}
            )},
            closing_shell={claude: _json_items(["permissions", "deny"], ("Bash", "Monitor"))},
            settings_files=(claude, ".claude/settings.json", ".claude/settings.local.json"),
            directory_keys=("permissions", "additionalDirectories"),
        ),
        "codex": ClientSettings(
            hook={codex: _toml_hooks(command, "codex")}, hook_notes=_CODEX_HOOK_NOTES,
            server={codex: _toml_table(["mcp_servers", SERVER], {**server, "required": True})},
            server_notes=(_CODEX_SERVER_NOTE,), closing_shell={codex: _toml_table(["features"], {"shell_tool": False})},
            settings_files=(codex,), directory_keys=("sandbox_workspace_write", "writable_roots"),
        ),
        "gemini": ClientSettings(
            hook={gemini: _json_hooks(command, "gemini", lambda tools, line: {
                "matcher": tools, "hooks": [{"name": SERVER, "type": "command", "command": line}],
            })},
            server={gemini: _json_member(["mcpServers", SERVER], server)},
            closing_shell={gemini: _json_items(["tools", "exclude"], ("run_shell_command",))},
            settings_files=(gemini, ".gemini/settings.json"), directory_keys=("context", "includeDirectories"),
        ),
        "copilot": ClientSettings(
            # A project's own .github/hooks could be changed by the commands that it is about.
            hook={f"{copilot}/hooks/{SERVER}.json": _json_hooks(command, "copilot", lambda tools, line: _with_matcher(
                tools, {"type": "command", "bash": line, "timeoutSec": _HOOK_TIMEOUT_S}
            ), version=1)},
            server={f"{copilot}/mcp-config.json": _json_member(
                ["mcpServers", SERVER], {"type": "local", **server, "tools": ["*"]}
            )},
            shell_notes=(_COPILOT_SHELL_NOTE,),
        ),
        "opencode": ClientSettings(
            hook={f"{config}/opencode/plugin/{SERVER}.js": _plugin(command)},
            server={opencode: _json_member(["mcp", SERVER], opencodes)},
            closing_shell={opencode: _json_member(["permission", "bash"], "deny")},
            settings_files=(opencode, "opencode.json"), directory_keys=("permission", "external_directory"),
        ),
        "cursor": ClientSettings(
            hook={f"{home()}/.cursor/hooks.json": _json_hooks(command, "cursor", lambda tools, line: _with_matcher(
                tools, {"command": line, "failClosed": True}
            ), version=1)},
            hook_notes=(_RESTART_NOTE, _CURSOR_HOOK_NOTE),
            server={f"{home()}/.cursor/mcp.json": _json_member(["mcpServers", SERVER], server)},
            server_notes=(), shell_notes=(_SHELL_OPEN_NOTE, _NO_HOOK_NOTE),
        ),
        "vscode": ClientSettings(
            server={f"{config}/Code/User/mcp.json": _json_member(["servers", SERVER], {"type": "stdio", **server})},
            server_notes=("VS Code asks whether to trust the server when it starts first",),
            shell_notes=(_SHELL_OPEN_NOTE, _NO_HOOK_NOTE),
        ),
    }  # fmt: skip
