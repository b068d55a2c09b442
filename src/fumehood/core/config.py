"""Read a configuration: its text becomes settings for the policy, or complaints that name a key and a line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fumehood.core.config_keys import KEYS, SECTIONS, WITH_PATHS, Key, Section, Wrong
from fumehood.core.policy import EVERYWHERE
from fumehood.core.value import Value

Path = tuple[str | int, ...]
Settings = dict[str, Any]

_PROJECT = "project"
_ENDS = ("]", "}", '"""', "'''")  # one of these is on the last line of a value of several
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
        place = _AT_LINE.search(str(error))
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
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
        settings = {EVERYWHERE: self._tables(document, (), project=False)}
        if not isinstance(projects, dict) or not all(isinstance(table, dict) for table in projects.values()):
            self._complain((_PROJECT,), "must hold tables", 'write [project."/path/of/the/project"]')
            return settings
        for path, table in projects.items():
            at = (_PROJECT, path)
            whole = self._expanded(path)
            if not whole.startswith("/") or "\0" in whole:
                self._complain(at, "is not an absolute path", 'write [project."/path/of/the/project"]')
            else:
                settings[whole] = self._tables(table, at, project=True)
                self.projects[whole] = self._lines.get(at, 1)
        return settings

    def _tables(self, table: dict[str, Any], at: Path, *, project: bool) -> Settings:
        """Read the keys and the arrays of tables that may stand at the top or in a project's table."""
        settings: Settings = {}
        plain = dict(table)
        for section in SECTIONS:
            if section.name in plain:
                settings[section.field] = self._section(section, plain.pop(section.name), (*at, section.name))
        names = [section.name for section in SECTIONS] + ([] if project else [_PROJECT])
        keys = [key for key in KEYS if not (project and key.global_only)]
        return settings | self._keys(plain, at, keys, names)

    def _section(self, section: Section, tables: Any, at: Path) -> tuple[Settings, ...]:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._complain(at, "must be an array of tables", f"write [[{section.name}]]")
            return ()
        read: list[Settings] = []
        for number, table in enumerate(tables):
            here = (*at, number)
            read.append(self._keys(table, here, section.keys))
            for name in section.needed:
                if name not in table:
                    self._complain(here, f"lacks the key {name}", f"a [[{section.name}]] needs it")
            if section.problems is not None and read[-1].keys() == table.keys() >= {*section.needed}:
                for key, message, hint in section.problems(read[-1]):
                    self._complain((*here, key), message, hint)
                if any(each.get("name") == table["name"] for each in read[:-1]):
                    self._complain((*here, "name"), f"there is another [[{section.name}]] of that name")
        return tuple(read)

    def _keys(self, table: dict[str, Any], at: Path, keys: Sequence[Key], others: Iterable[str] = ()) -> Settings:
        """Read a table's keys, and those of the tables in it."""
        by_name = {key.name: key for key in keys}
        settings: Settings = {}

        def walk(inner: dict[str, Any], prefix: str, path: Path) -> None:
            for name, value in inner.items():
                dotted, here = prefix + name, (*path, name)
                if "." not in name and dotted in by_name:
                    self._value(by_name[dotted], value, here, settings)
                elif "." not in name and any(each.startswith(f"{dotted}.") for each in by_name):
                    if isinstance(value, dict):
                        walk(value, f"{dotted}.", here)
                    else:
                        self._complain(here, "must be a table", f"write [{dotted}]")
                else:
                    near = difflib.get_close_matches(dotted, [*by_name, *others], 1)
                    hint = f"did you mean {near[0]}?" if near else "docs/configuration.md has every key"
                    self._complain(here, "there is no such key", hint)

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
        line = next((self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines), 1)
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


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def line_numbers(text: str) -> dict[Path, int]:
    """Return the line of every key, table and element, by its path of names and positions.

    The standard library's parser tells no lines, so it is given one statement after another: a line, or as many as it
    takes until they can be parsed. What is inside of a value is on the line where the statement begins. Only for texts
    that the parser accepted.
    """
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}  # the position of the latest table in each array of them
    table: Path = ()
    statement, begin = "", 1
    for number, line in enumerate(text.split("\n"), 1):
        is_first = not statement
        begin = number if is_first else begin
        statement += f"{line}\n"
        if not is_first and not any(end in line for end in _ENDS):
            continue  # of a list with a thousand lines, not each is parsed with all before it
        try:
            parsed: Any = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if not statement.lstrip().startswith("["):
            for path in _paths_in(parsed, table):
                lines.setdefault(path, begin)
        else:
            table = ()
            while isinstance(parsed, dict) and parsed:
                ((name, parsed),) = parsed.items()
                table = (*table, name)
                lines.setdefault(table, begin)
                if isinstance(parsed, list):
                    counts[table] = counts.get(table, -1) + 1
                if table in counts:
                    # A name stands for the latest table of its array.
                    table = (*table, counts[table])
                    lines.setdefault(table, begin)
        statement = ""
    return lines


def _paths_in(value: Any, above: Path) -> Iterator[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield (*above, name)
        yield from _paths_in(each, (*above, name))
