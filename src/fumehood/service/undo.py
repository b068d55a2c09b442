"""Take a run back: the same swaps the other way, as a run of its own, and only where nothing else would be lost."""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.changes import inverse, is_plain, on_their_own, staying
from fumehood.core.judge import git_directories
from fumehood.core.report import IN_PART, REDO, UNDONE_BY, Run, first_of, printable, shown_path, typed
from fumehood.core.request import NO_PROJECT
from fumehood.errors import ApplyFailed, BadRequest, UndoRefused
from fumehood.linux.gitobjects import heads_in_the_way, may_stay, without_theirs
from fumehood.linux.libc import Closing, InterruptsHeld
from fumehood.linux.nofollow import (
    Loosened,
    Parents,
    has_left,
    kind_of,
    looks,
    open_top,
    reached,
    split,
    stamp_of,
    walk,
)
from fumehood.linux.staging import open_elsewhere
from fumehood.linux.steps import Changed
from fumehood.service import layers as layering
from fumehood.service.apply import open_in_words, take_over
from fumehood.service.decide import discard_held, recorded, refuse_unseen
from fumehood.service.files import drop_shared_backups, record
from fumehood.service.held import waiting_repositories
from fumehood.service.restore import NO_DIRECTORY, counted_as_they_are, looked_at, moved_on, versions
from fumehood.service.settle import TAKEN_BACK, as_it_stands, chosen, outcomes, state_of, with_companions
from fumehood.store.files import digest_of, is_untouched, read_seals
from fumehood.store.history import APPLYING, CHECKPOINT, HELD, LAST, UNFINISHED, Reach
from fumehood.store.places import new_id
from fumehood.store.search import later_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NoReturn

    from fumehood.linux.gitobjects import Refs
    from fumehood.service.store import Store
    from fumehood.store.files import Seals
    from fumehood.store.projects import Project

UNDONE = "undone"
_LATEST = 50  # runs of an agent among which the one in a draft is that it takes back
_NAMED = 5  # paths named in a refusal
_ONCE = 2  # a layer is that of a run, and perhaps of an undo of it


def undo(
    store: Store, project: Project, run: Run, paths: Sequence[str] = (), *, here: str = "", force: bool = False,
    by: str = "", as_it_was: bool = False,
) -> Run:  # fmt: skip
    """Bring back exactly what was there before a run; returns the undo, which can itself be undone.

    With paths, only what lies there. With `force`, also what was changed since, or is open in another program: that
    is saved in the layer first.
    `by` is the session that asks, and that the undo belongs to: an agent can't take back what a person took back, nor
    bring back what its commands could not write unseen, unless it was there just now (`as_it_was`).
    """
    if run.draft is not None and run.state == HELD:
        return discard_held(store, project, run, paths, here=here)  # nothing of it is in the project
    with store.alone(project.id), InterruptsHeld() as interrupts:
        interrupts.let_in()  # nothing is done yet, and to look at everything may take long
        run = recorded(store, project, run)
        back = _planned(store, as_it_stands(store, run), paths, here, by)
        layering.require_there(run.roots, back.changed)
        first = run if back.layer == run.run else store.history.find(back.layer)
        if force:
            back.changed = counted_as_they_are(run, back.changed)
        else:
            # A plain swap finds out by itself; whole trees must be looked at first. So must all that was undone and
            # redone: versions may be where they would be if this had been done already.
            again = len(store.history.users_of(back.layer)) > _ONCE
            if heads := heads_in_the_way(run.roots, back.changed, _noted(store, back)):
                _refuse(store, run, [path for _, path in heads])
            _check(store, run, back, [change for change in back.changed if again or not is_plain(change)])
            if busy := open_elsewhere(back.changed, run.roots):
                raise UndoRefused(
                    open_in_words(busy),
                    hint="close it there, then undo again; with --force, what that program goes on writing stays in"
                    " the backup",
                )
        find_backups(store, project, back, first)
        if by and not as_it_was:
            refuse_unseen(store, run, back)
        interrupts.hold()
        began = time.monotonic()
        store.history.begin(project.id, back, os.getpid())
        store.history.journal(back)
        expected = outcomes(back.changed)
        drop_shared_backups(store, back)
        _perform(store, project, run, back, first)
        back.state, back.duration_s = "applied", time.monotonic() - began
        is_otherwise = outcomes(back.changed) != expected
        store.history.settle(back, rewrite=is_otherwise, others=consequences(store, run, back))
        record(store, project.id, back)
        layering.drop_if_empty(store.places, back.layer, _in_layer(store, back, first))
    return back


