"""Write what a person is asked, so that nothing in it can look like something else.

A command, a path, a host and a reason are other people's words. In a question they are escaped, bounded and counted:

    escaped(text)            a name in a report: every letter that hides, moves or turns round others is an escape
    quote(text, most)        the same for a question, where what was left out is counted too
    item_lines(items, most)  many things: the dangerous first, the rest counted by kind
    wrap(line, width)        broken by us, so that no words of others can begin a line

Every face shows `Question.lines`, which is made of these.
"""

from __future__ import annotations

import codecs
from itertools import groupby

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Piece = tuple[str, int]  # what is written, and how many letters of the text that stands for

WIDTH = 76  # columns of a question where nobody knows how wide the window is
MOST_LETTERS, MOST_OF_A_NAME = 1600, 240
MOST_ITEMS = 20
CONTINUED = "  | "  # begins every line that goes on with another; only we begin lines
_LONGEST_BLANK = 16  # blanks in a row that are shown as they are
_MOST_MARKS = 5  # accents and vowel signs on one letter; the scripts that need most (Burmese, sung Hebrew) need five
_ACCENTS, _ENCLOSING, _OVERLAY = ("Mn", "Mc"), "Me", 1
_RIGHT_TO_LEFT = ("R", "AL", "AN")
# Letters, symbols, accents by their class that nobody sees all the same: fillers, joiners, selectors, empty patterns.
_LOOKS_BLANK = frozenset((
    0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0, 0x13441, 0x13442,
    0x16FE4, 0x1D159, 0x2D7F, 0x1107F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0),
))  # fmt: skip


class Item(Value):
    """One of several things that a question is about; the smaller its `danger`, the sooner it is shown.

    `kind` is what it is counted as where it is left out: one, and several ("git hook", "git hooks").
    """

    name: str
    kind: tuple[str, str]
    danger: int
    before: str = ""  # words before the name
    after: str = ""  # and after it


def escaped(text: str) -> str:
    """Write a name so that no letter of it reaches a terminal or a log as more, or less, than a letter."""
    return "".join(written for written, _ in _letter_pieces(text))


def quote(text: str, most: int = MOST_LETTERS) -> str:
    """Write other people's words for a question: on one line, of bounded length, in the order they are read.

    Where anything had to be written otherwise, a backslash in it is doubled: only ours stand alone. Of what is too
    long, beginning and end are shown, with how many letters were not.
    """
    if text.isascii() and text.isprintable() and len(text) <= most and " " * (_LONGEST_BLANK + 1) not in text:
        return text
    pieces = list(_collapsed_pieces(text))
    plain = "".join(written for written, _ in pieces)
    if plain == text and len(text) <= most:
        return text
    pieces = [("\\\\", count) if written == "\\" else (written, count) for written, count in pieces]
    return _shortened(pieces, most)


def brief(text: str) -> str:
    """Write a name as part of a sentence: printable, and short."""
    return _shortened(list(_letter_pieces(text)), 80)


def item_lines(items: Iterable[Item], most: int = MOST_ITEMS, seen_by: str = "") -> list[str]:
    """Write one line an item, the most dangerous first; those left out are counted by kind.

    Nothing that is left out is more dangerous than what is shown. `seen_by` is the command that shows all.
    """
    ordered = sorted(items, key=lambda item: item.danger)
    lines = []
    for item in ordered[:most]:
        before = f"{item.before} " if item.before else ""
        after = f": {quote(item.after, MOST_OF_A_NAME)}" if item.after else ""
        lines.append(f"{before}{quote(item.name, MOST_OF_A_NAME)}{after}")
    if rest := ordered[most:]:
        all_ = f"; all of them: {seen_by}" if seen_by else ""
        lines.append(f"and {len(rest)} MORE, NOT SHOWN: {counts_in_words(rest)}{all_}")
    return lines


