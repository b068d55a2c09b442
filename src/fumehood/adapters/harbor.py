"""Harbor: an environment whose trials run in the hood.

`harbor run … --env fumehood.adapters.harbor:FumehoodEnvironment --ek root=NAME`

A task's Dockerfile is not built: `root` names an installed root tree (`fumehood rootfs install --from image.tar`), and
each trial has a writable layer of its own over it. Commands are user 0 there, without any capability.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from fumehood import FumehoodError, Policy, Question, Run, Sandbox
from fumehood.adapters import full_output, make_temporary_project, notes, read, remove_temporary_project, write
from fumehood.core.policy import Rootfs
from fumehood.core.report import join_streams
from fumehood.core.wording import NOT_OURS
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_top
from fumehood.rootfs.unpack import Member, Unpacking

_MAX_BYTES = 1 << 30  # of a file or an archive that is downloaded
_UNPACK = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'
_EXPECTED_DIRECTORIES = ("/logs/agent", "/logs/verifier", "/logs/artifacts")


class FumehoodEnvironment(BaseEnvironment):
    """One trial: a temporary project with a root layer of its own."""

    def __init__(self, *args: Any, root: str = "alpine", network: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._root = root
        self._network = network in {True, "true", "True"}
        self._project_sandbox: Sandbox | None = None

    @staticmethod
    def type() -> str:
        """Return the name of this environment in Harbor's records."""
        return "fumehood"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What a task may require."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        """Accept any task: nothing of it is built."""

    @property
    def sandbox(self) -> Sandbox:
        """The trial's sandbox, after the start."""
        if self._project_sandbox is None:
            raise RuntimeError("the environment is not started")
        return self._project_sandbox

    async def start(self, force_build: bool) -> None:
        """Make the project and the directories that Harbor expects."""
        project = make_temporary_project("fumehood-harbor-")
        policy = Policy(root=self._root, rootfs=Rootfs(writable=True), output_limit=_MAX_BYTES)
        project_sandbox = Sandbox(project, policy, ask=self._answer)
        self._project_sandbox = project_sandbox.session(own_tmp=True)
        directories = [*_EXPECTED_DIRECTORIES, *self._mount_targets()]
        if self.task_env_config.workdir:
            directories.append(self.task_env_config.workdir)
        mkdir_run = await self._run(["mkdir", "-p", "--", *dict.fromkeys(directories)])
        if mkdir_run.exit_code:
            raise RuntimeError(f"the trial's directories can't be made: {mkdir_run.stderr.strip()}")
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Close the sandbox; with `delete`, remove the project and its root layer."""
        if self._project_sandbox is not None:
            if delete:
                await asyncio.to_thread(self._project_sandbox.reset_root)
            self._project_sandbox.close()
            if delete:
                await asyncio.to_thread(remove_temporary_project, Path(self._project_sandbox.project))
            self._project_sandbox = None

    async def exec(
        self, command: str, cwd: str | None = None, env: dict[str, str] | None = None,
        timeout_sec: int | None = None, user: str | int | None = None,
    ) -> ExecResult:  # fmt: skip
        """Run a shell line; notes on what was blocked or held follow its standard error."""
        chosen_user = self._resolve_user(user)
        if chosen_user not in {None, 0, "0", "root"}:
            raise ValueError(f"commands in the hood are user 0 of their root tree, not {chosen_user!r}")
        directory = cwd or self.task_env_config.workdir or self.sandbox.project
        try:
            run = await self._run(command, cwd=directory, env=self._merge_env(env), timeout=timeout_sec)
        except FumehoodError as error:
            return ExecResult(stdout="", stderr=self.sandbox.refusal(error), return_code=error.exit_code)
        stdout, stderr = (text.replace(run.mark, NOT_OURS) for text in full_output(self.sandbox, run))
        return ExecResult(stdout=stdout, stderr=join_streams(stderr, notes(run)), return_code=run.exit_code or 0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of the host into the trial, as a command would write it."""
        source = Path(source_path)
        data, mode = await asyncio.to_thread(lambda: (source.read_bytes(), source.stat().st_mode))
        await asyncio.to_thread(write, self.sandbox, target_path, data)
        if mode & stat.S_IXUSR:
            await self._run(["chmod", "+x", "--", target_path])

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a directory of the host into the trial, as a command would write it."""
        archive = await asyncio.to_thread(_pack, Path(source_dir))
        run = await self._run(["sh", "-c", _UNPACK, "sh", target_dir], stdin=archive)
        if run.exit_code:
            raise RuntimeError(f"{target_dir} can't be written: {run.stderr.strip()}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file that a command can read out of the trial."""
        data = await asyncio.to_thread(read, self.sandbox, source_path, _MAX_BYTES)
        await asyncio.to_thread(_write_file, Path(target_path), data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory out of the trial: only regular files, and links that stay inside it."""
        run = await self._run(["tar", "-cf", "-", "-C", source_dir, "."], apply="discard")
        if run.exit_code:
            raise RuntimeError(f"{source_dir} can't be read: {run.stderr.strip()}")
        await asyncio.to_thread(_unpack, self.sandbox.output(run), Path(target_dir))

    async def _run(self, command: str | list[str], **options: Any) -> Run:
        return await self.sandbox.arun(command, network=self._network and not self._network_disabled, **options)

    def _answer(self, question: Question) -> bool:
        # The person who started the trial has allowed it by `--ek network=true`.
        return self._network and question.what == "network"


def _pack(source: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=".")
    return buffer.getvalue()


def _write_file(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _unpack(data: bytes, target: Path) -> None:
    """Unpack an archive from the trial; it may contain anything, because the trial's own `tar` made it."""
    target.mkdir(parents=True, exist_ok=True)
    with (
        Closing(open_top(os.path.realpath(target))) as top,
        tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=Member) as archive,
    ):
        Unpacking(top, links_are_followed=True).unpack_all(archive)
