"""Read a configuration: its text becomes settings for the policy, or complaints that name a key and a line."""

from __future__ import annotations

import difflib
import re
import tomllib
from bisect import bisect_right
from typing import Any

from fumehood.core.config_keys import SECTIONS, WITH_PATHS, Wrong, keys_for
from fumehood.core.policy import EVERYWHERE
from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fumehood.core.config_keys import Key, Section

    Path = tuple[str | int, ...]
    Settings = dict[str, Any]
    from collections.abc import Callable

_PROJECT = "project"
_AT_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Complaint(Value):
    """One thing that is wrong: where, with which key, what, and what to write instead."""

    line: int
    key: str
    message: str
    hint: str = ""


class Checked(Value):
    """A configuration that was read: settings by field, for every project ("") and for single ones by path."""

    settings: dict[str, Settings]
    complaints: tuple[Complaint, ...]
    lines: dict[str, int] = {}  # noqa: RUF012 - where the table of each project begins


def read(data: bytes, home: str) -> Checked:
    """Read a configuration's bytes; where there are complaints, its settings are not to be used.

    A path that begins with "~/" lies in `home`.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return _refused(data.count(b"\n", 0, error.start) + 1, "this line is not UTF-8")
    text = text.removeprefix("\ufeff")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        return _refused(line, f"this is not TOML: {_AT_LINE.sub('', str(error))}")
    except RecursionError:
        return _refused(1, "values are nested too deeply")
    checking = _Checking(line_numbers(text), home)
    settings = checking.document(document)
    return Checked(settings=settings, complaints=in_order(checking.complaints), lines=checking.projects)


def in_order(complaints: Iterable[Complaint]) -> tuple[Complaint, ...]:
    """Return complaints by line."""
    return tuple(sorted(complaints, key=lambda each: each.line))


def _refused(line: int, message: str) -> Checked:
    return Checked(settings={}, complaints=(Complaint(line=line, key="", message=message),))


class _Checking:
    """One pass over a parsed document."""

    def __init__(self, lines: Mapping[Path, int], home: str) -> None:
        self._lines = lines
        self._home = home
        self.complaints: list[Complaint] = []
        self.projects: dict[str, int] = {}

    def document(self, document: dict[str, Any]) -> dict[str, Settings]:
        """Return the settings at the top and those of each project."""
        projects = document.pop(_PROJECT, {})
        found = {EVERYWHERE: self._tables(document, (), project=False)}
        if not isinstance(projects, dict) or not all(isinstance(table, dict) for table in projects.values()):
            self._complain((_PROJECT,), "must hold tables", 'write [project."/path/of/the/project"]')
            return found
        for path, table in projects.items():
            at = (_PROJECT, path)
            whole = self._expanded(path)
            if not whole.startswith("/") or "\0" in whole:
                self._complain(at, "is not an absolute path", 'write [project."/path/of/the/project"]')
            else:
                found[whole] = self._tables(table, at, project=True)
                self.projects[whole] = self._lines.get(at, 1)
        return found

    def _tables(self, table: dict[str, Any], at: Path, *, project: bool) -> Settings:
        """Read the keys and the arrays of tables that may stand at the top or in a project's table."""
        settings: Settings = {}
        plain = dict(table)
        for section in SECTIONS:
            if section.name in plain:
                settings[section.field] = self._section(section, plain.pop(section.name), (*at, section.name))
        names = [section.name for section in SECTIONS] + ([] if project else [_PROJECT])
        return settings | self._keys(plain, at, keys_for(project=project), names)

    def _section(self, section: Section, tables: Any, at: Path) -> tuple[Settings, ...]:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._complain(at, "must be an array of tables", f"write [[{section.name}]]")
            return ()
        found = []
        for number, table in enumerate(tables):
            here = (*at, number)
            found.append(self._keys(table, here, section.keys))
            for name in section.needed:
                if name not in table:
                    self._complain(here, f"lacks the key {name}", f"a [[{section.name}]] needs it")
        return tuple(found)

    def _keys(self, table: dict[str, Any], at: Path, keys: Sequence[Key], others: Iterable[str] = ()) -> Settings:
        """Read a table's keys, and those of the tables in it."""
        known = {key.name: key for key in keys}
        settings: Settings = {}

        def walk(inner: dict[str, Any], prefix: str, path: Path) -> None:
            for name, value in inner.items():
                dotted, here = prefix + name, (*path, name)
                if "." not in name and dotted in known:
                    self._value(known[dotted], value, here, settings)
                elif "." not in name and any(each.startswith(f"{dotted}.") for each in known):
                    if isinstance(value, dict):
                        walk(value, f"{dotted}.", here)
                    else:
                        self._complain(here, "must be a table", f"write [{dotted}]")
                else:
                    self._complain(here, "there is no such key", _meant(dotted, [*known, *others]))

        walk(table, "", at)
        return settings

    def _value(self, key: Key, value: Any, at: Path, settings: Settings) -> None:
        try:
            read = key.kind.read(value)
        except Wrong as wrong:
            because = f"and {_shown(wrong.item)} in it is not {wrong.item_kind}" if wrong.item_kind else ""
            self._complain(at, f"must be {wrong}, {because or f'not {_shown(value)}'}")
        else:
            settings[key.place] = self._expanded(read) if key.kind in WITH_PATHS else read

    def _expanded(self, value: Any) -> Any:
        """Write out the home directory in a path, or in each of several."""
        if isinstance(value, tuple):
            return tuple(map(self._expanded, value))
        return self._home + value[1:] if value.startswith("~/") else value

    def _complain(self, path: Path, message: str, hint: str = "") -> None:
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in self._lines), None)
        line = self._lines[known] if known else 1
        self.complaints.append(Complaint(line=line, key=dotted_name(path), message=message, hint=hint))


def dotted_name(path: Path) -> str:
    """Write the path of a key as it stands in TOML; positions count from 1."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part + 1}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            name += ("." if name else "") + (part if plain else f'"{part}"')
    return name


def _meant(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "docs/configuration.md has every key"


def _shown(value: Any) -> str:
    kinds = {bool: "true or false", dict: "a table", list: "a list"}
    if type(value) in kinds:
        return kinds[type(value)] if not isinstance(value, bool) else str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# On which line of a TOML text each key stands: the standard library's parser does not tell.
#
# Only for texts that the parser accepted, so what it would refuse need not be noticed here.

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
