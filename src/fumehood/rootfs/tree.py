"""Root trees: what a command sees whose `/` is one, which trees are installed, and a project's layer over one.

The command sees the project at /workspace, and other directories temporary it. We look into a tree without leaving it:
links are followed as they would be by a command whose `/` the tree is.
"""

from __future__ import annotations

import _thread
import os
import stat

from fumehood.core.request import ALPINE
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux import libc
from fumehood.linux.cache import plain_file
from fumehood.linux.libc import Closing, link_target
from fumehood.linux.lock import Lock
from fumehood.linux.mounts import Bind, Folder, Link, Operation, Overlay, Tmpfs, View
from fumehood.linux.nofollow import LISTING, open_below, open_top, remove_tree, stat_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WORKSPACE, ROOTS, SKILLS, PLAYGROUND = "/workspace", "/roots", "/skills", "/playground"
MOUNT_POINTS = (WORKSPACE, ROOTS, SKILLS, PLAYGROUND)
CURRENT = "current"
VERSION_FILE = ".alpine-version"
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3")
_MADE_FRESH = frozenset({"dev", "proc", "tmp"})  # the tree's own are not shown: new ones take their place
_MOUNT_DIRECTORIES = ("dev", "proc", "tmp", *(point[1:] for point in MOUNT_POINTS))
_PACKAGES = f"{WORKSPACE}/.packages"
_TMP = "/tmp"  # noqa: S108 - a new one, inside the sandbox

ENVIRONMENT = {
    "HOME": WORKSPACE,
    "PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{_PACKAGES}/bin",
    "PIP_TARGET": _PACKAGES,
    "PYTHONPATH": _PACKAGES,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    # The home is the project, so caches and histories there would be changes to it.
    "HISTFILE": f"{_TMP}/.history",
    "LESSHISTFILE": "-",
    "XDG_CACHE_HOME": f"{_TMP}/.cache",
    "npm_config_cache": f"{_TMP}/.cache/npm",
    "TMPDIR": _TMP,
    "LANG": "C.UTF-8",
    "FUMEHOOD": "1",
}


def root_targets(roots: Sequence[str]) -> dict[str, str]:
    """Return where the command sees each root: the project, which is first, at /workspace, and others in /roots.

    A root that lies in another root appears inside that.
    """
    targets = {roots[0]: WORKSPACE}
    for root in roots[1:]:
        outer_root = next((each for each in targets if root.startswith(f"{each}/")), "")
        if outer_root:
            targets[root] = targets[outer_root] + root[len(outer_root) :]
            continue
        target = plain_target = f"{ROOTS}/{root.rpartition('/')[2]}"
        number = 1
        while target in targets.values():
            number += 1
            target = f"{plain_target}-{number}"
        targets[root] = target
    return targets


def path_inside(path: str, targets: Mapping[str, str]) -> str:
    """Return a host path as the command sees it. A path in no root is taken to be one of the command's already."""
    for root, target in targets.items():
        if path == root or path.startswith(f"{root}/"):
            return target + path[len(root) :]
    return path


def path_outside(path: str, targets: Mapping[str, str]) -> str:
    """Return a path of the command's as the host has it. A path in no root stays as it is."""
    return path_inside(path, {target: root for root, target in targets.items()})


def skill_targets(skills: Iterable[Mapping[str, object]]) -> tuple[tuple[str, str], ...]:
    """Return each skill's directory and where the command sees it: at /skills/<name>.

    The name is the configured one, or that of the directory.
    """
    sources: dict[str, str] = {}
    for skill in skills:
        source = str(skill["path"]).rstrip("/")
        name = str(skill.get("name") or source.rpartition("/")[2])
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise BadRequest(f"a skill can't be called {name!r}", hint="a skill's name is one word of a path")
        if name in sources:
            raise BadRequest(f"two skills are called {name}", hint='give one of them another: name = "…"')
        sources[name] = source
    return tuple((source, f"{SKILLS}/{name}") for name, source in sources.items())


