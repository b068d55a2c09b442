"""`fumehood watch`: what runs, what is asked and what waits, drawn on the terminal; `review` begins with what waits."""

from __future__ import annotations

import os
import sys

from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context
from fumehood.faces.cli.output import lacking
from fumehood.faces.cli.prompt import turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.faces.cli.commands import Add

_EXTRA = ("textual", "rich")  # packages that the extra `terminal` brings


def add_commands(add: Add) -> None:
    """Make `watch` known."""
    about = "show what runs, what is asked and what waits on the terminal, as it happens"
    watch = add("watch", about, _watch, "  fumehood watch\n  fumehood watch --here")
    watch.add_argument("--here", action="store_true", help="what runs and ran in this project only")


def _watch(context: Context) -> int:
    if not _is_drawable():
        raise BadRequest("watch needs a terminal that can be drawn on", hint="fumehood status tells the same in lines")
    try:
        from fumehood.faces.terminal.app import watch
    except ModuleNotFoundError as error:
        raise lacking(error, "watch", "terminal", _EXTRA) from error
    with turn(0) as mine:
        mine.wait()  # nobody else asks on this terminal meanwhile
        watch(context.store, project=context.project.id if context.options.here else None)
    return 0


def drawn() -> Callable[..., None] | None:
    """Return what draws the views; None where that can't be, and a person is asked line by line."""
    if not _is_drawable():
        return None
    try:
        from fumehood.faces.terminal.app import watch
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        return None
    return watch


def _is_drawable() -> bool:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return is_terminal and is_unicode and os.environ.get("TERM", "dumb") != "dumb"
