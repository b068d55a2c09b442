"""Every key of the configuration: the kind of value that it takes, and what it means.

The tables of docs/configuration.md are made from that by tools/reference.py.

To add a key: a field with its default in `policy.py`, and a line in `KEYS` under the same name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from fumehood.core.policy import HIDDEN, PRETEND, REFUSE, VISIBLE, Policy, Profile
from fumehood.core.tool import problems as tool_problems
from fumehood.core.value import Value
from fumehood.errors import BadRequest

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


def _kind(said: str, fits: Callable[[Any], bool], wrong: str = "", write: Callable[[Any], str] = shown) -> Kind:
    """Make a kind of which a value is taken as it is; `wrong` says what it must be, where its name does not."""

    def read(value: Any) -> Any:
        if not fits(value):
            raise Wrong(wrong or said)
        return value

    return Kind(said=said, read=read, write=write)


def choice(*words: str) -> Kind:
    """One of a few words."""
    said = "one of " + ", ".join(f'"{word}"' for word in words)
    return _kind(said, lambda value: value in words and isinstance(value, str))


def _is_json(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return all(map(_is_json, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (str, int, float))


def _inline_shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_inline_shown(each)}" for name, each in value.items()) + " }"
    return "[" + ", ".join(map(_inline_shown, value)) + "]" if isinstance(value, list) else shown(value)


FLAG = _kind("true or false", lambda value: isinstance(value, bool))
COUNT = _kind(
    "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62,
    "a whole number, 0 or more",
)  # fmt: skip
AMOUNT = _kind(
    "a number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9,
    "a number, 0 or more",
)  # fmt: skip
# Of JSON, TOML has everything but null.
SCHEMA = _kind(
    "a JSON schema", lambda value: isinstance(value, dict) and _is_json(value), "a JSON schema, as a table",
    _inline_shown,
)  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong("a string")
    if "\0" in value:
        raise Wrong("a string without a NUL")
    return value


def _text_that(fits: Callable[[str], object], wrong: str) -> Callable[[Any], str]:
    """Return what reads a text of one form."""

    def read(value: Any) -> str:
        text = _text(value)
        if not fits(text):
            raise Wrong(wrong)
        return text

    return read


_path = _text_that(lambda text: text.startswith(("/", "~/")), 'an absolute path, or one that begins with "~/"')
_mask = _text_that(
    lambda text: text.strip("/.~") and ".." not in text.split("/"), "a path that names something, without .."
)
_device = _text_that(
    lambda text: text.startswith("/dev/") and ".." not in text.split("/") and text[-1] != "/" and "//" not in text,
    "the path of a device, such as /dev/kvm",
)
_name = _text_that(_NAME.fullmatch, "a variable's name, in which * and ? stand for others")


def _seconds(value: Any) -> float | None:
    try:
        return AMOUNT.read(value) or None
    except Wrong:
        raise Wrong("a number of seconds; 0 for no limit") from None


def _size(value: Any) -> int:
    if isinstance(value, str) and (size := _SIZE.fullmatch(value.strip())):
        value = math.ceil(float(size[1]) * (1 << _UNITS[size[2].upper()]))
    try:
        return int(COUNT.read(value))
    except Wrong:
        raise Wrong('a size, such as 1048576 or "64 MiB"') from None


def _root(value: Any) -> str:
    if isinstance(value, str) and _TREE.fullmatch(value):
        return value
    try:
        return _path(value)
    except Wrong:
        raise Wrong('"host", "alpine", the name of an installed root tree, or the path of one') from None


def _each(said: str, one: Callable[[Any], str]) -> Kind:
    """Make a list of strings, each of one form."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise Wrong(said)
        items = []
        for item in value:
            try:
                items.append(one(item))
            except Wrong as wrong:
                raise Wrong(said, item, str(wrong)) from None
        return tuple(items)

    return Kind(said=said, read=read, write=shown)