class RootTree(Value):
    """A root tree that the command sees as `/`, instead of the host's.

    `entries` are its top entries if it lacks a mount point: for each a name and, for a link, its target. `lowers` and
    `upper` are the project's own layer over it, if there is one; without `upper`, the command can't write the layer.
    `guarded` are mount points on which something is always mounted. In a writable root, a command could otherwise make
    a link of one, and the next command's mount would follow it.
    """

    path: str
    shell: str = "/bin/sh"
    entries: tuple[tuple[str, str], ...] = ()
    lowers: tuple[str, ...] = ()
    upper: str = ""
    work: str = ""
    guarded: tuple[str, ...] = ()

    @property
    def is_writable(self) -> bool:
        """True if the command may change it."""
        return bool(self.upper)

    def mounts(self, *, blocks_sockets: bool) -> list[Operation]:
        """Return the operations that make it `/`: with `blocks_sockets` by views, in which sockets can't be reached.

        A tree that lacks a mount point is not changed. Its top entries are shown on an empty root instead.
        """
        if self.upper:
            return [Overlay(target="/", lowers=self.lowers, upper=self.upper, work=self.work)]
        if self.lowers:
            return [View(target="/", sources=self.lowers)]
        if not self.entries:
            return [_read_only_mount(self.path, "/", blocks_sockets=blocks_sockets)]
        return [
            Tmpfs(target="/", is_sealed=True), Folder(target="/proc"),
            *(
                Link(target=f"/{name}", to=to) if to
                else _read_only_mount(f"{self.path}/{name}", f"/{name}", blocks_sockets=blocks_sockets)
                for name, to in self.entries if name not in _MADE_FRESH
            ),
        ]  # fmt: skip


def _read_only_mount(source: str, target: str, *, blocks_sockets: bool) -> Operation:
    if blocks_sockets and os.path.isdir(source):
        return View(target=target, sources=(source,))
    return Bind(target=target, source=source)


def tree_at(path: str) -> RootTree:
    """Return the root tree in a directory, for a command to run in; raises BadRequest if there is none."""
    try:
        top = open_top(path)
    except OSError as error:
        raise BadRequest(
            f"there is no root tree at {path}: {error.strerror}", hint="name an unpacked root directory"
        ) from error
    with Closing(top):
        shell = next((each for each in _SHELLS if is_program(top, each)), None)
        if shell is None:
            raise BadRequest(f"{path} is not a root tree: it has no /bin/sh", hint="name an unpacked root directory")
        points = [stat_entry(top, name) for name in _MOUNT_DIRECTORIES]
        has_all_points = all(status is not None and stat.S_ISDIR(status.st_mode) for status in points)
        return RootTree(path=path, shell=shell, entries=() if has_all_points else _top_entries(top))


def is_program(top: int, path: str) -> bool:
    """Return True if a path in the tree is a program that a command there could start."""
    try:
        with Closing(libc.openat2(top, os.fsencode(path.lstrip("/")), os.O_PATH, libc.RESOLVE_IN_ROOT)) as file:
            mode = os.fstat(file).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _top_entries(top: int) -> tuple[tuple[str, str], ...]:
    """Return the entries at the top, without the mount points. A link comes with its target, others with ""."""
    with Closing(os.open(".", LISTING | os.O_CLOEXEC, dir_fd=top)) as listing:
        names = sorted(os.listdir(listing))
    entries = []
    for name in names:
        entry = stat_entry(top, name)
        if entry is None or f"/{name}" in MOUNT_POINTS:
            continue
        if stat.S_ISLNK(entry.st_mode):
            entries.append((name, os.readlink(name, dir_fd=top)))
        elif stat.S_ISDIR(entry.st_mode) or stat.S_ISREG(entry.st_mode):
            entries.append((name, ""))
    return tuple(entries)


# ---- The trees that are installed.


class Mark(Value):
    """The content of a tree's `.alpine-version`, which is written last. It is empty if the tree is not complete."""

    version: str = ""
    tier: int = 0
    packages: tuple[str, ...] = ()  # those that a person named, in addition to the tier's

    def content(self) -> bytes:
        """Return the mark as it is written."""
        packages = f"packages {' '.join(self.packages)}\n" if self.packages else ""
        return f"{self.version}\ntier {self.tier}\n{packages}".encode()


class Installed(Value):
    """One installed root tree. The version is that in its `.alpine-version`."""

    name: str
    path: str
    version: str


def trees_directory(data: str) -> str:
    """Return the directory that holds root trees; FUMEHOOD_ROOTFS_DIR may name another."""
    directory = os.environ.get("FUMEHOOD_ROOTFS_DIR", "")
    return directory.rstrip("/") if directory.startswith("/") else f"{data}/rootfs"


def is_ready(path: str) -> bool:
    """Return True if there is a complete root tree at a path. It works offline."""
    mark = read_mark(path)
    return bool(mark.version) and has_programs(path, mark.tier)


def read_mark(path: str) -> Mark:
    """Return a tree's mark, which is empty if the tree is not complete."""
    content = plain_file(f"{path}/{VERSION_FILE}")
    if content is None:
        return Mark()
    version, *lines = content.decode("ascii", "replace").split("\n")
    more = dict(line.partition(" ")[::2] for line in lines)
    tier = more.get("tier", "")
    return Mark(
        version=version.strip(), tier=int(tier) if tier.isdecimal() else 0,
        packages=tuple(more.get("packages", "").split()),
    )  # fmt: skip


