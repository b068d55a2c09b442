"""Install a root tree: built apart, renamed into place when it is whole, by one process at a time."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import subprocess
from typing import Self

from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Unavailable
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import look, make_parents, open_below, open_top, remove_tree, set_mode
from fumehood.rootfs import download
from fumehood.rootfs import tree as root_tree
from fumehood.rootfs.download import MIRROR, Fetcher, branch_of
from fumehood.rootfs.layer import bound_names
from fumehood.rootfs.tree import CURRENT, MOUNT_POINTS, VERSION_FILE, Installed, is_program
from fumehood.rootfs.unpack import is_image, unpack, unpack_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.linux.host import Host
    from fumehood.rootfs.download import Release

    Tell = Callable[[str], None]
    from collections.abc import Callable, Mapping, Sequence



# ---- Install a root tree: built apart, renamed into place when it is whole, by one process at a time.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_LOCK, _NEW, _OLD = ".lock", ".new-", ".old-"
_FOLDERS = ("dev", "proc", "sys", "tmp", *(point[1:] for point in MOUNT_POINTS))


class Order(Value):
    """What is to be installed; without a source, a release from the mirror."""

    tier: int = 1
    version: str = ""
    source: str = ""
    sha256: str = ""
    name: str = ""
    mirror: str = MIRROR
    proxy: str = ""
    keys: tuple[str, ...] = ()


class Installer:
    """Puts root trees into a directory that others may be using and writing at the same time."""

    def __init__(self, at: str, cache: str, host: Host, tell: Tell, fetcher: Fetcher, machine: str) -> None:
        self._at = at
        self._downloads = f"{cache}/downloads"
        self._host = host
        self._tell = tell
        self._fetcher = fetcher
        self._machine = machine

    def install(self, order: Order) -> Installed:
        """Install what was ordered, unless it is here; `alpine` then means the latest release installed."""
        _check(order)
        with _Alone(self._at, self._tell):
            present = self._present(order)
            if present is not None:
                return present
            return self._from_file(order) if order.source else self._release(order, self._offered(order))

    def newer(self, mirror: str) -> Release | None:
        """Ask the mirror for a newer version than the one in use; None where there is none."""
        latest = download.latest(self._fetcher, mirror, download.architecture(self._machine))
        used = root_tree.version_of(f"{self._at}/{CURRENT}")
        if used and download.as_numbers(latest.version) <= download.as_numbers(used):
            return None
        return latest

    def update(self, order: Order) -> Installed | None:
        """Install the newest version beside the one in use, and switch; None where that is the newest."""
        with _Alone(self._at, self._tell):
            latest = self.newer(order.mirror)
            return None if latest is None else self._release(order, latest)

    def remove(self, name: str) -> None:
        """Remove a tree that no command is running in."""
        found = root_tree.find(self._at, name)
        with _Alone(self._at, self._tell):
            tree = os.open(found.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(tree, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if root_tree.current(self._at) == found.name:
                    os.unlink(f"{self._at}/{CURRENT}")
                gone = f"{_OLD}{secrets.token_hex(4)}"
                os.rename(found.path, f"{self._at}/{gone}")
            except BlockingIOError as error:
                raise BadRequest(f"a command is running in {found.name}", hint="wait for it, or end it") from error
            finally:
                os.close(tree)
            _remove(self._at, gone)

    def _present(self, order: Order) -> Installed | None:
        """Return what is installed already and answers the order; asks nobody."""
        if order.source:
            return None
        wanted = [f"{order.name or f'alpine-{order.version}'}{_suffix(order.tier)}"] if order.version else []
        if not order.version:
            used = root_tree.current(self._at)
            wanted = [used] if used and tier_of(f"{self._at}/{used}") >= order.tier else []
        found = next((name for name in wanted if root_tree.is_ready(f"{self._at}/{name}")), None)
        if found is None:
            return None
        if order.version:
            root_tree.switch(self._at, found)
        return root_tree.find(self._at, found)

    def _offered(self, order: Order) -> Release:
        arch = download.architecture(self._machine)
        if order.version:
            return download.exactly(self._fetcher, order.mirror, arch, order.version)
        return download.latest(self._fetcher, order.mirror, arch)

    def _release(self, order: Order, release: Release) -> Installed:
        name = f"{order.name or f'alpine-{release.version}'}{_suffix(order.tier)}"
        if root_tree.is_ready(f"{self._at}/{name}"):
            root_tree.switch(self._at, name)
            return root_tree.find(self._at, name)
        self._tell(f"downloading Alpine {release.version} for {self._machine}")
        tarball = self._fetcher.file(release.url, self._downloads, release.sha256)
        with _Building(self._at) as building:
            self._tell("unpacking")
            unpack(tarball, building.tree)
            self._finish(building, order, release.version, order.tier)
            os.unlink(tarball)
            building.settle(name)
        root_tree.switch(self._at, name)
        return root_tree.find(self._at, name)

    def _from_file(self, order: Order) -> Installed:
        """Install a person's own tree: a root tarball, or an image archive."""
        tarball = order.source
        if order.source.startswith(("http://", "https://")):
            sha256 = order.sha256 or download.checksum_beside(self._fetcher, order.source)
            self._tell(f"downloading {order.source}")
            tarball = self._fetcher.file(order.source, self._downloads, sha256)
        elif order.sha256:
            _compare(tarball, order.sha256)
        with _Building(self._at) as building:
            self._tell("unpacking")
            if is_image(tarball):
                unpack_image(tarball, building.tree, self._machine)
            else:
                unpack(tarball, building.tree)
            alpine = _alpine_release(building.tree)
            name = order.name or _name_for(order.source, alpine)
            name += _suffix(order.tier) if name == f"alpine-{alpine}" else ""
            self._finish(building, order, alpine or "image", order.tier)
            building.settle(name)
        if alpine and (name.startswith("alpine-") or not root_tree.current(self._at)):
            root_tree.switch(self._at, name)
        return root_tree.find(self._at, name)

    def _finish(self, building: _Building, order: Order, version: str, tier: int) -> None:
        """Make a tree ready to run in: mount points, packages, and last the mark that it is whole."""
        _make_mount_points(building.tree)
        if not root_tree.has_shell(building.path):
            raise FumehoodError("what was unpacked is not a root tree: it has no /bin/sh", hint="nothing was installed")
        if tier:
            self._tell(f"installing packages: {' '.join(packages_of(tier))}")
            point_at(building.path, order.mirror, version, order.keys)
            add(self._host, building.path, packages_of(tier), order.proxy, self._tell)
            _make_mount_points(building.tree)  # scripts may have moved one
        put_command(building.path)
        _write_mark(building.tree, f"{version}\ntier {tier}\n")


