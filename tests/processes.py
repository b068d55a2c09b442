"""Find what still runs, and what this process still has open."""

import gc
import os
import time
from pathlib import Path

from patience import LONG_S, eventually

# To sleep for so long, a part after the point added, is a sign to know a command by. Others may be testing here too.
LONG = f"7{os.getpid():07d}"


def left_over(marker, *, patience_s=LONG_S):
    """Processes that name a marker, after some time for those that are about to end."""
    until = time.monotonic() + patience_s
    while (found := processes(marker)) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def processes(marker):
    """Those whose command line has a marker in it."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and marker.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(int(entry))
        except OSError:
            continue
    return found


def open_descriptors():
    """Each with what it leads to; what earlier tests left unclosed is closed first."""
    gc.collect()
    found = {(int(fd), opened(fd)) for fd in os.listdir("/proc/self/fd")}
    return {(fd, to) for fd, to in found if not to.startswith("/proc/")}


def opened(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return "/proc/"  # the listing itself


def nothing_more_is_open(before):
    """What earlier tests left to their threads may be closed meanwhile; a leak stays."""
    return eventually(lambda: not open_descriptors() - before)
