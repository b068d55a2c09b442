"""Keep the records of a project's files, and their daily backups, in step with what runs do.

`record` comes after an apply or undo is settled, `release` before an undo's first swap, both under the
project's lock. `catch_up` comes before anybody reads the records.
"""

from __future__ import annotations

import os
import sqlite3
import time

from fumehood.core import changes as c
from fumehood.core.ignore import lies_in_skipped
from fumehood.core.value import Value
from fumehood.linux.nofollow import Parents, look, open_top, stamp_of
from fumehood.store import backups
from fumehood.store.backups import Daily, Slots
from fumehood.store.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.backups import Wanted
    from fumehood.store.files import Noted, Place, Record, Seen

_KEPT = (c.FILE, c.SYMLINK)  # the kinds that have records; only files have daily backups
_WAITING = (c.HELD, c.CONFLICT)
_DAY_S = 86_400


class Recorded(Value):
    """The daily backups that were made or are there already, and those that could not be, and why."""

    backups: int = 0
    missed: tuple[str, ...] = ()


def record(store: Store, project: int, run: Run, changes: Sequence[c.Change] | None = None) -> Recorded:
    """Make the day's backups of what a run replaced or deleted, and see to it that the records will show it all.

    `changes` are those that were just decided, where these are not all of the run's. What needs no backup is
    only put on a list, for `catch_up`: a new tree costs nothing. Nothing here can undo an apply, so what fails
    is told and not raised; the originals lie in the run's layer in any case.
    """
    try:
        return _record(store, project, run, run.found if changes is None else changes)
    except (OSError, sqlite3.Error) as error:
        return Recorded(missed=(f"the records of files could not be kept: {error}",))


def _record(store: Store, project: int, run: Run, changes: Sequence[c.Change]) -> Recorded:
    saved: dict[int, list[c.Change]] = {}
    if _goes_forward(store, run):
        for change in changes:
            before = change.before
            if before is not None and before.kind == c.FILE and change.verdict == c.APPLIED:
                saved.setdefault(change.root, []).append(change)
    missed: list[str] = []
    for root, mine in saved.items():
        missed += _save(store, project, run, root, mine)
    count = sum(map(len, saved.values()))
    files = Files(store.database)
    if count < len(changes) or files.waiting(project):
        files.add_due(project, run.run)
    return Recorded(backups=count - len(missed), missed=tuple(missed))


def _goes_forward(store: Store, run: Run) -> bool:
    """Tell whether a run brings something new: an undo does not, but an undo of an undo does again.

    What an undo takes out is a run's own work, not what a person had at the beginning of the day.
    """
    act, of, is_forward = run.act, run.of, True
    while act == "undo":
        is_forward = not is_forward
        rows = store.database.rows("SELECT act, of FROM runs WHERE id = ?", (of,))
        act, of = rows[0] if rows else ("", None)
    return is_forward


def _save(store: Store, project: int, run: Run, root: int, changes: Sequence[c.Change]) -> list[str]:
    """Save the originals of one root's files for the day, and record them; returns what could not be saved."""
    files, top = Files(store.database), os.fsencode(run.roots[root])
    paths = [os.fsencode(change.path) for change in changes]
    numbers = files.numbers(project, top, paths)
    day = backups.day_of(time.time()).encode()
    wanted: list[Wanted] = []
    there: list[Noted] = []
    deleted: list[Noted] = []
    for change, path in zip(changes, paths, strict=True):
        number, (parent, _, basename) = numbers[path], path.rpartition(b"/")
        name = backups.name_of(number, day, basename)
        wanted.append((parent, basename, name))
        stamp, noted = change.after, there
        if stamp is None or stamp.kind not in _KEPT:
            stamp, noted = change.before, deleted
        assert stamp is not None
        noted.append((number, path, stamp.kind, stamp.size, stamp.modified_ns, backups.PREFIX + name))
    with Daily(store.places.state) as daily, Slots(store.uppers(run)[root]) as slots:
        failed = daily.keep(slots, wanted)
    without = {numbers[paths[n]] for n in failed}
    files.note(project, top, run.run, _without_copy(there, without))
    files.note(project, top, run.run, _without_copy(deleted, without), are_deleted=True)
    return [f"no backup for today of {changes[n].path}: {error.strerror}" for n, error in failed.items()]


