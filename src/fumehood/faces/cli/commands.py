"""The table of all commands, their parser, and what a command gets to work with (`Context`).

A command declares itself with the decorator `@command`; its module is imported only when it is asked for.
"""

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
from fumehood.core.request import shell_quote
from fumehood.errors import BadRequest
from fumehood.faces.cli.output import ModelText, print_notices, suggest, working_dir
from fumehood.service.opened import OpenedStore
from fumehood.service.session import project_of
from fumehood.store.audit import CLI
from fumehood.store.history import RunFilter, is_relative_to_project
from fumehood.store.places import session_mark, state_directory
from fumehood.store.projects import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.library import Sandbox

# The module of each command, in the order of the help.
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

_SERVERS = frozenset({"mcp", "web"})  # they run until they are stopped, and print no result
TAKES_COMMAND_LINE = frozenset({"fleet"})  # commands that take another command after `--`, as `rest`

# Commands that argparse does not parse, with their line in the help.
HAND_PARSED = {
    "run": "run a command in the hood", "shell": "open a shell in the hood, captured as one run",
    "agent": "run a whole agent in the hood, with its own login",
    "acp": "stand between an editor and an agent that speak ACP",
    "help": "show how a command is used: fumehood help undo", "hook": "rewrite an agent's commands to run in the hood",
}  # fmt: skip
COMMAND_NAMES = (*HAND_PARSED, *_MODULES)

DESCRIPTION = """Run the commands of AI agents where they can do no harm: every command is a transaction,
isolated, captured, judged, applied or held, and undoable."""

EXAMPLES = """examples:
  fumehood run -- 'make test'     run a command in the hood
  fumehood log                    what ran in this project
  fumehood diff last              what the last run changed
  fumehood undo                   take the last run back
"""


class Context:
    """What a command works with: its options, the store, and the project."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.as_json: bool = options.json
        self.store = store = OpenedStore(face=CLI)
        self._session_project = project_of(store, options.only_session) if options.only_session else None
        try:
            # The number of a run counts in the session's project, else in that of the current directory.
            store.history.current_project = store.projects.number_at(
                self._session_project or store.projects.project_around(os.getcwd())
            )
        except FileNotFoundError:
            store.history.current_project = None  # the current directory was removed
        print_notices(store)

    @property
    def project(self) -> Project:
        """The project that was named, else the session's, else the one that holds the current directory."""
        options, path = self.options, self.options.project
        if options.workspace is not None:
            path = self.store.workspaces.find(options.workspace).path
        if path is None:
            path = self._session_project
        is_named = path is not None
        project = self.store.projects.open(
            self.store.projects.project_around(working_dir()) if path is None else path, register=False
        )
        if not is_named:
            self.store.history.current_project = project.id  # opening a project finds out that its directory was moved
        print_notices(self.store)
        return project

    @property
    def project_here(self) -> Project | None:
        """The project; None if the current directory can't be one (the home, for example) and none was named."""
        try:
            return self.project
        except BadRequest:
            if self.options.project or self.options.workspace:
                raise
            return None

    @property
    def run_filter(self) -> RunFilter:
        """Which runs may be named: all of them, unless --only-session or --only-project narrows that."""
        session = self.options.only_session
        if session is None and not self.options.only_project:
            return RunFilter()
        sessions = () if session is None else (session,)
        return RunFilter(project=self.project.id, sessions=sessions, asked_by=self.options.asked_by)

    def run(self, name: str) -> Run:
        """Find the run with this name; `last` and `last~1` count in this project."""
        try:
            return self.store.history.find(name, *self.run_filters(name))
        except BadRequest as error:
            if "paths" in self.options and ("." in name or os.path.lexists(name)):  # it looks like a path, not a run
                error.hint = f"a path comes after the run: last {printable(shell_quote(name))}; {error.hint}"
            raise

    def run_filters(self, name: str) -> tuple[RunFilter, RunFilter]:
        """Return where a run of this name is looked for."""
        return self.run_filter, RunFilter(project=self.project.id if is_relative_to_project(name) else None)

    def project_of(self, run: Run) -> Project:
        """Return the project that a run belongs to."""
        return self.store.projects.open(run.project)

    def sandbox(self) -> Sandbox:
        """Return a sandbox of the project, which can run commands."""
        from fumehood.service.library import Sandbox

        return Sandbox(self.project.path, face=CLI)

    def print_if_json(self, result: object) -> bool:
        """Print a result as one JSON object if --json was given; returns whether it was.

        `result` may be a function that returns the object, if making it takes long.
        """
        if self.as_json:
            sys.stdout.write(json.dumps(result() if callable(result) else result) + "\n")
        return self.as_json

    def print_result(self, result: object, text: str | Iterable[str] | Callable[[], object]) -> int:
        """Print a result as JSON if --json was given, else as text: a line, lines, or a function that prints them.

        Returns the exit code 0.
        """
        if self.print_if_json(result):
            return 0
        if callable(text):
            text()
        else:
            for line in [text] if isinstance(text, str) else text:
                print(line)
        return 0


