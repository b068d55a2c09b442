"""What the page shows: what runs, is asked and waits, the history, one run, files over time, drafts, and settings."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import jinja2
from starlette.requests import Request

from fumehood.core import changes as c
from fumehood.core import wording
from fumehood.core.edits import hunks, merged
from fumehood.core.questions import held_item
from fumehood.core.report import Run, printable
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.web.text import FILTERS, hex_lines, hunks_of, link, numbered, readable
from fumehood.linux.doctor import examine
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import LISTING, kind_of, open_below, open_top
from fumehood.service import decide, differences, drafts, overview, provided
from fumehood.service.ask import Desk
from fumehood.service.differences import LONGEST, contents, difference_of, three_versions
from fumehood.service.drafts import Conflict
from fumehood.service.files import catch_up
from fumehood.service.library import Sandbox
from fumehood.service.restore import versions as kept_versions
from fumehood.service.store import Store
from fumehood.service.undo import has_backups
from fumehood.store.audit import WEB
from fumehood.store.config import file_of, text_of
from fumehood.store.files import Files, Record
from fumehood.store.history import RunFilter
from fumehood.store.named import DraftRecord
from fumehood.store.projects import Project
from fumehood.store.search import Search, change_at, count_waiting, page_of_changes, waiting_flagged

View = tuple[str, dict[str, object]]  # a template, and what it is filled with

SEARCHED = ("words", "path", "text", "session", "state")
DRAFT_ACTS = ("apply", "discard", "rebase", "commit")
_ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")
_TAIL = 4  # lines of what a command printed last that are shown beside it
_LATEST_WRITTEN = 5
_LATEST = 8
_HELD_RUNS = 10  # on one page of what waits
_HELD = 60  # changes of each
_MOST_IN_PLAYGROUND = 200
_RUNS = 50  # on one page of the history
_RUNS_OF_DRAFT = 100
_MOST_LINES = 8  # beside each other, in the graph
_CHANGES = 200  # on one page of a run or a draft
_FILES = 200
_MOST_PRINTED = 200_000  # characters of an output that the page shows; all of it can be saved
_REPEATS = ("diff --git ", "--- ", "+++ ", "Binary files ")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_ENDED = ("applied", "held", "undone", "discarded", "empty", "failed", "refused", "running")


class Page:
    """What every view has: the records, the desk, and templates; and what pages that are open are told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.desk = Desk(store.places)
        self.watchers = 0  # pages that are told what is new
        self.token = ""  # of the link that nobody has used yet
        self.news: dict[str, str] = {}  # what they are told: pieces of the page by name
        loader = jinja2.FileSystemLoader(f"{os.path.dirname(__file__)}/templates")
        self._templates = jinja2.Environment(autoescape=True, loader=loader, undefined=jinja2.StrictUndefined)
        self._templates.filters.update(FILTERS, numbered=self._numbered)
        self._templates.globals.update(link=link)

    def fragment(self, template: str, **context: object) -> str:
        """Fill a piece of a page, which is sent by itself."""
        return self._templates.get_template(template).render(**context)

    def render(self, template: str, request: Request, **context: object) -> str:
        """Fill a template; what is asked and what waits is on every page."""
        questions = self.desk.waiting()
        counts = {"questions": len(questions), "waiting": overview.count_waiting(self.store)}
        return self.fragment(template, path=request.url.path, counts=counts, open_questions=questions, **context)

    def running(self) -> list[dict[str, object]]:
        """What runs now, each with what it uses, printed last and wrote last."""
        listed = []
        for each in overview.running(self.store):
            ends = (overview.printed_last(self.store, each.run, stream, 1000) for stream in ("stdout", "stderr"))
            lines = next(filter(None, ends), b"").decode("utf-8", "replace").rstrip("\n").split("\n")
            latest = overview.written(self.store, each.run, _LATEST_WRITTEN)
            listed.append({**each.fields(), "tail": "\n".join(lines[-_TAIL:]), "written": latest})
        return listed

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


