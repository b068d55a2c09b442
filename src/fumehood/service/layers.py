"""A run's layers on disk: made before it, emptied of what nobody needs after it."""

from __future__ import annotations

import os

from fumehood.core.inverse import needs_layer
from fumehood.errors import FumehoodError
from fumehood.linux.capture import COPY, FUSE, Layer
from fumehood.linux.nofollow import open_top, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.changes import Change
    from fumehood.store.places import Places

_PARTS = ("upper", "work", "merged")


def make(places: Places, run: str, roots: Sequence[str], way: str) -> tuple[Layer, ...]:
    """Make the directories of a run's layers; the upper one looks like the root it stands for."""
    parts = _PARTS if way in (FUSE, COPY) else _PARTS[:2]
    layers = []
    try:
        os.mkdir(places.run(run), 0o700)
        for number, root in enumerate(roots):
            os.mkdir(f"{places.run(run)}/{number}", 0o700)
            upper, work, merged = (places.layer(run, number, part) for part in _PARTS)
            for part in parts:
                os.mkdir(places.layer(run, number, part), 0o700)
            _resemble(upper, root)
            layers.append(Layer(root=root, upper=upper, work=work, merged=merged))
    except OSError as error:
        drop(places, run)
        raise FumehoodError(
            f"cannot make the run's directories in {places.state}: {error.strerror}",
            hint="fumehood clean frees what is no longer needed",
        ) from error
    return tuple(layers)


def _resemble(upper: str, root: str) -> None:
    found = os.stat(root)
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
        os.chown(upper, found.st_uid, found.st_gid)
    os.chmod(upper, found.st_mode & 0o7777)


def drop_scratch(layers: Sequence[Layer]) -> None:
    """Remove what only the mount needed."""
    for layer in layers:
        if _drop_usual_work(layer):
            continue
        above = open_top(os.path.dirname(layer.upper))
        try:
            for part in ("work", "merged"):
                remove_tree(above, part)
        finally:
            os.close(above)


def _drop_usual_work(layer: Layer) -> bool:
    """Remove the work directory as an overlay usually leaves it, which is quicker than finding out; tell if it was so.

    Its directories are left at mode 000, so they must be opened up first.
    """
    if os.path.lexists(layer.merged):
        return False
    try:
        for part in ("/work", "/work/incompat"):
            os.chmod(layer.work + part, 0o700)
        for part in ("/work/incompat/volatile", "/work/incompat", "/work", ""):
            os.rmdir(layer.work + part)
    except OSError:
        return False
    return True


def drop(places: Places, run: str) -> None:
    """Remove a run's layers altogether."""
    try:
        # As most runs leave them: with one root, nothing in it.
        for part in ("/0/upper", "/0", ""):
            os.rmdir(places.run(run) + part)
    except OSError:
        _drop_all(places, run)


def _drop_all(places: Places, run: str) -> None:
    above = open_top(f"{places.state}/runs")
    try:
        remove_tree(above, run)
    finally:
        os.close(above)


def drop_if_empty(places: Places, run: str, changes: Sequence[Change] | None = None) -> None:
    """Remove layers that hold no backup and nothing that waits for a person.

    A backup may be an empty directory, so only the changes tell whether what is left is needed; without
    them, layers go only if there is nothing in them at all.
    """
    if changes is None:
        uppers = [f"{places.run(run)}/{number}/upper" for number in os.listdir(places.run(run))]
        needed = any(os.listdir(upper) for upper in uppers)
    else:
        needed = any(needs_layer(change) for change in changes)
    if not needed:
        drop(places, run)
