"""Forget a project: its records, its runs' layers and outputs, and the daily backups of its files."""

from __future__ import annotations

import os

from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.service import layers as layering
from fumehood.store.audit import DECIDED
from fumehood.store.backups import Daily
from fumehood.store.history import Reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.store import Store
    from fumehood.store.projects import Known


class Loss(Value):
    """What nobody has any more once a project is forgotten."""

    undoable: int
    held: int
    backups: int

    def told(self) -> str:
        """Say it in one line."""
        parts = ((self.undoable, "run that could be undone", "runs that could be undone"),
                 (self.held, "held run", "held runs"), (self.backups, "daily backup", "daily backups"))  # fmt: skip
        named = [f"{count} {one if count == 1 else many}" for count, one, many in parts if count]
        return f"what is lost: {', '.join(named)}" if named else "nothing is lost that could be undone"


def loss(store: Store, project: Known) -> Loss:
    """Find out what forgetting a project would lose."""
    runs = store.history.runs(Reach(project=project.id))
    return Loss(
        undoable=sum(run.state == "applied" and bool(run.layer) for run in runs), held=project.held,
        backups=len(_backups(store, project.id)),
    )  # fmt: skip


def forget(store: Store, project: Known) -> None:
    """Forget a project. Its files stay; what only Fumehood had of them goes.

    It is set aside first, so that nobody works with it; its records go last. So this can be done again where it was
    interrupted.
    """
    with store.alone(project.id):
        if store.history.unfinished(project.id):
            raise BadRequest(f"a run of {project.path} has not ended yet", hint="wait for it, then forget the project")
        store.projects.set_aside(project.id)
        runs = [run for (run,) in store.database.rows("SELECT id FROM runs WHERE project = ?", (project.id,))]
        for run in runs:
            if os.path.isdir(store.places.run(run)):
                layering.drop(store.places, run)
            for stream in ("stdout", "stderr"):
                if os.path.exists(store.places.output(run, stream)):
                    os.unlink(store.places.output(run, stream))
        with Daily(store.places.state) as daily:
            for name in _backups(store, project.id):
                daily.remove(name)
        store.projects.remove(project.id)
    store.audit.tell("", DECIDED, f"the project {project.path} was forgotten")


def _backups(store: Store, project: int) -> list[str]:
    files = {number for (number,) in store.database.rows("SELECT id FROM files WHERE project = ?", (project,))}
    with Daily(store.places.state) as daily:
        return [name for number, names in daily.by_file().items() if number in files for name in names]
