"""Commands that keep house: doctor, clean."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fumehood.errors import BadConfiguration, BadRequest
from fumehood.faces.cli import doctor
from fumehood.faces.cli.commands import Context, paint
from fumehood.linux.examine import examine_roots
from fumehood.service import owners
from fumehood.service.clean import DAYS, clean
from fumehood.store.config import policy_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.faces.cli.inspect import Add
    from fumehood.linux.inforce import Ability
    from fumehood.linux.probe import Host


def add_commands(add: Add) -> None:
    """Make these commands known."""
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


def _doctor(context: Context) -> int:
    places = context.store.places
    return doctor.show(
        places.state, places.cache, _project(context), as_json=context.as_json, colour=paint().on, out=sys.stdout
    )


def _project(context: Context) -> Callable[[Host], Ability] | None:
    """Return what looks at the project around here, where there can be one."""
    try:
        project = context.project
        wanted = context.store.policy_of(project).capture
    except (BadRequest, BadConfiguration):
        if context.options.project or context.options.workspace:
            raise
        return None
    failed_on = owners.failed_on(context.store.places, project)
    return lambda host: examine_roots(host, wanted, project.roots, failed_on)


def _clean(context: Context) -> int:
    wishes = policy_for(context.store.places, ()).clean
    days = wishes.keep_days if context.options.days is None else context.options.days
    freed = clean(context.store, days=days, backup_days=wishes.backup_days, budget=wishes.budget)
    return context.say(freed.fields(), lambda: print(freed.told()))
