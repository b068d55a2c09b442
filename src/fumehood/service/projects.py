"""What is done with whole projects: workspaces are reset, emptied and removed, and a project is forgotten.

And the directories of commands without a project.
"""

from __future__ import annotations

import os
import weakref

from fumehood.core.report import how_many
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.libc import Closing, remove_file
from fumehood.linux.lock import Lock, lock_directory
from fumehood.linux.nofollow import LISTING, entries, open_top, remove_directory, remove_tree, walk
from fumehood.rootfs.tree import RootLayer
from fumehood.service import layers as layering
from fumehood.service.decide import discard_held
from fumehood.service.drafts import discard_draft
from fumehood.store.audit import DECIDED
from fumehood.store.files import DailyBackups
from fumehood.store.history import RunFilter
from fumehood.store.places import FileLock, Places, make_private, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.store import Store
    from fumehood.store.named import Workspace
    from fumehood.store.projects import KnownProject, Project


# ---- Workspaces.

def root_layer_of(store: Store, project: Project | KnownProject) -> RootLayer:
    """Return the layer of a project over a root tree; it may not be made yet."""
    return RootLayer(f"{store.places.layers}/{project.id}")


def reset_root(store: Store, project: Project | KnownProject) -> bool:
    """Remove what a project's commands have installed into the root; return False if there was nothing."""
    return root_layer_of(store, project).drop() if project.id else False


def remove_workspace(store: Store, workspace: Workspace, *, sure: bool) -> None:
    """Remove a workspace with everything in it; its runs stay in the history."""
    project = store.projects.open(workspace.path)
    with lock_workspace(store, workspace.name), store.lock_project(project.id):
        _refuse_if_in_use(store, project, workspace, "remove", sure=sure)
        reset_root(store, project)
        remove_directory(workspace.path)
        store.workspaces.forget(workspace.name)


def clear_workspace(store: Store, workspace: Workspace, *, sure: bool) -> None:
    """Remove a workspace's files, held changes, drafts and root layer; its settings and runs stay."""
    project = store.projects.open(workspace.path)
    _refuse_if_in_use(store, project, workspace, "clear", sure=sure)
    for draft in store.drafts.open_drafts(project.id):
        discard_draft(store, project, draft)
    for run in store.history.held_runs(project.id):
        discard_held(store, project, store.history.find(run), ())
    with store.lock_project(project.id):
        _refuse_if_in_use(store, project, workspace, "clear", sure=sure)
        reset_root(store, project)
        with Closing(open_top(workspace.path)) as directory:
            for name in entries(directory):
                remove_tree(directory, name)


def _refuse_if_in_use(store: Store, project: Project, workspace: Workspace, act: str, *, sure: bool) -> None:
    """Refuse to remove or clear a workspace if a command runs in it, or it has files and the person is not `sure`."""
    if store.has_running_command(project.id):
        raise BadRequest(f"a command is running in the workspace {workspace.name}", hint="wait for it, or stop it")
    with Closing(open_top(workspace.path)) as directory:
        count = len(entries(directory))
    if count and not sure:
        raise BadRequest(
            f"the workspace {workspace.name} is not empty ({how_many(count, 'entry', 'entries')})",
            hint=f"fumehood workspace {act} {workspace.name} --yes",
        )


def lock_workspace(store: Store, name: str) -> FileLock:
    """Take a workspace's lock for a `with` block, so that it is not removed while it is being opened."""
    return FileLock(store.places.lock(f"workspace-{name}"))


def size_of(path: str) -> int:
    """Return how many bytes the files below a directory take, or 0 if there is none."""
    try:
        top = open_top(path)
    except OSError:
        return 0
    with Closing(top):
        return sum(status.st_blocks * 512 for _, status in walk(top, ""))


# ---- Forgetting a project.

