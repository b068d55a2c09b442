"""Projects a person works in, which directory each is, and their roots."""

from __future__ import annotations

import os
import time

from fumehood.core.masks import is_in
from fumehood.core.report import shell_path
from fumehood.core.value import Value, words
from fumehood.errors import BadRequest
from fumehood.linux import libc
from fumehood.linux.namespaces import why_not_a_root
from fumehood.store.audit import IN_SESSION
from fumehood.store.places import Places, home, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.store.database import Database


# ---- Which directory it is, whatever its path: device, inode, and when it was made.

_LARGEST = (1 << 63) - 1  # what the database can hold


class Identity(Value):
    """What tells one directory from another; `born` is 0 where the file system does not keep it."""

    device: int
    inode: int
    born: int

    def is_another(self, now: Identity) -> bool:
        """Return True if what is at the same path now is another directory.

        Another time of birth tells, and another inode on the same device: several can be born at one tick of the
        clock, and inode numbers are given again. With another device, as at each mount of some file systems, nobody
        can tell by the inode.
        """
        if self.born and now.born and self.born != now.born:
            return True
        return self.device == now.device and self.inode != now.inode

    def is_at(self, now: Identity) -> bool:
        """Return True if a directory at another path is surely this one."""
        if self.inode != now.inode:
            return False
        return self.born == now.born if self.born and now.born else self.device == now.device


