"""What is done when there is time: after a report is printed, before the next command, at the end of a program."""

from __future__ import annotations

from fumehood.errors import FumehoodError
from fumehood.linux.libc import InterruptsHeld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.service.store import Store


def upkeep(store: Store, project: int) -> None:
    """Bring the records of a project's files up to date.

    It waits for nobody, and nothing else fails for it: whoever needs the records does it again, and is told.
    """
    try:
        if not store.database.rows("SELECT 1 FROM files_due WHERE project = ? LIMIT 1", (project,)):
            return
        from fumehood.service.files import catch_up

        with InterruptsHeld():
            catch_up(store, project, wait=False)
    except (OSError, FumehoodError):
        return
