"""Install a root tree: build it apart, and rename it into its place once it is complete.

One process at a time installs. The tree's own package manager installs packages: `apk add` in bubblewrap, with the tree
writable and the network on. There it is root, but has no capability and owns nothing but the tree: it is the person's
own user under another number. So package scripts work as they expect, and reach nothing else.
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
from fumehood.linux.confine import load_syscall_filter
from fumehood.linux.libc import Closing
from fumehood.linux.lock import Lock
from fumehood.linux.nofollow import LISTING, open_below, open_top, remove_directory, remove_tree, split, stat_entry
from fumehood.linux.probe import Host
from fumehood.rootfs import download
from fumehood.rootfs import tree as root_tree
from fumehood.rootfs.download import DISK_FULL, MIRROR, Fetcher, Release, branch_of
from fumehood.rootfs.unpack import full_disk_error, open_inside, unpack

Process = subprocess.Popen[bytes]
Tell = Callable[[str], None]  # gets lines about what is being done

_LONGEST_NAME = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_LONGEST_NAME - 1}}}")
_PACKAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+:-]*([<>=~@][A-Za-z0-9._+<>=~@-]+)?")
_LOCK, _NEW, _OLD = ".lock", ".new-", ".old-"
_DIRECTORIES = ("dev", "proc", "sys", "tmp", *(point[1:] for point in root_tree.MOUNT_POINTS))


class Order(Value):
    """What to install: a release from the mirror, or the tarball or image archive at `source`."""

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

    def __init__(self, directory: str, cache: str, host: Host, tell: Tell, fetcher: Fetcher, machine: str) -> None:
        self._directory = directory
        self._cache = cache
        self._host = host
        self._tell = tell
        self._fetcher = fetcher
        self._machine = machine

    def install(self, order: Order) -> root_tree.Installed:
        """Install what is ordered, unless it is installed. If it is a release, `alpine` then means it."""
        _check_order(order)
        # Without the lock if it is installed: the directory may be root's, for everybody to read.
        name = "" if order.source else self._installed_name(order)
        if name and (not order.version or root_tree.current(self._directory) == name or self._is_one_tree):
            return root_tree.find(self._directory, name)
        self._check_changeable()
        with _locked(self._directory, self._tell):
            if order.source:
                return self._install_from_source(order)
            name = self._installed_name(order)
            if name:
                return self._use(name)
            arch = download.architecture(self._machine)
            if order.version:
                release = download.find_release(self._fetcher, order.mirror, arch, order.version)
            else:
                release = download.latest_release(self._fetcher, order.mirror, arch)
            return self._install_release(order, release)

    def newer(self, mirror: str) -> Release | None:
        """Return the mirror's newest release, or None if it is not newer than the one in use."""
        latest = download.latest_release(self._fetcher, mirror, download.architecture(self._machine))
        tree = self._directory if self._is_one_tree else f"{self._directory}/{root_tree.CURRENT}"
        used_version = root_tree.read_mark(tree).version
        if used_version and download.version_numbers(latest.version) <= download.version_numbers(used_version):
            return None
        return latest

    def update(self, order: Order) -> root_tree.Installed | None:
        """Install the newest release beside the one in use, and use it; return None if there is no newer one."""
        _check_order(order)
        self._check_changeable()
        with _locked(self._directory, self._tell):
            latest = self.newer(order.mirror)
            return None if latest is None else self._install_release(order, latest)

    def remove(self, name: str) -> None:
        """Remove a tree in which no command runs. If `alpine` meant it, `alpine` then means the newest other tree."""
        self._check_changeable()
        tree = root_tree.find_for_removal(self._directory, name)
        with _locked(self._directory, self._tell):
            with Lock(os.open(tree.path, LISTING | os.O_CLOEXEC)) as tree_lock:
                try:
                    tree_lock.take(wait=False)
                except BlockingIOError as error:
                    raise BadRequest(f"a command is running in {tree.name}", hint="wait for it, or end it") from error
                if root_tree.current(self._directory) == tree.name:
                    installed = root_tree.installed(self._directory)
                    others = [each for each in installed if each.name != tree.name and each.version[:1].isdecimal()]
                    # A tree that a person named is theirs, and becomes `alpine` only if there is no other.
                    newest = max(others, default=None, key=lambda each: (
                        each.name.startswith("alpine-"), download.version_numbers(each.version),
                        root_tree.read_mark(each.path).tier,
                    ))  # fmt: skip
                    if newest is None:
                        os.unlink(f"{self._directory}/{root_tree.CURRENT}")
                    else:
                        root_tree.set_current(self._directory, newest.name)
                removed = f"{self._directory}/{_OLD}{secrets.token_hex(4)}"
                os.rename(tree.path, removed)
            remove_directory(removed)

    @property
    def _is_one_tree(self) -> bool:
        """True if the directory is itself a tree, and does not hold trees."""
        return root_tree.is_ready(self._directory)

    def _check_changeable(self) -> None:
        """Raise BadRequest if the directory is itself a tree."""
        if self._is_one_tree:
            raise BadRequest(
                f"{self._directory} is one root tree, which is not changed",
                hint="name a directory that holds root trees",
            )

    def _installed_name(self, order: Order) -> str:
        """Return the name of an installed tree that satisfies the order, or "". The mirror is not asked."""
        if self._is_one_tree:
            return os.path.basename(self._directory) if self._satisfies(self._directory, order) else ""
        if order.name or order.version:
            name = self._tree_name(order, order.version)
        else:
            name = root_tree.current(self._directory)
        return name if name and self._satisfies(f"{self._directory}/{name}", order) else ""

    def _satisfies(self, path: str, order: Order) -> bool:
        mark = root_tree.read_mark(path)
        is_version = order.version in ("", mark.version) or mark.version.startswith(f"{order.version}.")
        has_all = mark.tier >= order.tier and set(order.packages) <= set(mark.packages)
        return is_version and has_all and root_tree.is_ready(path)

    def _tree_name(self, order: Order, version: str) -> str:
        """Return the name of a tree, made of its version, its tier and the packages that were ordered in addition."""
        if order.name:
            return order.name
        name = f"alpine-{version}{f'-tier{order.tier}' if order.tier > 1 else ''}"
        name += "".join(f"+{re.split('[<>=~@]', each)[0].replace(':', '-')}" for each in order.packages)
        if len(name) > _LONGEST_NAME:
            raise BadRequest("a tree with so many packages needs a name", hint="--name NAME")
        path = f"{self._directory}/{name}"
        # A tree of tier 0, without any tools, may have the name that one of tier 1 would get.
        is_tier_0 = order.tier == 1 and root_tree.is_ready(path) and root_tree.read_mark(path).tier == 0
        return f"{name}-tier1" if is_tier_0 else name

    def _use(self, name: str) -> root_tree.Installed:
        """Let `alpine` mean the tree with this name, and return the tree."""
        if root_tree.current(self._directory) != name:
            root_tree.set_current(self._directory, name)
        return root_tree.find(self._directory, name)

    def _install_release(self, order: Order, release: Release) -> root_tree.Installed:
        name = self._tree_name(order, release.version)
        if self._satisfies(f"{self._directory}/{name}", order):
            return self._use(name)
        self._tell(f"downloading Alpine {release.version} for {self._machine}")
        sha256 = order.sha256 or release.sha256
        tarball = self._fetcher.file(release.url, f"{self._cache}/downloads", sha256)
        with _NewTree(self._directory) as new_tree:
            self._tell("unpacking")
            unpack(tarball, new_tree.top)
            self._make_ready(new_tree, order, release.version)
            os.unlink(tarball)
            new_tree.move_into_place(name)
        return self._use(name)

    def _install_from_source(self, order: Order) -> root_tree.Installed:
        """Install a person's own tree from a root tarball or an image archive."""
        tarball = order.source
        if order.source.startswith(("http://", "https://")):
            sha256 = order.sha256 or download.published_checksum(self._fetcher, order.source)
            self._tell(f"downloading {order.source}")
            tarball = self._fetcher.file(order.source, f"{self._cache}/downloads", sha256)
        elif order.sha256 and download.checksum(tarball) != order.sha256:
            raise FumehoodError(
                f"{tarball} is not what it should be: its SHA-256 is wrong", hint="nothing was installed"
            )
        with _NewTree(self._directory) as new_tree:
            self._tell("unpacking")
            unpack(tarball, new_tree.top, self._machine)
            release = _read_text(new_tree.top, "etc/alpine-release")[:256].strip()
            alpine_version = release if re.fullmatch(r"[0-9][0-9A-Za-z._]*", release) else ""
            name = order.name or _name_from_source(order.source, alpine_version)
            name = self._tree_name(order, alpine_version) if name == f"alpine-{alpine_version}" else name
            self._make_ready(new_tree, order, alpine_version or "image")
            new_tree.move_into_place(name)
        if alpine_version and (name.startswith("alpine-") or not root_tree.current(self._directory)):
            root_tree.set_current(self._directory, name)
        return root_tree.find(self._directory, name)

    def _make_ready(self, new_tree: _NewTree, order: Order, version: str) -> None:
        """Make a tree ready for commands: mount points, packages, and last the mark that it is complete."""
        tree, packages = new_tree.top, (*packages_of(order.tier), *order.packages)
        _make_mount_points(tree)
        if not root_tree.has_programs(new_tree.path, tier=0):
            raise FumehoodError("what was unpacked is not a root tree: it has no /bin/sh", hint="nothing was installed")
        apk = next((path for path in _APK_PATHS if root_tree.is_program(tree, path)), None)
        if apk is not None:
            _configure_apk(tree, order.mirror, version, order.keys)
        elif packages:
            raise FumehoodError("the tree has no apk", hint="packages can only be added to an Alpine tree")
        elif order.keys or order.mirror.rstrip("/") != MIRROR:
            self._tell("the tree has no apk, so the mirror and keys for packages mean nothing to it")
        if packages and self._host.bwrap is None:
            raise Unavailable(f"packages can't be installed here: {self._host.why}", hint="fumehood doctor")
        if packages:
            self._tell(f"installing packages: {' '.join(packages)}")
            command = [apk or "apk", "add", "--no-cache", "--no-chown", *packages]
            _wait_for_packages(_start(self._host, self._cache, new_tree.path, command, order.proxy), self._tell)
            _make_mount_points(tree)  # scripts may have moved one
        if apk is not None and not root_tree.is_program(tree, "/usr/local/sbin/apk"):
            # So that `apk add` works for commands as it does for us, without an option.
            _write_file(tree, "usr/local/sbin/apk", _APK_WRAPPER.format(apk=apk).encode(), 0o755)
        if self._host.why_bare:
            self._tell(f"no command can be started here, so none was tried in it: {self._host.why_bare}")
        else:
            command = ["/bin/sh", "-c", "python3 -c ''" if order.tier else ":"]
            _check_that_commands_run(_start(self._host, self._cache, new_tree.path, command))
        mark = root_tree.Mark(version=version, tier=order.tier, packages=order.packages)
        _write_file(tree, root_tree.VERSION_FILE, mark.content())


