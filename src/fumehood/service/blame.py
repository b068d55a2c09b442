"""Who wrote each line of a file: the runs that changed it, one after the other, and whoever changed it between them."""

from __future__ import annotations

import os

from fumehood.core.hunks import equal_lines
from fumehood.core.value import Value
from fumehood.linux.libc import Closing
from fumehood.linux.nofollow import open_below, open_top
from fumehood.service.differences import LONGEST, MOST_LINES, contents
from fumehood.service.restore import versions
from fumehood.store.files import Files
from fumehood.store.search import change_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fumehood.core.changes import Change
    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.projects import Project

_MOST_RUNS = 100  # of one file, the latest


class FileChange(Value):
    """What one run did to a file."""

    run: Run
    change: Change


def changes_of(store: Store, project: Project, root: str, path: str) -> list[FileChange]:
    """Return what runs did to a file, and have not taken back, the latest first."""
    pasts = Files(store.database).past(project.id, root, path)[:_MOST_RUNS]
    runs = {run.run: run for run in store.history.runs(among=[past.run for past in pasts])}
    changed = []
    for past in pasts:
        change = change_at(store.database, past.run, past.change.root, path)
        if change is not None and past.run in runs:
            changed.append(FileChange(run=runs[past.run], change=change))
    return changed


def content_of(store: Store, project: Project, root: str, path: str, source: str = "") -> bytes | None:
    """Return what a file holds now, or what its version of a run or day holds; None where there is none."""
    if not source:
        return _read(root, path)
    version = next((each for each in versions(store, project, root, path) if each.source == source), None)
    return None if version is None else _read(version.top, version.path)


def _read(top: str, path: str) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with Closing(open_top(top)) as directory, open(open_below(directory, path, flags), "rb") as file:
            return file.read(LONGEST + 1)
    except OSError:
        return None  # gone, or nothing that has a content


def blamed(store: Store, project: Project, root: str, path: str) -> list[tuple[str, Run | None]] | None:
    """Return each line of a file as it is now with the run that wrote it; None: it was there before, or a person did.

    None instead of a list where the file is gone, binary or too long.
    """
    data = _read(root, path)
    if data is None or b"\0" in data or len(data) > LONGEST or data.count(b"\n") > MOST_LINES:
        return None
    lines: list[str] = []
    writers: list[Run | None] = []
    for changed in reversed(changes_of(store, project, root, path)):
        # By what it found there, what was changed between the runs is nobody's.
        for text, writer in zip(contents(store, changed.run, changed.change), (None, changed.run), strict=True):
            lines, writers = _next(lines, writers, text, writer)
    lines, writers = _next(lines, writers, data, None)
    return list(zip(lines, writers, strict=True))


def _next(
    lines: list[str], writers: list[Run | None], data: bytes, writer: Run | None
) -> tuple[list[str], list[Run | None]]:
    """Return the lines of the next version, and who wrote each: those that stay keep their writers."""
    new = data.decode("utf-8", "replace").splitlines(keepends=True)
    wrote: list[Run | None] = [writer] * len(new)
    for old_at, new_at, count in equal_lines(lines, new):
        wrote[new_at : new_at + count] = writers[old_at : old_at + count]
    return new, wrote
