"""Edits of texts: the hunks between two versions, the merge of two versions, and what a client's own edit will do.

Comparing takes bounded time, whatever the texts are. Paths are quoted as git does. What a client's edit will do is
read from the input of its tool, and only what is certain is returned.
"""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    # An opcode of `difflib`: "equal", "replace", "delete" or "insert"; the old lines' start and end, the new lines'.
    OpCode = tuple[str, int, int, int, int]
    # Returns a file's new content for its content so far (None: there is no file), or None if that is not certain.
    MakeContent = Callable[[bytes | None], bytes | None]

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


# What a client's own edit is about to do to files.


class PlannedEdit(Value):
    """What an edit will do to one file: remove it, or make its new content, if that is known."""

    path: str
    make_content: MakeContent | None = None
    is_removed: bool = False


def content_writer(content: str) -> MakeContent:
    """Return a function for a file that is written as a whole."""
    return lambda _old: content.encode(errors="surrogatepass")


def piece_replacer(old: str, new: str, *, everywhere: bool) -> MakeContent:
    """Return a function for a file of which a piece is replaced, which must be there exactly; "" is an empty file."""
    before, after = (text.encode(errors="surrogatepass") for text in (old, new))

    def make_content(content: bytes | None) -> bytes | None:
        if not before:
            return after if not content else None
        count = (content or b"").count(before)
        if content is None or not count or (count > 1 and not everywhere):
            return None
        return content.replace(before, after)

    return make_content


# ---- Codex's patches, read as its own parser reads them. In doubt, nothing is returned.

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ADD, _DELETE, _UPDATE, _MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
_HEADERS = (_ADD, _DELETE, _UPDATE)
_END_OF_FILE = "*** End of File"

# Exactly the lines that Codex itself applies as a patch and does not run. A shell would expand nothing in them, so even
# if one ran such a line, it would only pass the same text to a program of that name.
_PATCH_LINE = (
    r"(?:cd (?P<directory>[A-Za-z0-9_./][A-Za-z0-9_./-]*) && )?apply_?patch"
    r" <<(?P<quote>['\"])(?P<end>[A-Z]+)(?P=quote)\n(?P<patch>.*)\n(?P=end)\n?"
)


def patch_in_shell_line(line: str) -> tuple[str, str] | None:
    """Return the patch in a shell line that Codex applies, and its directory ("": that of the call); else None."""
    import re

    match = re.fullmatch(_PATCH_LINE, line, re.DOTALL)
    # Another parser could take such a line for the end of the patch.
    if match is None or any(line.strip().startswith(match["end"]) for line in match["patch"].split("\n")):
        return None
    return match["patch"], match["directory"] or ""


def edits_of_patch(text: str) -> list[PlannedEdit] | None:
    """Return what a patch does to each file, or None if it is not understood."""
    lines = [line.removesuffix("\r") for line in text.strip().split("\n")]
    if len(lines) < 2 or lines[0].strip() != _BEGIN or lines[-1].strip() != _END:
        return None
    edits: list[PlannedEdit] = []
    at = 1
    while at < len(lines) - 1:
        header, end = lines[at].strip(" \t"), at + 1  # Codex may count any other blank as a letter of the path
        # With a blank before it, what looks like a header is a line of the file that is updated.
        strip = str.rstrip if header.startswith(_UPDATE) else str.strip
        while end < len(lines) - 1 and not strip(lines[end]).startswith(_HEADERS):
            end += 1
        section_edits = _edits_of_section(header, lines[at + 1 : end])
        if section_edits is None:
            return None
        edits += section_edits
        at = end
    return edits or None


def _edits_of_section(header: str, body: Sequence[str]) -> list[PlannedEdit] | None:
    """Return what one section of a patch does, or None if it is not understood."""
    action = next((action for action in _HEADERS if header.startswith(action)), "")
    path = header[len(action) :]
    if not action or not path.isprintable() or not path:
        return None
    if action == _ADD:
        if not all(line.startswith("+") for line in body):
            return None
        return [PlannedEdit(path=path, make_content=content_writer("".join(f"{line[1:]}\n" for line in body)))]
    if action == _DELETE:
        return None if any(line.strip() for line in body) else [PlannedEdit(path=path, is_removed=True)]
    return _edits_of_update(path, body)


def _edits_of_update(path: str, body: Sequence[str]) -> list[PlannedEdit] | None:
    """Return what a section does that changes a file and perhaps moves it, or None if it is not understood."""
    moves = [line.rstrip() for line in body if line.startswith(_MOVE)]
    if any(line[:1] not in ("", " ", "+", "-", "@") and line.rstrip() not in (_END_OF_FILE, *moves) for line in body):
        return None
    if not moves:
        return [PlannedEdit(path=path, make_content=_update_function(body))]
    target = moves[0][len(_MOVE) :]
    if len(moves) > 1 or body[0].rstrip() != moves[0] or not target.isprintable() or not target:
        return None
    # The content of the target is not known: it is made from the content of another file.
    return [PlannedEdit(path=path, is_removed=True), PlannedEdit(path=target)]


def _update_function(body: Sequence[str]) -> MakeContent:
    """Return a function for a file that a section of a patch changes; each piece must fit exactly."""

    def make_content(content: bytes | None) -> bytes | None:
        if content is None or b"\r" in content:
            return None
        try:
            lines = content.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            return None
        at, result = 0, []
        for context, old, new in _update_pieces(body):
            search_start = _find_lines(lines, [context], at) + 1 if context else at
            place = _find_lines(lines, old, search_start) if old else len(lines)
            if (context and not search_start) or place < 0:
                return None
            result += [*lines[at:place], *new]
            at = place + len(old)
        return "\n".join([*result, *lines[at:], ""]).encode()

    return make_content


def _update_pieces(body: Sequence[str]) -> list[tuple[str, list[str], list[str]]]:
    """Return the pieces of an update: the line after which each must be, its old lines and its new lines."""
    pieces: list[tuple[str, list[str], list[str]]] = []
    for line in body:
        if line.rstrip() == "@@" or line.startswith("@@ "):
            pieces.append((line[3:].rstrip(), [], []))
        elif line.rstrip() != _END_OF_FILE:
            if not pieces:
                pieces.append(("", [], []))
            _, old, new = pieces[-1]
            if line[:1] != "+":
                old.append(line[1:])
            if line[:1] != "-":
                new.append(line[1:])
    return pieces


def _find_lines(lines: Sequence[str], block: Sequence[str], start: int) -> int:
    """Return the number of the first line from `start` on at which the block stands, or -1."""
    last = len(lines) - len(block)
    return next((at for at in range(start, last + 1) if list(lines[at : at + len(block)]) == list(block)), -1)
