"""The usage of each command, and completion by it: scripts for three shells, and `fumehood complete`, which they call.

`fumehood complete` gets the words typed so far, of which the last is unfinished. Its first line says what the shell
completes by itself (`files`, `directories`, `commands` or `nothing`). Then comes a line for each other word, with a tab
and a description.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from fumehood.core.report import printable
from fumehood.core.request import is_draft_session
from fumehood.core.value import Value
from fumehood.core.wording import fit_columns
from fumehood.faces.cli.commands import COMMAND_NAMES, HAND_PARSED, Context, argument, command, parser_for
from fumehood.faces.cli.output import load_text
from fumehood.service.store import Store
from fumehood.store.history import RunFilter
from fumehood.store.places import state_directory
from fumehood.store.search import page_of_changes

Word = tuple[str, str]  # a word and its description

# Commands without an argparse parser: their options are read from their help text, which is written by hand.
HAND_WRITTEN = ("run", "shell", "agent", "acp", "hook")
# Commands that also take the options of another one.
ALSO_TAKES = {"shell": "run", "agent": "run", "acp": "agent"}
_OPTION = re.compile(r"  (?:(-\w), )?(--[\w-]+)(?:[ =]([A-Z][A-Z|:=]*))?(?: {2,}(.*))?")
_MAX_RUNS = 30
_MAX_PATHS = 500
_DESCRIPTION_WIDTH = 60  # columns of what a word means
_FILES, _DIRECTORIES, _COMMANDS, _NOTHING = "files", "directories", "commands", "nothing"
_COMPLETED_BY_SHELL = {"PATH": _FILES, "FILE": _FILES, "FILE|URL": _FILES, "DIR": _DIRECTORIES, "PROJECT": _DIRECTORIES}
# The states of the runs that are offered to a command.
_STATES = {
    "apply": ("held",), "discard": ("held",), "review": ("held",), "undo": ("applied", "held"),
    "redo": ("undone", "applied"), "stop": ("running",), "checkpoint": ("running",),
}  # fmt: skip
_SHELLS = ("bash", "zsh", "fish")


@command(
    "completion", "print what has a shell complete Fumehood's commands",
    "eval \"$(fumehood completion bash)\"     in ~/.bashrc\n"
    "eval \"$(fumehood completion zsh)\"      in ~/.zshrc, after compinit\n"
    "fumehood completion fish | source      in ~/.config/fish/config.fish",
    argument("shell", choices=_SHELLS, metavar=f"{{{','.join(_SHELLS)}}}", help="the shell"),
)  # fmt: skip
def _print_script(context: Context) -> int:
    script = load_text(f"completion.{context.options.shell}")
    return context.print_result({"script": script}, lambda: print(script, end=""))


def complete(words: Sequence[str]) -> int:
    """Print the words that could complete the last of these words."""
    by_shell, candidates = _complete_words([word for word in words if word != "="] if "=" in words[:-1] else words)
    lines = [by_shell]
    for word, about in candidates:
        # A word with invisible characters could act on the terminal, and can't be typed.
        if word.isprintable() and word.startswith(words[-1] if words else ""):
            lines.append(f"{word}\t{fit_columns(printable(about), _DESCRIPTION_WIDTH)}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _complete_words(words: Sequence[str]) -> tuple[str, Iterable[Word]]:
    """Return what the shell completes by itself, and the words that could complete the last one."""
    *earlier, current = words or ("",)
    if not earlier:
        options = [("--help", "show the commands"), ("--version", "show the version")]
        return _NOTHING, options if current.startswith("-") else [
            (name, HAND_PARSED.get(name, "")) for name in COMMAND_NAMES
        ]
    usage = find_usage(earlier[0])
    if usage is None or "--" in earlier:
        return _COMMANDS if earlier[-1] == "--" else _FILES, []
    # Find the parameter that comes next: the value of an option, or an argument.
    options_by_name = {name: option for option in usage.options for name in option.names}
    arguments: list[str] = []
    expected: Parameter | None = None
    for word in earlier[1:]:
        if expected is not None:
            expected = None
        elif word.startswith("-"):
            expected = options_by_name[word] if word in options_by_name and options_by_name[word].value else None
        else:
            arguments.append(word)
    if expected is None and len(arguments) < len(usage.arguments):
        expected = usage.arguments[len(arguments)]
    elif expected is None and usage.arguments and usage.arguments[-1].is_repeated:
        expected = usage.arguments[-1]
    if current.startswith("-") and (expected is None or not expected.names):
        return _NOTHING, [(option.names[-1], option.about) for option in usage.options]
    if expected is None:
        return _COMMANDS if earlier[0] == "run" else _FILES, []
    choices = [(choice, "") for choice in expected.choices]
    if expected.value == "CLIENT":
        from fumehood.faces.cli.setup_clients import CLIENTS

        choices += [(client, "") for client in CLIENTS]
    by_shell = _COMPLETED_BY_SHELL.get(expected.value, _NOTHING)
    # The kind of the value, if its name in the usage does not say it.
    argument_name = expected.names[-1] if expected.names else f"{earlier[0]} {expected.value}"
    kind = _KIND_OF_VALUE.get(argument_name, expected.value)
    if kind not in _RECORDED_KINDS or not os.path.isdir(state_directory()):
        return by_shell, choices  # no values of this kind are recorded, or nothing at all
    project_index = earlier.index("--project") + 1 if "--project" in earlier else 0
    project = earlier[project_index] if 0 < project_index < len(earlier) else ""
    return by_shell, chain(choices, _recorded_words(kind, earlier[0], arguments, current, project))


_KIND_OF_VALUE = {
    "--session": "SESSION", "--only-session": "SESSION", "--draft": "DRAFT", "--workspace": "WORKSPACE",
    "--project": "PROJECT", "draft NAME": "DRAFT", "workspace NAME": "WORKSPACE", "grants NUMBER": "GRANT",
    **dict.fromkeys(("apply PATH", "discard PATH", "undo PATH", "redo PATH", "diff PATH"), "A RUN'S PATH"),
}  # fmt: skip
_RECORDED_KINDS = frozenset({*_KIND_OF_VALUE.values(), "RUN", "RUN|DRAFT", "HOST"})


def _recorded_words(kind: str, command: str, arguments: Sequence[str], current: str, project: str) -> Iterator[Word]:
    """Yield the recorded values of a kind: runs, drafts, sessions, …; the records are only read."""
    store = Store()

    def project_filter() -> RunFilter:
        where = project or store.projects.project_around(os.getcwd())
        return RunFilter(project=store.projects.number_at(os.path.realpath(where)) or 0)

    if kind in ("RUN", "RUN|DRAFT"):
        yield "last", "the latest"
        for run in store.history.runs(project_filter(), limit=_MAX_RUNS):
            if run.state in _STATES.get(command, (run.state,)):
                # All ids begin with 0, and no number does.
                yield run.run if current.startswith("0") else str(run.number), f"{run.outcome}: {run.command}"
    if kind in ("DRAFT", "RUN|DRAFT"):
        yield from ((each.name, "a draft") for each in store.drafts.open_drafts(project_filter().project or 0))
    elif kind == "SESSION":
        counts = [(each.name, count) for each, count in store.sessions.counts() if not is_draft_session(each.name)]
        yield from ((name, f"runs: {count}") for name, count in counts[:_MAX_RUNS])
    elif kind == "WORKSPACE":
        yield from ((each.name, "") for each in store.workspaces.all())
    elif kind == "GRANT":
        yield from ((str(each.id), f"{each.answer} {each.what} {each.target}") for each in store.grants.all())
    elif kind == "HOST":
        granted = {each.target for each in store.grants.all() if each.what == "host"}
        yield from ((host, "granted") for host in sorted(granted))
    elif kind == "PROJECT":
        yield from ((each.path, f"runs: {each.runs}") for each in store.projects.list_all())
    elif kind == "A RUN'S PATH" and arguments:
        project_runs = project_filter()
        store.history.current_project = project_runs.project
        run = store.history.find(arguments[0], project_runs)
        changes, _ = page_of_changes(store.database, run.run, limit=_MAX_PATHS)
        yield from ((each.path, f"{each.change}, {each.verdict}") for each in changes if each.root == 0)


class Parameter(Value):
    """An option or an argument of a command."""

    names: tuple[str, ...] = ()  # of an option; an argument has none
    value: str = ""  # the name of its value in the usage; "" if it takes none
    about: str = ""
    choices: tuple[str, ...] = ()
    is_repeated: bool = False


class Usage(Value):
    """The usage of one command: its description, parameters and examples."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    usage: str = ""
    text: str = ""  # the help text, if it is written by hand
    examples: str = ""

    @property
    def options(self) -> tuple[Parameter, ...]:
        """The parameters that begin with a dash."""
        return tuple(each for each in self.parameters if each.names)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The other parameters, in order."""
        return tuple(each for each in self.parameters if not each.names)


def find_usage(name: str) -> Usage | None:
    """Return the usage of a command; None if there is no such command."""
    if name in HAND_WRITTEN:
        return _usage_from_help(name)
    if name == "help":
        return Usage(
            name=name,
            about="show how a command is used",
            parameters=(Parameter(value="COMMAND", choices=COMMAND_NAMES),),
        )
    parser = parser_for(name) if name in COMMAND_NAMES else None
    if parser is None:
        return None
    parameters = tuple(_parameter_of(action) for action in parser._actions if action.help != argparse.SUPPRESS)
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    examples = (parser.epilog or "").removeprefix("examples:\n")
    return Usage(name=name, about=parser.description or "", parameters=parameters, usage=usage, examples=examples)


def _parameter_of(action: argparse.Action) -> Parameter:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    choices = tuple(str(choice) for choice in action.choices or ())
    if metavar.startswith("{"):
        choices = tuple(metavar.strip("{}").split(","))
    takes_value = action.nargs != 0
    value = metavar or (f"{{{','.join(choices)}}}" if choices else action.dest.upper())
    return Parameter(
        names=tuple(action.option_strings), value=value if takes_value else "", choices=choices,
        about=action.help or "", is_repeated=action.nargs == "*",
    )  # fmt: skip


def _usage_from_help(name: str) -> Usage:
    text = load_text(f"{name}.txt")
    parameters = list(_parse_help(text))
    if name in ALSO_TAKES:
        names = {each.names for each in parameters}
        parameters += [each for each in _usage_from_help(ALSO_TAKES[name]).parameters if each.names not in names]
    usage = text.partition("\n")[0].removeprefix("usage: ")
    about = text.partition("\n\n")[2].partition("\n\n")[0]
    return Usage(name=name, about=about, parameters=tuple(parameters), usage=usage, text=text)


def _parse_help(text: str) -> Iterator[Parameter]:
    """Yield the options that a help text lists; an indented line continues the description of the option before."""
    names: tuple[str, ...] = ()
    value = about = ""
    for line in [*text.split("\n"), ""]:
        option = _OPTION.match(line)
        if names and line.startswith("        ") and option is None:
            about = f"{about} {line.strip()}"
            continue
        if names:
            yield Parameter(names=names, value=value, about=about)
            names = ()
        if option is not None:
            short, long, value, about = (group or "" for group in option.groups())
            names = (short, long) if short else (long,)
