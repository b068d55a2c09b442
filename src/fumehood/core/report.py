"""What is told about a run: to programs as an object, to a model as text."""

from __future__ import annotations

from fumehood.core.value import Value
from fumehood.core.wording import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fumehood.core.changes import Change
    from fumehood.core.connection import Connection

__all__ = ["QUOTED", "REDO", "Blocked", "ReportedChange", "Run", "joined", "named", "printable", "short"]

QUOTED = 300  # characters of somebody else's text that a sentence of ours repeats
_IN_NAMES = frozenset("@%+=:,./-_~")
REDO = "redo"  # begins the command of an undo that takes an undo back


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
        return f"{printable(self.headline)}: {named(self.detail)}. {short(self.hint)}".rstrip()


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
        self.mark = ""  # what sets our words apart from the command's, known to whoever reads `for_model`
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
    def outcome(self) -> str:
        """What became of it, in people's words: an undo takes back what others apply."""
        if self.act != "undo" or self.state != "applied":
            return self.state
        return "brought back" if self.command.startswith(f"{REDO} ") else "taken back"

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

    def for_model(self, mark: str = "") -> str:
        """Return the run as the one string that a model gets.

        Our part begins with a line that holds the mark: that of the `Sandbox`, unless another is given.
        """
        from fumehood.core.for_model import model_text

        return model_text(self, mark or self.mark)

    def __repr__(self) -> str:
        return f"Run({self.run} {self.state} exit {self.exit_code})"


def joined(stdout: str, stderr: str) -> str:
    """Put standard error after standard output, on a line of its own."""
    between = "\n" if stdout and stderr and not stdout.endswith("\n") else ""
    return f"{stdout}{between}{stderr}"


def short(text: str) -> str:
    """Write somebody else's text, or a sentence that holds some, printable and not too long."""
    text = printable(text)
    half = (QUOTED - 1) // 2
    return text if len(text) <= QUOTED else f"{text[:half]}…{text[-half:]}"


def named(text: str) -> str:
    """Write somebody else's text inside a sentence of ours, in quotes where it could end it or go on with it."""
    if text and all(letter.isalnum() or letter in _IN_NAMES for letter in text):
        return short(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{short(escaped)}"'
