"""Git's own glob patterns for paths, branches and addresses, as its `wildmatch` reads them.

`*` and `?` stop at a slash, `**` between slashes does not. Takes time in proportion to pattern times text, whatever
both are: a command can choose the text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Tell whether a pattern matches a whole text; case is ignored as git does it, in ASCII alone."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        tokens = _tokens(pattern.encode("utf-8", "surrogateescape"), ignores_case=ignores_case)
    except _Malformed:
        return False
    entered = _entered(tokens)
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


def _entered(tokens: Sequence[_Token]) -> list[set[int]]:
    """Return for each place those that one is at on coming there, before anything is taken."""
    entered: list[set[int]] = [{len(tokens)}]
    for at in range(len(tokens) - 1, -1, -1):
        places = {at}
        if tokens[at].repeats:
            places |= entered[0]
        if tokens[at].skips_slash:
            places |= entered[1]
        entered.insert(0, places)
    return entered


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
