"""What settings in TOML, JSON and YAML say, however they spell it: read by a parser, as their tools do.

A key may be written with escapes, on a line of its own, by an alias. Parsers are loaded when there is something to
parse: they take longer than a command to start.
"""

from __future__ import annotations

from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    # A table as a tuple of its pairs, since a key may come twice; a list; a text.
    Tree = tuple[tuple[str, "Tree"], ...] | list["Tree"] | str
    Place = tuple[str, ...]  # keys from the top; "" for a list, and for what is merged
    Wanted = Callable[[str, Place | None], bool]

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
    parse = _PARSERS.get(kind)
    if parse is None or _takes_long(text):
        raise Unclear
    try:
        return {each for tree in parse(text) for each in _wanted(tree, (), is_wanted)}
    except (ValueError, OverflowError, RecursionError):
        raise Unclear from None


def _takes_long(text: str) -> bool:
    """Return True if a text is nested as no settings are: parsers need time that grows with the square of that."""
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        return True
    depth = 0
    for sign in text:
        if sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        if depth > _DEEPEST:
            return True
    return False


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
                yield here, _written(value)
            else:
                yield from _wanted(value, here, is_wanted)


def _written(tree: Tree) -> str:
    if isinstance(tree, str):
        return tree
    if isinstance(tree, list):
        return f"[{', '.join(map(_written, tree))}]"
    return f"{{{', '.join(f'{key}: {_written(value)}' for key, value in tree)}}}"


def is_odd(line: str, escapes: tuple[str, ...]) -> bool:
    """Return True if a line could have a part in spelling a key that is not seen; `escapes` are in lower case."""
    bare = line.lower().replace("\\\\", "")  # two that stand together are one, and escape nothing
    is_escaped = bare[-1:] == "\\" or any(escape in bare for escape in escapes)
    return line[0] in ":?" or is_escaped or "<<" in line or any(map(_is_alias, line.replace(",", " ").split()))


def _is_alias(word: str) -> bool:
    """Return True if a word may stand for another, or says by a tag of YAML's what another one is."""
    bare = word.lstrip("[{(-:\"'")
    return word.lstrip("[{(-:")[:1] == "!" or (bare[:1] in ("*", "&") and bare[1:2].isalnum())


class _Growing:
    """Makes trees of what parsers return, up to a bound."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Unclear

    def of_plain(self, value: Any) -> Tree:
        self.count()
        if isinstance(value, dict):
            return tuple((key, self.of_plain(each)) for key, each in value.items())
        return [self.of_plain(each) for each in value] if isinstance(value, list) else f"{value}"

    def of_json(self, node: Any) -> Tree:
        self.count()
        if node.members is not None:
            return tuple((key, self.of_json(each)) for key, _, each in node.members)
        return [self.of_json(each) for each in node.items] if node.items is not None else f"{node.value}"

    def of_yaml(self, node: Any) -> Tree:
        self.count()
        if node.id == "mapping":
            if any(key.id != "scalar" or not key.tag.startswith(_YAML) or key.tag == _BINARY for key, _ in node.value):
                raise Unclear  # Ruby and Go take what is written in base64 for a text
            return tuple((_written(self.of_yaml(key)), self.of_yaml(each)) for key, each in node.value)
        return [self.of_yaml(each) for each in node.value] if node.id == "sequence" else f"{node.value}"


def _toml(text: str) -> list[Tree]:
    import tomllib

    return [_Growing().of_plain(tomllib.loads(text))]


def _json(text: str) -> list[Tree]:
    from fumehood.core.jsonc import parse

    try:
        return [_Growing().of_json(parse(text))]
    except BadRequest:
        raise Unclear from None


def _yaml(text: str) -> list[Tree]:
    import yaml

    growing = _Growing()
    try:
        # Nodes are all that is wanted of it: in values, a key that comes twice is there once.
        return [growing.of_yaml(node) for node in yaml.compose_all(text, yaml.SafeLoader)]
    except yaml.YAMLError:
        raise Unclear from None


def _either(text: str) -> list[Tree]:
    """Read what is JSON to some tools and YAML to others, and to some the second without the comments of the first."""
    try:
        trees = _yaml(text)
    except Unclear:
        trees = []
    if trees and all(isinstance(tree, str) for tree in trees):
        return trees
    if ("//" in text or "/*" in text) and not _is_strict(text):
        raise Unclear
    try:
        return trees + _json(text)
    except Unclear:
        if not trees or "\\" in text:  # what that means depends on the quotes around it, for which the two differ
            raise
    return trees


def _is_strict(text: str) -> bool:
    """Return True if a text is JSON without comments, which all read alike: what looks like one is in an address."""
    import json

    try:
        json.loads(text)
    except ValueError:
        return False
    return True


_PARSERS: dict[str, Callable[[str], list[Tree]]] = {
    "toml": _toml, "json": _json, "yaml": _yaml, "json or yaml": _either,
}  # fmt: skip


def parsed_package(text: str) -> object:
    """Read a package's settings, in which ESLint takes comments, too; raises ValueError, RecursionError."""
    import json

    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text, parse_int=float)  # as JavaScript: of any length
    except ValueError:
        if "/" not in text:
            raise
    from fumehood.core.jsonc import parse

    try:
        return parse(text).plain()
    except BadRequest as error:
        raise ValueError from error
