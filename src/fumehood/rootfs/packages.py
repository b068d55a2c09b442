"""Let a tree's own package manager install packages: `apk add` in bubblewrap, with the tree writable and network on.

It runs as a root that has no capability and owns nothing but the tree: the person's own user, under another
number. Package scripts then work as they expect, and reach nothing else.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from fumehood.errors import FumehoodError, Unavailable
from fumehood.linux.nofollow import make_parents, open_below, open_top, remove_tree, set_mode
from fumehood.rootfs.names import bound_names
from fumehood.rootfs.releases import MIRROR, branch_of
from fumehood.rootfs.tree import is_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fumehood.linux.host import Host

    Tell = Callable[[str], None]

TIERS = {
    1: ("bash", "python3", "py3-pip", "coreutils", "grep", "sed"),
    2: ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm"),
}
_MANAGERS = ("/sbin/apk", "/usr/sbin/apk", "/usr/bin/apk")
_PARTS = ("main", "community")
_ISOLATION = (
    "--unshare-user", "--uid", "0", "--gid", "0", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
    "--unshare-cgroup", "--cap-drop", "ALL", "--die-with-parent", "--new-session",
)  # fmt: skip
_TMP = "/tmp"  # noqa: S108 - a fresh one, inside the sandbox
# Variables that tell a program how to reach the network.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


_COMMAND = """#!/bin/sh
# Everything in this tree belongs to one user, so apk must not give files to others: it would fail where they should.
for word in "$@"; do
    case $word in
        add) exec {manager} --no-chown "$@" ;;
        del|fix|update|upgrade|info|list|search|fetch|version|audit|cache|policy|verify|stats|query|extract) break ;;
    esac
done
exec {manager} "$@"
"""


def packages_of(tier: int) -> tuple[str, ...]:
    """Return what a tier has: everything of those before it too."""
    return tuple(name for number in sorted(TIERS) if number <= tier for name in TIERS[number])


def point_at(tree: str, mirror: str, version: str, keys: Sequence[str]) -> None:
    """Tell a tree's package manager where packages come from, and whose signatures it may trust."""
    top = open_top(tree)
    try:
        if mirror.rstrip("/") != MIRROR:
            _write(top, "etc/apk", "repositories", _moved(_read(top, "etc/apk/repositories"), mirror, version))
        for key in keys:
            try:
                with open(key, "rb") as file:
                    content = file.read(1 << 16)
            except OSError as error:
                raise FumehoodError(f"the key {key} can't be read: {error.strerror}", hint="--key FILE") from error
            _write(top, "etc/apk/keys", os.path.basename(key), content)
    finally:
        os.close(top)


def put_command(tree: str) -> None:
    """Let `apk add` work for commands as it does for us, without an option; a tree without apk stays as it is."""
    top = open_top(tree)
    try:
        manager = next((path for path in _MANAGERS if is_program(top, path)), None)
        if manager is not None and not is_program(top, "/usr/local/sbin/apk"):
            _write(top, "usr/local/sbin", "apk", _COMMAND.format(manager=manager).encode(), 0o755)
    finally:
        os.close(top)


def _moved(repositories: str, mirror: str, version: str) -> bytes:
    """Let lines that name Alpine's own server name a mirror; a tree that names none gets the usual two."""
    lines = [line.replace(MIRROR, mirror.rstrip("/")) for line in repositories.splitlines()]
    lines = [line.replace(MIRROR.replace("https:", "http:"), mirror.rstrip("/")) for line in lines]
    if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        lines += [f"{mirror.rstrip('/')}/{branch_of(version)}/{part}" for part in _PARTS]
    return "".join(f"{line}\n" for line in lines).encode()


def _read(top: int, path: str) -> str:
    try:
        file = open_below(top, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(file, 1 << 16).decode(errors="replace")
    except OSError:
        return ""  # no plain file
    finally:
        os.close(file)


def _write(top: int, folder: str, name: str, content: bytes, mode: int = 0o644) -> None:
    """Put a small file into the tree, in place of whatever is there."""
    _make_folder(top, folder)
    above = open_below(top, folder)
    try:
        remove_tree(above, name)
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=above)
        try:
            os.write(file, content)
            os.fchmod(file, mode)
        finally:
            os.close(file)
    finally:
        os.close(above)


def _make_folder(top: int, path: str) -> None:
    """Make a directory that everybody may enter, with those above it, where they are missing."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        here = "/".join(parts[:end])
        try:
            os.close(open_below(top, here))
        except FileNotFoundError:
            make_parents(top, here)
            made = open_below(top, here)
            set_mode(made, 0o755)
            os.close(made)


def add(host: Host, tree: str, packages: Sequence[str], proxy: str, tell: Tell) -> None:
    """Install packages into a tree; what the package manager says is passed on line by line."""
    if host.bwrap is None:
        raise Unavailable(f"packages can't be installed here: {host.why}", hint="fumehood doctor")
    command = [host.bwrap.path, *_arguments(host, tree, proxy), "--", _manager(tree), "add", "--no-cache", "--no-chown"]
    said: list[str] = []
    with subprocess.Popen(
        [*command, *packages], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        cwd="/", encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said = [*said[-50:], line.rstrip()]
                tell(line.rstrip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise FumehoodError(
            f"apk could not add packages: {_complaint(said) or f'exit status {process.returncode}'}",
            hint="nothing was installed; see rootfs.mirror, rootfs.proxy, and --key for a mirror that signs by itself",
        )


def _complaint(said: Sequence[str]) -> str:
    """Pick what tells the reason: what could not be fetched, then what failed for it."""
    warnings = [line for line in said if line.startswith("WARNING: ")]
    errors = [place for place, line in enumerate(said) if line.startswith(("ERROR: ", "bwrap: "))]
    told = said[errors[0] : errors[0] + 2] if errors else said[-1:]
    lines = [line.strip(" :").removeprefix("WARNING: ").removeprefix("ERROR: ") for line in [*warnings[:1], *told]]
    return "; ".join(lines)


def _arguments(host: Host, tree: str, proxy: str) -> list[str]:
    arguments = [*_ISOLATION, *(["--disable-userns"] if host.disable_userns else [])]
    arguments += ["--bind", tree, "/", "--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", _TMP]
    for bind in bound_names(tree):
        arguments += bind.arguments([])
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TMPDIR": _TMP, "LANG": "C.UTF-8"}
    arguments.append("--clearenv")
    for name, value in {**environment, **_network(os.environ, proxy)}.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--chdir", "/"]


def _network(environment: Mapping[str, str], proxy: str) -> dict[str, str]:
    if proxy:
        return {"http_proxy": proxy, "https_proxy": proxy, "HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
    return {name: environment[name] for name in _PROXIES if environment.get(name)}


def _manager(tree: str) -> str:
    top = open_top(tree)
    try:
        found = next((path for path in _MANAGERS if is_program(top, path)), None)
    finally:
        os.close(top)
    if found is None:
        raise FumehoodError("the tree has no apk", hint="packages can only be added to an Alpine tree")
    return found
