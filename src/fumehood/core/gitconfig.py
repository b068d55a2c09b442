"""Read git's configuration format as git does, from any bytes at all.

Follows git's own reader (`config.c`), whose corners matter here: what git takes for a key must not
look like a comment to us. Includes are not followed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Entry = tuple[str, str | None]
    Values = tuple[str | None, ...]

_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN = 10, 13
_SPACE = b" \t\n\r"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_KEY = _LETTERS + b"0123456789-"
_ESCAPES = {ord("t"): b"\t", ord("b"): b"\b", ord("n"): b"\n", ord("\\"): b"\\", ord('"'): b'"', _NEWLINE: b""}
_QUOTE, _BACKSLASH, _DOT = 34, 92, 46


def parse(data: bytes) -> list[Entry] | None:
    """Return every key with its value in the order of the file, or None where git would refuse the file.

    Section and last name are in lower case, a quoted subsection keeps its own. A key without `=` has no
    value, which git takes for true.
    """
    try:
        return _Reader(data).entries()
    except _Refused:
        return None


def changed_keys(old: bytes | None, new: bytes) -> list[tuple[str, Values, Values]] | None:
    """Return each key whose values are not what they were, with both; None: the new file can't be understood.

    Keys that are gone are left out. All values of a key count, in their order: taking away the last one
    makes the one before it take effect.
    """
    after = parse(new)
    if after is None:
        return None
    was, now = by_key(parse(old) or [] if old is not None else []), by_key(after)
    return [(key, was.get(key, ()), values) for key, values in now.items() if was.get(key) != values]


def split_key(key: str) -> tuple[str, str | None, str]:
    """Take a key apart: section, subsection or None, name."""
    section, _, rest = key.partition(".")
    subsection, dot, name = rest.rpartition(".")
    return section, subsection if dot else None, name


def by_key(entries: Sequence[Entry]) -> dict[str, Values]:
    """Gather the values of each key, in their order."""
    found: dict[str, list[str | None]] = {}
    for key, value in entries:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}


class _Refused(Exception):
    """The file breaks the format."""


def _text(raw: bytes) -> str:
    """Decode what git sees of a string: C ends it at a NUL."""
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


class _Reader:
    """One pass over one file. The end of the file reads as a newline, again and again."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._ended = False

    def entries(self) -> list[Entry]:
        found: list[Entry] = []
        stem = b""
        self._skip_mark()
        while True:
            char = self._next()
            if char == _NEWLINE and self._ended:
                return found
            if char in _SPACE:
                continue
            if char in b"#;":
                self._skip_line()
            elif char == ord("["):
                stem = self._section() + b"."
            elif char in _LETTERS:
                key, value = self._entry(char)
                found.append((_text(stem + key), None if value is None else _text(value)))
            else:
                raise _Refused

    def _next(self) -> int:
        if self._at >= len(self._data):
            self._ended = True
            return _NEWLINE
        char = self._data[self._at]
        self._at += 1
        if char == _RETURN and self._data[self._at : self._at + 1] == b"\n":
            self._at += 1
            return _NEWLINE
        return char

    def _skip_mark(self) -> None:
        """Skip the mark that some editors put first; part of it is an error."""
        if self._data.startswith(_BOM):
            self._at = len(_BOM)
        elif self._data.startswith(_BOM[:1]):
            raise _Refused

    def _skip_line(self) -> None:
        end = self._data.find(b"\n", self._at)
        self._at = len(self._data) if end < 0 else end

    def _section(self) -> bytes:
        name = bytearray()
        while True:
            char = self._next()
            if self._ended:
                raise _Refused
            if char == ord("]") and name:
                return bytes(name).lower()
            if char in _SPACE:
                return bytes(name).lower() + self._subsection(char)
            if char not in _KEY and char != _DOT:
                raise _Refused
            name.append(char)

    def _subsection(self, char: int) -> bytes:
        """Read `"name"]` after the blanks that follow a section."""
        while char in _SPACE:
            if char == _NEWLINE:
                raise _Refused
            char = self._next()
        if char != _QUOTE:
            raise _Refused
        name = bytearray(b".")
        while (char := self._next()) != _QUOTE:
            if char == _BACKSLASH:
                char = self._next()
            if char == _NEWLINE:
                raise _Refused
            name.append(char)
        if self._next() != ord("]"):
            raise _Refused
        return bytes(name)

    def _entry(self, char: int) -> tuple[bytes, bytes | None]:
        key = bytearray((char,))
        while (char := self._next()) in _KEY and not self._ended:
            key.append(char)
        while char in b" \t":
            char = self._next()
        if char == _NEWLINE:
            return bytes(key).lower(), None
        if char != ord("="):
            raise _Refused
        return bytes(key).lower(), self._value()

    def _value(self) -> bytes:
        """Read a value; most are plain, which spares going through it byte by byte."""
        end = self._data.find(b"\n", self._at)
        line = self._data[self._at : None if end < 0 else end]
        if any(special in line for special in (b'"', b"\\", b"#", b";")):
            return self._quoted_value()
        self._at += len(line)
        self._next()
        return line.strip(_SPACE)

    def _quoted_value(self) -> bytes:
        value = bytearray()
        quoted = False
        kept = 0  # up to here blanks at the end count: they were quoted, or something followed
        while True:
            char = self._next()
            if char == _NEWLINE:
                if quoted:
                    raise _Refused
                return bytes(value[:kept])
            if not quoted and char in b"#;":
                self._skip_line()
                continue
            if not quoted and char in _SPACE:
                if value:
                    value.append(char)
                continue
            if char == _QUOTE:
                quoted = not quoted
            elif char == _BACKSLASH:
                value += self._escaped()
            else:
                value.append(char)
            kept = len(value)

    def _escaped(self) -> bytes:
        char = self._next()
        if char not in _ESCAPES:
            raise _Refused
        return _ESCAPES[char]
