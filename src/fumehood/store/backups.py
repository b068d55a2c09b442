"""Daily backups, `edited/{id}-{YY-MM-DD}-{basename}`: one a day of each file that was changed or deleted.

One shares its inode with the original in a run's layer, so it costs no copy: both are backups, and nobody
writes to either. Before an original goes back into the project, its daily backup must be gone.
"""

from __future__ import annotations

import errno
import os
import stat

from fumehood.linux.nofollow import LISTING, PATH_ONLY, Loosened, Parents, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fumehood.core.changes import Change
    from fumehood.store.database import Days

    # A directory of a layer, a name in it, the name of its backup, and the change that put an original there.
    Wanted = tuple[bytes, bytes, bytes, Change]

DAYS = 7
DIRECTORY = "edited"
PREFIX = b"edited/"  # begins a backup's path below the state directory
_LONGEST = 255  # bytes in a name
_COPYING = ".copying-"  # begins the name of a copy that is not whole yet
GONE = "it is no longer in the run's layer"
_CANT_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)


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
    return [
        name
        for name in names
        if (found := parsed(name)) is not None and recorded.since_day(found[1]) > days
    ]


class Daily:
    """The directory of daily backups; where it is missing, it is made when the first one is."""

    def __init__(self, state: str) -> None:
        self.path = f"{state}/{DIRECTORY}"
        self._fd = -1

    def __enter__(self) -> Daily:
        return self

    def __exit__(self, *_error: object) -> None:
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
        here, last, there = self.fd(), None, -1
        for n, (parent, basename, name, change) in enumerate(wanted):
            try:
                if parent != last:
                    there, last = slots.directory(os.fsdecode(parent)), parent
                found = os.stat(basename, dir_fd=there, follow_symlinks=False)
                if not _is_original(found, change):
                    failed[n] = FileNotFoundError(errno.ENOENT, GONE)
                    continue
                os.link(basename, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
            except FileExistsError:
                continue
            except OSError as error:
                can_copy = error.errno in _CANT_LINK
                failure = self._copied(slots, os.fsdecode(parent), basename, name) if can_copy else error
                if failure is not None:
                    failed[n] = failure
        return failed

    def _copied(self, slots: Slots, parent: str, basename: bytes, name: bytes) -> OSError | None:
        """Copy an original that can't be linked; returns what prevented that."""
        try:
            self._copy(slots, parent, basename, name)
        except OSError as error:
            return error
        return None

    def _copy(self, slots: Slots, parent: str, basename: bytes, name: bytes) -> None:
        """Copy, under another name until the copy is whole."""
        from fumehood.linux.copying import copy_file

        here, whole = self.fd(), os.fsdecode(name)
        if self.look(whole) is not None:
            return
        spare = f"{_COPYING}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            copy_file(slots.directory(parent), os.fsdecode(basename), here, spare)
            os.rename(spare, whole, src_dir_fd=here, dst_dir_fd=here)
        except OSError:
            self.remove(spare)
            raise

    def look(self, name: str) -> os.stat_result | None:
        """Return what a backup is, or None where there is none."""
        try:
            return os.stat(name, dir_fd=self.fd(), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Remove a backup, if it is there."""
        try:
            os.unlink(name, dir_fd=self.fd())
        except FileNotFoundError:
            return

    def freed_by(self, name: str) -> int:
        """Return the bytes that it would free to remove a backup: none where a run's layer has it too."""
        found = self.look(name)
        return 0 if found is None or found.st_nlink > 1 else found.st_blocks * 512

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the inode of everything in the directory."""
        try:
            listing = os.open(self.path, LISTING | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            with os.scandir(listing) as found:
                for entry in found:
                    yield entry.name, entry.inode()
        finally:
            os.close(listing)

    def by_file(self) -> dict[int, list[str]]:
        """Return the backups of every file by its record's number, the latest first."""
        found: dict[int, list[str]] = {}
        for name, _ in self.entries():
            known = parsed(name)
            if known is not None:
                found.setdefault(known[0], []).append(name)
        for names in found.values():
            names.sort(key=lambda name: parsed(name) or (0, ""), reverse=True)
        return found

    def leftovers(self, before: float) -> list[str]:
        """Return copies that were never finished and have not changed since a moment."""
        unfinished = [name for name, _ in self.entries() if name.startswith(_COPYING)]
        return [name for name in unfinished if (found := self.look(name)) is not None and found.st_ctime < before]


def _is_original(found: os.stat_result, change: Change) -> bool:
    """Tell whether an entry of a layer is the file that a change took out of the project, or a true copy of it."""
    before, after = change.before, change.after
    if before is None or not stat.S_ISREG(found.st_mode) or (after is not None and found.st_ino == after.inode):
        return False
    return found.st_size == before.size and found.st_mtime_ns == before.modified_ns


class Slots:
    """A layer after an apply: the originals of one root, reached even where a directory is closed to its owner."""

    def __init__(self, upper: str) -> None:
        self.top = open_top(upper)
        self._parents = Parents(self.top)
        self._loosened = Loosened(self.top)

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *_error: object) -> None:
        self._parents.close()
        self._loosened.restore()
        os.close(self.top)

    def directory(self, parent: str) -> int:
        """Return a descriptor of a directory, open for looking into; it stays valid until the next call."""
        try:
            found = self._parents.of(parent)
            os.close(os.open(".", PATH_ONLY | os.O_CLOEXEC, dir_fd=found))
        except PermissionError:
            if not self._loosened.loosen(parent):
                raise
            found = self._parents.of(parent)
        return found

    def look(self, parent: str, name: str) -> os.stat_result | None:
        """Return what lies in a slot, or None where nothing does."""
        try:
            return os.stat(name, dir_fd=self._parents.of(parent), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            if not self._loosened.loosen(parent):
                raise
            return os.stat(name, dir_fd=self._parents.of(parent), follow_symlinks=False)

