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
from fumehood.faces.cli.output import Paint, ask_yes_no, whole_number, working_dir
from fumehood.faces.cli.screen import Progress, terminal
from fumehood.faces.cli.setup_clients import CLIENTS, ClientSettings, SettingsEdit, at, meaning, read_settings
from fumehood.linux import doctor, probe
from fumehood.linux.launch import start
from fumehood.service.permission import Permissions
from fumehood.service.projects import add_root
from fumehood.store.config import policy_for, replace, set_key

_AGENTS = (*CLIENTS, "mcp", "python", "none")
_INSTALLERS = ("apt ", "apt-get ", "dnf ", "pacman ", "apk ", "zypper ")
_MCP = """  {"mcpServers": {"fumehood": {"command": "fumehood", "args": ["mcp"]}}}"""
_PYTHON = """  from fumehood import Sandbox

  sandbox = Sandbox("my-project")
  print(sandbox.run("make test").for_model())"""
_LONGEST_SETTINGS = 1 << 20
_START_S = 120  # how long a server may take to start, with what it needs installed


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
    argument("--agent", choices=_AGENTS, help="the client whose snippet is shown at the end"),
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
    return context.print_result(wizard.answer, ())


class _Wizard:
    """One setting up: each step says what it finds, and asks where there is a choice."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._options = context.options
        self._paint = Paint()
        self.answer: dict[str, object] = {}
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
        self._say(f"\n{self._paint('1. This machine', 'bold')}")
        places = self._context.store.places
        host = probe.host(places.cache, places.state, fresh=True)
        abilities = doctor.examine(places.state, host)
        missing = [ability for ability in abilities if ability.needed == "required" and not ability.works]
        for ability in missing:  # what no package mends is only told
            self._say(f"  missing: {ability.name}: {ability.detail}")
            line = ability.fix.removeprefix("sudo ")
            # As somebody else, sudo would ask for a password, which --yes can't give.
            can_run = line.startswith(_INSTALLERS) and (os.geteuid() == 0 or not self._options.yes)
            if can_run and self._ask(f"  run `{ability.fix}`?", ("y", "n"), "y") == "y":
                command = line if os.geteuid() == 0 else f"sudo {line}"
                environment = {**os.environ, "PATH": self._context.store.own_path()}
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
        self.answer["capture"] = host.captures[0]

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
        self.answer["root"] = root

    def _install(self) -> bool:
        """Install an Alpine root where there is none; tell whether there is one then."""
        from fumehood.service import root_trees

        store = self._context.store
        mirror, keys = self._options.mirror or "", [os.path.abspath(path) for path in self._options.key or ()]
        tier = self._options.tier
        if tier is None and not root_trees.installed(store)[1]:
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
            if value:  # so that `rootfs update` knows them too
                self._say(f"  {name} is set: {printable(set_key(store.places, name, value))}")
        self.answer["rootfs"] = tree.name
        return True

    def make_playground(self) -> None:
        """Make the directory of the agent's own."""
        from fumehood.service.provided import make_playground

        self._say(f"\n{self._paint('3. The playground', 'bold')}")
        path = make_playground(self._context.store.places)
        self._say(f"  agents may write {printable(path)} too, outside of every project")
        self.answer["playground"] = path

    def try_it(self) -> None:
        """Run a command, as an agent would."""
        import tempfile

        from fumehood.service.explain import look_inside
        from fumehood.service.hood import Hood

        self._say(f"\n{self._paint('4. A first command', 'bold')}")
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
        self._say(f"\n{self._paint('5. Your agent', 'bold')}")
        agent = self._options.agent or self._ask("  which one?", _AGENTS, "none")
        self.answer["agent"] = agent
        if agent in CLIENTS:
            self._say(f"  the same later: fumehood setup {agent}\n")
            if not self._context.as_json:
                # Without a person, another program's settings are only shown.
                self._options.print = self._options.yes
                connect(self._context, agent)
        elif agent == "mcp":
            self._say(f"  in the settings of any client that speaks MCP:\n\n{_MCP}")
        elif agent == "python":
            self._say(f"\n{_PYTHON}")
        else:
            self._say("  fumehood run -- 'make test'")


def connect(context: Context, client: str) -> int:
    """Show what would change, then change it: a backup is kept, and doing it again changes nothing."""
    options = context.options
    if client not in CLIENTS:
        raise BadRequest(f"there is no client {client}", hint=f"one of: {', '.join(CLIENTS)}")
    settings = setup_clients.connections(installed_command())[client]
    if (options.mcp or not settings.hook) and not options.remove and not options.print:
        _check_server()
    edits_of, notes = settings.chosen(mcp=options.mcp)
    changes = [_compared(path, edits, is_removal=options.remove) for path, edits in edits_of.items()]
    files: list[dict[str, Any]] = [
        {"path": each.path, "changed": False, "diff": each.diff, "backup": None} for each in changes
    ]
    notes = () if options.remove else notes
    answer: dict[str, Any] = {"client": client, **files[0], "notes": list(notes), "files": files}
    if options.print:
        for file, change in zip(files, changes, strict=True):
            file["text"] = change.after
        headed = [f"# {each.path}\n{each.after}" if len(changes) > 1 else each.after for each in changes]
        return context.print_result(answer, lambda: sys.stdout.write("".join(headed)))
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
        answer |= files[0] | {"changed": True}
    answer["directories"] = directories = [] if options.remove else _offered(context, settings)
    answer["notes"] += [f"the client was given {path}; for commands: fumehood roots add {shell_quote(path)}"
                        for path in directories]  # fmt: skip
    lines = []
    for file in files:
        backup = f"; what was there: {file['backup']}" if file["backup"] else ""
        done = "written" if os.path.exists(file["path"]) else "removed"
        lines += [f"{done}: {file['path']}{backup}"] if file["changed"] else []
    return context.print_result(answer, [*lines, *(f"note: {note}" for note in answer["notes"])])


