"""Commands that settle what a run left: apply, discard, undo."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_run
from fumehood.faces.cli.show import short, tell_run
from fumehood.service import decide
from fumehood.service.session import project_of, undo_session
from fumehood.service.undo import undo
from fumehood.service.upkeep import upkeep

if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.core.report import Run
    from fumehood.faces.cli.inspect import Add


def add_commands(add: Add) -> None:
    """Make these commands known."""
    add_run(add("apply", "apply what a run had to hold", _apply, "  fumehood apply last"))
    add_run(add("discard", "throw away what a run had to hold", _discard, "  fumehood discard last"))
    back = add("undo", "bring back what was there before a run", _undo, "  fumehood undo\n  fumehood undo 01J8ZQ")
    add_run(back, default="last")
    back.add_argument("--session", metavar="NAME", help="every run of this session: all of them, or none")


def _apply(context: Context) -> int:
    run = context.run(context.options.run)
    done = decide.apply_held(context.store, context.project_of(run), run)
    return _say(context, done, lambda: tell_run(done, sys.stdout))


def _discard(context: Context) -> int:
    run = context.run(context.options.run)
    done = decide.discard_held(context.store, context.project_of(run), run)
    return _say(context, done, lambda: tell_run(done, sys.stdout))


def _undo(context: Context) -> int:
    if context.options.session is not None:
        return _undo_session(context, context.options.session)
    run = context.run(context.options.run)
    back = undo(context.store, context.project_of(run), run)
    return _say(context, back, lambda: _tell_undo(back))


def _say(context: Context, done: Run, show: Callable[[], None]) -> int:
    """Tell what was done, then do what can wait until that is told."""
    code = context.say(done.as_dict(), show)
    sys.stdout.flush()
    upkeep(context.store, context.project_of(done).id)
    return code


def _undo_session(context: Context, name: str) -> int:
    path = project_of(context.store, name)
    if path is None:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    backs = undo_session(context.store, context.store.projects.open(path), name)

    def show() -> None:
        for back in backs:
            _tell_undo(back)

    return context.say([back.as_dict() for back in backs], show)


def _tell_undo(back: Run) -> None:
    tell_run(back, sys.stdout)
    sys.stdout.write(f"  to have it back: fumehood undo {short(back.run)}\n")
