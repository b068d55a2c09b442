"""Root trees of this person: where they are kept, and what installs them."""

from __future__ import annotations

import os

from fumehood.errors import BadRequest
from fumehood.linux.probe import host
from fumehood.rootfs import tree
from fumehood.rootfs.download import MIRROR, Fetcher
from fumehood.rootfs.install import Installer, Order
from fumehood.rootfs.layer import pins
from fumehood.store.config import policy_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fumehood.rootfs.tree import Installed
    from fumehood.service.store import Store


def collection(store: Store) -> str:
    """Return the directory that holds the root trees."""
    return tree.collection(store.places.data)


def installed(store: Store) -> tuple[list[Installed], str]:
    """Return the trees that are ready, and the name of the one that `alpine` means."""
    at = collection(store)
    trees = tree.installed(at)
    is_tree_itself = len(trees) == 1 and trees[0].path == at
    return trees, trees[0].name if is_tree_itself else tree.current(at)


def order(store: Store, **wishes: object) -> Order:
    """Return an order with what the configuration says where nothing was asked for."""
    settings = policy_for(store.places, ()).rootfs
    asked = {name: value for name, value in wishes.items() if value}
    return Order(**{"mirror": settings.mirror or MIRROR, "proxy": settings.proxy, **asked})  # type: ignore[arg-type]


def remove(store: Store, name: str, tell: Callable[[str], None]) -> None:
    """Remove a tree that no command runs in and no project's layer lies over."""
    name = tree.find(collection(store), name).name
    count = len(pins(store.places.layers, name))
    if count:
        whose = "1 project" if count == 1 else f"{count} projects"
        raise BadRequest(
            f"{name} is in use below the root layer of {whose}",
            hint="fumehood workspace list; fumehood workspace reset NAME",
        )
    installer(store, "", tell).remove(name)


def installer(
    store: Store, proxy: str, tell: Callable[[str], None], on_progress: Callable[[int, int], None] | None = None
) -> Installer:
    """Return what installs, updates and removes root trees here."""
    places = store.places
    return Installer(
        collection(store), places.cache, host(places.cache, places.state), tell, Fetcher(proxy, on_progress),
        os.uname().machine,
    )  # fmt: skip
