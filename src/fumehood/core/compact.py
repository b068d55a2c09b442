"""A value as text that is read back quickly and without `json`, which loads `re`: for the path of every run.

Tokens end in NUL. Each begins with a letter for its kind; a tuple or a table says how many values follow.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_CONSTANTS: dict[str, Any] = {"n": None, "y": True, "x": False}


def dumps(value: Any) -> str:
    """Write a value: None, a boolean, a number, a string without NUL, or tuples and tables of these."""
    return "".join(f"{token}\0" for token in _tokens(value))


def loads(text: str) -> Any:
    """Read a value back; raises ValueError for anything that `dumps` did not write."""
    if not text.endswith("\0"):
        raise ValueError("cut off")
    tokens = iter(text[:-1].split("\0"))
    value = _value(tokens)
    if next(tokens, None) is not None:
        raise ValueError("more than one value")
    return value


def _tokens(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a string with a NUL")
        yield f"s{value}"
    elif isinstance(value, dict):
        yield f"d{len(value)}"
        for name, inner in value.items():
            yield from _tokens(name)
            yield from _tokens(inner)
    elif isinstance(value, (tuple, list)):
        yield f"t{len(value)}"
        for inner in value:
            yield from _tokens(inner)
    elif value is None or isinstance(value, bool):
        yield "n" if value is None else "y" if value else "x"
    elif isinstance(value, (int, float)):
        yield f"{'i' if isinstance(value, int) else 'f'}{value!r}"
    else:
        raise TypeError(f"{type(value).__name__} has no compact form")


def _value(tokens: Iterator[str]) -> Any:
    token = next(tokens, "")
    kind, rest = token[:1], token[1:]
    if kind == "s":
        return rest
    if kind == "t":
        return tuple(_value(tokens) for _ in range(int(rest)))
    if kind == "d":
        return {_name(tokens): _value(tokens) for _ in range(int(rest))}
    if kind in ("i", "f"):
        return int(rest) if kind == "i" else float(rest)
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    raise ValueError(f"no value begins with {token[:20]!r}")


def _name(tokens: Iterator[str]) -> str:
    name = _value(tokens)
    if not isinstance(name, str):
        raise ValueError("a name that is no string")  # noqa: TRY004 - to readers it is all bad text
    return name
