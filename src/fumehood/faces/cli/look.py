"""Commands that look (show, diff, output), and what a person or an agent is told about a run.

What a run changed, file by file, in the difftool that the person uses with git.

Both versions are copied to a directory of our own first, where no repository is: the tool gets these two files, and git
reads the person's own settings and nothing that a command wrote.

A long text is read through the person's own pager.

The pager gets the text on its standard input and nothing else: it opens no file that a command wrote, and `less` is
told to open none by itself either. It starts in /, so that no relative entry of PATH leads it into the project.
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
from functools import partial
from typing import Any, TextIO

from fumehood.core import changes as c
from fumehood.core.judge import objects_of
from fumehood.core.network import Connection
from fumehood.core.report import IN_PART, UNDONE_BY, Blocked, Run, how_many, named, printable, summary, typed
from fumehood.core.report import short as brief
from fumehood.core.request import loopback_of
from fumehood.errors import BadRequest, Unavailable
from fumehood.faces.cli.commands import Add, Context, add_reach, add_run, paint
from fumehood.faces.cli.output import GuardedText, ModelText, Paint, here, sink_to, width
from fumehood.service.differences import Difference, contents, differences, each_difference
from fumehood.service.settle import chosen
from fumehood.service.store import Store
from fumehood.store.audit import Event
from fumehood.store.history import UNFINISHED
from fumehood.store.records import pieces

Line = Callable[..., str]

_MOST = 12  # lines about changes; what is alike is then told by directory
_SAME_LINE = ("root", "verdict", "change", "reason", "flags")  # what changes in one line have in common
_LARGE = 4  # entries of a tree that comes or goes whole that get lines of their own
SIGNS = {
    c.ADDED: ("+", "green"), c.MODIFIED: ("~", "yellow"), c.DELETED: ("-", "red"), c.MODE: ("m", "cyan"),
    c.TYPE: ("t", "cyan"),
}  # fmt: skip
_DIFF_COLOURS = {"+++": "bold", "---": "bold", "diff ": "bold", "+": "green", "-": "red", "@@": "cyan"}
_FOLLOWS_S = 0.2
_VERDICTS = (c.APPLIED, c.HELD, c.CONFLICT, c.UNSUPPORTED, c.DISCARDED)
_NEXT = {
    "applied": "undo: fumehood undo {run}",
    "held": "look: fumehood diff {run}   then: {apply}  or  fumehood discard {run}   or: fumehood review",
}
_IN_DRAFT = "look: fumehood draft diff {draft}   then: fumehood draft apply {draft}   or: fumehood undo {run}"
_BY_RUN = "by run "
_FORCE = "conflict: fumehood apply {run} {path} --force  takes the run's version, and saves what is there now"


def numbered(run: Run) -> str:
    """Write a run's number as people know numbers of this kind; the id of one that has none here."""
    return run.name if run.name == run.run else f"#{run.name}"


def place_of(run: Run, change: c.Change) -> str:
    """Name a path as an act on it does."""
    root = run.roots[change.root]
    return root if change.path == "." else f"{root}/{change.path}"


def line_of(run: Run, shown: Callable[[str], str]) -> str:
    """Write to which line of runs one belongs: a draft, or else a session, or none."""
    if run.draft_name is not None:
        return f"draft {shown(run.draft_name)}"
    return "" if run.session is None else f"session {shown(run.session)}"


def tell_run(run: Run, out: TextIO | None = None) -> None:
    """Write what a run changed, what was blocked, and the next step."""
    stream = sys.stderr if out is None else out
    paint = Paint(stream.fileno())
    ours = paint("fumehood:", "bold")
    text = []
    if run.timed_out:
        text.append(f"{ours} the time limit was reached; the command was ended")
    if not run.sandboxed:
        text.append(f"{ours} {paint('UNSANDBOXED', 'red')}: {printable(run.reason)}")
    if run.changed:
        text.append(f"{ours} {headline(run)}")
        text += [f"  {line}" for line in lines(run, paint)]
    for blocked in run.blocked:
        text.append(f"  {paint(blocked.headline, 'red')}{blocked.line.removeprefix(blocked.headline)}")
    if run.changed and run.draft is not None:
        text.append(f"  {paint(_IN_DRAFT.format(run=run.name, draft=run.draft_name), 'dim')}")
    elif run.changed and run.state in _NEXT and run.act == "run":
        text.append(f"  {paint(_NEXT[run.state].format(run=run.name, apply=apply_line(run)), 'dim')}")
        conflict = next((change for change in run.changed if change.verdict == c.CONFLICT), None)
        if conflict is not None:
            text.append(f"  {paint(_FORCE.format(run=run.name, path=typed(conflict.path)), 'dim')}")
    stream.write("".join(f"{line}\n" for line in text))
    stream.flush()


