"""The views of the web page: running commands, questions, what waits, the history, a run, files, drafts, settings."""

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
from fumehood.core.questions import held_item
from fumehood.core.report import Run, printable
from fumehood.core.text_diff import hunks, merge_texts
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.web.text import FILTERS, hex_lines, link, parse_difference, readable_text, render_source
from fumehood.linux.doctor import examine
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import LISTING, kind_of, open_below, open_top
from fumehood.service import decide, differences, drafts, overview, provided
from fumehood.service.ask import Desk
from fumehood.service.differences import difference_of
from fumehood.service.draft_merge import Conflict, compare_with_project
from fumehood.service.files import catch_up
from fumehood.service.library import Sandbox
from fumehood.service.restore import versions as kept_versions
from fumehood.service.store import Store
from fumehood.service.undo import has_backups
from fumehood.service.versions import MAX_BYTES, contents, three_versions
from fumehood.store.audit import WEB
from fumehood.store.config import configuration_path, configuration_text
from fumehood.store.files import FileRecord, Files
from fumehood.store.history import RunFilter
from fumehood.store.named import DraftRecord
from fumehood.store.projects import Project
from fumehood.store.search import Search, change_at, count_waiting, page_of_changes, waiting_flagged

View = tuple[str, dict[str, object]]  # the name of a template, and its variables

SEARCHED = ("words", "path", "text", "session", "state")
DRAFT_ACTS = ("apply", "discard", "rebase", "commit")
_ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")
_TAIL_LINES = 4  # lines of what a command printed last that are shown beside it
_MAX_WRITTEN = 5
_MAX_LATEST = 8
_MAX_HELD_RUNS = 10  # on one page of what waits
_MAX_HELD_CHANGES = 60  # changes of each
_MAX_ENTRIES = 200
_MAX_RUNS = 50  # on one page of the history
_MAX_DRAFT_RUNS = 100
_MAX_LANES = 8  # beside each other, in the graph
_MAX_CHANGES = 200  # on one page of a run or a draft
_MAX_FILES = 200
_MAX_PRINTED = 200_000  # characters of an output that the page shows; all of it can be saved
_HEADER_STARTS = ("diff --git ", "--- ", "+++ ", "Binary files ")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_STATES = ("applied", "held", "undone", "discarded", "empty", "failed", "refused", "running")


class Page:
    """What all views share: the store, the desk, the templates, and the news for open pages."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.desk = Desk(store.places)
        self.watchers = 0  # open pages that get the news
        self.token = ""  # of the unused link
        self.news: dict[str, str] = {}  # pieces of HTML by their names
        loader = jinja2.FileSystemLoader(f"{os.path.dirname(__file__)}/templates")
        self._templates = jinja2.Environment(autoescape=True, loader=loader, undefined=jinja2.StrictUndefined)
        self._templates.filters.update(FILTERS, numbered=self._name_runs)
        self._templates.globals.update(link=link)

    def fragment(self, template: str, **context: object) -> str:
        """Fill the template of a part of a page, which is sent by itself."""
        return self._templates.get_template(template).render(**context)

    def render(self, template: str, request: Request, **context: object) -> str:
        """Fill the template of a page; every page has the open questions, and the number of changes that wait."""
        questions = self.desk.waiting()
        counts = {"questions": len(questions), "waiting": overview.count_held_runs(self.store)}
        return self.fragment(template, path=request.url.path, counts=counts, open_questions=questions, **context)

    def running(self) -> list[dict[str, object]]:
        """Return the running commands, each with its memory, its last output, and the files that it wrote last."""
        listed = []
        for each in overview.live_commands(self.store):
            ends = (overview.end_of_output(self.store, each.run, stream, 1000) for stream in ("stdout", "stderr"))
            lines = next(filter(None, ends), b"").decode("utf-8", "replace").rstrip("\n").split("\n")
            latest = overview.written_paths(self.store, each.run, _MAX_WRITTEN)
            listed.append({**each.fields(), "tail": "\n".join(lines[-_TAIL_LINES:]), "written": latest})
        return listed

    def new_link(self) -> str:
        """Return the path of a new link for one browser; the previous link becomes invalid."""
        self.token = secrets.token_urlsafe(24)
        return f"/?token={self.token}"

    def project(self, path: str) -> Project:
        """Return a recorded project; the page never registers a new one."""
        self.number_of(path)
        return self.store.projects.open(path, register=False)

    def number_of(self, path: str) -> int:
        """Return the number of a recorded project, even if its directory is gone."""
        number = self.store.projects.number_at(path)
        if number is None:
            raise BadRequest(f"there is no project {printable(path)}", hint="choose one of the list")
        return number

    def run(self, request: Request) -> Run:
        """Return the run that the address names."""
        return self.store.history.find(request.path_params["run"])

    def numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of each run in its project, by the run's id."""
        query = "SELECT id, project_number FROM runs WHERE id IN (?)"
        return dict(self.store.database.rows_for(query, sorted(set(names))))

    def _name_runs(self, text: str) -> str:
        """Replace the ids of runs in a text by their numbers, as the page shows them."""
        numbers = self.numbers(_ID.findall(text))
        return _ID.sub(lambda name: f"#{numbers[name[0]]}" if name[0] in numbers else name[0], text)


