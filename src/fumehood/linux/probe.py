"""Find out what this host can do for a sandbox: tried once a boot, then read from a small file.

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

# Commands that install a package, and the distributions (by ID or ID_LIKE) that have them.
_INSTALL_COMMANDS = {
    "apt install -y": ("debian", "ubuntu"),
    "dnf install -y": ("fedora", "rhel"),
    "pacman -S --needed": ("arch",),
    "apk add": ("alpine",),
    "zypper install -y": ("suse", "opensuse"),
}
FIX = ". Fix: "  # stands between a reason and the line that removes it
APPARMOR_SETTING = "kernel.apparmor_restrict_unprivileged_userns"
CLONE_SETTING = "kernel.unprivileged_userns_clone"
LIMIT_SETTING = "user.max_user_namespaces"
_CONTAINER_FIXES = {
    "docker": "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    " --security-opt systempaths=unconfined …",
    "podman": "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL"
    " --security-opt label=disable …",
    "lxc": "lxc config set NAME security.nesting true && lxc restart NAME",
    "kubernetes": "in the pod: hostUsers: false, and in the container's securityContext:"
    " {procMount: Unmasked, seccompProfile: {type: Unconfined}}",
}
_APPARMOR_FIX = (  # lets bubblewrap through
    "apt install -y bubblewrap apparmor-profiles",
    "install -m 644 /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/",
    "apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict",
)
_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN, _CAP_SETFCAP = 6, 7, 21, 31


class Host(Value):
    """What works here."""

    bwrap: Bwrap | None = None
    overlay_bwrap: Bwrap | None = None  # its own `--overlay` works; may be another program than `bwrap`
    captures: tuple[str, ...] = ()  # the best first; empty if nothing can be sandboxed
    privileged: bool = False  # an overlay can be mounted in a mount namespace alone, without a user namespace
    every_id: bool = False  # the namespace of our overlays maps every user and group, and not only our own
    groups: tuple[int, ...] = ()  # that it can map besides our own, if not every one
    flatpak: bool = False
    container: str = ""
    nested: bool = False  # in another bubblewrap
    disable_userns: bool = False  # bubblewrap can keep commands from making user namespaces
    fuse_overlayfs: str = ""  # the program
    refusals: tuple[tuple[str, str], ...] = ()  # ways of capturing that do not work, each with the reason
    why: str = ""  # why nothing can be sandboxed

    @property
    def makes_namespaces(self) -> bool:
        """Return True if our own launcher can make namespaces here, and not only bubblewrap."""
        return self.privileged or "kernel" in self.captures

    @property
    def why_bare(self) -> str:
        """Why nothing can be sandboxed here; "" if it can. Inside Flatpak it is never tried."""
        if self.flatpak:
            return "inside Flatpak, bubblewrap can't make a sandbox of its own"
        return "" if self.captures else self.why or "no sandbox can be made here"

    def refusal(self, capture: str) -> str:
        """Return why a way of capturing does not work here; "" if it does."""
        return dict(self.refusals).get(capture, "")


def read_text(path: str) -> str:
    """Return the text of a small file, or "" if it can't be read."""
    return libc.read(path).decode("utf-8", "replace").rstrip("\n\0")


def can_mount() -> bool:
    """Return True if this process is root with the capability to mount."""
    return os.geteuid() == 0 and has_capability(_CAP_SYS_ADMIN)


def has_capability(number: int) -> bool:
    """Return True if this process has a capability in effect."""
    words = read_text("/proc/self/status").partition("CapEff:")[2].split()
    return bool(words) and bool(int(words[0], 16) >> number & 1)


def in_flatpak() -> bool:
    """Return True if this process runs inside a Flatpak application."""
    return bool(os.environ.get("FLATPAK_ID")) or os.path.exists("/.flatpak-info")


def container_name() -> str:
    """Return the kind of container around this process, or ""."""
    for path, name in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if os.path.exists(path):
            return name
    name = (read_text("/run/systemd/container") or os.environ.get("container", "")).strip()  # noqa: SIM112
    if name and name != "flatpak" and name.isascii() and name.isprintable():
        return name
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = read_text("/proc/1/cgroup")
    marks = {"kubepods": "kubernetes", "docker": "docker", "lxc": "lxc", "containerd": "containerd"}
    return next((name for mark, name in marks.items() if mark in groups), "")


