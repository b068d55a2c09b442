"""The store as every face opens it: what a dead process left half done is put right first.

What can wait is done when there is time (`upkeep`).
What mends and cleans is loaded only where that is due: every command comes by here.
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
    """Everything we remember, with what was interrupted taken back or kept."""

    def __init__(self, *, face: str = PYTHON) -> None:
        super().__init__(face=face)
        if self.database.was_made:
            from fumehood.service.recover import notice
            from fumehood.store.edits import forget_edited_projects

            forget_edited_projects(self.places)
            notice(self)
        self.recover()

    def recover(self) -> None:
        """Take back what a process that died had left half done, and keep what its command wrote.

        What clients' own edits did is recorded.
        What can't be mended now is left for the next time: nothing else may fail for it.
        """
        unfinished = self.history.unfinished_runs()
        if unfinished or nofollow.list_mode_notes(self.places.modes):
            from fumehood.service.recover import recover

            recover(self, unfinished)
        if has_entries(self.places.edits):
            from fumehood.service.edits import close_open

            close_open(self)

    def mend(self, project: int) -> None:
        """Take back what a process that died had left half done in a project whose lock is held.

        What clients' own edits did there is recorded: whoever has the lock comes after them.
        """
        # A command that runs has begun nothing there yet: so it is with the one that has just taken the lock.
        unfinished = [each for each in self.history.unfinished_runs(project) if each[1:3] != (RUNNING, "run")]
        if unfinished and not os.path.isdir(self.projects.path_of(project)):
            unfinished = []  # it waits for its project; who only cleans or forgets goes on
        if unfinished or nofollow.list_mode_notes(self.places.modes):
            from fumehood.service.recover import mend

            with InterruptsHeld():
                mend(self, unfinished)
        if has_entries(self.places.edits):
            from fumehood.service.edits import close_all

            close_all(self, project)


# ---- What is done when there is time: after a report is printed, before the next command, at the end of a program.

def upkeep(store: Store, project: int, cleaning: Clean | None = None) -> str:
    """Bring the records of a project's files up to date, and, where that is asked for, clean once a day.

    Returns what to tell a person: which backups went, where some did. It waits for nobody, and nothing else fails for
    it: whoever needs the records does it again, and is told.
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
    """Return True if nothing was cleaned for a day; the time of the lock's file is that of the last cleaning."""
    path = store.places.lock("clean")
    try:
        last = os.stat(path).st_mtime
    except FileNotFoundError:
        # Nothing is a day old yet.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        return False
    return not 0 <= time.time() - last < _DAY_S
