"""Fold layers into one tree that shows the same over a project, by hard links: nothing is copied, and each stays whole.

A name is taken from the topmost layer that has it. Directories are made anew, with what belongs to the topmost, and
what several layers have in them comes together. One that lies over something else, or over an opaque one, is opaque.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux.copying import copy_belongings, copy_entry
from fumehood.linux.marks import set_opaque, whiteout
from fumehood.linux.nofollow import LISTING, Loosened, Parents, look, set_mode
from fumehood.linux.stack import hides, is_opaque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_MORE_LINKS = (errno.EMLINK, errno.EPERM, errno.EXDEV)


def fold(target: int, layers: Sequence[int]) -> None:
    """Fill an empty directory with what layers show together; all are named by descriptors, the topmost first."""
    folding = _Folding(target, layers)
    try:
        folding.fold()
    finally:
        folding.close()


class _Directory:
    """One directory of several layers: the numbers of those that have part in it, and whether all below is hidden."""

    __slots__ = ("is_closed", "is_opaque", "numbers", "path")

    def __init__(self, path: str, numbers: Sequence[int]) -> None:
        self.path = path
        self.numbers = list(numbers)
        self.is_opaque = False
        self.is_closed = False  # to parts in layers further down


class _Folding:
    """One folding."""

    def __init__(self, target: int, layers: Sequence[int]) -> None:
        self._target = Parents(target)
        self._layers = [Loosened(layer) for layer in layers]

    def fold(self) -> None:
        """Go down level by level; directories get what belongs to them when they are full, the deepest first."""
        made: list[_Directory] = []
        waiting = [_Directory("", range(len(self._layers)))]
        while waiting:
            directory = waiting.pop()
            made.append(directory)
            waiting += self._level(directory)
        for directory in reversed(made):
            self._finish(directory)

    def _level(self, directory: _Directory) -> list[_Directory]:
        """Fill one directory; return those in it, made but still empty."""
        target = self._target.of(directory.path)
        leaves: set[str] = set()
        inside: dict[str, _Directory] = {}
        for number in directory.numbers:
            layer = self._layers[number].reach(directory.path)
            try:
                for name in os.listdir(layer):
                    found = None if name in leaves else look(layer, name)
                    if found is None:
                        continue
                    below = inside.get(name)
                    if stat.S_ISDIR(found.st_mode):
                        if below is None:
                            path = f"{directory.path}/{name}" if directory.path else name
                            below = inside[name] = _Directory(path, ())
                            os.mkdir(name, 0o700, dir_fd=target)
                        self._add(below, number)
                    elif below is None:
                        leaves.add(name)
                        _link(layer, name, target, found)
                    else:
                        below.is_opaque = below.is_opaque or not below.is_closed
                        below.is_closed = True
            finally:
                os.close(layer)
        return list(inside.values())

    def _add(self, directory: _Directory, number: int) -> None:
        """Let one more layer have part in a directory, if nothing above hides it."""
        if directory.is_closed:
            return
        directory.numbers.append(number)
        part = self._layers[number].reach(directory.path)
        try:
            directory.is_opaque = directory.is_closed = is_opaque(part)
        finally:
            os.close(part)

    def _finish(self, directory: _Directory) -> None:
        source = self._layers[directory.numbers[0]]
        reading, writing = source.reach(directory.path), self._target.open(directory.path, LISTING)
        try:
            if directory.is_opaque:
                set_opaque(writing)
            found = os.fstat(reading)
            copy_belongings(reading, writing, found)
            set_mode(writing, source.modes.get(directory.path, stat.S_IMODE(found.st_mode)))
        finally:
            os.close(reading)
            os.close(writing)

    def close(self) -> None:
        """Close up what was opened to be read, and let go of the directories."""
        self._target.close()
        for layer in self._layers:
            layer.restore()


def _link(layer: int, name: str, target: int, found: os.stat_result) -> None:
    """Give an entry a second name, or copy it where it can have no more."""
    if hides(layer, name, found):
        whiteout(target, name)
        return
    try:
        os.link(name, name, src_dir_fd=layer, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_MORE_LINKS:
            raise
        copy_entry(layer, name, target, name)