def _check_order(order: Order) -> None:
    """Raise BadRequest if something in an order can't be right."""
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


def _name_from_source(source: str, alpine_version: str) -> str:
    """Return a name made of the name of a tree's file, or of the version if it is a file of Alpine's."""
    stem = re.sub(r"(\.tar)?(\.(gz|xz|bz2|zst|tgz|txz|tzst|tar))?$", "", os.path.basename(source.rstrip("/")))
    if alpine_version and stem.startswith("alpine-minirootfs"):
        return f"alpine-{alpine_version}"
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", stem).lstrip(".-_+")[:_LONGEST_NAME]
    return "image" if name in ("", ALPINE, HOST, root_tree.CURRENT) else name


def _make_mount_points(tree: int) -> None:
    """Make plain directories to mount on, and a plain file for the resolver's configuration."""
    for name in _DIRECTORIES:
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
def _locked(directory: str, tell: Tell) -> Iterator[None]:
    """Lock the directory of root trees: one process changes it, the others wait and then see the change."""
    try:
        # A directory that the environment names is for all users of the machine's image.
        os.makedirs(directory, mode=0o755 if "FUMEHOOD_ROOTFS_DIR" in os.environ else 0o700, exist_ok=True)
        file = os.open(f"{directory}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FumehoodError(
            f"root trees can't be installed in {directory}: {error.strerror}",
            hint="FUMEHOOD_ROOTFS_DIR may name a directory that you can write",
        ) from error
    with Lock(file) as lock:
        try:
            lock.take(wait=False)
        except BlockingIOError:
            tell("another process is installing; waiting for it")
            lock.take()
        try:
            # Left by processes that were killed: nobody else is building now.
            for name in os.listdir(directory):
                if name.startswith((_NEW, _OLD)):
                    remove_directory(f"{directory}/{name}")
            yield
        except OSError as error:
            failure = f"root trees can't be changed in {directory}"
            if error.errno in DISK_FULL:
                raise full_disk_error(failure) from error
            raise FumehoodError(f"{failure}: {error}", hint="nothing was installed; is the directory yours?") from error


