"""Recovery after a death: take back an apply that was not done, finish one that was, and hold what a command wrote.

Locks tell who has died. A run holds the lock on its directory until its record is final. Applies and undos are done
under the lock of their project, so whoever gets it knows that unfinished ones belong to nobody. Every step here checks
the state first, so recovery can itself be interrupted, and repeated.
"""

from __future__ import annotations

import errno
import os
import time

from fumehood.core import changes as c
from fumehood.core.changes import MKDIR, WAITING, Step, directories_to_keep
from fumehood.core.judge import judge
from fumehood.core.policy import HOSTS
from fumehood.core.report import Run, printable
from fumehood.core.request import DISCARD, HOLD, WHOLE
from fumehood.core.value import Value
from fumehood.errors import BadRequest, TooDeep, as_fumehood_error
from fumehood.linux.capture import COPY, FUSE, finish_after_death
from fumehood.linux.copying import replace_by_copies
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.nofollow import open_top, remove_tree
from fumehood.linux.process import wait_until_gone
from fumehood.linux.staging import COPIES_DIR, OLD_ORIGINALS_DIR, ORIGINALS_DIR
from fumehood.linux.steps import UNREACHABLE, PathChanged, restore_modes
from fumehood.service import layers as layering
from fumehood.service.apply import Transfer, steps_of_apply
from fumehood.service.conflicts import check_conflicts_in_draft, drop_changes_without_base, find_conflicts
from fumehood.service.decide import APPLIED_EARLIER, BY_FORCE, STOPPED_RUNNING
from fumehood.service.drafts import remove_draft_layers
from fumehood.service.held import move_to_held_trees, move_to_layer, remove_discarded
from fumehood.service.projects import remove_abandoned_directories
from fumehood.service.settle import FAILED, HELD, state_of
from fumehood.service.store import Store
from fumehood.service.verdicts import find_concerns
from fumehood.store import records
from fumehood.store.audit import RECOVERED
from fumehood.store.config import policy_for
from fumehood.store.database import damage_of
from fumehood.store.files import BACKUPS, backup_parts
from fumehood.store.history import APPLYING, CHECKPOINT, DRAFT, RUNNING, SETTLING, UNFINISHED
from fumehood.store.places import FileLock, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from fumehood.core.danger_facts import Concern
    from fumehood.linux.namespaces import Layer
    from fumehood.store.database import Database

STOPPED_APPLYING = "Fumehood was stopped while applying; nothing was applied"
STOPPED_BEFORE_DONE = "Fumehood was stopped before it was done; the project is as it was"
_MAX_DYING_S = 10.0  # a sandbox is killed with the process that attends it, and is gone a moment later


def recover(store: Store, unfinished: Sequence[tuple[str, str, str, int]]) -> None:
    """Recover the runs of dead processes. Runs of living ones are left out, and a run stays as it is if this fails."""
    remove_abandoned_directories(store.places)
    with InterruptsHeld() as interrupts:
        # First of all, so that directories have their right modes when they are read.
        restore_modes(store.places.modes)
        for run, state, act, project in unfinished:
            if not store.projects.is_in_place(project):
                if state == RUNNING and not layering.is_process_alive(store.places, run):
                    store.unsettled[run] = "another directory is there"
                continue  # nothing of this run is in the directory that is there now
            try:
                if state == RUNNING and act == "run":
                    _hold_for_dead(store, run, project, interrupts)
                else:
                    with (
                        FileLock(store.places.lock(f"project-{project}"), wait=False),
                        store.lock_held_trees(project, settling=True),
                    ):
                        _finish_or_take_back(store, run)
            except BlockingIOError:
                continue  # another process is at it
            except OSError as error:
                store.unsettled[run] = os.strerror(error.errno or 0)
            except Exception as error:  # noqa: BLE001 - commands, also of other projects, must not fail because of it
                store.unsettled[run] = as_fumehood_error(error).message
            else:
                store.unsettled.pop(run, None)


def mend(store: Store, unfinished: Sequence[tuple[str, str, str, int]]) -> None:
    """Recover the applies and undos of a project; the caller holds its lock."""
    restore_modes(store.places.modes)
    for run, state, act, project in unfinished:
        if state != RUNNING or act != "run":
            with store.lock_held_trees(project, settling=True):
                _finish_or_take_back(store, run)


# ---- A command that was running.