def _check(order: Order) -> None:
    if order.tier not in (0, *TIERS):
        raise BadRequest(f"there is no tier {order.tier}", hint="--tier 1 (shell, Python) or --tier 2 (more tools)")
    if order.name and (not _NAME.fullmatch(order.name) or order.name in (root_tree.ALPINE, "host", CURRENT)):
        raise BadRequest(f"a root can't be called {order.name!r}", hint="letters, digits, dots and dashes")
    if order.source and "://" not in order.source and not os.path.isfile(order.source):
        raise BadRequest(f"there is no file {order.source}", hint="--from takes a tarball, or its web address")
    if order.sha256 and not re.fullmatch(r"[0-9a-f]{64}", order.sha256):
        raise BadRequest(f"{order.sha256!r} is not a SHA-256", hint="64 hexadecimal digits")


def _compare(path: str, sha256: str) -> None:
    import hashlib

    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise FumehoodError(f"{path} is not what it should be: its SHA-256 is wrong", hint="nothing was installed")


def _suffix(tier: int) -> str:
    return f"-tier{tier}" if tier > 1 else ""


def tier_of(path: str) -> int:
    """Return the tier that a tree was installed with."""
    try:
        with open(f"{path}/{VERSION_FILE}", encoding="ascii", errors="replace") as file:
            said = re.search(r"^tier (\d+)$", file.read(4096), re.MULTILINE)
    except OSError:
        return 0
    return int(said[1]) if said else 0


def _name_for(source: str, alpine: str) -> str:
    """Name a tree after its file, or, where that is Alpine's own, after its version."""
    stem = re.sub(r"(\.tar)?(\.(gz|xz|bz2|tgz|txz|tar))?$", "", os.path.basename(source.rstrip("/")))
    if alpine and stem.startswith("alpine-minirootfs"):
        return f"alpine-{alpine}"
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", stem).lstrip(".-_+")[:100]
    return "image" if name in ("", root_tree.ALPINE, "host", CURRENT) else name