def _in_layer(store: Store, back: Run, first: Run) -> Iterator[c.Change]:
    """Yield what an undo and other runs have in its layer, for some of its paths may have been undone before."""
    yield from back.changed
    yield from (change for change in first.changed if change.verdict in c.WAITING)
    for name in store.history.users_of(back.layer):
        if name != back.run:
            other = store.history.find(name)
            yield from other.changed if other.state != UNDONE else ()


def in_turn(store: Store, runs: Iterable[Run]) -> list[Run]:
    """Return runs in an order in which they can be taken back: as they are, save where one went in after a later one.

    Refuses where something is in the way that none of them moves itself.
    """
    waiting, ordered = list(runs), list[Run]()
    # What the undos so far would move, and so is in the way of none that comes after them.
    roots: dict[str, int] = {}
    moving: set[tuple[int, str]] = set()
    above: set[tuple[int, str]] = set()  # the directories that these are in

    def take(run: Run) -> None:
        run = as_it_stands(store, run)
        if run.draft is not None and run.state == HELD:
            return
        numbers = [roots.setdefault(root, len(roots)) for root in run.roots]
        back = _planned(store, run, (), "", "")
        changes, inside = back.changed, c.Inside(moving)
        ends = [
            change for change in changes
            if (place := (numbers[change.root], change.path)) not in moving
            and place not in above and inside.topmost(*place) is None
        ]  # fmt: skip
        heads = heads_in_the_way(run.roots, ends, _noted(store, back))
        moved = _moved(run, ends) + [path for root, path in heads if (numbers[root], path) not in moving]
        if moved:
            _refuse(store, run, moved)
        moving.update((numbers[change.root], change.path) for change in changes)
        above.update((numbers[root], path) for root, path in c.all_above(changes))

    while waiting:
        refusals = []
        for run in waiting:
            try:
                take(run)
            except UndoRefused as refusal:
                refusals.append(refusal)
            else:
                break
        else:
            raise refusals[0]
        waiting.remove(run)
        ordered.append(run)
    return ordered


def last_to_undo(store: Store, *reaches: Reach) -> Run:
    """Return the last run that changed something and is not taken back yet; an agent's may be in a draft."""
    run = next(store.history.standing(*reaches), None)
    if any(reach.sessions for reach in reaches):
        latest = store.history.runs(*reaches, limit=_LATEST)
        drafted = next((each for each in latest if each.draft is not None and each.state == HELD), None)
        run = drafted if run is None or (drafted is not None and drafted.number > run.number) else run
    if run is None:
        lost = len(layering.unknown(store))
        back = next(store.history.undos(*reaches), None)
        more = "; fumehood redo brings back what was undone last" if back is not None and has_backups(back) else ""
        ways = f"directories of runs without a record: {lost}; {layering.MEND}" if lost else ""
        raise BadRequest("nothing is left to undo", hint=ways or f"fumehood log shows what ran{more}")
    return run


def to_redo(store: Store, name: str, *reaches: Reach, paths: Sequence[str] = (), here: str = "") -> Run:
    """Return the undo that a redo takes back: the last one, or of a run, or of an undo, that is named.

    Of a run with several undos, it is the last one that took back these paths.
    """
    if name == LAST:
        back = next(store.history.undos(*reaches), None)
        if back is None:
            raise BadRequest("nothing is left to redo", hint="fumehood log shows what was taken back")
        return back
    run = store.history.find(name, *reaches)
    undos = store.history.undos(*reaches, of_layer=run.layer)
    if not run.layer:  # it is cleaned away, and what needs nothing of it can still be brought back
        undos = (each for each in undos if run.run in (each.run, each.of))
    backs = [each for each in undos if run.act != "undo" or each.run == run.run]
    if paths and len(backs) > 1:
        backs = [each for each in backs if _has_all(each, paths, here)] or backs
    if not backs:
        raise BadRequest(f"run {run.name} is not taken back", hint=f"fumehood show {run.name}")
    return backs[0]


def _has_all(run: Run, paths: Sequence[str], here: str) -> bool:
    try:
        chosen(run, paths, here=here)
    except BadRequest:
        return False
    return True


