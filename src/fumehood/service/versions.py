"""What a path can be restored from: what runs replaced or deleted there, and its daily backups."""

from __future__ import annotations

import os
import time

from fumehood.core.changes import DIRECTORY, FILE, SYMLINK
from fumehood.core.report import printable
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.nofollow import stamp_of
from fumehood.service.choose import meanings
from fumehood.service.files import Live, catch_up
from fumehood.store.backups import Daily, Slots, parsed
from fumehood.store.days import Days
from fumehood.store.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from fumehood.service.store import Store
    from fumehood.store.files import Past, Record
    from fumehood.store.projects import Project


class Version(Value):
    """One version of a path: what lay there before a run, or on the morning of a day.

    It lies at `path` below `top`, in the layer of a run or among the daily backups.
    """

    source: str  # a run's id, or a day
    order: float  # the number of that run, or just before that of the day's first one
    at: float
    about: str
    kind: str
    size: int
    modified_ns: int
    top: str
    path: str

    def told(self) -> dict[str, Any]:
        """Return what programs are told."""
        return {
            "from": self.source, "at": self.at, "about": self.about, "kind": self.kind, "size": self.size,
            "modified_at": self.modified_ns / 1e9,
        }  # fmt: skip


class Known(Value):
    """A file with the days and runs that it can be restored from, the latest first."""

    record: Record
    state: str  # the directory that its backups lie below
    days: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    def told(self) -> dict[str, Any]:
        """Return what programs are told."""
        known = self.record
        copy = known.last_approved_copy_path
        return {
            "id": known.id, "path": known.path, "root": known.root, "kind": known.kind, "size": known.size,
            "modified_at": known.modified_ns / 1e9, "is_deleted": known.is_deleted,
            "needs_approval": known.needs_approval, "last_run": known.last_run,
            "last_approved_copy_path": f"{self.state}/{copy}" if copy else "",
            "days": list(self.days), "runs": list(self.runs),
        }  # fmt: skip

    @property
    def is_worth_telling(self) -> bool:
        """Whether something happened to it: a run made or changed it, or a held change waits on it."""
        known = self.record
        return bool(self.days or self.runs or known.last_run or known.is_deleted or known.needs_approval)


def known_files(store: Store, project: Project, root: str = "", path: str = "") -> list[Known]:
    """Return what is known of every file of a project, or of those below one directory of a root."""
    catch_up(store, project.id)
    files = Files(store.database)
    with Daily(store.places.state) as daily:
        names = daily.by_file()
    sources = files.sources(project.id)
    tops = (root,) if root else project.roots
    records = [each for top in tops for each in _as_they_are(top, files.below(project.id, top, path))]
    return [
        Known(
            record=record, state=store.places.state, days=tuple(_day(name) for name in names.get(record.id, ())),
            runs=tuple(sources.get((record.root, record.path), ())),
        )
        for record in records
    ]  # fmt: skip


def known_file(store: Store, project: Project, root: str, path: str) -> Known | None:
    """Return what is known of one file."""
    catch_up(store, project.id)
    recorded = Files(store.database).at(project.id, root, path)
    if recorded is None:
        return None
    (record,) = _as_they_are(root, [recorded])
    found = versions(store, project, root, path)
    days = tuple(each.source for each in found if "-" in each.source)
    runs = tuple(each.source for each in found if "-" not in each.source)
    return Known(record=record, state=store.places.state, days=days, runs=runs)


def _as_they_are(root: str, records: Sequence[Record]) -> list[Record]:
    """Return records as they are now: what a run deleted, somebody may have made again."""
    if not any(record.is_deleted for record in records) or not os.path.isdir(root):
        return list(records)
    with Live(root) as live:
        return [_as_it_is(live, record) if record.is_deleted else record for record in records]


def _as_it_is(live: Live, record: Record) -> Record:
    found = live.look(record.path)
    stamp = None if found is None else stamp_of(found)
    if stamp is None or stamp.kind not in (FILE, SYMLINK):
        return record
    return record.replace(is_deleted=False, kind=stamp.kind, size=stamp.size, modified_ns=stamp.modified_ns)


def made_by(store: Store, project: Project, root: str, path: str) -> str:
    """Return the run that last changed a path in the project, or nothing where none did."""
    pasts = Files(store.database).past(project.id, root, path)
    return pasts[0].run if pasts else ""


def versions(store: Store, project: Project, root: str, path: str) -> list[Version]:
    """Return every version of a path that can be restored, the latest first.

    What a run replaced is looked for in its layer, because an undo takes it out of there again.
    """
    files = Files(store.database)
    pasts = (_in_layer(store, past) for past in files.past(project.id, root, path))
    found = [version for version in pasts if version is not None]
    record = files.at(project.id, root, path)
    if record is not None:
        with Daily(store.places.state) as daily:
            found += _by_day(daily, record, Days(store.database))
    return sorted(found, key=lambda version: version.order, reverse=True)


def _in_layer(store: Store, past: Past) -> Version | None:
    """Return what lay at a path before a run, if its layer still holds that."""
    before = past.change.before
    upper = store.places.layer(past.layer, past.change.root, "upper")
    if before is None or not past.layer or not os.path.isdir(upper):
        return None
    parent, _, name = past.change.path.rpartition("/")
    with Slots(upper) as slots:
        found = slots.look(parent, name)
    if found is None or not (before.alike(now := stamp_of(found)) or before.kind == now.kind == DIRECTORY):
        return None
    about = f"before: {past.command}" if past.act == "run" else f"before {past.command}"
    return Version(
        source=past.run, order=past.number, at=past.started_at, about=about, kind=before.kind, size=before.size,
        modified_ns=before.modified_ns, top=upper, path=past.change.path,
    )  # fmt: skip


def _by_day(daily: Daily, record: Record, recorded: Days) -> Iterator[Version]:
    for name in daily.by_file().get(record.id, ()):
        found, day = daily.look(name), _day(name)
        if found is not None:
            stamp, at = stamp_of(found), time.mktime(time.strptime(day, "%y-%m-%d"))
            yield Version(
                source=day, order=recorded.first_run(day) - 0.5, at=at, about="daily backup",
                kind=stamp.kind, size=stamp.size, modified_ns=stamp.modified_ns, top=daily.path, path=name,
            )  # fmt: skip


def _day(name: str) -> str:
    known = parsed(name)
    return "" if known is None else known[1]


def place_of(store: Store, project: Project, path: str, here: str = "") -> tuple[str, str]:
    """Return the root and the path below it that a person means.

    A path may be absolute, relative to `here` (where the person is), or relative to a root, as reports show
    it; the first of these that anything is known of counts.
    """
    below = (_below(project, meant) for meant in meanings(project.roots, path, here))
    places = [place for place in below if place is not None]
    if not places:
        raise BadRequest(
            f"{printable(path) or 'an empty path'} is not a path in {project.path}",
            hint="name a file of the project; fumehood roots list shows where it may lie",
        )
    files = Files(store.database)
    known = (place for place in places if files.past(project.id, *place) or files.at(project.id, *place))
    return next(known, places[0])


def _below(project: Project, meant: str) -> tuple[str, str] | None:
    """Return the root that an absolute path lies in, and the path below it."""
    for root in project.roots:
        if meant.startswith(f"{root}/"):
            return root, meant[len(root) + 1 :]
    return None