def decode_path(text: str) -> str:
    """Decode a path from a form or an address; it may have bytes that are not UTF-8."""
    return unquote(text, errors="surrogateescape")


def path_parameter(request: Request, name: str = "path") -> str:
    """Return a path parameter of the address, "" if it is not there."""
    return decode_path(request.query_params.get(name, ""))


def parse_number(text: str) -> int:
    """Parse a number; returns 0 if it is not one, or too large for the database."""
    return int(text) if text.isdecimal() and len(text) < 18 else 0


def number_parameter(request: Request, name: str) -> int:
    """Return a number parameter of the address, 0 if it is not there."""
    return parse_number(request.query_params.get(name, ""))


# ---- What runs and waits now, and the settings.

def now(page: Page, _request: Request) -> View:
    """Show the running commands of all projects, the latest runs, the projects and sessions."""
    store = page.store
    latest, _ = overview.search_runs(store, Search(), limit=_MAX_LATEST)
    return "now.html", {
        "title": "Now", "running": page.running(), "projects": store.projects.list_all(), "latest": latest,
        "now": time.time(), "sessions": store.sessions.counts()[:_MAX_LATEST],
    }  # fmt: skip


def questions(page: Page, _request: Request) -> View:
    """Show the open questions, and those that nobody answered."""
    return "questions.html", {"title": "Questions", "missed": overview.missed_questions(page.store)}


def waiting(page: Page, request: Request) -> View:
    """Show what is held, by run and directory, with the reasons."""
    runs, later = overview.held_runs(page.store, limit=_MAX_HELD_RUNS, before=number_parameter(request, "before"))
    done = request.query_params.get("done", "")
    return "waiting.html", {
        "title": "Waiting", "runs": [_held_fields(page, run, (0, 0)) for run in runs], "later": later,
        "done": page.store.history.find(done) if done else None,
    }  # fmt: skip


def more_waiting(page: Page, request: Request) -> View:
    """Show more of what one run holds."""
    run = page.run(request)
    after = number_parameter(request, "row"), number_parameter(request, "entry")
    return "held.html", {"title": "Waiting", "each": _held_fields(page, run, after)}


def _held_fields(page: Page, run: Run, after: tuple[int, int]) -> dict[str, object]:
    each = overview.read_run(page.store, run, limit=_MAX_HELD_CHANGES, after=after, only_waiting=True)
    dangerous = _dangerous_items(page, run) if each.next_page else []
    return {**each.fields(), "run": each.run, "directories": _by_directory(run, each.changes), "dangerous": dangerous}


def _dangerous_items(page: Page, run: Run) -> list[str]:
    """Name the dangerous changes that wait: "Accept all" includes them, even if they are on another page."""
    flagged = waiting_flagged(page.store.database, run.run)
    return wording.item_lines((held_item(run, change) for change in flagged), seen_by=f"fumehood show {run.number}")


def _by_directory(run: Run, changes: Iterable[c.Change]) -> dict[str, list[c.Change]]:
    """Group changes by directory, with the directory's path as in a decision about it."""
    groups: dict[str, list[c.Change]] = {}
    for change in changes:
        directory = change.path.rpartition("/")[0]
        if change.root:
            directory = f"{run.roots[change.root]}/{directory}".rstrip("/")
        groups.setdefault(directory, []).append(change)
    return groups


