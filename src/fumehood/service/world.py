"""What surrounds a command: the host's own system, or a root tree with the project at /workspace."""

from __future__ import annotations

import os

from fumehood.core import inside
from fumehood.core.environment import inherited
from fumehood.core.policy import HIDDEN, PRETEND
from fumehood.core.report import Blocked
from fumehood.core.request import SHELL
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.capture import BWRAP, KERNEL
from fumehood.service.playground import PLAYGROUND, Playground, is_there, made, playground
from fumehood.store.places import home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.policy import Policy
    from fumehood.linux.launch import Owner
    from fumehood.linux.mounts import Operation
    from fumehood.rootfs.installed import InUse
    from fumehood.rootfs.layer import RootLayer
    from fumehood.rootfs.tree import Tree
    from fumehood.service.scratch import Scratch
    from fumehood.store.places import Places

HOST, ALPINE = "host", "alpine"
_OF_GIT = ("GIT_CONFIG", "GIT_CONFIG_GLOBAL")


class World(Value):
    """One command's surroundings; without a tree, the host's, where every root is at its own path."""

    environment: dict[str, str]
    home: str = ""  # by the person's word, whatever a command had its session keep: what is masked depends on it
    dropped: tuple[str, ...] = ()
    tree: Tree | None = None
    targets: dict[str, str] = {}  # noqa: RUF012 - never changed
    skills: tuple[tuple[str, str], ...] = ()  # each one's directory, and where it appears
    host_shell: str = SHELL
    source: str = ""  # a file of the host's that this shell reads first
    base: str = ""  # the name of the tree, where it is an installed one
    layer: str = ""  # the directory of the project's own layer over it
    blocked: tuple[Blocked, ...] = ()
    scratch: Scratch | None = None
    playground: Playground | None = None
    ownership: str = PRETEND

    @property
    def shell(self) -> str:
        """The shell that reads the command."""
        return self.host_shell if self.tree is None else self.tree.shell

    @property
    def remedy(self) -> str:
        """What lets commands write more than they may here, said at the end of a sentence."""
        return "; with rootfs.writable = true, also a root of the project's own" if self.base and not self.layer else ""

    def pretends_owners(self, user: int) -> bool:
        """Say whether giving a file to another owner does nothing and succeeds: only for who is root inside."""
        is_root_inside = user == 0 or (self.tree is not None and self.tree.is_writable)
        return is_root_inside and self.ownership == PRETEND

    def entered(self, way: str) -> Entered:
        """Take hold of the tree for the time of a `with` block, which gets the world as it then is."""
        return Entered(self, way)

    def names(self) -> Sequence[Operation]:
        """Let a command that shares the host's network find hosts; returns the files mounted for that."""
        if self.tree is None:
            return ()
        from fumehood.rootfs.names import bound_names, write_names

        if not self.tree.guarded:
            return bound_names(self.tree.path)
        if self.tree.is_writable:
            # What a command left there may be a link: nothing is mounted on it.
            write_names(f"{self.layer}/upper")
        return ()

    def cwd(self, directory: str) -> str:
        """Return a directory as the command sees it."""
        return inside.inside(directory, self.targets)

    def starting(self, asked: str, project: str) -> str:
        """Return where the command starts, as the person knows it: in the project unless something else is asked.

        What is not absolute is relative to the project; `playground` is the playground.
        """
        if asked == PLAYGROUND:
            if self.playground is None:
                hint = "the configuration turned it off, or root runs this for another user"
                raise BadRequest("there is no playground", hint=hint)
            return self.playground.target
        if "\0" in asked:
            raise BadRequest(f"{asked!r} is not a directory", hint="name the working directory")
        return self.known(os.path.normpath(os.path.join(project, asked)))

    def known(self, path: str) -> str:
        """Return a path as the person knows it."""
        return inside.outside(path, self.targets)


