"""What every view of the page has: the records, the desk, how a template is filled, and what is new while one looks.

That is sent to the page as it happens (server-sent events).
"""

from __future__ import annotations

import codecs
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from urllib.parse import quote, unquote, urlencode

import anyio
import jinja2
from anyio import to_thread
from markupsafe import escape
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse

from fumehood.core.limits import size_told
from fumehood.core.questions import Question, question_lines
from fumehood.core.report import Run, printable, shown_path
from fumehood.errors import BadRequest, plain_error
from fumehood.faces.cli.run_text import SIGNS
from fumehood.faces.web.text import coloured, contents
from fumehood.service import overview
from fumehood.service.desk import Desk
from fumehood.service.store import Store
from fumehood.store.history import UNFINISHED
from fumehood.store.projects import Project

View = tuple[str, dict[str, object]]

_SIGNS = {kind: sign for kind, (sign, _) in SIGNS.items()}
_ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")
_TAIL = 4  # lines of what a command printed last that are shown beside it
_LATEST_WRITTEN = 5
_EVERY_S = 0.5
_AWAY_S = 5.0  # how long somebody counts as present while a page is loaded anew
_MOST_AT_ONCE = 1 << 16  # bytes of output in one event; a command that prints more than that is followed with gaps
_MOST_WRITTEN = 200
_UTF8 = codecs.getincrementaldecoder("utf-8")


class House:
    """What every view has."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.desk = Desk(store.places)
        self.watchers = 0  # pages that are told what is new
        self.token = ""  # of the link that nobody has used yet
        self.news: dict[str, str] = {}  # what they are told: pieces of the page by name
        loader = jinja2.FileSystemLoader(f"{os.path.dirname(__file__)}/templates")
        self._templates = jinja2.Environment(autoescape=True, loader=loader, undefined=jinja2.StrictUndefined)
        self._templates.filters.update(
            printable=printable, path=shown_path, size=size_told, ago=_ago, clock=_clock, sign=_SIGNS.get,
            coloured=coloured, sent=_sent, home=_from_home, lasted=_lasted, asked=_asked, numbered=self._numbered,
            contents=contents,
        )  # fmt: skip
        self._templates.globals.update(link=_link)

    def render(self, template: str, request: Request, **context: object) -> str:
        """Fill a template; what is asked and what waits is on every page."""
        questions = self.desk.waiting()
        counts = {"questions": len(questions), "waiting": overview.count_waiting(self.store)}
        shown = self._templates.get_template(template)
        return shown.render(path=request.url.path, counts=counts, open_questions=questions, **context)

    def fragment(self, template: str, **context: object) -> str:
        """Fill a piece of a page, which is sent by itself."""
        return self._templates.get_template(template).render(**context)

    def look(self) -> None:
        """Find out what is new for every page that is open."""
        try:
            self.store.recover()
            questions = self.desk.waiting()
            self.news = {
                "questions": self.fragment("questions_open.html", questions=questions),
                "running": self.fragment("running.html", running=self.running(), now=time.time()),
                "count-questions": str(len(questions) or ""),
                "count-waiting": str(overview.count_waiting(self.store) or ""), "trouble": "",
            }  # fmt: skip
        except Exception as error:  # noqa: BLE001 - nobody would be at the desk any more
            # The records can't be read now, perhaps for want of room: the page says so, and goes on trying.
            self.news = {**self.news, "trouble": str(escape(printable(str(plain_error(error)))))}

    def running(self) -> list[dict[str, object]]:
        """What runs now, each with what it uses, printed last and wrote last."""
        return [
            {
                "run": each.run, "memory": each.memory, "processes": each.processes,
                "tail": self.tail(each.run), "written": overview.written(self.store, each.run, _LATEST_WRITTEN),
            }
            for each in overview.running(self.store)
        ]  # fmt: skip

    def tail(self, run: Run) -> str:
        """Return the last lines that a running command printed."""
        printed = (overview.printed_last(self.store, run, stream, 1000) for stream in ("stdout", "stderr"))
        text = next(filter(None, printed), b"").decode("utf-8", "replace")
        return "\n".join(text.rstrip("\n").split("\n")[-_TAIL:])

    def new_link(self) -> str:
        """Return the end of an address that lets one browser in; the one before counts no more."""
        self.token = secrets.token_urlsafe(24)
        return f"/?token={self.token}"

    def project(self, path: str) -> Project:
        """Return a project that is recorded; a page registers none."""
        self.number_of(path)
        return self.store.projects.open(path, register=False)

    def number_of(self, path: str) -> int:
        """Return the number of a project that is recorded, though its directory may be gone."""
        number = self.store.projects.number_at(path)
        if number is None:
            raise BadRequest(f"there is no project {printable(path)}", hint="choose one of the list")
        return number

    def run(self, request: Request) -> Run:
        """Return the run that an address names."""
        return self.store.history.find(request.path_params["run"])

    def numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Return the numbers of runs, each in its project, by their ids."""
        query = "SELECT id, project_number FROM runs WHERE id IN (?)"
        return dict(self.store.database.rows_for(query, sorted(set(names))))

    def _numbered(self, text: str) -> str:
        """Call runs by their numbers, as the page does: ids are what the commands of several projects know them by."""
        numbers = self.numbers(_ID.findall(text))
        return _ID.sub(lambda name: f"#{numbers[name[0]]}" if name[0] in numbers else name[0], text)


