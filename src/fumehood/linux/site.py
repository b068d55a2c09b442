"""Where a launch puts together what its command sees: a tmpfs of the launch's own mount namespace.

It exists for nobody else, so nobody can remove it. Places are reached without following a link: what a command left
in a layer must not decide where something is mounted.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux import libc
from fumehood.linux.libc import Closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STAND = "/sys"  # there on every host, and of no use to bubblewrap
ROOT = f"{STAND}/root"  # what bubblewrap shows as `/`
NOTHING = f"{STAND}/nothing"
LENT = f"{STAND}/lent"  # where whoever root works for finds a bubblewrap that lies in root's home
_COVERS = f"{STAND}/cover"
_EMPTY = f"{STAND}/empty"
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# As statvfs tells them, and as mount takes them: in a user namespace, none may be dropped.
_LOCKED = (
    (2, libc.MS_NOSUID), (4, libc.MS_NODEV), (8, libc.MS_NOEXEC), (1024, libc.MS_NOATIME), (2048, libc.MS_NODIRATIME),
    (4096, libc.MS_RELATIME),
)  # fmt: skip


class Site:
    """One launch's tree while it is being put together; `owner` is whom the command runs as, where that is another."""

    empty = _EMPTY

    def __init__(self, owner: tuple[int, int] | None = None) -> None:
        self.owner = owner
        self._own: set[int] = set()  # the devices of our own file systems: only there is anything made
        self._folders: dict[str, tuple[int, bool]] = {}  # what was opened before, and whether it is our own
        self._covers = 0
        self.layers: dict[str, str] = {}  # what takes in what will be judged, and where it is mounted
        libc.mount(b"tmpfs", STAND.encode(), b"tmpfs", libc.MS_NOSUID | libc.MS_NODEV, b"mode=755,size=64m")
        self._own.add(os.stat(STAND).st_dev)
        for folder in (ROOT, _EMPTY, _COVERS):
            os.mkdir(folder, 0o755)
        os.close(os.open(NOTHING, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))

    def named(self, path: str) -> str:
        """Name a directory of the host by a descriptor: any byte may then stand in its path.

        It stays open until this process becomes another program.
        """
        return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)}"

    def folder(self, target: str, mode: int = 0o755) -> None:
        """Have a directory there."""
        with Closing(self._place(target, is_directory=True)) as place:
            if mode != 0o755 and os.fstat(place).st_dev in self._own:
                os.chmod(f"/proc/self/fd/{place}", mode)

    def link(self, target: str, to: str) -> None:
        """Make a symbolic link, where nothing is yet."""
        folder, name = self._around(target)
        try:
            os.symlink(to, name, dir_fd=folder)
        except FileExistsError:
            return
        self._belongs(folder, name)

    def file(self, target: str, content: bytes, mode: int) -> None:
        """Make a small file."""
        folder, name = self._around(target)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with Closing(os.open(name, flags, 0o600, dir_fd=folder)) as made:
            os.write(made, content)
            os.fchmod(made, mode)
        self._belongs(folder, name)

    def device(self, like: str, target: str) -> bool:
        """Make a device node; return False if whoever launches may not."""
        original = os.stat(like)
        folder, name = self._around(target)
        try:
            os.mknod(name, stat.S_IFCHR | 0o600, original.st_rdev, dir_fd=folder)
            os.chmod(name, stat.S_IMODE(original.st_mode), dir_fd=folder)
        except PermissionError:
            return False
        return True

    def tmpfs(self, target: str, mode: int, *, is_mine: bool = False, has_devices: bool = False) -> None:
        """Mount a file system in memory, in which places can be made."""
        options = f"mode={mode:o}"
        if is_mine and self.owner is not None:
            options += f",uid={self.owner[0]},gid={self.owner[1]}"
        flags = libc.MS_NOSUID | (0 if has_devices else libc.MS_NODEV)
        self.mount("tmpfs", target, "tmpfs", flags, options)
        with Closing(self._place(target, is_directory=True)) as place:
            self._own.add(os.fstat(place).st_dev)

    def mount(
        self, source: str, target: str, kind: str, flags: int, options: str = "", *, is_directory: bool = True
    ) -> None:
        """Mount a file system, or what is there already, on a place that is made where it is missing."""
        with Closing(self._place(target, is_directory=is_directory)) as place:
            there = f"/proc/self/fd/{place}".encode()
            try:
                libc.mount(source.encode(), there, kind.encode(), flags, os.fsencode(options))
            except OSError as error:
                raise OSError(error.errno, error.strerror, target) from error
        # Directories that something was just mounted over are no longer those that were opened before.
        below = f"{target.rstrip('/')}/"
        for path in [path for path in self._folders if f"{path}/".startswith(below)]:
            os.close(self._folders.pop(path)[0])

    def bind(self, source: str, target: str, flags: int) -> None:
        """Show a file or directory of the host at a place, with these restrictions."""
        with Closing(os.open(source, os.O_PATH | os.O_CLOEXEC)) as original:
            is_directory = stat.S_ISDIR(os.fstat(original).st_mode)
            self.mount(f"/proc/self/fd/{original}", target, "", libc.MS_BIND, is_directory=is_directory)
        self.restrict(target, flags)

    def restrict(self, target: str, flags: int) -> None:
        """Add restrictions to what is mounted at a place."""
        with Closing(self._place(target, is_directory=False)) as place:
            name = f"/proc/self/fd/{place}"
            try:
                has = os.statvfs(name).f_flag
                for bit, flag in _LOCKED:
                    flags |= flag if has & bit else 0
                libc.mount(b"none", name.encode(), None, libc.MS_BIND | libc.MS_REMOUNT | flags, None)
            except OSError as error:
                raise OSError(error.errno, error.strerror, target) from error

    def narrow(self, target: str, directories: Sequence[str]) -> None:
        """Let what is mounted at a place be read-only, save for directories in it: each is mounted on itself first."""
        for name in directories:
            with Closing(self._place(f"{target}/{name}", is_directory=True)) as place:
                self.mount(f"/proc/self/fd/{place}", f"{target}/{name}", "", libc.MS_BIND)
        self.restrict(target, libc.MS_RDONLY | libc.MS_NOSUID | libc.MS_NODEV)

    def lend(self, folder: str) -> None:
        """Have a directory where everybody can reach it, until bubblewrap has begun."""
        os.mkdir(LENT, 0o755)
        libc.mount(os.fsencode(folder), LENT.encode(), None, libc.MS_BIND, None)

    def opened(self, target: str) -> int:
        """Open a directory as the command will see it."""
        with Closing(self._place(target, is_directory=True)) as place:
            return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def watched_layers(self) -> list[int]:
        """Return a descriptor by which is told when nobody has anything in the layers open any more.

        There is none where this user has no more of its kind.
        """
        with libc.Descriptors(self._place(target, is_directory=True) for target in self.layers.values()) as places:
            try:
                return [libc.unmount_watch(b"/proc/self/fd/%d" % place for place in places)]
            except OSError:
                return []

    def cover(self, source: str, hidden: Sequence[str], points: Sequence[str]) -> str:
        """Make what is laid over a view: whiteouts for names that are hidden, directories to mount something on."""
        self._covers += 1
        top = f"{_COVERS}/{self._covers}"
        os.mkdir(top, 0o755)
        _like(source, top)
        for name in hidden:
            self._cover_way(source, top, os.path.dirname(name))
            os.mknod(f"{top}/{name}", stat.S_IFCHR | 0o600, 0)  # a whiteout, which needs no privilege
        for name in points:
            self._cover_way(source, top, name)
        return top

    def _cover_way(self, source: str, top: str, below: str) -> None:
        """Have every directory on the way in a cover, looking like the host's own."""
        parts = below.split("/") if below else []
        for length in range(1, len(parts) + 1):
            path = "/".join(parts[:length])
            try:
                os.mkdir(f"{top}/{path}", 0o755)
            except FileExistsError:
                continue
            _like(f"{source}/{path}", f"{top}/{path}")

    def _place(self, target: str, *, is_directory: bool) -> int:
        """Open a place below the root, making it where it is missing and the directory around it is our own."""
        if target == "/":
            return os.open(ROOT, _PLACE | os.O_DIRECTORY)
        folder, name = self._around(target, is_made=False)
        try:
            return _opened(folder, name, is_directory=is_directory)
        except FileNotFoundError:
            folder, name = self._around(target)
        if is_directory:
            os.mkdir(name, 0o755, dir_fd=folder)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=folder))
        self._belongs(folder, name)
        return _opened(folder, name, is_directory=is_directory)

    def _around(self, target: str, *, is_made: bool = True) -> tuple[int, str]:
        """Open the directory around a place, and keep it open; return it and the place's name.

        Where something is to be made in it, it must be one of our own.
        """
        above, _, name = target.rpartition("/")
        if above not in self._folders:
            folder = self._place(above or "/", is_directory=True)
            self._folders[above] = folder, os.fstat(folder).st_dev in self._own
        folder, is_own = self._folders[above]
        if is_made and not is_own:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), target)
        return folder, name

    def _belongs(self, folder: int, name: str) -> None:
        """Give what was made to whom the directory around it belongs."""
        if self.owner is not None:
            around = os.fstat(folder)
            os.chown(name, around.st_uid, around.st_gid, dir_fd=folder, follow_symlinks=False)


def close() -> None:
    """Take away what was put together, or begun to be, in this namespace of ours."""
    try:
        libc.umount(STAND.encode(), libc.MNT_DETACH)
    except OSError as error:
        if error.errno != errno.EINVAL:  # nothing of ours is there
            raise


def _opened(folder: int, name: str, *, is_directory: bool) -> int:
    """Open an entry of a directory, never through a link."""
    place = os.open(name, _PLACE | (os.O_DIRECTORY if is_directory else 0), dir_fd=folder)
    if not is_directory and stat.S_ISLNK(os.fstat(place).st_mode):
        os.close(place)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return place


def _like(original: str, copy: str) -> None:
    """Give a directory of ours the mode of the host's, and for root its owner."""
    try:
        there = os.lstat(original)
    except OSError:
        return
    if os.geteuid() == 0:
        try:
            os.chown(copy, there.st_uid, there.st_gid)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # In a user namespace that has no name for its owner, whom it would not show either.
    os.chmod(copy, stat.S_IMODE(there.st_mode) | stat.S_IRWXU)
