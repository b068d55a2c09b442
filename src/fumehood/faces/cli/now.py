"""Commands about what runs now: ps, stop, checkpoint."""

from __future__ import annotations

import sys
import time

from fumehood.core.report import printable
from fumehood.core.report import short as brief
from fumehood.core.wording import elapsed
from fumehood.faces.cli.commands import Context, add_reach, add_run
from fumehood.faces.cli.look import line_of, numbered, tell_run
from fumehood.service import now
from fumehood.service.settle import FAILED
from fumehood.store.history import Reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fumehood.core.report import Run
    from fumehood.faces.cli.commands import Add


def add_commands(add: Add) -> None:
    """Make `ps`, `stop` and `checkpoint` known."""
    shows = add("ps", "show what runs now", _ps, "  fumehood ps\n  fumehood ps --all")
    shows.add_argument("--all", action="store_true", help="in every project")
    ends = add("stop", "end a command that runs; what it wrote is held", _stop, "  fumehood stop last")
    add_run(ends)
    settles = add(
        "checkpoint", "settle what a command that runs has finished writing; it goes on", _checkpoint,
        "  fumehood checkpoint last",
    )  # fmt: skip
    add_run(settles)
    for command in (shows, ends, settles):
        add_reach(command)


def _ps(context: Context) -> int:
    reach = Reach() if context.options.all else Reach(project=context.project.id)
    runs = now.running(context.store, context.reach, reach)

    def show() -> None:
        for run in runs:
            line = line_of(run, printable)
            where = f"  {printable(run.project)}" if context.options.all else ""
            since = elapsed(time.time() - run.started_at)
            print(f"{numbered(run):5}  {since:>8}  {brief(run.command)}{'  ' if line else ''}{line}{where}")
        if not runs:
            print("nothing runs")

    return context.say({"runs": [_as_object(run) for run in runs]}, show)


def _as_object(run: Run) -> dict[str, Any]:
    return {
        "run": run.run, "number": run.number, "project": run.project, "command": run.command, "cwd": run.cwd,
        "session": run.session, "started_at": run.started_at, "network": run.network,
    }  # fmt: skip


def _stop(context: Context) -> int:
    run = now.stop(context.store, context.run(context.options.run))
    return context.say(run.as_dict, lambda: tell_run(run, sys.stdout))


def _checkpoint(context: Context) -> int:
    run = now.checkpoint(context.store, context.run(context.options.run))

    def show() -> None:
        if not run.found:
            print(f"fumehood: nothing was settled{f': {printable(run.reason)}' if run.reason else ''}")
        tell_run(run, sys.stdout)

    context.say(run.as_dict, show)
    return 125 if run.state == FAILED else 0
