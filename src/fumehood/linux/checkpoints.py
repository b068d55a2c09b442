"""Checkpoints of a running command: stop its processes for a moment, and note what was put into the project.

The command's layer keeps its own copies of all that. At the command's end, an entry of the layer that is still the
version that was noted is no change, whatever has become of the copy in the project: a person may have worked on it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # without the enums around it
import marshal
import os
import time

from fumehood.core import changes as c
from fumehood.linux.libc import append, process_stat, read
from fumehood.linux.nofollow import matches_stamp, stamp_of
from fumehood.linux.processes import descendants, open_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    VersionId = tuple[int, ...]
    # Root, path, the version in the layer (None: a deletion), the stamp of what the checkpoint left in the project (as
    # text; None: nothing), and whether that is a directory that the project did not have.
    SettledEntry = tuple[int, str, VersionId | None, str | None, bool]
    Original = tuple[int, str, str]  # root, path, and the stamp as text

_LENGTH_BYTES = 8  # each part of a note begins with its length


def version_id(stamp: c.Stamp) -> VersionId:
    """Return what identifies a version of an entry of a layer; for a directory, this is only the mode."""
    if stamp.kind == c.DIRECTORY:
        return (stamp.mode,)
    return stamp.inode, stamp.size, stamp.modified_ns, stamp.changed_ns, stamp.mode


class SettledEntries:
    """What the checkpoints of one command have put into the project: the latest version of each path."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, str], tuple[VersionId | None, str | None]] = {}
        self._new_directories: set[tuple[int, str]] = set()  # made by a checkpoint
        self._parents: set[tuple[int, str]] = set()  # directories in which something was settled
        self._originals: dict[tuple[int, str], str] = {}

    def add(self, entries: Iterable[SettledEntry], originals: Iterable[Original]) -> None:
        """Add what a checkpoint has settled, or the originals that it is about to move."""
        for root, path, in_layer, left, is_new_directory in entries:
            self._versions[root, path] = in_layer, left
            for directory in c.directories_above(path):
                if (root, directory) in self._parents:
                    break  # then those above it are there too
                self._parents.add((root, directory))
            if is_new_directory:
                self._new_directories.add((root, path))
        self._originals.update(((root, path), stamp) for root, path, stamp in originals)

    def is_settled(self, root: int, path: str, status: os.stat_result) -> bool:
        """Return True if an entry of the layer is the version that a checkpoint put into the project."""
        version = self._versions.get((root, path))
        return version is not None and version[0] == version_id(stamp_of(status))

    def has_settled(self, root: int, path: str) -> bool:
        """Return True if a checkpoint made a directory, or settled something in it."""
        return (root, path) in self._new_directories or (root, path) in self._parents

    def is_left_by_checkpoint(self, root: int, path: str, live: os.stat_result) -> bool:
        """Return True if the project's entry at a path is still what a checkpoint put there, or put back there.

        If a checkpoint moved an original out and back in again, it has a new time of change, but it is still the
        version that the command saw.
        """
        _, left = self._versions.get((root, path), (None, None))
        if left is not None and matches_stamp(c.Stamp.read(left), live):
            return True
        original = self._originals.get((root, path))
        return original is not None and c.Stamp.read(original).same(stamp_of(live))

    def is_false_deletion(self, root: int, path: str) -> bool:
        """Return True if the layer seems to delete an entry that the command has not deleted, or not since.

        Either a checkpoint has applied the deletion already, and somebody made the entry that is there now. Or the
        entry lies in a directory that a checkpoint made. That directory is marked as opaque, which hides all entries of
        the project, but only those that came by checkpoints were ever the command's.
        """
        version = self._versions.get((root, path))
        if version is not None:
            return version[0] is None
        return any((root, directory) in self._new_directories for directory in c.directories_above(path))