class _NewTree:
    """A tree that is being built, and is removed at the end unless it was moved into its place."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.path = f"{directory}/{_NEW}{secrets.token_hex(4)}"
        self.top = -1  # a descriptor of it

    def __enter__(self) -> Self:
        os.mkdir(self.path, 0o700)
        self.top = open_top(self.path)
        return self

    def move_into_place(self, name: str) -> None:
        """Move the tree into its place, in one step; a tree there that is not ready is removed first."""
        os.chmod(self.path, 0o755)  # noqa: S103 - it is `/` for commands
        place = f"{self._directory}/{name}"
        if root_tree.is_ready(place):
            raise BadRequest(f"there is a root {name} already", hint=f"fumehood rootfs remove {name}; or --name …")
        if os.path.lexists(place):
            remove_directory(place)
        os.rename(self.path, place)

    def __exit__(self, *_error: object) -> None:
        os.close(self.top)
        remove_directory(self.path)


# ---- Packages, and programs of a tree.

TIERS = {
    1: ("bash", "python3", "py3-pip", "coreutils", "grep", "sed"),
    2: ("findutils", "curl", "wget", "git", "tar", "unzip", "jq", "gawk", "nodejs", "npm"),
}
_APK_PATHS = ("/sbin/apk", "/usr/sbin/apk", "/usr/bin/apk")
_ISOLATION = (
    "--unshare-user", "--uid", "0", "--gid", "0", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
    "--unshare-cgroup", "--cap-drop", "ALL", "--die-with-parent", "--new-session",
)  # fmt: skip
_TMP = "/tmp"  # noqa: S108 - a new one, inside the sandbox
_TIMEOUT_S = 60
_MOST_COMPLAINTS = 100  # lines of apk that are kept for an error message
_LONGEST_OUTPUT = 4096
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_APK_WRAPPER = """#!/bin/sh
# Everything in this tree belongs to one user, so apk must not give files to others: it would fail where they should.
for word in "$@"; do
    case $word in
        add) exec {apk} --no-chown "$@" ;;
        del|fix|update|upgrade|info|list|search|fetch|version|audit|cache|policy|verify|stats|query|extract) break ;;
    esac
