"""Everything that a command sees, as one list of mounts: the host or a root tree, then the roots and the rest."""

from __future__ import annotations

import os
import pwd
import stat
import sys

from fumehood.core.environment import inherited_environment, resolvers
from fumehood.core.installations import variables_for_tools
from fumehood.core.masks import Masks, Sight, make_masks
from fumehood.core.paths import innermost, is_below, is_in, paths_inside
from fumehood.core.policy import HIDDEN, PRETEND, Policy
from fumehood.core.report import Blocked
from fumehood.core.request import ALPINE, HOST, SHELL
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.linux.bwrap import TMP
from fumehood.linux.capture import BWRAP, COPY, KERNEL, Capture, user_name
from fumehood.linux.hostview import HostViews, kernel_masks
from fumehood.linux.libc import Descriptors, read
from fumehood.linux.mounts import Bind, Console, Devices, Folder, Mask, Operation, Proc, Tmpfs, View, with_seals
from fumehood.linux.namespaces import Layer, mounts_are_locked, mounts_inside
from fumehood.linux.nofollow import open_top
from fumehood.service.provided import (
    PLAYGROUND,
    Playground,
    account,
    certificate_mounts,
    identity_in_tree,
    identity_mounts_on_host,
    make_playground,
    playground,
    resolver_mounts,
    secret_paths_in_variables,
)
from fumehood.store.places import Places, home, process_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fumehood.linux.launch import Owner
    from fumehood.linux.lock import Lock
    from fumehood.rootfs.tree import RootLayer, RootTree
    from fumehood.service.profiles import Scratch
    from fumehood.service.session import SessionRun

_GIT_VARIABLES = ("GIT_CONFIG", "GIT_CONFIG_GLOBAL")
_VISIBILITY_KEYS = ("home", "show", "mask", "unmask", "devices")  # what of a policy decides what is seen


class World(Value):
    """What surrounds one command: variables, root tree, shell and so on. Without a tree it is the host's system."""

    environment: dict[str, str]
    home: str = ""  # the person's own, which no command can change: it decides what is masked
    variables: tuple[tuple[str, str], ...] = ()  # the person's own too: they decide what of a hidden home is shown
    dropped: tuple[str, ...] = ()
    tree: RootTree | None = None
    targets: dict[str, str] = {}  # noqa: RUF012 - never changed
    skills: tuple[tuple[str, str], ...] = ()  # each one's directory, and where it appears
    host_shell: str = SHELL
    source: str = ""  # a file of the host that this shell reads first
    base: str = ""  # the name of the tree, if it is an installed one
    layer: str = ""  # the directory of the project's root layer
    blocked: tuple[Blocked, ...] = ()
    scratch: Scratch | None = None
    identity_mounts: tuple[Operation, ...] = ()  # files that tell the command who it is
    playground: Playground | None = None
    no_playground: str = ""  # why there is no playground
    ownership: str = PRETEND
    thrown: str = ""  # a temporary directory that is shown in place of the project
    write: tuple[str, ...] | None = None  # the only paths that may be written, by the host's names; None: every root

    @property
    def shell(self) -> str:
        """The shell that reads the command."""
        return self.host_shell if self.tree is None else self.tree.shell

    @property
    def write_hint(self) -> str:
        """How commands could be allowed to write more, as the end of a sentence."""
        return "; with rootfs.writable = true, also a root of the project's own" if self.base and not self.layer else ""

    def pretends_owners(self, user: int) -> bool:
        """Return True if chown succeeds and does nothing: only for a command that is root inside."""
        is_root_inside = user == 0 or (self.tree is not None and self.tree.is_writable)
        return is_root_inside and self.ownership == PRETEND

    def lock_tree(self, way: str) -> TreeLock:
        """Keep the tree from being removed during a `with` block, which gets the world with the root layer in it."""
        return TreeLock(self, way)

    def resolvers(self) -> tuple[str, ...]:
        """Return the addresses of the name servers that a command's programs ask."""
        if self.tree is None:
            return resolvers(read("/etc/resolv.conf").decode(errors="replace"))
        from fumehood.rootfs.tree import resolver_settings

        layer = [f"{self.layer}/upper"] if self.layer else []
        return resolvers(resolver_settings([*layer, self.tree.path]))

    def inside(self, directory: str) -> str:
        """Return the path at which the command sees a directory of the host."""
        if not self.targets:
            return directory
        from fumehood.rootfs.tree import path_inside

        return path_inside(directory, self.targets)

    def writable(self, roots: Sequence[str]) -> list[str]:
        """Return what a command may write besides /tmp, as it sees it: the roots, and the playground."""
        playground_path = self.playground
        playground = () if playground_path is None or not playground_path.is_writable else (playground_path.target,)
        return [*map(self.inside, roots if self.write is None else self.write), *playground]

    def start_directory(self, asked: str, project: str) -> str:
        """Return the directory in which the command starts, by the host's path.

        A relative path is relative to the project; `playground` is the playground.
        """
        if asked == PLAYGROUND:
            if self.playground is None:
                raise BadRequest("there is no playground", hint=self.no_playground)
            return self.playground.target
        return self.outside(os.path.normpath(os.path.join(project, asked)))

    def outside(self, path: str) -> str:
        """Return the host's path for a path that the command sees."""
        if not self.targets:
            return path
        from fumehood.rootfs.tree import path_outside

        return path_outside(path, self.targets)


