"""A client's own edits as runs: what a file was is kept when the client asks, what it became is noted when it is done.

Nothing of ours runs between the two, and the second may never come. So what is begun is a note, and copies of the files
in the directory that the run would have; the run is recorded in one transaction, with the copies as its backups. An
edit that was begun and never told of is closed by whoever opens the store next, by a look at its files.
"""

from __future__ import annotations

import errno
import marshal
import os
import time

from fumehood.core import changes as c
from fumehood.core.edits import Planned
from fumehood.core.judge import APPLY, HOLD
from fumehood.core.report import Run, printable
from fumehood.core.value import Value
from fumehood.linux.cache import replace
from fumehood.linux.copying import copy_file
from fumehood.linux.layer import same_content
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import look, make_parents, open_below, open_top, remove_tree, split, stamp_of
from fumehood.store.places import make_private, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import Any

    from fumehood.core.policy import Policy
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

    Flags = dict[tuple[int, str], tuple[str, ...]]  # by root and path

LARGEST = 1 << 26  # bytes of a file that is kept before an edit
_MOST_READ = 1 << 20  # bytes that are judged
_SOON_S = 60.0  # a client that does not tell of what it did has done it by then; later, it was somebody else
_STALE_S = 86_400.0  # a person may be asked meanwhile
_TICK_NS = 50_000_000  # two writes within that may leave the same time
_NO_WAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Kept(Value):
    """A file that an edit names: what it was, and the topmost of the directories that were missing above it."""

    root: int
    path: str
    before: c.Stamp | None
    missing: str = ""
    flags: tuple[str, ...] = ()


class OpenEdit(Value):
    """An edit that was begun: the note of it."""

    id: str
    project: int
    session: str
    call: str
    title: str
    cwd: str
    started_at: float
    roots: tuple[str, ...]
    files: tuple[Kept, ...]


# ---- Which files an edit would write, and whether a person must be asked.

class Target(Value):
    """A file that an edit would write: by the number of a root and the path in it, or nowhere in the roots."""

    planned: Planned
    real: str
    root: int = -1
    path: str = ""


def targets(project: Project, cwd: str, planned: Sequence[Planned]) -> list[Target]:
    """Return where an edit would write, links followed as the client follows them."""
    reached = []
    for each in planned:
        real = os.path.realpath(os.path.join(cwd, each.path))
        at = next((n for n, root in enumerate(project.roots) if real.startswith(f"{root}/")), -1)
        path = real[len(project.roots[at]) + 1 :] if at >= 0 else ""
        reached.append(Target(planned=each, real=real, root=at, path=path))
    return reached


class Judged(Value):
    """What a person must be asked about, in words, what to do instead, and the flags of the changes."""

    reasons: tuple[str, ...]
    instead: str
    flags: Flags


def judged(store: Store, project: Project, policy: Policy, mode: str, wanted: Sequence[Target]) -> Judged:
    """Judge an edit before it is made, as the changes of a command are judged once they are made."""
    from fumehood.service.danger_facts import concerns

    outside = [each.real for each in wanted if each.root < 0]
    reasons = [f"{printable(path)} lies outside of what commands may write" for path in outside]
    inside = [each for each in wanted if each.root >= 0]
    if mode != APPLY and inside:
        reasons.append(f"changes are to be {'held' if mode == HOLD else 'thrown away'}")
    changes: list[c.Change] = []
    room = store.places.run(new_id())
    uppers = [f"{room}/{number}" for number in range(len(project.roots))]
    for upper in uppers:
        os.makedirs(upper, 0o700)
    try:
        for each in inside:
            if reason := _why_not_kept(project.roots[each.root], each.path):
                reasons.append(f"{printable(each.path)} {reason}")
            else:
                changes.append(_foreseen(project.roots[each.root], uppers[each.root], each))
        acted_on = concerns(changes, project.roots, uppers, policy.rules)
    finally:
        with Closing(open_top(os.path.dirname(room))) as above:
            remove_tree(above, os.path.basename(room))
    flags: Flags = {(changes[n].root, changes[n].path): (concern.flag,) for n, concern in acted_on.items()}
    reasons += [f"{printable(changes[n].path)}: {concern.reason}" for n, concern in acted_on.items() if concern.held]
    instead = "write it by a shell command: then it waits for the user, who sees it with fumehood review"
    if outside:
        directory = printable(os.path.dirname(outside[0]))
        instead = f"the user can let you write there: fumehood roots add {directory}"
    return Judged(reasons=tuple(reasons), instead=instead, flags=flags)