def _hold_for_dead(store: Store, name: str, project: int, interrupts: InterruptsHeld) -> None:
    """Hold what the command of a dead run has written."""
    try:
        run_lock = layering.lock_dead_run(store.places, name)
    except FileNotFoundError:
        run_lock = None
    try:
        run = store.history.find(name)
        if run.state != RUNNING:
            return  # another process was faster
        if run_lock is None:
            store.history.set_state(name, FAILED, STOPPED_RUNNING, event=RECOVERED)
            return
        if not run.sandboxed:
            from fumehood.service.unsandboxed import UNCAPTURED

            store.history.set_state(name, FAILED, f"{STOPPED_RUNNING}; {UNCAPTURED}", event=RECOVERED)
            layering.drop(store.places, name)
            return
        if run.mode == DRAFT:
            _withdraw(store, run)  # the draft still holds it all
            return
        if not wait_until_gone(f"{store.places.run(name)}/0/{layering.INIT}", _MAX_DYING_S, by_force=True):
            raise BlockingIOError  # a process of it can't end now; perhaps it waits for a disk
        if run.session is not None:
            from fumehood.service.session import remove_session_files

            remove_session_files(store.places, run.session, name)
        with FileLock(store.places.lock(f"project-{project}"), wait=False):
            below, frozen = layering.recorded_trees_below(store.places, name)
            layers = layering.layers_of(store.places, name, run.roots, below, frozen)
            _hold(store, project, run, layers, interrupts)
    finally:
        if run_lock is not None:
            run_lock.close()


def _hold(store: Store, project: int, run: Run, layers: Sequence[Layer], interrupts: InterruptsHeld) -> None:
    interrupts.release()  # the scan may take long, and can be repeated
    try:
        obstacle = _scan_and_judge(store, run, layers)
    finally:
        interrupts.hold()
    if obstacle:
        store.history.set_state(run.run, FAILED, obstacle, event=RECOVERED)
        return
    if run.draft is not None:
        check_conflicts_in_draft(store, project, run, may_run_again=False)
    state, run.reason = state_of(run.changed), run.reason or STOPPED_RUNNING
    if run.network == HOSTS:
        run.reason += "; which hosts it reached is not known"
    run.state = SETTLING if state == HELD else state
    outputs = [_saved_output(store, run, stream) for stream in ("stdout", "stderr")]
    store.history.write_journal(run, outputs, event=RECOVERED)
    layering.remove_work_directories(layers)
    if state != HELD:
        layering.drop(store.places, run.run)
        return
    move_to_held_trees(store, run)
    run.state = HELD
    store.history.settle(run, rewrite=False)


def _scan_and_judge(store: Store, run: Run, layers: Sequence[Layer]) -> str:
    """Scan and judge what a command changed; return why that is not possible, or "". What it wrote stays as it is."""
    obstacle = _prepare_layers(store, run, layers)
    if obstacle:
        return obstacle
    why = run.reason or STOPPED_RUNNING
    try:
        run.changed = layering.scan_layers(layers)
    except TooDeep as error:
        return f"{why}; {error.message}; what it wrote is in {store.places.run(run.run)}"
    judge(run.changed, DISCARD if run.mode in (DISCARD, WHOLE) else HOLD, _concerns(store, run, layers))
    for change in run.changed:
        if change.verdict == c.HELD:
            # If the host would execute it by itself, the reason says that too.
            change.reason = f"{why}; {change.reason}" if change.flags else why
    find_conflicts(store, run, layers)
    drop_changes_without_base(store, run)
    return ""


def _concerns(store: Store, run: Run, layers: Sequence[Layer]) -> dict[int, Concern]:
    """Return which changes the host would act on by itself, for the person who reviews them."""
    if not run.changed:
        return {}
    rules = policy_for(store.places, run.roots).rules
    uppers = [layer.upper for layer in layers]
    return find_concerns(run.changed, run.roots, uppers, rules, writable_elsewhere=store.writable_directories)


def _prepare_layers(store: Store, run: Run, layers: Sequence[Layer]) -> str:
    """Make the upper directories what an overlay would have left; return why that is not possible, or ""."""
    if not all(os.path.isdir(layer.upper) for layer in layers):
        return "Fumehood was stopped before the command began"
    # Layers without a tree of ours are overlays of the kernel. A broken mount has no status, but its name is listed.
    trees = [
        layer for layer in layers
        if run.capture in (FUSE, COPY) and os.path.basename(layer.merged) in os.listdir(os.path.dirname(layer.merged))
    ]  # fmt: skip
    lost = finish_after_death(run.capture, trees)
    if lost is not None:
        return f"{STOPPED_RUNNING}; what it left is in {lost.merged}"
    overlaid = [layer.upper for layer in layers if layer not in trees]
    if overlaid and any(
        state == RUNNING and name != run.run and layering.is_process_alive(store.places, name)
        for name, state, *_ in store.history.unfinished_runs()
    ):
        # Another command may still have an open file of this one, and write it. So the layers become copies. But the
        # layers' own files tell what checkpoints have settled, so that is removed from the layers before.
        if layering.is_checkpointed(layers):
            layering.scan_layers(layers)
        replace_by_copies(overlaid)
    return ""


