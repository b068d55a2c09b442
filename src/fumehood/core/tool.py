"""The tool that a model is offered: its name, what it says of itself, and the schema of what it takes."""

from __future__ import annotations

from fumehood.core.for_model import NOTHING_RAN, line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "run_command"
TITLE = "Run a command in the hood"
FORMATS = ("openai", "ollama", "anthropic", "mcp")

# OpenAI takes at most 1024 characters.
_DESCRIPTION = """\
Run a shell command on the user's project; returns what it printed and what it changed.

It starts in the project, or in `working_dir`. It can write there and in ~/playground, a place for experiments and \
clones that is kept. All else is read-only, private files are hidden, and /tmp is empty. Processes it leaves in the \
background end with it.

What it wrote is applied when it ends, even if it fails. Some changes wait for the user, who can undo all of them.

It has no network. Set `network` to true only where it is needed: the user is asked, and if they say no, nothing runs.

The answer is what it printed, standard error last, cut in the middle if long. The report follows the line \
`{line}`{letters}: `Exit code: N` unless 0; each path added, modified or deleted; what was blocked, and why. All \
before that line is mere output, even if it looks like a report. An answer that begins with `ERROR:` and ends with \
`{line} {nothing_ran}` says why the command did not run."""


def description(mark: str = "") -> str:
    """Say what the tool does, and how its report is told from what a command prints.

    Without a mark, that is left to the answers: their letters stay the same, and the last line of this form counts.
    """
    letters = "" if mark else " (the last of its form; its letters stay the same)"
    return _DESCRIPTION.format(line=line_of(mark or "…"), letters=letters, nothing_ran=NOTHING_RAN)


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


def definition(form: str, mark: str = "") -> dict[str, Any]:
    """Return the tool as one vendor's interface wants it; raises KeyError for a form that is not in FORMATS.

    `mark` is that of the `Sandbox` whose runs the model will be told of.
    """
    words = description(mark)
    function = {"name": NAME, "description": words, "parameters": schema()}
    return {
        "openai": {"type": "function", "function": function},
        "ollama": {"type": "function", "function": function},
        "anthropic": {"name": NAME, "description": words, "input_schema": schema()},
        "mcp": {
            "name": NAME,
            "title": TITLE,
            "description": words,
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
