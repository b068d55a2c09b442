"""Swap entries of a layer and the project.

Before the swaps, this module also brings both onto one file system, gives files inodes of their own, and finds files
that other programs have open for writing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from fumehood.core import changes as c
from fumehood.core.changes import MKDIR, PUT, RMDIR, SWAP, TAKE, Step
from fumehood.core.judge import JOURNALS, database_of
from fumehood.core.report import printable
from fumehood.linux import libc
from fumehood.linux.copying import LinkedCopies, copy_directory_metadata, copy_entry, copy_file, copy_tree, try_link
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.namespaces import file_system_kind
from fumehood.linux.nofollow import (
    PATH_ONLY,
    AccessibleTree,
    DirectoryCache,
    is_whiteout,
    make_parents,
    open_below,
    open_top,
    remove_tree,
    split,
    stamp_of,
    stat_entry,
    walk,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Programs = dict[str, str]  # names of programs, by process number


# ---- A layer and a project on different file systems: swaps need both on one.
#
# New versions are copied to a staging directory at the top of the root, and are swapped from there as from any layer.
# The originals that come out are copied into the layer before the staging directory is removed. Nothing is removed
# from either side before its copy is complete.

# Beside the layer: copies of the originals that came out of the project, and what remains of these when they are moved.
ORIGINALS_DIR, OLD_ORIGINALS_DIR = "home", "settled"
_ACTS_WITH_ORIGINALS = (SWAP, PUT, TAKE, RMDIR)


def can_rename(first: int, second: int) -> bool:
    """Return True if entries can be renamed from one of two directories to the other.

    It is not enough that both are on one file system: they must be on one mount of it. The volumes of containers are
    often mounts of a part.
    """
    return os.fstat(first).st_dev == os.fstat(second).st_dev and mount_id_of(first) == mount_id_of(second)


def mount_id_of(directory: int) -> bytes:
    """Return the number of the mount that a directory was opened on."""
    lines = libc.read(f"/proc/self/fdinfo/{directory}").split(b"\n")
    return next(line for line in lines if line.startswith(b"mnt_id:")).split()[1]


class Staging:
    """A directory at the top of one root that takes the layer's place for an apply."""

    def __init__(self, upper: str, live: int, run: str) -> None:
        self._upper = upper
        self._live = live
        self._name = f".fumehood-{run}"
        self._layer_stamps: list[tuple[c.Change, c.Stamp]] = []
        self.directory = -1

    def make(self) -> None:
        """Make the directory, empty."""
        with AccessibleTree(self._live) as tree:
            tree.make_accessible("")
            remove_tree(self._live, self._name)
            os.mkdir(self._name, 0o700, dir_fd=self._live)
            self.directory = open_below(self._live, self._name)

    def find(self) -> bool:
        """Open the directory that an interrupted apply has left, if there is one."""
        try:
            self.directory = open_below(self._live, self._name)
        except FileNotFoundError:
            return False
        return True

    def prepare(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Copy here what will be put into the project, and store the stamps of the copies in the changes."""
        with (
            Closing(open_top(self._upper)) as layer,
            AccessibleTree(layer) as tree,
            DirectoryCache(self.directory) as target,
            LinkedCopies(self.directory) as links,
        ):
            for step in steps:
                if step.act in (SWAP, PUT, TAKE, MKDIR):
                    make_parents(target, step.parent)
                if step.act in (SWAP, PUT, MKDIR):
                    target_dir = target.get(step.parent)
                    with Closing(tree.open_to_read(step.parent, PATH_ONLY)) as source_dir:
                        if step.act != MKDIR:
                            copy_entry(source_dir, step.name, target_dir, step.name, links, step.change.path)
                        elif stat_entry(source_dir, step.name) is not None:
                            os.mkdir(step.name, 0o700, dir_fd=target_dir)
                            copy_directory_metadata(source_dir, target_dir, step.name)
        # The copies will be in the project, except for directories, which are made there.
        copies = dict(walk(self.directory, ""))
        made = {step.change.path for step in steps if step.act == MKDIR}
        moved = {step.change.path for step in steps if step.act in (SWAP, PUT)}
        for change in changes:
            if change.verdict != c.APPLIED or change.after is None or change.path in made:
                continue
            copy = copies.get(change.path)
            if copy is not None and (change.within is not None or change.path in moved):
                self._layer_stamps.append((change, change.after))
                change.after = stamp_of(copy, change.after.meaning)

    def restore_stamps(self) -> None:
        """Store the stamps of the layer's entries in the changes again.

        They can differ from those of the copies: not every file system gives a copy the same mode or time.
        """
        for change, stamp in self._layer_stamps:
            change.after = stamp

    def copy_originals(self) -> None:
        """Copy the originals that came out of the project to a directory beside the layer."""
        with Closing(open_top(os.path.dirname(self._upper))) as above:
            remove_tree(above, ORIGINALS_DIR)
            copy_tree(self._live, self._name, above, ORIGINALS_DIR)

    def move_originals_to_layer(self, steps: Sequence[Step]) -> None:
        """Move these copies into the layer, in place of what went into the project.

        Once begun, it can't be taken back, only repeated until it succeeds.
        """
        with Closing(open_top(os.path.dirname(self._upper))) as above:
            if stat_entry(above, ORIGINALS_DIR) is None:
                return  # an earlier call has done everything: the directory is removed last
            with (
                Closing(open_below(above, ORIGINALS_DIR)) as originals,
                Closing(open_top(self._upper)) as layer,
                AccessibleTree(layer) as target,
                AccessibleTree(originals) as source,
            ):
                latest_parent = None
                for step in steps:
                    if step.act not in _ACTS_WITH_ORIGINALS or step.change.verdict != c.APPLIED:
                        continue
                    if step.parent != latest_parent or step.act == RMDIR:
                        _remove_deletion_marks(layer, target, step.change.path if step.act == RMDIR else step.parent)
                    if step.parent != latest_parent:
                        source.make_accessible(step.parent)
                        target.make_accessible(step.parent)
                        make_parents(layer, step.parent)
                        latest_parent = step.parent
                    with (
                        Closing(source.open_as_is(step.parent)) as source_dir,
                        Closing(target.open_as_is(step.parent)) as target_dir,
                    ):
                        if step.act == RMDIR:
                            _replace_removed_directory(source_dir, target_dir, step)
                        else:
                            _move_original(source_dir, target_dir, step)
            # Renamed before it is removed: a half-removed one must not be taken for one that is still to be moved.
            remove_tree(above, OLD_ORIGINALS_DIR)
            os.rename(ORIGINALS_DIR, OLD_ORIGINALS_DIR, src_dir_fd=above, dst_dir_fd=above)
            remove_tree(above, OLD_ORIGINALS_DIR)

    def close(self, *, remove: bool) -> None:
        """Close the directory; with `remove`, remove it from the project too."""
        if self.directory >= 0:
            os.close(self.directory)
        self.directory = -1
        if not remove or stat_entry(self._live, self._name) is None:
            return  # don't touch the project's directory: it may be read-only
        with AccessibleTree(self._live) as tree:
            tree.make_accessible("")
            remove_tree(self._live, self._name)


def _remove_deletion_marks(layer: int, layer_tree: AccessibleTree, path: str) -> None:
    """Remove the whiteout at a directory's path, or above it: its entries are moved into the layer one by one."""
    for directory_path in (*reversed([*c.directories_above(path)]), path):
        parent, name = split(directory_path)
        with Closing(open_below(layer, parent)) as directory:
            status = stat_entry(directory, name) if name else None
            if status is not None and is_whiteout(status):
                layer_tree.make_accessible(parent)
                os.unlink(name, dir_fd=directory)
            if status is None or is_whiteout(status):
                return


def _replace_removed_directory(source_dir: int, target_dir: int, step: Step) -> None:
    """Make the layer's directory the original of a directory that was removed from the project."""
    make_parents(target_dir, step.name)
    copy_directory_metadata(source_dir, target_dir, step.name)
    if step.change.before is not None:
        os.chmod(step.name, step.change.before.mode, dir_fd=target_dir)


def _move_original(source_dir: int, target_dir: int, step: Step) -> None:
    """Move the copy of an original into the layer; if there is no original, remove the layer's own entry."""
    name, before = step.name, step.change.before
    original = stat_entry(source_dir, name)
    if original is not None or step.act == PUT:  # otherwise it was moved before an interruption
        remove_tree(target_dir, name)
    if original is not None:
        if stat.S_ISDIR(original.st_mode) and not original.st_mode & 0o200:
            # A read-only directory can't be moved: its own `..` is written.
            os.chmod(name, 0o700, dir_fd=source_dir)
        move(source_dir, target_dir, name)
    if before is not None and before.kind == c.DIRECTORY:
        os.chmod(name, before.mode, dir_fd=target_dir)


# ---- Swap the entries that two directories have at a name, or move one without replacing anything.
#
# On most file systems, either is one system call. Network file systems, and folders shared with virtual machines, often
# know only plain renames and links. There a swap takes several calls, in an order from which `finish_swap` can tell
# what is still to be done after a crash.

ASIDE = ".fumehood-swap"  # in the first directory, during a swap of several calls
_TRIES = 3


def exchange(first: int, second: int, name: str) -> None:
    """Swap the entries of two directories, whatever their kinds."""
    if _try_rename(first, second, name, libc.RENAME_EXCHANGE):
        return
    modes = [os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode for directory in (first, second)]
    if not any(map(stat.S_ISDIR, modes)) and _link_aside(first, second, name):
        # At no time is the name absent, and the entry that is replaced keeps its second name.
        try:
            os.rename(name, name, src_dir_fd=first, dst_dir_fd=second)
        except OSError:
            os.unlink(ASIDE, dir_fd=first)
            raise
    else:
        os.rename(name, ASIDE, src_dir_fd=second, dst_dir_fd=first)
        try:
            move(first, second, name)
        except OSError:
            if stat_entry(second, name) is None:
                os.rename(ASIDE, name, src_dir_fd=first, dst_dir_fd=second)
            raise
    os.rename(ASIDE, name, src_dir_fd=first, dst_dir_fd=first)


def move(source: int, target: int, name: str) -> None:
    """Rename an entry from one directory to another; raises FileExistsError if the name is taken."""
    if _try_rename(source, target, name, libc.RENAME_NOREPLACE):
        return
    is_directory = stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode)
    # Unlike a rename, a link never replaces anything.
    if not is_directory and try_link(source, name, target, name):
        try:
            if _have_different_inodes(stat_entry(source, name), stat_entry(target, name)):
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)  # this keeps the entry's inode number
            if stat_entry(source, name) is not None:
                os.unlink(name, dir_fd=source)
        except OSError:
            os.unlink(name, dir_fd=target)
            raise
        return
    if stat_entry(target, name) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _try_rename(source: int, target: int, name: str, flag: int) -> bool:
    """Rename or swap by one system call; return False if the file system does not support it."""
    raw = os.fsencode(name)
    try:
        libc.renameat2(source, raw, target, raw, flag)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def finish_swap(layer: int, live_dir: int, name: str, is_ours: Callable[[os.stat_result], bool]) -> None:
    """Complete or take back a swap that a crash interrupted; `is_ours` recognises the entry that was being moved."""
    slot, live = stat_entry(layer, name), stat_entry(live_dir, name)
    if slot is not None and live is not None and _is_same(slot, live) and not stat.S_ISDIR(slot.st_mode):
        os.unlink(name, dir_fd=layer)
        slot = None
    aside = stat_entry(layer, ASIDE)
    if aside is None or not is_ours(aside):
        return
    if slot is None:
        os.rename(ASIDE, name, src_dir_fd=layer, dst_dir_fd=layer)
    elif live is None:
        os.rename(ASIDE, name, src_dir_fd=layer, dst_dir_fd=live_dir)
    elif not stat.S_ISDIR(aside.st_mode):
        os.unlink(ASIDE, dir_fd=layer)  # a second name of the live entry, or of one that somebody has replaced since


