"""The kinds of value a key of the configuration takes: each reads what TOML gave, or says what it wants."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from fumehood.core.value import Value
from fumehood.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_*?\[\]!0-9-]+")
_TREE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Kind(Value):
    """A kind of value: what it is called, how it is read (`read` raises Wrong) and written again."""

    said: str
    read: Callable[[Any], Any]
    write: Callable[[Any], str]


class Wrong(Exception):
    """A value is not of the kind that its key takes; `item` is what in it is not, and `item_kind` what that must be."""

    def __init__(self, kind: str, item: Any = None, item_kind: str = "") -> None:
        super().__init__(kind)
        self.item, self.item_kind = item, item_kind


def shown(value: Any) -> str:
    """Write a value as TOML has it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(shown, value)) + "]"
    return "0" if value is None else str(value).lower()


def _size_shown(value: int) -> str:
    """Write a size in the largest unit that leaves a whole number."""
    for unit, shift in reversed(_UNITS.items()):
        if shift and value and value % (1 << shift) == 0:
            return f'"{value >> shift} {unit}iB"'
    return str(value)


def _table_shown(value: tuple[tuple[str, str], ...]) -> str:
    return "{ " + ", ".join(f"{name} = {shown(text)}" for name, text in value) + " }" if value else "{}"


def choice(*words: str) -> Kind:
    """One of a few words."""
    said = "one of " + ", ".join(f'"{word}"' for word in words)

    def read(value: Any) -> str:
        if value not in words or not isinstance(value, str):
            raise Wrong(said)
        return value

    return Kind(said=said, read=read, write=shown)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong("a string")
    if "\0" in value:
        raise Wrong("a string without a NUL")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong("true or false")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise Wrong("a whole number, 0 or more")
    return value


def _amount(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise Wrong("a number, 0 or more")
    return value


def _seconds(value: Any) -> float | None:
    try:
        return _amount(value) or None
    except Wrong:
        raise Wrong("a number of seconds; 0 for no limit") from None


def _size(value: Any) -> int:
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        if found is None:
            raise Wrong('a size, such as 1048576 or "64 MiB"')
        value = math.ceil(float(found[1]) * (1 << _UNITS[found[2].upper()]))
    try:
        return _count(value)
    except Wrong:
        raise Wrong('a size, such as 1048576 or "64 MiB"') from None


def _path(value: Any) -> str:
    text = _text(value)
    if not text.startswith(("/", "~/")):
        raise Wrong('an absolute path, or one that begins with "~/"')
    return text


def _mask(value: Any) -> str:
    text = _text(value)
    if not text.strip("/.~") or ".." in text.split("/"):
        raise Wrong("a path that names something, without ..")
    return text


def _root(value: Any) -> str:
    if isinstance(value, str) and _TREE.fullmatch(value):
        return value
    try:
        return _path(value)
    except Wrong:
        raise Wrong('"host", "alpine", the name of an installed root tree, or the path of one') from None


def _matching(pattern: re.Pattern[str], said: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if pattern.fullmatch(_text(value)) is None:
            raise Wrong(said)
        return str(value)

    return read


def _each(said: str, one: Callable[[Any], str]) -> Kind:
    """Make a list of strings, each of one form."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise Wrong(said)
        return tuple(map(read_item, value))

    def read_item(item: Any) -> str:
        try:
            return one(item)
        except Wrong as wrong:
            raise Wrong(said, item, str(wrong)) from None

    return Kind(said=said, read=read, write=shown)


def _scratch(value: Any) -> str:
    variable, equals, path = _text(value).rpartition("=")
    if not path.startswith(("/", "~/", "$")) or (equals and _VARIABLE.fullmatch(variable) is None):
        raise Wrong("an absolute path, with VARIABLE= before it if need be")
    return str(value)


def _table(value: Any) -> tuple[tuple[str, str], ...]:
    said = "a table of names with strings"
    if not isinstance(value, dict):
        raise Wrong(said)
    for name, text in value.items():
        if _VARIABLE.fullmatch(name) is None:
            raise Wrong(said, name, "the name of a variable")
        try:
            _text(text)
        except Wrong as wrong:
            raise Wrong(said, text, str(wrong)) from None
    return tuple(value.items())


def _host(value: Any) -> str:
    from fumehood.core.hosts import parse

    try:
        return parse(_text(value)).text
    except BadRequest as error:
        raise Wrong('a "host" or "host:port"') from error


TEXT = Kind(said="a string", read=_text, write=shown)
FLAG = Kind(said="true or false", read=_flag, write=shown)
COUNT = Kind(said="a whole number", read=_count, write=shown)
AMOUNT = Kind(said="a number", read=_amount, write=shown)
SECONDS = Kind(said="seconds; 0 for no limit", read=_seconds, write=shown)
SIZE = Kind(said='a size: bytes, or as "64 MiB"', read=_size, write=_size_shown)
PATH = Kind(said="an absolute path", read=_path, write=shown)
ROOT = Kind(said='"host", "alpine", a name, or a path', read=_root, write=shown)
TEXTS = _each("a list of strings", _text)
PATHS = _each("a list of paths", _path)
MASKS = _each("a list of paths", _mask)
HOSTS = _each("a list of hosts", _host)
NAMES = _each("a list of names", _matching(_NAME, "a variable's name, in which * and ? stand for others"))
SCRATCH = _each("a list of directories", _scratch)
TABLE = Kind(said="a table of names with strings", read=_table, write=_table_shown)

WITH_PATHS = (PATH, PATHS, MASKS, ROOT)
