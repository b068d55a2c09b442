"""A client's own edits as runs: what a file was is kept when the client asks, what it became is noted when it is done.

Nothing of ours runs between the two, and the second may never come. So what is begun is a note, and copies of the files
in the directory that the run would have. Whoever opens the store next, or has the project's lock, records it: in one
transaction, with the copies as the run's backups. An edit that nobody ended is closed by a look at its files.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.masks import innermost
from fumehood.core.report import Run, printable, shell_path
from fumehood.core.request import DISCARD, HOLD
from fumehood.core.value import Value
from fumehood.errors import FumehoodError
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import (
    kind_of,
    make_parents,
    open_below,
    open_top,
    remove_directory,
    split,
    stamp_of,
    stat_entry,
)
from fumehood.store.edits import NOT_THERE, EditedFile, OpenEdit, begin_time_ns, file_state, note_end, open_edits, write
from fumehood.store.places import Places, make_private, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fumehood.core.edits import PlannedEdit
    from fumehood.core.policy import Policy
    from fumehood.service.store import Store
    from fumehood.store.edits import EditedProject, Flags

    Spots = Collection[tuple[int, str]]  # of files, by root and path

LARGEST = 1 << 26  # bytes of a file that is kept before an edit
_MOST_READ = 1 << 20  # bytes that are judged
_STALE_S = 86_400.0  # a person may be asked meanwhile
_TICK_NS = 50_000_000  # two writes within that may leave the same time


class Target(Value):
    """A file that an edit would write: by the number of a root and the path in it, or nowhere in the roots."""

    planned: PlannedEdit
    real: str
    root: int = -1
    path: str = ""


def targets(edited_project: EditedProject, cwd: str, planned: Sequence[PlannedEdit]) -> list[Target]:
    """Return where an edit would write, links followed as the client follows them."""
    reached = []
    for each in planned:
        real = os.path.realpath(os.path.join(cwd, each.path))
        root = innermost(os.path.dirname(real), edited_project.roots)
        at, path = (-1, "") if root is None else (edited_project.roots.index(root), real[len(root) + 1 :])
        reached.append(Target(planned=each, real=real, root=at, path=path))
    return reached


class Judged(Value):
    """What a person must be asked about, in words, what to do instead, and the flags of the changes."""

    reasons: tuple[str, ...]
    instead: str
    flags: Flags


def judged(
    edited_project: EditedProject, policy: Policy, mode: str, wanted: Sequence[Target], *, is_in_draft: bool = False
) -> Judged:
    """Judge an edit before it is made, as the changes of a command are judged once they are made."""
    from fumehood.service.verdicts import concerns

    outside = [each.real for each in wanted if each.root < 0]
    reasons = [f"{printable(path)} lies outside of what commands may write" for path in outside]
    inside = [each for each in wanted if each.root >= 0]
    if is_in_draft and inside:
        reasons.append("it would go to the project itself: a shell command can make it in the draft")
    elif mode in (HOLD, DISCARD) and inside:
        reasons.append(f"changes are to be {'held' if mode == HOLD else 'thrown away'}")
    changes: list[c.Change] = []
    contents: dict[tuple[int, str], bytes] = {}
    for each in inside:
        with Closing(open_top(edited_project.roots[each.root])) as top:
            status = _status(top, each.path)
            if reason := _why_not(top, each, status):
                reasons.append(f"{printable(each.path)} {reason}")
                continue
            content = _foreseen(top, each, status)
        if content is not None:
            contents[each.root, each.path] = content[:_MOST_READ]
        changes.append(_change(each, status, len(content or b"")))
    acted_on = concerns(changes, edited_project.roots, edited_project.roots, policy.rules, contents)
    flags: Flags = {(changes[n].root, changes[n].path): (concern.flag,) for n, concern in acted_on.items()}
    reasons += [f"{printable(changes[n].path)}: {concern.reason}" for n, concern in acted_on.items() if concern.held]
    instead = "write it by a shell command: then it waits for the user, who sees it with fumehood review"
    if outside:
        instead = f"the user can let you write there: fumehood roots add {shell_path(os.path.dirname(outside[0]))}"
    return Judged(reasons=tuple(reasons), instead=instead, flags=flags)


def _why_not(top: int, target: Target, status: os.stat_result | None) -> str:
    """Say why an edit of a file could not be taken back, or would change more than the file; nothing where all is well.

    Most clients write in place, so it would change under its other names too.
    """
    if status is None:
        return ""
    stamp = stamp_of(status)
    if stamp.kind != c.FILE:
        return f"is a {stamp.kind}"
    if status.st_dev != os.fstat(top).st_dev:
        return "lies on another file system, so it could not be taken back"
    if stamp.size > LARGEST:
        return f"is larger than {LARGEST >> 20} MiB, so it would not be kept"
    others = 0 if target.planned.is_removed else status.st_nlink - 1
    names = "another name" if others == 1 else f"{others} other names"
    return f"is a file that has {names}, by which it would change too" if others > 0 else ""


def _foreseen(top: int, target: Target, status: os.stat_result | None) -> bytes | None:
    """Return what a file will hold; None where that is not known, or too long to be judged."""
    make_content = target.planned.make_content
    if make_content is None or status is None:
        return None if make_content is None else make_content(None)
    try:
        with Closing(open_below(top, target.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            content = os.read(file, _MOST_READ)
    except PermissionError:
        return None
    return make_content(content) if len(content) < _MOST_READ else None


def _change(target: Target, status: os.stat_result | None, size: int) -> c.Change:
    before = None if status is None else stamp_of(status)
    if target.planned.is_removed:
        return c.Change(target.root, target.path, c.DELETED, c.FILE, before=before)
    after = c.Stamp(c.FILE, 0, size, 0, 0, 0o644 if before is None else before.mode)
    kind = c.ADDED if before is None else c.MODIFIED
    return c.Change(target.root, target.path, kind, c.FILE, before=before, after=after)


def begin(
    places: Places, edited_project: EditedProject, session: str, call: str, title: str, cwd: str,
    wanted: Sequence[Target], flags: Flags,
) -> None:  # fmt: skip
    """Keep the files that an edit names, as they are now; those outside of the roots are nobody's to take back.

    The project's lock is held. What its other edits did by now, they did before this one.
    """
    others = open_edits(places, edited_project.project)
    for other in others:
        if not other.ended_at and other.call != call:
            note_end(places, other.replace(roots=(edited_project.roots[0], *other.roots[1:])), is_told=False)
    spots = dict.fromkeys((each.root, each.path) for each in wanted if each.root >= 0)
    if spots:
        edit = OpenEdit(
            id=new_id(), project=edited_project.project, session=session, call=call, title=title, cwd=cwd,
            started_at=time.time(), roots=edited_project.roots, number=_next(others),
            files=tuple(EditedFile(root=root, path=path, flags=flags.get((root, path), ())) for root, path in spots),
        )  # fmt: skip
        _keep(places, edit, spots)


def renew(places: Places, project: int, run: str, changed: set[tuple[str, str]]) -> None:
    """Let the versions that a run, or an edit, has just left be what other edits of those files begin from.

    They are named by the directory of their root, and the path in it. The project's lock is held.
    """
    for edit in open_edits(places, project):
        spots = {
            (each.root, each.path)
            for each in edit.files
            if changed & {(edit.roots[each.root], each.path), (edit.roots[each.root], each.missing)}
        }
        if spots and not edit.ended_at and edit.id != run:
            _renew(places, edit, spots)


def close_all(store: Store, project: int) -> None:
    """Record what the edits of a project did, and forget those that did nothing; its lock is held."""
    for edit in open_edits(store.places, project):
        try:
            _close(store, edit)
        except OSError as error:
            store.unsettled[edit.id] = os.strerror(error.errno or 0)
        except FumehoodError as error:
            store.unsettled[edit.id] = error.message


def close_open(store: Store) -> None:
    """Do so for every project, unless somebody is at it, who then does; edits of one that was forgotten go with it."""
    edits = open_edits(store.places)
    for project in sorted({edit.project for edit in edits}):
        if not store.database.rows("SELECT 1 FROM projects WHERE id = ?", (project,)):
            for edit in edits:
                if edit.project == project:
                    _forget(store.places, edit, keeps_files=False)
        elif store.projects.is_in_place(project):
            try:
                with store.lock_project(project, wait=False):
                    pass  # to have it alone is to have its edits closed
            except BlockingIOError:
                continue


def _keep(places: Places, edit: OpenEdit, from_project: Spots, earlier: str = "") -> None:
    """Copy files, from the project or from where an earlier note has them, then write the note."""
    from fumehood.linux.copying import copy_file

    os.makedirs(places.layer(edit.id, 0, "upper"), 0o700)
    files = []
    for each in edit.files:
        parent, name = split(each.path)
        upper = places.layer(edit.id, each.root, "upper")
        os.makedirs(upper, 0o700, exist_ok=True)
        is_fresh = (each.root, each.path) in from_project
        source = edit.roots[each.root] if is_fresh else places.layer(earlier, each.root, "upper")
        with Closing(open_top(source)) as top:
            kept = each
            if is_fresh:
                status = _status(top, each.path)
                missing = ""  # the topmost directory that is
                for above in c.directories_above(each.path) if status is None else ():
                    if _status(top, above) is not None:
                        break
                    missing = above
                before = None if status is None else file_state(status)
                kept = each.replace(before=before, after=None, missing=missing)
            if kept.before is not None:
                with Closing(open_top(upper)) as layer:
                    make_parents(layer, parent)
                    with Closing(open_below(top, parent)) as here, Closing(open_below(layer, parent)) as there:
                        copy_file(here, name, there, name)
        files.append(kept)
    make_private(places.edits)
    write(places, edit.replace(files=tuple(files)))


def _renew(places: Places, edit: OpenEdit, spots: Spots, *, keeps_files: bool = False) -> None:
    """Begin an edit anew, with some of its files as they are now; the earlier note goes when this one is there."""
    number = _next(open_edits(places, edit.project))
    _keep(places, edit.replace(id=new_id(), ended_at=0.0, number=number), spots, edit.id)
    _forget(places, edit, keeps_files=keeps_files)


def _next(others: Sequence[OpenEdit]) -> int:
    """Return the number of an edit that comes after all others of its project, which are in their order."""
    return others[-1].number + 1 if others else 0


def _forget(places: Places, edit: OpenEdit, *, keeps_files: bool) -> None:
    """Remove the note of an edit, and the files, unless they are a run's backups now."""
    os.unlink(f"{places.edits}/{edit.id}")
    if not keeps_files:
        remove_directory(places.run(edit.id))


