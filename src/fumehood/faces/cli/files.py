"""Commands about files: what is known of them, bringing one back, reading the project anew."""

from __future__ import annotations

import os
import sys
import time

from fumehood.core.report import printable
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_act, paint
from fumehood.faces.cli.look import short, tell_run
from fumehood.faces.cli.output import here
from fumehood.service.files import scan_project
from fumehood.service.projects import forget, loss
from fumehood.service.restore import EMPTY, known_file, known_files, made_by, place_of, restore, versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fumehood.core.report import Run
    from fumehood.faces.cli.commands import Add, Context
    from fumehood.faces.cli.output import Paint
    from fumehood.service.restore import KnownFile, Version
    from fumehood.store.projects import KnownProject, Project


# ---- Commands about files: what is known of them, bringing one back, reading the project anew.

_NAMED = 3  # days and runs named in a line
_OFTEN_S = 0.1  # between two words of progress


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
    known = known_file(context.store, project, root, below)
    inside = [] if known is not None else known_files(context.store, project, root, below)
    if inside:
        return _tell_list(context, project, inside)
    return _tell_one(context, project, root, below, known)


def _tell_list(context: Context, project: Project, known: Sequence[KnownFile]) -> int:
    told = [each for each in known if context.options.all or each.is_worth_telling]
    left_out = len(known) - len(told)

    def show() -> None:
        colour = paint()
        for each in told:
            sys.stdout.write(f"{_line(project.path, each, colour)}\n")
        if not known:
            sys.stdout.write("no files are known yet; fumehood scan reads the project\n")
        elif left_out:
            sys.stdout.write(
                colour(f"{left_out} more that no run changed; fumehood files --all lists them", "dim") + "\n"
            )

    return context.say([each.told() for each in told], show)


def _line(project: str, each: KnownFile, colour: Paint) -> str:
    """Write a file in one line: its state, size, path, and where it can be had from."""
    known = each.record
    word, shade = ("", "dim")
    if known.needs_approval:
        word, shade = "waiting", "yellow"
    elif known.is_deleted:
        word, shade = "deleted", "red"
    sources = [*each.days, *map(short, each.runs)]
    named = ", ".join(sources[:_NAMED]) + (f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else "")
    where = "" if known.root == project else f"{known.root}/"
    past = colour(f"  from {named}", "dim") if sources else ""
    return f"{colour(f'{word:8}', shade)} {_size(known.size):>10}  {printable(where + known.path)}{past}"


def _tell_one(context: Context, project: Project, root: str, path: str, known: KnownFile | None) -> int:
    found = versions(context.store, project, root, path)
    by = made_by(context.store, project, root, path)
    if known is None and not found and not by:
        raise BadRequest(
            f"nothing is known about {printable(path)}", hint="no run changed it; fumehood scan reads the project"
        )
    told = {**({"path": path, "root": root} if known is None else known.told()),
            "versions": [version.told() for version in found]}  # fmt: skip
    return context.say(told, lambda: _show_versions(project, path, known, found, by))


def _show_versions(project: Project, path: str, known: KnownFile | None, found: Sequence[Version], by: str) -> None:
    colour = paint()
    if known is not None:
        sys.stdout.write(f"{_line(project.path, known.replace(days=(), runs=()), colour)}\n")
    if not found:
        why = f"no earlier version is kept; run {short(by)} changed it last" if by else "no run changed it"
        sys.stdout.write(f"it can't be restored: {why}\n")
        return
    sys.stdout.write("it can be restored:\n")
    for version in found:
        is_run = "-" not in version.source
        when = time.strftime("%Y-%m-%d %H:%M:%S" if is_run else "%Y-%m-%d", time.localtime(version.at))
        source = short(version.source) if is_run else version.source
        kind = "" if version.kind == "file" else f" {version.kind}"
        sys.stdout.write(
            f"  {source:16}  {colour(f'{when:19}', 'dim')}  {_size(version.size):>10}{kind}  "
            f"{printable(version.about)}\n"
        )
    sys.stdout.write(colour(f"fumehood restore {printable(path)} [--from RUN|DATE]", "dim") + "\n")


def _size(size: int) -> str:
    """Write a size as a person says it."""
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{size} bytes" if units[0] == "bytes" else f"{amount:.1f} {units[0]}"


def _restore(context: Context) -> int:
    done = restore(
        context.store, context.project, context.options.path, context.options.source, here=here()
    )
    return context.say(done.as_dict(), lambda: _tell_restored(done))


def _tell_restored(done: Run) -> None:
    if done.state == EMPTY:
        sys.stdout.write("nothing to do: it is that version already\n")
        return
    tell_run(done, sys.stdout)
    sys.stdout.write(f"  to have it back as it was: fumehood undo {short(done.run)}\n")


def _scan(context: Context) -> int:
    tell, done = _progress()
    try:
        found = scan_project(context.store, context.project, tell)
    finally:
        done()

    def show() -> None:
        files = "1 file" if found.files == 1 else f"{found.files} files"
        sys.stdout.write(
            f"{files}: {found.added} new, {found.updated} changed, {found.dropped} gone"
            + (f", {found.kept} missing but backed up" if found.kept else "")
            + "\n"
        )
        if found.unread:
            what = "1 directory" if found.unread == 1 else f"{found.unread} directories"
            sys.stdout.write(f"{what} could not be read\n")

    return context.say(found.fields(), show)


def _progress() -> tuple[Callable[[int], None] | None, Callable[[], None]]:
    """Return what shows on a terminal how far a scan is, now and then, and what removes that again."""
    if not os.isatty(2) or os.environ.get("TERM") == "dumb":
        return None, lambda: None
    last = 0.0

    def tell(count: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _OFTEN_S:
            last = time.monotonic()
            sys.stderr.write(f"\rreading the project: {count} files ")
            sys.stderr.flush()

    def done() -> None:
        if last:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    return tell, done


# ---- `fumehood projects`: every directory that Fumehood has a record of, wherever it is now.

def add_projects(add: Add) -> None:
    """Make this command known."""
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
        known = projects.known()
        return context.say({"projects": [each.fields() for each in known]}, lambda: _show(known))
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
        _confirm(which, lost.told())
    forget(context.store, which)
    return context.say({"forgotten": which.fields(), **lost.fields()}, lambda: print(f"forgotten; {lost.told()}"))


def _show(known: list[KnownProject]) -> None:
    if not known:
        sys.stdout.write("no project is known yet\n")
    for each in known:
        held = f", {each.held} held" if each.held else ""
        place = "" if each.place == "there" else f"  [{each.place}]"
        runs = "1 run" if each.runs == 1 else f"{each.runs} runs"
        sys.stdout.write(f"{each.id:4}  {printable(each.path)}  {runs}{held}{place}\n")


def _confirm(which: KnownProject, lost: str) -> None:
    """Have the person at the terminal say yes; without one, nothing is forgotten."""
    if not (os.isatty(0) and os.isatty(2)):
        raise BadRequest(f"there is nobody to ask whether to forget {which.path}", hint=f"{lost}; --yes does it")
    sys.stderr.write(f"forget project {which.id}, {printable(which.path)}? {lost}. Its own files stay. [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadRequest("nothing was forgotten", hint="answer y, or give --yes")
