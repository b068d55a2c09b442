"""Keep the records of a project's files, and their daily backups, in step with what runs do.

All of this happens under the project's lock. `record` comes after an apply or undo is settled, `release`
before an undo's first swap.
"""

from __future__ import annotations

import os
import sqlite3
import time

from fumehood.core import changes as c
from fumehood.core.ignore import lies_in_skipped
from fumehood.core.value import Value
from fumehood.linux.nofollow import Parents, look, open_top
from fumehood.store import backups
from fumehood.store.backups import Daily, Slots
from fumehood.store.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.files import Noted, Place, Record

_KEPT = (c.FILE, c.SYMLINK)  # the kinds that have records; only files have daily backups
_WAITING = (c.HELD, c.CONFLICT)


class Recorded(Value):
    """What was recorded; `missed` says which daily backups, or records, could not be made, and why."""

    files: int = 0
    missed: tuple[str, ...] = ()


def record(store: Store, project: int, run: Run, changes: Sequence[c.Change] | None = None) -> Recorded:
    """Bring the records up to date with what became of a run's changes, and make the day's backups.

    `changes` are those that were just decided, where these are not all of the run's. Nothing here can undo
    an apply, so what fails is told and not raised: the originals lie in the run's layer in any case.
    """
    try:
        return _Recording(store, project, run).all(run.found if changes is None else changes)
    except (OSError, sqlite3.Error) as error:
        return Recorded(missed=(f"the records of files could not be kept: {error}",))


class _Recording:
    """One run being recorded."""

    def __init__(self, store: Store, project: int, run: Run) -> None:
        self._store = store
        self._project = project
        self._run = run
        self._files = Files(store.database)
        self._roots = [os.fsencode(root) for root in run.roots]
        self._missed: list[str] = []

    def all(self, changes: Sequence[c.Change]) -> Recorded:
        """Record all of these changes."""
        waiting = self._files.waiting(self._project)
        counting = _counting(changes)
        applied = [change for change in counting if change.verdict == c.APPLIED]
        for number, root in enumerate(self._roots):
            self._applied(number, root, [change for change in applied if change.root == number])
        held = [self._waits(change) for change in counting if change.verdict in _WAITING]
        if waiting:
            decided = [change for change in changes if change.verdict not in (*_WAITING, c.APPLIED)]
            places = {(self._roots[change.root], os.fsencode(change.path)) for change in decided}
            self._files.wait_no_more(self._project, places & waiting)
            # Those that other runs hold still wait, whatever became of this one.
            held += [(*place, c.ABSENT, 0, 0) for place in waiting & _held_elsewhere(self._store, self._project, self._run)]
        if held:
            self._files.wait(self._project, held)
        return Recorded(files=len(applied), missed=tuple(self._missed))

    def _applied(self, number: int, root: bytes, changes: Sequence[c.Change]) -> None:
        """Note what was taken over in one root, and save the originals of files for the day."""
        paths = [os.fsencode(change.path) for change in changes]
        numbers = self._files.numbers(self._project, root, paths)
        copies = self._copies(number, changes, paths, numbers)
        there: list[Noted] = []
        deleted: list[Noted] = []
        for change, path, copy in zip(changes, paths, copies, strict=True):
            stamp, noted = change.after, there
            if stamp is None or stamp.kind not in _KEPT:
                stamp, noted = change.before, deleted
            assert stamp is not None
            noted.append((numbers[path], path, stamp.kind, stamp.size, stamp.modified_ns, copy))
        for noted in (there, deleted):
            if noted:
                self._files.note(self._project, root, self._run.run, noted, are_deleted=noted is deleted)

    def _copies(
        self, number: int, changes: Sequence[c.Change], paths: Sequence[bytes], numbers: dict[bytes, int]
    ) -> list[bytes]:
        """Make the day's backup of every file that was replaced or deleted; return its path, or nothing."""
        copies = [b""] * len(changes)
        wanted = [n for n, each in enumerate(changes) if each.before is not None and each.before.kind == c.FILE]
        if not wanted or not _goes_forward(self._store, self._run):
            return copies
        day = backups.day_of(time.time())
        with Daily(self._store.places.state) as daily, Slots(self._store.uppers(self._run)[number]) as slots:
            for n in wanted:
                path = paths[n]
                basename = path[path.rfind(b"/") + 1 :]
                name = backups.name_of(numbers[path], day, basename)
                try:
                    daily.keep(slots, changes[n].path.rpartition("/")[0], basename, name)
                except OSError as error:
                    self._missed.append(f"no backup for today of {changes[n].path}: {error.strerror}")
                else:
                    copies[n] = b"edited/" + name
        return copies

    def _waits(self, change: c.Change) -> tuple[bytes, bytes, str, int, int]:
        there = change.before
        at = self._roots[change.root], os.fsencode(change.path)
        if there is None or there.kind not in _KEPT:
            return (*at, c.ABSENT, 0, 0)
        return (*at, there.kind, there.size, there.modified_ns)


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


