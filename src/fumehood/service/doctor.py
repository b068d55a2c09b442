"""A thorough look at this machine, at our own records and at the project at hand: what works, what is missing.

Whether a sandbox can be had on this machine, for programs that want to know before they offer one.
"""

from __future__ import annotations

from typing import Any

from fumehood.core.policy import Policy
from fumehood.core.value import Value
from fumehood.errors import BadConfiguration, FumehoodError, NoRoom, plain_error
from fumehood.linux import doctor, probe
from fumehood.linux.capture import LABELS
from fumehood.linux.doctor import Ability
from fumehood.linux.host import FIX, Host
from fumehood.linux.probe import host
from fumehood.service import layers, verdicts
from fumehood.service.store import Store
from fumehood.store import database
from fumehood.store.config import policy_for
from fumehood.store.places import places
from fumehood.store.projects import Project


class Examination(Value):
    """What was seen."""

    host: Host
    abilities: tuple[Ability, ...]

    @property
    def why_this_capture(self) -> str:
        """Say why this way of capturing is in force: what the better ones lack."""
        if self.host.why_bare:
            return self.host.why_bare
        better = probe.CAPTURES[: probe.CAPTURES.index(self.host.captures[0])]
        lacking = [f"{LABELS[name]} does not work here: {self.host.refusal(name)}" for name in better]
        return "; ".join(lacking) or "it is the best way there is"

    def as_dict(self) -> dict[str, Any]:
        """Return it as `fumehood doctor --json` prints it."""
        return {
            "sandbox": not self.host.why_bare,
            "capture": self.host.captures[0] if self.host.captures else "",
            "why": self.why_this_capture,
            "bwrap": self.host.bwrap.fields() if self.host.bwrap else None,
            "in_force": {name: each.works for name, each in doctor.in_force(self.host).items()},
            "abilities": [ability.fields() for ability in self.abilities],
        }


def examined(store: Store, project: Project | None = None) -> Examination:
    """Look at this machine afresh, at what we keep, and at how a project's writes are captured."""
    state = store.places.state
    lacking = database.shortage_to_begin(state)
    if lacking:
        database.give_back_if_full(state)
    if database.shortage(state):
        # Whatever is tried out there would seem not to work.
        raise NoRoom(f"nothing can be tested, and no command can begin: {lacking}", hint=database.hint(state))
    host = probe.host(store.places.cache, state, fresh=True)
    room = Ability(
        name="room for records", works=not lacking, detail=lacking or f"enough in {state}",
        fix=database.hint(state), needed="required",
    )  # fmt: skip
    lost = layers.unknown(store)
    detail = f"{len(lost)} runs' directories are not recorded" if lost else "every run's directory is recorded"
    records = Ability(name="records", works=not lost, detail=detail, fix=layers.MEND)
    policy = _policy(store, project)
    abilities = [room, records, *doctor.examine_devices(policy.devices), *doctor.examine(state, host)]
    if project is not None and not host.why_bare:
        failed_on = verdicts.failed_on(store.places, project)
        abilities.append(doctor.examine_roots(host, policy.capture, project.roots, failed_on))
    return Examination(host=host, abilities=tuple(abilities))


def _policy(store: Store, project: Project | None) -> Policy:
    try:
        return policy_for(store.places, ()) if project is None else store.policy_of(project)
    except BadConfiguration:
        return Policy()  # `config check` tells of it


class Availability(Value):
    """Whether commands can be sandboxed here; true if they can.

    `way` is how their writes are captured: "kernel", "bwrap", "fuse" or "copy", best first. Without a sandbox it is
    empty; `reason` then says why, and `hint` what to do about it.
    """

    ok: bool
    way: str = ""
    reason: str = ""
    hint: str = ""

    def __bool__(self) -> bool:
        return self.ok


def available() -> Availability:
    """Say whether a sandbox can be had, which way, or why not; never raises. What was tried once is remembered."""
    try:
        ours = places()
        machine = host(ours.cache, ours.state)
    except (FumehoodError, OSError, UnicodeError) as error:
        plain = plain_error(error)
        return Availability(ok=False, reason=plain.message, hint=plain.hint)
    if machine.why_bare:
        reason, _, fix = machine.why_bare.partition(FIX)
        return Availability(ok=False, reason=reason, hint=fix or "fumehood doctor says what is missing")
    return Availability(ok=True, way=machine.captures[0])
