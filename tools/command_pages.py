"""Write docs/commands.md and the manual page, docs/fumehood.1, from the commands' own parsers and helps.

sh tools/python tools/command_pages.py
"""

import argparse
import re
from collections.abc import Iterator
from itertools import groupby

from fumehood import __version__
from fumehood.errors import ApplyFailed
from fumehood.faces.cli.commands import ABOUT, DESCRIPTION, EXAMPLES, NAMES, _parser
from fumehood.faces.cli.completion import BY_HAND, Parameter, Shape, shape_of
from fumehood.faces.cli.output import text_of
from page import DOCS, write

_COMMON = frozenset({"--help", "--json", "--quiet", "--project", "--workspace"})  # what nearly every command takes
_NOT_RUN = "<!-- not run: examples of the help; a test sees that the parser takes each -->\n"
_NOT_RUN_BY_HAND = "<!-- not run: examples of the help; a test sees that each option is there -->\n"
_EXIT = {
    "0": "it went well", "124": "the time limit of a command was reached",
    str(ApplyFailed.exit_code): "Fumehood itself failed; one line says why, and another what to do",
    "126": "the person, or their absence, refused it",
}  # fmt: skip
_FILES = {
    "~/.config/fumehood/config.toml": "the configuration: fumehood config show",
    "~/.local/state/fumehood": "the records, and what can be brought back",
    "~/.cache/fumehood": "what can be made again",
}  # fmt: skip


def page() -> str:
    """Return what docs/commands.md has of the commands."""
    parsers = {name: parser for name, parser in _parser("")[1].items() if name not in (*BY_HAND, "help")}
    some = next(iter(parsers.values()))
    parts = ["| option | meaning |\n| --- | --- |\n", *(_row(each) for each in some._actions if _is_common(each))]
    for name in BY_HAND:
        parts.append(f"\n## `fumehood {name}`\n")
        parts += [_section(section) for section in text_of(f"{name}.txt").strip().split("\n\n")]
    return "".join([*parts, *(_described(name, parser) for name, parser in parsers.items())])


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


def _is_common(action: argparse.Action) -> bool:
    return not _COMMON.isdisjoint(action.option_strings)


def _described(name: str, parser: argparse.ArgumentParser) -> str:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    words = [_word(action) for action in shown if not action.option_strings]
    usage = " ".join([parser.prog, "[OPTIONS]", *words])
    parts = [f"\n## `fumehood {name}`\n\n{parser.description}\n\n`{usage}`\n"]
    rows = [_row(each) for each in shown if not _is_common(each) and (each.help or each.option_strings)]
    if rows:
        parts += ["\n| argument | meaning |\n| --- | --- |\n", *rows]
    examples = _as_comments((parser.epilog or "").removeprefix("examples:\n").rstrip())
    return "".join([*parts, f"\nFor example:\n\n{_NOT_RUN}```sh\n{examples}```\n"])


def _word(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    many = {"?": f"[{name}]", "*": f"[{name}…]", "+": f"{name}…", argparse.REMAINDER: f"[{name}…]"}
    return many.get(str(action.nargs), name)


def _row(action: argparse.Action) -> str:
    choices = "" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
    takes = "" if action.nargs == 0 else f" {action.metavar or choices or action.dest.upper()}"
    name = ", ".join(action.option_strings) + takes if action.option_strings else _word(action)
    return f"| `{_cell(name)}` | {_cell(action.help or '')} |\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\|", text)


# ---- The manual page.

def manual_page() -> str:
    """Return the text of docs/fumehood.1."""
    lines = [
        '.\\" Made by tools/command_pages.py from the commands\' own helps.',
        f'.TH FUMEHOOD 1 2026-11-16 "Fumehood {__version__}"',
        ".SH NAME", "fumehood \\- run the commands of AI agents where they can do no harm",
        ".SH SYNOPSIS", ".B fumehood", "COMMAND [OPTIONS] [ARGUMENTS]", ".br", ".B fumehood help", "COMMAND",
        ".SH DESCRIPTION", _text(" ".join(DESCRIPTION.split())),
        "Nearly every command takes these:",
    ]  # fmt: skip
    for each in shape_of("log").options:
        lines += _taken(each) if _COMMON.intersection(each.names) else []
    lines.append(".SH COMMANDS")
    for name in NAMES:
        shape = shape_of(name)
        assert shape is not None, name
        lines += _command(shape)
    lines += [".SH EXIT STATUS", "That of the command, for run, shell and agent; otherwise:"]
    for table, heading in ((_EXIT, ""), (_FILES, ".SH FILES")):
        lines += [heading] if heading else []
        for term, meaning in table.items():
            lines += [".TP", f".B {_text(term)}", _text(meaning)]
    lines += [".SH EXAMPLES", *_block(EXAMPLES.removeprefix("examples:\n")), ".SH SEE ALSO"]
    return "\n".join([*lines, ".BR bwrap (1),", ".BR git (1)", ""])


def _command(shape: Shape) -> list[str]:
    usage = shape.usage or f"fumehood {shape.name} [COMMAND]"
    lines = [f".SS {_text(shape.name)}", f".B {_text(usage)}", ".PP"]
    about = ABOUT.get(shape.name, "")
    paragraphs = _paragraphs(shape.text) or [shape.about]
    if about and not shape.text:
        paragraphs = [f"{about[0].upper()}{about[1:]}."]
    for number, paragraph in enumerate(paragraphs):
        lines += [*([".PP"] if number else []), _text(" ".join(paragraph.split()))]
    inherited = shape.text and "those of `fumehood" in shape.text
    for each in shape.taken:
        is_own = not inherited or any(name in shape.text for name in each.names)
        if is_own and (shape.text or not _COMMON.intersection(each.names)):
            lines += _taken(each)
    examples = shape.examples or shape.text.partition("\nexamples")[2].partition("\n")[2]
    return lines + ([".PP", "Examples:", *_block(examples)] if examples else [])


def _paragraphs(text: str) -> list[str]:
    """Return what a help that is written by hand says before it lists options."""
    said = re.split(r"\n\n(?=options|exit code|examples)", text.partition("\n\n")[2])[0] if text else ""
    return said.split("\n\n") if said else []


def _taken(each: Parameter) -> list[str]:
    if each.names:
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in each.names)
        term = f"{names} \\fI{_text(each.value)}\\fR" if each.value else names
    else:
        term = f"\\fI{_text(each.value)}\\fR"
    return [".TP", term, _text(each.about or "one of these")] if each.about or each.choices else []


def _block(text: str) -> list[str]:
    lines = [_text(line.removeprefix("  ")) for line in text.rstrip("\n").split("\n")]
    return [".nf", ".RS", *lines, ".RE", ".fi"]


def _text(text: str) -> str:
    """Write a text so that nothing in it is an instruction."""
    written = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("%%", "%")
    written = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in written)
    return f"\\&{written}" if written.startswith((".", "'")) else written


if __name__ == "__main__":
    write("commands.md", "commands", page())
    (DOCS / "fumehood.1").write_text(manual_page())
