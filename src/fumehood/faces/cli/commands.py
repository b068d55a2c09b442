"""Every command but `run`: what it is called, what it takes, what it says of itself."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from fumehood import __version__
from fumehood.core.report import Run, printable
from fumehood.core.request import quoted
from fumehood.errors import BadRequest
from fumehood.faces.cli.output import ModelText, Paint, here, meant, tell_notices
from fumehood.service.opened import OpenedStore
from fumehood.service.session import project_of
from fumehood.store.audit import CLI
from fumehood.store.history import Reach, is_by_project
from fumehood.store.places import session_mark, state_directory
from fumehood.store.projects import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.policy import Policy
    from fumehood.service.library import Sandbox

Add = Callable[[str, str, Callable[["Context"], int], str], argparse.ArgumentParser]

# What makes commands known, in the order of the help: only the module of the command that is asked for is loaded.
_WHERE = {
    "look.add_log": "log",
    "look.add_commands": "show diff output",
    "now.add_commands": "ps stop checkpoint",
    "now.add_forward": "forward",
    "now.add_access": "status ask",
    "settle.add_commands": "apply discard undo redo",
    "settle.add_review": "review",
    "drafts.add_commands": "draft",
    "drafts.add_best": "best",
    "settle.add_watch": "watch",
    "drafts.add_bundles": "export import",
    "fleet.add_commands": "fleet worker",
    "project.add_files": "files restore scan",
    "machine.add_commands": "doctor clean",
    "main.add_mcp": "mcp",
    "main.add_web": "web",
    "now.add_notify": "notify",
    "project.add_permissions": "roots grants playground",
    "project.add_projects": "projects",
    "machine.add_rootfs": "rootfs",
    "machine.add_workspaces": "workspace",
    "project.add_capabilities": "capabilities",
    "setup.add_commands": "setup",
    "project.add_config": "config tool",
    "completion.add_commands": "completion",
}

_SERVES = frozenset({"mcp", "web"})  # they have nothing to print at an end
WITH_WORDS = frozenset({"fleet"})  # commands that take another one's words as `rest`

# Commands whose options are not argparse's, in the order of the help.
ABOUT = {
    "run": "run a command in the hood", "shell": "open a shell in the hood, captured as one run",
    "agent": "run a whole agent in the hood, with its own login",
    "acp": "stand between an editor and an agent that speak ACP",
    "help": "show how a command is used: fumehood help undo", "hook": "rewrite an agent's commands to run in the hood",
}  # fmt: skip
NAMES = (*ABOUT, *(name for names in _WHERE.values() for name in names.split()))

DESCRIPTION = """Run the commands of AI agents where they can do no harm: every command is a transaction,
isolated, captured, judged, applied or held, and undoable."""

EXAMPLES = """examples:
  fumehood run -- 'make test'     run a command in the hood
  fumehood log                    what ran in this project
  fumehood diff last              what the last run changed
  fumehood undo                   take the last run back
