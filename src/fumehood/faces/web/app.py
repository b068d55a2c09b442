"""The page's addresses, and what stands behind each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fumehood.errors import BadRequest, ChangedMeanwhile, FumehoodError, plain_error
from fumehood.faces.web import api, drafts, live, past, views
from fumehood.faces.web.gate import Gate
from fumehood.faces.web.house import received
from fumehood.service import overview, scratch
from fumehood.service.restore import restore
from fumehood.store.config import file_of, write_checked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.datastructures import FormData
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from fumehood.faces.web.house import House, View

_DRAFT = "/drafts/{project:int}/{draft}"
_HERE = os.path.dirname(__file__)
_IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
_PARTS = ("changes.html", "held.html", "history_rows.html", "version.html", "blame.html", "doctor.html")
_MOST_SENT = 8 << 20  # bytes of a form


def page(house: House, port: int, hosts: frozenset[str], api_token: str) -> Gate:
    """Return the whole page, behind its gate."""
    views_at = {
        "/": views.now, "/questions": views.questions, "/waiting": views.waiting, "/history": past.history,
        "/files": past.files, "/file": past.file, "/file/version": past.version, "/file/lines": past.lines,
        "/settings": views.settings, "/settings/doctor": views.doctor, "/runs/{run}": past.run,
        "/runs/{run}/diff": past.difference, "/runs/{run}/changes": past.changes,
        "/runs/{run}/held": views.more_waiting, "/drafts": drafts.every, _DRAFT: drafts.draft,
        f"{_DRAFT}/diff": drafts.difference,
    }  # fmt: skip
    acts_at: dict[str, Callable[[House, Request, FormData], str]] = {
        "/runs/{run}/{act}": _act, "/questions/{question}": _answer, "/missed/{number:int}": _forget,
        "/grants/{number:int}": _revoke, "/restore": _restore, "/configuration": _configure,
        "/playground/clean": _clean_playground, f"{_DRAFT}/{{act}}": _draft,
    }  # fmt: skip
    routes: list[Route | Mount] = [
        *(Route(path, _shown(house, view)) for path, view in views_at.items()),
        Route("/events", live.events(house)),
        Route("/runs/{run}/events", live.output(house)),
        Route("/runs/{run}/output", _output(house)),
        Route("/runs/{run}/content", _picture(house, past.versions)),
        Route(f"{_DRAFT}/content", _picture(house, drafts.versions)),
        *api.routes(house),
        *(Route(path, _done(house, act), methods=["POST"]) for path, act in acts_at.items()),
        Mount("/static", StaticFiles(directory=f"{_HERE}/static")),
    ]
    told = _told(house)
    app: ASGIApp = Starlette(
        routes=routes, lifespan=live.attending(house),
        exception_handlers={FumehoodError: told, OSError: told, HTTPException: told, Exception: told},
    )  # fmt: skip
    return Gate(app, port, hosts, api_token)


def _shown(house: House, view: Callable[[House, Request], View]) -> Callable[..., Response]:
    """Return what answers with a template that a view fills; it runs in a thread, for it reads the records."""

    def answer(request: Request) -> Response:
        template, context = view(house, request)
        if template in _PARTS and not request.headers.get("hx-request"):
            template, context = "part_page.html", {**context, "part": template}
        return HTMLResponse(house.render(template, request, **context), headers={"cache-control": "no-store"})

    return answer


def _told(house: House) -> Callable[[Request, Exception], Response]:
    """Return what tells of an error: in one line, with what to do about it."""

    def tell(request: Request, error: Exception) -> Response:
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
            return HTMLResponse(house.fragment("error_part.html", error=plain), status)
        back = request.headers.get("referer", "").partition(request.url.netloc)[2]
        # What can't be read now may be what other pages show of it all: this one shows only what is wrong.
        shown = house.fragment(
            "error.html", error=plain, title="That did not work", back=back if back.startswith("/") else "/",
            is_stale=isinstance(error, ChangedMeanwhile), path=request.url.path, open_questions=(),
            counts={"questions": "", "waiting": ""},
        )  # fmt: skip
        return HTMLResponse(shown, status)

    return tell


# ---- What a person does: each act is a form, and leads to where its outcome is seen.

def _done(
    house: House, act: Callable[[House, Request, FormData], str]
) -> Callable[[Request], Awaitable[Response]]:
    """Return what does an act in a thread, for it may wait for a lock; it returns where to go then, or a sentence."""

    async def answer(request: Request) -> Response:
        async with request.form(max_files=0, max_part_size=_MOST_SENT) as form:
            outcome = await house.in_thread(lambda: act(house, request, form))
        if request.headers.get("hx-request"):
            return HTMLResponse(house.fragment("note.html", text=outcome))
        return RedirectResponse(outcome if outcome.startswith("/") else "/questions", 303)

    return answer


def _act(house: House, request: Request, form: FormData) -> str:
    """Apply, discard, undo, redo, stop, checkpoint or merge a run, all of it or some paths."""
    run = house.run(request)
    chosen = overview.Chosen(
        act=request.path_params["act"], paths=tuple(received(str(path)) for path in form.getlist("path")),
        force=bool(form.get("force")), expected=str(form.get("digest", "")), seen=str(form.get("seen", "")),
        hunks=tuple(int(str(number)) for number in form.getlist("hunk") if str(number).isdecimal()),
        content=_text(form),
    )  # fmt: skip
    done = overview.perform(house.store, run, chosen)
    back = str(form.get("back", ""))
    return f"/waiting?done={done.run}" if back == "waiting" else f"/runs/{done.run}"


def _text(form: FormData) -> str:
    text = str(form.get("content", "")).replace("\r\n", "\n")
    return text.replace("\n", "\r\n") if form.get("dos") else text


def _answer(house: House, request: Request, form: FormData) -> str:
    counted = house.desk.answer(request.path_params["question"], str(form.get("answer", "")))
    return "Answered." if counted else "Somebody else was faster, or it is too late."


def _draft(house: House, request: Request, form: FormData) -> str:
    done = drafts.perform(house, request, {name: str(value) for name, value in form.items()})
    if done is not None:
        return f"/runs/{done.run}" if done.state != "empty" else "/drafts"
    address = request.url.path.rpartition("/")[0]
    return address if request.path_params["act"] == "rebase" else "/drafts"


def _forget(house: House, request: Request, _form: FormData) -> str:
    house.store.grants.forget_missed(request.path_params["number"])
    return "/questions"


def _revoke(house: House, request: Request, _form: FormData) -> str:
    house.store.grants.revoke(request.path_params["number"])
    return "/settings#answers"


def _restore(house: House, _request: Request, form: FormData) -> str:
    project = house.project(received(str(form.get("project", ""))))
    path, source = received(str(form.get("path", ""))), str(form.get("source", ""))
    return f"/runs/{restore(house.store, project, path, source, here=project.path).run}"


def _configure(house: House, _request: Request, form: FormData) -> str:
    text, before = (str(form.get(name, "")).replace("\r\n", "\n") for name in ("text", "before"))
    write_checked(file_of(house.store.places), before, text)
    return "/settings#configuration"


def _clean_playground(house: House, _request: Request, _form: FormData) -> str:
    scratch.emptied(house.store.places)
    return "/settings#playground"


# ---- What is not a page.

def _output(house: House) -> Callable[[Request], Response]:
    def whole(request: Request) -> Response:
        run = house.run(request)
        stream = "stderr" if request.query_params.get("stream") == "stderr" else "stdout"
        name = f'attachment; filename="{run.number}-{stream}.txt"'
        pieces = (piece or b"" for piece in house.store.history.printed(run.run, stream))
        return StreamingResponse(pieces, media_type="text/plain", headers={"content-disposition": name})

    return whole


def _picture(house: House, versions: Callable[[House, Request], tuple[bytes, bytes]]) -> Callable[[Request], Response]:
    """Show one version of a picture; nothing else is given out as what it may be."""

    def picture(request: Request) -> Response:
        data = versions(house, request)[request.query_params.get("side") == "new"]
        kind = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)
        if kind is None:
            return PlainTextResponse("This is not a picture.\n", 404)
        return Response(data, media_type=kind)

    return picture