def _close(store: Store, edit: OpenEdit) -> None:
    """Record what an edit did, if anything; one that nobody ended goes on from there."""
    places = store.places
    is_recorded = bool(store.database.rows("SELECT 1 FROM runs WHERE id = ?", (edit.id,)))
    if is_recorded or not os.path.isdir(places.run(edit.id)):
        _forget(places, edit, keeps_files=True)  # by one that died before it could; or its files are gone
        return
    is_told = bool(edit.ended_at)
    edit = edit.replace(roots=(store.projects.path_of(edit.project), *edit.roots[1:]))  # wherever that is by now
    if not is_told:
        note_end(places, edit, is_told=False)
        edit = next((each for each in open_edits(places, edit.project) if each.id == edit.id), edit)
    changes = c.by_path(_changes(store, edit)) if edit.ended_at else []
    if not changes:
        if is_told or not 0 <= time.time() - edit.started_at < _STALE_S:
            _forget(places, edit, keeps_files=False)
        return
    from fumehood.linux.gitindex import record_content_digests
    from fumehood.service.layers import refresh_running_commands

    for number, root in enumerate(edit.roots):
        if os.path.isdir(root):
            with Closing(open_top(root)) as live:
                record_content_digests([change for change in changes if change.root == number], live, ())
    if edit.session:
        store.sessions.open(edit.project, edit.session)
    run = Run(
        run=edit.id, project=edit.roots[0], command=edit.title, cwd=edit.cwd, state="applied", exit_code=0,
        started_at=edit.started_at, duration_s=max(0.0, edit.ended_at - edit.started_at), roots=edit.roots,
        session=edit.session or None, changed=changes,
    )  # fmt: skip
    store.history.add_finished(edit.project, run)
    refresh_running_commands(store, edit.project, run)
    keeps_files = any(map(c.needs_layer, changes))
    if is_told:
        _forget(places, edit, keeps_files=keeps_files)
    else:
        spots = {(each.root, each.path) for each in edit.files}
        _renew(places, edit.replace(must_be_told=True), spots, keeps_files=keeps_files)