class TreeLock:
    """Keeps a tree from being removed while a command runs in it, and its root layer from being written by another."""

    def __init__(self, world: World, way: str) -> None:
        self._world = world
        self._way = way
        self._tree: Lock | None = None
        self._layer: RootLayer | None = None

    def __enter__(self) -> World:
        world, tree = self._world, self._world.tree
        if tree is None:
            return world
        from fumehood.rootfs.tree import MOUNT_POINTS, RootLayer, lock_against_removal

        if world.layer and self._way not in (KERNEL, BWRAP):
            raise BadRequest(
                f"a writable root needs an overlay, and writes are captured by {self._way} here",
                hint="fumehood doctor says why; rootfs.writable = false runs with the root read-only",
            )
        self._tree = lock_against_removal(tree.path)
        if not world.layer:
            return world
        try:
            # The project's layer over the tree; read-only if another command is writing it.
            self._layer = RootLayer(world.layer)
            is_writable = self._layer.take(world.base)
        except BaseException:
            self.__exit__()
            raise
        upper, work = (self._layer.upper, self._layer.work) if is_writable else ("", "")
        lowers = (tree.path,) if is_writable else (self._layer.upper, tree.path)
        tree = tree.replace(lowers=lowers, upper=upper, work=work, guarded=MOUNT_POINTS)
        hint = "another command of this project is writing it; / was read-only"
        busy = Blocked(what="write", detail="the root layer", hint=hint)
        return world.replace(tree=tree, blocked=() if is_writable else (busy,))

    def __exit__(self, *_error: object) -> None:
        if self._layer is not None:
            self._layer.release()
        if self._tree is not None:
            self._tree.close()


def host_or_tree_world(
    places: Places, policy: Policy, root: str, roots: Sequence[str], owner: Owner | None = None, project: int = 0,
    *, makes_points: bool = True,
) -> World:  # fmt: skip
    """Return what surrounds a command: `root` is host, alpine, the name of an installed tree, or a directory.

    `makes_points`: mount points can be made that the host does not have.
    """
    playground_path, no_playground = _playground(places, policy, owner)
    user = (os.geteuid(), os.getegid()) if owner is None else (owner.user, owner.group)
    skills: tuple[tuple[str, str], ...] = ()
    if policy.skills:
        from fumehood.rootfs.tree import skill_targets

        skills = skill_targets(policy.skills)
    for source, _ in skills:
        if not os.path.isdir(source):
            raise BadRequest(f"the skill {source} is not a directory", hint="correct [[skill]] in the configuration")
    if root in ("", HOST):
        wishes, own = policy.environment, process_variables()
        environment, dropped = inherited_environment(own, wishes.keep, wishes.drop)
        if policy.home == HIDDEN:
            for name in _GIT_VARIABLES:
                environment.pop(name, None)  # git would not read the settings that are made for it
        environment |= policy.variables_in(HOST)
        if owner is not None:
            environment |= home_variables(owner)
        base = environment.get("HOME") or home()
        trusted = certificate_mounts(environment, os.path.realpath(base)) if policy.home == HIDDEN else ()
        shown = playground(places, playground_path, base, roots, makes_points=makes_points) if playground_path else None
        return World(
            environment=environment, home=environment.get("HOME", ""), dropped=dropped, playground=shown,
            no_playground=no_playground, skills=skills, ownership=policy.ownership,
            identity_mounts=(*identity_mounts_on_host(places.cache, *user, base), *trusted),
            variables=variables_for_tools(own) if policy.home == HIDDEN else (),
        )  # fmt: skip
    from fumehood.rootfs import tree as root_tree

    layer = f"{places.layers}/{project}" if policy.rootfs.writable and "/" not in root else ""
    tree, base = _tree(places, root, layer)
    own_home = home() if owner is None else home_variables(owner)["HOME"]
    identity_mounts, variables = identity_in_tree(places.cache, tree, *user, own_home, roots, is_layered=bool(layer))
    environment = {**root_tree.ENVIRONMENT, **variables, **policy.variables_in(root, base, tree.path)}
    shown = Playground(source=playground_path, target=root_tree.PLAYGROUND) if playground_path else None
    return World(
        environment=environment, home=own_home, identity_mounts=tuple(identity_mounts), tree=tree,
        targets=root_tree.root_targets(roots), skills=skills, base=base, layer=layer,
        playground=shown, no_playground=no_playground, ownership=policy.ownership,
    )  # fmt: skip


