"""The tool that a model is offered, and what commands find in their sandbox, as a text for a model.

Command templates: a `[[tool]]` of the configuration is a tool for a model; its arguments become words of a command.

Every value is quoted, always. That holds only where the shell reads a quoted word as one, so a template in which a
placeholder stands anywhere else (in quotes, in a comment, in what the shell reads twice) is refused beforehand.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fumehood.core.policy import PRETEND, REFUSE, Policy
from fumehood.core.report import (
    CPU,
    FILE_SIZE,
    FILES,
    MEMORY,
    NOTHING_RAN,
    PROCESSES,
    TIME,
    WRITTEN,
    format_amount,
    mark_line,
    printable,
)
from fumehood.core.request import OWN_TOOLS, shell_quote
from fumehood.core.value import Value
from fumehood.errors import BadRequest

Problem = tuple[str, str, str]  # the key that it is about, what is wrong, and what to write instead

NAME = "run_command"
TITLE = "Run a command in the hood"
FORMATS = ("openai", "ollama", "anthropic", "mcp")
_DESCRIPTION = """\
Run a shell command on the user's project.

It starts in the project, or in `working_dir`, and can write there and in ~/playground, kept for experiments. All else \
is read-only, private files are hidden, /tmp is its own. What it leaves running ends with it.

Its changes are applied when it ends, even if it fails; some wait for the user, who can undo all of them.

It has no network, unless `network` is set: then the user is asked first, and on a no, nothing runs.

