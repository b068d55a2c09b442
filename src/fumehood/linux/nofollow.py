"""File work through directory descriptors that no symlink and no renamed parent can lead astray."""

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
    from collections.abc import Iterable, Iterator

_BENEATH = libc.RESOLVE_BENEATH | libc.RESOLVE_NO_SYMLINKS | libc.RESOLVE_NO_MAGICLINKS
_LONGEST = 3000  # bytes of path given to the kernel at once; its own limit is 4096
_STRIDE = 128  # levels between directories that are kept open on the way to a deep one
# Twice the levels, and eight times the length, that a program can name by one path: each entry is recorded with all
# of its path, so what these take grows with the square of the depth.
DEEPEST, LONGEST = 4096, 32768
PATH_ONLY = os.O_PATH | os.O_DIRECTORY
LISTING = os.O_RDONLY | os.O_DIRECTORY

# Where modes are noted that are changed for a while; nothing is noted while this is empty.
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
    """Open a directory that the person named; everything below is then reached from it."""
    return os.open(path, PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_below(top: int, path: str, flags: int = PATH_ONLY) -> int:
    """Open what lies at a relative path below a directory, following no symlink on the way."""
    if not path:
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=top)
    raw = os.fsencode(path)
    here = top
    try:
        while len(raw) >= _LONGEST:
            cut = raw.rindex(b"/", 0, _LONGEST)
            step = libc.openat2(here, raw[:cut], PATH_ONLY, _BENEATH)
            if here != top:
                os.close(here)
            here, raw = step, raw[cut + 1 :]
        return libc.openat2(here, raw, flags, _BENEATH)
    finally:
        if here != top:
            os.close(here)


def kind_of(mode: int) -> str:
    """Name the kind of entry that a mode tells."""
    return _KINDS[stat.S_IFMT(mode)]


def stamp_of(status: os.stat_result, meaning: str = "") -> c.Stamp:
    """Turn what the kernel told about an entry into the stamp we keep."""
    mode = status.st_mode
    return c.Stamp(
        _KINDS[mode & 0o170000], status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        mode & 0o7777, status.st_nlink, meaning,
    )  # fmt: skip


def matches_stamp(stamp: c.Stamp, status: os.stat_result) -> bool:
    """Return True if a live path is what a run left there.

    The inode may be another one: what is undone from another file system comes back as a copy.
    """
    return stamp.is_same_or_copy(stamp_of(status))


def is_state_after(change: c.Change, status: os.stat_result | None) -> bool:
    """Return True if a change left what lies at its path, or left nothing there."""
    after = change.after
    return after is None if status is None else after is not None and matches_stamp(after, status)


def stat_entry(directory: int, name: str) -> os.stat_result | None:
    """Return what an entry of a directory is; None where none is, or none can have so long a name. Follows nothing."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        return None


def is_whiteout(status: os.stat_result) -> bool:
    """Return True if an entry of a layer means "deleted": the kernel's mark, or ours where that can't be made."""
    return (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0) or status.st_mode == stat.S_IFSOCK


def split(path: str) -> tuple[str, str]:
    """Split a relative path into its parent and its name."""
    parent, _, name = path.rpartition("/")
    return parent, name


def join(parent: str, name: str) -> str:
    """Return the relative path of an entry of a directory; the top's own path is empty."""
    return f"{parent}/{name}" if parent else name