def add_note(path: str, entries: list[SettledEntry], originals: list[Original]) -> None:
    """Add to the note of a run, which is read at its end, or by the next process if this one dies."""
    data = marshal.dumps((entries, originals))
    with open(path, "ab", buffering=0) as file:
        append(file.fileno(), len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def read_note(path: str) -> SettledEntries | None:
    """Read the note of a run; return None if it had no checkpoint."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    settled, end = SettledEntries(), 0
    while end < len(data):
        begin = end + _LENGTH_BYTES
        end = begin + int.from_bytes(data[end:begin], "big")
        if end <= len(data):  # otherwise the process died while it wrote this part
            settled.add(*marshal.loads(data[begin:end]))  # noqa: S302  (nobody else can write in our state)
    return settled


# ---- Stop all processes of a sandbox for a moment, so that nothing changes its layer meanwhile.

_PATIENCE_S = 0.5
_PAUSE_S = 0.00005
_STOPPED_STATES = b"TtZXx"  # stopped, or not alive
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, which file times are taken from


class NotStopped(Exception):
    """A process could not be stopped now: it waits for a disk, or for a child that starts."""


class StoppedProcesses:
    """The processes of a sandbox, stopped in a `with`; `init` is the first.

    Parents are stopped before their children and continued after them, so that no shell sees a child stop. Processes
    that were stopped before stay stopped. If this process dies meanwhile, they die with it, as they would when running.
    """

    def __init__(self, init: int) -> None:
        self._init = init
        self._processes: dict[int, int] = {}  # descriptors by number, parents first; -1 if it was stopped before

    @property
    def numbers(self) -> list[int]:
        """Their process numbers on the host."""
        return list(self._processes)

    def __enter__(self) -> StoppedProcesses:
        try:
            self._stop()
        except BaseException:
            self._continue()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._continue()

    def _stop(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        opened: dict[int, int] = {}
        try:
            while True:
                family = descendants(self._init)
                for pid in family:
                    # It was there before we opened its descriptor, and still is: so this is no foreign process that got
                    # its number.
                    if pid in opened:
                        self._stop_process(pid, opened.pop(pid), deadline)
                running = [pid for pid in family if pid not in self._processes]
                if not running:
                    return
                if time.monotonic() > deadline:
                    raise NotStopped
                for pid in running:
                    try:
                        opened[pid] = os.pidfd_open(pid)
                    except ProcessLookupError:
                        continue
        finally:
            for process in opened.values():
                os.close(process)  # they have ended

    def _stop_process(self, pid: int, process: int, deadline: float) -> None:
        """Stop a process, and wait until it has: a parent that still runs could see its children stop."""
        if _is_stopped(pid):
            os.close(process)
            self._processes[pid] = -1
            return
        self._processes[pid] = process
        _send(process, signal.SIGSTOP)
        while not _is_stopped(pid):
            if time.monotonic() > deadline:
                raise NotStopped
            time.sleep(_PAUSE_S)

    def _continue(self) -> None:
        for process in reversed(self._processes.values()):
            if process >= 0:
                _send(process, signal.SIGCONT)
                os.close(process)
        self._processes.clear()


def _send(process: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return  # it has ended


def _is_stopped(pid: int) -> bool:
    """Return True if every thread of a process is stopped: the signal only asks for that."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return True
    states = (process_stat(f"/proc/{pid}/task/{task}") for task in tasks)
    return all(not fields or fields[0] in _STOPPED_STATES for fields in states)


def wait_for_next_file_time() -> int:
    """Wait some milliseconds, until what is written next gets a later file time; return the time before that."""
    now = time.clock_gettime_ns(_COARSE_CLOCK)
    while time.clock_gettime_ns(_COARSE_CLOCK) == now:
        time.sleep(_PAUSE_S)
    return now


def files_only_added_to(processes: Sequence[int], roots: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of the root and the path of each open file that stopped processes only add to.

    Every process that has such a file open for writing can only write, and is at its end: a log, or the target of a
    shell's redirection. `roots` are the roots as the processes see them. If so much is open that this takes too long,
    yield nothing.
    """
    only_added_to: dict[tuple[int, str], bool] = {}
    deadline = time.monotonic() + _PATIENCE_S
    for pid in processes:
        if time.monotonic() > deadline:
            return iter(())
        for descriptor, path in open_descriptors(f"/proc/{pid}"):
            number = next((number for number, root in enumerate(roots) if path.startswith(f"{root}/")), -1)
            if number < 0:
                continue
            words = read(descriptor.replace("/fd/", "/fdinfo/")).split()
            try:
                flags = int(words[words.index(b"flags:") + 1], 8)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    continue
                is_at_end = flags & os.O_APPEND or int(words[1]) == os.stat(descriptor).st_size
            except (OSError, ValueError):
                continue
            only_adds = flags & os.O_ACCMODE == os.O_WRONLY and bool(is_at_end)
            file = number, path[len(roots[number]) + 1 :]
            only_added_to[file] = only_added_to.get(file, True) and only_adds
    return (file for file, only_adds in only_added_to.items() if only_adds)
