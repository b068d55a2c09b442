"""The command `log`: what ran, the latest first, each in a line as wide as the terminal; and which built on which."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fumehood.core.changes import APPLIED
from fumehood.core.report import Run, printable
from fumehood.core.wording import fitted
from fumehood.faces.cli.commands import Add, Context, add_reach, paint
from fumehood.faces.cli.look import SIGNS, event_line, line_of
from fumehood.faces.cli.output import Paint, whole_number, width
from fumehood.store.history import CHECKPOINT, History, Reach

Counts = dict[str, dict[str, int]]  # of changes, by run and kind

STATES = {"applied": "green", "held": "yellow", "failed": "red", "refused": "red", "undone": "cyan"}
_PATHS = 20  # of each run in the log for programs; `show --json` has them all
_LOOKED_AT = 500  # changes of a run that are compared with those of others
_WIDEST = 60  # columns of a command where no terminal says how wide it may be
_LEAST = 16  # columns of a command, however narrow the terminal
_MOST_LINES = 8  # of a graph, beside each other
# What a graph is drawn with: a run, one that was undone, an undo, lines down and across, one that opens, and closes.
_SIGNS, _PLAIN_SIGNS = "●✗↶│─╮╯", "*x<|-.'"
_NARROW = 100  # columns below which a time is told without its year and seconds


def add_commands(add: Add) -> None:
    """Make `log` known."""
    log = add(
        "log", "list what ran, the latest first", _log,
        "  fumehood log\n  fumehood log --graph\n  fumehood log -n 5 --json",
    )  # fmt: skip
    log.add_argument(
        "-n", "--limit", type=whole_number(), default=20, metavar="N", help="how many (default: 20; 0 means all)"
    )
    log.add_argument("--all", action="store_true", help="show the runs of every project")
    log.add_argument("--session", metavar="NAME", help="show the runs of this session only")
    log.add_argument("--graph", action="store_true", help="draw which run built on which, and what was taken back")
    add_reach(log)


def _log(context: Context) -> int:
    options, history = context.options, context.store.history
    project = None if options.all else context.project.id
    asked_for = Reach(project=project, sessions=() if options.session is None else (options.session,))
    runs = history.runs(context.reach, asked_for, limit=options.limit)
    counts = history.count_changes([run.run for run in runs])
    if context.as_json:
        return context.say({"runs": _audit(context, runs, counts)}, lambda: None)
    if not runs:
        from fumehood.service.layers import MEND, unknown

        lost = len(unknown(context.store))
        yet = f"nothing is recorded; directories of runs without a record: {lost}; {MEND}" if lost else ""
        print(yet or "nothing has run here yet; fumehood run -- COMMAND")
    colour, lines = paint(), _Lines(runs, counts)
    if options.graph:
        below = {run.run: _built_on(history, run, runs[place:]) for place, run in enumerate(runs)}
        names = {run.run: f"#{run.number}" for run in runs}
        for run, drawn in zip(runs, drawing(runs, below), strict=True):
            others = [names[each] for each in below[run.run]]
            verb = "of" if run.act in ("undo", CHECKPOINT) else "on"
            note = f"  ← {verb} {', '.join(others)}" if others else ""
            print(lines.line(run, colour, before=f"{drawn} ", after=note))
        return 0
    cleanings = {} if asked_for.sessions else context.store.audit.cleanings([run.run for run in runs], project)
    # The runs of one session, or one draft, are told together, where its latest stands.
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        one = line_of(run, lambda name: name) or ("" if options.all else run.run)
        groups.setdefault((run.project if options.all else "", one), []).append(run)
    for (path, _), group in groups.items():
        heading = line_of(group[0], lambda name: colour(printable(name), "bold"))
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

    def __init__(self, runs: Sequence[Run], counts: Counts) -> None:
        self._changes = {
            run.run: " ".join(f"{sign}{counts[run.run][kind]}" for kind, (sign, _) in SIGNS.items()
                              if counts[run.run].get(kind))
            for run in runs
        }  # fmt: skip
        self._number = max((len(str(run.number)) + 1 for run in runs), default=0)
        self._state = max((len(run.outcome) for run in runs), default=0)
        self._change = max((len(each) for each in self._changes.values()), default=0)
        self._width = width()
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
        room = max(self._width - sum(len(text) for text, _ in pieces + ends), _LEAST) if self._width else _WIDEST
        pieces += [(fitted(printable(run.command), room), ""), *ends]
        return "".join(colour(text, shade) if text and shade else text for text, shade in pieces)


# ---- Which run built on which.

def _built_on(history: History, run: Run, earlier: Sequence[Run]) -> list[str]:
    """Return those of some earlier runs that a run is about, saw while they waited, or changed the same paths after."""
    listed = {each.run for each in earlier} - {run.run}
    if run.of is not None:
        return [run.of] if run.of in listed else []
    last_to_change = []
    for change in history.first_changes(run.run, _LOOKED_AT):
        before = history.applied_at(run, run.roots[change.root], change.path) if change.verdict == APPLIED else ()
        last_to_change += [next((name for name, _ in before if name in listed), "")]
    return [name for name in dict.fromkeys([*run.below, *last_to_change]) if name in listed]


def drawing(runs: Sequence[Run], below: dict[str, list[str]]) -> Iterator[str]:
    """Draw a line's beginning for each run, the latest first: itself, and lines to those below that it is built on."""
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
    signs = _SIGNS if encoding.startswith("utf") else _PLAIN_SIGNS
    rows = list(_rows(runs, below, signs))
    wide = max(map(len, rows), default=0)
    return (f"{row:{wide}}" for row in rows)


def _rows(runs: Sequence[Run], below: dict[str, list[str]], signs: str) -> Iterator[str]:
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


# ---- For programs.

def _audit(context: Context, runs: Sequence[Run], counts: Counts) -> list[dict[str, Any]]:
    """Tell of runs: who asked, what ran, what was decided and by whom, how much changed and the first of it."""
    events = context.store.audit.of([run.run for run in runs])
    history = context.store.history
    return [
        {
            "run": run.run, "number": run.number, "project": run.project, "command": run.command, "cwd": run.cwd,
            "state": run.state,
            "reason": run.reason, "act": run.act, "of": run.of, "exit_code": run.exit_code, "session": run.session,
            "timed_out": run.timed_out, "started_at": run.started_at, "duration_s": run.duration_s,
            "sandboxed": run.sandboxed, "capture": run.capture, "network": run.network, "changes": counts[run.run],
            "path_count": sum(counts[run.run].values()),
            "paths": run.fields_of(history.first_changes(run.run, _PATHS)),
            "blocked": [blocked.fields() for blocked in run.blocked],
            "hosts": list(run.hosts), "connections": [each.fields() for each in run.connections],
            "events": [event.fields() for event in events[run.run]],
        }
        for run in runs
    ]  # fmt: skip