def _playground(places: Places, policy: Policy, owner: Owner | None) -> tuple[str, str]:
    """Return the path of the playground, or "" and why there is none.

    If it can't be made, only commands that ask for it are refused.
    """
    if not policy.playground:
        return "", "the configuration turned it off"
    if owner is not None:
        return "", "root runs this for another user, who can't reach root's"
    try:
        return make_playground(places), ""
    except FumehoodError as error:
        return "", f"{error.message}; {error.hint}"


def home_variables(owner: Owner) -> dict[str, str]:
    """Return the variables that name the command's user and their home."""
    person = account(owner.user, owner.group)
    return {"HOME": person.home, "USER": person.name, "LOGNAME": person.name}


def _tree(places: Places, root: str, layer: str) -> tuple[RootTree, str]:
    """Return a tree and its name; if the project has a root layer, the tree below that layer."""
    from fumehood.rootfs import tree as root_tree

    if "/" in root:
        path = os.path.realpath(root)
        if path == "/":
            raise BadRequest("/ is the host's own root", hint="--root host")
        return root_tree.tree_at(path), ""
    pinned = ""
    if layer:
        from fumehood.rootfs.tree import RootLayer

        pinned = RootLayer(layer).base
    if pinned and root not in (ALPINE, pinned):
        raise BadRequest(
            f"this project's root layer lies over {pinned}, not over {root}", hint="fumehood workspace reset drops it"
        )
    installed = root_tree.find(root_tree.trees_directory(places.data), pinned or root)
    if layer and os.stat(installed.path).st_uid != os.geteuid():
        # No file of it could be changed: in the sandbox its owner is unknown.
        whose = user_name(os.stat(installed.path).st_uid)
        raise BadRequest(
            f"the root tree {installed.path} belongs to {whose}, so it can't have a layer that you write",
            hint="install one of your own, without FUMEHOOD_ROOTFS_DIR; rootfs.writable = false uses it read-only",
        )
    return root_tree.tree_at(installed.path), installed.name


class VisibleMounts(Value):
    """All mounts of a command. The first `host_mount_count` show the host, by the survey `host_view_number`."""

    mounts: tuple[Operation, ...]
    host_mount_count: int
    host_view_number: int
    blocks_sockets: bool  # no socket of the host's can be connected to
    temporary_home: str = ""  # an empty home that is deleted at the end

    def hides(self, path: str) -> bool:
        """Return True if a path of the host is hidden because the home is."""
        mounts_around = (each for each in self.mounts if is_in(path, (each.target,)))
        innermost_mount = max(mounts_around, key=lambda each: len(each.target))
        return isinstance(innermost_mount, (Tmpfs, Folder)) and os.path.lexists(path)


