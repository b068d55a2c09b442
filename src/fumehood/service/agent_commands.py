"""Shell commands of an agent that runs whole in the hood, kept as runs of their own.

Its shells (service/shells.py) say when a command begins and ends. Each time, what was written so far is settled by a
checkpoint: so what the agent itself wrote is told from what the command did. What they say comes from inside the hood,
and is believed for nothing but the name of a run.
"""

from __future__ import annotations

import os
import time

from fumehood.core import changes as c
from fumehood.core.inside import BEGAN
from fumehood.core.report import named, short
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.libc import Closing
from fumehood.linux.process import number_in
from fumehood.linux.usage import NotYet, inside_of, read
from fumehood.service.checkpoint import Part
from fumehood.service.shells import around_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.agents import Agent
    from fumehood.service.checkpoint import Checkpoints

_PATIENCE_S, _PAUSE_S = 2.0, 0.05  # for a checkpoint, where another process has the project's lock
_BACKGROUND_S = 10.0  # what runs for longer is a server, or the like
_ENDED = (b"Z", b"X")  # what the kernel calls a process of which only the status is left
_TOLD = 12  # changes of one command that its agent is told of
_LONGEST_NUMBER = 10
_NAMED = 5  # commands that are named where they ran at the same time


class _Begun(Value):
    line: str
    cwd: str
    started_at: float
    began: float


class ShellCommands:
    """The shell commands of one agent: those that run now, and what is settled where one begins or ends."""

    def __init__(self, checkpoints: Checkpoints, agent: Agent | None, init_file: str) -> None:
        self.checkpoints = checkpoints
        self._agent = agent
        self._init_file = init_file
        self._open: dict[str, _Begun] = {}  # by the number that the shell has inside
        self._late: list[str] = []  # lines whose changes could not be settled yet
        self._told: set[tuple[int, str, str]] = set()
        self._around = around_line()

    def hear(self, words: Sequence[str], cwd: str) -> str:
        """Take note of what a shell says; returns what the agent is told."""
        verb, *numbers = words
        if len(numbers) != (1 if verb == BEGAN else 2) or not all(
            word.isascii() and word.isdigit() and len(word) < _LONGEST_NUMBER for word in numbers
        ):
            raise BadRequest(f"{verb} can't be understood", hint="only a shell says that")
        shell = numbers[0]
        if verb == BEGAN:
            self.look()
            line = self._line_of(shell)
            if all(time.monotonic() - each.began > _BACKGROUND_S for each in self._open.values()):
                self._settle(None)  # what the agent wrote by itself; where others have just begun, that can't be told
            if line:
                self._open[shell] = _Begun(line=line, cwd=cwd, started_at=time.time(), began=time.monotonic())
        elif shell in self._open:
            self._settle(self._open.pop(shell), int(numbers[1]))
        return self._to_tell()

    def look(self) -> bool:
        """See to commands that ended without a word; returns whether some run."""
        if self._open:
            try:
                processes = self._processes()
            except NotYet:
                return True  # all is ending
            with Closing(processes):
                states = {shell: read(processes, f"{shell}/stat").rpartition(b")")[2].split() for shell in self._open}
            for shell in [shell for shell, fields in states.items() if not fields or fields[0] in _ENDED]:
                self._settle(self._open.pop(shell), None)
        return bool(self._open)

    def _init(self) -> int:
        with open(self._init_file, "rb") as file:
            number = number_in(file.read(), b'"child-pid": ')
        assert number is not None, "somebody in there has said something"
        return number

    def _processes(self) -> int:
        """Open the /proc that the agent sees."""
        processes = inside_of(self._init())
        if processes is None:
            raise BadRequest("commands can't be told apart: bubblewrap has the set-uid bit", hint="fumehood doctor")
        return processes

    def _line_of(self, shell: str) -> str:
        """Return the line that a shell of ours was given, as the model typed it."""
        with Closing(self._processes()) as processes:
            words = os.fsdecode(read(processes, f"{shell}/cmdline")).split("\0")
        if self._around not in words[:-2]:
            return ""
        line = words[words.index(self._around) + 2]
        return line if self._agent is None else self._agent.typed(line)

    def _settle(self, command: _Begun | None, exit_code: int | None = None) -> None:
        """Settle what was written since the last time, as the doing of a command, or as the agent's own."""
        others = " | ".join(short(each.line) for each in list(self._open.values())[:_NAMED])
        part = Part(meanwhile=f" (while: {others})" if others else "")
        lines = [*self._late, *([] if command is None else [command.line])]
        if command is not None:
            part = part.replace(
                cwd=command.cwd, started_at=command.started_at, duration_s=time.monotonic() - command.began,
                exit_code=exit_code,
            )  # fmt: skip
        until = time.monotonic() + _PATIENCE_S
        while not self.checkpoints.make(self._init(), part=part.replace(command="; ".join(lines))):
            if time.monotonic() > until:
                self._late = lines
                return
            time.sleep(_PAUSE_S)
        self._late = []

    def _to_tell(self) -> str:
        """Return what of the last checkpoint a person must decide on, where the agent does not know it yet."""
        new = [each for each in self.checkpoints.held if (each.root, each.path, each.reason) not in self._told]
        self._told |= {(each.root, each.path, each.reason) for each in new}
        said = [
            f"fumehood: {each.verdict}, not applied: {each.change} {named(each.path)}: {short(each.reason)}\n"
            for each in new[:_TOLD]
            if each.verdict in c.WAITING
        ]
        more = f"fumehood: and {len(new) - _TOLD} more\n" if len(new) > _TOLD else ""
        return "".join(said) + more