def _is_scratch(text: str) -> bool:
    variable, equals, path = text.rpartition("=")
    return path.startswith(("/", "~/", "$")) and (not equals or _VARIABLE.fullmatch(variable) is not None)


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
SECONDS = Kind(said="seconds; 0 for no limit", read=_seconds, write=shown)
SIZE = Kind(said='a size: bytes, or as "64 MiB"', read=_size, write=_size_shown)
PATH = Kind(said="an absolute path", read=_path, write=shown)
FILE = Kind(
    said="an absolute path; empty for none", read=lambda value: "" if value == "" else _path(value), write=shown
)
ROOT = Kind(said='"host", "alpine", a name, or a path', read=_root, write=shown)
TEXTS = _each("a list of strings", _text)
PATHS = _each("a list of paths", _path)
MASKS = _each("a list of paths", _mask)
DEVICES = _each("a list of devices", _device)
HOSTS = _each("a list of hosts", _host)
NAMES = _each("a list of names", _name)
SCRATCH = _each(
    "a list of directories", _text_that(_is_scratch, "an absolute path, with VARIABLE= before it if need be")
)
TABLE = Kind(said="a table of names with strings", read=_table, write=_table_shown)

WITH_PATHS = (PATH, FILE, PATHS, MASKS, ROOT)


class Key(Value):
    """One key; `field` is its place in the policy where that has another name."""

    name: str
    kind: Kind
    doc: str
    field: str = ""
    global_only: bool = False

    @property
    def place(self) -> str:
        """The field of the policy that this key sets."""
        return self.field or self.name

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


class Section(Value):
    """An array of tables, `[[name]]`, each with these keys; those in `needed` must be there."""

    name: str
    field: str
    keys: tuple[Key, ...]
    needed: tuple[str, ...]
    problems: Callable[[dict[str, Any]], Iterable[tuple[str, str, str]]] | None = None  # of keys that are right each


def _key(name: str, kind: Kind, doc: str, field: str = "", *, global_only: bool = False) -> Key:
    return Key(name=name, kind=kind, doc=doc, field=field, global_only=global_only)


