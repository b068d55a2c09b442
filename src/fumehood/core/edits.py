"""Edits of texts: the hunks between two versions, both changes of a third merged, and what a client's edit will make.

Comparing takes bounded time, whatever the texts; names are written as git does. Of a client's edit of its own, told
from the input of its tool, only what is sure is told.
"""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    Step = tuple[str, int, int, int, int]  # what happens, to these lines of the old, by these of the new
    # What a file will hold, by what it holds now (None: there is no file); None where that can't be told.
    Becomes = Callable[[bytes | None], bytes | None]

_CONTEXT = 3
_MOST_WORK = 10_000_000  # pairs of equal lines looked at: a few seconds


def hunks(old: str, new: str) -> Iterator[str]:
    """Yield the hunks that turn one text into the other, line by line."""
    before, after = _lines(old), _lines(new)
    if before == after:
        return
    if not before or not after:
        yield f"@@ -{_range(0, len(before))} +{_range(0, len(after))} @@\n"
        yield from _signed("-" if before else "+", before or after)
        return
    for group in _groups(before, after):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for act, start, end, new_start, new_end in group:
            if act == "equal":
                yield from _signed(" ", before[start:end])
            else:
                yield from _signed("-", before[start:end])
                yield from _signed("+", after[new_start:new_end])


def with_hunks(old: str, new: str, wanted: Collection[int]) -> str:
    """Return the first text with some of the hunks that turn it into the second, counted from 0."""
    before, after = _lines(old), _lines(new)
    if not before or not after:
        return new if wanted else old
    lines: list[str] = []
    at = 0
    for number, group in enumerate(_groups(before, after)):
        for act, start, end, new_start, new_end in group:
            is_taken = act != "equal" and number in wanted
            lines += before[at:start] + (after[new_start:new_end] if is_taken else before[start:end])
            at = end
    return "".join(lines + before[at:])


def _groups(before: list[str], after: list[str]) -> Iterable[list[Step]]:
    """Return what is not equal, with a few lines around it."""
    import difflib

    matcher = difflib.SequenceMatcher[str]()
    matcher.get_opcodes = lambda: list(_steps(before, after))  # type: ignore[method-assign, arg-type]
    return matcher.get_grouped_opcodes(_CONTEXT)


