"""What changes while somebody looks, sent to the page as it happens (server-sent events)."""

from __future__ import annotations

import codecs
import os
import time
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from starlette.responses import StreamingResponse

from fumehood.core.limits import size_told
from fumehood.errors import FumehoodError
from fumehood.faces.web.text import coloured
from fumehood.service import overview
from fumehood.store.history import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.applications import Starlette
    from starlette.requests import Request

    from fumehood.core.report import Run
    from fumehood.faces.web.house import House

_EVERY_S = 0.5
_AWAY_S = 5.0  # how long somebody counts as present while a page is loaded anew
_MOST_AT_ONCE = 1 << 16  # bytes of output in one event; a command that prints more than that is followed with gaps
_MOST_WRITTEN = 200
_UTF8 = codecs.getincrementaldecoder("utf-8")


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
