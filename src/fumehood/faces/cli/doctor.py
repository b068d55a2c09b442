"""`fumehood doctor`: what this machine can do for a sandbox, what is missing, and the line to type."""

from __future__ import annotations

import json

from fumehood.core.report import printable
from fumehood.errors import NoRoom
from fumehood.linux import examine, host, inforce, probe
from fumehood.linux.capture import LABELS
from fumehood.store import reserve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

_GREEN, _RED, _YELLOW, _DIM, _BOLD, _PLAIN = (f"\x1b[{code}m" for code in (32, 31, 33, 2, 1, 0))
_COLOURS = {"ok": _GREEN, "MISSING": _RED, "missing": _YELLOW, "info": _DIM}

_MEANING = {
    "kernel": "the kernel's overlay, mounted by the launcher in a namespace of its own",
    "bwrap": "bubblewrap's own --overlay",
    "fuse": "fuse-overlayfs",
    "copy": "a copy of every root before each run (slow on big projects)",
}


def show(
    state_dir: str, cache_dir: str, project: Callable[[host.Host], inforce.Ability] | None = None,
    own: Sequence[inforce.Ability] = (), *, as_json: bool, colour: bool, out: TextIO,
) -> int:  # fmt: skip
    """Look at this host afresh and report; returns 0 if commands can be sandboxed here, else 1.

    `project` looks at the project at hand, if there is one; `own` is what is known of Fumehood's own side.
    """
    lacking = reserve.shortage(state_dir)
    if lacking:
        reserve.give_back_if_full(state_dir)
    if reserve.shortage(state_dir):
        # Whatever is tried out there would seem not to work.
        raise NoRoom(f"nothing can be tested, and no command can begin: {lacking}", hint=reserve.hint(state_dir))
    found = probe.host(cache_dir, state_dir, fresh=True)
    abilities = [_room(state_dir, lacking), *own, *examine.examine(state_dir, found)]
    if project is not None and not found.why_bare:
        abilities.append(project(found))
    if as_json:
        json.dump(_as_object(found, abilities), out, indent=2)
        out.write("\n")
    else:
        lines = [*_summary(found, colour), "", *_table(abilities, colour)]
        out.write("\n".join(lines) + "\n")
    return 1 if found.why_bare else 0


def _room(state_dir: str, lacking: str) -> inforce.Ability:
    """Tell whether the disk has room for what is recorded of a command."""
    return inforce.Ability(
        name="room for records", works=not lacking, detail=lacking or f"enough in {state_dir}",
        fix=reserve.hint(state_dir), needed="required",
    )  # fmt: skip


def _as_object(found: host.Host, abilities: list[inforce.Ability]) -> dict[str, object]:
    return {
        "sandbox": not found.why_bare,
        "capture": _capture(found),
        "why": _reason(found),
        "bwrap": found.bwrap.fields() if found.bwrap else None,
        "in_force": {name: each.works for name, each in inforce.in_force(found).items()},
        "abilities": [ability.fields() for ability in abilities],
    }


def _in_force(found: host.Host) -> str:
    """Name what protects commands besides the sandbox itself, and what does not."""
    each = inforce.in_force(found)
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


def _table(abilities: list[inforce.Ability], colour: bool) -> list[str]:
    width = min(max(len(ability.name) for ability in abilities), 44)
    lines = []
    for ability in abilities:
        mark = _mark(ability)
        painted = _painted(f"{mark:8}", _COLOURS[mark], colour)
        lines.append(f"{painted} {ability.name:{width}}  {printable(ability.detail)}")
        if ability.fix and not ability.works:
            lines.append(f"{'':9}{_painted('fix:', _BOLD, colour)} {ability.fix}")
    return lines


def _mark(ability: inforce.Ability) -> str:
    if ability.needed == "info":
        return "info"
    if ability.works:
        return "ok"
    return "MISSING" if ability.needed == "required" else "missing"


def _painted(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_PLAIN}" if colour else text