class Surroundings:
    """Puts together what one project's commands see."""

    def __init__(self, places: Places, policy: Policy, views: HostViews) -> None:
        self._places = places
        self._policy = policy
        self._views = views
        self._kernel_mounts: dict[bool, tuple[Operation, ...]] = {}
        self._homes: dict[tuple[int, str], tuple[str, ...]] = {}
        self._is_locked: bool | None = None
        self._last_sight: tuple[object, Sight] | None = None
        masks = make_masks(("/",), (), policy.mask, policy.unmask, as_root=False) if policy.mask else None
        self._in_roots = () if masks is None else masks.in_roots

    def with_policy(self, policy: Policy) -> Surroundings:
        """Return surroundings for another policy; what is already known about the host is shared."""
        if all(getattr(policy, name) == getattr(self._policy, name) for name in _VISIBILITY_KEYS):
            return self
        other = Surroundings(self._places, policy, self._views)
        other._kernel_mounts, other._homes, other._is_locked = self._kernel_mounts, self._homes, self._is_locked
        return other

    @property
    def cache(self) -> str:
        """The directory for what can be made again."""
        return self._places.cache

    def forget_host_view(self) -> None:
        """Have the host surveyed again: it is no longer as it was found."""
        self._views.forget()

    def visible_mounts(
        self, world: World, capture: Capture, user: int, session_run: SessionRun | None, *, by_launcher: bool,
        privileged: bool, shares_network: bool, is_offline: bool = False,
    ) -> VisibleMounts:  # fmt: skip
        """Return everything that a user's command sees; `by_launcher`: our launcher mounts it, not bubblewrap."""
        roots = [layer.root for layer in capture.layers]
        homes = self.homes(user, world.home)
        # Mount points that the host may lack.
        shown = () if world.playground is None else (world.playground.target,)
        points = (*roots, *shown, *(world.scratch.points if world.scratch else ()))
        view_number, temporary_home = 0, ""
        # The other ways of capturing show a root itself, with its sockets.
        blocks_sockets = by_launcher and capture.way == KERNEL and self._can_block_sockets(world, capture)
        base: list[Operation]
        if world.tree is None:
            if privileged and self._is_locked is None:
                self._is_locked = mounts_are_locked(privileged=privileged)
            is_locked = not privileged or bool(self._is_locked)
            sight = self._sight(homes, points, world.variables, user=user, is_locked=is_locked, by_launcher=by_launcher)
            view = self._views.view_for(sight)
            if sight.is_home_hidden and any(each.target == sight.homes[0] for each in view.operations):
                temporary_home = sight.homes[0]
            base, view_number, masked = list(view.operations), view.number, view.masked_in_roots
        else:
            base = [*world.tree.mounts(blocks_sockets=blocks_sockets), Devices(target="/dev")]
            linked = [path for root in roots for path in self._links_in(root)]
            paths = (*self.masks(homes, as_root=user == 0).hidden, *linked)
            masked = paths_inside(sorted({os.path.realpath(path) for path in paths if os.path.exists(path)}), roots)
        scratch = world.scratch
        tmp = (session_run.tmp if session_run else "") or (scratch.tmp if scratch else "")
        sourced = os.path.realpath(world.source) if world.source else ""
        own: list[Operation] = [
            *(scratch.mounts if scratch else ()),
            *_mount_point_parents(world, capture),
            *(() if world.playground is None else (world.playground.mount(),)),
            *(root_mounts(capture, self._in_roots, masked) if self._in_roots or masked else capture.mounts),
            # A temporary directory in place of a project: no layer captures what is written there.
            *(
                [Bind(
                    target=capture.targets[0][1], source=world.thrown, is_writable=world.write != (),
                    why="thrown away at the end",
                )] if world.thrown else ()
            ),
            *(session_run.mounts if session_run else ()),
            # The only file of a hidden home that is shown: the shell was told to read it first.
            *(
                [Bind(target=sourced, source=sourced, why="the shell reads it first")]
                if temporary_home and is_below(sourced, temporary_home) and os.path.isfile(sourced) else ()
            ),
            *world.identity_mounts,
            *self._name_mounts(world, shares_network=shares_network, is_offline=is_offline),
            *(
                View(target=target, sources=(os.path.realpath(source),), why="a skill") if blocks_sockets
                else Bind(target=target, source=source, why="a skill")
                for source, target in world.skills
            ),
            *(self._devices(world) if self._policy.devices else ()),
            Console(target="/dev/console"),
        ]  # fmt: skip
        if scratch:  # Commands may have left links in it: nothing is mounted inside.
            around = [each for each in scratch.mounts if any(is_below(other.target, each.target) for other in own)]
            own = [each for each in own if each not in around]
        kept = _persistent_tmp(tmp, session_run, own) if tmp else []
        own[:0] = kept
        if not kept:
            base.append(Tmpfs(target=TMP, mode=0o1777))
        host_mount_count = len(base) if world.tree is None and by_launcher else 0
        if (user == 0) not in self._kernel_mounts:
            self._kernel_mounts[user == 0] = kernel_masks(as_root=user == 0)
        kernel = (Proc(target="/proc", is_read_only=user == 0), *self._kernel_mounts[user == 0])
        mounts = with_seals([*base, *kernel, *own])
        return VisibleMounts(
            mounts=tuple(mounts), host_mount_count=host_mount_count, host_view_number=view_number,
            blocks_sockets=blocks_sockets, temporary_home=temporary_home,
        )  # fmt: skip

    def _devices(self, world: World) -> list[Operation]:
        """Return the devices that the configuration names, and their description in /sys."""
        from fumehood.linux import survey

        tree, paths = world.tree, self._policy.devices
        if tree is None:
            return [*survey.shown_devices(paths), *survey.device_descriptions(paths)]
        # In a directory that commands can write, there may be a link at this place.
        if tree.guarded or os.path.islink(f"{tree.path}/sys") or not os.path.isdir(f"{tree.path}/sys"):
            return survey.shown_devices(paths)
        return [*survey.shown_devices(paths), Tmpfs(target="/sys", is_sealed=True), *survey.device_descriptions(paths)]

    def _name_mounts(self, world: World, *, shares_network: bool, is_offline: bool) -> Sequence[Operation]:
        """Return the mounts that decide which name server programs ask."""
        tree = world.tree
        if tree is not None and shares_network:
            from fumehood.rootfs.tree import copy_resolver_settings, resolver_binds

            if not tree.guarded:
                return resolver_binds(tree.path)
            if tree.is_writable:
                copy_resolver_settings(f"{world.layer}/upper")
        if tree is not None and tree.guarded:
            return ()  # commands can write the tree and may have put a link there, so nothing is mounted on it
        path = "" if tree is None else tree.path
        return resolver_mounts(self.cache, path, shares_network=shares_network, is_offline=is_offline)

    def homes(self, user: int, variable: str) -> tuple[str, ...]:
        """Return a user's homes: by HOME, and by the system's records, since tools may be installed in both."""
        homes = self._homes.get((user, variable))
        if homes is None:
            try:
                listed = pwd.getpwuid(user).pw_dir
            except KeyError:
                listed = ""
            own = os.environ.get("HOME", "") if user == os.geteuid() else ""
            named = [home.rstrip("/") for home in (variable, own, listed) if home.startswith("/") and home.rstrip("/")]
            homes = self._homes[user, variable] = tuple(dict.fromkeys(named)) or ("/nonexistent",)
        return homes

    def masks(self, homes: Sequence[str], *, as_root: bool) -> Masks:
        """Return the paths that a command with these homes may not read."""
        # Of our cache, only the scratch directories: no project may read those of another.
        own = [self._places.state, self._places.data, self._places.config, f"{self._places.cache}/scratch"]
        own += [self._policy.sign.key] if self._policy.sign.key else []
        return make_masks(homes, own, self._policy.mask, self._policy.unmask, as_root=as_root)

    def _sight(
        self, homes: Sequence[str], points: tuple[str, ...], variables: tuple[tuple[str, str], ...], *, user: int,
        is_locked: bool, by_launcher: bool,
    ) -> Sight:  # fmt: skip
        besides = [os.path.realpath(path) for root in points for path in self._links_in(root)]
        besides += [path for path in secret_paths_in_variables() if not is_in(path, points)]
        asked = (homes, points, variables, besides, user, is_locked, by_launcher)
        if self._last_sight is not None and self._last_sight[0] == asked:
            return self._last_sight[1]
        masked = self.masks(homes, as_root=user == 0)
        # If only bubblewrap can mount, our own Python may have to start inside first.
        added = self._policy.show if by_launcher else (*self._policy.show, sys.base_prefix)
        sight = Sight(
            homes=tuple(dict.fromkeys(os.path.realpath(home) for home in homes)), points=points,
            hidden=(*masked.hidden, *(path for path in besides if path not in masked.shown)), shown=masked.shown,
            added=added, variables=variables, is_home_hidden=self._policy.home == HIDDEN, is_locked=is_locked,
            user=user,
        )  # fmt: skip
        self._last_sight = asked, sight
        return sight

    def _can_block_sockets(self, world: World, capture: Capture) -> bool:
        """Return True if the tree and the skills can be shown through views, which block the sockets in them."""
        shown = [os.path.realpath(source) for source, _ in world.skills]
        if world.tree is not None and not world.tree.lowers:  # a layer of the project's own is an overlay already
            shown.append(world.tree.path)
        # A view would not show what is mounted inside it, and would cover a root that lies inside it.
        return not any(
            mounts_inside(path) or any(is_below(layer.root, path) for layer in capture.layers) for path in shown
        )

    def _links_in(self, root: str) -> list[str]:
        """Return the masked paths in a root that are symlinks."""
        return [path for name in self._in_roots if os.path.islink(path := f"{root}/{name}")]


