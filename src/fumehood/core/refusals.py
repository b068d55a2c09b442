"""Tell from what a command printed what the sandbox refused it, so that the reason can be given."""

from __future__ import annotations

from fumehood.core.report import Blocked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OVERFLOW = ("Value too large for", "EOVERFLOW")  # as the C libraries and as Node say it
_READ_ONLY = ("Read-only file system", "EROFS")  # as libc and as Node say it
_MOST, _MOST_LINES = 3, 20  # paths named, complaints read
_LOOKED_AT = 1 << 16  # characters of the end, where a failure is told
_QUOTES = "'\"`"


def refused_writes(stderr: str, roots: Sequence[str], remedy: str = "", home: str = "") -> tuple[Blocked, ...]:
    """Name what a command could not write because it lies outside the roots, which are named as it sees them.

    `home` is a home that is out of sight but for its tools.
    """
    if not any(words in stderr for words in _READ_ONLY):
        return ()
    paths: dict[str, None] = {}
    for line in stderr[-_LOOKED_AT:].splitlines():
        if any(words in line for words in _READ_ONLY):
            paths[_path_in(line)] = None
    writable = ", ".join(roots)
    hint = f"outside the project everything is read-only; a command may write {writable} and /tmp{remedy}"
    of_tools = "tools of the home are read-only to commands; install and update them outside the hood"
    return tuple(
        Blocked(what="write", detail=path, hint=of_tools if home and path.startswith(f"{home}/") else hint)
        for path in list(paths)[:_MOST]
    )


def overflows(output: str) -> str:
    """Return the lines in which a command complains of what an overlay can't copy for want of an owner's number."""
    if not any(words in output for words in _OVERFLOW):
        return ""
    lines = output[-_LOOKED_AT:].splitlines()
    return "\n".join([line for line in lines if any(words in line for words in _OVERFLOW)][-_MOST_LINES:])


def _path_in(line: str) -> str:
    """Find the path that a complaint names: quoted, or before the reason."""
    for quote in _QUOTES:
        _, found, rest = line.partition(quote)
        inner = rest.partition(quote)[0]
        if found and inner:
            return inner
    before = line.partition(": Read-only")[0].split(": ")[-1]
    return before.rpartition(" ")[2] or "a path"
