"""The four ways of capturing a command's writes; each leaves the same kind of layer behind.

kernel: an overlay that the launcher mounts in a namespace of its own
bwrap:  an overlay that bubblewrap mounts itself, from 0.11 on
fuse:   fuse-overlayfs, for kernels and policies that forbid the first two
copy:   a copied tree, compared with the project afterwards
"""

from __future__ import annotations

from fumehood.core.value import Value
from fumehood.errors import OverlayUnavailable
from fumehood.linux.mounts import Bind, Layered, Operation
from fumehood.linux.overlay import mounts_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fumehood.linux.probe import Host

KERNEL, BWRAP, FUSE, COPY = "kernel", "bwrap", "fuse", "copy"


class Layer(Value):
    """Where one root's writes go: `below` are held layers that the command still sees, topmost first."""

    root: str
    upper: str
    work: str
    merged: str
    below: tuple[str, ...] = ()

    @property
    def lowers(self) -> tuple[str, ...]:
        """All that lies under the upper directory, topmost first."""
        return (*self.below, self.root)


def choose(host: Host, wanted: str, roots: Sequence[str]) -> str:
    """Return the way of capturing: the wanted one, or the best that works here for these roots."""
    works = host.captures
    if wanted:
        if wanted not in works:
            raise OverlayUnavailable(
                f"writes can't be captured by {wanted} here", hint="fumehood doctor says what is missing"
            )
        return wanted
    if not works:
        raise OverlayUnavailable(f"nothing can be sandboxed here: {host.why}", hint="fumehood doctor")
    inside = [mount for root in roots for mount in mounts_inside(root)]
    if not inside or works[0] not in (KERNEL, BWRAP):
        return works[0]
    others = [way for way in works if way not in (KERNEL, BWRAP)]
    if not others:
        raise OverlayUnavailable(
            f"cannot overlay {roots[0]}: {inside[0]} is mounted inside it", hint=f"unmount it: umount {inside[0]}"
        )
    return others[0]


class Capture:
    """One run's way of capturing: what bubblewrap is told, and what is done before and after."""

    def __init__(self, way: str, layers: Sequence[Layer], targets: Mapping[str, str] | None = None) -> None:
        self.way = way
        self.layers = layers
        self._targets = targets or {}  # where roots appear, if not at their own paths

    @property
    def mounts(self) -> list[Operation]:
        """How each root is shown, so that what is written there goes to its layer."""
        return [self._mount(each) for each in self.layers]

    def _mount(self, layer: Layer) -> Operation:
        target, why = self._target(layer), "a root"
        if self.way in (KERNEL, BWRAP):
            return Layered(target=target, lowers=layer.lowers, upper=layer.upper, work=layer.work, why=why)
        return Bind(target=target, source=layer.merged, is_writable=True, why=why)

    @property
    def targets(self) -> tuple[tuple[str, str], ...]:
        """Every root, and where it appears."""
        return tuple((each.root, self._target(each)) for each in self.layers)

    def _target(self, layer: Layer) -> str:
        return self._targets.get(layer.root, layer.root)

    def begin(self) -> None:
        """Get ready what must stand before the sandbox starts."""
        if self.way == FUSE:
            from fumehood.linux import fuse

            for each in self.layers:
                fuse.mount(each)
        elif self.way == COPY:
            from fumehood.linux import copied

            for each in self.layers:
                copied.prepare(each)

    def finish(self) -> None:
        """Make each upper directory the layer that a kernel overlay would have left."""
        if self.way == FUSE:
            from fumehood.linux import fuse

            for each in self.layers:
                fuse.unmount(each)
                fuse.normalise(each)
        elif self.way == COPY:
            from fumehood.linux import copied

            for each in self.layers:
                copied.distil(each)

    def abandon(self) -> None:
        """Undo `begin` after a failure."""
        if self.way == FUSE:
            from fumehood.linux import fuse

            for each in self.layers:
                fuse.clear_away(each)