def _why_not_kept(root: str, path: str) -> str:
    """Say why an edit of a file could not be taken back; nothing where it can."""
    with Closing(open_top(root)) as top:
        device, status = os.fstat(top).st_dev, _status(top, path)
    if status is None:
        return ""
    stamp = stamp_of(status)
    if stamp.kind != c.FILE:
        return f"is a {stamp.kind}"
    if status.st_dev != device:
        return "lies on another file system, so it could not be taken back"
    return f"is larger than {LARGEST >> 20} MiB, so it would not be kept" if stamp.size > LARGEST else ""


def _foreseen(root: str, upper: str, target: Target) -> c.Change:
    """Return the change that an edit would make, and write what the file will hold below `upper`, if that is known."""
    content, becomes = None, target.planned.becomes
    with Closing(open_top(root)) as top:
        status = _status(top, target.path)
        if status is not None and becomes is not None:
            try:
                with Closing(open_below(top, target.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
                    content = os.read(file, _MOST_READ)
            except PermissionError:
                becomes = None
    before = None if status is None else stamp_of(status)
    if target.planned.is_removed:
        return c.Change(target.root, target.path, c.DELETED, c.FILE, before=before)
    is_whole = before is None or before.size < _MOST_READ
    after = becomes(content) if becomes is not None and is_whole else None
    if after is not None:
        parent, name = split(target.path)
        with Closing(open_top(upper)) as top:
            make_parents(top, parent)
            with Closing(open_below(top, parent)) as directory:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with Closing(os.open(name, flags, 0o600, dir_fd=directory)) as file:
                    os.write(file, after[:_MOST_READ])
    stamp = c.Stamp(c.FILE, 0, len(after or b""), 0, 0, 0o644 if before is None else before.mode)
    return c.Change(
        target.root, target.path, c.ADDED if before is None else c.MODIFIED, c.FILE, before=before, after=stamp
    )


# ---- Begin, end, and close what nobody ended.

def begin(
    store: Store, project: Project, session: str, call: str, title: str, cwd: str, wanted: Sequence[Target],
    flags: Flags,
) -> None:  # fmt: skip
    """Keep the files that an edit names, as they are now; those outside of the roots are nobody's to take back."""
    places = dict.fromkeys((each.root, each.path) for each in wanted if each.root >= 0)
    if not places:
        return
    with store.alone(project.id):
        files = [Kept(root=root, path=path, before=None, flags=flags.get((root, path), ())) for root, path in places]
        edit = OpenEdit(
            id=new_id(), project=project.id, session=session, call=call, title=title, cwd=cwd,
            started_at=time.time(), roots=project.roots, files=tuple(files),
        )  # fmt: skip
        _keep(store, edit, places)


def end(store: Store, session: str, call: str) -> Run | None:
    """Record what an edit did that was begun for a call, if anything."""
    mine = [edit for edit in open_edits(store) if (edit.session, edit.call) == (session, call)]
    if not mine:
        return None
    with store.alone(mine[-1].project):
        return _close(store, mine[-1], is_ended=True)


def close_open(store: Store, but: str = "") -> None:
    """Close the edits whose files have changed though nobody said so, `but` for a call; forget those of long ago.

    Whoever is at a project now closes its edits, or the next one does.
    """
    for edit in open_edits(store):
        if (but and edit.call == but) or not store.projects.is_in_place(edit.project):
            continue
        try:
            with store.alone(edit.project, wait=False):
                _close(store, edit, is_ended=False)
        except BlockingIOError:
            continue
        except OSError as error:
            store.unsettled[edit.id] = os.strerror(error.errno or 0)


def renew(store: Store, run: Run) -> None:
    """Let the versions that a run has just left be what open edits of those files begin from.

    The project's lock is held.
    """
    changed = {(run.roots[each.root], each.path) for each in run.found if each.verdict == c.APPLIED}
    for edit in open_edits(store):
        places = {
            (each.root, each.path)
            for each in edit.files
            if not changed.isdisjoint((edit.roots[each.root], path) for path in (each.path, each.missing))
        }
        if places and edit.id != run.run:
            _renew(store, edit, places)


def open_edits(store: Store) -> list[OpenEdit]:
    """Return the edits that are begun, the earliest first."""
    edits: list[OpenEdit] = []
    try:
        names = sorted(name for name in os.listdir(store.places.edits) if "." not in name)
    except FileNotFoundError:
        return edits
    for name in names:
        try:
            with open(f"{store.places.edits}/{name}", "rb") as file:
                edits.append(_read(name, marshal.load(file)))  # noqa: S302 - nobody else can write in our state
        except FileNotFoundError:
            continue  # ended just now
    return edits


def _read(name: str, fields: dict[str, Any]) -> OpenEdit:
    files = (
        Kept(root=root, path=path, before=stamp and _stamp(*stamp), missing=missing, flags=flags)
        for root, path, stamp, missing, flags in fields.pop("files")
    )
    return OpenEdit(id=name, files=tuple(files), **fields)


def _stamp(text: str, changed_ns: int) -> c.Stamp:
    stamp = c.Stamp.read(text)
    stamp.changed_ns = changed_ns
    return stamp


def _keep(store: Store, edit: OpenEdit, from_project: Collection[tuple[int, str]], earlier: str = "") -> None:
    """Copy files, from the project or from where an earlier note has them, then write the note."""
    os.makedirs(f"{store.places.layer(edit.id, 0, 'upper')}", 0o700)
    files = []
    for each in edit.files:
        parent, name = split(each.path)
        upper = store.places.layer(edit.id, each.root, "upper")
        os.makedirs(upper, 0o700, exist_ok=True)
        is_fresh = (each.root, each.path) in from_project
        source = edit.roots[each.root] if is_fresh else store.places.layer(earlier, each.root, "upper")
        with Closing(open_top(source)) as top:
            kept = _as_it_is(top, each) if is_fresh else each
            if kept.before is not None:
                with Closing(open_top(upper)) as layer:
                    make_parents(layer, parent)
                    with Closing(open_below(top, parent)) as here, Closing(open_below(layer, parent)) as there:
                        copy_file(here, name, there, name)
        files.append(kept)
    fields: dict[str, Any] = edit.replace(files=tuple(files)).fields()
    fields["files"] = [
        (each.root, each.path, each.before and (each.before.text(), each.before.changed_ns), each.missing, each.flags)
        for each in files
    ]
    del fields["id"]
    if not os.path.isdir(store.places.edits):
        make_private(store.places.edits)
    replace(f"{store.places.edits}/{edit.id}", marshal.dumps(fields))


def _as_it_is(top: int, kept: Kept) -> Kept:
    """Look at a file before an edit, and which directories above it are missing."""
    status = _status(top, kept.path)
    missing = ""
    if status is None:
        for above in c.above(kept.path):
            if _status(top, above) is not None:
                break
            missing = above
    return kept.replace(before=None if status is None else stamp_of(status), missing=missing)


def _renew(store: Store, edit: OpenEdit, places: Collection[tuple[int, str]], *, keeps_files: bool = False) -> None:
    """Begin an edit anew, with some of its files as they are now; the earlier note goes when this one is there."""
    _keep(store, edit.replace(id=new_id()), places, edit.id)
    _forget(store, edit, keeps_files=keeps_files)


def _forget(store: Store, edit: OpenEdit, *, keeps_files: bool) -> None:
    """Remove the note of an edit, and the files, unless they are a run's backups now."""
    os.unlink(f"{store.places.edits}/{edit.id}")
    if not keeps_files:
        with Closing(open_top(f"{store.places.state}/runs")) as runs:
            remove_tree(runs, edit.id)


def _close(store: Store, edit: OpenEdit, *, is_ended: bool) -> Run | None:
    """Record what an edit did, if anything; where nobody said that it ended, it goes on from there.

    The project's lock is held.
    """
    if not os.path.exists(f"{store.places.edits}/{edit.id}"):
        return None  # another process was faster
    if store.database.rows("SELECT 1 FROM runs WHERE id = ?", (edit.id,)):
        _forget(store, edit, keeps_files=True)  # recorded by one that died before it could
        return None
    changes = list(_changes(store, edit))
    now = time.time()
    if not changes or not (is_ended or _is_soon(edit, changes)):
        if is_ended or not 0 <= now - edit.started_at < _STALE_S:
            _forget(store, edit, keeps_files=False)
        return None
    if edit.session:
        store.sessions.open(edit.project, edit.session)
    run = Run(
        run=edit.id, project=edit.roots[0], command=edit.title, cwd=edit.cwd, state="applied", exit_code=0,
        started_at=edit.started_at, duration_s=max(0.0, now - edit.started_at), roots=edit.roots,
        session=edit.session or None, found=c.by_path(changes),
    )  # fmt: skip
    store.history.add(edit.project, run)
    renew(store, run)
    keeps_files = any(map(c.needs_layer, changes))
    if is_ended:
        _forget(store, edit, keeps_files=keeps_files)
    else:
        _renew(store, edit, {(each.root, each.path) for each in edit.files}, keeps_files=keeps_files)
    return run


def _changes(store: Store, edit: OpenEdit) -> Iterator[c.Change]:
    """Yield what the files of an edit became, with the directories that were made for them."""
    made: set[tuple[int, str]] = set()
    for each in edit.files:
        with Closing(open_top(edit.roots[each.root])) as top:
            now = _status(top, each.path)
            after = None if now is None else stamp_of(now)
            if after is not None and after.kind != c.FILE:
                continue  # no client's edit
            if after is None and each.before is None:
                continue
            if each.before is not None and after is not None and _is_same(store, edit, each, top, after):
                continue
            within = each.missing if after is not None and each.missing else None
            for above in reversed(list(c.above(each.path))) if within else ():
                inside = above == within or above.startswith(f"{within}/")
                status = _status(top, above) if inside and (each.root, above) not in made else None
                if status is not None:
                    made.add((each.root, above))
                    yield c.Change(
                        each.root, above, c.ADDED, c.DIRECTORY, after=stamp_of(status), verdict=c.APPLIED,
                        within=None if above == within else within,
                    )  # fmt: skip
        change = c.DELETED if after is None else c.ADDED if each.before is None else c.MODIFIED
        yield c.Change(
            each.root, each.path, change, c.FILE, before=each.before, after=after, within=within, verdict=c.APPLIED,
            flags=each.flags,
        )  # fmt: skip


def _is_same(store: Store, edit: OpenEdit, kept: Kept, top: int, now: c.Stamp) -> bool:
    """Tell whether a file is as it was; where its time is so late that it can't tell, its content does."""
    before = kept.before
    assert before is not None
    if not before.same(now) or before.changed_ns == now.changed_ns < edit.started_at * 1e9 - _TICK_NS:
        return before.same(now)
    parent, name = split(kept.path)
    with (
        Closing(open_top(store.places.layer(edit.id, kept.root, "upper"))) as layer,
        Closing(open_below(layer, parent)) as there,
        Closing(open_below(top, parent)) as here,
    ):
        return same_content(there, here, name)


def _is_soon(edit: OpenEdit, changes: Sequence[c.Change]) -> bool:
    """Tell whether what an edit's files became, they became soon after it was begun."""
    limit = (edit.started_at + _SOON_S) * 1e9
    for change in changes:
        if change.after is not None:
            moment = change.after.changed_ns
        else:
            with Closing(open_top(edit.roots[change.root])) as top:
                above = _status(top, split(change.path)[0])
            moment = 0 if above is None else above.st_mtime_ns
        if change.kind != c.DIRECTORY and moment > limit:
            return False
    return True


def _status(top: int, path: str) -> os.stat_result | None:
    """Return what lies at a path below a directory, by no link; None where nothing does."""
    parent, name = split(path)
    try:
        with Closing(open_below(top, parent)) as directory:
            return look(directory, name) if name else os.fstat(directory)
    except OSError as error:
        if error.errno not in _NO_WAY:
            raise
        return None
