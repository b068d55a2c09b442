"""What a command would see and may do, without running it; what commands find, asked in a sandbox; what works here."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import contextmanager
from typing import Any

from fumehood.core.config import CheckedConfiguration, Complaint, by_line, dotted_name, line_numbers
from fumehood.core.masks import FRESH, is_below, is_in, make_masks
from fumehood.core.policy import ALL_PROJECTS, FULL, HIDDEN, NONE, Policy, decide_network
from fumehood.core.report import TIME, format_amount
from fumehood.core.request import HOST, Request, build_argv, checked_command, command_text
from fumehood.core.tool import Capabilities, facts_script, format_limits, parse_facts
from fumehood.core.value import Value
from fumehood.errors import BadConfiguration, FumehoodError, NoRoom, Unavailable, as_fumehood_error
from fumehood.linux import cache, doctor, probe
from fumehood.linux import capture as capturing
from fumehood.linux.confine import memory_limit
from fumehood.linux.doctor import Ability
from fumehood.linux.launch import owner_of
from fumehood.linux.mounts import Seal
from fumehood.linux.probe import FIX, Host, read_text
from fumehood.linux.streams import RECORD_LIMIT
from fumehood.linux.survey import device_fault
from fumehood.service import layers as layering
from fumehood.service.blocked import failed_on
from fumehood.service.hood import Caller, Hood
from fumehood.service.running import Execution, output_streams
from fumehood.service.sandbox import build_world
from fumehood.service.store import Store
from fumehood.service.surroundings import World, host_or_tree_world
from fumehood.store.config import policy_for
from fumehood.store.places import home, new_id, places, release_reserve_if_full, room_hint, shortage, shortage_to_begin
from fumehood.store.projects import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OWNERS = {True: "not changed: giving a file to somebody else does nothing", False: "changed as the kernel allows"}


def explained(hood: Hood, request: Request) -> dict[str, Any]:
    """Return everything that decides how a request would run; nothing is run, and nothing is kept."""
    hood, request = hood.with_profiles(request)
    host = hood.host()
    if host.why_bare:
        raise Unavailable(f"there is no sandbox here: {host.why_bare}", hint="fumehood doctor says what is missing")
    if request.write is not None:
        from fumehood.service.roots import with_write_limit

        hood, request = with_write_limit(hood, request)
    project = hood.project
    choice = capturing.choose(host, hood.policy.capture, project.roots, failed_on(hood.store.places, project))
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
        "owners": _OWNERS[world.pretends_owners(execution.user)],
        "mounts": [
            {"path": each.target, "what": each.describe(), "why": each.why, "writable": each.is_writable}
            for each in {each.target: each for each in visible.mounts if not isinstance(each, Seal)}.values()
        ],
        "environment": {"kept": sorted(world.environment), "dropped": sorted(world.dropped)},
        "limits": {name: format_amount(name, amount) if amount else "no limit" for name, amount in limits.items()},
    }  # fmt: skip


def look_inside(hood: Hood, script: str, root: str, timeout: float) -> str:
    """Return what a script of our own prints in the sandbox; it is not recorded, and changes nothing."""
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
def _unrecorded(hood: Hood, name: str, choice: capturing.Choice, world: World) -> Iterator[Execution]:
    """Have layers for a command that no record will tell of; they are dropped at the end."""
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
            layering.drop(places, name)


# What commands find in their sandbox is asked inside it. Only what programs say of their versions is remembered, for as
# long as their files are the same: to start all of them takes seconds.
_FORMAT = 5
_PATIENCE_S = 300.0  # a program that hangs costs this much, and its version
_MOST_KEPT = 50
_SETTLED_S = 2  # a file that changed later may change again without another time
# What a package manager writes whenever it changes anything: then all programs are asked again.
_PACKAGES = (
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
    path = f"{store.places.cache}/capabilities/{_key(world, hood)}"
    remembered: dict[str, str] = {} if fresh else cache.load(path) or {}
    asked_at = time.time()
    facts, versions = parse_facts(look_inside(hood, facts_script(remembered), root, _PATIENCE_S), remembered)
    if not facts:
        raise FumehoodError("the sandbox did not describe itself", hint="fumehood run -- true shows what is wrong")
    # The last two words of what identifies a program are when its file was changed.
    changed_at = {each: max(map(float, each.split()[-2:])) for each in versions}
    _remember(path, {each: versions[each] for each in versions if changed_at[each] < asked_at - _SETTLED_S})
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


def _key(world: World, hood: Hood) -> str:
    """Return a name that changes with everything but the programs' files that their versions may depend on."""
    tops = [""] if world.tree is None else [world.tree.path, *([f"{world.layer}/upper"] if world.layer else [])]
    parts = [_FORMAT, os.geteuid(), read_text("/proc/sys/kernel/random/boot_id"), *hood.project.roots, *tops]
    for file in (f"{top}/{each}" for top in tops for each in _PACKAGES):
        try:
            status = os.stat(file, follow_symlinks=False)
            parts.append((file, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
        except OSError:
            continue
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _remember(path: str, versions: dict[str, str]) -> None:
    """Keep the versions; a cache that can't be written only costs time."""
    cache.save(path, versions)
    try:
        kept = sorted(os.scandir(os.path.dirname(path)), key=lambda entry: entry.stat().st_mtime_ns)
        for entry in kept[:-_MOST_KEPT]:
            os.unlink(entry.path)
    except OSError:
        return


# ---- What a configuration asks for and does not get on this machine: told by `config check`, in the way of no command.

def remarks(path: str, checked: CheckedConfiguration) -> tuple[Complaint, ...]:
    """Return what of a configuration without mistakes has no effect here, by line."""
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
            message, hint = _of_device(each) if name == "devices" else _of_unmask(each, policy, project)
            if message:
                key = dotted_name(place)
                complaints.append(Complaint(line=line, key=key, message=f"{each}: {message}", hint=hint))
    return by_line(complaints)


def _of_device(path: str) -> tuple[str, str]:
    fault = device_fault(path)
    if not fault and not os.access(path, os.R_OK | os.W_OK):
        return "it is closed to you, and so to your commands", "fumehood doctor says to whom it is open"
    return fault, ""


def _of_unmask(path: str, policy: Policy, project: str) -> tuple[str, str]:
    """Say why a path stays hidden although a person unmasks it, and what to do; nothing where it does not."""
    own = path.rstrip("/").removeprefix("./")
    if not own.startswith("/"):
        return _of_relative(own, [each.rstrip("/").removeprefix("./") for each in policy.mask])
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
    # What is not there may come.
    return ("you can't read it yourself", "") if os.path.exists(own) and not os.access(own, os.R_OK) else ("", "")


def _of_relative(path: str, masked: list[str]) -> tuple[str, str]:
    masked_parent = next((each for each in masked if is_below(path, each)), "")
    if path in masked:
        return "", ""
    if masked_parent:
        return f"{masked_parent} is masked whole in every root", f"unmask {masked_parent}, or mask less of it"
    return "nothing of this name is masked", "a relative path takes back one of `mask`"


# ---- A thorough look at this machine, at our own records and at the project at hand: what works, what is missing.

class Examination(Value):
    """What was seen; `wanted` is the way of capturing that the configuration asks for."""

    host: Host
    abilities: tuple[Ability, ...]
    wanted: str = ""

    @property
    def capture(self) -> str:
        """The way of capturing that is in force."""
        return "" if self.host.why_bare else self.wanted or self.host.captures[0]

    @property
    def why_this_capture(self) -> str:
        """Say why this way of capturing is in force: what the better ones lack."""
        if self.host.why_bare:
            return self.host.why_bare
        if self.wanted:
            refusal = self.host.refusal(self.wanted)
            return f"the configuration asks for it{refusal and f', but it does not work here: {refusal}'}"
        better = probe.CAPTURES[: probe.CAPTURES.index(self.host.captures[0])]
        lacking = [f"{capturing.LABELS[name]} does not work here: {self.host.refusal(name)}" for name in better]
        return "; ".join(lacking) or "it is the best way there is"

    def as_dict(self) -> dict[str, Any]:
        """Return it as `fumehood doctor --json` prints it."""
        return {
            "sandbox": not self.host.why_bare,
            "capture": self.capture,
            "why": self.why_this_capture,
            "bwrap": self.host.bwrap.fields() if self.host.bwrap else None,
            "in_force": {name: each.works for name, each in doctor.in_force(self.host).items()},
            "abilities": [ability.fields() for ability in self.abilities],
        }


def examined(store: Store, project: Project | None = None) -> Examination:
    """Look at this machine afresh, at what we keep, and at how a project's writes are captured."""
    state = store.places.state
    lacking = shortage_to_begin(state)
    if lacking:
        release_reserve_if_full(state)
    if shortage(state):
        # Whatever is tried out there would seem not to work.
        raise NoRoom(f"nothing can be tested, and no command can begin: {lacking}", hint=room_hint(state))
    host = probe.host(store.places.cache, state, fresh=True)
    room = Ability(
        name="room for records", works=not lacking, detail=lacking or f"enough in {state}",
        fix=room_hint(state), needed="required",
    )  # fmt: skip
    lost = layering.unrecorded_directories(store)
    detail = f"directories of runs without a record: {len(lost)}" if lost else "every run's directory is recorded"
    records = Ability(name="records", works=not lost, detail=detail, fix=layering.MEND)
    try:
        policy = policy_for(store.places, ()) if project is None else store.policy_of(project)
    except BadConfiguration:
        policy = Policy()  # `config check` tells of it
    abilities = [room, records, *doctor.examine_devices(policy.devices), *doctor.examine(state, host)]
    if project is not None and not host.why_bare:
        strangers = failed_on(store.places, project)
        abilities.append(doctor.examine_roots(host, policy.capture, project.roots, strangers))
    return Examination(host=host, abilities=tuple(abilities), wanted=policy.capture)


# ---- Whether a sandbox can be had here, for programs that want to know before they offer one.

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
        machine = probe.host(ours.cache, ours.state)
    except (FumehoodError, OSError, UnicodeError) as error:
        plain = as_fumehood_error(error)
        return Availability(ok=False, reason=plain.message, hint=plain.hint)
    if machine.why_bare:
        reason, _, fix = machine.why_bare.partition(FIX)
        return Availability(ok=False, reason=reason, hint=fix or "fumehood doctor says what is missing")
    return Availability(ok=True, way=machine.captures[0])
