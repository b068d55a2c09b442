"""What a command would see and may do, without running it; and what commands find, asked in a sandbox."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from contextlib import contextmanager
from typing import Any

from fumehood.core.limits import amount_told
from fumehood.core.network import FULL, NONE, decided
from fumehood.core.policy import HIDDEN
from fumehood.core.request import arguments, checked, shown
from fumehood.core.tool import parsed, script
from fumehood.errors import FumehoodError, Unavailable
from fumehood.linux import capture as capturing
from fumehood.linux.confine import memory_limit
from fumehood.linux.launch import owner_of
from fumehood.linux.mounts import Seal
from fumehood.linux.streams import INLINE, Stream
from fumehood.service import layers as layering
from fumehood.service.owners import failed_on
from fumehood.service.running import Execution, Wishes
from fumehood.service.surroundings import HOST, around
from fumehood.store.places import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.core.request import Request
    from fumehood.service.sandbox import Hood
    from fumehood.service.surroundings import World


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
    host = hood.host()
    if host.why_bare:
        raise Unavailable(f"there is no sandbox here: {host.why_bare}", hint="fumehood doctor says what is missing")
    project = hood.project
    choice = capturing.choose(host, hood.policy.capture, project.roots, failed_on(hood.store.places, project))
    name = new_id()
    world = hood.world(request, name)
    with _unrecorded(hood, name, choice, world) as (execution, world):
        seen = execution.would_see(world)
    network = decided(request.network, request.hosts, hood.policy)
    owner = owner_of(project.path)
    limits = hood.policy.limits.fields()
    limits |= {"memory": memory_limit(hood.policy.limits), "time": hood.policy.timeout or 0}
    return {
        "command": request.title or shown(checked(request.command)), "project": project.path,
        "cwd": world.starting(request.cwd, project.path), "shell": world.shell,
        "capture": choice.way, "capture_by": choice.why or _WAYS[choice.way],
        "network": network.mode, "hosts": list(network.hosts), "user": None if owner is None else owner.user,
        "owners": OWNERS[world.pretends_owners(execution.user)],
        "mounts": [
            {"path": each.target, "what": each.describe(), "why": each.why, "writable": each.is_writable}
            for each in {each.target: each for each in seen.mounts if not isinstance(each, Seal)}.values()
        ],
        "environment": {"kept": sorted(world.environment), "dropped": sorted(world.dropped)},
        "limits": {name: amount_told(name, amount) if amount else "no limit" for name, amount in limits.items()},
    }  # fmt: skip


def look_inside(hood: Hood, script: str, root: str, timeout: float) -> str:
    """Return what a script of our own prints in the sandbox; it is not recorded, and changes nothing."""
    places, project, policy = hood.store.places, hood.project, hood.policy
    world = around(places, policy, root or policy.root, project.roots, owner_of(project.path), project.id)
    choice = capturing.choose(hood.host(), policy.capture, project.roots)
    name = new_id()
    out, err = (Stream(each, places.output(name, each), INLINE) for each in ("stdout", "stderr"))
    try:
        with _unrecorded(hood, name, choice, world) as (execution, world):
            line = arguments(script, world.shell)
            execution.run(line, world, world.cwd(project.path), (out, err), timeout, Wishes())
    finally:
        for stream in (out, err):
            if stream.path:
                os.unlink(stream.path)
    return out.text()


@contextmanager
def _unrecorded(hood: Hood, name: str, choice: capturing.Choice, world: World) -> Iterator[tuple[Execution, World]]:
    """Have layers for a command that no record will tell of; they are dropped at the end."""
    places, roots = hood.store.places, hood.project.roots
    with layering.Claim(places, name) as claim:
        claim.take()
        try:
            layers = layering.make(places, name, roots, choice.way)
            capture = capturing.Capture(choice.way, layers, world.targets, choice.groups)
            with world.entered(choice.way) as entered:
                yield Execution(hood.host(), capture, hood.start, hood.policy.limits, hood.surroundings), entered
        finally:
            if world.scratch is not None:
                world.scratch.remove()
            layering.drop(places, name)


# What commands find in their sandbox is asked inside it; the answer is kept for as long as it holds.
_FORMAT = 5
_PATIENCE_S = 60.0
_MOST_KEPT = 50


def capabilities(hood: Hood, root: str = "", *, fresh: bool = False) -> dict[str, Any]:
    """Return what a project's commands find in a root: programs with versions, what they can write, network, limits."""
    store, policy = hood.store, hood.policy
    root = root or policy.root
    world = around(store.places, policy, root, hood.project.roots, owner_of(hood.project.path), hood.project.id)
    folder = f"{store.places.cache}/capabilities"
    path = f"{folder}/{_key(world, hood)}.json"
    answer = None if fresh else _remembered(path)
    if answer is None:
        answer = parsed(look_inside(hood, script(), root, _PATIENCE_S))
        if "machine" not in answer:
            raise FumehoodError("the sandbox did not describe itself", hint="fumehood run -- true shows what is wrong")
        _remember(folder, path, answer)
    network = "the whole network of this machine"
    if policy.network != FULL:
        network = f"only {', '.join(policy.hosts)}" if policy.hosts else "none"
        if policy.network != NONE:
            network += "; a person is asked for more hosts when a command needs them"
    limits = {**policy.limits.fields(), "timeout": policy.timeout}
    return {
        **answer, "root": world.base or (root if world.tree is not None else HOST), "tree": world.tree is not None,
        "home_is_hidden": world.tree is None and policy.home == HIDDEN,
        # By the policy, which may change without the sandbox's changing.
        "network": network, "policy_limits": {name: value for name, value in limits.items() if value},
    }  # fmt: skip


def _key(world: World, hood: Hood) -> str:
    """Return a name that changes when the answer would: also with the directories that programs lie in."""
    folders = world.environment.get("PATH", "").split(":")
    if world.tree is not None:
        below = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "lib/apk/db")
        tops = [world.tree.path, *([f"{world.layer}/upper"] if world.layer else [])]
        folders = [world.tree.path, *(f"{top}/{each}" for top in tops for each in below)]
    parts = [_FORMAT, os.geteuid(), hood.policy.capture, *hood.project.roots, world.layer, world.skills]
    parts += [world.playground is not None, world.ownership, hood.policy.home, hood.policy.show]
    for folder in folders:
        try:
            status = os.stat(folder, follow_symlinks=False)
            parts.append((folder, status.st_ino, status.st_mtime_ns))
        except OSError:
            parts.append((folder, 0, 0))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _remembered(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            answer = json.load(file)
    except (OSError, ValueError):
        return None  # not asked yet, or cut short by a full disk
    return answer if isinstance(answer, dict) and "machine" in answer else None


def _remember(folder: str, path: str, answer: dict[str, Any]) -> None:
    """Keep an answer; a cache that can't be written only costs time."""
    beside = f"{path}.{secrets.token_hex(4)}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(beside, path)
        kept = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)
        for entry in kept[:-_MOST_KEPT]:
            os.unlink(entry.path)
    except OSError:
        return
