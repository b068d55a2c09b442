"""Cached answers: small files in our cache directory, and snapshots that tell whether an answer is still valid."""

from __future__ import annotations

import _thread
import marshal
import os
import stat
import time
from binascii import crc32

from fumehood.linux.libc import Closing, link_target, read_all
from fumehood.linux.nofollow import open_below, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

_OTHERS = 0o077
_LARGEST = 8 << 20
_PLAINLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SUM = 8  # bytes of the checksum in front
_FORMAT = 2  # part of the checksum, so that a file of another format does not match


def load(path: str, question: Any = None) -> Any:
    """Return the saved answer to a question, or None; the file must be complete, ours, and closed to others.

    With `sudo` the cache may lie in somebody else's home: what others wrote is not used.
    """
    try:
        with Closing(os.open(path, _PLAINLY)) as file:
            there = os.fstat(file)
            if there.st_uid != os.geteuid() or there.st_mode & _OTHERS or there.st_size > _LARGEST:
                return None
            content = read_all(file)
    except OSError:
        return None
    if not content or content[:_SUM] != _sum(content[_SUM:]):
        return None
    asked, answer = marshal.loads(content[_SUM:])  # noqa: S302 - our own, and nobody else's
    return answer if asked == question else None


def save(path: str, answer: Any, question: Any = None) -> None:
    """Save an answer made of plain values; a failure is ignored, because it only costs time later."""
    content = marshal.dumps((question, answer), 4)  # a form that every Python reads
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        replace_file(path, _sum(content) + content, by_many=True)
    except OSError:
        return


def plain_file(path: str, top: int | None = None, most: int = 1 << 16) -> bytes | None:
    """Return a regular file's content, at most `most` bytes; None if there is no regular file or it can't be read."""
    try:
        with Closing(os.open(path, _PLAINLY) if top is None else open_below(top, path, _PLAINLY)) as file:
            status = os.fstat(file)
            # Ask for no more than the file's size if that is known: a large buffer costs memory.
            size = min(most, status.st_size + 1) if status.st_size else most
            return os.read(file, size) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None


def replace_file(path: str, content: bytes, *, by_many: bool = False, mode: int = 0o600) -> None:
    """Write a file beside its place and rename it there when it is complete; raises OSError.

    `by_many` says that several processes may do so at once: each then uses a temporary name of its own.
    """
    spare = f"{path}.new-{os.getpid()}-{_thread.get_ident()}" if by_many else f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with Closing(os.open(spare, flags, mode)) as file:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
    os.rename(spare, path)


def remove_older(directory: str, prefixes: tuple[str, ...], before: float) -> None:
    """Remove files whose names have one of these prefixes and that were last written before a time."""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(prefixes)]
    except OSError:
        return
    for name in names:
        path = f"{directory}/{name}"
        try:
            if os.lstat(path).st_mtime < before:
                os.unlink(path)
        except FileNotFoundError:
            continue  # just written by another process, which gave it its name


def _sum(content: bytes) -> bytes:
    return b"%08x" % crc32(content, _FORMAT)


# Look things up on the disk and remember what was seen, so that later it can be compared with the current state.
#
# Everything is bounded, and nothing is opened that could block: a FIFO among programs, a loop of links.

_HEAD = 256  # bytes of a program
_SETTINGS = 4096  # bytes of a file of settings
_MOST_ENTRIES = 6000  # of one directory
_MOST_HEADS = 500
_MOST_STEPS = 400  # on the way of one path; the kernel follows 40 links
TICK_NS = 50_000_000  # file times are at least this precise, except on old kernels
NEVER = 1  # used instead of a time: no file has this one


