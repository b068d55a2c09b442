"""Take judged changes over into the project: all of them, or none.

How far something has come that takes a while, for a face that shows it from another thread.
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


_NAMED = 5  # paths named in a refusal
_MOST_WAITS = 100  # for git, which refreshes an index or holds a lock: an apply must end, whatever it does
_WAIT_S = 0.01


class _Doubtful(Exception):
    """A plain swap could not be done, perhaps because a program writes the file."""


def take_over(
    changes: Sequence[c.Change],
    roots: Sequence[str],
    uppers: Sequence[str],
    run: str,
    *,
    staying: frozenset[tuple[int, str]] = frozenset(),
    or_nothing: bool = False,
    journal: Callable[[str], None] | None = None,
    on_conflict: str = HOLD_PATH,
    even_open: bool = False,
    swaps_ask: bool = True,
) -> None:
    """Perform every change whose verdict is `applied`, between layers and the project.

    A path that is no longer what it was judged against becomes a conflict and stays in the layer, and what belongs
    together with it too; with `or_nothing`, PathChanged is raised instead. That, and any other failure, takes back what
    was done: the project is then as it was. `journal` records how far it has come, with the changes as they are then.
    A file that another program has open for writing is held in the same way, unless it goes `even_open`. Each plain
    swap asks for its own; where one is in doubt, all is taken back, and done again once all files were asked for.
    """
    conflicts = _wait_together(changes, roots, on_conflict)
    note, steps = journal or _unrecorded, planned(changes, roots, staying)
    between = Between(roots, uppers, run)
    done: list[tuple[Sides, Step]] = []
    try:
        try:
            between.open(steps, changes)
            if between.has_copies or conflicts:
                note(APPLYING)  # with the stamps of what will be in the project
            # As late as can be, for a program may open a file at any moment.
            busy = {} if even_open else find_files_in_use(changes, roots, swaps_ask=swaps_ask)
            if busy:
                _hold(changes, roots, busy, on_conflict, or_nothing=or_nothing)
            else:
                between.has_originals = True
                _perform(steps, between, done, changes, note, or_nothing=or_nothing, asks=swaps_ask and not even_open)
            is_torn = bool(busy) or (not or_nothing and _wait_together(changes, roots, on_conflict))
            if not is_torn and between.save(changes):
                note(SETTLING)
        except _Doubtful:
            is_torn, swaps_ask = True, False
        except (PathChanged, OSError, FumehoodError) as error:
            is_torn = not or_nothing and _is_cut_off(error, changes, roots)
            if not is_torn:
                restore_modes(nofollow.mode_notes_directory)
                left = between.take_back(done)
                raise _failure(error, run, left) from error
        if is_torn:
            _take_back(between, done)
        else:
            _settle(between, steps, changes, roots)
    except OSError as error:
        raise Unfinished(
            f"it is all applied, but not all backups are in their places: {error.strerror}: {_shown(error)}",
            hint="the next fumehood command finishes it",
        ) from error
    finally:
        between.close()
    if is_torn:
        # With nothing done yet, and without what is held now.
        note(APPLYING)
        take_over(
            changes, roots, uppers, run, staying=staying, or_nothing=or_nothing, journal=journal,
            on_conflict=on_conflict, even_open=even_open, swaps_ask=swaps_ask,
        )  # fmt: skip


def planned(
    changes: Sequence[c.Change], roots: Sequence[str], staying: frozenset[tuple[int, str]] = frozenset()
) -> list[Step]:
    """Return the steps of an apply; the same ones for whoever takes it back after a death.

    A directory on an overlay, as in a container, can't be renamed if it was in the image: it goes piece by piece.
    """
    overlays = {number for number, root in enumerate(roots) if file_system_kind(root) in OVERLAY_KINDS}
    deleted = (change for change in changes if change.root in overlays and change.change == c.DELETED)
    return plan_steps(changes, staying | {(each.root, each.path) for each in deleted if each.kind == c.DIRECTORY})


def _settle(between: Between, steps: Sequence[Step], changes: Sequence[c.Change], roots: Sequence[str]) -> None:
    between.settle(steps, changes)
    new = next((change for change in changes if change.verdict == c.APPLIED and change.after is not None), None)
    if new is not None:
        try:
            wait_for_next_second(os.lstat(f"{roots[new.root]}/{new.path}"))
        except OSError:
            return  # somebody else has changed it, or it lies too deep


def _wait_together(changes: Sequence[c.Change], roots: Sequence[str], on_conflict: str) -> bool:
    """Have what belongs together with a conflict wait with it; tell whether anything does."""
    return drop_harmless_conflicts(roots, changes) | spread_conflicts(changes, roots, on_conflict)


def _hold(
    changes: Sequence[c.Change], roots: Sequence[str], busy: Mapping[tuple[int, str], str], on_conflict: str,
    *, or_nothing: bool,
) -> None:  # fmt: skip
    """Hold what other programs have open; where it is all or nothing, that is a failure."""
    if or_nothing:
        raise ApplyFailed(open_in_words(busy), hint="close it there, then try again")
    hold_open_files(changes, roots, busy, on_conflict)


def open_in_words(busy: Mapping[tuple[int, str], str]) -> str:
    """Name what other programs have open, the first ones with the program."""
    shown = [f"{printable(path)} is {reason}" for (_, path), reason in busy.items()]
    return first_names(shown, _NAMED, "; ")


def _is_cut_off(error: Exception, changes: Sequence[c.Change], roots: Sequence[str]) -> bool:
    """Where a step had no way, mark what lies in directories that the project has no longer; tell if there are any."""
    if not isinstance(error, OSError) or error.errno not in UNREACHABLE:
        return False
    going = [change for change in changes if change.verdict == c.APPLIED]
    made = {(change.root, change.path) for change in going if change.change in (c.ADDED, c.TYPE)}
    in_made = c.DirectorySet(made)
    parents = {(change.root, split(change.path)[0]) for change in going if change.path != "."}
    gone = {
        (root, parent)
        for root, parent in parents
        if (root, parent) not in made
        and in_made.topmost(root, parent) is None
        and not _is_there(roots[root], parent)
    }
    for change in going:
        if (change.root, split(change.path)[0]) in gone:
            mark_conflict(change, changes)
    return bool(gone)


def _is_there(root: str, directory: str) -> bool:
    with Closing(open_top(root)) as top:
        try:
            os.close(open_below(top, directory))
        except OSError as error:
            if error.errno not in UNREACHABLE:
                raise
            return False
    return True


def _take_back(between: Between, done: Sequence[tuple[Sides, Step]]) -> None:
    """Undo all steps, because what belongs together would not all be applied."""
    left = between.take_back(done)
    if left:
        raise Unfinished(
            f"changed in the project meanwhile: {', '.join(left)}", hint="the next fumehood command tries again"
        )


def _unrecorded(_state: str) -> None:
    """For those who don't need a journal."""


