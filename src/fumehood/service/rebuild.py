"""The records are gone or damaged: say so, set the damaged ones aside, and rebuild what the runs' directories tell."""

from __future__ import annotations

import os
import time

from fumehood.core.changes import WAITING
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.service import layers as layering
from fumehood.service.settle import FAILED, HELD
from fumehood.service.store import Alone, Store
from fumehood.store import records
from fumehood.store.backups import DIRECTORY, parsed
from fumehood.store.database import damage
from fumehood.store.history import UNFINISHED
from fumehood.store.places import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fumehood.core.report import Run

MEND = "fumehood doctor --mend"


class Mended(Value):
    """What was done about lost records."""

    set_aside: str = ""  # where the damaged database lies now
    runs: int = 0
    left: tuple[str, ...] = ()  # directories without a record of their own


def notice(store: Store) -> None:
    """Say, where the database was made just now, that there had been another: its runs' directories are still there."""
    _number_after_backups(store)
    count = sum(not name.endswith(layering.GONE) for name in os.listdir(f"{store.places.state}/runs"))
    if count:
        many = f"{count} runs lie" if count > 1 else "1 run lies"
        store.notices.append(
            f"the database {store.places.database} is gone, while the backups and held changes of {many} in"
            f" {store.places.state}/runs; to rebuild what can be from there: {MEND}"
        )


def _number_after_backups(store: Store) -> None:
    """Give records of files numbers that no daily backup has: a backup is found by its file's number."""
    try:
        names = os.listdir(f"{store.places.state}/{DIRECTORY}")
    except FileNotFoundError:
        return
    highest = max((backup[0] for name in names if (backup := parsed(name)) is not None), default=0)
    with store.database.transaction() as connection:
        connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'files'", (highest,))


def mend(open_store: Callable[[], Store]) -> tuple[Store, Mended]:
    """Set a damaged database aside, and take up every run that has a record beside its layer alone."""
    aside = _set_aside(places().database)
    store = open_store()
    store.notices.clear()
    # No cleaning meanwhile: it removes what no record names.
    with Alone(store.places.lock("clean")):
        missing = sorted(_unrecorded(store), key=lambda run: run.run)
        for run in missing:
            _take_up(store, run)
        return store, Mended(set_aside=aside, runs=len(missing), left=tuple(unknown(store)))


def unknown(store: Store) -> list[str]:
    """Return the runs' directories that no record names and that no living process has."""
    found = []
    for name in _strays(store):
        try:
            os.close(layering.take_up(store.places, name))
        except (FileNotFoundError, BlockingIOError):
            continue
        found.append(store.places.run(name))
    return found


def _strays(store: Store) -> list[str]:
    known = {name for row in store.database.rows("SELECT id, layer FROM runs") for name in row}
    names = sorted(os.listdir(f"{store.places.state}/runs"))
    return [name for name in names if name not in known and not name.endswith(layering.GONE)]


def _set_aside(database: str) -> str:
    """Move a damaged database away, with its log; it is never removed."""
    if not damage(database):
        return ""
    aside = f"{database}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    if os.path.exists(aside):
        raise BadRequest(f"{aside} is there already", hint="wait a second, and try again")
    for end in ("-wal", "-shm", ""):
        if os.path.exists(f"{database}{end}"):
            os.rename(f"{database}{end}", f"{aside}{end}")
    return aside


def _unrecorded(store: Store) -> Iterator[Run]:
    recorded = {run for (run,) in store.database.rows("SELECT id FROM runs")}
    for layer in os.listdir(f"{store.places.state}/runs"):
        for run in records.read(store.places, layer):
            if run.run not in recorded:
                yield run


def _take_up(store: Store, run: Run) -> None:
    """Record a run again, as its directory tells; one that is not whole there says where its files are."""
    if run.state in UNFINISHED or (run.state == HELD and not _is_whole(store, run)):
        run.state, run.reason = FAILED, f"its record was lost; what is left of it is in {store.places.run(run.layer)}"
    project = store.projects.remember(run.project)
    if run.session is not None:
        store.sessions.open(project, run.session)
    store.history.rebuild(project, run)


def _is_whole(store: Store, run: Run) -> bool:
    """Tell whether what a run holds is where it is held."""
    waiting = {change.root for change in run.found if change.verdict in WAITING}
    return all(os.path.isdir(store.places.layer(run.layer, root, "held")) for root in waiting)
