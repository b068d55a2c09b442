"""The site: a tmpfs in a launch's own mount namespace, where the tree that the command sees is put together.

No other process sees it, so nobody can remove it. Symbolic links are never followed on the way to a mount point: what a
command left in a layer must not decide where something is mounted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from fumehood.linux import libc
from fumehood.linux.libc import Closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SITE = "/sys"  # exists on every host, and bubblewrap doesn't need it
ROOT = f"{SITE}/root"  # what bubblewrap shows as `/`
EMPTY_FILE = f"{SITE}/nothing"
BWRAP_DIRECTORY = f"{SITE}/lent"  # where another user can start a bubblewrap that lies in root's home
_COVERS = f"{SITE}/cover"
_VIEWS = f"{SITE}/views"
_EMPTY_DIRECTORY = f"{SITE}/empty"
READ_ONLY = libc.MS_RDONLY | libc.MS_NOSUID | libc.MS_NODEV
_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# Flags as statvfs returns them and as mount takes them: in a user namespace, a remount must keep all that are set.
_LOCKED_FLAGS = (
    (2, libc.MS_NOSUID), (4, libc.MS_NODEV), (8, libc.MS_NOEXEC), (1024, libc.MS_NOATIME), (2048, libc.MS_NODIRATIME),
    (4096, libc.MS_RELATIME),
)  # fmt: skip


class Site:
    """The tree of one launch while it is put together.

    `owner` is the user and group that the command runs as, if root runs it as somebody else.
    """

    empty_directory = _EMPTY_DIRECTORY

    def __init__(self, owner: tuple[int, int] | None = None) -> None:
        self.owner = owner
        self._own_devices: set[int] = set()  # device numbers of our own file systems: we make entries only there
        self._parents: dict[str, tuple[int, bool]] = {}  # directories opened so far, and whether each is our own
        self._covers = 0
        self._views: dict[str, str] = {}  # where a view of a directory is mounted; "" if it can't have one
        self.layers: dict[str, str] = {}  # upper directories to be judged, with the mount points of their overlays
        libc.mount(b"tmpfs", SITE.encode(), b"tmpfs", libc.MS_NOSUID | libc.MS_NODEV, b"mode=755,size=64m")
        self._own_devices.add(os.stat(SITE).st_dev)
        for directory in (ROOT, _EMPTY_DIRECTORY, _COVERS, _VIEWS):
            os.mkdir(directory, 0o755)
        os.close(os.open(EMPTY_FILE, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))

    def descriptor_path(self, path: str) -> str:
        """Open a directory of the host and return `/proc/self/fd/N`, which is safe whatever bytes its path has.

        The descriptor stays open until this process becomes another program.
        """
        return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)}"

    def make_directory(self, target: str, mode: int = 0o755) -> None:
        """Make a directory, unless it exists."""
        with Closing(self._open_place(target, is_directory=True)) as place:
            if mode != 0o755 and os.fstat(place).st_dev in self._own_devices:
                os.chmod(f"/proc/self/fd/{place}", mode)

    def make_link(self, target: str, to: str) -> None:
        """Make a symbolic link, unless something exists there."""
        parent, name = self._open_parent(target)
        try:
            os.symlink(to, name, dir_fd=parent)
        except FileExistsError:
            return
        self._give_to_owner_of(parent, name)

    def make_file(self, target: str, content: bytes, mode: int) -> None:
        """Make a small file."""
        parent, name = self._open_parent(target)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with Closing(os.open(name, flags, 0o600, dir_fd=parent)) as file:
            os.write(file, content)
            os.fchmod(file, mode)
        self._give_to_owner_of(parent, name)

    def make_device(self, original: str, target: str) -> bool:
        """Make a device node like an existing one; return False if this process may not."""
        status = os.stat(original)
        parent, name = self._open_parent(target)
        try:
            os.mknod(name, stat.S_IFCHR | 0o600, status.st_rdev, dir_fd=parent)
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=parent)
        except PermissionError:
            return False
        return True

    def mount_tmpfs(self, target: str, mode: int, *, for_owner: bool = False, has_devices: bool = False) -> None:
        """Mount a file system in memory, in which mount points can be made."""
        options = f"mode={mode:o}"
        if for_owner and self.owner is not None:
            options += f",uid={self.owner[0]},gid={self.owner[1]}"
        flags = libc.MS_NOSUID | (0 if has_devices else libc.MS_NODEV)
        self.mount("tmpfs", target, "tmpfs", flags, options)
        with Closing(self._open_place(target, is_directory=True)) as place:
            self._own_devices.add(os.fstat(place).st_dev)

    def mount(
        self, source: str, target: str, kind: str, flags: int, options: str = "", *, is_directory: bool = True
    ) -> None:
        """Mount a file system, or bind an existing one, at a mount point that is made if it is missing."""
        with Closing(self._open_place(target, is_directory=is_directory)) as place:
            mount_point = f"/proc/self/fd/{place}".encode()
            try:
                libc.mount(source.encode(), mount_point, kind.encode(), flags, os.fsencode(options))
            except OSError as error:
                raise OSError(error.errno, error.strerror, target) from error
        # The new mount covers these: their descriptors still lead to the directories below it.
        prefix = f"{target.rstrip('/')}/"
        for path in [path for path in self._parents if f"{path}/".startswith(prefix)]:
            os.close(self._parents.pop(path)[0])

    def bind(self, source: str, target: str, flags: int) -> None:
        """Bind a file or directory of the host at a place, restricted by mount flags."""
        with Closing(os.open(source, os.O_PATH | os.O_CLOEXEC)) as original:
            is_directory = stat.S_ISDIR(os.fstat(original).st_mode)
            self.mount(f"/proc/self/fd/{original}", target, "", libc.MS_BIND, is_directory=is_directory)
        self.restrict(target, flags)

    def in_view(self, path: str) -> str:
        """Return where a file of the host lies in a view of its directory; the path itself if it lies in none.

        A directory lies in none, nor does a file that is a mount of its own or on a file system without overlays.
        """
        with Closing(os.open(path, os.O_PATH | os.O_CLOEXEC)) as original:
            status = os.fstat(original)
            directory, _, name = os.readlink(f"/proc/self/fd/{original}").rpartition("/")
        if stat.S_ISDIR(status.st_mode):
            return path
        if directory not in self._views:
            self._views[directory] = self._mount_view(directory or "/")
        seen = f"{self._views[directory]}/{name}"
        # The view has what lies under a mount, which is another file.
        return seen if self._views[directory] and os.lstat(seen).st_ino == status.st_ino else path

    def _mount_view(self, directory: str) -> str:
        """Mount a view of a directory where only this process sees it; return "" if overlays can't show it."""
        view = f"{_VIEWS}/{len(self._views)}"
        os.mkdir(view)
        options = f"lowerdir={self.descriptor_path(directory)}:{_EMPTY_DIRECTORY},userxattr,xino=off"
        try:
            libc.mount(b"overlay", view.encode(), b"overlay", READ_ONLY, options.encode())
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return ""
        return view

    def restrict(self, target: str, flags: int) -> None:
        """Add mount flags to what is mounted at a place."""
        with Closing(self._open_place(target, is_directory=False)) as place:
            name = f"/proc/self/fd/{place}"
            try:
                present = os.statvfs(name).f_flag
                for bit, flag in _LOCKED_FLAGS:
                    flags |= flag if present & bit else 0
                libc.mount(b"none", name.encode(), None, libc.MS_BIND | libc.MS_REMOUNT | flags, None)
            except OSError as error:
                raise OSError(error.errno, error.strerror, target) from error

    def make_read_only(self, target: str, writable_directories: Sequence[str]) -> None:
        """Make a mount read-only except for some directories in it, each of which is first mounted on itself."""
        for name in writable_directories:
            with Closing(self._open_place(f"{target}/{name}", is_directory=True)) as place:
                self.mount(f"/proc/self/fd/{place}", f"{target}/{name}", "", libc.MS_BIND)
        self.restrict(target, libc.MS_RDONLY | libc.MS_NOSUID | libc.MS_NODEV)

    def bind_bwrap_directory(self, directory: str) -> None:
        """Bind the directory of bubblewrap where every user can reach it, until bubblewrap has started."""
        os.mkdir(BWRAP_DIRECTORY, 0o755)
        libc.mount(os.fsencode(directory), BWRAP_DIRECTORY.encode(), None, libc.MS_BIND, None)

    def open_directory(self, target: str) -> int:
        """Open a directory as the command will see it."""
        with Closing(self._open_place(target, is_directory=True)) as place:
            return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def reopen(self, fd: int, target: str) -> None:
        """Let a standard stream lead to a device as the command will see it, for reading or writing as before."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE | os.O_NOCTTY | os.O_CLOEXEC
        with (
            Closing(self._open_place(target, is_directory=False)) as place,
            Closing(os.open(f"/proc/self/fd/{place}", flags)) as device,
        ):
            os.dup2(device, fd)

    def watch_layers(self) -> list[int]:
        """Return a descriptor that becomes readable once no process uses the overlays of the layers any more.

        The list is empty if this user has reached the limit of inotify instances.
        """
        with libc.Descriptors(self._open_place(target, is_directory=True) for target in self.layers.values()) as places:
            try:
                return [libc.watch_unmounts(b"/proc/self/fd/%d" % place for place in places)]
            except OSError:
                return []

    def make_cover(self, source: str, hidden: Sequence[str], points: Sequence[str]) -> str:
        """Make the topmost directory of a view: whiteouts for hidden names, directories for mount points."""
        self._covers += 1
        cover = f"{_COVERS}/{self._covers}"
        os.mkdir(cover, 0o755)
        _copy_mode_and_owner(source, cover)
        for name in hidden:
            self._make_cover_directories(source, cover, os.path.dirname(name))
            os.mknod(f"{cover}/{name}", stat.S_IFCHR | 0o600, 0)  # a whiteout, which needs no privilege
        for name in points:
            self._make_cover_directories(source, cover, name)
        return cover

    def _make_cover_directories(self, source: str, cover: str, directory: str) -> None:
        """Make a directory of a cover and its parents, with the mode and owner of the host's."""
        parts = directory.split("/") if directory else []
        for length in range(1, len(parts) + 1):
            path = "/".join(parts[:length])
            try:
                os.mkdir(f"{cover}/{path}", 0o755)
            except FileExistsError:
                continue
            _copy_mode_and_owner(f"{source}/{path}", f"{cover}/{path}")

    def _open_place(self, target: str, *, is_directory: bool) -> int:
        """Open a place below the root; if it is missing and its parent is on a file system of ours, make it."""
        if target == "/":
            return os.open(ROOT, _PATH_FLAGS | os.O_DIRECTORY)
        parent, name = self._open_parent(target, for_new_entry=False)
        try:
            return _open_entry(parent, name, is_directory=is_directory)
        except FileNotFoundError:
            parent, name = self._open_parent(target)
        if is_directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=parent))
        self._give_to_owner_of(parent, name)
        return _open_entry(parent, name, is_directory=is_directory)

    def _open_parent(self, target: str, *, for_new_entry: bool = True) -> tuple[int, str]:
        """Return the parent directory of a place, which stays open, and the name of the place in it.

        New entries are made only on file systems of our own: raises an error for others.
        """
        path, _, name = target.rpartition("/")
        if path not in self._parents:
            parent = self._open_place(path or "/", is_directory=True)
            self._parents[path] = parent, os.fstat(parent).st_dev in self._own_devices
        parent, is_own = self._parents[path]
        if for_new_entry and not is_own:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), target)
        return parent, name

    def _give_to_owner_of(self, parent: int, name: str) -> None:
        """Give a new entry the owner of its parent directory."""
        if self.owner is not None:
            status = os.fstat(parent)
            os.chown(name, status.st_uid, status.st_gid, dir_fd=parent, follow_symlinks=False)


def unmount_site() -> None:
    """Unmount the site, finished or not, in this mount namespace."""
    try:
        libc.umount(SITE.encode(), libc.MNT_DETACH)
    except OSError as error:
        if error.errno != errno.EINVAL:  # it was not mounted yet
            raise


def _open_entry(directory: int, name: str, *, is_directory: bool) -> int:
    """Open an entry of a directory; raises an error if it is a symbolic link."""
    place = os.open(name, _PATH_FLAGS | (os.O_DIRECTORY if is_directory else 0), dir_fd=directory)
    if not is_directory and stat.S_ISLNK(os.fstat(place).st_mode):
        os.close(place)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return place


def _copy_mode_and_owner(original: str, copy: str) -> None:
    """Give a directory of ours the mode of the host's directory and, if we are root, its owner."""
    try:
        status = os.lstat(original)
    except OSError:
        return
    if os.geteuid() == 0:
        try:
            os.chown(copy, status.st_uid, status.st_gid)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # This user namespace has no number for that owner, and could not show it either.
    os.chmod(copy, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
