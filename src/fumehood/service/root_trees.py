"""Root trees: list them, and install, update, choose or remove one. Also the functions of `fumehood.rootfs`."""

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
from fumehood.rootfs.tree import layers_over
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


def installed_and_current(store: Store) -> tuple[list[Installed], str]:
    """Return the trees that are ready, and the name of the one that `alpine` means."""
    directory = tree.trees_directory(store.places.data)
    trees = tree.installed(directory)
    is_tree_itself = len(trees) == 1 and trees[0].path == directory
    return trees, trees[0].name if is_tree_itself else tree.current(directory)


def install_into(
    store: Store, *, tier: int | None = None, packages: Sequence[str] = (), from_: Path = "", mirror: str = "",
    key: Path | Sequence[Path] = (), version: str = "", name: str = "", sha256: str = "", proxy: str = "",
    settings: Rootfs | None = None, on_progress: Progress | None = None,
) -> Installed:  # fmt: skip
    """Install a root tree unless it is installed already, and return it; `install` below describes the parameters.

    What is left out is as configured; `settings` are those of the configuration if they are read already.
    """
    keys = (key,) if isinstance(key, (str, os.PathLike)) else tuple(key)
    source = os.fspath(from_)
    default_tier = 0 if source else 1
    order = _make_order(
        settings or _settings(store.places), mirror, proxy, keys,
        tier=default_tier if tier is None else tier, packages=tuple(dict.fromkeys(packages)), version=version,
        source=os.path.abspath(source) if source and "://" not in source else source, sha256=sha256.lower(), name=name,
    )  # fmt: skip
    return _installer(store, order.proxy, on_progress).install(order)


def install_if_missing(store: Store, settings: Rootfs, on_progress: Progress | None) -> None:
    """Install the Alpine root tree if there is none yet; called if the configuration allows it."""
    try:
        tree.find(tree.trees_directory(store.places.data))
    except BadRequest:
        install_into(store, settings=settings, on_progress=on_progress)


def update(
    store: Store, *, tier: int | None = None, packages: Sequence[str] = (), mirror: str = "",
    key: Sequence[Path] = (), proxy: str = "", on_progress: Progress | None = None,
) -> Installed | None:  # fmt: skip
    """Install the newest release beside the current one, with its tier and packages; None if that is the newest."""
    current = tree.read_mark(f"{tree.trees_directory(store.places.data)}/{tree.CURRENT}")
    order = _make_order(
        _settings(store.places), mirror, proxy, tuple(key), tier=(current.tier or 1) if tier is None else tier,
        packages=tuple(dict.fromkeys((*current.packages, *packages))),
    )  # fmt: skip
    return _installer(store, order.proxy, on_progress).update(order)


def newer_version(store: Store, *, mirror: str = "", proxy: str = "") -> str | None:
    """Return the newest version that a mirror has, or None if the current tree has it."""
    settings = _settings(store.places)
    release = _installer(store, proxy or settings.proxy, None).newer(_mirror(settings, mirror))
    return None if release is None else release.version


def make_current(store: Store, name: str) -> Installed:
    """Let `alpine` mean another installed tree."""
    directory = tree.trees_directory(store.places.data)
    chosen = tree.find(directory, name)
    if chosen.path not in (directory, f"{directory}/{tree.current(directory)}"):
        tree.set_current(directory, chosen.name)
    return chosen


def remove_from(store: Store, name: str, on_progress: Progress | None = None) -> None:
    """Remove a tree; refused while a command runs in it, or a project's root layer lies over it."""
    name = tree.find_for_removal(tree.trees_directory(store.places.data), name).name
    count = len(layers_over(store.places.layers, name))
    if count:
        raise BadRequest(
            f"{name} is in use below the root layer of {how_many(count, 'project')}",
            hint="fumehood workspace list; fumehood workspace reset NAME",
        )
    _installer(store, "", on_progress).remove(name)


