"""Every command but `run`: what it is called, what it takes, what it says of itself."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from fumehood import __version__
from fumehood.core.report import Run, printable
from fumehood.core.request import quoted
from fumehood.errors import BadRequest
from fumehood.faces.cli.output import ModelText, here, meant, tell_notices
from fumehood.service.opened import OpenedStore
from fumehood.service.session import project_of
from fumehood.store.audit import CLI
from fumehood.store.history import RunFilter, is_relative_to_project
from fumehood.store.places import session_mark, state_directory
from fumehood.store.projects import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.library import Sandbox

# In which module each command is, in the order of the help: only that of the command that is asked for is loaded.
_MODULES = {
    name: module
    for module, names in (
        ("log", "log show diff output"),
        ("status", "ps stop checkpoint forward status ask"),
        ("review", "apply discard undo redo review"),
        ("drafts", "draft best"),
        ("review", "watch"),
        ("drafts", "export import"),
        ("serve", "fleet worker"),
        ("project", "files restore scan"),
        ("machine", "doctor clean"),
        ("serve", "mcp web notify"),
        ("project", "roots grants playground projects"),
        ("machine", "rootfs workspace"),
        ("project", "capabilities"),
        ("setup", "setup"),
        ("project", "config tool"),
        ("completion", "completion"),
    )
    for name in names.split()
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
NAMES = (*ABOUT, *_MODULES)

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
        self.as_json: bool = options.json
        self.store = store = OpenedStore(face=CLI)
        self._in_session = project_of(store, options.only_session) if options.only_session else None
        try:
            # A number names a run of the session's project, or of the one that holds this directory.
            path = self._in_session or store.projects.holding(os.getcwd())
            store.history.current_project = store.projects.number_at(path)
        except FileNotFoundError:
            store.history.current_project = None  # the current directory is gone
        tell_notices(store)

    @property
    def project(self) -> Project:
        """The project named, or the one that holds the current directory."""
        options, named = self.options, self.options.project
        if options.workspace is not None:
            named = self.store.workspaces.find(options.workspace).path
        if named is None:
            named = self._in_session
        path = self.store.projects.holding(here()) if named is None else named
        project = self.store.projects.open(path, register=False)
        if named is None:
            self.store.history.current_project = project.id  # one that was moved is known only now
        tell_notices(self.store)
        return project

    @property
    def project_here(self) -> Project | None:
        """The project; None where there can't be one, such as in the home, unless one was named."""
        try:
            return self.project
        except BadRequest:
            if self.options.project or self.options.workspace:
                raise
            return None

    @property
    def reach(self) -> RunFilter:
        """Which runs may be named: every one, unless an option leaves less; no other option leaves more."""
        session = self.options.only_session
        if session is None and not self.options.only_project:
            return RunFilter()
        sessions = () if session is None else (session,)
        return RunFilter(project=self.project.id, sessions=sessions, asked_by=self.options.asked_by)

    def run(self, name: str) -> Run:
        """The run that was named; `last` and `last~1` are those of this project."""
        try:
            return self.store.history.find(name, *self.reaches(name))
        except BadRequest as error:
            if "paths" in self.options and ("." in name or os.path.lexists(name)):  # no run is called so
                error.hint = f"a path comes after the run: last {printable(quoted(name))}; {error.hint}"
            raise

    def reaches(self, name: str) -> tuple[RunFilter, RunFilter]:
        """What a run is looked for in, by how it is named."""
        return self.reach, RunFilter(project=self.project.id if is_relative_to_project(name) else None)

    def project_of(self, run: Run) -> Project:
        """The project that a run belongs to."""
        return self.store.projects.open(run.project)

    def sandbox(self) -> Sandbox:
        """Return a sandbox of the project, for what runs a command."""
        from fumehood.service.library import Sandbox

        return Sandbox(self.project.path, face=CLI)

    def printed(self, answer: object) -> bool:
        """Print an object where --json asks for it; else it is to be shown to a person.

        What is much is made when it is asked for.
        """
        if self.as_json:
            sys.stdout.write(json.dumps(answer() if callable(answer) else answer) + "\n")
        return self.as_json

    def say(self, answer: object, show: str | Iterable[str] | Callable[[], object]) -> int:
        """The same; where it is not asked for, print a line, or lines, or do what shows it."""
        if self.printed(answer):
            return 0
        if callable(show):
            show()
        else:
            for line in [show] if isinstance(show, str) else show:
                print(line)
        return 0


Argument = Callable[[argparse.ArgumentParser], object]  # adds itself to a command's parser
_DECLARED: dict[str, tuple[str, str, Sequence[Argument], Callable[[argparse.Namespace], int]]] = {}


