"""Text as HTML: output of commands, differences with marked words, source code in colours, times and paths."""

from __future__ import annotations

import difflib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from fumehood.core.questions import question_lines
from fumehood.core.report import format_size, path_in_list, printable
from fumehood.core.value import Value
from fumehood.faces.cli.run_text import SIGNS

# A colour's numbers are short; one of thousands of digits could not even be read.
_SEQUENCE = re.compile(r"\x1b\[([0-9;]{0,60})m|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_CLASSES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse"}
_MAX_LINE = 2000  # characters; a longer line gets no colours
# Comparing words takes a time that grows with the cube of their number: so only in lines and texts up to these lengths.
_MAX_LINE_COMPARED, _MAX_TEXT_COMPARED = 300, 1 << 16
_WORD_PATTERN = re.compile(r"\w+|\s+|.")


def render_output(text: str) -> Markup:
    """Return what a command printed as HTML: colours become classes, other sequences are removed, text is escaped."""
    pieces: list[Markup] = []
    classes: tuple[str, ...] = ()
    end = 0
    for match in _SEQUENCE.finditer(text):
        pieces.append(_span_html(text[end : match.start()], classes))
        end = match.end()
        if match[1] is not None:
            classes = _classes_after(classes, match[1])
    pieces.append(_span_html(text[end:], classes))
    return Markup("").join(pieces)


def _span_html(text: str, classes: Sequence[str]) -> Markup:
    if not text:
        return Markup("")
    shown = escape("".join(each if each in "\n\t" else printable(each) for each in text.replace("\r\n", "\n")))
    return Markup('<span class="{}">{}</span>').format(" ".join(classes), shown) if classes else shown


def _classes_after(classes: tuple[str, ...], codes: str) -> tuple[str, ...]:
    """Return the classes that hold after a colour sequence; only the sixteen basic colours are kept."""
    kept = {each.partition("-")[0]: each for each in classes}
    numbers = [int(code or 0) for code in codes.split(";")]
    while numbers:
        number = numbers.pop(0)
        if number in (38, 48):
            del numbers[: 2 if numbers[:1] == [5] else 4]
        elif number == 0:
            kept = {}
        elif number in _CLASSES:
            kept[_CLASSES[number]] = _CLASSES[number]
        elif number in (22, 23, 24, 27):
            for name in {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",)}[number]:
                kept.pop(name, None)
        elif 30 <= number <= 37 or 90 <= number <= 97:
            kept["ink"] = f"ink-{number % 10 + (8 if number >= 90 else 0)}"
        elif 40 <= number <= 47 or 100 <= number <= 107:
            kept["back"] = f"back-{number % 10 + (8 if number >= 100 else 0)}"
        elif number in (39, 49):
            kept.pop("ink" if number == 39 else "back", None)
    return tuple(kept.values())


# ---- Differences.

class DiffLine(Value):
    """One line of a difference: its sign, its line numbers before and after, and its text as HTML."""

    sign: str
    old: int | None
    new: int | None
    html: Markup


class Hunk(Value):
    """A hunk of a difference: its heading and its lines."""

    heading: str
    lines: tuple[DiffLine, ...]

    @property
    def pairs(self) -> list[tuple[DiffLine | None, DiffLine | None]]:
        """The lines side by side: each removed line beside the one that replaces it."""
        pairs: list[tuple[DiffLine | None, DiffLine | None]] = []
        for gone, come in _pair_ranges([line.sign for line in self.lines]):
            pairs += zip_longest((self.lines[at] for at in gone), (self.lines[at] for at in come))
        return pairs


_HUNK_HEADER = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)")


def parse_difference(text: str, path: str) -> tuple[list[str], list[Hunk]]:
    """Split a difference into the lines before the first hunk, and the hunks, ready to be shown."""
    token = _token_pattern(path)
    compares = len(text) <= _MAX_TEXT_COMPARED
    head: list[str] = []
    hunks: list[Hunk] = []
    lines: list[tuple[str, int | None, int | None, str]] = []
    heading, old, new = "", 0, 0
    for line in text.split("\n")[:-1]:
        at = _HUNK_HEADER.match(line)
        if at is not None:
            if lines:
                hunks.append(Hunk(heading=heading, lines=_render_lines(lines, token, compares=compares)))
            heading, old, new, lines = line, int(at[1]), int(at[2]), []
        elif not heading:
            head.append(line)
        elif line.startswith("-"):
            lines.append(("-", old, None, line[1:]))
            old += 1
        elif line.startswith("+"):
            lines.append(("+", None, new, line[1:]))
            new += 1
        elif line.startswith("\\"):
            lines.append(("\\", None, None, line[1:]))
        else:
            lines.append((" ", old, new, line[1:]))
            old, new = old + 1, new + 1
    if lines:
        hunks.append(Hunk(heading=heading, lines=_render_lines(lines, token, compares=compares)))
    return head, hunks


