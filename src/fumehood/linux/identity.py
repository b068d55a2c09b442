"""Which directory it is, whatever its path: device, inode, and when it was made."""

from __future__ import annotations

import os

from fumehood.core.value import Value
from fumehood.linux import libc

_LARGEST = (1 << 63) - 1  # what the database can hold


class Identity(Value):
    """What tells one directory from another; `born` is 0 where the file system does not keep it."""

    device: int
    inode: int
    born: int

    def is_another(self, now: Identity) -> bool:
        """Tell whether what is at the same path now is another directory.

        Inode numbers are given again, and device numbers change between two boots: where there is a time of birth, it
        alone counts. Where there is none, only another inode on the same device is another directory; with another
        device, as at each mount of some file systems, nobody can tell.
        """
        if self.born and now.born:
            return self.born != now.born
        return self.device == now.device and self.inode != now.inode

    def is_at(self, now: Identity) -> bool:
        """Tell whether a directory at another path is surely this one."""
        if self.inode != now.inode:
            return False
        return self.born == now.born if self.born and now.born else self.device == now.device


def identity_of(path: str) -> Identity | None:
    """Say which directory is at a path; None where there is none. Raises OSError where that can't be found out."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # In an overlay, a directory that gets its first change is made anew above, and has another time of birth then.
    born = 0 if libc.is_overlay(os.fsencode(path)) else libc.born_ns(os.fsencode(path))
    return Identity(device=found.st_dev, inode=found.st_ino & _LARGEST, born=born)