def command(
    name: str, about: str, examples: str, *arguments: Argument, opens_records: bool = True
) -> Callable[[Callable[[Any], int]], object]:
    """Make a function a command: what the help says about it, lines that show its use, and what it takes.

    It is called with a Context; where the records are not to be opened before, with the options alone.
    """

    def declare(act: Callable[[Any], int]) -> object:
        _DECLARED[name] = about, examples, arguments, (lambda options: act(Context(options))) if opens_records else act
        return act

    return declare


def argument(*names: str, **shape: Any) -> Argument:
    """Let a command take something, in argparse's words."""
    return lambda parser: parser.add_argument(*names, **shape)


def flag(names: str, about: str) -> Argument:
    """Let a command take an option without a value."""
    return argument(*names.split(), action="store_true", help=about)


def option(names: str, value: str, about: str, **shape: Any) -> Argument:
    """Let a command take an option whose value is called so."""
    return argument(*names.split(), metavar=value, help=about, **shape)


def several(names: str, value: str, about: str, **shape: Any) -> Argument:
    """Let a command take an option that can be given more than once."""
    return option(names, value, about, action="append", **shape)


def acts(*names: str) -> Argument:
    """Let a command take the name of what it is to do; the first is what it does without one."""

    def add(parser: argparse.ArgumentParser) -> None:
        def read(word: str) -> str:
            if word not in names:
                said = f"there is no {parser.prog.removeprefix('fumehood ')} {word}"
                raise BadRequest(said, hint=meant(word, names) or f"one of: {', '.join(names)}")
            return word

        parser.add_argument("what", type=read, metavar=f"{{{','.join(names)}}}", nargs="?", default=names[0])

    return add


_A_RUN = "a number (214), an id, the beginning of one, `last`, or `last~1` for the one before"
RUN = argument("run", metavar="RUN", help=_A_RUN)


def run_or(default: str | None) -> Argument:
    """Let a command take a run, or none."""
    return argument("run", nargs="?", default=default, metavar="RUN", help=_A_RUN)


# What limits a command to some runs, as the hook limits what an agent asks for.
REACH = (
    option("--only-session", "NAME", "see this session's runs only"),
    flag("--only-project", "see this project's runs only"),
    # The run that asks from inside the hood: it is none of those that it asks about.
    option("--asked-by", "RUN", argparse.SUPPRESS, default=""),
)


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
        program, word, taking = f"fumehood {name}".strip(), unknown[0], commands.get(name, parser)._actions
        names = [each for action in taking if action.help != argparse.SUPPRESS for each in action.option_strings]
        near = meant(word.partition("=")[0], names) if word.startswith("-") else ""
        raise BadRequest(f"{program} does not take {word}", hint=near or f"{program} --help")
    if not hasattr(options, "act"):
        parser.print_help()
        return 0
    narrowed, whole = None, sys.stdout
    if options.quiet and not options.json and name != "mcp":  # that speaks there
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until this process ends
    if options.only_session is not None or options.only_project:
        # Only the hook limits a command to an agent's own runs: its model reads what is printed.
        mark = session_mark(state_directory(), options.only_session or "")
        sys.stdout = narrowed = ModelText(sys.stdout, mark)
    try:
        result: int = options.act(options)
    finally:
        if narrowed is not None:
            narrowed.close()
        sys.stdout = whole
    return result


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
    parser.set_defaults(json=False, quiet=False, only_session=None, only_project=False, asked_by="")
    parser.add_argument("-V", "--version", action="version", version=f"fumehood {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for by_hand, about in ABOUT.items():
        commands.add_parser(by_hand, help=about, add_help=False).set_defaults(act=lambda _options: 0)

    for wanted in [name] if name in _MODULES else _MODULES:
        import_module(f"fumehood.faces.cli.{_MODULES[wanted]}")
        about, examples, arguments, act = _DECLARED[wanted]
        lines = "".join(f"\n  {line}" for line in examples.split("\n"))
        command = commands.add_parser(
            wanted, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=f"examples:{lines}", **shape
        )
        as_json = "tell an error as one object" if wanted in _SERVES else "print one object instead of text"
        command.set_defaults(act=act)
        for add in (
            flag("--json", as_json), flag("-q --quiet", "say nothing where all goes well"),
            option("--project", "DIR", "the project (default: the one that holds the current directory)"),
            option("--workspace", "NAME", "a workspace instead of a project"), *arguments,
        ):  # fmt: skip
            add(command)
    return parser, commands.choices


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    return _parser(name)[1][name]
