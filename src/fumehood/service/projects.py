"""What is done with projects: more roots, workspaces made, reset and removed, and a project forgotten.

Another directory that commands may write can only be added by a person, and only the one they saw.
"""

from __future__ import annotations

import os
import weakref

from fumehood.core.masks import is_in
from fumehood.core.questions import root_question
from fumehood.core.report import how_many
from fumehood.core.request import Request
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.cache import plain_file
from fumehood.linux.libc import Closing, remove_file
from fumehood.linux.lock import Lock, lock_directory
from fumehood.linux.namespaces import possible_roots
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
    from fumehood.service.hood import Caller, Hood
    from fumehood.service.permission import Permissions
    from fumehood.service.store import Store
    from fumehood.store.named import Workspace
    from fumehood.store.projects import KnownProject, Project


_LONGEST = 4096
_LOOKED_AT = 2000  # entries of a project that are looked at for links


def add_root(
    store: Store, project: Project, path: str, permissions: Permissions, *, by_person: bool = False
) -> Project:
    """Let a project's commands write another directory, once a person has said so.

    Where the person named it themselves (`by_person`), that is their word; but a symlink may have been planted, so
    where one leads somewhere else than it says, they are asked about what it leads to.
    """
    real = store.projects.check_new_root(project, path)
    named = os.path.abspath(path)
    link = None if named == real else named
    if link is not None or not by_person:
        permissions.require(root_question(real, project.path, link))
    # What was approved, and not what the name leads to by now.
    added = store.projects.record_root(project, real)
    store.audit.add_event("", DECIDED, f"a root was added: {real}", project=project.id)
    return added


def remove_root(store: Store, project: Project, path: str) -> Project:
    """Take back that commands may write a directory; nobody needs to be asked for that."""
    if os.path.realpath(path) == project.path:
        said = f"{project.path} is not a root of {project.path}, but the project itself"
        raise BadRequest(said, hint="fumehood roots list shows the others")
    left = store.projects.remove_root(project, path)
    store.audit.add_event("", DECIDED, f"a root was removed: {os.path.realpath(path)}", project=project.id)
    return left


def offered(store: Store, project: Project) -> list[str]:
    """Return directories that commands may come to need: a work tree's git directory, what links lead to, and mounts.

    Links are looked for at the top of the project and in its directories, no deeper: to offer, and never to add.
    """
    addable = []
    for path in dict.fromkeys([git_directory(project.path), *_linked(project.path), *possible_roots(project.path)]):
        try:
            if path:
                store.projects.check_new_root(project, path)
                addable.append(path)
        except BadRequest:
            continue
    return addable


