"""Commands that decide what becomes of what a run changed: apply, discard, undo, redo, review, watch.

`watch` draws what runs, what is asked and what waits on the terminal; `review` begins with what waits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from fumehood.core import changes as c
from fumehood.core.questions import held_item, waiting
from fumehood.core.report import REDO, Run, how_many, pick_fields, printable
from fumehood.core.wording import MOST_OF_A_NAME, Item, by_kind, listed, quoted, wrapped
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, lacking
from fumehood.faces.cli.commands import REACH_OPTIONS, RUN, Context, argument, command, flag, option, optional_run
from fumehood.faces.cli.log import print_difference
from fumehood.faces.cli.output import Paint, working_dir
from fumehood.faces.cli.run_text import absolute_path, apply_command, headline, print_run, run_label
from fumehood.faces.cli.screen import Keys, columns, ticking, turn, wait_for_quiet
from fumehood.service import decide
from fumehood.service.differences import each_difference
from fumehood.service.opened import upkeep
from fumehood.service.overview import redo_command, redo_session, undo_command, undo_session
from fumehood.service.session import project_of
from fumehood.service.settle import chosen
from fumehood.service.undo import last_to_undo, to_redo, undo
from fumehood.store.history import CHECKPOINT, LAST

_TERMINAL_EXTRA = ("textual", "rich")  # packages that the extra `terminal` brings


@command(
    "watch", "show what runs, what is asked and what waits on the terminal, as it happens",
    "fumehood watch\nfumehood watch --here", flag("--here", "what runs and ran in this project only"),
)  # fmt: skip
def _watch(context: Context) -> int:
    if not _is_drawable():
        raise BadRequest("watch needs a terminal that can be drawn on", hint="fumehood status tells the same in lines")
    try:
        _draw(context, project=context.project.id if context.options.here else None)
    except ModuleNotFoundError as error:
        raise lacking(error, "watch", "terminal", _TERMINAL_EXTRA) from error
    return 0


def _is_drawable() -> bool:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return is_terminal and is_unicode and os.environ.get("TERM", "dumb") != "dumb"


def _draw(context: Context, **options: Any) -> None:
    """Draw the views until the person leaves; raises ModuleNotFoundError where the extra that does is not there."""
    from fumehood.faces.terminal.app import watch

    with turn(0) as mine:
        mine.wait()  # nobody else asks on this terminal meanwhile
        watch(context.store, **options)


_LOOKED_AT = 20  # runs, for a checkpoint of one that was taken back
_PATHS = argument("paths", nargs="*", default=(), metavar="PATH", help="only these, and what is in them")


# Without a run, the last one is meant; one that is named can be told from none.
_BACK_AND_FORTH = (
    optional_run(None), _PATHS,
    flag("--force", "also bring back what was changed since; what is there now is saved first"),
    option("--session", "NAME", "all runs of this session at once, or none"), *REACH_OPTIONS,
)  # fmt: skip


@command(
    "apply", "apply the changes that a run holds",
    "fumehood apply last\nfumehood apply last Makefile\nfumehood apply last notes.txt --force",
    RUN, _PATHS,
    flag("--force", "also apply what was changed in the project after the run began; what is there now is saved first"),
)  # fmt: skip
def _apply(context: Context) -> int:
    options, run = context.options, context.run(context.options.run)
    with ticking("applying", options):
        project = context.project_of(run)
        done = decide.apply_held(context.store, project, run, options.paths, here=working_dir(), force=options.force)
    _tell_decided(context, done)
    # As those do who merge: what was asked for is not all done.
    return int(any(change.verdict in c.WAITING for change in chosen(done, options.paths, here=working_dir())))


def _tell_decided(context: Context, done: Run) -> int:
    def show() -> None:
        # Which run it was: `last` may be another than the one that the person had looked at.
        print(f"run {done.name}: {quoted(done.command, MOST_OF_A_NAME)}")
        print_run(done, sys.stdout)

    return _say(context, done, show)


@command(
    "discard", "throw away the changes that a run holds",
    "fumehood discard last\nfumehood discard last .git/hooks", RUN, _PATHS,
)  # fmt: skip
def _discard(context: Context) -> int:
    run = context.run(context.options.run)
    with ticking("throwing away", context.options):
        done = decide.discard_held(
            context.store, context.project_of(run), run, context.options.paths, here=working_dir()
        )
    return _tell_decided(context, done)


@command(
    "undo", "undo a run: bring back what was there before it (default: the last run that is not undone yet)",
    "fumehood undo\nfumehood undo 214\nfumehood undo last src/main.py", *_BACK_AND_FORTH,
)  # fmt: skip
def _undo(context: Context) -> int:
    options, store = context.options, context.store
    if options.session is not None:
        return _whole_session(context, undo_session)
    is_last, by = options.run in (None, LAST), options.only_session or ""
    is_whole = not is_last and not options.paths
    run = last_to_undo(store, *context.reaches_for(LAST)) if is_last else context.run(options.run)
    with ticking("taking back", options):
        project, force = context.project_of(run), options.force
        if is_whole:
            backs = undo_command(store, project, run, by=by, force=force)
        else:
            backs = [undo(store, project, run, options.paths, here=working_dir(), force=force, by=by)]

    def tell_what_stands() -> None:
        # Those of a command come right after it.
        latest = islice(store.history.not_taken_back(*context.reaches_for(LAST)), _LOOKED_AT)
        earlier = next((each for each in latest if each.act == CHECKPOINT and each.of == run.run), None)
        if earlier is not None:
            print(f"  what was settled while it ran stands; to take that back: fumehood undo {earlier.name}")
        names = set(store.history.held_runs(project.id)) if is_last else set()
        for each in store.history.runs(*context.reaches_for(LAST), among=names):
            if each.number > run.number:
                print(f"  run {each.name} came later, and waits; to throw it away: fumehood discard {each.name}")

    return _say_taken_back(context, backs, None if is_whole else tell_what_stands)


@command(
    "redo", "redo what was undone (default: the last undo)",
    "fumehood redo\nfumehood redo 214\nfumehood redo last src/main.py", *_BACK_AND_FORTH,
)  # fmt: skip
def _redo(context: Context) -> int:
    options = context.options
    if options.session is not None:
        return _whole_session(context, redo_session)
    name, by = LAST if options.run is None else options.run, options.only_session or ""
    reaches = context.reaches_for(name)
    run = to_redo(context.store, name, *reaches) if name == LAST else context.run(name)
    with ticking("bringing back", options):
        backs = redo_command(
            context.store, context.project_of(run), name, *reaches, paths=options.paths, here=working_dir(), by=by,
            force=options.force,
        )  # fmt: skip
    return _say_taken_back(context, backs)


def _say_taken_back(context: Context, backs: Sequence[Run], tell_more: Callable[[], None] | None = None) -> int:
    """Tell what was taken back, or brought back: a run, and what was settled while it ran."""
    first, *others = backs
    if first.of is None:  # what waited in a draft was thrown away
        return _tell_decided(context, first)

    def show() -> None:
        originals = [_acted_on(context, back) for back in backs]
        # What was settled while a command ran goes with it again.
        command = next((run.name for run in originals if run.act == "run"), "") if others else ""
        for back, run in zip(backs, originals, strict=True):
            _tell_undo(back, run, command)
        if tell_more is not None:
            tell_more()

    return _say(context, first, show, **({"also": [back.as_dict() for back in others]} if others else {}))


def _say(context: Context, done: Run, show: Callable[[], None], **more: object) -> int:
    """Tell what was done, and `more` as JSON, then do what can wait until that is told."""
    context.print_result(lambda: {**done.as_dict(), **more}, show)
    sys.stdout.flush()
    upkeep(context.store, context.project_of(done).id)
    return 0


def _whole_session(context: Context, act: Callable[..., list[Run]]) -> int:
    options, name = context.options, context.options.session
    if options.run is not None or options.paths:
        raise BadRequest("--session means all runs of a session, so a run or a path can't be named", hint="choose one")
    path, reach = project_of(context.store, name), context.reach
    is_in_reach = name in (reach.sessions or (name,)) and (reach.project is None or path == context.project.path)
    if path is None or not is_in_reach:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    with ticking("going through the session", options):
        project = context.store.projects.open(path)
        backs = act(context.store, project, name, by=options.only_session or "", force=options.force)

    def lines() -> Iterator[str]:
        yield from (f"fumehood: run {_acted_on(context, back).name}: {headline(back)}" for back in backs)
        yield f"  {_way_back(backs[-1], f'--session {printable(name)}')}"

    return context.print_result(lambda: {"runs": [back.as_dict() for back in backs]}, lines())


def _acted_on(context: Context, back: Run) -> Run:
    """Return the run that was taken back, or brought back: a redo undoes an undo."""
    run = context.store.history.find(back.of or "")
    return context.store.history.find(run.of) if back.command.startswith(f"{REDO} ") and run.of else run


def _tell_undo(back: Run, run: Run, whole: str = "") -> None:
    """Tell what was taken back, or brought back, of a run; `whole` names all that went with it."""
    print_run(back, sys.stdout)
    held = len(waiting(run))
    if held and run.state != "held":
        print(f"  {how_many(held, 'change')} that it held: no longer waiting")
    elif held and back.command.startswith(f"{REDO} "):
        print(f"  {how_many(held, 'change')} that it holds: waiting again")
    # A run of another project is named: what is the last undo here is another one.
    is_elsewhere = run.name == run.run and not back.command.startswith(f"{REDO} ")
    print(f"  that was run {run.name}; {_way_back(back, whole or (run.name if is_elsewhere else ''))}")


def _way_back(back: Run, whole: str) -> str:
    if back.command.startswith(f"{REDO} "):
        # By its name: the last run that stands may be another one than was brought back.
        return f"to take it back again: fumehood undo {whole or back.name}"
    return f"to have it back: fumehood redo {whole}".rstrip()


_ONE, _ALL = "[a]pply  [d]iscard  [s]kip", "the whole run: [A]pply  [D]iscard   [q]uit"
_CONFLICT = "[f]orce: take the run's version, and save yours  [d]iscard: keep yours  [s]kip"
_MOST_CHANGED = 3  # times that a person is shown anew what changes while they look
_END = "q\x03\x04\x1b"


@command(
    "review", "go through what is held, change by change", "fumehood review",
    optional_run(""), flag("--lines", "ask line by line, also where the views can be drawn"),
)  # fmt: skip
def _review(context: Context) -> int:
    """Without a terminal, tell what waits; with one, ask for each."""
    runs = _held(context)
    if context.as_json:

        def fields(run: Run) -> dict[str, Any]:
            differences = each_difference(context.store, run, [absolute_path(run, change) for change in _waiting(run)])
            texts = {(each.root, each.path): each.text for each in differences}
            changes = [
                {**each.fields(), "flags": list(each.flags), "diff": texts.get((each.root, each.path), "")}
                for each in run.changes if each.verdict in c.WAITING
            ]  # fmt: skip
            return {**pick_fields(run, "run number command started_at reason"), "changes": changes}

        return context.print_result({"runs": list(map(fields, runs))}, ())
    if not runs:
        print("nothing is held")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        for run in runs:
            print(_title(run))
            for change in _waiting(run):
                _say_change(context, run, change)
            print(f"{apply_command(run)}   or   fumehood discard {run.name}\n")
        return 0
    if runs and not context.options.lines and _is_drawable():

        def still_held() -> list[Run]:
            """Return as they are now those that hold something, and what else is held by then."""
            if context.options.run:
                now = context.store.history.runs(among=[run.run for run in runs])
                return [run for run in now if run.state == "held"]
            return _held(context)

        try:
            _draw(context, view="waiting", project=context.project.id, held=still_held)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in _TERMINAL_EXTRA:
                raise  # else the person is asked line by line
        else:
            return 0
    for run in runs:
        if not _go_through(context, run):
            break
    upkeep(context.store, context.project.id)
    return 0


def _held(context: Context) -> list[Run]:
    """Return the runs to be looked at, the earliest first, for later ones may build on it."""
    if context.options.run:
        run = context.run(context.options.run)
        if run.state != "held":
            raise BadRequest(f"run {run.name} holds nothing: it is {run.state}", hint=f"fumehood show {run.name}")
        return [run]
    return [context.store.history.find(name) for name in reversed(context.store.history.held_runs(context.project.id))]


def _waiting(run: Run) -> list[c.Change]:
    """Return the changes to be decided: what lies in a directory that waits is decided with it."""
    held = waiting(run)
    tops = {(change.root, change.path) for change in held if change.within is None}
    return [change for change in held if change.within is None or (change.root, change.within) not in tops]


def _title(run: Run) -> str:
    return f"{Paint()(run_label(run), 'bold')}  {quoted(run.command)}"


def _conflicts(run: Run) -> set[tuple[int, str]]:
    return {(change.root, change.path) for change in run.changed if change.verdict == c.CONFLICT}


def _lies_in(place: tuple[int, str], change: c.Change) -> bool:
    """Return True for the place of a change, and for one in the tree that it moves."""
    root, path = place
    is_inside = path.startswith(f"{change.path}/") and not c.is_mode_alone(change)
    return root == change.root and (path == change.path or is_inside)


def _go_through(context: Context, run: Run) -> bool:
    """Ask for every change of one run; returns whether to go on with the next."""
    run = context.store.history.find(run.run)  # as it is now: the person took their time for those before it
    print(_title(run))
    _say_all(run)
    seen: set[tuple[int, str]] = set()
    times_changed = 0
    while left := [change for change in _waiting(run) if (change.root, change.path) not in seen]:
        change = left[0]
        seen.add((change.root, change.path))
        conflicts = _conflicts(run)
        with turn(0) as mine:
            mine.wait()
            _say_change(context, run, change)
            # What can't stay behind when this change is applied, and so goes with it.
            affected = decide.meant(run, [absolute_path(run, change)])
            others = [each for each in affected if not _lies_in((each.root, each.path), change)]
            if others:
                print("applying it also applies:")
                _say_items([held_item(run, each) for each in others], run)
            key = _key(is_conflict=any(_lies_in(each, change) for each in conflicts))
        if key in _END:
            return False
        if key == "s":
            continue
        try:
            paths = [] if key in "AD" else [absolute_path(run, change)]
            # The key is for what was shown: another process may have changed what the run holds since.
            expected = decide.shown_digest(run, paths, forth=key not in "dD")
            about = context.store, context.project_of(run), run, paths
            if key in "dD":
                run = decide.discard_held(*about, expected=expected)
            else:
                run = decide.apply_held(*about, force=key == "f", expected=expected)
        except FumehoodError as error:
            print(f"{printable(error.message)}\n  {printable(error.hint)}")
            run = context.store.history.find(run.run)
            times_changed += isinstance(error, ChangedMeanwhile)
            if isinstance(error, ChangedMeanwhile) and times_changed <= _MOST_CHANGED:
                seen.discard((change.root, change.path))
                _say_all(run)
        else:
            print(headline(run))
            # What turned out to be a conflict is asked for once more, as that.
            seen -= _conflicts(run) - conflicts
    return True


def _say_all(run: Run) -> None:
    """Name all that one key applies or throws away with the whole run, what is dangerous first."""
    items = [held_item(run, change) for change in waiting(run)]
    if len(items) > 1:
        print(f"the whole run holds {by_kind(items, are_all=True)}:")
        _say_items(items, run)


def _say_items(items: Sequence[Item], run: Run) -> None:
    for each in listed(items, seen_by=f"fumehood show {run.name}"):
        for line in wrapped(each, columns(1) - 2):
            print(f"  {line}")


def _say_change(context: Context, run: Run, change: c.Change) -> None:
    colour = Paint()
    place = quoted(change.path if change.root == 0 else absolute_path(run, change))
    why = quoted(change.reason, MOST_OF_A_NAME)
    print(f"{colour(change.verdict, 'yellow')} {change.change} {colour(place, 'bold')}: {why}")
    for each in each_difference(context.store, run, [absolute_path(run, change)]):
        print_difference(each.text)
    sys.stdout.flush()


def _key(*, is_conflict: bool) -> str:
    """Wait for a key that means something."""
    allowed_keys = ("f" if is_conflict else "a") + "dsAD" + _END
    with Keys(0):
        wait_for_quiet(0)
        # Only now: what is typed from here on is an answer, and is not thrown away.
        sys.stdout.write(f"{_CONFLICT if is_conflict else _ONE}   {_ALL} > ")
        sys.stdout.flush()
        while (key := os.read(0, 1).decode("latin-1") or "q") not in allowed_keys:
            pass
    print(key if key.isalpha() else "quit")
    return key