def settings(page: Page, request: Request) -> View:
    """Show the configuration, the kept answers, the projects and the playground."""
    place = provided.make_playground(page.store.places)
    below = os.path.normpath(f"/{path_parameter(request, 'below')}").strip("/")
    entries, is_more = _list_playground(place, below)
    return "settings.html", {
        "title": "Settings", "file": configuration_path(page.store.places),
        "configuration": configuration_text(page.store.places),
        "playground": place, "size": provided.playground_size(page.store.places), "below": below, "entries": entries,
        "is_more": is_more, "grants": page.store.grants.all(), "projects": page.store.projects.list_all(),
    }  # fmt: skip


def _list_playground(playground: str, path: str) -> tuple[list[tuple[str, str, int]], bool]:
    """Return the entries of a directory of the playground, and whether there are more; no link is followed."""
    try:
        with Closing(open_top(playground)) as top, Closing(open_below(top, path, LISTING)) as directory:
            names = sorted(os.listdir(directory))
            statuses = [
                (name, os.stat(name, dir_fd=directory, follow_symlinks=False)) for name in names[:_MAX_ENTRIES]
            ]
    except OSError:
        return [], False  # the directory is gone
    listed = [(name, kind_of(status.st_mode), status.st_size) for name, status in statuses]
    return listed, len(names) > len(listed)


def doctor(page: Page, _request: Request) -> View:
    """Show what this machine can do, examined now."""
    return "doctor.html", {"title": "Doctor", "abilities": examine(page.store.places.state)}


# ---- The history, and its graph.

def history(page: Page, request: Request) -> View:
    """Show the runs that a search finds."""
    projects = page.store.projects.list_all()
    chosen = next((each for each in projects if each.path == path_parameter(request, "project")), None)
    what = search_parameters(request, None if chosen is None else chosen.id)
    before = number_parameter(request, "before")
    runs, later = overview.search_runs(page.store, what, limit=_MAX_RUNS, before=before)
    is_more = bool(request.headers.get("hx-request") and before)
    query = "SELECT of, id, project_number FROM runs WHERE act = 'undo' AND state = 'applied' AND of IN (?)"
    undos = page.store.database.rows_for(query, [run.run for run in runs])
    return "history_rows.html" if is_more else "history.html", {
        "title": "History", "rows": list(zip(runs, graph(runs), strict=True)), "projects": projects,
        "others": page.numbers(name for run in runs for name in (run.of, *run.below) if name),
        "counts_of": page.store.history.count_changes([run.run for run in runs]), "later": later, "states": _STATES,
        "taken_back": {of: (name, number) for of, name, number in undos},
        "asked": what.fields() | {"project": "" if chosen is None else chosen.path},
    }  # fmt: skip


def search_parameters(request: Request, project: int | None) -> Search:
    """Return the search that the address describes, in one project or in all."""
    return Search(**{name: request.query_params.get(name, "") for name in SEARCHED}, project=project)


class GraphCell(Value):
    """One cell of the graph: on which sides lines leave it, and whether the run is in it."""

    up: bool = False
    down: bool = False
    left: bool = False
    right: bool = False
    is_run: bool = False


def graph(runs: Sequence[Run]) -> list[list[GraphCell]]:
    """Return the cells of the graph for each run: lines lead down to the runs that it undoes or is based on.

    The runs are in the first column. Each line has a lane, a column to the right of that, until it ends.
    """
    lanes: list[str | None] = []  # the run to which the line in each lane leads
    rows = []
    for run in runs:
        ending_lanes = [lane for lane, target in enumerate(lanes) if target == run.run]
        passing_lanes = [lane for lane, target in enumerate(lanes) if target is not None and lane not in ending_lanes]
        for lane in ending_lanes:
            lanes[lane] = None
        joining_lanes, opened_lanes = [], []
        for target in dict.fromkeys(name for name in (run.of, *run.below) if name):
            if target in lanes:
                joining_lanes.append(lanes.index(target))
                continue
            free_lanes = [lane for lane, taken in enumerate(lanes) if taken is None and lane not in ending_lanes]
            if not free_lanes and len(lanes) == _MAX_LANES:
                continue  # more lines would leave no room for the text, which names the runs anyway
            if not free_lanes:
                lanes.append(None)
                free_lanes = [len(lanes) - 1]
            lanes[free_lanes[0]] = target
            opened_lanes.append(free_lanes[0])
        last_lane = max((*ending_lanes, *joining_lanes, *opened_lanes), default=-1)
        cells = [GraphCell(is_run=True, right=last_lane >= 0)]
        for lane in range(len(lanes)):
            touches = lane in ending_lanes or lane in joining_lanes or lane in opened_lanes
            cells.append(GraphCell(
                up=lane in passing_lanes or lane in ending_lanes, down=lane in passing_lanes or lane in opened_lanes,
                left=lane <= last_lane and (touches or lane < last_lane), right=lane < last_lane,
            ))  # fmt: skip
        rows.append(cells)
        while lanes and lanes[-1] is None:
            lanes.pop()
    return rows


