"""Bring layers and project onto one file system for the time of a swap, where they are on two.

New versions are copied into a directory at the top of the root, swapped from there like any layer, and
what comes out is copied home into the layer before the directory goes. Nothing is removed from either
side before its copy is whole.
"""

from __future__ import annotations

import os
import stat

from fumehood.core import changes as c
from fumehood.core.changes import MKDIR, PUT, RMDIR, SWAP, TAKE
from fumehood.linux import libc
from fumehood.linux.copying import Links, copy_directory, copy_entry, copy_file, copy_tree
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import (
    PATH_ONLY,
    Loosened,
    Parents,
    look,
    make_parents,
    open_below,
    open_top,
    remove_tree,
    split,
    stamp_of,
    walk,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.changes import Step


HOME, SETTLED = "home", "settled"  # beside the layer: what came out of the project, and what is left of that
_HOMECOMING = (SWAP, PUT, TAKE, RMDIR)


def can_rename(first: int, second: int) -> bool:
    """Tell whether entries of two directories can be renamed into each other.

    One file system is not enough: a mount of a part of it, as containers get their volumes, is apart too.
    """
    return os.fstat(first).st_dev == os.fstat(second).st_dev and mount_of(first) == mount_of(second)


def mount_of(directory: int) -> bytes:
    """Return the number of the mount that a directory was opened on."""
    with Closing(os.open(f"/proc/self/fdinfo/{directory}", os.O_RDONLY | os.O_CLOEXEC)) as info:
        lines = os.read(info, 4096).split(b"\n")
    return next(line for line in lines if line.startswith(b"mnt_id:")).split()[1]


class Staging:
    """A directory at the top of one root that stands in for its layer."""

    def __init__(self, upper: str, live: int, run: str) -> None:
        self._upper = upper
        self._live = live
        self._name = f".fumehood-{run}"
        self.directory = -1

    def make(self) -> None:
        """Make the directory, empty."""
        with Loosened(self._live) as loosened:
            loosened.loosen("")
            remove_tree(self._live, self._name)
            os.mkdir(self._name, 0o700, dir_fd=self._live)
            self.directory = open_below(self._live, self._name)

    def find(self) -> bool:
        """Open the directory that an interrupted apply has left, if there is one."""
        try:
            self.directory = open_below(self._live, self._name)
        except FileNotFoundError:
            return False
        return True

    def prepare(self, steps: Sequence[Step], changes: Sequence[c.Change]) -> None:
        """Copy in what will be put into the project, and take note of the copies' identities."""
        with (
            Closing(open_top(self._upper)) as layer,
            Loosened(layer) as loosened,
            Parents(self.directory) as target,
            Links(self.directory) as links,
        ):
            for step in steps:
                if step.act in (SWAP, PUT, TAKE, MKDIR):
                    make_parents(target, step.parent)
                if step.act in (SWAP, PUT, MKDIR):
                    with Closing(loosened.reach(step.parent, PATH_ONLY)) as source:
                        _bring(step, source, target.of(step.parent), links)
        self._note_copies(changes, steps)

    def _note_copies(self, changes: Sequence[c.Change], steps: Sequence[Step]) -> None:
        """Let changes name the copies: these are what will be in the project, save for directories made there."""
        copies = dict(walk(self.directory, ""))
        apart = {step.change.path for step in steps if step.act == MKDIR}
        moved = {step.change.path for step in steps if step.act in (SWAP, PUT)}
        for change in changes:
            if change.verdict != c.APPLIED or change.after is None or change.path in apart:
                continue
            copy = copies.get(change.path)
            if copy is not None and (change.within is not None or change.path in moved):
                change.after = stamp_of(copy, change.after.meaning)

    def copy_home(self) -> None:
        """Copy what came out of the project to beside the layer, which stays as it is."""
        with Closing(open_top(os.path.dirname(self._upper))) as above:
            remove_tree(above, HOME)
            copy_tree(self._live, self._name, above, HOME)

    def settle_home(self, steps: Sequence[Step]) -> None:
        """Put those copies into the layer, in place of what went into the project; may be repeated.

        From here on there is only a forward: it is done again until it succeeds.
        """
        with Closing(open_top(os.path.dirname(self._upper))) as above:
            if look(above, HOME) is None:
                return  # it was all done, and only then removed
            with (
                Closing(open_below(above, HOME)) as home,
                Closing(open_top(self._upper)) as layer,
                Loosened(layer) as target,
                Loosened(home) as source,
            ):
                opened = None
                for step in steps:
                    if step.act in _HOMECOMING and step.change.verdict == c.APPLIED:
                        if step.parent != opened:
                            source.loosen(step.parent)
                            target.loosen(step.parent)
                            make_parents(layer, step.parent)
                            opened = step.parent
                        with Closing(source.as_is(step.parent)) as here, Closing(target.as_is(step.parent)) as there:
                            (_resemble if step.act == RMDIR else _move_home)(here, there, step)
            # Renamed first: one that is not whole must not be taken for what is to be put into the layer.
            remove_tree(above, SETTLED)
            os.rename(HOME, SETTLED, src_dir_fd=above, dst_dir_fd=above)
            remove_tree(above, SETTLED)

    def close(self, *, remove: bool) -> None:
        """Let go of the directory, and remove it from the project."""
        if self.directory >= 0:
            os.close(self.directory)
        self.directory = -1
        if not remove or look(self._live, self._name) is None:
            return  # where nothing was made, nothing may be writable
        with Loosened(self._live) as loosened:
            loosened.loosen("")
            remove_tree(self._live, self._name)


def _bring(step: Step, source: int, target: int, links: Links) -> None:
    if step.act != MKDIR:
        copy_entry(source, step.name, target, step.name, links, step.change.path)
    elif look(source, step.name) is not None:
        os.mkdir(step.name, 0o700, dir_fd=target)
        copy_directory(source, target, step.name)


def _move_home(here: int, there: int, step: Step) -> None:
    """Put a copy into the layer; where nothing came out of the project, what went in leaves the layer too."""
    name, before = step.name, step.change.before
    came_out = look(here, name)
    if came_out is not None or step.act == PUT:  # else it was done before an interruption
        remove_tree(there, name)
    if came_out is not None:
        if stat.S_ISDIR(came_out.st_mode) and not came_out.st_mode & 0o200:
            # One that is read-only can't be moved: its own `..` is written.
            os.chmod(name, 0o700, dir_fd=here)
        raw = os.fsencode(name)
        libc.renameat2(here, raw, there, raw, libc.RENAME_NOREPLACE)
    if before is not None and before.kind == c.DIRECTORY:
        os.chmod(name, before.mode, dir_fd=there)


def _resemble(here: int, there: int, step: Step) -> None:
    """Let the layer's directory stand for one that was removed from the project."""
    make_parents(there, step.name)
    copy_directory(here, there, step.name)
    if step.change.before is not None:
        os.chmod(step.name, step.change.before.mode, dir_fd=there)


# ---- Give files of a layer inodes of their own, where they share one with something that is or stays elsewhere.
#
# All copies are made beside the layer first, and only then put into it by renames: whatever happens, each path
# of the layer is its old or its new self, and what was done in part can be done again.

APART = "apart"  # the directory of copies, beside the layer


class Parting:
    """One parting of files in a layer; those that shared an inode share the new one.

    `version` names the stamp of a change that tells of the layer's side: before or after.
    """

    def __init__(self, layer: int, loosened: Loosened, version: str) -> None:
        self._loosened = loosened
        self._version = version
        self._above = os.open("..", PATH_ONLY | os.O_CLOEXEC, dir_fd=layer)

    def _stamp(self, change: c.Change) -> c.Stamp:
        stamp: c.Stamp = getattr(change, self._version)
        return stamp

    def copy(self, sharing: Sequence[c.Change]) -> None:
        """Copy each inode once; the layer stays as it is."""
        remove_tree(self._above, APART)
        os.mkdir(APART, 0o700, dir_fd=self._above)
        copied: set[int] = set()
        with Closing(open_below(self._above, APART)) as apart:
            for change in sharing:
                inode = self._stamp(change).inode
                if inode not in copied:
                    parent, name = split(change.path)
                    with Closing(self._loosened.reach(parent)) as there:
                        copy_file(there, name, apart, str(inode))
                    copied.add(inode)

    def place(self, sharing: Sequence[c.Change]) -> None:
        """Put the copies into the layer, and let the changes name them; may be repeated."""
        apart = open_below(self._above, APART) if look(self._above, APART) else -1
        try:
            for change in sharing:
                stamp, (parent, name) = self._stamp(change), split(change.path)
                with Closing(self._loosened.open(parent)) as there:
                    if apart >= 0 and look(apart, str(stamp.inode)) is not None:
                        # By a second name, for the copy may be wanted once more.
                        copy, link = str(stamp.inode), f"{stamp.inode}.link"
                        remove_tree(apart, link)
                        os.link(copy, link, src_dir_fd=apart, dst_dir_fd=apart, follow_symlinks=False)
                        os.rename(link, name, src_dir_fd=apart, dst_dir_fd=there)
                    placed = os.stat(name, dir_fd=there, follow_symlinks=False)
                setattr(change, self._version, stamp_of(placed, stamp.meaning))
        finally:
            if apart >= 0:
                os.close(apart)
        remove_tree(self._above, APART)

    def close(self) -> None:
        """Let go of the directory above the layer."""
        os.close(self._above)
