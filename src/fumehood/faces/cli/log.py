"""Commands about past runs: log, show, diff, output.

`log` lists the runs, the latest first, each in a line as wide as the terminal; `log --graph` also draws which run built
on which.

`diff` shows what a run changed. With `--difftool`, each file is shown in the difftool that the person has configured
for git. Both versions are first copied to a temporary directory outside of any repository, so the tool gets these two
files, and git reads only the person's own settings, nothing that a command wrote.

A long text goes to the person's own pager, on its standard input. The pager opens no file that a command wrote, and
`less` is told to open none by itself. It starts in /, so that no relative entry of PATH leads into the project.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any

from fumehood.core import changes as c
from fumehood.core.hosts import with_port
from fumehood.core.judge import object_store_of
from fumehood.core.report import Connection, Run, how_many, pick_fields, printable
from fumehood.core.request import draft_session_name
from fumehood.core.wording import fit_columns, format_elapsed
from fumehood.errors import BadRequest, Unavailable
from fumehood.faces.cli.commands import RUN_FILTER_OPTIONS, Context, argument, command, flag, option, optional_run
from fumehood.faces.cli.output import (
    COMMAND_WIDTH,
    ModelText,
    Paint,
    TerminalSafeText,
    sink_to,
    terminal_width,
    whole_number,
    working_dir,
)
from fumehood.faces.cli.run_text import (
    SIGNS,
    STATES,
    draft_or_session,
    event_line,
    headline,
    lines_by_directory,
    run_label,
)
from fumehood.service.differences import differences, each_difference
from fumehood.service.layers import MEND, unrecorded_directories
from fumehood.service.settle import changes_at
from fumehood.service.versions import contents
from fumehood.store.audit import Event
from fumehood.store.history import CHECKPOINT, UNFINISHED, History, RunFilter
from fumehood.store.records import file_pieces
from fumehood.store.search import applied_in, first_changes

# The fields of a run in `log --json`.
_RUN_FIELDS = """run number project command cwd state reason act of exit_code session timed_out started_at duration_s
    sandboxed capture network"""
_MAX_PATHS = 20  # of each run in `log --json`; `show --json` has them all
_MAX_COMPARED = 500  # changes of a run that are compared with earlier runs
_MIN_COLUMNS = 16  # for a command or a path, however narrow the terminal is
_MAX_LANES = 8  # lines beside each other in the graph
# The signs of a graph: a run, an undone run, an undo, a line down, a line across, a corner that opens, one that closes.
_GRAPH_SIGNS, _ASCII_GRAPH_SIGNS = "●✗↶│─╮╯", "*x<|-.'"
_NARROW_COLUMNS = 100  # in a narrower terminal, times have no year and no seconds
_DIFF_COLOURS = {"+++": "bold", "---": "bold", "diff ": "bold", "+": "green", "-": "red", "@@": "cyan"}
_FOLLOW_INTERVAL_S = 0.2


@command(
    "log", "list what ran, the latest first", "fumehood log\nfumehood log --graph\nfumehood log -n 5 --json",
    option("-n --limit", "N", "how many (default: 20; 0 means all)", type=whole_number(), default=20),
    flag("--all", "show the runs of every project"),
    option("--session", "NAME", "show the runs of this session only"),
    flag("--graph", "draw which run built on which, and what was taken back"), *RUN_FILTER_OPTIONS,
)  # fmt: skip
def _log(context: Context) -> int:
    options, history = context.options, context.store.history
    project = None if options.all else context.project.id
    wanted_runs = RunFilter(project=project, sessions=() if options.session is None else (options.session,))
    runs = history.runs(context.run_filter, wanted_runs, limit=options.limit)
    counts = history.count_changes([run.run for run in runs])
    if context.as_json:
        events = context.store.audit.events_of([run.run for run in runs])
        listed = [
            {
                **pick_fields(run, _RUN_FIELDS), "changes": counts[run.run],
                "path_count": sum(counts[run.run].values()),
                "paths": run.fields_of(first_changes(history.database, run.run, _MAX_PATHS)),
                "blocked": [blocked.fields() for blocked in run.blocked],
                "hosts": list(run.hosts), "connections": [each.fields() for each in run.connections],
                "events": [event.fields() for event in events[run.run]],
            }
            for run in runs
        ]  # fmt: skip
        return context.print_result({"runs": listed}, ())
    if not runs:
        lost = len(unrecorded_directories(context.store))
        hint = f"nothing is recorded; directories of runs without a record: {lost}; {MEND}" if lost else ""
        where = "here" if options.session is None else f"in session {printable(options.session)}"
        print(hint or f"nothing has run {where} yet; fumehood run -- COMMAND")
    paint, lines = Paint(), _RunLines(runs, counts)
    if options.graph:
        bases = {run.run: _find_bases(history, run, runs[place:]) for place, run in enumerate(runs)}
        names = {run.run: f"#{run.number}" for run in runs}
        encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
        graph_rows = list(_graph(runs, bases, _GRAPH_SIGNS if encoding.startswith("utf") else _ASCII_GRAPH_SIGNS))
        graph_width = max(map(len, graph_rows), default=0)
        for run, graph_row in zip(runs, graph_rows, strict=True):
            others = [names[each] for each in bases[run.run]]
            verb = "of" if run.act in ("undo", CHECKPOINT) else "on"
            note = f"  ← {verb} {', '.join(others)}" if others else ""
            print(lines.format(run, paint, before=f"{graph_row:{graph_width}} ", after=note))
        return 0
    cleanings = {} if wanted_runs.sessions else context.store.audit.cleanings([run.run for run in runs], project)
    # The runs of one session, or of one draft, are listed together, at the place of the latest one.
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        group_name = draft_or_session(run, lambda name: name) or ("" if options.all else run.run)
        groups.setdefault((run.project if options.all else "", group_name), []).append(run)
    for (path, _), group in groups.items():
        heading = draft_or_session(group[0], lambda name: paint(printable(name), "bold"))
        if options.all:
            heading = f"project {paint(printable(path), 'bold')}{'  ' if heading else ''}{heading}"
        print(f"{heading}\n" if heading else "", end="")
        indent = "  " if heading else ""
        for run in group:
            for event in reversed(cleanings.get(run.run, ())):
                print(f"{indent}{event_line(event, paint)}")
            print(lines.format(run, paint, before=indent))
    return 0


class _RunLines:
    """Formats runs as lines with aligned columns, not wider than the terminal."""

    def __init__(self, runs: Sequence[Run], counts: dict[str, dict[str, int]]) -> None:
        self._changes = {
            run.run: " ".join(f"{sign}{counts[run.run][kind]}" for kind, (sign, _) in SIGNS.items()
                              if counts[run.run].get(kind))
            for run in runs
        }  # fmt: skip
        self._number_width = max((len(str(run.number)) + 1 for run in runs), default=0)
        self._state_width = max((len(run.outcome) for run in runs), default=0)
        self._changes_width = max((len(each) for each in self._changes.values()), default=0)
        self._width = terminal_width()
        self._time_format = "%m-%d %H:%M" if 0 < self._width < _NARROW_COLUMNS else "%Y-%m-%d %H:%M:%S"

    def format(self, run: Run, paint: Paint, *, before: str = "", after: str = "") -> str:
        """Return a run's line: number, time, outcome, numbers of changes, and as much of the command as fits."""
        started_at = time.strftime(self._time_format, time.localtime(run.started_at))
        cells = [
            (f"{before}{f'#{run.number}':{self._number_width}}  ", ""), (f"{started_at}  ", "dim"),
            (f"{run.outcome:{self._state_width}}", STATES.get(run.state, "dim")),
            (f"  {self._changes[run.run]:{self._changes_width}} ", ""),
        ]  # fmt: skip
        last_cells = [
            (f" exit {run.exit_code}" if run.exit_code else "", "red"),
            ("" if run.sandboxed else " UNSANDBOXED", "red"),
            ("" if run.layer or run.state != "applied" else " backups cleaned away", "dim"), (after, "dim"),
        ]  # fmt: skip
        used = sum(len(text) for text, _ in cells + last_cells)
        command_width = max(self._width - used, _MIN_COLUMNS) if self._width else COMMAND_WIDTH
        cells += [(fit_columns(printable(run.command), command_width), ""), *last_cells]
        return "".join(paint(text, colour) if text and colour else text for text, colour in cells)


