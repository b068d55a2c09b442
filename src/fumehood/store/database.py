"""The SQLite database: opening, migrations, transactions; the recorded days; the tables."""

from __future__ import annotations

import _weakref
import os
import sys
import time

from fumehood.core.report import END_BYTES, format_size
from fumehood.errors import BadRequest, FumehoodError, NoRoom, StoreDamaged
from fumehood.linux import libc
from fumehood.linux.lock import lock_directory
from fumehood.store.places import release_reserve_if_full, shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    from fumehood.core.value import Value

    AnyRecord = TypeVar("AnyRecord", bound=Value)
elif "functools" in sys.modules:
    import _sqlite3 as sqlite3  # without its wrapper, which loads datetime for what is not used here
else:
    # sqlite3 needs one function of `functools`, which would load five more modules. So it gets a stand-in. No other
    # code can see that: a program with threads has loaded functools already.
    from _functools import _lru_cache_wrapper

    sys.modules["functools"] = functools = type(sys)("functools")
    functools.lru_cache = lambda size: lambda function: _lru_cache_wrapper(function, size, False, tuple)
    try:
        import _sqlite3 as sqlite3
    finally:
        del sys.modules["functools"], functools

_LOCK_TIMEOUT_S = 30.0
_NAMES_PER_QUERY = 500  # names in one query
# Connections of a parent process, kept open: closing one in the child would drop the parent's locks.
_abandoned: list[sqlite3.Connection] = []
_open_databases: set[Any] = set()  # databases of this process, as weak references
_opening = libc.fork_safe_lock()