def received(text: str) -> str:
    """Read a path that was written for a form or an address."""
    return unquote(text, errors="surrogateescape")


def asked_path(request: Request, name: str = "path") -> str:
    """Return a path as an address gives it."""
    return received(request.query_params.get(name, ""))


def number_of(text: str) -> int:
    """Read a number; 0 where it is none, or larger than any that is recorded."""
    return int(text) if text.isdecimal() and len(text) < 18 else 0


def asked_number(request: Request, name: str) -> int:
    """Return a number as an address gives it; 0 where it gives none."""
    return number_of(request.query_params.get(name, ""))


# ---- The present, and how things are set.

def now(page: Page, _request: Request) -> View:
    """What runs now, in every project, and where things stand."""
    store = page.store
    latest, _ = overview.searched(store, Search(), most=_LATEST)
    return "now.html", {
        "title": "Now", "running": page.running(), "projects": store.projects.listed(), "latest": latest,
        "now": time.time(), "sessions": store.sessions.counts()[:_LATEST],
    }  # fmt: skip


def questions(page: Page, _request: Request) -> View:
    """What is asked now, and what found nobody."""
    return "questions.html", {"title": "Questions", "missed": overview.missed_questions(page.store)}


def waiting(page: Page, request: Request) -> View:
    """What is held, by run and directory, with the reason of each."""
    runs, later = overview.waiting(page.store, most=_HELD_RUNS, before=asked_number(request, "before"))
    done = request.query_params.get("done", "")
    return "waiting.html", {
        "title": "Waiting", "runs": [_held(page, run, (0, 0)) for run in runs], "later": later,
        "done": page.store.history.find(done) if done else None,
    }  # fmt: skip


def more_waiting(page: Page, request: Request) -> View:
    """Some more of what one run holds."""
    run = page.run(request)
    after = asked_number(request, "row"), asked_number(request, "entry")
    return "held.html", {"title": "Waiting", "each": _held(page, run, after)}


def _held(page: Page, run: Run, after: tuple[int, int]) -> dict[str, object]:
    each = overview.read_run(page.store, run, most=_HELD, after=after, only_waiting=True)
    dangerous = _dangerous(page, run) if each.rest else []
    return {**each.fields(), "run": each.run, "directories": _by_directory(run, each.changes), "dangerous": dangerous}


def _dangerous(page: Page, run: Run) -> list[str]:
    """Name what waits and may act by itself: with all of a run it is accepted too, on whatever page it is."""
    flagged = waiting_flagged(page.store.database, run.run)
    return wording.listed((held_item(run, change) for change in flagged), seen_by=f"fumehood show {run.number}")


def _by_directory(run: Run, changes: Iterable[c.Change]) -> dict[str, list[c.Change]]:
    """Return changes by the directory that they are in, named as a decision on it names it."""
    groups: dict[str, list[c.Change]] = {}
    for change in changes:
        directory = change.path.rpartition("/")[0]
        if change.root:
            directory = f"{run.roots[change.root]}/{directory}".rstrip("/")
        groups.setdefault(directory, []).append(change)
    return groups


def settings(page: Page, request: Request) -> View:
    """The configuration, kept answers, projects and the playground."""
    place = provided.make_playground(page.store.places)
    below = os.path.normpath(f"/{asked_path(request, 'below')}").strip("/")
    entries, is_more = _listed(place, below)
    return "settings.html", {
        "title": "Settings", "file": file_of(page.store.places), "configuration": text_of(page.store.places),
        "playground": place, "size": provided.playground_size(page.store.places), "below": below, "entries": entries,
        "is_more": is_more, "grants": page.store.grants.all(), "projects": page.store.projects.listed(),
    }  # fmt: skip


def _listed(place: str, below: str) -> tuple[list[tuple[str, str, int]], bool]:
    """Return some of what is in a directory of the playground: name, kind and size; no link is followed."""
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


