"""Swap entries, and what is seen to before: one file system, inodes of their own, and nobody who writes them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from fumehood.core import changes as c
from fumehood.core.changes import MKDIR, PUT, RMDIR, SWAP, TAKE, Step
from fumehood.core.judge import JOURNALS, database
from fumehood.core.report import printable
from fumehood.linux import libc
from fumehood.linux.copying import Links, copy_directory, copy_entry, copy_file, copy_tree, is_linked
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.namespaces import file_system
from fumehood.linux.nofollow import (
    PATH_ONLY,
    Loosened,
    Parents,
    is_whiteout,
    look,
    make_parents,
    open_below,
    open_top,
    remove_tree,
    split,
    stamp_of,
    walk,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Programs = dict[str, str]  # by their process numbers


# ---- Bring layers and project onto one file system for the time of a swap, where they are on two.
#
# New versions are copied into a directory at the top of the root, swapped from there like any layer, and
# what comes out is copied home into the layer before the directory goes. Nothing is removed from either
# side before its copy is whole.

HOME, SETTLED = "home", "settled"  # beside the layer: what came out of the project, and what is left of that
_HOMECOMING = (SWAP, PUT, TAKE, RMDIR)


def can_rename(first: int, second: int) -> bool:
    """Return True if entries of two directories can be renamed into each other.

    One file system is not enough: a mount of a part of it, as containers get their volumes, is apart too.
    """
    return os.fstat(first).st_dev == os.fstat(second).st_dev and mount_of(first) == mount_of(second)


def mount_of(directory: int) -> bytes:
    """Return the number of the mount that a directory was opened on."""
    lines = libc.read(f"/proc/self/fdinfo/{directory}").split(b"\n")
    return next(line for line in lines if line.startswith(b"mnt_id:")).split()[1]


class Staging:
    """A directory at the top of one root that stands in for its layer."""

    def __init__(self, upper: str, live: int, run: str) -> None:
        self._upper = upper
        self._live = live
        self._name = f".fumehood-{run}"
        self._stamps: list[tuple[c.Change, c.Stamp]] = []  # of what lies in the layer
        self.directory = -1

    def make(self) -> None:
        """Make the directory, empty."""
        with Loosened(self._live) as loosened:
            loosened.loosen("")
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
        """Copy in what will be put into the project, and let the changes name the copies."""
        with (
            Closing(open_top(self._upper)) as layer,
            Loosened(layer) as loosened,
            Parents(self.directory) as target,
            Links(self.directory) as links,
        ):
            for step in steps:
                if step.act in (SWAP, PUT, TAKE, MKDIR):
                    make_parents(target, step.parent)
                if step.act in (SWAP, PUT, MKDIR):
                    there = target.of(step.parent)
                    with Closing(loosened.reach(step.parent, PATH_ONLY)) as source:
                        if step.act != MKDIR:
                            copy_entry(source, step.name, there, step.name, links, step.change.path)
                        elif look(source, step.name) is not None:
                            os.mkdir(step.name, 0o700, dir_fd=there)
                            copy_directory(source, there, step.name)
        # These are what will be in the project, save for directories made there: the changes name them.
        copies = dict(walk(self.directory, ""))
        apart = {step.change.path for step in steps if step.act == MKDIR}
        moved = {step.change.path for step in steps if step.act in (SWAP, PUT)}
        for change in changes:
            if change.verdict != c.APPLIED or change.after is None or change.path in apart:
                continue
            copy = copies.get(change.path)
            if copy is not None and (change.within is not None or change.path in moved):
                self._stamps.append((change, change.after))
                change.after = stamp_of(copy, change.after.meaning)

    def forget_copies(self) -> None:
        """Let changes name what lies in the layer again: not every file system gives a copy the same mode or time."""
        for change, stamp in self._stamps:
            change.after = stamp

    def copy_home(self) -> None:
        """Copy what came out of the project to beside the layer, which stays as it is."""
        with Closing(open_top(os.path.dirname(self._upper))) as above:
            remove_tree(above, HOME)
            copy_tree(self._live, self._name, above, HOME)

    def settle_home(self, steps: Sequence[Step]) -> None:
        """Put those copies into the layer, in place of what went into the project; may be repeated.

        From here on there is only a forward: it is done again until it succeeds.
        """
        with Closing(open_top(os.path.dirname(self._upper))) as above:
            if look(above, HOME) is None:
                return  # it was all done, and only then removed
            with (
                Closing(open_below(above, HOME)) as home,
                Closing(open_top(self._upper)) as layer,
                Loosened(layer) as target,
                Loosened(home) as source,
            ):
                opened = None
                for step in steps:
                    if step.act in _HOMECOMING and step.change.verdict == c.APPLIED:
                        if step.parent != opened or step.act == RMDIR:
                            _make_way(layer, target, step.change.path if step.act == RMDIR else step.parent)
                        if step.parent != opened:
                            source.loosen(step.parent)
                            target.loosen(step.parent)
                            make_parents(layer, step.parent)
                            opened = step.parent
                        with Closing(source.as_is(step.parent)) as here, Closing(target.as_is(step.parent)) as there:
                            if step.act == RMDIR:  # the layer's directory stands for the one that was removed
                                make_parents(there, step.name)
                                copy_directory(here, there, step.name)
                                if step.change.before is not None:
                                    os.chmod(step.name, step.change.before.mode, dir_fd=there)
                            else:
                                _move_home(here, there, step)
            # Renamed first: one that is not whole must not be taken for what is to be put into the layer.
            remove_tree(above, SETTLED)
            os.rename(HOME, SETTLED, src_dir_fd=above, dst_dir_fd=above)
            remove_tree(above, SETTLED)

    def close(self, *, remove: bool) -> None:
        """Let go of the directory, and remove it from the project."""
        if self.directory >= 0:
            os.close(self.directory)
        self.directory = -1
        if not remove or look(self._live, self._name) is None:
            return  # where nothing was made, nothing may be writable
        with Loosened(self._live) as loosened:
            loosened.loosen("")
            remove_tree(self._live, self._name)


def _make_way(layer: int, opened: Loosened, path: str) -> None:
    """Remove the mark of a deleted directory, or of one above it, whose parts come home one by one."""
    for each in (*reversed([*c.above(path)]), path):
        parent, name = split(each)
        with Closing(open_below(layer, parent)) as directory:
            status = look(directory, name) if name else None
            if status is not None and is_whiteout(status):
                opened.loosen(parent)
                os.unlink(name, dir_fd=directory)
            if status is None or is_whiteout(status):
                return


def _move_home(here: int, there: int, step: Step) -> None:
    """Put a copy into the layer; where nothing came out of the project, what went in leaves the layer too."""
    name, before = step.name, step.change.before
    came_out = look(here, name)
    if came_out is not None or step.act == PUT:  # else it was done before an interruption
        remove_tree(there, name)
    if came_out is not None:
        if stat.S_ISDIR(came_out.st_mode) and not came_out.st_mode & 0o200:
            # One that is read-only can't be moved: its own `..` is written.
            os.chmod(name, 0o700, dir_fd=here)
        move(here, there, name)
    if before is not None and before.kind == c.DIRECTORY:
        os.chmod(name, before.mode, dir_fd=there)


# ---- Swap what two directories have at a name, or move it without replacing anything.
#
# Both are one call on most file systems. Those of networks, and folders that virtual machines share, often know plain
# renames and links alone: there it takes several, in an order from which `settle_swap` tells what is left to do after a
# death.

ASIDE = ".fumehood-swap"  # in the first directory, while it is done in pieces
_TRIES = 3


def exchange(one: int, other: int, name: str) -> None:
    """Swap the entries of two directories, whatever their kinds."""
    if _is_renamed(one, other, name, libc.RENAME_EXCHANGE):
        return
    kinds = [os.stat(name, dir_fd=each, follow_symlinks=False).st_mode for each in (one, other)]
    if not any(map(stat.S_ISDIR, kinds)) and _is_linked_aside(one, other, name):
        # The name is never absent, and what is replaced has another one.
        try:
            os.rename(name, name, src_dir_fd=one, dst_dir_fd=other)
        except OSError:
            os.unlink(ASIDE, dir_fd=one)
            raise
    else:
        os.rename(name, ASIDE, src_dir_fd=other, dst_dir_fd=one)
        try:
            move(one, other, name)
        except OSError:
            if look(other, name) is None:
                os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=other)
            raise
    os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=one)


def move(source: int, target: int, name: str) -> None:
    """Rename an entry from one directory to another; FileExistsError where something is there."""
    if _is_renamed(source, target, name, libc.RENAME_NOREPLACE):
        return
    is_directory = stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode)
    # A link refuses to replace anything, which a rename does not.
    if not is_directory and is_linked(source, name, target, name):
        try:
            if _have_two_numbers(look(source, name), look(target, name)):
                os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)  # the entry takes its number along
            if look(source, name) is not None:
                os.unlink(name, dir_fd=source)
        except OSError:
            os.unlink(name, dir_fd=target)
            raise
        return
    if look(target, name) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _is_renamed(source: int, target: int, name: str, how: int) -> bool:
    """Do it by one call; return False if the file system has no such call."""
    raw = os.fsencode(name)
    try:
        libc.renameat2(source, raw, target, raw, how)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def settle_swap(one: int, other: int, name: str, is_ours: Callable[[os.stat_result], bool]) -> None:
    """Bring what a death left between two pieces to one side or the other; `is_ours` tells what was on its way."""
    slot, live = look(one, name), look(other, name)
    if slot is not None and live is not None and _is_same(slot, live) and not stat.S_ISDIR(slot.st_mode):
        os.unlink(name, dir_fd=one)
        slot = None
    aside = look(one, ASIDE)
    if aside is None or not is_ours(aside):
        return
    if slot is None:
        os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=one)
    elif live is None:
        os.rename(ASIDE, name, src_dir_fd=one, dst_dir_fd=other)
    elif not stat.S_ISDIR(aside.st_mode):
        os.unlink(ASIDE, dir_fd=one)  # a second name of what is there, or of what somebody has replaced since


def _is_linked_aside(one: int, other: int, name: str) -> bool:
    """Give an entry of the second directory another name in the first; False where it can't have one.

    Where every name has an inode number of its own, as with sshfs, nobody can tell whether it is the same file.
    """
    for _ in range(_TRIES):
        if not is_linked(other, name, one, ASIDE):
            return False
        now, aside = look(other, name), look(one, ASIDE)
        if now is not None and aside is not None and _is_same(now, aside):
            return True
        os.unlink(ASIDE, dir_fd=one)  # somebody has just saved it
    return False


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _have_two_numbers(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    """Return True if two names of one file have inode numbers of their own, as with sshfs."""
    if one is None or other is None or _is_same(one, other):
        return False
    return (one.st_mode, one.st_size, one.st_mtime_ns) == (other.st_mode, other.st_size, other.st_mtime_ns)


# ---- Give files of a layer inodes of their own, where they share one with something that is or stays elsewhere.
#
# All copies are made beside the layer first, and only then put into it by renames: whatever happens, each path
# of the layer is its old or its new self, and what was done in part can be done again.

APART = "apart"  # the directory of copies, beside the layer


class Parting(Closable):
    """One parting of files in a layer; those that shared an inode share the new one.

    `version` names the stamp of a change that tells of the layer's side: before or after.
    """

    def __init__(self, layer: int, loosened: Loosened, version: str) -> None:
        self._loosened = loosened
        self._version = version
        self._above = os.open("..", PATH_ONLY | os.O_CLOEXEC, dir_fd=layer)

    def _stamp(self, change: c.Change) -> c.Stamp:
        stamp: c.Stamp = getattr(change, self._version)
        return stamp

    def copy(self, sharing: Sequence[c.Change]) -> None:
        """Copy each inode once; the layer stays as it is."""
        remove_tree(self._above, APART)
        os.mkdir(APART, 0o700, dir_fd=self._above)
        copied: set[int] = set()
        with Closing(open_below(self._above, APART)) as apart:
            for change in sharing:
                inode = self._stamp(change).inode
                if inode not in copied:
                    parent, name = split(change.path)
                    with Closing(self._loosened.reach(parent)) as there:
                        copy_file(there, name, apart, str(inode))
                    copied.add(inode)

    def place(self, sharing: Sequence[c.Change]) -> None:
        """Put the copies into the layer, and let the changes name them; may be repeated."""
        apart = open_below(self._above, APART) if look(self._above, APART) else -1
        try:
            for change in sharing:
                stamp, (parent, name) = self._stamp(change), split(change.path)
                with Closing(self._loosened.open(parent)) as there:
                    if apart >= 0 and look(apart, str(stamp.inode)) is not None:
                        # By a second name, for the copy may be wanted once more.
                        copy, link = str(stamp.inode), f"{stamp.inode}.link"
                        remove_tree(apart, link)
                        os.link(copy, link, src_dir_fd=apart, dst_dir_fd=apart, follow_symlinks=False)
                        os.rename(link, name, src_dir_fd=apart, dst_dir_fd=there)
                    placed = os.stat(name, dir_fd=there, follow_symlinks=False)
                setattr(change, self._version, stamp_of(placed, stamp.meaning))
        finally:
            if apart >= 0:
                os.close(apart)
        remove_tree(self._above, APART)

    def close(self) -> None:
        """Let go of the directory above the layer."""
        os.close(self._above)


# ---- Files that other programs have open for writing: swapped away, their next write would be lost.
#
# A read lease is granted only where nobody has the file open for writing, by whatever name, mapped memory included; who
# only reads loses nothing and does not count. Where there are no leases (some file systems, other people's files),
# `/proc` tells of the programs that we may look at, and of all others what they have locked.

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# By names of their own, for each is called once for each path that goes.
_open, _close, _fstat, _control = os.open, os.close, os.fstat, fcntl.fcntl
_SET_SIGNAL, _SET_LEASE, _FOR_READING = fcntl.F_SETSIG, fcntl.F_SETLEASE, fcntl.F_RDLCK
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_SIGURG = 23  # nothing happens by default; a lease that somebody breaks would kill us by SIGIO
_LOCKS = ("POSIX", "FLOCK", "OFDLCK")
_BY_A_SERVER = ("nfs", "nfs4", "cifs", "smb3")  # there, a lease is refused for other reasons too


def open_elsewhere(
    changes: Sequence[c.Change], roots: Sequence[str], *, swaps_ask: bool = False
) -> dict[tuple[int, str], str]:
    """Return the files that applied changes take out of the project and that programs write, with those in words.

    For a database's journal, its database is asked for too: the two are one state. Where plain swaps ask by
    themselves, what is modified is left out.
    """
    busy: dict[tuple[int, str], str] = {}
    for number, root in enumerate(roots):
        paths: list[str] = []
        for change in changes:
            if change.root == number and change.verdict == c.APPLIED:
                before, path = change.before, change.path
                if before is not None and before.kind == c.FILE and not (swaps_ask and change.change == c.MODIFIED):
                    paths.append(path)
                if path.endswith(JOURNALS):
                    paths.append(database(path))
        if not paths:
            continue
        with Closing(open_top(root)) as top:
            busy.update(((number, path), programs) for path, programs in written(top, paths).items())
    return busy


def unless_written(directory: int, name: bytes) -> os.stat_result | None:
    """Return what a file is; None where some program has it open for writing, or where a lease does not tell."""
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


def written(top: int, paths: Iterable[str]) -> dict[str, str]:
    """Return those paths below a directory that some program has open for writing, with the programs as far as seen."""
    refused: list[str] = []
    undecided: list[str] = []
    last, directory = None, -1
    with Parents(top) as parents:
        for path in paths:
            parent, _, name = path.rpartition("/")
            try:
                if parent != last:
                    directory, last = parents.of(parent), parent
                with Closing(_open(name, _READING, dir_fd=directory)) as file:
                    _control(file, _SET_SIGNAL, _SIGURG)
                    _control(file, _SET_LEASE, _FOR_READING)  # given back when it is closed
            except BlockingIOError:
                refused.append(path)
            except OSError as error:
                if error.errno not in _GONE:
                    undecided.append(path)
        if not refused and not undecided:
            return {}
        if refused and file_system(f"/proc/self/fd/{top}") in _BY_A_SERVER:
            refused, undecided = [], refused + undecided
        files = {path: _identity(parents, path) for path in (*refused, *undecided)}
        locked = _locked(parents, undecided) if undecided else {}
    writers = _writers({split(path)[1] for path in files})
    named = locked | {path: writers[identity] for path, identity in files.items() if identity in writers}
    return {path: _in_words(named.get(path, {})) for path in (*refused, *(each for each in undecided if each in named))}


def _identity(parents: Parents, path: str) -> tuple[int, int]:
    parent, name = split(path)
    try:
        status = look(parents.of(parent), name)
    except OSError:
        status = None  # in a directory that is closed to us: the swap says more
    return (0, 0) if status is None else (status.st_dev, status.st_ino)


def _writers(names: set[str]) -> dict[tuple[int, int], Programs]:
    """Return who has files of these names open for writing, of the processes that we may look at.

    Only what bears one of the names is looked at: a stat may hang where a file system's server is gone.
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
            if program := _program(process):  # else it has ended
                writers.setdefault((status.st_dev, status.st_ino), {})[process] = program
    return writers


def _locked(parents: Parents, paths: Sequence[str]) -> dict[str, Programs]:
    """Return those paths that somebody, maybe of other people, has locked, or one of their journals.

    A database that is written is locked.
    """
    lockers: dict[tuple[int, int], Programs] = {}
    with open("/proc/locks", "rb") as table:
        for line in table:
            _, kind, *_, process, place, _, _ = line.decode().split()
            if kind not in _LOCKS or process == str(os.getpid()):
                continue
            major, minor, inode = place.split(":")
            programs = lockers.setdefault((os.makedev(int(major, 16), int(minor, 16)), int(inode)), {})
            if program := _program(process):  # else locked by an open file that several share, or by one not in sight
                programs[process] = program
    return {
        path: lockers[identity]
        for path in paths
        for journal in ("", *JOURNALS)
        if (identity := _identity(parents, f"{path}{journal}")) in lockers
    }


def _program(process: str) -> str:
    return printable(os.fsdecode(libc.read(f"/proc/{process}/comm").rstrip(b"\n")))


def _in_words(programs: Programs) -> str:
    if not programs:
        return "open in another program"
    (process, name), *others = programs.items()
    more = f", and {len(others)} more" if others else ""
    return f"open in another program ({name}, pid {process}{more})"
