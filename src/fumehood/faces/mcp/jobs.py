"""Commands that run in the background: started, looked at, stopped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from fumehood.errors import BadRequest, FumehoodError, plain_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.core.report import Run

_MOST = 64  # jobs remembered
_KEPT = 1 << 20  # characters of output kept of each


class Job:
    """One command in the background."""

    def __init__(self, name: str, work: Callable[..., Run]) -> None:
        self.name = name
        self.run: Run | None = None
        self.error: FumehoodError | None = None
        self._work = work
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._pieces: list[str] = []
        self._dropped = 0
        self._size = 0
        self._thread = threading.Thread(target=self._go, name=f"fumehood-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _go(self) -> None:
        try:
            self.run = self._work(cancelled=self._stopped.is_set, on_output=self._take)
        except Exception as error:  # noqa: BLE001 - told when somebody looks at it
            self.error = plain_error(error)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _take(self, _stream: str, text: str) -> None:
        with self._changed:
            self._pieces.append(text)
            self._size += len(text)
            while self._size - self._dropped > _KEPT and len(self._pieces) > 1:
                self._dropped += len(self._pieces.pop(0))
            self._changed.notify_all()

    @property
    def is_running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self._thread.is_alive()

    def output(self, offset: int) -> tuple[int, str]:
        """Return what was printed from an offset on, and where that begins: the oldest may be gone."""
        with self._changed:
            begin = min(max(offset, self._dropped), self._size)
            return begin, "".join(self._pieces)[begin - self._dropped :]

    def wait(self, offset: int, seconds: float) -> None:
        """Wait until there is something new, or it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._size > offset or not self.is_running or self._has_ended, seconds)

    @property
    def _has_ended(self) -> bool:
        return self.run is not None or self.error is not None

    def stop(self) -> None:
        """End the command; what it wrote is held."""
        self._stopped.set()
        self._thread.join()

    def join(self) -> None:
        """Wait for the thread of a command that has ended."""
        if self._has_ended:
            self._thread.join()


class Jobs:
    """Every command that the clients of this server started; each client knows only its own, by its own count."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], Job] = {}
        self._counts: dict[str, int] = {}

    def start(self, client: str, work: Callable[..., Any]) -> Job:
        """Start a command in the background."""
        for key in [key for key, job in self._jobs.items() if not job.is_running][: len(self._jobs) - _MOST + 1]:
            del self._jobs[key]
        if len(self._jobs) >= _MOST:
            raise BadRequest(f"{_MOST} commands are running already", hint="stop_command ends one")
        self._counts[client] = self._counts.get(client, 0) + 1
        name = f"job-{self._counts[client]}"
        job = self._jobs[client, name] = Job(name, work)
        job.start()
        return job

    def find(self, client: str, name: str) -> Job:
        """Return a job of a client by its name."""
        if (client, name) not in self._jobs:
            raise BadRequest(f"there is no job {name}", hint="start_command returns its name")
        return self._jobs[client, name]

    def stop_all(self) -> None:
        """End everything that still runs."""
        for job in self._jobs.values():
            if job.is_running:
                job.stop()
