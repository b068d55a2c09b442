"""What a command sees of the host besides its roots: the system, and of the home only the tools.

The host is surveyed once. The result, a list of mount operations, is cached for as long as nothing that it was read
from has changed.
"""

from __future__ import annotations

import os
from binascii import crc32

from fumehood.core.masks import PROC_SECRETS, SYSTEM_SECRETS, UNSEEN, Sight
from fumehood.core.paths import innermost
from fumehood.linux import cache
from fumehood.linux.cache import Snapshot
from fumehood.linux.mounts import HostView, Mask, Operation, from_rows, to_rows
from fumehood.linux.namespaces import mount_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


CACHE_PREFIX = "hostview-"  # of the names of cache files
FORMAT = "5"  # change it whenever the host is shown in another way: cached views are then made again
_NEED_CAPABILITIES = frozenset({"kcore", "kmsg"})  # the kernel lets nobody open these without a capability
_KERNEL_FOLDERS = ("/proc", "/proc/tty", "/proc/driver", "/proc/fs", "/proc/bus", "/proc/sysvipc")


class HostViews:
    """Remembers how the host is shown, in memory and in the cache."""

    def __init__(self, directory: str, writable_places: Callable[[], Sequence[str]] = tuple) -> None:
        self._directory = directory
        self._writable_places = writable_places  # returns where else commands can write: nothing there is trusted
        self._remembered: dict[Sight, tuple[object, HostView]] = {}

    def view_for(self, sight: Sight) -> HostView:
        """Return how the host is shown to a command that may see this much of it."""
        mounts = mount_table()
        seen_mounts, view = self._remembered.get(sight, (None, None))
        if view is None or seen_mounts is not mounts or not view.snapshot.is_current():
            view = self._find_view(sight)
            self._remembered[sight] = mounts, view
        return view

    def forget(self) -> None:
        """Survey the host again for the next run: a mount failed because the host has changed."""
        self._remembered.clear()

    def _find_view(self, sight: Sight) -> HostView:
        """Read the view from the cache, or survey the host if that has changed since."""
        question = f"{FORMAT} {sight!r} {_mounts_in_sight(sight)!r}"
        path = f"{self._directory}/{CACHE_PREFIX}{crc32(question.encode(errors='surrogateescape')):08x}"
        cached = cache.load(path, question)
        if cached is not None:
            rows, masked_in_roots, parts = cached
            snapshot = Snapshot(*parts)
            if snapshot.is_current():
                return HostView(
                    operations=from_rows(rows), masked_in_roots=masked_in_roots, snapshot=snapshot, number=snapshot.sum
                )
        from fumehood.linux.survey import survey_host

        view = survey_host(sight, self._writable_places())
        if view.snapshot.is_settled:
            cache.save(path, (to_rows(view.operations), view.masked_in_roots, view.snapshot.parts), question)
        return view


def _mounts_in_sight(sight: Sight) -> list[tuple[bytes, str]]:
    """Return the mounts that can affect how the host is shown; others come and go with every container.

    In a user namespace, a directory with a mount anywhere inside can't be one view: its entries are shown separately.
    """
    hidden = UNSEEN if sight.is_locked else frozenset((*sight.hidden, *UNSEEN, *(path for path, _ in SYSTEM_SECRETS)))
    return [(point, kind) for point, kind in mount_table() if innermost(os.fsdecode(point), hidden) is None]


def kernel_masks(*, as_root: bool) -> tuple[Operation, ...]:
    """Return masks for `/proc`; for root, also of all files there that only root may read.

    Other users can't read those files anyway. Root in the sandbox could, without any capability, as their owner.
    """
    hidden_paths = [path for path, _ in PROC_SECRETS if os.access(path, os.R_OK)]
    for folder in _KERNEL_FOLDERS if as_root else ():
        hidden_paths += _root_only_entries(folder)
    return tuple(
        Mask(target=path, is_directory=os.path.isdir(path), why="the kernel keeps it to root")
        for path in dict.fromkeys(hidden_paths)
    )


def _root_only_entries(folder: str) -> list[str]:
    """Return the paths of entries in a directory below `/proc` that only their owner may read."""
    hidden_paths = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.isdigit() or entry.is_symlink() or entry.name in _NEED_CAPABILITIES:
                    continue
                required_bits = 0o005 if entry.is_dir() else 0o004
                if entry.stat().st_mode & required_bits != required_bits:
                    hidden_paths.append(entry.path)
    except OSError:
        return []
    return sorted(hidden_paths)