def _without_copy(noted: list[Noted], numbers: set[int]) -> list[Noted]:
    """Take the backup's path out of what is noted of some files."""
    return [(*each[:5], b"") if each[0] in numbers else each for each in noted] if numbers else noted


def release(store: Store, changes: Sequence[c.Change], uppers: Sequence[str]) -> int:
    """Drop the daily backups that share an inode with what is about to go from layers into the project.

    The live file is that version again, and a write to it must not reach a backup. Returns how many went.
    """
    with Daily(store.places.state) as daily:
        found = list(daily.entries())
        if not found:
            return 0
        going: set[int] = set()
        for number in {change.root for change in changes}:
            going |= _inodes_going([each for each in changes if each.root == number], uppers[number], daily)
        gone = [name for name, inode in found if inode in going]
        _forget(store, [name for name, _ in found], gone)
        for name in gone:
            daily.remove(name)
    return len(gone)


def _inodes_going(changes: Sequence[c.Change], upper: str, daily: Daily) -> set[int]:
    """Return the inodes of files with several names that go from one layer into the project."""
    going: set[int] = set()
    if not os.path.lexists(upper):
        return going
    device = os.fstat(daily.fd()).st_dev
    with Slots(upper) as slots:
        for change in changes:
            after = change.after
            if after is None or after.kind != c.FILE or change.verdict != c.APPLIED:
                continue
            parent, _, name = change.path.rpartition("/")
            found = slots.look(parent, name)
            if found is not None and found.st_nlink > 1 and found.st_dev == device:
                going.add(found.st_ino)
    return going


def _forget(store: Store, names: Iterable[str], gone: Sequence[str]) -> None:
    """Let records name the latest backup that is left, of all these names, once some are gone."""
    latest = {known[0]: ("", b"") for name in gone if (known := backups.parsed(name)) is not None}
    if not latest:
        return
    leaving = set(gone)
    for name in names:
        known = backups.parsed(name)
        if known is not None and known[0] in latest and name not in leaving and known[1] > latest[known[0]][0]:
            latest[known[0]] = known[1], backups.PREFIX + os.fsencode(name)
    Files(store.database).set_copies((number, copy) for number, (_, copy) in latest.items())


def catch_up(store: Store, project: int) -> None:
    """Let the records show what runs did since the last time; takes the project's lock if there is anything to do."""
    files = Files(store.database)
    if not files.due(project):
        return
    with store.alone(project):
        due = files.due(project)
        for run in dict.fromkeys(run for _, run in due):
            _learn(store, project, store.history.find(run))
        held, waiting = _held(store, project), files.waiting(project)
        files.wait_no_more(project, waiting - held)
        _learn_held(store, project, held - waiting)
        files.wait(project, held - waiting)
        files.drop_due(number for number, _ in due)


def _learn(store: Store, project: int, run: Run) -> None:
    """Record what is there now of all that a run changed: a later run, or a person, may have been there too."""
    files, now = Files(store.database), time.time()
    counting = [change for change in _counting(run.found) if change.verdict == c.APPLIED]
    for number, root in enumerate(run.roots):
        there: list[Seen] = []
        deleted: list[Seen] = []
        with Live(root) as live:
            for change in counting:
                if change.root == number:
                    _sort(change, live, there, deleted)
        files.learn(project, os.fsencode(root), there, now, run=run.run)
        files.learn(project, os.fsencode(root), deleted, now, run=run.run, are_deleted=True)


def _learn_held(store: Store, project: int, places: set[Place]) -> None:
    """Record what is there now where held changes wait."""
    for root in {root for root, _ in places}:
        there: list[Seen] = []
        with Live(os.fsdecode(root)) as live:
            for path in sorted(path for top, path in places if top == root):
                found = live.look(os.fsdecode(path))
                stamp = None if found is None else stamp_of(found)
                if stamp is not None and stamp.kind in _KEPT:
                    there.append((path, stamp.kind, stamp.size, stamp.modified_ns))
        Files(store.database).learn(project, root, there, time.time())