"""


class Context:
    """What a command works with: the options given, the records, the project at hand."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.as_json: bool = getattr(options, "json", False)
        self._only_session: str | None = getattr(options, "only_session", None)
        self.store = OpenedStore(face=CLI)
        self.store.history.here = self._numbered()
        tell_notices(self.store)

    def _numbered(self) -> int | None:
        """Return the project whose runs a number names: that of the session, or the one that holds this directory."""
        try:
            path = self._in_session or self.store.projects.holding(os.getcwd())
        except FileNotFoundError:
            return None  # the current directory is gone
        return self.store.projects.number_at(path)

    @property
    def _in_session(self) -> str | None:
        return project_of(self.store, self._only_session) if self._only_session else None

    @property
    def project(self) -> Project:
        """The project named, or the one that holds the current directory."""
        named = getattr(self.options, "project", None)
        workspace = getattr(self.options, "workspace", None)
        if workspace is not None:
            named = self.store.workspaces.find(workspace).path
        if named is None:
            named = self._in_session
        path = self.store.projects.holding(here()) if named is None else named
        project = self.store.projects.open(path, register=False)
        if named is None:
            self.store.history.here = project.id  # one that was moved is known only now
        tell_notices(self.store)
        return project

    @property
    def reach(self) -> Reach:
        """Which runs may be named: every one, unless an option leaves less; no other option leaves more."""
        if self._only_session is None and not getattr(self.options, "only_project", False):
            return Reach()
        return Reach(
            project=self.project.id, sessions=() if self._only_session is None else (self._only_session,),
            asked_by=getattr(self.options, "asked_by", ""),
        )  # fmt: skip

    @property
    def agents_policy(self) -> Policy | None:
        """What holds for the agent that asks; None where a person does."""
        return None if self._only_session is None else self.store.policy_of(self.project)

    def run(self, name: str) -> Run:
        """The run that was named; `last` and `last~1` are those of this project."""
        try:
            return self.store.history.find(name, *self.reaches(name))
        except BadRequest as error:
            if "paths" in self.options and ("." in name or os.path.lexists(name)):  # no run is called so
                error.hint = f"a path comes after the run: last {printable(quoted(name))}; {error.hint}"
            raise

    def reaches(self, name: str) -> tuple[Reach, Reach]:
        """What a run is looked for in, by how it is named."""
        return self.reach, Reach(project=self.project.id if is_by_project(name) else None)

    def project_of(self, run: Run) -> Project:
        """The project that a run belongs to."""
        return self.store.projects.open(run.project)

    def sandbox(self) -> Sandbox:
        """Return a sandbox of the project, for what runs a command."""
        from fumehood.service.library import Sandbox

        return Sandbox(self.project.path, face=CLI)

    def say(self, answer: object, show: Callable[[], object]) -> int:
        """Print an object where --json asks for it, else show it to a person; what is much is made when it is asked."""
        if self.as_json:
            sys.stdout.write(json.dumps(answer() if callable(answer) else answer) + "\n")
        else:
            show()
        return 0


# What people may call a command, because others do, or our own page.
_ELSEWHERE = {
    "accept": "apply", "approve": "apply", "exec": "run", "held": "status", "history": "log", "init": "setup",
    "kill": "stop", "list": "log", "reject": "discard", "revert": "undo", "rollback": "undo",
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Parse and run one command."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    parser, commands = _parser(name)
    if "" in arguments[:1]:
        raise BadRequest("the command has no name", hint="fumehood --help lists the commands")
    if name and name not in commands:
        otherwise = f"to run it in the hood: fumehood run -- {name} …; fumehood --help lists the commands"
        near = f"did you mean {_ELSEWHERE[name]}?" if name in _ELSEWHERE else meant(name, commands)
        raise BadRequest(f"there is no command {name}", hint=near or otherwise)
    # What argparse leaves over where an option stands between two words: a command's words come after "--".
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:at] if name in WITH_WORDS else arguments)
    if name in WITH_WORDS:
        options.rest += [word for word in unknown if not word.startswith("-")] + list(arguments[at + 1 :])
        unknown = [word for word in unknown if word.startswith("-")]
    if unknown:
        raise _not_taken(f"fumehood {name}".strip(), unknown[0], commands.get(name, parser))
    if not hasattr(options, "act"):
        parser.print_help()
        return 0
    session = getattr(options, "only_session", None)
    narrowed, whole = None, sys.stdout
    if getattr(options, "quiet", False) and not options.json and name != "mcp":  # that speaks there
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until this process ends
    if session is not None or getattr(options, "only_project", False):
        # Only the hook limits a command to an agent's own runs: its model reads what is printed.
        sys.stdout = narrowed = ModelText(sys.stdout, session_mark(state_directory(), session or ""))
    try:
        result: int = options.act(options)
    finally:
        if narrowed is not None:
            narrowed.close()
        sys.stdout = whole
    return result


