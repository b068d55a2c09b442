"""What is told about a run: to programs as an object, to a model as text."""

from __future__ import annotations

from fumehood.core.changes import APPLIED, DELETED, Change
from fumehood.core.value import Value
from fumehood.core.wording import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fumehood.core.connection import Connection

__all__ = [
    "MODEL_OUTPUT", "Blocked", "ReportedChange", "Run", "change_lines", "cut_in_the_middle", "joined", "model_text",
    "one_line", "printable",
]  # fmt: skip
MODEL_OUTPUT = 30_000  # characters of output that a model is shown
_MODEL_CHANGES = 100


class ReportedChange(Value):
    """One path's difference, as told to others."""

    path: str
    root: str
    change: str
    kind: str
    verdict: str
    reason: str = ""
    flags: tuple[str, ...] = ()


class Blocked(Value):
    """Something the command was refused, and how a person can allow it."""

    what: str
    detail: str
    hint: str = ""

    @property
    def headline(self) -> str:
        """The first words about it."""
        return _HEADLINES.get(self.what, f"blocked {self.what}")

    @property
    def line(self) -> str:
        """All of it in one line, for people and models."""
        return printable(f"{self.headline}: {self.detail}. {self.hint}".rstrip())


HIDDEN_PATH, LEFT_AT_HOME = "hidden", "home"
_HEADLINES = {HIDDEN_PATH: "not in sight", LEFT_AT_HOME: "not kept"}


class Run:
    """One command from request to report; every field of the contract is an attribute."""

    def __init__(self, **fields: Any) -> None:
        self.run: str = fields.pop("run")
        self.project: str = fields.pop("project")
        self.command: str = fields.pop("command")
        self.cwd: str = fields.pop("cwd")
        self.state: str = fields.pop("state")
        self.reason: str = fields.pop("reason", "")
        self.exit_code: int | None = fields.pop("exit_code", None)
        self.timed_out: bool = fields.pop("timed_out", False)
        self.sandboxed: bool = fields.pop("sandboxed", True)
        self.network: str = fields.pop("network", "none")
        self.hosts: tuple[str, ...] = fields.pop("hosts", ())
        self._connections: Sequence[Connection] | Callable[[], Sequence[Connection]] = fields.pop("connections", ())
        self.duration_s: float = fields.pop("duration_s", 0.0)
        self.stdout: str = fields.pop("stdout", "")
        self.stderr: str = fields.pop("stderr", "")
        self.output_truncated: bool = fields.pop("output_truncated", False)
        self.blocked: tuple[Blocked, ...] = fields.pop("blocked", ())
        self.started_at: float = fields.pop("started_at", 0.0)
        self.act: str = fields.pop("act", "run")
        self.of: str | None = fields.pop("of", None)
        self.layer: str = fields.pop("layer", self.run)
        self.capture: str = fields.pop("capture", "")
        self.mode: str = fields.pop("mode", "apply")
        self.dropped: tuple[str, ...] = fields.pop("dropped", ())
        self.roots: tuple[str, ...] = fields.pop("roots", ())
        self.session: str | None = fields.pop("session", None)
        self.ended_in = ""  # the directory where a command of a session left its shell
        self.below: tuple[str, ...] = fields.pop("below", ())  # held runs that the command saw, the latest first
        self._found: Sequence[Change] | Callable[[], Sequence[Change]] = fields.pop("found", ())
        if fields:
            raise TypeError(f"a run has no {', '.join(fields)}")

    @property
    def found(self) -> Sequence[Change]:
        """The changes as they are judged and applied; those of an old run are read when they are asked for."""
        if callable(self._found):
            self._found = self._found()
        return self._found

    @found.setter
    def found(self, changes: Sequence[Change]) -> None:
        self._found = changes

    @property
    def connections(self) -> Sequence[Connection]:
        """Every connection that the command made or was refused; those of an old run are read when asked for."""
        if callable(self._connections):
            self._connections = self._connections()
        return self._connections

    @connections.setter
    def connections(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    @property
    def new_connections(self) -> Sequence[Connection]:
        """Those that are not recorded yet: what came from the record is left there."""
        return () if callable(self._connections) else self._connections

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run

    @property
    def output(self) -> str:
        """Standard output, then standard error."""
        return joined(self.stdout, self.stderr)

    @property
    def changes(self) -> tuple[ReportedChange, ...]:
        """Every path the run changed."""
        return tuple(
            ReportedChange(
                path=change.path, root=self.roots[change.root], change=change.change, kind=change.kind,
                verdict=change.verdict, reason=change.reason, flags=change.flags,
            )
            for change in self.found
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return the object of the contract."""
        return {
            "run": self.run, "project": self.project, "command": self.command, "cwd": self.cwd,
            "state": self.state, "reason": self.reason, "exit_code": self.exit_code,
            "timed_out": self.timed_out, "sandboxed": self.sandboxed, "network": self.network,
            "hosts": list(self.hosts), "connections": [each.fields() for each in self.connections],
            "duration_s": round(self.duration_s, 6), "output": self.output,
            "output_truncated": self.output_truncated,
            "changes": [{**change.fields(), "flags": list(change.flags)} for change in self.changes],
            "blocked": [blocked.fields() for blocked in self.blocked],
            "started_at": self.started_at, "capture": self.capture, "act": self.act, "of": self.of,
            "session": self.session,
        }  # fmt: skip

    def for_model(self) -> str:
        """Return the run as the one string that a model gets."""
        return model_text(self)

    def __repr__(self) -> str:
        return f"Run({self.run} {self.state} exit {self.exit_code})"


def joined(stdout: str, stderr: str) -> str:
    """Put standard error after standard output, on a line of its own."""
    between = "\n" if stdout and stderr and not stdout.endswith("\n") else ""
    return f"{stdout}{between}{stderr}"


def cut_in_the_middle(text: str, limit: int) -> str:
    """Shorten a text to a limit, keeping its beginning and its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def model_text(run: Run) -> str:
    """Write a run for a model: output, exit code, changes, what was blocked and why."""
    parts = [cut_in_the_middle(run.output, MODEL_OUTPUT).rstrip("\n")]
    if run.timed_out:
        parts.append("The time limit was reached and the command was ended.")
    if run.exit_code:
        parts.append(f"Exit code: {run.exit_code}")
    if not run.sandboxed:
        parts.append(f"NOT SANDBOXED: {printable(run.reason)}")
    parts += change_lines(run, _MODEL_CHANGES)
    parts += [each.line[:1].upper() + each.line[1:] for each in run.blocked]
    return "\n".join(part for part in parts if part)


def change_lines(run: Run, limit: int) -> list[str]:
    """Write one line a change: all deletions and all that was not applied, the rest up to a limit."""
    if not run.found:
        return []
    lines = [f"Changes ({run.state}, run {run.run}):"]
    left_out = 0
    shown = 0
    for change in run.found:
        must = change.change == DELETED or change.verdict != APPLIED
        if not must and shown >= limit:
            left_out += 1
            continue
        shown += 1
        lines.append(f"  {one_line(change)}")
    if left_out:
        lines.append(f"  and {left_out} more paths added or modified")
    return lines


def one_line(change: Change) -> str:
    """Write a change in one line, its path made safe to print."""
    told = "" if change.verdict == APPLIED else f" [{change.verdict}: {printable(change.reason)}]"
    flags = f" ({', '.join(change.flags)})" if change.flags else ""
    kind = "" if change.kind == "file" else f" {change.kind}"
    return f"{change.change}{kind} {printable(change.path)}{flags}{told}"
