"""Find the commands that an agent's settings name: its hooks and its servers."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_KEYS = ("command", "cmd", "args")


def commands_in(text: str, *, is_toml: bool = False) -> list[str]:
    """Return each command, with its arguments, of settings in JSON or TOML; none where they can't be understood."""
    from fumehood.core import jsonc
    from fumehood.errors import BadRequest

    try:
        if is_toml:
            import tomllib

            return list(_commands(tomllib.loads(text)))
        return list(_commands(jsonc.parse(text).plain()))
    except (BadRequest, ValueError, RecursionError):
        return []


def _commands(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _commands(each)
    elif isinstance(value, dict):
        words = [word for key in _KEYS for word in _words(value.get(key))]
        if words:
            yield " ".join(words)
        for each in value.values():
            yield from _commands(each)


def _words(value: Any) -> list[str]:
    given = value if isinstance(value, list) else [value]
    return [word for word in given if isinstance(word, str)]
