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
from fumehood.adapters import fresh_project, notes, printed, read, throw_away, write
from fumehood.core.policy import Rootfs
from fumehood.core.report import join_streams
from fumehood.core.wording import NOT_OURS
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_top
from fumehood.rootfs.unpack import Member, Unpacking

_LARGEST = 1 << 30  # bytes of a file or an archive that is brought out
_UNPACK = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'
_EVERYTHING = ("/logs/agent", "/logs/verifier", "/logs/artifacts")


class FumehoodEnvironment(BaseEnvironment):
    """One trial: a project that is thrown away, and a root of its own."""

    def __init__(self, *args: Any, root: str = "alpine", network: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._root = root
        self._network = network in {True, "true", "True"}
        self._whole: Sandbox | None = None

    @staticmethod
    def type() -> str:
        """The name that Harbor's records have for it."""
        return "fumehood"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What a task may ask for."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        """Nothing of the task's is built."""

    @property
    def sandbox(self) -> Sandbox:
        """The trial's sandbox, once it is started."""
        if self._whole is None:
            raise RuntimeError("the environment is not started")
        return self._whole

    async def start(self, force_build: bool) -> None:
        """Make the project and the directories that Harbor expects."""
        project = fresh_project("fumehood-harbor-")
        policy = Policy(root=self._root, rootfs=Rootfs(writable=True), output_limit=_LARGEST)
        whole = Sandbox(project, policy, ask=self._answer)
        self._whole = whole.session(own_tmp=True)
        wanted = [*_EVERYTHING, *self._mount_targets()]
        if self.task_env_config.workdir:
            wanted.append(self.task_env_config.workdir)
        made = await self._run(["mkdir", "-p", "--", *dict.fromkeys(wanted)])
        if made.exit_code:
            raise RuntimeError(f"the trial's directories can't be made: {made.stderr.strip()}")
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Close the records; throw the project and its layer away if told so."""
        if self._whole is not None:
            if delete:
                await asyncio.to_thread(self._whole.reset_root)
            self._whole.close()
            if delete:
                await asyncio.to_thread(throw_away, Path(self._whole.project))
            self._whole = None

    async def exec(
        self, command: str, cwd: str | None = None, env: dict[str, str] | None = None,
        timeout_sec: int | None = None, user: str | int | None = None,
    ) -> ExecResult:  # fmt: skip
        """Run a shell line; what was blocked or held is told after its standard error."""
        asked = self._resolve_user(user)
        if asked not in {None, 0, "0", "root"}:
            raise ValueError(f"commands in the hood are user 0 of their root tree, not {asked!r}")
        where = cwd or self.task_env_config.workdir or self.sandbox.project
        try:
            run = await self._run(command, cwd=where, env=self._merge_env(env), timeout=timeout_sec)
        except FumehoodError as error:
            return ExecResult(stdout="", stderr=self.sandbox.refusal(error), return_code=error.exit_code)
        stdout, stderr = (text.replace(run.mark, NOT_OURS) for text in printed(self.sandbox, run))
        return ExecResult(stdout=stdout, stderr=join_streams(stderr, notes(run)), return_code=run.exit_code or 0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Write a file of the host's into the trial, as a command would."""
        source = Path(source_path)
        data, mode = await asyncio.to_thread(lambda: (source.read_bytes(), source.stat().st_mode))
        await asyncio.to_thread(write, self.sandbox, target_path, data)
        if mode & stat.S_IXUSR:
            await self._run(["chmod", "+x", "--", target_path])

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Unpack a directory of the host's in the trial, as a command would."""
        packed = await asyncio.to_thread(_packed, Path(source_dir))
        run = await self._run(["sh", "-c", _UNPACK, "sh", target_dir], stdin=packed)
        if run.exit_code:
            raise RuntimeError(f"{target_dir} can't be written: {run.stderr.strip()}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Bring out a file that a command could read."""
        data = await asyncio.to_thread(read, self.sandbox, source_path, _LARGEST)
        await asyncio.to_thread(_place, Path(target_path), data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Bring out a directory: regular files and links that stay inside, nothing else."""
        run = await self._run(["tar", "-cf", "-", "-C", source_dir, "."], apply="discard")
        if run.exit_code:
            raise RuntimeError(f"{source_dir} can't be read: {run.stderr.strip()}")
        await asyncio.to_thread(_unpack, self.sandbox.output(run), Path(target_dir))

    async def _run(self, command: str | list[str], **options: Any) -> Run:
        return await self.sandbox.arun(command, network=self._network and not self._network_disabled, **options)

    def _answer(self, question: Question) -> bool:
        # Whoever started the trial said so, by `--ek network=true`.
        return self._network and question.what == "network"


def _packed(source: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=".")
    return buffer.getvalue()


def _place(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _unpack(data: bytes, target: Path) -> None:
    """Unpack what came out of the trial. Its `tar` is the trial's own, so it may be anything."""
    target.mkdir(parents=True, exist_ok=True)
    with (
        Closing(open_top(os.path.realpath(target))) as top,
        tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=Member) as archive,
    ):
        Unpacking(top, is_followed=True).all_of(archive)