def _find_bases(history: History, run: Run, earlier: Sequence[Run]) -> list[str]:
    """Return which of the earlier runs this run is based on.

    These are the run that it undoes, held runs whose changes it saw, and the last runs that changed the same paths.
    """
    earlier_ids = {each.run for each in earlier} - {run.run}
    if run.of is not None:
        return [run.of] if run.of in earlier_ids else []
    changes = [each for each in first_changes(history.database, run.run, _MAX_COMPARED) if each.verdict == c.APPLIED]
    last_run_by_path: dict[tuple[int, str], str] = {}
    for root, directory in dict.fromkeys((each.root, each.path.rpartition("/")[0]) for each in changes):
        for name, each in applied_in(history.database, run, run.roots[root], directory):
            if name in earlier_ids:
                last_run_by_path.setdefault((root, each.path), name)
    last_runs = [last_run_by_path.get((each.root, each.path), "") for each in changes]
    return [name for name in dict.fromkeys([*run.below, *last_runs]) if name in earlier_ids]


def _graph(runs: Sequence[Run], bases: dict[str, list[str]], signs: str) -> Iterator[str]:
    """Yield the part of the graph for the line of each run, the latest first: its sign, and lines down to its bases."""
    at_run, undone, undo, line, across, opens, closes = list(signs)
    lanes: list[str] = []  # for each column, the run to which its line goes down, or ""
    for run in runs:
        own_lanes = [place for place, name in enumerate(lanes) if name == run.run]
        place = own_lanes[0] if own_lanes else _free_lane(lanes)
        # More lines would leave no room for the text, which names the bases anyway.
        room = _MAX_LANES - sum(bool(name) and name != run.run for name in lanes)
        others = [name for name in bases[run.run] if name not in lanes][: max(0, room)]
        lanes[place] = run.run
        opened = [] if not others else [place]
        for _ in others[1:]:
            opened.append(_free_lane(lanes, after=place))
            lanes[opened[-1]] = run.run
        ends = [*own_lanes[1:], *opened[1:]]
        cells = []
        for lane in range(len(lanes)):
            sign = line if lanes[lane] else " "
            if lane == place:
                sign = undo if run.act == "undo" else undone if run.state == "undone" else at_run
            elif lane in ends:
                sign = opens if lane in opened else closes
            elif ends and place < lane < max(ends) and not lanes[lane]:
                sign = across
            cells.append(sign + (across if ends and place <= lane < max(ends) else " "))
        yield "".join(cells).rstrip()
        for lane in {place, *own_lanes}:
            lanes[lane] = ""
        for lane, name in zip(opened, others, strict=True):
            lanes[lane] = name
        while lanes and not lanes[-1]:
            lanes.pop()


