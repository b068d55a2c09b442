"""The versions of a run's paths: what was there before the run, and what the run left, wherever they lie now.

No copies are kept for this. An apply leaves the old version in the layer's slot and the new one in the project, and an
undo the other way round. What a later run took out of the project lies in that run's layer. Each version is known by
its stamp, so that the right one is found wherever it is, or is reported to be gone.
"""

from __future__ import annotations

import errno
import os

from fumehood.core import changes as c
from fumehood.core.report import Run, printable, show_command
from fumehood.core.value import Value
from fumehood.errors import BadRequest
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.nofollow import open_below, open_top, stamp_of
from fumehood.service.held import held_trees
from fumehood.store.search import later_runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fumehood.service.store import Store

    Reader = Callable[[int, c.Stamp], "PathVersion"]


MAX_BYTES = 1 << 20  # of a file that is read
_MAX_OPEN = 64  # directories
_WITH_CONTENT = (c.FILE, c.SYMLINK)
_OWN_ATTRIBUTES = ("user.", "system.posix_acl_")  # those that a command may set, and that are applied
_CHANGED_SINCE = "changed since; shown against what is there now"


class PathVersion(Value):
    """One version of a path: its stamp, None if it is absent, and its content, None if it could not be read."""

    stamp: c.Stamp | None
    data: bytes | None = b""
    why_no_data: str = ""
    note: str = ""
    fd: int = -1  # the open file, for `read_nothing`
    attributes: Mapping[str, bytes] | None = None  # of a file: its own, and its access control list

    @property
    def kind(self) -> str:
        """The kind of the entry, or that it is absent."""
        return c.ABSENT if self.stamp is None else self.stamp.kind

    @property
    def has_content(self) -> bool:
        """True for a file or a symlink."""
        return self.kind in _WITH_CONTENT


ABSENT_VERSION = PathVersion(stamp=None)


def open_versions(
    store: Store, run: Run, changes: Sequence[c.Change], *, before: bool = False
) -> Iterator[tuple[c.Change, bytes | int | None]]:
    """Yield each change with what the run left, or what was there before it.

    That is the descriptor of a file, closed before the next change; the target of a symlink; or None for anything else.
    """
    with Versions(store, run, read_nothing) as versions:
        for change in changes:
            version = versions.old(change) if before else versions.new(change)
            if version.has_content and version.fd < 0 and version.data is None:
                raise BadRequest(f"{printable(change.path)}: {version.why_no_data}", hint=show_command(run))
            if version.fd < 0:
                yield change, version.data if version.kind == c.SYMLINK else None
                continue
            with Closing(version.fd) as fd:
                yield change, fd


def contents(store: Store, run: Run, change: c.Change) -> tuple[bytes, bytes]:
    """Return what was at a path before a run, and what the run left; no bytes where it is absent or gone."""
    with Versions(store, run, read_bytes) as versions:
        return versions.old(change).data or b"", versions.new(change).data or b""


def three_versions(store: Store, run: Run, change: c.Change) -> tuple[bytes | None, bytes, bytes]:
    """Return the versions of a held change: its base (None if that is gone), the project's now, and the run's."""
    with Versions(store, run, read_bytes) as versions:
        base = versions.base(change).data
        return base, versions.old(change).data or b"", versions.new(change).data or b""


