"""Git's glob patterns for paths, branches and addresses, as its `wildmatch` reads them, and `.gitignore` files.

`*` and `?` stop at a slash, `**` between slashes does not. Matching takes time in proportion to the length of the
pattern times that of the text, for all patterns and texts: a command can choose the text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

_SLASH, _STAR, _QUESTION_MARK, _BACKSLASH, _OPEN, _CLOSE = b"/*?\\[]"
_ANY_BYTE = bytes(range(256))
_NOT_SLASH = _ANY_BYTE.replace(b"/", b"")
_UPPER, _LOWER, _DIGIT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz", b"0123456789"
_PRINTABLE = bytes(range(0x20, 0x7F))
_ALNUM = _UPPER + _LOWER + _DIGIT
_CLASSES = {
    b"alnum": _ALNUM, b"alpha": _UPPER + _LOWER, b"blank": b" \t", b"cntrl": bytes(range(0x20)) + b"\x7f",
    b"digit": _DIGIT, b"graph": _PRINTABLE[1:], b"lower": _LOWER, b"print": _PRINTABLE,
    b"punct": bytes(byte for byte in _PRINTABLE[1:] if byte not in _ALNUM), b"space": b" \t\n\r\v\f",
    b"upper": _UPPER, b"xdigit": _DIGIT + b"abcdefABCDEF",
}  # fmt: skip


class _Malformed(Exception):
    """The pattern is malformed, so it matches nothing."""


class _Item:
    """One item of a pattern: it matches one of some bytes, or, if it repeats, any number of them.

    With `skips_slash`, the item and the slash after it may also match nothing, as in `**/`.
    """

    def __init__(self, allowed_bytes: bytes, *, repeats: bool = False, skips_slash: bool = False) -> None:
        self.allowed_bytes = allowed_bytes
        self.repeats = repeats
        self.skips_slash = skips_slash


def matches(pattern: str, text: str, *, ignores_case: bool = False) -> bool:
    """Return True if a pattern matches a whole text; like git, this ignores case in ASCII only."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        items = _parse(pattern.encode("utf-8", "surrogateescape"), ignores_case=ignores_case)
    except _Malformed:
        return False
    end = len(items)
    # For each index of an item, the indexes that can be reached from it without matching a byte.
    reachable: list[set[int]] = [{index} for index in range(end + 1)]
    for index in range(end - 1, -1, -1):
        if items[index].repeats:
            reachable[index] |= reachable[index + 1]
        if items[index].skips_slash:
            reachable[index] |= reachable[index + 2]
    current = reachable[0]
    for byte in data.lower() if ignores_case else data:
        following: set[int] = set()
        for index in current:
            if index < end and byte in items[index].allowed_bytes:
                following |= reachable[index + 1]
                if items[index].repeats:
                    following.add(index)
        if not following:
            return False
        current = following
    return end in current


def _parse(pattern: bytes, *, ignores_case: bool) -> list[_Item]:
    items: list[_Item] = []
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        if byte == _STAR:
            after = at
            while pattern[after : after + 1] == b"*":
                after += 1
            items.append(_stars(pattern, at, after))
            at = after
        elif byte == _OPEN:
            bracket = _Bracket(pattern, at + 1, ignores_case=ignores_case)
            items.append(_Item(bracket.allowed_bytes()))
            at = bracket.end
        elif byte == _QUESTION_MARK:
            items.append(_Item(_NOT_SLASH))
            at += 1
        else:
            if byte == _BACKSLASH:
                at += 1
                if at == len(pattern):
                    raise _Malformed
            # An escaped letter keeps its case even if case is ignored: git's own oversight.
            letter = pattern[at : at + 1]
            items.append(_Item(letter.lower() if ignores_case and byte != _BACKSLASH else letter))
            at += 1
    return items


def _stars(pattern: bytes, start: int, end: int) -> _Item:
    """Return the item for `pattern[start:end]`, all stars; only two or more between slashes match slashes."""
    rest = pattern[end : end + 2]
    is_after_slash = start == 0 or pattern[start - 1] == _SLASH
    matches_slashes = end - start > 1 and is_after_slash and (rest[:1] in (b"", b"/") or rest == b"\\/")
    allowed_bytes = _ANY_BYTE if matches_slashes else _NOT_SLASH
    return _Item(allowed_bytes, repeats=True, skips_slash=matches_slashes and rest[:1] == b"/")


