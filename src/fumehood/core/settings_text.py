"""Read settings in JSON, TOML and YAML as their tools do, and edit JSON, leaving every other byte as it was.

JSON may have comments, as editors and agents write it. The other parsers are loaded when there is something to parse:
they take longer than a command to start.
"""

from __future__ import annotations

import json
from typing import Any

from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # A table as a tuple of its pairs, since a key may come twice; a list; a text.
    Tree = tuple[tuple[str, "Tree"], ...] | list["Tree"] | str
    Place = tuple[str, ...]  # keys from the top; "" for a list, and for what is merged
    Wanted = Callable[[str, Place | None], bool]

_BLANK = " \t\r\n\ufeff"
_LONGEST_NUMBER = 1000  # digits


class Node(Value):
    """A value in the text: where it lies, and what is in it."""

    start: int
    end: int
    value: Any = None
    members: tuple[tuple[str, int, Node], ...] | None = None  # key, where the key begins, value
    items: tuple[Node, ...] | None = None

    def member(self, key: str) -> Node | None:
        """The value at a key, if this is an object that has it; of several, the last counts."""
        return next((node for name, _, node in reversed(self.members or ()) if name == key), None)

    def plain(self) -> Any:
        """The value as Python has it."""
        if self.members is not None:
            return {key: node.plain() for key, _, node in self.members}
        return [node.plain() for node in self.items] if self.items is not None else self.value


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text = text
        # Of any length, as JavaScript reads numbers; Python's own has a limit.
        self.decoder = json.JSONDecoder(parse_int=lambda it: int(it) if len(it) < _LONGEST_NUMBER else float(it))

    def skip(self, at: int) -> int:
        """Pass over blanks and comments."""
        text = self.text
        while at < len(text):
            if text[at] in _BLANK:
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

    def fail(self, at: int, why: str) -> BadRequest:
        line = self.text.count("\n", 0, at) + 1
        return BadRequest(f"line {line}: {why}", hint="correct the file first; nothing was changed")

    def value(self, at: int) -> Node:
        at = self.skip(at)
        opening = self.text[at : at + 1]
        if opening == "{":
            return self.block(at, "}")
        if opening == "[":
            return self.block(at, "]")
        try:
            value, end = self.decoder.raw_decode(self.text, at)
        except (ValueError, IndexError) as error:
            raise self.fail(at, "a value is expected") from error
        return Node(start=at, end=end, value=value)

    def block(self, start: int, closing: str) -> Node:
        """Read an object or an array, a comma at its end allowed."""
        members: list[tuple[str, int, Node]] = []
        items: list[Node] = []
        at = self.skip(start + 1)
        while self.text[at : at + 1] != closing:
            if closing == "}":
                key = self.value(at)
                colon = self.skip(key.end)
                if not isinstance(key.value, str) or self.text[colon : colon + 1] != ":":
                    raise self.fail(at, 'a "key": is expected')
                node = self.value(colon + 1)
                members.append((key.value, key.start, node))
            else:
                node = self.value(at)
                items.append(node)
            at = self.skip(node.end)
            if self.text[at : at + 1] == ",":
                at = self.skip(at + 1)
            elif self.text[at : at + 1] != closing:
                raise self.fail(at, f"a comma or {closing} is expected")
        if closing == "}":
            return Node(start=start, end=at + 1, members=tuple(members))
        return Node(start=start, end=at + 1, items=tuple(items))


def parse(text: str) -> Node:
    """Read a whole text; an empty one is an empty object."""
    reader = _JsonReader(text)
    node = reader.value(0)
    if reader.skip(node.end) != len(text):
        raise reader.fail(reader.skip(node.end), "something stands after the end")
    return node


def with_member(text: str, path: list[str], value: Any) -> str:
    """Set the value at a path of keys, making the objects on the way."""
    node = parse(text)
    for depth, key in enumerate(path):
        if node.members is None:
            raise BadRequest(f"{'.'.join(path[:depth]) or 'the file'} is not an object", hint="nothing was changed")
        inner = node.member(key)
        if inner is None:
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            last = node.members[-1][2] if node.members else None
            first = node.members[0][1] if node.members else None
            return _inserted(text, node, last, first, f"{json.dumps(key)}: ", value)
        node = inner
    return text[: node.start] + _written(value, _indent(text, node.start)) + text[node.end :]


