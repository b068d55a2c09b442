"""Walk a project, and bring the records of its files up to date with what is there."""

from __future__ import annotations

import os
import stat
import time

from fumehood.core.changes import FILE, SYMLINK
from fumehood.core.ignore import LARGEST, MARKERS, Rules, is_skipped
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.nofollow import Parents, look, open_top
from fumehood.service.files import Live, catch_up
from fumehood.store.backups import Daily
from fumehood.store.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fumehood.service.store import Store
    from fumehood.store.files import Seen
    from fumehood.store.projects import Project

    # The .gitignore files that speak of a directory, the deepest first, each with the length of its own path.
    Ignored = tuple[tuple[int, Rules], ...]

_SOME = 2_000  # files that are recorded at once: what memory holds, and how long a run may have to wait


class Scanned(Value):
    """What a scan found: files that are there, records made, changed and dropped.

    `kept` counts records whose files are missing, but which have a backup; `unread` directories that could
    not be read.
    """

    files: int = 0
    added: int = 0
    updated: int = 0
    dropped: int = 0
    kept: int = 0
    unread: int = 0


def scan_project(store: Store, project: Project, on_progress: Callable[[int], None] | None = None) -> Scanned:
    """Record every file of a project that is not ignored, and forget those that are gone for good.

    `on_progress` is told every now and then how many files were seen. Follows no symlink, runs no program.
    """
    catch_up(store, project.id)
    scan = _Scan(store, project.id, on_progress)
    first = scan.files.last_number()
    for root in project.roots:
        scan.walk(root)
    added = scan.files.count(project.id, first)
    for root in project.roots:
        scan.drop_missing(root)
    return Scanned(
        files=scan.seen, added=added, updated=max(0, scan.written - added), dropped=scan.dropped, kept=scan.kept,
        unread=scan.unread,
    )  # fmt: skip


class _Scan:
    """One scan of one project."""

    def __init__(self, store: Store, project: int, on_progress: Callable[[int], None] | None) -> None:
        self.files = Files(store.database)
        self.seen = self.written = self.dropped = self.kept = self.unread = 0
        self._store = store
        self._project = project
        self._on_progress = on_progress

    def walk(self, root: str) -> None:
        """Record what is in one root, some files at a time."""
        try:
            top = open_top(root)
        except OSError as error:
            raise BadRequest(
                f"cannot read {root}: {error.strerror}", hint="is it there, and may you enter it? ls -ld"
            ) from error
        parents = Parents(top, bounded=False)
        try:
            some: list[Seen] = []
            since = time.time()
            for each in self._below(parents):
                some.append(each)
                if len(some) >= _SOME:
                    self._learn(root, some, since)
                    some, since = [], time.time()
            self._learn(root, some, since)
        finally:
            parents.close()
            os.close(top)

    def _learn(self, root: str, some: list[Seen], since: float) -> None:
        # A run that is just being recorded gives its files numbers of their own.
        with self._store.alone(self._project):
            self.written += self.files.learn(self._project, os.fsencode(root), some, since)
        self.seen += len(some)
        if self._on_progress is not None:
            self._on_progress(self.seen)

    def _below(self, parents: Parents) -> Iterator[Seen]:
        """Yield every file and symlink that is not ignored, directory by directory."""
        waiting: list[tuple[str, Ignored]] = [("", ())]
        while waiting:
            path, above = waiting.pop()
            directory = parents.listing(path)
            if directory is None:
                self.unread += 1  # closed, or gone meanwhile
                continue
            try:
                # What marks a cache or a virtual environment does not count at the top: that is the project.
                if not path or not any(look(directory, marker) for marker in MARKERS):
                    ignored = _rules(directory, path) + above
                    yield from self._entries(directory, path, ignored, waiting)
            finally:
                os.close(directory)

    def _entries(
        self, directory: int, path: str, ignored: Ignored, waiting: list[tuple[str, Ignored]]
    ) -> Iterator[Seen]:
        """Yield the files of one directory, and let the directories in it wait."""
        with os.scandir(directory) as entries:
            for entry in entries:
                below = f"{path}/{entry.name}" if path else entry.name
                try:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if _is_ignored(below, ignored, is_directory=is_directory):
                        continue
                    if is_directory:
                        if not is_skipped(entry.name):
                            waiting.append((below, ignored))
                        continue
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                kind = FILE if stat.S_ISREG(found.st_mode) else SYMLINK if stat.S_ISLNK(found.st_mode) else ""
                if kind:
                    yield os.fsencode(below), kind, found.st_size, found.st_mtime_ns

    def drop_missing(self, root: str) -> None:
        """Remove the records of files that are gone, unless a run deleted them or a backup exists."""
        with Daily(self._store.places.state) as daily:
            backed_up = set(daily.by_file())
        with Live(root) as live:
            for some in self.files.present(self._project, os.fsencode(root), _SOME):
                if not any(live.is_missing(os.fsdecode(path)) for _, path in some):
                    continue
                # Once more, now that no run can be putting one back.
                with self._store.alone(self._project):
                    missing = [number for number, path in some if live.is_missing(os.fsdecode(path))]
                    gone = [number for number in missing if number not in backed_up]
                    self.files.drop(gone)
                self.dropped += len(gone)
                self.kept += len(missing) - len(gone)


def _rules(directory: int, path: str) -> Ignored:
    """Return what a directory's own .gitignore says, if it has one; a long one is read in part."""
    try:
        file = os.open(
            ".gitignore", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory
        )
    except OSError:
        return ()
    try:
        text = os.fsdecode(os.read(file, LARGEST)) if stat.S_ISREG(os.fstat(file).st_mode) else ""
    finally:
        os.close(file)
    return ((len(path) + 1 if path else 0, Rules(text)),)


def _is_ignored(path: str, ignored: Ignored, *, is_directory: bool) -> bool:
    """Ask each .gitignore, the deepest first, until one speaks of a path."""
    for start, rules in ignored:
        verdict = rules.verdict(path[start:], is_directory=is_directory)
        if verdict is not None:
            return verdict
    return False
