"""The control group of a run, where this user may make one: in it, the kernel itself counts memory and processes.

Of version 2 only, in which a group says that it is there to be divided; in version 1, it belongs to who made it.
Processes are moved into the group while they run, and not started in it: a move takes some ten milliseconds, for which
a short command would have to wait.
"""

from __future__ import annotations

import os

from fumehood.core.report import MEMORY, PROCESSES
from fumehood.linux.libc import read
from fumehood.linux.processes import descendants, mounts_seen_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_ROUNDS = 8  # of moves, as long as processes fork meanwhile
_CONTROLLERS = frozenset({b"memory", b"pids"})
_PREFIX = "fumehood-run-"


class Cgroup:
    """One run's control group, at a path."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def around(cls, init: int, memory: int, tasks: int) -> Cgroup | None:
        """Move a sandbox, whose first process is `init`, into a new group with limits; None if that is not possible."""
        parent = find_parent_group()
        if parent is None:
            return None
        group = cls(f"{parent}/{_PREFIX}{init}")
        try:
            os.mkdir(group._path)
            group._write("memory.oom.group", b"1")  # what reaches the limit is ended as a whole
            group._write("memory.max", b"%d" % memory)
            if os.path.exists(f"{group._path}/memory.swap.max"):
                group._write("memory.swap.max", b"0")
            group._write("pids.max", b"%d" % tasks if tasks else b"max")
            group.move_in(lambda: descendants(init))
        except OSError:
            # It is hard to find out beforehand who may write here. Without a group, we add up.
            group.remove()
            return None
        return group

    def move_in(self, list_processes: Callable[[], Sequence[int]]) -> None:
        """Move processes into the group, and those that they fork meanwhile."""
        moved: set[int] = set()
        for _ in range(_MAX_ROUNDS):
            remaining = [pid for pid in list_processes() if pid not in moved]
            if not remaining:
                return
            for pid in remaining:
                moved.add(pid)
                try:
                    self._write("cgroup.procs", b"%d" % pid)
                except ProcessLookupError:
                    continue  # it has ended

    def enforced_limit(self) -> str | None:
        """Return the name of the limit that the kernel had to enforce, or None."""
        if self._read_count("memory.events", b"oom_kill"):
            return MEMORY
        return PROCESSES if self._read_count("pids.events", b"max") else None

    def remove(self) -> None:
        """Remove the group when all its processes have ended."""
        try:
            os.rmdir(self._path)
        except OSError:
            return  # the kernel is still busy with the last process: the next run removes the group

    def _write(self, name: str, text: bytes) -> None:
        with open(f"{self._path}/{name}", "wb", buffering=0) as file:
            file.write(text)

    def _read_count(self, name: str, key: bytes) -> int:
        words = read(f"{self._path}/{name}").split()
        return int(words[words.index(key) + 1]) if key in words else 0


def find_parent_group() -> str | None:
    """Return the nearest group above this process in which a group can be made that counts memory and processes."""
    mount = mount_point()
    own = next((line[3:] for line in read("/proc/self/cgroup").splitlines() if line.startswith(b"0::")), b"")
    path = os.fsdecode(own) if mount and own.startswith(b"/") and b"/.." not in own else "/"
    while path != "/":
        # A group with processes of its own can't have groups below it that count; only the topmost can.
        path = os.path.dirname(path)
        group = f"{mount}{path}".rstrip("/")
        controllers = set(read(f"{group}/cgroup.subtree_control").split())
        if controllers >= _CONTROLLERS and os.access(group, os.W_OK) and os.access(f"{group}/cgroup.procs", os.W_OK):
            for name in os.listdir(group):
                if name.startswith(_PREFIX):
                    Cgroup(f"{group}/{name}").remove()  # left behind by a run; a group in use can't be removed
            return group
    return None


def has_controllers() -> bool:
    """Return True if version 2 counts memory and processes at all; it can't if version 1 does."""
    mount = mount_point()
    return bool(mount) and set(read(f"{mount}/cgroup.controllers").split()) >= _CONTROLLERS


def mount_point() -> str:
    """Return where control groups of version 2 are mounted; "" if nowhere."""
    return next((path for _, path, _ in mounts_seen_by("self", "cgroup2")), "")