def has_backups(run: Run) -> bool:
    """Return True if all that an undo of a run would bring back is still kept."""
    return bool(run.layer) or not any(map(c.needs_layer, _applied(run.changed)))


def _planned(store: Store, run: Run, paths: Sequence[str], here: str, by: str) -> Run:
    """Return the run that takes another back."""
    if run.act == CHECKPOINT and run.of is not None and store.history.find(run.of).state in UNFINISHED:
        raise UndoRefused(
            f"the command that run {run.name} is a checkpoint of still runs",
            hint=f"wait for its end, or end it: fumehood stop {run.of}",
        )
    changes = _to_take_back(store, run, paths, here)
    which = "".join(f" {typed(path)}" for path in paths)
    verb = REDO if store.history.turns(run) % 2 else "undo"
    back = Run(
        run=new_id(), project=run.project, command=f"{verb} {run.number or run.run}{which}", cwd=run.project,
        state=APPLYING, act="undo", of=run.run, layer=run.layer or run.run, started_at=time.time(), roots=run.roots,
        changed=changes, capture=run.capture,
        session=by or None,
    )  # fmt: skip
    back.changed = without_theirs(
        run.roots, changes, _noted(store, back), lambda own: _moved(run, own), lambda: waiting_repositories(store, run)
    )  # fmt: skip
    return back


def _noted(store: Store, back: Run) -> Refs:
    """Return what refs and HEADs said before the run that an undo takes back."""
    return layering.noted_refs(store.uppers(back)[0]) or {}


def _check(store: Store, run: Run, back: Run, changes: Sequence[c.Change]) -> None:
    """Refuse where a live path is no longer what the run left."""
    if _moved(run, changes):
        _refuse(store, run, _moved(run, back.changed))


def _perform(store: Store, project: Project, run: Run, back: Run, first: Run) -> None:
    """Do it. Where something is not as the record says, everything is looked at, and it is tried once more."""
    stays = staying(first.changed)
    for last in (False, True):
        try:
            take_over(
                back.changed, run.roots, store.uppers(back), back.run, staying=stays, or_nothing=True,
                even_open=True, journal=lambda state: store.history.note(back, state),
            )  # fmt: skip
        except (ApplyFailed, Changed) as error:
            store.history.state(back.run, "failed", str(error))
            try:
                _check(store, run, back, back.changed)
                find_backups(store, project, back, first)
                if last:
                    why = str(error).removeprefix("nothing was applied: ")
                    hint = "the project is as it was before the undo"
                    raise UndoRefused(f"nothing was undone: {why}", hint=hint)  # noqa: TRY301
            except UndoRefused as refusal:
                store.history.withdraw(back, refusal.message)
                raise refusal from error
            store.history.note(back, APPLYING)
        else:
            return


def _to_take_back(store: Store, run: Run, paths: Sequence[str], here: str) -> list[c.Change]:
    """Return the changes that undo a run, or some of its paths, or say why there are none."""
    if run.state == UNDONE:
        hint = f"to have its changes back: fumehood redo {run.name}" if run.layer else f"fumehood show {run.name}"
        raise BadRequest(f"run {run.name} is undone already", hint=hint)
    meant = chosen(run, paths, here=here)
    changes = inverse(with_companions(run, _applied(meant), forth=False) if paths else meant)
    if not changes:
        what = "changed nothing in the project"
        if run.state == "refused":
            what = "was refused: nothing ran"
        elif not run.sandboxed:
            what = "was not captured: it ran without a sandbox"
        elif NO_PROJECT in run.reason:
            what = "had no project: there is nothing to take back"
        if taken_back := next((each.reason for each in meant if each.reason.startswith(TAKEN_BACK)), ""):
            last = taken_back.removeprefix(TAKEN_BACK)
            raise UndoRefused(f"run {run.name} was {taken_back}", hint=f"to have it back: fumehood redo {last}")
        if paths and meant and meant[0].reason.startswith(UNDONE_BY):
            last = store.history.name(meant[0].reason.removeprefix(UNDONE_BY))
            shown, hint = printable(meant[0].path), f"to have it back: fumehood redo {last}"
            raise BadRequest(f"what run {run.name} did to {shown} is undone already, by run {last}", hint=hint)
        if paths and meant:
            what = f"has not changed {printable(meant[0].path)} in the project: {meant[0].reason or meant[0].verdict}"
        raise BadRequest(f"run {run.name} {what}", hint=f"fumehood show {run.name}")
    if not run.layer and any(change.after is not None and not c.is_mode_alone(change) for change in changes):
        raise BadRequest(f"the backups of run {run.name} were cleaned away", hint="fumehood log shows later runs")
    return on_their_own(changes)


