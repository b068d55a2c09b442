"""Apply judged changes to the project: all of them, or none.

And the progress of long work, for a face that shows it from another thread.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.changes import PUT, RMDIR, SWAP, TAKE, Step, files_with_other_links, plan_steps
from fumehood.core.judge import CHANGED_SINCE, HOLD_PATH, hold_open_files, spread_conflicts
from fumehood.core.report import first_names, printable
from fumehood.errors import ApplyFailed, FumehoodError, Unfinished
from fumehood.linux import nofollow
from fumehood.linux.gitindex import equivalent_stamp
from fumehood.linux.gitobjects import changed_repositories, digest_refs, drop_harmless_conflicts
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.namespaces import OVERLAY_KINDS, file_system_kind
from fumehood.linux.nofollow import make_parents, open_below, open_top, split, stat_entry
from fumehood.linux.staging import Staging, can_rename, find_files_in_use
from fumehood.linux.steps import UNREACHABLE, LockedByGit, PathChanged, Sides, restore_modes
from fumehood.service.layers import record_refs, wait_for_next_second
from fumehood.store.history import APPLYING, SETTLING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Sized


_MAX_NAMED = 5  # paths in an error
_MAX_WAITS = 100  # for git, which may refresh an index or hold a lock; an apply must end in any case
_WAIT_S = 0.01


class _PerhapsOpen(Exception):
    """A plain swap could not be done, perhaps because a program has the file open for writing."""


def apply_changes(
    changes: Sequence[c.Change],
    roots: Sequence[str],
    uppers: Sequence[str],
    run: str,
    *,
    staying: frozenset[tuple[int, str]] = frozenset(),
    all_or_nothing: bool = False,
    journal: Callable[[str], None] | None = None,
    on_conflict: str = HOLD_PATH,
    even_open: bool = False,
    swaps_ask: bool = True,
) -> None:
    """Apply every change whose verdict is `applied`, from the layers to the project.

    If a path has changed since it was judged, its change becomes a conflict and stays in the layer, together with the
    changes that depend on it. With `all_or_nothing`, PathChanged is raised instead. After that or any other failure,
    all steps are taken back, and the project is as before. `journal` records each stage, with the changes as they are
    then.

    A file that another program has open for writing is held in the same way, unless it is applied `even_open`. With
    `swaps_ask`, each plain swap checks its own file. If one is in doubt, all steps are taken back, and done again after
    all files are checked.
    """
    conflicts = _spread_conflicts(changes, roots, on_conflict)
    record, steps = journal or _no_journal, steps_of_apply(changes, roots, staying)
    transfer = Transfer(roots, uppers, run)
    done: list[tuple[Sides, Step]] = []
    try:
        try:
            transfer.open(steps, changes)
            if transfer.has_copies or conflicts:
                record(APPLYING)  # with the stamps of the copies, or the conflicts
            # As late as possible, because a program may open a file at any moment.
            open_files = {} if even_open else find_files_in_use(changes, roots, swaps_ask=swaps_ask)
            if open_files:
                _hold_open_files(changes, roots, open_files, on_conflict, all_or_nothing=all_or_nothing)
            else:
                transfer.has_originals = True
                _perform(
                    steps, transfer, done, changes, record, all_or_nothing=all_or_nothing,
                    checks_open=swaps_ask and not even_open,
                )  # fmt: skip
            must_retry = bool(open_files) or (not all_or_nothing and _spread_conflicts(changes, roots, on_conflict))
            if not must_retry and transfer.save(changes):
                record(SETTLING)
        except _PerhapsOpen:
            must_retry, swaps_ask = True, False
        except (PathChanged, OSError, FumehoodError) as error:
            must_retry = not all_or_nothing and _mark_unreachable(error, changes, roots)
            if not must_retry:
                restore_modes(nofollow.mode_notes_directory)
                left = transfer.take_back(done)
                raise _error_for(error, run, left) from error
        if must_retry:
            _take_all_back(transfer, done)
        else:
            _finish(transfer, steps, changes, roots)
    except OSError as error:
        raise Unfinished(
            f"it is all applied, but not all backups are in their places: {error.strerror}: {_path_in(error)}",
            hint="the next fumehood command finishes it",
        ) from error
    finally:
        transfer.close()
    if must_retry:
        # All steps are taken back. Begin again, without the changes that are held now.
        record(APPLYING)
        apply_changes(
            changes, roots, uppers, run, staying=staying, all_or_nothing=all_or_nothing, journal=journal,
            on_conflict=on_conflict, even_open=even_open, swaps_ask=swaps_ask,
        )  # fmt: skip


def steps_of_apply(
    changes: Sequence[c.Change], roots: Sequence[str], staying: frozenset[tuple[int, str]] = frozenset()
) -> list[Step]:
    """Return the steps of an apply. Recovery after a death gets the same steps.

    In a container, a directory of the image can't be renamed, because it is on an overlay. Its entries are deleted.
    """
    overlays = {number for number, root in enumerate(roots) if file_system_kind(root) in OVERLAY_KINDS}
    deleted = (change for change in changes if change.root in overlays and change.change == c.DELETED)
    return plan_steps(changes, staying | {(each.root, each.path) for each in deleted if each.kind == c.DIRECTORY})


def _finish(transfer: Transfer, steps: Sequence[Step], changes: Sequence[c.Change], roots: Sequence[str]) -> None:
    transfer.settle(steps, changes)
    new = next((change for change in changes if change.verdict == c.APPLIED and change.after is not None), None)
    if new is not None:
        try:
            wait_for_next_second(os.lstat(f"{roots[new.root]}/{new.path}"))
        except OSError:
            return  # somebody else has changed it, or it is nested too deeply


def _spread_conflicts(changes: Sequence[c.Change], roots: Sequence[str], on_conflict: str) -> bool:
    """Hold the changes that belong together with a conflict; return True if there are any."""
    return drop_harmless_conflicts(roots, changes) | spread_conflicts(changes, roots, on_conflict)


def _hold_open_files(
    changes: Sequence[c.Change], roots: Sequence[str], open_files: Mapping[tuple[int, str], str], on_conflict: str,
    *, all_or_nothing: bool,
) -> None:  # fmt: skip
    """Hold the changes of files that other programs have open; raise ApplyFailed if it is all or nothing."""
    if all_or_nothing:
        raise ApplyFailed(open_in_words(open_files), hint="close it there, then try again")
    hold_open_files(changes, roots, open_files, on_conflict)


def open_in_words(open_files: Mapping[tuple[int, str], str]) -> str:
    """Return the files that other programs have open, as text: the first of them, each with its program."""
    shown = [f"{printable(path)} is {reason}" for (_, path), reason in open_files.items()]
    return first_names(shown, _MAX_NAMED, "; ")


def _mark_unreachable(error: Exception, changes: Sequence[c.Change], roots: Sequence[str]) -> bool:
    """After a step could not reach its directory, mark changes in directories that are gone as conflicts.

    Return True if there are any.
    """
    if not isinstance(error, OSError) or error.errno not in UNREACHABLE:
        return False
    applied = [change for change in changes if change.verdict == c.APPLIED]
    made = {(change.root, change.path) for change in applied if change.change in (c.ADDED, c.TYPE)}
    in_made = c.DirectorySet(made)
    parents = {(change.root, split(change.path)[0]) for change in applied if change.path != "."}
    gone = {
        (root, parent)
        for root, parent in parents
        if (root, parent) not in made
        and in_made.topmost(root, parent) is None
        and not _is_reachable(roots[root], parent)
    }
    for change in applied:
        if (change.root, split(change.path)[0]) in gone:
            mark_conflict(change, changes)
    return bool(gone)


def _is_reachable(root: str, directory: str) -> bool:
    with Closing(open_top(root)) as top:
        try:
            os.close(open_below(top, directory))
        except OSError as error:
            if error.errno not in UNREACHABLE:
                raise
            return False
    return True


def _take_all_back(transfer: Transfer, done: Sequence[tuple[Sides, Step]]) -> None:
    """Take all steps back, because changes that belong together would not all be applied."""
    not_taken_back = transfer.take_back(done)
    if not_taken_back:
        raise Unfinished(
            f"changed in the project meanwhile: {', '.join(not_taken_back)}",
            hint="the next fumehood command tries again",
        )


def _no_journal(_state: str) -> None:
    """Do nothing: this stands for the journal if there is none."""


def _error_for(error: Exception, run: str, left: Sequence[str]) -> Exception:
    """Return the error to raise: why nothing was applied, or which paths could not be taken back (`left`)."""
    if isinstance(error, OSError):
        error = ApplyFailed(
            f"nothing was applied: {error.strerror}: {_path_in(error)}",
            hint=f"the changes are held; once that is fixed: fumehood apply {run}",
        )
    if not left:
        return error
    return Unfinished(
        f"{error}; could not be taken back: {', '.join(left)}", hint="the next fumehood command tries again"
    )


def _perform(
    steps: Sequence[Step], transfer: Transfer, done: list[tuple[Sides, Step]], changes: Sequence[c.Change],
    record: Callable[[str], None], *, all_or_nothing: bool, checks_open: bool,
) -> None:  # fmt: skip
    """Do the steps in their order, and add each to `done`. Steps of changes that have become conflicts are left out."""
    at = waits = 0
    note_progress(done, len(steps))
    while at < len(steps):
        step = steps[at]
        sides = transfer.sides[step.change.root]
        if step.change.verdict != c.APPLIED:
            at += 1
            continue  # it is in a directory that turned out to be a conflict
        done_before = len(done)
        try:
            if step.is_plain and (reached := _do_plain_swaps(sides, steps, at, done, checks_open=checks_open)) > at:
                at = reached
                continue
            sides.do(step)
        except PathChanged as error:
            waits += 1
            if waits < _MAX_WAITS and _may_try_again(error, step.change, sides, record):
                continue
            _mark_or_raise(error, step.change, changes, all_or_nothing=all_or_nothing)
        except OSError:
            failed = steps[at + len(done) - done_before]
            if sides.was_done(failed):
                done.append((sides, failed))  # it was done, and then something failed
            raise
        else:
            done.append((sides, step))
        at += 1


def _may_try_again(error: PathChanged, change: c.Change, sides: Sides, record: Callable[[str], None]) -> bool:
    """Return True if a step can be tried again: git held a lock, or has refreshed its index, whose stamp is updated."""
    if isinstance(error, LockedByGit):
        time.sleep(_WAIT_S)
        return True
    before = change.before
    if before is None or not before.meaning:
        return False
    parent, name = split(change.path)
    live = sides.live.get(parent)
    status = stat_entry(live, name)
    now = None if status is None else equivalent_stamp(before, sides.live.top, change.path, status)
    if now is None:
        return status != stat_entry(live, name)  # replaced while it was read
    change.before = now
    record(APPLYING)  # with the new stamp: by this, recovery knows on which side the file is
    return True


def _mark_or_raise(error: PathChanged, change: c.Change, changes: Sequence[c.Change], *, all_or_nothing: bool) -> None:
    """Mark a change as a conflict because its path has changed; raise an error if it is all or nothing."""
    lock = f"{printable(change.path)}.lock"
    if not all_or_nothing:
        is_locked = isinstance(error, LockedByGit)
        mark_conflict(change, changes, f"git is at work on it: {lock}" if is_locked else CHANGED_SINCE)
    elif isinstance(error, LockedByGit):
        hint = "try again when it is done; where no git runs any more, remove that file"
        raise ApplyFailed(f"git is at work in this repository: {lock}", hint=hint) from error
    else:
        raise error


def _do_plain_swaps(
    sides: Sides, steps: Sequence[Step], start: int, done: list[tuple[Sides, Step]], *, checks_open: bool
) -> int:
    """Do plain swaps from `start` on; return the index of the first that was not done.

    With `checks_open`, that file may be open for writing, so _PerhapsOpen is raised if it is the very first.
    """
    reached = sides.swap_files(steps, start, done, even_open=not checks_open)
    if checks_open and reached == start:
        raise _PerhapsOpen
    return reached


def _path_in(error: OSError) -> str:
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    return "the project" if not name or name.startswith(".fumehood-") else printable(name)


def mark_conflict(change: c.Change, changes: Sequence[c.Change], reason: str = CHANGED_SINCE) -> None:
    """Mark a change, and the changes that would have moved with it, as conflicts."""
    inside = f"{change.path}/"
    for each in changes:
        carried = each.within is not None and each.root == change.root and each.path.startswith(inside)
        if each is change or (carried and each.verdict == c.APPLIED):
            each.verdict, each.reason = c.CONFLICT, reason


def _layer_directory_of(step: Step) -> str:
    """Return the directory of the layer that a step needs."""
    if step.act in (SWAP, PUT, TAKE):
        return step.parent
    return step.change.path if step.act == RMDIR else ""


class Transfer:
    """The layers and the project, root by root, for moving files between them.

    If a layer and its root are on two file systems, files are copied to a staging directory beside the root first.
    """

    def __init__(self, roots: Sequence[str], uppers: Sequence[str], run: str) -> None:
        self.sides: dict[int, Sides] = {}
        self.has_copies = False
        self._roots = roots
        self._uppers = uppers
        self._run = run
        self._staging: dict[int, Staging] = {}
        self._descriptors = Descriptors()
        self.has_originals = False  # originals are in the staging directories, and nowhere else

    def open(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Open the two sides of every root, and prepare them for these steps."""
        for number in sorted({step.change.root for step in steps}):
            root_steps = [step for step in steps if step.change.root == number]
            root_changes = [change for change in changes if change.root == number]
            layer, live = self._open(number)
            if number in self._staging:
                self._staging[number].make()
                self._staging[number].prepare(root_steps, root_changes)
                layer = self._staging[number].directory
                self.has_copies = True
            ignored_locks = {
                change.path for change in root_changes
                if change.change == c.DELETED and change.path.endswith(".lock")
            }  # fmt: skip
            sides = self.sides[number] = Sides(layer, live, ignored_locks)
            for parent in sorted({_layer_directory_of(step) for step in root_steps}):
                make_parents(sides.layer, parent)
            if number not in self._staging:
                # Staged copies need no preparation: they have neither overlay attributes nor other links.
                shared = files_with_other_links(root_changes, "after")
                self.has_copies = self.has_copies or bool(shared)
                self.sides[number].prepare(root_steps, shared)
        if repositories := changed_repositories(self._roots, changes):
            refs_by_git = [(number, digest_refs(self._roots[number], git)) for number, git in repositories]
            refs = {(number, path): says for number, refs in refs_by_git for path, says in refs.items()}
            record_refs(self._uppers[0], refs)

    def _open(self, number: int) -> tuple[int, int]:
        self._descriptors += map(open_top, (self._uppers[number], self._roots[number]))
        layer, live = self._descriptors[-2:]
        if not can_rename(layer, live) or file_system_kind(self._roots[number]) in OVERLAY_KINDS:
            self._staging[number] = Staging(self._uppers[number], live, self._run)
        return layer, live

    def reopen(self, steps: Sequence[Step]) -> None:
        """Open the two sides as an interrupted apply has left them.

        If a root has no staging directory where it needs one, nothing was done there.
        """
        for number in sorted({step.change.root for step in steps}):
            layer, live = self._open(number)
            if number not in self._staging:
                self.sides[number] = Sides(layer, live)
            elif self._staging[number].find():
                self.sides[number] = Sides(self._staging[number].directory, live)

    def save(self, changes: Sequence[c.Change]) -> bool:
        """Copy the originals that can't stay as they are; return True if `settle` must move the copies."""
        for number, shared in self._sharing(changes).items():
            self.sides[number].copy_backups(shared)
        for number, staging in self._staging.items():
            self.sides[number].layer.close()
            staging.copy_originals()
        for sides in self.sides.values():
            sides.close()  # this restores modes of live directories, before the journal says that all is applied
        return bool(self._staging or self._sharing(changes))

    def settle(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Put the copies into the layers, so that no backup shares an inode with a live file; may be repeated."""
        for number, shared in self._sharing(changes).items():
            self.sides[number].place_backup_copies(shared)
        for number, staging in self._staging.items():
            staging.move_originals_to_layer([step for step in steps if step.change.root == number])
        self.has_originals = False

    def _sharing(self, changes: Sequence[c.Change]) -> dict[int, list[c.Change]]:
        by_root: dict[int, list[c.Change]] = {}
        for change in files_with_other_links(changes, "before"):
            if change.root in self.sides and change.root not in self._staging:
                by_root.setdefault(change.root, []).append(change)
        return by_root

    def keep(self, not_taken_back: Sequence[Step]) -> None:
        """Move the originals of steps that can't be taken back to the layers; staging directories can then go."""
        for number, staging in self._staging.items():
            root_steps = [step for step in not_taken_back if step.change.root == number]
            if root_steps:
                staging.copy_originals()
                staging.move_originals_to_layer(root_steps)
        self.has_originals = False

    def take_back(self, done: Sequence[tuple[Sides, Step]]) -> list[str]:
        """Undo steps, the last first; return the paths for which that was not possible."""
        not_taken_back = []
        for sides, step in reversed(done):
            try:
                sides.undo(step)
            except (PathChanged, OSError):
                not_taken_back.append(printable(step.change.path))
        self.has_originals = bool(not_taken_back)
        for staging in self._staging.values() if not not_taken_back else ():
            staging.restore_stamps()
        return not_taken_back

    def close(self) -> None:
        """Close both sides, and remove staging directories that hold no originals."""
        for sides in self.sides.values():
            sides.close()
        for staging in self._staging.values():
            staging.close(remove=not self.has_originals)
        self._descriptors.close()
        self.sides, self._staging = {}, {}


_progress: tuple[Sized, int] = (), 0


def note_progress(done: Sized, total: int) -> None:
    """Set the collection that gets an item whenever one more part of the work is done, and the total."""
    global _progress
    _progress = done, total


def progress() -> tuple[int, int]:
    """Return how many parts are done, and the total."""
    done, total = _progress
    return len(done), total
