"""Commands about what runs now, and what is asked: ps, stop, checkpoint, forward, status, ask."""

from __future__ import annotations

import os
import socket
import sys
import time

from fumehood.core.inside import widenings
from fumehood.core.policy import FULL
from fumehood.core.report import Run, pick_fields, printable
from fumehood.core.report import shorten as brief
from fumehood.core.request import draft_session_name
from fumehood.core.wording import elapsed, fitted
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import REACH_OPTIONS, RUN, Context, argument, command, flag, option, repeated_option
from fumehood.faces.cli.output import Paint, terminal_width, whole_number, working_dir
from fumehood.faces.cli.run_text import draft_or_session, print_run, run_label
from fumehood.faces.cli.screen import terminal
from fumehood.service import checkpoint, loopback
from fumehood.service.ask import Desk
from fumehood.service.overview import missed_questions
from fumehood.service.permission import Permissions, settle_access, widened
from fumehood.service.settle import FAILED
from fumehood.service.undo import has_backups
from fumehood.store.history import RunFilter


@command(
    "ps", "show what runs now", "fumehood ps\nfumehood ps --all", flag("--all", "in every project"), *REACH_OPTIONS
)  # fmt: skip
def _ps(context: Context) -> int:
    reach = RunFilter() if context.options.all else RunFilter(project=context.project.id)
    runs = context.store.running(context.reach, reach)
    fields = "run number project command cwd session started_at network"
    lines = []
    for run in runs:
        line = draft_or_session(run, printable)
        where = f"  {printable(run.project)}" if context.options.all else ""
        since = elapsed(time.time() - run.started_at)
        lines.append(f"{run_label(run):5}  {since:>8}  {brief(run.command)}{'  ' if line else ''}{line}{where}")
    return context.print_result({"runs": [pick_fields(run, fields) for run in runs]}, lines or "nothing runs")


@command("stop", "end a command that runs; what it wrote is held", "fumehood stop last", RUN, *REACH_OPTIONS)
def _stop(context: Context) -> int:
    run = checkpoint.stop(context.store, context.run(context.options.run))
    return context.print_result(run.as_dict, lambda: print_run(run, sys.stdout))


@command(
    "checkpoint", "settle what a command that runs has finished writing; it goes on", "fumehood checkpoint last",
    RUN, *REACH_OPTIONS,
)  # fmt: skip
def _checkpoint(context: Context) -> int:
    run = checkpoint.checkpoint(context.store, context.run(context.options.run))
    if not context.print_if_json(run.as_dict):
        if not run.changed:
            print(f"fumehood: nothing was settled{f': {printable(run.reason)}' if run.reason else ''}")
        print_run(run, sys.stdout)
    return 125 if run.state == FAILED else 0


@command(
    "forward", "open a port of a session to this machine's programs, until Ctrl-C",
    "fumehood forward 8000\nfumehood forward 8000 --session agent-1 --to 9000\n"
    "fumehood forward 3000 --draft idea --to 3001",
    argument("port", type=whole_number(1, 65535), metavar="PORT", help="where a command listens"),
    option("--session", "NAME", "default: the latest with a command that runs"),
    option("--draft", "NAME", "a draft's instead"),
    option("--to", "PORT", "the port here, if it is another", type=whole_number(1, 65535)),
)  # fmt: skip
def _forward(context: Context) -> int:
    options = context.options
    if options.draft is not None:
        session = draft_session_name(context.store.drafts.find(context.project.id, options.draft).id)
    elif options.session:
        session = _known_session(context, options.session)
    else:
        runs = context.store.running(RunFilter(project=context.project.id))
        if (latest := next((run for run in runs if run.session), None)) is None:
            raise BadRequest("no command of a session runs now", hint="fumehood ps shows what runs; --session NAME")
        session = (latest.session or "") if latest.draft is None else draft_session_name(latest.draft)
    networks = {run.network for run in context.store.running() if run.session == session}
    if networks == {FULL}:
        message = f"what runs in session {session} has the whole network: it listens on this machine itself"
        raise BadRequest(message, hint=f"http://127.0.0.1:{options.port}/ needs nothing to lead there")
    local_port = options.to or options.port
    try:
        listener = socket.create_server(("127.0.0.1", local_port))
    except OSError as error:
        another = f"another one: fumehood forward {options.port} --to …"
        raise BadRequest(f"port {local_port} can't be opened here: {error.strerror}", hint=another) from error
    answer = {
        "address": "127.0.0.1",
        "port": local_port,
        "session": session,
        "to": options.port,
        "draft": options.draft,
    }
    whose = f"session {printable(session)}" if options.draft is None else f"draft {printable(options.draft)}"
    with listener:
        context.print_result(
            answer, f"http://127.0.0.1:{local_port}/ is port {options.port} of {whose}; Ctrl-C ends it"
        )
        sys.stdout.flush()
        try:
            loopback.serve(context.store, session, options.port, listener, lambda text: print(text, file=sys.stderr))
        except KeyboardInterrupt:
            return 0