def _link_aside(aside_dir: int, entry_dir: int, name: str) -> bool:
    """Give an entry of one directory a second name in another; return False if that is impossible.

    With sshfs, each name has an inode number of its own: then nobody can tell whether both are the same file.
    """
    for _ in range(_TRIES):
        if not try_link(entry_dir, name, aside_dir, ASIDE):
            return False
        entry, aside = stat_entry(entry_dir, name), stat_entry(aside_dir, ASIDE)
        if entry is not None and aside is not None and _is_same(entry, aside):
            return True
        os.unlink(ASIDE, dir_fd=aside_dir)  # somebody has just saved another version
    return False


def _is_same(first: os.stat_result, second: os.stat_result) -> bool:
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _have_different_inodes(first: os.stat_result | None, second: os.stat_result | None) -> bool:
    """Return True if two names of one file have different inode numbers, as with sshfs."""
    if first is None or second is None or _is_same(first, second):
        return False
    return (first.st_mode, first.st_size, first.st_mtime_ns) == (second.st_mode, second.st_size, second.st_mtime_ns)


# ---- Give files of a layer inodes of their own, if they share one with a file elsewhere.
#
# All copies are first made beside the layer, then renamed into it. So each path of the layer always has its old or its
# new file, and an interrupted replacement can be repeated.

