"""The records of a project's files, their daily backups, and the seals that show whether a backup was altered."""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time

# Not from hashlib, which loads much more: every run that changes a file imports this.
from _blake2 import blake2b

from fumehood.core import changes as c
from fumehood.core.value import Value
from fumehood.linux.cache import replace_file
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.nofollow import LISTING, AccessibleTree, open_top, split, stat_entry
from fumehood.store import records
from fumehood.store.database import CHANGES, OF_CHANGES, record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from fumehood.core.report import Run
    from fumehood.store.database import Database
    from fumehood.store.places import Places

    FileRow = tuple[int, bytes, str, int, int, bytes]
    SeenFile = tuple[bytes, str, int, int]
    Place = tuple[bytes, bytes]
    DueRun = tuple[int, str, float, int]
    # A directory of a layer, the name of an original in it, the name of its daily backup, and the change.
    BackupToMake = tuple[bytes, bytes, bytes, c.Change]
    Seal = tuple[int, int, bytes]  # inode, time of the last change, digest
    Seals = dict[tuple[int, str], Seal]  # by root and path

# Rows in one statement: that halves the cost of each, and stays below SQLite's oldest limit of 999 values.
_ROWS_PER_STATEMENT = 100
_LARGEST = (1 << 63) - 1  # the largest integer that the database can hold
_RUNS_PER_TRANSACTION = 500
SOURCES = 20  # runs named as the sources of one file in a list of many
_ROW_COLUMNS = ("id", "path", "kind", "size", "modified_ns", "last_approved_copy_path")
_SEEN_COLUMNS = ("path", "kind", "size", "modified_ns")
_UPDATED_COLUMNS = (
    "kind = excluded.kind, size = excluded.size, modified_ns = excluded.modified_ns,"
    " is_deleted = excluded.is_deleted, recorded_at = excluded.recorded_at,"
    " last_run = max(coalesce(excluded.last_run, last_run), coalesce(last_run, excluded.last_run))"
)
_SELECT_PAST = (
    "SELECT runs.id, runs.number, runs.act, runs.command, runs.layer, runs.started_at, projects.path, runs.roots,"
    f" {OF_CHANGES} FROM changes JOIN runs ON runs.number = changes.run JOIN projects ON projects.id = runs.project"
)
_RUN_COLUMNS = 8  # of the run, before those of the change
_ENTRIES_COLUMN = _RUN_COLUMNS + CHANGES.index("entries")
_SELECT_RECORD = (
    "SELECT files.id, root, path, kind, size, modified_ns, files.last_approved_copy_path, is_deleted, needs_approval,"
    " runs.id, coalesce(runs.day, 0) FROM files LEFT JOIN runs ON number = last_run"
)


class FileRecord(Value):
    """One file of a project, as it was last seen; `is_deleted` means that a run deleted it."""

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


class PastChange(Value):
    """One run's change of a path, and the layer that may hold the earlier version."""

    run: str
    number: int
    act: str
    command: str
    layer: str
    started_at: float
    root: str
    change: c.Change


