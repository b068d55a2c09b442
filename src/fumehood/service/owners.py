"""Files of other owners in a project: what an overlay failed on is remembered, and what only they can change waits."""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.judge import keep_replacements_whole
from fumehood.core.limits import overflows
from fumehood.core.report import Blocked
from fumehood.linux.cache import replace
from fumehood.linux.capture import (
    BWRAP,
    COPY,
    KERNEL,
    LABELS,
    Stranger,
    choose,
    everywhere,
    is_carried,
    still_there,
    user_name,
)
from fumehood.linux.nofollow import Parents, look, open_top, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.linux.host import Host
    from fumehood.linux.namespaces import Layer
    from fumehood.store.places import Places
    from fumehood.store.projects import Project

_MOST_REMEMBERED, _MOST_TOLD = 8, 3


def failed_on(places: Places, project: Project) -> list[Stranger]:
    """Return what an overlay could not change in earlier runs, as far as it still is somebody else's."""
    try:
        with open(places.strangers(project.id), "rb") as file:
            paths = [os.fsdecode(each) for each in file.read().split(b"\0") if each]
    except FileNotFoundError:
        return []
    strangers = still_there(project.roots, paths)
    if paths and not strangers:
        _remember(places, project, ())
    return strangers


def _remember(places: Places, project: Project, strangers: Sequence[Stranger]) -> None:
    replace(places.strangers(project.id), b"\0".join(os.fsencode(each.whole) for each in strangers), by_many=True)


def forget_what_was_moved(places: Places, project: Project, run: Run) -> None:
    """After a run that a copy captured, leave what can only be renamed to the quicker way again."""
    if run.capture != COPY or not run.changed:
        return
    strangers = failed_on(places, project)
    if any(not each.may_write for each in strangers):
        _remember(places, project, [each for each in strangers if each.may_write])


def refused(places: Places, project: Project, run: Run, host: Host, wanted: str) -> tuple[Blocked, ...]:
    """Say which files a command could not change because of whose they are; the next run is captured otherwise."""
    complaints = overflows(f"{run.stdout}\n{run.stderr}" if run.exit_code else run.stderr)
    if not complaints or run.capture not in (KERNEL, BWRAP):
        return ()
    # As the run had it: groups are mapped only where one was seen.
    had = host.replace(groups=choose(host, wanted, run.roots, failed_on(places, project)).groups)
    strangers = [each for each in everywhere(run.roots, complaints) if not is_carried(had, run.capture, each)]
    if not strangers:
        return ()
    _remember(places, project, strangers[:_MOST_REMEMBERED])
    again = choose(host, wanted, run.roots, strangers)
    then = "leave `capture` out of the configuration, so that another way is used"
    if again.way != run.capture:
        then = f"run it again: the next run is captured by {LABELS[again.way]}"
    elif again.groups != had.groups:
        then = "run it again: the next run knows the group"
    hint = f"{LABELS[run.capture]} could not change it; {then}. fumehood doctor says how to fix it for good"
    return tuple(Blocked(what="write", detail=each.description, hint=hint) for each in strangers[:_MOST_TOLD])


def hold_what_is_not_ours(changes: Sequence[c.Change], layers: Sequence[Layer]) -> None:
    """Keep back changes that we can't make in the project because of whose it is: one would stop all others.

    The command could make them where the layer was its own: the top of a root, or a whole copy.
    """
    if not changes or os.geteuid() == 0:
        return
    live = [_Live(layer) for layer in layers]
    is_kept_back = False
    try:
        for change in changes:
            obstacle = live[change.root].obstacle(change) if change.verdict in (c.APPLIED, c.HELD) else None
            # What is held already stays so, unless it could not be made at all.
            if obstacle and (change.verdict == c.APPLIED or obstacle[0] == c.UNSUPPORTED):
                change.verdict, change.reason = obstacle
                is_kept_back = True
    finally:
        for each in live:
            each.close()
    if is_kept_back:
        keep_replacements_whole(changes)


class _Live:
    """One root as it is now, asked what its owners let us do."""

    def __init__(self, layer: Layer) -> None:
        from fumehood.linux.staging import can_rename

        self._root = layer.root
        self._top = open_top(layer.root)
        upper = open_top(layer.upper)
        self._is_apart = not can_rename(upper, self._top)
        os.close(upper)
        self._parents = Parents(self._top)
        self._closed: dict[str, str] = {}

    def close(self) -> None:
        """Let go of the directories."""
        self._parents.close()
        os.close(self._top)

    def obstacle(self, change: c.Change) -> tuple[str, str] | None:
        """Return the verdict and the reason for a change that we can't make."""
        parent, name = split(change.path)
        if c.is_mode_alone(change):
            owner = self._stranger(parent, name)
            return (c.UNSUPPORTED, f"it belongs to {owner}, who alone can change its mode") if owner else None
        if parent not in self._closed:
            self._closed[parent] = self._closed_by(parent)
        if self._closed[parent]:
            return c.HELD, self._closed[parent]
        if change.before is None:
            return None
        if self._is_apart and (owner := self._stranger(parent, name)):
            return c.HELD, f"it belongs to {owner}, and a backup on another file system would not"
        if change.within is None and change.before.kind == c.DIRECTORY:
            # To leave its parent, a directory must be written itself.
            owner = self._stranger(parent, name, os.W_OK)
            return (c.HELD, f"it belongs to {owner}, who alone can move it") if owner else None
        return None

    def _closed_by(self, path: str) -> str:
        """Say whose directory it is that we may not change; "" where we may, or where there is none."""
        owner = self._stranger(*split(path or "."), os.W_OK | os.X_OK)
        return f"{path or self._root} belongs to {owner}, and is closed to you" if owner else ""

    def _stranger(self, parent: str, name: str, ability: int = 0) -> str:
        """Name the owner of an entry that is not ours, unless they let us do what is asked; "" where there is none."""
        try:
            directory = self._parents.of(parent)
            entry = look(directory, name)
        except OSError:
            return ""
        if entry is None or entry.st_uid == os.geteuid():
            return ""
        if ability and os.access(name, ability, dir_fd=directory, effective_ids=True, follow_symlinks=False):
            return ""
        return user_name(entry.st_uid)