def _offered(context: Context, settings: ClientSettings) -> list[str]:
    """Offer directories that a client's settings name as roots of this project; returns what still is none.

    A command can write the settings of a project: only a person's answer counts, and never `--yes`.
    """
    store = context.store
    try:
        project = store.projects.open(store.projects.holding(working_dir()), register=False)
    except BadRequest:
        return []  # nothing here can be a project
    asks = () if context.options.yes else terminal()
    left = []
    paths = (os.path.join(project.path, file) for file in settings.naming)
    for name in dict.fromkeys(name for path in paths for name in _named(path, settings.keys)):
        path = os.path.normpath(os.path.join(project.path, os.path.expanduser(name)))
        try:
            store.projects.new_root(project, path)
        except BadRequest:
            continue  # it is one already, or can't be one
        try:
            project = store.projects.open(project.path, register=bool(asks))
            project = add_root(store, project, path, Permissions(store, asks))
        except Refused:
            left.append(path)
    return left


def _named(path: str, keys: Sequence[str]) -> list[str]:
    """Return the directories that settings name; none where they can't be read. OpenCode's are patterns."""
    try:
        # Waits for nothing, whatever a command left there.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            listed = at(meaning(path, file.read(_LONGEST_SETTINGS)), keys)
    except (OSError, UnicodeDecodeError, BadRequest):
        return []
    if isinstance(listed, dict):
        listed = [pattern.removesuffix("*").removesuffix("*") for pattern, word in listed.items() if word == ALLOW]
    return [each for each in listed if isinstance(each, str) and each] if isinstance(listed, list) else []


class Rewriting(Value):
    """What becomes of one file."""

    path: str
    before: str
    after: str
    is_gone: bool = False
    needs_backup: bool = True
    # What was kept beside it before, and is in it again.
    stale: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """The difference, for a person to agree to."""
        texts = self.before.splitlines(True), self.after.splitlines(True)
        lines = difflib.unified_diff(*texts, f"{self.path} (now)", f"{self.path} (then)")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _compared(path: str, edits: Sequence[SettingsEdit], *, is_removal: bool) -> Rewriting:
    path = os.path.realpath(path)
    before = read_settings(path)
    try:
        after = _changed(before, edits, is_removal=is_removal)
        if meaning(path, before) == meaning(path, after) and bool(before) == bool(after):
            return Rewriting(path=path, before=before, after=before)  # what is there already stays as it is written
        if is_removal:
            return _taken_out(path, edits, before, after)
        return Rewriting(path=path, before=before, after=after)
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}", hint=error.hint) from error


def _changed(text: str, edits: Sequence[SettingsEdit], *, is_removal: bool) -> str:
    """Return the text with everything added, or without it."""
    for edit in edits:
        text = (edit.remove if is_removal else edit.add)(text)
    return text


def _taken_out(path: str, edits: Sequence[SettingsEdit], before: str, after: str) -> Rewriting:
    """Return to what was there before the setup: where the file is as that left it, to the letter."""
    backups = {each: read_settings(each) for each in sorted(glob.glob(f"{glob.escape(path)}.before-fumehood-*"))}
    without = {each: _changed(text, edits, is_removal=True) for each, text in backups.items()}
    # A backup that holds something of ours is of a second setup.
    earlier = [text for each, text in backups.items() if meaning(path, without[each]) == meaning(path, text)]
    after = next((text for text in earlier if _changed(text, edits, is_removal=False) == before), after)
    is_gone = after not in earlier and "".join(after.split()) in ("", "{}")
    after = "" if is_gone else after
    stale = [each for each in backups if meaning(path, without[each]) == meaning(path, after)]
    # What adding it again would bring back needs no copy.
    again = [meaning(path, _changed(text, edits, is_removal=False)) for text in (before, after)]
    return Rewriting(
        path=path, before=before, after=after, is_gone=is_gone, needs_backup=again[0] != again[1], stale=tuple(stale)
    )


def _write(change: Rewriting) -> str | None:
    path = change.path
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        backup = replace(path, change.before, change.after, needs_backup=change.needs_backup)
        for each in (*change.stale, *([path] if change.is_gone else [])):
            os.unlink(each)
    except OSError as error:
        hint = "--print shows what to add"
        raise FumehoodError(f"{path} can't be written: {error.strerror}", hint=hint) from error
    return backup


def installed_command() -> list[str]:
    """Return how this program is started by somebody else, from anywhere."""
    started = os.path.abspath(sys.argv[0])
    if os.path.basename(started) in ("launch.py", "launch.pyc"):
        # The wrapper of a checkout, which finds the environment again when that is made anew.
        wrapper = os.path.abspath(f"{os.path.dirname(__file__)}/../../../../fumehood")
        if os.access(wrapper, os.X_OK):
            return [wrapper]
    if os.access(started, os.X_OK) and not started.endswith(".py"):
        return [started]
    return [sys.executable, "-P", "-m", "fumehood"]


def _check_server() -> None:
    """Refuse a server that can't start: it is started once, and ends at once, since its input does.

    A checkout installs what the server needs when it is first started: a client would not wait for that.
    """
    from importlib.util import find_spec

    if find_spec("mcp") is not None:
        return
    line = [*installed_command(), "mcp"]
    try:
        started = subprocess.run(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
            timeout=_START_S,
        )  # fmt: skip
        why = started.stderr.strip() if started.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        message = "the MCP server can't be started here, so nothing was written"
        raise FumehoodError(message, hint=f"{why.removeprefix('ERROR: ')}; try: {' '.join(map(shell_quote, line))}")
