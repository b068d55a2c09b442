"""The record of a project's files: what is known of each, and what it can be restored from.

Their daily backups, and the seals that tell whether an original in a layer was altered.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time

# Not by hashlib, which loads much more: this is a part of every run that changes a file.
from _blake2 import blake2b

from fumehood.core import changes as c
from fumehood.core.value import Value
from fumehood.linux.cache import replace_file
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.nofollow import LISTING, AccessibleTree, DirectoryCache, get_readable, open_top, split, stat_entry
from fumehood.store import records
from fumehood.store.database import CHANGES, OF_CHANGES, record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from fumehood.core.report import Run
    from fumehood.store.database import Database
    from fumehood.store.places import Places

    Noted = tuple[int, bytes, str, int, int, bytes]
    Seen = tuple[bytes, str, int, int]
    Place = tuple[bytes, bytes]
    Due = tuple[int, str, float, int]
    # A directory of a layer, a name in it, the name of its backup, and the change that put an original there.
    Wanted = tuple[bytes, bytes, bytes, c.Change]
    Seal = tuple[int, int, bytes]  # inode, time of the last change, digest
    Seals = dict[tuple[int, str], Seal]  # by root and path

# Rows in one statement: each costs half of what it would in a statement of its own, and SQLite's oldest
# limit on values in a statement, 999, is kept.
_ROWS = 100
_LARGEST = (1 << 63) - 1  # what the database has room for
_LISTED_AT_ONCE = 500  # runs
SOURCES = 20  # runs named as the sources of one file in a list of many
_NOTED = ("id", "path", "kind", "size", "modified_ns", "last_approved_copy_path")
_SEEN = ("path", "kind", "size", "modified_ns")
_SET = (
    "kind = excluded.kind, size = excluded.size, modified_ns = excluded.modified_ns,"
    " is_deleted = excluded.is_deleted, recorded_at = excluded.recorded_at,"
    " last_run = max(coalesce(excluded.last_run, last_run), coalesce(last_run, excluded.last_run))"
)
_PAST = (
    "SELECT runs.id, runs.number, runs.act, runs.command, runs.layer, runs.started_at, projects.path, runs.roots,"
    f" {OF_CHANGES} FROM changes JOIN runs ON runs.number = changes.run JOIN projects ON projects.id = runs.project"
)
_COLUMNS = 8  # of the run, before those of the change
_ENTRIES = _COLUMNS + CHANGES.index("entries")
_RECORD = (
    "SELECT files.id, root, path, kind, size, modified_ns, files.last_approved_copy_path, is_deleted, needs_approval,"
    " runs.id, coalesce(runs.day, 0) FROM files LEFT JOIN runs ON number = last_run"
)


class Record(Value):
    """One file of a project, as it was last seen; `is_deleted` tells that a run deleted it."""

    id: int
    root: str
    path: str
    kind: str
    size: int
    modified_ns: int
    last_approved_copy_path: str  # below the state directory
    is_deleted: bool
    needs_approval: bool
    last_run: str | None
    last_day: int  # the number of the recorded day of that run


class Past(Value):
    """One run's change of a path, and the layer that may hold what was there before."""

    run: str
    number: int
    act: str
    command: str
    layer: str
    started_at: float
    root: str
    change: c.Change


