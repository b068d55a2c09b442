"""Everything that Fumehood keeps: the places on disk, the database, and its tables."""

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
    """The places on disk, the database and its tables. Programs open it as `opened.OpenedStore`."""

    def __init__(self, *, face: str = PYTHON) -> None:
        self.places = places()
        self.database = Database(self.places.database)
        self.grants = Grants(self.database)
        self.audit = Audit(self.database)
        self.audit.face = face
        self.history = History(self.database, self.places, self.audit)
        self.notices: list[str] = []  # to tell a person once
        # A run that ended while its project was elsewhere can be settled once the project is found at its new path.
        self.projects = Projects(self.database, self.places, self.notices, when_moved=self.recover)
        self.unsettled: dict[str, str] = {}  # runs of dead processes that can't be settled, and why
        nofollow.mode_notes_directory = self.places.modes

    @property
    def workspaces(self) -> Workspaces:
        """The workspaces; seldom used, so loaded on demand."""
        from fumehood.store.named import Workspaces

        return Workspaces(self.database, self.places)

    @property
    def sessions(self) -> Sessions:
        """The sessions of agents; a person's own commands belong to none."""
        from fumehood.store.named import Sessions

        return Sessions(self.database)

    @property
    def drafts(self) -> Drafts:
        """The drafts; most runs belong to none."""
        from fumehood.store.named import Drafts

        return Drafts(self.database)

    def policy_of(self, project: Project, chosen: Policy | None = None) -> Policy:
        """Return the policy of a project; a workspace's own settings come last."""
        policy = policy_for(self.places, project.roots) if chosen is None else chosen
        if "/workspaces/" not in project.path:
            return policy
        workspace = self.workspaces.at(project.path)
        return policy if workspace is None else policy.with_settings(workspace.settings())

    def writable_directories(self) -> tuple[str, ...]:
        """Return where commands may write, besides the roots of their project: our own directories, other projects."""
        return (*self.places.own_directories(), *self.projects.paths())

    def safe_path(self) -> str:
        """Return PATH without directories in which commands can write, for programs that we start outside the hood."""
        from fumehood.core.paths import is_in

        extra = (os.fsdecode(path) for (path,) in self.database.rows("SELECT DISTINCT path FROM roots"))
        written = (*self.writable_directories(), *extra)
        folders = (each for each in os.environ.get("PATH", os.defpath).split(":") if each.startswith("/"))
        return ":".join(each for each in folders if not is_in(os.path.realpath(each), written)) or os.defpath

    def recover(self) -> None:
        """Take back what a dead process had left half done, and keep what its command wrote."""
        raise NotImplementedError

    def mend(self, project: int) -> None:
        """Take back what a dead process had left half done in a project whose lock is taken."""
        raise NotImplementedError

    def uppers(self, run: Run) -> list[str]:
        """Return the upper directories with a run's versions, root by root."""
        return [self.places.layer(run.layer, number, "upper") for number in range(len(run.roots))]

    def lock_project(self, project: int, *, wait: bool = True) -> FileLock:
        """Take a project's lock for a `with` block: applies and undos of one project wait for each other.

        What a dead process has left half done is taken back first. Without `wait`, BlockingIOError is raised if the
        lock is taken.
        """
        return FileLock(self.places.lock(f"project-{project}"), lambda: self.mend(project), wait=wait)

    def lock_held_trees(self, project: int, *, settling: bool) -> FileLock:
        """Take the lock on the trees of held runs, for a `with` block.

        It is exclusive for `settling` a held run. It is shared for recording a new run: the trees that the run names
        then stay until it has ended, though perhaps empty.
        """
        return FileLock(self.places.lock(f"stack-{project}"), shared=not settling)

    def lock_retries(self, project: int, place: str) -> FileLock:
        """Take the lock for running a command again: only one at a time, or they would conflict once more.

        `place` is where it conflicted: other runs that change it give way meanwhile.
        """
        path = self.places.lock(f"again-{project}")

        def note() -> None:
            with open(path, "wb") as file:
                file.write(os.fsencode(place))

        return FileLock(path, note)

    def place_being_retried(self, project: int) -> str:
        """Return the place because of which a command is being run again at this moment, or ""."""
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
        """Record the project again if it was forgotten while a program has it open: its runs must be found."""
        if self.database.rows("SELECT 1 FROM projects WHERE id = ?", (project.id,)):
            return
        if self.projects.register(project.path, project.id) != project.id:
            raise BadRequest(
                f"{project.path} was forgotten, and has begun anew since: nothing ran",
                hint="open it again: start the program, or the server, anew",
            )

    def has_running_command(self, project: int) -> bool:
        """Return True if a command of a project is running. It may see held changes."""
        return any(state == RUNNING for _, state, _, _ in self.history.unfinished_runs(project))

    def running(self, *reaches: RunFilter) -> list[Run]:
        """Return the commands that run now, the latest first."""
        names = {run for run, state, _, _ in self.history.unfinished_runs() if state == RUNNING}
        return [run for run in self.history.runs(*reaches, among=names) if run.run not in self.unsettled]

    def close(self) -> None:
        """Close the database."""
        self.database.close()