class _Bracket:
    """The bytes that `[…]` matches, read from after its opening bracket to `end`, after the closing one."""

    def __init__(self, pattern: bytes, start: int, *, ignores_case: bool) -> None:
        self._pattern = pattern
        self._ignores_case = ignores_case
        self._members: set[int] = set()
        self._range_start = 0  # the byte before, if it can begin a range
        self._is_negated = pattern[start : start + 1] in (b"!", b"^")
        self.end = start + self._is_negated
        self._read_member()  # a closing bracket that comes first is a member
        while self._byte() != _CLOSE:
            self._read_member()
        self.end += 1

    def allowed_bytes(self) -> bytes:
        """Return the bytes that match; a slash never does."""
        return bytes(byte for byte in _NOT_SLASH if (byte in self._members) != self._is_negated)

    def _byte(self) -> int:
        if self.end >= len(self._pattern):
            raise _Malformed
        return self._pattern[self.end]

    def _unescaped_byte(self) -> int:
        if self._byte() == _BACKSLASH:
            self.end += 1
        return self._byte()

    def _read_member(self) -> None:
        """Read one byte, range or `[:class:]`."""
        following = self._pattern[self.end + 1 : self.end + 2]
        if self._byte() == ord("-") and self._range_start and following not in (b"", b"]"):
            self._read_range()
        elif self._byte() != _OPEN or following != b":" or not self._read_class():
            self._range_start = self._unescaped_byte()
            self._members.add(self._range_start)
        self.end += 1

    def _read_range(self) -> None:
        self.end += 1
        first, last = self._range_start, self._unescaped_byte()
        self._members.update(range(first, last + 1))
        if self._ignores_case:
            self._members.update(byte for byte in _LOWER if first <= byte - 32 <= last)
        self._range_start = 0

    def _read_class(self) -> bool:
        """Read `[:class:]`; return False, and read nothing, if the bracket is an ordinary one."""
        end = self._pattern.find(b"]", self.end + 2)
        if end < 0:
            raise _Malformed
        name = self._pattern[self.end + 2 : end]
        if not name.endswith(b":"):
            return False
        members = _CLASSES.get(name[:-1])
        if members is None:
            raise _Malformed
        self._members.update(members + _LOWER if self._ignores_case and members == _UPPER else members)
        self.end, self._range_start = end, 0
        return True


# What the records of a project's files leave out: what tools make again by themselves, and what .gitignore files name.
#
# Safety does not depend on these rules: a file that a command changes or deletes gets its record and its backup even if
# it is ignored.

# Tools compare what is in these directories with what it was made from. So any version is right, or is made again.
_CACHES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
# Directories with these names: the insides of repositories, packages, virtual environments, caches.
_SKIPPED = _CACHES | frozenset({
    ".git", ".hg", ".svn", ".bzr", ".jj",
    "node_modules", "bower_components", ".pnpm-store", ".yarn", ".venv", "venv", ".tox", ".nox", ".eggs",
    ".cache", ".hypothesis", ".ipynb_checkpoints", ".gradle", ".terraform", ".parcel-cache", ".turbo", ".direnv",
})  # fmt: skip
_STAGING_PREFIX = ".fumehood-"  # of a directory that an apply uses for a moment
# A directory with one of these files is a virtual environment, or declares itself a cache.
MARKER_FILES = ("pyvenv.cfg", "CACHEDIR.TAG")

# Limits on what a .gitignore can cost: what exceeds them is not ignored.
MAX_IGNORE_FILE_SIZE = 64 << 10
_MAX_PATTERNS = 500
_LONGEST_LINE = 300
_MAX_DOUBLE_STARS = 3


def is_skipped(name: str) -> bool:
    """Return True if a directory is left out because of its name."""
    return name in _SKIPPED or name.startswith(_STAGING_PREFIX)


def lies_in_skipped(directory: str) -> bool:
    """Return True if a directory, or one above it, is left out because of its name."""
    return any(map(is_skipped, set(directory.split("/"))))


def skipped_directory_of(path: str) -> str:
    """Return the highest directory above a path that is left out because of its name, or ""."""
    names = path.split("/")[:-1]
    return next(("/".join(names[: n + 1]) for n, name in enumerate(names) if is_skipped(name)), "")


def lies_in_cache(path: str) -> bool:
    """Return True if a path is a cache whose tool checks what is in it, or lies in one."""
    return not _CACHES.isdisjoint(path.split("/"))


class IgnoreRules:
    """The patterns of one .gitignore file, for paths relative to its directory.

    They may have comments, `!`, a slash at the beginning, in the middle or at the end, `*`, `?`, `[…]`, `**` and
    backslashes. `.git/info/exclude`, a person's global excludes, and the files that git tracks are not considered.
    """

    def __init__(self, text: str) -> None:
        name_patterns: list[tuple[int, _IgnorePattern]] = []
        path_patterns: list[tuple[int, _IgnorePattern]] = []
        for number, line in enumerate(text.split("\n")):
            pattern = _parse_line(line)
            if pattern is not None and len(name_patterns) + len(path_patterns) < _MAX_PATTERNS:
                (path_patterns if pattern.is_for_paths else name_patterns).append((number, pattern))
        self._for_names, self._for_paths = _LastMatch(name_patterns), _LastMatch(path_patterns)

    def ignores(self, path: str, *, is_directory: bool) -> bool | None:
        """Return what the last pattern that matches a path says, or None if no pattern matches."""
        end = "/" if is_directory else ""
        by_name = self._for_names.find(path.rpartition("/")[2] + end)
        by_path = self._for_paths.find(path + end)
        line_number, is_included = max(by_name, by_path)
        return None if line_number < 0 else not is_included


