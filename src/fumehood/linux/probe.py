"""What this host can do for a sandbox: found by trying once a boot, then read from a small file.

Also what is around this process, and what keeps sandboxes from starting.
"""

from __future__ import annotations

import os
import pwd
import sys

from fumehood.core.value import Value
from fumehood.errors import MOUNT_PROC, NO_PROC, Unavailable
from fumehood.linux import bwrap as bubblewrap
from fumehood.linux import cache, libc
from fumehood.linux.bwrap import Bwrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

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
    return libc.read(path).decode("utf-8", "replace").rstrip("\n\0")


def may_mount() -> bool:
    """Return True if this process is root with the capability to mount."""
    return os.geteuid() == 0 and has_capability(_CAP_SYS_ADMIN)


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
    if not os.path.exists("/proc/self"):
        return NO_PROC, as_root(MOUNT_PROC)
    return (
        _outer_bubblewrap(said, machine) or _powerless_root(machine) or _kernel_setting(machine)
        or _outer_container(said, machine) or ("", "")
    )  # fmt: skip


# What bubblewrap says inside another one, what that means, and how the outer one is to be started.
_NESTED = {
    "max_*_namespaces": ("forbids sandboxes inside", "without --disable-userns"),
    "No space left": ("forbids sandboxes inside", "without --disable-userns"),
    "Read-only file system": ("shows /proc read-only", "with --proc /proc"),
    # Bwrap's own --proc does this when root starts it.
    "mount proc": ("covers parts of /proc", "as an ordinary user, or with --bind /proc /proc and no --unshare-pid"),
}


def _outer_bubblewrap(said: str, machine: Host) -> tuple[str, str] | None:
    means = next((means for words, means in _NESTED.items() if words in said), None) if machine.nested else None
    return means and (f"the bubblewrap around us {means[0]}", f"start the outer bwrap {means[1]}")


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


# What works here, tried once a boot.

CAPTURES = ("kernel", "bwrap", "fuse", "copy")
"""The four ways of capturing writes, best first."""

_KEPT_CONTEXTS = 8
_SUBGID, _NEWGIDMAP = "/etc/subgid", "/usr/bin/newgidmap"
_TRIED = "/sys/root/tried"  # where a trial's overlay is mounted, as launches do it: see `linux/site.py`


def host(cache_dir: str, state_dir: str, *, fresh: bool = False) -> Host:
    """Return what this host can do, trying it out only where no earlier answer still holds.

    An answer holds for one boot, user, set of namespaces, privileges and system settings, these
    programs and the file system of `state_dir`. That nothing works is never remembered, so that a
    fix counts at once. A cache that can't be written only costs time.
    """
    options = bubblewrap.candidates()
    boot, context = read("/proc/sys/kernel/random/boot_id"), _context(options, state_dir)
    path = f"{cache_dir}/probe-{os.getuid()}"
    kept: dict[str, tuple[Any, ...]] = cache.load(path, boot) or {}  # the newest first
    if context in kept and not fresh:
        *programs, fields = kept[context]
        bwrap, overlay_bwrap = (Bwrap(**each) if each else None for each in programs)
        return Host(bwrap=bwrap, overlay_bwrap=overlay_bwrap, **fields)
    answer = look(state_dir, options)
    if answer.bwrap:
        fields = answer.fields()
        programs = [each and each.fields() for each in (fields.pop("bwrap"), fields.pop("overlay_bwrap"))]
        rows = [(context, (*programs, fields)), *(row for row in kept.items() if row[0] != context)]
        cache.save(path, dict(rows[:_KEPT_CONTEXTS]), boot)
    return answer


