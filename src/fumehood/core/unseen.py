"""Find in what a failed command printed the paths of the home that it missed because they are out of its sight.

Programs say in many words that something is not there; what they name is evidence only if it is there, and hidden.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# In small letters; any of them says that something could not be had, and a path in the same line says what.
_COMPLAINTS = (
    "no such", "not found", "notfound", "not exist", "n't exist", "enoent", "os error 2", "errno 2", "missing",
    "cannot ", "can't ", "can not ", "could not ", "couldn't ", "unable to ", "failed", "not accessible",
    "not appear to be", "no rule to make", "not a valid", "not a directory", "not installable", "nosuchfile",
)  # fmt: skip
_MOST = 3  # paths that are named
_MOST_ASKED = 200  # times that the caller looks at the disk
_MOST_IN_A_LINE = 8
_LOOKED_AT = 1 << 16  # characters of the end, where a failure is told
_LONGEST_LINE = 4096
_UP = "../"
_QUOTES = {"'": "'", '"': '"', "`": "`'", "\u2018": "\u2019", "\u201c": "\u201d", "«": "»"}
_ENDS = (": ", " (", " ", ":")
_IN_NAMES = "._-+@%~$"  # before a path, these make it a part of a longer one
_AFTER = ".,;:!?)]}>'\"`\u2019\u201d»/"  # belongs to the sentence and not to the path


def unseen_paths(
    text: str, homes: Sequence[str], is_hidden: Callable[[str], bool], folder: str = ""
) -> tuple[str, ...]:
    """Return the hidden paths that a complaint names, the first ones; `~` means the first of the homes.

    `is_hidden` tells whether a path is there and out of the command's sight. Of what is not there, the directory is
    asked for, unless it lies right in the home: much is looked for in `~/.config` that nobody has. `folder` is where
    the command began, for paths that lead up from there.
    """
    below = tuple(f"{home.rstrip('/')}/" for home in homes)
    starts = [(home, home) for home in below]
    starts.append(("~/", below[0]))
    if folder:
        starts.append((_UP, f"{folder}/{_UP}"))
    paths: dict[str, None] = {}
    asked: dict[str, bool] = {}
    for line in text[-_LOOKED_AT:].splitlines():
        if len(line) > _LONGEST_LINE or not any(words in line.lower() for words in _COMPLAINTS):
            continue
        for ways in _named(_colourless(line), starts):
            for path in _likeliest(ways, below):
                if path not in asked:
                    if len(asked) == _MOST_ASKED:
                        return tuple(paths)
                    asked[path] = is_hidden(path)
                if asked[path]:
                    paths[path] = None
                    break
            if len(paths) == _MOST:
                return tuple(paths)
    return tuple(paths)


def _colourless(line: str) -> str:
    """Return a line without what changes a terminal's colours."""
    first, *others = line.split("\x1b[")
    return first + "".join(other[1:] if other[:1] == "m" else other.lstrip("0123456789;:")[1:] for other in others)


def _named(line: str, starts: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield for each path that a line names the ways to read it, the likeliest first."""
    for at, start, home in _begins(line, starts):
        rest = line[at + len(start) :]
        printable = next((number for number, letter in enumerate(rest) if letter < " "), len(rest))
        rest = rest[:printable]
        ends = [_end_of_quote(rest, line[at - 1 : at]), *map(rest.find, _ENDS), len(rest)]
        whole = [rest[:end] for end in ends if end > 0]
        ways = dict.fromkeys((*whole, *(path.rstrip(_AFTER) for path in whole)))
        yield [os.path.normpath(home + path) for path in ways]


def _likeliest(paths: Sequence[str], homes: tuple[str, ...]) -> list[str]:
    """Return those of some paths that lie in a home, then the directories that they lie in."""
    inside = [path for path in paths if path.startswith(homes)]
    folders = [os.path.dirname(path) for path in inside]
    return inside + [folder for folder in folders if os.path.dirname(folder).startswith(homes)]


def _begins(line: str, starts: Sequence[tuple[str, str]]) -> list[tuple[int, str, str]]:
    """Return where a line has a path in it: where, how it begins there, and which directory that means."""
    begins: list[tuple[int, str, str]] = []
    for start, home in starts:
        at = line.find(start)
        while at >= 0 and len(begins) < _MOST_IN_A_LINE:
            before = line[at - 1 : at] if at else ""
            is_part = before.isalnum() or (before and before in _IN_NAMES) or (start == _UP and before == "/")
            if not is_part:
                begins.append((at, start, home))
            at = line.find(start, at + 1)
    return sorted(begins)


def _end_of_quote(rest: str, before: str) -> int:
    """Return where a path ends that stands in quotes, or -1."""
    ends = [rest.find(quote) for quote in _QUOTES.get(before, "") if quote in rest]
    return min(ends, default=-1)
