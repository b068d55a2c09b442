"""`run --brief`, which the hook writes: an agent's client gets the command's output, and then what we must add.

The client's model reads both in one text, from two streams that the client puts together as it likes. So each line
of ours begins with the mark of the conversation, which the hook tells the model; and nothing that a command prints
holds it, or anything invisible.
"""

from __future__ import annotations

import os

from fumehood.faces.cli.sink import ToModel, sink_to
from fumehood.store.marks import session_mark
from fumehood.store.places import state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.errors import FumehoodError
    from fumehood.linux.output import Sink

_STDERR = 2


class Brief:
    """One command's two outputs, on the way to an agent."""

    def __init__(self, session: str) -> None:
        self.mark = session_mark(state_directory(), session)
        self._to_model = [ToModel(fd, self.mark) for fd in (1, _STDERR) if not os.isatty(fd)]

    def sink(self, fd: int) -> Sink:
        """Return what takes one output."""
        return next((each for each in self._to_model if each.fd == fd), None) or sink_to(fd)

    def tell(self, run: Run) -> None:
        """Write what the agent can't know from the command itself, if there is anything."""
        if run.found or run.blocked or run.timed_out or not run.sandboxed:
            from fumehood.core.for_model import line_of
            from fumehood.faces.cli.show import agent_lines

            self._write([f"{line_of(self.mark)} {line}" for line in agent_lines(run)])

    def tell_notices(self, notices: Sequence[str]) -> None:
        """Write what the person should know once."""
        if notices:
            from fumehood.core.for_model import line_of
            from fumehood.core.report import printable

            self._write([f"{line_of(self.mark)} note for the user: {printable(each)}" for each in notices])

    def tell_error(self, error: FumehoodError) -> None:
        """Write why nothing ran."""
        from fumehood.core.for_model import refusal

        self._write([refusal(error, self.mark)])

    def _write(self, lines: Sequence[str]) -> None:
        before = "\n" if lines and any(each.is_in_line for each in self._to_model) else ""
        text = before + "".join(f"{line}\n" for line in lines)
        sink_to(_STDERR)(text.encode(errors="backslashreplace"))
