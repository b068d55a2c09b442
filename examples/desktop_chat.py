"""A desktop chat's run-command tool: permission in the window, output and files as they come, Stop, review."""

import asyncio
import threading
from typing import Protocol

from fumehood import FumehoodError, Run, Sandbox

EXTRA = "Web pages are read by the tool `read_page`, not by a command."


class Window(Protocol):
    """What the chat's window can do."""

    def print(self, stream: str, text: str) -> None: ...  # noqa: D102
    def changed(self, what: str, path: str) -> None: ...  # noqa: D102
    async def permit(self, lines: tuple[str, ...], options: tuple[str, ...]) -> str: ...  # noqa: D102
    async def accept(self, path: str, why: str, difference: str) -> bool: ...  # noqa: D102


class RunCommand:
    """The tool of one chat: its commands share a directory, variables and an undo."""

    def __init__(self, project: str, window: Window) -> None:
        self._window = window
        self._stopped = threading.Event()
        self._whole = Sandbox(project, ask=lambda asked: window.permit(asked.lines, asked.options))
        self.sandbox = self._whole.session()
        self.definition = self.sandbox.tool("openai", extra=EXTRA)

    async def __call__(self, command: str, *, network: bool = False, playground: bool = False) -> str:
        """Run what the model asked for; returns what the model is told."""
        self._stopped.clear()
        try:
            run = await self.sandbox.arun(
                command, network=network, cwd="playground" if playground else None, on_output=self._window.print,
                on_change=self._window.changed, cancelled=self._stopped.is_set,
            )  # fmt: skip
            if run.state == "held":
                run = await self._review(run)
        except FumehoodError as error:
            return self.sandbox.refusal(error)
        return run.for_model()

    async def _review(self, run: Run) -> Run:
        for change in run.changes:
            if change.verdict == "held":
                difference = await asyncio.to_thread(self.sandbox.diff, run, [change.path])
                is_wanted = await self._window.accept(change.path, change.reason, difference)
                settle = self.sandbox.apply if is_wanted else self.sandbox.discard
                run = await asyncio.to_thread(settle, run, change.path)
        return run

    def stop(self) -> None:
        """End the command that runs: what the Stop button does."""
        self._stopped.set()

    def close(self) -> None:
        """Let go of the records: the chat is closed."""
        self._whole.close()
