"""OpenAI Agents: an executor for `ShellTool`, whose commands run in the hood.

`Agent(…, tools=[ShellTool(executor=ShellExecutor("path/to/project"))])`
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from agents import FunctionTool, ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult

from fumehood import BadRequest, FumehoodError, Sandbox
from fumehood.adapters import AgentSession, full_output, notes, own_tools
from fumehood.core.report import join_streams
from fumehood.core.wording import make_visible


class ShellExecutor(AgentSession):
    """Runs the commands of a shell call one after the other; those of one executor are one session.

    Takes a project's path, or a Sandbox with its own policy and `ask`.
    """

    def __init__(
        self, project: str | os.PathLike[str] | Sandbox, *, session: str | None = None,
        network: bool | Sequence[str] = False,
    ) -> None:  # fmt: skip
        super().__init__(project, session)
        self._network = network

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands in turn; stop after one that reaches its time limit."""
        action = request.data.action
        results: list[tuple[ShellCommandOutput, str]] = []
        for command in action.commands:
            results.append(await self._run(command, action.timeout_ms))
            if results[-1][0].outcome.type == "timeout":
                break
        # The framework would cut off the end, where our notes are: so shorten the commands' output here.
        max_length = action.max_output_length
        room = None if max_length is None else max(0, max_length - sum(len(note) + 1 for _, note in results))
        for output, note in results:
            if room is not None:
                output.stdout = output.stdout[:room]
                output.stderr = output.stderr[: room - len(output.stdout)]
                room -= len(output.stdout) + len(output.stderr)
            output.stderr = join_streams(output.stderr, note)
        return ShellResult(output=[output for output, _ in results], max_output_length=max_length)

    async def _run(self, command: str, timeout_ms: int | None) -> tuple[ShellCommandOutput, str]:
        """Return a command's output, and our notes on it."""
        limit = timeout_ms / 1000 if timeout_ms else None
        try:
            run = await self.sandbox.arun(command, timeout=limit, network=self._network)
        except FumehoodError as error:
            outcome = ShellCallOutcome(type="exit", exit_code=error.exit_code)
            return ShellCommandOutput(outcome=outcome, command=command), self.sandbox.refusal(error)
        outcome = ShellCallOutcome(type="timeout" if run.timed_out else "exit", exit_code=run.exit_code)
        stdout, stderr = (make_visible(text, run.mark) for text in full_output(self.sandbox, run))
        output = ShellCommandOutput(
            stdout=stdout, stderr=stderr, outcome=outcome, command=command,
            provider_data={"fumehood": {"run": run.id, "state": run.state}},
        )  # fmt: skip
        return output, notes(run)

    @property
    def tools(self) -> list[FunctionTool]:
        """The tools of the person's configuration (`[[tool]]`), to be given to the agent beside the shell."""
        return [self._tool(each) for each in own_tools(self.sandbox)]

    def _tool(self, tool: dict[str, Any]) -> FunctionTool:
        async def invoke(_context: object, arguments: str) -> str:
            # Errors are returned to the model, because a raised error would end the agent.
            try:
                return (await self.sandbox.arun_tool(tool["name"], json.loads(arguments or "{}"))).for_model()
            except json.JSONDecodeError as error:
                hint = "an object, as the tool's schema says"
                return self.sandbox.refusal(BadRequest(f"the arguments are not JSON: {error}", hint=hint))
            except FumehoodError as error:
                return self.sandbox.refusal(error)

        return FunctionTool(
            name=tool["name"], description=tool["description"], params_json_schema=tool["input_schema"],
            on_invoke_tool=invoke, strict_json_schema=False,
        )  # fmt: skip
