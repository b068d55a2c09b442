"""Bring an earlier version of a path back: a copy of it, swapped in by a run of its own, which can be undone.

What there is to bring back, and whether it is what was saved.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.changes import ABSENT, DIRECTORY, FILE, SYMLINK, swaps_no_directory
from fumehood.core.paths import innermost
from fumehood.core.report import Run, first_names, printable, shell_path
from fumehood.core.value import Value
from fumehood.errors import ApplyFailed, BadRequest, FumehoodError, UndoRefused, end_reason
from fumehood.linux.copying import copy_entry
from fumehood.linux.layer import scan
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.nofollow import (
    AccessibleTree,
    kind_of,
    make_parents,
    open_below,
    open_top,
    set_mode,
    split,
    stamp_of,
    stat_each,
    stat_entry,
    walk,
)
from fumehood.linux.steps import PathChanged
from fumehood.service import layers as layering
from fumehood.service.apply import apply_changes
from fumehood.service.files import LiveFiles, catch_up, record_run
from fumehood.service.settle import change_outcomes, possible_paths
from fumehood.store.database import Days
from fumehood.store.files import (
    DailyBackups,
    FileRecord,
    Files,
    LayerSlots,
    PastChange,
    backup_parts,
    digest_of,
    is_untouched,
    read_seals,
)
from fumehood.store.history import APPLYING, RunFilter
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from fumehood.service.store import Store
    from fumehood.store.files import Seals
    from fumehood.store.projects import Project


# ---- What a path can be restored from: what runs replaced or deleted there, and its daily backups.

class Version(Value):
    """One version of a path: what lay there before a run, or on the morning of a day.

    It lies at `path` below `top`, in the layer of a run or among the daily backups.
    """

    source: str  # a run's id, or a day
    order: float  # the number of that run, or just before that of the day's first one
    at: float
    about: str
    kind: str
    size: int
    modified_ns: int
    top: str
    path: str
    is_sound: bool = True  # it is what was saved, as far as stamp and seal tell

    def as_dict(self) -> dict[str, Any]:
        """Return what programs are told."""
        return {
            "from": self.source, "at": self.at, "about": self.about, "kind": self.kind, "size": self.size,
            "modified_at": self.modified_ns / 1e9,
        }  # fmt: skip


class KnownFile(Value):
    """A file with the days and runs that it can be restored from, the latest first.

    `was_touched` tells that something happened to it: a run made, changed or deleted it, or a held change waits on it.
    """

    record: FileRecord
    state: str  # the directory that its backups lie below
    days: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    run_count: int = 0  # of all runs that it can be restored from, where only the latest are named
    was_touched: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return what programs are told."""
        record = self.record
        copy = record.last_approved_copy_path
        return {
            "id": record.id, "path": record.path, "root": record.root, "kind": record.kind, "size": record.size,
            "modified_at": record.modified_ns / 1e9, "is_deleted": record.is_deleted,
            "needs_approval": record.needs_approval, "last_run": record.last_run,
            "last_approved_copy_path": f"{self.state}/{copy}" if copy else "",
            "days": list(self.days), "runs": list(self.runs), "run_count": self.run_count,
        }  # fmt: skip


def known_files(store: Store, project: Project, root: str = "", path: str = "") -> list[KnownFile]:
    """Return what is known of every file of a project, or of those below one directory of a root."""
    catch_up(store, project.id)
    files = Files(store.database)
    with DailyBackups(store.places.state) as daily:
        names = daily.names_by_file()
    sources = files.runs_to_restore_from(project.id, project.path)
    tops = (root,) if root else project.roots
    listed = []
    for top in tops:
        recorded = files.find_below(project.id, top, path)
        for each, now in zip(recorded, _as_they_are(top, recorded), strict=True):
            runs, count = sources.get((each.root, each.path), ((), 0))
            days = tuple(_day(name) for name in names.get(each.id, ()))
            was_touched = bool(days or runs or each.last_run or each.is_deleted or each.needs_approval)
            listed.append(
                KnownFile(
                    record=now, state=store.places.state, days=days, runs=tuple(runs), run_count=count,
                    was_touched=was_touched,
                )
            )  # fmt: skip
    return listed


def known_file(store: Store, project: Project, root: str, path: str) -> KnownFile | None:
    """Return what is known of one file."""
    catch_up(store, project.id)
    recorded = Files(store.database).find(project.id, root, path)
    if recorded is None:
        return None
    (record,) = _as_they_are(root, [recorded])
    kept = versions(store, project, root, path)
    days = tuple(each.source for each in kept if "-" in each.source)
    runs = tuple(each.source for each in kept if "-" not in each.source)
    return KnownFile(record=record, state=store.places.state, days=days, runs=runs, run_count=len(runs))


