"""Tell whether two versions of a file mean the same: by a digest of the content or, for a git index, of its entries.

An index also has times and sizes of files, a cache that any `git status` rewrites.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.core import changes as c
from fumehood.linux.libc import Closing, listxattr
from fumehood.linux.nofollow import LISTING, PATH_ONLY, DirectoryCache, open_below, open_top, stamp_of, stat_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

LARGEST = 16 << 20  # bytes; to parse a larger index would take noticeably long, so it is compared by its bytes

_HEADER, _EXTENSION = 12, 8  # bytes: a name and two numbers, a name and one
_HASHES = (("sha1", 20), ("sha256", 32))
_PLAIN, _COMPRESSED = 2, 4
_VERSIONS = (_PLAIN, 3, _COMPRESSED)
_MODE_AT, _OBJECT_AT = 24, 40  # in an entry; around the mode lie times, device, inode, owner and size
_STAGES = 0x30  # in the first byte of the flags: which side of a conflict it is
_EXTENDED = 0x40  # in the first byte of the flags: there are two bytes more of them
_LONGEST_PATH = 4096  # the kernel's limit; without one, a crafted file could make us build far longer paths
_LONGEST_PATHS = 4 * LARGEST  # of all paths of an index with compressed paths together
_LONGEST_REST = 1 << 20  # bytes after the entries; they are searched one by one, which takes a second
_TREE_CACHE = b"TREE"  # the names of trees whose entries have not changed since
_RESOLVE_UNDO = b"REUC"  # the sides of resolved conflicts, which nobody can make again


class _NotUnderstood(Exception):
    """The file is not an index, or not all of its entries are in it."""


class _ParsedIndex:
    """A parsed index; the constructor raises _NotUnderstood, ValueError or IndexError for anything else.

    `entries_meaning` has for each entry the bytes that git acts on: mode, object, flags and path. The entries begin at
    `starts` in `body`, and the last one ends at `end`. `size` is the length of an object's name.
    """

    def __init__(self, body: bytes, size: int) -> None:
        self.body, self.size = body, size
        self.version, count = int.from_bytes(body[4:8], "big"), int.from_bytes(body[8:_HEADER], "big")
        if not body.startswith(b"DIRC") or self.version not in _VERSIONS:
            raise _NotUnderstood
        self.entries_meaning: list[bytes] = []
        self.starts: list[int] = []
        at, path, flags_at, left = _HEADER, b"", _OBJECT_AT + size, _LONGEST_PATHS
        for _ in range(count):
            start = at
            at = start + flags_at + 2
            if body[start + flags_at] & _EXTENDED:
                if self.version == _PLAIN:
                    raise _NotUnderstood
                at += 2
            if self.version == _COMPRESSED:
                flagged = at
                path, at = _read_path(path, body, at)
                left -= len(path)
                if left < 0:
                    raise _NotUnderstood
                entries_meaning = body[start + _OBJECT_AT : flagged] + path + b"\0"
            else:
                end = body.index(b"\0", at)
                at = start + ((end - start + 8) & ~7)
                entries_meaning = body[start + _OBJECT_AT : end + 1]
            self.starts.append(start)
            self.entries_meaning.append(body[start + _MODE_AT : start + _MODE_AT + 4] + entries_meaning)
        self.end = at

    def extensions(self) -> list[tuple[bytes, bytes]]:
        """Return the extensions that follow the entries, with their names; raises _NotUnderstood."""
        extensions, at = [], self.end
        while at < len(self.body):
            kind, length = self.body[at : at + 4], int.from_bytes(self.body[at + 4 : at + _EXTENSION], "big")
            # Git too gives up on an unknown extension, unless its name begins with a capital letter.
            if not kind[:1].isupper():
                raise _NotUnderstood
            extensions.append((kind, self.body[at + _EXTENSION : at + _EXTENSION + length]))
            at += _EXTENSION + length
        if at != len(self.body):
            raise _NotUnderstood
        return extensions

    def is_in_commit(self) -> bool:
        """Return True if nothing is staged: the index then has the name of the tree of all its entries."""
        trees = [content for kind, content in self.extensions() if kind == _TREE_CACHE]
        return bool(trees) and trees[0].startswith(b"\0") and not trees[0].startswith(b"\0-")

    def has_conflicts(self) -> bool:
        flags_at = 4 + self.size
        is_open = any(each[flags_at] & _STAGES for each in self.entries_meaning)
        return is_open or any(kind == _RESOLVE_UNDO for kind, _ in self.extensions())

    def by_path(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """Return the meaning of the entries by path, and their cached times by path."""
        flags_at = 4 + self.size
        paths = [each[flags_at + (4 if each[flags_at] & _EXTENDED else 2) : -1] for each in self.entries_meaning]
        times = (self.body[each : each + _OBJECT_AT] for each in self.starts)
        return dict(zip(paths, self.entries_meaning, strict=True)), dict(zip(paths, times, strict=True))


def _parse(data: bytes) -> _ParsedIndex | None:
    """Parse an index; return None if it is not fully understood.

    This is so for an index that is damaged, split (its entries are in another file), sparse (entries are directories)
    or too large, and for any other file. Such files are the same only if their bytes are.
    """
    import hashlib

    if len(data) > LARGEST or len(data) < _HEADER:
        return None
    for name, size in _HASHES:
        body, checksum = data[:-size], data[-size:]
        # All zero if git is configured to skip the checksum (index.skipHash).
        if not any(checksum) or hashlib.new(name, body, usedforsecurity=False).digest() == checksum:
            try:
                index = _ParsedIndex(body, size)
                index.extensions()
            except (_NotUnderstood, ValueError, IndexError):
                continue
            return index
    return None


def meaning(data: bytes) -> str:
    """Return a digest of the entries of an index: path, mode, object, stage and the flags that git acts on.

    Return "" if the file is not fully understood.
    """
    import hashlib

    index = _parse(data)
    if index is None:
        return ""
    digest = hashlib.sha256(bytes((index.size,)), usedforsecurity=False)
    for each in index.entries_meaning:
        digest.update(each)
    for kind, content in index.extensions():
        if kind == _RESOLVE_UNDO:
            digest.update(kind + content)
    return digest.hexdigest()


def names_any_object(data: bytes, names: Collection[bytes]) -> bool:
    """Return True if an index contains, or may contain, one of these object names; it is read only once.

    The entries are searched, then all bytes after them; a file that is not an index is searched from its beginning.
    """
    for size in {len(name) for name in names}:
        try:
            index = _ParsedIndex(data, size)
            entries, entries_end = {each[4 : 4 + size] for each in index.entries_meaning}, index.end
        except (_NotUnderstood, ValueError, IndexError):
            entries, entries_end = set(), 0
        if len(data) - entries_end > _LONGEST_REST or not entries.isdisjoint(names):
            return True
        if any(data[each : each + size] in names for each in range(entries_end, len(data))):
            return True
    return False


def _read_path(path: bytes, body: bytes, at: int) -> tuple[bytes, int]:
    """Read a compressed path and return it with the position after it.

    It is stored as the number of bytes to cut from the end of the previous path, in git's own encoding of seven bits a
    byte, and the bytes to append.
    """
    byte = body[at]
    gone = byte & 127
    while byte & 128:
        at += 1
        byte = body[at]
        gone = (gone + 1) << 7 | byte & 127
        if gone > _LONGEST_PATH:
            raise _NotUnderstood
    end = body.index(b"\0", at + 1)
    path = path[: max(0, len(path) - gone)] + body[at + 1 : end]
    if len(path) > _LONGEST_PATH:
        raise _NotUnderstood
    return path, end + 1


# ---- Merge what a person stages while a command changes the index too: each path as whoever changed it left it.


def merge_staged_entries(base: bytes, project: bytes, command: bytes, *, is_only_change: bool) -> bytes:
    """Return a command's index with the entries that a person has only staged since the `base` version.

    Return b"" if that is not possible: the command has entries of its own at paths that the person changed, or an index
    is not fully understood. `is_only_change` says that the command changed nothing else of the repository. Otherwise it
    may have committed what it read, and what was staged then too; so then the base must have had nothing staged. The
    caches in an index are left out.
    """
    parsed = [_parse(data) for data in (base, project, command)]
    indexes = [index for index in parsed if index is not None]
    if len(indexes) < len(parsed) or len({index.size for index in indexes}) > 1:
        return b""
    base_index, project_index, command_index = indexes
    if any(index.has_conflicts() for index in indexes) or not (is_only_change or base_index.is_in_commit()):
        return b""
    before, _ = base_index.by_path()
    staged, staged_times = project_index.by_path()
    entries, times = command_index.by_path()
    changed = {path for path in before.keys() | staged.keys() if before.get(path) != staged.get(path)}
    acceptable = (before, staged) if is_only_change else (before,)
    if not changed or any(all(entries.get(path) != each.get(path) for each in acceptable) for path in changed):
        return b""
    new_paths = (entries.keys() | staged.keys()) - before.keys()
    for path in changed:
        for target, source in ((entries, staged), (times, staged_times)):
            target.pop(path, None)
            if path in source:
                target[path] = source[path]
    # One of them may have a file where the other has a directory: then an entry lies above a new path.
    if any(not entries.keys().isdisjoint(_directories_above(path)) for path in new_paths):
        return b""
    return _serialize(entries, times, project_index.version, command_index.size)


def _directories_above(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path


def _serialize(entries: dict[bytes, bytes], times: dict[bytes, bytes], version: int, size: int) -> bytes:
    """Return the bytes of an index without optional extensions."""
    import hashlib

    if version != _COMPRESSED:
        version = 3 if any(each[4 + size] & _EXTENDED for each in entries.values()) else _PLAIN
    pieces = [b"DIRC", version.to_bytes(4, "big"), len(entries).to_bytes(4, "big")]
    last = b""
    for path, entry_meaning in sorted(entries.items()):
        entry = times[path] + entry_meaning[4 : -1 - len(path)]
        if version == _COMPRESSED:
            pieces += (entry, _encode_number(len(last)), path, b"\0")  # cut all of the previous path
        else:
            pieces += (entry, path, b"\0" * (8 - (len(entry) + len(path)) % 8))
        last = path
    body = b"".join(pieces)
    name = next(name for name, length in _HASHES if length == size)
    return body + hashlib.new(name, body, usedforsecurity=False).digest()


def _encode_number(value: int) -> bytes:
    """Encode a number in git's own form, seven bits a byte."""
    digits = [value & 127]
    while value := value >> 7:
        value -= 1
        digits.insert(0, 128 | value & 127)
    return bytes(digits)


