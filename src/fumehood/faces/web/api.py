"""The web interface for programs: JSON under /api, with its own token, described by /api/openapi.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fumehood import __version__
from fumehood.core.report import Run, pick_fields
from fumehood.core.value import Value
from fumehood.errors import BadRequest, FumehoodError
from fumehood.faces.web import views
from fumehood.faces.web.views import Page, number_parameter, parse_number
from fumehood.linux.doctor import examine
from fumehood.service import decide, overview, provided
from fumehood.service.differences import differences
from fumehood.service.files import catch_up
from fumehood.service.restore import restore, versions
from fumehood.service.versions import contents
from fumehood.store.config import configuration_path, configuration_text, write_edited
from fumehood.store.files import Files
from fumehood.store.search import change_at, count_waiting, page_of_changes

_MAX_ITEMS = 200  # in one answer
# The types of a request's fields in Python, and their OpenAPI schemas.
_KINDS: dict[str, tuple[tuple[type, ...], dict[str, Any]]] = {
    "string": ((str,), {"type": "string"}), "boolean": ((bool,), {"type": "boolean"}),
    "answer": ((str, bool), {"type": ["string", "boolean"]}),
    "strings": ((list,), {"type": "array", "items": {"type": "string"}}),
    "numbers": ((list,), {"type": "array", "items": {"type": "integer"}}),
}  # fmt: skip


class Call(Value):
    """One address of the interface: its description, its parameters, and the function that answers."""

    path: str
    about: str
    answer: Callable[[Page, Request, dict[str, Any]], dict[str, Any]]
    query: tuple[str, ...] = ()
    body: dict[str, str] | None = None  # the fields of the request's body with their types; None for a GET

    @property
    def method(self) -> str:
        """The HTTP method."""
        return "GET" if self.body is None else "POST"


class AsciiJSONResponse(JSONResponse):
    """A JSON response in ASCII: like `--json`, it escapes names that are not UTF-8."""

    def render(self, content: object) -> bytes:
        """Return the response's body."""
        return json.dumps(content).encode("ascii")


def refusal(error: FumehoodError, status: int) -> JSONResponse:
    """Return an error in the same form as `--json` on the command line."""
    return AsciiJSONResponse({"error": error.message, "hint": error.hint}, status)


def routes(page: Page) -> list[Route]:
    """Return the routes of the interface."""
    described = Route("/api/openapi.json", lambda _request: AsciiJSONResponse(description()))
    return [described, *(Route(each.path, partial(_answer_call, page, each), methods=[each.method]) for each in CALLS)]


