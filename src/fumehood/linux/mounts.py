"""What a command sees, as a list of mount operations.

Each operation can say what it does, do it in the launcher's own mount namespace, or be given to bubblewrap where only
that may mount. So what is shown to a person can't differ from what is done.
"""

from __future__ import annotations

import os
import stat

from fumehood.core.value import Value
from fumehood.linux import libc
from fumehood.linux.site import NOTHING, ROOT, Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fumehood.linux.cache import Snapshot

DATA_FD = 10  # the first of the descriptors that bubblewrap reads texts from
PROC = "/proc"
_READ_ONLY = libc.MS_RDONLY | libc.MS_NOSUID | libc.MS_NODEV
NODES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = (
    ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"), ("core", "/proc/kcore"), ("ptmx", "pts/ptmx"),
)  # fmt: skip


class Operation(Value):
    """One thing that is put in a command's way: where, and why."""

    target: str
    why: str = ""
    is_writable = False  # whether the command may write there

    def describe(self) -> str:
        """Say what a command finds there."""
        raise TypeError(type(self).__name__)

    def do(self, site: Site) -> None:
        """Do it in the launcher's own mount namespace."""
        raise TypeError(type(self).__name__)

    def arguments(self, texts: list[bytes]) -> list[str]:
        """Return what bubblewrap is told to do the same; what it is to read from a descriptor is added to `texts`."""
        raise TypeError(type(self).__name__)


class Folder(Operation):
    """An empty directory, or one on the way to something else."""

    mode: int = 0o755

    def describe(self) -> str:
        return "an empty directory"

    def do(self, site: Site) -> None:
        site.folder(self.target, self.mode)

    def arguments(self, texts: list[bytes]) -> list[str]:
        return ["--perms", f"{self.mode:04o}", "--dir", self.target]


class Link(Operation):
    """A symbolic link."""

    to: str

    def describe(self) -> str:
        return f"a link to {self.to}"

    def do(self, site: Site) -> None:
        site.link(self.target, self.to)

    def arguments(self, texts: list[bytes]) -> list[str]:
        return ["--symlink", self.to, self.target]


class Text(Operation):
    """A small file that is made for the command."""

    content: bytes
    mode: int = 0o644

    def describe(self) -> str:
        return f"a file of {len(self.content)} bytes"

    def do(self, site: Site) -> None:
        site.file(self.target, self.content, self.mode)

    def arguments(self, texts: list[bytes]) -> list[str]:
        texts.append(self.content)
        return ["--perms", f"{self.mode:04o}", "--file", str(DATA_FD + len(texts) - 1), self.target]


class Tmpfs(Operation):
    """A fresh file system in memory, thrown away with the command; a sealed one only holds mount points."""

    mode: int = 0o755
    is_sealed: bool = False
    is_mine: bool = False  # it belongs to whom the command runs as

    @property
    def is_writable(self) -> bool:  # type: ignore[override]
        return not self.is_sealed

    def describe(self) -> str:
        return "empty" if self.is_sealed else "empty, can be written, thrown away at the end"

    def do(self, site: Site) -> None:
        if self.target == "/":  # a directory of the site, and a mount of its own to be sealed by itself
            site.mount(ROOT, "/", "", libc.MS_BIND)
        else:
            site.tmpfs(self.target, self.mode, is_mine=self.is_mine)

    def arguments(self, texts: list[bytes]) -> list[str]:
        return [] if self.target == "/" else ["--perms", f"{self.mode:04o}", "--tmpfs", self.target]


class Seal(Operation):
    """The end of writing to a file system in memory, once all mount points in it are made."""

    def describe(self) -> str:
        return "can't be written any more"

    def do(self, site: Site) -> None:
        site.restrict(self.target, libc.MS_RDONLY | libc.MS_NOSUID)

    def arguments(self, texts: list[bytes]) -> list[str]:
        return ["--remount-ro", self.target]