def _held_elsewhere(store: Store, project: int, run: Run) -> set[Place]:
    """Return the places that changes of other runs wait on."""
    query = "SELECT id FROM runs WHERE project = ? AND state = 'held' AND id != ?"
    found: set[Place] = set()
    for (name,) in store.database.rows(query, (project, run.run)):
        other = store.history.find(name)
        roots = [os.fsencode(root) for root in other.roots]
        found |= {
            (roots[change.root], os.fsencode(change.path)) for change in other.found if change.verdict in _WAITING
        }
    return found


def release(store: Store, changes: Sequence[c.Change], uppers: Sequence[str]) -> int:
    """Drop the daily backups that share an inode with what is about to go from layers into the project.

    The live file is that version again, and a write to it must not reach a backup. Returns how many went.
    """
    with Daily(store.places.state) as daily:
        names: dict[int, list[str]] = {}
        for name, inode in daily.entries():
            names.setdefault(inode, []).append(name)
        if not names:
            return 0
        gone: list[str] = []
        for number in sorted({change.root for change in changes}):
            mine = [each for each in changes if each.root == number]
            for inode in _inodes_going(mine, uppers[number], daily):
                gone += names.pop(inode, ())
        _forget(store, daily, gone)
        for name in gone:
            daily.remove(name)
    return len(gone)


def _inodes_going(changes: Sequence[c.Change], upper: str, daily: Daily) -> list[int]:
    """Return the inodes of files with several names that go from one layer into the project."""
    if not os.path.lexists(upper):
        return []
    going: list[int] = []
    device = os.fstat(daily.fd()).st_dev
    with Slots(upper) as slots:
        for change in changes:
            if change.verdict != c.APPLIED or change.after is None or change.after.kind != c.FILE:
                continue
            parent, _, name = change.path.rpartition("/")
            found = slots.look(parent, name)
            if found is not None and found.st_nlink > 1 and found.st_dev == device:
                going.append(found.st_ino)
    return going


def _forget(store: Store, daily: Daily, names: Sequence[str]) -> None:
    """Let records name the latest backup that is left once these are gone."""
    numbers = {known[0] for name in names if (known := backups.parsed(name)) is not None}
    if not numbers:
        return
    leaving, kept = set(names), daily.by_file()
    copies = []
    for number in numbers:
        left = [name for name in kept.get(number, ()) if name not in leaving]
        copies.append((number, os.fsencode(f"{backups.DIRECTORY}/{left[0]}") if left else b""))
    Files(store.database).set_copies(copies)


def clean_daily(store: Store, days: int = backups.DAYS, now: float | None = None) -> tuple[int, int]:
    """Remove the daily backups older than some days; returns how many, and the bytes that this freed.

    A record goes with its last backup if the file is gone too and no run deleted it. Takes the locks of the
    projects, so the caller must hold none of them.
    """
    moment = time.time() if now is None else now
    with Daily(store.places.state) as daily:
        old = backups.expired([name for name, _ in daily.entries()], moment, days)
        unfinished = daily.leftovers(moment - 86_400)
        by_number: dict[int, list[str]] = {}
        for name in old:
            by_number.setdefault((backups.parsed(name) or (0, ""))[0], []).append(name)
        known = Files(store.database).by_numbers(sorted(by_number))
        freed = 0
        for project in sorted({project for project, _ in known}):
            mine = [each for number, each in known if number == project]
            with store.alone(project):
                freed += _remove_daily(store, daily, mine, by_number)
        # What is left belongs to no record.
        freed += sum(daily.remove(name) for name in (*unfinished, *old))
    return len(old) + len(unfinished), freed


def _remove_daily(store: Store, daily: Daily, known: Sequence[Record], by_number: dict[int, list[str]]) -> int:
    """Remove old backups of some files, and the records that nothing is left of; returns the bytes freed."""
    names = [name for each in known for name in by_number[each.id]]
    _forget(store, daily, names)
    freed = sum(daily.remove(name) for name in names)
    kept = daily.by_file()
    Files(store.database).drop([each.id for each in known if each.id not in kept and not is_there(each)])
    return freed


def is_there(known: Record) -> bool:
    """Tell whether there is anything at the path of a record; what can't be looked at counts as there."""
    try:
        top = open_top(known.root)
    except FileNotFoundError:
        return True  # the whole root is away, perhaps not mounted
    parents = Parents(top)
    parent, _, name = known.path.rpartition("/")
    try:
        return look(parents.of(parent), name) is not None
    except PermissionError:
        return True
    except OSError:
        return False  # a parent is missing, or is no directory any more
    finally:
        parents.close()
        os.close(top)
