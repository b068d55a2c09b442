"""Root trees: where things appear to a command whose `/` is one, which are installed, and a project's layer over one.

The project is at /workspace, and the rest beside it. A tree is looked into without leaving it: whatever links it holds
are followed as a command in it would.
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
_MADE = frozenset({"dev", "proc", "tmp"})  # fresh ones come in their place
_NEEDED = ("dev", "proc", "tmp", *(point[1:] for point in MOUNT_POINTS))
_PACKAGES = f"{WORKSPACE}/.packages"
_TMP = "/tmp"  # noqa: S108 - a fresh one, inside the sandbox

ENVIRONMENT = {
    "HOME": WORKSPACE,
    "PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{_PACKAGES}/bin",
    "PIP_TARGET": _PACKAGES,
    "PYTHONPATH": _PACKAGES,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    # With a home that is the project, caches and histories would be changes to it.
    "HISTFILE": f"{_TMP}/.history",
    "LESSHISTFILE": "-",
    "XDG_CACHE_HOME": f"{_TMP}/.cache",
    "npm_config_cache": f"{_TMP}/.cache/npm",
    "TMPDIR": _TMP,
    "LANG": "C.UTF-8",
    "FUMEHOOD": "1",
}


def targets(roots: Sequence[str]) -> dict[str, str]:
    """Return where each root appears: the project first, at /workspace, the others by name under /roots.

    One that lies in another is in its place there.
    """
    places = {roots[0]: WORKSPACE}
    for root in roots[1:]:
        around = next((each for each in places if root.startswith(f"{each}/")), "")
        if around:
            places[root] = places[around] + root[len(around) :]
            continue
        place = first = f"{ROOTS}/{root.rpartition('/')[2]}"
        number = 1
        while place in places.values():
            number += 1
            place = f"{first}-{number}"
        places[root] = place
    return places


def inside(path: str, places: Mapping[str, str]) -> str:
    """Return a host path as the command sees it; one that lies in no root is taken to be the command's own."""
    for root, target in places.items():
        if path == root or path.startswith(f"{root}/"):
            return target + path[len(root) :]
    return path


def outside(path: str, places: Mapping[str, str]) -> str:
    """Return a path of the command's as the person knows it; one that is in no root stays as it is."""
    return inside(path, {target: root for root, target in places.items()})


def skills(settings: Iterable[Mapping[str, object]]) -> tuple[tuple[str, str], ...]:
    """Return each skill's directory and where it appears: /skills/<name>, its own unless one is given."""
    sources: dict[str, str] = {}
    for each in settings:
        source = str(each["path"]).rstrip("/")
        name = str(each.get("name") or source.rpartition("/")[2])
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise BadRequest(f"a skill can't be called {name!r}", hint="a skill's name is one word of a path")
        if name in sources:
            raise BadRequest(f"two skills are called {name}", hint='give one of them another: name = "…"')
        sources[name] = source
    return tuple((source, f"{SKILLS}/{name}") for name, source in sources.items())


class RootTree(Value):
    """A root tree that the command sees as `/`, instead of the host's.

    `entries` are its top entries where it lacks a mount point: each a name and, for a link, its target. `lowers` and
    `upper` are the project's own layer over it, where it has one; without an upper directory that is only read.
    `guarded` are mount points that get something on them in any case: where the root can be written, a free one could
    be made a link, and the next command's mount would follow it.
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
        """Whether the command may change it."""
        return bool(self.upper)

    def mounts(self, *, is_cut: bool) -> list[Operation]:
        """Return how it becomes `/`; `is_cut` tells that its sockets can be cut, by views.

        One that lacks a mount point is not changed: what lies at its top is shown on an empty root.
        """
        if self.upper:
            return [Overlay(target="/", lowers=self.lowers, upper=self.upper, work=self.work)]
        if self.lowers:
            return [View(target="/", sources=self.lowers)]
        if not self.entries:
            return [_shown(self.path, "/", is_cut=is_cut)]
        return [
            Tmpfs(target="/", is_sealed=True), Folder(target="/proc"),
            *(
                Link(target=f"/{name}", to=to) if to else _shown(f"{self.path}/{name}", f"/{name}", is_cut=is_cut)
                for name, to in self.entries if name not in _MADE
            ),
        ]  # fmt: skip


def _shown(source: str, target: str, *, is_cut: bool) -> Operation:
    if is_cut and os.path.isdir(source):
        return View(target=target, sources=(source,))
    return Bind(target=target, source=source)


def tree_at(path: str) -> RootTree:
    """Return the root tree at a directory, ready to be run in."""
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
        points = [stat_entry(top, name) for name in _NEEDED]
        whole = all(status is not None and stat.S_ISDIR(status.st_mode) for status in points)
        return RootTree(path=path, shell=shell, entries=() if whole else _entries(top))


def is_program(top: int, path: str) -> bool:
    """Return True if a command in the tree could start a program."""
    try:
        with Closing(libc.openat2(top, os.fsencode(path.lstrip("/")), os.O_PATH, libc.RESOLVE_IN_ROOT)) as file:
            mode = os.fstat(file).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _entries(top: int) -> tuple[tuple[str, str], ...]:
    """List what lies at the top, less what is made fresh; a link comes with its target."""
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


class Mark(Value):
    """What a tree's `.alpine-version` says: written when the tree is whole, so where there is none it is empty."""

    version: str = ""
    tier: int = 0
    packages: tuple[str, ...] = ()  # those that a person asked for besides the tier's

    def content(self) -> bytes:
        """Return what is written."""
        packages = f"packages {' '.join(self.packages)}\n" if self.packages else ""
        return f"{self.version}\ntier {self.tier}\n{packages}".encode()


