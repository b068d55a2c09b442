"""The tools that a model is offered: ours, and the command templates of the person's configuration."""

from __future__ import annotations

from typing import Any

from fumehood.core.policy import Policy
from fumehood.core.templates import Template, templates
from fumehood.core.tool import NAME, definition, schema, shaped
from fumehood.errors import BadRequest
from fumehood.store.config import policy_for
from fumehood.store.places import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def tool(format: str = "openai", *, extra: str = "", name: str = NAME) -> dict[str, Any]:  # noqa: A002 - as users say it
    """Return the tool that runs commands, as openai, ollama, anthropic or mcp wants it; or a `[[tool]]` by its name.

    `extra` is added to its description: sentences of an application's own, for example that web pages are read by
    another tool. A `Sandbox` has the same with its mark, and `Sandbox.run_tool` runs what a model asks for.
    """
    return defined(policy_for(places(), ()), format, name, extra)


def defined(policy: Policy, form: str, name: str = NAME, extra: str = "", mark: str = "") -> dict[str, Any]:
    """Return a tool by its name, as an interface wants it."""
    if name == NAME:
        return definition(form, mark, extra)
    template = _named(policy, name)
    words = f"{template.description}\n\n{extra.strip()}" if extra.strip() else template.description
    return shaped(form, template.name, words, template.schema)


def every(policy: Policy, form: str, extra: str = "", mark: str = "") -> list[dict[str, Any]]:
    """Return all the tools, ours first; `extra` is said of ours."""
    return [definition(form, mark, extra), *(defined(policy, form, name) for name in templates(policy.tools))]


def _named(policy: Policy, name: str) -> Template:
    own = templates(policy.tools)
    if name not in own:
        raise BadRequest(f"there is no tool {name!r}", hint=f"there is: {', '.join((NAME, *own))}")
    return own[name]


def asked_for(policy: Policy, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `Sandbox.run` is to be given for a model's call of a tool."""
    if name != NAME:
        return {"command": _named(policy, name).line(arguments)}
    whole = schema()
    own = Template(name=NAME, description="", command="", properties=whole["properties"], required=("command",))
    values = own.values(arguments)
    return {"cwd" if key == "working_dir" else key: value for key, value in values.items()}
