"""Commands about running commands and open questions: ps, stop, checkpoint, forward, status, ask."""

from __future__ import annotations

import os
import socket
import sys
import time

from fumehood.core.inside import access_requests
from fumehood.core.policy import FULL
from fumehood.core.report import Run, pick_fields, printable, shorten
from fumehood.core.request import draft_session_name
from fumehood.core.wording import fit_columns, format_elapsed
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import (
    RUN,
    RUN_FILTER_OPTIONS,
    Context,
    argument,
    command,
    flag,
    option,
    repeated_option,
)
from fumehood.faces.cli.output import Paint, terminal_width, whole_number, working_dir
from fumehood.faces.cli.run_text import draft_or_session, print_run, run_label
from fumehood.faces.cli.screen import terminal_asker
from fumehood.service import checkpoint, loopback
from fumehood.service.ask import Desk
from fumehood.service.overview import missed_questions
from fumehood.service.permission import Permissions, add_granted_access, decide_access
from fumehood.service.session import hooks_switched_off
from fumehood.service.settle import FAILED
from fumehood.service.undo import has_backups
from fumehood.store.history import RunFilter


@command(
    "ps", "show what runs now", "fumehood ps\nfumehood ps --all", flag("--all", "in every project"), *RUN_FILTER_OPTIONS
)  # fmt: skip
def _ps(context: Context) -> int:
    own_filter = RunFilter() if context.options.all else RunFilter(project=context.project.id)
    runs = context.store.running(context.run_filter, own_filter)
    fields = "run number project command cwd session started_at network"
    lines = []
    for run in runs:
        label = draft_or_session(run, printable)
        where = f"  {printable(run.project)}" if context.options.all else ""
        since = format_elapsed(time.time() - run.started_at)
        lines.append(f"{run_label(run):5}  {since:>8}  {shorten(run.command)}{'  ' if label else ''}{label}{where}")
    return context.print_result({"runs": [pick_fields(run, fields) for run in runs]}, lines or "nothing runs")


@command("stop", "end a command that runs; what it wrote is held", "fumehood stop last", RUN, *RUN_FILTER_OPTIONS)
def _stop(context: Context) -> int:
    run = checkpoint.stop(context.store, context.run(context.options.run))
    return context.print_result(run.as_dict, lambda: print_run(run, sys.stdout))