def inside_bwrap() -> bool:
    """Return True if an ancestor of this process is a bubblewrap; some ancestors may be invisible."""
    pid = str(os.getpid())
    while pid != "0":
        name, _, rest = read_text(f"/proc/{pid}/stat").partition("(")[2].rpartition(")")
        if name == "bwrap":
            return True
        if not rest:
            return False
        pid = rest.split()[1]
    return False


def as_root(line: str) -> str:
    """Return a line that runs as root: unchanged if we are root, else with sudo or doas."""
    import shutil

    doas = shutil.which("doas") and not shutil.which("sudo")
    return line if os.geteuid() == 0 else f"{'doas' if doas else 'sudo'} {line}"


def install_line(package: str) -> str:
    """Return the line that installs a package on this distribution."""
    fields = {}
    for line in (read_text("/etc/os-release") or read_text("/usr/lib/os-release")).splitlines():
        key, _, value = line.partition("=")
        fields[key] = value.strip("\"'")
    own = fields.get("ID", "")
    for name in (own, own.partition("-")[0], *fields.get("ID_LIKE", "").split()):
        if name == "nixos":
            return f"nix-env -iA nixos.{package}"
        for command, distributions in _INSTALL_COMMANDS.items():
            if name in distributions:
                return as_root(f"{command} {package}")
    return f"install the package {package} of your distribution"


def _sysctl_line(setting: str, value: int) -> str:
    """Return the line that sets a kernel setting, now and after the next boot."""
    file = "/etc/sysctl.d/60-fumehood.conf"
    return f"echo {setting}={value} | {as_root(f'tee -a {file}')} && {as_root(f'sysctl -p {file}')}"


def kernel_setting(name: str) -> str:
    """Return a setting of the kernel; "" if there is none of this name."""
    return read_text("/proc/sys/" + name.replace(".", "/"))


def diagnose(complaints: list[str], machine: Host) -> tuple[str, str]:
    """Return why bubblewrap does not work, given its complaints, and the line that removes the cause."""
    complaint = complaints[-1] if complaints else ""
    chosen = os.environ.get("FUMEHOOD_BWRAP")
    if machine.flatpak:
        fix = "flatpak-spawn --host fumehood run -- COMMAND"
        return "inside Flatpak, which lets no program make a sandbox", fix
    if not complaint:
        return "bubblewrap is not installed", install_line("bubblewrap")
    if chosen and not complaint.startswith(f"{chosen}: "):
        return f"FUMEHOOD_BWRAP: {complaint}", "unset FUMEHOOD_BWRAP"
    if "not a working" in complaint:
        return complaint, install_line("bubblewrap")
    reason, fix = find_barrier(complaint, machine)
    return f"{reason} ({complaint})" if reason else complaint, fix


def find_barrier(complaint: str, machine: Host) -> tuple[str, str]:
    """Return what keeps programs from making user namespaces here, and the line that removes it; or two ""."""
    if not os.path.exists("/proc/self"):
        return NO_PROC, as_root(MOUNT_PROC)
    return (
        _outer_bubblewrap(complaint, machine) or _powerless_root(machine) or _kernel_setting_barrier(machine)
        or _outer_container(complaint, machine) or ("", "")
    )  # fmt: skip


# What bubblewrap complains of inside another one, what the outer one does, and how to start that instead.
_NESTED_COMPLAINTS = {
    "max_*_namespaces": ("forbids sandboxes inside", "without --disable-userns"),
    "No space left": ("forbids sandboxes inside", "without --disable-userns"),
    "Read-only file system": ("shows /proc read-only", "with --proc /proc"),
    # Bwrap's own --proc does this when root starts it.
    "mount proc": ("covers parts of /proc", "as an ordinary user, or with --bind /proc /proc and no --unshare-pid"),
}


