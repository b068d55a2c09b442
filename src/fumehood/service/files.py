"""Keep the records of a project's files, and their daily backups, in step with what runs do.

The transaction that settles an apply, undo or restore also marks the run as due. `record_run` follows it under the same
lock, and records a small run at once. A large one stays due until `catch_up`, which is called before the records are
read, and whenever there is time. Until then, the originals in the run's layer are the only backups.
`drop_shared_backups` is called before the first swap of an undo.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.paths import innermost, is_below
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

    # The .gitignore files that apply to a directory, the deepest first, each with the length of its directory's path.
    Ignored = tuple[tuple[int, IgnoreRules], ...]

_QUICK_COPIES, _QUICK_BYTES = 50, 1 << 20  # files, and bytes of each, that take no time to copy
MAX_AT_ONCE = 1_000  # changed paths that are recorded with the run itself: a few milliseconds
MISSED = "missed"  # the event in the audit trail if a daily backup could not be made
_RECORDED_KINDS = (c.FILE, c.SYMLINK)  # the kinds that have records; only files have daily backups
_STATES_WITH_ORIGINALS = ("applied", "held")  # states in which a run's layer holds the originals of what it changed


def record_run(store: Store, project: int, run: Run) -> None:
    """Record what a run did, and all runs that are due before it, if they are small; the project's lock is held.

    Running commands get to see the changes. Errors are ignored, because the run is applied already: what could not be
    recorded stays due, and is tried again.
    """
    try:
        refresh_running_commands(store, project, run)
        if has_entries(store.places.edits):
            from fumehood.service.edits import renew_edits

            renew_edits(store.places, project, run.run, {
                (run.roots[change.root], change.path) for change in run.changed if change.verdict == c.APPLIED
            })
        due = Files(store.database).due_runs(project)
        earlier = {name for _, name, _, _ in due} - {run.run}
        if len(run.changed) + sum(_count_changes(store, name) for name in earlier) <= MAX_AT_ONCE:
            _record_due_runs(store, project, due, run)
    except (OSError, FumehoodError):
        return


def _count_changes(store: Store, run: str) -> int:
    """Return how many paths a run changed."""
    counts = store.history.count_changes([run]).get(run, {})
    return sum(counts.values())


def catch_up(store: Store, project: int, *, wait: bool = True) -> None:
    """Record all runs that are due; takes the project's lock if there are any.

    It can be interrupted at any moment: runs stay due until all of them are recorded. Without `wait`, nothing is done
    if the lock is taken.
    """
    files = Files(store.database)
    if not files.due_runs(project):
        return
    try:
        with store.lock_project(project, wait=wait):
            due = files.due_runs(project)
            files.begin_due(number for number, _, _, begun in due if not begun)
            _record_due_runs(store, project, due)
    except BlockingIOError:
        return


def _record_due_runs(store: Store, project: int, due: Sequence[DueRun], settled: Run | None = None) -> None:
    """Record runs that are due, in their order, because the first version of a day is the one that is kept.

    If a daily backup can't be made, the audit trail says so.
    """
    times = {name: at for _, name, at, _ in reversed(due)}
    runs = [
        settled if settled is not None and settled.run == name else store.history.find(name)
        for name in reversed(times)
    ]
    for run in runs:
        missed = _record_one_run(store, project, run, times[run.run] or run.started_at)
        if missed:
            store.audit.add_event(run.run, MISSED, "; ".join(missed[:5]))
    _update_waiting_marks(store, project, runs)
    Files(store.database).drop_due(number for number, _, _, _ in due)


def _record_one_run(store: Store, project: int, run: Run, at: float) -> list[str]:
    """Record what one run did; return which backups could not be made, and why."""
    # An undo needs no backups: it takes out the work of a run. An undo of an undo brings the work back.
    needs_backups = run.state in _STATES_WITH_ORIGINALS and store.history.undo_depth(run) % 2 == 0
    changes_by_root: dict[int, list[c.Change]] = {}
    for change in run.changed:
        if change.verdict == c.APPLIED:
            changes_by_root.setdefault(change.root, []).append(change)
    updates_of_roots: list[RootUpdates] = []
    missed: list[str] = []
    for root, changes in changes_by_root.items():
        updates = RootUpdates(os.fsencode(run.roots[root]))
        updates_of_roots.append(updates)
        if needs_backups:
            with_original = [change for change in changes if change.before is not None and change.before.kind == c.FILE]
            without = [change for change in changes if change.before is None or change.before.kind != c.FILE]
            if with_original:
                missed += _back_up(store, project, store.uppers(run)[root], with_original, updates, at)
            for change in _recorded_changes(without, run.roots):
                _add_to_updates(change, None, updates)
        else:
            with LiveFiles(run.roots[root]) as live:
                for change in _recorded_changes(changes, run.roots):
                    _add_to_updates(change, live, updates)
    Files(store.database).record_after_run(project, run.run, updates_of_roots)
    if run.state in _STATES_WITH_ORIGINALS:
        write_seals(store.places, run, store.uppers(run))
    return missed


def _back_up(
    store: Store, project: int, upper: str, changes: Sequence[c.Change], updates: RootUpdates, at: float
) -> list[str]:
    """Make daily backups of the originals of one root's files, and add their rows; return what could not be made."""
    seen: list[SeenFile] = [
        (os.fsencode(change.path), c.FILE, change.before.size, change.before.modified_ns)
        for change in changes
        if change.before is not None
    ]
    paths = [each[0] for each in seen]
    numbers = Files(store.database).numbers_of(project, updates.root, seen)
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
        stamp, rows = change.after, updates.rows
        if stamp is None or stamp.kind not in _RECORDED_KINDS:
            stamp, rows = change.before, updates.deleted_rows
        assert stamp is not None
        rows.append((numbers[paths[n]], paths[n], stamp.kind, stamp.size, stamp.modified_ns, copy))
    return [
        f"no backup for today of {changes[n].path}: {error.strerror}"
        for n, error in failed.items()
        if error.strerror != NO_LONGER_IN_LAYER
    ]


