"""Commands that settle what a run left: apply, discard, undo."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fumehood.faces.cli.commands import Context, add_run
from fumehood.faces.cli.show import short, tell_run
from fumehood.service import decide
from fumehood.service.undo import undo

if TYPE_CHECKING:
    from fumehood.core.report import Run
    from fumehood.faces.cli.inspect import Add


def add_commands(add: Add) -> None:
    """Make these commands known."""
    add_run(add("apply", "apply what a run had to hold", _apply, "  fumehood apply last"))
    add_run(add("discard", "throw away what a run had to hold", _discard, "  fumehood discard last"))
    add_run(
        add("undo", "bring back what was there before a run", _undo, "  fumehood undo\n  fumehood undo 01J8ZQ"),
        default="last",
    )


def _apply(context: Context) -> int:
    run = context.run(context.options.run)
    done = decide.apply_held(context.store, context.project_of(run), run)
    return context.say(done.as_dict(), lambda: tell_run(done, sys.stdout))


def _discard(context: Context) -> int:
    run = context.run(context.options.run)
    done = decide.discard_held(context.store, context.project_of(run), run)
    return context.say(done.as_dict(), lambda: tell_run(done, sys.stdout))


def _undo(context: Context) -> int:
    run = context.run(context.options.run)
    back = undo(context.store, context.project_of(run), run)
    return context.say(back.as_dict(), lambda: _tell_undo(back))


def _tell_undo(back: Run) -> None:
    tell_run(back, sys.stdout)
    sys.stdout.write(f"  to have it back: fumehood undo {short(back.run)}\n")