def _outer_bubblewrap(complaint: str, machine: Host) -> tuple[str, str] | None:
    for words, (effect, way_to_start) in _NESTED_COMPLAINTS.items() if machine.nested else ():
        if words in complaint:
            return f"the bubblewrap around us {effect}", f"start the outer bwrap {way_to_start}"
    return None


def _powerless_root(machine: Host) -> tuple[str, str] | None:
    # Since Linux 5.12, mapping user 0 into a new user namespace takes this capability.
    if os.geteuid() or has_capability(_CAP_SETFCAP):
        return None
    fix = "start the outer bwrap with --cap-add CAP_SETFCAP" if machine.nested else "run as an ordinary user"
    if machine.container in ("docker", "podman"):
        fix = f"{machine.container} run --cap-add SETFCAP …"
    return "root without CAP_SETFCAP can't make a usable user namespace", fix


def _kernel_setting_barrier(machine: Host) -> tuple[str, str] | None:
    if not os.path.exists("/proc/self/ns/user"):
        return "this kernel was built without user namespaces (CONFIG_USER_NS)", ""
    if kernel_setting(LIMIT_SETTING) == "0":
        return f"user namespaces are switched off ({LIMIT_SETTING} = 0)", _sysctl_line(LIMIT_SETTING, 15000)
    if kernel_setting(CLONE_SETTING) == "0" and os.geteuid():
        return f"user namespaces are for root only ({CLONE_SETTING} = 0)", _sysctl_line(CLONE_SETTING, 1)
    if kernel_setting(APPARMOR_SETTING) == "1" and os.geteuid():
        # If bwrap is let through already, fuse-overlayfs or a newer bwrap captures: no need to weaken AppArmor.
        reason = "AppArmor keeps ordinary programs from using user namespaces"
        return reason, "" if machine.bwrap else " && ".join(map(as_root, _APPARMOR_FIX))
    return None


def _outer_container(complaint: str, machine: Host) -> tuple[str, str] | None:
    if "Microsoft" in read_text("/proc/sys/kernel/osrelease"):  # version 2 says "microsoft"
        return "WSL 1 has no user namespaces", 'wsl.exe --set-version "$WSL_DISTRO_NAME" 2'
    if machine.container in _CONTAINER_FIXES or "mount proc" in complaint:
        name = machine.container or "container"
        return f"the {name} around us forbids sandboxes inside", _CONTAINER_FIXES.get(machine.container, "")
    return None


CAPTURES = ("kernel", "bwrap", "fuse", "copy")
"""The four ways of capturing writes, best first."""

_MAX_CACHED = 8
_SUBGID, _NEWGIDMAP = "/etc/subgid", "/usr/bin/newgidmap"
_TRIAL_MOUNT = "/sys/root/tried"  # where a trial's overlay is mounted, as launches do it: see `linux/site.py`


def host(cache_dir: str, state_dir: str, *, fresh: bool = False) -> Host:
    """Return what this host can do; try it out only if there is no earlier answer that is still valid.

    An answer is valid for one boot, user, set of namespaces, privileges and system settings, for these programs and for
    the file system of `state_dir`. That nothing works is never remembered, so that a fix counts at once. A cache that
    can't be written only costs time.
    """
    candidates = bubblewrap.candidates()
    boot, context = read_text("/proc/sys/kernel/random/boot_id"), _context(candidates, state_dir)
    path = f"{cache_dir}/probe-{os.getuid()}"
    cached: dict[str, tuple[Any, ...]] = cache.load(path, boot) or {}  # by context, the newest first
    if context in cached and not fresh:
        *programs, fields = cached[context]
        bwrap, overlay_bwrap = (Bwrap(**each) if each else None for each in programs)
        return Host(bwrap=bwrap, overlay_bwrap=overlay_bwrap, **fields)
    answer = probe_host(state_dir, candidates)
    if answer.bwrap:
        fields = answer.fields()
        programs = [each and each.fields() for each in (fields.pop("bwrap"), fields.pop("overlay_bwrap"))]
        rows = [(context, (*programs, fields)), *(row for row in cached.items() if row[0] != context)]
        cache.save(path, dict(rows[:_MAX_CACHED]), boot)
    return answer


