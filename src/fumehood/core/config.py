"""The configuration: every key, with the kind of value that it takes and what it means, and how a file of it is read.

Its text becomes settings for the policy, or complaints that name a key and a line. The tables of docs/configuration.md
are made from `KEYS` and `SECTIONS` by tools/reference.py.

To add a key: a field with its default in `policy.py`, and a line in `KEYS` under the same name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from fumehood.core.hosts import parse_host as host_rule
from fumehood.core.policy import ALL_PROJECTS, HIDDEN, PRETEND, REFUSE, VISIBLE, Policy, Profile
from fumehood.core.templates import template_problems as tool_problems
from fumehood.core.value import Value
from fumehood.errors import BadRequest

Reader = Callable[[Any], Any]
Path = tuple[str | int, ...]
Settings = dict[str, Any]

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_*?\[\]!0-9-]+")
_TREE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCRATCH = re.compile(rf"(?:{_VARIABLE.pattern}=)?(?:/|~/|\$)[^=]*")


class WrongValue(Exception):
    """A value is not of the kind that its key takes; `item` is what in it is not, and `item_kind` what that must be."""

    def __init__(self, kind: str, item: Any = None, item_kind: str = "") -> None:
        super().__init__(kind)
        self.item, self.item_kind = item, item_kind


def as_toml(value: Any) -> str:
    """Write a value as TOML has it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {as_toml(each)}" for name, each in value.items()) + " }"
    return "0" if value is None else str(value).lower()


def _size_shown(value: int) -> str:
    """Write a size in the largest unit that leaves a whole number."""
    for unit, shift in reversed(_UNITS.items()):
        if shift and value and value % (1 << shift) == 0:
            return f'"{value >> shift} {unit}iB"'
    return str(value)


def _table_shown(value: tuple[tuple[str, str], ...]) -> str:
    return "{ " + ", ".join(f"{name} = {as_toml(text)}" for name, text in value) + " }" if value else "{}"


class Kind:
    """A kind of value: what it is called, how it is read (`read` raises WrongValue) and written again."""

    def __init__(self, said: str, read: Reader, write: Callable[[Any], str] = as_toml) -> None:
        self.said, self.read, self.write = said, read, write


def _if(fits: Callable[[Any], object], wrong: str) -> Reader:
    """Take a value as it is, where it fits."""

    def read(value: Any) -> Any:
        if not fits(value):
            raise WrongValue(wrong)
        return value

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise WrongValue("a string without a NUL" if isinstance(value, str) else "a string")
    return value


def _text_if(fits: Callable[[str], object], wrong: str) -> Callable[[Any], str]:
    return lambda value: _if(fits, wrong)(_text(value))


def _or(wrong: str, read: Reader) -> Reader:
    """Read so, and say in these words where the value is wrong."""

    def reworded(value: Any) -> Any:
        try:
            return read(value)
        except (WrongValue, BadRequest):
            raise WrongValue(wrong) from None

    return reworded


def _inside(said: str, read: Reader, item: Any) -> Any:
    """Read what is in a value that is called so."""
    try:
        return read(item)
    except WrongValue as wrong:
        raise WrongValue(said, item, str(wrong)) from None