def _free_lane(lanes: list[str], after: int = -1) -> int:
    """Return a free lane to the right of another, adding one if there is none."""
    for lane in range(after + 1, len(lanes)):
        if not lanes[lane]:
            return lane
    lanes.append("")
    return len(lanes) - 1


@command("show", "show everything about a run", "fumehood show last", optional_run("last"), *RUN_FILTER_OPTIONS)
def _show(context: Context) -> int:
    run = context.run(context.options.run)
    events = context.store.audit.events_of([run.run])[run.run]
    more = {"dropped": list(run.dropped), "events": [event.fields() for event in events]}
    return context.print_result(lambda: {**run.as_dict(), **more}, _detail_lines(context, run, events))


def _detail_lines(context: Context, run: Run, events: Sequence[Event]) -> Iterator[str]:
    def name_runs(text: str) -> str:
        """Replace the run's id at the end of a recorded text ("undone by run …") by its number."""
        before, by, name = text.rpartition("by run ")
        return f"{before}{by}{context.store.history.name_of(name)}" if by else text

    paint = Paint()
    sandbox = f"captured by {run.capture}, network {run.network}" if run.sandboxed else "UNSANDBOXED, network full"
    is_running = run.state == "running"
    duration = f"for {format_elapsed(time.time() - run.started_at)}" if is_running else f"{run.duration_s:.3f} s"
    started_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at))
    details = {
        "run": f"{run_label(run)}, {run.run}" if run.name != run.run else run.run,
        "command": run.command,
        "directory": run.cwd,
        "project": run.project,
        "when": f"{started_at}, {duration}",
    }
    if run.has_command or run.exit_code is not None:
        details["exit code"] = "none" if run.exit_code is None else str(run.exit_code)
    details["sandbox"] = sandbox if run.has_command else "nothing ran"
    details["state"] = f"{run.state}: {run.reason}" if run.reason else run.state
    if run.draft_name is not None:
        details["draft"] = run.draft_name
    if run.session is not None and (run.draft is None or run.session != draft_session_name(run.draft)):
        details["session"] = run.session
    if run.dropped:
        details["withheld"] = ", ".join(run.dropped)
    if run.hosts:
        details["hosts"] = ", ".join(run.hosts)
    yield from (f"{paint(f'{name:13}', 'dim')}{printable(value)}" for name, value in details.items())
    yield from (f"{paint('connection   ', 'dim')}{_connection_text(each, paint)}" for each in run.connections)
    for change in run.changed:
        change.reason = name_runs(change.reason)
    if run.changed:
        yield headline(run)
        yield from (f"  {text}" for text in lines_by_directory(run, paint))
    yield from (event_line(event.replace(detail=name_runs(event.detail)), paint) for event in events)


