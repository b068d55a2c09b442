"""What goes to a model shows all that is in it, and never holds our own mark.

A model reads letters that no person sees, and takes a terminal's sequences for text that is not there. So whatever
is invisible is written as an escape. Our own words are told from a command's by the mark (`core/report.py`): where a
command prints it, which takes somebody who told it, something else is shown in its place.
"""

from __future__ import annotations

import codecs

from fumehood.core.report import printable

NOT_OURS = "(not-fumehood)"  # shown where a command printed the mark
_PLAIN = bytes(range(0x20, 0x7F)) + b"\n\t"
_BLANKS = frozenset(
    "\n\t \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
# One of these after a letter says how it is drawn; several in a row can spell anything.
_SELECTORS = frozenset("\ufe0e\ufe0f")


class _Letters(dict[int, str]):
    """What each letter is shown as, found out once for each."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        self[code] = shown = letter if letter in _BLANKS or letter in _SELECTORS else printable(letter)
        return shown


_letters = _Letters()


def visible(text: str, mark: str = "", before: str = "") -> str:
    """Write a text for a model, its lines and tabs as they are; `before` is the letter that stood before it."""
    if not text.isascii() or not text.replace("\n", "").replace("\t", "").isprintable():
        text = "\r\n".join(part.translate(_letters) for part in text.split("\r\n"))
        if not _SELECTORS.isdisjoint(text):
            text = "".join(map(_drawn, before + text[:-1] if before else f"\n{text[:-1]}", text))
    return text.replace(mark, NOT_OURS) if mark else text


def _drawn(before: str, letter: str) -> str:
    is_odd = letter in _SELECTORS and (before in _SELECTORS or before in _BLANKS)
    return f"\\u{ord(letter):04x}" if is_odd else letter


class Visible:
    """The same for bytes as they come: a letter, a line end and the mark may be cut anywhere between."""

    def __init__(self, mark: str = "") -> None:
        self._mark = mark
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._is_split = False
        self._waiting = ""
        self._before = ""

    def feed(self, data: bytes) -> bytes:
        """Return what of this piece can be shown already."""
        if not self._is_split and not self._waiting and not data.translate(None, _PLAIN):
            text = data.decode("ascii")
        else:
            text = self._waiting + self._decode(data)
            self._is_split = not data[-1:].isascii()
        return self._shown(text, self._kept_back(text))

    def close(self) -> bytes:
        """Return what was kept back for what might have followed."""
        return self._shown(self._waiting + self._decode(b"", final=True), 0)

    def _kept_back(self, text: str) -> int:
        """Count the letters at the end that may be the beginning of something."""
        if text.endswith("\r"):
            return 1
        sizes = range(min(len(text), len(self._mark) - 1), 0, -1)
        return next((size for size in sizes if self._mark.startswith(text[-size:])), 0)

    def _shown(self, text: str, kept_back: int) -> bytes:
        ready = text[: len(text) - kept_back]
        self._waiting = text[len(ready) :]
        shown = visible(ready, self._mark, self._before)
        self._before = ready[-1:] or self._before
        return shown.encode()
