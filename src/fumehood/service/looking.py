"""The look at what a command changed, and what becomes of the run where it comes to no end: what it wrote is kept."""

from __future__ import annotations

from fumehood.errors import TooDeep, Unfinished
from fumehood.service.settle import FAILED, HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.errors import FumehoodError
    from fumehood.linux.libc import InterruptsHeld
    from fumehood.linux.signals import Signals
    from fumehood.service.store import Store
    from fumehood.store.history import Printed

INTERRUPTED = "interrupted while its changes were looked at"
_LONG_S = 1.0  # of work: whoever types Ctrl-C twice means the command, not what comes after it


class Looking:
    """Lets Ctrl-C end a look that takes long, in a `with`: nothing is applied yet.

    An interrupted run is left as one whose process died, so the next start looks again and holds it. What is nested too
    deeply would never be taken over: that run has failed, and a person can look into its directory, or discard it.
    """

    def __init__(
        self, store: Store, run: Run, printed: Sequence[Printed], signals: Signals | None, interrupts: InterruptsHeld
    ) -> None:
        self._store = store
        self._run = run
        self._printed = printed
        self._signals = signals
        self._interrupts = interrupts

    def __enter__(self) -> None:
        if self._signals is not None:
            self._signals.interrupt_again(after_s=_LONG_S)
        self._interrupts.let_in()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._interrupts.hold()
        if self._signals is not None:
            self._signals.note()
        run = self._run
        discard = f"fumehood discard {run.run} throws it away"
        if isinstance(error, TooDeep):
            self._record(FAILED, error.message)
            directory = self._store.places.run(run.run)
            raise self._told(TooDeep(error.message, hint=f"what it wrote is kept in {directory}; {discard}")) from error
        if isinstance(error, KeyboardInterrupt):
            self._record(run.state, INTERRUPTED)
            if self._signals is None:
                return  # whoever calls the library is told in Python's own way
            run.state = HELD  # as soon as anybody asks
            unfinished = Unfinished(
                f"run {run.run} was {INTERRUPTED}: nothing was applied",
                hint=f"what it wrote is kept, and the next fumehood command holds it; {discard}",
            )
            unfinished.exit_code = 130
            raise self._told(unfinished) from error

    def _record(self, state: str, reason: str) -> None:
        self._run.state, self._run.reason = state, reason
        self._store.history.end(self._run, self._printed)

    def _told(self, error: FumehoodError) -> FumehoodError:
        error.run, error.told = self._run.run, self._run.as_dict()
        return error
