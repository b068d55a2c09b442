"""Commands about drafts: draft, best; and about changes as files: export, import.

A draft is a copy of a project that costs nothing, and whose changes can be applied or discarded together. `best` runs
one command several times, each in a draft, and applies the best.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from fumehood.core.report import Run, how_many, pick_fields, printable
from fumehood.core.text_diff import CONFLICT_MARKS
from fumehood.core.wording import fit_columns
from fumehood.errors import BadRequest, DraftConflict
from fumehood.faces.cli.commands import Context, argument, command, flag, option, subcommands
from fumehood.faces.cli.log import print_difference, print_differences
from fumehood.faces.cli.output import COMMAND_WIDTH, Paint, print_error, whole_number
from fumehood.faces.cli.run_text import deletions_note, lines_by_directory, print_run
from fumehood.faces.cli.screen import show_progress
from fumehood.service import bundles, drafts
from fumehood.service.best import MAX_CANDIDATES, Best, Candidate
from fumehood.service.draft_merge import Conflict, compare_with_project
from fumehood.service.drafts import Preview
from fumehood.store.history import RunFilter
from fumehood.store.named import DraftRecord

_CONTEXT_LINES = 3  # lines that are shown before and after a conflict


@command(
    "draft", "keep runs beside the project, where only they see each other, and apply them together",
    "fumehood draft new idea\nfumehood run --draft idea -- 'make fix'\nfumehood draft diff idea\n"
    "fumehood draft apply idea",
    subcommands("list", "new", "show", "diff", "log", "apply", "discard", "rename", "rebase"),
    argument("name", nargs="?", metavar="NAME", help="the draft"),
    argument("rest", nargs="*", metavar="ARG", help="rename: the new name; diff: only these paths"),
    flag("--stat", "diff: only how many lines of each path"),
    flag("--no-pager", "diff: print it here, not through $PAGER"),
    flag("--force", "apply: take the draft's version where both have changed"),
    flag("--as-commit", "apply: leave a git commit on a new branch instead"),
    option("--branch", "B", "its branch (default: the draft's name)"), option("-m --message", "M", "its message"),
    option("--author", "A", 'its author: "Name <mail>" (default: as git is set up)'),
    flag("--frozen", "new: see the project as it is now, whatever is edited"),
)  # fmt: skip
def _draft(context: Context) -> int:
    options = context.options
    if options.subcommand == "list":
        return _list(context)
    if options.name is None:
        raise BadRequest(f"draft {options.subcommand} needs a name", hint="fumehood draft list")
    if options.rest and options.subcommand not in ("rename", "diff"):
        raise BadRequest(f"draft {options.subcommand} does not take {options.rest[0]}", hint="fumehood draft --help")
    for name, value in (("--branch", options.branch), ("--message", options.message), ("--author", options.author)):
        if value is not None and not (options.subcommand == "apply" and options.as_commit):
            raise BadRequest(f"{name} is for apply --as-commit only", hint="fumehood draft apply NAME --as-commit")
    if options.subcommand == "new":
        return _new(context)
    context.store.recover()
    draft = context.store.drafts.find(context.project.id, options.name)
    act = {
        "show": _show, "diff": _diff, "log": _log, "apply": _apply, "discard": _discard, "rename": _rename,
        "rebase": _rebase,
    }[options.subcommand]  # fmt: skip
    return act(context, draft)


def _diff(context: Context, draft: DraftRecord) -> int:
    with Preview(context.store, context.project, draft) as preview:
        return print_differences(context, preview.run, context.options.rest, {"draft": draft.name})


def _new(context: Context) -> int:
    options = context.options
    with show_progress("copying the project", options):
        project = context.store.projects.open(context.project.path)
        draft = drafts.new_draft(context.store, project, options.name, frozen=options.frozen)
    return context.print_result(
        _draft_fields(context, draft), f"draft {draft.name} begins; fumehood run --draft {draft.name} -- COMMAND"
    )


def _draft_fields(context: Context, draft: DraftRecord) -> dict[str, Any]:
    runs = context.store.history.held_runs(draft.project, draft.id)
    return {
        "name": draft.name, "project": context.project.path, "created_at": draft.created_at,
        "frozen": draft.base is not None, "runs": len(runs), "running": context.store.drafts.has_running_command(draft),
    }  # fmt: skip


def _list(context: Context) -> int:
    open_ones = context.store.drafts.open_drafts(context.project.id)
    rows = [_draft_fields(context, draft) for draft in open_ones]
    name_width = max((len(row["name"]) for row in rows), default=0)
    lines = []
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created_at"]))
        notes = [f"{how_many(row['runs'], 'run')} with changes"]
        notes += ["frozen"] if row["frozen"] else []
        notes += ["a command runs in it"] if row["running"] else []
        lines.append(f"{row['name']:{name_width}}  {Paint()(when, 'dim')}  {', '.join(notes)}")
    return context.print_result({"drafts": rows}, lines or "there is no draft here; fumehood draft new NAME")


def _show(context: Context, draft: DraftRecord) -> int:
    with Preview(context.store, context.project, draft) as preview:
        run = preview.run
        shown = run.fields_of(run.changed)
        merges, conflicts = compare_with_project(context.store, draft, preview)
    merged = [merge.change.path for merge in merges if not merge.places]
    answer = {
        **_draft_fields(context, draft), "changes": shown, "merged": merged,
        "conflicts": [conflict.as_dict() for conflict in conflicts],
    }  # fmt: skip

    if not context.print_if_json(answer):
        paint = Paint()
        print(f"draft {paint(printable(draft.name), 'bold')}: {how_many(len(shown), 'change')}{deletions_note(run)}")
        notes = dict.fromkeys(merged, "  merged with the project's")
        for text in lines_by_directory(run, paint, lambda change: notes.get(change.path, "")):
            print(f"  {text}")
        _print_conflicts(conflicts)
    return 0


def _print_conflicts(conflicts: Sequence[Conflict]) -> None:
    for conflict in conflicts:
        print(f"  {Paint()('conflict', 'red')}: {printable(conflict.path)}: {conflict.reason}")
        if conflict.text:
            print_difference(conflict_excerpts(conflict.text))


def conflict_excerpts(text: str) -> str:
    """Return the conflicts in a merged text, each with a few lines around it."""
    lines = text.splitlines(keepends=True)
    shown: set[int] = set()  # numbers of lines
    start = None
    for number, line in enumerate(lines):
        if line.startswith(CONFLICT_MARKS[0]):
            start = number
        elif line.startswith(CONFLICT_MARKS[2]) and start is not None:
            shown.update(range(max(0, start - _CONTEXT_LINES), min(len(lines), number + _CONTEXT_LINES + 1)))
            start = None
    pieces = [
        line if number - 1 in shown or number == 0 else f"[line {number + 1}]\n{line}"
        for number, line in enumerate(lines) if number in shown
    ]  # fmt: skip
    return "".join(pieces)


def _log(context: Context, draft: DraftRecord) -> int:
    runs = context.store.history.runs(RunFilter(draft=draft.id))
    rows = [pick_fields(run, "run number command state exit_code started_at") for run in runs]
    lines = []
    for run in runs:
        when = Paint()(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at)), "dim")
        lines.append(f"#{run.number}  {when}  {run.state:9}  {fit_columns(printable(run.command), COMMAND_WIDTH)}")
    none = f"nothing has run in draft {draft.name} yet; fumehood run --draft {draft.name} -- COMMAND"
    return context.print_result({"draft": draft.name, "runs": rows}, lines or none)


def _apply(context: Context, draft: DraftRecord) -> int:
    options = context.options
    try:
        with show_progress("applying", options):
            if options.as_commit:
                with context.sandbox() as sandbox:
                    run = sandbox.draft(draft.name).commit(
                        options.branch or "", message=options.message or "", author=options.author or "",
                        force=options.force,
                    )  # fmt: skip
            else:
                run = drafts.apply_draft(context.store, context.project, draft, force=options.force)
    except DraftConflict as error:
        conflicts: Sequence[Any] = error.conflicts
        answer = {"error": error.message, "hint": error.hint, "conflicts": [each.as_dict() for each in conflicts]}
        if not context.print_if_json(answer):
            _print_conflicts(conflicts)
            sys.stdout.flush()
            print_error(error)
        return 1  # as `git merge` does
    if not context.print_if_json(run.as_dict):
        if not run.changed:
            print(f"the project has all of it already; draft {draft.name} is removed")
        print_run(run, sys.stdout)
    return int(run.state == "held")


def _discard(context: Context, draft: DraftRecord) -> int:
    count = drafts.discard_draft(context.store, context.project, draft)
    message = f"draft {draft.name} is removed" + (f", with what {how_many(count, 'run')} wrote" if count else "")
    return context.print_result({"draft": draft.name, "runs": count}, message)


def _rename(context: Context, draft: DraftRecord) -> int:
    if len(context.options.rest) != 1:
        raise BadRequest("draft rename needs a new name", hint=f"fumehood draft rename {draft.name} NAME")
    renamed = context.store.drafts.rename(draft, context.options.rest[0])
    return context.print_result(_draft_fields(context, renamed), f"draft {draft.name} is draft {renamed.name} now")


def _rebase(context: Context, draft: DraftRecord) -> int:
    with context.sandbox() as sandbox:
        merged, conflicts = sandbox.draft(draft.name).rebase()
    answer = {"draft": draft.name, "merged": merged, "conflicts": [each.as_dict() for each in conflicts]}
    if not context.print_if_json(answer):
        for path in merged:
            print(f"  {printable(path)} has both the draft's and the project's changes now")
        _print_conflicts(conflicts)
        if conflicts:
            apply = f"fumehood draft apply {draft.name}"
            print(f"choose in the draft: fumehood run --draft {draft.name} -- COMMAND   then: {apply}")
            print(f"or let the draft's version win, where no conflict is marked: {apply} --force")
        if not merged and not conflicts:
            print("the project did not change what the draft has changed")
    return int(bool(conflicts))


_CANDIDATES = whole_number(1, MAX_CANDIDATES)


@command(
    "best", "run a command several times, each in a draft, and apply the best",
    "fumehood best -n 8 --jobs 4 --check 'pytest -q' -- 'agent --seed $FUMEHOOD_CANDIDATE'\n"
    "fumehood best -n 3 --check 'make test' --score './speed' --hold -- ./try.sh",
    option("-n", "N", "how many (default: 8)", dest="count", type=_CANDIDATES, default=8),
    option("--jobs", "N", "how many at once (default: 4)", type=_CANDIDATES, default=4),
    option("--check", "CMD", "what a candidate must pass; run in each"),
    option("--score", "CMD", "prints a number at its end, the higher the better"),
    option("--timeout", "SECONDS", "for all together", type=whole_number(1)),
    flag("--keep", "keep the drafts of the others too"),
    flag("--hold", "apply nothing: the best one's draft stays"),
    argument("command", nargs="+", metavar="COMMAND", help="one word is a shell line"),
)  # fmt: skip
def _best(context: Context) -> int:
    options = context.options
    line = options.command[0] if len(options.command) == 1 else options.command
    is_silent = context.as_json or options.quiet
    end_signals = [signal.SIGINT]

    def interrupt(number: int, _frame: object) -> None:
        end_signals[:] = [signal.Signals(number)]
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not if it is ignored, as under nohup
            signal.signal(number, interrupt)
    with context.sandbox() as sandbox:
        result = sandbox.best(
            line, options.count, jobs=options.jobs, check=options.check, score=options.score, keep=options.keep,
            apply=not options.hold, timeout=options.timeout, on_candidate=None if is_silent else print_candidate,
        )  # fmt: skip
    context.print_result(result.as_dict, lambda: print_best(result))
    if result.is_interrupted:
        return 128 + end_signals[0]
    return int(result.best is None or (result.run is None and not options.hold))


def print_candidate(candidate: Candidate) -> None:
    """Print how a candidate ended, while others still run."""
    codes = {"exit": candidate.exit_code, "check": candidate.check_code}
    code_text = "".join(f", {name} {code}" for name, code in codes.items() if code is not None)
    status = _status_text(candidate)
    sys.stderr.write(f"candidate {candidate.number}: {status}{code_text}, {candidate.duration_s:.1f} s\n")
    sys.stderr.flush()


def _status_text(candidate: Candidate) -> str:
    status = f"same as {candidate.same_as}" if candidate.same_as is not None else candidate.status
    return f"{status}: {printable(candidate.reason)}" if candidate.reason else status


def print_best(result: Best) -> None:
    """Print the candidates as a table, and what was done with the best."""
    paint = Paint()
    rows: list[tuple[str, ...]] = [("", "", "exit", "check", "score", "files", "lines", "time", "")]
    for each in result.candidates:
        codes = ("" if code is None else str(code) for code in (each.exit_code, each.check_code))
        score = "" if each.score is None else f"{each.score:g}"
        mark = "← the best" if each is result.best else ""
        rows.append((
            str(each.number), _status_text(each), *codes, score, str(each.files), f"+{each.added} -{each.removed}",
            f"{each.duration_s:.1f} s", mark,
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        text = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        print(paint(text, "bold") if row[-1] else paint(text, "dim") if number == 0 else text)
    if result.reason:
        print(printable(result.reason))
    if result.run is not None and not result.run.changed:
        print("it changes nothing, so nothing was applied")
    if result.run is not None:
        print_run(result.run, sys.stdout)
    if result.kept:
        print(f"drafts: {', '.join(result.kept)}; fumehood draft diff NAME, then draft apply or discard NAME")


@command(
    "export", "write the changes of a run or draft to a file that travels (an OCI image of one layer)",
    "fumehood export last -o fix.tar\nfumehood export 214 -o fix.patch --patch",
    argument("run", metavar="RUN|DRAFT", help="a run by its number, id or `last`; or the name of a draft"),
    option("-o --output", "FILE", "the file to write, which must be new; - for standard output", required=True),
    flag("--patch", "write a patch that git applies instead"),
    option("--key", "FILE", "sign it with this key (default: sign.key)", default=""),
)  # fmt: skip
def _export(context: Context) -> int:
    draft = context.store.drafts.find_open(context.project.id, context.options.run)
    if draft is None:
        run = context.run(context.options.run)
        return _export_run(context, run, {"run": run.run, "number": run.number}, f"run {run.name}")
    with Preview(context.store, context.project, draft) as preview:
        return _export_run(context, preview.run, {"draft": draft.name}, f"draft {draft.name}")


def _export_run(context: Context, run: Run, answer: dict[str, object], what: str) -> int:
    path, options = context.options.output, context.options
    try:
        is_stdout = path == "-" or os.path.samestat(os.stat(path), os.fstat(1))  # /dev/stdout, for example
    except OSError:
        is_stdout = False
    if is_stdout and context.as_json:
        raise BadRequest("both the object and the export would go to standard output", hint="name a file: -o FILE")
    target = 1 if is_stdout else os.path.abspath(path)
    if options.patch and options.key:
        raise BadRequest("a patch is not signed", hint="leave out --key, or --patch")
    if options.patch:
        key, count = "", bundles.export_patch(context.store, run, target)
    else:
        key = options.key or context.store.policy_of(context.project_of(run)).sign.key
        count = bundles.export(context.store, run, target, key=key)
    if is_stdout:
        return 0
    signed = f", signed with {printable(key)}" if key else ""
    message = f"{how_many(count, 'change')} of {what} written to {printable(path)}{signed}"
    return context.print_result({**answer, "file": target, "changes": count, "key": key}, message)


@command(
    "import", "import what export wrote, as a run that is held",
    "fumehood import fix.tar\nfumehood import --patch fix.patch", argument("file", metavar="FILE"),
    option("--draft", "NAME", "into this draft, which begins if there is none"),
    flag("--patch", "it is a patch, as git writes them"),
)  # fmt: skip
def _import(context: Context) -> int:
    with context.sandbox() as sandbox:
        target = sandbox if context.options.draft is None else sandbox.draft(context.options.draft)
        import_file = target.import_patch if context.options.patch else target.import_bundle
        run = import_file(context.options.file)
        if not run.changed:
            return context.print_result(run.as_dict, "nothing is held: the project has all of it already")
        return context.print_result(run.as_dict, lambda: print_run(run, sys.stdout))
