"""Remove what is no longer needed: old backups and outputs, backups beyond the budget, layers without use.

The order of writes: the record forgets a layer, then the layer is renamed, then it is removed. So if a record names a
layer, the layer is whole; and what a crash leaves is removed the next time.
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
from fumehood.linux import confine, hostview, project_tree
from fumehood.linux.cache import remove_older
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import entries, open_top, stat_entry
from fumehood.service import apply
from fumehood.service import layers as layering
from fumehood.service.files import LiveFiles, catch_up, update_latest_backups
from fumehood.service.layers import disk_usage, stat_tree
from fumehood.service.profiles import remove_old_scratch
from fumehood.service.projects import remove_abandoned_directories
from fumehood.service.session import remove_old_sessions
from fumehood.service.store import Store
from fumehood.store import records
from fumehood.store.audit import CLEANED
from fumehood.store.database import Days, note_day
from fumehood.store.files import BACKUP_DAYS, BACKUPS, DailyBackups, Files, backup_parts
from fumehood.store.places import FileLock
from fumehood.store.projects import Project

DEFAULT_DAYS = 30
_NEEDED_STATES = frozenset({"held", "running", "applying", "settling"})
# Not `failed`: if a command was stopped, its files may be only in the layer.
_USELESS_STATES = frozenset({"discarded", "empty", "refused"})
_LOCK = "clean"
_ID_LETTERS = 16  # of a run's id, as reports show it
MAX_NAMED = 5  # runs that are named in a message
_MIN_FLEET_DAYS = 8  # after these, neither a job nor its result is in Redis any more
_AFTER_EVERY_DAY = 1 << 62
_SIMILAR_BITS = 4  # sizes are similar if their numbers of binary digits differ by less


class Freed(Value):
    """What was removed, and the space that this freed."""

    runs: int = 0  # whose layers were removed
    backups: int = 0  # daily ones
    outputs: int = 0
    leftovers: int = 0
    caches: int = 0  # of programs, kept for a project
    bytes: int = 0
    days: int = DEFAULT_DAYS
    not_undoable: tuple[str, ...] = ()  # the runs whose originals are gone, the earliest first
    failed: tuple[str, ...] = ()
    is_done: bool = True  # False for a dry run

    def in_words(self, runs: Sequence[str] = ()) -> str:
        """Return it as text for a person: then the lines of `runs`, and a line for each failure."""
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
            named = first_names([run[:_ID_LETTERS] for run in self.not_undoable], MAX_NAMED)
            lines.append(f"{'can' if self.is_done else 'could'} no longer be undone: {named}")
        return "\n".join([*lines, *runs, *(f"could not remove {each}" for each in self.failed)])


def clean(
    store: Store, *, days: int = DEFAULT_DAYS, backup_days: int = BACKUP_DAYS, budget: int = 0,
    now: float | None = None, project: Project | None = None, wait: bool = True, dry: bool = False,
) -> Freed:  # fmt: skip
    """Remove old backups of runs, old outputs, and old daily backups, but never what is held.

    This is for one project, or without `project`, for all of them and for what no record names. Only days on which
    Fumehood ran count, so that a wrong clock can't make everything old. With `dry`, nothing is removed.

    If the backups take more bytes than the `budget`, those of the oldest runs are removed too, but none of the last
    day; 0 is no limit. A run without its backups stays in the history, but its record names no layer, so undo knows
    that they are gone. A run that only added files needs no backup: it can be undone at any age. Without `wait`,
    BlockingIOError is raised if another process is cleaning.
    """
    if days < 0 or backup_days < 0:
        raise BadRequest(f"{min(days, backup_days)} days is not an age", hint="fumehood clean --days 30")
    moment = time.time() if now is None else now
    with FileLock(store.places.lock(_LOCK), wait=wait):
        if project is None and not dry:
            os.utime(store.places.lock(_LOCK))
        if not dry:
            # Daily backups are made of the runs' originals, so while these are still there.
            for (due_project,) in store.database.rows("SELECT DISTINCT project FROM files_due"):
                catch_up(store, due_project)
        with store.database.transaction() as connection:
            note_day(connection, moment)
        recorded = Days(store.database)
        owner = None if project is None else project.id
        backups, size = clean_daily(store, min(days, backup_days), recorded, moment, project=owner, dry=dry)
        freed = _Cleaning(store, days, budget, recorded, moment, project=owner, dry=dry).clean_runs()
        cutoff = recorded.cutoff_time(days, moment)
        caches, cache_size = remove_old_scratch(
            store.places,
            cutoff,
            recorded.cutoff_time(2, moment),
            project=None if project is None else project.path,
            dry=dry,
        )
        leftovers = freed.leftovers + remove_old_sessions(store, recorded, days, moment, project=owner, dry=dry)
        freed = freed.replace(
            backups=backups, caches=caches, bytes=freed.bytes + size + cache_size, leftovers=leftovers, is_done=not dry
        )
        if not dry:
            if project is None:
                prefixes = (confine.CACHE_PREFIX, hostview.CACHE_PREFIX, project_tree.MEMORY_PREFIX)
                remove_older(store.places.cache, prefixes, cutoff)
                # Notes of jobs are written when the jobs are sent, and when they have ended.
                fleet_cutoff = recorded.cutoff_time(max(days, _MIN_FLEET_DAYS), moment)
                remove_older(f"{store.places.state}/fleet", ("",), fleet_cutoff)
                remove_abandoned_directories(store.places)
            if freed != Freed(days=days):
                store.audit.add_event("", CLEANED, freed.in_words().replace("\n", "; "), project=owner)
        return freed


class _OldLayer(Value):
    """A layer, the ids and states of the runs that use it, and the latest of their numbers and days."""

    name: str
    project: int
    users: tuple[tuple[str, str], ...]
    latest: int = 0
    day: int = 0


class _Cleaning:
    """One cleaning of the layers and outputs of runs; the lock for cleaning is held."""

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
        self._renamed: list[str] = []  # directories that are about to be removed
        self._failed: list[str] = []

    def clean_runs(self) -> Freed:
        """Remove all layers and outputs that are not needed any more."""
        places = self._store.places
        with Closing(open_top(f"{places.state}/runs")) as runs, Closing(open_top(f"{places.state}/outputs")) as outputs:
            # A run makes its directory before it is recorded. One without a record may be starting now, so only old
            # ones are removed.
            on_disk, output_names = entries(runs), entries(outputs)
            self._measure(runs)
            removable = self._beyond_budget(on_disk)
            # Most runs of a long history are too young, so no more is read about them.
            first_kept = self._recorded.first_kept(1) if self._days else _AFTER_EVERY_DAY
            rows = self._store.database.rows("SELECT id FROM runs WHERE space >= 0 AND day >= ?", (first_kept,))
            young = {name for (name,) in rows}
            older = [name for name in on_disk if name not in young]
            recorded = _layers_by_name(self._store, older)
            chosen = {layer.name for layer in removable}
            removable += [
                layer for name, layer in recorded.items()
                if self._project in (None, layer.project) and name not in chosen
                and self._is_removable(layer, self._days)
            ]  # fmt: skip
            strays = [] if self._project is not None else [
                name for name in older if name not in recorded and self._is_old_stray(name, runs)
            ]
            if self._is_dry:
                # Files that a daily backup shares count too: the backup is as old, so it is removed as well.
                self._bytes += sum(disk_usage(runs, name) for name in [layer.name for layer in removable] + strays)
            else:
                removable = self._forget_layers(removable, runs)
                self._rename_to_gone(strays, runs)
                # An interrupted cleaning may have left some too.
                left_behind = [name for name in on_disk if name.endswith(layering.GONE)]
                self._remove_renamed([*self._renamed, *left_behind], runs)
            useful = [layer for layer in removable if not _is_useless(layer)]
            return Freed(
                runs=len(useful), leftovers=len(removable) - len(useful) + len(strays),
                outputs=self._remove_outputs(output_names, outputs), bytes=self._bytes, days=self._days,
                not_undoable=tuple(
                    run for layer in sorted(useful, key=lambda layer: layer.latest)
                    for run, state in layer.users if state == "applied"
                ),
                failed=tuple(self._failed),
            )  # fmt: skip

    def _is_old(self, day: int, days: int) -> bool:
        """Return True if more than `days` were recorded since a day; with 0 days, everything is old."""
        return days == 0 or self._recorded.days_after_number(day) > days

    def _is_removable(self, layer: _OldLayer, days: int) -> bool:
        """Return True if nobody needs a layer: nothing in it waits, and all runs that use it are older than `days`."""
        if _NEEDED_STATES & {state for _, state in layer.users}:
            return False
        if not self._is_old(layer.day, 1 if _is_useless(layer) else days):
            return False
        # Changes may still wait after the run was undone.
        changes = (change for run, _ in layer.users for change in self._store.history.changes(run))
        return all(change.verdict not in WAITING for change in changes)

    def _measure(self, runs: int) -> None:
        """Record the sizes of the layers in which changes were settled since the last cleaning."""
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
        """Return layers to remove, so that the others fit into the budget. Those of the last day stay, uncounted.

        Larger layers go first, and among those of similar size, the oldest. Otherwise one command that writes a great
        deal would cost a person all their small originals.
        """
        of_project = "" if self._project is None else f"AND project = {int(self._project)}"
        sizes = f"SELECT {{}} FROM runs WHERE space >= 0 {of_project}"
        ((total,),) = self._store.database.rows(sizes.format("coalesce(sum(space), 0)"))
        if not self._budget or total <= self._budget:
            return []
        space: dict[str, int] = dict(self._store.database.rows(sizes.format("id, space")))
        layers = [layer for name, layer in _layers_by_name(self._store, on_disk).items() if name in space]
        removable = [layer for layer in layers if self._is_removable(layer, self._days)]
        chosen = {layer.name for layer in removable}
        older = [layer for layer in layers if layer.name not in chosen and self._is_old(layer.day, 1)]
        total = sum(space[layer.name] for layer in older)
        by_size_and_age = sorted(
            older, key=lambda layer: (-(space[layer.name].bit_length() // _SIMILAR_BITS), layer.latest)
        )
        for layer in by_size_and_age:
            if total <= self._budget:
                break
            if space[layer.name] and self._is_removable(layer, 1):
                removable.append(layer)
                total -= space[layer.name]
        return removable

    def _forget_layers(self, layers: Sequence[_OldLayer], runs: int) -> list[_OldLayer]:
        """Let the records forget layers, and rename these, under the projects' locks; return those that were done."""
        forgotten: list[_OldLayer] = []
        for project in sorted({layer.project for layer in layers}):
            with self._store.lock_project(project):
                mine = [layer for layer in layers if layer.project == project]
                now = _layers_by_name(self._store, [layer.name for layer in mine])
                mine = [layer for layer in mine if now.get(layer.name) == layer]
                with self._store.database.transaction() as connection:
                    for layer in mine:
                        connection.execute(
                            "DELETE FROM versions WHERE run IN (SELECT number FROM runs WHERE layer = ?)", (layer.name,)
                        )
                        connection.execute("UPDATE runs SET layer = '', space = -1 WHERE layer = ?", (layer.name,))
                        for run, _ in layer.users:
                            self._store.audit.add(connection, run, CLEANED, "its backups are no longer kept")
                self._rename_to_gone([layer.name for layer in mine], runs)
                forgotten += mine
        return forgotten

    def _is_old_stray(self, name: str, runs: int) -> bool:
        """Return True if a directory that no record names can be removed.

        If the database was lost, it may hold the person's only copies. So it stays if its run can be recorded again.
        """
        if any(records.read_records(self._store.places, name)) or os.path.exists(f"{self._store.places.edits}/{name}"):
            return False
        limit = self._recorded.cutoff_time(max(self._days, 1), self._now)
        newest = max((entry.st_ctime for entry in stat_tree(runs, name)), default=0.0)
        return not name.endswith(layering.GONE) and newest < limit

    def _rename_to_gone(self, names: Iterable[str], runs: int) -> None:
        for name in names:
            try:
                claim = layering.lock_dead_run(self._store.places, name)
            except (FileNotFoundError, BlockingIOError):
                continue  # its own run has removed it, because it was empty, or is still alive
            with claim:
                os.rename(name, f"{name}{layering.GONE}", src_dir_fd=runs, dst_dir_fd=runs)
                self._renamed.append(f"{name}{layering.GONE}")

    def _remove_renamed(self, names: Sequence[str], runs: int) -> None:
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
        """Remove the outputs of old runs; their records still say how long the outputs were."""
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
                is_of_project = self._project in (None, project)
                may_go = is_of_project and state not in _NEEDED_STATES and self._is_old(day, self._days)
            if may_go:
                if not self._is_dry:
                    os.unlink(name, dir_fd=outputs)
                self._bytes += output.st_blocks * 512
                removed += 1
        return removed


