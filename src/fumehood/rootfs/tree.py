"""Look into a root tree without leaving it: whatever links it holds are followed as a command in it would."""

from __future__ import annotations

import os
import stat

from fumehood.core.inside import MOUNT_POINTS
from fumehood.core.spec import Tree
from fumehood.errors import BadRequest
from fumehood.linux import libc
from fumehood.linux.nofollow import LISTING, look, open_top

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_NEEDED = ("dev", "proc", "tmp", *(point[1:] for point in MOUNT_POINTS))


def tree_at(path: str) -> Tree:
    """Return the root tree at a directory, ready to be run in."""
    try:
        top = open_top(path)
    except OSError as error:
        raise BadRequest(
            f"there is no root tree at {path}: {error.strerror}", hint="name an unpacked root directory"
        ) from error
    try:
        shell = next((each for each in _SHELLS if is_program(top, each)), None)
        if shell is None:
            raise BadRequest(f"{path} is no root tree: it has no /bin/sh", hint="name an unpacked root directory")
        whole = all(_is_plain_directory(top, name) for name in _NEEDED)
        return Tree(path=path, shell=shell, entries=() if whole else _entries(top))
    finally:
        os.close(top)


def is_program(top: int, path: str) -> bool:
    """Tell whether a command in the tree could start a program."""
    try:
        file = libc.openat2(top, os.fsencode(path.lstrip("/")), os.O_PATH, libc.RESOLVE_IN_ROOT)
    except OSError:
        return False
    try:
        mode = os.fstat(file).st_mode
        return stat.S_ISREG(mode) and bool(mode & 0o111)
    finally:
        os.close(file)


def _is_plain_directory(top: int, name: str) -> bool:
    found = look(top, name)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _entries(top: int) -> tuple[tuple[str, str], ...]:
    """List what lies at the top, less what is made fresh; a link comes with its target."""
    listing = os.open(".", LISTING | os.O_CLOEXEC, dir_fd=top)
    try:
        names = sorted(os.listdir(listing))
    finally:
        os.close(listing)
    found = []
    for name in names:
        entry = look(top, name)
        if entry is None or f"/{name}" in MOUNT_POINTS:
            continue
        if stat.S_ISLNK(entry.st_mode):
            found.append((name, os.readlink(name, dir_fd=top)))
        elif stat.S_ISDIR(entry.st_mode) or stat.S_ISREG(entry.st_mode):
            found.append((name, ""))
    return tuple(found)
