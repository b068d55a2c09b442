"""Install a root tree: built apart, renamed into place when it is whole, by one process at a time.

Packages are installed by the tree's own package manager: `apk add` in bubblewrap, with the tree writable and network
on. It runs as a root that has no capability and owns nothing but the tree: the person's own user, under another
number. Package scripts then work as they expect, and reach nothing else.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from fumehood.core.request import ALPINE, HOST
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError, Unavailable
from fumehood.linux.bwrap import open_memory_file
from fumehood.linux.cache import plain_file
from fumehood.linux.confine import filter_for
from fumehood.linux.libc import Closing
from fumehood.linux.lock import Lock
from fumehood.linux.nofollow import LISTING, open_below, open_top, remove_directory, remove_tree, split, stat_entry
from fumehood.linux.probe import Host
from fumehood.rootfs import download
from fumehood.rootfs import tree as root_tree
from fumehood.rootfs.download import FULL, MIRROR, Fetcher, Release, branch_of
from fumehood.rootfs.unpack import full_disk, open_inside, unpack

Process = subprocess.Popen[bytes]
Tell = Callable[[str], None]

_LONGEST_NAME = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_LONGEST_NAME - 1}}}")
_PACKAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+:-]*([<>=~@][A-Za-z0-9._+<>=~@-]+)?")
_LOCK, _NEW, _OLD = ".lock", ".new-", ".old-"
_FOLDERS = ("dev", "proc", "sys", "tmp", *(point[1:] for point in root_tree.MOUNT_POINTS))


class Order(Value):
    """What is to be installed; without a source, a release from the mirror."""

    tier: int = 1
    packages: tuple[str, ...] = ()
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
        self._cache = cache
        self._host = host
        self._tell = tell
        self._fetcher = fetcher
        self._machine = machine

    def install(self, order: Order) -> root_tree.Installed:
        """Install what was ordered, unless it is here; `alpine` then means the latest release installed."""
        _check(order)
        # What is here needs no lock: the directory may be root's, and read by everybody.
        name = "" if order.source else self._present(order)
        if name and (not order.version or root_tree.current(self._at) == name or self._is_tree):
            return root_tree.find(self._at, name)
        self._refuse_in_a_tree()
        with _alone(self._at, self._tell):
            if order.source:
                return self._from_file(order)
            name = self._present(order)
            if name:
                return self._switched(name)
            arch = download.architecture(self._machine)
            if order.version:
                return self._release(order, download.exactly(self._fetcher, order.mirror, arch, order.version))
            return self._release(order, download.latest(self._fetcher, order.mirror, arch))

    def newer(self, mirror: str) -> Release | None:
        """Ask the mirror for a newer version than the one in use; None where there is none."""
        latest = download.latest(self._fetcher, mirror, download.architecture(self._machine))
        used = root_tree.mark_of(self._at if self._is_tree else f"{self._at}/{root_tree.CURRENT}").version
        if used and download.as_numbers(latest.version) <= download.as_numbers(used):
            return None
        return latest

    def update(self, order: Order) -> root_tree.Installed | None:
        """Install the newest version beside the one in use, and switch; None where that is the newest."""
        _check(order)
        self._refuse_in_a_tree()
        with _alone(self._at, self._tell):
            latest = self.newer(order.mirror)
            return None if latest is None else self._release(order, latest)

    def remove(self, name: str) -> None:
        """Remove a tree that no command is running in; where it was `alpine`, that is the newest of the others then."""
        self._refuse_in_a_tree()
        tree = root_tree.find_damaged(self._at, name)
        with _alone(self._at, self._tell):
            with Lock(os.open(tree.path, LISTING | os.O_CLOEXEC)) as directory:
                try:
                    directory.take(wait=False)
                except BlockingIOError as error:
                    raise BadRequest(f"a command is running in {tree.name}", hint="wait for it, or end it") from error
                if root_tree.current(self._at) == tree.name:
                    installed = root_tree.installed(self._at)
                    others = [each for each in installed if each.name != tree.name and each.version[:1].isdecimal()]
                    # A tree that a person named is theirs, and becomes `alpine` only where there is no other.
                    newest = max(others, default=None, key=lambda each: (
                        each.name.startswith("alpine-"), download.as_numbers(each.version),
                        root_tree.mark_of(each.path).tier,
                    ))  # fmt: skip
                    if newest is None:
                        os.unlink(f"{self._at}/{root_tree.CURRENT}")
                    else:
                        root_tree.switch(self._at, newest.name)
                gone = f"{_OLD}{secrets.token_hex(4)}"
                os.rename(tree.path, f"{self._at}/{gone}")
            remove_directory(f"{self._at}/{gone}")

    @property
    def _is_tree(self) -> bool:
        """Whether the directory is a tree itself, and does not hold some."""
        return root_tree.is_ready(self._at)

    def _refuse_in_a_tree(self) -> None:
        if self._is_tree:
            raise BadRequest(
                f"{self._at} is one root tree, which is not changed", hint="name a directory that holds root trees"
            )

    def _present(self, order: Order) -> str:
        """Return the name of what is installed already and answers the order, or ""; asks nobody."""
        if self._is_tree:
            return os.path.basename(self._at) if self._answers(self._at, order) else ""
        name = order.name or (self._name(order, order.version) if order.version else root_tree.current(self._at))
        return name if name and self._answers(f"{self._at}/{name}", order) else ""

    def _answers(self, path: str, order: Order) -> bool:
        mark = root_tree.mark_of(path)
        is_version = order.version in ("", mark.version) or mark.version.startswith(f"{order.version}.")
        has_all = mark.tier >= order.tier and set(order.packages) <= set(mark.packages)
        return is_version and has_all and root_tree.is_ready(path)

    def _name(self, order: Order, version: str) -> str:
        """Name a tree after its version, its tier, and the packages that were asked for besides."""
        if order.name:
            return order.name
        name = f"alpine-{version}{f'-tier{order.tier}' if order.tier > 1 else ''}"
        name += "".join(f"+{re.split('[<>=~@]', each)[0].replace(':', '-')}" for each in order.packages)
        if len(name) > _LONGEST_NAME:
            raise BadRequest("a tree with so many packages needs a name", hint="--name NAME")
        path = f"{self._at}/{name}"
        # Without any tool it has the name that one of tier 1 would have.
        is_less = order.tier == 1 and root_tree.is_ready(path) and root_tree.mark_of(path).tier == 0
        return f"{name}-tier1" if is_less else name

    def _switched(self, name: str) -> root_tree.Installed:
        """Let `alpine` mean the tree of a name."""
        if root_tree.current(self._at) != name:
            root_tree.switch(self._at, name)
        return root_tree.find(self._at, name)

    def _release(self, order: Order, release: Release) -> root_tree.Installed:
        name = self._name(order, release.version)
        if self._answers(f"{self._at}/{name}", order):
            return self._switched(name)
        self._tell(f"downloading Alpine {release.version} for {self._machine}")
        sha256 = order.sha256 or release.sha256
        tarball = self._fetcher.file(release.url, f"{self._cache}/downloads", sha256)
        with _Building(self._at) as building:
            self._tell("unpacking")
            unpack(tarball, building.tree)
            self._finish(building, order, release.version)
            os.unlink(tarball)
            building.settle(name)
        return self._switched(name)

    def _from_file(self, order: Order) -> root_tree.Installed:
        """Install a person's own tree: a root tarball, or an image archive."""
        tarball = order.source
        if order.source.startswith(("http://", "https://")):
            sha256 = order.sha256 or download.checksum_beside(self._fetcher, order.source)
            self._tell(f"downloading {order.source}")
            tarball = self._fetcher.file(order.source, f"{self._cache}/downloads", sha256)
        elif order.sha256 and download.checksum(tarball) != order.sha256:
            raise FumehoodError(
                f"{tarball} is not what it should be: its SHA-256 is wrong", hint="nothing was installed"
            )
        with _Building(self._at) as building:
            self._tell("unpacking")
            unpack(tarball, building.tree, self._machine)
            release = _read(building.tree, "etc/alpine-release")[:256].strip()
            alpine = release if re.fullmatch(r"[0-9][0-9A-Za-z._]*", release) else ""
            name = order.name or _name_for(order.source, alpine)
            name = self._name(order, alpine) if name == f"alpine-{alpine}" else name
            self._finish(building, order, alpine or "image")
            building.settle(name)
        if alpine and (name.startswith("alpine-") or not root_tree.current(self._at)):
            root_tree.switch(self._at, name)
        return root_tree.find(self._at, name)

    def _finish(self, building: _Building, order: Order, version: str) -> None:
        """Make a tree ready to run in: mount points, packages, and last the mark that it is whole."""
        tree, packages = building.tree, (*packages_of(order.tier), *order.packages)
        _make_mount_points(tree)
        if not root_tree.has_programs(building.path, tier=0):
            raise FumehoodError("what was unpacked is not a root tree: it has no /bin/sh", hint="nothing was installed")
        manager = next((path for path in _MANAGERS if root_tree.is_program(tree, path)), None)
        if manager is not None:
            _point_at(tree, order.mirror, version, order.keys)
        elif packages:
            raise FumehoodError("the tree has no apk", hint="packages can only be added to an Alpine tree")
        elif order.keys or order.mirror.rstrip("/") != MIRROR:
            self._tell("the tree has no apk, so the mirror and keys for packages mean nothing to it")
        if packages and self._host.bwrap is None:
            raise Unavailable(f"packages can't be installed here: {self._host.why}", hint="fumehood doctor")
        if packages:
            self._tell(f"installing packages: {' '.join(packages)}")
            words = [manager or "apk", "add", "--no-cache", "--no-chown", *packages]
            _add(_started(self._host, self._cache, building.path, words, order.proxy), self._tell)
            _make_mount_points(tree)  # scripts may have moved one
        if manager is not None and not root_tree.is_program(tree, "/usr/local/sbin/apk"):
            # `apk add` is to work for commands as it does for us, without an option.
            _write(tree, "usr/local/sbin/apk", _COMMAND.format(manager=manager).encode(), 0o755)
        if self._host.why_bare:
            self._tell(f"no command can be started here, so none was tried in it: {self._host.why_bare}")
        else:
            words = ["/bin/sh", "-c", "python3 -c ''" if order.tier else ":"]
            _try(_started(self._host, self._cache, building.path, words))
        mark = root_tree.Mark(version=version, tier=order.tier, packages=order.packages)
        _write(tree, root_tree.VERSION_FILE, mark.content())


