"""An agent's own session on a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fumehood import Sandbox

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


def opened(project: str | os.PathLike[str] | Sandbox, session: str | None) -> tuple[Sandbox, Callable[[], None]]:
    """Open a session with a /tmp of its own; the second closes the records, unless the caller's Sandbox was given."""
    if isinstance(project, Sandbox):
        return project.session(session, own_tmp=True), lambda: None
    whole = Sandbox(project)
    return whole.session(session, own_tmp=True), whole.close
