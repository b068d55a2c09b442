"""What a client's own edit is about to do to files, told from the input of its tool."""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # What a file will hold, by what it holds now (None: there is no file); None where that can't be told.
    Becomes = Callable[[bytes | None], bytes | None]


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
