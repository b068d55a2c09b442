"""`fumehood setup`: a short wizard that gets a machine ready; with a client's name, connects that client.

Every question has a default, and `--yes` takes them all.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from typing import Any

from fumehood.core import jsonc
from fumehood.core.report import printable
from fumehood.core.request import quoted
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.faces.cli.commands import Context, paint
from fumehood.store.config import policy_for, replace
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.faces.cli.commands import Add, Context
    from fumehood.linux.doctor import Ability

_NAME = "fumehood"
# Each of the three clients takes it so. The hook itself decides which tools run something: a list of names here would
# leave out whatever a client calls its next one.
_EVERY_TOOL = "*"
_EXAMPLES = """  fumehood setup
  fumehood setup --yes --root alpine --agent mcp
  fumehood setup claude"""
CLIENT_NAMES = ("claude", "codex", "gemini", "cursor", "vscode")
_AGENTS = (*CLIENT_NAMES, "mcp", "python", "none")
_SERVER_ONLY = ("cursor", "vscode")
_INSTALLERS = ("apt ", "apt-get ", "dnf ", "pacman ", "apk ", "zypper ")
_MCP = """  {"mcpServers": {"fumehood": {"command": "fumehood", "args": ["mcp"]}}}"""
_PYTHON = """  from fumehood import Sandbox

  sandbox = Sandbox("my-project")
  print(sandbox.run("make test").for_model())"""

_CODEX_BLOCK = f"""\
[[hooks.PreToolUse]]
matcher = "{_EVERY_TOOL}"

