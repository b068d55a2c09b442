"""Write docs/commands.md from the command line's own parsers: sh tools/python tools/command_line.py."""

import argparse
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "src"))

from fumehood.faces.cli.commands import _parser  # noqa: E402 - found only now
from fumehood.faces.cli.completion import BESIDES, BY_HAND  # noqa: E402
from fumehood.faces.cli.output import text_of  # noqa: E402
from fumehood.faces.cli.run import _FLAGS, _VALUES  # noqa: E402

_EVERYWHERE = ("--json", "--quiet", "--project", "--workspace")
_NOT_RUN = "<!-- not run: examples of the help; a test sees that the parser takes each -->\n"
_NOT_RUN_BY_HAND = "<!-- not run: examples of the help; a test sees that each option is there -->\n"
_HEAD = """# Commands

Made from the code by `tools/command_line.py`; `fumehood help COMMAND` prints the same.

`RUN` is a run's number in its project (`214`, `#214`), an id, the beginning of one, `last`, or `last~1` for the one
before. `--json` prints exactly one object ([the report](report.md)); an error is then `{"error": …, "hint": …}`.

| exit code | meaning |
| --- | --- |
| the command's own | `run`, `shell`, `agent` and `acp` end as what they ran |
| 124 | the time limit was reached |
| 125 | Fumehood itself failed; the line on standard error says what to do |
| 126 | refused: a person said no, or nobody was there to ask |
| 130 | interrupted by Ctrl-C |

Every command but `run`, `shell`, `agent`, `acp` and `hook` takes these, and they are not repeated below (for `mcp` and
`web`, `--json` is about errors alone):

| option | meaning |
| --- | --- |
"""


class Command(NamedTuple):
    """What a command takes."""

    options: set[str]
    acts: tuple[str, ...] = ()


def every_command() -> dict[str, Command]:
    """Return all commands by name, with their options and what can be done by each."""
    commands = {"help": Command({"--help"})}
    for name in BY_HAND:
        options = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", text_of(f"{name}.txt"))}
        commands[name] = Command(options | (commands[BESIDES[name]].options if name in BESIDES else set()))
    commands["run"].options.update(_FLAGS | _VALUES)  # those of the hook's too, which the help leaves out
    for name, parser in argparse_parsers().items():
        options = {option for action in parser._actions for option in action.option_strings}
        acts = next((_acts(action) for action in parser._actions if action.dest == "what"), ())
        commands[name] = Command(options, acts)
    return commands


def page() -> str:
    """Return the text of docs/commands.md."""
    parsers = argparse_parsers()
    some = next(iter(parsers.values()))
    shared = [_row(action) for action in some._actions if {*action.option_strings} & {*_EVERYWHERE, "--help"}]
    parts = [_HEAD, *shared]
    for name in BY_HAND:
        parts.append(f"\n## `fumehood {name}`\n")
        parts += [_section(section) for section in text_of(f"{name}.txt").strip().split("\n\n")]
    parts += [_described(name, parser) for name, parser in parsers.items()]
    return "".join(parts)


def _section(section: str) -> str:
    """Turn a part of a help text into a paragraph, and what is indented in it into a table or a block of examples."""
    lines = section.splitlines()
    if section.startswith("usage:"):
        return "\n" + "".join(f"- `{line.removeprefix('usage:').strip()}`\n" for line in lines)
    parts = []
    for indented, some in groupby(lines, lambda line: line.startswith("  ")):
        told = "".join(f"{line.strip() if not indented else line}\n" for line in some)
        if not indented:
            parts.append(f"\n{told[:1].upper()}{told[1:]}")
        elif section.startswith("examples"):
            parts.append(f"\n{_NOT_RUN_BY_HAND}```sh\n{_as_comments(told)}```\n")
        else:
            parts += ["\n| option | meaning |\n| --- | --- |\n", *_options(told)]
    return "".join(parts)


def _options(text: str) -> Iterator[str]:
    """Yield a row for each option; what goes on in the next lines is far indented there."""
    for option in re.split(r"\n(?=  -)", text.rstrip()):
        name, _, meaning = option.strip().replace("\n", "  ", 1).partition("  ")
        yield f"| `{name}` | {_cell(' '.join(meaning.split()))} |\n"


def _as_comments(text: str) -> str:
    return "".join(re.sub(r"(?<=\S)( {2,})(?=[^\s#])", r"\1# ", line.strip()) + "\n" for line in text.splitlines())


def argparse_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of all commands that are not read by hand."""
    return {name: parser for name, parser in _parser("")[1].items() if name not in BY_HAND and name != "help"}


def _acts(action: argparse.Action) -> tuple[str, ...]:
    return tuple(str(action.metavar).strip("{}").split(","))


def _described(name: str, parser: argparse.ArgumentParser) -> str:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    words = [_word(action) for action in shown if not action.option_strings]
    usage = " ".join([parser.prog, "[OPTIONS]", *words])
    parts = [f"\n## `fumehood {name}`\n\n{parser.description}\n\n`{usage}`\n"]
    rows = [
        _row(action) for action in shown
        if not {*action.option_strings} & {*_EVERYWHERE, "--help"} and (action.help or action.option_strings)
    ]  # fmt: skip
    if rows:
        parts += ["\n| argument | meaning |\n| --- | --- |\n", *rows]
    parts += ["\nFor example:\n\n", _NOT_RUN, "```sh\n", *(f"{line}\n" for line in examples(parser)), "```\n"]
    return "".join(parts)


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """Return the lines that the help gives as examples, what is said of one as a comment."""
    return _as_comments((parser.epilog or "").removeprefix("examples:\n").rstrip()).splitlines()


def _word(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    many = {"?": f"[{name}]", "*": f"[{name}…]", "+": f"{name}…", argparse.REMAINDER: f"[{name}…]"}
    return many.get(str(action.nargs), name)


def _row(action: argparse.Action) -> str:
    takes = "" if action.nargs == 0 else f" {action.metavar or _choices(action) or action.dest.upper()}"
    name = ", ".join(action.option_strings) + takes if action.option_strings else _word(action)
    return f"| `{_cell(name)}` | {_cell(action.help or '')} |\n"


def _choices(action: argparse.Action) -> str:
    return "" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\|", text)


if __name__ == "__main__":
    (CHECKOUT / "docs/commands.md").write_text(page())
