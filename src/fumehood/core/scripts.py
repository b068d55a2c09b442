"""Settings that are a script in JavaScript or TypeScript: which of its lines are more than data."""

from __future__ import annotations

from fumehood.core.value import words

_CODE_WORDS = words("import export from require eval new function async await get set class")
_DATA = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$ \t,:{}[].-")


def new_code(old: str, new: str) -> str | None:
    """Return the first line of a script that was not in it before and is more than data, or None."""
    before = {line.strip() for line in script_lines(old)}
    has_template, in_comment = "`" in new, False
    for line in map(str.strip, script_lines(new)):
        was_in_comment, in_comment = in_comment, _leaves_comment_open(line, is_open=in_comment)
        if line in before or not line:
            continue
        # What looks like a text or a comment is code if it stands in a template, or if it ends a comment around it.
        is_outside = (was_in_comment and "*/" in line) or (has_template and "${" in line) or line[0] == ":"
        if is_outside or not _is_data(line):
            return line
    return None


def script_lines(text: str) -> list[str]:
    """Split where the language ends a line, and a comment with it."""
    for end in ("\r", "\u2028", "\u2029"):
        text = text.replace(end, "\n")
    return text.split("\n")


def _leaves_comment_open(line: str, *, is_open: bool) -> bool:
    """Return True if a line ends within a comment of several lines."""
    at, quote = 0, ""
    while at < len(line):
        if is_open:
            end = line.find("*/", at)
            if end < 0:
                return True
            at, is_open = end + 2, False
        elif quote:
            quote = "" if line[at] == quote else quote
            at += 1
        elif line.startswith("//", at):
            return False
        elif line.startswith("/*", at):
            at, is_open = at + 2, True
        else:
            quote = line[at] if line[at] in "'\"`" else ""
            at += 1
    # A quote that is not closed was none: it stands in an expression.
    return is_open or (quote != "" and line.rfind("/*") > line.rfind("*/"))


def _is_data(line: str) -> bool:
    """Return True if a line of a script is data and nothing else: strings, names, brackets, a comment of its own."""
    if line.startswith("//"):
        return True
    plain, quote = [], ""
    for sign in line:
        if quote:
            quote = "" if sign == quote else quote
            if sign == "\\":
                return False
        elif sign in "'\"":
            quote = sign
            plain.append(" ")
        else:
            plain.append(sign)
    text = "".join(plain)
    if quote or not _DATA.issuperset(text):
        return False
    for sign in ",:{}[].-":
        text = text.replace(sign, " ")
    return _CODE_WORDS.isdisjoint(text.split())
