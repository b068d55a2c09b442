"""Commands about a project: its files, its place, its permissions and its configuration.

files, restore, scan, projects, roots, grants, playground, config, tool, capabilities
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fumehood.core.changes import ABSENT
from fumehood.core.config import KEYS, SECTIONS, Complaint, as_toml
from fumehood.core.patterns import skipped_directory_of
from fumehood.core.policy import ALL_PROJECTS
from fumehood.core.report import format_size, how_many, path_in_list, printable, shell_path
from fumehood.core.tool import FORMATS, NAME, all_definitions, definition_of
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, argument, command, flag, option, subcommands
from fumehood.faces.cli.output import Paint, whole_number, working_dir
from fumehood.faces.cli.run_text import print_run
from fumehood.faces.cli.screen import ask_yes_no, show_progress, terminal_asker
from fumehood.linux.launch import start
from fumehood.service import provided
from fumehood.service.files import scan_project
from fumehood.service.permission import Permissions
from fumehood.service.projects import forget_project, loss_if_forgotten
from fumehood.service.restore import EMPTY, KnownFile, known_file, known_files, made_by, place_of, restore, versions
from fumehood.service.roots import add_root, possible_new_roots, remove_root
from fumehood.store.audit import Grant
from fumehood.store.config import compile_file, configuration_path, load_settings, policy_for, scopes_of
from fumehood.store.projects import Project

_MAX_SOURCES = 3  # days and runs named in a line


@command(
    "files", "list the files that runs changed, or everything one of them can be restored from",
    "fumehood files\nfumehood files --all\nfumehood files src/app.py",
    argument("path", nargs="?", metavar="PATH", help="a file; or a directory, for all that is in it"),
    flag("--all", "list every known file, changed by a run or not"),
)  # fmt: skip
def _files(context: Context) -> int:
    project, path = context.project, context.options.path
    if path is None:
        return _print_files(context, project, known_files(context.store, project), folds=not context.options.all)
    top = os.path.realpath(os.path.join(working_dir(), path))
    if top in project.roots:
        return _print_files(context, project, known_files(context.store, project, top))
    root, below = place_of(context.store, project, path, working_dir())
    file = known_file(context.store, project, root, below)
    inside = [] if file is not None else known_files(context.store, project, root, below)
    if inside:
        return _print_files(context, project, inside)
    return _print_file(context, project, root, below, file)


def _print_files(context: Context, project: Project, files: Sequence[KnownFile], *, folds: bool = False) -> int:
    """Print files; with `folds`, those in packages, repositories and caches as one line for each such directory."""
    listed, paint = [each for each in files if context.options.all or each.was_touched], Paint()

    def lines() -> Iterator[str]:
        folded = Counter[str]()
        for each in listed:
            directory = skipped_directory_of(each.record.path) if folds and not each.record.needs_approval else ""
            if directory:
                folded[_place_of(project.path, each.record.root, directory)] += 1
            else:
                yield _file_line(context, project.path, each, paint)
        for directory, count in folded.items():
            yield paint(f"{how_many(count, 'more file')} in {path_in_list(directory)}; "
                        f"fumehood files {shell_path(directory)} lists them", "dim")  # fmt: skip
        if not files:
            yield "no files are known yet; fumehood scan reads the project"
        elif len(listed) < len(files):
            left_out = len(files) - len(listed)
            yield paint(f"{left_out} more that no run changed; fumehood files --all lists them", "dim")

    return context.print_result(lambda: {"files": [each.as_dict() for each in listed]}, lines())


def _file_line(context: Context, project: str, file: KnownFile, paint: Paint) -> str:
    """Return a file as a line: its state, size, path, and the days and runs from which it can be restored."""
    record = file.record
    word, colour = ("deleted", "red") if record.is_deleted else ("", "dim")
    word, colour = ("waiting", "yellow") if record.needs_approval else (word, colour)
    sources = [*file.days, *map(context.store.history.name_of, file.runs)]
    count = len(file.days) + file.run_count
    named = ", ".join(sources[:_MAX_SOURCES]) + (f" and {count - _MAX_SOURCES} more" if count > _MAX_SOURCES else "")
    past = paint(f"  from {named}", "dim") if sources else ""
    size = "" if record.kind == ABSENT else format_size(record.size)  # absent: a held change would create it
    place = path_in_list(_place_of(project, record.root, record.path))
    return f"{paint(f'{word:8}', colour)} {size:>10}  {place}{past}"


def _place_of(project: str, root: str, path: str) -> str:
    """Return a path as lists show it: in the project without the project's own path."""
    return path if root == project else f"{root}/{path}"


