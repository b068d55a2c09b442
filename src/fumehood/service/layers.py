"""A run's layers on disk: made before it, emptied of what nobody needs after it."""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time
from binascii import crc32

from fumehood.core.changes import APPLIED, OVERLAY_PREFIXES, SECOND, Change, needs_layer
from fumehood.core.masks import is_below
from fumehood.core.report import Run, printable, shell_path
from fumehood.errors import BadRequest, FumehoodError, Unfinished, own_umask
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

    from fumehood.linux.checkpoints import Settled
    from fumehood.linux.gitobjects import Refs
    from fumehood.service.store import Store

_PARTS = ("upper", "work", "merged")
_NEW = ".new"  # ends the name of a directory that is not ready
_BELOW_FILE = "below"
_ACCESS_RULES = ("system.posix_acl_access", "system.posix_acl_default")  # what is made in a directory inherits them
_CLOCK_LAG_S = 0.02  # the times of files lag behind the clock by less
INIT = "init"  # which process was the first in the sandbox
_SCAN_TRIES = 3  # of directories, by others, while one layer is read
SETTLED = "settled"  # what checkpoints of its command have put into the project
_REFS = "refs"  # what those of repositories said before its objects came
GONE = ".gone"  # ends the name of a run's directory that only waits to be removed
MEND = "fumehood doctor --mend"  # takes up again what no record names


class RunAgain(Exception):
    """Other runs changed what this one changed, at a place; it left nothing, neither layers nor a record."""

    def __init__(self, reason: str, place: str) -> None:
        super().__init__(reason)
        self.place = place


def make(
    places: Places, run: str, roots: Sequence[str], way: str, below: Sequence[tuple[str, ...]] = (), frozen: str = "",
    overlaid: Collection[str] = (),
) -> tuple[Layer, ...]:  # fmt: skip
    """Make the directories of a run's layers; the upper one looks like the root it stands for.

    Those `overlaid` are captured by the kernel's overlay, whatever is done for the others.
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
            # Under another name until then: what differs from the root would be a change.
            os.mkdir(f"{layer.upper}{_NEW}", 0o700)
            mode = copy_metadata(f"{layer.upper}{_NEW}", layer.lowers[0])
            layers.append(layer.replace(mode=mode, is_overlaid=is_overlaid))
            os.rename(f"{layer.upper}{_NEW}", layer.upper)
        if any(below) or frozen:
            # For whoever goes on should this process die: the trees may be folds.
            with open(f"{places.run(run)}/0/{_BELOW_FILE}", "wb") as file:
                marshal.dump((list(below), frozen), file)
    except OSError as error:
        drop(places, run)
        raise _directory_error(places, error) from error
    return tuple(layers)


def wait_for_next_second(status: os.stat_result) -> None:
    """Where files have times of whole seconds, wait for the next one.

    A command begins with a second, and what it leaves in the project is there when one ends: else nothing would tell
    what a person changes in the same second.
    """
    if status.st_ctime_ns % SECOND == 0:
        time.sleep((SECOND - time.time_ns() % SECOND) / SECOND + _CLOCK_LAG_S)


def layers_of(
    places: Places, run: str, roots: Sequence[str], below: Sequence[tuple[str, ...]] = (), frozen: str = ""
) -> tuple[Layer, ...]:
    """Return where a run's layers lie, over what was held `below` each root, or a `frozen` copy of each."""
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
    """Return the copy of a root among frozen ones; nothing for one that came later. A project may be moved."""
    copy = frozen_copy_path(frozen, number, root)
    return copy if os.path.isdir(copy) else ""


def frozen_copy_path(frozen: str, number: int, root: str) -> str:
    """Return where the copy of a root lies, or is to lie, among frozen ones."""
    return f"{frozen}/{crc32(os.fsencode(root)):08x}" if number else f"{frozen}/0"


def recorded_trees_below(places: Places, run: str) -> tuple[list[tuple[str, ...]], str]:
    """Return which trees a command that did not end saw below its layers, and which frozen copies, if any."""
    below: tuple[list[tuple[str, ...]], str] | None = _read_note(f"{places.run(run)}/0/{_BELOW_FILE}")
    return ([], "") if below is None else below