def _context(options: list[tuple[str, str]], state_dir: str) -> str:
    """Return everything that an answer depends on within one boot."""
    # Capabilities, NoNewPrivs and Seccomp stand together; the lines after them change by themselves.
    privileges = read("/proc/self/status").partition("\nCapInh:")[2].partition("\nCpus_allowed:")[0]
    parts = (
        *(Host._fields, Bwrap._fields),
        *(os.getresuid(), os.getegid(), os.getgroups(), _identity(_SUBGID), _identity(_NEWGIDMAP)),
        *(libc.link_target(f"/proc/self/ns/{kind}") for kind in ("user", "mnt", "pid")),
        (privileges, read("/proc/self/attr/current")),
        *(setting(name) for name in (RESTRICTED, CLONE, LIMIT)),
        [(origin, path, *_identity(path)) for origin, path in options],
        [(path, *_identity(path)) for path in bubblewrap.programs("fuse-overlayfs")[:1]],
        _identity("/dev/fuse")[2:],
        _device(state_dir),
        *(os.environ.get(name, "") for name in ("FLATPAK_ID", "container")),
    )
    return repr(parts)


def _identity(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_mode)


def _device(state_dir: str) -> int:
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        return os.stat(state_dir).st_dev
    except OSError as exc:
        raise Unavailable(
            f"cannot make the state directory {state_dir}: {exc.strerror}",
            hint="name one that can be written: export XDG_STATE_HOME=/some/directory",
        ) from exc


# The trying, once a boot.


def look(state_dir: str, options: list[tuple[str, str]]) -> Host:
    """Try everything out with these candidates, whatever is remembered; remembers nothing itself."""
    _device(state_dir)
    fuse = "".join(bubblewrap.programs("fuse-overlayfs")[:1])
    working, complaints = bubblewrap.usable(options)
    bwrap, disable_userns = bubblewrap.first_that_starts(working, complaints)
    answer = Host(flatpak=in_flatpak(), container=container_name(), nested=inside_bwrap(), fuse_overlayfs=fuse)
    if not bwrap:
        reason, fix = diagnose(complaints, answer)
        return answer.replace(why=f"{reason}{FIX}{fix}" if fix else reason)
    answer = answer.replace(bwrap=bwrap, disable_userns=disable_userns)
    overlay_bwrap, no_bwrap = bubblewrap.first_that_overlays([bwrap, *working], state_dir, disable_userns)
    sandbox = bubblewrap.sandbox(bwrap, disable_userns=disable_userns)
    privileged = may_mount() and not try_kernel_overlay(state_dir, True, sandbox)
    # Only such a root may give a new user namespace all the ids of its own.
    may_map_all = os.geteuid() == 0 and all(map(has_capability, (_CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP)))
    refusals = {
        "kernel": "" if privileged else try_kernel_overlay(state_dir, False, sandbox),
        "bwrap": no_bwrap,
        "fuse": try_fuse(fuse, state_dir, privileged, sandbox),
    }
    # Those that a namespace of ours can know besides our first.
    groups = granted_groups() if os.geteuid() and not refusals["kernel"] else ()
    if groups and try_user_namespace(groups):
        groups = ()
    return answer.replace(
        overlay_bwrap=overlay_bwrap,
        privileged=privileged,
        every_id=privileged or may_map_all,
        groups=groups,
        captures=tuple(name for name in CAPTURES if not refusals.get(name)),
        refusals=tuple(
            (name, " ".join(reason.encode("ascii", "backslashreplace").decode("ascii").split()))
            for name, reason in refusals.items() if reason
        ),
    )


def try_kernel_overlay(scratch_dir: str, privileged: bool, sandbox: list[str] | None = None) -> str:
    """Mount an overlay whose layer is in `scratch_dir` and write through it; returns "" or why not.

    The writing is done from inside the sandbox that this beginning of a command line makes.
    """
    with bubblewrap.Layers(scratch_dir) as layers:
        inside = [*sandbox, "--bind", _TRIED, layers.lower, "--"] if sandbox else []
        inside += layers.exercise(layers.lower if sandbox else _TRIED)
        return _in_child("kernel", layers.base, privileged, inside) or layers.missing()


