"""Tell what a command would see and what it may do, without running it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from typing import Any

from fumehood.core.limits import amount_told
from fumehood.core.network import FULL, NONE, decided
from fumehood.core.policy import HIDDEN
from fumehood.core.request import checked, shown
from fumehood.core.tool import parsed, script
from fumehood.errors import FumehoodError, Unavailable
from fumehood.linux import capture as capturing
from fumehood.linux.launch import memory_limit, owner_of
from fumehood.linux.mounts import Seal
from fumehood.service import layers as layering
from fumehood.service.owners import failed_on
from fumehood.service.running import Execution
from fumehood.service.surroundings import HOST, around
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.core.policy import Policy
    from fumehood.core.request import Request
    from fumehood.service.sandbox import Hood
    from fumehood.service.surroundings import World


# ---- Tell what a command would see and what it may do, without running it.

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


# ---- Tell what commands find in their sandbox, by asking inside it; the answer is kept for as long as it holds.

_FORMAT = 3
_PATIENCE_S = 60.0
_MOST_KEPT = 50


def capabilities(hood: Hood, root: str = "", *, fresh: bool = False) -> dict[str, Any]:
    """Return what a project's commands find in a root: programs with versions, what they can write, network, limits."""
    store, policy = hood.store, hood.policy
    root = root or policy.root
    world = around(store.places, policy, root, hood.project.roots, owner_of(hood.project.path), hood.project.id)
    folder = f"{store.places.cache}/capabilities"
    path = f"{folder}/{_key(world, hood)}.json"
    told = None if fresh else _remembered(path)
    if told is None:
        told = parsed(hood.look_inside(script(), root, _PATIENCE_S))
        if "machine" not in told:
            raise FumehoodError("the sandbox did not describe itself", hint="fumehood run -- true shows what is wrong")
        _remember(folder, path, told)
    name = world.base or (root if world.tree is not None else HOST)
    is_hidden = world.tree is None and policy.home == HIDDEN
    return {**told, "root": name, "tree": world.tree is not None, "home_is_hidden": is_hidden, **_by_policy(policy)}


def _by_policy(policy: Policy) -> dict[str, Any]:
    """Return what the policy says: it may change without the sandbox's changing."""
    limits = {**policy.limits.fields(), "timeout": policy.timeout}
    return {"network": _network(policy), "policy_limits": {name: value for name, value in limits.items() if value}}


def _network(policy: Policy) -> str:
    if policy.network == FULL:
        return "the whole network of this machine"
    hosts = f"only {', '.join(policy.hosts)}" if policy.hosts else "none"
    return hosts if policy.network == NONE else f"{hosts}; a person is asked for more hosts when a command needs them"


def _key(world: World, hood: Hood) -> str:
    """Return a name that changes when the answer would."""
    parts = [_FORMAT, os.geteuid(), hood.policy.capture, *hood.project.roots, world.layer, world.skills]
    parts += [world.playground is not None, world.ownership, hood.policy.home, hood.policy.show]
    parts += _identities(world)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _identities(world: World) -> Iterator[object]:
    """Yield when the directories changed that programs lie in."""
    folders = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "lib/apk/db")
    if world.tree is None:
        path = world.environment.get("PATH", "")
        yield from ((folder, _changed(folder)) for folder in path.split(":"))
        return
    yield world.tree.path, _changed(world.tree.path)
    for top in (world.tree.path, f"{world.layer}/upper" if world.layer else ""):
        if top:
            yield from ((folder, _changed(f"{top}/{folder}")) for folder in folders)


def _changed(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _remembered(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        return None  # not asked yet, or cut short by a full disk
    return told if isinstance(told, dict) and "machine" in told else None


def _remember(folder: str, path: str, told: dict[str, Any]) -> None:
    """Keep an answer; a cache that can't be written only costs time."""
    beside = f"{path}.{secrets.token_hex(4)}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(beside, path)
        kept = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)
        for entry in kept[:-_MOST_KEPT]:
            os.unlink(entry.path)
    except OSError:
        return