def _saved_output(store: Store, run: Run, stream: str) -> tuple[bytes | None, int]:
    """Return an output as far as it was saved, with its length. A long one is in a file, a short one in the record."""
    try:
        return None, os.stat(store.places.output(run.run, stream)).st_size
    except FileNotFoundError:
        ((data,),) = store.database.rows(f"SELECT {stream} FROM runs WHERE id = ?", (run.run,))
        return data or b"", len(data or b"")


# ---- An apply, undo or restore.


def _finish_or_take_back(store: Store, name: str) -> None:
    """Take back or finish an interrupted apply, undo or restore; the project's lock is held."""
    run = store.history.find(name)
    if run.state == RUNNING and run.act != "run":
        store.history.set_state(name, FAILED, STOPPED_BEFORE_DONE, event=RECOVERED)
        if run.act == CHECKPOINT:
            layering.drop(store.places, name)
    elif run.state == APPLYING and os.path.isdir(store.places.run(run.layer)):
        _take_back(store, run)
    elif run.state in (APPLYING, SETTLING):
        # If the layer is gone, the run had ended, and the layer was not needed any more; but its end was lost.
        _finish(store, run)


def _steps_of(store: Store, run: Run) -> list[Step]:
    stays = directories_to_keep(store.history.find(run.layer).changed) if run.act == "undo" else frozenset()
    return steps_of_apply(run.changed, run.roots, stays)


def _take_back(store: Store, run: Run) -> None:
    """Make the project as before: undo every step that was done, unless a person has changed the path since."""
    steps = _steps_of(store, run)
    if run.act == "run":
        move_to_layer(store, run)  # it may have been stopped while changes were moved out of the held trees
    transfer = Transfer(run.roots, store.uppers(run), run.run)
    transfer.has_originals = True  # until all of them are back
    try:
        transfer.reopen(steps)
        not_undone = [step for step in reversed(steps) if not _is_taken_back(transfer, step)]
        transfer.keep(not_undone)
    finally:
        transfer.close()
    _remove_copies(store, run)
    _record_taken_back(store, run, not_undone)


def _is_taken_back(transfer: Transfer, step: Step) -> bool:
    sides = transfer.sides.get(step.change.root)
    if sides is None or not sides.was_done(step):
        return True
    try:
        sides.undo(step)
    except PathChanged:
        return False
    except OSError as error:
        if step.act == MKDIR and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False  # somebody has put something into it
        if error.errno in UNREACHABLE:
            return False  # its directory is gone
        raise
    return True


def _remove_copies(store: Store, run: Run) -> None:
    """Remove copies of files that were made for the apply."""
    for upper in store.uppers(run):
        with Closing(open_top(os.path.dirname(upper))) as above:
            for name in (COPIES_DIR, ORIGINALS_DIR, OLD_ORIGINALS_DIR):
                remove_tree(above, name)


def _record_taken_back(store: Store, run: Run, not_undone: Sequence[Step]) -> None:
    names = ", ".join(printable(step.change.path) for step in not_undone)
    but = f", save for what was changed there since: {names}" if not_undone else ""
    if run.act != "run":
        store.history.set_state(run.run, FAILED, f"{STOPPED_BEFORE_DONE}{but}", event=RECOVERED)
        if run.act == CHECKPOINT and not not_undone:
            layering.drop(store.places, run.run)  # the command's own layer has all changes
        return
    if not not_undone and run.mode == DRAFT and store.drafts.being_applied_by(run.run) is not None:
        _withdraw(store, run)
        return
    stayed = [(step.change.root, step.change.path) for step in not_undone]
    for change in run.changed:
        if change.verdict == APPLIED_EARLIER:
            change.verdict = c.APPLIED
        elif change.verdict == c.APPLIED and not _is_in(change, stayed):
            change.verdict = c.CONFLICT if change.reason == BY_FORCE else c.HELD
            change.reason = STOPPED_APPLYING
    run.state, run.reason = state_of(run.changed), f"{STOPPED_APPLYING}{but}"
    remove_discarded(store, run)
    move_to_held_trees(store, run)
    store.history.settle(run, rewrite=True, event=RECOVERED)


