"""Ctrl-C at any line of ours, as it comes to a program that has threads: to one of the others."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import fumehood

OURS = os.path.dirname(fumehood.__file__) + "/"
MOMENT_S = 0.000_02


def lines_of(act: Callable[[], object], *, interrupt: int = 0, below: str = "") -> list[str]:
    """Do something and return which lines of ours it took, those of files whose names below ours begin so.

    At the line of that number, counted from one, another thread gets SIGINT, as the kernel has it where the main thread
    has blocked it. Python raises the interrupt in the main thread all the same, when it next looks for one: it comes
    out of here, unless the act was over by then.
    """
    lines: list[str] = []
    end = threading.Event()
    other = threading.Thread(target=end.wait, daemon=True)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writing, False)

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        return at_line if frame.f_code.co_filename.startswith(OURS + below) else None

    def at_line(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            lines.append(f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}")
            if len(lines) == interrupt:
                signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
        return at_line

    def send(_number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename == __file__:
            # Not in one of these functions: nobody is interrupted there.
            signal.setitimer(signal.ITIMER_REAL, 0 if end.is_set() else MOMENT_S)
            return
        assert other.ident is not None
        signal.pthread_kill(other.ident, signal.SIGINT)
        while os.read(reading, 1)[0] != signal.SIGINT:
            pass  # until it was heard

    other.start()
    rest = signal.setitimer(signal.ITIMER_REAL, 0)  # that of somebody else
    before = signal.signal(signal.SIGALRM, send)
    signal.set_wakeup_fd(writing)
    is_collecting = gc.isenabled()
    gc.disable()  # what others do at that time would swallow the interrupt
    sys.settrace(enter)
    try:
        act()
    finally:
        sys.settrace(None)
        if is_collecting:
            gc.enable()
        end.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        other.join()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *rest)
        os.close(reading)
        os.close(writing)
    return lines
