"""Copy entries between directories with everything that belongs to them, sharing blocks where possible."""

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

    # Makes one entry: gets the directory that has it and the one to make it in, its name, its path, and what it is.
    Make = Callable[[int, int, str, str, os.stat_result | None], bool | None]

_FICLONE = 0x40049409
_PIECE = 1 << 24
_PATIENCE_S = 2.0
_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# That a file can't have another name there: by its owner, by the file system, or because that is another one.
LINK_REFUSED = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def copy_file(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Copy one regular file: content with its holes, mode, owner, attributes and times."""
    try:
        reading = os.open(source, _SOURCE, dir_fd=source_dir)
    except PermissionError:
        # Its owner makes it readable for a moment; its attributes, too, can only be read for as long.
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
            try:
                copied = os.copy_file_range(reading, writing, min(end - position, _PIECE), position, position)
            except OSError:
                copied = 0  # for one of many reasons; what is wrong with the disk is met below again
            # Some file systems do not say that they can't, and copy nothing.
            copied = copied or os.pwrite(writing, os.pread(reading, min(end - position, 1 << 20), position), position)
            if not copied:
                position = end  # it has become shorter meanwhile
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
            # Labels and capabilities are the system's to give, and not every file system has ACLs.
            if error.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP) or attribute.startswith("user."):
                raise


def give_owner(entry: int | str, status: os.stat_result, directory: int | None = None) -> None:
    """Give an entry, by descriptor or by name, the owner and group of another; follows nothing.

    Only root can give both. Others can give a group that they are in, and else leave their own.
    """
    is_root, by_name = os.geteuid() == 0, isinstance(entry, str)
    made = os.stat(entry, dir_fd=directory, follow_symlinks=not by_name)
    if (made.st_uid, made.st_gid) == (status.st_uid, status.st_gid):
        return
    try:
        os.chown(entry, status.st_uid if is_root else -1, status.st_gid, dir_fd=directory, follow_symlinks=not by_name)
    except OSError as error:
        # In a user namespace, a group without a mapping is no number at all.
        if is_root or error.errno not in (errno.EPERM, errno.EINVAL):
            raise


class LinkedCopies(Closable):
    """Where the first copy of each file with several names lies below a top: the next ones become links to it."""

    def __init__(self, top: int) -> None:
        self._parents = DirectoryCache(top)
        self._first: dict[int, str] = {}

    def close(self) -> None:
        """Let go of the directory of the last one."""
        self._parents.close()

    def link(self, inode: int, directory: int, name: str) -> bool:
        """Link to the first copy, if there is one."""
        if inode not in self._first:
            return False
        parent, first = split(self._first[inode])
        os.link(first, name, src_dir_fd=self._parents.get(parent), dst_dir_fd=directory, follow_symlinks=False)
        return True

    def note(self, inode: int, path: str) -> None:
        """Take note of a first copy."""
        self._first[inode] = path


def copy_entry(
    source_dir: int, source: str, target_dir: int, target: str, links: LinkedCopies | None = None, at: str = ""
) -> None:
    """Copy a file, a symlink, a special file or a whole tree; follows nothing.

    With `links`, what shares an inode shares one again, across calls; `at` is the target's path below their top.
    """
    status = os.stat(source, dir_fd=source_dir, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        copy_tree(source_dir, source, target_dir, target, links, at)
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
            # The umask has cut it. In a directory of ours: nobody can have put a symlink there.
            os.chmod(target, stat.S_IMODE(status.st_mode), dir_fd=target_dir)
        try:
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target_dir, follow_symlinks=False)
        except FileNotFoundError:
            if not stat.S_ISLNK(status.st_mode):
                raise
            # sshfs follows the link, which may lead to nothing; its own time can't be set there.
    if shared is not None:
        shared.note(status.st_ino, at)


def copy_tree(
    source_dir: int, source: str, target_dir: int, target: str, links: LinkedCopies | None = None, at: str = "", *,
    is_layer: bool = False,
) -> None:  # fmt: skip
    """Copy a directory and all below it."""
    os.mkdir(target, 0o700, dir_fd=target_dir)
    with (
        Closing(open_below(source_dir, source)) as source_top,
        Closing(open_below(target_dir, target)) as target_top,
        LinkedCopies(target_top) as own_links,
        LayerStack([source_top]) as tree,
    ):

        def make(reading: int, writing: int, name: str, path: str, status: os.stat_result | None) -> None:
            if status is None or not stat.S_ISDIR(status.st_mode):
                copy_entry(reading, name, writing, name, links or own_links, join(at, path) if links else path)

        fill_directory(target_top, tree, make, is_layer=is_layer)


def replace_unless_unmounted(layers: Sequence[str], unmounting: int, count: int) -> None:
    """Put copies in the place of layers whose overlays live on, because another command has something of them open.

    By `unmounting` is told that overlays are gone, if at all: so many are awaited, but only for a little while. Who
    looked for something there may just be done.
    """
    written = [layer for layer in layers if not _is_empty(layer)]
    if written and unmounting >= 0:
        until = time.monotonic() + _PATIENCE_S
        poll = select.poll()
        poll.register(unmounting, select.POLLIN)
        while count > 0 and poll.poll(max(0.0, until - time.monotonic()) * 1000):
            count -= count_unmounted(unmounting)
        if count <= 0:
            return
    replace_by_copies(written)


def replace_by_copies(layers: Sequence[str]) -> None:
    """Put copies in the place of layers.

    What another command wrote there would change files after they were judged, and in the project itself: what is
    applied is the layer's own file.
    """
    for layer in layers:
        above, name = os.path.split(layer)
        copy = f"{name}.new"
        try:
            with Closing(open_top(above)) as top:
                remove_tree(top, copy)  # an earlier try may have come to no end
                copy_tree(top, name, top, copy, is_layer=True)
                renameat2(top, name.encode(), top, copy.encode(), RENAME_EXCHANGE)
                try:
                    remove_tree(top, copy)
                except OSError:
                    continue  # the other command writes there just now; it goes with the run's directory
        except OSError as error:
            raise FumehoodError(
                f"cannot copy what the command wrote, of which another one has something open: {error.strerror}",
                hint="nothing was taken over; end the other command, and run this one again",
            ) from error


def _is_empty(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except PermissionError:
        return False  # the command has closed it


def copy_with_content(source: int, name: str, target: int, copy: str, content: bytes) -> None:
    """Copy a file with its owner, attributes and mode, and another content, into a directory of ours."""
    copy_entry(source, name, target, copy)
    mode = stat.S_IMODE(os.stat(copy, dir_fd=target, follow_symlinks=False).st_mode)
    os.chmod(copy, 0o600, dir_fd=target)  # nobody can have put a link there
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(copy, flags, dir_fd=target), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)


def copy_all(source: int, target: int, is_never_written: Callable[[str, os.stat_result], bool]) -> None:
    """Copy all that lies in a directory into an empty one; of what is never written there, links are made.

    What others remove meanwhile is left out.
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
    """Give an entry another name, maybe in another directory; False where it can't have one there."""
    try:
        os.link(source, target, src_dir_fd=source_dir, dst_dir_fd=target_dir, follow_symlinks=False)
    except OSError as error:
        if error.errno not in LINK_REFUSED:
            raise
        return False
    return True


def fill_directory(
    target: int, stack: LayerStack, make: Make, *, may_vanish: bool = False, is_layer: bool = False
) -> None:
    """Fill an empty directory with what a stack shows; directories get what belongs to them when they are full.

    Directories are made here; `make` makes all else, given None where a layer hides an entry, and returns False of a
    directory that is not to be filled. In a copy that is a layer, directories hide what lies below them as they did.
    """
    full, waiting = [], [""]
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
            full.append(path)
        for path in reversed(full):
            source, mode = stack.open_topmost(path)
            with Closing(source) as reading, Closing(parents.open(path, LISTING)) as writing:
                if is_layer and is_opaque(reading):
                    set_opaque(writing)
                copy_metadata(reading, writing, os.fstat(reading))
                set_mode(writing, mode)


def copy_directory_metadata(source_dir: int, target_dir: int, name: str) -> None:
    """Give a directory the owner and the attributes of another one of the same name."""
    with (
        AccessibleTree(source_dir) as loosened,
        Closing(loosened.open_to_read(name)) as reading,
        Closing(open_below(target_dir, name, LISTING)) as writing,
    ):
        _copy_owner_and_attributes(reading, writing, os.fstat(reading))


def copy_versions(changes: Sequence[c.Change], source: int, target: int) -> None:
    """Copy the new versions that changes name from a layer into an empty one; the changes then name the copies.

    What is no longer the version that was judged ends it: another command may have been handed the file.
    """
    from fumehood.linux.checkpoints import identity_of

    copied = [change for change in changes if change.after is not None and not c.is_directory_mode(change)]
    directories = [change for change in copied if change.kind == c.DIRECTORY]
    with AccessibleTree(source) as layer, DirectoryCache(target) as parents, LinkedCopies(target) as links:
        for change in copied:
            parent, name = split(change.path)
            make_parents(parents, parent)
            if change.kind == c.DIRECTORY:
                os.mkdir(name, 0o700, dir_fd=parents.get(parent))
                continue
            with Closing(layer.open_to_read(parent, PATH_ONLY)) as here:
                copy_entry(here, name, parents.get(parent), name, links, change.path)
                left = os.stat(name, dir_fd=here, follow_symlinks=False)
                if change.after is not None and identity_of(stamp_of(left)) != identity_of(change.after):
                    raise OSError(errno.EBUSY, "it was written meanwhile", change.path)
        for change in copied:  # only now: a later one may have become a link to it
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
