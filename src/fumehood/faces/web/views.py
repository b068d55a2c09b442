"""What the views of the present show: what runs, what is asked, what waits, and how things are set."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.faces.web.house import asked_number, asked_path
from fumehood.linux.doctor import examine
from fumehood.service import overview, scratch
from fumehood.service.overview import shown_at
from fumehood.store.config import file_of, text_of
from fumehood.store.search import Search, count_waiting, page_of_changes, search

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from fumehood.core.changes import Change
    from fumehood.core.report import Run
    from fumehood.faces.web.house import House, View

_LATEST = 8
_HELD_RUNS = 10  # on one page of what waits
_HELD = 60  # changes of each
_MOST_IN_PLAYGROUND = 200


def now(house: House, _request: Request) -> View:
    """What runs now, in every project, and where things stand."""
    store = house.store
    latest = store.history.runs(among=search(store.history, Search(), most=_LATEST)[0])
    return "now.html", {
        "title": "Now", "running": house.running(), "projects": store.projects.known(), "latest": latest,
        "now": time.time(), "sessions": store.sessions.counts()[:_LATEST],
    }  # fmt: skip


def questions(house: House, _request: Request) -> View:
    """What is asked now, and what found nobody."""
    return "questions.html", {"title": "Questions", "missed": house.store.grants.missed()}


def waiting(house: House, request: Request) -> View:
    """What is held, by run and directory, with the reason of each."""
    before = asked_number(request, "before")
    runs, later = overview.waiting(house.store, most=_HELD_RUNS, before=before)
    done = request.query_params.get("done", "")
    return "waiting.html", {
        "title": "Waiting", "runs": [_held(house, run, (0, 0)) for run in runs], "later": later,
        "done": house.store.history.find(done) if done else None,
    }  # fmt: skip


def more_waiting(house: House, request: Request) -> View:
    """Some more of what one run holds."""
    run = house.run(request)
    after = asked_number(request, "row"), asked_number(request, "entry")
    return "held.html", {"title": "Waiting", "each": _held(house, run, after)}


def _held(house: House, run: Run, after: tuple[int, int]) -> dict[str, object]:
    seen = shown_at(house.store, run)
    changes, rest = page_of_changes(house.store.database, run.run, after, most=_HELD, waiting=True)
    return {
        "run": run, "directories": by_directory(run, changes), "rest": rest, "seen": seen,
        "total": count_waiting(house.store.database, run.run), "lines": overview.lines_of_rules(house.store, changes),
    }  # fmt: skip


def by_directory(run: Run, changes: Iterable[Change]) -> dict[str, list[Change]]:
    """Return changes by the directory that they are in, named as a decision on it names it."""
    groups: dict[str, list[Change]] = {}
    for change in changes:
        directory = change.path.rpartition("/")[0]
        if change.root:
            directory = f"{run.roots[change.root]}/{directory}".rstrip("/")
        groups.setdefault(directory, []).append(change)
    return groups


def settings(house: House, request: Request) -> View:
    """The configuration, kept answers, projects and the playground."""
    place = scratch.made(house.store.places)
    below = os.path.normpath(f"/{asked_path(request, 'below')}").strip("/")
    entries, is_more = _listed(place, below)
    return "settings.html", {
        "title": "Settings", "file": file_of(house.store.places), "configuration": text_of(house.store.places),
        "playground": place, "size": scratch.size(house.store.places), "below": below, "entries": entries,
        "is_more": is_more, "grants": house.store.grants.all(), "projects": house.store.projects.known(),
    }  # fmt: skip


def _listed(place: str, below: str) -> tuple[list[tuple[str, str, int]], bool]:
    """Return some of what is in a directory of the playground: name, kind and size; no link is followed."""
    from fumehood.linux.libc import Closing
    from fumehood.linux.nofollow import LISTING, kind_of, open_below, open_top

    try:
        with Closing(open_top(place)) as top, Closing(open_below(top, below, LISTING)) as directory:
            names = sorted(os.listdir(directory))
            statuses = [
                (name, os.stat(name, dir_fd=directory, follow_symlinks=False)) for name in names[:_MOST_IN_PLAYGROUND]
            ]
    except OSError:
        return [], False  # gone meanwhile
    listed = [(name, kind_of(status.st_mode), status.st_size) for name, status in statuses]
    return listed, len(names) > len(listed)


def doctor(house: House, _request: Request) -> View:
    """What this machine can do, tried now."""
    return "doctor.html", {"title": "Doctor", "abilities": examine(house.store.places.state)}


def title_of(run: Run) -> str:
    """What a page about a run is called."""
    return f"#{run.number} {printable(run.command)[:60]}"
