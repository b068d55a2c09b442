"""Git's own glob patterns for paths, branches and addresses, as its `wildmatch` reads them, and `.gitignore` files.

`*` and `?` stop at a slash, `**` between slashes does not. Matching takes time in proportion to pattern times text,
whatever both are: a command can choose the text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

_SLASH, _STAR, _BACKSLASH, _OPEN, _CLOSE = b"/*\\[]"
_ANY = bytes(range(256))
_NOT_SLASH = _ANY.replace(b"/", b"")
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
    """A pattern that matches nothing."""


class _Token:
    """The bytes that one place of a pattern takes: one of them, or as many as there are."""

    def __init__(self, taken: bytes, *, repeats: bool = False, skips_slash: bool = False) -> None:
        self.taken = taken
        self.repeats = repeats
        self.skips_slash = skips_slash  # `**/` may also be nothing at all


def matches(pattern: str, text: str, *, ignores_case: bool = False) -> bool:
    """Return True if a pattern matches a whole text; case is ignored as git does it, in ASCII alone."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        tokens = _tokens(pattern.encode("utf-8", "surrogateescape"), ignores_case=ignores_case)
    except _Malformed:
        return False
    # For each place those that one is at on coming there, before anything is taken.
    entered: list[set[int]] = [{len(tokens)}]
    for at in range(len(tokens) - 1, -1, -1):
        repeated = entered[0] if tokens[at].repeats else set()
        entered.insert(0, {at} | repeated | (entered[1] if tokens[at].skips_slash else set()))
    places = entered[0]
    for byte in data.lower() if ignores_case else data:
        after: set[int] = set()
        for at in places:
            if at < len(tokens) and byte in tokens[at].taken:
                after |= entered[at + 1]
                if tokens[at].repeats:
                    after.add(at)
        if not after:
            return False
        places = after
    return len(tokens) in places


def _tokens(pattern: bytes, *, ignores_case: bool) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        if byte == _STAR:
            after = at
            while pattern[after : after + 1] == b"*":
                after += 1
            tokens.append(_star(pattern, at, after))
            at = after
        elif byte == _OPEN:
            choice = _Choice(pattern, at + 1, ignores_case=ignores_case)
            tokens.append(_Token(choice.taken()))
            at = choice.end
        elif byte == ord("?"):
            tokens.append(_Token(_NOT_SLASH))
            at += 1
        else:
            if byte == _BACKSLASH:
                at += 1
                if at == len(pattern):
                    raise _Malformed
            # An escaped letter keeps its case even where case is ignored: git's own oversight.
            letter = pattern[at : at + 1]
            tokens.append(_Token(letter.lower() if ignores_case and byte != _BACKSLASH else letter))
            at += 1
    return tokens


def _star(pattern: bytes, at: int, after: int) -> _Token:
    """Read the stars from one place up to another: only two or more between slashes pass over slashes."""
    rest = pattern[after : after + 2]
    is_deep = after - at > 1 and (at == 0 or pattern[at - 1] == _SLASH) and (rest[:1] in (b"", b"/") or rest == b"\\/")
    return _Token(_ANY if is_deep else _NOT_SLASH, repeats=True, skips_slash=is_deep and rest[:1] == b"/")


