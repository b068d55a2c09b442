"""Write docs/reference.md from the code's own names, signatures and docstrings, and docs/configuration.md's tables.

sh tools/python tools/reference.py
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import fumehood
from fumehood.core.config import KEYS, SECTIONS
from fumehood.core.value import Value
from page import write

_WIDTH = 100
_LONGEST_DEFAULT = 40
_SHORTER = {
    "Answering | Ask | Sequence[Answering | Ask]": "Ask", "str | os.PathLike[str]": "Path", "builtins.": "",
    "Unpack[RunOptions]": "RunOptions", "Unpack[StartOptions]": "StartOptions",
}  # fmt: skip


def reference() -> str:
    """Return what docs/reference.md has of the public names."""
    names = [name for name in fumehood.__all__ if not name.startswith("_")]
    values = {name: getattr(fumehood, name) for name in names}
    errors = {name: each for name, each in values.items() if isinstance(each, type) and issubclass(each, Exception)}
    parts: list[str] = []
    for name, each in values.items():
        if isinstance(each, ModuleType):
            parts.append(f"\n## `fumehood.{name}`\n")
            parts += [_described(f"{name}.{inner}", getattr(each, inner)) for inner in each.__all__]
        elif name not in errors:
            parts.append(_described(name, each))
    parts.append("\n## Errors\n\nEach has a `message`, a `hint` and an `exit_code`.\n\n")
    parts.append("| error | meaning |\n| --- | --- |\n")
    parts += [f"| `{name}` | {' '.join((each.__doc__ or '').split())} |\n" for name, each in errors.items()]
    return "".join(parts)


def tables_of_keys() -> dict[str, str]:
    """Return docs/configuration.md's tables by section: all keys, then those of `[[profile]]` and the like."""
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


def _described(name: str, each: Any) -> str:
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
        own = f"{name}.{attribute}"
        is_property = isinstance(member, property)
        if is_value and not is_property:
            continue  # what a record can do is ours to call
        said = f"{inspect.getdoc(member)}\n" if is_property else _function(attribute, member)
        parts.append(f"\n### `{own}`\n\n{said}")
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
    words, is_keyword = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            words.append("*")
        is_keyword = is_keyword or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        words.append(_parameter(parameter))
    returned = signature.return_annotation
    ends = "" if returned in (signature.empty, "None") or name == "Sandbox" else f" -> {_type(returned)}"
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    line = f"{prefix}{name}({', '.join(words)}){ends}"
    if len(line) > _WIDTH:
        # No parameter is broken over two lines.
        inside = textwrap.fill(", ".join(word.replace(" ", "\0") for word in words), _WIDTH, break_long_words=False)
        line = f"{prefix}{name}(\n{textwrap.indent(inside, '    ')}\n){ends}".replace("\0", " ")
    return f"```python\n{line}\n```\n\n"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{annotation}{default}"


def _type(annotation: Any) -> str:
    text = str(annotation)
    for long, short in _SHORTER.items():
        text = text.replace(long, short)
    return text


def _value_fields(each: type) -> Iterator[str]:
    for owner in reversed(each.__mro__):
        annotations = {} if owner in (Value, object) else inspect.get_annotations(owner)
        for name, annotation in annotations.items():
            default = getattr(each, name, inspect.Parameter.empty)
            shown = "" if default is inspect.Parameter.empty else repr(default)
            shown = f"`{shown}`" if shown and len(shown) <= _LONGEST_DEFAULT else "…" if shown else ""
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
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write("reference.md", "reference", reference())
    for section, table in tables_of_keys().items():
        write("configuration.md", section, table)