class Snapshot:
    """The state of what was looked up on the disk; `is_current` compares it with the state now.

    `files` has files that were read: the time of the last change of the inode, which nobody can set back, and the inode
    number. `inodes` has paths that only had to exist: the inode number, or 0 if there was nothing. `links` has the
    targets of links, "" for anything else. `listings` has a directory's inode number and a checksum of its names. All
    but the files are looked at again only if the directory around them, in `folders`, has changed.
    """

    def __init__(self, *parts: dict[str, Any]) -> None:
        self.parts = parts or ({}, {}, {}, {}, {})
        self.files: dict[str, tuple[int, int]]
        self.inodes: dict[str, int]
        self.links: dict[str, str]
        self.listings: dict[str, tuple[int, int]]
        self.folders: dict[str, tuple[int, int]]
        self.files, self.inodes, self.links, self.listings, self.folders = self.parts

    def __len__(self) -> int:
        """The number of paths that `is_current` always looks at."""
        return len(self.files) + len(self.folders)

    @property
    def sum(self) -> int:
        """A number that differs if something else was seen."""
        return hash(tuple([tuple(part.items()) for part in self.parts[:4]]))

    @property
    def is_settled(self) -> bool:
        """Whether all files are old enough: a second change just after the first could have the same time."""
        return all(changed != NEVER for changed, _ in self.files.values())

    def add(self, other: Snapshot) -> None:
        """Add what another snapshot, made after this one, has seen."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.update({path: seen for path, seen in theirs.items() if path not in mine})

    def file(self, path: str) -> os.stat_result | None:
        """Note the state of a file before it is read."""
        try:
            status = os.lstat(path)
        except OSError:
            self.exists(path)
            return None
        self.files[path] = settled(change_state(status))
        return status

    def exists(self, path: str) -> bool:
        """Return True if there is an entry of any kind."""
        if path not in self.inodes:
            self._look_around(path)
            self.inodes[path] = _inode(path)
        return self.inodes[path] != 0

    def leads(self, path: str) -> str:
        """Return the target of a link, "" for anything else, whose changes are not noticed."""
        if path not in self.links:
            self._look_around(path)
            self.links[path] = link_target(path)
        return self.links[path]

    def listing(self, path: str) -> dict[str, str]:
        """Return a directory's names with `d`, `f`, `l` or nothing for each one's kind; of anything else, none."""
        self.folders.setdefault(path, settled(_folder(path)))
        names = _names(path)
        self.listings[path] = _inode(path), _sum_of(names)
        return names

    def _look_around(self, path: str) -> None:
        """Note the time of the directory around a path, before anything is looked at in there."""
        folder = path.rpartition("/")[0] or "/"
        if folder not in self.folders:
            self.folders[folder] = settled(_folder(folder))

    def is_current(self) -> bool:
        """Return True if nothing has changed, and what was absent still is."""
        for path, seen in self.files.items():
            try:
                if change_state(os.lstat(path)) != seen:
                    return False
            except OSError:
                return False
        changed = {}
        for folder, seen in self.folders.items():
            now = _folder(folder)
            if now != seen:
                changed[folder] = settled(now)
        if changed and not self._is_same_in(changed):
            return False
        self.folders.update(changed)
        return True

    def _is_same_in(self, folders: Iterable[str]) -> bool:
        for folder in folders:
            if folder in self.listings and self.listings[folder] != (_inode(folder), _sum_of(_names(folder))):
                return False
        tops = {folder.rstrip("/") for folder in folders}
        for part, now in ((self.inodes, _inode), (self.links, link_target)):
            for path, seen in part.items():
                if path.rpartition("/")[0] in tops and seen != now(path):
                    return False
        return True


def change_state(status: os.stat_result) -> tuple[int, int]:
    """Return what is compared to notice a change: the time of the inode's last one, and its number."""
    return status.st_ctime_ns, status.st_ino


def settled(state: tuple[int, int]) -> tuple[int, int]:
    """Return a state for comparison; if the file changed just now, one that never matches.

    A second change could have the same time.
    """
    return (NEVER, 0) if abs(time.time_ns() - state[0]) < TICK_NS else state


def _folder(path: str) -> tuple[int, int]:
    try:
        return change_state(os.stat(path))
    except OSError:
        return (0, 0)


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def _names(path: str) -> dict[str, str]:
    names: dict[str, str] = {}
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            with os.scandir(path) as entries:
                for entry in entries:
                    names[entry.name] = _kind(entry)
                    if len(names) >= _MOST_ENTRIES:
                        break
    except OSError:  # gone, or not for us to read: nothing in it is shown
        names.clear()
    return names


