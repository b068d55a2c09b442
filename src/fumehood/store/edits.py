"""Notes about edits that clients make by themselves: the state of each file before the edit, and after it.

They are written before and after each edit, so this module imports very little.
"""

from __future__ import annotations

import _thread
import errno
import marshal
import os
import time

from fumehood.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fumehood.store.places import Places

    FileState = tuple[int, int, int, int, int, int]  # mode, inode, size, modification and change times, links
    Flags = dict[tuple[int, str], tuple[str, ...]]  # by root and path

SOON_S = 60.0  # an edit whose end nobody reports has happened by then; later changes are somebody else's
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_CHANGED = 4  # the place of the change time in a FileState


class EditedFile(Value):
    """A file of an edit: its states before and after, and the topmost directory above it that did not exist."""

    root: int
    path: str
    before: FileState | None = None
    after: FileState | None = None
    missing: str = ""
    flags: tuple[str, ...] = ()


class OpenEdit(Value):
    """An edit that was begun; it has an `ended_at` once the later states of its files are noted."""

    id: str
    project: int
    session: str
    call: str
    title: str
    cwd: str
    started_at: float
    roots: tuple[str, ...]
    files: tuple[EditedFile, ...]
    ended_at: float = 0.0
    must_be_told: bool = False  # a part of it is recorded already; the rest counts only if the client reports the end
    number: int = 0  # its order among the edits of its project, because the clock may be set back

    @property
    def paths(self) -> set[tuple[str, str]]:
        """The paths that it may write, each with its root: its files and the directories to be made above them."""
        return {(self.roots[each.root], path) for each in self.files for path in (each.path, each.missing) if path}


# ---- Which project each session edits. This is needed before each edit, and asking the database is slow.

_MAX_SESSIONS = 50


class EditedProject(Value):
    """The project that a session edits: its number, and its roots, the project's directory first."""

    project: int
    roots: tuple[str, ...]


def edited_project_of(places: Places, session: str) -> EditedProject | None:
    """Return the project that a session edits, or None if the database must be asked."""
    edited_project = _edited_projects(places).get(session)
    return None if edited_project is None else EditedProject(project=edited_project[0], roots=edited_project[1])


def remember_edited_project(places: Places, session: str, look: Callable[[], EditedProject]) -> EditedProject:
    """Look up the project that a session edits, and remember it, unless the file was rewritten meanwhile."""
    before = _file_state_now(places.edited_projects)
    edited_projects = dict(list(_edited_projects(places).items())[-_MAX_SESSIONS:])
    edited_project = look()
    if session and _file_state_now(places.edited_projects) == before:
        edited_projects[session] = edited_project.project, edited_project.roots
        _write(places.edited_projects, edited_projects)
    return edited_project


def forget_edited_projects(places: Places) -> None:
    """Forget which projects sessions edit, because projects or their roots have changed."""
    _write(places.edited_projects, {})


def _edited_projects(places: Places) -> dict[str, tuple[int, tuple[str, ...]]]:
    try:
        with open(places.edited_projects, "rb") as file:
            edited_projects: dict[str, tuple[int, tuple[str, ...]]] = marshal.load(file)  # noqa: S302 - as above
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return {}
    return edited_projects


def _write(path: str, value: Any) -> None:
    """Write a file atomically."""
    temporary_path = f"{path}.{os.getpid()}.{_thread.get_ident()}.new"
    with open(temporary_path, "wb") as file:
        file.write(marshal.dumps(value))
    os.rename(temporary_path, path)


# ---- The notes.

def file_state(status: os.stat_result) -> FileState:
    """Return the part of a file's status that is noted."""
    return (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)


def open_edits(places: Places, project: int | None = None) -> list[OpenEdit]:
    """Return the edits that were begun and are not recorded yet, the earliest first; of one project, or of all."""
    edits: list[OpenEdit] = []
    try:
        names = [name for name in os.listdir(places.edits) if "." not in name]
    except FileNotFoundError:
        return edits
    for name in names:
        try:
            with open(f"{places.edits}/{name}", "rb") as file:
                fields: dict[str, Any] = marshal.load(file)  # noqa: S302 - nobody else can write in our state
            files = tuple(EditedFile(**each) for each in fields.pop("files"))
            edits.append(OpenEdit(**fields, files=files))
        except FileNotFoundError:
            continue  # recorded just now
        except (EOFError, ValueError, TypeError, KeyError):
            os.unlink(f"{places.edits}/{name}")  # incomplete after a power failure; cleaning removes its files
    return sorted((each for each in edits if project in (None, each.project)), key=lambda each: (each.number, each.id))


def write(places: Places, edit: OpenEdit) -> None:
    """Write the note of an edit atomically."""
    _write(f"{places.edits}/{edit.id}", {**edit.fields(), "files": [each.fields() for each in edit.files]})


def note_end(places: Places, edit: OpenEdit, *, is_told: bool) -> None:
    """Note the present states of an edit's files. Unless `is_told`, only if they changed, and soon after its beginning.

    `is_told` means that the client reported the end. The project's lock is held. Only `lstat` is used here: the noted
    paths are never opened later.
    """
    if not os.path.exists(f"{places.edits}/{edit.id}"):
        return  # recorded meanwhile
    if (edit.must_be_told and not is_told) or not all(map(os.path.isdir, edit.roots)):
        return  # in the second case, the project was moved
    files = tuple(each.replace(after=_file_state_now(f"{edit.roots[each.root]}/{each.path}")) for each in edit.files)
    if not is_told:
        changed = [each for each in files if each.after != each.before]
        limit = begin_time_ns(places, edit) + SOON_S * 1e9
        for each in changed:
            state = each.after or _file_state_now(os.path.dirname(f"{edit.roots[each.root]}/{each.path}"))
            if state is not None and state[_CHANGED] > limit:
                return
        if not changed:
            return
    write(places, edit.replace(files=files, ended_at=time.time()))


def begin_time_ns(places: Places, edit: OpenEdit) -> int:
    """Return when an edit was begun, by the file system's clock."""
    return os.stat(places.run(edit.id)).st_mtime_ns


def _file_state_now(path: str) -> FileState | None:
    try:
        return file_state(os.lstat(path))
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        return None
