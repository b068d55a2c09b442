"""What the views of a person show, and what is done there: what runs now, what waits, and acts on runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import islice

from fumehood.core import questions
from fumehood.core.changes import APPLIED, HELD, Change
from fumehood.core.edits import CONFLICT_MARKS
from fumehood.core.inside import SHOW
from fumehood.core.masks import is_in
from fumehood.core.policy import EVERY_HOST, FULL, NONE, Policy, decide_network
from fumehood.core.report import Run
from fumehood.core.value import Value
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, UndoRefused
from fumehood.linux.libc import Closing, InterruptsHeld, read
from fumehood.linux.nofollow import is_whiteout, open_top
from fumehood.linux.process import find_init
from fumehood.linux.usage import descendants
from fumehood.service import checkpoint, decide
from fumehood.service.layers import INIT, walk_tree
from fumehood.service.permission import add_granted_access
from fumehood.service.store import Store
from fumehood.service.undo import in_turn, on_top, to_redo, undo
from fumehood.store.audit import Missed
from fumehood.store.config import configuration_path, configuration_text
from fumehood.store.history import CHECKPOINT, LAST, RunFilter
from fumehood.store.projects import Project
from fumehood.store.search import Search, page_of_changes, running_with_checkpoints, search
from fumehood.store.search import count_waiting as waiting_in

ACTS = ("apply", "discard", "undo", "redo", "stop", "checkpoint", "hunks", "merge")
_MOST_LOOKED_AT = 2000  # entries of a layer that are looked at for what was written last
_OWN_RULE = "a rule of yours "  # begins the reason of what a line of the configuration holds


# ---- What runs now.

class LiveCommand(Value):
    """A command that runs now, with what it uses."""

    run: Run
    memory: int  # bytes, of all its processes
    processes: int


def running(store: Store, *filters: RunFilter) -> list[LiveCommand]:
    """Return the commands that run now, the latest first, with what they use."""
    return [live(store, run) for run in store.running(*filters)]


def live(store: Store, run: Run) -> LiveCommand:
    """Return a command that runs now, with what it uses at this moment."""
    init = find_init(store.places.layer(run.run, 0, INIT))
    if init is None:
        return LiveCommand(run=run, memory=0, processes=0)  # it is being set up, or has just ended
    processes = descendants(init)
    sizes = (read(f"/proc/{process}/statm").split() for process in processes)
    pages = sum(int(fields[1]) for fields in sizes if fields)  # none of one that has ended
    return LiveCommand(run=run, memory=pages * os.sysconf("SC_PAGE_SIZE"), processes=len(processes))


def printed_last(store: Store, run: Run, stream: str, most: int) -> bytes:
    """Return the last of what a command that runs printed, as many bytes at most; what is cut begins at a line."""
    try:
        with open(store.places.output(run.run, stream), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            data = file.read(most)
    except FileNotFoundError:
        return b""  # it has printed nothing there
    return data if size <= most else data.partition(b"\n")[2] or data


class Written(Value):
    """A path that a command which runs has written; `is_gone` tells that it deleted it."""

    path: str
    at: float
    is_gone: bool = False


def written(store: Store, run: Run, most: int) -> tuple[list[Written], bool]:
    """Return what a command that runs wrote last, by its layer, and whether there is more than that."""
    paths: list[Written] = []
    for number, root in enumerate(run.roots):
        above, name = os.path.split(store.places.layer(run.layer, number, "upper"))
        try:
            top = open_top(above)
        except FileNotFoundError:
            continue  # it is not made yet, or the command has just ended
        with Closing(top):  # by descriptors, since the command moves what it likes
            for path, status in islice(walk_tree(top, name), _MOST_LOOKED_AT):
                if not stat.S_ISDIR(status.st_mode):
                    below = path.removeprefix(f"{name}/")
                    shown = below if number == 0 else f"{root}/{below}"
                    paths.append(Written(path=shown, at=status.st_mtime, is_gone=is_whiteout(status)))
    paths.sort(key=lambda each: (-each.at, each.path))
    return paths[:most], len(paths) > most


# ---- What waits for a person.

def count_waiting(store: Store) -> int:
    """Return how many runs hold something, of all projects that are in their places."""
    return sum(_held(store).values())


def _held(store: Store) -> dict[int, int]:
    counted = "SELECT project, count(*) FROM runs WHERE state = 'held' AND draft IS NULL GROUP BY project"
    rows = store.database.rows(counted)
    return {project: count for project, count in rows if store.projects.is_in_place(project)}


def waiting(store: Store, *, most: int, before: int = 0) -> tuple[list[Run], int]:
    """Return runs that hold something, the latest first, and what to say as `before` for the next ones; 0: no more."""
    projects = ", ".join(str(int(project)) for project in _held(store))
    rows = store.database.rows(
        f"SELECT id, number FROM runs WHERE state = 'held' AND draft IS NULL AND project IN ({projects}) AND number < ?"
        " ORDER BY number DESC LIMIT ?",
        (before or 1 << 62, most + 1),
    )
    runs = store.history.runs(among=[name for name, _ in rows[:most]])
    return runs, rows[most - 1][1] if len(rows) > most else 0


class ReadRun(Value):
    """A run as it is shown: with some of what it changed or holds, and what names its state before that was read."""

    run: Run
    seen: str
    changes: tuple[Change, ...]
    rest: tuple[int, int] | None  # where the next ones begin
    total: int
    rules: dict[str, str]  # lines of the configuration, by reason


def read_run(store: Store, run: Run, *, most: int, after: tuple[int, int] = (0, 0), only_waiting: bool) -> ReadRun:
    """Read some of what a run holds, or of all that it changed, so that it can be shown and decided on."""
    seen = shown_at(store, run)
    run = store.history.find(run.run)  # as it is by then
    changes, rest = page_of_changes(store.database, run.run, after, limit=most, waiting=only_waiting)
    if only_waiting:
        total = waiting_in(store.database, run.run)
    else:
        total = sum(store.history.count_changes([run.run]).get(run.run, {}).values())
    rules = _lines_of_rules(store, changes)
    return ReadRun(run=run, seen=seen, changes=tuple(changes), rest=rest, total=total, rules=rules)


def _lines_of_rules(store: Store, changes: Iterable[Change]) -> dict[str, str]:
    """Return for each rule of the person's that holds something the line of the configuration where it stands."""
    reasons = {change.reason for change in changes if change.reason.startswith(_OWN_RULE)}
    lines = configuration_text(store.places).split("\n") if reasons else []
    places = {}
    for reason in reasons:
        glob = reason.partition(": ")[2]
        number = next((at for at, line in enumerate(lines, 1) if glob in line and not line.startswith("#")), 0)
        if number:
            file_name = os.path.basename(configuration_path(store.places))
            places[reason] = f"{file_name}:{number}: {lines[number - 1].strip()}"
    return places


