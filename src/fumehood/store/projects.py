"""Projects a person works in, and the roots they approved for each."""

from __future__ import annotations

import os
import time

from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.store.database import Database
    from fumehood.store.places import Places

_SYSTEM = frozenset(
    f"/{name}"
    for name in (
        "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt", "nix", "opt",
        "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var", "var/tmp",
    )
)


class Project(Value):
    """A directory that a person works in, with the other directories its commands may write."""

    id: int
    path: str
    extra: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[str, ...]:
        """Every directory that commands may write, the project first."""
        return (self.path, *self.extra)


class Projects:
    """The registered projects."""

    def __init__(self, database: Database, places: Places) -> None:
        self.database = database
        self.places = places

    def open(self, path: str, *, register: bool = True) -> Project:
        """Return the project at a path, registering it the first time; else an unknown one has number 0."""
        real = self._checked(path, "project")
        rows = self.database.rows(
            "SELECT id, roots.path FROM projects LEFT JOIN roots ON project = id WHERE projects.path = ?"
            " ORDER BY roots.added_at, roots.path",
            (os.fsencode(real),),
        )
        if rows:
            extra = tuple(os.fsdecode(row[1]) for row in rows if row[1] is not None)
            return Project(id=rows[0][0], path=real, extra=extra)
        if not register:
            return Project(id=0, path=real)
        return Project(id=self.remember(real), path=real)

    def remember(self, real: str) -> int:
        """Return the number of the project at a real path, which may be gone."""
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO projects (path, added_at) VALUES (?, ?)", (os.fsencode(real), time.time())
            )
        ((number,),) = self.database.rows("SELECT id FROM projects WHERE path = ?", (os.fsencode(real),))
        return int(number)

    def path_of(self, number: int) -> str:
        """Return where a registered project lies."""
        ((path,),) = self.database.rows("SELECT path FROM projects WHERE id = ?", (number,))
        return os.fsdecode(path)

    def paths(self) -> tuple[str, ...]:
        """Return every registered project's directory: commands may have written there."""
        return tuple(os.fsdecode(path) for (path,) in self.database.rows("SELECT path FROM projects"))

    def holding(self, directory: str) -> str:
        """Return the project that holds a directory.

        It is the nearest registered one, else the git work tree around it, else the directory itself.
        """
        real = os.path.realpath(directory)
        above = [real]
        while above[-1] != "/":
            above.append(os.path.dirname(above[-1]))
        marks = ", ".join("?" * len(above))
        rows = self.database.rows(
            f"SELECT path FROM projects WHERE path IN ({marks})", [os.fsencode(each) for each in above]
        )
        if rows:
            return max((os.fsdecode(row[0]) for row in rows), key=len)
        for each in above:
            if os.path.lexists(f"{each}/.git") and each not in ("/", home()):
                return each
        return real

    def add_root(self, project: Project, path: str) -> Project:
        """Let commands of a project write another directory too, a person having said so."""
        return self.keep_root(project, self.new_root(project, path))

    def new_root(self, project: Project, path: str) -> str:
        """Return the real path of a directory that could become a root, or say why it can't."""
        real = self._checked(path, "root")
        for root in project.roots:
            if _inside(real, root):
                raise BadRequest(f"{real} is writable already: it lies in {root}", hint="nothing to add")
            if _inside(root, real):
                raise BadRequest(
                    f"{real} can't be a root: it holds {root}", hint="add the directory you need, not its parent"
                )
        return real

    def keep_root(self, project: Project, real: str) -> Project:
        """Record a root by its real path."""
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO roots VALUES (?, ?, ?)", (project.id, os.fsencode(real), time.time())
            )
        return self.open(project.path)

    def remove_root(self, project: Project, path: str) -> Project:
        """Take back that commands of a project may write another directory."""
        wanted = os.path.realpath(path)
        if wanted not in project.extra:
            raise BadRequest(f"{wanted} is no root of {project.path}", hint="fumehood roots list shows them")
        with self.database.transaction() as connection:
            connection.execute(
                "DELETE FROM roots WHERE project = ? AND path = ?", (project.id, os.fsencode(wanted))
            )
        return self.open(project.path)

    def _checked(self, path: str, what: str) -> str:
        """Return the real path of a directory that may be a project or a root."""
        if not path or "\0" in path:
            raise BadRequest(f"{path!r} is no directory", hint=f"name the {what}'s directory")
        real = os.path.realpath(path)
        if not os.path.isdir(real):
            there = "is not a directory" if os.path.lexists(real) else "does not exist"
            raise BadRequest(f"the {what} {path} {there}", hint=f"make it first, or name another {what}")
        if real == "/" or _inside(os.path.realpath(home()), real):
            raise BadRequest(
                f"{real} can't be a {what}: it holds your whole home", hint="choose a directory inside your home"
            )
        if real in _SYSTEM:
            raise BadRequest(
                f"{real} can't be a {what}: it belongs to the system", hint="choose a directory of your own"
            )
        if os.path.dirname(real) == os.path.realpath(self.places.workspaces):
            return real
        for own in map(os.path.realpath, self.places.own()):
            if _inside(real, own) or _inside(own, real):
                raise BadRequest(
                    f"{real} can't be a {what}: Fumehood keeps its own records in {own}",
                    hint="choose a directory apart from them",
                )
        if not os.access(real, os.R_OK | os.X_OK):
            raise BadRequest(f"the {what} {real} can't be entered", hint="check its permissions: ls -ld")
        return real


def _inside(path: str, directory: str) -> bool:
    """Tell whether a path is a directory or lies in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