KEYS: tuple[Key, ...] = (
    _key("apply", choice("apply", "hold", "discard", "whole"), "What becomes of a run's changes. With \"whole\", those"
         " of a command that was ended before its own end are thrown away, and not held: for jobs that are run again."),
    _key("on_conflict", choice("hold-path", "hold-all"),
         "When a path changed in the project during the run: hold that path, or everything."),
    _key("again.tries", COUNT,
         "How often a command is run that conflicts with nothing but other runs, before it is held; 1: never again."),
    _key("again.within", AMOUNT, "Seconds that such a command may have taken."),
    _key("checkpoint", AMOUNT,
         "Seconds between checkpoints of a command in the background, so that other commands see what it has written; "
         "0: only when asked for."),
    _key("timeout", SECONDS, "End a command after this time."),
    _key("output_limit", SIZE, "Keep at most this much of each output."),
    _key("capture", choice("", "kernel", "bwrap", "fuse", "copy"),
         "How writes are captured; empty: the best way that works here (`fumehood doctor`)."),
    _key("sandbox", choice("bwrap", "container"),
         "`container`: the container around us is good enough where bubblewrap can't run."),
    _key("root", ROOT, "The system that a command sees: `host`, `alpine`, or another root tree's name or path."),
    _key("tmp", choice("session", "fresh", "project"),
         "`/tmp`: one for the commands of a session, empty for any other; empty for each; or kept for the project."),
    _key("drafts", choice("", "session"),
         "`session`: what the commands of a session write stays in a draft of its own until that is applied; "
         "empty: in a draft only where one is named."),
    _key("playground", FLAG, "Show commands a writable directory of their own at `~/playground`."),
    _key("ownership", choice(PRETEND, REFUSE),
         "When a command that runs as root gives a file to anybody else: `pretend` does nothing and reports success, "
         "so that archives unpack; `refuse` fails. Owners are not changed either way."),
    _key("ask_timeout", AMOUNT, "Seconds that a question to a person waits for an answer; then it is a no."),
    _key("network", choice("none", "ask", "full"),
         "`none`; `ask`: a connection to a host that is not in `hosts` waits while you are asked; `full`: the host's "
         "network."),
    _key("hosts", HOSTS, "Hosts that commands may reach without asking: `host[:port]`, `*.example.org`."),
    _key("hold", TEXTS, "Globs of paths whose changes wait for a person.", "rules.hold"),
    _key("flag", TEXTS, "Globs of paths whose changes are applied and flagged.", "rules.flag"),
    _key("home", choice(HIDDEN, VISIBLE),
         "`hidden`: of the home, a command sees the tools and nothing else, and what it writes there is thrown away; "
         "`visible`: all of it that is not masked, read-only."),
    _key("show", PATHS, "Files and directories of the home that commands see too, less what is masked in them."),
    _key("mask", MASKS, "More files and directories to hide from commands; "
         "a relative path, such as `.env`, counts below every root."),
    _key("unmask", MASKS, "Paths that are hidden by default, and that commands may see."),
    _key("devices", DEVICES, "Devices of the host that commands may use, such as `/dev/kvm` or `/dev/dri/renderD128`: "
         "character devices below `/dev`. See security.md for what that means."),
    _key("environment.keep", NAMES, "Variables that commands get although they look like secrets; globs."),
    _key("environment.drop", NAMES, "Variables that commands don't get; globs."),
    _key("environment.set", TABLE, "Variables and values that every command gets."),
    _key("limits.memory", SIZE, "Memory of all processes of a run together; 0: three quarters of the machine's."),
    _key("limits.processes", COUNT, "Processes and threads at once; 0: no limit."),
    _key("limits.cpu", AMOUNT, "CPU seconds of all processes of a run together; 0: no limit."),
    _key("limits.files", COUNT, "Open files of one process; 0: no limit."),
    _key("limits.file_size", SIZE, "Size of one file; 0: no limit."),
    _key("limits.written", SIZE, "Bytes that one run may write; 0: no limit."),
    _key("clean.keep_days", COUNT, "How long the originals of a run are kept, in days on which Fumehood ran.",
         global_only=True),
    _key("clean.backup_days", COUNT, "The same for daily backups.", global_only=True),
    _key("clean.budget", SIZE, "Space that older originals may take before large and old ones go; 0: no limit.",
         global_only=True),
    _key("rootfs.mirror", TEXT, "Where root trees are downloaded from.", global_only=True),
    _key("rootfs.proxy", TEXT, "The proxy for these downloads.", global_only=True),
    _key("rootfs.keys", PATHS, "Files with the public keys that sign a mirror's packages, besides Alpine's own.",
         global_only=True),
    _key("rootfs.install", FLAG, "Install the Alpine root when a command first needs it and there is none.",
         global_only=True),
    _key("rootfs.writable", FLAG, "Let a workspace install packages into its own layer of the root tree."),
    _key("sign.key", FILE, "The key that signs bundles, jobs and their results: a file that `ssh-keygen` made.",
         global_only=True),
    _key("sign.signers", FILE, "Whose signatures are known: a file as `ssh-keygen -Y verify` takes it, a name and a "
         "public key on each line. A worker takes jobs of these alone.", global_only=True),
    _key("fleet.unsigned", FLAG, "Let a worker take jobs that nobody signed, or nobody in `sign.signers`.",
         global_only=True),
    _key("fleet.hosts", HOSTS, "Hosts that jobs may ask a worker for.", global_only=True),
    _key("fleet.roots", TEXTS, "Root trees that jobs may ask a worker for.", global_only=True),
    _key("fleet.secrets", NAMES, "Variables of a worker's own environment that jobs may ask for by name; globs.",
         global_only=True),
    _key("fleet.budget", SIZE, "Space that a worker's copies of projects may take before the oldest go.",
         global_only=True),
)  # fmt: skip

_IN_AGENTS = ("network", "hosts", "show", "environment.", "limits.")
_IN_PROFILES = ("timeout", "hosts", "environment.", "limits.")


