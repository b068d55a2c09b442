"""Keep the records of a project's files, and their daily backups, in step with what runs do.

The transaction that settles an apply, undo or restore also says that its records are due. `record` follows it, under
the same lock, and does what is little at once; what is much stays due until `catch_up`, which comes before anybody
reads the records, and whenever there is time. Until then the originals in the run's layer are the only backups.
`drop_shared_backups` comes before an undo's first swap.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.masks import innermost, is_below
from fumehood.core.patterns import MARKER_FILES, MAX_IGNORE_FILE_SIZE, IgnoreRules, is_skipped, lies_in_skipped
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux.cache import plain_file
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.nofollow import DirectoryCache, kind_of, open_top, split, stamp_of, stat_entry
from fumehood.service.layers import refresh_running_commands
from fumehood.store.database import day_of
from fumehood.store.files import (
    BACKUPS_PREFIX,
    NO_LONGER_IN_LAYER,
    DailyBackups,
    Files,
    LayerSlots,
    RootUpdates,
    backup_name,
    backup_parts,
    write_seals,
)
from fumehood.store.places import has_entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.files import BackupToMake, DueRun, Place, SeenFile
    from fumehood.store.projects import Project

    # The .gitignore files that speak of a directory, the deepest first, each with the length of its own path.
    Ignored = tuple[tuple[int, IgnoreRules], ...]

_FEW, _SMALL = 50, 1 << 20  # files and bytes that take no time to copy
AT_ONCE = 1_000  # changed paths that are recorded with the run itself: a few milliseconds
MISSED = "missed"  # the event that tells of a daily backup that could not be made
_KEPT = (c.FILE, c.SYMLINK)  # the kinds that have records; only files have daily backups
_STANDING = ("applied", "held")  # states in which a run's layer holds the originals of what it changed


def record(store: Store, project: int, run: Run) -> None:
    """Record what a run did, if that is little, with all that is due before it; the project's lock is held.

    Commands that run get to see it. Nothing here can take an apply back, so nothing is raised: what fails is still
    due, and is done again.
    """
    try:
        refresh_running_commands(store, project, run)
        if has_entries(store.places.edits):
            from fumehood.service.edits import renew

            renew(store.places, project, run.run, {
                (run.roots[each.root], each.path) for each in run.changed if each.verdict == c.APPLIED
            })
        due = Files(store.database).due_runs(project)
        others = {name for _, name, _, _ in due} - {run.run}
        if len(run.changed) + sum(_size(store, name) for name in others) <= AT_ONCE:
            _bring_up_to_date(store, project, due, run)
    except (OSError, FumehoodError):
        return


def _size(store: Store, run: str) -> int:
    """Return how many paths a run changed."""
    counts = store.history.count_changes([run]).get(run, {})
    return sum(counts.values())


def catch_up(store: Store, project: int, *, wait: bool = True) -> None:
    """Let the records show all that runs did; takes the project's lock if there is anything to do.

    It can be interrupted at any moment: what is due stays so until all of it is recorded, and is done again.
    Without `wait`, it is left for another time while somebody else has the lock.
    """
    files = Files(store.database)
    if not files.due_runs(project):
        return
    try:
        with store.lock_project(project, wait=wait):
            due = files.due_runs(project)
            files.begin_due(number for number, _, _, begun in due if not begun)
            _bring_up_to_date(store, project, due)
    except BlockingIOError:
        return


def _bring_up_to_date(store: Store, project: int, due: Sequence[DueRun], settled: Run | None = None) -> None:
    """Record what is due, in order: the first version of a day is the one that is kept.

    A daily backup that can't be made is told of in the audit trail.
    """
    times = {name: at for _, name, at, _ in reversed(due)}
    runs = [
        settled if settled is not None and settled.run == name else store.history.find(name)
        for name in reversed(times)
    ]
    for run in runs:
        missed = _record(store, project, run, times[run.run] or run.started_at)
        if missed:
            store.audit.add_event(run.run, MISSED, "; ".join(missed[:5]))
    _see_who_waits(store, project, runs)
    Files(store.database).drop_due(number for number, _, _, _ in due)


def _record(store: Store, project: int, run: Run, at: float) -> list[str]:
    """Record what one run did; returns which backups could not be made, and why."""
    # An undo brings nothing new: what it takes out is a run's own work. An undo of an undo does again.
    stands = run.state in _STANDING and store.history.undo_depth(run) % 2 == 0
    mine: dict[int, list[c.Change]] = {}
    for change in run.changed:
        if change.verdict == c.APPLIED:
            mine.setdefault(change.root, []).append(change)
    for_roots: list[RootUpdates] = []
    missed: list[str] = []
    for root, changes in mine.items():
        each = RootUpdates(os.fsencode(run.roots[root]))
        for_roots.append(each)
        if stands:
            saved = [change for change in changes if change.before is not None and change.before.kind == c.FILE]
            others = [change for change in changes if change.before is None or change.before.kind != c.FILE]
            missed += _save(store, project, store.uppers(run)[root], saved, each, at) if saved else []
            for change in _counting(others, run.roots):
                _sort(change, None, each)
        else:
            with LiveFiles(run.roots[root]) as live:
                for change in _counting(changes, run.roots):
                    _sort(change, live, each)
    Files(store.database).record_after_run(project, run.run, for_roots)
    if run.state in _STANDING:
        write_seals(store.places, run, store.uppers(run))
    return missed


def _save(
    store: Store, project: int, upper: str, changes: Sequence[c.Change], to_record: RootUpdates, at: float
) -> list[str]:
    """Save the originals of one root's files for the day, and say what to record; returns what could not be saved."""
    seen: list[SeenFile] = [
        (os.fsencode(change.path), c.FILE, change.before.size, change.before.modified_ns)
        for change in changes
        if change.before is not None
    ]
    paths = [each[0] for each in seen]
    numbers = Files(store.database).numbers_of(project, to_record.root, seen)
    day = day_of(at).encode()
    wanted: list[BackupToMake] = []
    for change, path in zip(changes, paths, strict=True):
        parent, _, basename = path.rpartition(b"/")
        wanted.append((parent, basename, backup_name(numbers[path], day, basename), change))
    try:
        with DailyBackups(store.places.state) as daily, LayerSlots(upper) as slots:
            failed = daily.add_all(slots, wanted)
    except OSError as error:
        failed = dict.fromkeys(range(len(wanted)), error)
    for n, (_, _, name, change) in enumerate(wanted):
        copy = b"" if n in failed else BACKUPS_PREFIX + name
        stamp, noted = change.after, to_record.rows
        if stamp is None or stamp.kind not in _KEPT:
            stamp, noted = change.before, to_record.deleted_rows
        assert stamp is not None
        noted.append((numbers[paths[n]], paths[n], stamp.kind, stamp.size, stamp.modified_ns, copy))
    return [
        f"no backup for today of {changes[n].path}: {error.strerror}"
        for n, error in failed.items()
        if error.strerror != NO_LONGER_IN_LAYER
    ]


