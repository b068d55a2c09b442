"""Everything we remember, opened together."""

from __future__ import annotations

import os

from fumehood.errors import BadRequest
from fumehood.linux import nofollow
from fumehood.store.audit import PYTHON, Audit, Grants
from fumehood.store.config import policy_for
from fumehood.store.database import Database
from fumehood.store.history import RUNNING, History
from fumehood.store.places import FileLock, places
from fumehood.store.projects import Project, Projects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.policy import Policy
    from fumehood.core.report import Run
    from fumehood.store.history import RunFilter
    from fumehood.store.named import Drafts, Sessions, Workspaces


class Store:
    """The places, the database, and what lies in it. `opened.OpenedStore` is the one that is made."""

    def __init__(self, *, face: str = PYTHON) -> None:
        self.places = places()
        self.database = Database(self.places.database)
        self.grants = Grants(self.database)
        self.audit = Audit(self.database)
        self.audit.face = face
        self.history = History(self.database, self.places, self.audit)
        self.notices: list[str] = []  # what a person should know once
        # A command that ran while its project was moved can be brought to its end once that is where it is looked for.
        self.projects = Projects(self.database, self.places, self.notices, when_moved=self.recover)
        self.unsettled: dict[str, str] = {}  # runs of dead processes that could not be brought to an end, and why
        nofollow.mode_notes_directory = self.places.modes

    @property
    def workspaces(self) -> Workspaces:
        """The workspaces; hardly ever asked for."""
        from fumehood.store.named import Workspaces

        return Workspaces(self.database, self.places)

    @property
    def sessions(self) -> Sessions:
        """The sessions of agents; a person's own commands are in none."""
        from fumehood.store.named import Sessions

        return Sessions(self.database)

    @property
    def drafts(self) -> Drafts:
        """The drafts; most runs are in none."""
        from fumehood.store.named import Drafts

        return Drafts(self.database)

    def policy_of(self, project: Project, chosen: Policy | None = None) -> Policy:
        """Return what holds for a project; a workspace's own settings lie over that."""
        policy = policy_for(self.places, project.roots) if chosen is None else chosen
        if "/workspaces/" not in project.path:
            return policy
        workspace = self.workspaces.at(project.path)
        return policy if workspace is None else policy.with_settings(workspace.settings())

    def writable_directories(self) -> tuple[str, ...]:
        """Where commands write besides the roots of their project: our own directories, and other projects."""
        return (*self.places.own_directories(), *self.projects.paths())

    def safe_path(self) -> str:
        """Return PATH for programs that we start outside: less directories in which a command can have put one."""
        from fumehood.core.masks import is_in

        extra = (os.fsdecode(path) for (path,) in self.database.rows("SELECT DISTINCT path FROM roots"))
        written = (*self.writable_directories(), *extra)
        folders = (each for each in os.environ.get("PATH", os.defpath).split(":") if each.startswith("/"))
        return ":".join(each for each in folders if not is_in(os.path.realpath(each), written)) or os.defpath

    def recover(self) -> None:
        """Take back what a process that died had left half done, and keep what its command wrote."""
        raise NotImplementedError

    def mend(self, project: int) -> None:
        """Take back what a process that died had left half done in a project whose lock is held."""
        raise NotImplementedError

    def uppers(self, run: Run) -> list[str]:
        """The upper directories that hold a run's versions, root by root."""
        return [self.places.layer(run.layer, number, "upper") for number in range(len(run.roots))]

    def lock_project(self, project: int, *, wait: bool = True) -> FileLock:
        """Take a project's lock for a `with` block: applies and undos of one project wait for each other.

        What one that died has left half done is taken back first. Without `wait`, BlockingIOError is raised where
        somebody else has it.
        """
        return FileLock(self.places.lock(f"project-{project}"), lambda: self.mend(project), wait=wait)

    def lock_held_trees(self, project: int, *, settling: bool) -> FileLock:
        """Take the lock on which trees of held runs there are, for a `with` block.

        Whoever settles something held has it alone. Whoever records a run takes it with others: the trees that the
        run then names stay until it has ended, empty perhaps.
        """
        return FileLock(self.places.lock(f"stack-{project}"), shared=not settling)

    def lock_retries(self, project: int, place: str) -> FileLock:
        """Take the lock that commands have which are run again: one after the other, or they would meet again.

        `place` is what they met at: others that change it let them pass.
        """
        path = self.places.lock(f"again-{project}")

        def note() -> None:
            with open(path, "wb") as file:
                file.write(os.fsencode(place))

        return FileLock(path, note)

    def place_being_retried(self, project: int) -> str:
        """Return the place for which a command is run again at this moment, or nothing."""
        path = self.places.lock(f"again-{project}")
        if not os.path.exists(path):
            return ""
        try:
            with FileLock(path, wait=False, shared=True):
                return ""
        except BlockingIOError:
            with open(path, "rb") as file:
                return os.fsdecode(file.read())

    def ensure_recorded(self, project: Project) -> None:
        """Record a project again that was forgotten while a program has it open: what runs there must be found."""
        if self.database.rows("SELECT 1 FROM projects WHERE id = ?", (project.id,)):
            return
        if self.projects.register(project.path, project.id) != project.id:
            raise BadRequest(
                f"{project.path} was forgotten, and has begun anew since: nothing ran",
                hint="open it again: start the program, or the server, anew",
            )

    def has_running_command(self, project: int) -> bool:
        """Return True if a command of a project is running, which may see what is held."""
        return any(state == RUNNING for _, state, _, _ in self.history.unfinished_runs(project))

    def running(self, *reaches: RunFilter) -> list[Run]:
        """Return the commands that run now, the latest first."""
        names = {run for run, state, _, _ in self.history.unfinished_runs() if state == RUNNING}
        return [run for run in self.history.runs(*reaches, among=names) if run.run not in self.unsettled]

    def close(self) -> None:
        """Close the database."""
        self.database.close()
