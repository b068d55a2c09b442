"""Work on files through descriptors of directories, so that no symlink and no renamed parent can mislead us."""

from __future__ import annotations

import errno
import os
import stat

from fumehood.core import changes as c
from fumehood.errors import TooDeep
from fumehood.linux import libc
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.lock import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BENEATH = libc.RESOLVE_BENEATH | libc.RESOLVE_NO_SYMLINKS | libc.RESOLVE_NO_MAGICLINKS
_LONGEST_RAW_PATH = 3000  # bytes passed to the kernel at once; its own limit is 4096
_STRIDE = 128  # levels between the directories that are kept open on the way to a deep one
# Twice the levels, and eight times the length, of what a program can reach by one path. There must be a limit, because
# each entry is recorded with its whole path: the size of the records grows with the square of the depth.
DEEPEST, LONGEST = 4096, 32768
PATH_ONLY = os.O_PATH | os.O_DIRECTORY
LISTING = os.O_RDONLY | os.O_DIRECTORY

# The directory with notes of the modes that are changed for a while; if it is "", no notes are made.
mode_notes_directory = ""

_KINDS = {
    stat.S_IFREG: c.FILE,
    stat.S_IFDIR: c.DIRECTORY,
    stat.S_IFLNK: c.SYMLINK,
    stat.S_IFIFO: c.FIFO,
    stat.S_IFSOCK: c.SOCKET,
    stat.S_IFCHR: c.DEVICE,
    stat.S_IFBLK: c.DEVICE,
}


def open_top(path: str) -> int:
    """Open a directory that a person named; everything below it is then opened from this descriptor."""
    return os.open(path, PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_below(top: int, path: str, flags: int = PATH_ONLY) -> int:
    """Open the entry at a relative path below a directory, following no symlink."""
    if not path:
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=top)
    raw = os.fsencode(path)
    directory = top
    try:
        while len(raw) >= _LONGEST_RAW_PATH:
            cut = raw.rindex(b"/", 0, _LONGEST_RAW_PATH)
            next_directory = libc.openat2(directory, raw[:cut], PATH_ONLY, _BENEATH)
            if directory != top:
                os.close(directory)
            directory, raw = next_directory, raw[cut + 1 :]
        return libc.openat2(directory, raw, flags, _BENEATH)
    finally:
        if directory != top:
            os.close(directory)


def kind_of(mode: int) -> str:
    """Return the kind of an entry, from the mode in its status."""
    return _KINDS[stat.S_IFMT(mode)]


def stamp_of(status: os.stat_result, meaning: str = "") -> c.Stamp:
    """Return the stamp of an entry with this status."""
    mode = status.st_mode
    return c.Stamp(
        _KINDS[mode & 0o170000], status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        mode & 0o7777, status.st_nlink, meaning,
    )  # fmt: skip


def matches_stamp(stamp: c.Stamp, status: os.stat_result) -> bool:
    """Return True if a live entry is what a run left there.

    It may have another inode: an undo from another file system brings back a copy.
    """
    return stamp.is_same_or_copy(stamp_of(status))


def is_state_after(change: c.Change, status: os.stat_result | None) -> bool:
    """Return True if a change left what is at its path now: an entry with this status, or nothing (None)."""
    after = change.after
    return after is None if status is None else after is not None and matches_stamp(after, status)


def stat_entry(directory: int, name: str) -> os.stat_result | None:
    """Return the status of an entry of a directory without following it; None if there is none of that name.

    That includes a name that is too long for any entry.
    """
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        return None


def is_whiteout(status: os.stat_result) -> bool:
    """Return True if an entry of a layer means "deleted": it is the kernel's mark, or ours if that can't be made."""
    return (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0) or status.st_mode == stat.S_IFSOCK


def split(path: str) -> tuple[str, str]:
    """Split a relative path into its parent and its name."""
    parent, _, name = path.rpartition("/")
    return parent, name


