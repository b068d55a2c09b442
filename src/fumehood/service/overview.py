"""What the views in a browser or a terminal show and do: running commands, runs that wait, and acts on runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice

from fumehood.core import questions
from fumehood.core.changes import HELD, Change
from fumehood.core.inside import SHOW
from fumehood.core.paths import is_in
from fumehood.core.policy import EVERY_HOST, FULL, NONE, Policy, decide_network
from fumehood.core.report import Run
from fumehood.core.text_diff import CONFLICT_MARKS
from fumehood.core.value import Value
from fumehood.errors import BadRequest, ChangedMeanwhile
from fumehood.linux.libc import Closing, read
from fumehood.linux.nofollow import is_whiteout, open_top
from fumehood.linux.process import find_init
from fumehood.linux.processes import descendants
from fumehood.service import checkpoint, decide
from fumehood.service.layers import INIT, walk_tree
from fumehood.service.permission import add_granted_access
from fumehood.service.store import Store
from fumehood.service.undo import undo
from fumehood.service.undo_groups import redo_command, undo_command
from fumehood.store.audit import Missed
from fumehood.store.config import configuration_path, configuration_text
from fumehood.store.history import RunFilter
from fumehood.store.projects import Project
from fumehood.store.search import Search, count_waiting, page_of_changes, search

ACTS = ("apply", "discard", "undo", "redo", "stop", "checkpoint", "hunks", "merge")
_MAX_ENTRIES = 2000  # of a layer that are read to find what was written last
_OWN_RULE = "a rule of yours "  # begins the reason of a change that a rule of the configuration holds


# ---- Running commands.


class LiveCommand(Value):
    """A running command, and what it uses."""

    run: Run
    memory: int  # bytes, of all its processes
    processes: int


def live_commands(store: Store, *filters: RunFilter) -> list[LiveCommand]:
    """Return the running commands, the latest first, with what they use now."""
    return [live_command(store, run) for run in store.running(*filters)]


def live_command(store: Store, run: Run) -> LiveCommand:
    """Return a running command with what it uses now."""
    init = find_init(store.places.layer(run.run, 0, INIT))
    if init is None:
        return LiveCommand(run=run, memory=0, processes=0)  # it has not started yet, or has just ended
    processes = descendants(init)
    sizes = (read(f"/proc/{process}/statm").split() for process in processes)
    pages = sum(int(fields[1]) for fields in sizes if fields)  # a process that has ended has none
    return LiveCommand(run=run, memory=pages * os.sysconf("SC_PAGE_SIZE"), processes=len(processes))


def end_of_output(store: Store, run: Run, stream: str, limit: int) -> bytes:
    """Return at most this many bytes from the end of a running command's output, from the beginning of a line on."""
    try:
        with open(store.places.output(run.run, stream), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except FileNotFoundError:
        return b""  # nothing is printed yet
    return data if size <= limit else data.partition(b"\n")[2] or data


class WrittenPath(Value):
    """A path that a running command has written, or deleted if it `is_gone`."""

    path: str
    at: float
    is_gone: bool = False


def written_paths(store: Store, run: Run, limit: int) -> tuple[list[WrittenPath], bool]:
    """Return what a running command wrote last, the latest first, and True if there is more."""
    paths: list[WrittenPath] = []
    for number, root in enumerate(run.roots):
        above, name = os.path.split(store.places.layer(run.layer, number, "upper"))
        try:
            top = open_top(above)
        except FileNotFoundError:
            continue  # there is no layer yet, or the command has just ended
        with Closing(top):  # by descriptors, because the command may move directories
            for path, status in islice(walk_tree(top, name), _MAX_ENTRIES):
                if not stat.S_ISDIR(status.st_mode):
                    below = path.removeprefix(f"{name}/")
                    shown = below if number == 0 else f"{root}/{below}"
                    paths.append(WrittenPath(path=shown, at=status.st_mtime, is_gone=is_whiteout(status)))
    paths.sort(key=lambda each: (-each.at, each.path))
    return paths[:limit], len(paths) > limit


# ---- Runs that wait for a person.


def count_held_runs(store: Store) -> int:
    """Return how many runs hold something, in all projects whose directory is where it was."""
    return sum(_held_runs_by_project(store).values())


def _held_runs_by_project(store: Store) -> dict[int, int]:
    query = "SELECT project, count(*) FROM runs WHERE state = 'held' AND draft IS NULL GROUP BY project"
    rows = store.database.rows(query)
    return {project: count for project, count in rows if store.projects.is_in_place(project)}


def held_runs(store: Store, *, limit: int, before: int = 0) -> tuple[list[Run], int]:
    """Return a page of the runs that hold something, the latest first, and `before` for the next page, or 0."""
    projects = ", ".join(str(int(project)) for project in _held_runs_by_project(store))
    rows = store.database.rows(
        f"SELECT id, number FROM runs WHERE state = 'held' AND draft IS NULL AND project IN ({projects}) AND number < ?"
        " ORDER BY number DESC LIMIT ?",
        (before or 1 << 62, limit + 1),
    )
    runs = store.history.runs(among=[name for name, _ in rows[:limit]])
    return runs, rows[limit - 1][1] if len(rows) > limit else 0


class ReadRun(Value):
    """A run to be shown, with a page of the changes that it made or holds."""

    run: Run
    seen: str  # the `state_id` of the run before all this was read
    changes: tuple[Change, ...]
    next_page: tuple[int, int] | None
    total: int
    rule_lines: dict[str, str]  # lines of the configuration, by the reason that they give to changes


def read_run(store: Store, run: Run, *, limit: int, after: tuple[int, int] = (0, 0), only_waiting: bool) -> ReadRun:
    """Read a page of all that a run changed, or of what it holds, to be shown and decided on."""
    seen = state_id(store, run)
    run = store.history.find(run.run)  # read again, so that it is not older than `seen`
    changes, next_page = page_of_changes(store.database, run.run, after, limit=limit, waiting=only_waiting)
    if only_waiting:
        total = count_waiting(store.database, run.run)
    else:
        total = sum(store.history.count_changes([run.run]).get(run.run, {}).values())
    return ReadRun(
        run=run, seen=seen, changes=tuple(changes), next_page=next_page, total=total,
        rule_lines=_rule_lines(store, changes),
    )  # fmt: skip


def _rule_lines(store: Store, changes: Iterable[Change]) -> dict[str, str]:
    """Return for each of the person's rules that holds a change its line of the configuration, by the reason."""
    reasons = {change.reason for change in changes if change.reason.startswith(_OWN_RULE)}
    lines = configuration_text(store.places).split("\n") if reasons else []
    rule_lines = {}
    for reason in reasons:
        glob = reason.partition(": ")[2]
        number = next((at for at, line in enumerate(lines, 1) if glob in line and not line.startswith("#")), 0)
        if number:
            file_name = os.path.basename(configuration_path(store.places))
            rule_lines[reason] = f"{file_name}:{number}: {lines[number - 1].strip()}"
    return rule_lines


# ---- The history.


def search_runs(store: Store, what: Search, *, limit: int, before: int = 0) -> tuple[list[Run], int]:
    """Return a page of the runs that match a search, the latest first, and `before` for the next page, or 0."""
    names, before = search(store.database, store.places, what, limit=limit, before=before)
    return store.history.runs(among=names), before


# ---- What a person, or a program for them, does to a run.


class ChosenAct(Value):
    """What was chosen: an act, the paths or the whole run, and what identifies the version that was shown."""

    act: str
    paths: tuple[str, ...] = ()
    is_selection: bool = False  # paths could be chosen, so that no paths mean nothing, and not the whole run
    force: bool = False
    expected: str = ""  # the digest of what was shown
    hunks: tuple[int, ...] = ()
    content: str = ""
    seen: str = ""  # instead of a digest: the `state_id` of the run that was shown


def perform(store: Store, run: Run, choice: ChosenAct) -> Run:
    """Do what was chosen; return the run that did it, or the run that it was done to."""
    project = store.projects.open(run.project, register=False)
    here, force, act = run.project, choice.force, choice.act
    if choice.is_selection and not choice.paths:
        raise BadRequest("nothing was chosen: nothing was done", hint="choose at least one path, or all of the run")
    _refuse_if_changed(store, run, choice)
    if act in ("stop", "checkpoint"):
        return (checkpoint.stop if act == "stop" else checkpoint.checkpoint)(store, run)
    if act in ("undo", "redo"):
        return _undo_or_redo(store, project, run, choice)
    expected = _expected_digest(store, run, choice)
    if act == "apply":
        return decide.apply_held(store, project, run, choice.paths, here=here, force=force, expected=expected)
    if act == "discard":
        return decide.discard_held(store, project, run, choice.paths, here=here, expected=expected)
    if act not in ACTS or len(choice.paths) != 1:
        raise BadRequest(f"nothing can be done to a run by {act!r}", hint=f"one of: {', '.join(ACTS)}")
    if act == "hunks":
        if not choice.hunks:
            raise BadRequest("no piece was chosen: nothing was done", hint="choose at least one, or refuse the file")
        return decide.apply_hunks(
            store, project, run, choice.paths[0], set(choice.hunks), here=here, expected=choice.expected
        )
    marks = [line for line in choice.content.split("\n") if line.startswith((CONFLICT_MARKS[0], CONFLICT_MARKS[2]))]
    if marks:
        raise BadRequest(f"both versions are still there, after {marks[0]!r}", hint="keep one of them, or some of each")
    content = choice.content.encode()
    return decide.apply_edited(
        store, project, run, choice.paths[0], lambda _old, _new: content, here=here, expected=choice.expected
    )


def _undo_or_redo(store: Store, project: Project, run: Run, choice: ChosenAct) -> Run:
    """Undo a run, or redo what was undone of it; a redo may name the run itself or its undo."""
    if choice.seen:
        with store.lock_project(project.id):  # another process may be changing the run, and has ended then
            _refuse_if_changed(store, run, choice)
    here, force = run.project, choice.force
    if choice.act == "redo":
        return redo_command(store, project, run.run, paths=choice.paths, here=here, force=force)[0]
    if choice.paths:
        return undo(store, project, run, choice.paths, here=here, force=force)
    return undo_command(store, project, run, force=force)[0]


def state_id(store: Store, run: Run) -> str:
    """Return what identifies the state of a run: it changes when anything more is recorded of the run.

    Read it before what is shown, so that an act is refused if something was recorded between the two. A digest of all
    that a run holds would take seconds for a run that holds much.
    """
    ((last,),) = store.database.rows("SELECT coalesce(max(n), 0) FROM events WHERE run = ?", (run.run,))
    return str(last)


def _expected_digest(store: Store, run: Run, choice: ChosenAct) -> str:
    """Return the digest of what the choice means, if all that the run holds is still what was shown."""
    if not choice.seen or choice.act not in ("apply", "discard"):
        return choice.expected
    if not run.changed:
        return "nothing"  # no digest: it was shown as empty, and is refused if it holds something now
    digest = decide.shown_digest(run, choice.paths, here=run.project, into_project=choice.act == "apply")
    _refuse_if_changed(store, run, choice)  # again, because only the digest has read what the run holds
    return digest


def _refuse_if_changed(store: Store, run: Run, choice: ChosenAct) -> None:
    """Raise ChangedMeanwhile if something happened to the run since it was shown, as far as the choice says when."""
    if not choice.seen or state_id(store, run) == choice.seen:
        return
    if choice.act in ("apply", "discard"):
        raise decide.changed_since_shown(run)
    raise ChangedMeanwhile(
        f"run {run.name} has changed since it was shown: nothing was done",
        hint=f"fumehood show {run.name}, then decide again",
    )


# ---- Questions that were asked when nobody was there.


def missed_questions(store: Store, project: str = "") -> list[Missed]:
    """Return the questions that nobody answered and that would still be asked, the latest first.

    Without a project, of all projects.
    """

    @cache  # a project may have many such questions, and views look twice a second
    def policy_of(path: str) -> Policy:
        project = store.projects.open(path, register=False)
        return add_granted_access(store.policy_of(project), store.grants.allowed(project.path, ""))

    return [each for each in store.grants.missed(project) if not _is_allowed(store, each, policy_of)]


def _is_allowed(store: Store, missed: Missed, policy_of: Callable[[str], Policy]) -> bool:
    """Return True if a person need not be asked for this any more."""
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
    wants_all = hosts == (EVERY_HOST,)
    decision = decide_network(FULL, (), policy) if wants_all else decide_network(NONE, hosts, policy)
    return not decision.to_ask
