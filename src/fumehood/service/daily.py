"""Remove daily backups that are old, and the records that only they had kept."""

from __future__ import annotations

import os

from fumehood.service.files import Live, forget
from fumehood.store import backups
from fumehood.store.backups import Daily
from fumehood.store.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.service.store import Store
    from fumehood.store.days import Days
    from fumehood.store.files import Record


def clean_daily(
    store: Store, days: int, recorded: Days, now: float, *, project: int | None = None, dry: bool = False
) -> tuple[int, int]:
    """Remove the daily backups older than some recorded days, save those of files that held changes wait on.

    Of one project, or of all, with those that no record names. Returns how many, and the bytes that this frees.

    A record goes with its last backup if the file is gone too and no run deleted it. Takes the locks of the
    projects, so the caller must hold none of them.
    """
    with Daily(store.places.state) as daily:
        by_number: dict[int, list[str]] = {}
        for name in backups.expired([name for name, _ in daily.entries()], recorded, days):
            by_number.setdefault(backups.parsed(name)[0], []).append(name)  # type: ignore[index]
        known = Files(store.database).by_numbers(sorted(by_number))
        for _, record in known:
            if record.needs_approval:
                del by_number[record.id]  # a held change waits on it
            elif recorded.since(record.last_day) <= days:
                # Its clock was behind, perhaps: the latest is not older than the change that it was made for.
                latest = record.last_approved_copy_path.removeprefix(f"{backups.DIRECTORY}/")
                by_number[record.id] = [name for name in by_number[record.id] if name != latest]
        known = [(owner, record) for owner, record in known if by_number.get(record.id)]
        if project is not None:
            known = [(owner, record) for owner, record in known if owner == project]
            by_number = {record.id: by_number[record.id] for _, record in known}
        if dry:
            going = [name for names in by_number.values() for name in names]
            return len(going), sum(map(daily.freed_by, going))
        gone: list[str] = []
        freed = 0
        for owner in sorted({owner for owner, _ in known}):
            mine = [each for number, each in known if number == owner]
            names = [name for each in mine for name in by_number.pop(each.id)]
            with store.alone(owner):
                freed += _remove(store, daily, names)
                _drop_missing(store, mine, set(daily.by_file()))
            gone += names
        # Those that no record names any more, and copies that were never finished.
        strays = [name for names in by_number.values() for name in names]
        strays += daily.leftovers(recorded.moment(1, now)) if project is None else []
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
