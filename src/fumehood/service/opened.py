"""The store as every face opens it: what a dead process left half done is put right first."""

from __future__ import annotations

from fumehood.linux import nofollow
from fumehood.service.store import Store
from fumehood.store.audit import PYTHON
from fumehood.store.places import has_entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class OpenedStore(Store):
    """Everything we remember, with what was interrupted taken back or kept."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, face: str = PYTHON) -> None:
        super().__init__(environment, face=face)
        if self.database.was_made:
            from fumehood.service.recover import notice
            from fumehood.store.edits import forget_seats

            forget_seats(self.places)
            notice(self)
        self.recover()

    def recover(self) -> None:
        """Take back what a process that died had left half done, and keep what its command wrote.

        What clients' own edits did is recorded.
        What can't be mended now is left for the next time: nothing else may fail for it.
        """
        unfinished = self.history.unfinished()
        if unfinished or nofollow.notes(self.places.modes):
            from fumehood.service.recover import recover

            recover(self, unfinished)
        if has_entries(self.places.edits):
            from fumehood.service.edits import close_open

            close_open(self)

    def mend(self, project: int) -> None:
        """Take back what a process that died had left half done in a project whose lock is held.

        What clients' own edits did there is recorded: whoever has the lock comes after them.
        """
        unfinished = self.history.unfinished(project)
        if unfinished:
            from fumehood.linux.libc import InterruptsHeld
            from fumehood.service.recover import mend

            with InterruptsHeld():
                mend(self, unfinished)
        if has_entries(self.places.edits):
            from fumehood.service.edits import close_all

            close_all(self, project)