Argument = Callable[[argparse.ArgumentParser], object]  # adds an argument or option to a command's parser
# Every declared command: its line in the help, examples, arguments, and the function that runs it.
_REGISTRY: dict[str, tuple[str, str, Sequence[Argument], Callable[[argparse.Namespace], int]]] = {}


def command(
    name: str, about: str, examples: str, *arguments: Argument, opens_records: bool = True
) -> Callable[[Callable[[Any], int]], object]:
    """Declare a function to be a command, with its line in the help, examples of its use, and its arguments.

    The function gets a Context, or only the options if `opens_records` is False.
    """

    def declare(run: Callable[[Any], int]) -> object:
        _REGISTRY[name] = about, examples, arguments, (lambda options: run(Context(options))) if opens_records else run
        return run

    return declare


def argument(*names: str, **shape: Any) -> Argument:
    """Declare an argument or option, with the parameters of argparse's `add_argument`."""
    return lambda parser: parser.add_argument(*names, **shape)


def flag(names: str, about: str) -> Argument:
    """Declare an option without a value."""
    return argument(*names.split(), action="store_true", help=about)


def option(names: str, value: str, about: str, **shape: Any) -> Argument:
    """Declare an option with a value; `value` names it in the help."""
    return argument(*names.split(), metavar=value, help=about, **shape)


def repeated_option(names: str, value: str, about: str, **shape: Any) -> Argument:
    """Declare an option with a value that can be given more than once."""
    return option(names, value, about, action="append", **shape)


def subcommands(*names: str) -> Argument:
    """Declare the subcommands of a command (`draft new`); the first is the default."""

    def add(parser: argparse.ArgumentParser) -> None:
        def read(word: str) -> str:
            if word not in names:
                message = f"there is no {parser.prog.removeprefix('fumehood ')} {word}"
                raise BadRequest(message, hint=suggest(word, names) or f"one of: {', '.join(names)}")
            return word

        parser.add_argument("subcommand", type=read, metavar=f"{{{','.join(names)}}}", nargs="?", default=names[0])

    return add


_RUN_HELP = "a number (214), an id, the beginning of one, `last`, or `last~1` for the one before"
RUN = argument("run", metavar="RUN", help=_RUN_HELP)


def optional_run(default: str | None) -> Argument:
    """Declare the argument RUN as optional."""
    return argument("run", nargs="?", default=default, metavar="RUN", help=_RUN_HELP)


# Options that limit a command to some runs. An agent's own requests get them.
RUN_FILTER_OPTIONS = (
    option("--only-session", "NAME", "see this session's runs only"),
    flag("--only-project", "see this project's runs only"),
    # The run inside the hood that asks: it is left out of the runs that it asks about.
    option("--asked-by", "RUN", argparse.SUPPRESS, default=""),
)