def _layers_by_name(store: Store, names: Sequence[str]) -> dict[str, _OldLayer]:
    """Return the layers of these names that records have, and runs of these names that have no layer."""
    columns = "SELECT number, id, layer, project, state, max(number, settled_after), day FROM runs WHERE"
    conditions = ("layer IN (?)", "layer = '' AND id IN (?)")
    rows = [row for condition in conditions for row in store.database.rows_for(f"{columns} {condition}", names)]
    layers: dict[str, _OldLayer] = {}
    for _, run, name, owner, state, latest, day in sorted(rows):
        layer = layers.get(name or run, _OldLayer(name=name or run, project=owner, users=()))
        layers[layer.name] = layer.replace(
            users=(*layer.users, (run, state)), latest=max(layer.latest, latest), day=max(layer.day, day)
        )
    return layers


def _is_useless(layer: _OldLayer) -> bool:
    """Return True if a layer holds nothing that anybody wanted to keep."""
    return all(state in _USELESS_STATES for _, state in layer.users)


# ---- Remove old daily backups, and the records that only they had kept.

def clean_daily(
    store: Store, days: int, recorded: Days, now: float, *, project: int | None = None, dry: bool = False
) -> tuple[int, int]:
    """Remove the daily backups older than some recorded days, but not those of files that held changes wait on.

    This is for one project, or without `project`, for all of them and for backups that no record names. Return how many
    were removed, and the bytes that this frees.

    The record of a file is removed with its last backup if the file is gone too and no run deleted it. This takes the
    locks of the projects, so the caller must hold none of them.
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
                # The clock may have been behind: the latest backup is not older than the change that it was made for.
                latest = record.last_approved_copy_path.removeprefix(f"{BACKUPS}/")
                by_number[record.id] = [name for name in by_number[record.id] if name != latest]
        file_records = [(owner, record) for owner, record in file_records if by_number.get(record.id)]
        if project is not None:
            file_records = [(owner, record) for owner, record in file_records if owner == project]
            by_number = {record.id: by_number[record.id] for _, record in file_records}
        if dry:
            old = [name for names in by_number.values() for name in names]
            return len(old), sum(map(daily.freed_by, old))
        removed = freed = 0
        for owner in sorted({owner for owner, _ in file_records}):
            mine = [record for number, record in file_records if number == owner]
            names = [name for record in mine for name in by_number.pop(record.id)]
            with store.lock_project(owner):
                freed += _remove_backups(store, daily, names)
                backed_up = set(daily.names_by_file())
                for root in sorted({record.root for record in mine}):
                    without_backup = [record for record in mine if record.root == root and record.id not in backed_up]
                    with LiveFiles(root) as live:
                        Files(store.database).drop(
                            [record.id for record in without_backup if live.is_missing(record.path)]
                        )
            removed += len(names)
        # Backups that no record names any more, and copies that were never finished.
        strays = [name for names in by_number.values() for name in names]
        strays += daily.unfinished_copies(recorded.cutoff_time(1, now)) if project is None else []
        freed += _remove_backups(store, daily, strays)
    return removed + len(strays), freed


def _remove_backups(store: Store, daily: DailyBackups, names: Sequence[str]) -> int:
    """Let the records forget daily backups, then remove them; return the bytes that this freed."""
    update_latest_backups(store, [name for name, _ in daily.entries()], names)
    freed = 0
    for name in names:
        freed += daily.freed_by(name)
        daily.remove(name)
    return freed


def clean_up(store: Store, cleaning: Clean) -> str:
    """Clean by the person's settings, unless another process is cleaning; return what to tell them."""
    try:
        freed = clean(
            store, days=cleaning.keep_days, backup_days=cleaning.backup_days, budget=cleaning.budget, wait=False
        )
    except (OSError, FumehoodError):
        return ""
    return freed.in_words() if freed.runs or freed.backups else ""
