"""Cut the sockets in what a command sees of the host besides its roots, where its `/` is a root tree."""

from __future__ import annotations

import os

from fumehood.core.masks import is_below
from fumehood.linux.capture import KERNEL
from fumehood.linux.overlay import Overlay, mounts_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.linux.capture import Capture
    from fumehood.service.world import World


def views(world: World, capture: Capture) -> tuple[Overlay, ...] | None:
    """Return the views through which the launcher shows a tree and its skills; None where that can't be done.

    They are mounted before the roots: a skill that lies in a root is seen through the root's own overlay.
    """
    if world.tree is None or (world.tree.overlay is not None and not world.readonly):
        return ()  # nothing to cut, or cut by bubblewrap's own overlay
    if capture.way != KERNEL:
        return None
    shown = [os.path.realpath(bound.source) for bound in world.readonly]
    if not world.overlays:  # a layer of the project's own is an overlay already
        shown.append(world.tree.path)
    for path in shown:
        # What is mounted in it would not be seen, and a root would be overlaid where it is not itself.
        if mounts_inside(path) or any(is_below(layer.root, path) for layer in capture.layers):
            return None
    empty = capture.layers[0].merged
    if shown:
        os.makedirs(empty, mode=0o700, exist_ok=True)
    return tuple(Overlay(root=path, lowers=(path, empty)) for path in dict.fromkeys(shown))
