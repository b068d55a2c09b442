"""A client's own edits as runs: files are copied when the client asks, and looked at again when it is done.

Fumehood does not run between the two, and the client may never report the end. So the beginning of an edit is a note,
and copies of its files in the directory that the run would have. Whoever opens the store next, or has the project's
lock, records the run in one transaction, with the copies as its backups. If nobody reported the end of an edit, its
files show what it did.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.paths import innermost
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

    FilePlaces = Collection[tuple[int, str]]  # of files, by root and path

MAX_KEPT_BYTES = 1 << 26  # of a file; a person is asked before an edit of a longer one, because it is not copied
_MAX_JUDGED_BYTES = 1 << 20  # of a file; longer ones are judged without their content
_ABANDONED_AFTER_S = 86_400.0  # it is long, because a person may be asked before the edit is made
_CLOCK_TICK_NS = 50_000_000  # two writes within this time may leave the same modification time


class Target(Value):
    """A file that an edit would write: by the number of a root and the path in it; the root is -1 if it is in none."""

    planned: PlannedEdit
    real: str
    root: int = -1
    path: str = ""


def resolve_targets(edited_project: EditedProject, cwd: str, planned: Sequence[PlannedEdit]) -> list[Target]:
    """Return where an edit would write. Links are followed, as the client follows them."""
    targets = []
    for each in planned:
        real = os.path.realpath(os.path.join(cwd, each.path))
        root = innermost(os.path.dirname(real), edited_project.roots)
        number, path = (-1, "") if root is None else (edited_project.roots.index(root), real[len(root) + 1 :])
        targets.append(Target(planned=each, real=real, root=number, path=path))
    return targets


class EditVerdict(Value):
    """The reasons why a person must be asked before an edit, what to do instead, and the flags of the changes."""

    reasons: tuple[str, ...]
    instead: str
    flags: Flags


def judge_edit(
    edited_project: EditedProject, policy: Policy, mode: str, targets: Sequence[Target], *, is_in_draft: bool = False
) -> EditVerdict:
    """Judge an edit before it is made, by the same rules as the changes of a command."""
    from fumehood.service.verdicts import find_concerns

    outside = [each.real for each in targets if each.root < 0]
    reasons = [f"{printable(path)} lies outside of what commands may write" for path in outside]
    inside = [each for each in targets if each.root >= 0]
    if is_in_draft and inside:
        reasons.append("it would go to the project itself: a shell command can make it in the draft")
    elif mode in (HOLD, DISCARD) and inside:
        reasons.append(f"changes are to be {'held' if mode == HOLD else 'thrown away'}")
    changes: list[c.Change] = []
    contents: dict[tuple[int, str], bytes] = {}
    for each in inside:
        with Closing(open_top(edited_project.roots[each.root])) as top:
            status = _status(top, each.path)
            if reason := _why_refused(top, each, status):
                reasons.append(f"{printable(each.path)} {reason}")
                continue
            content = _planned_content(top, each, status)
        if content is not None:
            contents[each.root, each.path] = content[:_MAX_JUDGED_BYTES]
        changes.append(_planned_change(each, status, len(content or b"")))
    concerns = find_concerns(changes, edited_project.roots, edited_project.roots, policy.rules, contents)
    flags: Flags = {(changes[n].root, changes[n].path): (concern.flag,) for n, concern in concerns.items()}
    reasons += [f"{printable(changes[n].path)}: {concern.reason}" for n, concern in concerns.items() if concern.held]
    instead = "write it by a shell command: then it waits for the user, who sees it with fumehood review"
    if outside:
        instead = f"the user can let you write there: fumehood roots add {shell_path(os.path.dirname(outside[0]))}"
    return EditVerdict(reasons=tuple(reasons), instead=instead, flags=flags)


def _why_refused(top: int, target: Target, status: os.stat_result | None) -> str:
    """Say why an edit of a file could not be taken back, or would change more than the file; return "" otherwise.

    Most clients write in place, so a file with several names would change under all of them.
    """
    if status is None:
        return ""
    stamp = stamp_of(status)
    if stamp.kind != c.FILE:
        return f"is a {stamp.kind}"
    if status.st_dev != os.fstat(top).st_dev:
        return "lies on another file system, so it could not be taken back"
    if stamp.size > MAX_KEPT_BYTES:
        return f"is larger than {MAX_KEPT_BYTES >> 20} MiB, so it would not be kept"
    other_names = 0 if target.planned.is_removed else status.st_nlink - 1
    names = "another name" if other_names == 1 else f"{other_names} other names"
    return f"is a file that has {names}, by which it would change too" if other_names > 0 else ""


def _planned_content(top: int, target: Target, status: os.stat_result | None) -> bytes | None:
    """Return the content that a file will have, or None if it is not known or too long to be judged."""
    make_content = target.planned.make_content
    if make_content is None or status is None:
        return None if make_content is None else make_content(None)
    try:
        with Closing(open_below(top, target.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            content = os.read(file, _MAX_JUDGED_BYTES)
    except PermissionError:
        return None
    return make_content(content) if len(content) < _MAX_JUDGED_BYTES else None


def _planned_change(target: Target, status: os.stat_result | None, size: int) -> c.Change:
    before = None if status is None else stamp_of(status)
    if target.planned.is_removed:
        return c.Change(target.root, target.path, c.DELETED, c.FILE, before=before)
    after = c.Stamp(c.FILE, 0, size, 0, 0, 0o644 if before is None else before.mode)
    kind = c.ADDED if before is None else c.MODIFIED
    return c.Change(target.root, target.path, kind, c.FILE, before=before, after=after)


def begin_edit(
    places: Places, edited_project: EditedProject, session: str, call: str, title: str, cwd: str,
    targets: Sequence[Target], flags: Flags,
) -> None:  # fmt: skip
    """Copy the files in the roots that an edit names, as they are now. Files outside of the roots can't be taken back.

    The project's lock is held. The ends of its other edits are noted first: what they did by now came before this edit.
    """
    earlier_edits = open_edits(places, edited_project.project)
    for earlier in earlier_edits:
        if not earlier.ended_at and earlier.call != call:
            note_end(places, earlier.replace(roots=(edited_project.roots[0], *earlier.roots[1:])), is_told=False)
    file_places = dict.fromkeys((each.root, each.path) for each in targets if each.root >= 0)
    if file_places:
        edit = OpenEdit(
            id=new_id(), project=edited_project.project, session=session, call=call, title=title, cwd=cwd,
            started_at=time.time(), roots=edited_project.roots, number=_next_number(earlier_edits),
            files=tuple(EditedFile(root=place[0], path=place[1], flags=flags.get(place, ())) for place in file_places),
        )  # fmt: skip
        _write_note(places, edit, file_places)


def renew_edits(places: Places, project: int, run: str, changed: set[tuple[str, str]]) -> None:
    """Let other open edits of some files begin from the versions that a run or an edit has just left there.

    The `changed` files are named by the directory of their root, and the path in it. The project's lock is held.
    """
    for edit in open_edits(places, project):
        file_places = {
            (each.root, each.path)
            for each in edit.files
            if changed & {(edit.roots[each.root], each.path), (edit.roots[each.root], each.missing)}
        }
        if file_places and not edit.ended_at and edit.id != run:
            _begin_anew(places, edit, file_places)


def record_project_edits(store: Store, project: int) -> None:
    """Record what the open edits of a project did, and forget those that did nothing; its lock is held."""
    for edit in open_edits(store.places, project):
        try:
            _record_edit(store, edit)
        except OSError as error:
            store.unsettled[edit.id] = os.strerror(error.errno or 0)
        except FumehoodError as error:
            store.unsettled[edit.id] = error.message


def record_all_edits(store: Store) -> None:
    """Record the open edits of every project, and remove those of forgotten projects.

    A project whose lock is taken is left out: the owner of the lock does it.
    """
    edits = open_edits(store.places)
    for project in sorted({edit.project for edit in edits}):
        if not store.database.rows("SELECT 1 FROM projects WHERE id = ?", (project,)):
            for edit in edits:
                if edit.project == project:
                    _remove_note(store.places, edit, keeps_files=False)
        elif store.projects.is_in_place(project):
            try:
                with store.lock_project(project, wait=False):
                    pass  # whoever takes the lock records the edits first
            except BlockingIOError:
                continue


def _write_note(places: Places, edit: OpenEdit, from_project: FilePlaces, earlier: str = "") -> None:
    """Copy the files of an edit, then write its note. Some are copied `from_project`, others from an `earlier` edit."""
    from fumehood.linux.copying import copy_file

    os.makedirs(places.layer(edit.id, 0, "upper"), 0o700)
    files = []
    for each in edit.files:
        parent, name = split(each.path)
        upper = places.layer(edit.id, each.root, "upper")
        os.makedirs(upper, 0o700, exist_ok=True)
        is_from_project = (each.root, each.path) in from_project
        source = edit.roots[each.root] if is_from_project else places.layer(earlier, each.root, "upper")
        with Closing(open_top(source)) as top:
            kept = each
            if is_from_project:
                status = _status(top, each.path)
                missing = ""  # the topmost directory that does not exist
                for above in c.directories_above(each.path) if status is None else ():
                    if _status(top, above) is not None:
                        break
                    missing = above
                before = None if status is None else file_state(status)
                kept = each.replace(before=before, after=None, missing=missing)
            if kept.before is not None:
                with Closing(open_top(upper)) as layer:
                    make_parents(layer, parent)
                    with Closing(open_below(top, parent)) as original, Closing(open_below(layer, parent)) as copy:
                        copy_file(original, name, copy, name)
        files.append(kept)
    make_private(places.edits)
    write(places, edit.replace(files=tuple(files)))


def _begin_anew(places: Places, edit: OpenEdit, file_places: FilePlaces, *, keeps_files: bool = False) -> None:
    """Replace an edit by a new one that begins now for some of its files; the earlier note is removed last."""
    number = _next_number(open_edits(places, edit.project))
    _write_note(places, edit.replace(id=new_id(), ended_at=0.0, number=number), file_places, edit.id)
    _remove_note(places, edit, keeps_files=keeps_files)


def _next_number(edits: Sequence[OpenEdit]) -> int:
    """Return the number of the next edit of a project, whose open edits are in their order."""
    return edits[-1].number + 1 if edits else 0


def _remove_note(places: Places, edit: OpenEdit, *, keeps_files: bool) -> None:
    """Remove the note of an edit, and the copies of its files unless they are a run's backups now."""
    os.unlink(f"{places.edits}/{edit.id}")
    if not keeps_files:
        remove_directory(places.run(edit.id))


