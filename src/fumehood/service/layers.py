"""A run's directory and layers on disk: made before the run, scanned after it, and removed when not needed."""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time
from binascii import crc32

from fumehood.core.changes import APPLIED, OVERLAY_PREFIXES, SECOND, Change, needs_layer
from fumehood.core.paths import is_below
from fumehood.core.report import Run, printable, shell_path
from fumehood.errors import BadRequest, FumehoodError, Unfinished, umask_hint
from fumehood.linux.cache import replace_file
from fumehood.linux.capture import COPY, FUSE, KERNEL
from fumehood.linux.gitindex import SeenIndexes
from fumehood.linux.libc import Closing, Descriptors, listxattr, remove_file
from fumehood.linux.lock import Lock
from fumehood.linux.namespaces import Layer, refresh_overlays
from fumehood.linux.nofollow import LISTING, DirectoryCache, open_top, remove_directory, remove_tree, stat_entry
from fumehood.store.history import RUNNING
from fumehood.store.places import Places, has_entries
from fumehood.store.projects import Identity, identity_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import Any

    from fumehood.linux.checkpoints import SettledEntries
    from fumehood.linux.gitobjects import Refs
    from fumehood.service.store import Store

_PARTS = ("upper", "work", "merged")
_NEW = ".new"  # suffix of a directory that is not complete yet
_BELOW_FILE = "below"
_ACCESS_RULES = ("system.posix_acl_access", "system.posix_acl_default")  # new files in a directory inherit them
_CLOCK_LAG_S = 0.02  # file times lag behind the clock by at most this
INIT = "init"  # the file that names the first process in the sandbox
_SCAN_TRIES = 3  # for others may move directories while a layer is read
SETTLED = "settled"  # the file of what checkpoints have put into the project
_REFS = "refs"  # the file of git refs as they were before the run's objects came
GONE = ".gone"  # suffix of a run's directory that is about to be removed
MEND = "fumehood doctor --mend"  # records runs again that are only on the disk


class RunAgain(Exception):
    """The run gives way to other runs that changed the same place. It is forgotten, and is to be run again."""

    def __init__(self, reason: str, place: str) -> None:
        super().__init__(reason)
        self.place = place


def make(
    places: Places, run: str, roots: Sequence[str], way: str, below: Sequence[tuple[str, ...]] = (), frozen: str = "",
    overlaid: Collection[str] = (),
) -> tuple[Layer, ...]:  # fmt: skip
    """Make the directories of a run's layers; each upper directory gets the mode and owner of its root.

    The roots in `overlaid` are captured by the kernel's overlay, whatever way the others are.
    """
    layers = []
    try:
        for root in roots:
            wait_for_next_second(os.stat(root))
        for number, layer in enumerate(layers_of(places, run, roots, below, frozen)):
            is_overlaid = layer.root in overlaid
            os.mkdir(f"{places.run(run)}/{number}", 0o700)
            for part in _PARTS[1:] if way in (FUSE, COPY) and not is_overlaid else _PARTS[1:2]:
                os.mkdir(places.layer(run, number, part), 0o700)
            # Under another name until it is complete: any difference to the root would be a change.
            os.mkdir(f"{layer.upper}{_NEW}", 0o700)
            mode = copy_metadata(f"{layer.upper}{_NEW}", layer.lowers[0])
            layers.append(layer.replace(mode=mode, is_overlaid=is_overlaid))
            os.rename(f"{layer.upper}{_NEW}", layer.upper)
        if any(below) or frozen:
            # For the process that recovers this run if ours dies: these trees may be folds.
            with open(f"{places.run(run)}/0/{_BELOW_FILE}", "wb") as file:
                marshal.dump((list(below), frozen), file)
    except OSError as error:
        drop(places, run)
        raise _directory_error(places, error) from error
    return tuple(layers)


