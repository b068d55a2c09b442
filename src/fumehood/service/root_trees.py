"""Root trees of this person: where they are kept, and what installs them."""

from __future__ import annotations

import os

from fumehood.core.report import how_many
from fumehood.errors import BadRequest
from fumehood.linux.probe import host
from fumehood.rootfs import tree
from fumehood.rootfs.download import MIRROR, Fetcher
from fumehood.rootfs.installer import Installer, Order
from fumehood.rootfs.layer import pins
from fumehood.store.config import policy_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.policy import Rootfs
    from fumehood.rootfs.tree import Installed
    from fumehood.service.store import Store

    Path = str | os.PathLike[str]
    Progress = Callable[[str, int, int], None]


def collection(store: Store) -> str:
    """Return the directory that holds the root trees."""
    return tree.collection(store.places.data)


def installed(store: Store) -> tuple[list[Installed], str]:
    """Return the trees that are ready, and the name of the one that `alpine` means."""
    at = collection(store)
    trees = tree.installed(at)
    is_tree_itself = len(trees) == 1 and trees[0].path == at
    return trees, trees[0].name if is_tree_itself else tree.current(at)


def install(
    store: Store, *, tier: int | None = None, packages: Sequence[str] = (), from_: Path = "", mirror: str = "",
    key: Path | Sequence[Path] = (), version: str = "", name: str = "", sha256: str = "", proxy: str = "",
    settings: Rootfs | None = None, on_progress: Progress | None = None,
) -> Installed:  # fmt: skip
    """Install a root tree unless it is here, and return it.

    Tier 1 is the default, and none with a file or an address (`from_`). What is left out is as configured; `key` names
    files. `on_progress` gets a line of what is being done and, while something is downloaded, how many bytes of how
    many there are; else two zeros.
    """
    settings = policy_for(store.places, ()).rootfs if settings is None else settings
    keys = (key,) if isinstance(key, (str, os.PathLike)) else tuple(key)
    source = os.fspath(from_)
    order = Order(
        tier=tier if tier is not None else 0 if source else 1, packages=tuple(dict.fromkeys(packages)), version=version,
        source=os.path.abspath(source) if source and "://" not in source else source, sha256=sha256.lower(), name=name,
        mirror=mirror or settings.mirror or MIRROR, proxy=proxy or settings.proxy, keys=_keys(keys or settings.keys),
    )  # fmt: skip
    return _installer(store, order.proxy, on_progress).install(order)


def update(
    store: Store, *, tier: int | None = None, packages: Sequence[str] = (), mirror: str = "",
    key: Sequence[Path] = (), proxy: str = "", on_progress: Progress | None = None,
) -> Installed | None:  # fmt: skip
    """Install the newest release beside the one in use, with its tier and packages; None where that is the newest."""
    settings = policy_for(store.places, ()).rootfs
    used = tree.mark_of(f"{collection(store)}/{tree.CURRENT}")
    order = Order(
        tier=tier if tier is not None else used.tier or 1, packages=tuple(dict.fromkeys((*used.packages, *packages))),
        mirror=mirror or settings.mirror or MIRROR, proxy=proxy or settings.proxy,
        keys=_keys(tuple(key) or settings.keys),
    )  # fmt: skip
    return _installer(store, order.proxy, on_progress).update(order)


def newer(store: Store, *, mirror: str = "", proxy: str = "") -> str | None:
    """Return the version that a mirror has and that is newer than the one in use, or None."""
    settings = policy_for(store.places, ()).rootfs
    release = _installer(store, proxy or settings.proxy, None).newer(mirror or settings.mirror or MIRROR)
    return None if release is None else release.version


def use(store: Store, name: str) -> Installed:
    """Let `alpine` mean another installed tree."""
    at = collection(store)
    chosen = tree.find(at, name)
    if chosen.path not in (at, f"{at}/{tree.current(at)}"):
        tree.switch(at, chosen.name)
    return chosen


def remove(store: Store, name: str, on_progress: Progress | None = None) -> None:
    """Remove a tree that no command runs in and no project's layer lies over."""
    name = tree.find_damaged(collection(store), name).name
    count = len(pins(store.places.layers, name))
    if count:
        raise BadRequest(
            f"{name} is in use below the root layer of {how_many(count, 'project')}",
            hint="fumehood workspace list; fumehood workspace reset NAME",
        )
    _installer(store, "", on_progress).remove(name)


def _keys(paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(os.path.abspath(os.path.expanduser(path)) for path in paths)


def _installer(store: Store, proxy: str, on_progress: Progress | None) -> Installer:
    places, line = store.places, ""

    def tell(said: str) -> None:
        nonlocal line
        line = said
        if on_progress is not None:
            on_progress(said, 0, 0)

    def downloaded(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(line, done, total)

    return Installer(
        collection(store), places.cache, host(places.cache, places.state), tell, Fetcher(proxy, downloaded),
        os.uname().machine,
    )  # fmt: skip
