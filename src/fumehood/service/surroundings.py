"""Everything that a project's commands see, as one list of mounts: the host or a root tree, then what is their own."""

from __future__ import annotations

import os
import sys

from fumehood.core.masks import Masks, inside, is_below, is_in, masks
from fumehood.core.policy import HIDDEN
from fumehood.core.value import Value
from fumehood.linux.capture import KERNEL
from fumehood.linux.hostview import HostViews, Sight, kernel_masks, relevant_variables
from fumehood.linux.mounts import Bind, Console, Devices, Folder, Proc, Tmpfs, View, sealed
from fumehood.linux.overlay import mounts_inside
from fumehood.linux.spec import TMP, check_tmp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.policy import Policy
    from fumehood.linux.capture import Capture
    from fumehood.linux.mounts import Operation
    from fumehood.rootfs.tree import Tree
    from fumehood.service.session import Seat
    from fumehood.service.world import World
    from fumehood.store.places import Places


class Seen(Value):
    """All that a command sees; the first `ahead` mounts show the host, by the look at it that has this number."""

    mounts: tuple[Operation, ...]
    ahead: int
    look: int
    is_cut: bool  # no socket of the host's can be connected to
    home: str = ""  # a home that is thrown away at the end

    def hides(self, path: str) -> bool:
        """Tell whether a path of the host is out of sight because the home is."""
        around = max((each for each in self.mounts if is_in(path, (each.target,))), key=lambda each: len(each.target))
        return isinstance(around, (Tmpfs, Folder)) and os.path.lexists(path)


