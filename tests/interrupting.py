"""Ctrl-C at any line of ours, as it comes to a program that has threads: to one of the others."""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import fumehood

OURS = os.path.dirname(fumehood.__file__) + "/"


def lines_of(act: Callable[[], object], *, interrupt: int = 0, below: str = "") -> list[str]:
    """Do something and return which lines of ours it took, those of files whose names below ours begin so.

    At the line of that number, counted from one, another thread gets SIGINT, as the kernel has it where the main thread
    has blocked it. Python raises the interrupt in the main thread all the same; it comes out of here.
    """
    lines: list[str] = []
    end = threading.Event()
    other = threading.Thread(target=end.wait, daemon=True)
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        return at_line if frame.f_code.co_filename.startswith(OURS + below) else None

    def at_line(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            lines.append(f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}")
            if len(lines) == interrupt:
                assert other.ident is not None
                signal.pthread_kill(other.ident, signal.SIGINT)
                select.select([reading], [], [])  # until it was heard
        return at_line

    other.start()
    signal.set_wakeup_fd(writing)
    sys.settrace(enter)
    try:
        act()
    finally:
        sys.settrace(None)
        signal.set_wakeup_fd(-1)
        end.set()
        other.join()
        os.close(reading)
        os.close(writing)
    return lines
