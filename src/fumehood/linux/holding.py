"""Move what is held between a run's layer and the tree of its own that later commands see.

A layer's slots fill with the originals of what was applied, so what still waits is set apart from them. Every version
is in one of the two places, and a move that was cut short is done again.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.core import changes as c
from fumehood.linux import libc
from fumehood.linux.copying import copy_directory
from fumehood.linux.marks import whiteout
from fumehood.linux.nofollow import (
    Loosened,
    entries,
    is_whiteout,
    look,
    open_below,
    remove_directories,
    remove_tree,
    set_mode,
    split,
    walk,
)
from fumehood.linux.stack import is_opaque
from fumehood.linux.steps import move

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def carry(source: int, target: int, moving: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Move the layer's side of some changes of one root to another tree; those that `stay` are left in place."""
    carrying = _Carrying(source, target, staying)
    try:
        for change in _tops(moving, carrying.kept):
            carrying.take(change)
    finally:
        carrying.close()


def throw_away(top: int, changes: Sequence[c.Change], staying: Sequence[c.Change]) -> None:
    """Remove the layer's side of some changes."""
    loosened, kept = Loosened(top), _ancestors(staying)
    try:
        for change in _tops(changes, kept):
            if not c.is_mode_alone(change) and change.path not in kept:
                _in(loosened, change, remove_tree)
    finally:
        loosened.restore()


def prune(top: int, waiting: Sequence[c.Change]) -> None:
    """Remove the directories that nothing waits in: one left behind would hide that the project's own is gone."""
    needed = _ancestors(waiting) | {change.path for change in waiting}
    trees = {(0, change.path) for change in waiting if change.kind == c.DIRECTORY and change.change != c.MODE}
    whole = c.Inside(trees)
    found = [path for path, entry in walk(top, "") if stat.S_ISDIR(entry.st_mode)]
    loosened = Loosened(top)
    try:
        for path in reversed(found):
            if path not in needed and whole.topmost(0, path) is None:
                _in(loosened, c.Change(0, path, c.DELETED, c.DIRECTORY), _remove_empty)
    finally:
        loosened.restore()