def _each(said: str, one: Reader) -> Kind:
    """A list of strings, each of one form."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise WrongValue(said)
        return tuple(_inside(said, one, item) for item in value)

    return Kind(said, read)


def choice(*words: str) -> Kind:
    """One of a few words."""
    said = "one of " + ", ".join(f'"{word}"' for word in words)
    return Kind(said, _if(lambda value: isinstance(value, str) and value in words, said))


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < most


def _is_json(value: Any) -> bool:
    """Of JSON, TOML has everything but null."""
    if isinstance(value, (dict, list)):
        return all(map(_is_json, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (str, int, float))


def _size(value: Any) -> int:
    if isinstance(value, str) and (size := _SIZE.fullmatch(value.strip())):
        value = math.ceil(float(size[1]) * (1 << _UNITS[size[2].upper()]))
    return int(COUNT.read(value))


def _table(value: Any) -> tuple[tuple[str, str], ...]:
    said = "a table of names with strings"
    if not isinstance(value, dict):
        raise WrongValue(said)
    return tuple((_inside(said, _variable, name), _inside(said, _text, text)) for name, text in value.items())


_path = _text_if(lambda text: text.startswith(("/", "~/")), 'an absolute path, or one that begins with "~/"')
_mask = _text_if(
    lambda text: text.strip("/.~") and ".." not in text.split("/"), "a path that names something, without .."
)
_device = _text_if(
    lambda text: text.startswith("/dev/") and ".." not in text.split("/") and text[-1] != "/" and "//" not in text,
    "the path of a device, such as /dev/kvm",
)
_variable = _text_if(_VARIABLE.fullmatch, "the name of a variable")
_name = _text_if(_NAME.fullmatch, "a variable's name, in which * and ? stand for others")
_scratch = _text_if(_SCRATCH.fullmatch, "an absolute path, with VARIABLE= before it if need be")

FLAG = Kind("true or false", _if(lambda value: isinstance(value, bool), "true or false"))
COUNT = Kind(
    "a whole number",
    _if(lambda value: isinstance(value, int) and _is_number(value, 1 << 62), "a whole number, 0 or more"),
)
AMOUNT = Kind("a number", _if(lambda value: _is_number(value, 1e9), "a number, 0 or more"))
SECONDS = Kind(
    "seconds; 0 for no limit", _or("a number of seconds; 0 for no limit", lambda value: AMOUNT.read(value) or None)
)
SIZE = Kind('a size: bytes, or as "64 MiB"', _or('a size, such as 1048576 or "64 MiB"', _size), _size_shown)
SCHEMA = Kind(
    "a JSON schema", _if(lambda value: isinstance(value, dict) and _is_json(value), "a JSON schema, as a table")
)
TEXT = Kind("a string", _text)
PATH = Kind("an absolute path", _path)
FILE = Kind("an absolute path; empty for none", lambda value: "" if value == "" else _path(value))
ROOT = Kind(
    '"host", "alpine", a name, or a path',
    _or(
        '"host", "alpine", the name of an installed root tree, or the path of one',
        lambda value: value if isinstance(value, str) and _TREE.fullmatch(value) else _path(value),
    ),
)
TABLE = Kind("a table of names with strings", _table, _table_shown)
TEXTS = _each("a list of strings", _text)
PATHS = _each("a list of paths", _path)
MASKS = _each("a list of paths", _mask)
DEVICES = _each("a list of devices", _device)
HOSTS = _each("a list of hosts", _or('a "host" or "host:port"', lambda value: host_rule(_text(value)).text))
NAMES = _each("a list of names", _name)
SCRATCH = _each("a list of directories", _scratch)
_WITH_PATHS = (PATH, FILE, PATHS, MASKS, ROOT)
_OF_THE_MACHINE = ("clean.", "rootfs.", "sign.", "fleet.")  # no project has its own


class Key:
    """One key, and the `place` in the policy that it sets."""

    def __init__(self, name: str, kind: Kind, doc: str, place: str = "") -> None:
        self.name, self.kind, self.doc, self.place = name, kind, doc, place or name
        self.global_only = name.startswith(_OF_THE_MACHINE) and name != "rootfs.writable"

    @property
    def default(self) -> Any:
        """What holds where the key is not given."""
        return self.of(Policy())

    def of(self, policy: Policy) -> Any:
        """Return what a policy says for this key."""
        value: Any = policy
        for part in self.place.split("."):
            value = getattr(value, part)
        return value


class Section:
    """An array of tables, `[[name]]`, each with these keys; those in `needed` must be there."""

    def __init__(self, name: str, field: str, needed: str, *keys: Key) -> None:
        self.name, self.field, self.needed, self.keys = name, field, needed.split(), keys


KEYS: tuple[Key, ...] = (
    Key("apply", choice("apply", "hold", "discard", "whole"), "What becomes of a run's changes. With \"whole\", those"
        " of a command that was ended before its own end are thrown away, and not held: for jobs that are run again."),
    Key("on_conflict", choice("hold-path", "hold-all"),
        "When a path changed in the project during the run: hold that path, or everything."),
    Key("again.tries", COUNT,
        "How often a command is run that conflicts with nothing but other runs, before it is held; 1: never again."),
    Key("again.within", AMOUNT, "Seconds that such a command may have taken."),
    Key("checkpoint", AMOUNT,
        "Seconds between checkpoints of a command in the background, so that other commands see what it has written; "
        "0: only when asked for."),
    Key("timeout", SECONDS, "End a command after this time."),
    Key("output_limit", SIZE, "Keep at most this much of each output."),
    Key("capture", choice("", "kernel", "bwrap", "fuse", "copy"),
        "How writes are captured; empty: the best way that works here (`fumehood doctor`)."),
    Key("sandbox", choice("bwrap", "container"),
        "`container`: the container around us is good enough where bubblewrap can't run."),
    Key("root", ROOT, "The system that a command sees: `host`, `alpine`, or another root tree's name or path."),
    Key("tmp", choice("session", "fresh", "project"),
        "`/tmp`: one for the commands of a session, empty for any other; empty for each; or kept for the project."),
    Key("drafts", choice("", "session"),
        "`session`: what the commands of a session write stays in a draft of its own until that is applied; "
        "empty: in a draft only where one is named."),
    Key("playground", FLAG, "Show commands a writable directory of their own at `~/playground`."),
    Key("ownership", choice(PRETEND, REFUSE),
        "When a command that runs as root gives a file to anybody else: `pretend` does nothing and reports success, "
        "so that archives unpack; `refuse` fails. Owners are not changed either way."),
    Key("ask_timeout", AMOUNT, "Seconds that a question to a person waits for an answer; then it is a no."),
    Key("network", choice("none", "ask", "full"),
        "`none`; `ask`: a connection to a host that is not in `hosts` waits while you are asked; `full`: the host's "
        "network."),
    Key("hosts", HOSTS, "Hosts that commands may reach without asking: `host[:port]`, `*.example.org`."),
    Key("hold", TEXTS, "Globs of paths whose changes wait for a person.", "rules.hold"),
    Key("flag", TEXTS, "Globs of paths whose changes are applied and flagged.", "rules.flag"),
    Key("home", choice(HIDDEN, VISIBLE),
        "`hidden`: of the home, a command sees the tools and nothing else, and what it writes there is thrown away; "
        "`visible`: all of it that is not masked, read-only."),
    Key("show", PATHS, "Files and directories of the home that commands see too, less what is masked in them."),
    Key("mask", MASKS, "More files and directories to hide from commands; "
        "a relative path, such as `.env`, counts below every root."),
    Key("unmask", MASKS, "Paths that are hidden by default, and that commands may see."),
    Key("devices", DEVICES, "Devices of the host that commands may use, such as `/dev/kvm` or `/dev/dri/renderD128`: "
        "character devices below `/dev`. See security.md for what that means."),
    Key("environment.keep", NAMES, "Variables that commands get although they look like secrets; globs."),
    Key("environment.drop", NAMES, "Variables that commands don't get; globs."),
    Key("environment.set", TABLE, "Variables and values that every command gets."),
    Key("limits.memory", SIZE, "Memory of all processes of a run together; 0: three quarters of the machine's."),
    Key("limits.processes", COUNT, "Processes and threads at once; 0: no limit."),
    Key("limits.cpu", AMOUNT, "CPU seconds of all processes of a run together; 0: no limit."),
    Key("limits.files", COUNT, "Open files of one process; 0: no limit."),
    Key("limits.file_size", SIZE, "Size of one file; 0: no limit."),
    Key("limits.written", SIZE, "Bytes that one run may write; 0: no limit."),
    Key("clean.keep_days", COUNT, "How long the originals of a run are kept, in days on which Fumehood ran."),
    Key("clean.backup_days", COUNT, "The same for daily backups."),
    Key("clean.budget", SIZE, "Space that older originals may take before large and old ones go; 0: no limit."),
    Key("rootfs.mirror", TEXT, "Where root trees are downloaded from."),
    Key("rootfs.proxy", TEXT, "The proxy for these downloads."),
    Key("rootfs.keys", PATHS, "Files with the public keys that sign a mirror's packages, besides Alpine's own."),
    Key("rootfs.install", FLAG, "Install the Alpine root when a command first needs it and there is none."),
    Key("rootfs.writable", FLAG, "Let a workspace install packages into its own layer of the root tree."),
    Key("sign.key", FILE, "The key that signs bundles, jobs and their results: a file that `ssh-keygen` made."),
    Key("sign.signers", FILE, "Whose signatures are known: a file as `ssh-keygen -Y verify` takes it, a name and a "
        "public key on each line. A worker takes jobs of these alone."),
    Key("fleet.unsigned", FLAG, "Let a worker take jobs that nobody signed, or nobody in `sign.signers`."),
    Key("fleet.hosts", HOSTS, "Hosts that jobs may ask a worker for."),
    Key("fleet.roots", TEXTS, "Root trees that jobs may ask a worker for."),
    Key("fleet.secrets", NAMES, "Variables of a worker's own environment that jobs may ask for by name; globs."),
    Key("fleet.budget", SIZE, "Space that a worker's copies of projects may take before the oldest go."),
)  # fmt: skip

_IN_AGENTS = ("network", "hosts", "show", "environment.", "limits.")
_IN_PROFILES = ("timeout", "hosts", "environment.", "limits.")
SECTIONS: tuple[Section, ...] = (
    Section(
        "profile", "profiles", "match",
        Key("match", TEXTS, "Programs, or programs with their first words: `npm`, `pip3*`, `python* -m pip`."),
        Key("scratch", SCRATCH, "Directories that the program may write: `DIRECTORY`, or `VARIABLE=DIRECTORY`."),
        Key("keep", FLAG, "Keep what it writes there for the project's next commands, or throw it away. "
            "Default: `true`."),
        *(key for key in KEYS if key.name.startswith(_IN_PROFILES)),
    ),
    Section(
        "agent", "agents", "name",
        Key("name", TEXT, "The name of its program."),
        Key("programs", TEXTS, "Other programs that are this agent, such as those that editors start."),
        Key("state", SCRATCH, "Directories that are its own, kept for it between its sessions in a project: "
            "`DIRECTORY`, or `VARIABLE=DIRECTORY`. Nothing of them is the host's, and nothing goes back."),
        Key("credentials", TEXTS, "Files that it gets a copy of, whenever yours is newer; `FILE#KEY,KEY`: only "
            "these keys of a JSON file, once."),
        Key("arguments", TEXTS, "What comes before the arguments that you type."),
        Key("around", TEXTS, "Two texts that stand before and after a line of the model's in what the agent gives "
            "to a shell: with `--each-command`, what is between them is the command, and a shell line without "
            "them is none."),
        Key("own_lines", TEXTS, "Shell lines that are the agent's own and no commands of the model's; `*` is any "
            "text."),
        *(key for key in KEYS if key.name.startswith(_IN_AGENTS)),
    ),
    Section(
        "in_root", "in_roots", "root",
        Key("root", ROOT, "The root."), *(key for key in KEYS if key.name == "environment.set"),
    ),
    Section(
        "tool", "tools", "name description command",
        Key("name", TEXT, "What a model calls it: letters, digits, `_`, `-`; not the name of a tool of ours."),
        Key("description", TEXT, "What a model is told of it."),
        Key("command", TEXT, "The shell line, with an `{argument}` for each that it takes."),
        Key("schema", SCHEMA, "The JSON schema of its arguments."),
    ),
    Section(
        "skill", "skills", "path",
        Key("path", PATH, "The directory."), Key("name", TEXT, "Its name there; default: its own."),
    ),
)  # fmt: skip


def check_policy(policy: object) -> None:
    """Refuse a program's policy where a value is none of its key's: `home="hiden"` would show all of the home."""
    if not isinstance(policy, Policy):
        raise BadRequest(f"{policy!r:.100} is not a policy", hint="fumehood.Policy(…)")
    for name, default in Policy().fields().items():
        if isinstance(default, Value) and not isinstance(getattr(policy, name), type(default)):
            _refuse(name, getattr(policy, name), f"made by {type(default).__name__}(…)")
    for key in KEYS:
        value, wrong = key.of(policy), ""
        if value == key.default and type(value) is type(key.default):
            continue
        try:  # as if it stood in the file
            written: Any = 0 if value is None else list(value) if isinstance(value, tuple) else value
            read = key.kind.read(dict(written) if key.kind is TABLE else written)
        except WrongValue as error:
            wrong = str(error)
        except (TypeError, ValueError):
            wrong = key.kind.said
        else:  # a size in words is only for the file
            wrong = "" if isinstance(read, str) == isinstance(value, str) else key.kind.said
        if wrong:
            _refuse(key.place, value, wrong)
    for section in SECTIONS:
        tables = getattr(policy, section.field)
        if not isinstance(tables, (list, tuple)) or not all(isinstance(each, (dict, Profile)) for each in tables):
            _refuse(section.field, tables, "a list of tables")


def _refuse(name: str, value: Any, wanted: str) -> NoReturn:
    raise BadRequest(f"{name} of a policy can't be {value!r:.100}", hint=f"it is {wanted}")


# Reading a file.

_PROJECT = "project"
_ENDS = ("]", "}", '"""', "'''")  # one of these is on the last line of a value of several
_AT_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Complaint(Value):
    """One thing that is wrong: where, with which key, what, and what to write instead."""

    line: int
    key: str
    message: str
    hint: str = ""