def doctor(page: Page, _request: Request) -> View:
    """What this machine can do, tried now."""
    return "doctor.html", {"title": "Doctor", "abilities": examine(page.store.places.state)}


# ---- The history, and its graph.

def history(page: Page, request: Request) -> View:
    """What ran, found by search."""
    projects = page.store.projects.listed()
    chosen = next((each for each in projects if each.path == asked_path(request, "project")), None)
    what = asked_search(request, None if chosen is None else chosen.id)
    before = asked_number(request, "before")
    runs, later = overview.searched(page.store, what, most=_RUNS, before=before)
    is_more = bool(request.headers.get("hx-request") and before)
    query = "SELECT of, id, project_number FROM runs WHERE act = 'undo' AND state = 'applied' AND of IN (?)"
    undos = page.store.database.rows_for(query, [run.run for run in runs])
    return "history_rows.html" if is_more else "history.html", {
        "title": "History", "rows": list(zip(runs, graph(runs), strict=True)), "projects": projects,
        "others": page.numbers(name for run in runs for name in (run.of, *run.below) if name),
        "counts_of": page.store.history.count_changes([run.run for run in runs]), "later": later, "states": _ENDED,
        "taken_back": {of: (name, number) for of, name, number in undos},
        "asked": what.fields() | {"project": "" if chosen is None else chosen.path},
    }  # fmt: skip


def asked_search(request: Request, project: int | None) -> Search:
    """Return what an address looks for, of a project or of all."""
    return Search(**{name: request.query_params.get(name, "") for name in SEARCHED}, project=project)


class GraphCell(Value):
    """One cell of the graph beside a run: which lines lead out of it, and whether the run itself is there."""

    up: bool = False
    down: bool = False
    left: bool = False
    right: bool = False
    is_run: bool = False


def graph(runs: Sequence[Run]) -> list[list[GraphCell]]:
    """Draw lines from each run to those that it takes back or is built on, which are further down.

    The first column has the runs; each line has a column to the right of it until its end.
    """
    lanes: list[str | None] = []  # what each column leads to
    rows = []
    for run in runs:
        ending = [at for at, target in enumerate(lanes) if target == run.run]
        through = [at for at, target in enumerate(lanes) if target is not None and at not in ending]
        for at in ending:
            lanes[at] = None
        joining, opening = [], []
        for target in dict.fromkeys(name for name in (run.of, *run.below) if name):
            if target in lanes:
                joining.append(lanes.index(target))
                continue
            free = [at for at, taken in enumerate(lanes) if taken is None and at not in ending]
            if not free and len(lanes) == _MOST_LINES:
                continue  # more would leave no room for the words, which name the runs anyway
            if not free:
                lanes.append(None)
                free = [len(lanes) - 1]
            lanes[free[0]] = target
            opening.append(free[0])
        reached = max((*ending, *joining, *opening), default=-1)
        cells = [GraphCell(is_run=True, right=reached >= 0)]
        for at in range(len(lanes)):
            touches = at in ending or at in joining or at in opening
            cells.append(GraphCell(
                up=at in through or at in ending, down=at in through or at in opening,
                left=at <= reached and (touches or at < reached), right=at < reached,
            ))  # fmt: skip
        rows.append(cells)
        while lanes and lanes[-1] is None:
            lanes.pop()
    return rows


# ---- One run.