COPIES_DIR = "apart"  # the directory of copies, beside the layer


class HardLinkBreaker(Closable):
    """Replaces files of a layer by copies; names that shared an inode in the layer share the copy's.

    `tree` is the layer's. `version` is the attribute of a change that has the stamp of the layer's file: "before" or
    "after".
    """

    def __init__(self, layer: int, tree: AccessibleTree, version: str) -> None:
        self._tree = tree
        self._version = version
        self._above = os.open("..", PATH_ONLY | os.O_CLOEXEC, dir_fd=layer)

    def _stamp(self, change: c.Change) -> c.Stamp:
        stamp: c.Stamp = getattr(change, self._version)
        return stamp

    def copy(self, changes: Sequence[c.Change]) -> None:
        """Copy each inode once to the directory beside the layer."""
        remove_tree(self._above, COPIES_DIR)
        os.mkdir(COPIES_DIR, 0o700, dir_fd=self._above)
        copied_inodes: set[int] = set()
        with Closing(open_below(self._above, COPIES_DIR)) as copies:
            for change in changes:
                inode = self._stamp(change).inode
                if inode not in copied_inodes:
                    parent, name = split(change.path)
                    with Closing(self._tree.open_to_read(parent)) as directory:
                        copy_file(directory, name, copies, str(inode))
                    copied_inodes.add(inode)

    def place(self, changes: Sequence[c.Change]) -> None:
        """Rename the copies into the layer, and store their stamps in the changes; may be repeated."""
        copies = open_below(self._above, COPIES_DIR) if stat_entry(self._above, COPIES_DIR) else -1
        try:
            for change in changes:
                stamp, (parent, name) = self._stamp(change), split(change.path)
                copy_name, link_name = str(stamp.inode), f"{stamp.inode}.link"
                with Closing(self._tree.open_to_change(parent)) as directory:
                    if copies >= 0 and stat_entry(copies, copy_name) is not None:
                        # By a second name: several changes may need the copy.
                        remove_tree(copies, link_name)
                        os.link(copy_name, link_name, src_dir_fd=copies, dst_dir_fd=copies, follow_symlinks=False)
                        os.rename(link_name, name, src_dir_fd=copies, dst_dir_fd=directory)
                    placed = os.stat(name, dir_fd=directory, follow_symlinks=False)
                setattr(change, self._version, stamp_of(placed, stamp.meaning))
        finally:
            if copies >= 0:
                os.close(copies)
        remove_tree(self._above, COPIES_DIR)

    def close(self) -> None:
        """Close the directory above the layer."""
        os.close(self._above)


