"""What a command sees, as a list of mount operations.

Each operation can describe itself, be done in the launcher's own mount namespace, or be written as arguments of
bubblewrap, where only bubblewrap may mount. So the list that a person is shown can't differ from what is done.
"""

from __future__ import annotations

import os
import stat

from fumehood.core.value import Value
from fumehood.linux import libc
from fumehood.linux.site import EMPTY_FILE, READ_ONLY, ROOT, Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fumehood.linux.cache import Snapshot

DATA_FD = 10  # the first of the descriptors that bubblewrap reads texts from
PROC = "/proc"
DEVICE_NODES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = (
    ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"), ("core", "/proc/kcore"), ("ptmx", "pts/ptmx"),
)  # fmt: skip


class Operation(Value):
    """One mount, file, link or directory that a command sees at `target`, and the reason for it."""

    target: str
    why: str = ""
    is_writable = False  # by the command

    def describe(self) -> str:
        """Say what a command finds there."""
        raise TypeError(type(self).__name__)

    def do(self, site: Site) -> None:
        """Make it in the launcher's own mount namespace."""
        raise TypeError(type(self).__name__)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        """Return the arguments that make bubblewrap do the same; append to `texts` what it reads from descriptors."""
        raise TypeError(type(self).__name__)


class Folder(Operation):
    """An empty directory, or a parent directory of another operation's target."""

    mode: int = 0o755

    def describe(self) -> str:
        return "an empty directory"

    def do(self, site: Site) -> None:
        site.make_directory(self.target, self.mode)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return ["--perms", f"{self.mode:04o}", "--dir", self.target]


class Link(Operation):
    """A symbolic link."""

    to: str

    def describe(self) -> str:
        return f"a link to {self.to}"

    def do(self, site: Site) -> None:
        site.make_link(self.target, self.to)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return ["--symlink", self.to, self.target]


class Text(Operation):
    """A small file that is made for the command."""

    content: bytes
    mode: int = 0o644

    def describe(self) -> str:
        return f"a file of {len(self.content)} bytes"

    def do(self, site: Site) -> None:
        site.make_file(self.target, self.content, self.mode)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        texts.append(self.content)
        return ["--perms", f"{self.mode:04o}", "--file", str(DATA_FD + len(texts) - 1), self.target]


class Tmpfs(Operation):
    """A new file system in memory, which ends with the command; a sealed one only holds mount points."""

    mode: int = 0o755
    is_sealed: bool = False
    is_mine: bool = False  # it belongs to the user whom the command runs as, and not to root

    @property
    def is_writable(self) -> bool:  # type: ignore[override]
        return not self.is_sealed

    def describe(self) -> str:
        return "empty" if self.is_sealed else "empty, can be written, thrown away at the end"

    def do(self, site: Site) -> None:
        if self.target == "/":  # a directory of the site, mounted on itself so that it can be sealed separately
            site.mount(ROOT, "/", "", libc.MS_BIND)
        else:
            site.mount_tmpfs(self.target, self.mode, for_owner=self.is_mine)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return [] if self.target == "/" else ["--perms", f"{self.mode:04o}", "--tmpfs", self.target]


class Seal(Operation):
    """Makes a file system in memory read-only, once all mount points in it are made."""

    def describe(self) -> str:
        return "can't be written any more"

    def do(self, site: Site) -> None:
        site.restrict(self.target, libc.MS_RDONLY | libc.MS_NOSUID)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return ["--remount-ro", self.target]