def _check(order: Order) -> None:
    if order.tier not in (0, *TIERS):
        raise BadRequest(f"there is no tier {order.tier}", hint="--tier 1 (shell, Python) or --tier 2 (more tools)")
    if order.name and (not _NAME.fullmatch(order.name) or order.name in (ALPINE, HOST, root_tree.CURRENT)):
        raise BadRequest(f"a root can't be called {order.name!r}", hint="letters, digits, dots and dashes")
    if order.source and "://" not in order.source and not os.path.isfile(order.source):
        raise BadRequest(f"there is no file {order.source}", hint="--from takes a tarball, or its web address")
    if order.sha256 and not re.fullmatch(r"[0-9a-f]{64}", order.sha256):
        raise BadRequest(f"{order.sha256!r} is not a SHA-256", hint="64 hexadecimal digits")
    for package in order.packages:
        if not _PACKAGE.fullmatch(package):
            raise BadRequest(f"{package!r} is not the name of a package", hint="for example py3-numpy, or jq=1.7.1-r0")
    for key in order.keys:
        if not os.path.isfile(key) or not os.access(key, os.R_OK):
            raise BadRequest(f"the key {key} can't be read", hint="--key takes the public key that signs packages")


def _name_for(source: str, alpine: str) -> str:
    """Name a tree after its file, or, where that is Alpine's own, after its version."""
    stem = re.sub(r"(\.tar)?(\.(gz|xz|bz2|zst|tgz|txz|tzst|tar))?$", "", os.path.basename(source.rstrip("/")))
    if alpine and stem.startswith("alpine-minirootfs"):
        return f"alpine-{alpine}"
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", stem).lstrip(".-_+")[:100]
    return "image" if name in ("", ALPINE, HOST, root_tree.CURRENT) else name


