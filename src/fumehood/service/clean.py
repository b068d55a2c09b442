"""Remove what is no longer needed: old backups and outputs, what is beyond the budget, what came to nothing.

The order of writes: the record forgets a layer, then the layer is renamed, then it is removed. So a run
whose record names a layer has it whole, and what a crash leaves is removed the next time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from fumehood.core.changes import WAITING
from fumehood.core.policy import Clean
from fumehood.core.report import first_names, format_size, how_many
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux import confine, hostview
from fumehood.linux.cache import remove_older
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import entries, open_top, stat_entry
from fumehood.service import apply
from fumehood.service import layers as layering
from fumehood.service.files import LiveFiles, catch_up, forget_file
from fumehood.service.layers import disk_usage, stat_tree
from fumehood.service.profiles import remove_old_scratch
from fumehood.service.projects import remove_left
from fumehood.service.session import remove_old_sessions
from fumehood.service.store import Store
from fumehood.store import records
from fumehood.store.audit import CLEANED
from fumehood.store.database import Days, note_day
from fumehood.store.files import BACKUP_DAYS, BACKUPS, DailyBackups, Files, backup_parts
from fumehood.store.places import FileLock
from fumehood.store.projects import Project

DAYS = 30
_NEEDED = frozenset({"held", "running", "applying", "settling"})
# Not `failed`: where a command was stopped, its files may be in there and nowhere else.
_CAME_TO_NOTHING = frozenset({"discarded", "empty", "refused"})
_GONE = layering.GONE
_LOCK = "clean"
_SHORT = 16  # letters of an id, as reports show it
NAMED = 5
_FLEET_DAYS = 8  # at least; by then, neither a job nor its result is in Redis any more
_ANY_DAY = 1 << 62  # after every recorded one
_BITS_ALIKE = 4  # sizes that differ by less than so many binary digits are about the same


class Freed(Value):
    """What was removed, and the space that it took."""

    runs: int = 0  # that can no longer be undone
    backups: int = 0  # of single days
    outputs: int = 0
    leftovers: int = 0
    caches: int = 0  # of programs, kept for a project
    bytes: int = 0
    days: int = DAYS
    not_undoable: tuple[str, ...] = ()  # the runs whose originals are gone, the earliest first
    failed: tuple[str, ...] = ()
    is_done: bool = True  # False where it was only looked at what would go

    def in_words(self, runs: Sequence[str] = ()) -> str:
        """Say it in one line, and one more for each of `runs`, and for each thing that could not be removed."""
        things = ((self.runs, "run's backups", "runs' backups"), (self.backups, "daily backup", "daily backups"),
                  (self.outputs, "output", "outputs"), (self.leftovers, "leftover", "leftovers"),
                  (self.caches, "unused cache", "unused caches"))  # fmt: skip
        parts = [how_many(count, one, many) for count, one, many in things if count]
        days = f"{how_many(self.days, 'day')} on which Fumehood ran"
        lines = [f"nothing to remove: no backup and no output is older than {days}"]
        if parts:
            began, ended = ("removed", "freed") if self.is_done else ("would remove", "to be freed")
            lines = [f"{began} {', '.join(parts)}: {format_size(self.bytes)} {ended}"]
        if self.not_undoable:
            named = first_names([run[:_SHORT] for run in self.not_undoable], NAMED)
            lines.append(f"{'can' if self.is_done else 'could'} no longer be undone: {named}")
        return "\n".join([*lines, *runs, *(f"could not remove {each}" for each in self.failed)])


def clean(
    store: Store, *, days: int = DAYS, backup_days: int = BACKUP_DAYS, budget: int = 0, now: float | None = None,
    project: Project | None = None, wait: bool = True, dry: bool = False,
) -> Freed:  # fmt: skip
    """Remove the backups and saved outputs of runs older than some days, and daily backups; never what is held.

    Of one project, or, without one, of all, with what no record names. Old is by the days on which Fumehood ran, so
    that no single reading of a clock removes anything. A `dry` one only tells what would go.

    Beyond the budget, in bytes, the backups of the oldest runs go too, save those of the last day; 0 is no budget. A
    run whose backups are gone stays in the history, and its record no longer names a layer: that is how undo knows.
    A run that only added files needs no backup, so it can be undone however old it is. Without `wait`,
    BlockingIOError is raised where another process is at it.
    """
    if days < 0 or backup_days < 0:
        raise BadRequest(f"{min(days, backup_days)} days is not an age", hint="fumehood clean --days 30")
    moment = time.time() if now is None else now
    with FileLock(store.places.lock(_LOCK), wait=wait):
        if project is None and not dry:
            os.utime(store.places.lock(_LOCK))
        if not dry:
            # A daily backup is of the run's original: while that is there, it can still be made.
            for (each,) in store.database.rows("SELECT DISTINCT project FROM files_due"):
                catch_up(store, each)
        with store.database.transaction() as connection:
            note_day(connection, moment)
        recorded = Days(store.database)
        owner = None if project is None else project.id
        backups, size = clean_daily(store, min(days, backup_days), recorded, moment, project=owner, dry=dry)
        freed = _Cleaning(store, days, budget, recorded, moment, project=owner, dry=dry).all()
        old = recorded.cutoff_time(days, moment)
        caches, cached = remove_old_scratch(
            store.places,
            old,
            recorded.cutoff_time(2, moment),
            project=None if project is None else project.path,
            dry=dry,
        )
        leftovers = freed.leftovers + remove_old_sessions(store, recorded, days, moment, project=owner, dry=dry)
        freed = freed.replace(
            backups=backups, caches=caches, bytes=freed.bytes + size + cached, leftovers=leftovers, is_done=not dry
        )
        if not dry:
            if project is None:
                remove_older(store.places.cache, (confine.CACHE_PREFIX, hostview.CACHE_PREFIX), old)
                # Notes of jobs are written when these are sent, and when they have ended.
                remove_older(f"{store.places.state}/fleet", ("",), recorded.cutoff_time(max(days, _FLEET_DAYS), moment))
                remove_left(store.places)
            if freed != Freed(days=days):
                store.audit.add_event("", CLEANED, freed.in_words().replace("\n", "; "), project=owner)
        return freed


class _OldLayer(Value):
    """A layer by its records: the runs that use it, by id and state, and the latest of their numbers and days."""

    name: str
    project: int
    users: tuple[tuple[str, str], ...]
    latest: int = 0
    day: int = 0


class _Cleaning:
    """One cleaning, done while no other is."""

    def __init__(
        self, store: Store, days: int, budget: int, recorded: Days, now: float, *, project: int | None, dry: bool
    ) -> None:
        self._store = store
        self._days = days
        self._budget = budget
        self._recorded = recorded
        self._now = now
        self._project = project
        self._is_dry = dry
        self._bytes = 0
        self._gone: list[str] = []  # directories that were set aside
        self._failed: list[str] = []

    def all(self) -> Freed:
        """Remove everything that may go."""
        places = self._store.places
        with Closing(open_top(f"{places.state}/runs")) as runs, Closing(open_top(f"{places.state}/outputs")) as outputs:
            # A run makes its directory before it is recorded, so one without a record may be starting just now:
            # only those that have been there for long go.
            on_disk, printed = entries(runs), entries(outputs)
            self._measure(runs)
            going = self._beyond_budget(on_disk)
            # Of a long history, most is too young: nothing else need be known of that.
            first_kept = self._recorded.first_kept(1) if self._days else _ANY_DAY
            rows = self._store.database.rows("SELECT id FROM runs WHERE space >= 0 AND day >= ?", (first_kept,))
            young = {name for (name,) in rows}
            older = [name for name in on_disk if name not in young]
            recorded = _layers(self._store, older)
            chosen = {layer.name for layer in going}
            going += [
                layer for name, layer in recorded.items()
                if self._project in (None, layer.project) and name not in chosen and self._may_go(layer, self._days)
            ]
            strays = [] if self._project is not None else [
                name for name in older if name not in recorded and self._is_stray(name, runs)
            ]
            if self._is_dry:
                # What a daily backup has too is counted here: that is not younger, and goes as well.
                self._bytes += sum(disk_usage(runs, name) for name in [each.name for each in going] + strays)
            else:
                going = self._retire(going, runs)
                self._set_aside(strays, runs)
                # With those of a cleaning that did not end.
                self._remove_gone([*self._gone, *(name for name in on_disk if name.endswith(_GONE))], runs)
            wanted = [layer for layer in going if not _is_useless(layer)]
            return Freed(
                runs=len(wanted), leftovers=len(going) - len(wanted) + len(strays),
                outputs=self._remove_outputs(printed, outputs), bytes=self._bytes, days=self._days,
                not_undoable=tuple(
                    run for layer in sorted(wanted, key=lambda layer: layer.latest)
                    for run, state in layer.users if state == "applied"
                ),
                failed=tuple(self._failed),
            )  # fmt: skip

    def _is_old(self, day: int, days: int) -> bool:
        """Return True if more than so many days were recorded since one; of no days, everything is."""
        return days == 0 or self._recorded.days_after_number(day) > days

    def _may_go(self, layer: _OldLayer, days: int) -> bool:
        """Return True if nobody needs a layer: nothing in it waits, and all that used it is so many days old."""
        if _NEEDED & {state for _, state in layer.users}:
            return False
        if not self._is_old(layer.day, 1 if _is_useless(layer) else days):
            return False
        # An undo leaves what waits for a person where it is.
        changes = (change for run, _ in layer.users for change in self._store.history.changes(run))
        return all(change.verdict not in WAITING for change in changes)

    def _measure(self, runs: int) -> None:
        """Record what the layers take in which something was settled since the last time."""
        database = self._store.database
        unmeasured = (
            "SELECT DISTINCT layer FROM runs WHERE space IS NULL AND layer != ''"
            " AND state NOT IN ('running', 'applying', 'settling')"
        )
        sizes = [
            (-1 if stat_entry(runs, name) is None else disk_usage(runs, name), name)
            for (name,) in database.rows(unmeasured)
        ]
        with database.transaction() as connection:
            connection.executemany("UPDATE runs SET space = -1 WHERE layer = ?", [(name,) for _, name in sizes])
            connection.executemany("UPDATE runs SET space = ? WHERE id = ?", sizes)

    def _beyond_budget(self, on_disk: Sequence[str]) -> list[_OldLayer]:
        """Return layers that may go, until those left fit into the budget; the last day is kept, and does not count.

        The oldest go first, among those that take about as much: a command that writes a great deal would else cost a
        person all the small originals that they have.
        """
        mine = "" if self._project is None else f"AND project = {int(self._project)}"
        sizes = f"SELECT {{}} FROM runs WHERE space >= 0 {mine}"
        ((total,),) = self._store.database.rows(sizes.format("coalesce(sum(space), 0)"))
        if not self._budget or total <= self._budget:
            return []
        space: dict[str, int] = dict(self._store.database.rows(sizes.format("id, space")))
        layers = [layer for name, layer in _layers(self._store, on_disk).items() if name in space]
        going = [layer for layer in layers if self._may_go(layer, self._days)]
        chosen = {layer.name for layer in going}
        older = [layer for layer in layers if layer.name not in chosen and self._is_old(layer.day, 1)]
        total = sum(space[layer.name] for layer in older)
        for layer in sorted(older, key=lambda layer: (-(space[layer.name].bit_length() // _BITS_ALIKE), layer.latest)):
            if total <= self._budget:
                break
            if space[layer.name] and self._may_go(layer, 1):
                going.append(layer)
                total -= space[layer.name]
        return going

    def _retire(self, layers: Sequence[_OldLayer], runs: int) -> list[_OldLayer]:
        """Let the records forget layers, and set these aside, while nobody can apply or undo."""
        retired: list[_OldLayer] = []
        for project in sorted({layer.project for layer in layers}):
            with self._store.lock_project(project):
                mine = [layer for layer in layers if layer.project == project]
                now = _layers(self._store, [layer.name for layer in mine])
                mine = [layer for layer in mine if now.get(layer.name) == layer]
                with self._store.database.transaction() as connection:
                    for layer in mine:
                        connection.execute(
                            "DELETE FROM versions WHERE run IN (SELECT number FROM runs WHERE layer = ?)", (layer.name,)
                        )
                        connection.execute("UPDATE runs SET layer = '', space = -1 WHERE layer = ?", (layer.name,))
                        for run, _ in layer.users:
                            self._store.audit.add(connection, run, CLEANED, "its backups are no longer kept")
                self._set_aside([layer.name for layer in mine], runs)
                retired += mine
        return retired

    def _is_stray(self, name: str, runs: int) -> bool:
        """Return True if a directory that no record names may go.

        Should the database be lost, these are the person's only copies: what can be taken up again stays.
        """
        if any(records.read_records(self._store.places, name)) or os.path.exists(f"{self._store.places.edits}/{name}"):
            return False
        limit = self._recorded.cutoff_time(max(self._days, 1), self._now)
        newest = max((entry.st_ctime for entry in stat_tree(runs, name)), default=0.0)
        return not name.endswith(_GONE) and newest < limit

    def _set_aside(self, names: Iterable[str], runs: int) -> None:
        for name in names:
            try:
                claim = layering.lock_dead_run(self._store.places, name)
            except (FileNotFoundError, BlockingIOError):
                continue  # its own run removed it, because nothing was left in it, or is at it
            with claim:
                os.rename(name, f"{name}{_GONE}", src_dir_fd=runs, dst_dir_fd=runs)
                self._gone.append(f"{name}{_GONE}")

    def _remove_gone(self, names: Sequence[str], runs: int) -> None:
        done: list[str] = []
        apply.note_progress(done, len(names))
        for name in names:
            done.append(name)
            size = disk_usage(runs, name, freed=True)
            try:
                layering.drop(self._store.places, name)
            except OSError as error:
                self._failed.append(f"{self._store.places.run(name)}: {error.strerror}")
            else:
                self._bytes += size

    def _remove_outputs(self, names: Sequence[str], outputs: int) -> int:
        """Remove the outputs of old runs; their records say how long they were."""
        ids = sorted({name.partition(".")[0] for name in names})
        rows = self._store.database.rows_for("SELECT id, project, state, day FROM runs WHERE id IN (?)", ids)
        runs = {run: (project, state, day) for run, project, state, day in rows}
        stray_limit = self._recorded.cutoff_time(max(self._days, 1), self._now)
        removed = 0
        for name in names:
            output = stat_entry(outputs, name)
            if output is None:
                continue
            project, state, day = runs.get(name.partition(".")[0], (None, "", 0))
            if project is None:
                may_go = self._project is None and output.st_mtime < stray_limit
            else:
                is_meant = self._project in (None, project)
                may_go = is_meant and state not in _NEEDED and self._is_old(day, self._days)
            if may_go:
                if not self._is_dry:
                    os.unlink(name, dir_fd=outputs)
                self._bytes += output.st_blocks * 512
                removed += 1
        return removed


def _layers(store: Store, names: Sequence[str]) -> dict[str, _OldLayer]:
    """Return those of some layers that records name, and by their own ids the runs that have none."""
    columns = "SELECT number, id, layer, project, state, max(number, settled_after), day FROM runs WHERE"
    conditions = ("layer IN (?)", "layer = '' AND id IN (?)")
    rows = [row for each in conditions for row in store.database.rows_for(f"{columns} {each}", names)]
    layers: dict[str, _OldLayer] = {}
    for _, run, name, owner, state, latest, day in sorted(rows):
        layer = layers.get(name or run, _OldLayer(name=name or run, project=owner, users=()))
        layers[layer.name] = layer.replace(
            users=(*layer.users, (run, state)), latest=max(layer.latest, latest), day=max(layer.day, day)
        )
    return layers


def _is_useless(layer: _OldLayer) -> bool:
    """Return True if a layer holds nothing that anybody wanted to keep."""
    return all(state in _CAME_TO_NOTHING for _, state in layer.users)


# ---- Remove daily backups that are old, and the records that only they had kept.

def clean_daily(
    store: Store, days: int, recorded: Days, now: float, *, project: int | None = None, dry: bool = False
) -> tuple[int, int]:
    """Remove the daily backups older than some recorded days, save those of files that held changes wait on.

    Of one project, or of all, with those that no record names. Returns how many, and the bytes that this frees.

    A record goes with its last backup if the file is gone too and no run deleted it. Takes the locks of the
    projects, so the caller must hold none of them.
    """
    with DailyBackups(store.places.state) as daily:
        by_number: dict[int, list[str]] = {}
        for name, _ in daily.entries():
            parts = backup_parts(name)
            if parts is not None and recorded.days_after(parts[1]) > days:
                by_number.setdefault(parts[0], []).append(name)
        file_records = Files(store.database).by_numbers(sorted(by_number))
        for _, record in file_records:
            if record.needs_approval:
                del by_number[record.id]  # a held change waits on it
            elif recorded.days_after_number(record.last_day) <= days:
                # Its clock was behind, perhaps: the latest is not older than the change that it was made for.
                latest = record.last_approved_copy_path.removeprefix(f"{BACKUPS}/")
                by_number[record.id] = [name for name in by_number[record.id] if name != latest]
        file_records = [(owner, record) for owner, record in file_records if by_number.get(record.id)]
        if project is not None:
            file_records = [(owner, record) for owner, record in file_records if owner == project]
            by_number = {record.id: by_number[record.id] for _, record in file_records}
        if dry:
            going = [name for names in by_number.values() for name in names]
            return len(going), sum(map(daily.freed_by, going))
        gone: list[str] = []
        freed = 0
        for owner in sorted({owner for owner, _ in file_records}):
            mine = [each for number, each in file_records if number == owner]
            names = [name for each in mine for name in by_number.pop(each.id)]
            with store.lock_project(owner):
                freed += _remove(store, daily, names)
                backed_up = set(daily.names_by_file())
                for root in sorted({each.root for each in mine}):
                    alone = [each for each in mine if each.root == root and each.id not in backed_up]
                    with LiveFiles(root) as live:
                        Files(store.database).drop([each.id for each in alone if live.is_missing(each.path)])
            gone += names
        # Those that no record names any more, and copies that were never finished.
        strays = [name for names in by_number.values() for name in names]
        strays += daily.unfinished_copies(recorded.cutoff_time(1, now)) if project is None else []
        freed += _remove(store, daily, strays)
    return len(gone) + len(strays), freed


def _remove(store: Store, daily: DailyBackups, names: Sequence[str]) -> int:
    """Remove daily backups, after their records forgot them; returns the bytes that this freed."""
    forget_file(store, [name for name, _ in daily.entries()], names)
    freed = 0
    for name in names:
        freed += daily.freed_by(name)
        daily.remove(name)
    return freed


def clean_up(store: Store, cleaning: Clean) -> str:
    """Clean as the person wishes it, unless another process is at it; returns what to tell them."""
    try:
        freed = clean(
            store, days=cleaning.keep_days, backup_days=cleaning.backup_days, budget=cleaning.budget, wait=False
        )
    except (OSError, FumehoodError):
        return ""
    return freed.in_words() if freed.runs or freed.backups else ""
