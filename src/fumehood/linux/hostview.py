"""What a command sees of the host besides its roots: the system, the tools of the home, and nothing else of it.

The host is looked over once, and the answer kept as a list of mount operations for as long as nothing that it was read
from has changed.
"""

from __future__ import annotations

import os
from binascii import crc32

from fumehood.core.masks import PROC, SYSTEM, UNSEEN, Sight, innermost
from fumehood.linux import cache
from fumehood.linux.cache import Snapshot
from fumehood.linux.mounts import HostView, Mask, Operation, packed, unpacked
from fumehood.linux.namespaces import mount_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


KEPT = "hostview-"  # how the names begin of what is kept in the cache
FORMAT = "5"  # to be changed with how the host is shown: what was kept before is then looked for again
_FOR_CAPABILITIES = frozenset({"kcore", "kmsg"})  # nobody opens these without
_KERNEL_FOLDERS = ("/proc", "/proc/tty", "/proc/driver", "/proc/fs", "/proc/bus", "/proc/sysvipc")


class HostViews:
    """Remembers how the host is shown, in memory and in the cache."""

    def __init__(self, directory: str, written: Callable[[], Sequence[str]] = tuple) -> None:
        self._directory = directory
        self._written = written  # tells where else commands write: nothing there is believed
        self._remembered: dict[Sight, tuple[object, HostView]] = {}

    def of(self, sight: Sight) -> HostView:
        """Return how the host is shown."""
        table = mount_table()
        seen, view = self._remembered.get(sight, (None, None))
        if view is None or seen is not table or not view.watched.is_current():
            view = self._looked_over(sight)
            self._remembered[sight] = table, view
        return view

    def forget(self) -> None:
        """Look everything over again for the next run: what was thought to be there is not."""
        self._remembered.clear()

    def _looked_over(self, sight: Sight) -> HostView:
        """Look the host over, unless an earlier process did so and nothing has changed since."""
        question = f"{FORMAT} {sight!r} {_mounts_in_sight(sight)!r}"
        path = f"{self._directory}/{KEPT}{crc32(question.encode(errors='surrogateescape')):08x}"
        kept = cache.recalled(path, question)
        if kept is not None:
            rows, inside, parts = kept
            watched = Snapshot(*parts)
            if watched.is_current():
                return HostView(operations=unpacked(rows), inside=inside, watched=watched, look=watched.sum)
        from fumehood.linux.survey import look_over

        view = look_over(sight, self._written())
        if view.watched.is_settled:
            cache.keep(path, (packed(view.operations), view.inside, view.watched.parts), question)
        return view


def _mounts_in_sight(sight: Sight) -> list[tuple[bytes, str]]:
    """Return those mounts on which it may depend how the host is shown: others come and go with every container.

    In a user namespace, a directory with a mount anywhere inside is shown piece by piece.
    """
    hidden = UNSEEN if sight.is_locked else frozenset((*sight.hidden, *UNSEEN, *(path for path, _ in SYSTEM)))
    return [(point, kind) for point, kind in mount_table() if innermost(os.fsdecode(point), hidden) is None]


def kernel_masks(*, as_root: bool) -> tuple[Operation, ...]:
    """Return what is hidden in `/proc`: to root, whatever the kernel keeps from everybody else.

    Others can't read it, and root in the sandbox could only because these files are root's.
    """
    closed = [path for path, _ in PROC if os.access(path, os.R_OK)]
    for folder in _KERNEL_FOLDERS if as_root else ():
        closed += _kept_from_others(folder)
    return tuple(
        Mask(target=path, is_directory=os.path.isdir(path), why="the kernel keeps it to root")
        for path in dict.fromkeys(closed)
    )


def _kept_from_others(folder: str) -> list[str]:
    """Return what lies in a directory of the kernel's and only its owner may read."""
    paths = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.isdigit() or entry.is_symlink() or entry.name in _FOR_CAPABILITIES:
                    continue
                needed = 0o005 if entry.is_dir() else 0o004
                if entry.stat().st_mode & needed != needed:
                    paths.append(entry.path)
    except OSError:
        return []
    return sorted(paths)
