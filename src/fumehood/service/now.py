"""What runs at this moment, and how it is asked to end, or to settle what it has written so far."""

from __future__ import annotations

import os
import time

from fumehood.core.judge import HOLD_ALL
from fumehood.core.report import Run
from fumehood.core.request import APPLY, WHOLE
from fumehood.errors import BadRequest
from fumehood.linux.capture import KERNEL, LABELS
from fumehood.linux.libc import read, remove_file
from fumehood.store.history import RUNNING, UNFINISHED, Reach
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.service.agents import ShellCommands
    from fumehood.service.checkpoint import Checkpoints
    from fumehood.service.hood import Hood
    from fumehood.service.store import Store

_LOOK_S = 0.05
_PATIENCE_S = 30.0
_SHARE = 20  # of the time that passes, at most a twentieth is spent on checkpoints that nobody asked for


def running(store: Store, *reaches: Reach) -> list[Run]:
    """Return the commands that run now, the latest first."""
    names = {run for run, state, _, _ in store.history.unfinished() if state == RUNNING}
    return [run for run in store.history.runs(*reaches, among=names) if run.run not in store.unsettled]


def stop(store: Store, run: Run) -> Run:
    """Ask for the end of a command, and wait for its report: what it wrote is held."""
    _refuse_what_does_not_run(store, run)
    mark = store.places.stop_mark(run.run)
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        patience = time.monotonic() + _PATIENCE_S
        while run.state in UNFINISHED:
            if time.monotonic() > patience:
                raise BadRequest(
                    f"run {run.name} has not ended: the process that attends it does not answer",
                    hint="it goes on where it was; ask again, or end that process: fumehood ps shows what runs",
                )
            time.sleep(_LOOK_S)
            store.recover()  # should its process have died meanwhile
            run = store.history.find(run.run)
            if why := store.unsettled.get(run.run):
                raise BadRequest(
                    f"run {run.name} has ended, and what it wrote can't be looked at yet: {why}",
                    hint=f"it is kept; fumehood show {run.name}",
                )
    finally:
        remove_file(mark)  # two may ask at once
    return run


def _refuse_what_does_not_run(store: Store, run: Run) -> None:
    if run.state != RUNNING or run.run in store.unsettled:
        raise BadRequest(f"run {run.name} is not running: it is {run.state}", hint="fumehood ps shows what runs")


def checkpoint(store: Store, run: Run) -> Run:
    """Have what a command has finished writing settled while it goes on; returns the run that did so."""
    _refuse_what_does_not_run(store, run)
    if not run.sandboxed or run.capture != KERNEL:
        way = LABELS.get(run.capture, "nothing")
        raise BadRequest(f"run {run.name} is captured by {way}, which has no checkpoints", hint="fumehood doctor")
    if run.mode != APPLY:
        meant = "apply its changes at its end, all or none" if run.mode == WHOLE else f"{run.mode} its changes"
        raise BadRequest(f"run {run.name} is to {meant}: none are applied now", hint="wait for its end")
    mark, name = store.places.checkpoint_mark(run.run), new_id()
    patience = time.monotonic() + _PATIENCE_S
    beside = f"{mark}-{name}"
    with open(beside, "x", encoding="ascii") as file:
        file.write(name)
    try:
        while not _is_linked(beside, mark):  # somebody else has asked for one
            _wait_for(store, run, patience)
        while asked_for(mark) == name:
            _wait_for(store, run, patience)
    finally:
        os.unlink(beside)
        _take_off(mark, name)
    store.recover()
    return store.history.find(name)


def _is_linked(beside: str, mark: str) -> bool:
    try:
        os.link(beside, mark)
    except FileExistsError:
        return False
    return True


def asked_for(mark: str) -> str:
    """Return the name of the checkpoint that somebody asks for; nothing where nobody does."""
    return read(mark).decode("ascii")


def _take_off(mark: str, name: str) -> None:
    """Ask for a checkpoint no longer; who asked may have gone, and somebody else may ask for another by now."""
    if asked_for(mark) == name:
        remove_file(mark)


def _wait_for(store: Store, run: Run, patience: float) -> None:
    store.recover()  # should its process have died meanwhile
    if store.history.find(run.run).state not in UNFINISHED:
        raise BadRequest(f"run {run.name} has ended meanwhile", hint=f"fumehood show {run.name}")
    if time.monotonic() > patience:
        raise BadRequest(
            f"run {run.name} could not be stopped for a checkpoint", hint="try again; fumehood ps shows what runs"
        )
    time.sleep(_LOOK_S)


class When:
    """Tells when a running command is to be checkpointed: somebody asks for it, or its interval is over."""

    def __init__(
        self, hood: Hood, run: Run, make: Callable[[], Checkpoints], background_after: float | None,
        commands: ShellCommands | None = None,
    ) -> None:  # fmt: skip
        self._make = make
        self._mark = hood.store.places.checkpoint_mark(run.run)
        self._commands = commands  # that an agent runs, each of which is settled by itself
        self._checkpoints: Checkpoints | None = None if commands is None else commands.checkpoints
        by_itself = background_after is not None and run.mode == APPLY and hood.policy.on_conflict != HOLD_ALL
        self._every = hood.policy.checkpoint if by_itself and run.capture == KERNEL else 0.0
        self._next = time.monotonic() + (background_after or 0.0)

    def look(self, init: int) -> None:
        """Make a checkpoint where it is time; `init` is the first process of the sandbox."""
        name = asked_for(self._mark)
        if self._commands is not None and self._commands.look() and not name:
            return
        if not name and (not self._every or time.monotonic() < self._next):
            return
        if self._checkpoints is None:
            self._checkpoints = self._make()
        began = time.monotonic()
        if (name or self._checkpoints.is_due()) and self._checkpoints.make(init, name) and name:
            _take_off(self._mark, name)
        ended = time.monotonic()
        self._next = ended + max(self._every, _SHARE * (ended - began))
