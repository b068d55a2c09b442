"""Undo or redo several runs at once, all or none: those of a session, or a command with its checkpoints."""

from __future__ import annotations

from fumehood.core.changes import APPLIED
from fumehood.errors import BadRequest, FumehoodError, UndoRefused
from fumehood.linux.libc import InterruptsHeld
from fumehood.service.undo import in_turn, on_top, to_redo, undo
from fumehood.store.history import CHECKPOINT, LAST, RunFilter
from fumehood.store.search import running_with_checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.projects import Project


def undo_session(store: Store, project: Project, name: str, *, by: str = "", force: bool = False) -> list[Run]:
    """Undo all runs of a session, the latest first: all or none. Return the undos.

    `by` is the session that asks, if it is not a person. With `force`, what was changed since is saved first and undone
    too.
    """
    if store.sessions.find(name) is None:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    if running := running_with_checkpoints(store.database, name):
        running = store.history.name_of(running)
        raise UndoRefused(
            f"the session {name} was not undone: run {running} still runs, and some of what it wrote is settled",
            hint=f"first: fumehood stop {running}",
        )
    in_session = RunFilter(project=project.id, sessions=(name,))
    runs = [run for run in store.history.not_taken_back(in_session) if run.act in ("run", CHECKPOINT)]
    if not runs:
        raise BadRequest(f"nothing of the session {name} is left to undo", hint=f"fumehood log --session {name}")
    return _undo_all(store, project, f"the session {name} was not undone", runs, by, force=force)


def redo_session(store: Store, project: Project, name: str, *, by: str = "", force: bool = False) -> list[Run]:
    """Redo all runs of a session that were undone, the last undo first: all or none. Return the runs that did it."""
    in_session = RunFilter(project=project.id, sessions=(name,))
    layers = {run.layer or run.run for run in store.history.runs(in_session)}
    made_by = RunFilter(project=project.id, sessions=(by,) if by else ())
    undos = [back for back in store.history.undos_in_force(made_by) if back.layer in layers]
    if not undos:
        raise BadRequest(f"nothing of the session {name} is left to redo", hint=f"fumehood log --session {name}")
    return _undo_all(store, project, f"the session {name} was not brought back", undos, by, force=force)


def undo_command(store: Store, project: Project, run: Run, *, by: str = "", force: bool = False) -> list[Run]:
    """Undo a command, with all that its checkpoints applied while it ran: all or none. Return the undos.

    Only the end of the command is undone where that end builds on other runs, and these on its checkpoints: then the
    checkpoints can't be undone before the other runs.
    """
    checkpoints = store.history.checkpoints_of(run) if run.act == "run" else []
    in_force = (each for each in (run, *checkpoints) if checkpoints and each.state in ("applied", "held"))
    runs = [each for each in in_force if any(change.verdict == APPLIED for change in each.changed)]
    if not runs:  # a plain undo, which also says why there is nothing to undo
        return [undo(store, project, run, by=by, force=force)]
    try:
        return _undo_all(store, project, f"run {run.name} was not undone", runs, by, force=force)
    except UndoRefused:
        if force or run not in runs:
            raise
        # Another run may lie between the command's checkpoints and its end.
        own = {each.run for each in runs}
        others = {other.run: other for each in runs[1:] for other in on_top(store, each) if other.run not in own}
        if not any(top.run == run.run for other in others.values() for top in on_top(store, other)):
            raise
        return [undo(store, project, run, by=by)]


def redo_command(
    store: Store, project: Project, name: str, *filters: RunFilter, paths: Sequence[str] = (), here: str = "",
    by: str = "", force: bool = False,
) -> list[Run]:  # fmt: skip
    """Redo what the last undo undid, or a named command with all that its checkpoints applied; return those runs.

    With paths, only what one undo undid there.
    """
    run = None if name == LAST else store.history.find(name, *filters)
    checkpoints = store.history.checkpoints_of(run) if run is not None and run.act == "run" else []
    if run is None or not checkpoints or paths:
        back = to_redo(store, name, *filters, paths=paths, here=here)
        return [undo(store, project, back, paths, here=here, by=by, force=force)]
    layers = {each.layer or each.run for each in (run, *checkpoints)}
    undos = [back for back in store.history.undos_in_force(*filters) if back.layer in layers]
    if not undos:
        raise BadRequest(f"run {run.name} is not taken back", hint=f"fumehood show {run.name}")
    return _undo_all(store, project, f"run {run.name} was not brought back", undos, by, force=force)


def _undo_all(store: Store, project: Project, refusal: str, runs: Sequence[Run], by: str, *, force: bool) -> list[Run]:
    """Undo runs, which may be undos themselves: all or none."""
    undos: list[Run] = []
    try:
        if not force:
            # A wrong order would be refused in the middle, and the undos until then would stay in the log.
            runs = in_turn(store, runs)
        with InterruptsHeld():  # Ctrl-C comes before all of them, or after
            # One by one, and not in a list of its own: `undos` must have those that are done when one is refused.
            undos.extend(undo(store, project, run, by=by, force=force) for run in runs)
    except FumehoodError as error:
        for back in reversed(undos):
            undo(store, project, back, by=by, as_it_was=True)
        raise UndoRefused(f"{refusal}: {error.message}", hint=error.hint or "the project is as it was") from error
    return undos
