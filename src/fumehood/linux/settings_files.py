"""Read a person's settings files, and remember how each was: what is made of them holds while they stay so."""

from __future__ import annotations

import os
import stat

from fumehood.core.masks import is_in
from fumehood.linux.followed import followed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Identity = tuple[int, int] | None

LARGEST = 1 << 20


class Unreadable(Exception):
    """A settings file that is there and can't be used; the message says why."""


class Watch:
    """Every file that was looked at, with its time of change and inode, or None where there was none."""

    def __init__(self) -> None:
        self.identities: dict[str, Identity] = {}

    def look(self, path: str) -> Identity:
        """Remember how a file is, before it is read: a change that comes meanwhile is then noticed later."""
        return self.identities.setdefault(path, identity_of(path))

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None where there is none; a device, like /dev/null, is none either."""
        if self.look(path) is None:
            return None
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Unreadable(os.strerror(error.errno or 0)) from error
        return content(file)


def content(file: int) -> bytes | None:
    """Return what an open file holds if it is a regular one, and close it."""
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        data = bytearray()
        while len(data) <= LARGEST and (piece := os.read(file, LARGEST)):
            data += piece
    except OSError as error:
        raise Unreadable(os.strerror(error.errno or 0)) from error
    finally:
        os.close(file)
    if len(data) > LARGEST:
        raise Unreadable(f"larger than {LARGEST >> 10} KiB")
    return bytes(data)


def identity_of(path: str) -> Identity:
    """Return what tells one version of a file from the next; follows links, as its readers do.

    A directory's time does not count: nothing is read from it, and it changes with every file that is made there.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # a NUL in it
        return None
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns, status.st_ino


def is_unchanged(watched: Mapping[str, Identity]) -> bool:
    """Tell whether every file is as it was."""
    return all(identity_of(path) == identity for path, identity in watched.items())


def is_own_file(path: str, owner: int) -> bool:
    """Tell whether a path is a regular file of that owner's, and not a link to one."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == owner


def seen_at(path: str, directories: Sequence[str]) -> str | None:
    """Return where a path comes into one of some directories, by itself or by a link on its way, or None.

    What commands can write is among them: from there a link that one made may lead to anything of the person's.
    """
    for place, _, names in followed(path):
        if is_in(place, directories):
            return os.path.join(place, *names)
    return None
