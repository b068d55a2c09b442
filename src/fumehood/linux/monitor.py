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
from fumehood.linux.nofollow import PATH_ONLY, entries, is_whiteout, join, kind_of, look, open_below, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from fumehood.linux.namespaces import Layer
    from fumehood.linux.process import Watched

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


def watcher(on_change: Callable[[str, ChangedPath], object]) -> Callable[[Sequence[Layer]], Watched]:
    """Return what starts watching a run's layers; listeners get what happened and the path."""

    def watch(layers: Sequence[Layer]) -> Watched:
        def tell(what: str, root: bytes, path: bytes) -> None:
            changed = ChangedPath(os.fsdecode(path))
            changed.root = os.fsdecode(root)
            on_change(what, changed)

        monitor = Monitor([(os.fsencode(each.upper), os.fsencode(each.root)) for each in layers], tell)
        monitor.start()
        return monitor

    return watch


class WatchedLayer:
    """An upper directory, the root it lies over, and what was told about it."""

    def __init__(self, upper: bytes, root: bytes) -> None:
        self.upper = upper
        self.root = root
        self.top = Directory(self)
        self.upper_fd = self.project_fd = -1

    def open(self) -> None:
        """Open both top directories."""
        self.project_fd, self.upper_fd = Descriptors(map(open_top, map(os.fsdecode, (self.root, self.upper))))

    def close(self) -> None:
        """Let go of them; what was told stays."""
        for fd in (self.upper_fd, self.project_fd):
            if fd >= 0:
                os.close(fd)
        self.upper_fd = self.project_fd = -1


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

    def names(self) -> set[str]:
        """Return the names about which something was told, here or further down."""
        return {*self.states, *self.below}

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
        top = self.below.pop(name, None)
        dropped = [] if top is None else list(top.tree())
        for directory in dropped:
            directory.gone = True
        return dropped

    def tree(self) -> Iterator[Directory]:
        """Yield this directory and all below it, parents first."""
        waiting = [self]
        while waiting:
            directory = waiting.pop()
            yield directory
            waiting.extend(reversed(directory.below.values()))

    def paths(self, wanted: str) -> list[str]:
        """Return every path below that is in a state."""
        return [
            join(directory.path, name)
            for directory in self.tree()
            for name, state in directory.states.items()
            if state == wanted
        ]


class _Visit:
    """A directory to look through: some names or the whole, and whether all below it is due again."""

    __slots__ = ("again", "directory", "names", "whole")

    def __init__(self, directory: Directory, *, whole: bool = False, again: bool = False) -> None:
        self.directory = directory
        self.names: dict[str, None] = {}  # in order: what happened first is told first
        self.whole = whole
        self.again = again