def _print_file(context: Context, project: Project, root: str, path: str, file: KnownFile | None) -> int:
    stored_versions = versions(context.store, project, root, path)
    last_run = made_by(context.store, project, root, path)
    if file is None and not stored_versions and not last_run:
        raise BadRequest(
            f"nothing is known about {printable(path)}", hint="no run changed it; fumehood scan reads the project"
        )
    paint = Paint()

    def lines() -> Iterator[str]:
        if file is not None:
            yield _file_line(context, project.path, file.replace(days=(), runs=()), paint)
        if not stored_versions:
            last = f"no earlier version is kept; run {context.store.history.name_of(last_run)} changed it last"
            yield f"it can't be restored: {last if last_run else 'no run changed it'}"
            return
        yield "it can be restored:"
        for version in stored_versions:
            is_run = "-" not in version.source
            when = time.strftime("%Y-%m-%d %H:%M:%S" if is_run else "%Y-%m-%d", time.localtime(version.at))
            source = context.store.history.name_of(version.source) if is_run else version.source
            kind = "" if version.kind == "file" else f" {version.kind}"
            size = f"{format_size(version.size):>10}"
            yield f"  {source:16}  {paint(f'{when:19}', 'dim')}  {size}{kind}  {printable(version.about)}"
        yield paint(f"fumehood restore {shell_path(path)} [--from RUN|DATE]", "dim")

    answer = {"path": path, "root": root} if file is None else file.as_dict()
    return context.print_result({**answer, "versions": [version.as_dict() for version in stored_versions]}, lines())


@command(
    "restore", "bring back an earlier version of a file; this can be undone",
    "fumehood restore src/app.py\nfumehood restore src/app.py --from 01J8ZQ\n"
    "fumehood restore src/app.py --from 2026-03-01",
    argument("path", metavar="PATH", help="absolute, from here, or as the report shows it"),
    option("--from", "RUN|DATE", "the version from before this run, or the backup of this day"
           " (default: from before its last change)", dest="source", default=""),
)  # fmt: skip
def _restore(context: Context) -> int:
    run = restore(context.store, context.project, context.options.path, context.options.source, here=working_dir())
    if run.state == EMPTY:
        return context.print_result(run.as_dict, "nothing to do: it is that version already")
    if not context.print_if_json(run.as_dict):
        print_run(run, sys.stdout)
        print(f"  to undo this: fumehood undo {run.name}")
    return 0


@command(
    "scan", "read the project and bring the list of its files up to date; what .gitignore names, packages, "
    "virtual environments and caches are left out", "fumehood scan",
)  # fmt: skip
def _scan(context: Context) -> int:
    file_counts = [0]

    def progress(count: int) -> None:
        file_counts[0] = count

    with show_progress("reading the project", context.options, lambda: f"{file_counts[0]} files"):
        scan = scan_project(context.store, context.project, progress)
    missing = f", {scan.kept} missing but backed up" if scan.kept else ""
    lines = [f"{how_many(scan.files, 'file')}: {scan.added} new, {scan.updated} changed, {scan.dropped} gone{missing}"]
    lines += [f"{how_many(scan.unread, 'directory', 'directories')} could not be read"] if scan.unread else []
    return context.print_result(scan.fields(), lines)


@command(
    "projects", "list the known projects, say where one has moved, or forget one",
    "fumehood projects list\nfumehood projects move ~/old/name ~/new/name\nfumehood projects forget 3",
    subcommands("list", "move", "forget"),
    argument("which", nargs="?", metavar="PROJECT", help="its path, or its number in the list"),
    argument("to", nargs="?", metavar="NEW", help="where it is now"), flag("--yes", "forget without asking"),
)  # fmt: skip
def _projects(context: Context) -> int:
    options, projects = context.options, context.store.projects
    if options.subcommand == "list":
        listed = projects.list_all()
        lines = [
            f"{each.id:4}  {printable(each.path)}  {how_many(each.runs, 'run')}"
            + (f", {each.held} held" if each.held else "") + ("" if each.place == "there" else f"  [{each.place}]")
            for each in listed
        ]  # fmt: skip
        return context.print_result(
            {"projects": [each.fields() for each in listed]}, lines or "no project is known yet"
        )
    if not options.which or (options.subcommand == "move" and not options.to):
        needed = "PROJECT NEW" if options.subcommand == "move" else "PROJECT"
        raise BadRequest(f"projects {options.subcommand} needs {needed}", hint="fumehood projects list shows them")
    project = projects.find(options.which)
    if options.subcommand == "move":
        with context.store.lock_project(project.id):
            moved = projects.move(project, options.to)
        return context.print_result(moved.fields(), f"project {moved.id} is at {printable(moved.path)} now")
    losses = loss_if_forgotten(context.store, project)
    if not options.yes:
        if not (os.isatty(0) and os.isatty(2)):
            hint = f"{losses.in_words()}; --yes does it"
            raise BadRequest(f"there is nobody to ask whether to forget {project.path}", hint=hint)
        name = f"project {project.id}, {printable(project.path)}"
        if not ask_yes_no(f"forget {name}? {losses.in_words()}. Its own files stay. [y/N] "):
            raise BadRequest("nothing was forgotten", hint="answer y, or give --yes")
    forget_project(context.store, project)
    return context.print_result({"forgotten": project.fields(), **losses.fields()}, f"forgotten; {losses.in_words()}")


