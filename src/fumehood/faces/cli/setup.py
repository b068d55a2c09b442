"""`fumehood setup`: a short wizard that gets a machine ready; with a client's name, connects that client.

Every question has a default, and `--yes` takes them all.
"""

from __future__ import annotations

import difflib
import glob
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from fumehood.core.report import printable
from fumehood.core.request import shell_quote
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Refused
from fumehood.faces.cli import setup_clients
from fumehood.faces.cli.commands import Context, argument, command, flag, option, repeated_option
from fumehood.faces.cli.hook_clients import ALLOW
from fumehood.faces.cli.output import Paint, whole_number, working_dir
from fumehood.faces.cli.screen import Lines, Progress, ask_yes_no, terminal_asker
from fumehood.faces.cli.setup_clients import (
    CLIENTS,
    ClientSettings,
    SettingsEdit,
    parse_settings,
    read_settings,
    value_at,
)
from fumehood.linux import doctor, probe
from fumehood.linux.launch import start
from fumehood.service.permission import Permissions
from fumehood.service.roots import add_root
from fumehood.service.session import hooks_switched_off
from fumehood.store.config import policy_for, replace_with_backup, set_key

_AGENT_CHOICES = (*CLIENTS, "mcp", "python", "none")
_INSTALLERS = ("apt ", "apt-get ", "dnf ", "pacman ", "apk ", "zypper ")
_MCP = """  {"mcpServers": {"fumehood": {"command": "fumehood", "args": ["mcp"]}}}"""
_PYTHON = """  from fumehood import Sandbox

  sandbox = Sandbox("my-project")
  print(sandbox.run("make test").for_model())"""
_MAX_SETTINGS = 1 << 20
_SERVER_START_S = 120  # how long the server may take to start, because its packages may be installed first


@command(
    "setup", "get this machine ready, step by step; or connect one client",
    "fumehood setup\nfumehood setup --yes --root alpine --agent mcp\nfumehood setup claude",
    argument("client", nargs="?", metavar="CLIENT", help=f"connect this client only: {', '.join(CLIENTS)}"),
    flag("--mcp", "connect it through the MCP server instead of the hook"),
    flag("--remove", "remove Fumehood from the client's settings"),
    flag("--print", "only print what the client's settings would be"),
    flag("--yes", "take every default, ask nothing"),
    option("--root", "ROOT", "the root that commands see by default: host or alpine"),
    argument("--tier", type=whole_number(), choices=(1, 2), help="how many tools an Alpine root gets"),
    option("--mirror", "URL", "where an Alpine root comes from"),
    repeated_option("--key", "FILE", "a public key that signs that mirror's packages"),
    argument("--agent", choices=_AGENT_CHOICES, help="the client whose snippet is shown at the end"),
)  # fmt: skip
def _setup(context: Context) -> int:
    if context.options.client:
        return connect(context, context.options.client)
    if context.options.remove or context.options.print:
        raise BadRequest("--remove and --print are for one client", hint=f"one of: {', '.join(CLIENTS)}")
    wizard = _Wizard(context)
    wizard.check_host()
    wizard.choose_root()
    wizard.make_playground()
    wizard.try_it()
    wizard.show_snippet()
    return context.print_result(wizard.result, ())