# ---- Git indexes on disk: read their meaning, and keep them open while a command runs.
#
# Git replaces an index by a rename. Once somebody's `git status` has refreshed it, only a descriptor that was opened
# before still has the version that the command saw.

INDEX_NAME = "index"  # in a git directory, whatever that one is called; only the content tells whether it is an index
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CONTENT_SIZE = 16  # bytes of the digest of a content; that of an index is longer
_MOST_FILES, _MOST_READ, _PIECE = 1_000, 1 << 23, 1 << 20
_MOST_HELD = 8  # some systems allow few descriptors; a project with more work trees only gets more conflicts


def read_meaning(directory: int, name: str, status: os.stat_result) -> str:
    """Return the meaning of a git index; "" if the file is not an index, or not the version of this status."""
    try:
        file = os.open(name, _READING, dir_fd=directory)
    except OSError:
        return ""  # gone, or closed to us
    with Closing(file):
        return _meaning(file, status)


def equivalent_stamp(stamp: c.Stamp, top: int, path: str, status: os.stat_result) -> c.Stamp | None:
    """Return the stamp of the file at a path if it means the same as the stamped version, else None.

    Somebody may have touched a file, or written the same content again, or git may have refreshed its index.
    """
    current = stamp_of(status)
    if not stamp.meaning or current.kind != c.FILE or current.mode != stamp.mode:
        return None
    if len(stamp.meaning) == 2 * _CONTENT_SIZE:
        with DirectoryCache(top, bounded=False) as tree:
            current.meaning = _content(tree, path, current) if current.size == stamp.size else ""
    else:
        try:
            with Closing(open_below(top, path, _READING)) as file:
                current.meaning = _meaning(file, status)
        except OSError:
            return None
    return current if current.meaning == stamp.meaning else None