def _add_to_updates(change: c.Change, live: LiveFiles | None, updates: RootUpdates) -> None:
    """Add a changed path to the files that exist or to those that are deleted; with `live`, by what is there now."""
    stamp = (None if live is None else live.stamp(change.path)) or change.after
    path = os.fsencode(change.path)
    if stamp is not None and stamp.kind in _RECORDED_KINDS:
        updates.seen.append((path, stamp.kind, stamp.size, stamp.modified_ns))
    elif change.before is not None and change.before.kind in _RECORDED_KINDS:
        before = change.before
        updates.seen_deleted.append((path, before.kind, before.size, before.modified_ns))


def drop_shared_backups(store: Store, undo_run: Run) -> int:
    """Drop the daily backups that share an inode with files that an undo is about to put back into the project.

    A write to such a file in the project must not reach a backup. Return how many were dropped.
    """
    due = store.database.rows("SELECT 1 FROM files_due WHERE run = ? AND NOT begun LIMIT 1", (undo_run.layer,))
    if due and _count_changes(store, undo_run.layer) > MAX_AT_ONCE:
        return 0  # so large a run has no daily backups yet
    with DailyBackups(store.places.state) as daily:
        in_directory = list(daily.entries())
        if not in_directory:
            return 0
        device = os.fstat(daily.fd()).st_dev
        applied = [change for change in undo_run.changed if change.verdict == c.APPLIED]
        inodes = {
            entry.st_ino for _, entry in _files_in_layers(store, undo_run, applied)
            if entry.st_nlink > 1 and entry.st_dev == device
        }  # fmt: skip
        dropped = [name for name, inode in in_directory if inode in inodes]
        if not dropped:
            return 0
        # If the undo fails, they are made again.
        with store.database.transaction() as connection:
            connection.execute(
                "INSERT INTO files_due (project, run) SELECT project, id FROM runs WHERE id = ?", (undo_run.layer,)
            )
        update_latest_backups(store, [name for name, _ in in_directory], dropped)
        for name in dropped:
            daily.remove(name)
    # A file that is recorded with several names is copied when it leaves the layer. Without the backups, it may have
    # only one, so the names are counted again. Of a few small files of our own, a copy is as good.
    linked = [change for change in undo_run.changed if change.after is not None and change.after.links > 1]
    files = list(_files_in_layers(store, undo_run, linked))
    are_slow_to_copy = len(files) > _QUICK_COPIES or any(after.size > _QUICK_BYTES for after, _ in files)
    for after, entry in files:
        if are_slow_to_copy or entry.st_uid != os.geteuid():
            after.links = entry.st_nlink
    return len(dropped)


