"""`fumehood web`: serve the page and say where; its addresses, what stands behind each, and who may use it.

What is new while somebody looks is sent to the page as it happens (server-sent events).
"""

from __future__ import annotations

import codecs
import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from http.client import HTTP_PORT
from urllib.parse import parse_qs

import anyio
import uvicorn
from anyio import to_thread
from markupsafe import escape
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fumehood.core.report import Run, format_size, printable
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, plain_error
from fumehood.faces.web import api, views
from fumehood.faces.web.text import coloured
from fumehood.faces.web.views import Page, View, number_of, received
from fumehood.linux.cache import replace_file
from fumehood.service import overview, provided
from fumehood.service.opened import OpenedStore
from fumehood.service.restore import restore
from fumehood.store.audit import WEB
from fumehood.store.config import file_of, text_of, write_checked
from fumehood.store.history import UNFINISHED
from fumehood.store.places import Places

_DRAFT = "/drafts/{project}/{draft}"
_HERE = os.path.dirname(__file__)
_IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
# What is put into a page that is open; asked for by itself, it is a page of its own.
_PARTS = (
    "changes.html", "held.html", "history_rows.html", "version.html", "blame.html", "doctor.html", "diff.html",
)  # fmt: skip
_EVERY_S = 0.5
_AWAY_S = 5.0  # how long somebody counts as present while a page is loaded anew
_MOST_AT_ONCE = 1 << 16  # bytes of output in one event; a command that prints more than that is followed with gaps
_MOST_WRITTEN = 200
_UTF8 = codecs.getincrementaldecoder("utf-8")
_MOST_SENT = 8 << 20  # bytes of a form
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()), (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip
_WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Fumehood</title>'
    '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
    '<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Go on</a></p></html>\n'
)
_STRANGE = "This browser is not known here. Open the link that `fumehood web` printed: it works once.\n"
_ANOTHER = (
    "This link is for the user of this machine who started `fumehood web`, and for no other. Where a tunnel is\n"
    "another user's, start it with --host NAME: the name by which the tunnel is reached.\n"
)
_ANOTHERS = "This page is for the user of this machine who started `fumehood web`, and for no other.\n"
_USED = (
    "This browser is not known here: the link was used already. A browser that is known makes another one, under\n"
    "Settings; or end `fumehood web`, start it again, and open the link that it prints.\n"
)


def serve(port: int, *, bind: str = "127.0.0.1", hosts: tuple[str, ...] = (), opens: bool = True) -> int:
    """Serve until interrupted; prints one line with the address when it listens."""
    store = OpenedStore(face=WEB)
    listener = _listening(bind, port)
    port = listener.getsockname()[1]
    shown = f"[{bind}]" if ":" in bind else bind
    hosts = tuple(host.lower() for host in hosts)  # as browsers write them
    names = ("127.0.0.1", "localhost", "[::1]", shown, *hosts)
    # Browsers leave out the port that is the usual one.
    served = frozenset((*(f"{name}:{port}" for name in names), *(names if port == HTTP_PORT else hosts)))
    page = Page(store)
    users = None if hosts else _own_users()  # a tunnel may be a program of whoever
    gate = _gate(page, port, served, _api_token(store.places), users)
    address = f"http://{hosts[0] if hosts else f'{shown}:{port}'}{page.new_link()}"
    print(f"Fumehood is at {address}", flush=True)
    if opens and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        import webbrowser

        os.environ["PATH"] = store.safe_path()  # by which the browser is looked for
        # Beside us: it may wait for the browser, which waits for the page.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    # What nobody foresaw is shown in the page as one line; where it happened, to whoever asks for it.
    level = "error" if os.environ.get("FUMEHOOD_DEBUG") else "critical"
    config = uvicorn.Config(gate, log_level=level, timeout_graceful_shutdown=1, server_header=False)
    uvicorn.Server(config).run([listener])
    return 0


def _listening(bind: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, port))
    except OSError as error:
        listener.close()
        message = f"port {port} of {bind} can't be used: {error.strerror}"
        raise BadRequest(message, hint="--bind takes an address of this machine; --port 0 a free port") from error
    listener.listen()
    return listener


