"""What is done when there is time: after a report is printed, before the next command, at the end of a program.

What cleans is loaded only where that is due: every command comes by here.
"""

from __future__ import annotations

import os
import time

from fumehood.errors import FumehoodError
from fumehood.linux.libc import InterruptsHeld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.policy import Clean
    from fumehood.service.store import Store

_DAY_S = 86_400


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
    """Tell whether nothing was cleaned for a day; the time of the lock's file is that of the last cleaning."""
    path = store.places.lock("clean")
    try:
        last = os.stat(path).st_mtime
    except FileNotFoundError:
        # Nothing is a day old yet.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        return False
    return not 0 <= time.time() - last < _DAY_S
