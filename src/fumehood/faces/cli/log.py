"""Commands about what ran: log, show, diff, output.

`log` lists what ran, the latest first, each run in a line as wide as the terminal, and which built on which.

`diff` shows what a run changed; if that is asked for, file by file in the difftool that the person uses with git. Both
versions are copied to a directory of our own first, where no repository is: the tool gets these two files, and git
reads the person's own settings and nothing that a command wrote.

A long text is read through the person's own pager. It gets the text on its standard input and nothing else: it opens no
file that a command wrote, and `less` is told to open none by itself either. It starts in /, so that no relative entry
of PATH leads it into the project.
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
from fumehood.core.judge import objects_of
from fumehood.core.report import Connection, Run, how_many, pick_fields, printable
from fumehood.core.request import draft_session_name
from fumehood.core.wording import elapsed, fitted
from fumehood.errors import BadRequest, Unavailable
from fumehood.faces.cli.commands import REACH_OPTIONS, Context, argument, command, flag, option, optional_run
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
from fumehood.service.differences import contents, differences, each_difference
from fumehood.service.layers import MEND, unknown
from fumehood.service.settle import chosen
from fumehood.store.audit import Event
from fumehood.store.history import CHECKPOINT, UNFINISHED, History, RunFilter
from fumehood.store.records import file_pieces
from fumehood.store.search import applied_in, first_changes

# What the log has for programs of each run.
_OF_A_RUN = """run number project command cwd state reason act of exit_code session timed_out started_at duration_s
    sandboxed capture network"""
_PATHS = 20  # of each run in the log for programs; `show --json` has them all
_LOOKED_AT = 500  # changes of a run that are compared with those of others
_LEAST = 16  # columns of a command or a path, however narrow the terminal
_MOST_LINES = 8  # of a graph, beside each other
# What a graph is drawn with: a run, one that was undone, an undo, lines down and across, one that opens, and closes.
_SIGNS, _PLAIN_SIGNS = "●✗↶│─╮╯", "*x<|-.'"
_NARROW = 100  # columns below which a time is told without its year and seconds
_DIFF_COLOURS = {"+++": "bold", "---": "bold", "diff ": "bold", "+": "green", "-": "red", "@@": "cyan"}
_FOLLOWS_S = 0.2


@command(
    "log", "list what ran, the latest first", "fumehood log\nfumehood log --graph\nfumehood log -n 5 --json",
    option("-n --limit", "N", "how many (default: 20; 0 means all)", type=whole_number(), default=20),
    flag("--all", "show the runs of every project"),
    option("--session", "NAME", "show the runs of this session only"),
    flag("--graph", "draw which run built on which, and what was taken back"), *REACH_OPTIONS,
)  # fmt: skip
def _log(context: Context) -> int:
    options, history = context.options, context.store.history
    project = None if options.all else context.project.id
    asked_for = RunFilter(project=project, sessions=() if options.session is None else (options.session,))
    runs = history.runs(context.reach, asked_for, limit=options.limit)
    counts = history.count_changes([run.run for run in runs])
    if context.as_json:
        events = context.store.audit.events_of([run.run for run in runs])
        listed = [
            {
                **pick_fields(run, _OF_A_RUN), "changes": counts[run.run], "path_count": sum(counts[run.run].values()),
                "paths": run.fields_of(first_changes(history.database, run.run, _PATHS)),
                "blocked": [blocked.fields() for blocked in run.blocked],
                "hosts": list(run.hosts), "connections": [each.fields() for each in run.connections],
                "events": [event.fields() for event in events[run.run]],
            }
            for run in runs
        ]  # fmt: skip
        return context.print_result({"runs": listed}, ())
    if not runs:
        lost = len(unknown(context.store))
        yet = f"nothing is recorded; directories of runs without a record: {lost}; {MEND}" if lost else ""
        where = "here" if options.session is None else f"in session {printable(options.session)}"
        print(yet or f"nothing has run {where} yet; fumehood run -- COMMAND")
    colour, lines = Paint(), _Lines(runs, counts)
    if options.graph:
        below = {run.run: _built_on(history, run, runs[place:]) for place, run in enumerate(runs)}
        names = {run.run: f"#{run.number}" for run in runs}
        encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
        rows = list(_graph(runs, below, _SIGNS if encoding.startswith("utf") else _PLAIN_SIGNS))
        wide = max(map(len, rows), default=0)
        for run, row in zip(runs, rows, strict=True):
            others = [names[each] for each in below[run.run]]
            verb = "of" if run.act in ("undo", CHECKPOINT) else "on"
            note = f"  ← {verb} {', '.join(others)}" if others else ""
            print(lines.line(run, colour, before=f"{row:{wide}} ", after=note))
        return 0
    cleanings = {} if asked_for.sessions else context.store.audit.cleanings([run.run for run in runs], project)
    # The runs of one session, or one draft, are told together, where its latest stands.
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        one = draft_or_session(run, lambda name: name) or ("" if options.all else run.run)
        groups.setdefault((run.project if options.all else "", one), []).append(run)
    for (path, _), group in groups.items():
        heading = draft_or_session(group[0], lambda name: colour(printable(name), "bold"))
        if options.all:
            heading = f"project {colour(printable(path), 'bold')}{'  ' if heading else ''}{heading}"
        print(f"{heading}\n" if heading else "", end="")
        indent = "  " if heading else ""
        for run in group:
            for event in reversed(cleanings.get(run.run, ())):
                print(f"{indent}{event_line(event, colour)}")
            print(lines.line(run, colour, before=indent))
    return 0


class _Lines:
    """Writes runs in lines whose columns are as wide as they must be, and no wider than the terminal."""

    def __init__(self, runs: Sequence[Run], counts: dict[str, dict[str, int]]) -> None:
        self._changes = {
            run.run: " ".join(f"{sign}{counts[run.run][kind]}" for kind, (sign, _) in SIGNS.items()
                              if counts[run.run].get(kind))
            for run in runs
        }  # fmt: skip
        self._number = max((len(str(run.number)) + 1 for run in runs), default=0)
        self._state = max((len(run.outcome) for run in runs), default=0)
        self._change = max((len(each) for each in self._changes.values()), default=0)
        self._width = terminal_width()
        self._time = "%m-%d %H:%M" if 0 < self._width < _NARROW else "%Y-%m-%d %H:%M:%S"

    def line(self, run: Run, colour: Paint, *, before: str = "", after: str = "") -> str:
        """Write a run: its number, when it was, what became of it, what it changed, and as much of it as has room."""
        when = time.strftime(self._time, time.localtime(run.started_at))
        pieces = [
            (f"{before}{f'#{run.number}':{self._number}}  ", ""), (f"{when}  ", "dim"),
            (f"{run.outcome:{self._state}}", STATES.get(run.state, "dim")),
            (f"  {self._changes[run.run]:{self._change}} ", ""),
        ]  # fmt: skip
        ends = [
            (f" exit {run.exit_code}" if run.exit_code else "", "red"),
            ("" if run.sandboxed else " UNSANDBOXED", "red"),
            ("" if run.layer or run.state != "applied" else " backups cleaned away", "dim"), (after, "dim"),
        ]  # fmt: skip
        room = max(self._width - sum(len(text) for text, _ in pieces + ends), _LEAST) if self._width else COMMAND_WIDTH
        pieces += [(fitted(printable(run.command), room), ""), *ends]
        return "".join(colour(text, shade) if text and shade else text for text, shade in pieces)


def _built_on(history: History, run: Run, earlier: Sequence[Run]) -> list[str]:
    """Return those of some earlier runs that a run is about, saw while they waited, or changed the same paths after."""
    listed = {each.run for each in earlier} - {run.run}
    if run.of is not None:
        return [run.of] if run.of in listed else []
    changes = [each for each in first_changes(history.database, run.run, _LOOKED_AT) if each.verdict == c.APPLIED]
    last: dict[tuple[int, str], str] = {}
    for root, directory in dict.fromkeys((each.root, each.path.rpartition("/")[0]) for each in changes):
        for name, each in applied_in(history.database, run, run.roots[root], directory):
            if name in listed:
                last.setdefault((root, each.path), name)
    last_to_change = [last.get((each.root, each.path), "") for each in changes]
    return [name for name in dict.fromkeys([*run.below, *last_to_change]) if name in listed]


def _graph(runs: Sequence[Run], below: dict[str, list[str]], signs: str) -> Iterator[str]:
    """Draw a line's beginning for each run, the latest first: itself, and lines to those below that it is built on."""
    at_run, undone, undo, line, across, opens, closes = list(signs)
    lanes: list[str] = []  # the run that each line goes down to; "" where there is none
    for run in runs:
        mine = [place for place, name in enumerate(lanes) if name == run.run]
        place = mine[0] if mine else _free(lanes)
        # More lines than that leave no room for the words, which name the runs anyway.
        room = _MOST_LINES - sum(bool(name) and name != run.run for name in lanes)
        others = [name for name in below[run.run] if name not in lanes][: max(0, room)]
        lanes[place] = run.run
        opened = [] if not others else [place]
        for _ in others[1:]:
            opened.append(_free(lanes, after=place))
            lanes[opened[-1]] = run.run
        ends = [*mine[1:], *opened[1:]]
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
        for lane in {place, *mine}:
            lanes[lane] = ""
        for lane, name in zip(opened, others, strict=True):
            lanes[lane] = name
        while lanes and not lanes[-1]:
            lanes.pop()