def _settings(own_places: Places) -> Rootfs:
    return policy_for(own_places, ()).rootfs


def _mirror(settings: Rootfs, mirror: str) -> str:
    return mirror or settings.mirror or download.MIRROR


def _make_order(settings: Rootfs, mirror: str, proxy: str, keys: Sequence[Path], **fields: Any) -> Order:
    """Return what is to be installed; mirror, proxy and keys are as configured if they are empty."""
    files = tuple(os.path.abspath(os.path.expanduser(path)) for path in keys or settings.keys)
    return Order(mirror=_mirror(settings, mirror), proxy=proxy or settings.proxy, keys=files, **fields)


def _installer(store: Store, proxy: str, on_progress: Progress | None) -> Installer:
    own_places, step = store.places, ""

    def report_step(new_step: str) -> None:
        nonlocal step
        step = new_step
        if on_progress is not None:
            on_progress(step, 0, 0)

    def report_download(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(step, done, total)

    return Installer(
        tree.trees_directory(own_places.data), own_places.cache, host(own_places.cache, own_places.state), report_step,
        download.Fetcher(proxy, report_download), os.uname().machine,
    )  # fmt: skip


# ---- The functions of `fumehood.rootfs`, for programs.


class InstalledTree(Value):
    """An installed root tree; `current` is true for the one that `alpine` means."""

    name: str
    version: str
    path: str
    current: bool


def architecture() -> str:
    """Return Alpine's name for this machine's architecture; raises Unavailable if Alpine does not support it."""
    return download.architecture()


def latest_version(mirror: str = "", proxy: str = "") -> str:
    """Return the newest Alpine version of a mirror, by default the configured one."""
    settings = _settings(places())
    fetcher = download.Fetcher(proxy or settings.proxy)
    return download.latest_release(fetcher, _mirror(settings, mirror), architecture()).version


def directory(name: str = "") -> str:
    """Return the directory that holds the root trees, or the directory of one tree; `alpine` is the current one."""
    collection = tree.trees_directory(places().data)
    return tree.find(collection, name).path if name else collection


def is_ready(name: str = ALPINE) -> bool:
    """Return True if commands can run in a tree; works offline."""
    try:
        return bool(directory(name))
    except BadRequest:
        return False


def install(
    *, tier: int | None = None, packages: Sequence[str] = (), from_: str | os.PathLike[str] = "", mirror: str = "",
    key: str | Sequence[str] = (), version: str = "", name: str = "", sha256: str = "", proxy: str = "",
    on_progress: Progress | None = None,
) -> InstalledTree:  # fmt: skip
    """Install a root tree unless it is installed already, and return it; other processes that do so wait meanwhile.

    `tier` 1, the default, has a shell and Python, 2 more tools, 0 only what is in the tarball; `packages` are added.
    `from_` is a tarball, an image archive or the address of one, and the default tier is then 0; without it, a release
    comes from the mirror. `key` names files with public keys that sign packages. `on_progress` gets (the current step,
    bytes so far, bytes in all); both numbers are 0 while nothing is downloaded.
    """
    with closing(OpenedStore()) as store:
        new_tree = install_into(
            store, tier=tier, packages=packages, from_=from_, mirror=mirror, key=key, version=version, name=name,
            sha256=sha256, proxy=proxy, on_progress=on_progress,
        )  # fmt: skip
        return _entry(new_tree, installed_and_current(store)[1])


def installed_trees() -> list[InstalledTree]:
    """Return the root trees that are ready, by name."""
    with closing(OpenedStore()) as store:
        trees, current = installed_and_current(store)
    return [_entry(each, current) for each in trees]


def remove(name: str) -> None:
    """Remove a root tree; refused while a command runs in it, or a project's root layer lies over it."""
    with closing(OpenedStore()) as store:
        remove_from(store, name)


def _entry(each: Installed, current: str) -> InstalledTree:
    return InstalledTree(name=each.name, version=each.version, path=each.path, current=each.name == current)