def _connection_text(connection: Connection, paint: Callable[[str, str], str]) -> str:
    """Return one connection as text: the host, the bytes sent and received, or why it was refused."""
    name = printable(with_port(connection.host, connection.port) if connection.port else connection.host or "unknown")
    times = f" {connection.count} times" if connection.count > 1 else ""
    if not connection.allowed:
        return f"{paint('refused', 'red')} {name}{times}: {printable(connection.reason)}"
    traffic = f"{connection.sent} B out, {connection.received} B in, {connection.duration_s:.1f} s"
    if connection.reason:
        traffic = f"{traffic if connection.sent else 'not reached'}: {printable(connection.reason)}"
    address = f" at {connection.address}" if connection.address else ""
    return f"{paint('allowed', 'green')} {name}{times}{address} ({connection.protocol}) {traffic}"


@command(
    "diff", "show what a run changed, line by line", "fumehood diff --stat\nfumehood diff last src/a.py",
    optional_run("last"),
    argument("paths", nargs="*", default=(), metavar="PATH",
             help="only these, and what is in them: absolute, from here, or as the report shows them"),
    flag("--stat", "only how many lines of each path"), flag("--difftool", "in the difftool that git is set to use"),
    option("--tool", "NAME", "in this one (git difftool --tool-help)"),
    flag("--no-pager", "print it here, not through $PAGER (default: less)"), *RUN_FILTER_OPTIONS,
)  # fmt: skip
def _diff(context: Context) -> int:
    options, run = context.options, context.run(context.options.run)
    if options.tool or options.difftool:
        if context.as_json:
            raise BadRequest("--json and --difftool can't be used together", hint="choose one")
        return _show_in_difftool(context, run)
    return print_differences(context, run, options.paths, {"run": run.run})


