"""Copy entries between directories with everything that belongs to them, sharing blocks where possible."""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux.layer import BOOKKEEPING
from fumehood.linux.nofollow import LISTING, Loosened, Parents, open_below, opened_up, split

_FICLONE = 0x40049409
_PIECE = 1 << 24
_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CANT_COPY_RANGE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


def copy_file(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Copy one regular file: content with its holes, mode, owner, attributes and times."""
    try:
        reading = os.open(source, _SOURCE, dir_fd=source_dir)
    except PermissionError:
        _copy_unreadable(source_dir, source, target_dir, target)
        return
    try:
        _copy_open(reading, os.fstat(reading), target_dir, target)
    finally:
        os.close(reading)


def _copy_open(reading: int, found: os.stat_result, target_dir: int, target: str) -> None:
    writing = os.open(target, _TARGET, 0o600, dir_fd=target_dir)
    try:
        _copy_content(reading, writing, found.st_size)
        copy_belongings(reading, writing, found)
    finally:
        os.close(writing)


def _copy_unreadable(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Copy a file that its owner made readable for a moment; where we are not the owner, it can't be opened."""
    found = os.stat(source, dir_fd=source_dir, follow_symlinks=False)
    with opened_up(source_dir, source):
        reading = os.open(source, _SOURCE, dir_fd=source_dir)
        try:
            # Its attributes, too, can only be read for as long.
            _copy_open(reading, found, target_dir, target)
        finally:
            os.close(reading)


def _copy_content(reading: int, writing: int, size: int) -> None:
    if _shared(reading, writing):
        return
    position = 0
    while position < size:
        try:
            start = os.lseek(reading, position, os.SEEK_DATA)
            end = os.lseek(reading, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        _copy_range(reading, writing, start, end)
        position = end
    os.ftruncate(writing, size)


def _shared(reading: int, writing: int) -> bool:
    """Try to share the blocks of the source, which some file systems can."""
    import fcntl

    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError:
        return False
    return True


def _copy_range(reading: int, writing: int, start: int, end: int) -> None:
    while start < end:
        try:
            copied = os.copy_file_range(reading, writing, min(end - start, _PIECE), start, start)
        except OSError as error:
            if error.errno not in _CANT_COPY_RANGE:
                raise
            copied = os.pwrite(writing, os.pread(reading, min(end - start, 1 << 20), start), start)
        if not copied:
            return
        start += copied


def copy_belongings(reading: int, writing: int, found: os.stat_result) -> None:
    """Give a copy the owner, attributes, mode and times of its source."""
    _copy_owner_and_attributes(reading, writing, found)
    os.fchmod(writing, stat.S_IMODE(found.st_mode))
    os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_owner_and_attributes(reading: int, writing: int, found: os.stat_result) -> None:
    made = os.fstat(writing)
    if (found.st_uid, found.st_gid) != (made.st_uid, made.st_gid):
        give_owner(writing, found)
    for attribute in os.listxattr(reading):
        if not attribute.startswith(BOOKKEEPING):
            _copy_attribute(reading, writing, attribute)


def give_owner(entry: int | str, found: os.stat_result, directory: int | None = None) -> None:
    """Give an entry, by descriptor or by name, the owner and group of another; follows nothing.

    Only root can give both. Others can give a group that they are in, and else leave their own.
    """
    by_name = isinstance(entry, str)
    if os.geteuid() == 0:
        os.chown(entry, found.st_uid, found.st_gid, dir_fd=directory, follow_symlinks=not by_name)
        return
    try:
        os.chown(entry, -1, found.st_gid, dir_fd=directory, follow_symlinks=not by_name)
    except OSError as error:
        # In a user namespace, a group without a mapping is no number at all.
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise


def _copy_attribute(reading: int, writing: int, attribute: str) -> None:
    try:
        os.setxattr(writing, attribute, os.getxattr(reading, attribute))
    except OSError as error:
        # Labels and capabilities are the system's to give, and not every file system has ACLs.
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP) or attribute.startswith("user."):
            raise


class Links:
    """Where the first copy of each file with several names lies below a top: the next ones become links to it."""

    def __init__(self, top: int) -> None:
        self._parents = Parents(top)
        self._first: dict[int, str] = {}

    def link(self, inode: int, directory: int, name: str) -> bool:
        """Link to the first copy, if there is one."""
        if inode not in self._first:
            return False
        parent, first = split(self._first[inode])
        there = self._parents.of(parent)
        os.link(first, name, src_dir_fd=there, dst_dir_fd=directory, follow_symlinks=False)
        return True

    def note(self, inode: int, path: str) -> None:
        """Take note of a first copy."""
        self._first[inode] = path

    def close(self) -> None:
        """Let go of the directories."""
        self._parents.close()


def copy_entry(
    source_dir: int, source: str, target_dir: int, target: str, links: Links | None = None, at: str = ""
) -> None:
    """Copy a file, a symlink, a special file or a whole tree; follows nothing.

    With `links`, what shares an inode shares one again, across calls; `at` is the target's path below their top.
    """
    found = os.stat(source, dir_fd=source_dir, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        copy_tree(source_dir, source, target_dir, target, links, at)
    else:
        _copy_leaf(source_dir, source, target_dir, target, found, links, at)


def _copy_leaf(
    source_dir: int, source: str, target_dir: int, target: str, found: os.stat_result, links: Links | None, at: str
) -> None:
    if links is None or found.st_nlink == 1:
        _copy_alone(source_dir, source, target_dir, target, found)
    elif not links.link(found.st_ino, target_dir, target):
        _copy_alone(source_dir, source, target_dir, target, found)
        links.note(found.st_ino, at)


def _copy_alone(source_dir: int, source: str, target_dir: int, target: str, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        copy_file(source_dir, source, target_dir, target)
        return
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source, dir_fd=source_dir), target, dir_fd=target_dir)
        give_owner(target, found, target_dir)
    else:
        os.mknod(target, found.st_mode, found.st_rdev, dir_fd=target_dir)
        give_owner(target, found, target_dir)
        # The umask has cut it. In a directory of ours: nobody can have put a symlink there.
        os.chmod(target, stat.S_IMODE(found.st_mode), dir_fd=target_dir)
    os.utime(
        target, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=target_dir, follow_symlinks=False
    )  # fmt: skip


def copy_tree(
    source_dir: int, source: str, target_dir: int, target: str, links: Links | None = None, at: str = ""
) -> None:
    """Copy a directory and all below it, directories closed up again only when they are full."""
    os.mkdir(target, 0o700, dir_fd=target_dir)
    from_top, to_top = open_below(source_dir, source), open_below(target_dir, target)
    own_links = Links(to_top)
    copying = _Tree(from_top, to_top, own_links if links is None else links, at)
    waiting = [("", os.fstat(from_top), False)]
    try:
        while waiting:
            path, found, is_full = waiting.pop()
            if is_full:
                copying.finish(path, found)
                continue
            waiting.append((path, found, True))
            waiting += [(below, status, False) for below, status in copying.level(path)]
    finally:
        copying.close()
        own_links.close()
        os.close(from_top)
        os.close(to_top)


class _Tree:
    """One tree being copied, level by level."""

    def __init__(self, from_top: int, to_top: int, links: Links, at: str) -> None:
        self._source = Loosened(from_top)
        self._target = Parents(to_top)
        self._links = links
        self._at = at

    def level(self, path: str) -> list[tuple[str, os.stat_result]]:
        """Copy the entries of one directory; return the directories in it, made but still empty."""
        directories = []
        reading, writing = self._source.reach(path), self._target.of(path)
        try:
            for name in os.listdir(reading):
                below = f"{path}/{name}" if path else name
                found = os.stat(name, dir_fd=reading, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    os.mkdir(name, 0o700, dir_fd=writing)
                    directories.append((below, found))
                else:
                    at = f"{self._at}/{below}" if self._at else below
                    _copy_leaf(reading, name, writing, name, found, self._links, at)
        finally:
            os.close(reading)
        return directories

    def finish(self, path: str, found: os.stat_result) -> None:
        """Give a directory that is full what belongs to its source, as it was found."""
        reading, writing = self._source.reach(path), self._target.open(path, LISTING)
        try:
            copy_belongings(reading, writing, found)
        finally:
            os.close(reading)
            os.close(writing)

    def close(self) -> None:
        """Close up what was opened to be read, and let go of the directories."""
        self._source.restore()
        self._target.close()


def copy_directory(source_dir: int, target_dir: int, name: str) -> None:
    """Give a directory the owner and the attributes of another one of the same name."""
    loosened = Loosened(source_dir)
    reading, writing = loosened.reach(name), open_below(target_dir, name, LISTING)
    try:
        _copy_owner_and_attributes(reading, writing, os.fstat(reading))
    finally:
        loosened.restore()
        os.close(reading)
        os.close(writing)