# ---- What ran.

def searched(store: Store, what: Search, *, most: int, before: int = 0) -> tuple[list[Run], int]:
    """Return runs that are looked for, the latest first, and what to say as `before` for the next ones; 0: no more."""
    names, before = search(store.database, store.places, what, limit=most, before=before)
    return store.history.runs(among=names), before


# ---- What is done to a run, by a person or by a program for them.

class Chosen(Value):
    """What was chosen: an act, some paths or all of the run, and what names that which was shown."""

    act: str
    paths: tuple[str, ...] = ()
    some: bool = False  # paths were to be chosen: none of them is nothing, not all
    force: bool = False
    expected: str = ""  # the digest of what was shown
    hunks: tuple[int, ...] = ()
    content: str = ""
    seen: str = ""  # in place of a digest: the state of the run that was shown (`shown_at`)


def perform(store: Store, run: Run, chosen: Chosen) -> Run:
    """Do it; returns the run that did, or to which it was done."""
    project = store.projects.open(run.project, register=False)
    here, force = run.project, chosen.force
    if chosen.some and not chosen.paths:
        raise BadRequest("nothing was chosen: nothing was done", hint="choose at least one path, or all of the run")
    _refuse_another(store, run, chosen)
    if chosen.act in ("stop", "checkpoint"):
        return (checkpoint.stop if chosen.act == "stop" else checkpoint.checkpoint)(store, run)
    if chosen.act in ("undo", "redo"):
        return _taken_back(store, project, run, chosen)
    expected = _expected(store, run, chosen)
    if chosen.act == "apply":
        return decide.apply_held(store, project, run, chosen.paths, here=here, force=force, expected=expected)
    if chosen.act == "discard":
        return decide.discard_held(store, project, run, chosen.paths, here=here, expected=expected)
    if chosen.act not in ACTS or len(chosen.paths) != 1:
        raise BadRequest(f"nothing can be done to a run by {chosen.act!r}", hint=f"one of: {', '.join(ACTS)}")
    if chosen.act == "hunks":
        if not chosen.hunks:
            raise BadRequest("no piece was chosen: nothing was done", hint="choose at least one, or refuse the file")
        return decide.apply_hunks(
            store, project, run, chosen.paths[0], set(chosen.hunks), here=here, expected=chosen.expected
        )
    left = [line for line in chosen.content.split("\n") if line.startswith((CONFLICT_MARKS[0], CONFLICT_MARKS[2]))]
    if left:
        raise BadRequest(f"both versions are still there, after {left[0]!r}", hint="keep one of them, or some of each")
    content = chosen.content.encode()
    return decide.apply_edited(
        store, project, run, chosen.paths[0], lambda _old, _new: content, here=here, expected=chosen.expected
    )


