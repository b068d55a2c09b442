"""The tool that a model is offered: its name, what it says of itself, and the schema of what it takes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "run_command"
TITLE = "Run a command in the hood"
FORMATS = ("openai", "ollama", "anthropic", "mcp")

# OpenAI takes at most 1024 characters.
DESCRIPTION = """\
Run a shell command on the user's project; returns what it printed and what it changed.

It starts in the project directory, or in `working_dir`. It can write there and in ~/playground, a place for \
experiments and clones that is kept. Everything else is read-only, private files (keys, tokens) are hidden, and /tmp \
is empty at the start. Processes it leaves in the background end with it.

What it wrote is applied to the project when it ends, even if it fails. Some changes wait for the user instead, who \
can undo all of them.

It has no network. Set `network` to true only where it is needed: the user is asked each time, and if they say no, \
nothing runs.

The answer is standard output, then standard error, with the middle left out if long; `Exit code: N` unless 0; each \
path added, modified or deleted; what was blocked, and why. An answer that begins with `ERROR:` says why the command \
did not run."""

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
        "type": "boolean",
        "description": "Ask the user to let this one command use the network. Default: false.",
    },
    "timeout": {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "End the command after this many seconds.",
    },
}


def schema() -> dict[str, Any]:
    """Return the JSON schema of the arguments."""
    properties = {name: dict(parameter) for name, parameter in _PARAMETERS.items()}
    return {"type": "object", "properties": properties, "required": ["command"], "additionalProperties": False}


def definition(form: str) -> dict[str, Any]:
    """Return the tool as one vendor's interface wants it; raises KeyError for a form that is not in FORMATS."""
    function = {"name": NAME, "description": DESCRIPTION, "parameters": schema()}
    return {
        "openai": {"type": "function", "function": function},
        "ollama": {"type": "function", "function": function},
        "anthropic": {"name": NAME, "description": DESCRIPTION, "input_schema": schema()},
        "mcp": {
            "name": NAME,
            "title": TITLE,
            "description": DESCRIPTION,
            "inputSchema": schema(),
            "annotations": {
                "title": TITLE,
                "readOnlyHint": False,
                "destructiveHint": True,
                "idempotentHint": False,
                "openWorldHint": True,
            },
        },
    }[form]