class ToRecord:
    """What is to be recorded of one root after a run: files with new backups, and others, there or deleted."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.noted: list[Noted] = []
        self.noted_deleted: list[Noted] = []
        self.seen: list[Seen] = []
        self.seen_deleted: list[Seen] = []


class Files:
    """The records of files in the database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def numbers(self, project: int, root: bytes, seen: Sequence[Seen]) -> dict[bytes, int]:
        """Return the numbers of the records of these files; one that has no record gets one now.

        It is kept before anything is named after it: should we die, its number is its own.
        """
        query = "SELECT path, id FROM files WHERE project = ? AND root = ? AND path IN (?)"
        numbers = dict(self.database.rows_for(query, [each[0] for each in seen], project, root))
        fresh = [each for each in seen if each[0] not in numbers]
        if fresh:
            with self.database.transaction() as connection:
                ((last,),) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'files'")
                _learn(connection, project, root, fresh, 0.0, "", are_deleted=False)
            # They are given in order, and never twice.
            numbers.update(zip((each[0] for each in fresh), range(last + 1, last + 1 + len(fresh)), strict=True))
        return numbers

    def learn(self, project: int, root: bytes, seen: Sequence[Seen], since: float) -> int:
        """Record files of one root as they were seen: path, kind, size, time; returns how many rows that took.

        A record written after the look at the files began (`since`) knows better and stays.
        """
        with self.database.transaction() as connection:
            return _learn(connection, project, root, seen, since, "", are_deleted=False)

    def record(self, project: int, run: str, roots: Iterable[ToRecord]) -> None:
        """Record all that is to be recorded after a run, in one transaction.

        That is the latest word on those files, whatever the clock says: the project's lock is held.
        """
        now = time.time()
        with self.database.transaction() as connection:
            for each in roots:
                for noted, are_deleted in ((each.noted, False), (each.noted_deleted, True)):
                    conflict = (
                        f"(id) DO UPDATE SET {_SET}, last_approved_copy_path = CASE excluded.last_approved_copy_path"
                        " WHEN x'' THEN last_approved_copy_path ELSE excluded.last_approved_copy_path END"
                    )
                    _insert(connection, _NOTED, noted, (project, each.root, run, now, are_deleted), conflict)
                for seen, are_deleted in ((each.seen, False), (each.seen_deleted, True)):
                    _learn(connection, project, each.root, seen, now, run, are_deleted=are_deleted, is_latest=True)

    def due(self, project: int) -> list[Due]:
        """Return what is due, in order: number, run, when that was settled, whether its backups may be begun."""
        query = "SELECT n, run, at, begun FROM files_due WHERE project = ? ORDER BY n"
        return self.database.rows(query, (project,))

    def begin_due(self, numbers: Iterable[int]) -> None:
        """Remember that backups of what is due may be there from now on."""
        self.database.write_many("UPDATE files_due SET begun = 1 WHERE n = ?", [(number,) for number in numbers])

    def drop_due(self, numbers: Iterable[int]) -> None:
        """Forget what was due."""
        self.database.write_many("DELETE FROM files_due WHERE n = ?", [(number,) for number in numbers])

    def wait(self, project: int, places: Iterable[Place]) -> None:
        """Record that held changes wait on files, or on what would come to be."""
        self.database.write_many(
            "INSERT INTO files (root, path, kind, size, modified_ns, project, recorded_at, needs_approval)"
            f" VALUES (?, ?, '{c.ABSENT}', 0, 0, {int(project)}, {time.time()!r}, 1)"
            " ON CONFLICT (project, root, path) DO UPDATE SET needs_approval = 1",
            sorted(places),  # as the index is: in any other order, many of them write each of its pages many times
        )

    def wait_no_more(self, project: int, places: Iterable[Place]) -> None:
        """Record that nothing waits on these files; one that would only have come to be is forgotten."""
        mine = "project = ? AND root = ? AND path = ?"
        with self.database.transaction() as connection:
            values = [(project, *place) for place in sorted(places)]
            connection.executemany(f"UPDATE files SET needs_approval = 0 WHERE {mine}", values)
            connection.executemany(f"DELETE FROM files WHERE {mine} AND kind = '{c.ABSENT}'", values)

    def waiting(self, project: int) -> set[Place]:
        """Return the places of all files that held changes wait on."""
        return set(self.database.rows("SELECT root, path FROM files WHERE project = ? AND needs_approval", (project,)))

    def last_number(self) -> int:
        """Return the highest number given to a record so far."""
        ((last,),) = self.database.rows("SELECT seq FROM sqlite_sequence WHERE name = 'files'")
        return int(last)

    def count(self, project: int, after: int = 0) -> int:
        """Return how many records a project has, or only those with numbers above one."""
        query = "SELECT count(*) FROM files WHERE id > ? AND project = ?"
        return int(self.database.rows(query, (after, project))[0][0])

    def present(self, project: int, root: bytes, size: int) -> Iterator[list[tuple[int, bytes]]]:
        """Yield numbers and paths of the files that should be there, in order, some at a time."""
        query = (
            "SELECT id, path FROM files WHERE project = ? AND root = ? AND path > ?"
            " AND NOT is_deleted AND NOT needs_approval ORDER BY path LIMIT ?"
        )
        last = b""
        while rows := self.database.rows(query, (project, root, last, size)):
            yield rows
            last = rows[-1][1]

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove records; never one that is marked deleted, or that a held change waits on."""
        kept = "is_deleted OR needs_approval"
        self.database.write_many(f"DELETE FROM files WHERE id = ? AND NOT ({kept})", [(each,) for each in numbers])

    def set_copies(self, copies: Iterable[tuple[int, bytes]]) -> None:
        """Record the latest daily backup of files, by number; empty where there is none."""
        statement = "UPDATE files SET last_approved_copy_path = ?2 WHERE id = ?1"
        self.database.write_many(statement, copies)

    def by_numbers(self, numbers: Sequence[int]) -> list[tuple[int, Record]]:
        """Return records by number, each with its project's."""
        query = _RECORD.replace("SELECT", "SELECT files.project,", 1) + " WHERE files.id IN (?)"
        return [(row[0], record_of(Record, row[1:])) for row in self.database.rows_for(query, numbers)]

    def at(self, project: int, root: str, path: str) -> Record | None:
        """Return the record of one path."""
        query = f"{_RECORD} WHERE files.project = ? AND root = ? AND path = ?"
        values = project, os.fsencode(root), os.fsencode(path)
        return next(iter(self.database.records(Record, query, values)), None)

    def below(self, project: int, root: str, path: str = "") -> list[Record]:
        """Return the records of everything below a directory of a root, in order."""
        where, values = "files.project = ? AND root = ?", [project, os.fsencode(root)]
        if path:
            # Whatever begins with the path and a slash; the letter after the slash is a 0.
            where += " AND path > ? AND path < ?"
            values += [os.fsencode(f"{path}/"), os.fsencode(f"{path}0")]
        return self.database.records(Record, f"{_RECORD} WHERE {where} ORDER BY path", values)

    def page(self, project: int, words: str, after: str, *, most: int) -> tuple[list[Record], bool]:
        """Return files of a project that runs changed or want to change, by path, and whether there are more."""
        shown = self.database.records(
            Record, f"{_RECORD} WHERE files.project = ? AND (last_run IS NOT NULL OR is_deleted OR needs_approval)"
            " AND instr(path, ?) AND path > ? ORDER BY path LIMIT ?",
            (project, os.fsencode(words), os.fsencode(after), most + 1),
        )  # fmt: skip
        return shown[:most], len(shown) > most

    def past(self, project: int, root: str, path: str) -> list[Past]:
        """Return the changes of one path that were applied, the latest first."""
        directory, _, name = path.rpartition("/")
        rows = self.database.rows(
            # By the directory: the plus keeps SQLite from going through all runs of the project.
            f"{_PAST} WHERE +runs.project = ? AND changes.directory = ? ORDER BY changes.run DESC",
            (project, os.fsencode(directory)),
        )
        ending = os.fsencode(f"/{name}\0")
        pasts: list[Past] = []
        for row in rows:
            if ending not in row[_ENTRIES]:
                continue  # very much may have changed in one directory: it is read only where this path is there
            *run, home, joined = row[:_COLUMNS]
            roots = records.roots_of(os.fsdecode(home), joined)
            pasts += (
                record_of(Past, (*run, root, change))
                for change in records.changes_of_rows([row[_COLUMNS:]])
                if (change.verdict, change.path, roots[change.root]) == (c.APPLIED, path, root)
            )
        return pasts

    def sources(self, project: int, home: str) -> dict[tuple[str, str], tuple[list[str], int]]:
        """Return for each root and path the runs whose layers should hold what was there before.

        The latest of them, and how many there are in all; `home` is where the project is now.
        """
        while self._list_versions(project):
            pass
        runs: dict[Place, list[str]] = {}
        rows = self.database.rows(
            "SELECT root, path, id FROM runs JOIN versions ON run = number"
            " WHERE project = ? AND layer != '' AND state IN ('applied', 'held') ORDER BY number DESC",
            (project,),
        )
        for root, path, run in rows:
            runs.setdefault((root, path), []).append(run)
        return {
            (os.fsdecode(root) or home, os.fsdecode(path)): (names[:SOURCES], len(names))
            for (root, path), names in runs.items()
        }

    def _list_versions(self, project: int) -> bool:
        """List what some runs replaced that were settled since the last time; tell whether there were any.

        A row a path would cost a run more than its swaps, so that is done when somebody asks for it.
        """
        query = (
            "SELECT number, roots FROM runs WHERE project = ? AND NOT is_listed AND counts != ''"
            f" AND state NOT IN ('running', 'applying', 'settling') LIMIT {_LISTED_AT_ONCE}"
        )
        if not self.database.rows(query, (project,)):
            return False
        with self.database.transaction() as connection:
            for number, joined in connection.execute(query, (project,)).fetchall():
                roots = [b"", *joined.split(b"\0")[1:]]
                rows = connection.execute(f"SELECT {OF_CHANGES} FROM changes WHERE run = ?", (number,)).fetchall()
                connection.execute("DELETE FROM versions WHERE run = ?", (number,))
                connection.executemany(
                    "INSERT INTO versions VALUES (?, ?, ?)",
                    (
                        (number, roots[change.root], os.fsencode(change.path))
                        for row in rows
                        for change in records.changes_of_row(*row)
                        if change.verdict == c.APPLIED and change.before is not None
                    ),
                )
                connection.execute("UPDATE runs SET is_listed = 1 WHERE number = ?", (number,))
        return True


