"""A directory for commands without a project: ours, seen by nobody else, and thrown away with whoever made it."""

from __future__ import annotations

import fcntl
import os
import weakref

from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import LISTING, open_top, remove_tree
from fumehood.store.places import make_private, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.store.places import Places


class Thrown:
    """One such directory. Who makes it holds a lock on it, so that what a dead process left is known."""

    def __init__(self, places: Places) -> None:
        above = _above(places)
        make_private(above)
        name = new_id()
        self.path = f"{above}/{name}"
        with Closing(os.open(above, LISTING | os.O_CLOEXEC)) as around:
            fcntl.flock(around, fcntl.LOCK_EX)  # nobody takes it for a dead one's before it is locked
            _remove_left(around)
            os.mkdir(self.path, 0o700)
            lock = os.open(self.path, LISTING | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._end = weakref.finalize(self, _remove, above, name, lock, os.getpid())

    def close(self) -> None:
        """Remove it."""
        self._end()


def remove_left(places: Places) -> None:
    """Remove what dead processes left."""
    try:
        around = os.open(_above(places), LISTING | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with Closing(around):
        fcntl.flock(around, fcntl.LOCK_EX)
        _remove_left(around)


def _above(places: Places) -> str:
    return f"{places.cache}/thrown"


def _remove_left(around: int) -> None:
    for name in os.listdir(around):
        with Closing(os.open(name, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=around)) as directory:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # somebody works there
            remove_tree(around, name)


def _remove(above: str, name: str, lock: int, owner: int) -> None:
    """Remove a directory; a child that the program forked only lets go of it."""
    if owner == os.getpid() and os.path.isdir(f"{above}/{name}"):  # a person may have emptied the cache
        with Closing(open_top(above)) as around:
            remove_tree(around, name)
    os.close(lock)