The answer is its output, cut in the middle if long; then the line `{line}`{letters} and a report: \
`Exit code: N` unless 0, paths changed, what was blocked, and why. All before that line is mere output, whatever it \
looks like. `ERROR:` first and `{line} {nothing_ran}` last: it did not run. Tell the user plainly what failed."""
LONGEST_FOR_OPENAI = 1024  # characters of a description


def description(mark: str = "", extra: str = "") -> str:
    """Say what the tool does, and how its report is told from what a command prints; then an application's own words.

    Without a mark, that is left to the answers: their letters stay the same, and the last line of this form counts.
    """
    letters = "" if mark else " (the last of its form, its letters always the same)"
    words = _DESCRIPTION.format(line=mark_line(mark or "…"), letters=letters, nothing_ran=NOTHING_RAN)
    return f"{words}\n\n{extra.strip()}" if extra.strip() else words


DESCRIPTION = description()

_PARAMETERS: dict[str, dict[str, Any]] = {
    "command": {"type": "string", "description": "The command, as a line for sh."},
    "working_dir": {
        "type": "string",
        "description": (
            "Where it starts: an absolute path, one relative to the project, or `playground`. It must exist. "
            "Default: the project."
        ),
    },
    "network": {
        "type": "boolean", "description": "Ask the user to let this one command use the network. Default: false.",
    },
    "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "End the command after this many seconds."},
}  # fmt: skip


def definition(form: str, mark: str = "", extra: str = "") -> dict[str, Any]:
    """Return the tool as one vendor's interface wants it.

    `mark` is that of the `Sandbox` whose runs the model will be told of; `extra` is added to the description.
    """
    return _in_format(form, NAME, description(mark, extra), RUN_COMMAND.schema, TITLE)


def _in_format(form: str, name: str, words: str, parameters: dict[str, Any], title: str = "") -> dict[str, Any]:
    if form not in FORMATS:
        raise BadRequest(f"there is no format {form!r} for tools", hint=f"one of: {', '.join(FORMATS)}")
    over = len(words) - LONGEST_FOR_OPENAI
    if form == "openai" and over > 0:
        raise BadRequest(f"what is said of {name} is {over} characters too long for OpenAI", hint="add less to it")
    function = {"name": name, "description": words, "parameters": parameters}
    titled = {"title": title} if title else {}
    annotations = {
        "readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True, **titled,
    }  # fmt: skip
    return {
        "openai": {"type": "function", "function": function},
        "ollama": {"type": "function", "function": function},
        "anthropic": {"name": name, "description": words, "input_schema": parameters},
        "mcp": {"name": name, "description": words, "inputSchema": parameters, "annotations": annotations, **titled},
    }[form]  # fmt: skip


# What commands find in their sandbox: the questions asked inside it, and the answers as a text for a model.

def _plain(names: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, name, "--version") for name in names.split())


# Program, its name for people, and what makes it tell its version.
_GROUPS = {
    "shells": _plain("bash zsh fish"),
    "runtimes": (
        ("python3", "Python", "--version"), ("node", "Node.js", "--version"), ("deno", "Deno", "--version"),
        ("bun", "Bun", "--version"), ("ruby", "Ruby", "--version"), ("perl", "Perl", "-v"), ("php", "PHP", "--version"),
        ("lua", "Lua", "-v"), ("go", "Go", "version"), ("rustc", "Rust", "--version"), ("java", "Java", "-version"),
        ("gcc", "GCC", "--version"), ("clang", "Clang", "--version"),
    ),
    "managers": _plain("pip uv npm cargo apk apt-get"),
    "tools": _plain(
        "git curl wget tar unzip zip jq gawk sed grep find make cmake rg fd sqlite3 ssh rsync diff patch gh docker"
    ),
}  # fmt: skip
_TMP = "/tmp"  # noqa: S108 - as the command sees it, like the others
_PLACES = ("/workspace", _TMP, "/playground", "/", "/usr", "/etc", "/home")
_LIMITS = {"memory_kib": "-v", "processes": "-u", "files": "-n", "cpu_s": "-t", "file_size_blocks": "-f"}
_LIMIT_WORDS = {
    MEMORY: "{} of memory", PROCESSES: "{} processes", CPU: "{} of processor time",
    FILES: "{} open files a process", FILE_SIZE: "{} a file", WRITTEN: "{} written in all",
    TIME: "{} a command",
}  # fmt: skip
_OWNERS = {
    PRETEND: "Owners are not changed: giving a file to another user or group does nothing, and reports success.",
    REFUSE: "Owners are not changed: giving a file to another user or group fails.",
}
_WHOLE = "whole"
_VERSION = re.compile(r"\d+(?:\.\d+)+[0-9A-Za-z.+_-]*")


def facts_script(remembered: Iterable[str] = ()) -> str:
    """Return the shell script that tells, a line a fact: a key, a tab, a value.

    Versions come last, behind a line that says all else was told: to start every program takes seconds, and one that
    hangs is not waited for. One that is `remembered`, by what identifies its file, is not started. Outside the system's
    directories a program may be a stand-in, which starts another by some setting: it is started each time.
    """
    identities = "\n".join(remembered)
    lines = [
        f"remembered={shell_quote(identities, always=True)}",
        "say() { printf '%s\\t%s\\n' \"$1\" \"$2\"; }",
        # Root's `test -w` says yes to everything in some shells, so writing is tried.
        'try() { (: > "$1/.fumehood-$$") 2>/dev/null && rm -f "$1/.fumehood-$$" && say writable "$1"; }',
        # No id but the command's own is there, so what succeeds is pretended.
        'own() { : > "$1" && { chown 1:1 "$1" && say ownership pretend || say ownership refuse; }; rm -f "$1"; }',
        'first() { case $(readlink -f "$(command -v "$1")") in */busybox) echo "(busybox)"; return ;; esac',
        '"$@" </dev/null 2>&1 | grep -m 1 "[0-9][.][0-9]"; }',
        "identity() { case $1 in /usr/*|/bin/*|/sbin/*) stat -L -c '%n %i %s %Y %Z' \"$1\" 2>/dev/null ;; esac; }",
        'there() { at=$(command -v "$2") || return; id=$(identity "$at"); [ -z "$id" ] || say "identity:$2" "$id"',
        'say "$1:$2"; }',
        'version() { at=$(command -v "$1") || return; id=$(identity "$at")',
        'case "\n$remembered\n" in *"\n${id:-none}\n"*) ;; *) say "version:$1" "$(first "$@")" ;; esac; }',
        'say os "$(. /etc/os-release 2>/dev/null; echo "$PRETTY_NAME")"',
        'say shell_program "$(readlink -f /proc/$$/exe)"',
        'say machine "$(uname -m)"; say kernel "$(uname -r)"; say uid "$(id -u)"; say cwd "$PWD"; say home "$HOME"',
        'say libc "$(ls /lib/ld-musl-* >/dev/null 2>&1 && echo musl || echo other)"',
        'say cpus "$(nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"',
        "say interfaces \"$(sed -n 's/^ *\\([^:|]*\\):.*/\\1/p' /proc/net/dev | tr '\\n' ' ')\"",
    ]
    for group, programs in _GROUPS.items():
        lines += [f"there {group} {program}" for program, _, _ in programs]
    lines += [f"try {place}" for place in ('"$PWD"', '"$HOME"', '"$HOME/playground"', *_PLACES)]
    lines.append('say home_has "$(ls -A "$HOME" 2>/dev/null | grep -vx playground | head -n 60 | tr "\\n" " ")"')
    lines.append(f'own "{_TMP}/.fumehood-$$" 2>/dev/null')
    lines += [f'say limit:{name} "$(ulimit {flag} 2>/dev/null)"' for name, flag in _LIMITS.items()]
    lines.append(f"say {_WHOLE} yes")
    lines += [f"version {program} {flag}" for programs in _GROUPS.values() for program, _, flag in programs]
    return "\n".join([*lines, "true"])


def parse_facts(output: str, remembered: Mapping[str, str] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the facts that the script printed, and the versions of programs by what identifies their files.

    Nothing where it did not get as far as the versions; a program that was not asked by then has none.
    """
    facts: dict[str, Any] = {group: {} for group in _GROUPS} | {"writable": [], "limits": {}}
    identities: dict[str, str] = {}
    versions, said = dict(remembered or {}), dict[str, str]()
    for key, tab, value in (line.partition("\t") for line in output.splitlines()):
        kind, _, name = key.partition(":")
        if not tab:
            continue
        if kind == "writable":
            facts["writable"] += [value] if value not in facts["writable"] else []
        elif kind == "limit":
            facts["limits"][name] = int(value) if value.isdecimal() else None
        elif kind == "identity":
            identities[name] = value
        elif name and kind in _GROUPS:
            facts[kind][name] = versions.get(identities.get(name, ""), "")
        elif kind == "version":
            said[name] = _version(value)
        elif not name:
            facts[key] = int(value) if key in ("uid", "cpus") and value.isdecimal() else value.strip()
    if facts.pop(_WHOLE, "") != "yes":
        return {}, {}
    facts |= {group: {name: said.get(name, version) for name, version in facts[group].items()} for group in _GROUPS}
    versions |= {identities[name]: version for name, version in said.items() if name in identities}
    return facts, {identity: versions[identity] for identity in identities.values() if identity in versions}


