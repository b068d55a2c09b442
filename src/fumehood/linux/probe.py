"""What this host can do for a sandbox: found by trying once a boot, then read from a small file."""

from __future__ import annotations

import os
import sys

from fumehood.errors import Unavailable
from fumehood.linux import bwrap as bubblewrap
from fumehood.linux import cache
from fumehood.linux.bwrap import Bwrap
from fumehood.linux.host import (
    Host,
    container_name,
    explain,
    in_flatpak,
    inside_bwrap,
    may_map_every_id,
    may_mount,
    read,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

CAPTURES = ("kernel", "bwrap", "fuse", "copy")
"""The four ways of capturing writes, best first."""

_FORMAT = "2"
_KEPT_CONTEXTS = 8
_SUBGID, _NEWGIDMAP = "/etc/subgid", "/usr/bin/newgidmap"
_SYSCTLS = (
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/user/max_user_namespaces",
)
_TRIED = "/sys/root/tried"  # where a trial's overlay is mounted, as launches do it: see `linux/site.py`


def host(cache_dir: str, state_dir: str, *, fresh: bool = False) -> Host:
    """Return what this host can do, trying it out only where no earlier answer still holds.

    An answer holds for one boot, user, set of namespaces, privileges and system settings, these
    programs and the file system of `state_dir`. That nothing works is never remembered, so that a
    fix counts at once. A cache that can't be written only costs time.
    """
    options = bubblewrap.candidates()
    fuse = "".join(bubblewrap.programs("fuse-overlayfs")[:1])
    key = _context(options, fuse, state_dir)
    path = f"{cache_dir}/probe-{os.getuid()}"
    # With `sudo` the cache may lie in someone else's home: what others wrote is not an answer.
    blocks = (cache.read_own(path) or b"").decode("ascii", "replace").split("\n\n")
    if not fresh:
        for block in blocks:
            try:
                if block.startswith(key):
                    return _parse(block, options, fuse)
            except (KeyError, ValueError, IndexError):
                continue  # cut short by a full disk
    answer = look(state_dir, options)
    if answer.bwrap:
        boot = key.partition(",")[0]
        others = [block for block in blocks if block.startswith(boot) and not block.startswith(key)]
        text = "\n\n".join([key + _format(answer, options), *others][:_KEPT_CONTEXTS])
        try:
            os.makedirs(cache_dir, mode=0o700, exist_ok=True)
        except OSError:
            return answer
        cache.write_own(path, text.encode("ascii"))
    return answer


# The file: blocks of key=value lines, the newest first. A key is everything that an answer depends on.


def _context(options: list[tuple[str, str]], fuse: str, state_dir: str) -> str:
    # Capabilities, NoNewPrivs and Seccomp stand together; the lines after them change by themselves.
    privileges = read("/proc/self/status").partition("\nCapInh:")[2].partition("\nCpus_allowed:")[0]
    parts = (
        read("/proc/sys/kernel/random/boot_id"),
        _FORMAT,
        *(os.getresuid(), os.getegid(), os.getgroups(), _identity(_SUBGID), _identity(_NEWGIDMAP)),
        *(_namespace(kind) for kind in ("user", "mnt", "pid")),
        (privileges, read("/proc/self/attr/current")),
        *(read(path) for path in _SYSCTLS),
        [(origin, path, *_identity(path)) for origin, path in options],
        (fuse, *_identity(fuse)),
        _identity("/dev/fuse")[2:],
        _device(state_dir),
        *(os.environ.get(name, "") for name in ("FLATPAK_ID", "container")),
    )
    return f"key={parts!a}\n"  # escaped, so always one line of ASCII


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # the kernel has no such namespaces
        return ""


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


def _format(answer: Host, options: list[tuple[str, str]]) -> str:
    claims = ("privileged", "every_id", "flatpak", "nested", "disable_userns")
    lines = [f"{name}={int(getattr(answer, name))}" for name in claims]
    lines += [f"captures={' '.join(answer.captures)}", f"container={answer.container}"]
    lines += [f"groups={' '.join(map(str, answer.groups))}"]
    for name, value in (("bwrap", answer.bwrap), ("overlay_bwrap", answer.overlay_bwrap)):
        if value:
            place = options.index((value.origin, value.path))
            lines.append(f"{name}={place} {'.'.join(str(part) for part in value.version)}")
    lines += [f"no {capture}={reason}" for capture, reason in answer.refusals]
    return "\n".join(lines)


def _parse(block: str, options: list[tuple[str, str]], fuse: str) -> Host:
    lines = [line.partition("=") for line in block.splitlines()]
    values = {name: value for name, _, value in lines}
    return Host(
        bwrap=_parse_bwrap(values.get("bwrap", ""), options),
        overlay_bwrap=_parse_bwrap(values.get("overlay_bwrap", ""), options),
        captures=tuple(values["captures"].split()),
        privileged=values["privileged"] == "1",
        every_id=values["every_id"] == "1",
        groups=tuple(map(int, values["groups"].split())),
        flatpak=values["flatpak"] == "1",
        nested=values["nested"] == "1",
        disable_userns=values["disable_userns"] == "1",
        container=values["container"],
        fuse_overlayfs=fuse,
        refusals=tuple((name[3:], value) for name, _, value in lines if name.startswith("no ")),
    )


def _parse_bwrap(text: str, options: list[tuple[str, str]]) -> Bwrap | None:
    if not text:
        return None
    place, _, dotted = text.partition(" ")
    origin, path = options[int(place)]
    version = tuple(int(part) for part in dotted.split("."))
    return Bwrap(path=path, version=version, has_overlay=version >= bubblewrap.OVERLAY_SINCE, origin=origin)


# The trying, once a boot.


def look(state_dir: str, options: list[tuple[str, str]]) -> Host:
    """Try everything out with these candidates, whatever is remembered; remembers nothing itself."""
    _device(state_dir)
    fuse = "".join(bubblewrap.programs("fuse-overlayfs")[:1])
    working, complaints = bubblewrap.usable(options)
    bwrap, disable_userns = bubblewrap.first_that_starts(working, complaints)
    answer = Host(flatpak=in_flatpak(), container=container_name(), nested=inside_bwrap(), fuse_overlayfs=fuse)
    if not bwrap:
        return answer.replace(why=explain(complaints, answer))
    answer = answer.replace(bwrap=bwrap, disable_userns=disable_userns)
    overlay_bwrap, no_bwrap = bubblewrap.first_that_overlays([bwrap, *working], state_dir, disable_userns)
    sandbox = bubblewrap.sandbox(bwrap, disable_userns=disable_userns)
    privileged = may_mount() and not try_kernel_overlay(state_dir, True, sandbox)
    refusals = {
        "kernel": "" if privileged else try_kernel_overlay(state_dir, False, sandbox),
        "bwrap": no_bwrap,
        "fuse": try_fuse(fuse, state_dir, privileged, sandbox),
    }
    return answer.replace(
        overlay_bwrap=overlay_bwrap,
        privileged=privileged,
        every_id=privileged or may_map_every_id(),
        groups=() if refusals["kernel"] or os.geteuid() == 0 else mapped_groups(),
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
        try:
            return _in_child(program, layers.base, privileged, inside) or layers.missing(fuse=True)
        finally:
            if os.path.ismount(layers.merged):
                bubblewrap.attempt(_unmount(layers.merged))


def _unmount(merged: str) -> list[str]:
    unmounters = [*bubblewrap.programs("fusermount3"), *bubblewrap.programs("fusermount"), "/bin/false"]
    return [unmounters[0], "-u", "-z", merged]


def try_user_namespace() -> str:
    """Make a user and a mount namespace, as the launcher does; returns "" or why it can't be done."""
    return _in_child("nothing", "/", False, ["/bin/sh", "-c", ":"])


def mapped_groups() -> tuple[int, ...]:
    """Return which of our groups a namespace of ours can know besides the first: those that the system grants."""
    groups = granted_groups()
    refused = groups and _in_child("nothing", "/", False, ["/bin/sh", "-c", ":"], groups)
    return () if refused else groups


def granted_groups() -> tuple[int, ...]:
    """Return which of our groups the system's table lets us map."""
    import pwd

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
    from fumehood.linux.process import interpreter

    words = (kind, base, str(int(privileged)), ",".join(map(str, groups)), *command)
    return bubblewrap.attempt(interpreter(__name__, "trial_child", *words))


def trial_child(kind: str, base: str, privileged: str, groups: str, *command: str) -> NoReturn:
    """Mount the layers at `base`, run a command, and exit as it did (runs in its own process)."""
    from fumehood.linux import namespaces
    from fumehood.linux.mounts import Devices, Layered
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
            Layered(target=at, lowers=(f"{base}/lower",), upper=upper, work=work).do(tree)
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
