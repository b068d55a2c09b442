"""What a version of a file means: its content, and of a git index, its entries.

The times and sizes beside those are a cache that any `git status` rewrites.
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

LARGEST = 16 << 20  # bytes; reading a larger one would be noticed, and it is compared by its bytes

_HEADER, _EXTENSION = 12, 8  # bytes: a name and two numbers, a name and one
_HASHES = (("sha1", 20), ("sha256", 32))
_PLAIN, _COMPRESSED = 2, 4
_VERSIONS = (_PLAIN, 3, _COMPRESSED)
_MODE_AT, _OBJECT_AT = 24, 40  # in an entry; around the mode lie times, device, inode, owner and size
_STAGES = 0x30  # in the first byte of the flags: which side of a conflict it is
_EXTENDED = 0x40  # in the first byte of the flags: there are two bytes more of them
_LONGEST_PATH = 4096  # the kernel's limit; a crafted file could have us build far longer ones, again and again
_LONGEST_PATHS = 4 * LARGEST  # all paths of an index together, where it tells them by how they differ
_LONGEST_REST = 1 << 20  # bytes after the entries, which are looked at one by one: a second
_TREES = b"TREE"  # the names of trees, as far as entries did not change since
_RESOLVE_UNDO = b"REUC"  # what a resolved conflict was: nobody can make it again


class _NotUnderstood(Exception):
    """The file is no index, or one whose entries are not all in it."""


class _Index:
    """An index, taken apart; raises _NotUnderstood, ValueError or IndexError where that can't be done.

    `meant` are its entries as bytes that no others have: of their flags, those that git acts on are there with the
    length of the path, which is no news. They begin at `starts` of the `body`, the last one ends at `end`. `size` is
    that of an object's name.
    """

    def __init__(self, body: bytes, size: int) -> None:
        self.body, self.size = body, size
        self.version, count = int.from_bytes(body[4:8], "big"), int.from_bytes(body[8:_HEADER], "big")
        if not body.startswith(b"DIRC") or self.version not in _VERSIONS:
            raise _NotUnderstood
        self.meant: list[bytes] = []
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
                path, at = _path_after(path, body, at)
                left -= len(path)
                if left < 0:
                    raise _NotUnderstood
                meant = body[start + _OBJECT_AT : flagged] + path + b"\0"
            else:
                end = body.index(b"\0", at)
                at = start + ((end - start + 8) & ~7)
                meant = body[start + _OBJECT_AT : end + 1]
            self.starts.append(start)
            self.meant.append(body[start + _MODE_AT : start + _MODE_AT + 4] + meant)
        self.end = at

    def extensions(self) -> list[tuple[bytes, bytes]]:
        """Return what follows the entries, each with its name; raises _NotUnderstood."""
        extensions, at = [], self.end
        while at < len(self.body):
            kind, length = self.body[at : at + 4], int.from_bytes(self.body[at + 4 : at + _EXTENSION], "big")
            # Git itself gives up on one that it does not know, unless it begins with a capital letter.
            if not kind[:1].isupper():
                raise _NotUnderstood
            extensions.append((kind, self.body[at + _EXTENSION : at + _EXTENSION + length]))
            at += _EXTENSION + length
        if at != len(self.body):
            raise _NotUnderstood
        return extensions

    def is_in_commit(self) -> bool:
        """Return True if it names the tree of all its entries: none was staged since."""
        trees = [content for kind, content in self.extensions() if kind == _TREES]
        return bool(trees) and trees[0].startswith(b"\0") and not trees[0].startswith(b"\0-")

    def has_conflicts(self) -> bool:
        flags_at = 4 + self.size
        is_open = any(each[flags_at] & _STAGES for each in self.meant)
        return is_open or any(kind == _RESOLVE_UNDO for kind, _ in self.extensions())

    def by_path(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """Return what the entries mean, and the times around that, by path."""
        flags_at = 4 + self.size
        paths = [each[flags_at + (4 if each[flags_at] & _EXTENDED else 2) : -1] for each in self.meant]
        times = (self.body[each : each + _OBJECT_AT] for each in self.starts)
        return dict(zip(paths, self.meant, strict=True)), dict(zip(paths, times, strict=True))


def _understood(data: bytes) -> _Index | None:
    """Return an index with all that is in it; None where it is not wholly understood.

    So is one that is damaged, split (its entries lie in another file), sparse (they are directories), huge, or no index
    at all. Such files are the same only if their bytes are.
    """
    import hashlib

    if len(data) > LARGEST or len(data) < _HEADER:
        return None
    for name, size in _HASHES:
        body, checksum = data[:-size], data[-size:]
        # All zero where the person has git skip it (index.skipHash).
        if not any(checksum) or hashlib.new(name, body, usedforsecurity=False).digest() == checksum:
            try:
                index = _Index(body, size)
                index.extensions()
            except (_NotUnderstood, ValueError, IndexError):
                continue
            return index
    return None


def meaning(data: bytes) -> str:
    """Return a digest of the entries of an index: path, mode, object, stage and the flags that git acts on.

    Nothing where the file is not wholly understood.
    """
    import hashlib

    index = _understood(data)
    if index is None:
        return ""
    digest = hashlib.sha256(bytes((index.size,)), usedforsecurity=False)
    for each in index.meant:
        digest.update(each)
    for kind, content in index.extensions():
        if kind == _RESOLVE_UNDO:
            digest.update(kind + content)
    return digest.hexdigest()


def names_any_object(data: bytes, names: Collection[bytes]) -> bool:
    """Return True if an index has any of some objects' names, or may have; however many these are, it is read once.

    They are looked for in the entries, then in what follows these; where they are no entries, everywhere.
    """
    for size in {len(name) for name in names}:
        try:
            index = _Index(data, size)
            entries, rest = {each[4 : 4 + size] for each in index.meant}, index.end
        except (_NotUnderstood, ValueError, IndexError):
            entries, rest = set(), 0
        if len(data) - rest > _LONGEST_REST or not entries.isdisjoint(names):
            return True
        if any(data[each : each + size] in names for each in range(rest, len(data))):
            return True
    return False


def _path_after(path: bytes, body: bytes, at: int) -> tuple[bytes, int]:
    """Read a path that is told by how it differs from the one before, and where it ends.

    How much of that goes is a number in git's own form, seven bits a byte.
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