def _sum_of(names: dict[str, str]) -> int:
    return crc32("/".join(f"{name}/{names[name]}" for name in sorted(names)).encode(errors="surrogateescape"))


class Lookup:
    """Listings, links and first lines, each read once."""

    def __init__(self, real: Sequence[str] = ()) -> None:
        self._real = [f"{folder}/" for folder in real]  # paths that are known to contain no link
        self.watched = Snapshot()
        self.exists = self.watched.exists
        self._links: dict[str, str | None] = {}
        self._listings: dict[str, dict[str, str]] = {}
        self._ways: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._heads_left = _MOST_HEADS

    def mode(self, path: str) -> int:
        """Return kind and permissions of a file without following a link, 0 if there is none."""
        status = self.watched.file(path)
        return 0 if status is None else status.st_mode

    def listing(self, path: str) -> dict[str, str]:
        """Return a directory's names with `d`, `f`, `l` or nothing for each one's kind; of anything else, none."""
        if path not in self._listings:
            self._listings[path] = self.watched.listing(path)
        return self._listings[path]

    def link(self, path: str) -> str | None:
        """Return the target of a link, "" for anything else, None if there is nothing."""
        if path not in self._links:
            leads_to: str | None = ""
            try:
                if stat.S_ISLNK(os.lstat(path).st_mode):
                    leads_to = self.watched.leads(path)
            except OSError:
                leads_to = "" if self.exists(path) else None
            self._links[path] = leads_to
        return self._links[path]

    def resolve(self, path: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return the real path, "" if there is none, and the links on the way with their targets."""
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
            leads_to = self.link(here)
            if leads_to is None:
                break
            if not leads_to:
                done = here
                continue
            links[here] = leads_to
            if leads_to.startswith("/"):
                done = ""
            todo += leads_to.split("/")[::-1]
        return "", ()

    def head(self, path: str) -> bytes:
        """Return the first bytes of a program; b"" if it is not an executable file, or too many were read already."""
        if self._heads_left <= 0:
            return b""
        self._heads_left -= 1
        mode = self.mode(path)
        if not stat.S_ISREG(mode) or not mode & 0o111:
            return b""
        return plain_file(path, most=_HEAD) or b""

    def settings(self, folder: str, name: str) -> str:
        """Return the text of a small file in a directory; follows no link, because a command may have made it."""
        if not stat.S_ISREG(self.mode(f"{folder}/{name}")):
            return ""
        try:
            with Closing(open_top(folder)) as top:
                return os.fsdecode(plain_file(name, top, _SETTINGS) or b"")
        except OSError:
            return ""


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "l"
    if entry.is_dir(follow_symlinks=False):
        return "d"
    return "f" if entry.is_file(follow_symlinks=False) else ""


# Following a path by its text, name by name, as the kernel would.

_MOST_LINKS = 40  # on the way along one path: the kernel's own limit


def follow_path(path: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield each place on the way along an absolute path, whether it is a link, and the names that follow it.

    The last place is the end of the path, which need not exist. `..` goes up from the target of a link.
    """
    done, names, links = "/", path.split("/"), 0
    while names and links <= _MOST_LINKS:
        name = names.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            done = os.path.dirname(done)
            yield done, False, names
            continue
        place = os.path.join(done, name)
        try:
            target = os.readlink(place)
        except (OSError, ValueError):  # none, or a NUL in it
            target = ""
        yield place, bool(target), names
        if target:
            links += 1
            done = "/" if target.startswith("/") else done
            names = target.split("/") + names
        else:
            done = place


def resolve_links(path: str) -> list[str]:
    """Return the links on the way along a path, in order, and then its end."""
    links, end = [], "/"
    for place, is_link, _ in follow_path(path):
        if is_link:
            links.append(place)
        else:
            end = place
    return [*links, end]


def expand_home(path: str, home: str) -> str | None:
    """Return a path as git reads it in a setting, with `~` and `~user` replaced; None where it can't be."""
    if path.startswith("%(prefix)/"):
        return None
    if not path.startswith("~"):
        return path
    user, slash, rest = path[1:].partition("/")
    if user:
        import pwd

        try:
            home = pwd.getpwnam(user).pw_dir
        except (KeyError, ValueError):
            return None
    return home + slash + rest