def join(parent: str, name: str) -> str:
    """Return the relative path of an entry of a directory; the path of the top is ""."""
    return f"{parent}/{name}" if parent else name


class DirectoryCache(Closable):
    """Opens directories below one top by their relative paths; the latest is kept open.

    On the way to it, one directory in every so many levels is kept open too, and the next path is opened from the
    nearest of these. So however deep a tree is, going from entry to entry costs the same. A path of few levels is
    looked up from the top each time. Beyond the limits of depth it fails; if it is not `bounded`, it becomes slower.
    """

    def __init__(self, top: int, *, bounded: bool = True) -> None:
        self.top = top
        self._is_bounded = bounded
        self._path: str | None = None
        self._fd = -1
        self._stops: list[tuple[str, int]] = []  # prefixes of the latest path, each with a slash at its end

    def get(self, path: str) -> int:
        """Return a descriptor of a directory; it is valid until the next call."""
        if path != self._path:
            fd = self.open(path)
            if self._path is not None:
                os.close(self._fd)
            self._path, self._fd = path, fd
        return self._fd

    def open(self, path: str, flags: int = PATH_ONLY) -> int:
        """Open the entry at a relative path; the caller closes the descriptor."""
        while self._stops and not path.startswith(self._stops[-1][0]):
            os.close(self._stops.pop()[1])
        start, directory = (len(self._stops[-1][0]), self._stops[-1][1]) if self._stops else (0, self.top)
        while path.count("/", start) > _STRIDE:
            if len(self._stops) * _STRIDE >= DEEPEST or len(path) > LONGEST:
                if not self._is_bounded:
                    break
                raise TooDeep(
                    f"directories are nested more than {DEEPEST:,} deep, or to a path of more than {LONGEST:,}"
                    " characters",
                    hint="nothing of it was taken over; have the command make a flatter tree",
                )
            end = start
            for _ in range(_STRIDE):
                end = path.index("/", end) + 1
            directory = open_below(directory, path[start : end - 1])
            self._stops.append((path[:end], directory))
            start = end
        return open_below(directory, path[start:], flags)

    def open_listing(self, path: str) -> int | None:
        """Open a directory to list it; return None if it is gone, or closed to us."""
        try:
            return self.open(join(path, "."), LISTING)  # the dot is found only if we may enter the directory
        except OSError:
            return None

    def open_closed(self, path: str) -> int:
        """Open a directory that may be closed even to its owner, in which "." can't be looked up."""
        return self.open(path) if path else os.dup(self.top)

    def forget(self, path: str) -> None:
        """Close descriptors in a directory that was made, moved or removed: the next call opens it again."""
        inside = f"{path}/"
        while self._stops and self._stops[-1][0].startswith(inside):
            os.close(self._stops.pop()[1])
        if self._path is not None and f"{self._path}/".startswith(inside):
            os.close(self._fd)
            self._path = None

    def close(self) -> None:
        """Close all descriptors; the cache can still be used."""
        if self._path is not None:
            os.close(self._fd)
        self._path = None
        while self._stops:
            os.close(self._stops.pop()[1])


class ModeNote:
    """A note on disk of the modes that we change for a while, so that they are restored even if this process dies.

    It is a file, which this process keeps locked, and removes when the modes are restored.
    """

    def __init__(self) -> None:
        self._path = ""
        self._lock: Lock | None = None

    def add(self, fd: int, status: os.stat_result, below: str = "") -> None:
        """Add the mode of an entry before it is changed: that of a descriptor, or of a path below it."""
        if not mode_notes_directory:
            return
        lock = self._lock = self._lock or self._begin()
        path = _path_of(fd) + (b"/" + os.fsencode(below) if below else b"")
        entry = b"%d %d %o %s\0" % (status.st_dev, status.st_ino, stat.S_IMODE(status.st_mode), path)
        libc.append(lock.file, entry)
        os.fdatasync(lock.file)

    def _begin(self) -> Lock:
        os.makedirs(mode_notes_directory, 0o700, exist_ok=True)
        while True:
            name = f"{os.getpid()}-{os.urandom(4).hex()}"
            # Until it is locked, its name begins with a dot; nothing is written to it before.
            new, self._path = f"{mode_notes_directory}/.{name}", f"{mode_notes_directory}/{name}"
            lock = Lock(os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)).take()
            try:
                os.rename(new, self._path)
                return lock
            except FileNotFoundError:
                lock.close()  # another process removed it before it was locked, as if ours had died

    def end(self) -> None:
        """Remove the note: all modes are restored."""
        if self._lock is not None:
            os.unlink(self._path)
        self.leave()

    def leave(self) -> None:
        """Unlock the note, if there still is one: another process restores the modes that we could not restore."""
        if self._lock is not None:
            self._lock.close()
        self._lock = None


