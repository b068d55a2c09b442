"""See that backups are what was saved, before an undo puts them into the project.

A backup is known by its stamp: kind, size, time and mode; and by its seal (`store/seals.py`), where it has one.
"""

from __future__ import annotations

import os

from fumehood.core import changes as c
from fumehood.core.plan import is_plain
from fumehood.core.report import printable
from fumehood.errors import UndoRefused
from fumehood.linux.nofollow import Loosened, Parents, kind_of, look, open_top, reached, split, stamp_of, walk
from fumehood.service.versions import versions
from fumehood.store.seals import digest_of, is_untouched, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fumehood.core.report import Run
    from fumehood.service.store import Store
    from fumehood.store.projects import Project
    from fumehood.store.seals import Seals

_NAMED = 5  # paths named in a refusal


def find_backups(store: Store, project: Project, back: Run, first: Run) -> None:
    """Let the changes of an undo name what lies in the layers of the `first` run, for it may have other inodes now.

    Refuses where something is gone, altered or added there. Layers that were dropped because they held nothing are
    made again.
    """
    seals = read(store.places, back.layer, back.of or "")
    for number, upper in enumerate(store.uppers(back)):
        os.makedirs(upper, 0o700, exist_ok=True)
        wanted = {change.path: change for change in back.found if change.root == number and _is_kept(change)}
        recorded = {change.path for change in first.found if change.root == number}
        layer = open_top(upper)
        try:
            damaged = _damaged(layer, wanted, recorded, seals)
        finally:
            os.close(layer)
        if damaged:
            _refuse(store, project, back, number, damaged)


def _is_kept(change: c.Change) -> bool:
    return change.after is not None and not c.is_mode_alone(change)


def _damaged(
    layer: int, wanted: dict[str, c.Change], recorded: set[str], seals: Seals
) -> list[tuple[str, str, int]]:
    """Return which backups are wrong: the path, in what way, and the inode that lies there; the others are stamped."""
    wrong: list[tuple[str, str, int]] = []
    touched: list[tuple[c.Change, os.stat_result]] = []
    missing = dict(wanted)
    for path, found in _lying(layer, wanted.values()):
        change = missing.pop(path, None)
        if change is None or change.after is None:
            if path not in recorded:
                wrong.append((path, "was put among the backups", found.st_ino))
            continue
        difference = _difference(change.after, found)
        if difference:
            wrong.append((path, f"is damaged: {difference}", found.st_ino))
        elif (seal := seals.get((change.root, path))) is not None and not is_untouched(seal, found):
            touched.append((change, found))
        if not is_plain(change) or change.after.inode != found.st_ino:
            change.after = stamp_of(found, change.after.meaning)
    return [*((path, "is gone", 0) for path in missing), *wrong, *_altered(layer, touched, seals)]


def _altered(
    layer: int, touched: Sequence[tuple[c.Change, os.stat_result]], seals: Seals
) -> Iterator[tuple[str, str, int]]:
    """Yield those of some backups that hold something else than what was saved, though they look the same."""
    loosened, parents = Loosened(layer), Parents(layer)
    try:
        for change, found in touched:
            parent, name = split(change.path)
            digest = digest_of(reached(parents, loosened, parent), name, found)
            if digest != seals[change.root, change.path][2]:
                yield change.path, "is damaged: it holds something else than what was saved", found.st_ino
    finally:
        parents.close()
        loosened.restore()


def _lying(layer: int, wanted: Iterable[c.Change]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what lies where changes have their backups, and all that lies in directories that go whole."""
    loosened, parents = Loosened(layer), Parents(layer)
    last, directory = None, -1
    try:
        for change in wanted:
            if change.within is not None:
                continue
            parent, _, name = change.path.rpartition("/")
            try:
                if parent != last:
                    directory, last = reached(parents, loosened, parent), parent
                found = look(directory, name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if found is None:
                continue
            yield change.path, found
            if kind_of(found.st_mode) == c.DIRECTORY:
                yield from walk(layer, change.path)
    finally:
        parents.close()
        loosened.restore()


def _difference(stamp: c.Stamp, found: os.stat_result) -> str:
    """Say how a backup differs from the version that was saved; a directory's size and time mean nothing."""
    kind = kind_of(found.st_mode)
    if kind != stamp.kind:
        return f"it is a {kind} now, and a {stamp.kind} was saved"
    if kind != c.DIRECTORY and found.st_size != stamp.size:
        return f"it has {found.st_size} bytes now, and {stamp.size} were saved"
    if kind != c.DIRECTORY and found.st_mtime_ns != stamp.modified_ns:
        return "it was written after it was saved"
    if kind != c.SYMLINK and found.st_mode & 0o7777 != stamp.mode:
        return f"its mode is {found.st_mode & 0o7777:04o} now, and was {stamp.mode:04o}"
    return ""


def _refuse(
    store: Store, project: Project, back: Run, number: int, damaged: Sequence[tuple[str, str, int]]
) -> None:
    named = "; ".join(f"the backup of {printable(path)} {what}" for path, what, _ in damaged[:_NAMED])
    more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    path, _, inode = damaged[0]
    root = back.roots[number]
    shown = printable(path if number == 0 else f"{root}/{path}")
    others = [each for each in versions(store, project, root, path) if not _is_inode(each.top, each.path, inode)]
    sound = sorted((each.source for each in others), key=lambda source: "-" not in source)  # a day before a run
    offer = f"fumehood restore {shown} {sound[0]} brings back another version" if sound else "there is no other backup"
    raise UndoRefused(
        f"{named}{more}: nothing was undone",
        hint=f"it lies in {store.places.run(back.layer)}; {offer}; fumehood undo {back.of} with other paths takes those"
        " back",
    )


def _is_inode(top: str, path: str, inode: int) -> bool:
    """Tell whether a version is the damaged file itself: a daily backup may be a link to it."""
    try:
        return os.lstat(f"{top}/{path}").st_ino == inode
    except OSError:
        return True
