"""How long to wait for what must come: a busy machine may stand still for a while, and nothing here is timed."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from fumehood.linux.cache import TICK_NS

Done = TypeVar("Done")

LONG_S = 400.0  # what is waited for so long fails the test
LIMITS_S = (0.5, 3.0, 15.0, 60.0)


def eventually(is_so: Callable[[], object]) -> bool:
    """Wait until something is so; tell whether it came to be."""
    until = time.monotonic() + LONG_S
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def in_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is async; it must come to an end."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 2 * LONG_S))

    return run


def let_time_pass(top: Path) -> None:
    """Wait until nothing that is there has just been changed: another change would bear the same time."""
    newest = max(path.lstat().st_ctime_ns for path in (top, *top.rglob("*")))
    while time.time_ns() - newest < TICK_NS:
        time.sleep(0.01)


def with_enough_time(run: Callable[[float], Done], has_begun: Callable[[Done], object]) -> Done:
    """Run a command that goes on until its time limit, with limits that grow until it could begin within one.

    A limit that ended it before that shows nothing.
    """
    for limit in LIMITS_S[:-1]:
        done = run(limit)
        if has_begun(done):
            return done
    return run(LIMITS_S[-1])