# ---- Find files that other programs have open for writing: after a swap, their next write would be lost.
#
# The kernel grants a read lease only if nobody has the file open for writing, by any of its names, or has mapped it
# writable. Programs that only read lose nothing and do not count. If there are no leases (on some file systems, and for
# files of other users), `/proc` shows the open files of the programs that we may examine, and the locks of all others.

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Global names are quicker than attributes: each function is called once for every path that is swapped.
_open, _close, _fstat, _control = os.open, os.close, os.fstat, fcntl.fcntl
_SET_SIGNAL, _SET_LEASE, _FOR_READING = fcntl.F_SETSIG, fcntl.F_SETLEASE, fcntl.F_RDLCK
_GONE_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_SIGURG = 23  # ignored by default; by default a broken lease sends SIGIO, which would kill us
_LOCKS = ("POSIX", "FLOCK", "OFDLCK")
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3")  # they also refuse leases for other reasons


def find_files_in_use(
    changes: Sequence[c.Change], roots: Sequence[str], *, swaps_ask: bool = False
) -> dict[tuple[int, str], str]:
    """Return the files that applied changes replace or remove while programs write them, with a text naming these.

    If a database's journal is changed, the database itself is checked, too: both together are one state. `swaps_ask`
    says that each swap checks for itself, so modified files are left out here.
    """
    texts: dict[tuple[int, str], str] = {}
    for number, root in enumerate(roots):
        paths: list[str] = []
        for change in changes:
            if change.root == number and change.verdict == c.APPLIED:
                before, path = change.before, change.path
                if before is not None and before.kind == c.FILE and not (swaps_ask and change.change == c.MODIFIED):
                    paths.append(path)
                if path.endswith(JOURNALS):
                    paths.append(database_of(path))
        if not paths:
            continue
        with Closing(open_top(root)) as top:
            texts.update(((number, path), programs) for path, programs in files_open_for_writing(top, paths).items())
    return texts