def _applied(changes: Sequence[c.Change]) -> list[c.Change]:
    return [change for change in changes if change.verdict == c.APPLIED]


def consequences(store: Store, run: Run, back: Run) -> list[tuple[Run, bool]]:
    """Return the runs whose states follow from an undo, and whether their changes were judged anew.

    The run is undone, all of it or some paths; where it was an undo itself, what that took back stands again.
    """
    places = {(change.root, change.path) for change in back.changed}
    names_paths = back.command.count(" ") > 1
    touched = [(run, _undone(run, places, back.run, names_paths=names_paths))]
    stands = True
    while run.act == "undo" and run.of is not None:
        by, run = run.run, store.history.find(run.of)
        if stands:
            touched.append((run, _stands_again(run, places, by)))
        else:
            touched.append((run, _undone(run, places, by, names_paths=names_paths)))
        stands = not stands
    return touched


def _undone(run: Run, places: set[tuple[int, str]], by: str, *, names_paths: bool) -> bool:
    """Mark what is undone; where that is all a run had applied, its state says so.

    What a run holds goes with it, unless other paths were named: then it waits on.
    """
    applied = _applied(run.changed)
    gits = git_directories(run.roots, run.changed)
    going = [change for change in applied if (change.root, change.path) in places]
    others = [change for change in applied if (change.root, change.path) not in places]
    # Git's objects may have stayed, for somebody else's sake.
    waits_on = names_paths and any(change.verdict in c.WAITING for change in run.changed)
    is_all = not waits_on and all(may_stay(f"{run.roots[change.root]}/{change.path}", gits) for change in others)
    if is_all and not any(change.reason.startswith(UNDONE_BY) for change in run.changed):
        run.state, run.reason = UNDONE, ""
        return False
    # In pieces: each path says which undo took it, so that each can be brought back.
    for change in going:
        change.verdict, change.reason = c.DISCARDED, f"{UNDONE_BY}{by}"
    run.state, run.reason = (UNDONE, "") if is_all else (state_of(run.changed), IN_PART)
    return True


def _stands_again(run: Run, places: set[tuple[int, str]], by: str) -> bool:
    """Let what an undo had taken back stand again; the other paths that it took back stay so."""
    mark = f"{UNDONE_BY}{by}"
    was_whole = run.state == UNDONE
    gits = git_directories(run.roots, run.changed)
    changed = False
    for change in run.changed:
        is_meant = (change.root, change.path) in places
        if was_whole and change.verdict == c.APPLIED and not is_meant:
            if may_stay(f"{run.roots[change.root]}/{change.path}", gits):
                continue  # they never went
            change.verdict, change.reason, changed = c.DISCARDED, mark, True
        elif is_meant and change.reason == mark:
            change.verdict, change.reason, changed = c.APPLIED, "", True
    is_part = any(change.reason.startswith(UNDONE_BY) for change in run.changed)
    run.state, run.reason = state_of(run.changed), IN_PART if is_part else ""
    return changed


def _moved(run: Run, changes: Sequence[c.Change]) -> list[str]:
    """Return the live paths that are no longer what the run left: taking them back would lose something."""
    return [path for _, path in moved_on(run.roots, changes)]


def _refuse(store: Store, run: Run, moved: Sequence[str]) -> NoReturn:
    """Say which paths have moved on, and by which runs."""
    lost = [each for each in moved if not any(os.path.isdir(os.path.dirname(f"{root}/{each}")) for root in run.roots)]
    later = [each.name for each in _built_upon(store, run, moved, lost)]
    by = f", by run{'s' if len(later) > 1 else ''} {first_of(later, _NAMED)}" if later else ""
    hint = f"see fumehood diff {run.name}; --force takes it back and saves what is there now"
    if lost:
        hint = NO_DIRECTORY  # by force neither
        if later:
            hint = f"first: fumehood undo {later[0]}"
    elif later:
        hint = f"first: fumehood undo {later[0]}; or --force, which saves what is there now"
    raise UndoRefused(
        f"changed since run {run.name}: {first_of([*map(shown_path, moved)], _NAMED)}{by}", hint=hint
    )


