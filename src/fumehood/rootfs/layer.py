"""A layer of a project's own over a shared root tree, kept between commands: what they install there stays theirs.

It lies over one tree for good: `base` names it. One command at a time may write it; others meanwhile see it as
it is, read-only.
"""

from __future__ import annotations

import _thread
import os
import stat

from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux.libc import Closing
from fumehood.linux.mounts import Bind
from fumehood.linux.nofollow import look, make_parents, open_below, open_top, remove_tree, set_mode
from fumehood.rootfs.tree import MOUNT_POINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


# ---- A layer of a project's own over a shared root tree, kept between commands: what they install there stays theirs.
#
# It lies over one tree for good: `base` names it. One command at a time may write it; others meanwhile see it as
# it is, read-only.

BASE, UPPER, WORK = "base", "upper", "work"
_LONGEST = 4096
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
        self._lock = -1

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
        import fcntl

        try:
            self._make(base)
            self._lock = os.open(self.at, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                writable = True
            except BlockingIOError:
                writable = False
            self._check()
            if writable:
                self._freshen()
        except OSError as error:
            raise FumehoodError(f"the root layer {self.at} can't be used: {error.strerror}", hint=_HINT) from error
        return Taken(upper=f"{self.at}/{UPPER}", work=f"{self.at}/{WORK}", writable=writable)

    def release(self) -> None:
        """Let another command write it."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

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

    def _check(self) -> None:
        """Refuse a layer in which something else stands where we mount: bubblewrap would follow a link."""
        with Closing(open_top(f"{self.at}/{UPPER}")) as upper:
            for name in ("dev", "proc", "tmp", "etc", *(point[1:] for point in MOUNT_POINTS)):
                found = look(upper, name)
                if found is not None and not stat.S_ISDIR(found.st_mode):
                    raise BadRequest(f"/{name} was replaced in this workspace's root layer", hint=_HINT)

    def _freshen(self) -> None:
        """Make the work directory anew: a volatile mount leaves a mark there, and can't be repeated over it."""
        with Closing(open_top(self.at)) as top:
            remove_tree(top, WORK)
            os.mkdir(WORK, 0o700, dir_fd=top)

    def drop(self) -> bool:
        """Remove the layer; tell whether there was one."""
        import fcntl

        try:
            lock = os.open(self.at, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with Closing(open_top(os.path.dirname(self.at))) as above:
                remove_tree(above, os.path.basename(self.at))
        except BlockingIOError as error:
            raise BadRequest("a command is running over this root layer", hint="wait for it, or end it") from error
        finally:
            os.close(lock)
        return True


def pins(layers: str, name: str) -> list[str]:
    """Return the layers in a directory that lie over the tree of this name."""
    try:
        found = sorted(os.listdir(layers))
    except FileNotFoundError:
        return []
    return [each for each in found if RootLayer(f"{layers}/{each}").base == name]


# ---- Let a command that shares the host's network find hosts by name: the host's resolver, in the tree's own place.

RESOLVER, HOSTS = "etc/resolv.conf", "etc/hosts"
_MOST = 1 << 16


def bound_names(tree: str) -> tuple[Bind, ...]:
    """Return what is mounted for it in a tree: only on plain files, since bubblewrap would follow a link."""
    with Closing(open_top(tree)) as top:
        found = [name for name in (RESOLVER, HOSTS) if os.path.isfile(f"/{name}") and has_plain_file(top, name)]
    return tuple(Bind(source=os.path.realpath(f"/{name}"), target=f"/{name}") for name in found)


def told_names(trees: Sequence[str]) -> str:
    """Return the resolver's configuration that a command sees: the first of these trees that has one decides."""
    for tree in trees:
        try:
            top = open_top(tree)
        except OSError:
            continue
        try:
            file = open_below(top, RESOLVER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # none, or a link, which is not followed for a command's sake
        finally:
            os.close(top)
        try:
            return os.read(file, _MOST).decode(errors="replace")
        except OSError:
            continue  # no file
        finally:
            os.close(file)
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
            make_parents(top, folder)
            made = open_below(top, folder)
            set_mode(made, 0o755)
            os.close(made)
        with Closing(open_below(top, folder)) as above:
            remove_tree(above, name)
            with Closing(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=above)) as target:
                os.write(target, content)


def has_plain_file(top: int, path: str) -> bool:
    """Tell whether a tree has a file at a path, with no link on the way."""
    try:
        folder = open_below(top, os.path.dirname(path))
    except OSError:
        return False
    try:
        found = look(folder, os.path.basename(path))
    finally:
        os.close(folder)
    return found is not None and stat.S_ISREG(found.st_mode)