# ---- What a person only stages while a command changes the index, too: each path is as the one has it who changed it.


def merge_staged_entries(then: bytes, now: bytes, mine: bytes, *, is_all: bool) -> bytes:
    """Return a command's index with what a person has only staged since `then`, each given by its bytes.

    Nothing where the command has an entry of its own at a path that the person changed, or where not all is understood.
    Unless the index `is_all` that the command changed, what it has read may be in a commit of its own, and what was
    staged then already, too: so nothing. What git keeps in an index to be quick is left out.
    """
    base, theirs, own = (_understood(each) for each in (then, now, mine))
    if base is None or theirs is None or own is None or not base.size == theirs.size == own.size:
        return b""
    if any(each.has_conflicts() for each in (base, theirs, own)) or not (is_all or base.is_in_commit()):
        return b""
    (before, _), (staged, their_times), (entries, times) = base.by_path(), theirs.by_path(), own.by_path()
    changed = {path for path in before.keys() | staged.keys() if before.get(path) != staged.get(path)}
    fine = (before, staged) if is_all else (before,)
    if not changed or any(all(entries.get(path) != each.get(path) for each in fine) for path in changed):
        return b""
    new = (entries.keys() | staged.keys()) - before.keys()
    for path in changed:
        for into, source in ((entries, staged), (times, their_times)):
            into.pop(path, None)
            if path in source:
                into[path] = source[path]
    # What lies above a new path may be an entry: one of both has a file where the other has a directory.
    if any(not entries.keys().isdisjoint(_above(path)) for path in new):
        return b""
    return _written(entries, times, theirs.version, own.size)


