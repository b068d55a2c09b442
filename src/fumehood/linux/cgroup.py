"""A control group of a run's own, where this user may make one: there the kernel itself counts.

Processes are moved into it while they run, not started in it: a move waits for some ten milliseconds, which a short
command would have to wait for as well.
"""

from __future__ import annotations

import os

from fumehood.core.limits import MEMORY, PROCESSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ROUNDS = 8  # moves, until nothing new was forked meanwhile
_NEEDED = frozenset({b"memory", b"pids"})
_PREFIX = "fumehood-run-"


class Cgroup:
    """One run's control group, of version 2."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def around(
        cls, init: int, processes: Callable[[int], Sequence[int]], memory: int, tasks: int
    ) -> Cgroup | None:
        """Put a sandbox under limits, by its first process and what tells all others; None where we may not."""
        parent = delegated()
        if parent is None:
            return None
        made = cls(f"{parent}/{_PREFIX}{init}")
        try:
            os.mkdir(made._path)
            made.limit(memory, tasks)
            made.take(lambda: processes(init))
        except OSError:
            # Who may write here is hard to tell beforehand. What is watched is watched in any case.
            made.remove()
            return None
        return made

    def limit(self, memory: int, tasks: int) -> None:
        """Set the limits; what reaches the memory's is ended as a whole."""
        self._write("memory.oom.group", b"1")
        self._write("memory.max", b"%d" % memory)
        if os.path.exists(f"{self._path}/memory.swap.max"):
            self._write("memory.swap.max", b"0")
        self._write("pids.max", b"%d" % tasks if tasks else b"max")

    def take(self, processes: Callable[[], Sequence[int]]) -> None:
        """Move processes here, and those that they forked meanwhile."""
        taken: set[int] = set()
        for _ in range(_ROUNDS):
            others = [pid for pid in processes() if pid not in taken]
            if not others:
                return
            for pid in others:
                taken.add(pid)
                try:
                    self._write("cgroup.procs", b"%d" % pid)
                except ProcessLookupError:
                    continue  # it has ended

    def reached(self) -> str | None:
        """Return the limit that the kernel had to enforce."""
        if self._count("memory.events", b"oom_kill"):
            return MEMORY
        return PROCESSES if self._count("pids.events", b"max") else None

    def remove(self) -> None:
        """Remove it when all that was in it is gone."""
        try:
            os.rmdir(self._path)
        except OSError:
            return  # the kernel is still busy with the last process: the next run removes it

    def _write(self, name: str, text: bytes) -> None:
        with open(f"{self._path}/{name}", "wb", buffering=0) as file:
            file.write(text)

    def _count(self, name: str, key: bytes) -> int:
        words = _read(f"{self._path}/{name}").split()
        return int(words[words.index(key) + 1]) if key in words else 0


def delegated() -> str | None:
    """Return the nearest group above this process in which we may make one that counts memory and processes."""
    found = next(_above(), None)
    if found is not None:
        _sweep(found)
    return found


def has_controllers() -> bool:
    """Tell whether version 2 counts memory and processes at all; where version 1 does, it can't."""
    mount = _mount()
    return bool(mount) and set(_read(f"{mount}/cgroup.controllers").split()) >= _NEEDED


def _above() -> Iterator[str]:
    """Yield every group that would do, the nearest first."""
    mount = _mount()
    own = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith(b"0::")), b"")
    if not mount or not own.startswith(b"/") or b"/.." in own:
        return
    path = os.fsdecode(own)
    while path != "/":
        # A group that has processes of its own can't have others below it that count, but for the topmost.
        path = os.path.dirname(path)
        group = f"{mount}{path}".rstrip("/")
        counted = set(_read(f"{group}/cgroup.subtree_control").split())
        if counted >= _NEEDED and os.access(group, os.W_OK) and os.access(f"{group}/cgroup.procs", os.W_OK):
            yield group


def _mount() -> str:
    for line in _read("/proc/self/mounts").splitlines():
        _, where, kind, *_ = line.split()
        if kind == b"cgroup2":
            return os.fsdecode(where)
    return ""


def _sweep(parent: str) -> None:
    """Remove groups that were left behind; one that is in use can't be removed."""
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            Cgroup(f"{parent}/{name}").remove()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