def _sort(change: c.Change, live: Live, there: list[Seen], deleted: list[Seen]) -> None:
    """Put what is known of a changed path to what is there, or to what the run deleted."""
    found = live.look(change.path)
    stamp = change.after if found is None else stamp_of(found)
    if stamp is not None and stamp.kind in _KEPT:
        there.append((os.fsencode(change.path), stamp.kind, stamp.size, stamp.modified_ns))
    elif change.before is not None and change.before.kind in _KEPT:
        before = change.before
        deleted.append((os.fsencode(change.path), before.kind, before.size, before.modified_ns))


def _counting(changes: Sequence[c.Change]) -> list[c.Change]:
    """Return the changes of what has a record.

    What is new in a directory of packages or caches has none until it is changed again.
    """
    skipped: dict[str, bool] = {}
    found = []
    for change in changes:
        before, after = change.before, change.after
        if before is None or before.kind not in _KEPT:
            if after is None or after.kind not in _KEPT:
                continue
            parent = change.path.rpartition("/")[0]
            if parent not in skipped:
                skipped[parent] = lies_in_skipped(parent)
            if skipped[parent]:
                continue
        found.append(change)
    return found


def _held(store: Store, project: int) -> set[Place]:
    """Return the places that held changes wait on."""
    query = "SELECT id FROM runs WHERE project = ? AND state = 'held'"
    found: set[Place] = set()
    for (name,) in store.database.rows(query, (project,)):
        run = store.history.find(name)
        roots = [os.fsencode(root) for root in run.roots]
        found |= {
            (roots[change.root], os.fsencode(change.path))
            for change in _counting(run.found)
            if change.verdict in _WAITING
        }
    return found


class Live:
    """The project's side of one root: looked at without following anything."""

    def __init__(self, root: str) -> None:
        self._top = open_top(root)
        self._parents = Parents(self._top)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_error: object) -> None:
        self._parents.close()
        os.close(self._top)

    def look(self, path: str) -> os.stat_result | None:
        """Return what is at a path, or None where nothing is, or what is can't be looked at."""
        parent, _, name = path.rpartition("/")
        try:
            return look(self._parents.of(parent), name)
        except OSError:
            return None

    def is_missing(self, path: str) -> bool:
        """Tell whether there is certainly nothing at a path."""
        parent, _, name = path.rpartition("/")
        try:
            return look(self._parents.of(parent), name) is None
        except PermissionError:
            return False
        except OSError:
            return True  # a parent is missing, or is no directory any more


def clean_daily(store: Store, days: int = backups.DAYS, now: float | None = None) -> tuple[int, int]:
    """Remove the daily backups older than some days; returns how many, and the bytes that this freed.

    A record goes with its last backup if the file is gone too and no run deleted it. Takes the locks of the
    projects, so the caller must hold none of them.
    """
    moment = time.time() if now is None else now
    with Daily(store.places.state) as daily:
        by_number: dict[int, list[str]] = {}
        for name in backups.expired([name for name, _ in daily.entries()], moment, days):
            by_number.setdefault(backups.parsed(name)[0], []).append(name)  # type: ignore[index]
        known = Files(store.database).by_numbers(sorted(by_number))
        gone: list[str] = []
        freed = 0
        for project in sorted({project for project, _ in known}):
            mine = [each for number, each in known if number == project]
            names = [name for each in mine for name in by_number.pop(each.id)]
            with store.alone(project):
                freed += _remove(store, daily, names)
                _drop_missing(store, mine, set(daily.by_file()))
            gone += names
        # Those that no record names any more, and copies that were never finished.
        strays = [name for names in by_number.values() for name in names] + daily.leftovers(moment - _DAY_S)
        freed += _remove(store, daily, strays)
    return len(gone) + len(strays), freed


def _remove(store: Store, daily: Daily, names: Sequence[str]) -> int:
    """Remove daily backups, after their records forgot them; returns the bytes that this freed."""
    _forget(store, [name for name, _ in daily.entries()], names)
    freed = 0
    for name in names:
        freed += daily.freed_by(name)
        daily.remove(name)
    return freed


def _drop_missing(store: Store, known: Sequence[Record], with_backup: set[int]) -> None:
    """Remove those of these records that have neither a file nor a backup, unless a run deleted the file."""
    for root in sorted({each.root for each in known}):
        if not os.path.isdir(root):
            continue  # the whole root is away, perhaps not mounted
        with Live(root) as live:
            mine = [each for each in known if each.root == root and each.id not in with_backup]
            Files(store.database).drop([each.id for each in mine if live.is_missing(each.path)])