def _taken_back(store: Store, project: Project, run: Run, chosen: Chosen) -> Run:
    """Take a run back, or bring back what was taken back of it; a redo names the run itself, or its undo."""
    if chosen.seen:
        with store.lock_project(project.id):  # whoever is at it just now has ended then, and may have changed it
            _refuse_another(store, run, chosen)
    here, force = run.project, chosen.force
    if chosen.act == "redo":
        return redo_command(store, project, run.run, paths=chosen.paths, here=here, force=force)[0]
    if chosen.paths:
        return undo(store, project, run, chosen.paths, here=here, force=force)
    return undo_command(store, project, run, force=force)[0]


def shown_at(store: Store, run: Run) -> str:
    """Name the state of a run that is shown: it is the same until something more is recorded of it.

    It is read before what is shown: what is recorded between the two is refused then. To make a digest of all that a
    run holds takes seconds where that is much.
    """
    ((last,),) = store.database.rows("SELECT coalesce(max(n), 0) FROM events WHERE run = ?", (run.run,))
    return str(last)


def _expected(store: Store, run: Run, chosen: Chosen) -> str:
    """Return the digest of what the paths mean, if all that the run holds is still what was shown."""
    if not chosen.seen or chosen.act not in ("apply", "discard"):
        return chosen.expected
    if not run.changed:
        return "nothing"  # was shown, and this is the digest of nothing that it may hold by now
    digest = decide.shown_digest(run, chosen.paths, here=run.project, forth=chosen.act == "apply")
    _refuse_another(store, run, chosen)  # what it holds was read only now
    return digest


def _refuse_another(store: Store, run: Run, chosen: Chosen) -> None:
    """Refuse an act on a run to which something happened since it was shown, where it is said what was."""
    if not chosen.seen or shown_at(store, run) == chosen.seen:
        return
    if chosen.act in ("apply", "discard"):
        raise decide.changed_since_shown(run)
    raise ChangedMeanwhile(
        f"run {run.name} has changed since it was shown: nothing was done",
        hint=f"fumehood show {run.name}, then decide again",
    )


# ---- Several runs at once: those of a session, or a command with what checkpoints of it settled. All, or none.

def undo_session(store: Store, project: Project, name: str, *, by: str = "", force: bool = False) -> list[Run]:
    """Take back every run of a session, the latest first: all of them, or none.

    `by` is the session that asks, if it is not a person. With `force`, also what was changed since: it is saved first.
    """
    if store.sessions.find(name) is None:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    if running := running_with_checkpoints(store.database, name):
        running = store.history.name_of(running)
        raise UndoRefused(
            f"the session {name} was not undone: run {running} still runs, and some of what it wrote is settled",
            hint=f"first: fumehood stop {running}",
        )
    mine = RunFilter(project=project.id, sessions=(name,))
    runs = [run for run in store.history.not_taken_back(mine) if run.act in ("run", CHECKPOINT)]
    if not runs:
        raise BadRequest(f"nothing of the session {name} is left to undo", hint=f"fumehood log --session {name}")
    return _all_or_none(store, project, f"the session {name} was not undone", runs, by, force=force)


def redo_session(store: Store, project: Project, name: str, *, by: str = "", force: bool = False) -> list[Run]:
    """Bring back every run of a session that was taken back, the last one first: all of them, or none."""
    taken_back = {run.layer or run.run for run in store.history.runs(RunFilter(project=project.id, sessions=(name,)))}
    mine = RunFilter(project=project.id, sessions=(by,) if by else ())
    undos = [back for back in store.history.undos_in_force(mine) if back.layer in taken_back]
    if not undos:
        raise BadRequest(f"nothing of the session {name} is left to redo", hint=f"fumehood log --session {name}")
    return _all_or_none(store, project, f"the session {name} was not brought back", undos, by, force=force)