def has_programs(path: str, tier: int) -> bool:
    """Return True if a tree has a shell and, if its tier is not 0, Python."""
    try:
        with Closing(open_top(path)) as top:
            return is_program(top, "/bin/sh") and (not tier or any(is_program(top, each) for each in _PYTHONS))
    except OSError:
        return False


def installed(directory: str) -> list[Installed]:
    """Return the trees that are ready, sorted by name; if the directory is itself a tree, only that."""
    if is_ready(directory):
        return [_installed_tree(directory)]
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    paths = [f"{directory}/{name}" for name in names if not name.startswith(".") and name != CURRENT]
    return [_installed_tree(path) for path in paths if is_ready(path)]


def _installed_tree(path: str) -> Installed:
    return Installed(name=os.path.basename(path), path=path, version=read_mark(path).version)


def find(directory: str, name: str = ALPINE) -> Installed:
    """Return the tree with this name, which must be ready. `alpine` is the tree in use."""
    if is_ready(directory):
        return _installed_tree(directory)
    path = f"{directory}/{current(directory) or CURRENT}" if name == ALPINE else f"{directory}/{name}"
    if is_ready(path):
        return _installed_tree(path)
    if name != ALPINE:
        raise BadRequest(f"there is no root {name}", hint="fumehood rootfs list; or name a directory: --root ./tree")
    if current(directory):
        raise BadRequest(f"the root tree {path} is damaged", hint="fumehood rootfs install")
    raise BadRequest("no Alpine root is installed", hint="fumehood rootfs install")


def find_for_removal(directory: str, name: str) -> Installed:
    """Return the tree with this name, which may be damaged."""
    try:
        return find(directory, name)
    except BadRequest:
        name = current(directory) if name == ALPINE else name
        is_tree = name and not name.startswith(".") and "/" not in name and name != CURRENT
        if not is_tree or not os.path.isdir(f"{directory}/{name}"):
            raise
        return _installed_tree(f"{directory}/{name}")


def current(directory: str) -> str:
    """Return the name of the tree that `alpine` means, or "" if there is none."""
    return link_target(f"{directory}/{CURRENT}")


def set_current(directory: str, name: str) -> None:
    """Let `alpine` mean the tree with this name, in one step."""
    temporary = f"{directory}/.{CURRENT}-{os.getpid()}"
    try:
        os.symlink(name, temporary)
        os.replace(temporary, f"{directory}/{CURRENT}")
    except OSError as error:
        raise FumehoodError(
            f"`alpine` can't be made {name} in {directory}: {error.strerror}", hint=f"name it yourself: --root {name}"
        ) from error


def lock_against_removal(path: str) -> Lock:
    """Return a lock that keeps a tree from being removed, for as long as a command runs in it."""
    return Lock(os.open(path, LISTING | os.O_CLOEXEC)).take(shared=True)


# ---- A project's layer over a shared root tree. It keeps what the project's commands write there, such as packages.
#
# It lies over the same tree until it is dropped: `base` has the tree's name. One command at a time may write it; other
# commands meanwhile see it as it is, read-only.

BASE, UPPER, WORK = "base", "upper", "work"
_LONGEST_NAME = 4096
_HINT = "fumehood workspace reset drops what was installed, and begins anew"


