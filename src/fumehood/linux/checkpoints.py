"""Checkpoints of a running command: all of it stands still for a moment; what they put into the project is noted.

Its end does not do that once more. The command's layer keeps its own copy of all that. What is still the very version
that was copied is no change any more, whatever became of the copy in the project since: a person may have gone on with
it.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # without the enums around it
import marshal
import os
import time

from fumehood.core import changes as c
from fumehood.linux.libc import append, process_stat, read
from fumehood.linux.nofollow import matches_stamp, stamp_of
from fumehood.linux.usage import descendants, open_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    # Root, path, what identifies the layer's version (None: a deletion), the stamp of what is in the project then, as
    # text, and whether it is a directory that the project did not have.
    Entry = tuple[int, str, tuple[int, ...] | None, str | None, bool]
    Original = tuple[int, str, str]  # root, path, the stamp as text

_LENGTH = 8  # bytes that tell how long each part of a note is


def identity_of(stamp: c.Stamp) -> tuple[int, ...]:
    """Return what tells one version of a layer's entry from the next; of a directory, only its mode counts."""
    if stamp.kind == c.DIRECTORY:
        return (stamp.mode,)
    return stamp.inode, stamp.size, stamp.modified_ns, stamp.changed_ns, stamp.mode


class Settled:
    """What was settled of one running command, the last word on each path."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], tuple[tuple[int, ...] | None, str | None]] = {}
        self._made: set[tuple[int, str]] = set()
        self._around: set[tuple[int, str]] = set()
        self._originals: dict[tuple[int, str], str] = {}

    def add(self, entries: Iterable[Entry], originals: Iterable[Original]) -> None:
        """Take note of what a checkpoint has settled, or of the originals that it is about to move."""
        for root, path, layer, left, is_made in entries:
            self._entries[root, path] = layer, left
            for above in c.directories_above(path):
                if (root, above) in self._around:
                    break  # and so are those above that
                self._around.add((root, above))
            if is_made:
                self._made.add((root, path))
        self._originals.update(((root, path), stamp) for root, path, stamp in originals)

    def is_unchanged(self, root: int, path: str, status: os.stat_result) -> bool:
        """Return True if an entry of the layer is the version that a checkpoint put into the project."""
        entry = self._entries.get((root, path))
        return entry is not None and entry[0] == identity_of(stamp_of(status))

    def is_around(self, root: int, path: str) -> bool:
        """Return True if a directory, or something in it, was settled by a checkpoint."""
        return (root, path) in self._made or (root, path) in self._around

    def is_left(self, root: int, path: str, live: os.stat_result) -> bool:
        """Return True if what the project has at a path was put there by a checkpoint, and is still that.

        Or put back: a file that was moved out and in again bears a new time, and is the one that the command saw.
        """
        _, left = self._entries.get((root, path), (None, None))
        if left is not None and matches_stamp(c.Stamp.read(left), live):
            return True
        original = self._originals.get((root, path))
        return original is not None and c.Stamp.read(original).same(stamp_of(live))

    def is_anothers(self, root: int, path: str) -> bool:
        """Return True if what the layer seems to delete from the project is none of its command's.

        Either a checkpoint has deleted what was there, or it lies in a directory that a checkpoint made and marked: the
        mark hides all of it, and only what came by checkpoints was ever the command's.
        """
        entry = self._entries.get((root, path))
        if entry is not None:
            return entry[0] is None
        return any((root, above) in self._made for above in c.directories_above(path))


def note(path: str, entries: list[Entry], originals: list[Original]) -> None:
    """Add to the note of a run, for its end, and for whoever goes on should this process die."""
    data = marshal.dumps((entries, originals))
    with open(path, "ab", buffering=0) as file:
        append(file.fileno(), len(data).to_bytes(_LENGTH, "big") + data)


def noted(path: str) -> Settled | None:
    """Read the note of a run; None where it had no checkpoint."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    settled, at = Settled(), 0
    while at < len(data):
        begin = at + _LENGTH
        at = begin + int.from_bytes(data[at:begin], "big")
        if at <= len(data):  # else a death cut it off
            settled.add(*marshal.loads(data[begin:at]))  # noqa: S302  (nobody else can write in our state)
    return settled