def _free(lanes: list[str], after: int = -1) -> int:
    """Return a lane that nobody uses, behind another; a new one where there is none."""
    for lane in range(after + 1, len(lanes)):
        if not lanes[lane]:
            return lane
    lanes.append("")
    return len(lanes) - 1


@command("show", "show everything about a run", "fumehood show last", optional_run("last"), *REACH_OPTIONS)
def _show(context: Context) -> int:
    run = context.run(context.options.run)
    events = context.store.audit.events_of([run.run])[run.run]
    more = {"dropped": list(run.dropped), "events": [event.fields() for event in events]}
    return context.print_result(lambda: {**run.as_dict(), **more}, _facts(context, run, events))


def _facts(context: Context, run: Run, events: Sequence[Event]) -> Iterator[str]:
    def by_name(text: str) -> str:
        """Call runs in a text that is recorded, by their ids, what people call them."""
        before, by, name = text.rpartition("by run ")
        return f"{before}{by}{context.store.history.name_of(name)}" if by else text

    colour = Paint()
    sandbox = f"captured by {run.capture}, network {run.network}" if run.sandboxed else "UNSANDBOXED, network full"
    is_running = run.state == "running"
    lasted = f"for {elapsed(time.time() - run.started_at)}" if is_running else f"{run.duration_s:.3f} s"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at))
    facts = {
        "run": f"{run_label(run)}, {run.run}" if run.name != run.run else run.run,
        "command": run.command,
        "directory": run.cwd,
        "project": run.project,
        "when": f"{when}, {lasted}",
        "exit code": "none" if run.exit_code is None else str(run.exit_code),
        "sandbox": "nothing ran" if run.state == "refused" else sandbox,
        "state": f"{run.state}: {run.reason}" if run.reason else run.state,
    }
    if run.draft_name is not None:
        facts["draft"] = run.draft_name
    if run.session is not None and (run.draft is None or run.session != draft_session_name(run.draft)):
        facts["session"] = run.session
    if run.dropped:
        facts["withheld"] = ", ".join(run.dropped)
    if run.hosts:
        facts["hosts"] = ", ".join(run.hosts)
    yield from (f"{colour(f'{name:13}', 'dim')}{printable(value)}" for name, value in facts.items())
    yield from (f"{colour('connection   ', 'dim')}{_connection(each, colour)}" for each in run.connections)
    for change in run.changed:
        change.reason = by_name(change.reason)
    if run.changed:
        yield headline(run)
        yield from (f"  {text}" for text in lines_by_directory(run, colour))
    yield from (event_line(event.replace(detail=by_name(event.detail)), colour) for event in events)