def _render_lines(
    lines: Sequence[tuple[str, int | None, int | None, str]], token: re.Pattern[str] | None, *, compares: bool
) -> tuple[DiffLine, ...]:
    """Return the lines of a hunk as HTML, with marks on the words that differ between a line and its replacement."""
    changed = [[False] * len(text) for _, _, _, text in lines]
    for gone, come in _pair_ranges([sign for sign, _, _, _ in lines]) if compares else ():
        if len(gone) == len(come) and gone != come:
            for old, new in zip(gone, come, strict=True):
                _mark_words(lines[old][3], lines[new][3], changed[old], changed[new])
    return tuple(
        DiffLine(sign=sign, old=old, new=new, html=_render_line(text, marks, token))
        for (sign, old, new, text), marks in zip(lines, changed, strict=True)
    )


def _pair_ranges(signs: Sequence[str]) -> Iterator[tuple[range, range]]:
    """Yield ranges of removed lines with the ranges that replace them; an unchanged line is in both."""
    number = 0
    while number < len(signs):
        first = number
        while number < len(signs) and signs[number] == "-":
            number += 1
        middle = number
        while number < len(signs) and signs[number] == "+":
            number += 1
        if number > first:
            yield range(first, middle), range(middle, number)
        else:
            number += 1
            yield range(first, number), range(first, number)


def _mark_words(old: str, new: str, in_old: list[bool], in_new: list[bool]) -> None:
    if max(len(old), len(new)) > _MAX_LINE_COMPARED:
        return
    olds, news = _WORD_PATTERN.findall(old), _WORD_PATTERN.findall(new)
    matcher = difflib.SequenceMatcher(None, olds, news, autojunk=False)
    if matcher.ratio() < 0.4:
        return
    for act, i1, i2, j1, j2 in matcher.get_opcodes():
        if act != "equal":
            for marks, words, start, end in ((in_old, olds, i1, i2), (in_new, news, j1, j2)):
                begin = sum(map(len, words[:start]))
                length = sum(map(len, words[start:end]))
                marks[begin : begin + length] = [True] * length


def _render_line(text: str, changed: Sequence[bool], token: re.Pattern[str] | None) -> Markup:
    """Return a line as HTML: each character has a class by its token, and a mark if its word changed."""
    classes = [""] * len(text)
    if token is not None and len(text) <= _MAX_LINE:
        for match in token.finditer(text):
            if match.lastgroup is not None:
                classes[match.start() : match.end()] = [f"t-{match.lastgroup}"] * len(match[0])
    pieces: list[Markup] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or (classes[end], changed[end]) != (classes[start], changed[start]):
            shown = escape("".join(each if each == "\t" else printable(each) for each in text[start:end]))
            name = f"{classes[start]}{' word' if changed[start] else ''}".strip()
            pieces.append(Markup('<span class="{}">{}</span>').format(name, shown) if name else shown)
            start = end
    return Markup("").join(pieces)


# ---- Source code in colours, by patterns of our own. A library's patterns take for ever on some texts, which a command
# can write, and while a pattern is matched, this whole program stands still.

