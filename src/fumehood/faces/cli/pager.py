"""A long text is read through the person's own pager.

The pager gets the text on its standard input and nothing else: it opens no file that a command wrote, and `less` is
told to open none by itself either. It starts in /, so that no relative entry of PATH leads it into the project.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

from fumehood.faces.cli.output import GuardedText

_NONE = ("", "cat")
_USUAL = "command -v less >/dev/null && exec less; exec cat"


class Paged:
    """Has standard output read through a pager for a `with` block, where it goes to a terminal."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._pager = os.environ.get("PAGER", _USUAL).strip()
        is_read = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._is_on = wanted and is_read and self._pager not in _NONE

    def __enter__(self) -> None:
        self._before, self._process = sys.stdout, None
        if not self._is_on:
            return
        hidden = ("LESSOPEN", "LESSCLOSE")  # programs that less would start
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment = {"LESS": "FRX", **environment, "LESSSECURE": "1"}
        command = ["/bin/sh", "-c", self._pager]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", env=environment)
        assert self._process.stdin is not None
        text = io.TextIOWrapper(self._process.stdin, encoding="utf-8", errors="backslashreplace")
        sys.stdout = GuardedText(text)
        self._interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> bool:
        if self._process is None:
            return False
        try:
            sys.stdout.close()
        except BrokenPipeError:
            pass  # the person has read enough
        finally:
            sys.stdout = self._before
            self._process.wait()
            signal.signal(signal.SIGINT, self._interrupt)
        return kind is BrokenPipeError