class _IgnorePattern:
    """A line of a .gitignore file; `is_included` is for lines with `!`, which name what is not ignored after all."""

    def __init__(self, regex: str, *, is_for_paths: bool, is_included: bool) -> None:
        self.regex = regex
        self.is_for_paths = is_for_paths
        self.is_included = is_included


class _LastMatch:
    """Finds the last of some patterns that matches: they are one expression, in which the last comes first."""

    def __init__(self, patterns: list[tuple[int, _IgnorePattern]]) -> None:
        self._results = [(line_number, pattern.is_included) for line_number, pattern in reversed(patterns)]
        self._regex: re.Pattern[str] | None = None
        if patterns:
            import re

            self._regex = re.compile("|".join(f"({each.regex})" for _, each in reversed(patterns)), re.DOTALL)

    def find(self, text: str) -> tuple[int, bool]:
        """Return the line number of the last pattern that matches, or -1, and its `is_included`."""
        match = self._regex.fullmatch(text) if self._regex is not None else None
        if match is None or match.lastindex is None:
            return -1, False
        return self._results[match.lastindex - 1]


def _parse_line(line: str) -> _IgnorePattern | None:
    """Return the pattern of a line, or None if it has none or exceeds a limit."""
    line = line.rstrip("\r")
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    is_included = line.startswith("!")
    line = line.removeprefix("!")
    only_directories = line.endswith("/")
    line = line.removesuffix("/")
    is_comment = line.startswith("#") and not is_included
    if not line or is_comment or len(line) > _LONGEST_LINE or line.count("**") > _MAX_DOUBLE_STARS:
        return None
    # Expressions for the names before, between and after each `**`.
    segments: list[str] = [""]
    for name in line.removeprefix("/").split("/"):
        if name == "**":
            segments.append("")
        elif (name_regex := _name_regex(name)) is not None:
            segments[-1] += f"{name_regex}/"
        else:
            return None
    *before_last, last = segments
    # What lies between two `**` is right at the first place where it matches, as in `_name_regex`.
    regex = "".join(before_last[:1]) + "".join(f"(?>(?:[^/]+/)*?{segment})" for segment in before_last[1:])
    if before_last:
        regex += "(?:.*/)?" if last else ".+"
    regex += last.removesuffix("/") + ("/" if only_directories else "/?")
    return _IgnorePattern(regex, is_for_paths="/" in line, is_included=is_included)


def _name_regex(name: str) -> str | None:
    """Return an expression for one name of a pattern, or None if a `[…]` in it makes no sense.

    Its time grows only in proportion to the text on which it is tried.
    """
    pieces = [""]  # before, between and after the stars
    at = 0
    while at < len(name):
        letter = name[at]
        if letter == "*":
            pieces.append("")
        elif letter == "?":
            pieces[-1] += "[^/]"
        elif letter == "[" and (end := name.find("]", at + (3 if name[at + 1 : at + 2] in ("!", "^") else 2))) > 0:
            bracket_regex = _bracket_regex(name[at + 1 : end])
            if bracket_regex is None:
                return None
            pieces[-1] += bracket_regex
            at = end
        else:
            if letter == "\\" and at + 1 < len(name):
                at += 1
            pieces[-1] += _letter_regex(name[at])
        at += 1
    if len(pieces) == 1:
        return pieces[0]
    # A piece between two stars is right at the first place where it matches: `(?>…)` never tries another one.
    middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1] if piece)
    return f"{pieces[0]}{middle}[^/]*{pieces[-1]}"


def _bracket_regex(inside: str) -> str | None:
    """Return an expression for `[…]`, or None if it makes no sense."""
    is_negated = inside[:1] in ("!", "^")
    letters = inside[1:] if is_negated else inside
    for index in range(1, len(letters) - 1):
        if letters[index] == "-" and letters[index - 1] > letters[index + 1]:
            return None
    if "--" in letters or "\\" in letters or not letters:
        return None
    escaped = "".join(letter if letter == "-" else _letter_regex(letter) for letter in letters)
    return f"(?!/)[{'^' if is_negated else ''}{escaped}]"


def _letter_regex(letter: str) -> str:
    return letter if letter.isalnum() or letter in "_/ " or ord(letter) > 127 else f"\\{letter}"