def _make_mount_points(tree: int) -> None:
    """Make what things are mounted on: plain directories, and a plain file for the resolver's configuration."""
    for name in _FOLDERS:
        status = stat_entry(tree, name)
        if status is None or not stat.S_ISDIR(status.st_mode):
            remove_tree(tree, name)
            os.mkdir(name, 0o700, dir_fd=tree)
            os.chmod(name, 0o1777 if name == "tmp" else 0o755, dir_fd=tree)
    etc = stat_entry(tree, "etc")
    if etc is None:
        os.mkdir("etc", 0o755, dir_fd=tree)
    elif not stat.S_ISDIR(etc.st_mode):
        raise FumehoodError(
            "what was unpacked can't be a root tree here: its /etc is not a directory", hint="nothing was installed"
        )
    with Closing(open_below(tree, "etc")) as folder:
        status = stat_entry(folder, "resolv.conf")
        if status is None or not stat.S_ISREG(status.st_mode):
            remove_tree(folder, "resolv.conf")
            os.close(os.open("resolv.conf", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder))


@contextmanager
def _alone(at: str, tell: Tell) -> Iterator[None]:
    """Lock the directory of root trees: one process installs, the others wait and find what it installed."""
    try:
        # One that the environment names is for everybody who uses the machine's image.
        os.makedirs(at, mode=0o755 if "FUMEHOOD_ROOTFS_DIR" in os.environ else 0o700, exist_ok=True)
        opened = os.open(f"{at}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FumehoodError(
            f"root trees can't be installed in {at}: {error.strerror}",
            hint="FUMEHOOD_ROOTFS_DIR may name a directory that you can write",
        ) from error
    with Lock(opened) as lock:
        try:
            lock.take(wait=False)
        except BlockingIOError:
            tell("another process is installing; waiting for it")
            lock.take()
        try:
            # What a killed process left: nobody else is building now.
            for name in os.listdir(at):
                if name.startswith((_NEW, _OLD)):
                    remove_directory(f"{at}/{name}")
            yield
        except OSError as error:
            failure = f"root trees can't be changed in {at}"
            if error.errno in FULL:
                raise full_disk(failure) from error
            raise FumehoodError(f"{failure}: {error}", hint="nothing was installed; is the directory yours?") from error