def equal_lines(old: list[str], new: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield where the same lines stand in two texts, and how many."""
    for act, start, end, new_start, _ in _steps(old, new):
        if act == "equal":
            yield start, new_start, end - start


def quoted(name: str) -> str:
    """Write a path so that it can't end a line or be misread: in quotes, odd bytes as octals, where there are any."""
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    letters = (
        f"\\{letter}" if letter in '"\\'
        else letter if letter.isprintable()
        else "".join(f"\\{byte:03o}" for byte in letter.encode(errors="surrogateescape"))
        for letter in name
    )  # fmt: skip
    return f'"{"".join(letters)}"'


def _lines(text: str) -> list[str]:
    """Split at newlines, and at nothing else that Python takes for the end of a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _range(start: int, end: int) -> str:
    """Write the lines of a hunk: counted from one, and from the line before where there are none."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _signed(sign: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _steps(old: list[str], new: list[str]) -> Iterator[Step]:
    """Yield what is equal and what is not; most of two versions is equal, at their beginning and their end."""
    most = min(len(old), len(new))
    head = next((n for n in range(most) if old[n] != new[n]), most)
    tail = next((n for n in range(most - head) if old[-1 - n] != new[-1 - n]), most - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    if head:
        yield "equal", 0, head, 0, head
    for act, start, end, new_start, to in _compared(old[head:old_end], new[head:new_end]):
        yield act, start + head, end + head, new_start + head, to + head
    if tail:
        yield "equal", old_end, len(old), new_end, len(new)


class _TooMuchError(Exception):
    """Two texts are alike in so many ways that the best of them would take too long to find."""


def _compared(old: list[str], new: list[str]) -> Sequence[Step]:
    """Compare what is left; where that would take too long, all of it counts as replaced, which is no less true."""
    if not old or not new:
        return [("insert" if new else "delete", 0, len(old), 0, len(new))] if old or new else []
    import difflib
    from itertools import accumulate

    matcher = difflib.SequenceMatcher(None, old, new)
    stands_at: dict[str, list[int]] = matcher.b2j  # type: ignore[attr-defined]
    pairs = list(accumulate((1 + len(stands_at.get(line, ())) for line in old), initial=0))
    find, work = matcher.find_longest_match, 0

    def find_bounded(alo: int, ahi: int, blo: int, bhi: int) -> difflib.Match:
        """Count the work: texts made for it keep the original busy for hours."""
        nonlocal work
        work += pairs[ahi] - pairs[alo]
        if work > _MOST_WORK:
            raise _TooMuchError
        return find(alo, ahi, blo, bhi)

    matcher.find_longest_match = find_bounded  # type: ignore[method-assign, assignment]
    try:
        return matcher.get_opcodes()
    except _TooMuchError:
        return [("replace", 0, len(old), 0, len(new))]


MARKS = ("<<<<<<< ", "=======", ">>>>>>> ")  # begin the lines around what two versions have in one place


def merged(base: str | None, one: str, other: str, names: tuple[str, str]) -> tuple[str, int]:
    """Bring two versions of a text together; returns it with the number of places where a person must choose.

    Without what both were made from, each place where they differ is such a place.
    """
    ours, theirs = _lines(one), _lines(other)
    if base is None:
        pieces = [(act == "equal", ours[i:j], theirs[k:n]) for act, i, j, k, n in _steps(ours, theirs)]
        blocks = [(a, a, b) if same else (None, a, b) for same, a, b in pieces]
    else:
        blocks = list(_aligned(_lines(base), ours, theirs))
    lines: list[str] = []
    open_places = 0
    for before, left, right in blocks:
        if right in (left, before):
            lines += left
        elif left == before:
            lines += right
        else:
            open_places += 1
            lines += [f"{MARKS[0]}{names[0]}\n", *_ended(left), f"{MARKS[1]}\n"]
            lines += [*_ended(right), f"{MARKS[2]}{names[1]}\n"]
    return "".join(lines), open_places


def _ended(lines: list[str]) -> list[str]:
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]


def _aligned(base: list[str], one: list[str], other: list[str]) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Cut three texts where all of them agree, and yield the pieces between as well."""
    places = []
    for text in (one, other):
        here: dict[int, int] = {}
        for start, new_start, count in equal_lines(base, text):
            here.update(zip(range(start, start + count), range(new_start, new_start + count), strict=True))
        places.append(here)
    at = mine = theirs = 0
    for number in sorted(places[0].keys() & places[1].keys()):
        first, second = places[0][number], places[1][number]
        if (at, mine, theirs) != (number, first, second):
            yield base[at:number], one[mine:first], other[theirs:second]
        yield base[number : number + 1], one[first : first + 1], other[second : second + 1]
        at, mine, theirs = number + 1, first + 1, second + 1
    yield base[at:], one[mine:], other[theirs:]


# What a client's own edit is about to do to files.


class Planned(Value):
    """One file that an edit names: what it will hold, as far as that can be told, or that it goes."""

    path: str
    becomes: Becomes | None = None
    is_removed: bool = False


def written(content: str) -> Becomes:
    """Tell what a file holds that is written whole."""
    return lambda _old: content.encode(errors="surrogatepass")


def replaced(old: str, new: str, *, everywhere: bool) -> Becomes:
    """Tell what a file holds once a piece of it is another; nothing where that piece is not there exactly."""
    before, after = (text.encode(errors="surrogatepass") for text in (old, new))

    def becomes(content: bytes | None) -> bytes | None:
        if not before:
            return after if not content else None
        count = (content or b"").count(before)
        if content is None or not count or (count > 1 and not everywhere):
            return None
        return content.replace(before, after)

    return becomes


# ---- Codex's patches, read as its own parser does: where this one is in doubt, it says so.

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ADD, _DELETE, _UPDATE, _MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
_HEADERS = (_ADD, _DELETE, _UPDATE)
_LAST_LINES = "*** End of File"

# Exactly what Codex itself takes for a patch in place of running it. In each of these a shell would expand nothing, so
# that even one that ran the line would do no more than give the same text to a program of that name.
_IN_SHELL = (
    r"(?:cd (?P<directory>[A-Za-z0-9_./][A-Za-z0-9_./-]*) && )?apply_?patch"
    r" <<(?P<quote>['\"])(?P<end>[A-Z]+)(?P=quote)\n(?P<patch>.*)\n(?P=end)\n?"
)


def patch_in(line: str) -> tuple[str, str] | None:
    """Return the patch that a shell line is, for Codex, and the directory it is for ("": that of the call)."""
    import re

    match = re.fullmatch(_IN_SHELL, line, re.DOTALL)
    # A line that a reader of shells could take for the end of the text leaves a doubt.
    if match is None or any(line.strip().startswith(match["end"]) for line in match["patch"].split("\n")):
        return None
    return match["patch"], match["directory"] or ""


def patched(text: str) -> list[Planned] | None:
    """Return what a patch does to each file; None where it is not understood."""
    lines = [line.removesuffix("\r") for line in text.strip().split("\n")]
    if len(lines) < 2 or lines[0].strip() != _BEGIN or lines[-1].strip() != _END:
        return None
    planned: list[Planned] = []
    at = 1
    while at < len(lines) - 1:
        header, end = lines[at].strip(" \t"), at + 1  # what else is no letter may count as one there
        # With a blank before it, what looks like a header is a line of the file that is updated.
        trimmed = str.rstrip if header.startswith(_UPDATE) else str.strip
        while end < len(lines) - 1 and not trimmed(lines[end]).startswith(_HEADERS):
            end += 1
        files = _planned(header, lines[at + 1 : end])
        if files is None:
            return None
        planned += files
        at = end
    return planned or None


def _planned(header: str, body: Sequence[str]) -> list[Planned] | None:
    """Return what one part of a patch does."""
    mark = next((mark for mark in _HEADERS if header.startswith(mark)), "")
    path = header[len(mark) :]
    if not mark or not path.isprintable() or not path:
        return None
    if mark == _ADD:
        if not all(line.startswith("+") for line in body):
            return None
        return [Planned(path=path, becomes=written("".join(f"{line[1:]}\n" for line in body)))]
    if mark == _DELETE:
        return None if any(line.strip() for line in body) else [Planned(path=path, is_removed=True)]
    return _update(path, body)


def _update(path: str, body: Sequence[str]) -> list[Planned] | None:
    """Return what a part of a patch does that changes a file, and perhaps moves it."""
    moves = [line.rstrip() for line in body if line.startswith(_MOVE)]
    if any(line[:1] not in ("", " ", "+", "-", "@") and line.rstrip() not in (_LAST_LINES, *moves) for line in body):
        return None
    if not moves:
        return [Planned(path=path, becomes=_updated(body))]
    target = moves[0][len(_MOVE) :]
    if len(moves) > 1 or body[0].rstrip() != moves[0] or not target.isprintable() or not target:
        return None
    # What the second will hold is made of what is in the first one.
    return [Planned(path=path, is_removed=True), Planned(path=target)]


def _updated(body: Sequence[str]) -> Becomes:
    """Tell what a file holds once the pieces of a patch are in it; nothing where one does not fit exactly."""

    def becomes(content: bytes | None) -> bytes | None:
        if content is None or b"\r" in content:
            return None
        try:
            lines = content.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            return None
        at, result = 0, []
        for context, old, new in _pieces(body):
            start = _place_of(lines, [context], at) + 1 if context else at
            place = _place_of(lines, old, start) if old else len(lines)
            if (context and not start) or place < 0:
                return None
            result += [*lines[at:place], *new]
            at = place + len(old)
        return "\n".join([*result, *lines[at:], ""]).encode()

    return becomes


def _pieces(body: Sequence[str]) -> list[tuple[str, list[str], list[str]]]:
    """Return the pieces of an update: the line after which each is looked for, what it takes out, what it puts in."""
    pieces: list[tuple[str, list[str], list[str]]] = []
    for line in body:
        if line.rstrip() == "@@" or line.startswith("@@ "):
            pieces.append((line[3:].rstrip(), [], []))
        elif line.rstrip() != _LAST_LINES:
            if not pieces:
                pieces.append(("", [], []))
            _, old, new = pieces[-1]
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
    return pieces


def _place_of(lines: Sequence[str], wanted: Sequence[str], start: int) -> int:
    """Return where lines stand, from a place on; -1 where they do not."""
    last = len(lines) - len(wanted)
    return next((at for at in range(start, last + 1) if list(lines[at : at + len(wanted)]) == list(wanted)), -1)