def record_content_digests(changes: Sequence[c.Change], layer: int, below: Sequence[int]) -> None:
    """Store digests of the contents in the stamps of changes, so that `equivalent_stamp` recognises a touched file.

    All files must be read for that, so it is done only for few and small ones; others are compared by time alone. Git
    objects are left out: git touches one that it needs again, so there the time has a meaning.
    """
    if len(changes) > _MOST_FILES:
        return
    bytes_left = _MOST_READ
    trees = [DirectoryCache(top, bounded=False) for top in (layer, *below)]
    try:
        for change in (each for each in changes if "objects/" not in each.path):
            for stamp, places in ((change.after, trees[:1]), (change.before, trees[1:])):
                if stamp is None or stamp.kind != c.FILE or stamp.meaning or stamp.size > bytes_left:
                    continue
                bytes_left -= stamp.size
                stamp.meaning = next(filter(None, (_content(tree, change.path, stamp) for tree in places)), "")
    finally:
        for tree in trees:
            tree.close()


def same_content(first: int, second: int, name: str) -> bool:
    """Compare the files of one name in two directories, without reading what is a hole in both."""
    with (
        Closing(os.open(name, _READING, dir_fd=first)) as first_file,
        Closing(os.open(name, _READING, dir_fd=second)) as second_file,
    ):
        position, size = 0, os.fstat(first_file).st_size
        if size != os.fstat(second_file).st_size:
            return False
        while (position := min(_next_data(first_file, position), _next_data(second_file, position))) < size:
            piece = os.pread(first_file, _PIECE, position)
            if not piece or piece != os.pread(second_file, _PIECE, position):
                return False
            position += len(piece)
        return True