[[hooks.PreToolUse.hooks]]
type = "command"
"""
# As it was written by any version of us, for other tools.
_ANY_CODEX_BLOCK = re.compile(
    r'^\[\[hooks\.PreToolUse\]\]\nmatcher = "[^"\n]*"\n\n'
    r'\[\[hooks\.PreToolUse\.hooks\]\]\ntype = "command"\ncommand = .*(?:\n|\Z)',
    re.MULTILINE,
)
_CODEX_HOOK = (
    "Codex skips a hook until you trust it, and says little: start codex, type /hooks, review and trust it",
    'Codex\'s own sandbox must let Fumehood work: once the hook is trusted, set sandbox_mode = "danger-full-access"',
)
_CODEX_SERVER = ("`required = true` makes Codex refuse to start without the server, instead of going on without it",)
_NO_HOOK = "it gets the server, not a hook: tell it to use run_command instead of its own terminal"
_RESTART = ("restart the client, so that it reads its settings",)


def add_commands(add: Add) -> None:
    """Make this command known."""
    setup = add("setup", "get this machine ready, step by step; or connect one client", _setup, _EXAMPLES)
    clients = "connect this client only: claude, codex, gemini, cursor or vscode"
    setup.add_argument("client", nargs="?", metavar="CLIENT", help=clients)
    setup.add_argument("--mcp", action="store_true", help="connect it through the MCP server instead of the hook")
    setup.add_argument("--remove", action="store_true", help="remove Fumehood from the client's settings")
    setup.add_argument("--print", action="store_true", help="only print what the client's settings would be")
    setup.add_argument("--yes", action="store_true", help="take every default, ask nothing")
    setup.add_argument("--root", metavar="ROOT", help="the root that commands see by default: host or alpine")
    setup.add_argument("--tier", type=int, choices=(1, 2), help="how many tools an Alpine root gets")
    setup.add_argument("--mirror", metavar="URL", help="where an Alpine root comes from")
    setup.add_argument("--agent", choices=_AGENTS, help="the client whose snippet is shown at the end")


def _setup(context: Context) -> int:
    if context.options.client:
        return _connect(context, context.options.client)
    wizard = _Wizard(context)
    wizard.check_host()
    wizard.choose_root()
    wizard.make_playground()
    wizard.try_it()
    wizard.show_snippet()
    return context.say(wizard.answer, lambda: None)


class _Wizard:
    """One setting up: each step says what it finds, and asks where there is a choice."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._options = context.options
        self._paint = paint()
        self.answer: dict[str, object] = {}
        if not self._options.yes and not (os.isatty(0) and os.isatty(1)):
            raise BadRequest("there is nobody to ask", hint="fumehood setup --yes takes every default")

    def _say(self, text: str = "") -> None:
        if not self._context.as_json:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def _title(self, text: str) -> None:
        self._say(f"\n{self._paint(text, 'bold')}")

    def _ask(self, question: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of the choices; an empty line is the default."""
        if self._options.yes:
            return default
        shown = "/".join(choice.upper() if choice == default and len(choice) == 1 else choice for choice in choices)
        while True:
            sys.stdout.write(f"{question} [{shown}; {default}] ")
            sys.stdout.flush()
            line = sys.stdin.readline()
            if not line:
                raise BadRequest("no answer came", hint="fumehood setup --yes takes every default")
            answer = line.strip().lower() or default
            if answer in choices:
                return answer
            self._say(f"  one of: {', '.join(choices)}")

    def check_host(self) -> None:
        """See that commands can be sandboxed here, and offer to install what is missing."""
        self._title("1. This machine")
        from fumehood.linux import doctor, probe

        places = self._context.store.places
        host = probe.host(places.cache, places.state, fresh=True)
        abilities = doctor.examine(places.state, host)
        missing = [ability for ability in abilities if ability.needed == "required" and not ability.works]
        if not host.captures or missing:
            self._offer(missing)
            host = probe.host(places.cache, places.state, fresh=True)
        if not host.captures:
            raise FumehoodError(f"commands can't be sandboxed here: {host.why}", hint="fumehood doctor tells more")
        assert host.bwrap is not None
        version = ".".join(str(part) for part in host.bwrap.version)
        self._say(f"  commands can be sandboxed: bubblewrap {version}, writes captured by {host.captures[0]}")
        self.answer["capture"] = host.captures[0]

    def _offer(self, missing: list[Ability]) -> None:
        """Offer to install what is missing; what no package mends is only told."""
        for ability in missing:
            self._say(f"  missing: {ability.name}: {ability.detail}")
            if not ability.fix:
                continue
            line = ability.fix.removeprefix("sudo ")
            # As somebody else, sudo would ask for a password, which --yes can't give.
            can_run = line.startswith(_INSTALLERS) and (os.geteuid() == 0 or not self._options.yes)
            if can_run and self._ask(f"  run `{ability.fix}`?", ("y", "n"), "y") == "y":
                command = line if os.geteuid() == 0 else f"sudo {line}"
                subprocess.run(["/bin/sh", "-c", command], check=False)
            else:
                self._say(f"  to fix it: {ability.fix}")

    def choose_root(self) -> None:
        """Choose what commands see as `/` by default, and install it."""
        self._title("2. The system that commands see")
        store = self._context.store
        before = policy_for(store.places, ()).root
        self._say("  host: this machine, read-only; alpine: a small Linux of its own, the same everywhere")
        choices = tuple(dict.fromkeys(("host", "alpine", before)))
        root = self._options.root or self._ask("  default root?", choices, before)
        if root not in choices:
            raise BadRequest(f"there is no root {root} to choose", hint="--root host or --root alpine")
        if root == "alpine" and not self._install():
            root = before
        if root != before:
            from fumehood.store.config import set_key

            path = set_key(store.places, "root", root)
            self._say(f"  {root} is the default now: {printable(path)}")
        else:
            self._say(f"  {root} is the default")
        self.answer["root"] = root

    def _install(self) -> bool:
        """Install an Alpine root where there is none; tell whether there is one then."""
        from fumehood.faces.cli.rootfs import DownloadProgress
        from fumehood.service import root_trees

        store = self._context.store
        tier = self._options.tier
        if tier is None and not root_trees.installed(store)[1]:
            self._say("  tier 1: bash, Python, pip, coreutils, grep, sed; tier 2: also git, curl, jq, Node.js and more")
            tier = int(self._ask("  tools?", ("1", "2"), "1"))
        order = root_trees.order(store, mirror=self._options.mirror).replace(tier=tier or 1)
        progress = DownloadProgress() if os.isatty(2) and not self._context.as_json else None
        installer = root_trees.installer(store, order.proxy, lambda line: self._say(f"  {printable(line)}"), progress)
        try:
            tree = installer.install(order)
        except FumehoodError as error:
            if self._options.root == "alpine":
                raise
            self._say(f"  it could not be installed: {printable(error.message)}\n  later: fumehood rootfs install")
            return False
        self._say(f"  {tree.name} is installed")
        self.answer["rootfs"] = tree.name
        return True

    def make_playground(self) -> None:
        """Make the directory of the agent's own."""
        from fumehood.service.scratch import made

        self._title("3. The playground")
        path = made(self._context.store.places)
        self._say(f"  agents may write {printable(path)} too, outside of every project")
        self.answer["playground"] = path

    def try_it(self) -> None:
        """Run a command, as an agent would."""
        import tempfile

        from fumehood.linux.launch import start
        from fumehood.service.explain import look_inside
        from fumehood.service.sandbox import Hood

        self._title("4. A first command")
        store = self._context.store
        policy = policy_for(store.places, ())
        # Not in /tmp, which a command does not see, if possible.
        room = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None  # noqa: S108
        with tempfile.TemporaryDirectory(dir=room, prefix="fumehood-setup-") as folder:
            hood = Hood(store, store.projects.open(folder, register=False), policy, start)
            said = look_inside(hood, "echo it works in $(uname -s) as uid $(id -u)", policy.root, 60.0)
        if not said.startswith("it works"):
            raise FumehoodError("a first command did not run", hint="fumehood doctor")
        self._say(f"  {printable(said.strip())}")

    def show_snippet(self) -> None:
        """Show how the person's agent comes to use it."""
        self._title("5. Your agent")
        agent = self._options.agent or self._ask("  which one?", _AGENTS, "none")
        self.answer["agent"] = agent
        if agent in CLIENT_NAMES:
            self._say(f"  the same later: fumehood setup {agent}\n")
            if not self._context.as_json:
                # Without a person, another program's settings are only shown.
                self._options.print = self._options.yes
                _connect(self._context, agent)
        elif agent == "mcp":
            self._say(f"  in the settings of any client that speaks MCP:\n\n{_MCP}")
        elif agent == "python":
            self._say(f"\n{_PYTHON}")
        else:
            self._say("  fumehood run -- 'make test'")


# `fumehood setup CLIENT`: write the hook or the server into a client's own configuration.


class SettingsChange(Value):
    """One file of a client's: where it lies, how its text is changed, and what a person must know besides.

    `edit` is also given the options that a person had added to our hook.
    """

    path: str
    edit: Callable[[str, str], str]
    remove: Callable[[str], str]
    notes: tuple[str, ...] = ()


def _connect(context: Context, client: str) -> int:
    """Show what would change, then change it: a backup is kept, and doing it again changes nothing."""
    options = context.options
    if client not in CLIENTS:
        raise BadRequest(f"there is no client {client}", hint=f"one of: {', '.join(CLIENTS)}")
    change = CLIENTS[client](_installed_command(), options.mcp)
    path = os.path.realpath(change.path)
    before = _read(path)
    try:
        after = change.remove(before)
        if not options.remove:
            after = change.edit(after, _added_options(_means(path, before)))
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}", hint=error.hint) from error
    if _means(path, before) == _means(path, after):
        after = before  # what is there already stays as it is written
    difference = "".join(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"{path} (now)", f"{path} (then)")
    )
    answer: dict[str, Any] = {"client": client, "path": path, "changed": False, "diff": difference, "backup": None,
                              "notes": [] if options.remove else list(change.notes)}  # fmt: skip
    if options.print:
        return context.say({**answer, "text": after}, lambda: sys.stdout.write(after))
    if not context.as_json:
        sys.stdout.write(difference or f"{path}: nothing to change\n")
    if difference and _is_agreed(context):
        if options.mcp or client in _SERVER_ONLY:
            _get_server_ready()
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            answer["backup"] = replace(path, before, after)
        except OSError as error:
            hint = "--print shows what to add"
            raise FumehoodError(f"{path} can't be written: {error.strerror}", hint=hint) from error
        answer["changed"] = True
    return context.say(answer, lambda: _tell(answer))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} can't be read: {error}", hint="--print shows what to add by hand") from error


