"""The person's standing wishes, with their defaults."""

from __future__ import annotations

from fumehood.core.concern import Rules
from fumehood.core.judge import APPLY, DISCARD, HOLD
from fumehood.core.value import Value
from fumehood.errors import BadRequest


class Policy(Value):
    """What holds for every run that does not ask for something else."""

    apply: str = APPLY
    timeout: float | None = None
    output_limit: int = 64 << 20
    capture: str = ""
    rules: Rules = Rules()

    def mode(self, asked: str | None) -> str:
        """Return what becomes of a run's changes."""
        mode = self.apply if asked is None else asked
        if mode not in (APPLY, HOLD, DISCARD):
            raise BadRequest(f"changes can't be handled by {mode!r}", hint="one of: apply, hold, discard")
        return mode