class View(Operation):
    """A read-only overlay of directories of the host, topmost first.

    A Unix socket seen through an overlay can't be connected to, whoever made it and whenever. The names of `hidden`
    below it are absent, also if the host makes them later. `points` are mount points that the host lacks.
    Bubblewrap makes a plain mount instead: sockets can be reached through it, and only names that exist are hidden.
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
            lowers = [site.descriptor_path(source) for source in self.sources]
        except FileNotFoundError:
            site.make_directory(self.target)  # the host has removed it meanwhile: show an empty directory
            return
        if self.hidden or self.points:
            # The topmost directory determines mode and owner of the mount point.
            lowers.insert(0, site.make_cover(self.sources[0], self.hidden, self.points))
        elif len(lowers) == 1:
            lowers.append(site.empty_directory)  # an overlay needs two
        options = f"lowerdir={':'.join(lowers)},userxattr"
        site.mount("overlay", self.target, "overlay", READ_ONLY, options)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        if len(self.sources) > 1:
            return [*_overlay_source_arguments(self.sources), "--ro-overlay", self.target]
        arguments = ["--ro-bind-try", self.sources[0], self.target]
        for name in self.hidden:
            mode = _mode(f"{self.sources[0]}/{name}")
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                mask = Mask(target=f"{self.target.rstrip('/')}/{name}", is_directory=stat.S_ISDIR(mode))
                arguments += mask.bwrap_arguments(texts)
        return arguments


class Bind(Operation):
    """A file or directory of the host, as it is there; a read-only file, out of a view of its directory.

    A command's locks and leases on such a file stay in the view: on the host's own, they would stop its programs.
    """

    source: str
    is_writable: bool = False

    def describe(self) -> str:
        where = "the host's own" if self.source == self.target else self.source
        return f"{where}, {'can be written' if self.is_writable else 'read-only'}"

    def do(self, site: Site) -> None:
        try:
            if self.is_writable:
                site.bind(self.source, self.target, libc.MS_NOSUID | libc.MS_NODEV)
            else:
                site.bind(site.in_view(self.source), self.target, READ_ONLY)
        except FileNotFoundError:
            if self.is_writable:
                raise

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return ["--bind" if self.is_writable else "--ro-bind", self.source, self.target]


class Overlay(Operation):
    """A writable overlay: what is written goes to the layer `upper`; `lowers` are topmost first."""

    lowers: tuple[str, ...]
    upper: str
    work: str
    is_judged: bool = False  # the layer is judged when the command has ended
    is_writable = True

    def describe(self) -> str:
        return f"{' over '.join(self.lowers)}; what is written goes to a layer"

    def do(self, site: Site) -> None:
        # Without `volatile`, the unmount would flush the whole file system that the layer is on.
        lowers = ":".join(map(site.descriptor_path, self.lowers))
        layer = f"upperdir={site.descriptor_path(self.upper)},workdir={site.descriptor_path(self.work)}"
        options = f"lowerdir={lowers},{layer},userxattr,volatile"
        site.mount("overlay", self.target, "overlay", libc.MS_NOSUID | libc.MS_NODEV, options)
        if self.is_judged:
            site.layers[self.upper] = self.target

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return [*_overlay_source_arguments(self.lowers), "--overlay", self.upper, self.work, self.target]


class ReadOnlyRoot(Operation):
    """Makes a root read-only, except for some directories in it (paths below the root)."""

    writable_directories: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"read-only{', save for ' if self.writable_directories else ''}{', '.join(self.writable_directories)}"

    def do(self, site: Site) -> None:
        site.make_read_only(self.target, self.writable_directories)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        if self.writable_directories:
            raise TypeError("bubblewrap can't leave a part of a mount writable")
        return ["--remount-ro", self.target]


class Mask(Operation):
    """A file or directory of the host that is shown empty."""

    is_directory: bool

    def describe(self) -> str:
        return "hidden: shown empty"

    def do(self, site: Site) -> None:
        if self.is_directory:
            site.mount("tmpfs", self.target, "tmpfs", READ_ONLY, "mode=755,size=4k")
        else:
            site.bind(EMPTY_FILE, self.target, READ_ONLY)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        if self.is_directory:
            return ["--tmpfs", self.target, "--remount-ro", self.target]
        return ["--ro-bind", "/dev/null", self.target]


class Devices(Operation):
    """The few devices that every program needs, such that a command can't change those of the host.

    Root makes new nodes. Others bind the host's nodes read-only: writing to the device still works, changing the mode
    of the node does not. Bubblewrap has no option for that: its read-only bind also forbids using devices.
    """

    def describe(self) -> str:
        return f"{', '.join(DEVICE_NODES)}, terminals and shared memory of its own"

    def do(self, site: Site) -> None:
        site.mount_tmpfs(self.target, 0o755, has_devices=True)
        for name in DEVICE_NODES:
            if not site.make_device(f"/dev/{name}", f"{self.target}/{name}"):
                site.bind(f"/dev/{name}", f"{self.target}/{name}", libc.MS_RDONLY | libc.MS_NOSUID)
        for name, to in DEVICE_LINKS:
            site.make_link(f"{self.target}/{name}", to)
        site.mount_tmpfs(f"{self.target}/shm", 0o1777)
        site.make_directory(f"{self.target}/pts")
        options = "newinstance,ptmxmode=0666,mode=620"
        site.mount("devpts", f"{self.target}/pts", "devpts", libc.MS_NOSUID | libc.MS_NOEXEC, options)

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return ["--dev", self.target]


class Device(Operation):
    """A device that a person lists in the configuration, bound read-only; `fault` says why it can't be shown."""

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

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return [] if self.fault else ["--dev-bind-try", self.target, self.target]


