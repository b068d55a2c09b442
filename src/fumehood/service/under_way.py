"""How far something has come that takes a while, for a face that shows it from another thread."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sized

_now: tuple[Sized, int] = (), 0


def note(done: Sized, total: int) -> None:
    """Say what is added to whenever one more of so many is done."""
    global _now
    _now = done, total


def count() -> tuple[int, int]:
    """Return how many are done, and of how many."""
    done, total = _now
    return len(done), total
