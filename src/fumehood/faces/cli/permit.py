"""Commands about what commands may do: roots, grants, the playground."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from fumehood.core.config_keys import KEYS, SECTIONS, shown
from fumehood.core.policy import EVERYWHERE
from fumehood.core.report import printable
from fumehood.core.tool import FORMATS, definition
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Context, add_act, paint
from fumehood.faces.cli.output import whole_number
from fumehood.faces.cli.prompt import terminal
from fumehood.service import scratch
from fumehood.service.clean import size_told
from fumehood.service.permission import Permissions
from fumehood.service.projects import add_root, offered, remove_root
from fumehood.store.config import compile_file, file_of, load, policy_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.config import Complaint
    from fumehood.faces.cli.commands import Add
    from fumehood.store.audit import Grant


# ---- Commands about what commands may do: roots, grants, the playground.

def add_commands(add: Add) -> None:
    """Make these commands known."""
    roots = add(
        "roots", "list, add or remove directories that commands may write besides the project", _roots,
        "  fumehood roots list\n  fumehood roots add ../shared-library",
    )  # fmt: skip
    add_act(roots, "list", "add", "remove")
    roots.add_argument("directory", nargs="?", metavar="DIR")
    grants = add(
        "grants", "list the answers that you chose to keep, or take one back", _grants,
        "  fumehood grants list\n  fumehood grants revoke 3",
    )  # fmt: skip
    add_act(grants, "list", "revoke")
    grants.add_argument("grant", nargs="?", type=whole_number(1), metavar="NUMBER")
    ground = add(
        "playground", "show where the agent's own directory is and how large it is, or empty it", _playground,
        "  fumehood playground path\n  fumehood playground size\n  fumehood playground clean",
    )  # fmt: skip
    add_act(ground, "path", "size", "clean")


def _roots(context: Context) -> int:
    project, options, store = context.project, context.options, context.store
    if options.what != "list" and not options.directory:
        raise BadRequest(f"roots {options.what} needs a directory", hint=f"fumehood roots {options.what} DIR")
    if options.what == "add":
        project = store.projects.open(project.path)
        permissions = Permissions(store.grants, terminal, patience_s=store.policy_of(project).ask_timeout)
        # Whoever types this at a terminal is the person; an agent that runs it is not.
        typed = os.isatty(0) and os.isatty(2) and permissions.are_answered
        project = add_root(store, project, options.directory, permissions, by_person=typed)
    elif options.what == "remove":
        project = remove_root(store, project, options.directory)
    more = offered(store, project)

    def show() -> None:
        for root in project.roots:
            sys.stdout.write(f"{printable(root)}\n")
        if more:
            sys.stdout.write("commands can't write these yet, a git directory or where a link leads; to let them:\n")
        for path in more:
            sys.stdout.write(f"  fumehood roots add {printable(path)}\n")

    return context.say({"roots": list(project.roots), "offered": more}, show)


def _grants(context: Context) -> int:
    grants = context.store.grants
    if context.options.what == "revoke":
        if context.options.grant is None:
            raise BadRequest("grants revoke needs a number", hint="fumehood grants list shows them")
        gone = grants.revoke(context.options.grant)
        return context.say(gone.fields(), lambda: print(f"revoked: {_told(gone)}"))
    kept = grants.all()

    def show() -> None:
        if not kept:
            sys.stdout.write("no answers are kept: you are asked whenever a permission is needed\n")
        for grant in kept:
            sys.stdout.write(f"{grant.id:4}  {_told(grant)}\n")

    return context.say([grant.fields() for grant in kept], show)


def _told(grant: Grant) -> str:
    when = time.strftime("%Y-%m-%d", time.localtime(grant.kept_at))
    return f"{grant.answer:5} {grant.what}: {printable(grant.target)} in {printable(grant.project)}, since {when}"


def _playground(context: Context) -> int:
    places, what = context.store.places, context.options.what
    if what == "clean":
        freed = scratch.emptied(places)
        return context.say({"bytes": freed}, lambda: print(f"{size_told(freed)} freed"))
    path = scratch.made(places)
    if what == "path":
        return context.say({"path": path}, lambda: print(f"{printable(path)}"))
    size = scratch.size(places)
    return context.say({"path": path, "bytes": size}, lambda: print(f"{size_told(size)}"))


# ---- Commands that tell what was set: config, tool.

def add_config(add: Add) -> None:
    """Make these commands known."""
    config = add(
        "config", "show what is configured for this project, where the file is, or what is wrong with it", _config,
        "  fumehood config show\n  fumehood config check\n  $EDITOR \"$(fumehood config path)\"",
    )  # fmt: skip
    add_act(config, "show", "path", "check")
    tool = add(
        "tool", "print the tool to offer a model: its name, description and schema", _tool,
        "  fumehood tool --format openai\n  fumehood tool --format mcp --json",
    )  # fmt: skip
    tool.add_argument("--format", choices=FORMATS, required=True, help="the interface it is for")


def _tool(context: Context) -> int:
    told = definition(context.options.format)
    return context.say(told, lambda: print(json.dumps(told, indent=2)))


def _config(context: Context) -> int:
    return {"show": _show, "path": _path, "check": _check}[context.options.what](context)


def _path(context: Context) -> int:
    path = file_of(context.store.places)
    return context.say({"path": path}, lambda: print(path))


def _check(context: Context) -> int:
    import os

    path = file_of(context.store.places)
    if not os.path.lexists(path):
        told: dict[str, Any] = {"path": path, "exists": False, "problems": []}
        return context.say(told, lambda: print(f"{printable(path)} does not exist: the defaults are used"))
    complaints = compile_file(path)[1].complaints
    if not complaints:
        # What is no matter of its text: who may write it.
        load(context.store.places, context.project.roots)
    told = {"path": path, "exists": True, "problems": [each.fields() for each in complaints]}
    context.say(told, lambda: _tell(path, complaints))
    return 1 if complaints else 0


def _tell(path: str, complaints: tuple[Complaint, ...]) -> None:
    for each in complaints:
        key = f"{paint()(printable(each.key), 'bold')}: " if each.key else ""
        hint = f" ({printable(each.hint)})" if each.hint else ""
        print(f"{printable(path)}:{each.line}: {key}{printable(each.message)}{hint}")
    if not complaints:
        print(f"{printable(path)} is fine")


def _show(context: Context) -> int:
    project = context.project
    settings = load(context.store.places, project.roots)
    policy = policy_for(context.store.places, project.roots)
    keys = [
        {"key": key.name, "value": key.of(policy), "from": _origin(settings, project.path, key.place)} for key in KEYS
    ]
    sections = {each.name: list(map(_plain, getattr(policy, each.field))) for each in SECTIONS}
    told = {"path": file_of(context.store.places), "project": project.path, "keys": keys, **sections}
    return context.say(told, lambda: _tell_keys(keys, sections))


def _plain(table: Any) -> dict[str, Any]:
    """Return a table of the policy, or what was made of one, without what says nothing."""
    fields: dict[str, Any] = table.fields() if isinstance(table, Value) else table
    return {name: value for name, value in fields.items() if value not in ((), {})}


def _origin(settings: dict[str, dict[str, Any]], project: str, field: str) -> str:
    """Tell whose word counts: the project's table, the top of the file, or the default."""
    if field in settings.get(project, {}):
        return "project"
    return "global" if field in settings.get(EVERYWHERE, {}) else "default"


