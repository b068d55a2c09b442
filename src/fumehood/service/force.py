"""An undo by force: what is in the project now counts as what is to be taken out, and is so saved in the layer."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.report import printable
from fumehood.errors import UndoRefused
from fumehood.linux.nofollow import looks, open_top, stamp_of, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fumehood.core.report import Run


def counted_as_they_are(run: Run, changes: Sequence[c.Change]) -> list[c.Change]:
    """Return the changes of an undo, judged against the project as it is; what is so already is left out."""
    inside: dict[tuple[int, str], list[c.Change]] = {}
    for change in changes:
        if change.within is not None:
            inside.setdefault((change.root, change.within), []).append(change)
    found: list[c.Change] = []
    for number, root in enumerate(run.roots):
        live = open_top(root)
        try:
            tops = [change for change in changes if change.root == number and change.within is None]
            for change, now, is_reached in looks(live, tops):
                if not is_reached and change.after is not None:
                    raise UndoRefused(
                        f"the directory of {printable(change.path)} is gone", hint="make it, then undo again"
                    )
                stamp = None if now is None else stamp_of(now)
                found += _anew(live, change, stamp, inside.get((number, change.path), ()))
        finally:
            os.close(live)
    if not found:
        raise UndoRefused(f"there is nothing to undo: the project is as before run {run.run}", hint="fumehood log")
    return c.by_path(found)


def _anew(live: int, change: c.Change, now: c.Stamp | None, inside: Sequence[c.Change]) -> Iterator[c.Change]:
    """Yield one change, with what lies in it, between what is there now and what was there before the run."""
    after = change.after
    if now is None and after is None:
        return
    if c.is_mode_alone(change) and now is not None and now.kind == c.DIRECTORY:
        yield _changed(change, c.MODE, now, after)
        return
    if now is not None and after is not None and now.kind == after.kind == c.DIRECTORY:
        raise UndoRefused(
            f"a directory stands at {printable(change.path)} where another was", hint="move it away, then undo again"
        )
    if now is None or after is None:
        kind = c.ADDED if now is None else c.DELETED
    else:
        kind = c.MODIFIED if now.kind == after.kind else c.TYPE
    yield _changed(change, kind, now, after)
    for each in inside:
        if each.after is not None:
            yield c.Change(each.root, each.path, c.ADDED, each.after.kind, after=each.after, within=change.path,
                           verdict=c.APPLIED)  # fmt: skip
    if now is not None and now.kind == c.DIRECTORY:
        for path, entry in walk(live, change.path):
            before = stamp_of(entry)
            yield c.Change(change.root, path, c.DELETED, before.kind, before=before, within=change.path,
                           verdict=c.APPLIED)  # fmt: skip


def _changed(change: c.Change, kind: str, now: c.Stamp | None, after: c.Stamp | None) -> c.Change:
    stamp = after or now
    if kind == c.MODE and now is not None and after is not None:
        # It stays the directory that it is.
        stamp = c.Stamp(now.kind, now.inode, now.size, now.modified_ns, now.changed_ns, after.mode, now.links)
        after = stamp
    return c.Change(
        change.root, change.path, kind, change.kind if stamp is None else stamp.kind,
        before=now, after=after, verdict=c.APPLIED,
    )  # fmt: skip
