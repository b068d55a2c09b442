"""Commands that keep house: roots, doctor, clean."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.faces.cli import doctor
from fumehood.faces.cli.commands import Context, paint
from fumehood.service.clean import DAYS, clean
from fumehood.service.worktree import git_directory
from fumehood.store.config import policy_for

if TYPE_CHECKING:
    from fumehood.faces.cli.inspect import Add


def add_commands(add: Add) -> None:
    """Make these commands known."""
    roots = add(
        "roots", "list, add or remove directories that commands may write besides the project", _roots,
        "  fumehood roots list\n  fumehood roots add ../shared-library",
    )  # fmt: skip
    roots.add_argument("what", choices=("list", "add", "remove"), nargs="?", default="list")
    roots.add_argument("directory", nargs="?", metavar="DIR")
    add("doctor", "say what this host can do, what is missing, and how to mend it", _doctor, "  fumehood doctor")
    cleaning = add(
        "clean", "remove what is no longer needed, and say what that freed; what is held stays", _clean,
        "  fumehood clean\n  fumehood clean --days 7",
    )  # fmt: skip
    cleaning.add_argument(
        "--days", type=int, metavar="N",
        help="backups and outputs older than this go, and those runs can't be undone"
        f" (default: clean.keep_days of the configuration, else {DAYS})",
    )  # fmt: skip


def _roots(context: Context) -> int:
    project, options = context.project, context.options
    if options.what != "list" and not options.directory:
        from fumehood.errors import BadRequest

        raise BadRequest(f"roots {options.what} needs a directory", hint=f"fumehood roots {options.what} DIR")
    if options.what == "add":
        project = context.store.projects.add_root(context.store.projects.open(project.path), options.directory)
    elif options.what == "remove":
        project = context.store.projects.remove_root(project, options.directory)
    offered = git_directory(project.path)
    offered = None if offered in project.extra else offered

    def show() -> None:
        for root in project.roots:
            sys.stdout.write(f"{printable(root)}\n")
        if offered is not None:
            sys.stdout.write(
                f"a git work tree: to let commands commit, add its git directory:\n"
                f"  fumehood roots add {printable(offered)}\n"
            )

    return context.say({"roots": list(project.roots), "offered": [offered] if offered else []}, show)


def _doctor(context: Context) -> int:
    places = context.store.places
    return doctor.show(
        places.state, places.cache, as_json=context.as_json, colour=paint().on, out=sys.stdout
    )


def _clean(context: Context) -> int:
    wishes = policy_for(context.store.places, ()).clean
    days = wishes.keep_days if context.options.days is None else context.options.days
    freed = clean(context.store, days=days, backup_days=wishes.backup_days, budget=wishes.budget)
    return context.say(freed.fields(), lambda: print(freed.told()))