def _linked(top: str) -> list[str]:
    targets: list[str] = []
    looked_at = 0
    waiting = [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    looked_at += 1
                    if looked_at > _LOOKED_AT:
                        return sorted(targets)
                    if entry.is_symlink() and entry.is_dir():
                        targets.append(os.path.realpath(entry.path))
                    elif entry.is_dir(follow_symlinks=False) and os.path.dirname(entry.path) == top:
                        waiting.append(entry.path)
        except OSError:
            continue  # gone, or closed to us
    return sorted(targets)


def git_directory(project: str) -> str | None:
    """Return the repository that a project is a linked work tree of, or None, without running git.

    The project's own `.git` file could have been written by a command, so it is believed only if the
    repository, which commands can't write, names this work tree too.
    """
    line = _line(f"{project}/.git")
    if line is None or not line.startswith("gitdir: "):
        return None
    own = os.path.realpath(os.path.join(project, line[len("gitdir: ") :]))
    back = _line(f"{own}/gitdir")
    common = _line(f"{own}/commondir")
    if back is None or common is None or os.path.realpath(back) != os.path.realpath(f"{project}/.git"):
        return None
    repository = os.path.realpath(os.path.join(own, common))
    is_repository = all(os.path.exists(f"{repository}/{part}") for part in ("HEAD", "objects", "refs"))
    return repository if is_repository and os.path.dirname(own) == f"{repository}/worktrees" else None


def _line(path: str) -> str | None:
    """Return the one line of a small file; a directory has none, as in an ordinary repository."""
    text = plain_file(path, most=_LONGEST)
    return None if text is None else os.fsdecode(text).rstrip("\n")


def layer_of(store: Store, project: Project | KnownProject) -> RootLayer:
    """Return the layer that a project has over a root tree, made or not."""
    return RootLayer(f"{store.places.layers}/{project.id}")


def reset(store: Store, project: Project | KnownProject) -> bool:
    """Drop what a project's commands have installed into the root; returns False if there was nothing."""
    return layer_of(store, project).drop() if project.id else False


def remove(store: Store, workspace: Workspace, *, sure: bool) -> None:
    """Remove a workspace with everything in it; its runs stay in the history."""
    project = store.projects.open(workspace.path)
    with workspace_lock(store, workspace.name), store.lock_project(project.id):
        _refuse_in_use(store, project, workspace, "remove", sure=sure)
        reset(store, project)
        remove_directory(workspace.path)
        store.workspaces.forget(workspace.name)


def clear(store: Store, workspace: Workspace, *, sure: bool) -> None:
    """Empty a workspace: its files go, what it holds, and its layer over the root tree; its settings and runs stay."""
    project = store.projects.open(workspace.path)
    _refuse_in_use(store, project, workspace, "clear", sure=sure)
    for draft in store.drafts.open_drafts(project.id):
        discard_draft(store, project, draft)
    for run in store.history.held_runs(project.id):
        discard_held(store, project, store.history.find(run), ())
    with store.lock_project(project.id):
        _refuse_in_use(store, project, workspace, "clear", sure=sure)
        reset(store, project)
        with Closing(open_top(workspace.path)) as folder:
            for name in entries(folder):
                remove_tree(folder, name)


def _refuse_in_use(store: Store, project: Project, workspace: Workspace, act: str, *, sure: bool) -> None:
    if store.has_running_command(project.id):
        raise BadRequest(f"a command is running in the workspace {workspace.name}", hint="wait for it, or stop it")
    with Closing(open_top(workspace.path)) as folder:
        count = len(entries(folder))
    if count and not sure:
        raise BadRequest(
            f"the workspace {workspace.name} is not empty ({how_many(count, 'entry', 'entries')})",
            hint=f"fumehood workspace {act} {workspace.name} --yes",
        )


def workspace_lock(store: Store, name: str) -> FileLock:
    """Take a workspace's lock for a `with` block: it is not removed while it is being opened."""
    return FileLock(store.places.lock(f"workspace-{name}"))


def size_of(path: str) -> int:
    """Return how many bytes the files below a directory take up; 0 where there is none."""
    try:
        top = open_top(path)
    except OSError:
        return 0
    with Closing(top):
        return sum(status.st_blocks * 512 for _, status in walk(top, ""))


class Loss(Value):
    """What nobody has any more once a project is forgotten."""

    undoable: int
    held: int
    backups: int

    def in_words(self) -> str:
        """Return it in one line."""
        parts = ((self.undoable, "run that could be undone", "runs that could be undone"),
                 (self.held, "held run", "held runs"), (self.backups, "daily backup", "daily backups"))  # fmt: skip
        named = [how_many(count, one, many) for count, one, many in parts if count]
        return f"what is lost: {', '.join(named)}" if named else "nothing is lost that could be undone"


def loss(store: Store, project: KnownProject) -> Loss:
    """Return what forgetting a project would lose."""
    runs = store.history.runs(RunFilter(project=project.id))
    return Loss(
        undoable=sum(run.state == "applied" and bool(run.layer) for run in runs), held=project.held,
        backups=len(_backups(store, project.id)),
    )  # fmt: skip


def forget(store: Store, project: KnownProject) -> None:
    """Forget a project. Its files stay; what only Fumehood had of them goes.

    It is set aside first, so that nobody works with it; its records go last. So this can be done again where it was
    interrupted.
    """
    # Both locks, so that no command begins meanwhile.
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
            for name in _backups(store, project.id):
                daily.remove(name)
        bases = {draft.base for draft in store.drafts.open_drafts(project.id) if draft.base is not None}
        for directory in (store.places.folded(project.id), *map(store.places.draft, bases)):
            remove_directory(directory)
        reset(store, project)
        store.projects.remove(project.id)
    store.audit.add_event("", DECIDED, f"the project {project.path} was forgotten")


def _backups(store: Store, project: int) -> list[str]:
    files = {number for (number,) in store.database.rows("SELECT id FROM files WHERE project = ?", (project,))}
    with DailyBackups(store.places.state) as daily:
        return [name for number, names in daily.names_by_file().items() if number in files for name in names]


# ---- A directory for commands without a project: ours, seen by nobody else, and thrown away with whoever made it.

class ThrownDirectory:
    """One such directory. Who makes it holds a lock on it, so that what a dead process left is known."""

    def __init__(self, places: Places) -> None:
        above = _above(places)
        make_private(above)
        self.path = f"{above}/{new_id()}"
        with lock_directory(above) as around:  # nobody takes it for a dead one's before it is locked
            _remove_left(around.file)
            os.mkdir(self.path, 0o700)
            lock = lock_directory(self.path)
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove it."""
        self._end()


def remove_left(places: Places) -> None:
    """Remove what dead processes left."""
    try:
        around = lock_directory(_above(places))
    except FileNotFoundError:
        return
    with around:
        _remove_left(around.file)


def _above(places: Places) -> str:
    return f"{places.cache}/thrown"


def _remove_left(around: int) -> None:
    for name in os.listdir(around):
        with Lock(os.open(name, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=around)) as directory:
            try:
                directory.take(wait=False)
            except BlockingIOError:
                continue  # somebody works there
            remove_tree(around, name)


def _remove(path: str, lock: Lock) -> None:
    """Remove a directory; a child that the program forked does nothing."""
    if lock.file >= 0:
        remove_directory(path)
    lock.close()


# ---- Directories that a person gave the client beside the project: offered as roots, once, when a session uses one.
#
# That they gave it to the client is not enough: only their answer here makes it a root.

_MARK = "offered-"


def offer(hood: Hood, request: Request, caller: Caller) -> Request:
    """Ask whether commands may write what this one uses of such directories; the request then has what stays read-only.

    Where nobody is there to ask, the command is told, as once as the person would be.
    """
    from hashlib import sha256

    store, read_only = hood.store, []
    for path in request.client_directories:
        try:
            real = store.projects.check_new_root(hood.project, path)
        except BadRequest:
            continue  # it is one already, or can't be one
        line = request.command if isinstance(request.command, str) else " ".join(request.command)
        is_used = is_in(os.path.realpath(request.cwd or "/"), (real,)) or path in line or real in line
        if not is_used:
            continue
        room = store.places.session(request.session)
        make_private(room)
        name = sha256(os.fsencode(real)).hexdigest()[:32]
        try:  # once for each session and directory
            os.close(os.open(f"{room}/{_MARK}{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        question = root_question(real, hood.project.path, None if real == path else path)
        decision = hood.permissions_for(caller).decide(question, caller.cancelled)
        store.audit.add_event("", DECIDED, f"{decision.text}: {question.text}", project=hood.project.id)
        if decision.allowed:
            hood.project = store.projects.record_root(hood.project, real)
        else:
            read_only.append(real)
    return request.replace(client_directories=tuple(read_only))


# ---- What one run may write, where its caller limits it: nothing, some directories of the roots, another one for once.

def limited(hood: Hood, request: Request) -> tuple[Hood, Request]:
    """Return a hood whose project has what a request may write besides as roots, and the request with real paths.

    Nobody is asked yet.
    """
    assert request.write is not None
    project = hood.project
    directories = []
    for path in request.write:
        whole = os.path.normpath(os.path.join(project.path, path))
        real = os.path.realpath(whole)
        if not is_in(real, project.roots):
            real = hood.store.projects.check_new_root(project, whole)
            project = project.replace(extra=(*project.extra, real))
        elif not os.path.isdir(real):
            there = "is not a directory" if os.path.lexists(real) else "does not exist"
            raise BadRequest(f"{path} can't be what a run may write: it {there}", hint="name a directory that is there")
        directories.append(real)
    besides = project.extra[len(hood.project.extra) :]
    return hood.replace(project=project), request.replace(write=tuple(dict.fromkeys(directories)), extra_roots=besides)