def on_top(store: Store, run: Run) -> list[Run]:
    """Return the runs that an undo of one is refused for, the latest first."""
    moved = _moved(run, _planned(store, as_it_stands(store, run), (), "", "").changed)
    return _built_upon(store, run, moved, moved)


def _built_upon(store: Store, run: Run, moved: Sequence[str], lost: Sequence[str]) -> list[Run]:
    """Return the later runs that changed some paths too, or the directories of those that are lost, the latest first.

    Neither those that came to nothing, nor what was taken back meanwhile, nor the undo that did so.
    """
    paths = [*moved[:_NAMED], *dict.fromkeys(split(each)[0] for each in lost[:_NAMED])]
    names_of_later = [
        name
        for path in paths
        for name, change in later_versions(store.database, run.run, path)
        if change.verdict == c.APPLIED
    ]
    # Those that began before this one, went in after it had begun, and made what the paths are now.
    places = [c.Change(number, path, c.MODIFIED, c.FILE) for number in range(len(run.roots)) for path in paths]
    for _, now, status, _ in looked_at(run.roots, places):
        earlier = later_versions(store.database, run.run, now.path, by_earlier=True)
        names_of_later += (name for name, each in earlier if each.verdict == c.APPLIED and has_left(each, status))
    if run.act == CHECKPOINT and run.of is not None:
        names_of_later.append(run.of)  # it began before and ended after it
    later = [store.history.find(name) for name in dict.fromkeys(reversed(names_of_later))]
    names = {each.run for each in later}
    return [each for each in later if each.state in ("applied", "held") and each.of not in names]


# ---- See that backups are what was saved, before an undo puts them into the project.
#
# A backup is known by its stamp: kind, size, time and mode; and by its seal (`store/files.py`), where it has one.

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
            if change.root == number and change.after is not None and not c.is_mode_alone(change)
        }  # fmt: skip
        recorded = {change.path for change in first.changed if change.root == number}
        with Closing(open_top(upper)) as layer:
            damaged = _damaged(layer, wanted, recorded, seals)
        if damaged:
            _refuse_damaged(store, project, back, number, damaged)


def _seals(store: Store, back: Run) -> Seals:
    """Return the seals of what lies in the layer now: those of the runs that saved it, each path by the last one."""
    history, places = store.history, store.places
    users = [name for name in history.users_of(back.layer) if name != back.run]
    if len(users) <= _ONCE:
        return read_seals(places, back.layer, back.of or "")
    seals: Seals = {}
    saved: dict[tuple[int, str], c.Stamp] = {}
    for user in map(history.find, users):
        if user.state == "failed" or history.turns(user) % 2 == history.turns(back) % 2:
            continue
        own = read_seals(places, back.layer, user.run)
        for change in _applied(user.changed):
            if change.before is not None:
                place = change.root, change.path
                if place in saved and not saved[place].alike(change.before):
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
        if not is_plain(change) or change.after.inode != entry.st_ino:
            change.after = stamp_of(entry, change.after.meaning)
    with Loosened(layer) as loosened, Parents(layer) as parents:
        for change, digest, entry in touched:
            parent, name = split(change.path)
            if digest_of(reached(parents, loosened, parent), name, entry) != digest:
                what = "is damaged: it holds something else than what was saved"
                wrong.append((change.path, what, entry.st_ino))
    return [*((path, "is gone", 0) for path in missing), *wrong]


def _lying(layer: int, wanted: Iterable[c.Change]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what lies where changes have their backups, and all that lies in directories that go whole."""
    for change, entry, _ in looks(layer, wanted):
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
    named = first_of([f"the backup of {printable(path)} {what}" for path, what, _ in damaged], _NAMED, "; ")
    path, _, inode = damaged[0]
    root = back.roots[number]
    shown = typed(path if number == 0 else f"{root}/{path}")
    others = [
        each for each in versions(store, project, root, path)
        if each.is_sound and not _is_inode(each.top, each.path, inode)
    ]  # fmt: skip
    sound = sorted((each.source for each in others), key=lambda source: "-" not in source)  # a day before a run
    offer = f"fumehood restore {shown} --from {sound[0]} brings another" if sound else "there is no other backup"
    name = store.history.name(back.of or "")
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
