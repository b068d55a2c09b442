"""The views of the present: what runs, what is asked, what waits, how things are set; and what is new while one looks.

That is sent to the page as it happens (server-sent events).
"""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse

from fumehood.core.changes import Change
from fumehood.core.limits import size_told
from fumehood.core.report import Run
from fumehood.errors import FumehoodError
from fumehood.faces.web.house import House, View, asked_number, asked_path
from fumehood.faces.web.text import coloured
from fumehood.linux.doctor import examine
from fumehood.service import overview, provided
from fumehood.service.overview import shown_at
from fumehood.store.config import file_of, text_of
from fumehood.store.history import UNFINISHED
from fumehood.store.search import Search, count_waiting, page_of_changes, search

_LATEST = 8
_HELD_RUNS = 10  # on one page of what waits
_HELD = 60  # changes of each
_MOST_IN_PLAYGROUND = 200
_EVERY_S = 0.5
_AWAY_S = 5.0  # how long somebody counts as present while a page is loaded anew
_MOST_AT_ONCE = 1 << 16  # bytes of output in one event; a command that prints more than that is followed with gaps
_MOST_WRITTEN = 200
_UTF8 = codecs.getincrementaldecoder("utf-8")


def now(house: House, _request: Request) -> View:
    """What runs now, in every project, and where things stand."""
    store = house.store
    latest = store.history.runs(among=search(store.history, Search(), most=_LATEST)[0])
    return "now.html", {
        "title": "Now", "running": house.running(), "projects": store.projects.listed(), "latest": latest,
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
    place = provided.make_playground(house.store.places)
    below = os.path.normpath(f"/{asked_path(request, 'below')}").strip("/")
    entries, is_more = _listed(place, below)
    return "settings.html", {
        "title": "Settings", "file": file_of(house.store.places), "configuration": text_of(house.store.places),
        "playground": place, "size": provided.playground_size(house.store.places), "below": below, "entries": entries,
        "is_more": is_more, "grants": house.store.grants.all(), "projects": house.store.projects.listed(),
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


# ---- What changes while somebody looks.

def attending(house: House) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return what is at the desk, and looks for what is new, as long as a page is open."""

    async def attend() -> None:
        seen_at, is_present = 0.0, False
        with ExitStack() as presence:
            while True:
                now = time.monotonic()
                seen_at = now if house.watchers else seen_at
                was_present, is_present = is_present, bool(seen_at) and now - seen_at < _AWAY_S
                if is_present and not was_present:
                    presence.enter_context(house.desk.attend())
                elif was_present and not is_present:
                    presence.close()
                if house.watchers:
                    await house.in_thread(lambda: _look(house))
                await anyio.sleep(_EVERY_S / 2)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attend)
            yield
            tasks.cancel_scope.cancel()

    return lifespan


def _look(house: House) -> None:
    try:
        house.look()
    except (FumehoodError, OSError) as error:
        # The records can't be read now, perhaps for want of room: the page says so, and goes on trying.
        house.news = {**house.news, "trouble": house.fragment("trouble.html", message=str(error))}


def _event(name: str, html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.split("\n"))
    return f"event: {name}\n{lines}\n"


def _streamed(events: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})


def events(house: House) -> Callable[[Request], object]:
    """Tell a browser what is asked, what runs, and how much waits, whenever that is new."""

    async def stream(request: Request) -> AsyncIterator[str]:
        before: dict[str, str] = {}
        house.watchers += 1
        try:
            while not await request.is_disconnected():
                for name, html in house.news.items():
                    if before.get(name) != html:
                        yield _event(name, html)
                yield ":\n\n"  # so that a page that is gone is noticed
                before = house.news
                await anyio.sleep(_EVERY_S)
        finally:
            house.watchers -= 1

    async def answer(request: Request) -> StreamingResponse:
        return _streamed(stream(request))

    return answer


def output(house: House) -> Callable[[Request], object]:
    """Tell a run's page what its command prints and writes, until it has ended; goes on after what it was told."""

    async def stream(request: Request) -> AsyncIterator[str]:
        run = await house.in_thread(lambda: house.run(request))
        counts = (request.headers.get("last-event-id") or request.query_params.get("after", "")).split("-")
        read = [int(each) if each.isdecimal() else 0 for each in (*counts, "0")[:2]]
        before = ""
        while run.state in UNFINISHED and not await request.is_disconnected():
            shown = await house.in_thread(lambda run=run: _new_of(house, run, read))  # type: ignore[misc]
            for name, html in shown.items():
                if name != "written" or html != before:
                    yield f"id: {read[0]}-{read[1]}\n{_event(name, html)}"
            yield ":\n\n"
            before = shown["written"]
            await anyio.sleep(_EVERY_S)
            run = await house.in_thread(lambda run=run: house.store.history.find(run.run))  # type: ignore[misc]
        yield _event("ended", "")

    async def answer(request: Request) -> StreamingResponse:
        return _streamed(stream(request))

    return answer


def _new_of(house: House, run: Run, read: list[int]) -> dict[str, str]:
    """Return what a command printed since so many bytes of each output, and what it wrote."""
    shown = {}
    for number, stream in enumerate(("stdout", "stderr")):
        try:
            with open(house.store.places.output(run.run, stream), "rb") as file:
                passed = max(0, os.fstat(file.fileno()).st_size - _MOST_AT_ONCE - read[number])
                file.seek(read[number] + passed)
                piece = file.read(_MOST_AT_ONCE)
        except FileNotFoundError:
            continue  # nothing yet, or all of it is in the record now
        decoder = _UTF8("replace")
        text = decoder.decode(piece)
        read[number] += passed + len(piece) - len(decoder.getstate()[0])  # the rest of a letter is still to come
        if text:
            note = f"\n… {size_told(passed)} more …\n" if passed else ""
            shown[stream] = str(coloured(note + text))
    each = overview.live(house.store, run)
    shown["use"] = house.fragment("use.html", each=each, now=time.time())
    paths, is_more = overview.written(house.store, run, _MOST_WRITTEN)
    shown["written"] = house.fragment("written.html", written=paths, is_more=is_more)
    return shown
