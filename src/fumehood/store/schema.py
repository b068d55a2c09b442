"""The tables of the database, as the steps that made them: a database takes those that it lacks.

A step that was taken somewhere is never changed.
"""

from __future__ import annotations

_FIRST = """
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
CREATE TABLE workspaces (           -- store/projects.py
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
CREATE TABLE drafts (               -- store/drafts.py
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
    _FIRST, _FILES, _UNFINISHED, _LATER_VERDICTS, _GRANTS, _SESSIONS, _EVENTS, _DUE, _CONNECTIONS, _WORKSPACES,
    _STACKED, _ORDER, _IDENTITIES, _LONG_HISTORY, _NUMBERS, _MISSED, _LOST_NUMBERS,
    _DRAFTS,
)  # fmt: skip