def with_item(text: str, path: list[str], value: Any) -> str:
    """Append a value to the array at a path, making it if there is none."""
    node: Node | None = parse(text)
    for key in path:
        node = node.member(key) if node is not None else None
    if node is None:
        return with_member(text, path, [value])
    if node.items is None:
        raise BadRequest(f"{'.'.join(path)} is not a list", hint="nothing was changed")
    last = node.items[-1] if node.items else None
    return _inserted(text, node, last, node.items[0].start if node.items else None, "", value)


def without(text: str, path: list[str | int]) -> str:
    """Remove the member or item at a path, with its comma."""
    node = parse(text)
    for step in path[:-1]:
        inner = node.member(step) if isinstance(step, str) else (node.items or ())[step]
        if inner is None:
            return text
        node = inner
    step = path[-1]
    if isinstance(step, str):
        places = [(start, each.end) for key, start, each in node.members or () if key == step]
        if not places:
            return text
        start, end = places[-1]
    else:
        start, end = (node.items or ())[step].start, (node.items or ())[step].end
    return _cut(text, node, start, end)


def _cut(text: str, block: Node, start: int, end: int) -> str:
    reader = _JsonReader(text)
    after = reader.skip(end)
    inner = block.items or [node for _, _, node in block.members or ()]
    ends = [node.end for node in inner if node.end < start]
    if text[after : after + 1] == ",":
        end = after + 1
    elif ends:
        comma = reader.skip(ends[-1])
        # A comment after it keeps its place, and then so does the comma.
        if not text[comma + 1 : start].strip():
            start = comma
    line = text.rfind("\n", 0, start) + 1
    if not text[line:start].strip() and text[end : end + 1] in ("\n", ""):
        start = max(line - 1, block.start + 1)
    return text[:start] + text[end:]


