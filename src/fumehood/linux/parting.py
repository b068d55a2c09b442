"""Give files of a layer inodes of their own, where they share one with something that is or stays elsewhere.

All copies are made beside the layer first, and only then put into it by renames: whatever happens, each path
of the layer is its old or its new self, and what was done in part can be done again.
"""

from __future__ import annotations

import os

from fumehood.linux.copying import copy_file
from fumehood.linux.nofollow import PATH_ONLY, Loosened, Parents, look, open_below, remove_tree, split, stamp_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core import changes as c

APART = "apart"  # the directory of copies, beside the layer


class Parting:
    """One parting of files in a layer; those that shared an inode share the new one."""

    def __init__(self, layer: int, loosened: Loosened, version: str) -> None:
        self._parents = Parents(layer)
        self._loosened = loosened
        self._version = version
        self._above = os.open("..", PATH_ONLY | os.O_CLOEXEC, dir_fd=layer)

    def _inode(self, change: c.Change) -> int:
        stamp: c.Stamp = getattr(change, self._version)
        return stamp.inode

    def copy(self, sharing: Sequence[c.Change]) -> None:
        """Copy each inode once; the layer stays as it is."""
        remove_tree(self._above, APART)
        os.mkdir(APART, 0o700, dir_fd=self._above)
        apart = open_below(self._above, APART)
        copied: set[int] = set()
        try:
            for change in sharing:
                inode = self._inode(change)
                if inode not in copied:
                    self._in_layer(change, _copying_to(apart, str(inode)))
                    copied.add(inode)
        finally:
            os.close(apart)

    def place(self, sharing: Sequence[c.Change]) -> None:
        """Put the copies into the layer, and let the changes name them; may be repeated."""
        apart = open_below(self._above, APART) if look(self._above, APART) else -1
        try:
            for change in sharing:
                copy = str(self._inode(change))
                if apart >= 0 and look(apart, copy) is not None:
                    self._in_layer(change, _linking_to(apart, copy))
                setattr(change, self._version, self._stamp(change))
        finally:
            if apart >= 0:
                os.close(apart)
        remove_tree(self._above, APART)

    def _stamp(self, change: c.Change) -> c.Stamp:
        found: list[os.stat_result] = []
        self._in_layer(
            change, lambda there, name: found.append(os.stat(name, dir_fd=there, follow_symlinks=False))
        )
        was: c.Stamp = getattr(change, self._version)
        return stamp_of(found[0], was.meaning)

    def _in_layer(self, change: c.Change, act: Callable[[int, str], None]) -> None:
        """Do something in the directory that holds a change, opened up if it forbids that to its owner."""
        parent, name = split(change.path)
        try:
            act(self._parents.of(parent), name)
        except PermissionError:
            if not self._loosened.loosen(parent):
                raise
            act(self._parents.of(parent), name)

    def close(self) -> None:
        """Let go of the directories."""
        self._parents.close()
        os.close(self._above)


def _copying_to(apart: int, copy: str) -> Callable[[int, str], None]:
    def act(there: int, name: str) -> None:
        copy_file(there, name, apart, copy)

    return act


def _linking_to(apart: int, copy: str) -> Callable[[int, str], None]:
    """Return what lets a name of the layer mean a copy, which may be wanted once more."""

    def act(there: int, name: str) -> None:
        link = f"{copy}.link"
        remove_tree(apart, link)
        os.link(copy, link, src_dir_fd=apart, dst_dir_fd=apart, follow_symlinks=False)
        os.rename(link, name, src_dir_fd=apart, dst_dir_fd=there)

    return act