def run(page: Page, request: Request) -> View:
    """All of one run."""
    store = page.store
    each = overview.read_run(store, page.run(request), most=_CHANGES, only_waiting=False)
    chosen = each.run
    is_held = chosen.state == "held" and chosen.draft is None  # a draft is taken over as a whole
    held = count_waiting(store.database, chosen.run) if is_held else 0
    written, is_more = overview.written(store, chosen, _CHANGES) if chosen.state == "running" else ([], False)
    users = [name for name in store.history.runs_using_layer(chosen.layer or chosen.run) if name != chosen.run]
    about = [name for (name,) in store.database.rows("SELECT id FROM runs WHERE of = ?", (chosen.run,))]
    others = store.history.runs(among=sorted({*users, *about, *([chosen.of] if chosen.of else ()), *chosen.below}))
    kinds = store.history.count_changes([chosen.run]).get(chosen.run, {})
    return "run.html", {
        "title": _title_of(chosen), "run": chosen, "held": held, "seen": each.seen,
        "dangerous": _dangerous(page, chosen) if held and each.rest else [],
        "events": store.audit.events_of([chosen.run]).get(chosen.run, []), "written": written, "is_more": is_more,
        "others": others, "shown": each.changes, "rest": each.rest, "kinds": kinds,
        "can_undo": chosen.state in ("applied", "held") and store.history.has_applied(chosen) and has_backups(chosen),
        "is_back": chosen.act == "undo" and chosen.state == "applied" and has_backups(chosen),
        "stdout": chosen.stdout[-_MOST_PRINTED:], "stderr": chosen.stderr[-_MOST_PRINTED:],
    }  # fmt: skip


def _title_of(run: Run) -> str:
    return f"#{run.number} {printable(run.command)[:60]}"


def changes(page: Page, request: Request) -> View:
    """Some more of what a run changed."""
    chosen = page.run(request)
    after = asked_number(request, "row"), asked_number(request, "entry")
    shown, rest = page_of_changes(page.store.database, chosen.run, after, most=_CHANGES)
    return "changes.html", {"run": chosen, "shown": shown, "rest": rest, "title": _title_of(chosen)}


@contextmanager
def _named(page: Page, request: Request) -> Iterator[tuple[Run, c.Change]]:
    """Return the change that an address names, and its run; a draft is one, as long as it is looked at."""
    number, path = asked_number(request, "root"), asked_path(request)
    if "draft" not in request.path_params:
        run = page.run(request)
        change = change_at(page.store.database, run.run, number, path)
        if change is None:
            raise BadRequest(f"run {run.number} did not change {printable(path)}", hint="choose one of its changes")
        yield run, change
        return
    with drafts.Preview(page.store, *chosen_draft(page, request)) as whole:
        change = next((each for each in whole.run.changed if (each.root, each.path) == (number, path)), None)
        if change is None:
            raise BadRequest("the draft does not change that any more", hint="look at the draft again")
        yield whole.run, change


def versions(page: Page, request: Request) -> tuple[bytes, bytes]:
    """One path that a run changed, or a draft would, before and after."""
    with _named(page, request) as (run, change):
        return contents(page.store, run, change)


def difference(page: Page, request: Request) -> View:
    """What a run did to one path, or a draft would: words, a picture, a notebook's cells, or a few bytes."""
    with _named(page, request) as (chosen, change):
        names = request.path_params
        draft = names.get("draft", "")
        address = f"/drafts/{names['project']}/{draft}" if draft else f"/runs/{chosen.run}"
        place = change.path if change.root == 0 else f"{chosen.roots[change.root]}/{change.path}"
        shown = difference_of(page.store, chosen, change)
        old, new = contents(page.store, chosen, change)
        text = shown.text
        is_notebook = change.path.endswith(".ipynb") and shown.shown
        if is_notebook:
            text = "".join(hunks(readable(change.path, old), readable(change.path, new)))
        head, pieces = hunks_of(text, change.path)
        head = [line for line in head if not line.startswith(_REPEATS)]  # the path, which stands above it
        if is_notebook:
            whole = f"draft diff {draft}" if draft else f"diff {chosen.number}"
            head.append(f"only the words of a notebook's cells are compared here; all of it: fumehood {whole}")
        is_held = change.verdict in c.WAITING and chosen.state == "held" and not draft and chosen.draft is None
        is_text = is_held and change.kind == c.FILE and not shown.binary and shown.shown
        is_picture = shown.binary and change.path.lower().endswith(_PICTURES)
        some_bytes = hex_lines(old, new) if shown.binary and not is_picture else []
        if some_bytes or (is_picture and (old or new)):
            head = [line for line in head if not line.startswith("not shown: ")]
        return "diff.html", {
            "title": change.path, "run": chosen, "change": change, "address": address, "draft": draft,
            "head": head, "hunks": pieces, "place": place,
            "is_side": request.query_params.get("view") == "side", "old": old, "new": new,
            "is_picture": is_picture, "bytes": some_bytes,
            "can_choose": is_text and change.change == c.MODIFIED and not is_notebook and len(pieces) > 0,
            "digest": decide.versions_digest(chosen, change, old, new) if is_text else "",
            "conflict": _three(page, chosen, change) if is_text and change.verdict == c.CONFLICT else None,
        }  # fmt: skip


