"""`fumehood web`: the server of the web page, its addresses, and who may use it.

News is sent to open pages as it happens (server-sent events).
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
from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, as_fumehood_error
from fumehood.faces.web import api, views
from fumehood.faces.web.text import render_output
from fumehood.faces.web.views import Page, View, decode_path, parse_number
from fumehood.linux.cache import replace_file
from fumehood.service import overview, provided
from fumehood.service.opened import OpenedStore
from fumehood.service.restore import restore
from fumehood.store.audit import WEB
from fumehood.store.config import configuration_path, configuration_text, write_edited
from fumehood.store.history import UNFINISHED
from fumehood.store.places import Places

_DRAFT = "/drafts/{project}/{draft}"
_HERE = os.path.dirname(__file__)
_IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
# Templates of parts that a script puts into an open page; requested without the script, they become whole pages.
_PART_TEMPLATES = (
    "changes.html", "held.html", "history_rows.html", "version.html", "blame.html", "doctor.html", "diff.html",
)  # fmt: skip
_POLL_S = 0.5
_PRESENCE_S = 5.0  # how long the person still counts as present after the last page was closed, or is reloaded
_MAX_EVENT_BYTES = 1 << 16  # of output in one event; if a command prints more in that time, the page shows a gap
_MAX_WRITTEN = 200
_UTF8 = codecs.getincrementaldecoder("utf-8")
_MAX_FORM_BYTES = 8 << 20  # bytes of a form
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = [
    (b"content-security-policy", _CONTENT_POLICY.encode()), (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip
_WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Fumehood</title>'
    '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
    '<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Go on</a></p></html>\n'
)
_UNKNOWN_BROWSER = "This browser is not known here. Open the link that `fumehood web` printed: it works once.\n"
_ANOTHER_USER_LINK = (
    "This link is for the user of this machine who started `fumehood web`, and for no other. Where a tunnel is\n"
    "another user's, start it with --host NAME: the name by which the tunnel is reached.\n"
)
_ANOTHER_USER = "This page is for the user of this machine who started `fumehood web`, and for no other.\n"
_LINK_USED = (
    "This browser is not known here: the link was used already. A browser that is known makes another one, under\n"
    "Settings; or end `fumehood web`, start it again, and open the link that it prints.\n"
)


def serve(port: int, *, bind: str = "127.0.0.1", hosts: tuple[str, ...] = (), opens: bool = True) -> int:
    """Serve until interrupted; prints one line with the address as soon as it listens."""
    store = OpenedStore(face=WEB)
    listener = _listen(bind, port)
    port = listener.getsockname()[1]
    host_name = f"[{bind}]" if ":" in bind else bind
    hosts = tuple(host.lower() for host in hosts)  # as browsers write them
    host_names = ("127.0.0.1", "localhost", "[::1]", host_name, *hosts)
    # Browsers leave out the standard port.
    with_port = (f"{name}:{port}" for name in host_names)
    served_hosts = frozenset((*with_port, *(host_names if port == HTTP_PORT else hosts)))
    page = Page(store)
    users = None if hosts else _allowed_users()  # a tunnel's program may run as any user
    gate = _build_gate(page, port, served_hosts, _api_token(store.places), users)
    address = f"http://{hosts[0] if hosts else f'{host_name}:{port}'}{page.new_link()}"
    print(f"Fumehood is at {address}", flush=True)
    if opens and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        import webbrowser

        os.environ["PATH"] = store.safe_path()  # in which the browser is searched
        # In a thread: it may wait for the browser, and the browser waits for our page.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    # The page shows an unforeseen error in one line; with FUMEHOOD_DEBUG, the traceback is printed too.
    level = "error" if os.environ.get("FUMEHOOD_DEBUG") else "critical"
    config = uvicorn.Config(gate, log_level=level, timeout_graceful_shutdown=1, server_header=False)
    uvicorn.Server(config).run([listener])
    return 0


def _listen(bind: str, port: int) -> socket.socket:
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
    """Return the API token, which is made once; only the person can read its file."""
    path = f"{places.state}/api-token"
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            token = file.read().strip()
    except FileNotFoundError:
        token = ""
    new = secrets.token_urlsafe(32)
    if len(token) >= len(new) and token.isascii() and token.isprintable():
        return token
    # There is no token yet, or only a part of one, after a crash or on a full disk.
    replace_file(path, new.encode(), by_many=True)
    return _api_token(places)  # read it: another process may have made one at the same time


def _build_gate(page: Page, port: int, hosts: frozenset[str], api_token: str, users: frozenset[int] | None) -> Gate:
    """Return the web application behind its gate."""
    views_by_path = {
        "/": views.now, "/questions": views.questions, "/waiting": views.waiting, "/history": views.history,
        "/files": views.files, "/file": views.file, "/file/version": views.version, "/file/lines": views.lines,
        "/settings": views.settings, "/settings/doctor": views.doctor, "/runs/{run}": views.run,
        "/runs/{run}/diff": views.difference, "/runs/{run}/changes": views.changes,
        "/runs/{run}/held": views.more_waiting, "/drafts": views.all_drafts, _DRAFT: views.draft,
        f"{_DRAFT}/diff": views.difference,
    }  # fmt: skip
    # Each act with the address that shows its outcome; "" if the act returns that itself.
    acts_by_path: dict[str, tuple[Callable[[Page, Request, FormData], object], str]] = {
        "/runs/{run}/{act}": (_act_on_run, ""), f"{_DRAFT}/{{act}}": (_act_on_draft, ""),
        "/questions/{question}": (_answer_question, ""),
        "/restore": (_restore, ""), "/configuration": (_write_configuration, "/settings#configuration"),
        "/missed/{number}": (
            lambda page, request, _form: page.store.grants.forget_missed(_number_in(request)), "/questions",
        ),
        "/grants/{number}": (
            lambda page, request, _form: page.store.grants.revoke(_number_in(request)), "/settings#answers",
        ),
        "/playground/clean": (
            lambda page, _request, _form: provided.empty_playground(page.store.places), "/settings#playground",
        ),
    }  # fmt: skip
    routes: list[Route | Mount] = [
        *(Route(path, partial(_show_view, page, view)) for path, view in views_by_path.items()),
        Route("/link", partial(_make_link, page), methods=["POST"]),
        Route("/events", partial(_stream_events, page, news)),
        Route("/runs/{run}/events", partial(_stream_events, page, _run_events)),
        Route("/runs/{run}/output", partial(_download_output, page)),
        Route("/runs/{run}/content", partial(_picture, page)),
        Route(f"{_DRAFT}/content", partial(_picture, page)),
        *api.routes(page),
        *(Route(path, partial(_perform_act, page, *act), methods=["POST"]) for path, act in acts_by_path.items()),
        Mount("/static", StaticFiles(directory=f"{_HERE}/static")),
    ]
    error_handlers = dict.fromkeys((FumehoodError, OSError, HTTPException, Exception), partial(_error_page, page))
    app = Starlette(routes=routes, lifespan=partial(_lifespan, page), exception_handlers=error_handlers)
    return Gate(app, page, port, hosts, api_token, users)


def _show_view(page: Page, view: Callable[[Page, Request], View], request: Request) -> Response:
    """Answer with the template that a view fills; runs in a thread, because it reads the records."""
    template, context = view(page, request)
    if template in _PART_TEMPLATES and not request.headers.get("hx-request"):
        template, context = "part_page.html", {**context, "part": template}
    return HTMLResponse(page.render(template, request, **context), headers={"cache-control": "no-store"})


def _error_page(page: Page, request: Request, error: Exception) -> Response:
    """Answer with an error in one line, and a hint."""
    if isinstance(error, HTTPException):
        plain: FumehoodError = BadRequest(f"{request.url.path}: {error.detail}", hint="choose one of the views")
        status = error.status_code
    else:
        plain = as_fumehood_error(error)
        was_asked = isinstance(error, BadRequest if request.method == "GET" else FumehoodError)
        status = 500 if not was_asked else 404 if request.method == "GET" else 409
    if request.url.path.startswith("/api/"):
        return api.refusal(plain, status)
    if request.headers.get("hx-request"):
        return HTMLResponse(page.fragment("error_part.html", error=plain), status)
    back = request.headers.get("referer", "").partition(request.url.netloc)[2]
    # This page reads no records, because they may be what can't be read now.
    content = page.fragment(
        "error.html", error=plain, title="That did not work", back=back if back.startswith("/") else "/",
        is_stale=isinstance(error, ChangedMeanwhile), path=request.url.path, open_questions=(),
        counts={"questions": "", "waiting": ""},
    )  # fmt: skip
    return HTMLResponse(content, status)


# ---- Acts: each is a form, and redirects to the page that shows its outcome.

async def _perform_act(
    page: Page, act: Callable[[Page, Request, FormData], object], location: str, request: Request
) -> Response:
    """Perform an act in a thread, because it may wait for a lock; if `location` is "", the act returns it or a text."""
    async with request.form(max_files=0, max_part_size=_MAX_FORM_BYTES) as form:
        result = await to_thread.run_sync(act, page, request, form)
    outcome = location or str(result)
    if request.headers.get("hx-request"):
        return HTMLResponse(escape(outcome))
    return RedirectResponse(outcome if outcome.startswith("/") else "/questions", 303)


def _act_on_run(page: Page, request: Request, form: FormData) -> str:
    """Apply, discard, undo, redo, stop, checkpoint or merge a run, all of it or some of its paths."""
    run = page.run(request)
    content = str(form.get("content", "")).replace("\r\n", "\n")
    if form.get("dos"):
        content = content.replace("\n", "\r\n")
    choice = overview.ChosenAct(
        act=request.path_params["act"], paths=tuple(decode_path(str(path)) for path in form.getlist("path")),
        is_selection="chosen" in form, force=bool(form.get("force")), expected=str(form.get("digest", "")),
        hunks=tuple(parse_number(str(number)) for number in form.getlist("hunk") if str(number).isdecimal()),
        content=content, seen=str(form.get("seen", "")),
    )  # fmt: skip
    result = overview.perform(page.store, run, choice)
    origin = str(form.get("back", ""))
    return f"/waiting?done={result.run}" if origin == "waiting" else f"/runs/{result.run}"


def _answer_question(page: Page, request: Request, form: FormData) -> str:
    counted = page.desk.answer(request.path_params["question"], str(form.get("answer", "")))
    return "Answered." if counted else "Somebody else was faster, or it is too late."


def _act_on_draft(page: Page, request: Request, form: FormData) -> str:
    done = views.act_on_draft(page, request, {name: str(value) for name, value in form.items()})
    if done is not None:
        return f"/runs/{done.run}" if done.state != "empty" else "/drafts"
    address = request.url.path.rpartition("/")[0]
    return address if request.path_params["act"] == "rebase" else "/drafts"


def _number_in(request: Request) -> int:
    return parse_number(request.path_params["number"])


def _restore(page: Page, _request: Request, form: FormData) -> str:
    project = page.project(decode_path(str(form.get("project", ""))))
    path, source = decode_path(str(form.get("path", ""))), str(form.get("source", ""))
    return f"/runs/{restore(page.store, project, path, source, here=project.path).run}"


def _write_configuration(page: Page, _request: Request, form: FormData) -> None:
    text, before = (str(form.get(name, "")).replace("\r\n", "\n") for name in ("text", "before"))
    # Keep the line ends of the file, which a form does not preserve.
    if "\r\n" in configuration_text(page.store.places):
        text, before = text.replace("\n", "\r\n"), before.replace("\n", "\r\n")
    write_edited(configuration_path(page.store.places), before, text)


def _make_link(page: Page, request: Request) -> Response:
    """Show a new link for one more browser; the previous link becomes invalid."""
    address = f"{request.headers['origin']}{page.new_link()}"
    content = page.render("link.html", request, title="Another browser", address=address)
    return HTMLResponse(content, headers={"cache-control": "no-store"})


# ---- Downloads and pictures.

def _download_output(page: Page, request: Request) -> Response:
    run = page.run(request)
    stream = "stderr" if request.query_params.get("stream") == "stderr" else "stdout"
    name = f'attachment; filename="{run.number}-{stream}.txt"'
    pieces = (piece or b"" for piece in page.store.history.output_pieces(run.run, stream))
    return StreamingResponse(pieces, media_type="text/plain", headers={"content-disposition": name})


def _picture(page: Page, request: Request) -> Response:
    """Return one version of a picture; a file that is not a picture is not served, because it could be a page."""
    data = views.versions(page, request)[request.query_params.get("side") == "new"]
    kind = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)
    if kind is None:
        return PlainTextResponse("This is not a picture.\n", 404)
    return Response(data, media_type=kind)


# ---- News, while a page is open.

@asynccontextmanager
async def _lifespan(page: Page, _app: Starlette) -> AsyncIterator[None]:
    """Attend the desk and look for news as long as a page is open."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_attend, page)
        yield
        tasks.cancel_scope.cancel()