def print_differences(context: Context, run: Run, paths: Sequence[str], about: dict[str, object]) -> int:
    """Print what a run changed, or a draft would change: in full, or with --stat as counts of lines.

    `about` has the first fields of the JSON result.
    """
    options = context.options
    # An agent is not shown what its policy hides; a person sees everything.
    policy = None if options.only_session is None else context.store.policy_of(context.project)
    selection = context.store, run, paths
    if options.stat:
        counts = [
            {
                "path": each.path, "root": each.root, "change": each.change, "kind": each.kind, "binary": each.binary,
                "added": lines[0], "removed": lines[1],
            }
            for each in each_difference(*selection, here=working_dir(), hidden_by=policy)
            for lines in [each.line_counts]
        ]  # fmt: skip
        return _print_stat(context, run, about, counts)
    if context.as_json:
        differences_found = [each.fields() for each in differences(*selection, here=working_dir(), hidden_by=policy)]
        return context.print_result({**about, "differences": differences_found}, ())
    with _pager(context.store.safe_path(), wanted=not options.no_pager):
        objects = 0
        for each in each_difference(*selection, here=working_dir(), hidden_by=policy):
            if not paths and object_store_of(f"/{each.path}"):
                objects += 1
            else:
                print_difference(each.text)
        if objects:
            print_difference(f"not shown: {how_many(objects, 'object')} of git\n")
    return 0


def _print_stat(context: Context, run: Run, about: dict[str, object], counts: Sequence[dict[str, Any]]) -> int:
    """Print how many lines of each path were added and removed, with a bar if the terminal has room for one."""
    added, removed = (sum(each[name] for each in counts) for name in ("added", "removed"))
    paint, columns = Paint(), terminal_width() or 80
    names = [
        printable(each["path"] if each["root"] == run.roots[0] else f"{each['root']}/{each['path']}") for each in counts
    ]
    name_width = min(max(map(len, names), default=0), max(columns - 24, _MIN_COLUMNS))
    most_lines = max((each["added"] + each["removed"] for each in counts), default=0)
    scale = min(1.0, max(columns - name_width - 12, 0) / most_lines) if most_lines else 0.0
    output_lines = []
    for each, name in zip(counts, names, strict=True):
        sign, colour = SIGNS[each["change"]]
        plus, minus, kind = each["added"], each["removed"], each["kind"]
        bar = paint("+" * ceil(plus * scale), "green") + paint("-" * ceil(minus * scale), "red")
        has_lines = plus or minus or kind == c.FILE
        summary = "binary" if each["binary"] else f"{plus + minus:5} {bar}" if has_lines else kind
        shown_name = name if len(name) <= name_width else f"…{name[1 - name_width :]}"
        output_lines.append(f"{paint(sign, colour)} {shown_name:{name_width}} | {summary}".rstrip())
    output_lines.append(f"{how_many(len(counts), 'path')}, {how_many(added, 'line')} added, {removed} removed")
    return context.print_result({**about, "paths": counts, "added": added, "removed": removed}, output_lines)


def print_difference(text: str) -> None:
    """Print one difference: in colour on a terminal, else byte for byte, because the reader may be `patch`."""
    if not os.isatty(1):
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
        return
    paint = Paint()
    for line in text.split("\n")[:-1]:
        shown = "\t".join(printable(part) for part in line.split("\t"))
        start = next((start for start in _DIFF_COLOURS if line.startswith(start)), None)
        print(shown if start is None else paint(shown, _DIFF_COLOURS[start]))


