"""Commands that keep house: doctor, clean."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.errors import BadConfiguration, BadRequest
from fumehood.faces.cli import doctor
from fumehood.faces.cli.commands import Context, paint
from fumehood.faces.cli.standing import whole_number
from fumehood.linux.examine import examine_roots
from fumehood.linux.inforce import Ability
from fumehood.service import owners, rebuild
from fumehood.service.clean import DAYS, Freed, clean
from fumehood.service.opened import OpenedStore
from fumehood.store.config import policy_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from fumehood.faces.cli.commands import Add
    from fumehood.linux.host import Host


def add_commands(add: Add) -> None:
    """Make these commands known."""
    doctoring = add(
        "doctor", "say what this host can do, what is missing, and how to fix it", _doctor,
        "  fumehood doctor\n  fumehood doctor --mend",
    )  # fmt: skip
    doctoring.add_argument(
        "--mend", action="store_true",
        help="move a damaged database aside, and rebuild what can be rebuilt from the runs' directories",
    )  # fmt: skip
    # The records may be what is to be mended, so they are not opened before.
    doctoring.set_defaults(act=lambda options: _mend(options) if options.mend else _doctor(Context(options)))
    cleaning = add(
        "clean", "remove what this project no longer needs, and say what that freed; what is held stays", _clean,
        "  fumehood clean --dry-run\n  fumehood clean --days 7\n  fumehood clean --all --yes",
    )  # fmt: skip
    cleaning.add_argument("--all", action="store_true", help="clean every project, and what no record names")
    cleaning.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    cleaning.add_argument("--yes", action="store_true", help="don't ask for confirmation")
    cleaning.add_argument(
        "--days", type=whole_number(), metavar="N",
        help="remove older backups and outputs, so that those runs can't be undone; only days on which Fumehood ran"
        f" are counted (default: clean.keep_days of the configuration, else {DAYS})",
    )  # fmt: skip


def _doctor(context: Context) -> int:
    places = context.store.places
    return doctor.show(
        places.state, places.cache, _project(context), [_records(context)], as_json=context.as_json,
        colour=paint().on, out=sys.stdout,
    )  # fmt: skip


def _mend(options: argparse.Namespace) -> int:
    store, mended = rebuild.mend(OpenedStore)
    store.close()
    if options.json:
        sys.stdout.write(json.dumps({**mended.fields(), "left": list(mended.left)}) + "\n")
        return 0
    if mended.set_aside:
        print(f"the damaged database is now in {printable(mended.set_aside)}")
    print(f"{mended.runs} run{'' if mended.runs == 1 else 's'} recovered: fumehood log")
    if mended.set_aside or mended.runs:
        print("kept answers, added roots and short outputs were only in the database, and are lost")
    for directory in mended.left:
        print(f"no run is known for this directory, which stays as it is: {printable(directory)}")
    return 0


def _records(context: Context) -> Ability:
    """Tell whether every run's directory is in the records."""
    lost = rebuild.unknown(context.store)
    detail = f"{len(lost)} runs' directories are not recorded" if lost else "every run's directory is recorded"
    return Ability(name="records", works=not lost, detail=detail, fix=rebuild.MEND)


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
    options = context.options
    if options.all and (options.project or options.workspace):
        raise BadRequest("--all and --project can't be used together", hint="choose one")
    wishes = policy_for(context.store.places, ()).clean
    days = wishes.keep_days if options.days is None else options.days
    project = None if options.all else context.project

    def cleaned(*, dry: bool) -> Freed:
        return clean(
            context.store, days=days, backup_days=wishes.backup_days, budget=wishes.budget, project=project, dry=dry
        )

    is_asked = not options.dry_run and not options.yes and os.isatty(0) and os.isatty(1)
    if is_asked and not _is_agreed(cleaned(dry=True)):
        return 1
    freed = cleaned(dry=options.dry_run)
    return context.say(freed.fields(), lambda: print(freed.told()))


def _is_agreed(going: Freed) -> bool:
    """Ask the person at the terminal, where backups would go."""
    if not going.runs and not going.backups:
        return True
    sys.stderr.write(f"{going.told()}\ngo on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stderr.write("nothing was removed\n")
    return False
