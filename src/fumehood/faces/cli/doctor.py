"""`fumehood doctor`: what this machine can do for a sandbox, what is missing, and the line to type."""

from __future__ import annotations

import json
import os
import sys

from fumehood.core.report import printable
from fumehood.errors import BadConfiguration, BadRequest, NoRoom
from fumehood.faces.cli.commands import Context, paint
from fumehood.faces.cli.output import whole_number
from fumehood.linux import doctor, host, probe
from fumehood.linux.capture import LABELS
from fumehood.linux.doctor import Ability, examine_roots
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


# ---- `fumehood doctor`: what this machine can do for a sandbox, what is missing, and the line to type.

_GREEN, _RED, _YELLOW, _DIM, _BOLD, _PLAIN = (f"\x1b[{code}m" for code in (32, 31, 33, 2, 1, 0))
_COLOURS = {"ok": _GREEN, "MISSING": _RED, "missing": _YELLOW, "info": _DIM}

_MEANING = {
    "kernel": "the kernel's overlay, mounted by the launcher in a namespace of its own",
    "bwrap": "bubblewrap's own --overlay",
    "fuse": "fuse-overlayfs",
    "copy": "a copy of every root before each run (slow on big projects)",
}


def show(
    state_dir: str, cache_dir: str, project: Callable[[host.Host], doctor.Ability] | None = None,
    own: Sequence[doctor.Ability] = (), *, as_json: bool, colour: bool, out: TextIO,
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
    found = probe.host(cache_dir, state_dir, fresh=True)
    abilities = [_room(state_dir, lacking), *own, *doctor.examine(state_dir, found)]
    if project is not None and not found.why_bare:
        abilities.append(project(found))
    if as_json:
        json.dump(_as_object(found, abilities), out, indent=2)
        out.write("\n")
    else:
        lines = [*_summary(found, colour), "", *_table(abilities, colour)]
        out.write("\n".join(lines) + "\n")
    return 1 if found.why_bare else 0


def _room(state_dir: str, lacking: str) -> doctor.Ability:
    """Tell whether the disk has room for what is recorded of a command."""
    return doctor.Ability(
        name="room for records", works=not lacking, detail=lacking or f"enough in {state_dir}",
        fix=database.hint(state_dir), needed="required",
    )  # fmt: skip


def _as_object(found: host.Host, abilities: list[doctor.Ability]) -> dict[str, object]:
    return {
        "sandbox": not found.why_bare,
        "capture": _capture(found),
        "why": _reason(found),
        "bwrap": found.bwrap.fields() if found.bwrap else None,
        "in_force": {name: each.works for name, each in doctor.in_force(found).items()},
        "abilities": [ability.fields() for ability in abilities],
    }


def _in_force(found: host.Host) -> str:
    """Name what protects commands besides the sandbox itself, and what does not."""
    each = doctor.in_force(found)
    there = [name for name, ability in each.items() if ability.works]
    missing = {name: ability.detail.partition(": ")[2] for name, ability in each.items() if not ability.works}
    return ", ".join((*there, *(f"no {name} ({why})" for name, why in missing.items())))


def _capture(found: host.Host) -> str:
    return found.captures[0] if found.captures else ""


def _reason(found: host.Host) -> str:
    """Say why this capture is in force: what the better ones lack."""
    if found.why_bare:
        return found.why_bare
    better = probe.CAPTURES[: probe.CAPTURES.index(_capture(found))]
    lacking = [f"{LABELS[name]} does not work here: {found.refusal(name)}" for name in better]
    return "; ".join(lacking) or "it is the best way there is"


def _summary(found: host.Host, colour: bool) -> list[str]:
    if found.why_bare or not found.bwrap:
        return [
            _painted("Commands can NOT be sandboxed on this machine.", _RED, colour),
            f"  {found.why_bare}",
            "  each one would run unsandboxed, and only if you allow it when you are asked",
        ]
    version = ".".join(str(part) for part in found.bwrap.version)
    return [
        _painted("Commands can be sandboxed on this machine.", _BOLD, colour),
        f"  bubblewrap  {version}, {found.bwrap.path} ({found.bwrap.origin})",
        f"  capture     {_capture(found)}: {_MEANING[_capture(found)]}",
        f"  why         {_reason(found)}",
        f"  in force    {_in_force(found)}",
    ]


def _table(abilities: list[doctor.Ability], colour: bool) -> list[str]:
    width = min(max(len(ability.name) for ability in abilities), 44)
    lines = []
    for ability in abilities:
        mark = _mark(ability)
        painted = _painted(f"{mark:8}", _COLOURS[mark], colour)
        lines.append(f"{painted} {ability.name:{width}}  {printable(ability.detail)}")
        if ability.fix and not ability.works:
            lines.append(f"{'':9}{_painted('fix:', _BOLD, colour)} {ability.fix}")
    return lines


def _mark(ability: doctor.Ability) -> str:
    if ability.needed == "info":
        return "info"
    if ability.works:
        return "ok"
    return "MISSING" if ability.needed == "required" else "missing"


def _painted(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_PLAIN}" if colour else text


# ---- Commands that keep house: doctor, clean.

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
    return show(
        places.state, places.cache, _project(context), [_records(context)], as_json=context.as_json,
        colour=paint().on, out=sys.stdout,
    )  # fmt: skip


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


def _records(context: Context) -> Ability:
    """Tell whether every run's directory is in the records."""
    lost = recover.unknown(context.store)
    detail = f"{len(lost)} runs' directories are not recorded" if lost else "every run's directory is recorded"
    return Ability(name="records", works=not lost, detail=detail, fix=recover.MEND)


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