def _as_they_are(root: str, records: Sequence[FileRecord]) -> Iterator[FileRecord]:
    """Yield records as they are now: since then, a person may have made, changed or deleted any of them."""
    with LiveFiles(root) as live:
        for record in records:
            stamp = live.stamp(record.path)
            if stamp is not None and stamp.kind in (FILE, SYMLINK):
                yield record.replace(is_deleted=False, kind=stamp.kind, size=stamp.size, modified_ns=stamp.modified_ns)
            elif record.kind != ABSENT and (stamp is not None or live.is_missing(record.path)):
                yield record.replace(is_deleted=True)
            else:
                yield record  # what a held change would only bring was never there


def made_by(store: Store, project: Project, root: str, path: str) -> str:
    """Return the run that last changed a path in the project, or nothing where none did."""
    pasts = Files(store.database).past_changes(project.id, root, path)
    return pasts[0].run if pasts else ""


def versions(store: Store, project: Project, root: str, path: str) -> list[Version]:
    """Return every version of a path that can be restored, the latest first.

    What a run replaced is looked for in its layer, because an undo takes it out of there again.
    """
    return [version for version in _kept(store, project, root, path) if version.is_sound]


def _kept(store: Store, project: Project, root: str, path: str) -> list[Version]:
    """Return every version of a path that is kept, the damaged ones too."""
    files = Files(store.database)
    pasts = files.past_changes(project.id, root, path)
    kept = [version for past in pasts if (version := _in_layer(store, past)) is not None]
    record = files.find(project.id, root, path)
    if record is not None:
        recorded = Days(store.database)
        saving = [past for past in pasts if past.change.before is not None and past.change.before.kind == FILE]
        with DailyBackups(store.places.state) as daily:
            for name in daily.names_by_file().get(record.id, ()):
                entry, day = daily.look(name), _day(name)
                if entry is not None:
                    stamp, at = stamp_of(entry), time.mktime(time.strptime(day, "%y-%m-%d"))
                    # A sound one is what some run saved, as far as those are recorded.
                    is_sound = not saving or any(_is_as_saved(store, past, daily.fd(), name, entry) for past in saving)
                    kept.append(Version(
                        source=day, order=recorded.first_run(day) - 0.5, at=at, about="daily backup",
                        is_sound=is_sound, kind=stamp.kind, size=stamp.size, modified_ns=stamp.modified_ns,
                        top=daily.path, path=name,
                    ))  # fmt: skip
    return sorted(kept, key=lambda version: version.order, reverse=True)


def _is_as_saved(store: Store, past: PastChange, directory: int, name: str, status: os.stat_result) -> bool:
    """Return True if a file is what lay at a path before a run; if it was touched, its seal tells."""
    before = past.change.before
    if before is None or (before.size, before.modified_ns) != (status.st_size, status.st_mtime_ns):
        return False
    seal = read_seals(store.places, past.layer, past.run).get((past.change.root, past.change.path))
    return seal is None or is_untouched(seal, status) or digest_of(directory, name, status) in (seal[2], b"")


def _in_layer(store: Store, past: PastChange) -> Version | None:
    """Return what lay at a path before a run, if its layer still holds that."""
    before = past.change.before
    upper = store.places.layer(past.layer, past.change.root, "upper")
    if before is None or not past.layer or not os.path.isdir(upper):
        return None
    parent, _, name = past.change.path.rpartition("/")
    with LayerSlots(upper) as slots:
        entry = slots.look(parent, name)
        if entry is None:
            return None
        now = stamp_of(entry)
        if not (before.is_same_or_copy(now) or before.kind == now.kind == DIRECTORY):
            return None
        is_sound = now.kind == DIRECTORY or _is_as_saved(store, past, slots.directory(parent), name, entry)
    about = f"before: {past.command}" if past.act == "run" else f"before {past.command}"
    return Version(
        source=past.run, order=past.number, at=past.started_at, about=about, kind=before.kind, size=before.size,
        modified_ns=before.modified_ns, top=upper, path=past.change.path, is_sound=is_sound,
    )  # fmt: skip


def _day(name: str) -> str:
    number_and_day = backup_parts(name)
    return "" if number_and_day is None else number_and_day[1]


