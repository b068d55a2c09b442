"""The playground: a directory of the agent's own, outside of every project, that its commands may write."""

from __future__ import annotations

import os
import stat

from fumehood.core.masks import is_in
from fumehood.core.value import Value
from fumehood.errors import FumehoodError
from fumehood.linux.libc import Closing
from fumehood.linux.mounts import Bind
from fumehood.linux.nofollow import entries, open_top, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.store.places import Places

PLAYGROUND = "playground"  # as a working directory it means the playground


class Playground(Value):
    """Where the playground lies, and where a command sees it."""

    source: str
    target: str
    is_writable: bool = True

    def mount(self) -> Bind:
        """Return how it is shown."""
        return Bind(target=self.target, source=self.source, is_writable=self.is_writable, why="the playground")


def playground(places: Places, source: str, home: str, roots: Sequence[str], *, makes_points: bool) -> Playground:
    """Return the playground as a command on the host's own system sees it: `playground` in the home.

    Where that is in the way of a root, is something else already, or lacks the mount point and none can be made
    (`makes_points`), it is seen where it lies.
    """
    home = os.path.realpath(home)
    target = f"{home}/{PLAYGROUND}"
    others = (*roots, places.data)
    is_in_the_way = any(is_in(target, (each,)) or is_in(each, (target,)) for each in others)
    if home == "/" or not os.path.isdir(home) or is_in_the_way:
        return Playground(source=source, target=source)
    try:
        is_usable = stat.S_ISDIR(os.lstat(target).st_mode)
    except FileNotFoundError:
        is_usable = makes_points
    return Playground(source=source, target=target if is_usable else source)


def made(places: Places) -> str:
    """Return where the playground lies, making it when it is missing."""
    directory = _path(places)
    if os.path.isdir(directory):
        return directory
    try:
        os.makedirs(places.data, 0o700, exist_ok=True)
        os.mkdir(directory, 0o700)
    except OSError as error:
        if not (isinstance(error, FileExistsError) and os.path.isdir(directory)):  # another process was faster
            raise FumehoodError(
                f"cannot make {directory}: {error.strerror}",
                hint="the playground belongs there; set XDG_DATA_HOME to a directory you can write",
            ) from error
    return directory


def size(places: Places) -> int:
    """Return the bytes that the playground takes on disk."""
    from fumehood.service.layers import space_of

    if not os.path.isdir(_path(places)):
        return 0
    with Closing(open_top(_path(places))) as directory:
        return sum(space_of(directory, name) for name in entries(directory))


def emptied(places: Places) -> int:
    """Throw away all that is in the playground; returns the bytes that it took.

    It is set aside first, so that a command which begins meanwhile finds a fresh one.
    """
    from fumehood.store.places import new_id

    freed = size(places)
    if not os.path.isdir(_path(places)):
        return 0
    aside = f"{PLAYGROUND}.{new_id()}"
    above = open_top(places.data)
    try:
        os.rename(PLAYGROUND, aside, src_dir_fd=above, dst_dir_fd=above)
        made(places)
        for name in entries(above):  # what an emptying that did not end has left, too
            if name.startswith(f"{PLAYGROUND}."):
                remove_tree(above, name)
    except OSError as error:
        raise FumehoodError(
            f"the playground could not be emptied: {error.strerror} ({error.filename})",
            hint="a command may still be using it; try again when it has ended",
        ) from error
    finally:
        os.close(above)
    return freed


def _path(places: Places) -> str:
    return f"{places.data}/{PLAYGROUND}"
