"""Commands that settle what a run left: apply, discard, undo, redo."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fumehood.core.changes import WAITING
from fumehood.core.report import REDO
from fumehood.core.wording import MOST_OF_A_NAME, quoted
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_reach, add_run
from fumehood.faces.cli.show import short, tell_run
from fumehood.faces.cli.standing import here
from fumehood.service import decide
from fumehood.service.choose import chosen
from fumehood.service.session import project_of, redo_session, undo_session
from fumehood.service.undo import last_to_undo, to_redo, undo
from fumehood.service.upkeep import upkeep
from fumehood.store.history import LAST

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

    from fumehood.core.report import Run
    from fumehood.faces.cli.commands import Add


def add_commands(add: Add) -> None:
    """Make these commands known."""
    forth = add(
        "apply", "apply the changes that a run holds", _apply,
        "  fumehood apply last\n  fumehood apply last Makefile\n  fumehood apply last notes.txt --force",
    )
    add_run(forth)
    _add_paths(forth)
    _add_force(forth, "also apply what was changed in the project after the run began")
    away = add(
        "discard", "throw away the changes that a run holds", _discard,
        "  fumehood discard last\n  fumehood discard last .git/hooks",
    )  # fmt: skip
    add_run(away)
    _add_paths(away)
    back = add(
        "undo", "undo a run: bring back what was there before it (default: the last run that is not undone yet)",
        _undo, "  fumehood undo\n  fumehood undo 01J8ZQ\n  fumehood undo last src/main.py",
    )  # fmt: skip
    again = add(
        "redo", "redo what was undone (default: the last undo)", _redo,
        "  fumehood redo\n  fumehood redo 01J8ZQ",
    )  # fmt: skip
    for command in (back, again):
        add_run(command, default=LAST)
    _add_paths(back)
    for command in (back, again):
        _add_force(command, "also bring back what was changed since")
        command.add_argument("--session", metavar="NAME", help="all runs of this session at once, or none")
        add_reach(command)


def _add_paths(command: ArgumentParser) -> None:
    command.add_argument("paths", nargs="*", default=(), metavar="PATH", help="only these, and what is in them")


def _add_force(command: ArgumentParser, what: str) -> None:
    command.add_argument("--force", action="store_true", help=f"{what}; what is there now is saved first")


def _apply(context: Context) -> int:
    options = context.options
    run = context.run(options.run)
    done = decide.apply_held(
        context.store, context.project_of(run), run, options.paths, here=here(), force=options.force
    )
    code = _say(context, done, lambda: _tell_decided(done))
    # As those do who merge: what was asked for is not all done.
    left = any(change.verdict in WAITING for change in chosen(done, options.paths, here=here()))
    return 1 if left and not code else code


def _tell_decided(done: Run) -> None:
    """Tell which run it was: `last` may be another than the one that the person had looked at."""
    sys.stdout.write(f"run {short(done.run)}: {quoted(done.command, MOST_OF_A_NAME)}\n")
    tell_run(done, sys.stdout)


def _discard(context: Context) -> int:
    run = context.run(context.options.run)
    done = decide.discard_held(context.store, context.project_of(run), run, context.options.paths, here=here())
    return _say(context, done, lambda: _tell_decided(done))


def _undo(context: Context) -> int:
    options = context.options
    if options.session is not None:
        return _whole_session(context, options.session, undo_session)
    run = last_to_undo(context.store, *context.reaches(LAST)) if options.run == LAST else context.run(options.run)
    back = undo(
        context.store, context.project_of(run), run, options.paths, here=here(), force=options.force,
        by=options.only_session or "",
    )  # fmt: skip
    return _say(context, back, lambda: _tell_undo(back))


def _redo(context: Context) -> int:
    options = context.options
    if options.session is not None:
        return _whole_session(context, options.session, redo_session)
    run = to_redo(context.store, options.run, *context.reaches(options.run))
    forth = undo(
        context.store, context.project_of(run), run, force=options.force, by=options.only_session or ""
    )
    return _say(context, forth, lambda: _tell_undo(forth))


def _say(context: Context, done: Run, show: Callable[[], None]) -> int:
    """Tell what was done, then do what can wait until that is told."""
    code = context.say(done.as_dict(), show)
    sys.stdout.flush()
    upkeep(context.store, context.project_of(done).id)
    return code


def _whole_session(context: Context, name: str, act: Callable[..., list[Run]]) -> int:
    path, reach = project_of(context.store, name), context.reach
    is_in_reach = name in (reach.sessions or (name,)) and (reach.project is None or path == context.project.path)
    if path is None or not is_in_reach:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    backs = act(context.store, context.store.projects.open(path), name, by=context.options.only_session or "")

    def show() -> None:
        for back in backs:
            _tell_undo(back)

    return context.say([back.as_dict() for back in backs], show)


def _tell_undo(back: Run) -> None:
    tell_run(back, sys.stdout)
    is_redo = back.command.startswith(f"{REDO} ")
    again = "to take it back again: fumehood undo" if is_redo else "to have it back: fumehood redo"
    sys.stdout.write(f"  that was run {short(back.of or '')}; {again}\n")
