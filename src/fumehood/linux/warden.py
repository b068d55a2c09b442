"""Watch what a running sandbox uses, where the kernel does not count it for us, and say when it is too much.

A short run never meets the warden: it first looks when a command has run for a moment.
"""

from __future__ import annotations

import os
import time

from fumehood.core import limits as told
from fumehood.linux.cgroup import Cgroup
from fumehood.linux.limits import memory_limit
from fumehood.linux.room import Room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.policy import Limits
    from fumehood.core.report import Blocked

_PACE_S, _SLOWEST_S = 0.1, 1.0
_SHARE = 10  # of the time that passes, at most a tenth is spent looking
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_READING = os.O_RDONLY | os.O_CLOEXEC


class NotYet(Exception):
    """The sandbox is still being set up."""


class Warden:
    """Looks after one sandbox; `init` is its first process, `places` are the directories that take its writes."""

    def __init__(self, limits: Limits, init: int, places: Sequence[str], *, empty: bool = True) -> None:
        self._inside = _inside_of(init)
        self._limits = limits
        self._memory = memory_limit(limits)
        self._init = init
        self._tmpfs = _tmpfs_of(init)
        self._room = Room(places, limits.written, empty=empty)
        self._cgroup = Cgroup.around(init, descendants, self._memory, limits.processes)
        self.due = 0.0

    def look(self) -> Blocked | None:
        """Look once, and return the limit that was reached."""
        began = time.monotonic()
        found = self._use() or self._room.look(self._unlinked)
        ended = time.monotonic()
        self.due = ended + min(max(_PACE_S, _SHARE * (ended - began)), _SLOWEST_S)
        return found

    def close(self) -> Blocked | None:
        """Stop watching when all inside is gone; return the limit by which the kernel ended it, if it did."""
        if self._inside is not None:
            os.close(self._inside)
        self._room.close()
        if self._cgroup is None:
            return None
        found = self._cgroup.reached()
        self._cgroup.remove()
        return None if found is None else self._told(found)

    def _told(self, name: str) -> Blocked:
        amount = {told.MEMORY: self._memory, told.PROCESSES: self._limits.processes, told.CPU: self._limits.cpu}
        return told.hit(name, amount[name])

    def _use(self) -> Blocked | None:
        tasks, pages, ticks = self._counted()
        if self._cgroup is not None and (reached := self._cgroup.reached()) is not None:
            return self._told(reached)
        if self._limits.processes and tasks >= self._limits.processes:
            return self._told(told.PROCESSES)
        if self._limits.cpu and ticks / _TICKS >= self._limits.cpu:
            return self._told(told.CPU)
        files = sum(_used(path) for path in self._tmpfs)
        if pages * _PAGE + files >= self._memory and self._own(files) >= self._memory:
            return self._told(told.MEMORY)
        return None

    def _processes(self) -> list[tuple[int | None, str]]:
        """Return where to read of each process: its own /proc shows only what is inside."""
        if self._inside is not None:
            return [(self._inside, name) for name in os.listdir(self._inside) if name.isdigit()]
        return [(None, f"/proc/{pid}") for pid in descendants(self._init)]

    def _counted(self) -> tuple[int, int, int]:
        """Add up threads, resident pages and clock ticks of all that lives, and ticks of what it waited for."""
        tasks = pages = ticks = 0
        for directory, name in self._processes():
            fields = _stat(directory, f"{name}/stat")
            if fields:
                tasks += int(fields[17])
                pages += int(fields[21])
                ticks += sum(map(int, fields[11:15]))
        return tasks, pages, ticks

    def _own(self, files: int) -> int:
        """Count memory exactly: pages that are shared once, and none that are a file's on disk."""
        private = shared = 0
        for directory, name in self._processes():
            text = _text(directory, f"{name}/smaps_rollup")
            private += _kilobytes(text, b"\nPss_Anon:") + _kilobytes(text, b"\nSwapPss:")
            shared += _kilobytes(text, b"\nPss_Shmem:")
        # A file on a tmpfs that is mapped as well counts once.
        return private + max(shared, files)

    def _unlinked(self) -> int:
        """Count what files take that have no name any more, but are still open inside."""
        found: dict[tuple[int, int], int] = {}
        for directory, name in self._processes():
            try:
                descriptors = _listed(directory, f"{name}/fd")
                for each in descriptors:
                    seen = os.stat(f"{name}/fd/{each}", dir_fd=directory)
                    if seen.st_nlink == 0:
                        found[seen.st_dev, seen.st_ino] = seen.st_blocks * 512
            except OSError:
                continue  # it has just ended
        return sum(found.values())


def descendants(init: int) -> list[int]:
    """Return a process and all that descends from it, as the host numbers them."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(None, f"/proc/{name}/stat")
            if fields:
                parents[int(name)] = int(fields[1])
    found = [init] if init in parents else []
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found


def _inside_of(init: int) -> int | None:
    """Open the sandbox's own /proc; a bubblewrap with the set-uid bit does not let us."""
    try:
        found = os.open(f"/proc/{init}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        raise NotYet from None
    try:
        # Before bubblewrap has changed its root, this is the host's, with all that runs there.
        if os.path.samestat(os.stat("1/ns/pid", dir_fd=found), os.stat(f"/proc/{init}/ns/pid")):
            return found
    except OSError:
        pass
    os.close(found)
    raise NotYet


def _tmpfs_of(init: int) -> list[str]:
    """Return the writable file systems in memory that the sandbox has: what is in them is no process's."""
    found: dict[bytes, str] = {}
    for line in _text(None, f"/proc/{init}/mountinfo").splitlines():
        before, _, after = line.partition(b" - ")
        fields = before.split()
        if after.startswith(b"tmpfs ") and b"rw" in fields[5].split(b","):
            path = fields[4].decode("unicode_escape").encode("latin-1")
            place = f"/proc/{init}/root{os.fsdecode(path)}"
            # Another may lie over it: for a moment of bubblewrap's start, two things are `/`.
            if _device(place) == fields[2]:
                found[fields[2]] = place
    return list(found.values())


def _device(path: str) -> bytes:
    try:
        number = os.stat(path).st_dev
    except OSError:
        return b""
    return b"%d:%d" % (os.major(number), os.minor(number))


def _used(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0  # gone with the sandbox
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _listed(directory: int | None, path: str) -> list[str]:
    listing = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.listdir(listing)
    finally:
        os.close(listing)


def _text(directory: int | None, path: str) -> bytes:
    """Read a file of /proc; of a process that has ended there is none."""
    try:
        fd = os.open(path, _READING, dir_fd=directory)
    except OSError:
        return b""
    try:
        text = b""
        while piece := os.read(fd, 1 << 16):
            text += piece
        return text
    except OSError:
        return b""
    finally:
        os.close(fd)


def _stat(directory: int | None, path: str) -> list[bytes]:
    """Return the fields after a process's name, which may hold anything."""
    return _text(directory, path).rpartition(b")")[2].split()


def _kilobytes(text: bytes, key: bytes) -> int:
    number = text.partition(key)[2].split(None, 1)[:1]
    return int(number[0]) * 1024 if number else 0