def stat_unless_written(directory: int, name: bytes) -> os.stat_result | None:
    """Return a file's status, or None if no lease is granted: then a program may have it open for writing."""
    file = -1
    try:
        file = _open(name, _READING, dir_fd=directory)
        _control(file, _SET_SIGNAL, _SIGURG)
        _control(file, _SET_LEASE, _FOR_READING)  # given back when it is closed
        return _fstat(file)
    except OSError:
        return None
    finally:
        if file >= 0:
            _close(file)


def files_open_for_writing(top: int, paths: Iterable[str]) -> dict[str, str]:
    """Return the paths below a directory that programs have open for writing, with a text that names the programs."""
    in_use: list[str] = []
    unclear: list[str] = []
    last_parent, directory = None, -1
    with DirectoryCache(top) as parents:
        for path in paths:
            parent, _, name = path.rpartition("/")
            try:
                if parent != last_parent:
                    directory, last_parent = parents.get(parent), parent
                with Closing(_open(name, _READING, dir_fd=directory)) as file:
                    _control(file, _SET_SIGNAL, _SIGURG)
                    _control(file, _SET_LEASE, _FOR_READING)  # given back when it is closed
            except BlockingIOError:
                in_use.append(path)
            except OSError as error:
                if error.errno not in _GONE_ERRNOS:
                    unclear.append(path)
        if not in_use and not unclear:
            return {}
        if in_use and file_system_kind(f"/proc/self/fd/{top}") in _NETWORK_FILE_SYSTEMS:
            in_use, unclear = [], in_use + unclear
        files = {path: _file_id(parents, path) for path in (*in_use, *unclear)}
        locked = _programs_with_locks(parents, unclear) if unclear else {}
    writers = _programs_with_open_files({split(path)[1] for path in files})
    programs_by_path = locked | {path: writers[identity] for path, identity in files.items() if identity in writers}
    in_use += [path for path in unclear if path in programs_by_path]
    return {path: _describe(programs_by_path.get(path, {})) for path in in_use}


def _file_id(parents: DirectoryCache, path: str) -> tuple[int, int]:
    parent, name = split(path)
    try:
        status = stat_entry(parents.get(parent), name)
    except OSError:
        status = None  # its directory is closed to us: the swap will report that
    return (0, 0) if status is None else (status.st_dev, status.st_ino)


def _programs_with_open_files(names: set[str]) -> dict[tuple[int, int], Programs]:
    """Return the processes that have files of these names open for writing, as far as we may examine them.

    Only descriptors of these names are examined: a stat may hang if the server of a file system is gone.
    """
    writers: dict[tuple[int, int], Programs] = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            descriptors = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue  # another user's, or gone
        for number in descriptors:
            file = f"/proc/{process}/fd/{number}"
            try:
                if split(os.readlink(file))[1] not in names or not os.lstat(file).st_mode & 0o200:
                    continue
                status = os.stat(file)
            except OSError:
                continue  # closed meanwhile
            if program := _program_name(process):  # otherwise it has ended
                writers.setdefault((status.st_dev, status.st_ino), {})[process] = program
    return writers


def _programs_with_locks(parents: DirectoryCache, paths: Sequence[str]) -> dict[str, Programs]:
    """Return the paths that a process of any user has locked, or whose journal it has locked.

    A database is locked while it is written.
    """
    lockers: dict[tuple[int, int], Programs] = {}
    with open("/proc/locks", "rb") as table:
        for line in table:
            _, kind, *_, process, place, _, _ = line.decode().split()
            if kind not in _LOCKS or process == str(os.getpid()):
                continue
            major, minor, inode = place.split(":")
            programs = lockers.setdefault((os.makedev(int(major, 16), int(minor, 16)), int(inode)), {})
            if program := _program_name(process):  # "" if several processes share the lock, or if we can't see it
                programs[process] = program
    return {
        path: lockers[identity]
        for path in paths
        for journal in ("", *JOURNALS)
        if (identity := _file_id(parents, f"{path}{journal}")) in lockers
    }


def _program_name(process: str) -> str:
    return printable(os.fsdecode(libc.read(f"/proc/{process}/comm").rstrip(b"\n")))


def _describe(programs: Programs) -> str:
    if not programs:
        return "open in another program"
    (process, name), *others = programs.items()
    more = f", and {len(others)} more" if others else ""
    return f"open in another program ({name}, pid {process}{more})"
