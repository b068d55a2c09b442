"""The command `best`: one command run several times, each in a draft, and the best of them applied."""

from __future__ import annotations

import sys

from fumehood.core.report import printable
from fumehood.faces.cli.commands import Context, paint
from fumehood.faces.cli.drafts import opened
from fumehood.faces.cli.look import tell_run
from fumehood.faces.cli.output import whole_number
from fumehood.service import best as comparing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Add
    from fumehood.service.best import Best, Candidate

_HEADINGS = ("", "", "score", "files", "lines", "time", "")
_EXAMPLES = """  fumehood best -n 8 --jobs 4 --check 'pytest -q' -- 'agent --seed $FUMEHOOD_CANDIDATE'
  fumehood best -n 3 --check 'make test' --score './speed' --hold -- ./try.sh"""


def add_commands(add: Add) -> None:
    """Make `best` known."""
    command = add("best", "run a command several times, each in a draft, and apply the best", _best, _EXAMPLES)
    many = whole_number(1, comparing.MOST)
    command.add_argument("-n", dest="count", type=many, default=8, metavar="N", help="how many (default: 8)")
    command.add_argument("--jobs", type=many, default=4, metavar="N", help="how many at once (default: 4)")
    command.add_argument("--check", metavar="CMD", help="what a candidate must pass; run in each")
    command.add_argument("--score", metavar="CMD", help="prints a number at its end, the higher the better")
    command.add_argument("--timeout", type=whole_number(1), metavar="SECONDS", help="for all together")
    command.add_argument("--keep", action="store_true", help="keep the drafts of the others too")
    command.add_argument("--hold", action="store_true", help="apply nothing: the best one's draft stays")
    command.add_argument("command", nargs="+", metavar="COMMAND", help="one word is a shell line")


def _best(context: Context) -> int:
    options = context.options
    line = options.command[0] if len(options.command) == 1 else options.command
    is_silent = context.as_json or options.quiet

    def tell(candidate: Candidate) -> None:
        sys.stderr.write(f"candidate {candidate.number}: {_status(candidate)}, {candidate.duration_s:.1f} s\n")
        sys.stderr.flush()

    with opened(context) as sandbox:
        result = sandbox.best(
            line, options.count, jobs=options.jobs, check=options.check, score=options.score, keep=options.keep,
            apply=not options.hold, timeout=options.timeout, on_candidate=None if is_silent else tell,
        )  # fmt: skip
    context.say(result.as_dict, lambda: show_best(result))
    if result.is_interrupted:
        return 130
    return int(result.best is None or (result.run is None and not options.hold))


def _status(candidate: Candidate) -> str:
    status = f"same as {candidate.same_as}" if candidate.same_as is not None else candidate.status
    return f"{status}: {printable(candidate.reason)}" if candidate.reason else status


def show_best(result: Best) -> None:
    """Show the candidates as a table, and what became of the best."""
    colour = paint()
    rows = [_HEADINGS]
    for each in result.candidates:
        score = "" if each.score is None else f"{each.score:g}"
        mark = "← the best" if each is result.best else ""
        rows.append((
            str(each.number), _status(each), score, str(each.files), f"+{each.added} -{each.removed}",
            f"{each.duration_s:.1f} s", mark,
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, row in enumerate(rows):
        text = "  ".join(f"{cell:{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip()
        print(colour(text, "bold") if row[-1] else colour(text, "dim") if at == 0 else text)
    if result.reason:
        print(printable(result.reason))
    if result.run is not None:
        tell_run(result.run, sys.stdout)
    if result.kept:
        print(f"drafts: {', '.join(result.kept)}; fumehood draft diff NAME, then draft apply or discard NAME")
