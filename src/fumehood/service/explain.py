"""What a command would see and may do, without running it; what commands find in a sandbox; what works here."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import contextmanager
from typing import Any

from fumehood.core.capabilities import Capabilities, facts_script, format_limits, parse_facts
from fumehood.core.config import CheckedConfiguration, Complaint, by_line, dotted_name, line_numbers
from fumehood.core.masks import FRESH, make_masks
from fumehood.core.paths import is_below, is_in
from fumehood.core.policy import ALL_PROJECTS, FULL, HIDDEN, NONE, Policy, decide_network
from fumehood.core.report import TIME, format_amount
from fumehood.core.request import HOST, Request, build_argv, checked_command, command_text
from fumehood.core.value import Value
from fumehood.errors import BadConfiguration, FumehoodError, NoRoom, Unavailable, as_fumehood_error
from fumehood.linux import cache, doctor, probe
from fumehood.linux import capture as capturing
from fumehood.linux.doctor import Ability
from fumehood.linux.launch import owner_of
from fumehood.linux.limits import memory_limit
from fumehood.linux.mounts import Seal
from fumehood.linux.probe import FIX, Host, read_text
from fumehood.linux.streams import RECORD_LIMIT
from fumehood.linux.survey import device_fault
from fumehood.service import layers as layering
from fumehood.service.blocked import unchangeable_files
from fumehood.service.hood import Caller, Hood
from fumehood.service.running import Execution, output_streams
from fumehood.service.sandbox import build_world
from fumehood.service.session import hooks_switched_off
from fumehood.service.store import Store
from fumehood.service.surroundings import World, host_or_tree_world
from fumehood.store.config import policy_for
from fumehood.store.places import home, new_id, places, release_reserve_if_full, room_hint, shortage, shortage_to_begin
from fumehood.store.projects import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OWNER_RULES = {
    True: "not changed: giving a file to somebody else does nothing", False: "changed as the kernel allows",
}  # fmt: skip


def explain_request(hood: Hood, request: Request) -> dict[str, Any]:
    """Return everything that decides how a request would run; this runs nothing, and keeps nothing."""
    hood, request = hood.with_profiles(request)
    host = hood.host()
    if host.why_bare:
        raise Unavailable(f"there is no sandbox here: {host.why_bare}", hint="fumehood doctor says what is missing")
    if request.write is not None:
        from fumehood.service.roots import with_write_limit

        hood, request = with_write_limit(hood, request)
    project = hood.project
    choice = capturing.choose(host, hood.policy.capture, project.roots, unchangeable_files(hood.store.places, project))
    name = new_id()
    with _unrecorded(hood, name, choice, build_world(hood, request, name)) as execution:
        visible, world = execution.would_see(), execution.world
    network = decide_network(request.network, request.hosts, hood.policy)
    owner = owner_of(project.path)
    limits = hood.policy.limits.fields()
    limits |= {"memory": memory_limit(hood.policy.limits), "time": hood.policy.timeout or 0}
    return {
        "command": request.title or command_text(checked_command(request.command)), "project": project.path,
        "cwd": world.start_directory(request.cwd, project.path), "shell": world.shell,
        "capture": choice.way, "capture_by": choice.why or capturing.LABELS[choice.way],
        "network": network.mode, "hosts": list(network.hosts), "user": None if owner is None else owner.user,
        "owners": _OWNER_RULES[world.pretends_owners(execution.user)],
        "mounts": [
            {"path": each.target, "what": each.describe(), "why": each.why, "writable": each.is_writable}
            for each in {each.target: each for each in visible.mounts if not isinstance(each, Seal)}.values()
        ],
        "environment": {"kept": sorted(world.environment), "dropped": sorted(world.dropped)},
        "limits": {name: format_amount(name, amount) if amount else "no limit" for name, amount in limits.items()},
    }  # fmt: skip


def look_inside(hood: Hood, script: str, root: str, timeout: float) -> str:
    """Run a script of our own in the sandbox and return what it prints; this is not recorded, and changes nothing."""
    places, project, policy = hood.store.places, hood.project, hood.policy
    world = host_or_tree_world(places, policy, root or policy.root, project.roots, owner_of(project.path), project.id)
    choice = capturing.choose(hood.host(), policy.capture, project.roots)
    name = new_id()
    streams = output_streams(places, name, RECORD_LIMIT)
    try:
        with _unrecorded(hood, name, choice, world) as execution:
            execution.run(build_argv(script, world.shell), world.inside(project.path), streams, timeout, Caller())
    finally:
        for stream in streams:
            if stream.path:
                os.unlink(stream.path)
    return streams[0].text()


@contextmanager
def _unrecorded(hood: Hood, name: str, choice: capturing.CaptureChoice, world: World) -> Iterator[Execution]:
    """Yield the execution of a command that is not recorded; its layers are dropped at the end."""
    places, roots = hood.store.places, hood.project.roots
    with layering.RunDirectory(places, name) as directory:
        directory.create()
        try:
            layers = layering.make(places, name, roots, choice.way, overlaid=choice.overlaid)
            capture = capturing.Capture(choice.way, layers, world.targets, choice.groups, world.write)
            with world.lock_tree(choice.way) as locked_world:
                yield Execution(hood, locked_world, capture)
        finally:
            if world.scratch is not None:
                world.scratch.remove()
            if world.layer and not hood.project.id:
                from fumehood.rootfs.tree import RootLayer

                RootLayer(world.layer).drop()  # it stood for the one that a first run will make
            layering.drop(places, name)


# ---- What commands find in their sandbox, found by a script in it.
#
# Only the versions of programs are kept, as long as the programs' files are the same: starting all of them is slow.

_FORMAT = 5
_TIME_LIMIT_S = 300.0  # a program that hangs costs this time, and its version stays unknown
_MAX_KEPT = 50  # files in the cache
_SETTLED_S = 2  # a file that changed more recently may change again without a new time
# Files that package managers write with every change: then all programs are asked again.
_PACKAGE_DATABASES = (
    "var/lib/dpkg/status", "var/lib/rpm", "usr/lib/sysimage/rpm", "lib/apk/db/installed", "var/lib/pacman/local",
    "nix/var/nix/profiles",
)  # fmt: skip


def capabilities(hood: Hood, root: str = "", *, fresh: bool = False) -> Capabilities:
    """Return what a project's commands find in a root: programs with versions, what they can write, network, limits."""
    store, policy = hood.store, hood.policy
    root = root or policy.root
    layering.require_roots_exist(hood.project.roots)
    project = hood.project
    world = host_or_tree_world(store.places, policy, root, project.roots, owner_of(project.path), project.id)
    path = f"{store.places.cache}/capabilities/{_cache_key(world, hood)}"
    remembered: dict[str, str] = {} if fresh else cache.load(path) or {}
    asked_at = time.time()
    facts, versions = parse_facts(look_inside(hood, facts_script(remembered), root, _TIME_LIMIT_S), remembered)
    if not facts:
        raise FumehoodError("the sandbox did not describe itself", hint="fumehood run -- true shows what is wrong")
    # A program's identity ends with the times when its file was changed.
    changed_at = {each: max(map(float, each.split()[-2:])) for each in versions}
    _save_versions(path, {each: versions[each] for each in versions if changed_at[each] < asked_at - _SETTLED_S})
    network = "the whole network of this machine"
    if policy.network != FULL:
        network = f"only {', '.join(policy.hosts)}" if policy.hosts else "none"
        if policy.network != NONE:
            network += "; a person is asked for more hosts when a command needs them"
    limits = {**policy.limits.fields(), "memory": memory_limit(policy.limits), "timeout": policy.timeout}
    files = facts["limits"].get("files")  # the machine may allow less
    limits["files"] = min(limits["files"] or files, files) if files else limits["files"]
    return Capabilities({
        **facts, "root": world.base or (root if world.tree is not None else HOST), "tree": world.tree is not None,
        "home_is_hidden": world.tree is None and policy.home == HIDDEN,
        "shell": world.shell, "network": network,
        "policy_limits": {name: value for name, value in limits.items() if value},
        "limits_told": format_limits({TIME if name == "timeout" else name: value for name, value in limits.items()}),
    })  # fmt: skip


