"""Tell by what lies where whether a step of an interrupted apply was done."""

from __future__ import annotations

import errno
import stat

from fumehood.core import changes as c
from fumehood.core.plan import CHMOD, MKDIR, PUT, RMDIR, SWAP, TAKE
from fumehood.linux.nofollow import is_whiteout, look

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from fumehood.core.plan import Step
    from fumehood.linux.nofollow import Parents
    from fumehood.linux.steps import Sides

NO_WAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def was_done(sides: Sides, step: Step) -> bool:
    """Tell whether a step was done: a rename keeps the inode, so that tells on which side a version is."""
    if step.change.path == ".":
        return _ACTS[step.act](step.change, None, look(sides.live.top, "."))
    slot, live = _at(sides.layer, step), _at(sides.live, step)
    return _ACTS[step.act](step.change, slot, live)


def _at(parents: Parents, step: Step) -> os.stat_result | None:
    try:
        return look(parents.of(step.parent), step.name)
    except OSError as error:
        if error.errno not in NO_WAY:
            raise
        return None


def _is(stamp: c.Stamp | None, found: os.stat_result | None) -> bool:
    return stamp is not None and found is not None and found.st_ino == stamp.inode


def _swapped(change: c.Change, slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    if slot is None or is_whiteout(slot) or _is(change.before, live):
        return False
    return _is(change.before, slot) or _is(change.after, live)


def _put(change: c.Change, slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return (slot is None or is_whiteout(slot)) and _is(change.after, live)


def _taken(change: c.Change, slot: os.stat_result | None, _live: os.stat_result | None) -> bool:
    return _is(change.before, slot) and slot is not None and not is_whiteout(slot)


def _made(_change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return live is not None and stat.S_ISDIR(live.st_mode)


def _removed(_change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    return live is None


def _mode_set(change: c.Change, _slot: os.stat_result | None, live: os.stat_result | None) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or live is None or live.st_ino != before.inode:
        return False
    return stat.S_IMODE(live.st_mode) == after.mode


_ACTS = {SWAP: _swapped, PUT: _put, TAKE: _taken, MKDIR: _made, RMDIR: _removed, CHMOD: _mode_set}