_CONSTANTS = "true false null none nil undefined True False None"
_KEYWORDS = (
    "and as assert async await break case catch class const continue def default defer del do done elif else end enum"
    " esac except export extends extern final finally fi fn for foreach from func function global go goto if impl"
    " implements import in instanceof interface is lambda let local loop match mod module mut namespace new not of or"
    " package pass private protected pub public raise return select self static struct super switch template then this"
    " throw throws trait try type typedef typeof union unless unsafe until use using var virtual void where while with"
    f" yield {_CONSTANTS}"
)
# Endings of file names, the pattern that begins a comment, and the keywords.
_LANGUAGES = (
    ("py pyi pyx sh bash zsh fish rb pl pm r jl nim ps1 tcl cmake", r"(?<!\S)#", _KEYWORDS),
    ("yaml yml toml ini cfg conf properties env tf hcl nix", r"(?<!\S)#", _CONSTANTS),
    ("c h cc cpp cxx hh hpp m mm cs d dart go groovy gradle java js jsx mjs cjs ts tsx", r"//|/\*", _KEYWORDS),
    ("kt kts php proto rs scala swift v vue svelte zig", r"//|/\*", _KEYWORDS),
    ("json jsonc json5 css scss less", r"/\*", _CONSTANTS),
    ("lua hs elm adb ads sql", r"--", _KEYWORDS),
)
# Each character is visited only a few times: an unclosed quote is searched for once, and `\\.` skips escaped ones.
_SYNTAX_PATTERN = (
    r"(?P<note>(?:{note}).*)|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)|\\."
    r"|(?P<key>(?<!\w)(?:{words})(?!\w))|(?P<number>(?<!\w)\d[\w.]*)|(?P<name>[^\W\d]\w*(?=\())|\w+"
)
_SYNTAX_PATTERNS = {
    ending: re.compile(_SYNTAX_PATTERN.format(note=note, words="|".join(words.split())))
    for endings, note, words in _LANGUAGES
    for ending in endings.split()
}


def _token_pattern(path: str) -> re.Pattern[str] | None:
    """Return the pattern for the tokens of a file's language, by the ending of its name; None if it is unknown."""
    return _SYNTAX_PATTERNS.get(path.rpartition(".")[2].lower())


def readable_text(path: str, data: bytes) -> str:
    """Return the text of a version as people read it: for a notebook, only its cells."""
    text = data.decode("utf-8", "replace")
    if not path.endswith(".ipynb"):
        return text
    try:
        cells = json.loads(text)["cells"]
        parts = [f"# [{cell['cell_type']}]\n{''.join(cell['source'])}\n" for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text  # it is not a valid notebook
    return "\n".join(parts)


def render_source(text: str, path: str) -> list[Markup]:
    """Return the lines of a file as HTML, in the colours of its language."""
    token = _token_pattern(path)
    return [_render_line(line, [False] * len(line), token) for line in text.removesuffix("\n").split("\n")]


_BYTES_PER_LINE = 16  # in a line
_MAX_BYTE_LINES = 8


def hex_lines(old: bytes, new: bytes) -> list[tuple[int, str, str]]:
    """Return some bytes of two versions from the first difference on: for each line, the offset and both as hex."""
    shortest = min(len(old), len(new))
    difference = next((at for at in range(shortest) if old[at] != new[at]), shortest) if old and new else 0
    first = difference // _BYTES_PER_LINE * _BYTES_PER_LINE
    places = range(first, min(first + _MAX_BYTE_LINES * _BYTES_PER_LINE, max(len(old), len(new))), _BYTES_PER_LINE)
    return [(at, old[at : at + _BYTES_PER_LINE].hex(" "), new[at : at + _BYTES_PER_LINE].hex(" ")) for at in places]


# ---- Filters of the templates: `value|name`.

def _format_age(at: float) -> str:
    seconds = max(0, int(time.time() - at))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _format_duration(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"


def _shorten_home(path: str) -> str:
    """Return a path that begins with ~ if it is in the home."""
    home = os.path.expanduser("~")
    return printable(f"~{path[len(home):]}" if path == home or path.startswith(f"{home}/") else path)


def link(path: str, /, **query: object) -> str:
    """Return an address with its parameters; empty ones are left out."""
    parameters = {key: value for key, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(parameters)}" if parameters else path


FILTERS: dict[str, Callable[..., object]] = {
    "printable": printable, "path": path_in_list, "size": format_size, "coloured": render_output,
    "sign": {kind: sign for kind, (sign, _) in SIGNS.items()}.get,
    "ago": _format_age, "lasted": _format_duration,
    "clock": lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)),
    "home": _shorten_home,
    # A path for a form or an address, which keeps bytes that are not UTF-8.
    "sent": lambda path: quote(path, errors="surrogateescape"),
    # The lines of a question, not wrapped: each gets its own element, so that none can look like the next one.
    "asked": lambda question: [line.strip() for line in question_lines(question, 1 << 20)],
    # The content of a file: escape sequences in it are shown, not interpreted.
    "contents": lambda text: _span_html(text, ()),
}  # fmt: skip
