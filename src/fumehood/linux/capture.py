"""The four ways of capturing a command's writes; each leaves the same kind of layer behind.

kernel: an overlay that the launcher mounts in a namespace of its own
bwrap:  an overlay that bubblewrap mounts itself, from 0.11 on
fuse:   fuse-overlayfs, for kernels and policies that forbid the first two
copy:   a copied tree, compared with the project afterwards
"""

from __future__ import annotations

import os

from fumehood.core.value import Value
from fumehood.errors import OverlayUnavailable
from fumehood.linux.mounts import Bind, Layered, Operation
from fumehood.linux.overlay import Layer, mounts_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fumehood.linux.host import Host
    from fumehood.linux.strangers import Stranger

KERNEL, BWRAP, FUSE, COPY = "kernel", "bwrap", "fuse", "copy"
LABELS = {
    KERNEL: "the kernel's overlay", BWRAP: "bubblewrap's --overlay", FUSE: "fuse-overlayfs", COPY: "a copy",
}  # fmt: skip


class Choice(Value):
    """A way of capturing; `why` it is not the best that works here, and the groups that it needs mapped."""

    way: str
    why: str = ""
    groups: tuple[int, ...] = ()


def choose(host: Host, wanted: str, roots: Sequence[str], failed_on: Sequence[Stranger] = ()) -> Choice:
    """Choose the way of capturing: the wanted one, or the best that works here for these roots.

    `failed_on` are files of other owners that an earlier command could not change by an overlay.
    """
    works = host.captures
    if wanted and wanted not in works:
        raise OverlayUnavailable(
            f"writes can't be captured by {wanted} here", hint="fumehood doctor says what is missing"
        )
    if not works:
        raise OverlayUnavailable(f"nothing can be sandboxed here: {host.why}", hint="fumehood doctor")
    strangers = [] if host.every_id and works[0] == KERNEL else _at_the_top(roots)
    if wanted:
        return Choice(way=wanted, groups=_groups(host, wanted, (*strangers, *failed_on)))
    inside = [mount for root in roots for mount in mounts_inside(root)]
    obstacles = {way: _obstacle(host, way, inside, strangers, failed_on) for way in works}
    best, way = works[0], next((way for way in works if not obstacles[way]), "")
    if not way:
        hint = f"unmount it: umount {inside[0]}" if inside else "fumehood doctor says how to fix it"
        raise OverlayUnavailable(f"cannot overlay {roots[0]}: {obstacles[best]}", hint=hint)
    why = "" if way == best else f"captured by {LABELS[way]}: {obstacles[best]}"
    return Choice(way=way, why=why, groups=_groups(host, way, (*strangers, *failed_on)))


def _at_the_top(roots: Sequence[str]) -> list[Stranger]:
    from fumehood.linux.strangers import at_the_top

    return at_the_top(roots)


def _obstacle(
    host: Host, way: str, inside: Sequence[str], strangers: Sequence[Stranger], failed_on: Sequence[Stranger]
) -> str:
    """Say what in the roots a way of capturing can't deal with.

    What we may not write is no obstacle to an overlay before somebody wants to rename it: the error tells. That of
    fuse-overlayfs would not.
    """
    if way in (KERNEL, BWRAP):
        if inside:
            return f"{inside[0]} is mounted inside, where {LABELS[way]} shows nothing"
        strangers = [each for each in strangers if each.may_write]
    alien = next((each for each in (*strangers, *failed_on) if not is_carried(host, way, each)), None)
    return "" if alien is None else f"{alien.description}, which {LABELS[way]} can't change"


def is_carried(host: Host, way: str, stranger: Stranger) -> bool:
    """Tell whether a way of capturing can copy up what belongs to somebody else."""
    if way == COPY or (way == KERNEL and host.every_id) or (way == FUSE and os.geteuid() == 0):
        return True
    carried = {KERNEL: host.groups, FUSE: tuple(os.getgroups())}.get(way, ())
    return stranger.user == os.geteuid() and stranger.group in (os.getegid(), *carried)


def _groups(host: Host, way: str, strangers: Sequence[Stranger]) -> tuple[int, ...]:
    """Return the groups that the launcher maps: all that it may, where one is needed, so that launches are alike."""
    is_needed = way == KERNEL and any(each.group in host.groups for each in strangers)
    return host.groups if is_needed else ()


class Capture:
    """One run's way of capturing: what bubblewrap is told, and what is done before and after."""

    def __init__(
        self, way: str, layers: Sequence[Layer], targets: Mapping[str, str] | None = None,
        groups: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.way = way
        self.layers = layers
        self.groups = groups  # that the launcher maps into its namespace, besides our own
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