class Entered:
    """A world that a command runs in: its tree is not removed, and its layer is nobody else's to write."""

    def __init__(self, world: World, way: str) -> None:
        self._world = world
        self._way = way
        self._tree: InUse | None = None
        self._layer: RootLayer | None = None

    def __enter__(self) -> World:
        world = self._world
        if world.tree is None:
            return world
        from fumehood.rootfs.installed import InUse

        self._tree = InUse(world.tree.path)
        if not world.layer:
            return world
        try:
            return self._layered(world, world.tree)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_error: object) -> None:
        if self._layer is not None:
            self._layer.release()
        if self._tree is not None:
            self._tree.close()

    def _layered(self, world: World, tree: Tree) -> World:
        """Lay the project's own layer over the tree; where another command is writing it, only to be read."""
        from fumehood.rootfs.layer import RootLayer

        if self._way not in (KERNEL, BWRAP):
            raise BadRequest(
                f"a writable root needs an overlay, and writes are captured by {self._way} here",
                hint="fumehood doctor says why; rootfs.writable = false runs with the root read-only",
            )
        self._layer = RootLayer(world.layer)
        taken = self._layer.take(world.base)
        upper, work = (taken.upper, taken.work) if taken.writable else ("", "")
        lowers = (tree.path,) if taken.writable else (taken.upper, tree.path)
        tree = tree.replace(lowers=lowers, upper=upper, work=work, guarded=inside.MOUNT_POINTS)
        return world.replace(tree=tree, blocked=() if taken.writable else (_BUSY,))


_BUSY = Blocked(
    what="write", detail="the root layer", hint="another command of this project is writing it; / was read-only"
)


def around(
    places: Places, policy: Policy, root: str, roots: Sequence[str], owner: Owner | None = None, project: int = 0,
    *, plays: bool = False, makes_points: bool = True,
) -> World:  # fmt: skip
    """Choose what surrounds a command: `root` is host, alpine, an installed tree's name, or a directory.

    `plays` says that the command is going to use the playground. Root's is out of reach for an owner whom root works
    for. `makes_points` tells that mount points can be made where the host has none.
    """
    is_shown = policy.playground and owner is None and (plays or is_there(places))
    if root in ("", HOST):
        wishes = policy.environment
        environment, dropped = inherited(os.environ, wishes.keep, wishes.drop)
        if policy.home == HIDDEN:
            for name in _OF_GIT:
                environment.pop(name, None)  # they lead git past the settings that are made for it
        environment |= dict(wishes.set)
        if owner is not None:
            environment |= home_of(owner)
        base = environment.get("HOME") or home()
        found = playground(places, base, roots, makes_points=makes_points) if is_shown else None
        return World(
            environment=environment, home=environment.get("HOME", ""), dropped=dropped, playground=found,
            ownership=policy.ownership,
        )
    layer = f"{places.layers}/{project}" if policy.rootfs.writable and "/" not in root else ""
    tree, base = _tree(places, root, layer)
    skills = inside.skills(policy.skills)
    for source, _ in skills:
        if not os.path.isdir(source):
            raise BadRequest(f"the skill {source} is not a directory", hint="correct [[skill]] in the configuration")
    environment = {**inside.ENVIRONMENT, **dict(policy.environment.set)}
    found = Playground(source=made(places), target=inside.PLAYGROUND) if is_shown else None
    return World(
        environment=environment, home=home() if owner is None else home_of(owner)["HOME"],
        tree=tree, targets=inside.targets(roots), skills=skills, base=base, layer=layer,
        playground=found, ownership=policy.ownership,
    )  # fmt: skip


def home_of(owner: Owner) -> dict[str, str]:
    """Return the variables that tell a command whose it is."""
    import pwd

    try:
        entry = pwd.getpwuid(owner.user)
    except KeyError:
        return {"HOME": "/"}
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def _tree(places: Places, root: str, layer: str) -> tuple[Tree, str]:
    """Find a tree and its name; where the project has a layer, the tree that it lies over."""
    from fumehood.rootfs.installed import collection, find
    from fumehood.rootfs.tree import tree_at

    if "/" in root:
        path = os.path.realpath(root)
        if path == "/":
            raise BadRequest("/ is the host's own root", hint="--root host")
        return tree_at(path), ""
    at = collection(places.data)
    pinned = _pinned(layer)
    if pinned and root not in (ALPINE, pinned):
        raise BadRequest(
            f"this project's root layer lies over {pinned}, not over {root}", hint="fumehood workspace reset drops it"
        )
    found = find(at, pinned or root)
    return tree_at(found.path), found.name


def _pinned(layer: str) -> str:
    if not layer:
        return ""
    from fumehood.rootfs.layer import RootLayer

    return RootLayer(layer).base
