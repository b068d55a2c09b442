"""Report live, by inotify, what a running command adds, updates and removes; the scan at the end decides.

An event only says *where to look*. The state of a path follows from what is there *now*, in the layer and in the
project, never from the order of events: the kernel merges events, drops them under load, and sends none for a whiteout
that a rename leaves behind. So the rules hold however much happened between two looks. Import this module only if
somebody listens.
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

# Otherwise the library finds libc by running `ldconfig` and `gcc`, whatever programs on PATH have these names.
inotify_simple._libc = ctypes.CDLL(None, use_errno=True)

_FLAGS = inotify_simple.flags
# Not MODIFY or CLOSE_WRITE: a file is reported when it comes into the layer. Further writes change no state, but would
# fill the queue. ATTRIB is for the modes of directories, and for directories that become opaque.
_MASK = _FLAGS.CREATE | _FLAGS.DELETE | _FLAGS.MOVED_FROM | _FLAGS.MOVED_TO | _FLAGS.ATTRIB | _FLAGS.ONLYDIR
_OPAQUE = (*OPAQUE_MARKS, "user.fuseoverlayfs.opaque")
_OPAQUE_FILE = ".wh..wh..opq"  # fuse-overlayfs puts one into each opaque directory and shows it to nobody
# Errors of a path that was replaced or moved away between two looks: an event about that is on its way. EXDEV: the
# overlay itself moved it out of the layer while we walked along it.
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
_MAX_PATH = 4096  # longer paths, which no program can name, are not followed: trees can be endlessly deep
_LAST_READS = 64  # a process that outlives the run and goes on writing must not keep `stop` from ending


class ChangedPath(str):
    """A path relative to `root`, as in a report."""

    __slots__ = ("root",)
    root: str


def watch_layers(on_change: Callable[[str, ChangedPath], object], layers: Sequence[Layer]) -> StoppableSource:
    """Start watching the layers of a run; `on_change` is called with what happened and the path."""

    def tell(event: str, root: str, path: str) -> None:
        changed = ChangedPath(path)
        changed.root = root
        on_change(event, changed)

    monitor = Monitor([(each.upper, each.root) for each in layers], tell)
    monitor.start()
    return monitor


class WatchedLayer:
    """The upper directory of a layer and the root that it lies over, both open."""

    def __init__(self, upper: str, root: str) -> None:
        self.root = root
        self.project_fd, self.upper_fd = Descriptors(map(open_top, (root, upper)))


class Directory:
    """One directory of a layer: what was reported of its entries, and those of its subdirectories that matter."""

    __slots__ = ("below", "gone", "hidden", "layer", "path", "states")

    def __init__(self, layer: WatchedLayer, path: str = "") -> None:
        self.layer = layer
        self.path = path
        self.hidden = False  # the layer hides what the project has here
        self.gone = False  # no longer part of the tree, so its events do not matter
        self.states: dict[str, str] = {}
        self.below: dict[str, Directory] = {}

    def record(self, name: str, state: str | None) -> str | None:
        """Remember an entry's state; return the event for the listener, or None if nothing is new.

        A path that was reported and is unchanged again (created, then deleted) is cancelled. Further writes to a file
        do not change its state, so a file is reported once, however long it is written.
        """
        if self.states.get(name) == state:
            return None
        if state is None:
            del self.states[name]
        else:
            self.states[name] = state
        return state or CANCELLED

    def enter(self, name: str) -> Directory:
        """Return the subdirectory of this name; make a new one if there is none."""
        if name not in self.below:
            self.below[name] = Directory(self.layer, join(self.path, name))
        return self.below[name]

    def drop(self, name: str) -> list[Directory]:
        """Drop the subdirectory of this name with all below it; return the dropped directories, parents first."""
        dropped = [self.below.pop(name)] if name in self.below else []
        for directory in dropped:  # which grows
            directory.gone = True
            dropped += directory.below.values()
        return dropped


class Monitor:
    """Watches layers while a command runs, and tells one listener what happens to each path.

    The only errors that this raises are the listener's; after one, the listener is not called again. `incomplete` says
    that something could not be watched (a limit of the host, a directory that we may not read, lost events). Then some
    changes may have been reported late or not at all.
    """

    def __init__(self, layers: Sequence[tuple[str, str]], on_change: Callable[[str, str, str], None]) -> None:
        self.incomplete = False
        self._has_listener_raised = False
        self._paths = layers  # upper directories and roots
        self._on_change = on_change
        self._inotify: Any = None
        self._silent_fd = -1  # is never readable; replaces inotify
        self._tops: list[Directory] = []
        self._watches: dict[int, Directory] = {}  # by the number of the kernel's watch
        # Directories to look at; the names to look at, or None for all; and True if all below them is looked at again.
        self._queue: deque[tuple[Directory, Iterable[str] | None, bool]] = deque()
        self._untold: deque[tuple[str, str, str]] = deque()  # events, as the listener gets them
        self._has_lost_events = False
        self._next_full_look_at = 0.0

    def start(self) -> None:
        """Watch the layers, and report what is in them already."""
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
        except OSError:
            self.incomplete = True
            self._silent_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for upper, root in self._paths:
            try:
                self._tops.append(Directory(WatchedLayer(upper, root)))
            except OSError:
                self.incomplete = True
        self._look_at_all()
        self._tell_listener()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; -1 before the start.

        If the host has no inotify instance left, it is a descriptor that never becomes readable.
        """
        return self._silent_fd if self._inotify is None else int(self._inotify.fileno())

    def drain(self) -> None:
        """Read all pending events, and tell the listener; return at once if there are none."""
        self._read_events()
        self._tell_listener()

    def stop(self) -> None:
        """Read what is pending, then close everything; may be called again."""
        try:
            for _ in range(_LAST_READS):
                if not self._read_events():
                    break
            else:
                self.incomplete = True
            if self.incomplete:
                self._look_at_all()
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
            if self._silent_fd >= 0:
                os.close(self._silent_fd)
                self._silent_fd = -1
            self._watches.clear()
            self._queue.clear()
            for top in self._tops:
                os.close(top.layer.upper_fd)
                os.close(top.layer.project_fd)
            self._tops.clear()
        self._tell_listener()

    def _read_events(self) -> bool:
        """Look at all places that pending events name; return True if there were events."""
        if self._inotify is None:
            return False
        try:
            events = self._inotify.read(timeout=0)
        except OSError:
            self.incomplete = True
            return False
        names_to_look_at: dict[Directory, dict[str, None]] = {}  # in order: what happened first is reported first
        for watch, mask, _cookie, name in events:
            if mask & _FLAGS.Q_OVERFLOW:
                self.incomplete = self._has_lost_events = True
            elif mask & _FLAGS.IGNORED:
                self._watches.pop(watch, None)
            elif name and watch in self._watches:
                names_to_look_at.setdefault(self._watches[watch], {})[name] = None
        self._queue += ((directory, names, False) for directory, names in names_to_look_at.items())
        self._process_queue()
        began = monotonic()
        if self._has_lost_events and began >= self._next_full_look_at:
            # Not often if the layer is huge, or the run would stand still.
            self._has_lost_events = False
            self._look_at_all()
            self._next_full_look_at = monotonic() + 9 * (monotonic() - began)
        return bool(events)

    def _look_at_all(self) -> None:
        """Look at every path of every layer, also without events."""
        for top in self._tops:
            self._watch(top.layer.upper_fd, top)
            self._queue.append((top, None, True))
        self._process_queue()

    def _process_queue(self) -> None:
        while self._queue:
            directory, names, is_recursive = self._queue.popleft()
            if not directory.gone:
                self._attempt(self._look_at, directory, names, is_recursive)

    def _attempt(self, step: Callable[..., None], *arguments: object) -> None:
        """Do one step; a failure does not matter if the command has just moved or removed the path."""
        try:
            step(*arguments)
        except OSError as problem:
            if problem.errno not in _VANISHED:
                self.incomplete = True

    def _look_at(self, directory: Directory, names: Iterable[str] | None, is_recursive: bool) -> None:
        """Look at entries of a directory, in the layer and in the project: a descriptor is -1 if it is not there."""
        upper = project = -1
        try:
            upper = _open(directory.layer.upper_fd, directory.path)
            project = _open(directory.layer.project_fd, directory.path)
            if upper < 0 and not directory.hidden:
                return  # It has just vanished: an event of its parent says what that means.
            if names is None:
                # Every name for which there is or was something to report.
                layer_names = entries(upper) if upper >= 0 else ()
                project_names = entries(project) if project >= 0 and directory.hidden else ()
                names = sorted({*directory.states, *directory.below, *layer_names, *project_names})
            for name in names:
                if name != _OPAQUE_FILE:
                    self._attempt(self._look_at_entry, directory, is_recursive, upper, project, name)
        finally:
            for fd in (upper, project):
                if fd >= 0:
                    os.close(fd)

    def _look_at_entry(self, directory: Directory, is_recursive: bool, upper: int, project: int, name: str) -> None:
        """Compare one entry of a directory with the project's, record its state, and queue what is below it."""
        kind, mode = _entry(upper, name)
        project_kind, project_mode = _entry(project, name)
        altered = False
        if kind == DIRECTORY:
            hides = self._watch_child(directory, is_recursive, upper, name, project_kind)
            altered = hides or mode != project_mode
        elif project_kind == DIRECTORY and (directory.hidden or kind != ABSENT):
            self._queue_child(directory, is_recursive, name, hidden=True, looks_at_all=True)
        else:
            self._drop_child(directory, name)
        self._record(directory, name, state_of(kind, project_kind, hidden=directory.hidden, altered=altered))

    def _watch_child(self, directory: Directory, is_recursive: bool, upper: int, name: str, project_kind: str) -> bool:
        """Watch a subdirectory in the layer; return True if it hides what the project has there.

        It is watched before it is listed, so that nothing is missed between the two. The kernel gets a descriptor of
        it, because the command can put a symlink in its place at any moment.
        """
        with Closing(os.open(name, PATH_ONLY | os.O_NOFOLLOW, dir_fd=upper)) as fd:
            hides = directory.hidden or (project_kind == DIRECTORY and is_opaque(f"/proc/self/fd/{fd}", _OPAQUE))
            child = directory.enter(name)
            is_new = self._watch(fd, child)
        looks_at_all = is_new or is_recursive or hides != child.hidden
        self._queue_child(directory, is_recursive, name, hidden=hides, looks_at_all=looks_at_all)
        return hides

    def _watch(self, fd: int, directory: Directory) -> bool:
        """Watch an open directory; return False if it was watched already, under the same path.

        The kernel gives the same number for the same directory, so a moved directory is found under its old path.
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

    def _queue_child(
        self, directory: Directory, is_recursive: bool, name: str, *, hidden: bool, looks_at_all: bool
    ) -> None:
        """Set up a subdirectory; if `looks_at_all`, look at everything in it later."""
        child = directory.enter(name)
        child.hidden = hidden
        if len(child.path) > _MAX_PATH:
            self.incomplete = True
            self._drop_child(directory, name)
        elif looks_at_all:
            self._queue.append((child, None, is_recursive))

    def _drop_child(self, parent: Directory, name: str) -> None:
        """Cancel what was reported below a path that has nothing below it any more."""
        for directory in parent.drop(name):
            for entry in list(directory.states):
                self._record(directory, entry, None)

    def _record(self, directory: Directory, name: str, state: str | None) -> None:
        event = directory.record(name, state)
        if event is not None:
            self._untold.append((event, directory.layer.root, join(directory.path, name)))

    def _tell_listener(self) -> None:
        """Tell the listener, after all bookkeeping: so the listener may call any method of this object."""
        while self._untold:
            event = self._untold.popleft()
            if not self._has_listener_raised:
                try:
                    self._on_change(*event)
                except BaseException:
                    self._has_listener_raised = True
                    raise


def state_of(layer: str, project: str, *, hidden: bool = False, altered: bool = False) -> str | None:
    """Return what became of a path, given its kinds in the layer and in the project; None if nothing.

    `hidden`: a directory above it in the layer hides the project's, so an entry that only the project has is gone.
    `altered`: if both are directories, the layer's is a new one or has another mode. Otherwise a directory in the layer
    only means that something below it was changed.
    """
    if layer in (ABSENT, WHITEOUT):
        is_removed = (hidden or layer == WHITEOUT) and project != ABSENT
        return REMOVED if is_removed else None
    if project == ABSENT:
        return ADDED
    return None if layer == project == DIRECTORY and not altered else UPDATED


def _open(top: int, path: str) -> int:
    """Open a directory below another; return -1 if it has vanished."""
    try:
        return open_below(top, path)
    except OSError as problem:
        if problem.errno in _VANISHED:
            return -1
        raise


def _entry(directory: int, name: str) -> tuple[str, int]:
    """Return the kind and the mode of an entry; it is absent if the directory is -1."""
    status = stat_entry(directory, name) if directory >= 0 else None
    if status is None:
        return ABSENT, 0
    return WHITEOUT if is_whiteout(status) else kind_of(status.st_mode), status.st_mode