def _learn(
    connection: sqlite3.Connection, project: int, root: bytes, seen: Sequence[Seen], since: float, run: str, *,
    are_deleted: bool, is_latest: bool = False,
) -> int:  # fmt: skip
    conflict = (
        f"(project, root, path) DO UPDATE SET {_SET} WHERE ({int(is_latest)} OR recorded_at < {since!r})"
        " AND (is_deleted != excluded.is_deleted"
        " OR size != excluded.size OR modified_ns != excluded.modified_ns OR kind != excluded.kind"
        " OR excluded.last_run > coalesce(last_run, 0))"
    )
    return _insert(connection, _SEEN, seen, (project, root, run, since, are_deleted), conflict)


def _insert(
    connection: sqlite3.Connection, columns: Sequence[str], rows: Sequence[Noted] | Sequence[Seen],
    common: tuple[int, bytes, str, float, bool], conflict: str,
) -> int:  # fmt: skip
    """Write rows, and return how many that took; `common` are project, root, run, time, and whether they are deleted.

    A command may give a file a time that the database has no room for; the nearest that fits is recorded.
    """
    if not rows:
        return 0
    project, root, run, at, are_deleted = common
    numbers = connection.execute("SELECT number FROM runs WHERE id = ?", (run,)).fetchall()
    # What is the same for all is in the text: values to be bound are what this costs.
    same = f"{int(project)}, x'{root.hex()}', {int(are_deleted)}, {at!r}, {int(numbers[0][0]) if numbers else 'NULL'}"
    one = f"({', '.join('?' * len(columns))}, {same})"
    written = 0
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        statement = (
            f"INSERT INTO files ({', '.join(columns)}, project, root, is_deleted, recorded_at, last_run)"
            f" VALUES {', '.join([one] * len(some))} ON CONFLICT {conflict}"
        )
        values = [value for row in some for value in row]
        try:
            written += connection.execute(statement, values).rowcount
        except OverflowError:
            fitting = [min(max(value, -_LARGEST), _LARGEST) if isinstance(value, int) else value for value in values]
            written += connection.execute(statement, fitting).rowcount
    return written