def apply_line(run: Run) -> str:
    """Return the line that applies what waits: where all of it is conflicts, by force."""
    force = "" if any(change.verdict == c.HELD for change in run.changed) else " --force"
    return f"fumehood apply {run.name}{force}"


def agent_lines(run: Run, blocked: Sequence[Blocked]) -> list[str]:
    """Return only what an agent can't know from the command itself: what did not happen, and how to take it back.

    `blocked` is what of the run's it must be told.
    """
    said = []
    if run.timed_out:
        said.append("the time limit was reached; the command was ended")
    if not run.sandboxed:
        said.append(f"UNSANDBOXED: {brief(run.reason)}")
    settled = (c.APPLIED, c.DISCARDED) if run.draft is None else (c.APPLIED, c.DISCARDED, *c.WAITING)
    kept_back = [change for change in run.changed if change.verdict not in settled]
    listed, left_out = summary(kept_back, _MOST)
    for each in listed:
        change = each.change
        path = named(each.path if change.root == 0 else f"{run.roots[change.root]}/{each.path}")
        what = f"{change.change} {each.count} entries in" if each.count > 1 else change.change
        said.append(f"{change.verdict}, not applied: {what} {path}: {brief(change.reason)}")
    said += [f"and {count} more: {kind}; fumehood show {run.name}" for kind, count in left_out.items()]
    said += [each.line for each in blocked]
    if kept_back:
        said.append(f"a person decides: {apply_line(run)}  or  fumehood discard {run.name}")
    if any(change.verdict == c.APPLIED for change in run.changed):
        said.append(f"undo: fumehood undo {run.name}")
    return said


def headline(run: Run) -> str:
    """Sum up a run's changes in a few words."""
    verdicts = ["undone" if change.reason.startswith(UNDONE_BY) else change.verdict for change in run.changed]
    counts = {verdict: verdicts.count(verdict) for verdict in (*_VERDICTS, "undone") if verdict in verdicts}
    if run.state == "undone":
        counts = {run.state: len(verdicts)}
    if run.draft is not None and run.state == "applied":
        counts = {"taken over": len(verdicts)}
    if run.act == "undo" and c.APPLIED in counts:
        counts = {run.outcome if verdict == c.APPLIED else verdict: count for verdict, count in counts.items()}
    (first, count), *others = counts.items()
    text = f"{how_many(count, 'change')} {first}"
    text += "".join(f", {count} {verdict}" for verdict, count in others) + deletions(run)
    reason = run.reason or said_once(run)
    return f"{text}: {printable(reason)}" if reason not in ("", IN_PART) else text


def said_once(run: Run) -> str:
    """Return the reason that all changes of a run have, where none is applied: the headline says it for all."""
    fates = {(change.verdict, change.reason) for change in run.changed}
    verdict, reason = fates.pop()
    return reason if not fates and len(run.changed) > 1 and verdict != c.APPLIED and not run.reason else ""


def deletions(run: Run) -> str:
    """Count what a run deletes, for the end of a headline."""
    count = sum(change.change == c.DELETED for change in run.changed)
    return f" ({how_many(count, 'deletion')})" if count else ""