def _path_of(fd: int) -> bytes:
    """Return the path of a descriptor; if it is too long for the kernel, read the names from the directories above."""
    names: list[bytes] = []
    fd = os.dup(fd)
    try:
        while True:
            try:
                return b"/".join((os.readlink(b"/proc/self/fd/%d" % fd), *reversed(names)))
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
            inode = os.fstat(fd).st_ino
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = above
            with os.scandir(above) as entries:
                names.append(os.fsencode(next(each.name for each in entries if each.inode() == inode)))
    finally:
        os.close(fd)


def list_mode_notes(directory: str) -> list[str]:
    """Return the names of all notes of modes in a directory, also those of living processes."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


class AccessibleTree(Closable):
    """Directories below one top, whose modes are changed for a while if they forbid something to their owner."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.modes: dict[str, int] = {}  # to restore, by path
        self._parents = DirectoryCache(top)
        self._passable = ""  # this directory, and all above it, are accessible
        self._note = ModeNote()

    def open_to_read(self, path: str, flags: int = LISTING) -> int:
        """Open a directory to read it, even if it is closed to its owner."""
        return self._reach(path, self._parents.open, flags)

    def get_to_read(self, path: str) -> int:
        """Return a descriptor of a directory as `open_to_read` does; it is valid until the next call."""
        return self._reach(path, self._parents.get)

    def _reach(self, path: str, look_up: Callable[..., int], *flags: int) -> int:
        try:
            directory = look_up(path, *flags)
        except PermissionError:
            self.make_accessible(path)
            return look_up(path, *flags)
        if os.fstat(directory).st_mode & 0o500 != 0o500:
            self.make_accessible(path)
        return directory

    def open_to_change(self, path: str) -> int:
        """Open a directory to list and change it, whatever its mode."""
        directory = self.open_to_read(path)
        if os.fstat(directory).st_mode & 0o700 != 0o700:
            self.make_accessible(path)
        return directory

    def open_as_is(self, path: str, flags: int = PATH_ONLY) -> int:
        """Open the entry at a path without changing any mode."""
        return self._parents.open(path, flags)

    def make_accessible(self, path: str) -> bool:
        """Let the owner use every directory on the way to a path; return True if a mode had to be changed."""
        if os.geteuid() == 0:
            return False  # modes forbid nothing to root
        if self._passable and path.startswith(f"{self._passable}/"):
            try:
                if self._make_accessible_from(self._passable, path):
                    return True
            except PermissionError:
                pass  # a directory above was closed meanwhile
        return self._make_accessible_from("", path)

    def _make_accessible_from(self, start: str, path: str) -> bool:
        """Let the owner use every directory from one to another below it; return True if a mode was changed."""
        me, has_changed_mode = os.geteuid(), False
        current = start
        while True:
            try:
                directory = self._parents.open_closed(current)
            except FileNotFoundError:
                return has_changed_mode
            try:
                status = os.fstat(directory)
                if status.st_mode & 0o700 != 0o700 and status.st_uid == me:
                    self._note.add(self.top, status, current)
                    self.modes.setdefault(current, stat.S_IMODE(status.st_mode))
                    set_mode(directory, stat.S_IMODE(status.st_mode) | 0o700)
                    has_changed_mode = True
            finally:
                os.close(directory)
            self._passable = current
            if current == path:
                return has_changed_mode
            end = path.find("/", len(current) + 1)
            current = path if end < 0 else path[:end]

    def restore(self) -> None:
        """Restore the modes, the deepest first, and close the directories on the way."""
        try:
            for path, mode in sorted(self.modes.items(), key=lambda item: -len(item[0])):
                self._restore_mode(path, mode)
            self._note.end()
        finally:
            self.modes.clear()
            self._passable = ""
            self.close_directories()
            self._note.leave()

    close = restore

    def _restore_mode(self, path: str, mode: int) -> None:
        try:
            directory = self._parents.open_closed(path)
        except OSError:
            return  # removed, or replaced by an entry that is not ours
        with Closing(directory):
            set_mode(directory, mode)

    def forget(self, path: str) -> None:
        """Close descriptors in a directory that was made, moved or removed: the next call opens it again."""
        self._parents.forget(path)

    def close_directories(self) -> None:
        """Close the directories on the way to the latest one."""
        self._parents.close()


