"""Tell which files of a project other programs have open for writing: swapped away, their next write would be lost.

A read lease is granted only where nobody has the file open for writing, by whatever name, mapped memory included; who
only reads loses nothing and does not count. Where there are no leases (some file systems, other people's files),
`/proc` tells of the programs that we may look at.
"""

from __future__ import annotations

import errno
import fcntl
import os

from fumehood.core import changes as c
from fumehood.core.judge import JOURNALS, database
from fumehood.core.report import printable
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import Parents, look, open_top, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# By names of their own, for each is called once for each path that goes.
_open, _close, _fstat, _control = os.open, os.close, os.fstat, fcntl.fcntl
_SET_SIGNAL, _SET_LEASE, _FOR_READING = fcntl.F_SETSIG, fcntl.F_SETLEASE, fcntl.F_RDLCK
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_SIGURG = 23  # nothing happens by default; a lease that somebody breaks would kill us by SIGIO
_BY_A_SERVER = ("nfs", "nfs4", "cifs", "smb3")  # a lease depends on what their server granted us, not only on programs


def open_elsewhere(
    changes: Sequence[c.Change], roots: Sequence[str], *, swaps_ask: bool = False
) -> dict[tuple[int, str], str]:
    """Return the files that applied changes take out of the project and that programs write, with those in words.

    For a database's journal, its database is asked for too: the two are one state. Where plain swaps ask by
    themselves, what is modified is left out.
    """
    busy: dict[tuple[int, str], str] = {}
    for number, root in enumerate(roots):
        mine = (change for change in changes if change.root == number)
        paths = list(_asked_for(mine, swaps_ask=swaps_ask))
        if not paths:
            continue
        with Closing(open_top(root)) as top:
            busy.update(((number, path), programs) for path, programs in written(top, paths).items())
    return busy


def _asked_for(changes: Iterable[c.Change], *, swaps_ask: bool) -> Iterator[str]:
    for change in changes:
        if change.verdict == c.APPLIED:
            before, path = change.before, change.path
            if before is not None and before.kind == c.FILE and not (swaps_ask and change.change == c.MODIFIED):
                yield path
            if path.endswith(JOURNALS):
                yield database(path)


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
        if refused and _is_by_a_server(top):
            refused, undecided = [], refused + undecided
        files = {path: _identity(parents, path) for path in (*refused, *undecided)}
    writers = _writers({split(path)[1] for path in files})
    named = {path: writers[identity] for path, identity in files.items() if identity in writers}
    return {path: _in_words(named.get(path, [])) for path in (*refused, *(each for each in undecided if each in named))}


def _identity(parents: Parents, path: str) -> tuple[int, int]:
    parent, name = split(path)
    try:
        status = look(parents.of(parent), name)
    except OSError:
        status = None  # in a directory that is closed to us: the swap says more
    return (0, 0) if status is None else (status.st_dev, status.st_ino)


def _is_by_a_server(top: int) -> bool:
    """Tell whether a directory lies on a file system where a lease is refused for other reasons too."""
    from fumehood.linux.staging import mount_of

    mount = mount_of(top)
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            fields = line.split(b" ")
            if fields[0] == mount:
                return os.fsdecode(fields[fields.index(b"-") + 1]) in _BY_A_SERVER
    return False


def _writers(names: set[str]) -> dict[tuple[int, int], list[tuple[str, str]]]:
    """Return who has files of these names open for writing, of the processes that we may look at.

    Only what bears one of the names is looked at: a stat may hang where a file system's server is gone.
    """
    writers: dict[tuple[int, int], list[tuple[str, str]]] = {}
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
                with open(f"/proc/{process}/comm", "rb") as name:
                    program = printable(os.fsdecode(name.read().rstrip(b"\n")))
            except OSError:
                continue  # closed meanwhile
            programs = writers.setdefault((status.st_dev, status.st_ino), [])
            if (program, process) not in programs:
                programs.append((program, process))
    return writers


def _in_words(programs: Sequence[tuple[str, str]]) -> str:
    if not programs:
        return "open in another program"
    (name, process), *others = programs
    more = f", and {len(others)} more" if others else ""
    return f"open in another program ({name}, pid {process}{more})"
