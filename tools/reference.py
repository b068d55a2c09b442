"""Generate the parts of the manual that come from the code: sh tools/python tools/reference.py.

docs/reference.md is made from names, signatures and docstrings, the tables of docs/configuration.md from the keys, and
docs/commands.md and the manual page, docs/fumehood.1, from the commands' parsers and help texts.
"""

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from types import ModuleType
from typing import Any

import fumehood
from fumehood.core.config import KEYS, SECTIONS
from fumehood.core.value import Value
from fumehood.errors import ApplyFailed
from fumehood.faces.cli.commands import COMMAND_NAMES, DESCRIPTION, EXAMPLES, HAND_PARSED, _build_parser
from fumehood.faces.cli.completion import HAND_WRITTEN, Parameter, Usage, find_usage
from fumehood.faces.cli.output import load_text
from page import DOCS, write

_WIDTH = 100
_MAX_DEFAULT = 40
_SHORT_TYPES = {
    "Answering | Ask | Sequence[Answering | Ask]": "Ask", "str | os.PathLike[str]": "Path", "builtins.": "",
    "Unpack[RunOptions]": "RunOptions", "Unpack[StartOptions]": "StartOptions",
}  # fmt: skip
_COMMON = frozenset({"--help", "--json", "--quiet", "--project", "--workspace"})  # options of nearly every command
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


def reference() -> str:
    """Return the section of docs/reference.md about the public names."""
    names = [name for name in fumehood.__all__ if not name.startswith("_")]
    values = {name: getattr(fumehood, name) for name in names}
    errors = {name: each for name, each in values.items() if isinstance(each, type) and issubclass(each, Exception)}
    parts: list[str] = []
    for name, each in values.items():
        if isinstance(each, ModuleType):
            parts.append(f"\n## `fumehood.{name}`\n")
            parts += [_entry(f"{name}.{inner}", getattr(each, inner)) for inner in each.__all__]
        elif name not in errors:
            parts.append(_entry(name, each))
    parts.append("\n## Errors\n\nEach has a `message`, a `hint` and an `exit_code`.\n\n")
    parts.append("| error | meaning |\n| --- | --- |\n")
    parts += [f"| `{name}` | {' '.join((each.__doc__ or '').split())} |\n" for name, each in errors.items()]
    return "".join(parts)


def tables_of_keys() -> dict[str, str]:
    """Return the tables of docs/configuration.md by section: all keys, then those of `[[profile]]` and the like."""
    rows = ["| key | takes | default | meaning |\n| --- | --- | --- | --- |\n"]
    for key in KEYS:
        mark, default = " *" if key.global_only else "", key.kind.write(key.default)
        rows.append(f"| `{key.name}`{mark} | {_escaped(key.kind.said)} | `{default}` | {_escaped(key.doc)} |\n")
    tables = {"keys": "".join(rows)}
    for section in SECTIONS:
        rows = ["| key | takes | meaning |\n| --- | --- | --- |\n"]
        for key in section.keys:
            mark = " (needed)" if key.name in section.needed else ""
            rows.append(f"| `{key.name}`{mark} | {_escaped(key.kind.said)} | {_escaped(key.doc)} |\n")
        tables[section.name] = "".join(rows)
    return tables


def _entry(name: str, each: Any) -> str:
    level = "###" if "." in name else "##"
    return f"\n{level} `{name}`\n\n{_class(name, each) if isinstance(each, type) else _function(name, each)}"


def _class(name: str, each: type) -> str:
    is_value = issubclass(each, Value)
    parts = []
    if name == "Sandbox":
        parts.append(_signature(name, each.__init__))
    parts.append(f"{inspect.getdoc(each)}\n")
    fields = list(_value_fields(each) if is_value else _run_fields(each) if name == "Run" else ())
    if fields:
        parts += ["\n| field | type | default |\n| --- | --- | --- |\n", *fields]
    for attribute, member in _members(each):
        is_property = isinstance(member, property)
        if is_value and not is_property:
            continue  # users only read the fields of a record
        description = f"{inspect.getdoc(member)}\n" if is_property else _function(attribute, member)
        parts.append(f"\n### `{name}.{attribute}`\n\n{description}")
    return "".join(parts)


