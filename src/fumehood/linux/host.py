"""What this host is: what works here, what is around this process, and what keeps sandboxes from starting."""

from __future__ import annotations

import os

from fumehood.core.value import Value
from fumehood.linux.bwrap import Bwrap

# What installs a package, and the distributions (by ID or ID_LIKE) where it does.
_INSTALLERS = {
    "apt install -y": ("debian", "ubuntu"),
    "dnf install -y": ("fedora", "rhel"),
    "pacman -S --needed": ("arch",),
    "apk add": ("alpine",),
    "zypper install -y": ("suse", "opensuse"),
}
FIX = ". Fix: "
RESTRICTED = "kernel.apparmor_restrict_unprivileged_userns"
CLONE = "kernel.unprivileged_userns_clone"
LIMIT = "user.max_user_namespaces"
_CONTAINER_FIXES = {
    "docker": "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    " --security-opt systempaths=unconfined …",
    "podman": "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL"
    " --security-opt label=disable …",
    "lxc": "lxc config set NAME security.nesting true && lxc restart NAME",
    "kubernetes": "in the pod: hostUsers: false, and in the container's securityContext:"
    " {procMount: Unmasked, seccompProfile: {type: Unconfined}}",
}
_LET_BWRAP_THROUGH = (
    "apt install -y bubblewrap apparmor-profiles",
    "install -m 644 /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/",
    "apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict",
)
_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN, _CAP_SETFCAP = 6, 7, 21, 31


class Host(Value):
    """What works here. `captures` is best first, and empty when nothing can be sandboxed.

    `privileged`: an overlay can be mounted in a mount namespace alone, with no user namespace.
    `overlay_bwrap` is a bubblewrap whose own `--overlay` works, maybe another one than `bwrap`.
    `every_id`: the namespace that our overlays are mounted in knows every user and group; else it knows our own, and
    can know `groups` besides.
    """

    bwrap: Bwrap | None = None
    overlay_bwrap: Bwrap | None = None
    captures: tuple[str, ...] = ()
    privileged: bool = False
    every_id: bool = False
    groups: tuple[int, ...] = ()
    flatpak: bool = False
    container: str = ""
    nested: bool = False
    disable_userns: bool = False
    fuse_overlayfs: str = ""
    refusals: tuple[tuple[str, str], ...] = ()
    why: str = ""

    @property
    def makes_namespaces(self) -> bool:
        """Return True if our own launcher can make namespaces here, and not bubblewrap alone."""
        return self.privileged or "kernel" in self.captures

    @property
    def why_bare(self) -> str:
        """Say why nothing can be sandboxed here; "" where it can. Inside Flatpak it is never tried."""
        if self.flatpak:
            return "inside Flatpak, bubblewrap can't make a sandbox of its own"
        return "" if self.captures else self.why or "no sandbox can be made here"

    def refusal(self, capture: str) -> str:
        """Say in words why a way of capturing does not work here; "" if it does."""
        return dict(self.refusals).get(capture, "")


