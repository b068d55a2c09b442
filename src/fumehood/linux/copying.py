"""Copy files and trees with all their metadata; blocks are shared if the file system can do that."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import time

from fumehood.core import changes as c
from fumehood.errors import FumehoodError
from fumehood.linux.layer import LayerStack, is_opaque, set_opaque
from fumehood.linux.libc import RENAME_EXCHANGE, Closable, Closing, count_unmounted, listxattr, renameat2
from fumehood.linux.nofollow import (
    LISTING,
    PATH_ONLY,
    AccessibleTree,
    DirectoryCache,
    accessible_entry,
    join,
    make_parents,
    open_below,
    open_top,
    remove_tree,
    set_mode,
    split,
    stamp_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Makes one entry. The arguments: the directory that has the original, the directory to make it in, its name, its
    # path, and its status, or None if a layer hides it. For a directory, False says that it stays empty.
    Make = Callable[[int, int, str, str, os.stat_result | None], bool | None]

_FICLONE = 0x40049409
_MOST_COPIED_AT_ONCE, _MOST_READ_AT_ONCE = 1 << 24, 1 << 20
_PATIENCE_S = 2.0
_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A file can't have another name there: because of its owner or the file system, or because that is another one.
_LINK_REFUSED = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def copy_file(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Copy one regular file: content with its holes, mode, owner, attributes and times."""
    try:
        reading = os.open(source, _SOURCE, dir_fd=source_dir)
    except PermissionError:
        # We make it readable for a moment. Its attributes can be read only then, too.
        status = os.stat(source, dir_fd=source_dir, follow_symlinks=False)
        with accessible_entry(source_dir, source), Closing(os.open(source, _SOURCE, dir_fd=source_dir)) as reading:
            _copy_open(reading, status, target_dir, target)
    else:
        with Closing(reading):
            _copy_open(reading, os.fstat(reading), target_dir, target)


def _copy_open(reading: int, status: os.stat_result, target_dir: int, target: str) -> None:
    with Closing(os.open(target, _TARGET, 0o600, dir_fd=target_dir)) as writing:
        try:
            fcntl.ioctl(writing, _FICLONE, reading)  # some file systems can share the blocks
        except OSError:
            _copy_content(reading, writing, status.st_size)
        copy_metadata(reading, writing, status)


def _copy_content(reading: int, writing: int, size: int) -> None:
    position = 0
    while position < size:
        try:
            position = os.lseek(reading, position, os.SEEK_DATA)
            end = os.lseek(reading, position, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        while position < end:
            left = end - position
            try:
                copied = os.copy_file_range(reading, writing, min(left, _MOST_COPIED_AT_ONCE), position, position)
            except OSError:
                copied = 0  # there are many reasons; if the disk has a fault, reading or writing meets it below
            # Some file systems report no error, and copy nothing.
            if not copied:
                content = os.pread(reading, min(left, _MOST_READ_AT_ONCE), position)
                copied = os.pwrite(writing, content, position)
            if not copied:
                position = end  # the file has become shorter meanwhile
            position += copied
    os.ftruncate(writing, size)


def copy_metadata(reading: int, writing: int, status: os.stat_result) -> None:
    """Give a copy the owner, attributes, mode and times of its source."""
    _copy_owner_and_attributes(reading, writing, status)
    os.fchmod(writing, stat.S_IMODE(status.st_mode))
    os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_owner_and_attributes(reading: int, writing: int, status: os.stat_result) -> None:
    give_owner(writing, status)
    for attribute in listxattr(reading):
        if attribute.startswith(c.OVERLAY_PREFIXES):
            continue
        try:
            os.setxattr(writing, attribute, os.getxattr(reading, attribute))
        except OSError as error:
            # Only the system may set labels and capabilities, and not every file system has ACLs.
            if error.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP) or attribute.startswith("user."):
                raise


def give_owner(entry: int | str, status: os.stat_result, directory: int | None = None) -> None:
    """Give an entry, by descriptor or by name, the owner and group of another; follows no symlink.

    Only root can give both. Other users can give a group that they are in; otherwise the entry keeps theirs.
    """
    is_root, by_name = os.geteuid() == 0, isinstance(entry, str)
    made = os.stat(entry, dir_fd=directory, follow_symlinks=not by_name)
    if (made.st_uid, made.st_gid) == (status.st_uid, status.st_gid):
        return
    try:
        os.chown(entry, status.st_uid if is_root else -1, status.st_gid, dir_fd=directory, follow_symlinks=not by_name)
    except OSError as error:
        # EINVAL: in a user namespace, a group without a mapping is not a valid number.
        if is_root or error.errno not in (errno.EPERM, errno.EINVAL):
            raise