async def _attend(page: Page) -> None:
    seen_at, is_present = -_PRESENCE_S, False
    with ExitStack() as presence:
        while True:
            now = time.monotonic()
            seen_at = now if page.watchers else seen_at
            was_present, is_present = is_present, now - seen_at < _PRESENCE_S
            if is_present and not was_present:
                presence.enter_context(page.desk.attend())
            elif was_present and not is_present:
                presence.close()
            if page.watchers:
                await to_thread.run_sync(_update_news, page)
            await anyio.sleep(_POLL_S / 2)


def _update_news(page: Page) -> None:
    """Update the news for all open pages."""
    try:
        page.store.recover()
        questions = page.desk.waiting()
        page.news = {
            "questions": page.fragment("questions_open.html", questions=questions),
            "running": page.fragment("running.html", running=page.running(), now=time.time()),
            "count-questions": str(len(questions) or ""),
            "count-waiting": str(overview.count_held_runs(page.store) or ""), "trouble": "",
        }  # fmt: skip
    except Exception as error:  # noqa: BLE001 - an error here would end the presence at the desk
        # The records can't be read now, perhaps because the disk is full: the page says so, and we try again.
        page.news = {**page.news, "trouble": str(escape(printable(str(as_fumehood_error(error)))))}


def _event(name: str, html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.split("\n"))
    return f"event: {name}\n{lines}\n"