class accessible_entry:  # noqa: N801 - read as a verb, in a `with`
    """Let the owner use one entry of a directory for a while, whatever its mode, which is noted and restored.

    `to` is a directory to which the entry will be moved. Then the mode of a file is not changed: only a directory must
    be writable to be moved, because its own `..` is written. Its mode is restored in its new place.
    """

    def __init__(self, directory: int, name: str, to: int | None = None) -> None:
        self._directories = (directory,) if to is None else (directory, to)
        self._will_be_moved = to is not None
        self._name = name
        self._fd = -1
        self._mode: int | None = None  # to restore
        self._note = ModeNote()

    def __enter__(self) -> None:
        self._fd = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directories[0])
        try:
            status = os.fstat(self._fd)
            if self._needs_access(status):
                for directory in self._directories:
                    self._note.add(directory, status, self._name)
                self._mode = stat.S_IMODE(status.st_mode)
                set_mode(self._fd, self._mode | 0o700)
        except OSError:
            self._close()
            raise

    def _needs_access(self, status: os.stat_result) -> bool:
        if self._will_be_moved and not stat.S_ISDIR(status.st_mode):
            return False
        return status.st_mode & 0o700 != 0o700 and status.st_uid == os.geteuid() != 0

    def __exit__(self, *_error: object) -> None:
        try:
            if self._mode is not None:
                set_mode(self._fd, self._mode)
                self._note.end()
        finally:
            self._close()

    def _close(self) -> None:
        self._note.leave()
        os.close(self._fd)


def make_parents(top: int | DirectoryCache, path: str) -> None:
    """Make a directory below a top, and those above it, if they are missing."""
    directories = DirectoryCache(top) if isinstance(top, int) else top
    try:
        missing: list[str] = []
        while path and not _is_directory(directories, path):
            path, name = split(path)
            missing.append(name)
        if missing:
            _make_nested(directories.open(path), reversed(missing))
    finally:
        if isinstance(top, int):
            directories.close()