class RootUpdates:
    """What to record of one root after a run: rows of files with new backups; other files that exist or are deleted."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.rows: list[FileRow] = []
        self.deleted_rows: list[FileRow] = []
        self.seen: list[SeenFile] = []
        self.seen_deleted: list[SeenFile] = []


class Files:
    """The records of files in the database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def numbers_of(self, project: int, root: bytes, seen: Sequence[SeenFile]) -> dict[bytes, int]:
        """Return the record numbers of these files; a file without a record gets one now.

        The record is written before a backup is named after its number, so the number stays its own even if we die.
        """
        query = "SELECT path, id FROM files WHERE project = ? AND root = ? AND path IN (?)"
        numbers = dict(self.database.rows_for(query, [each[0] for each in seen], project, root))
        new_files = [each for each in seen if each[0] not in numbers]
        if new_files:
            with self.database.transaction() as connection:
                ((last,),) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'files'")
                _write_seen(connection, project, root, new_files, 0.0, "", are_deleted=False)
            # SQLite gives them in order, and never twice.
            numbers.update((path, number) for number, (path, *_) in enumerate(new_files, last + 1))
        return numbers

    def record_seen(self, project: int, root: bytes, seen: Sequence[SeenFile], since: float) -> int:
        """Record files of one root as they were seen; return how many rows were written.

        A record that was written after `since`, when the files began to be looked at, is newer and stays.
        """
        with self.database.transaction() as connection:
            return _write_seen(connection, project, root, seen, since, "", are_deleted=False)

    def record_after_run(self, project: int, run: str, roots: Iterable[RootUpdates]) -> None:
        """Record the updates of all roots after a run, in one transaction.

        They replace what is recorded, whatever the clock says, because the project's lock is held.
        """
        now = time.time()
        conflict = (
            f"(id) DO UPDATE SET {_UPDATED_COLUMNS}, last_approved_copy_path = CASE excluded.last_approved_copy_path"
            " WHEN x'' THEN last_approved_copy_path ELSE excluded.last_approved_copy_path END"
        )
        with self.database.transaction() as connection:
            for updates in roots:
                root = updates.root
                for rows, are_deleted in ((updates.rows, False), (updates.deleted_rows, True)):
                    _insert(connection, _ROW_COLUMNS, rows, (project, root, run, now, are_deleted), conflict)
                for seen, are_deleted in ((updates.seen, False), (updates.seen_deleted, True)):
                    _write_seen(connection, project, root, seen, now, run, are_deleted=are_deleted, is_latest=True)

    def due_runs(self, project: int) -> list[DueRun]:
        """Return the runs to be recorded, in order: row number, id, time of settling, whether backups are begun."""
        query = "SELECT n, run, at, begun FROM files_due WHERE project = ? ORDER BY n"
        return self.database.rows(query, (project,))

    def begin_due(self, numbers: Iterable[int]) -> None:
        """Note that backups of these due runs may exist from now on."""
        self.database.write_many("UPDATE files_due SET begun = 1 WHERE n = ?", [(number,) for number in numbers])

    def drop_due(self, numbers: Iterable[int]) -> None:
        """Remove runs from the list of due runs."""
        self.database.write_many("DELETE FROM files_due WHERE n = ?", [(number,) for number in numbers])

    def mark_waiting(self, project: int, places: Iterable[Place]) -> None:
        """Record that held changes wait on these files, which may not exist yet."""
        self.database.write_many(
            "INSERT INTO files (root, path, kind, size, modified_ns, project, recorded_at, needs_approval)"
            f" VALUES (?, ?, '{c.ABSENT}', 0, 0, {int(project)}, {time.time()!r}, 1)"
            " ON CONFLICT (project, root, path) DO UPDATE SET needs_approval = 1",
            sorted(places),  # in the order of the index: in any other, its pages would be written many times each
        )

    def clear_waiting(self, project: int, places: Iterable[Place]) -> None:
        """Record that no held change waits on these files; records of files that never existed are removed."""
        condition = "project = ? AND root = ? AND path = ?"
        with self.database.transaction() as connection:
            values = [(project, *place) for place in sorted(places)]
            connection.executemany(f"UPDATE files SET needs_approval = 0 WHERE {condition}", values)
            connection.executemany(f"DELETE FROM files WHERE {condition} AND kind = '{c.ABSENT}'", values)

    def waiting_places(self, project: int) -> set[Place]:
        """Return the roots and paths of all files that held changes wait on."""
        return set(self.database.rows("SELECT root, path FROM files WHERE project = ? AND needs_approval", (project,)))

    def last_number(self) -> int:
        """Return the highest record number so far."""
        ((last,),) = self.database.rows("SELECT seq FROM sqlite_sequence WHERE name = 'files'")
        return int(last)

    def count_records(self, project: int, after: int = 0) -> int:
        """Return how many records with a number above `after` a project has."""
        query = "SELECT count(*) FROM files WHERE id > ? AND project = ?"
        return int(self.database.rows(query, (after, project))[0][0])

    def present_files(self, project: int, root: bytes, size: int) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the numbers and paths of the files that should exist, in order, `size` at a time."""
        query = (
            "SELECT id, path FROM files WHERE project = ? AND root = ? AND path > ?"
            " AND NOT is_deleted AND NOT needs_approval ORDER BY path LIMIT ?"
        )
        last = b""
        while rows := self.database.rows(query, (project, root, last, size)):
            yield rows
            last = rows[-1][1]

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove records, but none that is marked deleted or that a held change waits on."""
        statement = "DELETE FROM files WHERE id = ? AND NOT (is_deleted OR needs_approval)"
        self.database.write_many(statement, [(number,) for number in numbers])

    def set_copies(self, copies: Iterable[tuple[int, bytes]]) -> None:
        """Record the latest daily backup of files, by record number; an empty path means that there is none."""
        statement = "UPDATE files SET last_approved_copy_path = ?2 WHERE id = ?1"
        self.database.write_many(statement, copies)

    def by_numbers(self, numbers: Sequence[int]) -> list[tuple[int, FileRecord]]:
        """Return the records with these numbers, each with the number of its project."""
        query = _SELECT_RECORD.replace("SELECT", "SELECT files.project,", 1) + " WHERE files.id IN (?)"
        return [(row[0], record_of(FileRecord, row[1:])) for row in self.database.rows_for(query, numbers)]

    def find(self, project: int, root: str, path: str) -> FileRecord | None:
        """Return the record of one path, or None."""
        query = f"{_SELECT_RECORD} WHERE files.project = ? AND root = ? AND path = ?"
        values = project, os.fsencode(root), os.fsencode(path)
        return next(iter(self.database.records(FileRecord, query, values)), None)

    def find_below(self, project: int, root: str, path: str = "") -> list[FileRecord]:
        """Return the records of everything below a directory of a root, in order."""
        condition, values = "files.project = ? AND root = ?", [project, os.fsencode(root)]
        if path:
            # All that begins with the path and a slash: the character after "/" is "0".
            condition += " AND path > ? AND path < ?"
            values += [os.fsencode(f"{path}/"), os.fsencode(f"{path}0")]
        return self.database.records(FileRecord, f"{_SELECT_RECORD} WHERE {condition} ORDER BY path", values)

    def page(self, project: int, part_of_path: str, after: str, *, limit: int) -> tuple[list[FileRecord], bool]:
        """Return files of a project that runs changed or want to change, by path, and whether there are more."""
        shown = self.database.records(
            FileRecord, f"{_SELECT_RECORD} WHERE files.project = ?"
            " AND (last_run IS NOT NULL OR is_deleted OR needs_approval)"
            " AND instr(path, ?) AND path > ? ORDER BY path LIMIT ?",
            (project, os.fsencode(part_of_path), os.fsencode(after), limit + 1),
        )  # fmt: skip
        return shown[:limit], len(shown) > limit

    def past_changes(self, project: int, root: str, path: str) -> list[PastChange]:
        """Return the applied changes of one path, the latest first."""
        directory, _, name = path.rpartition("/")
        rows = self.database.rows(
            # The plus makes SQLite use the index of directories, and not read all runs of the project.
            f"{_SELECT_PAST} WHERE +runs.project = ? AND changes.directory = ? ORDER BY changes.run DESC",
            (project, os.fsencode(directory)),
        )
        ending = os.fsencode(f"/{name}\0")
        pasts: list[PastChange] = []
        for row in rows:
            if ending not in row[_ENTRIES_COLUMN]:
                continue  # parsing is slow where very many files of a directory changed
            *run, home, joined = row[:_RUN_COLUMNS]
            roots = records.roots_of(os.fsdecode(home), joined)
            pasts += (
                record_of(PastChange, (*run, root, change))
                for change in records.changes_of_rows([row[_RUN_COLUMNS:]])
                if (change.verdict, change.path, roots[change.root]) == (c.APPLIED, path, root)
            )
        return pasts

    def runs_to_restore_from(self, project: int, home: str) -> dict[tuple[str, str], tuple[list[str], int]]:
        """Return for each root and path the runs whose layers should hold an earlier version.

        These are the latest runs, and the number of all; `home` is the project's present path.
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
        """Add the paths that some newly settled runs replaced to the table `versions`; return False if none were left.

        One row for each path would cost a run more than its swaps, so this waits until the table is needed.
        """
        query = (
            "SELECT number, roots FROM runs WHERE project = ? AND NOT is_listed AND counts != ''"
            f" AND state NOT IN ('running', 'applying', 'settling') LIMIT {_RUNS_PER_TRANSACTION}"
        )
        if not self.database.rows(query, (project,)):
            return False
        with self.database.transaction() as connection:
            for number, joined in connection.execute(query, (project,)).fetchall():
                roots = [b"", *joined.split(b"\0")[1:]]
                rows = connection.execute(f"SELECT {OF_CHANGES} FROM changes WHERE run = ?", (number,)).fetchall()
                connection.execute("DELETE FROM versions WHERE run = ?", (number,))
                versions = [
                    (number, roots[change.root], os.fsencode(change.path))
                    for row in rows
                    for change in records.changes_of_row(*row)
                    if change.verdict == c.APPLIED and change.before is not None
                ]
                connection.executemany("INSERT INTO versions VALUES (?, ?, ?)", versions)
                connection.execute("UPDATE runs SET is_listed = 1 WHERE number = ?", (number,))
        return True


def _write_seen(
    connection: sqlite3.Connection, project: int, root: bytes, seen: Sequence[SeenFile], since: float, run: str, *,
    are_deleted: bool, is_latest: bool = False,
) -> int:  # fmt: skip
    conflict = (
        f"(project, root, path) DO UPDATE SET {_UPDATED_COLUMNS} WHERE ({int(is_latest)} OR recorded_at < {since!r})"
        " AND (is_deleted != excluded.is_deleted"
        " OR size != excluded.size OR modified_ns != excluded.modified_ns OR kind != excluded.kind"
        " OR excluded.last_run > coalesce(last_run, 0))"
    )
    return _insert(connection, _SEEN_COLUMNS, seen, (project, root, run, since, are_deleted), conflict)


def _insert(
    connection: sqlite3.Connection, columns: Sequence[str], rows: Sequence[FileRow] | Sequence[SeenFile],
    common: tuple[int, bytes, str, float, bool], conflict: str,
) -> int:  # fmt: skip
    """Write rows, and return how many; `common` are project, root, run, time, and whether the files are deleted.

    A command may give a file a time that is too large for the database: then the nearest that fits is recorded.
    """
    if not rows:
        return 0
    project, root, run, recorded_at, are_deleted = common
    numbers = connection.execute("SELECT number FROM runs WHERE id = ?", (run,)).fetchall()
    # Values that all rows share are written into the statement, because binding values is slow.
    run_number = int(numbers[0][0]) if numbers else "NULL"
    common_values = f"{int(project)}, x'{root.hex()}', {int(are_deleted)}, {recorded_at!r}, {run_number}"
    row_placeholders = f"({', '.join('?' * len(columns))}, {common_values})"
    written = 0
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        chunk = rows[start : start + _ROWS_PER_STATEMENT]
        statement = (
            f"INSERT INTO files ({', '.join(columns)}, project, root, is_deleted, recorded_at, last_run)"
            f" VALUES {', '.join([row_placeholders] * len(chunk))} ON CONFLICT {conflict}"
        )
        values = [value for row in chunk for value in row]
        try:
            written += connection.execute(statement, values).rowcount
        except OverflowError:
            fitting = [min(max(value, -_LARGEST), _LARGEST) if isinstance(value, int) else value for value in values]
            written += connection.execute(statement, fitting).rowcount
    return written


# ---- Daily backups: one a day of each changed file, `edited/{id}-{YY-MM-DD}-{basename}`.
#
# A daily backup is a hard link to the original in a run's layer, so it costs no copy; nobody writes to either. Before
# an original goes back into the project, its daily backup must be removed.

BACKUP_DAYS = 7
BACKUPS = "edited"
BACKUPS_PREFIX = b"edited/"  # begins a backup's path below the state directory
NO_LONGER_IN_LAYER = "it is no longer in the run's layer"
_LONGEST = 255  # bytes in a name
_COPYING = ".copying-"  # begins the name of an unfinished copy
_CANT_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)


class LayerSlots(Closable):
    """The originals of one root in a layer; directories that are closed to their owner are opened for a while."""

    def __init__(self, upper: str) -> None:
        self.top = open_top(upper)
        self._tree = AccessibleTree(self.top)

    def close(self) -> None:
        """Let go of the directories, and close up what was opened."""
        self._tree.restore()
        os.close(self.top)

    def directory(self, parent: str) -> int:
        """Return a descriptor of a directory, open for looking into; it stays valid until the next call."""
        return self._tree.get_to_read(parent)

    def look(self, parent: str, name: str) -> os.stat_result | None:
        """Return the status of what lies in a slot, or None if it is empty."""
        try:
            return stat_entry(self.directory(parent), name)
        except (FileNotFoundError, NotADirectoryError):
            return None


def backup_name(number: int, day: bytes, basename: bytes) -> bytes:
    """Return the name of a file's backup on a day; `number` is that of its record. A long name is cut."""
    return (b"%d-%b-%b" % (number, day, basename))[:_LONGEST]