def asked_path(request: Request, name: str = "path") -> str:
    """Return a path as an address gives it."""
    return received(request.query_params.get(name, ""))


def _sent(path: str) -> str:
    """Write a path for a form or an address: whatever its bytes are, it comes back as it was."""
    return quote(path, errors="surrogateescape")


def received(text: str) -> str:
    """Read a path that was written for a form or an address."""
    return unquote(text, errors="surrogateescape")


def asked_number(request: Request, name: str) -> int:
    """Return a number as an address gives it; 0 where it gives none."""
    return number_of(request.query_params.get(name, ""))


def number_of(text: str) -> int:
    """Read a number; 0 where it is none, or larger than any that is recorded."""
    return int(text) if text.isdecimal() and len(text) < 18 else 0


def _ago(at: float) -> str:
    seconds = max(0, int(time.time() - at))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _asked(question: Question) -> list[str]:
    """Write a question without breaking its lines: each is shown by itself, so that none can look like the next."""
    return [line.strip() for line in question_lines(question, 1 << 20)]


def _lasted(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"


def _from_home(path: str) -> str:
    """Write a directory as people know it: what is in the home begins with ~."""
    home = os.path.expanduser("~")
    return printable(f"~{path[len(home):]}" if path == home or path.startswith(f"{home}/") else path)


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _link(path: str, /, **query: object) -> str:
    asked = {key: value for key, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(asked)}" if asked else path


# ---- What changes while somebody looks.

@asynccontextmanager
async def attending(house: House, _app: Starlette) -> AsyncIterator[None]:
    """Be at the desk, and look for what is new, as long as a page is open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_attend, house)
        yield
        tasks.cancel_scope.cancel()


async def _attend(house: House) -> None:
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
                await to_thread.run_sync(house.look)
            await anyio.sleep(_EVERY_S / 2)


def _event(name: str, html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.split("\n"))
    return f"event: {name}\n{lines}\n"


async def streamed(
    house: House, events: Callable[[House, Request], AsyncIterator[str]], request: Request
) -> StreamingResponse:
    """Answer with what happens, as it does."""
    shown = events(house, request)
    return StreamingResponse(shown, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def news(house: House, request: Request) -> AsyncIterator[str]:
    """Tell a browser what is asked, what runs, and how much waits, whenever that is new."""
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


async def output(house: House, request: Request) -> AsyncIterator[str]:
    """Tell a run's page what its command prints and writes, until it has ended; goes on after what it was told."""
    run = await to_thread.run_sync(house.run, request)
    counts = (request.headers.get("last-event-id") or request.query_params.get("after", "")).split("-")
    read = [number_of(each) for each in (*counts, "0")[:2]]
    before = ""
    while run.state in UNFINISHED and not await request.is_disconnected():
        shown = await to_thread.run_sync(_new_of, house, run, read)
        for name, html in shown.items():
            if name != "written" or html != before:
                yield f"id: {read[0]}-{read[1]}\n{_event(name, html)}"
        yield ":\n\n"
        before = shown["written"]
        await anyio.sleep(_EVERY_S)
        run = await to_thread.run_sync(house.store.history.find, run.run)
    yield _event("ended", "")


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
