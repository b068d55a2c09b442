"""Commands that look: log, show, diff, output."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from fumehood.core.report import printable
from fumehood.faces.cli.commands import Add, Context, add_reach, add_run, paint
from fumehood.faces.cli.show import headline, lines, short
from fumehood.faces.cli.sink import ModelText, sink_to
from fumehood.faces.cli.standing import here, whole_number
from fumehood.service.differences import differences, each_difference
from fumehood.store.history import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fumehood.core.connection import Connection
    from fumehood.core.report import Run
    from fumehood.store.audit import Event


_COLOURS = {"applied": "green", "held": "yellow", "failed": "red", "refused": "red", "undone": "cyan"}
_WIDEST = 60


def add_commands(add: Add) -> None:
    """Make these commands known."""
    log = add("log", "list what ran, the latest first", _log, "  fumehood log\n  fumehood log -n 5 --json")
    log.add_argument(
        "-n", "--limit", type=whole_number(), default=20, metavar="N", help="how many (default: 20; 0 means all)"
    )
    log.add_argument("--all", action="store_true", help="show the runs of every project")
    log.add_argument("--session", metavar="NAME", help="show the runs of this session only")
    show = add("show", "show everything about a run", _show, "  fumehood show last")
    add_run(show, default="last")
    diff = add("diff", "show what a run changed, line by line", _diff, "  fumehood diff\n  fumehood diff last src/a.py")
    add_run(diff, default="last")
    diff.add_argument(
        "paths", nargs="*", default=(), metavar="PATH",
        help="only these, and what is in them: absolute, from here, or as the report shows them",
    )  # fmt: skip
    output = add("output", "print all that a run printed", _output, "  fumehood output last | less")
    add_run(output, default="last")
    for command in (log, show, diff, output):
        add_reach(command)


def _log(context: Context) -> int:
    options = context.options
    project = None if options.all else context.project.id
    asked_for = Reach(project=project, sessions=() if options.session is None else (options.session,))
    runs = context.store.history.runs(context.reach, asked_for, limit=options.limit)
    counts = context.store.history.count_changes([run.run for run in runs])
    if context.as_json:
        return context.say(_audit(context, runs, counts), lambda: None)

    cleanings = {} if asked_for.sessions else context.store.audit.cleanings([run.run for run in runs], project)

    def show() -> None:
        colour = paint()
        if not runs:
            sys.stdout.write("nothing has run here yet; fumehood run -- COMMAND\n")
        for session, group in _grouped(runs):
            if session is not None:
                sys.stdout.write(f"session {colour(printable(session), 'bold')}\n")
            for run in group:
                indent = "  " if session is not None else ""
                for event in reversed(cleanings.get(run.run, ())):
                    sys.stdout.write(f"{indent}{_event(event, colour)}\n")
                sys.stdout.write(f"{indent}{_log_line(run, counts[run.run], colour)}\n")

    return context.say(None, show)


def _audit(context: Context, runs: Sequence[Run], counts: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """Tell all there is to know of runs: who asked, what ran, what was decided and by whom, what changed."""
    events = context.store.audit.of([run.run for run in runs])
    return [
        {
            "run": run.run, "project": run.project, "command": run.command, "cwd": run.cwd, "state": run.state,
            "reason": run.reason, "act": run.act, "of": run.of, "exit_code": run.exit_code, "session": run.session,
            "timed_out": run.timed_out, "started_at": run.started_at, "duration_s": run.duration_s,
            "sandboxed": run.sandboxed, "capture": run.capture, "network": run.network, "changes": counts[run.run],
            "paths": [{**change.fields(), "flags": list(change.flags)} for change in run.changes],
            "blocked": [blocked.fields() for blocked in run.blocked],
            "hosts": list(run.hosts), "connections": [each.fields() for each in run.connections],
            "events": [event.fields() for event in events[run.run]],
        }
        for run in runs
    ]  # fmt: skip


def _grouped(runs: list[Run]) -> list[tuple[str | None, list[Run]]]:
    """Put the runs of one session together, where its latest stands."""
    groups: list[tuple[str | None, list[Run]]] = []
    begun: dict[str, list[Run]] = {}
    for run in runs:
        if run.session in begun:
            begun[run.session].append(run)
            continue
        groups.append((run.session, [run]))
        if run.session is not None:
            begun[run.session] = groups[-1][1]
    return groups


def _log_line(run: Run, counts: dict[str, int], colour: Callable[[str, str], str]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at))
    state = colour(f"{run.outcome:12}", _COLOURS.get(run.state, "dim"))
    code = "" if not run.exit_code else colour(f" exit {run.exit_code}", "red")
    command = printable(run.command)
    command = command if len(command) <= _WIDEST else command[: _WIDEST - 1] + "…"
    bare = "" if run.sandboxed else colour(" UNSANDBOXED", "red")
    gone = "" if run.layer or run.state != "applied" else colour(" backups cleaned away", "dim")
    return f"{short(run.run)}  {colour(when, 'dim')}  {state} {_counted(counts):14} {command}{code}{bare}{gone}"


def _counted(counts: dict[str, int]) -> str:
    signs = (("added", "+"), ("modified", "~"), ("deleted", "-"), ("mode", "m"), ("type", "t"))
    return " ".join(f"{sign}{counts[kind]}" for kind, sign in signs if counts.get(kind))


def _show(context: Context) -> int:
    run = context.run(context.options.run)
    events = context.store.audit.of([run.run])[run.run]
    told = {**run.as_dict(), "dropped": list(run.dropped), "events": [event.fields() for event in events]}
    return context.say(told, lambda: _tell(run, events))


def _sandbox(run: Run) -> str:
    if run.state == "refused":
        return "nothing ran"
    return f"captured by {run.capture}, network {run.network}" if run.sandboxed else "UNSANDBOXED, network full"


def _tell(run: Run, events: Sequence[Event]) -> None:
    colour = paint()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at))
    facts = {
        "run": run.run,
        "command": run.command,
        "directory": run.cwd,
        "project": run.project,
        "when": f"{when}, {run.duration_s:.3f} s",
        "exit code": "none" if run.exit_code is None else str(run.exit_code),
        "sandbox": _sandbox(run),
        "state": f"{run.state}: {run.reason}" if run.reason else run.state,
    }
    if run.session is not None:
        facts["session"] = run.session
    if run.dropped:
        facts["withheld"] = ", ".join(run.dropped)
    if run.hosts:
        facts["hosts"] = ", ".join(run.hosts)
    for name, value in facts.items():
        sys.stdout.write(f"{colour(f'{name:13}', 'dim')}{printable(value)}\n")
    for connection in run.connections:
        sys.stdout.write(f"{colour('connection   ', 'dim')}{_connection(connection, colour)}\n")
    if run.found:
        sys.stdout.write(f"{headline(run)}\n")
        for line in lines(run, colour, most=len(run.found)):
            sys.stdout.write(f"  {line}\n")
    for event in events:
        sys.stdout.write(f"{_event(event, colour)}\n")


def _event(event: Event, colour: Callable[[str, str], str]) -> str:
    """Write one event in a line: when, what, by whom."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    by = f"{event.user or event.uid}, {event.face}" + (f", {event.agent}" if event.agent else "")
    detail = f"  {printable(event.detail)}" if event.detail else ""
    return f"{colour(when, 'dim')}  {event.act:9}{detail}  {colour(f'({printable(by)})', 'dim')}"


