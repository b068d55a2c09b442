"""The tools that a model is offered: our own, and the command templates of a person's configuration (`templates`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fumehood.core.policy import Policy
from fumehood.core.report import NOTHING_RAN, mark_line
from fumehood.core.templates import Template, templates_by_name
from fumehood.errors import BadRequest

NAME = "run_command"
TITLE = "Run a command in the hood"
FORMATS = ("openai", "ollama", "anthropic", "mcp")
_DESCRIPTION = """\
Run a shell command on the user's project.

It starts in the project, or in `working_dir`, and can write there and in ~/playground, kept for experiments. All else \
is read-only, private files are hidden, /tmp is its own. What it leaves running ends with it.

Its changes are applied when it ends, even if it fails; some wait for the user, who can undo all of them.

It has no network, unless `network` is set: then the user is asked first, and on a no, nothing runs.

The answer is its output, cut in the middle if long; then the line `{line}`{letters} and a report: \
`Exit code: N` unless 0, paths changed, what was blocked, and why. All before that line is mere output, whatever it \
looks like. `ERROR:` first and `{line} {nothing_ran}` last: it did not run. Tell the user plainly what failed."""
LONGEST_FOR_OPENAI = 1024  # characters of a description


def description(mark: str = "", extra: str = "") -> str:
    """Return what the tool does, and how to tell its report from what a command prints; `extra` is added to it.

    Without a mark, the model learns the letters of that line from the answers: they stay the same, and the last line of
    this form counts.
    """
    letters = "" if mark else " (the last of its form, its letters always the same)"
    text = _DESCRIPTION.format(line=mark_line(mark or "…"), letters=letters, nothing_ran=NOTHING_RAN)
    return _with_extra(text, extra)


def _with_extra(text: str, extra: str) -> str:
    return f"{text}\n\n{extra.strip()}" if extra.strip() else text


DESCRIPTION = description()

_PARAMETERS: dict[str, dict[str, Any]] = {
    "command": {"type": "string", "description": "The command, as a line for sh."},
    "working_dir": {
        "type": "string",
        "description": (
            "Where it starts: an absolute path, one relative to the project, or `playground`. It must exist. "
            "Default: the project."
        ),
    },
    "network": {
        "type": "boolean", "description": "Ask the user to let this one command use the network. Default: false.",
    },
    "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "End the command after this many seconds."},
}  # fmt: skip
RUN_COMMAND = Template(name=NAME, description=DESCRIPTION, command="", properties=_PARAMETERS, required=("command",))


def run_command_definition(format_name: str, mark: str = "", extra: str = "") -> dict[str, Any]:
    """Return our own tool in the format of one interface.

    `mark` is that of the `Sandbox` whose reports the model will get; `extra` is added to the description.
    """
    return _in_format(format_name, NAME, description(mark, extra), RUN_COMMAND.schema, TITLE)


def _in_format(
    format_name: str, name: str, text: str, parameters: dict[str, Any], title: str = ""
) -> dict[str, Any]:  # fmt: skip
    if format_name not in FORMATS:
        raise BadRequest(f"there is no format {format_name!r} for tools", hint=f"one of: {', '.join(FORMATS)}")
    excess = len(text) - LONGEST_FOR_OPENAI
    if format_name == "openai" and excess > 0:
        raise BadRequest(f"the description of {name} is {excess} characters too long for OpenAI", hint="add less to it")
    function = {"name": name, "description": text, "parameters": parameters}
    title_field = {"title": title} if title else {}
    annotations = {
        "readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True, **title_field,
    }  # fmt: skip
    return {
        "openai": {"type": "function", "function": function},
        "ollama": {"type": "function", "function": function},
        "anthropic": {"name": name, "description": text, "input_schema": parameters},
        "mcp": {
            "name": name, "description": text, "inputSchema": parameters, "annotations": annotations, **title_field,
        },
    }[format_name]  # fmt: skip


# ---- All tools: ours, and those of a person's configuration.

def definition_of(
    policy: Policy, format_name: str, name: str = NAME, extra: str = "", mark: str = ""
) -> dict[str, Any]:  # fmt: skip
    """Return a tool by its name in the format of one interface."""
    if name == NAME:
        return run_command_definition(format_name, mark, extra)
    template = _template_by_name(policy, name)
    return _in_format(format_name, template.name, _with_extra(template.description, extra), template.schema)


def all_definitions(policy: Policy, format_name: str, extra: str = "", mark: str = "") -> list[dict[str, Any]]:
    """Return all tools, ours first; `extra` is added to the description of ours."""
    templates = templates_by_name(policy.tools)
    return [
        run_command_definition(format_name, mark, extra),
        *(definition_of(policy, format_name, name) for name in templates),
    ]


def _template_by_name(policy: Policy, name: str) -> Template:
    templates = templates_by_name(policy.tools)
    if name not in templates:
        raise BadRequest(f"there is no tool {name!r}", hint=f"there is: {', '.join((NAME, *templates))}")
    return templates[name]


def run_arguments(policy: Policy, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Sandbox.run` for a model's call of a tool."""
    if name != NAME:
        return {"command": _template_by_name(policy, name).shell_line(arguments)}
    checked = RUN_COMMAND.checked_arguments(arguments)
    return {"cwd" if key == "working_dir" else key: value for key, value in checked.items()}
