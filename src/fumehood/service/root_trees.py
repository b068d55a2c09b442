"""Root trees of this person: which there are, and how one is installed, chosen or removed; also for programs."""

from __future__ import annotations

import os
from contextlib import closing

from fumehood.core.report import how_many
from fumehood.core.request import ALPINE
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.probe import host
from fumehood.rootfs import download, tree
from fumehood.rootfs.installer import Installer, Order
from fumehood.rootfs.tree import pins
from fumehood.service.opened import OpenedStore
from fumehood.store.config import policy_for
from fumehood.store.places import Places, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fumehood.core.policy import Rootfs
    from fumehood.rootfs.tree import Installed
    from fumehood.service.store import Store

    Path = str | os.PathLike[str]
    Progress = Callable[[str, int, int], None]


def installed(store: Store) -> tuple[list[Installed], str]:
    """Return the trees that are ready, and the name of the one that `alpine` means."""
    at = tree.collection(store.places.data)
    trees = tree.installed(at)
    is_tree_itself = len(trees) == 1 and trees[0].path == at
    return trees, trees[0].name if is_tree_itself else tree.current(at)


def install_into(
    store: Store, *, tier: int | None = None, packages: Sequence[str] = (), from_: Path = "", mirror: str = "",
    key: Path | Sequence[Path] = (), version: str = "", name: str = "", sha256: str = "", proxy: str = "",
    settings: Rootfs | None = None, on_progress: Progress | None = None,
) -> Installed:  # fmt: skip
    """Install a root tree unless it is here, and return it.

    Tier 1 is the default, and none with a file or an address (`from_`). What is left out is as configured; `key` names
    files. `on_progress` gets a line of what is being done and, while something is downloaded, how many bytes of how
    many there are; else two zeros.
    """
    keys = (key,) if isinstance(key, (str, os.PathLike)) else tuple(key)
    source = os.fspath(from_)
    order = _order(
        settings or _settings(store.places), mirror, proxy, keys,
        tier=tier if tier is not None else 0 if source else 1, packages=tuple(dict.fromkeys(packages)), version=version,
        source=os.path.abspath(source) if source and "://" not in source else source, sha256=sha256.lower(), name=name,
    )  # fmt: skip
    return _installer(store, order.proxy, on_progress).install(order)


def install_if_missing(store: Store, settings: Rootfs, on_progress: Progress | None) -> None:
    """Install the Alpine root where there is none yet: the person's configuration says that it may be."""
    try:
        tree.find(tree.collection(store.places.data))
    except BadRequest:
        install_into(store, settings=settings, on_progress=on_progress)


def update(
    store: Store, *, tier: int | None = None, packages: Sequence[str] = (), mirror: str = "",
    key: Sequence[Path] = (), proxy: str = "", on_progress: Progress | None = None,
) -> Installed | None:  # fmt: skip
    """Install the newest release beside the one in use, with its tier and packages; None where that is the newest."""
    used = tree.mark_of(f"{tree.collection(store.places.data)}/{tree.CURRENT}")
    order = _order(
        _settings(store.places), mirror, proxy, tuple(key),
        tier=tier if tier is not None else used.tier or 1, packages=tuple(dict.fromkeys((*used.packages, *packages))),
    )  # fmt: skip
    return _installer(store, order.proxy, on_progress).update(order)


def newer(store: Store, *, mirror: str = "", proxy: str = "") -> str | None:
    """Return the version that a mirror has and that is newer than the one in use, or None."""
    settings = _settings(store.places)
    release = _installer(store, proxy or settings.proxy, None).newer(_mirror(settings, mirror))
    return None if release is None else release.version


def use(store: Store, name: str) -> Installed:
    """Let `alpine` mean another installed tree."""
    at = tree.collection(store.places.data)
    chosen = tree.find(at, name)
    if chosen.path not in (at, f"{at}/{tree.current(at)}"):
        tree.switch(at, chosen.name)
    return chosen


def remove_from(store: Store, name: str, on_progress: Progress | None = None) -> None:
    """Remove a tree that no command runs in and no project's layer lies over."""
    name = tree.find_damaged(tree.collection(store.places.data), name).name
    count = len(pins(store.places.layers, name))
    if count:
        raise BadRequest(
            f"{name} is in use below the root layer of {how_many(count, 'project')}",
            hint="fumehood workspace list; fumehood workspace reset NAME",
        )
    _installer(store, "", on_progress).remove(name)


def _settings(ours: Places) -> Rootfs:
    return policy_for(ours, ()).rootfs


def _mirror(settings: Rootfs, mirror: str) -> str:
    return mirror or settings.mirror or download.MIRROR


def _order(settings: Rootfs, mirror: str, proxy: str, keys: Sequence[Path], **wanted: Any) -> Order:
    """Return what is to be installed; what was not said is as configured."""
    files = tuple(os.path.abspath(os.path.expanduser(path)) for path in keys or settings.keys)
    return Order(mirror=_mirror(settings, mirror), proxy=proxy or settings.proxy, keys=files, **wanted)


def _installer(store: Store, proxy: str, on_progress: Progress | None) -> Installer:
    ours, line = store.places, ""

    def tell(said: str) -> None:
        nonlocal line
        line = said
        if on_progress is not None:
            on_progress(said, 0, 0)

    def downloaded(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(line, done, total)

    return Installer(
        tree.collection(ours.data), ours.cache, host(ours.cache, ours.state), tell,
        download.Fetcher(proxy, downloaded), os.uname().machine,
    )  # fmt: skip


# ---- The functions of `fumehood.rootfs`, for programs.

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
    settings = _settings(places())
    fetcher = download.Fetcher(proxy or settings.proxy)
    return download.latest(fetcher, _mirror(settings, mirror), architecture()).version


def directory(name: str = "") -> str:
    """Return the directory that holds the root trees, or that of the tree of a name; `alpine` is the one in use."""
    at = tree.collection(places().data)
    return tree.find(at, name).path if name else at


def is_ready(name: str = ALPINE) -> bool:
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
        made = install_into(
            store, tier=tier, packages=packages, from_=from_, mirror=mirror, key=key, version=version, name=name,
            sha256=sha256, proxy=proxy, on_progress=on_progress,
        )  # fmt: skip
        return _entry(made, installed(store)[1])


def installed_trees() -> list[InstalledTree]:
    """Return the root trees that are ready, by name."""
    with closing(OpenedStore()) as store:
        trees, current = installed(store)
    return [_entry(each, current) for each in trees]


def remove(name: str) -> None:
    """Remove a root tree that no command runs in and no project's layer lies over."""
    with closing(OpenedStore()) as store:
        remove_from(store, name)


def _entry(one: Installed, current: str) -> InstalledTree:
    return InstalledTree(name=one.name, version=one.version, path=one.path, current=one.name == current)