def lines(run: Run, paint: Paint) -> Iterator[str]:
    """Write one line a change; where they are too many, a tree that comes or goes whole, and what is alike, in one.

    The numbers in the lines, and one for each line without, are those of the headline.
    """
    said = said_once(run)
    if len(run.changed) <= _MOST and not any(".git/objects/" in change.path for change in run.changed):
        yield from (line(run, change, paint, said=said) for change in run.changed)
        return
    inside = _whole_trees(run.changed)
    shown = [
        change for change in run.changed
        if change.flags or change.within is None or (change.root, change.within) not in inside
    ]  # fmt: skip
    listed, left_out = summary(shown, _MOST)
    for each in listed:
        change = each.change
        if each.count == 1:
            count = inside.get((change.root, change.path), 0)
            more = f"  {paint(f'and {count} in it', 'dim')}" if count else ""
            yield line(run, change, paint, said=said) + more
        else:
            top = "" if each.path == "./" else each.path
            alike = [other for other in shown if _is_alike(other, change) and other.path.startswith(top)]
            count = sum(1 + inside.get((other.root, other.path), 0) for other in alike)
            shown_line = line(run, change, paint, path=f"{each.path}…", said=said)
            yield f"{shown_line}  {paint(f'{count} of them', 'dim')}"
    if left_out or inside or any(each.count > 1 for each in listed):
        more = "".join(f"{count} more {kind}; " for kind, count in left_out.items())
        yield paint(f"{more}all of them: fumehood show {run.name}", "dim")


def _is_alike(one: c.Change, other: c.Change) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SAME_LINE)


def _whole_trees(changes: Sequence[c.Change]) -> dict[tuple[int, str], int]:
    """Return the directories that come or go whole and hold many entries, with how many need no look.

    Not where something in it became of otherwise: that is told one by one.
    """
    tops = {
        (change.root, change.path): change
        for change in changes
        if change.kind == c.DIRECTORY and change.change in (c.ADDED, c.DELETED) and change.within is None
    }
    counts: dict[tuple[int, str], int] = {}
    mixed: set[tuple[int, str]] = set()
    for change in changes:
        top = None if change.within is None else tops.get((change.root, change.within))
        if top is None or change.flags:
            continue
        if (change.change, change.verdict, change.reason) != (top.change, top.verdict, top.reason):
            mixed.add((top.root, top.path))
        else:
            counts[top.root, top.path] = counts.get((top.root, top.path), 0) + 1
    return {top: count for top, count in counts.items() if count > _LARGE and top not in mixed}


def line(
    run: Run, change: c.Change, paint: Paint, path: str = "", below: str | None = None, said: str = ""
) -> str:
    """Write one change, or several that are alike in the directory at a path; `below` a directory, without that.

    A reason that is `said` already is left out.
    """
    why = printable(change.reason)
    if not why.startswith(UNDONE_BY):
        why = f"{change.verdict}: {why}" if why else change.verdict
    is_over = change.verdict == c.APPLIED or (run.draft is not None and run.state == "applied") or bool(said)
    return changed_place(run, change, paint, path, below) + ("" if is_over else f"  [{why}]")


def changed_place(run: Run, change: c.Change, paint: Paint, path: str = "", below: str | None = None) -> str:
    """Write what was changed and how, without what became of it."""
    sign, colour = SIGNS[change.change]
    where = "" if change.root == 0 else f"{run.roots[change.root]}/"
    name = where + (path or change.path) if below is None else change.path.removeprefix(f"{below}/")
    place = printable(name) + ("/" if change.kind == c.DIRECTORY and not path else "")
    modes = ""
    if not path and c.has_new_mode(change) and change.before is not None and change.after is not None:
        modes = f" {change.before.mode:04o} → {change.after.mode:04o}"
    flags = f"  ({c.flags_in_words(change.flags)})" if change.flags else ""
    return f"{paint(sign, colour)} {place}{modes}{flags}"


def add_commands(add: Add) -> None:
    """Make these commands known."""
    show = add("show", "show everything about a run", _show, "  fumehood show last")
    add_run(show, default="last")
    diff = add(
        "diff", "show what a run changed, line by line", _diff, "  fumehood diff --stat\n  fumehood diff last src/a.py"
    )
    add_run(diff, default="last")
    diff.add_argument(
        "paths", nargs="*", default=(), metavar="PATH",
        help="only these, and what is in them: absolute, from here, or as the report shows them",
    )  # fmt: skip
    diff.add_argument("--stat", action="store_true", help="only how many lines of each path")
    diff.add_argument("--difftool", action="store_true", help="in the difftool that git is set to use")
    diff.add_argument("--tool", metavar="NAME", help="in this one (git difftool --tool-help)")
    diff.add_argument("--no-pager", action="store_true", help="print it here, not through $PAGER (default: less)")
    output = add("output", "print all that a run printed", _output, "  fumehood output last | less")
    add_run(output, default="last")
    output.add_argument("--follow", action="store_true", help="go on while the command runs")
    for command in (show, diff, output):
        add_reach(command)


