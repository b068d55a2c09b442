"""Compare and merge versions of a text: the hunks between two versions, and the merge of two with their base.

Comparing takes bounded time, whatever the texts are. Paths are quoted as git does.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    # An opcode of `difflib`: "equal", "replace", "delete" or "insert"; the old lines' start and end, the new lines'.
    OpCode = tuple[str, int, int, int, int]

_CONTEXT_LINES = 3
_MOST_WORK = 10_000_000  # pairs of equal lines: a few seconds


def hunks(old: str, new: str) -> Iterator[str]:
    """Yield the lines of the hunks that turn the old text into the new one."""
    before, after = _lines(old), _lines(new)
    if before == after:
        return
    if not before or not after:
        yield f"@@ -{_hunk_range(0, len(before))} +{_hunk_range(0, len(after))} @@\n"
        yield from _prefixed("-" if before else "+", before or after)
        return
    for group in _opcode_groups(before, after):
        first, last = group[0], group[-1]
        yield f"@@ -{_hunk_range(first[1], last[2])} +{_hunk_range(first[3], last[4])} @@\n"
        for action, start, end, new_start, new_end in group:
            if action == "equal":
                yield from _prefixed(" ", before[start:end])
            else:
                yield from _prefixed("-", before[start:end])
                yield from _prefixed("+", after[new_start:new_end])


def text_with_hunks(old: str, new: str, numbers: Collection[int]) -> str:
    """Return the old text with only the hunks of these numbers, counted from 0, of those that make it the new one."""
    before, after = _lines(old), _lines(new)
    if not before or not after:
        return new if numbers else old
    lines: list[str] = []
    copied = 0
    for number, group in enumerate(_opcode_groups(before, after)):
        for action, start, end, new_start, new_end in group:
            is_applied = action != "equal" and number in numbers
            lines += before[copied:start] + (after[new_start:new_end] if is_applied else before[start:end])
            copied = end
    return "".join(lines + before[copied:])


def _opcode_groups(before: list[str], after: list[str]) -> Iterable[list[OpCode]]:
    """Return the opcodes of each hunk: the differences that are near each other, with a few equal lines around them."""
    import difflib

    matcher = difflib.SequenceMatcher[str]()
    matcher.get_opcodes = lambda: list(_opcodes(before, after))  # type: ignore[method-assign, arg-type]
    return matcher.get_grouped_opcodes(_CONTEXT_LINES)


def equal_lines(old: list[str], new: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks of equal lines: where one starts in the old and in the new text, and its length."""
    for action, start, end, new_start, _ in _opcodes(old, new):
        if action == "equal":
            yield start, new_start, end - start


def quote_path(path: str) -> str:
    """Return a path so that it can't end a line or be misread: if it needs it, in quotes, with odd bytes as octals."""
    if path.isprintable() and '"' not in path and "\\" not in path:
        return path
    letters = (
        f"\\{letter}" if letter in '"\\'
        else letter if letter.isprintable()
        else "".join(f"\\{byte:03o}" for byte in letter.encode(errors="surrogateescape"))
        for letter in path
    )  # fmt: skip
    return f'"{"".join(letters)}"'


def _lines(text: str) -> list[str]:
    """Split a text at newlines only; Python's `splitlines` would also split at other characters."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _hunk_range(start: int, end: int) -> str:
    """Return the lines of a hunk as its header has them: counted from 1; for no lines, the line before them."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _prefixed(sign: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _opcodes(old: list[str], new: list[str]) -> Iterator[OpCode]:
    """Yield the opcodes of two texts; only what lies between their equal beginning and end is compared in detail."""
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    if head:
        yield "equal", 0, head, 0, head
    for action, start, end, new_start, stop in _opcodes_in_bounded_time(old[head:old_end], new[head:new_end]):
        yield action, start + head, end + head, new_start + head, stop + head
    if tail:
        yield "equal", old_end, len(old), new_end, len(new)