class Database:
    """One connection, which the threads of this process use in turn."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.was_made = False  # True if this process has just made it: all earlier records are lost
        self._is_closed = False  # True after `close`; False while it is closed for a fork
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._lock = libc.fork_safe_lock()
        self._connection: sqlite3.Connection | None = None
        self._connect_or_raise()

    def _connect_or_raise(self) -> None:
        try:
            try:
                self._connect()
            except (OSError, sqlite3.DatabaseError):
                if not release_reserve_if_full(os.path.dirname(self.path)):
                    raise
                self._connect()
        except OSError as error:
            _refuse_if_full(self.path, error)
            message = f"the database {self.path} can't be made: {error.strerror}"
            raise StoreDamaged(message, hint="check that the disk is not full, and that you may write there") from error
        except sqlite3.DatabaseError as error:
            raise unusable_error(self.path, error) from error

    def _connect(self) -> None:
        with _opening:
            if not os.path.exists(self.path):
                _make(self.path)
            self._connection = connection = sqlite3.connect(
                self.path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
            )
            _open_databases.add(_weakref.ref(self, _open_databases.discard))
            connection.execute("PRAGMA synchronous=NORMAL")
            # Commands end without closing the database, so the next reads the whole log, 3 µs a page: keep it short.
            connection.execute("PRAGMA wal_autocheckpoint=250")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise StoreDamaged(
                f"the database {self.path} was written by a newer Fumehood (schema {version})",
                hint=f"upgrade Fumehood; {_where_backups_are(self.path)}",
            )
        self.was_made = version == 0
        if version < len(MIGRATIONS):
            self._migrate()

    def _migrate(self) -> None:
        """Run the migrations that are missing, and record them, in one transaction."""
        with self.transaction() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()  # another process may have been faster
            for number, step in enumerate(MIGRATIONS[version:], version + 1):
                for statement in step.split(";\n"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, time.time()))
                connection.execute(f"PRAGMA user_version={number}")

    def transaction(self, *, durable: bool = False) -> Transaction:
        """Return a transaction for a `with` block, rolled back on an error.

        A durable one is safely on the disk when the block ends; others reach the disk a moment later.
        """
        self._reopen_after_fork()
        return Transaction(self, durable)

    def _reopen_after_fork(self) -> None:
        """Open the database anew in a forked child: SQLite forbids sharing a connection with the parent."""
        if self._process != os.getpid() and not self._is_closed:
            if self._connection is not None:
                _abandoned.append(self._connection)
            self._open()

    def connection(self) -> sqlite3.Connection:
        """Return the connection, reopened if it was closed for a fork. The caller holds the lock."""
        if self._is_closed:
            raise sqlite3.ProgrammingError("closed database")
        if self._connection is None:
            self._connect_or_raise()
        assert self._connection is not None
        return self._connection

    def before_fork(self) -> None:
        """Close the connection, unless this thread uses it."""
        if self._connection is not None and self._process == os.getpid() and not self._connection.in_transaction:
            self._connection.close()
            self._connection = None

    def write(self, statement: str, values: Iterable[Any] = (), *, durable: bool = False) -> int:
        """Execute one statement in its own transaction; return how many rows it changed."""
        with self.transaction(durable=durable) as connection:
            return connection.execute(statement, tuple(values)).rowcount

    def write_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for many rows, in one transaction."""
        with self.transaction() as connection:
            connection.executemany(statement, rows)

    def rows(self, query: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        self._reopen_after_fork()
        try:
            with self._lock:
                return self.connection().execute(query, tuple(values)).fetchall()
        except sqlite3.DatabaseError as error:
            raise unusable_error(self.path, error) from error

    def records(self, kind: type[AnyRecord], query: str, values: Iterable[Any] = ()) -> list[AnyRecord]:
        """Return the rows that a query finds as records; its columns are the fields of that class in their order."""
        return [record_of(kind, row) for row in self.rows(query, values)]

    def rows_for(self, query: str, names: Sequence[Any], *other_values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that a query finds for many names, which replace its `(?)`; the other values come first."""
        for start in range(0, len(names), _NAMES_PER_QUERY):
            chunk = names[start : start + _NAMES_PER_QUERY]
            yield from self.rows(query.replace("(?)", f"({', '.join('?' * len(chunk))})"), (*other_values, *chunk))

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __del__(self) -> None:
        # A program may drop a sandbox without closing it: nothing is lost, so Python shall not warn.
        if getattr(self, "_connection", None) is not None and self._process == os.getpid():
            self.close()


def record_of(kind: type[AnyRecord], row: Iterable[Any]) -> AnyRecord:
    """Return a row as a record: paths are bytes in the database, and booleans are numbers."""
    fields = {}
    for name, value in zip(kind._fields, row, strict=True):
        text = os.fsdecode(value) if isinstance(value, bytes) else value
        fields[name] = bool(value) if kind.__annotations__[name] == "bool" else text
    return kind(**fields)


def _close_all() -> None:
    """Close every connection before a fork.

    SQLite notes its locks in the process's memory. A child would inherit the notes but not the locks. When the parent
    then closes the database, the log that the child writes to is removed, and all of it is lost.
    """
    for each in tuple(_open_databases):
        if (database := each()) is not None:
            database.before_fork()


libc.before_forks.append(_close_all)


def damage_of(path: str) -> str:
    """Say what is wrong with the content of a database; "" if it is sound or does not exist."""
    if not os.path.lexists(path):
        return ""
    if not os.path.isfile(path) or os.path.islink(path):
        return "it is not a file"
    if not os.access(path, os.R_OK | os.W_OK):
        raise BadRequest(f"{path} may not be read and written by you", hint=f"chmod u+rw {path}")
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
    try:
        ((verdict,), *_) = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        return str(error) if _is_damage(error) else ""
    finally:
        connection.close()
    return "" if verdict == "ok" else str(verdict)


def _make(path: str) -> None:
    """Make an empty database under another name, then rename it: switching on WAL does not wait for other users."""
    spare = f"{path}.new"
    with lock_directory(os.path.dirname(path)):
        if os.path.exists(path):
            return  # another process was faster
        # Made here, because SQLite would make it with the mode of the umask.
        os.close(os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(spare, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
        os.rename(spare, path)


class Transaction:
    """One transaction, which takes the write lock at its beginning: two writers wait instead of failing.

    Ctrl-C is delayed until its end. It would otherwise leave the database locked for everybody.
    """

    def __init__(self, database: Database, durable: bool) -> None:
        self._database, self._path, self._lock, self._durable = database, database.path, database._lock, durable
        self._interrupts = libc.InterruptsHeld()

    def __enter__(self) -> sqlite3.Connection:
        release_reserve_if_full(os.path.dirname(self._path))
        self._interrupts.__enter__()
        self._lock.acquire()
        try:
            self._connection = self._database.connection()
            if self._durable:
                self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._release()
            if isinstance(error, sqlite3.DatabaseError):
                raise unusable_error(self._path, error) from error
            raise
        return self._connection

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        except sqlite3.DatabaseError as failure:
            error = failure
        finally:
            # A full disk may have ended the transaction already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if self._durable:
                self._connection.execute("PRAGMA synchronous=NORMAL")
            self._release()
        if isinstance(error, sqlite3.DatabaseError):
            raise unusable_error(self._path, error) from error

    def _release(self) -> None:
        self._lock.release()
        self._interrupts.__exit__()


def unusable_error(path: str, error: sqlite3.DatabaseError) -> FumehoodError:
    """Return the error that says why the database can't be used, and where the backups are."""
    if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
        return BadRequest("this sandbox is closed", hint="open another: nothing that was recorded is lost")
    _refuse_if_full(path, error)
    damage_hint = "fumehood doctor --mend sets it aside and rebuilds what can be rebuilt from there"
    other_hint = f"check that you may read and write it and {os.path.dirname(path)}, and that no other program locks it"
    import resource

    largest_file, _ = resource.getrlimit(resource.RLIMIT_FSIZE)  # less than nothing where nobody has limited it
    if largest_file > 0 and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
        limit = format_size(largest_file)
        other_hint = (
            f"no file may be larger than {limit} here, and the database may have to: ulimit -f shows that limit"
        )
    way_on = damage_hint if _is_damage(error) or os.path.isdir(path) else other_hint
    return StoreDamaged(f"the database {path} can't be used: {error}", hint=f"{_where_backups_are(path)}; {way_on}")


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return True if the content is damaged; False if the file is only not accessible now."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def _refuse_if_full(path: str, error: Exception) -> None:
    """Raise NoRoom if the disk is full: that damages nothing."""
    state = os.path.dirname(path)
    if missing := shortage(state):
        hint = f"remove something else there first ({format_size(END_BYTES)} are needed): fumehood clean needs room too"
        raise NoRoom(f"nothing can be recorded: {missing}", hint=hint) from error


def _where_backups_are(path: str) -> str:
    """Say where the backups are."""
    return f"every backup is still there, in {os.path.dirname(path)}/runs and {os.path.dirname(path)}/edited"


# ---- The days on which Fumehood ran, in the order in which they were recorded.
#
# Automatic cleaning counts age in these days. So a clock that is wrong once adds only one day, however far it jumped.

_DAY_S = 86_400


def day_of(moment: float) -> str:
    """Name the local day of a moment, YY-MM-DD."""
    return time.strftime("%y-%m-%d", time.localtime(moment))


def note_day(connection: sqlite3.Connection, moment: float | None = None) -> None:
    """Record the day of a moment (now by default) in an open transaction."""
    connection.execute(
        "INSERT OR IGNORE INTO days (day, first_run) SELECT ?, coalesce(max(number), 0) + 1 FROM runs",
        (day_of(time.time() if moment is None else moment),),
    )


class Days:
    """The recorded days, and how old things are by them."""

    def __init__(self, database: Database) -> None:
        rows = database.rows("SELECT n, day, first_run FROM days ORDER BY n")
        self._numbers = [number for number, _, _ in rows]
        self._first_runs: dict[str, int] = {day: first for _, day, first in rows}
        self._days = list(self._first_runs)

    def first_run(self, day: str) -> int:
        """Return the number of the first run of a day; 0 if that day was not recorded."""
        return self._first_runs.get(day, 0)

    def days_after_number(self, number: int) -> int:
        """Return how many days were recorded after the day with this number."""
        return sum(each > number for each in self._numbers)

    def first_kept(self, days: int) -> int:
        """Return the number of the first day that is at most so many recorded days old; 0 if all are."""
        return self._numbers[-1 - days] if len(self._numbers) > days else 0

    def days_after(self, day: str) -> int:
        """Return how many days were recorded after a day; if it was not recorded, how many have a later date."""
        if day in self._days:
            return len(self._days) - 1 - self._days.index(day)
        return sum(each > day for each in self._days)

    def cutoff_time(self, days: int, now: float) -> float:
        """Return the time before which an unrecorded file counts as older than some days.

        It is 0.0, so that nothing counts as old, until enough days were recorded.
        """
        if days == 0:
            return now
        if len(self._days) <= days:
            return 0.0
        return min(now - days * _DAY_S, time.mktime(time.strptime(self._days[-1 - days], "%y-%m-%d")))


# ---- The tables, as migrations: a database runs those that it lacks. A migration is never changed after its release.

_FIRST_TABLES = """
CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied_at REAL NOT NULL);
CREATE TABLE projects (
    id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, added_at REAL NOT NULL);
CREATE TABLE roots (
    project INTEGER NOT NULL REFERENCES projects(id), path BLOB NOT NULL, added_at REAL NOT NULL,
    PRIMARY KEY (project, path)) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, project INTEGER NOT NULL REFERENCES projects(id),
    act TEXT NOT NULL,              -- 'run' or 'undo'
    of TEXT,                        -- the run that an undo takes back
    layer TEXT NOT NULL,            -- the run whose layers hold its versions: an undo uses those of what it takes back
    command TEXT NOT NULL, cwd BLOB NOT NULL,
    roots BLOB NOT NULL,            -- paths, joined by NUL; a change names one by number
    state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
    mode TEXT NOT NULL, capture TEXT NOT NULL, sandboxed INTEGER NOT NULL, network TEXT NOT NULL,
    started_at REAL NOT NULL, process INTEGER NOT NULL, duration_s REAL,
    exit_code INTEGER, timed_out INTEGER NOT NULL DEFAULT 0,
    stdout BLOB, stderr BLOB,       -- NULL where a file holds them
    stdout_size INTEGER NOT NULL DEFAULT 0, stderr_size INTEGER NOT NULL DEFAULT 0,
    blocked TEXT NOT NULL DEFAULT '[]', dropped TEXT NOT NULL DEFAULT '',
    counts TEXT NOT NULL DEFAULT ''  -- how many changes of each kind
    );
CREATE INDEX runs_of_project ON runs (project, id);
CREATE TABLE changes (              -- a row a directory: store/records.py
    run INTEGER NOT NULL REFERENCES runs(number), n INTEGER NOT NULL,
    root INTEGER NOT NULL, directory BLOB NOT NULL,
    within BLOB,                    -- the changed directory that carries all this along
    entries BLOB NOT NULL,          -- change, kind, verdict, mark, both stamps, flags, reason, name of each
    PRIMARY KEY (run, n)) WITHOUT ROWID;
"""
_FILES = """
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- it is in the names of backups, so it is never given twice
    project INTEGER NOT NULL REFERENCES projects(id), root BLOB NOT NULL, path BLOB NOT NULL,
    kind TEXT NOT NULL,             -- 'absent' where only a held change would make it
    size INTEGER NOT NULL, modified_ns INTEGER NOT NULL, recorded_at REAL NOT NULL,
    last_run INTEGER REFERENCES runs(number),
    last_approved_copy_path BLOB NOT NULL DEFAULT x'',  -- the latest daily backup, below the state directory
    is_deleted INTEGER NOT NULL DEFAULT 0, needs_approval INTEGER NOT NULL DEFAULT 0,
    UNIQUE (project, root, path));
CREATE INDEX files_waiting ON files (project) WHERE needs_approval;
CREATE TABLE files_due (            -- runs whose changes the records of files do not show yet
    n INTEGER PRIMARY KEY, project INTEGER NOT NULL, run TEXT NOT NULL);
INSERT INTO sqlite_sequence VALUES ('files', 0);
"""
_UNFINISHED = """
CREATE INDEX runs_unfinished ON runs (project, state) WHERE state IN ('running', 'applying', 'settling');
"""
_LATER_VERDICTS = """
ALTER TABLE changes ADD COLUMN verdict TEXT;  -- what all of a row became later, where that is one and the same
"""
_STACKED = """
-- held runs that the command saw, the latest first
ALTER TABLE runs ADD COLUMN below TEXT NOT NULL DEFAULT '';
-- when a person last applied or discarded what it held
ALTER TABLE runs ADD COLUMN decided_at REAL;
CREATE INDEX runs_held ON runs (project, id) WHERE state = 'held';
"""
_GRANTS = """
CREATE TABLE grants (               -- answers that a person chose to keep
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- named on the command line, so never given twice
    what TEXT NOT NULL, project BLOB NOT NULL, target BLOB NOT NULL,
    answer TEXT NOT NULL,           -- 'allow' or 'deny'
    kept_at REAL NOT NULL,
    UNIQUE (what, project, target));
"""
_SESSIONS = """
CREATE TABLE sessions (
    name TEXT PRIMARY KEY, project INTEGER NOT NULL REFERENCES projects(id), started_at REAL NOT NULL,
    cwd BLOB NOT NULL DEFAULT x'',          -- where its last command ended; empty: the project
    environment BLOB NOT NULL DEFAULT x''   -- NAME=value, joined by NUL
    ) WITHOUT ROWID;
ALTER TABLE runs ADD COLUMN session TEXT;
CREATE INDEX runs_of_session ON runs (session, id) WHERE session IS NOT NULL;
"""
_EVENTS = """
CREATE TABLE events (               -- the audit trail: store/audit.py
    n INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT NOT NULL, project INTEGER, act TEXT NOT NULL,
    uid INTEGER NOT NULL, user TEXT NOT NULL, face TEXT NOT NULL, agent TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX events_of_run ON events (run, n);
CREATE TRIGGER events_do_not_change BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are only ever added'); END;
CREATE TRIGGER events_do_not_go BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'events are only ever added'); END;
CREATE TRIGGER events_are_not_replaced BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE n = NEW.n)
    BEGIN SELECT RAISE(ABORT, 'events are only ever added'); END;
"""
_DUE = """
ALTER TABLE files_due ADD COLUMN at REAL NOT NULL DEFAULT 0;
ALTER TABLE files_due ADD COLUMN begun INTEGER NOT NULL DEFAULT 1;
CREATE INDEX files_due_of_project ON files_due (project, n);
"""
_CONNECTIONS = """
-- The hosts that a run was granted, one a line.
ALTER TABLE runs ADD COLUMN hosts TEXT NOT NULL DEFAULT '';
CREATE TABLE connections (          -- what a command reached or was refused
    run INTEGER NOT NULL REFERENCES runs(number), n INTEGER NOT NULL,
    host TEXT NOT NULL, port INTEGER NOT NULL,
    protocol TEXT NOT NULL,         -- 'http', 'connect', 'socks5', 'forward'
    allowed INTEGER NOT NULL, reason TEXT NOT NULL,
    address TEXT NOT NULL,          -- where it really went
    started_at REAL NOT NULL, duration_s REAL NOT NULL,
    sent INTEGER NOT NULL, received INTEGER NOT NULL,
    count INTEGER NOT NULL,         -- how many of one kind, where they were too many
    PRIMARY KEY (run, n)) WITHOUT ROWID;
"""
_WORKSPACES = """
CREATE TABLE workspaces (           -- store/named.py
    name TEXT PRIMARY KEY, root TEXT NOT NULL, network TEXT NOT NULL, writable INTEGER,
    environment BLOB NOT NULL,      -- NAME=value, joined by NUL
    created_at REAL NOT NULL) WITHOUT ROWID;
"""
_ORDER = """
-- Runs are in the order of their numbers, whatever the clock said.
DROP INDEX runs_of_project;
CREATE INDEX runs_of_project ON runs (project, number);
DROP INDEX runs_of_session;
CREATE INDEX runs_of_session ON runs (session, number) WHERE session IS NOT NULL;
DROP INDEX runs_held;
CREATE INDEX runs_held ON runs (project, number) WHERE state = 'held';
-- the number of the latest run when this one was last settled
ALTER TABLE runs ADD COLUMN settled_after INTEGER NOT NULL DEFAULT 0;
CREATE TABLE days (                 -- on which something was recorded or cleaned: store/database.py
    n INTEGER PRIMARY KEY, day TEXT NOT NULL UNIQUE,
    first_run INTEGER NOT NULL      -- runs before this number are from before that day
    );
-- the latest recorded day when this run began or was last settled
ALTER TABLE runs ADD COLUMN day INTEGER NOT NULL DEFAULT 0;
INSERT INTO days (day, first_run) SELECT substr(date(started_at, 'unixepoch', 'localtime'), 3), min(number)
    FROM runs GROUP BY 1 ORDER BY min(number);
UPDATE runs SET day = (SELECT n FROM days WHERE days.day = substr(date(started_at, 'unixepoch', 'localtime'), 3));
"""
_IDENTITIES = """
CREATE TABLE known_projects (       -- store/projects.py
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- it is in the names of locks and layers, so it is never given twice
    path BLOB NOT NULL, added_at REAL NOT NULL,
    device INTEGER, inode INTEGER, born INTEGER,  -- which directory it is; NULL: not looked at yet
    replaced_at REAL                -- since when another directory is at its path, or it is to be forgotten
    );
INSERT INTO known_projects (id, path, added_at) SELECT id, path, added_at FROM projects;
DROP TABLE projects;
ALTER TABLE known_projects RENAME TO projects;
CREATE UNIQUE INDEX projects_in_place ON projects (path) WHERE replaced_at IS NULL;
"""
_LONG_HISTORY = """
-- What is asked for over and over, found without going through all that ever ran.
CREATE INDEX runs_of_layer ON runs (layer);
CREATE INDEX runs_undos ON runs (project, number) WHERE act = 'undo';
CREATE INDEX changes_of_directory ON changes (directory, run);
CREATE TABLE versions (             -- the paths that runs replaced or deleted: store/files.py
    run INTEGER NOT NULL REFERENCES runs(number),
    root BLOB NOT NULL,             -- empty for the project itself
    path BLOB NOT NULL, PRIMARY KEY (run, root, path)) WITHOUT ROWID;
-- whether `versions` has what this run did
ALTER TABLE runs ADD COLUMN is_listed INTEGER NOT NULL DEFAULT 0;
-- the bytes that its layer took at the last cleaning; -1: it has none; NULL: not looked at since it was settled
ALTER TABLE runs ADD COLUMN space INTEGER;
CREATE INDEX runs_measured ON runs (day, id, project, space) WHERE space >= 0;
CREATE INDEX runs_unmeasured ON runs (layer) WHERE space IS NULL AND layer != '';
"""
_NUMBERS = """
-- its number in its project, for people
ALTER TABLE runs ADD COLUMN project_number INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET project_number = counted.n FROM
    (SELECT number, row_number() OVER (PARTITION BY project ORDER BY number) AS n FROM runs) AS counted
    WHERE counted.number = runs.number;
CREATE UNIQUE INDEX runs_by_number ON runs (project, project_number);
"""
_MISSED = """
CREATE TABLE missed (               -- questions that found nobody: store/audit.py
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL,
    what TEXT NOT NULL, project BLOB NOT NULL, target BLOB NOT NULL,
    text TEXT NOT NULL, command TEXT NOT NULL, directory BLOB NOT NULL,
    ahead TEXT NOT NULL             -- how the person can allow it for the next time
    );
"""
_LOST_NUMBERS = """
CREATE TABLE lost_numbers (         -- the last that a project's runs had, by records that another database knew
    path BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
"""
_DRAFTS = """
CREATE TABLE drafts (               -- store/named.py
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- it is in the names of directories, so it is never given twice
    project INTEGER NOT NULL REFERENCES projects(id), name TEXT NOT NULL, created_at REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'open',  -- then 'applied' or 'discarded'
    base INTEGER,                   -- the draft whose frozen copy of the project it lies on; NULL: the project itself
    run TEXT                        -- the run that applies it
    );
CREATE UNIQUE INDEX drafts_open ON drafts (project, name) WHERE state = 'open';
-- the draft that a run belongs to
ALTER TABLE runs ADD COLUMN draft INTEGER REFERENCES drafts(id);
CREATE INDEX runs_of_draft ON runs (draft, number) WHERE draft IS NOT NULL;
"""
CHANGES = ("root", "directory", "within", "verdict", "entries")  # columns of the table of that name
OF_CHANGES = ", ".join(f"changes.{column}" for column in CHANGES)  # as a query asks for them
MIGRATIONS = (
    _FIRST_TABLES, _FILES, _UNFINISHED, _LATER_VERDICTS, _GRANTS, _SESSIONS, _EVENTS, _DUE, _CONNECTIONS, _WORKSPACES,
    _STACKED, _ORDER, _IDENTITIES, _LONG_HISTORY, _NUMBERS, _MISSED, _LOST_NUMBERS,
    _DRAFTS,
)  # fmt: skip