def _tell_keys(told: list[dict[str, Any]], sections: dict[str, Any]) -> None:
    for key, each in zip(KEYS, told, strict=True):
        line = f"{key.name} = {printable(key.kind.write(each['value']))}"
        print(paint()(line, "dim") if each["from"] == "default" else f"{line}    # {each['from']}")
    for name, tables in sections.items():
        for table in tables:
            given = {**table, **table.get("settings", {})}
            unsaid = ("settings", "defaults")
            inside = ", ".join(f"{field} = {shown(value)}" for field, value in given.items() if field not in unsaid)
            print(f"[[{name}]] {printable(inside)}")


# ---- `fumehood capabilities`: what commands find in their sandbox, for a system prompt or a program.

_EXAMPLES = """  fumehood capabilities
  fumehood capabilities --root alpine
  fumehood capabilities --json | jq .runtimes"""


def add_capabilities(add: Add) -> None:
    """Make this command known."""
    about = "describe what commands find in their sandbox, as text for a model"
    command = add("capabilities", about, _capabilities, _EXAMPLES)
    command.add_argument("--root", metavar="ROOT", default="", help="the root to look in (default: the configured one)")
    command.add_argument("--fresh", action="store_true", help="look again instead of using the remembered answer")


def _capabilities(context: Context) -> int:
    from fumehood.core.tool import as_text
    from fumehood.linux.launch import start
    from fumehood.service.explain import capabilities
    from fumehood.service.sandbox import Hood

    project = context.store.projects.open(context.project.path)
    hood = Hood(context.store, project, context.store.policy_of(project), start)
    told = capabilities(hood, context.options.root, fresh=context.options.fresh)
    return context.say(told, lambda: print(as_text(told), file=sys.stdout))
