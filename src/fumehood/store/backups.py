"""Backups beside the originals in layers: one a day of each file, and seals that tell whether an original was altered.

A daily backup, `edited/{id}-{YY-MM-DD}-{basename}`, shares its inode with the original in a run's layer, so it costs no
copy: both are backups, and nobody writes to either. Before an original goes back into the project, its daily backup
must be gone.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat

# Not by hashlib, which loads much more: this is a part of every run that changes a file.
from _blake2 import blake2b

from fumehood.core import changes as c
from fumehood.linux.cache import replace
from fumehood.linux.libc import Closable, Closing
from fumehood.linux.nofollow import LISTING, Loosened, Parents, look, open_top, reached, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fumehood.core.report import Run
    from fumehood.store.database import Days
    from fumehood.store.places import Places

    # A directory of a layer, a name in it, the name of its backup, and the change that put an original there.
    Wanted = tuple[bytes, bytes, bytes, c.Change]
    Seal = tuple[int, int, bytes]  # inode, time of the last change, digest
    Seals = dict[tuple[int, str], Seal]  # by root and path

DAYS = 7
DIRECTORY = "edited"
PREFIX = b"edited/"  # begins a backup's path below the state directory
GONE = "it is no longer in the run's layer"
_LONGEST = 255  # bytes in a name
_COPYING = ".copying-"  # begins the name of a copy that is not whole yet
_CANT_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)


class Slots(Closable):
    """A layer after an apply: the originals of one root, reached even where a directory is closed to its owner."""

    def __init__(self, upper: str) -> None:
        self.top = open_top(upper)
        self._parents = Parents(self.top)
        self._loosened = Loosened(self.top)

    def close(self) -> None:
        """Let go of the directories, and close up what was opened."""
        self._parents.close()
        self._loosened.restore()
        os.close(self.top)

    def directory(self, parent: str) -> int:
        """Return a descriptor of a directory, open for looking into; it stays valid until the next call."""
        return reached(self._parents, self._loosened, parent)

    def look(self, parent: str, name: str) -> os.stat_result | None:
        """Return what lies in a slot, or None where nothing does."""
        try:
            return look(self.directory(parent), name)
        except (FileNotFoundError, NotADirectoryError):
            return None


def name_of(number: int, day: bytes, basename: bytes) -> bytes:
    """Name the backup of a file, by its record's number, on a day; a long name loses its end."""
    return (b"%d-%b-%b" % (number, day, basename))[:_LONGEST]


def parsed(name: str) -> tuple[int, str] | None:
    """Return the record's number and the day in a backup's name, or None where it is none."""
    number, _, rest = name.partition("-")
    day = rest[:8]
    digits = number + day[:2] + day[3:5] + day[6:]
    if number and len(digits) == len(number) + 6 and digits.isascii() and digits.isdigit() and rest[2:9:3] == "---":
        return int(number), day
    return None


def expired(names: Iterable[str], recorded: Days, days: int = DAYS) -> list[str]:
    """Return the backups that are older than some of the recorded days, by the day in their names."""
    dated = [(name, parsed(name)) for name in names]
    return [name for name, parts in dated if parts is not None and recorded.since_day(parts[1]) > days]