def _persistent_tmp(tmp: str, session_run: SessionRun | None, own: Sequence[Operation]) -> list[Operation]:
    """Return the mounts for a /tmp that is kept between commands; none if a session can't have one here.

    Commands may have left links in it that would lead a mount elsewhere. So only directories that were made before any
    command ran are used as mount points.
    """
    session = session_run if session_run is not None and tmp == session_run.tmp else None
    points = [f"{TMP}/{name}" for name in session.tmp_points] if session is not None else []
    targets = [each.target for each in own if is_in(each.target, (TMP,))]
    other = next((each for each in targets if not is_in(each, points)), "")
    if other and session is not None and not session.must_have_tmp:
        session.why_no_tmp = f"{other} lies in /tmp"
        return []
    if other:
        raise BadRequest(
            f"{TMP} can't be kept between commands here: {other} lies in it", hint='move it, or set tmp = "fresh"'
        )
    parents = [point for point in points if point not in targets and any(is_below(each, point) for each in targets)]
    return [
        Bind(target=TMP, source=tmp, is_writable=True, why="kept between commands"),
        *(Tmpfs(target=point, is_sealed=True, why="a root lies in it") for point in parents),
    ]


def _mount_point_parents(world: World, capture: Capture) -> list[Operation]:
    """Return empty directories that hold several mount points: `/skills`, and in a tree `/roots`.

    In a writable tree, also all of its unused mount points.
    """
    if world.tree is None:
        if not world.skills:
            return []
        from fumehood.rootfs.tree import SKILLS

        return [Tmpfs(target=SKILLS, is_sealed=True)]
    mounted = [target for _, target in (*capture.targets, *world.skills)]
    mounted += [world.playground.target] if world.playground else []
    free = [point for point in world.tree.guarded if point not in mounted]
    above = [path.rpartition("/")[0] for path in mounted]
    shelves = dict.fromkeys((*(path for path in above if path and not is_in(path, mounted)), *free))
    return [Tmpfs(target=path, is_sealed=True) for path in shelves]