@command(
    "roots", "list, add or remove directories that commands may write besides the project",
    "fumehood roots list\nfumehood roots add ../shared-library",
    subcommands("list", "add", "remove"), argument("directory", nargs="?", metavar="DIR"),
)  # fmt: skip
def _roots(context: Context) -> int:
    project, options, store = context.project, context.options, context.store
    if options.subcommand != "list" and not options.directory:
        raise BadRequest(
            f"roots {options.subcommand} needs a directory", hint=f"fumehood roots {options.subcommand} DIR"
        )
    if options.subcommand == "add":
        project = store.projects.open(project.path)
        permissions = Permissions(store, terminal_asker, patience_s=store.policy_of(project).ask_timeout)
        # Only the person types this at a terminal; an agent has none.
        is_person = os.isatty(0) and os.isatty(2) and bool(terminal_asker())
        project = add_root(store, project, options.directory, permissions, by_person=is_person)
    elif options.subcommand == "remove":
        project = remove_root(store, project, options.directory)
    offered_directories = possible_new_roots(store, project)
    lines = list(map(printable, project.roots))
    if offered_directories:
        lines.append("commands can't write these yet: a git directory, a mount, or where a link leads; to let them:")
    lines += [f"  fumehood roots add {shell_path(path)}" for path in offered_directories]
    return context.print_result({"roots": list(project.roots), "offered": offered_directories}, lines)


@command(
    "grants", "list the answers that you chose to keep, or take one back",
    "fumehood grants list\nfumehood grants revoke 3",
    subcommands("list", "revoke"), argument("grant", nargs="?", type=whole_number(1), metavar="NUMBER"),
)  # fmt: skip
def _grants(context: Context) -> int:
    grants = context.store.grants
    if context.options.subcommand == "revoke":
        if context.options.grant is None:
            raise BadRequest("grants revoke needs a number", hint="fumehood grants list shows them")
        revoked = grants.revoke(context.options.grant)
        return context.print_result(revoked.fields(), f"revoked: {_grant_line(revoked)}")
    kept = grants.all()
    lines = [f"{grant.id:4}  {_grant_line(grant)}" for grant in kept]
    none = "no answers are kept: you are asked whenever a permission is needed"
    return context.print_result({"grants": [grant.fields() for grant in kept]}, lines or none)


def _grant_line(grant: Grant) -> str:
    when = time.strftime("%Y-%m-%d", time.localtime(grant.kept_at))
    return f"{grant.answer:5} {grant.what}: {printable(grant.target)} in {printable(grant.project)}, since {when}"


@command(
    "playground", "show where the agent's own directory is and how large it is, or empty it",
    "fumehood playground path\nfumehood playground size\nfumehood playground clean",
    subcommands("path", "size", "clean"),
)  # fmt: skip
def _playground(context: Context) -> int:
    places, what = context.store.places, context.options.subcommand
    if what == "clean":
        freed = provided.empty_playground(places)
        return context.print_result({"bytes": freed}, f"{format_size(freed)} freed")
    path = provided.make_playground(places)
    if what == "path":
        return context.print_result({"path": path}, printable(path))
    size = provided.playground_size(places)
    return context.print_result({"path": path, "bytes": size}, format_size(size))


def _roots_here(context: Context) -> tuple[str, ...]:
    project = context.project_here
    return () if project is None else project.roots  # without a project, the settings for all projects hold