def _connection(found: Connection, colour: Callable[[str, str], str]) -> str:
    """Write one connection: with whom, how much went out and in, and why not."""
    from fumehood.core.hosts import shown

    name = printable(shown(found.host, found.port) if found.port else found.host or "unknown")
    times = f" {found.count} times" if found.count > 1 else ""
    if not found.allowed:
        return f"{colour('refused', 'red')} {name}{times}: {printable(found.reason)}"
    moved = f"{found.sent} B out, {found.received} B in, {found.duration_s:.1f} s"
    if found.reason:
        moved = f"not reached: {printable(found.reason)}"
    place = f" at {found.address}" if found.address else ""
    return f"{colour('allowed', 'green')} {name}{times}{place} ({found.protocol}) {moved}"


def _diff(context: Context) -> int:
    run = context.run(context.options.run)
    wanted = context.store, run, context.options.paths
    if context.as_json:
        return context.say([each.fields() for each in differences(*wanted, here=here())], lambda: None)
    for each in each_difference(*wanted, here=here()):
        write_difference(each.text)
    return 0


def write_difference(text: str) -> None:
    """Write one difference: in colour for a person, byte for byte for a program, which may give it to patch."""
    if not os.isatty(1):
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
        return
    colour = paint()
    for line in text.split("\n")[:-1]:
        shown = "\t".join(printable(part) for part in line.split("\t"))
        sys.stdout.write(f"{_coloured(shown, colour)}\n")


def _coloured(line: str, colour: Callable[[str, str], str]) -> str:
    if line.startswith(("+++", "---", "diff ")):
        return colour(line, "bold")
    for start, name in (("+", "green"), ("-", "red"), ("@@", "cyan")):
        if line.startswith(start):
            return colour(line, name)
    return line


def _output(context: Context) -> int:
    run = context.run(context.options.run)

    def show() -> None:
        sys.stdout.flush()
        sink = sys.stdout.write if isinstance(sys.stdout, ModelText) else sink_to(1)
        for name, text in (("stdout", run.stdout), ("stderr", run.stderr)):
            try:
                for piece in context.store.history.printed(run.run, name):
                    sink(piece)
            except FileNotFoundError:
                sink(text.encode())
        sink(b"")

    return context.say({"run": run.run, "stdout": run.stdout, "stderr": run.stderr,
                        "output_truncated": run.output_truncated}, show)  # fmt: skip
