"""What runs at this moment, and how it is asked to end."""

from __future__ import annotations

import os
import time

from fumehood.errors import BadRequest
from fumehood.store.history import RUNNING, UNFINISHED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.history import Reach

_LOOK_S = 0.05
_PATIENCE_S = 30.0


def running(store: Store, *reaches: Reach) -> list[Run]:
    """Return the commands that run now, the latest first."""
    names = {run for run, state, _, _ in store.history.unfinished() if state == RUNNING}
    return [run for run in store.history.runs(*reaches, among=names) if run.run not in store.unsettled]


def stop(store: Store, run: Run) -> Run:
    """Ask for the end of a command, and wait for its report: what it wrote is held."""
    if run.state != RUNNING or run.run in store.unsettled:
        raise BadRequest(f"run {run.run} is not running: it is {run.state}", hint="fumehood ps shows what runs")
    mark = store.places.stop_mark(run.run)
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        patience = time.monotonic() + _PATIENCE_S
        while run.state in UNFINISHED:
            if time.monotonic() > patience:
                raise BadRequest(f"run {run.run} has not ended yet", hint="it was asked to; fumehood ps shows it")
            time.sleep(_LOOK_S)
            store.recover()  # should its process have died meanwhile
            run = store.history.find(run.run)
    finally:
        os.unlink(mark)
    return run
