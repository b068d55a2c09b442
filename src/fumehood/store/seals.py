"""What the backups of a run hold, noted when they were made, so that one that was altered since is not put back.

A seal is the inode, the time of its last change, which nobody can set, and a digest of the content. Where the first two
are as noted, nothing was touched. Where they are not, because a daily backup came or went, or all of this was copied to
another disk, the content tells.
"""

from __future__ import annotations

import marshal
import os
import stat

# Not by hashlib, which loads much more: this is a part of every run that changes a file.
from _blake2 import blake2b

from fumehood.core import changes as c
from fumehood.linux.nofollow import look
from fumehood.store.backups import Slots
from fumehood.store.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fumehood.core.report import Run
    from fumehood.store.places import Places

    Seal = tuple[int, int, bytes]  # inode, time of the last change, digest
    Seals = dict[tuple[int, str], Seal]  # by root and path

_END = ".seals"
_MOST_READ = 1 << 26  # bytes of backups of one run that are read for their seals
_PIECE = 1 << 20
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def seal(places: Places, run: Run, uppers: Sequence[str]) -> None:
    """Note what the backups of a run hold, once nothing of ours changes them any more.

    What is noted already stays, unless the content is still that. Files that are larger than what is left of the 64 MiB
    of one run, and those that we may not read, have no seal.
    """
    seals = read(places, run.layer, run.run)
    known, left = dict(seals), _MOST_READ
    for number, upper in enumerate(uppers):
        saved = [change for change in run.found if change.root == number and _has_content(change)]
        if saved and os.path.isdir(upper):
            with Slots(upper) as slots:
                left = _seal(slots, saved, seals, left)
    if seals != known:
        replace(_path(places, run.layer, run.run), marshal.dumps(seals))


def _has_content(change: c.Change) -> bool:
    before = change.before
    return change.verdict == c.APPLIED and before is not None and before.kind in (c.FILE, c.SYMLINK)


def _seal(slots: Slots, saved: Sequence[c.Change], seals: Seals, left: int) -> int:
    """Seal the backups in one layer; returns how many bytes more may be read."""
    last, directory = None, -1
    for change in saved:
        parent, _, name = change.path.rpartition("/")
        try:
            if parent != last:
                directory, last = slots.directory(parent), parent
            found = look(directory, name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        place = change.root, change.path
        if found is None or found.st_size > left or (place in seals and is_untouched(seals[place], found)):
            continue
        left -= found.st_size
        digest = digest_of(directory, name, found)
        if digest and (place not in seals or digest == seals[place][2]):
            seals[place] = found.st_ino, found.st_ctime_ns, digest
    return left


def read(places: Places, layer: str, run: str) -> Seals:
    """Return the seals of what a run saved in a layer; none where they are not noted yet, or can't be read."""
    try:
        with open(_path(places, layer, run), "rb") as file:
            seals: Seals = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return {}
    return seals


def is_untouched(seal: Seal, found: os.stat_result) -> bool:
    """Tell whether nothing was done to a file since it was sealed; only its content says what, if something was."""
    return seal[:2] == (found.st_ino, found.st_ctime_ns)


def digest_of(directory: int, name: str, found: os.stat_result) -> bytes:
    """Return a digest of what a file holds, or of where a link leads; nothing where it may not be read."""
    digest = blake2b(digest_size=16)
    try:
        if stat.S_ISLNK(found.st_mode):
            digest.update(os.fsencode(os.readlink(name, dir_fd=directory)))
        else:
            file = os.open(name, _READING, dir_fd=directory)
            try:
                while piece := os.read(file, _PIECE):
                    digest.update(piece)
            finally:
                os.close(file)
    except PermissionError:
        return b""
    return bytes(digest.digest())


def _path(places: Places, layer: str, run: str) -> str:
    return f"{places.run(layer)}/0/{run}{_END}"