@command(
    "tool", "print the tool to offer a model: its name, description and schema",
    "fumehood tool --format openai\nfumehood tool --format mcp --all",
    argument("name", nargs="?", metavar="NAME", default=NAME, help="a [[tool]] of the configuration instead"),
    argument("--format", choices=FORMATS, required=True, help="the interface it is for"),
    option("--extra", "TEXT", "sentences to add to its description", default=""),
    flag("--all", "print an object with a list of all: ours, and each [[tool]]"),
)  # fmt: skip
def _tool(context: Context) -> int:
    options = context.options
    policy = policy_for(context.store.places, _roots_here(context))
    if options.all:
        answer: dict[str, Any] = {"tools": all_definitions(policy, options.format, options.extra)}
    else:
        answer = definition_of(policy, options.format, options.name, options.extra)
    return context.print_result(answer, json.dumps(answer, indent=2))


@command(
    "config", "show what is configured for this project, where the file is, or what is wrong with it",
    "fumehood config show\nfumehood config check\n$EDITOR \"$(fumehood config path)\"",
    subcommands("show", "path", "check"),
)  # fmt: skip
def _config(context: Context) -> int:
    what, path = context.options.subcommand, configuration_path(context.store.places)
    if what == "path":
        return context.print_result({"path": path}, path)
    return _check_config(context, path) if what == "check" else _show_config(context, path)


def _check_config(context: Context, path: str) -> int:
    if not os.path.lexists(path):
        answer: dict[str, Any] = {"path": path, "exists": False, "problems": [], "remarks": []}
        return context.print_result(answer, f"{printable(path)} does not exist: the defaults are used")
    checked = compile_file(path)[1]
    complaints, config_remarks = checked.complaints, tuple[Complaint, ...]()
    if not complaints:
        from fumehood.service.explain import settings_without_effect

        config_remarks = settings_without_effect(path, checked)
        # Loading also checks who can write the file.
        load_settings(context.store.places, _roots_here(context))
    lines = []
    for complaint in (*complaints, *config_remarks):
        key = f"{Paint()(printable(complaint.key), 'bold')}: " if complaint.key else ""
        hint = f" ({printable(complaint.hint)})" if complaint.hint else ""
        lines.append(f"{printable(path)}:{complaint.line}: {key}{printable(complaint.message)}{hint}")
    if not complaints:
        remark = ", but not all of it has an effect here" if config_remarks else ""
        lines.append(f"{printable(path)} is fine{remark}")
    problems, remark_fields = ([each.fields() for each in listed] for listed in (complaints, config_remarks))
    context.print_result({"path": path, "exists": True, "problems": problems, "remarks": remark_fields}, lines)
    return 1 if complaints else 0


def _show_config(context: Context, path: str) -> int:
    roots = _roots_here(context)
    project = roots[0] if roots else None
    settings = load_settings(context.store.places, roots)
    policy = policy_for(context.store.places, roots)
    global_settings = settings.get(ALL_PROJECTS, {})
    project_settings = {key for each in scopes_of(settings, roots) if each != ALL_PROJECTS for key in settings[each]}
    keys, lines, sections = [], [], {}
    for key in KEYS:
        origin = "project" if key.place in project_settings else "global" if key.place in global_settings else "default"
        keys.append({"key": key.name, "value": key.of(policy), "from": origin})
        line = f"{key.name} = {printable(key.kind.write(key.of(policy)))}"
        lines.append(Paint()(line, "dim") if origin == "default" else f"{line}    # {origin}")
    for section in SECTIONS:  # tables of the policy, without their empty fields
        entries = (each.fields() if isinstance(each, Value) else each for each in getattr(policy, section.field))
        tables = [{name: value for name, value in each.items() if value not in ((), {})} for each in entries]
        sections[section.name] = tables
        for table in tables:
            fields = {**table, **table.get("settings", {})}.items()
            cells = [f"{name} = {as_toml(value)}" for name, value in fields if name not in ("settings", "defaults")]
            lines.append(f"[[{section.name}]] {printable(', '.join(cells))}")
    return context.print_result({"path": path, "project": project, "keys": keys, **sections}, lines)


@command(
    "capabilities", "describe what commands find in their sandbox, as text for a model",
    "fumehood capabilities\nfumehood capabilities --root alpine\nfumehood capabilities --json | jq .runtimes",
    option("--root", "ROOT", "the root to look in (default: the configured one)", default=""),
    flag("--fresh", "start every program, also those that are as they were"),
)  # fmt: skip
def _capabilities(context: Context) -> int:
    from fumehood.service.explain import capabilities
    from fumehood.service.hood import Hood

    project = context.project
    hood = Hood(context.store, project, context.store.policy_of(project), start)
    answer = capabilities(hood, context.options.root, fresh=context.options.fresh)
    return context.print_result(answer, answer.for_model())
