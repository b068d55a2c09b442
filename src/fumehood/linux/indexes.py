"""Git indexes on disk: read for what they mean, and held open while a command runs.

Git replaces an index by a rename, so the version that a command saw is gone once somebody's `git status` has
refreshed it: only a descriptor from before still has it.
"""

from __future__ import annotations

import os
import stat

from fumehood.linux.nofollow import LISTING, PATH_ONLY, look, open_below, open_top, stamp_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core import changes as c

NAME = "index"  # in a git directory, whatever that one is called; only the content tells whether it is an index
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_HELD = 8  # descriptors are few in some places, and a project with more work trees just has more conflicts


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
                self._look_in(number, top)
            finally:
                os.close(top)

    def _look_in(self, number: int, top: int) -> None:
        """Hold those of one root: it is a work tree, or a git directory itself."""
        try:
            git, prefix = os.open(".git", PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top), ".git/"
        except OSError:
            if look(top, "HEAD") is None:
                return
            git, prefix = os.dup(top), ""
        try:
            for path in (NAME, *_others(git)):
                if len(self._held) < _MOST_HELD:
                    self._hold((number, prefix + path), git, path)
        finally:
            os.close(git)

    def _hold(self, place: tuple[int, str], git: int, path: str) -> None:
        try:
            file = open_below(git, path, _READING)
        except OSError:
            return  # there is none, or nobody may read it: what it was is not known then
        self._held[place] = file, os.fstat(file)

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


def _others(git: int) -> Iterator[str]:
    """Yield where the indexes of linked work trees and of submodules lie in a git directory."""
    for kind in ("worktrees", "modules"):
        try:
            directory = os.open(kind, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=git)
        except OSError:
            continue
        try:
            names = os.listdir(directory)
        finally:
            os.close(directory)
        yield from (f"{kind}/{name}/{NAME}" for name in names[:_MOST_HELD])