def _next_data(file: int, at: int) -> int:
    """Return the position of the next data after a position, or the file's size if only a hole follows."""
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return os.fstat(file).st_size


def _content(tree: DirectoryCache, path: str, version: c.Stamp) -> str:
    """Return a digest of a file's owner, attributes and content; "" if the file is not this version."""
    from _blake2 import blake2b  # not by hashlib, which loads much more

    try:
        with Closing(tree.open(path, _READING)) as file:
            status = os.fstat(file)
            if not version.same(stamp_of(status)):
                return ""
            digest = blake2b(b"%d %d" % (status.st_uid, status.st_gid), digest_size=_CONTENT_SIZE)
            for name in sorted(listxattr(file)):
                if name.startswith(("user.", "system.")) and not name.startswith(c.OVERLAY_PREFIXES):
                    digest.update(b"\0%b\0%b" % (os.fsencode(name), os.getxattr(file, name)))
            digest.update(b"\0\0")
            while piece := os.read(file, _PIECE):
                digest.update(piece)
    except OSError:
        return ""  # it lies in another layer, or can't be read
    return str(digest.hexdigest())


def _meaning(file: int, expected: os.stat_result) -> str:
    if not stat.S_ISREG(expected.st_mode) or expected.st_size > LARGEST:
        return ""
    if not _is_same_version(os.fstat(file), expected):
        return ""
    return meaning(_read_whole(file))


def _read_whole(file: int) -> bytes:
    with open(file, "rb", 0, closefd=False) as index:
        index.seek(0)
        return index.read(LARGEST + 1)


def _is_same_version(one: os.stat_result, other: os.stat_result) -> bool:
    """Return True if both are one version of a file; a rename may have changed the inode's own time (ctime)."""
    return (one.st_ino, one.st_size, one.st_mtime_ns) == (other.st_ino, other.st_size, other.st_mtime_ns)