def record_refs(upper: str, refs: Refs) -> None:
    """Keep what refs say before objects come into a repository; what a layer has noted before counts where it is so."""
    before = recorded_refs(upper)
    kept = refs if before is None else {place: says for place, says in refs.items() if before.get(place) == says}
    if kept != before:
        replace_file(f"{os.path.dirname(upper)}/{_REFS}", marshal.dumps(kept))


def recorded_refs(upper: str) -> Refs | None:
    """Return what was noted of refs; None where nothing was."""
    refs: Refs | None = _read_note(f"{os.path.dirname(upper)}/{_REFS}")
    return refs


def _read_note(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return marshal.load(file)  # noqa: S302  (nobody else can write there)
    except (FileNotFoundError, EOFError):
        return None


def may_have_written(places: Places, run: Run, layers: Sequence[Layer]) -> bool:
    """Return True if a command was started and may have written something; in a copy, only a comparison would tell."""
    if not os.path.exists(places.layer(run.run, 0, INIT)):
        return False
    return run.capture == COPY or any(has_entries(layer.upper) for layer in layers)


def require_roots_exist(roots: Sequence[str], changes: Sequence[Change] | None = None) -> None:
    """Refuse where the project, or another directory that commands write, was moved or removed.

    With changes, only those count that some of them lie in.
    """
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
        hint = own_umask() or f"may you write there? ls -ld {shell_path(places.state)}"
    return FumehoodError(f"cannot make the run's directories in {places.state}: {error.strerror}", hint=hint)


class RunDirectory:
    """A run's directory, locked for as long as its process lives and its record is not final.

    It is made before the record is, so a record of a running run whose directory is not locked tells of a death.
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
        """Take note of which directories a command begins in."""
        self._began_in = [(root, identity_of(root)) for root in roots]

    def refuse_replaced_roots(self, changes: Sequence[Change]) -> None:
        """Raise Unfinished where there are changes and a root is another directory than when the command began."""
        for root, then in self._began_in if changes else ():
            now = identity_of(root)
            if then is None or now is None:
                continue
            # While a command runs, another device is another mount: its directory may be as old as the one under it.
            if then.is_another(now) or then.device != now.device:
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
                os.rmdir(path)  # it failed before anything was made or recorded
            self._lock.close()


def lock_dead_run(places: Places, run: str) -> Lock:
    """Lock the directory of a run whose process is dead; raises BlockingIOError where it lives."""
    lock = Lock(os.open(places.run(run), LISTING | os.O_NOFOLLOW | os.O_CLOEXEC))
    try:
        return lock.take(wait=False)
    except BlockingIOError:
        lock.close()
        raise


def is_process_alive(places: Places, run: str) -> bool:
    """Return True if the process of a run lives, and is not done with it."""
    try:
        lock_dead_run(places, run).close()
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def unrecorded_directories(store: Store) -> list[str]:
    """Return the runs' directories that no record names, that no living process has, and that hold something."""
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
            # More than what is made before the run is recorded: empty layers.
            layers = [f"{directory}/{layer}" for layer in os.listdir(directory)]
            parts = [f"{layer}/{part}" for layer in layers for part in os.listdir(layer)]
            holds_something = any(os.listdir(part) for part in parts)
        except (NotADirectoryError, PermissionError):
            holds_something = True  # a file, or closed as the root is that it stands for
        if holds_something:
            unnamed.append(directory)
    return unnamed


def copy_metadata(upper: str, root: str) -> int:
    """Give a directory of ours what belongs to the one it stands for, as far as we may; returns the mode."""
    like = os.stat(root)
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        from fumehood.linux.copying import give_owner

        give_owner(upper, like)
    owned = [each for each in listxattr(root) if _is_user_attribute(each) or each in _ACCESS_RULES]
    inherited = [each for each in listxattr(upper) if each in _ACCESS_RULES]  # from where the layer lies
    for attribute in dict.fromkeys((*owned, *inherited)):
        try:
            if attribute in owned:
                os.setxattr(upper, attribute, os.getxattr(root, attribute))
            else:
                os.removexattr(upper, attribute)
        except OSError as error:
            # A directory may be closed to us, and not every file system has attributes, or room for them.
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
    """Return what a command changed, root by root; `whole` with the other names of the files that it wrote.

    What checkpoints have settled is left out. The layers of a command that goes on, `is_in_use`, stay as they are.
    """
    settled = settled_by_checkpoints(layers)
    scanned_changes: list[Change] = []
    for number, layer in enumerate(layers):
        if _has_no_writes(layer):
            continue
        # What was held below it may have been applied or thrown away while the command ran.
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
    """Read a layer, once more where somebody just moved a directory that it is compared with."""
    from fumehood.linux.layer import scan

    for _ in range(_SCAN_TRIES):
        try:
            return scan(number, *tops, **options)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return scan(number, *tops, **options)


def _has_no_writes(layer: Layer) -> bool:
    """Return True if nothing was written to a layer, as by most commands: what reads one need not be loaded."""
    status = os.stat(layer.upper)
    if status.st_mode != layer.mode or not status.st_mode & stat.S_IRUSR or has_entries(layer.upper):
        return False
    attributes = listxattr(layer.upper)
    if any(name.endswith(".opaque") for name in attributes):
        return False
    return not any(map(_is_user_attribute, (*attributes, *listxattr(layer.lowers[0]))))


def init_file(layers: Sequence[Layer]) -> str:
    """Return the file that tells which process is the first in a sandbox."""
    return f"{os.path.dirname(layers[0].upper)}/{INIT}"


def is_checkpointed(layers: Sequence[Layer]) -> bool:
    """Return True if something that a command wrote was put into the project while it ran."""
    return os.path.exists(f"{os.path.dirname(layers[0].upper)}/{SETTLED}")


def settled_by_checkpoints(layers: Sequence[Layer]) -> Settled | None:
    """Return what checkpoints of a command have put into the project; None where there was none."""
    if not is_checkpointed(layers):
        return None
    from fumehood.linux.checkpoints import noted

    return noted(f"{os.path.dirname(layers[0].upper)}/{SETTLED}")


def remove_work_directories(layers: Sequence[Layer]) -> None:
    """Remove what only the mount needed, and what was noted of the command while it ran."""
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
    """Remove the work directory as an overlay usually leaves it, which is quicker than finding out; tell if it was so.

    Its directories are left at mode 000, so they must be opened up first.
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
    """Remove a run's layers altogether."""
    try:
        # As most runs leave them: with one root, nothing in it.
        for part in ("/0/upper", "/0", ""):
            os.rmdir(places.run(run) + part)
    except OSError:
        remove_directory(places.run(run))


def drop_if_empty(places: Places, run: str, changes: Iterable[Change]) -> None:
    """Remove layers that hold no backup, nothing that waits for a person, and nothing that an undo must know.

    A backup may be an empty directory, so only the changes tell whether what is left is needed.
    """
    if not any(map(needs_layer, changes)) and not os.path.exists(f"{places.run(run)}/0/{_REFS}"):
        drop(places, run)


def disk_usage(directory: int, name: str, *, freed: bool = False) -> int:
    """Return the bytes that an entry takes, each file counted once; `freed`: not those that a daily backup keeps."""
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
                continue  # no directory, or closed by a mode that is the backup's own
            with Closing(listing):
                for below in os.listdir(listing):
                    path, entry = f"{here}/{below}", stat_entry(listing, below)
                    if entry is None:
                        continue
                    yield path, entry
                    if stat.S_ISDIR(entry.st_mode):
                        waiting.append(path)


def refresh_running_commands(store: Store, project: int, run: Run) -> None:
    """Have the commands of a project that run see what another one changed there.

    The kernel's overlay goes on showing what it has looked up once, even that something was not there.
    """
    names = {name for name, state, *_ in store.history.unfinished_runs(project) if state == RUNNING}
    names -= {run.run, run.of or ""}  # a checkpoint is of a command that runs
    if not names:
        return
    from fumehood.linux.process import first_inside
    from fumehood.rootfs.tree import targets

    changed = {run.roots[change.root] for change in run.changed if change.verdict == APPLIED}
    for other in store.history.runs(among=names):
        roots = [root for root in other.roots if root in changed] if other.capture == KERNEL else []
        init = first_inside(store.places.layer(other.run, 0, INIT)) if roots else None
        if init is not None:
            try:
                in_tree = targets(other.roots)
                refresh_overlays(init, [*roots, *(in_tree[root] for root in roots)])
            except OSError:
                continue  # it has just ended, or an old kernel can't do it
