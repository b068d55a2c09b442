"""After a death: take back what was applied in part, finish what only we lack, and keep what a command wrote.

Who died is told by locks. A run holds that on its directory until its record is final; applies and undos are done
under their project's lock, so whoever gets it knows that those still unfinished have nobody. Everything here looks
before it acts, so it can be interrupted too, and be done again.
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
from fumehood.service.apply import Between, planned
from fumehood.service.conflicts import check_conflicts_in_draft, drop_changes_without_base, find_conflicts
from fumehood.service.decide import BY_FORCE, DONE, STOPPED_RUNNING
from fumehood.service.drafts import drop_layers
from fumehood.service.held import bring_back, set_apart, throw_away
from fumehood.service.projects import remove_left
from fumehood.service.settle import FAILED, HELD, state_of
from fumehood.service.store import Store
from fumehood.service.verdicts import concerns
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

    from fumehood.core.concern import Concern
    from fumehood.linux.namespaces import Layer
    from fumehood.store.database import Database

STOPPED_APPLYING = "Fumehood was stopped while applying; nothing was applied"
STOPPED_BACK = "Fumehood was stopped before it was done; the project is as it was"
_DYING_S = 10.0  # a sandbox is killed with the process that attends it, and gone a moment later


def recover(store: Store, unfinished: Sequence[tuple[str, str, str, int]]) -> None:
    """Mend what dead processes left; what living ones are at is passed over, and what fails is left as it is."""
    remove_left(store.places)
    with InterruptsHeld() as interrupts:
        # First, so that what is then looked at has the modes that it should have.
        restore_modes(store.places.modes)
        for run, state, act, project in unfinished:
            if not store.projects.is_in_place(project):
                if state == RUNNING and not layering.is_process_alive(store.places, run):
                    store.unsettled[run] = "another directory is there"
                continue  # and nothing of this run is to be looked for in it
            try:
                if state == RUNNING and act == "run":
                    _keep(store, run, project, interrupts)
                else:
                    with (
                        FileLock(store.places.lock(f"project-{project}"), wait=False),
                        store.lock_held_trees(project, settling=True),
                    ):
                        _mend(store, run)
            except BlockingIOError:
                continue  # somebody is at it
            except OSError as error:
                store.unsettled[run] = os.strerror(error.errno or 0)
            except Exception as error:  # noqa: BLE001 - no other command, of any project, may fail for it
                store.unsettled[run] = as_fumehood_error(error).message
            else:
                store.unsettled.pop(run, None)


def mend(store: Store, unfinished: Sequence[tuple[str, str, str, int]]) -> None:
    """Take back applies and undos of the project whose lock is held."""
    restore_modes(store.places.modes)
    for run, state, act, project in unfinished:
        if state != RUNNING or act != "run":
            with store.lock_held_trees(project, settling=True):
                _mend(store, run)


# --- a command that was running ---


def _keep(store: Store, name: str, project: int, interrupts: InterruptsHeld) -> None:
    """Hold what the command of a dead run had written."""
    try:
        claim = layering.lock_dead_run(store.places, name)
    except FileNotFoundError:
        claim = None
    try:
        run = store.history.find(name)
        if run.state != RUNNING:
            return  # another process was faster
        if claim is None:
            store.history.set_state(name, FAILED, STOPPED_RUNNING, event=RECOVERED)
            return
        if not run.sandboxed:
            from fumehood.service.unsandboxed import UNCAPTURED

            store.history.set_state(name, FAILED, f"{STOPPED_RUNNING}; {UNCAPTURED}", event=RECOVERED)
            layering.drop(store.places, name)
            return
        if run.mode == DRAFT:
            _forget(store, run)  # the draft holds it all still
            return
        if not wait_until_gone(f"{store.places.run(name)}/0/{layering.INIT}", _DYING_S, by_force=True):
            raise BlockingIOError  # something of it can't end now: it waits for a disk, perhaps
        if run.session is not None:
            from fumehood.service.session import remove_session_files

            remove_session_files(store.places, run.session, name)
        with FileLock(store.places.lock(f"project-{project}"), wait=False):
            below, frozen = layering.recorded_trees_below(store.places, name)
            layers = layering.layers_of(store.places, name, run.roots, below, frozen)
            _hold(store, project, run, layers, interrupts)
    finally:
        if claim is not None:
            claim.close()


def _hold(store: Store, project: int, run: Run, layers: Sequence[Layer], interrupts: InterruptsHeld) -> None:
    interrupts.release()  # this may take long, and can be done again
    try:
        lost = _looked_at(store, run, layers)
    finally:
        interrupts.hold()
    if lost:
        store.history.set_state(run.run, FAILED, lost, event=RECOVERED)
        return
    if run.draft is not None:
        check_conflicts_in_draft(store, project, run, may_run_again=False)
    state, run.reason = state_of(run.changed), run.reason or STOPPED_RUNNING
    if run.network == HOSTS:
        run.reason += "; which hosts it reached is not known"
    run.state = SETTLING if state == HELD else state
    store.history.write_journal(run, [_printed(store, run, stream) for stream in ("stdout", "stderr")], event=RECOVERED)
    layering.remove_work_directories(layers)
    if state != HELD:
        layering.drop(store.places, run.run)
        return
    set_apart(store, run)
    run.state = HELD
    store.history.settle(run, rewrite=False)


def _looked_at(store: Store, run: Run, layers: Sequence[Layer]) -> str:
    """Find out and judge what a command changed; say why that is not possible. What it wrote stays as it is."""
    lost = _collect(store, run, layers)
    if lost:
        return lost
    why = run.reason or STOPPED_RUNNING
    try:
        run.changed = layering.scan_layers(layers)
    except TooDeep as error:
        return f"{why}; {error.message}; what it wrote is in {store.places.run(run.run)}"
    judge(run.changed, DISCARD if run.mode in (DISCARD, WHOLE) else HOLD, _concerns(store, run, layers))
    for change in run.changed:
        if change.verdict == c.HELD:
            # What the host would execute by itself says so, here too.
            change.reason = f"{why}; {change.reason}" if change.flags else why
    find_conflicts(store, run, layers)
    drop_changes_without_base(store, run)
    return ""


def _concerns(store: Store, run: Run, layers: Sequence[Layer]) -> dict[int, Concern]:
    """Find out which changes the host would act on by itself; whoever reviews them is told."""
    if not run.changed:
        return {}
    rules = policy_for(store.places, run.roots).rules
    uppers = [layer.upper for layer in layers]
    return concerns(run.changed, run.roots, uppers, rules, elsewhere=store.writable_directories)


def _collect(store: Store, run: Run, layers: Sequence[Layer]) -> str:
    """Let the upper directories be what an overlay would have left; say why that is not possible."""
    if not all(os.path.isdir(layer.upper) for layer in layers):
        return "Fumehood was stopped before the command began"
    # What has no tree of ours was overlaid by the kernel. A broken mount can't be looked at, but is in the list.
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
        # One that it has handed something could go on writing that. What checkpoints have settled is told from what is
        # new by the layer's own files, so it is taken out of these before.
        if layering.is_checkpointed(layers):
            layering.scan_layers(layers)
        replace_by_copies(overlaid)
    return ""


def _printed(store: Store, run: Run, stream: str) -> tuple[bytes | None, int]:
    """Return what was saved of an output: long ones are in a file, short ones in the record, if they came so far."""
    try:
        return None, os.stat(store.places.output(run.run, stream)).st_size
    except FileNotFoundError:
        ((data,),) = store.database.rows(f"SELECT {stream} FROM runs WHERE id = ?", (run.run,))
        return data or b"", len(data or b"")


# --- an apply, undo or restore ---


def _mend(store: Store, name: str) -> None:
    """Bring one that was interrupted to an end: its project's lock is held."""
    run = store.history.find(name)
    if run.state == RUNNING and run.act != "run":
        store.history.set_state(name, FAILED, STOPPED_BACK, event=RECOVERED)
        if run.act == CHECKPOINT:
            layering.drop(store.places, name)
    elif run.state == APPLYING and os.path.isdir(store.places.run(run.layer)):
        _take_back(store, run)
    elif run.state in (APPLYING, SETTLING):
        # A layer that is gone was needed no longer: its run had ended, but the disk forgot.
        _finish(store, run)


