"""What each command takes, and completion by it: scripts for three shells, and `fumehood complete`, which they ask.

It is asked with the words so far, the last of them unfinished. It prints what the shell is to complete by itself
(`files`, `directories`, `commands` or `nothing`), then a line for each other word, with a tab before what it means.
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
from fumehood.core.wording import fitted
from fumehood.faces.cli.commands import COMMAND_NAMES, HAND_PARSED, Context, argument, command, parser_for
from fumehood.faces.cli.output import load_text
from fumehood.service.store import Store
from fumehood.store.history import RunFilter
from fumehood.store.places import state_directory
from fumehood.store.search import page_of_changes

Word = tuple[str, str]  # with what it means

# Commands that start before a parser could be loaded: their help is written by hand, and alone lists their options.
HAND_WRITTEN = ("run", "shell", "agent", "acp", "hook")
# Whose options they take besides.
ALSO_TAKES = {"shell": "run", "agent": "run", "acp": "agent"}
_OPTION = re.compile(r"  (?:(-\w), )?(--[\w-]+)(?:[ =]([A-Z][A-Z|:=]*))?(?: {2,}(.*))?")
_RUNS = 30
_PATHS = 500
_ABOUT = 60  # columns of what a word means
_FILES, _DIRECTORIES, _COMMANDS, _NOTHING = "files", "directories", "commands", "nothing"
_BY_SHELL = {"PATH": _FILES, "FILE": _FILES, "FILE|URL": _FILES, "DIR": _DIRECTORIES, "PROJECT": _DIRECTORIES}
# What became of the runs that a command can be about.
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
    """Print what the last of some words could become."""
    by_shell, candidates = _completed([word for word in words if word != "="] if "=" in words[:-1] else words)
    lines = [by_shell]
    for word, about in candidates:
        # What does not show could act on the terminal, and could not be typed.
        if word.isprintable() and word.startswith(words[-1] if words else ""):
            lines.append(f"{word}\t{fitted(printable(about), _ABOUT)}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _completed(words: Sequence[str]) -> tuple[str, Iterable[Word]]:
    """Return what the shell is to complete, and the words that the last one could become."""
    *before, current = words or ("",)
    if not before:
        options = [("--help", "show the commands"), ("--version", "show the version")]
        return _NOTHING, options if current.startswith("-") else [
            (name, HAND_PARSED.get(name, "")) for name in COMMAND_NAMES
        ]
    shape = usage_of(before[0])
    if shape is None or "--" in before:
        return _COMMANDS if before[-1] == "--" else _FILES, []
    # What comes next after these words: the value of an option, or an argument.
    by_name = {name: option for option in shape.options for name in option.names}
    arguments: list[str] = []
    taken: Parameter | None = None
    for word in before[1:]:
        if taken is not None:
            taken = None
        elif word.startswith("-"):
            taken = by_name[word] if word in by_name and by_name[word].value else None
        else:
            arguments.append(word)
    if taken is None and len(arguments) < len(shape.arguments):
        taken = shape.arguments[len(arguments)]
    elif taken is None and shape.arguments and shape.arguments[-1].is_repeated:
        taken = shape.arguments[-1]
    if current.startswith("-") and (taken is None or not taken.names):
        return _NOTHING, [(option.names[-1], option.about) for option in shape.options]
    if taken is None:
        return _COMMANDS if before[0] == "run" else _FILES, []
    choices = [(choice, "") for choice in taken.choices]
    if taken.value == "CLIENT":
        from fumehood.faces.cli.setup_clients import CLIENTS

        choices += [(client, "") for client in CLIENTS]
    by_shell = _BY_SHELL.get(taken.value, _NOTHING)
    # What a value is, where its own name does not say that.
    about = taken.names[-1] if taken.names else f"{before[0]} {taken.value}"
    kind = _KINDS.get(about, taken.value)
    if kind not in _RECORDED or not os.path.isdir(state_directory()):
        return by_shell, choices  # or nothing was recorded yet
    named = before.index("--project") + 1 if "--project" in before else 0
    project = before[named] if 0 < named < len(before) else ""
    return by_shell, chain(choices, _recorded(kind, before[0], arguments, current, project))


_KINDS = {
    "--session": "SESSION", "--only-session": "SESSION", "--draft": "DRAFT", "--workspace": "WORKSPACE",
    "--project": "PROJECT", "draft NAME": "DRAFT", "workspace NAME": "WORKSPACE", "grants NUMBER": "GRANT",
    **dict.fromkeys(("apply PATH", "discard PATH", "undo PATH", "redo PATH", "diff PATH"), "A RUN'S PATH"),
}  # fmt: skip
_RECORDED = frozenset({*_KINDS.values(), "RUN", "RUN|DRAFT", "HOST"})


def _recorded(kind: str, command: str, arguments: Sequence[str], current: str, project: str) -> Iterator[Word]:
    """Yield what of a kind is recorded; it is only read, and only if it is asked for."""
    store = Store()

    def project_filter() -> RunFilter:
        where = project or store.projects.holding(os.getcwd())
        return RunFilter(project=store.projects.number_at(os.path.realpath(where)) or 0)

    if kind in ("RUN", "RUN|DRAFT"):
        yield "last", "the latest"
        for run in store.history.runs(project_filter(), limit=_RUNS):
            if run.state in _STATES.get(command, (run.state,)):
                # No number begins with 0, and all ids do.
                yield run.run if current.startswith("0") else str(run.number), f"{run.outcome}: {run.command}"
    if kind in ("DRAFT", "RUN|DRAFT"):
        yield from ((each.name, "a draft") for each in store.drafts.open_ones(project_filter().project or 0))
    elif kind == "SESSION":
        counts = [(each.name, count) for each, count in store.sessions.counts() if not is_draft_session(each.name)]
        yield from ((name, f"runs: {count}") for name, count in counts[:_RUNS])
    elif kind == "WORKSPACE":
        yield from ((each.name, "") for each in store.workspaces.all())
    elif kind == "GRANT":
        yield from ((str(each.id), f"{each.answer} {each.what} {each.target}") for each in store.grants.all())
    elif kind == "HOST":
        granted = {each.target for each in store.grants.all() if each.what == "host"}
        yield from ((host, "granted") for host in sorted(granted))
    elif kind == "PROJECT":
        yield from ((each.path, f"runs: {each.runs}") for each in store.projects.listed())
    elif kind == "A RUN'S PATH" and arguments:
        project_runs = project_filter()
        store.history.current_project = project_runs.project
        run = store.history.find(arguments[0], project_runs)
        changes, _ = page_of_changes(store.database, run.run, most=_PATHS)
        yield from ((each.path, f"{each.change}, {each.verdict}") for each in changes if each.root == 0)


class Parameter(Value):
    """An option or an argument: how it is called, what its value is called, and what it may be."""

    names: tuple[str, ...] = ()  # none: an argument
    value: str = ""  # "": it takes none
    about: str = ""
    choices: tuple[str, ...] = ()
    is_repeated: bool = False


class Usage(Value):
    """What one command is, takes, and how it is used."""

    name: str
    about: str
    taken: tuple[Parameter, ...]
    usage: str = ""
    text: str = ""  # a help that is written by hand
    examples: str = ""

    @property
    def options(self) -> tuple[Parameter, ...]:
        """What begins with a dash."""
        return tuple(each for each in self.taken if each.names)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """What does not, in order."""
        return tuple(each for each in self.taken if not each.names)


def usage_of(name: str) -> Usage | None:
    """Return what a command takes; None where there is no such command."""
    if name in HAND_WRITTEN:
        return _by_hand(name)
    if name == "help":
        return Usage(
            name=name, about="show how a command is used", taken=(Parameter(value="COMMAND", choices=COMMAND_NAMES),)
        )
    parser = parser_for(name) if name in COMMAND_NAMES else None
    if parser is None:
        return None
    taken = tuple(_taken(action) for action in parser._actions if action.help != argparse.SUPPRESS)
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    examples = (parser.epilog or "").removeprefix("examples:\n")
    return Usage(name=name, about=parser.description or "", taken=taken, usage=usage, examples=examples)


def _taken(action: argparse.Action) -> Parameter:
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


def _by_hand(name: str) -> Usage:
    text = load_text(f"{name}.txt")
    taken = list(_options_in(text))
    if name in ALSO_TAKES:
        names = {each.names for each in taken}
        taken += [each for each in _by_hand(ALSO_TAKES[name]).taken if each.names not in names]
    usage = text.partition("\n")[0].removeprefix("usage: ")
    about = text.partition("\n\n")[2].partition("\n\n")[0]
    return Usage(name=name, about=about, taken=tuple(taken), usage=usage, text=text)


def _options_in(text: str) -> Iterator[Parameter]:
    """Yield the options that a help lists; what a line goes on with belongs to the option before."""
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
