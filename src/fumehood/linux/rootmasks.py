"""What is masked inside the roots: hidden by mounts over what is there, since the command may write around it."""

from __future__ import annotations

import os
import stat

from fumehood.core.masks import is_below
from fumehood.linux.capture import COPY
from fumehood.linux.mounts import Bind, Mask
from fumehood.linux.nofollow import open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fumehood.linux.capture import Capture
    from fumehood.linux.mounts import Operation
    from fumehood.linux.overlay import Layer
    from fumehood.linux.stack import Stack


def masks_in_roots(capture: Capture, names: Sequence[str], inside: Sequence[str]) -> list[Operation]:
    """Return what hides masked things in the roots.

    `names` are masked below every root, `inside` are masked paths of the host that lie in a root. Behind a link, what
    it leads to is hidden, not the link: a command could have planted that.
    """
    hiding: list[Operation] = []
    held: dict[str, Operation] = {}
    for layer, (root, target) in zip(capture.layers, capture.targets, strict=True):
        below = [path[len(root) + 1 :] for path in inside if is_below(path, root)]
        for name, is_directory in _there(layer, dict.fromkeys((*names, *below))):
            hiding.append(Mask(target=f"{target}/{name}", is_directory=is_directory, why="masked"))
            if capture.way == COPY:
                for each in _way(name):
                    source = f"{layer.merged}/{each}"
                    held[source] = Bind(target=f"{target}/{each}", source=source, is_writable=True, why="held in place")
    return [*held.values(), *hiding]


def _way(name: str) -> list[str]:
    """Return the directories above a path: one that is no mount point could be renamed, with what it hides."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _there(layer: Layer, names: Iterable[str]) -> list[tuple[str, bool]]:
    """Return those that the command sees, through what is held and without following a link; and which are directories.

    Bubblewrap would follow one, out of the sandbox, to make a mount point.
    """
    from fumehood.linux.stack import Stack

    tops = [open_top(path) for path in layer.lowers]
    stack = Stack(tops)
    seen = []
    try:
        for name in names:
            mode = _mode(stack, name)
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                seen.append((name, stat.S_ISDIR(mode)))
    finally:
        stack.restore()
        for top in tops:
            os.close(top)
    return seen


def _mode(stack: Stack, name: str) -> int:
    above, _, last = name.rpartition("/")
    try:
        directory = stack.reach(above)
    except OSError:
        return 0
    try:
        seen, _ = directory.look(last)
    except OSError:
        return 0
    finally:
        directory.close()
    return 0 if seen is None else seen.st_mode