def _sort(change: c.Change, live: LiveFiles | None, to_record: RootUpdates) -> None:
    """Put a changed path to what is there or to what is deleted, by a look at it where it may have moved on."""
    stamp = (None if live is None else live.stamp(change.path)) or change.after
    path = os.fsencode(change.path)
    if stamp is not None and stamp.kind in _KEPT:
        to_record.seen.append((path, stamp.kind, stamp.size, stamp.modified_ns))
    elif change.before is not None and change.before.kind in _KEPT:
        before = change.before
        to_record.seen_deleted.append((path, before.kind, before.size, before.modified_ns))


def drop_shared_backups(store: Store, back: Run) -> int:
    """Drop the daily backups that share an inode with what an undo is about to put back into the project.

    The live file is that version again, and a write to it must not reach a backup. Returns how many went.
    """
    due = store.database.rows("SELECT 1 FROM files_due WHERE run = ? AND NOT begun LIMIT 1", (back.layer,))
    if due and _size(store, back.layer) > AT_ONCE:
        return 0  # so large a run has no daily backups yet
    with DailyBackups(store.places.state) as daily:
        in_directory = list(daily.entries())
        if not in_directory:
            return 0
        device = os.fstat(daily.fd()).st_dev
        applied = [change for change in back.changed if change.verdict == c.APPLIED]
        going = {
            entry.st_ino for _, entry in _lying_in_layers(store, back, applied)
            if entry.st_nlink > 1 and entry.st_dev == device
        }  # fmt: skip
        gone = [name for name, inode in in_directory if inode in going]
        if not gone:
            return 0
        # They are made again, should the undo come to nothing.
        with store.database.transaction() as connection:
            connection.execute(
                "INSERT INTO files_due (project, run) SELECT project, id FROM runs WHERE id = ?", (back.layer,)
            )
        forget_file(store, [name for name, _ in in_directory], gone)
        for name in gone:
            daily.remove(name)
    # What still has another name is copied before it goes. Of a few small files of one's own, a copy is as good.
    several = [change for change in back.changed if change.after is not None and change.after.links > 1]
    shared = list(_lying_in_layers(store, back, several))
    is_much = len(shared) > _FEW or any(after.size > _SMALL for after, _ in shared)
    for after, entry in shared:
        if is_much or entry.st_uid != os.geteuid():
            after.links = entry.st_nlink
    return len(gone)