def _context(candidates: list[tuple[str, str]], state_dir: str) -> str:
    """Return everything that an answer depends on within one boot."""
    # The lines of capabilities, NoNewPrivs and Seccomp follow each other; the lines after them change by themselves.
    privileges = read_text("/proc/self/status").partition("\nCapInh:")[2].partition("\nCpus_allowed:")[0]
    conditions = (
        *(Host._fields, Bwrap._fields),
        *(os.getresuid(), os.getegid(), os.getgroups(), _file_version(_SUBGID), _file_version(_NEWGIDMAP)),
        *(libc.link_target(f"/proc/self/ns/{kind}") for kind in ("user", "mnt", "pid")),
        (privileges, read_text("/proc/self/attr/current")),
        *(kernel_setting(name) for name in (APPARMOR_SETTING, CLONE_SETTING, LIMIT_SETTING)),
        [(origin, path, *_file_version(path)) for origin, path in candidates],
        [(path, *_file_version(path)) for path in bubblewrap.trusted_programs("fuse-overlayfs")[:1]],
        _file_version("/dev/fuse")[2:],
        _make_state_directory(state_dir),
        *(os.environ.get(name, "") for name in ("FLATPAK_ID", "container")),
    )
    return repr(conditions)


def _file_version(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_mode)


def _make_state_directory(state_dir: str) -> int:
    """Make the state directory if it is missing; return the number of its device."""
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        return os.stat(state_dir).st_dev
    except OSError as exc:
        raise Unavailable(
            f"cannot make the state directory {state_dir}: {exc.strerror}",
            hint="name one that can be written: export XDG_STATE_HOME=/some/directory",
        ) from exc


# Trials, once a boot. Those that return a text return "" if it works, else the reason why it does not.


def probe_host(state_dir: str, candidates: list[tuple[str, str]]) -> Host:
    """Try everything out with these candidates for bubblewrap; neither use nor write the cache."""
    _make_state_directory(state_dir)
    fuse = "".join(bubblewrap.trusted_programs("fuse-overlayfs")[:1])
    working, complaints = bubblewrap.check_candidates(candidates)
    bwrap, disable_userns = bubblewrap.first_that_starts(working, complaints)
    answer = Host(flatpak=in_flatpak(), container=container_name(), nested=inside_bwrap(), fuse_overlayfs=fuse)
    if not bwrap:
        reason, fix = diagnose(complaints, answer)
        return answer.replace(why=f"{reason}{FIX}{fix}" if fix else reason)
    answer = answer.replace(bwrap=bwrap, disable_userns=disable_userns)
    overlay_bwrap, bwrap_refusal = bubblewrap.first_that_overlays([bwrap, *working], state_dir, disable_userns)
    sandbox = bubblewrap.sandbox_command(bwrap, disable_userns=disable_userns)
    privileged = can_mount() and not try_kernel_overlay(state_dir, True, sandbox)
    # Only root with these capabilities may map all its ids into a new user namespace.
    can_map_all = os.geteuid() == 0 and all(map(has_capability, (_CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP)))
    refusals = {
        "kernel": "" if privileged else try_kernel_overlay(state_dir, False, sandbox),
        "bwrap": bwrap_refusal,
        "fuse": try_fuse(fuse, state_dir, privileged, sandbox),
    }
    groups = mappable_groups() if os.geteuid() and not refusals["kernel"] else ()
    if groups and try_user_namespace(groups):
        groups = ()
    return answer.replace(
        overlay_bwrap=overlay_bwrap,
        privileged=privileged,
        every_id=privileged or can_map_all,
        groups=groups,
        captures=tuple(name for name in CAPTURES if not refusals.get(name)),
        refusals=tuple(
            (name, " ".join(reason.encode("ascii", "backslashreplace").decode("ascii").split()))
            for name, reason in refusals.items() if reason
        ),
    )