# ---- One run.

def run(page: Page, request: Request) -> View:
    """Show everything about one run."""
    store = page.store
    read_run = overview.read_run(store, page.run(request), limit=_MAX_CHANGES, only_waiting=False)
    shown_run = read_run.run
    is_held = shown_run.state == "held" and shown_run.draft is None  # a draft is taken over as a whole
    held = count_waiting(store.database, shown_run.run) if is_held else 0
    written: list[overview.WrittenPath] = []
    is_more = False
    if shown_run.state == "running":
        written, is_more = overview.written_paths(store, shown_run, _MAX_CHANGES)
    users = set(store.history.runs_using_layer(shown_run.layer or shown_run.run)) - {shown_run.run}
    runs_about = [name for (name,) in store.database.rows("SELECT id FROM runs WHERE of = ?", (shown_run.run,))]
    undone = [shown_run.of] if shown_run.of else []
    others = store.history.runs(among=sorted({*users, *runs_about, *undone, *shown_run.below}))
    kinds = store.history.count_changes([shown_run.run]).get(shown_run.run, {})
    return "run.html", {
        "title": _run_title(shown_run), "run": shown_run, "held": held, "seen": read_run.seen,
        "dangerous": _dangerous_items(page, shown_run) if held and read_run.next_page else [],
        "events": store.audit.events_of([shown_run.run]).get(shown_run.run, []), "written": written, "is_more": is_more,
        "others": others, "shown": read_run.changes, "rest": read_run.next_page, "kinds": kinds,
        "can_undo": (
            shown_run.state in ("applied", "held") and store.history.has_applied(shown_run) and has_backups(shown_run)
        ),
        "is_back": shown_run.act == "undo" and shown_run.state == "applied" and has_backups(shown_run),
        "stdout": shown_run.stdout[-_MAX_PRINTED:], "stderr": shown_run.stderr[-_MAX_PRINTED:],
    }  # fmt: skip


def _run_title(run: Run) -> str:
    return f"#{run.number} {printable(run.command)[:60]}"


def changes(page: Page, request: Request) -> View:
    """Show more changes of a run."""
    chosen = page.run(request)
    after = number_parameter(request, "row"), number_parameter(request, "entry")
    shown, rest = page_of_changes(page.store.database, chosen.run, after, limit=_MAX_CHANGES)
    return "changes.html", {"run": chosen, "shown": shown, "rest": rest, "title": _run_title(chosen)}


@contextmanager
def _find_change(page: Page, request: Request) -> Iterator[tuple[Run, c.Change]]:
    """Find the change that the address names, and its run; for a draft, the run is its preview in a `with` block."""
    number, path = number_parameter(request, "root"), path_parameter(request)
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
    """Return the content of a changed path before and after a run or a draft."""
    with _find_change(page, request) as (run, change):
        return contents(page.store, run, change)


