"""The functions of `fumehood.rootfs`, for programs: which root trees there are, and how one is installed or removed."""

from __future__ import annotations

import os
from contextlib import closing

from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.rootfs import download, tree
from fumehood.service import root_trees
from fumehood.service.opened import OpenedStore
from fumehood.store.config import policy_for
from fumehood.store.places import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.rootfs.tree import Installed
    from fumehood.service.root_trees import Progress


class InstalledTree(Value):
    """An installed root tree; `current` tells that it is the one that `alpine` means."""

    name: str
    version: str
    path: str
    current: bool


def architecture() -> str:
    """Return Alpine's name for this machine's architecture; raises Unavailable where Alpine has none for it."""
    return download.architecture()


def latest_version(mirror: str = "", proxy: str = "") -> str:
    """Ask the mirror, by default the configured one, for the newest Alpine version."""
    settings = policy_for(places(), ()).rootfs
    fetcher = download.Fetcher(proxy or settings.proxy)
    return download.latest(fetcher, mirror or settings.mirror or download.MIRROR, architecture()).version


def directory(name: str = "") -> str:
    """Return the directory that holds the root trees, or that of the tree of a name; `alpine` is the one in use."""
    at = tree.collection(places().data)
    return tree.find(at, name).path if name else at


def is_ready(name: str = tree.ALPINE) -> bool:
    """Return True if commands can run in a tree; asks nobody, so it works offline."""
    try:
        return bool(directory(name))
    except BadRequest:
        return False


def install(
    *, tier: int | None = None, packages: Sequence[str] = (), from_: str | os.PathLike[str] = "", mirror: str = "",
    key: str | Sequence[str] = (), version: str = "", name: str = "", sha256: str = "", proxy: str = "",
    on_progress: Progress | None = None,
) -> InstalledTree:  # fmt: skip
    """Install a root tree unless it is here, and return it; processes that do so at once wait for the first.

    `tier` 1 has a shell and Python, 2 more tools, 0 nothing but the tarball; `packages` are installed besides. `from_`
    is a tarball, an image archive or an address of one (the tier is then 0 if not given); without it, a release comes
    from the mirror. `key` names files with public keys that sign packages. `on_progress` is told (what is done, bytes
    here, bytes in all); both are 0 where nothing is downloaded.
    """
    with closing(OpenedStore()) as store:
        installed = root_trees.install(
            store, tier=tier, packages=packages, from_=os.fspath(from_), mirror=mirror, key=key, version=version,
            name=name, sha256=sha256, proxy=proxy, on_progress=on_progress,
        )  # fmt: skip
        return _entry(installed, root_trees.installed(store)[1])


def installed_trees() -> list[InstalledTree]:
    """Return the root trees that are ready, by name."""
    with closing(OpenedStore()) as store:
        trees, current = root_trees.installed(store)
    return [_entry(each, current) for each in trees]


def remove(name: str) -> None:
    """Remove a root tree that no command runs in and no project's layer lies over."""
    with closing(OpenedStore()) as store:
        root_trees.remove(store, name)


def _entry(installed: Installed, current: str) -> InstalledTree:
    is_current = installed.name == current
    return InstalledTree(name=installed.name, version=installed.version, path=installed.path, current=is_current)
