"""Which program a command really runs, where that can be told, and no command could have put another in its place."""

from __future__ import annotations

import os

from fumehood.core.masks import is_in
from fumehood.core.simple import may_be_kept, simple
from fumehood.linux.followed import followed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ANYBODY_S = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where anybody may leave a program


def resolved(
    command: str | tuple[str, ...], cwd: str, environment: Mapping[str, str], written: Sequence[str]
) -> str | None:
    """Return the program of a simple command, by its real path; None where an answer for it may not be kept.

    One that lies in what commands can write (`written`), or is reached by a link there, is another program tomorrow,
    and one that runs what it is told is every program.
    """
    found = simple(command)
    if found is None:
        return None
    base = os.path.join(cwd, found.directory)
    folders = [""] if "/" in found.program else environment.get("PATH", os.defpath).split(":")
    for folder in folders:
        path = os.path.join(base, folder, found.program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            real = os.path.realpath(path)
            is_surely_kept = may_be_kept(path) and may_be_kept(real)
            return real if is_surely_kept and not is_written(path, written) else None
    return None


def is_written(path: str, written: Sequence[str]) -> bool:
    """Tell whether a path, or a link on the way to what it leads to, lies where commands or anybody can write."""
    steps = [os.path.normpath(path), *(place for place, _, _ in followed(path))]
    return any(is_in(step, (*written, *_ANYBODY_S)) for step in steps)
