"""Look into a root tree without leaving it: whatever links it holds are followed as a command in it would."""

from __future__ import annotations

import os
import stat

from fumehood.core.inside import MOUNT_POINTS
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux import libc
from fumehood.linux.mounts import Bind, Folder, Layered, Link, Operation, Tmpfs, View
from fumehood.linux.nofollow import LISTING, look, open_top

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_MADE = frozenset({"dev", "proc", "tmp"})  # fresh ones come in their place
_NEEDED = ("dev", "proc", "tmp", *(point[1:] for point in MOUNT_POINTS))


class Tree(Value):
    """A root tree that the command sees as `/`, instead of the host's.

    `entries` are its top entries where it lacks a mount point: each a name and, for a link, its target. `lowers` and
    `upper` are the project's own layer over it, where it has one; without an upper directory that is only read.
    `guarded` are mount points that get something on them in any case: where the root can be written, a free one could
    be made a link, and the next command's mount would follow it.
    """

    path: str
    shell: str = "/bin/sh"
    entries: tuple[tuple[str, str], ...] = ()
    lowers: tuple[str, ...] = ()
    upper: str = ""
    work: str = ""
    guarded: tuple[str, ...] = ()

    @property
    def is_writable(self) -> bool:
        """Whether the command may change it."""
        return bool(self.upper)

    def mounts(self, *, is_cut: bool) -> list[Operation]:
        """Return how it becomes `/`; `is_cut` tells that its sockets can be cut, by views.

        One that lacks a mount point is not changed: what lies at its top is shown on an empty root.
        """
        if self.upper:
            return [Layered(target="/", lowers=self.lowers, upper=self.upper, work=self.work)]
        if self.lowers:
            return [View(target="/", sources=self.lowers)]
        if not self.entries:
            return [_shown(self.path, "/", is_cut=is_cut)]
        operations: list[Operation] = [Tmpfs(target="/", is_sealed=True), Folder(target="/proc")]
        for name, to in self.entries:
            if name in _MADE:
                continue
            path = f"{self.path}/{name}"
            operations.append(Link(target=f"/{name}", to=to) if to else _shown(path, f"/{name}", is_cut=is_cut))
        return operations


def _shown(source: str, target: str, *, is_cut: bool) -> Operation:
    if is_cut and os.path.isdir(source):
        return View(target=target, sources=(source,))
    return Bind(target=target, source=source)


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
            raise BadRequest(f"{path} is not a root tree: it has no /bin/sh", hint="name an unpacked root directory")
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