class RootLayer:
    """One project's layer, in a directory of ours that no command can reach."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.upper, self.work = f"{path}/{UPPER}", f"{path}/{WORK}"
        self._lock: Lock | None = None

    @property
    def base(self) -> str:
        """The name of the tree that the layer lies over, or "" if there is no layer yet."""
        try:
            with open(f"{self.path}/{BASE}", encoding="utf-8", errors="surrogateescape") as file:
                return file.read(_LONGEST_NAME).strip()
        except FileNotFoundError:
            return ""

    def take(self, base: str) -> bool:
        """Prepare the layer for a command over the tree with this name, and return True if the command may write it.

        `release` ends this.
        """
        try:
            self._make(base)
            self._lock = self._open_lock()
            try:
                self._lock.take(wait=False)
                is_writable = True
            except BlockingIOError:
                is_writable = False
            # Bubblewrap would follow a link in the place of a mount point.
            with Closing(open_top(self.upper)) as top:
                for name in (*_MOUNT_DIRECTORIES, "etc"):
                    status = stat_entry(top, name)
                    if status is not None and not stat.S_ISDIR(status.st_mode):
                        raise BadRequest(f"/{name} was replaced in this workspace's root layer", hint=_HINT)
            if is_writable:
                # A new one each time: a volatile mount leaves a mark in its work directory, which can't be used again.
                with Closing(open_top(self.path)) as top:
                    remove_tree(top, WORK)
                    os.mkdir(WORK, 0o700, dir_fd=top)
        except OSError as error:
            raise FumehoodError(f"the root layer {self.path} can't be used: {error.strerror}", hint=_HINT) from error
        return is_writable

    def release(self) -> None:
        """Let other commands write the layer."""
        if self._lock is not None:
            self._lock.close()

    def _open_lock(self) -> Lock:
        return Lock(os.open(self.path, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))

    def _make(self, base: str) -> None:
        if os.path.isdir(self.path):
            return
        # Made apart and renamed, in one step: another first command may do the same at this moment.
        temporary = f"{self.path}.{os.getpid()}.{_thread.get_ident()}"
        os.makedirs(temporary, mode=0o700)
        with open(f"{temporary}/{BASE}", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(base)
        os.mkdir(f"{temporary}/{UPPER}", 0o700)
        os.chmod(f"{temporary}/{UPPER}", 0o755)  # noqa: S103 - it is `/` for commands
        try:
            os.rename(temporary, self.path)
        except OSError:
            with Closing(open_top(os.path.dirname(temporary))) as parent:
                remove_tree(parent, os.path.basename(temporary))
            if not os.path.isdir(self.path):
                raise

    def drop(self) -> bool:
        """Remove the layer; return False if there was none."""
        if not os.path.lexists(self.path):
            return False
        try:
            with self._open_lock() as lock:
                lock.take(wait=False)
                with Closing(open_top(os.path.dirname(self.path))) as parent:
                    remove_tree(parent, os.path.basename(self.path))
        except BlockingIOError as error:
            raise BadRequest("a command is running over this root layer", hint="wait for it, or end it") from error
        return True


def layers_over(layers: str, name: str) -> list[str]:
    """Return the names of the layers in a directory that lie over the tree with this name.

    A layer is named by the number of its project. A process that was killed while making one left another name.
    """
    try:
        names = sorted(os.listdir(layers))
    except FileNotFoundError:
        return []
    return [each for each in names if each.isdecimal() and RootLayer(f"{layers}/{each}").base == name]


# ---- How a command that shares the host's network finds hosts by name: by the host's files, in place of the tree's.

RESOLVER_FILE, HOSTS_FILE = "etc/resolv.conf", "etc/hosts"
_LARGEST_FILE = 1 << 16


def resolver_binds(tree: str) -> tuple[Bind, ...]:
    """Return the mounts of the host's files for names. Only plain files are covered: bubblewrap would follow a link."""
    names = []
    with Closing(open_top(tree)) as top:
        for name in (RESOLVER_FILE, HOSTS_FILE):
            if os.path.isfile(f"/{name}"):
                try:
                    with Closing(open_below(top, os.path.dirname(name))) as folder:
                        status = stat_entry(folder, os.path.basename(name))
                except OSError:
                    continue
                if status is not None and stat.S_ISREG(status.st_mode):
                    names.append(name)
    return tuple(Bind(source=os.path.realpath(f"/{name}"), target=f"/{name}") for name in names)


def resolver_settings(trees: Sequence[str]) -> str:
    """Return the resolver's configuration that a command sees: that of the first of these trees that has one."""
    for tree in trees:
        try:
            with Closing(open_top(tree)) as top:
                content = plain_file(RESOLVER_FILE, top, _LARGEST_FILE)
        except OSError:
            continue
        if content is not None:  # it is None for a link too: a command may have made it, so it is not followed
            return content.decode(errors="replace")
    return ""


def copy_resolver_settings(upper: str) -> None:
    """Copy the host's resolver configuration into a layer. Commands could have put anything in its place."""
    try:
        with open(f"/{RESOLVER_FILE}", "rb") as file:
            content = file.read(_LARGEST_FILE)
    except OSError:
        return  # the host has none
    folder, _, name = RESOLVER_FILE.rpartition("/")
    with Closing(open_top(upper)) as top:
        if stat_entry(top, folder) is None:
            os.mkdir(folder, 0o700, dir_fd=top)
            os.chmod(folder, 0o755, dir_fd=top)  # noqa: S103 - as directories of a system are
        with Closing(open_below(top, folder)) as directory:
            write_file(directory, name, content)


def write_file(directory: int, name: str, content: bytes, mode: int = 0o644) -> None:
    """Write a small file into a directory of a tree, in place of whatever is there."""
    remove_tree(directory, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with Closing(os.open(name, flags, 0o644, dir_fd=directory)) as file:
        os.write(file, content)
        os.fchmod(file, mode)
