"""Unpack a tarball that nobody vouches for: nothing is written outside the target, whatever names it holds.

Everything is reached from the target's descriptor without following a link. Owners, set-uid bits, devices and
extended attributes are not taken over: a tree has one owner, and the sandbox makes its own devices.
"""

from __future__ import annotations

import lzma
import os
import stat
import tarfile
import zlib
from typing import IO, TYPE_CHECKING

from fumehood.errors import FumehoodError
from fumehood.linux.nofollow import look, open_below, remove_tree, split

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_BYTES = 64 << 30
_MOST_ENTRIES = 4_000_000
_DEEPEST = 200
_LATEST = 1 << 33
_PIECE = 1 << 20
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)


class Hostile(FumehoodError):
    """A tarball names something outside the directory it is unpacked to."""


class Unpacking:
    """One target directory that tarballs are unpacked to, one after the other."""

    def __init__(self, target: int) -> None:
        self._top = target
        self._bytes = 0
        self._entries = 0
        self._parent: tuple[str, int] | None = None

    def all_of(self, archive: tarfile.TarFile, *, skip: str = "") -> None:
        """Unpack every member of an archive, less those whose names begin so."""
        try:
            for member, path in members(archive):
                if path and not (skip and split(path)[1].startswith(skip)):
                    self._one(archive, member, path)
            # To the very end: what is compressed has its own checksum there.
            while archive.fileobj.read(_PIECE):
                continue
        finally:
            self._leave()

    def _one(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        self._entries += 1
        if self._entries > _MOST_ENTRIES:
            raise Hostile("the tarball has too many entries", hint="is it a root file system?")
        parent, name = split(path)
        above = self._directory(parent, path)
        found = look(above, name)
        if member.isdir():
            self._make_directory(above, name, found, member.mode)
            return
        if not (member.isreg() or member.issym() or member.islnk()):
            return  # a device, or a pipe: the sandbox has its own
        if found is not None:
            self._leave()
            above = self._directory(parent, path)
            remove_tree(above, name)
        if member.issym():
            os.symlink(_checked_target(member.linkname, path), name, dir_fd=above)
        elif member.islnk():
            self._link(member, above, name, path)
        else:
            self._file(archive, member, above, name)

    def _make_directory(self, above: int, name: str, found: os.stat_result | None, mode: int) -> None:
        if found is not None and not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=above)
            found = None
        if found is None:
            os.mkdir(name, 0o700, dir_fd=above)
        os.chmod(name, mode & 0o1777 | 0o700, dir_fd=above)

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, above: int, name: str) -> None:
        source = archive.extractfile(member)
        if source is None:
            raise tarfile.ReadError(f"{name} has no content")
        file = os.open(name, _TARGET, 0o600, dir_fd=above)
        try:
            self._pour(source, file)
            os.fchmod(file, member.mode & 0o777 | 0o600)
            # Python trusts compiled code only where the source's time is what it was.
            time = min(max(member.mtime, 0), _LATEST)
            os.utime(file, (time, time))
        finally:
            os.close(file)

    def _pour(self, source: IO[bytes], file: int) -> None:
        while data := source.read(_PIECE):
            self._bytes += len(data)
            if self._bytes > _MOST_BYTES:
                raise Hostile("the tarball unpacks to too much", hint="is it a root file system?")
            while data:
                data = data[os.write(file, data) :]

    def _link(self, member: tarfile.TarInfo, above: int, name: str, path: str) -> None:
        """Make a hard link to something that was unpacked before."""
        parent, source = split(checked_path(member.linkname))
        folder = self._open(parent, path)
        try:
            found = look(folder, source)
            if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                raise Hostile(
                    f"the tarball links {path!r} to {member.linkname!r}, which is not a file in it", hint=_HINT
                )
            os.link(source, name, src_dir_fd=folder, dst_dir_fd=above, follow_symlinks=False)
        finally:
            os.close(folder)

    def _directory(self, parent: str, path: str) -> int:
        """Return the directory of a member, made where it is missing; the last one is kept open."""
        if self._parent is None or self._parent[0] != parent:
            self._leave()
            self._parent = parent, self._open(parent, path)
        return self._parent[1]

    def _open(self, parent: str, path: str) -> int:
        try:
            return open_below(self._top, parent)
        except FileNotFoundError:
            above, name = split(parent)
            folder = self._open(above, path)
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
                os.chmod(name, 0o755, dir_fd=folder)  # noqa: S103 - as directories of a system are
            finally:
                os.close(folder)
            return open_below(self._top, parent)
        except NotADirectoryError as error:
            raise Hostile(
                f"the tarball writes {path!r} below something that is not a directory", hint=_HINT
            ) from error
        except OSError as error:
            if error.errno != _ELOOP:
                raise
            raise Hostile(f"the tarball writes {path!r} through a link", hint=_HINT) from error

    def _leave(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None


_ELOOP = 40
_HINT = "nothing was installed; get the file from where you trust it"


def members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yield every member with its path, checked and without "./" before it; the top itself has an empty one."""
    for member in archive:
        yield member, checked_path(member.name)


def checked_path(name: str) -> str:
    """Return a member's path in the tree, or refuse one that leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > _DEEPEST:
        raise Hostile(f"the tarball names {name[:80]!r}…, which is too deep", hint=_HINT)
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Hostile(f"the tarball names {name!r}, which leads out of it", hint=_HINT)
    return "/".join(parts)


def _checked_target(target: str, path: str) -> str:
    """Return a link's target; an absolute one stays in the tree, since nobody follows it outside a sandbox."""
    if not target or "\0" in target:
        raise Hostile(f"the tarball holds a link without a target: {path!r}", hint=_HINT)
    depth = 0 if target.startswith("/") else path.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            raise Hostile(f"the tarball links {path!r} to {target!r}, which leads out of it", hint=_HINT)
    return target


def unpack(source: str, target: int) -> None:
    """Unpack a root tarball, compressed or not, to an empty directory."""
    try:
        with tarfile.open(source, "r:*") as archive:
            Unpacking(target).all_of(archive)
    except DAMAGE as error:
        raise damaged(source, error) from error


def damaged(source: str, error: Exception) -> FumehoodError:
    """Say that a tarball can't be read to its end."""
    return FumehoodError(f"{source} can't be unpacked: {error}", hint="nothing was installed; is it whole?")
