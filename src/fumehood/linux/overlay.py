"""Mount overlays in the launcher's own namespace: over each root, in place, seen by nobody else."""

from __future__ import annotations

import os

from fumehood.core.value import Value
from fumehood.linux import libc


class Overlay(Value):
    """One root to be covered: what lies below (topmost first, the root itself last), and where writes go."""

    root: str
    lowers: tuple[str, ...]
    upper: str
    work: str


def enter_namespaces(*, privileged: bool) -> None:
    """Move this process into a mount namespace of its own, and a user namespace where it has no privilege.

    User and group are mapped to themselves, so that everything keeps its owner.
    """
    if privileged:
        libc.unshare(libc.CLONE_NEWNS)
    else:
        user, group = os.getuid(), os.getgid()
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
        for name, text in (
            ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"),
        ):  # fmt: skip
            file = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(file, text.encode())
            os.close(file)
    libc.mount(b"none", b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)


def mount(overlay: Overlay) -> None:
    """Cover a root with an overlay of itself.

    Directories are named to the kernel by descriptor, opened after the namespace was entered: any byte
    may then stand in a path. `volatile` spares flushing the whole file system when it is unmounted.
    """
    lowers = ":".join(_named(path) for path in overlay.lowers)
    options = f"lowerdir={lowers},upperdir={_named(overlay.upper)},workdir={_named(overlay.work)},userxattr,volatile"
    libc.mount(b"overlay", _named(overlay.root).encode(), b"overlay", 0, options.encode())


def _named(path: str) -> str:
    """Name a directory by a descriptor, which stays open until this process becomes another program."""
    return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)}"


def mounts_inside(root: str) -> list[str]:
    """Return the mount points that lie below a directory: an overlay of it would not show them."""
    prefix = os.fsencode(root).rstrip(b"/") + b"/"
    with open("/proc/self/mountinfo", "rb") as table:
        points = [_unescaped(line.split(b" ", 5)[4]) for line in table]
    return sorted({os.fsdecode(point) for point in points if point.startswith(prefix)})


def _unescaped(point: bytes) -> bytes:
    """Undo the octal escapes that the kernel writes for white space and backslashes."""
    if b"\\" not in point:
        return point
    for escape, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        point = point.replace(escape, byte)
    return point