SECTIONS: tuple[Section, ...] = (
    Section(
        name="profile", field="profiles", needed=("match",),
        keys=(
            _key("match", TEXTS, "Programs, or programs with their first words: `npm`, `pip3*`, `python* -m pip`."),
            _key("scratch", SCRATCH, "Directories that the program may write: `DIRECTORY`, or `VARIABLE=DIRECTORY`."),
            _key("keep", FLAG, "Keep what it writes there for the project's next commands, or throw it away. "
                 "Default: `true`."),
            *(key for key in KEYS if key.name.startswith(_IN_PROFILES)),
        ),
    ),
    Section(
        name="agent", field="agents", needed=("name",),
        keys=(
            _key("name", TEXT, "The name of its program."),
            _key("programs", TEXTS, "Other programs that are this agent, such as those that editors start."),
            _key("state", SCRATCH, "Directories that are its own, kept for it between its sessions in a project: "
                 "`DIRECTORY`, or `VARIABLE=DIRECTORY`. Nothing of them is the host's, and nothing goes back."),
            _key("credentials", TEXTS, "Files that it gets a copy of, whenever yours is newer; `FILE#KEY,KEY`: only "
                 "these keys of a JSON file, once."),
            _key("arguments", TEXTS, "What comes before the arguments that you type."),
            _key("around", TEXTS, "Two texts that stand before and after a line of the model's in what the agent gives "
                 "to a shell: with `--each-command`, what is between them is the command, and a shell line without "
                 "them is none."),
            _key("own_lines", TEXTS, "Shell lines that are the agent's own and no commands of the model's; `*` is any "
                 "text."),
            *(key for key in KEYS if key.name.startswith(_IN_AGENTS)),
        ),
    ),
    Section(
        name="in_root", field="in_roots", needed=("root",),
        keys=(_key("root", ROOT, "The root."), *(key for key in KEYS if key.name == "environment.set")),
    ),
    Section(
        name="tool", field="tools", needed=("name", "description", "command"), problems=tool_problems,
        keys=(
            _key("name", TEXT, "What a model calls it: letters, digits, `_`, `-`; not the name of a tool of ours."),
            _key("description", TEXT, "What a model is told of it."),
            _key("command", TEXT, "The shell line, with an `{argument}` for each that it takes."),
            _key("schema", SCHEMA, "The JSON schema of its arguments."),
        ),
    ),
    Section(
        name="skill", field="skills", needed=("path",),
        keys=(_key("path", PATH, "The directory."), _key("name", TEXT, "Its name there; default: its own.")),
    ),
)  # fmt: skip


def _wrong(key: Key, value: Any) -> str:
    """Return what a program's value for a key must be, where it is not; it is read as if it stood in the file."""
    if value == key.default and type(value) is type(key.default):
        return ""
    try:
        written: Any = 0 if value is None else list(value) if isinstance(value, tuple) else value
        read = key.kind.read(dict(written) if key.kind is TABLE else written)
    except Wrong as wrong:
        return str(wrong)
    except (TypeError, ValueError):
        return key.kind.said
    # A size in words is only for the file.
    return "" if isinstance(read, str) == isinstance(value, str) else key.kind.said


def check_policy(policy: object) -> None:
    """Refuse a program's policy where a value is none of its key's: `home="hiden"` would show all of the home."""
    if not isinstance(policy, Policy):
        raise BadRequest(f"{policy!r:.100} is not a policy", hint="fumehood.Policy(…)")
    for name, default in Policy().fields().items():
        value = getattr(policy, name)
        if isinstance(default, Value) and not isinstance(value, type(default)):
            hint = f"it is made by {type(default).__name__}(…)"
            raise BadRequest(f"{name} of a policy can't be {value!r:.100}", hint=hint)
    for key in KEYS:
        value = key.of(policy)
        if wrong := _wrong(key, value):
            raise BadRequest(f"{key.place} of a policy can't be {value!r:.100}", hint=f"it is {wrong}")
    for section in SECTIONS:
        tables = getattr(policy, section.field)
        if not isinstance(tables, (list, tuple)) or not all(isinstance(each, (dict, Profile)) for each in tables):
            raise BadRequest(f"{section.field} of a policy can't be {tables!r:.100}", hint="it is a list of tables")