def _above(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path


def _written(entries: dict[bytes, bytes], times: dict[bytes, bytes], version: int, size: int) -> bytes:
    """Return an index as git writes it, without what it can do without."""
    import hashlib

    if version != _COMPRESSED:
        version = 3 if any(each[4 + size] & _EXTENDED for each in entries.values()) else _PLAIN
    pieces = [b"DIRC", version.to_bytes(4, "big"), len(entries).to_bytes(4, "big")]
    last = b""
    for path, meant in sorted(entries.items()):
        entry = times[path] + meant[4 : -1 - len(path)]
        if version == _COMPRESSED:
            pieces += (entry, _number(len(last)), path, b"\0")  # all of the one before goes
        else:
            pieces += (entry, path, b"\0" * (8 - (len(entry) + len(path)) % 8))
        last = path
    body = b"".join(pieces)
    name = next(name for name, length in _HASHES if length == size)
    return body + hashlib.new(name, body, usedforsecurity=False).digest()


def _number(value: int) -> bytes:
    """Write a number in git's own form, seven bits a byte."""
    digits = [value & 127]
    while value := value >> 7:
        value -= 1
        digits.insert(0, 128 | value & 127)
    return bytes(digits)


# ---- Git indexes on disk: read for what they mean, and held open while a command runs.
#
# Git replaces an index by a rename, so the version that a command saw is gone once somebody's `git status` has
# refreshed it: only a descriptor from before still has it.

INDEX_NAME = "index"  # in a git directory, whatever that one is called; only the content tells whether it is an index
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CONTENT_SIZE = 16  # bytes of the digest of a content; that of an index is longer
_MOST_FILES, _MOST_READ, _PIECE = 1_000, 1 << 23, 1 << 20
_MOST_HELD = 8  # descriptors are few in some places, and a project with more work trees just has more conflicts


def read_meaning(directory: int, name: str, status: os.stat_result) -> str:
    """Return what an entry of a directory means as a git index; nothing where it is none, or not this version."""
    try:
        file = os.open(name, _READING, dir_fd=directory)
    except OSError:
        return ""  # gone, or closed to us
    with Closing(file):
        return _meaning(file, status)


def equivalent_stamp(stamp: c.Stamp, top: int, path: str, status: os.stat_result) -> c.Stamp | None:
    """Return the stamp of what lies at a path now, if that means what the stamped version did.

    Somebody may have touched a file, or written the same once more; what git made of its index may be refreshed.
    """
    now = stamp_of(status)
    if not stamp.meaning or now.kind != c.FILE or now.mode != stamp.mode:
        return None
    if len(stamp.meaning) == 2 * _CONTENT_SIZE:
        with DirectoryCache(top, bounded=False) as tree:
            now.meaning = _content(tree, path, now) if now.size == stamp.size else ""
    else:
        try:
            with Closing(open_below(top, path, _READING)) as file:
                now.meaning = _meaning(file, status)
        except OSError:
            return None
    return now if now.meaning == stamp.meaning else None


def record_content_digests(changes: Sequence[c.Change], layer: int, below: Sequence[int]) -> None:
    """Let the stamps of a run's changes say what the files hold, so that `refreshed` knows one that was only touched.

    It reads all of them, so only where they are few and small: who changes more is told by times alone. Git touches an
    object that it needs again, so there the time does say something.
    """
    if len(changes) > _MOST_FILES:
        return
    left = _MOST_READ
    trees = [DirectoryCache(top, bounded=False) for top in (layer, *below)]
    try:
        for change in (each for each in changes if "objects/" not in each.path):
            for stamp, places in ((change.after, trees[:1]), (change.before, trees[1:])):
                if stamp is None or stamp.kind != c.FILE or stamp.meaning or stamp.size > left:
                    continue
                left -= stamp.size
                stamp.meaning = next(filter(None, (_content(tree, change.path, stamp) for tree in places)), "")
    finally:
        for tree in trees:
            tree.close()


def same_content(one: int, other: int, name: str) -> bool:
    """Compare the content of the files of one name in two directories; what is a hole in both is not read."""
    with (
        Closing(os.open(name, _READING, dir_fd=one)) as mine,
        Closing(os.open(name, _READING, dir_fd=other)) as theirs,
    ):
        at, size = 0, os.fstat(mine).st_size
        if size != os.fstat(theirs).st_size:
            return False
        while (at := min(_data_from(mine, at), _data_from(theirs, at))) < size:
            piece = os.pread(mine, _PIECE, at)
            if not piece or piece != os.pread(theirs, _PIECE, at):
                return False
            at += len(piece)
        return True


def _data_from(file: int, at: int) -> int:
    """Return where a file goes on with something else than a hole: at its end, where that is all there is."""
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return os.fstat(file).st_size


def _content(tree: DirectoryCache, path: str, version: c.Stamp) -> str:
    """Return a digest of all that can be changed of a file, but for its mode and times; nothing of another version."""
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
        return ""  # it lies in another layer, or nobody may read it
    return str(digest.hexdigest())


def _meaning(file: int, expected: os.stat_result) -> str:
    if not stat.S_ISREG(expected.st_mode) or expected.st_size > LARGEST or not _is_same(os.fstat(file), expected):
        return ""
    return meaning(_whole(file))


def _whole(file: int) -> bytes:
    with open(file, "rb", 0, closefd=False) as index:
        index.seek(0)
        return index.read(LARGEST + 1)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Return True if both are one version; a rename over it changes the time of its inode, but not these."""
    return (one.st_ino, one.st_size, one.st_mtime_ns) == (other.st_ino, other.st_size, other.st_mtime_ns)


class SeenIndexes:
    """The indexes that a command sees in its roots, held open for as long as it runs."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], tuple[int, os.stat_result]] = {}

    def look(self, roots: Sequence[str]) -> None:
        """Hold the indexes as they are now."""
        self.close()
        for number, root in enumerate(roots):
            with Closing(open_top(root)) as top:
                self._look_in(number, top)

    def _look_in(self, number: int, top: int) -> None:
        """Hold those of one root: it is a work tree, or a git directory itself."""
        try:
            git, prefix = os.open(".git", PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top), ".git/"
        except OSError:
            if stat_entry(top, "HEAD") is None:
                return
            git, prefix = os.dup(top), ""
        with Closing(git):
            for path in (INDEX_NAME, *_others(git)):
                if len(self._held) < _MOST_HELD:
                    try:
                        file = open_below(git, path, _READING)
                    except OSError:
                        continue  # there is none, or nobody may read it: what it was is not known then
                    self._held[number, prefix + path] = file, os.fstat(file)

    def meaning(self, root: int, path: str, now: os.stat_result, means: str) -> str:
        """Return what an index meant when it was looked at; `means` is what the one that lies there now does."""
        if (root, path) not in self._held:
            return ""
        file, then = self._held[root, path]
        return means if _is_same(then, now) else _meaning(file, then)

    def includes_committed(self, root: int, path: str, live: int, layer: int) -> bool:
        """Return True if a command's index has all that a person committed since theirs was looked at.

        Then the command has read the person's before it wrote its own. The two lie in a directory each. What a person
        has only staged is not for a command to commit.
        """
        file, _ = self._held[root, path]
        then = _understood(_whole(file))
        try:
            with Closing(os.open(INDEX_NAME, _READING, dir_fd=live)) as theirs:
                now = _understood(_whole(theirs))
            with Closing(os.open(INDEX_NAME, _READING, dir_fd=layer)) as own:
                mine = _understood(_whole(own))
        except OSError:
            return False  # git has just replaced one
        # Where something is staged, git has no name for the tree of all of it.
        if not (then and now and mine) or not now.is_in_commit():
            return False
        before, after, ours = set(then.meant), set(now.meant), set(mine.meant)
        return bool(before and after and ours) and after - before <= ours and ours.isdisjoint(before - after)

    def merge_staged_entries(self, change: c.Change, live: int, layer: int, *, is_all: bool) -> tuple[bytes, int]:
        """Return a command's index with what a person has only staged since, as bytes, and the older time of the two.

        With that time, git looks again at each file that was written when either of them was. Nothing where there is no
        such index, or the person's is not the one that the change was judged against. The two lie in a directory each.
        """
        if (change.root, change.path) not in self._held:
            return b"", 0
        file, _ = self._held[change.root, change.path]
        try:
            with (
                Closing(os.open(INDEX_NAME, _READING, dir_fd=live)) as theirs,
                Closing(os.open(INDEX_NAME, _READING, dir_fd=layer)) as own,
            ):
                now, mine = os.fstat(theirs), os.fstat(own)
                if change.before is None or not change.before.same(stamp_of(now)):
                    return b"", 0
                content = merge_staged_entries(_whole(file), _whole(theirs), _whole(own), is_all=is_all)
                return content, min(now.st_mtime_ns, mine.st_mtime_ns)
        except OSError:
            return b"", 0  # git has just replaced one

    def close(self) -> None:
        """Let go of them."""
        for file, _ in self._held.values():
            os.close(file)
        self._held = {}


def _others(git: int) -> Iterator[str]:
    """Yield where the indexes of linked work trees and of submodules lie in a git directory."""
    for kind in ("worktrees", "modules"):
        try:
            directory = os.open(kind, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=git)
        except OSError:
            continue
        with Closing(directory):
            names = os.listdir(directory)
        yield from (f"{kind}/{name}/{INDEX_NAME}" for name in names[:_MOST_HELD])