@command(
    "output", "print all that a run printed", "fumehood output last | less",
    optional_run("last"), flag("--follow", "go on while the command runs"), *RUN_FILTER_OPTIONS,
)  # fmt: skip
def _output(context: Context) -> int:
    options, store, run = context.options, context.store, context.run(context.options.run)
    sys.stdout.flush()
    sink = sys.stdout.write if isinstance(sys.stdout, ModelText) else sink_to(1)
    printed_bytes = {"stdout": 0, "stderr": 0}  # bytes
    while options.follow and run.state in UNFINISHED:
        # With --json, the object has all of it at the end.
        for name, count in printed_bytes.items() if not context.as_json else ():
            try:
                for piece in file_pieces(store.places.output(run.run, name), count):
                    printed_bytes[name] += len(piece)
                    sink(piece)
            except FileNotFoundError:
                continue  # nothing is printed yet, or the run is just ending
        time.sleep(_FOLLOW_INTERVAL_S)
        store.recover()  # so that the loop ends if the process of the run has died
        run = store.history.find(run.run)
    extra_fields = " state exit_code" if options.follow else ""
    if context.print_if_json(lambda: pick_fields(run, f"run stdout stderr output_truncated{extra_fields}")):
        return 0
    for name, count in printed_bytes.items():
        skipped = count
        for piece in store.history.output_pieces(run.run, name):
            if len(piece) > skipped:
                sink(piece[skipped:])
            skipped = max(0, skipped - len(piece))
    sink(b"")
    return 0


def _show_in_difftool(context: Context, run: Run) -> int:
    """Show each changed file in the person's difftool, one after the other; other paths are only named."""
    options, path = context.options, context.store.safe_path()
    git = shutil.which("git", path=path)
    if git is None:
        raise Unavailable("a difftool is found and started by git, which is not here", hint="fumehood diff without it")
    skipped = []
    with tempfile.TemporaryDirectory(prefix="fumehood-diff-") as directory:
        environment = {**os.environ, "PATH": path, "GIT_CEILING_DIRECTORIES": os.path.dirname(directory)}
        for number, change in enumerate(changes_at(run, options.paths, here=working_dir())):
            if change.kind != c.FILE or change.change == c.MODE:
                skipped.append(f"not shown: {change.change} {change.kind} {printable(change.path)}")
                continue
            name, files = os.path.basename(change.path), []
            for side, content in zip(("before", "after"), contents(context.store, run, change), strict=True):
                os.makedirs(f"{directory}/{number}/{side}")
                # Not under a name that git itself reads, such as .gitattributes.
                files.append(f"{directory}/{number}/{side}/{'_' if name.startswith('.') else ''}{name}")
                with open(files[-1], "xb") as file:
                    file.write(content)
            tool = [f"--tool={options.tool}"] if options.tool else []
            command = [git, "difftool", "--no-index", "--no-prompt", *tool, "--", *files]
            code = subprocess.run(command, cwd=directory, env=environment, check=False).returncode
            if code not in (0, 1):  # 0: no difference, 1: some difference
                raise BadRequest(
                    f"git difftool failed with {code} on {printable(change.path)}",
                    hint="git difftool --tool-help lists those that can be used",
                )
    print("".join(f"{line}\n" for line in skipped), end="")
    return 0


@contextmanager
def _pager(path: str, *, wanted: bool) -> Iterator[None]:
    """Send standard output to a pager for a `with` block, if it is a terminal; the pager is found in this PATH."""
    pager = os.environ.get("PAGER", "command -v less >/dev/null && exec less; exec cat").strip()
    if not wanted or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb" or pager in ("", "cat"):
        yield
        return
    hidden = ("LESSOPEN", "LESSCLOSE")  # programs that less would start
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {"LESS": "FRX", **environment, "LESSSECURE": "1", "PATH": path}
    process = subprocess.Popen(["/bin/sh", "-c", pager], stdin=subprocess.PIPE, cwd="/", env=environment)
    assert process.stdin is not None
    before, interrupt = sys.stdout, signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
    sys.stdout = TerminalSafeText(io.TextIOWrapper(process.stdin, encoding="utf-8", errors="backslashreplace"))
    try:
        with suppress(BrokenPipeError):  # the person has left the pager
            yield
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = before
        process.wait()
        signal.signal(signal.SIGINT, interrupt)
