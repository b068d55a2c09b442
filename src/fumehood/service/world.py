"""What surrounds a command: the host's own system, or a root tree with the project at /workspace."""

from __future__ import annotations

import os

from fumehood.core import inside
from fumehood.core.environment import inherited
from fumehood.core.request import SHELL
from fumehood.core.spec import Tree
from fumehood.core.value import Value
from fumehood.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.policy import Policy
    from fumehood.core.spec import Bound
    from fumehood.rootfs.installed import InUse
    from fumehood.store.places import Places

HOST, ALPINE = "host", "alpine"


class World(Value):
    """One command's surroundings; without a tree, the host's, where every root is at its own path."""

    environment: dict[str, str]
    dropped: tuple[str, ...] = ()
    tree: Tree | None = None
    targets: dict[str, str] = {}  # noqa: RUF012 - never changed
    readonly: tuple[Bound, ...] = ()
    host_shell: str = SHELL

    @property
    def shell(self) -> str:
        """The shell that reads the command."""
        return self.host_shell if self.tree is None else self.tree.shell

    def in_use(self) -> InUse | Untouched:
        """Keep the tree from being removed for the time of a `with` block."""
        if self.tree is None:
            return Untouched()
        from fumehood.rootfs.installed import InUse

        return InUse(self.tree.path)

    def cwd(self, directory: str) -> str:
        """Return a directory as the command sees it."""
        return inside.inside(directory, self.targets)

    def known(self, path: str) -> str:
        """Return a path as the person knows it."""
        return inside.outside(path, self.targets)


class Untouched:
    """Nothing to be kept."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *_error: object) -> None:
        return


def around(places: Places, policy: Policy, root: str, roots: Sequence[str]) -> World:
    """Choose what surrounds a command: `root` is host, alpine, an installed tree's name, or a directory."""
    if root in ("", HOST):
        environment, dropped = inherited(os.environ)
        return World(environment=environment, dropped=dropped)
    tree = _tree(places, root)
    skills = inside.skills(policy.skills)
    for skill in skills:
        if not os.path.isdir(skill.source):
            raise BadRequest(f"the skill {skill.source} is no directory", hint="mend [[skill]] in the configuration")
    environment = {**inside.ENVIRONMENT, **dict(policy.environment.set)}
    return World(environment=environment, tree=tree, targets=inside.targets(roots), readonly=skills)


def _tree(places: Places, root: str) -> Tree:
    from fumehood.rootfs.installed import collection, find
    from fumehood.rootfs.tree import tree_at

    if "/" in root:
        path = os.path.realpath(root)
        if path == "/":
            raise BadRequest("/ is the host's own root", hint="--root host")
        return tree_at(path)
    return tree_at(find(collection(places.data), root).path)
