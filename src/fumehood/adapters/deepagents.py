"""deepagents: a sandbox backend whose every command and file operation is a run in the hood.

`create_deep_agent(model=…, backend=FumehoodSandbox("path/to/project"))`
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_core.tools import StructuredTool

from fumehood import FumehoodError, Run, Sandbox
from fumehood.adapters import (
    AgentSession,
    acall_tool,
    call_tool,
    full_output,
    is_output_cut,
    notes,
    own_tools,
    read,
    write,
)
from fumehood.core.report import join_streams
from fumehood.core.wording import NOT_OURS, make_visible

_ERROR_CODES = {
    errno.ENOENT: "file_not_found", errno.EACCES: "permission_denied", errno.EISDIR: "is_directory",
    errno.EINVAL: "invalid_path",
}  # fmt: skip


class FumehoodSandbox(AgentSession, BaseSandbox):
    """A project as deepagents sees it; the runs of one such backend are one session, with a /tmp of its own.

    Takes a project's path, or a Sandbox with its own policy and `ask`.
    """

    def __init__(
        self, project: str | os.PathLike[str] | Sandbox, *, session: str | None = None,
        network: bool | Sequence[str] = False, timeout: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(project, session)
        self._network = network
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The session's name, as `fumehood log` shows it."""
        return self.sandbox.session_name or ""

    @property
    def tools(self) -> list[StructuredTool]:
        """The tools of the person's configuration (`[[tool]]`), for `create_deep_agent(tools=…)`."""
        return [
            StructuredTool(
                name=each["name"], description=each["description"], args_schema=each["input_schema"],
                func=partial(call_tool, self.sandbox, each["name"]),
                coroutine=partial(acall_tool, self.sandbox, each["name"]),
            )
            for each in own_tools(self.sandbox)
        ]  # fmt: skip

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell line; notes on what was blocked or held follow its output."""
        try:
            return self._response(self.sandbox.run(command, timeout=self._limit(timeout), network=self._network))
        except FumehoodError as error:
            return self._error_response(error)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """Do the same; cancelling ends the command, which the base class's thread would not do."""
        try:
            run = await self.sandbox.arun(command, timeout=self._limit(timeout), network=self._network)
        except FumehoodError as error:
            return self._error_response(error)
        return self._response(run)

    def _limit(self, timeout: int | None) -> float | None:
        return float(timeout) if timeout else self._timeout  # zero means none of its own

    def _error_response(self, error: FumehoodError) -> ExecuteResponse:
        return ExecuteResponse(output=self.sandbox.refusal(error), exit_code=error.exit_code, truncated=False)

    def _response(self, run: Run) -> ExecuteResponse:
        # The base class runs its own scripts: some answer in JSON, after which nothing may follow, and some end names
        # with a NUL, which must stay.
        output = join_streams(*full_output(self.sandbox, run)).replace(run.mark, NOT_OURS)
        if not (output.startswith('{"') and output.rstrip().endswith("}")):
            output = join_streams("\0".join(make_visible(part, run.mark) for part in output.split("\0")), notes(run))
        return ExecuteResponse(output=output, exit_code=run.exit_code, truncated=is_output_cut(run))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files as a command would, each as a run of its own; each file has its own result or error."""
        results = [self._try_file_act(path, partial(write, self.sandbox, path, data)) for path, data in files]
        return [
            FileUploadResponse(path=path, error=error) for (path, _), (_, error) in zip(files, results, strict=True)
        ]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files as a command would; each file has its own result or error."""
        results = [(path, *self._try_file_act(path, partial(read, self.sandbox, path))) for path in paths]
        return [FileDownloadResponse(path=path, content=content, error=error) for path, content, error in results]

    def _try_file_act(self, path: str, act: Callable[[], Any]) -> tuple[Any, str | None]:
        """Return the result of a file operation, or the error."""
        if not path.startswith("/"):
            return None, _ERROR_CODES[errno.EINVAL]
        try:
            return act(), None
        except OSError as error:
            return None, _ERROR_CODES.get(error.errno or 0) or str(error)
        except FumehoodError as error:
            return None, self.sandbox.refusal(error)
