"""Commands about this machine: root trees, workspaces, its abilities, and what can be cleaned up.

rootfs, workspace, doctor, clean
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, TextIO

from fumehood.core.report import how_many, printable
from fumehood.core.wording import fit_columns
from fumehood.errors import BadConfiguration, BadRequest
from fumehood.faces.cli.commands import (  # fmt: skip
    Context,
    argument,
    command,
    flag,
    option,
    repeated_option,
    subcommands,
)
from fumehood.faces.cli.output import COMMAND_WIDTH, Paint, whole_number
from fumehood.faces.cli.screen import Progress, ask_yes_no, show_progress
from fumehood.linux import doctor
from fumehood.rootfs.tree import Installed, read_mark
from fumehood.service import recover
from fumehood.service.clean import DEFAULT_DAYS, MAX_NAMED, Freed, clean
from fumehood.service.explain import Examination, examine
from fumehood.service.opened import OpenedStore
from fumehood.service.projects import clear_workspace, remove_workspace, reset_root, root_layer_of, size_of
from fumehood.store.config import policy_for
from fumehood.store.named import Workspace

_CAPTURES = {
    "kernel": "the kernel's overlay, mounted by the launcher in a namespace of its own",
    "bwrap": "bubblewrap's own --overlay",
    "fuse": "fuse-overlayfs",
    "copy": "a copy of every root before each run (slow on big projects)",
}
_MARK_COLOURS = {"ok": "green", "MISSING": "red", "missing": "yellow", "info": "dim"}


@command(
    "rootfs", "install, list, check, update, use or remove root trees for --root",
    "fumehood rootfs install\nfumehood rootfs install --tier 2 --package py3-numpy\n"
    "fumehood rootfs install --from my-image.tar --name mine\nfumehood rootfs check && fumehood rootfs update\n"
    "fumehood run --root alpine -- 'cat /etc/os-release'",
    subcommands("list", "install", "check", "update", "use", "remove"),
    argument("name", nargs="?", metavar="NAME", help="the tree to use or remove"),
    argument(
        "--tier", type=whole_number(), choices=(0, 1, 2),
        help="1: bash, Python, pip, coreutils, grep, sed (default); 2: also findutils, curl, wget, git, tar, unzip, jq,"
        " gawk, Node.js, npm; 0: nothing (default with --from)",
    ),
    option("--version", "V", "this version (3.20.3), or the newest of a branch (3.20)"),
    option("--from", "FILE|URL", "a root tarball, or an OCI image archive", dest="source"),
    option("--name", "NAME", "what the tree is called", dest="named"),
    option("--sha256", "HEX", "the checksum that the file must have"),
    option("--mirror", "URL", "instead of rootfs.mirror of the configuration"),
    option("--proxy", "URL", "instead of rootfs.proxy of the configuration"),
    repeated_option("--package", "NAME", "add this package too (py3-numpy); can be repeated"),
    repeated_option("--key", "FILE", "a public key that signs packages, instead of rootfs.keys of the configuration;"
            " can be repeated"),
)  # fmt: skip
def _rootfs(context: Context) -> int:
    from fumehood.service import root_trees

    store, options, what = context.store, context.options, context.options.subcommand
    if what in ("use", "remove") and not options.name:
        raise BadRequest(f"rootfs {what} needs a name", hint="fumehood rootfs list shows them")
    if what not in ("use", "remove") and options.name:
        raise BadRequest(f"rootfs {what} takes no name", hint=f"fumehood rootfs {what} --help")
    if what == "check":
        return _check_newer(context)
    if what == "remove":
        root_trees.remove_from(store, options.name, Progress(is_shown=not context.as_json))
        current = root_trees.installed_and_current(store)[1]
        means = f"; alpine is {current} now" if current else ""
        return context.print_result(
            {"removed": options.name, "current": current or None}, f"{options.name} is removed{means}"
        )
    tree = root_trees.make_current(store, options.name) if what == "use" else None
    if what in ("install", "update"):
        tree = _install_or_update(context)  # None if the newest version is installed already
        if tree is None:
            return context.print_result({"newer": None}, "the newest version is installed")
    trees, current = root_trees.installed_and_current(store)

    def entry(tree: Installed) -> dict[str, object]:
        mark = read_mark(tree.path)
        return {
            "name": tree.name, "version": tree.version, "path": tree.path, "current": tree.name == current,
            "tier": mark.tier, "packages": list(mark.packages),
        }  # fmt: skip

    if tree is not None:
        called = "alpine" if tree.name == current else tree.name
        ready = f"{tree.name} is ready: fumehood run --root {called} -- 'cat /etc/os-release'"
        return context.print_result(entry(tree), ready)
    lines = [
        f"{'*' if each.name == current else ' '} {each.name:28} {each.version:12} {printable(each.path)}"
        for each in trees
    ]
    return context.print_result(
        {"roots": list(map(entry, trees))}, lines or "no root tree is installed; fumehood rootfs install"
    )


def _install_or_update(context: Context) -> Installed | None:
    """Install or update a tree; returns None if the newest version is installed already."""
    from fumehood.service import root_trees

    options = context.options
    settings: dict[str, Any] = {
        "tier": options.tier, "packages": options.package or (), "mirror": options.mirror or "",
        "proxy": options.proxy or "", "key": options.key or (), "on_progress": Progress(is_shown=not context.as_json),
    }  # fmt: skip
    if options.subcommand == "update":
        not_for_update = {
            "--version": options.version, "--from": options.source, "--name": options.named, "--sha256": options.sha256
        }  # fmt: skip
        for option in (option for option, value in not_for_update.items() if value is not None):
            raise BadRequest(f"rootfs update does not take {option}", hint=f"fumehood rootfs install {option} … does")
        return root_trees.update(context.store, **settings)
    return root_trees.install_into(
        context.store, version=options.version or "", name=options.named or "", from_=options.source or "",
        sha256=options.sha256 or "", **settings,
    )  # fmt: skip


def _check_newer(context: Context) -> int:
    from fumehood.service import root_trees

    options = context.options
    newer = root_trees.newer_version(context.store, mirror=options.mirror or "", proxy=options.proxy or "")
    trees, current = root_trees.installed_and_current(context.store)
    used = next((tree.version for tree in trees if tree.name == current), None)
    if newer is None:
        line = f"Alpine {used} is the newest"
    elif used is None:
        line = f"Alpine {newer} can be installed: fumehood rootfs install"
    else:
        line = f"Alpine {newer} is out, {used} is in use: fumehood rootfs update"
    return context.print_result({"current": used, "newer": newer}, line)


def _writable_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    may = "its commands may install into a root layer of its own"
    group.add_argument("--writable", action="store_true", default=None, help=may)
    group.add_argument("--read-only", dest="writable", action="store_false", help="its commands may not")


@command(
    "workspace", "make, list, change, reset, empty or remove workspaces",
    "fumehood workspace create research --network ask --env LANG=de_DE.UTF-8\n"
    "fumehood run --workspace research -- 'pip install requests'\n"
    "fumehood workspace create builder --writable        # apk add works, for this workspace alone\n"
    "fumehood workspace reset builder                    # and is forgotten again\n"
    "fumehood workspace clear builder --yes              # its files too\n"
    "cd \"$(fumehood workspace path research)\"",
    subcommands("list", "create", "set", "path", "reset", "clear", "remove"),
    argument("name", nargs="?", metavar="NAME", help="its name; reset without one means this project"),
    option("--root", "ROOT", "the root its commands see (default: alpine)"),
    option("--network", "RULE", "none, ask or full (default: as configured)"),
    repeated_option("--env", "NAME=VALUE", "set this variable; can be repeated"), _writable_options,
    flag("--yes", "clear or remove it although it is not empty"),
)  # fmt: skip
def _workspace(context: Context) -> int:
    options = context.options
    if options.subcommand not in ("list", "reset") and not options.name:
        raise BadRequest(f"workspace {options.subcommand} needs a name", hint="fumehood workspace list shows them")
    if options.subcommand == "path":
        path = context.store.workspaces.find(options.name).path
        return context.print_result({"path": path}, path)
    if options.subcommand == "list":
        return _list_workspaces(context)
    if options.subcommand in ("create", "set"):
        return _create_or_set(context)
    if options.subcommand == "reset":
        path = context.store.workspaces.find(options.name).path if options.name else context.project.path
        dropped = reset_root(context.store, context.store.projects.open(path, register=False))
        said = " again" if dropped else "; there was nothing to drop"
        return context.print_result(
            {"path": path, "dropped": dropped}, f"{printable(path)}: its root is the shared one{said}"
        )
    workspace, is_clear = context.store.workspaces.find(options.name), options.subcommand == "clear"
    (clear_workspace if is_clear else remove_workspace)(context.store, workspace, sure=options.yes)
    answer = {"cleared" if is_clear else "removed": workspace.name}
    return context.print_result(answer, f"the workspace {workspace.name} is {'empty' if is_clear else 'removed'}")


def _create_or_set(context: Context) -> int:
    options = context.options
    given_options = {"root": options.root, "network": options.network, "writable": options.writable}
    settings: dict[str, Any] = {name: value for name, value in given_options.items() if value is not None}
    if options.env is not None:
        pairs = [pair.partition("=") for pair in options.env]
        for name, equals, _ in pairs:
            if not equals:
                raise BadRequest(f"{name!r} is not a variable with a value", hint="--env NAME=VALUE")
        settings["environment"] = tuple((name, value) for name, _, value in pairs)
    if options.subcommand == "create":
        workspace, done = context.store.workspaces.create(options.name, **settings), "made"
    else:
        workspace, done = context.store.workspaces.change(options.name, settings), "changed"
    name = workspace.name
    lines = f"the workspace {name} is {done}: {workspace.path}", f"fumehood run --workspace {name} -- …"
    return context.print_result(_workspace_entry(context, workspace), lines)


def _workspace_entry(context: Context, workspace: Workspace) -> dict[str, Any]:
    project = context.store.projects.open(workspace.path, register=False)
    layer = root_layer_of(context.store, project) if project.id else None
    base = layer.base if layer is not None else ""
    return {
        **workspace.fields(), "environment": dict(workspace.environment), "size": size_of(workspace.path),
        "layer": {"base": base, "size": size_of(layer.upper)} if layer is not None and base else None,
    }  # fmt: skip


def _list_workspaces(context: Context) -> int:
    entries = [_workspace_entry(context, workspace) for workspace in context.store.workspaces.all()]

    def mib(size: int) -> str:
        return f"{size / (1 << 20):.1f} MiB"

    lines = []
    for each in entries:
        layer, network = each["layer"], each["network"] or "as configured"
        kept = f"  own root layer: {mib(layer['size'])} over {layer['base']}" if layer else ""
        lines.append(f"{each['name']:16} {mib(each['size']):>10}  root {each['root']}, network {network}{kept}")
        lines.append(f"{'':16} {printable(each['path'])}")
    return context.print_result(
        {"workspaces": entries}, lines or "there is no workspace yet; fumehood workspace create NAME"
    )


@command(
    "doctor", "say what this host can do, what is missing, and how to fix it",
    "fumehood doctor\nfumehood doctor --mend",
    flag("--mend", "move a damaged database aside, and rebuild what can be rebuilt from the runs' directories"),
    opens_records=False,  # the database may be damaged
)  # fmt: skip
def _doctor(options: argparse.Namespace) -> int:
    if options.mend:
        return _mend_records(options)
    context = Context(options)
    try:
        project = context.project_here
        if project is not None:
            context.store.policy_of(project)
    except (BadRequest, BadConfiguration):
        if options.project or options.workspace:
            raise
        project = None
    examination = examine(context.store, project)
    return print_examination(examination, as_json=context.as_json, colour=Paint().on, out=sys.stdout)


def print_examination(examination: Examination, *, as_json: bool, colour: bool, out: TextIO) -> int:
    """Print what this host can do; returns 0 if commands can be sandboxed here, else 1."""
    host = examination.host
    if as_json:
        out.write(json.dumps(examination.as_dict(), indent=2) + "\n")
        return int(bool(host.why_bare))
    paint = Paint()
    paint.on = colour
    if host.why_bare or not host.bwrap:
        lines = [
            paint("Commands can NOT be sandboxed on this machine.", "red"), f"  {host.why_bare}",
            "  each one would run unsandboxed, and only if you allow it when you are asked", "",
        ]  # fmt: skip
    else:
        version = ".".join(str(part) for part in host.bwrap.version)
        # The protections that work come first, then those that this host lacks.
        protections = sorted(doctor.in_force(host).items(), key=lambda item: not item[1].works)
        in_force = [
            name if each.works else f"no {name} ({each.detail.partition(': ')[2]})" for name, each in protections
        ]
        lines = [
            paint("Commands can be sandboxed on this machine.", "bold"),
            f"  bubblewrap  {version}, {host.bwrap.path} ({host.bwrap.origin})",
            f"  capture     {examination.capture}: {_CAPTURES[examination.capture]}",
            f"  why         {examination.why_this_capture}",
            f"  in force    {', '.join(in_force)}", "",
        ]  # fmt: skip
    name_width = min(max(len(ability.name) for ability in examination.abilities), 44)
    for ability in examination.abilities:
        mark = "ok" if ability.works else "MISSING" if ability.needed == "required" else "missing"
        mark = "info" if ability.needed == "info" else mark
        label = paint(f"{mark:8}", _MARK_COLOURS[mark])
        lines.append(f"{label} {ability.name:{name_width}}  {printable(ability.detail)}")
        if ability.fix and not ability.works:
            lines.append(f"{'':9}{paint('fix:', 'bold')} {ability.fix}")
    out.write("\n".join(lines) + "\n")
    return int(bool(host.why_bare))


def _mend_records(options: argparse.Namespace) -> int:
    store, mended = recover.rebuild(OpenedStore)
    store.close()
    if options.json:
        sys.stdout.write(json.dumps({**mended.fields(), "left": list(mended.left)}) + "\n")
        return 0
    if mended.set_aside:
        print(f"the damaged database is now in {printable(mended.set_aside)}")
    print(f"{how_many(mended.runs, 'run')} recovered: fumehood log")
    if mended.set_aside or mended.runs:
        print("kept answers, added roots and short outputs were only in the database, and are lost")
    for place in mended.left:
        is_record = place.endswith(".record")
        what = "this record can't be read, and" if is_record else "no run is known for this directory, which"
        print(f"{what} stays as it is: {printable(place)}")
    return 0


@command(
    "clean", "remove what this project no longer needs, and say what that freed; what is held stays",
    "fumehood clean --dry-run\nfumehood clean --days 7\nfumehood clean --all --yes",
    flag("--all", "clean every project, and what no record names"),
    flag("--dry-run", "only say what would be removed"), flag("--yes", "don't ask for confirmation"),
    option("--days", "N", "remove older backups and outputs, so that those runs can't be undone; only days on which"
           f" Fumehood ran are counted (default: clean.keep_days of the configuration, else {DEFAULT_DAYS})",
           type=whole_number()),
)  # fmt: skip
def _clean(context: Context) -> int:
    options = context.options
    if options.all and (options.project or options.workspace):
        raise BadRequest("--all and --project can't be used together", hint="choose one")
    settings = policy_for(context.store.places, ()).clean
    days = settings.keep_days if options.days is None else options.days
    project = None if options.all else context.project

    def cleaned(*, dry: bool) -> Freed:
        with show_progress("looking for what can be removed" if dry else "removing", options):
            return clean(
                context.store, days=days, backup_days=settings.backup_days, budget=settings.budget, project=project,
                dry=dry,
            )  # fmt: skip

    if not options.dry_run and not options.yes and os.isatty(0) and os.isatty(1):
        going = cleaned(dry=True)
        if (going.runs or going.backups) and not ask_yes_no(f"{_freed_text(context, going)}\ngo on? [y/N] "):
            sys.stderr.write("nothing was removed\n")
            return 1
    freed = cleaned(dry=options.dry_run)
    return context.print_result(freed.fields(), _freed_text(context, freed))


def _freed_text(context: Context, freed: Freed) -> str:
    """Return what a cleaning removes as text, with the number and command of the first runs that it names."""
    runs = map(context.store.history.find, freed.not_undoable[:MAX_NAMED])
    lines = [
        f"  #{run.number}  {fit_columns(printable(run.command), COMMAND_WIDTH)}"
        + (f"  in {printable(run.project)}" if context.options.all else "")
        for run in runs
    ]
    return freed.in_words(lines)
