"""Commands that tell what was set: config, tool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fumehood.core.keys import KEYS, SECTIONS
from fumehood.core.kinds import shown
from fumehood.core.policy import EVERYWHERE
from fumehood.core.report import printable
from fumehood.core.tool import FORMATS, definition
from fumehood.core.value import Value
from fumehood.faces.cli.commands import Context, add_act, paint
from fumehood.store.config import compile_file, file_of, load, policy_for

if TYPE_CHECKING:
    from fumehood.core.config import Complaint
    from fumehood.faces.cli.commands import Add


def add_commands(add: Add) -> None:
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