class _TooMuchWorkError(Exception):
    """Two texts have so many equal lines that comparing them would take too long."""


def _opcodes_in_bounded_time(old: list[str], new: list[str]) -> Sequence[OpCode]:
    """Return the opcodes of two texts; if that would take too long, all lines count as replaced, which is true too."""
    if not old or not new:
        return [("insert" if new else "delete", 0, len(old), 0, len(new))] if old or new else []
    import difflib
    from itertools import accumulate

    matcher = difflib.SequenceMatcher(None, old, new)
    numbers_by_line: dict[str, list[int]] = matcher.b2j  # type: ignore[attr-defined]
    work_before = list(accumulate((1 + len(numbers_by_line.get(line, ())) for line in old), initial=0))
    find_longest_match, work = matcher.find_longest_match, 0

    def find_and_count(alo: int, ahi: int, blo: int, bhi: int) -> difflib.Match:
        """Count the work: texts that are written for it keep the original busy for hours."""
        nonlocal work
        work += work_before[ahi] - work_before[alo]
        if work > _MOST_WORK:
            raise _TooMuchWorkError
        return find_longest_match(alo, ahi, blo, bhi)

    matcher.find_longest_match = find_and_count  # type: ignore[method-assign, assignment]
    try:
        return matcher.get_opcodes()
    except _TooMuchWorkError:
        return [("replace", 0, len(old), 0, len(new))]


CONFLICT_MARKS = ("<<<<<<< ", "=======", ">>>>>>> ")  # the lines that begin so are around two versions of one place


def merge_texts(base: str | None, left: str, right: str, names: tuple[str, str]) -> tuple[str, int]:
    """Return the merge of two versions of a text, and the number of places where a person must choose.

    `base` is the text that both were made from. Without it, a person must choose wherever they differ.
    """
    left_lines, right_lines = _lines(left), _lines(right)
    blocks: Iterable[tuple[list[str] | None, list[str], list[str]]]
    if base is None:
        blocks = (
            (left_lines[i:j] if action == "equal" else None, left_lines[i:j], right_lines[k:n])
            for action, i, j, k, n in _opcodes(left_lines, right_lines)
        )
    else:
        blocks = _aligned_blocks(_lines(base), left_lines, right_lines)
    lines: list[str] = []
    conflicts = 0
    for base_block, left_block, right_block in blocks:
        if right_block in (left_block, base_block):
            lines += left_block
        elif left_block == base_block:
            lines += right_block
        else:
            conflicts += 1
            lines += [f"{CONFLICT_MARKS[0]}{names[0]}\n", *_with_newlines(left_block), f"{CONFLICT_MARKS[1]}\n"]
            lines += [*_with_newlines(right_block), f"{CONFLICT_MARKS[2]}{names[1]}\n"]
    return "".join(lines), conflicts


def _with_newlines(lines: list[str]) -> list[str]:
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]


def _aligned_blocks(
    base: list[str], left: list[str], right: list[str]
) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Cut three texts at each line that all of them have; yield these lines, and what lies between them."""
    # For each line of the base that a version has too: its number there.
    numbers_in_left, numbers_in_right = (
        {
            start + n: new_start + n
            for start, new_start, length in equal_lines(base, version) for n in range(length)
        }
        for version in (left, right)
    )  # fmt: skip
    base_at = left_at = right_at = 0
    for number in sorted(numbers_in_left.keys() & numbers_in_right.keys()):
        in_left, in_right = numbers_in_left[number], numbers_in_right[number]
        if (base_at, left_at, right_at) != (number, in_left, in_right):
            yield base[base_at:number], left[left_at:in_left], right[right_at:in_right]
        yield base[number : number + 1], left[in_left : in_left + 1], right[in_right : in_right + 1]
        base_at, left_at, right_at = number + 1, in_left + 1, in_right + 1
    yield base[base_at:], left[left_at:], right[right_at:]
