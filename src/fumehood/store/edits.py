"""The notes of clients' edits: what each file was when one was begun, and what it was when the client said it was done.

Read and written before and after each edit, so this loads next to nothing.
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

    Looked = tuple[int, int, int, int, int, int]  # mode, inode, size, times of the last write and change, links
    Flags = dict[tuple[int, str], tuple[str, ...]]  # by root and path

SOON_S = 60.0  # a client that does not tell of what it did has done it by then; later, it was somebody else
NO_WAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_CHANGED = 4  # where the time of the last change stands


class Kept(Value):
    """A file that an edit names: what it was and became, and the topmost directory that was missing above it."""

    root: int
    path: str
    before: Looked | None = None
    after: Looked | None = None
    missing: str = ""
    flags: tuple[str, ...] = ()


class OpenEdit(Value):
    """An edit that was begun; it has `ended` once what its files became is noted."""

    id: str
    project: int
    session: str
    call: str
    title: str
    cwd: str
    started_at: float
    roots: tuple[str, ...]
    files: tuple[Kept, ...]
    ended_at: float = 0.0
    must_be_told: bool = False  # a part of it is recorded already, so what comes then may be somebody else's
    number: int = 0  # tells the order among those of its project: the clock may have been set back

    @property
    def paths(self) -> set[tuple[str, str]]:
        """What it may write: the directory of a root, and a path in it, of each file and of what is made above it."""
        return {(self.roots[each.root], path) for each in self.files for path in (each.path, each.missing) if path}


# ---- Which project a session edits: asked before each edit, and told by the database only the first time.

_MOST_SEATS = 50


class EditSeat(Value):
    """The project that a session edits: its number, and every directory that may be written, the project first."""

    project: int
    roots: tuple[str, ...]


def seat_of(places: Places, session: str) -> EditSeat | None:
    """Return where a session edits, if that is known without the database."""
    seat = _seats(places).get(session)
    return None if seat is None else EditSeat(project=seat[0], roots=seat[1])


def keep_seat(places: Places, session: str, look: Callable[[], EditSeat]) -> EditSeat:
    """Find out where a session edits, and keep it, unless what is known of projects changed meanwhile."""
    before = _now(places.edited_projects)
    seats = dict(list(_seats(places).items())[-_MOST_SEATS:])
    seat = look()
    if session and _now(places.edited_projects) == before:
        seats[session] = seat.project, seat.roots
        _write(places.edited_projects, seats)
    return seat


def forget_seats(places: Places) -> None:
    """Have the database asked again: projects, or their roots, are no longer what they were."""
    _write(places.edited_projects, {})


def _seats(places: Places) -> dict[str, tuple[int, tuple[str, ...]]]:
    try:
        with open(places.edited_projects, "rb") as file:
            seats: dict[str, tuple[int, tuple[str, ...]]] = marshal.load(file)  # noqa: S302 - as above
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return {}
    return seats


def _write(path: str, value: Any) -> None:
    """Write a file, all of it or nothing."""
    spare = f"{path}.{os.getpid()}.{_thread.get_ident()}.new"
    with open(spare, "wb") as file:
        file.write(marshal.dumps(value))
    os.rename(spare, path)


# ---- The notes.

def looked_at(status: os.stat_result) -> Looked:
    """Return what is noted of a file."""
    return (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)


def open_edits(places: Places, project: int | None = None) -> list[OpenEdit]:
    """Return the edits that are begun and not recorded, the earliest first; of one project, or of all."""
    edits: list[OpenEdit] = []
    try:
        names = [name for name in os.listdir(places.edits) if "." not in name]
    except FileNotFoundError:
        return edits
    for name in names:
        try:
            with open(f"{places.edits}/{name}", "rb") as file:
                fields: dict[str, Any] = marshal.load(file)  # noqa: S302 - nobody else can write in our state
            files = tuple(Kept(**each) for each in fields.pop("files"))
            edits.append(OpenEdit(**fields, files=files))
        except FileNotFoundError:
            continue  # recorded just now
        except (EOFError, ValueError, TypeError, KeyError):
            os.unlink(f"{places.edits}/{name}")  # cut short by a power failure; cleaning removes its files
    return sorted((each for each in edits if project in (None, each.project)), key=lambda each: (each.number, each.id))


def write(places: Places, edit: OpenEdit) -> None:
    """Write the note of an edit, all of it or nothing."""
    _write(f"{places.edits}/{edit.id}", {**edit.fields(), "files": [each.fields() for each in edit.files]})


def note_end(places: Places, edit: OpenEdit, *, is_told: bool) -> None:
    """Note what the files of an edit are; where nobody told that it ended, only if they changed, and soon.

    The project's lock is held. Only the kernel is asked: what is noted here opens nothing later.
    """
    if not os.path.exists(f"{places.edits}/{edit.id}"):
        return  # recorded meanwhile
    if (edit.must_be_told and not is_told) or not all(map(os.path.isdir, edit.roots)):
        return  # or the project is elsewhere by now
    files = tuple(each.replace(after=_now(f"{edit.roots[each.root]}/{each.path}")) for each in edit.files)
    if not is_told:
        changed = [each for each in files if each.after != each.before]
        limit = begun_ns(places, edit) + SOON_S * 1e9
        for each in changed:
            moment = each.after or _now(os.path.dirname(f"{edit.roots[each.root]}/{each.path}"))
            if moment is not None and moment[_CHANGED] > limit:
                return
        if not changed:
            return
    write(places, edit.replace(files=files, ended_at=time.time()))


def begun_ns(places: Places, edit: OpenEdit) -> int:
    """Return when an edit was begun, by the clock that files have."""
    return os.stat(places.run(edit.id)).st_mtime_ns


def _now(path: str) -> Looked | None:
    try:
        return looked_at(os.lstat(path))
    except OSError as error:
        if error.errno not in NO_WAY:
            raise
        return None