# Stop all processes of a sandbox for a moment, so that nothing writes its layer while it is looked at and settled.

_PATIENCE_S = 0.5
_PAUSE_S = 0.00005
_AT_REST = b"TtZXx"  # stopped, or not alive
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, which file times are taken from


class NotStopped(Exception):
    """Some process could not be stopped just now: one that waits for a child to start, or for a disk."""


class Stopped:
    """The processes of a sandbox, stopped in a `with`; `init` is the first.

    Parents are stopped before their children and go on after them, so that no shell sees a child stop. What was stopped
    before stays so. Should this process die meanwhile, they die with it, as they would running.
    """

    def __init__(self, init: int) -> None:
        self._init = init
        self._processes: dict[int, int] = {}  # by number, parents first: a descriptor, or -1 for one that was at rest

    @property
    def processes(self) -> list[int]:
        """Their numbers on the host."""
        return list(self._processes)

    def __enter__(self) -> Stopped:
        try:
            self._stop()
        except BaseException:
            self._go_on()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._go_on()

    def _stop(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        opened: dict[int, int] = {}
        try:
            while True:
                family = descendants(self._init)
                for pid in family:
                    # Seen again since it was opened, so the descriptor is not that of a stranger who got the number.
                    if pid in opened:
                        self._stop_one(pid, opened.pop(pid), until)
                fresh = [pid for pid in family if pid not in self._processes]
                if not fresh:
                    return
                if time.monotonic() > until:
                    raise NotStopped
                for pid in fresh:
                    try:
                        opened[pid] = os.pidfd_open(pid)
                    except ProcessLookupError:
                        continue
        finally:
            for process in opened.values():
                os.close(process)  # of some that have ended

    def _stop_one(self, pid: int, process: int, until: float) -> None:
        """Stop a process, and wait until it is: its parent, if running, could see it stop."""
        if _is_at_rest(pid):
            os.close(process)
            self._processes[pid] = -1
            return
        self._processes[pid] = process
        _send(process, signal.SIGSTOP)
        while not _is_at_rest(pid):
            if time.monotonic() > until:
                raise NotStopped
            time.sleep(_PAUSE_S)

    def _go_on(self) -> None:
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


def _is_at_rest(pid: int) -> bool:
    """Return True if every thread of a process stands still: a stop is only asked for by its signal."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return True
    states = (process_stat(f"/proc/{pid}/task/{task}") for task in tasks)
    return all(not fields or fields[0] in _AT_REST for fields in states)


def let_time_pass() -> int:
    """Return the time that files have now, when whatever is written next has a later one: some milliseconds."""
    now = time.clock_gettime_ns(_COARSE_CLOCK)
    while time.clock_gettime_ns(_COARSE_CLOCK) == now:
        time.sleep(_PAUSE_S)
    return now


def streams(processes: Sequence[int], tops: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the files below some directories that stopped processes only add to: by number of the directory, and path.

    Whoever has one open for writing can only write, and stands at its end: a log, or what a shell redirects. The
    directories are named as the processes see them. Where too much is open to look at all of it, there is none.
    """
    is_stream: dict[tuple[int, str], bool] = {}
    until = time.monotonic() + _PATIENCE_S
    for pid in processes:
        if time.monotonic() > until:
            return iter(())
        for file, path in open_descriptors(f"/proc/{pid}"):
            number = next((number for number, top in enumerate(tops) if path.startswith(f"{top}/")), -1)
            if number < 0:
                continue
            words = read(file.replace("/fd/", "/fdinfo/")).split()
            try:
                flags = int(words[words.index(b"flags:") + 1], 8)
                if flags & os.O_ACCMODE == os.O_RDONLY:
                    continue
                at_end = flags & os.O_APPEND or int(words[1]) == os.stat(file).st_size
            except (OSError, ValueError):
                continue
            only_adds = flags & os.O_ACCMODE == os.O_WRONLY and bool(at_end)
            place = number, path[len(tops[number]) + 1 :]
            is_stream[place] = is_stream.get(place, True) and only_adds
    return (place for place, only_adds in is_stream.items() if only_adds)