class Installed(Value):
    """One installed root tree; `version` is what its `.alpine-version` says."""

    name: str
    path: str
    version: str


def collection(data: str) -> str:
    """Return the directory that holds root trees; FUMEHOOD_ROOTFS_DIR may name another."""
    directory = os.environ.get("FUMEHOOD_ROOTFS_DIR", "")
    return directory.rstrip("/") if directory.startswith("/") else f"{data}/rootfs"


def is_ready(path: str) -> bool:
    """Return True if a whole root tree lies at a path; asks nobody, so it works offline."""
    mark = mark_of(path)
    return bool(mark.version) and has_programs(path, mark.tier)


def mark_of(path: str) -> Mark:
    """Return what a tree was marked with when it was whole; an empty mark where it was not."""
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
    """Return True if a tree has a shell, and Python where its tier has that."""
    try:
        with Closing(open_top(path)) as top:
            return is_program(top, "/bin/sh") and (not tier or any(is_program(top, each) for each in _PYTHONS))
    except OSError:
        return False


def installed(at: str) -> list[Installed]:
    """List the trees that are ready, by name; where the directory is a tree itself, that one."""
    if is_ready(at):
        return [_described(at)]
    try:
        names = sorted(os.listdir(at))
    except OSError:
        return []
    paths = [f"{at}/{name}" for name in names if not name.startswith(".") and name != CURRENT]
    return [_described(path) for path in paths if is_ready(path)]


def _described(path: str) -> Installed:
    return Installed(name=os.path.basename(path), path=path, version=mark_of(path).version)


def find(at: str, name: str = ALPINE) -> Installed:
    """Return the tree of a name; `alpine` is the one in use now."""
    if is_ready(at):
        return _described(at)
    path = f"{at}/{current(at) or CURRENT}" if name == ALPINE else f"{at}/{name}"
    if is_ready(path):
        return _described(path)
    if name != ALPINE:
        raise BadRequest(f"there is no root {name}", hint="fumehood rootfs list; or name a directory: --root ./tree")
    if current(at):
        raise BadRequest(f"the root tree {path} is damaged", hint="fumehood rootfs install")
    raise BadRequest("no Alpine root is installed", hint="fumehood rootfs install")


def find_damaged(at: str, name: str) -> Installed:
    """Return the tree of a name, be it ready or not: for its removal."""
    try:
        return find(at, name)
    except BadRequest:
        name = current(at) if name == ALPINE else name
        is_tree = name and not name.startswith(".") and "/" not in name and name != CURRENT
        if not is_tree or not os.path.isdir(f"{at}/{name}"):
            raise
        return _described(f"{at}/{name}")


def current(at: str) -> str:
    """Return the name of the tree that `alpine` means, or "" where there is none."""
    return link_target(f"{at}/{CURRENT}")


def switch(at: str, name: str) -> None:
    """Let `alpine` mean another tree, in one step."""
    beside = f"{at}/.{CURRENT}-{os.getpid()}"
    try:
        os.symlink(name, beside)
        os.replace(beside, f"{at}/{CURRENT}")
    except OSError as error:
        raise FumehoodError(
            f"`alpine` can't be made {name} in {at}: {error.strerror}", hint=f"name it yourself: --root {name}"
        ) from error


def in_use(path: str) -> Lock:
    """Keep a tree from being removed, for as long as a command runs in it."""
    return Lock(os.open(path, LISTING | os.O_CLOEXEC)).take(shared=True)


# ---- A layer of a project's own over a shared root tree, kept between commands: what they install there stays theirs.
#
# It lies over one tree for good: `base` names it. One command at a time may write it; others meanwhile see it as it is,
# read-only. A command that shares the host's network finds hosts by name: by the host's resolver, in the tree's own
# place.

BASE, UPPER, WORK = "base", "upper", "work"
RESOLVER, HOSTS = "etc/resolv.conf", "etc/hosts"
_LONGEST = 4096
_MOST = 1 << 16
_HINT = "fumehood workspace reset drops what was installed, and begins anew"



class Taken(Value):
    """A layer that is mounted for one command: where it lies, and whether that command may write it."""

    upper: str
    work: str
    writable: bool