class LinkedCopies(Closable):
    """The first copies of files with several names, below a top directory: later copies become links to them."""

    def __init__(self, top: int) -> None:
        self._parents = DirectoryCache(top)
        self._paths: dict[int, str] = {}  # of the first copies, by the originals' inodes

    def close(self) -> None:
        """Close the directory of the last one."""
        self._parents.close()

    def link(self, inode: int, directory: int, name: str) -> bool:
        """Make a link to the first copy; return False if there is none yet."""
        if inode not in self._paths:
            return False
        parent, first_name = split(self._paths[inode])
        os.link(first_name, name, src_dir_fd=self._parents.get(parent), dst_dir_fd=directory, follow_symlinks=False)
        return True

    def add(self, inode: int, path: str) -> None:
        """Add a first copy."""
        self._paths[inode] = path


def copy_entry(
    source_dir: int, source: str, target_dir: int, target: str, links: LinkedCopies | None = None, path: str = ""
) -> None:
    """Copy a file, a symlink, a special file or a whole tree; follows no symlink.

    With `links`, entries that share an inode share one again, also across calls; `path` is the target's path below
    their top.
    """
    status = os.stat(source, dir_fd=source_dir, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        copy_tree(source_dir, source, target_dir, target, links, path)
        return
    shared = links if status.st_nlink > 1 else None
    if shared is not None and shared.link(status.st_ino, target_dir, target):
        return
    if stat.S_ISREG(status.st_mode):
        copy_file(source_dir, source, target_dir, target)
    else:
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(source, dir_fd=source_dir), target, dir_fd=target_dir)
        else:
            os.mknod(target, status.st_mode, status.st_rdev, dir_fd=target_dir)
        give_owner(target, status, target_dir)
        if not stat.S_ISLNK(status.st_mode):
            # The umask has changed it. The directory is ours, so nobody can have put a symlink there.
            os.chmod(target, stat.S_IMODE(status.st_mode), dir_fd=target_dir)
        try:
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target_dir, follow_symlinks=False)
        except FileNotFoundError:
            if not stat.S_ISLNK(status.st_mode):
                raise
            # sshfs follows the link, whose target may be missing, and can't set the time of the link itself.
    if shared is not None:
        shared.add(status.st_ino, path)


def copy_tree(
    source_dir: int, source: str, target_dir: int, target: str, links: LinkedCopies | None = None, path: str = "", *,
    is_layer: bool = False,
) -> None:  # fmt: skip
    """Copy a directory with everything in it; `links` and `path` as for `copy_entry`."""
    os.mkdir(target, 0o700, dir_fd=target_dir)
    with (
        Closing(open_below(source_dir, source)) as source_top,
        Closing(open_below(target_dir, target)) as target_top,
        LinkedCopies(target_top) as own_links,
        LayerStack([source_top]) as tree,
    ):

        def make(reading: int, writing: int, name: str, inner_path: str, status: os.stat_result | None) -> None:
            if status is None or not stat.S_ISDIR(status.st_mode):
                copy_path = join(path, inner_path) if links else inner_path
                copy_entry(reading, name, writing, name, links or own_links, copy_path)

        fill_directory(target_top, tree, make, is_layer=is_layer)


def replace_unless_unmounted(layers: Sequence[str], unmount_watch: int, mounted_count: int) -> None:
    """Replace layers by copies, unless their overlays are unmounted within a short time.

    An overlay stays mounted as long as another command has a file of it open. That may be one that looks for something
    there, and is done soon. `unmount_watch` reports each unmounted overlay, if the system can do that (else it is -1);
    `mounted_count` overlays are still mounted.
    """
    written_layers = [layer for layer in layers if not _is_empty(layer)]
    if written_layers and unmount_watch >= 0:
        deadline = time.monotonic() + _PATIENCE_S
        poll = select.poll()
        poll.register(unmount_watch, select.POLLIN)
        while mounted_count > 0 and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            mounted_count -= count_unmounted(unmount_watch)
        if mounted_count <= 0:
            return
    replace_by_copies(written_layers)


def replace_by_copies(layers: Sequence[str]) -> None:
    """Replace layers by copies, because another command may still have files of them open.

    What that command writes there would change files after they were judged. It would even change the project, because
    an apply moves the layer's own files there.
    """
    for layer in layers:
        above, name = os.path.split(layer)
        copy = f"{name}.new"
        try:
            with Closing(open_top(above)) as top:
                remove_tree(top, copy)  # an earlier attempt may have been interrupted
                copy_tree(top, name, top, copy, is_layer=True)
                renameat2(top, name.encode(), top, copy.encode(), RENAME_EXCHANGE)
                try:
                    remove_tree(top, copy)
                except OSError:
                    continue  # the other command is writing there; it is removed with the run's directory
        except OSError as error:
            raise FumehoodError(
                f"cannot copy what the command wrote, while another command has files of it open: {error.strerror}",
                hint="nothing was taken over; end the other command, and run this one again",
            ) from error