def _known_session(context: Context, name: str) -> str:
    if context.store.sessions.find(name) is None:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    return name


_MISSED = 5  # questions that found nobody that are shown


@command(
    "ask", "let an agent's commands reach a host, see a path of the home, or write a directory",
    "fumehood ask example.org --session claude-1\nfumehood ask --show ~/.npmrc",
    argument("hosts", nargs="*", metavar="HOST"),
    repeated_option("--show", "PATH", "a path of the home, to be read", default=[]),
    repeated_option("--write", "DIR", "a directory, to be written", default=[]),
    repeated_option("--host", "HOST", "as HOST", default=[]),
    option("--reason", "TEXT", "why, for whoever is asked", default=""),
    option("--session", "NAME", "for this session only"), *REACH_OPTIONS,
)  # fmt: skip
def _ask(context: Context) -> int:
    """Ask whoever is at this terminal; an agent that asks from inside the hood has none."""
    options, store = context.options, context.store
    words = [*options.hosts, *options.host, *(f"--show={path}" for path in options.show)]
    words += [*(f"--write={path}" for path in options.write), f"--reason={options.reason}"]
    asked = widenings(words, lambda path: os.path.join(working_dir(), os.path.expanduser(path)))
    project = store.projects.open(context.project.path)
    named = options.only_session or options.session
    session = _known_session(context, named) if named else ""
    may_ask = () if options.only_session else terminal
    permissions = Permissions(store, may_ask, patience_s=store.policy_of(project).ask_timeout)
    said = settle_access(store, project, session, asked, permissions.decide)
    return context.print_result({"asked": [each.fields() for each in asked], "said": said}, said)


@command(
    "status", "show what runs, what waits, what was taken back last, and what commands may do here",
    "fumehood status\nfumehood status --session claude-1", option("--session", "NAME", "for this session only"),
    *REACH_OPTIONS,
)  # fmt: skip
def _status(context: Context) -> int:
    options, store = context.options, context.store
    project = context.project
    session = options.only_session or options.session or ""
    policy = widened(store.policy_of(project), store.grants.allowed(project.path, session))
    reach = RunFilter(project=project.id, sessions=(session,) if session else ())
    held = store.history.runs(context.reach, reach, among=set(store.history.held_runs(project.id)))
    running = store.running(context.reach, reach)
    network = policy.network if policy.network != "none" or not policy.hosts else "hosts"
    is_agent = bool(options.only_session)
    missed = [] if is_agent else missed_questions(store, project.path)
    asked = [] if is_agent else Desk(store.places).waiting()
    questions = [each for each in asked if each.question.project in ("", project.path)]
    drafts = store.drafts.open_ones(project.id)
    undo = next(store.history.undos_in_force(context.reach, reach), None)
    undone = store.history.find(undo.of) if undo is not None and undo.of is not None else None
    is_part = undone is not None and undone.state != "undone"
    answer = {
        "project": project.path, "session": session or None, "roots": list(project.roots), "network": network,
        "hosts": list(policy.hosts), "show": list(policy.show),
        "held": [_named(run) for run in held], "running": [_named(run) for run in running],
        "drafts": [draft.name for draft in drafts],
        "taken_back": None if undone is None else {**_named(undone), "in_part": is_part},
        "questions": [each.as_dict() for each in questions], "missed": [each.fields() for each in missed],
    }  # fmt: skip
    now_s, colour, room = time.time(), Paint(), terminal_width()
    rows: list[tuple[str, str]] = [("project", project.path)]
    rows += [("session", session)] if session else []
    rows += [("running", f"{run_label(run)}  {elapsed(now_s - run.started_at)}  {run.command}") for run in running]
    rows += [("waiting", f"{run_label(run)}  {run.command}") for run in held]
    rows += [("", "fumehood review")] if held and not is_agent else []
    rows += [("draft", f"{draft.name}  (fumehood draft diff {draft.name})") for draft in drafts]
    if undone is not None and undo is not None:
        rows += [("undone", f"{run_label(undone)}{'  in part:' if is_part else ''}  {undone.command}")]
        rows += [("", "fumehood redo" if has_backups(undo) else "its backups were cleaned away")]
    rows += [("question", f"{each.question.lines[0]}  (fumehood watch)") for each in questions]
    for each in missed[:_MISSED]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.at))
        rows += [("missed", f"{when}  {each.text}"), *([("", each.ahead)] if each.ahead else [])]
    if not (running or held or drafts or undone or questions or missed):
        rows += [("", "nothing runs, nothing waits")]
    for name, values in (("write", project.roots), ("hosts", policy.hosts), ("shown", policy.show)):
        rows += [(name, value) for value in values]
    rows += [("network", network)]
    said = [(name, fitted(printable(text), room - 10) if room else brief(text)) for name, text in rows]
    lines = (f"{colour(f'{name:9}', 'dim')} {text if name else colour(text, 'dim')}" for name, text in said)
    return context.print_result(answer, lines)


def _named(run: Run) -> dict[str, object]:
    return pick_fields(run, "run number command")