def place_of(store: Store, project: Project, path: str, here: str = "") -> tuple[str, str]:
    """Return the root and the path below it that a person means.

    A path may be absolute, relative to `here` (where the person is), or relative to a root, as reports show
    it; the first of these that anything is known of counts.
    """
    places = [
        (root, meant[len(root) + 1 :])
        for meant in possible_paths(project.roots, path, here)
        if (root := innermost(os.path.dirname(meant), project.roots))
    ]
    if not places:
        raise BadRequest(
            f"{printable(path) or 'an empty path'} is not a path in {project.path}",
            hint="name a file of the project; fumehood roots list shows where it may lie",
        )
    files = Files(store.database)
    recorded = (place for place in places if files.past_changes(project.id, *place) or files.find(project.id, *place))
    return next(recorded, places[0])


# ---- Bring an earlier version of a path back: a copy of it, swapped in by a run of its own, which can be undone.

EMPTY = "empty"


def restore(store: Store, project: Project, path: str, source: str = "", *, here: str = "") -> Run:
    """Bring back what lay at a path: before a run, on a day, or, without a source, before it last changed.

    What is there now goes into the run's layer. A directory is merged: what is in it now and was not then
    stays. The run is `empty` where the path is that version already.
    """
    root, below = place_of(store, project, path, here)
    with store.lock_project(project.id), InterruptsHeld() as interrupts:
        version = _chosen(store, project, root, below, source)
        source = version.source if "-" in version.source else store.history.name_of(version.source)
        run = Run(
            run=new_id(), project=project.path, command=f"restore {below} from {source}", cwd=project.path,
            state=APPLYING, act="restore", started_at=time.time(), roots=project.roots,
        )  # fmt: skip

        def copy(target: int, name: str) -> None:
            with LayerSlots(version.top) as slots:
                there, wanted = split(version.path)
                copy_entry(slots.directory(there), wanted, target, name)

        put_in_place(store, project, run, project.roots.index(root), below, copy, interrupts)
    return run


def put_in_place(
    store: Store, project: Project, run: Run, number: int, path: str, make: Callable[[int, str], None],
    interrupts: InterruptsHeld,
) -> None:  # fmt: skip
    """Put something at a path of a root by a run of its own, whose project's lock is held.

    It is made under a name in a directory of the run's layer first, as if a command had written it.
    """
    store.history.begin(project.id, run, os.getpid())
    try:
        interrupts.release()  # a large tree takes long to copy, and nothing of the project is touched yet
        run.changed = _prepare(store, run, number, path, make)
    except (FumehoodError, OSError, KeyboardInterrupt) as error:
        interrupts.hold()
        store.history.set_state(run.run, "failed", end_reason(error))
        layering.drop(store.places, run.run)
        if isinstance(error, OSError):
            done = "restored" if run.act == "restore" else "written"
            raise ApplyFailed(
                f"{printable(path)} was not {done}: {error.strerror}", hint="nothing was changed; fumehood doctor"
            ) from error
        raise
    interrupts.hold()
    _perform(store, project, run)


def _perform(store: Store, project: Project, run: Run) -> None:
    """Swap what was prepared into the project, and record it."""
    began = time.monotonic()
    if not run.changed:
        run.state = EMPTY
        store.history.end(run)
        layering.drop(store.places, run.run)
        return
    store.history.write_journal(run)
    expected = change_outcomes(run.changed)
    try:
        apply_changes(
            run.changed, run.roots, store.uppers(run), run.run, all_or_nothing=True,
            journal=lambda state: store.history.record_progress(run, state),
        )  # fmt: skip
    except (ApplyFailed, PathChanged) as error:
        reason = f"{error} changed meanwhile" if isinstance(error, PathChanged) else str(error)
        store.history.set_state(run.run, "failed", reason)
        why = reason.removeprefix("nothing was applied: ")
        raise ApplyFailed(f"nothing was restored: {why}", hint="the project is as it was; try again") from error
    run.state, run.duration_s = "applied", time.monotonic() - began
    store.history.settle(run, rewrite=change_outcomes(run.changed) != expected)
    record_run(store, project.id, run)
    layering.drop_if_empty(store.places, run.run, run.changed)


