"""Tell a listener what a running command writes, as it writes it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.linux.overlay import Layer
    from fumehood.linux.process import Watched


def watcher(on_change: Callable[[str, str], None]) -> Callable[[Sequence[Layer]], Watched]:
    """Return what starts watching a run's layers; listeners get what happened and the path."""

    def watch(layers: Sequence[Layer]) -> Watched:
        # Here, so that it costs nothing when nobody listens.
        from fumehood.linux.monitor import Monitor

        def tell(what: str, root: bytes, path: bytes) -> None:
            on_change(what, os.fsdecode(os.path.join(root, path)))

        monitor = Monitor([(os.fsencode(each.upper), os.fsencode(each.root)) for each in layers], tell)
        monitor.start()
        return monitor

    return watch