class Versions(Closable):
    """Finds the versions of a run's paths, for a `with` block; `read` says how much of a file is read."""

    def __init__(self, store: Store, run: Run, read: Reader) -> None:
        self._store = store
        self._run = run
        self._read = read
        self._slots = _slots(store, run)
        self._held_trees = held_trees(store, run.below, run.roots)
        # By later run: its slots, and what it took out of the project, by root and path.
        self._later_runs: dict[str, tuple[Sequence[str], dict[tuple[str, str], c.Change]]] = {}
        self._unread_runs: dict[str, Iterator[str]] = {}  # by directory, the later runs that changed something in it
        self._directories: dict[str, int] = {}

    def close(self) -> None:
        """Close the directories; they are opened again when needed."""
        for fd in self._directories.values():
            os.close(fd)
        self._directories.clear()

    def old(self, change: c.Change) -> PathVersion:
        """Return what was there before the run; for a change that waits, what is there now counts."""
        before, what = change.before, "what was there before"
        for tree in self._held_trees[change.root] if before is not None else ():
            try:
                version = _read_at(self._directory(tree), change.path, before, self._read)
            except OSError:
                continue  # not there, or a symlink on the way
            if version is not None:
                return version  # an earlier run wrote it, and the change was built on that
        if change.verdict in c.WAITING and (before is None or before.kind in _WITH_CONTENT):
            return self._current(change, before) or (ABSENT_VERSION if before is None else _gone(before, what))
        return self._find(change, before, in_slot=self._is_applied(change), what=what)

    def base(self, change: c.Change) -> PathVersion:
        """Return the version from which a change that waits was made, wherever it lies."""
        return self._find(change, change.before, in_slot=True, what="the version that the run began with")

    def new(self, change: c.Change) -> PathVersion:
        """Return what the run left."""
        return self._find(change, change.after, in_slot=not self._is_applied(change), what="what the run wrote")

    def _is_applied(self, change: c.Change) -> bool:
        """Return True if the run's version went to the project and was not taken back: the slot has the old one."""
        return change.verdict == c.APPLIED and self._run.state != "undone"

    def _find(self, change: c.Change, stamp: c.Stamp | None, *, in_slot: bool, what: str) -> PathVersion:
        if stamp is None:
            return ABSENT_VERSION
        if stamp.kind not in _WITH_CONTENT:
            return PathVersion(stamp=stamp)
        is_denied = False
        for directory in self._possible_places(change, stamp, in_slot=in_slot):
            try:
                version = _read_at(self._directory(directory), change.path, stamp, self._read)
            except PermissionError:
                is_denied = True
            except OSError:
                continue  # not there, or a symlink on the way
            else:
                if version is not None:
                    return version
        if is_denied:
            return PathVersion(stamp=stamp, data=None, why_no_data="it can't be read: permission denied")
        current = None if in_slot else self._current(change, stamp)
        # An entry of another kind is not a later version of this one.
        return current if current is not None and current.kind == stamp.kind else _gone(stamp, what)

    def _possible_places(self, change: c.Change, stamp: c.Stamp, *, in_slot: bool) -> Iterator[str]:
        """Yield the directories in which a version may lie, the likeliest first."""
        root = self._run.roots[change.root]
        if not in_slot:
            yield root
            yield from self._later_slots(root, change.path, stamp)
        for slot in self._slots[change.root : change.root + 1]:
            yield f"{os.path.dirname(slot)}/held"  # the changes that wait for a person
            yield slot
        if in_slot:
            yield root
            yield from self._later_slots(root, change.path, stamp)

    def _later_slots(self, root: str, path: str, stamp: c.Stamp) -> Iterator[str]:
        """Yield the slots into which later runs moved a version out of the project."""
        # Runs that are read already come first: a query for each path of a big tree would take minutes.
        for name in self._later_runs:
            yield from self._slot_in(name, root, path, stamp)
        directory = path.rpartition("/")[0]
        if directory not in self._unread_runs:
            self._unread_runs[directory] = iter(later_runs(self._store.database, self._run.run, directory))
        for name in self._unread_runs[directory]:
            if name not in self._later_runs:
                run = self._store.history.find(name)
                self._later_runs[name] = _slots(self._store, run), {
                    (run.roots[each.root], each.path): each for each in run.changed
                    if each.verdict == c.APPLIED and each.before is not None
                }  # fmt: skip
                yield from self._slot_in(name, root, path, stamp)

    def _slot_in(self, later_run: str, root: str, path: str, stamp: c.Stamp) -> Sequence[str]:
        """Return the slots of a later run for the root, if that run took this version out of the project."""
        slots, taken_out = self._later_runs[later_run]
        change = taken_out.get((root, path))
        if change is None or not stamp.same(change.before):
            return ()
        return slots[change.root : change.root + 1]

    def _current(self, change: c.Change, expected: c.Stamp | None) -> PathVersion | None:
        """Return what the project has at a path now, with a note if that is not the expected version."""
        try:
            version = _read_at(self._directory(self._run.roots[change.root]), change.path, None, self._read)
        except OSError:
            return None
        if version is None or version.stamp is None or not version.has_content:
            return None
        is_expected = expected is not None and expected.is_same_or_copy(version.stamp)
        return version if is_expected else version.replace(note=_CHANGED_SINCE)

    def _directory(self, path: str) -> int:
        if path not in self._directories:
            if len(self._directories) >= _MAX_OPEN:
                self.close()
            self._directories[path] = open_top(path)
        return self._directories[path]


def _slots(store: Store, run: Run) -> Sequence[str]:
    """Return the upper directories of a run's layers; none if `clean` removed them."""
    return store.uppers(run) if run.layer else ()


def _gone(stamp: c.Stamp, what: str) -> PathVersion:
    return PathVersion(stamp=stamp, data=None, why_no_data=f"{what} is no longer kept")


def _read_at(directory: int, path: str, wanted: c.Stamp | None, read: Reader) -> PathVersion | None:
    """Read what lies at a path, or return None if it is not the wanted version; follows no link, and never blocks."""
    with Closing(open_below(directory, path, os.O_PATH | os.O_NOFOLLOW)) as entry:
        stamp = stamp_of(os.fstat(entry))
        if wanted is not None and not wanted.is_same_or_copy(stamp):
            return None
        if stamp.kind == c.SYMLINK:
            return PathVersion(stamp=stamp, data=os.fsencode(os.readlink("", dir_fd=entry)))
        if stamp.kind != c.FILE:
            return PathVersion(stamp=stamp)
        # By the descriptor, so that it is the file with this stamp even if another has taken its place.
        with Closing(os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_CLOEXEC)) as fd:
            return read(fd, stamp).replace(attributes=_attributes(fd))


def _attributes(fd: int) -> dict[str, bytes]:
    try:
        names = [name for name in os.listxattr(fd) if name.startswith(_OWN_ATTRIBUTES)]
        names = [name for name in names if not name.startswith(c.OVERLAY_PREFIXES)]
        return {name: os.getxattr(fd, name) for name in names}
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENODATA):
            raise
        return {}  # the file system has no attributes, or one was removed just now


# ---- Readers: how much of a file is read.


def read_bytes(fd: int, stamp: c.Stamp) -> PathVersion:
    """Read a file as a whole, unless it is too long."""
    if stamp.size > MAX_BYTES:
        return PathVersion(stamp=stamp, data=None, why_no_data=f"longer than {MAX_BYTES >> 20} MiB")
    pieces: list[bytes] = []
    missing = stamp.size
    while missing and (piece := os.read(fd, missing)):
        pieces.append(piece)
        missing -= len(piece)
    return PathVersion(stamp=stamp, data=b"".join(pieces))


def read_nothing(fd: int, stamp: c.Stamp) -> PathVersion:
    """Only keep the file open."""
    return PathVersion(stamp=stamp, data=None, fd=os.dup(fd))