def _failure(error: Exception, run: str, left: Sequence[str]) -> Exception:
    """Say why nothing was applied, or which paths a person changed meanwhile, so that they were not taken back."""
    if isinstance(error, OSError):
        error = ApplyFailed(
            f"nothing was applied: {error.strerror}: {_shown(error)}",
            hint=f"the changes are held; once that is fixed: fumehood apply {run}",
        )
    if not left:
        return error
    return Unfinished(
        f"{error}; could not be taken back: {', '.join(left)}", hint="the next fumehood command tries again"
    )


def _perform(
    steps: Sequence[Step], between: Between, done: list[tuple[Sides, Step]], changes: Sequence[c.Change],
    note: Callable[[str], None], *, or_nothing: bool, asks: bool,
) -> None:  # fmt: skip
    at = waits = 0
    note_progress(done, len(steps))
    while at < len(steps):
        step = steps[at]
        sides = between.sides[step.change.root]
        if step.change.verdict != c.APPLIED:
            at += 1
            continue  # it lies in something that turned out to be a conflict
        done_before = len(done)
        try:
            if step.is_plain and (reached := _swapped(sides, steps, at, done, asks=asks)) > at:
                at = reached
                continue
            sides.do(step)
        except PathChanged as error:
            waits += 1
            if waits < _MOST_WAITS and _is_gits(error, step.change, sides, note):
                continue
            _fail(error, step.change, changes, or_nothing=or_nothing)
        except OSError:
            failed = steps[at + len(done) - done_before]
            if sides.was_done(failed):
                done.append((sides, failed))  # only something after it went wrong
            raise
        else:
            done.append((sides, step))
        at += 1


def _is_gits(error: PathChanged, change: c.Change, sides: Sides, note: Callable[[str], None]) -> bool:
    """Return True if a step is only to be tried again: git holds a lock, or has refreshed its index, which is noted."""
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
    note(APPLYING)  # with the new stamp, by which a later start knows on which side it is
    return True


def _fail(error: PathChanged, change: c.Change, changes: Sequence[c.Change], *, or_nothing: bool) -> None:
    """Let what is not as it was judged be a conflict; raises where that is not possible."""
    lock = f"{printable(change.path)}.lock"
    if not or_nothing:
        is_locked = isinstance(error, LockedByGit)
        mark_conflict(change, changes, f"git is at work on it: {lock}" if is_locked else CHANGED_SINCE)
    elif isinstance(error, LockedByGit):
        hint = "try again when it is done; where no git runs any more, remove that file"
        raise ApplyFailed(f"git is at work in this repository: {lock}", hint=hint) from error
    else:
        raise error