def root_mounts(capture: Capture, names: Sequence[str], inside: Sequence[str]) -> list[Operation]:
    """Return the mounts that show the roots, and those that hide masked paths in them.

    A mask is a mount over the path, since the command may write around it. `names` are masked below every root,
    `inside` are masked paths of the host that lie in a root. If a masked path is a link, its target is hidden and not
    the link: a command could have made the link.
    """
    hiding: list[Operation] = []
    held: dict[str, Operation] = {}
    roots = [layer.root for layer in capture.layers]
    paths = dict.fromkeys((*(f"{root}/{name}" for root in roots for name in names), *inside))
    for layer, (root, target) in zip(capture.layers, capture.targets, strict=True):
        below = [path[len(root) + 1 :] for path in paths if innermost(os.path.dirname(path), roots) == root]
        for name, is_directory in _visible_entries(layer, below):
            hiding.append(Mask(target=f"{target}/{name}", is_directory=is_directory, why="masked"))
            if capture.way == COPY and not layer.is_overlaid:
                # The directories above it too: one that is no mount point could be renamed, and the mask with it.
                parts = name.split("/")
                for above in ("/".join(parts[:length]) for length in range(1, len(parts))):
                    source = f"{layer.merged}/{above}"
                    held[source] = Bind(
                        target=f"{target}/{above}", source=source, is_writable=True, why="held in place"
                    )
    # A root inside another lies over what is held in place around it.
    return [*sorted((*capture.mounts, *held.values()), key=lambda each: len(each.target)), *hiding]


def _visible_entries(layer: Layer, names: Iterable[str]) -> list[tuple[str, bool]]:
    """Return the names that the command sees, in the root or in held layers, and whether each is a directory.

    No link is followed: bubblewrap would follow it out of the sandbox to make a mount point.
    """
    from fumehood.linux.layer import LayerStack

    visible = []
    with Descriptors(map(open_top, layer.lowers)) as tops, LayerStack(tops) as stack:
        for name in names:
            above, _, last = name.rpartition("/")
            try:
                with stack.open_merged(above) as directory:
                    status, _ = directory.look(last)
            except OSError:
                continue
            if status is not None and (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
                visible.append((name, stat.S_ISDIR(status.st_mode)))
    return visible
