"""What a command stood on and was taken away while it ran: of a repository, nothing that it built on that can stay."""

from __future__ import annotations

from fumehood.core import changes as c
from fumehood.core.judge import git_directories, is_note, objects_of, repository

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.report import Run
    from fumehood.service.store import Store


def taken_back(store: Store, run: Run) -> list[c.Change]:
    """Return what a run would change of repositories where undos have too since: it may have read what they took back.

    A draft is compared with the project when it is applied.
    """
    if run.draft is not None or not _is_in_repository(run):
        return []
    rows = store.database.rows(
        "SELECT undo.id FROM runs AS undo JOIN runs AS mine ON mine.id = ? AND undo.project = mine.project"
        " AND undo.number > mine.number WHERE undo.act = 'undo' AND undo.state = 'applied'", (run.run,),
    )  # fmt: skip
    undos, gits = [store.history.find(name) for (name,) in rows], git_directories(run.roots, run.changed)
    moved = {f"{undo.roots[each.root]}/{each.path}" for undo in undos for each in undo.changed}
    going = [each for each in run.changed if each.before is not None and each.verdict in (c.APPLIED, c.HELD)]
    places = {f"{run.roots[each.root]}/{each.path}": each for each in going}
    return [each for place, each in places.items() if place in moved and repository(place, gits)]


def leave_groundless(store: Store, run: Run) -> c.Change | None:
    """Leave out what a run did to repositories on top of what was held, and thrown away while it ran; return one of it.

    A commit on top of that lacks its objects.
    """
    gone = _thrown_away(store, run) if _is_in_repository(run) else {}
    gits = git_directories(run.roots, run.changed) if gone else ()
    first = None
    for change in run.changed if gone else ():
        place = f"{run.roots[change.root]}/{change.path}"
        note_of = place.rpartition("/")[0] if is_note(place, gits) else ""
        name = gone.get(objects_of(place, gits) or repository(place, gits) or note_of)
        if name is not None and change.verdict in (c.APPLIED, *c.WAITING):
            change.verdict = c.DISCARDED
            change.reason = f"run {store.history.name(name)}, which it builds on, was discarded meanwhile"
            first = first or change
    return first


def _is_in_repository(run: Run) -> bool:
    """Return True if a run may have changed what branches or an index say."""
    return any(change.path.endswith("index") or "refs/" in change.path for change in run.changed)


def _thrown_away(store: Store, run: Run) -> dict[str, str]:
    """Return the git directories of which a run saw a held state that was thrown away since, with whose it was."""
    gone: dict[str, str] = {}
    for name, _, was_decided_meanwhile, roots in store.history.decisions(run.below, run):
        changes = store.history.changes(name) if was_decided_meanwhile else []
        gits = git_directories(roots, changes)
        for change in changes:
            git = repository(f"{roots[change.root]}/{change.path}", gits) if change.verdict == c.DISCARDED else ""
            if git:
                gone.setdefault(git, name)
    return gone