def _files_in_layers(
    store: Store, undo_run: Run, changes: Sequence[c.Change]
) -> Iterator[tuple[c.Stamp, os.stat_result]]:
    """Yield the files in the layers that changes put into the project: as they are recorded, and as they are now."""
    for number, upper in enumerate(store.uppers(undo_run)):
        if os.path.lexists(upper):
            with LayerSlots(upper) as slots:
                for change in changes:
                    if change.root == number and change.after is not None and change.after.kind == c.FILE:
                        entry = slots.look(*split(change.path))
                        if entry is not None:
                            yield change.after, entry


def update_latest_backups(store: Store, names: Iterable[str], dropped: Sequence[str]) -> None:
    """Let the records of files name their latest backups, of all these names, without those that are dropped."""
    latest = {parts[0]: ("", b"") for name in dropped if (parts := backup_parts(name)) is not None}
    if not latest:
        return
    without = set(dropped)
    for name in names:
        number, day = backup_parts(name) or (0, "")
        if number in latest and name not in without and day > latest[number][0]:
            latest[number] = day, BACKUPS_PREFIX + os.fsencode(name)
    Files(store.database).set_copies((number, copy) for number, (_, copy) in latest.items())


def _update_waiting_marks(store: Store, project: int, runs: Sequence[Run]) -> None:
    """Mark in the records the files that held changes wait on, if these runs may have changed which they are."""
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
            for change in _recorded_changes(run.changed, run.roots)
            if change.verdict in c.WAITING
        }
    files.clear_waiting(project, waiting - held)
    for root in {root for root, _ in held - waiting}:
        existing: list[SeenFile] = []
        with LiveFiles(os.fsdecode(root)) as live:
            for path in sorted(path for top, path in held - waiting if top == root):
                stamp = live.stamp(os.fsdecode(path))
                if stamp is not None and stamp.kind in _RECORDED_KINDS:
                    existing.append((path, stamp.kind, stamp.size, stamp.modified_ns))
        files.record_seen(project, root, existing, time.time())
    files.mark_waiting(project, held - waiting)


def _recorded_changes(changes: Sequence[c.Change], roots: Sequence[str]) -> list[c.Change]:
    """Return the changes of files that have a record.

    A new file in a directory of packages or caches has none until it is changed again.
    """
    skipped: dict[str, bool] = {}
    recorded, places = [], c.outermost_roots(roots)
    for change in changes:
        before, after = change.before, change.after
        if before is None or before.kind not in _RECORDED_KINDS:
            if after is None or after.kind not in _RECORDED_KINDS:
                continue
            parent = c.path_in_parent(places[change.root][1], change.path).rpartition("/")[0]
            if parent not in skipped:
                skipped[parent] = lies_in_skipped(parent)
            if skipped[parent]:
                continue
        recorded.append(change)
    return recorded


class LiveFiles(Closable):
    """The files of one root in the project. No link is followed. If the root is not there, nothing is known of it."""

    def __init__(self, root: str) -> None:
        try:
            self._top = open_top(root)
        except OSError:
            self._top = -1  # removed, or not mounted
        self._parents = DirectoryCache(self._top)

    def close(self) -> None:
        """Close the directories."""
        self._parents.close()
        if self._top >= 0:
            os.close(self._top)

    def stamp(self, path: str) -> c.Stamp | None:
        """Return the stamp of what is at a path, or None if there is nothing, or it can't be looked at."""
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

_BATCH_FILES = 2_000  # recorded at once: that limits the memory, and how long a run may have to wait for the lock


class ScanResult(Value):
    """The files that a scan has seen, and the records that it added, updated and dropped.

    `kept` counts the records whose files are missing, but which have a backup; `unread` counts directories that could
    not be read.
    """

    files: int = 0
    added: int = 0
    updated: int = 0
    dropped: int = 0
    kept: int = 0
    unread: int = 0


