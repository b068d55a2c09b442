"""Commands about what commands may do: roots, grants, the playground."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_act
from fumehood.faces.cli.prompt import terminal
from fumehood.faces.cli.standing import whole_number
from fumehood.service import playground
from fumehood.service.clean import size_told
from fumehood.service.permission import Permissions
from fumehood.service.roots import add_root, offered, remove_root

if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Add
    from fumehood.store.grants import Grant


def add_commands(add: Add) -> None:
    """Make these commands known."""
    roots = add(
        "roots", "list, add or remove directories that commands may write besides the project", _roots,
        "  fumehood roots list\n  fumehood roots add ../shared-library",
    )  # fmt: skip
    add_act(roots, "list", "add", "remove")
    roots.add_argument("directory", nargs="?", metavar="DIR")
    grants = add(
        "grants", "list the answers that you chose to keep, or take one back", _grants,
        "  fumehood grants list\n  fumehood grants revoke 3",
    )  # fmt: skip
    add_act(grants, "list", "revoke")
    grants.add_argument("grant", nargs="?", type=whole_number(1), metavar="NUMBER")
    ground = add(
        "playground", "show where the agent's own directory is and how large it is, or empty it", _playground,
        "  fumehood playground path\n  fumehood playground size\n  fumehood playground clean",
    )  # fmt: skip
    add_act(ground, "path", "size", "clean")


def _roots(context: Context) -> int:
    project, options, store = context.project, context.options, context.store
    if options.what != "list" and not options.directory:
        raise BadRequest(f"roots {options.what} needs a directory", hint=f"fumehood roots {options.what} DIR")
    if options.what == "add":
        project = store.projects.open(project.path)
        permissions = Permissions(store.grants, terminal, patience_s=store.policy_of(project).ask_timeout)
        # Whoever types this at a terminal is the person; an agent that runs it is not.
        typed = os.isatty(0) and os.isatty(2) and permissions.are_answered
        project = add_root(store, project, options.directory, permissions, by_person=typed)
    elif options.what == "remove":
        project = remove_root(store, project, options.directory)
    more = offered(store, project)

    def show() -> None:
        for root in project.roots:
            sys.stdout.write(f"{printable(root)}\n")
        if more:
            sys.stdout.write("commands can't write these yet, a git directory or where a link leads; to let them:\n")
        for path in more:
            sys.stdout.write(f"  fumehood roots add {printable(path)}\n")

    return context.say({"roots": list(project.roots), "offered": more}, show)


def _grants(context: Context) -> int:
    grants = context.store.grants
    if context.options.what == "revoke":
        if context.options.grant is None:
            raise BadRequest("grants revoke needs a number", hint="fumehood grants list shows them")
        gone = grants.revoke(context.options.grant)
        return context.say(gone.fields(), lambda: print(f"revoked: {_told(gone)}"))
    kept = grants.all()

    def show() -> None:
        if not kept:
            sys.stdout.write("no answers are kept: you are asked whenever a permission is needed\n")
        for grant in kept:
            sys.stdout.write(f"{grant.id:4}  {_told(grant)}\n")

    return context.say([grant.fields() for grant in kept], show)


def _told(grant: Grant) -> str:
    when = time.strftime("%Y-%m-%d", time.localtime(grant.kept_at))
    return f"{grant.answer:5} {grant.what}: {printable(grant.target)} in {printable(grant.project)}, since {when}"


def _playground(context: Context) -> int:
    places, what = context.store.places, context.options.what
    if what == "clean":
        freed = playground.emptied(places)
        return context.say({"bytes": freed}, lambda: print(f"{size_told(freed)} freed"))
    path = playground.made(places)
    if what == "path":
        return context.say({"path": path}, lambda: print(f"{printable(path)}"))
    size = playground.size(places)
    return context.say({"path": path, "bytes": size}, lambda: print(f"{size_told(size)}"))