def undo_command(store: Store, project: Project, run: Run, *, by: str = "", force: bool = False) -> list[Run]:
    """Take back a command, with all that checkpoints of it settled while it ran: all of it, or nothing.

    Its end alone where that lies on runs that lie on its checkpoints: these can't go before it.
    """
    settled = store.history.checkpoints_of(run) if run.act == "run" else []
    standing = (each for each in (run, *settled) if settled and each.state in ("applied", "held"))
    runs = [each for each in standing if any(change.verdict == APPLIED for change in each.changed)]
    if not runs:  # by itself, it also says why there is nothing to undo
        return [undo(store, project, run, by=by, force=force)]
    try:
        return _all_or_none(store, project, f"run {run.name} was not undone", runs, by, force=force)
    except UndoRefused:
        if force or run not in runs:
            raise
        # Another run may lie between some of the command's, of which its end is the first.
        own = {each.run for each in runs}
        others = {other.run: other for each in runs[1:] for other in on_top(store, each) if other.run not in own}
        if not any(top.run == run.run for other in others.values() for top in on_top(store, other)):
            raise
        return [undo(store, project, run, by=by)]


def redo_command(
    store: Store, project: Project, name: str, *filters: RunFilter, paths: Sequence[str] = (), here: str = "",
    by: str = "", force: bool = False,
) -> list[Run]:  # fmt: skip
    """Bring back what the last undo took back, or those of a command that is named, with all that was settled of it.

    With paths, only what one undo took back there.
    """
    run = None if name == LAST else store.history.find(name, *filters)
    settled = store.history.checkpoints_of(run) if run is not None and run.act == "run" else []
    if run is None or not settled or paths:
        back = to_redo(store, name, *filters, paths=paths, here=here)
        return [undo(store, project, back, paths, here=here, by=by, force=force)]
    layers = {each.layer or each.run for each in (run, *settled)}
    undos = [back for back in store.history.undos_in_force(*filters) if back.layer in layers]
    if not undos:
        raise BadRequest(f"run {run.name} is not taken back", hint=f"fumehood show {run.name}")
    return _all_or_none(store, project, f"run {run.name} was not brought back", undos, by, force=force)


def _all_or_none(
    store: Store, project: Project, refusal: str, runs: Sequence[Run], by: str, *, force: bool
) -> list[Run]:
    done: list[Run] = []
    try:
        if not force:
            runs = in_turn(store, runs)  # else those done already would have to be done again, and stay in the log
        with InterruptsHeld():  # Ctrl-C comes before all of them, or after
            # One by one: what is done already must be known when one of them refuses.
            done.extend(undo(store, project, run, by=by, force=force) for run in runs)
    except FumehoodError as error:
        for back in reversed(done):
            undo(store, project, back, by=by, as_it_was=True)
        raise UndoRefused(f"{refusal}: {error.message}", hint=error.hint or "the project is as it was") from error
    return done


# ---- What was asked when nobody was there.

def missed_questions(store: Store, project: str = "") -> list[Missed]:
    """Return the questions that found nobody and would still be asked, the latest first; of one project, or of all."""

    @cache  # one project may have missed many, and views look twice a second
    def policy_of(path: str) -> Policy:
        project = store.projects.open(path, register=False)
        return add_granted_access(store.policy_of(project), store.grants.allowed(project.path, ""))

    return [each for each in store.grants.missed(project) if not _is_allowed(store, each, policy_of)]


def _is_allowed(store: Store, missed: Missed, policy_of: Callable[[str], Policy]) -> bool:
    """Return True if what was asked for needs nobody's word any more."""
    if missed.what == questions.UNSANDBOXED:
        return store.grants.find((missed.what, missed.project, missed.target)) == questions.ALLOW
    if missed.what == questions.APPLY_HELD:
        return not any(run.state == HELD for run in store.history.runs(among={missed.target}))
    if not os.path.isdir(missed.project):
        return False
    if missed.what in (questions.ROOT, questions.LINKED_ROOT):
        return is_in(missed.target, store.projects.open(missed.project, register=False).roots)
    policy = policy_of(missed.project)
    if missed.what == SHOW:
        return is_in(missed.target, policy.show)
    hosts = tuple(missed.target.split("\n"))
    asked = decide_network(FULL, (), policy) if hosts == (EVERY_HOST,) else decide_network(NONE, hosts, policy)
    return not asked.to_ask