def _steps(store: Store, run: Run) -> list[Step]:
    stays = directories_to_keep(store.history.find(run.layer).changed) if run.act == "undo" else frozenset()
    return planned(run.changed, run.roots, stays)


def _take_back(store: Store, run: Run) -> None:
    """Let the project be as before: no step is left done, save where a person has changed the path since."""
    steps = _steps(store, run)
    if run.act == "run":
        bring_back(store, run)  # it may have been stopped on the way out of what was held
    between = Between(run.roots, store.uppers(run), run.run)
    between.has_originals = True  # until all of them are back
    try:
        between.reopen(steps)
        left = [step for step in reversed(steps) if not _is_taken_back(between, step)]
        between.keep(left)
    finally:
        between.close()
    _clear(store, run)
    _record_taken_back(store, run, left)


def _is_taken_back(between: Between, step: Step) -> bool:
    sides = between.sides.get(step.change.root)
    if sides is None or not sides.was_done(step):
        return True
    try:
        sides.undo(step)
    except PathChanged:
        return False
    except OSError as error:
        if step.act == MKDIR and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False  # somebody has made use of it
        if error.errno in UNREACHABLE:
            return False  # its directory is gone
        raise
    return True


def _clear(store: Store, run: Run) -> None:
    """Remove copies that were made on the way."""
    for upper in store.uppers(run):
        with Closing(open_top(os.path.dirname(upper))) as above:
            for name in (COPIES_DIR, ORIGINALS_DIR, OLD_ORIGINALS_DIR):
                remove_tree(above, name)


