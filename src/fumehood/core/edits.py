"""Read from the input of a client's own tool what its edit will do to files; only what is certain is returned."""

from __future__ import annotations

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Returns a file's new content for its content so far (None: there is no file), or None if that is not certain.
    MakeContent = Callable[[bytes | None], bytes | None]


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