def _api_token(places: Places) -> str:
    """Return the token of the interface for programs, made once; whoever can read the file is the person."""
    path = f"{places.state}/api-token"
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            token = file.read().strip()
    except FileNotFoundError:
        token = ""
    new = secrets.token_urlsafe(32)
    if len(token) >= len(new) and token.isascii() and token.isprintable():
        return token
    # There is none, or less than one, as a full disk or a crash leaves it.
    replace_file(path, new.encode(), by_many=True)
    return _api_token(places)  # another page may have made one at the same time


def _gate(page: Page, port: int, hosts: frozenset[str], api_token: str, users: frozenset[int] | None) -> Gate:
    """Return the whole page, behind its gate."""
    views_at = {
        "/": views.now, "/questions": views.questions, "/waiting": views.waiting, "/history": views.history,
        "/files": views.files, "/file": views.file, "/file/version": views.version, "/file/lines": views.lines,
        "/settings": views.settings, "/settings/doctor": views.doctor, "/runs/{run}": views.run,
        "/runs/{run}/diff": views.difference, "/runs/{run}/changes": views.changes,
        "/runs/{run}/held": views.more_waiting, "/drafts": views.every_draft, _DRAFT: views.draft,
        f"{_DRAFT}/diff": views.difference,
    }  # fmt: skip
    # Each with the place where its outcome is seen, if it does not return that itself.
    acts_at: dict[str, tuple[Callable[[Page, Request, FormData], object], str]] = {
        "/runs/{run}/{act}": (_act, ""), "/questions/{question}": (_answer, ""), f"{_DRAFT}/{{act}}": (_draft, ""),
        "/restore": (_restore, ""), "/configuration": (_configure, "/settings#configuration"),
        "/missed/{number}": (
            lambda page, request, _form: page.store.grants.forget_missed(_numbered(request)), "/questions",
        ),
        "/grants/{number}": (
            lambda page, request, _form: page.store.grants.revoke(_numbered(request)), "/settings#answers",
        ),
        "/playground/clean": (
            lambda page, _request, _form: provided.empty_playground(page.store.places), "/settings#playground",
        ),
    }  # fmt: skip
    routes: list[Route | Mount] = [
        *(Route(path, partial(_shown, page, view)) for path, view in views_at.items()),
        Route("/link", partial(_another_browser, page), methods=["POST"]),
        Route("/events", partial(_streamed, page, news)),
        Route("/runs/{run}/events", partial(_streamed, page, _output)),
        Route("/runs/{run}/output", partial(_whole_output, page)),
        Route("/runs/{run}/content", partial(_picture, page)),
        Route(f"{_DRAFT}/content", partial(_picture, page)),
        *api.routes(page),
        *(Route(path, partial(_done, page, *act), methods=["POST"]) for path, act in acts_at.items()),
        Mount("/static", StaticFiles(directory=f"{_HERE}/static")),
    ]
    tells_errors = dict.fromkeys((FumehoodError, OSError, HTTPException, Exception), partial(_error_page, page))
    app = Starlette(routes=routes, lifespan=partial(_attending, page), exception_handlers=tells_errors)
    return Gate(app, page, port, hosts, api_token, users)


def _shown(page: Page, view: Callable[[Page, Request], View], request: Request) -> Response:
    """Answer with a template that a view fills; this runs in a thread, for it reads the records."""
    template, context = view(page, request)
    if template in _PARTS and not request.headers.get("hx-request"):
        template, context = "part_page.html", {**context, "part": template}
    return HTMLResponse(page.render(template, request, **context), headers={"cache-control": "no-store"})


def _error_page(page: Page, request: Request, error: Exception) -> Response:
    """Tell of an error: in one line, with what to do about it."""
    if isinstance(error, HTTPException):
        plain: FumehoodError = BadRequest(f"{request.url.path}: {error.detail}", hint="choose one of the views")
        status = error.status_code
    else:
        plain = plain_error(error)
        was_asked = isinstance(error, BadRequest if request.method == "GET" else FumehoodError)
        status = 500 if not was_asked else 404 if request.method == "GET" else 409
    if request.url.path.startswith("/api/"):
        return api.refusal(plain, status)
    if request.headers.get("hx-request"):
        return HTMLResponse(page.fragment("error_part.html", error=plain), status)
    back = request.headers.get("referer", "").partition(request.url.netloc)[2]
    # What can't be read now may be what other pages show of it all: this one shows only what is wrong.
    shown = page.fragment(
        "error.html", error=plain, title="That did not work", back=back if back.startswith("/") else "/",
        is_stale=isinstance(error, ChangedMeanwhile), path=request.url.path, open_questions=(),
        counts={"questions": "", "waiting": ""},
    )  # fmt: skip
    return HTMLResponse(shown, status)


