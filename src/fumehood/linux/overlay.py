"""Mount overlays in the launcher's own namespace: over each root, in place, seen by nobody else."""

from __future__ import annotations

import _thread
import os
import select

from fumehood.core.value import Value
from fumehood.linux import libc


class Overlay(Value):
    """One root to be covered: what lies below (topmost first, the root itself last), and where writes go.

    Without an upper directory it can only be read.
    """

    root: str
    lowers: tuple[str, ...]
    upper: str = ""
    work: str = ""


def enter_namespaces(*, privileged: bool, network: bool = False) -> None:
    """Move this process into a mount namespace of its own, and a user namespace where it has no privilege.

    On request, into an empty network namespace too.

    User and group are mapped to themselves, so that everything keeps its owner.
    """
    more = libc.CLONE_NEWNET if network else 0
    if privileged:
        libc.unshare(libc.CLONE_NEWNS | more)
    else:
        user, group = os.getuid(), os.getgid()
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS | more)
        for name, text in (
            ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"),
        ):  # fmt: skip
            file = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(file, text.encode())
            os.close(file)
    libc.mount(b"none", b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)


def enter_network() -> None:
    """Move this process, which is in namespaces of its own already, into an empty network namespace too."""
    libc.unshare(libc.CLONE_NEWNET)


def mount(overlay: Overlay) -> None:
    """Cover a root with an overlay of itself.

    Directories are named to the kernel by descriptor, opened after the namespace was entered: any byte
    may then stand in a path. `volatile` spares flushing the whole file system when it is unmounted.
    """
    lowers = ":".join(_named(path) for path in overlay.lowers)
    options = f"lowerdir={lowers},userxattr"
    if overlay.upper:
        options += f",upperdir={_named(overlay.upper)},workdir={_named(overlay.work)},volatile"
    libc.mount(b"overlay", _named(overlay.root).encode(), b"overlay", 0, options.encode())


def _named(path: str) -> str:
    """Name a directory by a descriptor, which stays open until this process becomes another program."""
    return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)}"


def mounts_inside(root: str) -> list[str]:
    """Return the mount points that lie below a directory: an overlay of it would not show them."""
    prefix = os.fsencode(root).rstrip(b"/") + b"/"
    return sorted({os.fsdecode(point) for point in _mounts.points() if point.startswith(prefix)})


def mount_table() -> list[tuple[bytes, str]]:
    """Return every mount point with the kind of its file system; the same list as long as nothing changes."""
    return _mounts.table()


class _MountTable:
    """Where something is mounted, read again only when the kernel says that it changed."""

    def __init__(self) -> None:
        self._process = 0
        self._table = -1
        self._entries: list[tuple[bytes, str]] = []
        self._lock = _thread.allocate_lock()

    def points(self) -> list[bytes]:
        """Return every mount point of this process's namespace."""
        return [point for point, _ in self.table()]

    def table(self) -> list[tuple[bytes, str]]:
        """Return every mount point of this process's namespace with the kind of its file system."""
        with self._lock:
            if self._process != os.getpid():
                # A child of the one who opened it, or the first use.
                self._process, self._table = os.getpid(), os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
                self._read()
            elif self._has_changed():
                self._read()
            return self._entries

    def _has_changed(self) -> bool:
        poll = select.poll()
        poll.register(self._table, select.POLLERR | select.POLLPRI)
        return bool(poll.poll(0))

    def _read(self) -> None:
        with open("/proc/self/mountinfo", "rb") as table:
            self._entries = [
                (_unescaped(line.split(b" ", 5)[4]), line.rpartition(b" - ")[2].split(b" ", 1)[0].decode())
                for line in table
            ]


_mounts = _MountTable()


def _unescaped(point: bytes) -> bytes:
    """Undo the octal escapes that the kernel writes for white space and backslashes."""
    if b"\\" not in point:
        return point
    for escape, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        point = point.replace(escape, byte)
    return point