def wait_for_next_second(status: os.stat_result) -> None:
    """If the file system has times of whole seconds only, wait for the next second.

    A command begins at the start of a second, and its changes are in the project before one ends: otherwise a person's
    change in the same second could not be noticed.
    """
    if status.st_ctime_ns % SECOND == 0:
        time.sleep((SECOND - time.time_ns() % SECOND) / SECOND + _CLOCK_LAG_S)


def layers_of(
    places: Places, run: str, roots: Sequence[str], below: Sequence[tuple[str, ...]] = (), frozen: str = ""
) -> tuple[Layer, ...]:
    """Return a run's layers, each over the held trees `below` it and its root, or over a `frozen` copy of the root."""
    layers = []
    for number, root in enumerate(roots):
        upper, work, merged = (places.layer(run, number, part) for part in _PARTS)
        held = below[number] if below else ()
        copy = frozen_copy(frozen, number, root) if frozen else ""
        inner = tuple(each[len(root) + 1 :] for each in roots if is_below(each, root))
        layers.append(
            Layer(root=root, upper=upper, work=work, merged=merged, held=held, frozen_root=copy, inner_roots=inner)
        )
    return tuple(layers)


def frozen_copy(frozen: str, number: int, root: str) -> str:
    """Return the frozen copy of a root, or "" if the root was added later. A project may be moved."""
    copy = frozen_copy_path(frozen, number, root)
    return copy if os.path.isdir(copy) else ""


def frozen_copy_path(frozen: str, number: int, root: str) -> str:
    """Return the path for the frozen copy of a root."""
    return f"{frozen}/{crc32(os.fsencode(root)):08x}" if number else f"{frozen}/0"


def recorded_trees_below(places: Places, run: str) -> tuple[list[tuple[str, ...]], str]:
    """Return the held trees below an unfinished run's layers, and the directory of frozen copies, or ""."""
    below: tuple[list[tuple[str, ...]], str] | None = _read_note(f"{places.run(run)}/0/{_BELOW_FILE}")
    return ([], "") if below is None else below


def record_refs(upper: str, refs: Refs) -> None:
    """Record git refs before a run's objects come into a repository; those recorded before and unchanged are kept."""
    before = recorded_refs(upper)
    kept = refs if before is None else {place: says for place, says in refs.items() if before.get(place) == says}
    if kept != before:
        replace_file(f"{os.path.dirname(upper)}/{_REFS}", marshal.dumps(kept))


def recorded_refs(upper: str) -> Refs | None:
    """Return the recorded refs, or None."""
    refs: Refs | None = _read_note(f"{os.path.dirname(upper)}/{_REFS}")
    return refs


