"""Commands that keep house: `doctor` says what this machine can do and lacks, `clean` removes what is old."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from fumehood.core.report import how_many, printable
from fumehood.errors import BadConfiguration, BadRequest
from fumehood.faces.cli.commands import Add, Context, paint
from fumehood.faces.cli.output import Paint, confirmed, whole_number
from fumehood.faces.cli.screen import Ticking
from fumehood.linux import doctor
from fumehood.linux.doctor import Ability
from fumehood.service import recover
from fumehood.service.clean import DAYS, Freed, clean
from fumehood.service.explain import Examination, examined
from fumehood.service.opened import OpenedStore
from fumehood.store.config import policy_for
from fumehood.store.projects import Project

_CAPTURES = {
    "kernel": "the kernel's overlay, mounted by the launcher in a namespace of its own",
    "bwrap": "bubblewrap's own --overlay",
    "fuse": "fuse-overlayfs",
    "copy": "a copy of every root before each run (slow on big projects)",
}
_COLOURS = {"ok": "green", "MISSING": "red", "missing": "yellow", "info": "dim"}


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
    examination = examined(context.store, _project(context))
    return show(examination, as_json=context.as_json, colour=paint().on, out=sys.stdout)


def _project(context: Context) -> Project | None:
    """Return the project around here, where there can be one."""
    try:
        project = context.project
        context.store.policy_of(project)
    except (BadRequest, BadConfiguration):
        if context.options.project or context.options.workspace:
            raise
        return None
    return project


def show(examination: Examination, *, as_json: bool, colour: bool, out: TextIO) -> int:
    """Report what was seen; returns 0 if commands can be sandboxed here, else 1."""
    if as_json:
        json.dump(examination.as_dict(), out, indent=2)
        out.write("\n")
    else:
        paint = Paint(1)
        paint.on = colour
        out.write("\n".join([*_summary(examination, paint), "", *_table(examination.abilities, paint)]) + "\n")
    return 1 if examination.host.why_bare else 0


def _summary(examination: Examination, paint: Paint) -> list[str]:
    host = examination.host
    if host.why_bare or not host.bwrap:
        return [
            paint("Commands can NOT be sandboxed on this machine.", "red"),
            f"  {host.why_bare}",
            "  each one would run unsandboxed, and only if you allow it when you are asked",
        ]
    version = ".".join(str(part) for part in host.bwrap.version)
    # What protects commands besides the sandbox itself, and then what does not.
    protections = sorted(doctor.in_force(host).items(), key=lambda item: not item[1].works)
    in_force = [name if each.works else f"no {name} ({each.detail.partition(': ')[2]})" for name, each in protections]
    return [
        paint("Commands can be sandboxed on this machine.", "bold"),
        f"  bubblewrap  {version}, {host.bwrap.path} ({host.bwrap.origin})",
        f"  capture     {host.captures[0]}: {_CAPTURES[host.captures[0]]}",
        f"  why         {examination.why_this_capture}",
        f"  in force    {', '.join(in_force)}",
    ]


def _table(abilities: Sequence[Ability], paint: Paint) -> list[str]:
    width = min(max(len(ability.name) for ability in abilities), 44)
    lines = []
    for ability in abilities:
        mark = "ok" if ability.works else "MISSING" if ability.needed == "required" else "missing"
        mark = "info" if ability.needed == "info" else mark
        lines.append(f"{paint(f'{mark:8}', _COLOURS[mark])} {ability.name:{width}}  {printable(ability.detail)}")
        if ability.fix and not ability.works:
            lines.append(f"{'':9}{paint('fix:', 'bold')} {ability.fix}")
    return lines


def _mend(options: argparse.Namespace) -> int:
    store, mended = recover.rebuild(OpenedStore)
    store.close()
    if options.json:
        sys.stdout.write(json.dumps({**mended.fields(), "left": list(mended.left)}) + "\n")
        return 0
    if mended.set_aside:
        print(f"the damaged database is now in {printable(mended.set_aside)}")
    print(f"{how_many(mended.runs, 'run')} recovered: fumehood log")
    if mended.set_aside or mended.runs:
        print("kept answers, added roots and short outputs were only in the database, and are lost")
    for place in mended.left:
        is_record = place.endswith(".record")
        what = "this record can't be read, and" if is_record else "no run is known for this directory, which"
        print(f"{what} stays as it is: {printable(place)}")
    return 0


def _clean(context: Context) -> int:
    options = context.options
    if options.all and (options.project or options.workspace):
        raise BadRequest("--all and --project can't be used together", hint="choose one")
    wishes = policy_for(context.store.places, ()).clean
    days = wishes.keep_days if options.days is None else options.days
    project = None if options.all else context.project

    def cleaned(*, dry: bool) -> Freed:
        with Ticking("looking what may go" if dry else "removing", options):
            return clean(
                context.store, days=days, backup_days=wishes.backup_days, budget=wishes.budget, project=project, dry=dry
            )

    if not options.dry_run and not options.yes and os.isatty(0) and os.isatty(1):
        going = cleaned(dry=True)
        if (going.runs or going.backups) and not confirmed(f"{going.in_words()}\ngo on? [y/N] "):
            sys.stderr.write("nothing was removed\n")
            return 1
    freed = cleaned(dry=options.dry_run)
    return context.say(freed.fields(), lambda: print(freed.in_words()))