def _prepare(store: Store, run: Run, number: int, path: str, make: Callable[[int, str], None]) -> list[c.Change]:
    """Make something in the run's layer, as if a command had written it, and tell what that changes."""
    uppers = store.uppers(run)
    for upper in uppers:
        os.makedirs(upper, 0o700)
    with Closing(open_top(uppers[number])) as layer, Closing(open_top(run.roots[number])) as live:
        parent, name = split(path)
        _make_way(layer, live, parent)
        with Closing(open_below(layer, parent)) as target:
            make(target, name)
        changes = scan(number, layer, live)
    # The layer's own top and the directories on the way are no part of what is restored.
    restored = [
        each for each in changes
        if each.change != c.MODE or not (each.path == "." or path.startswith(f"{each.path}/"))
    ]  # fmt: skip
    for change in restored:
        change.verdict = c.APPLIED
    return restored


def _make_way(layer: int, live: int, parent: str) -> None:
    """Make the directories above a path in the layer; those that the project lacks look like the one above them."""
    make_parents(layer, parent)
    like: os.stat_result | None = None
    here = ""
    for name in parent.split("/") if parent else ():
        above, here = here, f"{here}/{name}" if here else name
        if like is None:
            with Closing(open_below(live, above)) as directory:
                entry = stat_entry(directory, name)
                if entry is None:
                    like = os.fstat(directory)
                elif kind_of(entry.st_mode) != c.DIRECTORY:
                    raise BadRequest(
                        f"nothing can be restored below {printable(here)}: it is a {kind_of(entry.st_mode)} now",
                        hint="move it out of the way first",
                    )
        if like is not None:
            with Closing(open_below(layer, here)) as made:
                if os.geteuid() == 0:
                    os.chown(f"/proc/self/fd/{made}", like.st_uid, like.st_gid)
                set_mode(made, like.st_mode & 0o7777)


def _chosen(store: Store, project: Project, root: str, path: str, source: str) -> Version:
    """Return the version that a run or a day names, or the latest."""
    kept = _kept(store, project, root, path)
    shown, hint = printable(path), f"fumehood files {shell_path(path)} shows what it can be restored from"
    if not source:
        if not kept:
            raise BadRequest(f"there is no backup of {shown}", hint="fumehood files lists what can be restored")
        sound = [version for version in kept if version.is_sound]
        return sound[0] if sound else _sound(kept[0], shown, "there is no other")
    day = _day_meant(source)
    run = None if day else store.history.find(source, RunFilter(project=project.id))
    for version in kept:
        if version.source == (day if run is None else run.run):
            return _sound(version, shown, hint)
    why = f"there is no backup of {shown} from {source}"
    raise BadRequest(why if run is None else _why_not(store, project, root, path, run), hint=hint)


def _sound(version: Version, shown: str, hint: str) -> Version:
    """Return a version that is what was saved; another is never put into the project."""
    if version.is_sound:
        return version
    raise ApplyFailed(
        f"the backup of {shown} from {version.source} is damaged: it is not what was saved",
        hint=f"it lies in {version.top}; {hint}",
    )


def _day_meant(source: str) -> str:
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
        (past.change for past in Files(store.database).past_changes(project.id, root, path) if past.run == run.run),
        None,
    )
    if change is None:
        return f"run {run.name} did not change {shown}"
    if change.before is None:
        return f"there was nothing at {shown} before run {run.name}"
    if run.state == "undone":
        return f"run {run.name} was undone: what it had replaced at {shown} went back into the project"
    return f"what run {run.name} replaced at {shown} is no longer kept"


# ---- See that backups are what was saved, before an undo puts them into the project.
#
# A backup is known by its stamp: kind, size, time and mode; and by its seal (`store/files.py`), where it has one.

_NAMED = 5  # backups named in a refusal
ONCE = 2  # a layer is that of a run, and perhaps of an undo of it


def find_backups(store: Store, project: Project, back: Run, first: Run) -> None:
    """Let the changes of an undo name what lies in the layers of the `first` run, for it may have other inodes now.

    Refuses where something is gone, altered or added there. Layers that were dropped because they held nothing are
    made again.
    """
    seals = _seals(store, back)
    for number, upper in enumerate(store.uppers(back)):
        os.makedirs(upper, 0o700, exist_ok=True)
        wanted = {
            change.path: change for change in back.changed
            if change.root == number and change.after is not None and not c.is_directory_mode(change)
        }  # fmt: skip
        recorded = {change.path for change in first.changed if change.root == number}
        with Closing(open_top(upper)) as layer:
            damaged = _damaged(layer, wanted, recorded, seals)
        if damaged:
            _refuse_damaged(store, project, back, number, damaged)


