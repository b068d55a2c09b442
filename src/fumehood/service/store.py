"""Everything we remember, opened together."""

from __future__ import annotations

import os

from fumehood.store.database import Database
from fumehood.store.history import History
from fumehood.store.places import places
from fumehood.store.projects import Projects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fumehood.core.report import Run


class Store:
    """The places, the database, and what lies in it."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.places = places(environment)
        self.database = Database(self.places.database)
        self.history = History(self.database, self.places)
        self.projects = Projects(self.database, self.places)

    def uppers(self, run: Run) -> list[str]:
        """The upper directories that hold a run's versions, root by root."""
        return [self.places.layer(run.layer, number, "upper") for number in range(len(run.roots))]

    def alone(self, project: int) -> Alone:
        """Take a project's lock for a `with` block: applies and undos of one project wait for each other."""
        return Alone(self.places.lock(f"project-{project}"))

    def close(self) -> None:
        """Close the database."""
        self.database.close()


class Alone:
    """A lock between processes, and between the threads of this one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def __enter__(self) -> None:
        import fcntl

        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_error: object) -> None:
        os.close(self._file)