def _members(each: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of our own classes, those of a base class first."""
    for owner in reversed(each.__mro__):
        if owner.__module__.startswith("fumehood") and owner is not Value:
            for name, member in vars(owner).items():
                if not name.startswith("_") and isinstance(member, (property, *_CALLABLE)) and inspect.getdoc(member):
                    yield name, member


_CALLABLE = (type(reference), staticmethod, classmethod)


def _function(name: str, function: Callable[..., Any]) -> str:
    return f"{_signature(name, function)}{inspect.getdoc(function)}\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters, is_keyword = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            parameters.append("*")
        is_keyword = is_keyword or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parameters.append(_parameter(parameter))
    result_type = signature.return_annotation
    has_result = result_type not in (signature.empty, "None") and name != "Sandbox"
    arrow = f" -> {_type(result_type)}" if has_result else ""
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    line = f"{prefix}{name}({', '.join(parameters)}){arrow}"
    if len(line) > _WIDTH:
        # Spaces are replaced meanwhile, so that no parameter is broken over two lines.
        unbreakable = ", ".join(each.replace(" ", "\0") for each in parameters)
        inside = textwrap.fill(unbreakable, _WIDTH, break_long_words=False)
        line = f"{prefix}{name}(\n{textwrap.indent(inside, '    ')}\n){arrow}".replace("\0", " ")
    return f"```python\n{line}\n```\n\n"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{annotation}{default}"


def _type(annotation: Any) -> str:
    text = str(annotation)
    for long, short in _SHORT_TYPES.items():
        text = text.replace(long, short)
    return text


def _value_fields(each: type) -> Iterator[str]:
    for owner in reversed(each.__mro__):
        annotations = {} if owner in (Value, object) else inspect.get_annotations(owner)
        for name, annotation in annotations.items():
            default = getattr(each, name, inspect.Parameter.empty)
            shown = "" if default is inspect.Parameter.empty else repr(default)
            shown = f"`{shown}`" if shown and len(shown) <= _MAX_DEFAULT else "…" if shown else ""
            if not name.startswith("_"):
                yield f"| `{name}` | {_cell(_type(annotation))} | {shown} |\n"


def _run_fields(run: type) -> Iterator[str]:
    """Yield the attributes of a run that are in its report, with the types that its source gives them."""
    example = run(run="", project="", command="", cwd="", state="").as_dict()
    tree = ast.parse(textwrap.dedent(inspect.getsource(run.__init__)))
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            name = node.target.attr
            if name in example or name in ("stdout", "stderr"):
                yield f"| `{name}` | {_cell(ast.unparse(node.annotation))} | |\n"


def _cell(text: str) -> str:
    return f"`{_escaped(text)}`"


def _escaped(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\|", text)


# ---- The commands.

def commands() -> str:
    """Return the section of docs/commands.md about the commands."""
    parsers = {name: parser for name, parser in _build_parser("")[1].items() if name not in (*HAND_WRITTEN, "help")}
    any_parser = next(iter(parsers.values()))
    common = [_row(each) for each in any_parser._actions if _is_common(each)]
    parts = ["| option | meaning |\n| --- | --- |\n", *common]
    for name in HAND_WRITTEN:
        parts.append(f"\n## `fumehood {name}`\n")
        parts += [_section(section) for section in load_text(f"{name}.txt").strip().split("\n\n")]
    return "".join([*parts, *(_command_section(name, parser) for name, parser in parsers.items())])


def _section(section: str) -> str:
    """Return a section of a help text as a paragraph, with its indented lines as a table or a block of examples."""
    lines = section.splitlines()
    if section.startswith("usage:"):
        return "\n" + "".join(f"- `{line.removeprefix('usage:').strip()}`\n" for line in lines)
    parts = []
    for is_indented, group in groupby(lines, lambda line: line.startswith("  ")):
        text = "".join(f"{line if is_indented else line.strip()}\n" for line in group)
        if not is_indented:
            parts.append(f"\n{text[:1].upper()}{text[1:]}")
        elif section.startswith("examples"):
            parts.append(f"\n{_NOT_RUN_BY_HAND}```sh\n{_as_comments(text)}```\n")
        else:
            parts += ["\n| option | meaning |\n| --- | --- |\n", *_options(text)]
    return "".join(parts)


def _options(text: str) -> Iterator[str]:
    """Yield a row for each option; its continuation lines are indented further."""
    for option in re.split(r"\n(?=  -)", text.rstrip()):
        name, _, meaning = option.strip().replace("\n", "  ", 1).partition("  ")
        yield f"| `{name}` | {_escaped(' '.join(meaning.split()))} |\n"


def _as_comments(text: str) -> str:
    """Return examples with their explanations, which follow after blanks, as comments."""
    return "".join(re.sub(r"(?<=\S)( {2,})(?=[^\s#])", r"\1# ", line.strip()) + "\n" for line in text.splitlines())


def _is_common(action: argparse.Action) -> bool:
    return not _COMMON.isdisjoint(action.option_strings)


def _command_section(name: str, parser: argparse.ArgumentParser) -> str:
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
    return f"| `{_escaped(name)}` | {_escaped(action.help or '')} |\n"


# ---- The manual page.

def manual_page() -> str:
    """Return the text of docs/fumehood.1."""
    lines = [
        '.\\" Made by tools/reference.py from the commands\' own helps.',
        f'.TH FUMEHOOD 1 2026-11-16 "Fumehood {fumehood.__version__}"',
        ".SH NAME", "fumehood \\- run the commands of AI agents where they can do no harm",
        ".SH SYNOPSIS", ".B fumehood", "COMMAND [OPTIONS] [ARGUMENTS]", ".br", ".B fumehood help", "COMMAND",
        ".SH DESCRIPTION", _text(" ".join(DESCRIPTION.split())),
        "Nearly every command takes these:",
    ]  # fmt: skip
    for each in find_usage("log").options:
        lines += _parameter_lines(each) if _COMMON.intersection(each.names) else []
    lines.append(".SH COMMANDS")
    for name in COMMAND_NAMES:
        usage = find_usage(name)
        assert usage is not None, name
        lines += _command(usage)
    lines += [".SH EXIT STATUS", "That of the command, for run, shell and agent; otherwise:"]
    for table, heading in ((_EXIT, ""), (_FILES, ".SH FILES")):
        lines += [heading] if heading else []
        for term, meaning in table.items():
            lines += [".TP", f".B {_text(term)}", _text(meaning)]
    lines += [".SH EXAMPLES", *_block(EXAMPLES.removeprefix("examples:\n")), ".SH SEE ALSO"]
    return "\n".join([*lines, ".BR bwrap (1),", ".BR git (1)", ""])


def _command(usage: Usage) -> list[str]:
    line = usage.usage or f"fumehood {usage.name} [COMMAND]"
    lines = [f".SS {_text(usage.name)}", f".B {_text(line)}", ".PP"]
    about = HAND_PARSED.get(usage.name, "")
    paragraphs = _paragraphs(usage.text) or [usage.about]
    if about and not usage.text:
        paragraphs = [f"{about[0].upper()}{about[1:]}."]
    for number, paragraph in enumerate(paragraphs):
        lines += [*([".PP"] if number else []), _text(" ".join(paragraph.split()))]
    inherits = usage.text and "those of `fumehood" in usage.text
    for each in usage.parameters:
        is_own = not inherits or any(name in usage.text for name in each.names)
        if is_own and (usage.text or not _COMMON.intersection(each.names)):
            lines += _parameter_lines(each)
    examples = usage.examples or usage.text.partition("\nexamples")[2].partition("\n")[2]
    return lines + ([".PP", "Examples:", *_block(examples)] if examples else [])


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a hand-written help text before its options."""
    introduction = re.split(r"\n\n(?=options|exit code|examples)", text.partition("\n\n")[2])[0] if text else ""
    return introduction.split("\n\n") if introduction else []


def _parameter_lines(each: Parameter) -> list[str]:
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
    """Return a text with everything escaped that roff would take for an instruction."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("%%", "%")
    escaped = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    write("reference.md", "reference", reference())
    for section, table in tables_of_keys().items():
        write("configuration.md", section, table)
    write("commands.md", "commands", commands())
    (DOCS / "fumehood.1").write_text(manual_page())
