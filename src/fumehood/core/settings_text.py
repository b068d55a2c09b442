"""Find values in settings in JSON, TOML and YAML, as the tools that obey them read these texts.

The parsers of TOML and YAML are imported only if there is something to parse: that takes longer than a command needs to
start.
"""

from __future__ import annotations

import json
from typing import Any

from fumehood.core.json_text import parse_json
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fumehood.core.json_text import Node

    # A table (a tuple of pairs, because a key may come twice), a list, or a text.
    Tree = tuple[tuple[str, "Tree"], ...] | list["Tree"] | str
    KeyPath = tuple[str, ...]  # keys from the top; "" for a list, and for YAML's merge key `<<`
    # Is called with a key and the keys above it, or with a text that is a value and None.
    KeyCheck = Callable[[str, KeyPath | None], bool]

# Commands in the settings of agents: their hooks and servers.

_COMMAND_KEYS = ("command", "cmd", "args")


def commands_in(text: str, *, is_toml: bool = False) -> list[str]:
    """Return each command of settings in JSON or TOML, with its arguments; none if the text can't be parsed."""
    try:
        if is_toml:
            import tomllib

            return list(_commands_in(tomllib.loads(text)))
        return list(_commands_in(parse_json(text).as_python()))
    except (BadRequest, ValueError, RecursionError):
        return []


def _commands_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _commands_in(item)
    elif isinstance(value, dict):
        lists = (words if isinstance(words, list) else [words] for words in map(value.get, _COMMAND_KEYS))
        words = [word for words in lists for word in words if isinstance(word, str)]
        if words:
            yield " ".join(words)
        for item in value.values():
            yield from _commands_in(item)


# Values of settings in TOML, JSON and YAML, however they are spelled: a key can be written with escapes, on a line of
# its own, or by an alias.

_MOST_VALUES = 20_000  # with aliases, a short text can stand for more than any memory holds
_DEEPEST_NESTING, _MOST_DOTS_IN_LINE = 100, 500
_YAML, _BINARY = "tag:yaml.org,2002:", "tag:yaml.org,2002:binary"


class Unclear(Exception):
    """A text that can't be parsed, that tools may read differently, or that stands for too many values."""


def values_at(text: str, format_name: str, is_wanted: KeyCheck) -> set[tuple[KeyPath, str]]:
    """Return the values at all wanted keys, each as a text with the keys that lead to it; raises Unclear.

    Texts that are wanted as values are returned too, and a text that is the whole settings.
    """
    parse = _PARSERS.get(format_name)
    if parse is None or any(line.count(".") > _MOST_DOTS_IN_LINE for line in text.split("\n")):
        raise Unclear
    # No settings are nested so deeply, and the time of parsers grows with the square of the depth.
    depth = 0
    for sign in text:
        depth += (sign in "[{") - (sign in "]}")
        if depth > _DEEPEST_NESTING:
            raise Unclear
    try:
        return {value for tree in parse(text) for value in _values_in(tree, (), is_wanted)}
    except (ValueError, OverflowError, RecursionError):
        raise Unclear from None


def _values_in(tree: Tree, path: KeyPath, is_wanted: KeyCheck) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(tree, str):
        if not path or is_wanted(tree, None):
            yield path, tree
    elif isinstance(tree, list):
        for item in tree:
            yield from _values_in(item, (*path, ""), is_wanted)
    else:
        for key, value in tree:
            value_path = (*path, "" if key == "<<" else key)
            if is_wanted(key, path):
                yield value_path, _format_tree(value)
            else:
                yield from _values_in(value, value_path, is_wanted)


def _format_tree(tree: Tree) -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(tree, list):
        return f"[{', '.join(map(_format_tree, tree))}]"
    return f"{{{', '.join(f'{key}: {_format_tree(value)}' for key, value in tree)}}}"


def may_hide_key(line: str, escapes: tuple[str, ...]) -> bool:
    """Return True if a line could be a part of a hidden key; `escapes` are escapes that can hide one, in lower case."""
    unpaired = line.lower().replace("\\\\", "")  # a pair of backslashes means one, and escapes nothing
    is_escaped = unpaired[-1:] == "\\" or any(escape in unpaired for escape in escapes)
    if line[0] in ":?" or is_escaped or "<<" in line:
        return True
    for word in line.replace(",", " ").split():
        # YAML's anchors and aliases can stand for a key; a tag can say how to read one.
        name = word.lstrip("[{(-:\"'")
        if word.lstrip("[{(-:")[:1] == "!" or (name[:1] in ("*", "&") and name[1:2].isalnum()):
            return True
    return False


def _to_tree(value: Any, content_of: Callable[[Any], Any], budget: Iterator[int]) -> Tree:
    """Make a tree of what a parser returned; raises Unclear if it has more values than `budget`.

    `content_of` returns a table's pairs as a tuple, a list's items as a list, or the text of anything else.
    """
    if next(budget, None) is None:
        raise Unclear
    content = content_of(value)
    if isinstance(content, tuple):
        return tuple((key, _to_tree(item, content_of, budget)) for key, item in content)
    return [_to_tree(item, content_of, budget) for item in content] if isinstance(content, list) else f"{content}"


def _parse_toml(text: str) -> list[Tree]:
    import tomllib

    def content_of(value: Any) -> Any:
        return tuple(value.items()) if isinstance(value, dict) else value

    return [_to_tree(tomllib.loads(text), content_of, iter(range(_MOST_VALUES)))]


def _parse_json_tree(text: str) -> list[Tree]:
    def content_of(node: Node) -> Any:
        if node.members is not None:
            return tuple((key, value) for key, _, value in node.members)
        return node.value if node.items is None else list(node.items)

    try:
        return [_to_tree(parse_json(text), content_of, iter(range(_MOST_VALUES)))]
    except BadRequest:
        raise Unclear from None


def _parse_yaml(text: str) -> list[Tree]:
    import yaml

    def content_of(node: Any) -> Any:
        if node.id != "mapping":
            return node.value
        if any(key.id != "scalar" or not key.tag.startswith(_YAML) or key.tag == _BINARY for key, _ in node.value):
            raise Unclear  # Ruby and Go decode a key in base64 to a text
        return tuple((key.value, value) for key, value in node.value)

    budget = iter(range(_MOST_VALUES))
    try:
        # Nodes and not Python values: in a `dict`, a key that comes twice would be there once.
        return [_to_tree(node, content_of, budget) for node in yaml.compose_all(text, yaml.SafeLoader)]
    except yaml.YAMLError:
        raise Unclear from None


def _parse_json_or_yaml(text: str) -> list[Tree]:
    """Read a text that some tools take for JSON, others for YAML, and some for YAML without JSON's comments."""
    try:
        trees = _parse_yaml(text)
    except Unclear:
        trees = []
    if trees and all(isinstance(tree, str) for tree in trees):
        return trees
    if "//" in text or "/*" in text:
        try:
            # If it is JSON without comments, all tools read it alike: the slashes are in an address.
            json.loads(text)
        except ValueError:
            raise Unclear from None
    try:
        return trees + _parse_json_tree(text)
    except Unclear:
        # What a backslash means depends on the quotes around it, which JSON and YAML read differently.
        if not trees or "\\" in text:
            raise
    return trees


_PARSERS: dict[str, Callable[[str], list[Tree]]] = {
    "toml": _parse_toml, "json": _parse_json_tree, "yaml": _parse_yaml, "json or yaml": _parse_json_or_yaml,
}  # fmt: skip
