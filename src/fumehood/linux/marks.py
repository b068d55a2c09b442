"""What overlays write into their layers."""

from __future__ import annotations

import os
import stat

from fumehood.linux.upper import BOOKKEEPING, attributes

OPAQUE = "user.overlay.opaque"


def whiteout(directory: int, name: str) -> None:
    """Declare a name deleted."""
    os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)


def unmark(directory: int, name: str) -> None:
    """Remove every overlay's bookkeeping from an entry of a layer."""
    path = f"/proc/self/fd/{directory}/{name}"
    for attribute in attributes(directory, name):
        if not attribute.startswith(BOOKKEEPING):
            continue
        try:
            os.removexattr(path, attribute, follow_symlinks=False)
        except PermissionError:
            # A read-only file's attributes can't be changed, not even by its owner.
            mode = stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)
            os.chmod(path, mode | 0o600)
            os.removexattr(path, attribute, follow_symlinks=False)
            os.chmod(path, mode)


def set_opaque(directory: int) -> None:
    """Declare deleted whatever lower layers have in a directory."""
    os.setxattr(directory, OPAQUE, b"y")