class _Choice:
    """The bytes that `[…]` takes, read from behind its bracket."""

    def __init__(self, pattern: bytes, at: int, *, ignores_case: bool) -> None:
        self._pattern = pattern
        self._ignores_case = ignores_case
        self._chosen: set[int] = set()
        self._before = 0  # what a range may begin with
        self._is_negated = pattern[at : at + 1] in (b"!", b"^")
        self.end = at + self._is_negated
        self._member()  # a bracket that comes first is one of them
        while self._byte() != _CLOSE:
            self._member()
        self.end += 1

    def taken(self) -> bytes:
        """Return the bytes; a slash is never among them."""
        return bytes(byte for byte in _NOT_SLASH if (byte in self._chosen) != self._is_negated)

    def _byte(self) -> int:
        if self.end >= len(self._pattern):
            raise _Malformed
        return self._pattern[self.end]

    def _escaped(self) -> int:
        if self._byte() == _BACKSLASH:
            self.end += 1
        return self._byte()

    def _member(self) -> None:
        """Read one byte, range or `[:class:]`."""
        following = self._pattern[self.end + 1 : self.end + 2]
        if self._byte() == ord("-") and self._before and following not in (b"", b"]"):
            self._range()
        elif self._byte() != _OPEN or following != b":" or not self._named_class():
            self._before = self._escaped()
            self._chosen.add(self._before)
        self.end += 1

    def _range(self) -> None:
        self.end += 1
        first, last = self._before, self._escaped()
        self._chosen.update(range(first, last + 1))
        if self._ignores_case:
            self._chosen.update(byte for byte in _LOWER if first <= byte - 32 <= last)
        self._before = 0

    def _named_class(self) -> bool:
        end = self._pattern.find(b"]", self.end + 2)
        if end < 0:
            raise _Malformed
        name = self._pattern[self.end + 2 : end]
        if not name.endswith(b":"):
            return False  # an ordinary bracket
        members = _CLASSES.get(name[:-1])
        if members is None:
            raise _Malformed
        self._chosen.update(members + _LOWER if self._ignores_case and members == _UPPER else members)
        self.end, self._before = end, 0
        return True


# What a scan leaves out: what tools make again by themselves, and what .gitignore files name.
#
# Nothing depends on these rules for safety: a file that a command changes or deletes gets its record and its
# backup whether it is ignored or not.

# What tools write here is right in any version or made again: they check it against what it was made from.
CACHES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
# Directories with these names: the insides of repositories, packages, virtual environments, caches.
SKIPPED = CACHES | frozenset({
    ".git", ".hg", ".svn", ".bzr", ".jj",
    "node_modules", "bower_components", ".pnpm-store", ".yarn", ".venv", "venv", ".tox", ".nox", ".eggs",
    ".cache", ".hypothesis", ".ipynb_checkpoints", ".gradle", ".terraform", ".parcel-cache", ".turbo", ".direnv",
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
    """Return True if a directory's name alone says that a scan leaves it out."""
    return name in SKIPPED or name.startswith(OURS)


def lies_in_skipped(parent: str) -> bool:
    """Return True if a directory is one that a scan leaves out, or lies in one."""
    return any(map(is_skipped, set(parent.split("/"))))


def lies_in_cache(path: str) -> bool:
    """Return True if a path is a cache whose owner checks what is in it, or lies in one."""
    return not CACHES.isdisjoint(path.split("/"))


class IgnoreRules:
    """The patterns of one .gitignore file, for paths relative to the directory it lies in.

    Read are comments, `!`, a slash at the beginning, in the middle or at the end, `*`, `?`, `[…]`, `**` and
    backslashes. Not read: `.git/info/exclude`, a person's global excludes, and what git itself keeps track of.
    """

    def __init__(self, text: str) -> None:
        names: list[tuple[int, bool, str]] = []
        paths: list[tuple[int, bool, str]] = []
        for number, line in enumerate(text.split("\n")):
            pattern = _pattern(line)
            if pattern is not None and len(names) + len(paths) < _MOST_PATTERNS:
                is_path, wanted, regex = pattern
                (paths if is_path else names).append((number, wanted, regex))
        self._names, self._paths = _Either(names), _Either(paths)

    def verdict(self, path: str, *, is_directory: bool) -> bool | None:
        """Return True if a path is ignored, or None where no pattern speaks of it; the last one that does counts."""
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
        match = self._regex.fullmatch(text) if self._regex is not None else None
        if match is None or match.lastindex is None:
            return -1, False
        return self._meanings[match.lastindex - 1]


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
    between: list[str] = [""]  # what stands before, between and after the `**`
    for part in line.removeprefix("/").split("/"):
        if part == "**":
            between.append("")
        elif (regex := _component(part)) is not None:
            between[-1] += f"{regex}/"
        else:
            return None
    *before, last = between
    # Between two of them it is right where it is found first, as between two stars.
    whole = "".join(before[:1]) + "".join(f"(?>(?:[^/]+/)*?{names})" for names in before[1:])
    if before:
        whole += "(?:.*/)?" if last else ".+"
    return "/" in line, is_wanted, whole + last.removesuffix("/") + ("/" if only_directories else "/?")


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