def _record_taken_back(store: Store, run: Run, left: Sequence[Step]) -> None:
    names = ", ".join(printable(step.change.path) for step in left)
    but = f", save for what was changed there since: {names}" if left else ""
    if run.act != "run":
        store.history.set_state(run.run, FAILED, f"{STOPPED_BACK}{but}", event=RECOVERED)
        if run.act == CHECKPOINT and not left:
            layering.drop(store.places, run.run)  # its command's own layer has all of it
        return
    if not left and run.mode == DRAFT and store.drafts.being_applied_by(run.run) is not None:
        _forget(store, run)
        return
    stayed = [(step.change.root, step.change.path) for step in left]
    for change in run.changed:
        if change.verdict == DONE:
            change.verdict = c.APPLIED
        elif change.verdict == c.APPLIED and not _lies_in(change, stayed):
            change.verdict = c.CONFLICT if change.reason == BY_FORCE else c.HELD
            change.reason = STOPPED_APPLYING
    run.state, run.reason = state_of(run.changed), f"{STOPPED_APPLYING}{but}"
    throw_away(store, run)
    set_apart(store, run)
    store.history.settle(run, rewrite=True, event=RECOVERED)


def _forget(store: Store, run: Run) -> None:
    """Forget a run that was to apply a draft: nothing of it is in the project, and the draft is as it was."""
    store.history.withdraw(run, STOPPED_APPLYING)
    layering.drop(store.places, run.run)


def _lies_in(change: c.Change, places: Sequence[tuple[int, str]]) -> bool:
    return any(
        change.root == root and (change.path == path or change.path.startswith(f"{path}/")) for root, path in places
    )


