"""Command templates: each `[[tool]]` of the configuration is a tool for a model. Its arguments are words of a command.

Every value is quoted, always. That is safe only where the shell reads a quoted word as one word. So a template is
refused if a placeholder stands anywhere else: in quotes, in a comment, or in what the shell reads twice.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fumehood.core.request import OWN_TOOLS, shell_quote
from fumehood.core.value import Value
from fumehood.errors import BadRequest

Problem = tuple[str, str, str]  # the key, what is wrong with it, and what to write instead

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# `{{word}}` is `{word}` itself, `${word}` a variable of the shell's.
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<![$\\])\{([A-Za-z_]\w*)\}", re.ASCII)
_ESCAPED_PLACEHOLDER = re.compile(r"\\\{[A-Za-z_]\w*\}", re.ASCII)
# Within these, quotes have another meaning, or the shell reads its own output again.
_READ_TWICE = re.compile(r"""`|\$\(|\$\{(?!\w+\})|<<|\$['"]|\(\(|\[\[""", re.ASCII)
_SAMPLE_VALUE = "fumehood0placeholder"
_ARGUMENT_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_QUOTED_ALREADY = "placeholders are quoted by themselves"
_SCHEMA_EXAMPLE = 'schema.properties.NAME = { type = "string" }'
_PLAIN_LETTERS = "A-Za-z0-9@%+=:,./_-"
_TYPES = ("string", "integer", "number", "boolean", "array")
_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_PROPERTY_KEYS = frozenset(
    {"type", "description", "title", "default", "enum", "examples", "pattern", "items", *_BOUNDS}
)
_SCHEMA_KEYS = frozenset({"type", "properties", "required", "additionalProperties", "description", "title"})


class Template(Value):
    """A tool of a person's own: a command with placeholders for its arguments."""

    name: str
    description: str
    command: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object", "properties": {name: dict(schema) for name, schema in self.properties.items()},
            "required": list(self.required), "additionalProperties": False,
        }  # fmt: skip

    def checked_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with defaults for the missing ones; raises BadRequest if they don't fit the schema."""
        values = {name: schema["default"] for name, schema in self.properties.items() if "default" in schema}
        # Some models send null for an argument that they leave out.
        values |= {name: value for name, value in arguments.items() if value is not None}
        for name in values:
            if name not in self.properties:
                raise BadRequest(f"{self.name} takes no {name!r}", hint=f"it takes: {', '.join(self.properties)}")
        for name in self.required:
            if name not in values:
                raise BadRequest(f"{self.name} needs {name}", hint=self.properties[name].get("description", ""))
        for name, value in values.items():
            expected = _expected_value(value, self.properties[name])
            if expected:
                raise BadRequest(f"{name} must be {expected}, not {value!r:.100}", hint="as the tool's schema says")
        return values

    def shell_line(self, arguments: Mapping[str, Any]) -> str:
        """Return the shell line for these arguments; raises BadRequest if they don't fit the schema."""
        values, line = self.checked_arguments(arguments), self.command
        for name in self.properties:
            if name not in values:
                line = re.sub(_optional_word_pattern(name), "", line)

        def value_of(placeholder: re.Match[str]) -> str:
            escaped, name = placeholder.groups()
            return f"{{{escaped}}}" if escaped else _quote_value(values[name])

        return _PLACEHOLDER.sub(value_of, line)


def _quote_value(value: Any) -> str:
    """Return a value as words of a shell line; always in quotes: a bare `2` before a `>` would not be a word."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(_quote_value, value))
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return shell_quote(str(int(value)) if is_whole else str(value), always=True)


def templates_by_name(tables: Iterable[Mapping[str, Any]]) -> dict[str, Template]:
    """Return a policy's own tools by name; of two with the same name, the later counts: it is the project's own."""
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
    """Return the schema of a template that has none: every placeholder is a required text."""
    names = list(dict.fromkeys(match[2] for match in _PLACEHOLDER.finditer(command) if match[2]))
    return {"properties": {name: {"type": "string"} for name in names}, "required": names}


def template_problems(table: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the table of a template."""
    name, command = table.get("name", ""), table.get("command", "")
    if not _TOOL_NAME.fullmatch(name):
        yield "name", f"can't be {name!r}", "letters, digits, _ and -, at most 64"
    elif name in OWN_TOOLS:
        yield "name", f"can't be {name!r}", "that is a tool of Fumehood's own"
    schema_problems = list(_schema_problems(table.get("schema", {})))
    yield from schema_problems
    if not schema_problems:
        yield from _command_problems(command, table.get("schema") or _default_schema(command))


def _command_problems(command: str, schema: Mapping[str, Any]) -> Iterator[Problem]:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    placeholders = [match for match in _PLACEHOLDER.finditer(command) if match[2]]
    names = [placeholder[2] for placeholder in placeholders]
    for name in names:
        if name not in properties:
            yield "command", f"has {{{name}}}, which is not in the schema", f"for the text itself, write {{{{{name}}}}}"
    for name, property_schema in properties.items():
        if name not in names:
            yield "schema", f"has {name}, which the command does not use", f"write {{{name}}} where it belongs"
        is_list = property_schema["type"] == "array"
        if is_list and len(re.findall(rf"(?<!\S)\{{{name}\}}(?!\S)", command)) != names.count(name):
            yield "command", f"has {{{name}}}, a list, beside other text", "a list stands between blanks"
        may_be_missing = name not in required and "default" not in property_schema
        if may_be_missing and len(re.findall(_optional_word_pattern(name), command)) != names.count(name):
            hint = f"it stands between blanks, or as --option={{{name}}}; or give it a default"
            yield "command", f"has {{{name}}}, which may be missing, within other text", hint
    if placeholders or _ESCAPED_PLACEHOLDER.search(command):
        yield from _shell_problems(command, placeholders)


def _optional_word_pattern(name: str) -> str:
    """Return a pattern for the word that is left out if an argument is missing: plain letters and the placeholder."""
    return rf"(?<!\S)[{_PLAIN_LETTERS}]*\{{{name}\}}[{_PLAIN_LETTERS}]*(?!\S)"


def _shell_problems(command: str, placeholders: Iterable[re.Match[str]]) -> Iterator[Problem]:
    """Yield the reasons for which the shell would not read a value as one word."""
    read_twice = _READ_TWICE.search(command)
    if read_twice is not None:
        problem = f"has {read_twice[0]}, where a value can't be quoted safely"
        yield "command", problem, "put that into a script, and call it"
    if _ESCAPED_PLACEHOLDER.search(command):
        yield "command", "has a placeholder after a backslash", _QUOTED_ALREADY
    for placeholder in placeholders:
        try:
            words = shlex.split(command[: placeholder.start()] + _SAMPLE_VALUE, comments=True)
            shlex.split(command)
        except ValueError:
            yield "command", f"has {placeholder[0]} in quotes, or quotes that don't end", _QUOTED_ALREADY
            return
        if not words or not words[-1].endswith(_SAMPLE_VALUE):
            yield "command", f"has {placeholder[0]} after a #", "quote the #, or leave the comment out"


def _schema_problems(schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a schema; a key that we would not check is wrong too."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    unknown_keys = sorted(schema.keys() - _SCHEMA_KEYS)
    if unknown_keys:
        yield "schema", f"has {unknown_keys[0]}, which is not known here", _SCHEMA_EXAMPLE
    if schema.get("type", "object") != "object" or schema.get("additionalProperties", False) is not False:
        yield "schema", "must be of an object, without additional properties", _SCHEMA_EXAMPLE
    if not isinstance(properties, dict) or not all(isinstance(each, dict) for each in properties.values()):
        yield "schema", "must have a table for each of its properties", _SCHEMA_EXAMPLE
        return
    if not isinstance(required, list) or any(name not in properties for name in required):
        yield "schema", "requires what is not among its properties", "schema.required is a list of their names"
    for name, property_schema in properties.items():
        for problem in _property_problems(property_schema, _TYPES):
            yield "schema", f"is wrong for {name}: {problem}", _SCHEMA_EXAMPLE
        if not _ARGUMENT_NAME.fullmatch(name):
            yield "schema", f"has an argument {name!r}", "letters, digits and _"


def _property_problems(schema: Mapping[str, Any], types: Sequence[str]) -> Iterator[str]:
    kind = schema.get("type")
    yield from (f"{key} is not known here" for key in sorted(schema.keys() - _PROPERTY_KEYS))
    if kind not in types:
        yield f"its type must be one of {', '.join(types)}"
        return
    if (kind == "array") != isinstance(schema.get("items"), dict):
        yield "an array has items, and nothing else has"
        return
    yield from (f"{key} must be a number" for key in _BOUNDS if not _is_number(schema.get(key, 0)))
    try:
        re.compile(schema.get("pattern", ""))
    except (re.error, TypeError) as error:
        yield f"its pattern can't be used: {error}"
        return
    choices = schema.get("enum", [])
    if not isinstance(choices, list) or any(_expected_value(choice, {"type": kind}) for choice in choices):
        yield f"enum must be a list, each of it {kind}"
    elif "default" in schema and (expected := _expected_value(schema["default"], schema)):
        yield f"its default must be {expected}"
    if kind == "array":
        yield from (f"of its items, {problem}" for problem in _property_problems(schema["items"], types[:-1]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _expected_value(value: Any, schema: Mapping[str, Any]) -> str:
    """Return what a value should be, or "" if it fits the schema."""
    kind = schema["type"]
    has_type = {
        "string": isinstance(value, str), "boolean": isinstance(value, bool), "array": isinstance(value, list),
        "number": _is_number(value), "integer": _is_number(value) and value == int(value),
    }[kind]  # fmt: skip
    if not has_type:
        return f"{'an' if kind[0] in 'ai' else 'a'} {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if kind == "string" and ("\0" in value or not re.search(schema.get("pattern", ""), value)):
        return f"a text that matches {schema['pattern']}" if "pattern" in schema else "a text without a NUL"
    size = len(value) if isinstance(value, (str, list)) else value
    for minimum, maximum in zip(_BOUNDS[::2], _BOUNDS[1::2], strict=True):
        if not schema.get(minimum, -math.inf) <= size <= schema.get(maximum, math.inf):
            return f"{minimum} {schema.get(minimum, 'open')}, {maximum} {schema.get(maximum, 'open')}"
    expected_items = (_expected_value(item, schema["items"]) for item in value) if "items" in schema else ()
    return next((f"a list, each of it {expected}" for expected in expected_items if expected), "")
