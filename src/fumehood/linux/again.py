"""Start a sandbox once more where the host's mounts changed just then: what was surveyed was no longer so."""

from __future__ import annotations

import os

from fumehood.linux.launch import BACKDROP, given_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.linux.backdrop import Mounts
    from fumehood.linux.launch import Exit, Given, Plan
    from fumehood.linux.process import Running

    Starter = Callable[[Plan, Given], Running]

_TRIES = 5  # a host that starts containers may mount several times in the same moment


def started(start: Starter, plan: Plan, given: Given, renew: Callable[[], Mounts | None]) -> Running:
    """Start a sandbox; `renew` finds out what the host looks like now, should it have changed on the way."""
    if plan.backdrop is None:
        return start(plan, given)
    return _Again(start, plan, given, renew)


class _Again:
    """A sandbox that is started again.

    The command's descriptors are kept until it has ended: pipes that looked ended would be closed on our side.
    """

    def __init__(self, start: Starter, plan: Plan, given: Given, renew: Callable[[], Mounts | None]) -> None:
        self._start = start
        self._plan = plan
        self._renew = renew
        self._tries = _TRIES
        self._kept = [os.dup(fd) for fd in given]
        try:
            self._running = start(plan, given)
        except BaseException:
            self._let_go()
            raise

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._running.fileno()

    def advance(self) -> Exit | None:
        """Take note; return how it ended, unless it has yet to begin."""
        ended = self._running.advance()
        if ended is None:
            return None
        self._tries -= 1
        if self._tries and ended.status is None and ended.failure.startswith(BACKDROP):
            try:
                self._plan = self._plan.replace(backdrop=self._renew())
                self._running = self._start(self._plan, given_of(self._kept))
            except BaseException:
                self._let_go()
                raise
            return None
        self._let_go()
        return ended

    def _let_go(self) -> None:
        for fd in self._kept:
            os.close(fd)
        self._kept = []

    def init(self) -> int | None:
        """The first process inside, once it is known."""
        return self._running.init()

    def kill(self) -> None:
        """End everything inside, and do not begin again."""
        self._tries = 1
        self._running.kill()

    def interrupt(self) -> None:
        """Send what Ctrl-C would."""
        self._running.interrupt()