def identity_of(path: str) -> Identity | None:
    """Say which directory is at a path; None where there is none. Raises OSError where that can't be found out."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # In an overlay, a directory that gets its first change is made anew above, and has another time of birth then.
    born = 0 if libc.is_overlay(os.fsencode(path)) else libc.born_ns(os.fsencode(path))
    return Identity(device=status.st_dev, inode=status.st_ino & _LARGEST, born=born)


# ---- Projects a person works in, which directory each is, and the roots they approved for it.

_SYSTEM = words(
    """/bin /boot /dev /etc /home /lib /lib32 /lib64 /libx32 /media /mnt /nix /opt /proc /root /run /sbin /srv /sys /tmp
    /usr /var /var/tmp"""
)
_ANOTHER, _SET_ASIDE = "another directory is there", "set aside: another directory took its place"
_LEFT = (_ANOTHER, _SET_ASIDE, "not there")
# Another project's session may get the same name.
_FORGET_SESSIONS_GRANTS = (
    f"DELETE FROM grants WHERE project IN (SELECT CAST('{IN_SESSION}' || name AS BLOB) FROM sessions WHERE project = ?)"
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


class KnownProject(Value):
    """A project as its record tells: `place` says what is at its path now."""

    id: int
    path: str
    place: str
    runs: int
    held: int
    added_at: float


class Projects:
    """The registered projects: each a directory, known by what it is and not by its path alone."""

    def __init__(
        self, database: Database, places: Places, notices: list[str] | None = None,
        when_moved: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.database = database
        self.places = places
        self._notices = [] if notices is None else notices
        self._when_moved = when_moved

    def open(self, path: str, *, register: bool = True) -> Project:
        """Return the project at a path, registering it the first time; else an unknown one has number 0.

        A directory that was moved here keeps its record. One that took another's place gets one of its own.
        """
        real = self._checked(path, "project")
        now = identity_of(real)
        project = self._in_place(real, now) or self._moved_here(real, now)
        if project is not None:
            return project
        return Project(id=self.remember(real) if register else 0, path=real)

    def nowhere(self) -> Project:
        """Return what stands for the project of all commands that have none: an empty directory of ours."""
        path = self._nowhere()
        make_private(path)
        return self._in_place(path, identity_of(path)) or Project(id=self.remember(path), path=path)

    def _nowhere(self) -> str:
        return os.path.realpath(f"{self.places.data}/no-project")

    def _in_place(self, real: str, now: Identity | None) -> Project | None:
        """Return the project that is recorded at a path, unless another directory is there now."""
        rows = self.database.rows(
            "SELECT id, device, inode, born, roots.path FROM projects LEFT JOIN roots ON project = id"
            " WHERE projects.path = ? AND replaced_at IS NULL ORDER BY roots.added_at, roots.path",
            (os.fsencode(real),),
        )
        if not rows:
            return None
        number, then = rows[0][0], _identity(rows[0][1:4])
        if now is not None and then is not None and then.is_another(now):
            # What is recorded of it is set aside, and said so.
            query = "SELECT count(*), coalesce(sum(state = 'held'), 0) FROM runs WHERE project = ?"
            ((runs, held),) = self.database.rows(query, (number,))
            waiting = f", {held} of them held," if held else ""
            counted = {0: "records are", 1: f"1 run{waiting} is"}
            kept = counted.get(runs, f"{runs} runs{waiting} are")
            self.set_aside(number)
            self._notices.append(
                f"another directory was at {real} before: its {kept} kept as project"
                f" {number}, and this one starts afresh (fumehood projects). If it is the same, restored from a"
                f" backup: fumehood projects move {number} {shell_path(real)}"
            )
            return None
        if now is not None and then != now:
            statement = "UPDATE projects SET device = ?, inode = ?, born = ? WHERE id = ?"
            self.database.write(statement, (*_columns(now), number))
        return Project(id=number, path=real, extra=tuple(os.fsdecode(row[4]) for row in rows if row[4] is not None))

    def set_aside(self, number: int) -> None:
        """Let a project be at its path no longer; answers that were kept for the path, and sessions, end with it."""
        with self.database.transaction() as connection:
            connection.execute(
                "DELETE FROM grants WHERE project = (SELECT path FROM projects WHERE id = ? AND replaced_at IS NULL)",
                (number,),
            )
            connection.execute(_FORGET_SESSIONS_GRANTS, (number,))
            connection.execute("DELETE FROM sessions WHERE project = ?", (number,))
            connection.execute("UPDATE projects SET replaced_at = ? WHERE id = ?", (time.time(), number))
        self._forget_seats()

    def _moved_here(self, real: str, now: Identity | None) -> Project | None:
        """Return the project that this directory was at another path, if it is there no longer."""
        record = None if now is None else self._left_for(now)
        if record is None or now is None:
            return None
        number, old = record
        self._put(number, old, real, now)
        # The configuration may still name it by its former path.
        path, left = f"{self.places.config}/config.toml", ""
        if os.fsencode(old) in libc.read(path):
            left = f"; {path} names it by its former path: change that there"
        self._notices.append(f"this project was at {old} before: its history goes on here{left}")
        return self._in_place(real, now)

    def _left_for(self, now: Identity) -> tuple[int, str] | None:
        """Return the record, and the former path, of a directory that is no longer where it was recorded."""
        rows = self.database.rows(
            "SELECT id, path, replaced_at, device, inode, born FROM projects WHERE inode = ? ORDER BY id DESC",
            (now.inode,),
        )
        for number, raw, replaced_at, *identity in rows:
            then, old = _identity(identity), os.fsdecode(raw)
            if then is not None and then.is_at(now) and _place(old, replaced_at, then) in _LEFT:
                return number, old
        return None

    def _put(self, number: int, old: str, real: str, now: Identity) -> None:
        """Record that a project is at another path."""
        before, after = os.fsencode(old), os.fsencode(real)
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE projects SET path = ?, device = ?, inode = ?, born = ?, replaced_at = NULL WHERE id = ?",
                (after, *_columns(now), number),
            )
            connection.execute("UPDATE files SET root = ? WHERE project = ? AND root = ?", (after, number, before))
            connection.execute("UPDATE OR REPLACE grants SET project = ? WHERE project = ?", (after, before))
            connection.execute("UPDATE sessions SET cwd = x'' WHERE project = ?", (number,))
        self._forget_seats()
        if self._when_moved is not None:
            self._when_moved()

    def move(self, which: KnownProject, path: str) -> Project:
        """Let a project be the directory at a path, a person having said so; another's record is set aside."""
        real = self._checked(path, "project")
        now = identity_of(real)
        assert now is not None
        there = self.number_at(real)
        if there is not None and there != which.id:
            self.set_aside(there)
        self._put(which.id, which.path, real, now)
        return self.open(real)

    def listed(self) -> list[KnownProject]:
        """Return every project that there is a record of."""
        rows = self.database.rows(
            "SELECT projects.id, path, added_at, replaced_at, device, inode, born, count(runs.id),"
            " coalesce(sum(state = 'held' AND draft IS NULL), 0) FROM projects LEFT JOIN runs ON project = projects.id"
            " GROUP BY projects.id ORDER BY projects.id"
        )
        return [
            KnownProject(
                id=number, path=os.fsdecode(path), place=_place(os.fsdecode(path), replaced_at, _identity(identity)),
                runs=runs, held=held, added_at=added_at,
            )
            for number, path, added_at, replaced_at, *identity, runs, held in rows
        ]  # fmt: skip

    def named(self, name: str) -> KnownProject:
        """Return the project that a number or a path names; what is at the path goes before what was there."""
        if name.isascii() and name.isdigit():
            matching = [each for each in self.listed() if each.id == int(name)]
        else:
            matching = [each for each in self.listed() if each.path in (os.path.realpath(name), os.path.abspath(name))]
        there = [each for each in matching if each.place == "there"] or matching
        if not there:
            raise BadRequest(f"no project is known as {name}", hint="fumehood projects list shows them")
        if len(there) > 1:
            numbers = ", ".join(str(each.id) for each in there)
            raise BadRequest(f"several projects were at {name}: {numbers}", hint="name one by its number")
        return there[0]

    def remove(self, number: int) -> None:
        """Remove all that is recorded of a project; the audit trail stays."""
        with self.database.transaction() as connection:
            for table in ("changes", "connections", "versions"):
                connection.execute(
                    f"DELETE FROM {table} WHERE run IN (SELECT number FROM runs WHERE project = ?)", (number,)
                )
            connection.execute(_FORGET_SESSIONS_GRANTS, (number,))
            for table in ("files", "files_due", "runs", "roots", "sessions", "drafts"):
                connection.execute(f"DELETE FROM {table} WHERE project = ?", (number,))
            connection.execute("DELETE FROM projects WHERE id = ?", (number,))
        self._forget_seats()

    def is_in_place(self, number: int) -> bool:
        """Return True if a project is recorded, and no other directory is known to be at its path."""
        columns = "path, replaced_at, device, inode, born"
        rows = self.database.rows(f"SELECT {columns} FROM projects WHERE id = ?", (number,))
        return any(
            _place(os.fsdecode(raw), replaced_at, _identity(identity)) not in (_ANOTHER, _SET_ASIDE)
            for raw, replaced_at, *identity in rows
        )

    def remember(self, real: str, number: int | None = None) -> int:
        """Return the number of the project at a real path, which may be gone; a new one gets its old `number` back."""
        self.database.write(
            "INSERT OR IGNORE INTO projects (id, path, added_at, device, inode, born) VALUES (?, ?, ?, ?, ?, ?)",
            (number, os.fsencode(real), time.time(), *_columns(identity_of(real))),
        )
        at = self.number_at(real)
        assert at is not None, "it was just written"
        return at

    def path_of(self, number: int) -> str:
        """Return where a registered project lies."""
        ((path,),) = self.database.rows("SELECT path FROM projects WHERE id = ?", (number,))
        return os.fsdecode(path)

    def paths(self) -> tuple[str, ...]:
        """Return every registered project's directory: commands may have written there."""
        return tuple(os.fsdecode(path) for (path,) in self.database.rows("SELECT DISTINCT path FROM projects"))

    def number_at(self, path: str) -> int | None:
        """Return the number of the project that is recorded at a path."""
        query = "SELECT id FROM projects WHERE path = ? AND replaced_at IS NULL"
        return next((number for (number,) in self.database.rows(query, (os.fsencode(path),))), None)

    def holding(self, directory: str) -> str:
        """Return the project that holds a directory.

        It is the nearest registered one, else the git work tree around it, else the directory itself.
        """
        real = os.path.realpath(directory)
        above = [real]
        while above[-1] != "/":
            above.append(os.path.dirname(above[-1]))
        paths = [os.fsencode(each) for each in above]
        registered = [path for (path,) in self.database.rows_for("SELECT path FROM projects WHERE path IN (?)", paths)]
        if registered:
            return os.fsdecode(max(registered, key=len))
        inodes = {inode for (inode,) in self.database.rows("SELECT inode FROM projects")}
        for each in above if inodes else ():
            try:
                now = identity_of(each)
            except OSError:
                continue  # not ours to look at
            if now is not None and now.inode in inodes and self._left_for(now) is not None:
                return each  # it was moved, and is known by another path
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
            if is_in(real, (root,)) and (why := why_not_a_root(real, root)):
                raise BadRequest(f"{real} {why}", hint="nothing to add")
            if is_in(root, (real,)):
                raise BadRequest(
                    f"{real} can't be a root: it holds {root}", hint="add the directory you need, not its parent"
                )
        return real

    def _forget_seats(self) -> None:
        from fumehood.store.edits import forget_seats

        forget_seats(self.places)

    def keep_root(self, project: Project, real: str) -> Project:
        """Record a root by its real path."""
        if project.path == self._nowhere():
            raise BadRequest("there is no project that could have another root", hint="write=[…], for one run")
        values = (project.id, os.fsencode(real), time.time())
        self.database.write("INSERT OR IGNORE INTO roots VALUES (?, ?, ?)", values)
        self._forget_seats()
        return self.open(project.path)

    def remove_root(self, project: Project, path: str) -> Project:
        """Take back that commands of a project may write another directory."""
        wanted = os.path.realpath(path)
        if wanted not in project.extra:
            raise BadRequest(f"{wanted} is not a root of {project.path}", hint="fumehood roots list shows them")
        self.database.write("DELETE FROM roots WHERE project = ? AND path = ?", (project.id, os.fsencode(wanted)))
        self._forget_seats()
        return self.open(project.path)

    def _checked(self, path: str, what: str) -> str:
        """Return the real path of a directory that may be a project or a root."""
        if not path or "\0" in path:
            raise BadRequest(f"{path!r} is not a directory", hint=f"name the {what}'s directory")
        real = os.path.realpath(path)
        if not os.path.isdir(real):
            there = "is not a directory" if os.path.lexists(real) else "does not exist"
            raise BadRequest(f"the {what} {path} {there}", hint=f"make it first, or name another {what}")
        no = f"{real} can't be a {what}"
        if real == "/" or is_in(os.path.realpath(home()), (real,)):
            inside = "choose a directory inside your home"
            more = "; fumehood log --all shows the runs of every project" if what == "project" else ""
            raise BadRequest(f"{no}: it holds your whole home", hint=inside + more)
        if real in _SYSTEM:
            raise BadRequest(f"{no}: it belongs to the system", hint="choose a directory of your own")
        if os.path.dirname(real) == os.path.realpath(self.places.workspaces):
            return real
        for own in map(os.path.realpath, self.places.own_directories()):
            if is_in(real, (own,)) or is_in(own, (real,)):
                raise BadRequest(
                    f"{no}: Fumehood keeps its own records in {own}", hint="choose a directory apart from them"
                )
        if not os.access(real, os.R_OK | os.X_OK):
            raise BadRequest(f"the {what} {real} can't be entered", hint="check its permissions: ls -ld")
        return real


def _identity(columns: Sequence[int | None]) -> Identity | None:
    device, inode, born = columns
    return None if device is None or inode is None or born is None else Identity(device=device, inode=inode, born=born)


def _columns(identity: Identity | None) -> tuple[int | None, ...]:
    return (None, None, None) if identity is None else (identity.device, identity.inode, identity.born)


def _place(path: str, replaced_at: float | None, then: Identity | None) -> str:
    """Say what is at a project's path."""
    if replaced_at is not None:
        return _SET_ASIDE
    try:
        now = identity_of(path)
    except OSError:
        return "can't be looked at"
    if now is None:
        return "not there"
    return _ANOTHER if then is not None and then.is_another(now) else "there"