def _finish(store: Store, run: Run) -> None:
    """Put our own side in order: the project has it all."""
    if os.path.isdir(store.places.run(run.layer)):
        steps = _steps(store, run)
        between = Between(run.roots, store.uppers(run), run.run)
        between.has_originals = True
        try:
            between.reopen(steps)
            between.settle(steps, run.changed)
        finally:
            between.close()
        _clear(store, run)
    for change in run.changed:
        if change.verdict == DONE:
            change.verdict = c.APPLIED
    if run.act == "run":
        throw_away(store, run)
        set_apart(store, run)
    others: list[tuple[Run, bool]] = []
    draft = store.drafts.being_applied_by(run.run) if run.mode == DRAFT else None
    run.state, run.reason = (state_of(run.changed) if run.act == "run" else "applied"), ""
    if run.act == "undo" and run.of is not None:
        from fumehood.service.undo import consequences

        others = consequences(store, store.history.find(run.of), run)
    members = [] if draft is None else store.history.held_runs(draft.project, draft.id)
    store.history.settle(run, rewrite=True, others=others, event=RECOVERED)
    if draft is not None:
        drop_layers(store, draft, members)


# ---- The records are gone or damaged: say so, set the damaged ones aside, and rebuild what the runs' directories tell.


class Mended(Value):
    """What was done about lost records."""

    set_aside: str = ""  # where the damaged database lies now
    runs: int = 0
    left: tuple[str, ...] = ()  # directories without a record of their own, and records that can't be read


def notice(store: Store) -> None:
    """Say, where the database was made just now, that there had been another: its runs' directories are still there."""
    _number_after_backups(store)
    _number_after_lost(store)
    count = sum(not name.endswith(layering.GONE) for name in os.listdir(f"{store.places.state}/runs"))
    if count:
        many = f"{count} runs lie" if count > 1 else "1 run lies"
        store.notices.append(
            f"the database {store.places.database} is gone, while the backups and held changes of {many} in"
            f" {store.places.state}/runs; to rebuild what can be from there: {layering.MEND}"
        )


def _number_after_backups(store: Store) -> None:
    """Give records of files numbers that no daily backup has: a backup is found by its file's number."""
    try:
        names = os.listdir(f"{store.places.state}/{BACKUPS}")
    except FileNotFoundError:
        return
    highest = max((backup[0] for name in names if (backup := backup_parts(name)) is not None), default=0)
    with store.database.transaction() as connection:
        connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'files'", (highest,))


def _number_after_lost(store: Store) -> None:
    """Give runs numbers that no earlier run of their project has, so that these can be taken up again before them."""
    last: dict[bytes, int] = {}
    for layer in os.listdir(f"{store.places.state}/runs"):
        for run in records.read_records(store.places, layer):
            path = os.fsencode(run.project)
            last[path] = max(last.get(path, 0), run.number)
    store.database.write_many("INSERT OR REPLACE INTO lost_numbers VALUES (?, ?)", last.items())


def rebuild(open_store: Callable[[], Store]) -> tuple[Store, Mended]:
    """Set a damaged database aside, and take up every run that has a record beside its layer alone."""
    aside = _set_aside(places().database)
    store = open_store()
    store.notices.clear()
    # No cleaning meanwhile: it removes what no record names.
    with FileLock(store.places.lock("clean")):
        missing = sorted(_unrecorded(store), key=lambda run: (run.number, run.run))
        numbers = {run.run: run.number for run in missing}
        for run in missing:
            _take_up(store, run)
        _put_in_order(store.database, numbers)
        left = layering.unrecorded_directories(store)
        left += [path for path in records.unreadable_records(store.places) if os.path.dirname(path)[:-2] not in left]
        return store, Mended(set_aside=aside, runs=len(missing), left=tuple(left))


def _set_aside(database: str) -> str:
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


def _unrecorded(store: Store) -> Iterator[Run]:
    recorded = {run for (run,) in store.database.rows("SELECT id FROM runs")}
    for layer in os.listdir(f"{store.places.state}/runs"):
        for run in records.read_records(store.places, layer):
            if run.run not in recorded:
                yield run


