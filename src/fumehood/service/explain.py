"""Tell what a command would see and what it may do, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fumehood.core.limits import amount_told
from fumehood.core.network import decided
from fumehood.core.request import checked, shown
from fumehood.errors import Unavailable
from fumehood.linux import capture as capturing
from fumehood.linux.launch import owner_of
from fumehood.linux.limits import memory_limit
from fumehood.linux.mounts import Seal
from fumehood.service import layers as layering
from fumehood.service.owners import failed_on
from fumehood.service.running import Execution
from fumehood.store.ids import new_id

if TYPE_CHECKING:
    from fumehood.core.policy import Policy
    from fumehood.core.request import Request
    from fumehood.service.sandbox import Hood

_WAYS = {
    capturing.KERNEL: "an overlay that the launcher mounts",
    capturing.BWRAP: "an overlay that bubblewrap mounts",
    capturing.FUSE: "fuse-overlayfs",
    capturing.COPY: "a copy of each root, compared with it at the end",
}
OWNERS = {True: "not changed: giving a file to somebody else does nothing", False: "changed as the kernel allows"}


def explained(hood: Hood, request: Request) -> dict[str, Any]:
    """Return everything that decides how a request would run; nothing is run, and nothing is kept."""
    hood, request = hood.profiled(request)
    able = hood.host()
    if able.why_bare:
        raise Unavailable(f"there is no sandbox here: {able.why_bare}", hint="fumehood doctor says what is missing")
    places, project = hood.store.places, hood.project
    with layering.Claim(places, new_id()) as claim:
        claim.take()
        world = hood.world(request, claim.run)
        choice = capturing.choose(able, hood.policy.capture, project.roots, failed_on(places, project))
        way = choice.way
        try:
            layers = layering.make(places, claim.run, project.roots, way)
            execution = Execution(able, capturing.Capture(way, layers, world.targets), hood.start, hood.policy.limits)
            with world.entered(way) as world:
                seen = execution.would_see(world, hood.surroundings)
        finally:
            if world.scratch is not None:
                world.scratch.remove()
            layering.drop(places, claim.run)
    network = decided(request.network, request.hosts, hood.policy)
    owner = owner_of(project.path)
    return {
        "command": request.title or shown(checked(request.command)), "project": project.path,
        "cwd": world.starting(request.cwd, project.path), "shell": world.shell,
        "capture": way, "capture_by": choice.why or _WAYS[way], "network": network.mode, "hosts": list(network.hosts),
        "user": None if owner is None else owner.user,
        "owners": OWNERS[world.pretends_owners(execution.user(owner))],
        "mounts": [
            {"path": each.target, "what": each.describe(), "why": each.why, "writable": each.is_writable}
            for each in {each.target: each for each in seen.mounts if not isinstance(each, Seal)}.values()
        ],
        "environment": {"kept": sorted(world.environment), "dropped": sorted(world.dropped)},
        "limits": _limits(hood.policy),
    }  # fmt: skip


def _limits(policy: Policy) -> dict[str, str]:
    limits = {**policy.limits.fields(), "memory": memory_limit(policy.limits), "time": policy.timeout or 0}
    return {name: amount_told(name, amount) if amount else "no limit" for name, amount in limits.items()}
