"""Daily backups, `edited/{id}-{YY-MM-DD}-{basename}`: one a day of each file that was changed or deleted.

One shares its inode with the original in a run's layer, so it costs no copy: both are backups, and nobody
writes to either. Before an original goes back into the project, its daily backup must be gone.
"""

from __future__ import annotations

import errno
import os
import time

from fumehood.linux.nofollow import LISTING, PATH_ONLY, Loosened, Parents, open_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DAYS = 7
DIRECTORY = "edited"
_LONGEST = 255  # bytes in a name
_COPYING = ".copying-"  # begins the name of a copy that is not whole yet
_CANT_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)


def day_of(moment: float) -> str:
    """Name the local day of a moment, YY-MM-DD."""
    return time.strftime("%y-%m-%d", time.localtime(moment))


def name_of(number: int, day: str, basename: bytes) -> bytes:
    """Name the backup of a file, by its record's number, on a day; a long name loses its end."""
    return (b"%d-%s-%s" % (number, day.encode(), basename))[:_LONGEST]


def parsed(name: str) -> tuple[int, str] | None:
    """Return the record's number and the day in a backup's name, or None where it is none."""
    parts = name.split("-", 4)
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in parts[:4]):
        return None
    is_day = [len(part) for part in parts[1:4]] == [2, 2, 2]
    return (int(parts[0]), "-".join(parts[1:4])) if is_day else None


def expired(names: Iterable[str], now: float, days: int = DAYS) -> list[str]:
    """Return the backups that are older than some days, by the day in their names."""
    limit = day_of(now - days * 86_400)
    return [name for name in names if (found := parsed(name)) is not None and found[1] < limit]


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

    def keep(self, slots: Slots, parent: str, basename: bytes, name: bytes) -> None:
        """Make an original in a layer the day's backup too, unless there is one of that day already."""
        try:
            slots.link(parent, basename, self.fd(), name)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _CANT_LINK:
                raise
            self._copy(slots, parent, basename, name)

    def _copy(self, slots: Slots, parent: str, basename: bytes, name: bytes) -> None:
        """Copy an original that can't be linked; under another name until it is whole."""
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

    def remove(self, name: str) -> int:
        """Remove a backup; returns the bytes that this freed, none where a run's layer has it too."""
        found = self.look(name)
        if found is None:
            return 0
        os.unlink(name, dir_fd=self.fd())
        return found.st_blocks * 512 if found.st_nlink == 1 else 0

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

    def link(self, parent: str, name: bytes, target: int, target_name: bytes) -> None:
        """Give an original one more name, in another directory."""
        try:
            here = self._parents.of(parent)
            os.link(name, target_name, src_dir_fd=here, dst_dir_fd=target, follow_symlinks=False)
        except PermissionError:
            if not self._loosened.loosen(parent):
                raise
            here = self._parents.of(parent)
            os.link(name, target_name, src_dir_fd=here, dst_dir_fd=target, follow_symlinks=False)

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

