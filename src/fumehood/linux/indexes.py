"""Git indexes on disk: read for what they mean, and held open while a command runs.

Git replaces an index by a rename, so the version that a command saw is gone once somebody's `git status` has
refreshed it: only a descriptor from before still has it.
"""

from __future__ import annotations

import os
import stat

from fumehood.linux.nofollow import LISTING, open_below, open_top, stamp_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core import changes as c

NAME = "index"  # in a git directory, whatever that one is called; only the content tells whether it is an index
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_HELD = 8  # descriptors are few in some places, and a project with more work trees just has more conflicts
_OTHERS = ("worktrees", "modules")


def meaning_in(directory: int, name: str, found: os.stat_result) -> str:
    """Return what an entry of a directory means as a git index; nothing where it is none, or not this version."""
    try:
        file = os.open(name, _READING, dir_fd=directory)
    except OSError:
        return ""  # gone, or closed to us
    try:
        return _meaning(file, found)
    finally:
        os.close(file)


def refreshed(stamp: c.Stamp, top: int, path: str, found: os.stat_result) -> c.Stamp | None:
    """Return the stamp of what lies at a path now, if that is a git index which means what the stamped one did."""
    if not stamp.meaning or not stat.S_ISREG(found.st_mode) or found.st_mode & 0o7777 != stamp.mode:
        return None
    try:
        file = open_below(top, path, _READING)
    except OSError:
        return None
    try:
        return stamp_of(found, stamp.meaning) if _meaning(file, found) == stamp.meaning else None
    finally:
        os.close(file)


def _meaning(file: int, expected: os.stat_result) -> str:
    from fumehood.core.gitindex import LARGEST, meaning

    if not stat.S_ISREG(expected.st_mode) or expected.st_size > LARGEST or not _is_same(os.fstat(file), expected):
        return ""
    with open(file, "rb", 0, closefd=False) as index:
        index.seek(0)
        return meaning(index.read(LARGEST + 1))


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Tell whether both are one version; a rename over it changes the time of its inode, but not these."""
    return (one.st_ino, one.st_size, one.st_mtime_ns) == (other.st_ino, other.st_size, other.st_mtime_ns)


class SeenIndexes:
    """The indexes that a command sees in its roots, held open for as long as it runs."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], tuple[int, os.stat_result]] = {}

    def look(self, roots: Sequence[str]) -> None:
        """Hold the indexes as they are now."""
        self.close()
        for number, root in enumerate(roots):
            top = open_top(root)
            try:
                for path in _index_paths(top):
                    if len(self._held) == _MOST_HELD:
                        return
                    self._hold(number, top, path)
            finally:
                os.close(top)

    def _hold(self, number: int, top: int, path: str) -> None:
        try:
            file = open_below(top, path, _READING)
        except OSError:
            return  # there is none, or nobody may read it: as it was, it is not known then
        self._held[number, path] = file, os.fstat(file)

    def meaning(self, root: int, path: str, now: os.stat_result, means: str) -> str:
        """Return what an index meant when it was looked at; `means` is what the one that lies there now does."""
        if (root, path) not in self._held:
            return ""
        file, then = self._held[root, path]
        return means if _is_same(then, now) else _meaning(file, then)

    def close(self) -> None:
        """Let go of them."""
        for file, _ in self._held.values():
            os.close(file)
        self._held = {}


def _index_paths(top: int) -> Iterator[str]:
    """Yield where the indexes of a root may lie: it is a work tree, or a git directory itself."""
    for git in (".git/", ""):
        yield f"{git}{NAME}"
        for others in _OTHERS:
            try:
                directory = open_below(top, f"{git}{others}", LISTING)
            except OSError:
                continue
            try:
                for name in os.listdir(directory)[:_MOST_HELD] if git or _is_git_directory(top) else ():
                    yield f"{git}{others}/{name}/{NAME}"
            finally:
                os.close(directory)


def _is_git_directory(top: int) -> bool:
    try:
        return stat.S_ISREG(os.stat("HEAD", dir_fd=top, follow_symlinks=False).st_mode)
    except OSError:
        return False
