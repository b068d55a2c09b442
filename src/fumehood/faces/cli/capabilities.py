"""`fumehood capabilities`: what commands find in their sandbox, for a system prompt or a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fumehood.faces.cli.commands import Context

if TYPE_CHECKING:
    from fumehood.faces.cli.commands import Add

_EXAMPLES = """  fumehood capabilities
  fumehood capabilities --root alpine
  fumehood capabilities --json | jq .runtimes"""


def add_commands(add: Add) -> None:
    """Make this command known."""
    command = add("capabilities", "describe what commands find in their sandbox, as text for a model", _tell, _EXAMPLES)
    command.add_argument("--root", metavar="ROOT", default="", help="the root to look in (default: the configured one)")
    command.add_argument("--fresh", action="store_true", help="look again instead of using the remembered answer")


def _tell(context: Context) -> int:
    from fumehood.core.capabilities import as_text
    from fumehood.linux.launch import start
    from fumehood.service.capabilities import capabilities
    from fumehood.service.sandbox import Hood

    project = context.store.projects.open(context.project.path)
    hood = Hood(context.store, project, context.store.policy_of(project), start)
    told = capabilities(hood, context.options.root, fresh=context.options.fresh)
    return context.say(told, lambda: print(as_text(told), file=sys.stdout))
