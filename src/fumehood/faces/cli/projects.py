"""`fumehood projects`: every directory that Fumehood has a record of, wherever it is now."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import add_act
from fumehood.service.forget import forget, loss

if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Add, Context
    from fumehood.store.projects import Known


def add_commands(add: Add) -> None:
    """Make this command known."""
    command = add(
        "projects", "list the known projects, say where one has moved, or forget one", _projects,
        "  fumehood projects list\n  fumehood projects move ~/old/name ~/new/name\n  fumehood projects forget 3",
    )  # fmt: skip
    add_act(command, "list", "move", "forget")
    command.add_argument("which", nargs="?", metavar="PROJECT", help="its path, or its number in the list")
    command.add_argument("to", nargs="?", metavar="NEW", help="where it is now")
    command.add_argument("--yes", action="store_true", help="forget without asking")


def _projects(context: Context) -> int:
    options, projects = context.options, context.store.projects
    if options.what == "list":
        known = projects.known()
        return context.say({"projects": [each.fields() for each in known]}, lambda: _show(known))
    if not options.which or (options.what == "move" and not options.to):
        needed = "PROJECT NEW" if options.what == "move" else "PROJECT"
        raise BadRequest(f"projects {options.what} needs {needed}", hint="fumehood projects list shows them")
    which = projects.named(options.which)
    if options.what == "move":
        with context.store.alone(which.id):
            moved = projects.move(which, options.to)
        return context.say(moved.fields(), lambda: print(f"project {moved.id} is at {printable(moved.path)} now"))
    lost = loss(context.store, which)
    if not options.yes:
        _confirm(which, lost.told())
    forget(context.store, which)
    return context.say({"forgotten": which.fields(), **lost.fields()}, lambda: print(f"forgotten; {lost.told()}"))


def _show(known: list[Known]) -> None:
    if not known:
        sys.stdout.write("no project is known yet\n")
    for each in known:
        held = f", {each.held} held" if each.held else ""
        place = "" if each.place == "there" else f"  [{each.place}]"
        runs = "1 run" if each.runs == 1 else f"{each.runs} runs"
        sys.stdout.write(f"{each.id:4}  {printable(each.path)}  {runs}{held}{place}\n")


def _confirm(which: Known, lost: str) -> None:
    """Have the person at the terminal say yes; without one, nothing is forgotten."""
    if not (os.isatty(0) and os.isatty(2)):
        raise BadRequest(f"there is nobody to ask whether to forget {which.path}", hint=f"{lost}; --yes does it")
    sys.stderr.write(f"forget project {which.id}, {printable(which.path)}? {lost}. Its own files stay. [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadRequest("nothing was forgotten", hint="answer y, or give --yes")