def _not_taken(program: str, word: str, parser: argparse.ArgumentParser) -> BadRequest:
    """Say that a command does not take a word, and which option was meant."""
    options = [each for action in parser._actions if action.help != argparse.SUPPRESS for each in action.option_strings]
    near = meant(word.partition("=")[0], options) if word.startswith("-") else ""
    return BadRequest(f"{program} does not take {word}", hint=near or f"{program} --help")


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints look like all others, and which takes options wherever they stand."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Read the words of one command.

        argparse gives optional words what stands before the first option, which may be nothing, and takes no more
        later: `draft new --frozen NAME` would have no name.
        """
        is_command = self._subparsers is None
        return super().parse_known_args(self._options_first(args) if is_command else args, namespace)

    def _options_first(self, words: Sequence[str]) -> list[str]:
        options: list[str] = []
        others: list[str] = []
        left = iter(words)
        for word in left:
            if word == "--":
                others += [word, *left]
            elif word.startswith("-") and word != "-":
                begun = [each for name, each in self._option_string_actions.items() if name.startswith(word)]
                action = self._option_string_actions.get(word) or (begun[0] if begun else None)
                takes_value = action is not None and action.nargs is None
                values = list(itertools.islice(left, 1 if takes_value else 0))
                name, equals, value = word.partition("=")
                if "" in values or (equals and not value):
                    self.error(f"argument {name}: expected one argument")
                options += [word, *values]
            else:
                others.append(word)
        return options + others

    def error(self, message: str) -> NoReturn:
        name, _, rest = message.removeprefix("argument ").partition(": ")
        value, is_choice, choices = rest.removeprefix("invalid choice: ").partition(" (choose from ")
        if name == "the following arguments are required":
            said = f"{self.prog.removeprefix('fumehood ')} needs {rest}"
        elif is_choice:
            said = f"{name}: {value} is not one of: {choices.removesuffix(')').replace(chr(39), '')}"
        else:
            said = f"{name} needs a value" if rest == "expected one argument" else f"{name}: {rest}"
        raise BadRequest(said, hint=f"{self.prog} --help")


def _parser(name: str) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Make the parser of one command; where there is no such command, of all, for whoever asks what there is."""
    shape: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = _Parser("fumehood", description=DESCRIPTION, epilog=EXAMPLES, **shape)
    parser.add_argument("-V", "--version", action="version", version=f"fumehood {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name_, about in ABOUT.items():
        commands.add_parser(name_, help=about, add_help=False).set_defaults(act=lambda _options: 0)

    def add(name: str, help_: str, act: Callable[[Context], int], example: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.", epilog=f"examples:\n{example}", **shape
        )
        as_json = "tell an error as one object" if name in _SERVES else "print one object instead of text"
        command.add_argument("--json", action="store_true", help=as_json)
        command.add_argument("-q", "--quiet", action="store_true", help="say nothing where all goes well")
        where = "the project (default: the one that holds the current directory)"
        command.add_argument("--project", metavar="DIR", help=where)
        command.add_argument("--workspace", metavar="NAME", help="a workspace instead of a project")
        command.set_defaults(act=lambda options: act(Context(options)))
        return command

    wanted = [where for where, names in _WHERE.items() if name in names.split()]
    for where in wanted or _WHERE:
        module, adder = where.split(".")
        getattr(import_module(f"fumehood.faces.cli.{module}"), adder)(add)
    return parser, commands.choices


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    return _parser(name)[1][name]


def add_act(command: argparse.ArgumentParser, *acts: str) -> None:
    """Let a command take the name of what it is to do; the first is what it does without one."""

    def read(word: str) -> str:
        if word not in acts:
            said = f"there is no {command.prog.removeprefix('fumehood ')} {word}"
            raise BadRequest(said, hint=meant(word, acts) or f"one of: {', '.join(acts)}")
        return word

    command.add_argument("what", type=read, metavar=f"{{{','.join(acts)}}}", nargs="?", default=acts[0])


def add_run(command: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Let a command take a run by name."""
    command.add_argument(
        "run", nargs=None if default is None else "?", default=default, metavar="RUN",
        help="a number (214), an id, the beginning of one, `last`, or `last~1` for the one before",
    )  # fmt: skip


def add_reach(command: argparse.ArgumentParser) -> None:
    """Let a command be limited to some runs, as the hook limits what an agent asks for."""
    command.add_argument("--only-session", metavar="NAME", help="see this session's runs only")
    command.add_argument("--only-project", action="store_true", help="see this project's runs only")
    # The run that asks from inside the hood: it is none of those that it asks about.
    command.add_argument("--asked-by", metavar="RUN", default="", help=argparse.SUPPRESS)


def paint() -> Paint:
    """Colours for standard output."""
    return Paint(1)