done
exec {apk} "$@"
"""


def packages_of(tier: int) -> tuple[str, ...]:
    """Return the packages of a tier, which has those of the lower tiers too."""
    return tuple(name for number in sorted(TIERS) if number <= tier for name in TIERS[number])


def _configure_apk(tree: int, mirror: str, version: str, keys: Sequence[str]) -> None:
    """Configure a tree's apk: where packages come from, and whose signatures it trusts."""
    mirror = mirror.rstrip("/")
    if mirror != MIRROR:
        # In these lines, the mirror takes the place of Alpine's own server. A tree without any gets the usual two.
        lines = _read_text(tree, "etc/apk/repositories").splitlines()
        lines = [line.replace(MIRROR, mirror).replace(MIRROR.replace("https:", "http:"), mirror) for line in lines]
        if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
            lines += [f"{mirror}/{branch_of(version)}/{part}" for part in ("main", "community")]
        _write_file(tree, "etc/apk/repositories", "".join(f"{line}\n" for line in lines).encode())
    for key in keys:
        with open(key, "rb") as file:
            _write_file(tree, f"etc/apk/keys/{os.path.basename(key)}", file.read(1 << 16))


def _write_file(tree: int, path: str, content: bytes, mode: int = 0o644) -> None:
    folder, name = split(path)
    with Closing(open_inside(tree, folder, create=True)) as directory:
        root_tree.write_file(directory, name, content, mode)