# ---- What a person does: each act is a form, and leads to where its outcome is seen.

async def _done(
    page: Page, act: Callable[[Page, Request, FormData], object], place: str, request: Request
) -> Response:
    """Do an act in a thread, for it may wait for a lock; without a place to go then, it returns one, or a sentence."""
    async with request.form(max_files=0, max_part_size=_MOST_SENT) as form:
        returned = await to_thread.run_sync(act, page, request, form)
    outcome = place or str(returned)
    if request.headers.get("hx-request"):
        return HTMLResponse(escape(outcome))
    return RedirectResponse(outcome if outcome.startswith("/") else "/questions", 303)


def _act(page: Page, request: Request, form: FormData) -> str:
    """Apply, discard, undo, redo, stop, checkpoint or merge a run, all of it or some paths."""
    run = page.run(request)
    content = str(form.get("content", "")).replace("\r\n", "\n")
    if form.get("dos"):
        content = content.replace("\n", "\r\n")
    chosen = overview.Chosen(
        act=request.path_params["act"], paths=tuple(received(str(path)) for path in form.getlist("path")),
        some="chosen" in form, force=bool(form.get("force")), expected=str(form.get("digest", "")),
        hunks=tuple(number_of(str(number)) for number in form.getlist("hunk") if str(number).isdecimal()),
        content=content, seen=str(form.get("seen", "")),
    )  # fmt: skip
    done = overview.perform(page.store, run, chosen)
    back = str(form.get("back", ""))
    return f"/waiting?done={done.run}" if back == "waiting" else f"/runs/{done.run}"


def _answer(page: Page, request: Request, form: FormData) -> str:
    counted = page.desk.answer(request.path_params["question"], str(form.get("answer", "")))
    return "Answered." if counted else "Somebody else was faster, or it is too late."


def _draft(page: Page, request: Request, form: FormData) -> str:
    done = views.perform_on_draft(page, request, {name: str(value) for name, value in form.items()})
    if done is not None:
        return f"/runs/{done.run}" if done.state != "empty" else "/drafts"
    address = request.url.path.rpartition("/")[0]
    return address if request.path_params["act"] == "rebase" else "/drafts"


def _numbered(request: Request) -> int:
    return number_of(request.path_params["number"])


def _restore(page: Page, _request: Request, form: FormData) -> str:
    project = page.project(received(str(form.get("project", ""))))
    path, source = received(str(form.get("path", ""))), str(form.get("source", ""))
    return f"/runs/{restore(page.store, project, path, source, here=project.path).run}"


def _configure(page: Page, _request: Request, form: FormData) -> None:
    text, before = (str(form.get(name, "")).replace("\r\n", "\n") for name in ("text", "before"))
    if "\r\n" in text_of(page.store.places):  # a form gives every line the same end
        text, before = text.replace("\n", "\r\n"), before.replace("\n", "\r\n")
    write_checked(file_of(page.store.places), before, text)


def _another_browser(page: Page, request: Request) -> Response:
    """Show a new link, for one more browser; the one before counts no more."""
    address = f"{request.headers['origin']}{page.new_link()}"
    shown = page.render("link.html", request, title="Another browser", address=address)
    return HTMLResponse(shown, headers={"cache-control": "no-store"})


# ---- What is not a page.

def _whole_output(page: Page, request: Request) -> Response:
    run = page.run(request)
    stream = "stderr" if request.query_params.get("stream") == "stderr" else "stdout"
    name = f'attachment; filename="{run.number}-{stream}.txt"'
    pieces = (piece or b"" for piece in page.store.history.output_pieces(run.run, stream))
    return StreamingResponse(pieces, media_type="text/plain", headers={"content-disposition": name})


def _picture(page: Page, request: Request) -> Response:
    """Show one version of a picture; nothing else is given out as what it may be."""
    data = views.versions(page, request)[request.query_params.get("side") == "new"]
    kind = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)
    if kind is None:
        return PlainTextResponse("This is not a picture.\n", 404)
    return Response(data, media_type=kind)


