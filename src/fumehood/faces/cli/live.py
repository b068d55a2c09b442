"""One line on the terminal that tells what a running command is writing."""

from __future__ import annotations

import os
import time

from fumehood.core.report import printable
from fumehood.core.wording import elapsed
from fumehood.linux.monitor import watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Watched
    from fumehood.linux.streams import Sink

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PAUSE_S = 0.05  # between two writings of the line, so that a busy command does not wait for the terminal
_SIGNS = {"added": "+", "updated": "~", "removed": "-", "cancelled": "!"}


class LiveLine:
    """The line, which makes way for the command's own output; it is read as a watch on the layers."""

    _watched: Watched

    def __init__(self) -> None:
        self._is_shown = False
        self._count = 0
        self._at_line_start = True
        self._next = 0.0
        self._began = time.monotonic()

    def watch(self, layers: Sequence[Layer]) -> Watched:
        """Start telling."""
        self._watched = watcher(self._tell)(layers)
        self.fileno = self._watched.fileno
        self.drain = self._watched.drain
        return self

    def stop(self) -> None:
        """Read the rest and stop, and leave no line behind."""
        self._watched.stop()
        self._clear()

    def around(self, sink: Sink) -> Callable[[bytes], None]:
        """Return a sink that clears the line before the command's output."""

        def clearing(data: bytes) -> None:
            if data:
                self._clear()
                self._at_line_start = data.endswith(b"\n")
            sink(data)

        return clearing

    def _tell(self, what: str, path: str) -> None:
        self._count += 1
        now = time.monotonic()
        # In the middle of one of the command's own lines, nothing is written.
        if not self._at_line_start or now < self._next:
            return
        self._next = now + _PAUSE_S
        try:
            width = max((os.get_terminal_size(2).columns or 80) - 25, 8)
        except OSError:
            return  # the terminal is gone, and the command with it
        name = printable(path)
        name = name if len(name) <= width else "…" + name[1 - width :]
        spin = _SPINNER[self._count % len(_SPINNER)]
        since = f" {elapsed(now - self._began)}" if now - self._began >= 1 else ""
        self._write(f"\r\033[K{spin}{since} {self._count} {_SIGNS[what]} {name}".encode(errors="replace"))
        self._is_shown = True

    def _clear(self) -> None:
        if self._is_shown:
            self._write(b"\r\033[K")
            self._is_shown = False

    def _write(self, line: bytes) -> None:
        try:
            os.write(2, line)
        except OSError:
            return  # only a decoration: the run must not fail for it