class _Building:
    """A tree under construction, which is gone again unless it was settled in its place."""

    def __init__(self, at: str) -> None:
        self._at = at
        self.path = f"{at}/{_NEW}{secrets.token_hex(4)}"
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
            remove_directory(place)
        os.rename(self.path, place)

    def __exit__(self, *_error: object) -> None:
        os.close(self.tree)
        remove_directory(self.path)


TIERS = {
    1: ("bash", "python3", "py3-pip", "coreutils", "grep", "sed"),
    2: ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm"),
}
_MANAGERS = ("/sbin/apk", "/usr/sbin/apk", "/usr/bin/apk")
_ISOLATION = (
    "--unshare-user", "--uid", "0", "--gid", "0", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
    "--unshare-cgroup", "--cap-drop", "ALL", "--die-with-parent", "--new-session",
)  # fmt: skip
_TMP = "/tmp"  # noqa: S108 - a fresh one, inside the sandbox
_PATIENCE_S = 60
_MOST_COMPLAINTS = 100
_PIECE = 4096
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


def _point_at(tree: int, mirror: str, version: str, keys: Sequence[str]) -> None:
    """Tell a tree's package manager where packages come from, and whose signatures it may trust."""
    mirror = mirror.rstrip("/")
    if mirror != MIRROR:
        # Lines that name Alpine's own server name the mirror; a tree that names none gets the usual two.
        lines = _read(tree, "etc/apk/repositories").splitlines()
        lines = [line.replace(MIRROR, mirror).replace(MIRROR.replace("https:", "http:"), mirror) for line in lines]
        if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
            lines += [f"{mirror}/{branch_of(version)}/{part}" for part in ("main", "community")]
        _write(tree, "etc/apk/repositories", "".join(f"{line}\n" for line in lines).encode())
    for key in keys:
        with open(key, "rb") as file:
            _write(tree, f"etc/apk/keys/{os.path.basename(key)}", file.read(1 << 16))