class Console(Operation):
    """The command's terminal under a name in /dev, if its standard output is one.

    A standard stream that is a device is opened anew in there: by a descriptor of the host's node, a command could
    change the mode of that, for the whole machine.
    """

    def describe(self) -> str:
        return "the command's terminal, if it has one"

    def do(self, site: Site) -> None:
        if os.isatty(1):
            if site.owner is not None:
                os.fchown(1, *site.owner)
            site.bind(os.ttyname(1), self.target, libc.MS_RDONLY | libc.MS_NOSUID)
        for fd in range(3):
            if stat.S_ISCHR(os.fstat(fd).st_mode):
                site.reopen(fd, self.target if os.isatty(fd) else "/dev/null")

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return []  # comes with its devices


class Proc(Operation):
    """The `/proc` of the command's own pid namespace.

    For root it is read-only: a changed mode in there would hold for the whole machine.
    """

    is_read_only: bool = False

    def describe(self) -> str:
        return "its own processes" + (", read-only" if self.is_read_only else "")

    def bwrap_arguments(self, texts: list[bytes]) -> list[str]:
        return ["--proc", self.target, *(("--remount-ro", self.target) if self.is_read_only else ())]


_OPERATIONS: dict[str, Callable[..., Operation]] = {
    kind.__name__: kind
    for kind in (
        Folder, Link, Text, Tmpfs, Seal, View, Bind, Overlay, ReadOnlyRoot, Mask, Devices, Device, Console, Proc,
    )
}  # fmt: skip


def needs_bubblewrap(operation: Operation) -> bool:
    """Return True if only bubblewrap can do it: the new `/proc` exists only once its first process does."""
    return isinstance(operation, Proc) or operation.target.startswith(f"{PROC}/")


def with_seals(operations: Sequence[Operation]) -> list[Operation]:
    """Append a Seal for each file system that only holds mount points, the innermost first."""
    seals = [each.target for each in operations if isinstance(each, Tmpfs) and each.is_sealed]
    seals += [each.target for each in operations if isinstance(each, Devices)]
    return [*operations, *(Seal(target=target) for target in sorted(seals, key=len, reverse=True))]


def writable_places(operations: Iterable[Operation]) -> list[str]:
    """Return every path below which a command may write: the guard allows these."""
    operations = tuple(operations)
    exceptions = {each.target: each.writable_directories for each in operations if isinstance(each, ReadOnlyRoot)}
    places = [each.target for each in operations if each.is_writable and each.target not in exceptions]
    places += [f"{target}/{name}" for target, names in exceptions.items() for name in names]
    return ["/"] if "/" in places else [*places, "/dev", PROC]


def to_rows(operations: Iterable[Operation]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return operations as plain values, for a file or another process."""
    return tuple([(type(each).__name__, vars(each)) for each in operations])


def from_rows(rows: Iterable[tuple[str, dict[str, Any]]]) -> tuple[Operation, ...]:
    """Return the operations that `to_rows` made these rows of."""
    return tuple([_OPERATIONS[name](**fields) for name, fields in rows])


def _overlay_source_arguments(lowers: Sequence[str]) -> list[str]:
    return [word for lower in reversed(lowers) for word in ("--overlay-src", lower)]


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


class HostView(Value):
    """The mount operations that show the host, without the roots."""

    operations: tuple[Operation, ...]
    masked_in_roots: tuple[str, ...]  # masked paths that lie in a root, where no view can hide them
    snapshot: Snapshot  # the files and directories that decided it
    number: int  # another one after every new survey of the host