class RootLayer:
    """One project's layer, at a directory of ours that no command can reach."""

    def __init__(self, at: str) -> None:
        self.at = at
        self._lock: Lock | None = None

    @property
    def base(self) -> str:
        """The name of the tree that the layer lies over, or "" where there is no layer yet."""
        try:
            with open(f"{self.at}/{BASE}", encoding="utf-8", errors="surrogateescape") as file:
                return file.read(_LONGEST).strip()
        except FileNotFoundError:
            return ""

    def take(self, base: str) -> Taken:
        """Get ready for a command to run over the tree of this name; `release` lets go of it."""
        try:
            self._make(base)
            self._lock = self._opened()
            try:
                self._lock.take(wait=False)
                writable = True
            except BlockingIOError:
                writable = False
            # Bubblewrap would follow a link that stands where we mount.
            with Closing(open_top(f"{self.at}/{UPPER}")) as top:
                for name in (*_NEEDED, "etc"):
                    status = stat_entry(top, name)
                    if status is not None and not stat.S_ISDIR(status.st_mode):
                        raise BadRequest(f"/{name} was replaced in this workspace's root layer", hint=_HINT)
            if writable:
                # Anew: a volatile mount leaves a mark in the work directory, and can't be repeated over it.
                with Closing(open_top(self.at)) as top:
                    remove_tree(top, WORK)
                    os.mkdir(WORK, 0o700, dir_fd=top)
        except OSError as error:
            raise FumehoodError(f"the root layer {self.at} can't be used: {error.strerror}", hint=_HINT) from error
        return Taken(upper=f"{self.at}/{UPPER}", work=f"{self.at}/{WORK}", writable=writable)

    def release(self) -> None:
        """Let another command write it."""
        if self._lock is not None:
            self._lock.close()

    def _opened(self) -> Lock:
        return Lock(os.open(self.at, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))

    def _make(self, base: str) -> None:
        if os.path.isdir(self.at):
            return
        # Apart, and then in one step: another command may be the first one too.
        beside = f"{self.at}.{os.getpid()}.{_thread.get_ident()}"
        os.makedirs(beside, mode=0o700)
        with open(f"{beside}/{BASE}", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(base)
        os.mkdir(f"{beside}/{UPPER}", 0o700)
        # It is `/` to whoever runs there.
        os.chmod(f"{beside}/{UPPER}", 0o755)  # noqa: S103
        try:
            os.rename(beside, self.at)
        except OSError:
            with Closing(open_top(os.path.dirname(beside))) as above:
                remove_tree(above, os.path.basename(beside))
            if not os.path.isdir(self.at):
                raise

    def drop(self) -> bool:
        """Remove the layer; returns False if there was none."""
        if not os.path.lexists(self.at):
            return False
        try:
            with self._opened() as lock:
                lock.take(wait=False)
                with Closing(open_top(os.path.dirname(self.at))) as above:
                    remove_tree(above, os.path.basename(self.at))
        except BlockingIOError as error:
            raise BadRequest("a command is running over this root layer", hint="wait for it, or end it") from error
        return True


def pins(layers: str, name: str) -> list[str]:
    """Return the layers in a directory that lie over the tree of this name."""
    try:
        names = sorted(os.listdir(layers))
    except FileNotFoundError:
        return []
    return [each for each in names if RootLayer(f"{layers}/{each}").base == name]


def bound_names(tree: str) -> tuple[Bind, ...]:
    """Return what is mounted in a tree to find names: only on plain files, since bubblewrap would follow a link."""
    names = []
    with Closing(open_top(tree)) as top:
        for name in (RESOLVER, HOSTS):
            if os.path.isfile(f"/{name}"):
                try:
                    with Closing(open_below(top, os.path.dirname(name))) as folder:
                        status = stat_entry(folder, os.path.basename(name))
                except OSError:
                    continue
                if status is not None and stat.S_ISREG(status.st_mode):
                    names.append(name)
    return tuple(Bind(source=os.path.realpath(f"/{name}"), target=f"/{name}") for name in names)


def told_names(trees: Sequence[str]) -> str:
    """Return the resolver's configuration that a command sees: the first of these trees that has one decides."""
    for tree in trees:
        try:
            with Closing(open_top(tree)) as top:
                content = plain_file(RESOLVER, top, _MOST)
        except OSError:
            continue
        if content is not None:  # else there is none, or a link, which is not followed for a command's sake
            return content.decode(errors="replace")
    return ""


def write_names(upper: str) -> None:
    """Put a copy of the resolver's configuration into a layer, where commands could have put anything."""
    try:
        with open(f"/{RESOLVER}", "rb") as file:
            content = file.read(_MOST)
    except OSError:
        return  # the host has none
    folder, _, name = RESOLVER.rpartition("/")
    with Closing(open_top(upper)) as top:
        if stat_entry(top, folder) is None:
            os.mkdir(folder, 0o700, dir_fd=top)
            os.chmod(folder, 0o755, dir_fd=top)  # noqa: S103 - as directories of a system are
        with Closing(open_below(top, folder)) as directory:
            write_file(directory, name, content)


def write_file(directory: int, name: str, content: bytes, mode: int = 0o644) -> None:
    """Put a small file into a directory of a tree, in place of whatever is there."""
    remove_tree(directory, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with Closing(os.open(name, flags, 0o644, dir_fd=directory)) as file:
        os.write(file, content)
        os.fchmod(file, mode)