def _withdraw(store: Store, run: Run) -> None:
    """Forget a run that was to apply a draft: nothing of it is in the project, and the draft is as before."""
    store.history.withdraw(run, STOPPED_APPLYING)
    layering.drop(store.places, run.run)


def _is_in(change: c.Change, places: Sequence[tuple[int, str]]) -> bool:
    return any(
        change.root == root and (change.path == path or change.path.startswith(f"{path}/")) for root, path in places
    )


def _finish(store: Store, run: Run) -> None:
    """Finish the layers and records of an apply, undo or restore: the project has all changes already."""
    if os.path.isdir(store.places.run(run.layer)):
        steps = _steps_of(store, run)
        transfer = Transfer(run.roots, store.uppers(run), run.run)
        transfer.has_originals = True
        try:
            transfer.reopen(steps)
            transfer.settle(steps, run.changed)
        finally:
            transfer.close()
        _remove_copies(store, run)
    for change in run.changed:
        if change.verdict == APPLIED_EARLIER:
            change.verdict = c.APPLIED
    if run.act == "run":
        remove_discarded(store, run)
        move_to_held_trees(store, run)
    others: list[tuple[Run, bool]] = []
    draft = store.drafts.being_applied_by(run.run) if run.mode == DRAFT else None
    run.state, run.reason = (state_of(run.changed) if run.act == "run" else "applied"), ""
    if run.act == "undo" and run.of is not None:
        from fumehood.service.undo import consequences

        others = consequences(store, store.history.find(run.of), run)
    members = [] if draft is None else store.history.held_runs(draft.project, draft.id)
    store.history.settle(run, rewrite=True, others=others, event=RECOVERED)
    if draft is not None:
        remove_draft_layers(store, draft, members)


# ---- The database is gone or damaged: say so, set a damaged one aside, and rebuild it from the runs' directories.


class Mended(Value):
    """What was done about a lost or damaged database."""

    set_aside: str = ""  # where the damaged database lies now
    runs: int = 0
    left: tuple[str, ...] = ()  # directories without a record of their own, and records that can't be read


def notice(store: Store) -> None:
    """After making a new database, say so if there was another one before: then its runs' directories are there."""
    _skip_numbers_of_backups(store)
    _skip_numbers_of_lost_runs(store)
    count = sum(not name.endswith(layering.GONE) for name in os.listdir(f"{store.places.state}/runs"))
    if count:
        many = f"{count} runs lie" if count > 1 else "1 run lies"
        store.notices.append(
            f"the database {store.places.database} is gone, while the backups and held changes of {many} in"
            f" {store.places.state}/runs; to rebuild what can be from there: {layering.MEND}"
        )


def _skip_numbers_of_backups(store: Store) -> None:
    """Let no new record of a file get a number that daily backups have: a backup is found by its file's number."""
    try:
        names = os.listdir(f"{store.places.state}/{BACKUPS}")
    except FileNotFoundError:
        return
    highest = max((backup[0] for name in names if (backup := backup_parts(name)) is not None), default=0)
    with store.database.transaction() as connection:
        connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'files'", (highest,))


def _skip_numbers_of_lost_runs(store: Store) -> None:
    """Let no new run get a number that an earlier run of its project has, so that these can be recorded before it."""
    last: dict[bytes, int] = {}
    for layer in os.listdir(f"{store.places.state}/runs"):
        for run in records.read_records(store.places, layer):
            path = os.fsencode(run.project)
            last[path] = max(last.get(path, 0), run.number)
    store.database.write_many("INSERT OR REPLACE INTO lost_numbers VALUES (?, ?)", last.items())


def rebuild(open_store: Callable[[], Store]) -> tuple[Store, Mended]:
    """Set a damaged database aside, and record every run again that only has a record beside its layer."""
    aside = _set_damaged_aside(places().database)
    store = open_store()
    store.notices.clear()
    # Nobody may clean meanwhile: that removes what no record names.
    with FileLock(store.places.lock("clean")):
        missing = sorted(_unrecorded_runs(store), key=lambda run: (run.number, run.run))
        numbers = {run.run: run.number for run in missing}
        for run in missing:
            _record_again(store, run)
        _restore_order(store.database, numbers)
        left = layering.unrecorded_directories(store)
        left += [path for path in records.unreadable_records(store.places) if os.path.dirname(path)[:-2] not in left]
        return store, Mended(set_aside=aside, runs=len(missing), left=tuple(left))