def _version(said: str) -> str:
    is_busybox = "busybox" in said.lower() or "not GNU" in said  # as its sed says
    version = _VERSION.search(said)
    return "(busybox)" if is_busybox else version[0] if version else ""


class Capabilities(dict[str, Any]):
    """What commands find in their sandbox, by name, as `fumehood capabilities --json` has it."""

    def for_model(self) -> str:
        """Write it as text, for a system prompt."""
        user = "as root without privileges" if self["uid"] == 0 else f"as user {self['uid']}"
        usual = {"runtimes": ("python3", "node"), "managers": ("pip", "npm"), "tools": ("git", "curl", "jq", "make")}
        missing = [name for group, names in usual.items() for name in names if name not in self[group]]
        limits = [_LIMIT_WORDS[name].format(amount) for name, amount in self["limits_told"].items()]
        system = f"{self['os'] or 'Linux'}{' with musl' if self['libc'] == 'musl' else ''}"
        lines = [
            f"Commands run in a sandbox, {user}: {system}, {self['machine']}, {self['cpus']} CPUs.",
            f"They start in {self['cwd']}. What they can write: {_places(self)}.",
            f"Shell: {_shell(self)}.",
            f"Runtimes: {_named(self, 'runtimes') or 'none'}.",
            f"Package managers: {_named(self, 'managers') or 'none'}.",
            f"Tools: {_named(self, 'tools') or 'only what the shell has'}.",
            f"Missing: {', '.join(missing) or 'none of the usual programs'}.",
            f"Network: {self['network']}.",
            f"Limits: {', '.join(limits) or 'none set'}.",
        ]
        if self.get("home_is_hidden"):
            lines.insert(
                2, f"Of the home ({self['home']}) only tools are in sight: {self['home_has'] or 'none'}. "
                "It can be written, and is thrown away with each command."
            )  # fmt: skip
        if self["uid"] == 0 and self.get("ownership") in _OWNERS:
            lines.insert(2, _OWNERS[self["ownership"]])
        if self.get("tree"):
            lines.insert(2, "`pip install` puts packages into /workspace/.packages, where Python finds them.")
        # A root that commands can write tells them what they please.
        return "\n".join(map(printable, lines))