def _record_edit(store: Store, edit: OpenEdit) -> None:
    """Record what an edit did, if anything. If nobody reported its end, it stays open from there."""
    places = store.places
    is_recorded = bool(store.database.rows("SELECT 1 FROM runs WHERE id = ?", (edit.id,)))
    if is_recorded or not os.path.isdir(places.run(edit.id)):
        _remove_note(places, edit, keeps_files=True)  # a process died after recording it, or its copies are gone
        return
    is_told = bool(edit.ended_at)  # by the client
    edit = edit.replace(roots=(store.projects.path_of(edit.project), *edit.roots[1:]))  # wherever that is by now
    if not is_told:
        note_end(places, edit, is_told=False)
        edit = next((each for each in open_edits(places, edit.project) if each.id == edit.id), edit)
    changes = c.by_path(_edit_changes(store, edit)) if edit.ended_at else []
    if not changes:
        if is_told or not 0 <= time.time() - edit.started_at < _ABANDONED_AFTER_S:
            _remove_note(places, edit, keeps_files=False)
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
        _remove_note(places, edit, keeps_files=keeps_files)
    else:
        file_places = {(each.root, each.path) for each in edit.files}
        _begin_anew(places, edit.replace(must_be_told=True), file_places, keeps_files=keeps_files)