def try_kernel_overlay(scratch_dir: str, privileged: bool, sandbox: list[str] | None = None) -> str:
    """Mount an overlay whose layer is in `scratch_dir`, and write through it.

    `sandbox` is the beginning of a command line; if it is there, a program in that sandbox writes.
    """
    with bubblewrap.TrialLayer(scratch_dir) as trial:
        command = [*sandbox, "--bind", _TRIAL_MOUNT, trial.lower, "--"] if sandbox else []
        command += trial.command(trial.lower if sandbox else _TRIAL_MOUNT)
        return _run_in_child("kernel", trial.base, privileged, command) or trial.fault()


def try_fuse(program: str, scratch_dir: str, privileged: bool, sandbox: list[str]) -> str:
    """Mount an overlay with fuse-overlayfs, and write through it from a sandbox."""
    if not program:
        return "fuse-overlayfs is not installed"
    with bubblewrap.TrialLayer(scratch_dir) as trial:
        command = [*sandbox, "--bind", trial.merged, trial.merged, "--", *trial.command(trial.merged)]
        unmount_failure = ""
        try:
            failure = _run_in_child(program, trial.base, privileged, command) or trial.fault(is_fuse=True)
        finally:
            if os.path.ismount(trial.merged):
                unmount_failure = bubblewrap.run_trial(_unmount_command(trial.merged))
        # A run's mount would stay as well, with nothing behind it. This happens if fusermount3 finds no /etc/mtab.
        return failure or (unmount_failure and f"what it mounts can't be unmounted: {unmount_failure}")


def _unmount_command(merged: str) -> list[str]:
    unmounters = [*bubblewrap.trusted_programs("fusermount3"), *bubblewrap.trusted_programs("fusermount"), "/bin/false"]
    return [unmounters[0], "-u", "-z", merged]


def try_user_namespace(groups: tuple[int, ...] = ()) -> str:
    """Make a user and a mount namespace, as the launcher does."""
    return _run_in_child("nothing", "/", False, ["/bin/sh", "-c", ":"], groups)


def mappable_groups() -> tuple[int, ...]:
    """Return those of our groups, besides the first, that /etc/subgid lets us map into a user namespace."""
    try:
        names = {str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name}
    except KeyError:
        return ()  # a user without an account is granted nothing
    rows = [line.split(":") for line in read_text(_SUBGID).splitlines()]
    ranges = [
        range(int(first), int(first) + int(count))
        for name, first, count in (row for row in rows if len(row) == 3)
        if name in names and first.isdigit() and count.isdigit()
    ]
    groups = sorted({*os.getgroups()} - {os.getgid()})
    return tuple(group for group in groups if any(group in each for each in ranges))


def _run_in_child(kind: str, base: str, privileged: bool, command: list[str], groups: tuple[int, ...] = ()) -> str:
    # A fresh interpreter, because only a single-threaded process may enter a user namespace.
    from fumehood.linux.process import interpreter_command

    words = (kind, base, str(int(privileged)), ",".join(map(str, groups)), *command)
    return bubblewrap.run_trial(interpreter_command(__name__, "trial_child", *words))


def trial_child(kind: str, base: str, privileged: str, groups: str, *command: str) -> NoReturn:
    """Mount the trial layer at `base`, run a command, and exit with its status (in its own process).

    `kind` is "kernel", the path of fuse-overlayfs, or "nothing" to mount nothing.
    """
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
            site = Site()
            target, upper, work = _TRIAL_MOUNT.removeprefix(ROOT), f"{base}/upper", f"{base}/work"
            Overlay(target=target, lowers=(f"{base}/lower",), upper=upper, work=work).do(site)
            step = "mounting devices"  # as every launch does: not all containers allow it
            Devices(target="/dev").do(site)
        elif is_fuse and _run([kind, "-o", "lowerdir=lower,upperdir=upper,workdir=work", "merged"]):
            sys.exit(1)  # it has printed the reason
        step = f"starting {command[0]}"
        status = _run(list(command))
        if is_fuse:
            _run(_unmount_command("merged"))
    except OSError as exc:
        sys.exit(f"{step}: {exc.strerror}")
    sys.exit(status)


def _run(argv: list[str]) -> int:
    pid = os.posix_spawnp(argv[0], argv, os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