class Daily(Closable):
    """The directory of daily backups; where it is missing, it is made when the first one is."""

    def __init__(self, state: str) -> None:
        self.path = f"{state}/{DIRECTORY}"
        self._fd = -1

    def close(self) -> None:
        """Let go of the directory."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def fd(self) -> int:
        """Return a descriptor of the directory, which is made if need be."""
        if self._fd < 0:
            if not os.path.lexists(self.path):
                os.makedirs(self.path, 0o700, exist_ok=True)
            self._fd = open_top(self.path)
        return self._fd

    def keep(self, slots: Slots, wanted: Iterable[Wanted]) -> dict[int, OSError]:
        """Make originals in a layer the day's backups too.

        One that has a backup of that day already keeps it. Returns those that failed, by their place in the row; one
        that is no longer there, because an undo took it out again, counts as failed for that reason.
        """
        failed: dict[int, OSError] = {}
        last, there = None, -1
        for n, (parent, basename, name, change) in enumerate(wanted):
            try:
                if parent != last:
                    there, last = slots.directory(os.fsdecode(parent)), parent
                status = os.stat(basename, dir_fd=there, follow_symlinks=False)
                before, after = change.before, change.after
                # The file that the change took out of the project, or a true copy of it, and not what the run made.
                if (
                    before is None or not stat.S_ISREG(status.st_mode)
                    or (after is not None and status.st_ino == after.inode)
                    or (status.st_size, status.st_mtime_ns) != (before.size, before.modified_ns)
                ):  # fmt: skip
                    raise FileNotFoundError(errno.ENOENT, GONE)
                self._add(there, basename, name)
            except OSError as error:
                failed[n] = error
        return failed

    def _add(self, there: int, basename: bytes, name: bytes) -> None:
        """Link an original, or copy it where that can't be done, under another name until the copy is whole."""
        here = self.fd()
        try:
            os.link(basename, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _CANT_LINK:
                raise
            if self.look(os.fsdecode(name)) is not None:
                return
            from fumehood.linux.copying import copy_file

            spare = f"{_COPYING}{os.getpid()}-{os.urandom(4).hex()}"
            try:
                copy_file(there, os.fsdecode(basename), here, spare)
                os.rename(spare, os.fsdecode(name), src_dir_fd=here, dst_dir_fd=here)
            except OSError:
                self.remove(spare)
                raise

    def look(self, name: str) -> os.stat_result | None:
        """Return what a backup is, or None where there is none."""
        return look(self.fd(), name)

    def remove(self, name: str) -> None:
        """Remove a backup, if it is there."""
        try:
            os.unlink(name, dir_fd=self.fd())
        except FileNotFoundError:
            return

    def freed_by(self, name: str) -> int:
        """Return the bytes that it would free to remove a backup: none where a run's layer has it too."""
        status = self.look(name)
        return 0 if status is None or status.st_nlink > 1 else status.st_blocks * 512

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the inode of everything in the directory."""
        try:
            listing = os.open(self.path, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with Closing(listing), os.scandir(listing) as entries:
            for entry in entries:
                yield entry.name, entry.inode()

    def by_file(self) -> dict[int, list[str]]:
        """Return the backups of every file by its record's number, the latest first."""
        backups: dict[int, list[str]] = {}
        dated = [(parts, name) for name, _ in self.entries() if (parts := parsed(name)) is not None]
        for (number, _), name in sorted(dated, reverse=True):
            backups.setdefault(number, []).append(name)
        return backups

    def leftovers(self, before: float) -> list[str]:
        """Return copies that were never finished and have not changed since a moment."""
        unfinished = [(name, self.look(name)) for name, _ in self.entries() if name.startswith(_COPYING)]
        return [name for name, status in unfinished if status is not None and status.st_ctime < before]


# ---- What the backups of a run hold, noted when they were made, so that one that was altered since is not put back.
#
# A seal is the inode, the time of its last change, which nobody can set, and a digest of the content. Where the first
# two are as noted, nothing was touched. Where they are not, because a daily backup came or went, or all of this was
# copied to another disk, the content tells.

_MOST_READ = 1 << 26  # bytes of backups of one run that are read for their seals
_PIECE = 1 << 20
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def seal(places: Places, run: Run, uppers: Sequence[str]) -> None:
    """Note what the backups of a run hold, once nothing of ours changes them any more.

    What is noted already stays, unless the content is still that. Files that are larger than what is left of the 64 MiB
    of one run, and those that we may not read, have no seal.
    """
    seals = read_seals(places, run.layer, run.run)
    noted, left = dict(seals), _MOST_READ
    for number, upper in enumerate(uppers):
        saved = [
            change for change in run.changed
            if (change.root, change.verdict) == (number, c.APPLIED)
            and change.before is not None and change.before.kind in (c.FILE, c.SYMLINK)
        ]  # fmt: skip
        if not saved or not os.path.isdir(upper):
            continue
        with Slots(upper) as slots:
            for change in saved:
                parent, name = split(change.path)
                status, place = slots.look(parent, name), (change.root, change.path)
                if status is None or status.st_size > left or (place in seals and is_untouched(seals[place], status)):
                    continue
                left -= status.st_size
                digest = digest_of(slots.directory(parent), name, status)
                if digest and (place not in seals or digest == seals[place][2]):
                    seals[place] = status.st_ino, status.st_ctime_ns, digest
    if seals != noted:
        replace(_seals_file(places, run.layer, run.run), marshal.dumps(seals))


def read_seals(places: Places, layer: str, run: str) -> Seals:
    """Return the seals of what a run saved in a layer; none where they are not noted yet, or can't be read."""
    try:
        with open(_seals_file(places, layer, run), "rb") as file:
            seals: Seals = marshal.load(file)  # noqa: S302  (nobody else can write in our state)
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return {}
    return seals


def is_untouched(seal: Seal, status: os.stat_result) -> bool:
    """Return True if nothing was done to a file since it was sealed; only its content says what, if something was."""
    return seal[:2] == (status.st_ino, status.st_ctime_ns)


def digest_of(directory: int, name: str, status: os.stat_result) -> bytes:
    """Return a digest of what a file holds, or of where a link leads; nothing where it may not be read."""
    digest = blake2b(digest_size=16)
    try:
        if stat.S_ISLNK(status.st_mode):
            digest.update(os.fsencode(os.readlink(name, dir_fd=directory)))
        else:
            with Closing(os.open(name, _READING, dir_fd=directory)) as file:
                while piece := os.read(file, _PIECE):
                    digest.update(piece)
    except PermissionError:
        return b""
    return bytes(digest.digest())


def _seals_file(places: Places, layer: str, run: str) -> str:
    return f"{places.run(layer)}/0/{run}.seals"