def _alpine_release(tree: int) -> str:
    """Return the Alpine version that a tree says it is, or ""."""
    try:
        file = open_below(tree, "etc/alpine-release", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        said = os.read(file, 256).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(file)
    return said if re.fullmatch(r"[0-9][0-9A-Za-z._]*", said) else ""


def _make_mount_points(tree: int) -> None:
    """Make what things are mounted on: plain directories, and a plain file for the resolver's configuration."""
    for name in _FOLDERS:
        found = look(tree, name)
        if found is None or not stat.S_ISDIR(found.st_mode):
            remove_tree(tree, name)
            os.mkdir(name, 0o700, dir_fd=tree)
            os.chmod(name, 0o1777 if name == "tmp" else 0o755, dir_fd=tree)
    if look(tree, "etc") is None:
        os.mkdir("etc", 0o755, dir_fd=tree)
    with Closing(open_below(tree, "etc")) as folder:
        found = look(folder, "resolv.conf")
        if found is None or not stat.S_ISREG(found.st_mode):
            remove_tree(folder, "resolv.conf")
            os.close(os.open("resolv.conf", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder))


def _write_mark(tree: int, text: str) -> None:
    remove_tree(tree, VERSION_FILE)
    with Closing(os.open(VERSION_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=tree)) as file:
        os.write(file, text.encode())


class _Alone:
    """The directory of root trees, locked: one process installs, the others wait and find what it installed."""

    def __init__(self, at: str, tell: Tell) -> None:
        self._at = at
        self._tell = tell
        self._file = -1

    def __enter__(self) -> None:
        try:
            # One that the environment names is for everybody who uses the machine's image.
            os.makedirs(self._at, mode=0o755 if "FUMEHOOD_ROOTFS_DIR" in os.environ else 0o700, exist_ok=True)
            self._file = os.open(f"{self._at}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FumehoodError(
                f"root trees can't be installed in {self._at}: {error.strerror}",
                hint="FUMEHOOD_ROOTFS_DIR may name a directory that you can write",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._tell("another process is installing; waiting for it")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        # What a killed process left: nobody else is building now.
        for name in os.listdir(self._at):
            if name.startswith((_NEW, _OLD)):
                _remove(self._at, name)

    def __exit__(self, *_error: object) -> None:
        os.close(self._file)


def _remove(at: str, name: str) -> None:
    with Closing(open_top(at)) as above:
        remove_tree(above, name)


class _Building:
    """A tree under construction, which is gone again unless it was settled in its place."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._name = f"{_NEW}{secrets.token_hex(4)}"
        self.path = f"{at}/{self._name}"
        self.tree = -1

    def __enter__(self) -> Self:
        os.mkdir(self.path, 0o700)
        self.tree = open_top(self.path)
        return self

    def settle(self, name: str) -> None:
        """Put the tree into its place, in one step; one that was there and is not ready makes room."""
        os.chmod(self.path, 0o755)  # noqa: S103 - it is `/` to whoever runs in it
        place = f"{self._at}/{name}"
        if root_tree.is_ready(place):
            raise BadRequest(f"there is a root {name} already", hint=f"fumehood rootfs remove {name}; or --name …")
        if os.path.lexists(place):
            _remove(self._at, name)
        os.rename(self.path, place)

    def __exit__(self, *_error: object) -> None:
        os.close(self.tree)
        _remove(self._at, self._name)


# ---- Let a tree's own package manager install packages: `apk add` in bubblewrap, with the tree writable and network
# on.
#
# It runs as a root that has no capability and owns nothing but the tree: the person's own user, under another
# number. Package scripts then work as they expect, and reach nothing else.

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
    with Closing(open_top(tree)) as top:
        if mirror.rstrip("/") != MIRROR:
            _write(top, "etc/apk", "repositories", _moved(_read(top, "etc/apk/repositories"), mirror, version))
        for key in keys:
            try:
                with open(key, "rb") as file:
                    content = file.read(1 << 16)
            except OSError as error:
                raise FumehoodError(f"the key {key} can't be read: {error.strerror}", hint="--key FILE") from error
            _write(top, "etc/apk/keys", os.path.basename(key), content)


def put_command(tree: str) -> None:
    """Let `apk add` work for commands as it does for us, without an option; a tree without apk stays as it is."""
    with Closing(open_top(tree)) as top:
        manager = next((path for path in _MANAGERS if is_program(top, path)), None)
        if manager is not None and not is_program(top, "/usr/local/sbin/apk"):
            _write(top, "usr/local/sbin", "apk", _COMMAND.format(manager=manager).encode(), 0o755)


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
    with Closing(open_below(top, folder)) as above:
        remove_tree(above, name)
        with Closing(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=above)) as file:
            os.write(file, content)
            os.fchmod(file, mode)


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
    with Closing(open_top(tree)) as top:
        found = next((path for path in _MANAGERS if is_program(top, path)), None)
    if found is None:
        raise FumehoodError("the tree has no apk", hint="packages can only be added to an Alpine tree")
    return found