class DirectoryCache(Closable):
    """Directories below one top, by their relative paths, the latest kept open.

    On the way to the latest, one in every so many levels is kept open too, and the next is opened from the nearest of
    those: however deep a tree is, going from entry to entry costs the same. A path of few levels is looked up from
    the top each time. Beyond the limit on depth it fails; for those who only look and are not `bounded`, it costs more.
    """

    def __init__(self, top: int, *, bounded: bool = True) -> None:
        self.top = top
        self._is_bounded = bounded
        self._path: str | None = None
        self._fd = -1
        self._stops: list[tuple[str, int]] = []  # prefixes of the latest path, each ending in a slash

    def get(self, path: str) -> int:
        """Return a descriptor of a directory by its relative path; it stays valid until the next call."""
        if path != self._path:
            fd = self.open(path)
            if self._path is not None:
                os.close(self._fd)
            self._path, self._fd = path, fd
        return self._fd

    def open(self, path: str, flags: int = PATH_ONLY) -> int:
        """Open what lies at a relative path; the descriptor is the caller's."""
        while self._stops and not path.startswith(self._stops[-1][0]):
            os.close(self._stops.pop()[1])
        start, here = (len(self._stops[-1][0]), self._stops[-1][1]) if self._stops else (0, self.top)
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
            here = open_below(here, path[start : end - 1])
            self._stops.append((path[:end], here))
            start = end
        return open_below(here, path[start:], flags)

    def open_listing(self, path: str) -> int | None:
        """Open a directory to list it; None where it is gone, or closed to us: its dot is there to who may pass it."""
        try:
            return self.open(join(path, "."), LISTING)
        except OSError:
            return None

    def open_itself(self, path: str) -> int:
        """Open a directory that may be closed even to its owner: one such does not let its own dot be looked up."""
        return self.open(path) if path else os.dup(self.top)

    def forget(self, path: str) -> None:
        """Close what is open in a directory that was made, moved or removed: the next call looks it up anew."""
        inside = f"{path}/"
        while self._stops and self._stops[-1][0].startswith(inside):
            os.close(self._stops.pop()[1])
        if self._path is not None and f"{self._path}/".startswith(inside):
            os.close(self._fd)
            self._path = None

    def close(self) -> None:
        """Close what is open; the next call opens again."""
        if self._path is not None:
            os.close(self._fd)
        self._path = None
        while self._stops:
            os.close(self._stops.pop()[1])


class ModeNote:
    """The modes that one piece of work changes for a while, on disk, so that they are given back even if we die.

    It is a file, locked by its process for as long as that lives; it goes when the modes are back.
    """

    def __init__(self) -> None:
        self._path = ""
        self._lock: Lock | None = None

    def add(self, fd: int, status: os.stat_result, below: str = "") -> None:
        """Write down the mode that something has now, before it is changed: what `fd` names, or a path below that."""
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
            # By a dot in front until it is locked, so that nothing can be in it.
            new, self._path = f"{mode_notes_directory}/.{name}", f"{mode_notes_directory}/{name}"
            lock = Lock(os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)).take()
            try:
                os.rename(new, self._path)
                return lock
            except FileNotFoundError:
                lock.close()  # removed by who took it for a dead process's, before it was locked

    def end(self) -> None:
        """Remove the note: all modes are back."""
        if self._lock is not None:
            os.unlink(self._path)
        self.leave()

    def leave(self) -> None:
        """Leave the note, if there still is one, to whoever looks next: some mode could not be given back."""
        if self._lock is not None:
            self._lock.close()
        self._lock = None


def _path_of(fd: int) -> bytes:
    """Return the path of what a descriptor names; one longer than a page is found by climbing."""
    names: list[bytes] = []
    here = os.dup(fd)
    try:
        while True:
            try:
                return b"/".join((os.readlink(b"/proc/self/fd/%d" % here), *reversed(names)))
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
            inode = os.fstat(here).st_ino
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = above
            with os.scandir(above) as entries:
                names.append(os.fsencode(next(each.name for each in entries if each.inode() == inode)))
    finally:
        os.close(here)


def list_mode_notes(where: str) -> list[str]:
    """Return the names of all notes, those of living processes too."""
    try:
        return os.listdir(where)
    except FileNotFoundError:
        return []


