"""The projects that a person works in, how each directory is recognised, and their roots."""

from __future__ import annotations

import os
import time

from fumehood.core.paths import is_in
from fumehood.core.report import shell_path
from fumehood.core.value import Value, word_set
from fumehood.errors import BadRequest
from fumehood.linux import libc
from fumehood.linux.namespaces import why_not_a_root
from fumehood.store.audit import IN_SESSION
from fumehood.store.places import Places, home, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.store.database import Database


# ---- How a directory is recognised, whatever its path: device, inode, and time of birth.

_LARGEST = (1 << 63) - 1  # what the database can hold


class Identity(Value):
    """What tells one directory from another; `born` is 0 where the file system does not keep it."""

    device: int
    inode: int
    born: int

    def was_replaced_by(self, present: Identity) -> bool:
        """Return True if the directory that is at the same path now is surely another one.

        Another time of birth shows that, or another inode on the same device. Both are needed: several directories can
        be born at one clock tick, and inode numbers are reused. If the device number differs, as after each mount of
        some file systems, the inode proves nothing.
        """
        if self.born and present.born and self.born != present.born:
            return True
        return self.device == present.device and self.inode != present.inode

    def is_same_as(self, present: Identity) -> bool:
        """Return True if a directory at another path is surely this one."""
        if self.inode != present.inode:
            return False
        return self.born == present.born if self.born and present.born else self.device == present.device