def _three(page: Page, run: Run, change: c.Change) -> dict[str, object]:
    """Return what a conflict is between, and a merge to go on with; what can't be edited here says why."""
    base, live, wrote = three_versions(page.store, run, change)
    try:
        texts = [None if each is None else each.decode() for each in (base, live, wrote)]
    except UnicodeDecodeError:
        return {"why": "it is not UTF-8, so it can't be edited here"}
    ends = {each.count("\r\n") == each.count("\n") for each in texts[1:] if each and "\n" in each}
    if len(ends) > 1 or any(each and "\r" in each.replace("\r\n", "") for each in texts):
        return {"why": "its lines end in several ways, so it can't be edited here"}
    before, now, after = texts
    merge, places = merged(before, now or "", after or "", ("in the project", f"run {run.number}"))
    return {
        "why": "", "base": before, "now": now, "run": after, "merge": merge, "places": places,
        "is_dos": "\r\n" in (now or ""),
    }  # fmt: skip


# ---- Files over time.

def files(page: Page, request: Request) -> View:
    """The files that runs changed, of one project."""
    projects = page.store.projects.listed()
    path = asked_path(request, "project") or (max(projects, key=lambda each: each.runs).path if projects else "")
    words, after = request.query_params.get("words", ""), asked_path(request, "after")
    listed: list[Record] = []
    is_more = False
    if path:
        number = page.number_of(path)
        catch_up(page.store, number, wait=False)
        listed, is_more = Files(page.store.database).page(number, words, after, most=_FILES)
    return "files.html", {
        "title": "Files", "projects": projects, "project": path, "files": listed, "is_more": is_more, "words": words,
    }  # fmt: skip


def _place(page: Page, request: Request) -> tuple[Project, str, str]:
    project = page.project(asked_path(request, "project"))
    return project, asked_path(request, "root") or project.path, asked_path(request)


def file(page: Page, request: Request) -> View:
    """One file over time: its versions, who made each line, and what brings one back."""
    project, root, path = _place(page, request)
    return "file.html", {
        "title": path, "project": project, "root": root, "file": path,
        "versions": kept_versions(page.store, project, root, path),
        "runs": differences.changes_of(page.store, project, root, path),
    }  # fmt: skip


def version(page: Page, request: Request) -> View:
    """What one version of a file holds."""
    project, root, path = _place(page, request)
    source = request.query_params.get("source", "")
    data = differences.content_of(page.store, project, root, path, source)
    shown: object = None
    if data is not None and b"\0" not in data and len(data) <= LONGEST:
        shown = numbered(data.decode("utf-8", "replace"), path)
    return "version.html", {"title": path, "lines": shown, "size": None if data is None else len(data)}


def lines(page: Page, request: Request) -> View:
    """Which run wrote each line of a file."""
    project, root, path = _place(page, request)
    blamed = differences.blamed(page.store, project, root, path)
    shown = None if blamed is None else numbered("".join(line for line, _ in blamed), path)
    return "blame.html", {"title": os.path.basename(path), "lines": shown, "blamed": blamed}