class AccessibleTree(Closable):
    """Directories below one top that forbid something to their own owner, opened up for a while."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.modes: dict[str, int] = {}
        self._parents = DirectoryCache(top)
        self._passable = ""  # a directory on the way to which all are open
        self._note = ModeNote()

    def open_to_read(self, path: str, flags: int = LISTING) -> int:
        """Open a directory whose entries are to be looked at, even one that its owner closed."""
        try:
            directory = self._parents.open(path, flags)
        except PermissionError:
            self.make_accessible(path)
            return self._parents.open(path, flags)
        if os.fstat(directory).st_mode & 0o500 != 0o500:
            self.make_accessible(path)
        return directory

    def open_to_change(self, path: str) -> int:
        """Open a directory to list and change it, whatever mode the command left it at."""
        directory = self.open_to_read(path)
        if os.fstat(directory).st_mode & 0o700 != 0o700:
            self.make_accessible(path)
        return directory

    def open_as_is(self, path: str, flags: int = PATH_ONLY) -> int:
        """Open what lies at a path without opening anything up."""
        return self._parents.open(path, flags)

    def make_accessible(self, path: str) -> bool:
        """Let the owner into every directory on the way to a path; tell whether any mode had to change."""
        if os.geteuid() == 0:
            return False  # modes forbid nothing to root
        if self._passable and path.startswith(f"{self._passable}/"):
            try:
                if self._let_in(path, self._passable):
                    return True
            except PermissionError:
                pass  # one above was closed meanwhile
        return self._let_in(path, "")

    def _let_in(self, path: str, here: str) -> bool:
        """Open up every directory from one to another below it."""
        me, changed = os.geteuid(), False
        while True:
            try:
                directory = self._parents.open_itself(here)
            except FileNotFoundError:
                return changed
            try:
                status = os.fstat(directory)
                if status.st_mode & 0o700 != 0o700 and status.st_uid == me:
                    self._note.add(self.top, status, here)
                    self.modes.setdefault(here, stat.S_IMODE(status.st_mode))
                    set_mode(directory, stat.S_IMODE(status.st_mode) | 0o700)
                    changed = True
            finally:
                os.close(directory)
            self._passable = here
            if here == path:
                return changed
            end = path.find("/", len(here) + 1)
            here = path if end < 0 else path[:end]

    def restore(self) -> None:
        """Close up what was opened, the deepest first, and let go of the directories on the way."""
        try:
            for path, mode in sorted(self.modes.items(), key=lambda item: -len(item[0])):
                self._close_up(path, mode)
            self._note.end()
        finally:
            self.modes.clear()
            self._passable = ""
            self.close_directories()
            self._note.leave()

    close = restore

    def _close_up(self, path: str, mode: int) -> None:
        try:
            directory = self._parents.open_itself(path)
        except OSError:
            return  # removed, or replaced by something that is not ours to change
        with Closing(directory):
            set_mode(directory, mode)

    def forget(self, path: str) -> None:
        """Look a directory up anew that was made, moved or removed."""
        self._parents.forget(path)

    def close_directories(self) -> None:
        """Close the directories on the way to the last one."""
        self._parents.close()


class accessible_entry:  # noqa: N801 - read as a verb, in a `with`
    """Lets the owner use one entry of a directory for a while, whatever its mode, which is noted and given back.

    With `to`, it is to be moved to that directory, for which only a directory has to be opened up: its own `..` is
    written. It then gets its mode back where it is.
    """

    def __init__(self, directory: int, name: str, to: int | None = None) -> None:
        self._places = (directory,) if to is None else (directory, to)
        self._is_to_move = to is not None
        self._name = name
        self._fd = -1
        self._mode: int | None = None  # to be given back
        self._note = ModeNote()

    def __enter__(self) -> None:
        self._fd = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._places[0])
        try:
            status = os.fstat(self._fd)
            if self._needs_opening(status):
                for place in self._places:
                    self._note.add(place, status, self._name)
                self._mode = stat.S_IMODE(status.st_mode)
                set_mode(self._fd, self._mode | 0o700)
        except OSError:
            self._close()
            raise

    def _needs_opening(self, status: os.stat_result) -> bool:
        if self._is_to_move and not stat.S_ISDIR(status.st_mode):
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
    """Make a directory of ours below a top, with those above it, where they are missing."""
    directories = DirectoryCache(top) if isinstance(top, int) else top
    try:
        missing: list[str] = []
        while path and not _is_directory(directories, path):
            path, name = split(path)
            missing.append(name)
        if missing:
            _make(directories.open(path), reversed(missing))
    finally:
        if isinstance(top, int):
            directories.close()


def _make(here: int, names: Iterable[str]) -> None:
    """Make directories, each in the one before."""
    try:
        for name in names:
            os.mkdir(name, 0o700, dir_fd=here)
            below = os.open(name, PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)


def _is_directory(directories: DirectoryCache, path: str) -> bool:
    try:
        os.close(directories.open(path))
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # there, in a directory that the command closed to its owner
    return True


def entries(directory: int) -> list[str]:
    """List a directory held by a descriptor of any kind."""
    with Closing(os.open(".", LISTING | os.O_CLOEXEC, dir_fd=directory)) as listing:
        return os.listdir(listing)


def walk(top: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every entry below a directory, parents first, following no symlink.

    Entries that vanish meanwhile are left out. Directories closed to their owner are closed again at the end.
    """
    waiting = [path]
    with AccessibleTree(top) as tree:
        while waiting:
            here = waiting.pop()
            try:
                opened = tree.open_to_read(here)
            except (FileNotFoundError, NotADirectoryError):
                if here == path:
                    raise
                continue
            with Closing(opened) as directory:
                for name in sorted(os.listdir(directory)):
                    status = stat_entry(directory, name)
                    if status is None:
                        continue
                    below = join(here, name)
                    yield below, status
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(below)


