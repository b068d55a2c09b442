"""Plain immutable records, light enough for the path that runs before every command.

Importing `dataclasses` and `typing` takes longer than a whole sandboxed run. So a record here is a class whose
annotations name its fields; type checkers see it as a frozen dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform(**_options):
        """Do nothing: only type checkers need the real one."""
        return lambda cls: cls


LETTERS, DIGITS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), frozenset("0123456789")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Value:
    """A record whose fields are its class annotations; class attributes are defaults."""

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        added = [name for name in cls.__annotations__ if not name.startswith("_")]
        cls._fields = (*cls._fields, *added)

    def __init__(self, **fields: Any) -> None:
        values = self.__dict__
        for name in self._fields:
            if name in fields:
                values[name] = fields.pop(name)
            elif not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs {name}")
        if fields:
            raise TypeError(f"{type(self).__name__} has no {', '.join(fields)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} can't be set")

    def fields(self) -> dict[str, Any]:
        """Return every field with its value, in the order of their declaration."""
        return {name: getattr(self, name) for name in self._fields}

    def replace(self, **changed: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**self.__dict__, **changed})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__ or self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(tuple(self.fields().values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.fields().items())
        return f"{type(self).__name__}({fields})"


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text as a set; long tables are easier to read as text."""
    return frozenset(text.split())
