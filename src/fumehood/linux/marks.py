"""What overlays write into their layers."""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux.nofollow import opened_up
from fumehood.linux.upper import BOOKKEEPING, attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OPAQUE = "user.overlay.opaque"


def whiteout(directory: int, name: str) -> None:
    """Declare a name deleted."""
    os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)


def unmark(directory: int, name: str) -> None:
    """Remove every overlay's bookkeeping from an entry of a layer."""
    found = attributes(directory, name)
    remove_attributes(directory, name, [each for each in found if each.startswith(BOOKKEEPING)])


def remove_attributes(directory: int, name: str, names: Sequence[str]) -> None:
    """Remove attributes from an entry of a layer; those that are gone already were removed by an earlier try."""
    path = f"/proc/self/fd/{directory}/{name}"
    for attribute in names:
        try:
            _remove(path, attribute)
        except PermissionError:
            # A read-only file's attributes can't be changed, not even by its owner.
            with opened_up(directory, name):
                _remove(path, attribute)


def _remove(path: str, attribute: str) -> None:
    try:
        os.removexattr(path, attribute, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


def set_opaque(directory: int) -> None:
    """Declare deleted whatever lower layers have in a directory."""
    os.setxattr(directory, OPAQUE, b"y")
