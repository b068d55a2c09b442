"""What the page shows of drafts, and what a person does to one: take it over, bring it up to date, or drop it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fumehood.errors import BadRequest
from fumehood.faces.web import past
from fumehood.faces.web.house import asked_number, asked_path
from fumehood.service import draft_merge, drafts
from fumehood.service.differences import contents
from fumehood.service.library import Sandbox
from fumehood.store.audit import WEB
from fumehood.store.history import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from starlette.requests import Request

    from fumehood.core.changes import Change
    from fumehood.core.report import Run
    from fumehood.faces.web.house import House, View
    from fumehood.service.draft_merge import Conflict
    from fumehood.store.drafts import DraftRecord
    from fumehood.store.projects import Project

ACTS = ("apply", "discard", "rebase", "commit")
_CHANGES = 200  # on one page
_RUNS = 100


def listed(house: House) -> Iterator[dict[str, Any]]:
    """Yield every open draft, of all projects."""
    for project in house.store.projects.known():
        for draft in house.store.drafts.open_ones(project.id):
            yield fields(house, project.path, draft)


def fields(house: House, project: str, draft: DraftRecord) -> dict[str, Any]:
    """Return what is told of a draft without looking at what it would change."""
    return {
        "name": draft.name, "project": project, "address": f"{draft.project}/{draft.name}",
        "frozen": draft.base is not None, "created_at": draft.created_at,
        "runs": len(house.store.history.held(draft.project, draft.id)),
        "running": house.store.drafts.runs_now(draft), "seen": house.store.drafts.shown_at(draft),
    }  # fmt: skip


def chosen(house: House, request: Request) -> tuple[Project, DraftRecord]:
    """Return the project and the draft that an address names."""
    number, name = request.path_params["project"], request.path_params["draft"]
    path = next((each.path for each in house.store.projects.known() if each.id == number), None)
    if path is None:
        raise BadRequest(f"there is no project {number}", hint="choose a draft of the list")
    return house.project(path), house.store.drafts.find(number, name)


def every(house: House, _request: Request) -> View:
    """All drafts."""
    return "drafts.html", {"title": "Drafts", "drafts": list(listed(house))}


def compared(house: House, project: Project, record: DraftRecord) -> tuple[Run, set[str], list[Conflict]]:
    """Return what a draft would change, as a run, which of it is merged with the project's, and what is in the way."""
    with drafts.Preview(house.store, project, record) as whole:
        merges, conflicts = draft_merge.compared(house.store, record, whole)
        return whole.run, {merge.change.path for merge in merges if not merge.places}, conflicts


def draft(house: House, request: Request) -> View:
    """What a draft would change in the project as that is now, what stands in its way, and its runs."""
    project, record = chosen(house, request)
    first = asked_number(request, "from")
    about = fields(house, project.path, record)  # with its state, before what it holds is looked at
    run, merged, conflicts = compared(house, project, record)
    return "draft.html", {
        "title": f"Draft {record.name}", "draft": about, "conflicts": conflicts,
        "merged": merged, "run": run, "shown": run.found[first : first + _CHANGES], "total": len(run.found),
        "later": first + _CHANGES if len(run.found) > first + _CHANGES else 0,
        "runs": house.store.history.runs(Reach(draft=record.id), limit=_RUNS),
    }  # fmt: skip


def change_of(run: Run, request: Request) -> Change:
    """Return the change that an address names."""
    place = asked_number(request, "root"), asked_path(request)
    change = next((each for each in run.found if (each.root, each.path) == place), None)
    if change is None:
        raise BadRequest("the draft does not change that any more", hint="look at the draft again")
    return change


def difference(house: House, request: Request) -> View:
    """What a draft would do to one path."""
    project, record = chosen(house, request)
    with drafts.Preview(house.store, project, record) as whole:
        change = change_of(whole.run, request)
        address = f"/drafts/{record.project}/{record.name}"
        return past.shown_difference(house, request, whole.run, change, address, record.name)


def versions(house: House, request: Request) -> tuple[bytes, bytes]:
    """One path that a draft would change, before and after."""
    project, record = chosen(house, request)
    with drafts.Preview(house.store, project, record) as whole:
        return contents(house.store, whole.run, change_of(whole.run, request))


def perform(house: House, request: Request, wishes: dict[str, str]) -> Run | None:
    """Do something to a draft, if nothing ran in it since it was shown; returns the run that did, if one did."""
    project, record = chosen(house, request)
    act, seen = request.path_params["act"], wishes.get("seen", "")
    if act == "apply":
        return drafts.apply_draft(house.store, project, record, force=bool(wishes.get("force")), seen=seen)
    if act == "discard":
        drafts.discard_draft(house.store, project, record, seen=seen)
        return None
    if act not in ACTS:
        raise BadRequest(f"nothing can be done to a draft by {act!r}", hint=f"one of: {', '.join(ACTS)}")
    drafts.refuse_another(house.store, record, seen)  # the others are commands in the draft, which wait for no lock
    with Sandbox(project.path, face=WEB) as sandbox:
        mine = sandbox.draft(record.name)
        if act == "rebase":
            mine.rebase()
            return None
        return mine.commit(wishes.get("branch", ""), message=wishes.get("message", ""))