def _cache_key(world: World, hood: Hood) -> str:
    """Return a name that changes with everything that versions may depend on, except the programs' own files."""
    tops = [""] if world.tree is None else [world.tree.path, *([f"{world.layer}/upper"] if world.layer else [])]
    parts = [_FORMAT, os.geteuid(), read_text("/proc/sys/kernel/random/boot_id"), *hood.project.roots, *tops]
    for file in (f"{top}/{each}" for top in tops for each in _PACKAGE_DATABASES):
        try:
            status = os.stat(file, follow_symlinks=False)
            parts.append((file, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
        except OSError:
            continue
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _save_versions(path: str, versions: dict[str, str]) -> None:
    """Save the versions; a cache that can't be written only costs time."""
    cache.save(path, versions)
    try:
        files = sorted(os.scandir(os.path.dirname(path)), key=lambda entry: entry.stat().st_mtime_ns)
        for entry in files[:-_MAX_KEPT]:
            os.unlink(entry.path)
    except OSError:
        return


# ---- Settings that have no effect on this machine. `config check` reports them; they stop no command.

def settings_without_effect(path: str, checked: CheckedConfiguration) -> tuple[Complaint, ...]:
    """Return the settings of a valid configuration that have no effect here, by line."""
    with open(path, encoding="utf-8-sig") as file:
        lines = line_numbers(file.read())
    complaints = []
    everywhere = Policy().with_settings(checked.settings.get(ALL_PROJECTS, {}))
    for place, line in lines.items():
        *above, name = place
        if name not in ("unmask", "devices") or len(above) not in (0, 2):
            continue
        project = os.path.join(home(), str(above[1]).removeprefix("~/")) if above else ALL_PROJECTS
        settings = checked.settings.get(project, {})
        policy = everywhere.with_settings(settings) if above else everywhere
        for each in settings.get(name, ()):
            message, hint = _device_remark(each) if name == "devices" else _unmask_remark(each, policy, project)
            if message:
                key = dotted_name(place)
                complaints.append(Complaint(line=line, key=key, message=f"{each}: {message}", hint=hint))
    return by_line(complaints)


def _device_remark(path: str) -> tuple[str, str]:
    """Return why commands can't use a device, and what to do; "" and "" if they can."""
    fault = device_fault(path)
    if not fault and not os.access(path, os.R_OK | os.W_OK):
        return "it is closed to you, and so to your commands", "fumehood doctor says to whom it is open"
    return fault, ""


def _unmask_remark(path: str, policy: Policy, project: str) -> tuple[str, str]:
    """Return why a path stays hidden although a person unmasks it, and what to do; "" and "" if it is shown."""
    own = path.rstrip("/").removeprefix("./")
    if not own.startswith("/"):
        return _relative_unmask_remark(own, [each.rstrip("/").removeprefix("./") for each in policy.mask])
    if is_in(own, FRESH):
        hint = f'devices = ["{own}"]' if is_in(own, ("/dev",)) and not device_fault(own) else ""
        return "every command has its own, and none of the host's", hint
    if policy.root != HOST and not (project and is_in(own, (project,))):
        return f"no path of the host's is in the root {policy.root}", "run with --root host"
    hidden = make_masks([home()], (), policy.mask, policy.unmask, as_root=os.geteuid() == 0).hidden
    masked_parent = next((each for each in hidden if is_below(own, each) and project and is_in(each, (project,))), "")
    if masked_parent:
        hint = f"unmask {masked_parent}, or mask less of it"
        return f"{masked_parent} is masked whole, and lies in the project", hint
    if os.path.exists(own) and stat.S_ISSOCK(os.stat(own).st_mode):
        return "a socket of the host's can't be connected to, masked or not", "start the service in the command"
    # A path that does not exist may be made later.
    return ("you can't read it yourself", "") if os.path.exists(own) and not os.access(own, os.R_OK) else ("", "")


def _relative_unmask_remark(path: str, masked: list[str]) -> tuple[str, str]:
    masked_parent = next((each for each in masked if is_below(path, each)), "")
    if path in masked:
        return "", ""
    if masked_parent:
        return f"{masked_parent} is masked whole in every root", f"unmask {masked_parent}, or mask less of it"
    return "nothing of this name is masked", "a relative path takes back one of `mask`"


# ---- A thorough examination of this machine, our own records and the project: what works, and what is missing.

class Examination(Value):
    """The result; `wanted` is the way of capturing that the configuration asks for, or ""."""

    host: Host
    abilities: tuple[Ability, ...]
    wanted: str = ""

    @property
    def capture(self) -> str:
        """The way of capturing that is in force."""
        return "" if self.host.why_bare else self.wanted or self.host.captures[0]

    @property
    def why_this_capture(self) -> str:
        """Why this way of capturing is in force: what the better ways lack."""
        if self.host.why_bare:
            return self.host.why_bare
        if self.wanted:
            refusal = self.host.refusal(self.wanted)
            return f"the configuration asks for it{refusal and f', but it does not work here: {refusal}'}"
        better = probe.CAPTURES[: probe.CAPTURES.index(self.host.captures[0])]
        reasons = [f"{capturing.LABELS[name]} does not work here: {self.host.refusal(name)}" for name in better]
        return "; ".join(reasons) or "it is the best way there is"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as `fumehood doctor --json` prints it."""
        return {
            "sandbox": not self.host.why_bare,
            "capture": self.capture,
            "why": self.why_this_capture,
            "bwrap": self.host.bwrap.fields() if self.host.bwrap else None,
            "in_force": {name: each.works for name, each in doctor.in_force(self.host).items()},
            "abilities": [ability.fields() for ability in self.abilities],
        }


def examine(store: Store, project: Project | None = None) -> Examination:
    """Examine this machine without the cache, our records, and how a project's writes are captured."""
    state = store.places.state
    lacking_room = shortage_to_begin(state)
    if lacking_room:
        release_reserve_if_full(state)
    if shortage(state):
        # Everything that is tried there would seem not to work.
        raise NoRoom(f"nothing can be tested, and no command can begin: {lacking_room}", hint=room_hint(state))
    host = probe.host(store.places.cache, state, fresh=True)
    room = Ability(
        name="room for records", works=not lacking_room, detail=lacking_room or f"enough in {state}",
        fix=room_hint(state), needed="required",
    )  # fmt: skip
    unrecorded = layering.unrecorded_directories(store)
    detail = "every run's directory is recorded"
    if unrecorded:
        detail = f"directories of runs without a record: {len(unrecorded)}"
    records = Ability(name="records", works=not unrecorded, detail=detail, fix=layering.MEND)
    try:
        policy = policy_for(store.places, ()) if project is None else store.policy_of(project)
    except BadConfiguration:
        policy = Policy()  # `config check` reports the mistake
    abilities = [room, records, *doctor.examine_devices(policy.devices), *doctor.examine(state, host)]
    if project is not None:
        off = "; ".join(hooks_switched_off(project.path))
        detail = off or f"nothing in {project.path} switches them off"
        fix = "remove that setting, unless it is yours, before a client is started there"
        hooks = Ability(name="the clients' hooks", works=not off, detail=detail, fix=fix, needed="required")
        abilities.insert(0, hooks)
    if project is not None and not host.why_bare:
        foreign_files = unchangeable_files(store.places, project)
        abilities.append(doctor.examine_roots(host, policy.capture, project.roots, foreign_files))
    return Examination(host=host, abilities=tuple(abilities), wanted=policy.capture)


# ---- Whether commands can be sandboxed here, for programs that want to know before they offer a sandbox.

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
    """Say whether a sandbox can be had, which way, or why not; never raises. The result of a trial is remembered."""
    try:
        own_places = places()
        host = probe.host(own_places.cache, own_places.state)
    except (FumehoodError, OSError, UnicodeError) as error:
        plain = as_fumehood_error(error)
        return Availability(ok=False, reason=plain.message, hint=plain.hint)
    if host.why_bare:
        reason, _, fix = host.why_bare.partition(FIX)
        return Availability(ok=False, reason=reason, hint=fix or "fumehood doctor says what is missing")
    return Availability(ok=True, way=host.captures[0])
