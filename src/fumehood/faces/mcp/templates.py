"""Tools of the person's own (`[[tool]]`): a call becomes a command, and goes the way of `run_command` from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from fumehood.core.report import refusal
from fumehood.core.tool import templates
from fumehood.errors import BadConfiguration, FumehoodError
from fumehood.faces.mcp.results import MARK
from fumehood.faces.mcp.tools import run_command

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context


class TemplateTool(Tool):
    """A tool whose arguments are words of a command."""

    template: Any = Field(exclude=True)

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        """Run the command that these arguments make; what is wrong with them is told to the model."""
        try:
            line = self.template.line(arguments)
        except FumehoodError as error:
            said = TextContent(type="text", text=refusal(error, MARK))
            result = CallToolResult(content=[said], is_error=True)
            return self.fn_metadata.convert_result(result) if convert_result else result
        return await super().run({"command": line}, context, convert_result)


def own_tools(project: str | None, hints: ToolAnnotations) -> list[Tool]:
    """Return the tools that the configuration has, for every project or also for the one that is served."""
    from fumehood.store.config import policy_for
    from fumehood.store.places import places

    try:
        policy = policy_for(places(), () if project is None else (project,))
    except BadConfiguration:
        return []  # each command says what is wrong with it
    tools: list[Tool] = []
    for each in templates(policy.tools).values():
        plain = Tool.from_function(run_command, name=each.name, description=each.description, annotations=hints)
        fields = {name: getattr(plain, name) for name in Tool.model_fields}
        tools.append(TemplateTool(**(fields | {"parameters": each.schema}), template=each))
    return tools
