"""On which line of a TOML text each key stands: the standard library's parser does not tell.

Only for texts that the parser accepted, so what it would refuse need not be noticed here.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Path = tuple[str | int, ...]

_SKIPPED = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
# Three quotes first: an empty string is two of them.
_STRINGS = (r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', r"'''.*?'{3,5}(?!')", r'"(?:[^"\\\n]|\\.)*"', r"'[^'\n]*'")
_STRING = re.compile("|".join(_STRINGS), re.DOTALL)
_PLAIN = re.compile(r"[^,\]}#\n]*")


def line_numbers(text: str) -> dict[Path, int]:
    """Return the line of every key, table and element, by its path of names and positions."""
    reading = _Reading(text)
    while not reading.at_end():
        reading.statement()
    return reading.lines


class _Reading:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._table: Path = ()
        self._counts: dict[Path, int] = {}  # of the tables in an array of them
        self.lines: dict[Path, int] = {}

    def at_end(self) -> bool:
        self._take(_SKIPPED)
        return self._at >= len(self._text)

    def statement(self) -> None:
        """Read a table's header, or a key with its value."""
        if self._text[self._at] != "[":
            self._pair(self._table)
            return
        line, is_array = self._line(), self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        names = self._names()
        self._at = self._text.index("]", self._at) + (2 if is_array else 1)
        path: Path = ()
        for depth, name in enumerate(names, 1):
            self._note(path := (*path, name), line)
            if is_array and depth == len(names):
                self._counts[path] = self._counts.get(path, -1) + 1
            if path in self._counts:
                # A name stands for the latest table of its array.
                self._note(path := (*path, self._counts[path]), line)
        self._table = path

    def _pair(self, table: Path) -> None:
        line, path = self._line(), table
        for name in self._names():
            self._note(path := (*path, name), line)
        self._at = self._text.index("=", self._at) + 1
        self._take(_BLANK)
        self._value(path)

    def _value(self, path: Path) -> None:
        opening = self._text[self._at]
        if opening in "\"'":
            self._take(_STRING)
        elif opening == "[":
            self._inside("]", lambda number: self._element((*path, number)))
        elif opening == "{":
            self._inside("}", lambda _number: self._pair(path))
        else:
            self._take(_PLAIN)

    def _inside(self, closing: str, one: Callable[[int], None]) -> None:
        self._at += 1
        number = 0
        self._take(_SKIPPED)
        while self._text[self._at] != closing:
            one(number)
            number += 1
            self._take(_SKIPPED)
            if self._text[self._at] == ",":
                self._at += 1
                self._take(_SKIPPED)
        self._at += 1

    def _element(self, path: Path) -> None:
        self._note(path, self._line())
        self._value(path)

    def _names(self) -> list[str]:
        """Read a dotted key."""
        names = []
        while True:
            self._take(_BLANK)
            names.append(self._name())
            self._take(_BLANK)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _name(self) -> str:
        if self._text[self._at] in "\"'":
            name: str = tomllib.loads(f"name = {self._take(_STRING)}")["name"]
            return name
        return self._take(_BARE)

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        assert found is not None, "the parser accepted this text"
        self._at = found.end()
        return found.group()

    def _note(self, path: Path, line: int) -> None:
        self.lines.setdefault(path, line)

    def _line(self) -> int:
        return bisect_right(self._ends, self._at - 1) + 1