class _Wizard:
    """The steps of the setup: each prints what it finds, and asks if there is a choice."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._options = context.options
        self._paint = Paint()
        self.result: dict[str, object] = {}
        if not self._options.yes and not (os.isatty(0) and os.isatty(1)):
            raise BadRequest("there is nobody to ask", hint="fumehood setup --yes takes every default")

    def _say(self, text: str) -> None:
        if not self._context.as_json:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def _ask(self, question: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of the choices; an empty line is the default."""
        if self._options.yes:
            return default
        shown = "/".join(choice.upper() if choice == default and len(choice) == 1 else choice for choice in choices)
        sys.stdout.flush()
        words = {**{choice: choice for choice in choices}, "": default}
        with Lines(0, 1) as lines:
            answer = lines.ask(lambda: f"{question} [{shown}; {default}] ", words, at_end="")
        if not answer:
            raise BadRequest("no answer came", hint="fumehood setup --yes takes every default")
        return answer

    def check_host(self) -> None:
        """Check that commands can be sandboxed here, and offer to install what is missing."""
        self._say(f"\n{self._paint('1. This machine', 'bold')}")
        places = self._context.store.places
        host = probe.host(places.cache, places.state, fresh=True)
        abilities = doctor.examine(places.state, host)
        missing = [ability for ability in abilities if ability.needed == "required" and not ability.works]
        for ability in missing:  # if no package provides it, it is only named
            self._say(f"  missing: {ability.name}: {ability.detail}")
            line = ability.fix.removeprefix("sudo ")
            # For an ordinary user, sudo would ask for a password, which --yes can't answer.
            can_run = line.startswith(_INSTALLERS) and (os.geteuid() == 0 or not self._options.yes)
            if can_run and self._ask(f"  run `{ability.fix}`?", ("y", "n"), "y") == "y":
                command = line if os.geteuid() == 0 else f"sudo {line}"
                environment = {**os.environ, "PATH": self._context.store.safe_path()}
                subprocess.run(["/bin/sh", "-c", command], env=environment, check=False)
            elif ability.fix:
                self._say(f"  to fix it: {ability.fix}")
        if not host.captures or missing:
            host = probe.host(places.cache, places.state, fresh=True)
        if not host.captures:
            raise FumehoodError(f"commands can't be sandboxed here: {host.why}", hint="fumehood doctor tells more")
        assert host.bwrap is not None
        version = ".".join(str(part) for part in host.bwrap.version)
        self._say(f"  commands can be sandboxed: bubblewrap {version}, writes captured by {host.captures[0]}")
        self.result["capture"] = host.captures[0]

    def choose_root(self) -> None:
        """Choose what commands see as `/` by default, and install it."""
        self._say(f"\n{self._paint('2. The system that commands see', 'bold')}")
        store = self._context.store
        before = policy_for(store.places, ()).root
        self._say("  host: this machine, read-only; alpine: a small Linux of its own, the same everywhere")
        choices = tuple(dict.fromkeys(("host", "alpine", before)))
        root = self._options.root or self._ask("  default root?", choices, before)
        if root not in choices:
            raise BadRequest(f"there is no root {root} to choose", hint="--root host or --root alpine")
        if root == "alpine" and not self._install():
            root = before
        changed = f" now: {printable(set_key(store.places, 'root', root))}" if root != before else ""
        self._say(f"  {root} is the default{changed}")
        self.result["root"] = root

    def _install(self) -> bool:
        """Install an Alpine root if there is none; returns whether there is one then."""
        from fumehood.service import root_trees

        store = self._context.store
        mirror, keys = self._options.mirror or "", [os.path.abspath(path) for path in self._options.key or ()]
        tier = self._options.tier
        if tier is None and not root_trees.installed_and_current(store)[1]:
            self._say("  tier 1: bash, Python, pip, coreutils, grep, sed; tier 2: also git, curl, jq, Node.js and more")
            tier = int(self._ask("  tools?", ("1", "2"), "1"))
        progress = Progress("  ", is_shown=not self._context.as_json)
        try:
            tree = root_trees.install_into(store, tier=tier or 1, mirror=mirror, key=keys, on_progress=progress)
        except FumehoodError as error:
            if self._options.root == "alpine":
                raise
            self._say(f"  it could not be installed: {printable(error.message)}\n  later: fumehood rootfs install")
            return False
        self._say(f"  {tree.name} is installed")
        for name, value in (("rootfs.mirror", mirror), ("rootfs.keys", keys)):
            if value:  # `rootfs update` needs them too
                self._say(f"  {name} is set: {printable(set_key(store.places, name, value))}")
        self.result["rootfs"] = tree.name
        return True

    def make_playground(self) -> None:
        """Make the agents' own directory."""
        from fumehood.service.provided import make_playground

        self._say(f"\n{self._paint('3. The playground', 'bold')}")
        path = make_playground(self._context.store.places)
        self._say(f"  agents may write {printable(path)} too, outside of every project")
        self.result["playground"] = path

    def try_it(self) -> None:
        """Run a command, as an agent would."""
        import tempfile

        from fumehood.service.explain import look_inside
        from fumehood.service.hood import Hood

        self._say(f"\n{self._paint('4. A first command', 'bold')}")
        store = self._context.store
        policy = policy_for(store.places, ())
        # If possible not in /tmp, which a command does not see.
        room = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None  # noqa: S108
        with tempfile.TemporaryDirectory(dir=room, prefix="fumehood-setup-") as folder:
            hood = Hood(store, store.projects.open(folder, register=False), policy, start)
            said = look_inside(hood, "echo it works in $(uname -s) as uid $(id -u)", policy.root, 60.0)
        if not said.startswith("it works"):
            raise FumehoodError("a first command did not run", hint="fumehood doctor")
        self._say(f"  {printable(said.strip())}")

    def show_snippet(self) -> None:
        """Connect the person's agent, or show how to do it."""
        self._say(f"\n{self._paint('5. Your agent', 'bold')}")
        agent = self._options.agent or self._ask("  which one?", _AGENT_CHOICES, "none")
        self.result["agent"] = agent
        if agent in CLIENTS:
            self._say(f"  the same later: fumehood setup {agent}\n")
            if not self._context.as_json:
                # With --yes nobody has agreed to the change, so another program's settings are only shown.
                self._options.print = self._options.yes
                connect(self._context, agent)
        elif agent == "mcp":
            self._say(f"  in the settings of any client that speaks MCP:\n\n{_MCP}")
        elif agent == "python":
            self._say(f"\n{_PYTHON}")
        else:
            self._say("  fumehood run -- 'make test'")