def _is_empty(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except PermissionError:
        return False  # the command has closed it to us


def copy_with_content(source: int, name: str, target: int, copy: str, content: bytes) -> None:
    """Copy a file with its owner, attributes and mode, but with another content, into a directory of ours."""
    copy_entry(source, name, target, copy)
    mode = stat.S_IMODE(os.stat(copy, dir_fd=target, follow_symlinks=False).st_mode)
    os.chmod(copy, 0o600, dir_fd=target)  # nobody can have put a link there
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(copy, flags, dir_fd=target), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)


def copy_all(source: int, target: int, is_never_written: Callable[[str, os.stat_result], bool]) -> None:
    """Copy everything in a directory into an empty one; entries that are never written are linked instead.

    Entries that others remove meanwhile are left out.
    """
    with LinkedCopies(target) as links, LayerStack([source]) as tree:

        def make(reading: int, writing: int, name: str, path: str, status: os.stat_result | None) -> None:
            if status is None or stat.S_ISDIR(status.st_mode):
                return
            try:
                if not is_never_written(path, status) or not try_link(reading, name, writing, name):
                    copy_entry(reading, name, writing, name, links, path)
            except FileNotFoundError:
                return

        fill_directory(target, tree, make, may_vanish=True)


def try_link(source_dir: int, source: str, target_dir: int, target: str) -> bool:
    """Give an entry another name, maybe in another directory; return False if that is impossible there."""
    try:
        os.link(source, target, src_dir_fd=source_dir, dst_dir_fd=target_dir, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _LINK_REFUSED:
            raise
        return False
    return True


def fill_directory(
    target: int, stack: LayerStack, make: Make, *, may_vanish: bool = False, is_layer: bool = False
) -> None:
    """Fill an empty directory with what a stack shows.

    This function makes the directories, and gives them their metadata once they are full; `make` makes everything else.
    With `may_vanish`, directories that others remove meanwhile are left out. With `is_layer`, opaque directories are
    opaque in the copy, too.
    """
    filled, waiting = [], [""]
    with DirectoryCache(target) as parents:
        while waiting:
            path = waiting.pop()
            try:
                directory = stack.open_merged(path)
            except FileNotFoundError:
                if may_vanish and path:
                    continue
                raise
            with directory:
                for name in sorted(directory.names()):
                    status, reading = directory.look(name)
                    is_directory = status is not None and stat.S_ISDIR(status.st_mode)
                    if is_directory:
                        os.mkdir(name, 0o700, dir_fd=parents.get(path))
                    if make(reading, parents.get(path), name, join(path, name), status) is not False and is_directory:
                        waiting.append(join(path, name))
            filled.append(path)
        for path in reversed(filled):
            source, mode = stack.open_topmost(path)
            with Closing(source) as reading, Closing(parents.open(path, LISTING)) as writing:
                if is_layer and is_opaque(reading):
                    set_opaque(writing)
                copy_metadata(reading, writing, os.fstat(reading))
                set_mode(writing, mode)


def copy_directory_metadata(source_dir: int, target_dir: int, name: str) -> None:
    """Give a directory the owner and the attributes of another one of the same name."""
    with (
        AccessibleTree(source_dir) as source,
        Closing(source.open_to_read(name)) as reading,
        Closing(open_below(target_dir, name, LISTING)) as writing,
    ):
        _copy_owner_and_attributes(reading, writing, os.fstat(reading))


def copy_versions(changes: Sequence[c.Change], source: int, target: int) -> None:
    """Copy the new versions of changes from a layer into an empty one; the changes then name the copies.

    Raises OSError if a file is no longer the version that was judged: another command may have it open.
    """
    from fumehood.linux.checkpoints import version_id

    copied = [change for change in changes if change.after is not None and not c.is_directory_mode(change)]
    directories = [change for change in copied if change.kind == c.DIRECTORY]
    with AccessibleTree(source) as layer, DirectoryCache(target) as parents, LinkedCopies(target) as links:
        for change in copied:
            parent, name = split(change.path)
            make_parents(parents, parent)
            if change.kind == c.DIRECTORY:
                os.mkdir(name, 0o700, dir_fd=parents.get(parent))
                continue
            with Closing(layer.open_to_read(parent, PATH_ONLY)) as directory:
                copy_entry(directory, name, parents.get(parent), name, links, change.path)
                original = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if change.after is not None and version_id(stamp_of(original)) != version_id(change.after):
                    raise OSError(errno.EBUSY, "it was written meanwhile", change.path)
        for change in copied:  # only now, because a later copy may have become a link to an earlier one
            parent, name = split(change.path)
            status = os.stat(name, dir_fd=parents.get(parent), follow_symlinks=False)
            mode, meaning = (0, "") if change.after is None else (change.after.mode, change.after.meaning)
            change.after = stamp_of(status, meaning)
            change.after.mode = mode
        for change in reversed(directories):
            with (
                Closing(layer.open_to_read(change.path)) as reading,
                Closing(parents.open(change.path, LISTING)) as writing,
            ):
                copy_metadata(reading, writing, os.fstat(reading))
                set_mode(writing, 0 if change.after is None else change.after.mode)