def difference(page: Page, request: Request) -> View:
    """Show the difference of one path of a run or draft: text, a picture, a notebook's cells, or some bytes."""
    with _find_change(page, request) as (run, change):
        names = request.path_params
        draft = names.get("draft", "")
        address = f"/drafts/{names['project']}/{draft}" if draft else f"/runs/{run.run}"
        absolute_path = change.path if change.root == 0 else f"{run.roots[change.root]}/{change.path}"
        difference_shown = difference_of(page.store, run, change)
        old, new = contents(page.store, run, change)
        text = difference_shown.text
        is_notebook = change.path.endswith(".ipynb") and difference_shown.shown
        if is_notebook:
            text = "".join(hunks(readable_text(change.path, old), readable_text(change.path, new)))
        header_lines, difference_hunks = parse_difference(text, change.path)
        # The page shows the path above the difference.
        header_lines = [line for line in header_lines if not line.startswith(_HEADER_STARTS)]
        if is_notebook:
            command = f"draft diff {draft}" if draft else f"diff {run.number}"
            note = "only the words of a notebook's cells are compared here; all of it: fumehood"
            header_lines.append(f"{note} {command}")
        is_held = change.verdict in c.WAITING and run.state == "held" and not draft and run.draft is None
        is_text = is_held and change.kind == c.FILE and not difference_shown.binary and difference_shown.shown
        is_picture = difference_shown.binary and change.path.lower().endswith(_PICTURES)
        some_bytes = hex_lines(old, new) if difference_shown.binary and not is_picture else []
        if some_bytes or (is_picture and (old or new)):
            header_lines = [line for line in header_lines if not line.startswith("not shown: ")]
        return "diff.html", {
            "title": change.path, "run": run, "change": change, "address": address, "draft": draft,
            "head": header_lines, "hunks": difference_hunks, "place": absolute_path,
            "is_side": request.query_params.get("view") == "side", "old": old, "new": new,
            "is_picture": is_picture, "bytes": some_bytes,
            "can_choose": is_text and change.change == c.MODIFIED and not is_notebook and len(difference_hunks) > 0,
            "digest": decide.versions_digest(run, change, old, new) if is_text else "",
            "conflict": _conflict_fields(page, run, change) if is_text and change.verdict == c.CONFLICT else None,
        }  # fmt: skip


def _conflict_fields(page: Page, run: Run, change: c.Change) -> dict[str, object]:
    """Return the three versions of a conflict and a merged text to edit; or why it can't be edited here."""
    base, live, wrote = three_versions(page.store, run, change)
    try:
        texts = [None if each is None else each.decode() for each in (base, live, wrote)]
    except UnicodeDecodeError:
        return {"why": "it is not UTF-8, so it can't be edited here"}
    line_ends = {each.count("\r\n") == each.count("\n") for each in texts[1:] if each and "\n" in each}
    if len(line_ends) > 1 or any(each and "\r" in each.replace("\r\n", "") for each in texts):
        return {"why": "its lines end in several ways, so it can't be edited here"}
    before, now, after = texts
    merge, conflict_places = merge_texts(before, now or "", after or "", ("in the project", f"run {run.number}"))
    return {
        "why": "", "base": before, "now": now, "run": after, "merge": merge, "places": conflict_places,
        "is_dos": "\r\n" in (now or ""),
    }  # fmt: skip


# ---- Files and their versions.

def files(page: Page, request: Request) -> View:
    """Show the files of one project that runs changed."""
    projects = page.store.projects.list_all()
    path = path_parameter(request, "project") or (max(projects, key=lambda each: each.runs).path if projects else "")
    words, after = request.query_params.get("words", ""), path_parameter(request, "after")
    listed: list[FileRecord] = []
    is_more = False
    if path:
        number = page.number_of(path)
        catch_up(page.store, number, wait=False)
        listed, is_more = Files(page.store.database).page(number, words, after, limit=_MAX_FILES)
    return "files.html", {
        "title": "Files", "projects": projects, "project": path, "files": listed, "is_more": is_more, "words": words,
    }  # fmt: skip


def _find_file(page: Page, request: Request) -> tuple[Project, str, str]:
    project = page.project(path_parameter(request, "project"))
    return project, path_parameter(request, "root") or project.path, path_parameter(request)


def file(page: Page, request: Request) -> View:
    """Show one file with its versions, which can be restored, and the runs that changed it."""
    project, root, path = _find_file(page, request)
    return "file.html", {
        "title": path, "project": project, "root": root, "file": path,
        "versions": kept_versions(page.store, project, root, path),
        "runs": differences.file_changes(page.store, project, root, path),
    }  # fmt: skip


def version(page: Page, request: Request) -> View:
    """Show the content of one version of a file."""
    project, root, path = _find_file(page, request)
    source = request.query_params.get("source", "")
    data = differences.file_content(page.store, project, root, path, source)
    shown: object = None
    if data is not None and b"\0" not in data and len(data) <= MAX_BYTES:
        shown = render_source(data.decode("utf-8", "replace"), path)
    return "version.html", {"title": path, "lines": shown, "size": None if data is None else len(data)}


