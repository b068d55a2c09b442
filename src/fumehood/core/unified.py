"""Write the difference of two texts as the hunks of a unified diff, in bounded time, and names as git does."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Step = tuple[str, int, int, int, int]  # what happens, to these lines of the old, by these of the new

_CONTEXT = 3
_MOST_WORK = 10_000_000  # pairs of equal lines looked at: a few seconds


def hunks(old: str, new: str) -> Iterator[str]:
    """Yield the hunks that turn one text into the other, line by line."""
    import difflib

    before, after = _lines(old), _lines(new)

    class Matched(difflib.SequenceMatcher[str]):
        """Groups the steps that were found here."""

        def get_opcodes(self) -> list[Step]:  # type: ignore[override]
            return list(_steps(before, after))

    if before == after:
        return
    for group in Matched().get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for act, start, end, new_start, new_end in group:
            if act == "equal":
                yield from _signed(" ", before[start:end])
            else:
                yield from _signed("-", before[start:end])
                yield from _signed("+", after[new_start:new_end])


def quoted(name: str) -> str:
    """Write a path so that it can't end a line or be misread: in quotes, odd bytes as octals, where there are any."""
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    return f'"{"".join(_letter(letter) for letter in name)}"'


def _letter(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(f"\\{byte:03o}" for byte in letter.encode(errors="surrogateescape"))


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
    import difflib
    from itertools import accumulate

    class Bounded(difflib.SequenceMatcher[str]):
        """Counts the work it does: texts made for it keep the original busy for hours."""

        b2j: dict[str, list[int]]  # where each line of the new text stands
        work = 0

        def find_longest_match(
            self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
        ) -> difflib.Match:
            end = len(old) if ahi is None else ahi
            self.work += pairs[end] - pairs[alo]
            if self.work > _MOST_WORK:
                raise _TooMuchError
            return super().find_longest_match(alo, ahi, blo, bhi)

    matcher = Bounded(None, old, new)
    pairs = list(accumulate((1 + len(matcher.b2j.get(line, ())) for line in old), initial=0))
    try:
        return matcher.get_opcodes()
    except _TooMuchError:
        return [("replace", 0, len(old), 0, len(new))]
