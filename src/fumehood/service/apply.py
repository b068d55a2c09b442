"""Take judged changes over into the project: all of them, or none."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.judge import keep_replacements_whole
from fumehood.core.plan import PUT, RMDIR, SWAP, TAKE, plan, sharing
from fumehood.core.report import printable
from fumehood.errors import ApplyFailed
from fumehood.linux.nofollow import make_parents, open_top
from fumehood.linux.staging import Staging
from fumehood.linux.steps import Changed, Sides

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.plan import Step

_CHANGED_MEANWHILE = "it changed in the project while the command ran"


def take_over(
    changes: Sequence[c.Change],
    roots: Sequence[str],
    uppers: Sequence[str],
    run: str,
    *,
    staying: frozenset[tuple[int, str]] = frozenset(),
    or_nothing: bool = False,
) -> None:
    """Perform every change whose verdict is `applied`, between layers and the project.

    A path that is no longer what it was judged against becomes a conflict and stays in the layer; with
    `or_nothing`, Changed is raised instead. That, and any other failure, takes back what was done: the
    project is then as it was.
    """
    if not or_nothing:
        _find_conflicts(changes, uppers)
    steps = plan(changes, staying)
    done: list[tuple[Sides, Step]] = []
    between = Between(roots, uppers, run)
    try:
        between.open(steps, changes)
        at = 0
        while at < len(steps):
            step = steps[at]
            sides = between.sides[step.change.root]
            if step.is_plain and (reached := sides.swap_plainly(steps, at, done)) > at:
                at = reached
                continue
            at += 1
            if step.change.verdict != c.APPLIED:
                continue  # it lies in something that turned out to be a conflict
            try:
                sides.do(step)
            except Changed:
                if or_nothing:
                    raise
                mark_conflict(step.change, changes)
            else:
                done.append((sides, step))
        between.part_backups(changes)
        between.bring_home()
    except Changed:
        between.take_back(done)
        raise
    except OSError as error:
        left = between.take_back(done)
        but = f"; could not be taken back: {', '.join(left)}" if left else ""
        raise ApplyFailed(
            f"nothing was applied: {error.strerror}: {_shown(error)}{but}",
            hint=f"the changes are held; once that is mended: fumehood apply {run}",
        ) from error
    finally:
        between.close()


def _find_conflicts(changes: Sequence[c.Change], uppers: Sequence[str]) -> None:
    """Mark what a person changed after the run had begun: their version stays, the run's is held.

    Both times are the file system's own, so they can be compared; that of a directory says only that
    something in it changed.
    """
    began = os.stat(os.path.dirname(os.path.dirname(uppers[0]))).st_mtime_ns
    found = [
        change
        for change in changes
        if change.verdict == c.APPLIED
        and change.before is not None
        and change.before.changed_ns > began
        and change.before.kind != c.DIRECTORY
    ]
    for change in found:
        change.verdict, change.reason = c.CONFLICT, _CHANGED_MEANWHILE
    if found:
        keep_replacements_whole(changes)


def _shown(error: OSError) -> str:
    name = error.filename
    return printable(os.fsdecode(name)) if isinstance(name, str | bytes) else "the project"


def mark_conflict(change: c.Change, changes: Sequence[c.Change]) -> None:
    """Mark a change, and what would have moved with it, as a conflict."""
    inside = f"{change.path}/"
    for each in changes:
        carried = each.within is not None and each.root == change.root and each.path.startswith(inside)
        if each is change or (carried and each.verdict == c.APPLIED):
            each.verdict, each.reason = c.CONFLICT, _CHANGED_MEANWHILE


def _needed(step: Step) -> str:
    """Return the directory of the layer that a step works in."""
    if step.act in (SWAP, PUT, TAKE):
        return step.parent
    return step.change.path if step.act == RMDIR else ""


class Between:
    """The way between layers and project for every root, by staging where they are on two file systems."""

    def __init__(self, roots: Sequence[str], uppers: Sequence[str], run: str) -> None:
        self.sides: dict[int, Sides] = {}
        self._roots = roots
        self._uppers = uppers
        self._run = run
        self._staging: dict[int, Staging] = {}
        self._descriptors: list[int] = []

    def open(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Get every root's two sides ready for these steps."""
        for number in sorted({step.change.root for step in steps}):
            mine = [step for step in steps if step.change.root == number]
            here = [change for change in changes if change.root == number]
            layer, live = open_top(self._uppers[number]), open_top(self._roots[number])
            self._descriptors += [layer, live]
            if os.fstat(layer).st_dev != os.fstat(live).st_dev:
                staging = Staging(self._uppers[number], live, self._run)
                self._staging[number] = staging
                staging.prepare(mine, here)
                layer = staging.directory
            for parent in {_needed(step) for step in mine}:
                make_parents(layer, parent)
            self.sides[number] = Sides(layer, live)
            if number not in self._staging:
                # Copies have neither bookkeeping nor links to anything else.
                self.sides[number].prepare(mine, sharing(here, "after"))

    def part_backups(self, changes: Sequence[c.Change]) -> None:
        """See to it that no backup shares an inode with a live file."""
        found = sharing(changes, "before")
        for number, sides in self.sides.items():
            if number not in self._staging:
                sides.part_backups([change for change in found if change.root == number])

    def bring_home(self) -> None:
        """Copy what came out of the project into the layers, where it can't be renamed."""
        for number, staging in self._staging.items():
            self.sides[number].layer.close()
            staging.bring_home()

    def take_back(self, done: Sequence[tuple[Sides, Step]]) -> list[str]:
        """Undo performed steps, the last first; return the paths that a person changed meanwhile: those stay."""
        left = []
        for sides, step in reversed(done):
            try:
                sides.undo(step)
            except (Changed, OSError):
                left.append(printable(step.change.path))
        return left

    def close(self) -> None:
        """Put everything away."""
        for sides in self.sides.values():
            sides.close()
        for staging in self._staging.values():
            staging.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self.sides, self._staging, self._descriptors = {}, {}, []
