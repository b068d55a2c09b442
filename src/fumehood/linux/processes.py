"""The processes of a running sandbox, and what they have mounted and open, as /proc shows them."""

from __future__ import annotations

import os

from fumehood.linux.libc import Closing, link_target, process_stat, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SandboxNotReady(Exception):
    """The sandbox is still being set up."""


class Processes:
    """All processes of one sandbox, whose first is `init`. Raises SandboxNotReady."""

    def __init__(self, init: int) -> None:
        self._init = init
        # Kept open: when the sandbox has ended, another process may get the number.
        self._inner_proc = open_inner_proc(init)

    def close(self) -> None:
        """Close the sandbox's /proc."""
        if self._inner_proc is not None:
            os.close(self._inner_proc)

    def directories(self) -> list[str]:
        """Return the directory in /proc of each process; the sandbox's own /proc shows no others."""
        if self._inner_proc is None:
            return [f"/proc/{pid}" for pid in descendants(self._init)]
        return [f"/proc/self/fd/{self._inner_proc}/{name}" for name in os.listdir(self._inner_proc) if name.isdigit()]

    def totals(self) -> tuple[int, float]:
        """Return the number of their threads, and their processor time in seconds, with that of ended children."""
        threads = ticks = 0
        for directory in self.directories():
            fields = process_stat(directory)
            if fields:
                threads += int(fields[17])
                ticks += sum(map(int, fields[11:15]))
        return threads, ticks / _TICKS_PER_S


def descendants(init: int) -> list[int]:
    """Return a process and all that descend from it, by their numbers on the host."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = process_stat(f"/proc/{name}")
            if fields:
                parents[int(name)] = int(fields[1])
    family = [init] if init in parents else []
    for member in family:  # which grows
        family += [pid for pid, parent in parents.items() if parent == member]
    return family


def open_inner_proc(init: int) -> int | None:
    """Open the sandbox's own /proc; return None if bubblewrap has the set-uid bit, because that denies it."""
    try:
        inner_proc = os.open(f"/proc/{init}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        raise SandboxNotReady from None
    try:
        # Before bubblewrap has changed its root, this is the host's, with all that runs there.
        if os.path.samestat(os.stat("1/ns/pid", dir_fd=inner_proc), os.stat(f"/proc/{init}/ns/pid")):
            return inner_proc
    except OSError:
        pass
    os.close(inner_proc)
    raise SandboxNotReady


def open_descriptors(process: str) -> Iterator[tuple[str, str]]:
    """Yield the path in /proc of each descriptor of a process, or thread, and what it leads to.

    There are none if it has just ended, or is another user's.
    """
    try:
        with Closing(os.open(f"{process}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as listing:
            paths = [f"{process}/fd/{name}" for name in os.listdir(listing)]
    except OSError:
        return
    for path in paths:
        if target := link_target(path):  # else just closed
            yield path, target


def mounts_seen_by(process: int | str, kind: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the device and the path of each file system of a kind that a process sees, and True if it is writable."""
    for line in read(f"/proc/{process}/mountinfo").splitlines():
        if f" - {kind} ".encode() in line:
            fields = line.split()
            major, _, minor = fields[2].partition(b":")
            path = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
            yield os.makedev(int(major), int(minor)), path, b"rw" in fields[5].split(b",")


def sizes_in(file: str, *names: bytes) -> list[int]:
    """Return the sizes, in bytes, on the lines of a file of the kernel's that begin with these names; 0 for others."""
    text = b"\n" + read(file)
    numbers = (text.partition(b"\n%b:" % name)[2].split(None, 1)[:1] for name in names)
    return [int(number[0]) * 1024 if number else 0 for number in numbers]
