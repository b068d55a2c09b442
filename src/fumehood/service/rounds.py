"""What is looked at again and again while a command runs for longer than a moment."""

from __future__ import annotations

import os
import time

from fumehood.core.report import stopped_by_request
from fumehood.linux.namespaces import refresh_overlays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.report import Blocked
    from fumehood.linux.limits import Warden

_PAUSE_S = 0.1
_REFRESH_EVERY_S = 2.0  # a command sees after so long what people replace in the project
_IDLE_PART = 0.1  # a command is idle if it uses less of one processor


class Rounds:
    """Looks whether somebody asks for the end of a command, at its limits, and whether a checkpoint is due.

    `init` is the first process inside. `checkpoint` is called with it each time, and makes a checkpoint if it is time
    for one. `overlays` are paths at which the command may see an overlay.
    """

    def __init__(
        self,
        warden: Warden,
        init: int,
        *,
        stop_mark: str = "",
        checkpoint: Callable[[int], None] | None = None,
        overlays: Sequence[str] = (),
    ) -> None:
        self.next_check = 0.0
        self._warden = warden
        self._init = init
        self._stop_mark = stop_mark
        self._checkpoint = checkpoint
        self._overlays = overlays
        self._refresh_at = time.monotonic() + _REFRESH_EVERY_S
        self._cpu_s_at_refresh = 0.0

    def check(self) -> Blocked | None:
        """Look once; return why the command must be ended, or None."""
        if self._stop_mark and os.path.exists(self._stop_mark):
            return stopped_by_request()
        reached = self._warden.check()
        if reached is None and self._checkpoint is not None:
            self._checkpoint(self._init)
        now = time.monotonic()
        if self._overlays and now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_EVERY_S
            self._refresh_overlays()
        self.next_check = max(self._warden.next_check, now + _PAUSE_S)
        return reached

    def close(self) -> Blocked | None:
        """Stop when everything inside has ended; return the limit by which the kernel ended it, if it did."""
        return self._warden.close()

    def _refresh_overlays(self) -> None:
        """Let an idle server see what people replaced: an overlay goes on showing what it has looked up once.

        A busy command would have to look everything up again.
        """
        used_s, self._cpu_s_at_refresh = self._warden.cpu_s - self._cpu_s_at_refresh, self._warden.cpu_s
        if used_s > _REFRESH_EVERY_S * _IDLE_PART:
            return
        try:
            refresh_overlays(self._init, self._overlays)
        except OSError:
            return  # it has just ended, or an old kernel can't do it