class View(Operation):
    """A read-only overlay of directories of the host, topmost first.

    A Unix socket seen through an overlay can't be connected to, whoever made it and whenever. `hidden` are names
    below it that are not there, also when they appear later; `points` are directories that something is mounted on
    and that the host lacks. Given to bubblewrap, it is a plain mount, which cuts no socket and hides what exists.
    """

    sources: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    points: tuple[str, ...] = ()

    def describe(self) -> str:
        count = len(self.hidden)
        less = f", less {count} masked name{'s' if count > 1 else ''}" if count else ""
        where = "the host's own" if self.sources == (self.target,) else " over ".join(self.sources)
        return f"{where}, read-only{less}"

    def do(self, site: Site) -> None:
        try:
            lowers = [site.named(source) for source in self.sources]
        except FileNotFoundError:
            site.folder(self.target)  # gone since it was looked for: an empty directory shows that
            return
        if self.hidden or self.points:
            # What is on top gives the directory itself its mode and owner.
            lowers.insert(0, site.cover(self.sources[0], self.hidden, self.points))
        elif len(lowers) == 1:
            lowers.append(site.empty)  # an overlay needs two
        options = f"lowerdir={':'.join(lowers)},userxattr"
        site.mount("overlay", self.target, "overlay", _READ_ONLY, options)

    def arguments(self, texts: list[bytes]) -> list[str]:
        if len(self.sources) > 1:
            return [*_overlay_sources(self.sources), "--ro-overlay", self.target]
        arguments = ["--ro-bind-try", self.sources[0], self.target]
        for name in self.hidden:
            mode = _mode(f"{self.sources[0]}/{name}")
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                mask = Mask(target=f"{self.target.rstrip('/')}/{name}", is_directory=stat.S_ISDIR(mode))
                arguments += mask.arguments(texts)
        return arguments


class Bind(Operation):
    """A file or directory of the host, as it is there."""

    source: str
    is_writable: bool = False

    def describe(self) -> str:
        where = "the host's own" if self.source == self.target else self.source
        return f"{where}, {'can be written' if self.is_writable else 'read-only'}"

    def do(self, site: Site) -> None:
        try:
            flags = libc.MS_NOSUID | libc.MS_NODEV
            site.bind(self.source, self.target, flags if self.is_writable else _READ_ONLY)
        except FileNotFoundError:
            if self.is_writable:
                raise

    def arguments(self, texts: list[bytes]) -> list[str]:
        return ["--bind" if self.is_writable else "--ro-bind", self.source, self.target]


class Layered(Operation):
    """Directories with a layer over them that takes what is written: lower ones topmost first."""

    lowers: tuple[str, ...]
    upper: str
    work: str
    is_judged: bool = False  # what is written is looked at when the command has ended
    is_writable = True

    def describe(self) -> str:
        return f"{' over '.join(self.lowers)}; what is written goes to a layer"

    def do(self, site: Site) -> None:
        # `volatile` spares flushing the whole file system when it is unmounted.
        lowers = ":".join(map(site.named, self.lowers))
        layer = f"upperdir={site.named(self.upper)},workdir={site.named(self.work)}"
        options = f"lowerdir={lowers},{layer},userxattr,volatile"
        site.mount("overlay", self.target, "overlay", libc.MS_NOSUID | libc.MS_NODEV, options)
        if self.is_judged:
            site.layers[self.upper] = self.target

    def arguments(self, texts: list[bytes]) -> list[str]:
        return [*_overlay_sources(self.lowers), "--overlay", self.upper, self.work, self.target]


class Narrowed(Operation):
    """A root that is read-only after all, save for some directories in it, by their paths below it."""

    directories: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"read-only{', save for ' if self.directories else ''}{', '.join(self.directories)}"

    def do(self, site: Site) -> None:
        site.narrow(self.target, self.directories)

    def arguments(self, texts: list[bytes]) -> list[str]:
        if self.directories:
            raise TypeError("bubblewrap can't leave a part of a mount writable")
        return ["--remount-ro", self.target]


class Mask(Operation):
    """Something that exists and is shown empty."""

    is_directory: bool

    def describe(self) -> str:
        return "hidden: shown empty"

    def do(self, site: Site) -> None:
        if self.is_directory:
            site.mount("tmpfs", self.target, "tmpfs", _READ_ONLY, "mode=755,size=4k")
        else:
            site.bind(NOTHING, self.target, _READ_ONLY)

    def arguments(self, texts: list[bytes]) -> list[str]:
        if self.is_directory:
            return ["--tmpfs", self.target, "--remount-ro", self.target]
        return ["--ro-bind", "/dev/null", self.target]


