"""Read each package manager's settings format, and write what may be seen in it again.

Parsers are loaded when there is something to parse: they take longer than a command to start.
"""

from __future__ import annotations

from fumehood.core import package_keys as keys
from fumehood.core.package_keys import Malformed, Sieve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any
    from xml.etree.ElementTree import Element

    from fumehood.core.package_keys import Schema

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_SPECIAL = frozenset("\"'\\;#")  # has a meaning in npm's and yarn's values


def shown_of(manager: str, data: bytes, homes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return what a command may see of a manager's settings, in its own format, and the names of what was left out.

    `homes` are the names of the person's home; the first is what `~` means.
    """
    sieve = Sieve(homes)
    try:
        shown = _READERS[manager](data.decode("utf-8-sig"), sieve)
    except ValueError as error:
        raise Malformed(f"it can't be read ({type(error).__name__})") from error
    except RecursionError as error:
        raise Malformed("it is nested too deeply") from error
    return shown, tuple(sieve.dropped)


def _pip(text: str, sieve: Sieve) -> str:
    import configparser
    import io

    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise Malformed(f"it can't be read ({type(error).__name__})") from error
    shown = configparser.RawConfigParser()
    for section in parser.sections():
        if not _PLAIN.issuperset(section):
            sieve.drop(section)
            continue
        named = {name.removeprefix("--").replace("_", "-"): value for name, value in parser.items(section)}
        kept = sieve.table(named, keys.PIP, section)
        if kept:
            shown[section] = kept
    written = io.StringIO()
    shown.write(written)
    return written.getvalue()


def _uv(text: str, sieve: Sieve) -> str:
    return _toml(text, keys.UV, sieve)


def _cargo(text: str, sieve: Sieve) -> str:
    return _toml(text, keys.CARGO, sieve)


def _toml(text: str, kinds: Schema, sieve: Sieve) -> str:
    import tomllib

    shown = sieve.table(tomllib.loads(text), kinds)
    if not shown:
        return ""
    import tomlkit

    return tomlkit.dumps(shown)


def _yarn(text: str, sieve: Sieve) -> str:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Malformed(f"it can't be read ({type(error).__name__})") from error
    if table is None:
        return ""
    if not isinstance(table, dict):
        raise Malformed("it is not a table of settings")
    shown = sieve.table(table, keys.YARN)
    return yaml.safe_dump(shown, allow_unicode=True) if shown else ""


def _npm(text: str, sieve: Sieve) -> str:
    """Read lines `name = value`, where a name that ends with `[]` may come several times."""
    written = ""
    for line in _lines(text, "#;"):
        if line.startswith("["):
            break  # npm knows no sections: what follows is not a setting
        name, equals, value = line.partition("=")
        name = _unquoted(name)
        shown = _registry_setting(name, _unquoted(value) if equals else "true", keys.NPM, sieve)
        written += "" if shown is None else f"{name}={shown}\n"
    return written


def _yarn_classic(text: str, sieve: Sieve) -> str:
    """Read lines `name value`, each of which may be quoted."""
    written = ""
    for line in _lines(text, "#"):
        quote = line[0] if line[0] in "\"'" else ""
        name, _, value = line[1:].partition(quote) if quote else line.partition(" ")
        name = name.removesuffix(":")
        shown = _registry_setting(name, _unquoted(value.removeprefix(":")), keys.YARN_CLASSIC, sieve)
        if shown is not None:
            is_word = shown in ("true", "false") or shown.isdigit()
            written += f'"{name}" {shown}\n' if is_word else f'"{name}" "{shown}"\n'
    return written


def _registry_setting(name: str, value: str, kinds: Schema, sieve: Sieve) -> str | None:
    """Return what may be seen of a setting of npm's or yarn's; each scope can have a registry of its own."""
    scope = name[1:].removesuffix(":registry") if name.startswith("@") and name.endswith(":registry") else ""
    kind = keys.ADDRESS if scope and _PLAIN.issuperset(scope) else sieve.kind_of(name.removesuffix("[]"), kinds)
    if kind is None or not _SPECIAL.isdisjoint(value):
        sieve.drop(name)
        return None
    shown = sieve.value(name, value, kind)
    return None if shown is None else f"{shown}"


def _go(text: str, sieve: Sieve) -> str:
    table = dict(line.partition("=")[::2] for line in _lines(text, "#"))
    shown = sieve.table(table, keys.GO) or {}
    return "".join(f"{name}={value}\n" for name, value in shown.items())


def _maven(text: str, sieve: Sieve) -> str:
    from xml.etree import ElementTree as ET

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Malformed("it declares a document type, which settings don't need")
    try:
        root = ET.fromstring(text)  # noqa: S314 - nothing is declared in it, and it is the person's
    except ET.ParseError as error:
        raise Malformed(f"it can't be read ({type(error).__name__})") from error
    shown = _element(root, keys.MAVEN, sieve, "")
    if shown is None:
        return ""
    ET.indent(shown)
    return ET.tostring(shown, encoding="unicode") + "\n"


def _element(element: Element, kinds: Schema, sieve: Sieve, within: str) -> Element | None:
    """Return what may be seen of an element: without attributes, and without a prefix, which Maven does not read."""
    from xml.etree.ElementTree import Element, SubElement

    shown = Element(_tag(element))
    for child in element:
        tag = _tag(child)
        whole = f"{within}.{tag}" if within else tag
        kind = sieve.kind_of(tag, kinds)
        if kind is None:
            sieve.drop(whole)
        elif isinstance(kind, str):
            value = sieve.value(whole, (child.text or "").strip(), kind)
            if value is not None:
                SubElement(shown, tag).text = value
        elif (inner := _element(child, kind, sieve, whole)) is not None:
            shown.append(inner)
    needed = kinds.get("!")
    if len(shown) == 0 or (isinstance(needed, str) and shown.find(needed) is None):
        return None
    return shown


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _lines(text: str, comments: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in comments:
            yield stripped


def _unquoted(text: str) -> str:
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


_READERS: Mapping[str, Any] = {
    "pip": _pip, "uv": _uv, "npm": _npm, "yarn": _yarn, "yarn classic": _yarn_classic, "cargo": _cargo,
    "maven": _maven, "go": _go,
}  # fmt: skip