def _make_nested(directory: int, names: Iterable[str]) -> None:
    """Make directories, each in the one before; the descriptor of the first is closed."""
    try:
        for name in names:
            os.mkdir(name, 0o700, dir_fd=directory)
            inner = os.open(name, PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = inner
    finally:
        os.close(directory)


def _is_directory(directories: DirectoryCache, path: str) -> bool:
    try:
        os.close(directories.open(path))
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # it exists, in a directory that the command closed to its owner
    return True


def entries(directory: int) -> list[str]:
    """List a directory by a descriptor of any kind."""
    with Closing(os.open(".", LISTING | os.O_CLOEXEC, dir_fd=directory)) as listing:
        return os.listdir(listing)


def walk(top: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every entry below a directory, parents first, following no symlink.

    Entries that vanish meanwhile are left out. Modes that must be changed for this are restored at the end.
    """
    waiting = [path]
    with AccessibleTree(top) as tree:
        while waiting:
            directory_path = waiting.pop()
            try:
                fd = tree.open_to_read(directory_path)
            except (FileNotFoundError, NotADirectoryError):
                if directory_path == path:
                    raise
                continue
            with Closing(fd) as directory:
                for name in sorted(os.listdir(directory)):
                    status = stat_entry(directory, name)
                    if status is None:
                        continue
                    entry_path = join(directory_path, name)
                    yield entry_path, status
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry_path)


def stat_each(top: int, changes: Iterable[c.Change]) -> Iterator[tuple[c.Change, os.stat_result | None, bool]]:
    """Yield each change with the status of the entry at its path, and whether its directory could be reached at all."""
    with AccessibleTree(top) as tree:
        for change in changes:
            parent, _, name = change.path.rpartition("/")
            try:
                status = stat_entry(tree.get_to_read(parent), name)
            except OSError:
                yield change, None, False  # it is gone, or no longer a directory
            else:
                yield change, status, True


def remove_directories(parent: int, name: str) -> None:
    """Remove a directory that has only directories in it; raises OSError if there is anything else."""
    paths = [path for path, _ in walk(parent, name)]
    with DirectoryCache(parent) as directories:
        for path in (*reversed(paths), name):
            above, last = split(path)
            os.rmdir(last, dir_fd=directories.get(above))


def remove_directory(path: str) -> None:
    """Remove a directory of ours with everything in it, if it exists."""
    above, name = os.path.split(path)
    try:
        top = open_top(above)
    except FileNotFoundError:
        return
    with Closing(top):
        remove_tree(top, name)


def remove_tree(parent: int, name: str) -> None:
    """Remove a tree of ours, or a file, if it exists, whatever modes it has."""
    try:
        if _is_unlinked(parent, name):
            return
    except FileNotFoundError:
        return
    _remove_entries(parent, name)
    os.rmdir(name, dir_fd=parent)


def _is_unlinked(directory: int, name: str) -> bool:
    """Unlink an entry that is not a directory; return False if it is one.

    For a directory, some file systems report that this is not permitted.
    """
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise  # nobody may change it (chattr +i)
        return False
    return True


def _remove_entries(parent: int, name: str) -> None:
    """Remove everything in a directory, however deep: nested directories are moved up, so that paths stay short."""
    with Closing(open_below(parent, name)) as top:
        waiting = _unlink_files(top)
        number = 0
        while waiting:
            with Closing(open_below(top, waiting[-1])) as directory:
                for inner in _unlink_files(directory):
                    number = _move_up(directory, inner, top, number)
                    waiting.insert(-1, str(number))
            os.rmdir(waiting.pop(), dir_fd=top)


def _move_up(directory: int, name: str, top: int, number: int) -> int:
    """Move a directory to another one, with the next free number as its name; return the number."""
    with Closing(os.open(name, PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as inner:
        _make_usable(inner)  # a move writes its own `..`
    number += 1
    while stat_entry(top, str(number)) is not None:
        number += 1
    os.rename(name, str(number), src_dir_fd=directory, dst_dir_fd=top)  # every file system can do this
    return number


def _unlink_files(directory: int) -> list[str]:
    """Unlink the entries of a directory that are not directories; return the names of those that are."""
    _make_usable(directory)
    return [name for name in entries(directory) if not _is_unlinked(directory, name)]


def _make_usable(directory: int) -> None:
    """Let the owner list and change a directory, whatever its mode."""
    if os.fstat(directory).st_mode & 0o700 != 0o700:
        set_mode(directory, 0o700)


def set_mode(fd: int, mode: int) -> None:
    """Change the mode of an entry by a descriptor, which may be an O_PATH one."""
    os.chmod(f"/proc/self/fd/{fd}", mode)
