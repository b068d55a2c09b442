"""Stop all processes of a sandbox for a moment, so that nothing writes its layer while it is looked at and settled."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # without the enums around it
import os
import time

from fumehood.linux.usage import descendants, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """Tell whether every thread of a process stands still: a stop is only asked for by its signal."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return True
    states = (read(None, f"/proc/{pid}/task/{task}/stat").rpartition(b")")[2].split() for task in tasks)
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
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                place = _below(os.readlink(f"/proc/{pid}/fd/{name}"), tops)
                words = read(None, f"/proc/{pid}/fdinfo/{name}").split()
                flags = int(words[words.index(b"flags:") + 1], 8)
                if place is None or flags & os.O_ACCMODE == os.O_RDONLY:
                    continue
                at_end = flags & os.O_APPEND or int(words[1]) == os.stat(f"/proc/{pid}/fd/{name}").st_size
            except (OSError, ValueError):
                continue
            only_adds = flags & os.O_ACCMODE == os.O_WRONLY and bool(at_end)
            is_stream[place] = is_stream.get(place, True) and only_adds
    return (place for place, only_adds in is_stream.items() if only_adds)


def _below(path: str, tops: Sequence[str]) -> tuple[int, str] | None:
    for number, top in enumerate(tops):
        if path.startswith(f"{top}/"):
            return number, path[len(top) + 1 :]
    return None