def _lying_in_layers(
    store: Store, back: Run, changes: Sequence[c.Change]
) -> Iterator[tuple[c.Stamp, os.stat_result]]:
    """Yield the files that some changes put into the project, as they were recorded and as they lie in a layer."""
    for number, upper in enumerate(store.uppers(back)):
        if os.path.lexists(upper):
            with LayerSlots(upper) as slots:
                for change in changes:
                    if change.root == number and change.after is not None and change.after.kind == c.FILE:
                        entry = slots.look(*split(change.path))
                        if entry is not None:
                            yield change.after, entry


def forget_file(store: Store, names: Iterable[str], gone: Sequence[str]) -> None:
    """Let records name the latest backup that is left, of all these names, once some are gone."""
    latest = {parts[0]: ("", b"") for name in gone if (parts := backup_parts(name)) is not None}
    if not latest:
        return
    leaving = set(gone)
    for name in names:
        number, day = backup_parts(name) or (0, "")
        if number in latest and name not in leaving and day > latest[number][0]:
            latest[number] = day, BACKUPS_PREFIX + os.fsencode(name)
    Files(store.database).set_copies((number, copy) for number, (_, copy) in latest.items())


def _see_who_waits(store: Store, project: int, runs: Sequence[Run]) -> None:
    """Let the records tell which files held changes wait on, where these runs may have changed that."""
    files = Files(store.database)
    waiting = files.waiting_places(project)
    if not any(change.verdict in c.WAITING for run in runs for change in run.changed):
        if not waiting:
            return
        places = {(os.fsencode(run.roots[each.root]), os.fsencode(each.path)) for run in runs for each in run.changed}
        if all(run.act != "undo" for run in runs) and not waiting & places:
            return
    held: set[Place] = set()
    for name in store.history.held_runs(project):
        run = store.history.find(name)
        held |= {
            (os.fsencode(run.roots[change.root]), os.fsencode(change.path))
            for change in _counting(run.changed, run.roots)
            if change.verdict in c.WAITING
        }
    files.clear_waiting(project, waiting - held)
    for root in {root for root, _ in held - waiting}:
        there: list[SeenFile] = []  # now
        with LiveFiles(os.fsdecode(root)) as live:
            for path in sorted(path for top, path in held - waiting if top == root):
                stamp = live.stamp(os.fsdecode(path))
                if stamp is not None and stamp.kind in _KEPT:
                    there.append((path, stamp.kind, stamp.size, stamp.modified_ns))
        files.record_seen(project, root, there, time.time())
    files.mark_waiting(project, held - waiting)