# ---- Backups beside the originals in layers: one a day of each file, `edited/{id}-{YY-MM-DD}-{basename}`.
#
# It shares its inode with the original in a run's layer, so it costs no copy: both are backups, and nobody writes to
# either. Before an original goes back into the project, its daily backup must be gone.

BACKUP_DAYS = 7
BACKUPS = "edited"
PREFIX = b"edited/"  # begins a backup's path below the state directory
GONE = "it is no longer in the run's layer"
_LONGEST = 255  # bytes in a name
_COPYING = ".copying-"  # begins the name of a copy that is not whole yet
_CANT_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)


class Slots(Closable):
    """A layer after an apply: the originals of one root, reached even where a directory is closed to its owner."""

    def __init__(self, upper: str) -> None:
        self.top = open_top(upper)
        self._parents = DirectoryCache(self.top)
        self._loosened = AccessibleTree(self.top)

    def close(self) -> None:
        """Let go of the directories, and close up what was opened."""
        self._parents.close()
        self._loosened.restore()
        os.close(self.top)

    def directory(self, parent: str) -> int:
        """Return a descriptor of a directory, open for looking into; it stays valid until the next call."""
        return get_readable(self._parents, self._loosened, parent)

    def look(self, parent: str, name: str) -> os.stat_result | None:
        """Return what lies in a slot, or None where nothing does."""
        try:
            return stat_entry(self.directory(parent), name)
        except (FileNotFoundError, NotADirectoryError):
            return None


