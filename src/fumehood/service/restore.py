"""Bring an earlier version of a path back: a copy of it, swapped in by a run of its own, which can be undone."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.report import Run, printable
from fumehood.errors import ApplyFailed, BadRequest, FumehoodError
from fumehood.linux.copying import copy_entry
from fumehood.linux.libc import InterruptsHeld
from fumehood.linux.nofollow import kind_of, look, make_parents, open_below, open_top, set_mode, split
from fumehood.linux.steps import Changed
from fumehood.linux.upper import scan
from fumehood.service import layers as layering
from fumehood.service.apply import take_over
from fumehood.service.files import record
from fumehood.service.versions import place_of, versions
from fumehood.store.backups import Slots
from fumehood.store.files import Files
from fumehood.store.history import APPLYING, Reach
from fumehood.store.ids import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.store import Store
    from fumehood.service.versions import Version
    from fumehood.store.projects import Project

EMPTY = "empty"


def restore(store: Store, project: Project, path: str, source: str = "", *, here: str = "") -> Run:
    """Bring back what lay at a path: before a run, on a day, or, without a source, before it last changed.

    What is there now goes into the run's layer. A directory is merged: what is in it now and was not then
    stays. The run is `empty` where the path is that version already.
    """
    root, below = place_of(store, project, path, here)
    with store.alone(project.id), InterruptsHeld() as interrupts:
        version = _chosen(store, project, root, below, source)
        run = Run(
            run=new_id(), project=project.path, command=f"restore {below} from {version.source}", cwd=project.path,
            state=APPLYING, act="restore", started_at=time.time(), roots=project.roots,
        )  # fmt: skip
        number = project.roots.index(root)
        store.history.begin(project.id, run, os.getpid())
        try:
            interrupts.let_in()  # a large tree takes long to copy, and nothing of the project is touched yet
            run.found = _prepare(store, run, number, below, version)
        except (FumehoodError, OSError, KeyboardInterrupt) as error:
            interrupts.hold()
            store.history.state(run.run, "failed", str(error) or "interrupted")
            layering.drop(store.places, run.run)
            raise _explained(error, below) from error
        interrupts.hold()
        _perform(store, project, run)
    return run


def _explained(error: FumehoodError | OSError | KeyboardInterrupt, path: str) -> BaseException:
    if not isinstance(error, OSError):
        return error
    reason = error.strerror
    return ApplyFailed(f"{printable(path)} was not restored: {reason}", hint="nothing was changed; fumehood doctor")


def _perform(store: Store, project: Project, run: Run) -> None:
    """Swap what was prepared into the project, and record it."""
    began = time.monotonic()
    if not run.found:
        run.state = EMPTY
        store.history.end(run)
        layering.drop(store.places, run.run)
        return
    store.history.journal(run, ((b"", 0), (b"", 0)))
    stamps = [(change.before, change.after) for change in run.found]
    try:
        take_over(
            run.found, run.roots, store.uppers(run), run.run, or_nothing=True,
            journal=lambda state: store.history.note(run, state),
        )  # fmt: skip
    except (ApplyFailed, Changed) as error:
        reason = f"{error} changed meanwhile" if isinstance(error, Changed) else str(error)
        store.history.state(run.run, "failed", reason)
        raise ApplyFailed(f"nothing was restored: {reason}", hint="the project is as it was; try again") from error
    run.state, run.duration_s = "applied", time.monotonic() - began
    store.history.settle(run, rewrite=stamps != [(change.before, change.after) for change in run.found])
    record(store, project.id, run)
    layering.drop_if_empty(store.places, run.run, run.found)


def _prepare(store: Store, run: Run, number: int, path: str, version: Version) -> list[c.Change]:
    """Copy a version into the run's layer, as if a command had written it, and tell what that changes."""
    uppers = store.uppers(run)
    for upper in uppers:
        os.makedirs(upper, 0o700)
    layer, live = open_top(uppers[number]), open_top(run.roots[number])
    try:
        parent, name = split(path)
        _make_way(layer, live, parent)
        with Slots(version.top) as slots:
            there, wanted = split(version.path)
            target = open_below(layer, parent)
            try:
                copy_entry(slots.directory(there), wanted, target, name)
            finally:
                os.close(target)
        found = scan(number, layer, live)
    finally:
        os.close(layer)
        os.close(live)
    # The layer's own top and the directories on the way are no part of what is restored.
    wanted_changes = [each for each in found if each.change != c.MODE or not _leads_to(each.path, path)]
    for change in wanted_changes:
        change.verdict = c.APPLIED
    return wanted_changes


def _leads_to(directory: str, path: str) -> bool:
    return directory == "." or path.startswith(f"{directory}/")


def _make_way(layer: int, live: int, parent: str) -> None:
    """Make the directories above a path in the layer; those that the project lacks look like the one above them."""
    make_parents(layer, parent)
    like: os.stat_result | None = None
    here = ""
    for name in parent.split("/") if parent else ():
        above, here = here, f"{here}/{name}" if here else name
        if like is None:
            like = _missing_below(live, above, name)
        if like is not None:
            made = open_below(layer, here)
            try:
                if os.geteuid() == 0:
                    os.chown(f"/proc/self/fd/{made}", like.st_uid, like.st_gid)
                set_mode(made, like.st_mode & 0o7777)
            finally:
                os.close(made)


def _missing_below(live: int, above: str, name: str) -> os.stat_result | None:
    """Return what a directory of the project is like, if it lacks one that is needed; it must not be anything else."""
    directory = open_below(live, above)
    try:
        found = look(directory, name)
        if found is None:
            return os.fstat(directory)
    finally:
        os.close(directory)
    if kind_of(found.st_mode) != c.DIRECTORY:
        there = printable(f"{above}/{name}" if above else name)
        raise BadRequest(
            f"nothing can be restored below {there}: it is a {kind_of(found.st_mode)} now",
            hint="move it out of the way first",
        )
    return None


def _chosen(store: Store, project: Project, root: str, path: str, source: str) -> Version:
    """Return the version that a run or a day names, or the latest."""
    found = versions(store, project, root, path)
    shown, hint = printable(path), f"fumehood files {printable(path)} shows what it can be restored from"
    if not source:
        if not found:
            raise BadRequest(f"there is no backup of {shown}", hint="fumehood files lists what can be restored")
        return found[0]
    day = _day(source)
    if day:
        for version in found:
            if version.source == day:
                return version
        raise BadRequest(f"there is no backup of {shown} from {source}", hint=hint)
    run = store.history.find(source, Reach(project=project.id))
    for version in found:
        if version.source == run.run:
            return version
    raise BadRequest(_why_not(store, project, root, path, run), hint=hint)


def _day(source: str) -> str:
    """Read a day, YY-MM-DD or YYYY-MM-DD; empty where it is none."""
    for form in ("%y-%m-%d", "%Y-%m-%d"):
        try:
            return time.strftime("%y-%m-%d", time.strptime(source, form))
        except ValueError:
            continue
    return ""


def _why_not(store: Store, project: Project, root: str, path: str, run: Run) -> str:
    """Say why a path can't be restored from a run."""
    shown = printable(path)
    change = next(
        (past.change for past in Files(store.database).past(project.id, root, path) if past.run == run.run), None
    )
    if change is None:
        return f"run {run.run} did not change {shown}"
    if change.before is None:
        return f"there was nothing at {shown} before run {run.run}"
    if run.state == "undone":
        return f"run {run.run} was undone: what it had replaced at {shown} went back into the project"
    return f"what run {run.run} replaced at {shown} is no longer kept"