class CheckedConfiguration(Value):
    """A configuration that was read: settings by field, for every project ("") and for single ones by path."""

    settings: dict[str, Settings]
    complaints: tuple[Complaint, ...]
    lines: dict[str, int] = {}  # noqa: RUF012 - where the table of each project begins


def read_configuration(data: bytes, home: str) -> CheckedConfiguration:
    """Read a configuration's bytes; where there are complaints, its settings are not to be used.

    A path that begins with "~/" lies in `home`.
    """
    import tomllib

    try:
        text = data.decode().removeprefix("\ufeff")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        return _refused(data.count(b"\n", 0, error.start) + 1, "this line is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        place = _AT_LINE.search(str(error))
        line = int(place[1]) if place and place[1] else data.count(b"\n") + 1
        return _refused(line, f"this is not TOML: {_AT_LINE.sub('', str(error))}")
    except RecursionError:
        return _refused(1, "values are nested too deeply")
    checking = _DocumentReader(line_numbers(text), home)
    settings = checking.document(document)
    return CheckedConfiguration(settings=settings, complaints=by_line(checking.complaints), lines=checking.projects)


def by_line(complaints: Iterable[Complaint]) -> tuple[Complaint, ...]:
    """Return complaints by line."""
    return tuple(sorted(complaints, key=lambda each: each.line))


def _refused(line: int, message: str) -> CheckedConfiguration:
    return CheckedConfiguration(settings={}, complaints=(Complaint(line=line, key="", message=message),))


class _DocumentReader:
    """One pass over a parsed document."""

    def __init__(self, lines: Mapping[Path, int], home: str) -> None:
        self._lines = lines
        self._home = home
        self.complaints: list[Complaint] = []
        self.projects: dict[str, int] = {}

    def document(self, document: dict[str, Any]) -> dict[str, Settings]:
        """Return the settings at the top and those of each project."""
        projects = document.pop(_PROJECT, {})
        settings = {ALL_PROJECTS: self._tables(document, (), KEYS, _PROJECT)}
        hint = 'write [project."/path/of/the/project"]'
        if not isinstance(projects, dict) or not all(isinstance(table, dict) for table in projects.values()):
            self._complain((_PROJECT,), "must hold tables", hint)
            return settings
        for path, table in projects.items():
            at, whole = (_PROJECT, path), self._expanded(path)
            if whole.startswith("/") and "\0" not in whole:
                settings[whole] = self._tables(table, at, [key for key in KEYS if not key.global_only])
                self.projects[whole] = self._lines.get(at, 1)
            else:
                self._complain(at, "is not an absolute path", hint)
        return settings

    def _tables(self, table: dict[str, Any], at: Path, keys: Sequence[Key], *others: str) -> Settings:
        """Read the keys and the arrays of tables that may stand at the top or in a project's table."""
        sections = {section.name: section for section in SECTIONS}
        settings: Settings = {
            sections[name].field: self._section(sections[name], tables, (*at, name))
            for name, tables in table.items() if name in sections
        }  # fmt: skip
        plain = {name: value for name, value in table.items() if name not in sections}
        return settings | self._keys(plain, at, keys, (*sections, *others))

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
            if section.name == "tool" and read[-1].keys() == table.keys() >= {*section.needed}:
                for key, message, hint in tool_problems(read[-1]):
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
                    import difflib

                    near = difflib.get_close_matches(dotted, [*by_name, *others], 1)
                    hint = f"did you mean {near[0]}?" if near else "docs/configuration.md has every key"
                    self._complain(here, "there is no such key", hint)

        walk(table, "", at)
        return settings

    def _value(self, key: Key, value: Any, at: Path, settings: Settings) -> None:
        try:
            read = key.kind.read(value)
        except WrongValue as wrong:
            because = f"and {_shown(wrong.item)} in it is not {wrong.item_kind}" if wrong.item_kind else ""
            self._complain(at, f"must be {wrong}, {because or f'not {_shown(value)}'}")
        else:
            settings[key.place] = self._expanded(read) if key.kind in _WITH_PATHS else read

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
    import tomllib

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