def _inserted(text: str, block: Node, last: Node | None, first: int | None, lead: str, value: Any) -> str:
    if last is None or first is None:
        indent = _indent(text, block.start)
        inner = f"\n{indent}  {lead}{_written(value, indent + '  ')}\n{indent}"
        return text[: block.start + 1] + inner + text[block.end - 1 :]
    indent = _indent(text, first)
    is_multiline = "\n" in text[block.start : block.end]
    at = last.end
    after = _JsonReader(text).skip(at)
    comma = ","
    if text[after : after + 1] == ",":  # one stood at the end already
        at, comma = after + 1, ""
    between = f"\n{indent}" if is_multiline else " "
    return f"{text[:at]}{comma}{between}{lead}{_written(value, indent)}{text[at:]}"


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _written(value: Any, indent: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


# The commands that an agent's settings name: its hooks and its servers.

_KEYS = ("command", "cmd", "args")


def commands_in(text: str, *, is_toml: bool = False) -> list[str]:
    """Return each command, with its arguments, of settings in JSON or TOML; none where they can't be understood."""
    try:
        if is_toml:
            import tomllib

            return list(_commands(tomllib.loads(text)))
        return list(_commands(parse(text).plain()))
    except (BadRequest, ValueError, RecursionError):
        return []


def _commands(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _commands(each)
    elif isinstance(value, dict):
        lists = (each if isinstance(each, list) else [each] for each in map(value.get, _KEYS))
        words = [word for words in lists for word in words if isinstance(word, str)]
        if words:
            yield " ".join(words)
        for each in value.values():
            yield from _commands(each)

# What settings in TOML, JSON and YAML say, however they spell it: a key may be written with escapes, on a line of its
# own, by an alias.

_MOST_VALUES = 20_000  # with aliases, a short text can stand for more than any memory holds
_DEEPEST, _MOST_DOTS = 100, 500
_YAML, _BINARY = "tag:yaml.org,2002:", "tag:yaml.org,2002:binary"


class Unclear(Exception):
    """A text that can't be parsed, that tools may differ about, or that stands for too much."""


def values_at(text: str, kind: str, is_wanted: Wanted) -> set[tuple[Place, str]]:
    """Return the values at all keys that are wanted, each with the keys that lead there and written out.

    `is_wanted` is asked about every key, with those above it, and about every text that is a value, with None. A text
    that stands alone is at no key, and wanted. Raises Unclear.
    """
    parse_all = _PARSERS.get(kind)
    if parse_all is None or any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise Unclear
    # Nested as no settings are: parsers need time that grows with the square of that.
    depth = 0
    for sign in text:
        depth += (sign in "[{") - (sign in "]}")
        if depth > _DEEPEST:
            raise Unclear
    try:
        return {each for tree in parse_all(text) for each in _wanted(tree, (), is_wanted)}
    except (ValueError, OverflowError, RecursionError):
        raise Unclear from None


def _wanted(tree: Tree, place: Place, is_wanted: Wanted) -> Iterator[tuple[Place, str]]:
    if isinstance(tree, str):
        if not place or is_wanted(tree, None):
            yield place, tree
    elif isinstance(tree, list):
        for each in tree:
            yield from _wanted(each, (*place, ""), is_wanted)
    else:
        for key, value in tree:
            here = (*place, "" if key == "<<" else key)
            if is_wanted(key, place):
                yield here, _shown(value)
            else:
                yield from _wanted(value, here, is_wanted)


def _shown(tree: Tree) -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(tree, list):
        return f"[{', '.join(map(_shown, tree))}]"
    return f"{{{', '.join(f'{key}: {_shown(value)}' for key, value in tree)}}}"


def is_odd(line: str, escapes: tuple[str, ...]) -> bool:
    """Return True if a line could have a part in spelling a key that is not seen; `escapes` are in lower case."""
    bare = line.lower().replace("\\\\", "")  # two that stand together are one, and escape nothing
    is_escaped = bare[-1:] == "\\" or any(escape in bare for escape in escapes)
    if line[0] in ":?" or is_escaped or "<<" in line:
        return True
    for word in line.replace(",", " ").split():
        # It may stand for another one, or says by a tag of YAML's what another one is.
        name = word.lstrip("[{(-:\"'")
        if word.lstrip("[{(-:")[:1] == "!" or (name[:1] in ("*", "&") and name[1:2].isalnum()):
            return True
    return False


def _tree(value: Any, parts: Callable[[Any], Any], left: Iterator[int]) -> Tree:
    """Make a tree of what a parser returned; `parts` returns a value's pairs as a tuple, its items, or its text."""
    if next(left, None) is None:
        raise Unclear
    inner = parts(value)
    if isinstance(inner, tuple):
        return tuple((key, _tree(each, parts, left)) for key, each in inner)
    return [_tree(each, parts, left) for each in inner] if isinstance(inner, list) else f"{inner}"


def _toml(text: str) -> list[Tree]:
    import tomllib

    def parts(value: Any) -> Any:
        return tuple(value.items()) if isinstance(value, dict) else value

    return [_tree(tomllib.loads(text), parts, iter(range(_MOST_VALUES)))]


def _json(text: str) -> list[Tree]:
    def parts(node: Node) -> Any:
        if node.members is not None:
            return tuple((key, each) for key, _, each in node.members)
        return node.value if node.items is None else list(node.items)

    try:
        return [_tree(parse(text), parts, iter(range(_MOST_VALUES)))]
    except BadRequest:
        raise Unclear from None


def _yaml(text: str) -> list[Tree]:
    import yaml

    def parts(node: Any) -> Any:
        if node.id != "mapping":
            return node.value
        if any(key.id != "scalar" or not key.tag.startswith(_YAML) or key.tag == _BINARY for key, _ in node.value):
            raise Unclear  # Ruby and Go take what is written in base64 for a text
        return tuple((key.value, each) for key, each in node.value)

    left = iter(range(_MOST_VALUES))
    try:
        # Nodes are all that is wanted of it: in values, a key that comes twice is there once.
        return [_tree(node, parts, left) for node in yaml.compose_all(text, yaml.SafeLoader)]
    except yaml.YAMLError:
        raise Unclear from None


def _json_or_yaml(text: str) -> list[Tree]:
    """Read what is JSON to some tools and YAML to others, and to some the second without the comments of the first."""
    try:
        trees = _yaml(text)
    except Unclear:
        trees = []
    if trees and all(isinstance(tree, str) for tree in trees):
        return trees
    if "//" in text or "/*" in text:
        try:
            json.loads(text)  # without comments, all read it alike: what looks like one is in an address
        except ValueError:
            raise Unclear from None
    try:
        return trees + _json(text)
    except Unclear:
        if not trees or "\\" in text:  # what that means depends on the quotes around it, for which the two differ
            raise
    return trees


_PARSERS: dict[str, Callable[[str], list[Tree]]] = {
    "toml": _toml, "json": _json, "yaml": _yaml, "json or yaml": _json_or_yaml,
}  # fmt: skip


def parsed_package(text: str) -> object:
    """Read a package's settings, in which ESLint takes comments, too; raises ValueError, RecursionError."""
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text, parse_int=float)  # as JavaScript: of any length
    except ValueError:
        if "/" not in text:
            raise
    try:
        return parse(text).plain()
    except BadRequest as error:
        raise ValueError from error