# Names of commands in other programs, or on our own web page, and what they are called here.
_SYNONYMS = {
    "accept": "apply", "approve": "apply", "exec": "run", "held": "status", "history": "log", "init": "setup",
    "kill": "stop", "list": "log", "reject": "discard", "revert": "undo", "rollback": "undo",
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Parse and run one command."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    parser, commands = _build_parser(name)
    if "" in arguments[:1]:
        raise BadRequest("the command has no name", hint="fumehood --help lists the commands")
    if name and name not in commands:
        how_to_run = f"to run it in the hood: fumehood run -- {name} …; fumehood --help lists the commands"
        suggestion = f"did you mean {_SYNONYMS[name]}?" if name in _SYNONYMS else suggest(name, commands)
        raise BadRequest(f"there is no command {name}", hint=suggestion or how_to_run)
    # With an option between two words, argparse leaves the second word over; and it must not read what follows "--".
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end] if name in TAKES_COMMAND_LINE else arguments)
    if name in TAKES_COMMAND_LINE:
        options.rest += [word for word in unknown if not word.startswith("-")] + list(arguments[end + 1 :])
        unknown = [word for word in unknown if word.startswith("-")]
    if unknown:
        program, word, actions = f"fumehood {name}".strip(), unknown[0], commands.get(name, parser)._actions
        names = [each for action in actions if action.help != argparse.SUPPRESS for each in action.option_strings]
        suggestion = suggest(word.partition("=")[0], names) if word.startswith("-") else ""
        raise BadRequest(f"{program} does not take {word}", hint=suggestion or f"{program} --help")
    if not hasattr(options, "run_command"):
        parser.print_help()
        return 0
    for_model, stdout = None, sys.stdout
    if options.quiet and not options.json and name != "mcp":  # the protocol of mcp is on standard output
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until this process ends
    if options.only_session is not None or options.only_project:
        # Only an agent's own requests have these options, so its model reads what is printed.
        mark = session_mark(state_directory(), options.only_session or "")
        sys.stdout = for_model = ModelText(sys.stdout, mark)
    try:
        code: int = options.run_command(options)
    finally:
        if for_model is not None:
            for_model.close()
        sys.stdout = stdout
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that accepts options anywhere, and raises our own errors."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the words of one command, options first.

        argparse would fill optional arguments with the words before the first option, even with none: in
        `draft new --frozen NAME`, the name would be left over.
        """
        is_command = self._subparsers is None
        return super().parse_known_args(self._options_first(args) if is_command else args, namespace)

    def _options_first(self, words: Sequence[str]) -> list[str]:
        options: list[str] = []
        others: list[str] = []
        remaining = iter(words)
        for word in remaining:
            if word == "--":
                others += [word, *remaining]
            elif word.startswith("-") and word != "-":
                abbreviated = [each for name, each in self._option_string_actions.items() if name.startswith(word)]
                action = self._option_string_actions.get(word) or (abbreviated[0] if abbreviated else None)
                takes_value = action is not None and action.nargs is None
                values = list(itertools.islice(remaining, 1 if takes_value else 0))
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
            text = f"{self.prog.removeprefix('fumehood ')} needs {rest}"
        elif is_choice:
            text = f"{name}: {value} is not one of: {choices.removesuffix(')').replace(chr(39), '')}"
        else:
            text = f"{name} needs a value" if rest == "expected one argument" else f"{name}: {rest}"
        raise BadRequest(text, hint=f"{self.prog} --help")


def _build_parser(name: str) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Make the parser for one command, or for all commands if there is none of this name; returns their parsers too."""
    shape: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = _Parser("fumehood", description=DESCRIPTION, epilog=EXAMPLES, **shape)
    parser.set_defaults(json=False, quiet=False, only_session=None, only_project=False, asked_by="")
    parser.add_argument("-V", "--version", action="version", version=f"fumehood {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for hand_parsed, about in HAND_PARSED.items():
        commands.add_parser(hand_parsed, help=about, add_help=False).set_defaults(run_command=lambda _options: 0)

    for command_name in [name] if name in _MODULES else _MODULES:
        import_module(f"fumehood.faces.cli.{_MODULES[command_name]}")
        about, examples, arguments, run_command = _REGISTRY[command_name]
        lines = "".join(f"\n  {line}" for line in examples.split("\n"))
        command = commands.add_parser(
            command_name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=f"examples:{lines}", **shape
        )
        as_json = "print an error as one object" if command_name in _SERVERS else "print one object instead of text"
        command.set_defaults(run_command=run_command)
        for add in (
            flag("--json", as_json), flag("-q --quiet", "print nothing if all goes well"),
            option("--project", "DIR", "the project (default: the one that holds the current directory)"),
            option("--workspace", "NAME", "a workspace instead of a project"), *arguments,
        ):  # fmt: skip
            add(command)
    return parser, commands.choices


def parser_for(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    return _build_parser(name)[1][name]