def connect(context: Context, client: str) -> int:
    """Show how a client's settings would change, ask, then change them and keep a backup.

    Doing it again changes nothing.
    """
    options = context.options
    if client not in CLIENTS:
        raise BadRequest(f"there is no client {client}", hint=f"one of: {', '.join(CLIENTS)}")
    settings = setup_clients.connections(installed_command())[client]
    if (options.mcp or not settings.hook) and not options.remove and not options.print:
        _check_server()
    edits_of, notes = settings.edits_and_notes(mcp=options.mcp)
    changes = [_planned_change(path, edits, is_removal=options.remove) for path, edits in edits_of.items()]
    files: list[dict[str, Any]] = [
        {"path": each.path, "changed": False, "diff": each.diff, "backup": None} for each in changes
    ]
    notes = () if options.remove else notes
    result: dict[str, Any] = {"client": client, **files[0], "notes": list(notes), "files": files}
    if options.print:
        for file, change in zip(files, changes, strict=True):
            file["text"] = change.after
        headed = [f"# {each.path}\n{each.after}" if len(changes) > 1 else each.after for each in changes]
        return context.print_result(result, lambda: sys.stdout.write("".join(headed)))
    if not context.as_json:
        sys.stdout.write("".join(each.diff for each in changes) or f"{changes[0].path}: nothing to change\n")
    is_agreed = any(each.diff for each in changes)
    if is_agreed and not options.yes:
        if not (os.isatty(0) and os.isatty(1)):
            raise BadRequest("there is nobody to ask", hint="--yes writes it without asking, --print only shows it")
        sys.stdout.flush()
        is_agreed = ask_yes_no("write this? [Y/n] ", by_default=True)
    if is_agreed:
        for file, change in zip(files, changes, strict=True):
            if change.diff:
                file |= {"backup": _write(change), "changed": True}
        result |= files[0] | {"changed": True}
    result["notes"] += [] if options.remove else _warnings_here(context)
    result["directories"] = directories = [] if options.remove else _offer_directories(context, settings)
    result["notes"] += [f"the client was given {path}; for commands: fumehood roots add {shell_quote(path)}"
                        for path in directories]  # fmt: skip
    lines = []
    for file in files:
        backup = f"; what was there: {file['backup']}" if file["backup"] else ""
        done = "written" if os.path.exists(file["path"]) else "removed"
        lines += [f"{done}: {file['path']}{backup}"] if file["changed"] else []
    return context.print_result(result, [*lines, *(f"note: {note}" for note in result["notes"])])


def _warnings_here(context: Context) -> list[str]:
    """Return what in the project around switches the hook off again."""
    try:
        project = context.store.projects.project_around(working_dir())
    except BadRequest:
        return []  # nothing here can be a project
    return [f"WARNING: {sentence}, so look at that file first" for sentence in hooks_switched_off(project)]


def _offer_directories(context: Context, settings: ClientSettings) -> list[str]:
    """Offer to add the directories that a client's settings name as roots of this project; returns those not added.

    Commands can write the settings in a project, so only a person's answer counts, and not `--yes`.
    """
    store = context.store
    try:
        project = store.projects.open(store.projects.project_around(working_dir()), register=False)
    except BadRequest:
        return []  # nothing here can be a project
    askers = () if context.options.yes else terminal_asker()
    left = []
    paths = (os.path.join(project.path, file) for file in settings.settings_files)
    for name in dict.fromkeys(name for path in paths for name in _named_directories(path, settings.directory_keys)):
        path = os.path.normpath(os.path.join(project.path, os.path.expanduser(name)))
        try:
            store.projects.check_new_root(project, path)
        except BadRequest:
            continue  # it is a root already, or can't be one
        try:
            project = store.projects.open(project.path, register=bool(askers))
            project = add_root(store, project, path, Permissions(store, askers))
        except Refused:
            left.append(path)
    return left


