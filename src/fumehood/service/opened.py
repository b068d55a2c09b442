"""The store as every face opens it: unfinished work of a dead process is repaired first.

`upkeep` does the work that can wait. Every command opens the store, so repair and cleaning are imported only when due.
"""

from __future__ import annotations

import os
import time

from fumehood.errors import FumehoodError
from fumehood.linux import nofollow
from fumehood.linux.libc import InterruptsHeld
from fumehood.service.store import Store
from fumehood.store.audit import PYTHON
from fumehood.store.history import RUNNING
from fumehood.store.places import has_entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.policy import Clean

_DAY_S = 86_400


class OpenedStore(Store):
    """The store, in which interrupted work has been undone or kept."""

    def __init__(self, *, face: str = PYTHON) -> None:
        super().__init__(face=face)
        if self.database.was_made:
            from fumehood.service.recover import notice
            from fumehood.store.edits import forget_edited_projects

            forget_edited_projects(self.places)
            notice(self)
        self.recover()

    def recover(self) -> None:
        """Undo the half-done work of a dead process, keep what its command wrote, and record clients' edits.

        What can't be repaired now is left for the next time, so that nothing else fails because of it.
        """
        unfinished = self.history.unfinished_runs()
        if unfinished or nofollow.list_mode_notes(self.places.modes):
            from fumehood.service.recover import recover

            recover(self, unfinished)
        if has_entries(self.places.edits):
            from fumehood.service.edits import record_all_edits

            record_all_edits(self)

    def mend(self, project: int) -> None:
        """Do the same in one project whose lock is taken: the owner of the lock comes after the clients' edits."""
        # A running command has not begun to change the project; nor has the one that has just taken the lock.
        unfinished = [each for each in self.history.unfinished_runs(project) if each[1:3] != (RUNNING, "run")]
        if unfinished and not os.path.isdir(self.projects.path_of(project)):
            unfinished = []  # these runs wait for their project; cleaning and forgetting can go on
        if unfinished or nofollow.list_mode_notes(self.places.modes):
            from fumehood.service.recover import mend

            with InterruptsHeld():
                mend(self, unfinished)
        if has_entries(self.places.edits):
            from fumehood.service.edits import record_project_edits

            record_project_edits(self, project)


# ---- Work that is done when there is time: after a report is printed, before the next command, at a program's end.

def upkeep(store: Store, project: int, cleaning: Clean | None = None) -> str:
    """Bring the records of a project's files up to date, and with `cleaning`, clean once a day.

    Returns a message for a person if backups were removed, else "". This waits for no lock, and ignores errors: whoever
    needs the records does the same work again, and gets the error.
    """
    try:
        if store.database.rows("SELECT 1 FROM files_due WHERE project = ? LIMIT 1", (project,)):
            from fumehood.service.files import catch_up

            with InterruptsHeld():
                catch_up(store, project, wait=False)
        if cleaning is not None and is_cleaning_due(store):
            from fumehood.service.clean import clean_up

            return clean_up(store, cleaning)
    except (OSError, FumehoodError):
        return ""
    return ""


def is_cleaning_due(store: Store) -> bool:
    """Return True if nothing was cleaned for a day; the lock file's mtime is the time of the last cleaning."""
    path = store.places.lock("clean")
    try:
        last_cleaning = os.stat(path).st_mtime
    except FileNotFoundError:
        # Nothing is a day old yet.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        return False
    return not 0 <= time.time() - last_cleaning < _DAY_S