def _is_agreed(context: Context) -> bool:
    if context.options.yes:
        return True
    if not (os.isatty(0) and os.isatty(1)):
        raise BadRequest("there is nobody to ask", hint="--yes writes it without asking, --print only shows it")
    sys.stdout.write("write this? [Y/n] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _tell(answer: dict[str, Any]) -> None:
    if answer["changed"]:
        backup = f"; what was there: {answer['backup']}" if answer["backup"] else ""
        sys.stdout.write(f"written: {answer['path']}{backup}\n")
    for note in answer["notes"]:
        sys.stdout.write(f"note: {note}\n")


def _means(path: str, text: str) -> Any:
    if path.endswith(".toml"):
        return _toml(text).unwrap()
    return jsonc.parse(text).plain() if text.strip() else {}


def _installed_command() -> list[str]:
    """Return how this program is started by somebody else, from anywhere."""
    started = os.path.abspath(sys.argv[0])
    if os.path.basename(started) == "launch.py":
        # The wrapper of a checkout, which finds the environment again when that is made anew.
        wrapper = os.path.abspath(f"{os.path.dirname(__file__)}/../../../../fumehood")
        if os.access(wrapper, os.X_OK):
            return [wrapper]
    if os.access(started, os.X_OK) and not started.endswith(".py"):
        return [started]
    return [sys.executable, "-P", "-m", "fumehood"]


def _get_server_ready() -> None:
    """Have a checkout install what the server needs: a client would not wait for that."""
    from importlib.util import find_spec

    command = [*_installed_command(), "mcp", "--help"]
    if find_spec("mcp") is None and subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise FumehoodError("the MCP server can't be started here", hint=" ".join(map(quoted, command)))


def _hook(command: list[str], client: str) -> str:
    # Clients go on where a hook is missing or fails in any way but this one.
    return " ".join([*map(quoted, command), "hook", "--client", client, "|| exit 2"])


_OURS = re.compile(r" hook --client \w+(?P<options>.*) \|\| exit 2", re.DOTALL)


def _is_ours(command: object) -> bool:
    return isinstance(command, str) and " hook --client " in command and command.endswith("|| exit 2")


def _with_options(command: str, options: str) -> str:
    return f"{command.removesuffix(' || exit 2')}{options} || exit 2"


def _added_options(settings: Any) -> str:
    """Return what a person added to the command of our hook, such as `--ask`: it must not be lost."""
    for event in ("PreToolUse", "BeforeTool"):
        for group, index, _ in _hook_places(settings, event):
            ours = _OURS.search(_at(settings, ["hooks", event])[group]["hooks"][index]["command"])
            if ours is not None:
                return ours["options"]
    return ""


def _server(command: list[str], **more: Any) -> dict[str, Any]:
    server = {**more, "command": command[0], "args": [*command[1:], "mcp"]}
    return server | ({"env": _own_places()} if _own_places() else {})


def _own_places() -> dict[str, str]:
    """Return where the person keeps things, if not in the usual place: clients pass few variables on to servers."""
    names = (f"XDG_{name}_HOME" for name in ("STATE", "DATA", "CACHE", "CONFIG"))
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _json_hook(path: str, event: str, hook: dict[str, Any], notes: tuple[str, ...]) -> SettingsChange:
    keys = ["hooks", event]

    def remove(text: str) -> str:
        while text.strip() and (places := _hook_places(jsonc.parse(text).plain(), event)):
            group, index, is_alone = places[0]
            text = jsonc.without(text, [*keys, group] if is_alone else [*keys, group, "hooks", index])
        for depth in (2, 1):
            if text.strip() and _at(jsonc.parse(text).plain(), keys[:depth]) in ([], {}):
                text = jsonc.without(text, [*keys[:depth]])
        return text

    def edit(text: str, options: str) -> str:
        entry = {**hook, "command": _with_options(hook["command"], options)}
        return jsonc.with_item(text or "{}\n", keys, {"matcher": _EVERY_TOOL, "hooks": [entry]})

    return SettingsChange(path=path, edit=edit, remove=remove, notes=notes)


def _at(value: Any, keys: list[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _hook_places(settings: Any, event: str) -> list[tuple[int, int, bool]]:
    """Find our hooks: the group, the place in it, and whether we are alone in it."""
    groups = _at(settings, ["hooks", event])
    places = []
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        hooks = _at(group, ["hooks"])
        for index, hook in enumerate(hooks if isinstance(hooks, list) else ()):
            if _is_ours(_at(hook, ["command"])):
                places.append((number, index, len(hooks) == 1))
    return places


def _json_server(path: str, key: str, server: dict[str, Any], notes: tuple[str, ...]) -> SettingsChange:
    def remove(text: str) -> str:
        if not text.strip():
            return text
        text = jsonc.without(text, [key, _NAME])
        return jsonc.without(text, [key]) if _at(jsonc.parse(text).plain(), [key]) == {} else text

    return SettingsChange(
        path=path, edit=lambda text, _: jsonc.with_member(text or "{}\n", [key, _NAME], server), remove=remove,
        notes=notes,
    )  # fmt: skip


def _toml(text: str) -> Any:
    import tomlkit
    from tomlkit.exceptions import ParseError

    try:
        return tomlkit.parse(text)
    except ParseError as error:
        raise BadRequest(str(error), hint="correct the file first; nothing was changed") from error


def _codex(command: list[str], mcp: bool) -> SettingsChange:
    path = f"{os.environ.get('CODEX_HOME') or f'{home()}/.codex'}/config.toml"
    added = ""
    if mcp:
        words = ", ".join(map(_toml_text, [*command[1:], "mcp"]))
        added = f"[mcp_servers.{_NAME}]\ncommand = {_toml_text(command[0])}\nargs = [{words}]\nrequired = true\n"
        places = ", ".join(f"{name} = {_toml_text(value)}" for name, value in _own_places().items())
        added += f"env = {{ {places} }}\n" if places else ""

    def edit(text: str, options: str) -> str:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        line = _with_options(_hook(command, "codex"), options)
        changed = text + gap + (added or f"{_CODEX_BLOCK}command = {_toml_text(line)}\n")
        _toml(changed)  # what can't be added to at the end is told, not broken
        return changed

    return SettingsChange(
        path=path, edit=edit, remove=_without_server if mcp else _without_hook,
        notes=_CODEX_SERVER if mcp else _CODEX_HOOK,
    )  # fmt: skip


def _toml_text(text: str) -> str:
    import tomlkit

    return tomlkit.string(text).as_string()


def _without_server(text: str) -> str:
    settings = _toml(text)
    if _at(settings.unwrap(), ["mcp_servers", _NAME]) is None:
        return text
    del settings["mcp_servers"][_NAME]
    if not settings["mcp_servers"]:
        del settings["mcp_servers"]
    return str(settings.as_string())


def _without_hook(text: str) -> str:
    """Take out what we wrote, as text: the tables of a list may lie far apart, where no parser takes one out."""
    block = _ANY_CODEX_BLOCK.search(text)
    while block is not None:
        at, end = block.span()
        if not _is_ours(_at(_toml(text[at:end]).unwrap(), ["hooks"])["PreToolUse"][0]["hooks"][0]["command"]):
            block = _ANY_CODEX_BLOCK.search(text, end)
            continue
        text = (text[:at].rstrip("\n") + "\n" if text[:at].strip() else "") + text[end:]
        block = _ANY_CODEX_BLOCK.search(text)
    if _hook_places(_toml(text).unwrap(), "PreToolUse"):
        raise BadRequest("our hook was changed by hand", hint="remove the PreToolUse hook that names fumehood")
    return text


def _claude(command: list[str], mcp: bool) -> SettingsChange:
    if mcp:
        # Where Claude Code itself keeps servers that hold for every project.
        return _json_server(f"{home()}/.claude.json", "mcpServers", _server(command, type="stdio"), _RESTART)
    folder = os.environ.get("CLAUDE_CONFIG_DIR") or f"{home()}/.claude"
    hook = {"type": "command", "command": _hook(command, "claude")}
    notes = (*_RESTART, "commands need no approval any more: add --ask to the hook's command to be asked as before")
    return _json_hook(f"{folder}/settings.json", "PreToolUse", hook, notes)


def _gemini(command: list[str], mcp: bool) -> SettingsChange:
    path = f"{home()}/.gemini/settings.json"
    if mcp:
        return _json_server(path, "mcpServers", _server(command), _RESTART)
    hook = {"name": _NAME, "type": "command", "command": _hook(command, "gemini")}
    return _json_hook(path, "BeforeTool", hook, _RESTART)


def _cursor(command: list[str], _mcp: bool) -> SettingsChange:
    return _json_server(f"{home()}/.cursor/mcp.json", "mcpServers", _server(command), (_NO_HOOK,))


def _vscode(command: list[str], _mcp: bool) -> SettingsChange:
    folder = os.environ.get("XDG_CONFIG_HOME") or f"{home()}/.config"
    notes = ("VS Code asks whether to trust the server when it starts first", _NO_HOOK)
    return _json_server(f"{folder}/Code/User/mcp.json", "servers", _server(command, type="stdio"), notes)


CLIENTS: dict[str, Callable[[list[str], bool], SettingsChange]] = {
    "claude": _claude, "codex": _codex, "gemini": _gemini, "cursor": _cursor, "vscode": _vscode,
}  # fmt: skip