def _show(context: Context) -> int:
    run = context.run(context.options.run)
    events = context.store.audit.of([run.run])[run.run]
    more = {"dropped": list(run.dropped), "events": [event.fields() for event in events]}

    def show() -> None:
        name_of = context.store.history.name
        for change in run.changed:
            change.reason = _by_names(change.reason, name_of)
        _tell(run, [event.replace(detail=_by_names(event.detail, name_of)) for event in events])

    return context.say(lambda: {**run.as_dict(), **more}, show)


def _by_names(text: str, name_of: Callable[[str], str]) -> str:
    """Call runs in a text that is recorded, by their ids, what people call them."""
    before, by, name = text.rpartition(_BY_RUN)
    return f"{before}{by}{name_of(name)}" if by else text


def _tell(run: Run, events: Sequence[Event]) -> None:
    colour = paint()
    sandbox = f"captured by {run.capture}, network {run.network}" if run.sandboxed else "UNSANDBOXED, network full"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at))
    facts = {
        "run": f"{numbered(run)}, {run.run}" if run.name != run.run else run.run,
        "command": run.command,
        "directory": run.cwd,
        "project": run.project,
        "when": f"{when}, {run.duration_s:.3f} s",
        "exit code": "none" if run.exit_code is None else str(run.exit_code),
        "sandbox": "nothing ran" if run.state == "refused" else sandbox,
        "state": f"{run.state}: {run.reason}" if run.reason else run.state,
    }
    if run.draft_name is not None:
        facts["draft"] = run.draft_name
    if run.session is not None and (run.draft is None or run.session != loopback_of(run.draft)):
        facts["session"] = run.session
    if run.dropped:
        facts["withheld"] = ", ".join(run.dropped)
    if run.hosts:
        facts["hosts"] = ", ".join(run.hosts)
    for name, value in facts.items():
        print(f"{colour(f'{name:13}', 'dim')}{printable(value)}")
    for connection in run.connections:
        print(f"{colour('connection   ', 'dim')}{_connection(connection, colour)}")
    if run.changed:
        print(headline(run))
        for text in by_directory(run, colour, partial(line, said=said_once(run))):
            print(f"  {text}")
    for event in events:
        print(event_line(event, colour))


def by_directory(run: Run, paint: Paint, line: Line = line) -> Iterator[str]:
    """Write every change in a line; where they are many, below the directory that they are in."""
    groups: dict[tuple[int, str], list[c.Change]] = {}
    for change in run.changed:
        groups.setdefault((change.root, change.path.rpartition("/")[0]), []).append(change)
    is_long = len(run.changed) > _MOST and len(groups) < len(run.changed)
    for (root, directory), group in groups.items():
        where = "" if root == 0 else f"{run.roots[root]}/"
        if not is_long or len(group) == 1:
            yield from (line(run, change, paint) for change in group)
            continue
        yield f"{printable(where + (directory or '.'))}/  {paint(f'{len(group)} of them', 'dim')}"
        yield from (f"  {line(run, change, paint, below=directory)}" for change in group)


