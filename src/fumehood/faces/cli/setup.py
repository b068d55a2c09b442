"""`fumehood setup`: a short wizard that gets a machine ready; with a client's name, connects that client.

Every question has a default, and `--yes` takes them all.
"""

from __future__ import annotations

import os
import subprocess
import sys

from fumehood.core.report import printable
from fumehood.errors import BadRequest, FumehoodError
from fumehood.faces.cli.commands import Context, paint
from fumehood.faces.cli.setup_clients import CLIENTS, connect
from fumehood.store.config import policy_for, set_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Add, Context
    from fumehood.linux.doctor import Ability

_EXAMPLES = """  fumehood setup
  fumehood setup --yes --root alpine --agent mcp
  fumehood setup claude"""
_AGENTS = (*CLIENTS, "mcp", "python", "none")
_INSTALLERS = ("apt ", "apt-get ", "dnf ", "pacman ", "apk ", "zypper ")
_MCP = """  {"mcpServers": {"fumehood": {"command": "fumehood", "args": ["mcp"]}}}"""
_PYTHON = """  from fumehood import Sandbox

  sandbox = Sandbox("my-project")
  print(sandbox.run("make test").for_model())"""


def add_commands(add: Add) -> None:
    """Make this command known."""
    setup = add("setup", "get this machine ready, step by step; or connect one client", _setup, _EXAMPLES)
    setup.add_argument("client", nargs="?", metavar="CLIENT", help=f"connect this client only: {', '.join(CLIENTS)}")
    setup.add_argument("--mcp", action="store_true", help="connect it through the MCP server instead of the hook")
    setup.add_argument("--remove", action="store_true", help="remove Fumehood from the client's settings")
    setup.add_argument("--print", action="store_true", help="only print what the client's settings would be")
    setup.add_argument("--yes", action="store_true", help="take every default, ask nothing")
    setup.add_argument("--root", metavar="ROOT", help="the root that commands see by default: host or alpine")
    setup.add_argument("--tier", type=int, choices=(1, 2), help="how many tools an Alpine root gets")
    setup.add_argument("--mirror", metavar="URL", help="where an Alpine root comes from")
    setup.add_argument("--key", action="append", metavar="FILE", help="a public key that signs that mirror's packages")
    setup.add_argument("--agent", choices=_AGENTS, help="the client whose snippet is shown at the end")


def _setup(context: Context) -> int:
    if context.options.client:
        return connect(context, context.options.client)
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
            path = set_key(store.places, "root", root)
            self._say(f"  {root} is the default now: {printable(path)}")
        else:
            self._say(f"  {root} is the default")
        self.answer["root"] = root

    def _install(self) -> bool:
        """Install an Alpine root where there is none; tell whether there is one then."""
        from fumehood.faces.cli.screen import Progress
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

        self._title("3. The playground")
        path = make_playground(self._context.store.places)
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
