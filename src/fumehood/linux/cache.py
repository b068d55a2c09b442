"""What was found out once: small files in our cache directory, and whether what they rest on is still so."""

from __future__ import annotations

import _thread
import os
import stat
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHERS = 0o077
_LARGEST = 8 << 20
_SUM = 8  # bytes in front that tell whether the rest is whole


def recalled(path: str) -> bytes | None:
    """Return what was kept with `keep`, or None; a file that is not whole does not count."""
    content = read_own(path) or b""
    return content[_SUM:] if content and content[:_SUM] == _sum(content[_SUM:]) else None


def keep(path: str, content: bytes) -> None:
    """Keep something in a directory that is there; where that can't be done, it only costs time later."""
    write_own(path, _sum(content) + content)


def read_own(path: str) -> bytes | None:
    """Return the content of a small file, or None where it is not ours alone."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        there = os.fstat(file)
        if there.st_uid != os.geteuid() or there.st_mode & _OTHERS or there.st_size > _LARGEST:
            return None
        content = b""
        while piece := os.read(file, 1 << 20):
            content += piece
        return content
    except OSError:
        return None
    finally:
        os.close(file)


def write_own(path: str, content: bytes) -> None:
    """Write a small file in one step, if that can be done."""
    try:
        replace(path, content, f"{path}.{os.getpid()}.{_thread.get_ident()}")
    except OSError:
        return


def replace(path: str, content: bytes, spare: str = "", *, mode: int = 0o600) -> None:
    """Write a file beside its place, and let it take that when it is whole; raises OSError."""
    spare = spare or f"{path}.new"
    file = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)
    os.rename(spare, path)


def forget(directory: str, prefixes: tuple[str, ...], before: float) -> None:
    """Remove what was kept under names that begin so, and was last written before a time."""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(prefixes)]
    except OSError:
        return
    for name in names:
        path = f"{directory}/{name}"
        if os.lstat(path).st_mtime < before:
            os.unlink(path)


def _sum(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content)


# Look things up on the disk, and remember what was seen, so that it can be told whether an answer still holds.
#
# Everything is bounded, and nothing is opened that could keep us waiting: a FIFO among programs, a loop of links.

_HEAD = 256  # bytes of a program
_SETTINGS = 4096  # bytes of a file of settings
_MOST_ENTRIES = 6000  # of one directory
_MOST_HEADS = 500
_MOST_STEPS = 400  # on the way of one path; the kernel follows 40 links
_ABSENT = (0, 0)


def is_current(watched: dict[str, tuple[int, int]]) -> bool:
    """Return True if everything that was looked up is as it was, and what was absent still is."""
    for path, (time, inode) in watched.items():
        try:
            now = os.lstat(path)
        except OSError:
            if inode:
                return False
        else:
            if now.st_ino != inode or (time and now.st_ctime_ns != time):
                return False
    return True


class Lookup:
    """Listings, links and first lines, each read once.

    `watched` has the time of the last change and the inode of each path: no time where only being there counts, and
    neither where nothing was. The time is that of the inode, so a new mode is seen too, and nobody can set it back.
    """

    def __init__(self, real: Sequence[str] = ()) -> None:
        self._real = [f"{folder}/" for folder in real]  # known to have no link on the way
        self.watched: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str | None] = {}
        self._listings: dict[str, dict[str, str]] = {}
        self._ways: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._heads_left = _MOST_HEADS

    def _watch(self, path: str, now: os.stat_result) -> None:
        self.watched[path] = (now.st_ctime_ns, now.st_ino)

    def exists(self, path: str) -> bool:
        """Return True if something is there, whatever it is."""
        if path not in self.watched:
            try:
                self.watched[path] = (0, os.lstat(path).st_ino)
            except OSError:
                self.watched[path] = _ABSENT
        return self.watched[path] != _ABSENT

    def mode(self, path: str) -> int:
        """Return what kind of file is there and who may use it, without following a link; 0 where nothing is."""
        try:
            now = os.lstat(path)
        except OSError:
            self.watched[path] = _ABSENT
            return 0
        self._watch(path, now)
        return now.st_mode

    def listing(self, path: str) -> dict[str, str]:
        """Return a directory's names with `d`, `f`, `l` or nothing for each one's kind; of anything else, none."""
        names = self._listings.get(path)
        if names is None:
            names = self._listings[path] = {}
            if stat.S_ISDIR(self.mode(path)):
                try:
                    with os.scandir(path) as entries:
                        for entry in entries:
                            names[entry.name] = _kind(entry)
                            if len(names) >= _MOST_ENTRIES:
                                break
                except OSError:  # not for us to read: nothing in it is shown
                    names.clear()
        return names

    def link(self, path: str) -> str | None:
        """Return where a link points, "" for what is not a link, None where nothing is."""
        if path not in self._links:
            target: str | None = ""
            try:
                now = os.lstat(path)
                if stat.S_ISLNK(now.st_mode):
                    if path.rpartition("/")[0] not in self._listings:  # else a new link is seen by the directory's time
                        self._watch(path, now)
                    target = os.readlink(path)
            except OSError:
                self.watched[path] = _ABSENT
                target = None
            self._links[path] = target
        return self._links[path]

    def resolve(self, path: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return where a path leads, "" if nowhere, and the links on the way with their targets."""
        if path not in self._ways:
            self._ways[path] = self._resolve(path)
        return self._ways[path]

    def _resolve(self, path: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        if "\0" in path:  # read from a file, then
            return "", ()
        real = next((folder for folder in self._real if path.startswith(folder)), "/")
        done, todo = real[:-1], path[len(real) :].split("/")[::-1]
        links: dict[str, str] = {}
        for _ in range(_MOST_STEPS):
            if not todo:
                return done or "/", tuple(links.items())
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{name}"
            target = self.link(here)
            if target is None:
                break
            if not target:
                done = here
                continue
            links[here] = target
            if target.startswith("/"):
                done = ""
            todo += target.split("/")[::-1]
        return "", ()

    def head(self, path: str) -> bytes:
        """Return how a program begins; nothing, if it is not a regular file, not executable, or one too many."""
        if self._heads_left <= 0:
            return b""
        self._heads_left -= 1
        mode = self.mode(path)
        if not stat.S_ISREG(mode) or not mode & 0o111:
            return b""
        try:
            return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), _HEAD)
        except OSError:
            return b""

    def settings(self, folder: str, name: str) -> str:
        """Return what a small file in a directory says; a link is not followed, for a command may have put it there."""
        from fumehood.linux.nofollow import open_below, open_top  # not loaded where a small file is read

        path = f"{folder}/{name}"
        if not stat.S_ISREG(self.mode(path)):
            return ""
        try:
            top = open_top(folder)
        except OSError:
            return ""
        try:
            fd = open_below(top, name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return ""
        finally:
            os.close(top)
        return os.fsdecode(_read(fd, _SETTINGS))


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "l"
    if entry.is_dir(follow_symlinks=False):
        return "d"
    return "f" if entry.is_file(follow_symlinks=False) else ""


def _read(fd: int, most: int) -> bytes:
    """Read the beginning of a regular file and close it; of anything else, nothing."""
    try:
        return os.read(fd, most) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