# ---- Drafts, and what a person does to one: take it over, bring it up to date, or drop it.

def open_drafts(page: Page) -> Iterator[dict[str, Any]]:
    """Yield every open draft, of all projects."""
    for project in page.store.projects.listed():
        for draft in page.store.drafts.open_ones(project.id):
            yield draft_fields(page, project.path, draft)


def draft_fields(page: Page, project: str, draft: DraftRecord) -> dict[str, Any]:
    """Return what is told of a draft without looking at what it would change."""
    return {
        "name": draft.name, "project": project, "address": f"{draft.project}/{draft.name}",
        "frozen": draft.base is not None, "created_at": draft.created_at,
        "runs": len(page.store.history.held_runs(draft.project, draft.id)),
        "running": page.store.drafts.runs_now(draft), "seen": page.store.drafts.shown_at(draft),
    }  # fmt: skip


def chosen_draft(page: Page, request: Request) -> tuple[Project, DraftRecord]:
    """Return the project and the draft that an address names."""
    number, name = number_of(request.path_params["project"]), request.path_params["draft"]
    path = next((each.path for each in page.store.projects.listed() if each.id == number), None)
    if path is None:
        raise BadRequest(f"there is no project {number}", hint="choose a draft of the list")
    return page.project(path), page.store.drafts.find(number, name)


def every_draft(page: Page, _request: Request) -> View:
    """All drafts."""
    return "drafts.html", {"title": "Drafts", "drafts": list(open_drafts(page))}


def compared_draft(page: Page, project: Project, record: DraftRecord) -> tuple[Run, set[str], list[Conflict]]:
    """Return what a draft would change, as a run, which of it is merged with the project's, and what is in the way."""
    with drafts.Preview(page.store, project, record) as whole:
        merges, conflicts = drafts.compared(page.store, record, whole)
        return whole.run, {merge.change.path for merge in merges if not merge.places}, conflicts


def draft(page: Page, request: Request) -> View:
    """What a draft would change in the project as that is now, what stands in its way, and its runs."""
    project, record = chosen_draft(page, request)
    first = asked_number(request, "from")
    about = draft_fields(page, project.path, record)  # with its state, before what it holds is looked at
    run, merged, conflicts = compared_draft(page, project, record)
    return "draft.html", {
        "title": f"Draft {record.name}", "draft": about, "conflicts": conflicts,
        "merged": merged, "run": run, "shown": run.changed[first : first + _CHANGES], "total": len(run.changed),
        "later": first + _CHANGES if len(run.changed) > first + _CHANGES else 0,
        "runs": page.store.history.runs(RunFilter(draft=record.id), limit=_RUNS_OF_DRAFT),
    }  # fmt: skip


def perform_on_draft(page: Page, request: Request, wishes: dict[str, str]) -> Run | None:
    """Do something to a draft, if nothing ran in it since it was shown; returns the run that did, if one did."""
    project, record = chosen_draft(page, request)
    act, seen = request.path_params["act"], wishes.get("seen", "")
    if act == "apply":
        return drafts.apply_draft(page.store, project, record, force=bool(wishes.get("force")), seen=seen)
    if act == "discard":
        drafts.discard_draft(page.store, project, record, seen=seen)
        return None
    if act not in DRAFT_ACTS:
        raise BadRequest(f"nothing can be done to a draft by {act!r}", hint=f"one of: {', '.join(DRAFT_ACTS)}")
    drafts.refuse_another(page.store, record, seen)  # the others are commands in the draft, which wait for no lock
    with Sandbox(project.path, face=WEB) as sandbox:
        mine = sandbox.draft(record.name)
        if act == "rebase":
            mine.rebase()
            return None
        return mine.commit(wishes.get("branch", ""), message=wishes.get("message", ""))