def _counting(changes: Sequence[c.Change], roots: Sequence[str]) -> list[c.Change]:
    """Return the changes of what has a record.

    What is new in a directory of packages or caches has none until it is changed again.
    """
    skipped: dict[str, bool] = {}
    counting, places = [], c.outermost_roots(roots)
    for change in changes:
        before, after = change.before, change.after
        if before is None or before.kind not in _KEPT:
            if after is None or after.kind not in _KEPT:
                continue
            parent = c.path_in_parent(places[change.root][1], change.path).rpartition("/")[0]
            if parent not in skipped:
                skipped[parent] = lies_in_skipped(parent)
            if skipped[parent]:
                continue
        counting.append(change)
    return counting


class LiveFiles(Closable):
    """The project's side of one root: looked at without following anything; of one that is away, nothing is known."""

    def __init__(self, root: str) -> None:
        try:
            self._top = open_top(root)
        except OSError:
            self._top = -1  # removed, or not mounted
        self._parents = DirectoryCache(self._top)

    def close(self) -> None:
        """Let go of the directories."""
        self._parents.close()
        if self._top >= 0:
            os.close(self._top)

    def stamp(self, path: str) -> c.Stamp | None:
        """Return the stamp of what is at a path; None where nothing is, or what is can't be looked at."""
        parent, _, name = path.rpartition("/")
        try:
            entry = stat_entry(self._parents.get(parent), name)
        except OSError:
            return None
        return None if entry is None else stamp_of(entry)

    def is_missing(self, path: str) -> bool:
        """Return True if there is certainly nothing at a path."""
        parent, _, name = path.rpartition("/")
        try:
            return stat_entry(self._parents.get(parent), name) is None
        except PermissionError:
            return False
        except OSError:
            return self._top >= 0  # a parent is missing, or is no directory any more


# ---- Walk a project, and bring the records of its files up to date with what is there.

_SOME = 2_000  # files that are recorded at once: what memory holds, and how long a run may have to wait


class Scanned(Value):
    """What a scan found: files that are there, records made, changed and dropped.

    `kept` counts records whose files are missing, but which have a backup; `unread` directories that could
    not be read.
    """

    files: int = 0
    added: int = 0
    updated: int = 0
    dropped: int = 0
    kept: int = 0
    unread: int = 0


def scan_project(store: Store, project: Project, on_progress: Callable[[int], None] | None = None) -> Scanned:
    """Record every file of a project that is not ignored, and forget those that are gone for good.

    `on_progress` is told every now and then how many files were seen. Follows no symlink, runs no program.
    """
    if not project.id:  # only looked at so far: there must be a project that the records belong to
        project = store.projects.open(project.path)
    catch_up(store, project.id)
    scan = _ProjectScan(store, project.id, on_progress)
    first = scan.files.last_number()
    for root in project.roots:
        if not any(is_below(root, each) for each in project.roots):
            scan.walk(root, [each for each in project.roots if is_below(each, root)])
    added = scan.files.count_records(project.id, first)
    for root in project.roots:
        scan.drop_missing(root)
    return Scanned(
        files=scan.seen, added=added, updated=max(0, scan.written - added), dropped=scan.dropped, kept=scan.kept,
        unread=scan.unread,
    )  # fmt: skip


