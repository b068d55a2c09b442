"""Read JSON that may have comments, as editors and agents write it, and edit it without changing any other byte."""

from __future__ import annotations

import json
from typing import Any

from fumehood.core.value import Value
from fumehood.errors import BadRequest

_BLANKS = " \t\r\n\ufeff"
_LONGEST_NUMBER = 1000  # digits


class Node(Value):
    """A JSON value in a text, with its place there: an object has members, an array has items."""

    start: int
    end: int
    value: Any = None
    members: tuple[tuple[str, int, Node], ...] | None = None  # key, where the key begins, value
    items: tuple[Node, ...] | None = None

    def member(self, key: str) -> Node | None:
        """Return the value at a key, or None if this is not an object that has it; of several, the last counts."""
        return next((node for name, _, node in reversed(self.members or ()) if name == key), None)

    def entries(self) -> list[tuple[int, int]]:
        """Return where each member or item begins and ends."""
        if self.members is not None:
            return [(start, node.end) for _, start, node in self.members]
        return [(node.start, node.end) for node in self.items or ()]

    def as_python(self) -> Any:
        """Return the value as Python's `json` would."""
        if self.members is not None:
            return {key: node.as_python() for key, _, node in self.members}
        return [node.as_python() for node in self.items] if self.items is not None else self.value


def _parse_int(digits: str) -> int | float:
    """Read a number of any length, as JavaScript does; `int` refuses long ones."""
    return int(digits) if len(digits) < _LONGEST_NUMBER else float(digits)


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.decoder = json.JSONDecoder(parse_int=_parse_int)

    def skip_blanks(self, at: int) -> int:
        """Return the next place that is neither blank nor in a comment."""
        text = self.text
        while at < len(text):
            if text[at] in _BLANKS:
                at += 1
            elif text.startswith("//", at):
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
            elif text.startswith("/*", at):
                end = text.find("*/", at + 2)
                at = len(text) if end < 0 else end + 2
            else:
                break
        return at

    def error(self, at: int, why: str) -> BadRequest:
        line = self.text.count("\n", 0, at) + 1
        return BadRequest(f"line {line}: {why}", hint="correct the file first; nothing was changed")

    def read_value(self, at: int) -> Node:
        at = self.skip_blanks(at)
        opening = self.text[at : at + 1]
        if opening == "{":
            return self.read_block(at, "}")
        if opening == "[":
            return self.read_block(at, "]")
        try:
            value, end = self.decoder.raw_decode(self.text, at)
        except (ValueError, IndexError) as error:
            raise self.error(at, "a value is expected") from error
        return Node(start=at, end=end, value=value)

    def read_block(self, start: int, closing: str) -> Node:
        """Read an object or an array; a comma after its last entry is allowed."""
        members: list[tuple[str, int, Node]] = []
        items: list[Node] = []
        at = self.skip_blanks(start + 1)
        while self.text[at : at + 1] != closing:
            if closing == "}":
                key = self.read_value(at)
                colon = self.skip_blanks(key.end)
                if not isinstance(key.value, str) or self.text[colon : colon + 1] != ":":
                    raise self.error(at, 'a "key": is expected')
                node = self.read_value(colon + 1)
                members.append((key.value, key.start, node))
            else:
                node = self.read_value(at)
                items.append(node)
            at = self.skip_blanks(node.end)
            if self.text[at : at + 1] == ",":
                at = self.skip_blanks(at + 1)
            elif self.text[at : at + 1] != closing:
                raise self.error(at, f"a comma or {closing} is expected")
        if closing == "}":
            return Node(start=start, end=at + 1, members=tuple(members))
        return Node(start=start, end=at + 1, items=tuple(items))


def parse_json(text: str) -> Node:
    """Read a whole text, with comments allowed; raises BadRequest."""
    reader = _JsonReader(text)
    node = reader.read_value(0)
    end = reader.skip_blanks(node.end)
    if end != len(text):
        raise reader.error(end, "something stands after the end")
    return node


def with_member(text: str, path: list[str], value: Any) -> str:
    """Return the text with a value set at a path of keys; missing objects on the way are made."""
    node = parse_json(text)
    for depth, key in enumerate(path):
        if node.members is None:
            raise BadRequest(f"{'.'.join(path[:depth]) or 'the file'} is not an object", hint="nothing was changed")
        inner = node.member(key)
        if inner is None:
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            return _insert(text, node, f"{json.dumps(key)}: ", value)
        node = inner
    return text[: node.start] + _format_json(value, _indent(text, node.start)) + text[node.end :]


def with_item(text: str, path: list[str], value: Any) -> str:
    """Return the text with a value appended to the array at a path, which is made if there is none."""
    node: Node | None = parse_json(text)
    for key in path:
        node = node.member(key) if node is not None else None
    if node is None:
        return with_member(text, path, [value])
    if node.items is None:
        raise BadRequest(f"{'.'.join(path)} is not a list", hint="nothing was changed")
    return _insert(text, node, "", value)


def without_entry(text: str, path: list[str | int]) -> str:
    """Return the text without the member or item at a path, and without its comma."""
    node = parse_json(text)
    for step in path[:-1]:
        inner = node.member(step) if isinstance(step, str) else (node.items or ())[step]
        if inner is None:
            return text
        node = inner
    last_step = path[-1]
    if isinstance(last_step, str):
        numbers = [number for number, (key, _, _) in enumerate(node.members or ()) if key == last_step]
        if not numbers:
            return text
        return _remove(text, node, numbers[-1])
    return _remove(text, node, last_step)


def _remove(text: str, block: Node, number: int) -> str:
    """Return the text without one entry of a block."""
    entries = block.entries()
    start, end = entries[number]
    reader = _JsonReader(text)
    after = reader.skip_blanks(end)
    if text[after : after + 1] == ",":
        end = after + 1
    elif number:
        # It is the last entry: then the comma before it goes. If a comment stands between the two, both stay.
        comma = reader.skip_blanks(entries[number - 1][1])
        if not text[comma + 1 : start].strip():
            start = comma
    line_start = text.rfind("\n", 0, start) + 1
    if not text[line_start:start].strip() and text[end : end + 1] in ("\n", ""):
        start = max(line_start - 1, block.start + 1)
    return text[:start] + text[end:]


def _insert(text: str, block: Node, key: str, value: Any) -> str:
    """Return the text with a new last entry in a block; `key` is what stands before the value."""
    entries = block.entries()
    if not entries:
        indent = _indent(text, block.start)
        content = f"\n{indent}  {key}{_format_json(value, indent + '  ')}\n{indent}"
        return text[: block.start + 1] + content + text[block.end - 1 :]
    indent = _indent(text, entries[0][0])
    at = entries[-1][1]
    after = _JsonReader(text).skip_blanks(at)
    comma = ","
    if text[after : after + 1] == ",":  # the last entry has one already
        at, comma = after + 1, ""
    is_multiline = "\n" in text[block.start : block.end]
    blank = f"\n{indent}" if is_multiline else " "
    return f"{text[:at]}{comma}{blank}{key}{_format_json(value, indent)}{text[at:]}"


def _indent(text: str, at: int) -> str:
    """Return the blanks at the beginning of the line that a place is in."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _format_json(value: Any, indent: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


def read_package(text: str) -> object:
    """Return the content of a `package.json`, in which ESLint allows comments; raises ValueError, RecursionError."""
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text, parse_int=float)  # of any length, as in JavaScript
    except ValueError:
        if "/" not in text:
            raise
    try:
        return parse_json(text).as_python()
    except BadRequest as error:
        raise ValueError from error