def _edit_changes(store: Store, edit: OpenEdit) -> Iterator[c.Change]:
    """Yield the changes of an edit's files, and of the directories that were made for them."""
    made: set[tuple[int, str]] = set()
    for each in edit.files:
        before, after = (
            None if state is None else c.Stamp(kind_of(state[0]), *state[1:5], state[0] & 0o7777, state[5])
            for state in (each.before, each.after)
        )
        if before is after is None or (after is not None and after.kind != c.FILE):
            continue  # no client's edit makes anything but a file
        if before and after and _is_unchanged(store, edit, each, before, after):
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


def _is_unchanged(store: Store, edit: OpenEdit, kept: EditedFile, before: c.Stamp, after: c.Stamp) -> bool:
    """Return True if a file is as it was. If its modification time is too late to be sure, its content is compared."""
    if not before.same(after):
        return False
    if before.changed_ns == after.changed_ns < begin_time_ns(store.places, edit) - _CLOCK_TICK_NS:
        return True
    from fumehood.linux.gitindex import same_content

    parent, name = split(kept.path)
    with Closing(open_top(edit.roots[kept.root])) as live:
        now = _status(live, kept.path)
        if now is None or file_state(now) != kept.after:
            return False  # it has changed since, so its content can't tell any more
        with (
            Closing(open_top(store.places.layer(edit.id, kept.root, "upper"))) as layer,
            Closing(open_below(layer, parent)) as copy,
            Closing(open_below(live, parent)) as current,
        ):
            return same_content(copy, current, name)


def _status(top: int, path: str) -> os.stat_result | None:
    """Return the status of a path below a directory, or None if there is nothing. No link is followed."""
    parent, name = split(path)
    try:
        with Closing(open_below(top, parent)) as directory:
            return stat_entry(directory, name)
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        return None