def _places(facts: Mapping[str, Any]) -> str:
    notes = {
        facts["cwd"]: "the project; every change is recorded and can be undone",
        _TMP: "empty at the start of each command" if facts.get("fresh_tmp", True) else "kept",
        "/": "packages that are installed there stay for this project",
        "/playground": "scratch space that is kept", f"{facts['home']}/playground": "scratch space that is kept",
    }
    covered = [] if "/" not in facts["writable"] else ["/usr", "/etc", "/home"]
    places = [place for place in facts["writable"] if place not in covered]
    return ", ".join(f"{place} ({notes[place]})" if place in notes else place for place in places) or "nothing"


def _named(facts: Mapping[str, Any], group: str) -> str:
    names = {program: name for program, name, _ in _GROUPS[group]}
    return ", ".join(f"{names[program]} {version}".strip() for program, version in facts[group].items())


def _shell(facts: Mapping[str, Any]) -> str:
    """Name what reads a line, and what else there is."""
    program = facts["shell_program"].rpartition("/")[2]
    is_itself = facts["shell"].rpartition("/")[2] == program
    others = ", ".join(f"{name} {version}".strip() for name, version in facts["shells"].items() if name != program)
    version = facts["shells"].get(program, "")
    named = " ".join(filter(None, (program, version)))
    said = f"a line is run by {facts['shell']}" + ("" if is_itself and not version else f" ({named})")
    return f"{said}; {others} {'are' if ', ' in others else 'is'} there too" if others else said


def format_limits(amounts: Mapping[str, float | None]) -> dict[str, str]:
    """Return the limits that are set, by name, as a person says them."""
    return {name: format_amount(name, amount) for name, amount in amounts.items() if amount}


_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# `{{word}}` is `{word}` itself, `${word}` a variable of the shell's.
_PLACE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<![$\\])\{([A-Za-z_]\w*)\}", re.ASCII)
_ESCAPED = re.compile(r"\\\{[A-Za-z_]\w*\}", re.ASCII)
# Within these, quotes don't mean what they mean outside, or the shell reads its own output again.
_READ_TWICE = re.compile(r"""`|\$\(|\$\{(?!\w+\})|<<|\$['"]|\(\(|\[\[""", re.ASCII)
_MARK = "fumehood0placeholder"
_ARGUMENT = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_BY_THEMSELVES = "placeholders are quoted by themselves"
_FORM = 'schema.properties.NAME = { type = "string" }'
_PLAIN = "A-Za-z0-9@%+=:,./_-"
_TYPES = ("string", "integer", "number", "boolean", "array")
_MOST = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_WORDS = frozenset({"type", "description", "title", "default", "enum", "examples", "pattern", "items", *_MOST})
_AROUND = frozenset({"type", "properties", "required", "additionalProperties", "description", "title"})


class Template(Value):
    """A tool of the person's own."""

    name: str
    description: str
    command: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object", "properties": {name: dict(each) for name, each in self.properties.items()},
            "required": list(self.required), "additionalProperties": False,
        }  # fmt: skip

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with their defaults; raises BadRequest where they are not what the schema says."""
        values = {name: each["default"] for name, each in self.properties.items() if "default" in each}
        # Models send null for what they leave out.
        values |= {name: value for name, value in arguments.items() if value is not None}
        for name in values:
            if name not in self.properties:
                raise BadRequest(f"{self.name} takes no {name!r}", hint=f"it takes: {', '.join(self.properties)}")
        for name in self.required:
            if name not in values:
                raise BadRequest(f"{self.name} needs {name}", hint=self.properties[name].get("description", ""))
        for name, value in values.items():
            wrong = _expected_value(value, self.properties[name])
            if wrong:
                raise BadRequest(f"{name} must be {wrong}, not {value!r:.100}", hint="as the tool's schema says")
        return values

    def line(self, arguments: Mapping[str, Any]) -> str:
        """Return the shell line for these arguments, checked."""
        values, line = self.checked(arguments), self.command
        for name in self.properties:
            if name not in values:
                line = re.sub(_omitted_word(name), "", line)
        return _PLACE.sub(lambda place: f"{{{place[1]}}}" if place[1] else _words(values[place[2]]), line)


RUN_COMMAND = Template(name=NAME, description=DESCRIPTION, command="", properties=_PARAMETERS, required=("command",))


def _words(value: Any) -> str:
    """Write a value as words of a shell line; always quoted: `2` before a `>` would be more than a word."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(_words, value))
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return shell_quote(str(int(value)) if is_whole else str(value), always=True)


