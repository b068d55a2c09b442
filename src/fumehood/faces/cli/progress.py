"""A line on the terminal that tells what is being done, for how long, and how far it has come."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from fumehood.core.report import printable
from fumehood.core.wording import elapsed, fitted
from fumehood.service import apply

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