def _write(tree: int, path: str, content: bytes, mode: int = 0o644) -> None:
    folder, name = split(path)
    with Closing(open_inside(tree, folder, makes=True)) as above:
        root_tree.write_file(above, name, content, mode)


def _read(top: int, path: str) -> str:
    return (plain_file(path, top) or b"").decode(errors="replace")


def _started(host: Host, cache: str, tree: str, words: Sequence[str], proxy: str | None = None) -> Process:
    """Start a program of a tree, whose errors come as its output.

    With a proxy, "" too, it may write the tree and use the network. Giving a file to another owner is pretended to it,
    as to any command that is root in a tree.
    """
    assert host.bwrap is not None
    arguments = [host.bwrap.path, *_arguments(host, tree, proxy)]
    refused = filter_for(cache, unix_sockets=False, pretends_owners=True)
    with Closing(open_memory_file()) as file:
        os.write(file, refused)
        os.lseek(file, 0, os.SEEK_SET)
        arguments += ["--seccomp", str(file)] if refused else []
        return subprocess.Popen(
            [*arguments, "--", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd="/", pass_fds=(file,),
        )  # fmt: skip


def _add(process: Process, tell: Tell) -> None:
    """Wait until packages are installed; what the package manager says is passed on line by line."""
    complaints: list[str] = []
    with process:
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip()
                is_detail = line.startswith("  ") and complaints and complaints[-1].startswith("ERROR: ")
                if is_detail or line.startswith(("ERROR: ", "WARNING: ", "bwrap: ")):
                    complaints = [*complaints[:_MOST_COMPLAINTS], line]
                tell(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _failed(complaints, process.returncode)


def _failed(complaints: Sequence[str], status: int) -> FumehoodError:
    """Say why packages could not be added: by the line of the first error, and by what could not be fetched for it."""
    errors = [place for place, line in enumerate(complaints) if line.startswith(("ERROR: ", "bwrap: "))]
    reasons = list(complaints[errors[0] : errors[0] + 2]) if errors else []
    hint = "nothing was installed; what apk printed tells more"
    if not reasons or not reasons[0].endswith(":"):
        del reasons[1:]
    else:  # what it means is listed below
        reasons[:0] = [line for line in complaints if line.startswith("WARNING: ")][:1]
        hint = "nothing was installed; see rootfs.mirror, rootfs.proxy, and --key for a mirror that signs by itself"
    reason = "; ".join(line.strip(" :").removeprefix("WARNING: ").removeprefix("ERROR: ") for line in reasons)
    return FumehoodError(f"apk could not add packages: {reason or f'exit status {status}'}", hint=hint)


def _try(process: Process) -> None:
    """See a command end well: programs may be another machine's, or lack the libraries that they load."""
    with process:
        assert process.stdout is not None
        timer = threading.Timer(_PATIENCE_S, process.kill)
        timer.start()
        try:
            said = process.stdout.read(_PIECE).decode(errors="replace").split("\n")[0]
            status = process.wait()
        finally:
            process.kill()
            timer.cancel()
    if status:
        reason = f"it did not end in {_PATIENCE_S} s" if status < 0 else said or f"exit status {status}"
        raise FumehoodError(
            f"no command runs in what was unpacked: {reason}", hint="nothing was installed; is it for this machine?"
        )


def _arguments(host: Host, tree: str, proxy: str | None) -> list[str]:
    arguments = [*_ISOLATION, *(["--disable-userns"] if host.disable_userns else [])]
    arguments += ["--unshare-net", "--ro-bind"] if proxy is None else ["--bind"]
    arguments += [tree, "/", "--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", _TMP]
    for bind in root_tree.bound_names(tree):
        arguments += bind.bwrap_arguments([])
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TMPDIR": _TMP, "LANG": "C.UTF-8"}
    for name in _PROXIES:
        if proxy and name.lower() != "no_proxy":
            environment[name] = proxy
        elif not proxy and os.environ.get(name):
            environment[name] = os.environ[name]
    arguments.append("--clearenv")
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--chdir", "/"]