def stat_each(top: int, changes: Iterable[c.Change]) -> Iterator[tuple[c.Change, os.stat_result | None, bool]]:
    """Yield what lies at the path of each change now, and whether its directory could be reached at all."""
    with AccessibleTree(top) as tree, DirectoryCache(top) as directories:
        for change in changes:
            parent, _, name = change.path.rpartition("/")
            try:
                status = stat_entry(get_readable(directories, tree, parent), name)
            except OSError:
                yield change, None, False  # gone, or something else stands there
            else:
                yield change, status, True


def get_readable(directories: DirectoryCache, tree: AccessibleTree, path: str) -> int:
    """Return a directory's descriptor from the cache, opened up where its owner may not look into it."""
    try:
        directory = directories.get(path)
    except PermissionError:
        tree.make_accessible(path)
        return directories.get(path)
    if os.fstat(directory).st_mode & 0o500 != 0o500:
        tree.make_accessible(path)
    return directory


def remove_directories(parent: int, name: str) -> None:
    """Remove a directory that holds nothing but directories; fails if there is anything else."""
    paths = [path for path, _ in walk(parent, name)]
    with DirectoryCache(parent) as directories:
        for path in (*reversed(paths), name):
            above, last = split(path)
            os.rmdir(last, dir_fd=directories.get(above))


def remove_directory(path: str) -> None:
    """Remove a directory of ours with all that is in it, if it is there."""
    above, name = os.path.split(path)
    try:
        top = open_top(above)
    except FileNotFoundError:
        return
    with Closing(top):
        remove_tree(top, name)


def remove_tree(parent: int, name: str) -> None:
    """Remove a tree of ours, whatever modes were left in it; one that is not there is fine."""
    try:
        if _is_unlinked(parent, name):
            return
    except FileNotFoundError:
        return
    _empty(parent, name)
    os.rmdir(name, dir_fd=parent)


def _is_unlinked(directory: int, name: str) -> bool:
    """Unlink what is not a directory; False if it is one, of which some file systems say that it is not permitted."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise  # nobody may change it (chattr +i)
        return False
    return True


def _empty(parent: int, name: str) -> None:
    """Remove what is in a directory, however deep: what is nested is moved up first, so that no path gets long."""
    with Closing(open_below(parent, name)) as top:
        waiting = _unlink_files(top)
        number = 0
        while waiting:
            with Closing(open_below(top, waiting[-1])) as here:
                for inner in _unlink_files(here):
                    number = _move_up(here, inner, top, number)
                    waiting.insert(-1, str(number))
            os.rmdir(waiting.pop(), dir_fd=top)


def _move_up(directory: int, name: str, top: int, number: int) -> int:
    """Move a directory to another one, under the next number that is free there; return that."""
    with Closing(os.open(name, PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as inner:
        _make_usable(inner)  # its own `..` is written
    number += 1
    while stat_entry(top, str(number)) is not None:
        number += 1
    os.rename(name, str(number), src_dir_fd=directory, dst_dir_fd=top)  # every file system can do this
    return number


def _unlink_files(directory: int) -> list[str]:
    """Unlink what is not a directory at one level; return the directories left."""
    _make_usable(directory)
    return [name for name in entries(directory) if not _is_unlinked(directory, name)]


def _make_usable(directory: int) -> None:
    """Let the owner list and change a directory that may have been left at mode 000."""
    if os.fstat(directory).st_mode & 0o700 != 0o700:
        set_mode(directory, 0o700)


def set_mode(fd: int, mode: int) -> None:
    """Change the mode of whatever a descriptor names, O_PATH ones included."""
    os.chmod(f"/proc/self/fd/{fd}", mode)