def scan_project(store: Store, project: Project, on_progress: Callable[[int], None] | None = None) -> ScanResult:
    """Record every file of a project that is not ignored, and forget those that are gone and have no backup.

    `on_progress` is called now and then with the number of files seen. No symlink is followed, and no program is run.
    """
    if not project.id:  # it is not registered yet, but records need a project
        project = store.projects.open(project.path)
    catch_up(store, project.id)
    scan = _ProjectScan(store, project.id, on_progress)
    first = scan.files.last_number()
    for root in project.roots:
        if not any(is_below(root, other) for other in project.roots):
            scan.walk(root, [inner for inner in project.roots if is_below(inner, root)])
    added = scan.files.count_records(project.id, first)
    for root in project.roots:
        scan.drop_missing(root)
    return ScanResult(
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
        """Record the files in one root and in the roots inside it, some at a time."""
        try:
            top = open_top(root)
        except OSError as error:
            raise BadRequest(
                f"cannot read {root}: {error.strerror}", hint="is it there, and may you enter it? ls -ld"
            ) from error
        with Closing(top), DirectoryCache(top, bounded=False) as parents:
            batch: list[SeenFile] = []
            since = time.time()
            for file in self._files_below(parents):
                batch.append(file)
                if len(batch) >= _BATCH_FILES:
                    self._record_batch(root, inner, batch, since)
                    batch, since = [], time.time()
            self._record_batch(root, inner, batch, since)

    def _record_batch(self, root: str, inner: Sequence[str], batch: list[SeenFile], since: float) -> None:
        by_root: dict[str, list[SeenFile]] = {} if inner else {root: batch}
        for path, kind, size, modified_ns in batch if inner else ():
            # It may belong to a root inside this one.
            whole = f"{root}/{os.fsdecode(path)}"
            own = innermost(os.path.dirname(whole), inner) or root
            by_root.setdefault(own, []).append((os.fsencode(whole[len(own) + 1 :]), kind, size, modified_ns))
        # The lock is needed because a run that is being recorded gives numbers to its new files.
        with self._store.lock_project(self._project):
            for own, files in by_root.items():
                self.written += self.files.record_seen(self._project, os.fsencode(own), files, since)
        self.seen += len(batch)
        if self._on_progress is not None:
            self._on_progress(self.seen)

    def _files_below(self, parents: DirectoryCache) -> Iterator[SeenFile]:
        """Yield every file and symlink that is not ignored, directory by directory."""
        waiting: list[tuple[str, Ignored]] = [("", ())]
        while waiting:
            path, above = waiting.pop()
            directory = parents.open_listing(path)
            if directory is None:
                self.unread += 1  # closed, or gone meanwhile
                continue
            with Closing(directory):
                # A marker of a cache or virtual environment does not count at the top, because that is the project.
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
                        if kind in _RECORDED_KINDS:
                            yield os.fsencode(below), kind, status.st_size, status.st_mtime_ns

    def drop_missing(self, root: str) -> None:
        """Remove the records of files that are gone, unless a run deleted them or a backup exists."""
        with DailyBackups(self._store.places.state) as daily:
            backed_up = set(daily.names_by_file())
        with LiveFiles(root) as live:
            for batch in self.files.present_files(self._project, os.fsencode(root), _BATCH_FILES):
                if not any(live.is_missing(os.fsdecode(path)) for _, path in batch):
                    continue
                # Look again under the lock: a run may just have put a file back.
                with self._store.lock_project(self._project):
                    missing = [number for number, path in batch if live.is_missing(os.fsdecode(path))]
                    without_backup = [number for number in missing if number not in backed_up]
                    self.files.drop(without_backup)
                self.dropped += len(without_backup)
                self.kept += len(missing) - len(without_backup)


def ignore_rules(directory: int, path: str) -> Ignored:
    """Return the rules of a directory's own .gitignore, if it has one; of a long one, only the beginning is read."""
    text = plain_file(".gitignore", directory, MAX_IGNORE_FILE_SIZE)
    return () if text is None else ((len(path) + 1 if path else 0, IgnoreRules(os.fsdecode(text))),)


def is_ignored(path: str, ignored: Ignored, *, is_directory: bool) -> bool:
    """Return True if the deepest .gitignore that has a rule for a path ignores it."""
    for start, rules in ignored:
        answer = rules.ignores(path[start:], is_directory=is_directory)
        if answer is not None:
            return answer
    return False
