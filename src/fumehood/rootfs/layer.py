"""A layer of a project's own over a shared root tree, kept between commands: what they install there stays theirs.

It lies over one tree for good: `base` names it. One command at a time may write it; others meanwhile see it as
it is, read-only. A command that shares the host's network finds hosts by name: by the host's resolver, in the tree's
own place.
"""

from __future__ import annotations

import _thread
import os
import stat

from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux.cache import plain_file
from fumehood.linux.libc import Closing
from fumehood.linux.lock import Lock
from fumehood.linux.mounts import Bind
from fumehood.linux.nofollow import LISTING, look, open_below, open_top, remove_tree
from fumehood.rootfs.tree import MOUNT_POINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
                for name in ("dev", "proc", "tmp", "etc", *(point[1:] for point in MOUNT_POINTS)):
                    status = look(top, name)
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
                        status = look(folder, os.path.basename(name))
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
        if look(top, folder) is None:
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
