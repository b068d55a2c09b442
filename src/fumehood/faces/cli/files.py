"""Commands about files and projects: what is known of them, bringing a file back, reading the project anew."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from fumehood.core.changes import ABSENT
from fumehood.core.limits import size_told
from fumehood.core.report import how_many, printable, typed
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Add, Context, add_act, paint
from fumehood.faces.cli.look import tell_run
from fumehood.faces.cli.output import Paint, confirmed, here
from fumehood.faces.cli.screen import Ticking
from fumehood.service.files import scan_project
from fumehood.service.projects import forget, loss
from fumehood.service.restore import EMPTY, KnownFile, known_file, known_files, made_by, place_of, restore, versions
from fumehood.store.projects import KnownProject, Project

_NAMED = 3  # days and runs named in a line


def add_commands(add: Add) -> None:
    """Make these commands known."""
    files = add(
        "files", "list the files that runs changed, or everything one of them can be restored from", _files,
        "  fumehood files\n  fumehood files --all\n  fumehood files src/app.py",
    )  # fmt: skip
    files.add_argument("path", nargs="?", metavar="PATH", help="a file; or a directory, for all that is in it")
    files.add_argument("--all", action="store_true", help="list every known file, changed by a run or not")
    back = add(
        "restore", "bring back an earlier version of a file; this can be undone", _restore,
        "  fumehood restore src/app.py\n  fumehood restore src/app.py --from 01J8ZQ\n"
        "  fumehood restore src/app.py --from 2026-03-01",
    )  # fmt: skip
    back.add_argument("path", metavar="PATH", help="absolute, from here, or as the report shows it")
    back.add_argument(
        "--from", dest="source", default="", metavar="RUN|DATE",
        help="the version from before this run, or the backup of this day (default: from before its last change)",
    )  # fmt: skip
    add(
        "scan", "read the project and bring the list of its files up to date; what .gitignore names, packages, "
        "virtual environments and caches are left out", _scan, "  fumehood scan",
    )  # fmt: skip


def _files(context: Context) -> int:
    project, path = context.project, context.options.path
    if path is None:
        return _tell_list(context, project, known_files(context.store, project))
    top = os.path.realpath(os.path.join(here(), path))
    if top in project.roots:
        return _tell_list(context, project, known_files(context.store, project, top))
    root, below = place_of(context.store, project, path, here())
    file = known_file(context.store, project, root, below)
    inside = [] if file is not None else known_files(context.store, project, root, below)
    if inside:
        return _tell_list(context, project, inside)
    return _tell_one(context, project, root, below, file)


def _tell_list(context: Context, project: Project, files: Sequence[KnownFile]) -> int:
    listed = [each for each in files if context.options.all or each.was_touched]

    def show() -> None:
        colour = paint()
        for each in listed:
            print(_line(context, project.path, each, colour))
        if not files:
            print("no files are known yet; fumehood scan reads the project")
        elif len(listed) < len(files):
            left_out = len(files) - len(listed)
            print(colour(f"{left_out} more that no run changed; fumehood files --all lists them", "dim"))

    return context.say(lambda: {"files": [each.as_dict() for each in listed]}, show)


def _line(context: Context, project: str, file: KnownFile, colour: Paint) -> str:
    """Write a file in one line: its state, size, path, and where it can be had from."""
    record = file.record
    word, shade = ("deleted", "red") if record.is_deleted else ("", "dim")
    word, shade = ("waiting", "yellow") if record.needs_approval else (word, shade)
    sources = [*file.days, *map(context.store.history.name, file.runs)]
    count = len(file.days) + file.run_count
    named = ", ".join(sources[:_NAMED]) + (f" and {count - _NAMED} more" if count > _NAMED else "")
    where = "" if record.root == project else f"{record.root}/"
    past = colour(f"  from {named}", "dim") if sources else ""
    size = "" if record.kind == ABSENT else size_told(record.size)  # it would only come to be
    return f"{colour(f'{word:8}', shade)} {size:>10}  {printable(where + record.path)}{past}"


def _tell_one(context: Context, project: Project, root: str, path: str, file: KnownFile | None) -> int:
    kept = versions(context.store, project, root, path)
    by = made_by(context.store, project, root, path)
    if file is None and not kept and not by:
        raise BadRequest(
            f"nothing is known about {printable(path)}", hint="no run changed it; fumehood scan reads the project"
        )

    def show() -> None:
        colour = paint()
        if file is not None:
            print(_line(context, project.path, file.replace(days=(), runs=()), colour))
        if not kept:
            last = f"no earlier version is kept; run {context.store.history.name(by)} changed it last"
            why = last if by else "no run changed it"
            print(f"it can't be restored: {why}")
            return
        print("it can be restored:")
        for version in kept:
            is_run = "-" not in version.source
            when = time.strftime("%Y-%m-%d %H:%M:%S" if is_run else "%Y-%m-%d", time.localtime(version.at))
            source = context.store.history.name(version.source) if is_run else version.source
            size = size_told(version.size)
            kind = "" if version.kind == "file" else f" {version.kind}"
            print(f"  {source:16}  {colour(f'{when:19}', 'dim')}  {size:>10}{kind}  {printable(version.about)}")
        print(colour(f"fumehood restore {typed(path)} [--from RUN|DATE]", "dim"))

    answer = {"path": path, "root": root} if file is None else file.as_dict()
    return context.say({**answer, "versions": [version.as_dict() for version in kept]}, show)


def _restore(context: Context) -> int:
    done = restore(context.store, context.project, context.options.path, context.options.source, here=here())

    def show() -> None:
        if done.state == EMPTY:
            print("nothing to do: it is that version already")
            return
        tell_run(done, sys.stdout)
        print(f"  to have it back as it was: fumehood undo {done.name}")

    return context.say(done.as_dict, show)


def _scan(context: Context) -> int:
    seen = [0]

    def progress(count: int) -> None:
        seen[0] = count

    with Ticking("reading the project", context.options, lambda: f"{seen[0]} files"):
        scan = scan_project(context.store, context.project, progress)

    def show() -> None:
        kept = f", {scan.kept} missing but backed up" if scan.kept else ""
        print(f"{how_many(scan.files, 'file')}: {scan.added} new, {scan.updated} changed, {scan.dropped} gone{kept}")
        if scan.unread:
            print(f"{how_many(scan.unread, 'directory', 'directories')} could not be read")

    return context.say(scan.fields(), show)


def add_projects(add: Add) -> None:
    """Make `projects` known: every directory that Fumehood has a record of, wherever it is now."""
    command = add(
        "projects", "list the known projects, say where one has moved, or forget one", _projects,
        "  fumehood projects list\n  fumehood projects move ~/old/name ~/new/name\n  fumehood projects forget 3",
    )  # fmt: skip
    add_act(command, "list", "move", "forget")
    command.add_argument("which", nargs="?", metavar="PROJECT", help="its path, or its number in the list")
    command.add_argument("to", nargs="?", metavar="NEW", help="where it is now")
    command.add_argument("--yes", action="store_true", help="forget without asking")


def _projects(context: Context) -> int:
    options, projects = context.options, context.store.projects
    if options.what == "list":
        listed = projects.listed()
        return context.say({"projects": [each.fields() for each in listed]}, lambda: _show_projects(listed))
    if not options.which or (options.what == "move" and not options.to):
        needed = "PROJECT NEW" if options.what == "move" else "PROJECT"
        raise BadRequest(f"projects {options.what} needs {needed}", hint="fumehood projects list shows them")
    which = projects.named(options.which)
    if options.what == "move":
        with context.store.alone(which.id):
            moved = projects.move(which, options.to)
        return context.say(moved.fields(), lambda: print(f"project {moved.id} is at {printable(moved.path)} now"))
    lost = loss(context.store, which)
    if not options.yes:
        if not (os.isatty(0) and os.isatty(2)):
            hint = f"{lost.in_words()}; --yes does it"
            raise BadRequest(f"there is nobody to ask whether to forget {which.path}", hint=hint)
        question = f"forget project {which.id}, {printable(which.path)}? {lost.in_words()}. Its own files stay. [y/N] "
        if not confirmed(question):
            raise BadRequest("nothing was forgotten", hint="answer y, or give --yes")
    forget(context.store, which)
    return context.say({"forgotten": which.fields(), **lost.fields()}, lambda: print(f"forgotten; {lost.in_words()}"))


def _show_projects(projects: list[KnownProject]) -> None:
    if not projects:
        print("no project is known yet")
    for each in projects:
        held = f", {each.held} held" if each.held else ""
        place = "" if each.place == "there" else f"  [{each.place}]"
        print(f"{each.id:4}  {printable(each.path)}  {how_many(each.runs, 'run')}{held}{place}")
