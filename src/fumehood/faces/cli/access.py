"""Commands about what an agent's session may do: status, and ask for more."""

from __future__ import annotations

import os
import time

from fumehood.core.inside import widenings
from fumehood.core.report import printable
from fumehood.core.report import short as brief
from fumehood.core.wording import elapsed, fitted
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_reach, paint
from fumehood.faces.cli.look import numbered
from fumehood.faces.cli.output import here, width
from fumehood.faces.cli.prompt import terminal
from fumehood.service import access, now
from fumehood.service.desk import Desk
from fumehood.service.permission import Permissions
from fumehood.store.history import Reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.report import Run
    from fumehood.faces.cli.commands import Add
    from fumehood.service.desk import OpenQuestion

_MISSED = 5  # questions that found nobody that are shown


def add_commands(add: Add) -> None:
    """Make `status` and `ask` known."""
    status = add(
        "status", "show what runs, what waits, what was taken back last, and what commands may do here", _status,
        "  fumehood status\n  fumehood status --session claude-1",
    )  # fmt: skip
    ask = add(
        "ask", "let an agent's commands reach a host, see a path of the home, or write a directory", _ask,
        "  fumehood ask example.org --session claude-1\n  fumehood ask --show ~/.npmrc",
    )  # fmt: skip
    ask.add_argument("hosts", nargs="*", metavar="HOST")
    ask.add_argument("--show", action="append", default=[], metavar="PATH", help="a path of the home, to be read")
    ask.add_argument("--write", action="append", default=[], metavar="DIR", help="a directory, to be written")
    ask.add_argument("--host", action="append", default=[], metavar="HOST", help="as HOST")
    ask.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever is asked")
    for command in (status, ask):
        command.add_argument("--session", metavar="NAME", help="for this session only")
        add_reach(command)


def _ask(context: Context) -> int:
    """Ask whoever is at this terminal; an agent that asks from inside the hood has none."""
    options, store = context.options, context.store
    words = [*options.hosts, *options.host, *(f"--show={path}" for path in options.show)]
    words += [*(f"--write={path}" for path in options.write), f"--reason={options.reason}"]
    asked = widenings(words, lambda path: os.path.join(here(), os.path.expanduser(path)))
    project = store.projects.open(context.project.path)
    session = options.only_session or options.session or ""
    if session and store.sessions.find(session) is None:
        raise BadRequest(f"there is no session {session}", hint="fumehood log shows the names of sessions")
    may_ask = () if options.only_session else terminal
    permissions = Permissions(store, may_ask, patience_s=store.policy_of(project).ask_timeout)
    said = access.settle(store, project, session, asked, permissions.decide)
    return context.say({"asked": [each.fields() for each in asked], "said": said}, lambda: print("\n".join(said)))


def _status(context: Context) -> int:
    options, store = context.options, context.store
    project = context.project
    session = options.only_session or options.session or ""
    policy = access.widened(store.policy_of(project), store.grants.allowed(project.path, session))
    reach = Reach(project=project.id, sessions=(session,) if session else ())
    held = store.history.runs(context.reach, reach, among=set(store.history.held(project.id)))
    running = now.running(store, context.reach, reach)
    network = policy.network if policy.network != "none" or not policy.hosts else "hosts"
    is_agent = bool(options.only_session)
    missed = [] if is_agent else store.grants.missed(project.path)
    questions = [] if is_agent else [each for each in Desk(store.places).waiting() if _is_about(each, project.path)]
    drafts = store.drafts.open_ones(project.id)
    undo = next(store.history.undos(context.reach, reach), None)
    undone = store.history.find(undo.of) if undo is not None and undo.of is not None else None
    answer = {
        "project": project.path, "session": session or None, "roots": list(project.roots), "network": network,
        "hosts": list(policy.hosts), "show": list(policy.show),
        "held": [_named(run) for run in held], "running": [_named(run) for run in running],
        "drafts": [draft.name for draft in drafts], "taken_back": None if undone is None else _named(undone),
        "questions": [each.as_dict() for each in questions], "missed": [each.fields() for each in missed],
    }  # fmt: skip

    def show() -> None:
        rows: list[tuple[str, str]] = [("project", project.path)]
        rows += [("session", session)] if session else []
        for run in running:
            rows += [("running", f"{numbered(run)}  {elapsed(time.time() - run.started_at)}  {run.command}")]
        rows += [("waiting", f"{numbered(run)}  {run.command}") for run in held]
        rows += [("", "fumehood review")] if held and not is_agent else []
        rows += [("draft", f"{draft.name}  (fumehood draft diff {draft.name})") for draft in drafts]
        if undone is not None and undo is not None:
            rows += [("undone", f"{numbered(undone)}  {undone.command}"), ("", "fumehood redo")]
        rows += [("question", f"{each.question.lines[0]}  (fumehood watch)") for each in questions]
        for each in missed[:_MISSED]:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.at))
            rows += [("missed", f"{when}  {each.text}"), *([("", each.ahead)] if each.ahead else [])]
        if not (running or held or drafts or undone or questions or missed):
            rows += [("", "nothing runs, nothing waits")]
        for name, values in (("write", project.roots), ("hosts", policy.hosts), ("shown", policy.show)):
            rows += [(name, value) for value in values]
        rows += [("network", network)]
        colour, room = paint(), width()
        for name, text in rows:
            said = fitted(printable(text), room - 10) if room else brief(text)
            print(f"{colour(f'{name:9}', 'dim')} {said if name else colour(said, 'dim')}")

    return context.say(answer, show)


def _named(run: Run) -> dict[str, object]:
    return {"run": run.run, "number": run.number, "command": run.command}


def _is_about(question: OpenQuestion, project: str) -> bool:
    return question.question.project in ("", project)