class Loss(Value):
    """What is lost when a project is forgotten."""

    undoable: int
    held: int
    backups: int

    def in_words(self) -> str:
        """Return it in one line."""
        parts = ((self.undoable, "run that could be undone", "runs that could be undone"),
                 (self.held, "held run", "held runs"), (self.backups, "daily backup", "daily backups"))  # fmt: skip
        named = [how_many(count, one, many) for count, one, many in parts if count]
        return f"what is lost: {', '.join(named)}" if named else "nothing is lost that could be undone"


def loss_if_forgotten(store: Store, project: KnownProject) -> Loss:
    """Return what forgetting a project would lose."""
    runs = store.history.runs(RunFilter(project=project.id))
    return Loss(
        undoable=sum(run.state == "applied" and bool(run.layer) for run in runs), held=project.held,
        backups=len(_daily_backups_of(store, project.id)),
    )  # fmt: skip


def forget_project(store: Store, project: KnownProject) -> None:
    """Forget a project. Its own files stay; layers, outputs and backups are removed.

    First it is set aside, so that nobody works with it, and its records are removed last. So this can be repeated if it
    was interrupted.
    """
    # Both locks are needed, so that no command begins meanwhile.
    with store.lock_project(project.id), store.lock_held_trees(project.id, settling=True):
        if any(layering.is_process_alive(store.places, run) for run, *_ in store.history.unfinished_runs(project.id)):
            raise BadRequest(f"a run of {project.path} has not ended yet", hint="wait for it, then forget the project")
        store.projects.set_aside(project.id)
        runs = [run for (run,) in store.database.rows("SELECT id FROM runs WHERE project = ?", (project.id,))]
        for run in runs:
            if os.path.isdir(store.places.run(run)):
                layering.drop(store.places, run)
            for stream in ("stdout", "stderr"):
                remove_file(store.places.output(run, stream))
        with DailyBackups(store.places.state) as daily:
            for name in _daily_backups_of(store, project.id):
                daily.remove(name)
        bases = {draft.base for draft in store.drafts.open_drafts(project.id) if draft.base is not None}
        for directory in (store.places.folded(project.id), *map(store.places.draft, bases)):
            remove_directory(directory)
        reset_root(store, project)
        store.projects.remove(project.id)
    store.audit.add_event("", DECIDED, f"the project {project.path} was forgotten")


def _daily_backups_of(store: Store, project: int) -> list[str]:
    files = {number for (number,) in store.database.rows("SELECT id FROM files WHERE project = ?", (project,))}
    with DailyBackups(store.places.state) as daily:
        return [name for number, names in daily.names_by_file().items() if number in files for name in names]


# ---- A directory for commands without a project: nobody else sees it, and it is removed with whoever made it.

class ThrowawayDirectory:
    """One such directory. Its maker holds a lock on it: without the lock, its maker has died."""

    def __init__(self, places: Places) -> None:
        parent = _throwaway_parent(places)
        make_private(parent)
        self.path = f"{parent}/{new_id()}"
        # Locked, so that nobody takes the new directory for an abandoned one before it has its own lock.
        with lock_directory(parent) as parent_lock:
            _remove_abandoned(parent_lock.file)
            os.mkdir(self.path, 0o700)
            lock = lock_directory(self.path)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the directory."""
        self._finalizer()


def remove_abandoned_directories(places: Places) -> None:
    """Remove the directories that dead processes have left."""
    try:
        parent_lock = lock_directory(_throwaway_parent(places))
    except FileNotFoundError:
        return
    with parent_lock:
        _remove_abandoned(parent_lock.file)


def _throwaway_parent(places: Places) -> str:
    return f"{places.cache}/thrown"


def _remove_abandoned(parent: int) -> None:
    for name in os.listdir(parent):
        with Lock(os.open(name, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as directory:
            try:
                directory.take(wait=False)
            except BlockingIOError:
                continue  # its maker is alive
            remove_tree(parent, name)


def _remove(path: str, lock: Lock) -> None:
    """Remove a directory. In a child that the program forked, the lock is closed, and nothing is removed."""
    if lock.file >= 0:
        remove_directory(path)
    lock.close()