class SeenIndexes:
    """The indexes that a command sees in its roots, kept open while it runs."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], tuple[int, os.stat_result]] = {}

    def look(self, roots: Sequence[str]) -> None:
        """Open the current indexes of all roots."""
        self.close()
        for number, root in enumerate(roots):
            with Closing(open_top(root)) as top:
                self._look_in(number, top)

    def _look_in(self, number: int, top: int) -> None:
        """Open the indexes of one root, which is a work tree or a git directory."""
        try:
            git, prefix = os.open(".git", PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top), ".git/"
        except OSError:
            if stat_entry(top, "HEAD") is None:
                return
            git, prefix = os.dup(top), ""
        with Closing(git):
            for path in (INDEX_NAME, *_indexes_inside(git)):
                if len(self._held) < _MOST_HELD:
                    try:
                        file = open_below(git, path, _READING)
                    except OSError:
                        continue  # there is none, or we can't read it
                    self._held[number, prefix + path] = file, os.fstat(file)

    def meaning(self, root: int, path: str, now: os.stat_result, means: str) -> str:
        """Return the meaning that an index had when it was opened; `means` is the meaning of the current one."""
        if (root, path) not in self._held:
            return ""
        file, then = self._held[root, path]
        return means if _is_same_version(then, now) else _meaning(file, then)

    def includes_committed(self, root: int, path: str, live: int, layer: int) -> bool:
        """Return True if a command's index has all that a person committed since the command began.

        Then the command has read the person's index before it wrote its own. `live` and `layer` are the directories of
        the two. Entries that are only staged do not count: a command should not commit them.
        """
        file, _ = self._held[root, path]
        base = _parse(_read_whole(file))
        try:
            with Closing(os.open(INDEX_NAME, _READING, dir_fd=live)) as project_file:
                project = _parse(_read_whole(project_file))
            with Closing(os.open(INDEX_NAME, _READING, dir_fd=layer)) as command_file:
                command = _parse(_read_whole(command_file))
        except OSError:
            return False  # git has just replaced one
        # If something is staged, the index does not name the tree of all entries.
        if not (base and project and command) or not project.is_in_commit():
            return False
        before, committed, own = (set(index.entries_meaning) for index in (base, project, command))
        return bool(before and committed and own) and committed - before <= own and own.isdisjoint(before - committed)

    def merge_staged_entries(
        self, change: c.Change, live: int, layer: int, *, is_only_change: bool
    ) -> tuple[bytes, int]:
        """Return a command's index merged with what a person has staged since, and the older time of both indexes.

        With that time, git examines each file again that was written at the time of either. The result is (b"", 0) if
        there is no such index, or the project's is not the one that the change was judged against.
        """
        if (change.root, change.path) not in self._held:
            return b"", 0
        file, _ = self._held[change.root, change.path]
        try:
            with (
                Closing(os.open(INDEX_NAME, _READING, dir_fd=live)) as project_file,
                Closing(os.open(INDEX_NAME, _READING, dir_fd=layer)) as command_file,
            ):
                project_status, command_status = os.fstat(project_file), os.fstat(command_file)
                if change.before is None or not change.before.same(stamp_of(project_status)):
                    return b"", 0
                base, project, command = map(_read_whole, (file, project_file, command_file))
                content = merge_staged_entries(base, project, command, is_only_change=is_only_change)
                return content, min(project_status.st_mtime_ns, command_status.st_mtime_ns)
        except OSError:
            return b"", 0  # git has just replaced one

    def close(self) -> None:
        """Close the indexes."""
        for file, _ in self._held.values():
            os.close(file)
        self._held = {}


def _indexes_inside(git: int) -> Iterator[str]:
    """Yield the paths of the indexes of linked work trees and submodules in a git directory."""
    for kind in ("worktrees", "modules"):
        try:
            directory = os.open(kind, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=git)
        except OSError:
            continue
        with Closing(directory):
            names = os.listdir(directory)
        yield from (f"{kind}/{name}/{INDEX_NAME}" for name in names[:_MOST_HELD])