def counts_in_words(items: Sequence[Item], *, are_all: bool = False) -> str:
    """Count items by kind: 9 git hooks, 2 links, 1 other change. Where these `are_all`, of one kind, it is 1 change."""
    counts: dict[tuple[str, str], int] = {}
    for item in items:
        counts[item.kind] = counts.get(item.kind, 0) + 1
    others = "other " if are_all and len(counts) == 1 else ""
    return ", ".join(f"{count} {kind[count > 1].removeprefix(others)}" for kind, count in counts.items())


def wrap(line: str, width: int = WIDTH) -> list[str]:
    """Break a line that is already safe: a terminal that did it would let a part of it look like a line of its own."""
    lines, room, used = [""], max(width, 20), 0
    for letter in line:
        wide = letter_width(letter)
        if used + wide > room:
            lines.append(CONTINUED)
            used = len(CONTINUED)
        lines[-1] += letter
        used += wide
    return lines


def fit_columns(text: str, room: int) -> str:
    """Cut a text that is already safe to so many columns, with a sign where something is left out."""
    used = end = 0
    for place, letter in enumerate(text, start=1):
        used += letter_width(letter)
        end = place if used < room else end
        if used > room:
            return f"{text[:end]}…"
    return text


def format_elapsed(seconds: float) -> str:
    """Write how long something has taken so far: 7 s, 3:07, 2:03:07."""
    whole = max(0, int(seconds))
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{left:02}"
    return f"{minutes}:{left:02}" if minutes else f"{left} s"


def letter_width(letter: str) -> int:
    """Return how many columns of a terminal a letter takes."""
    if letter.isascii():
        return 1
    from unicodedata import category, east_asian_width

    if category(letter) == "Mn":
        return 0
    return 2 if east_asian_width(letter) in ("W", "F") else 1


def _shortened(pieces: Sequence[Piece], most: int) -> str:
    if sum(len(written) for written, _ in pieces) <= most:
        return "".join(written for written, _ in pieces)
    tail_room = most // 3
    head = _pieces_that_fit(pieces, most - tail_room)
    tail = _pieces_that_fit(pieces[::-1], tail_room)
    left_out = pieces[head : len(pieces) - tail]
    count = sum(letters for _, letters in left_out)
    return (
        "".join(written for written, _ in pieces[:head])
        + f" \\[… {count} CHARACTERS NOT SHOWN …] "
        + "".join(written for written, _ in pieces[len(pieces) - tail :])
    )


def _pieces_that_fit(pieces: Sequence[Piece], room: int) -> int:
    """Return how many pieces there is room for."""
    for number, (written, _) in enumerate(pieces):
        room -= len(written)
        if room < 0:
            return number
    return len(pieces)


def _collapsed_pieces(text: str) -> Iterator[Piece]:
    """Yield what is written for each letter, and one piece for a long run of those that nobody sees."""
    from unicodedata import category

    def is_blank(pair: tuple[str, Piece]) -> bool:
        letter, (written, _) = pair
        if letter.isspace() or written == letter:
            return letter.isspace()
        return ord(letter) in _LOOKS_BLANK or category(letter) in ("Cf", "Zs", "Zl", "Zp")

    for are_blank, group in groupby(zip(text, _letter_pieces(text, in_order=True), strict=True), is_blank):
        run = list(group)
        if not are_blank or len(run) <= _LONGEST_BLANK:
            yield from (piece for _, piece in run)
        else:
            breaks = sum(letter == "\n" for letter, _ in run)
            lines = f", {breaks} of them line breaks" if breaks else ""
            yield f"\\[{len(run)} BLANK CHARACTERS{lines}]", len(run)


def _letter_pieces(text: str, *, in_order: bool = False) -> Iterator[Piece]:
    """Yield what is written for each letter; with `in_order`, those that are read from the right are escapes too."""
    marks = -1  # accents on the last letter; none may stand where there is no letter, or it would sit on one of ours
    for letter in text:
        if letter.isascii():
            is_shown = letter.isprintable()
            marks = 0 if letter.isalnum() else -1
        else:
            is_shown, marks = _can_be_shown(letter, marks, in_order=in_order)
        yield (letter if is_shown else _escape(letter)), 1