def _read_note(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return marshal.load(file)  # noqa: S302  (nobody else can write there)
    except (FileNotFoundError, EOFError):
        return None


def may_have_written(places: Places, run: Run, layers: Sequence[Layer]) -> bool:
    """Return True if a command was started and may have written something. In a copied tree this is always possible."""
    if not os.path.exists(places.layer(run.run, 0, INIT)):
        return False
    return run.capture == COPY or any(has_entries(layer.upper) for layer in layers)


def require_roots_exist(roots: Sequence[str], changes: Sequence[Change] | None = None) -> None:
    """Raise BadRequest if a root was moved or removed; with `changes`, only the roots that these are in count."""
    for number in range(len(roots)) if changes is None else sorted({change.root for change in changes}):
        if os.path.isdir(roots[number]):
            continue
        name = printable(roots[number])
        if not number:
            message = f"the project {name} is not there any more"
            raise BadRequest(message, hint="bring it back, or open another one")
        hint = "bring it back, or name the paths that lie elsewhere"
        if changes is None:
            hint = f"bring it back, or let commands do without it: fumehood roots remove {shell_path(roots[number])}"
        raise BadRequest(f"{name} is not there any more", hint=hint)


def _directory_error(places: Places, error: OSError) -> FumehoodError:
    hint = "fumehood clean frees what is no longer needed"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = umask_hint() or f"may you write there? ls -ld {shell_path(places.state)}"
    return FumehoodError(f"cannot make the run's directories in {places.state}: {error.strerror}", hint=hint)


class RunDirectory:
    """A run's directory, locked while its process lives and its record is not final.

    It is made before the record. So if a record says that a run is running and its directory is not locked, its process
    has died.
    """

    def __init__(self, places: Places, run: str) -> None:
        self._places = places
        self.run = run
        self.indexes = SeenIndexes()
        self._lock: Lock | None = None
        self._began_in: list[tuple[str, Identity | None]] = []

    def create(self) -> None:
        """Make the directory, and lock it."""
        path = self._places.run(self.run)
        try:
            os.mkdir(path, 0o700)
            self._lock = Lock(os.open(path, LISTING | os.O_CLOEXEC))
        except OSError as error:
            if os.path.isdir(path):
                os.rmdir(path)
            raise _directory_error(self._places, error) from error
        self._lock.take()

    def note_roots(self, roots: Sequence[str]) -> None:
        """Remember the identity of the roots when the command begins."""
        self._began_in = [(root, identity_of(root)) for root in roots]

    def refuse_replaced_roots(self, changes: Sequence[Change]) -> None:
        """Raise Unfinished if there are changes and a root is no longer the directory that it was at the beginning."""
        for root, then in self._began_in if changes else ():
            now = identity_of(root)
            if then is None or now is None:
                continue
            # While a command runs, another device means another mount; its directory may be as old as the one below.
            if then.was_replaced_by(now) or then.device != now.device:
                raise Unfinished(
                    f"another directory is at {printable(root)} than when it began: nothing was applied",
                    hint="what it wrote is kept, and held by the next fumehood command in the directory that was there;"
                    " fumehood projects list shows both",
                )

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.indexes.close()
        if self._lock is not None:
            path = self._places.run(self.run)
            if any(error) and os.path.isdir(path) and not has_entries(path):
                os.rmdir(path)  # the run failed before anything was made or recorded
            self._lock.close()


def lock_dead_run(places: Places, run: str) -> Lock:
    """Lock the directory of a run whose process is dead; raises BlockingIOError if it lives."""
    lock = Lock(os.open(places.run(run), LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))
    try:
        return lock.take(wait=False)
    except BlockingIOError:
        lock.close()
        raise


def is_process_alive(places: Places, run: str) -> bool:
    """Return True if the process of a run lives and has not finished with it."""
    try:
        lock_dead_run(places, run).close()
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def unrecorded_directories(store: Store) -> list[str]:
    """Return the directories of runs without a record and without a living process, unless they are empty."""
    recorded = {name for row in store.database.rows("SELECT id, layer FROM runs") for name in row}
    unnamed = []
    for name in sorted(os.listdir(f"{store.places.state}/runs")):
        # A client's edit that goes on has its files there too.
        if name in recorded or name.endswith(GONE) or os.path.exists(f"{store.places.edits}/{name}"):
            continue
        try:
            lock_dead_run(store.places, name).close()
        except (FileNotFoundError, BlockingIOError):
            continue
        directory = store.places.run(name)
        try:
            # Empty layers do not count: they are made before the run is recorded.
            layers = [f"{directory}/{layer}" for layer in os.listdir(directory)]
            parts = [f"{layer}/{part}" for layer in layers for part in os.listdir(layer)]
            holds_something = any(os.listdir(part) for part in parts)
        except (NotADirectoryError, PermissionError):
            holds_something = True  # a file, or a directory with a mode that forbids reading, like its root
        if holds_something:
            unnamed.append(directory)
    return unnamed


def copy_metadata(upper: str, root: str) -> int:
    """Copy owner, mode, times and attributes of a root to its upper directory, as far as we may; returns the mode."""
    like = os.stat(root)
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        from fumehood.linux.copying import give_owner

        give_owner(upper, like)
    owned = [each for each in listxattr(root) if _is_user_attribute(each) or each in _ACCESS_RULES]
    inherited = [each for each in listxattr(upper) if each in _ACCESS_RULES]  # from the directory around the layer
    for attribute in dict.fromkeys((*owned, *inherited)):
        try:
            if attribute in owned:
                os.setxattr(upper, attribute, os.getxattr(root, attribute))
            else:
                os.removexattr(upper, attribute)
        except OSError as error:
            # We may lack permission, and not every file system has attributes, or room for them.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSPC, errno.E2BIG):
                raise
    os.chmod(upper, like.st_mode & 0o7777)
    os.utime(upper, ns=(like.st_atime_ns, like.st_mtime_ns))
    return like.st_mode


def _is_user_attribute(attribute: str) -> bool:
    return attribute.startswith("user.") and not attribute.startswith(OVERLAY_PREFIXES)


def scan_layers(
    layers: Sequence[Layer], indexes: SeenIndexes | None = None, *, whole: bool = True, is_in_use: bool = False
) -> list[Change]:
    """Return the changes of a command, root by root, without those that checkpoints have settled.

    `whole`: include the other names of hard-linked files that it wrote. `is_in_use`: the command goes on, so its layers
    must not be modified.
    """
    settled = settled_by_checkpoints(layers)
    scanned_changes: list[Change] = []
    for number, layer in enumerate(layers):
        if _has_no_writes(layer):
            continue
        # A held run below it may have been applied or discarded while the command ran.
        below = (*(each for each in layer.held if os.path.isdir(each)), layer.frozen_root or layer.root)
        with Descriptors(map(open_top, (layer.upper, *below))) as tops:
            changes = _scan_layer(number, tops, mode=layer.mode, indexes=indexes, settled=settled, is_in_use=is_in_use)
            is_linked = any(change.before is not None and change.before.links > 1 for change in changes)
            if is_linked and whole and not is_in_use:
                from fumehood.linux.held_layers import update_other_names

                changes = update_other_names(changes, *tops)
            scanned_changes += changes
    return scanned_changes


def _scan_layer(number: int, tops: Sequence[int], **options: Any) -> list[Change]:
    """Scan a layer; again if somebody has just moved a directory that it is compared with."""
    from fumehood.linux.layer import scan

    for _ in range(_SCAN_TRIES):
        try:
            return scan(number, *tops, **options)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return scan(number, *tops, **options)


def _has_no_writes(layer: Layer) -> bool:
    """Return True if nothing was written to a layer. So it is for most commands, and the scanner need not be loaded."""
    status = os.stat(layer.upper)
    if status.st_mode != layer.mode or not status.st_mode & stat.S_IRUSR or has_entries(layer.upper):
        return False
    attributes = listxattr(layer.upper)
    if any(name.endswith(".opaque") for name in attributes):
        return False
    return not any(map(_is_user_attribute, (*attributes, *listxattr(layer.lowers[0]))))


def init_file(layers: Sequence[Layer]) -> str:
    """Return the path of the file that names the first process in the sandbox."""
    return f"{os.path.dirname(layers[0].upper)}/{INIT}"


def is_checkpointed(layers: Sequence[Layer]) -> bool:
    """Return True if a checkpoint has put something into the project while the command ran."""
    return os.path.exists(f"{os.path.dirname(layers[0].upper)}/{SETTLED}")


def settled_by_checkpoints(layers: Sequence[Layer]) -> SettledEntries | None:
    """Return what checkpoints of a command have put into the project, or None if there was no checkpoint."""
    if not is_checkpointed(layers):
        return None
    from fumehood.linux.checkpoints import read_note

    return read_note(f"{os.path.dirname(layers[0].upper)}/{SETTLED}")


def remove_work_directories(layers: Sequence[Layer]) -> None:
    """Remove the directories that only the mount needed, and the notes that were kept while the command ran."""
    above = os.path.dirname(layers[0].upper)
    remove_file(f"{above}/{INIT}")
    remove_file(f"{above}/{SETTLED}")
    if any(layer.held or layer.frozen_root for layer in layers):
        remove_file(f"{above}/{_BELOW_FILE}")
    for layer in layers:
        if _remove_usual_work_directory(layer):
            continue
        with Closing(open_top(os.path.dirname(layer.upper))) as opened:
            for part in ("work", "merged"):
                remove_tree(opened, part)


def _remove_usual_work_directory(layer: Layer) -> bool:
    """Remove a work directory that looks as an overlay usually leaves it; return False if it looks otherwise.

    This is quicker than listing it. The kernel leaves its directories at mode 000, so chmod comes first.
    """
    if os.path.lexists(layer.merged):
        return False
    try:
        if os.geteuid() != 0:
            for part in ("/work", "/work/incompat", "/work/incompat/volatile"):
                os.chmod(layer.work + part, 0o700)
        os.unlink(f"{layer.work}/work/incompat/volatile/dirty")
        for part in ("/work/incompat/volatile", "/work/incompat", "/work", ""):
            os.rmdir(layer.work + part)
    except OSError:
        return False
    return True


def drop(places: Places, run: str) -> None:
    """Remove a run's directory with all its layers."""
    try:
        # The usual case: one root, and nothing in its layer.
        for part in ("/0/upper", "/0", ""):
            os.rmdir(places.run(run) + part)
    except OSError:
        remove_directory(places.run(run))


def drop_if_empty(places: Places, run: str, changes: Iterable[Change]) -> None:
    """Remove layers without backups, held changes or anything else that an undo needs.

    A backup may be an empty directory, so only the changes tell whether the layers are needed.
    """
    if not any(map(needs_layer, changes)) and not os.path.exists(f"{places.run(run)}/0/{_REFS}"):
        drop(places, run)


def disk_usage(directory: int, name: str, *, freed: bool = False) -> int:
    """Return the bytes that an entry takes, each file once; `freed`: without files that a daily backup keeps too."""
    blocks = 0
    linked: dict[int, int] = {}
    for entry in stat_tree(directory, name):
        if entry.st_nlink > 1 and not stat.S_ISDIR(entry.st_mode):
            linked[entry.st_ino] = linked.get(entry.st_ino, 0) + 1
            if linked[entry.st_ino] != (entry.st_nlink if freed else 1):
                continue
        blocks += entry.st_blocks
    return blocks * 512


def stat_tree(directory: int, name: str) -> Iterator[os.stat_result]:
    """Yield the stat result of an entry and of everything below it that may be listed; follows nothing."""
    return (entry for _, entry in walk_tree(directory, name))


def walk_tree(directory: int, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path and the stat result of an entry and of everything below it, however deep it is nested."""
    entry = stat_entry(directory, name)
    if entry is not None:
        yield name, entry
    waiting = [name]
    with DirectoryCache(directory, bounded=False) as parents:
        while waiting:
            here = waiting.pop()
            listing = parents.open_listing(here)
            if listing is None:
                continue  # not a directory, or a backup whose own mode forbids reading
            with Closing(listing):
                for below in os.listdir(listing):
                    path, entry = f"{here}/{below}", stat_entry(listing, below)
                    if entry is None:
                        continue
                    yield path, entry
                    if stat.S_ISDIR(entry.st_mode):
                        waiting.append(path)


def refresh_running_commands(store: Store, project: int, run: Run) -> None:
    """Make the running commands of a project see what another run changed there.

    The kernel's overlay remembers what it has looked up, even that a name did not exist.
    """
    names = {name for name, state, *_ in store.history.unfinished_runs(project) if state == RUNNING}
    names -= {run.run, run.of or ""}  # a checkpoint is of a command that runs
    if not names:
        return
    from fumehood.linux.process import find_init
    from fumehood.rootfs.tree import root_targets

    changed = {run.roots[change.root] for change in run.changed if change.verdict == APPLIED}
    for other in store.history.runs(among=names):
        roots = [root for root in other.roots if root in changed] if other.capture == KERNEL else []
        init = find_init(store.places.layer(other.run, 0, INIT)) if roots else None
        if init is not None:
            try:
                in_tree = root_targets(other.roots)
                refresh_overlays(init, [*roots, *(in_tree[root] for root in roots)])
            except OSError:
                continue  # it has just ended, or an old kernel can't do it