def _changes(store: Store, edit: OpenEdit) -> Iterator[c.Change]:
    """Yield what the files of an edit became, with the directories that were made for them."""
    made: set[tuple[int, str]] = set()
    for each in edit.files:
        before, after = (
            None if looked is None else c.Stamp(kind_of(looked[0]), *looked[1:5], looked[0] & 0o7777, looked[5])
            for looked in (each.before, each.after)
        )
        is_other = after is not None and after.kind != c.FILE  # no client's edit
        if is_other or (before is after is None) or (before and after and _is_same(store, edit, each, before, after)):
            continue
        within: str | None = None
        if after is not None and each.missing:
            with Closing(open_top(edit.roots[each.root])) as top:
                for above in reversed(list(c.directories_above(each.path))):
                    status = _status(top, above) if f"{above}/".startswith(f"{each.missing}/") else None
                    if status is None:
                        continue  # it was there before, or is gone since
                    if (each.root, above) not in made:
                        made.add((each.root, above))
                        yield c.Change(
                            each.root, above, c.ADDED, c.DIRECTORY, after=stamp_of(status), within=within,
                            verdict=c.APPLIED,
                        )  # fmt: skip
                    within = each.missing
        change = c.DELETED if after is None else c.ADDED if before is None else c.MODIFIED
        yield c.Change(
            each.root, each.path, change, c.FILE, before=before, after=after, within=within, verdict=c.APPLIED,
            flags=each.flags,
        )  # fmt: skip


def _is_same(store: Store, edit: OpenEdit, kept: EditedFile, before: c.Stamp, after: c.Stamp) -> bool:
    """Return True if a file is as it was; where its time is so late that it can't tell, its content does."""
    if not before.same(after) or before.changed_ns == after.changed_ns < begin_time_ns(store.places, edit) - _TICK_NS:
        return before.same(after)
    from fumehood.linux.gitindex import same_content

    parent, name = split(kept.path)
    with Closing(open_top(edit.roots[kept.root])) as live:
        now = _status(live, kept.path)
        if now is None or file_state(now) != kept.after:
            return False  # it has changed since, so it can't be told any more
        with (
            Closing(open_top(store.places.layer(edit.id, kept.root, "upper"))) as layer,
            Closing(open_below(layer, parent)) as there,
            Closing(open_below(live, parent)) as here,
        ):
            return same_content(there, here, name)


def _status(top: int, path: str) -> os.stat_result | None:
    """Return what lies at a path below a directory, by no link; None where nothing does."""
    parent, name = split(path)
    try:
        with Closing(open_below(top, parent)) as directory:
            return stat_entry(directory, name)
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        return None
