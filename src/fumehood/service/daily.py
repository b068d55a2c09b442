"""Remove daily backups that are old, and the records that only they had kept."""

from __future__ import annotations

import os
import time

from fumehood.service.files import Live, forget
from fumehood.store import backups
from fumehood.store.backups import Daily
from fumehood.store.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.service.store import Store
    from fumehood.store.files import Record

_DAY_S = 86_400


def clean_daily(store: Store, days: int = backups.DAYS, now: float | None = None) -> tuple[int, int]:
    """Remove the daily backups older than some days, save those of files that held changes wait on.

    Returns how many, and the bytes that this freed.

    A record goes with its last backup if the file is gone too and no run deleted it. Takes the locks of the
    projects, so the caller must hold none of them.
    """
    moment = time.time() if now is None else now
    with Daily(store.places.state) as daily:
        by_number: dict[int, list[str]] = {}
        for name in backups.expired([name for name, _ in daily.entries()], moment, days):
            by_number.setdefault(backups.parsed(name)[0], []).append(name)  # type: ignore[index]
        known = Files(store.database).by_numbers(sorted(by_number))
        for _, record in known:
            if record.needs_approval:
                del by_number[record.id]  # a held change waits on it
        known = [(project, record) for project, record in known if not record.needs_approval]
        gone: list[str] = []
        freed = 0
        for project in sorted({project for project, _ in known}):
            mine = [each for number, each in known if number == project]
            names = [name for each in mine for name in by_number.pop(each.id)]
            with store.alone(project):
                freed += _remove(store, daily, names)
                _drop_missing(store, mine, set(daily.by_file()))
            gone += names
        # Those that no record names any more, and copies that were never finished.
        strays = [name for names in by_number.values() for name in names] + daily.leftovers(moment - _DAY_S)
        freed += _remove(store, daily, strays)
    return len(gone) + len(strays), freed


def _remove(store: Store, daily: Daily, names: Sequence[str]) -> int:
    """Remove daily backups, after their records forgot them; returns the bytes that this freed."""
    forget(store, [name for name, _ in daily.entries()], names)
    freed = 0
    for name in names:
        freed += daily.freed_by(name)
        daily.remove(name)
    return freed


def _drop_missing(store: Store, known: Sequence[Record], with_backup: set[int]) -> None:
    """Remove those of these records that have neither a file nor a backup, unless a run deleted the file."""
    for root in sorted({each.root for each in known}):
        if not os.path.isdir(root):
            continue  # the whole root is away, perhaps not mounted
        with Live(root) as live:
            mine = [each for each in known if each.root == root and each.id not in with_backup]
            Files(store.database).drop([each.id for each in mine if live.is_missing(each.path)])