def lines(page: Page, request: Request) -> View:
    """Show which run wrote each line of a file."""
    project, root, path = _find_file(page, request)
    blamed = differences.lines_with_writers(page.store, project, root, path)
    shown = None if blamed is None else render_source("".join(line for line, _ in blamed), path)
    return "blame.html", {"title": os.path.basename(path), "lines": shown, "blamed": blamed}


# ---- Drafts, and acts on them: apply, rebase, discard, commit.

def open_drafts(page: Page) -> Iterator[dict[str, Any]]:
    """Yield the fields of every open draft of all projects."""
    for project in page.store.projects.list_all():
        for draft in page.store.drafts.open_drafts(project.id):
            yield draft_fields(page, project.path, draft)


def draft_fields(page: Page, project: str, draft: DraftRecord) -> dict[str, Any]:
    """Return the fields of a draft that can be read without computing its changes."""
    return {
        "name": draft.name, "project": project, "address": f"{draft.project}/{draft.name}",
        "frozen": draft.base is not None, "created_at": draft.created_at,
        "runs": len(page.store.history.held_runs(draft.project, draft.id)),
        "running": page.store.drafts.has_running_command(draft), "seen": page.store.drafts.state_id(draft),
    }  # fmt: skip


def chosen_draft(page: Page, request: Request) -> tuple[Project, DraftRecord]:
    """Return the project and the draft that the address names."""
    number, name = parse_number(request.path_params["project"]), request.path_params["draft"]
    path = next((each.path for each in page.store.projects.list_all() if each.id == number), None)
    if path is None:
        raise BadRequest(f"there is no project {number}", hint="choose a draft of the list")
    return page.project(path), page.store.drafts.find(number, name)


def all_drafts(page: Page, _request: Request) -> View:
    """Show all drafts."""
    return "drafts.html", {"title": "Drafts", "drafts": list(open_drafts(page))}


def compared_draft(page: Page, project: Project, record: DraftRecord) -> tuple[Run, set[str], list[Conflict]]:
    """Return the changes of a draft as a run, the paths merged with the project's changes, and the conflicts."""
    with drafts.Preview(page.store, project, record) as whole:
        merges, conflicts = compare_with_project(page.store, record, whole)
        return whole.run, {merge.change.path for merge in merges if not merge.places}, conflicts


def draft(page: Page, request: Request) -> View:
    """Show what a draft would change in the project, the conflicts, and its runs."""
    project, record = chosen_draft(page, request)
    first = number_parameter(request, "from")
    about = draft_fields(page, project.path, record)  # with its state, before what it holds is looked at
    run, merged, conflicts = compared_draft(page, project, record)
    return "draft.html", {
        "title": f"Draft {record.name}", "draft": about, "conflicts": conflicts,
        "merged": merged, "run": run, "shown": run.changed[first : first + _MAX_CHANGES], "total": len(run.changed),
        "later": first + _MAX_CHANGES if len(run.changed) > first + _MAX_CHANGES else 0,
        "runs": page.store.history.runs(RunFilter(draft=record.id), limit=_MAX_DRAFT_RUNS),
    }  # fmt: skip


def act_on_draft(page: Page, request: Request, form: dict[str, str]) -> Run | None:
    """Perform an act on a draft, unless a command ran in it since it was shown; returns the run of the act, if any."""
    project, record = chosen_draft(page, request)
    act, seen = request.path_params["act"], form.get("seen", "")
    if act == "apply":
        return drafts.apply_draft(page.store, project, record, force=bool(form.get("force")), expected=seen)
    if act == "discard":
        drafts.discard_draft(page.store, project, record, expected=seen)
        return None
    if act not in DRAFT_ACTS:
        raise BadRequest(f"nothing can be done to a draft by {act!r}", hint=f"one of: {', '.join(DRAFT_ACTS)}")
    drafts.refuse_if_changed(page.store, record, seen)  # checked here, because rebase and commit take no lock first
    with Sandbox(project.path, face=WEB) as sandbox:
        own_draft = sandbox.draft(record.name)
        if act == "rebase":
            own_draft.rebase()
            return None
        return own_draft.commit(form.get("branch", ""), message=form.get("message", ""))