def _can_be_shown(letter: str, marks: int, *, in_order: bool = False) -> tuple[bool, int]:
    """Return True if a letter may be shown, and how many accents the last letter has then: -1 if none can follow."""
    import unicodedata

    if not letter.isprintable() or ord(letter) in _LOOKS_BLANK:
        return False, -1
    kind = unicodedata.category(letter)
    if kind in _ACCENTS:
        is_shown = 0 <= marks < _MOST_MARKS and unicodedata.combining(letter) != _OVERLAY
        return is_shown, marks + 1 if is_shown else -1
    if kind == _ENCLOSING or (in_order and unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT):
        return False, -1
    return True, 0 if letter.isalnum() else -1


def _escape(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(letter) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


# What a command printed, made visible.

NOT_OURS = "(not-fumehood)"  # shown where a command printed the mark
_PLAIN = bytes(range(0x20, 0x7F)) + b"\n\t"
_BLANKS = frozenset(
    "\n\t \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
# One of these after a letter says how it is drawn; several in a row can spell anything.
_SELECTORS = frozenset("\ufe0e\ufe0f")
_NOT_BEFORE_SELECTORS = _BLANKS | _SELECTORS


class _ShownAs(dict[int, str]):
    """What each letter is shown as, found out once for each; of an accent, only that what is before it decides."""

    def __init__(self) -> None:
        super().__init__()
        self.by_neighbour = set(_SELECTORS)

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        is_shown, marks = _can_be_shown(letter, 0)
        if marks == 1:
            self.by_neighbour.add(letter)
        self[code] = shown = letter if is_shown or letter in _BLANKS or letter in _SELECTORS else _escape(letter)
        return shown


_shown_as = _ShownAs()


def make_visible(text: str, mark: str = "", before: str = "") -> str:
    """Write a text for a model, its lines and tabs as they are; `before` are the letters that stood before it."""
    if not text.isascii() or not text.replace("\n", "").replace("\t", "").isprintable():
        first, *others = text.split("\r\n")
        text = "\r\n".join((_visible_part(first, before), *(_visible_part(part, "") for part in others)))
    return text.replace(mark, NOT_OURS) if mark else text


def _visible_part(text: str, before: str) -> str:
    shown = text.translate(_shown_as)
    if _shown_as.by_neighbour.isdisjoint(text):
        return shown
    marks, letters = -1, [""]
    for letter in before + text:
        shown = _shown_as[ord(letter)]
        if letter in _SELECTORS:
            marks, is_shown = -1, len(letters[-1]) == 1 and letters[-1] not in _NOT_BEFORE_SELECTORS
        elif letter in _shown_as.by_neighbour:
            is_shown, marks = _can_be_shown(letter, marks)
        else:
            is_shown, marks = True, 0 if shown.isalnum() else -1
        letters.append(shown if is_shown else _escape(letter))
    return "".join(letters[1 + len(before) :])


class VisibleStream:
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
        # The end may be the beginning of something.
        sizes = range(min(len(text), len(self._mark) - 1), 0, -1)
        begun = 1 if text.endswith("\r") else next((size for size in sizes if self._mark.startswith(text[-size:])), 0)
        return self._shown(text, begun)

    def close(self) -> bytes:
        """Return what was kept back for what might have followed."""
        return self._shown(self._waiting + self._decode(b"", final=True), 0)

    def _shown(self, text: str, kept_back: int) -> bytes:
        ready = text[: len(text) - kept_back]
        self._waiting = text[len(ready) :]
        shown = make_visible(ready, self._mark, self._before)
        self._before = (self._before + ready)[-1 - _MOST_MARKS :]
        return shown.encode()