def event_line(event: Event, colour: Callable[[str, str], str]) -> str:
    """Write one event in a line: when, what, by whom."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    by = f"{event.user or event.uid}, {event.face}" + (f", {event.agent}" if event.agent else "")
    detail = f"  {printable(event.detail)}" if event.detail else ""
    return f"{colour(when, 'dim')}  {event.act:9}{detail}  {colour(f'({printable(by)})', 'dim')}"


def _connection(connection: Connection, colour: Callable[[str, str], str]) -> str:
    """Write one connection: with whom, how much went out and in, and why not."""
    from fumehood.core.hosts import shown

    name = printable(shown(connection.host, connection.port) if connection.port else connection.host or "unknown")
    times = f" {connection.count} times" if connection.count > 1 else ""
    if not connection.allowed:
        return f"{colour('refused', 'red')} {name}{times}: {printable(connection.reason)}"
    moved = f"{connection.sent} B out, {connection.received} B in, {connection.duration_s:.1f} s"
    if connection.reason:
        moved = f"not reached: {printable(connection.reason)}"
    place = f" at {connection.address}" if connection.address else ""
    return f"{colour('allowed', 'green')} {name}{times}{place} ({connection.protocol}) {moved}"


def _diff(context: Context) -> int:
    options, run = context.options, context.run(context.options.run)
    wanted = context.store, run, options.paths
    if options.tool or options.difftool:
        for line in show(*wanted, here=here(), tool=options.tool or ""):
            print(f"not shown: {line}")
        return 0
    return tell_differences(context, run, options.paths, {"run": run.run})


def tell_differences(context: Context, run: Run, paths: Sequence[str], about: dict[str, object]) -> int:
    """Write what a run changed, or a draft would: in full, or how many lines; `about` begins the answer as JSON."""
    options = context.options
    wanted = context.store, run, paths
    if options.stat:
        return _stat(context, run, about, [_line_count(each) for each in each_difference(*wanted, here=here())])
    if context.as_json:
        changed = [each.fields() for each in differences(*wanted, here=here())]
        return context.say({**about, "differences": changed}, lambda: None)

    with Paged(wanted=not options.no_pager):
        objects = 0
        for each in each_difference(*wanted, here=here()):
            if not paths and objects_of(f"/{each.path}"):
                objects += 1
            else:
                write_difference(each.text)
        if objects:
            write_difference(f"not shown: {how_many(objects, 'object')} of git\n")
    return 0


def _line_count(each: Difference) -> dict[str, Any]:
    """Tell how many lines of one path a run added and removed; none are counted where its text is not shown."""
    counts, is_in_hunk = {"+": 0, "-": 0}, False
    for text in each.text.split("\n"):
        if text.startswith(("@@", "diff ")):
            is_in_hunk = text.startswith("@@")
        elif is_in_hunk and text[:1] in counts:
            counts[text[0]] += 1
    return {
        "path": each.path, "root": each.root, "change": each.change, "kind": each.kind, "binary": each.binary,
        "added": counts["+"], "removed": counts["-"],
    }  # fmt: skip


def _stat(context: Context, run: Run, about: dict[str, object], counts: Sequence[dict[str, Any]]) -> int:
    """Tell how many lines of each path were added and removed, with a bar where the terminal has room for one."""
    added, removed = (sum(each[name] for each in counts) for name in ("added", "removed"))

    def show() -> None:
        from math import ceil

        colour, room = paint(), width() or 80
        roots = ["" if each["root"] == run.roots[0] else f"{each['root']}/" for each in counts]
        names = [printable(root + each["path"]) for root, each in zip(roots, counts, strict=True)]
        longest = min(max(map(len, names), default=0), room - 24)
        most = max((each["added"] + each["removed"] for each in counts), default=0)
        share = min(1.0, (room - longest - 12) / most) if most else 0.0
        for each, name in zip(counts, names, strict=True):
            sign, shade = SIGNS[each["change"]]
            plus, minus, kind = each["added"], each["removed"], each["kind"]
            bar = colour("+" * ceil(plus * share), "green") + colour("-" * ceil(minus * share), "red")
            is_counted = plus or minus or kind == c.FILE
            what = "binary" if each["binary"] else f"{plus + minus:5} {bar}" if is_counted else kind
            shown = name if len(name) <= longest else f"…{name[1 - longest :]}"
            print(f"{colour(sign, shade)} {shown:{longest}} | {what}".rstrip())
        print(f"{how_many(len(counts), 'path')}, {how_many(added, 'line')} added, {removed} removed")

    return context.say({**about, "paths": counts, "added": added, "removed": removed}, show)


def write_difference(text: str) -> None:
    """Write one difference: in colour for a person, byte for byte for a program, which may give it to patch."""
    if not os.isatty(1):
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
        return
    colour = paint()
    for line in text.split("\n")[:-1]:
        shown = "\t".join(printable(part) for part in line.split("\t"))
        start = next((start for start in _DIFF_COLOURS if line.startswith(start)), None)
        print(shown if start is None else colour(shown, _DIFF_COLOURS[start]))


def _output(context: Context) -> int:
    run = context.run(context.options.run)
    if context.options.follow:
        run = _follow(context, run)
        return context.say({"run": run.run, "state": run.state, "exit_code": run.exit_code}, lambda: None)

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


def _follow(context: Context, run: Run) -> Run:
    """Print what a command prints until it has ended; returns it as it then is."""
    sys.stdout.flush()
    sink = sys.stdout.write if isinstance(sys.stdout, ModelText) else sink_to(1)
    read = {"stdout": 0, "stderr": 0}

    def go_on(name: str, printed: Iterator[bytes]) -> None:
        for piece in printed:
            read[name] += len(piece)
            sink(piece)

    while run.state in UNFINISHED:
        for name, count in read.items():
            try:
                go_on(name, pieces(context.store.places.output(run.run, name), count))
            except FileNotFoundError:
                continue  # it has printed nothing yet, or is at its end
        time.sleep(_FOLLOWS_S)
        context.store.recover()  # should its process have died
        run = context.store.history.find(run.run)
    for name, count in read.items():
        whole = b"".join(context.store.history.printed(run.run, name))
        go_on(name, iter([whole[count:]] if whole[count:] else []))
    sink(b"")
    return run


_SHOWN = (0, 1)  # what git exits with: nothing differs, or something does


def show(store: Store, run: Run, paths: Sequence[str], *, here: str, tool: str) -> list[str]:
    """Show each file of a run in the tool, one after the other; returns a line for each path that is not a file."""
    git = shutil.which("git")
    if git is None:
        raise Unavailable("a difftool is found and started by git, which is not here", hint="fumehood diff without it")
    left_out = []
    with tempfile.TemporaryDirectory(prefix="fumehood-diff-") as place:
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": os.path.dirname(place)}
        for number, change in enumerate(chosen(run, paths, here=here)):
            if change.kind != c.FILE or change.change == c.MODE:
                left_out.append(f"{change.change} {change.kind} {printable(change.path)}")
                continue
            files = _written(f"{place}/{number}", os.path.basename(change.path), contents(store, run, change))
            named = [f"--tool={tool}"] if tool else []
            command = [git, "difftool", "--no-index", "--no-prompt", *named, "--", *files]
            code = subprocess.run(command, cwd=place, env=environment, check=False).returncode
            if code not in _SHOWN:
                raise BadRequest(
                    f"git difftool failed with {code} on {printable(change.path)}",
                    hint="git difftool --tool-help lists those that can be used",
                )
    return left_out


def _written(place: str, name: str, versions: tuple[bytes, bytes]) -> list[str]:
    """Write both versions; none of them has a name that git itself would read."""
    files = []
    for side, content in zip(("before", "after"), versions, strict=True):
        os.makedirs(f"{place}/{side}")
        files.append(f"{place}/{side}/{'_' if name.startswith('.') else ''}{name}")
        with open(files[-1], "xb") as file:
            file.write(content)
    return files


_NONE = ("", "cat")
_USUAL = "command -v less >/dev/null && exec less; exec cat"


class Paged:
    """Has standard output read through a pager for a `with` block, where it goes to a terminal."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._pager = os.environ.get("PAGER", _USUAL).strip()
        is_read = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._is_on = wanted and is_read and self._pager not in _NONE

    def __enter__(self) -> None:
        self._before, self._process = sys.stdout, None
        if not self._is_on:
            return
        hidden = ("LESSOPEN", "LESSCLOSE")  # programs that less would start
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment = {"LESS": "FRX", **environment, "LESSSECURE": "1"}
        command = ["/bin/sh", "-c", self._pager]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", env=environment)
        assert self._process.stdin is not None
        text = io.TextIOWrapper(self._process.stdin, encoding="utf-8", errors="backslashreplace")
        sys.stdout = GuardedText(text)
        self._interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> bool:
        if self._process is None:
            return False
        try:
            sys.stdout.close()
        except BrokenPipeError:
            pass  # the person has read enough
        finally:
            sys.stdout = self._before
            self._process.wait()
            signal.signal(signal.SIGINT, self._interrupt)
        return kind is BrokenPipeError