class _ProjectScan:
    """One scan of one project."""

    def __init__(self, store: Store, project: int, on_progress: Callable[[int], None] | None) -> None:
        self.files = Files(store.database)
        self.seen = self.written = self.dropped = self.kept = self.unread = 0
        self._store = store
        self._project = project
        self._on_progress = on_progress

    def walk(self, root: str, inner: Sequence[str] = ()) -> None:
        """Record what is in one root and in those inside it, some files at a time."""
        try:
            top = open_top(root)
        except OSError as error:
            raise BadRequest(
                f"cannot read {root}: {error.strerror}", hint="is it there, and may you enter it? ls -ld"
            ) from error
        with Closing(top), DirectoryCache(top, bounded=False) as parents:
            some: list[SeenFile] = []
            since = time.time()
            for each in self._below(parents):
                some.append(each)
                if len(some) >= _SOME:
                    self._learn(root, inner, some, since)
                    some, since = [], time.time()
            self._learn(root, inner, some, since)

    def _learn(self, root: str, inner: Sequence[str], some: list[SeenFile], since: float) -> None:
        by_root: dict[str, list[SeenFile]] = {} if inner else {root: some}
        for path, kind, size, modified_ns in some if inner else ():
            # It belongs to a root inside this one, perhaps.
            whole = f"{root}/{os.fsdecode(path)}"
            own = innermost(os.path.dirname(whole), inner) or root
            by_root.setdefault(own, []).append((os.fsencode(whole[len(own) + 1 :]), kind, size, modified_ns))
        # A run that is just being recorded gives its files numbers of their own.
        with self._store.lock_project(self._project):
            for each, theirs in by_root.items():
                self.written += self.files.record_seen(self._project, os.fsencode(each), theirs, since)
        self.seen += len(some)
        if self._on_progress is not None:
            self._on_progress(self.seen)

    def _below(self, parents: DirectoryCache) -> Iterator[SeenFile]:
        """Yield every file and symlink that is not ignored, directory by directory."""
        waiting: list[tuple[str, Ignored]] = [("", ())]
        while waiting:
            path, above = waiting.pop()
            directory = parents.open_listing(path)
            if directory is None:
                self.unread += 1  # closed, or gone meanwhile
                continue
            with Closing(directory):
                # What marks a cache or a virtual environment does not count at the top: that is the project.
                if path and any(stat_entry(directory, marker) for marker in MARKER_FILES):
                    continue
                ignored = ignore_rules(directory, path) + above
                with os.scandir(directory) as entries:
                    for entry in entries:
                        below = f"{path}/{entry.name}" if path else entry.name
                        try:
                            is_directory = entry.is_dir(follow_symlinks=False)
                            if is_ignored(below, ignored, is_directory=is_directory):
                                continue
                            if is_directory:
                                if not is_skipped(entry.name):
                                    waiting.append((below, ignored))
                                continue
                            status = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue  # gone meanwhile
                        kind = kind_of(status.st_mode)
                        if kind in _KEPT:
                            yield os.fsencode(below), kind, status.st_size, status.st_mtime_ns

    def drop_missing(self, root: str) -> None:
        """Remove the records of files that are gone, unless a run deleted them or a backup exists."""
        with DailyBackups(self._store.places.state) as daily:
            backed_up = set(daily.names_by_file())
        with LiveFiles(root) as live:
            for some in self.files.present_files(self._project, os.fsencode(root), _SOME):
                if not any(live.is_missing(os.fsdecode(path)) for _, path in some):
                    continue
                # Once more, now that no run can be putting one back.
                with self._store.lock_project(self._project):
                    missing = [number for number, path in some if live.is_missing(os.fsdecode(path))]
                    gone = [number for number in missing if number not in backed_up]
                    self.files.drop(gone)
                self.dropped += len(gone)
                self.kept += len(missing) - len(gone)


def ignore_rules(directory: int, path: str) -> Ignored:
    """Return what a directory's own .gitignore says, if it has one; a long one is read in part."""
    text = plain_file(".gitignore", directory, MAX_IGNORE_FILE_SIZE)
    return () if text is None else ((len(path) + 1 if path else 0, IgnoreRules(os.fsdecode(text))),)


def is_ignored(path: str, ignored: Ignored, *, is_directory: bool) -> bool:
    """Ask each .gitignore, the deepest first, until one speaks of a path."""
    for start, rules in ignored:
        answer = rules.ignores(path[start:], is_directory=is_directory)
        if answer is not None:
            return answer
    return False
