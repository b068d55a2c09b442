"""What each command takes, read from its parser or from its own help: for completion and for the manual page."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from typing import TYPE_CHECKING

from fumehood.core.value import Value
from fumehood.faces.cli.commands import NAMES, parser_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# Commands that start before a parser could be loaded: their help is written by hand, and alone lists their options.
BY_HAND = {
    "run": ("cli.run", "HELP"), "shell": ("cli.run", "SHELL_HELP"), "agent": ("cli.agent", "HELP"),
    "acp": ("acp.command", "HELP"), "hook": ("cli.hook", "HELP"),
}  # fmt: skip
# Whose options they take besides.
BESIDES = {"shell": "run", "agent": "run", "acp": "agent"}
_OPTION = re.compile(r"  (?:(-\w), )?(--[\w-]+)(?:[ =]([A-Z][A-Z|:=]*))?(?: {2,}(.*))?")


class Parameter(Value):
    """An option or an argument: how it is called, what its value is called, and what it may be."""

    names: tuple[str, ...] = ()  # none: an argument
    value: str = ""  # "": it takes none
    about: str = ""
    choices: tuple[str, ...] = ()
    is_repeated: bool = False


class Shape(Value):
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


def shape_of(name: str) -> Shape | None:
    """Return what a command takes; None where there is no such command."""
    if name in BY_HAND:
        return _by_hand(name)
    if name == "help":
        return Shape(name=name, about="show how a command is used", taken=(Parameter(value="COMMAND", choices=NAMES),))
    parser = parser_of(name) if name in NAMES else None
    if parser is None:
        return None
    taken = tuple(_taken(action) for action in parser._actions if action.help != argparse.SUPPRESS)
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    examples = (parser.epilog or "").removeprefix("examples:\n")
    return Shape(name=name, about=parser.description or "", taken=taken, usage=usage, examples=examples)


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


def help_of(name: str) -> str:
    """Return the help of a command that is written by hand."""
    module, constant = BY_HAND[name]
    text: str = getattr(import_module(f"fumehood.faces.{module}"), constant)
    return text


def _by_hand(name: str) -> Shape:
    text = help_of(name)
    taken = list(_options_in(text))
    if name in BESIDES:
        names = {each.names for each in taken}
        taken += [each for each in _by_hand(BESIDES[name]).taken if each.names not in names]
    usage = text.partition("\n")[0].removeprefix("usage: ")
    about = text.partition("\n\n")[2].partition("\n\n")[0]
    return Shape(name=name, about=about, taken=tuple(taken), usage=usage, text=text)


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