# ---- What changes while somebody looks.

@asynccontextmanager
async def _attending(page: Page, _app: Starlette) -> AsyncIterator[None]:
    """Be at the desk, and look for what is new, as long as a page is open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_attend, page)
        yield
        tasks.cancel_scope.cancel()


async def _attend(page: Page) -> None:
    seen_at, is_present = -_AWAY_S, False
    with ExitStack() as presence:
        while True:
            now = time.monotonic()
            seen_at = now if page.watchers else seen_at
            was_present, is_present = is_present, now - seen_at < _AWAY_S
            if is_present and not was_present:
                presence.enter_context(page.desk.attend())
            elif was_present and not is_present:
                presence.close()
            if page.watchers:
                await to_thread.run_sync(_look, page)
            await anyio.sleep(_EVERY_S / 2)


def _look(page: Page) -> None:
    """Find out what is new for every page that is open."""
    try:
        page.store.recover()
        questions = page.desk.waiting()
        page.news = {
            "questions": page.fragment("questions_open.html", questions=questions),
            "running": page.fragment("running.html", running=page.running(), now=time.time()),
            "count-questions": str(len(questions) or ""),
            "count-waiting": str(overview.count_waiting(page.store) or ""), "trouble": "",
        }  # fmt: skip
    except Exception as error:  # noqa: BLE001 - nobody would be at the desk any more
        # The records can't be read now, perhaps for want of room: the page says so, and goes on trying.
        page.news = {**page.news, "trouble": str(escape(printable(str(plain_error(error)))))}


def _event(name: str, html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.split("\n"))
    return f"event: {name}\n{lines}\n"


async def _streamed(
    page: Page, events: Callable[[Page, Request], AsyncIterator[str]], request: Request
) -> StreamingResponse:
    """Answer with what happens, as it does."""
    shown = events(page, request)
    return StreamingResponse(shown, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def news(page: Page, request: Request) -> AsyncIterator[str]:
    """Tell a browser what is asked, what runs, and how much waits, whenever that is new."""
    before: dict[str, str] = {}
    page.watchers += 1
    try:
        while not await request.is_disconnected():
            latest = page.news  # others take its place while it is sent
            for name, html in latest.items():
                if before.get(name) != html:
                    yield _event(name, html)
            yield ":\n\n"  # so that a page that is gone is noticed
            before = latest
            await anyio.sleep(_EVERY_S)
    finally:
        page.watchers -= 1


async def _output(page: Page, request: Request) -> AsyncIterator[str]:
    """Tell a run's page what its command prints and writes, until it has ended; goes on after what it was told."""
    run = await to_thread.run_sync(page.run, request)
    counts = (request.headers.get("last-event-id") or request.query_params.get("after", "")).split("-")
    read = [number_of(each) for each in (*counts, "0")[:2]]
    before = ""
    while run.state in UNFINISHED and not await request.is_disconnected():
        shown = await to_thread.run_sync(_new_of, page, run, read)
        for name, html in shown.items():
            if name != "written" or html != before:
                yield f"id: {read[0]}-{read[1]}\n{_event(name, html)}"
        yield ":\n\n"
        before = shown["written"]
        await anyio.sleep(_EVERY_S)
        run = await to_thread.run_sync(page.store.history.find, run.run)
    yield _event("ended", "")


def _new_of(page: Page, run: Run, read: list[int]) -> dict[str, str]:
    """Return what a command printed since so many bytes of each output, and what it wrote."""
    shown = {}
    for number, stream in enumerate(("stdout", "stderr")):
        try:
            with open(page.store.places.output(run.run, stream), "rb") as file:
                passed = max(0, os.fstat(file.fileno()).st_size - _MOST_AT_ONCE - read[number])
                file.seek(read[number] + passed)
                piece = file.read(_MOST_AT_ONCE)
        except FileNotFoundError:
            continue  # nothing yet, or all of it is in the record now
        decoder = _UTF8("replace")
        text = decoder.decode(piece)
        read[number] += passed + len(piece) - len(decoder.getstate()[0])  # the rest of a letter is still to come
        if text:
            note = f"\n… {format_size(passed)} more …\n" if passed else ""
            shown[stream] = str(coloured(note + text))
    each = overview.live(page.store, run)
    shown["use"] = page.fragment("use.html", each=each, now=time.time())
    paths, is_more = overview.written(page.store, run, _MOST_WRITTEN)
    shown["written"] = page.fragment("written.html", written=paths, is_more=is_more)
    return shown