def _named_directories(path: str, keys: Sequence[str]) -> list[str]:
    """Return the directories that a settings file names; none if it can't be read. OpenCode names them by patterns."""
    try:
        # O_NONBLOCK: a command may have put a pipe there.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            listed = value_at(parse_settings(path, file.read(_MAX_SETTINGS)), keys)
    except (OSError, UnicodeDecodeError, BadRequest):
        return []
    if isinstance(listed, dict):
        listed = [pattern.removesuffix("*").removesuffix("*") for pattern, word in listed.items() if word == ALLOW]
    return [each for each in listed if isinstance(each, str) and each] if isinstance(listed, list) else []


class SettingsChange(Value):
    """A planned change of one settings file."""

    path: str
    before: str
    after: str
    is_deleted: bool = False
    needs_backup: bool = True
    # Earlier backups with the content that the file will have again: they are deleted.
    stale_backups: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """The difference, which a person must agree to."""
        texts = self.before.splitlines(True), self.after.splitlines(True)
        lines = difflib.unified_diff(*texts, f"{self.path} (now)", f"{self.path} (then)")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _planned_change(path: str, edits: Sequence[SettingsEdit], *, is_removal: bool) -> SettingsChange:
    path = os.path.realpath(path)
    before = read_settings(path)
    try:
        after = _edited(before, edits, is_removal=is_removal)
        if parse_settings(path, before) == parse_settings(path, after) and bool(before) == bool(after):
            return SettingsChange(path=path, before=before, after=before)  # nothing new: keep the person's formatting
        if is_removal:
            return _planned_removal(path, edits, before, after)
        return SettingsChange(path=path, before=before, after=after)
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}", hint=error.hint) from error


def _edited(text: str, edits: Sequence[SettingsEdit], *, is_removal: bool) -> str:
    """Return the text with all edits made, or taken out again."""
    for edit in edits:
        text = (edit.remove if is_removal else edit.add)(text)
    return text


def _planned_removal(path: str, edits: Sequence[SettingsEdit], before: str, after: str) -> SettingsChange:
    """Plan to remove our settings from a file.

    If the file is exactly as the setup left it, the backup's text comes back, so that nothing differs from before.
    """
    backups = {each: read_settings(each) for each in sorted(glob.glob(f"{glob.escape(path)}.before-fumehood-*"))}
    without = {each: _edited(text, edits, is_removal=True) for each, text in backups.items()}
    # A backup that contains our own settings was made by a second setup, so it is not what was there before.
    earlier = [
        text for each, text in backups.items() if parse_settings(path, without[each]) == parse_settings(path, text)
    ]
    after = next((text for text in earlier if _edited(text, edits, is_removal=False) == before), after)
    is_deleted = after not in earlier and "".join(after.split()) in ("", "{}")
    after = "" if is_deleted else after
    stale_backups = [each for each in backups if parse_settings(path, without[each]) == parse_settings(path, after)]
    # No backup is needed if adding our settings again would restore the same settings.
    added_again = [parse_settings(path, _edited(text, edits, is_removal=False)) for text in (before, after)]
    return SettingsChange(
        path=path, before=before, after=after, is_deleted=is_deleted, needs_backup=added_again[0] != added_again[1],
        stale_backups=tuple(stale_backups),
    )  # fmt: skip


def _write(change: SettingsChange) -> str | None:
    path = change.path
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        backup = replace_with_backup(path, change.before, change.after, needs_backup=change.needs_backup)
        for each in (*change.stale_backups, *([path] if change.is_deleted else [])):
            os.unlink(each)
    except OSError as error:
        hint = "--print shows what to add"
        raise FumehoodError(f"{path} can't be written: {error.strerror}", hint=hint) from error
    return backup


def installed_command() -> list[str]:
    """Return the command by which another program can start this one, from any directory."""
    started = os.path.abspath(sys.argv[0])
    if os.path.basename(started) in ("launch.py", "launch.pyc"):
        # In a checkout, use its wrapper, which also works after the environment has been made anew.
        wrapper = os.path.abspath(f"{os.path.dirname(__file__)}/../../../../fumehood")
        if os.access(wrapper, os.X_OK):
            return [wrapper]
    if os.access(started, os.X_OK) and not started.endswith(".py"):
        return [started]
    return [sys.executable, "-P", "-m", "fumehood"]


def _check_server() -> None:
    """Start the server once to see that it can start; it ends at once, because its input is empty.

    In a checkout, the first start installs the server's packages, for which a client would not wait.
    """
    from importlib.util import find_spec

    if find_spec("mcp") is not None:
        return
    line = [*installed_command(), "mcp"]
    try:
        started = subprocess.run(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
            timeout=_SERVER_START_S,
        )  # fmt: skip
        why = started.stderr.strip() if started.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        message = "the MCP server can't be started here, so nothing was written"
        raise FumehoodError(message, hint=f"{why.removeprefix('ERROR: ')}; try: {' '.join(map(shell_quote, line))}")
