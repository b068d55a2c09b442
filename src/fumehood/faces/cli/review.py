"""Commands that decide about the changes of a run: apply, discard, undo, redo, review, watch.

`watch` draws four views on the terminal: what runs, open questions, what waits, the history. `review` starts with the
view of what waits; if views can't be drawn, it asks line by line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from fumehood.core import changes as c
from fumehood.core.questions import changes_waiting, held_item
from fumehood.core.report import REDO, Run, how_many, pick_fields, printable
from fumehood.core.wording import MOST_OF_A_NAME, Item, counts_in_words, item_lines, quote, wrap
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, missing_package_error
from fumehood.faces.cli.commands import RUN, RUN_FILTER_OPTIONS, Context, argument, command, flag, option, optional_run
from fumehood.faces.cli.log import print_difference
from fumehood.faces.cli.output import Paint, working_dir
from fumehood.faces.cli.run_text import absolute_path, apply_command, headline, print_run, run_label
from fumehood.faces.cli.screen import Lines, columns, show_progress, terminal_turn
from fumehood.service import decide
from fumehood.service.differences import each_difference
from fumehood.service.opened import upkeep
from fumehood.service.session import project_of
from fumehood.service.settle import changes_at
from fumehood.service.undo import last_to_undo, to_redo, undo
from fumehood.service.undo_groups import redo_command, redo_session, undo_command, undo_session
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
        raise missing_package_error(error, "watch", "terminal", _TERMINAL_EXTRA) from error
    return 0


def _is_drawable() -> bool:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return is_terminal and is_unicode and os.environ.get("TERM", "dumb") != "dumb"


def _draw(context: Context, **options: Any) -> None:
    """Draw the views until the person leaves; raises ModuleNotFoundError if the extra `terminal` is not installed."""
    from fumehood.faces.terminal.app import watch

    with terminal_turn(0) as own_turn:
        own_turn.wait()  # until no other process asks a question on this terminal
        watch(context.store, **options)


_MAX_SEARCHED = 20  # latest runs that are searched for a checkpoint of the run that was undone
_PATHS = argument("paths", nargs="*", default=(), metavar="PATH", help="only these, and what is in them")


# The default run is None, not "last", to know whether the person named one.
_UNDO_ARGUMENTS = (
    optional_run(None), _PATHS,
    flag("--force", "also bring back what was changed since; what is there now is saved first"),
    option("--session", "NAME", "all runs of this session at once, or none"), *RUN_FILTER_OPTIONS,
)  # fmt: skip


@command(
    "apply", "apply the changes that a run holds",
    "fumehood apply last\nfumehood apply last Makefile\nfumehood apply last notes.txt --force",
    RUN, _PATHS,
    flag("--force", "also apply what was changed in the project after the run began; what is there now is saved first"),
)  # fmt: skip
def _apply(context: Context) -> int:
    options, run = context.options, context.run(context.options.run)
    with show_progress("applying", options):
        project = context.project_of(run)
        result = decide.apply_held(context.store, project, run, options.paths, here=working_dir(), force=options.force)
    _report_decision(context, result)
    # 1 if something still waits, as `git merge` exits with 1 on a conflict.
    return int(any(change.verdict in c.WAITING for change in changes_at(result, options.paths, here=working_dir())))


def _report_decision(context: Context, result: Run) -> int:
    def show() -> None:
        # Name the run: `last` may be another one than the person has looked at.
        print(f"run {result.name}: {quote(result.command, MOST_OF_A_NAME)}")
        print_run(result, sys.stdout)

    return _report_and_clean_up(context, result, show)


@command(
    "discard", "throw away the changes that a run holds",
    "fumehood discard last\nfumehood discard last .git/hooks", RUN, _PATHS,
)  # fmt: skip
def _discard(context: Context) -> int:
    run = context.run(context.options.run)
    with show_progress("throwing away", context.options):
        result = decide.discard_held(
            context.store, context.project_of(run), run, context.options.paths, here=working_dir()
        )
    return _report_decision(context, result)


@command(
    "undo", "undo a run: bring back what was there before it (default: the last run that is not undone yet)",
    "fumehood undo\nfumehood undo 214\nfumehood undo last src/main.py", *_UNDO_ARGUMENTS,
)  # fmt: skip
def _undo(context: Context) -> int:
    options, store = context.options, context.store
    if options.session is not None:
        return _act_on_session(context, undo_session)
    is_last, by = options.run in (None, LAST), options.only_session or ""
    is_whole = not is_last and not options.paths
    run = last_to_undo(store, *context.run_filters(LAST)) if is_last else context.run(options.run)
    with show_progress("taking back", options):
        project, force = context.project_of(run), options.force
        if is_whole:
            undo_runs = undo_command(store, project, run, by=by, force=force)
        else:
            undo_runs = [undo(store, project, run, options.paths, here=working_dir(), force=force, by=by)]

    def print_what_remains() -> None:
        # A command's checkpoints come right after it.
        latest = islice(store.history.not_taken_back(*context.run_filters(LAST)), _MAX_SEARCHED)
        earlier = next((each for each in latest if each.act == CHECKPOINT and each.of == run.run), None)
        if earlier is not None:
            print(f"  what was applied while it ran is still there; to undo that: fumehood undo {earlier.name}")
        names = set(store.history.held_runs(project.id)) if is_last else set()
        for each in store.history.runs(*context.run_filters(LAST), among=names):
            if each.number > run.number:
                print(f"  run {each.name} came later and is held; to throw it away: fumehood discard {each.name}")

    return _report_undone(context, undo_runs, None if is_whole else print_what_remains)


@command(
    "redo", "redo what was undone (default: the last undo)",
    "fumehood redo\nfumehood redo 214\nfumehood redo last src/main.py", *_UNDO_ARGUMENTS,
)  # fmt: skip
def _redo(context: Context) -> int:
    options = context.options
    if options.session is not None:
        return _act_on_session(context, redo_session)
    name, by = LAST if options.run is None else options.run, options.only_session or ""
    run_filters = context.run_filters(name)
    run = to_redo(context.store, name, *run_filters) if name == LAST else context.run(name)
    with show_progress("bringing back", options):
        undo_runs = redo_command(
            context.store, context.project_of(run), name, *run_filters, paths=options.paths, here=working_dir(), by=by,
            force=options.force,
        )  # fmt: skip
    return _report_undone(context, undo_runs)


def _report_undone(context: Context, undo_runs: Sequence[Run], print_more: Callable[[], None] | None = None) -> int:
    """Report an undo or redo: of a run, and of the checkpoints that were made while it ran."""
    first, *others = undo_runs
    if first.of is None:  # the run was held in a draft, and was thrown away
        return _report_decision(context, first)

    def show() -> None:
        originals = [_find_target(context, undo_run) for undo_run in undo_runs]
        # With checkpoints, the next redo or undo must name the command, so that they go with it again.
        command = next((run.name for run in originals if run.act == "run"), "") if others else ""
        for undo_run, run in zip(undo_runs, originals, strict=True):
            _print_undone(undo_run, run, command)
        if print_more is not None:
            print_more()

    also = {"also": [undo_run.as_dict() for undo_run in others]} if others else {}
    return _report_and_clean_up(context, first, show, **also)


def _report_and_clean_up(context: Context, result: Run, show: Callable[[], None], **more: object) -> int:
    """Print a result (`more` has further fields of its JSON), then do the upkeep, which can wait until then."""
    context.print_result(lambda: {**result.as_dict(), **more}, show)
    sys.stdout.flush()
    upkeep(context.store, context.project_of(result).id)
    return 0


def _act_on_session(context: Context, act: Callable[..., list[Run]]) -> int:
    options, name = context.options, context.options.session
    if options.run is not None or options.paths:
        raise BadRequest("--session means all runs of a session, so a run or a path can't be named", hint="choose one")
    path, run_filter = project_of(context.store, name), context.run_filter
    is_allowed = name in (run_filter.sessions or (name,)) and (
        run_filter.project is None or path == context.project.path
    )
    if path is None or not is_allowed:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    with show_progress("going through the session", options):
        project = context.store.projects.open(path)
        undo_runs = act(context.store, project, name, by=options.only_session or "", force=options.force)

    def lines() -> Iterator[str]:
        yield from (f"fumehood: run {_find_target(context, each).name}: {headline(each)}" for each in undo_runs)
        yield f"  {_reverse_hint(undo_runs[-1], f'--session {printable(name)}')}"

    return context.print_result(lambda: {"runs": [undo_run.as_dict() for undo_run in undo_runs]}, lines())


def _find_target(context: Context, undo_run: Run) -> Run:
    """Return the run that an undo or a redo is about; a redo is recorded as the undo of an undo."""
    run = context.store.history.find(undo_run.of or "")
    return context.store.history.find(run.of) if undo_run.command.startswith(f"{REDO} ") and run.of else run


def _print_undone(undo_run: Run, run: Run, target: str = "") -> None:
    """Print an undo or redo of a run; `target` is what the command that reverses it must name, if not the run."""
    print_run(undo_run, sys.stdout)
    held = len(changes_waiting(run))
    if held and run.state != "held":
        print(f"  {how_many(held, 'change')} that it held: no longer waiting")
    elif held and undo_run.command.startswith(f"{REDO} "):
        print(f"  {how_many(held, 'change')} that it holds: waiting again")
    # A run of another project must be named: the last undo of this project is another one.
    is_elsewhere = run.name == run.run and not undo_run.command.startswith(f"{REDO} ")
    print(f"  that was run {run.name}; {_reverse_hint(undo_run, target or (run.name if is_elsewhere else ''))}")


def _reverse_hint(undo_run: Run, target: str) -> str:
    if undo_run.command.startswith(f"{REDO} "):
        # It must be named: the last run in force may be another one.
        return f"to undo it again: fumehood undo {target or undo_run.name}"
    return f"to redo it: fumehood redo {target}".rstrip()


_CHANGE_WORDS, _RUN_WORDS = "[apply]  [discard]  [skip]", "the whole run: [apply all]  [discard all]   [quit]"
_CONFLICT_WORDS = "[force]: take the run's version, and save yours  [discard]: keep yours  [skip]"
_MAX_CHANGED = 3  # times that a person is asked again because the run has changed meanwhile


@command(
    "review", "go through what is held, change by change", "fumehood review",
    optional_run(""), flag("--lines", "ask line by line, also where the views can be drawn"),
)  # fmt: skip
def _review(context: Context) -> int:
    """With a terminal, ask about each change that waits; without one, only list them."""
    runs = _find_held_runs(context)
    if context.as_json:

        def fields(run: Run) -> dict[str, Any]:
            paths = [absolute_path(run, change) for change in _changes_to_decide(run)]
            differences = each_difference(context.store, run, paths)
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
            print(_run_title(run))
            for change in _changes_to_decide(run):
                _print_change(context, run, change)
            print(f"{apply_command(run)}   or   fumehood discard {run.name}\n")
        return 0
    if runs and not context.options.lines and _is_drawable():

        def still_held() -> list[Run]:
            """Return the runs that hold something now: of the named run, else of the whole project."""
            if context.options.run:
                now = context.store.history.runs(among=[run.run for run in runs])
                return [run for run in now if run.state == "held"]
            return _find_held_runs(context)

        try:
            _draw(context, view="waiting", project=context.project.id, held=still_held)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in _TERMINAL_EXTRA:
                raise  # any other module is missing by mistake; without the extra, the person is asked line by line
        else:
            return 0
    for run in runs:
        if not _review_run(context, run):
            break
    upkeep(context.store, context.project.id)
    return 0


def _find_held_runs(context: Context) -> list[Run]:
    """Return the runs to review, the earliest first, because later ones may build on it."""
    if context.options.run:
        run = context.run(context.options.run)
        if run.state != "held":
            raise BadRequest(f"run {run.name} holds nothing: it is {run.state}", hint=f"fumehood show {run.name}")
        return [run]
    return [context.store.history.find(name) for name in reversed(context.store.history.held_runs(context.project.id))]


def _changes_to_decide(run: Run) -> list[c.Change]:
    """Return the changes to ask about: what is inside a directory that waits is decided with the directory."""
    held = changes_waiting(run)
    tops = {(change.root, change.path) for change in held if change.within is None}
    return [change for change in held if change.within is None or (change.root, change.within) not in tops]


def _run_title(run: Run) -> str:
    return f"{Paint()(run_label(run), 'bold')}  {quote(run.command)}"


def _conflict_paths(run: Run) -> set[tuple[int, str]]:
    return {(change.root, change.path) for change in run.changed if change.verdict == c.CONFLICT}


def _is_within(place: tuple[int, str], change: c.Change) -> bool:
    """Return True if a place (root and path) is that of a change, or inside the directory that it adds or deletes."""
    root, path = place
    is_inside = path.startswith(f"{change.path}/") and not c.is_directory_mode(change)
    return root == change.root and (path == change.path or is_inside)


def _review_run(context: Context, run: Run) -> bool:
    """Ask about every change of one run; returns False if the person quits."""
    run = context.store.history.find(run.run)  # read again: it may have changed while the person decided earlier runs
    print(_run_title(run))
    _print_all_items(run)
    seen: set[tuple[int, str]] = set()
    times_changed = 0
    while undecided := [change for change in _changes_to_decide(run) if (change.root, change.path) not in seen]:
        change = undecided[0]
        seen.add((change.root, change.path))
        conflicts = _conflict_paths(run)
        with terminal_turn(0) as own_turn:
            own_turn.wait()
            _print_change(context, run, change)
            # Changes that this one needs, and that are therefore applied with it.
            affected = decide.held_changes_at(run, [absolute_path(run, change)])
            companions = [each for each in affected if not _is_within((each.root, each.path), change)]
            if companions:
                print("applying it also applies:")
                _print_items([held_item(run, each) for each in companions], run)
            act, is_for_all = _ask_act(is_conflict=any(_is_within(each, change) for each in conflicts))
        if act == "quit":
            return False
        if act == "skip":
            continue
        try:
            paths = [] if is_for_all else [absolute_path(run, change)]
            # The answer holds only for what was shown: another process may have changed the run since.
            expected = decide.shown_digest(run, paths, into_project=act != "discard")
            arguments = context.store, context.project_of(run), run, paths
            if act == "discard":
                run = decide.discard_held(*arguments, expected=expected)
            else:
                run = decide.apply_held(*arguments, force=act == "force", expected=expected)
        except FumehoodError as error:
            print(f"{printable(error.message)}\n  {printable(error.hint)}")
            run = context.store.history.find(run.run)
            times_changed += isinstance(error, ChangedMeanwhile)
            if isinstance(error, ChangedMeanwhile) and times_changed <= _MAX_CHANGED:
                seen.discard((change.root, change.path))
                _print_all_items(run)
        else:
            print(headline(run))
            # Ask again about changes that have become conflicts.
            seen -= _conflict_paths(run) - conflicts
    return True


def _print_all_items(run: Run) -> None:
    """List everything that the words for the whole run apply or throw away, the dangerous first."""
    items = [held_item(run, change) for change in changes_waiting(run)]
    if len(items) > 1:
        print(f"the whole run holds {counts_in_words(items, are_all=True)}:")
        _print_items(items, run)


def _print_items(items: Sequence[Item], run: Run) -> None:
    for each in item_lines(items, seen_by=f"fumehood show {run.name}"):
        for line in wrap(each, columns(1) - 2):
            print(f"  {line}")


def _print_change(context: Context, run: Run, change: c.Change) -> None:
    paint = Paint()
    place = quote(change.path if change.root == 0 else absolute_path(run, change))
    why = quote(change.reason, MOST_OF_A_NAME)
    print(f"{paint(change.verdict, 'yellow')} {change.change} {paint(place, 'bold')}: {why}")
    for each in each_difference(context.store, run, [absolute_path(run, change)]):
        print_difference(each.text)
    sys.stdout.flush()


def _ask_act(*, is_conflict: bool) -> tuple[str, bool]:
    """Ask what to do with a change, or, where the second value is True, with the whole run; an empty line skips it."""
    words = {act: (act, False) for act in ("force" if is_conflict else "apply", "discard", "skip")}
    words |= {f"{act} all": (act, True) for act in ("apply", "discard")} | {"quit": ("quit", False)}
    prompt = f"{_CONFLICT_WORDS if is_conflict else _CHANGE_WORDS}   {_RUN_WORDS} > "
    sys.stdout.flush()
    with Lines(0, 1) as lines:
        return lines.ask(lambda: prompt, {**words, "": words["skip"]}, at_end=words["quit"]) or words["quit"]