class Surroundings:
    """Puts together what one project's commands see."""

    def __init__(self, places: Places, policy: Policy, projects: Callable[[], Sequence[str]]) -> None:
        self._places = places
        self._policy = policy
        self._views = HostViews(places.cache, projects)
        self._kernel: dict[bool, tuple[Operation, ...]] = {}
        self._homes: dict[tuple[int, str], tuple[str, ...]] = {}
        self._is_locked: bool | None = None
        self._last_sight: tuple[object, Sight] | None = None
        self._in_roots = masks(("/",), (), policy.mask, policy.unmask, root=False).in_roots if policy.mask else ()

    @property
    def cache(self) -> str:
        """Where what can be made again is kept."""
        return self._places.cache

    def again(self) -> Surroundings:
        """Look the host over again: what was thought to be there is not."""
        self._views.forget()
        return self

    def seen(
        self, world: World, capture: Capture, user: int, seat: Seat | None, *, by_launcher: bool, privileged: bool,
        shares_network: bool,
    ) -> Seen:  # fmt: skip
        """Return everything that a command of a user sees; `by_launcher` tells who mounts it."""
        roots = [layer.root for layer in capture.layers]
        homes = self.homes(user, world.home)
        points = (*roots, *(() if world.playground is None else (world.playground.target,)))
        look, home = 0, ""
        is_cut = by_launcher and capture.way == KERNEL  # other ways show a root as it is, with its sockets
        base: list[Operation]
        if world.tree is None:
            is_locked = not privileged or self._are_locked()
            sight = self._sight(homes, points, as_root=user == 0, is_locked=is_locked, by_launcher=by_launcher)
            view = self._views.of(sight)
            if sight.is_home_hidden and any(each.target == sight.homes[0] for each in view.operations):
                home = sight.homes[0]
            base, look, masked = list(view.operations), view.look, view.inside
        else:
            is_cut = is_cut and self._can_cut(world, world.tree, capture)
            base = [*world.tree.mounts(is_cut=is_cut), Devices(target="/dev")]
            masked = inside(self._existing(homes, roots, as_root=user == 0), roots)
        scratch = world.scratch
        tmp = (seat.tmp if seat else "") or (scratch.tmp if scratch else "")
        base += [] if tmp else [Tmpfs(target=TMP, mode=0o1777)]
        ahead = len(base) if world.tree is None and by_launcher else 0
        own = [
            *([Bind(target=TMP, source=tmp, is_writable=True, why="kept between commands")] if tmp else []),
            *(scratch.mounts if scratch else ()),
            *_shelves(world, capture),
            *(() if world.playground is None else (world.playground.mount(),)),
            *capture.mounts,
            *self._masks_in_roots(capture, masked),
            *(seat.mounts if seat else ()),
            *_sourced(world.source, home),
            *(world.names() if shares_network else ()),
            *(_skill(source, target, is_cut=is_cut) for source, target in world.skills),
            Console(target="/dev/console"),
        ]
        if tmp:
            check_tmp(tuple(own))  # nothing else is mounted in there
        kernel = (Proc(target="/proc", is_read_only=user == 0), *self._kernel_masks(as_root=user == 0))
        mounts = sealed([*base, *kernel, *own])
        return Seen(mounts=tuple(mounts), ahead=ahead, look=look, is_cut=is_cut, home=home)

    # --- the host ---

    def homes(self, user: int, variable: str) -> tuple[str, ...]:
        """Return where a user is at home: what HOME says, and what the system knows, where tools may be installed."""
        homes = self._homes.get((user, variable))
        if homes is None:
            import pwd

            try:
                listed = pwd.getpwuid(user).pw_dir
            except KeyError:
                listed = ""
            own = os.environ.get("HOME", "") if user == os.geteuid() else ""
            named = [home.rstrip("/") for home in (variable, own, listed) if home.startswith("/") and home.rstrip("/")]
            homes = self._homes[user, variable] = tuple(dict.fromkeys(named)) or ("/nonexistent",)
        return homes

    def masks(self, homes: Sequence[str], *, as_root: bool) -> Masks:
        """Return what a command with these homes may not read."""
        # Of our cache, only what commands left there: what one project kept is no other project's business.
        own = (self._places.state, self._places.data, self._places.config, f"{self._places.cache}/scratch")
        return masks(homes, own, self._policy.mask, self._policy.unmask, root=as_root)

    def _sight(
        self, homes: Sequence[str], points: tuple[str, ...], *, as_root: bool, is_locked: bool, by_launcher: bool
    ) -> Sight:
        is_hidden = self._policy.home == HIDDEN
        linked = [os.path.realpath(path) for root in points for path in self._links_in(root)]
        asked = (homes, points, linked, as_root, is_locked, by_launcher, dict(os.environ) if is_hidden else {})
        if self._last_sight is not None and self._last_sight[0] == asked:
            return self._last_sight[1]
        masked = self.masks(homes, as_root=as_root)
        # Where only bubblewrap can mount, our own Python may have to start in there first.
        added = self._policy.show if by_launcher else (*self._policy.show, sys.base_prefix)
        sight = Sight(
            homes=tuple(dict.fromkeys(os.path.realpath(home) for home in homes)), points=points,
            hidden=(*masked.hidden, *linked), shown=masked.shown, added=added,
            # The person's own: a command may have had its session keep others.
            variables=relevant_variables(os.environ) if is_hidden else (),
            is_home_hidden=is_hidden, is_locked=is_locked,
        )  # fmt: skip
        self._last_sight = asked, sight
        return sight

    def _are_locked(self) -> bool:
        """Tell whether the mounts here belong to another user namespace than ours, which locks them together."""
        if self._is_locked is None:
            with open("/proc/self/uid_map", "rb") as file:
                self._is_locked = file.read().split() != [b"0", b"0", b"%d" % (2**32 - 1)]
        return self._is_locked

    def _kernel_masks(self, *, as_root: bool) -> tuple[Operation, ...]:
        if as_root not in self._kernel:
            self._kernel[as_root] = kernel_masks(as_root=as_root)
        return self._kernel[as_root]

    # --- a root tree ---

    def _can_cut(self, world: World, tree: Tree, capture: Capture) -> bool:
        """Tell whether a tree and its skills can be shown through views, which cut the sockets in them."""
        shown = [os.path.realpath(source) for source, _ in world.skills]
        if not tree.lowers:  # a layer of the project's own is an overlay already
            shown.append(tree.path)
        # What is mounted in it would not be seen, and a root would be overlaid where it is not itself.
        return not any(
            mounts_inside(path) or any(is_below(layer.root, path) for layer in capture.layers) for path in shown
        )

    def _existing(self, homes: Sequence[str], roots: Sequence[str], *, as_root: bool) -> list[str]:
        """Return what is masked and exists, where it really lies, in order."""
        hidden = self.masks(homes, as_root=as_root).hidden
        linked = [path for root in roots for path in self._links_in(root)]
        return sorted({os.path.realpath(path) for path in (*hidden, *linked) if os.path.exists(path)})

    # --- the roots ---

    def _links_in(self, root: str) -> list[str]:
        """Return what a person masked in a root and is a link there."""
        return [path for name in self._in_roots if os.path.islink(path := f"{root}/{name}")]

    def _masks_in_roots(self, capture: Capture, masked: Sequence[str]) -> list[Operation]:
        """Return what hides masked things in the roots; most have nothing to hide."""
        if not self._in_roots and not masked:
            return []
        from fumehood.linux.rootmasks import masks_in_roots

        return masks_in_roots(capture, self._in_roots, masked)


def _sourced(path: str, home: str) -> list[Operation]:
    """Show the one file of a hidden home that the shell was told to read first."""
    real = os.path.realpath(path) if path else ""
    if not home or not is_below(real, home) or not os.path.isfile(real):
        return []
    return [Bind(target=real, source=real, why="the shell reads it first")]


def _skill(source: str, target: str, *, is_cut: bool) -> Operation:
    if is_cut:
        return View(target=target, sources=(os.path.realpath(source),), why="a skill")
    return Bind(target=target, source=source, why="a skill")


def _shelves(world: World, capture: Capture) -> list[Operation]:
    """Return the directories of a tree that hold several mount points, made fresh: `/skills`, `/roots`.

    In a tree that can be written, all of its free mount points too.
    """
    if world.tree is None:
        return []
    mounted = [target for _, target in (*capture.targets, *world.skills)]
    free = [point for point in world.tree.guarded if point not in mounted]
    above = [path.rpartition("/")[0] for path in mounted]
    shelves = dict.fromkeys((*(path for path in above if path), *free))
    return [Tmpfs(target=path, is_sealed=True) for path in shelves]