async def _stream_events(
    page: Page, events: Callable[[Page, Request], AsyncIterator[str]], request: Request
) -> StreamingResponse:
    """Answer with a stream of events."""
    content = events(page, request)
    return StreamingResponse(content, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def news(page: Page, request: Request) -> AsyncIterator[str]:
    """Yield events for a browser when the open questions, the running commands or the counts have changed."""
    sent: dict[str, str] = {}
    page.watchers += 1
    try:
        while not await request.is_disconnected():
            latest = page.news  # it may be replaced while it is sent
            for name, html in latest.items():
                if sent.get(name) != html:
                    yield _event(name, html)
            yield ":\n\n"  # a comment, to notice that the browser is gone
            sent = latest
            await anyio.sleep(_POLL_S)
    finally:
        page.watchers -= 1


async def _run_events(page: Page, request: Request) -> AsyncIterator[str]:
    """Yield events with what a run's command prints and writes, until it has ended.

    After a lost connection, it goes on where the browser's last event ended.
    """
    run = await to_thread.run_sync(page.run, request)
    counts = (request.headers.get("last-event-id") or request.query_params.get("after", "")).split("-")
    read_bytes = [parse_number(each) for each in (*counts, "0")[:2]]
    last_written = ""
    while run.state in UNFINISHED and not await request.is_disconnected():
        fragments = await to_thread.run_sync(_read_new_output, page, run, read_bytes)
        for name, html in fragments.items():
            if name != "written" or html != last_written:
                yield f"id: {read_bytes[0]}-{read_bytes[1]}\n{_event(name, html)}"
        yield ":\n\n"
        last_written = fragments["written"]
        await anyio.sleep(_POLL_S)
        run = await to_thread.run_sync(page.store.history.find, run.run)
    yield _event("ended", "")


def _read_new_output(page: Page, run: Run, read_bytes: list[int]) -> dict[str, str]:
    """Return what a command has printed since `read_bytes` of each output, which is updated, and what it wrote."""
    fragments = {}
    for number, stream in enumerate(("stdout", "stderr")):
        try:
            with open(page.store.places.output(run.run, stream), "rb") as file:
                skipped = max(0, os.fstat(file.fileno()).st_size - _MAX_EVENT_BYTES - read_bytes[number])
                file.seek(read_bytes[number] + skipped)
                piece = file.read(_MAX_EVENT_BYTES)
        except FileNotFoundError:
            continue  # nothing is printed yet, or the run has just ended
        decoder = _UTF8("replace")
        text = decoder.decode(piece)
        read_bytes[number] += skipped + len(piece) - len(decoder.getstate()[0])  # the rest of a letter is still to come
        if text:
            note = f"\n… {format_size(skipped)} more …\n" if skipped else ""
            fragments[stream] = str(render_output(note + text))
    each = overview.live_command(page.store, run)
    fragments["use"] = page.fragment("use.html", each=each, now=time.time())
    paths, is_more = overview.written_paths(page.store, run, _MAX_WRITTEN)
    fragments["written"] = page.fragment("written.html", written=paths, is_more=is_more)
    return fragments


# ---- Who may use the page: only the person, by a link that works once, and no script of another page.
#
# The token in the link is exchanged for a strict cookie. Other users of this machine can see the token (in the process
# list, if a browser is started with the link) and get the cookie (if that browser opens a port that they serve): so
# connections of other users are refused, even with a valid token or cookie. Host and Origin are compared with the
# address that is served: so another name that leads here (DNS rebinding) gets nothing, and no other site's form or
# script does. Nothing may be loaded from elsewhere, and no script or style may be inside the page itself: so text that
# a command wrote stays text.

class Gate:
    """Passes on the requests of browsers that came by the link; programs need the API token."""

    def __init__(
        self, app: ASGIApp, page: Page, port: int, hosts: frozenset[str], api_token: str, users: frozenset[int] | None
    ) -> None:
        self._app, self._page = app, page
        self._served_port, self._users = port, users
        self._hosts = hosts  # with the port, as browsers write it
        self._api_token = api_token
        self._cookie = secrets.token_urlsafe(32)
        # Cookies are shared by all ports, so two servers of one person need different names.
        self._cookie_name = f"fumehood-{port}"

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
            is_ours = headers.get("origin", origins[0]) in origins and _is_same_secret(token, self._api_token)
            return None if is_ours else PlainTextResponse("A token is needed.\n", 401)
        # A form without an Origin comes from a very old browser, and could come from another site.
        if scope["method"] not in ("GET", "HEAD") and headers.get("origin") not in origins:
            return PlainTextResponse("This came from another site.\n", 403)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if path == "/" and token:
            return self._accept_link(token) if self._is_own_user(scope) else PlainTextResponse(_ANOTHER_USER_LINK, 403)
        if path.startswith("/static/") or (self._has_cookie(headers) and self._is_own_user(scope)):
            return None
        return PlainTextResponse(_ANOTHER_USER, 403) if self._has_cookie(headers) else self._refuse_unknown()

    def _is_own_user(self, scope: Scope) -> bool:
        """Return False if a request comes from another user of this machine."""
        return self._users is None or _connected_users(scope["client"][1], self._served_port) <= self._users

    def _refuse_unknown(self) -> PlainTextResponse:
        return PlainTextResponse(_UNKNOWN_BROWSER if self._page.token else _LINK_USED, 403)

    def _accept_link(self, token: str) -> PlainTextResponse | HTMLResponse:
        if not _is_same_secret(token, self._page.token):
            return self._refuse_unknown()
        self._page.token = ""
        # Not a redirect: if the link was on another site, the browser would not send a strict cookie with it.
        response = HTMLResponse(_WELCOME)
        response.set_cookie(self._cookie_name, self._cookie, httponly=True, samesite="strict", path="/")
        return response

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        """Return True if our cookie is there. A parser is not used: one bad cookie of another port would break it."""
        cookies = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        return any(name == self._cookie_name and _is_same_secret(value, self._cookie) for name, _, value in cookies)


def _allowed_users() -> frozenset[int] | None:
    """Return the users whose browsers may connect; None for all, if we are root and don't know the person."""
    user = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else str(os.geteuid())
    return frozenset({0, int(user)}) if user.isdecimal() else None


def _connected_users(port: int, to: int) -> set[int]:
    """Return the users of this machine with a connection between these ports; none if it comes from elsewhere."""
    users = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii") as lines:  # a kernel may have no IPv6
            for _, here, there, *_, user in (line.split()[:8] for line in lines):
                if here.endswith(f":{port:04X}") and there.endswith(f":{to:04X}"):
                    users.add(int(user))
    return users


def _is_same_secret(value: str, secret: str) -> bool:
    """Compare a value with a secret in constant time; an empty secret is not valid, and equals nothing."""
    return bool(secret) and hmac.compare_digest(value.encode(), secret.encode())