def identity_of(path: str) -> Identity | None:
    """Return the identity of the directory at a path; None if there is none. Raises OSError if it can't be read."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # On an overlay, the first change copies a directory to the upper layer, which gives it a new time of birth.
    born = 0 if libc.is_overlay(os.fsencode(path)) else libc.birth_time_ns(os.fsencode(path))
    return Identity(device=status.st_dev, inode=status.st_ino & _LARGEST, born=born)


# ---- Projects, and the roots that a person approved for each.

_SYSTEM = word_set(
    """/bin /boot /dev /etc /home /lib /lib32 /lib64 /libx32 /media /mnt /nix /opt /proc /root /run /sbin /srv /sys /tmp
    /usr /var /var/tmp"""
)
_REPLACED, _SET_ASIDE = "another directory is there", "set aside: another directory took its place"
_LEFT_STATES = (_REPLACED, _SET_ASIDE, "not there")
# Deleted with the session, because another project's session may get the same name.
_DELETE_GRANTS_OF_SESSIONS = (
    f"DELETE FROM grants WHERE project IN (SELECT CAST('{IN_SESSION}' || name AS BLOB) FROM sessions WHERE project = ?)"
)


class Project(Value):
    """A directory that a person works in, and the other directories that its commands may write."""

    id: int
    path: str
    extra: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[str, ...]:
        """Every directory that commands may write, the project first."""
        return (self.path, *self.extra)


class KnownProject(Value):
    """A project as it is recorded; `place` says what is at its path now."""

    id: int
    path: str
    place: str
    runs: int
    held: int
    added_at: float


class Projects:
    """The registered projects: each is known by the identity of its directory, not by its path alone."""

    def __init__(
        self, database: Database, places: Places, notices: list[str] | None = None,
        when_moved: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.database = database
        self.places = places
        self._notices = [] if notices is None else notices
        self._when_moved = when_moved

    def open(self, path: str, *, register: bool = True) -> Project:
        """Return the project at a path. An unknown one is registered, or, without `register`, gets the number 0.

        A directory that was moved here keeps its record. One that replaced another directory gets a new record.
        """
        real = self._checked_directory(path, "project")
        present = identity_of(real)
        project = self._recorded_at(real, present) or self._moved_to(real, present)
        if project is not None:
            return project
        return Project(id=self.register(real) if register else 0, path=real)

    def placeholder(self, *, register: bool = True) -> Project:
        """Return the project of commands that run without a project: an empty directory of Fumehood's own."""
        path = self._placeholder_path()
        make_private(path)
        recorded = self._recorded_at(path, identity_of(path))
        return recorded or Project(id=self.register(path) if register else 0, path=path)

    def _placeholder_path(self) -> str:
        return os.path.realpath(f"{self.places.data}/no-project")

    def _recorded_at(self, real: str, present: Identity | None) -> Project | None:
        """Return the project that is recorded at a path, unless another directory has replaced it."""
        rows = self.database.rows(
            "SELECT id, device, inode, born, roots.path FROM projects LEFT JOIN roots ON project = id"
            " WHERE projects.path = ? AND replaced_at IS NULL ORDER BY roots.added_at, roots.path",
            (os.fsencode(real),),
        )
        if not rows:
            return None
        number, recorded = rows[0][0], _identity(rows[0][1:4])
        if present is not None and recorded is not None and recorded.was_replaced_by(present):
            # Set the old record aside, and tell the person.
            query = "SELECT count(*), coalesce(sum(state = 'held'), 0) FROM runs WHERE project = ?"
            ((runs, held),) = self.database.rows(query, (number,))
            held_in_words = f", {held} of them held," if held else ""
            few_runs = {0: "records are", 1: f"1 run{held_in_words} is"}
            runs_in_words = few_runs.get(runs, f"{runs} runs{held_in_words} are")
            self.set_aside(number)
            self._notices.append(
                f"another directory was at {real} before: its {runs_in_words} kept as project"
                f" {number}, and this one starts afresh (fumehood projects). If it is the same, restored from a"
                f" backup: fumehood projects move {number} {shell_path(real)}"
            )
            return None
        if present is not None and recorded != present:
            statement = "UPDATE projects SET device = ?, inode = ?, born = ? WHERE id = ?"
            self.database.write(statement, (*_columns(present), number))
        return Project(id=number, path=real, extra=tuple(os.fsdecode(row[4]) for row in rows if row[4] is not None))

    def set_aside(self, number: int) -> None:
        """Mark a project as replaced at its path; the permissions kept for the path, and its sessions, are deleted."""
        with self.database.transaction() as connection:
            connection.execute(
                "DELETE FROM grants WHERE project = (SELECT path FROM projects WHERE id = ? AND replaced_at IS NULL)",
                (number,),
            )
            connection.execute(_DELETE_GRANTS_OF_SESSIONS, (number,))
            connection.execute("DELETE FROM sessions WHERE project = ?", (number,))
            connection.execute("UPDATE projects SET replaced_at = ? WHERE id = ?", (time.time(), number))
        self._forget_edited_projects()

    def _moved_to(self, real: str, present: Identity | None) -> Project | None:
        """Return the project that this directory was before it was moved here; None if it was not moved."""
        record = None if present is None else self._record_of_moved(present)
        if record is None or present is None:
            return None
        number, old = record
        self._record_path(number, old, real, present)
        # The configuration may still name it by its former path.
        path, note_on_configuration = f"{self.places.config}/config.toml", ""
        if os.fsencode(old) in libc.read(path):
            note_on_configuration = f"; {path} names it by its former path: change that there"
        self._notices.append(f"this project was at {old} before: its history goes on here{note_on_configuration}")
        return self._recorded_at(real, present)

    def _record_of_moved(self, present: Identity) -> tuple[int, str] | None:
        """Return the number and the former path of a recorded directory that is no longer at that path."""
        rows = self.database.rows(
            "SELECT id, path, replaced_at, device, inode, born FROM projects WHERE inode = ? ORDER BY id DESC",
            (present.inode,),
        )
        for number, raw_path, replaced_at, *identity in rows:
            recorded, former_path = _identity(identity), os.fsdecode(raw_path)
            if (
                recorded is not None
                and recorded.is_same_as(present)
                and _state_of_path(former_path, replaced_at, recorded) in _LEFT_STATES
            ):
                return number, former_path
        return None

    def _record_path(self, number: int, former_path: str, real: str, present: Identity) -> None:
        """Record that a project is at another path."""
        before, after = os.fsencode(former_path), os.fsencode(real)
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE projects SET path = ?, device = ?, inode = ?, born = ?, replaced_at = NULL WHERE id = ?",
                (after, *_columns(present), number),
            )
            connection.execute("UPDATE files SET root = ? WHERE project = ? AND root = ?", (after, number, before))
            connection.execute("UPDATE OR REPLACE grants SET project = ? WHERE project = ?", (after, before))
            connection.execute("UPDATE sessions SET cwd = x'' WHERE project = ?", (number,))
        self._forget_edited_projects()
        if self._when_moved is not None:
            self._when_moved()

    def move(self, project: KnownProject, path: str) -> Project:
        """Record, because a person said so, that a project is now at another path; a project there is set aside."""
        real = self._checked_directory(path, "project")
        present = identity_of(real)
        assert present is not None
        other_project = self.number_at(real)
        if other_project is not None and other_project != project.id:
            self.set_aside(other_project)
        self._record_path(project.id, project.path, real, present)
        return self.open(real)

    def list_all(self) -> list[KnownProject]:
        """Return every recorded project."""
        rows = self.database.rows(
            "SELECT projects.id, path, added_at, replaced_at, device, inode, born, count(runs.id),"
            " coalesce(sum(state = 'held' AND draft IS NULL), 0) FROM projects LEFT JOIN runs ON project = projects.id"
            " GROUP BY projects.id ORDER BY projects.id"
        )
        projects = []
        for number, raw_path, added_at, replaced_at, *identity, runs, held in rows:
            path = os.fsdecode(raw_path)
            place = _state_of_path(path, replaced_at, _identity(identity))
            projects.append(
                KnownProject(id=number, path=path, place=place, runs=runs, held=held, added_at=added_at)
            )
        return projects

    def find(self, name: str) -> KnownProject:
        """Return the project that a number or a path names; one that is there now goes before earlier ones."""
        if name.isascii() and name.isdigit():
            matching = [each for each in self.list_all() if each.id == int(name)]
        else:
            matching = [
                each for each in self.list_all() if each.path in (os.path.realpath(name), os.path.abspath(name))
            ]
        in_place = [each for each in matching if each.place == "there"] or matching
        if not in_place:
            raise BadRequest(f"no project is known as {name}", hint="fumehood projects list shows them")
        if len(in_place) > 1:
            numbers = ", ".join(str(each.id) for each in in_place)
            raise BadRequest(f"several projects were at {name}: {numbers}", hint="name one by its number")
        return in_place[0]

    def remove(self, number: int) -> None:
        """Remove all that is recorded of a project; the audit trail stays."""
        with self.database.transaction() as connection:
            for table in ("changes", "connections", "versions"):
                connection.execute(
                    f"DELETE FROM {table} WHERE run IN (SELECT number FROM runs WHERE project = ?)", (number,)
                )
            connection.execute(_DELETE_GRANTS_OF_SESSIONS, (number,))
            for table in ("files", "files_due", "runs", "roots", "sessions", "drafts"):
                connection.execute(f"DELETE FROM {table} WHERE project = ?", (number,))
            connection.execute("DELETE FROM projects WHERE id = ?", (number,))
        self._forget_edited_projects()

    def is_in_place(self, number: int) -> bool:
        """Return True if a project is recorded, and was not replaced by another directory."""
        columns = "path, replaced_at, device, inode, born"
        rows = self.database.rows(f"SELECT {columns} FROM projects WHERE id = ?", (number,))
        return any(
            _state_of_path(os.fsdecode(raw), replaced_at, _identity(identity)) not in (_REPLACED, _SET_ASIDE)
            for raw, replaced_at, *identity in rows
        )

    def register(self, real: str, number: int | None = None) -> int:
        """Register the project at a real path, which may no longer exist; return its number.

        If it is new, it gets this `number`, for example the one that it had in a lost database.
        """
        self.database.write(
            "INSERT OR IGNORE INTO projects (id, path, added_at, device, inode, born) VALUES (?, ?, ?, ?, ?, ?)",
            (number, os.fsencode(real), time.time(), *_columns(identity_of(real))),
        )
        registered_number = self.number_at(real)
        assert registered_number is not None, "it was just written"
        return registered_number

    def path_of(self, number: int) -> str:
        """Return the path of a project."""
        ((path,),) = self.database.rows("SELECT path FROM projects WHERE id = ?", (number,))
        return os.fsdecode(path)

    def paths(self) -> tuple[str, ...]:
        """Return the directories of all projects: commands may have written there."""
        return tuple(os.fsdecode(path) for (path,) in self.database.rows("SELECT DISTINCT path FROM projects"))

    def number_at(self, path: str) -> int | None:
        """Return the number of the project that is recorded at a path."""
        query = "SELECT id FROM projects WHERE path = ? AND replaced_at IS NULL"
        return next((number for (number,) in self.database.rows(query, (os.fsencode(path),))), None)

    def project_around(self, directory: str) -> str:
        """Return the path of the project that a directory belongs to.

        That is the nearest directory above it that is registered or the top of a git work tree, else the directory
        itself. A repository's own top wins over a project around it: else its commands could write its neighbours.
        """
        real = os.path.realpath(directory)
        directories = [real]
        while directories[-1] != "/":
            directories.append(os.path.dirname(directories[-1]))
        paths = [os.fsencode(each) for each in directories]
        rows = self.database.rows_for("SELECT path FROM projects WHERE path IN (?)", paths)
        registered = {os.fsdecode(path) for (path,) in rows}
        # Without any, a directory may be a moved project, recorded with another path.
        inodes = {inode for (inode,) in (() if registered else self.database.rows("SELECT inode FROM projects"))}
        for each in directories:
            is_work_tree = os.path.lexists(f"{each}/.git") and each not in ("/", home())
            if each in registered or is_work_tree or (inodes and self._was_moved_to(each, inodes)):
                return each
        return real

    def _was_moved_to(self, path: str, inodes: set[int]) -> bool:
        try:
            present = identity_of(path)
        except OSError:
            return False  # we may not look at it
        return present is not None and present.inode in inodes and self._record_of_moved(present) is not None

    def add_root(self, project: Project, path: str) -> Project:
        """Let the commands of a project write another directory too, as a person has allowed."""
        return self.record_root(project, self.check_new_root(project, path))

    def check_new_root(self, project: Project, path: str) -> str:
        """Return the real path of a directory that may become a root; raises BadRequest if it may not."""
        real = self._checked_directory(path, "root")
        for root in project.roots:
            if is_in(real, (root,)) and (why := why_not_a_root(real, root)):
                raise BadRequest(f"{real} {why}", hint="nothing to add")
            if is_in(root, (real,)):
                raise BadRequest(
                    f"{real} can't be a root: it holds {root}", hint="add the directory you need, not its parent"
                )
        return real

    def _forget_edited_projects(self) -> None:
        from fumehood.store.edits import forget_edited_projects

        forget_edited_projects(self.places)

    def record_root(self, project: Project, real: str) -> Project:
        """Record a root, given by its real path."""
        if project.path == self._placeholder_path():
            raise BadRequest("there is no project that could have another root", hint="write=[…], for one run")
        values = (project.id, os.fsencode(real), time.time())
        self.database.write("INSERT OR IGNORE INTO roots VALUES (?, ?, ?)", values)
        self._forget_edited_projects()
        return self.open(project.path)

    def remove_root(self, project: Project, path: str) -> Project:
        """Remove a root of a project."""
        wanted = os.path.realpath(path)
        if wanted not in project.extra:
            raise BadRequest(f"{wanted} is not a root of {project.path}", hint="fumehood roots list shows them")
        self.database.write("DELETE FROM roots WHERE project = ? AND path = ?", (project.id, os.fsencode(wanted)))
        self._forget_edited_projects()
        return self.open(project.path)

    def _checked_directory(self, path: str, what: str) -> str:
        """Return the real path of a directory that may be a project or a root; raises BadRequest if it may not."""
        if not path or "\0" in path:
            raise BadRequest(f"{path!r} is not a directory", hint=f"name the {what}'s directory")
        real = os.path.realpath(path)
        if not os.path.isdir(real):
            reason = "is not a directory" if os.path.lexists(real) else "does not exist"
            raise BadRequest(f"the {what} {path} {reason}", hint=f"make it first, or name another {what}")
        refusal = f"{real} can't be a {what}"
        if real == "/" or is_in(os.path.realpath(home()), (real,)):
            first_hint = "choose a directory inside your home"
            second_hint = "; fumehood log --all shows the runs of every project" if what == "project" else ""
            raise BadRequest(f"{refusal}: it holds your whole home", hint=first_hint + second_hint)
        if real in _SYSTEM:
            raise BadRequest(f"{refusal}: it belongs to the system", hint="choose a directory of your own")
        if os.path.dirname(real) == os.path.realpath(self.places.workspaces):
            return real
        for our_directory in map(os.path.realpath, self.places.own_directories()):
            if is_in(real, (our_directory,)) or is_in(our_directory, (real,)):
                raise BadRequest(
                    f"{refusal}: Fumehood keeps its own records in {our_directory}",
                    hint="choose a directory apart from them",
                )
        if not os.access(real, os.R_OK | os.X_OK):
            raise BadRequest(f"the {what} {real} can't be entered", hint="check its permissions: ls -ld")
        return real


def _identity(columns: Sequence[int | None]) -> Identity | None:
    device, inode, born = columns
    return None if device is None or inode is None or born is None else Identity(device=device, inode=inode, born=born)


def _columns(identity: Identity | None) -> tuple[int | None, ...]:
    return (None, None, None) if identity is None else (identity.device, identity.inode, identity.born)


def _state_of_path(path: str, replaced_at: float | None, recorded: Identity | None) -> str:
    """Say what is at a project's path."""
    if replaced_at is not None:
        return _SET_ASIDE
    try:
        present = identity_of(path)
    except OSError:
        return "can't be looked at"
    if present is None:
        return "not there"
    return _REPLACED if recorded is not None and recorded.was_replaced_by(present) else "there"