def read(path: str) -> str:
    """Return the text of a small file, or "" where it can't be had."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(file, 65536).decode("utf-8", "replace").rstrip("\n\0")
    except OSError:  # AppArmor's label, where there is no AppArmor
        return ""
    finally:
        os.close(file)


def may_mount() -> bool:
    """Return True if this process is root with the capability to mount."""
    return os.geteuid() == 0 and has_capability(_CAP_SYS_ADMIN)


def may_map_every_id() -> bool:
    """Return True if this process is a root that may give a new user namespace all the ids of its own."""
    return os.geteuid() == 0 and all(map(has_capability, (_CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP)))


def has_capability(number: int) -> bool:
    """Return True if this process has a capability in effect."""
    held = read("/proc/self/status").partition("CapEff:")[2].split()
    return bool(held) and bool(int(held[0], 16) >> number & 1)


def in_flatpak() -> bool:
    """Return True if this process runs inside a Flatpak application."""
    return bool(os.environ.get("FLATPAK_ID")) or os.path.exists("/.flatpak-info")


def container_name() -> str:
    """Name the kind of container around this process, or ""."""
    for path, name in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if os.path.exists(path):
            return name
    name = (read("/run/systemd/container") or os.environ.get("container", "")).strip()  # noqa: SIM112
    if name and name != "flatpak" and name.isascii() and name.isprintable():
        return name
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = read("/proc/1/cgroup")
    marks = {"kubepods": "kubernetes", "docker": "docker", "lxc": "lxc", "containerd": "containerd"}
    return next((name for mark, name in marks.items() if mark in groups), "")


def inside_bwrap() -> bool:
    """Return True if a bubblewrap is among this process's ancestors, as far as they can be seen."""
    pid = str(os.getpid())
    while pid != "0":
        name, _, rest = read(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")
        if name == "bwrap":
            return True
        if not rest:
            return False
        pid = rest.split()[1]
    return False


def as_root(line: str) -> str:
    """Write a line so that it runs as root: as it is for root, with sudo (or doas) for others."""
    import shutil

    doas = shutil.which("doas") and not shutil.which("sudo")
    return line if os.geteuid() == 0 else f"{'doas' if doas else 'sudo'} {line}"


def install(package: str) -> str:
    """Return the line that installs a package on this distribution."""
    fields = {}
    for line in (read("/etc/os-release") or read("/usr/lib/os-release")).splitlines():
        key, _, value = line.partition("=")
        fields[key] = value.strip("\"'")
    own = fields.get("ID", "")
    for name in (own, own.partition("-")[0], *fields.get("ID_LIKE", "").split()):
        if name == "nixos":
            return f"nix-env -iA nixos.{package}"
        for command, distributions in _INSTALLERS.items():
            if name in distributions:
                return as_root(f"{command} {package}")
    return f"install the package {package} of your distribution"


def _set(setting: str, value: int) -> str:
    """Return the line that sets a kernel setting, now and after the next boot."""
    file = "/etc/sysctl.d/60-fumehood.conf"
    return f"echo {setting}={value} | {as_root(f'tee -a {file}')} && {as_root(f'sysctl -p {file}')}"


def setting(name: str) -> str:
    """Read a setting of the kernel; "" where there is none of this name."""
    return read("/proc/sys/" + name.replace(".", "/"))


def explain(complaints: list[str], machine: Host) -> str:
    """Say in one sentence why no sandbox starts here, with the line that helps."""
    reason, fix = diagnose(complaints, machine)
    return f"{reason}{FIX}{fix}" if fix else reason


def diagnose(complaints: list[str], machine: Host) -> tuple[str, str]:
    """Trace what bubblewrap complained of to its cause: the cause, and the line that removes it."""
    said = complaints[-1] if complaints else ""
    chosen = os.environ.get("FUMEHOOD_BWRAP")
    if machine.flatpak:
        fix = "flatpak-spawn --host fumehood run -- COMMAND"
        return "inside Flatpak, which lets no program make a sandbox", fix
    if not said:
        return "bubblewrap is not installed", install("bubblewrap")
    if chosen and not said.startswith(f"{chosen}: "):
        return f"FUMEHOOD_BWRAP: {said}", "unset FUMEHOOD_BWRAP"
    reason, fix = ("", install("bubblewrap")) if "not a working" in said else barrier(said, machine)
    return f"{reason} ({said})" if reason else said, fix


def barrier(said: str, machine: Host) -> tuple[str, str]:
    """Name what keeps programs from making user namespaces here, and how it is lifted."""
    return (
        _outer_bubblewrap(said, machine) or _powerless_root(machine) or _kernel_setting(machine)
        or _outer_container(said, machine) or ("", "")
    )  # fmt: skip


def _outer_bubblewrap(said: str, machine: Host) -> tuple[str, str] | None:
    if not machine.nested:
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


def _powerless_root(machine: Host) -> tuple[str, str] | None:
    # Since Linux 5.12 it takes this capability to map user 0 into a new user namespace.
    if os.geteuid() or has_capability(_CAP_SETFCAP):
        return None
    add = "start the outer bwrap with --cap-add CAP_SETFCAP" if machine.nested else ""
    if machine.container in ("docker", "podman"):
        add = f"{machine.container} run --cap-add SETFCAP …"
    return "root without CAP_SETFCAP can't make a usable user namespace", add or "run as an ordinary user"


def _kernel_setting(machine: Host) -> tuple[str, str] | None:
    if not os.path.exists("/proc/self/ns/user"):
        return "this kernel was built without user namespaces (CONFIG_USER_NS)", ""
    if setting(LIMIT) == "0":
        return f"user namespaces are switched off ({LIMIT} = 0)", _set(LIMIT, 15000)
    if setting(CLONE) == "0" and os.geteuid():
        return f"user namespaces are for root only ({CLONE} = 0)", _set(CLONE, 1)
    if setting(RESTRICTED) == "1" and os.geteuid():
        # Once bwrap is let through, fuse-overlayfs or a newer bwrap captures: no need to drop the guard.
        reason = "AppArmor keeps ordinary programs from using user namespaces"
        return reason, "" if machine.bwrap else " && ".join(map(as_root, _LET_BWRAP_THROUGH))
    return None


def _outer_container(said: str, machine: Host) -> tuple[str, str] | None:
    if "Microsoft" in read("/proc/sys/kernel/osrelease"):  # version 2 says "microsoft"
        return "WSL 1 has no user namespaces", 'wsl.exe --set-version "$WSL_DISTRO_NAME" 2'
    if machine.container in _CONTAINER_FIXES or "mount proc" in said:
        around = machine.container or "container"
        return f"the {around} around us forbids sandboxes inside", _CONTAINER_FIXES.get(machine.container, "")
    return None
