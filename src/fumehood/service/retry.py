"""A run that conflicts with nothing but other runs is run once more, from the state that they left.

Nothing that it did has left the hood: it reached no network, and what it wrote was not applied.
"""

from __future__ import annotations

from fumehood.core import changes as c
from fumehood.core.network import FULL
from fumehood.core.report import printable
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import is_version, looks, open_top
from fumehood.service import layers as layering

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from fumehood.core.policy import Again
    from fumehood.core.report import Run
    from fumehood.service.store import Store


class Overtaken(Exception):
    """Other runs changed what this one changed; it left nothing, not even a record."""


def may_be_forgotten(run: Run, again: Again) -> bool:
    """Return True if a command that has ended did nothing that can't be done again."""
    return run.duration_s < again.within and run.network != FULL and not run.new_connections


def give_way(store: Store, run: Run) -> None:
    """Forget a run that has conflicts if all that it conflicts with was made by other runs; raises Overtaken then.

    The project's lock is held. What a person changed after such a run is a conflict with the person.
    """
    first = ""
    for number, root in enumerate(run.roots):
        conflicts = [change for change in run.found if change.root == number and change.verdict == c.CONFLICT]
        if not conflicts:
            continue
        with Closing(open_top(root)) as top:
            for change, status, is_reached in looks(top, conflicts):
                by = _maker(store, run, change, status) if is_reached else ""
                if not by:
                    return
                first = first or f"run {store.history.name(by)} changed {printable(change.path)} meanwhile"
    if not first:
        return
    store.history.withdraw(run, first)
    layering.drop(store.places, run.run)
    raise Overtaken(first)


def _maker(store: Store, run: Run, conflict: c.Change, status: os.stat_result | None) -> str:
    """Return the run that left a path as it is, or nothing where none did."""
    for name, change in store.history.applied_at(run, run.roots[conflict.root], conflict.path):
        if change.after is None if status is None else change.after is not None and is_version(change.after, status):
            return name
    return ""