def _connection(connection: Connection, colour: Callable[[str, str], str]) -> str:
    """Write one connection: with whom, how much went out and in, and why not."""
    name = printable(with_port(connection.host, connection.port) if connection.port else connection.host or "unknown")
    times = f" {connection.count} times" if connection.count > 1 else ""
    if not connection.allowed:
        return f"{colour('refused', 'red')} {name}{times}: {printable(connection.reason)}"
    moved = f"{connection.sent} B out, {connection.received} B in, {connection.duration_s:.1f} s"
    if connection.reason:
        moved = f"{moved if connection.sent else 'not reached'}: {printable(connection.reason)}"
    place = f" at {connection.address}" if connection.address else ""
    return f"{colour('allowed', 'green')} {name}{times}{place} ({connection.protocol}) {moved}"


@command(
    "diff", "show what a run changed, line by line", "fumehood diff --stat\nfumehood diff last src/a.py",
    optional_run("last"),
    argument("paths", nargs="*", default=(), metavar="PATH",
             help="only these, and what is in them: absolute, from here, or as the report shows them"),
    flag("--stat", "only how many lines of each path"), flag("--difftool", "in the difftool that git is set to use"),
    option("--tool", "NAME", "in this one (git difftool --tool-help)"),
    flag("--no-pager", "print it here, not through $PAGER (default: less)"), *REACH_OPTIONS,
)  # fmt: skip
def _diff(context: Context) -> int:
    options, run = context.options, context.run(context.options.run)
    if options.tool or options.difftool:
        if context.as_json:
            raise BadRequest("--json and --difftool can't be used together", hint="choose one")
        return _show_in_tool(context, run)
    return print_differences(context, run, options.paths, {"run": run.run})