@command(
    "checkpoint", "settle what a command that runs has finished writing; it goes on", "fumehood checkpoint last",
    RUN, *RUN_FILTER_OPTIONS,
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
        session = _check_session(context, options.session)
    else:
        runs = context.store.running(RunFilter(project=context.project.id))
        if (latest_run := next((run for run in runs if run.session), None)) is None:
            raise BadRequest("no command of a session runs now", hint="fumehood ps shows what runs; --session NAME")
        session = (latest_run.session or "") if latest_run.draft is None else draft_session_name(latest_run.draft)
    networks = {run.network for run in context.store.running() if run.session == session}
    if networks == {FULL}:
        message = f"session {session} has the whole network: its ports are open on this machine already"
        raise BadRequest(message, hint=f"use http://127.0.0.1:{options.port}/ without forward")
    local_port = options.to or options.port
    try:
        listener = socket.create_server(("127.0.0.1", local_port))
    except OSError as error:
        hint = f"another one: fumehood forward {options.port} --to …"
        raise BadRequest(f"port {local_port} can't be opened here: {error.strerror}", hint=hint) from error
    answer = {
        "address": "127.0.0.1",
        "port": local_port,
        "session": session,
        "to": options.port,
        "draft": options.draft,
    }
    owner = f"session {printable(session)}" if options.draft is None else f"draft {printable(options.draft)}"
    with listener:
        context.print_result(
            answer, f"http://127.0.0.1:{local_port}/ is port {options.port} of {owner}; Ctrl-C ends it"
        )
        sys.stdout.flush()
        try:
            loopback.serve(context.store, session, options.port, listener, lambda text: print(text, file=sys.stderr))
        except KeyboardInterrupt:
            return 0


def _check_session(context: Context, name: str) -> str:
    if context.store.sessions.find(name) is None:
        raise BadRequest(f"there is no session {name}", hint="fumehood log shows the names of sessions")
    return name


_MAX_MISSED = 5  # unanswered questions that are shown


@command(
    "ask", "let an agent's commands reach a host, see a path of the home, or write a directory",
    "fumehood ask example.org --session claude-1\nfumehood ask --show ~/.npmrc",
    argument("hosts", nargs="*", metavar="HOST"),
    repeated_option("--show", "PATH", "a path of the home, to be read", default=[]),
    repeated_option("--write", "DIR", "a directory, to be written", default=[]),
    repeated_option("--host", "HOST", "as HOST", default=[]),
    option("--reason", "TEXT", "why, for whoever is asked", default=""),
    option("--session", "NAME", "for this session only"), *RUN_FILTER_OPTIONS,
)  # fmt: skip
def _ask(context: Context) -> int:
    """Ask the person at this terminal; a request from inside the hood has no terminal, and goes to the desk."""
    options, store = context.options, context.store
    words = [*options.hosts, *options.host, *(f"--show={path}" for path in options.show)]
    words += [*(f"--write={path}" for path in options.write), f"--reason={options.reason}"]
    requests = access_requests(words, lambda path: os.path.join(working_dir(), os.path.expanduser(path)))
    project = store.projects.open(context.project.path)
    session_name = options.only_session or options.session
    session = _check_session(context, session_name) if session_name else ""
    may_ask = () if options.only_session else terminal_asker
    permissions = Permissions(store, may_ask, patience_s=store.policy_of(project).ask_timeout)
    answer = decide_access(store, project, session, requests, permissions.decide)
    return context.print_result({"asked": [each.fields() for each in requests], "said": answer}, answer)


@command(
    "status", "show what runs, what waits, what was taken back last, and what commands may do here",
    "fumehood status\nfumehood status --session claude-1", option("--session", "NAME", "for this session only"),
    *RUN_FILTER_OPTIONS,
)  # fmt: skip
def _status(context: Context) -> int:
    options, store = context.options, context.store
    project = context.project
    session = options.only_session or options.session or ""
    policy = add_granted_access(store.policy_of(project), store.grants.allowed(project.path, session))
    own_filter = RunFilter(project=project.id, sessions=(session,) if session else ())
    held = store.history.runs(context.run_filter, own_filter, among=set(store.history.held_runs(project.id)))
    running = store.running(context.run_filter, own_filter)
    network = policy.network if policy.network != "none" or not policy.hosts else "hosts"
    is_agent = bool(options.only_session)
    missed = [] if is_agent else missed_questions(store, project.path)
    asked = [] if is_agent else Desk(store.places).waiting()
    questions = [each for each in asked if each.question.project in ("", project.path)]
    drafts = store.drafts.open_drafts(project.id)
    last_undo = next(store.history.undos_in_force(context.run_filter, own_filter), None)
    undone_run = store.history.find(last_undo.of) if last_undo is not None and last_undo.of is not None else None
    is_in_part = undone_run is not None and undone_run.state != "undone"
    hooks_off = hooks_switched_off(project.path)
    result = {
        "project": project.path, "session": session or None, "roots": list(project.roots), "network": network,
        "hooks_off": hooks_off, "hosts": list(policy.hosts), "show": list(policy.show),
        "held": [_run_fields(run) for run in held], "running": [_run_fields(run) for run in running],
        "drafts": [draft.name for draft in drafts],
        "taken_back": None if undone_run is None else {**_run_fields(undone_run), "in_part": is_in_part},
        "questions": [each.as_dict() for each in questions], "missed": [each.fields() for each in missed],
    }  # fmt: skip
    now_s, paint, columns = time.time(), Paint(), terminal_width()
    rows: list[tuple[str, str]] = [("project", project.path)]
    rows += [("session", session)] if session else []
    rows += [("WARNING", sentence) for sentence in hooks_off]
    rows += [
        ("running", f"{run_label(run)}  {format_elapsed(now_s - run.started_at)}  {run.command}") for run in running
    ]
    rows += [("waiting", f"{run_label(run)}  {run.command}") for run in held]
    rows += [("", "fumehood review")] if held and not is_agent else []
    rows += [("draft", f"{draft.name}  (fumehood draft diff {draft.name})") for draft in drafts]
    if undone_run is not None and last_undo is not None:
        rows += [("undone", f"{run_label(undone_run)}{'  in part:' if is_in_part else ''}  {undone_run.command}")]
        rows += [("", "fumehood redo" if has_backups(last_undo) else "its backups were cleaned away")]
    rows += [("question", f"{each.question.lines[0]}  (fumehood watch)") for each in questions]
    for each in missed[:_MAX_MISSED]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.at))
        rows += [("missed", f"{when}  {each.text}"), *([("", each.ahead)] if each.ahead else [])]
    if not (running or held or drafts or undone_run or questions or missed):
        rows += [("", "nothing runs, nothing waits")]
    for name, values in (("write", project.roots), ("hosts", policy.hosts), ("shown", policy.show)):
        rows += [(name, value) for value in values]
    rows += [("network", network)]
    fitted_rows = [
        (name, fit_columns(printable(text), columns - 10) if columns else shorten(text)) for name, text in rows
    ]
    lines = (f"{paint(f'{name:9}', 'dim')} {text if name else paint(text, 'dim')}" for name, text in fitted_rows)
    return context.print_result(result, lines)


def _run_fields(run: Run) -> dict[str, object]:
    return pick_fields(run, "run number command")