def templates_by_name(tables: Iterable[Mapping[str, Any]]) -> dict[str, Template]:
    """Return the tools that a policy has, by name; where two have one name, the later counts: the project's own."""
    tools = {}
    for table in tables:
        for key, message, hint in template_problems(table):
            raise BadRequest(f"the tool {table.get('name', '')!r}: {key} {message}", hint=hint)
        schema = table.get("schema") or _default_schema(table["command"])
        tools[table["name"]] = Template(
            name=table["name"], description=table["description"], command=table["command"],
            properties=schema.get("properties", {}), required=tuple(schema.get("required", ())),
        )  # fmt: skip
    return tools


def _default_schema(command: str) -> dict[str, Any]:
    """Return the schema of a template that has none: every placeholder is a text that is needed."""
    names = list(dict.fromkeys(place[2] for place in _PLACE.finditer(command) if place[2]))
    return {"properties": {name: {"type": "string"} for name in names}, "required": names}


def template_problems(table: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a template."""
    name, command = table.get("name", ""), table.get("command", "")
    if not _TOOL_NAME.fullmatch(name):
        yield "name", f"can't be {name!r}", "letters, digits, _ and -, at most 64"
    elif name in OWN_TOOLS:
        yield "name", f"can't be {name!r}", "that is a tool of Fumehood's own"
    of_schema = list(_schema_problems(table.get("schema", {})))
    yield from of_schema
    if not of_schema:
        yield from _command_problems(command, table.get("schema") or _default_schema(command))


def _command_problems(command: str, schema: Mapping[str, Any]) -> Iterator[Problem]:
    properties, needed = schema.get("properties", {}), schema.get("required", ())
    places = [place for place in _PLACE.finditer(command) if place[2]]
    names = [place[2] for place in places]
    for name in names:
        if name not in properties:
            yield "command", f"has {{{name}}}, which is not in the schema", f"for the text itself, write {{{{{name}}}}}"
    for name, each in properties.items():
        if name not in names:
            yield "schema", f"has {name}, which the command does not use", f"write {{{name}}} where it belongs"
        if each["type"] == "array" and len(re.findall(rf"(?<!\S)\{{{name}\}}(?!\S)", command)) != names.count(name):
            yield "command", f"has {{{name}}}, a list, beside other text", "a list stands between blanks"
        may_lack = name not in needed and "default" not in each
        if may_lack and len(re.findall(_omitted_word(name), command)) != names.count(name):
            hint = f"it stands between blanks, or as --option={{{name}}}; or give it a default"
            yield "command", f"has {{{name}}}, which may be missing, within other text", hint
    if places or _ESCAPED.search(command):
        yield from _shell_problems(command, places)


def _omitted_word(name: str) -> str:
    """Match a word that is left out where an argument is missing: plain letters and the placeholder."""
    return rf"(?<!\S)[{_PLAIN}]*\{{{name}\}}[{_PLAIN}]*(?!\S)"


def _shell_problems(command: str, places: Iterable[re.Match[str]]) -> Iterator[Problem]:
    twice = _READ_TWICE.search(command)
    if twice is not None:
        yield "command", f"has {twice[0]}, where a value can't be quoted safely", "put that into a script, and call it"
    if _ESCAPED.search(command):
        yield "command", "has a placeholder after a backslash", _BY_THEMSELVES
    for place in places:
        try:
            words = shlex.split(command[: place.start()] + _MARK, comments=True)
            shlex.split(command)
        except ValueError:
            yield "command", f"has {place[0]} in quotes, or quotes that don't end", _BY_THEMSELVES
            return
        if not words or not words[-1].endswith(_MARK):
            yield "command", f"has {place[0]} after a #", "quote the #, or leave the comment out"


def _schema_problems(schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a schema, of which no word is taken that would not be checked."""
    properties, needed = schema.get("properties", {}), schema.get("required", [])
    strange = sorted(schema.keys() - _AROUND)
    if strange:
        yield "schema", f"has {strange[0]}, which is not known here", _FORM
    if schema.get("type", "object") != "object" or schema.get("additionalProperties", False) is not False:
        yield "schema", "must be of an object, without additional properties", _FORM
    if not isinstance(properties, dict) or not all(isinstance(each, dict) for each in properties.values()):
        yield "schema", "must have a table for each of its properties", _FORM
        return
    if not isinstance(needed, list) or any(each not in properties for each in needed):
        yield "schema", "requires what is not among its properties", "schema.required is a list of their names"
    for name, each in properties.items():
        for wrong in _property_problems(each, _TYPES):
            yield "schema", f"is wrong for {name}: {wrong}", _FORM
        if not _ARGUMENT.fullmatch(name):
            yield "schema", f"has an argument {name!r}", "letters, digits and _"


def _property_problems(schema: Mapping[str, Any], types: Sequence[str]) -> Iterator[str]:
    kind = schema.get("type")
    yield from (f"{word} is not known here" for word in sorted(schema.keys() - _WORDS))
    if kind not in types:
        yield f"its type must be one of {', '.join(types)}"
        return
    if (kind == "array") != isinstance(schema.get("items"), dict):
        yield "an array has items, and nothing else has"
        return
    yield from (f"{word} must be a number" for word in _MOST if not _is_number(schema.get(word, 0)))
    try:
        re.compile(schema.get("pattern", ""))
    except (re.error, TypeError) as error:
        yield f"its pattern can't be used: {error}"
        return
    among = schema.get("enum", [])
    if not isinstance(among, list) or any(_expected_value(each, {"type": kind}) for each in among):
        yield f"enum must be a list, each of it {kind}"
    elif "default" in schema and (wrong := _expected_value(schema["default"], schema)):
        yield f"its default must be {wrong}"
    if kind == "array":
        yield from (f"of its items, {wrong}" for wrong in _property_problems(schema["items"], types[:-1]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _expected_value(value: Any, schema: Mapping[str, Any]) -> str:
    """Say what a value should be; "" if it is."""
    kind = schema["type"]
    is_right = {
        "string": isinstance(value, str), "boolean": isinstance(value, bool), "array": isinstance(value, list),
        "number": _is_number(value), "integer": _is_number(value) and value == int(value),
    }[kind]  # fmt: skip
    if not is_right:
        return f"{'an' if kind[0] in 'ai' else 'a'} {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if kind == "string" and ("\0" in value or not re.search(schema.get("pattern", ""), value)):
        return f"a text that matches {schema['pattern']}" if "pattern" in schema else "a text without a NUL"
    size = len(value) if isinstance(value, (str, list)) else value
    for least, most in zip(_MOST[::2], _MOST[1::2], strict=True):
        if not schema.get(least, -math.inf) <= size <= schema.get(most, math.inf):
            return f"{least} {schema.get(least, 'open')}, {most} {schema.get(most, 'open')}"
    inside = (_expected_value(each, schema["items"]) for each in value) if "items" in schema else ()
    return next((f"a list, each of it {wrong}" for wrong in inside if wrong), "")


# ---- All the tools of a person: ours, and those of their configuration.

def definition_of(policy: Policy, form: str, name: str = NAME, extra: str = "", mark: str = "") -> dict[str, Any]:
    """Return a tool by its name, as an interface wants it."""
    if name == NAME:
        return definition(form, mark, extra)
    template = _template(policy, name)
    words = f"{template.description}\n\n{extra.strip()}" if extra.strip() else template.description
    return _in_format(form, template.name, words, template.schema)


def all_definitions(policy: Policy, form: str, extra: str = "", mark: str = "") -> list[dict[str, Any]]:
    """Return all the tools, ours first; `extra` is said of ours."""
    own = templates_by_name(policy.tools)
    return [definition(form, mark, extra), *(definition_of(policy, form, name) for name in own)]


def _template(policy: Policy, name: str) -> Template:
    own = templates_by_name(policy.tools)
    if name not in own:
        raise BadRequest(f"there is no tool {name!r}", hint=f"there is: {', '.join((NAME, *own))}")
    return own[name]


def run_arguments(policy: Policy, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `Sandbox.run` is to be given for a model's call of a tool."""
    if name != NAME:
        return {"command": _template(policy, name).line(arguments)}
    return {"cwd" if key == "working_dir" else key: value for key, value in RUN_COMMAND.checked(arguments).items()}