def print_differences(context: Context, run: Run, paths: Sequence[str], about: dict[str, object]) -> int:
    """Write what a run changed, or a draft would: in full, or how many lines; `about` begins the answer as JSON."""
    options = context.options
    # What holds for the agent that asks; nothing where a person does.
    policy = None if options.only_session is None else context.store.policy_of(context.project)
    wanted = context.store, run, paths
    if options.stat:
        counts = [
            {
                "path": each.path, "root": each.root, "change": each.change, "kind": each.kind, "binary": each.binary,
                "added": lines[0], "removed": lines[1],
            }
            for each in each_difference(*wanted, here=working_dir(), hidden_by=policy) for lines in [each.line_counts]
        ]  # fmt: skip
        return _stat(context, run, about, counts)
    if context.as_json:
        changed = [each.fields() for each in differences(*wanted, here=working_dir(), hidden_by=policy)]
        return context.print_result({**about, "differences": changed}, ())
    with _paged(context.store.own_path(), wanted=not options.no_pager):
        objects = 0
        for each in each_difference(*wanted, here=working_dir(), hidden_by=policy):
            if not paths and objects_of(f"/{each.path}"):
                objects += 1
            else:
                print_difference(each.text)
        if objects:
            print_difference(f"not shown: {how_many(objects, 'object')} of git\n")
    return 0


def _stat(context: Context, run: Run, about: dict[str, object], counts: Sequence[dict[str, Any]]) -> int:
    """Tell how many lines of each path were added and removed, with a bar where the terminal has room for one."""
    added, removed = (sum(each[name] for each in counts) for name in ("added", "removed"))
    colour, room = Paint(), terminal_width() or 80
    names = [
        printable(each["path"] if each["root"] == run.roots[0] else f"{each['root']}/{each['path']}") for each in counts
    ]
    longest = min(max(map(len, names), default=0), max(room - 24, _LEAST))
    most = max((each["added"] + each["removed"] for each in counts), default=0)
    share = min(1.0, max(room - longest - 12, 0) / most) if most else 0.0
    lines = []
    for each, name in zip(counts, names, strict=True):
        sign, shade = SIGNS[each["change"]]
        plus, minus, kind = each["added"], each["removed"], each["kind"]
        bar = colour("+" * ceil(plus * share), "green") + colour("-" * ceil(minus * share), "red")
        is_counted = plus or minus or kind == c.FILE
        what = "binary" if each["binary"] else f"{plus + minus:5} {bar}" if is_counted else kind
        shown = name if len(name) <= longest else f"…{name[1 - longest :]}"
        lines.append(f"{colour(sign, shade)} {shown:{longest}} | {what}".rstrip())
    lines.append(f"{how_many(len(counts), 'path')}, {how_many(added, 'line')} added, {removed} removed")
    return context.print_result({**about, "paths": counts, "added": added, "removed": removed}, lines)