def _set_damaged_aside(database: str) -> str:
    """Move a damaged database away, with its log; it is never removed."""
    if not damage_of(database):
        return ""
    aside = f"{database}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    if os.path.exists(aside):
        raise BadRequest(f"{aside} is there already", hint="wait a second, and try again")
    for end in ("-wal", "-shm", ""):
        if os.path.lexists(f"{database}{end}"):
            os.rename(f"{database}{end}", f"{aside}{end}")
    return aside


def _unrecorded_runs(store: Store) -> Iterator[Run]:
    recorded = {run for (run,) in store.database.rows("SELECT id FROM runs")}
    for layer in os.listdir(f"{store.places.state}/runs"):
        for run in records.read_records(store.places, layer):
            if run.run not in recorded:
                yield run


def _record_again(store: Store, run: Run) -> None:
    """Record a run again from its directory; if that is not complete, its reason says where its files are."""
    if run.state in UNFINISHED or (run.state == HELD and not _has_held_trees(store, run)):
        run.state, run.reason = FAILED, f"its record was lost; what is left of it is in {store.places.run(run.layer)}"
    project = store.projects.register(run.project)
    if run.session is not None:
        store.sessions.open(project, run.session)
    if run.draft is not None:
        store.drafts.record_again(project, run.draft, run.draft_name or f"draft-{run.draft}")
    store.history.record_again(project, run)


def _has_held_trees(store: Store, run: Run) -> bool:
    """Return True if a run has held trees for all changes that wait."""
    waiting = {change.root for change in run.changed if change.verdict in WAITING}
    return all(os.path.isdir(store.places.layer(run.layer, root, "held")) for root in waiting)


# ---- The order of runs that were recorded again. The numbers of rows are the order, so rows get new numbers.

# The columns that name a run by the number of its row.
_REFERENCES = (
    ("changes", "run"), ("connections", "run"), ("versions", "run"), ("files", "last_run"), ("runs", "number"),
)  # fmt: skip


def _restore_order(database: Database, recorded_again: Mapping[str, int]) -> None:
    """Put runs that were recorded again before the later runs of their project, by the numbers in their records.

    If other runs have got the same numbers, because an older copy of the database was put back, the times decide.
    """
    with database.transaction() as connection:
        rows = connection.execute("SELECT number, id, project, project_number, started_at FROM runs ORDER BY number")
        projects: dict[int, tuple[list[Any], list[Any]]] = {}
        for number, run, project, project_number, started_at in rows.fetchall():
            others, again = projects.setdefault(project, ([], []))
            row = number, recorded_again.get(run, project_number), started_at
            (again if run in recorded_again else others).append(row)
        order: list[tuple[int, bool, int]] = []
        for others, again in projects.values():
            has_duplicates = not {row[1] for row in again}.isdisjoint(row[1] for row in others)
            by = 2 if has_duplicates else 1
            order += ((row[0], True, row[0]) for row in others)
            for row in again:
                following = min((each[0] for each in others if each[by] > row[by]), default=row[0])
                order.append((following, False, row[0]))
        order.sort()
        numbers = sorted(number for _, _, number in order)
        _renumber(
            connection, [(number, new, is_other) for new, (_, is_other, number) in zip(numbers, order, strict=True)]
        )


def _renumber(connection: sqlite3.Connection, rows: Sequence[tuple[int, int, bool]]) -> None:
    """Give rows new numbers. Other columns name only rows that are not recorded again (`is_other`)."""
    if all(old == new for old, new, _ in rows):
        return
    connection.execute("CREATE TEMP TABLE anew (old INTEGER PRIMARY KEY, new INTEGER NOT NULL, is_other INTEGER)")
    connection.executemany("INSERT INTO anew VALUES (?, ?, ?)", rows)
    for table, column in _REFERENCES:
        # By way of negative numbers, because two rows may never have the same number.
        anew = f"UPDATE {table} SET {column} = (SELECT -new FROM anew WHERE old = {column})"
        connection.execute(f"{anew} WHERE {column} IN (SELECT old FROM anew WHERE old != new)")
        connection.execute(f"UPDATE {table} SET {column} = -{column} WHERE {column} < 0")
    before = "SELECT max(new) FROM anew WHERE is_other AND old <= settled_after"
    connection.execute(f"UPDATE runs SET settled_after = coalesce(({before}), 0)")
    since = "SELECT min(new) FROM anew WHERE is_other AND old >= first_run"
    connection.execute(f"UPDATE days SET first_run = coalesce(({since}), (SELECT max(new) + 1 FROM anew))")
    connection.execute("DROP TABLE anew")
