"""A line on the terminal that tells what is being done, for how long, and how far it has come.

One line on the terminal that tells what a running command is writing.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from fumehood.core.report import printable
from fumehood.core.wording import elapsed, fitted
from fumehood.linux.monitor import watcher
from fumehood.service import apply

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Self

    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Watched
    from fumehood.linux.streams import Sink


_AFTER_S = 1.0  # what takes less needs no word
_EVERY_S = 0.2
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def _of_how_many() -> str:
    done, total = apply.progress()
    return f"{done} of {total}" if total else ""


class Ticking:
    """Shows the line for a `with` block, from its second second on; only at a terminal, and not where it is quiet."""

    def __init__(self, what: str, options: argparse.Namespace, amount: Callable[[], str] = _of_how_many) -> None:
        self.what = what
        self.amount = amount
        self._is_on = os.isatty(2) and os.environ.get("TERM") != "dumb" and not getattr(options, "quiet", False)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._is_shown = False

    def __enter__(self) -> Self:
        apply.note_progress((), 0)
        self._thread = threading.Thread(target=self._tick, name="fumehood-progress", daemon=True)
        if self._is_on:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        if self._is_on:
            self._thread.join()
        self.clear()

    def clear(self) -> None:
        """Take the line away, for another to be written."""
        with self._lock:
            if self._is_shown:
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()
            self._is_shown = False

    def _tick(self) -> None:
        began, turn = time.monotonic(), 0
        wait = _AFTER_S
        while not self._ended.wait(wait):
            turn, wait = turn + 1, _EVERY_S
            amount = self.amount()
            words = [self.what, amount, elapsed(time.monotonic() - began)]
            line = f"{_SPINNER[turn % len(_SPINNER)]} {'  '.join(word for word in words if word)}"
            try:
                room = (os.get_terminal_size(2).columns or 80) - 1
            except OSError:
                return  # the terminal is gone
            with self._lock:
                sys.stderr.write(f"\r{fitted(printable(line), room)}\033[K")
                sys.stderr.flush()
                self._is_shown = True


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