def print_difference(text: str) -> None:
    """Write one difference: in colour for a person, byte for byte for a program, which may give it to patch."""
    if not os.isatty(1):
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
        return
    colour = Paint()
    for line in text.split("\n")[:-1]:
        shown = "\t".join(printable(part) for part in line.split("\t"))
        start = next((start for start in _DIFF_COLOURS if line.startswith(start)), None)
        print(shown if start is None else colour(shown, _DIFF_COLOURS[start]))


@command(
    "output", "print all that a run printed", "fumehood output last | less",
    optional_run("last"), flag("--follow", "go on while the command runs"), *REACH_OPTIONS,
)  # fmt: skip
def _output(context: Context) -> int:
    options, store, run = context.options, context.store, context.run(context.options.run)
    sys.stdout.flush()
    sink = sys.stdout.write if isinstance(sys.stdout, ModelText) else sink_to(1)
    shown = {"stdout": 0, "stderr": 0}  # bytes
    while options.follow and run.state in UNFINISHED:
        for name, count in shown.items() if not context.as_json else ():  # the object has it all
            try:
                for piece in file_pieces(store.places.output(run.run, name), count):
                    shown[name] += len(piece)
                    sink(piece)
            except FileNotFoundError:
                continue  # it has printed nothing yet, or is at its end
        time.sleep(_FOLLOWS_S)
        store.recover()  # should its process have died
        run = store.history.find(run.run)
    ended = " state exit_code" if options.follow else ""
    if context.print_if_json(lambda: pick_fields(run, f"run stdout stderr output_truncated{ended}")):
        return 0
    for name, count in shown.items():
        left = count
        for piece in store.history.output_pieces(run.run, name):
            if len(piece) > left:
                sink(piece[left:])
            left = max(0, left - len(piece))
    sink(b"")
    return 0


def _show_in_tool(context: Context, run: Run) -> int:
    """Show each file of a run in the person's difftool, one after the other, and name each path that is not a file."""
    options, path = context.options, context.store.own_path()
    git = shutil.which("git", path=path)
    if git is None:
        raise Unavailable("a difftool is found and started by git, which is not here", hint="fumehood diff without it")
    left_out = []
    with tempfile.TemporaryDirectory(prefix="fumehood-diff-") as place:
        environment = {**os.environ, "PATH": path, "GIT_CEILING_DIRECTORIES": os.path.dirname(place)}
        for number, change in enumerate(chosen(run, options.paths, here=working_dir())):
            if change.kind != c.FILE or change.change == c.MODE:
                left_out.append(f"not shown: {change.change} {change.kind} {printable(change.path)}")
                continue
            name, files = os.path.basename(change.path), []
            for side, content in zip(("before", "after"), contents(context.store, run, change), strict=True):
                os.makedirs(f"{place}/{number}/{side}")
                # No name that git itself would read.
                files.append(f"{place}/{number}/{side}/{'_' if name.startswith('.') else ''}{name}")
                with open(files[-1], "xb") as file:
                    file.write(content)
            tool = [f"--tool={options.tool}"] if options.tool else []
            command = [git, "difftool", "--no-index", "--no-prompt", *tool, "--", *files]
            code = subprocess.run(command, cwd=place, env=environment, check=False).returncode
            if code not in (0, 1):  # as git exits where nothing differs, or something does
                raise BadRequest(
                    f"git difftool failed with {code} on {printable(change.path)}",
                    hint="git difftool --tool-help lists those that can be used",
                )
    print("".join(f"{line}\n" for line in left_out), end="")
    return 0


@contextmanager
def _paged(path: str, *, wanted: bool) -> Iterator[None]:
    """Have standard output read through a pager on this PATH, where it goes to a terminal."""
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
        with suppress(BrokenPipeError):  # the person has read enough
            yield
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = before
        process.wait()
        signal.signal(signal.SIGINT, interrupt)