def _swapped(sides: Sides, steps: Sequence[Step], start: int, done: list[tuple[Sides, Step]], *, asks: bool) -> int:
    """Do plain swaps from one on; return the first not done. Where it `asks` who writes, that one is doubtful."""
    reached = sides.swap_files(steps, start, done, even_open=not asks)
    if asks and reached == start:
        raise _Doubtful
    return reached


def _shown(error: OSError) -> str:
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    return "the project" if not name or name.startswith(".fumehood-") else printable(name)


def mark_conflict(change: c.Change, changes: Sequence[c.Change], reason: str = CHANGED_SINCE) -> None:
    """Mark a change, and what would have moved with it, as a conflict."""
    inside = f"{change.path}/"
    for each in changes:
        carried = each.within is not None and each.root == change.root and each.path.startswith(inside)
        if each is change or (carried and each.verdict == c.APPLIED):
            each.verdict, each.reason = c.CONFLICT, reason


def _needed(step: Step) -> str:
    """Return the directory of the layer that a step works in."""
    if step.act in (SWAP, PUT, TAKE):
        return step.parent
    return step.change.path if step.act == RMDIR else ""


class Between:
    """The way between layers and project for every root, by staging where they are on two file systems."""

    def __init__(self, roots: Sequence[str], uppers: Sequence[str], run: str) -> None:
        self.sides: dict[int, Sides] = {}
        self.has_copies = False
        self._roots = roots
        self._uppers = uppers
        self._run = run
        self._staging: dict[int, Staging] = {}
        self._descriptors = Descriptors()
        self.has_originals = False  # in the staging directories, and nowhere else

    def open(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Get every root's two sides ready for these steps."""
        for number in sorted({step.change.root for step in steps}):
            mine = [step for step in steps if step.change.root == number]
            here = [change for change in changes if change.root == number]
            layer, live = self._open(number)
            if number in self._staging:
                self._staging[number].make()
                self._staging[number].prepare(mine, here)
                layer = self._staging[number].directory
                self.has_copies = True
            ignored_locks = {each.path for each in here if each.change == c.DELETED and each.path.endswith(".lock")}
            sides = self.sides[number] = Sides(layer, live, ignored_locks)
            for parent in sorted({_needed(step) for step in mine}):
                make_parents(sides.layer, parent)
            if number not in self._staging:
                # Copies have neither bookkeeping nor links to anything else.
                shared = files_with_other_links(here, "after")
                self.has_copies = self.has_copies or bool(shared)
                self.sides[number].prepare(mine, shared)
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
        """Open the two sides as an interrupted apply has left them; without its staging, it had done nothing yet."""
        for number in sorted({step.change.root for step in steps}):
            layer, live = self._open(number)
            if number not in self._staging:
                self.sides[number] = Sides(layer, live)
            elif self._staging[number].find():
                self.sides[number] = Sides(self._staging[number].directory, live)

    def save(self, changes: Sequence[c.Change]) -> bool:
        """Copy what came out of the project and can't stay as it is; tell whether that has to be settled."""
        for number, shared in self._sharing(changes).items():
            self.sides[number].copy_backups(shared)
        for number, staging in self._staging.items():
            self.sides[number].layer.close()
            staging.copy_originals()
        for sides in self.sides.values():
            sides.close()  # live directories have their last modes before anything says that the project has it all
        return bool(self._staging or self._sharing(changes))

    def settle(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Put into the layers what was copied: backups that share no inode with a live file; may be repeated."""
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

    def keep(self, left: Sequence[Step]) -> None:
        """Copy home the originals of steps that can't be taken back; the staging directory is then not needed."""
        for number, staging in self._staging.items():
            mine = [step for step in left if step.change.root == number]
            if mine:
                staging.copy_originals()
                staging.move_originals_to_layer(mine)
        self.has_originals = False

    def take_back(self, done: Sequence[tuple[Sides, Step]]) -> list[str]:
        """Undo performed steps, the last first; return the paths for which that was not possible."""
        left = []
        for sides, step in reversed(done):
            try:
                sides.undo(step)
            except (PathChanged, OSError):
                left.append(printable(step.change.path))
        self.has_originals = bool(left)
        for staging in self._staging.values() if not left else ():
            staging.restore_stamps()
        return left

    def close(self) -> None:
        """Put everything away."""
        for sides in self.sides.values():
            sides.close()
        for staging in self._staging.values():
            staging.close(remove=not self.has_originals)
        self._descriptors.close()
        self.sides, self._staging = {}, {}


_now: tuple[Sized, int] = (), 0


def note_progress(done: Sized, total: int) -> None:
    """Say what is added to whenever one more of so many is done."""
    global _now
    _now = done, total


def progress() -> tuple[int, int]:
    """Return how many are done, and of how many."""
    done, total = _now
    return len(done), total