def _take_up(store: Store, run: Run) -> None:
    """Record a run again, as its directory tells; one that is not whole there says where its files are."""
    if run.state in UNFINISHED or (run.state == HELD and not _is_whole(store, run)):
        run.state, run.reason = FAILED, f"its record was lost; what is left of it is in {store.places.run(run.layer)}"
    project = store.projects.register(run.project)
    if run.session is not None:
        store.sessions.open(project, run.session)
    if run.draft is not None:
        store.drafts.record_again(project, run.draft, run.draft_name or f"draft-{run.draft}")
    store.history.record_again(project, run)


def _is_whole(store: Store, run: Run) -> bool:
    """Return True if what a run holds is where it is held."""
    waiting = {change.root for change in run.changed if change.verdict in WAITING}
    return all(os.path.isdir(store.places.layer(run.layer, root, "held")) for root in waiting)


# ---- The order of runs that were taken up again: a row's number tells it, so rows get other numbers.

# What names a run by the number of its row.
_REFERENCES = (
    ("changes", "run"), ("connections", "run"), ("versions", "run"), ("files", "last_run"), ("runs", "number"),
)  # fmt: skip


def _put_in_order(database: Database, taken_up: Mapping[str, int]) -> None:
    """Let runs that were taken up, with the numbers in their records, come before those of their project since then.

    Where other runs have got such numbers meanwhile, because an older copy of the database was put back, times tell.
    """
    with database.transaction() as connection:
        rows = connection.execute("SELECT number, id, project, project_number, started_at FROM runs ORDER BY number")
        projects: dict[int, tuple[list[Any], list[Any]]] = {}
        for number, run, project, own, at in rows.fetchall():
            others, again = projects.setdefault(project, ([], []))
            (again if run in taken_up else others).append((number, taken_up.get(run, own), at))
        order: list[tuple[int, bool, int]] = []
        for others, again in projects.values():
            is_doubled = not {own for _, own, _ in again}.isdisjoint(own for _, own, _ in others)
            by = 2 if is_doubled else 1
            order += ((row[0], True, row[0]) for row in others)
            for row in again:
                following = min((each[0] for each in others if each[by] > row[by]), default=row[0])
                order.append((following, False, row[0]))
        order.sort()
        numbers = sorted(number for _, _, number in order)
        _number_anew(
            connection, [(number, new, is_other) for new, (_, is_other, number) in zip(numbers, order, strict=True)]
        )


def _number_anew(connection: sqlite3.Connection, rows: Sequence[tuple[int, int, bool]]) -> None:
    """Give rows other numbers; of those that were taken up, no other row tells anything yet."""
    if all(old == new for old, new, _ in rows):
        return
    connection.execute("CREATE TEMP TABLE anew (old INTEGER PRIMARY KEY, new INTEGER NOT NULL, is_other INTEGER)")
    connection.executemany("INSERT INTO anew VALUES (?, ?, ?)", rows)
    for table, column in _REFERENCES:
        # By way of numbers that no row has, for two rows never may have the same.
        anew = f"UPDATE {table} SET {column} = (SELECT -new FROM anew WHERE old = {column})"
        connection.execute(f"{anew} WHERE {column} IN (SELECT old FROM anew WHERE old != new)")
        connection.execute(f"UPDATE {table} SET {column} = -{column} WHERE {column} < 0")
    before = "SELECT max(new) FROM anew WHERE is_other AND old <= settled_after"
    connection.execute(f"UPDATE runs SET settled_after = coalesce(({before}), 0)")
    since = "SELECT min(new) FROM anew WHERE is_other AND old >= first_run"
    connection.execute(f"UPDATE days SET first_run = coalesce(({since}), (SELECT max(new) + 1 FROM anew))")
    connection.execute("DROP TABLE anew")