def backup_parts(name: str) -> tuple[int, str] | None:
    """Return the record number and the day in a backup's name, or None if it is not such a name."""
    number, _, rest = name.partition("-")
    day = rest[:8]
    digits = number + day[:2] + day[3:5] + day[6:]
    if number and len(digits) == len(number) + 6 and digits.isascii() and digits.isdigit() and rest[2:9:3] == "---":
        return int(number), day
    return None


class DailyBackups(Closable):
    """The directory of daily backups; it is made when the first backup is."""

    def __init__(self, state: str) -> None:
        self.path = f"{state}/{BACKUPS}"
        self._fd = -1

    def close(self) -> None:
        """Let go of the directory."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def fd(self) -> int:
        """Return a descriptor of the directory, which is made if it is missing."""
        if self._fd < 0:
            if not os.path.lexists(self.path):
                os.makedirs(self.path, 0o700, exist_ok=True)
            self._fd = open_top(self.path)
        return self._fd

    def add_all(self, slots: LayerSlots, wanted: Iterable[BackupToMake]) -> dict[int, OSError]:
        """Make originals in a layer the backups of the day too; a file that has one of that day keeps that.

        Returns the errors by position in `wanted`. An original that an undo has taken out again gives an error too.
        """
        failed: dict[int, OSError] = {}
        last_parent, directory = None, -1
        for index, (parent, basename, name, change) in enumerate(wanted):
            try:
                if parent != last_parent:
                    directory, last_parent = slots.directory(os.fsdecode(parent)), parent
                status = os.stat(basename, dir_fd=directory, follow_symlinks=False)
                before, after = change.before, change.after
                # It must be what the change took out of the project, or a true copy, and not what the run made.
                if (
                    before is None or not stat.S_ISREG(status.st_mode)
                    or (after is not None and status.st_ino == after.inode)
                    or (status.st_size, status.st_mtime_ns) != (before.size, before.modified_ns)
                ):  # fmt: skip
                    raise FileNotFoundError(errno.ENOENT, NO_LONGER_IN_LAYER)
                self._add(directory, basename, name)
            except OSError as error:
                failed[index] = error
        return failed

    def _add(self, source_directory: int, basename: bytes, name: bytes) -> None:
        """Link an original, or copy it if it can't be linked; the copy gets its name when it is complete."""
        backups_directory = self.fd()
        try:
            os.link(basename, name, src_dir_fd=source_directory, dst_dir_fd=backups_directory, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _CANT_LINK:
                raise
            if self.look(os.fsdecode(name)) is not None:
                return
            from fumehood.linux.copying import copy_file

            temporary_name = f"{_COPYING}{os.getpid()}-{os.urandom(4).hex()}"
            try:
                copy_file(source_directory, os.fsdecode(basename), backups_directory, temporary_name)
                os.rename(temporary_name, os.fsdecode(name), src_dir_fd=backups_directory, dst_dir_fd=backups_directory)
            except OSError:
                self.remove(temporary_name)
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
        """Return the bytes that removing a backup frees: none if a run's layer has the file too."""
        status = self.look(name)
        return 0 if status is None or status.st_nlink > 1 else status.st_blocks * 512

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the names and inodes of all entries of the directory."""
        try:
            listing = os.open(self.path, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with Closing(listing), os.scandir(listing) as entries:
            for entry in entries:
                yield entry.name, entry.inode()

    def names_by_file(self) -> dict[int, list[str]]:
        """Return the names of each file's backups by its record number, the latest first."""
        backups: dict[int, list[str]] = {}
        dated = [(parts, name) for name, _ in self.entries() if (parts := backup_parts(name)) is not None]
        for (number, _), name in sorted(dated, reverse=True):
            backups.setdefault(number, []).append(name)
        return backups

    def unfinished_copies(self, before: float) -> list[str]:
        """Return the names of unfinished copies that have not changed since a moment."""
        unfinished = (name for name, _ in self.entries() if name.startswith(_COPYING))
        return [name for name in unfinished if (status := self.look(name)) is not None and status.st_ctime < before]


# ---- Seals: they identify the backups of a run, so that one that was altered since is not put back.
#
# A seal is the inode, the change time (which nobody can set), and a digest of the content. If inode and change time are
# the same, the file was not touched. If they differ, because a daily backup was made or removed, or because all was
# copied to another disk, the digest is compared.

_MOST_READ = 1 << 26  # bytes of backups of one run that are read for their seals
_PIECE = 1 << 20
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_seals(places: Places, run: Run, uppers: Sequence[str]) -> None:
    """Write the seals of a run's backups, once Fumehood itself does not change them any more.

    A seal that exists is renewed only if the content is still the same. Files that exceed what is left of 64 MiB for
    each run, and files that we may not read, get no seal.
    """
    seals = read_seals(places, run.layer, run.run)
    earlier_seals, bytes_left = dict(seals), _MOST_READ
    for number, upper in enumerate(uppers):
        backed_up = [
            change for change in run.changed
            if (change.root, change.verdict) == (number, c.APPLIED)
            and change.before is not None and change.before.kind in (c.FILE, c.SYMLINK)
        ]  # fmt: skip
        if not backed_up or not os.path.isdir(upper):
            continue
        with LayerSlots(upper) as slots:
            for change in backed_up:
                parent, name = split(change.path)
                status, place = slots.look(parent, name), (change.root, change.path)
                if (
                    status is None
                    or status.st_size > bytes_left
                    or (place in seals and is_untouched(seals[place], status))
                ):
                    continue
                bytes_left -= status.st_size
                digest = digest_of(slots.directory(parent), name, status)
                if digest and (place not in seals or digest == seals[place][2]):
                    seals[place] = status.st_ino, status.st_ctime_ns, digest
    if seals != earlier_seals:
        replace_file(_seals_file(places, run.layer, run.run), marshal.dumps(seals))


def read_seals(places: Places, layer: str, run: str) -> Seals:
    """Return the seals of what a run saved in a layer; none if they do not exist or can't be read."""
    try:
        with open(_seals_file(places, layer, run), "rb") as file:
            seals: Seals = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return {}
    return seals


def is_untouched(seal: Seal, status: os.stat_result) -> bool:
    """Return True if a file was surely not touched since it was sealed; if False, compare the digest."""
    return seal[:2] == (status.st_ino, status.st_ctime_ns)


def digest_of(directory: int, name: str, status: os.stat_result) -> bytes:
    """Return a digest of a file's content or of a link's target; b"" if it may not be read."""
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
