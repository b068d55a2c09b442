"""What a person does to a run, whichever view they are at, or a program does for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fumehood.core.hunks import MARKS
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.service import decide, now
from fumehood.service.undo import undo

if TYPE_CHECKING:
    from fumehood.core.report import Run
    from fumehood.service.store import Store

ACTS = ("apply", "discard", "undo", "redo", "stop", "checkpoint", "hunks", "merge")


class Chosen(Value):
    """What was chosen: an act, some paths or all of the run, and what names that which was shown."""

    act: str
    paths: tuple[str, ...] = ()
    force: bool = False
    expected: str = ""  # the digest of what was shown
    hunks: tuple[int, ...] = ()
    content: str = ""
    seen: str = ""  # in place of a digest: the state of the run that was shown (`shown_at`)


def perform(store: Store, run: Run, chosen: Chosen) -> Run:
    """Do it; returns the run that did, or to which it was done."""
    project = store.projects.open(run.project, register=False)
    here, force = run.project, chosen.force
    if chosen.act in ("stop", "checkpoint"):
        return (now.stop if chosen.act == "stop" else now.checkpoint)(store, run)
    if chosen.act in ("undo", "redo"):
        return undo(store, project, run, chosen.paths, here=here, force=force)
    expected = _expected(store, run, chosen)
    if chosen.act == "apply":
        return decide.apply_held(store, project, run, chosen.paths, here=here, force=force, expected=expected)
    if chosen.act == "discard":
        return decide.discard_held(store, project, run, chosen.paths, here=here, expected=expected)
    if chosen.act not in ACTS or len(chosen.paths) != 1:
        raise BadRequest(f"nothing can be done to a run by {chosen.act!r}", hint=f"one of: {', '.join(ACTS)}")
    if chosen.act == "hunks":
        if not chosen.hunks:
            raise BadRequest("no piece was chosen: nothing was done", hint="choose at least one, or refuse the file")
        return decide.apply_hunks(
            store, project, run, chosen.paths[0], set(chosen.hunks), here=here, expected=chosen.expected
        )
    left = [line for line in chosen.content.split("\n") if line.startswith((MARKS[0], MARKS[2]))]
    if left:
        raise BadRequest(f"both versions are still there, after {left[0]!r}", hint="keep one of them, or some of each")
    content = chosen.content.encode()
    return decide.apply_edited(
        store, project, run, chosen.paths[0], lambda _old, _new: content, here=here, expected=chosen.expected
    )


def shown_at(store: Store, run: Run) -> str:
    """Name the state of a run that is shown: what it holds is the same until something more is recorded of it.

    It is read before what is shown: what is recorded between the two is refused then. To make a digest of all that a
    run holds takes seconds where that is much.
    """
    ((last,),) = store.database.rows("SELECT coalesce(max(n), 0) FROM events WHERE run = ?", (run.run,))
    return str(last)


def _expected(store: Store, run: Run, chosen: Chosen) -> str:
    """Return the digest of what the paths mean, if all that the run holds is still what was shown."""
    if not chosen.seen or chosen.act not in ("apply", "discard"):
        return chosen.expected
    _refuse_another(store, run, chosen.seen)
    digest = decide.shown_digest(run, chosen.paths, here=run.project, forth=chosen.act == "apply")
    _refuse_another(store, run, chosen.seen)  # what it holds was read only now
    return digest


def _refuse_another(store: Store, run: Run, seen: str) -> None:
    if shown_at(store, run) != seen:
        raise decide.changed_since_shown(run)