class Monitor:
    """Watches layers while a command runs and tells one listener what happens to each path.

    Nothing here raises into the run but what the listener raises, after which it is not called again. `incomplete` says
    that something could not be watched (a limit of the host, a directory we may not read, events lost), so that news
    may have come late or not at all.
    """

    def __init__(self, layers: list[tuple[bytes, bytes]], on_change: Callable[[str, bytes, bytes], None]) -> None:
        self.incomplete = False
        self._is_listener_lost = False
        self._layers = [WatchedLayer(upper, root) for upper, root in layers]
        self._on_change = on_change
        self._started = False
        self._inotify: Any = None
        self._silence = -1
        self._watches: dict[int, Directory] = {}
        self._todo: deque[_Visit] = deque()
        self._news: deque[tuple[str, bytes, bytes]] = deque()
        self._behind = False
        self._rest_until = 0.0

    def paths(self, state: str) -> list[tuple[bytes, bytes]]:
        """Return every (root, path) that the command has added, updated or removed so far."""
        return sorted((layer.root, os.fsencode(path)) for layer in self._layers for path in layer.top.paths(state))

    def start(self) -> None:
        """Watch the layers, and tell what is in them already; started again, go on from what was told."""
        if self._started:
            return
        self._started = True
        self._attempt(self._open_inotify)
        for layer in self._layers:
            self._attempt(layer.open)
            self.incomplete = self.incomplete or layer.upper_fd < 0
        self._list_all()
        self._deliver()

    def _open_inotify(self) -> None:
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
        except OSError:
            self.incomplete = True
            self._silence = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

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
        """Drain what is pending, then let go of everything; the lists stay."""
        if not self._started:
            return
        try:
            for _ in range(_LAST_READS):
                if not self._read():
                    break
            else:
                self.incomplete = True
            if self.incomplete:
                self._list_all()
        finally:
            self._started = False
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
            if self._silence >= 0:
                os.close(self._silence)
                self._silence = -1
            self._watches.clear()
            self._todo.clear()
            for layer in self._layers:
                layer.close()
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
        dirty: dict[Directory, _Visit] = {}
        for watch, mask, _cookie, name in events:
            if mask & _FLAGS.Q_OVERFLOW:
                self.incomplete = self._behind = True
            elif mask & _FLAGS.IGNORED:
                self._watches.pop(watch, None)
            elif name and watch in self._watches:
                directory = self._watches[watch]
                dirty.setdefault(directory, _Visit(directory)).names[name] = None
        self._settle(dirty.values())
        begun = monotonic()
        if self._behind and begun >= self._rest_until:
            # Events were lost; of a huge layer not often, or the run would stand still.
            self._behind = False
            self._list_all()
            self._rest_until = monotonic() + 9 * (monotonic() - begun)
        return bool(events)

    def _list_all(self) -> None:
        """Look at every path of every layer, whatever events said."""
        layers = [layer for layer in self._layers if layer.upper_fd >= 0]
        for layer in layers:
            self._watch(layer.upper_fd, layer.top)
        self._settle(_Visit(layer.top, whole=True, again=True) for layer in layers)

    def _settle(self, visits: Iterable[_Visit]) -> None:
        self._todo.extend(visits)
        while self._todo:
            visit = self._todo.popleft()
            if not visit.directory.gone:
                self._attempt(self._visit, visit)

    def _attempt(self, step: Callable[..., None], *arguments: object) -> None:
        """Take one step; what fails because the command was faster is of no concern."""
        try:
            step(*arguments)
        except OSError as problem:
            if problem.errno not in _VANISHED:
                self.incomplete = True

    def _visit(self, visit: _Visit) -> None:
        """Look at a directory as the layer and as the project have it: two descriptors, -1 where there is none."""
        directory, upper, project = visit.directory, -1, -1
        try:
            upper = _open(directory.layer.upper_fd, directory.path)
            project = _open(directory.layer.project_fd, directory.path)
            if upper < 0 and not directory.hidden:
                return  # It has just vanished: what that means is told by an event of its parent.
            names: Iterable[str] = visit.names
            if visit.whole:
                # Every name about which there is or was something to tell.
                layer_names = entries(upper) if upper >= 0 else ()
                project_names = entries(project) if project >= 0 and directory.hidden else ()
                names = sorted({*directory.names(), *layer_names, *project_names})
            for name in names:
                if name != _OPAQUE_FILE:
                    self._attempt(self._examine, visit, upper, project, name)
        finally:
            for fd in (upper, project):
                if fd >= 0:
                    os.close(fd)

    def _examine(self, visit: _Visit, upper: int, project: int, name: str) -> None:
        """Compare one entry of a directory with the project's, record its state, go on below it."""
        directory = visit.directory
        in_layer, layer_mode = _entry(upper, name)
        in_project, project_mode = _entry(project, name)
        altered = False
        if in_layer == DIRECTORY:
            altered = self._follow(visit, upper, name, in_project) or layer_mode != project_mode
        elif in_project == DIRECTORY and (directory.hidden or in_layer != ABSENT):
            self._enter(visit, name, hidden=True, afresh=True)
        else:
            self._forget(directory, name)
        state = state_of(in_layer, in_project, hidden=directory.hidden, altered=altered)
        self._record(directory, name, state)

    def _follow(self, visit: _Visit, upper: int, name: str, in_project: str) -> bool:
        """Watch a directory of the layer; return whether it covers what the project has there.

        Watched before it is listed, so that nothing falls between the two. A descriptor names it to
        the kernel, because the command can put a symlink in its place at any moment.
        """
        with Closing(os.open(name, PATH_ONLY | os.O_NOFOLLOW, dir_fd=upper)) as fd:
            covers = visit.directory.hidden or (in_project == DIRECTORY and is_opaque(f"/proc/self/fd/{fd}", _OPAQUE))
            child = visit.directory.enter(name)
            is_new = self._watch(fd, child)
        self._enter(visit, name, hidden=covers, afresh=is_new or visit.again or covers != child.hidden)
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

    def _enter(self, visit: _Visit, name: str, *, hidden: bool, afresh: bool) -> None:
        """Go on below a directory; `afresh` looks at all that is in it."""
        child = visit.directory.enter(name)
        child.hidden = hidden
        if len(child.path) > _LONGEST:
            self.incomplete = True
            self._forget(visit.directory, name)
        elif afresh:
            self._todo.append(_Visit(child, whole=True, again=visit.again))

    def _forget(self, parent: Directory, name: str) -> None:
        """Take back what was told below a path that has nothing below it any more."""
        for directory in parent.drop(name):
            for each in list(directory.states):
                self._record(directory, each, None)

    def _record(self, directory: Directory, name: str, state: str | None) -> None:
        news = directory.record(name, state)
        if news is not None:
            self._news.append((news, directory.layer.root, os.fsencode(join(directory.path, name))))

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
    """Open a directory below a top, or return -1 where there is no directory."""
    try:
        return open_below(top, path)
    except OSError as problem:
        if problem.errno in _VANISHED:
            return -1
        raise


def _entry(directory: int, name: str) -> tuple[str, int]:
    """Return the kind and mode of an entry, or of none."""
    status = look(directory, name) if directory >= 0 else None
    if status is None:
        return ABSENT, 0
    return WHITEOUT if is_whiteout(status) else kind_of(status.st_mode), status.st_mode
