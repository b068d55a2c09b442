"""Write docs/fumehood.1, the manual page, from the commands' own parsers and helps: sh tools/python tools/man.py."""

import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "src"))

from fumehood import __version__  # noqa: E402 - found only now
from fumehood.errors import ApplyFailed  # noqa: E402
from fumehood.faces.cli.commands import ABOUT, DESCRIPTION, EXAMPLES, NAMES  # noqa: E402
from fumehood.faces.cli.completion import Parameter, Shape, shape_of  # noqa: E402

PAGE = CHECKOUT / "docs/fumehood.1"
_EXIT = {
    "0": "it went well", "124": "the time limit of a command was reached",
    str(ApplyFailed.exit_code): "Fumehood itself failed; one line says why, and another what to do",
    "126": "the person, or their absence, refused it",
}  # fmt: skip
_COMMON = frozenset({"--help", "--json", "--quiet", "--project", "--workspace"})  # what nearly every command takes
_FILES = {
    "~/.config/fumehood/config.toml": "the configuration: fumehood config show",
    "~/.local/state/fumehood": "the records, and what can be brought back",
    "~/.cache/fumehood": "what can be made again",
}  # fmt: skip


def page() -> str:
    """Return the text of docs/fumehood.1."""
    lines = [
        '.\\" Made by tools/man.py from the commands\' own helps.',
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
    lines += [".SH EXAMPLES", *_block(EXAMPLES.removeprefix("examples:\n")), ".SH SEE ALSO", ".BR bwrap (1), git (1)"]
    return "\n".join(lines).replace(".BR bwrap (1), git (1)", ".BR bwrap (1),\n.BR git (1)") + "\n"


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
    PAGE.write_text(page())
