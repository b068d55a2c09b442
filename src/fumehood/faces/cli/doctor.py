"""Commands that keep house: `doctor` says what this machine can do and lacks, `clean` removes what is old."""

from __future__ import annotations

import json
import os
import sys

from fumehood.core.policy import Policy
from fumehood.core.report import printable
from fumehood.errors import BadConfiguration, BadRequest, NoRoom
from fumehood.faces.cli.commands import Context, paint
from fumehood.faces.cli.output import Paint, confirmed, whole_number
from fumehood.linux import doctor, probe
from fumehood.linux.capture import LABELS
from fumehood.linux.doctor import Ability
from fumehood.service import owners, recover
from fumehood.service.clean import DAYS, Freed, clean
from fumehood.service.opened import OpenedStore
from fumehood.store import database
from fumehood.store.config import policy_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from fumehood.faces.cli.commands import Add
    from fumehood.linux.host import Host

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
    store = context.store
    lost = recover.unknown(store)
    detail = f"{len(lost)} runs' directories are not recorded" if lost else "every run's directory is recorded"
    records = Ability(name="records", works=not lost, detail=detail, fix=recover.MEND)
    devices = doctor.examine_devices(_policy(context).devices)
    return show(
        store.places.state, store.places.cache, _project(context), [records, *devices], as_json=context.as_json,
        colour=paint().on, out=sys.stdout,
    )  # fmt: skip


def _policy(context: Context) -> Policy:
    """Return what is configured for the project around here, or for any where there can be none."""
    try:
        return context.store.policy_of(context.project)
    except BadRequest:
        return policy_for(context.store.places, ())
    except BadConfiguration:
        return Policy()  # `config check` tells of it


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
    return lambda host: doctor.examine_roots(host, wanted, project.roots, failed_on)


def show(
    state_dir: str, cache_dir: str, project: Callable[[Host], Ability] | None = None,
    own: Sequence[Ability] = (), *, as_json: bool, colour: bool, out: TextIO,
) -> int:  # fmt: skip
    """Look at this host afresh and report; returns 0 if commands can be sandboxed here, else 1.

    `project` looks at the project at hand, if there is one; `own` is what is known of Fumehood's own side.
    """
    lacking = database.shortage(state_dir)
    if lacking:
        database.give_back_if_full(state_dir)
    if database.shortage(state_dir):
        # Whatever is tried out there would seem not to work.
        raise NoRoom(f"nothing can be tested, and no command can begin: {lacking}", hint=database.hint(state_dir))
    host = probe.host(cache_dir, state_dir, fresh=True)
    room = Ability(
        name="room for records", works=not lacking, detail=lacking or f"enough in {state_dir}",
        fix=database.hint(state_dir), needed="required",
    )  # fmt: skip
    abilities = [room, *own, *doctor.examine(state_dir, host)]
    if project is not None and not host.why_bare:
        abilities.append(project(host))
    if as_json:
        answer = {
            "sandbox": not host.why_bare,
            "capture": host.captures[0] if host.captures else "",
            "why": _why_this_capture(host),
            "bwrap": host.bwrap.fields() if host.bwrap else None,
            "in_force": {name: each.works for name, each in doctor.in_force(host).items()},
            "abilities": [ability.fields() for ability in abilities],
        }
        json.dump(answer, out, indent=2)
        out.write("\n")
    else:
        paint = Paint(1)
        paint.on = colour
        out.write("\n".join([*_summary(host, paint), "", *_table(abilities, paint)]) + "\n")
    return 1 if host.why_bare else 0


def _why_this_capture(host: Host) -> str:
    """Say why this capture is in force: what the better ones lack."""
    if host.why_bare:
        return host.why_bare
    better = probe.CAPTURES[: probe.CAPTURES.index(host.captures[0])]
    lacking = [f"{LABELS[name]} does not work here: {host.refusal(name)}" for name in better]
    return "; ".join(lacking) or "it is the best way there is"


def _summary(host: Host, paint: Paint) -> list[str]:
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
        f"  why         {_why_this_capture(host)}",
        f"  in force    {', '.join(in_force)}",
    ]


def _table(abilities: list[Ability], paint: Paint) -> list[str]:
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
    print(f"{mended.runs} run{'' if mended.runs == 1 else 's'} recovered: fumehood log")
    if mended.set_aside or mended.runs:
        print("kept answers, added roots and short outputs were only in the database, and are lost")
    for directory in mended.left:
        print(f"no run is known for this directory, which stays as it is: {printable(directory)}")
    return 0


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

    if not options.dry_run and not options.yes and os.isatty(0) and os.isatty(1):
        going = cleaned(dry=True)
        if (going.runs or going.backups) and not confirmed(f"{going.in_words()}\ngo on? [y/N] "):
            sys.stderr.write("nothing was removed\n")
            return 1
    freed = cleaned(dry=options.dry_run)
    return context.say(freed.fields(), lambda: print(freed.in_words()))
