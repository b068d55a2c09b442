"""Inspect: a sandbox environment, found by its entry point as `sandbox="fumehood"`.

Each sample gets a project of its own, which is removed when the sample ends. The configuration may be the path of a
directory: its files are copied into each project.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
from typing import Literal, overload

from inspect_ai.tool import Tool, ToolDef, ToolParams
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
    sandboxenv,
)  # fmt: skip

from fumehood import FumehoodError, Policy, Refused, Run, Sandbox
from fumehood.adapters import full_output, is_output_cut, make_temporary_project, read, remove_temporary_project, write
from fumehood.core.templates import Template, templates_by_name
from fumehood.store.config import policy_for
from fumehood.store.places import places

_CANNOT_EXECUTE = 126


@sandboxenv(name="fumehood")
class FumehoodSandboxEnvironment(SandboxEnvironment):
    """A sample's project; its commands are one session, with a /tmp of their own."""

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Make a project for one sample."""
        if config is not None and not isinstance(config, str):
            raise TypeError("the configuration of a fumehood sandbox is a directory's path")
        return {"default": cls(config)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment], interrupted: bool,
    ) -> None:  # fmt: skip
        """Remove the sample's project."""
        for environment in environments.values():
            environment.as_type(FumehoodSandboxEnvironment).close()

    def __init__(self, start: str | None = None, policy: Policy | None = None) -> None:
        super().__init__()
        self._project = project = make_temporary_project("fumehood-inspect-")
        if start is not None:
            shutil.copytree(start, project, symlinks=True, dirs_exist_ok=True)
        output_limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        self._project_sandbox = Sandbox(project, Policy(output_limit=output_limit) if policy is None else policy)
        self.sandbox = self._project_sandbox.session(own_tmp=True)

    async def exec(
        self, cmd: list[str], input: str | bytes | None = None, cwd: str | None = None,  # noqa: A002
        env: dict[str, str] | None = None, user: str | None = None, timeout: int | None = None,  # noqa: ASYNC109
        timeout_retry: bool = True, concurrency: bool = True,
    ) -> ExecResult[str]:  # fmt: skip
        """Run a program with its arguments in the hood."""
        if user is not None and not _is_own(user):
            raise SandboxUserUnsupportedError(f"a command in the hood runs as its caller, not as {user!r}")
        # `timeout_retry` is ignored: a command with effects must not run twice.
        directory = self.sandbox.project if cwd is None else os.path.join(self.sandbox.project, cwd)
        try:
            run = await self.sandbox.arun(cmd, stdin=input, cwd=directory, env=env, timeout=timeout)
        except Refused as error:
            raise PermissionError(str(error)) from error
        except FumehoodError as error:
            raise SandboxUnavailableError(str(error)) from error
        if run.timed_out:
            raise TimeoutError(f"the command did not end within {timeout} seconds")
        return self._result(cmd, run)

    def _result(self, cmd: list[str], run: Run) -> ExecResult[str]:
        if run.exit_code == _CANNOT_EXECUTE:
            raise PermissionError(run.stderr.strip() or f"{cmd[0]} can't be executed")
        stdout, stderr = full_output(self.sandbox, run)
        size = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if is_output_cut(run) or any(len(text.encode()) > size for text in (stdout, stderr)):
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout[:size])
        code = run.exit_code or 0
        return ExecResult(success=code == 0, returncode=code, stdout=stdout, stderr=stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file as a command would."""
        data = contents.encode() if isinstance(contents, str) else contents
        await asyncio.to_thread(write, self.sandbox, file, data, cwd=self.sandbox.project)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file as a command would; line ends are not changed."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await asyncio.to_thread(read, self.sandbox, file, limit, cwd=self.sandbox.project)
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            raise
        except OSError as error:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode() if text else data

    def close(self) -> None:
        """Close the sandbox and remove the project."""
        self._project_sandbox.close()
        remove_temporary_project(self._project)


def own_tools() -> list[Tool]:
    """Return the tools of the person's configuration (`[[tool]]`), for `use_tools`; each works on its sample."""

    def make_tool(template: Template) -> Tool:
        async def execute(**arguments: object) -> str:
            environment: FumehoodSandboxEnvironment = sandbox().as_type(FumehoodSandboxEnvironment)
            try:
                return (await environment.sandbox.arun(template.shell_line(arguments))).for_model()
            except FumehoodError as error:  # returned to the model, because a raised error would end the sample
                return environment.sandbox.refusal(error)

        properties = {name: {"description": name, **each} for name, each in template.properties.items()}
        parameters = ToolParams.model_validate({**template.schema, "properties": properties})
        return ToolDef(execute, template.name, template.description, parameters).as_tool()

    return [make_tool(each) for each in templates_by_name(policy_for(places(), ()).tools).values()]


def _is_own(user: str) -> bool:
    try:
        uid = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return False
    return uid == os.geteuid()