def try_fuse(program: str, scratch_dir: str, privileged: bool, sandbox: list[str]) -> str:
    """Mount with fuse-overlayfs and write through it from a sandbox; returns "" or why not."""
    if not program:
        return "fuse-overlayfs is not installed"
    with bubblewrap.Layers(scratch_dir) as layers:
        inside = [*sandbox, "--bind", layers.merged, layers.merged, "--", *layers.exercise(layers.merged)]
        stays = ""
        try:
            refused = _in_child(program, layers.base, privileged, inside) or layers.missing(fuse=True)
        finally:
            if os.path.ismount(layers.merged):
                stays = bubblewrap.attempt(_unmount(layers.merged))
        # A run's mount would stay as well, with nothing behind it: so it is where fusermount3 finds no /etc/mtab.
        return refused or (stays and f"what it mounts can't be unmounted: {stays}")


def _unmount(merged: str) -> list[str]:
    unmounters = [*bubblewrap.programs("fusermount3"), *bubblewrap.programs("fusermount"), "/bin/false"]
    return [unmounters[0], "-u", "-z", merged]


def try_user_namespace(groups: tuple[int, ...] = ()) -> str:
    """Make a user and a mount namespace, as the launcher does; returns "" or why it can't be done."""
    return _in_child("nothing", "/", False, ["/bin/sh", "-c", ":"], groups)


def granted_groups() -> tuple[int, ...]:
    """Return which of our groups the system's table lets us map."""
    try:
        names = {str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name}
    except KeyError:
        return ()  # who has no account is granted nothing
    granted = [line.split(":") for line in read(_SUBGID).splitlines()]
    ranges = [
        range(int(first), int(first) + int(count))
        for name, first, count in (line for line in granted if len(line) == 3)
        if name in names and first.isdigit() and count.isdigit()
    ]
    others = sorted({*os.getgroups()} - {os.getgid()})
    return tuple(group for group in others if any(group in each for each in ranges))


def _in_child(kind: str, base: str, privileged: bool, command: list[str], groups: tuple[int, ...] = ()) -> str:
    # A fresh interpreter, because only a single-threaded process may enter a user namespace.
    from fumehood.linux.process import interpreter_command

    words = (kind, base, str(int(privileged)), ",".join(map(str, groups)), *command)
    return bubblewrap.attempt(interpreter_command(__name__, "trial_child", *words))


def trial_child(kind: str, base: str, privileged: str, groups: str, *command: str) -> NoReturn:
    """Mount the layers at `base`, run a command, and exit as it did (runs in its own process)."""
    from fumehood.linux import namespaces
    from fumehood.linux.mounts import Devices, Overlay
    from fumehood.linux.site import ROOT, Site

    is_fuse = kind.startswith("/")
    step = "making namespaces"
    try:
        if privileged == "1" or not is_fuse:
            mapped = tuple(map(int, groups.split(","))) if groups else ()
            namespaces.enter_namespaces(privileged=privileged == "1", groups=mapped)
        step = "mounting"
        os.chdir(base)
        if kind == "kernel":
            tree = Site()
            at, upper, work = _TRIED.removeprefix(ROOT), f"{base}/upper", f"{base}/work"
            Overlay(target=at, lowers=(f"{base}/lower",), upper=upper, work=work).do(tree)
            step = "mounting devices"  # as every launch does: not all containers let it
            Devices(target="/dev").do(tree)
        elif is_fuse and _run([kind, "-o", "lowerdir=lower,upperdir=upper,workdir=work", "merged"]):
            sys.exit(1)  # it has said why
        step = f"starting {command[0]}"
        status = _run(list(command))
        if is_fuse:
            _run(_unmount("merged"))
    except OSError as exc:
        sys.exit(f"{step}: {exc.strerror}")
    sys.exit(status)


def _run(argv: list[str]) -> int:
    pid = os.posix_spawnp(argv[0], argv, os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
