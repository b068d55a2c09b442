"""What a scan leaves out: what tools make again by themselves, and what .gitignore files name.

Nothing depends on these rules for safety: a file that a command changes or deletes gets its record and its
backup whether it is ignored or not.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

# Directories with these names: the insides of repositories, packages, virtual environments, caches.
SKIPPED = frozenset({
    ".git", ".hg", ".svn", ".bzr", ".jj",
    "node_modules", "bower_components", ".pnpm-store", ".yarn", ".venv", "venv", ".tox", ".nox", ".eggs",
    "__pycache__", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints",
    ".gradle", ".terraform", ".parcel-cache", ".turbo", ".direnv",
})  # fmt: skip
OURS = ".fumehood-"  # begins the name of a directory that an apply uses for a moment
# A directory that holds one of these is a virtual environment, or calls itself a cache.
MARKERS = ("pyvenv.cfg", "CACHEDIR.TAG")

# Bounds on what a .gitignore can cost: whatever is beyond them is not ignored.
LARGEST = 64 << 10
_MOST_PATTERNS = 500
_LONGEST = 300
_MOST_DOUBLE_STARS = 3


def is_skipped(name: str) -> bool:
    """Tell whether a directory's name alone says that a scan leaves it out."""
    return name in SKIPPED or name.startswith(OURS)


def lies_in_skipped(parent: str) -> bool:
    """Tell whether a directory is one that a scan leaves out, or lies in one."""
    return any(map(is_skipped, set(parent.split("/"))))


class Rules:
    """The patterns of one .gitignore file, for paths relative to the directory it lies in.

    Read are comments, `!`, a slash at the beginning, in the middle or at the end, `*`, `?`, `[…]`, `**` and
    backslashes. Not read: `.git/info/exclude`, a person's global excludes, and what git itself keeps track of.
    """

    def __init__(self, text: str) -> None:
        names: list[tuple[int, bool, str]] = []
        paths: list[tuple[int, bool, str]] = []
        for number, line in enumerate(text.split("\n")):
            found = _pattern(line)
            if found is not None and len(names) + len(paths) < _MOST_PATTERNS:
                is_path, wanted, regex = found
                (paths if is_path else names).append((number, wanted, regex))
        self._names, self._paths = _Either(names), _Either(paths)

    def verdict(self, path: str, *, is_directory: bool) -> bool | None:
        """Tell whether a path is ignored, or None where no pattern speaks of it; the last one that does counts."""
        end = "/" if is_directory else ""
        by_name = self._names.last(path.rpartition("/")[2] + end)
        by_path = self._paths.last(path + end)
        number, is_wanted = max(by_name, by_path)
        return None if number < 0 else not is_wanted


class _Either:
    """Patterns as one expression, in which the last of them that matches is found first."""

    def __init__(self, patterns: list[tuple[int, bool, str]]) -> None:
        self._meanings = [(number, wanted) for number, wanted, _ in reversed(patterns)]
        self._regex: re.Pattern[str] | None = None
        if patterns:
            import re

            self._regex = re.compile("|".join(f"({regex})" for _, _, regex in reversed(patterns)), re.DOTALL)

    def last(self, text: str) -> tuple[int, bool]:
        """Return the number of the last pattern that matches, or -1, and whether it wants the path after all."""
        found = self._regex.fullmatch(text) if self._regex is not None else None
        if found is None or found.lastindex is None:
            return -1, False
        return self._meanings[found.lastindex - 1]


def _pattern(line: str) -> tuple[bool, bool, str] | None:
    """Read one line: whether it speaks of paths, not names; whether it wants them after all; its expression."""
    line = line.rstrip("\r")
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    is_wanted = line.startswith("!")
    line = line.removeprefix("!")
    only_directories = line.endswith("/")
    line = line.removesuffix("/")
    is_comment = line.startswith("#") and not is_wanted
    if not line or is_comment or len(line) > _LONGEST or line.count("**") > _MOST_DOUBLE_STARS:
        return None
    parts = line.removeprefix("/").split("/")
    regexes: list[str] = []
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            regexes.append(".+" if is_last else "(?:.*/)?")
            continue
        regex = _component(part)
        if regex is None:
            return None
        regexes.append(regex if is_last else f"{regex}/")
    return "/" in line, is_wanted, "".join(regexes) + ("/" if only_directories else "/?")


def _component(part: str) -> str | None:
    """Write one name of a pattern as an expression that takes time in proportion to the name it is tried on."""
    pieces = [""]
    at = 0
    while at < len(part):
        letter = part[at]
        if letter == "*":
            pieces.append("")
        elif letter == "?":
            pieces[-1] += "[^/]"
        elif letter == "[" and (end := part.find("]", at + (3 if part[at + 1 : at + 2] in ("!", "^") else 2))) > 0:
            choice = _choice(part[at + 1 : end])
            if choice is None:
                return None
            pieces[-1] += choice
            at = end
        else:
            if letter == "\\" and at + 1 < len(part):
                at += 1
            pieces[-1] += _literal(part[at])
        at += 1
    if len(pieces) == 1:
        return pieces[0]
    # What stands between two stars is right where it is found first: the expression never looks again.
    middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1] if piece)
    return f"{pieces[0]}{middle}[^/]*{pieces[-1]}"


def _choice(inside: str) -> str | None:
    """Write `[…]`, or None where it makes no sense."""
    not_these = inside[:1] in ("!", "^")
    letters = inside[1:] if not_these else inside
    for at in range(1, len(letters) - 1):
        if letters[at] == "-" and letters[at - 1] > letters[at + 1]:
            return None
    if "--" in letters or "\\" in letters or not letters:
        return None
    shown = "".join(letter if letter == "-" else _literal(letter) for letter in letters)
    return f"(?!/)[{'^' if not_these else ''}{shown}]"


def _literal(letter: str) -> str:
    return letter if letter.isalnum() or letter in "_/ " or ord(letter) > 127 else f"\\{letter}"
