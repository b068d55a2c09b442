"""Modes changed for a while, noted on disk first, so that they are given back even if this process dies.

Each note is a file, locked by the process that wrote it for as long as it lives; it goes when the modes are back.
"""

from __future__ import annotations

import errno
import os
import stat

# Where notes are kept; nothing is noted while this is empty.
directory = ""

_NEW = "."  # begins the name of a note that is not locked yet, so that nothing can be in it
_LONGEST = 3000  # bytes of path given to the kernel at once
_ITSELF = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Note:
    """The directories and files that one piece of work has opened up."""

    def __init__(self) -> None:
        self._path = ""
        self._file = -1

    def add(self, fd: int, status: os.stat_result, below: str = "") -> None:
        """Write down the mode that something has now, before it is changed: what `fd` names, or a path below that."""
        if not directory:
            return
        if self._file < 0:
            self._begin()
        path = _place(fd) + (b"/" + os.fsencode(below) if below else b"")
        entry = b"%d %d %o %s\0" % (status.st_dev, status.st_ino, stat.S_IMODE(status.st_mode), path)
        os.write(self._file, entry)
        os.fdatasync(self._file)

    def _begin(self) -> None:
        import fcntl

        os.makedirs(directory, 0o700, exist_ok=True)
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        new, path = f"{directory}/{_NEW}{name}", f"{directory}/{name}"
        file = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(new, path)
        except OSError:
            os.close(file)
            raise
        self._path, self._file = path, file

    def end(self) -> None:
        """Remove the note: all modes are back."""
        if self._file >= 0:
            os.unlink(self._path)
        self.leave()

    def leave(self) -> None:
        """Leave the note, if there still is one, to whoever looks next: some mode could not be given back."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _place(fd: int) -> bytes:
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


def notes(where: str) -> list[str]:
    """Return the names of all notes, those of living processes too."""
    try:
        return os.listdir(where)
    except FileNotFoundError:
        return []


def give_back(where: str) -> None:
    """Give back the modes that dead processes had changed, and those that could not be given back at first.

    A note of which that fails again is kept. Whoever moves something has this done before, for a note names places.
    """
    import fcntl

    left: dict[str, int] = {}
    kept: set[str] = set()
    entries: list[tuple[str, bytes]] = []
    try:
        for path in [f"{where}/{name}" for name in notes(where)]:
            try:
                left[path] = file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file), os.lstat(path)):
                    kept.add(path)  # settled by another process, and a new one has its name
                    continue
                with open(file, "rb", closefd=False) as reading:
                    entries += [(path, entry) for entry in reading.read().split(b"\0")[:-1]]
            except OSError:
                kept.add(path)  # locked by a living process, settled by another one, or can't be read
        # The deepest first, of all notes together: a directory above may close the way.
        for path, entry in sorted(entries, key=lambda each: -len(each[1].split(b" ", 3)[3])):
            device, inode, mode, place = entry.split(b" ", 3)
            try:
                _set(place, (int(device), int(inode)), int(mode, 8))
            except OSError:
                kept.add(path)
        for path in left.keys() - kept:
            try:
                os.unlink(path)
            except OSError:
                continue  # the next one removes it
    finally:
        for file in left.values():
            os.close(file)


def _set(place: bytes, identity: tuple[int, int], mode: int) -> None:
    """Set a mode, if it is still there, and still as it was opened up."""
    try:
        fd = _opened(place)
    except OSError:
        return
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == identity and stat.S_IMODE(status.st_mode) == mode | 0o700:
            os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def _opened(place: bytes) -> int:
    """Open what lies at a path, which may be longer than the kernel takes at once."""
    fd = os.open("/", _ITSELF)
    while place:
        step, place = place, b""
        if len(step) >= _LONGEST:
            cut = step.rindex(b"/", 0, _LONGEST)
            step, place = step[:cut], step[cut + 1 :]
        above = fd
        try:
            fd = os.open(step.lstrip(b"/"), _ITSELF, dir_fd=above)
        finally:
            os.close(above)
    return fd