async def _answer_call(page: Page, call: Call, request: Request) -> JSONResponse:
    sent = b"" if call.body is None else await request.body()
    try:
        body = json.loads(sent or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request is not JSON: {error}", hint="an object") from error
    if not isinstance(body, dict):
        raise BadRequest("the request is not an object", hint='{"answer": "allow_once"}')
    # An unknown field is refused, because it would have no effect.
    fields = call.body or {}
    for name, value in body.items():
        if name not in fields or not isinstance(value, _KINDS[fields[name]][0]):
            raise BadRequest(
                f"{name!r} is not a field here, or has the wrong type", hint=f"one of: {', '.join(fields)}"
            )
    return AsciiJSONResponse(await to_thread.run_sync(call.answer, page, request, body))


def _summary(run: Run) -> dict[str, Any]:
    """Return a run without its changes and its output, which may be large."""
    fields = "run number project command cwd state reason exit_code session act of below started_at duration_s"
    return pick_fields(run, fields)


def _limit(request: Request) -> int:
    return min(number_parameter(request, "limit") or 50, _MAX_ITEMS)


def _after(request: Request) -> tuple[int, int]:
    row, _, entry = request.query_params.get("after", "").partition("-")
    return (parse_number(row), parse_number(entry)) if row.isdecimal() and entry.isdecimal() else (0, 0)


def _runs(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    path = request.query_params.get("project")
    what = views.search_parameters(request, page.number_of(path) if path else None)
    start = number_parameter(request, "before")
    runs, before = overview.search_runs(page.store, what, limit=_limit(request), before=start)
    return {"runs": [_summary(run) for run in runs], "before": before or None}


def _run(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    run = page.run(request)
    seen = overview.state_id(page.store, run)  # before what became of it is read
    return {**page.store.history.find(run.run).as_dict(), "seen": seen}


def _changes(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    run = page.run(request)
    is_held = request.query_params.get("verdict") == "held"
    shown, rest = page_of_changes(page.store.database, run.run, _after(request), limit=_limit(request), waiting=is_held)
    return {"changes": run.fields_of(shown), "after": None if rest is None else f"{rest[0]}-{rest[1]}"}


def _diff(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    run = page.run(request)
    paths = request.query_params.getlist("path")
    shown = [each.fields() for each in differences(page.store, run, paths, here=run.project)]
    if paths and run.state == "held":
        for each in shown:  # pieces of these can be chosen: the digest says of which versions
            change = change_at(page.store.database, run.run, run.roots.index(each["root"]), each["path"])
            if change is not None:
                each["digest"] = decide.versions_digest(run, change, *contents(page.store, run, change))
    return {"differences": shown}


def _running(page: Page, _request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    running = overview.live_commands(page.store)
    return {
        "running": [
            {
                **_summary(each.run), "memory": each.memory, "processes": each.processes,
                "written": [path.fields() for path in overview.written_paths(page.store, each.run, _MAX_ITEMS)[0]],
            }
            for each in running
        ]
    }  # fmt: skip


def _waiting(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    runs, before = overview.held_runs(page.store, limit=_limit(request), before=number_parameter(request, "before"))
    held = [
        {
            **_summary(run), "seen": overview.state_id(page.store, run),  # before what it holds is counted
            "waiting": count_waiting(page.store.database, run.run),
        }
        for run in runs
    ]  # fmt: skip
    return {"waiting": held, "before": before or None}


def _questions(page: Page, _request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    missed = [each.fields() for each in overview.missed_questions(page.store)]
    return {"questions": [each.as_dict() for each in page.desk.waiting()], "missed": missed}


def _files(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    number = page.number_of(request.query_params.get("project", ""))
    catch_up(page.store, number, wait=False)
    words, after = (request.query_params.get(name, "") for name in ("words", "after"))
    listed, is_more = Files(page.store.database).page(number, words, after, limit=_limit(request))
    return {"files": [each.fields() for each in listed], "after": listed[-1].path if is_more else None}


def _versions(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    project = page.project(request.query_params.get("project", ""))
    root = request.query_params.get("root") or project.path
    kept = versions(page.store, project, root, request.query_params.get("path", ""))
    return {"versions": [each.as_dict() for each in kept]}


def _act_on_run(page: Page, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    chosen = overview.ChosenAct(
        act=request.path_params["act"], paths=tuple(map(str, body.get("paths", ()))), is_selection="paths" in body,
        force=body.get("force", False), expected=body.get("digest", ""), seen=body.get("seen", ""),
        content=body.get("content", ""), hunks=tuple(n for n in body.get("hunks", ()) if isinstance(n, int)),
    )  # fmt: skip
    return overview.perform(page.store, page.run(request), chosen).as_dict()


def _draft(page: Page, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    project, record = views.chosen_draft(page, request)
    about = views.draft_fields(page, project.path, record)  # with its state, before what it holds is looked at
    run, _, conflicts = views.compared_draft(page, project, record)
    return {**about, "changes": run.fields_of(run.changed), "conflicts": [each.as_dict() for each in conflicts]}


def _act_on_draft(page: Page, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    done = views.act_on_draft(page, request, {name: value for name, value in body.items() if value})
    return {} if done is None else done.as_dict()


def _restore(page: Page, _request: Request, body: dict[str, Any]) -> dict[str, Any]:
    project = page.project(body.get("project", ""))
    done = restore(page.store, project, body.get("path", ""), body.get("from", ""), here=project.path)
    return done.as_dict()


def _configuration(page: Page, _request: Request, _body: dict[str, Any]) -> dict[str, Any]:
    return {"path": configuration_path(page.store.places), "text": configuration_text(page.store.places)}


def _write_configuration(page: Page, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    write_edited(configuration_path(page.store.places), body.get("before", ""), body.get("text", ""))
    return _configuration(page, request, body)


CALLS = (
    Call(path="/api/runs", about="Runs, the latest first; `before` goes on", answer=_runs,
         query=(*views.SEARCHED, "project", "limit", "before")),
    Call(path="/api/runs/{run}", about="A run, as `fumehood show --json` tells it, and `seen`", answer=_run),
    Call(path="/api/runs/{run}/changes", answer=_changes, query=("verdict", "limit", "after"),
         about="What a run changed, some at a time; `verdict=held`: what waits"),
    Call(path="/api/runs/{run}/diff", about="What a run changed, line by line", answer=_diff, query=("path",)),
    Call(path="/api/runs/{run}/{act}", answer=_act_on_run, about=f"Do something to a run: {', '.join(overview.ACTS)}",
         body={"paths": "strings", "force": "boolean", "seen": "string", "digest": "string", "hunks": "numbers",
               "content": "string"}),
    Call(path="/api/running", about="What runs now, with memory, processes and what it writes", answer=_running),
    Call(path="/api/waiting", about="Runs that hold something", answer=_waiting, query=("limit", "before")),
    Call(path="/api/questions", about="Questions that wait, and those that found nobody", answer=_questions),
    Call(path="/api/questions/{question}", about="Answer a question by one of its options, or true or false",
         body={"answer": "answer"}, answer=lambda page, request, body: {
             "counted": page.desk.answer(request.path_params["question"], body.get("answer"))}),
    Call(path="/api/projects", about="Every project", answer=lambda page, _request, _body: {
        "projects": [each.fields() for each in page.store.projects.list_all()]}),
    Call(path="/api/sessions", about="Every session, with its number of runs", answer=lambda page, _request, _body: {
        "sessions": [{"name": each.name, "started_at": each.started_at, "runs": count}
                     for each, count in page.store.sessions.counts()]}),
    Call(path="/api/drafts", about="Every open draft", answer=lambda page, _request, _body: {
        "drafts": list(views.open_drafts(page))}),
    Call(path="/api/drafts/{project}/{draft}", about="What a draft would change, and what stands in its way",
         answer=_draft),
    Call(path="/api/drafts/{project}/{draft}/{act}", answer=_act_on_draft,
         about=f"Do something to a draft: {', '.join(views.DRAFT_ACTS)}",
         body={"seen": "string", "force": "boolean", "branch": "string", "message": "string"}),
    Call(path="/api/files", about="The files of a project that runs changed", answer=_files,
         query=("project", "words", "limit", "after")),
    Call(path="/api/versions", about="What a file can be restored from", answer=_versions,
         query=("project", "root", "path")),
    Call(path="/api/restore", about="Bring a version of a file back", answer=_restore,
         body={"project": "string", "path": "string", "from": "string"}),
    Call(path="/api/doctor", about="What this machine can do", answer=lambda page, _request, _body: {
        "abilities": [each.fields() for each in examine(page.store.places.state)]}),
    Call(path="/api/playground", about="The playground, and how large it is", answer=lambda page, _request, _body: {
        "path": provided.make_playground(page.store.places), "bytes": provided.playground_size(page.store.places)}),
    Call(path="/api/playground/clean", about="Empty the playground", body={},
         answer=lambda page, _request, _body: {"bytes": provided.empty_playground(page.store.places)}),
    Call(path="/api/configuration", about="The configuration", answer=_configuration),
    Call(path="/api/configuration/write", about="Check a configuration and write it; `before` is the one it replaces",
         answer=_write_configuration, body={"before": "string", "text": "string"}),
)  # fmt: skip


def description() -> dict[str, Any]:
    """Return the OpenAPI description of the interface."""
    text = _KINDS["string"][1]
    paths: dict[str, Any] = {}
    for call in CALLS:
        path = call.path
        named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        parameters = [
            *({"name": name, "in": "path", "required": True, "schema": text} for name in named),
            *({"name": name, "in": "query", "schema": text} for name in call.query),
        ]
        failed = {"description": "an object with `error` and `hint`"}
        answers = {"200": {"description": "an object"}, "401": {"description": "the token is missing"}}
        described: dict[str, Any] = {
            "summary": call.about, "parameters": parameters, "responses": answers | {"4XX": failed},
        }  # fmt: skip
        if call.body:
            fields = {name: _KINDS[kind][1] for name, kind in call.body.items()}
            schema = {"type": "object", "properties": fields, "additionalProperties": False}
            described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        paths.setdefault(path, {})[call.method.lower()] = described
    return {
        "openapi": "3.1.0", "info": {"title": "Fumehood", "version": __version__}, "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }  # fmt: skip