def _remove_empty(directory: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _ancestors(changes: Sequence[c.Change]) -> set[str]:
    """Return the directories above the paths of changes."""
    return {path for _, path in c.all_above(changes)}


def _tops(changes: Sequence[c.Change], kept: set[str]) -> list[c.Change]:
    """Leave out what moves along with a directory above it."""
    tops: list[c.Change] = []
    covered = "\0"
    for change in changes:
        if change.path.startswith(covered):
            continue
        tops.append(change)
        is_whole = change.kind == c.DIRECTORY and not c.is_mode_alone(change) and change.path not in kept
        if is_whole or change.change in (c.DELETED, c.TYPE):
            covered = f"{change.path}/"
    return tops


def _in(loosened: Loosened, change: c.Change, act: Callable[[int, str], None]) -> None:
    """Do something in the directory of a change, opened up where its owner may not change it; none is fine."""
    parent, name = split(change.path)
    try:
        directory = loosened.reach(parent)
    except FileNotFoundError:
        return
    try:
        # Ahead, because not everything that fails in a closed directory says so.
        if os.fstat(directory).st_mode & 0o300 != 0o300:
            loosened.loosen(parent)
        act(directory, name)
    finally:
        os.close(directory)


def _is_used(directory: int, name: str) -> bool:
    """Tell whether there is anything but directories in a directory."""
    found = look(directory, name)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return False
    return any(not stat.S_ISDIR(entry.st_mode) for _, entry in walk(directory, name))


def _merge(source: int, target: int, name: str) -> None:
    """Move what lies in a directory into another that has some of the run's originals; may be repeated."""
    one, other = open_below(source, name), open_below(target, name)
    try:
        for child in entries(one):
            raw = os.fsencode(child)
            try:
                libc.renameat2(one, raw, other, raw, libc.RENAME_NOREPLACE)
            except FileExistsError:
                _merge(one, other, child)
    finally:
        os.close(one)
        os.close(other)
    os.rmdir(name, dir_fd=source)


class _Carrying:
    """One move between two trees, with the directories that it opened up or made on the way."""

    def __init__(self, source: int, target: int, staying: Sequence[c.Change]) -> None:
        self.kept = _ancestors(staying)
        self._source, self._target = Loosened(source), Loosened(target)
        self._made: list[tuple[str, int]] = []

    def take(self, change: c.Change) -> None:
        """Move one entry, a whole tree included."""
        if change.path == ".":
            set_mode(self._target.top, stat.S_IMODE(os.stat(self._source.top).st_mode))
        elif c.is_mode_alone(change) or (change.kind == c.DIRECTORY and change.path in self.kept):
            self._directory(change.path)
        elif change.change == c.DELETED:
            self._mark(change)
        else:
            self._move(change)

    def _mark(self, change: c.Change) -> None:
        """A deletion is a mark: it is made there, and removed here; in an opaque directory there is none."""
        parent = split(change.path)[0]
        self._directory(parent)
        if self._is_opaque(parent):
            return

        def mark(directory: int, name: str) -> None:
            if look(directory, name) is None:
                whiteout(directory, name)

        def unmark(directory: int, name: str) -> None:
            found = look(directory, name)
            if found is not None and is_whiteout(found):
                os.unlink(name, dir_fd=directory)

        _in(self._target, change, mark)
        _in(self._source, change, unmark)

    def _is_opaque(self, path: str) -> bool:
        """Tell whether a directory of the target hides all that lies below it, itself or by one above."""
        while path:
            directory = self._target.reach(path)
            try:
                if is_opaque(directory):
                    return True
            finally:
                os.close(directory)
            path = split(path)[0]
        return False

    def _move(self, change: c.Change) -> None:
        parent, after = split(change.path)[0], change.after
        if after is None:
            raise ValueError(f"nothing to move: {change!r}")
        self._directory(parent)
        to = self._target.reach(parent)

        def act(directory: int, name: str) -> None:
            if look(directory, name) is None:
                return  # moved before
            try:
                move(directory, to, name, after)
            except FileExistsError:
                if after.kind == c.DIRECTORY and _is_used(to, name):
                    _merge(directory, to, name)
                    return
                remove_directories(to, name)  # what is left of one whose entries have gone their way
                move(directory, to, name, after)

        try:
            if os.fstat(to).st_mode & 0o700 != 0o700:
                self._target.loosen(parent)
            _in(self._source, change, act)
        finally:
            os.close(to)

    def _directory(self, path: str) -> None:
        """Make a directory of the target, with those above it, where they are missing: each like the source's."""
        missing = []
        while path and not self._has(path):
            path, name = split(path)
            missing.append(name)
        for name in reversed(missing):
            here = self._target.reach(path)
            try:
                self._make(here, path, name)
            finally:
                os.close(here)
            path = f"{path}/{name}" if path else name

    def _has(self, path: str) -> bool:
        try:
            os.close(self._target.reach(path))
        except FileNotFoundError:
            return False
        return True

    def _make(self, here: int, parent: str, name: str) -> None:
        if os.fstat(here).st_mode & 0o700 != 0o700:
            self._target.loosen(parent)
        os.mkdir(name, 0o700, dir_fd=here)
        like = self._source.reach(parent)
        try:
            found = look(like, name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                copy_directory(like, here, name)
                self._made.append((f"{parent}/{name}" if parent else name, stat.S_IMODE(found.st_mode)))
        finally:
            os.close(like)

    def close(self) -> None:
        """Give every directory the mode that it should have."""
        self._source.restore()
        self._target.restore()
        for path, mode in reversed(self._made):
            directory = open_below(self._target.top, path)
            try:
                set_mode(directory, mode)
            finally:
                os.close(directory)
