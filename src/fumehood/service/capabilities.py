"""Tell what commands find in their sandbox, by asking inside it; the answer is kept for as long as it holds."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from fumehood.core.capabilities import parsed, script
from fumehood.core.network import FULL, NONE
from fumehood.core.policy import HIDDEN
from fumehood.errors import FumehoodError
from fumehood.linux.launch import owner_of
from fumehood.service.world import HOST, around

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fumehood.core.policy import Policy
    from fumehood.service.sandbox import Hood
    from fumehood.service.world import World

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
