"""Whether a sandbox can be had on this machine, for programs that want to know before they offer one."""

from __future__ import annotations

from fumehood.core.value import Value
from fumehood.errors import FumehoodError, plain_error
from fumehood.linux.host import FIX
from fumehood.linux.probe import host
from fumehood.store.places import places


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