class Devices(Operation):
    """The few devices that every program needs, so that none of the host's can be changed.

    Root makes nodes of its own. Others bind the host's, each read-only: that forbids nothing to who writes to the
    device, but its mode stays. Bubblewrap's own options can't do that: a read-only bind of its also forbids devices.
    """

    def describe(self) -> str:
        return f"{', '.join(NODES)}, terminals and shared memory of its own"

    def do(self, site: Site) -> None:
        site.tmpfs(self.target, 0o755, has_devices=True)
        for name in NODES:
            if not site.device(f"/dev/{name}", f"{self.target}/{name}"):
                site.bind(f"/dev/{name}", f"{self.target}/{name}", libc.MS_RDONLY | libc.MS_NOSUID)
        for name, to in DEVICE_LINKS:
            site.link(f"{self.target}/{name}", to)
        site.tmpfs(f"{self.target}/shm", 0o1777)
        site.folder(f"{self.target}/pts")
        options = "newinstance,ptmxmode=0666,mode=620"
        site.mount("devpts", f"{self.target}/pts", "devpts", libc.MS_NOSUID | libc.MS_NOEXEC, options)

    def arguments(self, texts: list[bytes]) -> list[str]:
        return ["--dev", self.target]


class Device(Operation):
    """A device of the host that a person names; read-only, so that its mode stays. `fault` is why it is not shown."""

    fault: str = ""

    def describe(self) -> str:
        return f"not shown: {self.fault}" if self.fault else "the host's own device"

    def do(self, site: Site) -> None:
        if self.fault:
            return
        try:
            site.bind(self.target, self.target, libc.MS_RDONLY | libc.MS_NOSUID | libc.MS_NOEXEC)
        except FileNotFoundError:
            return  # it was unplugged just now

    def arguments(self, texts: list[bytes]) -> list[str]:
        return [] if self.fault else ["--dev-bind-try", self.target, self.target]


class Console(Operation):
    """The terminal that a command was given, under a name by which it finds it; most were given none."""

    def describe(self) -> str:
        return "the command's terminal, if it has one"

    def do(self, site: Site) -> None:
        try:
            terminal = os.ttyname(1)
        except OSError:
            return
        site.bind(terminal, self.target, libc.MS_NOSUID)
        if site.owner is not None:
            os.fchown(1, *site.owner)

    def arguments(self, texts: list[bytes]) -> list[str]:
        return []  # comes with its devices


class Proc(Operation):
    """The command's own processes, and what the kernel tells everybody.

    To root it is read-only: a change of mode in there would be one for the whole machine.
    """

    is_read_only: bool = False

    def describe(self) -> str:
        return "its own processes" + (", read-only" if self.is_read_only else "")

    def arguments(self, texts: list[bytes]) -> list[str]:
        return ["--proc", self.target, *(("--remount-ro", self.target) if self.is_read_only else ())]


_KINDS: dict[str, Callable[..., Operation]] = {
    kind.__name__: kind
    for kind in (Folder, Link, Text, Tmpfs, Seal, View, Bind, Layered, Narrowed, Mask, Devices, Device, Console, Proc)
}  # fmt: skip


def is_bubblewraps(operation: Operation) -> bool:
    """Return True if only bubblewrap can do it: what lies in `/proc` is there when its first process is."""
    return isinstance(operation, Proc) or operation.target.startswith(f"{PROC}/")


def sealed(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations with the end of writing to whatever only holds mount points, the innermost first."""
    seals = [each.target for each in operations if isinstance(each, Tmpfs) and each.is_sealed]
    seals += [each.target for each in operations if isinstance(each, Devices)]
    return [*operations, *(Seal(target=target) for target in sorted(seals, key=len, reverse=True))]


def writable(operations: Iterable[Operation]) -> list[str]:
    """Return every place that a command may write to, as the guard is told."""
    operations = tuple(operations)
    narrowed = {each.target: each.directories for each in operations if isinstance(each, Narrowed)}
    places = [each.target for each in operations if each.is_writable and each.target not in narrowed]
    places += [f"{target}/{name}" for target, names in narrowed.items() for name in names]
    return ["/"] if "/" in places else [*places, "/dev", PROC]


def packed(operations: Iterable[Operation]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Write operations down as plain values, for a file or another process."""
    return tuple([(type(each).__name__, vars(each)) for each in operations])


def unpacked(rows: Iterable[tuple[str, dict[str, Any]]]) -> tuple[Operation, ...]:
    """Return operations that were written down."""
    return tuple([_KINDS[name](**fields) for name, fields in rows])


def _overlay_sources(lowers: Sequence[str]) -> list[str]:
    return [word for lower in reversed(lowers) for word in ("--overlay-src", lower)]


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


class HostView(Value):
    """How the host is shown: operations, and what is masked and lies in a root, where no view can hide it."""

    operations: tuple[Operation, ...]
    inside: tuple[str, ...]
    watched: Snapshot  # what it was read from
    look: int  # a number that differs after another look at the host
