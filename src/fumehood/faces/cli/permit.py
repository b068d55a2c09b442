"""Commands about what commands may do and what was set: roots, grants, playground, config, tool, capabilities."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from fumehood.core.config import Complaint
from fumehood.core.config_keys import KEYS, SECTIONS, shown
from fumehood.core.limits import size_told
from fumehood.core.policy import EVERYWHERE
from fumehood.core.report import printable, typed
from fumehood.core.tool import FORMATS, NAME, defined, every
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.faces.cli.commands import Add, Context, add_act, paint
from fumehood.faces.cli.output import whole_number
from fumehood.faces.cli.prompt import terminal
from fumehood.service import provided
from fumehood.service.permission import Permissions
from fumehood.service.projects import add_root, offered, remove_root
from fumehood.store.audit import Grant
from fumehood.store.config import compile_file, file_of, load, policy_for

_EXAMPLES = """  fumehood capabilities
  fumehood capabilities --root alpine
  fumehood capabilities --json | jq .runtimes"""


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
        permissions = Permissions(store, terminal, patience_s=store.policy_of(project).ask_timeout)
        # Whoever types this at a terminal is the person; an agent that runs it is not.
        is_person = os.isatty(0) and os.isatty(2) and bool(terminal())
        project = add_root(store, project, options.directory, permissions, by_person=is_person)
    elif options.what == "remove":
        project = remove_root(store, project, options.directory)
    more = offered(store, project)

    def show() -> None:
        for root in project.roots:
            print(printable(root))
        if more:
            print("commands can't write these yet, a git directory or where a link leads; to let them:")
        for path in more:
            print(f"  fumehood roots add {typed(path)}")

    return context.say({"roots": list(project.roots), "offered": more}, show)


def _grants(context: Context) -> int:
    grants = context.store.grants
    if context.options.what == "revoke":
        if context.options.grant is None:
            raise BadRequest("grants revoke needs a number", hint="fumehood grants list shows them")
        gone = grants.revoke(context.options.grant)
        return context.say(gone.fields(), lambda: print(f"revoked: {_grant_line(gone)}"))
    kept = grants.all()

    def show() -> None:
        if not kept:
            print("no answers are kept: you are asked whenever a permission is needed")
        for grant in kept:
            print(f"{grant.id:4}  {_grant_line(grant)}")

    return context.say({"grants": [grant.fields() for grant in kept]}, show)


def _grant_line(grant: Grant) -> str:
    when = time.strftime("%Y-%m-%d", time.localtime(grant.kept_at))
    return f"{grant.answer:5} {grant.what}: {printable(grant.target)} in {printable(grant.project)}, since {when}"


def _playground(context: Context) -> int:
    places, what = context.store.places, context.options.what
    if what == "clean":
        freed = provided.empty_playground(places)
        return context.say({"bytes": freed}, lambda: print(f"{size_told(freed)} freed"))
    path = provided.make_playground(places)
    if what == "path":
        return context.say({"path": path}, lambda: print(printable(path)))
    size = provided.playground_size(places)
    return context.say({"path": path, "bytes": size}, lambda: print(size_told(size)))


def add_config(add: Add) -> None:
    """Make these commands known."""
    config = add(
        "config", "show what is configured for this project, where the file is, or what is wrong with it", _config,
        "  fumehood config show\n  fumehood config check\n  $EDITOR \"$(fumehood config path)\"",
    )  # fmt: skip
    add_act(config, "show", "path", "check")
    tool = add(
        "tool", "print the tool to offer a model: its name, description and schema", _tool,
        "  fumehood tool --format openai\n  fumehood tool --format mcp --all",
    )  # fmt: skip
    tool.add_argument("name", nargs="?", metavar="NAME", default=NAME, help="a [[tool]] of the configuration instead")
    tool.add_argument("--format", choices=FORMATS, required=True, help="the interface it is for")
    tool.add_argument("--extra", metavar="TEXT", default="", help="sentences to add to its description")
    tool.add_argument("--all", action="store_true", help="print an object with a list of all: ours, and each [[tool]]")


def _tool(context: Context) -> int:
    options = context.options
    try:
        roots = context.project.roots
    except BadRequest:
        if options.project or options.workspace:
            raise
        roots = ()  # nobody works here, and the tool is the same everywhere
    policy = policy_for(context.store.places, roots)
    if options.all:
        answer: dict[str, Any] = {"tools": every(policy, options.format, options.extra)}
    else:
        answer = defined(policy, options.format, options.name, options.extra)
    return context.say(answer, lambda: print(json.dumps(answer, indent=2)))


def _config(context: Context) -> int:
    what, path = context.options.what, file_of(context.store.places)
    if what == "path":
        return context.say({"path": path}, lambda: print(path))
    return _check(context, path) if what == "check" else _show(context, path)


def _check(context: Context, path: str) -> int:
    if not os.path.lexists(path):
        answer: dict[str, Any] = {"path": path, "exists": False, "problems": [], "remarks": []}
        return context.say(answer, lambda: print(f"{printable(path)} does not exist: the defaults are used"))
    checked = compile_file(path)[1]
    complaints, notes = checked.complaints, tuple[Complaint, ...]()
    if not complaints:
        from fumehood.service.explain import remarks

        notes = remarks(path, checked)
        # What is no matter of its text: who may write it.
        load(context.store.places, context.project.roots)

    def show() -> None:
        for each in (*complaints, *notes):
            key = f"{paint()(printable(each.key), 'bold')}: " if each.key else ""
            hint = f" ({printable(each.hint)})" if each.hint else ""
            print(f"{printable(path)}:{each.line}: {key}{printable(each.message)}{hint}")
        if not complaints:
            print(f"{printable(path)} is fine{', but not all of it has an effect here' if notes else ''}")

    problems, noted = ([each.fields() for each in some] for some in (complaints, notes))
    context.say({"path": path, "exists": True, "problems": problems, "remarks": noted}, show)
    return 1 if complaints else 0


def _show(context: Context, path: str) -> int:
    project = context.project
    settings = load(context.store.places, project.roots)
    policy = policy_for(context.store.places, project.roots)
    own, everywhere = settings.get(project.path, {}), settings.get(EVERYWHERE, {})
    keys = []
    for key in KEYS:
        origin = "project" if key.place in own else "global" if key.place in everywhere else "default"
        keys.append({"key": key.name, "value": key.of(policy), "from": origin})
    sections = {each.name: list(map(_plain, getattr(policy, each.field))) for each in SECTIONS}

    def show() -> None:
        for key, each in zip(KEYS, keys, strict=True):
            line = f"{key.name} = {printable(key.kind.write(each['value']))}"
            print(paint()(line, "dim") if each["from"] == "default" else f"{line}    # {each['from']}")
        for name, tables in sections.items():
            for table in tables:
                fields = {**table, **table.get("settings", {})}
                unsaid = ("settings", "defaults")
                inside = [f"{field} = {shown(value)}" for field, value in fields.items() if field not in unsaid]
                print(f"[[{name}]] {printable(', '.join(inside))}")

    return context.say({"path": path, "project": project.path, "keys": keys, **sections}, show)


def _plain(table: Any) -> dict[str, Any]:
    """Return a table of the policy, or what was made of one, without what says nothing."""
    fields: dict[str, Any] = table.fields() if isinstance(table, Value) else table
    return {name: value for name, value in fields.items() if value not in ((), {})}


def add_capabilities(add: Add) -> None:
    """Make `capabilities` known: what commands find in their sandbox, for a system prompt or a program."""
    about = "describe what commands find in their sandbox, as text for a model"
    command = add("capabilities", about, _capabilities, _EXAMPLES)
    command.add_argument("--root", metavar="ROOT", default="", help="the root to look in (default: the configured one)")
    command.add_argument("--fresh", action="store_true", help="start every program, also those that are as they were")


def _capabilities(context: Context) -> int:
    from fumehood.linux.launch import start
    from fumehood.service.explain import capabilities
    from fumehood.service.sandbox import Hood

    project = context.store.projects.open(context.project.path)
    hood = Hood(context.store, project, context.store.policy_of(project), start)
    answer = capabilities(hood, context.options.root, fresh=context.options.fresh)
    return context.say(answer, lambda: print(answer.for_model()))