# ---- Who may use the page: this machine's own person, by a link that works once, and no other page's script.
#
# The link's token becomes a strict cookie. Other users of this machine see it where a browser is started with the link,
# and are sent the cookie if that browser opens what they serve at another port: a connection of theirs gets nothing for
# either. Host and Origin are compared with the address that is served, so a name that leads here (DNS rebinding) gets
# nothing, nor does another site's form or script. Nothing may be loaded from elsewhere, and no script or style may
# stand in the page itself, so text that a command wrote stays text.

class Gate:
    """Lets in whoever came by the link; the interface for programs has a token of its own."""

    def __init__(
        self, app: ASGIApp, page: Page, port: int, hosts: frozenset[str], api_token: str, users: frozenset[int] | None
    ) -> None:
        self._app, self._page = app, page
        self._port, self._users = port, users
        self._hosts = hosts  # with the port, as browsers write it
        self._api_token = api_token
        self._cookie = secrets.token_urlsafe(32)
        # Cookies don't know ports: two pages of one person must not take each other's.
        self._name = f"fumehood-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | HTMLResponse | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, path = headers.get("host", ""), scope["path"]
        if host not in self._hosts:
            return PlainTextResponse("This is not the address of the page.\n", 400)
        origins = (f"http://{host}", f"https://{host}")  # a person's own tunnel may speak TLS
        if path.startswith("/api/"):
            token = headers.get("authorization", "").removeprefix("Bearer ")
            is_ours = headers.get("origin", origins[0]) in origins and _same(token, self._api_token)
            return None if is_ours else PlainTextResponse("A token is needed.\n", 401)
        # A browser that does not say where a form comes from is too old to be told from another site.
        if scope["method"] not in ("GET", "HEAD") and headers.get("origin") not in origins:
            return PlainTextResponse("This came from another site.\n", 403)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if path == "/" and token:
            return self._welcome(token) if self._is_own_user(scope) else PlainTextResponse(_ANOTHER, 403)
        if path.startswith("/static/") or (self._has_cookie(headers) and self._is_own_user(scope)):
            return None
        return PlainTextResponse(_ANOTHERS, 403) if self._has_cookie(headers) else self._unknown()

    def _is_own_user(self, scope: Scope) -> bool:
        """Return False if a request comes from another user of this machine."""
        return self._users is None or _users_of(scope["client"][1], self._port) <= self._users

    def _unknown(self) -> PlainTextResponse:
        return PlainTextResponse(_STRANGE if self._page.token else _USED, 403)

    def _welcome(self, token: str) -> PlainTextResponse | HTMLResponse:
        if not _same(token, self._page.token):
            return self._unknown()
        self._page.token = ""
        # Not by a redirect: a browser that came from a link on another site would not send a strict cookie along.
        response = HTMLResponse(_WELCOME)
        response.set_cookie(self._name, self._cookie, httponly=True, samesite="strict", path="/")
        return response

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        """Look for ours among whatever the servers at other ports have set: by no parser, which may refuse all."""
        cookies = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        return any(name == self._name and _same(value, self._cookie) for name, _, value in cookies)


def _own_users() -> frozenset[int] | None:
    """Return the users whose browsers may follow the link; None: anybody's, where root can't say who the person is."""
    user = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else str(os.geteuid())
    return frozenset({0, int(user)}) if user.isdecimal() else None


def _users_of(port: int, to: int) -> set[int]:
    """Return the users of this machine who are connected from a port to a port; none where that is from elsewhere."""
    users = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii") as lines:  # a kernel may have no IPv6
            for _, here, there, *_, user in (line.split()[:8] for line in lines):
                if here.endswith(f":{port:04X}") and there.endswith(f":{to:04X}"):
                    users.add(int(user))
    return users


def _same(shown: str, secret: str) -> bool:
    """Compare what somebody shows with a secret; an empty one is not there yet, or no more, and nothing opens it."""
    return bool(secret) and hmac.compare_digest(shown.encode(), secret.encode())
