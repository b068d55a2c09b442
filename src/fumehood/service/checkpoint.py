"""How what runs is asked to end, or to settle what it has finished writing: that is a checkpoint.

It stops the command, copies that out, judges and applies the copies, and lets the command go on.

The running overlay keeps its own files; the project gets copies, by a run of their own. What is held, in conflict or
still being written stays with the command and is judged at its end, so that there is one version of it to decide on.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from fumehood.core import changes as c
from fumehood.core.judge import hold_open_files, spread_conflicts
from fumehood.core.report import Run, first_names, printable
from fumehood.core.request import APPLY, WHOLE
from fumehood.core.value import Value
from fumehood.errors import ApplyFailed, BadRequest, FumehoodError
from fumehood.linux.capture import KERNEL, LABELS
from fumehood.linux.checkpoints import (
    NotStopped,
    StoppedProcesses,
    add_note,
    files_only_added_to,
    version_id,
    wait_for_next_file_time,
)
from fumehood.linux.copying import copy_versions
from fumehood.linux.layer import set_opaque
from fumehood.linux.libc import Closing, InterruptsHeld, read, remove_file
from fumehood.linux.nofollow import AccessibleTree, open_top, split
from fumehood.linux.staging import stat_unless_written
from fumehood.service import layers as layering
from fumehood.service.apply import apply_changes
from fumehood.service.conflicts import find_conflicts
from fumehood.service.settle import APPLIED, EMPTY, FAILED, record_files
from fumehood.service.verdicts import find_concerns, give_verdicts
from fumehood.store.history import APPLYING, CHECKPOINT, RUNNING, UNFINISHED
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.linux.checkpoints import SettledEntry
    from fumehood.linux.namespaces import Layer
    from fumehood.service.hood import Hood
    from fumehood.service.store import Store

_LOOK_S = 0.05
_PATIENCE_S = 30.0
_MOST_ENTRIES, _MOST_BYTES = 100_000, 1 << 30  # of layers that are settled without being asked for
_NAMED = 5  # paths named of those that wait
_WRITTEN, _SHARED, _GIT = "it is still being written", "the file has other names", "git is at work in its repository"


def stop(store: Store, run: Run) -> Run:
    """Ask for the end of a command, and wait for its report: what it wrote is held."""
    _refuse_what_does_not_run(store, run)
    mark = store.places.stop_mark(run.run)
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        patience = time.monotonic() + _PATIENCE_S
        while run.state in UNFINISHED:
            if time.monotonic() > patience:
                raise BadRequest(
                    f"run {run.name} has not ended: the process that attends it does not answer",
                    hint="it goes on where it was; ask again, or end that process: fumehood ps shows what runs",
                )
            time.sleep(_LOOK_S)
            store.recover()  # should its process have died meanwhile
            run = store.history.find(run.run)
            if why := store.unsettled.get(run.run):
                raise BadRequest(
                    f"run {run.name} has ended, and what it wrote can't be looked at yet: {why}",
                    hint=f"it is kept; fumehood show {run.name}",
                )
    finally:
        remove_file(mark)  # two may ask at once
    return run


def _refuse_what_does_not_run(store: Store, run: Run) -> None:
    if run.state != RUNNING or run.run in store.unsettled:
        raise BadRequest(f"run {run.name} is not running: it is {run.state}", hint="fumehood ps shows what runs")


def checkpoint(store: Store, run: Run) -> Run:
    """Have what a command has finished writing settled while it goes on; returns the run that did so."""
    _refuse_what_does_not_run(store, run)
    if not run.sandboxed or run.capture != KERNEL:
        way = LABELS.get(run.capture, "nothing")
        raise BadRequest(f"run {run.name} is captured by {way}, which has no checkpoints", hint="fumehood doctor")
    if run.mode != APPLY:
        meant = "apply its changes at its end, all or none" if run.mode == WHOLE else f"{run.mode} its changes"
        raise BadRequest(f"run {run.name} is to {meant}: none are applied now", hint="wait for its end")
    mark, name = store.places.checkpoint_mark(run.run), new_id()
    patience = time.monotonic() + _PATIENCE_S
    beside = f"{mark}-{name}"
    with open(beside, "x", encoding="ascii") as file:
        file.write(name)
    try:
        while not _is_asked(beside, mark):  # somebody else has asked for one
            _wait_for(store, run, patience)
        while read(mark).decode("ascii") == name:
            _wait_for(store, run, patience)
    finally:
        os.unlink(beside)
        if read(mark).decode("ascii") == name:  # somebody else may ask for another by now
            remove_file(mark)
    store.recover()
    return store.history.find(name)


def _is_asked(beside: str, mark: str) -> bool:
    try:
        os.link(beside, mark)
    except FileExistsError:
        return False
    return True


def _wait_for(store: Store, run: Run, patience: float) -> None:
    store.recover()  # should its process have died meanwhile
    if store.history.find(run.run).state not in UNFINISHED:
        raise BadRequest(f"run {run.name} has ended meanwhile", hint=f"fumehood show {run.name}")
    if time.monotonic() > patience:
        raise BadRequest(
            f"run {run.name} could not be stopped for a checkpoint", hint="try again; fumehood ps shows what runs"
        )
    time.sleep(_LOOK_S)


class Part(Value):
    """What of a running command one checkpoint is about: something between two boundaries that it told of."""

    command: str = ""  # one that it started; nothing: its own doing, which leaves a run only where it changed something
    meanwhile: str = ""  # what else ran
    cwd: str = ""
    started_at: float = 0.0
    began: float = 0.0  # by the clock that nobody sets
    duration_s: float = 0.0
    exit_code: int | None = None  # as it was told, if it was


class Checkpoints:
    """The checkpoints of one running command; `targets` are where it sees the roots."""

    def __init__(
        self, hood: Hood, run: Run, layers: Sequence[Layer], directory: layering.RunDirectory, targets: Sequence[str]
    ) -> None:
        self._hood = hood
        self._run = run
        self._layers = layers
        self._run_directory = directory
        self._targets = targets
        self._note = f"{os.path.dirname(layers[0].upper)}/{layering.SETTLED}"
        self._looked_at_ns = 0  # what was changed later is new
        self._is_recorded = False  # where it is not at its end then, the next start sees to it
        self._unasked: dict[tuple[int, str], str] = {}  # files that were settled by itself, and the run that tells it
        self.held: list[c.Change] = []  # what the last one left because a person must decide on it

    def is_due(self, *, whatever_size: bool = False) -> bool:
        """Return True if something in the layers has changed since the last one, and not too much to stop for it."""
        is_changed, count, size = False, 0, 0
        for layer in self._layers:
            with Closing(open_top(os.path.dirname(layer.upper))) as above:
                for entry in layering.stat_tree(above, os.path.basename(layer.upper)):
                    count += 1
                    if entry.st_ctime_ns > self._looked_at_ns:
                        is_changed = True
                        size += 0 if stat.S_ISDIR(entry.st_mode) else entry.st_size
                    if whatever_size and is_changed:
                        return True
                    if not whatever_size and (count > _MOST_ENTRIES or size > _MOST_BYTES):
                        return False
        return is_changed

    def make(self, init: int, name: str = "", part: Part | None = None) -> bool:
        """Settle what is finished; False where that is not possible just now.

        `name` is what somebody who asked for it wants the run to be called: it is recorded whatever comes of it, and
        so is one about a command that the running one started. All others leave a run only where they change something.
        """
        store, project, began = self._hood.store, self._hood.project.id, time.monotonic()
        self._is_recorded = False
        self.held = []
        checkpoint = Run(
            run=name or new_id(), project=self._run.project, command=f"checkpoint of {self._run.command}",
            cwd=self._run.cwd, state=EMPTY, act=CHECKPOINT, of=self._run.run, roots=self._run.roots,
            below=self._run.below, session=self._run.session, capture=self._run.capture, started_at=time.time(),
        )  # fmt: skip
        is_kept, is_nothing_new = bool(name), False
        if part is not None:
            checkpoint.command = (part.command or checkpoint.command) + part.meanwhile
            is_kept, is_nothing_new = bool(part.command), not self.is_due(whatever_size=True)
        if is_kept and part is not None:
            checkpoint.cwd, checkpoint.exit_code = part.cwd or checkpoint.cwd, part.exit_code
            checkpoint.started_at, checkpoint.duration_s = part.started_at or time.time(), part.duration_s
        try:
            with store.lock_project(project, wait=False), InterruptsHeld():
                if is_nothing_new:
                    if is_kept:
                        store.history.refuse(project, checkpoint)
                    return True
                with StoppedProcesses(init) as stopped:
                    try:
                        self._settle(checkpoint, stopped, is_asked=bool(name) or part is not None)
                    except (FumehoodError, OSError) as error:
                        checkpoint.state, checkpoint.changed, checkpoint.reason = FAILED, (), str(error)
                    # So that what it writes from now on is told from what was settled.
                    self._looked_at_ns = wait_for_next_file_time()
                if not checkpoint.duration_s:
                    checkpoint.duration_s = time.monotonic() - began
                if checkpoint.state == APPLIED:
                    record_files(store, project, checkpoint)
                elif is_kept and not self._is_recorded:
                    store.history.refuse(project, checkpoint)
        except (FumehoodError, OSError, NotStopped):
            return self._is_recorded  # else somebody applies something just now, or nothing can be recorded
        return True

    def _settle(self, checkpoint: Run, stopped: StoppedProcesses, *, is_asked: bool) -> None:
        """Find out what can be settled, and do so; the processes stand still."""
        checkpoint.changed = layering.scan_layers(self._layers, self._run_directory.indexes, is_in_use=True)
        self._run_directory.refuse_replaced_roots(checkpoint.changed)
        give_verdicts(self._hood.store, checkpoint, self._layers, APPLY, self._hood.policy.rules)
        unfinished = self._unfinished(checkpoint, stopped)
        if unfinished:
            hold_open_files(checkpoint.changed, checkpoint.roots, unfinished)
        find_conflicts(self._hood.store, checkpoint, self._layers)
        spread_conflicts(checkpoint.changed, checkpoint.roots, self._hood.policy.on_conflict)
        left = [change for change in checkpoint.changed if change.verdict != c.APPLIED]
        self.held = [change for change in left if (change.root, change.path) not in unfinished]
        checkpoint.changed = [change for change in checkpoint.changed if change.verdict == c.APPLIED]
        checkpoint.reason = _in_words(left)
        if checkpoint.changed:
            self._apply(checkpoint, left, is_asked=is_asked)

    def _unfinished(self, checkpoint: Run, stopped: StoppedProcesses) -> dict[tuple[int, str], str]:
        """Return what is not to be taken yet, with the reason.

        A read lease on the layer's file tells whether anybody has it open for writing. What is only ever added to, a
        log, is taken as it is: at this moment nobody writes. While git has a lock in a repository, that is half of
        two states.
        """
        unfinished: dict[tuple[int, str], str] = {}
        files = [change for change in checkpoint.changed if change.after is not None and change.after.kind == c.FILE]
        for number, layer in enumerate(self._layers):
            with Closing(open_top(layer.upper)) as top, AccessibleTree(top) as upper:
                for change in (each for each in files if each.root == number):
                    parent, name = split(change.path)
                    with Closing(upper.open_to_read(parent)) as directory:
                        if stat_unless_written(directory, os.fsencode(name)) is None:
                            unfinished[number, change.path] = _WRITTEN
        if unfinished:
            for stream in files_only_added_to(stopped.numbers, self._targets):
                unfinished.pop(stream, None)
        for change in checkpoint.changed:
            # To take away one name changes the times of all: another could look like a person's edit at the end.
            if change.before is not None and change.before.links > 1 and change.before.kind == c.FILE:
                unfinished[change.root, change.path] = _SHARED
        places = [f"{checkpoint.roots[change.root]}/{change.path}" for change in checkpoint.changed]
        locks = (place for place in places if place.endswith(".lock") and ".git/" in place)
        locked = tuple(lock[: lock.rindex(".git/") + len(".git/")] for lock in locks)
        for change, place in zip(checkpoint.changed, places, strict=True):
            if place.startswith(locked):
                unfinished[change.root, change.path] = _GIT
        return unfinished

    def _apply(self, checkpoint: Run, left: Sequence[c.Change], *, is_asked: bool) -> None:
        """Copy what goes, swap the copies in, and take note of both; `left` is what does not go."""
        store, going = self._hood.store, checkpoint.changed
        versions = {id(change): change.after for change in going}
        checkpoint.below = ()
        originals = [
            (change.root, change.path, change.before.text())
            for change in going
            if change.before is not None and (change.before.kind != c.DIRECTORY or change.change == c.MODE)
        ]
        add_note(self._note, [], originals)
        with layering.RunDirectory(store.places, checkpoint.run) as directory:
            directory.create()
            store.history.begin(self._hood.project.id, checkpoint, os.getpid())
            self._is_recorded = True
            try:
                uppers = self._copied(checkpoint)
                self._judge_copies(going, checkpoint.roots, uppers)
                self._mark(going)
                checkpoint.state = APPLYING
                store.history.write_journal(checkpoint)
                apply_changes(
                    going, checkpoint.roots, uppers, checkpoint.run,
                    journal=lambda state: store.history.record_progress(checkpoint, state),
                    on_conflict=self._hood.policy.on_conflict,
                )  # fmt: skip
            except (ApplyFailed, OSError) as error:
                self._withdraw(checkpoint, str(error))
                raise
            checkpoint.changed = [change for change in going if change.verdict == c.APPLIED]
            checkpoint.state = APPLIED if checkpoint.changed else EMPTY
            checkpoint.reason = _in_words([*left, *(change for change in going if change.verdict != c.APPLIED)])
            if not checkpoint.changed:
                self._withdraw(checkpoint, checkpoint.reason)
                return
            entries: list[SettledEntry] = []
            for change in checkpoint.changed:
                version, left_there = versions[id(change)], change.after.text() if change.after else None
                layer = None if version is None else version_id(version)
                entries.append((change.root, change.path, layer, left_there, _is_made(change)))
            between = self._record(checkpoint, is_asked=is_asked)
            # Only now: what is noted is not looked at again, and an apply that is not recorded may be taken back.
            add_note(self._note, entries, [])
            if checkpoint.changed:
                _remove_versions(store.uppers(checkpoint), between)
                layering.drop_if_empty(store.places, checkpoint.run, checkpoint.changed)
            else:
                layering.drop(store.places, checkpoint.run)

    def _judge_copies(self, going: Sequence[c.Change], roots: Sequence[str], uppers: Sequence[str]) -> None:
        """Judge what will be in the project, which nobody else can write.

        Another command may have been handed a file, and what it writes to mapped memory leaves no trace in its times.
        """
        writable = self._hood.store.writable_directories
        concerns = find_concerns(going, roots, uppers, self._hood.policy.rules, writable_elsewhere=writable)
        rewritten = next((going[number].path for number, concern in concerns.items() if concern.held), None)
        if rewritten is not None:
            raise OSError(errno.EBUSY, "it was written meanwhile", rewritten)

    def _record(self, checkpoint: Run, *, is_asked: bool) -> list[c.Change]:
        """Record what is applied; return the changes that earlier checkpoints tell of.

        A log would leave a run and a copy of itself every few seconds. So where nobody asked for this checkpoint nor
        for the last one that settled a file, that one tells of the new version, and the one between is not kept.
        """
        store = self._hood.store
        kept: list[c.Change] = []
        between: list[c.Change] = []
        amended: dict[str, tuple[Run, dict[tuple[int, str], c.Change]]] = {}  # earlier ones, and what they tell of
        for change in checkpoint.changed:
            place = change.root, change.path
            earlier = self._unasked.pop(place, "")
            is_version = change.kind == c.FILE and change.change in (c.MODIFIED, c.MODE)
            may_tell = is_version and not is_asked and earlier != ""
            if may_tell and earlier not in amended:
                run = store.history.find(earlier)
                amended[earlier] = run, {(each.root, each.path): each for each in run.changed}
            if may_tell and _tells(amended[earlier][1].get(place), change):
                between.append(change)
            else:
                kept.append(change)
                earlier = checkpoint.run
            if not is_asked and change.kind == c.FILE and change.after is not None:
                self._unasked[place] = earlier
        checkpoint.changed = kept
        if kept:
            store.history.settle(checkpoint, rewrite=True, others=[(run, True) for run, _ in amended.values()])
        else:
            checkpoint.state = EMPTY
            store.history.replace_by_earlier(checkpoint, [run for run, _ in amended.values()])
        return between

    def _withdraw(self, checkpoint: Run, reason: str) -> None:
        self._hood.store.history.withdraw(checkpoint, reason)
        self._is_recorded = False
        layering.drop(self._hood.store.places, checkpoint.run)

    def _mark(self, going: Sequence[c.Change]) -> None:
        """Mark new directories in the command's layer as opaque, which they are, before the project has them too.

        The kernel knows them as the layer's alone, and leaves no whiteout where something in them is deleted; marked,
        they tell what is gone by what they lack.
        """
        for change in going:
            if _is_made(change) and change.within is None:
                with (
                    Closing(open_top(self._layers[change.root].upper)) as top,
                    AccessibleTree(top) as upper,
                    Closing(upper.open_to_change(change.path)) as directory,
                ):
                    set_opaque(directory)

    def _copied(self, checkpoint: Run) -> list[str]:
        """Copy what goes into layers of the checkpoint's own; return these."""
        layers = layering.make(self._hood.store.places, checkpoint.run, checkpoint.roots, checkpoint.capture)
        for number, (source, target) in enumerate(zip(self._layers, layers, strict=True)):
            os.rmdir(target.work)
            mine = [change for change in checkpoint.changed if change.root == number]
            with Closing(open_top(source.upper)) as one, Closing(open_top(target.upper)) as other:
                copy_versions(mine, one, other)
        return [layer.upper for layer in layers]


def _tells(old: c.Change | None, change: c.Change) -> bool:
    """Let what an earlier checkpoint tells be of a later version of a file; False where that is not what it left."""
    if old is None or old.after is None or not old.after.same(change.before):
        return False
    old.after = change.after
    if old.change == c.MODE:
        old.change = c.MODIFIED
    return True


def _remove_versions(uppers: Sequence[str], changes: Sequence[c.Change]) -> None:
    """Remove versions between two checkpoints, which nobody can want back, from the layers of the later one."""
    for change in changes:
        parent, name = split(change.path)
        with (
            Closing(open_top(uppers[change.root])) as top,
            AccessibleTree(top) as upper,
            Closing(upper.open_to_change(parent)) as directory,
        ):
            os.unlink(name, dir_fd=directory)


def _is_made(change: c.Change) -> bool:
    return change.kind == c.DIRECTORY and change.change in (c.ADDED, c.TYPE)


def _in_words(left: Sequence[c.Change]) -> str:
    if not left:
        return ""
    named = [f"{printable(change.path)}: {change.reason}" for change in left]
    return f"left to the end of the command: {first_names(named, _NAMED, '; ')}"