def backup_name(number: int, day: bytes, basename: bytes) -> bytes:
    """Name the backup of a file, by its record's number, on a day; a long name loses its end."""
    return (b"%d-%b-%b" % (number, day, basename))[:_LONGEST]


def backup_parts(name: str) -> tuple[int, str] | None:
    """Return the record's number and the day in a backup's name, or None where it is none."""
    number, _, rest = name.partition("-")
    day = rest[:8]
    digits = number + day[:2] + day[3:5] + day[6:]
    if number and len(digits) == len(number) + 6 and digits.isascii() and digits.isdigit() and rest[2:9:3] == "---":
        return int(number), day
    return None


class Daily(Closable):
    """The directory of daily backups; where it is missing, it is made when the first one is."""

    def __init__(self, state: str) -> None:
        self.path = f"{state}/{BACKUPS}"
        self._fd = -1

    def close(self) -> None:
        """Let go of the directory."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def fd(self) -> int:
        """Return a descriptor of the directory, which is made if need be."""
        if self._fd < 0:
            if not os.path.lexists(self.path):
                os.makedirs(self.path, 0o700, exist_ok=True)
            self._fd = open_top(self.path)
        return self._fd

    def keep(self, slots: Slots, wanted: Iterable[Wanted]) -> dict[int, OSError]:
        """Make originals in a layer the day's backups too.

        One that has a backup of that day already keeps it. Returns those that failed, by their place in the row; one
        that is no longer there, because an undo took it out again, counts as failed for that reason.
        """
        failed: dict[int, OSError] = {}
        last, there = None, -1
        for n, (parent, basename, name, change) in enumerate(wanted):
            try:
                if parent != last:
                    there, last = slots.directory(os.fsdecode(parent)), parent
                status = os.stat(basename, dir_fd=there, follow_symlinks=False)
                before, after = change.before, change.after
                # The file that the change took out of the project, or a true copy of it, and not what the run made.
                if (
                    before is None or not stat.S_ISREG(status.st_mode)
                    or (after is not None and status.st_ino == after.inode)
                    or (status.st_size, status.st_mtime_ns) != (before.size, before.modified_ns)
                ):  # fmt: skip
                    raise FileNotFoundError(errno.ENOENT, GONE)
                self._add(there, basename, name)
            except OSError as error:
                failed[n] = error
        return failed

    def _add(self, there: int, basename: bytes, name: bytes) -> None:
        """Link an original, or copy it where that can't be done, under another name until the copy is whole."""
        here = self.fd()
        try:
            os.link(basename, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _CANT_LINK:
                raise
            if self.look(os.fsdecode(name)) is not None:
                return
            from fumehood.linux.copying import copy_file

            spare = f"{_COPYING}{os.getpid()}-{os.urandom(4).hex()}"
            try:
                copy_file(there, os.fsdecode(basename), here, spare)
                os.rename(spare, os.fsdecode(name), src_dir_fd=here, dst_dir_fd=here)
            except OSError:
                self.remove(spare)
                raise

    def look(self, name: str) -> os.stat_result | None:
        """Return what a backup is, or None where there is none."""
        return stat_entry(self.fd(), name)

    def remove(self, name: str) -> None:
        """Remove a backup, if it is there."""
        try:
            os.unlink(name, dir_fd=self.fd())
        except FileNotFoundError:
            return

    def freed_by(self, name: str) -> int:
        """Return the bytes that it would free to remove a backup: none where a run's layer has it too."""
        status = self.look(name)
        return 0 if status is None or status.st_nlink > 1 else status.st_blocks * 512

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the inode of everything in the directory."""
        try:
            listing = os.open(self.path, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with Closing(listing), os.scandir(listing) as entries:
            for entry in entries:
                yield entry.name, entry.inode()

    def by_file(self) -> dict[int, list[str]]:
        """Return the backups of every file by its record's number, the latest first."""
        backups: dict[int, list[str]] = {}
        dated = [(parts, name) for name, _ in self.entries() if (parts := backup_parts(name)) is not None]
        for (number, _), name in sorted(dated, reverse=True):
            backups.setdefault(number, []).append(name)
        return backups

    def leftovers(self, before: float) -> list[str]:
        """Return copies that were never finished and have not changed since a moment."""
        unfinished = (name for name, _ in self.entries() if name.startswith(_COPYING))
        return [name for name in unfinished if (status := self.look(name)) is not None and status.st_ctime < before]


# ---- What the backups of a run hold, noted when they were made, so that one that was altered since is not put back.
#
# A seal is the inode, the time of its last change, which nobody can set, and a digest of the content. Where the first
# two are as noted, nothing was touched. Where they are not, because a daily backup came or went, or all of this was
# copied to another disk, the content tells.

_MOST_READ = 1 << 26  # bytes of backups of one run that are read for their seals
_PIECE = 1 << 20
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def seal(places: Places, run: Run, uppers: Sequence[str]) -> None:
    """Note what the backups of a run hold, once nothing of ours changes them any more.

    What is noted already stays, unless the content is still that. Files that are larger than what is left of the 64 MiB
    of one run, and those that we may not read, have no seal.
    """
    seals = read_seals(places, run.layer, run.run)
    noted, left = dict(seals), _MOST_READ
    for number, upper in enumerate(uppers):
        saved = [
            change for change in run.changed
            if (change.root, change.verdict) == (number, c.APPLIED)
            and change.before is not None and change.before.kind in (c.FILE, c.SYMLINK)
        ]  # fmt: skip
        if not saved or not os.path.isdir(upper):
            continue
        with Slots(upper) as slots:
            for change in saved:
                parent, name = split(change.path)
                status, place = slots.look(parent, name), (change.root, change.path)
                if status is None or status.st_size > left or (place in seals and is_untouched(seals[place], status)):
                    continue
                left -= status.st_size
                digest = digest_of(slots.directory(parent), name, status)
                if digest and (place not in seals or digest == seals[place][2]):
                    seals[place] = status.st_ino, status.st_ctime_ns, digest
    if seals != noted:
        replace_file(_seals_file(places, run.layer, run.run), marshal.dumps(seals))


def read_seals(places: Places, layer: str, run: str) -> Seals:
    """Return the seals of what a run saved in a layer; none where they are not noted yet, or can't be read."""
    try:
        with open(_seals_file(places, layer, run), "rb") as file:
            seals: Seals = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return {}
    return seals


def is_untouched(seal: Seal, status: os.stat_result) -> bool:
    """Return True if nothing was done to a file since it was sealed; only its content says what, if something was."""
    return seal[:2] == (status.st_ino, status.st_ctime_ns)


def digest_of(directory: int, name: str, status: os.stat_result) -> bytes:
    """Return a digest of what a file holds, or of where a link leads; nothing where it may not be read."""
    digest = blake2b(digest_size=16)
    try:
        if stat.S_ISLNK(status.st_mode):
            digest.update(os.fsencode(os.readlink(name, dir_fd=directory)))
        else:
            with Closing(os.open(name, _READING, dir_fd=directory)) as file:
                while piece := os.read(file, _PIECE):
                    digest.update(piece)
    except PermissionError:
        return b""
    return bytes(digest.digest())


def _seals_file(places: Places, layer: str, run: str) -> str:
    return f"{places.run(layer)}/0/{run}.seals"