def _seals(store: Store, back: Run) -> Seals:
    """Return the seals of what lies in the layer now: those of the runs that saved it, each path by the last one."""
    history, places = store.history, store.places
    users = [name for name in history.runs_using_layer(back.layer) if name != back.run]
    if len(users) <= ONCE:
        return read_seals(places, back.layer, back.of or "")
    seals: Seals = {}
    saved: dict[tuple[int, str], c.Stamp] = {}
    for user in map(history.find, users):
        if user.state == "failed" or history.undo_depth(user) % 2 == history.undo_depth(back) % 2:
            continue
        own = read_seals(places, back.layer, user.run)
        for change in user.changed:
            if change.verdict == c.APPLIED and change.before is not None:
                place = change.root, change.path
                if place in saved and not saved[place].is_same_or_copy(change.before):
                    seals.pop(place, None)
                saved[place] = change.before
                if place in own:
                    seals[place] = own[place]
    return seals


def _damaged(layer: int, wanted: dict[str, c.Change], recorded: set[str], seals: Seals) -> list[tuple[str, str, int]]:
    """Return which backups are wrong: the path, in what way, and the inode that lies there; the others are stamped."""
    wrong: list[tuple[str, str, int]] = []
    touched: list[tuple[c.Change, bytes, os.stat_result]] = []
    missing = dict(wanted)
    for path, entry in _lying(layer, [change for change in wanted.values() if change.within is None]):
        change = missing.pop(path, None)
        if change is None or change.after is None:
            if path not in recorded:
                wrong.append((path, "was put among the backups", entry.st_ino))
            continue
        seal = seals.get((change.root, path))
        difference = _difference(change.after, entry)
        if difference:
            wrong.append((path, f"is damaged: {difference}", entry.st_ino))
        elif seal is not None and not is_untouched(seal, entry):
            touched.append((change, seal[2], entry))
        if not swaps_no_directory(change) or change.after.inode != entry.st_ino:
            change.after = stamp_of(entry, change.after.meaning)
    with AccessibleTree(layer) as tree:
        for change, digest, entry in touched:
            parent, name = split(change.path)
            if digest_of(tree.get_to_read(parent), name, entry) != digest:
                what = "is damaged: it holds something else than what was saved"
                wrong.append((change.path, what, entry.st_ino))
    return [*((path, "is gone", 0) for path in missing), *wrong]


def _lying(layer: int, wanted: Iterable[c.Change]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what lies where changes have their backups, and all that lies in directories that go whole."""
    for change, entry, _ in stat_each(layer, wanted):
        if entry is not None:
            yield change.path, entry
            if kind_of(entry.st_mode) == c.DIRECTORY:
                yield from walk(layer, change.path)


def _difference(stamp: c.Stamp, entry: os.stat_result) -> str:
    """Say how a backup differs from the version that was saved; a directory's size and time mean nothing."""
    kind = kind_of(entry.st_mode)
    if kind != stamp.kind:
        return f"it is a {kind} now, and a {stamp.kind} was saved"
    if kind != c.DIRECTORY and entry.st_size != stamp.size:
        return f"it has {entry.st_size} bytes now, and {stamp.size} were saved"
    if kind != c.DIRECTORY and entry.st_mtime_ns != stamp.modified_ns:
        return "it was written after it was saved"
    if kind != c.SYMLINK and entry.st_mode & 0o7777 != stamp.mode:
        return f"its mode is {entry.st_mode & 0o7777:04o} now, and was {stamp.mode:04o}"
    return ""


def _refuse_damaged(
    store: Store, project: Project, back: Run, number: int, damaged: Sequence[tuple[str, str, int]]
) -> None:
    named = first_names([f"the backup of {printable(path)} {what}" for path, what, _ in damaged], _NAMED, "; ")
    path, _, inode = damaged[0]
    root = back.roots[number]
    shown = shell_path(path if number == 0 else f"{root}/{path}")
    others = [
        each for each in versions(store, project, root, path)
        if each.is_sound and not _is_inode(each.top, each.path, inode)
    ]  # fmt: skip
    sound = sorted((each.source for each in others), key=lambda source: "-" not in source)  # a day before a run
    offer = f"fumehood restore {shown} --from {sound[0]} brings another" if sound else "there is no other backup"
    name = store.history.name_of(back.of or "")
    raise UndoRefused(
        f"{named}: nothing was undone",
        hint=f"it lies in {store.places.run(back.layer)}; {offer}; fumehood undo {name} with other paths takes those"
        " back",
    )


def _is_inode(top: str, path: str, inode: int) -> bool:
    """Return True if a version is the damaged file itself: a daily backup may be a link to it."""
    try:
        return os.lstat(f"{top}/{path}").st_ino == inode
    except OSError:
        return True
