"""Command templates: a `[[tool]]` of the configuration is a tool for a model; its arguments become words of a command.

Every value is quoted, always. That holds only where the shell reads a quoted word as one, so a template in which a
placeholder stands anywhere else (in quotes, in a comment, in what the shell reads twice) is refused beforehand.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import Any

from fumehood.core.request import OWN_TOOLS, quoted
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Problem = tuple[str, str, str]  # the key that it is about, what is wrong, and what to write instead

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
_LIMITS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_WORDS = frozenset({"type", "description", "title", "default", "enum", "examples", "pattern", "items", *_LIMITS})
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

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
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
            wrong = _wrong(value, self.properties[name])
            if wrong:
                raise BadRequest(f"{name} must be {wrong}, not {value!r:.100}")
        return values

    def line(self, arguments: Mapping[str, Any]) -> str:
        """Return the shell line for these arguments, checked."""
        values, line = self.values(arguments), self.command
        for name in self.properties:
            if name not in values:
                line = re.sub(_alone(name), "", line)
        return _PLACE.sub(lambda place: f"{{{place[1]}}}" if place[1] else _words(values[place[2]]), line)


def _words(value: Any) -> str:
    """Write a value as words of a shell line; always quoted: `2` before a `>` would be more than a word."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(_words, value))
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return quoted(str(int(value)) if is_whole else str(value), always=True)


def templates(tables: Iterable[Mapping[str, Any]]) -> dict[str, Template]:
    """Return the tools that a policy has, by name; where two have one name, the later counts: the project's own."""
    tools = {}
    for table in tables:
        for key, message, hint in problems(table):
            raise BadRequest(f"the tool {table.get('name', '')!r}: {key} {message}", hint=hint)
        schema = table.get("schema") or _assumed(table["command"])
        tools[table["name"]] = Template(
            name=table["name"], description=table["description"], command=table["command"],
            properties=schema.get("properties", {}), required=tuple(schema.get("required", ())),
        )  # fmt: skip
    return tools


def _assumed(command: str) -> dict[str, Any]:
    """Return the schema of a template that has none: every placeholder is a text that is needed."""
    names = list(dict.fromkeys(place[2] for place in _PLACE.finditer(command) if place[2]))
    return {"properties": {name: {"type": "string"} for name in names}, "required": names}


def problems(table: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a template."""
    name, command = table.get("name", ""), table.get("command", "")
    if not _TOOL_NAME.fullmatch(name):
        yield "name", f"can't be {name!r}", "letters, digits, _ and -, at most 64"
    elif name in OWN_TOOLS:
        yield "name", f"can't be {name!r}", "that is a tool of Fumehood's own"
    of_schema = list(_schema_problems(table.get("schema", {})))
    yield from of_schema
    if not of_schema:
        yield from _command_problems(command, table.get("schema") or _assumed(command))


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
        if may_lack and len(re.findall(_alone(name), command)) != names.count(name):
            hint = f"it stands between blanks, or as --option={{{name}}}; or give it a default"
            yield "command", f"has {{{name}}}, which may be missing, within other text", hint
    if places or _ESCAPED.search(command):
        yield from _shell_problems(command, places)


def _alone(name: str) -> str:
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
    yield from (f"{word} must be a number" for word in _LIMITS if not _is_number(schema.get(word, 0)))
    try:
        re.compile(schema.get("pattern", ""))
    except (re.error, TypeError) as error:
        yield f"its pattern can't be used: {error}"
        return
    among = schema.get("enum", [])
    if not isinstance(among, list) or any(_wrong(each, {"type": kind}) for each in among):
        yield f"enum must be a list, each of it {kind}"
    elif "default" in schema and (wrong := _wrong(schema["default"], schema)):
        yield f"its default must be {wrong}"
    if kind == "array":
        yield from (f"of its items, {wrong}" for wrong in _property_problems(schema["items"], types[:-1]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(value: Any, schema: Mapping[str, Any]) -> str:
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
    for least, most in zip(_LIMITS[::2], _LIMITS[1::2], strict=True):
        if not schema.get(least, -math.inf) <= size <= schema.get(most, math.inf):
            return f"{least} {schema.get(least, 'open')}, {most} {schema.get(most, 'open')}"
    inside = (_wrong(each, schema["items"]) for each in value) if "items" in schema else ()
    return next((f"a list, each of it {wrong}" for wrong in inside if wrong), "")
