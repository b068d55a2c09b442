"""Tell live, by inotify, what a running command adds, updates and removes. It decides nothing: the scan does.

An event only says *where to look*. A path's state follows from what lies there *now*, in the layer and in the project,
never from the order of events: the kernel merges events, drops them under load, and gives none for a whiteout that a
rename leaves behind. So the rules hold however much happened between two looks. Import this module only when somebody
listens.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from time import monotonic

import inotify_simple  # type: ignore[import-untyped,unused-ignore]

from fumehood.core.changes import ABSENT, DIRECTORY, WHITEOUT
from fumehood.linux.layer import OPAQUE_MARKS, is_opaque
from fumehood.linux.libc import Closing, Descriptors
from fumehood.linux.nofollow import PATH_ONLY, entries, is_whiteout, join, kind_of, open_below, open_top, stat_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import StoppableSource

ADDED, UPDATED, REMOVED, CANCELLED = "added", "updated", "removed", "cancelled"

# Left alone, the library finds libc by running ldconfig, then gcc, whatever those are on the PATH.
inotify_simple._libc = ctypes.CDLL(None, use_errno=True)

_FLAGS = inotify_simple.flags
# Not MODIFY or CLOSE_WRITE: a file was told when it came into the layer, and writing on in it changes
# no state, but would fill the queue. ATTRIB tells of directories' modes, and that one became opaque.
_MASK = _FLAGS.CREATE | _FLAGS.DELETE | _FLAGS.MOVED_FROM | _FLAGS.MOVED_TO | _FLAGS.ATTRIB | _FLAGS.ONLYDIR
_OPAQUE = (*OPAQUE_MARKS, "user.fuseoverlayfs.opaque")
_OPAQUE_FILE = ".wh..wh..opq"  # fuse-overlayfs puts one into each opaque directory and shows it to nobody
# Replaced or moved away between two looks (EXDEV: out of the layer, by the overlay itself, while its
# path was being walked): an event that says so is on its way.
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
_LONGEST = 4096  # Nothing below a path that no program can name is followed: trees can be endlessly deep.
_LAST_READS = 64  # A process that outlives the run and goes on writing must not keep stop() from ending.


class ChangedPath(str):
    """A path relative to its root, as a report names it; `root` says which one."""

    __slots__ = ("root",)
    root: str


def watcher(on_change: Callable[[str, ChangedPath], object]) -> Callable[[Sequence[Layer]], StoppableSource]:
    """Return what starts watching a run's layers; listeners get what happened and the path."""

    def tell(what: str, root: str, path: str) -> None:
        changed = ChangedPath(path)
        changed.root = root
        on_change(what, changed)

    def watch(layers: Sequence[Layer]) -> StoppableSource:
        monitor = Monitor([(each.upper, each.root) for each in layers], tell)
        monitor.start()
        return monitor

    return watch


class WatchedLayer:
    """An upper directory and the root that it lies over, both open."""

    def __init__(self, upper: str, root: str) -> None:
        self.root = root
        self.project_fd, self.upper_fd = Descriptors(map(open_top, (root, upper)))


class Directory:
    """What was told about the entries of one directory of a layer, and the directories below that matter."""

    __slots__ = ("below", "gone", "hidden", "layer", "path", "states")

    def __init__(self, layer: WatchedLayer, path: str = "") -> None:
        self.layer = layer
        self.path = path
        self.hidden = False  # the layer covers what the project has in here
        self.gone = False  # no longer part of the tree: what is heard of it is of no interest
        self.states: dict[str, str] = {}
        self.below: dict[str, Directory] = {}

    def record(self, name: str, state: str | None) -> str | None:
        """Remember an entry's state; return what a listener hears of it, None where that is no news.

        A path that was told and is untouched again (created, then deleted) is cancelled. Writing on in a
        file changes no state, so it is told once however long the writing goes on.
        """
        if self.states.get(name) == state:
            return None
        if state is None:
            del self.states[name]
        else:
            self.states[name] = state
        return state or CANCELLED

    def enter(self, name: str) -> Directory:
        """Return the directory of this name, a new one if there was none."""
        if name not in self.below:
            self.below[name] = Directory(self.layer, join(self.path, name))
        return self.below[name]

    def drop(self, name: str) -> list[Directory]:
        """Forget the directory of this name with all below it; return what was forgotten, parents first."""
        dropped = [self.below.pop(name)] if name in self.below else []
        for directory in dropped:  # which grows
            directory.gone = True
            dropped += directory.below.values()
        return dropped