def _read_text(top: int, path: str) -> str:
    return (plain_file(path, top) or b"").decode(errors="replace")


def _start(host: Host, cache: str, tree: str, command: Sequence[str], proxy: str | None = None) -> Process:
    """Start a program of a tree; its errors come with its output.

    If `proxy` is not None, it may write the tree and use the network, by that proxy unless it is "". To give a file to
    another owner seems to succeed, as for any command that is root in a tree.
    """
    assert host.bwrap is not None
    arguments = [host.bwrap.path, *_bwrap_arguments(host, tree, proxy)]
    syscall_filter = load_syscall_filter(cache, unix_sockets=False, pretends_owners=True)
    with Closing(open_memory_file()) as file:
        os.write(file, syscall_filter)
        os.lseek(file, 0, os.SEEK_SET)
        arguments += ["--seccomp", str(file)] if syscall_filter else []
        return subprocess.Popen(
            [*arguments, "--", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd="/", pass_fds=(file,),
        )  # fmt: skip


def _wait_for_packages(process: Process, tell: Tell) -> None:
    """Wait until apk has installed packages, and pass its output on line by line."""
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
        raise _packages_error(complaints, process.returncode)


def _packages_error(complaints: Sequence[str], status: int) -> FumehoodError:
    """Return the error to raise if apk failed: its first error, and which file could not be fetched for it."""
    errors = [at for at, line in enumerate(complaints) if line.startswith(("ERROR: ", "bwrap: "))]
    reasons = list(complaints[errors[0] : errors[0] + 2]) if errors else []
    hint = "nothing was installed; what apk printed tells more"
    if not reasons or not reasons[0].endswith(":"):
        del reasons[1:]
    else:  # the next line says what it is about
        reasons[:0] = [line for line in complaints if line.startswith("WARNING: ")][:1]
        hint = "nothing was installed; see rootfs.mirror, rootfs.proxy, and --key for a mirror that signs by itself"
    reason = "; ".join(line.strip(" :").removeprefix("WARNING: ").removeprefix("ERROR: ") for line in reasons)
    return FumehoodError(f"apk could not add packages: {reason or f'exit status {status}'}", hint=hint)


def _check_that_commands_run(process: Process) -> None:
    """Raise FumehoodError unless a command succeeds.

    Programs of a tree may be for another kind of machine, or lack libraries.
    """
    with process:
        assert process.stdout is not None
        timer = threading.Timer(_TIMEOUT_S, process.kill)
        timer.start()
        try:
            output = process.stdout.read(_LONGEST_OUTPUT).decode(errors="replace").split("\n")[0]
            status = process.wait()
        finally:
            process.kill()
            timer.cancel()
    if status:
        reason = f"it did not end in {_TIMEOUT_S} s" if status < 0 else output or f"exit status {status}"
        raise FumehoodError(
            f"no command runs in what was unpacked: {reason}", hint="nothing was installed; is it for this machine?"
        )


def _bwrap_arguments(host: Host, tree: str, proxy: str | None) -> list[str]:
    arguments = [*_ISOLATION, *(["--disable-userns"] if host.disable_userns else [])]
    arguments += ["--unshare-net", "--ro-bind"] if proxy is None else ["--bind"]
    arguments += [tree, "/", "--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", _TMP]
    for bind in root_tree.resolver_binds(tree):
        arguments += bind.bwrap_arguments([])
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TMPDIR": _TMP, "LANG": "C.UTF-8"}
    for name in _PROXY_VARIABLES:
        if proxy and name.lower() != "no_proxy":
            environment[name] = proxy
        elif not proxy and os.environ.get(name):
            environment[name] = os.environ[name]
    arguments.append("--clearenv")
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--chdir", "/"]