class Monitor:
    """Watches layers while a command runs and tells one listener what happens to each path.

    Nothing here raises into the run but what the listener raises, after which it is not called again. `incomplete` says
    that something could not be watched (a limit of the host, a directory we may not read, events lost), so that news
    may have come late or not at all.
    """

    def __init__(self, layers: Sequence[tuple[str, str]], on_change: Callable[[str, str, str], None]) -> None:
        self.incomplete = False
        self._is_listener_lost = False
        self._places = layers  # upper directories and roots
        self._on_change = on_change
        self._inotify: Any = None
        self._silence = -1
        self._tops: list[Directory] = []
        self._watches: dict[int, Directory] = {}
        # Directories to look through: some names, or (None) the whole; and whether all below is due again.
        self._todo: deque[tuple[Directory, Iterable[str] | None, bool]] = deque()
        self._news: deque[tuple[str, str, str]] = deque()
        self._behind = False
        self._rest_until = 0.0

    def start(self) -> None:
        """Watch the layers, and tell what is in them already."""
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
        except OSError:
            self.incomplete = True
            self._silence = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for place in self._places:
            try:
                self._tops.append(Directory(WatchedLayer(*place)))
            except OSError:
                self.incomplete = True
        self._list_all()
        self._deliver()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; -1 when not started.

        Where the host has no inotify instance left, it is one that never becomes readable.
        """
        return self._silence if self._inotify is None else int(self._inotify.fileno())

    def drain(self) -> None:
        """Take in all events that are pending and tell the listener; returns at once if there are none."""
        self._read()
        self._deliver()

    def stop(self) -> None:
        """Drain what is pending, then let go of everything; may be repeated."""
        try:
            for _ in range(_LAST_READS):
                if not self._read():
                    break
            else:
                self.incomplete = True
            if self.incomplete:
                self._list_all()
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
            if self._silence >= 0:
                os.close(self._silence)
                self._silence = -1
            self._watches.clear()
            self._todo.clear()
            for top in self._tops:
                os.close(top.layer.upper_fd)
                os.close(top.layer.project_fd)
            self._tops.clear()
        self._deliver()

    def _read(self) -> bool:
        """Look wherever pending events point; return whether there were any."""
        if self._inotify is None:
            return False
        try:
            events = self._inotify.read(timeout=0)
        except OSError:
            self.incomplete = True
            return False
        dirty: dict[Directory, dict[str, None]] = {}  # names in order: what happened first is told first
        for watch, mask, _cookie, name in events:
            if mask & _FLAGS.Q_OVERFLOW:
                self.incomplete = self._behind = True
            elif mask & _FLAGS.IGNORED:
                self._watches.pop(watch, None)
            elif name and watch in self._watches:
                dirty.setdefault(self._watches[watch], {})[name] = None
        self._todo += ((directory, names, False) for directory, names in dirty.items())
        self._settle()
        begun = monotonic()
        if self._behind and begun >= self._rest_until:
            # Events were lost; of a huge layer not often, or the run would stand still.
            self._behind = False
            self._list_all()
            self._rest_until = monotonic() + 9 * (monotonic() - begun)
        return bool(events)

    def _list_all(self) -> None:
        """Look at every path of every layer, whatever events said."""
        for top in self._tops:
            self._watch(top.layer.upper_fd, top)
            self._todo.append((top, None, True))
        self._settle()

    def _settle(self) -> None:
        while self._todo:
            directory, names, again = self._todo.popleft()
            if not directory.gone:
                self._attempt(self._visit, directory, names, again)

    def _attempt(self, step: Callable[..., None], *arguments: object) -> None:
        """Take one step; what fails because the command was faster is of no concern."""
        try:
            step(*arguments)
        except OSError as problem:
            if problem.errno not in _VANISHED:
                self.incomplete = True

    def _visit(self, directory: Directory, names: Iterable[str] | None, again: bool) -> None:
        """Look at a directory as the layer and as the project have it: two descriptors, -1 where there is none."""
        upper = project = -1
        try:
            upper = _open(directory.layer.upper_fd, directory.path)
            project = _open(directory.layer.project_fd, directory.path)
            if upper < 0 and not directory.hidden:
                return  # It has just vanished: what that means is told by an event of its parent.
            if names is None:
                # Every name about which there is or was something to tell.
                layer_names = entries(upper) if upper >= 0 else ()
                project_names = entries(project) if project >= 0 and directory.hidden else ()
                names = sorted({*directory.states, *directory.below, *layer_names, *project_names})
            for name in names:
                if name != _OPAQUE_FILE:
                    self._attempt(self._examine, directory, again, upper, project, name)
        finally:
            for fd in (upper, project):
                if fd >= 0:
                    os.close(fd)

    def _examine(self, directory: Directory, again: bool, upper: int, project: int, name: str) -> None:
        """Compare one entry of a directory with the project's, record its state, go on below it."""
        in_layer, layer_mode = _entry(upper, name)
        in_project, project_mode = _entry(project, name)
        altered = False
        if in_layer == DIRECTORY:
            altered = self._follow(directory, again, upper, name, in_project) or layer_mode != project_mode
        elif in_project == DIRECTORY and (directory.hidden or in_layer != ABSENT):
            self._enter(directory, again, name, hidden=True, afresh=True)
        else:
            self._forget(directory, name)
        self._record(directory, name, state_of(in_layer, in_project, hidden=directory.hidden, altered=altered))

    def _follow(self, directory: Directory, again: bool, upper: int, name: str, in_project: str) -> bool:
        """Watch a directory of the layer; return whether it covers what the project has there.

        StoppableSource before it is listed, so that nothing falls between the two. A descriptor names it to
        the kernel, because the command can put a symlink in its place at any moment.
        """
        with Closing(os.open(name, PATH_ONLY | os.O_NOFOLLOW, dir_fd=upper)) as fd:
            covers = directory.hidden or (in_project == DIRECTORY and is_opaque(f"/proc/self/fd/{fd}", _OPAQUE))
            child = directory.enter(name)
            is_new = self._watch(fd, child)
        self._enter(directory, again, name, hidden=covers, afresh=is_new or again or covers != child.hidden)
        return covers

    def _watch(self, fd: int, directory: Directory) -> bool:
        """Watch an open directory; return False if it was watched already, and under the same path.

        The kernel gives the same number for the same directory, so a moved one shows by its old path.
        """
        if self._inotify is None:
            return True
        try:
            watch = self._inotify.add_watch(f"/proc/self/fd/{fd}", _MASK)
        except OSError:
            self.incomplete = True
            return True
        before = self._watches.get(watch)
        self._watches[watch] = directory
        return before is not directory

    def _enter(self, directory: Directory, again: bool, name: str, *, hidden: bool, afresh: bool) -> None:
        """Go on below a directory; `afresh` looks at all that is in it."""
        child = directory.enter(name)
        child.hidden = hidden
        if len(child.path) > _LONGEST:
            self.incomplete = True
            self._forget(directory, name)
        elif afresh:
            self._todo.append((child, None, again))

    def _forget(self, parent: Directory, name: str) -> None:
        """Take back what was told below a path that has nothing below it any more."""
        for directory in parent.drop(name):
            for each in list(directory.states):
                self._record(directory, each, None)

    def _record(self, directory: Directory, name: str, state: str | None) -> None:
        news = directory.record(name, state)
        if news is not None:
            self._news.append((news, directory.layer.root, join(directory.path, name)))

    def _deliver(self) -> None:
        """Tell the news, after all bookkeeping: so a listener may call any method here."""
        while self._news:
            news = self._news.popleft()
            if not self._is_listener_lost:
                try:
                    self._on_change(*news)
                except BaseException:
                    self._is_listener_lost = True
                    raise


def state_of(layer: str, project: str, *, hidden: bool = False, altered: bool = False) -> str | None:
    """Name what became of a path, given the kinds of entry in the layer and in the project; None: nothing.

    `hidden`: something above in the layer covers the project, so what is only there is gone.
    `altered`: of two directories, the layer's was made anew or has another mode; by itself, a
    directory in the layer only means that something below it was touched.
    """
    if layer in (ABSENT, WHITEOUT):
        covered = hidden or layer == WHITEOUT
        return REMOVED if covered and project != ABSENT else None
    if project == ABSENT:
        return ADDED
    return None if layer == project == DIRECTORY and not altered else UPDATED


def _open(top: int, path: str) -> int:
    try:
        return open_below(top, path)
    except OSError as problem:
        if problem.errno in _VANISHED:
            return -1
        raise


def _entry(directory: int, name: str) -> tuple[str, int]:
    status = stat_entry(directory, name) if directory >= 0 else None
    if status is None:
        return ABSENT, 0
    return WHITEOUT if is_whiteout(status) else kind_of(status.st_mode), status.st_mode
